"""What a config drive holds, as Slipway makes it (docs/design/host.md, config drive): texts by the names of their files."""

import base64
import json
import uuid

import node_root
from wait import LabError, check_output


def drive_of(name, user_data, network_data=None, meta_data=None, uid=None, namespace="default"):
    """The drive of a host. Network data and metadata are objects; the latter go over what every host has."""
    base = {"uuid": uid or str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.lab.invalid")), "metal3-namespace": namespace, "metal3-name": name,
            "local-hostname": name, "local_hostname": name, "name": name}
    drive = {"meta_data.json": json.dumps(base | (meta_data or {}))}
    if user_data:
        drive["user_data"] = user_data
    if network_data:
        drive["network_data.json"] = json.dumps(network_data)
    return drive


def drive_of_host(slipway, host):
    """The drive of a BareMetalHost, from the Secrets that its spec names."""
    metadata, spec = host["metadata"], host["spec"]
    name, namespace = metadata["name"], metadata["namespace"]

    def content(key, reference):
        """The text of a Secret; nothing when there is no reference. One of another namespace is not for this host."""
        if not reference:
            return ""
        if reference.get("namespace", namespace) != namespace:
            raise LabError(f"{key} of {name} is in another namespace: {reference}")
        found = slipway.get("secret", reference["name"], namespace)
        if found is None:
            raise LabError(f"{key} of {name} is missing: {reference['name']}")
        data = found.get("data") or {}
        return base64.b64decode(data.get(key) or data.get("value") or "").decode()

    before = spec.get("preprovisioningNetworkDataName")
    network = spec.get("networkData") or (before and {"name": before})
    return drive_of(name, content("userData", spec.get("userData")), from_yaml(content("networkData", network)),
                    from_yaml(content("metaData", spec.get("metaData"))), metadata["uid"], namespace)


def from_yaml(text):
    """An object out of YAML or JSON; None of nothing. The nodes' Python has what reads it."""
    if not text.strip():
        return None
    convert = "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout, default=str)"
    return json.loads(check_output(["chroot", node_root.root(), "/usr/bin/python3", "-c", convert], deadline=30, input=text))
