"""What a journey uses: the rack, its machines, Slipway, waits.

A journey is a module in `journeys/` with `DEADLINE` (seconds for the whole of it), optionally `machines()`, and
`run(rack)`, which raises LabError (or AssertionError) when something is not as it should be.
"""

import shutil
import time
from pathlib import Path

from appliance import Slipway, Ssh, binary, cloud_config, host, secret
from bmcs import IPMI_PORT, PASSWORD, USERNAME, bmc_url, ipmitool, raise_rack, redfish, virsh
from isolation import ADDRESS, BMC_ADDRESS, BRIDGE
from machines import Disk, Machine, default_machines
from tools import TOP, prepared
from wait import LabError, check_output, say, short, tail, wait_for
from web import FileServer

__all__ = ["ADDRESS", "BMC_ADDRESS", "BRIDGE", "Disk", "FileServer", "IPMI_PORT", "LabError", "Machine", "PASSWORD", "Rack",
           "Slipway", "Ssh", "TOP", "USERNAME", "binary", "check_output", "cloud_config", "default_machines", "host", "ipmitool",
           "prepared", "redfish", "say", "secret", "short", "tail", "virsh", "wait_for"]

IMAGE_PORT = 8081


class Rack:
    """The machines of a journey with their BMCs, a folder for its work and one for its logs."""

    def __init__(self, logs, machines=None):
        self.logs, self.work = Path(logs), Path(logs, "work")
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        self.machines = default_machines() if machines is None else machines
        if len(self.machines) > 2:
            raise LabError("at most two machines at once: two cores emulate no more")
        # State and time of each change of each host, as `Slipway.wait_state` saw them.
        self.trail = {}
        self.daemons = raise_rack(self.machines, self.work, self.logs)
        self._ssh = self._images = None

    def machine(self, name):
        return next(machine for machine in self.machines if machine.name == name)

    @property
    def ssh(self):
        self._ssh = self._ssh or Ssh(self.work)
        return self._ssh

    def images(self):
        """The folder of images served on the rack's address, with the Debian 12 image in it, and its URL."""
        folder = self.work / "images"
        if self._images is None:
            folder.mkdir()
            for path in prepared("IMAGE").iterdir():
                (folder / path.name).symlink_to(path)
            self._images = FileServer(folder, ADDRESS, IMAGE_PORT, self.logs / "images-http.log")
        return folder, self._images.url

    def bmc_url(self, machine):
        return bmc_url(machine, self.machines)

    def manifests(self, machine, **spec):
        """Secret and BareMetalHost of a machine, as an operator would write them."""
        return [secret(f"{machine.name}-bmc", username=USERNAME, password=PASSWORD),
                host(machine.name, self.bmc_url(machine), machine.mac, machine.firmware, **spec)]

    def image_spec(self):
        """`spec.image` of the Debian 12 image, checksum by URL."""
        _, url = self.images()
        return {"url": f"{url}/debian-12.qcow2", "checksum": f"{url}/SHA256SUMS", "checksumType": "sha256", "format": "qcow2"}

    def running(self, machine):
        return virsh("domstate", machine.name).strip() == "running"

    def console(self, machine):
        path = self.logs / f"{machine.name}.console"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_console(self, machine, text, deadline, after=0):
        """Waits until the serial console shows `text` behind offset `after`; returns the seconds it took."""
        began = time.monotonic()
        wait_for(f"{machine.name} to show {text!r}", lambda: text in self.console(machine)[after:], deadline, every=0.5)
        return time.monotonic() - began

    def partition_table(self, machine, index=0):
        """Whether GPT signatures are at the start and at the end of a disk: (first, last)."""
        with machine.disk_file(self.work, index).open("rb") as file:
            file.seek(512)
            first = file.read(8) == b"EFI PART"
            file.seek(-512, 2)
            return first, file.read(8) == b"EFI PART"

    def close(self):
        """Takes the work folder away; the logs stay."""
        for machine in self.machines:
            try:
                virsh("destroy", machine.name, deadline=30)
            except LabError:
                pass
        for name in list(self.daemons.running):
            self.daemons.stop(name)
        shutil.rmtree(self.work, ignore_errors=True)
