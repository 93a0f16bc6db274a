//! Patterns of schemas. They come from users: their text, what they compile to and what matching takes are bounded.

use std::cell::RefCell;
use std::fmt;

use regex::{Regex, RegexBuilder};

use super::interner::{InternOutcome, Interner};

/// Bytes of a pattern's text; those of published definitions have a few hundred. The parser takes a hundred times as much,
/// before it is known what the pattern compiles to.
pub(super) const TEXT_MAX: usize = 4 << 10;
/// Nesting of a pattern; each level takes from the parser's stack.
const NEST_MAX: u32 = 100;
/// Bytes that a compiled pattern may take.
pub(super) const SIZE_MAX: usize = 1 << 20;
/// The first of the sizes that are tried; each is twice the one before.
const SIZE_MIN: usize = 1 << 10;
/// What a pattern takes beside its program as it is compiled, of every size: measured with those of published definitions.
const BESIDE: usize = 4;
const BESIDE_MAX: usize = 64 << 10;

/// Bytes of text, times bytes of the pattern's program, that count as one step of looking for it: each byte of text may
/// meet every part of the pattern.
const MATCH_STEP: u64 = 1024;
/// Steps that the patterns of a schema may take in one value: a text of 1 MiB and a pattern as most are take a fifth.
const MATCHES_MAX: u64 = 10_000_000;

/// Looks that parts of a schema may have at parts of one value: an object of 100000 values has a dozen for each.
const VISITS_MAX: usize = 2_000_000;

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Pattern {
    regex: Regex,
    /// Bytes of the program.
    size: usize,
}

thread_local! {
    static LOOKED: RefCell<Option<SearchCost>> = const { RefCell::new(None) };
}

/// What looking for patterns took so far.
struct SearchCost {
    left: u64,
    /// The field for which no steps were left.
    stopped: Option<String>,
    /// Looks that parts of schemas may still have at parts of the value.
    visits: usize,
    /// The field for which none were left.
    lost: Option<String>,
}

/// All looking for patterns of schemas on this thread, until the outermost is dropped, shares one bound.
pub(in crate::apiserver) struct SearchScope {
    outermost: bool,
}

impl SearchScope {
    pub fn begin() -> Self {
        let outermost = LOOKED.with_borrow_mut(|looked| {
            let outermost = looked.is_none();
            looked.get_or_insert(SearchCost { left: MATCHES_MAX, stopped: None, visits: VISITS_MAX, lost: None });
            outermost
        });
        Self { outermost }
    }

    /// The field for which no steps were left; from then on patterns hold unseen.
    pub fn stopped(&self) -> Option<String> {
        LOOKED.with_borrow(|looked| looked.as_ref()?.stopped.clone())
    }

    /// Takes from the looks that may be had; whether there were enough left.
    pub(super) fn visit(looks: usize, path: &str) -> bool {
        LOOKED.with_borrow_mut(|looked| {
            let Some(looked) = looked else { return true };
            let left = looked.visits.checked_sub(looks).filter(|_| looked.lost.is_none());
            looked.visits = left.unwrap_or(0);
            if left.is_none() {
                looked.lost.get_or_insert_with(|| path.to_owned());
            }
            left.is_some()
        })
    }

    /// The field at which no more looks were left; from then on everything is valid unseen.
    pub(super) fn lost(&self) -> Option<String> {
        LOOKED.with_borrow(|looked| looked.as_ref()?.lost.clone())
    }
}

impl Drop for SearchScope {
    fn drop(&mut self) {
        if self.outermost {
            LOOKED.take();
        }
    }
}

/// A pattern cannot be used.
#[derive(Debug, thiserror::Error)]
pub(in crate::apiserver) enum PatternError {
    #[error("it is longer than {TEXT_MAX} bytes")]
    TooLong,
    #[error(transparent)]
    Regex(#[from] regex::Error),
}

impl PatternError {
    /// Whether it was compiled nearly to its end before it was refused.
    pub fn is_too_big(&self) -> bool {
        matches!(self, Self::Regex(regex::Error::CompiledTooBig(_)))
    }
}

pub(super) static IN_USE: Interner<Pattern, PatternError> = Interner::new();

impl Pattern {
    /// Compiles a pattern, unless it is in use already.
    pub fn compile(text: &str) -> InternOutcome<Self, PatternError> {
        // Not even its text is to be kept.
        if text.len() > TEXT_MAX {
            return Err(PatternError::TooLong.into());
        }
        IN_USE.get_or_make(text, || Self::compile_anew(text))
    }

    fn compile_anew(text: &str) -> Result<Self, PatternError> {
        let mut size = SIZE_MIN;
        loop {
            // A regex does not tell its size: the least limit that lets it pass does.
            let mut builder = RegexBuilder::new(text);
            match builder.nest_limit(NEST_MAX).size_limit(size).dfa_size_limit(SIZE_MAX).build() {
                Ok(regex) => return Ok(Self { regex, size }),
                Err(regex::Error::CompiledTooBig(_)) if size < SIZE_MAX => size *= 2,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// About what it takes of the memory, in bytes.
    pub fn weight(&self) -> usize {
        self.size + (self.size * BESIDE).min(BESIDE_MAX)
    }

    /// Steps that looking for it takes in a text.
    pub fn steps(&self, text: &str) -> u64 {
        (text.len() as u64).saturating_mul(self.size as u64) / MATCH_STEP
    }

    /// Whether the text of this field matches, as far as there are steps left.
    pub fn holds(&self, text: &str, path: &str) -> bool {
        let may = LOOKED.with_borrow_mut(|looked| {
            let Some(looked) = looked else { return true };
            let left = looked.left.checked_sub(self.steps(text)).filter(|_| looked.stopped.is_none());
            looked.left = left.unwrap_or(0);
            if left.is_none() {
                looked.stopped.get_or_insert_with(|| path.to_owned());
            }
            left.is_some()
        });
        !may || self.regex.is_match(text)
    }

    pub fn regex(&self) -> &Regex {
        &self.regex
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.regex, out)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::interner::SWEEP_FROM;
    use super::*;

    #[test]
    fn a_pattern_is_compiled_once_and_weighed() {
        let text = "^[a-z]{1,7}of-this-test$";
        let (one, other) = (Pattern::compile(text).unwrap(), Pattern::compile(text).unwrap());
        assert!(Arc::ptr_eq(&one, &other) && one.regex().is_match("abof-this-test"));
        assert_eq!(one.to_string(), text);
        for (text, least, most) in [("^a$", 4 << 10, 20 << 10), (r"^\w{20}$", 1 << 20, 2 << 20)] {
            let weight = Pattern::compile(text).unwrap().weight();
            assert!((least..=most).contains(&weight), "{text}: {weight}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_and_not_tried_again() {
        for (text, wanted) in [
            (r"^\w{200}$".to_owned(), "size limit"),
            ("(".into(), "unclosed group"),
            (format!("{}{}", "(".repeat(200), ")".repeat(200)), "nest"),
        ] {
            let reason = Pattern::compile(&text).unwrap_err();
            assert!(reason.to_string().contains(wanted), "{reason}");
            assert!(Arc::ptr_eq(&reason, &Pattern::compile(&text).unwrap_err()), "{text}");
        }
        assert!(Pattern::compile(&"a".repeat(TEXT_MAX)).is_ok());
        // It would be refused for its bracket, were it read.
        let long = "a".repeat(TEXT_MAX) + "(";
        assert!(matches!(*Pattern::compile(&long).unwrap_err(), PatternError::TooLong));
    }

    #[test]
    fn what_nobody_uses_is_forgotten() {
        for one in 0..4 * SWEEP_FROM {
            Pattern::compile(&format!("^forgotten-{one}$")).unwrap();
        }
        let there = IN_USE.count("^forgotten-");
        assert!(there < 3 * SWEEP_FROM, "{there}");
    }
}
