//! Many controllers, many machines, and fewer hosts.

use std::collections::BTreeMap;

use futures::FutureExt;

use super::*;
use crate::api::infrastructure::HostSelector;
use crate::cluster::hosts::choose::{ChoiceReason, CompiledSelector, HostWish};
use crate::cluster::hosts::{MachineId, MachineKind};

/// The host that a machine is about to take is not taken after all, as when another controller was faster.
#[tokio::test]
async fn a_host_that_a_machine_did_not_take_is_others_at_once() {
    let site = Site::with_controllers(0).await;
    let mut watches = Watches::default();
    let hosts = HostPool::new(&mut watches);
    let InfrastructureCaches { machines, hosts, .. } = InfrastructureCaches::new(&mut watches, hosts);
    tokio::spawn(watches.run(site.client.clone(), site.shutdown.clone()));
    site.free("h", json!({})).await;
    let wish = |name: &str| {
        let machine = MachineId { kind: MachineKind::Metal3, namespace: NAMESPACE.into(), name: name.into() };
        HostWish { machine, ..HostWish::default() }
    };
    let wait = async {
        loop {
            match hosts.pick(&wish("a")).await {
                Ok(pick) => return pick,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let first = tokio::time::timeout(Duration::from_secs(120), wait).await.expect("the host is known in time");
    let place = |name: &str| (NAMESPACE.to_owned(), name.to_owned());
    assert!(hosts.pick(&wish("b")).await.is_err_and(|none| none.is_passing));
    assert!(!machines.wakes().is_woken(&place("b")));
    drop(first);
    assert!(machines.wakes().is_woken(&place("b")), "who waited is told");
    hosts.pick(&wish("b")).await.expect("it may be had").taken();
    assert!(hosts.pick(&wish("a")).await.is_err_and(|none| none.is_passing), "until it is heard of that b has it");
}

/// However many hosts a namespace has that are others', whoever waits looks at those only that he might get.
#[tokio::test]
async fn a_machine_that_waits_looks_at_no_host_that_is_anothers() {
    const HAD: usize = 100;
    let site = Site::with_controllers(0).await;
    let mut watches = Watches::default();
    let hosts = HostPool::new(&mut watches);
    tokio::spawn(watches.run(site.client.clone(), site.shutdown.clone()));
    let reuse = |whom: &str| json!({"metadata": {"labels": {"infrastructure.cluster.x-k8s.io/node-reuse": whom}}});
    for number in 0..HAD {
        let consumer = json!({"kind": "Metal3Machine", "name": format!("m{number:03}"), "namespace": NAMESPACE,
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2"});
        let object =
            json!({"metadata": {"name": format!("h{number:03}")}, "spec": {"online": false, "consumerRef": consumer}});
        site.create::<BareMetalHost>(object).await;
    }
    site.free("inspected", json!({"status": {"provisioning": {"state": "inspecting"}}})).await;
    site.free("kept", reuse("md-others")).await;
    site.free("free-a", json!({"metadata": {"labels": {"row": "a"}}})).await;
    site.free("free-b", json!({"metadata": {"labels": {"row": "b"}}})).await;
    let machine = |name: &str| MachineId { kind: MachineKind::Metal3, namespace: NAMESPACE.into(), name: name.into() };
    let labels = BTreeMap::from([("row".to_owned(), "c".to_owned())]);
    let selector = HostSelector { match_labels: labels, ..HostSelector::default() };
    let selector = CompiledSelector::new(Some(&selector)).unwrap();
    let wish = HostWish { machine: machine("new"), selector, reuse: Some("md-own".into()), ..HostWish::default() };
    let all = format!("None of {} BareMetalHosts", HAD + 4);
    let wait = async {
        loop {
            match hosts.pick(&wish).await {
                Err(none) if none.reason.starts_with(&all) && none.reason.contains("2 without the label") => {
                    return none;
                }
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let none = tokio::time::timeout(Duration::from_secs(120), wait).await.expect("all hosts are known in time");
    assert_eq!(none.looked_at, 2, "of {} hosts", HAD + 4);
    for said in [
        "100 claimed by others (h000: Metal3Machine m000, h001: Metal3Machine m001, h002: Metal3Machine m002, and 97 more)",
        "1 not available (inspected: inspecting)",
        "1 kept for reuse by others (kept: md-others)",
        "2 without the label row=c (free-a: a, free-b: b)",
    ] {
        assert!(none.reason.contains(said), "{}", none.reason);
    }
    // One that has a host looks at that one.
    let pick = hosts.pick(&HostWish { machine: machine("m007"), ..HostWish::default() }).await.expect("its own");
    assert_eq!((pick.name(), pick.way), ("h007", ChoiceReason::Had));
    let kept = HostWish { machine: machine("next"), reuse: Some("md-others".into()), ..HostWish::default() };
    assert_eq!(hosts.pick(&kept).await.expect("the one that is kept").name(), "kept");
}

/// A namespace whose machines choose keeps no other one waiting.
#[tokio::test]
async fn each_namespace_has_a_turn_of_its_own() {
    let hosts = HostPool::new(&mut Watches::default());
    let wish = |namespace: &str| {
        let machine = MachineId { kind: MachineKind::Metal3, namespace: namespace.into(), name: "m".into() };
        HostWish { machine, ..HostWish::default() }
    };
    let busy = hosts.turn("busy");
    let held = busy.lock().await;
    assert!(hosts.pick(&wish("busy")).now_or_never().is_none(), "one machine of a namespace at a time");
    assert!(hosts.pick(&wish("other")).now_or_never().is_some());
    drop(held);
    assert!(hosts.pick(&wish("busy")).now_or_never().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_host_is_claimed_twice_and_no_machine_has_two() {
    const HOSTS: usize = 8;
    const MACHINES: usize = 12;
    let site = Site::with_controllers(3).await;
    site.cluster("c").await;
    for number in 0..MACHINES {
        site.wish(&format!("m{number}"), "c", json!({})).await;
    }
    for number in 0..HOSTS {
        site.free(&format!("h{number}"), json!({})).await;
    }
    let claimed = async || {
        let hosts = site.api::<BareMetalHost>().list(&ListParams::default()).await.unwrap();
        hosts.items.iter().filter_map(|host| Some((host.name_any(), consumer(host)?))).collect::<BTreeMap<_, _>>()
    };
    // Those that got none say so; then nobody is under way any more.
    let settled = async || {
        let machines = site.api::<Metal3Machine>().list(&ListParams::default()).await.unwrap();
        let status = |machine: &Metal3Machine| {
            let condition = find(&machine.status.clone()?.conditions, "AssociateBareMetalHost").cloned()?;
            Some((condition.status == "True", condition.message))
        };
        let said: Vec<_> = machines.items.iter().filter_map(status).collect();
        said.iter().filter(|(has, _)| *has).count() == HOSTS
            && said.iter().filter(|(has, reason)| !has && reason.contains("None of 8")).count() == MACHINES - HOSTS
    };
    let wait = async {
        while claimed().await.len() < HOSTS || !settled().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // Far sooner than who got none looks again by itself, which is after five minutes.
    tokio::time::timeout(Duration::from_secs(120), wait).await.expect("every host is claimed in time");
    let hosts = claimed().await;
    let mut owners: Vec<&String> = hosts.values().collect();
    owners.sort();
    owners.dedup();
    assert_eq!(owners.len(), HOSTS, "a machine has two hosts: {hosts:?}");
    for (host, owner) in &hosts {
        let name = owner.strip_prefix("Metal3Machine ").expect("a machine");
        let machine = site.get::<Metal3Machine>(name).await.expect("the machine");
        assert_eq!(machine.annotations()["metal3.io/BareMetalHost"], format!("{NAMESPACE}/{host}"));
        // Whoever told the host what to run told it this machine's.
        let host = site.host(host, "is told what to run", |host| host.spec.image.is_some()).await;
        let told = host.spec.user_data.and_then(|reference| reference.name);
        assert_eq!(told, Some(format!("{name}-data")));
    }
}
