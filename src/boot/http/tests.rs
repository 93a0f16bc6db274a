//! Tests of boot HTTP through its router: scripts, tokens, files.

use super::*;
use std::time::Duration;

use crate::api::slipway::BootTarget;
use crate::boot::{BootHost, IndexedIntent, KERNEL, Program, serve};
use http_body_util::BodyExt;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

const MAC: MacAddress = MacAddress([0x52, 0x54, 0, 0x12, 0x34, 0x56]);

struct Setup {
    folder: tempfile::TempDir,
    hosts: HostIndex,
    tokens: Arc<BootTokens>,
    downloads: DownloadScheduler,
    router: Router,
}

fn setup() -> Setup {
    setup_on(BootNetworks::default())
}

fn setup_on(networks: BootNetworks) -> Setup {
    let folder = tempfile::tempdir().expect("folder");
    let key = rcgen::KeyPair::generate().expect("key");
    let ca = rcgen::CertificateParams::new(["ca".to_owned()]).and_then(|ca| ca.self_signed(&key)).expect("certificate");
    let site = BootServerConfig::new(8443, &ca.pem(), "console=ttyS0").expect("site").with_networks(networks);
    let site = site.with_program(Program::at(&folder.path().join("program")));
    assert_eq!(site.ca_sha256().len(), 64);
    let hosts = HostIndex::default();
    let tokens = Arc::new(BootTokens::open(folder.path()).expect("key"));
    let downloads = DownloadScheduler::default();
    let router = router(site, hosts.clone(), tokens.clone(), BootFiles::new(folder.path()), downloads.clone());
    Setup { folder, hosts, tokens, downloads, router }
}

impl Setup {
    fn ramdisk(&self) {
        for name in ["vmlinuz", "initrd", "ramdisk.json", "snponly.efi"] {
            std::fs::write(self.folder.path().join(name), b"0123456789").expect("written");
        }
    }

    fn host(&self, target: BootTarget, session_open: bool) {
        self.hosts.insert(BootHost {
            namespace: "default".into(),
            created: 0,
            ownership: Default::default(),
            name: "web-1".into(),
            uid: "uid-1".into(),
            macs: vec![MAC],
            intent: Some(IndexedIntent { generation: 7, target, session_open, live_iso: None }),
            boot_interface: Default::default(),
            discovery: Default::default(),
        });
    }

    async fn send(&self, method: &str, uri: &str, range: Option<&str>) -> (StatusCode, http::HeaderMap, String) {
        let mut request = http::Request::builder().method(method).uri(uri);
        if let Some(range) = range {
            request = request.header("range", range);
        }
        let mut request = request.body(Body::empty()).expect("request");
        let conn = ConnInfo { local: ([172, 22, 0, 1], 80).into(), peer: ([172, 22, 0, 100], 5000).into() };
        request.extensions_mut().insert(conn);
        let answer = self.router.clone().oneshot(request).await.expect("answer");
        let (parts, body) = answer.into_parts();
        let body = body.collect().await.expect("body").to_bytes();
        (parts.status, parts.headers, String::from_utf8_lossy(&body).into_owned())
    }

    async fn get(&self, uri: &str) -> (StatusCode, String) {
        let (status, _, body) = self.send("GET", uri, None).await;
        (status, body)
    }
}

#[tokio::test]
async fn nodes_fetch_this_program_by_its_checksum() {
    let setup = setup();
    std::fs::write(setup.folder.path().join("program"), "abc").expect("written");
    let path = Program::url_path("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    let (status, headers, body) = setup.send("GET", &path, None).await;
    assert_eq!((status, body.as_str()), (StatusCode::OK, "abc"));
    assert_eq!(headers["content-type"], "application/octet-stream");
    let (status, _, body) = setup.send("GET", &path, Some("bytes=1-")).await;
    assert_eq!((status, body.as_str()), (StatusCode::PARTIAL_CONTENT, "bc"));
    for other in [Program::url_path(&"0".repeat(64)), "/boot/files/slipway-".into(), "/boot/files/program".into()] {
        assert_eq!(setup.get(&other).await.0, StatusCode::NOT_FOUND, "{other}");
    }
}

#[tokio::test]
async fn a_script_with_a_good_token_for_a_ramdisk_intent_and_the_disk_otherwise() {
    let setup = setup();
    const URI: &str = "/boot/ipxe?mac=52-54-00-12-34-56&uuid=&arch=7";
    let (status, body) = setup.get(URI).await;
    assert_eq!(status, StatusCode::OK);
    assert!(body.contains("no BareMetalHost has the MAC address 52:54:00:12:34:56"), "{body}");
    assert!(body.contains("sanboot") && !body.contains("kernel"), "{body}");

    setup.host(BootTarget::Ramdisk, false);
    let (_, body) = setup.get(URI).await;
    assert!(body.contains("has no ramdisk") && !body.contains("slipway.token"), "{body}");

    setup.ramdisk();
    let (_, headers, body) = setup.send("GET", URI, None).await;
    assert_eq!(headers["content-type"], "text/plain; charset=utf-8");
    assert_eq!(headers["cache-control"], "no-store");
    let token = body.split("slipway.token=").nth(1).and_then(|rest| rest.split(' ').next()).expect("token");
    let claims = setup.tokens.verify(token).expect("good token");
    assert_eq!((claims.uid.as_str(), claims.generation), ("uid-1", 7));
    assert!(body.contains("slipway.server=https://172.22.0.1:8443 "), "{body}");
    assert!(body.contains("kernel http://172.22.0.1/boot/files/vmlinuz "), "{body}");

    setup.host(BootTarget::Ramdisk, true);
    let (_, body) = setup.get(URI).await;
    assert!(body.contains("opened already") && !body.contains("slipway.token"), "{body}");
}

#[tokio::test]
async fn where_addresses_are_ours_a_script_goes_to_their_holder_only_and_its_token_is_good_there_only() {
    const URI: &str = "/boot/ipxe?mac=52-54-00-12-34-56&uuid=&arch=7";
    let other = MacAddress([2, 0, 0, 0, 0, 1]);
    let own: Ipv4Addr = [172, 22, 0, 100].into();
    for (owner, wanted) in [
        (LeaseOwner::Machine(MAC), Some((Some(own), false))),
        (LeaseOwner::Elsewhere, Some((Some(own), true))),
        (LeaseOwner::Machine(other), None),
        (LeaseOwner::AlsoAt(MAC, [172, 22, 0, 7].into()), Some((Some(own), false))),
        (LeaseOwner::AlsoAt(other, [172, 22, 0, 7].into()), None),
        (LeaseOwner::Nobody, None),
        (LeaseOwner::Outside, None),
    ] {
        let setup = setup_on(BootNetworks { lease_owner: Some(Arc::new(move |_| owner)), ..BootNetworks::default() });
        setup.ramdisk();
        setup.host(BootTarget::Ramdisk, false);
        let (status, body) = setup.get(URI).await;
        assert_eq!(status, StatusCode::OK);
        let token = body.split("slipway.token=").nth(1).and_then(|rest| rest.split(' ').next());
        let claims = token.map(|token| setup.tokens.verify(token).expect("good"));
        assert_eq!(claims.map(|claims| (claims.address, claims.first)), wanted, "{owner:?}");
        assert_eq!(token.is_none(), body.contains("172.22.0.100 asks for the script of 52:54:00:12:34:56"), "{body}");
    }
}

#[tokio::test]
async fn a_script_goes_to_no_card_that_is_known_to_be_another_machines() {
    use futures::FutureExt;
    const URI: &str = "/boot/ipxe?mac=52-54-00-12-34-56&uuid=&arch=7";
    let (second, other) = (MacAddress([2, 0, 0, 0, 0, 2]), MacAddress([2, 0xaa, 0xaa, 0xaa, 0xaa, 1]));
    use crate::boot::neighbour::ArpAnswers::{Card, Nobody, Unseen};
    for (card, told) in [
        (Card(MAC), ""),
        (Card(second), ""),
        (Unseen, ""),
        (Card(other), "answers at 172.22.0.100 is 02:aa:aa:aa:aa:01"),
        (Nobody, "no network card answers ARP at 172.22.0.100"),
    ] {
        let neighbours: Neighbours = Arc::new(move |_| async move { card }.boxed());
        let lease_owner: Arc<dyn Fn(Ipv4Addr) -> LeaseOwner + Send + Sync> = Arc::new(|_| LeaseOwner::Machine(MAC));
        let networks =
            BootNetworks { lease_owner: Some(lease_owner), neighbours: Some(neighbours), ..BootNetworks::default() };
        let setup = setup_on(networks);
        setup.ramdisk();
        setup.host(BootTarget::Ramdisk, false);
        let mut host = setup.hosts.by_mac(MAC).expect("known").as_ref().clone();
        host.macs.push(second);
        setup.hosts.insert(host);
        let (status, body) = setup.get(URI).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(body.contains("slipway.token"), told.is_empty(), "{card:?}: {body}");
        assert!(body.contains(told), "{card:?}: {body}");
    }
}

/// Through a relay anybody can be anybody, and on the wire anybody can ask DHCP for another machine's address.
#[tokio::test]
async fn a_script_goes_where_its_machine_is_at_home() {
    use crate::boot::neighbour::ArpAnswers::{Card, Nobody, Unseen};
    use futures::FutureExt;
    const URI: &str = "/boot/ipxe?mac=52-54-00-12-34-56&uuid=&arch=7";
    let other = MacAddress([2, 0xaa, 0xaa, 0xaa, 0xaa, 1]);
    let wire: Ipv4Addr = [172, 30, 0, 7].into();
    let network = |name: &str, second: u8, reserved: &[MacAddress]| SiteNetwork {
        name: name.into(),
        subnet: ipnetwork::Ipv4Network::new([172, second, 0, 0].into(), 16).expect("a network"),
        reserved: reserved.iter().copied().collect(),
    };
    // The machine asks from 172.22.0.100.
    for (recorded, reserved, owner, answers, refused) in [
        ("asks", false, LeaseOwner::Machine(MAC), Nobody, ""),
        ("wire", false, LeaseOwner::Machine(MAC), Nobody, "reported itself from the network wire"),
        ("wire", false, LeaseOwner::AlsoAt(MAC, wire), Nobody, "reported itself from the network wire"),
        ("wire", true, LeaseOwner::Machine(MAC), Nobody, ""),
        // Whoever took the machine's address on the wire keeps it from nothing.
        ("asks", false, LeaseOwner::AlsoAt(MAC, wire), Card(MAC), ""),
        ("", false, LeaseOwner::AlsoAt(MAC, wire), Nobody, ""),
        ("", false, LeaseOwner::AlsoAt(MAC, wire), Card(other), ""),
        ("", false, LeaseOwner::AlsoAt(MAC, wire), Card(MAC), "answers at 172.30.0.7"),
        ("renamed", false, LeaseOwner::Machine(MAC), Nobody, ""),
        ("wire", false, LeaseOwner::Elsewhere, Nobody, "reported itself from the network wire"),
    ] {
        let neighbours: Neighbours =
            Arc::new(move |asked| async move { if asked == wire { answers } else { Unseen } }.boxed());
        let networks = BootNetworks {
            lease_owner: Some(Arc::new(move |_| owner)),
            neighbours: Some(neighbours),
            site: vec![network("asks", 22, if reserved { &[MAC] } else { &[] }), network("wire", 30, &[])].into(),
            ..BootNetworks::default()
        };
        let setup = setup_on(networks);
        setup.ramdisk();
        setup.host(BootTarget::Ramdisk, false);
        let mut host = setup.hosts.by_mac(MAC).expect("known").as_ref().clone();
        host.ownership.home = recorded.into();
        setup.hosts.insert(host);
        let (status, body) = setup.get(URI).await;
        assert_eq!(status, StatusCode::OK);
        let row = format!("{recorded} {reserved} {owner:?} {answers:?}: {body}");
        assert_eq!(body.contains("slipway.token"), refused.is_empty(), "{row}");
        assert!(body.contains(refused), "{row}");
    }
}

#[tokio::test]
async fn a_script_goes_to_this_box_itself_and_not_over_ipv6() {
    let setup =
        setup_on(BootNetworks { lease_owner: Some(Arc::new(|_| LeaseOwner::Outside)), ..BootNetworks::default() });
    setup.ramdisk();
    setup.host(BootTarget::Ramdisk, false);
    let rows: [(std::net::SocketAddr, std::net::SocketAddr, bool); 3] = [
        (([127, 0, 0, 1], 80).into(), ([127, 0, 0, 1], 5000).into(), true),
        (([127, 0, 0, 1], 80).into(), ([127, 0, 0, 9], 5000).into(), false),
        ("[2001:db8::1]:80".parse().expect("an address"), "[2001:db8::2]:5000".parse().expect("an address"), false),
    ];
    for (local, peer, told) in rows {
        let mut request = http::Request::get("/boot/ipxe?mac=52-54-00-12-34-56&arch=7").body(Body::empty());
        request.as_mut().expect("a request").extensions_mut().insert(ConnInfo { local, peer });
        let answer = setup.router.clone().oneshot(request.expect("a request")).await.expect("an answer");
        let body = answer.into_body().collect().await.expect("a body").to_bytes();
        let body = String::from_utf8_lossy(&body);
        assert_eq!(body.contains("slipway.token"), told, "{peer}: {body}");
        assert_eq!(body.contains("is in no network of slipway.toml"), !told, "{peer}: {body}");
    }
}

#[tokio::test]
async fn unknown_machines_get_a_visitors_token_where_discovery_is_on() {
    const URI: &str = "/boot/ipxe?mac=52-54-00-12-34-56&uuid=&arch=7";
    for (network, told) in [("172.22.0.0/24", true), ("172.23.0.0/24", false)] {
        let setup = setup_on(BootNetworks {
            discovery: vec![network.parse().expect("a network")].into(),
            ..BootNetworks::default()
        });
        setup.ramdisk();
        let (_, body) = setup.get(URI).await;
        let token = body.split("slipway.token=").nth(1).and_then(|rest| rest.split(' ').next());
        assert_eq!(token.is_some(), told, "{network}: {body}");
        let Some(token) = token else { continue };
        assert_eq!(setup.tokens.verify_visit(token).expect("a visitor's").uid, MAC.to_string());
        assert!(setup.tokens.verify(token).is_err(), "no host's token");
        let (_, body) = setup.get("/boot/explain?mac=525400123456").await;
        assert!(body.contains("it boots: Slipway's ramdisk, to report itself"), "{body}");
        // What is a host's is never a stranger's, whatever the network.
        setup.host(BootTarget::Disk, false);
        assert!(!setup.get(URI).await.1.contains("slipway.token"));
    }
}

#[tokio::test]
async fn what_dhcp_does_is_told_on_the_appliance_only() {
    let told = BootNetworks { dhcp: Some(Arc::new(|mac| format!("about {mac}"))), ..BootNetworks::default() };
    let setup = setup_on(told);
    const URI: &str = "/boot/explain/dhcp?mac=52:54:00:12:34:56";
    let (status, body) = setup.get(URI).await;
    assert!(status == StatusCode::FORBIDDEN && body.contains("on the appliance itself"), "{body}");
    for peer in [[127, 0, 0, 1], [172, 22, 0, 1]] {
        let mut request = http::Request::get(URI).body(Body::empty()).expect("request");
        request.extensions_mut().insert(ConnInfo { local: ([172, 22, 0, 1], 80).into(), peer: (peer, 5000).into() });
        let answer = setup.router.clone().oneshot(request).await.expect("answer");
        let body = answer.into_body().collect().await.expect("body").to_bytes();
        assert_eq!(body, "about 52:54:00:12:34:56");
    }
}

#[tokio::test]
async fn what_is_of_a_machine_is_no_image_also_on_the_appliance_itself() {
    let told = BootNetworks { dhcp: Some(Arc::new(|mac| format!("about {mac}"))), ..BootNetworks::default() };
    let setup = setup_on(told);
    for (uri, refused) in [
        ("/boot/ipxe?mac=52:54:00:12:34:56&arch=7", true),
        ("/boot/explain?mac=52:54:00:12:34:56", true),
        ("/boot/explain/dhcp?mac=52:54:00:12:34:56", true),
        ("/boot/iso/x.iso", true),
        ("/boot/host/x.cpio", true),
        ("/boot/ca.pem", false),
    ] {
        let agent = format!("{}1.2.3", image::USER_AGENT_NAME);
        let request = http::Request::get(uri).header(header::USER_AGENT, agent);
        let mut request = request.body(Body::empty()).expect("request");
        let own = [127, 0, 0, 1];
        request.extensions_mut().insert(ConnInfo { local: (own, 80).into(), peer: (own, 5000).into() });
        let answer = setup.router.clone().oneshot(request).await.expect("answer");
        assert_eq!(answer.status() == StatusCode::FORBIDDEN, refused, "{uri}: {}", answer.status());
    }
}

#[tokio::test]
async fn who_comes_by_with_a_browser_is_told_what_this_is() {
    let (status, headers, body) = setup().send("GET", "/", None).await;
    assert_eq!(
        (status, &headers["content-type"]),
        (StatusCode::OK, &HeaderValue::from_static("text/html; charset=utf-8"))
    );
    assert!(body.contains("slipway kubeconfig --merge"), "{body}");
}

#[tokio::test]
async fn bad_questions_are_told_what_is_wrong() {
    let setup = setup();
    let rows = [
        ("/boot/ipxe?arch=7", "say which machine"),
        ("/boot/ipxe?mac=52:54:00:12:34&arch=7", "not a MAC address"),
        ("/boot/ipxe?mac=%0a%24%7bx%7d&arch=7", "not a MAC address"),
        ("/boot/ipxe?mac=52:54:00:12:34:56", "say which firmware"),
        ("/boot/ipxe?mac=52:54:00:12:34:56&arch=riscv", "option 93"),
        ("/boot/explain?mac=x", "not a MAC address"),
    ];
    for (uri, part) in rows {
        let (status, body) = setup.get(uri).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{uri}");
        assert!(body.contains(part), "{uri}: {body}");
    }
    for uri in [
        "/boot/",
        "/boot/files/",
        "/boot/files/secret",
        "/boot/files/..%2f..%2fetc%2fpasswd",
        "/boot/files/boot-token.key",
    ] {
        assert_eq!(setup.get(uri).await.0, StatusCode::NOT_FOUND, "{uri}");
    }
    assert_eq!(
        setup.send("POST", "/boot/ipxe?mac=52:54:00:12:34:56&arch=7", None).await.0,
        StatusCode::METHOD_NOT_ALLOWED
    );
}

#[tokio::test]
async fn files_have_types_ranges_and_heads() {
    let setup = setup();
    let (status, body) = setup.get("/boot/files/vmlinuz").await;
    assert_eq!((status, body.contains("missing on the appliance")), (StatusCode::NOT_FOUND, true));
    setup.ramdisk();
    let (status, headers, body) = setup.send("GET", "/boot/files/snponly.efi", None).await;
    assert_eq!((status, body.as_str()), (StatusCode::OK, "0123456789"));
    assert_eq!(
        (&headers["content-type"], &headers["content-length"]),
        (&"application/efi".parse().unwrap(), &"10".parse().unwrap())
    );
    let (status, headers, body) = setup.send("GET", "/boot/files/vmlinuz", Some("bytes=2-4")).await;
    assert_eq!((status, body.as_str()), (StatusCode::PARTIAL_CONTENT, "234"));
    assert_eq!(headers["content-range"], "bytes 2-4/10");
    assert_eq!(headers["content-type"], "application/octet-stream");
    let (status, ..) = setup.send("GET", "/boot/files/vmlinuz", Some("bytes=20-")).await;
    assert_eq!(status, StatusCode::RANGE_NOT_SATISFIABLE);
    let (status, headers, body) = setup.send("HEAD", "/boot/files/initrd", None).await;
    assert_eq!((status, body.as_str()), (StatusCode::OK, ""));
    assert_eq!(headers["content-length"], "10");
}

#[tokio::test]
async fn a_part_is_only_given_of_the_build_that_the_client_has() {
    let setup = setup();
    setup.ramdisk();
    let (_, headers, _) = setup.send("GET", "/boot/files/initrd", None).await;
    let of = |name: &str| headers[name].to_str().expect("text").to_owned();
    let (tag, date) = (of("etag"), of("last-modified"));
    let weak = format!("W/{tag}");
    let (tag, date, weak) = (tag.as_str(), date.as_str(), weak.as_str());
    let (part, whole) = ((StatusCode::PARTIAL_CONTENT, "56789"), (StatusCode::OK, "0123456789"));
    let rows = [
        (tag, "bytes=5-", part),
        (date, "bytes=5-", part),
        ("\"another\"", "bytes=5-", whole),
        (weak, "bytes=5-", whole),
        ("Sun, 06 Nov 1994 08:49:37 GMT", "bytes=5-", whole),
        ("nonsense", "bytes=5-", whole),
        ("", "bytes=5-", whole),
        // Beyond the end of this build, not of that one.
        ("\"another\"", "bytes=20-", whole),
        (tag, "bytes=20-", (StatusCode::RANGE_NOT_SATISFIABLE, "")),
    ];
    for (held, range, (status, body)) in rows {
        let request = http::Request::get("/boot/files/initrd").header("range", range).header("if-range", held);
        let mut request = request.body(Body::empty()).expect("request");
        let conn = ConnInfo { local: ([172, 22, 0, 1], 80).into(), peer: ([172, 22, 0, 100], 5000).into() };
        request.extensions_mut().insert(conn);
        let (parts, got) = setup.router.clone().oneshot(request).await.expect("answer").into_parts();
        let got = got.collect().await.expect("body").to_bytes();
        assert_eq!((parts.status, &*String::from_utf8_lossy(&got)), (status, body), "{held:?} {range}");
        assert_eq!(parts.headers.contains_key("content-range"), status != StatusCode::OK, "{held:?} {range}");
    }
}

#[tokio::test]
async fn the_ca_and_an_explanation() {
    let setup = setup();
    assert!(setup.get("/boot/ca.pem").await.1.starts_with("-----BEGIN CERTIFICATE-----"));
    setup.host(BootTarget::Ramdisk, false);
    let (status, body) = setup.get("/boot/explain?mac=525400123456").await;
    assert_eq!(status, StatusCode::OK);
    assert!(body.contains("boot intent 7 is the ramdisk\n") && body.contains("note: there is no ramdisk"), "{body}");
}

#[tokio::test]
async fn over_tcp_scripts_name_the_address_that_was_reached() {
    let setup = setup();
    setup.ramdisk();
    setup.host(BootTarget::Ramdisk, false);
    std::fs::write(setup.folder.path().join(KERNEL), vec![9; 3 << 20]).expect("written");
    let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.expect("listener");
    let port = listener.local_addr().expect("address").port();
    let shutdown = CancellationToken::new();
    let (metrics, ranks) = (crate::boot::BootHttpMetrics::default(), crate::ration::all_alike());
    let task = tokio::spawn(serve(listener, setup.router.clone(), ranks, 8, metrics.clone(), shutdown.clone()));
    // Another test may have been first.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20)).build().expect("client");
    let url = format!("http://127.0.0.7:{port}/boot/ipxe?mac=52:54:00:12:34:56&arch=pcbios");
    let body = client.get(url).send().await.expect("answer").text().await.expect("body");
    assert!(body.contains(&format!("http://127.0.0.7:{port}/boot/files/vmlinuz")), "{body}");
    assert!(body.contains("https://127.0.0.7:8443"), "{body}");
    let url = format!("http://127.0.0.1:{port}/boot/files/vmlinuz");
    let body = client.get(url).send().await.expect("answer").bytes().await.expect("body");
    assert!(body == vec![9; 3 << 20]);
    let url = format!("http://127.0.0.1:{port}/boot/files/secret");
    assert_eq!(client.get(url).send().await.expect("answer").status(), 404);
    let counted = crate::metrics::shown(|registry| metrics.register(registry));
    for line in [
        "slipway_boot_requests_total{kind=\"script\",code=\"2xx\"} 1",
        "slipway_boot_requests_total{kind=\"kernel\",code=\"2xx\"} 1",
        "slipway_boot_requests_total{kind=\"other\",code=\"4xx\"} 1",
        "slipway_boot_sent_bytes_total{kind=\"kernel\"} 3145728",
    ] {
        assert!(counted.lines().any(|shown| shown == line), "{line} is not in {counted}");
    }
    shutdown.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(20), task).await.expect("in time").expect("no panic");
    assert!(ended.is_ok());
}

#[tokio::test]
async fn a_rack_that_boots_at_once_is_passed_by_those_that_are_deployed() {
    use super::super::download_scheduler::{BOOT_PERMITS, BOOT_PERMITS_BESIDE};
    use futures::FutureExt;
    use futures::stream::{FuturesUnordered, StreamExt};

    let setup = setup();
    setup.ramdisk();
    let boot = |number: u8| {
        let mut request = http::Request::get("/boot/files/initrd").body(Body::empty()).expect("request");
        let conn = ConnInfo { local: ([172, 22, 0, 1], 80).into(), peer: ([172, 22, 1, number], 5000).into() };
        request.extensions_mut().insert(conn);
        request.extensions_mut().insert(Rank::Known);
        let router = setup.router.clone();
        async move { router.oneshot(request).await.expect("answer").into_body() }
    };
    let mut storm: FuturesUnordered<_> = (0..200).map(boot).collect();
    let mut sending = Vec::new();
    while sending.len() < BOOT_PERMITS {
        sending.push(storm.next().await.expect("an answer"));
    }
    // Five hosts ask for four chunks each: none of them waits for any of the 152 machines in line.
    let chunk = |number: usize| {
        let client = DownloadClient::Host(format!("default/web-{}", number % 5));
        tokio::task::unconstrained(setup.downloads.acquire(client, Rank::Known)).now_or_never()
    };
    let chunks: Vec<_> = (0..20).map(chunk).collect();
    assert!(chunks.iter().all(Option::is_some));
    // As boots end, only a few others follow while chunks are sent.
    sending.clear();
    while sending.len() < BOOT_PERMITS_BESIDE {
        sending.push(storm.next().await.expect("an answer"));
    }
    assert_eq!(storm.len(), 200 - BOOT_PERMITS - BOOT_PERMITS_BESIDE);
    assert!((0..20).map(chunk).all(|chunk| chunk.is_some()));
    // Those that only ask whether the file is there do not wait at all.
    assert_eq!(setup.send("HEAD", "/boot/files/initrd", None).await.0, StatusCode::OK);
    // When the deployments are through, the rest of the rack is served.
    drop(chunks);
    sending.clear();
    while let Some(body) = storm.next().await {
        assert_eq!(body.collect().await.expect("whole").to_bytes(), "0123456789");
    }
}
