//! What a machine does at its first boot, read from its config drive as cloud-init and kubeadm read it. Pure.

use regex::{Captures, Regex};
use serde_json::{Value, json};

/// What kubeadm makes of a machine.
pub(super) struct Booted {
    /// What the cluster is to be, where the machine begins it: a text of kubeadm's.
    pub(super) begins: Option<String>,
    /// How the machine finds the cluster, where it joins one.
    pub(super) discovery: Value,
    /// Whether it is one of the control plane.
    pub(super) is_plane: bool,
    /// Its node.
    pub(super) node: Value,
}

/// Reads user data, of a machine with this meta data.
pub(super) fn boot(user_data: &str, meta_data: &Value) -> Result<Booted, String> {
    if !user_data.starts_with("## template: jinja\n#cloud-config\n") {
        return Err(format!("it is no template for cloud-init: {user_data:.60}"));
    }
    let data: Value = serde_saphyr::from_str(&filled(user_data, meta_data)?).map_err(|error| error.to_string())?;
    let files = data["write_files"].as_array().ok_or("it has no files")?;
    let file = |path: &str| files.iter().find(|file| file["path"] == path).and_then(|file| file["content"].as_str());
    let runs = |word: &str, path: &str| {
        let wanted = format!("kubeadm {word} --config {path}");
        data["runcmd"].as_array().is_some_and(|all| all.iter().any(|one| one.as_str().unwrap().contains(&wanted)))
    };
    let (init, join) = ("/run/kubeadm/kubeadm.yaml", "/run/kubeadm/kubeadm-join-config.yaml");
    if let Some(text) = file(init).filter(|_| runs("init", init)) {
        for name in ["ca", "etcd/ca", "front-proxy-ca"] {
            file(&format!("/etc/kubernetes/pki/{name}.key")).ok_or_else(|| format!("it lacks the key of {name}"))?;
        }
        let all = documents(text)?;
        let of = |kind: &str| all.iter().find(|one| one["kind"] == kind).ok_or_else(|| format!("no {kind}"));
        let (cluster, node) = (of("ClusterConfiguration")?, of("InitConfiguration")?);
        let begins = Some(serde_saphyr::to_string(cluster).map_err(|error| error.to_string())?);
        let node = made_node(&node["nodeRegistration"], meta_data);
        return Ok(Booted { begins, discovery: Value::Null, is_plane: true, node });
    }
    let text = file(join).filter(|_| runs("join", join)).ok_or("it runs no kubeadm")?;
    let all = documents(text)?;
    let joins = all.iter().find(|one| one["kind"] == "JoinConfiguration").ok_or("no JoinConfiguration")?;
    let is_plane = !joins["controlPlane"].is_null();
    if is_plane != file("/etc/kubernetes/pki/ca.key").is_some() {
        return Err("keys of the cluster are for machines of its control plane, and for nobody else".into());
    }
    let node = made_node(&joins["nodeRegistration"], meta_data);
    Ok(Booted { begins: None, discovery: joins["discovery"].clone(), is_plane, node })
}

/// Fills in what the template takes from the meta data.
fn filled(template: &str, meta_data: &Value) -> Result<String, String> {
    let wanted = Regex::new(r"\{\{\s*ds\.meta_data\.(\w+)\s*\}\}").unwrap();
    let missing = wanted.captures_iter(template).find(|found| meta_data[&found[1]].as_str().is_none());
    if let Some(missing) = missing {
        return Err(format!("the meta data has no {}", &missing[1]));
    }
    let fill = |found: &Captures<'_>| meta_data[&found[1]].as_str().unwrap_or_default().to_owned();
    Ok(wanted.replace_all(template, fill).into_owned())
}

/// The documents of a text in YAML.
pub(super) fn documents(text: &str) -> Result<Vec<Value>, String> {
    let texts = text.split("---\n").filter(|one| !one.trim().is_empty());
    texts.map(|one| serde_saphyr::from_str(one).map_err(|error| error.to_string())).collect()
}

/// The node that a kubelet registers.
fn made_node(registration: &Value, meta_data: &Value) -> Value {
    let name = registration["name"].as_str().or(meta_data["local_hostname"].as_str()).unwrap_or_default();
    let arguments = &registration["kubeletExtraArgs"];
    // A map before kubeadm's v1beta4, a list since.
    let argument = |key: &str| {
        let of_list = || arguments.as_array()?.iter().find(|one| one["name"] == key)?["value"].as_str();
        arguments[key].as_str().or_else(of_list).map(str::to_owned)
    };
    let labels = argument("node-labels").unwrap_or_default();
    let labels: serde_json::Map<String, Value> = labels
        .split(',')
        .filter_map(|one| one.split_once('='))
        .map(|(key, value)| (key.into(), value.into()))
        .collect();
    let mut spec = json!({"taints": registration["taints"].as_array().cloned().unwrap_or_default()});
    if let Some(id) = argument("provider-id") {
        spec["providerID"] = id.into();
    }
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": labels},
        "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
    })
}

#[test]
fn a_template_is_filled_in_or_refused() {
    let meta_data = json!({"uuid": "u-1"});
    assert_eq!(filled("a={{ ds.meta_data.uuid }}", &meta_data), Ok("a=u-1".into()));
    assert_eq!(filled("a={{ ds.meta_data.rack }}", &meta_data), Err("the meta data has no rack".into()));
}
