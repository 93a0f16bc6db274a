//! What is made of a Cluster and its release: LCMCluster and HelmBundle. Pure.

use crate::api::kaas::ClusterRelease;
use crate::api::lcm::{AgentConfig, HelmBundleSpec, LCMClusterSpec, LcmEndpoint, LcmUpdateGroup};
use crate::release::catalogue::charts::{ChartFault, charts};
use crate::release::names::{self, API_PORT};
use crate::release::wish::shape::ClusterWish;

/// How long a token to join is good.
const TOKEN_TTL: &str = "24h";
/// A token that is good for less is made anew.
const MIN_TOKEN_TTL: &str = "1h";
/// How clusters are made of whose release nothing is said.
const LCM_TYPE: &str = "byo";

/// What is known beside a Cluster and its release.
#[derive(Clone, Debug, Default)]
pub struct ClusterInputs {
    /// Where nodes reach the appliance.
    pub appliance: LcmEndpoint,
    /// The appliance's own program as an agent.
    pub agent: AgentConfig,
    /// Keys that open nodes.
    pub keys: Vec<String>,
    /// Whether nodes are rebooted for the release.
    pub reboot: bool,
    /// Groups of machines.
    pub groups: Vec<LcmUpdateGroup>,
    /// The ClusterUpdatePlan that says which of them may get the release.
    pub plan: String,
}

/// The LCMCluster of a cluster.
pub fn lcm_cluster(
    cluster: &str,
    wish: &ClusterWish,
    release: &ClusterRelease,
    around: &ClusterInputs,
) -> LCMClusterSpec {
    let spec = &release.spec;
    LCMClusterSpec {
        machine_types: spec.machine_types.clone(),
        external_endpoint: Some(LcmEndpoint { host: wish.host.clone(), port: API_PORT.into() }),
        pods_cidr: wish.networks.pods.clone(),
        services_cidr: wish.networks.services.clone(),
        management_cluster_endpoint: Some(around.appliance.clone()),
        helm_controller_service_account_name: names::helm(cluster),
        deployment_secret_name: format!("{cluster}-deployment"),
        kubeconfig_secret_name: format!("{cluster}-kubeconfig"),
        agent_data_secret_name: format!("{cluster}-agent-data"),
        token_ttl: TOKEN_TTL.into(),
        min_token_remaining_ttl: MIN_TOKEN_TTL.into(),
        dedicated_control_plane: wish.dedicated_control_plane,
        max_worker_prepare_count: wish.max_worker_prepare_count,
        max_worker_upgrade_count: wish.max_worker_upgrade_count,
        nodes_reboot_required: around.reboot,
        update_groups: around.groups.clone(),
        update_plan: around.plan.clone(),
        release: wish.release.clone(),
        maintenance: wish.maintenance,
        lcm_type: if spec.lcm_type.is_empty() { LCM_TYPE.into() } else { spec.lcm_type.clone() },
        agent_config: Some(spec.agent.clone().unwrap_or_else(|| around.agent.clone())),
        ssh_authorized_keys: around.keys.clone(),
        ..LCMClusterSpec::default()
    }
}

/// What of an LCMCluster changes while nothing else may: keys, and that it is so.
pub fn held(present: &LCMClusterSpec, maintenance: bool, keys: &[String]) -> LCMClusterSpec {
    LCMClusterSpec { maintenance, ssh_authorized_keys: keys.to_vec(), ..present.clone() }
}

/// The HelmBundle of a cluster. Charts of a KaaSRelease are those of management clusters: this one gets none of them.
///
/// # Errors
///
/// Why the cluster cannot have the charts that it wants.
pub fn helm_bundle(wish: &ClusterWish, release: &ClusterRelease) -> Result<HelmBundleSpec, ChartFault> {
    let repositories = release.spec.helm.as_ref().map(|helm| helm.repositories.clone()).unwrap_or_default();
    Ok(HelmBundleSpec { repositories, releases: charts(release, &wish.charts)?, release: String::new() })
}

/// Why a text is no line of `authorized_keys`; none when it is one.
pub fn key_fault(key: &str) -> Option<&'static str> {
    /// Bytes of a key with its comment, at most: RSA keys of 16384 bits have three thousand.
    const MOST: usize = 8 << 10;
    let key = key.trim();
    if key.is_empty() || key.starts_with('#') {
        return Some("has no key");
    }
    if key.len() > MOST {
        return Some("is longer than 8 KiB");
    }
    // A second line would be a second key, which nobody sees who reads the first one.
    key.chars().any(char::is_control).then_some("has more than one line")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::release::catalogue::charts::ChartOverride;
    use crate::release::wish::network::Networks;

    fn release() -> ClusterRelease {
        let release = json!({
            "apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "ClusterRelease", "metadata": {"name": "r1"},
            "spec": {
                "version": "1.0.0", "lcmType": "kubeadm",
                "machineTypes": {"control": [{"name": "join", "params": {"script": "x"}}]},
                "helm": {
                    "repositories": [{"name": "own", "url": "http://charts.test"}],
                    "releases": [
                        {"name": "logs", "chart": "own/logs", "version": "1", "values": {"size": 1, "deep": {"a": 1, "b": 2}}},
                        {"name": "metrics", "chart": "own/metrics", "version": "1"},
                    ],
                },
            },
        });
        serde_json::from_value(release).unwrap()
    }

    fn wish() -> ClusterWish {
        ClusterWish {
            release: "r1".into(),
            host: "192.0.2.5".into(),
            dedicated_control_plane: true,
            networks: Networks { pods: "10.244.0.0/16".into(), services: "10.96.0.0/16".into() },
            ..ClusterWish::default()
        }
    }

    #[test]
    fn an_lcm_cluster_is_the_release_with_what_the_cluster_says() {
        let around = ClusterInputs {
            agent: AgentConfig { version: "0.1".into(), ..AgentConfig::default() },
            keys: vec!["ssh-ed25519 AAAA ops".into()],
            ..ClusterInputs::default()
        };
        let made = lcm_cluster("edge", &wish(), &release(), &around);
        assert_eq!(made.machine_types["control"][0].name, "join");
        assert_eq!(made.external_endpoint, Some(LcmEndpoint { host: "192.0.2.5".into(), port: 6443 }));
        assert_eq!((made.release.as_str(), made.lcm_type.as_str()), ("r1", "kubeadm"));
        assert_eq!((made.pods_cidr.as_str(), made.services_cidr.as_str()), ("10.244.0.0/16", "10.96.0.0/16"));
        assert_eq!(made.agent_config.as_ref().unwrap().version, "0.1");
        assert_eq!(made.helm_controller_service_account_name, "helm-edge");
        // A release may bring an agent of its own.
        let mut other = release();
        other.spec.agent = Some(AgentConfig { version: "9".into(), ..AgentConfig::default() });
        assert_eq!(lcm_cluster("edge", &wish(), &other, &around).agent_config.unwrap().version, "9");
        let held = held(&made, true, &["k".into()]);
        assert_eq!(held, LCMClusterSpec { maintenance: true, ssh_authorized_keys: vec!["k".into()], ..made });
    }

    #[test]
    fn a_bundle_has_the_releases_charts_with_overrides_merged() {
        let mut wish = wish();
        wish.charts = vec![
            ChartOverride { name: "logs".into(), enabled: None, values: Some(json!({"size": 9, "deep": {"b": 3}})) },
            ChartOverride { name: "metrics".into(), enabled: Some(false), values: None },
        ];
        let bundle = helm_bundle(&wish, &release()).unwrap();
        assert_eq!(bundle.repositories[0].name, "own");
        let [logs] = bundle.releases.as_slice() else { panic!("{:?}", bundle.releases) };
        assert_eq!(logs.values, Some(json!({"size": 9, "deep": {"a": 1, "b": 3}})));
        wish.charts[0].name = "other".into();
        assert!(helm_bundle(&wish, &release()).is_err());
    }

    #[test]
    fn a_key_is_one_line() {
        for (key, is_fine) in [
            ("ssh-ed25519 AAAA me", true),
            ("from=\"10.0.0.0/8\" ssh-ed25519 AAAA me\n", true),
            ("", false),
            (" \n", false),
            ("# no key", false),
            ("ssh-ed25519 AAAA me\nssh-ed25519 BBBB eve", false),
            ("ssh-ed25519 AAAA me\rssh-ed25519 BBBB eve", false),
        ] {
            assert_eq!(key_fault(key).is_none(), is_fine, "{key:?}");
        }
        assert!(key_fault(&"x".repeat(9000)).is_some());
    }
}
