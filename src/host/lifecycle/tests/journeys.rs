//! Whole lives, and what goes wrong in them.

use super::*;
use crate::api::metal3::{AutomatedCleaningMode, InspectionMode};
use crate::api::slipway::ANNOTATION_FIRST_BOOT;
use crate::config::FirstBoot;

#[test]
fn from_nothing_to_provisioned_in_one_ramdisk_boot() {
    let mut model = Model::with_image("http://x/a.qcow2");
    model.run_until("provisioned");
    assert_eq!(model.states, ["registering", "inspecting", "preparing", "available", "provisioning", "provisioned"]);
    assert_eq!(model.boots, [BootDevice::Pxe, BootDevice::Disk]);
    let status = model.status();
    assert_eq!(status.provisioning.image, model.host.spec.image);
    assert_eq!((status.error_count, status.error_message.as_str()), (0, ""));
    assert!(status.hardware.is_some() && status.powered_on);
    for event in [
        "Registered",
        "BMCAccessValidated",
        "InspectionStarted",
        "InspectionComplete",
        "Cleaned",
        "ImageRequested",
        "ImageReady",
        "ProvisioningStarted",
        "ImageWritten",
        "ProvisioningComplete",
    ] {
        assert_eq!(model.events.iter().filter(|seen| **seen == event).count(), 1, "{event}: {:?}", model.events);
    }
    assert_eq!(model.events.iter().filter(|seen| **seen == "BootStarted").count(), 2, "{:?}", model.events);
    assert!(!model.intent.as_ref().expect("an intent").spec.disks_clean);
}

#[test]
fn a_system_starts_by_kexec_where_that_is_asked_for() {
    for (setting, annotation, boots) in [
        (FirstBoot::Kexec, None, &[BootDevice::Pxe][..]),
        (FirstBoot::Firmware, Some("kexec"), &[BootDevice::Pxe]),
        (FirstBoot::Kexec, Some("firmware"), &[BootDevice::Pxe, BootDevice::Disk]),
        (FirstBoot::Firmware, Some("otherwise"), &[BootDevice::Pxe, BootDevice::Disk]),
    ] {
        let mut model = Model::with_image("http://x/a.qcow2");
        model.settings.first_boot = setting;
        model.host.metadata.annotations =
            annotation.map(|value| [(ANNOTATION_FIRST_BOOT.to_owned(), value.to_owned())].into());
        model.run_until("provisioned");
        assert_eq!(model.boots, boots, "{setting:?} {annotation:?}");
        let intent = model.intent.clone().expect("an intent");
        assert_eq!(intent.spec.target, BootTarget::Disk, "a later boot from the network goes to the disk");
        assert!(intent.spec.started.is_some() && model.power == PowerState::On);
        model.settle();
        assert_eq!(model.boots, boots, "nothing restarts the system");
    }
}

#[test]
fn removing_the_image_wipes_the_disks_and_brings_the_host_back() {
    let mut model = Model::with_image("http://x/a.qcow2");
    model.run_until("provisioned");
    model.want_image(None);
    model.run_until("available");
    assert_eq!(model.boots, [BootDevice::Pxe, BootDevice::Disk, BootDevice::Pxe]);
    assert!(model.intent.as_ref().expect("an intent").spec.disks_clean);
    assert_eq!(model.status().provisioning.image, None);
    model.want_image(Some("http://x/b.qcow2"));
    model.run_until("provisioned");
    assert_eq!(model.boots.len(), 4, "the agent that wiped is still up: only the disk boot is new");
}

#[test]
fn a_new_url_deprovisions_and_a_new_checksum_does_not() {
    let mut model = Model::with_image("http://x/a.qcow2");
    model.run_until("provisioned");
    if let Some(image) = &mut model.host.spec.image {
        image.checksum = Some("other".into());
    }
    model.edited();
    model.settle();
    assert_eq!(model.state(), "provisioned");
    model.want_image(Some("http://x/b.qcow2"));
    model.settle();
    assert_eq!(model.state(), "deprovisioning");
    model.run_until("provisioned");
    assert_eq!(model.status().provisioning.image.expect("an image").url, "http://x/b.qcow2");
}

#[test]
fn deleting_ends_from_every_state() {
    for state in [
        "unmanaged",
        "registering",
        "inspecting",
        "preparing",
        "available",
        "provisioning",
        "provisioned",
        "deprovisioning",
    ] {
        for broken in [None, Some("the BMC is on fire")] {
            let mut model = Model::in_state(state);
            model.bmc_fault = broken.map(str::to_owned);
            model.power_known = false;
            model.delete();
            let begun = model.now;
            model.run_until("gone");
            assert!(model.gone, "{state} {broken:?}");
            let hours = (model.now - begun).total(jiff::Unit::Hour).expect("hours");
            assert!(hours < 2.0, "{state} {broken:?}: {hours} h");
        }
    }
}

#[test]
fn what_goes_wrong_is_said_once_then_rests_then_is_tried_again() {
    let mut model = Model::new();
    model.bmc_fault = Some("the BMC at 10.0.0.1:623 refuses the credentials: wrong password".into());
    let (reason, until) = model.settle();
    assert_eq!(model.state(), "registering");
    let status = model.status();
    assert_eq!(status.operational_status, OperationalStatus::Error);
    assert_eq!(status.error_type, Some(ErrorType::Registration));
    assert_eq!(status.error_count, 1);
    assert!(status.error_message.contains("wrong password") && reason.contains("wrong password"));
    assert_eq!(until, model.now + model.settings.retry.0);
    model.settle();
    assert_eq!(model.status().error_count, 1, "it rests");
    model.now = until;
    let (_, until) = model.settle();
    assert_eq!(model.status().error_count, 2);
    assert_eq!(until, model.now + model.settings.retry.0 * 2);
    // Another version of the secret ends the rest at once.
    model.bmc_fault = None;
    model.access =
        Access::Ready { secret: SecretName { namespace: "ns".into(), name: "s".into() }, version: "2".into() };
    model.settle();
    assert_eq!(model.state(), "inspecting");
    assert_eq!(model.status().good_credentials.credentials_version.as_deref(), Some("2"));
}

#[test]
fn a_machine_that_never_calls_back_fails_and_gets_another_boot() {
    let mut model = Model::new();
    model.agent = false;
    let (reason, until) = model.settle();
    assert!(reason.contains("first call"), "{reason}");
    model.now = until;
    let (reason, until) = model.settle();
    assert!(reason.contains("did not call back within 15m of being powered on"), "{reason}");
    assert_eq!(model.status().error_type, Some(ErrorType::Inspection));
    let before = model.intent.as_ref().expect("an intent").spec.generation;
    model.now = until;
    model.agent = true;
    model.settle();
    assert_eq!(model.intent.as_ref().expect("an intent").spec.generation, before + 1);
    model.run_until("available");
    assert_eq!(model.boots.len(), 2);
    assert_eq!(model.status().error_type, None);
}

#[test]
fn an_agent_that_falls_silent_is_noticed() {
    let mut model = Model::new();
    model.settle();
    assert!(model.agent_acts(), "it opens its session");
    model.agent = false;
    let (_, until) = model.settle();
    model.now = until;
    let (reason, _) = model.settle();
    assert!(reason.contains("silent"), "{reason}");
    model.agent = true;
    model.run_until("available");
}

#[test]
fn an_agent_whose_power_was_cut_for_its_own_boot_is_not_waited_for() {
    for (power, boots) in [(PowerState::Off, 2), (PowerState::On, 1)] {
        let mut model = Model::new();
        model.settle();
        assert!(model.agent_acts(), "it opens its session");
        // The process ended before it noted the start.
        model.intent.as_mut().expect("an intent").spec.started = None;
        model.power = power;
        model.settle();
        assert_eq!(model.boots.len(), boots, "{power:?}");
        assert_eq!(model.status().error_type, None);
        model.run_until("available");
    }
}

#[test]
fn a_failed_step_is_cleaned_up_and_the_image_is_given_up_after_the_limit() {
    let mut model = Model::with_image("http://x/a.qcow2");
    model.settings.provisioning_retries = 3;
    model.failing = vec![(StepAction::WriteImage, "no disk matches the root device hints".into())];
    for _ in 0..60 {
        model.settle();
        if !model.agent_acts() {
            let (_, until) = model.settle();
            model.now = until.max(model.now + Duration::from_secs(1));
        }
        // The agent goes on calling while the host rests.
        if let Some(session) = model.intent.as_mut().and_then(|i| i.status.as_mut()).and_then(|s| s.session.as_mut()) {
            session.last_seen = Some(Time(model.now));
        }
    }
    let status = model.status();
    assert_eq!(model.state(), "available");
    assert_eq!(status.provisioning_fail_count, 3);
    assert!(status.error_message.contains("gave up after 3"), "{}", status.error_message);
    assert_eq!(model.boots, [BootDevice::Pxe], "every try used the agent that was up");
    // A corrected spec is tried at once.
    model.failing.clear();
    model.want_image(Some("http://x/b.qcow2"));
    model.run_until("provisioned");
}

#[test]
fn rows_of_single_decisions() {
    let mut disabled = Model::new();
    disabled.host.spec.inspection_mode = Some(InspectionMode::Disabled);
    disabled.host.spec.automated_cleaning_mode = Some(AutomatedCleaningMode::Disabled);
    disabled.run_until("available");
    assert_eq!(disabled.states, ["registering", "preparing", "available"]);
    assert!(disabled.boots.is_empty());

    let mut adopted = Model::new();
    adopted.host.spec.externally_provisioned = true;
    adopted.run_until("externally provisioned");
    assert!(adopted.boots.is_empty());

    let mut unmanaged = Model::new();
    unmanaged.host.spec.bmc = None;
    unmanaged.settle();
    assert_eq!(unmanaged.state(), "unmanaged");
    assert_eq!(unmanaged.status().operational_status, OperationalStatus::Discovered);

    let mut paused = Model::new();
    paused.annotate("baremetalhost.metal3.io/paused", "");
    paused.settle();
    assert_eq!(paused.state(), "");

    let mut full = Model::new();
    full.busy = full.settings.busy_limit;
    full.settle();
    assert_eq!((full.state(), full.status().operational_status), ("registering", OperationalStatus::Delayed));
    full.busy = 0;
    full.run_until("available");

    let mut offline = Model::with_image("http://x/a.qcow2");
    offline.host.spec.online = false;
    offline.run_until("available");
    offline.settle();
    assert_eq!((offline.state(), offline.power), ("available", PowerState::Off));
    assert_eq!(
        offline.intent.as_ref().expect("an intent").spec.target,
        BootTarget::Disk,
        "no session outlives the power"
    );

    let mut again = Model::new();
    again.run_until("available");
    again.annotate("inspect.metal3.io", "");
    again.settle();
    assert_eq!(again.state(), "inspecting");
    assert!(!again.annotated("inspect.metal3.io"));
    again.run_until("available");

    let mut missing = Model::new();
    missing.run_until("available");
    missing.want_image(Some("http://x/a.qcow2"));
    missing.image = Some(Image {
        status: Some(ImageStatus {
            phase: ImagePhase::Failed,
            message: Some("404 Not Found".into()),
            ..ImageStatus::default()
        }),
        ..Image::new(
            "i",
            ImageSpec { url: "http://x/a.qcow2".into(), checksum: Some("c".into()), ..ImageSpec::default() },
        )
    });
    missing.settle();
    assert!(missing.status().error_message.contains("404"), "{:?}", missing.status());
}

#[test]
fn delays_double_and_stop_doubling() {
    let first = Duration::from_secs(60);
    let minutes: Vec<u64> = [0, 1, 2, 3, 10, 50].map(|n| retry_delay(first, n).as_secs() / 60).into();
    assert_eq!(minutes, [1, 1, 2, 4, 512, 512]);
}

#[test]
fn images_are_named_by_their_source() {
    let image = |url: &str| HostImage { url: url.into(), ..HostImage::default() };
    let name = image_name(&image("http://x/Debian_12.qcow2?a=b"));
    // By this name it is known to be made for hosts, and for no others: another name would publish what is there.
    assert_eq!(name, "debian-12-qcow2-239237c91e247325");
    assert_eq!(name, image_name(&image("http://x/Debian_12.qcow2?a=b")));
    assert_ne!(name, image_name(&image("http://y/Debian_12.qcow2?a=b")));
    assert!(image_name(&image("http://x/")).starts_with("image-"));
}

#[test]
fn cancelling_while_the_agent_writes_drops_its_steps() {
    for cleaning in [None, Some(AutomatedCleaningMode::Disabled)] {
        let mut model = Model::with_image("http://x/a.qcow2");
        model.host.spec.automated_cleaning_mode = cleaning;
        model.run_until("provisioning");
        model.settle();
        let writing = |model: &Model| {
            let steps = &model.intent.as_ref().expect("an intent").spec.steps;
            steps.iter().any(|step| step.action == StepAction::WriteImage)
        };
        assert!(writing(&model));
        model.want_image(None);
        model.settle();
        assert!(!writing(&model), "{cleaning:?}");
        model.run_until("available");
    }
}

#[test]
fn time_while_the_appliance_was_down_is_no_silence() {
    let mut model = Model::new();
    model.settle();
    assert!(model.agent_acts(), "it opens its session");
    model.now += Duration::from_secs(3600);
    let observed = |model: &Model, up_since| {
        let transition = step(&HostObservation {
            now: model.now,
            up_since,
            host: &model.host,
            intent: model.intent.as_ref(),
            access: &model.access,
            power: Some(model.power),
            image: None,
            equal: None,
            hardware: None,
            hardware_from: None,
            record_time: model.now.as_millisecond(),
            mac_owner: None,
            held_until: None,
            data_cd: false,
            room: true,
            settings: &model.settings,
        });
        transition.status.error_message
    };
    assert_eq!(observed(&model, model.now), "");
    assert!(observed(&model, Timestamp::UNIX_EPOCH).contains("silent"));
}

#[test]
fn a_failed_step_is_told_even_after_the_bmc_stumbled() {
    let mut model = Model::with_image("http://x/a.qcow2");
    model.run_until("provisioning");
    model.settle();
    model.failing = vec![(StepAction::WriteImage, "no disk matches".into())];
    let (status, note) = fail(&model.status(), ErrorType::Registration, "the BMC stumbled");
    model.store(status, vec![note]);
    model.power_known = false;
    model.now += model.settings.retry.0;
    model.agent_acts();
    model.settle();
    assert_eq!(model.status().error_type, Some(ErrorType::Provisioning));
    assert!(model.status().error_message.contains("no disk matches"));
}

#[test]
fn an_intent_that_somebody_deleted_is_made_anew_while_the_host_stays() {
    for deleting in [false, true] {
        let mut model = Model::new();
        model.run_until("available");
        let intent = model.intent.as_mut().expect("an intent");
        intent.metadata.deletion_timestamp = Some(Time(model.now));
        if deleting {
            model.delete();
        }
        let forgets = matches!(model.transition().next, AfterStore::Do(Effect::ForgetIntent));
        assert_eq!(forgets, !deleting);
        model.settle();
        assert_eq!(model.gone, deleting);
    }
}

#[test]
fn a_host_without_a_boot_address_is_told_so() {
    let mut model = Model::new();
    model.host.spec.boot_mac_address = None;
    let (reason, _) = model.settle();
    assert!(reason.contains("spec.bootMACAddress"), "{reason}");
    model.host.spec.boot_mac_address = Some("02:00:00:00:00:01".into());
    model.edited();
    model.run_until("available");
}

#[test]
fn a_host_without_a_boot_address_needs_one_only_where_nothing_else_tells_its_machine() {
    let card = |mac: &str| Nic { mac: mac.into(), ..Nic::default() };
    let cards = |macs: &[&str]| HardwareDetails {
        nics: macs.iter().copied().map(card).collect(),
        ..HardwareDetails::default()
    };
    let by_network = "redfish://10.0.0.1";
    let by_cd = "redfish-virtualmedia://10.0.0.1/redfish/v1/Systems/1";
    // BMC, how it is inspected, HardwareData that is there, cards that the BMC names, whether the host becomes available
    type Row = (&'static str, Option<InspectionMode>, Option<&'static [&'static str]>, &'static [&'static str], bool);
    let rows: [Row; 9] = [
        (by_network, None, None, &["02:00:00:00:00:01"], false),
        (by_network, Some(InspectionMode::Fast), None, &["02:00:00:00:00:01"], true),
        (by_network, Some(InspectionMode::Fast), None, &[], false),
        (by_network, Some(InspectionMode::Fast), None, &["not an address"], false),
        (by_network, Some(InspectionMode::Disabled), None, &[], false),
        (by_network, Some(InspectionMode::Disabled), Some(&["02:00:00:00:00:01"]), &[], true),
        (by_network, Some(InspectionMode::Disabled), Some(&[]), &[], false),
        (by_cd, None, None, &[], true),
        (by_cd, Some(InspectionMode::Disabled), None, &[], true),
    ];
    for (address, mode, known, named, available) in rows {
        let mut model = Model::new();
        let spec = &mut model.host.spec;
        spec.boot_mac_address = None;
        spec.inspection_mode = mode;
        spec.bmc.as_mut().expect("a BMC").address = address.into();
        model.hardware = known.map(cards);
        model.named_by_bmc = cards(named).nics;
        if available {
            model.run_until("available");
            continue;
        }
        let (reason, _) = model.settle();
        let said = format!("{address} {mode:?} {known:?} {named:?}: {:?} {reason}", model.states);
        assert!(reason.contains("spec.bootMACAddress is missing"), "{said}");
    }
}

#[test]
fn a_discovered_host_waits_until_it_is_accepted_and_can_be_deleted_before() {
    use crate::api::slipway::{ANNOTATION_DISCOVERED, DISCOVERED_PENDING};
    let discovered = || {
        let mut model = Model::new();
        let mark = [(ANNOTATION_DISCOVERED.to_owned(), DISCOVERED_PENDING.to_owned())];
        model.host.metadata.annotations = Some(mark.into());
        model
    };
    let mut model = discovered();
    let (reason, _) = model.settle();
    assert!(reason.contains("waits to be accepted") && reason.contains("disks are erased"), "{reason}");
    assert_eq!((model.state(), model.status().operational_status), ("unmanaged", OperationalStatus::Discovered));
    assert!(model.boots.is_empty(), "nothing is done with it");
    model.host.metadata.annotations = None;
    model.edited();
    model.settle();
    assert!(model.states.contains(&"registering"), "{:?}", model.states);
    // Taken over with the system that runs on it.
    let mut model = discovered();
    model.host.spec.externally_provisioned = true;
    let (reason, _) = model.settle();
    assert!(reason.contains("disks are kept"), "{reason}");
    model.host.metadata.annotations = None;
    model.edited();
    model.run_until("externally provisioned");
    assert!(!model.states.contains(&"inspecting") && !model.states.contains(&"preparing"), "{:?}", model.states);
    let mut model = discovered();
    model.settle();
    model.delete();
    model.settle();
    assert!(model.gone);
}
