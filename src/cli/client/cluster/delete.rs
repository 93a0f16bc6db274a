//! `cluster delete`: what goes, and how far it is gone.

use std::io::Write;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::known::{Known, next_change, type_of};
use super::tree;
use crate::cli::client::connect::Server;
use crate::cli::client::until::duration;
use crate::cli::failure::{Failure, complain};

#[derive(clap::Args)]
pub(in crate::cli) struct Delete {
    /// Name of the cluster
    name: String,
    /// Say what would be deleted; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Wait until it is gone
    #[arg(long, default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    wait: bool,
    /// How long to wait
    #[arg(long, value_name = "TIME", default_value = "60m", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    server: Server,
}

pub(super) async fn delete(options: Delete, out: &mut dyn Write) -> anyhow::Result<()> {
    let (session, mut known) = Known::of(&options.server, &options.name).await?;
    let hosts = known.all.iter().filter(|object| object["kind"] == "BareMetalHost");
    let machines: Vec<&str> = known
        .all
        .iter()
        .filter(|object| object["kind"] == "Metal3Machine")
        .filter(|object| object["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"] == options.name.as_str())
        .map(tree::name)
        .collect();
    let its: Vec<&str> = hosts
        .filter(|host| host["spec"]["consumerRef"]["kind"] == "Metal3Machine")
        .filter(|host| machines.contains(&tree::text(host, "/spec/consumerRef/name")))
        .map(tree::name)
        .collect();
    writeln!(
        out,
        "cluster {} with {} machines; hosts that are erased and available again: {}",
        options.name,
        machines.len(),
        if its.is_empty() { "none".to_owned() } else { its.join(", ") }
    )?;
    out.flush()?;
    if options.dry_run {
        return Ok(());
    }
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
            writeln!(out, "{says}")?;
            out.flush()?;
            said = says;
        }
        if Instant::now() >= deadline {
            let name = &options.name;
            complain(format_args!("cluster {name} is not gone in time; see `slipway cluster status {name}`"));
            return Err(Failure::Reported.into());
        }
        next_change(&session, &known, deadline).await?;
    }
    let how = if options.wait { "deleted" } else { "is being deleted" };
    writeln!(out, "cluster {} {how}", options.name)?;
    Ok(())
}
