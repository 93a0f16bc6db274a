//! Known hosts and strangers at boot HTTP, by the appliance's own ranks: machines have addresses of 127.0.0.0/8 here.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::api::MacAddress;
use crate::boot::{self, BootFiles, BootHost, BootServerConfig, BootTokens, DownloadScheduler, Ownership};
use crate::store::{Store, StoreOptions};

const DEADLINE: Duration = Duration::from_secs(60);
const KNOWN: Ipv4Addr = Ipv4Addr::new(127, 0, 3, 1);
const KNOWN_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
/// Leased to a machine that no host has.
const GUEST: Ipv4Addr = Ipv4Addr::new(127, 0, 3, 2);
const GUEST_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
/// Larger than what the kernel takes of it for a client that reads nothing.
const INITRD: usize = 32 << 20;
const NETWORK: &str = "
    [[network]]
    name = 'lab'
    interface = 'lo'
    subnet = '127.0.0.0/16'
    pool = ['127.0.3.1-127.0.3.99']
";

/// A lease on disk, as `dhcp/record.rs` has it: version, bound, known, end, MAC address, no client identifier, no name.
fn lease(mac: MacAddress) -> Bytes {
    let mut record = vec![1, 1, 1];
    record.extend_from_slice(&u64::MAX.to_be_bytes());
    record.extend_from_slice(&mac.0);
    record.extend_from_slice(&[0, 0, 0]);
    record.into()
}

fn host(mac: MacAddress) -> BootHost {
    BootHost {
        namespace: "default".into(),
        name: "web-1".into(),
        uid: "uid-1".into(),
        created: 0,
        macs: vec![mac],
        boot_interface: Default::default(),
        intent: None,
        discovery: Default::default(),
        ownership: Ownership { boot_mac: Some(mac), registered: true, paused: false, ..Ownership::default() },
    }
}

/// Boot HTTP with the appliance's ranks, a host with a lease and a guest with one.
struct Appliance {
    _folder: tempfile::TempDir,
    ranks: Ranks,
    metrics: boot::BootHttpMetrics,
    address: SocketAddr,
    shutdown: CancellationToken,
    served: tokio::task::JoinHandle<std::io::Result<()>>,
}

async fn site() -> Appliance {
    let folder = tempfile::tempdir().expect("a folder");
    let config = Config::parse(NETWORK, Path::new("x.toml")).expect("a good configuration");
    let path = folder.path();
    let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 100 };
    let store = Store::open(options).expect("opens");
    let table = store.table("leases").expect("a table");
    for (address, mac) in [(KNOWN, KNOWN_MAC), (GUEST, GUEST_MAC)] {
        let key = Bytes::copy_from_slice(&address.octets());
        table.write(key, Some(lease(mac))).await.expect("writes");
    }
    let leases = dhcp::Leases::load(&store, &config.networks).expect("loads");
    let hosts = HostIndex::default();
    hosts.insert(host(KNOWN_MAC));
    let ranks = ranks(&config, &dhcp::Site::of(&config.networks), &leases, &hosts, watch::channel(true).1);

    let files = path.join("boot");
    std::fs::create_dir(&files).expect("a folder");
    std::fs::write(files.join(boot::INITRD), vec![7; INITRD]).expect("a file");
    let key = rcgen::KeyPair::generate().expect("a key");
    let ca = rcgen::CertificateParams::new(["ca".to_owned()]).and_then(|ca| ca.self_signed(&key)).expect("a CA");
    let site = BootServerConfig::new(8443, &ca.pem(), "").expect("a site");
    let tokens = Arc::new(BootTokens::open(path).expect("a key"));
    let downloads = DownloadScheduler::default();
    let metrics = boot::BootHttpMetrics::new(downloads.clone());
    let router = boot::router(site, hosts, tokens, BootFiles::new(&files), downloads);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let shutdown = CancellationToken::new();
    let (most, counts) = (boot::MAX_CONNECTIONS, metrics.clone());
    let served = tokio::spawn(boot::serve(listener, router, ranks.clone(), most, counts, shutdown.clone()));
    Appliance { _folder: folder, ranks, metrics, address, shutdown, served }
}

impl Appliance {
    /// Waits until a scrape shows all these lines.
    async fn shows(&self, wanted: &[String]) {
        let shown = || crate::metrics::shown(|registry| self.metrics.register(registry));
        let all = || wanted.iter().all(|line| shown().lines().any(|shown| shown == line));
        let seen = timeout(DEADLINE, async {
            while !all() {
                tokio::task::yield_now().await;
            }
        });
        assert!(seen.await.is_ok(), "{wanted:?} is not all in {}", shown());
    }
}

/// A connection that asks for the initrd.
async fn ask(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((from, 0).into()).expect("an address");
    let mut stream = timeout(DEADLINE, socket.connect(to)).await.expect("in time").expect("connects");
    let request = format!("GET /boot/files/{} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", boot::INITRD);
    stream.write_all(request.as_bytes()).await.expect("asks");
    stream
}

#[tokio::test]
async fn an_address_is_known_by_its_lease_its_host_and_the_networks() {
    let site = site().await;
    let rows: [(IpAddr, Rank); 7] = [
        (KNOWN.into(), Rank::Known),
        (GUEST.into(), Rank::Stranger),
        ([127, 0, 3, 3].into(), Rank::Stranger),
        ([192, 0, 2, 1].into(), Rank::Stranger),
        ("2001:db8::1".parse().expect("an address"), Rank::Stranger),
        ([127, 0, 0, 1].into(), Rank::Own),
        ("::1".parse().expect("an address"), Rank::Own),
    ];
    for (address, rank) in rows {
        assert_eq!((site.ranks)(address), rank, "{address}");
    }
    site.shutdown.cancel();
    site.served.await.expect("no panic").expect("an orderly end");
}

/// Ninety strangers ask for what costs most, and take none of it: there are places for 64, and 48 of them for all whom
/// nobody knows.
#[tokio::test]
async fn a_known_host_gets_its_ramdisk_while_many_strangers_hold_what_they_get() {
    let site = site().await;
    let mut strangers = JoinSet::new();
    for number in 0..90 {
        let to = site.address;
        strangers.spawn(async move {
            let mut stream = ask(Ipv4Addr::new(127, 0, 9, number), to).await;
            // The first byte of the answer says that it has a place; it takes no more.
            let got = stream.read(&mut [0; 1]).await;
            (stream, got)
        });
    }
    let begun = timeout(DEADLINE, async {
        let mut begun = Vec::new();
        while begun.len() < 16 {
            begun.push(strangers.join_next().await.expect("there are more").expect("no panic"));
        }
        begun
    });
    let held = begun.await.expect("strangers have their share");
    let downloads = |state: &str, rank: &str, count: usize| {
        format!("slipway_boot_downloads{{lane=\"boot\",state=\"{state}\",rank=\"{rank}\"}} {count}")
    };
    let connections =
        |state: &str, count: usize| format!("slipway_boot_connections{{state=\"{state}\",rank=\"stranger\"}} {count}");
    // Who waits for the initrd is being answered.
    let asked =
        [downloads("sent", "stranger", 16), downloads("waiting", "stranger", 74), downloads("sent", "known", 0)];
    site.shows(&[&asked[..], &[connections("answered", 90), connections("idle", 0)]].concat()).await;
    for round in 0..3 {
        let mut known = ask(KNOWN, site.address).await;
        let mut answer = Vec::new();
        timeout(DEADLINE, known.read_to_end(&mut answer)).await.expect("in line behind strangers").expect("reads");
        assert!(answer.starts_with(b"HTTP/1.1 200") && answer.len() > INITRD, "{round}: {} bytes", answer.len());
    }
    site.shows(&["slipway_boot_requests_total{kind=\"initrd\",code=\"2xx\"} 19".to_owned()]).await;
    // And nobody else of those got on meanwhile.
    assert!(strangers.try_join_next().is_none(), "more than their share");
    drop((held, strangers));
    site.shutdown.cancel();
    site.served.await.expect("no panic").expect("an orderly end");
}
