//! What one caller may take of uploads, and that what he leaves is free at once: against an appliance as a process.

use axum::body::Bytes;
use futures::channel::mpsc;
use futures::stream::StreamExt;
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use reqwest::Body;
use serde_json::{Value, json};
use slipway::api::slipway::Image;
use tokio::task::JoinHandle;

use crate::process::{Appliance, DEADLINE, PAUSE, until};

/// Somebody with a token that has `edit` in the whole cluster.
#[derive(Clone)]
struct Editor {
    client: reqwest::Client,
    token: String,
    url: String,
}

impl Editor {
    async fn new(appliance: &Appliance, name: &str) -> Self {
        let made = appliance.slipway(&["token", "create", name, "--role", "edit"]).await;
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let token = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        let client = reqwest::Client::builder().no_proxy().danger_accept_invalid_certs(true).build().unwrap();
        let url = format!("https://{}/apis/slipway.dev/v1alpha1/images", appliance.address);
        Self { client, token, url }
    }

    /// Sends a piece; the code of the answer, and what it says.
    async fn send(&self, name: &str, query: &str, body: impl Into<Body>) -> (u16, String) {
        let url = format!("{}/{name}/upload?offset=0{query}", self.url);
        let answer = self.client.post(url).bearer_auth(&self.token).body(body).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }
}

async fn create(client: &Client, name: &str) {
    let image = json!({ "metadata": { "name": name }, "spec": { "url": "upload:os.raw", "checksum": "0".repeat(64) } });
    let images = Api::<Image>::all(client.clone());
    images.create(&PostParams::default(), &serde_json::from_value(image).unwrap()).await.unwrap();
}

async fn delete(client: &Client, name: &str) {
    Api::<Image>::all(client.clone()).delete(name, &DeleteParams::default()).await.unwrap();
}

/// A body without end, of which something comes fast enough until the task is aborted, and nothing more from then on.
fn endless() -> (JoinHandle<()>, Body) {
    let (send, parts) = mpsc::unbounded();
    let beats = tokio::spawn(async move {
        let mut beat = tokio::time::interval(PAUSE);
        while send.unbounded_send(Bytes::from_static(&[7; 64 << 10])).is_ok() {
            beat.tick().await;
        }
    });
    (beats, Body::wrap_stream(parts.map(Ok::<_, std::io::Error>).chain(futures::stream::pending())))
}

fn uploads(appliance: &Appliance) -> usize {
    std::fs::read_dir(appliance.data().join("images/uploads")).unwrap().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_begins_uploads_without_end_keeps_nobody_from_his() {
    let appliance = Appliance::new().await;
    let admin = appliance.client().await;
    let (mallory, other) = (Editor::new(&appliance, "mallory").await, Editor::new(&appliance, "other").await);
    let mut begun = 0;
    let refused = loop {
        assert!(begun < 100, "he may begin as many as he likes");
        let name = format!("mallory-{begun}");
        create(&admin, &name).await;
        match mallory.send(&name, "", "x").await {
            (200, _) => begun += 1,
            refused => break refused,
        }
    };
    assert!(refused.0 == 403 && refused.1.contains("image remove"), "{refused:?}");
    create(&admin, "ours").await;
    // There is no dry run of it.
    let (code, said) = other.send("ours", "&dryRun=All", "x").await;
    assert!(code == 400 && said.contains("dryRun"), "{code}: {said}");
    assert_eq!(other.send("ours", "", "x").await.0, 200);
    assert_eq!(uploads(&appliance), begun + 1);
    // What he removes is free at once.
    let refused = format!("mallory-{begun}");
    delete(&admin, "mallory-0").await;
    until("its place is free", async || (mallory.send(&refused, "", "x").await.0 == 200).then_some(())).await;
    assert_eq!(uploads(&appliance), begun + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_sends_without_end_keeps_nobody_from_his_and_is_cut_off_with_his_image() {
    let appliance = Appliance::new().await;
    let admin = appliance.client().await;
    let (mallory, other) = (Editor::new(&appliance, "mallory").await, Editor::new(&appliance, "other").await);
    let mut sending = Vec::new();
    let refused = loop {
        assert!(sending.len() < 100, "he may send as many as he likes");
        let name = format!("mallory-{}", sending.len());
        create(&admin, &name).await;
        let (beats, body) = endless();
        let (client, of) = (mallory.clone(), name.clone());
        let mut answer = tokio::spawn(async move { client.send(&of, "", body).await });
        // It has its place, or an answer.
        let path = format!("/apis/slipway.dev/v1alpha1/images/{name}/upload");
        let has_begun = async {
            until("something is there", async || {
                let asked = http::Request::get(&path).body(Vec::new()).unwrap();
                let received: Value = admin.request(asked).await.unwrap();
                (received["bytes"] != 0).then_some(())
            })
            .await
        };
        tokio::select! {
            answer = &mut answer => break answer.unwrap(),
            () = has_begun => sending.push((name, beats, answer)),
        }
    };
    assert_eq!(refused.0, 429, "{refused:?}");
    create(&admin, "ours").await;
    assert_eq!(other.send("ours", "", "x").await.0, 200);
    let (name, _, answer) = sending.remove(0);
    delete(&admin, &name).await;
    let (code, said) = answer.await.unwrap();
    assert!(code == 404 && said.contains("was removed"), "{code}: {said}");
    until("nothing of it is kept", async || (uploads(&appliance) == sending.len() + 1).then_some(())).await;
    // Who sends no more loses his place. All of them stop now: a request has a minute in all.
    sending.iter().for_each(|(_, beats, _)| beats.abort());
    for (_, _, answer) in sending {
        assert_eq!(tokio::time::timeout(DEADLINE, answer).await.unwrap().unwrap().0, 408);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_library_has_no_room_for_is_refused_before_it_comes() {
    let appliance = Appliance::with("[image]\nmax_library_gib = 1\n").await;
    let admin = appliance.client().await;
    create(&admin, "large").await;
    let somebody = Editor::new(&appliance, "somebody").await;
    let (code, said) = somebody.send("large", &format!("&size={}", (1_u64 << 30) + 1), "x").await;
    assert!(code == 413 && said.contains("image.max_library_gib") && said.contains("remove images"), "{code}: {said}");
    assert_eq!(uploads(&appliance), 0);
    let file = appliance.folder().join("os.raw");
    std::fs::File::create(&file).unwrap().set_len((1 << 30) + 1).unwrap();
    let sent = appliance.slipway(&["image", "import", "os", file.to_str().unwrap()]).await;
    let said = String::from_utf8_lossy(&sent.stderr).into_owned();
    assert!(!sent.status.success() && said.contains("image.max_library_gib"), "{said}");
    assert!(Api::<Image>::all(admin).get_opt("os").await.unwrap().is_none());
    assert_eq!(uploads(&appliance), 0);
}
