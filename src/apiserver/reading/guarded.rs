//! Long answers end with their caller's rights.
//!
//! Answers that go on for long (the log of a host, followed) end with the rights of who asked for them, as watches do.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use futures::StreamExt;
use http_body::Body as _;
use tokio::time::sleep;

/// How long an answer may go on, while nothing comes, after its caller's credentials ended or the permission was taken.
const RECHECK: Duration = Duration::from_secs(5);

/// The answer, for as long as `may_go_on`; unchanged when it is all there already.
pub(in crate::apiserver) fn guard(response: Response, may_go_on: impl Fn() -> bool + Send + 'static) -> Response {
    guard_every(RECHECK, response, may_go_on)
}

fn guard_every(recheck: Duration, response: Response, may_go_on: impl Fn() -> bool + Send + 'static) -> Response {
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    response.map(move |body| {
        let state = (body.into_data_stream(), may_go_on);
        Body::from_stream(futures::stream::unfold(state, move |(mut data, may_go_on)| async move {
            loop {
                let piece = tokio::select! {
                    piece = data.next() => Some(piece?),
                    () = sleep(recheck) => None,
                };
                if !may_go_on() {
                    return None;
                }
                if let Some(piece) = piece {
                    return Some((piece, (data, may_go_on)));
                }
            }
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[tokio::test]
    async fn a_long_answer_ends_with_its_rights() {
        let allowed = Arc::new(AtomicBool::new(true));
        let guarded = |body: Body| {
            let allowed = Arc::clone(&allowed);
            guard_every(Duration::from_millis(1), Response::new(body), move || allowed.load(Ordering::Relaxed))
                .into_body()
                .into_data_stream()
        };
        let first = || futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"a"))]);
        let mut quiet = guarded(Body::from_stream(first().chain(futures::stream::pending())));
        let mut busy = guarded(Body::from_stream(first().chain(first())));
        assert_eq!(quiet.next().await.unwrap().unwrap(), "a");
        assert_eq!(busy.next().await.unwrap().unwrap(), "a");
        let whole = guarded(Body::from("all"));
        allowed.store(false, Ordering::Relaxed);
        // One that says nothing is looked at now and then; of one that goes on no more is shown.
        assert!(quiet.next().await.is_none() && busy.next().await.is_none());
        assert_eq!(whole.collect::<Vec<_>>().await.len(), 1);
    }
}
