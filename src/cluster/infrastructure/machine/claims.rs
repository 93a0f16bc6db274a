//! Hosts that machines are about to take: machines that are looked at at the same time do not all go for the same one.
//!
//! Whose a host is is in the host, and it is taken in the very version that was read. What is here only spares the attempts
//! that would fail.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cluster::infrastructure::choose::{Candidate, Choice, Consumer, HardwareView, HostView, Way, Wish, choose};
use crate::runtime::{Cache, Key, key};

/// The hosts to choose from. Cheap to clone.
#[derive(Clone)]
pub struct Hosts {
    hosts: Cache<HostView>,
    hardware: Cache<HardwareView>,
    /// Which machine is about to take which host.
    taken: Arc<Mutex<HashMap<Key, Key>>>,
}

/// There is no host now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoHost {
    /// Why not.
    pub why: String,
    /// Whether others were about to take hosts, which may come to nothing.
    pub is_passing: bool,
}

impl Hosts {
    /// Those in the caches.
    pub fn new(hosts: Cache<HostView>, hardware: Cache<HardwareView>) -> Self {
        Self { hosts, hardware, taken: Arc::default() }
    }

    /// Chooses a host for a machine, which is about to take it then.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub fn pick(&self, wish: &Wish) -> Result<(String, Way), NoHost> {
        let machine = (wish.namespace.clone(), wish.name.clone());
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_taken =
            |host: &Key| self.hosts.get(host).is_some_and(|host| !matches!(host.consumer, Consumer::Machine { .. }));
        taken.retain(|host, by| *by != machine && is_taken(host));
        let hosts = self.hosts.all();
        let near = hosts.iter().filter(|host| host.metadata.namespace.as_ref() == Some(&wish.namespace));
        let hardware: Vec<_> = near.map(|host| (host, self.hardware.get(&key(host.as_ref())))).collect();
        let candidates: Vec<Candidate<'_>> = hardware
            .iter()
            .map(|(host, inspected)| Candidate {
                host,
                capacity: inspected.as_ref().and_then(|one| one.capacity.as_ref()).or(host.capacity.as_ref()),
                taken: taken.contains_key(&key(host.as_ref())),
            })
            .collect();
        match choose(wish, &candidates) {
            Choice::Host(name, way) => {
                taken.insert((wish.namespace.clone(), name.to_owned()), machine);
                Ok((name.to_owned(), way))
            }
            Choice::None(why) => Err(NoHost { why, is_passing: candidates.iter().any(|one| one.taken) }),
        }
    }

    /// A machine takes nothing any more.
    pub fn forget(&self, machine: &Key) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, by| by != machine);
    }

    /// What inspection found of a host.
    pub fn hardware(&self, host: &Key) -> Option<Arc<HardwareView>> {
        self.hardware.get(host)
    }

    /// The host that a machine has, as far as is known.
    pub fn of(&self, (namespace, name): &Key) -> Option<String> {
        let all = self.hosts.all();
        let its = all.iter().find(|host| {
            host.metadata.namespace.as_ref() == Some(namespace) && host.consumer.is_machine(namespace, name)
        })?;
        its.metadata.name.clone()
    }
}
