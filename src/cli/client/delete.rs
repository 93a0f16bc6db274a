//! `delete`: by file, by name, by label, or all of a type.

use std::cell::RefCell;
use std::io::Write;
use std::time::Duration;

use anyhow::{anyhow, bail};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::connect::{ClientSession, ServerArgs};
use super::errors::ApiRequestError;
use super::held::held as left_alone;
use super::host::Printed;
use super::manifests::ManifestSource;
use super::selected::{self, Selected};
use super::table::harmless;
use super::types::ServedType;
use super::until::{Awaited, WaitEnd, duration};
use super::wait::reason;
use super::{missing, names, request};
use crate::api::metal3::{ANNOTATION_DETACHED, ANNOTATION_PAUSED};
use crate::cli::failure::{CommandFailure, complain, usage};
use crate::cli::image::refuse_needed;

#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  slipway delete host web-1                 and wait until it is gone
  slipway delete host web-1 --wait=false    only ask for it
  slipway delete host web-1 --force         its machine stays as it is: for a BMC that is gone
  slipway delete -f rack/ -R
  slipway delete secrets -l rack=a
  slipway delete hosts --all -n lab")]
pub(in crate::cli) struct DeleteArgs {
    /// TYPE NAME…, TYPE/NAME…, or TYPE with --selector or --all
    #[arg(value_name = "TYPE[/NAME]", conflicts_with = "filenames")]
    what: Vec<String>,
    #[command(flatten)]
    files: ManifestSource,
    /// Only objects with these labels
    #[arg(long, short = 'l', value_name = "LABELS", default_value = "", hide_default_value = true)]
    selector: String,
    /// All objects of the type in the namespace
    #[arg(long)]
    all: bool,
    /// With --all or --selector: objects of all namespaces
    #[arg(long, short = 'A')]
    all_namespaces: bool,
    /// What happens to the objects it owns: deleted after it, before it, or kept
    #[arg(long, value_enum, default_value = "background")]
    cascade: Cascade,
    /// Wait until the objects are gone
    #[arg(long, default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    wait: bool,
    /// How long to wait; 0 waits as long as it takes
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = duration)]
    timeout: Duration,
    /// Delete hosts without their machines: DISKS ARE NOT ERASED AND NOTHING IS POWERED OFF. For a machine that is broken or gone,
    /// or whose BMC does not answer. Delete images also where hosts name them
    #[arg(long)]
    force: bool,
    /// Do not fail when an object does not exist
    #[arg(long)]
    ignore_not_found: bool,
    /// Only check; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print only names, as type/name, or the outcome for every object as JSON
    #[arg(long, short, value_enum, value_name = "FORM")]
    output: Option<Printed>,
    #[command(flatten)]
    server: ServerArgs,
}

/// The same for hosts only.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  slipway host delete web-1
  slipway host delete web-1 --force         its BMC does not answer any more")]
pub(in crate::cli) struct HostOptions {
    #[command(flatten)]
    selected: Selected,
    /// Leave the machines as they are: DISKS ARE NOT ERASED AND NOTHING IS POWERED OFF
    #[arg(long)]
    force: bool,
    /// Wait until the hosts are gone
    #[arg(long, default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    wait: bool,
    /// How long to wait; 0 waits as long as it takes
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = duration)]
    timeout: Duration,
    /// Do not fail when a host does not exist
    #[arg(long)]
    ignore_not_found: bool,
    /// Only check; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print only names, as type/name, or the outcome for every host as JSON
    #[arg(long, short, value_enum, value_name = "FORM")]
    output: Option<Printed>,
    #[command(flatten)]
    server: ServerArgs,
}

impl HostOptions {
    /// Whether it is said which hosts are meant.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        selected::check(&self.selected.names, self.selected.by_label.selector.as_deref(), false)
    }
}

impl From<HostOptions> for DeleteArgs {
    fn from(hosts: HostOptions) -> Self {
        let HostOptions { selected, force, wait, timeout, ignore_not_found, dry_run, output, server } = hosts;
        let mut what = vec![HOSTS.to_owned()];
        what.extend(selected.names);
        Self {
            what,
            files: ManifestSource::default(),
            selector: selected.by_label.selector.unwrap_or_default(),
            all: false,
            all_namespaces: false,
            cascade: Cascade::Background,
            wait,
            timeout,
            force,
            ignore_not_found,
            dry_run,
            output,
            server,
        }
    }
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Cascade {
    Background,
    Foreground,
    Orphan,
}

/// Types that have something to say before they go.
const HOSTS: &str = "baremetalhosts.metal3.io";
const IMAGES: &str = "images.slipway.dev";

/// How often it is said what keeps an object that is to go.
const TELL: Duration = Duration::from_secs(10);
/// Tries to detach a host that others change at the same time.
const FORCE_TRIES: usize = 5;

/// What is to go.
struct DeleteTarget {
    of: ServedType,
    namespace: String,
    name: String,
    /// Whether it was found in a list: then it is no failure when it is gone by itself meanwhile.
    listed: bool,
}

pub(super) async fn run(options: DeleteArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let by_file = !options.files.filenames.is_empty();
    if !by_file && options.what.is_empty() {
        return Err(usage("name what to delete: TYPE NAME, TYPE/NAME, or -f FILE"));
    }
    let manifests = if by_file { options.files.read().await? } else { Vec::new() };
    let selections = if by_file { Vec::new() } else { names::parse(&options.what).map_err(usage)? };
    let session = options.server.connect().await?;
    let types = session.types().await?;
    let mut doomed = Vec::new();
    let mut failed = false;
    for manifest in &manifests {
        let (version, kind) = (manifest.text("/apiVersion"), manifest.text("/kind"));
        let Some(of) = types.of_object(version, kind) else {
            // Its type may have gone with its definition.
            if !options.ignore_not_found {
                complain(format_args!("{}: {}", manifest.origin, types.no_such_kind(version, kind)));
                failed = true;
            }
            continue;
        };
        let own = manifest.text("/metadata/namespace");
        let namespace = if own.is_empty() { session.namespace.clone() } else { own.to_owned() };
        doomed.push(DeleteTarget {
            of: of.clone(),
            namespace,
            name: manifest.text("/metadata/name").to_owned(),
            listed: false,
        });
    }
    for selection in &selections {
        for of in types.find(&selection.word)? {
            let named = !selection.names.is_empty();
            if named && (options.all || !options.selector.is_empty()) {
                return Err(usage("a name cannot be combined with --all or --selector"));
            }
            if !named && !options.all && options.selector.is_empty() {
                return Err(usage(format!("name the {} to delete, or give --all or --selector", of.plural)));
            }
            let one = |name: &String| DeleteTarget {
                of: of.clone(),
                namespace: session.namespace.clone(),
                name: name.clone(),
                listed: false,
            };
            doomed.extend(selection.names.iter().map(one));
            if !named {
                doomed.extend(all_of(&session, of, &options).await?);
            }
        }
    }
    let takes_force = |one: &DeleteTarget| [HOSTS, IMAGES].contains(&one.of.qualified().as_str());
    if let Some(other) = doomed.iter().find(|one| options.force && !takes_force(one)) {
        return Err(usage(format!("--force is for hosts and images, not for {}", other.of.plural)));
    }
    if doomed.is_empty() && !failed && options.output != Some(Printed::Json) {
        writeln!(out, "No resources found")?;
    }
    let (mut going, mut outcomes) = (Vec::new(), Vec::new());
    for one in doomed {
        match delete(&session, &options, &one).await {
            Ok(Some(uid)) if options.wait && !options.dry_run => going.push((one, uid)),
            Ok(uid) => outcomes.push(say(&options, &one, uid.is_some(), out)?),
            Err(error) => {
                if matches!(error.downcast_ref(), Some(ApiRequestError::Unreachable(_))) {
                    return Err(error);
                }
                complain(format_args!("{error:#}"));
                outcomes.push(outcome(&one, "failed", &format!("{error:#}")));
                failed = true;
            }
        }
    }
    let week = Duration::from_secs(7 * 24 * 3600);
    let deadline = Instant::now() + if options.timeout.is_zero() { week } else { options.timeout };
    let all = going.len();
    for (at, (one, uid)) in going.iter().enumerate() {
        match gone(&session, one, uid, deadline, all - at - 1).await? {
            Ok(()) => outcomes.push(say(&options, one, false, out)?),
            Err(reason) => {
                complain(&reason);
                outcomes.push(outcome(one, "late", &reason));
                failed = true;
            }
        }
    }
    if options.output == Some(Printed::Json) {
        writeln!(out, "{}", serde_json::to_string_pretty(&outcomes)?)?;
    }
    if failed { Err(CommandFailure::Reported.into()) } else { Ok(()) }
}

/// `is_there`: it goes once those who hold it let it go, and nobody waits for that.
fn say(options: &DeleteArgs, one: &DeleteTarget, is_there: bool, out: &mut dyn Write) -> std::io::Result<Value> {
    let result = match (options.dry_run, is_there) {
        (true, _) => "dry run",
        (false, true) => "deleting",
        (false, false) => "deleted",
    };
    if options.output == Some(Printed::Name) {
        writeln!(out, "{}/{}", one.of.one(), harmless(&one.name))?;
    } else if options.output.is_none() {
        let place = if one.of.namespaced { format!(" from {} namespace", one.namespace) } else { String::new() };
        let dry = if options.dry_run { " (server dry run)" } else { "" };
        let machine = if options.force && one.of.qualified() == HOSTS {
            "; its machine is not erased and not powered off"
        } else {
            ""
        };
        let how = if is_there && !options.dry_run { "is being deleted" } else { "deleted" };
        writeln!(out, "{} {:?} {how}{place}{machine}{dry}", one.of.one(), one.name)?;
    }
    out.flush()?;
    Ok(outcome(one, result, ""))
}

/// How it ended, for programs.
fn outcome(one: &DeleteTarget, result: &str, message: &str) -> Value {
    let namespace = if one.of.namespaced { one.namespace.as_str() } else { "" };
    json!({ "type": one.of.one(), "namespace": namespace, "name": one.name, "result": result, "message": message })
}

async fn all_of(session: &ClientSession, of: &ServedType, options: &DeleteArgs) -> anyhow::Result<Vec<DeleteTarget>> {
    let namespace = (!options.all_namespaces).then_some(session.namespace.as_str());
    let query = [("labelSelector", options.selector.as_str())];
    let mut found = Vec::new();
    session
        .pages(&of.path(namespace, None), &query, request::METADATA, |page| {
            for item in page["items"].as_array().into_iter().flatten() {
                let text = |field: &str| item["metadata"][field].as_str().unwrap_or_default().to_owned();
                found.push(DeleteTarget {
                    of: of.clone(),
                    namespace: text("namespace"),
                    name: text("name"),
                    listed: true,
                });
            }
            Ok(())
        })
        .await?;
    Ok(found)
}

/// Asks for the deletion; the UID of what is still there.
async fn delete(session: &ClientSession, options: &DeleteArgs, one: &DeleteTarget) -> anyhow::Result<Option<String>> {
    let propagation = match options.cascade {
        Cascade::Background => "Background",
        Cascade::Foreground => "Foreground",
        Cascade::Orphan => "Orphan",
    };
    let path = one.of.path(Some(&one.namespace), Some(&one.name));
    let mut body = request::delete_options(propagation, options.dry_run);
    if one.of.qualified() == IMAGES && !options.force {
        refuse_needed(&session.client, &one.name).await?;
    }
    if options.force && one.of.qualified() == HOSTS {
        match let_machine_go(session, &path, &one.name, options.dry_run).await {
            Ok(uid) => body["preconditions"] = json!({ "uid": uid }),
            // The same is said of it as without --force.
            Err(error) if error.downcast_ref().is_some_and(ApiRequestError::is_not_found) => {}
            Err(error) => return Err(error),
        }
    }
    match session.delete(&path, &[], &body).await {
        // Gone at once: the answer is a Status. Held by finalizers: the object.
        Ok(answer) => Ok(answer.pointer("/metadata/uid").and_then(Value::as_str).map(str::to_owned)),
        Err(error) if error.is_not_found() && (options.ignore_not_found || one.listed) => Ok(None),
        Err(error) if error.is_not_found() => bail!("{}", missing::explain(session, &one.of, &one.name).await),
        Err(error) => Err(error.into()),
    }
}

/// Detaches a host, so that its deletion asks nothing of its machine; its UID. First the server says whether it would delete it:
/// a host that stays is not to be detached.
async fn let_machine_go(session: &ClientSession, path: &str, name: &str, dry_run: bool) -> anyhow::Result<Value> {
    for _ in 0..FORCE_TRIES {
        let host = session.get(path, &[], request::JSON).await?;
        let uid = host["metadata"]["uid"].clone();
        let Some(value) = forced(&host).map_err(|reason| anyhow!("host {name} {reason}"))? else { return Ok(uid) };
        let mut would = request::delete_options("Background", true);
        would["preconditions"] = json!({ "uid": uid });
        session.delete(path, &[], &would).await?;
        let revision = &host["metadata"]["resourceVersion"];
        let patch =
            json!({ "metadata": { "resourceVersion": revision, "annotations": { ANNOTATION_DETACHED: value } } });
        match session.merge_as(path, &patch, dry_run).await {
            Err(error) if error.is_conflict() => {}
            detached => return Ok(detached.map(|_| uid)?),
        }
    }
    bail!("host {name} is changed again and again by others")
}

/// What its annotation `detached` is to hold so that a host goes without its machine; none when it holds that already.
///
/// # Errors
///
/// Why nothing helps.
fn forced(host: &Value) -> Result<Option<&'static str>, String> {
    let annotation = |key: &str| host["metadata"]["annotations"][key].as_str();
    if annotation(ANNOTATION_PAUSED).is_some() {
        return Err("is paused, which stops its deletion too: `slipway host unpause` ends that".into());
    }
    let Some(value) = annotation(ANNOTATION_DETACHED) else { return Ok(Some(r#"{"deleteAction":"delete"}"#)) };
    let delays = serde_json::from_str::<Value>(value).is_ok_and(|value| value["deleteAction"] == "delay");
    if delays {
        let how = "remove the annotation, or its delay, if you are sure";
        return Err(format!("is detached by somebody who wants its deletion to wait ({ANNOTATION_DETACHED}): {how}"));
    }
    Ok(None)
}

/// Waits until the object is gone, or another has its name: else why it is not. Says now and then what it waits for. `more` are waited for after it.
async fn gone(
    session: &ClientSession,
    one: &DeleteTarget,
    uid: &str,
    deadline: Instant,
    more: usize,
) -> anyhow::Result<Result<(), String>> {
    let awaited = Awaited { of: &one.of, namespace: &one.namespace, name: &one.name };
    let last = RefCell::new(None);
    let until = session.until(&awaited, deadline, |object| {
        let Some(object) = object.filter(|object| object["metadata"]["uid"] == uid) else { return Some(()) };
        *last.borrow_mut() = Some(object.clone());
        None
    });
    let reason = || last.borrow().as_ref().map(|object| held(object, &one.of)).unwrap_or_default();
    let mut until = std::pin::pin!(until);
    let mut said = String::new();
    let ended = loop {
        match timeout(TELL, &mut until).await {
            Ok(ended) => break ended?,
            Err(_) => {
                let after = if more > 0 { format!(", and {more} more after it") } else { String::new() };
                let says = format!("waiting until {} {:?} is gone{after}{}", one.of.one(), one.name, reason());
                if says != said {
                    complain(&says);
                    said = says;
                }
            }
        }
    };
    if ended == WaitEnd::TimedOut {
        return Ok(Err(format!("{} {:?} is not gone in time{}", one.of.one(), one.name, reason())));
    }
    Ok(Ok(()))
}

/// What keeps an object that is to go, and what helps.
fn held(object: &Value, of: &ServedType) -> String {
    let finalizers = object["metadata"]["finalizers"].as_array().map_or(&[][..], Vec::as_slice);
    let names: Vec<&str> = finalizers.iter().filter_map(Value::as_str).collect();
    let by = if names.is_empty() { String::new() } else { format!("; held by {}", names.join(", ")) };
    let is_host = of.qualified() == HOSTS;
    let how = if is_host && left_alone(object).is_none() {
        "\n`slipway host delete --force` lets it go without its machine: DISKS ARE NOT ERASED, NOTHING IS POWERED OFF"
    } else {
        ""
    };
    let message = left_alone(object).filter(|_| is_host).map(|held| held.reason).or_else(|| reason(object));
    by + &message.map(|message| format!(": {message}")).unwrap_or_default() + how
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_a_host_is_told_with_what_helps() {
        let host = |annotations: Value| {
            json!({"metadata": {"name": "h", "annotations": annotations, "finalizers": ["a", "b"]},
                "status": {"errorMessage": "no answer"}})
        };
        let of = super::super::types::hosts();
        let said = held(&host(json!({})), &of);
        assert!(said.starts_with("; held by a, b: no answer\n`slipway host delete --force` lets it go"), "{said}");
        let said = held(&host(json!({ANNOTATION_PAUSED: ""})), &of);
        assert!(said.ends_with("`slipway host unpause h` ends that"), "{said}");
        let said = held(&host(json!({})), &super::super::types::secrets());
        assert_eq!(said, "; held by a, b: no answer");
        assert_eq!(held(&json!({"metadata": {}}), &super::super::types::secrets()), "");
    }

    #[test]
    fn a_host_goes_without_its_machine_unless_somebody_wants_otherwise() {
        let with = |key: &str, value: &str| json!({"metadata": {"annotations": {key: value}}});
        for (host, wanted) in [
            (json!({"metadata": {}}), Ok(Some(r#"{"deleteAction":"delete"}"#))),
            (with(ANNOTATION_DETACHED, ""), Ok(None)),
            (with(ANNOTATION_DETACHED, r#"{"force":true}"#), Ok(None)),
            (with(ANNOTATION_DETACHED, r#"{"deleteAction":"delay"}"#), Err("wants its deletion to wait")),
            (with(ANNOTATION_PAUSED, ""), Err("is paused")),
        ] {
            match (forced(&host), wanted) {
                (Ok(value), Ok(wanted)) => assert_eq!(value, wanted, "{host}"),
                (Err(reason), Err(wanted)) => assert!(reason.contains(wanted), "{host}: {reason}"),
                (got, _) => panic!("{host}: {got:?}"),
            }
        }
    }
}
