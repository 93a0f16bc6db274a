//! Tables of what is known, and what is done.

use jiff::SignedDuration;

use super::*;

/// A moment.
const NOW: i64 = 1_800_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW + seconds).unwrap()
}

/// A machine that is as it should be: made the older the lower its number, with a node of its name.
fn machine(number: u32) -> Machine {
    let name = format!("m{number}");
    Machine {
        node: Some(name.clone()),
        name,
        created: at(-10_000 + i64::from(number)),
        hook: true,
        health: Health::WELL,
        ..Machine::default()
    }
}

/// Three machines that are as they should be, the first one leads etcd.
fn plane() -> Plane {
    of((1..=3).map(machine))
}

fn of(machines: impl IntoIterator<Item = Machine>) -> Plane {
    let machines: Vec<Machine> = machines.into_iter().collect();
    let members = machines
        .iter()
        .zip(1..)
        .filter_map(|(machine, id)| Some(EtcdMember { id, name: machine.node.clone()?, learner: false }));
    Plane {
        replicas: machines.len(),
        surge: true,
        etcd_managed: true,
        initialized: true,
        certificates: true,
        hook_is_last: true,
        etcd: Some(Etcd { members: members.collect(), leader: 1, alarms: Vec::new() }),
        now: at(0),
        machines,
        ..Plane::default()
    }
}

fn with(mut plane: Plane, change: impl FnOnce(&mut Plane)) -> Plane {
    change(&mut plane);
    plane
}

fn outdated(plane: &mut Plane, machines: &[usize]) {
    for index in machines {
        plane.machines[*index].outdated = vec!["Version v1.33.0, v1.34.0 required".into()];
    }
}

fn ill(machine: &mut Machine) {
    machine.unhealthy = true;
    machine.to_remediate = true;
    machine.health = Health::default();
}

fn etcd(plane: &mut Plane) -> &mut Etcd {
    plane.etcd.as_mut().unwrap()
}

/// An action in a few words.
fn words(decision: &Decision) -> String {
    let over = |handover: &Option<Handover>| match handover {
        Some(Handover { from, to }) => format!(", lead {from} to {}", to.join(" ")),
        None => String::new(),
    };
    let place = |domain: &Option<String>| domain.as_ref().map(|name| format!(" in {name}")).unwrap_or_default();
    match &decision.action {
        Action::Initialize { failure_domain } => format!("init{}", place(failure_domain)),
        Action::Join { failure_domain } => format!("join{}", place(failure_domain)),
        Action::Delete { machine, handover } => format!("delete {machine}{}", over(handover)),
        Action::Replace { remediation, handover } => {
            format!("replace {} try {}{}", remediation.machine, remediation.retry_count, over(handover))
        }
        Action::RemoveMember(member) => format!("remove member {} {:?}", member.id, member.name),
        Action::Release { machine, handover, member } => {
            let member = member.as_ref().map(|member| format!(", without member {}", member.id)).unwrap_or_default();
            format!("release {machine}{}{member}", over(handover))
        }
        Action::Wait(why) => format!("wait: {why}"),
        Action::Settle => "settle".into(),
    }
}

fn check(rows: Vec<(&str, Plane, &str)>) {
    for (what, plane, wanted) in rows {
        let found = words(&next(&plane));
        let same = match wanted.strip_suffix('…') {
            Some(begin) => found.starts_with(begin),
            None => found == wanted,
        };
        assert!(same, "{what}: {found} instead of {wanted}");
    }
}

#[test]
fn machines_are_added_one_by_one() {
    let empty = || with(of([]), |plane| plane.replicas = 3);
    let young =
        || with(of([Machine { node: None, health: Health::default(), ..machine(1) }]), |plane| plane.replicas = 3);
    check(vec![
        ("none yet", with(empty(), |plane| plane.initialized = false), "init"),
        ("in a place", with(empty(), |plane| plane.failure_domains = vec!["b".into(), "a".into()]), "init in a"),
        (
            "the first one has no node",
            young(),
            "wait: waiting for control plane components to become healthy; waiting…",
        ),
        ("the first one is well", with(of([machine(1)]), |plane| plane.replicas = 3), "join"),
        (
            "a part is ill",
            with(of([machine(1)]), |plane| {
                plane.replicas = 3;
                plane.machines[0].health.scheduler = State::False;
            }),
            "wait: waiting for control plane components to become healthy; Machine m1: SchedulerPodHealthy is false",
        ),
        (
            "nobody knows of etcd",
            with(of([machine(1)]), |plane| {
                plane.replicas = 3;
                plane.machines[0].health.etcd_member = State::Unknown;
            }),
            "wait: waiting for etcd cluster to become healthy; Machine m1: EtcdMemberHealthy is unknown",
        ),
        (
            "etcd is elsewhere",
            with(of([machine(1)]), |plane| {
                plane.replicas = 2;
                plane.etcd_managed = false;
                plane.etcd = None;
                plane.machines[0].health.etcd_member = State::Unknown;
                plane.machines[0].health.etcd_pod = State::Unknown;
            }),
            "join",
        ),
        (
            "without certificates",
            with(of([machine(1)]), |plane| {
                plane.replicas = 3;
                plane.certificates = false;
            }),
            "wait: cluster certificates are missing or unknown",
        ),
        ("all are there", plane(), "settle"),
    ]);
}

#[test]
fn machines_are_spread() {
    let spread = |places: &[&str], domains: &[&str]| {
        with(
            of((1..)
                .zip(places)
                .map(|(number, place)| Machine { failure_domain: Some((*place).into()), ..machine(number) })),
            |plane| {
                plane.failure_domains = domains.iter().map(|name| (*name).to_owned()).collect();
                etcd(plane).leader = 9;
                etcd(plane).members.push(EtcdMember { id: 9, name: "m1".into(), learner: false });
            },
        )
    };
    let more = |plane| with(plane, |plane: &mut Plane| plane.replicas += 1);
    let fewer = |plane| {
        with(plane, |plane: &mut Plane| {
            plane.replicas -= 1;
            // Nobody leads whom the row deletes.
            etcd(plane).members.pop();
            let last = plane.machines.len();
            etcd(plane).leader = last as u64;
        })
    };
    check(vec![
        ("where fewest are", more(spread(&["a", "b", "a"], &["a", "b", "c"])), "join in c"),
        ("by name among equals", more(spread(&["c"], &["a", "b", "c"])), "join in a"),
        ("where most are goes one", fewer(spread(&["a", "b", "b", "c"], &["a", "b", "c"])), "delete m2"),
        ("what is nowhere goes first", fewer(spread(&["a", "x", "a", "b"], &["a", "b"])), "delete m2"),
        ("without places the oldest goes", fewer(spread(&["a", "a", "a", "a"], &[])), "delete m1"),
    ]);
    // Those that will go do not count for the place of a new one.
    let rolling = with(spread(&["a", "b", "b"], &["a", "b"]), |plane| outdated(plane, &[1, 2]));
    check(vec![("a rollout", rolling, "join in b")]);
}

#[test]
fn machines_are_taken_away_one_by_one() {
    let fewer = |change: fn(&mut Plane)| {
        with(plane(), |plane| {
            plane.replicas = 1;
            etcd(plane).leader = 3;
            change(plane);
        })
    };
    check(vec![
        ("the oldest", fewer(|_| {}), "delete m1"),
        ("one that is marked", fewer(|plane| plane.machines[1].delete_first = true), "delete m2"),
        ("the one that leads hands on", fewer(|plane| etcd(plane).leader = 1), "delete m1, lead m1 to m3 m2"),
        (
            "an ill heir comes last",
            fewer(|plane| {
                etcd(plane).leader = 1;
                plane.machines[2].unhealthy = true;
            }),
            "delete m1, lead m1 to m2 m3",
        ),
        (
            "one that nobody hears of before an older one",
            fewer(|plane| {
                etcd(plane).leader = 1;
                plane.machines[2].health.api_server = State::Unknown;
            }),
            "delete m3",
        ),
        (
            "not while another one is ill",
            fewer(|plane| plane.machines[1..].iter_mut().for_each(|one| one.health.api_server = State::False)),
            "wait: …",
        ),
        (
            "the ill one that goes does not matter",
            fewer(|plane| plane.machines[0].health.api_server = State::Unknown),
            "delete m1",
        ),
        ("nobody knows who leads", fewer(|plane| plane.etcd = None), "wait: the leader of etcd is not known"),
    ]);
}

#[test]
fn outdated_machines_are_rolled_out() {
    let rolling = |surge, change: fn(&mut Plane)| {
        with(plane(), |plane| {
            plane.surge = surge;
            outdated(plane, &[0, 1, 2]);
            change(plane);
        })
    };
    let four = |change: fn(&mut Plane)| {
        with(of((1..=4).map(machine)), |plane| {
            plane.replicas = 3;
            outdated(plane, &[0, 1, 2]);
            change(plane);
        })
    };
    let rows = vec![
        ("one more comes first", rolling(true, |_| {}), "join"),
        ("then the oldest goes", four(|_| {}), "delete m1, lead m1 to m4 m3 m2"),
        (
            "what is current stays, though it is older",
            four(|plane| plane.machines[3].created = at(-99_999)),
            "delete m1…",
        ),
        ("an ill one goes first", four(|plane| plane.machines[1].health.scheduler = State::False), "delete m2"),
        (
            "a marked one goes before",
            four(|plane| {
                plane.machines[1].health.scheduler = State::True;
                plane.machines[2].delete_first = true;
            }),
            "delete m3",
        ),
        ("without a surge one goes first", rolling(false, |_| {}), "delete m1, lead m1 to m3 m2"),
        (
            "and then one comes",
            with(of([machine(2), machine(3)]), |plane| {
                plane.replicas = 3;
                plane.surge = false;
                outdated(plane, &[0, 1]);
            }),
            "join",
        ),
    ];
    for (what, plane, _) in &rows {
        assert!(next(plane).rolling_out, "{what}");
    }
    check(rows);
    let done = with(of((1..=4).map(machine)), |plane| {
        plane.replicas = 3;
        etcd(plane).leader = 4;
    });
    check(vec![("what was one more goes", done, "delete m1")]);
}

#[test]
fn machines_are_due_by_their_age() {
    let day = 86_400;
    let rows = [
        (RolloutRules::default(), Some(at(1)), 0),
        (RolloutRules { after: Some(at(-5)), certificate_days: None }, None, 1),
        (RolloutRules { after: Some(at(5)), certificate_days: None }, None, 0),
        (RolloutRules { after: Some(at(-500)), certificate_days: None }, None, 0),
        (RolloutRules { after: None, certificate_days: Some(7) }, Some(at(7 * day - 1)), 1),
        (RolloutRules { after: None, certificate_days: Some(7) }, Some(at(7 * day + 1)), 0),
        (RolloutRules { after: None, certificate_days: Some(7) }, None, 0),
        (RolloutRules { after: None, certificate_days: Some(0) }, Some(at(-9)), 0),
        (RolloutRules { after: Some(at(-5)), certificate_days: Some(i32::MAX) }, Some(at(9)), 2),
    ];
    for (rules, expires, reasons) in rows {
        assert_eq!(rollout_dates(rules, at(-100), expires, at(0)).len(), reasons, "{rules:?} {expires:?}");
    }
}

#[test]
fn a_machine_that_goes_takes_its_member_along() {
    let going = |change: fn(&mut Plane)| {
        with(plane(), |plane| {
            plane.machines[1].deleted = Some(at(-60));
            plane.machines[1].awaits_hook = true;
            plane.machines[1].health = Health { etcd_member: State::False, ..Health::default() };
            change(plane);
        })
    };
    check(vec![
        ("in order", going(|_| {}), "release m2, without member 2"),
        ("the one that leads", going(|plane| etcd(plane).leader = 2), "release m2, lead m2 to m3 m1, without member 2"),
        (
            "its node is drained first",
            going(|plane| plane.machines[1].awaits_hook = false),
            "wait: Machine m2 is being drained",
        ),
        (
            "other hooks go first",
            going(|plane| plane.machines[1].other_hooks = true),
            "wait: Machine m2 is held by a hook of somebody else",
        ),
        (
            "before 1.31 in any order",
            going(|plane| {
                plane.machines[1].other_hooks = true;
                plane.hook_is_last = false;
            }),
            "release m2, without member 2",
        ),
        (
            "let go, it is waited for",
            going(|plane| plane.machines[1].hook = false),
            "wait: Machine m2 is being deleted",
        ),
        (
            "quorum would be lost",
            going(|plane| plane.machines[0].health.etcd_member = State::False),
            "wait: without Machine m2 etcd could lose its quorum",
        ),
        (
            "nothing else would work",
            going(|plane| plane.machines.iter_mut().for_each(|machine| machine.health.api_server = State::Unknown)),
            "wait: without Machine m2 no control plane components would be healthy",
        ),
        (
            "etcd does not answer",
            going(|plane| plane.etcd = None),
            "wait: Machine m2 stays until the members of etcd are known",
        ),
        (
            "a member learns",
            going(|plane| etcd(plane).members[2].learner = true),
            "wait: without Machine m2 etcd could lose its quorum",
        ),
        ("its member has left already", going(|plane| drop(etcd(plane).members.remove(1))), "release m2"),
        ("it never had a node", going(|plane| plane.machines[1].node = None), "release m2"),
        (
            "etcd is elsewhere",
            going(|plane| {
                plane.etcd_managed = false;
                plane.etcd = None;
                plane.machines.iter_mut().for_each(|machine| machine.health.etcd_pod = State::Unknown);
            }),
            "release m2",
        ),
        (
            "the last one goes whatever is known",
            with(of([Machine { deleted: Some(at(0)), awaits_hook: true, ..machine(1) }]), |plane| plane.etcd = None),
            "release m1",
        ),
        (
            "one after the other, the first first",
            going(|plane| {
                plane.machines[2].deleted = Some(at(-90));
                plane.machines[2].awaits_hook = false;
            }),
            "wait: Machine m3 is being drained",
        ),
    ]);
    assert!(next(&going(|_| {})).preflight.deleting);
}

#[test]
fn members_that_nobody_owns_are_removed() {
    let stray = |name: &str, change: fn(&mut Plane)| {
        let member = EtcdMember { id: 7, name: name.into(), learner: false };
        with(plane(), |plane| {
            etcd(plane).members.push(member);
            change(plane);
        })
    };
    check(vec![
        ("of a machine that is gone", stray("gone", |_| {}), "remove member 7 \"gone\""),
        ("that never started", stray("", |_| {}), "remove member 7 \"\""),
        (
            "perhaps of one whose node came first",
            stray("", |plane| plane.machines.push(Machine { health: Health::default(), ..machine(4) })),
            "wait: …",
        ),
        (
            "perhaps of one that comes",
            stray("new", |plane| plane.machines.push(Machine { node: None, health: Health::default(), ..machine(4) })),
            "wait: …",
        ),
        (
            "not when quorum would be lost",
            stray("gone", |plane| {
                plane.machines[0].health.etcd_member = State::False;
                plane.machines[1].health.etcd_member = State::False;
            }),
            "settle",
        ),
        ("not where etcd is elsewhere", stray("gone", |plane| plane.etcd_managed = false), "settle"),
    ]);
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
            with(of([Machine { node: None, ..machine(1) }]), |plane| {
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
                plane.machines[1].health = Health::WELL;
            }),
            "replace m3 try 0",
        ),
        (
            "the wanted one before",
            with(of((1..=5).map(machine)), |plane| {
                ill(&mut plane.machines[1]);
                ill(&mut plane.machines[2]);
                plane.machines[1].health = Health::WELL;
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
fn unheard(machine: &mut Machine) {
    machine.health = Health { etcd_member: State::True, ..Health::default() };
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
        assert!(!matches!(decision.action, Action::Replace { .. } | Action::Delete { .. } | Action::Join { .. }));
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
        let (said, why) = refused(&plane);
        assert_eq!(said, reason, "{what}: {why}");
        assert!(why.contains(message), "{what}: {why}");
        assert_eq!(why.contains("docs/cluster.md"), reason == CANNOT, "{what}: how to recover is said: {why}");
    }
    let only = with(plane(), |plane| {
        ill(&mut plane.machines[0]);
        plane.machines[1].health.scheduler = State::False;
        plane.machines[2].health.scheduler = State::False;
    });
    assert!(refused(&only).1.contains("mend one of the others"));
}

#[test]
fn a_dead_machine_that_goes_takes_its_member_along() {
    let going = |change: fn(&mut Plane)| {
        with(plane(), |plane| {
            plane.machines[1].deleted = Some(at(-60));
            plane.machines[1].awaits_hook = true;
            plane.machines[1].health = Health { etcd_member: State::False, ..Health::default() };
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
            others.iter().for_each(|index| plane.machines[*index].health.etcd_member = State::False);
            // Whoever leads is well.
            etcd(plane).leader = u64::from(*count);
        });
        let decision = next(&plane);
        let replaces = matches!(decision.action, Action::Replace { .. });
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
        (sick(|plane| plane.machines[2] = Machine { node: None, ..machine(3) }), Some(DEFERRED)),
        (sick(|plane| plane.etcd = None), Some(DEFERRED)),
        (sick(|plane| plane.machines[0].health.etcd_member = State::False), Some(CANNOT)),
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
        assert_eq!(matches!(decision.action, Action::Replace { .. }), wanted.is_none(), "{index}");
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
            ill_members.iter().for_each(|index| plane.machines[*index].health.etcd_member = State::False);
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
                plane.machines.iter_mut().for_each(|machine| machine.health.scheduler = State::False);
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
