//! Tests with faulty BMCs.
//!
//! A BMC that misbehaves, over real sockets: one clear reason, tries with growing rests, the host is back by itself when
//! its BMC is, its machine runs on, and another host is not harmed.

use super::*;
use crate::api::metal3::ErrorType;
use crate::bmc::sim::machine::{FaultScope, SimulatedFault};
use crate::config::Span;

/// A provisioned host `h` whose machine is on, and a host `other` with a machine and a BMC of its own.
struct Pair {
    site: Site,
    other: Arc<SimulatedMachine>,
    /// The one of the two BMCs that speaks Redfish.
    service: Arc<RedfishSim>,
}

impl Pair {
    /// `h` has a BMC that speaks Redfish, or IPMI; `other` has one of the other kind.
    async fn new(redfish: bool, options: RedfishOptions) -> Self {
        let mut site = Site::idle().await;
        let (mut other, mut address) = (site.machine.clone(), site.bmc.clone());
        site.machine = Arc::new(SimulatedMachine::new(SimulatedProfile::default()));
        let (service, _) = site.redfish(options).await;
        if !redfish {
            std::mem::swap(&mut site.machine, &mut other);
            std::mem::swap(&mut site.bmc, &mut address);
        }
        site.provision().await;
        let second = BareMetalHostSpec {
            online: true,
            externally_provisioned: true,
            bmc: Some(BmcDetails { address, credentials_name: "bmc".into(), ..BmcDetails::default() }),
            boot_mac_address: Some("02:00:00:00:00:02".into()),
            ..BareMetalHostSpec::default()
        };
        site.create(&BareMetalHost::new("other", second)).await;
        let hosts = HostConfig {
            retry: Span(Duration::from_millis(20)),
            power_poll: Span(Duration::from_millis(100)),
            ..HostConfig::default()
        };
        let bmcs = BmcSettings {
            poll: Duration::from_millis(20),
            http_timeout: Duration::from_millis(100),
            http_tries: 2,
            http_backoff: Duration::from_millis(5),
            ipmi_timeout: Duration::from_millis(50),
            ipmi_tries: 2,
            ..BmcSettings::default()
        };
        site.reconcile_with(hosts, bmcs).await;
        let pair = Self { site, other, service };
        pair.site.until("both are on", async || pair.site.machine.is_on() && pair.other.is_on()).await;
        pair.is_well().await;
        pair
    }

    /// Waits until nothing is wrong with `h`.
    async fn is_well(&self) {
        self.site
            .until("it is well", async || {
                let status = self.site.status().await;
                let well = status.operational_status != OperationalStatus::Error && status.error_type.is_none();
                well && status.powered_on && status.error_message.is_empty() && status.error_count == 0
            })
            .await;
    }

    /// Waits until `h` has failed so often, for this reason.
    async fn fails(&self, times: i64, reason: &str) {
        self.site
            .until(reason, async || {
                let status = self.site.status().await;
                status.error_count >= times && status.error_message.contains(reason)
            })
            .await;
        let status = self.site.status().await;
        let seen = (status.error_type, status.operational_status, status.provisioning.state);
        let expected = (Some(ErrorType::Registration), OperationalStatus::Error, ProvisioningState::Provisioned);
        assert_eq!(seen, expected, "{reason}");
        assert!(status.error_message.contains("the BMC at 127.0.0.1:"), "which one: {}", status.error_message);
    }

    /// The other host's power follows its spec.
    async fn other_goes_on(&self) {
        for online in [false, true] {
            let patch = Patch::Merge(json!({ "spec": { "online": online } }));
            self.site.api::<BareMetalHost>().patch("other", &PatchParams::default(), &patch).await.unwrap();
            self.site.until("the other host goes on", async || self.other.is_on() == online).await;
        }
    }

    async fn suffers(&self, faults: &[(SimulatedFault, FaultScope, &str)]) {
        let starts = self.site.machine.boots().len();
        for (fault, scope, reason) in faults {
            self.site.machine.inject(fault.clone(), *scope, None);
            self.fails(3, reason).await;
            self.other_goes_on().await;
            self.site.machine.heal();
            self.is_well().await;
            assert!(self.site.machine.is_on(), "{fault:?}");
            assert_eq!(self.site.machine.boots().len(), starts, "{fault:?}: the machine runs on");
        }
    }
}

#[tokio::test]
async fn a_redfish_service_that_misbehaves_harms_nobody() {
    let pair = Pair::new(true, RedfishOptions::default()).await;
    pair.suffers(&[
        (SimulatedFault::Silence, FaultScope::All, "cannot reach"),
        (SimulatedFault::Garbage, FaultScope::All, "answered"),
        (SimulatedFault::Reset, FaultScope::All, "cannot reach"),
        (SimulatedFault::Busy, FaultScope::All, "503"),
        (SimulatedFault::Fail, FaultScope::All, "500"),
        (SimulatedFault::WrongPassword, FaultScope::All, "refuses the credentials"),
    ])
    .await;
}

#[tokio::test]
async fn a_controller_that_misbehaves_over_ipmi_harms_nobody() {
    let pair = Pair::new(false, RedfishOptions::default()).await;
    pair.suffers(&[
        (SimulatedFault::Silence, FaultScope::All, "the BMC at"),
        (SimulatedFault::Garbage, FaultScope::All, "the BMC at"),
        (SimulatedFault::Fail, FaultScope::Read, "answered"),
    ])
    .await;
}

/// The password was changed at the BMC alone, which locks the account after three wrong ones.
#[tokio::test]
async fn a_locked_account_is_not_hammered_and_comes_back_by_itself() {
    let pair = Pair::new(true, RedfishOptions { lock_after: Some(3), ..RedfishOptions::default() }).await;
    let starts = pair.site.machine.boots().len();
    pair.service.set_password("another");
    pair.fails(5, "refuses the credentials: wrong user name or password for \"admin\"").await;
    // The first number is the older one: every refused login was one of a try that was counted.
    let refused = i64::from(pair.service.refused_logins());
    let tries = pair.site.status().await.error_count + 1;
    assert!(refused <= tries, "{refused} logins in {tries} tries");
    pair.site
        .until("it says when it tries again", async || {
            let conditions = pair.site.status().await.conditions;
            let progress = conditions.iter().find(|condition| condition.type_ == "Progressing");
            progress.is_some_and(|condition| condition.message.starts_with("next try at "))
        })
        .await;
    pair.other_goes_on().await;
    // The right password does not help as long as the account is locked.
    pair.service.set_password("secret");
    let before = pair.site.status().await.error_count;
    pair.fails(before + 2, "refuses the credentials").await;
    pair.service.unlock();
    pair.is_well().await;
    assert_eq!(pair.site.machine.boots().len(), starts);
}
