//! The time that a look has for all that it asks of a cluster.
//!
//! Each request has bounds of its own. A cluster that uses each of them up would hold its place among the looks for many minutes, and
//! others of its namespace would wait.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

/// The time for everything that one look asks. What it cuts off is done anew by the next look.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReconcileBudget {
    end: Instant,
    whole: Duration,
}

impl ReconcileBudget {
    /// It begins now.
    pub(super) fn begin(whole: Duration) -> Self {
        Self { end: Instant::now() + whole, whole }
    }

    /// Does what is asked of the cluster, in the time that is left.
    ///
    /// # Errors
    ///
    /// Its own; that no time is left.
    pub(super) async fn within<T>(self, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let late = || format!("the cluster did not answer within {:?} in all", self.whole);
        timeout_at(self.end, work).await.unwrap_or_else(|_| Err(late()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_work_has_the_same_time() {
        let budget = ReconcileBudget::begin(Duration::from_secs(600));
        assert_eq!(budget.within(async { Ok(6) }).await, Ok(6));
        assert_eq!(budget.within(async { Err::<(), _>("refused".to_owned()) }).await, Err("refused".to_owned()));
        let over = ReconcileBudget { end: Instant::now(), whole: Duration::from_secs(10) };
        let endless = over.within(std::future::pending::<Result<(), String>>()).await;
        assert_eq!(endless, Err("the cluster did not answer within 10s in all".to_owned()));
    }
}
