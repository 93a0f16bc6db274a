//! What is to be done next for a bundle: a function of the bundle, of its status, and of what Helm says is there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::api::is_dns_label;
use crate::api::lcm::{HelmBundleSpec, HelmBundleStatus, HelmRelease, HelmReleaseStatus, HelmRepository};
use crate::hex::hex;

/// Pause after the first failure; it doubles with each further one.
const RETRY_LEAST: Duration = Duration::from_secs(15);
/// Longest pause after a failure.
const RETRY_MOST: Duration = Duration::from_secs(600);
/// Where a Helm release is whose bundle does not say.
pub(super) const DEFAULT_NAMESPACE: &str = "default";

/// A Helm release that is there, as `helm list` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Installed {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its revision.
    pub revision: i64,
    /// Helm's word for how it is.
    pub status: String,
    /// Whether this bundle brought it.
    pub is_ours: bool,
}

/// What is to be done for a Helm release.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ChartStep {
    /// Install it or upgrade it to what the bundle says, whose hash this is.
    Upgrade { release: Box<HelmRelease>, repository: Option<HelmRepository>, hash: String },
    /// Go back to the revision before: the program that upgraded it died.
    RollBack { name: String, namespace: String },
    /// Take it away: it is not in the bundle any more, or the program that installed it died.
    Uninstall { name: String, namespace: String },
}

impl ChartStep {
    /// The Helm release that it is about.
    pub fn name(&self) -> &str {
        match self {
            Self::Upgrade { release, .. } => &release.name,
            Self::RollBack { name, .. } | Self::Uninstall { name, .. } => name,
        }
    }
}

/// What is to be done, and what is to be told.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ChartPlan {
    /// May be done at once, beside each other.
    pub steps: Vec<ChartStep>,
    /// What Helm releases wait for, or why nothing is done about them, by their names.
    pub waits: BTreeMap<String, String>,
    /// Those that are as the bundle says.
    pub ready: BTreeSet<String>,
    /// When the next one is tried again that failed.
    pub next: Option<Timestamp>,
}

/// The repository that a Helm release names.
fn repository<'a>(spec: &'a HelmBundleSpec, release: &HelmRelease) -> Option<&'a HelmRepository> {
    let (repository, _) = release.chart.split_once('/')?;
    spec.repositories.iter().find(|known| known.name == repository)
}

/// Namespace of a Helm release.
pub(super) fn namespace(release: &HelmRelease) -> &str {
    if release.namespace.is_empty() { DEFAULT_NAMESPACE } else { &release.namespace }
}

/// What has a Helm release upgraded when it changes, as 64 hexadecimal digits.
pub(super) fn hash(release: &HelmRelease, repository: Option<&HelmRepository>) -> String {
    let what = json!({
        "chart": release.chart, "version": release.version, "chartURL": release.chart_url, "labels": release.labels,
        "namespace": namespace(release), "values": release.values, "repository": repository.map(|found| &found.url),
    });
    hex(&Sha256::digest(what.to_string()))
}

/// Why a Helm release of a bundle cannot be worked off, if it cannot.
pub(super) fn fault(spec: &HelmBundleSpec, release: &HelmRelease) -> Option<String> {
    if release.name.len() > 53 || !is_dns_label(&release.name) {
        return Some("its name must be a DNS label of at most 53 characters".into());
    }
    if !is_dns_label(namespace(release)) {
        return Some(format!("its namespace {:?} is none", release.namespace));
    }
    let is_word =
        |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+~/:".contains(c)) && !text.starts_with('-');
    if !is_word(&release.version) {
        return Some(format!("its version {:?} is none", release.version));
    }
    if !release.chart_url.is_empty() {
        return (!is_source(&release.chart_url)).then(|| "chartURL must begin with https://, http:// or oci://".into());
    }
    match (release.chart.split_once('/'), repository(spec, release)) {
        (None, _) => Some("it must have chart as REPOSITORY/NAME, or chartURL".into()),
        (Some((name, _)), None) => {
            Some(format!("its chart is in the repository {name:?}, which the bundle does not have"))
        }
        (Some((_, chart)), Some(found)) => {
            if !is_word(chart) || chart.is_empty() || chart.contains("..") {
                Some(format!("its chart {:?} is none", release.chart))
            } else if !is_source(&found.url) {
                Some(format!("the URL of the repository {:?} must begin with https://, http:// or oci://", found.name))
            } else if !is_login(&found.auth_secret) {
                Some(format!("authSecret of the repository {:?} is no name", found.name))
            } else {
                None
            }
        }
    }
}

/// Whether it is a name of a Secret, or none: it becomes one of a file.
fn is_login(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    name.len() <= 253 && name.bytes().all(plain) && !name.starts_with(['.', '-'])
}

fn is_source(url: &str) -> bool {
    ["https://", "http://", "oci://"].iter().any(|scheme| url.len() > scheme.len() && url.starts_with(scheme))
        && !url.contains(|c: char| c.is_whitespace() || c.is_control())
}

/// Names that wait for each other in a circle, or for what is not in the bundle.
fn unreachable(spec: &HelmBundleSpec) -> BTreeMap<&str, String> {
    let mut found = BTreeMap::new();
    let names: BTreeSet<&str> = spec.releases.iter().map(|release| release.name.as_str()).collect();
    for release in &spec.releases {
        if let Some(other) = release.requires.iter().find(|other| !names.contains(other.as_str())) {
            found.insert(release.name.as_str(), format!("it requires {other:?}, which the bundle does not have"));
        }
    }
    // What has nothing left to wait for is taken out, until nothing more goes.
    let mut left: Vec<&HelmRelease> = spec.releases.iter().collect();
    let mut gone: BTreeSet<&str> = BTreeSet::new();
    loop {
        let before = left.len();
        left.retain(|release| {
            let waits =
                release.requires.iter().any(|other| names.contains(other.as_str()) && !gone.contains(other.as_str()));
            if !waits {
                gone.insert(&release.name);
            }
            waits
        });
        if left.len() == before {
            break;
        }
    }
    for release in left {
        found
            .entry(&release.name)
            .or_insert_with(|| format!("it waits for itself, by {}", release.requires.join(", ")));
    }
    found
}

/// How long after its last try a Helm release that failed so often is tried again.
pub(super) fn pause(attempt: i32) -> Duration {
    let doublings = u32::try_from(attempt.max(1) - 1).unwrap_or(0).min(10);
    RETRY_MOST.min(RETRY_LEAST * 2_u32.pow(doublings))
}

fn due(status: &HelmReleaseStatus) -> Option<Timestamp> {
    let finished = status.finished_at.as_ref()?.0;
    finished.checked_add(pause(status.attempt)).ok()
}

/// What is to be done now. `running` are being worked on.
pub(super) fn plan(
    spec: &HelmBundleSpec,
    status: &HelmBundleStatus,
    installed: &[Installed],
    running: &BTreeSet<String>,
    now: Timestamp,
) -> ChartPlan {
    let mut plan = ChartPlan::default();
    let unreachable = unreachable(spec);
    let mut seen = BTreeSet::new();
    for release in &spec.releases {
        if !seen.insert(release.name.as_str()) {
            plan.waits.insert(release.name.clone(), "the bundle has two of this name".into());
            continue;
        }
        let fault = fault(spec, release).or_else(|| unreachable.get(release.name.as_str()).cloned());
        if let Some(fault) = fault {
            plan.waits.insert(release.name.clone(), fault);
            continue;
        }
        look(&mut plan, spec, status, installed, running, now, release);
    }
    // Requirements are judged once it is known who is ready.
    let ready = &plan.ready;
    let waits = &mut plan.waits;
    plan.steps.retain(|step| {
        let ChartStep::Upgrade { release, .. } = step else { return true };
        let missing: Vec<&str> =
            release.requires.iter().map(String::as_str).filter(|other| !ready.contains(*other)).collect();
        if !missing.is_empty() {
            waits.insert(release.name.clone(), format!("waits for {}", missing.join(", ")));
        }
        missing.is_empty()
    });
    for other in installed.iter().filter(|other| other.is_ours && !running.contains(&other.name)) {
        let wanted =
            spec.releases.iter().any(|release| release.name == other.name && namespace(release) == other.namespace);
        let needed = status_requires(spec, &other.name, installed);
        if !wanted && !needed {
            plan.steps.push(ChartStep::Uninstall { name: other.name.clone(), namespace: other.namespace.clone() });
        }
    }
    plan
}

/// Whether something that is there and wanted still requires it: then it is not taken away under it.
fn status_requires(spec: &HelmBundleSpec, name: &str, installed: &[Installed]) -> bool {
    spec.releases.iter().any(|release| {
        release.requires.iter().any(|other| other == name) && installed.iter().any(|there| there.name == release.name)
    })
}

fn look(
    plan: &mut ChartPlan,
    spec: &HelmBundleSpec,
    status: &HelmBundleStatus,
    installed: &[Installed],
    running: &BTreeSet<String>,
    now: Timestamp,
    release: &HelmRelease,
) {
    let name = &release.name;
    if running.contains(name) {
        plan.waits.insert(name.clone(), "helm works on it".into());
        return;
    }
    let repository = repository(spec, release);
    let hash = hash(release, repository);
    let known = status.release_statuses.get(name);
    let there = installed.iter().find(|there| &there.name == name && there.namespace == namespace(release));
    if let Some(there) = there {
        let (name, namespace) = (name.clone(), there.namespace.clone());
        if !there.is_ours {
            let text = "a Helm release of this name is there that this bundle did not bring: uninstall it, or give this one another name";
            plan.waits.insert(name, text.into());
            return;
        }
        match there.status.as_str() {
            // Whoever did it died over it: nobody else works on the releases of a bundle.
            "pending-install" | "uninstalling" => return plan.steps.push(ChartStep::Uninstall { name, namespace }),
            "pending-upgrade" | "pending-rollback" => return plan.steps.push(ChartStep::RollBack { name, namespace }),
            _ => {}
        }
        let is_done = known.is_some_and(|known| known.ready && known.hash == hash && known.revision == there.revision);
        if is_done && there.status == "deployed" {
            plan.ready.insert(name);
            return;
        }
    }
    // What failed is tried again after a pause; what is another thing than the one that failed, at once.
    let failed = known.filter(|known| !known.ready && known.hash == hash && known.attempt > 0);
    if let Some(due) = failed.and_then(due).filter(|due| *due > now) {
        plan.next = Some(plan.next.map_or(due, |next| next.min(due)));
        plan.waits.insert(name.clone(), format!("failed, and is tried again at {}", due.strftime("%H:%M:%S UTC")));
        return;
    }
    plan.steps.push(ChartStep::Upgrade { release: Box::new(release.clone()), repository: repository.cloned(), hash });
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn release(name: &str, requires: &[&str]) -> HelmRelease {
        HelmRelease {
            name: name.into(),
            chart: format!("ours/{name}"),
            requires: requires.iter().map(|&other| other.into()).collect(),
            ..HelmRelease::default()
        }
    }

    fn bundle(releases: Vec<HelmRelease>) -> HelmBundleSpec {
        let repository = HelmRepository {
            name: "ours".into(),
            url: "http://192.0.2.1/packages/charts".into(),
            ..Default::default()
        };
        HelmBundleSpec { repositories: vec![repository], releases, ..HelmBundleSpec::default() }
    }

    fn there(name: &str, status: &str) -> Installed {
        Installed { name: name.into(), namespace: "default".into(), revision: 1, status: status.into(), is_ours: true }
    }

    fn done(spec: &HelmBundleSpec, names: &[&str]) -> HelmBundleStatus {
        let mut status = HelmBundleStatus::default();
        for release in spec.releases.iter().filter(|release| names.contains(&release.name.as_str())) {
            let hash = hash(release, repository(spec, release));
            let of = HelmReleaseStatus { hash, revision: 1, ready: true, ..HelmReleaseStatus::default() };
            status.release_statuses.insert(release.name.clone(), of);
        }
        status
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_000_000).unwrap()
    }

    /// `+name` upgrades, `<name` rolls back, `-name` uninstalls.
    fn steps(plan: &ChartPlan) -> Vec<String> {
        let word = |step: &ChartStep| match step {
            ChartStep::Upgrade { .. } => "+",
            ChartStep::RollBack { .. } => "<",
            ChartStep::Uninstall { .. } => "-",
        };
        plan.steps.iter().map(|step| format!("{}{}", word(step), step.name())).collect()
    }

    #[test]
    fn requirements_come_first_and_what_is_independent_beside_them() {
        let spec =
            bundle(vec![release("app", &["db"]), release("db", &["disk"]), release("disk", &[]), release("log", &[])]);
        let rows: [(&[&str], &[&str]); 4] = [
            (&[], &["+disk", "+log"]),
            (&["disk"], &["+db", "+log"]),
            (&["disk", "log"], &["+db"]),
            (&["disk", "log", "db"], &["+app"]),
        ];
        for (ready, wanted) in rows {
            let installed: Vec<_> = ready.iter().map(|name| there(name, "deployed")).collect();
            let plan = plan(&spec, &done(&spec, ready), &installed, &BTreeSet::new(), now());
            assert_eq!(steps(&plan), wanted, "{ready:?}");
        }
        let running = BTreeSet::from(["disk".to_owned()]);
        let busy = plan(&spec, &HelmBundleStatus::default(), &[], &running, now());
        assert_eq!(steps(&busy), ["+log"]);
        assert_eq!(busy.waits["db"], "waits for disk");
    }

    #[test]
    fn what_changed_is_upgraded_and_what_somebody_else_changed_is_brought_back() {
        let mut spec = bundle(vec![release("app", &[])]);
        let status = done(&spec, &["app"]);
        let look = |spec: &HelmBundleSpec, revision: i64| {
            let installed = [Installed { revision, ..there("app", "deployed") }];
            steps(&plan(spec, &status, &installed, &BTreeSet::new(), now()))
        };
        assert!(look(&spec, 1).is_empty());
        assert_eq!(look(&spec, 2), ["+app"], "somebody upgraded it by hand");
        spec.releases[0].values = Some(json!({"replicas": 2}));
        assert_eq!(look(&spec, 1), ["+app"], "other values");
    }

    #[test]
    fn what_is_left_of_a_program_that_died_is_cleaned_up_first() {
        let spec = bundle(vec![release("app", &[])]);
        for (word, wanted) in [
            ("pending-install", "-app"),
            ("uninstalling", "-app"),
            ("pending-upgrade", "<app"),
            ("pending-rollback", "<app"),
            ("failed", "+app"),
        ] {
            let plan = plan(&spec, &HelmBundleStatus::default(), &[there("app", word)], &BTreeSet::new(), now());
            assert_eq!(steps(&plan), [wanted], "{word}");
        }
    }

    #[test]
    fn what_failed_is_tried_again_later_each_time_unless_it_is_another_thing() {
        let mut spec = bundle(vec![release("app", &[])]);
        let failed = |attempt: i32, ago: i64| {
            let mut status = done(&spec, &["app"]);
            let of = status.release_statuses.get_mut("app").unwrap();
            (of.ready, of.attempt) = (false, attempt);
            of.finished_at = Some(Time(Timestamp::from_second(1_000_000 - ago).unwrap()));
            status
        };
        let cases = [(1, 14, false), (1, 15, true), (2, 29, false), (2, 30, true), (40, 599, false), (40, 600, true)];
        let found: Vec<_> = cases.iter().map(|(attempt, ago, _)| failed(*attempt, *ago)).collect();
        for ((attempt, ago, again), status) in cases.iter().zip(&found) {
            let plan = plan(&spec, status, &[], &BTreeSet::new(), now());
            assert_eq!(!plan.steps.is_empty(), *again, "attempt {attempt}, {ago} s ago");
            assert_eq!(plan.next.is_some(), !*again);
        }
        spec.releases[0].version = "2".into();
        assert_eq!(steps(&plan(&spec, &found[0], &[], &BTreeSet::new(), now())), ["+app"]);
    }

    #[test]
    fn what_the_bundle_has_no_more_goes_and_what_is_others_stays() {
        let spec = bundle(vec![release("app", &[])]);
        let installed = [
            there("app", "deployed"),
            there("old", "deployed"),
            Installed { is_ours: false, ..there("theirs", "deployed") },
        ];
        assert_eq!(steps(&plan(&spec, &done(&spec, &["app"]), &installed, &BTreeSet::new(), now())), ["-old"]);
        let foreign = [Installed { is_ours: false, ..there("app", "deployed") }];
        let plan = plan(&spec, &HelmBundleStatus::default(), &foreign, &BTreeSet::new(), now());
        assert!(plan.steps.is_empty() && plan.waits["app"].contains("did not bring"), "{plan:?}");
    }

    #[test]
    fn what_makes_no_sense_is_told_and_holds_up_nobody_else() {
        let mut spec = bundle(vec![
            release("a", &["b"]),
            release("b", &["a"]),
            release("lost", &["nowhere"]),
            release("Upper", &[]),
            HelmRelease { chart: "theirs/x".into(), ..release("foreign", &[]) },
            HelmRelease { chart_url: "file:///etc/passwd".into(), ..release("file", &[]) },
            HelmRelease { chart_url: "--post-renderer=/bin/sh".into(), ..release("flag", &[]) },
            HelmRelease { version: "--debug".into(), ..release("version", &[]) },
            HelmRelease { chart: "ours/../../x".into(), ..release("dots", &[]) },
            HelmRelease { namespace: "-n".into(), ..release("space", &[]) },
            release("good", &[]),
            release("good", &[]),
        ]);
        spec.repositories.push(HelmRepository {
            name: "login".into(),
            url: "https://x".into(),
            auth_secret: "../../token".into(),
        });
        spec.releases.push(HelmRelease { chart: "login/x".into(), ..release("secret", &[]) });
        let plan = plan(&spec, &HelmBundleStatus::default(), &[], &BTreeSet::new(), now());
        assert_eq!(steps(&plan), ["+good"]);
        let told: Vec<&str> = plan.waits.keys().map(String::as_str).collect();
        let wanted =
            ["Upper", "a", "b", "dots", "file", "flag", "foreign", "good", "lost", "secret", "space", "version"];
        assert_eq!(told, wanted, "{:#?}", plan.waits);
    }
}
