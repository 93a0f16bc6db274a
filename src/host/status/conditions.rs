//! Status conditions of a host.
//!
//! Conditions of a host (docs/design/host.md, "Conditions"), derived from its state, its last error and what its BMC
//! says of its health.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::api::metal3::{
    BareMetalHost, BareMetalHostStatus, ErrorType, OperationalStatus, ProvisioningState as State,
};
use crate::bmc::Health;
use crate::runtime::conditions::{self, ConditionVerdict, Truth};

/// The conditions, in the order upstream lists them. `waiting` is what the host waits for: the message of
/// `Progressing`. `health` is `None` while the BMC was not asked since the start: what was known stays. `twin` is another
/// host whose hardware has the same serial number; only then there is a seventh condition.
pub fn of(
    host: &BareMetalHost,
    status: &BareMetalHostStatus,
    waiting: Option<&str>,
    health: Option<Health>,
    twin: Option<&str>,
    now: Timestamp,
) -> Vec<Condition> {
    let before = host.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let manageable = manageable(status);
    let all = [
        ("Manageable", manageable),
        ("AvailableForProvisioning", available(status.provisioning.state)),
        ("Provisioned", provisioned(status.provisioning.state)),
        ("Ready", ready(status)),
        ("Progressing", progressing(status)),
        ("Healthy", healthy(before, manageable.0, health)),
    ];
    let unique = twin.map(|_| (UNIQUE_HARDWARE, (Truth::False, DUPLICATE_SERIAL_NUMBER)));
    let message = |kind, state| match (kind, state) {
        (UNIQUE_HARDWARE, _) => twin.map(twin_message).unwrap_or_default(),
        ("Progressing", _) => waiting.unwrap_or_default().to_owned(),
        ("Ready" | "Manageable", Truth::False) => status.error_message.clone(),
        _ => String::new(),
    };
    all.into_iter()
        .chain(unique)
        .map(|(kind, (truth, reason))| {
            let verdict = ConditionVerdict { truth, reason: reason.to_owned(), message: message(kind, truth) };
            conditions::after(before, conditions::made(kind, &verdict, host.metadata.generation, now))
        })
        .collect()
}

/// What the host was said to wait for: the message of `Progressing`.
pub(in crate::host) fn waits_for(status: &BareMetalHostStatus) -> Option<&str> {
    let told = status.conditions.iter().find(|condition| condition.type_ == "Progressing");
    told.map(|condition| condition.message.as_str())
}

/// Condition of ours: whether no other host has the same hardware. Present only while it is false.
const UNIQUE_HARDWARE: &str = "HardwareUnique";
/// Its reason, and the reason of the event beside it.
pub(in crate::host) const DUPLICATE_SERIAL_NUMBER: &str = "DuplicateSerialNumber";

/// Whether a status says already that another host has the same serial number.
pub(in crate::host) fn knows_twin(status: &BareMetalHostStatus) -> bool {
    status.conditions.iter().any(|condition| condition.type_ == UNIQUE_HARDWARE)
}

/// That another host, `namespace/name`, has the same serial number.
pub(in crate::host) fn twin_message(twin: &str) -> String {
    format!(
        "the hardware of {twin} has the same maker and serial number: one machine was entered twice, or its board was never given a number of its own"
    )
}

/// Whether a condition holds, and the reason.
type ConditionResult = (Truth, &'static str);

fn detached(status: &BareMetalHostStatus) -> bool {
    status.operational_status == OperationalStatus::Detached
}

fn manageable(status: &BareMetalHostStatus) -> ConditionResult {
    let registration = matches!(status.error_type, Some(ErrorType::Registration | ErrorType::ProvisionedRegistration));
    match status.provisioning.state {
        State::None | State::Unmanaged => (Truth::False, "NotManaged"),
        _ if registration => (Truth::False, "RegistrationFailed"),
        State::Registering => (Truth::False, "Registering"),
        State::Deleting => (Truth::True, "Manageable"),
        // Somebody else's affair while it is detached.
        _ if !detached(status) && status.error_type == Some(ErrorType::PowerManagement) => {
            (Truth::False, "PowerFailure")
        }
        _ => (Truth::True, "Manageable"),
    }
}

fn available(state: State) -> ConditionResult {
    match state {
        State::Available | State::Ready => (Truth::True, "Available"),
        _ => (Truth::False, "NotAvailable"),
    }
}

fn provisioned(state: State) -> ConditionResult {
    match state {
        State::Provisioned | State::ExternallyProvisioned => (Truth::True, "Provisioned"),
        State::Provisioning => (Truth::False, "Provisioning"),
        _ => (Truth::False, "NotProvisioned"),
    }
}

fn ready(status: &BareMetalHostStatus) -> ConditionResult {
    match status.operational_status {
        OperationalStatus::Error => (Truth::False, "Error"),
        OperationalStatus::Servicing => (Truth::False, "Servicing"),
        OperationalStatus::Detached => (Truth::False, "Detached"),
        _ => match provisioned(status.provisioning.state) {
            (Truth::True, reason) => (Truth::True, reason),
            _ => (Truth::False, "NotProvisioned"),
        },
    }
}

fn progressing(status: &BareMetalHostStatus) -> ConditionResult {
    if detached(status) {
        return (Truth::False, "Detached");
    }
    match status.provisioning.state {
        State::Registering => (Truth::True, "Registering"),
        State::Inspecting => (Truth::True, "Inspecting"),
        State::Preparing | State::MatchProfile => (Truth::True, "Preparing"),
        State::Provisioning => (Truth::True, "Provisioning"),
        State::Deprovisioning => (Truth::True, "Deprovisioning"),
        State::PoweringOffBeforeDelete => (Truth::True, "PoweringOffBeforeDelete"),
        State::Deleting => (Truth::True, "Deleting"),
        State::None
        | State::Unmanaged
        | State::Ready
        | State::Available
        | State::Provisioned
        | State::ExternallyProvisioned => (Truth::False, "NotProgressing"),
    }
}

/// A BMC that cannot be asked tells nothing, whatever it said before.
fn healthy(before: &[Condition], manageable: Truth, health: Option<Health>) -> ConditionResult {
    const KNOWN: [ConditionResult; 3] =
        [(Truth::True, "Healthy"), (Truth::False, "Warning"), (Truth::False, "CriticalError")];
    let unknown = (Truth::Unknown, "Unknown");
    if manageable == Truth::False {
        return unknown;
    }
    match health {
        Some(Health::Ok) => KNOWN[0],
        Some(Health::Warning) => KNOWN[1],
        Some(Health::Critical) => KNOWN[2],
        Some(Health::Unknown) => unknown,
        None => {
            let old = before.iter().find(|condition| condition.type_ == "Healthy");
            old.and_then(|old| KNOWN.into_iter().find(|known| known.1 == old.reason)).unwrap_or(unknown)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::metal3::ProvisionStatus;

    const ALL: [State; 14] = [
        State::None,
        State::Unmanaged,
        State::Registering,
        State::MatchProfile,
        State::Inspecting,
        State::Preparing,
        State::Ready,
        State::Available,
        State::Provisioning,
        State::Provisioned,
        State::ExternallyProvisioned,
        State::Deprovisioning,
        State::PoweringOffBeforeDelete,
        State::Deleting,
    ];

    fn status(state: State, operational: OperationalStatus, error: Option<ErrorType>) -> BareMetalHostStatus {
        BareMetalHostStatus {
            operational_status: operational,
            error_type: error,
            error_message: if error.is_some() { "the reason".into() } else { String::new() },
            provisioning: ProvisionStatus { state, ..ProvisionStatus::default() },
            ..BareMetalHostStatus::default()
        }
    }

    fn of_status(status: &BareMetalHostStatus, health: Option<Health>) -> Vec<Condition> {
        of(&BareMetalHost::default(), status, Some("waits"), health, None, Timestamp::UNIX_EPOCH)
    }

    /// `+Reason` is True, `-Reason` False, `?Reason` Unknown.
    fn shown(conditions: &[Condition]) -> Vec<String> {
        let sign = |condition: &Condition| match condition.status.as_str() {
            "True" => '+',
            "False" => '-',
            _ => '?',
        };
        conditions.iter().map(|condition| format!("{}{}", sign(condition), condition.reason)).collect()
    }

    #[test]
    fn each_state_has_its_conditions() {
        let rows = [
            (State::None, "-NotManaged -NotAvailable -NotProvisioned -NotProvisioned -NotProgressing ?Unknown"),
            (State::Unmanaged, "-NotManaged -NotAvailable -NotProvisioned -NotProvisioned -NotProgressing ?Unknown"),
            (State::Registering, "-Registering -NotAvailable -NotProvisioned -NotProvisioned +Registering ?Unknown"),
            (State::MatchProfile, "+Manageable -NotAvailable -NotProvisioned -NotProvisioned +Preparing +Healthy"),
            (State::Inspecting, "+Manageable -NotAvailable -NotProvisioned -NotProvisioned +Inspecting +Healthy"),
            (State::Preparing, "+Manageable -NotAvailable -NotProvisioned -NotProvisioned +Preparing +Healthy"),
            (State::Ready, "+Manageable +Available -NotProvisioned -NotProvisioned -NotProgressing +Healthy"),
            (State::Available, "+Manageable +Available -NotProvisioned -NotProvisioned -NotProgressing +Healthy"),
            (State::Provisioning, "+Manageable -NotAvailable -Provisioning -NotProvisioned +Provisioning +Healthy"),
            (State::Provisioned, "+Manageable -NotAvailable +Provisioned +Provisioned -NotProgressing +Healthy"),
            (
                State::ExternallyProvisioned,
                "+Manageable -NotAvailable +Provisioned +Provisioned -NotProgressing +Healthy",
            ),
            (
                State::Deprovisioning,
                "+Manageable -NotAvailable -NotProvisioned -NotProvisioned +Deprovisioning +Healthy",
            ),
            (
                State::PoweringOffBeforeDelete,
                "+Manageable -NotAvailable -NotProvisioned -NotProvisioned +PoweringOffBeforeDelete +Healthy",
            ),
            (State::Deleting, "+Manageable -NotAvailable -NotProvisioned -NotProvisioned +Deleting +Healthy"),
        ];
        assert_eq!(rows.map(|(state, _)| state), ALL);
        for (state, want) in rows {
            let conditions = of_status(&status(state, OperationalStatus::OK, None), Some(Health::Ok));
            assert_eq!(shown(&conditions).join(" "), want, "{state:?}");
        }
        let types: Vec<_> = of_status(&BareMetalHostStatus::default(), None).into_iter().map(|c| c.type_).collect();
        assert_eq!(types, ["Manageable", "AvailableForProvisioning", "Provisioned", "Ready", "Progressing", "Healthy"]);
    }

    #[test]
    fn what_is_wrong_goes_over_the_state() {
        use ErrorType::{PowerManagement, ProvisionedRegistration, Provisioning, Registration};
        use OperationalStatus::{Delayed, Detached, Error, Servicing};
        // State, operational status, error: Manageable, Ready, Progressing.
        let rows = [
            (State::Registering, Error, Some(Registration), "-RegistrationFailed -Error +Registering"),
            (State::Inspecting, Error, Some(Registration), "-RegistrationFailed -Error +Inspecting"),
            (State::Provisioned, Error, Some(ProvisionedRegistration), "-RegistrationFailed -Error -NotProgressing"),
            (State::Available, Error, Some(Provisioning), "+Manageable -Error -NotProgressing"),
            (State::Provisioned, Error, Some(PowerManagement), "-PowerFailure -Error -NotProgressing"),
            (State::Registering, Error, Some(PowerManagement), "-Registering -Error +Registering"),
            (State::Deleting, Error, Some(PowerManagement), "+Manageable -Error +Deleting"),
            (State::Provisioned, Detached, Some(PowerManagement), "+Manageable -Detached -Detached"),
            (State::Provisioned, Detached, None, "+Manageable -Detached -Detached"),
            (State::Provisioned, Servicing, None, "+Manageable -Servicing -NotProgressing"),
            (State::Inspecting, Delayed, None, "+Manageable -NotProvisioned +Inspecting"),
        ];
        for (state, operational, error, want) in rows {
            let all = of_status(&status(state, operational, error), None);
            let told = shown(&all);
            assert_eq!([&told[0][..], &told[3], &told[4]].join(" "), want, "{state:?} {operational:?} {error:?}");
            let message = if error.is_some() { "the reason" } else { "" };
            assert_eq!(all[3].message, message, "Ready says why");
            assert_eq!(all[4].message, "waits", "Progressing says what for");
        }
    }

    #[test]
    fn health_is_the_bmcs_and_stays_over_a_start() {
        let available = status(State::Available, OperationalStatus::OK, None);
        let told = |host: &BareMetalHost, status: &BareMetalHostStatus, health| {
            shown(&of(host, status, None, health, None, Timestamp::UNIX_EPOCH))[5].clone()
        };
        let new = BareMetalHost::default();
        for (health, want) in [
            (Some(Health::Ok), "+Healthy"),
            (Some(Health::Warning), "-Warning"),
            (Some(Health::Critical), "-CriticalError"),
            (Some(Health::Unknown), "?Unknown"),
        ] {
            assert_eq!(told(&new, &available, health), want);
            let conditions = of_status(&available, health);
            let known = BareMetalHostStatus { conditions, ..available.clone() };
            let host = BareMetalHost { status: Some(known), ..BareMetalHost::default() };
            assert_eq!(told(&host, &available, None), want, "kept");
            assert_eq!(told(&host, &available, Some(Health::Ok)), "+Healthy", "renewed");
            let lost = status(State::Available, OperationalStatus::Error, Some(ErrorType::Registration));
            assert_eq!(told(&host, &lost, None), "?Unknown", "no BMC, no health");
        }
        assert_eq!(told(&new, &available, None), "?Unknown");
    }

    #[test]
    fn a_transition_has_its_time_and_nothing_else_moves_it() {
        let second = Timestamp::from_second(60).unwrap();
        let first = of_status(&status(State::Registering, OperationalStatus::OK, None), None);
        let known = BareMetalHostStatus { conditions: first, ..BareMetalHostStatus::default() };
        let mut host = BareMetalHost { status: Some(known), ..BareMetalHost::default() };
        host.metadata.generation = Some(7);
        let failed = status(State::Registering, OperationalStatus::Error, Some(ErrorType::Registration));
        let same = of(&host, &failed, None, None, None, second);
        assert!(same.iter().all(|condition| condition.last_transition_time.0 == Timestamp::UNIX_EPOCH));
        assert!(same.iter().all(|condition| condition.observed_generation == Some(7)));
        let moved = of(&host, &status(State::Inspecting, OperationalStatus::OK, None), None, None, None, second);
        let times: Vec<_> = moved.iter().map(|condition| condition.last_transition_time.0.as_second()).collect();
        assert_eq!(times, [60, 0, 0, 0, 0, 0]);
    }
}
