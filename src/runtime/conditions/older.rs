//! Conditions of the older shape of Cluster API: with a severity while they are False.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{ConditionVerdict, Truth, cut, put, whole, word};
use crate::api::cluster::{DeprecatedStatus, OldCondition};

/// How grave it is that a condition of the older shape is False.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Somebody has to do something.
    Error,
    /// It is tried again.
    Warning,
    /// It takes its time.
    Info,
}

impl Severity {
    fn word(self) -> &'static str {
        match self {
            Self::Error => "Error",
            Self::Warning => "Warning",
            Self::Info => "Info",
        }
    }
}

/// The conditions of the older shape in a status, to be written.
pub fn older(deprecated: &mut Option<DeprecatedStatus>) -> &mut Vec<OldCondition> {
    &mut deprecated.get_or_insert_default().v1beta1.get_or_insert_default().conditions
}

/// Sets a condition of the older shape: without a reason where it holds, with a severity where it does not.
pub fn set_old(
    conditions: &mut Vec<OldCondition>,
    type_: &str,
    verdict: &ConditionVerdict,
    severity: Severity,
    now: Timestamp,
) {
    let holds = verdict.is_true();
    let new = OldCondition {
        type_: type_.to_owned(),
        status: verdict.truth.word().to_owned(),
        severity: (verdict.truth == Truth::False).then(|| severity.word().to_owned()),
        last_transition_time: Time(whole(now)),
        reason: (!holds).then(|| word(&verdict.reason, verdict.truth)),
        message: (!holds && !verdict.message.is_empty()).then(|| cut(&verdict.message)),
    };
    put(conditions, new);
}

/// Takes a condition of the older shape away.
pub fn clear_old(conditions: &mut Vec<OldCondition>, type_: &str) {
    conditions.retain(|condition| condition.type_ != type_);
}

/// One verdict on these conditions of the older shape: the gravest that does not hold speaks for all. What is not there counts for
/// nothing.
pub fn summary_old(all: &[OldCondition], parts: &[&str]) -> (ConditionVerdict, Severity) {
    let grave = |condition: &OldCondition| match (condition.status.as_str(), condition.severity.as_deref()) {
        ("False", Some("Error")) => (0, Severity::Error),
        ("False", Some("Warning")) => (1, Severity::Warning),
        ("False", _) => (2, Severity::Info),
        // What nobody knows has no severity.
        _ => (3, Severity::Info),
    };
    let bad = parts.iter().filter_map(|type_| find_old(all, type_)).filter(|condition| condition.status != "True");
    let Some(one) = bad.min_by_key(|condition| grave(condition).0) else {
        return (ConditionVerdict::yes("Ready"), Severity::Info);
    };
    let verdict = ConditionVerdict {
        truth: Truth::read(&one.status),
        reason: one.reason.clone().unwrap_or_default(),
        message: one.message.clone().unwrap_or_default(),
    };
    (verdict, grave(one).1)
}

/// The condition of the older shape of this type.
pub fn find_old<'c>(conditions: &'c [OldCondition], type_: &str) -> Option<&'c OldCondition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}
