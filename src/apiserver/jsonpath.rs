//! The JSONPath of printer columns (`additionalPrinterColumns`): fields, quoted names, indexes, `[*]` and equality
//! filters, as `.status.conditions[?(@.type=="Ready")].status`.

use serde_json::Value;

/// A compiled path.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    Filter { path: Vec<Step>, value: String, equal: bool },
}

/// The text is no path that this server understands.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("JSONPath {path:?}: {reason}")]
pub struct JsonPathError {
    path: String,
    reason: &'static str,
}

impl JsonPath {
    /// Reads a path, with or without the leading dot or `$`.
    pub fn parse(text: &str) -> Result<Self, JsonPathError> {
        let fail = |reason| JsonPathError { path: text.to_owned(), reason };
        steps(text.strip_prefix('$').unwrap_or(text)).map(Self).map_err(fail)
    }

    /// The member names that the path begins with: all that it looks at lies below them.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map_while(|step| match step {
            Step::Field(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// The first value at the path.
    pub fn first<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        walk(&self.0, value)
    }
}

fn steps(mut rest: &str) -> Result<Vec<Step>, &'static str> {
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let end = closing(inner).ok_or("unclosed bracket")?;
            steps.push(bracket(inner[..end].trim())?);
            rest = &inner[end + 1..];
            continue;
        }
        let name = rest.strip_prefix('.').unwrap_or(rest);
        let (field, tail) = field(name)?;
        steps.push(if field == "*" { Step::All } else { Step::Field(field) });
        rest = tail;
    }
    Ok(steps)
}

/// A field name up to the next dot or bracket; a backslash keeps the character after it.
fn field(text: &str) -> Result<(String, &str), &'static str> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '.' | '[' if !name.is_empty() => return Ok((name, &text[at..])),
            '.' | '[' => return Err("empty field name"),
            '\\' => name.push(chars.next().ok_or("ends in a backslash")?.1),
            other => name.push(other),
        }
    }
    if name.is_empty() { Err("empty field name") } else { Ok((name, "")) }
}

/// Where the bracket ends, quotes and inner brackets respected.
fn closing(text: &str) -> Option<usize> {
    let (mut quote, mut depth) = (None, 0_u32);
    for (at, char) in text.char_indices() {
        match (quote, char) {
            (Some(open), _) if open == char => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(char),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            (None, _) => {}
        }
    }
    None
}

fn unquote(text: &str) -> Option<&str> {
    ['"', '\''].into_iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote))
}

fn bracket(text: &str) -> Result<Step, &'static str> {
    if text == "*" {
        return Ok(Step::All);
    }
    if let Some(name) = unquote(text) {
        return Ok(Step::Field(name.to_owned()));
    }
    if let Some(condition) = text.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        let (left, right, equal) = match (condition.split_once("=="), condition.split_once("!=")) {
            (Some((left, right)), _) => (left, right, true),
            (None, Some((left, right))) => (left, right, false),
            (None, None) => return Err("only == and != filters are known"),
        };
        let path = left.trim().strip_prefix('@').ok_or("a filter begins with @")?;
        let right = right.trim();
        return Ok(Step::Filter { path: steps(path)?, value: unquote(right).unwrap_or(right).to_owned(), equal });
    }
    text.parse().map(Step::Index).map_err(|_| "unknown bracket")
}

fn walk<'v>(path: &[Step], value: &'v Value) -> Option<&'v Value> {
    let Some((step, rest)) = path.split_first() else { return Some(value) };
    match step {
        Step::Field(name) => walk(rest, value.get(name)?),
        Step::Index(index) => {
            let entries = value.as_array()?;
            let at = if *index < 0 { entries.len() as i64 + index } else { *index };
            walk(rest, entries.get(usize::try_from(at).ok()?)?)
        }
        Step::All => match value {
            Value::Array(entries) => entries.iter().find_map(|entry| walk(rest, entry)),
            Value::Object(map) => map.values().find_map(|entry| walk(rest, entry)),
            _ => None,
        },
        Step::Filter { path, value: wanted, equal } => {
            let matches = |entry: &&Value| {
                let found = walk(path, entry).map(|found| match found {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                });
                (found.as_deref() == Some(wanted)) == *equal
            };
            value.as_array()?.iter().filter(matches).find_map(|entry| walk(rest, entry))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn finds_what_printer_columns_ask_for() {
        let value = json!({
            "metadata": {"labels": {"example.org/role": "edge"}},
            "status": {"state": "ok", "n": 0, "list": [1, 2, 3],
                "conditions": [{"type": "A", "status": "False"}, {"type": "Ready", "status": "True"}]}
        });
        for (path, wanted) in [
            (".status.state", Some(json!("ok"))),
            ("$.status.state", Some(json!("ok"))),
            (".status.n", Some(json!(0))),
            (".status.none.deeper", None),
            (".status.list[1]", Some(json!(2))),
            (".status.list[-1]", Some(json!(3))),
            (".status.list[9]", None),
            (".status.list[*]", Some(json!(1))),
            (".status.conditions[?(@.type==\"Ready\")].status", Some(json!("True"))),
            (".status.conditions[?(@.type!='Ready')].status", Some(json!("False"))),
            (".status.conditions[?(@.type=='Gone')].status", None),
            (".metadata.labels['example.org/role']", Some(json!("edge"))),
            (".metadata.labels.example\\.org/role", Some(json!("edge"))),
        ] {
            assert_eq!(JsonPath::parse(path).unwrap().first(&value), wanted.as_ref(), "{path}");
        }
        for path in ["..", ".a[", ".a[x]", ".a[?(b)]", ".a\\"] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
    }
}
