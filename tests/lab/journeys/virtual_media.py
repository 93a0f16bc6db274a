"""Virtual media on a network without DHCP: the machine's addresses are its network data, from ramdisk to installed system."""

import json

from isolation import ADDRESS, BRIDGE, PREFIX
from lab import Machine, Slipway, say, secret, wait_for
from life import order

DEADLINE = 900
OWN = "172.22.0.57"


def machines():
    return [Machine("cd-1", bmc="redfish-virtualmedia")]


def network_data(machine):
    """OpenStack's network_data.json, as an operator of Metal3 writes it."""
    return json.dumps({
        "links": [{"id": "nic", "type": "phy", "ethernet_mac_address": machine.mac, "mtu": 1500}],
        "networks": [{"id": "provisioning", "type": "ipv4", "link": "nic", "ip_address": OWN, "netmask": "255.255.255.0",
                      "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": ADDRESS}]}],
        "services": [{"type": "dns", "address": ADDRESS}]})


def run(rack):
    # DHCP answers nobody, on a network that is not served.
    networks = f'[[network]]\nname = "quiet"\ninterface = "{BRIDGE}"\nsubnet = "172.22.0.0/{PREFIX}"\nmode = "off"\nserver = "{ADDRESS}"\n'
    slipway = Slipway(rack, networks=networks, log_level="info,slipway::bmc=debug")
    slipway.build_ramdisk()
    slipway.start()
    machine = rack.machines[0]
    slipway.apply(secret("cd-1-network", networkData=network_data(machine)))
    slipway.apply(*rack.manifests(machine, preprovisioningNetworkDataName="cd-1-network"))
    slipway.wait_state(machine.name, "available", 500)
    hardware = slipway.get("hardwaredata", machine.name)["spec"]["hardware"]
    assert OWN in [nic.get("ip") for nic in hardware["nics"]], hardware["nics"]
    assert not slipway.list("dhcpleases"), "somebody got a lease where DHCP is off"
    say("inspected from a virtual CD, without DHCP")
    order(rack, slipway, machine)
    slipway.wait_state(machine.name, "provisioned", 500)
    # The network data is the installed system's too, unless it has some of its own.
    wait_for(f"SSH on {machine.name} ({OWN})", lambda: rack.ssh.run(OWN, "hostname", 20), 300, every=2)
    assert "iso9660" not in rack.ssh.run(OWN, "lsblk -no FSTYPE /dev/sr0 2>/dev/null || true"), "the boot ISO is still in the drive"
    say("provisioned, and the virtual CD is out")
