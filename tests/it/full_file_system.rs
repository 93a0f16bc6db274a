//! The appliance as a process on a file system that somebody else fills: it starts, answers, lets things be deleted, and
//! goes on by itself when there is room again.
//!
//! The file system is a tmpfs in a mount namespace of the test's own, the machine's network a pair of interfaces in a
//! network namespace of its own.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dhcproto::v4::{DhcpOption, Flags, Message, MessageType, Opcode};
use dhcproto::{Decodable, Decoder, Encodable, Encoder};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams, ResourceExt};
use serde_json::json;
use slipway::api::MacAddress;
use slipway::api::metal3::BareMetalHost;
use slipway::api::slipway::{Image, ImageSpec};
use slipway::bmc::address::Privilege;
use slipway::bmc::ipmi::suite::CipherSuite;
use slipway::bmc::sim::{Account, IpmiSim, SimulatedMachine as Machine, SimulatedProfile};
use tokio_util::sync::CancellationToken;

use crate::needs;
use crate::process::{Appliance, until};

/// Set in a child: the folder where the small file system is.
const FOLDER: &str = "SLIPWAY_SMALL_DISK";
const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const STRANGER: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);
/// Bytes of a thing that takes room, random so that it cannot be packed.
const LARGE: usize = 20_000;
/// Bytes of the largest things.
const LARGEST: usize = 700_000;
/// How often the disk becomes full while they are written.
const ROUNDS: usize = 8;

/// The network, the small file system, and then this test again, in there.
const SCRIPT: &str = "set -e
mount -t tmpfs -o size=$1 small \"$0\"
ip link set lo up
ip link add srv type veth peer name cli address 02:00:00:00:00:01
echo 1 >/proc/sys/net/ipv4/conf/all/accept_local
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
for card in srv cli; do
  echo 1 >/proc/sys/net/ipv4/conf/$card/accept_local
  echo 0 >/proc/sys/net/ipv4/conf/$card/rp_filter
  ip link set $card up
done
ip address add 10.77.0.1/24 dev srv
shift
exec \"$@\"";

/// Runs a test of this program again with a file system of that size (as `mount` takes it).
async fn on_a_small_disk(test: &str, size: &str) {
    if !needs::program("ip") || !needs::program("unshare") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--user", "--map-root-user", "sh", "-c", SCRIPT]).arg(folder.path()).arg(size);
    command.arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(FOLDER, folder.path()).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if text.contains("unshare failed") {
        return needs::kernel_lacks("there can be no namespaces here");
    }
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// What somebody else has on the disk.
struct Filler {
    path: PathBuf,
    file: File,
}

impl Filler {
    fn new(folder: &Path) -> Self {
        let path = folder.join("of somebody else");
        let file = File::create(&path).unwrap();
        Self { path, file }
    }

    /// Takes all that is free, to the last block.
    fn fill(&mut self) {
        for block in [1 << 20, 4096] {
            let block = vec![7; block];
            while self.file.write_all(&block).is_ok() {}
        }
    }

    fn remove(self) {
        std::fs::remove_file(self.path).unwrap();
    }
}

/// A machine's messages.
fn message(mac: MacAddress, kind: MessageType, options: Vec<DhcpOption>) -> Message {
    let zero = Ipv4Addr::UNSPECIFIED;
    let mut message = Message::new_with_id(rand::random(), zero, zero, zero, zero, &mac.0);
    message.set_opcode(Opcode::BootRequest).set_flags(Flags::default().set_broadcast());
    message.opts_mut().insert(DhcpOption::MessageType(kind));
    for option in options {
        message.opts_mut().insert(option);
    }
    message
}

/// The answer to a machine's message, sent some times.
fn exchange(message: &Message) -> Option<Message> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 68)).unwrap();
    socket.set_broadcast(true).unwrap();
    socket2::SockRef::from(&socket).bind_device(Some(b"cli")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut bytes = Vec::new();
    message.encode(&mut Encoder::new(&mut bytes)).unwrap();
    let mut buffer = [0; 2048];
    for _ in 0..5 {
        socket.send_to(&bytes, SocketAddrV4::new(Ipv4Addr::BROADCAST, 67)).unwrap();
        while let Ok((length, _)) = socket.recv_from(&mut buffer) {
            match Message::decode(&mut Decoder::new(&buffer[..length])) {
                Ok(answer) if answer.xid() == message.xid() && answer.opcode() == Opcode::BootReply => {
                    return Some(answer);
                }
                _ => {}
            }
        }
    }
    None
}

/// The address that a machine has in the end, as firmware asks for it.
fn lease(mac: MacAddress) -> Option<Ipv4Addr> {
    let offer = exchange(&message(mac, MessageType::Discover, Vec::new()))?;
    let wanted = DhcpOption::RequestedIpAddress(offer.yiaddr());
    let server = DhcpOption::ServerIdentifier(Ipv4Addr::new(10, 77, 0, 1));
    let answer = exchange(&message(mac, MessageType::Request, vec![wanted, server]))?;
    (answer.opts().msg_type() == Some(MessageType::Ack)).then(|| answer.yiaddr())
}

async fn leased(mac: MacAddress) -> Option<Ipv4Addr> {
    tokio::task::spawn_blocking(move || lease(mac)).await.unwrap()
}

fn map(name: &str) -> ConfigMap {
    let noise: String = (0..LARGE).map(|_| char::from(rand::random_range(b'A'..=b'Z'))).collect();
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"text": noise}})).unwrap()
}

/// A host with a machine and a BMC, and a lease.
async fn host(client: &Client, stop: CancellationToken) -> (Arc<Machine>, String) {
    let machine = Arc::new(Machine::new(SimulatedProfile::default()));
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = format!("ipmi://{}", socket.local_addr().unwrap());
    let account =
        Account { username: "admin".into(), password: "secret".to_owned().into(), privilege: Privilege::Administrator };
    tokio::spawn(IpmiSim::new(machine.clone(), vec![account], &[CipherSuite::Sha256]).run(socket, stop));
    let secret = json!({"metadata": {"name": "bmc"}, "stringData": {"username": "admin", "password": "secret"}});
    let secrets = Api::<Secret>::default_namespaced(client.clone());
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let host = json!({
        "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": "h"},
        "spec": {"online": false, "bootMACAddress": MAC.to_string(), "inspectionMode": "disabled",
                 "automatedCleaningMode": "disabled", "bmc": {"address": address, "credentialsName": "bmc"}},
    });
    let hosts = Api::<BareMetalHost>::default_namespaced(client.clone());
    hosts.create(&PostParams::default(), &serde_json::from_value(host).unwrap()).await.unwrap();
    until("the host is available", async || state(client).await.filter(|state| state == "available")).await;
    (machine, address)
}

async fn state(client: &Client) -> Option<String> {
    let host = Api::<BareMetalHost>::default_namespaced(client.clone()).get("h").await.ok()?;
    Some(host.status?.provisioning.state.as_str().to_owned())
}

/// Everything can be read, and what would grow is refused with what to do about it.
async fn is_full(client: &Client, maps: usize) {
    let all = Api::<ConfigMap>::default_namespaced(client.clone());
    assert_eq!(all.list(&ListParams::default()).await.unwrap().items.len(), maps);
    assert_eq!(all.get("m0").await.unwrap().data.unwrap()["text"].len(), LARGE);
    assert_eq!(state(client).await.as_deref(), Some("available"));
    // The disk is looked at ten times a second.
    let refused =
        until("what grows is refused", async || match all.create(&PostParams::default(), &map("more")).await {
            Err(kube::Error::Api(status)) => Some(status),
            Err(error) => panic!("{error}"),
            Ok(_) => {
                all.delete("more", &DeleteParams::default()).await.unwrap();
                None
            }
        })
        .await;
    let says = refused.message.clone();
    assert!(refused.code == 507 && says.contains("is full") && says.contains("delete"), "{} {says}", refused.code);
}

async fn delete(client: &Client, name: &str) {
    let all = Api::<ConfigMap>::default_namespaced(client.clone());
    all.delete(name, &DeleteParams::default()).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(all.get_opt(name).await.unwrap().is_none());
}

/// Reads a Secret again and again: each time is a line of the audit log, more in all than any room that is kept for it.
async fn flood_the_audit_log(client: &Client) {
    let uri = format!("/api/v1/namespaces/default/secrets/bmc?q={}", "y".repeat(470));
    let one = async |_| {
        let request = http::Request::get(&uri).body(Vec::new()).unwrap();
        client.request_text(request).await.map(drop).unwrap_or_else(|error| panic!("{error}"));
    };
    futures::StreamExt::for_each_concurrent(futures::stream::iter(0..7000), 32, one).await;
}

/// Shows the appliance's log when the test fails.
struct Tell(PathBuf);

impl Drop for Tell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- its log\n{}", std::fs::read_to_string(&self.0).unwrap_or_default());
        }
    }
}

async fn meet_a_full_disk(folder: &Path) {
    let network = "[[network]]\nname = \"lab\"\ninterface = \"srv\"\nsubnet = \"10.77.0.0/24\"\n\
                   pool = [\"10.77.0.100-10.77.0.110\"]\n[bmc]\nallow = [\"127.0.0.1\"]\n";
    let mut appliance = Appliance::with_data(folder.join("data"), network).await;
    let _tell = Tell(appliance.folder().join("log"));
    let client = appliance.client().await;
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    host(&client, stop).await;
    let address = leased(MAC).await.expect("a lease");
    let mut left = 60;
    let all = Api::<ConfigMap>::default_namespaced(client.clone());
    for number in 0..left {
        all.create(&PostParams::default(), &map(&format!("m{number}"))).await.unwrap();
    }

    let mut filler = Filler::new(folder);
    // While it runs.
    filler.fill();
    is_full(&client, left).await;
    assert_eq!(leased(MAC).await, Some(address), "a known machine keeps its lease");
    left -= 1;
    delete(&client, &format!("m{left}")).await;
    filler.fill();

    // Somebody who reads much takes nothing of what the lines of deletions need.
    flood_the_audit_log(&client).await;
    filler.fill();
    left -= 1;
    delete(&client, &format!("m{left}")).await;
    filler.fill();

    // And each time that it is started, with all taken again that was given.
    for start in 0..4 {
        appliance.restart(start % 2 == 1).await;
        let client = appliance.client().await;
        is_full(&client, left).await;
        for _ in 0..2 {
            left -= 1;
            delete(&client, &format!("m{left}")).await;
            filler.fill();
        }
        is_full(&client, left).await;
        assert_eq!(leased(MAC).await, Some(address), "start {start}: a known machine keeps its lease");
        assert!(appliance.runs(), "start {start}: {}", appliance.log());
    }

    // Without a restart all is as before.
    let client = appliance.client().await;
    filler.remove();
    let all = Api::<ConfigMap>::default_namespaced(client.clone());
    until("there is room again", async || all.create(&PostParams::default(), &map("after")).await.ok()).await;
    assert!(leased(STRANGER).await.is_some(), "a new lease");
    let lines = || std::fs::read_to_string(appliance.data().join("logs/audit.log")).unwrap_or_default();
    let last = format!("configmaps/m{left}");
    until("the audit log has what was deleted meanwhile", async || {
        let lines = lines();
        lines.lines().any(|line| line.contains(&last) && line.contains("\"verb\":\"delete\"")).then_some(())
    })
    .await;
    for line in lines().lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }
    appliance.restart(false).await;
    let client = appliance.client().await;
    let all = Api::<ConfigMap>::default_namespaced(client.clone());
    assert_eq!(all.list(&ListParams::default()).await.unwrap().items.len(), left + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_file_system_is_lived_with_and_left() {
    if let Ok(folder) = std::env::var(FOLDER) {
        slipway::appliance::install_tls_provider();
        return meet_a_full_disk(Path::new(&folder)).await;
    }
    on_a_small_disk("full_file_system::a_full_file_system_is_lived_with_and_left", "96m").await;
}

/// Takes every inode that is free; gives back how many those were.
fn take_inodes(folder: &Path) -> usize {
    std::fs::create_dir_all(folder).ok();
    (0..).take_while(|_| File::create(folder.join(rand::random::<u64>().to_string())).is_ok()).count()
}

/// Inodes that are free, and all.
fn inodes(folder: &Path) -> (u64, u64) {
    let found = nix::sys::statvfs::statvfs(folder).unwrap();
    (found.files_available(), found.files())
}

async fn meet_a_disk_without_inodes(folder: &Path) {
    let images = folder.join("files");
    std::fs::create_dir(&images).unwrap();
    // Each MiB another one, and hardly anything on the disk: the file, and what the library makes of it.
    let mut image = File::create(images.join("many.raw")).unwrap();
    for number in 0..1200_u64 {
        image.seek(SeekFrom::Start(number << 20)).unwrap();
        image.write_all(&(number + 1).to_le_bytes()).unwrap();
    }
    image.set_len(1200 << 20).unwrap();
    let more = format!("[image]\nfile_folder = {images:?}\n");
    let mut appliance = Appliance::with_data(folder.join("data"), &more).await;
    let _tell = Tell(appliance.folder().join("log"));
    let client = appliance.client().await;
    let library = Api::<Image>::all(client.clone());
    let url = format!("file://{}", images.join("many.raw").display());
    let spec = ImageSpec { url, format: Some("raw".into()), ..ImageSpec::default() };
    library.create(&PostParams::default(), &Image::new("many", spec)).await.unwrap();
    let refused = until("the import is refused", async || {
        let message = library.get("many").await.unwrap().status?.message?;
        message.contains("inodes").then_some(message)
    })
    .await;
    let (free, all) = inodes(folder);
    assert!(free >= all / 16, "{free} of {all} are left: {refused}");
    library.delete("many", &DeleteParams::default()).await.unwrap();

    let all = Api::<ConfigMap>::default_namespaced(client.clone());
    let mut left = 12;
    for number in 0..left {
        all.create(&PostParams::default(), &map(&format!("m{number}"))).await.unwrap();
    }
    let others = folder.join("others");
    assert!(take_inodes(&others) > 0);
    for start in 0..4 {
        appliance.restart(start % 2 == 1).await;
        let client = appliance.client().await;
        let all = Api::<ConfigMap>::default_namespaced(client.clone());
        assert_eq!(all.list(&ListParams::default()).await.unwrap().items.len(), left, "start {start}");
        left -= 1;
        delete(&client, &format!("m{left}")).await;
        take_inodes(&others);
    }
    let client = appliance.client().await;
    let all = Api::<ConfigMap>::default_namespaced(client.clone());
    let refused = until("what grows is refused", async || {
        match all.create(&PostParams::default(), &map(&format!("n{}", rand::random::<u64>()))).await {
            Err(kube::Error::Api(status)) => Some(status),
            Err(error) => panic!("{error}"),
            Ok(_) => None,
        }
    })
    .await;
    assert!(refused.code == 507 && refused.message.contains("is full"), "{} {}", refused.code, refused.message);
    std::fs::remove_dir_all(&others).unwrap();
    until("there is room again", async || all.create(&PostParams::default(), &map("after")).await.ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_system_without_inodes_is_lived_with_and_left() {
    if let Ok(folder) = std::env::var(FOLDER) {
        slipway::appliance::install_tls_provider();
        return meet_a_disk_without_inodes(Path::new(&folder)).await;
    }
    on_a_small_disk("full_file_system::a_file_system_without_inodes_is_lived_with_and_left", "400m,nr_inodes=1000")
        .await;
}

/// A large object, and the mark that is on it.
fn large(name: &str) -> (ConfigMap, String) {
    // So that it cannot be packed.
    let noise: Vec<u8> = (0..LARGEST / 8).flat_map(|_| rand::random::<u64>().to_le_bytes()).collect();
    let mark = rand::random::<u64>().to_string();
    let object = json!({
        "metadata": {"name": name, "annotations": {"mark": mark}},
        "binaryData": {"noise": k8s_openapi::ByteString(noise)},
    });
    (serde_json::from_value(object).unwrap(), mark)
}

/// Writes and deletes large objects of its own until it is told to stop, and counts what is refused. Gives back which there
/// are, with their marks.
async fn write_large(
    client: Client,
    writer: usize,
    refused: Arc<AtomicUsize>,
    stop: CancellationToken,
) -> HashMap<String, String> {
    let all = Api::<ConfigMap>::default_namespaced(client);
    let mut there = HashMap::new();
    for turn in 0.. {
        if stop.is_cancelled() {
            break;
        }
        let name = format!("w{writer}-{}", turn % 12);
        let (object, mark) = large(&name);
        let is_there = there.contains_key(&name);
        let outcome = match (is_there, turn % 4) {
            (true, 3) => all.delete(&name, &DeleteParams::default()).await.map(|_| None),
            (true, _) => all.replace(&name, &PostParams::default(), &object).await.map(|_| Some(mark)),
            (false, _) => all.create(&PostParams::default(), &object).await.map(|_| Some(mark)),
        };
        match outcome {
            Ok(Some(mark)) => drop(there.insert(name, mark)),
            Ok(None) => drop(there.remove(&name)),
            Err(kube::Error::Api(status)) if status.code == 507 => drop(refused.fetch_add(1, Ordering::Relaxed)),
            Err(error) => panic!("{name}, turn {turn}: {error}"),
        }
    }
    there
}

async fn become_full_while_large_objects_are_written(folder: &Path) {
    let mut appliance = Appliance::with_data(folder.join("data"), "").await;
    let _tell = Tell(appliance.folder().join("log"));
    let client = appliance.client().await;
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let refused = Arc::new(AtomicUsize::new(0));
    let write = |writer| write_large(client.clone(), writer, refused.clone(), stop.clone());
    let writers: Vec<_> = (0..5).map(|writer| tokio::spawn(write(writer))).collect();
    let all = Api::<ConfigMap>::default_namespaced(client.clone());
    for round in 0..ROUNDS {
        let small = || map(&format!("round-{round}"));
        until("there is room", async || all.create(&PostParams::default(), &small()).await.ok()).await;
        let mut filler = Filler::new(folder);
        // Anywhere between two groups, and while the database is written anew.
        tokio::time::sleep(Duration::from_millis(rand::random_range(300..1500))).await;
        let before = refused.load(Ordering::Relaxed);
        // What the database gives back meanwhile is taken, too.
        until("nothing grows any more", async || {
            tokio::task::block_in_place(|| filler.fill());
            (refused.load(Ordering::Relaxed) >= before + 5).then_some(())
        })
        .await;
        assert!(appliance.runs(), "round {round}");
        filler.remove();
    }
    stop.cancel();
    let mut expected = HashMap::new();
    for writer in writers {
        expected.extend(writer.await.unwrap());
    }
    appliance.restart(true).await;
    let all = Api::<ConfigMap>::default_namespaced(appliance.client().await);
    let there = all.list_metadata(&ListParams::default()).await.unwrap();
    let there: HashMap<_, _> = there
        .into_iter()
        .filter_map(|object| Some((object.name_any(), object.annotations().get("mark")?.clone())))
        .collect();
    assert_eq!(there, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_disk_becomes_full_while_large_objects_are_written() {
    if let Ok(folder) = std::env::var(FOLDER) {
        slipway::appliance::install_tls_provider();
        return become_full_while_large_objects_are_written(Path::new(&folder)).await;
    }
    on_a_small_disk("full_file_system::the_disk_becomes_full_while_large_objects_are_written", "400m").await;
}

async fn be_what_fills_the_disk(folder: &Path) {
    let mut appliance = Appliance::with_data(folder.join("data"), "").await;
    let _tell = Tell(appliance.folder().join("log"));
    let client = appliance.client().await;
    let all = Api::<ConfigMap>::default_namespaced(client.clone());
    let mut names = (0..).map(|number| format!("m{number}"));
    let mut there = Vec::new();
    let refused = loop {
        let name = names.next().unwrap();
        match all.create(&PostParams::default(), &large(&name).0).await {
            Ok(_) => there.push(name),
            Err(kube::Error::Api(status)) => break status,
            Err(error) => panic!("{name}: {error}"),
        }
    };
    assert!(refused.code == 507 && there.len() > 15, "{} objects, then {refused:?}", there.len());
    // Each of them three times, which is more than the disk has.
    for turn in 0..3 {
        for name in &there {
            let replaced = all.replace(name, &PostParams::default(), &large(name).0).await;
            replaced.unwrap_or_else(|error| panic!("turn {turn}, {name}: {error}"));
        }
    }
    for name in there.drain(..4) {
        all.delete(&name, &DeleteParams::default()).await.unwrap();
    }
    for name in names.take(3) {
        all.create(&PostParams::default(), &large(&name).0).await.unwrap();
        there.push(name);
    }
    appliance.restart(true).await;
    let all = Api::<ConfigMap>::default_namespaced(appliance.client().await);
    let found = all.list_metadata(&ListParams::default()).await.unwrap();
    let found = found.iter().map(ResourceExt::name_any).collect::<BTreeSet<_>>();
    assert_eq!(found, there.into_iter().collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_fills_the_disk_with_objects_can_still_change_them() {
    if let Ok(folder) = std::env::var(FOLDER) {
        slipway::appliance::install_tls_provider();
        return be_what_fills_the_disk(Path::new(&folder)).await;
    }
    on_a_small_disk("full_file_system::who_fills_the_disk_with_objects_can_still_change_them", "120m").await;
}
