"""A host after its first provisioning: detached, moved with its status, provisioned anew, deleted in each state."""

import json

from lab import LabError, Machine, Slipway, say, wait_for
from life import install, order, wait_ssh

DEADLINE = 1500
DETACHED = "baremetalhost.metal3.io/detached"
STATUS = "baremetalhost.metal3.io/status"


def machines():
    # The second one has BIOS, because it starts faster; it is there to be deleted.
    return [Machine("life-1"), Machine("life-2", firmware="bios", bmc="redfish")]


def boot_id(rack, where):
    """Another one after each start of the system."""
    return rack.ssh.run(where, "cat /proc/sys/kernel/random/boot_id").strip()


def wait_operational(slipway, name, wanted, deadline=120):
    def seen():
        status = (slipway.get("bmh", name) or {}).get("status", {})
        return status.get("operationalStatus") == wanted or f"…{status.get('operationalStatus')} {status.get('errorMessage', '')}"
    wait_for(f"{name} to be {wanted}", seen, deadline)


def annotate(slipway, name, key, value):
    slipway.patch(name, {"metadata": {"annotations": {key: value}}})


def bmc_calls(rack):
    return sum("/redfish/v1/Systems" in line for line in (rack.logs / "redfish.log").read_text(errors="replace").splitlines())


def detached(rack, slipway, machine, where):
    """A detached host is left alone, may get another BMC address, and comes back without a restart."""
    before = boot_id(rack, where)
    annotate(slipway, machine.name, DETACHED, "")
    wait_operational(slipway, machine.name, "detached")
    calls = bmc_calls(rack)
    address = slipway.get("bmh", machine.name)["spec"]["bmc"]["address"]
    slipway.patch(machine.name, {"spec": {"bmc": {"address": address + "/"}}})
    slipway.patch(machine.name, {"spec": {"online": False}})
    # The appliance looks at every host when it starts: this one it must leave as it is.
    slipway.restart()
    wait_operational(slipway, machine.name, "detached")
    assert bmc_calls(rack) == calls, "the BMC of a detached host was spoken to"
    slipway.patch(machine.name, {"spec": {"online": True}})
    annotate(slipway, machine.name, DETACHED, None)
    wait_operational(slipway, machine.name, "OK")
    wait_for("the BMC to be spoken to again", lambda: bmc_calls(rack) > calls, 60)
    assert slipway.get("bmh", machine.name)["status"]["provisioning"]["state"] == "provisioned"
    assert boot_id(rack, where) == before, "the system was restarted"
    say(f"{machine.name}: detached and taken back")


def moved(rack, slipway, machine, where):
    """The host goes away without its machine being touched, and comes back with its status, as `clusterctl move` does it."""
    before = boot_id(rack, where)
    host = slipway.get("bmh", machine.name)
    bmc = slipway.get("secret", f"{machine.name}-bmc")
    annotate(slipway, machine.name, DETACHED, json.dumps({"deleteAction": "delete"}))
    wait_operational(slipway, machine.name, "detached")
    slipway.kubectl("delete", "bmh", machine.name, "--wait=false")
    slipway.wait_gone(machine.name, 60)
    assert rack.running(machine) and boot_id(rack, where) == before, "deleting a detached host touched its machine"
    status = json.dumps(host["status"])
    clean = {key: host["metadata"][key] for key in ("name", "namespace")} | {"annotations": {STATUS: status}}
    slipway.apply({key: bmc[key] for key in ("apiVersion", "kind", "data", "type")} | {"metadata": {"name": f"{machine.name}-bmc", "namespace": "default"}},
                  {"apiVersion": host["apiVersion"], "kind": host["kind"], "metadata": clean, "spec": host["spec"]})
    restored = slipway.wait_state(machine.name, "provisioned", 60)
    wait_operational(slipway, machine.name, "OK")
    restored = slipway.get("bmh", machine.name)
    assert STATUS not in restored["metadata"].get("annotations", {}), "the status annotation is still there"
    assert restored["status"]["provisioning"]["image"] == host["status"]["provisioning"]["image"], restored["status"]
    states = [state for state, _ in rack.trail[machine.name]]
    assert "registering" not in states[states.index("provisioned"):], states
    assert boot_id(rack, where) == before, "restoring the host restarted its system"
    say(f"{machine.name}: moved with its status")


def deleted(rack, slipway, machine, state):
    """Deletes a host as soon as it is in a state. It must go, and its machine be off."""
    slipway.apply(*rack.manifests(machine))
    if state == "provisioning":
        order(rack, slipway, machine)
    slipway.wait_state(machine.name, state, 400)
    slipway.kubectl("delete", "bmh", machine.name, "--wait=false")
    slipway.wait_gone(machine.name, 400)
    slipway.wait_gone(f"{machine.name}-bmc", 60, kind="secret")
    if state != "registering":
        wait_for(f"{machine.name} to be off", lambda: not rack.running(machine), 60)
    say(f"{machine.name}: deleted while {state}")


def run(rack):
    first, second = rack.machines
    slipway = Slipway(rack)
    slipway.build_ramdisk()
    slipway.start()
    install(rack, slipway, [first], kexec=[first])
    where = wait_ssh(rack, slipway, first)
    detached(rack, slipway, first, where)
    moved(rack, slipway, first, where)
    for state in ("inspecting", "available", "provisioning"):
        deleted(rack, slipway, second, state)
    # Another URL, the same image: the disk is wiped and written again.
    image = rack.image_spec()
    slipway.patch(first.name, {"spec": {"image": image | {"url": image["url"] + "?again"}}})
    slipway.wait_state(first.name, "deprovisioning", 60)
    slipway.wait_state(first.name, "provisioned", 400)
    status = slipway.get("bmh", first.name)["status"]
    if not status["provisioning"]["image"]["url"].endswith("?again"):
        raise LabError(f"the old image is still named: {status['provisioning']['image']}")
    slipway.kubectl("delete", "bmh", first.name, "--wait=false")
    slipway.wait_state(first.name, "deprovisioning", 60)
    slipway.wait_gone(first.name, 400)
    assert rack.partition_table(first) == (False, False), "the partition table survived the metadata clean"
    wait_for(f"{first.name} to be off", lambda: not rack.running(first), 60)
