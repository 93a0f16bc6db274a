"""Virtual machines: what a journey may ask for, and the libvirt domain that it becomes."""

import hashlib
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import quoteattr as q

from appliance import binary
from isolation import BRIDGE
from wait import LabError

OVMF_CODE = "/usr/share/OVMF/OVMF_CODE_4M.fd"
OVMF_VARS = "/usr/share/OVMF/OVMF_VARS_4M.fd"
UNDIONLY_KERNEL = "/usr/lib/ipxe/ipxe.lkrn"


@dataclass
class Disk:
    """A disk, sparse. `bus` is `virtio` (virtio-blk), `scsi` (virtio-scsi) or `sata`; Debian's cloud kernel has no SATA."""

    size_gib: int = 8
    bus: str = "virtio"
    serial: str = ""


def memory():
    """MiB of a server: what suffices for a release, and more for what is tested, whose program is three times as large."""
    try:
        return 512 if binary().stat().st_size < 80_000_000 else 1024
    except LabError:
        return 512


@dataclass
class Machine:
    """A server. Everything not said is found from its name, so a machine is the same in every run."""

    name: str
    # `uefi`: OVMF. `bios`: SeaBIOS with QEMU's iPXE as the NIC's option ROM.
    firmware: str = "uefi"
    # `redfish`, `redfish-virtualmedia`, `redfish-uefihttp` (all sushy-emulator), `ipmi` (virtualbmc) or `none`.
    bmc: str = "redfish"
    # Of UEFI, the client that is tried first: `pxe` is the firmware's own, `http` its HTTP boot, `rom` QEMU's iPXE.
    # Of BIOS: `rom`, or `undionly`, where an iPXE that calls itself something else loads undionly.kpxe by TFTP.
    network_boot: str = ""
    memory_mib: int = field(default_factory=memory)
    vcpus: int = 2
    disks: list = field(default_factory=lambda: [Disk()])
    mac: str = ""
    # Whether the machine sees a BMC from inside (KCS). It is QEMU's own, which has no LAN.
    ipmi_device: bool = False

    def __post_init__(self):
        digest = hashlib.sha256(self.name.encode()).hexdigest()
        self.mac = self.mac or f"52:54:00:{digest[0:2]}:{digest[2:4]}:{digest[4:6]}"
        self.network_boot = self.network_boot or ("pxe" if self.firmware == "uefi" else "rom")
        for index, disk in enumerate(self.disks):
            disk.serial = disk.serial or f"LAB{digest[6:12].upper()}{index}"

    @property
    def uuid(self):
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{self.name}.lab.invalid"))

    def disk_file(self, work, index=0):
        return Path(work, f"{self.name}-{index}.raw")

    def nvram_file(self, work):
        return Path(work, f"{self.name}.nvram")


def default_machines():
    """The rack as it is unless a journey says otherwise: one UEFI machine with Redfish, one BIOS machine with IPMI."""
    return [Machine("uefi-1"), Machine("bios-1", firmware="bios", bmc="ipmi", disks=[Disk(bus="scsi")])]


def create_disks(machine, work):
    for index, disk in enumerate(machine.disks):
        with open(machine.disk_file(work, index), "wb") as file:
            file.truncate(disk.size_gib << 30)


def domain_xml(machine, work, serial_log):
    """The libvirt domain. Emulated (`qemu`, TCG): a nested virtual machine cannot run real mode firmware by KVM."""
    uefi = machine.firmware == "uefi"
    # First the disk; a BMC asks for the network when it wants it.
    system = ["<boot dev='hd'/>"]
    arguments, rom = [], ""
    if uefi:
        system += [f"<loader readonly='yes' type='pflash'>{OVMF_CODE}</loader>",
                   f"<nvram template='{OVMF_VARS}'>{machine.nvram_file(work)}</nvram>"]
        if machine.network_boot != "rom":
            # Without an option ROM the firmware's own driver and its own network boot are used.
            rom = "<rom enabled='no'/>"
        if machine.network_boot == "http":
            # What an operator does in the firmware's menu: PXE off, HTTP boot stays.
            for name in ("IPv4PXESupport", "IPv6PXESupport"):
                arguments += ["-fw_cfg", f"name=opt/org.tianocore/{name},string=n"]
    else:
        system += ["<bios useserial='yes'/>"]
        if machine.network_boot == "undionly":
            system += [f"<kernel>{UNDIONLY_KERNEL}</kernel>", f"<initrd>{undionly_script(work)}</initrd>"]
    if machine.ipmi_device:
        arguments += ["-device", "ipmi-bmc-sim,id=bmc0", "-device", "isa-ipmi-kcs,bmc=bmc0"]
    disks = []
    for index, disk in enumerate(machine.disks):
        name = ("vd" if disk.bus == "virtio" else "sd") + "abcdefgh"[index]
        disks.append(
            f"<disk type='file' device='disk'><driver name='qemu' type='raw' cache='unsafe' discard='unmap'/>"
            f"<source file={q(str(machine.disk_file(work, index)))}/><target dev='{name}' bus='{disk.bus}'/>"
            f"<serial>{disk.serial}</serial></disk>")
    command_line = "".join(f"<qemu:arg value={q(value)}/>" for value in arguments)
    return f"""<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>{machine.name}</name><uuid>{machine.uuid}</uuid>
  <memory unit='MiB'>{machine.memory_mib}</memory><vcpu>{machine.vcpus}</vcpu>
  <sysinfo type='smbios'><system><entry name='manufacturer'>Slipway Lab</entry><entry name='product'>{machine.firmware}</entry>
    <entry name='serial'>{machine.name}</entry><entry name='uuid'>{machine.uuid}</entry></system></sysinfo>
  <os><type arch='x86_64' machine='q35'>hvm</type><smbios mode='sysinfo'/>{"".join(system)}</os>
  <features><acpi/><apic/></features><cpu mode='maximum'/><clock offset='utc'/>
  <on_poweroff>destroy</on_poweroff><on_reboot>restart</on_reboot><on_crash>destroy</on_crash>
  <devices><emulator>/usr/bin/qemu-system-x86_64</emulator>{"".join(disks)}
    <controller type='scsi' model='virtio-scsi'/>
    <interface type='bridge'><mac address='{machine.mac}'/><source bridge='{BRIDGE}'/><model type='virtio'/>{rom}</interface>
    <serial type='file'><source path={q(str(serial_log))} append='on'/><target port='0'/></serial>
    <rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>
    <memballoon model='none'/>
  </devices>
  <qemu:commandline>{command_line}</qemu:commandline>
</domain>
"""


def undionly_script(work):
    """Makes the iPXE of the option ROM's place ask as a plain PXE client, so that undionly.kpxe is what it gets."""
    path = Path(work, "undionly.ipxe")
    path.write_text("#!ipxe\nset user-class PXEClient\ndhcp\nchain tftp://${next-server}/undionly.kpxe\n")
    return path
