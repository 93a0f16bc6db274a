//! The configurations that are in force, and what calls of them are under way.
//!
//! They are read when they were written, off the threads that serve, and let go with their deletion. What a write has to ask
//! is found by the resource that it is about. All of them together are bounded ([`weight`]): what is beyond is refused, and
//! what is there of a store from before is not read, which the log says.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::super::shares::caller_shares::{CallerShare, CallerShares};
use super::calls::Calls;
use super::hook::Hook;
use super::kinds::{MUTATING, VALIDATING};
use super::weight::{self, Size};
use crate::config::WebhooksConfig;
use crate::live::Live;
use crate::store::{Object, Store, StoreWriteError};

/// Calls under way of one configuration, so that a slow webhook has no more of the appliance than that.
const CALLS: usize = 16;
/// Requests that wait for webhooks, of all configurations: half of the writes that are under way at once.
pub(in crate::apiserver) const REQUESTS: usize = 100;

/// Kinds of configurations in the store.
const KINDS: [&str; 2] = [MUTATING, VALIDATING];

/// What the server knows of webhooks.
pub(in crate::apiserver) struct Webhooks {
    settings: OnceLock<Live<WebhooksConfig>>,
    // std's lock: held to look and to exchange.
    in_force: Mutex<Arc<EffectiveConfigurations>>,
    /// Held while a configuration is written and read.
    pub(super) known: tokio::sync::Mutex<KnownConfigurations>,
    requests: CallerShares,
}

/// The configurations that are in force.
#[derive(Debug, Default)]
pub(in crate::apiserver) struct EffectiveConfigurations {
    /// Those that mutate.
    pub mutating: Configurations,
    /// Those that validate.
    pub validating: Configurations,
}

/// Configurations of one kind, in order of their names.
#[derive(Debug, Default)]
pub(in crate::apiserver) struct Configurations {
    all: Vec<Arc<Configuration>>,
    /// Webhooks by the resources that their rules name, by place of the configuration and in it.
    by_resource: HashMap<String, Vec<(usize, usize)>>,
    /// Webhooks whose rules name every resource.
    of_every: Vec<(usize, usize)>,
}

/// One webhook of a configuration.
#[derive(Clone, Debug)]
pub(in crate::apiserver) struct ConfiguredHook {
    /// Its configuration.
    pub configuration: Arc<Configuration>,
    index: usize,
}

/// One configuration.
#[derive(Debug)]
pub(in crate::apiserver) struct Configuration {
    /// Its name.
    pub name: String,
    /// Its webhooks.
    pub hooks: Vec<Hook>,
    /// Places of its calls.
    pub(super) calls: Calls,
}

/// All configurations, by name, as they were last read.
pub(super) struct KnownConfigurations {
    kinds: [HashMap<String, ReadConfiguration>; 2],
    most: Size,
}

/// One configuration as it was read.
struct ReadConfiguration {
    revision: u64,
    size: Size,
    /// Nothing when it is not in force.
    configuration: Option<Arc<Configuration>>,
}

impl Default for Webhooks {
    fn default() -> Self {
        Self {
            settings: OnceLock::new(),
            in_force: Mutex::default(),
            known: tokio::sync::Mutex::default(),
            requests: CallerShares::new(REQUESTS),
        }
    }
}

impl Default for KnownConfigurations {
    fn default() -> Self {
        Self { kinds: Default::default(), most: weight::MOST }
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

    /// The configurations that are in force.
    pub fn in_force(&self) -> Arc<EffectiveConfigurations> {
        Arc::clone(&self.in_force.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A place for a request of a user that waits for webhooks; nothing when too many do.
    pub fn wait(&self, user: &str) -> Option<CallerShare> {
        self.requests.take(user, 1)
    }

    /// How many webhooks there may be.
    #[cfg(test)]
    pub async fn set_most(&self, hooks: usize) {
        self.known.lock().await.most.hooks = hooks;
    }

    /// Reads what was written since the last time.
    pub(super) async fn read(&self, known: &mut KnownConfigurations, store: &Store) {
        let objects = KINDS.map(|kind| store.list(kind, None).objects);
        let mut own = mem::replace(known, KnownConfigurations { kinds: Default::default(), most: known.most });
        let read = tokio::task::spawn_blocking(move || {
            let in_force = own.read(&objects);
            (own, in_force)
        });
        match read.await {
            Ok((own, in_force)) => {
                *known = own;
                *self.in_force.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(in_force);
            }
            // All of them are read anew with the next one.
            Err(error) => tracing::error!(%error, "cannot read the configurations of webhooks"),
        }
    }
}

impl KnownConfigurations {
    /// Whether a configuration may become this large. One that takes no more than before always may.
    pub fn check_room(&self, kind: &str, name: &str, wanted: Size) -> Result<(), StoreWriteError> {
        let known = KINDS.iter().zip(&self.kinds).find(|(one, _)| **one == kind).and_then(|(_, known)| known.get(name));
        let before = known.map_or_else(Size::default, |known| known.size);
        if wanted.is_within(before) {
            return Ok(());
        }
        let all: Size = self.kinds.iter().flat_map(HashMap::values).map(|known| known.size).sum();
        let after =
            Size { hooks: all.hooks - before.hooks + wanted.hooks, bytes: all.bytes - before.bytes + wanted.bytes };
        if after.hooks > self.most.hooks && wanted.hooks > before.hooks {
            return Err(StoreWriteError::TooMany { what: "webhooks of configurations", most: self.most.hooks });
        }
        if after.bytes > self.most.bytes && wanted.bytes > before.bytes {
            let whose = "webhook configurations together".to_owned();
            return Err(StoreWriteError::Crowded { whose, limit: self.most.bytes >> 20 });
        }
        Ok(())
    }

    fn read(&mut self, objects: &[Vec<Arc<Object>>; 2]) -> EffectiveConfigurations {
        let mut before = mem::take(&mut self.kinds);
        // What was in force goes first, however it is called.
        let mut changed: [Vec<(bool, &Object)>; 2] = Default::default();
        for (kind, objects) in objects.iter().enumerate() {
            for object in objects {
                match before[kind].remove(&object.name) {
                    Some(read) if read.revision == object.revision => {
                        self.kinds[kind].insert(object.name.clone(), read);
                    }
                    former => {
                        let was_in_force = former.is_some_and(|former| former.configuration.is_some());
                        changed[kind].push((was_in_force, object));
                    }
                }
            }
        }
        drop(before);
        for was_in_force in [true, false] {
            for (kind, changed) in changed.iter().enumerate() {
                for (_, object) in changed.iter().filter(|(was, _)| *was == was_in_force) {
                    self.take(kind, object);
                }
            }
        }
        self.take_what_waits(objects);
        let [mutating, validating] = [0, 1].map(|kind| {
            let read = objects[kind].iter().filter_map(|object| self.kinds[kind].get(&object.name));
            Configurations::of(read.filter_map(|read| read.configuration.clone()).collect())
        });
        EffectiveConfigurations { mutating, validating }
    }

    /// Reads one that was written, as far as there is room.
    fn take(&mut self, kind: usize, object: &Object) {
        let value = object.value();
        let size = weight::of(&value);
        let fits = (self.in_force() + size).is_within(self.most);
        if !fits {
            tracing::error!(
                configuration = object.name,
                webhooks = size.hooks,
                most_webhooks = self.most.hooks,
                most_mib = self.most.bytes >> 20,
                "a configuration of webhooks is not in force: there are more than there may be; delete some of them"
            );
        }
        let configuration = fits.then(|| Arc::new(Configuration::of(&object.name, &value)));
        self.kinds[kind]
            .insert(object.name.clone(), ReadConfiguration { revision: object.revision, size, configuration });
    }

    /// Puts those into force for which there was no room before.
    fn take_what_waits(&mut self, objects: &[Vec<Arc<Object>>; 2]) {
        for (kind, objects) in objects.iter().enumerate() {
            for object in objects {
                let waits = self.kinds[kind].get(&object.name).filter(|read| read.configuration.is_none());
                let Some(size) = waits.map(|read| read.size) else { continue };
                if (self.in_force() + size).is_within(self.most) {
                    tracing::info!(configuration = object.name, "a configuration of webhooks is in force now");
                    self.take(kind, object);
                }
            }
        }
    }

    /// What is in force, all together.
    fn in_force(&self) -> Size {
        let all = self.kinds.iter().flat_map(HashMap::values);
        all.filter(|read| read.configuration.is_some()).map(|read| read.size).sum()
    }
}

impl EffectiveConfigurations {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.mutating.all.is_empty() && self.validating.all.is_empty()
    }

    /// Webhooks of all of them.
    #[cfg(test)]
    pub fn hooks(&self) -> usize {
        [&self.mutating, &self.validating].into_iter().flat_map(|kind| &kind.all).map(|one| one.hooks.len()).sum()
    }
}

impl Configurations {
    fn of(all: Vec<Arc<Configuration>>) -> Self {
        let (mut by_resource, mut of_every) = (HashMap::<String, Vec<(usize, usize)>>::new(), Vec::new());
        for (at, configuration) in all.iter().enumerate() {
            for (index, hook) in configuration.hooks.iter().enumerate() {
                let named = hook.resources();
                if named.contains("*") {
                    of_every.push((at, index));
                    continue;
                }
                for resource in named {
                    by_resource.entry(resource.to_owned()).or_default().push((at, index));
                }
            }
        }
        Self { all, by_resource, of_every }
    }

    /// Webhooks whose rules may name any of these resources, in order.
    pub fn about<'c>(&'c self, resources: impl Iterator<Item = &'c str>) -> impl Iterator<Item = ConfiguredHook> + 'c {
        let named = resources.filter_map(|resource| self.by_resource.get(resource)).flatten();
        let found: BTreeSet<(usize, usize)> = named.chain(&self.of_every).copied().collect();
        found.into_iter().filter_map(|(at, index)| {
            let configuration = self.all.get(at)?;
            configuration.hooks.get(index)?;
            Some(ConfiguredHook { configuration: Arc::clone(configuration), index })
        })
    }
}

impl ConfiguredHook {
    /// The webhook.
    pub fn hook(&self) -> &Hook {
        &self.configuration.hooks[self.index]
    }
}

impl Configuration {
    fn of(name: &str, value: &serde_json::Value) -> Self {
        let hooks = value["webhooks"].as_array().into_iter().flatten().map(Hook::of).collect();
        Self { name: name.to_owned(), hooks, calls: Calls::new(CALLS) }
    }
}
