//! Who may do what: an agent with its token, and whoever edits in the namespace.

use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue, Request};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::site::{CLUSTER, NAMESPACE, Site};
use crate::api::lcm::{LCMCluster, LCMClusterState, LCMMachine};

/// A client whose requests have these headers.
fn with(site: &Site, headers: &[(HeaderName, String)], in_process: bool) -> Client {
    let (router, inside, headers) = (site.api.router(), site.client.clone(), headers.to_vec());
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let (router, inside) = (router.clone(), inside.clone());
        for (name, value) in &headers {
            request.headers_mut().insert(name.clone(), HeaderValue::from_str(value).unwrap());
        }
        async move {
            if in_process {
                return inside.send(request).await.map_err(tower::BoxError::from);
            }
            let (head, body) = router.oneshot(request.map(axum::body::Body::new)).await?.into_parts();
            let body = axum::body::to_bytes(body, usize::MAX).await?;
            Ok(http::Response::from_parts(head, Body::from(body)))
        }
    });
    Client::new(service, NAMESPACE)
}

/// The account of a machine's agent, with the rights that it has; a client with its token.
async fn agent(site: &Site, machine: &str) -> Client {
    let name = format!("lcm-{machine}");
    site.create::<ServiceAccount>(json!({"metadata": {"name": name}})).await;
    let rule = |resource: &str, verbs: Value| json!({"apiGroups": ["lcm.mirantis.com"], "resources": [resource], "resourceNames": [machine], "verbs": verbs});
    let rules = json!([
        rule("lcmmachines", json!(["get", "list", "watch"])),
        rule("lcmmachines/status", json!(["get", "patch"])),
        rule("lcmmachines/deployment", json!(["get"])),
    ]);
    site.create::<Role>(json!({"metadata": {"name": name}, "rules": rules})).await;
    let binding = json!({"metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}]});
    site.create::<RoleBinding>(binding).await;
    let request = TokenRequest { spec: TokenRequestSpec::default(), ..TokenRequest::default() };
    let token =
        site.api::<ServiceAccount>().create_token_request(&name, &PostParams::default(), &request).await.unwrap();
    with(site, &[(AUTHORIZATION, format!("Bearer {}", token.status.unwrap().token))], false)
}

fn code<T: std::fmt::Debug>(answer: Result<T, kube::Error>) -> (u16, String) {
    match answer {
        Ok(_) => (200, String::new()),
        Err(kube::Error::Api(status)) => (status.code, status.message.clone()),
        Err(error) => panic!("{error}"),
    }
}

async fn deployment(client: &Client, machine: &str) -> Result<Value, kube::Error> {
    let path = format!("/apis/lcm.mirantis.com/v1alpha1/namespaces/{NAMESPACE}/lcmmachines/{machine}/deployment");
    client.request(Request::get(path).body(Vec::new()).unwrap()).await
}

#[tokio::test]
async fn an_agent_writes_and_reads_what_is_its_own_and_nothing_else() {
    let site = Site::new().await;
    for name in ["m1", "w1"] {
        site.machine(name).await;
    }
    site.cluster(1).await;
    site.has_release("r1", 2).await;
    let worker = agent(&site, "w1").await;
    let machines = Api::<LCMMachine>::namespaced(worker.clone(), NAMESPACE);
    let say = async |name: &str, status: Value| {
        code(machines.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await)
    };
    assert_eq!(say("w1", json!({"agentVersion": "2", "stateItemStatuses": {"join": {"message": "x"}}})).await.0, 200);
    // Its root would be ready, drained or gone, and have another's Secret.
    for status in [
        json!({"state": "Ready", "release": "r9"}),
        json!({"conditions": []}),
        json!({"kubernetesCordonDrain": "cordondrained"}),
        json!({"prepareDeletionPhase": "completed"}),
        json!({"reboot": {"requestedAt": "2026-01-01T00:00:00Z"}}),
        json!({"tokenSecret": "m1-deployment"}),
    ] {
        let (refused, reason) = say("w1", status.clone()).await;
        assert_eq!(refused, 422, "{status} {reason}");
        assert!(reason.contains("the appliance writes it"), "{reason}");
    }
    assert_eq!(say("m1", json!({"agentVersion": "2"})).await.0, 403);
    let theft = json!({"spec": {"deploymentSecretName": "m1-deployment"}});
    assert_eq!(code(machines.patch("w1", &PatchParams::default(), &Patch::Merge(theft)).await).0, 403);
    assert_eq!(code(machines.get("m1").await).0, 403);
    assert_eq!(code(machines.list(&Default::default()).await).0, 403);
    assert_eq!(code(Api::<Secret>::namespaced(worker.clone(), NAMESPACE).get("w1-deployment").await).0, 403);
    assert_eq!(code(Api::<LCMCluster>::namespaced(worker.clone(), NAMESPACE).get(CLUSTER).await).0, 403);

    // What it may know is what its own Secret has.
    let told = deployment(&worker, "w1").await.unwrap();
    assert_eq!(told.as_object().unwrap().keys().collect::<Vec<_>>(), ["ca-hash"]);
    assert_eq!(code(deployment(&worker, "m1").await).0, 403);
    // Whatever else its machine names is not handed out.
    for name in ["c-ca", "c-kubeconfig", "m1-deployment", "none"] {
        site.create::<LCMMachine>(json!({"metadata": {"name": format!("x-{name}")}, "spec": {"clusterName": "d", "deploymentSecretName": name}})).await;
        let (refused, reason) = code(deployment(&site.client, &format!("x-{name}")).await);
        assert_eq!(refused, 404, "{reason}");
        assert!(reason.contains("is not handed out") || reason.contains("no Secret"), "{reason}");
    }
    // Without its account its token is nothing.
    site.delete::<ServiceAccount>("lcm-w1").await;
    assert_eq!(code(machines.get("w1").await).0, 401);
}

#[tokio::test]
async fn who_edits_in_a_namespace_reads_and_writes_nothing() {
    let site = Site::idle().await;
    site.machine("w1").await;
    site.cluster(1).await;
    for role in ["edit", "admin", "view"] {
        let binding = json!({"metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": role}]});
        site.create::<RoleBinding>(binding).await;
    }
    let user = |name: &str| with(&site, &[(HeaderName::from_static("impersonate-user"), name.to_owned())], true);
    for name in ["edit", "admin"] {
        let client = user(name);
        let machines = Api::<LCMMachine>::namespaced(client.clone(), NAMESPACE);
        assert_eq!(code(machines.get("w1").await).0, 200, "{name}");
        let patch = |value: Value| Patch::Merge(value);
        let params = PatchParams::default();
        assert_eq!(
            code(machines.patch("w1", &params, &patch(json!({"spec": {"haltAgent": true}}))).await).0,
            403,
            "{name}"
        );
        assert_eq!(
            code(machines.patch_status("w1", &params, &patch(json!({"status": {"state": "Ready"}}))).await).0,
            403
        );
        assert_eq!(code(machines.delete("w1", &DeleteParams::default()).await).0, 403, "{name}");
        assert_eq!(
            code(machines.delete_collection(&DeleteParams::default(), &Default::default()).await).0,
            403,
            "{name}"
        );
        let clusters = Api::<LCMCluster>::namespaced(client.clone(), NAMESPACE);
        assert_eq!(
            code(clusters.patch(CLUSTER, &params, &patch(json!({"spec": {"release": "r9"}}))).await).0,
            403,
            "{name}"
        );
        let states = Api::<LCMClusterState>::namespaced(client.clone(), NAMESPACE);
        let state: LCMClusterState = serde_json::from_value(json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "LCMClusterState",
            "metadata": {"name": "cd-w1"}, "spec": {"clusterName": CLUSTER, "type": "cordon-drain", "arg": "w1", "value": "true"}}))
        .unwrap();
        assert_eq!(code(states.create(&PostParams::default(), &state).await).0, 403, "{name}");
        assert_eq!(code(deployment(&client, "w1").await).0, 403, "{name}");
    }
    let viewer = Api::<LCMMachine>::namespaced(user("view"), NAMESPACE);
    assert_eq!(code(viewer.get("w1").await).0, 403, "scripts may hold secrets");
}
