//! kubespray's variables for nodes that reach no other network: where they get files and container images instead. Pure.
//!
//! [kubespray's docs](https://github.com/kubernetes-sigs/kubespray/blob/master/docs/operations/offline-environment.md) divide this into
//! many variables; those are taken of which few say all. The names of images stay what they are, and containerd is told where they are
//! ([hosts.toml](https://github.com/containerd/containerd/blob/main/docs/hosts.md)).

use serde_json::{Value, json};

use crate::config::KubesprayConfig;

/// Variables that are the beginning of what is downloaded, and the server that each of them is of. In kubespray since 2.25.
const SERVERS: [(&str, &str); 4] = [
    ("dl_k8s_io_url", "dl.k8s.io"),
    ("get_helm_url", "get.helm.sh"),
    ("github_url", "github.com"),
    ("storage_googleapis_url", "storage.googleapis.com"),
];

/// Where nodes get what they need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mirrors {
    /// URL of a registry that stands for all of them.
    pub registry: Option<String>,
    /// URL of a folder with a folder for each server: `URL/dl.k8s.io/…`.
    pub files: Option<String>,
}

impl Mirrors {
    /// Those of the configuration, which has judged them.
    pub fn of(config: &KubesprayConfig) -> Self {
        let plain = |url: &Option<String>| url.as_ref().map(|url| url.trim_end_matches('/').to_owned());
        Self { registry: plain(&config.registry), files: plain(&config.files) }
    }

    /// What kubespray is told of them.
    pub(in crate::kubespray) fn vars(&self) -> Vec<(&'static str, Value)> {
        let files = self.files.iter();
        let mut vars: Vec<_> = files
            .flat_map(|files| SERVERS.iter().map(move |(name, server)| (*name, json!(format!("{files}/{server}")))))
            .collect();
        if let Some(registry) = &self.registry {
            // `server` keeps containerd from asking the registry itself when the mirror has not got something.
            let mirror = json!({"host": registry, "capabilities": ["pull", "resolve"], "skip_verify": false});
            vars.push((
                "containerd_registries_mirrors",
                json!([{"prefix": "_default", "server": registry, "mirrors": [mirror]}]),
            ));
        }
        vars
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn vars(registry: Option<&str>, files: Option<&str>) -> Value {
        let config = KubesprayConfig {
            registry: registry.map(str::to_owned),
            files: files.map(str::to_owned),
            ..KubesprayConfig::default()
        };
        let vars = Mirrors::of(&config).vars().into_iter().map(|(name, value)| (name.to_owned(), value));
        Value::Object(vars.collect::<Map<_, _>>())
    }

    #[test]
    fn nodes_are_told_of_what_is_there() {
        assert_eq!(vars(None, None), json!({}));
        let files = json!({"dl_k8s_io_url": "http://10.0.0.1/packages/ks/dl.k8s.io", "get_helm_url": "http://10.0.0.1/packages/ks/get.helm.sh",
            "github_url": "http://10.0.0.1/packages/ks/github.com", "storage_googleapis_url": "http://10.0.0.1/packages/ks/storage.googleapis.com"});
        assert_eq!(vars(None, Some("http://10.0.0.1/packages/ks/")), files);
        let mirrors = json!([{"prefix": "_default", "server": "http://10.0.0.1",
            "mirrors": [{"host": "http://10.0.0.1", "capabilities": ["pull", "resolve"], "skip_verify": false}]}]);
        assert_eq!(vars(Some("http://10.0.0.1"), None), json!({ "containerd_registries_mirrors": mirrors }));
    }
}
