//! Owner references. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};

/// A reference to an owner. Among several there may be one that is the controller.
pub fn owner<K: Resource<DynamicType = ()>>(of: &K, controller: bool) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: of.name_any(),
        uid: of.uid().unwrap_or_default(),
        controller: controller.then_some(true),
        block_owner_deletion: controller.then_some(true),
    }
}

/// The owner references with this one; `None` when it is there as it should be. One of the same group, kind and name is
/// replaced, for it is of an object that is gone, or of another version.
pub fn with(meta: &ObjectMeta, owner: &OwnerReference) -> Option<Vec<OwnerReference>> {
    let all = meta.owner_references.as_deref().unwrap_or_default();
    if all.contains(owner) {
        return None;
    }
    let mut kept: Vec<OwnerReference> = all.iter().filter(|other| !is_same(other, owner)).cloned().collect();
    kept.push(owner.clone());
    Some(kept)
}

/// The owner references without those to an object; `None` when there are none.
pub fn without(meta: &ObjectMeta, uid: &str) -> Option<Vec<OwnerReference>> {
    let all = meta.owner_references.as_deref().unwrap_or_default();
    let kept: Vec<OwnerReference> = all.iter().filter(|other| other.uid != uid).cloned().collect();
    (kept.len() < all.len()).then_some(kept)
}

/// Whether an object is among the owners.
pub fn is_owned(meta: &ObjectMeta, uid: &str) -> bool {
    let all = meta.owner_references.as_deref().unwrap_or_default();
    !uid.is_empty() && all.iter().any(|owner| owner.uid == uid)
}

/// The owner that is the controller.
pub fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.as_deref().unwrap_or_default().iter().find(|owner| owner.controller == Some(true))
}

/// Another owner of the same kind, where this one is not among them: it was an owner's of another name.
pub fn rival<'m>(meta: &'m ObjectMeta, owner: &OwnerReference) -> Option<&'m OwnerReference> {
    let all = meta.owner_references.as_deref().unwrap_or_default();
    let kind = |one: &OwnerReference| (group_of(&one.api_version).to_owned(), one.kind.clone());
    all.iter().find(|other| kind(other) == kind(owner) && other.uid != owner.uid && other.name != owner.name)
}

/// The first owner of this group and kind, whichever version the reference has.
pub fn of_kind<'m>(meta: &'m ObjectMeta, group: &str, kind: &str) -> Option<&'m OwnerReference> {
    let all = meta.owner_references.as_deref().unwrap_or_default();
    all.iter().find(|owner| owner.kind == kind && group_of(&owner.api_version) == group)
}

/// The group of an `apiVersion`.
pub fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

fn is_same(one: &OwnerReference, other: &OwnerReference) -> bool {
    (group_of(&one.api_version), &one.kind, &one.name) == (group_of(&other.api_version), &other.kind, &other.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::cluster::v1beta2::Machine;

    fn machine(name: &str, uid: &str) -> Machine {
        let mut machine = Machine::new(name, Default::default());
        machine.metadata.uid = Some(uid.into());
        machine
    }

    #[test]
    fn an_owner_is_there_once() {
        let mut meta = ObjectMeta::default();
        let first = owner(&machine("m", "1"), true);
        meta.owner_references = with(&meta, &first);
        assert_eq!(meta.owner_references.as_deref(), Some(&[first.clone()][..]));
        assert_eq!(with(&meta, &first), None);
        // The same name again is another object.
        let again = owner(&machine("m", "2"), true);
        assert_eq!(with(&meta, &again), Some(vec![again.clone()]));
        // An older version of the API is no other owner.
        let mut old = meta.clone();
        old.owner_references.as_mut().unwrap()[0].api_version = "cluster.x-k8s.io/v1beta1".into();
        assert_eq!(with(&old, &first), Some(vec![first.clone()]));
        let other = owner(&machine("n", "3"), false);
        assert_eq!(with(&meta, &other), Some(vec![first.clone(), other]));
    }

    #[test]
    fn owners_are_found_by_uid_and_kind() {
        let owned = owner(&machine("m", "1"), true);
        let meta = ObjectMeta { owner_references: Some(vec![owned.clone()]), ..ObjectMeta::default() };
        assert!(is_owned(&meta, "1") && !is_owned(&meta, "2") && !is_owned(&ObjectMeta::default(), ""));
        assert_eq!(controller(&meta), Some(&owned));
        assert_eq!(of_kind(&meta, "cluster.x-k8s.io", "Machine"), Some(&owned));
        assert_eq!(of_kind(&meta, "cluster.x-k8s.io", "Cluster"), None);
        assert_eq!(of_kind(&meta, "metal3.io", "Machine"), None);
        assert_eq!((without(&meta, "1"), without(&meta, "2")), (Some(Vec::new()), None));
    }
}
