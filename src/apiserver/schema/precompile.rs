//! Compiling patterns and rules ahead of their schema.
//!
//! What is dear in schemas, their patterns and rules, is made before the schemas are: a piece at a time, and within bounds of
//! what those of one definition may take together. A schema that is compiled afterwards finds all of it in use.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::cel::{self, Expression};
use super::interner::InternOutcome;
use super::pattern::{self, Pattern, PatternError};

/// Bytes that the patterns of one definition may take together, compiled.
const PATTERNS_MAX: usize = 16 << 20;
/// Bytes of text that the rules of one definition may have together.
const RULES_MAX: usize = 256 << 10;
/// How long all of it may take: a server that has something else to do, too, makes what the other bounds let pass in less.
const TIME_MAX: Duration = Duration::from_secs(20);

/// A definition asks for too much.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub(in crate::apiserver) enum DefinitionTooMuch {
    #[error(
        "the patterns of the schemas must take at most {} MiB of memory together when they are compiled: \
         use fewer, or ones that repeat less",
        PATTERNS_MAX >> 20
    )]
    Patterns,
    #[error("the rules of the schemas must have at most {} KiB of text together", RULES_MAX >> 10)]
    Rules,
    #[error("the patterns and rules of the schemas must take at most {} s to compile", TIME_MAX.as_secs())]
    Time,
}

/// Patterns with this beginning that were compiled not long ago.
#[cfg(test)]
pub(in crate::apiserver) fn compiled(beginning: &str) -> usize {
    pattern::IN_USE.count(beginning)
}

/// The patterns and expressions of some schemas, of which each is made once.
#[derive(Default)]
pub(in crate::apiserver) struct Ahead {
    patterns: Vec<String>,
    expressions: Vec<String>,
    weight: usize,
    spent: Duration,
    made: PrecompiledHold,
}

/// Keeps in use what was made.
#[derive(Default)]
pub(in crate::apiserver) struct PrecompiledHold {
    _patterns: Vec<InternOutcome<Pattern, PatternError>>,
    _expressions: Vec<InternOutcome<Expression, String>>,
}

impl Ahead {
    /// What is to be made for these schemas, beyond what is in use.
    pub fn of<'s>(schemas: impl IntoIterator<Item = &'s Value>) -> Result<Self, DefinitionTooMuch> {
        let (mut patterns, mut expressions) = (HashSet::new(), HashSet::new());
        let mut rules = 0;
        let mut open: Vec<&Value> = schemas.into_iter().collect();
        while let Some(schema) = open.pop() {
            for (keyword, source) in schema.as_object().into_iter().flatten() {
                match keyword.as_str() {
                    "properties" => open.extend(source.as_object().into_iter().flat_map(|map| map.values())),
                    "items" | "not" | "additionalProperties" => open.push(source),
                    "allOf" | "anyOf" | "oneOf" => open.extend(source.as_array().into_iter().flatten()),
                    "pattern" => patterns.extend(source.as_str()),
                    "x-kubernetes-validations" => {
                        let sources = source.as_array().into_iter().flatten();
                        for text in sources.flat_map(cel::expressions) {
                            if expressions.insert(text) {
                                rules += text.len();
                            }
                        }
                        if rules > RULES_MAX {
                            return Err(DefinitionTooMuch::Rules);
                        }
                    }
                    _ => {}
                }
            }
        }
        let mut ahead = Self::default();
        for text in patterns {
            match pattern::IN_USE.get(text) {
                Some(known) => ahead.keep_pattern(known)?,
                // Refused whenever it is looked at, and not worth a copy.
                None if text.len() > pattern::TEXT_MAX => {}
                None => ahead.patterns.push(text.to_owned()),
            }
        }
        for text in expressions {
            match cel::IN_USE.get(text) {
                Some(known) => ahead.made._expressions.push(known),
                None => ahead.expressions.push(text.to_owned()),
            }
        }
        Ok(ahead)
    }

    /// Makes at least one of those that are left, and more of them for this long.
    pub fn go_on(&mut self, turn: Duration) -> Result<(), DefinitionTooMuch> {
        let began = Instant::now();
        while !self.is_done() {
            if let Some(text) = self.patterns.pop() {
                self.keep_pattern(Pattern::compile(&text))?;
            } else if let Some(text) = self.expressions.pop() {
                self.made._expressions.push(cel::read(&text));
            }
            if began.elapsed() >= turn {
                break;
            }
        }
        self.spent += began.elapsed();
        if self.spent > TIME_MAX && !self.is_done() { Err(DefinitionTooMuch::Time) } else { Ok(()) }
    }

    fn keep_pattern(&mut self, pattern: InternOutcome<Pattern, PatternError>) -> Result<(), DefinitionTooMuch> {
        self.weight += match &pattern {
            Ok(pattern) => pattern.weight(),
            // To find out took as much.
            Err(reason) if reason.is_too_big() => pattern::SIZE_MAX,
            Err(_) => 0,
        };
        self.made._patterns.push(pattern);
        if self.weight > PATTERNS_MAX { Err(DefinitionTooMuch::Patterns) } else { Ok(()) }
    }

    /// Whether nothing is left.
    pub fn is_done(&self) -> bool {
        self.patterns.is_empty() && self.expressions.is_empty()
    }

    /// What was made, in use until this is dropped.
    pub fn made(self) -> PrecompiledHold {
        self.made
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patterns(texts: impl IntoIterator<Item = String>) -> Value {
        let properties: serde_json::Map<_, _> =
            texts.into_iter().map(|text| (text.clone(), json!({"type": "string", "pattern": text}))).collect();
        json!({ "properties": properties })
    }

    #[test]
    fn each_is_made_once_a_piece_at_a_time_wherever_it_stands() {
        let pattern = |text: &str| json!({"type": "string", "pattern": text});
        let schema = json!({
            "properties": {"a": pattern("^ahead-a$"), "pattern": pattern("^ahead-b$")},
            "items": {"additionalProperties": pattern("^ahead-c$")},
            "allOf": [{"not": pattern("^ahead-d$")}, pattern("^ahead-a$")],
            "default": {"pattern": "^ahead-of-a-value$"},
            "x-kubernetes-validations": [{"rule": "'ahead' == 'e'", "messageExpression": " 'ahead' "}, {"rule": "ahead("}],
        });
        let mut ahead = Ahead::of([&schema, &schema]).unwrap();
        let mut turns = 0;
        while !ahead.is_done() {
            ahead.go_on(Duration::ZERO).unwrap();
            turns += 1;
        }
        assert_eq!(turns, 7);
        let made = ahead.made();
        assert!(Ahead::of([&schema]).unwrap().is_done());
        drop(made);
        assert_eq!(Ahead::of([&schema]).unwrap().patterns.len(), 4);
    }

    #[test]
    fn what_a_definition_asks_for_is_bounded() {
        let large = |count: usize| patterns((1..=count).map(|one| format!(r"^\w{{20}}ahead{one}$")));
        let mut few = Ahead::of([&large(2)]).unwrap();
        few.go_on(Duration::MAX).unwrap();
        assert!(few.is_done());
        for schema in [large(40), patterns((1..40).map(|one| format!(r"^\w{{200}}ahead{one}$")))] {
            let mut many = Ahead::of([&schema]).unwrap();
            assert_eq!(many.go_on(Duration::MAX), Err(DefinitionTooMuch::Patterns));
            assert!(many.patterns.len() >= 20, "{} are left", many.patterns.len());
        }
        // They are not even taken.
        assert!(Ahead::of([&patterns(["a".repeat(900_000)])]).unwrap().is_done());
        let rule = |one: usize| json!({"rule": format!("self.a == '{}{one}'", "x".repeat(4000))});
        let rules = |count: usize| json!({"x-kubernetes-validations": (0..count).map(rule).collect::<Vec<_>>()});
        assert_eq!(Ahead::of([&rules(60)]).unwrap().expressions.len(), 60);
        assert_eq!(Ahead::of([&rules(70)]).err(), Some(DefinitionTooMuch::Rules));
    }
}
