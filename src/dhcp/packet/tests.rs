//! Packets: against dhcproto where they are well formed, and without a panic where they are not.

use std::net::Ipv4Addr;

use dhcproto::v4::{
    Architecture, DhcpOption, Flags, HType, Message, MessageType, Opcode, OptionCode, UnknownOption, relay,
};
use dhcproto::{Encodable, Encoder};
use proptest::prelude::*;

use crate::api::MacAddress;
use crate::boot::{ClientKind, Firmware};

use crate::dhcp::client::{self, LeaseClient};
use crate::dhcp::packet::{DhcpRequest, Malformed, code};

/// A client's message; MAC 02:00:00:00:00:01.
pub(in crate::dhcp) fn message(kind: MessageType, options: Vec<DhcpOption>) -> Message {
    message_of([2, 0, 0, 0, 0, 1], kind, options)
}

/// A client's message.
pub(in crate::dhcp) fn message_of(mac: [u8; 6], kind: MessageType, options: Vec<DhcpOption>) -> Message {
    let zero = Ipv4Addr::UNSPECIFIED;
    let mut message = Message::new_with_id(0x1234_5678, zero, zero, zero, zero, &mac);
    message.set_opcode(Opcode::BootRequest);
    message.opts_mut().insert(DhcpOption::MessageType(kind));
    for option in options {
        message.opts_mut().insert(option);
    }
    message
}

/// A message as bytes.
pub(in crate::dhcp) fn bytes(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut Encoder::new(&mut bytes)).expect("encodes");
    bytes
}

fn raw(code: u8, data: &[u8]) -> DhcpOption {
    DhcpOption::Unknown(UnknownOption::new(OptionCode::Unknown(code), data.to_vec()))
}

/// A message with hand-made options behind the message type.
fn with_tail(tail: &[u8]) -> Vec<u8> {
    let mut packet = bytes(&message(MessageType::Discover, Vec::new()));
    assert_eq!(packet.pop(), Some(255));
    packet.extend_from_slice(tail);
    packet
}

/// A PXE client's DISCOVER with about every option that matters here.
fn rich() -> Vec<u8> {
    let mut info = relay::RelayAgentInformation::default();
    info.insert(relay::RelayInfo::AgentCircuitId(b"port 7".to_vec()));
    info.insert(relay::RelayInfo::LinkSelection(Ipv4Addr::new(10, 1, 2, 0)));
    let mut message = message(
        MessageType::Discover,
        vec![
            DhcpOption::Hostname("node-1".into()),
            DhcpOption::RequestedIpAddress(Ipv4Addr::new(10, 1, 2, 3)),
            DhcpOption::ParameterRequestList(vec![OptionCode::SubnetMask, OptionCode::Router]),
            DhcpOption::MaxMessageSize(1260),
            DhcpOption::ClassIdentifier(b"PXEClient:Arch:00007:UNDI:003016".to_vec()),
            DhcpOption::ClientIdentifier(vec![0, 1, 2, 3, 4]),
            DhcpOption::UserClass(b"iPXE".to_vec()),
            DhcpOption::ClientSystemArchitecture(Architecture::X64),
            DhcpOption::ClientMachineIdentifier([&[0][..], &[7; 16]].concat()),
            DhcpOption::RelayAgentInformation(info),
            raw(175, &[177, 5, 1, 2, 3]),
        ],
    );
    message.set_giaddr(Ipv4Addr::new(10, 9, 9, 9));
    bytes(&message)
}

/// Everything that reads a request.
fn read_all(packet: &[u8]) -> Option<()> {
    let request = DhcpRequest::parse(packet).ok()?;
    for code in 0..=255 {
        request.get(code);
        request.address(code);
    }
    client::boot_client(&request);
    client::machine_uuid(&request);
    LeaseClient::of(&request, false).key();
    request.hostname();
    request.subnet_hint();
    request.server_id_override();
    assert!((548..=1472).contains(&request.reply_limit()));
    Some(())
}

#[test]
fn a_rich_packet_is_read_in_full() {
    let packet = rich();
    let request = DhcpRequest::parse(&packet).expect("reads");
    assert_eq!(request.kind, MessageType::Discover);
    assert_eq!((request.xid, request.mac), (0x1234_5678, MacAddress([2, 0, 0, 0, 0, 1])));
    assert_eq!(request.hostname().as_deref(), Some("node-1"));
    assert_eq!(request.address(code::REQUESTED_ADDRESS), Some(Ipv4Addr::new(10, 1, 2, 3)));
    assert_eq!(request.get(code::PARAMETERS).as_deref(), Some(&[1, 3][..]));
    assert_eq!(request.reply_limit(), 1260 - 28);
    assert_eq!(request.subnet_hint(), Some(Ipv4Addr::new(10, 1, 2, 0)));
    assert_eq!(client::machine_uuid(&request), Some([7; 16]));
    let boot = client::boot_client(&request);
    assert_eq!((boot.kind, boot.firmware), (ClientKind::Ipxe, Firmware::UefiX64));
}

#[test]
fn what_cannot_be_answered_is_named() {
    let good = rich();
    let changed = |at: usize, to: u8| {
        let mut packet = good.clone();
        packet[at] = to;
        DhcpRequest::parse(&packet).map(|_| ()).expect_err("malformed")
    };
    assert_eq!(changed(0, 2), Malformed::NotRequest(2));
    // hlen over 16 makes dhcproto's accessor panic.
    assert_eq!(changed(2, 200), Malformed::NotEthernet { htype: 1, hlen: 200 });
    assert_eq!(changed(2, 5), Malformed::NotEthernet { htype: 1, hlen: 5 });
    assert_eq!(changed(1, 32), Malformed::NotEthernet { htype: 32, hlen: 6 });
    assert_eq!(changed(28, 3), Malformed::NotUnicast(MacAddress([3, 0, 0, 0, 0, 1])));
    assert_eq!(changed(236, 0), Malformed::Bootp);
    assert_eq!(DhcpRequest::parse(&good[..235]).map(|_| ()), Err(Malformed::TooShort(235)));
    let without_type = Message::default();
    let mut packet = bytes(&without_type);
    packet[..3].copy_from_slice(&[1, 1, 6]);
    packet[28] = 2;
    assert_eq!(DhcpRequest::parse(&packet).map(|_| ()), Err(Malformed::Bootp));
}

#[test]
fn a_packet_cut_at_every_byte_is_read_up_to_the_cut_and_never_panics() {
    let packet = rich();
    let mut readable = 0;
    for cut in 0..packet.len() {
        readable += usize::from(read_all(&packet[..cut]).is_some());
    }
    // From the end of option 53 on, which is the last option that must be there.
    assert!(readable > 20, "{readable}");
}

#[test]
fn one_odd_option_does_not_hide_the_others() {
    // A host name that is no UTF-8, a mask of three bytes, option 81 with an ASCII name: legal or not, they end
    // dhcproto's reading.
    for odd in [&[12, 2, 0xff, 0xfe][..], &[1, 3, 255, 255, 255], &[81, 6, 0, 0, 0, b'a', b'.', b'b'], &[19, 1, 2]] {
        let packet = with_tail(&[odd, &[93, 2, 0, 7, 97, 17, 0], &[9; 16], &[255]].concat());
        let request = DhcpRequest::parse(&packet).expect("reads");
        assert_eq!(client::boot_client(&request).firmware, Firmware::UefiX64, "{odd:?}");
        assert_eq!(client::machine_uuid(&request), Some([9; 16]), "{odd:?}");
    }
}

#[test]
fn split_and_overloaded_options_are_joined() {
    // RFC 3396: the instances need not follow each other; RFC 2131 section 4.1: file before sname.
    let mut packet = with_tail(&[67, 2, b'a', b'b', 52, 1, 3, 67, 1, b'c', 255]);
    packet[108..114].copy_from_slice(&[67, 1, b'd', 12, 1, b'h']);
    packet[114] = 255;
    packet[44..48].copy_from_slice(&[67, 1, b'e', 255]);
    let request = DhcpRequest::parse(&packet).expect("reads");
    assert_eq!(request.get(67).as_deref(), Some(&b"abcde"[..]));
    assert_eq!(request.hostname().as_deref(), Some("h"));
    // Without option 52 the fields hold names.
    packet[249] = 0;
    let request = DhcpRequest::parse(&packet).expect("reads");
    assert_eq!(request.get(67).as_deref(), Some(&b"abc"[..]));
    // A repeated option of fixed length means its first instance; a split one is joined.
    let packet = with_tail(&[50, 4, 10, 0, 0, 1, 50, 4, 10, 0, 0, 2, 54, 2, 10, 0, 54, 2, 0, 9, 255]);
    let request = DhcpRequest::parse(&packet).expect("reads");
    assert_eq!(request.address(50), Some(Ipv4Addr::new(10, 0, 0, 1)));
    assert_eq!(request.address(54), Some(Ipv4Addr::new(10, 0, 0, 9)));
}

#[test]
fn clients_are_told_apart() {
    let rows: [(&[u8], ClientKind, Firmware); 9] = [
        (&[77, 4, b'i', b'P', b'X', b'E'], ClientKind::Ipxe, Firmware::Bios),
        (&[77, 5, 4, b'i', b'P', b'X', b'E'], ClientKind::Ipxe, Firmware::Bios),
        (&[77, 7, 1, b'x', 4, b'i', b'P', b'X', b'E'], ClientKind::Ipxe, Firmware::Bios),
        (&[77, 4, 9, b'i', b'P', b'X'], ClientKind::System, Firmware::Bios),
        (&[175, 3, 235, 1, 1, 93, 2, 0, 9], ClientKind::Ipxe, Firmware::UefiX64),
        (b"\x3c\x20PXEClient:Arch:00007:UNDI:003016", ClientKind::Pxe, Firmware::UefiX64),
        (b"\x3c\x20PXEClient:Arch:00000:UNDI:002001\x5d\x02\x00\x0b", ClientKind::Pxe, Firmware::UefiArm64),
        (b"\x3c\x21HTTPClient:Arch:00016:UNDI:003001", ClientKind::HttpBoot, Firmware::UefiX64Http),
        (b"\x3c\x08MSFT 5.0", ClientKind::System, Firmware::Bios),
    ];
    for (tail, kind, firmware) in rows {
        let packet = with_tail(&[tail, &[255]].concat());
        let boot = client::boot_client(&DhcpRequest::parse(&packet).expect("reads"));
        assert_eq!((boot.kind, boot.firmware), (kind, firmware), "{tail:?}");
    }
}

#[test]
fn uuids_are_compared_across_byte_orders() {
    let one: [u8; 16] = std::array::from_fn(|index| u8::try_from(index).expect("small"));
    let swapped = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    assert!(client::same_machine(one, one) && client::same_machine(one, swapped));
    assert!(!client::same_machine(one, [9; 16]));
}

/// Options that dhcproto writes and reads without loss.
fn option() -> impl Strategy<Value = DhcpOption> {
    let address = || any::<u32>().prop_map(Ipv4Addr::from_bits);
    let data = |longest: usize| proptest::collection::vec(any::<u8>(), 1..longest);
    prop_oneof![
        address().prop_map(DhcpOption::SubnetMask),
        address().prop_map(DhcpOption::RequestedIpAddress),
        address().prop_map(DhcpOption::ServerIdentifier),
        any::<u32>().prop_map(DhcpOption::AddressLeaseTime),
        any::<u16>().prop_map(DhcpOption::MaxMessageSize),
        "[a-z][a-z0-9.-]{0,60}".prop_map(DhcpOption::Hostname),
        data(600).prop_map(DhcpOption::ClassIdentifier),
        data(600).prop_map(DhcpOption::ClientIdentifier),
        data(600).prop_map(DhcpOption::UserClass),
        data(600).prop_map(DhcpOption::VendorExtensions),
        data(40).prop_map(DhcpOption::ClientMachineIdentifier),
        any::<u16>().prop_map(|kind| DhcpOption::ClientSystemArchitecture(Architecture::from(kind))),
        data(200).prop_map(|data| raw(175, &data)),
        data(200).prop_map(|data| raw(210, &data)),
    ]
}

/// The data of an option as dhcproto writes it: without codes and lengths.
fn data_of(option: &DhcpOption) -> Vec<u8> {
    let mut bytes = Vec::new();
    option.encode(&mut Encoder::new(&mut bytes)).expect("encodes");
    let (mut rest, mut data) = (bytes.as_slice(), Vec::new());
    while let [_, length, tail @ ..] = rest {
        data.extend_from_slice(&tail[..usize::from(*length)]);
        rest = &tail[usize::from(*length)..];
    }
    data
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn well_formed_packets_are_read_as_dhcproto_wrote_them(
        xid in any::<u32>(), ciaddr in any::<u32>(), giaddr in any::<u32>(), broadcast in any::<bool>(),
        mac in any::<[u8; 5]>(), options in proptest::collection::vec(option(), 0..12),
    ) {
        let mac = [2, mac[0], mac[1], mac[2], mac[3], mac[4]];
        let mut message = message_of(mac, MessageType::Request, options);
        message.set_xid(xid).set_ciaddr(Ipv4Addr::from_bits(ciaddr)).set_giaddr(Ipv4Addr::from_bits(giaddr));
        message.set_htype(HType::Eth);
        if broadcast {
            message.set_flags(Flags::default().set_broadcast());
        }
        let packet = bytes(&message);
        let request = DhcpRequest::parse(&packet).expect("well formed");
        prop_assert_eq!(request.kind, MessageType::Request);
        prop_assert_eq!(request.xid, message.xid());
        prop_assert_eq!(request.ciaddr, message.ciaddr());
        prop_assert_eq!(request.giaddr, message.giaddr());
        prop_assert_eq!(request.wants_broadcast(), message.flags().broadcast());
        prop_assert_eq!(request.mac.0, mac);
        for (code, option) in message.opts().iter() {
            let read = request.get(u8::from(*code)).map(std::borrow::Cow::into_owned);
            prop_assert_eq!(read, Some(data_of(option)), "{:?}", code);
        }
        for code in 0..=254 {
            prop_assert_eq!(request.has(code), message.opts().contains(OptionCode::from(code)), "{}", code);
        }
    }

    #[test]
    fn mutated_packets_never_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in any::<prop::sample::Index>(), keep in any::<bool>(),
    ) {
        let mut packet = rich();
        for (index, value) in changes {
            let at = index.index(packet.len());
            packet[at] = value;
        }
        if !keep {
            packet.truncate(cut.index(packet.len()));
        }
        read_all(&packet);
    }

    #[test]
    fn random_bytes_behind_a_good_header_never_panic(tail in proptest::collection::vec(any::<u8>(), 0..600)) {
        let packet = with_tail(&tail);
        prop_assert!(read_all(&packet).is_some(), "the message type came before");
    }
}
