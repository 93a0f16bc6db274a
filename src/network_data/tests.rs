//! Tests of network data: every form it is written in, and hostile input.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const MAC: MacAddress = MacAddress([0x52, 0x54, 0, 0, 0, 1]);

fn card(id: &str, last: u8) -> Value {
    json!({ "id": id, "type": "phy", "ethernet_mac_address": format!("52:54:00:00:00:0{last}") })
}

fn parse(value: Value) -> Result<NetworkPlan, String> {
    match NetworkPlan::parse(value.to_string().as_bytes()) {
        Ok(plan) => Ok(plan.expect("a plan")),
        Err(error) => Err(error.to_string()),
    }
}

fn net(text: &str) -> IpNetwork {
    text.parse().expect("network")
}

fn route(to: &str, via: Option<&str>) -> StaticRoute {
    StaticRoute { to: net(to), via: via.map(|via| via.parse().expect("address")) }
}

#[test]
fn addresses_and_routes_in_every_way_they_are_written() {
    let rows = [
        (json!({ "ip_address": "10.0.0.5", "netmask": "255.255.255.0" }), "10.0.0.5/24", vec![]),
        (json!({ "ip_address": "10.0.0.5", "netmask": 24 }), "10.0.0.5/24", vec![]),
        (json!({ "ip_address": "10.0.0.5/16", "netmask": "255.255.255.0" }), "10.0.0.5/16", vec![]),
        (json!({ "ip_address": "10.0.0.5" }), "10.0.0.5/32", vec![]),
        (
            json!({ "ip_address": "10.0.0.5/24", "gateway": "10.0.0.1" }),
            "10.0.0.5/24",
            vec![route("0.0.0.0/0", Some("10.0.0.1"))],
        ),
        (
            json!({ "ip_address": "10.0.0.5/24", "routes": [
                { "network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.0.0.1" },
                { "network": "10.9.1.7", "netmask": "255.255.0.0", "gateway": "10.0.0.2" },
                { "network": "10.8.0.0/16" }] }),
            "10.0.0.5/24",
            vec![
                route("0.0.0.0/0", Some("10.0.0.1")),
                route("10.9.0.0/16", Some("10.0.0.2")),
                route("10.8.0.0/16", None),
            ],
        ),
        (
            json!({ "type": "ipv6", "ip_address": "fd00::5/64", "gateway": "fe80::1",
                "routes": [{ "network": "::", "netmask": "::", "gateway": "fe80::1" }] }),
            "fd00::5/64",
            vec![route("::/0", Some("fe80::1"))],
        ),
    ];
    for (mut network, address, routes) in rows {
        network["link"] = "eth0".into();
        if network["type"].is_null() {
            network["type"] = "ipv4".into();
        }
        let plan = parse(json!({ "links": [card("eth0", 1)], "networks": [network.clone()], "services":
            [{ "type": "dns", "address": "10.0.0.1" }] }))
        .unwrap_or_else(|error| panic!("{network}: {error}"));
        let link = &plan.links[0];
        assert_eq!((&link.kind, link.dhcp), (&LinkType::Card(MAC), false));
        assert_eq!((link.addresses.as_slice(), &link.routes), (&[net(address)][..], &routes), "{network}");
    }
}

#[test]
fn bonds_and_vlans_come_after_what_they_are_made_of() {
    let plan = parse(json!({
        "links": [
            { "id": "v", "type": "vlan", "vlan_link": "b", "vlan_id": 100, "vlan_mac_address": "52:54:00:00:00:01" },
            { "id": "b", "type": "bond", "bond_links": ["one", "two"], "bond_mode": "802.3ad", "bond_miimon": "50",
              "bond_xmit_hash_policy": "layer3+4", "mtu": 9000 },
            card("one", 1), card("two", 2),
        ],
        "networks": [
            { "id": "n", "type": "ipv4", "link": "v", "ip_address": "10.0.0.5/24" },
            { "id": "d", "type": "ipv4_dhcp", "link": "b" },
        ]
    }))
    .expect("plan");
    let ids: Vec<&str> = plan.links.iter().map(|link| link.id.as_str()).collect();
    assert_eq!(ids, ["one", "two", "b", "v"]);
    assert_eq!(plan.links[2].kind, LinkType::Bond { of: vec![0, 1], mode: 4, miimon: 50, hash: Some(1), mac: None });
    assert_eq!((plan.links[2].mtu, plan.links[2].dhcp), (Some(9000), true));
    assert_eq!(plan.links[3].kind, LinkType::Vlan { on: 2, id: 100, mac: Some(MAC) });
    assert_eq!(plan.addresses().collect::<Vec<_>>(), [net("10.0.0.5/24")]);
}

#[test]
fn yaml_will_do_and_nothing_is_no_plan() {
    let yaml = "links:\n- {id: a, type: phy, ethernet_mac_address: '52:54:00:00:00:01'}\nnetworks:\n- {id: n, type: ipv4_dhcp, link: a}\n";
    assert!(NetworkPlan::parse(yaml.as_bytes()).expect("read").is_some_and(|plan| plan.links[0].dhcp));
    for none in ["", " \n", "null"] {
        assert_eq!(NetworkPlan::parse(none.as_bytes()), Ok(None), "{none:?}");
    }
}

/// Whoever may read the host, and not the Secret, reads what is wrong with it.
#[test]
fn nothing_that_the_document_holds_is_told_of_one_that_cannot_be_used() {
    let card = |mac: &str| format!("links: [{{id: a, ethernet_mac_address: {mac}}}]");
    let network = |fields: &str| {
        let links = card("'52:54:00:00:00:01'");
        format!("{links}\nnetworks: [{{link: a, type: ipv4, {fields}}}]")
    };
    for (text, told) in [
        ("psk: SECRET\ntoken: [SECRET\nlinks: []\n".to_owned(), "see line"),
        ("- SECRET: {".to_owned(), "see line"),
        ("{\"psk\": \"SECRET\", SECRET".to_owned(), "line 1 column"),
        (card("SECRET"), "is not a MAC address"),
        (network("ip_address: SECRET"), "is not an IP address"),
        (network("ip_address: 10.0.0.1, netmask: SECRET"), "a mask is not"),
        (network("ip_address: 10.0.0.1/24, gateway: SECRET"), "gateway"),
        ("links: [{id: a, type: SECRET}]".to_owned(), "is not phy"),
        (
            "links: [{id: c, ethernet_mac_address: '52:54:00:00:00:01'}, {id: a, type: bond, bond_links: [c], bond_mode: SECRET}]".to_owned(),
            "bond_mode",
        ),
    ] {
        let error = NetworkPlan::parse(text.as_bytes()).expect_err(&text).to_string();
        assert!(error.contains(told) && !error.contains("SECRET"), "{text}: {error}");
    }
}

#[test]
fn what_cannot_be_used_is_named() {
    let with = |link: Value, network: Value| parse(json!({ "links": [card("a", 1), link], "networks": [network] }));
    let dhcp = || json!({ "id": "n", "type": "ipv4_dhcp", "link": "a" });
    let rows = [
        (parse(json!([1])), "must be a map"),
        (parse(json!({})), "no network gives any link an address"),
        (parse(json!({ "links": {} })), "links must be a list"),
        (parse(json!({ "links": vec![json!({}); 65] })), "65 entries"),
        (with(json!({ "type": "phy" }), dhcp()), "a link has no id"),
        (with(json!({ "id": "x" }), dhcp()), "link \"x\": ethernet_mac_address is missing"),
        (with(json!({ "id": "x", "ethernet_mac_address": "nope" }), dhcp()), "is not a MAC address"),
        (with(json!({ "id": "x", "type": "tunnel" }), dhcp()), "is not phy, bond or vlan"),
        (with(card("a", 2), dhcp()), "two links have the id \"a\""),
        (with(json!({ "id": "b", "type": "bond" }), dhcp()), "bond_links is missing"),
        (with(json!({ "id": "b", "type": "bond", "bond_links": ["z"] }), dhcp()), "links that are not there"),
        (with(json!({ "id": "b", "type": "bond", "bond_links": ["b"] }), dhcp()), "links that are not there"),
        (with(json!({ "id": "b", "type": "bond", "bond_links": ["a"], "bond_mode": "fast" }), dhcp()), "802.3ad"),
        (with(json!({ "id": "b", "type": "bond", "bond_links": ["a"], "bond_mode": 7 }), dhcp()), "802.3ad"),
        (with(json!({ "id": "b", "type": "bond", "bond_links": ["a"] }), dhcp()), "part of a bond"),
        (with(json!({ "id": "v", "type": "vlan", "vlan_link": "a", "vlan_id": 4095 }), dhcp()), "1 to 4094"),
        (with(json!({ "id": "v", "type": "vlan", "vlan_id": 5 }), dhcp()), "vlan_link is missing"),
        (with(card("b", 2), json!({ "id": "n", "type": "ipv4_dhcp", "link": "z" })), "there is no link \"z\""),
        (with(card("b", 2), json!({ "id": "n", "type": "ipv6_dhcp", "link": "a" })), "is not ipv4, ipv6 or ipv4_dhcp"),
        (with(card("b", 2), json!({ "id": "n", "type": "ipv4", "link": "a" })), "ip_address is missing"),
        (with(card("b", 2), json!({ "type": "ipv4", "link": "a", "ip_address": "fd00::1" })), "IP version 4"),
        (with(card("b", 2), json!({ "type": "ipv4", "link": "a", "ip_address": "10.0.0.1/33" })), "a mask is not one"),
        (
            with(
                card("b", 2),
                json!({ "type": "ipv4", "link": "a", "ip_address": "10.0.0.1", "netmask": "255.0.255.0" }),
            ),
            "a mask is not one",
        ),
        (
            with(
                card("b", 2),
                json!({ "type": "ipv4", "link": "a", "ip_address": "10.0.0.1/24", "gateway": "fe80::1" }),
            ),
            "gateway",
        ),
        (
            with(json!({ "id": "x", "ethernet_mac_address": "52:54:00:00:00:02", "mtu": 100 }), dhcp()),
            "mtu must be 576 to 9216",
        ),
    ];
    for (found, part) in rows {
        let error = found.expect_err(part);
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(NetworkPlan::parse(&vec![b' '; MAX_NETWORK_DATA + 1]), Err(PlanError::TooLarge(MAX_NETWORK_DATA + 1)));
    assert!(matches!(NetworkPlan::parse(b"{\"links\": ["), Err(PlanError::Document(_))));
    assert!(matches!(NetworkPlan::parse(&[0xff]), Err(PlanError::Document(_))));
}

proptest! {
    #[test]
    fn no_text_breaks_it(text in "\\PC{0,200}", kind in "(phy|bond|vlan|ipv4)", id in "[ab]", other in "[ab]") {
        let _any = NetworkPlan::parse(text.as_bytes());
        let document = json!({ "links": [{ "id": id, "type": kind, "bond_links": [other], "vlan_link": other, "vlan_id": 5,
            "ethernet_mac_address": "52:54:00:00:00:01" }], "networks": [{ "link": "a", "type": "ipv4", "ip_address": text }] });
        let _any = NetworkPlan::parse(document.to_string().as_bytes());
    }
}
