//! Specs that ask for what is not done, of hosts that no admission has seen.

use super::*;
use crate::api::metal3::{Cpu, HardwareRaidVolume, RaidConfig};

fn mirror() -> Option<RaidConfig> {
    let volumes = Some(vec![HardwareRaidVolume::default()]);
    Some(RaidConfig { hardware_raid_volumes: volumes, ..RaidConfig::default() })
}

#[test]
fn a_host_that_asks_for_too_much_is_not_begun_with() {
    for (state, kind, stays) in [
        ("registering", ErrorType::Registration, "registering"),
        ("preparing", ErrorType::Preparation, "preparing"),
        // It could be provisioned no more than one that is being prepared.
        ("available", ErrorType::Preparation, "preparing"),
    ] {
        let mut model = Model::in_state(state);
        let (boots, failures) = (model.boots.len(), model.status().error_count);
        model.host.spec.raid = mirror();
        model.want_image(Some("http://x/a.qcow2"));
        for _ in 0..4 {
            let (reason, until) = model.settle();
            assert!(reason.contains("spec.raid.hardwareRAIDVolumes: building RAID volumes"), "{state}: {reason}");
            model.now = until;
        }
        let status = model.status();
        assert_eq!((model.state(), status.error_type), (stays, Some(kind)), "{state}");
        assert_eq!(status.operational_status, OperationalStatus::Error, "{state}");
        assert!(status.error_count <= failures + 1, "{state}: it is said once");
        assert_eq!(model.events.iter().filter(|event| event.ends_with("ationError")).count(), 1, "{state}");
        assert_eq!(model.boots.len(), boots, "{state}");
        // Corrected, it goes on.
        model.host.spec.raid = None;
        model.edited();
        model.run_until("provisioned");
        assert_eq!(model.status().error_type, None, "{state}");
    }
}

#[test]
fn what_is_installed_stays_as_it_is_and_is_prepared_no_more() {
    for state in ["provisioned", "externally provisioned"] {
        let mut model = Model::in_state(state);
        let (boots, before) = (model.boots.len(), model.status().provisioning);
        model.host.spec.raid = mirror();
        model.host.spec.boot_mode = Some(BootMode::UEFISecureBoot);
        model.edited();
        for _ in 0..3 {
            model.now = model.settle().1;
        }
        let status = model.status();
        assert_eq!((model.state(), status.error_type, model.boots.len()), (state, None, boots));
        assert_eq!(status.provisioning, before, "{state}");
    }
    let mut model = Model::in_state("provisioned");
    model.host.spec.raid = mirror();
    model.want_image(None);
    model.run_until("preparing");
    model.settle();
    assert_eq!(model.status().error_type, Some(ErrorType::Preparation));
}

#[test]
fn it_keeps_no_host_from_being_deleted() {
    for state in ["registering", "preparing", "available", "provisioned"] {
        let mut model = Model::in_state(state);
        model.host.spec.raid = mirror();
        model.edited();
        model.settle();
        model.delete();
        model.run_until("gone");
        assert!(model.gone && !model.events.iter().any(|event| event.ends_with("Abandoned")), "{:?}", model.events);
    }
}

#[test]
fn a_machine_that_has_no_ramdisk_is_told_by_its_hardware() {
    let cpu = |arch: &str| {
        let cpu = Some(Cpu { arch: arch.into(), ..Cpu::default() });
        Some(HardwareDetails { cpu, ..HardwareDetails::default() })
    };
    let mut model = Model::in_state("available");
    model.hardware = cpu("aarch64");
    let (reason, _) = model.settle();
    assert!(reason.contains("the machine is \"aarch64\"") && model.host.spec.architecture.is_none(), "{reason}");
    assert_eq!((model.state(), model.status().error_type), ("preparing", Some(ErrorType::Preparation)));

    let mut adopted = Model::in_state("externally provisioned");
    adopted.hardware = cpu("aarch64");
    adopted.settle();
    assert_eq!(adopted.host.spec.architecture.as_deref(), Some("aarch64"));
    assert_eq!(adopted.status().error_type, None);
}
