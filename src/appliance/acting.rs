//! Starting and stopping DHCP and the controllers, with leader election.
//!
//! What acts on machines: DHCP and the controllers. On an API server that several appliances may share, it runs only
//! while this one leads.

use std::sync::Arc;

use anyhow::bail;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{SHUTDOWN_DEADLINE, ServiceEnd, spawn};
use crate::config::EngineConfig;
use crate::engine::election::ElectionTiming;
use crate::engine::leader::{Candidate, identity};
use crate::engine::{External, Fence};
use crate::module::{Acting, Life, RunningLife};
use crate::runtime::Tasks;

/// What acts, and in which API server.
pub(super) struct ActingParts {
    pub engine: EngineConfig,
    pub lives: Arc<[Box<dyn Life>]>,
    pub tasks: Tasks,
}

impl ActingParts {
    /// Starts all that acts.
    pub(super) fn act(&self, services: &mut JoinSet<ServiceEnd>, acting: &Acting) -> anyhow::Result<()> {
        for life in self.lives.iter() {
            life.act(acting)?.into_iter().for_each(|service| spawn(services, service));
        }
        Ok(())
    }

    /// Starts all that answers machines.
    pub(super) fn serve(&self, services: &mut JoinSet<ServiceEnd>, running: &RunningLife) -> anyhow::Result<()> {
        for life in self.lives.iter() {
            life.serve(running)?.into_iter().for_each(|service| spawn(services, service));
        }
        Ok(())
    }

    /// Starts them whenever this appliance leads, and stops them before another may.
    pub(super) async fn run_while_leading(self, external: External, shutdown: CancellationToken) -> anyhow::Result<()> {
        let (tell, mut leads) = watch::channel(None);
        let settings = &self.engine;
        let timing = ElectionTiming::of(settings.lease.0);
        let candidate = Candidate::new(external.client(), &settings.namespace, identity(), timing, tell);
        let withdraw = CancellationToken::new();
        let mut candidacy = JoinSet::new();
        candidacy.spawn(candidate.run(withdraw.clone()));
        let ended = self.terms(&external, &mut leads, &shutdown).await;
        // Only now: whoever takes over must find nothing running here.
        withdraw.cancel();
        while candidacy.join_next().await.is_some() {}
        ended
    }

    async fn terms(
        &self,
        external: &External,
        leads: &mut watch::Receiver<Option<Instant>>,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<()> {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                led = leads.wait_for(|until| until.is_some_and(|until| Instant::now() < until)) => {
                    led?;
                }
            }
            info!("this appliance leads: DHCP and the controllers start");
            external.lead(true);
            let fence = Fence::new(leads.clone());
            let client = external.fenced(fence.clone())?;
            let mut services = JoinSet::new();
            let stop = shutdown.child_token();
            let tasks = self.tasks.clone();
            self.act(&mut services, &Acting { client, fence, tasks, store: None, stop: stop.clone() })?;
            if !term(&mut services, leads, shutdown).await? {
                return Ok(());
            }
            external.lead(false);
            warn!("this appliance does not lead any more: DHCP and the controllers stop");
            stop.cancel();
            // At once, in the middle of whatever they do: the time for a polite end belongs to the next leader.
            services.shutdown().await;
        }
    }
}

/// Runs until the lead is lost (true), or the shutdown is done (false).
async fn term(
    services: &mut JoinSet<ServiceEnd>,
    leads: &mut watch::Receiver<Option<Instant>>,
    shutdown: &CancellationToken,
) -> anyhow::Result<bool> {
    loop {
        let until = *leads.borrow_and_update();
        let Some(until) = until.filter(|until| Instant::now() < *until) else { return Ok(true) };
        tokio::select! {
            () = shutdown.cancelled() => {
                let all = async { while services.join_next().await.is_some() {} };
                if timeout(SHUTDOWN_DEADLINE / 2, all).await.is_err() {
                    warn!("the controllers did not end in time: they were cut off");
                    services.shutdown().await;
                }
                return Ok(false);
            }
            () = sleep_until(until) => {}
            told = leads.changed() => told?,
            ended = services.join_next() => match ended {
                Some(Ok((name, Ok(())))) => bail!("{name} ended by itself"),
                Some(Ok((name, Err(error)))) => return Err(error.context(name)),
                Some(Err(panic)) => bail!("a controller panicked: {panic}"),
                None => bail!("no controller runs"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::module::service;

    #[tokio::test]
    async fn a_term_ends_with_the_lead_the_shutdown_or_a_fault() {
        let long = || Some(Instant::now() + Duration::from_secs(3600));
        let shutdown = CancellationToken::new();
        let (tell, mut leads) = watch::channel(Some(Instant::now() + Duration::from_millis(20)));
        let mut services = JoinSet::new();
        spawn(&mut services, service("forever", std::future::pending()));
        assert!(term(&mut services, &mut leads, &shutdown).await.unwrap(), "not renewed");

        // Renewed, then lost to another.
        tell.send_replace(long());
        let others = async {
            tokio::task::yield_now().await;
            tell.send_replace(long());
            tokio::task::yield_now().await;
            tell.send_replace(None);
        };
        let (lost, ()) = tokio::join!(term(&mut services, &mut leads, &shutdown), others);
        assert!(lost.unwrap());

        tell.send_replace(long());
        spawn(&mut services, service("short", async {}));
        let error = term(&mut services, &mut leads, &shutdown).await.unwrap_err();
        assert_eq!(error.to_string(), "short ended by itself");

        let mut polite = JoinSet::new();
        let stop = shutdown.child_token();
        spawn(&mut polite, service("polite", async move { stop.cancelled().await }));
        shutdown.cancel();
        assert!(!term(&mut polite, &mut leads, &shutdown).await.unwrap());
        assert!(polite.is_empty());
    }
}
