//! docs/design/host.md, "Hardware profile".

use super::*;
use crate::api::metal3::RootDeviceHints;

fn with_profile(state: &str, name: &str) -> Model {
    let mut model = Model::in_state(state);
    model.host.spec.hardware_profile = Some(name.into());
    model.edited();
    model.power_known = false;
    model
}

#[test]
fn what_each_profile_means() {
    let device = |name: &str| Some(RootDeviceHints { device_name: Some(name.into()), ..RootDeviceHints::default() });
    let hctl = |address: &str| Some(RootDeviceHints { hctl: Some(address.into()), ..RootDeviceHints::default() });
    for (asked, address, name, hints) in [
        (None, "ipmi://10.0.0.1", "unknown", None),
        (Some(""), "ipmi://10.0.0.1", "unknown", None),
        (None, "libvirt://10.0.0.1:6230", "libvirt", None),
        (Some("unknown"), "libvirt://10.0.0.1:6230", "unknown", None),
        (Some("empty"), "ipmi://10.0.0.1", "empty", None),
        (Some("libvirt"), "ipmi://10.0.0.1", "libvirt", device("/dev/vda")),
        (Some("openstack"), "ipmi://10.0.0.1", "openstack", device("/dev/vdb")),
        (Some("dell"), "ipmi://10.0.0.1", "dell", hctl("0:0:0:0")),
        (Some("dell-raid"), "ipmi://10.0.0.1", "dell-raid", hctl("0:2:0:0")),
    ] {
        let mut model = Model::new();
        model.host.spec.hardware_profile = asked.map(str::to_owned);
        model.host.spec.bmc.as_mut().expect("a BMC").address = address.into();
        model.run_until("available");
        let status = model.status();
        assert_eq!(status.hardware_profile.as_deref(), Some(name), "{asked:?}");
        assert_eq!(status.provisioning.root_device_hints, hints, "{asked:?}");
        assert_eq!(model.events.iter().filter(|event| **event == "ProfileSet").count(), 1, "{asked:?}");
        model.want_image(Some("http://x/a.qcow2"));
        model.walk_to("provisioning");
        model.settle();
        let steps = &model.intent.as_ref().expect("an intent").spec.steps;
        let write = steps.iter().find(|step| step.action == StepAction::WriteImage).expect("it is written");
        assert_eq!(write.root_device_hints, hints, "{asked:?}");
    }
}

#[test]
fn hints_go_before_the_profile() {
    let mut model = Model::new();
    let hints = Some(RootDeviceHints { model: Some("m".into()), ..RootDeviceHints::default() });
    model.host.spec.hardware_profile = Some("dell".into());
    model.host.spec.root_device_hints = hints.clone();
    model.run_until("available");
    assert_eq!(model.status().provisioning.root_device_hints, hints);
}

#[test]
fn a_profile_that_there_is_not_is_a_registration_error_said_once() {
    for state in ["registering", "available", "provisioned", "externally provisioned"] {
        let mut model = with_profile(state, "warp-drive");
        let failures = model.status().error_count;
        for _ in 0..4 {
            let (reason, until) = model.settle();
            assert!(reason.contains("no hardware profile named \"warp-drive\""), "{state}: {reason}");
            model.now = until;
        }
        let status = model.status();
        assert_eq!((model.state(), status.error_type), (state, Some(ErrorType::Registration)));
        assert!(status.error_message.starts_with("no hardware profile named \"warp-drive\": remove"), "{state}");
        assert_eq!(status.error_count, failures + 1, "{state}");
        assert_eq!(model.events.iter().filter(|event| **event == "RegistrationError").count(), 1, "{state}");
        assert!(model.boots.is_empty(), "{state}");
        model.host.spec.hardware_profile = Some("dell".into());
        model.edited();
        model.settle();
        let status = model.status();
        assert_eq!((status.error_type, status.hardware_profile.as_deref()), (None, Some("dell")), "{state}");
    }
}

#[test]
fn it_keeps_no_host_from_being_deleted() {
    let mut model = with_profile("available", "warp-drive");
    model.settle();
    model.delete();
    model.run_until("gone");
    assert!(model.gone && !model.events.iter().any(|event| event.ends_with("Abandoned")), "{:?}", model.events);
}
