//! Columns of the command's own for kinds whose definition, which kubectl prints by, shows no more than their age, or shows
//! bytes.

use jiff::Timestamp;
use serde_json::Value;

use super::own_table::OwnColumn;
use super::summary;
use crate::apiserver::age;
use crate::cli::image::{size, source};

/// Images of the library.
pub(super) const IMAGES: [OwnColumn; 10] = [
    ("Name", |image, _| text(image, "/metadata/name"), false),
    ("State", |image, _| summary::state(image), false),
    ("Size", |image, _| bytes(image, "/status/virtualSize"), false),
    ("Stored", |image, _| bytes(image, "/status/storedSize"), false),
    ("Format", |image, _| either(image, ["/status/format", "/spec/format"]), false),
    ("Hosts", |image, _| number(image, "/status/hosts").map(|hosts| hosts.to_string()).unwrap_or_default(), false),
    ("Published", |image, _| if image["spec"]["publish"] == true { "yes".into() } else { String::new() }, true),
    ("Source", |image, _| source(&text(image, "/spec/url")), true),
    ("Age", created, false),
    ("Message", |image, _| text(image, "/status/message"), false),
];

/// IPPools of Metal3.
pub(super) const POOLS: [OwnColumn; 5] = [
    ("Name", |pool, _| text(pool, "/metadata/name"), false),
    ("Ranges", ranges, false),
    ("Gateway", |pool, _| text(pool, "/spec/gateway"), false),
    ("Taken", |pool, _| pool["status"]["indexes"].as_object().map_or(0, serde_json::Map::len).to_string(), false),
    ("Age", created, false),
];

/// IPClaims of Metal3.
pub(super) const CLAIMS: [OwnColumn; 5] = [
    ("Name", |claim, _| text(claim, "/metadata/name"), false),
    ("Pool", |claim, _| text(claim, "/spec/pool/name"), false),
    ("Address", |claim, _| text(claim, "/status/address/name"), false),
    ("Age", created, false),
    ("Message", |claim, _| text(claim, "/status/errorMessage"), false),
];

/// IPAddresses of Metal3.
pub(super) const ADDRESSES: [OwnColumn; 6] = [
    ("Name", |address, _| text(address, "/metadata/name"), false),
    ("Address", prefixed, false),
    ("Gateway", |address, _| text(address, "/spec/gateway"), false),
    ("Pool", |address, _| text(address, "/spec/pool/name"), false),
    ("Claim", |address, _| text(address, "/spec/claim/name"), false),
    ("Age", created, false),
];

/// DataImages.
pub(super) const DATA_IMAGES: [OwnColumn; 5] = [
    ("Name", |data, _| text(data, "/metadata/name"), false),
    ("Source", |data, _| source(&text(data, "/spec/url")), false),
    ("Attached", |data, _| source(&text(data, "/status/attachedImage/url")), false),
    ("Age", created, false),
    ("Message", |data, _| text(data, "/status/error/message"), false),
];

fn text(object: &Value, pointer: &str) -> String {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn either(object: &Value, pointers: [&str; 2]) -> String {
    pointers.into_iter().map(|pointer| text(object, pointer)).find(|text| !text.is_empty()).unwrap_or_default()
}

fn number(object: &Value, pointer: &str) -> Option<i64> {
    object.pointer(pointer).and_then(Value::as_i64)
}

fn bytes(object: &Value, pointer: &str) -> String {
    number(object, pointer).map(size).unwrap_or_default()
}

fn created(object: &Value, now: Timestamp) -> String {
    age(&object["metadata"]["creationTimestamp"], now).as_str().unwrap_or_default().to_owned()
}

fn prefixed(address: &Value, _: Timestamp) -> String {
    let shown = text(address, "/spec/address");
    match number(address, "/spec/prefix").filter(|prefix| *prefix > 0) {
        Some(prefix) => format!("{shown}/{prefix}"),
        None => shown,
    }
}

/// `10.5.0.10-10.5.0.20, 10.6.0.0/24`
fn ranges(pool: &Value, _: Timestamp) -> String {
    let each = |range: &Value| match (text(range, "/start"), text(range, "/end"), text(range, "/subnet")) {
        (start, end, _) if !start.is_empty() && !end.is_empty() => format!("{start}-{end}"),
        (start, _, subnet) if !start.is_empty() && !subnet.is_empty() => format!("{subnet} from {start}"),
        (_, _, subnet) => subnet,
    };
    let all = pool["spec"]["pools"].as_array();
    all.into_iter().flatten().map(each).filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_kind_shows_what_it_is_about() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let cells = |columns: &[OwnColumn], mut object: Value| {
            object["metadata"] = json!({ "name": "a", "creationTimestamp": "2026-01-01T00:00:00Z" });
            columns.iter().map(|(_, cell, _)| cell(&object, now)).collect::<Vec<_>>().join("|")
        };
        for (columns, object, wanted) in [
            (
                &IMAGES[..],
                json!({ "spec": { "url": "upload:os.raw", "format": "raw" },
                    "status": { "phase": "Failed", "virtualSize": 8_388_608, "message": "no" } }),
                "a|Failed|8.3 MB||raw|||upload:os.raw|10m|no",
            ),
            (
                &POOLS,
                json!({ "spec": { "gateway": "10.5.0.1", "pools": [{ "start": "10.5.0.10", "end": "10.5.0.20" }, { "subnet": "10.6.0.0/24" }] },
                    "status": { "indexes": { "x": "10.5.0.10" } } }),
                "a|10.5.0.10-10.5.0.20, 10.6.0.0/24|10.5.0.1|1|10m",
            ),
            (
                &CLAIMS,
                json!({ "spec": { "pool": { "name": "p" } }, "status": { "address": { "name": "p-10-5-0-10" } } }),
                "a|p|p-10-5-0-10|10m|",
            ),
            (
                &ADDRESSES,
                json!({ "spec": { "address": "10.5.0.10", "prefix": 24, "pool": { "name": "p" }, "claim": { "name": "c" } } }),
                "a|10.5.0.10/24||p|c|10m",
            ),
            (
                &DATA_IMAGES,
                json!({ "spec": { "url": "http://u:p@x/a.iso" }, "status": { "error": { "count": 1, "message": "no" } } }),
                "a|http://x/a.iso||10m|no",
            ),
        ] {
            assert_eq!(cells(columns, object), wanted);
        }
    }
}
