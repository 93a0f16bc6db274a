//! docs/design/host.md, "Power and reboots".

use super::*;
use crate::api::metal3::ANNOTATION_REBOOT;

const HOLDER: &str = "reboot.metal3.io/remediation";

fn on(state: &str) -> Model {
    let mut model = Model::in_state(state);
    model.power = PowerState::On;
    model.power_known = false;
    model.settle();
    model.forget_what_happened();
    model
}

#[test]
fn power_follows_online() {
    for state in ["available", "provisioned", "externally provisioned"] {
        let mut model = on(state);
        model.host.spec.online = false;
        model.edited();
        model.settle();
        assert_eq!(model.power, PowerState::Off, "{state}");
        assert!(!model.status().powered_on);
        let soft = if state == "available" { "off" } else { "soft off" };
        assert_eq!(model.bmc, [soft], "{state}");
        model.host.spec.online = true;
        model.edited();
        model.settle();
        assert_eq!((model.power, model.status().powered_on), (PowerState::On, true), "{state}");
        assert_eq!(model.events, ["PowerOff", "PowerOn"], "{state}");
        // And what happens behind our back is put right.
        model.power = PowerState::Off;
        model.power_known = false;
        model.now += model.settings.power_poll.0 * 3;
        model.settle();
        assert_eq!(model.power, PowerState::On, "{state}");
    }
}

#[test]
fn which_annotations_count_where() {
    let forced = r#"{"force":true}"#;
    let rows = [
        ("provisioned", "", true),
        ("provisioned", forced, true),
        ("provisioned", "not JSON", true),
        ("externally provisioned", "", true),
        ("externally provisioned", r#"{"mode":"hard"}"#, true),
        ("available", "", false),
        ("available", r#"{"mode":"hard"}"#, false),
        ("available", forced, true),
    ];
    for (state, value, counts) in rows {
        let mut model = on(state);
        model.annotate(ANNOTATION_REBOOT, value);
        model.settle();
        assert_eq!(!model.bmc.is_empty(), counts, "{state} {value}");
        assert_eq!(model.annotated(ANNOTATION_REBOOT), !counts, "{state} {value}");
        assert_eq!(model.power, PowerState::On, "{state} {value}");
        if counts {
            assert_eq!(model.events, ["PowerOff", "PowerOn"], "{state} {value}");
        }
    }
}

#[test]
fn soft_or_hard() {
    let rows = [
        (&[(ANNOTATION_REBOOT, "")][..], 0, "soft off"),
        (&[(ANNOTATION_REBOOT, r#"{"mode":"soft"}"#)], 0, "soft off"),
        (&[(ANNOTATION_REBOOT, r#"{"mode":"hard"}"#)], 0, "off"),
        (&[(ANNOTATION_REBOOT, ""), (HOLDER, r#"{"mode":"hard"}"#)], 0, "off"),
        (&[(ANNOTATION_REBOOT, "")], 1, "off"),
    ];
    for (annotations, failures, expected) in rows {
        let mut model = on("provisioned");
        let status = BareMetalHostStatus { error_count: failures, ..model.status() };
        model.host.status = Some(status);
        for (key, value) in annotations {
            model.annotate(key, value);
        }
        model.settle();
        assert_eq!(model.bmc.first(), Some(&expected), "{annotations:?}");
    }
}

#[test]
fn who_holds_a_host_off_lets_it_go_himself() {
    let mut model = on("provisioned");
    model.annotate(HOLDER, "");
    model.annotate("reboot.metal3.io/other", "");
    let (reason, _) = model.settle();
    assert!(reason.contains("held off by the annotation reboot.metal3.io/"), "{reason}");
    assert_eq!(model.power, PowerState::Off);
    model.unannotate(HOLDER);
    model.settle();
    assert_eq!(model.power, PowerState::Off, "the other one still holds it");
    model.unannotate("reboot.metal3.io/other");
    model.settle();
    assert_eq!((model.power, model.state()), (PowerState::On, "provisioned"));
    assert_eq!(model.boots, [], "it starts as its firmware is set up");
}

#[test]
fn a_request_for_a_reboot_of_a_host_that_is_off_is_served_already() {
    for state in ["available", "provisioned"] {
        let mut model = on(state);
        model.host.spec.online = false;
        model.edited();
        model.settle();
        model.annotate(ANNOTATION_REBOOT, "");
        model.settle();
        assert!(!model.annotated(ANNOTATION_REBOOT), "{state}");
        assert_eq!(model.power, PowerState::Off, "{state}");
    }
}

#[test]
fn power_that_must_not_go_off_is_reset() {
    let mut model = on("provisioned");
    model.host.spec.disable_power_off = true;
    model.annotate(ANNOTATION_REBOOT, "");
    model.annotate(HOLDER, "");
    model.settle();
    assert_eq!(model.bmc, ["reset"]);
    assert!(!model.annotated(ANNOTATION_REBOOT) && !model.annotated(HOLDER));
    model.host.spec.online = false;
    model.edited();
    let (reason, _) = model.settle();
    assert!(reason.contains("disablePowerOff"), "{reason}");
    assert_eq!((model.power, model.bmc.as_slice()), (PowerState::On, &["reset"][..]));
}

#[test]
fn nor_does_a_deployment_power_it_off() {
    for (disabled, off) in [(true, false), (false, true)] {
        let mut model = Model::in_state("provisioning");
        model.host.spec.disable_power_off = disabled;
        model.walk_until(|model| {
            let steps = model.intent.iter().flat_map(|intent| &intent.spec.steps);
            steps.clone().any(|step| step.action == StepAction::WriteImage)
        });
        let steps = &model.intent.as_ref().expect("an intent").spec.steps;
        assert_eq!(steps.iter().any(|step| step.action == StepAction::PowerOff), off, "{steps:?}");
        model.run_until("provisioned");
        assert_eq!(model.boots.last(), Some(&BootDevice::Disk));
        assert!(!model.bmc.contains(&"off"), "{:?}", model.bmc);
    }
}

#[test]
fn insisting_on_a_reboot_begins_an_operation_again() {
    for (state, purpose) in [("inspecting", "inspect@"), ("provisioning", "provision@")] {
        let mut model = Model::in_state(state);
        model.settle();
        model.now += Duration::from_secs(5);
        model.agent_acts();
        let before = model.intent.clone().expect("an intent").spec;
        model.forget_what_happened();
        // Without force it waits for its time.
        model.annotate(ANNOTATION_REBOOT, "");
        model.settle();
        assert_eq!(model.boots, [], "{state}");
        model.annotate(ANNOTATION_REBOOT, r#"{"force":true}"#);
        model.settle();
        let after = model.intent.clone().expect("an intent").spec;
        assert_eq!(model.boots, [BootDevice::Pxe], "{state}");
        assert!(after.generation > before.generation && after.operation.starts_with(purpose), "{after:?}");
        assert_ne!(after.operation, before.operation);
        assert!(!model.annotated(ANNOTATION_REBOOT), "{state}: removed once it has begun again");
        model.settle();
        assert_eq!(model.boots.len(), 1, "{state}: once");
        model.run_until("provisioned");
    }
}

#[test]
fn insisting_on_a_reboot_ends_a_rest() {
    let mut model = Model::in_state("inspecting");
    model.agent = false;
    let (_, until) = model.settle();
    model.now = until;
    model.settle();
    assert_eq!(model.status().error_type, Some(ErrorType::Inspection));
    model.forget_what_happened();
    model.annotate(ANNOTATION_REBOOT, r#"{"force":true}"#);
    model.settle();
    assert_eq!(model.boots, [BootDevice::Pxe]);
    assert_eq!(model.status().error_type, None);
}

#[test]
fn insisting_to_hold_a_host_off_interrupts_an_operation() {
    let mut model = Model::in_state("provisioning");
    model.settle();
    model.agent_acts();
    model.annotate(HOLDER, r#"{"force":true}"#);
    let (reason, _) = model.settle();
    assert!(reason.contains(HOLDER), "{reason}");
    assert_eq!((model.state(), model.power), ("provisioning", PowerState::Off));
    let intent = &model.intent.as_ref().expect("an intent").spec;
    assert_eq!((intent.target, intent.steps.len()), (BootTarget::Disk, 0), "no agent may go on writing");
    model.unannotate(HOLDER);
    model.run_until("provisioned");
}

#[test]
fn a_failure_is_told_and_the_next_try_is_a_hard_one() {
    let mut model = on("provisioned");
    model.host.spec.online = false;
    model.edited();
    model.bmc_fault = Some("accepted power off but still reports on".into());
    model.settle();
    let status = model.status();
    assert_eq!((status.error_type, status.error_count), (Some(ErrorType::PowerManagement), 1));
    assert_eq!(model.bmc, ["soft off"]);
    model.bmc_fault = None;
    let (_, until) = model.settle();
    model.now = until;
    model.settle();
    assert_eq!(model.bmc, ["soft off", "read", "off"]);
    let status = model.status();
    assert_eq!((status.error_type, status.error_count, status.powered_on), (None, 0, false));
}
