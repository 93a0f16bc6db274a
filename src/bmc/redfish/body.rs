//! Bounded parsing of Redfish answers: the properties that are used, and of these no more than a bound.
//!
//! A value takes far more memory than its text: a service that says `[{"":0},{"":0},…` would take a hundred times what it
//! sends, of each answer that is held, and many BMCs are spoken to at once. What is not kept is passed over while it is
//! read and takes nothing.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Largest body that is read, in bytes. Resources have some tens of thousands.
pub const MAX_BODY: usize = 256 << 10;
/// Values that are kept of one body, lists and objects included. Those of a machine with all that it links to are some
/// hundred.
const MAX_VALUES: usize = 2048;
/// Members of a list that are kept, in their order.
const MAX_MEMBERS: usize = 64;
/// Lists and objects within each other that are looked into.
const MAX_LEVELS: usize = 12;

/// The properties that are used, in byte order. A test compares them with what is asked for in this folder.
const KEPT: &[&str] = &[
    "#ComputerSystem.Reset",
    "#VirtualMedia.EjectMedia",
    "#VirtualMedia.InsertMedia",
    "@Message.ExtendedInfo",
    "@Redfish.ActionInfo",
    "@Redfish.Settings",
    "@odata.etag",
    "@odata.id",
    "Actions",
    "Address",
    "AllowableValues",
    "BiosVersion",
    "Boot",
    "BootSourceOverrideEnabled",
    "BootSourceOverrideEnabled@Redfish.AllowableValues",
    "BootSourceOverrideMode",
    "BootSourceOverrideTarget",
    "BootSourceOverrideTarget@Redfish.AllowableValues",
    "CapacityBytes",
    "ConnectedVia",
    "Count",
    "Devices",
    "Drives",
    "DurableName",
    "DurableNameFormat",
    "EthernetInterfaces",
    "FirmwareVersion",
    "Health",
    "HealthRollup",
    "HostName",
    "HttpBootUri",
    "IPv4Addresses",
    "Id",
    "Identifiers",
    "Image",
    "ImageName",
    "Inserted",
    "InstructionSet",
    "Links",
    "LogicalProcessorCount",
    "MACAddress",
    "ManagedBy",
    "ManagerForServers",
    "Managers",
    "Manufacturer",
    "MaxSpeedMHz",
    "MediaType",
    "MediaTypes",
    "Members",
    "Members@odata.count",
    "MemorySummary",
    "Message",
    "MessageId",
    "Model",
    "Name",
    "OperatingSpeedMHz",
    "Parameters",
    "PermanentMACAddress",
    "PowerState",
    "ProcessorArchitecture",
    "ProcessorSummary",
    "ProcessorType",
    "Processors",
    "Protocol",
    "RedfishVersion",
    "ResetType@Redfish.AllowableValues",
    "Resolution",
    "RotationSpeedRPM",
    "SerialNumber",
    "Sessions",
    "SettingsObject",
    "SimpleStorage",
    "SpeedMbps",
    "State",
    "Status",
    "Storage",
    "Systems",
    "TotalSystemMemoryGiB",
    "TotalThreads",
    "VirtualMedia",
    "code",
    "error",
    "message",
    "target",
];

/// Why a body is not taken.
#[derive(Debug, thiserror::Error)]
pub enum Unread {
    /// More bytes than are read.
    #[error("with more than {MAX_BODY} bytes")]
    TooLarge,
    /// More values than are kept.
    #[error("with more than {MAX_VALUES} values of those that are used")]
    TooMany,
    /// Not JSON.
    #[error("with something that is not JSON: {0}")]
    NotJson(serde_json::Error),
}

/// Reads a body; what is kept of it.
///
/// # Errors
///
/// When it is no JSON, or more than is kept.
pub fn parse(bytes: &[u8]) -> Result<Value, Unread> {
    if bytes.len() > MAX_BODY {
        return Err(Unread::TooLarge);
    }
    let mut left = MAX_VALUES;
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let read = Lean { left: &mut left, levels: MAX_LEVELS }.deserialize(&mut reader);
    match read.and_then(|value| reader.end().map(|()| value)) {
        Ok(value) => Ok(value),
        Err(_) if left == 0 => Err(Unread::TooMany),
        Err(error) => Err(Unread::NotJson(error)),
    }
}

/// Keeps a value, and of what is in it what is used.
struct Lean<'a> {
    /// Values that may still be kept.
    left: &'a mut usize,
    /// Lists and objects that may still be within each other.
    levels: usize,
}

impl<'de> DeserializeSeed<'de> for Lean<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        if *self.left == 0 {
            return Err(D::Error::custom("too many values"));
        }
        *self.left -= 1;
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Lean<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut kept = Vec::new();
        while self.levels > 0
            && kept.len() < MAX_MEMBERS
            && let Some(value) = list.next_element_seed(Lean { left: self.left, levels: self.levels - 1 })?
        {
            kept.push(value);
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Array(kept))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        while let Some(key) = object.next_key_seed(PropertyName)? {
            match key.filter(|_| self.levels > 0) {
                Some(key) => {
                    let value = object.next_value_seed(Lean { left: self.left, levels: self.levels - 1 })?;
                    kept.insert(key.to_owned(), value);
                }
                None => _ = object.next_value::<IgnoredAny>()?,
            }
        }
        Ok(Value::Object(kept))
    }
}

/// The name of a property, when it is one that is kept.
struct PropertyName;

impl<'de> DeserializeSeed<'de> for PropertyName {
    type Value = Option<&'static str>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_str(self)
    }
}

impl Visitor<'_> for PropertyName {
    type Value = Option<&'static str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a property")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(KEPT.binary_search(&name).ok().map(|at| KEPT[at]))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Value {
        parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// Values in it, itself included.
    fn count(value: &Value) -> usize {
        1 + match value {
            Value::Array(list) => list.iter().map(count).sum(),
            Value::Object(object) => object.values().map(count).sum(),
            _ => 0,
        }
    }

    #[test]
    fn what_is_used_is_kept_and_nothing_else() {
        let text = r##"{"@odata.id": "/s/1", "Boot": {"BootSourceOverrideTarget": "Pxe",
            "BootSourceOverrideTarget@Redfish.AllowableValues": ["None", "Pxe"]}, "Oem": {"Boot": {"Id": [1, 2]}},
            "PowerState": null, "MemorySummary": {"TotalSystemMemoryGiB": 127.5}, "CapacityBytes": -4,
            "\u0049d": "a\u00e4\n", "Inserted": true, "SpeedMbps": 18446744073709551615}"##;
        let want = json!({"@odata.id": "/s/1", "Boot": {"BootSourceOverrideTarget": "Pxe",
            "BootSourceOverrideTarget@Redfish.AllowableValues": ["None", "Pxe"]}, "PowerState": null,
            "MemorySummary": {"TotalSystemMemoryGiB": 127.5}, "CapacityBytes": -4, "Id": "aä\n", "Inserted": true,
            "SpeedMbps": u64::MAX});
        assert_eq!(read(text), want);
        assert_eq!(read(" [1, \"x\"] "), json!([1, "x"]));
        for text in ["", "{", "{} {}", "{\"Id\": }", "{\"Oem\": [}", "<html>", "\"\u{1}\"", "{\"Id\": 1e999}"] {
            assert!(matches!(parse(text.as_bytes()), Err(Unread::NotJson(_))), "{text}");
        }
    }

    #[test]
    fn a_body_takes_no_more_than_its_bound_however_it_is_made() {
        let many = |one: &str, times: usize| vec![one; times].join(",");
        // Each with as many values as fit, in properties that are kept and others.
        for (body, kept) in [
            (format!("[{}]", many("{\"\":0}", 37_000)), Some(1 + 64)),
            (format!("[{}]", many("0", 130_000)), Some(1 + 64)),
            (format!("{{{}}}", many("\"\":{\"\":0}", 20_000)), Some(1)),
            (format!("{{\"Members\":[{}]}}", many("{\"@odata.id\":\"/s/1\"}", 12_000)), Some(2 + 2 * 64)),
            (format!("{{\"Id\":{}1{}}}", "[".repeat(100), "]".repeat(100)), Some(1 + MAX_LEVELS)),
            (format!("{{{}}}", many("\"Id\":{\"Id\":0}", 18_000)), None),
            (format!("{{\"Id\":[{}]}}", many(&format!("[{}]", many("0", 64)), 64)), None),
        ] {
            assert!(body.len() <= MAX_BODY, "{}", body.len());
            let found = parse(body.as_bytes()).as_ref().map(count).ok();
            assert_eq!(found, kept, "{}…", &body[..20]);
        }
        // Passed over without a call for each level.
        let deep = format!("{{\"Oem\":{}{}}}", "[".repeat(130_000), "]".repeat(130_000));
        assert_eq!(read(&deep), json!({}));
        assert!(matches!(parse(&vec![b' '; MAX_BODY + 1]), Err(Unread::TooLarge)));
    }

    #[test]
    fn every_property_that_is_asked_for_is_kept() {
        assert!(KEPT.is_sorted());
        let files = [
            include_str!("client.rs"),
            include_str!("controller.rs"),
            include_str!("virtual_media.rs"),
            include_str!("inventory.rs"),
            include_str!("virtual_media_model.rs"),
            include_str!("message.rs"),
            include_str!("model.rs"),
            include_str!("probe.rs"),
        ];
        let mut seen = 0;
        for file in files {
            let code = file.split("#[cfg(test)]").next().unwrap_or_default();
            for opening in
                ["[\"", "text(\"", "action(\"", "allowable(boot, \"", "(system, \"", "(one, \"", "(drive, \""]
            {
                for rest in code.split(opening).skip(1) {
                    let name = rest.split('"').next().unwrap_or_default();
                    // Lists of values begin so, too.
                    let is_index = opening != "[\"" || rest[name.len()..].starts_with("\"]");
                    if is_index && name.starts_with(|c: char| c.is_ascii_uppercase() || "@#".contains(c)) {
                        let known = KEPT.contains(&name) || KEPT.contains(&&*format!("{name}@Redfish.AllowableValues"));
                        assert!(known, "{name}");
                        seen += 1;
                    }
                }
            }
        }
        assert!(seen > 60, "{seen}");
    }
}
