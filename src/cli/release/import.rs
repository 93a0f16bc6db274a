//! `slipway release import`: all releases of a channel, or none.

use anyhow::{Context, bail};
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::known::{ServerReleases, connect};
use super::source::Source;
use crate::api::kaas::{ClusterRelease, KaaSRelease, LABEL_ACTIVE};
use crate::cli::client::{ServerArgs, harmless};
use crate::cli::failure::complain;
use crate::cli::listing::ListingOutput;
use crate::cli::progress::ProgressLine;
use crate::release::catalogue::ANNOTATION_FORCE;
use crate::release::catalogue::channel::{ChannelIndex, INDEX};

#[derive(clap::Args)]
pub(in crate::cli) struct ImportReleasesArgs {
    /// Folder with an index.yaml, a tar file of such a folder, or a URL of http or https where its index.yaml is
    source: String,
    /// Read and check everything, ask the server whether it would take it, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Output format
    #[arg(long, short, value_enum, default_value = "table")]
    output: ListingOutput,
    #[command(flatten)]
    server: ServerArgs,
}

/// What is to be done with a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ImportStep {
    Create,
    /// It is there as it is in the channel.
    Leave,
}

/// What became of a release.
struct ImportOutcome {
    kind: &'static str,
    name: String,
    version: String,
    result: &'static str,
}

pub(super) async fn run(options: ImportReleasesArgs) -> anyhow::Result<()> {
    let (clusters, kaas) = read(&options.source).await?;
    let client = connect(&options.server).await?;
    let known = ServerReleases::read(&client).await?;
    let clusters = plan(clusters, &known.clusters, |release| &release.spec)?;
    let kaas = plan(kaas, &known.kaas, |release| &release.spec)?;
    // What the server refuses is refused before anything is written.
    for dry_run in [true, false] {
        if dry_run || !options.dry_run {
            create(&client, &clusters, dry_run).await?;
            create(&client, &kaas, dry_run).await?;
        }
    }
    let result = |step: ImportStep| match (step, options.dry_run) {
        (ImportStep::Leave, _) => "unchanged",
        (ImportStep::Create, true) => "would be created",
        (ImportStep::Create, false) => "created",
    };
    let mut outcomes: Vec<ImportOutcome> = clusters
        .iter()
        .map(|(release, step)| outcome("clusterrelease", release, &release.spec.version, result(*step)))
        .collect();
    outcomes.extend(
        kaas.iter().map(|(release, step)| outcome("kaasrelease", release, &release.spec.version, result(*step))),
    );
    let told: Vec<Value> = outcomes
        .iter()
        .map(|one| json!({"kind": one.kind, "name": one.name, "version": one.version, "result": one.result}))
        .collect();
    options.output.print(&told, || {
        for one in &outcomes {
            println!("{} {} {} ({})", one.kind, harmless(&one.name), one.result, harmless(&one.version));
        }
    })?;
    if let (false, Err(reason), Some((newest, _))) = (options.dry_run, known.active(), kaas.last()) {
        complain(format!("{reason}, such as {}", newest.name_any()));
    }
    Ok(())
}

fn outcome(kind: &'static str, release: &impl ResourceExt, version: &str, result: &'static str) -> ImportOutcome {
    ImportOutcome { kind, name: release.name_any(), version: version.to_owned(), result }
}

/// Everything that is in a channel, checked.
async fn read(name: &str) -> anyhow::Result<(Vec<ClusterRelease>, Vec<KaaSRelease>)> {
    let source = Source::open(name)?;
    let mut progress = ProgressLine::new();
    progress.show(&format!("reading {INDEX}"), None);
    let read = async {
        let index = ChannelIndex::parse(&source.index().await?)?;
        let all = index.entries().count() as u64;
        let mut done = 0;
        let mut content = async |path: &str| {
            progress.show(&format!("reading {path}"), Some(done * 100 / all.max(1)));
            done += 1;
            source.release(path).await
        };
        let (mut clusters, mut kaas) = (Vec::new(), Vec::new());
        for entry in &index.cluster_releases {
            let text = content(&entry.path).await?;
            entry.check(&text)?;
            clusters.push(entry.cluster_release(&text)?);
        }
        for entry in &index.kaas_releases {
            let text = content(&entry.path).await?;
            entry.check(&text)?;
            kaas.push(entry.kaas_release(&text)?);
        }
        anyhow::Ok((clusters, kaas))
    };
    let read = read.await;
    progress.end();
    read.with_context(|| format!("{}: nothing is imported", crate::outbound::masked(name)))
}

/// What is to be done with each. What is there as something else stops all.
fn plan<K: ResourceExt, S: PartialEq>(
    releases: Vec<K>,
    there: &[K],
    spec: impl Fn(&K) -> &S,
) -> anyhow::Result<Vec<(K, ImportStep)>> {
    let mut planned: Vec<(K, ImportStep)> = Vec::new();
    for release in releases {
        let name = release.name_any();
        if planned.iter().any(|(other, _)| other.name_any() == name) {
            bail!("{name} is in the channel twice: nothing is imported");
        }
        let step = match there.iter().find(|other| other.name_any() == name) {
            None => ImportStep::Create,
            Some(other) if spec(other) == spec(&release) => ImportStep::Leave,
            Some(_) => bail!(
                "{name} is there already with other content, and a release never changes: nothing is imported. \
                 Whoever made the channel must give what is new a new name"
            ),
        };
        planned.push((release, step));
    }
    Ok(planned)
}

/// Makes those that are not there.
async fn create<K>(client: &Client, planned: &[(K, ImportStep)], dry_run: bool) -> anyhow::Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let api = Api::<K>::all(client.clone());
    let params = PostParams { dry_run, ..PostParams::default() };
    for (release, _) in planned.iter().filter(|(_, step)| *step == ImportStep::Create) {
        let mut release = release.clone();
        bare(&mut release);
        let name = release.name_any();
        match api.create(&params, &release).await {
            Ok(_) => {}
            Err(error) => return Err(error).with_context(|| format!("{} {name}", K::kind(&()))),
        }
    }
    Ok(())
}

/// Of a file's metadata only name, labels and annotations count, and none of them makes a release the active one.
fn bare(release: &mut impl ResourceExt) {
    let meta = release.meta_mut();
    let mut labels = meta.labels.take().unwrap_or_default();
    let mut annotations = meta.annotations.take().unwrap_or_default();
    labels.remove(LABEL_ACTIVE);
    annotations.remove(ANNOTATION_FORCE);
    let name = meta.name.take();
    *meta = kube::api::ObjectMeta {
        name,
        labels: (!labels.is_empty()).then_some(labels),
        annotations: (!annotations.is_empty()).then_some(annotations),
        ..kube::api::ObjectMeta::default()
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(name: &str, version: &str) -> ClusterRelease {
        let release = json!({"metadata": {"name": name, "uid": "u", "finalizers": ["f"], "labels":
            {"kaas.mirantis.com/active": "true", "a": "b"}}, "spec": {"version": version}});
        serde_json::from_value(release).unwrap()
    }

    #[test]
    fn what_is_there_as_something_else_stops_all() {
        let there = [release("a", "1.0.0")];
        let plan = |wanted: Vec<ClusterRelease>| plan(wanted, &there, |release| &release.spec);
        let steps = plan(vec![release("a", "1.0.0"), release("b", "1.0.1")]).unwrap();
        assert_eq!(steps.iter().map(|(_, step)| *step).collect::<Vec<_>>(), [ImportStep::Leave, ImportStep::Create]);
        for (wanted, said) in [
            (vec![release("b", "1.0.0"), release("a", "1.0.1")], "a is there already with other content"),
            (vec![release("b", "1.0.0"), release("b", "1.0.0")], "twice"),
        ] {
            let refused = plan(wanted).unwrap_err().to_string();
            assert!(refused.contains(said), "{refused}");
        }
    }

    #[test]
    fn of_metadata_only_what_describes_a_release_counts() {
        let mut release = release("a", "1.0.0");
        bare(&mut release);
        let meta = serde_json::to_value(&release.metadata).unwrap();
        assert_eq!(meta, json!({"name": "a", "labels": {"a": "b"}}));
    }
}
