//! docs/design/host.md, "Deletion": how it begins, and that it always ends.

use super::*;
use crate::api::metal3::ANNOTATION_DETACHED;

/// The states after a deletion, until the host is gone.
fn way_out(model: &mut Model) -> Vec<&'static str> {
    model.delete();
    model.forget_what_happened();
    for _ in 0..200 {
        let (_, until) = model.settle();
        if model.gone {
            return model.states.clone();
        }
        model.now += Duration::from_secs(1);
        if !model.agent_acts() && model.status().error_type.is_some() {
            model.now = until.max(model.now);
        }
    }
    panic!("not gone: {:?}", model.status());
}

#[test]
fn section_2_3_row_by_row() {
    // state, the way out, whether disks are wiped (those of a host that nothing was written to yet are clean), whether
    // power goes off
    let off = "powering off before delete";
    let rows: [(&str, &[&str], bool, bool); 12] = [
        ("", &[], false, false),
        ("unmanaged", &["deleting"], false, false),
        ("registering", &["deleting"], false, false),
        ("inspecting", &[off, "deleting"], false, true),
        ("preparing", &[off, "deleting"], false, true),
        ("match profile", &[off, "deleting"], false, true),
        ("available", &[off, "deleting"], false, true),
        ("ready", &[off, "deleting"], false, true),
        ("externally provisioned", &[off, "deleting"], false, true),
        ("provisioning", &["deprovisioning", off, "deleting"], false, true),
        ("provisioned", &["deprovisioning", off, "deleting"], true, true),
        ("deleting", &[], false, false),
    ];
    for (state, states, wiped, powered_off) in rows {
        let mut model = Model::in_state(state);
        if powered_off {
            model.power = PowerState::On;
            model.power_known = false;
        }
        model.delete();
        model.forget_what_happened();
        for _ in 0..100 {
            model.settle();
            if model.gone {
                break;
            }
            model.now += Duration::from_secs(1);
            model.agent_acts();
        }
        assert!(model.gone, "{state}: {:?}", model.status());
        assert_eq!(model.states, states, "{state}");
        assert_eq!(model.wipes > 0, wiped, "{state}");
        assert_eq!(model.bmc.contains(&"off"), powered_off, "{state}: {:?}", model.bmc);
        assert!(powered_off || model.bmc.is_empty(), "{state}: {:?}", model.bmc);
    }
}

#[test]
fn a_detached_host_goes_without_its_machine_being_touched() {
    for state in ["inspecting", "preparing", "available", "provisioning", "provisioned", "deprovisioning"] {
        let mut annotated = Model::in_state(state);
        annotated.annotate(ANNOTATION_DETACHED, "");
        assert_eq!(way_out(&mut annotated), ["deleting"], "{state}");
        assert!(annotated.bmc.is_empty(), "{state}: {:?}", annotated.bmc);
        assert_eq!(annotated.events, ["MachineLeftAsItIs"], "{state}");

        let mut detached = Model::in_state(state);
        detached.annotate(ANNOTATION_DETACHED, r#"{"force":true,"deleteAction":"delete"}"#);
        detached.settle();
        assert_eq!(detached.status().operational_status, OperationalStatus::Detached, "{state}");
        detached.unannotate(ANNOTATION_DETACHED);
        assert_eq!(way_out(&mut detached), ["deleting"], "{state}");
        assert!(detached.bmc.is_empty(), "{state}: {:?}", detached.bmc);
    }
}

/// `slipway host delete --force`: the host was deleted before, and waits for its BMC.
#[test]
fn a_deletion_that_waits_for_a_bmc_ends_once_the_host_is_detached() {
    for state in ["available", "provisioned", "externally provisioned", "deprovisioning", "powering off before delete"]
    {
        let mut model = Model::in_state(state);
        model.bmc_fault = Some("no answer".into());
        model.power_known = false;
        model.intent.as_mut().expect("an intent").status = None;
        model.delete();
        model.settle();
        assert!(!model.gone, "{state}: it waits");
        assert!(!goes_untouched(&model.host), "{state}");
        model.annotate(ANNOTATION_DETACHED, r#"{"deleteAction":"delete"}"#);
        assert!(goes_untouched(&model.host), "{state}");
        model.forget_what_happened();
        model.settle();
        assert!(model.gone && model.bmc.is_empty(), "{state}: {:?}", model.bmc);
        assert_eq!(model.events, ["MachineLeftAsItIs"], "{state}");
    }
    let mut model = Model::in_state("provisioned");
    model.annotate(ANNOTATION_DETACHED, "");
    assert!(!goes_untouched(&model.host), "it is not deleted");
    model.annotate(ANNOTATION_DETACHED, r#"{"deleteAction":"delay"}"#);
    model.delete();
    assert!(!goes_untouched(&model.host), "its deletion waits");
}

#[test]
fn a_deletion_waits_for_the_annotation_where_that_was_asked_for() {
    let mut model = Model::in_state("provisioned");
    model.annotate(ANNOTATION_DETACHED, r#"{"deleteAction":"delay"}"#);
    model.settle();
    model.delete();
    for _ in 0..3 {
        let (reason, until) = model.settle();
        assert!(reason.contains("detached"), "{reason}");
        model.now = until;
    }
    assert_eq!(model.state(), "provisioned");
    model.unannotate(ANNOTATION_DETACHED);
    assert_eq!(way_out(&mut model), ["deleting"]);
}

#[test]
fn a_registration_error_ends_the_wait_for_what_needs_the_bmc() {
    for (state, ways) in [
        ("deprovisioning", &["deprovisioning", "deleting"][..]),
        ("powering off before delete", &["powering off before delete", "deleting"]),
    ] {
        let mut model = Model::in_state(state);
        model.bmc_fault = Some("no answer".into());
        model.power_known = false;
        model.intent.as_mut().expect("an intent").status = None;
        assert_eq!(way_out(&mut model), ways);
        let warned = model.events.iter().any(|event| event.ends_with("Abandoned"));
        assert!(warned, "what was left undone is said: {:?}", model.events);
    }
}

#[test]
fn an_agent_that_is_up_wipes_even_when_the_bmc_cannot_be_used_any_more() {
    let mut model = Model::in_state("deprovisioning");
    while !model.intent.as_ref().is_some_and(|intent| {
        intent.status.as_ref().is_some_and(|status| {
            status.session.as_ref().is_some_and(|session| session.generation == intent.spec.generation)
        })
    }) {
        model.settle();
        model.now += Duration::from_secs(1);
        model.agent_acts();
    }
    model.access = Access::Broken("the secret is gone".into());
    assert_eq!(way_out(&mut model), ["powering off before delete", "deleting"]);
    assert!(model.events.contains(&"DeprovisioningComplete") && model.events.contains(&"PowerOffAbandoned"));
}

#[test]
fn what_a_data_image_put_into_the_drive_is_taken_out_and_not_for_ever_tried() {
    let with_cd = || {
        let mut model = Model::in_state("provisioned");
        model.data_cd = true;
        model
    };
    let mut model = with_cd();
    way_out(&mut model);
    assert_eq!((model.data_cd, model.bmc.iter().filter(|asked| **asked == "eject").count()), (false, 1));
    assert!(!model.events.iter().any(|event| event.ends_with("Abandoned")), "{:?}", model.events);

    // Off already, and the BMC does not empty the drive.
    let mut stuck = with_cd();
    stuck.delete();
    stuck.walk_to("powering off before delete");
    (stuck.power, stuck.power_known) = (PowerState::Off, true);
    stuck.bmc_fault = Some("the drive is jammed".into());
    assert_eq!(way_out(&mut stuck).last(), Some(&"deleting"));
    assert!(stuck.events.contains(&"DataImageAbandoned") && !stuck.events.contains(&"PowerOffAbandoned"));

    let mut gone = with_cd();
    gone.access = Access::Broken("the secret is gone".into());
    way_out(&mut gone);
    assert!(gone.gone && !gone.bmc.contains(&"eject"));

    let mut detached = with_cd();
    detached.annotate(ANNOTATION_DETACHED, "");
    assert_eq!(way_out(&mut detached), ["deleting"]);
    assert!(detached.bmc.is_empty());
}

/// As after a start of the appliance: the agent was heard a moment ago, and the power is not known.
#[test]
fn a_machine_that_may_be_off_already_is_asked_before_it_is_switched_off() {
    let mut model = Model::in_state("available");
    assert!(model.transition().status.error_type.is_none());
    model.delete();
    model.walk_to("powering off before delete");
    let intent = model.intent.as_ref().expect("an intent");
    assert!(intent.status.as_ref().is_some_and(|status| status.session.is_some()), "its agent is up");
    (model.power, model.power_known) = (PowerState::Off, false);
    model.bmc.clear();
    way_out(&mut model);
    assert_eq!((model.gone, model.bmc), (true, vec!["read"]));
}

/// A machine that somebody else speaks for, or a disk that never answers.
#[test]
fn an_agent_that_answers_and_comes_to_no_end_does_not_hold_up_a_deletion() {
    let mut model = Model::in_state("deprovisioning");
    model.delete();
    let deleted = model.now;
    for minutes in 0..(7 * 60) {
        model.settle();
        if model.gone {
            break;
        }
        model.now = deleted + Duration::from_secs(minutes * 60);
        let session = model.intent.as_mut().and_then(|intent| {
            let generation = intent.spec.generation;
            let now = Some(Time(model.now));
            let session = SessionStatus { generation, opened: now.clone(), last_seen: now, ..SessionStatus::default() };
            intent.status.get_or_insert_default().session.replace(session)
        });
        assert!(session.is_none_or(|session| session.last_seen <= Some(Time(model.now))));
    }
    assert!(model.gone, "{:?}", model.status());
    assert!(model.now >= deleted + Duration::from_secs(6 * 3600), "it has its time");
    assert!(model.events.contains(&"DeprovisioningAbandoned"));
    assert_eq!(model.power, PowerState::Off);
}
