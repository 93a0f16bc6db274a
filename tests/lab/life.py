"""Steps that several journeys share: from manifests to an installed system that answers."""

import time

from lab import cloud_config, secret, wait_for


def install(rack, slipway, machines, kexec=()):
    """Registers hosts, waits until they are available, provisions them, those of `kexec` without a second start of
    their firmware. Returns the seconds of both halves."""
    began = time.monotonic()
    for machine in machines:
        slipway.apply(*rack.manifests(machine))
    for machine in kexec:
        slipway.patch(machine.name, {"metadata": {"annotations": {"slipway.dev/first-boot": "kexec"}}})
    names = [machine.name for machine in machines]
    slipway.wait_states(names, "available", 600)
    available = time.monotonic()
    for machine in machines:
        order(rack, slipway, machine)
    slipway.wait_states(names, "provisioned", 600)
    return available - began, time.monotonic() - available


def order(rack, slipway, machine, image=None):
    """Asks for an image, by default the Debian 12 one, with user data that lets this run's key in."""
    slipway.apply(secret(f"{machine.name}-user-data", userData=cloud_config(machine.name, rack.ssh.public)))
    slipway.patch(machine.name, {"spec": {"image": image or rack.image_spec(), "userData": {"name": f"{machine.name}-user-data"}}})


def wait_ssh(rack, slipway, machine, deadline=400):
    """Waits until the installed system answers SSH with this run's key; returns its address."""
    where = wait_for(f"a lease of {machine.name}", lambda: slipway.address(machine), 60)
    wait_for(f"SSH on {machine.name} ({where})", lambda: rack.ssh.run(where, "hostname", 20), deadline, every=2)
    return where
