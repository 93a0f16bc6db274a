"""What `make demo` shows: two powered-off servers become running Debian systems that answer over SSH."""

import time

from lab import PASSWORD, USERNAME, Slipway, say, wait_for
from life import wait_ssh

DEADLINE = 1500

MANIFEST = """apiVersion: v1
kind: Secret
metadata:
  name: {name}-bmc
stringData:
  username: {user}
  password: {password}
---
apiVersion: v1
kind: Secret
metadata:
  name: {name}-user-data
stringData:
  userData: |
    #cloud-config
    hostname: {name}
    ssh_authorized_keys:
      - {key}
---
apiVersion: metal3.io/v1alpha1
kind: BareMetalHost
metadata:
  name: {name}
spec:
  online: true
  bootMACAddress: {mac}
  bootMode: {mode}
  bmc:
    address: {bmc}
    credentialsName: {name}-bmc
    disableCertificateVerification: true
  image:
    url: {url}
    checksum: {checksum}
    checksumType: sha256
    format: qcow2
  userData:
    name: {name}-user-data
"""


def title(text):
    print(f"\n── {text} " + "─" * max(3, 100 - len(text)), flush=True)


def show(command, text):
    print(f"\n$ {command}\n{text.rstrip()}", flush=True)


def minutes(seconds):
    return f"{int(seconds) // 60} min {int(seconds) % 60:02} s"


def run(rack):
    began = time.monotonic()
    title("Two servers, powered off, with nothing on their disks")
    for machine in rack.machines:
        print(f"  {machine.name}: {machine.firmware.upper()} firmware, {machine.memory_mib} MB of memory, "
              f"{machine.disks[0].size_gib} GB disk, BMC {rack.bmc_url(machine)}")
    title("Slipway starts: DHCP, TFTP, boot HTTP and a Kubernetes-shaped API in one process")
    slipway = Slipway(rack)
    slipway.build_ramdisk()
    slipway.start()
    title("The operator says what is wanted")
    image = rack.image_spec()
    text = "---\n".join(
        MANIFEST.format(name=machine.name, user=USERNAME, password=PASSWORD, key=rack.ssh.public, mac=machine.mac,
                        mode="UEFI" if machine.firmware == "uefi" else "legacy", bmc=rack.bmc_url(machine), url=image["url"],
                        checksum=image["checksum"])
        for machine in rack.machines)
    path = rack.logs / "hosts.yaml"
    path.write_text(text)
    print(f"(the file is kept as {path})")
    show("kubectl apply -f hosts.yaml", slipway.kubectl("apply", "-f", path))
    title("Slipway registers, inspects and provisions them")
    applied = time.monotonic()
    slipway.wait_states([machine.name for machine in rack.machines], "provisioned", 900)
    provisioned = time.monotonic()
    title("The installed systems boot from their own disks")
    addresses = {}
    for machine in rack.machines:
        addresses[machine.name] = wait_ssh(rack, slipway, machine)
        say(f"{machine.name} answers at {addresses[machine.name]}")
    answered = time.monotonic()
    for machine in rack.machines:
        wait_for(f"cloud-init on {machine.name}",
                 lambda: rack.ssh.run(addresses[machine.name], "cloud-init status --wait >/dev/null; echo done", 300), 300)
    title("Done")
    show("kubectl get bmh -o wide", slipway.kubectl("get", "bmh", "-o", "wide"))
    show("kubectl get dhcpleases", slipway.kubectl("get", "dhcpleases"))
    for machine in rack.machines:
        command = "hostname; cat /etc/os-release; uptime"
        where = addresses[machine.name]
        show(f"ssh debian@{where} '{command}'", rack.ssh.run(where, command))
    print(f"\nFrom `kubectl apply` to provisioned {minutes(provisioned - applied)}, to SSH {minutes(answered - applied)}; "
          f"the demo took {minutes(time.monotonic() - began)}.\nEvery processor here is emulated; real servers spend their time "
          f"in firmware instead. Logs and consoles: {rack.logs}")
