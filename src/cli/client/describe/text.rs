//! An object as people read it.

use std::collections::HashSet;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{LONG, SAID};
use crate::apiserver::age;
use crate::cli::client::held::held;
use crate::cli::client::output::go_text;
use crate::cli::client::relative::{relative, with_distance};
use crate::cli::client::table::harmless;
use crate::cli::client::tabs::align;
use crate::cli::client::types::ServedType;
use crate::cli::client::wait::told;
use crate::cli::client::{hardware, summary};

pub(super) fn describe(of: &ServedType, object: &Value, events: Option<&[Value]>, now: Timestamp) -> String {
    let metadata = &object["metadata"];
    let mut text = String::new();
    line(&mut text, 0, "Name", metadata["name"].as_str().unwrap_or_default());
    line(&mut text, 0, "Namespace", metadata["namespace"].as_str().unwrap_or_default());
    pairs(&mut text, "Labels", &metadata["labels"], "=");
    pairs(&mut text, "Annotations", &metadata["annotations"], ": ");
    if of.group == "metal3.io" && object["kind"] == "BareMetalHost" {
        host(&mut text, object, now);
    }
    let mut seen = HashSet::new();
    for (label, value) in summary::lines(of, object, now) {
        line(&mut text, 0, label, &value);
        once(&mut value.into(), &mut seen);
    }
    if of.group == "metal3.io" && object["kind"] == "HardwareData" {
        machine(&mut text, hardware::of(object));
    }
    let mut rest = object.clone();
    if let Some(metadata) = rest["metadata"].as_object_mut() {
        for known in ["name", "namespace", "labels", "annotations", "managedFields"] {
            metadata.remove(known);
        }
    }
    let mut conditions: Vec<Value> = conditions_of(object).into_iter().cloned().collect();
    if !conditions.is_empty()
        && let Some(status) = rest["status"].as_object_mut()
    {
        status.remove("conditions");
    }
    if object["kind"] == "Secret" {
        hide_values(&mut rest);
    }
    once(&mut rest["status"], &mut seen);
    if let Value::Object(map) = &rest {
        content(&mut text, 0, map, now);
    }
    let mut whole = align(&text, 2);
    if !conditions.is_empty() {
        conditions.iter_mut().for_each(|condition| once(condition, &mut seen));
        whole += &conditions_table(&conditions, now);
    }
    whole + &events.map(|events| events_table(events, now)).unwrap_or_default()
}

/// Long texts that were seen before are not said again.
fn once(value: &mut Value, seen: &mut HashSet<String>) {
    match value {
        Value::String(text) if text.chars().count() > LONG && !seen.insert(text.clone()) => *text = SAID.to_owned(),
        Value::Array(all) => all.iter_mut().for_each(|one| once(one, seen)),
        Value::Object(fields) => fields.values_mut().for_each(|one| once(one, seen)),
        _ => {}
    }
}

pub(super) fn line(text: &mut String, level: usize, label: &str, value: &str) {
    // Several lines stay one cell, as kubectl has it: the rest is indented under it.
    let mut lines = value.lines();
    let first = harmless(lines.next().unwrap_or_default());
    let indent = "  ".repeat(level);
    *text += &format!("{indent}{label}:\t{first}\n");
    for more in lines {
        *text += &format!("{indent}\t{}\n", harmless(more));
    }
}

fn pairs(text: &mut String, label: &str, map: &Value, between: &str) {
    let hidden = "kubectl.kubernetes.io/last-applied-configuration";
    let pairs = map.as_object().into_iter().flatten().filter(|(key, _)| *key != hidden);
    let shown: Vec<String> = pairs.map(|(key, value)| format!("{key}{between}{}", go_text(value).trim_end())).collect();
    match shown.split_first() {
        None => line(text, 0, label, "<none>"),
        Some((first, rest)) => {
            *text += &format!("{label}:\t{}\n", harmless(first));
            for more in rest {
                *text += &format!("\t{}\n", harmless(more));
            }
        }
    }
}

/// What an operator wants to know of a host before anything else.
pub(super) fn host(text: &mut String, object: &Value, now: Timestamp) {
    let status = &object["status"];
    let state =
        status["provisioning"]["state"].as_str().filter(|state| !state.is_empty()).unwrap_or("(not looked at yet)");
    line(text, 0, "State", state);
    line(text, 0, "Power", crate::cli::client::hosts::power(object));
    let cards = status["addresses"].as_array().into_iter().flatten().map(|one| {
        let field = |name: &str| one[name].as_str().unwrap_or_default();
        format!("{} ({}, network {})", field("address"), field("macAddress"), field("network"))
    });
    let cards: Vec<_> = cards.collect();
    line(text, 0, "Addresses", if cards.is_empty() { "<none>".into() } else { cards.join("\n") }.as_str());
    if let Some(error) = status["errorMessage"].as_str().filter(|error| !error.is_empty()) {
        let kind = status["errorType"].as_str().unwrap_or("error");
        let count = status["errorCount"].as_i64().filter(|count| *count > 1).map(|count| format!(" ({count} times)"));
        line(text, 0, "Last Error", &format!("{kind}: {}{}", relative(error, now), count.unwrap_or_default()));
    }
    now_or_waits(text, object, now);
    let hardware = hardware::line(&status["hardware"]);
    if !hardware.is_empty() {
        line(text, 0, "Hardware", &hardware);
    }
}

/// How a host is that waits for nothing, or else what it waits for.
fn now_or_waits(text: &mut String, object: &Value, now: Timestamp) {
    let status = &object["status"];
    if let Some(held) = held(object) {
        return line(text, 0, "Now", &held.reason);
    }
    let progressing = conditions_of(object).into_iter().find(|condition| condition["type"] == "Progressing");
    // Who waits for nothing says how it is: powered on, as asked.
    let label = if progressing.is_some_and(|it| it["status"] == "False") { "Now" } else { "Waits For" };
    let waits = progressing.and_then(|condition| condition["message"].as_str()).filter(|message| !message.is_empty());
    if let Some(waits) = waits {
        line(text, 0, label, &relative(waits, now));
    } else if let Some(reason) = told(object).filter(|_| status["errorMessage"].as_str().is_none_or(str::is_empty)) {
        line(text, 0, "Waits For", &relative(&reason, now));
    }
}

/// A machine in few lines; every field of it follows.
pub(super) fn machine(text: &mut String, found: &Value) {
    for (label, value) in [
        ("Hardware", hardware::line(found)),
        ("Disks", hardware::each_disk(found).join("\n")),
        ("NICs", hardware::each_card(found).join("\n")),
    ] {
        line(text, 0, label, if value.is_empty() { "<none>" } else { &value });
    }
}

fn hide_values(secret: &mut Value) {
    use base64::Engine;
    for value in secret["data"].as_object_mut().into_iter().flat_map(Map::values_mut) {
        let length = value.as_str().and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok());
        *value = length.map_or_else(|| "(unreadable)".into(), |bytes| format!("{} bytes", bytes.len()).into());
    }
}

fn content(text: &mut String, level: usize, map: &Map<String, Value>, now: Timestamp) {
    let indent = "  ".repeat(level);
    for (field, value) in map {
        let label = label(field);
        match value {
            Value::Object(inner) => {
                *text += &format!("{indent}{label}:\n");
                content(text, level + 1, inner, now);
            }
            Value::Array(entries) => {
                *text += &format!("{indent}{label}:\n");
                for entry in entries {
                    match entry {
                        Value::Object(inner) => content(text, level + 1, inner, now),
                        other => *text += &format!("{indent}  {}\n", harmless(&go_text(other))),
                    }
                }
            }
            other => {
                let shown = go_text(other);
                let shown = with_distance(&shown, now).unwrap_or(shown);
                line(text, level, &label, &shown);
            }
        }
    }
}

/// A field's name in words: `bootMACAddress` is `Boot MAC Address`.
pub(super) fn label(field: &str) -> String {
    // Somebody's own: names of nodes, labels.
    if !field.chars().all(|char| char.is_alphanumeric() || char == '_') {
        return harmless(field);
    }
    const ACRONYMS: [&str; 5] = ["API", "URL", "UID", "OSB", "GUID"];
    let words: Vec<String> = words(field)
        .into_iter()
        .map(|word| {
            let upper = word.to_uppercase();
            if ACRONYMS.contains(&upper.as_str()) {
                return upper;
            }
            let mut chars = word.chars();
            chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
        })
        .collect();
    words.join(" ")
}

/// Splits camel case where the class of the letters changes; the last capital of a run begins the next word.
fn words(field: &str) -> Vec<String> {
    #[derive(PartialEq, Clone, Copy)]
    enum Class {
        Lower,
        Upper,
        Digit,
        Other,
    }
    let class = |char: char| match char {
        char if char.is_lowercase() => Class::Lower,
        char if char.is_uppercase() => Class::Upper,
        char if char.is_ascii_digit() => Class::Digit,
        _ => Class::Other,
    };
    let mut runs: Vec<(Class, String)> = Vec::new();
    for char in field.chars() {
        let kind = class(char);
        match runs.last_mut() {
            Some((last, run)) if *last == kind => run.push(char),
            _ => runs.push((kind, char.to_string())),
        }
    }
    for index in 1..runs.len() {
        if runs[index - 1].0 == Class::Upper
            && runs[index].0 == Class::Lower
            && let Some(capital) = runs[index - 1].1.pop()
        {
            runs[index].1.insert(0, capital);
        }
    }
    runs.into_iter().map(|(_, run)| run).filter(|run| !run.is_empty() && run != "_").collect()
}

/// The conditions of a status, where they have the usual form.
fn conditions_of(object: &Value) -> Vec<&Value> {
    let all = object["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let usual = all.iter().all(|condition| condition["type"].is_string() && condition["status"].is_string());
    if usual { all.iter().collect() } else { Vec::new() }
}

fn conditions_table(conditions: &[Value], now: Timestamp) -> String {
    let mut text = String::from("  Type\tStatus\tAge\tReason\tMessage\n  ----\t------\t---\t------\t-------\n");
    for condition in conditions {
        let cell = |field: &str| harmless(condition[field].as_str().unwrap_or_default());
        let age = age(&condition["lastTransitionTime"], now);
        let mut message = condition["message"].as_str().unwrap_or_default().lines();
        let mut next = || message.next().map(|line| relative(&harmless(line), now));
        let first = next().unwrap_or_default();
        text += &format!("  {}\t{}\t{}\t{}\t{first}\n", cell("type"), cell("status"), go_text(&age), cell("reason"));
        // A point of a list stays a line.
        while let Some(more) = next() {
            text += &format!("  \t\t\t\t{more}\n");
        }
    }
    let aligned = align(&text, 2);
    // Most messages are empty: no spaces where nothing follows.
    let lines: Vec<&str> = aligned.lines().map(str::trim_end).collect();
    format!("Conditions:\n{}\n", lines.join("\n"))
}

fn events_table(events: &[Value], now: Timestamp) -> String {
    if events.is_empty() {
        return "Events:  <none>\n".into();
    }
    let mut text = String::from("  Type\tReason\tAge\tFrom\tMessage\n  ----\t------\t----\t----\t-------\n");
    for event in events {
        let cell = |pointer: &str| {
            harmless(&event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().trim().replace('\n', " "))
        };
        let since =
            |pointer: &str| event.pointer(pointer).filter(|value| value.is_string()).map(|at| go_text(&age(at, now)));
        let first = since("/eventTime").or_else(|| since("/firstTimestamp")).unwrap_or_else(|| "<unknown>".into());
        let series = event.pointer("/series/count").and_then(Value::as_i64);
        let count = event["count"].as_i64().unwrap_or_default();
        let interval = match (series, count) {
            (Some(count), _) => {
                format!("{} (x{count} over {first})", since("/series/lastObservedTime").unwrap_or_default())
            }
            (None, 2..) => format!("{} (x{count} over {first})", since("/lastTimestamp").unwrap_or_default()),
            (None, _) => first,
        };
        let from = [cell("/source/component"), cell("/reportingComponent")].into_iter().find(|from| !from.is_empty());
        text += &format!(
            "  {}\t{}\t{interval}\t{}\t{}\n",
            cell("/type"),
            cell("/reason"),
            from.unwrap_or_default(),
            cell("/message")
        );
    }
    format!("Events:\n{}", align(&text, 2))
}
