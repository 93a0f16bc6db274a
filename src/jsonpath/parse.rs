//! A path as it is written: its steps.

use super::{DEPTH_MAX, FilterOperator, Operand, Path, PathStep};

pub(super) fn steps(mut rest: &str, depth: usize) -> Result<Vec<PathStep>, String> {
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let end = closing(inner, '[', ']').ok_or("unclosed bracket")?;
            steps.push(bracket(inner[..end].trim(), depth)?);
            rest = &inner[end + 1..];
        } else if let Some(after) = rest.strip_prefix("..") {
            steps.push(PathStep::Descend);
            rest = after;
            if !rest.is_empty() && !rest.starts_with('[') {
                rest = one_field(rest, &mut steps)?;
            }
        } else {
            let named = rest.strip_prefix('.').unwrap_or(rest);
            if named.is_empty() {
                break;
            }
            rest = if named.starts_with('[') { named } else { one_field(named, &mut steps)? };
        }
    }
    Ok(steps)
}

fn one_field<'t>(text: &'t str, steps: &mut Vec<PathStep>) -> Result<&'t str, String> {
    let mut name = String::new();
    let mut rest = "";
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '.' | '[' => {
                rest = &text[at..];
                break;
            }
            '\\' => name.push(chars.next().ok_or("ends in a backslash")?.1),
            ' ' | '{' | '}' | '(' | ')' => return Err(format!("unexpected {char:?}")),
            other => name.push(other),
        }
    }
    steps.push(match name.as_str() {
        "" => return Err("empty field name".into()),
        "*" => PathStep::All,
        _ => PathStep::Fields(vec![name]),
    });
    Ok(rest)
}

fn bracket(text: &str, depth: usize) -> Result<PathStep, String> {
    if text == "*" {
        return Ok(PathStep::All);
    }
    if let Some(condition) = text.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        return filter(condition.trim(), depth + 1);
    }
    if text.contains(':') && !text.starts_with(['\'', '"']) {
        let mut bounds = Vec::new();
        for part in text.split(':') {
            let part = part.trim();
            bounds.push(if part.is_empty() { None } else { Some(part.parse::<i64>().map_err(|_| bad(text))?) });
        }
        return match bounds.as_slice() {
            [from, to] => Ok(PathStep::Slice(*from, *to, 1)),
            [from, to, step] => Ok(PathStep::Slice(*from, *to, step.unwrap_or(1))),
            _ => Err(bad(text)),
        };
    }
    let parts = split_outside_quotes(text);
    if let Some(names) = parts.iter().map(|part| quoted(part.trim())).collect::<Option<Vec<_>>>() {
        return Ok(PathStep::Fields(names));
    }
    let indexes = parts.iter().map(|part| part.trim().parse::<i64>()).collect::<Result<Vec<_>, _>>();
    indexes.map(PathStep::Indexes).map_err(|_| bad(text))
}

fn bad(text: &str) -> String {
    format!("[{text}] is neither an index, a name in quotes nor a filter")
}

fn filter(condition: &str, depth: usize) -> Result<PathStep, String> {
    if depth > DEPTH_MAX {
        return Err("filters are nested too deeply".into());
    }
    const OPERATORS: [(&str, FilterOperator); 6] = [
        ("==", FilterOperator::Equal),
        ("!=", FilterOperator::Unequal),
        ("<=", FilterOperator::LessOrEqual),
        (">=", FilterOperator::GreaterOrEqual),
        ("<", FilterOperator::Less),
        (">", FilterOperator::Greater),
    ];
    let path = |text: &str| {
        let text = text.trim();
        if text.starts_with(['@', '$', '.']) {
            Path::read(text, depth)
        } else {
            Err("a filter begins with @".to_owned())
        }
    };
    let (mut quote, mut inner) = (None, 0_u32);
    for (at, char) in condition.char_indices() {
        match (quote, char) {
            (Some(open), _) if open == char => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(char),
            // A filter within the path has its own comparison.
            (None, '[') => inner += 1,
            (None, ']') => inner = inner.saturating_sub(1),
            (None, _) if inner > 0 => {}
            (None, _) => {
                let here = &condition[at..];
                let Some((sign, comparison)) = OPERATORS.iter().find(|(sign, _)| here.starts_with(sign)) else {
                    continue;
                };
                let right = here[sign.len()..].trim();
                let operand = match quoted(right) {
                    Some(text) => Operand::Value(text.into()),
                    None if right.starts_with(['@', '$']) => Operand::Path(path(right)?),
                    None => Operand::Value(serde_json::from_str(right).unwrap_or_else(|_| right.into())),
                };
                return Ok(PathStep::Filter(path(&condition[..at])?, Some((*comparison, operand))));
            }
        }
    }
    Ok(PathStep::Filter(path(condition)?, None))
}

fn split_outside_quotes(text: &str) -> Vec<&str> {
    let (mut quote, mut begin, mut parts) = (None, 0, Vec::new());
    for (at, char) in text.char_indices() {
        match (quote, char) {
            (Some(open), _) if open == char => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(char),
            (None, ',') => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            (None, _) => {}
        }
    }
    parts.push(&text[begin..]);
    parts
}

/// Where the bracket ends, quotes and inner brackets respected.
pub(super) fn closing(text: &str, opens: char, closes: char) -> Option<usize> {
    let (mut quote, mut depth, mut escaped) = (None, 0_u32, false);
    for (at, char) in text.char_indices() {
        if std::mem::take(&mut escaped) {
            continue;
        }
        match (quote, char) {
            (_, '\\') => escaped = true,
            (Some(open), _) if open == char => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(char),
            (None, _) if char == opens => depth += 1,
            (None, _) if char == closes && depth == 0 => return Some(at),
            (None, _) if char == closes => depth -= 1,
            (None, _) => {}
        }
    }
    None
}

/// The text inside quotes, with `\n`, `\t` and the like resolved.
pub(super) fn quoted(text: &str) -> Option<String> {
    let quote = text.chars().next().filter(|char| ['"', '\''].contains(char))?;
    let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
    let mut out = String::new();
    let mut chars = inner.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => match chars.next()? {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                other => out.push(other),
            },
            char if char == quote => return None,
            other => out.push(other),
        }
    }
    Some(out)
}
