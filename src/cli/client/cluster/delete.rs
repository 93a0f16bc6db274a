//! `cluster delete`: what goes, and how far it is gone.

use std::io::Write;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::ProgramForm;
use super::known::{KnownCluster, next_change, type_of};
use super::tree;
use crate::cli::client::connect::ServerArgs;
use crate::cli::client::until::duration;
use crate::cli::confirm;
use crate::cli::failure::{CommandFailure, complain};

#[derive(clap::Args)]
pub(in crate::cli) struct Delete {
    /// Name of the cluster
    name: String,
    /// Say what would be deleted; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask; needed where there is no terminal
    #[arg(long, short)]
    yes: bool,
    /// Print what came of it as JSON; how far it is goes to standard error
    #[arg(long, short, value_enum, value_name = "FORM")]
    output: Option<ProgramForm>,
    /// Wait until it is gone
    #[arg(long, default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    wait: bool,
    /// How long to wait
    #[arg(long, value_name = "TIME", default_value = "60m", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) async fn delete(options: Delete, out: &mut dyn Write) -> anyhow::Result<()> {
    confirm::can_be_asked(options.yes || options.dry_run, "it erases the cluster's machines")?;
    let (session, mut known) = KnownCluster::of(&options.server, &options.name).await?;
    let hosts = known.all.iter().filter(|object| object["kind"] == "BareMetalHost");
    let machines: Vec<String> = known
        .all
        .iter()
        .filter(|object| object["kind"] == "Metal3Machine")
        .filter(|object| object["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"] == options.name.as_str())
        .map(|machine| tree::name(machine).to_owned())
        .collect();
    let its: Vec<String> = hosts
        .filter(|host| host["spec"]["consumerRef"]["kind"] == "Metal3Machine")
        .filter(|host| machines.iter().any(|name| name == tree::text(host, "/spec/consumerRef/name")))
        .map(|host| tree::name(host).to_owned())
        .collect();
    let outcome =
        |result: &str| json!({ "cluster": options.name, "machines": machines.len(), "hosts": its, "result": result });
    let is_json = options.output == Some(ProgramForm::Json);
    let mut aside = std::io::stderr();
    let say: &mut dyn Write = if is_json { &mut aside } else { &mut *out };
    writeln!(
        say,
        "cluster {} with {} machines; hosts that are erased and available again: {}",
        options.name,
        machines.len(),
        if its.is_empty() { "none".to_owned() } else { its.join(", ") }
    )?;
    say.flush()?;
    if options.dry_run {
        return if is_json { print(&outcome("dry run"), out) } else { Ok(()) };
    }
    confirm::ask(options.yes, &format!("Delete cluster {}?", options.name))?;
    let path = type_of(&known.types, "Cluster")?.path(Some(&session.namespace), Some(&options.name));
    let uid = tree::text(&known.cluster, "/metadata/uid");
    session.delete(&path, &[], &json!({"preconditions": {"uid": uid}, "propagationPolicy": "Background"})).await?;
    let deadline = Instant::now() + options.timeout;
    let mut said = String::new();
    while options.wait && known.again(&session).await? {
        let left = known.all.iter().filter(|object| object["kind"] == "Machine");
        let left = left.filter(|machine| tree::text(machine, "/spec/clusterName") == options.name).count();
        let says = format!("{left} {} left", if left == 1 { "machine" } else { "machines" });
        if says != said {
            writeln!(say, "{says}")?;
            say.flush()?;
            said = says;
        }
        if Instant::now() >= deadline {
            let name = &options.name;
            complain(format_args!("cluster {name} is not gone in time; see `slipway cluster status {name}`"));
            return Err(CommandFailure::Reported.into());
        }
        next_change(&session, &known, deadline).await?;
    }
    if is_json {
        return print(&outcome(if options.wait { "deleted" } else { "deleting" }), out);
    }
    let how = if options.wait { "deleted" } else { "is being deleted" };
    writeln!(out, "cluster {} {how}", options.name)?;
    Ok(())
}

fn print(outcome: &Value, out: &mut dyn Write) -> anyhow::Result<()> {
    Ok(writeln!(out, "{}", serde_json::to_string_pretty(outcome)?)?)
}
