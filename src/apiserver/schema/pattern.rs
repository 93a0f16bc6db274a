//! Patterns of schemas, each compiled once however often it is written: the definitions of one operator repeat a few
//! hundreds of times.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use regex::{Regex, RegexBuilder};

/// Bytes that a compiled pattern may take.
const SIZE_MAX: usize = 1 << 20;
/// The first of the sizes that are tried; each is twice the one before.
const SIZE_MIN: usize = 1 << 10;
/// What a pattern takes beside its program as it is compiled, of every size: measured with those of published definitions.
const BESIDE: usize = 4;
const BESIDE_MAX: usize = 64 << 10;
/// Places in the table of patterns after which those that nobody uses are looked for.
const SWEEP_FROM: usize = 256;

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Pattern {
    regex: Regex,
    weight: usize,
}

#[derive(Default)]
struct InUse {
    by_text: HashMap<Box<str>, Weak<Pattern>>,
    sweep_at: usize,
}

static IN_USE: LazyLock<Mutex<InUse>> = LazyLock::new(Mutex::default);

impl Pattern {
    /// Compiles a pattern, unless it is in use already. Patterns come from users: what they compile to is bounded.
    pub fn compile(text: &str) -> Result<Arc<Self>, regex::Error> {
        let in_use = || IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        let known = in_use().by_text.get(text).and_then(Weak::upgrade);
        if let Some(known) = known {
            return Ok(known);
        }
        let pattern = Arc::new(Self::compile_anew(text)?);
        let mut in_use = in_use();
        if in_use.by_text.len() >= in_use.sweep_at.max(SWEEP_FROM) {
            in_use.by_text.retain(|_, pattern| pattern.strong_count() > 0);
            in_use.sweep_at = in_use.by_text.len() * 2;
            in_use.by_text.shrink_to(SWEEP_FROM);
        }
        in_use.by_text.insert(text.into(), Arc::downgrade(&pattern));
        Ok(pattern)
    }

    fn compile_anew(text: &str) -> Result<Self, regex::Error> {
        let mut size = SIZE_MIN;
        loop {
            // A regex does not tell its size: the least limit that lets it pass does.
            match RegexBuilder::new(text).size_limit(size).dfa_size_limit(SIZE_MAX).build() {
                Ok(regex) => return Ok(Self { regex, weight: size + (size * BESIDE).min(BESIDE_MAX) }),
                Err(regex::Error::CompiledTooBig(_)) if size < SIZE_MAX => size *= 2,
                Err(error) => return Err(error),
            }
        }
    }

    /// About what it takes of the memory, in bytes.
    pub fn weight(&self) -> usize {
        self.weight
    }

    pub fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.regex, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_compiled_once_and_weighed() {
        let text = "^[a-z]{1,7}of-this-test$";
        let (one, other) = (Pattern::compile(text).unwrap(), Pattern::compile(text).unwrap());
        assert!(Arc::ptr_eq(&one, &other) && one.is_match("abof-this-test"));
        assert_eq!(one.to_string(), text);
        for (text, least, most) in [("^a$", 4 << 10, 20 << 10), (r"^\w{20}$", 1 << 20, 2 << 20)] {
            let weight = Pattern::compile(text).unwrap().weight();
            assert!((least..=most).contains(&weight), "{text}: {weight}");
        }
        assert!(Pattern::compile(r"^\w{200}$").unwrap_err().to_string().contains("size limit"));
        assert!(Pattern::compile("(").is_err());
    }

    #[test]
    fn what_nobody_uses_is_forgotten() {
        for one in 0..4 * SWEEP_FROM {
            Pattern::compile(&format!("^forgotten-{one}$")).unwrap();
        }
        let in_use = IN_USE.lock().unwrap();
        let there = in_use.by_text.keys().filter(|text| text.starts_with("^forgotten-")).count();
        assert!(there < 3 * SWEEP_FROM, "{there}");
    }
}
