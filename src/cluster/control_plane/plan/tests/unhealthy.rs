//! Unhealthy machines: which are replaced, when, and what is noted of it.

use super::*;

fn ill(machine: &mut PlannedMachine) {
    machine.unhealthy = true;
    machine.to_remediate = true;
    machine.health = ComponentHealth::default();
}

#[test]
fn an_unhealthy_machine_is_replaced_where_that_is_safe() {
    let sick = |change: fn(&mut Plane)| {
        with(plane(), |plane| {
            ill(&mut plane.machines[1]);
            change(plane);
        })
    };
    check(vec![
        ("in order", sick(|_| {}), "replace m2 try 0"),
        ("the one that leads", sick(|plane| etcd(plane).leader = 2), "replace m2 try 0, lead m2 to m3 m1"),
        (
            "the first one before there is a cluster",
            with(of([PlannedMachine { node: None, ..machine(1) }]), |plane| {
                plane.initialized = false;
                plane.etcd = None;
                ill(&mut plane.machines[0]);
            }),
            "replace m1 try 0",
        ),
        (
            "the most broken one first",
            with(of((1..=5).map(machine)), |plane| {
                ill(&mut plane.machines[1]);
                ill(&mut plane.machines[2]);
                plane.machines[1].health = ComponentHealth::WELL;
            }),
            "replace m3 try 0",
        ),
        (
            "the wanted one before",
            with(of((1..=5).map(machine)), |plane| {
                ill(&mut plane.machines[1]);
                ill(&mut plane.machines[2]);
                plane.machines[1].health = ComponentHealth::WELL;
                plane.machines[1].remediate_first = true;
            }),
            "replace m2 try 0",
        ),
        ("only found ill", sick(|plane| plane.machines[1].to_remediate = false), "settle"),
        (
            "noted, and not deleted yet",
            sick(|plane| {
                plane.remediation = Some(Remediation { machine: "m2".into(), timestamp: at(-9), retry_count: 4 });
            }),
            "replace m2 try 4",
        ),
        (
            "another one is under way",
            sick(|plane| {
                plane.remediation = Some(Remediation { machine: "m9".into(), timestamp: at(-9), retry_count: 0 });
            }),
            "settle",
        ),
    ]);
}

/// A node that nobody hears of: its member is in etcd's list all the same.
fn unheard(machine: &mut PlannedMachine) {
    machine.health = ComponentHealth { etcd_member: WellState::True, ..ComponentHealth::default() };
}

#[test]
fn a_machine_that_dies_with_its_member_is_replaced_as_long_as_a_quorum_lives() {
    // Machines, those that are dead and found ill, those that are dead and not found ill yet, those that live and are found ill, and
    // whether etcd answers.
    let of = |count: u32, dead: &[usize], unfound: &[usize], alive: &[usize], answers: bool| {
        with(of((1..=count).map(machine)), |plane| {
            for index in dead {
                ill(&mut plane.machines[*index]);
                unheard(&mut plane.machines[*index]);
            }
            unfound.iter().for_each(|index| unheard(&mut plane.machines[*index]));
            for index in alive {
                plane.machines[*index].unhealthy = true;
                plane.machines[*index].to_remediate = true;
            }
            // Whoever leads lives.
            etcd(plane).leader = u64::from(count);
            if !answers {
                plane.etcd = None;
            }
        })
    };
    let refused = |plane: &Plane| {
        let decision = next(plane);
        assert!(!matches!(
            decision.action,
            ControlPlaneAction::Replace { .. } | ControlPlaneAction::Delete { .. } | ControlPlaneAction::Join { .. }
        ));
        let refusal = decision.refusal.unwrap();
        (refusal.reason, refusal.message)
    };
    check(vec![
        ("one of three", of(3, &[0], &[], &[], true), "replace m1 try 0"),
        ("one of five", of(5, &[1], &[], &[], true), "replace m2 try 0"),
        ("two of five, one after the other", of(5, &[0, 1], &[], &[], true), "replace m1 try 0"),
        ("two of five, one not found yet", of(5, &[0], &[1], &[], true), "replace m1 try 0"),
        ("the dead one before the living one", of(3, &[1], &[], &[0], true), "replace m2 try 0"),
        ("a living one, while the others live", of(3, &[], &[], &[0], true), "replace m1 try 0"),
    ]);
    for (what, plane, reason, message) in [
        ("a living one, while another is dead", of(3, &[], &[1], &[0], true), CANNOT, "these are not well: m2."),
        ("two of three", of(3, &[0, 1], &[], &[], false), CANNOT, "2 of 3 Machines are unhealthy"),
        ("three of five", of(5, &[0, 1, 2], &[], &[], false), CANNOT, "3 of 5 Machines are unhealthy"),
        ("all of three", of(3, &[0, 1, 2], &[], &[], false), CANNOT, "3 of 3 Machines are unhealthy"),
        ("one of two", of(2, &[0], &[], &[], false), CANNOT, "1 of 2 Machines are unhealthy"),
        ("one of three, while etcd is silent", of(3, &[0], &[], &[], false), DEFERRED, "are not known"),
        ("two of five, while etcd is silent", of(5, &[0, 1], &[], &[], false), DEFERRED, "are not known"),
    ] {
        let (said, text) = refused(&plane);
        assert_eq!(said, reason, "{what}: {text}");
        assert!(text.contains(message), "{what}: {text}");
        assert_eq!(text.contains("docs/cluster.md"), reason == CANNOT, "{what}: how to recover is said: {text}");
    }
    let only = with(plane(), |plane| {
        ill(&mut plane.machines[0]);
        plane.machines[1].health.scheduler = WellState::False;
        plane.machines[2].health.scheduler = WellState::False;
    });
    assert!(refused(&only).1.contains("mend one of the others"));
}

#[test]
fn a_dead_machine_that_goes_takes_its_member_along() {
    let going = |change: fn(&mut Plane)| {
        with(plane(), |plane| {
            plane.machines[1].deleted = Some(at(-60));
            plane.machines[1].awaits_hook = true;
            plane.machines[1].health = ComponentHealth { etcd_member: WellState::False, ..ComponentHealth::default() };
            etcd(plane).leader = 3;
            change(plane);
        })
    };
    check(vec![
        ("the others live", going(|_| {}), "release m2, without member 2"),
        (
            "another one may be dead",
            going(|plane| unheard(&mut plane.machines[0])),
            "wait: without Machine m2 etcd could lose its quorum",
        ),
        (
            "its successor comes when it is gone",
            with(going(|plane| drop(plane.machines.remove(1))), |plane| drop(etcd(plane).members.remove(1))),
            "join",
        ),
        (
            "a member that it left behind goes first",
            going(|plane| drop(plane.machines.remove(1))),
            "remove member 2 \"m2\"",
        ),
    ]);
}

#[test]
fn quorum_is_never_lost_by_a_replacement() {
    // Machines, those to be replaced, further members that are ill, and whether one is replaced.
    let rows: &[(u32, &[usize], &[usize], bool)] = &[
        (1, &[0], &[], false),
        (2, &[0], &[], true),
        (3, &[0], &[], true),
        (3, &[0], &[1], false),
        (3, &[0, 1], &[], false),
        (4, &[0], &[1], true),
        (4, &[0], &[1, 2], false),
        (5, &[0], &[1], true),
        (5, &[0, 1], &[], true),
        (5, &[0], &[1, 2], false),
        (7, &[0, 1], &[2], true),
        (7, &[0, 1], &[2, 3], false),
    ];
    for (count, replaced, others, wanted) in rows {
        let plane = with(of((1..=*count).map(machine)), |plane| {
            replaced.iter().for_each(|index| ill(&mut plane.machines[*index]));
            others.iter().for_each(|index| plane.machines[*index].health.etcd_member = WellState::False);
            // Whoever leads is well.
            etcd(plane).leader = u64::from(*count);
        });
        let decision = next(&plane);
        let replaces = matches!(decision.action, ControlPlaneAction::Replace { .. });
        assert_eq!(replaces, *wanted, "{count} {replaced:?} {others:?}: {}", words(&decision));
        assert_eq!(decision.refusal.is_some(), !wanted);
    }
}

#[test]
fn refusals_say_why() {
    let sick = |change: fn(&mut Plane)| {
        with(plane(), |plane| {
            ill(&mut plane.machines[1]);
            change(plane);
        })
    };
    let replaces = |plane: &mut Plane, ago: i64, retry_count| {
        plane.machines[1].replaces = Some(Remediation { machine: "m0".into(), timestamp: at(-ago), retry_count });
    };
    let rows = [
        (sick(|plane| plane.machines[2] = PlannedMachine { node: None, ..machine(3) }), Some(DEFERRED)),
        (sick(|plane| plane.etcd = None), Some(DEFERRED)),
        (sick(|plane| plane.machines[0].health.etcd_member = WellState::False), Some(CANNOT)),
        (sick(|plane| etcd(plane).leader = 77), Some(CANNOT)),
        (with(sick(|plane| plane.retries.most = Some(2)), |plane| replaces(plane, 60, 2)), Some(CANNOT)),
        (with(sick(|plane| plane.retries.most = Some(2)), |plane| replaces(plane, 60, 1)), None),
        (with(sick(|plane| plane.retries.most = Some(2)), |plane| replaces(plane, 3600, 2)), None),
        (with(sick(|plane| plane.retries.period = Some(61)), |plane| replaces(plane, 60, 0)), Some(DEFERRED)),
        (with(sick(|plane| plane.retries.period = Some(60)), |plane| replaces(plane, 60, 0)), None),
        (
            with(
                sick(|plane| plane.retries = Retries { most: Some(1), period: None, healthy_period: Some(30) }),
                |plane| {
                    replaces(plane, 60, 9);
                },
            ),
            None,
        ),
        (sick(|plane| plane.retries = Retries { most: Some(-1), period: Some(-1), healthy_period: Some(-1) }), None),
    ];
    for (index, (plane, wanted)) in rows.into_iter().enumerate() {
        let decision = next(&plane);
        assert_eq!(decision.refusal.as_ref().map(|refusal| refusal.reason), wanted, "{index}: {}", words(&decision));
        assert_eq!(matches!(decision.action, ControlPlaneAction::Replace { .. }), wanted.is_none(), "{index}");
    }
    let again = with(plane(), |plane| {
        ill(&mut plane.machines[1]);
        replaces(plane, 60, 3);
    });
    check(vec![("tries are counted", again, "replace m2 try 4")]);
}

const CANNOT: &str = "CannotBeRemediated";
const DEFERRED: &str = "RemediationDeferred";

#[test]
fn a_replacement_comes_though_others_are_ill() {
    let noted = Remediation { machine: "m9".into(), timestamp: at(-9), retry_count: 0 };
    let replacing = |count: u32, ill_members: &[usize]| {
        with(of((1..=count).map(machine)), |plane| {
            plane.replicas = 5;
            plane.remediation = Some(noted.clone());
            ill_members.iter().for_each(|index| plane.machines[*index].health.etcd_member = WellState::False);
        })
    };
    check(vec![
        ("four of five, one of them ill", replacing(4, &[0]), "join"),
        (
            "two of them ill",
            replacing(4, &[0, 1]),
            "wait: waiting for etcd cluster to become healthy; etcd could lose…",
        ),
        ("etcd is not known", with(replacing(4, &[0]), |plane| plane.etcd = None), "wait: …"),
        (
            "nothing works",
            with(replacing(4, &[]), |plane| {
                plane.machines.iter_mut().for_each(|machine| machine.health.scheduler = WellState::False);
            }),
            "wait: waiting for control plane components…",
        ),
    ]);
    let plain = with(replacing(4, &[0]), |plane| plane.remediation = None);
    check(vec![("otherwise it does not", plain, "wait: waiting for etcd…")]);
}

#[test]
fn a_note_is_done_when_the_replacement_is_there() {
    let noted = Remediation { machine: "m9".into(), timestamp: at(-9), retry_count: 1 };
    let lacking = with(plane(), |plane| {
        plane.replicas = 4;
        plane.remediation = Some(noted.clone());
    });
    assert!(!remediated(&lacking));
    assert!(remediated(&with(lacking.clone(), |plane| plane.machines[2].replaces = Some(noted.clone()))));
    assert!(remediated(&with(lacking.clone(), |plane| plane.machines[2].created = at(-8))));
    assert!(remediated(&with(lacking.clone(), |plane| plane.replicas = 3)));
    assert!(!remediated(&with(lacking, |plane| plane.remediation = None)));
}

#[test]
fn notes_are_read_as_they_are_written() {
    let noted = Remediation { machine: "m1".into(), timestamp: at(0), retry_count: 2 };
    assert_eq!(Remediation::read(&noted.written()), Some(noted.clone()));
    let fine = Remediation { timestamp: at(0).checked_add(SignedDuration::from_millis(7)).unwrap(), ..noted.clone() };
    assert_eq!(fine.written(), noted.written());
    assert_eq!(Remediation::read(r#"{"machine":"m1","timestamp":"2027-01-15T08:00:00Z","retryCount":2}"#), Some(noted));
    for text in ["", "{}", "null", r#"{"machine":"m1","timestamp":"yesterday","retryCount":2}"#] {
        assert_eq!(Remediation::read(text), None, "{text}");
    }
}
