//! Label selectors: the language of `labelSelector` and its meaning (apimachinery's `labels.Parse`), with the
//! words in which upstream refuses what it does not understand. Pure.

use std::iter::Peekable;
use std::str::CharIndices;

use crate::apiserver::answers::status::shorten;
use crate::apiserver::objects::names;

/// Requirements in one selector. A client has a few.
const REQUIREMENTS_MAX: usize = 64;
/// Values that the requirements of one selector name, all together.
const VALUES_MAX: usize = 256;

/// What must hold for one label.
#[derive(Clone, Debug, PartialEq)]
struct LabelRequirement {
    key: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq)]
enum Operator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Above(i64),
    Below(i64),
}

/// What must hold for the labels of an object, ready to be looked at for many of them: one rule for each key, in the
/// order of the keys. A selector that nothing can meet is one rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LabelSelector(Vec<LabelRule>);

/// All that is required of one label.
#[derive(Clone, Debug, PartialEq)]
struct LabelRule {
    key: String,
    /// Whether an object without the label is selected, and whether one with it can be.
    absent: bool,
    present: bool,
    /// The values that it may have, in order, when they are named: what they must not be is then taken out of them.
    allowed: Option<Vec<String>>,
    /// Those that it may not have, in order.
    denied: Vec<String>,
    above: i64,
    below: i64,
    /// Whether the value must be a number.
    is_number: bool,
}

impl LabelSelector {
    /// Requirements on one key become one rule; what is said twice is looked at once.
    fn of(mut requirements: Vec<LabelRequirement>) -> Self {
        requirements.sort_by(|one, other| one.key.cmp(&other.key));
        let mut rules: Vec<LabelRule> = Vec::new();
        for LabelRequirement { key, operator } in requirements {
            match rules.last_mut().filter(|rule| rule.key == key) {
                Some(rule) => rule.add(operator),
                None => {
                    let mut rule = LabelRule::any(key);
                    rule.add(operator);
                    rules.push(rule);
                }
            }
        }
        rules.iter_mut().for_each(LabelRule::settle);
        match rules.iter().position(|rule| !rule.absent && !rule.present) {
            Some(at) => Self(vec![rules.swap_remove(at)]),
            None => Self(rules),
        }
    }

    /// Whether everything is selected.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    /// Keys and values of it.
    pub fn parts(&self) -> usize {
        self.0.iter().map(|rule| 1 + rule.allowed.as_ref().map_or(0, Vec::len) + rule.denied.len()).sum()
    }

    /// Whether an object with these labels, in the order of their keys, is selected. Costs a walk over them.
    pub fn matches(&self, mut labels: &[(Box<str>, Box<str>)]) -> bool {
        self.0.iter().all(|rule| {
            // What comes before this key comes before the next ones, too.
            labels = labels.split_at(labels.partition_point(|(key, _)| **key < *rule.key)).1;
            rule.holds(labels.first().filter(|(key, _)| **key == *rule.key).map(|(_, value)| &**value))
        })
    }
}

impl LabelRule {
    /// One that every object meets.
    fn any(key: String) -> Self {
        let (above, below) = (i64::MIN, i64::MAX);
        Self { key, absent: true, present: true, allowed: None, denied: Vec::new(), above, below, is_number: false }
    }

    fn add(&mut self, operator: Operator) {
        // Only a label that must not have a value may be missing.
        self.absent &= matches!(operator, Operator::NotIn(_) | Operator::Absent);
        match operator {
            Operator::In(mut values) => {
                values.sort_unstable();
                values.dedup();
                if let Some(allowed) = &self.allowed {
                    values.retain(|value| allowed.binary_search(value).is_ok());
                }
                self.allowed = Some(values);
            }
            Operator::NotIn(values) => self.denied.extend(values),
            Operator::Exists => {}
            Operator::Absent => self.present = false,
            Operator::Above(bound) => {
                self.is_number = true;
                // Nothing is above the largest number.
                self.present &= bound < i64::MAX;
                self.above = self.above.max(bound.saturating_add(1));
            }
            Operator::Below(bound) => {
                self.is_number = true;
                self.present &= bound > i64::MIN;
                self.below = self.below.min(bound.saturating_sub(1));
            }
        }
    }

    /// Brings what was added into its shortest form.
    fn settle(&mut self) {
        self.denied.sort_unstable();
        self.denied.dedup();
        self.present &= self.above <= self.below;
        if let Some(mut allowed) = self.allowed.take() {
            allowed.retain(|value| self.may_be(value));
            self.present &= !allowed.is_empty();
            *self = Self {
                absent: self.absent,
                present: self.present,
                allowed: Some(allowed),
                ..Self::any(std::mem::take(&mut self.key))
            };
        }
    }

    fn holds(&self, value: Option<&str>) -> bool {
        value.map_or(self.absent, |value| self.present && self.may_be(value))
    }

    fn may_be(&self, value: &str) -> bool {
        let among = |values: &[String]| values.binary_search_by(|one| one.as_str().cmp(value)).is_ok();
        self.allowed.as_deref().is_none_or(among)
            && !among(&self.denied)
            && (!self.is_number || value.parse().is_ok_and(|number| (self.above..=self.below).contains(&number)))
    }
}

/// Reads a selector. The error is the sentence for the client.
pub(super) fn parse(text: &str) -> Result<LabelSelector, String> {
    requirements(text).map(LabelSelector::of)
}

fn requirements(text: &str) -> Result<Vec<LabelRequirement>, String> {
    let mut words = SelectorLexer { text, chars: text.char_indices().peekable() }.all();
    words.reverse();
    let mut reader = SelectorParser { words, values: 0 };
    let mut requirements = Vec::new();
    loop {
        match reader.peek() {
            SelectorToken::End => return Ok(requirements),
            SelectorToken::Text(_) | SelectorToken::Symbol("!") => {}
            other => return Err(format!("found '{}', expected: !, identifier, or 'end of string'", other.literal())),
        }
        let requirement = reader.requirement().map_err(|reason| format!("unable to parse requirement: {reason}"))?;
        requirements.push(requirement);
        if requirements.len() > REQUIREMENTS_MAX {
            return Err(format!("a label selector may have at most {REQUIREMENTS_MAX} requirements"));
        }
        if reader.values > VALUES_MAX {
            return Err(too_many_values());
        }
        match reader.take() {
            SelectorToken::End => return Ok(requirements),
            SelectorToken::Symbol(",") => match reader.peek() {
                SelectorToken::Text(_) | SelectorToken::Symbol("!") => {}
                other => return Err(format!("found '{}', expected: identifier after ','", other.literal())),
            },
            other => return Err(format!("found '{}', expected: ',' or 'end of string'", other.literal())),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum SelectorToken<'t> {
    Text(&'t str),
    Symbol(&'t str),
    End,
}

impl SelectorToken<'_> {
    fn literal(&self) -> String {
        match self {
            Self::Text(text) | Self::Symbol(text) => shorten(text, 128),
            Self::End => String::new(),
        }
    }
}

struct SelectorLexer<'t> {
    text: &'t str,
    chars: Peekable<CharIndices<'t>>,
}

impl<'t> SelectorLexer<'t> {
    fn all(mut self) -> Vec<SelectorToken<'t>> {
        let mut words = Vec::new();
        while let Some((start, char)) = self.chars.next() {
            if char.is_ascii_whitespace() {
                continue;
            }
            let symbol = is_symbol(char);
            let mut end = start + char.len_utf8();
            while let Some((at, next)) = self.chars.peek().copied() {
                let goes_on = match symbol {
                    // `==` and `!=` are the only symbols of two.
                    true => next == '=' && end == start + 1 && matches!(char, '=' | '!'),
                    false => !is_symbol(next) && !next.is_ascii_whitespace(),
                };
                if !goes_on {
                    break;
                }
                end = at + next.len_utf8();
                self.chars.next();
            }
            let word = &self.text[start..end];
            words.push(if symbol { SelectorToken::Symbol(word) } else { SelectorToken::Text(word) });
        }
        words
    }
}

fn is_symbol(char: char) -> bool {
    matches!(char, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

struct SelectorParser<'t> {
    /// Those still to be read, the next one last.
    words: Vec<SelectorToken<'t>>,
    /// Values that were read.
    values: usize,
}

impl<'t> SelectorParser<'t> {
    fn peek(&self) -> SelectorToken<'t> {
        self.words.last().copied().unwrap_or(SelectorToken::End)
    }

    fn take(&mut self) -> SelectorToken<'t> {
        self.words.pop().unwrap_or(SelectorToken::End)
    }

    fn requirement(&mut self) -> Result<LabelRequirement, String> {
        let absent = self.peek() == SelectorToken::Symbol("!");
        if absent {
            self.take();
        }
        let key = self.text()?.to_owned();
        if let Some(fault) = key_fault(&key) {
            return Err(format!("<nil>: Invalid value: {:?}: {fault}", shorten(&key, 128)));
        }
        if absent {
            return Ok(LabelRequirement { key, operator: Operator::Absent });
        }
        if matches!(self.peek(), SelectorToken::End | SelectorToken::Symbol(",")) {
            return Ok(LabelRequirement { key, operator: Operator::Exists });
        }
        let operator = match self.take() {
            SelectorToken::Text("in") => Operator::In(self.values(&key)?),
            SelectorToken::Text("notin") => Operator::NotIn(self.values(&key)?),
            SelectorToken::Symbol("=" | "==") => Operator::In(vec![self.value(&key)?]),
            SelectorToken::Symbol("!=") => Operator::NotIn(vec![self.value(&key)?]),
            SelectorToken::Symbol(">") => Operator::Above(self.bound(&key)?),
            SelectorToken::Symbol("<") => Operator::Below(self.bound(&key)?),
            other => return Err(format!("found '{}', expected: in, notin, =, ==, !=, gt, lt", other.literal())),
        };
        Ok(LabelRequirement { key, operator })
    }

    fn text(&mut self) -> Result<&'t str, String> {
        match self.take() {
            SelectorToken::Text(text) => Ok(text),
            other => Err(format!("found '{}', expected: identifier", other.literal())),
        }
    }

    /// The value after `=`; nothing is the empty value.
    fn value(&mut self, key: &str) -> Result<String, String> {
        let value = match self.peek() {
            SelectorToken::End | SelectorToken::Symbol(",") => "",
            _ => self.text()?,
        };
        check_value(key, 0, value)?;
        Ok(value.to_owned())
    }

    fn bound(&mut self, key: &str) -> Result<i64, String> {
        let value = self.value(key)?;
        value.parse().map_err(|_| {
            format!("values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer")
        })
    }

    /// The values in parentheses. `(a,,b)` has the empty value, too.
    fn values(&mut self, key: &str) -> Result<Vec<String>, String> {
        match self.take() {
            SelectorToken::Symbol("(") => {}
            other => return Err(format!("found '{}' expected: '('", other.literal())),
        }
        if self.peek() == SelectorToken::Symbol(")") {
            return Err("values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty".into());
        }
        let mut values: Vec<String> = Vec::new();
        loop {
            let value = match self.peek() {
                SelectorToken::Text(text) => {
                    self.take();
                    text
                }
                SelectorToken::Symbol("," | ")") => "",
                other => return Err(format!("found '{}', expected: ',', ')' or identifier", other.literal())),
            };
            check_value(key, values.len(), value)?;
            values.push(value.to_owned());
            self.values += 1;
            if values.len() > VALUES_MAX {
                return Err(too_many_values());
            }
            match self.take() {
                SelectorToken::Symbol(",") => {}
                SelectorToken::Symbol(")") => return Ok(values),
                other => return Err(format!("found '{}', expected: ',' or ')'", other.literal())),
            }
        }
    }
}

fn too_many_values() -> String {
    format!("a label selector may name at most {VALUES_MAX} values")
}

fn check_value(key: &str, index: usize, value: &str) -> Result<(), String> {
    let faults = names::label_value(value);
    if faults.is_empty() {
        return Ok(());
    }
    Err(format!("values[{index}][{key}]: Invalid value: {:?}: {}", shorten(value, 128), faults.join("; ")))
}

/// What is wrong with a qualified name, `[prefix/]name`.
fn key_fault(key: &str) -> Option<String> {
    let faults = names::qualified(key);
    (!faults.is_empty()).then(|| faults.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_select_as_kubernetes_says() {
        let labels = labels(&[("app", "web"), ("empty", ""), ("example.org/tier", "2"), ("in", "notin")]);
        for (selector, wanted) in [
            ("", true),
            ("  ", true),
            ("app=web", true),
            ("app==web,example.org/tier", true),
            ("app!=web", false),
            ("missing!=x", true),
            ("app in (api, web)", true),
            ("app in(api,web)", true),
            ("app notin (api)", true),
            ("app in (api),empty=", false),
            ("empty in (,x)", true),
            ("!app", false),
            ("! missing,empty=", true),
            ("empty=,app", true),
            ("example.org/tier>1", true),
            ("example.org/tier<2", false),
            ("in in (notin)", true),
            ("in", true),
            ("example.org/tier>1,example.org/tier<3,example.org/tier!=3", true),
            ("example.org/tier>1,example.org/tier<2", false),
            ("app>1", false),
            ("missing>1", false),
            ("zone", false),
            ("!a,!b,!zone,in", true),
        ] {
            assert_eq!(parse(selector).unwrap().matches(&labels), wanted, "{selector:?}");
        }
    }

    fn labels(labels: &[(&str, &str)]) -> Vec<(Box<str>, Box<str>)> {
        labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn requirements_on_one_key_are_one_rule() {
        for (selector, same) in [
            ("b,a,b,a", "a,b"),
            ("a!=x,a!=y,a!=x", "a notin (y,x)"),
            ("a in (x,y),a in (y,z)", "a=y"),
            ("a in (x,y),a!=x", "a=y"),
            ("a in (2,4,8),a>2,a<8", "a=4"),
            ("a,a=x", "a=x"),
            ("a>1,a>3,a<9,a<7", "a<7,a>3"),
            ("!a,a!=x,!a", "!a,a!=x"),
        ] {
            assert_eq!(parse(selector).unwrap(), parse(same).unwrap(), "{selector:?}");
        }
        let number = format!("a>{}", i64::MAX);
        for selector in ["a,!a", "a=x,b,a=y", "z=x,z!=x", "a>1,a<2", "a in (x),a>1", "!a,a>1", &number, "a>5,a<5"] {
            let selector = parse(selector).unwrap();
            assert_eq!(selector.0.len(), 1, "{selector:?}");
            for values in [&[][..], &[("a", "x"), ("b", "")], &[("a", "2")], &[("z", "x")], &[("a", "y"), ("z", "y")]] {
                assert!(!selector.matches(&labels(values)), "{selector:?} {values:?}");
            }
        }
        assert_eq!(parse("a!=x,".repeat(64).trim_end_matches(',')).unwrap().0.len(), 1);
    }

    /// Whatever is required in whatever order, the rules say what the requirements say one by one.
    #[test]
    fn rules_say_what_requirements_say() {
        use rand::prelude::*;
        let mut random = StdRng::seed_from_u64(7);
        let terms = ["{}", "!{}", "{}=1", "{}!=1", "{} in (1,2)", "{} notin (2,x)", "{}>1", "{}<2", "{}=x"];
        let holds = |requirement: &LabelRequirement, value: Option<&str>| {
            let number = || value?.parse::<i64>().ok();
            let is_in = |values: &[String]| value.is_some_and(|value| values.iter().any(|one| one == value));
            match &requirement.operator {
                Operator::In(values) => is_in(values),
                Operator::NotIn(values) => !is_in(values),
                Operator::Exists => value.is_some(),
                Operator::Absent => value.is_none(),
                Operator::Above(bound) => number().is_some_and(|number| number > *bound),
                Operator::Below(bound) => number().is_some_and(|number| number < *bound),
            }
        };
        for _ in 0..5000 {
            let mut pick = |of: &[&'static str]| *of.choose(&mut random).unwrap();
            let some: Vec<String> = (0..4).map(|_| pick(&terms).replace("{}", pick(&["a", "b", "c"]))).collect();
            let selector = some.join(",");
            let has: Vec<_> = ["a", "b", "c"].map(|key| (key, pick(&["", "1", "2", "3", "x", "-"]))).into();
            let has: Vec<_> = has.into_iter().filter(|(_, value)| *value != "-").collect();
            let wanted = requirements(&selector).unwrap().iter().all(|requirement| {
                holds(requirement, has.iter().find(|(key, _)| *key == requirement.key).map(|(_, value)| *value))
            });
            assert_eq!(parse(&selector).unwrap().matches(&labels(&has)), wanted, "{selector:?} {has:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_in_upstreams_words() {
        for (selector, wanted) in [
            ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
            ("app in web", "unable to parse requirement: found 'web' expected: '('"),
            ("app=(", "unable to parse requirement: found '(', expected: identifier"),
            ("app=a b", "found 'b', expected: ',' or 'end of string'"),
            ("=x", "found '=', expected: !, identifier, or 'end of string'"),
            ("a,", "found '', expected: identifier after ','"),
            ("app in (a", "unable to parse requirement: found '', expected: ',' or ')'"),
            (
                "tier>x",
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
            ("!", "unable to parse requirement: found '', expected: identifier"),
        ] {
            assert_eq!(parse(selector).unwrap_err(), wanted, "{selector:?}");
        }
        for (selector, start) in [
            ("app=ü", "unable to parse requirement: values[0][app]: Invalid value: \"ü\": a valid label must be"),
            (
                "a/b/c=x",
                "unable to parse requirement: <nil>: Invalid value: \"a/b/c\": a qualified name must consist of",
            ),
            ("A_/b", "unable to parse requirement: <nil>: Invalid value: \"A_/b\": prefix part a lowercase RFC 1123"),
            ("-a", "unable to parse requirement: <nil>: Invalid value: \"-a\": name part must consist of"),
        ] {
            let error = parse(selector).unwrap_err();
            assert!(error.starts_with(start), "{selector:?}: {error}");
        }
        assert!(parse(&"a,".repeat(1000)).is_err());
    }
}
