//! `apply`: objects become as the files say, by server-side apply.

use std::io::Write;
use std::time::Duration;

use anyhow::bail;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::connect::{ClientSession, ServerArgs};
use super::errors::ApiRequestError;
use super::manifests::{ManifestObject, ManifestSource};
use super::migration;
use super::output::{self, ClientOutput};
use super::request;
use super::table::harmless;
use super::types::{ServedType, ServedTypes};
use super::until::{Awaited, WaitEnd, duration};
use super::wait::{reason, state_of};
use crate::cli::failure::{CommandFailure, complain, usage};

/// Who the fields belong to.
const MANAGER: &str = "slipway";
/// How long a kind may take to be served after its definition was applied.
const ESTABLISH_DEADLINE: Duration = Duration::from_secs(30);

#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  slipway apply -f web-1.yaml                    create it, or change what differs
  slipway apply -f rack/ -R                      a folder with its folders
  slipway apply -f https://example.org/rack.yaml
  cat web-1.yaml | slipway apply -f -
  slipway apply -f web-1.yaml --dry-run          check it, change nothing
  slipway apply -f web-1.yaml --wait --timeout=30m")]
pub(in crate::cli) struct ApplyArgs {
    #[command(flatten)]
    files: ManifestSource,
    /// Only check; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Take over fields that another manager owns
    #[arg(long)]
    force_conflicts: bool,
    /// Name of the field manager
    #[arg(long, value_name = "NAME", default_value = MANAGER)]
    field_manager: String,
    /// Wait until everything is ready: hosts provisioned or available, images imported, Ready where there is such a condition
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
    /// How long to wait
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = duration, requires = "wait")]
    timeout: Duration,
    /// Output format: json, yaml, name, jsonpath=… [default: what was done]
    #[arg(long, short, value_name = "FORM")]
    output: Option<ClientOutput>,
    #[command(flatten)]
    server: ServerArgs,
}

/// An object that was applied.
struct AppliedObject {
    of: ServedType,
    object: Value,
}

pub(super) async fn run(options: ApplyArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    if options.files.filenames.is_empty() {
        return Err(usage("name what to apply: -f FILE, -f DIR, -f URL, or -f - for standard input"));
    }
    if options.output.as_ref().is_some_and(|output| !output.is_of_objects()) {
        return Err(usage("-o of apply is json, yaml, name or jsonpath"));
    }
    let manifests = options.files.read().await?;
    let session = options.server.connect().await?;
    let mut types = session.types().await?;
    let mut applied = Vec::new();
    let mut failed = false;
    let mut defined = false;
    for manifest in &manifests {
        let done = one(&session, &options, &mut types, manifest, defined).await;
        match done {
            Ok((what, done)) => {
                defined |= done.of.kind == "CustomResourceDefinition" && !options.dry_run;
                if options.output.is_none() {
                    let dry = if options.dry_run { " (server dry run)" } else { "" };
                    writeln!(out, "{} {what}{dry}", output::name_of(&done.object))?;
                }
                applied.push(done);
            }
            Err(error) => {
                if matches!(error.downcast_ref(), Some(ApiRequestError::Unreachable(_))) {
                    return Err(error);
                }
                complain(format_args!("{}: {error:#}", manifest.origin));
                failed = true;
            }
        }
    }
    if let Some(output) = &options.output {
        let objects: Vec<Value> = applied.iter().map(|one| one.object.clone()).collect();
        let alone = manifests.len() == 1;
        if !objects.is_empty() {
            output::ObjectPrinter::new(output.clone(), false, false).all(objects, alone, out)?;
        }
    }
    if options.wait {
        let deadline = Instant::now() + options.timeout;
        for one in &applied {
            failed |= !wait_for(&session, one, deadline, options.output.is_none(), out).await?;
        }
    }
    if failed { Err(CommandFailure::Reported.into()) } else { Ok(()) }
}

async fn one(
    session: &ClientSession,
    options: &ApplyArgs,
    types: &mut ServedTypes,
    manifest: &ManifestObject,
    defined: bool,
) -> anyhow::Result<(&'static str, AppliedObject)> {
    let (version, kind) = (manifest.text("/apiVersion"), manifest.text("/kind"));
    let of = type_of(session, types, version, kind, defined).await?;
    let mut object = manifest.object.clone();
    let namespace = namespace_of(session, options, &of, manifest)?;
    if of.namespaced {
        object["metadata"]["namespace"] = namespace.clone().into();
    }
    // What only a server writes is no wish; kubectl get -o yaml prints it, and people edit that.
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    let path = of.path(Some(&namespace), Some(manifest.text("/metadata/name")));
    let before = match session.get(&path, &[], request::JSON).await {
        Ok(before) => Some(before),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error.into()),
    };
    if let Some(reason) = before.is_none().then(|| migration::would_be_wiped(&object)).flatten() {
        bail!("host {}: {reason}", manifest.text("/metadata/name"));
    }
    let query = [
        ("fieldManager", options.field_manager.as_str()),
        ("force", if options.force_conflicts { "true" } else { "false" }),
        ("fieldValidation", "Strict"),
        ("dryRun", if options.dry_run { "All" } else { "" }),
    ];
    let (created, mut after) = session.apply(&path, &query, &object).await?;
    after["apiVersion"] = of.api_version().into();
    after["kind"] = of.kind.clone().into();
    Ok((verdict(created, before.as_ref(), &after), AppliedObject { of, object: after }))
}

/// What happened to an object.
fn verdict(created: bool, before: Option<&Value>, after: &Value) -> &'static str {
    let stripped = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            // A dry run counts no revision, and who manages a field is no change of it.
            metadata.remove("resourceVersion");
            metadata.remove("managedFields");
        }
        (object["metadata"].take(), object["spec"].take(), object["data"].take(), object)
    };
    match before {
        None => "created",
        Some(_) if created => "created",
        Some(before) if before["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"] => {
            let same = stripped(before) == stripped(after);
            if same { "unchanged" } else { "configured" }
        }
        Some(_) => "configured",
    }
}

async fn type_of(
    session: &ClientSession,
    types: &mut ServedTypes,
    version: &str,
    kind: &str,
    defined: bool,
) -> anyhow::Result<ServedType> {
    let deadline = Instant::now() + ESTABLISH_DEADLINE;
    loop {
        if let Some(of) = types.of_object(version, kind) {
            return Ok(of.clone());
        }
        // A kind that was defined a moment ago is served a moment later.
        if !defined || Instant::now() >= deadline {
            bail!("{}", types.no_such_kind(version, kind));
        }
        sleep(Duration::from_millis(200)).await;
        *types = session.types().await?;
    }
}

fn namespace_of(
    session: &ClientSession,
    options: &ApplyArgs,
    of: &ServedType,
    manifest: &ManifestObject,
) -> anyhow::Result<String> {
    let own = manifest.text("/metadata/namespace");
    if let Some(asked) =
        options.server.namespace.as_deref().filter(|asked| of.namespaced && !own.is_empty() && *asked != own)
    {
        bail!("{} is in namespace {own:?}, and -n says {asked:?}", manifest.text("/metadata/name"));
    }
    Ok(if own.is_empty() { session.namespace.clone() } else { own.to_owned() })
}

/// Waits until the object is ready; says every state on the way. Whether it got there.
async fn wait_for(
    session: &ClientSession,
    applied: &AppliedObject,
    deadline: Instant,
    chatty: bool,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    let label = output::name_of(&applied.object);
    let text = |pointer: &str| applied.object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let awaited = Awaited { of: &applied.of, namespace: text("/metadata/namespace"), name: text("/metadata/name") };
    let mut said = String::new();
    let mut last = None;
    let ended = session
        .until(&awaited, deadline, |object| {
            let Some(object) = object else { return Some(false) };
            let state = state_of(object).unwrap_or_default();
            if chatty && state != said && !state.is_empty() {
                writeln!(out, "{label} {}", harmless(state)).ok();
                out.flush().ok();
                said = state.to_owned();
            }
            let ready = is_ready(object);
            last = reason(object);
            ready.then_some(true)
        })
        .await?;
    match ended {
        WaitEnd::Done(true) => {
            if chatty {
                writeln!(out, "{label} ready")?;
            }
            return Ok(true);
        }
        WaitEnd::Done(false) => complain(format_args!("{label} was deleted meanwhile")),
        WaitEnd::TimedOut => {
            let message = last.map(|reason| format!(": {reason}")).unwrap_or_default();
            complain(format_args!("{label} is not ready in time{message}"));
        }
    }
    Ok(false)
}

/// Whether an object has become what its spec asks for, as far as its kind can say.
fn is_ready(object: &Value) -> bool {
    let status = &object["status"];
    let generation = object["metadata"]["generation"].as_i64();
    let seen = |of: &Value| of.as_i64().is_none_or(|of| generation.is_none_or(|now| of >= now));
    if object["kind"] == "BareMetalHost" {
        let state = state_of(object).unwrap_or_default();
        let wanted: &[&str] = if object["spec"]["image"].is_object() {
            &["provisioned", "externally provisioned"]
        } else {
            &["available", "ready", "unmanaged", "externally provisioned"]
        };
        let broken = status["operationalStatus"] == "error";
        let current = status["conditions"].as_array().into_iter().flatten().all(|one| seen(&one["observedGeneration"]));
        return wanted.contains(&state) && !broken && current;
    }
    if !seen(&status["observedGeneration"]) {
        return false;
    }
    let conditions = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    for kind in ["Ready", "Established", "Available"] {
        if let Some(condition) = conditions.iter().find(|condition| condition["type"] == kind) {
            return condition["status"] == "True" && seen(&condition["observedGeneration"]);
        }
    }
    if let Some(phase) = status["phase"].as_str() {
        return ["Ready", "Active", "Bound", "Current", "Running", "Succeeded"].contains(&phase);
    }
    // Kinds with a status that did not get one yet are not ready; those without have nothing to wait for.
    !["Image", "Provisioning", "Software"].iter().any(|kind| object["kind"] == *kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_happened_is_said() {
        let at = |revision: &str, online: bool| json!({"metadata": {"resourceVersion": revision}, "spec": {"online": online}});
        for (created, before, after, wanted) in [
            (true, None, at("1", true), "created"),
            // A dry run of a creation.
            (false, None, at("", true), "created"),
            (false, Some(at("1", true)), at("1", true), "unchanged"),
            (false, Some(at("1", true)), at("2", true), "configured"),
            // A dry run of a change.
            (false, Some(at("1", true)), at("1", false), "configured"),
        ] {
            assert_eq!(verdict(created, before.as_ref(), &after), wanted, "{before:?} {after}");
        }
    }

    #[test]
    fn every_kind_says_when_it_is_ready() {
        let host = |image: bool, state: &str, operational: &str| {
            let mut host = json!({"kind": "BareMetalHost", "metadata": {"generation": 2}, "spec": {},
                "status": {"provisioning": {"state": state}, "operationalStatus": operational,
                    "conditions": [{"type": "Ready", "status": "True", "observedGeneration": 2}]}});
            if image {
                host["spec"]["image"] = json!({"url": "x"});
            }
            host
        };
        let mut stale = host(false, "available", "OK");
        stale["metadata"]["generation"] = 3.into();
        for (object, wanted) in [
            (host(false, "available", "OK"), true),
            (host(true, "available", "OK"), false),
            (host(true, "provisioned", "OK"), true),
            (host(true, "provisioned", "error"), false),
            (stale, false),
            (json!({"kind": "Image"}), false),
            (json!({"kind": "Image", "status": {"phase": "Importing"}}), false),
            (json!({"kind": "Image", "status": {"phase": "Ready"}}), true),
            (
                json!({"kind": "Image", "metadata": {"generation": 2}, "status": {"phase": "Ready", "observedGeneration": 1}}),
                false,
            ),
            (json!({"kind": "Provisioning"}), false),
            (
                json!({"kind": "Provisioning", "status": {"phase": "Choosing", "conditions": [{"type": "Installed", "status": "False"}]}}),
                false,
            ),
            (json!({"kind": "Provisioning", "status": {"phase": "Ready"}}), true),
            (json!({"kind": "Software"}), false),
            (
                json!({"kind": "Software", "status": {"phase": "Current", "conditions": [{"type": "Current", "status": "True"}]}}),
                true,
            ),
            (json!({"kind": "Secret"}), true),
            (json!({"kind": "X", "status": {"conditions": [{"type": "Ready", "status": "False"}]}}), false),
            (json!({"kind": "X", "status": {"conditions": [{"type": "Established", "status": "True"}]}}), true),
        ] {
            assert_eq!(is_ready(&object), wanted, "{object}");
        }
    }
}
