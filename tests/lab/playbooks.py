"""What journeys of kubespray share: the checkout on the appliance's box, a Provisioning, and what becomes of it."""

import shutil
from pathlib import Path

from isolation import ADDRESS
from wait import check_output, say

NAME = "edge"
# What an operator's own could not be: below folders that others may write it would be refused.
OPT = Path("/run/opt")


def installation(tree, environment):
    """A checkout and its virtual environment, where only root may write. Lines of the configuration."""
    OPT.mkdir()
    check_output(["mount", "-t", "tmpfs", "-o", "mode=755,size=2g", "tmpfs", OPT], deadline=20)
    shutil.copytree(tree, OPT / "kubespray", ignore=shutil.ignore_patterns(".git"))
    shutil.copytree(environment, OPT / "venv", symlinks=True)
    check_output(["chown", "-R", "0:0", OPT], deadline=60)
    check_output(["chmod", "-R", "go-w", OPT], deadline=60)
    return f'[kubespray]\npath = "{OPT}/kubespray"\nansible = "{OPT}/venv"\n'


def mirrors(folder):
    """Lines of the same table: nodes get images and files from the appliance, and from nobody else."""
    return f'registry = "http://{ADDRESS}"\nfiles = "http://{ADDRESS}/packages/{folder}"\n'


def cluster(rack, worker):
    """A Provisioning: one machine by its MAC address, the other one, as `worker`, by what it has."""
    return {"apiVersion": "bpa.akraino.org/v1alpha1", "kind": "Provisioning", "metadata": {"name": NAME, "namespace": "default"},
            "spec": {"masters": [{"cp-1": {"mac-address": rack.machine("rack-1").mac}}],
                     "workers": [{"cp-1": None}, {"w-1": worker}], "image": rack.image_spec()}}


def ordered(slipway, *arguments):
    """What a person at a desk is answered by a command."""
    return check_output([slipway.program, *arguments, "--kubeconfig", slipway.kubeconfig], deadline=60)


def status_of(slipway, said):
    """The Provisioning's status, and what it says in a line. Each phase, state and task is said once: those in `said` were."""
    status = slipway.get("provisioning", NAME).get("status", {})
    phase, run = status.get("phase", "new"), status.get("run", {})
    line = ", ".join([phase, *(f"{node['name']} {node.get('state', '')}" for node in status.get("nodes", []))])
    line += f": {run['task']}" if phase == "Installing" and run.get("task") else ""
    if line not in said:
        said.append(line)
        say(line)
    return status, f"…{line}: {status.get('message', '')}"
