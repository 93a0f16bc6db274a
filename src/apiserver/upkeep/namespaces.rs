//! The end of namespaces: what is in them goes first, and what holds it is told.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::round::{SweepOutcome, SweepRound, from_anywhere};
use crate::apiserver::ApiServer;
use crate::apiserver::answers::status::ApiError;
use crate::apiserver::kinds::registry::ResourceRegistry;
use crate::apiserver::kinds::resource::ServedResource;
use crate::apiserver::objects::meta;
use crate::apiserver::writing::delete::DeleteOptions;
use crate::store::{Expect, Mutation, Object, StoreWriteError};

impl ApiServer {
    /// Empties namespaces that are being deleted, and removes those that are empty.
    pub(super) async fn end_namespaces(&self) -> Result<(), ApiError> {
        let (registry, mut round) = (self.registry(), SweepRound::default());
        let Some(namespaces) = registry.find("", "v1", "namespaces") else { return Ok(()) };
        let all = self.store().list(&namespaces.storage, None).objects;
        for namespace in from_anywhere(&all).filter(|namespace| namespace.is_ending()) {
            if round.is_over() {
                self.wake_sweeper();
                break;
            }
            self.empty_namespace(&registry, namespaces, namespace, &mut round).await?;
        }
        round.end()
    }

    async fn empty_namespace(
        &self,
        registry: &ResourceRegistry,
        namespaces: &ServedResource,
        namespace: &Object,
        round: &mut SweepRound,
    ) -> Result<(), ApiError> {
        let mut left = Remains::default();
        let served: Vec<_> = registry.stored().filter(|resource| resource.namespaced).collect();
        for (storage, count) in self.store().stored_in(&namespace.name) {
            if !served.iter().any(|resource| resource.storage == storage) {
                left.unserved.insert(storage.to_string(), count);
            }
        }
        for (storage, _, name) in self.store().unreadable().into_iter().filter(|(_, of, _)| *of == namespace.name) {
            left.refuse(format!("{storage} {name} is damaged and cannot be read: delete it by its name"));
        }
        // Events go last: they may tell why the rest does not go.
        let (last, first): (Vec<_>, Vec<_>) = served.into_iter().partition(|r| &*r.storage == "/events");
        for resource in first.into_iter().chain(last) {
            if &*resource.storage == "/events" && !left.is_empty() {
                break;
            }
            for object in self.store().list(&resource.storage, Some(&namespace.name)).objects {
                round.yield_now().await;
                let outcome = self.remove(resource, &object, &DeleteOptions::default(), round).await?;
                let is_held = outcome == SweepOutcome::Held && object.is_ending();
                left.add(resource, &object, outcome);
                // What is held already costs nothing; of the rest it is not known yet what is left.
                if !is_held && round.is_over() {
                    self.wake_sweeper();
                    return Ok(());
                }
            }
        }
        let told = if left.is_empty() {
            self.end_namespace(namespaces, namespace, round).await?
        } else {
            self.rewrite(namespaces, namespace, round, |value| left.tell(value)).await?
        };
        if told == SweepOutcome::Changed || left.is_changing {
            self.wake_sweeper();
        }
        Ok(())
    }

    async fn end_namespace(
        &self,
        namespaces: &ServedResource,
        namespace: &Object,
        round: &mut SweepRound,
    ) -> Result<SweepOutcome, ApiError> {
        // Creates in this namespace that passed their check are done once the gate was ours; later ones find it ending.
        drop(self.namespace_gate().write().await);
        if !self.store().stored_in(&namespace.name).is_empty() {
            return Ok(SweepOutcome::Changed);
        }
        let old = namespace.value();
        let mut value = old.clone();
        if let Some(spec) = value["spec"].as_object_mut() {
            spec.remove("finalizers");
        }
        let held = value["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        if held && value == old {
            return Ok(SweepOutcome::Held);
        }
        if held {
            return self.rewrite(namespaces, namespace, round, |now| *now = value.clone()).await;
        }
        let change = Mutation {
            resource: Arc::clone(&namespaces.storage),
            namespace: String::new(),
            name: namespace.name.clone(),
            expect: Expect::Revision(namespace.revision),
            value: None,
        };
        match self.commit(namespaces, change).await {
            Ok(_) | Err(StoreWriteError::NotFound) => Ok(SweepOutcome::Done),
            Err(StoreWriteError::Conflict { .. }) => Ok(SweepOutcome::Changed),
            Err(error) => Err(ApiError::from_write(&error, namespaces, &namespace.name)),
        }
    }
}

/// Names that are told of what is left in a namespace; whoever may write in it makes as many as he likes.
const TOLD: usize = 16;

/// What is left in a namespace that is being deleted.
#[derive(Default)]
struct Remains {
    /// Objects by `plural.group`.
    resources: BTreeMap<String, usize>,
    /// Objects by the finalizer that holds them.
    finalizers: BTreeMap<String, usize>,
    /// Why objects may not go, and how many that are.
    refusals: Vec<String>,
    refused: usize,
    /// Objects of kinds that are not served, by their name in the store. Whoever makes a namespace of this name later, and
    /// has the kind again, would have them.
    unserved: BTreeMap<String, usize>,
    /// Whether some are written all the time.
    is_changing: bool,
}

impl Remains {
    fn is_empty(&self) -> bool {
        self.resources.is_empty() && self.unserved.is_empty() && self.refused == 0
    }

    fn refuse(&mut self, reason: String) {
        self.refused += 1;
        if self.refusals.len() < TOLD {
            self.refusals.push(reason);
        }
    }

    fn add(&mut self, resource: &ServedResource, object: &Object, outcome: SweepOutcome) {
        match outcome {
            SweepOutcome::Done => return,
            SweepOutcome::Held | SweepOutcome::NoRoom => {}
            SweepOutcome::Changed => self.is_changing = true,
            SweepOutcome::Refused(reason) => self.refuse(reason),
        }
        *self.resources.entry(format!("{}.{}", resource.plural, resource.group)).or_default() += 1;
        for finalizer in object.metadata()["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            // Of very many some are enough.
            if self.finalizers.len() < 64 * TOLD || self.finalizers.contains_key(finalizer) {
                *self.finalizers.entry(finalizer.to_owned()).or_default() += 1;
            }
        }
    }

    /// Says in the namespace's status what is left, in the words of upstream's controller.
    fn tell(&self, namespace: &mut Value) {
        let listed = |counts: &BTreeMap<String, usize>, verb: &str| {
            let part = |(name, count): (&String, &usize)| {
                format!("{} {verb} {count} resource instances", crate::apiserver::answers::status::shorten(name, 317))
            };
            let mut parts: Vec<String> = counts.iter().take(TOLD).map(part).collect();
            if counts.len() > TOLD {
                parts.push(format!("and {} more", counts.len() - TOLD));
            }
            parts.join(", ")
        };
        let content = format!("Some resources are remaining: {}", listed(&self.resources, "has"));
        let finalizers =
            format!("Some content in the namespace has finalizers remaining: {}", listed(&self.finalizers, "in"));
        let refusals = format!(
            "Failed to delete all resource types, {} remaining: {}",
            self.refused,
            crate::apiserver::answers::status::shorten(&self.refusals.join(", "), 1024)
        );
        let unserved = format!(
            "Discovery failed for some groups, {} failing: of kinds that are not served, {}",
            self.unserved.len(),
            listed(&self.unserved, "has")
        );
        let fine = |kind, reason, message| (kind, "False", reason, message);
        let told = [
            if self.unserved.is_empty() {
                fine(
                    "NamespaceDeletionDiscoveryFailure",
                    "ResourcesDiscovered",
                    "All resources successfully discovered",
                )
            } else {
                ("NamespaceDeletionDiscoveryFailure", "True", "DiscoveryFailed", &*unserved)
            },
            fine(
                "NamespaceDeletionGroupVersionParsingFailure",
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed",
            ),
            if self.refused == 0 {
                fine(
                    "NamespaceDeletionContentFailure",
                    "ContentDeleted",
                    "All content successfully deleted, may be waiting on finalization",
                )
            } else {
                ("NamespaceDeletionContentFailure", "True", "ContentDeletionFailed", &*refusals)
            },
            if self.resources.is_empty() {
                fine("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed")
            } else {
                ("NamespaceContentRemaining", "True", "SomeResourcesRemain", &*content)
            },
            if self.finalizers.is_empty() {
                fine(
                    "NamespaceFinalizersRemaining",
                    "ContentHasNoFinalizers",
                    "All content-preserving finalizers finished",
                )
            } else {
                ("NamespaceFinalizersRemaining", "True", "SomeFinalizersRemain", &*finalizers)
            },
        ];
        for (kind, status, reason, message) in told {
            meta::set_condition(namespace, meta::StatusCondition { kind, status, reason, message }, meta::now());
        }
    }
}
