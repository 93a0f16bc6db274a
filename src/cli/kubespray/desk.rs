//! What Provisionings and Softwares had run, from any desk: over the API, with the rights of whoever asks.

use std::time::Duration;

use clap::ValueEnum;
use futures::{AsyncBufReadExt, TryStreamExt};
use k8s_openapi::NamespaceResourceScope;
use kube::Resource;
use kube::api::{Api, Patch, PatchParams};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::api::bpa::software::Software;
use crate::api::bpa::{ANNOTATION_CANCEL, ANNOTATION_RUN, Provisioning, ProvisioningStatus, RunProgress};
use crate::cli::client::{ClientSession, ServerArgs};
use crate::cli::common::print_text;
use crate::cli::failure::{plain, usage};
use crate::kubespray::provisioning::is_open;

/// How long a run may take to end that is cancelled: its processes have ten seconds, and the appliance looks now and then.
const END: Duration = Duration::from_secs(60);
/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(500);

/// What of a log is printed.
#[derive(clap::Args)]
pub(in crate::cli) struct LogExcerpt {
    /// Keep printing new lines until the run ends
    #[arg(long, short)]
    pub(super) follow: bool,
    /// Print the log of the run before the last one
    #[arg(long)]
    pub(super) previous: bool,
}

#[derive(clap::Args)]
pub(in crate::cli) struct Retry {
    /// Name of the Provisioning
    #[arg(value_name = "NAME", required_unless_present = "software")]
    name: Option<String>,
    /// Run the playbook of this Software again
    #[arg(long, value_name = "NAME", conflicts_with_all = ["name", "playbook"])]
    software: Option<String>,
    /// Playbook to run [default: the last one]
    #[arg(long, value_enum)]
    playbook: Option<RerunTrigger>,
    #[command(flatten)]
    server: ServerArgs,
}

/// What a Provisioning has run.
#[derive(Clone, Copy, clap::ValueEnum)]
enum RerunTrigger {
    Cluster,
    Scale,
    UpgradeCluster,
    RemoveNode,
    /// As remove-node, for workers that are dead: nothing is done on their machines
    RemoveNodeUngraceful,
}

/// Prints the log of an object's last run, or of the one before.
///
/// # Errors
///
/// What the server says.
pub(in crate::cli) async fn log<K>(server: &ServerArgs, name: &str, part: &LogExcerpt) -> anyhow::Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    let session = server.connect().await?;
    let path = K::url_path(&(), Some(&session.namespace));
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (key, _) in [("follow", part.follow), ("previous", part.previous)].iter().filter(|(_, is_wanted)| *is_wanted) {
        query.append_pair(key, "true");
    }
    let path = format!("{path}/{}/log?{}", segment::<K>(name)?, query.finish());
    let request = http::Request::get(path).body(Vec::new())?;
    let body = session.client.request_stream(request).await.map_err(|error| said(&session, error))?;
    let mut lines = Box::pin(body).lines();
    while let Some(line) = lines.try_next().await? {
        print_text(&format!("{}\n", plain(&line)))?;
    }
    Ok(())
}

/// Asks for one more run, by the annotation that says so.
pub(super) async fn retry(options: &Retry) -> anyhow::Result<()> {
    let session = options.server.connect().await?;
    if let Some(name) = &options.software {
        annotate::<Software>(&session, name, ANNOTATION_RUN, &now()).await?;
        println!("packages are brought for {} when it is its turn: slipway get software {0}", plain(name));
        return Ok(());
    }
    let name = options.name.as_deref().unwrap_or_default();
    let api = Api::<Provisioning>::namespaced(session.client.clone(), &session.namespace);
    let object = api.get(segment::<Provisioning>(name)?).await.map_err(|error| said(&session, error))?;
    let status = object.status.unwrap_or_default();
    if let Some(reason) = no_rerun_reason(&status) {
        anyhow::bail!("no run can be had for {}: {}", plain(name), plain(&reason));
    }
    let run = status.run.unwrap_or_default();
    let asked = options.playbook.and_then(|playbook| playbook.to_possible_value());
    let last = if run.playbook.is_empty() { "cluster" } else { &run.playbook };
    let playbook = asked.as_ref().map_or(last, |asked| asked.get_name());
    annotate::<Provisioning>(&session, name, ANNOTATION_RUN, &format!("{playbook}/{}", now())).await?;
    println!("{playbook} is run for {} when it is its turn: slipway get provisioning {0}", plain(name));
    Ok(())
}

/// Why a Provisioning cannot have a run now: kubespray wants all its nodes.
fn no_rerun_reason(status: &ProvisioningStatus) -> Option<String> {
    let waits = match status.phase.as_str() {
        "" => "it was not looked at yet",
        "Invalid" => "what it asks for makes no sense",
        "Choosing" => "not every node has a host",
        "Provisioning" => "not every host runs its system yet",
        // Of a cluster that stands one may be wanted without a change.
        _ => return None,
    };
    let more = if status.message.is_empty() { String::new() } else { format!(" ({})", status.message) };
    Some(format!("{waits}{more}"))
}

/// An object that has runs.
pub(super) trait HasRuns:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned
{
    /// The one that was begun last.
    fn last_run(self) -> Option<RunProgress>;
}

impl HasRuns for Provisioning {
    fn last_run(self) -> Option<RunProgress> {
        self.status?.run
    }
}

impl HasRuns for Software {
    fn last_run(self) -> Option<RunProgress> {
        self.status?.run
    }
}

/// Asks for the end of an object's run, by the annotation that says so, and waits for it.
pub(super) async fn cancel<K: HasRuns>(server: &ServerArgs, name: &str) -> anyhow::Result<()> {
    let session = server.connect().await?;
    let api = Api::<K>::namespaced(session.client.clone(), &session.namespace);
    let last = async || {
        let object = api.get(segment::<K>(name)?).await.map_err(|error| said(&session, error))?;
        Ok::<_, anyhow::Error>(object.last_run().unwrap_or_default())
    };
    let run = last().await?;
    if !is_open(&run) {
        anyhow::bail!("no run of the {} {} is under way", K::kind(&()), plain(name));
    }
    annotate::<K>(&session, name, ANNOTATION_CANCEL, &run.id).await?;
    let end = tokio::time::Instant::now() + END;
    loop {
        let now = last().await?;
        if now.number != run.number || !is_open(&now) {
            println!("run {} has ended: {}", plain(&run.id), plain(&now.state));
            return Ok(());
        }
        if tokio::time::Instant::now() > end {
            let of = K::kind(&());
            anyhow::bail!(
                "run {} has not ended yet: slipway describe {} {}",
                plain(&run.id),
                of.to_lowercase(),
                plain(name)
            );
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Another value each time.
fn now() -> String {
    jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S").to_string()
}

async fn annotate<K: HasRuns>(
    session: &ClientSession,
    name: &str,
    annotation: &str,
    value: &str,
) -> anyhow::Result<()> {
    let patch = json!({ "metadata": { "annotations": { annotation: value } } });
    let api = Api::<K>::namespaced(session.client.clone(), &session.namespace);
    let patched = api.patch(segment::<K>(name)?, &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.map(|_| ()).map_err(|error| said(session, error))
}

fn said(session: &ClientSession, error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow::anyhow!("{}", status.message),
        error => anyhow::anyhow!("{}", session.unreachable(&error)),
    }
}

/// A name as a part of a path.
fn segment<K: Resource<DynamicType = ()>>(name: &str) -> anyhow::Result<&str> {
    let right = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
    let is_name = !name.is_empty() && name.bytes().all(right) && !name.starts_with('.');
    let fault = || usage(format!("a {}'s name has small letters, digits, hyphens and dots", K::kind(&())));
    is_name.then_some(name).ok_or_else(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_for_nodes_that_are_there() {
        for (phase, message, wanted) in [
            ("Choosing", "w-2: none is free", Some("not every node has a host (w-2: none is free)")),
            ("", "", Some("it was not looked at yet")),
            ("InventoryReady", "", None),
            ("Failed", "no", None),
            ("Ready", "", None),
        ] {
            let status = ProvisioningStatus { phase: phase.into(), message: message.into(), ..Default::default() };
            assert_eq!(no_rerun_reason(&status).as_deref(), wanted, "{phase}");
        }
    }
}
