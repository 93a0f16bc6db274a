//! `GET …/provisionings/NAME/log` and `…/softwares/NAME/log`: what Ansible printed in the object's last run, as
//! `slipway kubespray log --provisioning` and `--software` read it.
//!
//! Parameters are those of a pod's log where they mean the same: `follow`, and `previous` for the run before the last one.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{StatusCode, header};

use crate::apiserver::{ApiError, ObjectView};
use crate::kubespray::runs::{LogPart, RunId, Runs};

/// How often a followed log is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// The runs of this box, when there are any.
pub type KnownRuns = Arc<OnceLock<Runs>>;

/// Says which object has a name, by its UID.
pub type UidLookup = Arc<dyn Fn(&str, &str) -> Option<String> + Send + Sync>;

/// The view, for the API server.
pub fn view(known: KnownRuns, uids: UidLookup) -> ObjectView {
    Arc::new(move |request| {
        let (known, uids) = (known.clone(), uids.clone());
        Box::pin(async move {
            let (mut follow, mut previous) = (false, false);
            for (key, value) in form_urlencoded::parse(request.query.as_bytes()) {
                let flag = !(value == "0" || value.eq_ignore_ascii_case("false"));
                match key.as_ref() {
                    "follow" => follow = flag,
                    "previous" => previous = flag,
                    _ => {}
                }
            }
            let none = || {
                let message = format!("{} has no run whose log is on this appliance", request.name);
                ApiError::new(StatusCode::NOT_FOUND, "NotFound", message)
            };
            let runs = known.get().ok_or_else(none)?.clone();
            // Not another one that had the name before.
            let uid = uids(&request.namespace, &request.name).ok_or_else(none)?;
            let (all, nth) = (runs.clone(), usize::from(previous));
            let found = tokio::task::spawn_blocking(move || all.of_object(&uid)).await;
            let found = found.map_err(|_| ApiError::internal("the runs cannot be read".to_owned()))?;
            let found = found.map_err(|error| ApiError::internal(format!("the runs cannot be read: {error}")))?;
            let id = found.into_iter().rev().nth(nth).ok_or_else(none)?;
            Ok(answer(runs, id, follow))
        })
    })
}

/// The log in parts, to what is there, or to the run's end.
fn answer(runs: Runs, id: RunId, follow: bool) -> Response {
    let parts = stream::unfold(Some(0), move |from| {
        let (runs, id) = (runs.clone(), id.clone());
        async move {
            let mut from = from?;
            loop {
                let (reading, of) = (runs.clone(), id.clone());
                let part = tokio::task::spawn_blocking(move || reading.log(&of, from)).await;
                let LogPart { bytes, next, last } = match part {
                    Ok(Ok(part)) => part,
                    Ok(Err(error)) => return Some((Err(std::io::Error::other(error)), None)),
                    Err(error) => return Some((Err(std::io::Error::other(error)), None)),
                };
                let ends = last || bytes.is_empty() && !follow;
                from = next;
                if !bytes.is_empty() {
                    return Some((Ok(Bytes::from(bytes)), (!ends).then_some(from)));
                }
                if ends {
                    return None;
                }
                tokio::time::sleep(LOOK).await;
            }
        }
    });
    let head = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::CACHE_CONTROL, "no-store")];
    (head, Body::from_stream(parts.boxed())).into_response()
}
