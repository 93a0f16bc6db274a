//! docs/design/host.md, "Transitions".

use super::*;
use crate::api::metal3::{InspectionMode, RootDeviceHints};

/// A row of the table: what happens to a host in a state, and where it is next.
struct Row {
    row: &'static str,
    from: &'static str,
    change: fn(&mut Model),
    to: &'static str,
    check: fn(&Model),
}

fn nothing(_: &mut Model) {}
pub(super) fn all_well(model: &Model) {
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

/// The state after `from`, or `from` when the host stays in it.
pub(super) fn next_state(model: &mut Model, from: &str) -> &'static str {
    for _ in 0..120 {
        if model.state() != from || model.gone {
            return if model.gone { "gone" } else { model.state() };
        }
        let transition = model.transition();
        model.store(transition.status, transition.notes);
        match transition.next {
            AfterStore::Do(effect) => model.apply(&effect),
            AfterStore::Wait { until, .. } => {
                model.now += Duration::from_secs(1);
                if !model.agent_acts() && model.status().error_type.is_some() {
                    model.now = until.max(model.now);
                }
            }
            AfterStore::Gone => model.gone = true,
            AfterStore::Again | AfterStore::Paused => {}
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
            let AfterStore::Wait { until, .. } = model.transition().next else { panic!("it waits") };
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
