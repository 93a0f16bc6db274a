//! The status of a KubeadmConfig. Pure.

use jiff::Timestamp;

use crate::api::bootstrap::v1beta2::{BootstrapInitialization, KubeadmConfigStatus};
use crate::runtime::conditions::{self, ConditionVerdict, Severity, Truth};

const READY: &str = "Ready";
const DATA: &str = "DataSecretAvailable";
const CERTIFICATES: &str = "CertificatesAvailable";

/// What a look has found out of a condition, with what clients of the older version see.
#[derive(Clone, Debug, PartialEq)]
pub struct BootstrapCondition {
    /// The condition.
    pub verdict: ConditionVerdict,
    /// Its reason in the older shape, where it does not hold.
    pub old_reason: &'static str,
    /// How grave that is.
    pub severity: Severity,
}

impl BootstrapCondition {
    /// It holds.
    pub fn available() -> Self {
        Self { verdict: ConditionVerdict::yes("Available"), old_reason: "", severity: Severity::Info }
    }

    /// The user data waits for something.
    pub fn waits(old_reason: &'static str, message: impl Into<String>) -> Self {
        Self { verdict: ConditionVerdict::no("NotAvailable", message), old_reason, severity: Severity::Info }
    }

    /// User data cannot be made.
    pub fn failed(message: impl Into<String>) -> Self {
        let verdict = ConditionVerdict::no("NotAvailable", message);
        Self { verdict, old_reason: "DataSecretGenerationFailed", severity: Severity::Warning }
    }

    /// Certificates are not there yet.
    pub fn uncertified(message: impl Into<String>) -> Self {
        let verdict = ConditionVerdict::no("NotAvailable", message);
        Self { verdict, old_reason: "CertificatesGenerationFailed", severity: Severity::Warning }
    }

    /// Certificates are there, and cannot be used.
    pub fn corrupted(message: impl Into<String>) -> Self {
        Self { old_reason: "CertificatesCorrupted", severity: Severity::Error, ..Self::uncertified(message) }
    }

    /// Nobody knows: the API fails.
    pub fn unknown(message: impl Into<String>) -> Self {
        let verdict = ConditionVerdict::unknown("InternalError", message);
        Self { verdict, old_reason: "CertificatesGenerationFailed", severity: Severity::Warning }
    }
}

/// What a look has found out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BootstrapFindings {
    /// The user data; as it was when nothing is said.
    pub data: Option<BootstrapCondition>,
    /// The certificates; as they were when nothing is said.
    pub certificates: Option<BootstrapCondition>,
    /// The Secret that the user data is in.
    pub secret: Option<String>,
}

/// The status after a look.
pub fn report(
    before: &KubeadmConfigStatus,
    findings: &BootstrapFindings,
    generation: Option<i64>,
    now: Timestamp,
) -> KubeadmConfigStatus {
    let mut status = before.clone();
    if let Some(secret) = &findings.secret {
        status.data_secret_name = Some(secret.clone());
        status.initialization = Some(BootstrapInitialization { data_secret_created: Some(true) });
    }
    for (type_, found) in [(DATA, &findings.data), (CERTIFICATES, &findings.certificates)] {
        let Some(found) = found else { continue };
        conditions::set(&mut status.conditions, type_, &found.verdict, generation, now);
        let old = ConditionVerdict { reason: found.old_reason.to_owned(), ..found.verdict.clone() };
        // What nobody knows was False before there was a word for it.
        let truth = if old.is_true() { Truth::True } else { Truth::False };
        let old = ConditionVerdict { truth, ..old };
        conditions::set_old(conditions::older(&mut status.deprecated), type_, &old, found.severity, now);
    }
    let of = |type_: &str| conditions::find(&status.conditions, type_).map(ConditionVerdict::of);
    let ready = conditions::summary(
        &[(DATA, of(DATA), true), (CERTIFICATES, of(CERTIFICATES), true)],
        ["Ready", "NotReady", "ReadyUnknown"],
    );
    conditions::set(&mut status.conditions, READY, &ready, generation, now);
    let all = conditions::older(&mut status.deprecated);
    let worst = [Some("Error"), Some("Warning"), Some("Info")].into_iter().find_map(|severity| {
        all.iter()
            .find(|one| one.type_ != READY && one.status == "False" && one.severity.as_deref() == severity)
            .cloned()
    });
    let (ready, severity) = match worst {
        None => (ConditionVerdict::yes("Ready"), Severity::Info),
        Some(worst) => {
            let severity = match worst.severity.as_deref() {
                Some("Error") => Severity::Error,
                Some("Warning") => Severity::Warning,
                _ => Severity::Info,
            };
            (ConditionVerdict::no(&worst.reason.unwrap_or_default(), worst.message.unwrap_or_default()), severity)
        }
    };
    if !all.is_empty() {
        conditions::set_old(all, READY, &ready, severity, now);
    }
    status.observed_generation = generation.filter(|generation| *generation > 0);
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn told(status: &KubeadmConfigStatus) -> Vec<String> {
        let new = status.conditions.iter().map(|one| format!("{}={} {}", one.type_, one.status, one.reason));
        let old = status.deprecated.iter().flat_map(|all| all.v1beta1.iter().flat_map(|old| &old.conditions));
        let old = old.map(|one| {
            let severity = one.severity.as_deref().unwrap_or("-");
            format!("old {}={} {} {severity}", one.type_, one.status, one.reason.as_deref().unwrap_or("-"))
        });
        new.chain(old).collect()
    }

    #[test]
    fn conditions_come_in_both_shapes() {
        let waits = BootstrapFindings {
            data: Some(BootstrapCondition::waits("WaitingForClusterInfrastructure", "for it")),
            ..BootstrapFindings::default()
        };
        let first = report(&KubeadmConfigStatus::default(), &waits, Some(1), at(1));
        assert_eq!(
            told(&first),
            [
                "DataSecretAvailable=False NotAvailable",
                "Ready=False NotReady",
                "old DataSecretAvailable=False WaitingForClusterInfrastructure Info",
                "old Ready=False WaitingForClusterInfrastructure Info"
            ]
        );
        assert_eq!(report(&first, &waits, Some(1), at(2)), first, "nothing new is nothing to write");
        let broken = BootstrapFindings { certificates: Some(BootstrapCondition::corrupted("the key")), ..waits };
        let second = report(&first, &broken, Some(1), at(3));
        assert!(
            told(&second).contains(&"old Ready=False CertificatesCorrupted Error".to_owned()),
            "{:?}",
            told(&second)
        );
        let done = BootstrapFindings {
            data: Some(BootstrapCondition::available()),
            certificates: Some(BootstrapCondition::available()),
            secret: Some("n".to_owned()),
        };
        let last = report(&second, &done, Some(2), at(4));
        assert_eq!(
            told(&last),
            [
                "DataSecretAvailable=True Available",
                "Ready=True Ready",
                "CertificatesAvailable=True Available",
                "old DataSecretAvailable=True - -",
                "old Ready=True - -",
                "old CertificatesAvailable=True - -"
            ]
        );
        assert_eq!(last.initialization, Some(BootstrapInitialization { data_secret_created: Some(true) }));
        assert_eq!((last.data_secret_name.as_deref(), last.observed_generation), (Some("n"), Some(2)));
        let unknown = BootstrapFindings {
            certificates: Some(BootstrapCondition::unknown("the API")),
            ..BootstrapFindings::default()
        };
        let odd = report(&last, &unknown, Some(2), at(5));
        assert!(told(&odd).contains(&"Ready=Unknown ReadyUnknown".to_owned()), "{:?}", told(&odd));
    }
}
