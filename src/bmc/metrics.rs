//! What is asked of BMCs, counted. No label says which one: hosts come and go, and name what they like.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Seconds that divide answers: from IPMI on a good network to a Redfish service that is about to give up.
const SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];

/// How a BMC is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// One HTTP request.
    Redfish,
    /// One message of the handshake, or one command; with its repetitions.
    Ipmi,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BmcOutcome {
    /// It did what it was asked.
    Ok,
    /// It answered that it does not.
    Refused,
    /// It does not take user or password.
    LoginFailed,
    /// It does not know the session any more; a new one is opened.
    SessionEnded,
    /// It asks to come back later.
    Busy,
    /// The answer is not what the protocol says.
    Invalid,
    /// No answer in time.
    Timeout,
    /// Nothing listens there, no way leads there, or no TLS came to be.
    Unreachable,
}

impl Protocol {
    const ALL: [Self; 2] = [Self::Redfish, Self::Ipmi];

    fn name(self) -> &'static str {
        match self {
            Self::Redfish => "redfish",
            Self::Ipmi => "ipmi",
        }
    }
}

impl BmcOutcome {
    const ALL: [Self; 8] = [
        Self::Ok,
        Self::Refused,
        Self::LoginFailed,
        Self::SessionEnded,
        Self::Busy,
        Self::Invalid,
        Self::Timeout,
        Self::Unreachable,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Refused => "refused",
            Self::LoginFailed => "login-failed",
            Self::SessionEnded => "session-ended",
            Self::Busy => "busy",
            Self::Invalid => "invalid",
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BmcRequestLabels {
    protocol: &'static str,
    outcome: &'static str,
}

/// Times by protocol.
type ProtocolHistogram = Family<[(&'static str, &'static str); 1], Histogram, fn() -> Histogram>;

/// Counters of all connections to BMCs. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub struct BmcMetrics {
    requests: Family<BmcRequestLabels, Counter>,
    seconds: ProtocolHistogram,
}

impl Default for BmcMetrics {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(SECONDS);
        let requests = Family::<BmcRequestLabels, Counter>::default();
        // From zero: else nobody could tell the first from what was before.
        for protocol in Protocol::ALL.map(Protocol::name) {
            for outcome in BmcOutcome::ALL.map(BmcOutcome::name) {
                drop(requests.get_or_create(&BmcRequestLabels { protocol, outcome }));
            }
        }
        Self { requests, seconds: Family::new_with_constructor(histogram) }
    }
}

impl BmcMetrics {
    /// Names everything for a scrape.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("slipway_bmc_requests", "Requests to BMCs, by what came of them", self.requests.clone());
        registry.register(
            "slipway_bmc_request_duration_seconds",
            "Time to the answer of a BMC; requests without one are left out",
            self.seconds.clone(),
        );
    }

    /// Counts a request that took so long.
    pub(super) fn asked(&self, protocol: Protocol, outcome: BmcOutcome, took: Duration) {
        let protocol = protocol.name();
        self.requests.get_or_create(&BmcRequestLabels { protocol, outcome: outcome.name() }).inc();
        if !matches!(outcome, BmcOutcome::Timeout | BmcOutcome::Unreachable) {
            self.seconds.get_or_create(&[("protocol", protocol)]).observe(took.as_secs_f64());
        }
    }
}
