//! The index of roles and bindings, kept current from the store's feed of changes.
//!
//! Nothing runs in the background: who asks for the index first takes in what the store has published since. So a
//! decision always stands on everything that was acknowledged before it was asked for.

use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;

use super::identity::UserIdentity;
use super::index::{AuthorizationDecision, GROUP, RbacIndex};
use super::rules::Attributes;
use crate::store::{Store, StoreEvent, Watch};

/// Plurals of roles, then of bindings.
const ROLES: [&str; 2] = ["clusterroles", "roles"];
const BINDINGS: [&str; 2] = ["clusterrolebindings", "rolebindings"];

struct RoleFeed {
    watch: Watch,
    is_role: bool,
}

struct AuthorizerState {
    /// The store's revision when the feeds were last read.
    seen: u64,
    feeds: Vec<RoleFeed>,
    index: Arc<RbacIndex>,
}

/// Decides who may do what.
pub struct Authorizer {
    store: Store,
    // std's lock: held while events in memory are taken in.
    state: Mutex<AuthorizerState>,
}

impl Authorizer {
    /// For the roles and bindings of a store.
    pub fn new(store: Store) -> Self {
        let state = Self::load(&store);
        Self { store, state: Mutex::new(state) }
    }

    fn load(store: &Store) -> AuthorizerState {
        loop {
            // Before the lists: what comes meanwhile is in them or in the feeds.
            let seen = store.revision();
            let mut index = RbacIndex::default();
            let mut feeds = Vec::new();
            for (plurals, is_role) in [(ROLES, true), (BINDINGS, false)] {
                for plural in plurals {
                    let storage = format!("{GROUP}/{plural}");
                    let listing = store.list(&storage, None);
                    for object in &listing.objects {
                        put(&mut index, is_role, &object.namespace, &object.name, Some(&object.value()));
                    }
                    feeds.extend(store.watch(&storage, listing.revision).ok().map(|watch| RoleFeed { watch, is_role }));
                }
            }
            // Otherwise a feed ran away between its list and its watch. What a closed store knows stays true.
            if feeds.len() == ROLES.len() + BINDINGS.len() || store.is_closed() {
                return AuthorizerState { seen, feeds, index: Arc::new(index) };
            }
        }
    }

    /// Every role and binding that is in force now.
    pub fn index(&self) -> Arc<RbacIndex> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.store.revision();
        if state.seen != now && !state.follow() && !self.store.is_closed() {
            *state = Self::load(&self.store);
        }
        state.seen = state.seen.max(now);
        Arc::clone(&state.index)
    }

    /// Whether it takes long to decide what the caller may in a namespace (empty: in the cluster).
    pub fn is_long(&self, identity: &UserIdentity, namespace: &str) -> bool {
        !identity.is_superuser() && self.index().is_long(identity.caller(), namespace)
    }

    /// Whether the caller may.
    pub fn decide(&self, identity: &UserIdentity, wanted: &Attributes<'_>) -> AuthorizationDecision {
        if identity.is_superuser() {
            return AuthorizationDecision { allowed: true, reason: String::new() };
        }
        self.index().decide(identity.caller(), wanted)
    }
}

impl AuthorizerState {
    /// Takes in what the store has published; `false` when some of it is no longer kept.
    fn follow(&mut self) -> bool {
        for feed in &mut self.feeds {
            while let Some(next) = feed.watch.next().now_or_never() {
                let Ok(event) = next else { return false };
                let object = event.object();
                let value = (!matches!(event, StoreEvent::Deleted(_))).then(|| object.value());
                put(Arc::make_mut(&mut self.index), feed.is_role, &object.namespace, &object.name, value.as_ref());
            }
        }
        true
    }
}

fn put(index: &mut RbacIndex, is_role: bool, namespace: &str, name: &str, value: Option<&serde_json::Value>) {
    if is_role {
        index.set_role(namespace, name, value);
    } else {
        index.set_binding(namespace, name, value);
    }
}
