//! Tests of the configuration: what is refused, and how it is said.

use super::*;

#[test]
fn the_shipped_file_is_the_defaults_and_every_fault_has_its_line() {
    let shipped = Config::parse(include_str!("../../config/slipway.toml"), Path::new("config/slipway.toml"));
    assert!(shipped.is_ok(), "{shipped:?}");
    let bad = r#"
            data_dir = "relative"
            [api]
            admin_certificate = "9000h"
            listen = "0.0.0.0:80"
            names = ["slipway.example.org", "not a name", "10.0.0.1"]
            [host]
            provisioning_retries = -1
            [image]
            imports = 1000000000000
            [bmc]
            quirks = "quirks.toml"
            [boot]
            tftp = "0.0.0.0:67"
            [engine]
            kubeconfig = "here"
            lease = "1s"
            [[network]]
            name = "a"
            interface = "eth0"
            subnet = "10.0.0.0/24"
            pool = ["10.0.1.1-10.0.1.9", "10.0.0.20-10.0.0.30", "10.0.0.30-10.0.0.31"]
            router = "10.0.0.255"
            [[network]]
            name = "a"
            interface = "an-interface-too-long"
            subnet = "10.0.0.128/25"
            lease = "5s"
            unknown_lease = "59s"
            mode = "off"
            discovery = true
            [discovery]
            limit = 0
            [[discovery.rule]]
            accept = true
        "#;
    let text = Config::parse(bad, Path::new("x.toml")).expect_err("faults").to_string();
    for part in [
        "data_dir \"relative\" must be an absolute",
        "engine.kubeconfig \"here\"",
        "engine.lease",
        "host.provisioning_retries",
        "image.imports must be 1 to",
        "api.admin_certificate must be 10m to 8760h",
        "pool address 10.0.1.1",
        "the pools 10.0.0.20-10.0.0.30 and 10.0.0.30-10.0.0.31 overlap",
        "api.names: \"not a name\" is neither",
        "api.listen 0.0.0.0:80 and boot.listen 0.0.0.0:80 are the same TCP port",
        "boot.tftp and dhcp.port are the same UDP port, 67",
        "bmc.quirks \"quirks.toml\" must be an absolute path",
        "router 10.0.0.255",
        "used twice",
        "overlaps",
        "15 characters",
        "a lease must hold at least 60s",
        "unknown_lease must be at least 60s",
        "discovery needs a mode",
        "discovery.limit",
        "discovery.rule 1: accept = true needs credentials_name",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for text in [
        "unknown = 1",
        "[api]\nlisten = 5",
        "[[network]]\nname='a'\ninterface='e'\nsubnet='10.0.0.0/24'\npool=['10.0.0.9-10.0.0.1']",
        "[host]\nretry='0s'",
        "[host]\nboot_deadline='87601h'",
        "[api]\nevent_lifetime='2562047788015215h'",
        "[[discovery.rule]]\nname='{{ serial'",
        "[[discovery.rule]]\nname='{{ nothing }}'",
        "[[discovery.rule]]\nmatch.mac='52:5'",
        "[[discovery.rule]]\nmatch.memory='4'",
    ] {
        assert!(matches!(Config::parse(text, Path::new("x")), Err(ConfigError::Parse { .. })), "{text}");
    }
}

#[test]
fn two_listeners_have_one_port_only_at_different_addresses() {
    for (a, b, same) in [
        ("0.0.0.0:80", "0.0.0.0:80", true),
        ("0.0.0.0:80", "127.0.0.1:80", true),
        ("[::]:80", "10.0.0.1:80", true),
        ("[::]:80", "0.0.0.0:80", true),
        ("0.0.0.0:80", "[fd00::1]:80", false),
        ("10.0.0.1:80", "10.0.0.2:80", false),
        ("10.0.0.1:80", "10.0.0.1:81", false),
        ("0.0.0.0:0", "0.0.0.0:0", false),
    ] {
        let [a, b]: [SocketAddr; 2] = [a, b].map(|text| text.parse().expect("an address"));
        assert_eq!((clash(a, b), clash(b, a)), (same, same), "{a} {b}");
    }
}
