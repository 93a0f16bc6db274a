//! What is kept of GracefulRebootRequests, and which of them are looked at when something else changes.

use kube::ResourceExt;

use crate::api::kaas::GracefulRebootRequest;
use crate::api::lcm::{ANNOTATION_GRACEFUL_REBOOT, ANNOTATION_REBOOT_REQUEST, LCMCluster, LCMMachine};
use crate::api::machine_api::Cluster;
use crate::release::names::READY;
use crate::runtime::conditions::{find, is_true};
use crate::runtime::wake::on_change;
use crate::runtime::{Cache, Slim, Watches};

/// GracefulRebootRequests, which have the name of their cluster. None yet, until the watches run.
pub fn reboots(watches: &mut Watches) -> Cache<Slim<GracefulRebootRequest>> {
    let reboots: Cache<Slim<GracefulRebootRequest>> =
        Cache::new(watches, |object: &GracefulRebootRequest| Slim::from(object));
    let wakes = reboots.wakes().clone();
    let machine = |lcm: &LCMMachine| {
        let marks =
            [ANNOTATION_GRACEFUL_REBOOT, ANNOTATION_REBOOT_REQUEST].map(|key| lcm.annotations().get(key).cloned());
        let status = lcm.status.as_ref();
        let ready = status.and_then(|status| find(&status.conditions, "Ready")).map(|one| one.message.clone());
        (lcm.spec.cluster_name.clone(), lcm.uid(), marks, status.and_then(|status| status.reboot.clone()), ready)
    };
    on_change(watches, machine, move |(namespace, _), (cluster, ..)| wakes.wake((namespace.clone(), cluster.clone())));
    let wakes = reboots.wakes().clone();
    let ready = |cluster: &Cluster| {
        let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        (cluster.uid(), is_true(conditions, READY))
    };
    on_change(watches, ready, move |key, _| wakes.wake(key.clone()));
    let wakes = reboots.wakes().clone();
    let told = |lcm: &LCMCluster| {
        let has = lcm.status.as_ref().map(|status| status.release.clone());
        (lcm.spec.maintenance, lcm.spec.release.clone(), has)
    };
    on_change(watches, told, move |key, _| wakes.wake(key.clone()));
    reboots
}
