//! Whose turn it is, case by case.

use super::super::leave::may_leave;
use super::*;

fn work(letters: &str, at: usize) -> Work {
    // `.` nothing of it, `h` handed, `d` done.
    match letters.as_bytes()[at] {
        b'.' => Work { handed: false, done: false },
        b'h' => Work { handed: true, done: false },
        b'o' => Work { handed: false, done: true },
        _ => Work { handed: true, done: true },
    }
}

/// A machine: `m1 ddd rW` is a manager of index 1 with all three phases done, that is ready and was deployed. Flags: `r` ready, `W` was
/// deployed, `s` silent, `x` has a fault, `a` drain asked, `D` drained, `u` undoing, `l` leaving, `m` maintenance, `n` not heard,
/// `b` a reboot is wanted, `B` asked for, `o` a node of another release; a digit is the worker's group.
fn member(text: &str) -> Member {
    let mut words = text.split(' ');
    let (name, works, flags) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap_or_default());
    let role = match name.as_bytes()[0] {
        b'm' => MachineRole::Control,
        b'w' => MachineRole::Worker,
        _ => MachineRole::Bastion,
    };
    let has = |flag: char| flags.contains(flag);
    let drain = match () {
        () if has('a') => Drain::Asked,
        () if has('D') => Drain::Done,
        () if has('u') => Drain::Undoing,
        () => Drain::None,
    };
    Member {
        name: name.into(),
        role,
        rank: (name[1..].parse().unwrap(), 0, name.into()),
        heard: !has('n'),
        silent: has('s'),
        held: has('m'),
        leaving: has('l'),
        was_deployed: has('W'),
        group: flags.chars().find_map(|flag| flag.to_digit(10)).unwrap_or_default() as usize,
        is_behind: has('o'),
        prepare: work(works, 0),
        deploy: work(works, 1),
        reconfigure: work(works, 2),
        ready: has('r'),
        drain,
        reboot: if has('b') {
            Reboot::Wanted
        } else if has('B') {
            Reboot::Asked
        } else {
            Reboot::None
        },
        fault: has('x').then(|| "step kubelet failed with exit code 1".to_owned()),
    }
}

/// A group of this place, of which so many change at once.
fn group(index: i32, at_once: usize) -> WorkerGroup {
    WorkerGroup { name: format!("g{index}"), index, at_once, reboots: false, paused: None }
}

fn rules() -> Rules {
    Rules {
        dedicated: true,
        prepare_at_once: 2,
        groups: vec![group(1, 1)],
        initialized: true,
        drains: true,
        held: None,
    }
}

/// What is done: `p`, `d`, `r` for phases, `D` drain, `U` undrain, `B` reboot, `A` ask applications.
fn said(turn: &MachineTurn) -> String {
    let mut text = String::new();
    for (is, letter) in [
        (turn.prepare, 'p'),
        (turn.deploy, 'd'),
        (turn.reconfigure, 'r'),
        (turn.drain == Some(true), 'D'),
        (turn.drain == Some(false), 'U'),
        (turn.reboot, 'B'),
        (turn.asks, 'A'),
    ] {
        if is {
            text.push(letter);
        }
    }
    text
}

#[track_caller]
fn check(rules: &Rules, rows: &[(&str, &str, &str)]) {
    let members: Vec<Member> = rows.iter().map(|(text, ..)| member(text)).collect();
    let turns = decide(&members, rules);
    for ((text, wanted, words), turn) in rows.iter().zip(&turns) {
        assert_eq!(said(turn), *wanted, "{text}: {turn:?}");
        let waits = turn.waits.as_deref().unwrap_or_default();
        assert!(waits.contains(words) && (words.is_empty() == waits.is_empty()), "{text}: {waits:?}, not {words:?}");
    }
}

#[test]
fn all_managers_prepare_and_workers_in_batches() {
    let rules = Rules { initialized: false, ..rules() };
    check(
        &rules,
        &[
            ("m1 ...", "p", "all managers have prepared"),
            ("m2 ...", "p", "m1, which begins"),
            ("m3 ... n", "", "m1, which begins"),
            ("w1 ...", "p", "phase prepare"),
            ("w2 ...", "p", "phase prepare"),
            ("w3 ...", "", "2 other workers prepare"),
            ("b1 ...", "pdr", ""),
        ],
    );
    // One that prepares has a place, and one that is silent has none.
    check(
        &rules,
        &[
            ("m1 h..", "", "all managers have prepared"),
            ("w1 h..", "", "phase prepare"),
            ("w2 h.. s", "", "phase prepare"),
            ("w3 ...", "p", "phase prepare"),
            ("w4 ...", "", "2 other"),
        ],
    );
}

#[test]
fn one_manager_begins_the_cluster_once_all_have_prepared() {
    let rules = Rules { initialized: false, ..rules() };
    check(&rules, &[("m2 d..", "", "m1, which begins"), ("m1 d..", "dr", ""), ("w1 d..", "", "manager m1")]);
    check(&rules, &[("m1 d..", "", "m2 has not"), ("m2 h..", "", "m1")]);
    check(&rules, &[("m1 d..", "", "m2 has not: step kubelet failed"), ("m2 h.. x", "", "m1")]);
    check(&rules, &[("m1 d..", "", "m2 has not"), ("m2 ... n", "", "m1")]);
    // One that has begun goes on, also when another one comes before it.
    check(&rules, &[("m1 d..", "", "m2, which begins"), ("m2 dhh", "", ""), ("w1 d..", "", "manager m2")]);
    // The one that was to begin it goes before it has: the next one does.
    check(&rules, &[("m1 d.. l", "", ""), ("m2 d..", "dr", "")]);
    check(&rules, &[("m1 d.. m", "", "in maintenance"), ("m2 d..", "", "m1, which begins")]);
}

#[test]
fn further_managers_join_one_by_one_and_none_while_another_one_is_ill() {
    check(&rules(), &[("m1 ddd rW", "", ""), ("m2 d..", "dr", ""), ("m3 d..", "", "waits for manager m2")]);
    check(&rules(), &[("m1 ddd rW", "", ""), ("m2 dhh", "", ""), ("m3 d..", "", "waits for manager m2")]);
    check(
        &rules(),
        &[("m1 ddd rW", "", ""), ("m2 dhh x", "", ""), ("m3 d..", "", "m2 does not get on: step kubelet failed with")],
    );
    check(&rules(), &[("m1 ddd W", "", ""), ("m2 d..", "", "waits for manager m1")]);
    check(&rules(), &[("m1 ddd rW", "", ""), ("m2 h..", "", "phase prepare"), ("m3 d..", "dr", "")]);
    // Whoever comes later does not begin it again, whatever its index.
    check(&rules(), &[("m0 d..", "dr", ""), ("m1 ddd rW", "", "")]);
    check(&rules(), &[("m0 d..", "", "none of its managers is left")]);
    check(&rules(), &[("m0 d..", "", "has left the cluster"), ("m1 ddd rWl", "", "")]);
}

#[test]
fn workers_follow_the_first_manager_or_all_of_them() {
    let mixed = Rules { dedicated: false, ..rules() };
    let rows = [
        ("m1 ddd rW", "", ""),
        ("m2 dhh", "", ""),
        ("w1 d..", "dr", ""),
        ("w2 d..", "dr", ""),
        ("w3 d..", "", "2 other"),
    ];
    check(&rules(), &rows);
    check(&mixed, &[("m1 ddd rW", "", ""), ("m2 dhh", "", ""), ("w1 d..", "", "waits for manager m2")]);
    check(&mixed, &[("m1 ddd rW", "", ""), ("m2 ddd rW", "", ""), ("w1 d..", "dr", "")]);
    check(&rules(), &[("m1 ddd W", "", ""), ("w1 d..", "", "waits for manager m1")]);
    check(&rules(), &[("w1 d..", "", "the cluster has none")]);
    let byo = Rules { drains: false, ..rules() };
    check(&byo, &[("w1 d..", "dr", "")]);
    // A worker that died meanwhile has no place.
    check(&rules(), &[("m1 ddd rW", "", ""), ("w1 dhh s", "", ""), ("w2 dhh", "", ""), ("w3 d..", "dr", "")]);
}

#[test]
fn an_upgrade_goes_manager_by_manager_and_then_to_workers() {
    // Everything is made ready first.
    check(
        &rules(),
        &[
            ("m1 ... rW", "p", "m1 has not"),
            ("m2 d.. rW", "", "m1 has not"),
            ("w1 ... rW", "p", "manager m1"),
            ("w2 ... rW", "p", "manager m1"),
            ("w3 ... rW", "", "2 other workers prepare"),
        ],
    );
    let rows =
        [("m1 d.. rW", "D", "drained"), ("m2 d.. rW", "", "m1"), ("m3 d.. rW", "", "m1"), ("w1 d.. rW", "", "m1")];
    check(&rules(), &rows);
    check(&rules(), &[("m1 d.. rWa", "", "drained"), ("m2 d.. rW", "", "m1")]);
    check(&rules(), &[("m1 d.. rWD", "dr", ""), ("m2 d.. rW", "", "m1")]);
    check(&rules(), &[("m1 dhh WD", "", ""), ("m2 d.. rW", "", "m1")]);
    check(&rules(), &[("m1 ddd rWD", "U", ""), ("m2 d.. rW", "", "m1")]);
    check(&rules(), &[("m1 ddd rWu", "", ""), ("m2 d.. rW", "", "m1")]);
    check(&rules(), &[("m1 ddd rW", "", ""), ("m2 d.. rW", "D", "drained"), ("w1 d.. rW", "", "manager m2")]);
    // Workers, so many at once.
    let all = [("m1 ddd rW", "", ""), ("w1 d.. rW", "D", "drained"), ("w2 d.. rW", "", "waits for worker w1")];
    check(&rules(), &all);
    let two = Rules { groups: vec![group(1, 2)], ..rules() };
    check(
        &two,
        &[("m1 ddd rW", "", ""), ("w1 d.. rWa", "", "drained"), ("w2 d.. rW", "D", "drained"), ("w3 d.. rW", "", "w1")],
    );
    check(&rules(), &[("m1 ddd rW", "", ""), ("w1 dhh WD", "", ""), ("w2 d.. rW", "", "w1")]);
    check(&rules(), &[("m1 ddd rW", "", ""), ("w1 dhh WDx", "", ""), ("w2 d.. rW", "", "worker w1 does not get on")]);
    // Without drains where there is nothing to drain.
    let byo = Rules { drains: false, ..rules() };
    check(&byo, &[("m1 d.. rW", "dr", ""), ("m2 d.. rW", "", "m1")]);
}

#[test]
fn groups_of_workers_follow_each_other_each_so_many_at_once() {
    let two = Rules { groups: vec![group(2, 1), group(1, 2)], ..rules() };
    // The one with the lower index first, and two of it at once.
    check(
        &two,
        &[
            ("m1 ddd rW", "", ""),
            ("w1 d.. rW0", "", "update group g1, which comes before: 3 of its machines are not through"),
            ("w2 d.. rW1", "D", "drained"),
            ("w3 d.. rW1", "D", "drained"),
            ("w4 d.. rW1", "", "waits for worker w2"),
        ],
    );
    check(&two, &[("m1 ddd rW", "", ""), ("w1 d.. rW0", "", "update group g1"), ("w2 ddd rWu1", "", "")]);
    check(&two, &[("m1 ddd rW", "", ""), ("w1 d.. rW0", "D", "drained"), ("w2 ddd rW1", "", "")]);
    // One that does not get on stops those behind it, and says what to do; one in maintenance, or that is no node yet, does not.
    check(&two, &[("m1 ddd rW", "", ""), ("w1 d.. rW0", "", "w2 does not get on: step"), ("w2 dhh Wx1", "", "")]);
    check(&two, &[("m1 ddd rW", "", ""), ("w1 d.. rW0", "D", "drained"), ("w2 d.. rWm1", "", "maintenance")]);
    check(&two, &[("m1 ddd rW", "", ""), ("w1 d.. rW0", "D", "drained"), ("w2 dhh 1", "", "")]);
    // What has begun goes on, whatever comes before it now.
    check(&two, &[("m1 ddd rW", "", ""), ("w1 d.. rWD0", "dr", ""), ("w2 d.. rW1", "D", "drained")]);
    // Equal ones at the same time, each with its own number; the control plane before them all.
    let same = Rules { groups: vec![group(1, 1), group(1, 1)], ..rules() };
    check(
        &same,
        &[
            ("m1 ddd rW", "", ""),
            ("w1 d.. rW0", "D", "drained"),
            ("w2 d.. rW1", "D", "drained"),
            ("w3 d.. rW0", "", "waits for worker w1"),
        ],
    );
    check(&two, &[("m1 dhh W", "", ""), ("w1 d.. rW1", "", "manager m1")]);
    // Reboots go the same way.
    check(
        &two,
        &[
            ("m1 ddd rW", "", ""),
            ("w1 ddd rWb0", "", "update group g1"),
            ("w2 ddd rWb1", "D", "drained"),
            ("w3 ddd rWb1", "D", "drained"),
            ("w4 ddd rWb1", "", "waits for worker w2"),
        ],
    );
}

#[test]
fn a_group_that_is_paused_gets_no_release_and_others_before_it_do() {
    let paused = WorkerGroup { paused: Some("step k8s-workers-g2 is not commenced".into()), ..group(2, 1) };
    let rules = Rules { groups: vec![group(1, 1), paused], ..rules() };
    check(
        &rules,
        &[
            ("m1 ddd rW", "", ""),
            ("w1 ... rWo0", "p", "phase prepare"),
            ("w2 ... rWo1", "", "not commenced"),
            ("w3 d.. rWo1", "", "not commenced"),
        ],
    );
    check(&rules, &[("m1 ddd rW", "", ""), ("w1 ddd rW0", "", ""), ("w2 d.. rWo1", "", "not commenced")]);
    // What has begun there ends; a machine that becomes a node does so, and what is no other release is done.
    check(&rules, &[("m1 ddd rW", "", ""), ("w1 ddd rW0", "", ""), ("w2 dhh WD1", "", "")]);
    check(&rules, &[("m1 ddd rW", "", ""), ("w2 d.. 1", "dr", ""), ("w3 dd. rW1", "r", "")]);
    // A paused group before holds those after it.
    let first = WorkerGroup { paused: Some("not commenced".into()), ..group(1, 1) };
    let rules = Rules { groups: vec![first, group(2, 1)], ..self::rules() };
    check(
        &rules,
        &[("m1 ddd rW", "", ""), ("w1 d.. rWo0", "", "not commenced"), ("w2 d.. rWo1", "", "update group g1")],
    );
}

#[test]
fn nobody_joins_with_a_newer_release_than_the_control_plane_has() {
    check(
        &rules(),
        &[
            ("m1 d.. rW", "D", "drained"),
            ("m2 d.. rW", "", "m1"),
            ("w1 d..", "", "waits until manager m1 has the release"),
        ],
    );
    check(&rules(), &[("m0 d..", "", "waits until manager m1 has the release"), ("m1 d.. rW", "D", "drained")]);
    check(&rules(), &[("m1 ddd rW", "", ""), ("m2 dhh W", "", ""), ("w1 d..", "", "manager m2 has the release")]);
    check(&rules(), &[("m1 ddd rW", "", ""), ("w1 d..", "dr", "")]);
}

#[test]
fn a_manager_that_dies_in_an_upgrade_stops_it() {
    for flags in ["Wx", "WDx", "WDsx", "Wsx"] {
        let first = format!("m1 dhh {flags}");
        check(
            &rules(),
            &[
                (&first, "", ""),
                (
                    "m2 d.. rW",
                    "",
                    "no other manager is touched until it is Ready: mend it, for its agent tries again, or delete its Machine",
                ),
                ("m3 d.. rW", "", "manager m1 does not get on: step kubelet failed with exit code 1;"),
                ("w1 d.. rW", "", "manager m1 does not get on"),
            ],
        );
    }
    // One that falls ill by itself stops it, too; the one that is drained stays so.
    check(&rules(), &[("m1 d.. rWD", "", "manager m2 does not get on"), ("m2 d.. Wx", "", "waits for manager m1")]);
    // It is deleted: the next one goes on once it has left.
    check(&rules(), &[("m1 dhh Wxl", "", ""), ("m2 d.. rW", "", "does not get on")]);
    check(&rules(), &[("m2 d.. rW", "D", "drained"), ("m3 d.. rW", "", "m2")]);
    // A newer release may mend it: it may have that.
    check(&rules(), &[("m1 d.. Wx", "D", "drained"), ("m2 d.. rW", "", "m1 does not get on")]);
}

#[test]
fn what_is_beside_workloads_needs_no_drain() {
    check(&rules(), &[("m1 dd. rW", "r", ""), ("m2 dd. rW", "", "m1"), ("w1 dd. rW", "", "m1")]);
    check(&rules(), &[("m1 ddh W", "", ""), ("m2 dd. rW", "", "m1")]);
    check(&rules(), &[("m1 ddd rW", "", ""), ("w1 dd. rW", "r", ""), ("w2 dd. rW", "r", "")]);
}

#[test]
fn nothing_changes_in_maintenance() {
    check(
        &rules(),
        &[
            ("m1 ... rWm", "", "in maintenance"),
            ("m2 d.. rW", "", "m1 has not"),
            ("w1 d.. m", "", "in maintenance"),
            ("w2 ddd rWm", "", ""),
        ],
    );
    // Others go on after a worker in maintenance, and wait for a manager in it.
    check(&rules(), &[("m1 ddd rW", "", ""), ("w1 d.. rWm", "", "in maintenance"), ("w2 d.. rW", "D", "drained")]);
    check(&rules(), &[("m1 d.. rWm", "", "in maintenance"), ("m2 ddd rW", "", ""), ("w1 d.. rW", "", "manager m1")]);
}

#[test]
fn reboots_are_one_by_one_with_a_drain_before() {
    check(&rules(), &[("m1 ddd rWb", "D", "drained"), ("m2 ddd rWb", "", "m1"), ("w1 ddd rWb", "", "m1 has rebooted")]);
    check(&rules(), &[("m1 ddd rWaB", "", ""), ("m2 ddd rWb", "", "m1")]);
    check(&rules(), &[("m1 ddd rWDb", "B", ""), ("m2 ddd rWb", "", "m1")]);
    check(&rules(), &[("m1 ddd rWDB", "", ""), ("m2 ddd rWb", "", "m1")]);
    check(&rules(), &[("m1 ddd rWD", "U", ""), ("m2 ddd rWb", "", "m1")]);
    check(&rules(), &[("m1 ddd rW", "", ""), ("w1 ddd rWb", "D", "drained"), ("w2 ddd rWb", "", "w1")]);
    check(&rules(), &[("m1 ddd rW", "", ""), ("w1 ddd rWDb", "B", ""), ("w2 ddd rWb", "", "w1")]);
    // Another release comes first.
    check(&rules(), &[("m1 d.. rWb", "D", "drained")]);
    check(&rules(), &[("m1 d.. rWDb", "dr", "")]);
}

#[test]
fn nothing_is_drained_before_applications_of_the_cluster_are_ready() {
    let held = Rules { held: Some("waits for storage".into()), groups: vec![group(1, 2)], ..rules() };
    check(
        &held,
        &[
            ("m1 d.. rW", "A", "waits for storage"),
            ("m2 d.. rW", "", "waits for manager m1"),
            ("w1 d.. rW", "", "waits for manager m1"),
        ],
    );
    // What is drained already goes on, and takes pods again.
    check(&held, &[("m1 ddd rW", "", ""), ("w1 d.. rWD", "dr", ""), ("w2 d.. rWa", "", "until its node is drained")]);
    check(&held, &[("m1 ddd rWD", "U", ""), ("w1 ddd rW", "", "")]);
    // So does what needs no drain, and who becomes a node.
    check(&held, &[("m1 dd. rW", "r", "")]);
    check(&held, &[("m1 ddd rW", "", ""), ("w1 d..", "dr", "")]);
    check(&held, &[("m1 ddd rWb", "A", "waits for storage"), ("w1 ddd rWb", "", "m1 has rebooted")]);
    check(&Rules { held: None, ..held }, &[("m1 ddd rWb", "D", "drained"), ("w1 ddd rWb", "", "m1 has rebooted")]);
}

#[test]
fn a_release_that_is_taken_back_lets_pods_back() {
    check(&rules(), &[("m1 ddd rWa", "U", ""), ("m2 ddd rW", "", "")]);
    check(&rules(), &[("w1 ddd rWD", "U", "")]);
    // Who leaves stays drained.
    check(&rules(), &[("w1 ddd rWDl", "", "")]);
}

#[test]
fn a_manager_leaves_while_two_are_ready_and_one_at_a_time() {
    for (who, rows, wanted) in [
        ("m1", &["m1 ddd rW", "m2 ddd rW"][..], ""),
        ("m1", &["m1 ddd rW", "m2 ddd rW", "m3 ddd rW"], ""),
        ("m1", &["m1 ddd rW"], "1 of them are"),
        ("m1", &["m1 ddd W", "m2 ddd rW"], "1 of them are"),
        ("m1", &["m1 ddd W", "m2 ddd rW", "m3 ddd rW"], ""),
        ("m1", &["m1 ddd W", "m2 ddd rWl", "m3 ddd rW"], "until manager m2 has left"),
        // It has begun to leave: it goes on.
        ("m1", &["m1 ddd Wl", "m2 ddd rW"], ""),
        // It is no node yet.
        ("m2", &["m1 ddd rW", "m2 d.."], ""),
        ("w1", &["m1 ddd rW", "w1 ddd rW"], ""),
    ] {
        let members: Vec<Member> = rows.iter().map(|text| member(text)).collect();
        let one = members.iter().find(|one| one.name == who).unwrap();
        let reason = may_leave(one, &members).err().unwrap_or_default();
        assert!(reason.contains(wanted) && reason.is_empty() == wanted.is_empty(), "{rows:?}: {reason}");
    }
}

#[test]
fn the_first_of_a_control_plane_is_one_that_is_there() {
    for (rows, wanted) in [
        (&["m2 ddd rW", "m1 d.."][..], "m2"),
        (&["m2 dhh", "m1 d.."], "m2"),
        (&["m2 d..", "m1 d.."], "m1"),
        (&["m2 ddd rWl", "m1 d..", "w0 ddd rW"], "m1"),
    ] {
        let members: Vec<Member> = rows.iter().map(|text| member(text)).collect();
        assert_eq!(first(&members).unwrap().name, wanted, "{rows:?}");
    }
}

/// Whatever is decided is done at once, as long as something is: everybody gets there, and never two managers at a time.
#[test]
fn every_order_comes_to_its_end() {
    for managers in [1, 3, 5] {
        for (upgrade, dedicated) in [(false, true), (false, false), (true, true), (true, false)] {
            let works = if upgrade { "... rW" } else { "..." };
            let names = (0..managers).map(|at| format!("m{at}")).chain((0..7).map(|at| format!("w{at}")));
            let mut members: Vec<Member> = names.map(|name| member(&format!("{name} {works}"))).collect();
            for _ in 0..300 {
                let initialized = members.iter().any(|one| one.was_deployed);
                let turns = decide(&members, &Rules { dedicated, initialized, ..rules() });
                let under_way = |one: &&Member| one.role == MachineRole::Control && one.is_under_way();
                assert!(members.iter().filter(under_way).count() <= 1, "{members:#?}");
                for (one, turn) in members.iter_mut().zip(turns) {
                    play(one, &turn);
                }
            }
            let through = |one: &Member| one.ready && one.reconfigure.done && one.drain == Drain::None;
            assert!(members.iter().all(through), "{managers} {upgrade} {dedicated}: {members:#?}");
        }
    }
}

fn play(one: &mut Member, turn: &MachineTurn) {
    match one.drain {
        Drain::Asked => one.drain = Drain::Done,
        Drain::Undoing => one.drain = Drain::None,
        Drain::None | Drain::Done => {}
    }
    for work in [&mut one.prepare, &mut one.deploy, &mut one.reconfigure] {
        work.done |= work.handed;
    }
    if one.deploy.done && one.reconfigure.done {
        (one.ready, one.was_deployed) = (true, true);
    }
    one.prepare.handed |= turn.prepare;
    one.deploy.handed |= turn.deploy;
    one.reconfigure.handed |= turn.reconfigure;
    if turn.deploy || turn.reconfigure {
        one.ready = false;
    }
    match turn.drain {
        Some(true) => one.drain = Drain::Asked,
        Some(false) => one.drain = Drain::Undoing,
        None => {}
    }
}
