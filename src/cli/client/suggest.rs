//! Suggestions for misspelt names.

/// The known word nearest to the one that was written, when it is near enough to be meant.
pub(super) fn nearest<'w>(written: &str, known: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    let written = written.to_lowercase();
    let mut best: Option<(usize, &str)> = None;
    for word in known {
        let distance = strsim::damerau_levenshtein(&written, &word.to_lowercase());
        if distance <= allowed(&written) && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, word));
        }
    }
    best.map(|(_, word)| word)
}

/// Errors that a word of this length may have: one in short words, about one in three letters at most.
fn allowed(word: &str) -> usize {
    (word.chars().count() / 3).clamp(1, 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_near_is_meant() {
        let hosts = ["web-01", "web-02", "db-1"];
        for (written, wanted) in [
            ("web-1", Some("web-01")),
            ("web-2", Some("web-02")),
            ("wbe-01", Some("web-01")),
            ("DB-1", Some("db-1")),
            ("db-2", Some("db-1")),
            ("storage", None),
            ("x", None),
        ] {
            assert_eq!(nearest(written, hosts), wanted, "{written}");
        }
        assert_eq!(nearest("baremetalhost", ["secrets", "baremetalhosts"]), Some("baremetalhosts"));
        assert_eq!(nearest("secrt", ["secrets", "secret"]), Some("secret"));
    }
}
