//! Tests of the DHCP client: whole exchanges without socket and clock.

use super::*;
use dhcproto::{Decodable, Decoder};

const MAC: MacAddress = MacAddress([0x52, 0x54, 0, 1, 2, 3]);
const SERVER: Ipv4Addr = Ipv4Addr::new(172, 22, 0, 1);
const OTHER: Ipv4Addr = Ipv4Addr::new(172, 22, 0, 9);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(172, 22, 0, 50);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn client() -> DhcpClient {
    DhcpClient::new(MAC, Some(SERVER), 0x1234_5678, seconds(100))
}

fn sent(actions: &Actions) -> Message {
    let bytes = match actions.transmit.as_ref().expect("a message") {
        Transmit::Discover(bytes) | Transmit::Renew(_, bytes) => bytes,
    };
    assert!(bytes.len() >= LEAST_MESSAGE);
    Message::decode(&mut Decoder::new(bytes)).unwrap()
}

fn kind(message: &Message) -> Option<v4::MessageType> {
    message.opts().msg_type()
}

/// An answer of `server` to `question`, with what `change` adds.
fn answer(question: &Message, kind: v4::MessageType, server: Ipv4Addr, change: impl FnOnce(&mut Message)) -> Vec<u8> {
    let mut message = Message::default();
    message.set_opcode(Opcode::BootReply).set_xid(question.xid()).set_chaddr(&MAC.0).set_yiaddr(ADDRESS);
    let options = message.opts_mut();
    options.insert(DhcpOption::MessageType(kind));
    options.insert(DhcpOption::ServerIdentifier(server));
    options.insert(DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)));
    options.insert(DhcpOption::Router(vec![SERVER]));
    options.insert(DhcpOption::AddressLeaseTime(3600));
    options.insert(DhcpOption::Hostname("node-7".into()));
    change(&mut message);
    message.to_vec().unwrap()
}

fn bound(client: &mut DhcpClient) -> ClientLease {
    let discover = sent(&client.tick(seconds(100)));
    let request = sent(&client.receive(seconds(100), &answer(&discover, v4::MessageType::Offer, SERVER, |_| {})));
    let ack = answer(&request, v4::MessageType::Ack, SERVER, |_| {});
    match client.receive(seconds(100), &ack).change {
        Some(LeaseChange::Bound(lease)) => lease,
        other => panic!("{other:?}"),
    }
}

#[test]
fn four_messages_make_a_lease_and_no_client_identifier_is_sent() {
    let mut client = client();
    let discover = sent(&client.tick(seconds(100)));
    assert_eq!(kind(&discover), Some(v4::MessageType::Discover));
    assert!(discover.opts().get(OptionCode::ClientIdentifier).is_none());
    let request = sent(&client.receive(seconds(101), &answer(&discover, v4::MessageType::Offer, SERVER, |_| {})));
    assert_eq!(kind(&request), Some(v4::MessageType::Request));
    assert_eq!(request.opts().get(OptionCode::RequestedIpAddress), Some(&DhcpOption::RequestedIpAddress(ADDRESS)));
    assert_eq!(request.opts().get(OptionCode::ServerIdentifier), Some(&DhcpOption::ServerIdentifier(SERVER)));
    assert_eq!(request.secs(), 1);
    let actions = client.receive(seconds(101), &answer(&request, v4::MessageType::Ack, SERVER, |_| {}));
    let lease = ClientLease {
        address: ADDRESS,
        prefix: 24,
        router: Some(SERVER),
        server: SERVER,
        hostname: Some("node-7".into()),
        mtu: None,
        time: seconds(3600),
        renew: seconds(1800),
        rebind: seconds(3150),
    };
    assert_eq!(actions, Actions { transmit: None, change: Some(LeaseChange::Bound(lease)) });
    assert_eq!(client.deadline(), seconds(101 + 1800));
}

#[test]
fn the_appliance_wins_over_a_faster_server_and_another_server_is_taken_after_a_moment() {
    let mut client = client();
    let discover = sent(&client.tick(seconds(100)));
    let offer = answer(&discover, v4::MessageType::Offer, OTHER, |_| {});
    assert_eq!(client.receive(seconds(100), &offer), Actions::default());
    let request = sent(&client.receive(seconds(100), &answer(&discover, v4::MessageType::Offer, SERVER, |_| {})));
    assert_eq!(request.opts().get(OptionCode::ServerIdentifier), Some(&DhcpOption::ServerIdentifier(SERVER)));

    let mut alone = self::client();
    let discover = sent(&alone.tick(seconds(100)));
    alone.receive(seconds(100), &answer(&discover, v4::MessageType::Offer, OTHER, |_| {}));
    let request = sent(&alone.tick(seconds(101)));
    assert_eq!(request.opts().get(OptionCode::ServerIdentifier), Some(&DhcpOption::ServerIdentifier(OTHER)));

    // A server that names the appliance as the next one is the site's own DHCP beside it.
    let mut beside = self::client();
    let discover = sent(&beside.tick(seconds(100)));
    let offer = answer(&discover, v4::MessageType::Offer, OTHER, |message| {
        message.set_siaddr(SERVER);
    });
    assert_eq!(kind(&sent(&beside.receive(seconds(100), &offer))), Some(v4::MessageType::Request));
}

#[test]
fn unanswered_discovers_are_repeated_with_growing_pauses() {
    let mut client = client();
    let mut now = seconds(100);
    let mut pauses = Vec::new();
    for _ in 0..6 {
        assert_eq!(kind(&sent(&client.tick(now))), Some(v4::MessageType::Discover));
        pauses.push((client.deadline() - now).as_secs_f64());
        now = client.deadline();
    }
    for (pause, expected) in pauses.iter().zip([1.0, 2.0, 4.0, 8.0, 8.0, 8.0]) {
        assert!((expected..expected * 1.25).contains(pause), "{pauses:?}");
    }
    assert_eq!(client.discovers, 6);
}

#[test]
fn an_unanswered_request_starts_over() {
    let mut client = client();
    let discover = sent(&client.tick(seconds(100)));
    client.receive(seconds(100), &answer(&discover, v4::MessageType::Offer, SERVER, |_| {}));
    for _ in 1..REQUESTS {
        assert_eq!(kind(&sent(&client.tick(client.deadline()))), Some(v4::MessageType::Request));
    }
    let again = sent(&client.tick(client.deadline()));
    assert_eq!(kind(&again), Some(v4::MessageType::Discover));
    assert_ne!(again.xid(), discover.xid());
}

#[test]
fn a_lease_is_renewed_then_rebound_then_lost() {
    let mut client = client();
    let lease = bound(&mut client);
    let mut renews = 0;
    let mut rebinds = 0;
    let lost = loop {
        let now = client.deadline();
        let actions = client.tick(now);
        match (&actions.transmit, &actions.change) {
            (Some(Transmit::Renew(to, _)), None) => {
                let request = sent(&actions);
                assert_eq!(request.ciaddr(), ADDRESS);
                assert!(request.opts().get(OptionCode::ServerIdentifier).is_none());
                if *to == SERVER {
                    assert!(now < seconds(100) + lease.rebind);
                    renews += 1;
                } else {
                    assert_eq!(*to, Ipv4Addr::BROADCAST);
                    rebinds += 1;
                }
            }
            (Some(Transmit::Discover(_)), Some(LeaseChange::Lost(_))) => break now,
            other => panic!("{other:?}"),
        }
        assert!(renews + rebinds < 100);
    };
    assert_eq!(lost, seconds(100 + 3600));
    assert!(renews >= 2 && rebinds >= 2, "{renews} {rebinds}");
}

#[test]
fn an_answer_renews_and_a_nak_ends_the_lease() {
    let mut client = client();
    bound(&mut client);
    let request = sent(&client.tick(seconds(1900)));
    let actions = client.receive(seconds(1900), &answer(&request, v4::MessageType::Ack, OTHER, |_| {}));
    assert!(matches!(actions.change, Some(LeaseChange::Bound(_))), "{actions:?}");
    assert_eq!(client.deadline(), seconds(1900 + 1800));
    let request = sent(&client.tick(client.deadline()));
    let actions = client.receive(seconds(3700), &answer(&request, v4::MessageType::Nak, SERVER, |_| {}));
    assert!(matches!(actions.change, Some(LeaseChange::Lost(_))));
    assert_eq!(client.deadline(), seconds(3702));
}

#[test]
fn naks_slow_the_client_down() {
    let mut client = client();
    let mut now = seconds(100);
    let mut pauses = Vec::new();
    for _ in 0..7 {
        let discover = sent(&client.tick(now));
        client.receive(now, &answer(&discover, v4::MessageType::Offer, SERVER, |_| {}));
        client.receive(now, &answer(&discover, v4::MessageType::Nak, SERVER, |_| {}));
        pauses.push((client.deadline() - now).as_secs());
        now = client.deadline();
    }
    assert_eq!(pauses, [2, 4, 8, 16, 32, 32, 32]);
}

#[test]
fn answers_for_others_and_useless_ones_are_ignored() {
    let mut client = client();
    let discover = sent(&client.tick(seconds(100)));
    let good = answer(&discover, v4::MessageType::Offer, SERVER, |_| {});
    let changed = |index: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[index] = value;
        bytes
    };
    for (what, bytes) in [
        ("a request", changed(0, 1)),
        ("hardware type", changed(1, 6)),
        ("hardware length", changed(2, 255)),
        ("transaction", changed(4, !good[4])),
        ("hardware address", changed(33, 9)),
        ("cookie", changed(236, 0)),
        ("multicast address", changed(16, 224)),
        ("no address", changed(16, 0)),
        ("loopback address", changed(16, 127)),
        ("ACK out of turn", answer(&discover, v4::MessageType::Ack, SERVER, |_| {})),
        ("no server", answer(&discover, v4::MessageType::Offer, Ipv4Addr::UNSPECIFIED, |_| {})),
    ] {
        assert_eq!(client.receive(seconds(100), &bytes), Actions::default(), "{what}");
    }
    for length in 0..=good.len() {
        let mut fresh = self::client();
        fresh.tick(seconds(100));
        fresh.receive(seconds(100), &good[..length]);
    }
    assert!(client.receive(seconds(100), &good).transmit.is_some(), "the good one still counts");
}

#[test]
fn odd_options_do_not_hide_the_others() {
    let mut client = client();
    let discover = sent(&client.tick(seconds(100)));
    let mut offer = answer(&discover, v4::MessageType::Offer, SERVER, |_| {});
    offer.truncate(OPTIONS);
    offer.extend([
        53, 1, 2, 0, 0, 81, 1, 7, 1, 3, 255, 0, 255, 26, 2, 5, 220, 12, 3, 0xff, 0xfe, b'x', 51, 4, 0, 0, 0, 0,
    ]);
    offer.extend([52, 1, 1]);
    // The server identifier stands in `file`.
    offer[108..114].copy_from_slice(&[54, 4, 172, 22, 0, 1]);
    offer[114] = 255;
    let request = sent(&client.receive(seconds(100), &offer));
    assert_eq!(request.opts().get(OptionCode::ServerIdentifier), Some(&DhcpOption::ServerIdentifier(SERVER)));
    let DhcpState::Requesting { offer, .. } = &client.state else { panic!("not requesting") };
    assert_eq!((offer.lease.mtu, &offer.lease.hostname, offer.lease.time), (Some(1500), &None, LEASE_LEAST));
    assert_eq!(offer.lease.prefix, 16, "a mask of three bytes counts as none");
}

#[test]
fn masks_and_host_names_are_checked() {
    assert_eq!(prefix_length(&[255, 255, 255, 0]), Some(24));
    assert_eq!(prefix_length(&[255, 255, 255, 255]), Some(32));
    assert_eq!(prefix_length(&[255, 0, 255, 0]), None);
    assert_eq!(prefix_length(&[0, 0, 0, 0]), None);
    assert_eq!(hostname(b"rack-1.node\0").as_deref(), Some("rack-1.node"));
    for bad in [&b""[..], b"-a", b"a b", b"a;b", &[b'a'; 65], b"\xff"] {
        assert_eq!(hostname(bad), None, "{bad:?}");
    }
}

proptest::proptest! {
    #[test]
    fn no_packet_breaks_the_client(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..600), state in 0u8..3) {
        let mut client = client();
        let mut question = sent(&client.tick(seconds(100)));
        if state > 0 {
            let offer = answer(&question, v4::MessageType::Offer, SERVER, |_| {});
            question = sent(&client.receive(seconds(100), &offer));
        }
        if state > 1 {
            client.receive(seconds(100), &answer(&question, v4::MessageType::Ack, SERVER, |_| {}));
        }
        let mut packet = answer(&question, v4::MessageType::Offer, SERVER, |_| {});
        packet.truncate(OPTIONS);
        packet.extend(&bytes);
        for payload in [&bytes, &packet] {
            client.receive(seconds(100), payload);
            let deadline = client.deadline();
            client.tick(deadline);
        }
    }
}
