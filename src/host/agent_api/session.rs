//! An agent's session: who may open it, and its record in the boot intent.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use tracing::{info, warn};

use super::steps::next_of;
use super::{Sessions, agent_identity};
use crate::api::MacAddress;
use crate::api::metal3::{ANNOTATION_PAUSED, BareMetalHost};
use crate::api::slipway::{BootIntent, BootIntentStatus, BootTarget, SessionStatus, StepResult};
use crate::boot::home::network_of;
use crate::boot::neighbour::{ArpAnswers, another_card};
use crate::boot::{BootHost, BootTokenClaims};
use crate::host::refused::{AgentRefused, Unwritten};
use crate::protocol::{AgentSession, OpenSession};
use crate::runtime::changes;

/// How often `lastSeen` is written while an agent only waits.
const SEEN_EVERY: Duration = Duration::from_secs(10);

/// The session that a call belongs to.
pub(super) struct SessionCaller {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub generation: i64,
    /// Digests of the images that the boot's steps name.
    pub images: Vec<String>,
}

impl Sessions {
    /// Changes the session's record, and returns what the change does; durable when it returns. Refuses when the generation has
    /// moved on.
    pub(super) async fn record<T>(
        &self,
        caller: &SessionCaller,
        change: impl Fn(&mut BootIntentStatus, &BootIntent) -> T,
    ) -> Result<T, AgentRefused> {
        let (api, change) = (&self.api(&caller.namespace), &change);
        let recorded = changes::retry(|| async move {
            let intent = api.get(&caller.name).await?;
            if intent.spec.generation != caller.generation {
                return Err(AgentRefused(StatusCode::GONE, "this session has ended".into()).into());
            }
            let mut status = intent.status.clone().unwrap_or_default();
            if let Some(session) = &mut status.session {
                session.last_seen = Some(Time(Timestamp::now()));
                session.used = true;
            }
            let outcome = change(&mut status, &intent);
            let changed = BootIntent { status: Some(status), ..intent };
            api.replace_status(&caller.name, &PostParams::default(), &changed).await?;
            Ok::<_, Unwritten>(outcome)
        });
        recorded.await?.ok_or_else(AgentRefused::crowded)
    }

    /// Notes that the agent is there, not more often than needed.
    pub(super) async fn touch(&self, caller: &SessionCaller, intent: Option<&BootIntent>) -> Result<(), AgentRefused> {
        let session = intent.and_then(|intent| intent.status.as_ref()?.session.as_ref());
        let seen = session.and_then(|s| s.last_seen.as_ref()).map_or(Timestamp::UNIX_EPOCH, |seen| seen.0);
        let used = session.is_some_and(|session| session.used);
        // Also when the clock was set back.
        if used && Timestamp::now().duration_since(seen).unsigned_abs() < SEEN_EVERY {
            return Ok(());
        }
        self.record(caller, |_, _| {}).await
    }

    /// Opens a session for the machine that shows a boot token.
    pub(super) async fn open(&self, peer: IpAddr, call: &OpenSession) -> Result<AgentSession, AgentRefused> {
        let refuse = |reason: String| AgentRefused(StatusCode::FORBIDDEN, reason);
        if let (Some(discovery), Ok(claims)) = (self.0.discovery.get(), self.0.tokens.verify_visit(&call.token)) {
            let own: Vec<MacAddress> = claims.uid.parse().into_iter().collect();
            self.here(&claims, peer, &own).await?;
            let host = discovery.open(&claims, peer, call).await?;
            let session = self.0.tokens.visit_session(&claims);
            return Ok(AgentSession { session, host, generation: 0, now: Timestamp::now().as_second() });
        }
        let claims = self.0.tokens.verify(&call.token).map_err(|error| refuse(error.to_string()))?;
        let host = self.0.index.by_uid(&claims.uid);
        self.here(&claims, peer, host.as_deref().map_or(&[], |host| &host.macs)).await?;
        let answers = self.neighbour(claims.address.filter(|_| !claims.first)).await;
        let host = host.ok_or_else(|| refuse("the host that this token was made for is gone".into()))?;
        if host.ownership.paused {
            // It may be for a moment only: the agent asks again for as long as its token is good.
            let reason = format!("the host is paused by its annotation {ANNOTATION_PAUSED}");
            return Err(AgentRefused(StatusCode::SERVICE_UNAVAILABLE, reason));
        }
        let api = self.api(&host.namespace);
        let noted = changes::retry(|| self.note_opened(&api, &host, (&claims, answers), peer, call));
        noted.await?.ok_or_else(AgentRefused::crowded)?;
        let name = format!("{}/{}", host.namespace, host.name);
        let (logs, begun) = (self.0.logs.clone(), host.clone());
        let begin = move || logs.begin(&begun.namespace, &begun.name, claims.generation);
        if let Ok(Err(error)) = tokio::task::spawn_blocking(begin).await {
            warn!(host = %name, %error, "cannot remove the log of an earlier boot of this number");
        }
        info!(host = %name, %peer, generation = claims.generation, "agent's session opened");
        self.metrics().agents().called(&host.uid, Instant::now());
        Ok(AgentSession {
            session: self.0.tokens.session(&claims),
            host: name,
            generation: claims.generation,
            now: Timestamp::now().as_second(),
        })
    }

    /// Notes in the intent who opens its session, if it may be opened. `answers` is what answers at the address of the claims.
    async fn note_opened(
        &self,
        api: &Api<BootIntent>,
        host: &BootHost,
        (claims, answers): (&BootTokenClaims, ArpAnswers),
        peer: IpAddr,
        call: &OpenSession,
    ) -> Result<(), Unwritten> {
        let refuse = |reason: String| AgentRefused(StatusCode::FORBIDDEN, reason);
        let intent = api.get_opt(&host.name).await?.ok_or_else(|| refuse("the host has no boot intent".into()))?;
        if !intent.is_of(&host.uid) {
            return Err(refuse("the boot intent is that of a former host of this name".into()).into());
        }
        may_open(&intent, claims, peer).map_err(&refuse)?;
        let cards = agent_identity::further_cards(host, &intent, call);
        if let Some(address) = claims.address.filter(|_| !claims.first) {
            let own = [&host.macs[..], &cards].concat();
            another_card(address, answers, &own).map_or(Ok(()), |reason| Err(refuse(reason)))?;
        }
        if let Some(reason) = self.another_machine(host, &intent, call).await? {
            self.end_boot(api, &intent, &reason).await?;
            return Err(refuse(reason).into());
        }
        let now = Time(Timestamp::now());
        let session = SessionStatus {
            generation: claims.generation,
            token_nonce: claims.nonce_hex(),
            address: peer.to_string(),
            opened: Some(now.clone()),
            last_seen: Some(now),
            used: false,
            cards: cards.iter().map(ToString::to_string).collect(),
            network: self.network_of(claims, peer),
        };
        // Results and log of an earlier boot end here.
        let status = BootIntentStatus { session: Some(session), ..BootIntentStatus::default() };
        let changed = BootIntent { status: Some(status), ..intent };
        api.replace_status(&host.name, &PostParams::default(), &changed).await?;
        Ok(())
    }

    /// The network that the machine booted from: its script's, for its ramdisk may have its address from another.
    fn network_of(&self, claims: &BootTokenClaims, peer: IpAddr) -> String {
        let from = claims.address.map_or(peer, IpAddr::V4);
        self.0.networks.get().map_or_else(String::new, |networks| network_of(&networks.get(), from).to_owned())
    }

    /// What answers at an address.
    async fn neighbour(&self, address: Option<Ipv4Addr>) -> ArpAnswers {
        match (self.0.neighbours.get(), address) {
            (Some(neighbours), Some(address)) => neighbours(address).await,
            _ => ArpAnswers::Unseen,
        }
    }

    /// Whether a session is still used by the machine that opened it, as far as its address and the card there say. It may
    /// answer by the host's cards and by these.
    pub(super) async fn still_here(
        &self,
        claims: &BootTokenClaims,
        host: &BootHost,
        cards: &[MacAddress],
        peer: IpAddr,
    ) -> Result<(), AgentRefused> {
        let Some(address) = claims.address.filter(|_| !claims.first) else { return Ok(()) };
        bound_elsewhere(claims, peer, ArpAnswers::Unseen, &host.macs, Timestamp::now().as_second())?;
        let answers = self.neighbour(Some(address)).await;
        let own = [&host.macs[..], cards].concat();
        another_card(address, answers, &own).map_or(Ok(()), |reason| Err(AgentRefused(StatusCode::FORBIDDEN, reason)))
    }

    /// Whether a token may be used from here; the machine has these network cards.
    async fn here(&self, claims: &BootTokenClaims, peer: IpAddr, own: &[MacAddress]) -> Result<(), AgentRefused> {
        let answers = match peer.to_canonical() {
            IpAddr::V4(peer) if claims.first => self.neighbour(Some(peer)).await,
            _ => ArpAnswers::Unseen,
        };
        bound_elsewhere(claims, peer, answers, own, Timestamp::now().as_second())
    }

    /// Why the machine that calls is not the host's.
    async fn another_machine(
        &self,
        host: &BootHost,
        intent: &BootIntent,
        call: &OpenSession,
    ) -> Result<Option<String>, AgentRefused> {
        let hosts = Api::<BareMetalHost>::namespaced(self.0.client.clone(), &host.namespace);
        let stored = hosts.get_opt(&host.name).await?.filter(|stored| stored.uid().as_ref() == Some(&host.uid));
        let stored = stored.ok_or_else(|| AgentRefused(StatusCode::FORBIDDEN, "the host is gone".into()))?;
        let own = agent_identity::addresses(call);
        let contested =
            |(mac, rival): (MacAddress, Arc<BootHost>)| agent_identity::contested(mac, &rival, &host.namespace);
        let rival = || self.0.index.conflicting_host(&host.uid, &own).map(contested);
        Ok(agent_identity::another(&stored, intent, &own).or_else(rival))
    }

    /// Ends a boot before its session: the operator must see why, and not after the deadline only. What a session has
    /// begun it goes on with.
    async fn end_boot(&self, api: &Api<BootIntent>, intent: &BootIntent, reason: &str) -> Result<(), kube::Error> {
        let session = intent.status.as_ref().and_then(|status| status.session.as_ref());
        let Some(step) = next_of(intent, "") else { return Ok(()) };
        if session.is_some_and(|session| session.generation == intent.spec.generation) {
            return Ok(());
        }
        let (id, finished) = (step.id.clone(), Some(Time(Timestamp::now())));
        let result = StepResult { id, succeeded: false, message: reason.to_owned(), finished };
        let status = BootIntentStatus { results: vec![result], ..BootIntentStatus::default() };
        let changed = BootIntent { status: Some(status), ..intent.clone() };
        api.replace_status(&intent.name_any(), &PostParams::default(), &changed).await.map(drop)
    }
}

/// Whether this token may open the session. Once only; but the same machine may repeat a call whose answer got lost,
/// as long as it has done nothing else.
fn may_open(intent: &BootIntent, claims: &BootTokenClaims, peer: IpAddr) -> Result<(), String> {
    if intent.spec.generation != claims.generation || intent.spec.target != BootTarget::Ramdisk {
        return Err(format!(
            "this boot token is for boot {}, and the host is at boot {}: the token has ended",
            claims.generation, intent.spec.generation
        ));
    }
    let session = intent.status.as_ref().and_then(|status| status.session.as_ref());
    let Some(session) = session.filter(|session| session.generation == claims.generation) else { return Ok(()) };
    let repeated = session.token_nonce == claims.nonce_hex() && session.address == peer.to_string() && !session.used;
    if repeated {
        return Ok(());
    }
    Err(format!(
        "this boot's token was used already, from {}: each boot has one session. Reboot the machine through Slipway to get another",
        session.address
    ))
}

/// Why a token that was given to one address is of no use at another. `answers` is what answers ARP at the other, `own` are
/// the machine's cards. Where nobody here gave the first address, the machine may have another by now: its card shows
/// so, and where no card can be seen it has to wait.
pub(super) fn bound_elsewhere(
    claims: &BootTokenClaims,
    peer: IpAddr,
    answers: ArpAnswers,
    own: &[MacAddress],
    now: i64,
) -> Result<(), AgentRefused> {
    let Some(address) = claims.address.filter(|address| peer.to_canonical() != IpAddr::V4(*address)) else {
        return Ok(());
    };
    let reason = format!("this boot's token was given to {address}, and this call comes from {peer}");
    match (claims.first, answers) {
        (true, ArpAnswers::Card(card)) if own.contains(&card) => Ok(()),
        (true, ArpAnswers::Unseen) => match claims.others_wait(now) {
            None => Ok(()),
            // The agent asks again for as long as its token is good.
            Some(left) => {
                let reason = format!("{reason}: it can be used there in {} s", left.as_secs() + 1);
                Err(AgentRefused(StatusCode::SERVICE_UNAVAILABLE, reason))
            }
        },
        _ => Err(AgentRefused(StatusCode::FORBIDDEN, reason)),
    }
}

/// The network cards beside the host's that go with a session; nothing when it has ended.
pub(super) fn cards_of(intent: &BootIntent, claims: &BootTokenClaims) -> Option<Vec<MacAddress>> {
    let session = intent.status.as_ref()?.session.as_ref().filter(|_| is_current(intent, claims))?;
    Some(session.cards.iter().filter_map(|card| card.parse().ok()).collect())
}

/// Digests of the images that a boot's steps name: what its machine may read.
pub(super) fn images_of(intent: &BootIntent) -> Vec<String> {
    intent.spec.steps.iter().filter_map(|step| step.image.clone()).collect()
}

fn is_current(intent: &BootIntent, claims: &BootTokenClaims) -> bool {
    let session = intent.status.as_ref().and_then(|status| status.session.as_ref());
    intent.spec.generation == claims.generation
        && intent.spec.target == BootTarget::Ramdisk
        && session.is_some_and(|s| s.generation == claims.generation && s.token_nonce == claims.nonce_hex())
}
