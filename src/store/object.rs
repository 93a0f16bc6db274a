//! A stored object: its JSON text, and the little that is asked of it all the time.
//!
//! A parsed object takes five to ten times the memory of its text, so only the text is kept, and that packed. What selectors, tables and
//! the garbage collection ask of every object at every turn is read once, when the object comes into being.

use std::hash::{Hash, Hasher};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use siphasher::sip::SipHasher13;

use super::retired::{Retired, RetiredMark};
use super::text::StoredText;
use crate::json_marks::marks;

/// One stored object, immutable.
#[derive(Debug)]
pub struct Object {
    /// `<group>/<plural>`, group empty for core: `metal3.io/baremetalhosts`, `/secrets`.
    pub resource: Arc<str>,
    /// Empty when cluster-scoped.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Revision of its last write; `metadata.resourceVersion` says the same.
    pub revision: u64,
    /// The object as JSON text, ready to send once it is unpacked.
    text: StoredText,
    /// Labels, in order of their keys.
    labels: Box<[(Box<str>, Box<str>)]>,
    /// Where `metadata` is in the unpacked text.
    metadata: Range<usize>,
    /// Where `apiVersion` and `kind` are in the unpacked text, each with its key and a comma, in the order of the text.
    typing: [Range<usize>; 2],
    owned: bool,
    /// Of the uid and the references to owners.
    ownership: u64,
    ending: bool,
    /// What is kept of it unpacked, in bytes.
    unpacked: usize,
    retired: RetiredMark,
}

/// What a label takes besides its text, in bytes: two places in a list and two allocations.
const LABEL_WEIGHT: usize = 64;

/// What a value takes besides its text where an object is kept parsed, in bytes: a string and its place in a map.
const VALUE_WEIGHT: usize = 96;

/// What an object takes besides its text, as it is kept, in bytes.
pub(super) const OBJECT_WEIGHT: usize = 1024;

/// What a reference to an owner takes besides the names in it, in bytes: the garbage collector finds dependents by owner.
const OWNER_WEIGHT: usize = 320;

/// The members of the text that are looked at.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Outline<'t> {
    #[serde(borrow)]
    metadata: Option<&'t RawValue>,
    #[serde(borrow)]
    api_version: Option<&'t RawValue>,
    #[serde(borrow)]
    kind: Option<&'t RawValue>,
}

/// Where a part of a text is in it.
fn place(json: &[u8], part: &RawValue) -> Range<usize> {
    let start = part.get().as_ptr().addr() - json.as_ptr().addr();
    start..start + part.get().len()
}

/// Where a member is, with its key and the comma that goes with it; nowhere when the text is not as the store writes it.
fn member(json: &[u8], key: &str, value: Option<&RawValue>) -> Range<usize> {
    let found = value.and_then(|value| {
        let Range { start, end } = place(json, value);
        let begin = start.checked_sub(key.len())?;
        if json.get(begin..start)? != key.as_bytes() {
            return None;
        }
        // In the store's order of members `metadata` always follows, and with it a comma.
        (json.get(end) == Some(&b',')).then(|| begin..end + 1)
    });
    found.unwrap_or(0..0)
}

/// What is kept of `metadata`. Any JSON will do: what does not fit is taken for absent.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Digest {
    uid: Value,
    labels: Value,
    owner_references: Value,
    deletion_timestamp: Value,
}

impl Object {
    /// An object of this text.
    ///
    /// # Errors
    ///
    /// When the text is not a JSON object.
    pub fn new(
        resource: Arc<str>,
        namespace: String,
        name: String,
        revision: u64,
        json: &[u8],
    ) -> Result<Self, serde_json::Error> {
        Self::with_text(resource, namespace, name, revision, json, || StoredText::new(json))
    }

    /// As [`Object::new`], of a text and the form in which it is kept.
    pub(super) fn with_text(
        resource: Arc<str>,
        namespace: String,
        name: String,
        revision: u64,
        json: &[u8],
        text: impl FnOnce() -> StoredText,
    ) -> Result<Self, serde_json::Error> {
        let outline: Outline<'_> = serde_json::from_slice(json)?;
        let (metadata, digest) = match outline.metadata {
            Some(text) => (place(json, text), serde_json::from_str(text.get()).unwrap_or_default()),
            None => (0..0, Digest::default()),
        };
        let labels = digest.labels.as_object().into_iter().flatten();
        let labels: Box<[(Box<str>, Box<str>)]> =
            labels.filter_map(|(key, value)| Some((key.as_str().into(), value.as_str()?.into()))).collect();
        let owners = digest.owner_references.as_array().map_or(&[][..], Vec::as_slice);
        let owned = !owners.is_empty();
        let mut hasher = SipHasher13::new();
        (&digest.uid, owners).hash(&mut hasher);
        let ownership = hasher.finish();
        let this = namespace.len() + name.len() + OWNER_WEIGHT;
        let unpacked = labels.iter().map(|(key, value)| key.len() + value.len() + LABEL_WEIGHT).sum::<usize>()
            + owners.iter().map(|owner| owner["uid"].as_str().map_or(0, str::len) + this).sum::<usize>();
        let ending = !digest.deletion_timestamp.is_null();
        let mut typing =
            [member(json, "\"apiVersion\":", outline.api_version), member(json, "\"kind\":", outline.kind)];
        typing.sort_by_key(|range| range.start);
        Ok(Self {
            resource,
            namespace,
            name,
            revision,
            text: text(),
            labels,
            metadata,
            typing,
            owned,
            ownership,
            ending,
            unpacked,
            retired: RetiredMark::default(),
        })
    }

    pub(super) fn text(&self) -> &StoredText {
        &self.text
    }

    /// The object as JSON text, ready to send. Costs some microseconds for a large one.
    pub fn json(&self) -> Bytes {
        self.text.unpacked()
    }

    /// Length of its JSON text, in bytes.
    pub fn json_len(&self) -> usize {
        self.text.len()
    }

    /// Bytes that its text takes as it is kept.
    pub(super) fn size(&self) -> usize {
        self.text.size()
    }

    /// Bytes that are kept of it beside its text: labels and who owns it are not packed.
    pub(super) fn unpacked(&self) -> usize {
        self.unpacked
    }

    /// Bytes that it takes parsed, roughly.
    pub(super) fn parsed(&self) -> usize {
        let json = self.json();
        let values = 1 + marks(&json).filter(|mark| matches!(mark, b',' | b'{' | b'[')).count();
        json.len() + values * VALUE_WEIGHT
    }

    /// The store lets go of it: what it takes is counted until nobody has it any more.
    pub(super) fn retire(&self, retired: &Retired) {
        self.retired.set(retired, self.size() + self.unpacked + OBJECT_WEIGHT);
    }

    /// Bytes that it takes though the store has let go of it; 0 when it has not.
    pub fn retired(&self) -> usize {
        self.retired.bytes()
    }

    /// Adds its JSON text.
    pub fn put_json(&self, out: &mut Vec<u8>) {
        self.text.put(out);
    }

    /// The object, parsed. Costs some ten microseconds for a large one: ask once.
    pub fn value(&self) -> Value {
        // The text was read when the object was made, and the store takes none that is nested too deeply.
        serde_json::from_slice(&self.json()).unwrap_or_default()
    }

    /// Its `metadata`, parsed; null when it has none.
    pub fn metadata(&self) -> Value {
        serde_json::from_slice(self.metadata_in(&self.json())).unwrap_or_default()
    }

    /// Its `metadata` in its text, which [`Object::json`] gave; empty when it has none.
    pub fn metadata_in<'t>(&self, json: &'t [u8]) -> &'t [u8] {
        json.get(self.metadata.clone()).unwrap_or_default()
    }

    /// Adds the text without `apiVersion` and `kind`, as lists of typed objects have their items.
    pub fn put_untyped_json(&self, out: &mut Vec<u8>) {
        let json = self.json();
        let [first, second] = &self.typing;
        for part in [0..first.start, first.end..second.start, second.end..json.len()] {
            out.extend_from_slice(json.get(part).unwrap_or_default());
        }
    }

    /// Length of what [`Object::put_untyped_json`] adds, in bytes.
    pub fn untyped_json_len(&self) -> usize {
        self.json_len() - self.typing.iter().map(Range::len).sum::<usize>()
    }

    /// Keys and values of its labels, in the order of the keys.
    pub fn labels(&self) -> &[(Box<str>, Box<str>)] {
        &self.labels
    }

    /// Whether it names owners.
    pub fn is_owned(&self) -> bool {
        self.owned
    }

    /// The same for two objects that are one and name the same owners in the same words.
    pub fn ownership(&self) -> u64 {
        self.ownership
    }

    /// Whether it is being deleted.
    pub fn is_ending(&self) -> bool {
        self.ending
    }
}

/// Length of a value as JSON text, in bytes.
pub fn json_len(value: &Value) -> usize {
    struct SizeCounter(usize);
    impl io::Write for SizeCounter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = SizeCounter(0);
    // Counting does not fail; what cannot be written is refused when it is.
    serde_json::to_writer(&mut counter, value).ok();
    counter.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> Result<Object, serde_json::Error> {
        Object::new("/x".into(), "ns".into(), "n".into(), 7, text.as_bytes())
    }

    #[test]
    fn what_is_asked_often_is_read_once() {
        let text = r#"{"kind":"X","metadata":{"labels":{"b":"2","a":"1","é":""},"ownerReferences":[{}]},"spec":{"metadata":1}}"#;
        let one = object(text).unwrap();
        let labels: Vec<_> = one.labels().iter().map(|(key, value)| (&**key, &**value)).collect();
        assert_eq!(labels, [("a", "1"), ("b", "2"), ("é", "")]);
        assert_eq!((one.is_owned(), one.is_ending()), (true, false));
        assert_eq!(one.metadata(), one.value()["metadata"]);
        let other =
            object(r#"{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z","ownerReferences":[]}}"#).unwrap();
        assert_eq!((other.is_owned(), other.is_ending()), (false, true));
    }

    #[test]
    fn items_of_lists_leave_their_type_out() {
        for (text, wanted) in [
            (
                r#"{"apiVersion":"v1","data":{"kind":"x"},"kind":"X","metadata":{}}"#,
                r#"{"data":{"kind":"x"},"metadata":{}}"#,
            ),
            (r#"{"a":1,"apiVersion":"v1","kind":"X"}"#, r#"{"a":1,"kind":"X"}"#),
            (r#"{"kind":"X","metadata":{}}"#, r#"{"metadata":{}}"#),
            (r#"{"metadata":{}}"#, r#"{"metadata":{}}"#),
            // Not as the store writes: sent as it is.
            (r#"{"kind": "X","metadata":{}}"#, r#"{"kind": "X","metadata":{}}"#),
        ] {
            let mut untyped = Vec::new();
            let one = object(text).unwrap();
            one.put_untyped_json(&mut untyped);
            assert_eq!(one.untyped_json_len(), untyped.len(), "{text}");
            assert_eq!(String::from_utf8(untyped).unwrap(), wanted, "{text}");
        }
    }

    #[test]
    fn odd_metadata_is_no_fault() {
        for text in [
            r#"{}"#,
            r#"{"metadata":null}"#,
            r#"{"metadata":{"labels":[1],"ownerReferences":"x"}}"#,
            r#"{"metadata":{"labels":{"a":1}}}"#,
        ] {
            let one = object(text).unwrap();
            assert_eq!((one.labels(), one.is_owned()), (&[][..], false), "{text}");
        }
        assert!(object("[]").is_err() || object("[]").unwrap().metadata().is_null());
        assert!(object("{").is_err());
    }
}
