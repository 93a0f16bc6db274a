//! What `systemd/slipway.service` bounds, against what `docs/security.md` says of it and what the program needs.

use slipway::descriptors::{DescriptorShares, share};

const UNIT: &str = include_str!("../../systemd/slipway.service");
const PAGE: &str = include_str!("../../docs/security.md");

/// The values of a key of the section [Service], in their order.
fn values(key: &str) -> Vec<&'static str> {
    let service = UNIT.split("\n[").find_map(|section| section.strip_prefix("Service]\n")).expect("[Service]");
    service.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

/// The one value of a key.
fn value(key: &str) -> &'static str {
    let values = values(key);
    assert_eq!(values.len(), 1, "{key}= is there once: {values:?}");
    values[0]
}

/// A number with systemd's units of 1024 (systemd.resource-control(5)), or those of the page.
fn number(text: &str) -> u64 {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number: u64 = digits.parse().unwrap_or_else(|_| panic!("not a number: {text:?}"));
    let shift = match text[digits.len()..].trim() {
        "" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        unit => panic!("not a unit: {unit:?}"),
    };
    number << shift
}

/// The bound in the page's table of what a flood can take.
fn bound(what: &str) -> &'static str {
    let mut rows = PAGE.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    rows.find(|(row, _)| *row == what).unwrap_or_else(|| panic!("no row {what:?}")).1
}

#[test]
fn the_units_bounds_are_those_of_the_page() {
    let told = bound("memory, tasks, open files and core dumps of the service, by its unit");
    let told: Vec<u64> = told.split(", ").map(number).collect();
    let keys = ["MemoryMax", "TasksMax", "LimitNOFILE", "LimitCORE"];
    assert_eq!(told.len(), keys.len(), "{told:?}");
    for (key, told) in keys.into_iter().zip(told) {
        assert_eq!(number(value(key)), told, "{key}");
    }
}

#[test]
fn the_units_files_are_enough_for_the_connections_that_the_page_promises() {
    let first = |row: &str| number(bound(row).split([',', ';']).next().unwrap());
    let (api, boot) = (first("connections to 8443"), first("connections to boot HTTP"));
    assert_eq!(api, slipway::apiserver::tls::CONNECTIONS_MAX as u64);
    assert_eq!(boot, slipway::boot::MAX_CONNECTIONS as u64);
    let most = DescriptorShares { api: api as usize, boot: boot as usize };
    assert_eq!(share(number(value("LimitNOFILE")), most), Ok(most));
}

#[test]
fn the_service_is_no_root_and_has_the_rights_of_its_ports_and_of_a_full_disk_only() {
    let rights = ["CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SYS_RESOURCE"];
    for key in ["AmbientCapabilities", "CapabilityBoundingSet"] {
        let mut has: Vec<&str> = value(key).split_whitespace().collect();
        has.sort_unstable();
        assert_eq!(has, rights, "{key}");
    }
    assert_eq!(values("ExecReload").last(), Some(&"/bin/kill -HUP $MAINPID"));
    assert!(values("ExecReload")[0].contains(" check-config "), "a faulty file is told to whom reloads");
    assert_eq!((value("User"), value("NoNewPrivileges"), value("UMask")), ("slipway", "yes", "0077"));
    // Runs of playbooks give way to all else, and so may lower their priority; to raise it takes a capability. They confine themselves.
    let confines = "landlock_create_ruleset landlock_add_rule landlock_restrict_self";
    assert_eq!(values("SystemCallFilter"), ["@system-service", "~@privileged @resources", "setpriority", confines]);
}
