//! What a PromQL query names: series, and the labels by which they are chosen and grouped. Whether it is well formed is promtool's to
//! say.

use std::collections::{BTreeMap, BTreeSet};

/// Words of the language that stand where a series could.
const WORDS: [&str; 24] = [
    "and",
    "or",
    "unless",
    "bool",
    "offset",
    "atan2",
    "inf",
    "nan",
    "sum",
    "min",
    "max",
    "avg",
    "count",
    "group",
    "stddev",
    "stdvar",
    "topk",
    "bottomk",
    "quantile",
    "count_values",
    "start",
    "end",
    "group_left",
    "group_right",
];
/// Words with a list of labels behind them.
const OF_LABELS: [&str; 4] = ["by", "without", "on", "ignoring"];

/// What a query names.
#[derive(Debug, Default)]
pub struct Query {
    /// Series, each with the labels that choose among it, and the one value that a label must have.
    pub selectors: Vec<(String, BTreeMap<String, Option<String>>)>,
    /// Labels that are grouped or joined by.
    pub grouped: BTreeSet<String>,
}

#[derive(Debug, PartialEq)]
enum Token {
    Name(String),
    Text(String),
    Sign(char),
}

fn tokens(text: &str) -> Vec<Token> {
    let mut all = Vec::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' | '\'' | '`' => {
                let mut text = String::new();
                while let Some(next) = rest.next().filter(|next| *next != c) {
                    text.extend(if next == '\\' { rest.next() } else { Some(next) });
                }
                all.push(Token::Text(text));
            }
            // A range or a subquery.
            '[' => while rest.next().is_some_and(|next| next != ']') {},
            c if c.is_ascii_digit() => {
                while rest.next_if(|next| next.is_ascii_alphanumeric() || *next == '.').is_some() {}
            }
            c if c.is_ascii_alphabetic() || c == '_' || c == ':' => {
                let mut name = String::from(c);
                while let Some(next) = rest.next_if(|next| next.is_ascii_alphanumeric() || "_:".contains(*next)) {
                    name.push(next);
                }
                all.push(Token::Name(name));
            }
            c if c.is_whitespace() => {}
            sign => all.push(Token::Sign(sign)),
        }
    }
    all
}

impl Query {
    pub fn parse(text: &str) -> Self {
        let tokens = tokens(text);
        let mut query = Self::default();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            let Token::Name(name) = token else { continue };
            let next = tokens.get(at);
            if OF_LABELS.contains(&name.as_str()) {
                query.grouped.extend(names(list(&tokens, &mut at, ')')));
            } else if next == Some(&Token::Sign('{')) {
                query.selectors.push((name.clone(), matchers(list(&tokens, &mut at, '}'))));
            } else if next != Some(&Token::Sign('(')) && !WORDS.contains(&name.to_lowercase().as_str()) {
                query.selectors.push((name.clone(), BTreeMap::new()));
            }
        }
        query
    }
}

/// What a list has from here up to its end.
fn list<'t>(tokens: &'t [Token], at: &mut usize, end: char) -> &'t [Token] {
    let from = *at;
    while *at < tokens.len() && tokens[*at] != Token::Sign(end) {
        *at += 1;
    }
    &tokens[from..*at]
}

/// Labels of a selector, each with the value that it must have where it is `=` that asks for it.
fn matchers(tokens: &[Token]) -> BTreeMap<String, Option<String>> {
    let mut all = BTreeMap::new();
    for (at, token) in tokens.iter().enumerate() {
        let Token::Name(label) = token else { continue };
        let value = match (tokens.get(at + 1), tokens.get(at + 2)) {
            (Some(Token::Sign('=')), Some(Token::Text(value))) => Some(value.clone()),
            _ => None,
        };
        all.insert(label.clone(), value);
    }
    all
}

fn names(tokens: &[Token]) -> Vec<String> {
    let name = |token: &Token| match token {
        Token::Name(name) => Some(name.clone()),
        Token::Text(_) | Token::Sign(_) => None,
    };
    tokens.iter().filter_map(name).collect()
}

#[test]
fn a_query_names_its_series_and_labels() {
    let text = r#"sum by (instance, le) (rate(a_bucket{code=~"5..|by",x!="{b}",y="z"}[5m])) > 0.2 * on (job) group_left sum(rate(b_total[1h:5m])) and c == 0 offset 1d"#;
    let query = Query::parse(text);
    let named: Vec<&str> = query.selectors.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(named, ["a_bucket", "b_total", "c"]);
    let matched: Vec<(&str, Option<&str>)> =
        query.selectors[0].1.iter().map(|(label, value)| (label.as_str(), value.as_deref())).collect();
    assert_eq!(matched, [("code", None), ("x", None), ("y", Some("z"))]);
    assert_eq!(query.grouped.into_iter().collect::<Vec<_>>(), ["instance", "job", "le"]);
}
