//! The leader election loop: reads and writes the Lease until told to stop.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::election::{Election, ElectionTiming, LeaseDecision, LeaseRecord};
use super::fence::LeadsUntil;

/// Name of the Lease.
const NAME: &str = "slipway";

/// An appliance that wants to lead.
pub struct Candidate {
    leases: Api<Lease>,
    election: Election,
    timing: ElectionTiming,
    tell: watch::Sender<LeadsUntil>,
}

/// A name for this process among all that take part.
pub fn identity() -> String {
    let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    format!("{host}_{}", uuid::Uuid::new_v4())
}

impl Candidate {
    /// A candidate for the Lease `slipway` in a namespace; who listens to `tell` learns until when it leads.
    pub fn new(
        client: Client,
        namespace: &str,
        identity: String,
        timing: ElectionTiming,
        tell: watch::Sender<LeadsUntil>,
    ) -> Self {
        let leases = Api::namespaced(client, namespace);
        Self { leases, election: Election::new(identity, timing), timing, tell }
    }

    /// Takes and renews the lease until told to stop, and gives it back then.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut said = String::new();
        // A request that hangs must not cost the lead: there is time for several.
        let patience = self.timing.retry * 2;
        while !stop.is_cancelled() {
            let look = timeout(patience, self.look()).await;
            let said_now = match &look {
                Ok(Ok(holder)) => holder.clone().unwrap_or_default(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            self.tell.send_replace(self.election.leads_until());
            if said_now != said {
                match &look {
                    Ok(Ok(Some(holder))) => {
                        tracing::info!(lease = NAME, %holder, "another appliance leads: this one waits");
                    }
                    Ok(Ok(None)) => {}
                    Ok(Err(error)) => tracing::warn!(lease = NAME, %error, "the lease cannot be read or written"),
                    Err(_) => tracing::warn!(lease = NAME, "the API server does not answer when asked for the lease"),
                }
                said = said_now;
            }
            tokio::select! {
                () = sleep(self.timing.retry) => {}
                () = stop.cancelled() => {}
            }
        }
        self.tell.send_replace(None);
        match timeout(patience, self.release()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "cannot give the lease back: it ends by itself"),
            Err(_) => tracing::warn!("cannot give the lease back in time: it ends by itself"),
        }
    }

    /// One look, and one write when it is due. Who holds the lease, when it is somebody else.
    async fn look(&mut self) -> Result<Option<String>, kube::Error> {
        let stored = self.leases.get_opt(NAME).await?;
        let record = stored.as_ref().map(read);
        // The lead counts from before the write.
        let asked = Instant::now();
        let LeaseDecision::Write(wanted) = self.election.decide(asked, Timestamp::now(), record.as_ref()) else {
            return Ok(record.map(|record| record.holder));
        };
        let parameters = PostParams::default();
        let result = match stored {
            None => self.leases.create(&parameters, &write(None, &wanted)).await,
            Some(stored) => self.leases.replace(NAME, &parameters, &write(Some(stored), &wanted)).await,
        };
        match result {
            Ok(_) => self.election.written(asked),
            // Another was faster; the next look sees who.
            Err(kube::Error::Api(status)) if matches!(status.code, 409) => {}
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    async fn release(&mut self) -> Result<(), kube::Error> {
        let Some(stored) = self.leases.get_opt(NAME).await? else { return Ok(()) };
        if let Some(record) = self.election.released(Timestamp::now(), &read(&stored)) {
            self.leases.replace(NAME, &PostParams::default(), &write(Some(stored), &record)).await?;
        }
        Ok(())
    }
}

fn read(lease: &Lease) -> LeaseRecord {
    let spec = lease.spec.clone().unwrap_or_default();
    LeaseRecord {
        holder: spec.holder_identity.unwrap_or_default(),
        acquired: spec.acquire_time.map(|time| time.0),
        renewed: spec.renew_time.map(|time| time.0),
        duration: Duration::from_secs(spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(0)),
        transitions: spec.lease_transitions.unwrap_or_default(),
    }
}

/// The Lease with this record in it; what else it has stays.
fn write(stored: Option<Lease>, record: &LeaseRecord) -> Lease {
    let mut lease = stored.unwrap_or_else(|| Lease {
        metadata: ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() },
        ..Lease::default()
    });
    let rounded = |duration: Duration| i32::try_from(duration.as_secs().max(1)).unwrap_or(i32::MAX);
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(record.holder.clone()),
        acquire_time: record.acquired.map(MicroTime),
        renew_time: record.renewed.map(MicroTime),
        lease_duration_seconds: Some(rounded(record.duration)),
        lease_transitions: Some(record.transitions),
        ..lease.spec.unwrap_or_default()
    });
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_keeps_what_is_written() {
        let record = LeaseRecord {
            holder: "a".into(),
            acquired: Some("2026-01-01T00:00:00.5Z".parse().unwrap()),
            renewed: Some("2026-01-01T00:00:01Z".parse().unwrap()),
            duration: Duration::from_secs(15),
            transitions: 3,
        };
        let lease = write(None, &record);
        assert_eq!(read(&lease), record);
        let mut marked = lease;
        marked.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
        let next = LeaseRecord { holder: "b".into(), ..record };
        let written = write(Some(marked.clone()), &next);
        assert_eq!((read(&written), &written.metadata.labels), (next, &marked.metadata.labels));
        assert_eq!(read(&Lease::default()).holder, "");
    }
}
