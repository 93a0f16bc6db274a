//! `cluster`: what one does with clusters, each a change of Cluster API's objects that kubectl could make as well.

mod create;
mod delete;
mod follow;
mod known;
mod nodes;
mod overview;
mod plan;
mod status;
mod tree;
mod wanted;

use std::io::Write;
use std::time::Duration;

use anyhow::anyhow;
use serde_json::json;
use tokio::time::Instant;

use super::connect::ServerArgs;
use super::until::duration;
use create::{Create, create, image};
use delete::{Delete, delete};
use follow::{carry_out, until_done};
use known::KnownCluster;
use plan::WantedReplicas;
use status::{StatusArgs, status};

use crate::api::bpa::Provisioning;
use crate::cli::form::ProgramForm;
use crate::cli::kubespray::desk;

#[derive(clap::Subcommand)]
pub(in crate::cli) enum ClusterCommand {
    /// Make a cluster of available hosts: control plane and workers, installed by kubeadm
    ///
    /// Applies Cluster API's objects, which -o yaml prints instead. The image must have kubeadm, kubelet and a container runtime.
    #[command(after_help = "\
Examples:
  slipway cluster create prod --version v1.34.4 --image slipway://node --endpoint 172.22.0.200
  slipway cluster create prod --control-plane 3 --workers 2 --version v1.34.4 --image slipway://node --endpoint 172.22.0.200 --wait
  slipway cluster create prod --version v1.34.4 --image slipway://node --endpoint 172.22.0.200 --virtual-ip --registry http://172.22.0.1
  slipway cluster create prod --version v1.34.4 --image slipway://node --endpoint api.example.org:6443 --hosts rack=7 -o yaml")]
    Create(Box<Create>),
    /// Show a cluster and everything that belongs to it as a tree, with their states; without a name list all clusters
    #[command(after_help = "\
Examples:
  slipway cluster status                                       a line for each cluster
  slipway cluster status prod
  slipway cluster status prod --watch")]
    Status(StatusArgs),
    /// Change how many machines a cluster has
    #[command(after_help = "\
Examples:
  slipway cluster scale prod --workers 5 --wait
  slipway cluster scale prod --control-plane 3 --dry-run       say what would be done")]
    Scale(ScaleArgs),
    /// Upgrade the Kubernetes of a cluster: the control plane first, one machine after the other, then the workers
    ///
    /// Each machine is replaced: another host is installed, then the old machine is drained and erased, and its host is available
    /// again. The command ends when all machines are replaced.
    #[command(after_help = "\
Examples:
  slipway cluster upgrade prod --version v1.35.1 --image slipway://node-1.35 --dry-run
  slipway cluster upgrade prod --version v1.35.1 --image slipway://node-1.35")]
    Upgrade(Upgrade),
    /// Delete a cluster: ITS MACHINES ARE ERASED, and its hosts become available again
    ///
    /// Templates stay, as do hosts with their Secrets. Asks before it begins; where there is no terminal it wants --yes.
    #[command(after_help = "\
Examples:
  slipway cluster delete prod --dry-run
  slipway cluster delete prod
  slipway cluster delete prod --yes                            without a question, in a script")]
    Delete(Delete),
    /// Print the output of Ansible in the last run for a cluster of kubespray (a Provisioning)
    ///
    /// The same as `slipway kubespray log --provisioning NAME`.
    #[command(after_help = "\
Examples:
  slipway cluster log edge --follow                            until the run ends
  slipway cluster log edge --previous                          the run before the last one")]
    Log(ClusterLogArgs),
}

#[derive(clap::Args)]
pub(in crate::cli) struct ClusterLogArgs {
    /// Name of the Provisioning
    name: String,
    #[command(flatten)]
    part: desk::LogExcerpt,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(clap::Args)]
struct WaitingArgs {
    /// Wait until every machine is a ready node
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
    /// How long to wait
    #[arg(long, value_name = "TIME", default_value = "60m", value_parser = duration)]
    timeout: Duration,
}

#[derive(clap::Args)]
pub(in crate::cli) struct ScaleArgs {
    /// Name of the cluster
    name: String,
    /// Machines of the control plane; an odd number
    #[arg(long, value_name = "NUMBER", required_unless_present = "workers")]
    control_plane: Option<u32>,
    /// Machines for workloads
    #[arg(long, value_name = "NUMBER")]
    workers: Option<u32>,
    /// Which MachineDeployment, where there are several
    #[arg(long, value_name = "NAME", requires = "workers")]
    deployment: Option<String>,
    /// Say what would be done; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print what came of it as JSON; how far it is goes to standard error
    #[arg(long, short, value_enum, value_name = "FORM")]
    output: Option<ProgramForm>,
    #[command(flatten)]
    waiting: WaitingArgs,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(clap::Args)]
pub(in crate::cli) struct Upgrade {
    /// Name of the cluster
    name: String,
    /// Version of Kubernetes to upgrade to
    #[arg(long, value_name = "VERSION", value_parser = wanted::version)]
    version: String,
    /// Image with that version: slipway://NAME of the library, or a URL with --checksum [default: the one they have]
    #[arg(long, value_name = "URL")]
    image: Option<String>,
    /// Checksum of the image, or the URL of a file with it [default: the library's]
    #[arg(long, value_name = "SUM|URL", requires = "image")]
    checksum: Option<String>,
    /// Algorithm of the checksum: md5, sha256 or sha512
    #[arg(long, value_name = "NAME", default_value = "sha256", value_parser = ["md5", "sha256", "sha512"])]
    checksum_type: String,
    /// Say what would be done; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print what came of it as JSON; how far it is goes to standard error
    #[arg(long, short, value_enum, value_name = "FORM")]
    output: Option<ProgramForm>,
    /// How long it may take
    #[arg(long, value_name = "TIME", default_value = "3h", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) async fn run(command: ClusterCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        ClusterCommand::Create(options) => create(*options, out).await,
        ClusterCommand::Status(options) => status(options, out).await,
        ClusterCommand::Scale(options) => {
            let (session, mut known) = KnownCluster::of(&options.server, &options.name).await?;
            let wanted = WantedReplicas { control_plane: options.control_plane, workers: options.workers };
            let plan = plan::scale(&known.cluster, &known.all, wanted, options.deployment.as_deref());
            let deadline = Instant::now() + options.waiting.timeout;
            let plan = plan.map_err(|fault| anyhow!(fault))?;
            let steps = steps(&plan);
            told(options.output, &options.name, steps, out, async |out| {
                let changed = carry_out(&session, &mut known, plan, options.dry_run, deadline, out).await?;
                let waits = changed && options.waiting.wait;
                if waits {
                    until_done(&session, &mut known, deadline, out).await?;
                }
                Ok((changed, waits))
            })
            .await
        }
        ClusterCommand::Upgrade(options) => {
            let (session, mut known) = KnownCluster::of(&options.server, &options.name).await?;
            let image = match &options.image {
                Some(url) => Some(image(&session, url, options.checksum.as_deref(), &options.checksum_type).await?),
                None => None,
            };
            let plan = plan::upgrade(&known.cluster, &known.all, &options.version, image.as_ref());
            let deadline = Instant::now() + options.timeout;
            let plan = plan.map_err(|fault| anyhow!(fault))?;
            let steps = steps(&plan);
            told(options.output, &options.name, steps, out, async |out| {
                let changed = carry_out(&session, &mut known, plan, options.dry_run, deadline, out).await?;
                if changed {
                    until_done(&session, &mut known, deadline, out).await?;
                }
                Ok((changed, changed))
            })
            .await
        }
        ClusterCommand::Delete(options) => delete(options, out).await,
        ClusterCommand::Log(options) => desk::log::<Provisioning>(&options.server, &options.name, &options.part).await,
    }
}

fn steps(plan: &[plan::ClusterStep]) -> Vec<String> {
    plan.iter().map(plan::ClusterStep::says).collect()
}

/// Does what has a plan, and says how far it is: on standard error where the outcome is JSON. `work` says whether anything was
/// changed, and whether the cluster is ready with it.
async fn told(
    form: Option<ProgramForm>,
    name: &str,
    steps: Vec<String>,
    out: &mut dyn Write,
    work: impl AsyncFnOnce(&mut dyn Write) -> anyhow::Result<(bool, bool)>,
) -> anyhow::Result<()> {
    let Some(ProgramForm::Json) = form else { return work(out).await.map(drop) };
    let (changed, ready) = work(&mut std::io::stderr()).await?;
    let outcome = json!({ "cluster": name, "steps": steps, "changed": changed, "ready": ready });
    Ok(writeln!(out, "{}", serde_json::to_string_pretty(&outcome)?)?)
}
