//! What is put into a cluster for its Helm controller, and what is made of what is there. Pure.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::hex::hex;

/// Namespace in the cluster.
pub(super) const NAMESPACE: &str = "kube-system";
/// Name of the Helm release, and of the Deployment that it makes.
pub(super) const CONTROLLER: &str = "helm-controller";
/// Secret in the cluster with the controller's token and logins.
pub(super) const SECRET: &str = "slipway-helm-controller";
/// Account and binding in the cluster of what installs the controller; its Jobs begin with it.
pub(super) const INSTALLER: &str = "slipway-helm-install";
/// Label of those Jobs.
pub(super) const LABEL: &str = "slipway.dev/installs";
/// Annotation of the Secret: when the token ends.
const EXPIRES: &str = "slipway.dev/token-expires";
/// Annotation of the Secret: UID of the account on the appliance whose token it is.
const ACCOUNT: &str = "slipway.dev/token-account";
/// How long a token is good, in seconds: a cluster may be out of reach for weeks.
pub(super) const TOKEN_SECONDS: i64 = 30 * 24 * 3600;
/// A token that is good for less is made anew: a third of its time.
const TOKEN_LEAST: SignedDuration = SignedDuration::from_hours(10 * 24);
/// Type of Secrets with a login; no other ones are handed to a cluster, whatever a release names.
const LOGIN: &str = "kubernetes.io/basic-auth";
/// Longest login that is handed on, in bytes.
const LOGIN_MAX: usize = 4096;
/// How long helm may take to install the controller, in seconds, and how often a Job tries.
const INSTALL_SECONDS: u32 = 900;
const TRIES: u32 = 3;

/// Whom a controller works for.
#[derive(Clone, Debug)]
pub(super) struct ControllerTarget<'a> {
    /// URL of the appliance.
    pub server: &'a str,
    /// CA of the appliance, as PEM.
    pub ca_pem: &'a str,
    /// Namespace of the bundle.
    pub namespace: &'a str,
    /// Name of the bundle.
    pub bundle: &'a str,
}

/// Whether the token in a cluster's Secret is good for long enough, and this account's.
pub(super) fn has_good_token(secret: Option<&Secret>, account: &str, now: Timestamp) -> bool {
    let Some(secret) = secret else { return false };
    let said = |key: &str| secret.annotations().get(key).map_or("", String::as_str);
    let ends = said(EXPIRES).parse::<Timestamp>();
    secret.data.as_ref().is_some_and(|data| data.get("token").is_some_and(|token| !token.0.is_empty()))
        && said(ACCOUNT) == account
        && ends.is_ok_and(|ends| ends.duration_since(now) >= TOKEN_LEAST)
}

/// The login in a Secret of the appliance.
///
/// # Errors
///
/// Why it is none.
pub(super) fn login(name: &str, secret: Option<&Secret>) -> Result<[Vec<u8>; 2], String> {
    let Some(secret) = secret else { return Err(format!("there is no Secret {name:?} with a login of a repository")) };
    if secret.type_.as_deref() != Some(LOGIN) {
        return Err(format!("the Secret {name:?} with a login of a repository must be of the type {LOGIN}"));
    }
    let part = |key: &str| {
        let value = secret.data.as_ref().and_then(|data| data.get(key)).map(|value| value.0.clone());
        let good = |value: &Vec<u8>| !value.is_empty() && value.len() <= LOGIN_MAX && !value.contains(&b'\n');
        value.filter(good).ok_or_else(|| format!("the Secret {name:?} must have {key}, of one line"))
    };
    Ok([part("username")?, part("password")?])
}

/// The Secret in the cluster as a merge patch: with a new token, where there is one, and these logins and no others.
pub(super) fn secret(
    present: Option<&Secret>,
    token: Option<(&str, Timestamp, &str)>,
    logins: &BTreeMap<String, [Vec<u8>; 2]>,
) -> Value {
    let (mut data, mut annotations) = (Map::new(), Map::new());
    for key in present.and_then(|secret| secret.data.as_ref()).into_iter().flatten().map(|(key, _)| key) {
        if key != "token" {
            data.insert(key.clone(), Value::Null);
        }
    }
    for (name, [username, password]) in logins {
        data.insert(format!("{name}.username"), STANDARD.encode(username).into());
        data.insert(format!("{name}.password"), STANDARD.encode(password).into());
    }
    if let Some((token, expires, account)) = token {
        data.insert("token".into(), STANDARD.encode(token).into());
        annotations.insert(EXPIRES.into(), expires.to_string().into());
        annotations.insert(ACCOUNT.into(), account.into());
    }
    json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": SECRET, "namespace": NAMESPACE, "annotations": annotations}, "data": data})
}

/// Account of what installs.
pub(super) fn account() -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": INSTALLER, "namespace": NAMESPACE}})
}

/// What that may do: a chart that gives every right is installed by whoever has every right.
pub(super) fn binding() -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": INSTALLER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": INSTALLER, "namespace": NAMESPACE}]})
}

/// The Job that installs the controller of this version of the program for this target. Another version or target is another Job.
pub(super) fn job(target: &ControllerTarget<'_>, version: &str) -> Value {
    let values = json!({"server": target.server, "ca": target.ca_pem, "namespace": target.namespace, "bundle": target.bundle,
        "tokenSecret": SECRET});
    let pod = json!({
        "serviceAccountName": INSTALLER,
        // It comes before charts that bring the network of pods.
        "hostNetwork": true,
        "restartPolicy": "Never",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [{
            "name": "helm",
            "image": image(version),
            "args": ["helm-controller", "install", "--namespace", NAMESPACE, "--name", CONTROLLER, "--values", values.to_string()],
            "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true, "runAsUser": 65534,
                "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
        }],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    });
    let digest = hex(&Sha256::digest(pod.to_string()));
    let name = format!("{INSTALLER}-{}", &digest[..10]);
    json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {LABEL: CONTROLLER}},
        "spec": {"backoffLimit": TRIES, "activeDeadlineSeconds": INSTALL_SECONDS,
            "template": {"metadata": {"labels": {LABEL: CONTROLLER}}, "spec": pod}}})
}

/// The controller's image.
pub(super) fn image(version: &str) -> String {
    format!("slipway/{CONTROLLER}:{version}")
}

/// What became of a Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InstallOutcome {
    /// It has not ended.
    Running,
    /// It went well.
    Done,
    /// It did not, since then.
    Failed(Option<Timestamp>, String),
}

/// What became of a Job.
pub(super) fn outcome(job: &Job) -> InstallOutcome {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    for one in conditions.filter(|one| one.status == "True") {
        match one.type_.as_str() {
            "Complete" => return InstallOutcome::Done,
            "Failed" => {
                let since = one.last_transition_time.as_ref().map(|time| time.0);
                return InstallOutcome::Failed(
                    since,
                    one.message.clone().or_else(|| one.reason.clone()).unwrap_or_default(),
                );
            }
            _ => {}
        }
    }
    InstallOutcome::Running
}

/// Why pods of a Job do not run, if one says so.
pub(super) fn trouble(pods: &[Pod], version: &str) -> Option<String> {
    let waiting = pods.iter().flat_map(|pod| {
        let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        statuses.filter_map(|one| one.state.as_ref()?.waiting.as_ref()?.reason.clone())
    });
    let unscheduled = pods.iter().flat_map(|pod| {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions
            .filter(|one| one.type_ == "PodScheduled" && one.status == "False")
            .filter_map(|one| one.message.clone())
    });
    let pulls = ["ImagePullBackOff", "ErrImagePull", "InvalidImageName"];
    for reason in waiting {
        if pulls.contains(&reason.as_str()) {
            return Some(format!(
                "nodes do not get the image {}: make it by `slipway helm-controller image`, and import it with --publish",
                image(version)
            ));
        }
        if reason != "ContainerCreating" && reason != "PodInitializing" {
            return Some(reason);
        }
    }
    unscheduled.into_iter().next()
}

/// Whether the controller runs; if not, why.
pub(super) fn runs(deployment: Option<&Deployment>) -> Result<(), String> {
    let Some(deployment) = deployment else {
        return Err(format!("there is no Deployment {NAMESPACE}/{CONTROLLER} in the cluster"));
    };
    let status = deployment.status.clone().unwrap_or_default();
    let is_current = status.observed_generation >= deployment.metadata.generation;
    if is_current && status.available_replicas.unwrap_or_default() > 0 {
        return Ok(());
    }
    let conditions = status.conditions.iter().flatten().filter(|one| one.status == "False");
    let said = conditions.filter_map(|one| one.message.clone()).next();
    Err(said.unwrap_or_else(|| format!("no pod of the Deployment {NAMESPACE}/{CONTROLLER} is ready")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_token_is_made_anew_when_a_third_is_left_or_its_account_is_another() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let made = |token: &str, expires: &str, account: &str| -> Secret {
            of(json!({"metadata": {"annotations": {EXPIRES: expires, ACCOUNT: account}}, "data": {"token": token}}))
        };
        for (secret, good) in [
            (None, false),
            (Some(made("eA==", "2026-01-31T00:00:00Z", "u1")), true),
            (Some(made("eA==", "2026-01-10T23:59:59Z", "u1")), false),
            (Some(made("eA==", "2025-01-01T00:00:00Z", "u1")), false),
            (Some(made("eA==", "soon", "u1")), false),
            (Some(made("", "2026-01-31T00:00:00Z", "u1")), false),
            (Some(made("eA==", "2026-01-31T00:00:00Z", "u0")), false),
        ] {
            assert_eq!(has_good_token(secret.as_ref(), "u1", now), good, "{secret:?}");
        }
    }

    #[test]
    fn only_logins_are_handed_to_a_cluster() {
        let login_of = |type_: &str, data: Value| login("repo", Some(&of(json!({"type": type_, "data": data}))));
        let whole = json!({"username": "dQ==", "password": "cA=="});
        assert_eq!(login_of(LOGIN, whole.clone()), Ok([b"u".to_vec(), b"p".to_vec()]));
        for (found, wanted) in [
            (login("repo", None), "there is no Secret"),
            (login_of("Opaque", whole.clone()), "must be of the type"),
            (login_of("kubernetes.io/service-account-token", whole), "must be of the type"),
            (login_of(LOGIN, json!({"username": "dQ=="})), "must have password"),
            (login_of(LOGIN, json!({"username": "YQpi", "password": "cA=="})), "of one line"),
        ] {
            assert!(found.as_ref().unwrap_err().contains(wanted), "{found:?}");
        }
        // One that is not wanted any more goes; the token stays.
        let present: Secret = of(json!({"data": {"token": "eA==", "old.username": "dQ==", "old.password": "cA=="}}));
        let patch = secret(Some(&present), None, &BTreeMap::from([("new".to_owned(), [b"u".to_vec(), b"p".to_vec()])]));
        let wanted =
            json!({"old.username": null, "old.password": null, "new.username": "dQ==", "new.password": "cA=="});
        assert_eq!(patch["data"], wanted);
    }

    #[test]
    fn another_target_is_another_job_and_no_secret_is_in_one() {
        let target =
            ControllerTarget { server: "https://192.0.2.1:8443", ca_pem: "PEM", namespace: "proj", bundle: "edge" };
        let one = job(&target, "0.1.0");
        let again = job(&target, "0.1.0");
        assert_eq!(one, again);
        assert_ne!(one["metadata"]["name"], job(&target, "0.2.0")["metadata"]["name"]);
        assert_ne!(
            one["metadata"]["name"],
            job(&ControllerTarget { server: "https://192.0.2.2:8443", ..target }, "0.1.0")["metadata"]["name"]
        );
        let typed: Job = of(one);
        let pod = typed.spec.unwrap().template.spec.unwrap();
        assert_eq!(pod.containers[0].image.as_deref(), Some("slipway/helm-controller:0.1.0"));
        let values: Value = serde_json::from_str(pod.containers[0].args.as_ref().unwrap().last().unwrap()).unwrap();
        assert_eq!((&values["tokenSecret"], &values["token"]), (&json!(SECRET), &Value::Null));
    }

    #[test]
    fn what_is_there_is_told() {
        let job = |conditions: Value| -> Job { of(json!({"status": {"conditions": conditions}})) };
        assert_eq!(outcome(&job(json!([]))), InstallOutcome::Running);
        assert_eq!(outcome(&job(json!([{"type": "Failed", "status": "False"}]))), InstallOutcome::Running);
        assert_eq!(outcome(&job(json!([{"type": "Complete", "status": "True"}]))), InstallOutcome::Done);
        let failed =
            json!([{"type": "Failed", "status": "True", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        assert_eq!(outcome(&job(failed)), InstallOutcome::Failed("2026-01-01T00:00:00Z".parse().ok(), "m".into()));
        let pod = |reason: &str| -> Pod {
            of(
                json!({"status": {"containerStatuses": [{"name": "helm", "ready": false, "restartCount": 0, "image": "", "imageID": "",
                "state": {"waiting": {"reason": reason}}}]}}),
            )
        };
        assert!(trouble(&[pod("ErrImagePull")], "1").unwrap().contains("slipway/helm-controller:1"));
        assert_eq!(trouble(&[pod("ContainerCreating")], "1"), None);
        assert_eq!(trouble(&[pod("CreateContainerError")], "1").as_deref(), Some("CreateContainerError"));
        let deployment = |status: Value| -> Deployment { of(json!({"metadata": {"generation": 2}, "status": status})) };
        assert!(runs(None).unwrap_err().contains("no Deployment"));
        assert!(runs(Some(&deployment(json!({"observedGeneration": 2, "availableReplicas": 1})))).is_ok());
        assert!(runs(Some(&deployment(json!({"observedGeneration": 1, "availableReplicas": 1})))).is_err());
        let ill = json!({"observedGeneration": 2, "conditions": [{"type": "Available", "status": "False", "message": "why"}]});
        assert_eq!(runs(Some(&deployment(ill))), Err("why".into()));
    }
}
