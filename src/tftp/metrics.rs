//! What TFTP counts for a scrape of `/metrics`.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::transfer::{SendBuffer, TransferEnd};

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferOutcome {
    Completed,
    /// The client sent ERROR, as UEFI firmware does once it knows the size.
    Aborted,
    /// The client stopped answering, or took too long in all.
    TimedOut,
    /// No such file is served, or it is missing on the appliance.
    NotFound,
    /// It is no request for a file, or one for a path.
    Refused,
    /// Too many transfers; it was dropped.
    Busy,
    /// It gave way to another transfer.
    Replaced,
    /// The file could not be read, or the socket not be used.
    Failed,
}

/// In the order of [`TransferOutcome`].
const OUTCOMES: [&str; 8] = ["completed", "aborted", "timed-out", "not-found", "refused", "busy", "replaced", "failed"];

impl From<&TransferEnd> for TransferOutcome {
    fn from(end: &TransferEnd) -> Self {
        match end {
            TransferEnd::Complete => Self::Completed,
            TransferEnd::Aborted { .. } => Self::Aborted,
            TransferEnd::Silent | TransferEnd::TooLong => Self::TimedOut,
        }
    }
}

/// Counters of one server. Cheap to clone; all clones are the same.
#[derive(Clone, Debug, Default)]
pub struct TftpMetrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    transfers: Family<[(&'static str, &'static str); 1], Counter>,
    /// Those of `transfers`, so that nothing is looked up to count.
    outcomes: [Counter; OUTCOMES.len()],
    sent_bytes: Counter,
    repeated: Counter,
    active: Gauge,
}

impl Default for Inner {
    fn default() -> Self {
        let transfers = Family::default();
        Self {
            outcomes: OUTCOMES.map(|outcome| transfers.get_or_create_owned(&[("outcome", outcome)])),
            transfers,
            sent_bytes: Counter::default(),
            repeated: Counter::default(),
            active: Gauge::default(),
        }
    }
}

impl TftpMetrics {
    /// Names everything for a scrape.
    pub fn register(&self, registry: &mut Registry) {
        let all = &*self.0;
        registry.register(
            "slipway_tftp_transfers",
            "Requests for files, by what became of them",
            all.transfers.clone(),
        );
        registry.register("slipway_tftp_active_transfers", "Transfers under way", all.active.clone());
        registry.register("slipway_tftp_sent_bytes", "Bytes of the packets of transfers", all.sent_bytes.clone());
        registry.register(
            "slipway_tftp_repeated_packets",
            "Packets that were sent again, for no answer came or one that asked for it",
            all.repeated.clone(),
        );
    }

    pub(super) fn ended(&self, outcome: TransferOutcome) {
        self.0.outcomes[outcome as usize].inc();
    }

    /// Counts packets that are about to be sent.
    pub(super) fn sends(&self, out: &SendBuffer) {
        if !out.is_empty() {
            self.0.sent_bytes.inc_by(out.size() as u64);
        }
        if out.repeated() > 0 {
            self.0.repeated.inc_by(out.repeated());
        }
    }

    /// Counts a transfer as under way until that is dropped.
    pub(super) fn begins(&self) -> Active {
        self.0.active.inc();
        Active(self.0.active.clone())
    }
}

/// A transfer that is under way.
pub(super) struct Active(Gauge);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_has_its_name() {
        let rows = [
            (TransferOutcome::Completed, "completed"),
            (TransferOutcome::Aborted, "aborted"),
            (TransferOutcome::TimedOut, "timed-out"),
            (TransferOutcome::NotFound, "not-found"),
            (TransferOutcome::Refused, "refused"),
            (TransferOutcome::Busy, "busy"),
            (TransferOutcome::Replaced, "replaced"),
            (TransferOutcome::Failed, "failed"),
        ];
        for (outcome, name) in rows {
            let metrics = TftpMetrics::default();
            metrics.ended(outcome);
            let text = crate::metrics::shown(|registry| metrics.register(registry));
            let counted: Vec<_> =
                text.lines().filter(|line| line.starts_with("slipway_tftp_transfers_total{")).collect();
            let one = format!("slipway_tftp_transfers_total{{outcome=\"{name}\"}} 1");
            assert_eq!(counted.len(), rows.len());
            assert_eq!(counted.iter().filter(|line| line.ends_with(" 1")).collect::<Vec<_>>(), [&one], "{text}");
        }
    }
}
