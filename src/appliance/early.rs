//! Start-up order: what is answered before all hosts are listed, and what waits for that.

use std::time::Duration;

use anyhow::Context;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use axum::{Json, Router};
use http::{StatusCode, header};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::warn;

use super::signals::ApplianceSignals;
use super::{ServiceEnd, supervise};
use crate::protocol::CallRefusal;
use crate::store::Store;

/// How long the first listing of hosts may take before the log says so, and how often it does.
const LATE: Duration = Duration::from_secs(30);
/// In how many seconds who came too early is to come again.
const COME_AGAIN: &str = "2";

/// These routes, once `known` is true. Before, whoever asks is to come again.
pub(super) fn once(known: watch::Receiver<bool>, routes: Router) -> Router {
    routes.route_layer(from_fn(move |request: Request, next: Next| {
        let known = *known.borrow();
        async move {
            if known {
                return next.run(request).await;
            }
            let reason = "the appliance has just started and does not know all hosts yet".to_owned();
            (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, COME_AGAIN)], Json(CallRefusal { reason }))
                .into_response()
        }
    }))
}

/// Starts services.
type Start = Box<dyn FnOnce(&mut JoinSet<ServiceEnd>) -> anyhow::Result<()> + Send>;

/// What is started when every host is known: nobody is told what to boot before, for a forgotten intent would send a machine to
/// its disk, and a host that is not known yet would make its machine a stranger.
pub(super) struct LateServices {
    /// Whether every host is known.
    pub listed: watch::Receiver<bool>,
    /// Starts it.
    pub start: Start,
    /// Told when it is started.
    pub started: watch::Sender<bool>,
}

impl LateServices {
    /// Starts the rest when its time has come; false when a signal asked for the end before.
    ///
    /// # Errors
    /// When it cannot be started, or one of those services ends that run already.
    pub(super) async fn when_listed(
        mut self,
        services: &mut JoinSet<ServiceEnd>,
        store: &Store,
        signals: &mut ApplianceSignals,
    ) -> anyhow::Result<bool> {
        loop {
            tokio::select! {
                listed = self.listed.wait_for(|listed| *listed) => {
                    listed.context("the hosts are not watched any more")?;
                    break;
                }
                ended = supervise(services, store, signals) => {
                    ended?;
                    warn!("stopped before it was ready");
                    return Ok(false);
                }
                () = tokio::time::sleep(LATE) => {
                    warn!("the hosts are not listed yet: DHCP, boot and controllers wait for that");
                }
            }
        }
        (self.start)(services)?;
        self.started.send_replace(true);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn an_agent_is_told_to_come_again_until_every_host_is_known() {
        let (tell, known) = watch::channel(false);
        let early = once(known, Router::new().route("/agent", get(async || "a step")));
        let router = Router::new().route("/api", get(async || "an object")).merge(early);
        let ask = async |path: &str| {
            let request = Request::builder().uri(path).body(Body::empty()).expect("a request");
            let answer = router.clone().oneshot(request).await.expect("an answer");
            (answer.status().as_u16(), answer.headers().contains_key(header::RETRY_AFTER))
        };
        assert_eq!(
            [ask("/agent").await, ask("/api").await, ask("/no").await],
            [(503, true), (200, false), (404, false)]
        );
        tell.send_replace(true);
        assert_eq!(ask("/agent").await, (200, false));
    }
}
