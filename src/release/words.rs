//! What of a sentence everybody may read who may view a cluster.
//!
//! What a script prints may be a secret. It stands in LCMMachines, which `view` does not read, and in sentences of `release::lcm`.

/// Longest sentence, in bytes.
const MOST: usize = 1000;
/// What stands before the output of a step that failed: `… failed with exit code 1 (attempt 2): output`.
const ATTEMPT: &str = " (attempt ";

/// What is told instead of the output, and what to do.
const INSTEAD: &str = "its LCMMachine has its last lines; mend it, for its agent tries again";

/// A sentence without what a step printed, and not too long.
pub fn public(sentence: &str) -> String {
    if let Some(end) = end_before_output(sentence).filter(|end| *end <= MOST) {
        return format!("{}: {INSTEAD}", &sentence[..end]);
    }
    let mut end = sentence.len().min(MOST);
    while !sentence.is_char_boundary(end) {
        end -= 1;
    }
    sentence[..end].to_owned()
}

/// Where a step's output begins.
fn end_before_output(sentence: &str) -> Option<usize> {
    sentence.match_indices(ATTEMPT).find_map(|(at, _)| {
        let number = at + ATTEMPT.len();
        let rest = &sentence[number..];
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let output = rest[digits..].starts_with("):");
        (digits > 0 && output).then_some(number + digits + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_step_printed_is_not_told() {
        for (sentence, wanted) in [
            ("", ""),
            ("waits for manager m1, which is not Ready yet", "waits for manager m1, which is not Ready yet"),
            ("step join failed with exit code 1 (attempt 2)", "step join failed with exit code 1 (attempt 2)"),
            (
                "step join failed with exit code 1 (attempt 12): token abc: denied",
                "step join failed with exit code 1 (attempt 12): its LCMMachine has its last lines; mend it, for its agent tries again",
            ),
            (
                "manager m does not get on: step a failed with exit code 1 (attempt 1): (attempt 2): x; mend it",
                "manager m does not get on: step a failed with exit code 1 (attempt 1): its LCMMachine has its last lines; mend it, for its agent tries again",
            ),
            ("is new (attempt x): y", "is new (attempt x): y"),
        ] {
            assert_eq!(public(sentence), wanted);
        }
        let long = public(&"ä".repeat(2000));
        assert!(long.len() <= MOST && long.chars().all(|c| c == 'ä'));
        // What is beyond the bound is not told either.
        assert!(!public(&format!("{} (attempt 1): prize", "x".repeat(MOST - 5))).contains("prize"));
    }
}
