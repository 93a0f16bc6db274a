//! docs/design/host.md, "Annotations": what is written on a host and means nothing here, and what means the same
//! whatever it holds.

use super::*;
use crate::api::metal3::{ANNOTATION_DETACHED, ANNOTATION_PAUSED};

#[test]
fn what_others_write_for_each_other_changes_nothing() {
    let plain = {
        let mut model = Model::with_image("http://x/a.qcow2");
        model.run_until("provisioned");
        (model.states, model.bmc, model.events)
    };
    for key in [
        "capm3.metal3.io/unhealthy",
        "capi.metal3.io/unhealthy",
        "reboot.metal3.iota",
        "kubectl.kubernetes.io/last-applied-configuration",
    ] {
        let mut model = Model::with_image("http://x/a.qcow2");
        model.annotate(key, "");
        model.run_until("provisioned");
        assert!(model.annotated(key), "{key}");
        assert_eq!((&model.states, &model.bmc, &model.events), (&plain.0, &plain.1, &plain.2), "{key}");
    }
    for (key, value) in [
        ("cluster.x-k8s.io/cluster-name", "c"),
        ("infrastructure.cluster.x-k8s.io/node-reuse", "md"),
        ("infrastructure.cluster.x-k8s.io/failure-domain", "rack-1"),
    ] {
        let mut model = Model::with_image("http://x/a.qcow2");
        model.host.metadata.labels = Some([(key.to_owned(), value.to_owned())].into());
        model.run_until("provisioned");
        assert_eq!(model.host.metadata.labels.as_ref().and_then(|all| all.get(key)).map(String::as_str), Some(value));
        assert_eq!((&model.states, &model.bmc, &model.events), (&plain.0, &plain.1, &plain.2), "{key}");
    }
}

#[test]
fn paused_and_detached_hold_anything() {
    for value in ["", "metal3.io/capm3", "true", "{\"deleteAction\":", "[1]"] {
        let mut paused = Model::in_state("provisioned");
        paused.annotate(ANNOTATION_PAUSED, value);
        paused.delete();
        assert_eq!(paused.settle().0, "paused", "{value:?}");
        let mut detached = Model::in_state("provisioned");
        detached.annotate(ANNOTATION_DETACHED, value);
        detached.settle();
        assert_eq!(detached.status().operational_status, OperationalStatus::Detached, "{value:?}");
        detached.delete();
        detached.run_until("gone");
        assert!(detached.gone && detached.bmc.is_empty(), "{value:?}");
    }
}
