//! `host resume`: ends the pause that a restore put on hosts.

use std::io::Write;

use serde_json::{Value, json};

use super::connect::{ClientSession, ServerArgs};
use super::host::{OutcomeForm, OutcomeReport};
use super::request::JSON;
use super::types::hosts;
use crate::api::metal3::ANNOTATION_PAUSED;
use crate::backup::restore::{PAUSED_BY, is_under_way};
use crate::cli::failure::usage;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  slipway host resume --all           all that nothing was being done to
  slipway host resume web-1 web-2     also what was being installed or erased")]
pub(in crate::cli) struct ResumeArgs {
    /// Names of hosts
    #[arg(conflicts_with = "all")]
    names: Vec<String>,
    /// All hosts of all namespaces that were not being worked on when the backup was made
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    form: OutcomeForm,
    #[command(flatten)]
    server: ServerArgs,
}

/// What is to be done with a host.
#[derive(Debug, PartialEq, Eq)]
enum ResumePlan {
    Resume,
    /// Somebody else paused it, or nobody.
    NotOurs,
    /// Slipway would go on at once with what may be long over.
    UnderWay,
}

fn plan(host: &Value, named: bool) -> ResumePlan {
    let by = host["metadata"]["annotations"][ANNOTATION_PAUSED].as_str();
    if !by.is_some_and(|by| by.starts_with(PAUSED_BY)) {
        return ResumePlan::NotOurs;
    }
    if is_under_way(host) && !named { ResumePlan::UnderWay } else { ResumePlan::Resume }
}

pub(super) async fn run(options: ResumeArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    if options.names.is_empty() && !options.all {
        return Err(usage("name hosts, or give --all"));
    }
    let session = options.server.connect().await?;
    let of = hosts();
    let mut report = OutcomeReport::new(options.form);
    if options.all {
        let mut all = Vec::new();
        let each = |mut page: Value| {
            if let Some(items) = page["items"].as_array_mut() {
                all.append(items);
            }
            Ok(())
        };
        session.pages(&of.path(None, None), &[], JSON, each).await?;
        let mut resumed = 0;
        for host in &all {
            match plan(host, false) {
                ResumePlan::Resume => resumed += usize::from(resume(&session, host, &mut report, out).await?),
                ResumePlan::UnderWay => {
                    let state = host["status"]["provisioning"]["state"].as_str().unwrap_or("new");
                    let reason = format!(
                        "stays paused: it is {state}, and Slipway would go on with that. Resume it by its name"
                    );
                    report.add(&place(host), "unchanged", &reason, out)?;
                }
                ResumePlan::NotOurs => {}
            }
        }
        report.sum(&format!("{resumed} host(s) resumed"), out)?;
    }
    for name in &options.names {
        let path = of.path(Some(&session.namespace), Some(name));
        let host = match session.get(&path, &[], JSON).await {
            Ok(host) => host,
            Err(error) => {
                report.add(
                    &(session.namespace.clone(), name.clone()),
                    "failed",
                    &format!("cannot be resumed: {error}"),
                    out,
                )?;
                continue;
            }
        };
        match plan(&host, true) {
            ResumePlan::NotOurs => report.add(&place(&host), "unchanged", "was not paused by a restore", out)?,
            _ => {
                resume(&session, &host, &mut report, out).await?;
            }
        }
    }
    report.end(out)
}

/// Namespace and name.
fn place(host: &Value) -> (String, String) {
    let text = |field: &str| host["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

/// Whether it is resumed.
async fn resume(
    session: &ClientSession,
    host: &Value,
    report: &mut OutcomeReport,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    let metadata = &host["metadata"];
    let path = hosts().path(metadata["namespace"].as_str(), metadata["name"].as_str());
    // Of the revision that was looked at: whoever paused it meanwhile meant it.
    let patch = json!({ "metadata": { "resourceVersion": metadata["resourceVersion"],
        "annotations": { ANNOTATION_PAUSED: null } } });
    match session.merge(&path, &patch).await {
        Ok(_) => report.add(&place(host), "changed", "resumed", out).map(|()| true),
        Err(error) => report.add(&place(host), "failed", &format!("cannot be resumed: {error}"), out).map(|()| false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_restore_paused_is_resumed_and_what_was_under_way_only_by_name() {
        let host = |by: Value, state: &str| {
            json!({ "metadata": { "annotations": { ANNOTATION_PAUSED: by } },
                "status": { "provisioning": { "state": state } } })
        };
        let ours = || format!("{PAUSED_BY} of a backup of 2026-11-22T07:00:00Z").into();
        for (host, named, wanted) in [
            (host(ours(), "available"), false, ResumePlan::Resume),
            (host(ours(), "provisioning"), false, ResumePlan::UnderWay),
            (host(ours(), "provisioning"), true, ResumePlan::Resume),
            (host("by me".into(), "available"), true, ResumePlan::NotOurs),
            (host(Value::Null, "available"), false, ResumePlan::NotOurs),
        ] {
            assert_eq!(plan(&host, named), wanted, "{host}");
        }
    }
}
