//! What a control plane must be before it is stored, beyond what its schema says. Pure.
//!
//! What a stored object breaks already does not stop another change of it: a rule that is new here must not keep a finalizer on it.

use serde_json::{Value, json};

use super::images;
use crate::api::control_plane::ANNOTATION_SKIP_COREDNS;
use crate::apiserver::{AdmissionOperation, AdmissionRequest, FieldError};
use crate::cluster::contract::{KubeVersion, named_by};

/// Years that a cluster's CA lasts where nobody says otherwise, in days.
const CA_DAYS: i64 = 3650;

/// What of a control plane never changes.
const FIXED: [&str; 3] = ["controlPlaneEndpoint", "certificatesDir", "caCertificateValidityPeriodDays"];

/// Rules for a KubeadmControlPlane.
///
/// # Errors
///
/// Every rule that the change breaks.
pub fn admit(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    judge(request, |object| faults(&object["spec"]), changes)
}

/// Rules for a KubeadmControlPlaneTemplate.
///
/// # Errors
///
/// Every rule that the change breaks.
pub fn admit_template(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    let of_template = |object: &Value| common(&object["spec"]["template"]["spec"], "spec.template.spec");
    judge(request, of_template, |old, new| {
        let spec = |object: &Value| object["spec"]["template"]["spec"].clone();
        let same = spec(old) == spec(new);
        let fixed = || FieldError::forbidden("spec.template.spec", "templates do not change: make another one");
        if same { Vec::new() } else { vec![fixed()] }
    })
}

fn judge(
    request: &AdmissionRequest<'_>,
    faults: impl Fn(&Value) -> Vec<FieldError>,
    changes: impl Fn(&Value, &Value) -> Vec<FieldError>,
) -> Result<(), Vec<FieldError>> {
    if request.status || request.operation == AdmissionOperation::Delete {
        return Ok(());
    }
    let mut errors = faults(request.object);
    if let Some(old) = request.old {
        if !errors.is_empty() {
            let known = faults(old);
            errors.retain(|error| !known.contains(error));
        }
        errors.extend(changes(old, request.object));
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Most machines of a control plane. etcd says seven at most: <https://etcd.io/docs/latest/faq/>.
const REPLICAS_MAX: i64 = 15;

/// What is wrong with a control plane by itself.
fn faults(spec: &Value) -> Vec<FieldError> {
    let mut errors = common(spec, "spec");
    let external = etcd(spec, "external").is_some();
    match spec["replicas"].as_i64() {
        None => errors.push(FieldError::required("spec.replicas", "is required")),
        Some(count) if count <= 0 => {
            errors.push(FieldError::forbidden("spec.replicas", "cannot be less than or equal to 0"));
        }
        Some(count) if count > REPLICAS_MAX => {
            let reason = format!("cannot be more than {REPLICAS_MAX}: more members make etcd slower and no safer");
            errors.push(FieldError::forbidden("spec.replicas", &reason));
        }
        Some(count) if count % 2 == 0 && !external => {
            errors.push(FieldError::forbidden("spec.replicas", "cannot be an even number when etcd is stacked"));
        }
        Some(_) => {}
    }
    if let Err(reason) = version(spec["version"].as_str().unwrap_or_default()) {
        errors.push(FieldError::invalid("spec.version", &spec["version"], reason));
    }
    let surge = max_surge(spec);
    if surge == Some(0) && spec["replicas"].as_i64().is_some_and(|count| count < 3) {
        let path = "spec.rollout.strategy.rollingUpdate";
        errors.push(FieldError::required(path, "with a maxSurge of 0 at least 3 replicas are needed"));
    }
    errors
}

/// What is wrong with what control planes and templates of them have alike, at a path.
fn common(spec: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let said = spec.pointer("/rollout/strategy/rollingUpdate/maxSurge").filter(|said| !said.is_null());
    if let Some(said) = said
        && !matches!(max_surge(spec), Some(0 | 1))
    {
        let path = format!("{path}.rollout.strategy.rollingUpdate.maxSurge");
        errors.push(FieldError::invalid(path, said, "must be 1 or 0"));
    }
    if let Some(template) = spec.pointer("/machineNaming/template").and_then(Value::as_str) {
        let values = [(".cluster.name", "cluster"), (".kubeadmControlPlane.name", "plane")];
        if let Err(reason) = named_by(template, &values) {
            errors.push(FieldError::invalid(format!("{path}.machineNaming.template"), &json!(template), reason));
        }
    }
    let config = &spec["kubeadmConfigSpec"]["clusterConfiguration"];
    let config_path = format!("{path}.kubeadmConfigSpec.clusterConfiguration");
    if etcd(spec, "local").is_some() && etcd(spec, "external").is_some() {
        errors
            .push(FieldError::forbidden(format!("{config_path}.etcd.local"), "cannot be there together with external"));
    }
    for field in ["dns", "etcd.local"] {
        let tag = config.pointer(&format!("/{}/imageTag", field.replace('.', "/"))).and_then(Value::as_str);
        if let Some(tag) = tag.filter(|tag| !tag.is_empty() && !images::is_tag(tag)) {
            let path = format!("{config_path}.{field}.imageTag");
            errors.push(FieldError::invalid(path, &json!(tag), "is no tag of an image"));
        }
    }
    if let Some(tag) = config.pointer("/dns/imageTag").and_then(Value::as_str).filter(|tag| images::is_tag(tag))
        && images::version(tag).is_none()
    {
        let path = format!("{config_path}.dns.imageTag");
        errors.push(FieldError::invalid(path, &json!(tag), "is no version of CoreDNS, such as v1.12.1"));
    }
    days(spec, path, &mut errors);
    errors
}

/// Certificates last no longer than their CA, and machines are not replaced as soon as they are there.
fn days(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let config = &spec["kubeadmConfigSpec"]["clusterConfiguration"];
    let days = |value: &Value| value.as_i64().filter(|days| *days != 0);
    let Some(certificates) = days(&config["certificateValidityPeriodDays"]) else { return };
    let ca = days(&config["caCertificateValidityPeriodDays"]).unwrap_or(CA_DAYS);
    if certificates > ca {
        let path = format!("{path}.kubeadmConfigSpec.clusterConfiguration.certificateValidityPeriodDays");
        let reason = format!("must be at most the {ca} days that the CA lasts");
        errors.push(FieldError::invalid(path, &json!(certificates), reason));
    }
    let before = spec.pointer("/rollout/before/certificatesExpiryDays").and_then(Value::as_i64);
    if let Some(before) = before.filter(|before| *before >= certificates) {
        let path = format!("{path}.rollout.before.certificatesExpiryDays");
        let reason = format!("must be less than certificateValidityPeriodDays ({certificates})");
        errors.push(FieldError::invalid(path, &json!(before), reason));
    }
}

/// What is wrong with a change.
fn changes(old: &Value, new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let config = |object: &Value| object["spec"]["kubeadmConfigSpec"]["clusterConfiguration"].clone();
    let (before, after) = (config(old), config(new));
    let path = "spec.kubeadmConfigSpec.clusterConfiguration";
    for field in FIXED {
        let is_set = |config: &Value| config.get(field).filter(|value| !value.is_null()).cloned();
        if is_set(&before) != is_set(&after) {
            errors.push(FieldError::forbidden(format!("{path}.{field}"), "cannot be modified"));
        }
    }
    if etcd(&old["spec"], "external").is_some() != etcd(&new["spec"], "external").is_some() {
        let reason = "cannot change between external and local etcd";
        errors.push(FieldError::forbidden(format!("{path}.etcd.external"), reason));
    }
    errors.extend(version_change(&old["spec"]["version"], &new["spec"]["version"]));
    let tag = |config: &Value| config.pointer("/dns/imageTag").and_then(Value::as_str).and_then(images::version);
    let skips = new["metadata"]["annotations"].get(ANNOTATION_SKIP_COREDNS).is_some();
    if let (Some(from), Some(to), false) = (tag(&before), tag(&after), skips)
        && to < from
    {
        errors.push(FieldError::forbidden(format!("{path}.dns.imageTag"), "CoreDNS cannot be made older"));
    }
    errors
}

/// kubeadm goes from one minor version to the next, and not back.
fn version_change(old: &Value, new: &Value) -> Option<FieldError> {
    let parse = |version: &Value| version.as_str()?.parse::<KubeVersion>().ok();
    let (from, to) = (parse(old)?, parse(new)?);
    let minor = |version: KubeVersion| (version.major, version.minor);
    let fine = minor(to) >= minor(from) && minor(to) <= (from.major, from.minor.saturating_add(1));
    let reason = "an upgrade goes to the next minor version at most, and not back to an older one";
    (!fine).then(|| FieldError::forbidden("spec.version", reason))
}

/// A version of Kubernetes, as it goes into names of images and files.
///
/// # Errors
///
/// When it is none.
pub(super) fn version(text: &str) -> Result<KubeVersion, String> {
    let version: KubeVersion = text.parse()?;
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+');
    if text.starts_with('v') && text.bytes().all(fine) {
        return Ok(version);
    }
    Err("must be a version of Kubernetes with a v in front, such as v1.35.2".into())
}

/// Machines that may be there beyond those wished for; nothing when what is said is none.
pub(super) fn max_surge(spec: &Value) -> Option<i64> {
    let said = spec.pointer("/rollout/strategy/rollingUpdate/maxSurge")?;
    said.as_i64().or_else(|| said.as_str()?.parse().ok())
}

/// `local` or `external` of what is said of etcd, when something is.
fn etcd<'s>(spec: &'s Value, kind: &str) -> Option<&'s Value> {
    let said = spec["kubeadmConfigSpec"]["clusterConfiguration"]["etcd"].get(kind)?;
    said.as_object().is_some_and(|map| !map.is_empty()).then_some(said)
}

/// Whether etcd runs on the machines of a control plane.
pub(super) fn is_etcd_managed(spec: &Value) -> bool {
    etcd(spec, "external").is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(mut object: Value, over: Value) -> Value {
        json_patch::merge(&mut object, &over);
        object
    }

    fn control_plane(over: Value) -> Value {
        let spec = json!({
            "replicas": 3, "version": "v1.34.0", "machineTemplate": {},
            "kubeadmConfigSpec": {"clusterConfiguration": {"dns": {"imageTag": "v1.12.0"}}},
            "rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}},
        });
        json!({"metadata": {"name": "c"}, "spec": merged(spec, over)})
    }

    fn fields(errors: &[FieldError]) -> Vec<String> {
        errors.iter().map(|error| format!("{error:?}")).collect()
    }

    #[test]
    fn control_planes_are_judged() {
        let config = |config: Value| json!({"kubeadmConfigSpec": {"clusterConfiguration": config}});
        let surge = |surge: Value| json!({"rollout": {"strategy": {"rollingUpdate": {"maxSurge": surge}}}});
        let naming = |template: &str| json!({"machineNaming": {"template": template}});
        let rows: Vec<(Value, Option<&str>)> = vec![
            (json!({}), None),
            (json!({"replicas": null}), Some("spec.replicas")),
            (json!({"replicas": 0}), Some("spec.replicas")),
            (json!({"replicas": -1}), Some("spec.replicas")),
            (json!({"replicas": 4}), Some("spec.replicas")),
            (json!({"replicas": 15}), None),
            (json!({"replicas": 17}), Some("spec.replicas")),
            (merged(json!({"replicas": 4}), config(json!({"etcd": {"external": {"endpoints": ["x"]}}}))), None),
            (json!({"version": "1.34.0"}), Some("spec.version")),
            (json!({"version": "v1.34"}), Some("spec.version")),
            (json!({"version": "v1.34.0-rc.1+x"}), None),
            (json!({"version": "v1.34.0-a b"}), Some("spec.version")),
            (json!({"version": "v1.34.0-a\nb"}), Some("spec.version")),
            (surge(json!(0)), None),
            (surge(json!("1")), None),
            (surge(json!(2)), Some("maxSurge")),
            (surge(json!("50%")), Some("maxSurge")),
            (merged(json!({"replicas": 1}), surge(json!(0))), Some("rollingUpdate")),
            (naming("{{ .cluster.name }}-{{ .random }}"), None),
            (naming("{{ .kubeadmControlPlane.name }}"), Some("machineNaming.template")),
            (naming("{{ .other }}-{{ .random }}"), Some("machineNaming.template")),
            (
                config(json!({"etcd": {"local": {"dataDir": "/x"}, "external": {"endpoints": ["x"]}}})),
                Some("etcd.local"),
            ),
            (config(json!({"dns": {"imageTag": "a b"}})), Some("dns.imageTag")),
            (config(json!({"dns": {"imageTag": "latest"}})), Some("dns.imageTag")),
            (config(json!({"etcd": {"local": {"imageTag": "/"}}})), Some("etcd.local.imageTag")),
            (config(json!({"certificateValidityPeriodDays": 3651})), Some("certificateValidityPeriodDays")),
            (
                config(json!({"certificateValidityPeriodDays": 9, "caCertificateValidityPeriodDays": 8})),
                Some("certificateValidityPeriodDays"),
            ),
            (
                merged(
                    config(json!({"certificateValidityPeriodDays": 9})),
                    json!({"rollout": {"before": {"certificatesExpiryDays": 9}}}),
                ),
                Some("certificatesExpiryDays"),
            ),
        ];
        for (over, wanted) in rows {
            let found = fields(&faults(&control_plane(over.clone())["spec"]));
            match wanted {
                None => assert!(found.is_empty(), "{over}: {found:?}"),
                Some(field) => assert!(found.iter().any(|one| one.contains(field)), "{over}: {found:?}"),
            }
        }
    }

    #[test]
    fn changes_are_judged() {
        let config = |config: Value| json!({"kubeadmConfigSpec": {"clusterConfiguration": config}});
        let version = |version: &str| json!({"version": version});
        let rows: Vec<(Value, Value, Option<&str>)> = vec![
            (json!({}), json!({"replicas": 5, "rollout": {"after": "2027-01-01T00:00:00Z"}}), None),
            (json!({}), version("v1.35.9"), None),
            (json!({}), version("v1.36.0"), Some("spec.version")),
            (json!({}), version("v2.0.0"), Some("spec.version")),
            (json!({}), version("v1.33.9"), Some("spec.version")),
            (version("v1.34.2"), version("v1.34.1"), None),
            (json!({}), config(json!({"certificatesDir": "/x"})), Some("certificatesDir")),
            (config(json!({"controlPlaneEndpoint": "a:1"})), json!({}), Some("controlPlaneEndpoint")),
            (json!({}), config(json!({"apiServer": {"certSANs": ["x"]}})), None),
            (json!({}), config(json!({"etcd": {"external": {"endpoints": ["x"]}}})), Some("etcd.external")),
            (json!({}), config(json!({"etcd": {"local": {"imageTag": "3.6.5-0"}}})), None),
            (json!({}), config(json!({"dns": {"imageTag": "v1.12.1"}})), None),
            (json!({}), config(json!({"dns": {"imageTag": "v1.11.3"}})), Some("dns.imageTag")),
        ];
        for (old, new, wanted) in rows {
            let found = fields(&changes(&control_plane(old), &control_plane(new.clone())));
            match wanted {
                None => assert!(found.is_empty(), "{new}: {found:?}"),
                Some(field) => assert!(found.iter().any(|one| one.contains(field)), "{new}: {found:?}"),
            }
        }
    }
}
