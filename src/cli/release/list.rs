//! `slipway release list`: every release, whether it is supported, who uses it, and what may follow it.

use kube::ResourceExt;
use semver::Version;
use serde_json::{Value, json};

use super::known::{ServerReleases, connect};
use crate::cli::client::{AlignedRows, ServerArgs, TableStyle, Terminal, When, fitting};
use crate::cli::common::print_text;
use crate::cli::failure::complain;
use crate::release::catalogue::join::{NoActive, PROVIDER, available_upgrades, is_active, supported};

#[derive(clap::Args)]
pub(in crate::cli) struct ListReleasesArgs {
    /// Output format; json and yaml have everything, each cluster by its name
    #[arg(long, short, value_enum, default_value = "table")]
    output: ReleaseListFormat,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ReleaseListFormat {
    Table,
    Json,
    Yaml,
}

pub(super) async fn run(options: ListReleasesArgs) -> anyhow::Result<()> {
    let known = ServerReleases::read(&connect(&options.server).await?).await?;
    let text = match options.output {
        ReleaseListFormat::Json => serde_json::to_string_pretty(&list(&known))? + "\n",
        ReleaseListFormat::Yaml => serde_saphyr::to_string(&list(&known))?,
        ReleaseListFormat::Table => {
            if let Err(reason) = known.active()
                && (!known.kaas.is_empty() || matches!(reason, NoActive::Several(_)))
            {
                complain(reason);
            }
            table(&known, Terminal::standard_output(When::Auto))
        }
    };
    print_text(&text)
}

/// The newest one last.
fn by_version<T>(all: &[T], version: impl Fn(&T) -> &str) -> Vec<&T> {
    let mut sorted: Vec<&T> = all.iter().collect();
    sorted.sort_by_key(|one| Version::parse(version(one)).ok());
    sorted
}

/// For programs.
fn list(known: &ServerReleases) -> Value {
    let active = known.active().ok();
    let kaas: Vec<Value> = by_version(&known.kaas, |release| &release.spec.version)
        .into_iter()
        .map(|release| {
            let supports: Vec<&str> =
                release.spec.supported_cluster_releases.iter().map(|one| one.name.as_str()).collect();
            json!({
                "name": release.name_any(), "version": release.spec.version,
                "active": is_active(release), "supports": supports,
            })
        })
        .collect();
    let clusters: Vec<Value> = by_version(&known.clusters, |release| &release.spec.version)
        .into_iter()
        .map(|release| {
            let name = release.name_any();
            let upgrades = active.map(|kaas| available_upgrades(kaas, &name)).unwrap_or_default();
            let upgrades: Vec<Value> = upgrades
                .into_iter()
                .map(|to| json!({"name": to.name, "version": to.version, "rebootRequired": to.reboot_required}))
                .collect();
            json!({
                "name": name, "version": release.spec.version, "lcmType": release.spec.lcm_type,
                "supported": active.is_some_and(|kaas| supported(kaas, &name, PROVIDER)),
                "usedBy": known.users_of(&name), "upgradesTo": upgrades,
            })
        })
        .collect();
    json!({ "kaasReleases": kaas, "clusterReleases": clusters })
}

fn table(known: &ServerReleases, terminal: Terminal) -> String {
    if known.kaas.is_empty() && known.clusters.is_empty() {
        return "no releases: `slipway release import SOURCE` brings some\n".into();
    }
    let all = list(known);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let yes = |value: &Value| if value == true { "yes" } else { "" }.to_owned();
    let names = |value: &Value, field: &str| {
        let names = value.as_array().into_iter().flatten();
        let names = names.map(|one| text(if field.is_empty() { one } else { &one[field] }));
        names.collect::<Vec<_>>().join(", ")
    };
    let items = |field: &str| all[field].as_array().cloned().unwrap_or_default();
    let mut kaas = vec![["KAASRELEASE", "VERSION", "ACTIVE", "SUPPORTS"].map(str::to_owned).to_vec()];
    kaas.extend(items("kaasReleases").iter().map(|release| {
        vec![
            text(&release["name"]),
            text(&release["version"]),
            yes(&release["active"]),
            names(&release["supports"], ""),
        ]
    }));
    let headings = ["CLUSTERRELEASE", "VERSION", "TYPE", "SUPPORTED", "USED BY", "UPGRADES TO"];
    let mut clusters = vec![headings.map(str::to_owned).to_vec()];
    clusters.extend(items("clusterReleases").iter().map(|release| {
        let used = release["usedBy"].as_array().map_or("?".to_owned(), |users| match users.len() {
            1 => "1 cluster".to_owned(),
            count => format!("{count} clusters"),
        });
        vec![
            text(&release["name"]),
            text(&release["version"]),
            text(&release["lcmType"]),
            yes(&release["supported"]),
            used,
            names(&release["upgradesTo"], "name"),
        ]
    }));
    [kaas, clusters].map(|rows| block(rows, terminal)).join("\n")
}

/// Rows of one table, headings first.
pub(super) fn block(rows: Vec<Vec<String>>, terminal: Terminal) -> String {
    let rows = fitting(rows, terminal.width);
    let look = TableStyle { width: terminal.width, colored: Vec::new(), headed: true };
    AlignedRows::default().shown(&rows, &look).lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::release::catalogue::users::ReleaseUser;

    /// Two ClusterReleases, of which one follows the other, and the KaaSRelease that says so.
    pub(in crate::cli::release) fn known() -> ServerReleases {
        let cluster = |name: &str, version: &str, more: Value| {
            let mut release = json!({"metadata": {"name": name}, "spec": {"version": version, "lcmType": "kubeadm"}});
            json_patch::merge(&mut release["spec"], &more);
            serde_json::from_value(release).unwrap()
        };
        let kaas = json!({
            "metadata": {"name": "k-1", "labels": {"kaas.mirantis.com/active": "true"}},
            "spec": {"version": "1.0.0", "supportedClusterReleases": [
                {"name": "old", "version": "1.9.0", "availableUpgrades": [{"version": "1.10.0", "rebootRequired": true}]},
                {"name": "new", "version": "1.10.0"},
            ]},
        });
        let step = |name: &str, script: &str, phase: &str| json!({"name": name, "runner": "bash", "version": "1", "phase": phase, "params": {"script": script}});
        let more = |script: &str, chart: &str| {
            json!({
                "machineTypes": {"worker": [step("packages", "true", "prepare"), step("kubelet", script, "deploy")]},
                "helm": {"releases": [{"name": "net", "chart": "r/net", "version": chart, "required": true}]},
                "allowedDistributions": [{"id": "debian/12", "default": true}],
            })
        };
        ServerReleases {
            kaas: vec![serde_json::from_value(kaas).unwrap()],
            clusters: vec![
                cluster("new", "1.10.0", more("b", "2.0.0")),
                cluster("old", "1.9.0", more("a\u{1b}[2J", "1.0.0")),
            ],
            users: Some(vec![ReleaseUser {
                release: "old".into(),
                cluster: "default/demo".into(),
                provider: "baremetal".into(),
            }]),
        }
    }

    #[test]
    fn a_release_is_a_line() {
        insta::assert_snapshot!(table(&known(), Terminal::default()), @r"
        KAASRELEASE   VERSION   ACTIVE   SUPPORTS
        k-1           1.0.0     yes      old, new

        CLUSTERRELEASE   VERSION   TYPE      SUPPORTED   USED BY      UPGRADES TO
        old              1.9.0     kubeadm   yes         1 cluster    new
        new              1.10.0    kubeadm   yes         0 clusters
        ");
        let unseen = ServerReleases { users: None, kaas: Vec::new(), ..known() };
        let said = table(&unseen, Terminal::default());
        assert!(said.contains("kubeadm               ?\n"), "{said}");
        let none = ServerReleases { kaas: Vec::new(), clusters: Vec::new(), users: None };
        assert!(table(&none, Terminal::default()).starts_with("no releases"));
        let programs = list(&known());
        assert_eq!(programs["clusterReleases"][0]["usedBy"], json!(["default/demo"]));
        assert_eq!(programs["clusterReleases"][0]["upgradesTo"][0]["rebootRequired"], true);
    }
}
