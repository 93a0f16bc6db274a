//! Images that are sent to an appliance as a process, by `slipway image import` from another desk: whole, cut off, gone on with
//! after both sides ended, and by who may not.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use slipway::api::slipway::{Image, ImagePhase};
use slipway::image::upload::ReceivedBytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

use crate::process::{Appliance, until};

/// Content that does not pack.
fn content(bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    rand::fill(&mut content[..]);
    content
}

fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What becomes of a connection that has brought its share of bytes.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    Cut,
    Stall,
}

/// Forwards connections, and cuts or stalls one each time that so many bytes went up in all; how often it did.
async fn faulty_link(to: SocketAddr, every: u64, then: Then) -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (faults, sent) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let counted = faults.clone();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let Ok(far) = TcpStream::connect(to).await else { continue };
            let (faults, sent) = (counted.clone(), sent.clone());
            tokio::spawn(async move {
                let (mut from, mut back) = near.into_split();
                let (mut answers, mut up) = far.into_split();
                let down = tokio::spawn(async move { tokio::io::copy(&mut answers, &mut back).await });
                let mut buffer = vec![0; 64 << 10];
                while let Ok(read @ 1..) = from.read(&mut buffer).await {
                    let before = sent.fetch_add(read as u64, Ordering::SeqCst);
                    if (before + read as u64) / every > before / every {
                        faults.fetch_add(1, Ordering::SeqCst);
                        if then == Then::Stall {
                            std::future::pending::<()>().await;
                        }
                        break;
                    }
                    if up.write_all(&buffer[..read]).await.is_err() {
                        break;
                    }
                }
                down.abort();
            });
        }
    });
    (address, faults)
}

/// A kubeconfig of the appliance, by way of another address.
async fn kubeconfig(appliance: &Appliance, name: &str, by: SocketAddr) -> String {
    let text = appliance.kubeconfig().await.replace(&appliance.address.to_string(), &by.to_string());
    let file = appliance.folder().join(name);
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

async fn ready(images: &Api<Image>, name: &str) -> slipway::api::slipway::ImageStatus {
    let status = images.get(name).await.unwrap().status.unwrap();
    assert_eq!(status.phase, ImagePhase::Ready, "{status:?}");
    status
}

async fn received(client: &Client, name: &str) -> Option<ReceivedBytes> {
    let path = format!("/apis/slipway.dev/v1alpha1/images/{name}/upload");
    client.request(http::Request::get(path).body(Vec::new()).unwrap()).await.ok()
}

fn is_empty(appliance: &Appliance) -> bool {
    std::fs::read_dir(appliance.data().join("images/uploads")).unwrap().next().is_none()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_from_another_desk_arrives_although_its_connection_is_cut() {
    let appliance = Appliance::new().await;
    let images = Api::<Image>::all(appliance.client().await);
    let (file, content) = (appliance.folder().join("os 12.raw"), content(24 << 20));
    std::fs::write(&file, &content).unwrap();
    let (link, cuts) = faulty_link(appliance.address, 7 << 20, Then::Cut).await;
    let config = kubeconfig(&appliance, "desk", link).await;
    let (file, sum) = (file.to_str().unwrap(), sha256(&content));
    let sent = appliance.slipway(&["image", "import", "os", file, "--checksum", &sum, "--kubeconfig", &config]).await;
    let said = String::from_utf8_lossy(&sent.stderr).into_owned();
    assert!(sent.status.success(), "{said}\n{}", appliance.log());
    assert!(cuts.load(Ordering::SeqCst) >= 3 && said.contains("sending"), "{said}");
    let status = ready(&images, "os").await;
    assert_eq!(
        (status.sha256, status.virtual_size, status.format.as_deref()),
        (Some(sum), Some(24 << 20), Some("raw"))
    );
    assert_eq!(images.get("os").await.unwrap().spec.url, "upload:os-12.raw");
    until("nothing of it is kept twice", async || is_empty(&appliance).then_some(())).await;
    // It is there: a second one is not sent.
    let again = appliance.slipway(&["image", "import", "os", file, "--kubeconfig", &config]).await;
    assert!(String::from_utf8_lossy(&again.stderr).contains("image os is in the library already"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_is_gone_on_with_after_both_sides_were_killed() {
    let mut appliance = Appliance::new().await;
    let client = appliance.client().await;
    let (file, content) = (appliance.folder().join("os.raw"), content(20 << 20));
    std::fs::write(&file, &content).unwrap();
    let (link, _) = faulty_link(appliance.address, 9 << 20, Then::Stall).await;
    let config = kubeconfig(&appliance, "desk", link).await;
    let mut first = Command::new(env!("CARGO_BIN_EXE_slipway"));
    let first = first.args(["image", "import", "os"]).arg(&file).args(["--kubeconfig", &config]).kill_on_drop(true);
    let mut first = first.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let before = until("some of it is there", async || {
        received(&client, "os").await.map(|received| received.bytes).filter(|bytes| *bytes >= 4 << 20)
    })
    .await;
    first.kill().await.unwrap();
    appliance.restart(true).await;
    let client = appliance.client().await;
    let kept = received(&client, "os").await.unwrap();
    assert!(kept.bytes >= before && !kept.whole, "{kept:?}: {before} were acknowledged");
    let sent = appliance.slipway(&["image", "import", "os", file.to_str().unwrap()]).await;
    let said = String::from_utf8_lossy(&sent.stderr).into_owned();
    assert!(sent.status.success() && said.contains("image os: going on after"), "{said}");
    assert_eq!(ready(&Api::all(client), "os").await.sha256, Some(sha256(&content)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_from_a_pipe_is_sent_and_what_is_wrong_leaves_nothing() {
    let appliance = Appliance::new().await;
    let images = Api::<Image>::all(appliance.client().await);
    let content = content(5 << 20);
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
    command.args(["image", "import", "piped", "-"]).env("SLIPWAY_CONFIG", appliance.folder().join("slipway.toml"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut command = command.spawn().unwrap();
    let mut stdin = command.stdin.take().unwrap();
    stdin.write_all(&content).await.unwrap();
    drop(stdin);
    let sent = tokio::time::timeout(crate::process::DEADLINE, command.wait_with_output()).await.unwrap().unwrap();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    assert_eq!(ready(&images, "piped").await.sha256, Some(sha256(&content)));

    let file = appliance.folder().join("os.raw");
    std::fs::write(&file, &content).unwrap();
    let file = file.to_str().unwrap();
    for (arguments, wanted) in [
        (vec!["bad", file, "--checksum", &"0".repeat(64)], "its sha256 is"),
        (vec!["bad", file, "--format", "qcow2"], "the spec says qcow2, but it is not one"),
        (vec!["bad", "/nowhere/os.raw"], "No such file"),
        (vec!["bad", "/tmp"], "is a folder"),
    ] {
        let words: Vec<&str> = ["image", "import"].into_iter().chain(arguments).collect();
        let refused = appliance.slipway(&words).await;
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(wanted), "{words:?}: {said}");
        assert!(images.get_opt("bad").await.unwrap().is_none(), "{words:?}");
    }
    until("nothing of it is kept", async || is_empty(&appliance).then_some(())).await;
}

#[tokio::test]
async fn nobody_sends_what_he_may_not_or_where_it_does_not_belong() {
    let appliance = Appliance::new().await;
    let admin = appliance.client().await;
    let images = Api::<Image>::all(admin.clone());
    for (name, url) in [("sent", "upload:os.raw"), ("fetched", "http://127.0.0.2/os.raw")] {
        let image = json!({ "metadata": { "name": name }, "spec": { "url": url, "checksum": "wrong" } });
        let image = serde_json::from_value(image).unwrap();
        // What the appliance itself is, is refused when it is written.
        let made = images.create(&PostParams::default(), &image).await;
        assert_eq!(made.is_ok(), name == "sent", "{made:?}");
    }
    for url in ["upload:", "upload:/etc/passwd", "upload://x/y", "upload:a?b"] {
        let image = json!({ "metadata": { "name": "bad" }, "spec": { "url": url } });
        let refused = images.create(&PostParams::default(), &serde_json::from_value(image).unwrap()).await.unwrap_err();
        assert!(refused.to_string().contains("spec.url"), "{url}: {refused}");
    }
    let of_nobody = json!({ "metadata": { "name": "other" }, "spec": { "url": "https://localhost:1/os.raw", "checksum": "wrong" } });
    images.create(&PostParams::default(), &serde_json::from_value(of_nobody).unwrap()).await.unwrap();

    // Somebody with `edit` in a namespace, and nothing in the cluster.
    let bindings = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": "edit", "namespace": "default" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "mallory" }] });
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    let request = http::Request::post(path).header("content-type", "application/json");
    admin.request::<Value>(request.body(bindings.to_string().into_bytes()).unwrap()).await.unwrap();
    let mut as_mallory: Value = serde_saphyr::from_str(&appliance.kubeconfig().await).unwrap();
    as_mallory["users"][0]["user"]["as"] = "mallory".into();
    let config = Kubeconfig::from_yaml(&as_mallory.to_string()).unwrap();
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
    let mallory = Client::try_from(config).unwrap();

    let ask = async |client: &Client, method: &str, name: &str, query: &str| {
        let path = format!("/apis/slipway.dev/v1alpha1/images/{name}/upload{query}");
        let request = http::Request::builder().method(method).uri(path).body(b"content".to_vec()).unwrap();
        match client.request::<Value>(request).await {
            Ok(_) => 200,
            Err(kube::Error::Api(status)) => status.code,
            Err(error) => panic!("{method} {name}{query}: {error}"),
        }
    };
    let long = format!("?offset=0&whole={}", "g".repeat(64));
    for (client, method, name, query, code) in [
        (&mallory, "POST", "sent", "?offset=0", 403),
        (&mallory, "GET", "sent", "", 403),
        (&admin, "POST", "nobody", "?offset=0", 404),
        (&admin, "POST", "other", "?offset=0", 409),
        (&admin, "POST", "sent", "", 400),
        (&admin, "POST", "sent", "?offset=x", 400),
        (&admin, "POST", "sent", &long, 400),
        (&admin, "PUT", "sent", "?offset=0", 405),
        (&admin, "DELETE", "sent", "", 405),
        (&admin, "POST", "sent", "?offset=7", 409),
        (&admin, "POST", "sent", "?offset=0", 200),
        (&admin, "POST", "sent", "?offset=0", 409),
        (&admin, "GET", "sent", "", 200),
    ] {
        assert_eq!(ask(client, method, name, query).await, code, "{method} {name}{query}");
    }
    assert_eq!(received(&admin, "sent").await, Some(ReceivedBytes { bytes: 7, whole: false }));
    // Roles and clients find it as any subresource.
    let listed = http::Request::get("/apis/slipway.dev/v1alpha1").body(Vec::new()).unwrap();
    let listed: Value = admin.request(listed).await.unwrap();
    let found = listed["resources"].as_array().unwrap().iter().find(|one| one["name"] == "images/upload").unwrap();
    assert_eq!(found["verbs"], json!(["create", "get"]));
}
