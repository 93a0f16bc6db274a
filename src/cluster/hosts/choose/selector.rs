//! Selection of hosts by their labels.
//!
//! Operators are those of Kubernetes' label selectors in any case and in every spelling, `DoesNotExist` included.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::api::infrastructure::HostSelector;

/// Requirements of one selector, at most.
const MOST: usize = 256;
/// Values of all of them together, at most: each host's labels are compared with them.
const VALUES: usize = 256;
/// Letters of a value that a message shows.
const SHOWN: usize = 63;

/// What a host's labels must be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompiledSelector(Vec<Arc<CompiledRequirement>>);

#[derive(Clone, Debug, PartialEq)]
struct CompiledRequirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
    Above(i64),
    Below(i64),
}

/// Why a selector selects nothing at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorFault {
    /// No such operator.
    #[error(
        "hostSelector: {key:?} has the operator {operator:?}, which is none of In, NotIn, Exists, DoesNotExist, =, ==, !=, Gt, Lt"
    )]
    Operator {
        /// Key of the label.
        key: String,
        /// What is given.
        operator: String,
    },
    /// Not the values that the operator wants.
    #[error("hostSelector: {operator} of {key:?} wants {wants}")]
    Values {
        /// Key of the label.
        key: String,
        /// What is given.
        operator: String,
        /// What it wants.
        wants: &'static str,
    },
    /// Too many.
    #[error("hostSelector has more than {MOST} requirements, or {VALUES} values in all")]
    TooMany,
}

impl CompiledSelector {
    /// As a machine has it; one that says nothing selects every host.
    ///
    /// # Errors
    ///
    /// When it makes no sense.
    pub fn new(selector: Option<&HostSelector>) -> Result<Self, SelectorFault> {
        let Some(selector) = selector else { return Ok(Self::default()) };
        let values: usize = selector.match_expressions.iter().map(|expression| expression.values.len()).sum();
        if selector.match_labels.len() + selector.match_expressions.len() > MOST || values > VALUES {
            return Err(SelectorFault::TooMany);
        }
        let labels = selector
            .match_labels
            .iter()
            .map(|(key, value)| Ok(CompiledRequirement { key: key.clone(), test: Test::In(vec![value.clone()]) }));
        let expressions = selector.match_expressions.iter().map(|expression| {
            let test = test(&expression.key, &expression.operator, &expression.values)?;
            Ok(CompiledRequirement { key: expression.key.clone(), test })
        });
        labels.chain(expressions).map(|one| one.map(Arc::new)).collect::<Result<_, _>>().map(Self)
    }

    /// The first requirement that these labels do not meet.
    pub fn unmet(&self, labels: &BTreeMap<String, String>) -> Option<Unmet> {
        let unmet = self.0.iter().find(|requirement| !requirement.test.holds(labels.get(&requirement.key)))?;
        Some(Unmet { requirement: Arc::clone(unmet), found: labels.get(&unmet.key).map(|value| shorten(value)) })
    }
}

fn test(key: &str, operator: &str, values: &[String]) -> Result<Test, SelectorFault> {
    let wants = |wants| SelectorFault::Values { key: shorten(key), operator: shorten(operator), wants };
    let one = || match values {
        [value] => Ok(value.clone()),
        _ => Err(wants("exactly one value")),
    };
    let number = || one()?.parse::<i64>().map_err(|_| wants("a whole number"));
    let some = || if values.is_empty() { Err(wants("at least one value")) } else { Ok(values.to_vec()) };
    let none = |test| if values.is_empty() { Ok(test) } else { Err(wants("no values")) };
    match operator.to_lowercase().as_str() {
        "in" => Ok(Test::In(some()?)),
        "notin" | "not in" => Ok(Test::NotIn(some()?)),
        "=" | "==" => Ok(Test::In(vec![one()?])),
        "!=" => Ok(Test::NotIn(vec![one()?])),
        "exists" => none(Test::Exists),
        "doesnotexist" | "!" => none(Test::DoesNotExist),
        "gt" => Ok(Test::Above(number()?)),
        "lt" => Ok(Test::Below(number()?)),
        _ => Err(SelectorFault::Operator { key: shorten(key), operator: shorten(operator) }),
    }
}

impl Test {
    fn holds(&self, value: Option<&String>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::In(values) => value.is_some_and(|value| values.contains(value)),
            Self::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
            Self::Above(limit) => number().is_some_and(|number| number > *limit),
            Self::Below(limit) => number().is_some_and(|number| number < *limit),
        }
    }
}

/// A requirement that a host's labels do not meet.
#[derive(Clone, Debug, PartialEq)]
pub struct Unmet {
    /// The selector's own: there is one of these for each host that is passed over.
    requirement: Arc<CompiledRequirement>,
    found: Option<String>,
}

impl Unmet {
    /// What is wanted, the same for every host.
    pub fn wanted(&self) -> String {
        let key = shorten(&self.requirement.key);
        let list = |values: &[String]| {
            let shown: Vec<String> = values.iter().take(4).map(|value| shorten(value)).collect();
            format!("{}{}", shown.join(", "), if values.len() > shown.len() { ", …" } else { "" })
        };
        match &self.requirement.test {
            Test::In(values) if values.len() == 1 => format!("{key}={}", list(values)),
            Test::In(values) => format!("{key} in ({})", list(values)),
            Test::NotIn(values) if values.len() == 1 => format!("{key}!={}", list(values)),
            Test::NotIn(values) => format!("{key} notin ({})", list(values)),
            Test::Exists => key,
            Test::DoesNotExist => format!("!{key}"),
            Test::Above(limit) => format!("{key}>{limit}"),
            Test::Below(limit) => format!("{key}<{limit}"),
        }
    }
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found {
            Some(found) => write!(f, "{found}"),
            None => write!(f, "not set"),
        }
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::infrastructure::HostRequirement;

    fn expression(key: &str, operator: &str, values: &[&str]) -> HostSelector {
        let values = values.iter().map(ToString::to_string).collect();
        let requirement = HostRequirement { key: key.into(), operator: operator.into(), values };
        HostSelector { match_expressions: vec![requirement], ..HostSelector::default() }
    }

    #[test]
    fn every_operator_in_every_spelling() {
        let labels: BTreeMap<String, String> =
            [("zone", "a"), ("size", "10"), ("empty", "")].map(|(key, value)| (key.into(), value.into())).into();
        let rows: &[(&str, &str, &[&str], bool)] = &[
            ("zone", "In", &["a", "b"], true),
            ("zone", "in", &["b"], false),
            ("none", "In", &["a"], false),
            ("zone", "NotIn", &["b"], true),
            ("zone", "notin", &["a"], false),
            ("none", "NotIn", &["a"], true),
            ("zone", "NOT IN", &["a"], false),
            ("zone", "=", &["a"], true),
            ("zone", "==", &["b"], false),
            ("zone", "!=", &["b"], true),
            ("none", "!=", &["b"], true),
            ("empty", "Exists", &[], true),
            ("none", "exists", &[], false),
            ("none", "DoesNotExist", &[], true),
            ("zone", "doesnotexist", &[], false),
            ("zone", "!", &[], false),
            ("size", "Gt", &["9"], true),
            ("size", "gt", &["10"], false),
            ("size", "Lt", &["11"], true),
            ("zone", "Lt", &["11"], false),
            ("none", "Gt", &["1"], false),
        ];
        for (key, operator, values, selected) in rows {
            let selector = CompiledSelector::new(Some(&expression(key, operator, values))).expect(operator);
            assert_eq!(selector.unmet(&labels).is_none(), *selected, "{key} {operator} {values:?}");
        }
    }

    #[test]
    fn labels_and_expressions_hold_together() {
        let mut selector = expression("zone", "Exists", &[]);
        selector.match_labels.insert("role".into(), "worker".into());
        let parsed = CompiledSelector::new(Some(&selector)).unwrap();
        let labels = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        assert_eq!(parsed.unmet(&labels(&[("zone", "a"), ("role", "worker")])), None);
        let unmet = parsed.unmet(&labels(&[("zone", "a"), ("role", "db")])).unwrap();
        assert_eq!((unmet.wanted().as_str(), unmet.to_string().as_str()), ("role=worker", "db"));
        let unmet = parsed.unmet(&labels(&[("role", "worker")])).unwrap();
        assert_eq!((unmet.wanted().as_str(), unmet.to_string().as_str()), ("zone", "not set"));
        assert_eq!(CompiledSelector::new(None).unwrap().unmet(&labels(&[])), None);
    }

    #[test]
    fn so_many_values_and_no_more_are_compared_with_each_host() {
        let values: Vec<String> = (0..=VALUES).map(|value| value.to_string()).collect();
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        assert!(CompiledSelector::new(Some(&expression("zone", "In", &values[..VALUES]))).is_ok());
        assert_eq!(CompiledSelector::new(Some(&expression("zone", "In", &values))), Err(SelectorFault::TooMany));
    }

    #[test]
    fn what_makes_no_sense_says_why() {
        let rows: &[(&str, &[&str], &str)] = &[
            ("Like", &["a"], "operator \"Like\""),
            ("In", &[], "at least one value"),
            ("=", &["a", "b"], "exactly one value"),
            ("Exists", &["a"], "no values"),
            ("Gt", &["many"], "a whole number"),
        ];
        for (operator, values, said) in rows {
            let fault = CompiledSelector::new(Some(&expression("k", operator, values))).unwrap_err().to_string();
            assert!(fault.contains(said), "{fault}");
        }
        let one = expression("k", "Exists", &[]).match_expressions;
        let match_expressions = std::iter::repeat_n(one, MOST + 1).flatten().collect();
        let many = HostSelector { match_expressions, ..HostSelector::default() };
        assert_eq!(CompiledSelector::new(Some(&many)), Err(SelectorFault::TooMany));
    }
}
