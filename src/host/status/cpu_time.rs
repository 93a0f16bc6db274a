//! Metrics of the work that reconciliations cost.
//!
//! Measured is the time in which a processor works on it: reading, deciding, writing through the API in this process with
//! all its encoding and checking. Left out is what it waits for: BMCs, the disk, its turn, and other programs that have the
//! processor.

use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Seconds that divide reconciliations; one is to take no more than 50 ms.
const SECONDS: [f64; 9] = [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5];

/// What reconciliations took. Clones share their values.
#[derive(Clone, Debug)]
pub struct CpuTime {
    seconds: Histogram,
}

impl Default for CpuTime {
    fn default() -> Self {
        Self { seconds: Histogram::new(SECONDS) }
    }
}

impl CpuTime {
    /// Names it for a scrape.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "slipway_host_reconcile_seconds",
            "Time in which a processor worked on a host's reconciliation; waiting for BMCs, the disk and its turn apart",
            self.seconds.clone(),
        );
    }

    /// Does the work and notes what it took.
    pub(in crate::host) async fn of<T>(&self, work: impl Future<Output = T> + Send) -> T {
        let took = Mutex::new(Duration::ZERO);
        let done = PollTimer { work: Box::pin(work), took: &took }.await;
        self.seconds.observe(took.lock().map_or(0.0, |took| took.as_secs_f64()));
        done
    }
}

/// Adds up how long its polls take.
struct PollTimer<'a, F> {
    work: Pin<Box<F>>,
    took: &'a Mutex<Duration>,
}

impl<F: Future> Future for PollTimer<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let began = worked();
        let polled = self.work.as_mut().poll(context);
        if let Ok(mut took) = self.took.lock() {
            *took += worked().saturating_sub(began);
        }
        polled
    }
}

/// Time that a processor has spent on this thread.
fn worked() -> Duration {
    // Linux has this clock since 2.6.12.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(effort: &CpuTime) -> String {
        let mut registry = Registry::default();
        effort.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[tokio::test]
    async fn work_counts_and_waiting_does_not() {
        let effort = CpuTime::default();
        let waits = async {
            // Longer than any bucket, were it counted.
            tokio::time::sleep(Duration::from_millis(600)).await;
            7
        };
        assert_eq!(effort.of(waits).await, 7);
        let said = text(&effort);
        assert!(said.contains("slipway_host_reconcile_seconds_count 1"), "{said}");
        assert!(said.contains("le=\"0.5\"} 1"), "{said}");
        let works = async {
            let began = worked();
            while worked().saturating_sub(began) < Duration::from_millis(120) {
                std::hint::spin_loop();
            }
        };
        effort.of(works).await;
        let said = text(&effort);
        assert!(said.contains("le=\"0.1\"} 1") && said.contains("_count 2"), "{said}");
    }
}
