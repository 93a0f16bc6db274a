//! What one caller may take of uploads, and that what he leaves is free at once: against an appliance as a process.

use axum::body::Bytes;
use futures::channel::mpsc;
use futures::stream::StreamExt;
use http_body::Frame;
use http_body_util::StreamBody;
use kube::api::{Api, DeleteParams, PostParams};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use slipway::api::slipway::Image;
use tower::ServiceExt;

use crate::process::{Appliance, until};

/// A client of somebody with `edit` in the whole cluster.
async fn editor(appliance: &Appliance, admin: &Client, name: &str) -> Client {
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name }] });
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let request = http::Request::post(path).header("content-type", "application/json");
    admin.request::<Value>(request.body(binding.to_string().into_bytes()).unwrap()).await.unwrap();
    let mut config: Value = serde_saphyr::from_str(&appliance.kubeconfig().await).unwrap();
    config["users"][0]["user"]["as"] = name.into();
    let config = Kubeconfig::from_yaml(&config.to_string()).unwrap();
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

async fn create(client: &Client, name: &str) {
    let image = json!({ "metadata": { "name": name }, "spec": { "url": "upload:os.raw", "checksum": "0".repeat(64) } });
    let images = Api::<Image>::all(client.clone());
    images.create(&PostParams::default(), &serde_json::from_value(image).unwrap()).await.unwrap();
}

/// The code of the answer to a piece, and what it says.
async fn send<B>(client: &Client, name: &str, query: &str, body: B) -> (u16, String)
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<tower::BoxError>,
{
    let path = format!("/apis/slipway.dev/v1alpha1/images/{name}/upload?offset=0{query}");
    let answer = client.clone().oneshot(http::Request::post(path).body(body).unwrap()).await.unwrap();
    let code = answer.status().as_u16();
    (code, String::from_utf8_lossy(&answer.into_body().collect_bytes().await.unwrap()).into_owned())
}

fn bytes(body: &[u8]) -> Body {
    Body::from(body.to_vec())
}

/// A body of which a byte has come, and that does not end before the sender is dropped.
fn endless() -> (mpsc::UnboundedSender<()>, impl http_body::Body<Data = Bytes, Error = std::io::Error> + Send + 'static)
{
    let (end, ended) = mpsc::unbounded::<()>();
    let first = futures::stream::iter([Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(b"x")))]);
    let rest = ended.map(|()| Ok(Frame::data(Bytes::from_static(b"x"))));
    (end, StreamBody::new(first.chain(rest)))
}

fn uploads(appliance: &Appliance) -> usize {
    std::fs::read_dir(appliance.data().join("images/uploads")).unwrap().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_begins_uploads_without_end_keeps_nobody_from_his() {
    let appliance = Appliance::new().await;
    let admin = appliance.client().await;
    let mallory = editor(&appliance, &admin, "mallory").await;
    let mut begun = 0;
    let refused = loop {
        assert!(begun < 100, "he may begin as many as he likes");
        let name = format!("mallory-{begun}");
        create(&mallory, &name).await;
        match send(&mallory, &name, "", bytes(b"x")).await {
            (200, _) => begun += 1,
            refused => break refused,
        }
    };
    assert!(refused.0 == 403 && refused.1.contains("image remove"), "{refused:?}");
    create(&admin, "ours").await;
    // There is no dry run of it.
    let (code, said) = send(&admin, "ours", "&dryRun=All", bytes(b"x")).await;
    assert!(code == 400 && said.contains("dryRun"), "{code}: {said}");
    assert_eq!(send(&admin, "ours", "", bytes(b"x")).await.0, 200);
    assert_eq!(uploads(&appliance), begun + 1);
    // What he removes is free at once.
    let refused = format!("mallory-{begun}");
    Api::<Image>::all(mallory.clone()).delete("mallory-0", &DeleteParams::default()).await.unwrap();
    until("its place is free", async || (send(&mallory, &refused, "", bytes(b"x")).await.0 == 200).then_some(())).await;
    assert_eq!(uploads(&appliance), begun + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_sends_without_end_keeps_nobody_from_his_and_is_cut_off_with_his_image() {
    let appliance = Appliance::new().await;
    let admin = appliance.client().await;
    let mallory = editor(&appliance, &admin, "mallory").await;
    let mut sending = Vec::new();
    let refused = loop {
        assert!(sending.len() < 100, "he may send as many as he likes");
        let name = format!("mallory-{}", sending.len());
        create(&mallory, &name).await;
        let (end, body) = endless();
        let (client, of) = (mallory.clone(), name.clone());
        let mut answer = tokio::spawn(async move { send(&client, &of, "", body).await });
        // It has its place, or an answer.
        let path = format!("/apis/slipway.dev/v1alpha1/images/{name}/upload");
        let has_begun = async {
            until("a byte is there", async || {
                let asked = http::Request::get(&path).body(Vec::new()).unwrap();
                let received: Value = admin.request(asked).await.unwrap();
                (received["bytes"] != 0).then_some(())
            })
            .await
        };
        tokio::select! {
            answer = &mut answer => break answer.unwrap(),
            () = has_begun => sending.push((name, end, answer)),
        }
    };
    assert_eq!(refused.0, 429, "{refused:?}");
    create(&admin, "ours").await;
    assert_eq!(send(&admin, "ours", "", bytes(b"x")).await.0, 200);
    let (name, _end, answer) = sending.remove(0);
    Api::<Image>::all(admin.clone()).delete(&name, &DeleteParams::default()).await.unwrap();
    let (code, said) = answer.await.unwrap();
    assert!(code == 404 && said.contains("was removed"), "{code}: {said}");
    until("nothing of it is kept", async || (uploads(&appliance) == sending.len() + 1).then_some(())).await;
    // Who only trickles loses his place by himself.
    for (_, end, answer) in sending {
        let trickle = tokio::spawn(async move {
            let mut beat = tokio::time::interval(crate::process::PAUSE);
            while end.unbounded_send(()).is_ok() {
                beat.tick().await;
            }
        });
        assert_eq!(tokio::time::timeout(crate::process::DEADLINE, answer).await.unwrap().unwrap().0, 408);
        trickle.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_library_has_no_room_for_is_refused_before_it_comes() {
    let appliance = Appliance::with("[image]\nmax_library_gib = 1\n").await;
    let admin = appliance.client().await;
    create(&admin, "large").await;
    let (code, said) = send(&admin, "large", &format!("&size={}", (1_u64 << 30) + 1), bytes(b"x")).await;
    assert!(code == 413 && said.contains("image.max_library_gib") && said.contains("remove images"), "{code}: {said}");
    assert_eq!(uploads(&appliance), 0);
    let file = appliance.folder().join("os.raw");
    std::fs::File::create(&file).unwrap().set_len((1 << 30) + 1).unwrap();
    let sent = appliance.slipway(&["image", "import", "os", file.to_str().unwrap()]).await;
    let said = String::from_utf8_lossy(&sent.stderr).into_owned();
    assert!(!sent.status.success() && said.contains("image.max_library_gib"), "{said}");
    assert_eq!(uploads(&appliance), 0);
}
