//! `slipway release activate`: another KaaSRelease takes the place of the active one.

use anyhow::{Context, bail};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::known::{ServerReleases, connect};
use crate::api::kaas::{KaaSRelease, LABEL_ACTIVE, SupportedClusterRelease};
use crate::cli::client::{ServerArgs, harmless};
use crate::cli::failure::{complain, with_causes};
use crate::cli::form::ProgramForm;
use crate::release::catalogue::ANNOTATION_FORCE;
use crate::release::catalogue::join::is_active;
use crate::release::catalogue::users::{some, unsupported};

#[derive(clap::Args)]
pub(in crate::cli) struct ActivateReleaseArgs {
    /// Name of the KaaSRelease
    name: String,
    /// Also when clusters run what it does not support, which stay as they are and cannot be upgraded; and when it names
    /// ClusterReleases that are not there
    #[arg(long)]
    force: bool,
    /// Say what would be done; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print what was done as JSON
    #[arg(long, short, value_enum, value_name = "FORM")]
    output: Option<ProgramForm>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) async fn run(options: ActivateReleaseArgs) -> anyhow::Result<()> {
    let client = connect(&options.server).await?;
    let known = ServerReleases::read(&client).await?;
    let name = &options.name;
    let Some(wanted) = known.kaas.iter().find(|release| release.name_any() == *name) else {
        bail!("there is no KaaSRelease {name}: `slipway release list` shows all");
    };
    let others: Vec<&KaaSRelease> =
        known.kaas.iter().filter(|release| is_active(release) && release.name_any() != *name).collect();
    let before: Vec<String> = others.iter().map(|other| other.name_any()).collect();
    if !options.force && !is_active(wanted) {
        // The server says it too; here it is said before anything is changed.
        let left = known.users.as_ref().map(|users| unsupported(users, wanted)).unwrap_or_default();
        if !left.is_empty() {
            bail!(
                "{name} does not support what these clusters run: {}. Upgrade them first, or use --force",
                some(&left)
            );
        }
    }
    let faults = faults(wanted, |name| known.cluster(name).map(|release| release.spec.version.as_str()));
    if !faults.is_empty() && !is_active(wanted) {
        let said = format!("{name} names what is not there: {}", faults.join("; "));
        if !options.force {
            bail!("{said}. Import these first, or use --force");
        }
        complain(format!("warning: {said}"));
    }
    if options.dry_run && known.users.is_none() {
        complain("warning: these rights do not show clusters: the server may refuse it for what they run");
    }
    if !options.dry_run {
        switch(&Api::all(client), wanted, &others, options.force).await?;
    }
    match options.output {
        Some(ProgramForm::Json) => {
            let told = json!({"active": name, "before": before, "dryRun": options.dry_run});
            println!("{}", serde_json::to_string_pretty(&told)?);
        }
        None => println!("{}", harmless(&told(name, is_active(wanted), &before, options.dry_run))),
    }
    Ok(())
}

/// ClusterReleases that a KaaSRelease supports and that are not there, or are of another version.
fn faults<'r>(wanted: &KaaSRelease, version: impl Fn(&str) -> Option<&'r str>) -> Vec<String> {
    let fault = |one: &SupportedClusterRelease| match version(&one.name) {
        None => Some(format!("there is no ClusterRelease {}", one.name)),
        Some(has) if has != one.version => {
            Some(format!("the ClusterRelease {} has version {has}, not {}", one.name, one.version))
        }
        Some(_) => None,
    };
    wanted.spec.supported_cluster_releases.iter().filter_map(fault).collect()
}

fn told(name: &str, was: bool, before: &[String], dry_run: bool) -> String {
    let end = if dry_run { " (dry run)" } else { "" };
    match before {
        [] if was => format!("{name} is active already"),
        [] => format!("{name} is active{end}"),
        before => format!("{name} is active in place of {}{end}", before.join(" and ")),
    }
}

/// Takes the label off the others, then gives it to this one; when that is refused, the others have it again.
async fn switch(
    api: &Api<KaaSRelease>,
    wanted: &KaaSRelease,
    others: &[&KaaSRelease],
    force: bool,
) -> anyhow::Result<()> {
    let mut taken = Vec::new();
    for other in others {
        // That it was forced is over with it.
        let off = label(Value::Null, Some(Value::Null), other.resource_version());
        match change(api, &other.name_any(), &off).await {
            Ok(()) => taken.push(other.name_any()),
            Err(error) => {
                back(api, &taken).await;
                return Err(error);
            }
        }
    }
    if is_active(wanted) {
        return Ok(());
    }
    let force = if force { json!("true") } else { Value::Null };
    let done = change(api, &wanted.name_any(), &label(json!("true"), Some(force), None)).await;
    if done.is_err() {
        back(api, &taken).await;
    }
    done
}

/// Who had the label has it again.
async fn back(api: &Api<KaaSRelease>, taken: &[String]) {
    // Of several that were active one may be.
    for name in taken.iter().take(1) {
        let on = label(json!("true"), None, None);
        if let Err(error) = change(api, name, &on).await {
            complain(format!("no KaaSRelease is active now: {}", with_causes(&error)));
        }
    }
}

fn label(value: Value, force: Option<Value>, version: Option<String>) -> Value {
    let mut patch = json!({"metadata": {"labels": {LABEL_ACTIVE: value}}});
    if let Some(force) = force {
        patch["metadata"]["annotations"] = json!({ANNOTATION_FORCE: force});
    }
    if let Some(version) = version {
        patch["metadata"]["resourceVersion"] = json!(version);
    }
    patch
}

async fn change(api: &Api<KaaSRelease>, name: &str, patch: &Value) -> anyhow::Result<()> {
    let done = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    done.map(drop).with_context(|| format!("kaasrelease {name}"))
}
