//! Tests of boot ISOs and archives through the router.

use axum::Router;
use axum::http::{HeaderMap, Request};
use http_body_util::BodyExt;
use tower::ServiceExt;

use super::*;
use crate::api::MacAddress;
use crate::boot::iso::{CONFIG_LENGTH, Region};
use crate::boot::{BootServerConfig, BootTokens, HostIndex, IndexedIntent, KERNEL, router};

const SIZE: u64 = 700_000;
const NETWORK: &str = r#"{"links":[{"id":"a","type":"phy","ethernet_mac_address":"52:54:00:00:00:01"}],
    "networks":[{"id":"n","type":"ipv4","link":"a","ip_address":"127.9.9.9/8"}]}"#;

#[derive(Debug)]
struct Fixed(Result<Option<Vec<u8>>, String>);

#[async_trait]
impl NetworkData for Fixed {
    async fn for_host(&self, _: &str, _: &str) -> Result<Option<Vec<u8>>, String> {
        self.0.clone()
    }
}

struct Setup {
    _folder: tempfile::TempDir,
    hosts: HostIndex,
    tokens: Arc<BootTokens>,
    router: Router,
}

fn setup(network: Result<Option<Vec<u8>>, String>) -> Setup {
    setup_on(network, crate::boot::BootNetworks::default())
}

fn setup_on(network: Result<Option<Vec<u8>>, String>, networks: crate::boot::BootNetworks) -> Setup {
    let folder = tempfile::tempdir().expect("folder");
    let key = rcgen::KeyPair::generate().expect("key");
    let ca = rcgen::CertificateParams::new(["ca".to_owned()]).and_then(|ca| ca.self_signed(&key)).expect("certificate");
    let site = BootServerConfig::new(8443, &ca.pem(), "console=ttyS0").expect("site").with_networks(networks);
    let site = site.with_network_data(Arc::new(Fixed(network)));
    let region = |offset, length: usize| Region { offset, length: length as u64 };
    let layout = IsoLayout {
        size: SIZE,
        grub: region(4096, CONFIG_LENGTH),
        isolinux: None,
        host: region(300_000, ARCHIVE_LENGTH),
    };
    let write = |name: &str, data: &[u8]| std::fs::write(folder.path().join(name), data).expect("written");
    write(ISO, &(0..SIZE).map(|at| (at % 251) as u8).collect::<Vec<u8>>());
    write(MANIFEST, serde_json::json!({ "iso": layout, "modules": [] }).to_string().as_bytes());
    write(KERNEL, b"kernel");
    write("initrd", b"initrd");
    let (hosts, tokens) = (HostIndex::default(), Arc::new(BootTokens::open(folder.path()).expect("key")));
    let router = router(
        site,
        hosts.clone(),
        tokens.clone(),
        BootFiles::new(folder.path()),
        crate::boot::DownloadScheduler::default(),
    );
    let setup = Setup { _folder: folder, hosts, tokens, router };
    setup.host(7, BootTarget::Ramdisk, false);
    setup
}

impl Setup {
    fn host(&self, generation: i64, target: BootTarget, session_open: bool) {
        self.hosts.insert(BootHost {
            namespace: "default".into(),
            created: 0,
            ownership: Default::default(),
            name: "web-1".into(),
            uid: "uid-1".into(),
            macs: vec![MacAddress([0x52, 0x54, 0, 0, 0, 1])],
            intent: Some(IndexedIntent { generation, target, session_open, live_iso: None }),
            boot_interface: Default::default(),
            discovery: Default::default(),
        });
    }

    fn path(&self) -> String {
        iso_path(&self.tokens.mint_media("uid-1", 7).expect("ticket"))
    }

    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> (StatusCode, HeaderMap, Vec<u8>) {
        self.send_from([10, 0, 0, 21], method, path, headers).await
    }

    async fn send_from(
        &self,
        peer: [u8; 4],
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> (StatusCode, HeaderMap, Vec<u8>) {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::empty()).expect("request");
        let conn = ConnInfo { local: ([172, 22, 0, 1], 80).into(), peer: (peer, 5000).into() };
        request.extensions_mut().insert(conn);
        let (parts, body) = self.router.clone().oneshot(request).await.expect("answer").into_parts();
        (parts.status, parts.headers, body.collect().await.expect("body").to_bytes().to_vec())
    }
}

#[tokio::test]
async fn the_iso_is_one_machines_whole_or_in_parts() {
    let setup = setup(Ok(Some(NETWORK.into())));
    let path = setup.path();
    let (status, headers, whole) = setup.send("GET", &path, &[]).await;
    assert_eq!((status, whole.len() as u64), (StatusCode::OK, SIZE));
    assert_eq!(headers["content-type"], EFI_ISO);
    assert_eq!(
        (&headers["accept-ranges"], &headers["cache-control"]),
        (&"bytes".parse().unwrap(), &"no-store".parse().unwrap())
    );
    let archive = String::from_utf8_lossy(&whole[300_000..300_000 + ARCHIVE_LENGTH]).into_owned();
    // The way to the machine's own address is known by its network data.
    assert!(archive.contains("slipway.server=https://127.0.0.1:8443 "), "{archive}");
    assert!(archive.contains("slipway.mac=52:54:00:00:00:01") && archive.contains("127.9.9.9/8"), "{archive}");
    let token = archive.split("slipway.token=").nth(1).and_then(|rest| rest.split(' ').next()).expect("token");
    let claims = setup.tokens.verify(token).expect("a good boot token");
    assert_eq!((claims.uid.as_str(), claims.generation), ("uid-1", 7));
    assert_eq!((claims.address, claims.first), (Some([127, 9, 9, 9].into()), true), "its network data's");
    assert!(String::from_utf8_lossy(&whole[4096..8192]).contains("console=ttyS0"));
    // Everything else is the file.
    assert!(whole.iter().enumerate().all(|(at, byte)| {
        (4096..8192).contains(&at) || (300_000..300_000 + ARCHIVE_LENGTH).contains(&at) || *byte == (at % 251) as u8
    }));

    for (range, from, to) in [
        ("bytes=0-511", 0, 512),
        ("bytes=299990-300100", 299_990, 300_101),
        ("bytes=-2048", SIZE as usize - 2048, SIZE as usize),
    ] {
        let (status, headers, part) = setup.send("GET", &path, &[("range", range)]).await;
        assert_eq!(status, StatusCode::PARTIAL_CONTENT, "{range}");
        assert!(part == whole[from..to], "{range}");
        assert_eq!(headers["content-range"], format!("bytes {from}-{}/{SIZE}", to - 1));
        assert_eq!(headers["content-length"], (to - from).to_string());
    }
    let (status, head, body) = setup.send("HEAD", &path, &[]).await;
    assert_eq!((status, body.len(), &head["content-length"]), (StatusCode::OK, 0, &SIZE.to_string().parse().unwrap()));
    let (status, beyond, _) = setup.send("GET", &path, &[("range", "bytes=9999999-")]).await;
    assert_eq!(
        (status, &beyond["content-range"]),
        (StatusCode::RANGE_NOT_SATISFIABLE, &format!("bytes */{SIZE}").parse().unwrap())
    );
    // A part of another machine's ISO is never joined to this one's.
    let tag = headers["etag"].to_str().unwrap().to_owned();
    let part = [("range", "bytes=0-9"), ("if-range", tag.as_str())];
    assert_eq!(setup.send("GET", &path, &part).await.0, StatusCode::PARTIAL_CONTENT);
    let other = setup.path();
    assert_eq!(setup.send("GET", &other, &part).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_name_is_good_for_one_boot_of_one_host() {
    let setup = setup(Ok(None));
    let path = setup.path();
    assert_eq!(setup.send("GET", &path, &[("range", "bytes=0-9")]).await.0, StatusCode::PARTIAL_CONTENT);
    let boot = setup.tokens.mint("uid-1", 7).expect("token");
    let stranger = setup.tokens.mint_media("uid-2", 7).expect("ticket");
    for guess in [iso_path("x"), iso_path(&boot), iso_path(&stranger), path.replace(".iso", ""), "/boot/iso/".into()] {
        assert_eq!(setup.send("GET", &guess, &[]).await.0, StatusCode::NOT_FOUND, "{guess}");
    }
    for (generation, target, session_open) in
        [(7, BootTarget::Ramdisk, true), (7, BootTarget::Disk, false), (8, BootTarget::Ramdisk, false)]
    {
        setup.host(generation, target, session_open);
        let (status, _, body) = setup.send("GET", &path, &[]).await;
        assert_eq!(status, StatusCode::GONE, "{generation} {target:?} {session_open}");
        assert!(body.len() < 200);
    }
}

#[tokio::test]
async fn a_medium_is_of_the_address_that_read_it_first_or_of_the_machine_itself() {
    use crate::boot::neighbour::ArpAnswers;
    use futures::FutureExt;
    const MACHINE: [u8; 4] = [10, 0, 0, 30];
    let mac = MacAddress([0x52, 0x54, 0, 0, 0, 1]);
    let cards: crate::boot::neighbour::Neighbours = Arc::new(move |address| {
        async move { if address.octets() == MACHINE { ArpAnswers::Card(mac) } else { ArpAnswers::Unseen } }.boxed()
    });
    let networks = crate::boot::BootNetworks { neighbours: Some(cards), ..Default::default() };
    let setup = setup_on(Ok(Some(NETWORK.into())), networks);
    let (bmc, other, own) = ([10, 0, 0, 21], [10, 0, 0, 22], [172, 22, 0, 1]);
    let ticket = setup.tokens.mint_media("uid-1", 7).expect("ticket");
    for path in [setup.path(), archive_path(&ticket)] {
        let get = async |peer: [u8; 4]| {
            let (status, _, body) = setup.send_from(peer, "GET", &path, &[]).await;
            if status.is_success() {
                "served".to_owned()
            } else {
                format!("{status} {}", String::from_utf8_lossy(&body))
            }
        };
        // A program on the appliance looks at it and is not the first.
        assert_eq!(get(own).await, "served");
        for _ in 0..3 {
            assert_eq!(get(bmc).await, "served");
            let refused = get(other).await;
            assert!(refused.starts_with("403") && refused.contains("10.0.0.21 asked first"), "{refused}");
        }
        assert_eq!(get(own).await, "served");
        // Whoever was faster does not keep the machine out, as firmware that boots by a URL.
        assert_eq!(get(MACHINE).await, "served");
        assert!(get(bmc).await.contains("10.0.0.30 asked first"));
    }
}

#[test]
fn network_data_with_one_fixed_address_binds_the_token_to_it() {
    let link = r#"{"id":"a","type":"phy","ethernet_mac_address":"52:54:00:00:00:01"}"#;
    let four = |last: u8| format!(r#"{{"id":"n{last}","type":"ipv4","link":"a","ip_address":"10.1.0.{last}/24"}}"#);
    let (dhcp, six) = (
        r#"{"id":"d","type":"ipv4_dhcp","link":"a"}"#.to_owned(),
        r#"{"id":"s","type":"ipv6","link":"a","ip_address":"2001:db8::5/64"}"#.to_owned(),
    );
    let rows = [
        (vec![four(5)], TokenBinding::First([10, 1, 0, 5].into())),
        (vec![four(5), four(6)], TokenBinding::Nowhere),
        (vec![four(5), six.clone()], TokenBinding::Nowhere),
        (vec![six], TokenBinding::Nowhere),
        (vec![dhcp], TokenBinding::Nowhere),
        (vec![], TokenBinding::Nowhere),
    ];
    for (networks, wanted) in rows {
        let text = format!(r#"{{"links":[{link}],"networks":[{}]}}"#, networks.join(","));
        assert_eq!(bound_by(text.as_bytes()), wanted, "{text}");
    }
    assert_eq!(bound_by(b"nonsense"), TokenBinding::Nowhere);
}

#[tokio::test]
async fn network_data_that_cannot_be_had_is_told() {
    let setup = setup(Err("there is no secret net".into()));
    let (status, _, body) = setup.send("GET", &setup.path(), &[]).await;
    assert_eq!((status, String::from_utf8_lossy(&body).trim()), (StatusCode::CONFLICT, "there is no secret net"));
    let (_, _, script) = setup.send("GET", "/boot/ipxe?mac=52:54:00:00:00:01&arch=7", &[]).await;
    let script = String::from_utf8_lossy(&script).into_owned();
    assert!(script.contains("its network data cannot be used, as its host says"), "{script}");
    assert!(!script.contains("slipway.token"), "{script}");
}

#[tokio::test]
async fn a_boot_script_brings_network_data_beside_the_initrd() {
    let setup = setup(Ok(Some(NETWORK.into())));
    let (_, _, script) = setup.send("GET", "/boot/ipxe?mac=52:54:00:00:00:01&arch=7", &[]).await;
    let script = String::from_utf8_lossy(&script).into_owned();
    let token = script.split("slipway.token=").nth(1).and_then(|rest| rest.split(' ').next()).expect("token");
    let claims = setup.tokens.verify(token).expect("a good boot token");
    assert_eq!((claims.address, claims.first), (Some([127, 9, 9, 9].into()), true), "its network data's");
    let at = script.find("/boot/host/").expect("archive");
    let path = script[at..].split_whitespace().next().expect("path");
    let (status, _, archive) = setup.send("GET", path, &[]).await;
    assert_eq!((status, archive.len()), (StatusCode::OK, ARCHIVE_LENGTH));
    let archive = String::from_utf8_lossy(&archive).into_owned();
    assert!(archive.contains("127.9.9.9/8") && !archive.contains("slipway.token"), "{archive}");
    assert_eq!(setup.send("GET", "/boot/host/x.cpio", &[]).await.0, StatusCode::NOT_FOUND);
}

#[test]
fn an_iso_that_is_not_the_manifests_is_not_served() {
    let folder = tempfile::tempdir().expect("folder");
    let files = BootFiles::new(folder.path());
    assert!(files.iso_layout().expect("nothing there").is_none());
    let write = |name: &str, data: &str| std::fs::write(folder.path().join(name), data).expect("written");
    write(MANIFEST, r#"{"modules": []}"#);
    assert!(files.iso_layout().expect("none was made").is_none());
    write(MANIFEST, r#"{"iso": {"size": 5, "grub": {"offset": 0, "length": 1}, "host": {"offset": 1, "length": 1}}}"#);
    assert!(files.iso_layout().is_err());
    write(ISO, "12345");
    assert_eq!(files.iso_layout().expect("read").expect("there").size, 5);
    write(ISO, "1234");
    assert!(files.iso_layout().expect_err("refused").to_string().contains("has 4 bytes"));
}

#[test]
fn ranges() {
    let of = |text: &'static str| match one_range(&HeaderValue::from_static(text), 1000) {
        Ranges::Ignored => "ignored".to_owned(),
        Ranges::Outside => "outside".to_owned(),
        Ranges::One(from, to) => format!("{from}-{to}"),
    };
    for (text, want) in [
        ("bytes=0-0", "0-0"),
        ("bytes=10-", "10-999"),
        ("bytes=10-5000", "10-999"),
        ("bytes=-10", "990-999"),
        ("bytes=-5000", "0-999"),
        ("bytes=999-", "999-999"),
        ("bytes=1000-", "outside"),
        ("bytes=-0", "outside"),
        ("bytes=5-4", "ignored"),
        ("bytes=0-1,5-6", "ignored"),
        ("bytes=a-b", "ignored"),
        ("bytes=-", "ignored"),
        ("bytes=+1-2", "ignored"),
        ("bytes=99999999999999999999-", "ignored"),
        ("lines=0-1", "ignored"),
    ] {
        assert_eq!(of(text), want, "{text}");
    }
}

#[test]
fn the_way_to_an_address_names_our_own() {
    assert_eq!(local_address_to([127, 0, 0, 9].into()), Some([127, 0, 0, 1].into()));
}
