//! Counting the values of JSON before they are made: each takes many times its text. Pure.

/// How many values a text has, if it is JSON: each but the first follows a comma, or is the first of what holds it.
pub(super) fn count_values(text: &[u8]) -> usize {
    let (mut values, mut in_text, mut escaped, mut begins) = (1, false, false, false);
    for byte in text {
        if in_text {
            (in_text, escaped) = (escaped || *byte != b'"', !escaped && *byte == b'\\');
            continue;
        }
        if byte.is_ascii_whitespace() {
            continue;
        }
        if std::mem::take(&mut begins) && !matches!(byte, b'}' | b']') {
            values += 1;
        }
        match byte {
            b',' => values += 1,
            b'{' | b'[' => begins = true,
            b'"' => in_text = true,
            _ => {}
        }
    }
    values
}
