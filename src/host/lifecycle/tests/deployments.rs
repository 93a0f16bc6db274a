//! docs/design/host.md, "Provisioning: wanted, cancelled, given up" and "Image and method".

use super::transitions::{all_well, next_state};
use super::*;
use crate::api::metal3::{AutomatedCleaningMode, CustomDeploy, InspectionMode};

fn method(model: &mut Model, method: Option<&str>) {
    model.host.spec.custom_deploy = method.map(|method| CustomDeploy { method: method.into() });
    model.edited();
}

#[test]
fn failing_to_provision_goes_round_until_the_limit() {
    let mut model = Model::in_state("provisioning");
    model.settings.provisioning_retries = 2;
    model.failing = vec![(StepAction::WriteImage, "no disk".into())];
    for state in ["deprovisioning", "available", "provisioning", "deprovisioning", "available", "available"] {
        let from = model.state();
        assert_eq!(next_state(&mut model, from), state);
    }
    let status = model.status();
    assert_eq!(status.error_type, Some(ErrorType::Provisioning));
    assert!(status.error_message.contains("gave up after 2"));
    // Power is managed all the same.
    model.power = PowerState::Off;
    model.power_known = false;
    model.now += model.settings.power_poll.0;
    model.settle();
    assert_eq!(model.power, PowerState::On);
}

#[test]
fn section_2_4_needs_provisioning() {
    let done = asked;
    let rows = [
        ("nothing asked for", true, None, None, done(None, None), false),
        ("an image, none there", true, Some("a"), None, done(None, None), true),
        ("an image without a URL", true, Some(""), None, done(None, None), false),
        ("an image, one there", true, Some("b"), None, done(Some("a"), None), false),
        ("offline", false, Some("a"), None, done(None, None), false),
        ("a method, none there", true, None, Some("boot-disk"), done(None, None), true),
        ("a method, another there", true, None, Some("boot-disk"), done(None, Some("write-image")), true),
        ("a method, the same there", true, None, Some("boot-disk"), done(None, Some("boot-disk")), false),
    ];
    for (row, online, url, method, done, expected) in rows {
        let asked = asked(url, method);
        let spec = BareMetalHostSpec {
            online,
            image: asked.image,
            custom_deploy: asked.custom_deploy,
            ..BareMetalHostSpec::default()
        };
        assert_eq!(deployment::needs_provisioning(&spec, &done), expected, "{row}");
    }
}

fn asked(url: Option<&str>, method: Option<&str>) -> crate::api::metal3::ProvisionStatus {
    crate::api::metal3::ProvisionStatus {
        image: url.map(|url| HostImage { url: url.into(), ..HostImage::default() }),
        custom_deploy: method.map(|method| CustomDeploy { method: method.into() }),
        ..Default::default()
    }
}

#[test]
fn section_2_4_cancelled() {
    // spec image, spec method, status image, status method
    let rows = [
        ("set, different method", Some("a"), Some("m"), Some("a"), Some("n"), true),
        ("set, same method, same image", Some("a"), Some("m"), Some("a"), Some("m"), false),
        ("set, same method, image gone", None, Some("m"), Some("a"), Some("m"), true),
        ("set, same method, another image", Some("b"), Some("m"), Some("a"), Some("m"), true),
        ("set, same method, no image ever", None, Some("m"), None, Some("m"), false),
        ("set, same method, image added", Some("a"), Some("m"), None, Some("m"), false),
        ("set, none done, same image", Some("a"), Some("m"), Some("a"), None, false),
        ("set, none done, image gone", None, Some("m"), Some("a"), None, true),
        ("unset, method done", Some("a"), None, Some("a"), Some("m"), true),
        ("unset, unset, image gone", None, None, Some("a"), None, true),
        ("unset, unset, image without a URL", Some(""), None, Some("a"), None, true),
        ("unset, unset, nothing done", Some("a"), None, None, None, false),
        ("unset, unset, nothing wanted, nothing done", None, None, None, None, true),
        ("unset, unset, same image", Some("a"), None, Some("a"), None, false),
        ("unset, unset, another image", Some("b"), None, Some("a"), None, true),
    ];
    for (row, url, method, done_url, done_method, expected) in rows {
        let (spec, done) = (asked(url, method), asked(done_url, done_method));
        let spec = BareMetalHostSpec { image: spec.image, custom_deploy: spec.custom_deploy, ..Default::default() };
        let found = deployment::cancelled(&spec, done.image.as_ref(), done.custom_deploy.as_ref());
        assert_eq!(found, expected, "{row}");
    }
}

#[test]
fn section_2_4_what_resets_the_retry_limit() {
    let given_up = || {
        let mut model = Model::in_state("provisioning");
        model.settings.provisioning_retries = 1;
        model.failing = vec![(StepAction::WriteImage, "no disk".into())];
        model.walk_to("deprovisioning");
        model.walk_to("available");
        model.settle();
        assert!(model.status().error_message.contains("gave up"));
        model.failing.clear();
        model
    };
    type Change = fn(&mut Model);
    let rows: [(&str, Change, bool); 5] = [
        ("another URL", |model| model.want_image(Some("http://x/b.qcow2")), true),
        ("another checksum", |model| model.host.spec.image.as_mut().expect("one").checksum = Some("d".into()), true),
        ("another format", |model| model.host.spec.image.as_mut().expect("one").format = Some("raw".into()), true),
        ("user data", |model| model.host.spec.user_data = Some(SecretReference::default()), false),
        (
            "removed and set again",
            |model| {
                model.want_image(None);
                model.settle();
                assert_eq!(model.status().error_type, None);
                model.want_image(Some("http://x/a.qcow2"));
            },
            true,
        ),
    ];
    for (row, change, tried_again) in rows {
        let mut model = given_up();
        change(&mut model);
        model.edited();
        let after = if tried_again { "provisioning" } else { "available" };
        assert_eq!(next_state(&mut model, "available"), after, "{row}");
    }
    let mut never = Model::in_state("provisioning");
    never.settings.provisioning_retries = 0;
    never.failing = vec![(StepAction::WriteImage, "no disk".into())];
    for _ in 0..24 {
        let from = never.state();
        assert_ne!(next_state(&mut never, from), from);
    }
    assert_eq!(never.status().provisioning_fail_count, 8);
}

#[test]
fn methods_of_their_own() {
    let steps = |model: &Model| {
        let steps = &model.intent.as_ref().expect("an intent").spec.steps;
        steps.iter().map(|step| step.action).collect::<Vec<_>>()
    };
    let mut plain = Model::in_state("available");
    plain.want_image(Some("http://x/a.qcow2"));
    method(&mut plain, Some("write-image-only"));
    plain.walk_to("provisioning");
    plain.settle();
    assert_eq!(steps(&plain), [StepAction::WriteImage, StepAction::SetBootEntry, StepAction::PowerOff]);
    plain.run_until("provisioned");
    assert_eq!(plain.status().provisioning.custom_deploy, plain.host.spec.custom_deploy);
    method(&mut plain, Some("write-image"));
    assert_eq!(next_state(&mut plain, "provisioned"), "deprovisioning");
    plain.run_until("provisioned");
    method(&mut plain, None);
    assert_eq!(next_state(&mut plain, "provisioned"), "deprovisioning");

    let mut disk = Model::in_state("available");
    method(&mut disk, Some("boot-disk"));
    disk.run_until("provisioned");
    assert_eq!(disk.boots, [BootDevice::Disk]);
    assert_eq!(steps(&disk), []);
    assert_eq!(disk.status().provisioning.image, None);
    disk.settle();
    assert_eq!(disk.state(), "provisioned");
    method(&mut disk, None);
    assert_eq!(next_state(&mut disk, "provisioned"), "deprovisioning");

    for (asked, url, words) in [
        ("install_coreos", None, "write-image, write-image-only, boot-disk"),
        ("write-image", None, "needs spec.image"),
        ("write-image", Some("live-iso"), "a live-iso is not written"),
    ] {
        let mut model = Model::in_state("available");
        if let Some(format) = url {
            model.want_image(Some("http://x/a.iso"));
            model.host.spec.image.as_mut().expect("one").format = Some(format.into());
        }
        method(&mut model, Some(asked));
        model.settle();
        model.settle();
        let status = model.status();
        assert_eq!((model.state(), status.error_type), ("available", Some(ErrorType::Provisioning)), "{asked}");
        assert!(status.error_message.contains(words), "{}", status.error_message);
        assert_eq!(status.error_count, 1, "said once");
        method(&mut model, Some("boot-disk"));
        model.run_until("provisioned");
        all_well(&model);
    }
}

#[test]
fn a_live_iso_is_booted_at_each_power_on_and_touches_no_disk() {
    let mut model = Model::in_state("available");
    model.want_image(Some("http://x/rescue.iso"));
    let image = model.host.spec.image.as_mut().expect("an image");
    image.format = Some("live-iso".into());
    image.checksum = None;
    model.run_until("provisioned");
    let intent = model.intent.clone().expect("an intent").spec;
    assert_eq!((intent.target, intent.live_iso.as_deref(), intent.steps.len()), (BootTarget::LiveIso, Some("d1"), 0));
    assert_eq!(model.image.as_ref().expect("in the library").spec.format.as_deref(), Some("live-iso"));
    assert_eq!(model.boots, [BootDevice::Pxe]);
    model.annotate("reboot.metal3.io", "");
    model.settle();
    assert_eq!(model.boots, [BootDevice::Pxe, BootDevice::Pxe]);
    assert_eq!(model.power, PowerState::On);
    // Its intent was lost: it is made again, and the running system is not disturbed.
    model.intent = None;
    model.settle();
    assert_eq!(model.boots.len(), 2);
    assert_eq!(model.intent.as_ref().expect("an intent").spec.target, BootTarget::LiveIso);
    // Without cleaning nothing boots it again.
    model.host.spec.automated_cleaning_mode = Some(AutomatedCleaningMode::Disabled);
    model.want_image(None);
    model.run_until("available");
    assert_eq!(model.intent.as_ref().expect("an intent").spec.target, BootTarget::Disk);
    assert!(model.bmc.contains(&"off"), "the system that nobody uses any more does not run on");
}

#[test]
fn no_agent_does_to_the_disks_what_is_not_wanted_any_more() {
    let mut model = Model::new();
    model.host.spec.inspection_mode = Some(InspectionMode::Disabled);
    model.walk_to("preparing");
    model.settle();
    let steps = |model: &Model| {
        let intent = model.intent.as_ref().expect("an intent");
        (intent.spec.target, intent.spec.steps.iter().map(|step| step.action).collect::<Vec<_>>())
    };
    assert_eq!(steps(&model), (BootTarget::Ramdisk, vec![StepAction::Erase]), "its machine boots to be wiped");
    model.host.spec.automated_cleaning_mode = Some(AutomatedCleaningMode::Disabled);
    model.edited();
    model.settle();
    assert_eq!((model.state(), steps(&model)), ("available", (BootTarget::Ramdisk, Vec::new())));
    model.host.spec.externally_provisioned = true;
    model.edited();
    model.settle();
    assert_eq!((model.state(), steps(&model)), ("externally provisioned", (BootTarget::Disk, Vec::new())));
    assert!(!model.agent_acts() && model.wipes == 0);
}

#[test]
fn what_is_written_is_not_written_again_for_another_end_or_other_hints() {
    use crate::api::metal3::RootDeviceHints;
    let planned = |model: &Model| {
        let steps = &model.intent.as_ref().expect("an intent").spec.steps;
        steps.iter().map(|step| (step.action, step.id.clone())).collect::<Vec<_>>()
    };
    let ended = |model: &Model, steps: usize| {
        let status = model.intent.as_ref().and_then(|intent| intent.status.clone()).unwrap_or_default();
        let done = |step: &IntentStep| status.results.iter().any(|result| result.id == step.id);
        let provisions = |step: &&IntentStep| step.operation.starts_with("provision@");
        let steps_of = model.intent.iter().flat_map(|intent| &intent.spec.steps).filter(provisions);
        steps_of.filter(|step| done(step)).count() == steps
    };
    let writing = |steps: usize| {
        let mut model = Model::in_state("available");
        model.want_image(Some("http://x/a.qcow2"));
        model.walk_until(|model| ended(model, steps) && model.state() == "provisioning");
        model.forget_what_happened();
        model
    };
    let kexec = |model: &mut Model| model.annotate("slipway.dev/first-boot", "kexec");

    // The image is written, the rest is to come.
    let mut model = writing(1);
    let before = planned(&model);
    assert_eq!(before.last().map(|step| step.0), Some(StepAction::PowerOff));
    kexec(&mut model);
    let hints = RootDeviceHints { model: Some("other".into()), ..RootDeviceHints::default() };
    model.host.spec.root_device_hints = Some(hints);
    model.edited();
    model.settle();
    let after = planned(&model);
    assert_eq!((&after[..3], after[3].0), (&before[..3], StepAction::Kexec));
    assert_ne!(after[3].1, before[3].1, "another step has another number");
    let steps = model.intent.as_ref().expect("an intent").spec.steps.clone();
    assert!(steps.iter().all(|step| step.root_device_hints.is_none()), "{steps:?}");
    model.run_until("provisioned");
    assert!(model.boots.is_empty() && !model.bmc.contains(&"off"), "{:?}", model.bmc);

    // All is done, and the agent starts the system as it was told.
    for (first, then, boots) in [("kexec", "firmware", 0), ("firmware", "kexec", 1)] {
        let mut model = Model::in_state("available");
        model.annotate("slipway.dev/first-boot", first);
        model.want_image(Some("http://x/a.qcow2"));
        model.walk_until(|model| ended(model, 3) && model.state() == "provisioning");
        let before = planned(&model);
        model.annotate("slipway.dev/first-boot", then);
        model.settle();
        assert_eq!(planned(&model), before, "{first}: it may be under way");
        model.forget_what_happened();
        model.run_until("provisioned");
        assert_eq!(model.boots.len(), boots, "{first}");
    }

    // Another content under the same URL begins with clean disks.
    let mut model = writing(1);
    model.image.as_mut().and_then(|image| image.status.as_mut()).expect("a status").digest = Some("d2".into());
    assert_eq!(next_state(&mut model, "provisioning"), "deprovisioning");
    model.run_until("provisioned");
    assert_eq!(model.wipes, 1);
}
