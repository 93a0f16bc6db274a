"""Slipway as a process of the rack, and its API as an operator uses it: kubectl with the file that slipway prints."""

import base64
import json
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

from isolation import ADDRESS, BMC_ADDRESS, BRIDGE, PREFIX
from tools import TOP, prepared
from wait import GiveUp, LabError, check_output, say, short, wait_for

IPXE = "/usr/lib/ipxe"
# Milliseconds, not minutes, where the real figure would only make the journeys longer.
HOST = {"retry": "5s", "power_poll": "10s"}
# Where journeys and benchmarks serve their images.
IMAGE_PORTS = (8081, 8082)


def binary():
    """The binary that is tested, or $SLIPWAY."""
    path = Path(os.environ.get("SLIPWAY") or TOP / "target/lab/slipway")
    if not path.exists():
        raise LabError(f"{path} does not exist: run `make {'build' if 'release' in path.parts else 'lab'}`")
    return path


class Slipway:
    """`slipway serve` on the rack's bridge. `host` overrides keys of `[host]`, `networks` the whole `[[network]]` part."""

    def __init__(self, rack, host=None, networks=None, log_level="info"):
        self.rack, self.program = rack, binary()
        self.data, self.config = Path(rack.work, "data"), Path(rack.work, "slipway.toml")
        self.kubeconfig = Path(rack.work, "kubeconfig")
        # The rack's images are served on the appliance's own address.
        images = [f"{ADDRESS}:{port}" for port in IMAGE_PORTS]
        keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in (HOST | (host or {})).items())
        self.config.write_text(
            f'data_dir = "{self.data}"\n[api]\nlisten = "{ADDRESS}:8443"\nnames = ["{ADDRESS}"]\n'
            f'[boot]\nlisten = "{ADDRESS}:80"\ntftp = "{ADDRESS}:69"\n[image]\nallow = {json.dumps(images)}\n'
            # The machines' BMCs are programs beside it.
            f'[bmc]\nallow = ["{ADDRESS}", "{BMC_ADDRESS}"]\n[host]\n{keys}[log]\nlevel = "{log_level}"\n'
            + (networks or f'[[network]]\nname = "provisioning"\ninterface = "{BRIDGE}"\nsubnet = "172.22.0.0/{PREFIX}"\n'
               f'pool = ["172.22.0.100-172.22.0.199"]\nserver = "{ADDRESS}"\nrouter = "{ADDRESS}"\n'))

    def build_ramdisk(self):
        """`slipway ramdisk build` into the boot folder; kept in target/ for the same binary and kernel package."""
        boot, kernel = self.data / "boot", prepared("KERNEL")
        key = f"{self.program.stat().st_mtime_ns}-{self.program.stat().st_size}-{kernel.name}"
        kept = TOP / "target/lab/.ramdisk"
        if not (kept / "key").exists() or (kept / "key").read_text() != key:
            began = time.monotonic()
            shutil.rmtree(kept, ignore_errors=True)
            kept.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".ramdisk-") as folder:
                check_output([self.program, "ramdisk", "build", "--kernel-package", kernel, "--ipxe-dir", IPXE,
                              "--level", "3", "--out", Path(folder, "boot")], deadline=600)
                Path(folder, "key").write_text(key)
                shutil.copytree(folder, kept)
            size = sum(path.stat().st_size for path in (kept / "boot").rglob("*") if path.is_file())
            say(f"boot files built in {time.monotonic() - began:.0f} s, {size / 1e6:.1f} MB in all")
        boot.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(kept / "boot", boot, dirs_exist_ok=True)

    def start(self):
        """Starts it and waits until kubectl is answered."""
        began = time.monotonic()
        self.rack.daemons.start("slipway", [self.program, "serve", "--config", self.config])

        def answers():
            self.kubeconfig.write_text(check_output([self.program, "kubeconfig", "--config", self.config], deadline=20))
            return self.kubectl("get", "--raw", "/version")
        self.rack.daemons.ready("slipway", "Slipway to answer kubectl", answers, 60)
        say(f"Slipway answers kubectl after {time.monotonic() - began:.1f} s")

    def stop(self):
        """SIGTERM; returns the exit status."""
        return self.rack.daemons.stop("slipway")

    def restart(self, **host):
        """Stops it and starts it again with these keys of `[host]`; everything else, data included, stays."""
        self.stop()
        text = self.config.read_text()
        for key, value in host.items():
            text = re.sub(rf"(?m)^{key} = .*\n", "", text).replace("[host]\n", f"[host]\n{key} = {json.dumps(value)}\n")
        self.config.write_text(text)
        self.start()

    # ── kubectl ──

    def kubectl(self, *arguments, input=None, deadline=60):
        """Output of kubectl; a failure is a LabError with kubectl's words."""
        command = [prepared("KUBECTL"), "--kubeconfig", self.kubeconfig, "--request-timeout", "30s", *arguments]
        # Its discovery cache belongs to this run.
        return check_output(command, deadline, input=input, env=os.environ | {"KUBECACHEDIR": str(self.rack.work / "kube-cache"),
                                                                             "HOME": str(self.rack.work)})

    def apply(self, *objects):
        self.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def get(self, kind, name, namespace="default"):
        """An object, or None when there is none of that name."""
        text = self.kubectl("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def list(self, kind, namespace="default"):
        return json.loads(self.kubectl("get", kind, "-n", namespace, "-o", "json"))["items"]

    def patch(self, name, patch, kind="bmh"):
        self.kubectl("patch", kind, name, "--type", "merge", "-p", json.dumps(patch))

    def events(self, name):
        """Reason and message of the events of a host, oldest first."""
        items = [item for item in self.list("events") if item.get("involvedObject", {}).get("name") == name]
        return [f"{item.get('reason')}: {item.get('message')}" for item in items]

    # ── hosts ──

    def wait_states(self, names, states, deadline, error_ends=True):
        """Waits until every host of `names` is in one of `states`, and says each change with the time the state took.

        An error on a host ends the wait when `error_ends`. Returns the hosts by name.
        """
        states = [states] if isinstance(states, str) else states

        def reached():
            hosts = {host["metadata"]["name"]: host for host in self.list("bmh")}
            missing = [name for name in names if name not in hosts]
            if missing:
                raise LabError(f"not there: {', '.join(missing)}")
            rest = []
            for name in names:
                status = hosts[name].get("status", {})
                state = status.get("provisioning", {}).get("state", "")
                self.note(name, state)
                if status.get("errorMessage") and error_ends:
                    raise GiveUp(f"{name} has an error in {state}: {status.get('errorType')}: {status['errorMessage']}")
                if state not in states:
                    rest.append(f"{name} {state or 'new'}")
            return {name: hosts[name] for name in names} if not rest else "…" + ", ".join(self.with_progress(rest))
        return wait_for(f"{' and '.join(names)} to be {' or '.join(states)}", reached, deadline, every=1.5)

    def wait_state(self, name, states, deadline, error_ends=True):
        """`wait_states` of one host; returns it."""
        return self.wait_states([name], states, deadline, error_ends)[name]

    def note(self, name, state):
        """Keeps and says a host's change of state."""
        trail = self.rack.trail.setdefault(name, [])
        if trail and trail[-1][0] == state:
            return
        now = time.monotonic()
        took = f"  ({trail[-1][0] or 'new'} took {now - trail[-1][1]:.1f} s)" if trail else ""
        trail.append((state, now))
        say(f"{name}: {state or 'new'}{took}")

    def with_progress(self, texts):
        """Adds the agent's progress to texts that begin with a host's name."""
        intents = {item["metadata"]["name"]: item for item in self.list("bootintents")}
        return [" ".join([text, progress(intents.get(text.split()[0]))]).rstrip() for text in texts]

    def wait_error(self, name, pattern, deadline=120):
        """Waits until the host's errorMessage matches a regular expression, case ignored. Returns the message.

        The error must be whole: operationalStatus, errorType, and an event with the same reason.
        """
        def seen():
            status = (self.get("bmh", name) or {}).get("status", {})
            message = status.get("errorMessage", "")
            if not re.search(pattern, message, re.IGNORECASE):
                return f"…{status.get('provisioning', {}).get('state', 'new')}: {message or 'no error'}"
            if status.get("operationalStatus") != "error" or not status.get("errorType"):
                raise LabError(f"errorMessage without operationalStatus error and errorType: {short(status)}")
            if not any(re.search(pattern, event, re.IGNORECASE) for event in self.events(name)):
                raise LabError(f"no event says what errorMessage says: {message}")
            return message
        message = wait_for(f"{name} to say {pattern!r}", seen, deadline)
        say(f"{name}: {message}")
        return message

    def wait_no_error(self, name, deadline=120):
        """Waits until the host has no error."""
        def clear():
            status = (self.get("bmh", name) or {}).get("status", {})
            return status.get("operationalStatus") == "OK" or f"…{status.get('errorMessage')}"
        wait_for(f"{name} to be without error", clear, deadline)

    def wait_gone(self, name, deadline=180, kind="bmh"):
        wait_for(f"{kind} {name} to be gone", lambda: self.get(kind, name) is None, deadline, every=1.5)

    def address(self, machine):
        """The address that a machine holds, from the read-only leases. More than one is an error
        (docs/design/decisions.md, D10).
        """
        leases = [item["spec"] for item in self.list("dhcpleases")]
        own = {lease["address"] for lease in leases
               if lease["macAddress"].lower() == machine.mac and lease["state"] == "bound"}
        if len(own) > 1:
            raise LabError(f"{machine.name} holds several addresses: {sorted(own)}")
        return next(iter(own), None)


def progress(intent):
    """One line from a boot intent: which step, which phase, how far."""
    found = ((intent or {}).get("status") or {}).get("progress") or {}
    return " ".join(str(found[key]) + ("%" if key == "percent" else "") for key in ("step", "phase", "percent") if found.get(key) is not None)


# ── objects ──

def secret(name, **data):
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"}, "type": "Opaque",
            "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}}


def host(name, bmc_url, mac, firmware="uefi", credentials=None, **spec):
    """A BareMetalHost, switched on."""
    return {"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": name, "namespace": "default"},
            "spec": {"online": True, "bootMACAddress": mac, "bootMode": "UEFI" if firmware == "uefi" else "legacy",
                     "bmc": {"address": bmc_url, "credentialsName": credentials or f"{name}-bmc",
                             "disableCertificateVerification": True}} | spec}


def cloud_config(hostname, public_key):
    """User data: the usual user with a key. Passwords stay locked."""
    return f"#cloud-config\nhostname: {hostname}\nssh_authorized_keys:\n  - {public_key}\n"


class Ssh:
    """A key pair for one run, and commands on installed systems by it."""

    def __init__(self, work):
        self.key = Path(work, "id_ed25519")
        check_output(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", self.key])
        self.public = self.key.with_suffix(".pub").read_text().strip()

    def run(self, address, command, deadline=60, user="debian"):
        return check_output(["ssh", "-i", self.key, "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
                             "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=10", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes",
                             f"{user}@{address}", command], deadline)

    def status(self, address, command, deadline=60, user="debian"):
        """Exit status and output; only ssh's own failure is an error."""
        text = self.run(address, f"{command}; echo \"status=$?\"", deadline, user)
        body, _, code = text.rstrip().rpartition("status=")
        return int(code), body
