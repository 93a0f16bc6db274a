//! Label selectors: the language of `labelSelector` and its meaning (apimachinery's `labels.Parse`), with the
//! words in which upstream refuses what it does not understand. Pure.

use std::iter::Peekable;
use std::str::CharIndices;

use crate::apiserver::names;
use crate::apiserver::status::shorten;

/// Requirements in one selector, and values in one requirement; more is not a question but an attack.
const PARTS_MAX: usize = 256;

/// What must hold for one label.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Requirement {
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

impl Requirement {
    /// Whether an object with this value (or without the label) is selected.
    pub fn matches<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        let value = label(&self.key);
        let number = || value?.parse::<i64>().ok();
        match &self.operator {
            Operator::In(values) => value.is_some_and(|value| values.iter().any(|one| one == value)),
            Operator::NotIn(values) => value.is_none_or(|value| values.iter().all(|one| one != value)),
            Operator::Exists => value.is_some(),
            Operator::Absent => value.is_none(),
            Operator::Above(bound) => number().is_some_and(|number| number > *bound),
            Operator::Below(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

/// Reads a selector. The error is the sentence for the client.
pub(super) fn parse(text: &str) -> Result<Vec<Requirement>, String> {
    let mut words = Words { text, chars: text.char_indices().peekable() }.all();
    words.reverse();
    let mut reader = Reader { words };
    let mut requirements = Vec::new();
    loop {
        match reader.peek() {
            Word::End => return Ok(requirements),
            Word::Text(_) | Word::Symbol("!") => {}
            other => return Err(format!("found '{}', expected: !, identifier, or 'end of string'", other.literal())),
        }
        let requirement = reader.requirement().map_err(|reason| format!("unable to parse requirement: {reason}"))?;
        requirements.push(requirement);
        if requirements.len() > PARTS_MAX {
            return Err(format!("more than {PARTS_MAX} requirements"));
        }
        match reader.take() {
            Word::End => return Ok(requirements),
            Word::Symbol(",") => match reader.peek() {
                Word::Text(_) | Word::Symbol("!") => {}
                other => return Err(format!("found '{}', expected: identifier after ','", other.literal())),
            },
            other => return Err(format!("found '{}', expected: ',' or 'end of string'", other.literal())),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Word<'t> {
    Text(&'t str),
    Symbol(&'t str),
    End,
}

impl Word<'_> {
    fn literal(&self) -> String {
        match self {
            Self::Text(text) | Self::Symbol(text) => shorten(text, 128),
            Self::End => String::new(),
        }
    }
}

struct Words<'t> {
    text: &'t str,
    chars: Peekable<CharIndices<'t>>,
}

impl<'t> Words<'t> {
    fn all(mut self) -> Vec<Word<'t>> {
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
            words.push(if symbol { Word::Symbol(word) } else { Word::Text(word) });
        }
        words
    }
}

fn is_symbol(char: char) -> bool {
    matches!(char, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

struct Reader<'t> {
    /// Those still to be read, the next one last.
    words: Vec<Word<'t>>,
}

impl<'t> Reader<'t> {
    fn peek(&self) -> Word<'t> {
        self.words.last().copied().unwrap_or(Word::End)
    }

    fn take(&mut self) -> Word<'t> {
        self.words.pop().unwrap_or(Word::End)
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let absent = self.peek() == Word::Symbol("!");
        if absent {
            self.take();
        }
        let key = self.text()?.to_owned();
        if let Some(fault) = key_fault(&key) {
            return Err(format!("<nil>: Invalid value: {:?}: {fault}", shorten(&key, 128)));
        }
        if absent {
            return Ok(Requirement { key, operator: Operator::Absent });
        }
        if matches!(self.peek(), Word::End | Word::Symbol(",")) {
            return Ok(Requirement { key, operator: Operator::Exists });
        }
        let operator = match self.take() {
            Word::Text("in") => Operator::In(self.values(&key)?),
            Word::Text("notin") => Operator::NotIn(self.values(&key)?),
            Word::Symbol("=" | "==") => Operator::In(vec![self.value(&key)?]),
            Word::Symbol("!=") => Operator::NotIn(vec![self.value(&key)?]),
            Word::Symbol(">") => Operator::Above(self.bound(&key)?),
            Word::Symbol("<") => Operator::Below(self.bound(&key)?),
            other => return Err(format!("found '{}', expected: in, notin, =, ==, !=, gt, lt", other.literal())),
        };
        Ok(Requirement { key, operator })
    }

    fn text(&mut self) -> Result<&'t str, String> {
        match self.take() {
            Word::Text(text) => Ok(text),
            other => Err(format!("found '{}', expected: identifier", other.literal())),
        }
    }

    /// The value after `=`; nothing is the empty value.
    fn value(&mut self, key: &str) -> Result<String, String> {
        let value = match self.peek() {
            Word::End | Word::Symbol(",") => "",
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
            Word::Symbol("(") => {}
            other => return Err(format!("found '{}' expected: '('", other.literal())),
        }
        if self.peek() == Word::Symbol(")") {
            return Err("values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty".into());
        }
        let mut values: Vec<String> = Vec::new();
        loop {
            let value = match self.peek() {
                Word::Text(text) => {
                    self.take();
                    text
                }
                Word::Symbol("," | ")") => "",
                other => return Err(format!("found '{}', expected: ',', ')' or identifier", other.literal())),
            };
            check_value(key, values.len(), value)?;
            values.push(value.to_owned());
            if values.len() > PARTS_MAX {
                return Err(format!("more than {PARTS_MAX} values"));
            }
            match self.take() {
                Word::Symbol(",") => {}
                Word::Symbol(")") => return Ok(values),
                other => return Err(format!("found '{}', expected: ',' or ')'", other.literal())),
            }
        }
    }
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
        let labels = [("app", "web"), ("example.org/tier", "2"), ("empty", ""), ("in", "notin")];
        let label = |key: &str| labels.iter().find(|(one, _)| *one == key).map(|(_, value)| *value);
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
        ] {
            let requirements = parse(selector).unwrap();
            assert_eq!(requirements.iter().all(|one| one.matches(label)), wanted, "{selector:?}");
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
