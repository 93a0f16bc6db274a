use serde_json::json;

use super::*;

fn letters(found: &[FoundStage]) -> String {
    let letter = |stage: &FoundStage| match stage.state {
        StageState::NotStarted => '.',
        StageState::InProgress => 'i',
        StageState::Success => 's',
        StageState::Fail => 'f',
    };
    found.iter().map(letter).collect()
}

/// As it is written down when nothing was before.
fn written(found: Vec<FoundStage>) -> String {
    let stages = advance(&[], found, Timestamp::UNIX_EPOCH);
    letters(&stages.iter().map(|one| stage("", one.status, "")).collect::<Vec<_>>())
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

fn yes(type_: &str) -> Value {
    condition(type_, "True", "Yes", "")
}

fn machine(change: Value) -> LCMMachine {
    let mut one = json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "LCMMachine", "metadata": {"name": "m"},
        "spec": {"release": "r1"}, "status": {"release": "r1"}});
    json_patch::merge(&mut one, &change);
    serde_json::from_value(one).unwrap()
}

fn cluster(status: Value) -> LCMCluster {
    serde_json::from_value(json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "LCMCluster",
        "metadata": {"name": "c", "generation": 2}, "spec": {"release": "r2"}, "status": status}))
    .unwrap()
}

#[test]
fn what_is_over_stays_so_and_times_are_those_of_changes() {
    let at = |second: i64| Timestamp::from_second(1_790_000_000 + second).unwrap();
    let time = |stage: &LcmStage| stage.timestamp.as_ref().unwrap().0;
    let not = |name| stage(name, StageState::NotStarted, "");
    let first = advance(&[], vec![stage("a", StageState::InProgress, "x"), not("b")], at(0));
    let again = advance(&first, vec![stage("a", StageState::InProgress, "y"), not("b")], at(10));
    assert_eq!((again[0].message.as_str(), time(&again[0])), ("y", at(0)));
    // It is over only when those before it are.
    let early = advance(&again, vec![stage("a", StageState::InProgress, "y"), over("b")], at(15));
    assert_eq!((early[1].status, early[1].success), (StageState::NotStarted, false));
    let done = advance(&early, vec![over("a"), stage("b", StageState::Fail, "no")], at(20));
    assert_eq!((done[0].success, time(&done[0]), is_ended(&done)), (true, at(20), true));
    let later = advance(&done, vec![stage("a", StageState::Fail, "ill"), over("b")], at(30));
    assert_eq!((&later[0], time(&later[1]), is_ended(&later)), (&done[0], at(30), true));
    assert!(!is_ended(&again) && !is_ended(&[]) && is_over(&[over("a")]) && !is_over(&[over("a"), not("b")]));
    let given_up = given_up(&advance(&first, vec![over("a"), not("b")], at(40)), "r3 is to follow", at(50));
    assert_eq!((given_up[0].success, given_up[1].status, is_ended(&given_up)), (true, StageState::Fail, true));
    assert_eq!((given_up[1].message.as_str(), time(&given_up[1])), ("r3 is to follow", at(50)));
}

#[test]
fn a_cluster_that_is_made_says_how_far_it_is() {
    let nodes = |reason: &str, message: &str| condition("Nodes", "False", reason, message);
    let waits = condition("LoadBalancer", "False", "WaitingForControlPlane", "no manager has begun the cluster yet");
    let failed = "* m: step kubeadm failed with exit code 1 (attempt 3): prize";
    let stuck = json!({"lcmOperationStuck": true, "conditions": [condition("NodesReady", "False", "No", failed)]});
    for (conditions, status, bundle, wanted) in [
        (json!([condition("Provider", "False", "NameTaken", "x")]), json!({}), false, "f.i.i."),
        (json!([condition("Provider", "False", "Error", "x")]), json!({}), false, "i.i.i."),
        (json!([yes("Provider"), waits, nodes("NoMachines", "")]), json!({}), true, "ss...."),
        (json!([yes("Provider"), waits, nodes("WaitingForNodes", "0 of 1")]), json!({}), true, "ssi.i."),
        (json!([yes("Provider"), waits, nodes("Stuck", "0 of 1")]), stuck, true, "ssf.f."),
        (
            json!([yes("Provider"), condition("Helm", "False", "InvalidCharts", "x"), nodes("NoMachines", "")]),
            json!({}),
            false,
            "sf....",
        ),
        (json!([yes("Provider"), yes("LoadBalancer"), nodes("WaitingForNodes", "")]), json!({}), true, "sssii."),
        (
            json!([yes("Provider"), yes("LoadBalancer"), nodes("WaitingForNodes", "")]),
            json!({"helmControllerDeployed": true}),
            true,
            "ssssi.",
        ),
        // One without charts has no Helm controller.
        (json!([yes("Provider"), yes("LoadBalancer"), yes("Helm"), yes("Nodes")]), json!({}), true, "sssssi"),
        (
            json!([yes("Provider"), yes("LoadBalancer"), yes("Helm"), yes("Nodes"), yes("Ready")]),
            json!({}),
            true,
            "ssssss",
        ),
    ] {
        let all: Vec<Condition> = serde_json::from_value(conditions.clone()).unwrap();
        let found = deployment(&all, &cluster(status), bundle);
        assert_eq!(letters(&found), wanted, "{conditions}");
        assert!(found.iter().all(|one| !one.message.contains("prize")), "{found:?}");
    }
}

#[test]
fn a_cluster_that_is_upgraded_says_which_groups_have_the_release() {
    let groups = |control: [i32; 2], workers: [i32; 2]| {
        json!([
            {"name": "c-control", "machines": 1, "updated": control[0], "underWay": control[1], "message": "m waits"},
            {"name": "c-default", "machines": 2, "updated": workers[0], "underWay": workers[1]},
            {"name": "empty", "machines": 0, "updated": 0},
        ])
    };
    let locks = |status: &str, reason: &str| {
        let message = if status == "True" { "" } else { "storage holds it" };
        json!([condition("WorkloadLocks", status, reason, message)])
    };
    let of_now = |groups: Value| json!({"release": "r1", "observedGeneration": 2, "updateGroups": groups});
    let with = |groups: Value, locks: Value| {
        let mut status = of_now(groups);
        status["conditions"] = locks;
        status
    };
    let none = || groups([0, 0], [0, 0]);
    for (status, wanted) in [
        (json!({"release": "r1", "observedGeneration": 1, "updateGroups": groups([1, 0], [2, 0])}), "......"),
        (json!({"release": "r1", "observedGeneration": 2}), "......"),
        (of_now(none()), "......"),
        (of_now(groups([0, 1], [0, 0])), "ssi.i."),
        (
            json!({"release": "r1", "observedGeneration": 2, "lcmOperationStuck": true, "updateGroups": groups([0, 1], [0, 0])}),
            "ssf.i.",
        ),
        (of_now(groups([1, 0], [1, 1])), "sssii."),
        (of_now(groups([1, 0], [2, 0])), "ssssi."),
        (with(none(), locks("True", "NotAsked")), "......"),
        (with(none(), locks("False", "Asked")), "i....."),
        (with(none(), locks("False", "Active")), "si...."),
        (with(groups([0, 1], [0, 0]), locks("True", "Inactive")), "ssi.i."),
        (json!({"release": "r2", "observedGeneration": 2, "conditions": locks("True", "Inactive")}), "sssssi"),
        (json!({"release": "r2", "observedGeneration": 2, "conditions": locks("True", "NotAsked")}), "ssssss"),
        (json!({"release": "r2"}), "ssssss"),
    ] {
        let found = upgrade("c", &cluster(status.clone()));
        assert_eq!(letters(&found), wanted, "{status}");
        let says = found.iter().any(|one| one.message == "storage holds it");
        assert_eq!(says, status["conditions"][0]["status"] == "False", "{found:?}");
    }
}

#[test]
fn a_machine_that_becomes_a_node_says_how_far_it_is() {
    let host = |ready: bool| {
        json!({"providerInstanceState": {"id": "n/h", "ready": ready}, "conditions": [
            {"type": "ProviderInstance", "ready": ready, "message": "BareMetalHost h is provisioning"}]})
    };
    let none = json!({"providerInstanceState": {"id": "", "ready": false}, "conditions": []});
    let waiting = |type_: &str| condition(type_, "False", "Waiting", "waits for manager m1");
    let status = |conditions: Value| machine(json!({"status": {"agentVersion": "1", "conditions": conditions}}));
    for (told, lcm, wanted) in [
        (none, machine(json!({})), "......"),
        (host(false), machine(json!({})), "i....."),
        (host(true), machine(json!({})), "s....."),
        (host(true), machine(json!({"status": {"lcmAgentUpgradeStatus": {"error": "no room"}}})), "sf...."),
        (host(true), status(json!([condition("Prepared", "False", "Preparing", "")])), "ssi..."),
        // A release without steps to reconfigure.
        (host(true), status(json!([yes("Prepared"), waiting("Deployed"), yes("Reconfigured")])), "sssi.."),
        (
            host(true),
            status(json!([
                yes("Prepared"),
                condition("Deployed", "False", "Failed", "step a failed with exit code 1 (attempt 1): prize")
            ])),
            "ssssf.",
        ),
        (host(true), status(json!([yes("Prepared"), yes("Deployed"), waiting("Reconfigured")])), "sssss."),
        (host(true), status(json!([yes("Prepared"), yes("Deployed"), yes("Reconfigured")])), "ssssss"),
    ] {
        let found = machine_deployment(&told, &lcm);
        assert!(found.iter().all(|one| !one.message.contains("prize")), "{found:?}");
        assert_eq!(written(found), wanted, "{lcm:?}");
    }
}

#[test]
fn a_machine_that_is_upgraded_says_how_far_it_is() {
    let all = json!([yes("Prepared"), yes("Deployed"), yes("Reconfigured"), yes("Ready")]);
    let turns = json!([yes("Prepared"), condition("Deployed", "False", "Waiting", "m2 first"), yes("Reconfigured")]);
    let deploys = json!([yes("Prepared"), condition("Deployed", "False", "Deploying", "works off step a")]);
    let fails = json!([yes("Prepared"), condition("Deployed", "False", "Failed", "step a failed")]);
    let told = json!({"spec": {"release": "r2"}});
    let with = |status: Value| {
        let mut change = told.clone();
        json_patch::merge(&mut change, &json!({ "status": status }));
        machine(change)
    };
    let of_before = cluster(json!({"observedGeneration": 1}));
    // What was said before anybody looked is of the release before.
    assert_eq!(written(machine_upgrade(&of_before, &machine(json!({"status": {"conditions": all}})))), "...........");
    let fresh = cluster(json!({"observedGeneration": 2}));
    let drains = |status: &str, reason: &str| {
        let mut conditions = turns.clone();
        conditions.as_array_mut().unwrap().push(condition("WorkloadLocks", status, reason, ""));
        json!({"status": {"conditions": conditions, "kubernetesCordonDrain": "cordondraining"}})
    };
    let mut reboots = drains("True", "Inactive");
    json_patch::merge(&mut reboots, &json!({"metadata": {"annotations": {ANNOTATION_GRACEFUL_REBOOT: "true"}}}));
    for (lcm, wanted) in [
        (machine(json!({"status": {"conditions": [condition("Prepared", "False", "Preparing", "")]}})), "i.........."),
        (machine(json!({"status": {"conditions": turns}})), "si........."),
        (machine(drains("False", "Asked")), "ssi........"),
        (machine(drains("False", "Active")), "sssi......."),
        (machine(drains("True", "Inactive")), "ssssi......"),
        // It is drained to be rebooted, and its turn has not come.
        (machine(reboots), "si........."),
        (with(json!({"conditions": deploys, "kubernetesCordonDrain": "cordondrained"})), "sssssi....."),
        (with(json!({"conditions": fails})), "sssssf....."),
        (
            machine(json!({"spec": {"release": "r2", "rebootRequired": true}, "status": {"conditions": all}})),
            "sssssssii..",
        ),
        (
            with(json!({"conditions": all, "reboot": {"requestedAt": "2026-01-01T00:00:00Z", "errorMessage": "no"}})),
            "sssssssfi..",
        ),
        (with(json!({"conditions": all})), "ssssssssi.."),
        (with(json!({"release": "r2", "conditions": all, "kubernetesCordonDrain": "uncordoning"})), "sssssssssii"),
        (with(json!({"release": "r2", "conditions": all})), "sssssssssss"),
    ] {
        assert_eq!(written(machine_upgrade(&fresh, &lcm)), wanted, "{lcm:?}");
    }
}
