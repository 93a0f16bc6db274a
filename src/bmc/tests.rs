//! Address table, registry, and the handshake against hostile input.

use std::sync::Arc;

use proptest::prelude::*;

use super::address::{AddressError as E, BmcEndpoint, BmcHost, Privilege};
use super::ipmi::packet::{self, Frame, le32, payload};
use super::ipmi::rakp::{Handshake, RakpError, RakpLogin, RakpProgress};
use super::ipmi::suite::CipherSuite;
use super::*;

#[test]
fn addresses_are_read_as_metal3_reads_them() {
    for (text, driver, peer, rest) in [
        ("192.168.122.1", Driver::Ipmi, "192.168.122.1:623", "4"),
        ("192.168.122.1:6233", Driver::Ipmi, "192.168.122.1:6233", "4"),
        ("bmc-1.rack.example", Driver::Ipmi, "bmc-1.rack.example:623", "4"),
        ("BMC-1", Driver::Ipmi, "bmc-1:623", "4"),
        ("[fe80::1]", Driver::Ipmi, "[fe80::1]:623", "4"),
        ("[fe80::1]:6230", Driver::Ipmi, "[fe80::1]:6230", "4"),
        ("ipmi:192.168.122.1:6233", Driver::Ipmi, "192.168.122.1:6233", "4"),
        ("ipmi:192.168.122.1", Driver::Ipmi, "192.168.122.1:623", "4"),
        ("ipmi:[::1]:99", Driver::Ipmi, "[::1]:99", "4"),
        ("ipmi:623", Driver::Ipmi, "ipmi:623", "4"),
        ("ipmi://192.168.122.1:6233", Driver::Ipmi, "192.168.122.1:6233", "4"),
        ("IPMI://h/", Driver::Ipmi, "h:623", "4"),
        ("ipmi://h?privilegelevel=OPERATOR", Driver::Ipmi, "h:623", "3"),
        ("ipmi://h:1?x=y&privilegelevel=user", Driver::Ipmi, "h:1", "2"),
        ("h?privilegelevel=ADMINISTRATOR", Driver::Ipmi, "h:623", "4"),
        ("libvirt://192.168.122.1:6233/", Driver::Libvirt, "192.168.122.1:6233", "4"),
        ("redfish://h/redfish/v1/Systems/1", Driver::Redfish, "h:443", "https://h /redfish/v1/Systems/1"),
        ("redfish://h/redfish/v1/Systems/1/", Driver::Redfish, "h:443", "https://h /redfish/v1/Systems/1"),
        ("redfish://h", Driver::Redfish, "h:443", "https://h -"),
        ("redfish://h/", Driver::Redfish, "h:443", "https://h -"),
        ("redfish://h/redfish/v1", Driver::Redfish, "h:443", "https://h -"),
        ("redfish://h/redfish/v1/", Driver::Redfish, "h:443", "https://h -"),
        (
            "redfish+http://h:8000/redfish/v1/Systems/a-b",
            Driver::Redfish,
            "h:8000",
            "http://h:8000 /redfish/v1/Systems/a-b",
        ),
        ("redfish+https://[2001:db8::7]:8443/", Driver::Redfish, "[2001:db8::7]:8443", "https://[2001:db8::7]:8443 -"),
        ("redfish+http://h", Driver::Redfish, "h:80", "http://h -"),
        // One place is one text.
        ("[::ffff:10.9.1.1]", Driver::Ipmi, "10.9.1.1:623", "4"),
        ("redfish://[::ffff:a09:101]", Driver::Redfish, "10.9.1.1:443", "https://10.9.1.1 -"),
        ("redfish://h/redfish/v1/Systems/%31%2d%7E", Driver::Redfish, "h:443", "https://h /redfish/v1/Systems/1-~"),
        ("redfish://h/redfish/v1/Systems/a%20b%3", Driver::Redfish, "h:443", "https://h /redfish/v1/Systems/a%20b%3"),
        ("ilo5-redfish://h/redfish/v1/Systems/1", Driver::Ilo5Redfish, "h:443", "https://h /redfish/v1/Systems/1"),
        (
            "idrac-redfish://h/redfish/v1/Systems/System.Embedded.1",
            Driver::IdracRedfish,
            "h:443",
            "https://h /redfish/v1/Systems/System.Embedded.1",
        ),
        ("redfish-virtualmedia+http://h:8000/x", Driver::RedfishVirtualMedia, "h:8000", "http://h:8000 /x"),
        ("ilo5-virtualmedia://h", Driver::Ilo5VirtualMedia, "h:443", "https://h -"),
        ("idrac-virtualmedia+https://h", Driver::IdracVirtualMedia, "h:443", "https://h -"),
        ("redfish-uefihttp://h", Driver::RedfishUefiHttp, "h:443", "https://h -"),
    ] {
        let found = BmcAddress::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let what = match &found.endpoint {
            BmcEndpoint::Ipmi { privilege } => (*privilege as u8).to_string(),
            BmcEndpoint::Redfish { system, .. } => {
                format!("{} {}", found.base_url().unwrap(), system.as_deref().unwrap_or("-"))
            }
        };
        assert_eq!((found.driver, found.peer().as_str(), what.as_str()), (driver, peer, rest), "{text}");
    }
}

#[test]
fn bad_addresses_say_what_to_write() {
    let host = |h: &str| E::Host { host: h.into() };
    for (text, want) in [
        ("", E::Empty),
        (" 10.0.0.1", E::Blank),
        ("10.0.0.1\n", E::Blank),
        ("foo://10.0.0.1", E::UnknownScheme { scheme: "foo".into() }),
        ("ipmi+https://h", E::Transport { scheme: "ipmi".into(), transport: "https".into() }),
        ("redfish+ftp://h", E::Transport { scheme: "redfish".into(), transport: "ftp".into() }),
        ("redfish://root:secret@h/", E::UserInfo),
        ("root:secret@h", E::UserInfo),
        ("ipmi://", E::NoHost),
        ("redfish:///redfish/v1/Systems/1", E::NoHost),
        (":623", E::NoHost),
        ("fe80::1", E::Brackets { host: "fe80::1".into() }),
        ("redfish://fe80::1/redfish", E::Brackets { host: "fe80::1".into() }),
        ("[fe80::1", host("[fe80::1")),
        ("[fe80::1]x", host("[fe80::1]x")),
        ("[::zz]", host("[::zz]")),
        ("0x0a090101", host("0x0a090101")),
        ("redfish://10.0x90101", host("10.0x90101")),
        ("ipmi://168362241", host("168362241")),
        ("bmc.1", host("bmc.1")),
        ("redfish://h/%2e%2e/x", E::Path("the path of a Redfish address is not that of a system")),
        ("redfish://under_score/", host("under_score")),
        ("-h", host("-h")),
        ("h..x", host("h..x")),
        ("10.0.0.256", host("10.0.0.256")),
        ("h:0", E::Port { port: "0".into() }),
        ("h:65536", E::Port { port: "65536".into() }),
        ("h:+1", E::Port { port: "+1".into() }),
        ("h:", E::Port { port: "".into() }),
        ("ipmi://h/path", E::Path("an IPMI address has no path")),
        ("redfish://h/redfish/../x", E::Path("the path of a Redfish address is not that of a system")),
        ("redfish://h/a\"b", E::Path("the path of a Redfish address holds characters that a URL cannot have")),
        ("ipmi://h?privilegelevel=root", E::Privilege("ROOT".into())),
    ] {
        assert_eq!(BmcAddress::parse(text), Err(want), "{text:?}");
    }
    assert_eq!(BmcAddress::parse(&"a".repeat(2000)), Err(E::TooLong));
    let secret = BmcAddress::parse("redfish://root:secret@h/").unwrap_err().to_string();
    assert!(!secret.contains("secret") && secret.contains("credentialsName"), "{secret}");
    for (scheme, instead) in [
        ("ilo4", "ipmi://"),
        ("ilo4-virtualmedia", "ipmi://"),
        ("ilo5", "ilo5-redfish://"),
        ("irmc", "redfish://"),
        ("ibmc", "redfish://"),
        ("idrac", "idrac-redfish://"),
        ("idrac+https", "idrac-redfish://"),
    ] {
        let error = BmcAddress::parse(&format!("{scheme}://h")).unwrap_err();
        assert!(matches!(error, E::RemovedScheme { .. }) && error.to_string().contains(instead), "{scheme}: {error}");
    }
    let unknown = BmcAddress::parse("foo://h").unwrap_err().to_string();
    assert!(unknown.contains("idrac-virtualmedia, ilo5-redfish") && unknown.contains("redfish-uefihttp"), "{unknown}");
}

#[test]
fn capabilities_are_those_of_the_published_table() {
    use BootInterface::*;
    for (scheme, mac, boot, redfish) in [
        ("ipmi", false, Pxe, false),
        ("libvirt", true, Pxe, false),
        ("redfish", false, Pxe, true),
        ("ilo5-redfish", false, Pxe, true),
        ("idrac-redfish", false, Pxe, true),
        ("redfish-virtualmedia", false, VirtualMedia, true),
        ("ilo5-virtualmedia", false, VirtualMedia, true),
        ("idrac-virtualmedia", false, VirtualMedia, true),
        ("redfish-uefihttp", false, UefiHttp, true),
    ] {
        let address = BmcAddress::parse(&format!("{scheme}://h")).unwrap();
        assert_eq!(address.driver.scheme(), scheme);
        let want = Capabilities { needs_mac: mac, boot, fast_inspection: redfish };
        assert_eq!(address.capabilities(), want, "{scheme}");
    }
}

fn credentials(password: &str) -> Credentials {
    Credentials { username: "admin".into(), password: password.into() }
}

#[test]
fn the_registry_gives_the_same_connection_and_stays_bounded() {
    let registry = BmcRegistry::new(BmcSettings { max_connections: 3, ..BmcSettings::default() });
    let address = |n: u8| BmcAddress::parse(&format!("192.0.2.{n}")).unwrap();
    let first = registry.connect(&address(1), &credentials("a"), true);
    assert!(Arc::ptr_eq(&first, &registry.connect(&address(1), &credentials("a"), true)));
    assert!(!Arc::ptr_eq(&first, &registry.connect(&address(1), &credentials("a"), false)));
    // A changed password replaces the old connections.
    let second = registry.connect(&address(1), &credentials("b"), true);
    assert!(!Arc::ptr_eq(&first, &second));
    assert_eq!(registry.len(), 1);
    for n in 2..50 {
        registry.connect(&address(n), &credentials("a"), true);
        assert!(registry.len() <= 3);
    }
    // The one in use is still the same.
    assert!(Arc::ptr_eq(&second, &registry.connect(&address(1), &credentials("b"), true)));
    // Those in use stay, whatever their number.
    let held: Vec<_> = (100..120).map(|n| registry.connect(&address(n), &credentials("a"), true)).collect();
    assert!(held.len() < registry.len());
}

#[test]
fn no_secret_is_printed() {
    let settings = BmcSettings { ipmi_kg: Some("hidden-key".to_string().into()), ..BmcSettings::default() };
    let text = format!("{:?} {settings:?} {:?}", credentials("hidden-word"), login("hidden-word"));
    assert!(!text.contains("hidden"), "{text}");
}

fn login(password: &str) -> RakpLogin {
    RakpLogin { username: "admin".into(), password: password.into(), kg: None, privilege: Privilege::Administrator }
}

fn body(packet: &[u8]) -> Vec<u8> {
    match packet::decode(packet).unwrap() {
        Frame::V20(frame) => frame.payload.to_vec(),
        Frame::V15 { .. } => panic!("1.5"),
    }
}

/// A handshake that waits for the given message, and a good answer to it.
fn at_stage(stage: u8, suite: CipherSuite) -> (Handshake, Vec<u8>) {
    let mut handshake = Handshake::new(login("right"), suite, 0x01020304, [7; 16]).unwrap();
    let (console, bmc, guid, challenge) = (0x01020304u32.to_le_bytes(), [9, 9, 9, 9], [5; 16], [6; 16]);
    let tag = body(&handshake.send())[0];
    let mut open = vec![tag, 0, 4, 0];
    open.extend(console);
    open.extend(bmc);
    for (kind, algorithm) in (0u8..).zip(suite.algorithms()) {
        open.extend([kind, 0, 0, 8, algorithm, 0, 0, 0]);
    }
    let answer = packet::encode_v20(payload::OPEN_RESPONSE, 0, 0, 0, &open);
    if stage == 0 {
        return (handshake, answer);
    }
    assert!(matches!(handshake.on_packet(&answer), Ok(RakpProgress::Next)));
    let rakp1 = body(&handshake.send());
    let (role, name) = (rakp1[24], &rakp1[27..]);
    let mut two = vec![rakp1[0], 0, 0, 0];
    two.extend(console);
    two.extend(challenge);
    two.extend(guid);
    two.extend(suite.hmac(b"right", &[&console, &bmc, &[7; 16], &challenge, &guid, &[role], name]).iter());
    let answer = packet::encode_v20(payload::RAKP2, 0, 0, 0, &two);
    if stage == 1 {
        return (handshake, answer);
    }
    assert!(matches!(handshake.on_packet(&answer), Ok(RakpProgress::Next)));
    let rakp3 = body(&handshake.send());
    let proof = suite.hmac(b"right", &[&challenge, &console, &[role], name]);
    assert_eq!(&rakp3[8..], &proof[..]);
    let sik = suite.hmac(b"right", &[&[7; 16], &challenge, &[role], name]);
    let mut four = vec![rakp3[0], 0, 0, 0];
    four.extend(console);
    four.extend(&suite.hmac(&sik, &[&[7; 16], &bmc, &guid])[..suite.integrity_len()]);
    (handshake, packet::encode_v20(payload::RAKP4, 0, 0, 0, &four))
}

#[test]
fn a_good_handshake_opens_and_answers_cut_anywhere_do_nothing() {
    for suite in CipherSuite::ALL {
        for stage in 0..3 {
            let (mut handshake, answer) = at_stage(stage, suite);
            for cut in 0..answer.len() {
                assert!(handshake.on_packet(&answer[..cut]).is_err(), "stage {stage} cut at {cut}");
            }
            let progress = handshake.on_packet(&answer).unwrap();
            assert_eq!(matches!(progress, RakpProgress::Open(_)), stage == 2);
            // The same packet again is no answer to what comes next.
            handshake.send();
            assert!(handshake.on_packet(&answer).is_err());
        }
    }
}

#[test]
fn status_codes_say_what_is_wrong() {
    let set = |packet: &[u8], status: u8| {
        let mut bad = packet.to_vec();
        bad[17] = status;
        bad
    };
    for (stage, status, want) in [
        (0, 0x11, "cipher suite 17 is refused"),
        (0, 0x04, "cipher suite 17 is refused"),
        (0, 0x01, "no free session"),
        (0, 0x09, "may not open a session as Administrator"),
        (1, 0x0d, "user \"admin\" is not known"),
        (1, 0x0a, "privilegelevel"),
        (2, 0x0f, "wrong password"),
        (2, 0x02, "RAKP message 3 was refused: status 02h, invalid session id"),
        (1, 0xee, "reserved status"),
    ] {
        let (mut handshake, answer) = at_stage(stage, CipherSuite::Sha256);
        let Ok(RakpProgress::Failed(error, _)) = handshake.on_packet(&set(&answer, status)) else { panic!("{status}") };
        assert!(error.to_string().contains(want), "{stage} {status:02x}: {error}");
    }
    // A code made with another password.
    let (mut handshake, mut answer) = at_stage(1, CipherSuite::Sha1);
    let last = answer.len() - 1;
    answer[last] ^= 1;
    let Ok(RakpProgress::Failed(RakpError::WrongPassword(_), Some(goodbye))) = handshake.on_packet(&answer) else {
        panic!()
    };
    assert_eq!((body(&goodbye)[1], le32(&body(&goodbye)[4..])), (0x0f, 0x09090909));
    // The last code wrong: not the password.
    let (mut handshake, mut answer) = at_stage(2, CipherSuite::Sha1);
    let last = answer.len() - 1;
    answer[last] ^= 1;
    assert!(matches!(handshake.on_packet(&answer), Ok(RakpProgress::Failed(RakpError::BmcKey, None))));
    let long = Handshake::new(login(&"x".repeat(21)), CipherSuite::Sha1, 1, [0; 16]);
    assert!(matches!(long, Err(RakpError::TooLong(_))));
}

proptest! {
    #[test]
    fn no_packet_breaks_a_handshake(
        stage in 0u8..3, sha1: bool, at: usize, flip in 1u8.., cut: usize, noise in proptest::collection::vec(any::<u8>(), 0..120)
    ) {
        let suite = if sha1 { CipherSuite::Sha1 } else { CipherSuite::Sha256 };
        let (mut handshake, answer) = at_stage(stage, suite);
        prop_assert!(handshake.on_packet(&noise).is_err());
        let mut bad = answer.clone();
        let n = bad.len();
        bad[at % n] ^= flip;
        bad.truncate(cut % (n + 1));
        // A session never opens from a changed packet, header bytes that mean nothing apart.
        if let Ok(RakpProgress::Open(_)) = handshake.on_packet(&bad) {
            prop_assert!(at % n < 17 || (18..20).contains(&(at % n)), "byte {}", at % n);
        }
    }

    #[test]
    fn no_address_panics(text in "\\PC{0,60}", head in "(ipmi|redfish|libvirt|idrac)?(\\+http)?(:|://)?\\[?") {
        let _ = BmcAddress::parse(&text).is_ok();
        if let Ok(found) = BmcAddress::parse(&format!("{head}{text}")) {
            prop_assert!(found.port != 0);
            if let BmcHost::Name(name) = &found.host {
                prop_assert!(!name.is_empty() && name.len() <= 253);
            }
        }
    }
}
