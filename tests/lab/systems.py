"""The systems of provisioned hosts: where a machine is simulated, a node in namespaces is what its image and user data become."""

import programs
from drives import drive_of_host
from wait import say


def installation(host):
    """What makes an installed system this one and no other; None when a host has none."""
    status, spec = host.get("status", {}), host["spec"]
    if status.get("provisioning", {}).get("state") != "provisioned":
        return None
    secrets = [(spec.get(key) or {}).get("name") for key in ("userData", "metaData", "networkData")]
    return (host["metadata"]["uid"], status["provisioning"].get("image", {}).get("url"), *secrets)


class Systems:
    """A node for each host that is provisioned, under the host's name; on while the host is powered on.

    `version_of` says which Kubernetes is on the image that a host got.
    """

    def __init__(self, slipway, nodes, namespace="default", version_of=lambda host: programs.KUBERNETES):
        self.slipway, self.nodes, self.namespace, self.version_of = slipway, nodes, namespace, version_of
        self.installed = {}
        # Hosts whose systems have died, though their machines are switched on.
        self.dead = set()

    def die(self, name):
        """A host's system dies, and its BMC knows nothing of it."""
        say(f"{name}: its system dies")
        self.nodes.nodes[name].cut_power()
        self.dead.add(name)

    def follow(self):
        """Does what machines would have done since the last call, and returns the nodes by their hosts' names.

        To be called again and again, in the checks of waits too; by the thread that ends the nodes.
        """
        hosts = {host["metadata"]["name"]: host for host in self.slipway.list("bmh", self.namespace)}
        for name in [name for name, what in self.installed.items() if name not in hosts or installation(hosts[name]) != what]:
            say(f"{name}: its system is gone")
            self.nodes.nodes[name].remove()
            del self.installed[name]
            self.dead.discard(name)
        for name, host in hosts.items():
            what = installation(host)
            if what is not None and name not in self.dead:
                self.power(name, host, what)
        return {name: self.nodes.nodes[name] for name in self.installed if name not in self.dead}

    def power(self, name, host, what):
        """Starts a host's system, or cuts its power, as the host's own power says."""
        on = host["status"].get("poweredOn", False)
        if name not in self.installed:
            if on:
                say(f"{name}: its system starts for the first time")
                self.nodes.start(name, drive_of_host(self.slipway, host), host["spec"]["bootMACAddress"].lower(), self.version_of(host))
                self.installed[name] = what
            return
        node = self.nodes.nodes[name]
        if on and not node.runs():
            say(f"{name}: its system starts again")
            node.switch_on()
        elif not on and node.runs():
            say(f"{name}: its power is cut")
            node.cut_power()
