//! Variables for a run, and what a user of the API may set of them.
//!
//! Ansible evaluates every string that it uses as a [Jinja template](https://docs.ansible.com/ansible/latest/playbook_guide/playbooks_templating.html)
//! on the box that it runs on, where `lookup('pipe', …)` is a command; variables as `ansible_connection` and
//! `ansible_ssh_common_args` say what is run there; and kubespray copies files of that box whose paths are variables. So whoever
//! may set any variable has the appliance. A user of the API has the variables of [`OFFERED`], with plain values.

use serde_json::{Map, Value};

/// Most bytes of all variables.
const BYTES_MAX: usize = 1 << 20;
/// Deepest nesting.
const DEPTH_MAX: usize = 16;
/// Longest name that is shown, in characters.
const SHOWN: usize = 60;

/// Variables that a user of the API may set: what a cluster is like on its nodes. None of them is a path or a command on the
/// box that Ansible runs on ([kubespray's docs](https://github.com/kubernetes-sigs/kubespray/blob/master/docs/ansible/vars.md)).
pub(super) const OFFERED: &[&str] = &[
    "access_ip",
    "access_ip6",
    "apiserver_loadbalancer_domain_name",
    "auto_renew_certificates",
    "calico_network_backend",
    "calico_rr",
    "cluster_name",
    "container_manager",
    "containerd_registries_mirrors",
    "deploy_netchecker",
    "dns_domain",
    "dns_mode",
    "drain_grace_period",
    "drain_nodes",
    "drain_pod_selector",
    "drain_retries",
    "drain_timeout",
    "enable_nodelocaldns",
    "etcd_deployment_type",
    "etcd_member_name",
    "etcd_quota_backend_bytes",
    "event_ttl_duration",
    "helm_enabled",
    "http_proxy",
    "https_proxy",
    "ip",
    "ip6",
    "ipv4_stack",
    "ipv6_stack",
    "kube_apiserver_port",
    "kube_network_node_prefix",
    "kube_network_node_prefix_ipv6",
    "kube_network_plugin",
    "kube_override_hostname",
    "kube_pods_subnet",
    "kube_pods_subnet_ipv6",
    "kube_proxy_mode",
    "kube_proxy_strict_arp",
    "kube_service_addresses",
    "kube_service_addresses_ipv6",
    "kube_version",
    "kube_vip_address",
    "kube_vip_arp_enabled",
    "kube_vip_controlplane_enabled",
    "kube_vip_enabled",
    "kube_vip_interface",
    "kube_vip_lb_enable",
    "kube_vip_services_enabled",
    "kubelet_fail_swap_on",
    "loadbalancer_apiserver",
    "loadbalancer_apiserver_localhost",
    "loadbalancer_apiserver_type",
    "metallb_enabled",
    "metrics_server_enabled",
    "no_proxy",
    "node_labels",
    "node_taints",
    "ntp_enabled",
    "ntp_manage_config",
    "ntp_servers",
    "ntp_timezone",
    "ping_access_ip",
    "supplementary_addresses_in_ssl_keys",
    "upstream_dns_servers",
];

/// Variables for a run, and by whose right.
#[derive(Clone, Default)]
pub struct RunVars(Map<String, Value>);

/// Why a user may not set variables.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VarFault {
    /// It is none of those that users may set.
    #[error("the variable {0:?} is not offered: it may say what is run or read on the appliance")]
    NotOffered(String),
    /// A template, which Ansible would evaluate on the appliance.
    #[error("the variable {0:?} holds a template ({{{{, {{% or {{#), which would be evaluated on the appliance")]
    Template(String),
    /// It is nested more deeply than anything that kubespray has.
    #[error("the variable {0:?} is nested more than {DEPTH_MAX} deep")]
    Deep(String),
    /// All together are too long.
    #[error("the variables are longer than {} MiB", BYTES_MAX >> 20)]
    Long,
}

impl RunVars {
    /// Variables that somebody set who may not do everything on this box.
    ///
    /// # Errors
    ///
    /// When one of them is not [offered](OFFERED), is a template, or all are too many.
    pub fn of_user(vars: Map<String, Value>) -> Result<Self, VarFault> {
        for (name, value) in &vars {
            if !OFFERED.contains(&name.as_str()) {
                return Err(VarFault::NotOffered(name.chars().take(SHOWN).collect()));
            }
            plain(name, value, 0)?;
        }
        Self::of_administrator(vars)
    }

    /// Variables of whoever may do everything on this box, or of Slipway's own code.
    ///
    /// # Errors
    ///
    /// When they are too long.
    pub fn of_administrator(vars: Map<String, Value>) -> Result<Self, VarFault> {
        let bytes = serde_json::to_vec(&vars).map_or(usize::MAX, |text| text.len());
        if bytes > BYTES_MAX { Err(VarFault::Long) } else { Ok(Self(vars)) }
    }

    /// These, and others that go before them.
    #[must_use]
    pub fn with(mut self, others: impl IntoIterator<Item = (&'static str, Value)>) -> Self {
        self.0.extend(others.into_iter().map(|(name, value)| (name.to_owned(), value)));
        self
    }

    /// These, where `others` does not say otherwise.
    #[must_use]
    pub fn below(mut self, others: &Self) -> Self {
        self.0.extend(others.0.clone());
        self
    }

    /// As Ansible reads them.
    pub(super) fn as_map(&self) -> &Map<String, Value> {
        &self.0
    }
}

/// Holds that a value has no template and nothing that Ansible's JSON gives a meaning of its own (`__ansible_vault`).
fn plain(name: &str, value: &Value, depth: usize) -> Result<(), VarFault> {
    if depth > DEPTH_MAX {
        return Err(VarFault::Deep(name.to_owned()));
    }
    let text = |text: &str| {
        let template = ["{{", "{%", "{#", "#jinja2:", "__ansible"].iter().any(|sign| text.contains(sign));
        if template { Err(VarFault::Template(name.to_owned())) } else { Ok(()) }
    };
    match value {
        Value::String(value) => text(value),
        Value::Array(values) => values.iter().try_for_each(|value| plain(name, value, depth + 1)),
        Value::Object(fields) => {
            fields.iter().try_for_each(|(field, value)| text(field).and_then(|()| plain(name, value, depth + 1)))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_user_runs_nothing_on_the_appliance_by_a_variable() {
        let deep = (0..20).fold(json!("x"), |value, _| json!([value]));
        for (vars, wanted) in [
            (json!({"kube_version": "1.35.4", "node_labels": {"a": "b"}, "drain_nodes": true}), None),
            (json!({"kube_version": "{{ lookup('pipe', 'id') }}"}), Some("template")),
            (json!({"kube_version": "{% for a in b %}"}), Some("template")),
            (json!({"node_labels": {"{{ x }}": "b"}}), Some("template")),
            (json!({"node_taints": ["a", {"b": ["{{x}}"]}]}), Some("template")),
            (json!({"cluster_name": "#jinja2:variable_start_string:'[['"}), Some("template")),
            (json!({"cluster_name": {"__ansible_vault": "x"}}), Some("template")),
            (json!({"ansible_connection": "local"}), Some("not offered")),
            (json!({"ansible_ssh_common_args": "-o ProxyCommand=id"}), Some("not offered")),
            (json!({"image_pull_command_on_localhost": "id"}), Some("not offered")),
            (json!({"credentials_dir": "/var/lib/slipway/pki"}), Some("not offered")),
            (json!({"node_labels": deep}), Some("deep")),
            (json!({"cluster_name": "x".repeat(BYTES_MAX)}), Some("longer than 1 MiB")),
        ] {
            let Value::Object(map) = vars else { panic!("an object") };
            match (RunVars::of_user(map.clone()), wanted) {
                (Ok(_), None) => {}
                (Err(fault), Some(part)) => assert!(fault.to_string().contains(part), "{fault}"),
                (found, _) => panic!("{map:?}: {:?}", found.err()),
            }
        }
    }

    #[test]
    fn what_is_offered_is_sorted_and_names_no_connection() {
        assert!(OFFERED.is_sorted(), "sorted, so that a name is found by who reads it");
        assert!(OFFERED.iter().all(|name| !name.starts_with("ansible_") && !name.ends_with("_localhost")
            || *name == "loadbalancer_apiserver_localhost"));
    }
}
