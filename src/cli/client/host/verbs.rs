//! What a verb comes to for a host as it is: a change, nothing, or a refusal with its reason. Pure functions.

use serde_json::{Map, Value, json};

use super::super::held::no_unpause_reason;
use crate::api::metal3::{ANNOTATION_DETACHED, ANNOTATION_INSPECT, ANNOTATION_PAUSED, ANNOTATION_REBOOT};
use crate::api::slipway::{ANNOTATION_DISCOVERED, ANNOTATION_MOVED_TO, DISCOVERED_PENDING};
use crate::outbound::masked;

/// What is to be done with a host.
#[derive(Clone, Debug)]
pub(super) enum Verb {
    Power { on: bool },
    Reboot { hard: bool, force: bool },
    Inspect,
    Detach { force: bool },
    Attach,
    Pause,
    Unpause,
    Label { set: Vec<(String, String)>, remove: Vec<String>, overwrite: bool },
    Deploy(DeployRequest),
    Release,
}

/// What a host is to be provisioned with.
#[derive(Clone, Debug, Default)]
pub(super) struct DeployRequest {
    /// `spec.image`, with a null for what is not given.
    pub image: Value,
    /// Fields of the spec that name a Secret, and how the Secret of a host is called: `userData`, `user-data`.
    pub secrets: Vec<(&'static str, &'static str)>,
}

/// Fields of the spec that name a Secret, with the end of the name that `deploy` gives to it.
pub(super) const DATA: [(&str, &str); 3] =
    [("userData", "user-data"), ("metaData", "meta-data"), ("networkData", "network-data")];

/// What a verb comes to. The texts go on from the host's name: `is to be powered on`.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum VerbDecision {
    /// This merge patch, and what it asks for.
    Change(Value, String),
    /// It is so, or was asked for, already.
    Already(String),
    /// Why it cannot be done.
    Refused(String),
}

use VerbDecision::{Already, Change, Refused};

fn change(patch: Value, said: impl Into<String>) -> VerbDecision {
    Change(patch, said.into())
}

fn already(said: impl Into<String>) -> VerbDecision {
    Already(said.into())
}

fn refused(reason: impl Into<String>) -> VerbDecision {
    Refused(reason.into())
}

pub(super) fn annotation<'a>(host: &'a Value, key: &str) -> Option<&'a str> {
    host["metadata"]["annotations"][key].as_str()
}

fn annotate(key: &str, value: Value) -> Value {
    json!({ "metadata": { "annotations": { key: value } } })
}

fn text<'a>(host: &'a Value, pointer: &str) -> &'a str {
    host.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn state(host: &Value) -> &str {
    text(host, "/status/provisioning/state")
}

/// The state in a sentence.
fn being(host: &Value) -> &str {
    Some(state(host)).filter(|state| !state.is_empty()).unwrap_or("not looked at yet")
}

fn is_available(host: &Value) -> bool {
    matches!(state(host), "available" | "ready")
}

fn is_installed(host: &Value) -> bool {
    matches!(state(host), "provisioned" | "externally provisioned")
}

/// What is installed, or wanted to be: the image or the method.
fn deployed(host: &Value) -> Option<String> {
    let image = ["/spec/image/url", "/status/provisioning/image/url"].map(|pointer| text(host, pointer));
    let method = ["/spec/customDeploy/method", "/status/provisioning/customDeploy/method"].map(|at| text(host, at));
    let image = image.into_iter().find(|url| !url.is_empty()).map(|url| format!("the image {}", masked(url)));
    let method = method.into_iter().find(|method| !method.is_empty()).map(|method| format!("the method {method}"));
    image.or(method)
}

/// Why nothing of this kind can be done with the host at all.
fn hindered(verb: &Verb, host: &Value) -> Option<String> {
    let name = text(host, "/metadata/name");
    let acts = !matches!(verb, Verb::Label { .. } | Verb::Pause | Verb::Unpause);
    let with_machine = acts && !matches!(verb, Verb::Detach { .. } | Verb::Attach);
    if host["metadata"]["deletionTimestamp"].is_string() && !matches!(verb, Verb::Label { .. } | Verb::Unpause) {
        return Some("is being deleted".into());
    }
    if acts && annotation(host, ANNOTATION_PAUSED).is_some() {
        let how = no_unpause_reason(host).unwrap_or_else(|| format!("`slipway host unpause {name}` ends that"));
        return Some(format!("is paused, so nothing is done with it: {how}"));
    }
    if !with_machine {
        return None;
    }
    if annotation(host, ANNOTATION_DISCOVERED) == Some(DISCOVERED_PENDING) {
        return Some(format!("waits to be accepted: `slipway host accept {name}`"));
    }
    if annotation(host, ANNOTATION_DETACHED).is_some() {
        return Some(format!("is detached, so its machine is left alone: `slipway host attach {name}` ends that"));
    }
    if text(host, "/spec/bmc/address").is_empty() {
        return Some("names no BMC (spec.bmc.address)".into());
    }
    None
}

/// Who uses the host and would change it back.
fn consumer(host: &Value) -> Option<String> {
    let name = text(host, "/spec/consumerRef/name");
    (!name.is_empty()).then(|| format!("is used by {} {name} (spec.consumerRef)", text(host, "/spec/consumerRef/kind")))
}

/// What is to be done for a host as it is.
pub(super) fn decide(verb: &Verb, host: &Value) -> VerbDecision {
    if let Some(reason) = hindered(verb, host) {
        return Refused(reason);
    }
    match verb {
        Verb::Power { on } => power(host, *on),
        Verb::Reboot { hard, force } => reboot(host, *hard, *force),
        Verb::Inspect => inspect(host),
        Verb::Detach { force } => detach(host, *force),
        Verb::Attach => attach(host),
        Verb::Pause => match annotation(host, ANNOTATION_PAUSED) {
            Some(_) => already("is paused"),
            None => change(annotate(ANNOTATION_PAUSED, "slipway host pause".into()), "is paused"),
        },
        Verb::Unpause => match annotation(host, ANNOTATION_PAUSED) {
            None => already("is not paused"),
            Some(_) => match no_unpause_reason(host) {
                Some(reason) => refused(format!("stays paused: {reason}")),
                None => change(annotate(ANNOTATION_PAUSED, Value::Null), "is no longer paused"),
            },
        },
        Verb::Label { set, remove, overwrite } => label(host, set, remove, *overwrite),
        Verb::Deploy(deployment) => deploy(host, deployment),
        Verb::Release => release(host),
    }
}

fn power(host: &Value, on: bool) -> VerbDecision {
    let word = if on { "on" } else { "off" };
    if !on && host["spec"]["disablePowerOff"] == true {
        return refused("is never powered off (spec.disablePowerOff)");
    }
    let busy = !(is_available(host) || is_installed(host));
    let when = if busy { format!(" once it is no longer {}", being(host)) } else { String::new() };
    if host["spec"]["online"] == on {
        let is_so = host["status"]["poweredOn"] == on;
        return already(if is_so { format!("is powered {word}") } else { format!("is to be powered {word}{when}") });
    }
    let patch = json!({ "spec": { "online": on } });
    match deployed(host).filter(|_| on && is_available(host)) {
        Some(what) => change(patch, format!("is to be powered on, and provisioned with {what}")),
        None => change(patch, format!("is to be powered {word}{when}")),
    }
}

fn reboot(host: &Value, hard: bool, force: bool) -> VerbDecision {
    let annotations = host["metadata"]["annotations"].as_object();
    let is_holder = |key: &&String| key.strip_prefix(ANNOTATION_REBOOT).is_some_and(|rest| rest.starts_with('/'));
    if let Some(holder) = annotations.into_iter().flat_map(Map::keys).find(is_holder) {
        return refused(format!("is held off by the annotation {holder}"));
    }
    if !force && !is_installed(host) {
        let reason = "a reboot is for an installed system; --force begins an inspection or provisioning again";
        return refused(format!("is {}: {reason}", being(host)));
    }
    if host["spec"]["online"] == false {
        return refused("is to be off (spec.online is false): power it on instead");
    }
    if annotation(host, ANNOTATION_REBOOT).is_some() {
        return already("is to be rebooted");
    }
    let mut how = Map::new();
    if hard {
        how.insert("mode".into(), "hard".into());
    }
    if force {
        how.insert("force".into(), true.into());
    }
    let how = if how.is_empty() { String::new() } else { Value::Object(how).to_string() };
    change(annotate(ANNOTATION_REBOOT, how.into()), "is to be rebooted")
}

fn inspect(host: &Value) -> VerbDecision {
    if host["spec"]["inspectionMode"] == "disabled" || annotation(host, ANNOTATION_INSPECT) == Some("disabled") {
        return refused("is not inspected (spec.inspectionMode is disabled)");
    }
    match state(host) {
        "inspecting" => return already("is being inspected"),
        "available" | "ready" => {}
        "provisioned" => return refused("is provisioned: only an available host is inspected again; release it first"),
        _ => return refused(format!("is {}: only an available host is inspected again", being(host))),
    }
    if host["spec"]["online"] == true && deployed(host).is_some() {
        return refused("is about to be provisioned");
    }
    match annotation(host, ANNOTATION_INSPECT) {
        Some(_) => already("is to be inspected"),
        None => change(annotate(ANNOTATION_INSPECT, "".into()), "is to be inspected"),
    }
}

fn is_forced(value: &str) -> bool {
    serde_json::from_str::<Value>(value).is_ok_and(|value| value["force"] == true)
}

fn detach(host: &Value, force: bool) -> VerbDecision {
    let is_detached = host["status"]["operationalStatus"] == "detached";
    match annotation(host, ANNOTATION_DETACHED) {
        Some(_) if is_detached => return already("is detached"),
        Some(value) if !force || is_forced(value) => return already("is to be detached"),
        _ => {}
    }
    if force {
        return change(annotate(ANNOTATION_DETACHED, r#"{"force":true}"#.into()), "is to be detached at once");
    }
    let calm = is_available(host) || is_installed(host);
    let when =
        if calm { String::new() } else { format!(" once it is no longer {}; --force does it at once", being(host)) };
    change(annotate(ANNOTATION_DETACHED, "".into()), format!("is to be detached{when}"))
}

fn attach(host: &Value) -> VerbDecision {
    if annotation(host, ANNOTATION_DETACHED).is_none() {
        return already("is not detached");
    }
    if let Some(copy) = annotation(host, ANNOTATION_MOVED_TO) {
        let how = format!("delete its copy there, remove the annotation {ANNOTATION_MOVED_TO}, and attach it then");
        return refused(format!("is being moved to {copy}: finish `slipway host move`. To keep it here, {how}"));
    }
    change(annotate(ANNOTATION_DETACHED, Value::Null), "is to be attached")
}

fn label(host: &Value, set: &[(String, String)], remove: &[String], overwrite: bool) -> VerbDecision {
    let has = |key: &str| host["metadata"]["labels"][key].as_str();
    let mut labels = Map::new();
    for (key, value) in set {
        match has(key) {
            Some(known) if known == value => continue,
            Some(known) if !overwrite => {
                return refused(format!("has the label {key}={known} already: give --overwrite to change it"));
            }
            _ => labels.insert(key.clone(), value.clone().into()),
        };
    }
    for key in remove.iter().filter(|key| has(key).is_some()) {
        labels.insert(key.clone(), Value::Null);
    }
    if labels.is_empty() {
        return already("has these labels");
    }
    change(json!({ "metadata": { "labels": labels } }), "is labelled")
}

fn deploy(host: &Value, deployment: &DeployRequest) -> VerbDecision {
    let name = text(host, "/metadata/name");
    if host["spec"]["externallyProvisioned"] == true {
        return refused("keeps the system that runs on it (spec.externallyProvisioned)");
    }
    if let Some(consumer) = consumer(host) {
        return refused(consumer);
    }
    if let Some(what) = deployed(host) {
        return refused(format!("has {what} already: `slipway host release {name}` first"));
    }
    let mut spec = json!({ "online": true, "image": deployment.image });
    for (field, end) in &deployment.secrets {
        spec[*field] = json!({ "name": format!("{name}-{end}"), "namespace": text(host, "/metadata/namespace") });
    }
    let when =
        if is_available(host) { String::new() } else { format!(" once it is available (it is {})", being(host)) };
    let url = masked(deployment.image["url"].as_str().unwrap_or_default());
    change(json!({ "spec": spec }), format!("is to be provisioned with {url}{when}"))
}

fn release(host: &Value) -> VerbDecision {
    let name = text(host, "/metadata/name");
    if host["spec"]["externallyProvisioned"] == true {
        return refused("runs a system that Slipway did not install (spec.externallyProvisioned): nothing to release");
    }
    if let Some(consumer) = consumer(host) {
        return refused(consumer);
    }
    let wanted = ["/spec/image/url", "/spec/customDeploy/method"].iter().any(|pointer| !text(host, pointer).is_empty());
    if !wanted {
        return already(match deployed(host) {
            Some(_) => "is being released",
            None => "has no image",
        });
    }
    let mut spec = json!({ "image": null, "customDeploy": null });
    for (field, end) in DATA {
        if host["spec"][field]["name"] == format!("{name}-{end}") {
            spec[field] = Value::Null;
        }
    }
    let fate = if is_available(host) {
        "nothing was written to its disks yet"
    } else if host["spec"]["automatedCleaningMode"] == "disabled" {
        "its disks are kept, and it is powered off"
    } else {
        "ITS DISKS ARE ERASED"
    };
    change(json!({ "spec": spec }), format!("is to be released: {fate}"))
}

/// Whether the host is what the verb asked for, after its change was stored.
pub(super) fn reached(verb: &Verb, host: &Value) -> bool {
    match verb {
        Verb::Power { on } => host["status"]["poweredOn"] == *on && host["spec"]["online"] == *on,
        Verb::Reboot { .. } => annotation(host, ANNOTATION_REBOOT).is_none() && host["status"]["poweredOn"] == true,
        Verb::Inspect => annotation(host, ANNOTATION_INSPECT).is_none() && is_available(host),
        Verb::Detach { .. } => host["status"]["operationalStatus"] == "detached",
        Verb::Attach => {
            host["status"]["operationalStatus"] != "detached" && annotation(host, ANNOTATION_DETACHED).is_none()
        }
        Verb::Pause | Verb::Unpause | Verb::Label { .. } => true,
        Verb::Deploy(deployment) => {
            state(host) == "provisioned" && host["status"]["provisioning"]["image"]["url"] == deployment.image["url"]
        }
        Verb::Release => is_available(host) && deployed(host).is_none(),
    }
}

impl Verb {
    /// What is said of a host that is what was asked for.
    pub(super) fn done(&self) -> &'static str {
        match self {
            Self::Power { on: true } => "is powered on",
            Self::Power { on: false } => "is powered off",
            Self::Reboot { .. } => "was rebooted",
            Self::Inspect => "was inspected",
            Self::Detach { .. } => "is detached",
            Self::Attach => "is attached",
            Self::Pause => "is paused",
            Self::Unpause => "is no longer paused",
            Self::Label { .. } => "is labelled",
            Self::Deploy(_) => "is provisioned",
            Self::Release => "is released",
        }
    }

    /// Whether an error on the way ends the wait. Longer operations are tried again, and come to their end all the same.
    pub(super) fn ends_at_an_error(&self) -> bool {
        !matches!(self, Self::Deploy(_) | Self::Release | Self::Inspect)
    }

    /// Whether the machine draws more current from then on.
    pub(super) fn powers_on(&self) -> bool {
        matches!(self, Self::Power { on: true } | Self::Reboot { .. } | Self::Deploy(_) | Self::Inspect | Self::Release)
    }
}

#[cfg(test)]
mod tests;
