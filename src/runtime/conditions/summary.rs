//! One verdict on what several conditions say.

use std::collections::BTreeMap;

use super::{ConditionVerdict, Truth};

/// Objects of which a message that sums them up speaks; the others are counted.
const TOLD: usize = 10;

/// One verdict on what several conditions of an object say, each with whether it is good that it holds. What is not there is
/// unknown. `reasons` are for True, False and Unknown.
pub fn summary(parts: &[(&str, Option<ConditionVerdict>, bool)], reasons: [&str; 3]) -> ConditionVerdict {
    let mut worst = Truth::True;
    let mut lines = Vec::new();
    for (name, verdict, good) in parts {
        let truth = match (verdict.as_ref().map_or(Truth::Unknown, |verdict| verdict.truth), good) {
            (Truth::Unknown, _) => Truth::Unknown,
            (Truth::True, true) | (Truth::False, false) => Truth::True,
            _ => Truth::False,
        };
        if truth != Truth::True {
            let reason = verdict.as_ref().map_or("not known yet", |verdict| told(verdict));
            lines.push(format!("* {name}: {reason}"));
        }
        worst = worse(worst, truth);
    }
    verdict(worst, reasons, lines)
}

/// One verdict on what the same condition of several objects says: it holds when it does for each of them.
pub fn all<'a>(
    of: impl IntoIterator<Item = (&'a str, Option<ConditionVerdict>)>,
    reasons: [&str; 3],
) -> ConditionVerdict {
    let mut worst = Truth::True;
    let mut by_text: BTreeMap<(Truth, String), Vec<&str>> = BTreeMap::new();
    for (name, verdict) in of {
        let truth = verdict.as_ref().map_or(Truth::Unknown, |verdict| verdict.truth);
        worst = worse(worst, truth);
        if truth != Truth::True {
            let reason = verdict.as_ref().map_or("not known yet", |verdict| told(verdict)).to_owned();
            by_text.entry((truth, reason)).or_default().push(name);
        }
    }
    let mut lines: Vec<String> = by_text
        .iter()
        .take(TOLD)
        .map(|((_, reason), names)| {
            let more = names.len().saturating_sub(3);
            let few = names.iter().take(3).copied().collect::<Vec<_>>().join(", ");
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            format!("* {few}{more}: {reason}")
        })
        .collect();
    if by_text.len() > TOLD {
        lines.push(format!("* and {} more", by_text.len() - TOLD));
    }
    verdict(worst, reasons, lines)
}

fn verdict(truth: Truth, [yes, no, unknown]: [&str; 3], lines: Vec<String>) -> ConditionVerdict {
    let reason = match truth {
        Truth::True => yes,
        Truth::False => no,
        Truth::Unknown => unknown,
    };
    ConditionVerdict { truth, reason: reason.to_owned(), message: lines.join("\n") }
}

fn told(verdict: &ConditionVerdict) -> &str {
    if verdict.message.is_empty() { &verdict.reason } else { &verdict.message }
}

/// What is False counts more than what nobody knows.
fn worse(one: Truth, other: Truth) -> Truth {
    match (one, other) {
        (Truth::False, _) | (_, Truth::False) => Truth::False,
        (Truth::Unknown, _) | (_, Truth::Unknown) => Truth::Unknown,
        _ => Truth::True,
    }
}
