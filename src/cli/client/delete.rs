//! `delete`: by file, by name, by label, or all of a type.

use std::io::Write;
use std::time::Duration;

use anyhow::{anyhow, bail};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::connect::{Server, Session};
use super::errors::RequestError;
use super::manifests::Files;
use super::selected::{self, Selected};
use super::table::harmless;
use super::types::{Type, hosts};
use super::until::{Awaited, Ended, duration};
use super::wait::reason;
use super::{missing, names, request};
use crate::api::metal3::{ANNOTATION_DETACHED, ANNOTATION_PAUSED};
use crate::cli::failure::{Failure, complain, usage};

#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  slipway delete host web-1                 and wait until it is gone
  slipway delete host web-1 --wait=false    only ask for it
  slipway delete host web-1 --force         its machine stays as it is: for a BMC that is gone
  slipway delete -f rack/ -R
  slipway delete secrets -l rack=a
  slipway delete hosts --all -n lab")]
pub(in crate::cli) struct Options {
    /// TYPE NAME…, TYPE/NAME…, or TYPE with --selector or --all
    #[arg(value_name = "TYPE[/NAME]", conflicts_with = "filenames")]
    what: Vec<String>,
    #[command(flatten)]
    files: Files,
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
    /// or whose BMC does not answer
    #[arg(long)]
    force: bool,
    /// Do not fail when an object does not exist
    #[arg(long)]
    ignore_not_found: bool,
    /// Only check; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print only names, as type/name
    #[arg(long, short, value_name = "FORM", value_parser = ["name"])]
    output: Option<String>,
    #[command(flatten)]
    server: Server,
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
    /// Print only names, as type/name
    #[arg(long, short, value_name = "FORM", value_parser = ["name"])]
    output: Option<String>,
    #[command(flatten)]
    server: Server,
}

impl HostOptions {
    /// Whether it is said which hosts are meant.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        selected::check(&self.selected.names, self.selected.by_label.selector.as_deref(), false)
    }
}

impl From<HostOptions> for Options {
    fn from(hosts: HostOptions) -> Self {
        let HostOptions { selected, force, wait, timeout, ignore_not_found, dry_run, output, server } = hosts;
        let mut what = vec!["baremetalhosts.metal3.io".to_owned()];
        what.extend(selected.names);
        Self {
            what,
            files: Files::default(),
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

/// Tries to detach a host that others change at the same time.
const FORCE_TRIES: usize = 5;

/// What is to go.
struct Deletion {
    of: Type,
    namespace: String,
    name: String,
    /// Whether it was found in a list: then it is no failure when it is gone by itself meanwhile.
    listed: bool,
}

pub(super) async fn run(options: Options, out: &mut dyn Write) -> anyhow::Result<()> {
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
        doomed.push(Deletion {
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
            let one = |name: &String| Deletion {
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
    if let Some(other) = doomed.iter().find(|one| options.force && one.of.qualified() != hosts().qualified()) {
        return Err(usage(format!("--force is for hosts, not for {}", other.of.plural)));
    }
    if doomed.is_empty() && !failed {
        writeln!(out, "No resources found")?;
    }
    let mut going = Vec::new();
    for one in doomed {
        match delete(&session, &options, &one).await {
            Ok(uid) => {
                say(&options, &one, out)?;
                going.push((one, uid));
            }
            Err(error) => {
                if matches!(error.downcast_ref(), Some(RequestError::Unreachable(_))) {
                    return Err(error);
                }
                complain(format_args!("{error:#}"));
                failed = true;
            }
        }
    }
    if options.wait && !options.dry_run {
        let week = Duration::from_secs(7 * 24 * 3600);
        let deadline = Instant::now() + if options.timeout.is_zero() { week } else { options.timeout };
        for (one, uid) in going {
            if let Some(uid) = uid {
                failed |= !gone(&session, &one, &uid, deadline).await?;
            }
        }
    }
    if failed { Err(Failure::Reported.into()) } else { Ok(()) }
}

fn say(options: &Options, one: &Deletion, out: &mut dyn Write) -> std::io::Result<()> {
    if options.output.is_some() {
        writeln!(out, "{}/{}", one.of.one(), harmless(&one.name))?;
    } else {
        let place = if one.of.namespaced { format!(" from {} namespace", one.namespace) } else { String::new() };
        let dry = if options.dry_run { " (server dry run)" } else { "" };
        let machine = if options.force { "; its machine is not erased and not powered off" } else { "" };
        writeln!(out, "{} {:?} deleted{place}{machine}{dry}", one.of.one(), one.name)?;
    }
    out.flush()
}

async fn all_of(session: &Session, of: &Type, options: &Options) -> anyhow::Result<Vec<Deletion>> {
    let namespace = (!options.all_namespaces).then_some(session.namespace.as_str());
    let query = [("labelSelector", options.selector.as_str())];
    let mut found = Vec::new();
    session
        .pages(&of.path(namespace, None), &query, request::METADATA, |page| {
            for item in page["items"].as_array().into_iter().flatten() {
                let text = |field: &str| item["metadata"][field].as_str().unwrap_or_default().to_owned();
                found.push(Deletion { of: of.clone(), namespace: text("namespace"), name: text("name"), listed: true });
            }
            Ok(())
        })
        .await?;
    Ok(found)
}

/// Asks for the deletion; the UID of what is still there.
async fn delete(session: &Session, options: &Options, one: &Deletion) -> anyhow::Result<Option<String>> {
    let propagation = match options.cascade {
        Cascade::Background => "Background",
        Cascade::Foreground => "Foreground",
        Cascade::Orphan => "Orphan",
    };
    let path = one.of.path(Some(&one.namespace), Some(&one.name));
    let mut body = request::delete_options(propagation, options.dry_run);
    if options.force {
        match let_machine_go(session, &path, &one.name, options.dry_run).await {
            Ok(uid) => body["preconditions"] = json!({ "uid": uid }),
            // The same is said of it as without --force.
            Err(error) if error.downcast_ref().is_some_and(RequestError::is_not_found) => {}
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
async fn let_machine_go(session: &Session, path: &str, name: &str, dry_run: bool) -> anyhow::Result<Value> {
    for _ in 0..FORCE_TRIES {
        let host = session.get(path, &[], request::JSON).await?;
        let uid = host["metadata"]["uid"].clone();
        let Some(value) = forced(&host).map_err(|why| anyhow!("host {name} {why}"))? else { return Ok(uid) };
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

/// Waits until the object is gone, or another has its name.
async fn gone(session: &Session, one: &Deletion, uid: &str, deadline: Instant) -> anyhow::Result<bool> {
    let awaited = Awaited { of: &one.of, namespace: &one.namespace, name: &one.name };
    let mut last = None;
    let ended = session
        .until(&awaited, deadline, |object| {
            let Some(object) = object.filter(|object| object["metadata"]["uid"] == uid) else { return Some(()) };
            last = Some(object.clone());
            None
        })
        .await?;
    if ended == Ended::TimedOut {
        let why = last.as_ref().map(held).unwrap_or_default();
        complain(format_args!("{} {:?} is not gone in time{why}", one.of.one(), one.name));
        return Ok(false);
    }
    Ok(true)
}

/// What keeps an object that is to go.
fn held(object: &Value) -> String {
    let finalizers = object["metadata"]["finalizers"].as_array().map_or(&[][..], Vec::as_slice);
    let names: Vec<&str> = finalizers.iter().filter_map(Value::as_str).collect();
    let by = if names.is_empty() { String::new() } else { format!("; held by {}", names.join(", ")) };
    by + &reason(object).map(|reason| format!(": {reason}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

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
                (Err(why), Err(wanted)) => assert!(why.contains(wanted), "{host}: {why}"),
                (got, _) => panic!("{host}: {got:?}"),
            }
        }
    }

    #[test]
    fn what_holds_an_object_is_said() {
        let object =
            json!({"metadata": {"finalizers": ["baremetalhost.metal3.io"]}, "status": {"errorMessage": "no BMC"}});
        assert_eq!(held(&object), "; held by baremetalhost.metal3.io: no BMC");
        assert_eq!(held(&json!({"metadata": {}})), "");
    }
}
