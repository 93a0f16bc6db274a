//! `wait`: until objects are as they are wanted.

use std::io::Write;
use std::str::FromStr;
use std::time::Duration;

use anyhow::bail;
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use super::connect::{ClientSession, ServerArgs};
use super::relative::relative;
use super::table::harmless;
use super::types::ServedType;
use super::until::{Awaited, PolledObject, WaitEnd, duration};
use super::{missing, names, request};
use crate::cli::failure::{CommandFailure, complain, usage};
use crate::jsonpath::{Path, shown};

#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  slipway wait host/web-1 --for=state=provisioned --timeout=30m
  slipway wait host/web-1 --for=condition=Ready
  slipway wait hosts --all --for=condition=Manageable=true
  slipway wait host web-1 --for=delete
  slipway wait host web-1 --for=jsonpath='{.status.poweredOn}'=true
  slipway wait image/debian-12 --for=jsonpath='{.status.phase}'=Ready")]
pub(in crate::cli) struct WaitArgs {
    /// TYPE/NAME…, TYPE NAME…, or TYPE with --all or --selector
    #[arg(required = true, value_name = "TYPE[/NAME]")]
    what: Vec<String>,
    /// condition=NAME[=VALUE], state=NAME, jsonpath=PATH[=VALUE], create or delete
    #[arg(long = "for", value_name = "WHAT", required = true)]
    wanted: WaitTarget,
    /// How long to wait; 0 checks once
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration, allow_hyphen_values = true)]
    timeout: Duration,
    /// All objects of the type in the namespace
    #[arg(long)]
    all: bool,
    /// Only objects with these labels
    #[arg(long, short = 'l', value_name = "LABELS", default_value = "", hide_default_value = true)]
    selector: String,
    /// Objects of all namespaces
    #[arg(long, short = 'A')]
    all_namespaces: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq)]
enum WaitTarget {
    Condition { kind: String, value: String },
    State(String),
    JsonPath(Path, Option<String>),
    Create,
    Delete,
}

impl FromStr for WaitTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (word, rest) = text.split_once('=').map_or((text, None), |(word, rest)| (word, Some(rest)));
        match (word.to_lowercase().as_str(), rest.filter(|rest| !rest.is_empty())) {
            ("create", None) => Ok(Self::Create),
            ("delete", None) => Ok(Self::Delete),
            ("state", Some(state)) => Ok(Self::State(state.to_owned())),
            ("condition", Some(rest)) => {
                let (kind, value) = rest.split_once('=').unwrap_or((rest, "true"));
                Ok(Self::Condition { kind: kind.to_owned(), value: value.to_owned() })
            }
            ("jsonpath", Some(rest)) => {
                // An equals sign inside the braces belongs to a filter.
                let (path, value) = match rest.rfind('}') {
                    Some(end) => (&rest[..=end], rest[end + 1..].strip_prefix('=')),
                    None => rest.split_once('=').map_or((rest, None), |(path, value)| (path, Some(value))),
                };
                let path = Path::parse(path).map_err(|error| error.to_string())?;
                Ok(Self::JsonPath(path, value.map(|value| value.trim_matches(['"', '\'']).to_owned())))
            }
            _ => Err("know condition=NAME[=VALUE], state=NAME, jsonpath=PATH[=VALUE], create, delete".into()),
        }
    }
}

impl WaitTarget {
    /// Whether the object is as it is wanted.
    fn holds(&self, object: PolledObject<'_>) -> bool {
        let Some(object) = object else { return *self == Self::Delete };
        match self {
            Self::Create => true,
            Self::Delete => false,
            Self::State(state) => state_of(object).is_some_and(|now| now.eq_ignore_ascii_case(state)),
            Self::JsonPath(path, value) => {
                let found = path.find(object);
                match value {
                    Some(value) => matches!(found.as_slice(), [one] if shown(one) == *value),
                    None => !found.is_empty(),
                }
            }
            Self::Condition { kind, value } => {
                let conditions = object["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
                let found = conditions
                    .iter()
                    .find(|condition| condition["type"].as_str().is_some_and(|known| known.eq_ignore_ascii_case(kind)));
                found.is_some_and(|condition| {
                    // A condition that speaks of an older spec says nothing.
                    let generation = object["metadata"]["generation"].as_i64();
                    let current = condition["observedGeneration"]
                        .as_i64()
                        .is_none_or(|of| generation.is_none_or(|now| of >= now));
                    current && condition["status"].as_str().is_some_and(|now| now.eq_ignore_ascii_case(value))
                })
            }
        }
    }
}

/// The state that a host, or anything with a phase, is in.
pub(super) fn state_of(object: &Value) -> Option<&str> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    text("/status/provisioning/state").or_else(|| text("/status/phase")).or_else(|| text("/status/state"))
}

/// Why an object is not as it is wanted, as far as it says.
pub(super) fn reason(object: &Value) -> Option<String> {
    told(object).map(|text| relative(&text, Timestamp::now()))
}

/// The same in its own words.
pub(super) fn told(object: &Value) -> Option<String> {
    let error = object["status"]["errorMessage"].as_str().or_else(|| object["status"]["message"].as_str());
    if let Some(error) = error.filter(|error| !error.is_empty()) {
        return Some(error.to_owned());
    }
    let conditions = object["status"]["conditions"].as_array()?;
    let message = |kind: &str| {
        let found = conditions.iter().find(|condition| condition["type"] == kind)?;
        found["message"].as_str().filter(|message| !message.is_empty()).map(str::to_owned)
    };
    message("Progressing").or_else(|| message("Ready"))
}

pub(super) async fn run(options: WaitArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let selections = names::parse(&options.what).map_err(usage)?;
    let session = options.server.connect().await?;
    let types = session.types().await?;
    let deadline = Instant::now() + options.timeout;
    let mut awaited: Vec<(ServedType, String, String)> = Vec::new();
    for selection in &selections {
        for of in types.find(&selection.word)? {
            if selection.names.is_empty() && !options.all && options.selector.is_empty() {
                return Err(usage(format!("name the {} to wait for, or give --all or --selector", of.plural)));
            }
            let namespace = session.namespace.clone();
            awaited.extend(selection.names.iter().map(|name| (of.clone(), namespace.clone(), name.clone())));
            if selection.names.is_empty() {
                awaited.extend(all_of(&session, of, &options).await?);
            }
        }
    }
    if awaited.is_empty() {
        bail!("no matching resources found");
    }
    let mut failed = false;
    for (of, namespace, name) in &awaited {
        if let Err(error) = one(&session, &options.wanted, of, namespace, name, deadline, out).await {
            complain(format_args!("{error:#}"));
            failed = true;
        }
    }
    if failed { Err(CommandFailure::Reported.into()) } else { Ok(()) }
}

async fn all_of(
    session: &ClientSession,
    of: &ServedType,
    options: &WaitArgs,
) -> anyhow::Result<Vec<(ServedType, String, String)>> {
    let namespace = (!options.all_namespaces).then_some(session.namespace.as_str());
    let mut found = Vec::new();
    let query = [("labelSelector", options.selector.as_str())];
    session
        .pages(&of.path(namespace, None), &query, request::METADATA, |page| {
            for item in page["items"].as_array().into_iter().flatten() {
                let text = |field: &str| item["metadata"][field].as_str().unwrap_or_default().to_owned();
                found.push((of.clone(), text("namespace"), text("name")));
            }
            Ok(())
        })
        .await?;
    Ok(found)
}

async fn one(
    session: &ClientSession,
    wanted: &WaitTarget,
    of: &ServedType,
    namespace: &str,
    name: &str,
    deadline: Instant,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let label = format!("{}/{name}", of.one());
    let mut last: Option<Value> = None;
    let mut was_there = false;
    let awaited = Awaited { of, namespace, name };
    let ended = session
        .until(&awaited, deadline, |object| {
            if wanted.holds(object) {
                return Some(true);
            }
            was_there |= object.is_some();
            last = object.cloned();
            // What is not there, and is not about to be made, never gets anywhere.
            (object.is_none() && *wanted != WaitTarget::Create).then_some(false)
        })
        .await;
    // Looking once must work without any time.
    let ended = match ended? {
        WaitEnd::TimedOut if last.is_none() && deadline <= Instant::now() => {
            let object = session.get(&of.path(Some(namespace), Some(name)), &[], request::JSON).await;
            match object {
                Ok(object) if wanted.holds(Some(&object)) => WaitEnd::Done(true),
                Ok(object) => {
                    last = Some(object);
                    WaitEnd::TimedOut
                }
                Err(error) if error.is_not_found() => WaitEnd::Done(wanted.holds(None)),
                Err(error) => return Err(error.into()),
            }
        }
        ended => ended,
    };
    match ended {
        WaitEnd::Done(true) => {
            let met = if *wanted == WaitTarget::Delete { "deleted" } else { "condition met" };
            writeln!(out, "{} {met}", harmless(&label))?;
            Ok(())
        }
        WaitEnd::Done(false) if was_there => bail!("{label} was deleted meanwhile"),
        WaitEnd::Done(false) => bail!("{}", missing::explain(session, of, name).await),
        WaitEnd::TimedOut => {
            let message = last.as_ref().map(|object| {
                let state = state_of(object).map(|state| format!("; its state is {state}")).unwrap_or_default();
                state + &reason(object).map(|reason| format!(": {reason}")).unwrap_or_default()
            });
            bail!("timed out waiting for the condition on {}/{name}{}", of.plural, message.unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_wish_is_read_and_judged() {
        let host = json!({
            "metadata": {"generation": 2},
            "status": {"provisioning": {"state": "provisioned"}, "poweredOn": true, "conditions": [
                {"type": "Ready", "status": "True", "observedGeneration": 2},
                {"type": "Old", "status": "True", "observedGeneration": 1},
                {"type": "Progressing", "status": "False", "message": "waits for the agent"},
            ]},
        });
        for (wish, present, absent) in [
            ("condition=Ready", true, false),
            ("condition=ready=True", true, false),
            ("condition=Ready=False", false, false),
            ("condition=Old", false, false),
            ("condition=None", false, false),
            ("condition=Progressing=false", true, false),
            ("state=provisioned", true, false),
            ("state=available", false, false),
            ("jsonpath={.status.poweredOn}=true", true, false),
            ("jsonpath=.status.poweredOn=false", false, false),
            ("jsonpath={.status.provisioning}", true, false),
            ("jsonpath={.status.none}", false, false),
            ("jsonpath={.status.conditions[?(@.type=='Ready')].status}=True", true, false),
            ("create", true, false),
            ("delete", false, true),
        ] {
            let wanted: WaitTarget = wish.parse().unwrap();
            assert_eq!((wanted.holds(Some(&host)), wanted.holds(None)), (present, absent), "{wish}");
        }
        for wish in ["", "ready", "condition", "condition=", "state=", "jsonpath={.a", "delete=1"] {
            assert!(wish.parse::<WaitTarget>().is_err(), "{wish}");
        }
        assert_eq!(reason(&host).as_deref(), Some("waits for the agent"));
        assert_eq!(reason(&json!({"status": {"errorMessage": "no such BMC"}})).as_deref(), Some("no such BMC"));
    }
}
