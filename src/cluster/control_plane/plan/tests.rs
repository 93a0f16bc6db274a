//! Tables of what is known, and what is done.

mod unhealthy;

use jiff::SignedDuration;

use super::*;

/// A moment.
const NOW: i64 = 1_800_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW + seconds).unwrap()
}

/// A machine that is as it should be: made the older the lower its number, with a node of its name.
fn machine(number: u32) -> PlannedMachine {
    let name = format!("m{number}");
    PlannedMachine {
        node: Some(name.clone()),
        name,
        created: at(-10_000 + i64::from(number)),
        hook: true,
        health: ComponentHealth::WELL,
        ..PlannedMachine::default()
    }
}

/// Three machines that are as they should be, the first one leads etcd.
fn plane() -> Plane {
    of((1..=3).map(machine))
}

fn of(machines: impl IntoIterator<Item = PlannedMachine>) -> Plane {
    let machines: Vec<PlannedMachine> = machines.into_iter().collect();
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
        etcd: Some(EtcdStatus { members: members.collect(), leader: 1, ..EtcdStatus::default() }),
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

fn etcd(plane: &mut Plane) -> &mut EtcdStatus {
    plane.etcd.as_mut().unwrap()
}

/// An action in a few words.
fn words(decision: &ControlPlaneDecision) -> String {
    let over = |handover: &Option<Handover>| match handover {
        Some(Handover { from, to }) => format!(", lead {from} to {}", to.join(" ")),
        None => String::new(),
    };
    let place = |domain: &Option<String>| domain.as_ref().map(|name| format!(" in {name}")).unwrap_or_default();
    match &decision.action {
        ControlPlaneAction::Initialize { failure_domain } => format!("init{}", place(failure_domain)),
        ControlPlaneAction::Join { failure_domain } => format!("join{}", place(failure_domain)),
        ControlPlaneAction::Delete { machine, handover } => format!("delete {machine}{}", over(handover)),
        ControlPlaneAction::Replace { remediation, handover } => {
            format!("replace {} try {}{}", remediation.machine, remediation.retry_count, over(handover))
        }
        ControlPlaneAction::RemoveMember(member) => format!("remove member {} {:?}", member.id, member.name),
        ControlPlaneAction::Release { machine, handover, member } => {
            let member = member.as_ref().map(|member| format!(", without member {}", member.id)).unwrap_or_default();
            format!("release {machine}{}{member}", over(handover))
        }
        ControlPlaneAction::Wait(reason) => format!("wait: {reason}"),
        ControlPlaneAction::Settle => "settle".into(),
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
    let young = || {
        with(of([PlannedMachine { node: None, health: ComponentHealth::default(), ..machine(1) }]), |plane| {
            plane.replicas = 3
        })
    };
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
                plane.machines[0].health.scheduler = WellState::False;
            }),
            "wait: waiting for control plane components to become healthy; Machine m1: SchedulerPodHealthy is false",
        ),
        (
            "nobody knows of etcd",
            with(of([machine(1)]), |plane| {
                plane.replicas = 3;
                plane.machines[0].health.etcd_member = WellState::Unknown;
            }),
            "wait: waiting for etcd cluster to become healthy; Machine m1: EtcdMemberHealthy is unknown",
        ),
        (
            "etcd is elsewhere",
            with(of([machine(1)]), |plane| {
                plane.replicas = 2;
                plane.etcd_managed = false;
                plane.etcd = None;
                plane.machines[0].health.etcd_member = WellState::Unknown;
                plane.machines[0].health.etcd_pod = WellState::Unknown;
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
                .map(|(number, place)| PlannedMachine { failure_domain: Some((*place).into()), ..machine(number) })),
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
                plane.machines[2].health.api_server = WellState::Unknown;
            }),
            "delete m3",
        ),
        (
            "not while another one is ill",
            fewer(|plane| plane.machines[1..].iter_mut().for_each(|one| one.health.api_server = WellState::False)),
            "wait: …",
        ),
        (
            "the ill one that goes does not matter",
            fewer(|plane| plane.machines[0].health.api_server = WellState::Unknown),
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
        ("an ill one goes first", four(|plane| plane.machines[1].health.scheduler = WellState::False), "delete m2"),
        (
            "a marked one goes before",
            four(|plane| {
                plane.machines[1].health.scheduler = WellState::True;
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
            plane.machines[1].health = ComponentHealth { etcd_member: WellState::False, ..ComponentHealth::default() };
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
            going(|plane| plane.machines[0].health.etcd_member = WellState::False),
            "wait: without Machine m2 etcd could lose its quorum",
        ),
        (
            "nothing else would work",
            going(|plane| plane.machines.iter_mut().for_each(|machine| machine.health.api_server = WellState::Unknown)),
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
                plane.machines.iter_mut().for_each(|machine| machine.health.etcd_pod = WellState::Unknown);
            }),
            "release m2",
        ),
        (
            "the last one goes whatever is known",
            with(of([PlannedMachine { deleted: Some(at(0)), awaits_hook: true, ..machine(1) }]), |plane| {
                plane.etcd = None
            }),
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
            stray("", |plane| plane.machines.push(PlannedMachine { health: ComponentHealth::default(), ..machine(4) })),
            "wait: …",
        ),
        (
            "perhaps of one that comes",
            stray("new", |plane| {
                plane.machines.push(PlannedMachine { node: None, health: ComponentHealth::default(), ..machine(4) })
            }),
            "wait: …",
        ),
        (
            "not when quorum would be lost",
            stray("gone", |plane| {
                plane.machines[0].health.etcd_member = WellState::False;
                plane.machines[1].health.etcd_member = WellState::False;
            }),
            "settle",
        ),
        ("not where etcd is elsewhere", stray("gone", |plane| plane.etcd_managed = false), "settle"),
    ]);
}
