//! What an upgrade changes in the cluster that was made: kubeadm's ConfigMap, kube-proxy, CoreDNS. Pure.

mod kubeadm_api;

use serde_json::{Map, Value};

use super::images::{self, ImageReference};
use crate::cluster::contract::KubeVersion;

/// Bytes of kubeadm's configuration, and nodes of its YAML.
const CONFIG_MAX: usize = 256 << 10;
const NODES_MAX: usize = 20_000;
/// Registries in which CoreDNS has a folder of its own since 1.8.
const COREDNS_FOLDER: [&str; 2] = ["k8s.gcr.io", "registry.k8s.io"];

/// Since this version nothing that a Corefile may hold was taken away.
const COREFILE_STAYS: [u32; 3] = [1, 8, 0];

/// Why CoreDNS is left as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CoreDnsKept {
    /// It has the wanted image.
    Same,
    /// It is newer, or has an image that is none.
    Refused(String),
}

/// kubeadm's ClusterConfiguration with another version of Kubernetes, as the kubeadm of that version writes it, and with what the
/// control plane says. `config` is the wanted `clusterConfiguration` of v1beta2, `managed` whether etcd runs on the machines. None
/// when nothing changes.
///
/// # Errors
///
/// When what is there is no ClusterConfiguration, or the version is none.
pub(super) fn cluster_configuration(
    text: &str,
    version: &str,
    config: &Value,
    managed: bool,
) -> Result<Option<String>, String> {
    let before = parsed(text)?;
    let mut map = before.clone();
    if !map.get("apiVersion").and_then(Value::as_str).is_some_and(|api| api.starts_with("kubeadm.k8s.io/")) {
        return Err("ClusterConfiguration is not of kubeadm.k8s.io".into());
    }
    kubeadm_api::raise(&mut map, version.parse::<KubeVersion>()?);
    map.insert("kubernetesVersion".into(), version.into());
    let listed = !kubeadm_api::has_maps(&map);
    if let Some(repository) = text_of(config, "imageRepository") {
        map.insert("imageRepository".into(), repository.into());
    }
    replace(&mut map, "featureGates", config.get("featureGates").cloned());
    for (component, keeps) in [("apiServer", true), ("controllerManager", false), ("scheduler", false)] {
        let mut wanted = config.get(component).cloned().map(|value| of_kubeadm(value, listed));
        // Said at another place in the newer version.
        let timeout = map.get(component).and_then(|old| old.get("timeoutForControlPlane")).cloned();
        if let (true, Some(timeout)) = (keeps, timeout) {
            let wanted = wanted.get_or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(wanted) = wanted {
                wanted.entry("timeoutForControlPlane").or_insert(timeout);
            }
        }
        replace(&mut map, component, wanted);
    }
    let etcd = if managed { "local" } else { "external" };
    let wanted = config.get("etcd").and_then(|all| all.get(etcd)).cloned().map(|value| of_kubeadm(value, listed));
    if let Some(wanted) = wanted {
        let mut local =
            map.get("etcd").and_then(|old| old.get(etcd)).and_then(Value::as_object).cloned().unwrap_or_default();
        if let Value::Object(wanted) = wanted {
            // What kubeadm filled in itself stays, as the folder of the data.
            local.retain(|key, _| key == "dataDir");
            local.extend(wanted);
        }
        map.insert("etcd".into(), serde_json::json!({ etcd: local }));
    }
    if listed {
        for (ours, theirs) in [("certificateValidityPeriodDays", "certificateValidityPeriod")] {
            if let Some(days) = config.get(ours).and_then(Value::as_i64).filter(|days| *days > 0) {
                map.insert(theirs.into(), format!("{}h0m0s", days.saturating_mul(24)).into());
            }
        }
        if let Some(algorithm) = text_of(config, "encryptionAlgorithm") {
            map.insert("encryptionAlgorithm".into(), algorithm.into());
        }
    }
    written(&before, map)
}

/// The same, where only CoreDNS's image changes.
///
/// # Errors
///
/// When what is there is no ClusterConfiguration.
pub(super) fn dns_configuration(text: &str, config: &Value) -> Result<Option<String>, String> {
    let before = parsed(text)?;
    let mut map = before.clone();
    replace(&mut map, "dns", config.get("dns").cloned());
    written(&before, map)
}

/// What is in the cluster, where anybody may have put it.
fn parsed(text: &str) -> Result<Map<String, Value>, String> {
    if text.len() > CONFIG_MAX {
        return Err(format!("ClusterConfiguration has more than {} KiB", CONFIG_MAX >> 10));
    }
    let budget = serde_saphyr::budget! { max_nodes: NODES_MAX, max_total_scalar_bytes: CONFIG_MAX };
    match serde_saphyr::from_str_with_options(text, serde_saphyr::options! { budget: budget }) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err("ClusterConfiguration is no object".into()),
        Err(_) => Err("ClusterConfiguration is no YAML".into()),
    }
}

fn written(before: &Map<String, Value>, map: Map<String, Value>) -> Result<Option<String>, String> {
    if map == *before {
        return Ok(None);
    }
    serde_saphyr::to_string(&Value::Object(map)).map(Some).map_err(|error| error.to_string())
}

fn text_of<'v>(config: &'v Value, field: &str) -> Option<&'v str> {
    config.get(field).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn replace(map: &mut Map<String, Value>, field: &str, wanted: Option<Value>) {
    let before = map.get(field).filter(|before| !is_empty(before)).cloned();
    match wanted.filter(|wanted| !is_empty(wanted)) {
        Some(wanted) => drop(map.insert(field.into(), wanted)),
        // `dns: {}` is what kubeadm writes itself.
        None if before.is_some() => drop(map.insert(field.into(), Value::Object(Map::new()))),
        None => {}
    }
}

fn is_empty(value: &Value) -> bool {
    matches!(value, Value::Null) || value.as_object().is_some_and(Map::is_empty)
}

/// A component as kubeadm has it: arguments as a list or a map.
fn of_kubeadm(mut component: Value, listed: bool) -> Value {
    let Value::Object(map) = &mut component else { return component };
    if listed {
        return component;
    }
    map.remove("extraEnvs");
    if let Some(Value::Array(args)) = map.get("extraArgs") {
        let pair =
            |arg: &Value| Some((arg.get("name")?.as_str()?.to_owned(), arg.get("value").cloned().unwrap_or_default()));
        let args: Map<String, Value> = args.iter().filter_map(pair).collect();
        map.insert("extraArgs".into(), args.into());
    }
    component
}

/// kube-proxy's image of a version; nothing when it has it, or what it has is none.
pub(super) fn kube_proxy(image: &str, version: &str, repository: Option<&str>) -> Option<String> {
    // A build has a plus sign, which a tag cannot have.
    let tag = version.replace('+', "_");
    let mut wanted = ImageReference::read(image)?.with_tag(&tag);
    if let Some(repository) = repository {
        wanted = wanted.with_repository(repository);
    }
    Some(wanted.text()).filter(|wanted| wanted != image)
}

/// CoreDNS's image as the control plane wants it. `repository` is that of all images, `dns` what is said of CoreDNS.
///
/// # Errors
///
/// Why it is left as it is.
pub(super) fn coredns(image: &str, repository: Option<&str>, dns: &Value) -> Result<String, CoreDnsKept> {
    let refused = |reason: String| CoreDnsKept::Refused(reason);
    let now = ImageReference::read(image).ok_or_else(|| refused("its image has a name that is none".into()))?;
    let tag = text_of(dns, "imageTag").unwrap_or(&now.tag).to_owned();
    let of =
        |tag: &str| images::version(tag).ok_or_else(|| refused(format!("the tag {tag:?} of its image is no version")));
    let (from, to) = (of(&now.tag)?, of(&tag)?);
    if to < from {
        return Err(refused(format!("it has the version {} already", now.tag)));
    }
    // What is in a Corefile is understood from then on by every version.
    if from < COREFILE_STAYS && to != from {
        return Err(refused(format!("its Corefile would have to be changed, which is not done for {}", now.tag)));
    }
    let mut wanted = now.with_tag(&tag);
    if let Some(repository) = text_of(dns, "imageRepository").or(repository) {
        wanted = wanted.with_repository(repository);
    }
    if COREDNS_FOLDER.contains(&wanted.repository.as_str()) && to >= [1, 8, 0] {
        wanted.repository.push_str("/coredns");
    }
    let wanted = wanted.text();
    if wanted == image { Err(CoreDnsKept::Same) } else { Ok(wanted) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn changed(text: &str, config: Value) -> Value {
        changed_to(text, "v1.34.0", config)
    }

    fn changed_to(text: &str, version: &str, config: Value) -> Value {
        let text = cluster_configuration(text, version, &config, true).unwrap().unwrap();
        serde_saphyr::from_str(&text).unwrap()
    }

    const OLD: &str = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nclusterName: c\nkubernetesVersion: v1.33.0\ndns: {}\netcd:\n  local:\n    dataDir: /var/lib/etcd\n";

    #[test]
    fn kubeadm_is_told_the_version() {
        assert_eq!(
            changed(OLD, json!({})),
            json!({
                "apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration", "clusterName": "c",
                "kubernetesVersion": "v1.34.0", "dns": {}, "etcd": {"local": {"dataDir": "/var/lib/etcd"}},
            })
        );
        let now = OLD.replace("v1.33.0", "v1.34.0");
        assert_eq!(cluster_configuration(&now, "v1.34.0", &json!({}), true), Ok(None));
        for bad in ["", "a: [", "[]", "apiVersion: v1", &"a".repeat(CONFIG_MAX + 1)] {
            assert!(cluster_configuration(bad, "v1.34.0", &json!({}), true).is_err(), "{bad:.20}");
        }
        for bad in ["", "a: [", "[]", &"a".repeat(CONFIG_MAX + 1)] {
            assert!(dns_configuration(bad, &json!({})).is_err(), "{bad:.20}");
        }
        assert!(cluster_configuration(OLD, "latest", &json!({}), true).is_err());
    }

    #[test]
    fn kubeadm_is_told_what_the_control_plane_says() {
        let args = json!([{"name": "v", "value": "2"}]);
        let config = json!({
            "imageRepository": "site/images", "featureGates": {"A": true}, "apiServer": {"extraArgs": args, "certSANs": ["x"]},
            "etcd": {"local": {"imageTag": "3.6.5-0"}}, "certificateValidityPeriodDays": 10,
            "encryptionAlgorithm": "ECDSA-P256", "dns": {"imageTag": "v1.12.1"},
        });
        let new = changed(OLD, config.clone());
        assert_eq!(new["imageRepository"], "site/images");
        assert_eq!((&new["featureGates"], &new["apiServer"]), (&config["featureGates"], &config["apiServer"]));
        assert_eq!(new["etcd"], json!({"local": {"dataDir": "/var/lib/etcd", "imageTag": "3.6.5-0"}}));
        assert_eq!(
            (&new["certificateValidityPeriod"], &new["encryptionAlgorithm"]),
            (&json!("240h0m0s"), &json!("ECDSA-P256"))
        );
        // CoreDNS has its own time.
        assert_eq!(new["dns"], json!({}));
        let text = dns_configuration(OLD, &config).unwrap().unwrap();
        assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap()["dns"], config["dns"]);
        assert_eq!(dns_configuration(OLD, &json!({})), Ok(None));
        // What is no longer said is taken away, and an older kubeadm has arguments as a map.
        let older = "apiVersion: kubeadm.k8s.io/v1beta3\nscheduler:\n  extraArgs:\n    a: b\napiServer:\n  timeoutForControlPlane: 4m0s\n";
        let new = changed_to(older, "v1.30.1", json!({"apiServer": {"extraArgs": args}}));
        assert_eq!(
            (&new["apiVersion"], &new["scheduler"], &new["apiServer"]),
            (
                &json!("kubeadm.k8s.io/v1beta3"),
                &json!({}),
                &json!({"extraArgs": {"v": "2"}, "timeoutForControlPlane": "4m0s"})
            )
        );
        // From then on they are a list.
        let new = changed_to(older, "v1.31.0", json!({"apiServer": {"extraArgs": args}}));
        assert_eq!(
            (&new["apiVersion"], &new["scheduler"], &new["apiServer"]),
            (&json!("kubeadm.k8s.io/v1beta4"), &json!({}), &json!({ "extraArgs": args }))
        );
        // Also where nothing else changes.
        let same = older.replace("apiServer", "kubernetesVersion: v1.31.0\napiServer");
        let config = json!({"scheduler": {"extraArgs": [{"name": "a", "value": "b"}]}});
        let new = changed_to(&same, "v1.31.0", config.clone());
        assert_eq!((&new["apiVersion"], &new["scheduler"]), (&json!("kubeadm.k8s.io/v1beta4"), &config["scheduler"]));
    }

    #[test]
    fn kube_proxy_follows_the_version() {
        for (image, version, repository, wanted) in [
            ("registry.k8s.io/kube-proxy:v1.33.0", "v1.34.0", None, Some("registry.k8s.io/kube-proxy:v1.34.0")),
            ("registry.k8s.io/kube-proxy:v1.34.0", "v1.34.0", None, None),
            ("a/kube-proxy:v1.33.0", "v1.34.0+x", Some("b/c"), Some("b/c/kube-proxy:v1.34.0_x")),
            ("", "v1.34.0", None, None),
        ] {
            assert_eq!(kube_proxy(image, version, repository).as_deref(), wanted, "{image}");
        }
    }

    #[test]
    fn coredns_follows_what_is_said_of_it() {
        let tag = |tag: &str| json!({"imageTag": tag});
        for (image, repository, dns, wanted) in [
            (
                "registry.k8s.io/coredns/coredns:v1.12.0",
                None,
                tag("v1.12.1"),
                Ok("registry.k8s.io/coredns/coredns:v1.12.1"),
            ),
            ("registry.k8s.io/coredns/coredns:v1.12.0", Some("site"), json!({}), Ok("site/coredns:v1.12.0")),
            ("site/coredns:v1.12.0", Some("site"), json!({"imageRepository": "other/"}), Ok("other/coredns:v1.12.0")),
            ("site/coredns:v1.12.0", Some("registry.k8s.io"), json!({}), Ok("registry.k8s.io/coredns/coredns:v1.12.0")),
            ("registry.k8s.io/coredns:1.7.0", None, tag("v1.8.6"), Err(false)),
            ("site/coredns:v1.12.0", None, json!({}), Err(true)),
            ("site/coredns:v1.12.0", None, tag("v1.11.0"), Err(false)),
            ("site/coredns:latest", None, tag("v1.11.0"), Err(false)),
            ("site/coredns", None, json!({}), Err(false)),
        ] {
            let found = coredns(image, repository, &dns);
            match (&found, wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted),
                (Err(CoreDnsKept::Same), Err(true)) | (Err(CoreDnsKept::Refused(_)), Err(false)) => {}
                _ => panic!("{image}: {found:?}"),
            }
        }
    }
}
