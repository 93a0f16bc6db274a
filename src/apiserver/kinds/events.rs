//! Events: stored once as core/v1, served as core/v1 and events.k8s.io/v1, forgotten after a time.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::apiserver::answers::columns::{PrinterColumn, age};

/// Events kept at most; beyond that the oldest go before their time, of the namespaces that have most.
pub(in crate::apiserver) const COUNT_MAX: usize = 20_000;

/// Core field and the same in events.k8s.io/v1. Fields that are called the same in both are not listed.
const RENAMED: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// Core to events.k8s.io.
pub(super) fn to_new(stored: &Value) -> Value {
    let mut event = stored.clone();
    rename(&mut event, "events.k8s.io/v1", |(core, new)| (core, new));
    event
}

/// events.k8s.io to core.
pub(super) fn to_core(mut event: Value) -> Value {
    rename(&mut event, "v1", |(core, new)| (new, core));
    event
}

fn rename(
    event: &mut Value,
    api_version: &str,
    order: fn((&'static str, &'static str)) -> (&'static str, &'static str),
) {
    let Some(map) = event.as_object_mut() else { return };
    map.insert("apiVersion".into(), api_version.into());
    for pair in RENAMED {
        let (from, to) = order(pair);
        if let Some(value) = map.remove(from) {
            map.insert(to.into(), value);
        }
    }
}

/// Parts of the object reference that events are selected by.
const REFERENCE: [&str; 7] = ["kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"];

/// Place in the core form of what a field selector of either form means.
pub(in crate::apiserver) fn selector_path(field: &str) -> Option<String> {
    let part = field.strip_prefix("regarding.").or_else(|| field.strip_prefix("involvedObject."));
    if let Some(part) = part {
        return REFERENCE.contains(&part).then(|| format!("/involvedObject/{part}"));
    }
    match field {
        "reason" | "type" | "reportingComponent" => Some(format!("/{field}")),
        "reportingController" => Some("/reportingComponent".into()),
        "source" => Some("/source/component".into()),
        _ => None,
    }
}

fn text<'v>(event: &'v Value, core: &str, new: &str) -> &'v Value {
    event.get(core).or_else(|| event.get(new)).unwrap_or(&Value::Null)
}

fn first_seen(event: &Value) -> &Value {
    match text(event, "firstTimestamp", "deprecatedFirstTimestamp") {
        Value::Null => &event["eventTime"],
        time => time,
    }
}

fn last_seen(event: &Value) -> &Value {
    if !event["series"]["lastObservedTime"].is_null() {
        return &event["series"]["lastObservedTime"];
    }
    match text(event, "lastTimestamp", "deprecatedLastTimestamp") {
        Value::Null => first_seen(event),
        time => time,
    }
}

/// Whether a stored event was last seen longer ago than events are kept. One without any time goes too.
pub(in crate::apiserver) fn expired(event: &Value, now: Timestamp, lifetime: SignedDuration) -> bool {
    let times = [last_seen(event), &event["metadata"]["creationTimestamp"]];
    let newest = times.into_iter().filter_map(|time| time.as_str()?.parse::<Timestamp>().ok()).max();
    newest.is_none_or(|newest| now.duration_since(newest) > lifetime)
}

/// How many each namespace may keep when no more than `limit` may stay in all: those that have most give up what is too
/// much, until they have as many as the next one. `counts` are how many each has.
pub(in crate::apiserver) fn shares(counts: &BTreeMap<&str, usize>, limit: usize) -> BTreeMap<String, usize> {
    let mut by_count: Vec<_> = counts.iter().map(|(namespace, count)| (*count, *namespace)).collect();
    by_count.sort_unstable();
    let (mut left, mut others) = (limit, by_count.len());
    let mut share = |(count, namespace): (usize, &str)| {
        let kept = count.min(left / others);
        (left, others) = (left - kept, others - 1);
        (namespace.to_owned(), kept)
    };
    by_count.into_iter().map(&mut share).collect()
}

/// Columns as upstream prints events.
pub(in crate::apiserver) fn columns() -> Vec<PrinterColumn> {
    let subject = |event: &Value, _: Timestamp| -> Value {
        let object = text(event, "involvedObject", "regarding");
        let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
        let name = object["name"].as_str().unwrap_or_default();
        if name.is_empty() { kind.into() } else { format!("{kind}/{name}").into() }
    };
    let source = |event: &Value, _: Timestamp| -> Value {
        let source = text(event, "source", "deprecatedSource");
        let component = source["component"].as_str().filter(|name| !name.is_empty());
        let component = component.or_else(|| text(event, "reportingComponent", "reportingController").as_str());
        let host = source["host"].as_str().or_else(|| event["reportingInstance"].as_str());
        let parts: Vec<&str> = [component, host].into_iter().flatten().filter(|part| !part.is_empty()).collect();
        parts.join(", ").into()
    };
    let count = |event: &Value, _: Timestamp| -> Value {
        let series = &event["series"]["count"];
        let count = if series.is_null() { text(event, "count", "deprecatedCount") } else { series };
        count.as_i64().unwrap_or(1).into()
    };
    let mut name = PrinterColumn::name();
    name.priority = 1;
    vec![
        PrinterColumn::cell("Last Seen", "string", 0, |event, now| age(last_seen(event), now)),
        PrinterColumn::cell("Type", "string", 0, |event, _| event["type"].as_str().unwrap_or_default().into()),
        PrinterColumn::cell("Reason", "string", 0, |event, _| event["reason"].as_str().unwrap_or_default().into()),
        PrinterColumn::cell("Object", "string", 0, subject),
        PrinterColumn::cell("Subobject", "string", 1, |event, _| {
            text(event, "involvedObject", "regarding")["fieldPath"].as_str().unwrap_or_default().into()
        }),
        PrinterColumn::cell("Source", "string", 1, source),
        PrinterColumn::cell("Message", "string", 0, |event, _| {
            text(event, "message", "note").as_str().unwrap_or_default().trim().into()
        }),
        PrinterColumn::cell("First Seen", "string", 1, |event, now| age(first_seen(event), now)),
        PrinterColumn::cell("Count", "string", 1, count),
        name,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn core_event() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": "h.1", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "involvedObject": {"kind": "BareMetalHost", "name": "h"}, "message": "m", "reason": "R",
            "reportingComponent": "slipway", "reportingInstance": "box", "eventTime": "2026-01-01T00:00:00.000000Z",
            "series": {"count": 3, "lastObservedTime": "2026-01-01T00:30:00.000000Z"},
        })
    }

    #[test]
    fn both_forms_are_one_event() {
        let new = to_new(&core_event());
        assert_eq!(new["apiVersion"], "events.k8s.io/v1");
        assert_eq!((&new["regarding"]["name"], &new["note"]), (&json!("h"), &json!("m")));
        assert_eq!(new["reportingController"], "slipway");
        assert!(new.get("message").is_none());
        assert_eq!(to_core(new), core_event());
    }

    #[test]
    fn an_event_lives_an_hour_after_it_was_last_seen() {
        for (now, gone) in [("2026-01-01T01:29:00Z", false), ("2026-01-01T01:31:00Z", true)] {
            assert_eq!(expired(&core_event(), now.parse().unwrap(), SignedDuration::from_hours(1)), gone, "{now}");
        }
        assert!(expired(&json!({}), "2026-01-01T00:00:00Z".parse().unwrap(), SignedDuration::from_hours(1)));
    }

    #[test]
    fn who_has_most_gives_up_most() {
        let rows: [(&[usize], usize, &[usize]); 7] = [
            (&[], 5, &[]),
            (&[3, 4], 10, &[3, 4]),
            (&[3, 4], 7, &[3, 4]),
            (&[20, 21_000], 20_000, &[20, 19_980]),
            (&[4, 9, 30], 20, &[4, 8, 8]),
            (&[30, 4, 30], 21, &[8, 4, 9]),
            (&[5, 5, 5], 2, &[0, 1, 1]),
        ];
        for (counts, limit, wanted) in rows {
            let names: Vec<String> = (0..counts.len()).map(|number| number.to_string()).collect();
            let counts = names.iter().map(String::as_str).zip(counts.iter().copied()).collect();
            let kept: Vec<usize> = shares(&counts, limit).into_values().collect();
            assert_eq!(kept, wanted, "{counts:?} of {limit}");
        }
    }

    #[test]
    fn the_row_is_the_same_in_both_forms() {
        let now = "2026-01-01T00:31:00Z".parse().unwrap();
        let wanted = json!(["60s", "", "R", "baremetalhost/h", "", "slipway, box", "m", "31m", 3, "h.1"]);
        for event in [core_event(), to_new(&core_event())] {
            assert_eq!(crate::apiserver::answers::columns::cells(&columns(), &event, now), wanted);
        }
    }
}
