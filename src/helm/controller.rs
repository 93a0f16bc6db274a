//! The loop: reads the bundle, asks Helm what is there, does what is due, and writes what became of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams, WatchEvent, WatchParams};
use kube::config::AuthInfo;
use kube::{Api, Client, Config, Resource, ResourceExt};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::json;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::command::{Helm, HelmFault, Upgraded};
use super::plan::{ChartStep, plan};
use crate::api::lcm::{HelmBundle, HelmBundleSpec, HelmBundleStatus, HelmReleaseStatus};
use crate::runtime::conditions::{self, ConditionVerdict};

/// Helm releases that are worked on at once.
const AT_ONCE: usize = 4;
/// How long one look is good for when nothing is heard.
const LOOK: Duration = Duration::from_secs(60);
/// Pause after the appliance or Helm did not answer.
const RETRY: Duration = Duration::from_secs(5);
/// How long an answer of the appliance is waited for.
const ANSWER: Duration = Duration::from_secs(30);

/// Whom the controller works for.
#[derive(Clone, Debug)]
pub struct ControllerSettings {
    /// URL of the appliance.
    pub server: String,
    /// CA of the appliance, as PEM.
    pub ca: PathBuf,
    /// Token of its account; read anew while it runs.
    pub token: PathBuf,
    /// Namespace of the bundle.
    pub namespace: String,
    /// Name of the bundle.
    pub name: String,
    /// Helm.
    pub helm: Helm,
    /// Ends when everything is as the bundle says, or nothing gets on: for tests, and for a look by hand.
    pub once: bool,
}

/// Works off a bundle until it is told to end.
///
/// # Errors
///
/// When the settings cannot be used; with `once`, also when something is not as the bundle says.
pub async fn run(settings: ControllerSettings, stop: CancellationToken) -> anyhow::Result<()> {
    let bundles = Api::<HelmBundle>::namespaced(client(&settings).await?, &settings.namespace);
    let mut keeper = BundleKeeper { settings, bundles, running: JoinSet::new(), names: BTreeSet::new(), status: None };
    keeper.work(stop).await
}

async fn client(settings: &ControllerSettings) -> anyhow::Result<Client> {
    let ca = settings.ca.display();
    let pem = tokio::fs::read(&settings.ca).await.with_context(|| format!("cannot read {ca}"))?;
    let roots: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let roots = roots.with_context(|| format!("{ca} is no certificate"))?;
    let uri = settings.server.parse().with_context(|| format!("{:?} is no URL", settings.server))?;
    let mut config = Config::new(uri);
    config.root_cert = Some(roots.iter().map(|root| root.to_vec()).collect());
    config.auth_info = AuthInfo { token_file: Some(settings.token.display().to_string()), ..AuthInfo::default() };
    config.connect_timeout = Some(ANSWER);
    // A watch is silent for minutes.
    config.read_timeout = None;
    Client::try_from(config).context("cannot make a client of the appliance")
}

/// A step, and what became of it.
type Ended = (ChartStep, Result<Upgraded, HelmFault>);

struct BundleKeeper {
    settings: ControllerSettings,
    bundles: Api<HelmBundle>,
    running: JoinSet<Ended>,
    names: BTreeSet<String>,
    /// What was found out, from the first look on; the appliance has it, or will.
    status: Option<HelmBundleStatus>,
}

/// What a look came to.
struct BundleLook {
    /// When to look again, whatever is heard.
    again: Duration,
    /// Version of the bundle that was looked at.
    version: Option<String>,
    /// Nothing is under way, and nothing is as it is not to be.
    is_done: bool,
    /// Nothing is under way and nothing will be until something changes.
    is_still: bool,
}

impl BundleKeeper {
    async fn work(&mut self, stop: CancellationToken) -> anyhow::Result<()> {
        loop {
            let look = match self.look().await {
                Ok(look) => look,
                Err(error) => {
                    warn!(error = format!("{error:#}"), "cannot work on the bundle; it is tried again");
                    BundleLook { again: RETRY, version: None, is_done: false, is_still: false }
                }
            };
            if self.settings.once && look.is_done {
                return Ok(());
            }
            if self.settings.once && look.is_still {
                anyhow::bail!("not everything is as the bundle says: see its status");
            }
            tokio::select! {
                () = stop.cancelled() => return self.end().await,
                ended = self.running.join_next(), if !self.running.is_empty() => self.note(ended),
                () = changed(&self.bundles, &self.settings.name, look.version) => {}
                () = tokio::time::sleep(look.again) => {}
            }
        }
    }

    /// What is under way comes to its end: helm would leave it pending otherwise.
    async fn end(&mut self) -> anyhow::Result<()> {
        info!(running = self.running.len(), "ending when what is under way has ended");
        while let Some(ended) = self.running.join_next().await {
            self.note(Some(ended));
        }
        Ok(())
    }

    async fn look(&mut self) -> anyhow::Result<BundleLook> {
        let bundle = tokio::time::timeout(ANSWER, self.bundles.get_opt(&self.settings.name)).await;
        let bundle = bundle.context("the appliance does not answer")?.context("the appliance refuses")?;
        let Some(bundle) = bundle else {
            warn!(bundle = self.settings.name, "there is no such bundle: nothing is done");
            return Ok(BundleLook { again: LOOK, version: None, is_done: false, is_still: self.running.is_empty() });
        };
        let installed = self.settings.helm.list(&self.settings.name).await.context("helm cannot say what is there")?;
        let mut status = self.status.clone().or_else(|| bundle.status.clone()).unwrap_or_default();
        let found = plan(&bundle.spec, &status, &installed, &self.names, Timestamp::now());
        for step in &found.steps {
            if self.running.len() < AT_ONCE && !self.names.contains(step.name()) {
                self.begin(step.clone());
            }
        }
        tell(&mut status, &bundle, &found.waits, &found.ready, &self.names);
        // What became of a step is not lost when it cannot be written now.
        self.status = Some(status.clone());
        self.write(&bundle, &status).await?;
        let now = Timestamp::now();
        let until = found.next.map(|next| Duration::try_from(next.duration_since(now)).unwrap_or_default());
        let is_still = self.running.is_empty() && found.steps.is_empty();
        let is_done = is_still && found.waits.is_empty() && found.ready.len() == bundle.spec.releases.len();
        let again = until.map_or(LOOK, |until| until.min(LOOK));
        Ok(BundleLook { again, version: bundle.resource_version(), is_done, is_still })
    }

    fn begin(&mut self, step: ChartStep) {
        let (helm, bundle) = (self.settings.helm.clone(), self.settings.name.clone());
        self.names.insert(step.name().to_owned());
        info!(release = step.name(), step = word(&step), "working on a Helm release");
        self.running.spawn(async move {
            let outcome = match &step {
                ChartStep::Upgrade { release, repository, .. } => {
                    helm.upgrade(release, repository.as_ref(), &bundle).await
                }
                ChartStep::RollBack { name, namespace } => {
                    helm.roll_back(name, namespace).await.map(|()| Upgraded::default())
                }
                ChartStep::Uninstall { name, namespace } => {
                    helm.uninstall(name, namespace).await.map(|()| Upgraded::default())
                }
            };
            (step, outcome)
        });
    }

    fn note(&mut self, ended: Option<Result<Ended, JoinError>>) {
        let (step, outcome) = match ended {
            Some(Ok(ended)) => ended,
            Some(Err(error)) => {
                // Whose it was is not known: all that are not under way any more are looked at anew.
                warn!(%error, "a step broke off");
                self.names.clear();
                return;
            }
            None => return,
        };
        self.names.remove(step.name());
        match &outcome {
            Ok(_) => info!(release = step.name(), step = word(&step), "a Helm release is done"),
            Err(error) => warn!(release = step.name(), step = word(&step), %error, "a Helm release failed"),
        }
        let status = self.status.get_or_insert_default();
        noted(&mut status.release_statuses, &step, outcome, Timestamp::now());
    }

    async fn write(&self, bundle: &HelmBundle, status: &HelmBundleStatus) -> anyhow::Result<()> {
        if bundle.status.as_ref() == Some(status) {
            return Ok(());
        }
        // Applied, so that what is not said any more goes.
        let patch = Patch::Apply(json!({
            "apiVersion": HelmBundle::api_version(&()), "kind": HelmBundle::kind(&()),
            "metadata": { "name": self.settings.name, "uid": bundle.metadata.uid }, "status": status,
        }));
        let params = PatchParams::apply("helm-controller").force();
        let written = self.bundles.patch_status(&self.settings.name, &params, &patch);
        let written = tokio::time::timeout(ANSWER, written).await.context("the appliance does not answer")?;
        written.context("the appliance does not take the status").map(drop)
    }
}

fn word(step: &ChartStep) -> &'static str {
    match step {
        ChartStep::Upgrade { .. } => "upgrade",
        ChartStep::RollBack { .. } => "rollback",
        ChartStep::Uninstall { .. } => "uninstall",
    }
}

/// Returns when the bundle is another one than at that version, as far as it can be heard.
async fn changed(bundles: &Api<HelmBundle>, name: &str, version: Option<String>) {
    let Some(version) = version else { return std::future::pending().await };
    let params = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(240);
    // One that cannot be heard is looked at by the clock.
    let Ok(events) = bundles.watch(&params, &version).await else { return std::future::pending().await };
    let mut events = events.boxed();
    while let Ok(Some(event)) = events.try_next().await {
        match event {
            // Of our own status it is told, too; a new generation is what the user changed.
            WatchEvent::Modified(_) | WatchEvent::Added(_) | WatchEvent::Deleted(_) => return,
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(_) => break,
        }
    }
    std::future::pending().await
}

/// What became of a step, in the status of its Helm release.
fn noted(
    statuses: &mut BTreeMap<String, HelmReleaseStatus>,
    step: &ChartStep,
    outcome: Result<Upgraded, HelmFault>,
    now: Timestamp,
) {
    let ChartStep::Upgrade { release, hash, .. } = step else {
        match outcome {
            Ok(_) => drop(statuses.remove(step.name())),
            Err(error) => statuses.entry(step.name().to_owned()).or_default().message = error.to_string(),
        }
        return;
    };
    let status = statuses.entry(release.name.clone()).or_default();
    let attempt = if status.hash == *hash && !status.ready { status.attempt.saturating_add(1) } else { 1 };
    *status = HelmReleaseStatus {
        namespace: super::plan::namespace(release).to_owned(),
        chart: if release.chart_url.is_empty() { release.chart.clone() } else { release.chart_url.clone() },
        hash: hash.clone(),
        attempt,
        finished_at: Some(Time(now)),
        ..status.clone()
    };
    match outcome {
        Ok(Upgraded { revision, status: word, version, notes }) => {
            (status.success, status.ready) = (true, true);
            (status.revision, status.status, status.version, status.notes) = (revision, word, version, notes);
            status.message = String::new();
        }
        Err(error) => {
            (status.success, status.ready) = (false, false);
            status.status = "failed".into();
            status.message = error.to_string();
        }
    }
}

/// Puts what is waited for into the status.
fn tell(
    status: &mut HelmBundleStatus,
    bundle: &HelmBundle,
    waits: &BTreeMap<String, String>,
    ready: &BTreeSet<String>,
    running: &BTreeSet<String>,
) {
    let HelmBundleSpec { releases, release, .. } = &bundle.spec;
    let known: BTreeSet<&str> = releases.iter().map(|release| release.name.as_str()).collect();
    status.release_statuses.retain(|name, _| known.contains(name.as_str()) || running.contains(name));
    for (name, wait) in waits {
        let of = status.release_statuses.entry(name.clone()).or_default();
        // Why it failed says more than that it is tried again.
        if of.message.is_empty() || of.ready {
            of.message.clone_from(wait);
        }
        of.ready = false;
    }
    for name in ready {
        if let Some(of) = status.release_statuses.get_mut(name) {
            of.message = String::new();
        }
    }
    status.observed_generation = bundle.metadata.generation;
    status.release.clone_from(release);
    let open: Vec<String> = releases
        .iter()
        .filter(|release| !ready.contains(&release.name))
        .map(|release| match status.release_statuses.get(&release.name).map(|of| of.message.as_str()) {
            Some(message) if !message.is_empty() => {
                format!("{}: {}", release.name, message.lines().next_back().unwrap_or_default())
            }
            _ => format!("{}: in progress", release.name),
        })
        .take(5)
        .collect();
    let is_failed = status.release_statuses.values().any(|of| of.status == "failed");
    let verdict = match open.is_empty() {
        true => ConditionVerdict::yes("Deployed"),
        false if is_failed => ConditionVerdict::no("Failed", open.join("; ")),
        false => ConditionVerdict::no("InProgress", open.join("; ")),
    };
    conditions::set(&mut status.conditions, "Ready", &verdict, bundle.metadata.generation, Timestamp::now());
}
