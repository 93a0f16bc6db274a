//! The configurations that are in force, read when they were written, and what calls of them are under way.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::hook::{Asked, Hook};
use super::kinds::{MUTATING, VALIDATING};
use crate::config::WebhooksConfig;
use crate::live::Live;
use crate::store::{Object, Store};

/// Calls under way of one configuration, so that a slow webhook has no more of the appliance than that.
const CALLS: usize = 16;
/// Requests that wait for webhooks, of all configurations: half of the writes that are under way at once.
const REQUESTS: usize = 100;

/// What the server knows of webhooks.
pub(in crate::apiserver) struct Webhooks {
    settings: OnceLock<Live<WebhooksConfig>>,
    /// Those that mutate, and those that validate.
    // std's lock: held to look and to exchange.
    known: [Mutex<Arc<[Arc<Configuration>]>>; 2],
    requests: Arc<Semaphore>,
}

/// One configuration.
#[derive(Debug)]
pub(in crate::apiserver) struct Configuration {
    /// Its name.
    pub name: String,
    /// Its webhooks.
    pub hooks: Vec<Hook>,
    /// Places of its calls.
    pub calls: Semaphore,
    revision: u64,
}

impl Default for Webhooks {
    fn default() -> Self {
        let none = || Mutex::new(Arc::from([]));
        Self { settings: OnceLock::new(), known: [none(), none()], requests: Arc::new(Semaphore::new(REQUESTS)) }
    }
}

impl Webhooks {
    /// Goes by these settings from now on. Others are not taken later.
    pub fn set(&self, settings: Live<WebhooksConfig>) {
        self.settings.set(settings).ok();
    }

    /// The settings that hold now; without any, nothing is allowed.
    pub fn settings(&self) -> Arc<WebhooksConfig> {
        self.settings.get().map_or_else(Arc::default, Live::get)
    }

    /// The configurations in order of their names.
    pub fn in_force(&self, store: &Store, mutating: bool) -> Arc<[Arc<Configuration>]> {
        let objects = store.list(if mutating { MUTATING } else { VALIDATING }, None).objects;
        let mut known = self.known[usize::from(mutating)].lock().unwrap_or_else(PoisonError::into_inner);
        let same = |(one, object): (&Arc<Configuration>, &Arc<Object>)| one.is(object);
        if known.len() != objects.len() || !known.iter().zip(&objects).all(same) {
            let made = objects.iter().map(|object| {
                let before = known.iter().find(|one| one.is(object));
                before.map_or_else(|| Arc::new(Configuration::of(object)), Arc::clone)
            });
            *known = made.collect();
        }
        Arc::clone(&known)
    }

    /// A place for a request that waits for webhooks; nothing when too many do.
    pub fn wait(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.requests).try_acquire_owned().ok()
    }
}

impl Configuration {
    fn of(object: &Object) -> Self {
        let value = object.value();
        let hooks = value["webhooks"].as_array().into_iter().flatten().map(Hook::of).collect();
        Self { name: object.name.clone(), hooks, calls: Semaphore::new(CALLS), revision: object.revision }
    }

    fn is(&self, object: &Object) -> bool {
        self.revision == object.revision && self.name == object.name
    }

    /// Whether the rules of any of its webhooks name a request.
    pub(super) fn names(&self, asked: &[Asked<'_>]) -> bool {
        let by = |hook: &Hook| {
            let versions = if hook.takes_equivalents() { asked } else { &asked[..asked.len().min(1)] };
            versions.iter().any(|one| hook.names(one))
        };
        self.hooks.iter().any(by)
    }
}
