//! Conditions of a status, in all of their shapes. Pure.
//!
//! `status.conditions` are those of Kubernetes, which [`set`] sets. Clients of an older version of Cluster API see
//! `status.deprecated.v1beta1.conditions`, whose condition has a severity when its status is False ([`set_old`]). Conditions of
//! any other [`ConditionShape`] are [`put`]. A condition turns when its status does, and that is its time, in whole seconds:
//! one that says the same as before is left as it is, so that a status that has nothing new is not written.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

mod older;
mod shape;
mod summary;

pub use older::{Severity, clear_old, find_old, older, set_old, summary_old};
pub use shape::{ConditionShape, after, put};
pub use summary::{all, summary};

/// Longest message of a condition, in bytes.
const MESSAGE_MAX: usize = 10_000;

/// What a condition says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Truth {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Nobody knows.
    Unknown,
}

impl Truth {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }

    /// As it was written.
    pub fn read(word: &str) -> Self {
        match word {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }
}

/// What a condition says, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionVerdict {
    /// Whether it holds.
    pub truth: Truth,
    /// Why, in one word.
    pub reason: String,
    /// Why, for people.
    pub message: String,
}

impl ConditionVerdict {
    /// It holds.
    pub fn yes(reason: &str) -> Self {
        Self { truth: Truth::True, reason: reason.to_owned(), message: String::new() }
    }

    /// It does not.
    pub fn no(reason: &str, message: impl Into<String>) -> Self {
        Self { truth: Truth::False, reason: reason.to_owned(), message: message.into() }
    }

    /// Nobody knows.
    pub fn unknown(reason: &str, message: impl Into<String>) -> Self {
        Self { truth: Truth::Unknown, reason: reason.to_owned(), message: message.into() }
    }

    /// What a condition says.
    pub fn of(condition: &Condition) -> Self {
        Self {
            truth: Truth::read(&condition.status),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        }
    }

    /// Whether it holds.
    pub fn is_true(&self) -> bool {
        self.truth == Truth::True
    }
}

/// The condition of this type.
pub fn find<'c>(conditions: &'c [Condition], type_: &str) -> Option<&'c Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether the condition of this type holds.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == "True")
}

/// Whether the condition of this type is there and does not hold.
pub fn is_false(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == "False")
}

/// A condition that turned just now.
pub fn made(type_: &str, verdict: &ConditionVerdict, generation: Option<i64>, now: Timestamp) -> Condition {
    Condition {
        type_: type_.to_owned(),
        status: verdict.truth.word().to_owned(),
        reason: word(&verdict.reason, verdict.truth),
        message: cut(&verdict.message),
        observed_generation: generation,
        last_transition_time: Time(whole(now)),
    }
}

/// Sets a condition. When it changed is when its status did.
pub fn set(
    conditions: &mut Vec<Condition>,
    type_: &str,
    verdict: &ConditionVerdict,
    generation: Option<i64>,
    now: Timestamp,
) {
    put(conditions, made(type_, verdict, generation, now));
}

/// Takes a condition away.
pub fn clear(conditions: &mut Vec<Condition>, type_: &str) {
    conditions.retain(|condition| condition.type_ != type_);
}

/// A reason as Kubernetes allows it; others' reasons are mirrored, and may be anything.
fn word(reason: &str, truth: Truth) -> String {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ',' | ':');
    let kept: String = reason.chars().filter(|c| fine(*c)).take(256).collect();
    let kept = kept.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).trim_end_matches([',', ':']);
    if !kept.is_empty() {
        return kept.to_owned();
    }
    match truth {
        Truth::True => "InfoReported",
        Truth::False => "IssuesReported",
        Truth::Unknown => "NotYetReported",
    }
    .to_owned()
}

fn cut(message: &str) -> String {
    let mut end = message.len().min(MESSAGE_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message.get(..end).unwrap_or_default().to_owned()
}

/// Kubernetes keeps whole seconds of a time; what is written must be what is read.
pub fn whole(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::NodeCondition;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::cluster::OldCondition;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_condition_that_says_the_same_stays_as_it_is() {
        let mut conditions = Vec::new();
        set(&mut conditions, "Ready", &ConditionVerdict::no("Waiting", "for a node"), Some(1), at(1));
        let first = conditions.clone();
        set(&mut conditions, "Ready", &ConditionVerdict::no("Waiting", "for a node"), Some(1), at(2));
        assert_eq!(conditions, first);
        set(&mut conditions, "Ready", &ConditionVerdict::no("Waiting", "for a disk"), Some(1), at(3));
        assert_eq!((conditions[0].message.as_str(), conditions[0].last_transition_time.0), ("for a disk", at(1)));
        set(&mut conditions, "Ready", &ConditionVerdict::yes("Ready"), Some(2), at(4));
        assert_eq!((conditions.len(), conditions[0].last_transition_time.0), (1, at(4)));
        assert!(is_true(&conditions, "Ready") && !is_false(&conditions, "Ready") && !is_true(&conditions, "Other"));
        clear(&mut conditions, "Ready");
        assert!(conditions.is_empty());
    }

    fn turns<C: ConditionShape + Clone>(of: impl Fn(&str, &str, i64) -> C, turned: impl Fn(&C) -> Option<String>) {
        let mut conditions = vec![of("Other", "True", 1)];
        for (status, second, wanted) in [
            ("False", 1, "1970-01-01T00:00:01Z"),
            ("False", 2, "1970-01-01T00:00:01Z"),
            ("True", 3, "1970-01-01T00:00:03Z"),
            ("True", 4, "1970-01-01T00:00:03Z"),
            ("Unknown", 5, "1970-01-01T00:00:05Z"),
        ] {
            let new = of("Ready", status, second);
            let alone = after(&conditions, new.clone());
            put(&mut conditions, new);
            let [other, ready] = conditions.as_slice() else { panic!("not two") };
            assert_eq!((ready.type_(), ready.status(), turned(ready).as_deref()), ("Ready", status, Some(wanted)));
            assert_eq!(turned(&alone).as_deref(), Some(wanted));
            assert_eq!((other.type_(), turned(other).as_deref()), ("Other", Some("1970-01-01T00:00:01Z")));
        }
    }

    #[test]
    fn a_condition_of_each_shape_turns_with_its_status_and_leaves_others_alone() {
        let verdict =
            |status: &str| ConditionVerdict { truth: Truth::read(status), reason: "R".into(), message: String::new() };
        turns(
            |type_, status, second| made(type_, &verdict(status), None, at(second)),
            |one| Some(one.last_transition_time.0.to_string()),
        );
        let old = |type_: &str, status: &str, second| {
            let mut conditions = Vec::new();
            set_old(&mut conditions, type_, &verdict(status), Severity::Info, at(second));
            conditions.remove(0)
        };
        turns(old, |one: &OldCondition| Some(one.last_transition_time.0.to_string()));
        let node = |type_: &str, status: &str, second| NodeCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            last_transition_time: Some(Time(at(second))),
            ..NodeCondition::default()
        };
        turns(node, |one| one.last_transition_time.as_ref().map(|time| time.0.to_string()));
        turns(
            |type_, status, second| json!({"type": type_, "status": status, "lastTransitionTime": Time(at(second))}),
            |one: &Value| one["lastTransitionTime"].as_str().map(ToOwned::to_owned),
        );
        // One that never said since when it is so.
        let mut conditions = vec![NodeCondition { last_transition_time: None, ..node("Ready", "True", 1) }];
        put(&mut conditions, node("Ready", "True", 2));
        assert_eq!(conditions, [node("Ready", "True", 2)]);
    }

    #[test]
    fn a_time_has_whole_seconds() {
        let now = Timestamp::new(7, 900_000_000).unwrap();
        assert_eq!(made("Ready", &ConditionVerdict::yes("R"), None, now).last_transition_time, Time(at(7)));
    }

    #[test]
    fn an_older_condition_has_a_severity_while_it_is_false() {
        let mut deprecated = None;
        let conditions = older(&mut deprecated);
        set_old(conditions, "Ready", &ConditionVerdict::no("Waiting", "for a node"), Severity::Info, at(1));
        assert_eq!(
            (conditions[0].severity.as_deref(), conditions[0].reason.as_deref(), conditions[0].message.as_deref()),
            (Some("Info"), Some("Waiting"), Some("for a node"))
        );
        let first = conditions.clone();
        set_old(conditions, "Ready", &ConditionVerdict::no("Waiting", "for a node"), Severity::Info, at(2));
        assert_eq!(*conditions, first);
        set_old(conditions, "Ready", &ConditionVerdict::yes("Ready"), Severity::Info, at(3));
        assert_eq!((&conditions[0].severity, &conditions[0].reason, &conditions[0].message), (&None, &None, &None));
        clear_old(conditions, "Ready");
        assert!(conditions.is_empty());
    }

    #[test]
    fn reasons_and_messages_of_others_are_bounded() {
        let mut conditions = Vec::new();
        for (reason, wanted) in
            [("a b", "ab"), ("", "IssuesReported"), ("é-:", "IssuesReported"), ("1x,", "x"), ("Ok", "Ok")]
        {
            set(&mut conditions, "T", &ConditionVerdict::no(reason, "é".repeat(MESSAGE_MAX)), None, at(1));
            assert_eq!(conditions[0].reason, wanted);
            assert!(conditions[0].message.len() <= MESSAGE_MAX);
        }
    }

    #[test]
    fn conditions_are_summed_up() {
        let reasons = ["Ready", "NotReady", "ReadyUnknown"];
        type Row<'a> = (&'a [(&'a str, Option<ConditionVerdict>, bool)], Truth, &'a str);
        let rows: [Row<'_>; 5] = [
            (
                &[
                    ("A", Some(ConditionVerdict::yes("x")), true),
                    ("Deleting", Some(ConditionVerdict::no("x", "")), false),
                ],
                Truth::True,
                "",
            ),
            (
                &[("A", Some(ConditionVerdict::no("Why", "")), true), ("B", None, true)],
                Truth::False,
                "* A: Why\n* B: not known yet",
            ),
            (&[("A", None, true)], Truth::Unknown, "* A: not known yet"),
            (&[("Deleting", Some(ConditionVerdict::yes("Deleting")), false)], Truth::False, "* Deleting: Deleting"),
            (&[], Truth::True, ""),
        ];
        for (parts, truth, message) in rows {
            let summed = summary(parts, reasons);
            assert_eq!((summed.truth, summed.message.as_str()), (truth, message));
        }
        let names = ["a", "b", "c", "d"];
        let summed = all(names.map(|name| (name, Some(ConditionVerdict::no("Why", "no node")))), reasons);
        assert_eq!((summed.reason.as_str(), summed.message.as_str()), ("NotReady", "* a, b, c and 1 more: no node"));
        assert_eq!(all([], reasons), ConditionVerdict::yes("Ready"));
        let numbers: Vec<String> = (0..30).map(|number| format!("{number:02}")).collect();
        let many = all(numbers.iter().map(|n| (n.as_str(), Some(ConditionVerdict::no("Why", n.clone())))), reasons);
        assert!(many.message.ends_with("* and 20 more"), "{}", many.message);
    }
}
