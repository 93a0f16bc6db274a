//! What a client is told to boot.

use super::*;

fn ipxe(architecture: u16) -> Vec<DhcpOption> {
    let mut options = firmware("PXEClient", architecture);
    options.push(DhcpOption::UserClass(b"iPXE".to_vec()));
    options
}

fn boot_file(back: &Back) -> Option<String> {
    match back.option(OptionCode::BootfileName) {
        Some(DhcpOption::BootfileName(file)) => Some(String::from_utf8_lossy(file).into_owned()),
        _ => None,
    }
}

#[test]
fn every_kind_of_client_is_told_what_to_boot() {
    let script = |arch: &str| format!("http://10.0.0.1/boot/ipxe?mac=02-00-00-00-00-01&arch={arch}");
    let ramdisk = Some(BootTarget::Ramdisk);
    let disk = Some(BootTarget::Disk);
    let rows = [
        (firmware("PXEClient", 0), ramdisk, Some("undionly.kpxe".to_owned()), Some("PXEClient")),
        (firmware("PXEClient", 7), ramdisk, Some("snponly.efi".to_owned()), Some("PXEClient")),
        (firmware("PXEClient", 9), ramdisk, Some("snponly.efi".to_owned()), Some("PXEClient")),
        (firmware("PXEClient", 11), ramdisk, None, None),
        (
            firmware("HTTPClient", 16),
            ramdisk,
            Some("http://10.0.0.1/boot/files/ipxe.efi".to_owned()),
            Some("HTTPClient"),
        ),
        (firmware("PXEClient", 7), disk, None, None),
        (firmware("PXEClient", 7), None, None, None),
        (firmware("HTTPClient", 16), disk, None, None),
        (ipxe(0), ramdisk, Some(script("bios")), None),
        (ipxe(7), ramdisk, Some(script("uefi")), None),
        (ipxe(7), disk, Some(script("uefi")), None),
        (vec![], ramdisk, None, None),
    ];
    for (options, target, file, class) in rows {
        let mut world = World::new(POOL).host(1, target);
        let offer = world.send(&message_of(mac(1), MessageType::Discover, options.clone()));
        let ack = world.select(1, at(100), options.clone());
        for back in [offer, ack] {
            assert_eq!(back.message().yiaddr(), at(100), "an address in any case");
            assert_eq!(boot_file(&back), file, "{options:?}");
            let class = class.map(|class| DhcpOption::ClassIdentifier(class.as_bytes().to_vec()));
            assert_eq!(back.option(OptionCode::ClassIdentifier), class.as_ref(), "{options:?}");
            let header = back.message().fname_str().map(|name| name.expect("text").trim_end_matches('\0').to_owned());
            assert_eq!(header, file);
            let server = if file.is_some() { SERVER } else { Ipv4Addr::UNSPECIFIED };
            assert_eq!(back.message().siaddr(), server);
            let pxe = class == Some(DhcpOption::ClassIdentifier(b"PXEClient".to_vec()));
            let vendor = pxe.then(|| DhcpOption::VendorExtensions(vec![6, 1, 8, 255]));
            assert_eq!(back.option(OptionCode::VendorExtensions), vendor.as_ref());
            let machine = back.option(OptionCode::ClientMachineIdentifier).is_some();
            assert_eq!(machine, file.is_some(), "the machine's UUID goes back with boot information");
        }
    }
}

#[test]
fn another_http_port_is_in_the_urls() {
    let mut world = World::new(POOL);
    world.network.service_ports.http_port = 8080;
    let back = world.send(&message_of(mac(7), MessageType::Discover, ipxe(0)));
    let url = "http://10.0.0.1:8080/boot/ipxe?mac=02-00-00-00-00-07&arch=bios";
    assert_eq!(boot_file(&back).as_deref(), Some(url));
}

#[test]
fn a_proxy_gives_boot_information_only_and_only_to_who_boots() {
    let mut world = World::new("mode='proxy'\n").host(1, Some(BootTarget::Ramdisk)).host(2, None);
    let back = world.send(&message_of(mac(1), MessageType::Discover, firmware("PXEClient", 0)));
    assert_eq!(back.kind(), Some(MessageType::Offer));
    assert_eq!(back.message().yiaddr(), Ipv4Addr::UNSPECIFIED);
    assert_eq!(back.to(), Some(Destination::Broadcast));
    assert_eq!(boot_file(&back).as_deref(), Some("undionly.kpxe"));
    for code in [OptionCode::AddressLeaseTime, OptionCode::SubnetMask, OptionCode::Router, OptionCode::Renewal] {
        assert!(back.option(code).is_none(), "{code:?}");
    }
    let quiet = [
        (mac(2), MessageType::Discover, firmware("PXEClient", 0)),
        (mac(3), MessageType::Discover, firmware("PXEClient", 0)),
        (mac(1), MessageType::Discover, vec![]),
        (mac(1), MessageType::Request, firmware("PXEClient", 0)),
        (mac(1), MessageType::Release, firmware("PXEClient", 0)),
    ];
    for (mac, kind, options) in quiet {
        let back = world.send(&message_of(mac, kind, options));
        assert!(back.message.is_none() && back.outcome.writes.is_empty(), "{:?}", back.outcome);
    }
    // iPXE takes an offer without an address only when it is PXE's.
    let back = world.send(&message_of(mac(2), MessageType::Discover, ipxe(0)));
    assert!(boot_file(&back).is_some_and(|url| url.starts_with("http://10.0.0.1/boot/ipxe?")));
    let class = DhcpOption::ClassIdentifier(b"PXEClient".to_vec());
    assert_eq!(back.option(OptionCode::ClassIdentifier), Some(&class));
    // The boot server's port: the client has an address by now.
    let mut message = message_of(mac(1), MessageType::Request, firmware("PXEClient", 7));
    message.set_ciaddr(at(60));
    let source = SocketAddrV4::new(at(60), 4011);
    let back = world.send_by(&message, Port::Proxy, source);
    assert_eq!(
        (back.kind(), back.to()),
        (Some(MessageType::Ack), Some(Destination::Client { mac: MacAddress(mac(1)), to: source }))
    );
    assert_eq!(boot_file(&back).as_deref(), Some("snponly.efi"));
}
