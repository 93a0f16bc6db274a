//! docs/design/host.md, "Capacity": how many hosts may be busy at once.

use super::*;

fn full(model: &mut Model) {
    model.busy = model.settings.busy_limit;
}

#[test]
fn section_2_8_every_way_into_a_busy_state_waits_for_a_place() {
    type Change = fn(&mut Model);
    let rows: [(&str, &str, Change); 6] = [
        ("registering", "inspecting", |_| {}),
        ("available", "inspecting", |model| model.annotate("inspect.metal3.io", "")),
        ("available", "provisioning", |model| model.want_image(Some("http://x/a.qcow2"))),
        ("provisioned", "deprovisioning", |model| model.want_image(None)),
        ("provisioned", "deprovisioning", Model::delete),
        ("provisioned", "deprovisioning", |model| model.want_image(Some("http://x/b.qcow2"))),
    ];
    for (from, to, change) in rows {
        let mut model = Model::in_state(from);
        change(&mut model);
        full(&mut model);
        let (reason, until) = model.settle();
        assert_eq!((model.state(), model.status().operational_status), (from, OperationalStatus::Delayed), "{to}");
        assert!(reason.contains("host.busy_limit"), "{reason}");
        assert!(until <= model.now + Duration::from_secs(120));
        model.settle();
        assert_eq!(model.state(), from);
        model.busy -= 1;
        model.walk_to(to);
        assert_eq!(model.status().operational_status, OperationalStatus::OK);
    }
}

#[test]
fn who_is_busy_goes_on() {
    for (state, end) in [("inspecting", "available"), ("provisioning", "provisioned"), ("deprovisioning", "available")]
    {
        let mut model = Model::in_state(state);
        full(&mut model);
        model.run_until(if state == "inspecting" { "preparing" } else { end });
    }
}

#[test]
fn who_failed_waits_for_a_place_again() {
    for (state, action) in [
        ("inspecting", StepAction::Inspect),
        ("provisioning", StepAction::WriteImage),
        ("deprovisioning", StepAction::Erase),
    ] {
        let mut model = Model::in_state(state);
        model.failing = vec![(action, "no".into())];
        while model.status().error_type.is_none() {
            model.settle();
            model.now += Duration::from_secs(1);
            model.agent_acts();
        }
        assert_eq!(model.state(), state);
        full(&mut model);
        let (_, until) = model.settle();
        model.now = until;
        model.settle();
        let status = model.status();
        assert_eq!((model.state(), status.operational_status), (state, OperationalStatus::Delayed));
        assert_eq!((status.error_count, status.provisioning_fail_count), (1, 0), "waiting is no failure");
        for _ in 0..3 {
            model.now += Duration::from_secs(60);
            model.settle();
        }
        assert_eq!(model.status().error_count, 1);
        model.busy = 0;
        model.failing.clear();
        model.run_until(if state == "deprovisioning" { "available" } else { "provisioned" });
    }
}

#[test]
fn who_does_not_want_it_any_more_does_not_wait() {
    let mut model = Model::in_state("available");
    model.want_image(Some("http://x/a.qcow2"));
    full(&mut model);
    model.settle();
    assert_eq!(model.status().operational_status, OperationalStatus::Delayed);
    model.want_image(None);
    model.settle();
    assert_eq!(model.status().operational_status, OperationalStatus::OK);
}

#[test]
fn hosts_that_boot_from_a_virtual_cd_need_no_place() {
    let mut model = Model::in_state("registering");
    let bmc = model.host.spec.bmc.as_mut().expect("a BMC");
    bmc.address = "redfish-virtualmedia://10.0.0.1/redfish/v1/Systems/1".into();
    full(&mut model);
    model.walk_to("inspecting");
    assert!(!takes_place(&model.host, &model.status()));
    let mut other = Model::in_state("inspecting");
    assert!(takes_place(&other.host, &other.status()));
    other.bmc_fault = Some("no".into());
    other.power_known = false;
    other.settle();
    assert!(!takes_place(&other.host, &other.status()), "who rests makes room");
}

#[test]
fn a_deletion_that_cannot_use_the_bmc_waits_for_nobody() {
    let mut model = Model::in_state("provisioned");
    model.access = Access::Broken("the secret is gone".into());
    full(&mut model);
    model.delete();
    model.run_until("gone");
    assert!(model.gone);
}

/// A host that has given its place back, because it was paused, and of which all places are taken by now.
fn unpaused(model: &mut Model) {
    full(model);
    model.gave_place_back = true;
}

#[test]
fn who_gave_its_place_back_waits_for_one_unless_its_machine_is_under_way() {
    type Change = fn(&mut Model);
    let silent = |model: &mut Model| model.now += Duration::from_secs(3600);
    let rows: [(&str, bool, Change, OperationalStatus); 6] = [
        ("inspecting", true, |_| {}, OperationalStatus::OK),
        ("provisioning", true, |_| {}, OperationalStatus::OK),
        ("deprovisioning", true, |_| {}, OperationalStatus::OK),
        // It was not powered on yet.
        ("inspecting", false, |_| {}, OperationalStatus::Delayed),
        ("deprovisioning", false, |_| {}, OperationalStatus::Delayed),
        // Its time to call is over.
        ("inspecting", true, silent, OperationalStatus::Delayed),
    ];
    for (state, started, change, wanted) in rows {
        let mut model = Model::in_state(state);
        if started {
            model.settle();
        }
        unpaused(&mut model);
        change(&mut model);
        model.settle();
        assert_eq!((model.state(), model.status().operational_status), (state, wanted), "{started}");
        model.busy = 0;
        model.gave_place_back = false;
        model.run_until(if state == "deprovisioning" { "available" } else { "provisioned" });
    }
}

#[test]
fn who_is_paused_or_held_off_has_no_place() {
    const HOLDER: &str = "reboot.metal3.io/holder";
    const PAUSED: &str = "baremetalhost.metal3.io/paused";
    const FORCE: &str = r#"{"force":true}"#;
    let rows = [
        ("inspecting", "none", "", SlotState::Takes),
        ("inspecting", PAUSED, "", SlotState::Rests),
        ("available", PAUSED, "", SlotState::Rests),
        ("inspecting", HOLDER, FORCE, SlotState::Rests),
        ("provisioning", HOLDER, FORCE, SlotState::Rests),
        // It does not hold off.
        ("deprovisioning", HOLDER, FORCE, SlotState::Takes),
        ("inspecting", HOLDER, "", SlotState::Takes),
        ("inspecting", "reboot.metal3.io", FORCE, SlotState::Takes),
        ("available", "none", "", SlotState::Neither),
    ];
    for (state, annotation, value, wanted) in rows {
        let mut model = Model::in_state(state);
        model.settle();
        model.annotate(annotation, value);
        let transition = model.transition();
        let found = slot_state(&model.host, &transition);
        assert_eq!(found, wanted, "{state} {annotation} {value} {:?}", transition.next);
    }
}

#[test]
fn who_is_held_off_is_so_without_a_place_and_waits_for_one_afterwards() {
    for state in ["inspecting", "provisioning"] {
        let mut model = Model::in_state(state);
        model.settle();
        unpaused(&mut model);
        model.annotate("reboot.metal3.io/holder", r#"{"force":true}"#);
        let (reason, _) = model.settle();
        assert!(reason.contains("held off"), "{reason}");
        assert_eq!((model.state(), model.power), (state, PowerState::Off));
        model.unannotate("reboot.metal3.io/holder");
        model.settle();
        assert_eq!(model.status().operational_status, OperationalStatus::Delayed);
        model.busy = 0;
        model.run_until("provisioned");
    }
}

#[test]
fn who_waits_and_has_yet_to_read_its_power_has_not_decided() {
    let mut model = Model::in_state("registering");
    full(&mut model);
    model.settle();
    assert_eq!(slot_state(&model.host, &model.transition()), SlotState::Waits);
    model.power_known = false;
    assert_eq!(slot_state(&model.host, &model.transition()), SlotState::Undecided);
}
