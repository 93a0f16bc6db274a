//! The session of a machine that reports itself: `inspect`, then nothing more.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use jiff::Timestamp;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::json;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::enroll::{self, Same, Search, VisitReport};
use super::journal::{MachineVisit, VisitJournal};
use super::rules;
use super::standing::{counts, waits, was_let_in};
use crate::api::MacAddress;
use crate::api::metal3::{BareMetalHost, HardwareData, HardwareDetails};
use crate::api::slipway::{ANNOTATION_REPORTED, ANNOTATION_VISIT};
use crate::boot::{BootTokenClaims, HostIndex, UnknownMachine};
use crate::config::{AfterReport, DiscoveryConfig};
use crate::host::COMPONENT;
use crate::host::label;
use crate::host::refused::AgentRefused;
use crate::host::status::hardware_data;
use crate::log::named;
use crate::protocol::{Action, AgentStep, FoundBmc, OpenSession, STEP_WAIT_SECONDS, StepOutcome};
use crate::runtime::{Note, events};
use crate::store::{Store, StoreWriteError};

/// The two steps of a visit.
const INSPECT: &str = "0.1";
const POWER_OFF: &str = "0.2";
/// Where hosts go whose namespace does not exist.
const DEFAULT_NAMESPACE: &str = "default";
/// Hosts that are looked at in one go.
const PAGE: u32 = 50;
/// The longest rest after a report.
const LONGEST_REST: Duration = Duration::from_secs(5);
const TRY_AGAIN: &str = "the appliance cannot answer now; try again";

/// Discovery cannot work.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The store refuses.
    #[error("cannot read who was discovered: {0}")]
    Store(#[from] StoreWriteError),
    /// A rule makes no BMC address.
    #[error("discovery.rule {number}: bmc_scheme: {reason}")]
    Scheme {
        /// Which rule, from 1.
        number: usize,
        /// Why.
        reason: String,
    },
}

/// Takes the reports of unknown machines. Cheap to clone.
#[derive(Clone)]
pub struct DiscoveryService(Arc<Inner>);

struct Inner {
    client: Client,
    index: HostIndex,
    config: DiscoveryConfig,
    journal: VisitJournal,
    /// Where discovered hosts are made: nobody else's count towards the limit, whatever is written on them.
    namespaces: BTreeSet<String>,
    /// One report at a time: two of the same machine must not make two hosts.
    one: Arc<tokio::sync::Mutex<()>>,
}

impl DiscoveryService {
    /// Hosts are made through `client`; `index` tells who is known by now.
    ///
    /// # Errors
    ///
    /// [`DiscoveryError`].
    pub fn new(
        client: Client,
        index: HostIndex,
        config: DiscoveryConfig,
        store: &Store,
    ) -> Result<Self, DiscoveryError> {
        let sample = FoundBmc { address: "192.0.2.1".into(), ..FoundBmc::default() };
        for (number, rule) in (1..).zip(&config.rules) {
            super::bmc::address(&sample, rule.bmc_scheme.as_deref())
                .map_err(|reason| DiscoveryError::Scheme { number, reason })?;
        }
        let named = config.rules.iter().filter_map(|rule| rule.namespace.clone());
        let namespaces: BTreeSet<String> =
            named.chain([config.namespace.clone(), DEFAULT_NAMESPACE.to_owned()]).collect();
        index.limit_waiting(config.limit, namespaces.clone());
        let journal = VisitJournal::open(store)?;
        Ok(Self(Arc::new(Inner { client, index, config, journal, namespaces, one: Arc::default() })))
    }

    /// Opens the visit that a token is for, which may be used from this address; its provisional name.
    pub(in crate::host) async fn open(
        &self,
        claims: &BootTokenClaims,
        peer: IpAddr,
        call: &OpenSession,
    ) -> Result<String, AgentRefused> {
        let refuse = |reason: String| AgentRefused(StatusCode::FORBIDDEN, reason);
        let mac: MacAddress = claims.uid.parse().map_err(|_| refuse("the token is malformed".into()))?;
        if !call.mac_addresses.iter().any(|own| own.parse() == Ok(mac)) {
            return Err(refuse(format!("this token is for the machine with the MAC address {mac}")));
        }
        if let Some(visit) = self.0.journal.get(&claims.nonce)
            && (visit.used || visit.peer != peer.to_string())
        {
            let from = visit.peer;
            return Err(refuse(format!("this boot's token was used already, from {from}: each boot has one session")));
        }
        if self.0.index.by_mac(mac).is_some() {
            return Err(refuse(format!("{mac} belongs to a host by now")));
        }
        if let UnknownMachine::TooMany(limit) = self.0.index.unknown_machine(mac, true) {
            return Err(refuse(too_many(limit)));
        }
        let visit = MachineVisit {
            mac,
            peer: peer.to_string(),
            uefi: call.uefi,
            opened: Timestamp::now().as_second(),
            used: false,
            reported: false,
            host: None,
        };
        self.keep(claims, visit).await?;
        info!(%mac, %peer, "an unknown machine opened a session to report itself");
        Ok(format!("discovery/{}", mac.hyphenated()))
    }

    /// The next step: the report, then what the configuration says.
    pub(in crate::host) async fn next_step(&self, claims: &BootTokenClaims) -> Result<Option<AgentStep>, AgentRefused> {
        let mut visit = self.visit(claims)?;
        if !visit.used {
            visit.used = true;
            self.keep(claims, visit.clone()).await?;
        }
        let step = |id: &str, action| Ok(Some(AgentStep { id: id.into(), generation: 0, action }));
        if !visit.reported {
            return step(INSPECT, Action::Inspect);
        }
        if self.0.config.then == AfterReport::PowerOff {
            return step(POWER_OFF, Action::PowerOff);
        }
        let ended = |reason: &str| AgentRefused(StatusCode::UNAUTHORIZED, reason.into());
        let Some((namespace, name)) = &visit.host else { return step(POWER_OFF, Action::PowerOff) };
        match self.hosts(namespace).get_opt(name).await? {
            None => return Err(ended("the discovered host was deleted")),
            Some(host) if !waits(&host) => return Err(ended("the host was accepted")),
            Some(_) => {}
        }
        tokio::time::sleep(Duration::from_secs(STEP_WAIT_SECONDS)).await;
        Ok(None)
    }

    /// Whether the visit goes on; progress is of no interest.
    pub(in crate::host) fn still_there(&self, claims: &BootTokenClaims) -> Result<(), AgentRefused> {
        self.visit(claims).map(drop)
    }

    /// Takes how a step ended. The host is stored when this returns.
    pub(in crate::host) async fn result(
        &self,
        claims: &BootTokenClaims,
        outcome: &StepOutcome,
    ) -> Result<(), AgentRefused> {
        let visit = self.visit(claims)?;
        if outcome.step != INSPECT || visit.reported {
            return Ok(());
        }
        let report = outcome.inventory.as_ref().filter(|_| outcome.succeeded).map(|hardware| VisitReport {
            visit: claims.nonce_hex(),
            mac: visit.mac,
            uefi: visit.uefi,
            hardware: hardware.clone(),
            bmc: outcome.bmc.clone(),
        });
        if report.is_none() {
            let reason: String = outcome.message.chars().take(500).collect();
            warn!(mac = %visit.mac, reason, "an unknown machine could not report its hardware");
        }
        let one = self.0.one.clone().lock_owned().await;
        let (discovery, claims) = (self.clone(), claims.clone());
        let (tell, told) = oneshot::channel();
        // Goes on when the machine hangs up: else the next report would be judged before what is under way is there.
        tokio::spawn(async move {
            let begun = Instant::now();
            // A machine that hangs up gets no answer.
            tell.send(discovery.finish(&claims, report.as_ref()).await).ok();
            // To look at many hosts takes long, and strangers may report again and again: half of the time is for others.
            tokio::time::sleep(begun.elapsed().min(LONGEST_REST)).await;
            drop(one);
        });
        told.await.unwrap_or_else(|_| Err(AgentRefused(StatusCode::SERVICE_UNAVAILABLE, TRY_AGAIN.into())))
    }

    /// Takes a report, if there is one, and ends the visit's inspection.
    async fn finish(&self, claims: &BootTokenClaims, report: Option<&VisitReport>) -> Result<(), AgentRefused> {
        let mut visit = self.visit(claims)?;
        if visit.reported {
            // The same call, once more.
            return Ok(());
        }
        if let Some(report) = report {
            visit.host = self.take(report).await?;
        }
        visit.reported = true;
        visit.used = true;
        self.keep(claims, visit).await
    }

    fn visit(&self, claims: &BootTokenClaims) -> Result<MachineVisit, AgentRefused> {
        let visit = self.0.journal.get(&claims.nonce);
        visit.ok_or_else(|| AgentRefused(StatusCode::UNAUTHORIZED, "this visit has ended".into()))
    }

    async fn keep(&self, claims: &BootTokenClaims, visit: MachineVisit) -> Result<(), AgentRefused> {
        let mac = visit.mac;
        self.0.journal.put(claims.nonce, visit).await.map_err(|error| {
            warn!(%mac, %error, "cannot store the session of an unknown machine");
            AgentRefused(StatusCode::SERVICE_UNAVAILABLE, TRY_AGAIN.into())
        })
    }

    fn hosts(&self, namespace: &str) -> Api<BareMetalHost> {
        Api::namespaced(self.0.client.clone(), namespace)
    }

    /// A report becomes a host, or an event on the host that the machine is already. What the API refuses for good is
    /// only logged: the machine must not come back with the same again and again. What somebody can change (a quota, a right, a
    /// namespace) the machine waits for.
    async fn take(&self, report: &VisitReport) -> Result<Option<(String, String)>, AgentRefused> {
        match self.store(report).await {
            Ok(None) => {
                let reason = too_many(self.0.config.limit);
                warn!(mac = %report.mac, reason, "an unknown machine's report was not taken");
                // Its session ends: it starts again, and from its disk.
                Err(AgentRefused(StatusCode::UNAUTHORIZED, reason))
            }
            Ok(Some(host)) => Ok(Some((host.namespace().unwrap_or_default(), host.name_any()))),
            Err(kube::Error::Api(error)) if matches!(error.code, 400 | 413 | 422) => {
                warn!(mac = %report.mac, error = error.message, "the API refused a host for a discovered machine");
                Ok(None)
            }
            Err(kube::Error::Api(error)) if matches!(error.code, 403 | 404) => {
                let reason = format!("the machine cannot become a host now: {}", error.message);
                warn!(mac = %report.mac, reason, "an unknown machine's report was not taken");
                Err(AgentRefused(StatusCode::SERVICE_UNAVAILABLE, reason))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// None: there are as many as may be. One at a time: two reports of the same machine must not make two hosts.
    async fn store(&self, report: &VisitReport) -> Result<Option<BareMetalHost>, kube::Error> {
        let (found, counted) = self.known(report).await?;
        let (host, faults) = match found {
            Some((host, Same::Visit)) => (host, Vec::new()),
            Some((host, same)) => return self.tell(&host, report, &same).await.map(Some),
            // As many visits may have begun before the first of them reported.
            None if counted >= self.0.config.limit.max(1) => return Ok(None),
            None => self.create(report).await?,
        };
        self.add_hardware(&host, &report.visit, &report.hardware).await?;
        self.announce(&host, report, faults).await;
        Ok(Some(host))
    }

    /// The host that the machine is already, and how many hosts count towards the limit. Page by page: there may be many, and
    /// others are served meanwhile.
    async fn known(&self, report: &VisitReport) -> Result<(Option<(BareMetalHost, Same)>, usize), kube::Error> {
        let seen = |host: &BareMetalHost| {
            let (namespace, name) = (host.namespace().unwrap_or_default(), host.name_any());
            let visit = host.annotations().get(ANNOTATION_VISIT);
            was_let_in(host) || visit.is_some_and(|visit| self.0.journal.has_made(&namespace, &name, visit))
        };
        let all = Api::<BareMetalHost>::all(self.0.client.clone());
        let (mut search, mut counted) = (Search::new(report), 0);
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let hosts = all.list(&page).await?;
            for host in &hosts.items {
                search.look(host, seen(host));
                let ours = host.metadata.namespace.as_ref().is_some_and(|name| self.0.namespaces.contains(name));
                counted += usize::from(ours && counts(host));
            }
            match hosts.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok((search.found(), counted)),
            }
        }
    }

    /// The machine is a host already.
    async fn tell(
        &self,
        host: &BareMetalHost,
        report: &VisitReport,
        same: &Same,
    ) -> Result<BareMetalHost, kube::Error> {
        let message = enroll::duplicate(report, same);
        warn!(host = %label(host), mac = %report.mac, details = message, "a machine reported itself again, or as somebody else");
        let known = match enroll::reported(host, report.mac) {
            Some(reported) => {
                let patch = json!({ "metadata": { "annotations": { ANNOTATION_REPORTED: reported } } });
                let hosts = self.hosts(&host.namespace().unwrap_or_default());
                hosts.patch(&host.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?
            }
            None => host.clone(),
        };
        self.note(host, Note { reason: "DiscoveredAgain", message, warning: true }).await;
        Ok(known)
    }

    /// Tells of a new host, once all of it is stored.
    async fn announce(&self, host: &BareMetalHost, report: &VisitReport, faults: Vec<String>) {
        let (summary, fate) = (report.hardware.summary(), enroll::fate(host));
        let message = format!("A machine that booted from {} reported itself: {summary}; {fate}", report.mac);
        self.note(host, Note { reason: "Discovered", message, warning: false }).await;
        for message in faults {
            warn!(host = %label(host), mac = %report.mac, details = message, "a rule of discovery could not be followed");
            self.note(host, Note { reason: "DiscoveryRule", message, warning: true }).await;
        }
    }

    /// An event, as far as there is room for one: what it tells of is done.
    async fn note(&self, host: &BareMetalHost, note: Note) {
        events::store(&self.0.client, COMPONENT, &host.object_ref(&()), &note).await.ok();
    }

    /// A new host, and what could not be done as the rules say.
    async fn create(&self, report: &VisitReport) -> Result<(BareMetalHost, Vec<String>), kube::Error> {
        let mut verdict = rules::judge(&self.0.config, report.mac, &report.hardware);
        let mut name = verdict.name.clone();
        for _ in 0..3 {
            let (host, faults) = enroll::host(report, &verdict, &name);
            let made = match self.hosts(&verdict.namespace).create(&PostParams::default(), &host).await {
                Err(kube::Error::Api(error)) if error.is_already_exists() && name == verdict.name => {
                    name = rules::another_name(&verdict.name, report.mac);
                    continue;
                }
                Err(kube::Error::Api(error)) if error.is_not_found() && verdict.namespace != DEFAULT_NAMESPACE => {
                    let missing = std::mem::replace(&mut verdict.namespace, DEFAULT_NAMESPACE.into());
                    verdict
                        .faults
                        .push(format!("the rules put this host into namespace {missing}, which does not exist"));
                    continue;
                }
                created => created?,
            };
            info!(host = %named(&verdict.namespace, &name), mac = %report.mac, "an unknown machine became a host");
            return Ok((made, faults));
        }
        let text = format!("there are hosts {} and {name} already", verdict.name);
        Err(kube::Error::Api(Box::new(kube::core::Status::failure(&text, "AlreadyExists").with_code(422))))
    }

    /// HardwareData and the status' copy of it. May be done twice.
    async fn add_hardware(
        &self,
        host: &BareMetalHost,
        visit: &str,
        hardware: &HardwareDetails,
    ) -> Result<(), kube::Error> {
        let namespace = host.namespace().unwrap_or_default();
        let data = hardware_data::new(host, &format!("discover@{visit}"), hardware.clone());
        let all = Api::<HardwareData>::namespaced(self.0.client.clone(), &namespace);
        match all.create(&PostParams::default(), &data).await {
            Err(kube::Error::Api(error)) if error.is_already_exists() => {}
            created => drop(created?),
        }
        let patch = Patch::Merge(json!({ "status": { "hardware": hardware } }));
        self.hosts(&namespace).patch_status(&host.name_any(), &PatchParams::default(), &patch).await.map(drop)
    }
}

fn too_many(limit: usize) -> String {
    format!("{limit} discovered hosts wait to be accepted or inspected, which is discovery.limit")
}
