"""One machine's whole way: from its host's first state to the first line of the kernel that was installed on it."""

import time

from bmcs import define, virsh
from figures import Figure
from lab import Machine, Rack, Slipway, cloud_config, secret
from wait import LabError, say, tail, wait_for

GOAL = 110
KERNEL = "] Linux version"
FIRMWARE = "BdsDxe: starting"
# Ways to start the installed system, by their annotation, with the firmware's starts that each takes.
WAYS = [("firmware", 2), ("kexec", 1)]


def arrives(rack, slipway, machine, way, deadline):
    """Registers a host that has its image from the start. Returns seconds: state registering to provisioned, and to the
    installed kernel's first line."""
    bmc, host = rack.manifests(machine)
    name = f"{machine.name}-user-data"
    host["metadata"].setdefault("annotations", {})["slipway.dev/first-boot"] = way
    host["spec"] |= {"image": rack.image_spec(), "userData": {"name": name}}
    slipway.apply(secret(name, userData=cloud_config(machine.name, rack.ssh.public)), bmc, host)
    began = time.monotonic()
    wait_for(f"{machine.name} to run its system", lambda: rack.console(machine).count(KERNEL) == 2, deadline, every=0.2)
    system = time.monotonic() - began
    slipway.wait_state(machine.name, "provisioned", 60)
    return system


def run(part, logs):
    rack = Rack(logs, [Machine("life-1")])
    try:
        slipway = Slipway(rack)
        slipway.build_ramdisk()
        slipway.start()
        for number, (way, starts) in enumerate(WAYS, 1):
            machine = rack.machines[0]
            if number > 1:
                machine = Machine(f"life-{number}")
                define(machine, rack.work, rack.logs)
                rack.machines.append(machine)
            seconds = arrives(rack, slipway, machine, way, part.left())
            seen = rack.console(machine).count(FIRMWARE)
            say(f"{machine.name}: its system's kernel after {seconds:.1f} s by {way}, {seen} starts of the firmware")
            part.add(Figure(f"registering to the installed kernel's first line, started by {way}", f"{GOAL} s, {starts} starts of the firmware",
                            f"{seconds:.1f} s, {seen} starts of the firmware", "", seconds <= GOAL and seen == starts,
                            "UEFI machine under TCG: inspected, cleaned, Debian 12 imported and written"))
            virsh("destroy", machine.name)
    except LabError:
        print("\n".join(tail(rack.logs / "slipway.log", 30)))
        raise
    finally:
        rack.close()
