"""Three machines that are off become a cluster of a release by one apply, go to the next release by one patch, and leave.

Steps are plain scripts (`lcmType: byo`), so there is no Kubernetes in it; `releases_kubeadm` has that. Agents, their user data, cloud-init,
systemd and kubectl are real; the machines' firmware and BMCs are simulated, and their systems are Debians in namespaces.
"""

import time

from lab import say
from release_site import NAMES, WORKERS, ReleaseSite, objects_of_cluster, plain_releases

DEADLINE = 600


def machines():
    return []


def run(rack):
    with ReleaseSite(rack) as site:
        site.start()
        plain_releases(site)
        site.add_machines()
        everything(site)


def everything(site):
    began = time.monotonic()
    site.apply_once(objects_of_cluster("demo-1-0-0", {"team": "a"}))
    site.wait("a host to have its system", site.has_system, 120)
    site.kill()
    site.wait("a cluster of release one", lambda: site.is_ready("demo-1-0-0"), 240)
    say(f"Ready on release one {time.monotonic() - began:.0f} s after the objects")
    site.check_first(NAMES)
    site.upgrade_plain(NAMES, 240)
    site.delete_machine(WORKERS[1])
    site.wait("the rest of the cluster", lambda: site.is_ready("demo-1-1-0", NAMES[:2]), 60)
    print(site.slipway.kubectl("get", "lcmmachines,clusters.cluster.k8s.io,machines.cluster.k8s.io"), flush=True)
    site.delete_cluster(NAMES[:2])
