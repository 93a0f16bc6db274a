//! What is counted of calls of webhooks. Their names are no labels: whoever may write a configuration chooses them.

use std::sync::LazyLock;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Seconds that divide calls: those of a program nearby take milliseconds, and none takes longer than half a minute.
const SECONDS: [f64; 9] = [0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0];

/// What a webhook is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WebhookQuestion {
    /// Whether something may be written, or how.
    Admission,
    /// For objects in another version.
    Conversion,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallResult {
    /// It let the request through, or converted.
    Given,
    /// It refused the request, or to convert.
    Refused,
    /// There was no answer that can be used.
    None,
}

impl WebhookQuestion {
    fn name(self) -> &'static str {
        match self {
            Self::Admission => "admission",
            Self::Conversion => "conversion",
        }
    }
}

impl CallResult {
    fn name(self) -> &'static str {
        match self {
            Self::Given => "given",
            Self::Refused => "refused",
            Self::None => "none",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Called {
    question: &'static str,
    answer: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WebhookTimeLabels {
    question: &'static str,
}

/// One for the process: it asks webhooks for one server.
static METERS: LazyLock<WebhookMeters> = LazyLock::new(|| WebhookMeters {
    calls: Family::default(),
    seconds: Family::new_with_constructor(|| Histogram::new(SECONDS)),
});

struct WebhookMeters {
    calls: Family<Called, Counter>,
    seconds: Family<WebhookTimeLabels, Histogram, fn() -> Histogram>,
}

/// Names it for a scrape.
pub(in crate::apiserver) fn register(registry: &mut Registry) {
    registry.register("slipway_webhook_calls", "Calls of webhooks, by what came of them", METERS.calls.clone());
    let help = "Time to the answer of a webhook, with the wait for a place";
    registry.register("slipway_webhook_call_duration_seconds", help, METERS.seconds.clone());
}

/// Counts a call.
pub(super) fn called(question: WebhookQuestion, answer: CallResult, took: Duration) {
    let (question, answer) = (question.name(), answer.name());
    METERS.seconds.get_or_create(&WebhookTimeLabels { question }).observe(took.as_secs_f64());
    METERS.calls.get_or_create(&Called { question, answer }).inc();
}
