"""Discovery: a machine that nobody wrote down boots, appears, keeps its disk while it waits, is accepted and becomes available."""

import json

from isolation import PREFIX
from lab import ADDRESS, BRIDGE, PASSWORD, USERNAME, Machine, Slipway, check_output, redfish, say, wait_for

DEADLINE = 900
NAME = "lab-new-1"
PENDING = "slipway.dev/discovered"


def machines():
    # BIOS, because it starts faster.
    return [Machine("new-1", firmware="bios", bmc="redfish", ipmi_device=True)]


def networks():
    return (f'[[network]]\nname = "provisioning"\ninterface = "{BRIDGE}"\nsubnet = "172.22.0.0/{PREFIX}"\n'
            f'pool = ["172.22.0.100-172.22.0.199"]\nserver = "{ADDRESS}"\nrouter = "{ADDRESS}"\ndiscovery = true\n'
            '[[discovery.rule]]\nmatch = { manufacturer = "slipway*", mac = "52:54:00", memory_mib = 256 }\n'
            'name = "lab-{{ serial }}"\nlabels = { rack = "lab" }\n')


def switch_on(machine):
    """What the one who racks a machine does: network boot once, power on."""
    system = f"/redfish/v1/Systems/{machine.uuid}"
    boot = json.dumps({"Boot": {"BootSourceOverrideTarget": "Pxe", "BootSourceOverrideEnabled": "Once"}})
    status, text = redfish("PATCH", system, boot)
    assert status in (200, 204), f"{status} {text}"
    status, text = redfish("POST", f"{system}/Actions/ComputerSystem.Reset", '{"ResetType": "On"}')
    assert status in (200, 204), f"{status} {text}"


def switch_off(rack, machine):
    redfish("POST", f"/redfish/v1/Systems/{machine.uuid}/Actions/ComputerSystem.Reset", '{"ResetType": "ForceOff"}')
    wait_for(f"{machine.name} to be off", lambda: not rack.running(machine), 60)


def discovered(rack, slipway, machine):
    """Waits until the machine has reported itself and is off; its host."""
    switch_on(machine)
    host = wait_for(f"host {NAME}", lambda: slipway.get("bmh", NAME), 300)
    wait_for(f"{machine.name} to power off by itself", lambda: not rack.running(machine), 120)
    return host


def run(rack):
    machine = rack.machines[0]
    slipway = Slipway(rack, networks=networks())
    slipway.build_ramdisk()
    slipway.start()
    command = lambda *words: check_output([slipway.program, *words, "--kubeconfig", slipway.kubeconfig], deadline=60)

    host = discovered(rack, slipway, machine)
    assert host["metadata"]["annotations"][PENDING] == "pending" and host["metadata"]["labels"]["rack"] == "lab", host["metadata"]
    assert host["spec"]["bootMACAddress"] == machine.mac and host["spec"]["bootMode"] == "legacy", host["spec"]
    assert not host["spec"]["online"] and not host["spec"].get("bmc"), host["spec"]
    slipway.wait_state(NAME, "unmanaged", 60)
    hardware = slipway.get("hardwaredata", NAME)["spec"]["hardware"]
    assert hardware["systemVendor"]["serialNumber"] == machine.name and hardware["cpu"]["count"] == machine.vcpus, hardware
    status = slipway.get("bmh", NAME)["status"]
    assert status["hardware"] == hardware and status["operationalStatus"] == "discovered", status
    assert any(event.startswith("Discovered:") for event in slipway.events(NAME)), slipway.events(NAME)
    rack.wait_console(machine, "a BMC (IPMI) that does not tell its address", 5)
    say(f"{NAME} appeared with its inventory, and is off")

    # It does not loop: until it is accepted it boots its disk.
    switch_on(machine)
    rack.wait_console(machine, "waits to be accepted", 180)
    switch_off(rack, machine)
    assert len(slipway.list("bmh")) == 1

    # Forgotten, it is new again.
    slipway.kubectl("delete", "bmh", NAME, "--wait=false")
    slipway.wait_gone(NAME)
    slipway.wait_gone(NAME, 60, kind="hardwaredata")
    discovered(rack, slipway, machine)
    say("deleted, and discovered again")

    password = rack.work / "bmc-password"
    password.write_text(PASSWORD + "\n")
    command("host", "accept", NAME, "--bmc-address", rack.bmc_url(machine), "--bmc-username", USERNAME,
            "--bmc-password-file", password, "--insecure")
    slipway.wait_state(NAME, "available", 500)
    assert PENDING not in slipway.get("bmh", NAME)["metadata"].get("annotations", {})
    log = command("host", "log", NAME)
    assert "step inspect done" in log and "step erase done" in log and "slipway.token=[token]" not in log.split("kernel:")[0], log
    assert NAME in command("get", "hosts")
    say(f"{NAME} was accepted and is available")
