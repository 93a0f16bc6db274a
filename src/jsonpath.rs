//! JSONPath as kubectl has it: templates of text and `{…}`, paths with filters, unions and slices, `range` and `end`.
//! Pure.
//!
//! `-o jsonpath`, custom columns, `--sort-by` and `--for=jsonpath` speak it, and so do the printer columns of kinds
//! (`additionalPrinterColumns`). Missing fields are no error.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use serde_json::Value;

mod parse;

use parse::{closing, quoted, steps};

/// A template with its parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Template(Vec<TemplatePart>);

/// One path.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// Whether it begins at the document (`$`) instead of at the current object.
    root: bool,
    steps: Vec<PathStep>,
}

#[derive(Clone, Debug, PartialEq)]
enum TemplatePart {
    Text(String),
    Path(Path),
    Range(Path, Vec<TemplatePart>),
}

#[derive(Clone, Debug, PartialEq)]
enum PathStep {
    Fields(Vec<String>),
    Indexes(Vec<i64>),
    Slice(Option<i64>, Option<i64>, i64),
    All,
    Descend,
    Filter(Path, Option<(FilterOperator, Operand)>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum FilterOperator {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Value(Value),
    Path(Path),
}

/// Filters within filters.
const DEPTH_MAX: usize = 8;

/// The text is no template.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("JSONPath {text:?}: {reason}")]
pub struct JsonPathError {
    text: String,
    reason: String,
}

impl Template {
    /// Reads a template as `{range .items[*]}{.metadata.name}{"\n"}{end}`.
    ///
    /// # Errors
    ///
    /// [`JsonPathError`] for what is no template.
    pub fn parse(text: &str) -> Result<Self, JsonPathError> {
        let fail = |reason: String| JsonPathError { text: text.to_owned(), reason };
        let mut open: Vec<(Path, Vec<TemplatePart>)> = Vec::new();
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let Some(begin) = rest.find('{') else {
                parts.push(TemplatePart::Text(rest.to_owned()));
                break;
            };
            if begin > 0 {
                parts.push(TemplatePart::Text(rest[..begin].to_owned()));
            }
            let inner = &rest[begin + 1..];
            let end = closing(inner, '{', '}').ok_or_else(|| fail("unclosed action".into()))?;
            rest = &inner[end + 1..];
            let action = inner[..end].trim();
            if action == "end" {
                let (path, before) = open.pop().ok_or_else(|| fail("end without range".into()))?;
                let body = std::mem::replace(&mut parts, before);
                parts.push(TemplatePart::Range(path, body));
            } else if let Some(path) =
                action.strip_prefix("range").filter(|path| path.starts_with([' ', '.', '[', '$', '@']))
            {
                let path = Path::read(path.trim(), 0).map_err(fail)?;
                open.push((path, std::mem::take(&mut parts)));
            } else if let Some(literal) = quoted(action) {
                parts.push(TemplatePart::Text(literal));
            } else {
                parts.push(TemplatePart::Path(Path::read(action, 0).map_err(fail)?));
            }
        }
        if open.is_empty() { Ok(Self(parts)) } else { Err(fail("range without end".into())) }
    }

    /// The text for an object.
    pub fn render(&self, object: &Value) -> String {
        let mut out = String::new();
        render(&self.0, object, object, &mut out);
        out
    }
}

fn render(parts: &[TemplatePart], root: &Value, current: &Value, out: &mut String) {
    for part in parts {
        match part {
            TemplatePart::Text(text) => out.push_str(text),
            TemplatePart::Path(path) => {
                let found: Vec<String> = path.find_in(root, current).into_iter().map(shown).collect();
                out.push_str(&found.join(" "));
            }
            TemplatePart::Range(path, body) => {
                for entry in path.find_in(root, current) {
                    render(body, root, entry, out);
                }
            }
        }
    }
}

/// A value as templates print it.
pub fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

impl Path {
    /// Reads one path, with or without braces, `$` and the first dot.
    ///
    /// # Errors
    ///
    /// [`JsonPathError`] for what is no path.
    pub fn parse(text: &str) -> Result<Self, JsonPathError> {
        let inner = text.trim();
        let inner = inner.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(inner);
        Self::read(inner, 0).map_err(|reason| JsonPathError { text: text.to_owned(), reason })
    }

    /// As [`Path::parse`], for a path that somebody else gives: each step must lead to a value once at most, so that a
    /// short path cannot mean much work. No `..`, no slices, no unions; and no filter that looks at the whole document, or
    /// has filters within it, for each of many entries.
    ///
    /// # Errors
    ///
    /// [`JsonPathError`] for what is no path, or no such path.
    pub fn parse_plain(text: &str) -> Result<Self, JsonPathError> {
        let fail = |reason: &str| JsonPathError { text: text.to_owned(), reason: reason.to_owned() };
        let path = Self::parse(text)?;
        if path.steps.is_empty() {
            return Err(fail("names no field"));
        }
        if path.is_plain(0) {
            Ok(path)
        } else {
            Err(fail("may have no .., no slice, no union, no filter within a filter and no $ in one"))
        }
    }

    fn is_plain(&self, filters: usize) -> bool {
        let in_filter = |path: &Self| !path.root && path.is_plain(filters + 1);
        self.steps.iter().all(|step| match step {
            PathStep::Fields(names) => names.len() == 1,
            PathStep::Indexes(all) => all.len() == 1,
            PathStep::All => true,
            PathStep::Slice(..) | PathStep::Descend => false,
            PathStep::Filter(path, test) => {
                let other = match test {
                    Some((_, Operand::Path(other))) => in_filter(other),
                    _ => true,
                };
                filters == 0 && in_filter(path) && other
            }
        })
    }

    fn read(text: &str, depth: usize) -> Result<Self, String> {
        let (root, text) = match text.strip_prefix('$') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('@').unwrap_or(text)),
        };
        steps(text, depth).map(|steps| Self { root, steps })
    }

    /// The member names that the path begins with: all that it looks at lies below them, unless a filter looks at the
    /// whole document.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        let names = if self.looks_at_root() { &[][..] } else { &self.steps };
        names.iter().map_while(|step| match step {
            PathStep::Fields(names) if names.len() == 1 => Some(names[0].as_str()),
            _ => None,
        })
    }

    /// Whether a filter begins at the document.
    fn looks_at_root(&self) -> bool {
        let at_root = |path: &Self| path.root || path.looks_at_root();
        self.steps.iter().any(|step| match step {
            PathStep::Filter(path, test) => {
                at_root(path) || matches!(test, Some((_, Operand::Path(other))) if at_root(other))
            }
            _ => false,
        })
    }

    /// Everything at the path.
    pub fn find<'v>(&self, object: &'v Value) -> Vec<&'v Value> {
        self.find_in(object, object)
    }

    /// The first value at the path.
    pub fn first<'v>(&self, object: &'v Value) -> Option<&'v Value> {
        self.first_in(object, object)
    }

    fn find_in<'v>(&self, root: &'v Value, current: &'v Value) -> Vec<&'v Value> {
        let mut found = Vec::new();
        // Nothing stops it.
        let _: ControlFlow<()> = self.visit(root, current, &mut |value| {
            found.push(value);
            ControlFlow::Continue(())
        });
        found
    }

    fn first_in<'v>(&self, root: &'v Value, current: &'v Value) -> Option<&'v Value> {
        self.visit(root, current, &mut ControlFlow::Break).break_value()
    }

    /// Shows every value at the path, in order, until `see` has seen enough.
    fn visit<'v, B>(
        &self,
        root: &'v Value,
        current: &'v Value,
        see: &mut dyn FnMut(&'v Value) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        walk(&self.steps, root, if self.root { root } else { current }, see)
    }
}

fn walk<'v, B>(
    steps: &[PathStep],
    root: &'v Value,
    value: &'v Value,
    see: &mut dyn FnMut(&'v Value) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let Some((step, rest)) = steps.split_first() else { return see(value) };
    // The common case, without a list of one.
    if let PathStep::Fields(names) = step
        && let [name] = names.as_slice()
    {
        return value.get(name).map_or(ControlFlow::Continue(()), |value| walk(rest, root, value, see));
    }
    step.of(root, value).into_iter().try_for_each(|value| walk(rest, root, value, see))
}

impl PathStep {
    fn of<'v>(&self, root: &'v Value, value: &'v Value) -> Vec<&'v Value> {
        let entries = || value.as_array().map_or(&[][..], Vec::as_slice);
        match self {
            Self::Fields(names) => names.iter().filter_map(|name| value.get(name)).collect(),
            Self::Indexes(all) => {
                all.iter().filter_map(|index| entries().get(place(*index, entries().len())?)).collect()
            }
            Self::Slice(from, to, step) => slice(entries(), *from, *to, *step),
            Self::All => children(value),
            Self::Descend => {
                let mut all = vec![value];
                let mut at = 0;
                while at < all.len() {
                    all.extend(children(all[at]));
                    at += 1;
                }
                all
            }
            Self::Filter(path, test) => {
                children(value).into_iter().filter(|entry| holds(root, entry, path, test.as_ref())).collect()
            }
        }
    }
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(entries) => entries.iter().collect(),
        Value::Object(map) => map.values().collect(),
        _ => Vec::new(),
    }
}

/// The place that an index stands for; negative ones count from the end.
fn place(index: i64, length: usize) -> Option<usize> {
    let length = i64::try_from(length).ok()?;
    usize::try_from(if index < 0 { length + index } else { index }).ok()
}

fn slice(entries: &[Value], from: Option<i64>, to: Option<i64>, step: i64) -> Vec<&Value> {
    let length = entries.len();
    let clamp = |index: i64| place(index, length).unwrap_or(0).min(length);
    let (from, to) = (from.map_or(0, clamp), to.map_or(length, clamp));
    let step = usize::try_from(step).unwrap_or(1).max(1);
    if from >= to { Vec::new() } else { entries[from..to].iter().step_by(step).collect() }
}

fn holds(root: &Value, entry: &Value, path: &Path, test: Option<&(FilterOperator, Operand)>) -> bool {
    let Some(left) = path.first_in(root, entry) else { return false };
    let Some((comparison, operand)) = test else { return true };
    let right = match operand {
        Operand::Value(value) => Some(value),
        Operand::Path(path) => path.first_in(root, entry),
    };
    let Some(right) = right else { return false };
    let order = match (left, right) {
        (Value::Number(a), Value::Number(b)) => {
            a.as_f64().unwrap_or_default().partial_cmp(&b.as_f64().unwrap_or_default())
        }
        (left, right) => Some(shown(left).cmp(&shown(right))),
    };
    match comparison {
        FilterOperator::Equal => order == Some(Ordering::Equal),
        FilterOperator::Unequal => order != Some(Ordering::Equal),
        FilterOperator::Less => order == Some(Ordering::Less),
        FilterOperator::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        FilterOperator::Greater => order == Some(Ordering::Greater),
        FilterOperator::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
    }
}

#[cfg(test)]
mod tests;
