//! Clusters, a line each: pure.

use jiff::Timestamp;
use serde_json::Value;

use super::plan::{self, ClusterProgress};
use super::tree::{condition, name, text};
use crate::cli::client::relative::relative;

/// The headings of [`rows`].
pub(super) const HEADINGS: [&str; 8] =
    ["NAME", "AVAILABLE", "PHASE", "VERSION", "CONTROL-PLANE", "WORKERS", "CREATED", "MESSAGE"];

/// A line for each cluster, by name. `all` is everything that may belong to one.
pub(super) fn rows(all: &[Value], now: Timestamp) -> Vec<Vec<String>> {
    let mut clusters: Vec<&Value> = all.iter().filter(|object| object["kind"] == "Cluster").collect();
    clusters.sort_by_key(|cluster| name(cluster));
    clusters.into_iter().map(|cluster| row(cluster, all, now)).collect()
}

fn row(cluster: &Value, all: &[Value], now: Timestamp) -> Vec<String> {
    let progress = ClusterProgress::of(cluster, all);
    let of = |(ready, wanted): (i64, i64)| format!("{ready}/{wanted}");
    let plane = plan::control_plane(cluster, all).ok();
    let version = |pointer: &str| plane.map(|plane| text(plane, pointer)).unwrap_or_default();
    let version = match (version("/status/version"), version("/spec/version")) {
        ("", wanted) => wanted.to_owned(),
        (runs, wanted) if runs == wanted => runs.to_owned(),
        (runs, wanted) => format!("{runs} -> {wanted}"),
    };
    let available = condition(cluster, &["Available"]);
    let is = available.map(|one| text(one, "/status")).unwrap_or_default();
    let reason = available.filter(|_| is != "True").map(|one| text(one, "/message")).unwrap_or_default();
    vec![
        name(cluster).to_owned(),
        is.to_owned(),
        text(cluster, "/status/phase").to_owned(),
        version,
        of(progress.control_plane),
        of(progress.workers),
        relative(text(cluster, "/metadata/creationTimestamp"), now),
        reason.split_whitespace().collect::<Vec<_>>().join(" "),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cluster(name: &str, available: &str) -> Value {
        json!({
            "kind": "Cluster", "metadata": {"name": name},
            "spec": {"controlPlaneRef": {"kind": "KubeadmControlPlane", "name": format!("{name}-cp")}},
            "status": {"phase": "Provisioned", "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "Available", "status": available, "message": "* waits\nfor it"},
            ]},
        })
    }

    #[test]
    fn each_cluster_has_its_line() {
        let plane = |name: &str, runs: &str| {
            json!({"kind": "KubeadmControlPlane", "metadata": {"name": name}, "spec": {"replicas": 3, "version": "v1.35.1"},
                "status": {"readyReplicas": 2, "version": runs}})
        };
        let workers = json!({"kind": "MachineDeployment", "metadata": {"name": "w"},
            "spec": {"clusterName": "b", "replicas": 2}, "status": {"readyReplicas": 2}});
        let all = [
            cluster("b", "True"),
            plane("b-cp", "v1.35.1"),
            cluster("a", "False"),
            plane("a-cp", "v1.34.4"),
            workers,
            json!({"kind": "Cluster", "metadata": {"name": "c"}}),
        ];
        let rows = rows(&all, Timestamp::UNIX_EPOCH);
        let said: Vec<Vec<&str>> = rows.iter().map(|row| row.iter().map(String::as_str).collect()).collect();
        assert_eq!(said[0][..6], ["a", "False", "Provisioned", "v1.34.4 -> v1.35.1", "2/3", "0/0"]);
        assert_eq!(said[0][7], "* waits for it");
        assert_eq!(said[1][..6], ["b", "True", "Provisioned", "v1.35.1", "2/3", "2/2"]);
        assert_eq!(said[1][7], "");
        assert_eq!(said[2][..6], ["c", "", "", "", "0/0", "0/0"]);
        assert!(rows.iter().all(|row| row.len() == HEADINGS.len()));
    }
}
