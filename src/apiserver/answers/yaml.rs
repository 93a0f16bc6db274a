//! YAML output, object by object.
//!
//! The library writes a text from its beginning to its end. So that whoever does not read an answer holds no large one, an
//! object's text is given out in windows, and the few that have several are written again for each.

use std::fmt;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_saphyr::FlowMap;

/// Bytes of a text that are given out at once. Most objects have fewer.
const WINDOW: usize = 1 << 20;

/// What the text of a list's item begins with when it is written as the only one.
const ITEMS: &str = "items:\n";

/// A value as YAML.
pub(in crate::apiserver) fn whole(value: &Value) -> Vec<u8> {
    // Writing JSON values as YAML into memory does not fail: their keys are strings.
    serde_saphyr::to_string(value).unwrap_or_default().into_bytes()
}

/// How an object's text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// It is the whole answer.
    Alone,
    /// As the first item of a list.
    First,
    /// As one that follows.
    Next,
}

/// The text of one object, window by window.
#[derive(Debug)]
pub(super) struct YamlText {
    position: Position,
    /// The text would be too long with a line for each member.
    flow: bool,
    /// Bytes that were given out, or are not to be.
    at: usize,
    begun: bool,
}

impl YamlText {
    /// The text of an object that is given as JSON.
    pub fn new(position: Position) -> Self {
        Self { position, flow: false, begun: false, at: if position == Position::Next { ITEMS.len() } else { 0 } }
    }

    /// Adds the next window, of the same JSON each time; whether it was the last. A text of more than `most` bytes is
    /// written in one line.
    pub fn put(&mut self, json: &[u8], out: &mut Vec<u8>, most: usize) -> bool {
        let start = out.len();
        let mut window = TextWindow::new(out, self.at);
        window.most = (!self.flow && !self.begun).then_some(most);
        self.write(json, &mut window);
        if window.too_long {
            self.flow = true;
            window.out.truncate(start);
            window = TextWindow::new(out, self.at);
            self.write(json, &mut window);
        }
        let more = window.more;
        self.at += out.len() - start;
        self.begun = true;
        !more
    }

    fn write(&self, json: &[u8], window: &mut TextWindow<'_>) {
        // It ends with an error when the window does not want the rest, and never otherwise.
        serde_saphyr::to_fmt_writer(window, &YamlItem { json, position: self.position, flow: self.flow }).ok();
    }
}

/// Takes a part of a text.
struct TextWindow<'o> {
    out: &'o mut Vec<u8>,
    /// Bytes that come before it.
    skip: usize,
    /// Bytes that it still takes.
    room: usize,
    /// There is more after it.
    more: bool,
    /// How long the text may be; `None` when that is settled, and the rest need not be written.
    most: Option<usize>,
    length: usize,
    too_long: bool,
}

impl<'o> TextWindow<'o> {
    fn new(out: &'o mut Vec<u8>, skip: usize) -> Self {
        Self { out, skip, room: WINDOW, more: false, most: None, length: 0, too_long: false }
    }
}

impl fmt::Write for TextWindow<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let rest = text.as_bytes().get(self.skip..).unwrap_or_default();
        self.skip -= self.skip.min(text.len());
        let taken = rest.len().min(self.room);
        self.out.extend_from_slice(&rest[..taken]);
        self.room -= taken;
        self.more |= taken < rest.len();
        self.length += text.len();
        self.too_long = self.most.is_some_and(|most| self.length > most);
        let enough = self.too_long || (self.more && self.most.is_none());
        if enough { Err(fmt::Error) } else { Ok(()) }
    }
}

/// An object where it stands.
struct YamlItem<'j> {
    json: &'j [u8],
    position: Position,
    flow: bool,
}

impl Serialize for YamlItem<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.position, self.flow) {
            (Position::Alone, false) => JsonText(self.json).serialize(serializer),
            (Position::Alone, true) => FlowMap(JsonText(self.json)).serialize(serializer),
            (_, false) => one_item(serializer, &JsonText(self.json)),
            (_, true) => one_item(serializer, &FlowMap(JsonText(self.json))),
        }
    }
}

fn one_item<S: Serializer>(serializer: S, item: &impl Serialize) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(1))?;
    map.serialize_entry("items", &[item])?;
    map.end()
}

/// JSON text, which is not made into values on its way.
struct JsonText<'j>(&'j [u8]);

impl Serialize for JsonText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_transcode::transcode(&mut serde_json::Deserializer::from_slice(self.0), serializer)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::apiserver::answers::encoding::tricky;

    fn text(json: &str, position: Position, most: usize) -> String {
        let (mut lines, mut out) = (YamlText::new(position), Vec::new());
        loop {
            let start = out.len();
            let last = lines.put(json.as_bytes(), &mut out, most);
            assert!(out.len() - start <= WINDOW);
            if last {
                return String::from_utf8(out).unwrap();
            }
        }
    }

    fn listed(texts: impl Iterator<Item = String>) -> Value {
        serde_saphyr::from_str::<Value>(&texts.collect::<String>()).unwrap()["items"].clone()
    }

    #[test]
    fn objects_are_written_as_the_library_writes_the_whole() {
        let objects = tricky();
        let whole = serde_saphyr::to_string(&json!({ "items": objects })).unwrap();
        let position = |index| if index == 0 { Position::First } else { Position::Next };
        let texts = |most| {
            let texts = objects.iter().enumerate();
            texts.map(move |(index, object)| text(&object.to_string(), position(index), most))
        };
        assert_eq!(texts(usize::MAX).collect::<String>(), whole);
        for object in &objects {
            assert_eq!(
                text(&object.to_string(), Position::Alone, usize::MAX),
                serde_saphyr::to_string(object).unwrap()
            );
            let line = text(&object.to_string(), Position::Alone, 0);
            assert_eq!(serde_saphyr::from_str::<Value>(&line).unwrap(), *object, "{line}");
        }
        assert_eq!(listed(texts(usize::MAX)), Value::Array(objects.clone()));
        assert_eq!(listed(texts(0)), Value::Array(objects.clone()));
    }

    #[test]
    fn what_is_long_comes_in_windows_and_what_grows_too_much_in_one_line() {
        let lines = json!({"a": "one\ntwo\n".repeat(WINDOW / 4), "b": 1});
        let long = text(&lines.to_string(), Position::Alone, 8 * WINDOW);
        assert!(long.len() > 2 * WINDOW, "{}", long.len());
        assert_eq!(long, serde_saphyr::to_string(&lines).unwrap());
        let mut deep = json!(vec![0; WINDOW / 2]);
        for _ in 0..90 {
            deep = json!([deep]);
        }
        let deep = json!({ "deep": deep });
        let json = deep.to_string();
        for position in [Position::Alone, Position::First] {
            let line = text(&json, position, 4 * WINDOW);
            assert!(line.len() < 2 * json.len() && line.lines().count() <= 2, "{}", line.len());
        }
        let line = text(&json, Position::Alone, 4 * WINDOW);
        assert_eq!(line.matches('0').count(), WINDOW / 2);
    }
}
