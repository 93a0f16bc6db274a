//! The label of a cluster on the BMC credentials of its hosts: whoever moves a cluster to another server finds by it what belongs
//! to the cluster.
//!
//! A Secret has one such label, and may be for the hosts of several clusters. It has the label of one of these, which stays as
//! long as that cluster has such a host. Nobody writes it who finds it so, so that no two clusters write it in turns.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use super::{Metal3MachineError, Metal3MachineReconciler};
use crate::api::cluster::LABEL_CLUSTER;
use crate::api::metal3::BareMetalHost;
use crate::cluster::hosts::Consumer;
use crate::cluster::hosts::choose::CandidateHost;

/// What the label is to be: written, or taken off. `others` are the clusters of other hosts in use that have this Secret.
fn label(now: Option<&str>, own: &str, goes: bool, others: &BTreeSet<String>) -> Option<Option<String>> {
    match (now, goes) {
        (None, false) => Some(Some(own.to_owned())),
        // Whose label it is has no such host any more.
        (Some(other), false) if other != own && !others.contains(other) => Some(Some(own.to_owned())),
        (Some(label), true) if label == own && !others.contains(own) => Some(others.first().cloned()),
        _ => None,
    }
}

impl Metal3MachineReconciler {
    /// Has a host's credentials labelled, as the host comes to a cluster or goes from it.
    pub(super) async fn label_secret(
        &self,
        found: &BareMetalHost,
        cluster: &str,
        goes: bool,
    ) -> Result<(), Metal3MachineError> {
        let Some(name) = found.spec.bmc.as_ref().map(|bmc| &bmc.credentials_name).filter(|name| !name.is_empty())
        else {
            return Ok(());
        };
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &found.namespace().unwrap_or_default());
        let Some(secret) = secrets.get_opt(name).await? else { return Ok(()) };
        // A host that others let go at the same time runs nothing any more.
        let is_in_use =
            |host: &CandidateHost| matches!(host.consumer, Consumer::Machine(_)) && (!goes || host.has_image);
        let others = self.hosts.with_credentials(found, name);
        let others = others.iter().filter(|host| is_in_use(host)).filter_map(|host| host.label(LABEL_CLUSTER));
        let others: BTreeSet<String> = others.map(str::to_owned).collect();
        let now = secret.labels().get(LABEL_CLUSTER).map(String::as_str);
        let Some(wanted) = label(now, cluster, goes, &others) else { return Ok(()) };
        let metadata = json!({ "resourceVersion": secret.resource_version(), "labels": { LABEL_CLUSTER: wanted } });
        let patch = json!({ "metadata": metadata });
        match secrets.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(kube::Error::Api(error)) if error.is_not_found() => Ok(()),
            patched => Ok(patched.map(drop)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_the_label_of_a_cluster_that_uses_it() {
        type Row<'r> = (Option<&'r str>, bool, &'r [&'r str], Option<Option<String>>);
        let write = |cluster: &str| Some(Some(cluster.to_owned()));
        let rows: [Row<'_>; 11] = [
            (None, false, &[], write("own")),
            (Some("own"), false, &["other"], None),
            (Some("other"), false, &["other"], None),
            (Some("other"), false, &[], write("own")),
            (Some("gone"), false, &["other"], write("own")),
            (Some("own"), true, &[], Some(None)),
            (Some("own"), true, &["own", "other"], None),
            (Some("own"), true, &["third", "other"], write("other")),
            (Some("other"), true, &[], None),
            (Some("other"), true, &["other"], None),
            (None, true, &["other"], None),
        ];
        for (now, goes, others, wanted) in rows {
            let others = others.iter().map(|cluster| (*cluster).to_owned()).collect();
            assert_eq!(label(now, "own", goes, &others), wanted, "{now:?} {goes} {others:?}");
        }
    }

    #[test]
    fn two_clusters_do_not_write_in_turns() {
        let (both, mut now, mut writes) = (["a", "b"], None::<String>, 0);
        for look in 0..10 {
            let (own, other) = (both[look % 2], both[(look + 1) % 2]);
            let others = BTreeSet::from([other.to_owned()]);
            if let Some(wanted) = label(now.as_deref(), own, false, &others) {
                (now, writes) = (wanted, writes + 1);
            }
        }
        assert_eq!((now.as_deref(), writes), (Some("a"), 1));
    }
}
