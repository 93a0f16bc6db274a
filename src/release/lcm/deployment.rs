//! The subresource `deployment` of an LCMMachine: what its agent may know to make it a node.
//!
//! An agent has no right to any Secret. It is answered what stands in one Secret: that which its machine names, and only if that
//! says to be for the deployment of a machine of the same cluster, and of no other machine.

use std::sync::{Arc, OnceLock};

use axum::Json;
use axum::response::IntoResponse;
use http::StatusCode;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::{Client, ResourceExt};

use crate::api::lcm::{ANNOTATION_CLUSTER_NAME, ANNOTATION_SECRET_TYPE, GROUP, LCMMachine};
use crate::apiserver::{ApiError, ObjectView, subdomain};
use crate::runtime::owners;

/// Type of the Secret.
pub(super) const TYPE: &str = "deployment";

/// Answers with the data of the Secret, once there is somebody who can read it.
pub(super) fn view(client: Arc<OnceLock<Client>>) -> ObjectView {
    Arc::new(move |request| {
        let client = client.clone();
        Box::pin(async move {
            let client = client.get().ok_or_else(|| ApiError::unavailable("the appliance begins: try again"))?;
            let failed = |error: kube::Error| ApiError::internal(format!("the Secret cannot be read: {error}"));
            let machines = Api::<LCMMachine>::namespaced(client.clone(), &request.namespace);
            let machine = machines.get_opt(&request.name).await.map_err(failed)?;
            let machine = machine.ok_or_else(|| none("it is gone".to_owned()))?;
            let name = &machine.spec.deployment_secret_name;
            if name.is_empty() || !subdomain(name).is_empty() {
                return Err(none(format!("{} has no Secret of its deployment yet", request.name)));
            }
            let secrets = Api::<Secret>::namespaced(client.clone(), &request.namespace);
            let secret = secrets.get_opt(name).await.map_err(failed)?;
            let secret = secret.ok_or_else(|| none(format!("there is no Secret {name:?} yet")))?;
            if let Some(reason) = refusal(&machine, &secret) {
                return Err(none(format!("the Secret {name:?} is not handed out: {reason}")));
            }
            Ok(Json(secret.data.unwrap_or_default()).into_response())
        })
    })
}

fn none(message: String) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "NotFound", message)
}

/// Why a machine is not told what is in a Secret; none when it is. Pure.
fn refusal(machine: &LCMMachine, secret: &Secret) -> Option<String> {
    let has = |key: &str, value: &str| secret.annotations().get(key).is_some_and(|is| is == value);
    let cluster = &machine.spec.cluster_name;
    let owner = owners::of_kind(&secret.metadata, GROUP, "LCMMachine");
    if !has(ANNOTATION_SECRET_TYPE, TYPE) {
        Some(format!("its annotation {ANNOTATION_SECRET_TYPE} is not {TYPE:?}"))
    } else if cluster.is_empty() || !has(ANNOTATION_CLUSTER_NAME, cluster) {
        Some(format!("its annotation {ANNOTATION_CLUSTER_NAME} is not {cluster:?}"))
    } else if owner.is_some_and(|owner| Some(&owner.uid) != machine.metadata.uid.as_ref()) {
        Some("it is another machine's".to_owned())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_a_secret_for_this_machines_deployment_is_handed_out() {
        let mut machine = LCMMachine::new("m", Default::default());
        machine.metadata.uid = Some("1".into());
        machine.spec.cluster_name = "c".into();
        let secret = |annotations: Value, owner: Option<&str>| -> Secret {
            let owners = owner.map(|uid| json!([{"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "LCMMachine", "name": "m", "uid": uid}]));
            serde_json::from_value(json!({"metadata": {"annotations": annotations, "ownerReferences": owners}}))
                .unwrap()
        };
        let fine = || json!({ANNOTATION_SECRET_TYPE: "deployment", ANNOTATION_CLUSTER_NAME: "c"});
        for (secret, wanted) in [
            (secret(fine(), None), None),
            (secret(fine(), Some("1")), None),
            (secret(fine(), Some("2")), Some("another machine's")),
            (secret(json!({}), None), Some("cluster-secret-type")),
            (
                secret(json!({ANNOTATION_SECRET_TYPE: "kubeconfig", ANNOTATION_CLUSTER_NAME: "c"}), None),
                Some("secret-type"),
            ),
            (
                secret(json!({ANNOTATION_SECRET_TYPE: "deployment", ANNOTATION_CLUSTER_NAME: "d"}), None),
                Some("cluster-name"),
            ),
            (secret(json!({ANNOTATION_SECRET_TYPE: "deployment"}), None), Some("cluster-name")),
        ] {
            let reason = refusal(&machine, &secret);
            match wanted {
                None => assert_eq!(reason, None),
                Some(part) => assert!(reason.as_ref().is_some_and(|reason| reason.contains(part)), "{reason:?}"),
            }
        }
    }
}
