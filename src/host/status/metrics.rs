//! Metrics of hosts, under the names that Metal3's dashboards and alerts know (`metal3_…`).
//!
//! Most of it follows from one status to the next, so that it is counted where a status is stored and nowhere else.
//! Series of a host end with the host.

use std::sync::Arc;

use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::agent_metrics::AgentMetrics;
use super::cpu_time::CpuTime;
use crate::api::metal3::{BareMetalHostStatus, OperationMetric, OperationalStatus, ProvisioningState as State};

/// Seconds that divide registrations.
const QUICK: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Seconds that divide what takes a machine's time.
const SLOW: [f64; 6] = [30.0, 90.0, 180.0, 360.0, 720.0, 1440.0];

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(in crate::host) struct HostLabels {
    namespace: String,
    host: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Switched {
    namespace: String,
    host: String,
    on_off: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorTypeLabels {
    error_type: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HostDataLabels {
    host_data_type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Changed {
    prev_state: &'static str,
    new_state: &'static str,
}

type HostHistogram = Family<HostLabels, Histogram, fn() -> Histogram>;

/// Counters of one appliance. Cheap to clone.
#[derive(Clone, Default)]
pub struct HostMetrics(Arc<Inner>);

struct Inner {
    reconciled: Family<HostLabels, Counter>,
    reconcile_errors: Counter,
    errors: Family<ErrorTypeLabels, Counter>,
    power_changes: Family<Switched, Counter>,
    credentials_missing: Counter,
    credentials_invalid: Counter,
    credentials_unread: Counter,
    credentials_updated: Counter,
    no_access: Counter,
    no_data: Family<HostDataLabels, Counter>,
    delayed: Family<HostLabels, Counter>,
    register: HostHistogram,
    inspect: HostHistogram,
    provision: HostHistogram,
    deprovision: HostHistogram,
    states: Family<Changed, Counter>,
    registrations: Counter,
    unmanaged: Counter,
    not_deprovisioned: Counter,
    not_powered_off: Counter,
    effort: CpuTime,
    looks_waiting: Gauge,
    agents: AgentMetrics,
}

impl Default for Inner {
    fn default() -> Self {
        let quick: fn() -> Histogram = || Histogram::new(QUICK);
        let slow: fn() -> Histogram = || Histogram::new(SLOW);
        Self {
            reconciled: Family::default(),
            reconcile_errors: Counter::default(),
            errors: Family::default(),
            power_changes: Family::default(),
            credentials_missing: Counter::default(),
            credentials_invalid: Counter::default(),
            credentials_unread: Counter::default(),
            credentials_updated: Counter::default(),
            no_access: Counter::default(),
            no_data: Family::default(),
            delayed: Family::default(),
            register: Family::new_with_constructor(quick),
            inspect: Family::new_with_constructor(slow),
            provision: Family::new_with_constructor(slow),
            deprovision: Family::new_with_constructor(slow),
            states: Family::default(),
            registrations: Counter::default(),
            unmanaged: Counter::default(),
            not_deprovisioned: Counter::default(),
            not_powered_off: Counter::default(),
            effort: CpuTime::default(),
            looks_waiting: Gauge::default(),
            agents: AgentMetrics::default(),
        }
    }
}

impl HostMetrics {
    /// How much work reconciliations are.
    pub(in crate::host) fn effort(&self) -> &CpuTime {
        &self.0.effort
    }

    /// Hosts that wait to be looked at.
    pub(in crate::host) fn looks_waiting(&self) -> Gauge {
        self.0.looks_waiting.clone()
    }

    /// What their agents do.
    pub(in crate::host) fn agents(&self) -> &AgentMetrics {
        &self.0.agents
    }

    /// Names everything for a scrape; the encoder adds `_total` to counters.
    pub fn register(&self, registry: &mut Registry) {
        let all = &*self.0;
        all.effort.register(registry);
        all.agents.register(registry);
        registry.register(
            "slipway_host_looks_waiting",
            "Hosts that wait to be looked at, because as many others are",
            all.looks_waiting.clone(),
        );
        let mut counter = |name: &str, help: &str, counter: &Counter| registry.register(name, help, counter.clone());
        counter("metal3_reconcile_error", "Looks at a host that failed", &all.reconcile_errors);
        counter("metal3_credentials_missing", "A BMC secret was found missing", &all.credentials_missing);
        counter("metal3_credentials_invalid", "A BMC secret or address was found wrong", &all.credentials_invalid);
        counter("metal3_credentials_unhandled_error", "A BMC secret could not be read", &all.credentials_unread);
        counter("metal3_credentials_updated", "A host's credentials changed", &all.credentials_updated);
        counter("metal3_credentials_no_management_access", "A BMC could not be used", &all.no_access);
        counter("metal3_host_registration_required", "A host was found unregistered", &all.registrations);
        counter("metal3_host_unmanaged", "A host was found without a BMC", &all.unmanaged);
        counter(
            "metal3_delete_without_deprovisioning",
            "A host was deleted although deprovisioning failed",
            &all.not_deprovisioned,
        );
        counter(
            "metal3_delete_without_powering_off",
            "A host was deleted although powering off failed",
            &all.not_powered_off,
        );
        registry.register("metal3_reconcile", "Looks at a host", all.reconciled.clone());
        registry.register("metal3_host_error", "Errors of hosts", all.errors.clone());
        registry.register(
            "metal3_host_config_data_error",
            "Data for a host's system or ramdisk could not be had from its secret",
            all.no_data.clone(),
        );
        registry.register("metal3_operation_power_change", "Power-ons and power-offs", all.power_changes.clone());
        // Upstream's name has the second underscore.
        registry.register("metal3_delayed__provisioning", "Waits for a place among the busy", all.delayed.clone());
        registry.register("metal3_provisioning_state_change", "Changes of state", all.states.clone());
        for (name, help, seconds) in [
            ("metal3_operation_register_duration_seconds", "Time of registrations", &all.register),
            ("metal3_operation_inspect_duration_seconds", "Time of inspections", &all.inspect),
            ("metal3_operation_provision_duration_seconds", "Time of provisionings", &all.provision),
            ("metal3_operation_deprovision_duration_seconds", "Time of deprovisionings", &all.deprovision),
        ] {
            registry.register(name, help, seconds.clone());
        }
    }

    /// A look at a host begins.
    pub(in crate::host) fn reconciled(&self, namespace: &str, host: &str) {
        self.0.reconciled.get_or_create(&of(namespace, host)).inc();
    }

    /// A look at a host failed.
    pub(in crate::host) fn failed(&self) {
        self.0.reconcile_errors.inc();
    }

    pub(in crate::host) fn credentials_missing(&self) {
        self.0.credentials_missing.inc();
    }

    pub(in crate::host) fn credentials_invalid(&self) {
        self.0.credentials_invalid.inc();
    }

    pub(in crate::host) fn credentials_unread(&self) {
        self.0.credentials_unread.inc();
    }

    pub(in crate::host) fn no_access(&self) {
        self.0.no_access.inc();
    }

    /// `kind` is the secret's key: `userData`, `metaData` or `networkData`.
    pub(in crate::host) fn no_data(&self, kind: &'static str) {
        self.0.no_data.get_or_create(&HostDataLabels { host_data_type: kind }).inc();
    }

    pub(in crate::host) fn power_change(&self, namespace: &str, host: &str, on: bool) {
        let on_off = if on { "on" } else { "off" };
        let about = Switched { namespace: namespace.into(), host: host.into(), on_off };
        self.0.power_changes.get_or_create(&about).inc();
    }

    /// Counts what lies between two statuses of a host, the second of which was just stored.
    pub(in crate::host) fn stored(
        &self,
        namespace: &str,
        host: &str,
        before: &BareMetalHostStatus,
        after: &BareMetalHostStatus,
    ) {
        let all = &*self.0;
        if after.error_count > before.error_count
            && let Some(error) = after.error_type
        {
            let error_type = serde_json::to_value(error).ok().and_then(|value| value.as_str().map(str::to_owned));
            all.errors.get_or_create(&ErrorTypeLabels { error_type: error_type.unwrap_or_default() }).inc();
        }
        let delayed = |status: &BareMetalHostStatus| status.operational_status == OperationalStatus::Delayed;
        if delayed(after) && !delayed(before) {
            all.delayed.get_or_create(&of(namespace, host)).inc();
        }
        let tried = |status: &BareMetalHostStatus| status.tried_credentials.credentials_version.clone();
        if tried(before).is_some() && tried(after) != tried(before) {
            all.credentials_updated.inc();
        }
        let (from, to) = (before.provisioning.state, after.provisioning.state);
        let registered_elsewhere = from == to && before.provisioning.id != after.provisioning.id;
        if registered_elsewhere || (from != to && to == State::Registering) {
            all.registrations.inc();
        }
        if from == to {
            return;
        }
        all.states.get_or_create(&Changed { prev_state: from.as_str(), new_state: to.as_str() }).inc();
        if to == State::Unmanaged {
            all.unmanaged.inc();
        }
        let history = &after.operation_history;
        let leaves_uncleaned = matches!(to, State::PoweringOffBeforeDelete | State::Deleting)
            && from == State::Deprovisioning
            && history.deprovision.end.is_none();
        if leaves_uncleaned {
            all.not_deprovisioned.inc();
        }
        if (from, to) == (State::PoweringOffBeforeDelete, State::Deleting) && after.powered_on {
            all.not_powered_off.inc();
        }
        let (operation, seconds) = match from {
            State::Registering => (&history.register, &all.register),
            State::Inspecting => (&history.inspect, &all.inspect),
            State::Provisioning => (&history.provision, &all.provision),
            State::Deprovisioning => (&history.deprovision, &all.deprovision),
            _ => return,
        };
        if let Some(took) = duration(operation) {
            seconds.get_or_create(&of(namespace, host)).observe(took);
        }
    }

    /// Ends the series of a host that is gone.
    pub(in crate::host) fn forget(&self, namespace: &str, host: &str) {
        let (all, of) = (&*self.0, of(namespace, host));
        all.reconciled.remove(&of);
        all.delayed.remove(&of);
        for seconds in [&all.register, &all.inspect, &all.provision, &all.deprovision] {
            seconds.remove(&of);
        }
        for on_off in ["on", "off"] {
            let about = Switched { namespace: of.namespace.clone(), host: of.host.clone(), on_off };
            all.power_changes.remove(&about);
        }
    }
}

fn of(namespace: &str, host: &str) -> HostLabels {
    HostLabels { namespace: namespace.to_owned(), host: host.to_owned() }
}

/// Seconds of an operation that ended.
fn duration(operation: &OperationMetric) -> Option<f64> {
    let (start, end): (Timestamp, Timestamp) = (operation.start.as_ref()?.0, operation.end.as_ref()?.0);
    (end >= start).then(|| end.duration_since(start).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::api::metal3::{CredentialsStatus, ErrorType, OperationHistory, ProvisionStatus};

    fn scrape(metrics: &HostMetrics) -> String {
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    fn at(state: State) -> BareMetalHostStatus {
        BareMetalHostStatus {
            provisioning: ProvisionStatus { state, id: "x".into(), ..ProvisionStatus::default() },
            ..BareMetalHostStatus::default()
        }
    }

    fn took(seconds: i64) -> OperationMetric {
        let time = |second| Some(Time(Timestamp::from_second(second).unwrap()));
        OperationMetric { start: time(100), end: time(100 + seconds) }
    }

    #[test]
    fn what_lies_between_two_statuses_is_counted() {
        let failed = |count| BareMetalHostStatus {
            error_type: Some(ErrorType::PowerManagement),
            error_count: count,
            ..at(State::Provisioned)
        };
        let delayed = BareMetalHostStatus { operational_status: OperationalStatus::Delayed, ..at(State::Inspecting) };
        let secret = |version: &str| BareMetalHostStatus {
            tried_credentials: CredentialsStatus {
                credentials_version: Some(version.into()),
                ..CredentialsStatus::default()
            },
            ..at(State::Available)
        };
        let inspected = BareMetalHostStatus {
            operation_history: OperationHistory { inspect: took(200), ..OperationHistory::default() },
            ..at(State::Preparing)
        };
        let wiped = BareMetalHostStatus {
            operation_history: OperationHistory { deprovision: took(1), ..OperationHistory::default() },
            ..at(State::Deleting)
        };
        let mut moved = at(State::Provisioned);
        moved.provisioning.id = "y".into();
        let on = BareMetalHostStatus { powered_on: true, ..at(State::Deleting) };
        let rows = [
            (failed(1), failed(2), "metal3_host_error_total{error_type=\"power management error\"} 1"),
            (at(State::Inspecting), delayed, "metal3_delayed__provisioning_total{namespace=\"rack\",host=\"h\"} 1"),
            (secret("1"), secret("2"), "metal3_credentials_updated_total 1"),
            (at(State::None), at(State::Unmanaged), "metal3_host_unmanaged_total 1"),
            (at(State::None), at(State::Registering), "metal3_host_registration_required_total 1"),
            (at(State::Provisioned), moved, "metal3_host_registration_required_total 1"),
            (
                at(State::Inspecting),
                inspected.clone(),
                "metal3_provisioning_state_change_total{prev_state=\"inspecting\",new_state=\"preparing\"} 1",
            ),
            (
                at(State::Inspecting),
                inspected,
                "metal3_operation_inspect_duration_seconds_bucket{le=\"360.0\",namespace=\"rack\",host=\"h\"} 1",
            ),
            (at(State::Deprovisioning), at(State::Deleting), "metal3_delete_without_deprovisioning_total 1"),
            (at(State::Deprovisioning), wiped, "metal3_delete_without_deprovisioning_total 0"),
            (at(State::PoweringOffBeforeDelete), on, "metal3_delete_without_powering_off_total 1"),
            (at(State::PoweringOffBeforeDelete), at(State::Deleting), "metal3_delete_without_powering_off_total 0"),
            (at(State::Available), at(State::Available), "metal3_host_registration_required_total 0"),
        ];
        for (before, after, line) in rows {
            let metrics = HostMetrics::default();
            metrics.stored("rack", "h", &before, &after);
            let text = scrape(&metrics);
            assert!(text.lines().any(|given| given == line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_host_that_is_gone_leaves_no_series() {
        let metrics = HostMetrics::default();
        let empty = scrape(&metrics);
        metrics.reconciled("rack", "h");
        metrics.power_change("rack", "h", true);
        metrics.stored(
            "rack",
            "h",
            &at(State::Registering),
            &BareMetalHostStatus {
                operation_history: OperationHistory { register: took(1), ..OperationHistory::default() },
                ..at(State::Registering)
            },
        );
        assert!(scrape(&metrics).contains("host=\"h\""));
        metrics.forget("rack", "h");
        assert_eq!(scrape(&metrics), empty);
    }
}
