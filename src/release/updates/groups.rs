//! UpdateGroups of a cluster: the default ones are made, and all of them told to whoever looks after nodes.

use kube::api::{Api, ListParams, PostParams};
use kube::{Client, ResourceExt};

use crate::api::kaas::{UpdateGroup, UpdateGroupSpec, control_group, default_group};
use crate::api::lcm::LcmUpdateGroup;
use crate::api::machine_api::Cluster;
use crate::release::names::LABEL_CLUSTER;
use crate::runtime::owners;

/// Groups that a cluster has, at most.
pub const MOST: usize = 100;

/// The groups of a cluster as they are stored: those with its name in their label.
///
/// # Errors
///
/// What the API says.
pub async fn stored(client: &Client, namespace: &str, cluster: &str) -> Result<Vec<UpdateGroup>, kube::Error> {
    let limit = u32::try_from(MOST + 1).ok();
    let params = ListParams { limit, ..ListParams::default().labels(&format!("{LABEL_CLUSTER}={cluster}")) };
    Ok(Api::<UpdateGroup>::namespaced(client.clone(), namespace).list(&params).await?.items)
}

/// Has the default groups of a cluster be there. They are its users' from then on, and go with the cluster. Where somebody has an
/// object of this name that is of no cluster, or of another one, the cluster goes without.
///
/// # Errors
///
/// What the API says.
pub async fn provide(
    client: &Client,
    cluster: &Cluster,
    workers_at_once: Option<i32>,
    found: &mut Vec<UpdateGroup>,
) -> Result<(), kube::Error> {
    let api = Api::<UpdateGroup>::namespaced(client.clone(), &cluster.namespace().unwrap_or_default());
    for wanted in defaults(cluster, workers_at_once) {
        if found.len() > MOST || found.iter().any(|group| group.name_any() == wanted.name_any()) {
            continue;
        }
        match api.create(&PostParams::default(), &wanted).await {
            Ok(made) => found.push(made),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn defaults(cluster: &Cluster, workers_at_once: Option<i32>) -> [UpdateGroup; 2] {
    let name = cluster.name_any();
    let made = |name: &str, concurrent_updates| {
        let mut group = UpdateGroup::new(name, UpdateGroupSpec { concurrent_updates, ..UpdateGroupSpec::default() });
        group.metadata.namespace = cluster.namespace();
        group.metadata.labels = Some([(LABEL_CLUSTER.to_owned(), cluster.name_any())].into());
        group.metadata.owner_references = Some(vec![owners::owner(cluster, true)]);
        group
    };
    [made(&control_group(&name), 1), made(&default_group(&name), workers_at_once.unwrap_or(1))]
}

/// What nodes are told of the groups, by place and name; `paused` says why one may not begin.
pub fn told(found: &[UpdateGroup], paused: impl Fn(&str) -> Option<String>) -> Vec<LcmUpdateGroup> {
    let mut all: Vec<LcmUpdateGroup> = found
        .iter()
        .filter(|group| group.metadata.deletion_timestamp.is_none())
        .take(MOST)
        .map(|group| LcmUpdateGroup {
            paused: paused(&group.name_any()).unwrap_or_default(),
            name: group.name_any(),
            index: group.spec.index,
            concurrent_updates: group.spec.concurrent_updates,
            reboot_if_update_requires: group.spec.reboot_if_update_requires,
        })
        .collect();
    all.sort_by(|one, other| (one.index, &one.name).cmp(&(other.index, &other.name)));
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cluster_has_two_groups_whose_workers_count_is_its_own() {
        let cluster: Cluster =
            serde_json::from_value(json!({"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "c", "namespace": "n", "uid": "u"}, "spec": {"providerSpec": {}}}))
            .unwrap();
        for (count, wanted) in [(None, 1), (Some(4), 4)] {
            let [control, workers] = defaults(&cluster, count);
            assert_eq!((control.name_any().as_str(), control.spec.concurrent_updates), ("c-control", 1));
            assert_eq!((workers.name_any().as_str(), workers.spec.concurrent_updates), ("c-default", wanted));
            assert_eq!((workers.spec.index, workers.spec.reboot_if_update_requires), (1, false));
            assert_eq!(workers.labels()[LABEL_CLUSTER], "c");
            assert!(owners::controller(&workers.metadata).is_some_and(|owner| owner.uid == "u"));
        }
        let group = |name: &str, index| UpdateGroup::new(name, UpdateGroupSpec { index, ..UpdateGroupSpec::default() });
        let told = told(&[group("b", 2), group("c", 1), group("a", 2)], |name| (name == "b").then(|| "why".to_owned()));
        let told: Vec<_> = told.iter().map(|one| (one.name.as_str(), one.paused.as_str())).collect();
        assert_eq!(told, [("c", ""), ("a", ""), ("b", "why")]);
    }
}
