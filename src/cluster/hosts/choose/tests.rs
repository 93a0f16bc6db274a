//! Tables of hosts and wishes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::json;

use super::needs::{MIN_CPUS, MIN_MEMORY};
use super::*;
use crate::api::infrastructure::HostSelector;
use crate::api::metal3::{BareMetalHost, ProvisioningState};
use crate::cluster::hosts::consumer::MachineKind;

/// A free host; `change` is merged into it.
fn host(name: &str, change: serde_json::Value) -> CandidateHost {
    let mut host = json!({
        "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
        "metadata": {"name": name, "namespace": "rack"},
        "spec": {"online": false},
        "status": {"provisioning": {"state": "available"}},
    });
    json_patch::merge(&mut host, &change);
    CandidateHost::from(&serde_json::from_value::<BareMetalHost>(host).expect("a host"))
}

fn sized(name: &str, cpus: u64, gibibytes: u64) -> CandidateHost {
    host(name, json!({"status": {"hardware": {"cpu": {"count": cpus}, "ramMebibytes": gibibytes << 10}}}))
}

fn machine(kind: MachineKind, name: &str) -> MachineId {
    MachineId { kind, namespace: "rack".into(), name: name.into() }
}

fn wish() -> HostWish {
    HostWish {
        machine: machine(MachineKind::Metal3, "m"),
        cluster: Some("c".into()),
        selector: CompiledSelector::default(),
        needs: Needs::default(),
        reuse: Some("md-workers".into()),
        failure_domain: None,
    }
}

fn needs(pairs: &[(&str, &str)]) -> Needs {
    let annotations: BTreeMap<_, _> = pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    Needs::new(&annotations, &BTreeMap::new()).expect("needs")
}

fn chosen(wish: &HostWish, hosts: &[CandidateHost]) -> Result<(String, ChoiceReason), String> {
    let candidates: Vec<HostCandidate<'_>> =
        hosts.iter().map(|host| HostCandidate { host, capacity: host.capacity.as_ref(), taken: false }).collect();
    match choose(wish, &candidates) {
        HostChoice::Host(name, way) => Ok((name, way)),
        HostChoice::None(reason) => Err(reason),
    }
}

fn consumer(kind: &str, name: &str, group: &str) -> serde_json::Value {
    json!({"spec": {"consumerRef": {"kind": kind, "name": name, "namespace": "rack", "apiVersion": format!("{group}/v1beta1")}}})
}

const GROUP: &str = crate::api::infrastructure::GROUP;

#[test]
fn a_host_is_passed_over_for_a_reason() {
    let rows: &[(serde_json::Value, &str)] = &[
        (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), "being deleted (h)"),
        (consumer("Metal3Machine", "other", GROUP), "claimed by others (h: Metal3Machine other)"),
        (consumer("HostClaim", "x", "metal3.io"), "claimed by others (h: HostClaim x)"),
        // Another group's kind of the same name is another kind.
        (consumer("Metal3Machine", "m", "example.com"), "claimed by others (h: Metal3Machine m)"),
        (json!({"metadata": {"annotations": {"baremetalhost.metal3.io/paused": ""}}}), "paused (h)"),
        (json!({"metadata": {"annotations": {"baremetalhost.metal3.io/detached": ""}}}), "detached (h)"),
        (json!({"metadata": {"annotations": {"capm3.metal3.io/unhealthy": ""}}}), "marked unhealthy (h)"),
        (json!({"metadata": {"annotations": {"capi.metal3.io/unhealthy": ""}}}), "marked unhealthy (h)"),
        (json!({"status": {"errorMessage": "no power"}}), "in error (h: no power)"),
        (json!({"spec": {"image": {"url": "http://x/y"}}}), "told already what to run (h)"),
        (json!({"status": {"provisioning": {"state": "inspecting"}}}), "not available (h: inspecting)"),
        (json!({"status": null}), "not available (h: new)"),
        (
            json!({"metadata": {"labels": {"infrastructure.cluster.x-k8s.io/node-reuse": "cp-other"}}}),
            "kept for reuse by others (h: cp-other)",
        ),
    ];
    for (change, said) in rows {
        let reason = chosen(&wish(), &[host("h", change.clone())]).unwrap_err();
        assert_eq!(reason, format!("None of 1 BareMetalHosts can be claimed: 1 {said}"), "{change}");
    }
    let other = host("h", json!({"metadata": {"namespace": "other"}}));
    assert_eq!(chosen(&wish(), &[other]).unwrap_err(), "There is no BareMetalHost in this namespace");
    let free = host("h", json!({}));
    let taken = HostCandidate { host: &free, capacity: None, taken: true };
    assert_eq!(refusal(&wish(), &taken), Some(HostRefusal::Taken));
}

#[test]
fn labels_and_hardware_are_told_as_they_are() {
    let mut wanted = wish();
    wanted.selector = CompiledSelector::new(Some(&HostSelector {
        match_labels: BTreeMap::from([("role".into(), "worker".into())]),
        ..HostSelector::default()
    }))
    .unwrap();
    let reason = chosen(&wanted, &[host("h", json!({"metadata": {"labels": {"role": "db"}}}))]).unwrap_err();
    assert!(reason.contains("1 without the label role=worker (h: db)"), "{reason}");
    let mut wanted = wish();
    wanted.needs = needs(&[(MIN_CPUS, "8"), (MIN_MEMORY, "64Gi")]);
    let hosts = [sized("a", 4, 64), sized("b", 8, 32), host("c", json!({}))];
    let reason = chosen(&wanted, &hosts).unwrap_err();
    for said in
        ["with less than 8 processors (a: 4)", "with less than 65536 MiB of memory (b: 32768)", "not inspected (c)"]
    {
        assert!(reason.contains(said), "{reason}");
    }
    assert_eq!(chosen(&wanted, &[sized("d", 8, 64)]), Ok(("d".into(), ChoiceReason::Free)));
    let many: serde_json::Map<_, _> = (0..2000).map(|n| (format!("label-{n}"), json!("a-value"))).collect();
    let reason = chosen(&wish(), &[host("h", json!({"metadata": {"labels": many}}))]).unwrap_err();
    assert!(reason.contains("more labels"), "{reason}");
}

#[test]
fn the_order_is_the_documented_one() {
    let reuse = |name: &str, state: &str| {
        let mut change = consumer("Cluster", "c", "cluster.x-k8s.io");
        change["metadata"] = json!({"labels": {"infrastructure.cluster.x-k8s.io/node-reuse": "md-workers"}});
        change["status"] = json!({"provisioning": {"state": state}});
        host(name, change)
    };
    let domain = |name: &str, domain: &str| {
        host(name, json!({"metadata": {"labels": {"infrastructure.cluster.x-k8s.io/failure-domain": domain}}}))
    };
    let had = |name: &str| host(name, consumer("Metal3Machine", "m", GROUP));
    let in_domain = |name: &str| HostWish { failure_domain: Some(name.into()), ..wish() };
    // A machine of the other kind and the same name is another one.
    let old = HostWish { machine: machine(MachineKind::MachineApi, "m"), cluster: None, reuse: None, ..wish() };
    let reason = chosen(&old, &[had("c")]).unwrap_err();
    assert!(reason.contains("claimed by others (c: Metal3Machine m)"), "{reason}");
    let old_has = || host("d", consumer("Machine", "m", "cluster.k8s.io"));
    assert_eq!(chosen(&old, &[host("a", json!({})), old_has()]), Ok(("d".into(), ChoiceReason::Had)));
    let reason = chosen(&wish(), &[old_has()]).unwrap_err();
    assert!(reason.contains("claimed by others (d: Machine m)"), "{reason}");
    // The one that is had, whatever else there is.
    assert_eq!(
        chosen(&wish(), &[host("a", json!({})), reuse("b", "available"), had("c")]),
        Ok(("c".into(), ChoiceReason::Had))
    );
    // One that is kept, before free ones; while none is available, it is waited for.
    let hosts = [host("a", json!({})), reuse("b", "deprovisioning"), reuse("c", "available")];
    assert_eq!(chosen(&wish(), &hosts), Ok(("c".into(), ChoiceReason::Kept)));
    let reason = chosen(&wish(), &hosts[..2]).unwrap_err();
    assert!(
        reason.starts_with("Waiting for a host that is kept for reuse") && reason.contains("b: deprovisioning"),
        "{reason}"
    );
    let other = HostWish { reuse: None, ..wish() };
    assert_eq!(chosen(&other, &hosts), Ok(("a".into(), ChoiceReason::Free)));
    // A cluster's hosts are not another's.
    let other = HostWish { cluster: Some("d".into()), ..wish() };
    let reason = chosen(&other, &[reuse("c", "available")]).unwrap_err();
    assert!(reason.contains("claimed by others (c: Cluster c)"), "{reason}");
    // The failure domain is a wish.
    let hosts = [domain("a", "row-1"), domain("b", "row-2"), host("c", json!({}))];
    assert_eq!(chosen(&in_domain("row-2"), &hosts), Ok(("b".into(), ChoiceReason::Free)));
    assert_eq!(chosen(&in_domain("row-9"), &hosts), Ok(("a".into(), ChoiceReason::Free)));
    // The smallest that suffices, then by name.
    let hosts = [sized("a", 64, 256), sized("b", 16, 64), sized("c", 8, 64), sized("d", 8, 64)];
    assert_eq!(chosen(&wish(), &hosts), Ok(("c".into(), ChoiceReason::Free)));
    let large = HostWish { needs: needs(&[(MIN_MEMORY, "100Gi")]), ..wish() };
    assert_eq!(chosen(&large, &hosts), Ok(("a".into(), ChoiceReason::Free)));
}

#[test]
fn a_summary_is_bounded() {
    let long = "x".repeat(253);
    let hosts: Vec<CandidateHost> = (0..5000)
        .map(|number| {
            let state = ["inspecting", "registering", "preparing"][number % 3];
            host(&format!("{long}-{number}"), json!({"status": {"provisioning": {"state": state}, "errorMessage": if number % 2 == 0 { long.as_str() } else { "" }}}))
        })
        .collect();
    let reason = chosen(&wish(), &hosts).unwrap_err();
    assert!(reason.chars().count() < 1000, "{} letters", reason.chars().count());
    assert!(reason.contains("None of 5000") && reason.contains("and 2497 more"), "{reason}");
}

proptest! {
    /// Whatever order hosts come in, the same one is chosen, and it may be had.
    #[test]
    fn a_choice_is_the_same_and_right(
        hosts in proptest::collection::vec((0_u8..6, 0_u64..4, 0_u64..4, any::<bool>()), 0..12),
        least in 0_u64..4,
        turn in 0_usize..12,
    ) {
        let views: Vec<CandidateHost> = hosts.iter().enumerate().map(|(number, (kind, cpus, memory, near))| {
            let mut view = sized(&format!("h{number}"), *cpus, *memory);
            match kind {
                0 => view.consumer = Consumer::Machine(machine(MachineKind::Metal3, "other")),
                1 => view.state = ProvisioningState::Provisioned,
                2 => view.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH)),
                _ => {}
            }
            if *near {
                view.labels.get_or_insert_default().insert(LABEL_FAILURE_DOMAIN.into(), "row".into());
            }
            view
        }).collect();
        let wish = HostWish { needs: needs(&[(MIN_CPUS, &least.to_string())]), failure_domain: Some("row".into()), ..wish() };
        let first = chosen(&wish, &views);
        let mut turned = views.clone();
        turned.rotate_left(turn.min(views.len().saturating_sub(1)));
        prop_assert_eq!(&first, &chosen(&wish, &turned));
        let possible = hosts.iter().any(|(kind, cpus, ..)| *kind > 2 && *cpus >= least);
        prop_assert_eq!(first.is_ok(), possible);
    }
}
