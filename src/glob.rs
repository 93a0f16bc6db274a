//! Shell patterns: what a kernel module, a quirk profile and a discovery rule say of names.

/// Shell pattern: `*`, `?`, `[abc]`, `[a-z]`, `[!a]`; anything else stands for itself (fnmatch(3) without flags).
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut position) = (0, 0);
    // After the last star, and how much of the text it has taken.
    let mut star: Option<(usize, usize)> = None;
    loop {
        let step = match pattern.get(at) {
            Some(b'*') => {
                star = Some((at + 1, position));
                at += 1;
                continue;
            }
            None if position == text.len() => return true,
            None => None,
            Some(_) => text.get(position).and_then(|byte| one(&pattern[at..], *byte)),
        };
        match (step, &mut star) {
            (Some(length), _) => {
                at += length;
                position += 1;
            }
            (None, Some((after, taken))) if *taken < text.len() => {
                *taken += 1;
                at = *after;
                position = *taken;
            }
            (None, _) => return false,
        }
    }
}

/// Length of the pattern's first element when it stands for this byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'[', rest @ ..] => {
            let negated = matches!(rest.first(), Some(b'!' | b'^'));
            let set = &rest[usize::from(negated)..];
            // A bracket right at the start stands for itself.
            let end = 1 + set.get(1..)?.iter().position(|byte| *byte == b']')?;
            let mut inside = false;
            let mut index = 0;
            while index < end {
                if index + 2 < end && set[index + 1] == b'-' {
                    inside |= (set[index]..=set[index + 2]).contains(&byte);
                    index += 3;
                } else {
                    inside |= set[index] == byte;
                    index += 1;
                }
            }
            (inside != negated).then_some(1 + usize::from(negated) + end + 1)
        }
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [literal, ..] => (*literal == byte).then_some(1),
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_fnmatch_does() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("a*", "abc", true),
            ("a*c", "abcbc", true),
            ("a*c*", "abcd", true),
            ("a*d", "abc", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("?", "", false),
            ("[0-9]x", "7x", true),
            ("[0-9]x", "ax", false),
            ("[!0-9]", "a", true),
            ("[!0-9]", "5", false),
            ("[]a]", "]", true),
            ("[a-]", "-", true),
            ("[abc", "a", false),
            ("[", "[", false),
            (r"\*", "*", true),
            (r"\*", "a", false),
            ("pci:v*d*bc02*", "pci:v00008086d00001521sv1sd1bc02sc00i00", true),
            ("pci:v*d*bc03*", "pci:v00008086d00001521sv1sd1bc02sc00i00", false),
            ("**a**", "bab", true),
            ("*a", "aab", false),
            ("*sr675*", "thinksystem sr675 v3", true),
            ("a*a", "a", false),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxcyyb", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_takes_no_exponential_time() {
        let pattern = "*a".repeat(40) + "b";
        let text = "a".repeat(2000);
        assert!(!matches(pattern.as_bytes(), text.as_bytes()));
    }

    proptest::proptest! {
        #[test]
        fn no_pattern_panics(pattern in "[a*?\\[\\]!\\\\-]{0,12}", text in "[ab\\]-]{0,12}") {
            matches(pattern.as_bytes(), text.as_bytes());
        }
    }
}
