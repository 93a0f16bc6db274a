//! What a stranger on the provisioning network can and cannot learn or do: each row of the table in `docs/security.md`,
//! through the real doors: boot HTTP and the agents' TLS, over loopback. Machines have addresses of 127.0.0.0/8 there.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use slipway::api::MacAddress;
use slipway::api::metal3::{BareMetalHost, BareMetalHostSpec, BmcDetails, SecretReference};
use slipway::api::slipway::{BootIntent, BootIntentSpec, BootTarget, ImageSpec, IntentStep, StepAction};
use slipway::apiserver::{self, ApiServer};
use slipway::boot::{self, BootFiles, BootNetworks, BootServerConfig, BootTokens, HostIndex, LeaseOwner};
use slipway::config::DiscoveryConfig;
use slipway::host::agent_api::Sessions;
use slipway::host::directory::Directory;
use slipway::host::discovery::DiscoveryService;
use slipway::host::logs::Logs;
use slipway::host::logs::endpoint;
use slipway::image::{Library, Sources};
use slipway::modules::kinds;
use slipway::pki::Pki;
use slipway::runtime::Watches;
use slipway::store::{Store, StoreOptions};

const DEADLINE: Duration = Duration::from_secs(60);
/// The machine, and where DHCP leased it its address.
const NODE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 10);
const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 0x10]);
/// Another host's machine.
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 11);
const OTHER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 0x11]);
/// Where DHCP leased an address to whoever named a host's MAC address, and where another card answers.
const CLONE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 12);
const CLONED_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 0x12]);
/// Somebody with an address of his own making.
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);
/// Somebody on a network where another server gives the addresses.
const BESIDE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);
/// Somebody else there.
const BESIDE_TOO: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 78);
/// The machine there, as the neighbour table says.
const BESIDE_NODE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 79);
/// Somebody there with a card of his own.
const BESIDE_CLONE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 80);
/// Somebody on no network of the configuration: whoever reaches the appliance's port.
const OUTSIDER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 88);
const USER_DATA: &str = "the secret user data";

struct Appliance {
    folder: tempfile::TempDir,
    boot: SocketAddr,
    api: SocketAddr,
    ca: reqwest::Certificate,
    client: kube::Client,
    index: HostIndex,
    library: Library,
    shutdown: CancellationToken,
}

impl Drop for Appliance {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Appliance {
    /// With the hosts `node` and `other`; discovery is on or off.
    async fn new(discovery: bool) -> Self {
        slipway::appliance::install_tls_provider();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 100 };
        let store = Store::open(options).unwrap();
        let shutdown = CancellationToken::new();
        let api = ApiServer::new(store.clone(), &kinds(), shutdown.clone()).await.unwrap();
        let client = api.client();
        let mut watches = Watches::default();
        let Directory { index, intents, mut ready, .. } = Directory::new(&mut watches);
        tokio::spawn(watches.run(client.clone(), shutdown.clone()));
        ready.wait_for(|ready| *ready).await.unwrap();
        let tokens = Arc::new(BootTokens::open(path).unwrap());
        let logs = Logs::new(path.join("logs"));
        api.add_view("metal3.io/baremetalhosts", "log", endpoint::view(logs.clone(), intents.clone()));
        let sources = Sources { file_folder: Some(path.join("published")), ..Sources::default() };
        let library = Library::open(path.join("images"), sources).unwrap();
        let visits = DiscoveryService::new(client.clone(), index.clone(), DiscoveryConfig::default(), &store).unwrap();
        let sessions = Sessions::new(
            client.clone(),
            index.clone(),
            intents,
            tokens.clone(),
            library.clone(),
            logs,
            boot::DownloadScheduler::default(),
        );
        let router = api.router().merge(sessions.with_discovery(visits).with_neighbours(cards()).router());

        let pki = Pki::open(&path.join("pki"), &["127.0.0.1".to_owned()]).unwrap();
        let doors = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let agents = doors.local_addr().unwrap();
        let config = pki.server_config().unwrap();
        tokio::spawn(apiserver::tls::serve(doors, config, router, shutdown.clone()));

        let files = path.join("boot");
        std::fs::create_dir(&files).unwrap();
        for name in ["vmlinuz", "initrd", "ramdisk.json"] {
            std::fs::write(files.join(name), "no secret").unwrap();
        }
        let networks = BootNetworks {
            discovery: if discovery { vec!["127.0.0.0/8".parse().unwrap()] } else { Vec::new() }.into(),
            lease_owner: Some(Arc::new(|address| match address {
                NODE => LeaseOwner::Machine(MAC),
                OTHER => LeaseOwner::Machine(OTHER_MAC),
                CLONE => LeaseOwner::Machine(CLONED_MAC),
                BESIDE | BESIDE_TOO | BESIDE_NODE | BESIDE_CLONE => LeaseOwner::Elsewhere,
                OUTSIDER => LeaseOwner::Outside,
                _ => LeaseOwner::Nobody,
            })),
            neighbours: Some(cards()),
            ..BootNetworks::default()
        };
        let site = BootServerConfig::new(agents.port(), pki.ca_pem(), "").unwrap().with_networks(networks);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let scripts =
            boot::router(site, index.clone(), tokens, BootFiles::new(&files), boot::DownloadScheduler::default())
                .merge(boot::live::router(index.clone(), library.clone(), slipway::ration::all_alike()));
        tokio::spawn(boot::serve(
            listener,
            scripts,
            slipway::ration::all_alike(),
            boot::MAX_CONNECTIONS,
            boot::BootHttpMetrics::default(),
            shutdown.clone(),
        ));

        let ca = reqwest::Certificate::from_pem(pki.ca_pem().as_bytes()).unwrap();
        let appliance = Self { folder, boot: address, api: agents, ca, client, index, library, shutdown };
        appliance.host("node", MAC).await;
        appliance.host("other", OTHER_MAC).await;
        appliance
    }

    async fn host(&self, name: &str, mac: MacAddress) {
        self.host_at(name, mac, "ipmi://192.0.2.1").await;
    }

    /// A host whose BMC has this address.
    async fn host_at(&self, name: &str, mac: MacAddress, bmc: &str) {
        let secrets = Api::<Secret>::namespaced(self.client.clone(), "default");
        let data = [("userData".to_owned(), USER_DATA.to_owned())].into();
        let metadata = ObjectMeta { name: Some(format!("{name}-data")), ..ObjectMeta::default() };
        let secret = Secret { metadata, string_data: Some(data), ..Secret::default() };
        secrets.create(&PostParams::default(), &secret).await.unwrap();
        let spec = BareMetalHostSpec {
            online: true,
            boot_mac_address: Some(mac.to_string()),
            bmc: Some(BmcDetails { address: bmc.to_owned(), ..BmcDetails::default() }),
            user_data: Some(SecretReference { name: Some(format!("{name}-data")), namespace: None }),
            ..BareMetalHostSpec::default()
        };
        let hosts = Api::<BareMetalHost>::namespaced(self.client.clone(), "default");
        hosts.create(&PostParams::default(), &BareMetalHost::new(name, spec)).await.unwrap();
        self.until("the host to be known", || self.index.by_mac(mac).is_some()).await;
    }

    /// Digest of a file in the library.
    async fn import(&self, name: &str, content: &[u8]) -> String {
        let folder = self.folder.path().join("published");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(name), content).unwrap();
        let url = format!("file://{}/{name}", folder.display());
        let spec = ImageSpec { url, format: Some("raw".into()), ..ImageSpec::default() };
        self.library.import(&spec, |_| {}).await.unwrap().digest
    }

    /// The host is to boot a live ISO.
    async fn intend_live(&self, name: &str, mac: MacAddress, digest: &str, generation: i64) {
        let live_iso = Some(digest.to_owned());
        let spec = BootIntentSpec { generation, target: BootTarget::LiveIso, live_iso, ..BootIntentSpec::default() };
        self.intend_as(name, mac, spec).await;
    }

    /// The host is to boot the ramdisk, and its agent is to write a config drive.
    async fn intend(&self, name: &str, mac: MacAddress, generation: i64) {
        let step = IntentStep {
            id: format!("{generation}.1"),
            action: StepAction::WriteConfigDrive,
            operation: "provision@1".into(),
            ..IntentStep::default()
        };
        let spec =
            BootIntentSpec { generation, target: BootTarget::Ramdisk, steps: vec![step], ..BootIntentSpec::default() };
        self.intend_as(name, mac, spec).await;
    }

    async fn intend_as(&self, name: &str, mac: MacAddress, spec: BootIntentSpec) {
        let generation = spec.generation;
        let intents = Api::<BootIntent>::namespaced(self.client.clone(), "default");
        match intents.get_opt(name).await.unwrap() {
            Some(intent) => {
                intents.replace(name, &PostParams::default(), &BootIntent { spec, ..intent }).await.unwrap();
            }
            None => {
                intents.create(&PostParams::default(), &BootIntent::new(name, spec)).await.unwrap();
            }
        }
        let known = || self.index.by_mac(mac).and_then(|host| host.intent.clone()).map(|intent| intent.generation);
        self.until("the intent to be known", || known() == Some(generation)).await;
    }

    async fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let end = tokio::time::Instant::now() + DEADLINE;
        while !holds() {
            assert!(tokio::time::Instant::now() < end, "{what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn from(&self, address: Ipv4Addr) -> reqwest::Client {
        reqwest::Client::builder()
            .no_proxy()
            .timeout(DEADLINE)
            .local_address(IpAddr::V4(address))
            .tls_certs_only([self.ca.clone()])
            .build()
            .unwrap()
    }

    /// Status and text of something of boot HTTP.
    async fn plain(&self, address: Ipv4Addr, path: &str) -> (u16, String) {
        let answer = self.from(address).get(format!("http://{}{path}", self.boot)).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// The token in the script that a machine gets.
    async fn token(&self, address: Ipv4Addr, mac: MacAddress) -> Result<String, String> {
        let (status, script) = self.plain(address, &format!("/boot/ipxe?mac={}&uuid=&arch=7", mac.hyphenated())).await;
        assert_eq!(status, 200, "{script}");
        let token = script.split("slipway.token=").nth(1).and_then(|rest| rest.split_whitespace().next());
        token.map(str::to_owned).ok_or(script)
    }

    /// A call of an agent over TLS: status and answer.
    async fn call(&self, address: Ipv4Addr, bearer: &str, method: &str, path: &str, body: Value) -> (u16, Value) {
        let url = format!("https://{}{path}", self.api);
        let mut request = self.from(address).request(method.parse().unwrap(), url);
        if !bearer.is_empty() {
            request = request.bearer_auth(bearer);
        }
        if !body.is_null() {
            request = request.json(&body);
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    async fn open(&self, address: Ipv4Addr, token: &str, mac: MacAddress) -> (u16, Value) {
        let hello = json!({ "token": token, "version": "0", "macAddresses": [mac], "uuid": "", "uefi": true });
        self.call(address, "", "POST", "/agent/v1/session", hello).await
    }

    /// The session of a good boot.
    async fn session(&self, address: Ipv4Addr, mac: MacAddress) -> String {
        let token = self.token(address, mac).await.unwrap();
        let (status, session) = self.open(address, &token, mac).await;
        assert_eq!(status, 200, "{session}");
        session["session"].as_str().unwrap().to_owned()
    }
}

/// What the kernel's neighbour table knows.
fn cards() -> boot::neighbour::Neighbours {
    let card = |address| match address {
        NODE | BESIDE_NODE => boot::neighbour::ArpAnswers::Card(MAC),
        CLONE | BESIDE_CLONE => boot::neighbour::ArpAnswers::Card(MacAddress([2, 0xaa, 0xaa, 0xaa, 0xaa, 1])),
        _ => boot::neighbour::ArpAnswers::Unseen,
    };
    Arc::new(move |address| Box::pin(async move { card(address) }))
}

fn reason(answer: &Value) -> &str {
    answer["reason"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn s1_a_machine_that_slipway_wants_nothing_of_gets_no_token() {
    let appliance = Appliance::new(false).await;
    let script = appliance.token(NODE, MAC).await.unwrap_err();
    assert!(script.contains("has no boot intent: local disk"), "{script}");
    let script = appliance.token(STRANGER, MacAddress([2, 9, 9, 9, 9, 9])).await.unwrap_err();
    assert!(script.contains("no BareMetalHost has the MAC address"), "{script}");
}

#[tokio::test]
async fn s2_a_script_with_a_token_goes_only_to_the_address_that_was_leased_to_the_machine() {
    let appliance = Appliance::new(false).await;
    appliance.intend("node", MAC, 7).await;
    for address in [STRANGER, OTHER] {
        let script = appliance.token(address, MAC).await.unwrap_err();
        assert!(script.contains("did not get that address here"), "{script}");
    }
    let script = appliance.token(OUTSIDER, MAC).await.unwrap_err();
    assert!(script.contains("127.0.0.88 asks for the script") && script.contains("in no network"), "{script}");
    appliance.token(NODE, MAC).await.unwrap();
}

/// Where another server gives the addresses nobody can say whose they are, unless the machine's card is seen.
#[tokio::test]
async fn s2a_where_another_server_gives_the_addresses_one_address_gets_a_boots_script() {
    let appliance = Appliance::new(false).await;
    appliance.intend("node", MAC, 7).await;
    let script = appliance.token(BESIDE_CLONE, MAC).await.unwrap_err();
    assert!(script.contains("answers at 127.0.0.80 is 02:aa:aa:aa:aa:01"), "{script}");
    // The limit: somebody of whom nothing is seen is first, and keeps others out for a while.
    let token = appliance.token(BESIDE, MAC).await.unwrap();
    appliance.token(BESIDE, MAC).await.unwrap();
    let script = appliance.token(BESIDE_TOO, MAC).await.unwrap_err();
    assert!(script.contains("127.0.0.78 asks for the script") && script.contains("127.0.0.77 asked first"), "{script}");
    // Who overheard it has nothing of it: not while the machine boots, and never by a card of his own.
    for (address, refused) in [(BESIDE_TOO, 503), (STRANGER, 503), (BESIDE_CLONE, 403)] {
        let (status, refusal) = appliance.open(address, &token, MAC).await;
        assert!(status == refused && reason(&refusal).contains("was given to 127.0.0.77"), "{address}: {refusal}");
    }
    // The machine itself is kept out by nobody: it gets a script, and from then on it is the first.
    let own = appliance.token(BESIDE_NODE, MAC).await.unwrap();
    let script = appliance.token(BESIDE, MAC).await.unwrap_err();
    assert!(script.contains("127.0.0.79 asked first"), "{script}");
    // Nor when its ramdisk has another address than its firmware had.
    let (status, session) = appliance.open(BESIDE_NODE, &token, MAC).await;
    assert_eq!(status, 200, "{session}");
    let (status, refusal) = appliance.open(BESIDE_NODE, &own, MAC).await;
    assert!(status == 403 && reason(&refusal).contains("used already"), "{refusal}");
    // Another boot is another matter.
    appliance.intend("node", MAC, 8).await;
    appliance.token(BESIDE_TOO, MAC).await.unwrap();
}

#[tokio::test]
async fn s3_a_token_that_was_overheard_is_of_no_use_at_another_address_nor_a_second_time() {
    let appliance = Appliance::new(false).await;
    appliance.intend("node", MAC, 7).await;
    let token = appliance.token(NODE, MAC).await.unwrap();
    let (status, refusal) = appliance.open(STRANGER, &token, MAC).await;
    assert!(status == 403 && reason(&refusal).contains("was given to 127.0.0.10"), "{refusal}");
    let session = appliance.session(NODE, MAC).await;
    appliance.call(NODE, &session, "GET", "/agent/v1/step", Value::Null).await;
    let (status, refusal) = appliance.open(NODE, &token, MAC).await;
    assert!(status == 403 && reason(&refusal).contains("used already, from 127.0.0.10"), "{refusal}");
    // Nor is another script to be had for this boot.
    let script = appliance.token(NODE, MAC).await.unwrap_err();
    assert!(script.contains("its one session was opened already"), "{script}");
}

/// The limit of what can be had without a secret in the machine: see the page.
#[tokio::test]
async fn s4_a_clone_that_is_first_gets_this_boot_and_the_machine_says_so() {
    let appliance = Appliance::new(false).await;
    appliance.intend("node", MAC, 7).await;
    let clones = appliance.session(NODE, MAC).await;
    let (status, step) = appliance.call(NODE, &clones, "GET", "/agent/v1/step", Value::Null).await;
    assert_eq!((status, &step["action"]), (200, &json!("write-config-drive")));
    let script = appliance.token(NODE, MAC).await.unwrap_err();
    assert!(script.contains("its one session was opened already"), "{script}");
    // And the boot after that is another matter: the clone's session has ended with its own.
    appliance.intend("node", MAC, 8).await;
    let (status, _) = appliance.call(NODE, &clones, "GET", "/agent/v1/step", Value::Null).await;
    assert_eq!(status, 401);
    appliance.session(NODE, MAC).await;
}

#[tokio::test]
async fn s4a_who_only_names_a_hosts_mac_address_to_dhcp_gets_neither_its_script_nor_its_session() {
    let appliance = Appliance::new(false).await;
    appliance.host("cloned", CLONED_MAC).await;
    appliance.intend("cloned", CLONED_MAC, 7).await;
    let script = appliance.token(CLONE, CLONED_MAC).await.unwrap_err();
    assert!(script.contains("answers at 127.0.0.12 is 02:aa:aa:aa:aa:01"), "{script}");
    // With the token that the machine itself got before its address was taken over.
    let uid = appliance.index.by_mac(CLONED_MAC).unwrap().uid.clone();
    let token = BootTokens::open(appliance.folder.path()).unwrap().mint_at(&uid, 7, Some(CLONE)).unwrap();
    let (status, refusal) = appliance.open(CLONE, &token, CLONED_MAC).await;
    assert!(status == 403 && reason(&refusal).contains("none of the machine's"), "{refusal}");
}

#[tokio::test]
async fn s5_a_token_of_an_earlier_boot_and_one_that_was_made_up_open_nothing() {
    let appliance = Appliance::new(false).await;
    appliance.intend("node", MAC, 7).await;
    let token = appliance.token(NODE, MAC).await.unwrap();
    appliance.intend("node", MAC, 8).await;
    let (status, refusal) = appliance.open(NODE, &token, MAC).await;
    assert!(status == 403 && reason(&refusal).contains("the token has ended"), "{refusal}");
    let mut forged = appliance.token(NODE, MAC).await.unwrap().into_bytes();
    forged[30] = if forged[30] == b'A' { b'B' } else { b'A' };
    for token in [String::from_utf8(forged).unwrap(), String::new(), "x".repeat(10_000)] {
        assert_eq!(appliance.open(NODE, &token, MAC).await.0, 403, "{token:.20}");
    }
}

#[tokio::test]
async fn s6_a_session_is_one_hosts_and_ends_with_its_boot() {
    let appliance = Appliance::new(false).await;
    appliance.intend("node", MAC, 7).await;
    appliance.intend("other", OTHER_MAC, 3).await;
    let (node, other) = (appliance.session(NODE, MAC).await, appliance.session(OTHER, OTHER_MAC).await);
    for (address, session, generation) in [(NODE, &node, 7), (OTHER, &other, 3)] {
        let (_, step) = appliance.call(address, session, "GET", "/agent/v1/step", Value::Null).await;
        assert_eq!(step["generation"], generation, "each its own");
    }
    // What one says of the other's step is not taken.
    let outcome = json!({ "step": "3.1", "succeeded": true, "message": "" });
    assert_eq!(appliance.call(NODE, &node, "POST", "/agent/v1/result", outcome).await.0, 410);
    appliance.intend("node", MAC, 8).await;
    let digest = "0".repeat(64);
    for path in ["step".to_owned(), format!("chunk/{digest}"), format!("manifest/{digest}")] {
        let (status, _) = appliance.call(NODE, &node, "GET", &format!("/agent/v1/{path}"), Value::Null).await;
        assert_eq!(status, 401, "{path}");
    }
}

#[tokio::test]
async fn s7_agents_tokens_are_nothing_to_the_api_and_the_apis_doors_are_shut() {
    let appliance = Appliance::new(false).await;
    appliance.intend("node", MAC, 7).await;
    let token = appliance.token(NODE, MAC).await.unwrap();
    let session = appliance.session(NODE, MAC).await;
    let host = "/apis/metal3.io/v1alpha1/namespaces/default/baremetalhosts/node";
    for path in ["/api/v1/secrets", "/api/v1/namespaces/default/secrets/node-data", host, &format!("{host}/log")] {
        for bearer in ["", &token, &session] {
            let (status, answer) = appliance.call(NODE, bearer, "GET", path, Value::Null).await;
            assert!(status == 401 || status == 403, "{path}: {status} {answer}");
        }
    }
    let patch = json!({ "spec": { "online": false } });
    assert!(matches!(appliance.call(NODE, &session, "PATCH", host, patch).await.0, 401 | 403));
    for path in ["/agent/v1/step", "/agent/v1/manifest/0", "/agent/v1/chunk/0"] {
        assert_eq!(appliance.call(STRANGER, "", "GET", path, Value::Null).await.0, 401, "{path}");
    }
}

#[tokio::test]
async fn s8_user_data_is_in_no_plain_answer_and_not_readable_on_disk() {
    let appliance = Appliance::new(false).await;
    appliance.intend("node", MAC, 7).await;
    let mut said = String::new();
    for path in [
        "/boot/ipxe?mac=02:00:00:00:00:10&arch=7",
        "/boot/explain?mac=02:00:00:00:00:10",
        "/boot/ca.pem",
        "/boot/files/initrd",
        "/boot/files/../pki/ca.key",
        "/boot/files/..%2f..%2fkey",
        "/boot/files/boot-token.key",
        "/boot/explain/dhcp?mac=02:00:00:00:00:10",
    ] {
        said += &appliance.plain(NODE, path).await.1;
    }
    assert!(said.contains("slipway.token=") && !said.contains(USER_DATA) && !said.contains("PRIVATE KEY"), "{said}");
    // The agent of the boot gets it, over TLS.
    let session = appliance.session(NODE, MAC).await;
    let (_, step) = appliance.call(NODE, &session, "GET", "/agent/v1/step", Value::Null).await;
    use base64::Engine;
    let drive = base64::engine::general_purpose::STANDARD.decode(step["iso"].as_str().unwrap()).unwrap();
    let holds = |bytes: &[u8]| bytes.windows(USER_DATA.len()).any(|window| window == USER_DATA.as_bytes());
    assert!(holds(&drive));
    let mut files = vec![appliance.folder.path().to_owned()];
    let mut looked = 0;
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        looked += 1;
        assert!(!holds(&std::fs::read(&path).unwrap()), "{} holds it in clear", path.display());
    }
    assert!(looked > 3, "{looked}");
}

#[tokio::test]
async fn s9_a_machine_that_reports_itself_can_do_that_and_nothing_else() {
    let appliance = Appliance::new(true).await;
    appliance.intend("node", MAC, 7).await;
    let unknown = MacAddress([2, 0, 0, 0, 0, 0x77]);
    let script = appliance.token(STRANGER, unknown).await.unwrap_err();
    assert!(script.contains("did not get that address here"), "{script}");
    // Whose address is leased to it, gets a visitor's token for itself, never for a host.
    let appliance = Appliance::new(true).await;
    let tokens = BootTokens::open(appliance.folder.path()).unwrap();
    let token = tokens.mint_visit(unknown, Some(STRANGER)).unwrap();
    assert_eq!(appliance.open(NODE, &token, unknown).await.0, 403, "at another address");
    assert_eq!(appliance.open(STRANGER, &token, MAC).await.0, 403, "with another machine's address");
    let (status, session) = appliance.open(STRANGER, &token, unknown).await;
    assert_eq!(status, 200, "{session}");
    let bearer = session["session"].as_str().unwrap();
    let (_, step) = appliance.call(STRANGER, bearer, "GET", "/agent/v1/step", Value::Null).await;
    assert_eq!(step["action"], "inspect");
    let digest = "0".repeat(64);
    for path in [format!("/agent/v1/chunk/{digest}"), format!("/agent/v1/manifest/{digest}"), "/api/v1/secrets".into()]
    {
        assert!(matches!(appliance.call(STRANGER, bearer, "GET", &path, Value::Null).await.0, 401 | 403), "{path}");
    }
    // It says that it is the machine of another host: that host gets an event, and this machine nothing.
    let claim = json!({ "step": "0.1", "succeeded": true, "message": "", "inventory": { "nics": [{ "mac": MAC }] } });
    assert_eq!(appliance.call(STRANGER, bearer, "POST", "/agent/v1/result", claim).await.0, 204);
    let hosts = Api::<BareMetalHost>::namespaced(appliance.client.clone(), "default");
    assert_eq!(hosts.list(&Default::default()).await.unwrap().items.len(), 2);
    appliance.intend("node", MAC, 7).await;
    assert!(appliance.index.by_mac(unknown).is_none(), "not the host's address");
}

#[tokio::test]
async fn s10_a_machine_that_boots_from_a_virtual_cd_or_a_url_is_served_by_its_ticket_and_not_by_its_address() {
    let appliance = Appliance::new(false).await;
    for (last, scheme, reason) in
        [(0x20, "redfish-virtualmedia", "from a virtual CD"), (0x21, "redfish-uefihttp", "by a URL")]
    {
        let mac = MacAddress([2, 0, 0, 0, 0, last]);
        let name = format!("host-{last}");
        appliance.host_at(&name, mac, &format!("{scheme}://192.0.2.1")).await;
        appliance.intend(&name, mac, 3).await;
        for address in [BESIDE, STRANGER, NODE] {
            let script = appliance.token(address, mac).await.unwrap_err();
            assert!(script.contains(reason), "{script}");
        }
    }
}

/// What the appliance itself asks for, for whomever it asks: an image's URL may lead to boot HTTP.
#[tokio::test]
async fn s14_a_token_that_was_asked_for_on_the_appliance_is_good_nowhere_else() {
    let appliance = Appliance::new(false).await;
    appliance.intend("node", MAC, 7).await;
    let token = appliance.token(Ipv4Addr::LOCALHOST, MAC).await.unwrap();
    for address in [NODE, STRANGER, BESIDE] {
        let (status, refusal) = appliance.open(address, &token, MAC).await;
        assert!(status == 403 && reason(&refusal).contains("was given to 127.0.0.1"), "{address}: {status} {refusal}");
    }
    let (status, session) = appliance.open(Ipv4Addr::LOCALHOST, &token, MAC).await;
    assert_eq!(status, 200, "{session}");
}

#[tokio::test]
async fn s15_a_live_iso_is_everybodys_while_a_host_boots_it_and_what_is_no_iso_is_nobodys() {
    let appliance = Appliance::new(false).await;
    let mut iso = vec![7; 64 << 10];
    iso[32769..32774].copy_from_slice(b"CD001");
    let (iso, secret) =
        (appliance.import("live.iso", &iso).await, appliance.import("disk.raw", &[b'S'; 1 << 20]).await);
    let get = async |digest: &str| appliance.plain(STRANGER, &format!("/boot/live/{digest}.iso")).await;
    for digest in [&iso, &secret] {
        assert_eq!(get(digest).await.0, 404, "no host boots it");
    }
    appliance.intend_live("node", MAC, &iso, 1).await;
    let (status, script) = appliance.plain(NODE, &format!("/boot/ipxe?mac={}&arch=7", MAC.hyphenated())).await;
    assert!(status == 200 && script.contains(&format!("/boot/live/{iso}.iso")), "{script}");
    // The limit: whoever knows the digest.
    let (status, body) = get(&iso).await;
    assert!(status == 200 && body.contains("CD001"));
    // Nothing else of the library, also where somebody has made a host's intent name it.
    appliance.intend_live("node", MAC, &secret, 2).await;
    let (status, body) = get(&secret).await;
    assert!(status == 404 && !body.contains("SSSS"), "{body:.99}");
    assert_eq!(get(&iso).await.0, 404, "no host boots it any more");
    let digest = "0".repeat(64);
    for path in [format!("/boot/live/{digest}.iso"), format!("/boot/live/{iso}"), "/boot/live/..%2f..%2fkey.iso".into()]
    {
        assert_eq!(appliance.plain(STRANGER, &path).await.0, 404, "{path}");
    }
}
