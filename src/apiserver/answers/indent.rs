//! JSON with a line for each member, piece by piece, without parsing it into values.

/// What has been written so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Indent {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// An array or object was begun, and it is not known yet whether it is empty.
    opened: bool,
}

impl Indent {
    /// Adds what this JSON becomes to `out`, until that has `limit` bytes or somewhat more; returns how many bytes of the
    /// JSON that took.
    pub fn put(&mut self, json: &[u8], out: &mut Vec<u8>, limit: usize) -> usize {
        let mut at = 0;
        while at < json.len() && out.len() < limit {
            if self.in_string {
                at += self.put_string(&json[at..], out, limit);
                continue;
            }
            let byte = json[at];
            at += 1;
            match byte {
                b'\n' => {}
                b'}' | b']' if std::mem::take(&mut self.opened) => out.push(byte),
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.line(out);
                    out.push(byte);
                }
                b',' => {
                    out.push(byte);
                    self.line(out);
                }
                b':' => out.extend_from_slice(b": "),
                _ => {
                    self.begin(out);
                    out.push(byte);
                    self.opened = matches!(byte, b'{' | b'[');
                    self.in_string = byte == b'"';
                }
            }
        }
        at
    }

    /// Adds what comes before a value, which the caller adds then.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.opened) {
            self.depth += 1;
            self.line(out);
        }
    }

    fn line(&self, out: &mut Vec<u8>) {
        out.push(b'\n');
        out.resize(out.len() + 2 * self.depth, b' ');
    }

    /// Adds the rest of a string, or as much of it as there is room for.
    fn put_string(&mut self, json: &[u8], out: &mut Vec<u8>, limit: usize) -> usize {
        let most = json.len().min(limit.saturating_sub(out.len()).max(1));
        let mut length = 0;
        for byte in &json[..most] {
            length += 1;
            (self.in_string, self.escaped) = (self.escaped || *byte != b'"', !self.escaped && *byte == b'\\');
            if !self.in_string {
                break;
            }
        }
        out.extend_from_slice(&json[..length]);
        length
    }

    /// Whether what this JSON becomes has more than `most` bytes.
    pub fn exceeds(&self, json: &[u8], most: usize) -> bool {
        const PIECE: usize = 16 * 1024;
        let (mut indent, mut piece) = (self.clone(), Vec::with_capacity(PIECE + PIECE / 4));
        let (mut at, mut length) = (0, 0);
        while at < json.len() && length <= most {
            piece.clear();
            at += indent.put(&json[at..], &mut piece, PIECE);
            length += piece.len();
        }
        length > most
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::apiserver::answers::encoding::tricky;

    fn indented(json: &str, limit: usize) -> String {
        let (mut indent, mut out, mut at) = (Indent::default(), Vec::new(), 0);
        while at < json.len() {
            let mut piece = Vec::new();
            at += indent.put(&json.as_bytes()[at..], &mut piece, limit);
            assert!(piece.len() <= limit + 2 * indent.depth + 2, "{} bytes", piece.len());
            out.extend(piece);
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn it_is_as_serde_writes_it_wherever_it_is_cut() {
        let list = Value::Array(tricky());
        for value in tricky().iter().chain([&list]) {
            let whole = serde_json::to_string_pretty(value).unwrap();
            for limit in [1, 2, 7, 64, usize::MAX / 2] {
                assert_eq!(indented(&value.to_string(), limit), whole);
            }
        }
    }

    #[test]
    fn what_grows_too_much_is_known_before_it_is_written() {
        let deep = format!("{}{}", "[".repeat(90), "]".repeat(90)).replacen("[]", &json!(vec![0; 1000]).to_string(), 1);
        let length = indented(&deep, usize::MAX / 2).len();
        assert!(length > 90 * deep.len(), "{length} bytes of {}", deep.len());
        let indent = Indent::default();
        assert!(indent.exceeds(deep.as_bytes(), length - 1) && !indent.exceeds(deep.as_bytes(), length));
    }
}
