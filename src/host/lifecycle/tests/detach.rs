//! docs/design/host.md, "Detachment".

use super::*;
use crate::api::metal3::ANNOTATION_DETACHED;

fn is_detached(model: &Model) -> bool {
    model.status().operational_status == OperationalStatus::Detached
}

#[test]
fn section_2_7_where_it_is_allowed() {
    let rows = [
        ("provisioned", true, true),
        ("externally provisioned", true, true),
        ("available", true, true),
        ("ready", true, true),
        ("registering", false, true),
        ("inspecting", false, true),
        ("preparing", false, true),
        ("provisioning", false, true),
        ("deprovisioning", false, true),
        ("powering off before delete", false, true),
    ];
    for (state, calmly, by_force) in rows {
        for (value, expected) in [("", calmly), ("any words", calmly), (r#"{"force":true}"#, by_force)] {
            let mut model = Model::in_state(state);
            model.host.metadata.deletion_timestamp = None;
            let before = model.state();
            model.annotate(ANNOTATION_DETACHED, value);
            for _ in 0..3 {
                let transition = model.transition();
                model.store(transition.status, transition.notes);
                if let AfterStore::Do(effect) = &transition.next
                    && !is_detached(&model)
                {
                    model.apply(effect);
                }
            }
            assert_eq!(is_detached(&model), expected, "{state} {value}");
            if expected {
                let kept = if before == "ready" { "available" } else { before };
                assert_eq!(model.state(), kept, "the state stays");
            }
        }
    }
}

#[test]
fn an_operation_comes_to_its_end_before_the_host_is_detached() {
    let mut model = Model::in_state("provisioning");
    model.annotate(ANNOTATION_DETACHED, "");
    model.run_until("provisioned");
    let asked = model.bmc.len();
    let (reason, until) = model.settle();
    assert!(is_detached(&model) && reason.contains("detached"), "{reason}");
    assert_eq!(until, model.now + Duration::from_secs(600));
    for _ in 0..3 {
        model.now += Duration::from_secs(3600);
        model.power_known = false;
        model.settle();
    }
    assert_eq!(model.bmc.len(), asked, "nothing is asked of its BMC");
}

#[test]
fn by_force_an_agent_is_ended_too() {
    let mut model = Model::in_state("provisioning");
    model.settle();
    model.agent_acts();
    let before = model.intent.clone().expect("an intent").spec.generation;
    let power = model.power;
    model.forget_what_happened();
    model.annotate(ANNOTATION_DETACHED, r#"{"force":true}"#);
    model.settle();
    let intent = model.intent.clone().expect("an intent").spec;
    assert!(is_detached(&model));
    assert_eq!((intent.target, intent.steps.len(), intent.generation), (BootTarget::Disk, 0, before + 1));
    assert!(model.bmc.is_empty() && model.power == power, "the machine is left as it is");
    model.unannotate(ANNOTATION_DETACHED);
    model.run_until("provisioned");
    assert!(!model.states.contains(&"registering"), "{:?}", model.states);
}

#[test]
fn coming_back_registers_the_machine_in_place() {
    for state in ["provisioned", "externally provisioned", "available"] {
        let mut model = Model::in_state(state);
        model.annotate(ANNOTATION_DETACHED, "");
        model.settle();
        model.forget_what_happened();
        model.power_known = false;
        model.unannotate(ANNOTATION_DETACHED);
        // Its BMC is another one by now, with other credentials.
        model.host.spec.bmc.as_mut().expect("a BMC").address = "ipmi://10.0.0.99".into();
        model.edited();
        model.access =
            Access::Ready { secret: SecretName { namespace: "ns".into(), name: "s".into() }, version: "9".into() };
        model.settle();
        let status = model.status();
        assert_eq!((model.state(), status.operational_status), (state, OperationalStatus::OK));
        assert_eq!(status.provisioning.id, "uid");
        assert_eq!(status.good_credentials.credentials_version.as_deref(), Some("9"));
        assert!(model.bmc.contains(&"read"), "{state}: {:?}", model.bmc);
        assert_eq!(model.boots, [], "{state}");
    }
    // An error that it went with is still there.
    let mut failed = Model::in_state("provisioned");
    let (status, note) = fail(&failed.status(), ErrorType::PowerManagement, "why");
    failed.store(status, vec![note]);
    failed.annotate(ANNOTATION_DETACHED, "");
    failed.settle();
    assert!(is_detached(&failed), "also while it rests");
    failed.unannotate(ANNOTATION_DETACHED);
    let transition = failed.transition();
    assert_eq!(transition.status.operational_status, OperationalStatus::Error);
}

#[test]
fn what_was_clean_is_wiped_again_before_it_is_written_when_the_host_was_away() {
    // by force, cleaning; how often the disks are wiped
    for (state, cleans, wipes) in [("available", true, 1), ("available", false, 0), ("provisioning", true, 1)] {
        let mut model = Model::in_state(state);
        assert!(model.intent.as_ref().expect("an intent").spec.disks_clean, "{state}");
        model.annotate(ANNOTATION_DETACHED, r#"{"force":true}"#);
        model.settle();
        model.unannotate(ANNOTATION_DETACHED);
        if !cleans {
            model.host.spec.automated_cleaning_mode = Some(crate::api::metal3::AutomatedCleaningMode::Disabled);
        }
        model.settle();
        if state == "available" {
            assert_eq!((model.state(), model.boots.as_slice()), ("available", &[][..]), "nothing is done before");
            model.want_image(Some("http://x/a.qcow2"));
        }
        model.forget_what_happened();
        model.run_until("provisioned");
        assert_eq!(model.wipes, wipes, "{state} {cleans}: {:?}", model.states);
        let events = model.events.iter().filter(|event| **event == "ProvisioningError").count();
        assert_eq!((events, model.status().provisioning_fail_count), (0, 0), "{state}");
    }
}

#[test]
fn a_machine_that_somebody_else_has_by_now_is_not_taken_back() {
    let mut model = Model::in_state("provisioned");
    model.annotate(ANNOTATION_DETACHED, "");
    model.settle();
    model.unannotate(ANNOTATION_DETACHED);
    model.mac_owner = Some("ns/successor".into());
    model.settle();
    let status = model.status();
    assert_eq!(status.error_type, Some(ErrorType::ProvisionedRegistration));
    assert!(status.error_message.contains("ns/successor"), "{}", status.error_message);
}

#[test]
fn a_failure_to_detach_has_its_own_error() {
    let mut model = Model::in_state("available");
    let (status, note) = fail(&model.status(), ErrorType::Detach, "why");
    model.store(status, vec![note]);
    model.annotate(ANNOTATION_DETACHED, "");
    assert!(matches!(model.transition().next, AfterStore::Wait { .. }), "it rests");
    model.unannotate(ANNOTATION_DETACHED);
    model.settle();
    assert_eq!((model.status().error_type, model.status().error_count), (None, 0));
}

#[test]
fn paused_is_a_total_stop() {
    for state in ["", "registering", "inspecting", "available", "provisioning", "provisioned", "deprovisioning"] {
        let mut model = Model::in_state(state);
        model.annotate("baremetalhost.metal3.io/paused", "metal3.io/capm3");
        let before = model.status();
        let transition = model.transition();
        assert_eq!(
            (transition.next, transition.status, transition.notes),
            (AfterStore::Paused, before.clone(), vec![]),
            "{state}"
        );
        model.delete();
        let transition = model.transition();
        assert_eq!(
            (transition.next, transition.status, transition.notes),
            (AfterStore::Paused, before, vec![]),
            "{state}"
        );
    }
}
