//! Images of the library that hosts name, on an appliance as a process: with no source up, with none there yet, and with
//! another than the host says.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use slipway::api::metal3::BareMetalHost;
use slipway::api::slipway::{BootIntent, Image, ImagePhase};
use slipway::bmc::address::Privilege;
use slipway::bmc::ipmi::suite::CipherSuite;
use slipway::bmc::sim::{Account, IpmiSim, SimulatedMachine as Machine, SimulatedProfile};
use tokio::net::{TcpListener, UdpSocket};
use tokio_util::sync::CancellationToken;

use crate::process::{Appliance, until};

/// A machine with its BMC; the BMC's address.
async fn machine(stop: &CancellationToken) -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = format!("ipmi://{}", socket.local_addr().unwrap());
    let account =
        Account { username: "admin".into(), password: "secret".to_owned().into(), privilege: Privilege::Administrator };
    let machine = Arc::new(Machine::new(SimulatedProfile::default()));
    tokio::spawn(IpmiSim::new(machine, vec![account], &[CipherSuite::Sha256]).run(socket, stop.clone()));
    address
}

/// A server of one image, until it is told to end.
async fn serve(content: Vec<u8>) -> (SocketAddr, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, end) = (listener.local_addr().unwrap(), CancellationToken::new());
    let files = Router::new().route("/os.raw", get(move || async move { content }));
    let ended = end.clone();
    tokio::spawn(async move { axum::serve(listener, files).with_graceful_shutdown(ended.cancelled_owned()).await });
    (address, end)
}

struct Rack {
    client: Client,
    stop: CancellationToken,
    made: u8,
}

impl Rack {
    async fn new(appliance: &Appliance) -> Self {
        let client = appliance.client().await;
        let data = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "bmc" },
            "stringData": { "username": "admin", "password": "secret" } });
        let secrets = Api::<Secret>::default_namespaced(client.clone());
        secrets.create(&PostParams::default(), &serde_json::from_value(data).unwrap()).await.unwrap();
        Self { client, stop: CancellationToken::new(), made: 0 }
    }

    fn hosts(&self) -> Api<BareMetalHost> {
        Api::default_namespaced(self.client.clone())
    }

    fn images(&self) -> Api<Image> {
        Api::all(self.client.clone())
    }

    async fn host(&mut self, name: &str, image: Value) {
        self.made += 1;
        let host = json!({ "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": { "name": name },
            "spec": { "online": true, "bootMACAddress": format!("02:00:00:00:00:{:02x}", self.made),
                "inspectionMode": "disabled", "automatedCleaningMode": "disabled",
                "bmc": { "address": machine(&self.stop).await, "credentialsName": "bmc" }, "image": image } });
        let host = serde_json::from_value(host).unwrap();
        self.hosts().create(&PostParams::default(), &host).await.unwrap();
    }

    async fn publish(&self, name: &str, url: &str) {
        let image = json!({ "metadata": { "name": name }, "spec": { "url": url } });
        self.images().create(&PostParams::default(), &serde_json::from_value(image).unwrap()).await.unwrap();
    }

    async fn digest(&self, name: &str) -> String {
        until(&format!("{name} to be imported"), async || {
            let status = self.images().get(name).await.unwrap().status.unwrap_or_default();
            assert_ne!(status.phase, ImagePhase::Failed, "{:?}", status.message);
            status.digest.filter(|_| status.phase == ImagePhase::Ready)
        })
        .await
    }

    /// What the host's agent is to write, in the end.
    async fn written(&self, name: &str) -> String {
        let intents = Api::<BootIntent>::default_namespaced(self.client.clone());
        until(&format!("{name} to be written"), async || {
            intents.get_opt(name).await.unwrap()?.spec.steps.iter().find_map(|step| step.image.clone())
        })
        .await
    }

    async fn reason(&self, name: &str, part: &str) {
        until(&format!("{name} to say {part:?}"), async || {
            let status = self.hosts().get(name).await.unwrap().status?;
            let said = status.progress.map(|progress| progress.reason).unwrap_or_default() + &status.error_message;
            said.contains(part).then_some(())
        })
        .await;
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[tokio::test]
async fn hosts_are_installed_from_the_library_when_their_source_is_away() {
    let allow = "allow = [\"127.0.0.1\"]";
    let appliance = Appliance::with(&format!("[image]\n{allow}\n[bmc]\n{allow}\n[host]\nretry = \"1s\"\n")).await;
    let mut rack = Rack::new(&appliance).await;
    let content = vec![5; 3 << 20];
    let checksum: String = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
    let (address, end) = serve(content).await;
    let source = format!("http://{address}/os.raw");

    // It names what is not there yet, and waits.
    rack.host("early", json!({ "url": "slipway://debian" })).await;
    rack.reason("early", "waiting for image debian, which is not in the library yet").await;
    rack.publish("debian", &source).await;
    let debian = rack.digest("debian").await;
    let status = rack.images().get("debian").await.unwrap().status.unwrap();
    assert_eq!((status.format.as_deref(), status.sha256.as_ref()), (Some("raw"), Some(&checksum)));
    assert_eq!(rack.written("early").await, debian);

    // The source goes away: by name, by the same checksum under the same URL, and under another one.
    end.cancel();
    until("the server is gone", async || tokio::net::TcpStream::connect(address).await.is_err().then_some(())).await;
    let other = format!("http://{address}/mirror/os.raw");
    for (name, image) in [
        ("by-name", json!({ "url": "slipway://debian", "checksum": checksum, "format": "raw" })),
        ("by-url", json!({ "url": source, "checksum": checksum })),
        ("by-mirror", json!({ "url": other, "checksum": checksum.to_uppercase(), "checksumType": "sha256" })),
    ] {
        rack.host(name, image).await;
        assert_eq!(rack.written(name).await, debian, "{name}");
    }
    let images = rack.images().list(&Default::default()).await.unwrap().items;
    assert_eq!(images.len(), 1, "nothing else is imported: {images:?}");
    until("who names it is counted", async || {
        let status = rack.images().get("debian").await.unwrap().status?;
        (status.hosts == Some(2) && status.namespaces == ["default"]).then_some(())
    })
    .await;

    // It says something else of it.
    rack.host("other", json!({ "url": "slipway://debian", "checksum": "0".repeat(64) })).await;
    rack.reason("other", "spec.image.checksum is not that of image debian").await;
    let right = Patch::Merge(json!({ "spec": { "image": { "checksum": checksum } } }));
    rack.hosts().patch("other", &PatchParams::default(), &right).await.unwrap();
    assert_eq!(rack.written("other").await, debian);

    // What is no name is refused when it is written.
    for url in ["slipway://", "slipway://a/b", "slipway://Debian"] {
        let host = json!({ "metadata": { "name": "bad" }, "spec": { "online": true, "image": { "url": url } } });
        let host = serde_json::from_value(host).unwrap();
        let refused = rack.hosts().create(&PostParams::default(), &host).await.unwrap_err().to_string();
        assert!(refused.contains("slipway://NAME"), "{refused}");
    }

    // From any desk: what is there, and who uses it.
    let kubeconfig = appliance.folder().join("desk.kubeconfig");
    std::fs::write(&kubeconfig, appliance.kubeconfig().await).unwrap();
    let kubeconfig = kubeconfig.to_str().unwrap();
    let image = async |arguments: &str| {
        let words = ["image"].into_iter().chain(arguments.split_whitespace()).chain(["--kubeconfig", kubeconfig]);
        let output = appliance.slipway(&words.collect::<Vec<_>>()).await;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let (_, listed, _) = image("list").await;
    let line = listed.lines().find(|line| line.starts_with("debian ")).unwrap_or_else(|| panic!("{listed}"));
    for part in ["Ready", "3.1 MB", "raw", "default/by-mirror, default/by-name, default/by-url and 2 more"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(image("list -o wide").await.1.contains(&checksum));
    let programs: Value = serde_json::from_str(&image("list -o json").await.1).unwrap();
    assert_eq!(programs["items"][0]["usedBy"].as_array().map(Vec::len), Some(5), "{programs}");
    assert!(image("list -o yaml").await.1.contains("- default/by-url"));
    let (done, _, message) = image("remove debian").await;
    assert!(!done && message.contains("image debian is used by default/by-mirror, default/by-name"), "{message}");
    let (done, _, message) = image(&format!("import debian {source}")).await;
    assert!(!done && message.contains("image debian is in the library already"), "{message}");
    assert_eq!(rack.digest("debian").await, debian);
    assert!(image("remove debian --force").await.0);
    assert!(rack.images().get_opt("debian").await.unwrap().is_none());
}
