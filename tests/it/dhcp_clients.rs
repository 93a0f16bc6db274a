//! The DHCP server with real clients: udhcpc, dhclient, dhcpcd, and messages made by hand.
//!
//! Each test makes its own network namespaces: one for the server with a bridge, one for each client. Without root or
//! `ip` the tests say that they are skipped.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use crate::dhcp_support::{self, Exchange, Lab, Options, discover, message};
use dhcproto::v4::{DhcpOption, MessageType, OptionCode};

use crate::needs;

const MAC: &str = "02:00:00:00:00:01";
/// What the log says of an address that somebody uses.
const IN_USE: &str = "an address is in use by a machine that did not get it here";
const POOL: &str = "pool = ['10.77.0.100-10.77.0.110']";

/// The role this binary plays inside a namespace; see `dhcp_support`.
#[test]
#[ignore = "started by the other tests inside a network namespace"]
fn role_in_a_namespace() {
    dhcp_support::play_role();
}

fn lab(options: Options<'_>) -> Option<Lab> {
    if !needs::root() || !needs::program("ip") {
        return None;
    }
    let lab = Lab::new(options);
    if lab.is_none() {
        needs::lacks("there can be no network namespaces");
    }
    lab
}

#[test]
fn every_client_gets_the_same_address_for_a_known_machine() {
    let options = Options { network: POOL, hosts: &[(MAC, "web-1", false)], macs: &[MAC], ..Options::default() };
    let Some(mut lab) = lab(options) else { return };
    let address = Ipv4Addr::new(10, 77, 0, 100);
    // Each sends a client identifier of its own kind.
    assert_eq!(lab.udhcpc(0, &[]), Some(address), "udhcpc");
    assert_eq!(lab.udhcpc(0, &["-C"]), Some(address), "udhcpc without a client identifier");
    if let Some(got) = lab.dhclient(0) {
        assert_eq!(got, Some(address), "dhclient");
    }
    if let Some(got) = lab.dhcpcd(0) {
        assert_eq!(got, Some(address), "dhcpcd");
    }
    assert_eq!(lab.ask(&format!("address {MAC}")), "10.77.0.100");
    // The published view follows.
    let view = lab.ask_until("view 10.77.0.100", |view| view.contains("bound"));
    assert!(view.contains(MAC) && view.contains("default/web-1"), "{view}");
    assert!(lab.ask(&format!("explain {MAC}")).contains("stays its own"));
}

/// A stranger can fill it, and the kernel wants an entry for broadcasts as well.
#[test]
fn a_broadcast_answer_takes_no_entry_of_the_neighbour_table() {
    let Some(lab) = lab(Options { network: POOL, macs: &[MAC], ..Options::default() }) else { return };
    // With the broadcast flag.
    assert!(lab.udhcpc(0, &["-B"]).is_some());
    let table = lab.neighbours();
    assert!(!table.contains("255.255.255.255"), "{table}");
}

#[test]
fn a_lease_is_renewed_released_and_outlives_the_server() {
    let options = Options { network: POOL, macs: &[MAC], ..Options::default() };
    let Some(mut lab) = lab(options) else { return };
    let client = lab.udhcpc_daemon(0);
    client.wait_for("bound 10.77.0.100");
    client.signal(nix::sys::signal::Signal::SIGUSR1);
    client.wait_for("renew 10.77.0.100");
    // kill -9: what was acknowledged is there after the restart.
    lab.kill_server();
    lab.start_server();
    assert_eq!(lab.ask(&format!("address {MAC}")), "10.77.0.100");
    client.signal(nix::sys::signal::Signal::SIGUSR1);
    client.wait_for_times("renew 10.77.0.100", 2);
    client.signal(nix::sys::signal::Signal::SIGUSR2);
    let view = lab.ask_until("view 10.77.0.100", |view| view.contains("released"));
    assert!(view.contains("released"), "{view}");
}

#[test]
fn a_declined_address_is_not_given_again_and_the_operator_is_told() {
    let options = Options { network: POOL, hosts: &[(MAC, "web-1", false)], macs: &[MAC], ..Options::default() };
    let Some(mut lab) = lab(options) else { return };
    // Somebody uses the address that the client is offered first.
    lab.ip_server(&["addr", "add", "10.77.0.100/32", "dev", "br0"]);
    assert_eq!(lab.udhcpc(0, &["-a"]), Some(Ipv4Addr::new(10, 77, 0, 101)));
    let view = lab.ask_until("view 10.77.0.100", |view| view.contains("declined"));
    assert!(view.contains(MAC), "{view}");
    let log = lab.log();
    assert!(log.lines().any(|line| line.contains("is in use") && line.contains("address=10.77.0.100")), "{log}");
    assert!(log.contains(MAC), "{log}");
}

/// What a known machine declines is looked at: here another machine does answer there.
#[test]
fn an_address_that_another_card_answers_for_is_taken_from_its_machine() {
    let macs = [MAC, "02:00:00:00:00:02"];
    let options = Options { network: POOL, hosts: &[(MAC, "web-1", false)], macs: &macs, ..Options::default() };
    let Some(mut lab) = lab(options) else { return };
    assert_eq!(lab.udhcpc(0, &[]), Some(Ipv4Addr::new(10, 77, 0, 100)));
    lab.ip_client(1, &["addr", "add", "10.77.0.100/24", "dev", "c0"]);
    assert_eq!(lab.udhcpc(0, &["-a"]), Some(Ipv4Addr::new(10, 77, 0, 101)));
    let view = lab.ask_until("view 10.77.0.100", |view| view.contains("declined"));
    assert!(view.contains(MAC), "{view}");
    let log = lab.log();
    assert!(log.lines().any(|line| line.contains(IN_USE) && line.contains("address=10.77.0.100")), "{log}");
}

/// The appliance looks for it as a machine would, and is not heard by its own server, which is on the wire by a second card.
#[test]
fn another_server_is_found_by_a_search_that_takes_nothing() {
    if !needs::program("dnsmasq") {
        return;
    }
    let network = format!(
        "{POOL}\n[[network]]\nname = 'beside'\ninterface = 'b0'\nsubnet = '10.78.0.0/24'\npool = ['10.78.0.100-10.78.0.110']"
    );
    let options = Options { network: &network, macs: &[MAC], start: false, ..Options::default() };
    let Some(mut lab) = lab(options) else { return };
    lab.ip_server(&["link", "add", "b0", "type", "veth", "peer", "name", "b1"]);
    lab.ip_server(&["link", "set", "b1", "master", "br0", "up"]);
    lab.ip_server(&["link", "set", "b0", "up"]);
    lab.ip_server(&["addr", "add", "10.78.0.1/24", "dev", "b0"]);
    lab.start_server();
    let line = "it answered this appliance's own DHCPDISCOVER";
    assert_eq!(lab.ask("probe 60"), "done");
    assert!(!lab.log().contains(line), "it found itself: {}", lab.log());
    let (_other, leases) = lab.dnsmasq(0);
    assert_eq!(lab.ask("probe 60"), "done");
    let log = lab.log();
    for network in ["lab", "beside"] {
        let found = log.lines().find(|one| one.contains(line) && one.contains(&format!("network={network}")));
        let found = found.unwrap_or_else(|| panic!("not on {network}: {log}"));
        assert!(found.contains("server=10.77.0.250") && found.contains(&format!("card={MAC}")), "{found}");
    }
    assert_eq!(std::fs::read_to_string(leases).unwrap_or_default(), "", "nothing was leased");
}

/// It is asked for on the wire before a machine is offered it for the first time.
#[test]
fn an_address_that_somebody_uses_already_is_not_offered() {
    let other = "02:00:00:00:00:02";
    let unchecked = format!("{POOL}\ncheck_cards = false");
    for (network, hosts, wanted) in
        [(POOL, &[][..], 101), (POOL, &[(MAC, "web-1", false)], 101), (&unchecked, &[(MAC, "web-1", false)], 100)]
    {
        let options = Options { network, hosts, macs: &[MAC, other], ..Options::default() };
        let Some(mut lab) = lab(options) else { return };
        lab.ip_client(1, &["addr", "add", "10.77.0.100/24", "dev", "c0"]);
        // This client does not look itself.
        assert_eq!(lab.udhcpc(0, &[]), Some(Ipv4Addr::new(10, 77, 0, wanted)), "{network} {hosts:?}");
        if wanted == 100 {
            continue;
        }
        lab.ask_until("view 10.77.0.100", |view| view.contains("declined"));
        let log = lab.log();
        let line = log.lines().find(|line| line.contains(IN_USE) && line.contains("address=10.77.0.100"));
        assert!(line.is_some_and(|line| line.contains(other)), "{log}");
    }
}

#[test]
fn two_machines_with_one_mac_address_get_one_address_and_a_warning() {
    let options = Options { network: POOL, hosts: &[(MAC, "web-1", true)], macs: &[MAC, MAC], ..Options::default() };
    let Some(lab) = lab(options) else { return };
    let from = |uuid: u8| {
        let id = DhcpOption::ClientMachineIdentifier([&[0][..], &[uuid; 16]].concat());
        discover(MAC, vec![DhcpOption::ClassIdentifier(b"PXEClient:Arch:00000:UNDI:002001".to_vec()), id])
    };
    for (client, uuid) in [(0, 7), (1, 9)] {
        let offer = lab.exchange(client, Exchange::Broadcast, &from(uuid)).expect("an offer");
        assert_eq!(offer.yiaddr(), Ipv4Addr::new(10, 77, 0, 100), "client {client}");
    }
    let log = lab.log();
    assert!(log.contains("two machines have the same MAC address") && log.contains("09090909-"), "{log}");
}

#[test]
fn firmware_and_ipxe_are_told_what_to_boot_over_the_wire() {
    let options = Options { network: POOL, hosts: &[(MAC, "web-1", true)], macs: &[MAC], ..Options::default() };
    let Some(lab) = lab(options) else { return };
    let class = |text: &str| DhcpOption::ClassIdentifier(text.as_bytes().to_vec());
    let rows = [
        (vec![class("PXEClient:Arch:00000:UNDI:002001")], "undionly.kpxe"),
        (vec![class("PXEClient:Arch:00007:UNDI:003016")], "snponly.efi"),
        (vec![class("HTTPClient:Arch:00016:UNDI:003001")], "http://10.77.0.1/boot/files/ipxe.efi"),
        (
            vec![class("PXEClient:Arch:00007:UNDI:003010"), DhcpOption::UserClass(b"iPXE".to_vec())],
            "http://10.77.0.1/boot/ipxe?mac=02-00-00-00-00-01&arch=uefi",
        ),
    ];
    for (options, file) in rows {
        let offer = lab.exchange(0, Exchange::Broadcast, &discover(MAC, options)).expect("an offer");
        assert_eq!(offer.siaddr(), Ipv4Addr::new(10, 77, 0, 1));
        let expected = DhcpOption::BootfileName(file.as_bytes().to_vec());
        assert_eq!(offer.opts().get(OptionCode::BootfileName), Some(&expected));
    }
}

#[test]
fn a_proxy_answers_beside_another_server_and_on_its_own_port() {
    let network = "mode = 'proxy'";
    let options = Options { network, hosts: &[(MAC, "web-1", true)], macs: &[MAC], ..Options::default() };
    let Some(lab) = lab(options) else { return };
    let pxe = vec![DhcpOption::ClassIdentifier(b"PXEClient:Arch:00007:UNDI:003016".to_vec())];
    let offer = lab.exchange(0, Exchange::Broadcast, &discover(MAC, pxe.clone())).expect("an offer");
    assert_eq!(offer.yiaddr(), Ipv4Addr::UNSPECIFIED);
    let mut request = message(MAC, MessageType::Request, pxe);
    request.set_ciaddr(Ipv4Addr::new(10, 77, 0, 250));
    let ack = lab.exchange(0, Exchange::ProxyPort, &request).expect("an answer on 4011");
    assert_eq!(ack.opts().msg_type(), Some(MessageType::Ack));
    assert!(ack.opts().get(OptionCode::BootfileName).is_some());
    assert!(lab.exchange(0, Exchange::Broadcast, &discover(MAC, vec![])).is_none(), "a system gets nothing");
}

#[test]
fn hostile_packets_harm_no_known_machine() {
    let other = "02:00:00:00:00:03";
    let hosts = [(MAC, "web-1", false), (other, "web-3", false)];
    let macs = [MAC, "02:00:00:00:00:02", other];
    let Some(mut lab) = lab(Options { network: POOL, hosts: &hosts, macs: &macs, ..Options::default() }) else {
        return;
    };
    let address = lab.udhcpc(0, &[]);
    assert!(address.is_some());
    let mut attack = lab.hostile(1, Duration::from_secs(300));
    // The attack asks for every address there is under made-up client identifiers, with and without an offer.
    lab.log_until("the pool is used up");
    let give_up = Instant::now() + Duration::from_secs(120);
    while !(101..=110).any(|last| lab.ask(&format!("view 10.77.0.{last}")).contains("bound")) {
        assert!(Instant::now() < give_up, "a stranger's request is granted as long as there is room");
    }
    for round in 0..3 {
        assert_eq!(lab.udhcpc(0, &[]), address, "round {round}");
    }
    let first = lab.udhcpc(2, &[]);
    assert!(first.is_some() && first != address, "a known machine seen for the first time: {first:?}");
    assert!(attack.is_running(), "the attack ended before the good clients were done");
    drop(attack);
    assert!(lab.server_is_running());
    let log = lab.log();
    assert!(log.contains("a DHCP message cannot be read") && log.contains("peer="), "{log}");
    assert!(log.lines().count() < 600, "{} lines", log.lines().count());
}

/// All that it takes is the machine's MAC address, which everybody on the network has seen. The pool is small: each of its
/// addresses is declined.
#[test]
fn who_gives_back_and_declines_in_a_known_machines_name_keeps_it_from_nothing() {
    const OTHER: &str = "02:00:00:00:00:03";
    let hosts = [(MAC, "web-1", true), (OTHER, "web-3", true)];
    let macs = [MAC, "02:00:00:00:00:02", OTHER];
    let network = "pool = ['10.77.0.100-10.77.0.101']";
    let Some(mut lab) = lab(Options { network, hosts: &hosts, macs: &macs, ..Options::default() }) else { return };
    let pool = [Ipv4Addr::new(10, 77, 0, 100), Ipv4Addr::new(10, 77, 0, 101)];
    let script = |lab: &Lab, client, address, mac: &str| {
        lab.fetch(client, address, &format!("/boot/ipxe?mac={}&uuid=&arch=7", mac.replace(':', "-")))
    };
    assert_eq!(lab.udhcpc(0, &[]), Some(pool[0]));
    let told = script(&lab, 0, pool[0], MAC);
    assert!(told.contains("slipway.token="), "before: {told}");
    // Between its lease and its script.
    let mut attack = lab.forge(1, MAC, &pool);
    for round in 0..3 {
        let told = script(&lab, 0, pool[0], MAC);
        assert!(told.contains("slipway.token="), "round {round}: {told}");
        assert_eq!(lab.ask("rank 10.77.0.100"), "Known", "round {round}");
    }
    // After the appliance has looked who answers there.
    let log = lab.log_until("no other is seen there: the address stays the machine's");
    assert!(log.contains("default/web-1") && log.contains(MAC), "{log}");
    let told = script(&lab, 0, pool[0], MAC);
    assert!(told.contains("slipway.token="), "after: {told}");
    // It begins again, and so does another one that comes for the first time, in whose name it is done as well.
    assert_eq!(lab.udhcpc(0, &[]), Some(pool[0]));
    let mut others = lab.forge(1, OTHER, &pool);
    assert_eq!(lab.udhcpc(2, &[]), Some(pool[1]));
    let told = script(&lab, 2, pool[1], OTHER);
    assert!(told.contains("slipway.token="), "the other: {told}");
    assert!(attack.is_running() && others.is_running(), "the attack ended before the good clients were done");
    drop((attack, others));
    assert!(lab.server_is_running());
    let log = lab.log();
    assert!(log.lines().count() < 100, "{} lines", log.lines().count());
}

/// What it gives back itself it finds again.
#[test]
fn a_known_machine_that_gives_its_address_back_finds_it_again() {
    let options = Options { network: POOL, hosts: &[(MAC, "web-1", true)], macs: &[MAC], ..Options::default() };
    let Some(mut lab) = lab(options) else { return };
    let client = lab.udhcpc_daemon(0);
    client.wait_for("bound 10.77.0.100");
    client.signal(nix::sys::signal::Signal::SIGUSR2);
    let said = lab.ask_until(&format!("explain {MAC}"), |said| said.contains("released 10.77.0.100, which stays"));
    assert!(said.contains("released 10.77.0.100, which stays its own"), "{said}");
    drop(client);
    assert_eq!(lab.udhcpc(0, &[]), Some(Ipv4Addr::new(10, 77, 0, 100)));
}

/// Who takes the address of a host that is off has its place with strangers, whatever the lease says.
#[test]
fn an_address_where_another_card_answers_is_a_strangers() {
    let options = Options { network: POOL, hosts: &[(MAC, "web-1", true)], macs: &[MAC], ..Options::default() };
    let Some(mut lab) = lab(options) else { return };
    assert_eq!(lab.udhcpc(0, &[]), Some(Ipv4Addr::new(10, 77, 0, 100)));
    let add = |mac: &str, lab: &Lab| {
        lab.ip_server(&["neigh", "replace", "10.77.0.100", "lladdr", mac, "dev", "br0", "nud", "reachable"]);
    };
    add(MAC, &lab);
    assert_eq!(lab.ask_until("rank 10.77.0.100", |rank| rank == "Known"), "Known");
    add("02:aa:aa:aa:aa:01", &lab);
    assert_eq!(lab.ask_until("rank 10.77.0.100", |rank| rank == "Stranger"), "Stranger");
    add(MAC, &lab);
    assert_eq!(lab.ask_until("rank 10.77.0.100", |rank| rank == "Known"), "Known");
}

#[test]
fn relayed_messages_are_answered_to_the_relay() {
    let options = Options { network: POOL, macs: &[MAC], ..Options::default() };
    let Some(lab) = lab(options) else { return };
    let mut relayed = discover("02:00:00:00:00:77", vec![]);
    relayed.set_giaddr(Ipv4Addr::new(10, 77, 0, 250)).set_hops(1);
    let offer = lab.exchange(0, Exchange::Relay, &relayed).expect("an offer at the relay's port");
    assert_eq!(offer.giaddr(), Ipv4Addr::new(10, 77, 0, 250));
    assert_eq!(offer.yiaddr(), Ipv4Addr::new(10, 77, 0, 100));
}

/// An answer to a relay that nobody has seen waits in the kernel for who answers there by ARP.
#[test]
fn answers_to_relays_that_are_not_there_keep_nobody_waiting() {
    let macs = [MAC, "02:00:00:00:00:66", "02:00:00:00:00:03"];
    let options = Options { network: POOL, hosts: &[(MAC, "web-1", true)], macs: &macs, ..Options::default() };
    let Some(mut lab) = lab(options) else { return };
    let mut attack = lab.made_up_relays(1);
    let address = lab.exchange(0, Exchange::Broadcast, &discover(MAC, vec![])).expect("an offer").yiaddr();
    for round in 0..3 {
        assert_eq!(lab.udhcpc(0, &[]), Some(address), "round {round}");
    }
    // A relay that is there has its answers, too.
    let mut relayed = discover("02:00:00:00:00:77", vec![]);
    relayed.set_giaddr(Ipv4Addr::new(10, 77, 0, 250)).set_hops(1);
    let offer = lab.exchange(2, Exchange::Relay, &relayed).expect("an offer at the relay's port");
    assert_eq!(offer.giaddr(), Ipv4Addr::new(10, 77, 0, 250));
    assert!(attack.is_running() && lab.server_is_running());
    drop(attack);
    let log = lab.log();
    assert!(
        log.contains("no answer to DHCP relays that nobody answers for") && log.contains("peer=10.77.0.251"),
        "{log}"
    );
    assert!(log.lines().count() < 100, "{} lines", log.lines().count());
}

#[test]
fn faults_of_the_configuration_are_named_when_binding() {
    let Some(lab) = lab(Options { start: false, network: POOL, macs: &[MAC], ..Options::default() }) else { return };
    let fault = |network: &str| lab.bind_fault(network);
    let text = fault("interface = 'nope'\nsubnet = '10.77.0.0/24'");
    assert!(text.contains("there is no interface \"nope\"") && text.contains("br0"), "{text}");
    let text = fault("interface = 'br0'\nsubnet = '10.78.0.0/24'");
    assert!(text.contains("has no address in 10.78.0.0/24 (it has 10.77.0.1)"), "{text}");
    let _other = lab.squatter();
    let text = fault("interface = 'br0'\nsubnet = '10.77.0.0/24'");
    assert!(text.contains("another DHCP server runs on this machine"), "{text}");
}

#[test]
fn the_server_follows_its_interface() {
    let options = Options { network: POOL, macs: &[MAC], ..Options::default() };
    let Some(mut lab) = lab(options) else { return };
    lab.remake_bridge();
    let view = lab.log_until("DHCP serves it again");
    assert!(view.contains("the interface is gone") || view.contains("serves it again"), "{view}");
    assert_eq!(lab.udhcpc(0, &[]), Some(Ipv4Addr::new(10, 77, 0, 100)));
}

#[test]
fn machines_that_ask_together_each_get_an_address_and_keep_it_when_the_server_is_killed() {
    let network = "pool = ['10.77.0.2-10.77.0.240']";
    let Some(mut lab) = lab(Options { network, macs: &[MAC], ..Options::default() }) else { return };
    let leased = lab.storm(0, 200);
    lab.kill_server();
    assert_eq!(leased.len(), 200);
    assert_eq!(leased.iter().map(|(_, address)| address).collect::<HashSet<_>>().len(), 200, "one each");
    lab.start_server();
    for (mac, address) in leased {
        assert_eq!(lab.ask(&format!("address {mac}")), address, "{mac}");
    }
}

#[test]
fn the_kernel_says_which_card_answers_at_an_address() {
    let Some(mut lab) = lab(Options { network: POOL, macs: &[MAC], ..Options::default() }) else { return };
    assert_eq!(lab.ask("card 10.77.0.100"), "none", "nobody spoke with it");
    let entry = |state: &str, mac: &str| {
        let add = ["neigh", "replace", "10.77.0.100", "lladdr", mac, "dev", "br0", "nud", state];
        add.map(str::to_owned)
    };
    for (state, mac, answer) in [
        ("reachable", MAC, MAC),
        ("permanent", "02:aa:aa:aa:aa:01", "02:aa:aa:aa:aa:01"),
        ("stale", MAC, "none"),
        ("noarp", MAC, "none"),
    ] {
        lab.ip_server(&entry(state, mac).each_ref().map(String::as_str));
        assert_eq!(lab.ask("card 10.77.0.100"), answer, "{state}");
    }
}

/// Where the kernel does not know, it is made to ask: no answer is an answer, too.
#[test]
fn the_kernel_is_made_to_ask_which_card_answers_at_an_address() {
    let Some(mut lab) = lab(Options { network: POOL, macs: &[MAC], ..Options::default() }) else { return };
    assert_eq!(lab.ask("answers 10.77.0.100"), "Nobody");
    assert_eq!(lab.ask("answers 10.78.0.1"), "Unseen", "none of our networks");
    // The kernel gives up while its answer is waited for, and the card answers only then.
    lab.ip_server(&["neigh", "replace", "10.77.0.100", "dev", "br0", "nud", "failed"]);
    let answer = lab.ask_while("answers 10.77.0.100", |lab| {
        dhcp_support::wait_for(|| lab.neighbours().contains("INCOMPLETE"));
        lab.ip_client(0, &["addr", "add", "10.77.0.100/24", "dev", "c0"]);
        lab.ip_server(&["neigh", "replace", "10.77.0.100", "dev", "br0", "nud", "failed"]);
    });
    assert_eq!(answer, MAC);
    // It is gone from the table, or the last that was heard was long ago.
    lab.ip_server(&["neigh", "del", "10.77.0.100", "dev", "br0"]);
    assert_eq!(lab.ask("answers 10.77.0.100"), MAC);
    lab.ip_server(&["neigh", "replace", "10.77.0.100", "dev", "br0", "nud", "failed"]);
    assert_eq!(lab.ask("answers 10.77.0.100"), MAC);
    lab.ip_client(0, &["link", "set", "c0", "arp", "off"]);
    lab.ip_server(&["neigh", "replace", "10.77.0.100", "dev", "br0", "nud", "failed"]);
    assert_eq!(lab.ask("answers 10.77.0.100"), "Nobody");
    lab.ip_server(&["neigh", "replace", "10.77.0.100", "lladdr", MAC, "dev", "br0", "nud", "stale"]);
    assert_eq!(lab.ask("answers 10.77.0.100"), MAC, "the card that answered last, while it is asked again");
    lab.ip_server(&["neigh", "replace", "10.77.0.100", "lladdr", MAC, "dev", "br0", "nud", "noarp"]);
    assert_eq!(lab.ask("answers 10.77.0.100"), "Unseen");
}
