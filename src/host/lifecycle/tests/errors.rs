//! docs/design/host.md, "Errors and back-off" and "Access to the BMC".

use super::*;
use crate::api::metal3::{ANNOTATION_DETACHED, InspectionMode};

#[test]
fn each_effect_has_its_error() {
    use ProvisioningState as State;
    let rows = [
        (Effect::ReadPower, State::Provisioned, ErrorType::Registration),
        (Effect::ReadPower, State::Registering, ErrorType::Registration),
        (Effect::Boot(BootDevice::Pxe), State::Inspecting, ErrorType::Inspection),
        (Effect::Boot(BootDevice::Pxe), State::Preparing, ErrorType::Preparation),
        (Effect::Boot(BootDevice::Pxe), State::Provisioning, ErrorType::PowerManagement),
        (Effect::Boot(BootDevice::Pxe), State::Deprovisioning, ErrorType::Provisioning),
        (Effect::InspectOutOfBand { operation: "i".into() }, State::Inspecting, ErrorType::Inspection),
        (Effect::PowerOn, State::Provisioned, ErrorType::PowerManagement),
        (Effect::PowerOff { soft: true }, State::Available, ErrorType::PowerManagement),
        (Effect::PowerOff { soft: false }, State::PoweringOffBeforeDelete, ErrorType::PowerManagement),
        (Effect::Reboot { served: Vec::new() }, State::Provisioned, ErrorType::PowerManagement),
        (
            Effect::Intent(Box::new(BootIntentSpec { operation: DETACH.into(), ..BootIntentSpec::default() })),
            State::Provisioned,
            ErrorType::Detach,
        ),
    ];
    for (effect, state, expected) in rows {
        assert_eq!(effect.error_type(state), expected, "{effect:?} {state:?}");
    }
}

#[test]
fn each_error_has_its_event_and_counts() {
    let rows = [
        (ErrorType::ProvisionedRegistration, "ProvisionedRegistrationError"),
        (ErrorType::Registration, "RegistrationError"),
        (ErrorType::Inspection, "InspectionError"),
        (ErrorType::Preparation, "PreparationError"),
        (ErrorType::Provisioning, "ProvisioningError"),
        (ErrorType::PowerManagement, "PowerManagementError"),
        (ErrorType::Servicing, "ServicingError"),
        (ErrorType::Detach, "DetachError"),
    ];
    for (error_type, reason) in rows {
        let before = BareMetalHostStatus { error_count: 2, ..BareMetalHostStatus::default() };
        let (status, note) = fail(&before, error_type, "why");
        assert_eq!((note.reason, note.message.as_str(), note.warning), (reason, "why", true));
        assert_eq!((status.error_count, status.error_message.as_str()), (3, "why"));
        assert_eq!((status.operational_status, status.error_type), (OperationalStatus::Error, Some(error_type)));
    }
}

#[test]
fn an_error_holds_up_what_failed_and_nothing_else() {
    // state, error, whether nothing is done until the rest is over
    let rows = [
        ("available", ErrorType::Registration, true),
        ("available", ErrorType::PowerManagement, true),
        ("available", ErrorType::Provisioning, false),
        ("available", ErrorType::Inspection, false),
        ("inspecting", ErrorType::Inspection, true),
        ("preparing", ErrorType::Preparation, true),
        ("provisioning", ErrorType::Provisioning, true),
        ("deprovisioning", ErrorType::Provisioning, true),
        ("provisioned", ErrorType::ProvisionedRegistration, true),
    ];
    for (state, error_type, holds) in rows {
        let mut model = Model::in_state(state);
        let (status, note) = fail(&model.status(), error_type, "why");
        model.store(status, vec![note]);
        let transition = model.transition();
        let rests = matches!(&transition.next, AfterStore::Wait { reason, .. } if reason.starts_with("next try at"));
        assert_eq!(rests, holds, "{state} {error_type:?} {:?}", transition.next);
        // A corrected spec is tried at once.
        model.edited();
        let transition = model.transition();
        let rests = matches!(&transition.next, AfterStore::Wait { reason, .. } if reason.starts_with("next try at"));
        assert!(!rests, "{state} {error_type:?}");
    }
}

#[test]
fn a_missing_secret_is_told_and_looked_for_again() {
    let mut model = Model::new();
    model.access = Access::Broken("there is no secret s".into());
    let (reason, until) = model.settle();
    let status = model.status();
    assert_eq!((model.state(), status.error_type), ("registering", Some(ErrorType::Registration)));
    assert_eq!((status.error_count, status.error_message.as_str()), (1, "there is no secret s"));
    assert!(model.events.contains(&"BMCCredentialError"), "{:?}", model.events);
    assert!(reason.contains("there is no secret s"));
    model.now = until;
    model.settle();
    assert_eq!(model.status().error_count, 1, "the same fault is no further failure");
    model.access = Model::new().access;
    model.run_until("available");
}

#[test]
fn new_credentials_are_registered_in_place_in_any_state() {
    for state in ["inspecting", "preparing", "available", "provisioning", "provisioned", "externally provisioned"] {
        for (name, version) in [("s", "2"), ("other", "1")] {
            let mut model = Model::in_state(state);
            // No agent answers for the machine.
            if let Some(intent) = &mut model.intent {
                intent.status = None;
            }
            model.access = Access::Ready {
                secret: SecretName { namespace: "ns".into(), name: name.into() },
                version: version.into(),
            };
            model.power_known = false;
            model.bmc_fault = Some("refuses the credentials".into());
            model.walk_to(state);
            model.settle();
            let status = model.status();
            assert_eq!((model.state(), status.error_type), (state, Some(ErrorType::Registration)));
            assert_ne!(status.good_credentials, status.tried_credentials, "{state}");
            model.bmc_fault = None;
            let (_, until) = model.settle();
            model.now = until;
            model.settle();
            let status = model.status();
            assert_ne!(status.error_type, Some(ErrorType::Registration), "{state}");
            assert_eq!(status.good_credentials, status.tried_credentials, "{state}");
            assert_eq!(status.good_credentials.credentials_version.as_deref(), Some(version), "{state}");
            assert!(model.events.contains(&"BMCAccessValidated"), "{state}");
            assert!(!model.states.contains(&"registering"), "{state}: {:?}", model.states);
        }
    }
}

#[test]
fn a_corrected_secret_ends_the_rest_of_what_the_bmc_refused() {
    // error, whether the BMC's login may be why
    let rows = [
        (ErrorType::Registration, true),
        (ErrorType::ProvisionedRegistration, false),
        (ErrorType::PowerManagement, true),
    ];
    for (error_type, ends) in rows {
        let mut model = Model::in_state("provisioned");
        let (status, note) = fail(&model.status(), error_type, "why");
        model.store(status, vec![note]);
        assert!(matches!(model.transition().next, AfterStore::Wait { .. }), "{error_type:?}");
        let secret = SecretName { namespace: "ns".into(), name: "s".into() };
        model.access = Access::Ready { secret, version: "2".into() };
        model.settle();
        assert_eq!(model.status().error_type.is_none(), ends, "{error_type:?}");
    }
}

#[test]
fn a_host_that_loses_its_bmc_address_says_so() {
    let mut model = Model::in_state("provisioned");
    model.access = Access::None;
    model.settle();
    let status = model.status();
    assert_eq!((model.state(), status.error_type), ("provisioned", Some(ErrorType::Registration)));
    assert_eq!(status.error_message, "spec.bmc.address is missing");
}

#[test]
fn a_bmc_that_knows_nothing_of_the_hardware_fails_the_fast_inspection() {
    let mut model = Model::in_state("registering");
    model.host.spec.inspection_mode = Some(InspectionMode::Fast);
    model.walk_to("inspecting");
    model.bmc_fault = Some("cannot report the machine's hardware".into());
    model.settle();
    let status = model.status();
    assert_eq!((model.state(), status.error_type), ("inspecting", Some(ErrorType::Inspection)));
    model.bmc_fault = None;
    let (_, until) = model.settle();
    model.now = until;
    model.walk_to("preparing");
    assert!(!model.bmc.contains(&"boot"));
}

#[test]
fn a_boot_that_reached_another_machine_fails_with_that_and_is_tried_again() {
    for (state, error_type) in [
        ("inspecting", ErrorType::Inspection),
        ("preparing", ErrorType::Preparation),
        ("deprovisioning", ErrorType::Provisioning),
    ] {
        let mut model = Model::in_state(state);
        // The ramdisk was not opened by anybody yet.
        if let Some(intent) = &mut model.intent {
            intent.status = None;
            intent.spec.target = BootTarget::Disk;
        }
        model.settle();
        let intent = model.intent.as_mut().expect("an intent");
        assert_eq!(intent.spec.target, BootTarget::Ramdisk, "{state}");
        let result = StepResult {
            id: intent.spec.steps[0].id.clone(),
            message: "this is another machine".into(),
            ..StepResult::default()
        };
        intent.status.get_or_insert_default().results = vec![result];
        let before = intent.spec.generation;
        let (_, until) = model.settle();
        let status = model.status();
        assert_eq!((status.error_type, status.error_message.as_str()), (Some(error_type), "this is another machine"));
        model.now = until;
        model.settle();
        assert_eq!(model.intent.as_ref().expect("an intent").spec.generation, before + 1, "{state}");
    }
}

#[test]
fn nothing_boots_the_ramdisk_while_another_host_has_its_boot_address() {
    for (state, error_type) in
        [("inspecting", ErrorType::Registration), ("deprovisioning", ErrorType::ProvisionedRegistration)]
    {
        let mut model = Model::in_state(state);
        model.walk_until(|model| model.boots.last() == Some(&BootDevice::Pxe));
        // The address was given to the host only now, and is another's.
        model.mac_owner = Some("BareMetalHost ns/other".into());
        let (_, until) = model.settle();
        let intent = &model.intent.as_ref().expect("an intent").spec;
        assert_eq!((intent.target, intent.steps.len()), (BootTarget::Disk, 0), "{state}: what boots now is left alone");
        let status = model.status();
        assert_eq!((model.state(), status.error_type), (state, Some(error_type)));
        assert!(status.error_message.contains("is already that of BareMetalHost ns/other"), "{}", status.error_message);
        assert_eq!(status.provisioning.id, "", "{state}: who gets another's address is registered no more");
        model.forget_what_happened();
        model.now = until;
        model.settle();
        assert_eq!((model.boots.len(), model.status().error_count), (0, 2), "{state}");
        model.mac_owner = None;
        model.want_image(None);
        model.run_until("available");
        assert!(model.boots.contains(&BootDevice::Pxe), "{state}");
    }
}

#[test]
fn a_session_that_was_opened_goes_on_whatever_another_host_names() {
    let mut model = Model::in_state("inspecting");
    model.settle();
    model.agent_acts();
    model.mac_owner = Some("ns/other".into());
    model.run_until("preparing");
    assert_eq!(model.status().error_type, None);
}

#[test]
fn nothing_boots_a_live_iso_while_another_host_has_its_boot_address() {
    let mut model = Model::in_state("provisioning");
    if let Some(image) = &mut model.host.spec.image {
        image.format = Some("live-iso".into());
    }
    model.image = None;
    model.mac_owner = Some("ns/other".into());
    model.settle();
    assert_eq!((model.boots.as_slice(), model.state()), (&[][..], "provisioning"));
    assert!(model.status().error_message.contains("ns/other"), "{}", model.status().error_message);
}

#[test]
fn what_a_host_is_registered_with_is_recorded_and_counts_for_nothing_else() {
    let record = |model: &Model| model.intent.as_ref().and_then(BootIntent::registration).unwrap_or_default();
    let fits = |model: &Model| {
        let mac = model.host.spec.boot_mac_address.as_deref().and_then(|mac| mac.parse().ok());
        record(model).fits(mac, &model.host.spec.bmc.as_ref().expect("a BMC").address)
    };
    let mut model = Model::in_state("registering");
    assert!(!fits(&model), "nothing let it in yet");
    model.want_image(None);
    model.run_until("available");
    let first = record(&model);
    assert!(fits(&model) && first.since > 0);
    model.now += Duration::from_secs(3600);
    model.settle();
    assert_eq!(record(&model), first, "it lasts, and is not renewed");
    // It names another address now. While somebody has that, or its BMC does not answer, nothing of it is recorded.
    model.host.spec.boot_mac_address = Some("02:00:00:00:00:09".into());
    model.edited();
    assert!(!fits(&model));
    model.mac_owner = Some("ns/other".into());
    model.settle();
    assert_eq!((record(&model), model.status().provisioning.id.as_str()), (first.clone(), ""));
    model.mac_owner = None;
    model.edited();
    model.settle();
    assert!(fits(&model) && record(&model).since > first.since);
    assert_eq!(model.status().provisioning.id, "uid");
    // Detached, it keeps its machine; when it gets another BMC meanwhile, it keeps the address since then.
    let second = record(&model);
    model.annotate(ANNOTATION_DETACHED, "");
    model.settle();
    assert_eq!(record(&model), second);
    model.host.spec.bmc.as_mut().expect("a BMC").address = "ipmi://10.0.0.7".into();
    model.edited();
    model.unannotate(ANNOTATION_DETACHED);
    model.settle();
    assert!(fits(&model) && record(&model).since == second.since);
}

/// Of what was noted, only what could have been noted since is believed.
#[test]
fn a_clock_that_is_set_back_prolongs_nothing() {
    let day = Duration::from_secs(24 * 3600);
    let rests = |model: &Model| matches!(&model.transition().next, AfterStore::Wait { reason, .. } if reason.starts_with("next try at"));

    let mut failed = Model::in_state("provisioned");
    let (status, note) = fail(&failed.status(), ErrorType::PowerManagement, "why");
    failed.store(status, vec![note]);
    assert!(rests(&failed));
    failed.now -= Duration::from_secs(30);
    assert!(rests(&failed), "a little is nothing");
    failed.now -= day;
    assert!(!rests(&failed));
    failed.held_until = Some(failed.now + day);
    assert!(!rests(&failed), "nobody is held up for so long");

    // Powered on, and not called yet.
    let mut booting = Model::in_state("inspecting");
    booting.agent = false;
    booting.settle();
    assert!(booting.intent.as_ref().is_some_and(|intent| intent.spec.started.is_some()));
    booting.now -= day;
    let (reason, _) = booting.settle();
    assert!(reason.starts_with("next try at"), "{reason}");

    // An agent that was heard last when the clock was ahead.
    let mut silent = Model::in_state("provisioning");
    silent.walk_until(|model| {
        let intent = model.intent.as_ref().expect("an intent");
        let planned = intent.spec.steps.iter().any(|step| step.action == StepAction::WriteImage);
        planned && intent.status.as_ref().is_some_and(|status| status.session.is_some())
    });
    let (reason, _) = silent.settle();
    assert!(reason.starts_with("writing the image"), "{reason}");
    silent.now -= day;
    let (reason, _) = silent.settle();
    assert!(!reason.starts_with("writing the image"), "{reason}");
}
