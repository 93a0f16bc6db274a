//! Boots that were refused, told as events of their hosts: whoever owns a host seldom reads the appliance's log.
//!
//! Who asks in a machine's name may be anybody: a host has one such event a minute at most, and as many hosts wait as are
//! kept here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Client, Resource};
use tokio_util::sync::CancellationToken;

use crate::api::metal3::BareMetalHost;
use crate::boot::BootHost;
use crate::host::COMPONENT;
use crate::runtime::{Note, SupervisedTask, events};

/// How often it is looked for refusals that nobody was told of.
const LOOK: Duration = Duration::from_secs(5);
/// Time between two events of a host.
const PAUSE: Duration = Duration::from_secs(60);
/// Hosts that are kept. Of a further one the log tells only.
const HOSTS: usize = 1024;

/// Refusals that hosts are told of. Cheap to clone.
#[derive(Clone, Default)]
pub struct BootRefusals(Arc<Mutex<HashMap<String, BootRefusal>>>);

struct BootRefusal {
    host: ObjectReference,
    /// Empty: nothing is to be told.
    reason: String,
    /// When somebody was refused last.
    at: Instant,
    told: Option<Instant>,
}

impl BootRefusals {
    /// Somebody was refused a boot in the name of the host's machine.
    pub fn take(&self, host: &BootHost, reason: &str) {
        take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), host, reason, Instant::now());
    }
}

fn take(hosts: &mut HashMap<String, BootRefusal>, host: &BootHost, reason: &str, now: Instant) {
    let fresh = |refusal: &BootRefusal| now.saturating_duration_since(refusal.at) < PAUSE;
    if hosts.len() >= HOSTS && !hosts.contains_key(&host.uid) {
        hosts.retain(|_, refusal| fresh(refusal));
        if hosts.len() >= HOSTS {
            return;
        }
    }
    let refusal = hosts.entry(host.uid.clone()).or_insert_with(|| BootRefusal {
        host: ObjectReference {
            namespace: Some(host.namespace.clone()),
            name: Some(host.name.clone()),
            uid: Some(host.uid.clone()),
            ..BareMetalHost::new(&host.name, Default::default()).object_ref(&())
        },
        reason: String::new(),
        at: now,
        told: None,
    });
    (refusal.reason, refusal.at) = (reason.to_owned(), now);
}

/// What is to be told now.
fn due(hosts: &mut HashMap<String, BootRefusal>, now: Instant) -> Vec<(ObjectReference, Note)> {
    let long_ago = |time: Instant| now.saturating_duration_since(time) >= PAUSE;
    // What nobody told for so long, because another appliance leads, is news no more.
    hosts.retain(|_, refusal| !long_ago(refusal.at) || refusal.told.is_some_and(|told| !long_ago(told)));
    let waiting = hosts.values_mut().filter(|refusal| !refusal.reason.is_empty() && refusal.told.is_none_or(long_ago));
    waiting
        .map(|refusal| {
            refusal.told = Some(now);
            let message = format!("A boot of the machine was refused: {}", std::mem::take(&mut refusal.reason));
            (refusal.host.clone(), Note { reason: "BootRefused", message, warning: true })
        })
        .collect()
}

/// Tells hosts until the shutdown. Each look is a run of the task.
pub(in crate::host) async fn run(
    client: Client,
    refusals: BootRefusals,
    task: SupervisedTask,
    shutdown: CancellationToken,
) {
    let tell = async || {
        let news = due(&mut refusals.0.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        let mut stored = Ok(());
        for (host, note) in news {
            stored = events::store(&client, COMPONENT, &host, &note).await.and(stored);
        }
        stored
    };
    task.every(LOOK, &shutdown, tell).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: usize) -> BootHost {
        BootHost {
            namespace: "rack".into(),
            name: format!("h{number}"),
            uid: format!("uid-{number}"),
            created: 0,
            macs: Vec::new(),
            boot_interface: Default::default(),
            intent: None,
            discovery: Default::default(),
            ownership: Default::default(),
        }
    }

    fn told(hosts: &mut HashMap<String, BootRefusal>, now: Instant) -> Vec<String> {
        due(hosts, now).into_iter().map(|(_, note)| note.message).collect()
    }

    #[test]
    fn a_host_is_told_at_once_and_then_once_a_minute_of_the_last_reason() {
        let (mut hosts, start) = (HashMap::new(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        take(&mut hosts, &host(1), "first", start);
        take(&mut hosts, &host(1), "second", start);
        let events = due(&mut hosts, start);
        let (object, note) = &events[0];
        assert_eq!((events.len(), note.message.as_str()), (1, "A boot of the machine was refused: second"));
        assert_eq!(
            [&object.kind, &object.namespace, &object.name, &object.uid].map(|text| text.as_deref().unwrap_or("")),
            ["BareMetalHost", "rack", "h1", "uid-1"]
        );
        take(&mut hosts, &host(1), "third", after(50));
        assert!(told(&mut hosts, after(59)).is_empty());
        assert_eq!(told(&mut hosts, after(60)), ["A boot of the machine was refused: third"]);
        assert!(told(&mut hosts, after(120)).is_empty() && hosts.is_empty());
    }

    #[test]
    fn as_many_hosts_are_kept_and_old_ones_make_room() {
        let (mut hosts, start) = (HashMap::new(), Instant::now());
        (0..HOSTS + 5).for_each(|number| take(&mut hosts, &host(number), "no", start));
        assert_eq!(hosts.len(), HOSTS);
        assert_eq!(due(&mut hosts, start).len(), HOSTS);
        take(&mut hosts, &host(HOSTS), "no", start + PAUSE);
        assert_eq!(told(&mut hosts, start + PAUSE).len(), 1);
    }
}
