//! Progress of the hosts of a run, by a watch as any client has it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::objects::LABEL;
use super::plan::Goal;
use crate::api::metal3::{BareMetalHost, ProvisioningState};
use crate::runtime::{self, WatchChange};

/// Of a BareMetalHost what is followed.
#[derive(Clone, Debug, Deserialize)]
struct WatchedHost {
    metadata: ObjectMeta,
    #[serde(default)]
    status: FollowedStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FollowedStatus {
    #[serde(default)]
    error_type: Option<String>,
    #[serde(default)]
    error_message: String,
    #[serde(default)]
    error_count: i64,
    #[serde(default)]
    provisioning: FollowedProvisioning,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct FollowedProvisioning {
    #[serde(default)]
    state: ProvisioningState,
}

impl Resource for WatchedHost {
    type DynamicType = ();
    type Scope = <BareMetalHost as Resource>::Scope;

    fn kind((): &()) -> std::borrow::Cow<'_, str> {
        BareMetalHost::kind(&())
    }

    fn group((): &()) -> std::borrow::Cow<'_, str> {
        BareMetalHost::group(&())
    }

    fn version((): &()) -> std::borrow::Cow<'_, str> {
        BareMetalHost::version(&())
    }

    fn plural((): &()) -> std::borrow::Cow<'_, str> {
        BareMetalHost::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// A host as it is now.
#[derive(Clone, Debug)]
pub struct SimulatedHost {
    /// Its state; none when it is gone.
    pub state: Option<ProvisioningState>,
    /// What is wrong with it.
    pub error: Option<String>,
    /// Errors that it had so far.
    pub errors: u64,
    error_count: i64,
    /// When it reached each goal first.
    pub reached: BTreeMap<Goal, Instant>,
}

/// All hosts.
#[derive(Default)]
pub struct HostTable {
    hosts: HashMap<String, SimulatedHost>,
    goal: Option<Goal>,
    arrived: usize,
}

/// The hosts of a run. Cheap to clone.
#[derive(Clone)]
pub struct FollowedHosts {
    table: Arc<Mutex<HostTable>>,
    arrived: watch::Sender<usize>,
    run: String,
}

impl FollowedHosts {
    /// Hosts of a run with these names, none of them there yet.
    pub fn new(names: &[String], run: &str) -> Self {
        let new = SimulatedHost { state: None, error: None, errors: 0, error_count: 0, reached: BTreeMap::new() };
        let hosts = names.iter().map(|name| (name.clone(), new.clone())).collect();
        let table = Arc::new(Mutex::new(HostTable { hosts, goal: None, arrived: 0 }));
        Self { table, arrived: watch::Sender::new(0), run: run.to_owned() }
    }

    fn table(&self) -> MutexGuard<'_, HostTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a goal from now on.
    pub fn aim(&self, goal: Goal) {
        let mut table = self.table();
        let now = Instant::now();
        table.goal = Some(goal);
        let there = table.hosts.values_mut().filter_map(|host| host.arrive(goal, now)).count();
        table.arrived = there;
        self.arrived.send_replace(there);
    }

    /// Waits until every host has arrived.
    pub async fn all_arrived(&self) {
        let all = self.table().hosts.len();
        let mut arrived = self.arrived.subscribe();
        // The sender lives as long as this.
        arrived.wait_for(|arrived| *arrived >= all).await.ok();
    }

    /// Every host by name.
    pub fn all(&self) -> BTreeMap<String, SimulatedHost> {
        self.table().hosts.iter().map(|(name, host)| (name.clone(), host.clone())).collect()
    }

    /// Hosts in all; how many have arrived; how many are in each state; how many have an error; errors so far.
    pub fn tally(&self) -> Tally {
        let table = self.table();
        let mut tally = Tally { hosts: table.hosts.len(), arrived: table.arrived, ..Tally::default() };
        for (name, host) in &table.hosts {
            let state = host.state.map_or("not there", |state| match state.as_str() {
                "" => "new",
                state => state,
            });
            *tally.states.entry(state).or_default() += 1;
            tally.failing += usize::from(host.error.is_some());
            if tally.error.is_none() {
                tally.error = host.error.as_ref().map(|error| format!("{name}: {error}"));
            }
            tally.errors += host.errors;
        }
        tally
    }

    /// Follows the hosts of a namespace until the token is cancelled.
    pub async fn follow(self, client: Client, namespace: String, token: CancellationToken) {
        let observe = move |change: &WatchChange<'_, WatchedHost>| match change {
            WatchChange::Put(seen) => self.see(seen),
            WatchChange::Gone((_, name)) => self.forget(name),
            WatchChange::Listed => {}
        };
        runtime::watch(Api::namespaced(client, &namespace), observe, token).await;
    }

    fn see(&self, seen: &WatchedHost) {
        if seen.labels().get(LABEL) != Some(&self.run) {
            // Somebody else's, of the same name: the run's own is gone.
            return self.forget(&seen.name_any());
        }
        let now = Instant::now();
        let mut table = self.table();
        let goal = table.goal;
        let Some(host) = table.hosts.get_mut(&seen.name_any()) else { return };
        let status = &seen.status;
        host.errors += u64::from(status.error_count > host.error_count);
        host.error_count = status.error_count;
        host.error = status.error_type.as_ref().map(|kind| format!("{kind}: {}", status.error_message));
        host.state = Some(status.provisioning.state);
        let arrived = goal.and_then(|goal| host.arrive(goal, now)).is_some();
        self.count(&mut table, arrived);
    }

    fn forget(&self, name: &str) {
        let now = Instant::now();
        let mut table = self.table();
        let goal = table.goal;
        let Some(host) = table.hosts.get_mut(name) else { return };
        host.state = None;
        host.error = None;
        let arrived = goal.and_then(|goal| host.arrive(goal, now)).is_some();
        self.count(&mut table, arrived);
    }

    fn count(&self, table: &mut HostTable, arrived: bool) {
        if arrived {
            table.arrived += 1;
            self.arrived.send_replace(table.arrived);
        }
    }
}

impl SimulatedHost {
    /// Notes that the goal is reached; `Some` when it is now and was not before.
    fn arrive(&mut self, goal: Goal, now: Instant) -> Option<()> {
        use ProvisioningState::{Available, Provisioned, Provisioning, Ready};
        let there = match goal {
            // A host with an image goes on at once.
            Goal::Available => matches!(self.state, Some(Available | Ready | Provisioning | Provisioned)),
            Goal::Deprovisioned => matches!(self.state, Some(Available | Ready)),
            Goal::Provisioned => self.state == Some(Provisioned),
            Goal::Deleted => self.state.is_none(),
        };
        if !there || self.reached.contains_key(&goal) {
            return None;
        }
        self.reached.insert(goal, now);
        Some(())
    }
}

/// How far all are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Hosts.
    pub hosts: usize,
    /// Hosts that reached the goal.
    pub arrived: usize,
    /// Hosts in each state.
    pub states: BTreeMap<&'static str, usize>,
    /// Hosts that show an error now.
    pub failing: usize,
    /// The error of the first of them, with its name.
    pub error: Option<String>,
    /// Errors that hosts had so far.
    pub errors: u64,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(name: &str, state: &str, errors: i64) -> WatchedHost {
        let error = (errors > 0).then_some("registration error");
        serde_json::from_value(json!({
            "metadata": { "name": name, "labels": { LABEL: "run" } },
            "status": { "provisioning": { "state": state }, "errorCount": errors, "errorType": error, "errorMessage": "no" }
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn hosts_arrive_once_and_what_a_list_leaves_out_is_gone() {
        let names = ["a".to_owned(), "b".to_owned()];
        let hosts = FollowedHosts::new(&names, "run");
        hosts.aim(Goal::Provisioned);
        hosts.see(&seen("stranger", "provisioned", 0));
        hosts.see(&seen("a", "registering", 1));
        hosts.see(&seen("a", "registering", 1));
        assert_eq!((hosts.tally().failing, hosts.tally().errors), (1, 1));
        assert_eq!(hosts.tally().error.as_deref(), Some("a: registration error: no"));
        hosts.see(&seen("a", "provisioned", 0));
        hosts.see(&seen("a", "provisioned", 0));
        let tally = hosts.tally();
        assert_eq!((tally.arrived, tally.hosts, tally.failing, tally.errors), (1, 2, 0, 1));
        assert_eq!(tally.states, [("not there", 1), ("provisioned", 1)].into());
        hosts.see(&seen("b", "provisioned", 0));
        hosts.all_arrived().await;

        hosts.aim(Goal::Deleted);
        assert_eq!(hosts.tally().arrived, 0);
        hosts.forget("a");
        assert_eq!(hosts.tally().arrived, 1);
        let mut other = seen("b", "provisioned", 0);
        other.metadata.labels = None;
        hosts.see(&other);
        hosts.all_arrived().await;
    }
}
