//! What a plan says, case by case.

use serde_json::{Value, json};

use super::*;

fn group(name: &str, paused: &str) -> LcmUpdateGroup {
    LcmUpdateGroup { name: name.into(), index: 1, concurrent_updates: 1, paused: paused.into(), ..<_>::default() }
}

fn plan(commence: &[bool], status: Value) -> ClusterUpdatePlan {
    let groups = [group("c-control", ""), group("a", ""), group("b", "")];
    let mut spec = wanted("c", ("r1", "r2"), "", &groups, None);
    for (step, commence) in spec.steps.iter_mut().zip(commence) {
        step.commence = *commence;
    }
    let mut plan = ClusterUpdatePlan::new("c-2", spec);
    plan.status = serde_json::from_value(status).unwrap();
    plan
}

fn lcm(change: Value) -> LCMCluster {
    let mut lcm = json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "LCMCluster",
        "metadata": {"name": "c", "generation": 4}, "spec": {"release": "r2", "updatePlan": "c-2"},
        "status": {"release": "r1", "observedGeneration": 4}});
    json_patch::merge(&mut lcm, &change);
    serde_json::from_value(lcm).unwrap()
}

fn groups(all: [(i32, i32, i32, &str); 3]) -> Value {
    let one = |name: &str, (machines, updated, under_way, message): (i32, i32, i32, &str)| {
        json!({"name": name,
        "machines": machines, "updated": updated, "underWay": under_way, "message": message})
    };
    json!({"status": {"updateGroups": [one("c-control", all[0]), one("a", all[1]), one("b", all[2])]}})
}

fn letters(status: &ClusterUpdatePlanStatus) -> String {
    let letter = |state: UpdatePlanState| match state {
        UpdatePlanState::NotStarted => '.',
        UpdatePlanState::InProgress => 'i',
        UpdatePlanState::Completed => 'c',
    };
    std::iter::once(letter(status.status)).chain(status.steps.iter().map(|step| letter(step.status))).collect()
}

#[test]
fn a_plan_has_a_step_for_the_control_plane_and_one_for_each_group() {
    let made = plan(&[true, false, true], json!({}));
    let ids: Vec<_> = made.spec.steps.iter().map(|step| (step.id.as_str(), step.commence)).collect();
    assert_eq!(ids, [("k8s-controllers", true), ("k8s-workers-a", false), ("k8s-workers-b", true)]);
    // A group comes, and one goes: what was said of the others stays.
    let again = wanted("c", ("r1", "r2"), "", &[group("new", ""), group("b", "")], Some(&made.spec));
    let ids: Vec<_> = again.steps.iter().map(|step| (step.id.as_str(), step.commence)).collect();
    assert_eq!(ids, [("k8s-controllers", true), ("k8s-workers-new", false), ("k8s-workers-b", true)]);
    assert_eq!((name("c", "2.0.0+25.2"), name("c", "1.0.0-RC1")), ("c-2.0.0-25.2".into(), "c-1.0.0-rc1".into()));
}

#[test]
fn a_group_waits_for_its_step_where_a_plan_governs() {
    let made = plan(&[true, true, false], json!({}));
    for (governs, group, waits) in
        [("", "b", false), ("c-2", "c-control", false), ("c-2", "a", false), ("c-2", "b", true), ("c-2", "other", true)]
    {
        assert_eq!(paused("c", governs, Some(&made), group).is_some(), waits, "{governs} {group}");
    }
    let said = paused("c", "c-2", None, "a").unwrap();
    assert_eq!(
        said,
        "waits for the step k8s-workers-a of the ClusterUpdatePlan c-2: set its commence to true to go on"
    );
}

#[test]
fn a_plan_says_how_far_it_is_and_what_to_do() {
    let none = (0, 0, 0, "");
    let fresh = |all| lcm(groups(all));
    let direct = |all| {
        let mut one = lcm(groups(all));
        one.spec.update_plan = String::new();
        one
    };
    let stuck = "worker w1 does not get on: step join failed; mend it, or delete its Machine";
    let rows: Vec<(&[bool], LCMCluster, &str, &str)> = vec![
        (&[], lcm(json!({"spec": {"release": "r1"}})), "....", "set commence of the step k8s-controllers"),
        (&[true], lcm(json!({"spec": {"release": "r1"}})), "....", "is told of the release"),
        (&[true], fresh([(3, 0, 0, ""), (2, 0, 0, ""), none]), "ii..", "k8s-controllers: 0 of 3 machines have it"),
        (&[true], fresh([(3, 3, 0, ""), (2, 0, 0, ""), none]), "ic..", "k8s-workers-a: is paused: set commence"),
        (
            &[true, true],
            fresh([(3, 3, 0, ""), (2, 0, 1, stuck), none]),
            "ici.",
            "does not get on: step join failed; mend",
        ),
        (&[true, true], fresh([(3, 3, 0, ""), (2, 2, 0, ""), (1, 0, 0, "")]), "icc.", "k8s-workers-b: is paused"),
        // A group without machines is through when it is its turn, and not before somebody said so.
        (&[true, true], fresh([(3, 3, 0, ""), none, (1, 0, 0, "")]), "icc.", "k8s-workers-b: is paused"),
        (&[true], fresh([(3, 3, 0, ""), none, (1, 0, 0, "")]), "ic..", "k8s-workers-a: is paused"),
        // What was said too early waits for what comes before.
        (
            &[true, false, true],
            fresh([(3, 3, 0, ""), (2, 0, 0, ""), (1, 0, 0, "")]),
            "ic..",
            "k8s-workers-a: is paused",
        ),
        // The release was set on the Cluster: nothing waits for a step.
        (&[], direct([(3, 3, 0, ""), (2, 1, 0, ""), (1, 0, 0, "")]), "ici.", "1 of 2 machines have it"),
        (&[], lcm(json!({"status": {"release": "r2"}})), "cccc", ""),
    ];
    let now = Timestamp::from_second(1_790_000_000).unwrap();
    for (commence, lcm, wanted, words) in rows {
        let made = plan(commence, json!({}));
        let said = status(&made, &PlanFacts { lcm: &lcm, refusal: None }, now);
        assert_eq!(letters(&said), wanted, "{said:?}");
        assert!(said.conditions[0].message.contains(words), "{words}: {said:?}");
        assert_eq!(said.started_at.is_some(), said.status != UpdatePlanState::NotStarted);
        assert_eq!(said.completed_at.is_some(), said.status == UpdatePlanState::Completed);
    }
    // Whoever may view a plan may not read what scripts print.
    let failed = "manager m does not get on: step join failed with exit code 1 (attempt 2): s3cret; mend it";
    let lcm_of_failed = fresh([(3, 0, 1, failed), none, none]);
    let said = status(&plan(&[true], json!({})), &PlanFacts { lcm: &lcm_of_failed, refusal: None }, now);
    assert!(said.steps[0].message.contains("(attempt 2)") && !json!(said).to_string().contains("s3cret"), "{said:?}");
    let refused = PlanFacts { lcm: &lcm(json!({"spec": {"release": "r1"}})), refusal: Some("it is in maintenance") };
    let said = status(&plan(&[true], json!({})), &refused, now);
    assert_eq!((letters(&said).as_str(), said.conditions[0].reason.as_str()), ("....", "NotPossible"));
}

#[test]
fn times_are_of_when_it_was_and_what_is_over_stays() {
    let at = |second| Timestamp::from_second(1_790_000_000 + second).unwrap();
    let mut made = plan(&[true], json!({}));
    let mut look = |lcm: &LCMCluster, second: i64| {
        made.status = Some(status(&made, &PlanFacts { lcm, refusal: None }, at(second)));
        made.status.clone().unwrap()
    };
    look(&lcm(groups([(1, 0, 0, ""), (1, 0, 0, ""), (0, 0, 0, "")])), 0);
    // Of another generation nobody knows yet: what was said stays.
    let mut stale = lcm(groups([(1, 1, 0, ""), (1, 0, 0, ""), (0, 0, 0, "")]));
    stale.metadata.generation = Some(5);
    assert_eq!(letters(&look(&stale, 10)), "ii..");
    let said = look(&lcm(groups([(1, 1, 0, ""), (1, 0, 0, ""), (0, 0, 0, "")])), 95);
    assert_eq!((letters(&said).as_str(), said.steps[0].duration.as_str()), ("ic..", "95s"));
    // A manager that falls ill later does not undo the step.
    let said = look(&lcm(groups([(1, 0, 1, "ill"), (1, 0, 0, ""), (0, 0, 0, "")])), 100);
    assert_eq!(letters(&said), "ic..");
    let over = look(&lcm(json!({"status": {"release": "r2"}})), 200);
    assert_eq!((letters(&over).as_str(), over.completed_at.as_ref().map(|time| time.0)), ("cccc", Some(at(200))));
    assert_eq!(over.started_at.as_ref().map(|time| time.0), Some(at(0)));
    assert_eq!(look(&lcm(json!({"spec": {"release": "r3"}})), 300), over);
}

#[test]
fn plans_are_kept_to_what_may_follow_and_the_last_one() {
    let made = plan(&[], json!({}));
    for (has, names, available, kept) in [
        ("r1", "r1", &["r2", "r3"][..], true),
        ("r1", "r2", &[], true),
        ("r2", "r2", &["r3"], true),
        ("r1", "r1", &["r3"], false),
        ("r3", "r3", &["r4"], false),
    ] {
        assert_eq!(is_kept(&made, has, names, available), kept, "{has} {names} {available:?}");
    }
}
