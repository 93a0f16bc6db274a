//! A run from its beginning to its end.

use std::time::Duration;

use anyhow::{Context, bail};
use kube::ResourceExt;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::appliance_process::{ApplianceProcess, serve_image};
use super::follow::{FollowedHosts, Tally};
use super::objects::{self, HostWithSecret, RunObjects};
use super::plan::{Appliance, Goal, SimulationPlan};
use super::rack::{RelayNetwork, SimulatedMachines};
use super::report::{self, MissingHost, Reached, RunSummary};
use super::rng::{DrawPurpose, SeededRng};
use crate::api::metal3::HostImage;
use crate::hex::hex;

/// How often progress is told.
const TELL: Duration = Duration::from_millis(500);
/// How long the end may take, beyond the deadline of the run.
const CLEAN: Duration = Duration::from_secs(300);

/// What a run tells while it goes on.
#[derive(Clone, Debug)]
pub struct RunningSimulation<'a> {
    /// One line about how far all are.
    pub line: &'a str,
    /// Hosts that have arrived, of all.
    pub arrived: usize,
    /// Hosts.
    pub hosts: usize,
}

/// Runs the plan; `tell` hears how far it is. Ends early, cleaning up, when `stop` is cancelled. What could not be removed
/// in the end comes beside the summary.
///
/// # Errors
/// When the run cannot be set up, or the appliance ends. That hosts do not arrive is no error: the summary says it.
pub async fn run(
    plan: &SimulationPlan,
    stop: CancellationToken,
    mut tell: impl FnMut(&RunningSimulation<'_>),
) -> anyhow::Result<(RunSummary, Option<anyhow::Error>)> {
    // A BMC and an agent take a file each.
    crate::descriptors::raise()?;
    let token = CancellationToken::new();
    let _ends = token.clone().drop_guard();
    let deadline = Instant::now() + plan.deadline;
    tell(&RunningSimulation { line: "starting", arrived: 0, hosts: plan.machines });
    let mut site = RunningAppliance::open(plan).await?;
    let set = Fleet::make(plan, &site, &token).await?;
    if site.own.is_none() {
        site.objects.look(&set.made).await?;
    }
    objects::can_arrive(plan.until, &set.made)?;
    let fresh = site.objects.make_namespace().await.context("namespace")?;
    let done = set.drive(plan, &mut site, deadline, &stop, &mut tell).await;
    let usage = site.own.as_ref().and_then(ApplianceProcess::usage);
    let reconciles = metrics(&site.client).await.as_deref().and_then(report::reconciles);
    let mut left = None;
    if !plan.keep {
        tell(&RunningSimulation { line: "cleaning up", arrived: 0, hosts: set.names.len() });
        left = set.clean(&site, fresh.as_deref()).await.err().map(|error| error.context("not all is removed"));
    }
    if let Some(own) = site.own.take() {
        own.end().await;
    }
    let ArrivalOutcome { goals, missing, tally } = match (done, &left) {
        (Err(error), Some(_)) => return Err(error.context("not all is removed")),
        (done, _) => done?,
    };
    let succeeded = missing.is_empty() && goals.len() == stages(plan.until).len();
    let summary = RunSummary {
        machines: set.names.len(),
        seed: plan.seed,
        succeeded,
        missing,
        goals,
        states: tally.states.iter().map(|(state, count)| ((*state).to_owned(), *count)).collect(),
        errors: tally.errors,
        counted: set.machines.counted(),
        appliance: usage,
        reconciles,
    };
    Ok((summary, left))
}

/// The goals on the way to one.
fn stages(until: Goal) -> &'static [Goal] {
    use Goal::{Available, Deleted, Deprovisioned, Provisioned};
    match until {
        Available => &[Available],
        Provisioned => &[Provisioned],
        Deprovisioned => &[Provisioned, Deprovisioned],
        Deleted => &[Provisioned, Deprovisioned, Deleted],
    }
}

/// The appliance.
struct RunningAppliance {
    own: Option<ApplianceProcess>,
    client: kube::Client,
    objects: RunObjects,
    /// Tells what this run makes from all else.
    run: String,
    network: RelayNetwork,
}

impl RunningAppliance {
    async fn open(plan: &SimulationPlan) -> anyhow::Result<Self> {
        let (own, client, network) = match &plan.appliance {
            Appliance::Own { config } => {
                let program = std::env::current_exe().context("this program")?;
                let own = ApplianceProcess::start(&program, config.as_deref(), plan.seed, plan.keep).await?;
                let (client, network) = (own.client.clone(), own.network);
                (Some(own), client, network)
            }
            Appliance::Running { kubeconfig, context, relay, dhcp, tftp_port } => {
                let kubeconfig = match kubeconfig {
                    Some(file) => Kubeconfig::read_from(file).with_context(|| file.display().to_string())?,
                    None => Kubeconfig::read().context("no kubeconfig")?,
                };
                let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
                let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
                (
                    None,
                    kube::Client::try_from(config)?,
                    RelayNetwork { relay: *relay, dhcp: *dhcp, tftp_port: *tftp_port },
                )
            }
        };
        let run = uuid::Uuid::new_v4().to_string();
        Ok(Self { own, objects: RunObjects::new(client.clone(), &plan.namespace, &run), run, client, network })
    }
}

/// How far the hosts came.
struct ArrivalOutcome {
    goals: Vec<Reached>,
    missing: Vec<MissingHost>,
    tally: Tally,
}

/// The machines and their hosts.
struct Fleet {
    made: Vec<HostWithSecret>,
    names: Vec<String>,
    hosts: FollowedHosts,
    machines: SimulatedMachines,
    _watching: JoinSet<()>,
}

impl Fleet {
    async fn make(plan: &SimulationPlan, site: &RunningAppliance, token: &CancellationToken) -> anyhow::Result<Self> {
        let mut made = wanted(plan, token).await?;
        made.iter_mut().for_each(|one| one.mark(&site.run));
        let machines = SimulatedMachines::start(plan, site.network, &mut made, token).await?;
        let names: Vec<String> = made.iter().map(|one| one.host.name_any()).collect();
        let hosts = FollowedHosts::new(&names, &site.run);
        let mut watching = JoinSet::new();
        watching.spawn(hosts.clone().follow(site.client.clone(), plan.namespace.clone(), token.clone()));
        Ok(Self { made, names, hosts, machines, _watching: watching })
    }

    async fn drive(
        &self,
        plan: &SimulationPlan,
        site: &mut RunningAppliance,
        deadline: Instant,
        stop: &CancellationToken,
        tell: &mut impl FnMut(&RunningSimulation<'_>),
    ) -> anyhow::Result<ArrivalOutcome> {
        let (mut goals, mut missing) = (Vec::new(), Vec::new());
        for goal in stages(plan.until) {
            let began = Instant::now();
            self.hosts.aim(*goal);
            let objects = site.objects.clone();
            let order = async {
                match goal {
                    Goal::Available | Goal::Provisioned => objects.make(&self.made).await,
                    Goal::Deprovisioned => objects.take_images(&self.names).await,
                    Goal::Deleted => objects.delete(&self.names).await,
                }
            };
            let arrived = async {
                order.await?;
                self.hosts.all_arrived().await;
                Ok::<_, anyhow::Error>(())
            };
            tokio::pin!(arrived);
            let in_time = loop {
                tokio::select! {
                    done = &mut arrived => { done?; break true; }
                    () = stop.cancelled() => break false,
                    () = tokio::time::sleep_until(deadline) => break false,
                    () = tokio::time::sleep(TELL) => {
                        let tally = self.hosts.tally();
                        let line = report::line(*goal, &tally, began.elapsed());
                        tell(&RunningSimulation { line: &line, arrived: tally.arrived, hosts: tally.hosts });
                        if let Some(own) = &mut site.own {
                            own.check()?;
                        }
                    }
                }
            };
            goals.push(report::reached(*goal, began, &self.hosts.all()));
            missing = report::missing(*goal, &self.hosts.all());
            if !in_time {
                break;
            }
        }
        if plan.stay && missing.is_empty() {
            self.stay(site, deadline, stop, tell).await?;
        }
        Ok(ArrivalOutcome { goals, missing, tally: self.hosts.tally() })
    }

    /// Lets the machines go on until `stop` or the deadline: others order what happens to their hosts.
    async fn stay(
        &self,
        site: &mut RunningAppliance,
        deadline: Instant,
        stop: &CancellationToken,
        tell: &mut impl FnMut(&RunningSimulation<'_>),
    ) -> anyhow::Result<()> {
        loop {
            let hosts = self.names.len();
            let line = format!("all have arrived, and {hosts} machines go on until Ctrl-C");
            tell(&RunningSimulation { line: &line, arrived: hosts, hosts });
            if let Some(own) = &mut site.own {
                own.check()?;
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep_until(deadline) => return Ok(()),
                () = tokio::time::sleep(TELL) => {}
            }
        }
    }

    /// Removes what was made. In an appliance of its own that ends with it.
    async fn clean(&self, site: &RunningAppliance, namespace: Option<&str>) -> anyhow::Result<()> {
        if site.own.is_some() {
            return Ok(());
        }
        let objects = &site.objects;
        let clean = async {
            self.hosts.aim(Goal::Deleted);
            objects.delete(&self.names).await?;
            self.hosts.all_arrived().await;
            objects.delete_secrets(&self.made).await?;
            if let Some(namespace) = namespace {
                objects.delete_namespace(namespace).await?;
            }
            Ok(())
        };
        let done = tokio::time::timeout(CLEAN, clean).await;
        done.unwrap_or_else(|_| bail!("after {} s the hosts of this run are still there", CLEAN.as_secs()))
    }
}

/// The hosts that are to be made.
async fn wanted(plan: &SimulationPlan, token: &CancellationToken) -> anyhow::Result<Vec<HostWithSecret>> {
    if let Some(file) = &plan.hosts {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        return objects::from_manifests(&text, &plan.namespace).with_context(|| file.display().to_string());
    }
    if plan.machines == 0 {
        bail!("at least one machine");
    }
    let image = match (&plan.image, plan.until) {
        (_, Goal::Available) => None,
        (Some(url), _) => Some(HostImage { url: url.clone(), ..HostImage::default() }),
        (None, _) => Some(serve_image(plan.seed, token.clone()).await?),
    };
    let password: String = hex(&SeededRng::of(plan.seed, 2, DrawPurpose::Content).bytes(8));
    Ok((1..=plan.machines).map(|number| objects::host(number, &plan.namespace, &password, image.clone())).collect())
}

async fn metrics(client: &kube::Client) -> Option<String> {
    let request = http::Request::get("/metrics").body(Vec::new()).ok()?;
    client.request_text(request).await.ok()
}
