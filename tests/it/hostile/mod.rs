//! What somebody with `edit` in one namespace writes into the API server of `[engine] kubeconfig`, where none of Slipway's
//! admission is: the appliance that acts judges it again, touches nothing, and says why.
//!
//! The same rows for every API server: that of Slipway's own library without its admission, and a kube-apiserver.

mod images;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::trap::Trap;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use slipway::api::metal3::{BareMetalHost, DataImage};
use slipway::api::slipway::{BootIntent, BootTarget, Image, ImagePhase};
use slipway::bmc::address::Privilege;
use slipway::bmc::ipmi::suite::CipherSuite;
use slipway::bmc::sim::{Account, IpmiSim, RedfishOptions, RedfishSim, SimulatedMachine as Machine, SimulatedProfile};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// No single step takes longer; the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(120);
/// The namespace of whoever is hostile, and one that is none of his affair.
const MINE: &str = "mine";
const THEIRS: &str = "theirs";
/// The hostile user.
const MALLORY: &str = "mallory";
/// What nobody may find on a disk of his.
const SECRET: &str = "the secret of another namespace";

/// What he may do, besides `edit` itself: hosts and their data images, as an administrator gives them to the users of a
/// namespace.
const ROLES: &str = r#"[
  {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "hosts", "namespace": "mine"},
   "rules": [{"apiGroups": ["metal3.io"], "resources": ["baremetalhosts", "dataimages"],
              "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"]}]},
  {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "hosts", "namespace": "mine"},
   "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "hosts"},
   "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "mallory"}]},
  {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "edit", "namespace": "mine"},
   "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
   "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "mallory"}]}]"#;

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < give_up, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Who can read the objects: a client of this kubeconfig, as a user if one is named.
pub async fn client(kubeconfig: &str, user: Option<&str>) -> Client {
    let mut config: Value = serde_saphyr::from_str(kubeconfig).unwrap();
    if let Some(user) = user {
        config["users"][0]["user"]["as"] = user.into();
    }
    let config = Kubeconfig::from_yaml(&config.to_string()).unwrap();
    Client::try_from(Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap()).unwrap()
}

/// What must be there before the appliance that acts is started: what it may reach, and what it must not.
pub struct Site {
    traps: Vec<Trap>,
    /// Serves images, and redirects.
    web: SocketAddr,
    /// A machine for each host that comes as far as to an image, and the address of its BMC.
    bmcs: Vec<(Arc<Machine>, String)>,
    /// The machine with a virtual CD drive.
    cd: (Arc<Machine>, String),
    allowed: Vec<String>,
    files: tempfile::TempDir,
    next: usize,
    stop: CancellationToken,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Site {
    /// `data` is the data folder of the appliance that acts.
    pub async fn new(data: &Path) -> Self {
        let account =
            Account { username: "admin".into(), password: "secret".into(), privilege: Privilege::Administrator };
        let stop = CancellationToken::new();
        let (mut bmcs, mut allowed) = (Vec::new(), Vec::new());
        for _ in 0..HOSTS_WITH_IMAGES {
            let machine = Arc::new(Machine::new(SimulatedProfile::default()));
            let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let address = socket.local_addr().unwrap().to_string();
            let bmc = IpmiSim::new(machine.clone(), vec![account.clone()], &[CipherSuite::Sha256]);
            tokio::spawn(bmc.run(socket, stop.clone()));
            bmcs.push((machine, format!("ipmi://{address}")));
            allowed.push(address);
        }
        let machine = Arc::new(Machine::new(SimulatedProfile::default()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(RedfishSim::new(vec![machine.clone()], account, RedfishOptions::default()).run(
            listener,
            None,
            stop.clone(),
        ));
        let cd = (machine, format!("redfish-virtualmedia+http://{address}"));
        allowed.push(address);

        let traps: Vec<Trap> = (0..TRAPS).map(|_| Trap::new(IpAddr::from([127, 0, 0, 1]))).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let web = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, traps[0].port));
        let files = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", files.path().join("link")).unwrap();
        std::os::unix::fs::symlink(data, files.path().join("folder")).unwrap();
        Self { traps, web, bmcs, cd, allowed, files, next: 0, stop }
    }

    /// Tables of the configuration of the appliance that acts: it reaches its BMCs and one server of images.
    pub fn tables(&self) -> String {
        format!(
            "[bmc]\nallow = {:?}\n[image]\nallow = [\"{}\"]\nfile_folder = {:?}\n[host]\nretry = \"1s\"\n",
            self.allowed,
            self.web,
            self.files.path()
        )
    }

    fn visitors(&self) -> Vec<String> {
        self.traps.iter().flat_map(Trap::visitors).collect()
    }

    /// The next machine's BMC.
    fn bmc(&mut self) -> String {
        self.next += 1;
        self.bmcs[self.next - 1].1.clone()
    }
}

/// An HTTP server of one answer for each connection.
async fn serve(listener: TcpListener, trap: u16) {
    while let Ok((mut peer, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut asked = Vec::new();
            while !asked.windows(4).any(|end| end == b"\r\n\r\n") {
                match peer.read_buf(&mut asked).await {
                    Ok(1..) => {}
                    _ => return,
                }
            }
            let asked = String::from_utf8_lossy(&asked).into_owned();
            let path = asked.split(' ').nth(1).unwrap_or_default();
            let head = |code: &str, more: &str, length: usize| {
                format!("HTTP/1.1 {code}\r\n{more}Content-Length: {length}\r\nConnection: close\r\n\r\n")
            };
            let mut answer = match path {
                "/redirect" => head("302 Found", &format!("Location: http://127.0.0.1:{trap}/\r\n"), 0).into_bytes(),
                "/good.raw" | "/no.iso" | "/private.raw" => head("200 OK", "", GOOD).into_bytes(),
                _ => head("404 Not Found", "", 0).into_bytes(),
            };
            if answer.starts_with(b"HTTP/1.1 200") && !asked.starts_with("HEAD") {
                answer.extend(std::iter::repeat_n(if path == "/private.raw" { PRIVATE } else { 7 }, GOOD));
            }
            peer.write_all(&answer).await.ok();
            peer.shutdown().await.ok();
        });
    }
}

const GOOD: usize = 1 << 20;
/// What fills the image of another namespace.
const PRIVATE: u8 = 9;
const HOSTS_WITH_IMAGES: usize = 20;
const TRAPS: usize = 8;

/// The appliance that acts.
pub struct Acting<'a> {
    pub data: PathBuf,
    pub boot: SocketAddr,
    pub api: SocketAddr,
    pub log: &'a (dyn Fn() -> String + Sync),
}

async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + DeserializeOwned,
{
    let text = object.to_string();
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap())
        .await
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn host(name: &str, number: usize, spec: Value) -> Value {
    let mut whole = json!({"online": true, "bootMACAddress": format!("02:00:00:00:01:{number:02x}"),
        "inspectionMode": "disabled", "automatedCleaningMode": "disabled"});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": name}, "spec": whole})
}

/// What the host's status says is wrong, once it says something of the kind.
async fn complaint(hosts: &Api<BareMetalHost>, name: &str, reason: &str, acting: &Acting<'_>) {
    let mut last = String::new();
    let give_up = Instant::now() + DEADLINE;
    loop {
        let status = hosts.get(name).await.unwrap().status.unwrap_or_default();
        assert_ne!(status.provisioning.state.as_str(), "provisioned", "{name}");
        if status.error_message.contains(reason) {
            return;
        }
        let now = format!("{}: {}", status.provisioning.state.as_str(), status.error_message);
        last = if status.error_message.is_empty() { last } else { now };
        assert!(Instant::now() < give_up, "{name} does not say {reason:?}, but: {last}\n{}", (acting.log)());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Writes it all, and looks what comes of it. `kubeconfig` is an administrator's of the API server that keeps the objects.
pub async fn rows(kubeconfig: &str, site: &mut Site, acting: Acting<'_>) {
    let admin = client(kubeconfig, None).await;
    for name in [MINE, THEIRS] {
        create(&Api::<Namespace>::all(admin.clone()), json!({"metadata": {"name": name}})).await;
        let content = json!({"username": "admin", "password": "secret", "userData": SECRET, "value": SECRET});
        let name = if name == MINE { "bmc" } else { "private" };
        let secrets = Api::<Secret>::namespaced(admin.clone(), if name == "bmc" { MINE } else { THEIRS });
        create(&secrets, json!({"metadata": {"name": name}, "stringData": content})).await;
    }
    for object in serde_json::from_str::<Vec<Value>>(ROLES).unwrap() {
        let plural = format!("{}s", object["kind"].as_str().unwrap().to_lowercase());
        let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{MINE}/{plural}");
        let request = http::Request::post(path).header("content-type", "application/json");
        admin.request::<Value>(request.body(object.to_string().into_bytes()).unwrap()).await.unwrap();
    }

    // As he is, and no more.
    let mallory = client(kubeconfig, Some(MALLORY)).await;
    let theirs = Api::<Secret>::namespaced(mallory.clone(), THEIRS);
    assert!(until_allowed(&mallory).await && theirs.get("private").await.is_err());
    let hosts = Api::<BareMetalHost>::namespaced(mallory.clone(), MINE);
    let mut number = 0;
    let mut expected: Vec<(String, String)> = Vec::new();

    // Images.
    let (web, trap) = (site.web, site.traps[0].port);
    let good = format!("http://{web}/good.raw");
    let web_only = "http://";
    let image = |url: &str, more: Value| {
        let mut image = json!({"url": url, "format": "raw"});
        image.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        image
    };
    let none = || json!({});
    let files = site.files.path().display().to_string();
    let images = [
        ("passwd", image("file:///etc/passwd", none()), web_only),
        ("data", image(&format!("file://{}/pki/ca.key", acting.data.display()), none()), web_only),
        ("link", image(&format!("file://{files}/link"), none()), web_only),
        ("loopback", image(&format!("http://127.0.0.1:{trap}/"), none()), "is a loopback address"),
        ("mapped", image(&format!("http://[::ffff:127.0.0.1]:{trap}/"), none()), "is a loopback address"),
        ("named", image(&format!("http://localhost:{trap}/"), none()), "is a loopback address"),
        ("cloud", image("http://169.254.169.254/latest/user-data", none()), "is a link-local address"),
        ("redirect", image(&format!("http://{web}/redirect"), none()), "is a loopback address"),
        ("sums", image(&good, json!({"checksum": format!("http://127.0.0.1:{trap}/sums")})), "is a loopback address"),
        ("sums-redirect", image(&good, json!({"checksum": format!("http://{web}/redirect")})), "is a loopback address"),
        ("sums-file", image(&good, json!({"checksum": "file:///etc/shadow"})), web_only),
        ("iso", json!({"url": format!("http://{web}/no.iso"), "format": "live-iso"}), "ISO"),
    ];
    for (name, image, reason) in images {
        number += 1;
        let bmc = json!({"address": site.bmc(), "credentialsName": "bmc"});
        create(&hosts, host(name, number, json!({"bmc": bmc, "image": image}))).await;
        expected.push((name.into(), reason.into()));
    }

    // BMCs.
    let mut bmcs = vec![
        ("bmc-redfish", format!("redfish+http://127.0.0.1:{}/redfish/v1/Systems/1", site.traps[1].port), "a loopback"),
        ("bmc-ipmi", format!("ipmi://127.0.0.1:{}", site.traps[2].port), "a loopback"),
        ("bmc-cd", format!("redfish-virtualmedia+http://localhost:{}", site.traps[3].port), "a loopback"),
        ("bmc-mapped", format!("ipmi://[::ffff:127.0.0.1]:{}", site.traps[4].port), "a loopback"),
        ("bmc-zero", format!("redfish+http://0.0.0.0:{}", site.traps[5].port), "an unspecified"),
        ("bmc-cloud", "redfish+http://169.254.169.254".into(), "a link-local"),
    ];
    let own = slipway::outbound::own_addresses().unwrap().iter().copied().find(|ip| ip.is_ipv4() && !ip.is_loopback());
    if let Some(own) = own {
        site.traps.push(Trap::new(own));
        let address = format!("idrac-redfish+http://{own}:{}", site.traps[TRAPS].port);
        bmcs.push(("bmc-own", address, "of the appliance itself"));
    }
    for (name, address, reason) in bmcs {
        number += 1;
        create(&hosts, host(name, number, json!({"bmc": {"address": address, "credentialsName": "bmc"}}))).await;
        expected.push((name.into(), reason.into()));
    }

    // Secrets of others: names are names, never paths.
    for (name, secret, reason) in [
        ("secret-theirs", "private", "no secret private in namespace mine"),
        ("secret-path", "../../theirs/secrets/private", "no name that a Secret can have"),
        ("secret-query", "bmc?x=1", "no name that a Secret can have"),
    ] {
        number += 1;
        let bmc = json!({"address": site.bmc(), "credentialsName": secret});
        create(&hosts, host(name, number, json!({"bmc": bmc}))).await;
        expected.push((name.into(), reason.into()));
    }

    // A CD for a machine whose system is somebody else's.
    number += 1;
    let bmc = json!({"address": site.cd.1, "credentialsName": "bmc"});
    let data_images = Api::<DataImage>::namespaced(mallory.clone(), MINE);
    create(&data_images, json!({"metadata": {"name": "cd"}, "spec": {"url": "file:///etc/passwd"}})).await;
    create(&hosts, host("cd", number, json!({"bmc": bmc, "externallyProvisioned": true}))).await;
    expected.push(("cd".into(), "http://".into()));

    // One whose image is good and whose user data is not his.
    number += 1;
    let user_data = json!({"name": "private", "namespace": THEIRS});
    let bmc = json!({"address": site.bmc(), "credentialsName": "bmc"});
    let spec = json!({"bmc": bmc, "image": image(&good, none()), "userData": user_data});
    create(&hosts, host("user-data", number, spec)).await;
    let refused = complaint(&hosts, "user-data", "is in namespace theirs, which is not the host's own", &acting);
    let (mut seen, mac) = (String::new(), format!("02:00:00:00:01:{number:02x}"));
    tokio::select! {
        () = agent(&admin, "user-data", &mac, &acting, &mut seen) => {}
        () = refused => {}
    }
    assert_eq!(seen, "write-image ", "the good image is written, and nothing after it");

    for (name, reason) in &expected {
        complaint(&hosts, name, reason, &acting).await;
    }

    // Images themselves are of the whole cluster; their files are those of one folder.
    assert!(Api::<Image>::all(mallory.clone()).list(&Default::default()).await.is_err());
    let library = Api::<Image>::all(admin.clone());
    for (name, url, reason) in [
        ("file-passwd", "file:///etc/passwd".to_owned(), "image.file_folder"),
        ("file-dots", format!("file://{files}/../../etc/passwd"), "image.file_folder"),
        ("file-link", format!("file://{files}/link"), "symlink"),
        ("file-folder", format!("file://{files}/folder/pki/ca.key"), "symlink"),
        ("file-data", format!("file://{}/pki/ca.key", acting.data.display()), "image.file_folder"),
        ("web-loopback", format!("http://127.0.0.1:{trap}/"), "is a loopback address"),
    ] {
        create(&library, json!({"metadata": {"name": name}, "spec": {"url": url, "format": "raw"}})).await;
        let error = until(&format!("{name} fails"), async || {
            let status = library.get(name).await.unwrap().status.unwrap_or_default();
            assert_ne!(status.phase, ImagePhase::Ready, "{name}");
            status.message.filter(|_| status.phase == ImagePhase::Failed)
        })
        .await;
        assert!(error.contains(reason), "{name}: {error}");
    }

    // Nothing but the good image came into the library, nothing was put into the drive, and nobody came to a trap.
    let ready = library.list(&Default::default()).await.unwrap().items;
    let ready: Vec<_> = ready
        .iter()
        .filter(|image| image.status.as_ref().is_some_and(|status| status.phase == ImagePhase::Ready))
        .map(|image| image.spec.url.clone())
        .collect();
    assert_eq!(ready, [good]);
    images::rows(&admin, &mallory, site, &acting, number + 1).await;
    assert_eq!(site.cd.0.media(), None);
    assert_eq!(site.visitors(), Vec::<String>::new());
    assert!(!(acting.log)().contains(SECRET));
}

/// Waits until his rights are known there.
async fn until_allowed(mallory: &Client) -> bool {
    let hosts = Api::<BareMetalHost>::namespaced(mallory.clone(), MINE);
    until("his rights", async || hosts.list(&Default::default()).await.ok()).await.items.is_empty()
}

/// Plays the agent of a machine for as long as there may be something to do; `seen` is what it was told to do.
async fn agent(admin: &Client, host: &str, mac: &str, acting: &Acting<'_>, seen: &mut String) {
    // Its machine is on by then; before that, the boot is not this agent's.
    let intents = Api::<BootIntent>::namespaced(admin.clone(), MINE);
    until("the machine is started", async || {
        let intent = intents.get_opt(host).await.unwrap()?.spec;
        intent.started.filter(|_| intent.target == BootTarget::Ramdisk)
    })
    .await;
    let client = reqwest::Client::builder().danger_accept_invalid_certs(true).no_proxy().build().unwrap();
    let token = until("the machine's script", async || {
        let url = format!("http://{}/boot/ipxe?mac={}&uuid=&arch=7", acting.boot, mac.replace(':', "-"));
        let script = client.get(url).send().await.ok()?.text().await.ok()?;
        let token = script.split("slipway.token=").nth(1)?.split_whitespace().next()?;
        Some(token.to_owned())
    })
    .await;
    let url = |path: &str| format!("https://{}/agent/v1/{path}", acting.api);
    let hello = json!({"token": token, "version": "0", "macAddresses": [mac], "uuid": "", "uefi": true});
    let answer = client.post(url("session")).json(&hello).send().await.unwrap();
    assert_eq!(answer.status(), 200, "{}\n{}", answer.text().await.unwrap(), (acting.log)());
    let session: Value = answer.json().await.unwrap();
    let bearer = session["session"].as_str().unwrap();
    let mut after = String::new();
    loop {
        let step = client.get(url(&format!("step?after={after}"))).bearer_auth(bearer);
        let step = step.timeout(DEADLINE).send().await.unwrap();
        match step.status().as_u16() {
            200 => {}
            // Nothing yet.
            204 => continue,
            // The boot has ended.
            _ => return std::future::pending().await,
        }
        let step: Value = step.json().await.unwrap();
        *seen += &format!("{} ", step["action"].as_str().unwrap());
        assert!(!step.to_string().contains(SECRET), "{step}");
        after = step["id"].as_str().unwrap().to_owned();
        let outcome = json!({"step": after, "succeeded": true, "message": ""});
        client.post(url("result")).bearer_auth(bearer).json(&outcome).send().await.unwrap();
    }
}
