//! `host move`: hosts go to another server, with their status and what belongs to them.
//!
//! What is to be done, and what arrives, is in [`copy`]; here it is done, in an order in which at most one server acts on
//! a machine, and which can be broken off at any line and begun again.

mod copy;

use std::collections::HashSet;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::connect::{ClientSession, ServerArgs};
use super::errors::ApiRequestError;
use super::host::{OutcomeForm, OutcomeReport};
use super::types::{ServedType, hosts, secrets};
use super::until::{Awaited, WaitEnd, duration};
use super::wait::reason;
use super::{missing, request};
use crate::api::metal3::{ANNOTATION_DETACHED, ANNOTATION_PAUSED};
use crate::api::slipway::ANNOTATION_MOVED_TO;
use crate::api::{Declared, Kind};
use crate::cli::failure::usage;
use crate::modules;
use copy::CopyTask;
pub(super) use copy::would_be_wiped;

/// Who the fields of what is copied belong to. Not the manager of `apply`, which would take away what its file does not
/// name.
const MANAGER: [(&str, &str); 1] = [("fieldManager", "slipway-host-move")];
/// Tries to delete a host that somebody else changes.
const DELETE_TRIES: usize = 5;

/// Kinds of objects that have the name of their host.
fn belonging() -> Vec<ServedType> {
    let of_hosts: HashSet<_> = modules::declared().filter(Declared::belongs_to_host).map(|kind| kind.name()).collect();
    let is_theirs = |kind: &Kind| kind.crd.metadata.name.as_deref().is_some_and(|name| of_hosts.contains(name));
    let kinds = modules::kinds().into_iter().filter(is_theirs);
    kinds
        .map(|kind| {
            let spec = kind.crd.spec;
            let version = spec.versions.into_iter().find(|version| version.storage).map(|version| version.name);
            ServedType {
                group: spec.group,
                version: version.unwrap_or_default(),
                kind: spec.names.kind,
                plural: spec.names.plural,
                singular: spec.names.singular.unwrap_or_default(),
                ..hosts()
            }
        })
        .collect()
}

#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  slipway host move web-1 --to-kubeconfig other.kubeconfig
  slipway host move --all -A --to-kubeconfig cluster.kubeconfig --dry-run    say what can be moved, change nothing
  slipway host move --all -A --to-kubeconfig cluster.kubeconfig
  slipway host move web-1 --kubeconfig old.kubeconfig --to-kubeconfig new.kubeconfig
  slipway host move web-1 -n default --to-namespace rack-7                   on the same server")]
pub(in crate::cli) struct MigrationArgs {
    /// Names of the hosts
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// All hosts of the namespace
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// With --all: the hosts of all namespaces, which they keep
    #[arg(long, short = 'A', requires = "all", conflicts_with = "to_namespace")]
    all_namespaces: bool,
    /// Kubeconfig of the server to move to [default: the one they are on]
    #[arg(long, value_name = "FILE", help_heading = "Destination")]
    to_kubeconfig: Option<PathBuf>,
    /// Context of that kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", help_heading = "Destination")]
    to_context: Option<String>,
    /// Namespace to move to, created if it is missing [default: the same as here]
    #[arg(long, value_name = "NAME", help_heading = "Destination")]
    to_namespace: Option<String>,
    /// Print which hosts can be moved; change nothing
    #[arg(long)]
    dry_run: bool,
    /// How long to wait for each host to be detached, and to be deleted here
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    form: OutcomeForm,
    #[command(flatten)]
    server: ServerArgs,
}

/// From where to where.
struct Migration {
    from: ClientSession,
    to: ClientSession,
    timeout: Duration,
}

/// One host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct HostMove {
    name: String,
    /// Its namespace here.
    here: String,
    /// Its namespace there.
    there: String,
}

pub(super) async fn run(options: MigrationArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    if options.names.is_empty() && !options.all {
        return Err(usage("name the hosts to move, or give --all"));
    }
    if options.to_kubeconfig.is_none() && options.to_context.is_none() && options.to_namespace.is_none() {
        return Err(usage("give the destination: --to-kubeconfig, --to-context or --to-namespace"));
    }
    let from = options.server.connect().await?;
    let to = options.server.other(options.to_kubeconfig.clone(), options.to_context.clone()).connect().await?;
    let migration = Migration { from, to, timeout: options.timeout };
    let mut ready = Vec::new();
    let (mut report, mut failed) = (OutcomeReport::new(options.form), false);
    let place = |one: &HostMove| (one.here.clone(), one.name.clone());
    for host_move in migration.host_moves(&options).await? {
        match migration.task(&host_move).await {
            Ok(task) => ready.push((host_move, task)),
            Err(error) => {
                report.add(&place(&host_move), "failed", &fault(error)?, out)?;
                failed = true;
            }
        }
    }
    // Nothing is touched before everything was looked at.
    if failed && !options.dry_run && !ready.is_empty() {
        eprintln!("slipway: no host was moved; name those that can be, or try again when the others can");
    }
    if ready.is_empty() && !failed {
        report.sum("No resources found", out)?;
    }
    for (host_move, task) in &ready {
        let to = &migration.to.endpoint;
        if options.dry_run {
            report.add(&place(host_move), "unchanged", &format!("can be moved to {to}"), out)?;
        } else if !failed {
            match migration.migrate(host_move, *task).await {
                Ok(()) => report.add(&place(host_move), "changed", &format!("moved to {to}"), out)?,
                Err(error) => report.add(&place(host_move), "failed", &fault(error)?, out)?,
            }
        }
    }
    report.end(out)
}

/// What is wrong with one host; a server that is not there is wrong with all of them.
fn fault(error: anyhow::Error) -> anyhow::Result<String> {
    if matches!(error.downcast_ref(), Some(ApiRequestError::Unreachable(_))) {
        return Err(error);
    }
    Ok(format!("{error:#}"))
}

/// Whether a host is a copy that waits for its original to go.
pub(super) fn is_copy(host: &Value) -> bool {
    copy::original(host).is_some()
}

impl Migration {
    async fn host_moves(&self, options: &MigrationArgs) -> anyhow::Result<Vec<HostMove>> {
        let there = |here: &str| options.to_namespace.clone().unwrap_or_else(|| here.to_owned());
        let one = |name: &str, here: &str| HostMove { name: name.into(), here: here.into(), there: there(here) };
        if !options.all {
            return Ok(options.names.iter().map(|name| one(name, &self.from.namespace)).collect());
        }
        let namespace = (!options.all_namespaces).then_some(self.from.namespace.as_str());
        let mut all: Vec<HostMove> = self.names(&self.from, namespace, |_| true).await?;
        all.iter_mut().for_each(|one| one.there = there(&one.here));
        // Those that an earlier move has left there, waiting.
        let at = options.to_namespace.as_deref().or(namespace);
        for mut late in self.names(&self.to, at, |host| copy::original(host).is_some()).await? {
            late.here = namespace.unwrap_or(&late.there).to_owned();
            all.push(late);
        }
        all.sort();
        all.dedup();
        Ok(all)
    }

    /// Hosts of a server, as if they stayed in their namespaces.
    async fn names(
        &self,
        server: &ClientSession,
        namespace: Option<&str>,
        is: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<Vec<HostMove>> {
        let mut found = Vec::new();
        let path = hosts().path(namespace, None);
        let listed = server.pages(&path, &[], request::METADATA, |page| {
            for item in page["items"].as_array().into_iter().flatten().filter(|item| is(item)) {
                let text = |field: &str| item["metadata"][field].as_str().unwrap_or_default().to_owned();
                found.push(HostMove { name: text("name"), here: text("namespace"), there: text("namespace") });
            }
            Ok(())
        });
        listed.await.with_context(|| format!("hosts of {} cannot be listed", server.endpoint))?;
        Ok(found)
    }

    async fn task(&self, one: &HostMove) -> anyhow::Result<CopyTask> {
        let of = hosts();
        // Where there are no hosts at all, a host that is not there means nothing.
        let kind = self.to.get(&of.path(Some(&one.there), None), &[("limit", "1")], request::JSON).await;
        if kind.as_ref().is_err_and(ApiRequestError::is_not_found) {
            bail!("cannot be moved: {} has no BareMetalHosts. `slipway crds` prints the kinds", self.to.endpoint);
        }
        kind?;
        let here = optional(&self.from, &of, &one.here, &one.name).await?;
        let there = optional(&self.to, &of, &one.there, &one.name).await?;
        match copy::task(here.as_ref(), there.as_ref()).map_err(anyhow::Error::msg)? {
            Some(task) => Ok(task),
            None => bail!("is not here: {}", missing::explain(&self.from, &of, &one.name).await),
        }
    }

    async fn migrate(&self, one: &HostMove, task: CopyTask) -> anyhow::Result<()> {
        match task {
            CopyTask::Detach(how) => {
                self.detach(one, how).await?;
                self.copy_and_delete(one).await?;
            }
            CopyTask::Copy => self.copy_and_delete(one).await?,
            CopyTask::AwaitGone => self.gone(one).await?,
            CopyTask::Release => {}
        }
        let free = json!({ "metadata": { "annotations": { ANNOTATION_PAUSED: null } } });
        self.to.merge(&hosts().path(Some(&one.there), Some(&one.name)), &free).await?;
        Ok(())
    }

    /// Waits until its server leaves the machine alone.
    async fn detach(&self, one: &HostMove, how: &str) -> anyhow::Result<()> {
        let of = hosts();
        let patch = json!({ "metadata": { "annotations": { ANNOTATION_DETACHED: how } } });
        self.from.merge(&of.path(Some(&one.here), Some(&one.name)), &patch).await?;
        let awaited = Awaited { of: &of, namespace: &one.here, name: &one.name };
        let mut last = None;
        let done = |host: Option<&Value>| {
            last = host.cloned();
            host.is_none_or(copy::is_detached).then_some(host.is_some())
        };
        match self.from.until(&awaited, Instant::now() + self.timeout, done).await? {
            WaitEnd::Done(true) => Ok(()),
            WaitEnd::Done(false) => bail!("was deleted meanwhile"),
            WaitEnd::TimedOut => {
                let message = last.as_ref().and_then(reason).map(|message| format!(": {message}")).unwrap_or_default();
                bail!(
                    "was not detached in time{message}. Move it again, or remove the annotation {ANNOTATION_DETACHED} to keep it here"
                )
            }
        }
    }

    async fn copy_and_delete(&self, one: &HostMove) -> anyhow::Result<()> {
        let of = hosts();
        let path = of.path(Some(&one.here), Some(&one.name));
        let host = self.from.get(&path, &[], request::JSON).await?;
        self.namespace(&one.there).await?;
        for name in copy::secrets(&host) {
            self.secret(one, name).await.with_context(|| format!("cannot be moved: its secret {name}"))?;
        }
        let mut belongings = Vec::new();
        for of in belonging() {
            if let Some(object) = optional(&self.from, &of, &one.here, &one.name).await? {
                belongings.push((of, object));
            }
        }
        let with_hardware_data = belongings.iter().any(|(of, _)| of.plural == "hardwaredata");
        let ours = |there: &Value| copy::original(there) == Some(copy::uid(&host));
        let arrived = self.put(&of, one, copy::host(&host, &one.there, with_hardware_data), ours).await?;
        for (of, object) in &belongings {
            self.put(of, one, copy::belonging(object, &one.there, &arrived), |_| true).await?;
        }
        // Nobody else gets the machine between the two of them.
        let heir = format!("{}/{}/{}", one.there, one.name, copy::uid(&arrived));
        let patch = json!({ "metadata": { "annotations": { ANNOTATION_MOVED_TO: heir } } });
        self.from.merge(&path, &patch).await?;
        self.delete(one, copy::uid(&host)).await?;
        self.gone(one).await
    }

    async fn namespace(&self, name: &str) -> anyhow::Result<()> {
        let of = ServedType { version: "v1".into(), plural: "namespaces".into(), ..ServedType::default() };
        let found = self.to.get(&of.path(None, Some(name)), &[], request::JSON).await;
        if found.as_ref().is_err_and(ApiRequestError::is_not_found) {
            let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
            match self.to.create(&of.path(None, None), &MANAGER, &namespace).await {
                Err(error) if error.is_conflict() => {}
                created => drop(created?),
            }
        }
        // Who may not look may still write into it.
        Ok(())
    }

    /// A Secret of the host; one with the same contents may be there already. One that is missing here is missing there.
    async fn secret(&self, one: &HostMove, name: &str) -> anyhow::Result<()> {
        let of = secrets();
        let Some(secret) = optional(&self.from, &of, &one.here, name).await? else { return Ok(()) };
        match self.to.create(&of.path(Some(&one.there), None), &MANAGER, &copy::plain(&secret, &one.there)).await {
            Err(error) if error.is_conflict() => {
                let there = self.to.get(&of.path(Some(&one.there), Some(name)), &[], request::JSON).await?;
                if there["data"] != secret["data"] {
                    bail!("is at the destination already, with other contents");
                }
                Ok(())
            }
            created => Ok(created.map(drop)?),
        }
    }

    /// An object as it arrives, in the place of what an earlier try left.
    async fn put(
        &self,
        of: &ServedType,
        one: &HostMove,
        mut object: Value,
        ours: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<Value> {
        let path = of.path(Some(&one.there), Some(&one.name));
        if let Some(before) = optional(&self.to, of, &one.there, &one.name).await? {
            if !ours(&before) {
                bail!("cannot be moved: another host of that name has come to the destination meanwhile");
            }
            object["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
            return Ok(self.to.replace(&path, &MANAGER, &object).await?);
        }
        Ok(self.to.create(&of.path(Some(&one.there), None), &MANAGER, &object).await?)
    }

    /// Deletes exactly what was looked at: a host that came back from being detached would be wiped.
    async fn delete(&self, one: &HostMove, uid: &str) -> anyhow::Result<()> {
        let path = hosts().path(Some(&one.here), Some(&one.name));
        for _ in 0..DELETE_TRIES {
            let host = match self.from.get(&path, &[], request::JSON).await {
                Err(error) if error.is_not_found() => return Ok(()),
                host => host?,
            };
            if copy::uid(&host) != uid || !copy::may_go(&host) {
                bail!("is not detached any more: it stays here; delete its copy at the destination, which is paused");
            }
            let exactly = json!({ "uid": uid, "resourceVersion": host["metadata"]["resourceVersion"] });
            let body = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background",
                "preconditions": exactly });
            match self.from.delete(&path, &[], &body).await {
                Err(error) if error.is_conflict() => {}
                deleted => return Ok(deleted.map(drop)?),
            }
        }
        bail!("is changed again and again: move it again when it is at rest")
    }

    async fn gone(&self, one: &HostMove) -> anyhow::Result<()> {
        let of = hosts();
        let awaited = Awaited { of: &of, namespace: &one.here, name: &one.name };
        let mut last = None;
        let done = |host: Option<&Value>| {
            last = host.cloned();
            host.is_none().then_some(())
        };
        if self.from.until(&awaited, Instant::now() + self.timeout, done).await? == WaitEnd::TimedOut {
            let held = last.map(|host| host["metadata"]["finalizers"].to_string()).unwrap_or_default();
            bail!("is not gone here in time, held by {held}. Its copy is paused; move it again when it is gone");
        }
        Ok(())
    }
}

/// An object, where there is one.
async fn optional(
    server: &ClientSession,
    of: &ServedType,
    namespace: &str,
    name: &str,
) -> Result<Option<Value>, ApiRequestError> {
    match server.get(&of.path(Some(namespace), Some(name)), &[], request::JSON).await {
        Err(error) if error.is_not_found() => Ok(None),
        found => found.map(Some),
    }
}
