//! Conditions of a host (reference 1.11), derived from its state and status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::api::metal3::{BareMetalHost, BareMetalHostStatus, OperationalStatus, ProvisioningState as State};

/// The conditions, in the order upstream lists them. `waiting` is what the host waits for: the message of `Progressing`.
pub fn of(host: &BareMetalHost, status: &BareMetalHostStatus, waiting: Option<&str>, now: Timestamp) -> Vec<Condition> {
    let before = host.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let message = waiting.unwrap_or_default();
    base(status)
        .into_iter()
        .map(|(kind, on, reason)| {
            let state = if on { "True" } else { "False" };
            let old = before.iter().find(|condition| condition.type_ == kind && condition.status == state);
            Condition {
                type_: kind.to_owned(),
                status: state.to_owned(),
                reason: reason.to_owned(),
                message: match kind {
                    "Progressing" => message.to_owned(),
                    "Ready" | "Manageable" if !on => status.error_message.clone(),
                    _ => String::new(),
                },
                last_transition_time: old.map_or(Time(now), |old| old.last_transition_time.clone()),
                observed_generation: host.metadata.generation,
            }
        })
        .collect()
}

fn base(status: &BareMetalHostStatus) -> [(&'static str, bool, &'static str); 5] {
    let state = status.provisioning.state;
    let failed = status.operational_status == OperationalStatus::Error;
    let registration = matches!(
        status.error_type,
        Some(crate::api::metal3::ErrorType::Registration | crate::api::metal3::ErrorType::ProvisionedRegistration)
    );
    let manageable = match state {
        State::None | State::Unmanaged => (false, "NotManaged"),
        _ if registration => (false, "RegistrationFailed"),
        State::Registering => (false, "Registering"),
        _ => (true, "Manageable"),
    };
    let available = match state {
        State::Available | State::Ready => (true, "Available"),
        _ => (false, "NotAvailable"),
    };
    let provisioned = match state {
        State::Provisioned | State::ExternallyProvisioned => (true, "Provisioned"),
        State::Provisioning => (false, "Provisioning"),
        _ => (false, "NotProvisioned"),
    };
    let ready = if failed { (false, "Error") } else { provisioned };
    let progressing = match state {
        State::Registering => (true, "Registering"),
        State::Inspecting => (true, "Inspecting"),
        State::Preparing | State::MatchProfile => (true, "Preparing"),
        State::Provisioning => (true, "Provisioning"),
        State::Deprovisioning => (true, "Deprovisioning"),
        State::PoweringOffBeforeDelete => (true, "PoweringOffBeforeDelete"),
        State::Deleting => (true, "Deleting"),
        State::None
        | State::Unmanaged
        | State::Ready
        | State::Available
        | State::Provisioned
        | State::ExternallyProvisioned => (false, "NotProgressing"),
    };
    [
        ("Manageable", manageable.0, manageable.1),
        ("AvailableForProvisioning", available.0, available.1),
        ("Provisioned", provisioned.0, provisioned.1),
        ("Ready", ready.0, ready.1),
        ("Progressing", progressing.0, progressing.1),
    ]
}
