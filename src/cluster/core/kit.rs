//! What the controllers of this room go by and with.

use std::fmt::Debug;
use std::time::Duration;

use kube::api::Api;
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::api::cluster::GROUP;
use crate::api::cluster::v1beta2::{
    Cluster, Machine, MachineDeployment, MachineHealthCheck, MachineSet, MachineTemplateSpec,
};
use crate::cluster::contract::{ReferenceError, ReferencedObjects};
use crate::cluster::workload::{WorkloadError, Workloads, said};
use crate::runtime::{Cache, Conflict, Mention, Note, ObjectKey, Watches, events, objects, owners};

/// Who tells events.
const COMPONENT: &str = "slipway-cluster";
/// Characters of an annotation's value that are kept: the keys are what counts.
const ANNOTATION_KEPT: usize = 256;
/// Bytes of an object's annotations that are kept. Of more, only those of the contract are: all machines are in memory.
const ANNOTATIONS_KEPT: usize = 16 << 10;

/// Letters of a name or UID that objects are found by.
const NAME: usize = 253;

/// How long a look may take: what hangs is begun anew with what is so by then.
pub(super) const LOOK_MAX: Duration = Duration::from_secs(600);

/// Why something could not be done; it is tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum CoreFault {
    /// What the API says.
    #[error("{}", said(.0))]
    Api(#[from] kube::Error),
    /// What is referred to cannot be had.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// The cluster cannot be asked.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

impl Conflict for CoreFault {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Api(error) => error.is_conflict(),
            Self::Reference(error) => error.is_conflict(),
            Self::Workload(_) => false,
        }
    }
}

/// What is known of the objects of this room. Cheap to clone.
#[derive(Clone)]
pub(super) struct CoreCaches {
    pub clusters: Cache<Cluster>,
    pub machines: Cache<Machine>,
    /// Without their templates: who goes by these reads the object.
    pub sets: Cache<MachineSet>,
    /// Without their templates, too.
    pub deployments: Cache<MachineDeployment>,
    pub checks: Cache<MachineHealthCheck>,
}

impl CoreCaches {
    pub(super) fn new(watches: &mut Watches) -> Self {
        Self {
            clusters: Cache::new(watches, thin::<Cluster>),
            machines: Cache::indexed(watches, thin::<Machine>, |one| mentions(one, &one.spec.cluster_name)),
            sets: Cache::indexed(watches, set, |one| mentions(one, &one.spec.cluster_name)),
            deployments: Cache::indexed(watches, deployment, |one| mentions(one, &one.spec.cluster_name)),
            checks: Cache::indexed(watches, thin::<MachineHealthCheck>, |one| mentions(one, &one.spec.cluster_name)),
        }
    }
}

/// A cluster, as the one that an object is of.
pub(super) fn of_cluster((namespace, name): &ObjectKey) -> Mention {
    Mention::new("Cluster", namespace, name)
}

/// An object of this UID, as the one that controls another of its namespace.
pub(super) fn kept_by(owner: &impl ResourceExt) -> Mention {
    Mention::new("Controller", owner.namespace().unwrap_or_default(), owner.uid().unwrap_or_default())
}

/// What an object of a cluster is found by: its cluster, and what controls it. What nobody controls is found as such.
fn mentions(object: &impl ResourceExt, cluster: &str) -> Vec<Mention> {
    let namespace = object.namespace().unwrap_or_default();
    let controller = owners::controller(object.meta());
    let controller = match controller {
        Some(owner) if owner.uid.len() <= NAME => Some(Mention::new("Controller", &*namespace, &*owner.uid)),
        Some(_) => None,
        None => Some(nobodys(&(namespace.clone(), cluster.to_owned()))),
    };
    [of_cluster(&(namespace, cluster.to_owned()))].into_iter().chain(controller).collect()
}

/// A cluster, as the one that an object is of which nothing controls.
pub(super) fn nobodys((namespace, cluster): &ObjectKey) -> Mention {
    Mention::new("Nobody's of the cluster", namespace, cluster)
}

/// A copy without what only clients look at.
fn thin<K: Resource + Clone>(object: &K) -> K {
    let mut thin = object.clone();
    let meta = thin.meta_mut();
    meta.managed_fields = None;
    let Some(all) = &mut meta.annotations else { return thin };
    for value in all.values_mut().filter(|value| value.len() > ANNOTATION_KEPT) {
        value.clear();
        value.shrink_to_fit();
    }
    let size = |key: &String, value: &String| key.len() + value.len();
    if all.iter().map(|(key, value)| size(key, value)).sum::<usize>() > ANNOTATIONS_KEPT {
        let mut room = ANNOTATIONS_KEPT;
        all.retain(|key, value| {
            let has_room = key.contains(GROUP) && size(key, value) <= room;
            room -= if has_room { size(key, value) } else { 0 };
            has_room
        });
    }
    thin
}

fn set(object: &MachineSet) -> MachineSet {
    let mut thin = thin(object);
    thin.spec.template = MachineTemplateSpec::default();
    thin
}

fn deployment(object: &MachineDeployment) -> MachineDeployment {
    let mut thin = thin(object);
    thin.spec.template = MachineTemplateSpec::default();
    thin
}

/// With what a controller acts. Cheap to clone.
#[derive(Clone)]
pub(super) struct Kit {
    pub client: Client,
    pub objects: ReferencedObjects,
    pub workloads: Workloads,
    pub caches: CoreCaches,
    /// How often what changes unseen is looked at: objects of kinds that are not watched, and the clusters that were made.
    pub pause: Duration,
    /// How long what is deleted waits for a cluster that does not answer.
    pub patience: Duration,
}

impl Kit {
    /// Logs what was done for an object, and stores it as an event.
    pub(super) async fn tell<K: Resource<DynamicType = ()>>(&self, object: &K, reason: &'static str, message: String) {
        let note = Note { reason, message, warning: false };
        events::tell(&self.client, COMPONENT, object, &note).await;
    }

    pub(super) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The objects of a namespace that are wanted, as the API says now: what is known of them may be behind. They are read page
    /// by page, of which nothing else is kept.
    pub(super) async fn listed<K>(
        &self,
        namespace: &str,
        wanted: impl Fn(&K) -> bool + Send,
    ) -> Result<Vec<K>, kube::Error>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let mut found = Vec::new();
        let keep = |object| {
            if wanted(&object) {
                found.push(object);
            }
        };
        objects::each(&self.api::<K>(namespace), keep).await?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_kept_of_an_object_has_bounds() {
        let mut machine = Machine::new("m", Default::default());
        let annotations = machine.metadata.annotations.get_or_insert_default();
        annotations.insert("cluster.x-k8s.io/paused".into(), String::new());
        annotations.insert("note".into(), "x".repeat(ANNOTATION_KEPT + 1));
        let kept = thin(&machine);
        assert_eq!((kept.annotations().len(), kept.annotations()["note"].as_str()), (2, ""));
        let many = |front: &'static str| (0..500).map(move |at| (format!("{front}/{at}"), "x".repeat(ANNOTATION_KEPT)));
        machine.metadata.annotations.get_or_insert_default().extend(many("note.test"));
        assert_eq!(thin(&machine).annotations().keys().collect::<Vec<_>>(), ["cluster.x-k8s.io/paused"]);
        machine.metadata.annotations.get_or_insert_default().extend(many("a.cluster.x-k8s.io"));
        let size: usize = thin(&machine).annotations().iter().map(|(key, value)| key.len() + value.len()).sum();
        assert!(size > ANNOTATIONS_KEPT / 2 && size <= ANNOTATIONS_KEPT, "{size}");
    }

    /// Each controller of a cluster's members reads the Cluster: what a class says of it is no work and no memory of theirs.
    #[test]
    fn what_a_class_says_of_a_cluster_is_not_read() {
        let variables: Vec<_> = (0..2000).map(|at| json!({"name": format!("v{at}"), "value": {"a": [at]}})).collect();
        let topology = json!({"classRef": {"name": "metal"}, "version": "v1.35.0", "variables": variables});
        let cluster = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "c"},
            "spec": {"paused": true, "topology": topology}});
        let read: Cluster = serde_json::from_str(&cluster.to_string()).unwrap();
        assert_eq!(read.spec.paused, Some(true));
        assert_eq!(json!(read.spec.topology), json!({"classRef": {"name": "metal"}, "version": "v1.35.0"}));
    }

    #[test]
    fn sets_and_deployments_are_known_without_their_templates() {
        let mut one = MachineSet::new("s", Default::default());
        one.spec.cluster_name = "c".into();
        one.spec.template.spec.version = Some("v1.35.0".into());
        let kept = set(&one);
        assert_eq!((kept.spec.template.spec.version, kept.spec.cluster_name.as_str()), (None, "c"));
        let mut one = MachineDeployment::new("d", Default::default());
        one.spec.template.spec.version = Some("v1.35.0".into());
        assert_eq!(deployment(&one).spec.template.spec.version, None);
    }
}
