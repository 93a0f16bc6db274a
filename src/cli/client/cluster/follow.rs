//! A plan that is carried out, and how far a cluster is with it.

use std::io::Write;

use anyhow::bail;
use tokio::time::Instant;

use super::known::{KnownCluster, next_change, type_of};
use super::plan::{ClusterProgress, ClusterStep};
use super::tree;
use crate::cli::client::connect::ClientSession;
use crate::cli::client::request::{CLUSTER_MANAGER, MERGE};
use crate::cli::failure::{CommandFailure, complain};

/// Shows the plan, and does it unless it is a dry run. Whether anything was done.
pub(super) async fn carry_out(
    session: &ClientSession,
    known: &mut KnownCluster,
    plan: Vec<ClusterStep>,
    dry_run: bool,
    deadline: Instant,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    if plan.is_empty() {
        writeln!(out, "nothing to do")?;
        return Ok(false);
    }
    writeln!(out, "Plan:")?;
    for (index, step) in plan.iter().enumerate() {
        writeln!(out, "  {}. {}", index + 1, step.says())?;
    }
    out.flush()?;
    if dry_run {
        return Ok(false);
    }
    for step in plan {
        match &step {
            ClusterStep::Create(object) => {
                let path = type_of(&known.types, tree::text(object, "/kind"))?;
                let path = path.path(Some(&session.namespace), Some(tree::name(object)));
                session.apply(&path, &[("fieldManager", "slipway"), ("fieldValidation", "Strict")], object).await?;
            }
            ClusterStep::Change { kind, name, patch, .. } => {
                let path = type_of(&known.types, kind)?.path(Some(&session.namespace), Some(name));
                let query = [("fieldManager", CLUSTER_MANAGER)];
                session.patch(&path, &query, MERGE, patch).await?;
            }
            ClusterStep::AwaitControlPlane { name, version } => {
                let is_there = |known: &KnownCluster| {
                    let plane =
                        known.all.iter().find(|one| one["kind"] == "KubeadmControlPlane" && tree::name(one) == name);
                    let runs = plane.is_some_and(|plane| tree::text(plane, "/status/version") == version);
                    runs && ClusterProgress::of(&known.cluster, &known.all).control_plane_is_done()
                };
                follow(session, known, deadline, is_there, out).await?;
                continue;
            }
        }
        writeln!(out, "{}: done", step.says())?;
        out.flush()?;
    }
    Ok(true)
}

pub(super) async fn until_done(
    session: &ClientSession,
    known: &mut KnownCluster,
    deadline: Instant,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    follow(session, known, deadline, |known| ClusterProgress::of(&known.cluster, &known.all).is_done(), out).await?;
    writeln!(out, "cluster {} ready", tree::name(&known.cluster))?;
    Ok(())
}

/// Says how far the cluster is until it is there.
async fn follow(
    session: &ClientSession,
    known: &mut KnownCluster,
    deadline: Instant,
    is_there: impl Fn(&KnownCluster) -> bool,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let mut said = String::new();
    loop {
        if !known.again(session).await? {
            bail!("cluster {} was deleted meanwhile", tree::name(&known.cluster));
        }
        if is_there(known) {
            return Ok(());
        }
        let says = ClusterProgress::of(&known.cluster, &known.all).says();
        if says != said {
            writeln!(out, "{says}")?;
            out.flush()?;
            said = says;
        }
        if Instant::now() >= deadline {
            let name = tree::name(&known.cluster);
            complain(format_args!("cluster {name} is not there in time: {said}; see `slipway cluster status {name}`"));
            return Err(CommandFailure::Reported.into());
        }
        next_change(session, known, deadline).await?;
    }
}
