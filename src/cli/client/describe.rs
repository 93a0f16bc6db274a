//! `describe`: one object for people, with its events.

use std::collections::HashSet;
use std::io::Write;

use anyhow::bail;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::connect::{Server, Session};
use super::held::held;
use super::output::go_text;
use super::relative::{relative, with_distance};
use super::table::harmless;
use super::tabs::align;
use super::terminal::{PLAIN, Terminal, When, color_of};
use super::types::Type;
use super::wait::told;
use super::{hardware, missing, names, request, summary};
use crate::apiserver::age;
use crate::cli::failure::{Failure, complain, plain, usage};

#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  slipway describe host web-1      its spec, its conditions, what it waits for, what happened
  slipway describe hosts -A
  slipway describe host web-1 --all    with every flag of its processors
  slipway describe hardwaredata web-1  what inspection found in its machine
  slipway describe image/debian-12     its import and what happened to it")]
pub(in crate::cli) struct Options {
    /// TYPE NAME…, TYPE/NAME…, or TYPE for all objects of the type
    #[arg(required = true, value_name = "TYPE[/NAME]")]
    what: Vec<String>,
    /// Only objects with these labels
    #[arg(long, short = 'l', value_name = "LABELS", default_value = "", hide_default_value = true)]
    selector: String,
    /// Objects of all namespaces
    #[arg(long, short = 'A')]
    all_namespaces: bool,
    /// Do not print events
    #[arg(long)]
    no_events: bool,
    /// Also print what is left out because it is long: flags of processors, a status in the shape of older versions
    #[arg(long)]
    all: bool,
    /// Whether states have colours
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", hide_default_value = true)]
    color: When,
    #[command(flatten)]
    server: Server,
}

/// Characters of a text that is told once, and what stands for it then.
const LONG: usize = 80;
const SAID: &str = "(as above)";

pub(super) async fn run(options: Options, out: &mut dyn Write) -> anyhow::Result<()> {
    let selections = names::parse(&options.what).map_err(usage)?;
    let session = options.server.connect().await?;
    let types = session.types().await?;
    let namespace = (!options.all_namespaces).then_some(session.namespace.as_str());
    let (mut printed, mut failed) = (false, false);
    let terminal = Terminal::standard_output(options.color);
    for selection in &selections {
        for of in types.find(&selection.word)? {
            let mut found = Vec::new();
            if selection.names.is_empty() {
                let query = [("labelSelector", options.selector.as_str())];
                session
                    .pages(&of.path(namespace, None), &query, request::JSON, |mut page| {
                        if let Value::Array(items) = page["items"].take() {
                            found.extend(items);
                        }
                        Ok(())
                    })
                    .await?;
            }
            for name in &selection.names {
                match session.get(&of.path(namespace, Some(name)), &[], request::JSON).await {
                    Ok(object) => found.push(object),
                    Err(error) if error.is_not_found() => {
                        let message = missing::explain(&session, of, name).await;
                        if options.what.len() <= 2 && selections.len() == 1 {
                            bail!("{message}");
                        }
                        complain(message);
                        failed = true;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            for mut object in found {
                object["apiVersion"] = of.api_version().into();
                object["kind"] = of.kind.clone().into();
                let events = if options.no_events { None } else { events(&session, &object).await };
                if std::mem::replace(&mut printed, true) {
                    out.write_all(b"\n\n")?;
                }
                if !options.all {
                    leave_out_flags(&mut object);
                }
                let text = plain(&describe(of, &object, events.as_deref(), Timestamp::now()));
                out.write_all(if terminal.color { colored(&text) } else { text }.as_bytes())?;
            }
        }
    }
    if !printed && !failed {
        eprintln!("No resources found{}", namespace.map(|name| format!(" in {name} namespace.")).unwrap_or_default());
    }
    if failed { Err(Failure::Reported.into()) } else { Ok(()) }
}

/// The events about an object; `None` when they cannot be had.
async fn events(session: &Session, object: &Value) -> Option<Vec<Value>> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let namespace = Some(text("/metadata/namespace")).filter(|namespace| !namespace.is_empty()).unwrap_or("default");
    let fields = format!(
        "involvedObject.name={},involvedObject.kind={},involvedObject.uid={}",
        text("/metadata/name"),
        text("/kind"),
        text("/metadata/uid")
    );
    let path = format!("/api/v1/namespaces/{namespace}/events");
    let mut list = session.get(&path, &[("fieldSelector", &fields)], request::JSON).await.ok()?;
    match list["items"].take() {
        Value::Array(mut events) => {
            events.sort_by_key(|event| last_seen(event).to_owned());
            Some(events)
        }
        _ => None,
    }
}

/// When an event happened last, of either group.
pub(super) fn last_seen(event: &Value) -> &str {
    let field = |name: &str| event.get(name);
    let series = event.pointer("/series/lastObservedTime");
    let last = field("lastTimestamp").filter(|at| at.is_string()).or(field("deprecatedLastTimestamp"));
    let first = field("firstTimestamp").or(field("deprecatedFirstTimestamp"));
    let texts = [series, last, field("eventTime"), first];
    texts.into_iter().flatten().find_map(Value::as_str).unwrap_or_default()
}

/// The flags of processors are a hundred lines and more, and an older version's status says the same once more.
fn leave_out_flags(object: &mut Value) {
    for pointer in ["/status/hardware/cpu/flags", "/spec/hardware/cpu/flags"] {
        if let Some(flags) = object.pointer_mut(pointer)
            && let Some(count) = flags.as_array().map(Vec::len)
        {
            *flags = format!("{count} (--all prints them)").into();
        }
    }
    if let Some(old) = object.pointer_mut("/status/deprecated").filter(|old| old.is_object()) {
        *old = "in the shape of older versions (--all prints it)".into();
    }
}

/// A description in which the state and the last error have their colours.
fn colored(text: &str) -> String {
    let line = |line: &str| {
        let Some((label, value)) = line.split_once(':').filter(|(label, _)| ["State", "Last Error"].contains(label))
        else {
            return format!("{line}\n");
        };
        let word = if label == "State" { value.trim() } else { "error" };
        match color_of(word) {
            Some(color) => {
                let value_at = value.len() - value.trim_start().len();
                format!("{label}:{}{color}{}{PLAIN}\n", &value[..value_at], value.trim_start())
            }
            None => format!("{line}\n"),
        }
    };
    text.lines().map(line).collect()
}

fn describe(of: &Type, object: &Value, events: Option<&[Value]>, now: Timestamp) -> String {
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

fn line(text: &mut String, level: usize, label: &str, value: &str) {
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
fn host(text: &mut String, object: &Value, now: Timestamp) {
    let status = &object["status"];
    let state =
        status["provisioning"]["state"].as_str().filter(|state| !state.is_empty()).unwrap_or("(not looked at yet)");
    line(text, 0, "State", state);
    line(text, 0, "Power", super::hosts::power(object));
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
        return line(text, 0, "Now", &held.why);
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
fn machine(text: &mut String, found: &Value) {
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
fn label(field: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_are_named_in_words() {
        for (field, wanted) in [
            ("apiVersion", "API Version"),
            ("bootMACAddress", "Boot MAC Address"),
            ("online", "Online"),
            ("url", "URL"),
            ("uid", "UID"),
            ("creationTimestamp", "Creation Timestamp"),
            ("rootDeviceHints", "Root Device Hints"),
            ("sha256sum", "Sha 256 Sum"),
            ("BMC", "BMC"),
            ("cp-1", "cp-1"),
            ("mac-address", "mac-address"),
        ] {
            assert_eq!(label(field), wanted);
        }
    }

    #[test]
    fn a_host_says_what_it_waits_for_before_anything_else() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let mut object = json!({
            "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
            "metadata": {"name": "web-1", "namespace": "rack", "uid": "u", "labels": {"a": "b", "c": "d"}, "managedFields": []},
            "spec": {"online": true, "bmc": {"address": "ipmi://x"}, "taints": ["x", {"key": "k"}]},
            "status": {"provisioning": {"state": "registering"}, "errorMessage": "no answer\nat all", "errorType": "registration error",
                "errorCount": 3, "poweredOn": false, "lastUpdated": "2026-01-01T00:09:00Z",
                "addresses": [{"address": "10.0.0.5", "macAddress": "52:54:00:00:00:01", "network": "lab"}],
                "hardware": {"ramMebibytes": 4096, "cpu": {"count": 8, "flags": ["aes", "avx"]}},
                "conditions": [{"type": "Progressing", "status": "True", "reason": "Registering", "message": "next try at 2026-01-01T00:14:00Z",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        });
        let events = [
            json!({"type": "Warning", "reason": "Bad", "message": "no ", "count": 3, "source": {"component": "slipway-host"},
                "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:09:55Z"}),
        ];
        let of = Type { group: "metal3.io".into(), ..Type::default() };
        let wanted = "\
Name:         web-1
Namespace:    rack
Labels:       a=b
              c=d
Annotations:  <none>
State:        registering
Power:        unknown
Addresses:    10.0.0.5 (52:54:00:00:00:01, network lab)
Last Error:   registration error: no answer
              at all (3 times)
Waits For:    next try in 4m
Hardware:     8 CPUs, 4 GiB
API Version:  metal3.io/v1alpha1
Kind:         BareMetalHost
Metadata:
  UID:  u
Spec:
  Bmc:
    Address:  ipmi://x
  Online:     true
  Taints:
    x
    Key:  k
Status:
  Addresses:
    Address:      10.0.0.5
    Mac Address:  52:54:00:00:00:01
    Network:      lab
  Error Count:    3
  Error Message:  no answer
                  at all
  Error Type:     registration error
  Hardware:
    Cpu:
      Count:        8
      Flags:        2 (--all prints them)
    Ram Mebibytes:  4096
  Last Updated:     2026-01-01T00:09:00Z (60s ago)
  Powered On:       false
  Provisioning:
    State:  registering
Conditions:
  Type         Status  Age  Reason       Message
  ----         ------  ---  ------       -------
  Progressing  True    10m  Registering  next try in 4m
Events:
  Type     Reason  Age               From          Message
  ----     ------  ----              ----          -------
  Warning  Bad     5s (x3 over 10m)  slipway-host  no
";
        leave_out_flags(&mut object);
        let text = describe(&of, &object, Some(&events), now);
        assert_eq!(text, wanted);
        let colored = colored(&text);
        assert!(colored.contains("State:        \u{1b}[33mregistering\u{1b}[0m\n"), "{colored}");
        assert!(colored.contains("Last Error:   \u{1b}[31mregistration error: no answer\u{1b}[0m\n"), "{colored}");
        object["status"]["conditions"][0]["status"] = "False".into();
        assert!(describe(&of, &object, None, now).contains("Now:          next try in 4m\n"));
        object["metadata"]["annotations"] = json!({"baremetalhost.metal3.io/paused": "slipway host pause"});
        let paused = describe(&of, &object, None, now);
        let told = "Now:          paused (slipway host pause), so nothing is done with it: `slipway host unpause web-1` ends that\n";
        assert!(paused.contains(told) && !paused.contains("Waits For"), "{paused}");
        assert!(describe(&of, &object, Some(&[]), now).ends_with("Events:  <none>\n"));
    }

    #[test]
    fn a_machine_is_told_before_its_fields() {
        let hardware = json!({"ramMebibytes": 4096, "nics": [{"name": "eno1", "mac": "52:54:00:00:00:01"}],
            "storage": [{"name": "/dev/sda", "sizeBytes": 960_000_000_000_i64}, {"name": "/dev/sdb", "sizeBytes": 4_000_000_000_000_i64}]});
        let object = json!({"kind": "HardwareData", "metadata": {"name": "web-1"}, "spec": {"hardware": hardware}});
        let of = Type { group: "metal3.io".into(), ..Type::default() };
        let text = describe(&of, &object, None, Timestamp::UNIX_EPOCH);
        let wanted = "\
Hardware:     4 GiB, 2 disks (960 GB, 4.0 TB), 1 NIC
Disks:        /dev/sda: 960 GB
              /dev/sdb: 4.0 TB
NICs:         eno1: 52:54:00:00:00:01
";
        assert!(text.contains(wanted), "{text}");
    }

    #[test]
    fn a_list_keeps_its_lines_and_what_is_long_is_said_once() {
        let long = format!("* a: {}", "x".repeat(90));
        let condition =
            |kind: &str, message: &str| json!({"type": kind, "status": "False", "reason": "R", "message": message});
        let object = json!({"kind": "Own", "metadata": {"name": "a"}, "status": {"message": long,
            "conditions": [condition("One", "* a:\n  * b: no"), condition("Two", &long)]}});
        let text = describe(&Type::default(), &object, None, Timestamp::UNIX_EPOCH);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let at = lines.iter().position(|line| line.starts_with("One")).unwrap();
        assert!(lines[at].ends_with("* a:"), "{text}");
        assert_eq!(lines[at + 1], "* b: no", "{text}");
        assert!(lines[at + 2].ends_with(SAID), "{text}");
        assert_eq!(text.matches(&long).count(), 1, "{text}");
    }

    #[test]
    fn secrets_stay_secret() {
        let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "data": {"password": "aHVudGVyMg=="}});
        let text = describe(&Type::default(), &object, None, Timestamp::UNIX_EPOCH);
        assert!(text.contains("Password:  7 bytes") && !text.contains("aHVudGVyMg"), "{text}");
    }
}
