//! `describe`: one object for people, with its events.

use std::io::Write;

use anyhow::bail;
use jiff::Timestamp;
use serde_json::Value;

use super::connect::{ClientSession, ServerArgs};
use super::terminal::{PLAIN, Terminal, When, color_of};
use super::{missing, names, request};
use crate::cli::failure::{CommandFailure, complain, plain, usage};

mod text;

use text::describe;

#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  slipway describe host web-1      its spec, its conditions, what it waits for, what happened
  slipway describe hosts -A
  slipway describe host web-1 --all    with every flag of its processors
  slipway describe hardwaredata web-1  what inspection found in its machine
  slipway describe image/debian-12     its import and what happened to it")]
pub(in crate::cli) struct DescribeArgs {
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
    server: ServerArgs,
}

/// Characters of a text that is told once, and what stands for it then.
const LONG: usize = 80;
const SAID: &str = "(as above)";

pub(super) async fn run(options: DescribeArgs, out: &mut dyn Write) -> anyhow::Result<()> {
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
    if failed { Err(CommandFailure::Reported.into()) } else { Ok(()) }
}

/// The events about an object; `None` when they cannot be had.
async fn events(session: &ClientSession, object: &Value) -> Option<Vec<Value>> {
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

#[cfg(test)]
mod tests {
    use super::text::label;
    use super::*;
    use crate::cli::client::types::ServedType;
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
        let of = ServedType { group: "metal3.io".into(), ..ServedType::default() };
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
        let of = ServedType { group: "metal3.io".into(), ..ServedType::default() };
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
        let text = describe(&ServedType::default(), &object, None, Timestamp::UNIX_EPOCH);
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
        let text = describe(&ServedType::default(), &object, None, Timestamp::UNIX_EPOCH);
        assert!(text.contains("Password:  7 bytes") && !text.contains("aHVudGVyMg"), "{text}");
    }
}
