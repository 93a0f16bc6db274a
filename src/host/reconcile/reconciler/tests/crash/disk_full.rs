//! Tests of a host's life on a full disk.
//!
//! The appliance's disk full from each of a host's writes on: the store refuses that one and all that follow, until the
//! process is started again on a disk with room.

use super::*;
use crate::apiserver::ApiError;

/// What the store says.
pub(super) const REASON: &str = "the store cannot write: No space left on device";
/// Tries of a reconciliation before the process ends; a supervisor starts it again.
pub(super) const TRIES: usize = 8;

/// What the API answers to a write.
pub(super) fn refusal() -> http::Response<Body> {
    use axum::response::IntoResponse;
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", REASON).into_response()
}

#[tokio::test]
async fn with_the_disk_full_nothing_is_lost_and_nothing_is_done_twice() {
    let site = Site::new().await;
    let node = site.host("room", 0).await;
    let (crash, user) = (Crash::never(), User::of(&site, &node));
    site.live(&node, &crash, async |host| user.look(host).await).await;
    let asked = &node.asked();
    let edges = crash.edges.lock().unwrap().clone();
    let writes: Vec<usize> = edges
        .iter()
        .enumerate()
        .filter(|(_, edge)| ["POST ", "PUT ", "PATCH ", "DELETE "].iter().any(|verb| edge.contains(verb)))
        .map(|(at, _)| at)
        .collect();
    assert!(writes.len() > 30, "{edges:#?}");

    let runs = futures::stream::iter(writes).map(|at| {
        let site = site.clone();
        async move {
            let node = site.host(&format!("h{at}"), at + 1).await;
            let (crash, user) = (Arc::new(Crash::new(at, true)), User::of(&site, &node));
            site.live(&node, &crash, async |host| user.look(host).await).await;
            let full = crash.is_full();
            let first = crash.edges.lock().unwrap().get(at).cloned();
            assert_eq!(
                node.changes(),
                ["erase while preparing", "write while provisioning", "erase while deprovisioning"],
                "full {first:?}"
            );
            assert_eq!(node.asked(), *asked, "full {first:?}");
            full
        }
    });
    let full: Vec<bool> = runs.buffer_unordered(AT_ONCE).collect().await;
    // A way is not always as long as the first one: how often progress is noted is a matter of time.
    let missed = full.iter().filter(|full| !**full).count();
    assert!(missed * 4 < full.len(), "{missed} of {} came to their end first", full.len());
}
