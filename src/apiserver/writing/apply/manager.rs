//! `metadata.managedFields`: who owns which fields, read and written.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::set::Set;

/// Managers by update that an object keeps; the oldest become one beyond that.
const UPDATERS_MAX: usize = 10;
/// Managers of one object, all together: with each write the fields of each are compared with what changes.
pub const MANAGERS_MAX: usize = 256;
/// Name of the manager that stands for those.
const ANCIENT: &str = "ancient-changes";

/// What a manager does with its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
pub enum ManagerOperation {
    /// It applies them and wants them to stay.
    Apply,
    /// It wrote them once.
    Update,
}

/// Which manager. What an applier owns it owns in all versions, so its version is no part of who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manager {
    /// Its name.
    pub name: String,
    /// What it does.
    pub operation: ManagerOperation,
    /// Version its fields are in.
    pub api_version: String,
    /// Subresource that it writes; empty for the object itself.
    pub subresource: String,
}

impl Manager {
    /// Whether both are one manager.
    pub fn is(&self, other: &Self) -> bool {
        self.name == other.name
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == ManagerOperation::Apply || self.api_version == other.api_version)
    }

    /// What [`Self::is`] compares.
    fn key(&self) -> (&str, ManagerOperation, &str, &str) {
        let version = if self.operation == ManagerOperation::Apply { "" } else { self.api_version.as_str() };
        (self.name.as_str(), self.operation, self.subresource.as_str(), version)
    }

    /// As messages about conflicts name it.
    pub fn shown(&self) -> String {
        let mut text = format!("{:?}", self.name);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource {:?}", self.subresource));
        }
        if self.operation == ManagerOperation::Update {
            text.push_str(&format!(" using {}", self.api_version));
        }
        text
    }
}

/// One manager's fields.
#[derive(Clone, Debug, PartialEq)]
pub struct ManagedFieldsEntry {
    /// Who.
    pub manager: Manager,
    /// When it last changed something.
    pub time: Option<Timestamp>,
    /// What it owns.
    pub fields: Set,
}

/// An entry as clients see it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManagedFieldsWire {
    #[serde(default)]
    manager: String,
    operation: ManagerOperation,
    api_version: String,
    #[serde(default)]
    time: Option<Timestamp>,
    fields_type: String,
    #[serde(default)]
    fields_v1: Option<Set>,
    #[serde(default)]
    subresource: String,
}

impl TryFrom<ManagedFieldsWire> for ManagedFieldsEntry {
    type Error = ();

    fn try_from(wire: ManagedFieldsWire) -> Result<Self, ()> {
        if wire.api_version.is_empty() || wire.fields_type != "FieldsV1" || check_name(&wire.manager).is_err() {
            return Err(());
        }
        let ManagedFieldsWire { manager: name, operation, api_version, time, fields_v1, subresource, .. } = wire;
        Ok(Self {
            manager: Manager { name, operation, api_version, subresource },
            time: time.and_then(|time| Timestamp::from_second(time.as_second()).ok()),
            fields: fields_v1.unwrap_or_default(),
        })
    }
}

/// Longest name of a manager in bytes.
const NAME_MAX: usize = 128;
/// Longest name of a subresource in bytes.
const SUBRESOURCE_MAX: usize = 256;

/// What is wrong with a manager's name, in upstream's words.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.len() > NAME_MAX {
        return Err(format!("Too long: may not be more than {NAME_MAX} bytes"));
    }
    match name.char_indices().find(|(_, letter)| !is_printable(*letter)) {
        Some((at, letter)) => {
            let name = super::go::quoted(name);
            Err(format!("Invalid value: {name}: invalid character U+{:04X} (at position {at})", u32::from(letter)))
        }
        None => Ok(()),
    }
}

fn is_printable(letter: char) -> bool {
    letter == ' ' || (!letter.is_control() && !letter.is_whitespace())
}

/// The manager's name for a client that gives none: the first word of its user agent.
pub fn name_of_agent(agent: &str) -> String {
    let mut name = String::new();
    for letter in agent.split('/').next().unwrap_or_default().chars().filter(|letter| is_printable(*letter)) {
        if name.len() + letter.len_utf8() > NAME_MAX {
            break;
        }
        name.push(letter);
    }
    name
}

/// Reads `managedFields`; `None` when they are none that a server wrote.
pub fn decode(value: &Value) -> Option<Vec<ManagedFieldsEntry>> {
    of_wire(Deserialize::deserialize(value).ok()?)
}

fn of_wire(wire: Vec<ManagedFieldsWire>) -> Option<Vec<ManagedFieldsEntry>> {
    let mut entries: Vec<ManagedFieldsEntry> = Vec::with_capacity(wire.len());
    for one in wire {
        if one.subresource.len() > SUBRESOURCE_MAX {
            return None;
        }
        entries.push(ManagedFieldsEntry::try_from(one).ok()?);
    }
    // Of one manager the last entry counts, in the place of the first.
    Some(joined(entries, |other, entry| *other = entry))
}

/// Each manager once, where it stands first.
fn joined(
    entries: Vec<ManagedFieldsEntry>,
    join: impl Fn(&mut ManagedFieldsEntry, ManagedFieldsEntry),
) -> Vec<ManagedFieldsEntry> {
    let mut places = HashMap::with_capacity(entries.len());
    let mut place_of = Vec::with_capacity(entries.len());
    for entry in &entries {
        let next = places.len();
        place_of.push(*places.entry(entry.manager.key()).or_insert(next));
    }
    drop(places);
    let mut out: Vec<ManagedFieldsEntry> = Vec::new();
    for (entry, place) in entries.into_iter().zip(place_of) {
        match out.get_mut(place) {
            Some(first) => join(first, entry),
            None => out.push(entry),
        }
    }
    out
}

/// Writes `managedFields` in upstream's order.
pub fn encode(entries: &mut [ManagedFieldsEntry]) -> Value {
    entries.sort_by(order);
    let write = |entry: &ManagedFieldsEntry| {
        let Manager { name, operation, api_version, subresource } = &entry.manager;
        let mut out = Map::new();
        let mut put = |key: &str, value: Value| out.insert(key.to_owned(), value);
        put("apiVersion", api_version.as_str().into());
        put("fieldsType", "FieldsV1".into());
        put("fieldsV1", entry.fields.to_value());
        put("operation", if *operation == ManagerOperation::Apply { "Apply" } else { "Update" }.into());
        if !name.is_empty() {
            put("manager", name.as_str().into());
        }
        if !subresource.is_empty() {
            put("subresource", subresource.as_str().into());
        }
        if let Some(time) = entry.time {
            put("time", time.to_string().into());
        }
        Value::Object(out)
    };
    Value::Array(entries.iter().map(write).collect())
}

fn order(a: &ManagedFieldsEntry, b: &ManagedFieldsEntry) -> Ordering {
    let seconds = |entry: &ManagedFieldsEntry| entry.time.map_or(0, Timestamp::as_second);
    (a.manager.operation.cmp(&b.manager.operation))
        .then_with(|| seconds(a).cmp(&seconds(b)))
        .then_with(|| a.manager.name.cmp(&b.manager.name))
        .then_with(|| a.manager.api_version.cmp(&b.manager.api_version))
        .then_with(|| a.manager.subresource.cmp(&b.manager.subresource))
}

/// Whether two lists say the same, times apart.
pub fn same(a: &[ManagedFieldsEntry], b: &[ManagedFieldsEntry]) -> bool {
    fn sorted(entries: &[ManagedFieldsEntry]) -> Vec<&ManagedFieldsEntry> {
        let mut sorted: Vec<&ManagedFieldsEntry> = entries.iter().collect();
        sorted
            .sort_by(|a, b| (a.manager.key(), &a.manager.api_version).cmp(&(b.manager.key(), &b.manager.api_version)));
        sorted
    }
    let same = |(a, b): (&ManagedFieldsEntry, &ManagedFieldsEntry)| a.manager == b.manager && a.fields == b.fields;
    a.len() == b.len() && sorted(a).into_iter().zip(sorted(b)).all(same)
}

/// Makes the oldest updaters of a version one when there are too many.
pub fn cap(entries: &mut Vec<ManagedFieldsEntry>) {
    let is_updater = |entry: &ManagedFieldsEntry| entry.manager.operation == ManagerOperation::Update;
    let mut left = entries.iter().filter(|entry| is_updater(entry)).count();
    if left <= UPDATERS_MAX {
        return;
    }
    entries.sort_by(order);
    let (updaters, mut kept): (Vec<ManagedFieldsEntry>, Vec<ManagedFieldsEntry>) =
        entries.drain(..).partition(is_updater);
    // By version, the first of the oldest, which the others join.
    let mut buckets: BTreeMap<String, usize> = BTreeMap::new();
    for entry in updaters {
        let version = entry.manager.api_version.clone();
        match buckets.get(&version) {
            _ if left <= UPDATERS_MAX => kept.push(entry),
            None => {
                buckets.insert(version, kept.len());
                kept.push(entry);
            }
            Some(at) => {
                if let Some(bucket) = kept.get_mut(*at) {
                    bucket.manager.name = ANCIENT.into();
                    bucket.manager.subresource.clear();
                    bucket.fields = bucket.fields.union(&entry.fields);
                    bucket.time = entry.time;
                }
                left -= 1;
            }
        }
    }
    // An older bucket may have been there.
    *entries = joined(kept, |other, entry| {
        other.fields = other.fields.union(&entry.fields);
        other.time = other.time.max(entry.time);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, operation: ManagerOperation, second: i64, field: &str) -> ManagedFieldsEntry {
        ManagedFieldsEntry {
            manager: Manager { name: name.into(), operation, api_version: "v1".into(), subresource: String::new() },
            time: Timestamp::from_second(second).ok(),
            fields: Set::of_fields(&[&["data", field]]),
        }
    }

    #[test]
    fn managers_are_read_written_and_sorted() {
        let text = r#"[{"apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:x":{}}},"manager":"b","operation":"Apply","subresource":"status","time":"1970-01-01T00:00:09Z"},{"apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:y":{}}},"manager":"a","operation":"Update"}]"#;
        let value: Value = serde_json::from_str(text).unwrap();
        let mut entries = decode(&value).unwrap();
        entries.reverse();
        assert_eq!(encode(&mut entries), value);
        assert!(same(&decode(&value).unwrap(), &entries));
        for bad in [
            r#"[{}]"#,
            r#"{}"#,
            r#"[{"apiVersion":"","fieldsType":"FieldsV1","operation":"Update"}]"#,
            r#"[{"apiVersion":"v1","fieldsType":"FieldsV2","operation":"Update"}]"#,
            r#"[{"apiVersion":"v1","fieldsType":"FieldsV1","operation":"Patch"}]"#,
            r#"[{"apiVersion":"v1","fieldsType":"FieldsV1","operation":"Update","fieldsV1":{"x":{}}}]"#,
            r#"[{"apiVersion":"v1","fieldsType":"FieldsV1","operation":"Update","manager":"a\nb"}]"#,
        ] {
            assert!(decode(&serde_json::from_str(bad).unwrap()).is_none(), "{bad}");
        }
    }

    #[test]
    fn too_many_updaters_become_one() {
        let mut entries: Vec<ManagedFieldsEntry> =
            (0..13).map(|n| entry(&format!("m{n:02}"), ManagerOperation::Update, n, &format!("f{n}"))).collect();
        entries.push(entry("applier", ManagerOperation::Apply, 0, "x"));
        cap(&mut entries);
        let names: Vec<&str> = entries.iter().map(|entry| entry.manager.name.as_str()).collect();
        assert_eq!(names.len(), 11);
        assert_eq!(names[..3], ["applier", "ancient-changes", "m04"]);
        let paths = [&["data", "f0"][..], &["data", "f1"], &["data", "f2"], &["data", "f3"]];
        assert_eq!(entries[1].fields, Set::of_fields(&paths));
        assert_eq!(entries[1].time, Timestamp::from_second(3).ok());
    }

    #[test]
    fn names_come_from_the_client() {
        for (agent, wanted) in
            [("kubectl/v1.33 (linux)", "kubectl"), ("", ""), ("a\u{7}b c/1", "ab c"), ("plain", "plain")]
        {
            assert_eq!(name_of_agent(agent), wanted);
        }
        assert_eq!(name_of_agent(&"é".repeat(100)).len(), 128);
        assert!(check_name("kubectl apply").is_ok() && check_name(&"x".repeat(129)).is_err());
        assert_eq!(
            check_name("a\nb").unwrap_err(),
            "Invalid value: \"a\\nb\": invalid character U+000A (at position 1)"
        );
    }
}
