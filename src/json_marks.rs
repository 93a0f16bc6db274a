//! JSON text before it is parsed: what it is made of, so that it can be counted first. Pure.
//!
//! Each value takes many times its text once it is parsed, so whoever reads what others wrote counts before.

/// The bytes of JSON text that count: none within strings, of which only the quote that begins one is told, and no space between
/// values. Whether it is JSON, its reader finds.
pub fn marks(json: &[u8]) -> impl Iterator<Item = u8> {
    let (mut in_string, mut is_escaped) = (false, false);
    json.iter().copied().filter(move |byte| {
        if in_string {
            (in_string, is_escaped) = (is_escaped || *byte != b'"', !is_escaped && *byte == b'\\');
            return false;
        }
        in_string = *byte == b'"';
        !byte.is_ascii_whitespace()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_strings_does_not_count() {
        for (json, wanted) in [
            (r#"{"a": [1, {}]}"#, r#"{":[1,{}]}"#),
            (r#"["{\"[", "\\", "]"]"#, r#"[",","]"#),
            (r#""never closed {[,"#, r#"""#),
            ("\\\"{", "\\\""),
            ("", ""),
        ] {
            assert_eq!(String::from_utf8(marks(json.as_bytes()).collect()).unwrap(), wanted, "{json}");
        }
    }
}
