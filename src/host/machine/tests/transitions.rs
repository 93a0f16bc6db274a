//! Reference 2.2 (transitions), 2.4 (needed, cancelled, retry limit), and the ways to get a system.

use super::*;
use crate::api::metal3::{AutomatedCleaningMode, CustomDeploy, InspectionMode, RootDeviceHints};

/// A row of the table: what happens to a host in a state, and where it is next.
struct Row {
    row: &'static str,
    from: &'static str,
    change: fn(&mut Model),
    to: &'static str,
    check: fn(&Model),
}

fn nothing(_: &mut Model) {}
fn all_well(model: &Model) {
    let status = model.status();
    assert_eq!((status.error_count, status.error_type), (0, None));
}

fn saw(model: &Model, event: &str) {
    assert!(model.events.contains(&event), "{event}: {:?}", model.events);
}

fn break_bmc(model: &mut Model) {
    model.bmc_fault = Some("the BMC is on fire".into());
    model.power_known = false;
}

fn method(model: &mut Model, method: Option<&str>) {
    model.host.spec.custom_deploy = method.map(|method| CustomDeploy { method: method.into() });
    model.edited();
}

/// The state after `from`, or `from` when the host stays in it.
fn next_state(model: &mut Model, from: &str) -> &'static str {
    for _ in 0..120 {
        if model.state() != from || model.gone {
            return if model.gone { "gone" } else { model.state() };
        }
        let turn = model.turn();
        model.store(turn.status, turn.notes);
        match turn.next {
            Next::Do(effect) => model.apply(&effect),
            Next::Wait { until, .. } => {
                model.now += Duration::from_secs(1);
                if !model.agent_acts() && model.status().error_type.is_some() {
                    model.now = until.max(model.now);
                }
            }
            Next::Gone => model.gone = true,
            Next::Again | Next::Still => {}
        }
    }
    model.state()
}

const ROWS: &[Row] = &[
    Row {
        row: "none, BMC given -> registering",
        from: "",
        change: nothing,
        to: "registering",
        check: |model| {
            let status = model.status();
            assert!(status.operation_history.register.start.is_some());
            assert_eq!(status.provisioning.boot_mode, Some(BootMode::UEFI));
        },
    },
    Row {
        row: "none, only credentialsName given -> registering",
        from: "",
        change: |model| {
            model.host.spec.bmc = Some(BmcDetails { credentials_name: "s".into(), ..BmcDetails::default() })
        },
        to: "registering",
        check: |_| {},
    },
    Row {
        row: "none, otherwise -> unmanaged",
        from: "",
        change: |model| model.host.spec.bmc = None,
        to: "unmanaged",
        check: |model| {
            assert_eq!(model.status().operational_status, OperationalStatus::Discovered);
            saw(model, "Discovered");
        },
    },
    Row {
        row: "unmanaged, BMC details appear -> registering",
        from: "unmanaged",
        change: |model| model.host.spec = Model::new().host.spec,
        to: "registering",
        check: all_well,
    },
    Row {
        row: "unmanaged, otherwise -> unmanaged, every ten minutes",
        from: "unmanaged",
        change: nothing,
        to: "unmanaged",
        check: |model| {
            let Next::Wait { until, .. } = model.turn().next else { panic!("it waits") };
            assert_eq!(until, model.now + Duration::from_secs(600));
        },
    },
    Row {
        row: "registering, externallyProvisioned -> externally provisioned",
        from: "registering",
        change: |model| model.host.spec.externally_provisioned = true,
        to: "externally provisioned",
        check: |model| {
            all_well(model);
            assert!(model.boots.is_empty());
        },
    },
    Row {
        row: "registering, inspection disabled -> preparing",
        from: "registering",
        change: |model| model.host.spec.inspection_mode = Some(InspectionMode::Disabled),
        to: "preparing",
        check: all_well,
    },
    Row {
        row: "registering, inspection disabled by the old annotation -> preparing",
        from: "registering",
        change: |model| model.annotate("inspect.metal3.io", "disabled"),
        to: "preparing",
        check: all_well,
    },
    Row {
        row: "registering -> inspecting",
        from: "registering",
        change: nothing,
        to: "inspecting",
        check: |model| {
            all_well(model);
            saw(model, "InspectionStarted");
            assert!(model.status().operation_history.register.end.is_some());
            assert!(model.status().operation_history.inspect.start.is_some());
            assert_eq!(model.status().provisioning.id, "uid");
        },
    },
    Row {
        row: "inspecting, details -> preparing",
        from: "inspecting",
        change: nothing,
        to: "preparing",
        check: |model| {
            all_well(model);
            assert_eq!(model.status().hardware, model.hardware);
            assert!(model.hardware_from.as_deref().is_some_and(|from| from.starts_with("inspect@")));
            saw(model, "InspectionComplete");
        },
    },
    Row {
        row: "inspecting, fast: by the BMC, without a boot -> preparing",
        from: "inspecting",
        change: |model| {
            model.host.spec.inspection_mode = Some(InspectionMode::Fast);
            model.forget_what_happened();
        },
        to: "preparing",
        check: |model| {
            assert_eq!(model.bmc, ["inventory"]);
            assert_eq!(model.status().hardware.map(|hardware| hardware.hostname).as_deref(), Some("bmc"));
        },
    },
    Row {
        row: "inspecting, disabled meanwhile -> preparing",
        from: "inspecting",
        change: |model| model.host.spec.inspection_mode = Some(InspectionMode::Disabled),
        to: "preparing",
        check: |model| saw(model, "InspectionSkipped"),
    },
    Row {
        row: "match profile, always -> preparing",
        from: "match profile",
        change: break_bmc,
        to: "preparing",
        check: all_well,
    },
    Row {
        row: "preparing, done -> available",
        from: "preparing",
        change: |model| {
            model.host.spec.root_device_hints =
                Some(RootDeviceHints { model: Some("m".into()), ..RootDeviceHints::default() });
        },
        to: "available",
        check: |model| {
            all_well(model);
            assert_eq!(model.status().provisioning.root_device_hints, model.host.spec.root_device_hints);
            assert!(model.intent.as_ref().expect("an intent").spec.disks_clean);
        },
    },
    Row {
        row: "ready is read as available and not written",
        from: "ready",
        change: nothing,
        to: "available",
        check: |_| {},
    },
    Row {
        row: "available, externallyProvisioned -> externally provisioned",
        from: "available",
        change: |model| {
            model.host.spec.root_device_hints = Some(RootDeviceHints::default());
            model.host.spec.externally_provisioned = true;
        },
        to: "externally provisioned",
        check: |model| {
            let done = model.status().provisioning;
            assert_eq!((done.image, done.custom_deploy, done.root_device_hints), (None, None, None));
            assert!(!model.intent.as_ref().expect("an intent").spec.disks_clean);
        },
    },
    Row {
        row: "available, inspect.metal3.io -> inspecting",
        from: "available",
        change: |model| model.annotate("inspect.metal3.io", ""),
        to: "inspecting",
        check: |model| assert!(model.annotated("inspect.metal3.io"), "removed once it has begun"),
    },
    Row {
        row: "available, inspection asked for but disabled -> available",
        from: "available",
        change: |model| {
            model.host.spec.inspection_mode = Some(InspectionMode::Disabled);
            model.annotate("inspect.metal3.io", "");
        },
        to: "available",
        check: all_well,
    },
    Row {
        row: "available, root device hints differ -> preparing",
        from: "available",
        change: |model| {
            model.host.spec.root_device_hints =
                Some(RootDeviceHints { model: Some("m".into()), ..RootDeviceHints::default() });
        },
        to: "preparing",
        check: all_well,
    },
    Row {
        row: "available, needs provisioning -> provisioning",
        from: "available",
        change: |model| {
            model.want_image(Some("http://x/a.qcow2"));
            model.host.spec.boot_mode = Some(BootMode::Legacy);
        },
        to: "provisioning",
        check: |model| {
            all_well(model);
            let status = model.status();
            assert_eq!(status.provisioning.boot_mode, Some(BootMode::Legacy));
            assert_eq!(status.last_attempted_image, model.host.spec.image);
            saw(model, "ProvisioningStarted");
        },
    },
    Row {
        row: "available, otherwise: nothing attempted any more",
        from: "available",
        change: |model| {
            let mut status = model.status();
            status.provisioning_fail_count = 3;
            status.last_attempted_image = Some(HostImage::default());
            model.host.status = Some(status);
        },
        to: "available",
        check: |model| {
            let status = model.status();
            assert_eq!((status.provisioning_fail_count, status.last_attempted_image), (0, None));
        },
    },
    Row {
        row: "provisioning, an error -> deprovisioning",
        from: "provisioning",
        change: |model| model.failing = vec![(StepAction::WriteImage, "no disk".into())],
        to: "deprovisioning",
        check: |model| {
            assert_eq!(model.status().provisioning_fail_count, 1);
            saw(model, "ProvisioningError");
            saw(model, "DeprovisioningStarted");
        },
    },
    Row {
        row: "provisioning, image removed -> deprovisioning",
        from: "provisioning",
        change: |model| model.want_image(None),
        to: "deprovisioning",
        check: |model| assert_eq!(model.status().provisioning_fail_count, 0),
    },
    Row {
        row: "provisioning, another image -> deprovisioning",
        from: "provisioning",
        change: |model| model.want_image(Some("http://x/other.qcow2")),
        to: "deprovisioning",
        check: |model| assert_eq!(model.status().provisioning_fail_count, 0),
    },
    Row {
        row: "provisioning, finished -> provisioned",
        from: "provisioning",
        change: nothing,
        to: "provisioned",
        check: |model| {
            all_well(model);
            let status = model.status();
            assert_eq!(status.provisioning.image, model.host.spec.image);
            assert_eq!(status.provisioning_fail_count, 0);
            assert!(status.operation_history.provision.end.is_some());
        },
    },
    Row {
        row: "provisioned, cancelled -> deprovisioning",
        from: "provisioned",
        change: |model| model.want_image(None),
        to: "deprovisioning",
        check: |model| saw(model, "DeprovisioningStarted"),
    },
    Row {
        row: "provisioned, otherwise -> provisioned",
        from: "provisioned",
        change: |model| model.host.spec.user_data = Some(SecretReference::default()),
        to: "provisioned",
        check: |model| assert!(model.boots.is_empty()),
    },
    Row {
        row: "externally provisioned, flag still set -> same",
        from: "externally provisioned",
        change: nothing,
        to: "externally provisioned",
        check: |model| assert_eq!(model.power, PowerState::On),
    },
    Row {
        row: "externally provisioned, flag cleared -> provisioned, a pre-set image is kept",
        from: "externally provisioned",
        change: |model| {
            model.want_image(Some("http://x/preset.qcow2"));
            model.host.spec.externally_provisioned = false;
        },
        to: "provisioned",
        check: |model| {
            let mut after = Model { host: model.host.clone(), ..Model::in_state("externally provisioned") };
            after.intent = model.intent.clone();
            assert_eq!(next_state(&mut after, "provisioned"), "provisioned");
            assert!(after.boots.is_empty());
            assert_eq!(after.status().provisioning.image, after.host.spec.image);
        },
    },
    Row {
        row: "externally provisioned, flag cleared without an image -> provisioned, then deprovisioning",
        from: "externally provisioned",
        change: |model| model.host.spec.externally_provisioned = false,
        to: "provisioned",
        check: |model| {
            let mut after = Model { host: model.host.clone(), ..Model::in_state("externally provisioned") };
            after.intent = model.intent.clone();
            assert_eq!(next_state(&mut after, "provisioned"), "deprovisioning");
        },
    },
    Row {
        row: "deprovisioning, done -> available",
        from: "deprovisioning",
        change: |model| {
            model.annotate("reboot.metal3.io", "");
            model.annotate("reboot.metal3.io/holder", "");
        },
        to: "available",
        check: |model| {
            all_well(model);
            let done = model.status().provisioning;
            assert_eq!((done.image, done.custom_deploy, done.root_device_hints), (None, None, None));
            assert!(!model.annotated("reboot.metal3.io") && !model.annotated("reboot.metal3.io/holder"));
            saw(model, "DeprovisioningComplete");
        },
    },
    Row {
        row: "deprovisioning, done, deleting -> powering off before delete",
        from: "deprovisioning",
        change: Model::delete,
        to: "powering off before delete",
        check: |model| assert!(model.intent.as_ref().expect("an intent").spec.disks_clean),
    },
    Row {
        row: "deprovisioning, deleting, failed more than three times -> powering off before delete",
        from: "deprovisioning",
        change: |model| {
            model.failing = vec![(StepAction::Erase, "the disk is write protected".into())];
            model.delete();
        },
        to: "powering off before delete",
        check: |model| saw(model, "DeprovisioningAbandoned"),
    },
    Row {
        row: "deprovisioning, deleting, no credentials -> deleting",
        from: "deprovisioning",
        change: |model| {
            model.access = Access::Broken("the secret is gone".into());
            model.delete();
        },
        to: "deleting",
        check: |model| saw(model, "DeprovisioningAbandoned"),
    },
    Row {
        row: "powering off before delete, off -> deleting",
        from: "powering off before delete",
        change: |model| {
            model.power = PowerState::On;
            model.power_known = false;
        },
        to: "deleting",
        check: |model| {
            assert_eq!(model.bmc.last(), Some(&"off"));
            assert!(!model.status().powered_on);
        },
    },
    Row {
        row: "powering off before delete, disablePowerOff -> deleting",
        from: "powering off before delete",
        change: |model| {
            model.host.spec.disable_power_off = true;
            model.power = PowerState::On;
            model.power_known = false;
        },
        to: "deleting",
        check: |model| assert_eq!(model.power, PowerState::On),
    },
    Row {
        row: "powering off before delete, failed more than three times -> deleting",
        from: "powering off before delete",
        change: break_bmc,
        to: "deleting",
        check: |model| saw(model, "PowerOffAbandoned"),
    },
    Row {
        row: "powering off before delete, no credentials -> deleting",
        from: "powering off before delete",
        change: |model| model.access = Access::None,
        to: "deleting",
        check: |model| saw(model, "PowerOffAbandoned"),
    },
    Row {
        row: "deleting -> gone",
        from: "deleting",
        change: nothing,
        to: "gone",
        check: |model| assert!(model.host.metadata.finalizers.is_none() && model.intent.is_none()),
    },
];

#[test]
fn section_2_2_row_by_row() {
    for Row { row, from, change, to, check } in ROWS {
        let mut model = Model::in_state(from);
        change(&mut model);
        assert_eq!(next_state(&mut model, from), *to, "{row}: {:?}", model.status());
        check(&model);
    }
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
        assert_eq!(wanted::needs_provisioning(&spec, &done), expected, "{row}");
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
        let found = wanted::cancelled(&spec, done.image.as_ref(), done.custom_deploy.as_ref());
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
    assert_eq!(model.image.as_ref().expect("in the library").spec.format.as_deref(), Some("raw"));
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
