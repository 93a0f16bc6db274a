//! Enrolment: which host a reporting machine already is, or what its new one looks like.

use std::collections::HashMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use super::bmc;
use super::rules::{self, DiscoveryVerdict};
use crate::api::MacAddress;
use crate::api::metal3::{
    AutomatedCleaningMode, BareMetalHost, BareMetalHostSpec, BmcDetails, BootMode, HardwareDetails,
};
use crate::api::slipway::{ANNOTATION_DISCOVERED, ANNOTATION_REPORTED, ANNOTATION_VISIT, DISCOVERED_PENDING};
use crate::host::admission::unsupported::ARCHITECTURE;
use crate::protocol::FoundBmc;

/// Addresses kept in [`ANNOTATION_REPORTED`]; the oldest are dropped.
const REPORTED: usize = 16;

/// What a machine says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct VisitReport {
    /// Which boot, in hex.
    pub visit: String,
    /// MAC address that it booted from.
    pub mac: MacAddress,
    /// Whether UEFI firmware started it.
    pub uefi: bool,
    /// Its hardware.
    pub hardware: HardwareDetails,
    /// Its BMC.
    pub bmc: Option<FoundBmc>,
}

/// How a machine is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Same {
    /// By this very report, which was not finished.
    Visit,
    /// By a MAC address.
    Mac(MacAddress),
    /// By maker and serial number.
    Serial(String),
}

/// Looks for the host that a machine already is, among hosts that are shown one after the other. Each is looked at once,
/// however many cards the report has.
pub struct Search<'r> {
    report: &'r VisitReport,
    /// Its cards, the one that it booted from first.
    cards: HashMap<MacAddress, usize>,
    best: Option<(KnownRank, BareMetalHost, Same)>,
}

/// How well a machine is known; the first goes before others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum KnownRank {
    Visit,
    Card(usize),
    Serial,
}

impl<'r> Search<'r> {
    /// For the machine of this report.
    pub fn new(report: &'r VisitReport) -> Self {
        let reported = report.hardware.nics.iter().filter_map(|nic| nic.mac.parse().ok());
        let mut cards = HashMap::new();
        for (number, card) in std::iter::once(report.mac).chain(reported).enumerate() {
            cards.entry(card).or_insert(number);
        }
        Self { report, cards, best: None }
    }

    /// Looks at a host. `seen` says whether its hardware is a machine's: it reported itself, or its BMC let the appliance in.
    /// Of others it is what somebody wrote, and keeps no machine from being discovered.
    pub fn look(&mut self, host: &BareMetalHost, seen: bool) {
        let Some((rank, same)) = self.rank(host, seen) else { return };
        if self.best.as_ref().is_none_or(|(best, ..)| rank < *best) {
            self.best = Some((rank, host.clone(), same));
        }
    }

    fn rank(&self, host: &BareMetalHost, seen: bool) -> Option<(KnownRank, Same)> {
        if host.annotations().get(ANNOTATION_VISIT) == Some(&self.report.visit) {
            return Some((KnownRank::Visit, Same::Visit));
        }
        let hardware = host.status.as_ref().filter(|_| seen).and_then(|status| status.hardware.as_ref());
        let known = |mac: MacAddress| self.cards.get(&mac).map(|number| (*number, mac));
        if let Some((number, mac)) = macs(host, hardware).filter_map(known).min() {
            return Some((KnownRank::Card(number), Same::Mac(mac)));
        }
        let serial = rules::serial(&self.report.hardware)?;
        let maker = |hardware: &HardwareDetails| {
            hardware.system_vendor.as_ref().map(|vendor| vendor.manufacturer.trim().to_lowercase())
        };
        let same = hardware.is_some_and(|known| {
            rules::serial(known).is_some_and(|known| known.eq_ignore_ascii_case(serial))
                && maker(known) == maker(&self.report.hardware)
        });
        same.then(|| (KnownRank::Serial, Same::Serial(serial.to_owned())))
    }

    /// What was found.
    pub fn found(self) -> Option<(BareMetalHost, Same)> {
        self.best.map(|(_, host, same)| (host, same))
    }
}

fn macs<'h>(
    host: &'h BareMetalHost,
    hardware: Option<&'h HardwareDetails>,
) -> impl Iterator<Item = MacAddress> + use<'h> {
    let nics = hardware.map_or(&[][..], |hardware| &hardware.nics).iter().map(|nic| nic.mac.as_str());
    host.spec.boot_mac_address.as_deref().into_iter().chain(nics).filter_map(|mac| mac.parse().ok())
}

/// What the event on a known host says.
pub fn duplicate(report: &VisitReport, same: &Same) -> String {
    let how = match same {
        Same::Visit => "by the same report".to_owned(),
        Same::Mac(mac) => format!("by the MAC address {mac}"),
        Same::Serial(serial) => format!("by the serial number {serial}"),
    };
    format!(
        "an unknown machine that booted from {} is this host {how}: it boots its local disk; to boot it from that port set spec.bootMACAddress",
        report.mac
    )
}

/// The annotation of a known host with one more address; `None` when it is there or is the host's own.
pub fn reported(host: &BareMetalHost, mac: MacAddress) -> Option<String> {
    if host.spec.boot_mac_address.as_deref().is_some_and(|own| own.parse() == Ok(mac)) {
        return None;
    }
    let before = host.annotations().get(ANNOTATION_REPORTED).map(String::as_str).unwrap_or_default();
    let mut all: Vec<String> = before.split(',').filter(|text| !text.is_empty()).map(str::to_owned).collect();
    if all.contains(&mac.to_string()) {
        return None;
    }
    all.push(mac.to_string());
    let surplus = all.len().saturating_sub(REPORTED);
    Some(all.split_off(surplus).join(","))
}

/// The new host, and what could not be done as the rules say. It waits to be accepted unless a rule accepts it and its
/// BMC can be reached.
pub fn host(report: &VisitReport, verdict: &DiscoveryVerdict, name: &str) -> (BareMetalHost, Vec<String>) {
    let mut faults = verdict.faults.clone();
    let found = report.bmc.as_ref().map(|found| bmc::address(found, verdict.bmc_scheme.as_deref()));
    let address = match found {
        Some(Ok(address)) => address,
        Some(Err(error)) => {
            faults.push(format!("discovery rule's bmc_scheme: {error}"));
            None
        }
        None => None,
    };
    let accepted = verdict.accept && address.is_some() && verdict.credentials_name.is_some();
    if verdict.accept && !accepted {
        let lacks =
            if address.is_some() { "no rule gives it credentials_name" } else { "its BMC's address is not known" };
        faults.push(format!("a discovery rule accepts the host, but {lacks}: it waits to be accepted"));
    }
    let bmc = (address.is_some() || verdict.credentials_name.is_some()).then(|| BmcDetails {
        address: address.unwrap_or_default(),
        credentials_name: verdict.credentials_name.clone().unwrap_or_default(),
        disable_certificate_verification: verdict.disable_certificate_verification,
    });
    let architecture = report.hardware.cpu.as_ref().map(|cpu| cpu.arch.clone());
    let spec = BareMetalHostSpec {
        // A machine that is taken over with its system is wanted to run it.
        online: verdict.externally_provisioned,
        bmc,
        boot_mac_address: Some(report.mac.to_string()),
        boot_mode: Some(if report.uefi { BootMode::UEFI } else { BootMode::Legacy }),
        architecture: architecture.filter(|name| name == ARCHITECTURE),
        externally_provisioned: verdict.externally_provisioned,
        automated_cleaning_mode: verdict.keep_disks.then_some(AutomatedCleaningMode::Disabled),
        ..BareMetalHostSpec::default()
    };
    let mut annotations = std::collections::BTreeMap::from([(ANNOTATION_VISIT.to_owned(), report.visit.clone())]);
    if !accepted {
        annotations.insert(ANNOTATION_DISCOVERED.to_owned(), DISCOVERED_PENDING.to_owned());
    }
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(verdict.namespace.clone()),
        labels: (!verdict.labels.is_empty()).then(|| verdict.labels.clone()),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    };
    (BareMetalHost { metadata, spec, status: None }, faults)
}

/// What becomes of the machine's disks, for the event that says that it was found.
pub fn fate(host: &BareMetalHost) -> &'static str {
    let kept =
        host.spec.externally_provisioned || host.spec.automated_cleaning_mode == Some(AutomatedCleaningMode::Disabled);
    match (host.annotations().contains_key(ANNOTATION_DISCOVERED), kept) {
        (true, true) => "it waits to be accepted, and its disks are left alone",
        (true, false) => "it waits to be accepted, and accepting it erases its disks unless told otherwise",
        (false, true) => "a discovery rule accepts it, and its disks are left alone",
        (false, false) => "a discovery rule accepts it, and its disks will be erased",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::metal3::{BareMetalHostStatus, HardwareSystemVendor, Nic};

    const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

    fn known(
        hosts: &[BareMetalHost],
        report: &VisitReport,
        seen: impl Fn(&BareMetalHost) -> bool,
    ) -> Option<(BareMetalHost, Same)> {
        let mut search = Search::new(report);
        hosts.iter().for_each(|host| search.look(host, seen(host)));
        search.found()
    }

    fn hardware(maker: &str, serial: &str, macs: &[&str]) -> HardwareDetails {
        HardwareDetails {
            system_vendor: Some(HardwareSystemVendor {
                manufacturer: maker.into(),
                serial_number: serial.into(),
                ..HardwareSystemVendor::default()
            }),
            nics: macs.iter().map(|mac| Nic { mac: (*mac).into(), ..Nic::default() }).collect(),
            ..HardwareDetails::default()
        }
    }

    fn report(maker: &str, serial: &str, macs: &[&str]) -> VisitReport {
        VisitReport { visit: "01".into(), mac: MAC, uefi: true, hardware: hardware(maker, serial, macs), bmc: None }
    }

    fn existing(name: &str, mac: Option<&str>, found: Option<HardwareDetails>) -> BareMetalHost {
        let spec = BareMetalHostSpec { boot_mac_address: mac.map(Into::into), ..Default::default() };
        let mut host = BareMetalHost::new(name, spec);
        host.status = Some(BareMetalHostStatus { hardware: found, ..Default::default() });
        host
    }

    #[test]
    fn a_machine_is_known_by_report_address_or_maker_and_serial() {
        let mut visited = existing("visited", None, None);
        visited.annotations_mut().insert(ANNOTATION_VISIT.into(), "01".into());
        let boot = existing("boot", Some("02:00:00:00:00:01"), None);
        let nic = existing("nic", Some("02:00:00:00:00:09"), Some(hardware("a", "", &["02:00:00:00:00:02"])));
        let serial = existing("serial", None, Some(hardware("Dell Inc.", "ABC", &[])));
        let all = [boot, nic, serial.clone(), visited];
        let rows = [
            (report("", "", &[]), 4, Some(("visited", Same::Visit))),
            (report("", "", &[]), 3, Some(("boot", Same::Mac(MAC)))),
            (
                VisitReport { mac: MacAddress([2, 0, 0, 0, 0, 2]), ..report("", "", &[]) },
                3,
                Some(("nic", Same::Mac(MacAddress([2, 0, 0, 0, 0, 2])))),
            ),
            (
                VisitReport { mac: MacAddress([2, 0, 0, 0, 0, 7]), ..report("", "", &["x", "02:00:00:00:00:09"]) },
                3,
                Some(("nic", Same::Mac(MacAddress([2, 0, 0, 0, 0, 9])))),
            ),
        ];
        for (report, hosts, wanted) in rows {
            let found = known(&all[..hosts], &report, |_| true).map(|(host, same)| (host.name_any(), same));
            assert_eq!(found, wanted.map(|(name, same)| (name.to_owned(), same)));
        }
        let by_serial = |maker: &str, number: &str| {
            let report = report(maker, number, &[]);
            known(std::slice::from_ref(&serial), &report, |_| true).map(|(_, same)| same)
        };
        assert_eq!(by_serial("dell inc.", "abc"), Some(Same::Serial("abc".into())));
        assert_eq!(by_serial("HPE", "ABC"), None, "another maker's number");
        // What somebody wrote, and no machine said: only the boot address counts.
        let written = |mac| {
            let host = existing("w", Some("02:00:00:00:00:01"), Some(hardware("dell", "9", &["02:00:00:00:00:02"])));
            let report = VisitReport { mac: MacAddress([2, 0, 0, 0, 0, mac]), ..report("Dell", "9", &[]) };
            known(&[host], &report, |_| false).map(|(_, same)| same)
        };
        assert_eq!((written(1), written(2), written(3)), (Some(Same::Mac(MAC)), None, None));
        let blank = existing("blank", None, Some(hardware("x", "Default string", &[])));
        assert_eq!(known(&[blank], &report("x", "Default string", &[]), |_| true), None, "what is no number");
    }

    #[test]
    fn a_new_host_waits_unless_it_is_accepted_and_can_be_reached() {
        let bmc = |address: &str| Some(FoundBmc { address: address.into(), ipmi: true, ..FoundBmc::default() });
        let verdict = |accept, credentials: Option<&str>| DiscoveryVerdict {
            namespace: "rack".into(),
            accept,
            credentials_name: credentials.map(Into::into),
            ..DiscoveryVerdict::default()
        };
        let rows = [
            (verdict(false, None), None, true, None, 0),
            (verdict(false, None), bmc("10.0.0.5"), true, Some(("ipmi://10.0.0.5", "")), 0),
            (verdict(true, Some("s")), bmc("10.0.0.5"), false, Some(("ipmi://10.0.0.5", "s")), 0),
            (verdict(true, Some("s")), bmc(""), true, Some(("", "s")), 1),
            (verdict(true, None), bmc("10.0.0.5"), true, Some(("ipmi://10.0.0.5", "")), 1),
        ];
        for (verdict, bmc, waits, details, faults) in rows {
            let (host, found) = host(&VisitReport { bmc, ..report("a", "1", &[]) }, &verdict, "h");
            assert_eq!(host.annotations().contains_key(ANNOTATION_DISCOVERED), waits, "{verdict:?}");
            let has = host.spec.bmc.as_ref().map(|bmc| (bmc.address.as_str(), bmc.credentials_name.as_str()));
            assert_eq!((has, found.len(), host.spec.online), (details, faults, false), "{found:?}");
            assert_eq!(host.spec.boot_mac_address.as_deref(), Some("02:00:00:00:00:01"));
            assert!(crate::host::admission::check(None, &serde_json::to_value(&host).expect("json")).is_empty());
        }
    }

    #[test]
    fn a_rule_can_spare_the_disks_and_the_event_says_what_becomes_of_them() {
        let bmc = Some(FoundBmc { address: "10.0.0.5".into(), ipmi: true, ..FoundBmc::default() });
        let report = VisitReport { bmc, ..report("a", "1", &[]) };
        for (accept, externally_provisioned, keep_disks, said) in [
            (false, false, false, "waits to be accepted, and accepting it erases its disks"),
            (false, true, false, "waits to be accepted, and its disks are left alone"),
            (false, false, true, "waits to be accepted, and its disks are left alone"),
            (true, false, false, "accepts it, and its disks will be erased"),
            (true, true, false, "accepts it, and its disks are left alone"),
            (true, false, true, "accepts it, and its disks are left alone"),
        ] {
            let credentials_name = Some("s".to_owned());
            let verdict = DiscoveryVerdict {
                accept,
                externally_provisioned,
                keep_disks,
                credentials_name,
                ..DiscoveryVerdict::default()
            };
            let (host, faults) = host(&report, &verdict, "h");
            assert!(faults.is_empty(), "{faults:?}");
            assert_eq!(
                (host.spec.externally_provisioned, host.spec.online),
                (externally_provisioned, externally_provisioned)
            );
            let mode = host.spec.automated_cleaning_mode;
            assert_eq!(mode == Some(AutomatedCleaningMode::Disabled), keep_disks, "{mode:?}");
            assert!(fate(&host).contains(said), "{}", fate(&host));
        }
    }

    #[test]
    fn reported_addresses_are_kept_once_and_bounded() {
        let mut host = existing("h", Some("02:00:00:00:00:01"), None);
        assert_eq!(reported(&host, MAC), None, "its own");
        for last in 2..40 {
            let text = reported(&host, MacAddress([2, 0, 0, 0, 0, last])).expect("new");
            host.annotations_mut().insert(ANNOTATION_REPORTED.into(), text);
        }
        assert_eq!(reported(&host, MacAddress([2, 0, 0, 0, 0, 39])), None, "known");
        let kept = &host.annotations()[ANNOTATION_REPORTED];
        assert_eq!(kept.split(',').count(), REPORTED);
        assert!(kept.ends_with("02:00:00:00:00:27"), "{kept}");
    }
}
