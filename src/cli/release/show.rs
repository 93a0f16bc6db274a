//! `slipway release show`: what a release is, for people, or the object itself.

use std::fmt::Write as _;

use anyhow::bail;
use kube::ResourceExt;
use serde::Serialize;

use super::difference::differences;
use super::known::{ServerReleases, connect};
use super::list::block;
use crate::api::kaas::{ClusterRelease, KaaSRelease};
use crate::cli::client::{ServerArgs, Terminal, When, harmless};
use crate::cli::common::print_text;
use crate::release::catalogue::join::{available_upgrades, is_active};

#[derive(clap::Args)]
pub(in crate::cli) struct ShowReleaseArgs {
    /// Name of a ClusterRelease or a KaaSRelease
    name: String,
    /// Only what it has otherwise than this ClusterRelease
    #[arg(long, value_name = "NAME", conflicts_with = "output")]
    diff: Option<String>,
    /// The object itself
    #[arg(long, short, value_enum, value_name = "FORM")]
    output: Option<Form>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    Json,
    Yaml,
}

pub(super) async fn run(options: ShowReleaseArgs) -> anyhow::Result<()> {
    let known = ServerReleases::read(&connect(&options.server).await?).await?;
    let terminal = Terminal::standard_output(When::Auto);
    let ShowReleaseArgs { name, diff, output, .. } = options;
    let text = match (known.cluster(&name), known.kaas.iter().find(|release| release.name_any() == name)) {
        (Some(release), _) => match (&diff, output) {
            (Some(other), _) => {
                let Some(old) = known.cluster(other) else { bail!("{}", missing(other)) };
                let lines = differences(old, release);
                if lines.is_empty() { "no difference\n".to_owned() } else { lines.join("\n") + "\n" }
            }
            (None, Some(form)) => printed(release, form)?,
            (None, None) => shown(&known, release, terminal),
        },
        (None, Some(release)) => match (&diff, output) {
            (Some(_), _) => bail!("{name} is a KaaSRelease: only ClusterReleases are compared"),
            (None, Some(form)) => printed(release, form)?,
            (None, None) => kaas(release, terminal),
        },
        (None, None) => bail!("{}", missing(&name)),
    };
    print_text(&if output.is_some() { text } else { text.lines().map(|line| harmless(line) + "\n").collect() })
}

fn missing(name: &str) -> String {
    format!("there is no release {name}: `slipway release list` shows all")
}

fn printed(release: &impl Serialize, form: Form) -> anyhow::Result<String> {
    Ok(match form {
        Form::Json => serde_json::to_string_pretty(release)? + "\n",
        Form::Yaml => serde_saphyr::to_string(release)?,
    })
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// A ClusterRelease.
fn shown(known: &ServerReleases, release: &ClusterRelease, terminal: Terminal) -> String {
    let (name, spec) = (release.name_any(), &release.spec);
    let mut text = format!("Name:        {name}\nVersion:     {}\nType:        {}\n", spec.version, spec.lcm_type);
    if let Some(agent) = spec.agent.as_ref().filter(|agent| !agent.version.is_empty()) {
        _ = writeln!(text, "Agent:       {}", agent.version);
    }
    let users = known.users_of(&name).map_or("?".to_owned(), |users| match users.is_empty() {
        true => "no cluster".to_owned(),
        false => users.join(", "),
    });
    _ = writeln!(text, "Used by:     {users}");
    match known.active() {
        Ok(kaas) => {
            let targets = available_upgrades(kaas, &name).into_iter();
            let targets: Vec<String> = targets
                .map(|to| format!("{} ({}{})", to.name, to.version, if to.reboot_required { ", reboot" } else { "" }))
                .collect();
            let targets = if targets.is_empty() { "nothing".to_owned() } else { targets.join(", ") };
            _ = writeln!(text, "Upgrades to: {targets}, by the KaaSRelease {}", kaas.name_any());
        }
        Err(reason) => _ = writeln!(text, "Upgrades to: {reason}"),
    }
    for line in spec.description.lines() {
        _ = writeln!(text, "  {line}");
    }
    for (kind, steps) in &spec.machine_types {
        let mut rows = vec![row([&format!("STEPS OF {}", kind.to_uppercase()), "PHASE", "RUNNER", "VERSION"])];
        rows.extend(steps.iter().map(|step| {
            let lower = |word: String| word.to_lowercase();
            let (phase, runner) = (lower(format!("{:?}", step.phase)), lower(format!("{:?}", step.runner)));
            row([&step.name, &phase, &runner, &step.version])
        }));
        text += &format!("\n{}", block(rows, terminal));
    }
    if let Some(helm) = spec.helm.as_ref().filter(|helm| !helm.releases.is_empty()) {
        let mut rows = vec![row(["CHART", "VERSION", "NAMESPACE", "REQUIRED", "AFTER"])];
        rows.extend(helm.releases.iter().map(|chart| {
            let required = if chart.required { "yes" } else { "" };
            let one = &chart.release;
            row([&one.name, &one.version, &one.namespace, required, &one.requires.join(", ")])
        }));
        text += &format!("\n{}", block(rows, terminal));
    }
    if !spec.allowed_distributions.is_empty() {
        let mut rows = vec![row(["DISTRIBUTION", "VERSION", "DEFAULT", "IMAGE"])];
        rows.extend(spec.allowed_distributions.iter().map(|one| {
            let image = one.image.as_ref().map(|image| crate::outbound::masked(&image.url)).unwrap_or_default();
            row([&one.id, &one.version, if one.default { "yes" } else { "" }, &image])
        }));
        text += &format!("\n{}", block(rows, terminal));
    }
    text
}

/// A KaaSRelease.
fn kaas(release: &KaaSRelease, terminal: Terminal) -> String {
    let spec = &release.spec;
    let active = if is_active(release) { "yes" } else { "no" };
    let mut text = format!("Name:    {}\nVersion: {}\nActive:  {active}\n", release.name_any(), spec.version);
    if !spec.cluster_release.is_empty() {
        _ = writeln!(text, "Management cluster: {}", spec.cluster_release);
    }
    let mut rows = vec![row(["SUPPORTED", "VERSION", "PROVIDERS", "UPGRADES TO"])];
    rows.extend(spec.supported_cluster_releases.iter().map(|one| {
        let providers = one.providers.as_ref().map(|all| all.supported.join(", ")).unwrap_or_default();
        let upgrades = available_upgrades(release, &one.name).into_iter().map(|to| to.name);
        row([&one.name, &one.version, &providers, &upgrades.collect::<Vec<_>>().join(", ")])
    }));
    text += &format!("\n{}", block(rows, terminal));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::release::list::tests::known;

    #[test]
    fn a_release_is_shown_by_its_parts() {
        let known = known();
        insta::assert_snapshot!(shown(&known, known.cluster("old").unwrap(), Terminal::default()), @r"
        Name:        old
        Version:     1.9.0
        Type:        kubeadm
        Used by:     default/demo
        Upgrades to: new (1.10.0, reboot), by the KaaSRelease k-1

        STEPS OF WORKER   PHASE     RUNNER   VERSION
        packages          prepare   bash     1
        kubelet           deploy    bash     1

        CHART   VERSION   NAMESPACE   REQUIRED   AFTER
        net     1.0.0                 yes

        DISTRIBUTION   VERSION   DEFAULT   IMAGE
        debian/12                yes
        ");
        insta::assert_snapshot!(kaas(&known.kaas[0], Terminal::default()), @r"
        Name:    k-1
        Version: 1.0.0
        Active:  yes

        SUPPORTED   VERSION   PROVIDERS   UPGRADES TO
        old         1.9.0                 new
        new         1.10.0
        ");
    }
}
