//! What an image's URL may lead to, on the appliance as a process: no file of its own, no service of its own. Each layer
//! for itself: what is refused when it is written, and what the import refuses that was written before.

use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::routing::get;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::ResourceExt;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;
use slipway::api::metal3::{self, BareMetalHost, BareMetalHostSpec};
use slipway::api::slipway::{BootIntent, BootIntentSpec, BootTarget, Image, ImagePhase, ImageSpec};
use slipway::bmc::address::Privilege;
use slipway::bmc::ipmi::suite::CipherSuite;
use slipway::bmc::sim::{Account, IpmiSim, SimulatedMachine as Machine, SimulatedProfile};
use slipway::host::lifecycle::image_name;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::process::{Appliance, until};

fn image(name: &str, url: &str, checksum: Option<&str>) -> Image {
    let spec = ImageSpec {
        url: url.into(),
        checksum: checksum.map(str::to_owned),
        format: Some("raw".into()),
        ..ImageSpec::default()
    };
    Image::new(name, spec)
}

/// The reason with which an image of this source is refused when it is written. Anything else is a failure of the test.
async fn refused_at_once(images: &Api<Image>, url: &str, checksum: Option<&str>) -> String {
    match images.create(&PostParams::default(), &image("refused", url, checksum)).await {
        Err(kube::Error::Api(status)) => {
            assert_eq!(status.code, 422, "{url}: {}", status.message);
            status.message.clone()
        }
        Err(error) => panic!("{url}: {error}"),
        Ok(_) => panic!("{url} was stored"),
    }
}

/// The reason with which the import of an image fails that was let in. One that comes into the library is a failure of the
/// test.
async fn fails(images: &Api<Image>, name: &str, reason: &str) -> String {
    until(&format!("{name} to fail with {reason:?}"), async || {
        let status = images.get(name).await.unwrap().status.unwrap_or_default();
        assert_ne!(status.phase, ImagePhase::Ready, "{name} was imported");
        status.message.filter(|message| status.phase == ImagePhase::Failed && message.contains(reason))
    })
    .await
}

async fn create(images: &Api<Image>, name: &str, url: &str, checksum: Option<&str>) {
    images.create(&PostParams::default(), &image(name, url, checksum)).await.unwrap_or_else(|e| panic!("{url}: {e}"));
}

async fn digest(images: &Api<Image>, name: &str) -> String {
    until(&format!("{name} to be imported"), async || {
        let status = images.get(name).await.unwrap().status.unwrap_or_default();
        assert_ne!(status.phase, ImagePhase::Failed, "{:?}", status.message);
        status.digest.filter(|_| status.phase == ImagePhase::Ready)
    })
    .await
}

#[tokio::test]
async fn s11_no_file_of_the_appliance_becomes_an_image() {
    let mut appliance = Appliance::new().await;
    let images = Api::<Image>::all(appliance.client().await);
    let key = appliance.data().join("pki/ca.key");
    assert!(key.is_file());
    for url in [
        format!("file://{}", key.display()),
        "file:///etc/passwd".into(),
        "file://localhost/etc/passwd".into(),
        "FILE:///etc/passwd".into(),
    ] {
        let reason = refused_at_once(&images, &url, None).await;
        assert!(reason.contains("image.file_folder"), "{url}: {reason}");
    }
    let reason = refused_at_once(&images, "http://192.0.2.1/i.raw", Some("file:///etc/shadow")).await;
    assert!(reason.contains("http://"), "{reason}");

    // Written while files were read, and tried again when they are no more.
    let folder = appliance.folder().join("published");
    std::fs::create_dir(&folder).unwrap();
    appliance.restart_with(&format!("[image]\nfile_folder = {folder:?}\n")).await;
    let images = Api::<Image>::all(appliance.client().await);
    let (file, sums) = (folder.join("i.raw"), folder.join("sums"));
    let url = |file: &Path| format!("file://{}", file.display());
    create(&images, "file", &url(&file), None).await;
    create(&images, "sums", "http://192.0.2.1/i.raw", Some(&url(&sums))).await;
    for name in ["file", "sums"] {
        fails(&images, name, "No such file").await;
    }
    appliance.end().await;
    for file in [&file, &sums] {
        std::fs::write(file, "what is on the appliance").unwrap();
    }
    appliance.restart_ended_with("").await;
    let images = Api::<Image>::all(appliance.client().await);
    for name in ["file", "sums"] {
        fails(&images, name, "image.file_folder in slipway.toml names no folder").await;
    }
}

#[tokio::test]
async fn s11_below_the_folder_of_files_no_symlink_is_followed_and_nothing_of_the_appliances_own_is_read() {
    let mut appliance = Appliance::new().await;
    appliance.client().await;
    let folder = appliance.folder().to_owned();
    std::fs::write(folder.join("good.raw"), "published").unwrap();
    std::fs::create_dir(folder.join("debian")).unwrap();
    std::fs::write(folder.join("debian/i.raw"), "published, too").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.join("link.raw")).unwrap();
    std::os::unix::fs::symlink("debian", folder.join("stable")).unwrap();
    // Its data folder is in there.
    assert!(appliance.data().starts_with(&folder));
    appliance.restart_with(&format!("[image]\nfile_folder = {folder:?}\n")).await;
    let images = Api::<Image>::all(appliance.client().await);
    let url = |path: &str| format!("file://{}/{path}", folder.display());
    for (name, path) in [("good", "good.raw"), ("deep", "debian/i.raw")] {
        create(&images, name, &url(path), None).await;
        digest(&images, name).await;
    }
    for (name, path, reason) in
        [("link", "link.raw", "symlink"), ("stable", "stable/i.raw", "symlink"), ("key", "data/pki/ca.key", "data_dir")]
    {
        create(&images, name, &url(path), None).await;
        fails(&images, name, reason).await;
    }
    let message = refused_at_once(&images, &url("../etc/passwd"), None).await;
    assert!(message.contains("image.file_folder"), "{message}");
}

#[tokio::test]
async fn s12_no_service_of_the_appliance_is_read_as_an_image() {
    let mut appliance = Appliance::new().await;
    let images = Api::<Image>::all(appliance.client().await);
    let port = appliance.boot.port();
    let script = |host: &str| format!("http://{host}:{port}/boot/ipxe?mac=02-00-00-00-00-01&arch=7");
    for host in ["127.0.0.1", "127.1", "2130706433", "[::ffff:127.0.0.1]"] {
        let reason = refused_at_once(&images, &script(host), None).await;
        assert!(reason.contains("loopback") && reason.contains("image.allow"), "{host}: {reason}");
    }
    let sums = format!("http://127.0.0.1:{port}/boot/ca.pem");
    let reason = refused_at_once(&images, "http://192.0.2.1/i.raw", Some(&sums)).await;
    assert!(reason.contains("loopback"), "{reason}");
    // An address of another interface is the appliance's own as well, where there is one.
    let own = slipway::outbound::own_addresses().unwrap().iter().copied().find(|ip| ip.is_ipv4() && !ip.is_loopback());
    if let Some(own) = own {
        let reason = refused_at_once(&images, &format!("http://{own}:{port}/boot/ca.pem"), None).await;
        assert!(reason.contains("of the appliance itself"), "{reason}");
    }
    // Where a name leads is known when it is fetched from.
    create(&images, "name", &script("localhost"), None).await;
    let reason = fails(&images, "name", "loopback").await;
    assert!(reason.contains("image.allow"), "{reason}");

    // Written while the address was allowed, and tried again when it is no more.
    appliance.restart_with("[image]\nallow = [\"127.0.0.1\"]\n").await;
    let images = Api::<Image>::all(appliance.client().await);
    let missing = format!("http://127.0.0.1:{port}/boot/no-such-thing");
    create(&images, "address", &missing, None).await;
    create(&images, "sums", "http://192.0.2.1/i.raw", Some(&missing)).await;
    for name in ["address", "sums"] {
        fails(&images, name, "404").await;
    }
    appliance.restart_with("").await;
    let images = Api::<Image>::all(appliance.client().await);
    for name in ["address", "sums"] {
        let reason = fails(&images, name, "loopback").await;
        assert!(reason.contains("image.allow"), "{reason}");
    }
}

/// The operator may name it; then the guard is open, and boot HTTP gives its scripts to no fetcher of images all the same.
#[tokio::test]
async fn s13_a_boot_script_is_no_image_even_where_the_address_is_allowed() {
    let appliance = Appliance::with("[image]\nallow = [\"127.0.0.1\"]\n").await;
    let images = Api::<Image>::all(appliance.client().await);
    let url = format!("http://{}/boot/ipxe?mac=02-00-00-00-00-01&arch=7", appliance.boot);
    create(&images, "script", &url, None).await;
    fails(&images, "script", "403").await;
    let explained = format!("http://{}/boot/explain/dhcp?mac=02-00-00-00-00-01", appliance.boot);
    create(&images, "explained", &explained, None).await;
    fails(&images, "explained", "403").await;
    // It was the script that was refused, not the address.
    let url = format!("http://{}/boot/ca.pem", appliance.boot);
    create(&images, "allowed", &url, None).await;
    digest(&images, "allowed").await;
}

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

/// Everybody on the network may ask for a live ISO. What a host boots must be one, by whichever way it came there.
#[tokio::test]
async fn s15_what_is_no_iso_is_not_served_as_one_whatever_a_host_is_to_boot() {
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let mut iso = vec![7; 64 << 10];
    iso[32769..32774].copy_from_slice(b"CD001");
    let files = Router::new()
        .route("/live.iso", get(move || async move { iso }))
        .route("/secret", get(|| async { b"PRIVATE KEY ".repeat(10_000) }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, files).await });
    let allow = "allow = [\"127.0.0.1\"]";
    let appliance = Appliance::with(&format!("[image]\n{allow}\n[bmc]\n{allow}\n[host]\nretry = \"1s\"\n")).await;
    let client = appliance.client().await;
    let images = Api::<Image>::all(client.clone());
    create(&images, "secret", &format!("{server}/secret"), None).await;
    let secret = digest(&images, "secret").await;
    let fetch = async |digest: &str| {
        let url = format!("http://{}/boot/live/{digest}.iso", appliance.boot);
        let answer = reqwest::Client::builder().no_proxy().build().unwrap().get(url).send().await.unwrap();
        (answer.status().as_u16(), answer.bytes().await.unwrap())
    };

    let data = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "bmc" },
        "stringData": { "username": "admin", "password": "secret" } });
    let secrets = Api::<Secret>::default_namespaced(client.clone());
    secrets.create(&PostParams::default(), &serde_json::from_value(data).unwrap()).await.unwrap();
    let hosts = Api::<BareMetalHost>::default_namespaced(client.clone());
    let mut names = Vec::new();
    for (last, name, path) in [(1, "good", "live.iso"), (2, "bad", "secret")] {
        let host = json!({ "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": { "name": name },
            "spec": { "online": true, "bootMACAddress": format!("02:00:00:00:00:0{last}"),
                "inspectionMode": "disabled", "automatedCleaningMode": "disabled",
                "bmc": { "address": machine(&stop).await, "credentialsName": "bmc" },
                "image": { "url": format!("{server}/{path}"), "format": "live-iso" } } });
        let host: BareMetalHost = serde_json::from_value(host).unwrap();
        names.push(image_name(host.spec.image.as_ref().unwrap()));
        hosts.create(&PostParams::default(), &host).await.unwrap();
    }
    // What is one is served, to whoever knows its digest.
    let (good, bad) = (&names[0], &names[1]);
    let iso = digest_once_there(&images, good).await;
    let served = until("the ISO to be served", async || Some(fetch(&iso).await).filter(|(status, _)| *status == 200));
    assert_eq!(&served.await.1[32769..32774], b"CD001");
    // What is none does not come into the library as one, and the host says so.
    until("the host to say why", async || {
        let status = hosts.get("bad").await.unwrap().status?;
        status.error_message.contains("must be an ISO 9660 image").then_some(())
    })
    .await;
    assert_eq!(fetch(&secret).await.0, 404, "no host boots it");
    // Somebody who may write everything brings the host to boot it: by its intent, which nobody may write, or by what the
    // library says of its Image.
    let intents = Api::<BootIntent>::default_namespaced(client);
    let intent = BootIntentSpec {
        generation: 1,
        target: BootTarget::LiveIso,
        live_iso: Some(secret.clone()),
        ..BootIntentSpec::default()
    };
    let refused = intents.create(&PostParams::default(), &BootIntent::new("bad", intent)).await.unwrap_err();
    assert!(refused.to_string().contains("are written by Slipway itself"), "{refused}");
    let status = json!({ "status": { "phase": "Ready", "digest": secret, "observedGeneration": 1, "message": null } });
    images.patch_status(bad, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    until("the host to boot what is no ISO", async || {
        let intent = intents.get_opt("bad").await.unwrap()?;
        (intent.spec.live_iso.as_ref() == Some(&secret)).then_some(())
    })
    .await;
    until("it is looked for, and not served", async || {
        let (status, body) = fetch(&secret).await;
        assert_eq!(status, 404, "{:?}", &body[..body.len().min(99)]);
        appliance.log().contains("refused a live ISO").then_some(())
    })
    .await;
}

/// The digest of an Image that somebody else makes.
async fn digest_once_there(images: &Api<Image>, name: &str) -> String {
    until("its host to ask for it", async || images.get_opt(name).await.unwrap()).await;
    digest(images, name).await
}

/// A server of images that notes who was asked for, and keeps its first caller waiting.
async fn gate() -> (String, Arc<Mutex<Vec<String>>>, Arc<Notify>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (asked, open) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Notify::new()));
    let (names, first) = (asked.clone(), open.clone());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = vec![0; 4096];
            let Ok(length) = stream.read(&mut head).await else { continue };
            let head = String::from_utf8_lossy(&head[..length]).into_owned();
            let path = head.split_whitespace().nth(1).unwrap_or_default().to_owned();
            let is_first = {
                let mut names = names.lock().unwrap();
                names.push(path.clone());
                names.len() == 1
            };
            if is_first {
                first.notified().await;
            }
            let body = format!("the image {path}");
            let answer =
                format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            // The client may be gone.
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (url, asked, open)
}

/// Whose an import is comes from the hosts that name its source, and from nothing on the Image.
#[tokio::test]
async fn imports_of_one_namespace_do_not_go_before_those_of_another() {
    let (server, asked, open) = gate().await;
    let appliance = Appliance::with("[image]\nimports = 1\nallow = [\"127.0.0.1\"]\n").await;
    let client = appliance.client().await;
    let images = Api::<Image>::all(client.clone());
    let sources = [("rack-a", "a1"), ("rack-a", "a2"), ("rack-a", "a3"), ("rack-b", "b1")];
    for namespace in ["rack-a", "rack-b"] {
        let metadata = ObjectMeta { name: Some(namespace.into()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    }
    let mut names = Vec::new();
    for (namespace, name) in sources {
        let wanted = metal3::HostImage {
            url: format!("{server}/{name}"),
            checksum: Some("0".repeat(64)),
            format: Some("raw".into()),
            ..metal3::HostImage::default()
        };
        let spec = BareMetalHostSpec { image: Some(wanted.clone()), ..BareMetalHostSpec::default() };
        let hosts = Api::<BareMetalHost>::namespaced(client.clone(), namespace);
        hosts.create(&PostParams::default(), &BareMetalHost::new(name, spec)).await.unwrap();
        names.push((image_name(&wanted), wanted));
    }
    // As a host's reconciler makes them, but for what somebody writes on them.
    for (at, (name, wanted)) in names.iter().enumerate() {
        let mut image = image(name, &wanted.url, wanted.checksum.as_deref());
        image.annotations_mut().insert("slipway.dev/asked-by".into(), "rack-b".into());
        images.create(&PostParams::default(), &image).await.unwrap();
        let phase = if at == 0 { ImagePhase::Importing } else { ImagePhase::Pending };
        until("it to be under way or in line", async || {
            let status = images.get(name).await.unwrap().status?;
            (status.phase == phase && (at == 0 || status.message.is_some())).then_some(())
        })
        .await;
    }
    until("the first is fetched", async || (!asked.lock().unwrap().is_empty()).then_some(())).await;
    open.notify_one();
    until("another is fetched", async || {
        let asked = asked.lock().unwrap().clone();
        assert_eq!(asked.get(1)?, "/b1", "{asked:?}");
        Some(())
    })
    .await;
}
