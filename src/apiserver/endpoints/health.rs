//! `/healthz`, `/livez` and `/readyz`: named checks, answered in upstream's words
//! (<https://kubernetes.io/docs/reference/using-api/health-checks/>).
//!
//! Everybody may ask, so that a failed check is named and its reason goes to the log only: once for each reason, however
//! often it is asked.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};

use crate::apiserver::answers::status::ApiError;

/// Whether all is well, or why not.
pub type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What a check speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthScope {
    /// When it fails, a restart is what helps: asked by all three.
    Life,
    /// When it fails, requests should go elsewhere or wait: asked by `/readyz` only.
    Readiness,
}

/// The checks of a server.
#[derive(Default)]
pub(in crate::apiserver) struct Checks {
    // std's lock: held to copy the list only.
    all: RwLock<Vec<HealthCheck>>,
}

/// A check. Cheap to clone.
#[derive(Clone)]
struct HealthCheck {
    name: &'static str,
    scope: HealthScope,
    check: Check,
    /// Why it failed when it was asked last, which the log says already.
    // std's lock: held to compare and replace only.
    said: Arc<Mutex<Option<String>>>,
}

impl HealthCheck {
    /// Asks it, and says in the log what was not said before.
    fn ask(&self) -> Result<(), String> {
        let result = (self.check)();
        let now = result.as_ref().err();
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.as_ref() != now {
            match now {
                Some(reason) => tracing::warn!(check = self.name, reason, "a health check fails"),
                None => tracing::info!(check = self.name, "a health check passes again"),
            }
            *said = now.cloned();
        }
        result
    }
}

impl Checks {
    pub fn add(&self, name: &'static str, scope: HealthScope, check: Check) {
        self.all.write().unwrap_or_else(PoisonError::into_inner).push(HealthCheck {
            name,
            scope,
            check,
            said: Arc::default(),
        });
    }

    /// Answers a path as `/readyz` or `/readyz/store`.
    pub fn serve(&self, path: &str, query: &str) -> Result<Response, ApiError> {
        let mut segments = path.split('/').filter(|segment| !segment.is_empty());
        let endpoint = segments.next().unwrap_or_default();
        let one = segments.next();
        if segments.next().is_some() {
            return Err(ApiError::no_such_path());
        }
        let checks = self.all.read().unwrap_or_else(PoisonError::into_inner).clone();
        let asked = checks.iter().filter(|check| check.scope == HealthScope::Life || endpoint == "readyz");
        let asked = asked.filter(|check| one.is_none_or(|one| one == check.name));
        let results: Vec<(&str, Result<(), String>)> = asked.map(|check| (check.name, check.ask())).collect();
        match one {
            Some(_) => match results.first() {
                None => Err(ApiError::no_such_path()),
                Some((_, Ok(()))) => Ok(text(StatusCode::OK, "ok".into())),
                Some((_, Err(_))) => {
                    Ok(text(StatusCode::INTERNAL_SERVER_ERROR, "internal server error: reason withheld\n".into()))
                }
            },
            None => {
                let (code, body) = report(endpoint, query, &results);
                Ok(text(code, body))
            }
        }
    }
}

/// The answer of a whole endpoint.
fn report(endpoint: &str, query: &str, results: &[(&str, Result<(), String>)]) -> (StatusCode, String) {
    let parameters = || query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let mut excluded: Vec<&str> = parameters().filter(|(key, _)| *key == "exclude").map(|(_, name)| name).collect();
    let mut lines = String::new();
    let mut failed = false;
    for (name, result) in results {
        if excluded.contains(name) {
            excluded.retain(|one| one != name);
            lines.push_str(&format!("[+]{name} excluded: ok\n"));
        } else if result.is_ok() {
            lines.push_str(&format!("[+]{name} ok\n"));
        } else {
            failed = true;
            lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
        }
    }
    if !excluded.is_empty() {
        let names: Vec<String> = excluded.iter().take(16).map(|name| format!("{name:?}")).collect();
        let names = names.join(",");
        lines.push_str(&format!("warn: some health checks cannot be excluded: no matches for {names}\n"));
    }
    if failed {
        (StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}{endpoint} check failed\n"))
    } else if parameters().any(|(key, _)| key == "verbose") {
        (StatusCode::OK, format!("{lines}{endpoint} check passed\n"))
    } else {
        (StatusCode::OK, "ok".into())
    }
}

fn text(code: StatusCode, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_answer_in_upstreams_words() {
        let well = [("ping", Ok(())), ("store", Ok(()))];
        let ill = [("ping", Ok(())), ("store", Err("the disk is full".to_owned()))];
        for (results, query, code, wanted) in [
            (&well, "", 200, "ok"),
            (&well, "verbose", 200, "[+]ping ok\n[+]store ok\nreadyz check passed\n"),
            (&ill, "", 500, "[+]ping ok\n[-]store failed: reason withheld\nreadyz check failed\n"),
            (&ill, "verbose&exclude=store", 200, "[+]ping ok\n[+]store excluded: ok\nreadyz check passed\n"),
            (&ill, "exclude=store", 200, "ok"),
            (
                &well,
                "exclude=etcd&verbose=true",
                200,
                "[+]ping ok\n[+]store ok\nwarn: some health checks cannot be excluded: no matches for \"etcd\"\n\
                 readyz check passed\n",
            ),
        ] {
            let (found, body) = report("readyz", query, results);
            assert_eq!((found.as_u16(), body.as_str()), (code, wanted), "{query:?}");
        }
    }
}
