//! The garbage collector: dependents go with their owners (API concepts, "Garbage Collection"), and owners that wait
//! for theirs, or that leave them behind, are let go.
//!
//! What it removes cannot be had back, so it goes by what the store has at that moment: an owner is gone only when a read
//! of the store says so, and what was written since it was looked at is looked at again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use serde_json::Value;

use super::owner_graph::{OwnerKey, PendingChecks, is_held_for_dependents, owners};
use super::round::{SweepOutcome, SweepRound};
use crate::api::StoragePolicy;
use crate::apiserver::ApiServer;
use crate::apiserver::answers::status::ApiError;
use crate::apiserver::kinds::registry::ResourceRegistry;
use crate::apiserver::kinds::resource::ServedResource;
use crate::apiserver::objects::meta;
use crate::apiserver::writing::delete::DeleteOptions;
use crate::store::Object;

/// Objects that are looked at together.
const AT_ONCE: usize = 512;
/// How often an object is looked at again at once, when others write it meanwhile.
const ATTEMPTS: usize = 8;

/// Whether an owner is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnerPresence {
    Alive,
    /// Waits for its dependents (`foregroundDeletion`).
    Waiting,
    /// Leaves its dependents behind (`orphan`).
    Orphaning,
    Gone,
    /// Nobody can tell: of a kind that is not served now, or whose objects are only shown here, or in another namespace, or
    /// unreadable. Its dependents are left alone.
    Unknown,
}

/// What is due with an object that names owners.
#[derive(Debug, PartialEq)]
enum GarbageAction {
    Nothing,
    /// No owner is left to it.
    Remove,
    /// Of its owners only these are left.
    Keep(Vec<Value>),
}

/// An object and the resource of its stored form.
type StoredObject = (Arc<ServedResource>, OwnerKey);

/// Owners as they were last seen: by namespace, API version, kind, name and uid, with their revision.
type OwnerRevisions = HashMap<[String; 5], (u64, OwnerPresence)>;

/// Owners that wait and may not go yet.
#[derive(Default)]
struct Blocked {
    /// By uid: something that cannot go yet holds them.
    firmly: HashSet<String>,
    /// By uid, with what holds them that waits itself.
    by_waiting: Vec<(String, String)>,
}

impl Blocked {
    /// Which of those that wait are let go, in their order: what holds another goes first, and what only holds each other
    /// in a circle last.
    fn order(self, waiting: impl IntoIterator<Item = String>) -> Vec<String> {
        let Self { mut firmly, by_waiting } = self;
        let mut holds: HashMap<String, Vec<String>> = HashMap::new();
        by_waiting.into_iter().for_each(|(owner, by)| holds.entry(by).or_default().push(owner));
        let mut next: Vec<String> = firmly.iter().cloned().collect();
        while let Some(uid) = next.pop() {
            for owner in holds.remove(&uid).unwrap_or_default() {
                if firmly.insert(owner.clone()) {
                    next.push(owner);
                }
            }
        }
        let mut waiting: Vec<String> = waiting.into_iter().filter(|uid| !firmly.contains(uid)).collect();
        let mut held: HashMap<String, usize> = HashMap::new();
        for owner in waiting.iter().filter_map(|uid| holds.get(uid)).flatten() {
            *held.entry(owner.clone()).or_default() += 1;
        }
        let mut order: Vec<String> = waiting.iter().filter(|uid| !held.contains_key(*uid)).cloned().collect();
        let mut at = 0;
        while let Some(uid) = order.get(at) {
            at += 1;
            for owner in holds.get(uid).into_iter().flatten() {
                match held.get_mut(owner) {
                    Some(1) => {
                        held.remove(owner);
                        order.push(owner.clone());
                    }
                    Some(count) => *count -= 1,
                    None => {}
                }
            }
        }
        waiting.retain(|uid| held.contains_key(uid));
        order.extend(waiting);
        order
    }
}

impl ApiServer {
    /// Looks at what concerns it since the last time, as long as a round may take: namespaces take turns, so that nobody waits
    /// for all that another has.
    pub(super) async fn collect_garbage(&self) -> Result<(), ApiError> {
        let mut round = SweepRound::default();
        while !round.is_over() {
            let checks = self.owner_graph().next_checks(AT_ONCE);
            if checks.is_empty() {
                return round.end();
            }
            if checks.everything() {
                self.note_everything(&mut round).await;
            }
            let collected = self.collect(&checks, &mut round).await;
            if collected.is_err() || round.lacks_room() {
                // What was not done is not noted anywhere else.
                self.owner_graph().put_back(checks);
                return collected.and(round.end());
            }
        }
        if self.owner_graph().has_more() {
            self.wake_sweeper();
        }
        round.end()
    }

    async fn collect(&self, checks: &PendingChecks, round: &mut SweepRound) -> Result<(), ApiError> {
        let registry = self.registry();
        let found = self.concerned(&registry, checks, round).await;
        let (mut seen, mut blocked) = (OwnerRevisions::new(), Blocked::default());
        let mut next = found.iter();
        // Something is done in each round, however long it took to find what is concerned.
        for (resource, key) in next.by_ref() {
            round.yield_now().await;
            self.settle_dependent(&registry, resource, key, &mut seen, &mut blocked, round).await?;
            if round.is_over() {
                break;
            }
        }
        // What was not looked at may hold whatever it names.
        for (_, key) in next {
            round.yield_now().await;
            if let Some(object) = self.found(key).filter(|object| object.is_owned()) {
                let meta = object.metadata();
                blocked.firmly.extend(owners(&meta).filter_map(|owner| owner["uid"].as_str()).map(str::to_owned));
            }
            self.owner_graph().check_again(key.clone());
        }
        let mut waiting: HashMap<String, &StoredObject> = HashMap::new();
        for one in &found {
            round.yield_now().await;
            if let Some(uid) = self.found(&one.1).and_then(|object| waiting_uid(&object)) {
                waiting.insert(uid, one);
            }
        }
        for uid in blocked.order(waiting.keys().cloned().collect::<Vec<_>>()) {
            round.yield_now().await;
            if let Some((resource, key)) = waiting.get(&uid) {
                self.release(&registry, resource, key, round).await?;
            }
        }
        Ok(())
    }

    /// Does what is due with an object that names owners; notes which of them it holds.
    async fn settle_dependent(
        &self,
        registry: &ResourceRegistry,
        resource: &ServedResource,
        key: &OwnerKey,
        seen: &mut OwnerRevisions,
        blocked: &mut Blocked,
        round: &mut SweepRound,
    ) -> Result<(), ApiError> {
        let mut left = Vec::new();
        for _ in 0..ATTEMPTS {
            let Some(object) = self.found(key).filter(|object| object.is_owned()) else { return Ok(()) };
            let meta = object.metadata();
            let states: Vec<(&Value, OwnerPresence)> = owners(&meta)
                .map(|reference| match self.owner_state(registry, &object.namespace, reference, seen) {
                    OwnerPresence::Gone if is_of_a_later_kind(registry, reference, &meta) => {
                        (reference, OwnerPresence::Unknown)
                    }
                    state => (reference, state),
                })
                .collect();
            let due = due(&states);
            let outcome = match &due {
                GarbageAction::Nothing => return Ok(()),
                GarbageAction::Keep(owners) => {
                    self.rewrite(resource, &object, round, |value| set_owners(value, owners)).await?
                }
                GarbageAction::Remove => {
                    let options = DeleteOptions::of(meta["uid"].as_str(), object.revision);
                    self.remove(resource, &object, &options, round).await?
                }
            };
            let holds = |(reference, state): &&(&Value, OwnerPresence)| match due {
                GarbageAction::Remove => *state == OwnerPresence::Waiting && reference["blockOwnerDeletion"] == true,
                // As long as it names this owner, it would go with it.
                _ => *state == OwnerPresence::Orphaning,
            };
            let uids = states.iter().filter(holds).filter_map(|(reference, _)| reference["uid"].as_str());
            left = uids.map(str::to_owned).collect();
            match outcome {
                SweepOutcome::Done => return Ok(()),
                SweepOutcome::Changed => {}
                SweepOutcome::Held if waits_only(&meta) => {
                    let uid = meta["uid"].as_str().unwrap_or_default();
                    blocked.by_waiting.extend(left.into_iter().map(|owner| (owner, uid.to_owned())));
                    return Ok(());
                }
                SweepOutcome::Held | SweepOutcome::Refused(_) | SweepOutcome::NoRoom => {
                    blocked.firmly.extend(left);
                    return Ok(());
                }
            }
        }
        // Somebody writes it all the time.
        blocked.firmly.extend(left);
        self.owner_graph().check_again(key.clone());
        self.wake_sweeper();
        Ok(())
    }

    /// Lets an owner go that waits for nothing any more.
    async fn release(
        &self,
        registry: &ResourceRegistry,
        resource: &ServedResource,
        key: &OwnerKey,
        round: &mut SweepRound,
    ) -> Result<(), ApiError> {
        let Some(object) = self.found(key) else { return Ok(()) };
        let Some(uid) = waiting_uid(&object) else { return Ok(()) };
        // What names it since the round began would be removed for want of it.
        let again = has_finalizer(&object.metadata(), meta::ORPHAN) && self.has_orphans(registry, &uid, round).await;
        let outcome = match again {
            true => SweepOutcome::Changed,
            false => {
                let finalizers = [meta::FOREGROUND, meta::ORPHAN];
                self.rewrite(resource, &object, round, |value| drop_finalizers(value, &finalizers)).await?
            }
        };
        if outcome == SweepOutcome::Changed {
            self.owner_graph().check_again(key.clone());
            self.wake_sweeper();
        }
        Ok(())
    }

    /// Whether something still names an owner that is to leave it behind.
    async fn has_orphans(&self, registry: &ResourceRegistry, uid: &str, round: &mut SweepRound) -> bool {
        let mut seen = OwnerRevisions::new();
        for key in self.owner_graph().dependents_of(uid) {
            round.yield_now().await;
            let Some(object) = self.found(&key) else { continue };
            let meta = object.metadata();
            let mut named = owners(&meta).filter(|reference| reference["uid"] == *uid);
            if named
                .any(|one| self.owner_state(registry, &object.namespace, one, &mut seen) == OwnerPresence::Orphaning)
            {
                return true;
            }
        }
        false
    }

    fn found(&self, key: &OwnerKey) -> Option<Arc<Object>> {
        self.store().get(&key.storage, &key.namespace, &key.name)
    }

    /// Has everything looked at that may concern the collector.
    async fn note_everything(&self, round: &mut SweepRound) {
        self.owner_graph().begin_anew();
        for resource in self.registry().stored() {
            for object in self.store().list(&resource.storage, None).objects {
                round.yield_now().await;
                self.owner_graph().record(&object);
                if object.is_ending() || object.is_owned() {
                    self.owner_graph().check_again(OwnerKey::of(&object));
                }
            }
        }
    }

    /// What was named, what depends on it, and of owners that wait all that they wait for.
    async fn concerned(
        &self,
        registry: &ResourceRegistry,
        checks: &PendingChecks,
        round: &mut SweepRound,
    ) -> Vec<StoredObject> {
        let resources: HashMap<&str, &Arc<ServedResource>> =
            registry.stored().map(|one| (&*one.storage, one)).collect();
        let dependents = |uid: &str| self.owner_graph().dependents_of(uid);
        let mut keys = VecDeque::from(checks.by_turns());
        let (mut met, mut found) = (HashSet::new(), Vec::new());
        while let Some(key) = keys.pop_front() {
            round.yield_now().await;
            let Some(resource) = resources.get(&*key.storage).filter(|_| !met.contains(&key)) else { continue };
            if let Some(object) = self.found(&key) {
                keys.extend(waiting_uid(&object).map(|uid| dependents(&uid)).unwrap_or_default());
                if object.is_ending() || object.is_owned() {
                    found.push((Arc::clone(resource), key.clone()));
                }
            }
            met.insert(key);
        }
        found
    }

    fn owner_state(
        &self,
        registry: &ResourceRegistry,
        namespace: &str,
        reference: &Value,
        seen: &mut OwnerRevisions,
    ) -> OwnerPresence {
        let text = |key: &str| reference[key].as_str().unwrap_or_default().to_owned();
        let key = [namespace.to_owned(), text("apiVersion"), text("kind"), text("name"), text("uid")];
        let [_, version, kind, name, uid] = &key;
        let Some(resource) = registry.find_kind(version, kind) else { return OwnerPresence::Unknown };
        // What is only shown here is there again a while after each start.
        if matches!(resource.policy, StoragePolicy::View | StoragePolicy::Review) {
            return OwnerPresence::Unknown;
        }
        // What lies in no namespace cannot name an owner that does: which one would it be?
        if resource.namespaced && namespace.is_empty() {
            return OwnerPresence::Unknown;
        }
        let namespace = if resource.namespaced { namespace } else { "" };
        let owner = self.store().get(&resource.storage, namespace, name);
        let revision = owner.as_deref().map_or(0, |owner| owner.revision);
        if let Some((_, state)) = seen.get(&key).filter(|(seen, _)| *seen == revision) {
            return *state;
        }
        let state = owner.and_then(|owner| state_of(&owner, uid)).unwrap_or_else(|| {
            // The name of a namespace may be wrong: what is there is not gone.
            let elsewhere = || self.store().named(&resource.storage, name).iter().any(|one| is(one, uid));
            let is_there =
                self.store().is_unreadable(&resource.storage, namespace, name) || (resource.namespaced && elsewhere());
            if is_there { OwnerPresence::Unknown } else { OwnerPresence::Gone }
        });
        seen.insert(key, (revision, state));
        state
    }
}

/// Whether the owner's kind was defined after its dependent was made: then nobody can say that the owner was ever here, and whoever
/// may define kinds would have whatever names an owner of such a kind removed.
fn is_of_a_later_kind(registry: &ResourceRegistry, reference: &Value, meta: &Value) -> bool {
    let text = |key: &str| reference[key].as_str().unwrap_or_default();
    let resource = registry.find_kind(text("apiVersion"), text("kind"));
    let since = resource.as_ref().and_then(|resource| resource.custom.as_ref()).map(|custom| custom.since.as_str());
    // Both are of this server, in UTC and in seconds.
    since.is_some_and(|since| since > meta["creationTimestamp"].as_str().unwrap_or_default())
}

fn is(object: &Object, uid: &str) -> bool {
    object.metadata()["uid"] == *uid
}

/// The uid of an object that waits for its dependents to go, or to be left behind.
fn waiting_uid(object: &Object) -> Option<String> {
    let meta = object.is_ending().then(|| object.metadata()).filter(is_held_for_dependents)?;
    Some(meta["uid"].as_str().unwrap_or_default().to_owned())
}

/// What an object is to those who name it with this uid; nothing when it is another one.
fn state_of(owner: &Object, uid: &str) -> Option<OwnerPresence> {
    let meta = owner.metadata();
    (meta["uid"] == *uid).then(|| match () {
        () if owner.is_ending() && has_finalizer(&meta, meta::ORPHAN) => OwnerPresence::Orphaning,
        () if owner.is_ending() && has_finalizer(&meta, meta::FOREGROUND) => OwnerPresence::Waiting,
        () => OwnerPresence::Alive,
    })
}

fn due(states: &[(&Value, OwnerPresence)]) -> GarbageAction {
    let any = |wanted: &[OwnerPresence]| states.iter().any(|(_, state)| wanted.contains(state));
    let kept = states.iter().filter(|(_, state)| !matches!(state, OwnerPresence::Gone | OwnerPresence::Orphaning));
    let kept: Vec<Value> = kept.map(|(reference, _)| (*reference).clone()).collect();
    let left_behind = any(&[OwnerPresence::Orphaning]) && kept.is_empty();
    if any(&[OwnerPresence::Gone, OwnerPresence::Waiting])
        && !any(&[OwnerPresence::Alive, OwnerPresence::Unknown])
        && !left_behind
    {
        GarbageAction::Remove
    } else if kept.len() < states.len() {
        GarbageAction::Keep(kept)
    } else {
        GarbageAction::Nothing
    }
}

/// Whether nothing but its own dependents holds what is ending.
fn waits_only(meta: &Value) -> bool {
    let finalizers = meta["finalizers"].as_array().map_or(&[][..], Vec::as_slice);
    !finalizers.is_empty() && finalizers.iter().all(|one| one == meta::FOREGROUND || one == meta::ORPHAN)
}

fn has_finalizer(meta: &Value, name: &str) -> bool {
    meta["finalizers"].as_array().is_some_and(|list| list.iter().any(|one| one == name))
}

fn set_owners(value: &mut Value, owners: &[Value]) {
    if let Some(meta) = value["metadata"].as_object_mut() {
        if owners.is_empty() {
            meta.remove("ownerReferences");
        } else {
            meta.insert("ownerReferences".into(), owners.into());
        }
    }
}

fn drop_finalizers(value: &mut Value, names: &[&str]) {
    if let Some(Value::Array(list)) = value["metadata"].get_mut("finalizers") {
        list.retain(|one| !names.iter().any(|name| one == name));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_due() {
        use OwnerPresence::{Alive, Gone, Orphaning, Unknown, Waiting};
        let name = |index: usize| json!({ "uid": index.to_string() });
        let keep = |indices: &[usize]| GarbageAction::Keep(indices.iter().copied().map(name).collect());
        for (states, wanted) in [
            (&[Alive][..], GarbageAction::Nothing),
            (&[Unknown], GarbageAction::Nothing),
            (&[Gone], GarbageAction::Remove),
            (&[Waiting], GarbageAction::Remove),
            (&[Gone, Waiting], GarbageAction::Remove),
            (&[Orphaning], keep(&[])),
            (&[Gone, Orphaning], keep(&[])),
            (&[Orphaning, Waiting], GarbageAction::Remove),
            (&[Orphaning, Alive], keep(&[1])),
            (&[Gone, Alive], keep(&[1])),
            (&[Gone, Unknown], keep(&[1])),
            (&[Waiting, Alive], GarbageAction::Nothing),
            (&[Waiting, Unknown], GarbageAction::Nothing),
        ] {
            let names: Vec<Value> = (0..states.len()).map(name).collect();
            let states: Vec<_> = names.iter().zip(states.iter().copied()).collect();
            assert_eq!(due(&states), wanted, "{states:?}");
        }
    }

    #[test]
    fn who_waits_goes_after_what_it_waits_for_and_a_circle_goes_at_last() {
        for (firmly, by_waiting, wanted) in [
            (&[][..], &[][..], "abcd"),
            (&["b"], &[], "acd"),
            // a waits for b, and b for c.
            (&[], &[("a", "b"), ("b", "c")], "cdba"),
            (&["c"], &[("a", "b"), ("b", "c")], "d"),
            // In a circle, and what waits for one of them.
            (&[], &[("a", "b"), ("b", "a"), ("c", "a")], "dabc"),
            (&["b"], &[("a", "b"), ("b", "a")], "cd"),
            (&[], &[("a", "a")], "bcda"),
            // What holds it is not looked at in this round.
            (&[], &[("a", "x")], "abcd"),
        ] {
            let blocked = Blocked {
                firmly: firmly.iter().map(|uid| (*uid).to_owned()).collect(),
                by_waiting: by_waiting.iter().map(|(owner, by)| ((*owner).to_owned(), (*by).to_owned())).collect(),
            };
            let order = blocked.order(["a", "b", "c", "d"].map(str::to_owned)).concat();
            assert_eq!(order, wanted, "{firmly:?} {by_waiting:?}");
        }
    }
}
