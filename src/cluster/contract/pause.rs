//! Pause: nothing is done about an object, because it or its cluster says so.

use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::Api;
use kube::core::object::HasStatus;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::cluster::keys::ANNOTATION_PAUSED;
use crate::api::cluster::v1beta2::Cluster;
use crate::runtime::changes::write_status;
use crate::runtime::conditions::{ConditionVerdict, set};

/// Name of the condition.
pub const PAUSED: &str = "Paused";

/// Whether nothing is to be done about an object.
pub fn is_paused(cluster: Option<&Cluster>, object: &impl ResourceExt) -> bool {
    cluster.is_some_and(|cluster| cluster.spec.paused == Some(true)) || is_annotated(object)
}

/// Whether nothing is to be done about an object, which then says so among its `conditions`.
///
/// # Errors
///
/// What the API says; a conflict when somebody wrote the object in between.
pub async fn rests<K>(
    api: &Api<K>,
    object: &K,
    cluster: Option<&Cluster>,
    conditions: impl Fn(&mut K::Status) -> &mut Vec<Condition>,
) -> Result<bool, kube::Error>
where
    K: Resource + HasStatus<Status: Clone + Default + PartialEq + Serialize> + Clone + Debug + DeserializeOwned,
{
    if !is_paused(cluster, object) {
        return Ok(false);
    }
    let mut status = object.status().cloned().unwrap_or_default();
    let (verdict, generation) = (verdict(cluster, object), object.meta().generation);
    set(conditions(&mut status), PAUSED, &verdict, generation, Timestamp::now());
    write_status(api, object, object.status(), &status).await?;
    Ok(true)
}

/// Whether the object itself says so.
pub fn is_annotated(object: &impl ResourceExt) -> bool {
    object.annotations().contains_key(ANNOTATION_PAUSED)
}

/// The condition `Paused` of an object.
pub fn verdict(cluster: Option<&Cluster>, object: &impl ResourceExt) -> ConditionVerdict {
    let by_cluster = cluster.is_some_and(|cluster| cluster.spec.paused == Some(true));
    let by_itself = format!("the object has the annotation {ANNOTATION_PAUSED}");
    let reason = match (by_cluster, is_annotated(object)) {
        (false, false) => return ConditionVerdict::no("NotPaused", ""),
        (true, false) => "spec.paused of the cluster is true".to_owned(),
        (false, true) => by_itself,
        (true, true) => format!("spec.paused of the cluster is true, and {by_itself}"),
    };
    ConditionVerdict { message: reason, ..ConditionVerdict::yes("Paused") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::cluster::v1beta2::Machine;

    #[test]
    fn a_cluster_or_an_annotation_pauses() {
        let mut cluster = Cluster::new("c", Default::default());
        let mut machine = Machine::new("m", Default::default());
        assert!(!is_paused(Some(&cluster), &machine) && !is_paused(None, &machine));
        assert_eq!(verdict(None, &machine), ConditionVerdict::no("NotPaused", ""));
        cluster.spec.paused = Some(true);
        assert!(is_paused(Some(&cluster), &machine));
        assert!(verdict(Some(&cluster), &machine).message.contains("spec.paused"));
        machine.metadata.annotations = Some([(ANNOTATION_PAUSED.to_owned(), String::new())].into());
        assert!(is_paused(None, &machine));
        assert!(verdict(None, &machine).message.contains(ANNOTATION_PAUSED));
    }
}
