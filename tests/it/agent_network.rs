//! The agent's network against a real DHCP server, between network namespaces that exist only for this test.
//! Needs root, iproute2, util-linux and dnsmasq.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use slipway::agent::inventory::lldp;
use slipway::agent::inventory::nics::addresses;
use slipway::agent::net::packet::{ETHERTYPE_LLDP, PacketSocket};
use slipway::agent::net::{AgentNetwork, NetworkNeeds};
use slipway::api::MacAddress;

const INNER: &str = "SLIPWAY_TEST_IN_NAMESPACE";
const LIMIT: Duration = Duration::from_secs(60);

/// A child that ends with the test.
struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        // Already gone is as good.
        let _killed = self.0.kill();
        let _status = self.0.wait();
    }
}

fn run(command: &str) {
    let words: Vec<&str> = command.split_whitespace().collect();
    let status = Command::new(words[0]).args(&words[1..]).status().unwrap_or_else(|error| panic!("{command}: {error}"));
    assert!(status.success(), "{command}");
}

fn keep(command: &str) -> Kept {
    let words: Vec<&str> = command.split_whitespace().collect();
    let child = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).spawn();
    Kept(child.unwrap_or_else(|error| panic!("{command}: {error}")))
}

async fn until(what: &str, mut ask: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + LIMIT;
    while !ask() {
        assert!(tokio::time::Instant::now() < deadline, "waited for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Runs the test named `name` again in namespaces of its own.
fn enter(name: &str) {
    let this = std::env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args(["--net", "--mount", "--", this.to_str().unwrap(), "--exact", name, "--nocapture", "--test-threads=1"])
        .env(INNER, "1")
        .output()
        .unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn leases_come_from_a_real_server_and_switches_are_heard() {
    if std::env::var_os(INNER).is_none() {
        return enter("agent_network::leases_come_from_a_real_server_and_switches_are_heard");
    }
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(inner());
}

async fn inner() {
    // sysfs shows the interfaces of the namespace that it was mounted in.
    run("mount -t sysfs sysfs /sys");
    run("ip link add boot type veth peer name server");
    run("ip link add mute type veth peer name switch");
    run("ip link set switch up");
    let port = PacketSocket::open(index("switch"), ETHERTYPE_LLDP).unwrap();
    let namespace = keep("unshare --net -- sleep 300");
    let pid = namespace.0.id();
    let own = std::fs::read_link("/proc/self/ns/net").unwrap();
    until("the server's namespace", || {
        std::fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|other| other != own)
    })
    .await;
    run(&format!("ip link set server netns {pid}"));
    let there = format!("nsenter --net --target {pid} --");
    run(&format!("{there} ip link set lo up"));
    run(&format!("{there} ip addr add 198.51.100.1/24 dev server"));
    run(&format!("{there} ip link set server up"));

    let root = tempfile::tempdir().unwrap();
    for name in ["boot", "mute"] {
        let folder = root.path().join("sys/class/net").join(name);
        std::fs::create_dir_all(folder.join("device")).unwrap();
        for file in ["type", "ifindex", "address", "carrier"] {
            symlink(Path::new("/sys/class/net").join(name).join(file), folder.join(file)).unwrap();
        }
    }
    let mac = |name: &str| -> MacAddress {
        std::fs::read_to_string(format!("/sys/class/net/{name}/address")).unwrap().trim().parse().unwrap()
    };
    let appliance = Ipv4Addr::new(198, 51, 100, 1);
    let wanted =
        NetworkNeeds { root: root.path().into(), mac: Some(mac("boot")), appliance: Some(appliance), plan: None };
    let network = AgentNetwork::start(wanted).unwrap();
    // Nobody answers yet: the client must go on asking.
    let error = network.ready(LIMIT, LIMIT, Duration::from_secs(3)).await.unwrap_err().to_string();
    assert!(error.contains("boot") && error.contains("DHCP"), "{error}");

    let lease_file = root.path().join("leases");
    let _dnsmasq = keep(&format!(
        "{there} dnsmasq --keep-in-foreground --conf-file=/dev/null --port=0 --interface=server --bind-interfaces \
         --dhcp-range=198.51.100.50,198.51.100.60,255.255.255.0,120 --dhcp-host={},198.51.100.55,node-55 \
         --dhcp-authoritative --dhcp-option=3,198.51.100.1 --dhcp-option=26,1400 --dhcp-option=58,8 \
         --dhcp-leasefile={} --user=root --pid-file=",
        mac("boot"),
        lease_file.display()
    ));
    network.ready(LIMIT, LIMIT, LIMIT).await.unwrap();
    assert_eq!(*network.order().borrow(), ["boot"]);
    let lease = network.best_lease().unwrap();
    assert_eq!(lease.address, Ipv4Addr::new(198, 51, 100, 55));
    assert_eq!((lease.prefix, lease.router, lease.server), (24, Some(appliance), appliance));
    assert_eq!((lease.hostname.as_deref(), lease.mtu), (Some("node-55"), Some(1400)));
    assert_eq!(addresses()["boot"], [IpAddr::from(lease.address)]);
    let mtu = std::fs::read_to_string("/sys/class/net/boot/mtu").unwrap();
    assert_eq!(mtu.trim(), "1400");
    let routes = Command::new("ip").args(["-4", "route", "show", "default"]).output().unwrap();
    let routes = String::from_utf8(routes.stdout).unwrap();
    assert!(routes.starts_with("default via 198.51.100.1 dev boot"), "{routes}");

    // The expiry in the lease file moves when the lease is renewed.
    let expiry = || {
        let text = std::fs::read_to_string(&lease_file).unwrap_or_default();
        text.lines().next().and_then(|line| line.split(' ').next()?.parse::<u64>().ok())
    };
    let first = expiry().expect("a lease in the server's file");
    until("the lease to be renewed", || expiry().is_some_and(|now| now > first)).await;

    let frame = [&[2u8, 7, 4, 0, 0x1c, 0x73, 0, 0, 0x99, 4, 5, 5][..], b"swp7", &[6, 2, 0, 120, 0, 0]].concat();
    port.send(lldp::MULTICAST, &frame).await.unwrap();
    until("the switch to be heard", || network.neighbours().contains_key("mute")).await;
    assert_eq!(network.neighbours()["mute"].port, "swp7");
    let mut hello = vec![0; 1600];
    let length = tokio::time::timeout(LIMIT, port.receive(&mut hello)).await.unwrap().unwrap();
    assert_eq!(lldp::Neighbour::parse(&hello[..length]).unwrap().chassis, mac("mute").to_string());
}

fn index(name: &str) -> u32 {
    std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).unwrap().trim().parse().unwrap()
}
