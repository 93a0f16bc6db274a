"""The rack itself, without Slipway: BMCs act on real machines, and firmware reaches the network boot server.

dnsmasq is the DHCP and TFTP server here. When this journey fails, the lab is at fault and not Slipway.
"""

import json
import shutil
import time

from lab import ADDRESS, BRIDGE, USERNAME, LabError, ipmitool, redfish, say, wait_for, IPMI_PORT

DEADLINE = 420


def serve_boot(rack):
    """dnsmasq with iPXE and a script that says where it got to."""
    tftp = rack.work / "tftp"
    tftp.mkdir()
    for name in ("snponly.efi", "undionly.kpxe"):
        shutil.copy(f"/usr/lib/ipxe/{name}", tftp)
    (tftp / "boot.ipxe").write_text("#!ipxe\necho script reached by ${platform} ${user-class}\nsleep 100\n")
    rack.daemons.start("dnsmasq", [
        "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", f"--interface={BRIDGE}", "--bind-interfaces",
        "--dhcp-range=172.22.0.100,172.22.0.199,1h", f"--dhcp-leasefile={rack.work}/leases", "--log-dhcp", "--log-facility=-",
        "--enable-tftp", f"--tftp-root={tftp}", "--user=root", "--dhcp-match=set:ipxe,175", "--dhcp-match=set:bios,option:client-arch,0",
        f"--dhcp-boot=tag:ipxe,boot.ipxe,,{ADDRESS}", f"--dhcp-boot=tag:!ipxe,tag:bios,undionly.kpxe,,{ADDRESS}",
        f"--dhcp-boot=tag:!ipxe,tag:!bios,snponly.efi,,{ADDRESS}", "--no-ping"])


def log(rack):
    return (rack.logs / "dnsmasq.log").read_text(errors="replace")


def by_redfish(rack, machine):
    system = f"/redfish/v1/Systems/{machine.uuid}"
    status, _ = redfish("GET", system, user=(USERNAME, "wrong"))
    assert status == 401, f"a wrong password gives {status}"
    status, text = redfish("GET", system)
    assert status == 200 and json.loads(text)["PowerState"] == "Off", text
    status, text = redfish("PATCH", system, json.dumps({"Boot": {"BootSourceOverrideTarget": "Pxe", "BootSourceOverrideEnabled": "Once"}}))
    assert status in (200, 204), f"{status} {text}"
    assert json.loads(redfish("GET", system)[1])["Boot"]["BootSourceOverrideTarget"] == "Pxe"
    status, text = redfish("POST", f"{system}/Actions/ComputerSystem.Reset", '{"ResetType": "On"}')
    assert status in (200, 204), f"{status} {text}"
    wait_for("Redfish to read On", lambda: json.loads(redfish("GET", system)[1])["PowerState"] == "On", 30)


def by_ipmi(rack, machine):
    assert "off" in ipmitool(IPMI_PORT, "power", "status")
    ipmitool(IPMI_PORT, "chassis", "bootdev", "pxe")
    assert "PXE" in ipmitool(IPMI_PORT, "chassis", "bootparam", "get", "5")
    ipmitool(IPMI_PORT, "power", "on")
    wait_for("IPMI to read on", lambda: "is on" in ipmitool(IPMI_PORT, "power", "status"), 30)


def run(rack):
    serve_boot(rack)
    for machine in rack.machines:
        began = time.monotonic()
        (by_redfish if machine.bmc == "redfish" else by_ipmi)(rack, machine)
        wait_for(f"{machine.name}'s first DHCP packet", lambda: machine.mac in log(rack), 120, every=0.5)
        say(f"{machine.name}: first DHCP packet {time.monotonic() - began:.1f} s after the call to power on")
        name = "EFI" if machine.firmware == "uefi" else "pcbios"
        rack.wait_console(machine, f"script reached by {'efi' if name == 'EFI' else name}", 180)
        say(f"{machine.name}: iPXE runs the script after {time.monotonic() - began:.1f} s")
        if machine.bmc == "redfish":
            if "snponly.efi" not in log(rack):
                raise LabError("the firmware's own PXE client did not load snponly.efi")
            redfish("POST", f"/redfish/v1/Systems/{machine.uuid}/Actions/ComputerSystem.Reset", '{"ResetType": "ForceOff"}')
        else:
            ipmitool(IPMI_PORT, "power", "off")
        wait_for(f"{machine.name} to be off", lambda: not rack.running(machine), 60)
        say(f"{machine.name}: off again")
