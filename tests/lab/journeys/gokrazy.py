"""A system that is not Debian: imported from this desk, written to a SATA disk, started by UEFI, and told by its config drive."""

import hashlib
import json
import urllib.request

from lab import Disk, LabError, Machine, Slipway, check_output, prepared, say, secret, wait_for

DEADLINE = 1300
# The port of images/gokrazy/about.
PORT = 8080
USER_DATA = "what only this machine is told\n"


def machines():
    return [Machine("gokrazy-1", disks=[Disk(bus="sata")])]


def bring_in(slipway):
    """The recipe of docs/images.md, by the command."""
    image = prepared("GOKRAZY") / "gokrazy.qcow2"
    checksum = (image.parent / "SHA256SUMS").read_text().split()[0]
    said = check_output([slipway.program, "image", "import", "gokrazy", image, "--checksum", checksum,
                         "--kubeconfig", slipway.kubeconfig], deadline=120)
    if "hosts name it as slipway://gokrazy" not in said:
        raise LabError(f"slipway image import says: {said}")
    say(said.strip())


def about(where):
    with urllib.request.urlopen(f"http://{where}:{PORT}/", timeout=5) as answer:
        return json.load(answer)


def run(rack):
    slipway = Slipway(rack)
    slipway.build_ramdisk()
    slipway.start()
    bring_in(slipway)
    machine = rack.machines[0]
    slipway.apply(*rack.manifests(machine))
    slipway.wait_state(machine.name, "available", 500)
    slipway.apply(secret(f"{machine.name}-user-data", userData=USER_DATA))
    slipway.patch(machine.name, {"spec": {"image": {"url": "slipway://gokrazy"}, "userData": {"name": f"{machine.name}-user-data"}}})
    slipway.wait_state(machine.name, "provisioned", 400)
    where = wait_for(f"a lease of {machine.name}", lambda: slipway.address(machine), 60)
    told = wait_for(f"{machine.name} ({where}) to answer HTTP", lambda: about(where), 300, every=1)
    host = slipway.get("bmh", machine.name)
    wanted = {"name": machine.name, "uuid": host["metadata"]["uid"],
              "userDataSHA256": hashlib.sha256(USER_DATA.encode()).hexdigest()}
    assert wanted.items() <= told.items(), f"{told} has not {wanted}"
    assert rack.partition_table(machine) == (True, True), "no partition table where the image should be"
    assert "Linux version" in rack.console(machine) and slipway.address(machine) == where
    say(f"{machine.name} runs Linux {told['kernel']} and has its config drive at {told['configDrive']}")
