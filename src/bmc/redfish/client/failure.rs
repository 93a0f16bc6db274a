//! What became of a request to a Redfish service: what failed, what is worth another try, and what is counted.

use http::header::{HeaderMap, LOCATION};
use http::{Method, StatusCode};
use reqwest::Url;
use serde_json::json;

use super::{RedfishResponse, TOKEN};
use crate::bmc::metrics::BmcOutcome;
use crate::bmc::redfish::body::Unread;
use crate::bmc::redfish::message;
use crate::bmc::redfish::tls;
use crate::outbound::{self, ForbiddenAddress};

pub(super) enum ExchangeFailure {
    Http(outbound::client::OutboundError),
    Body(Unread),
    /// To this origin.
    SentAway(String),
    /// The appliance does not connect there.
    Forbidden(ForbiddenAddress),
}

impl ExchangeFailure {
    /// The refusal of its address, or of those of its name.
    pub(super) fn refused(&self) -> Option<&ForbiddenAddress> {
        match self {
            Self::Forbidden(refused) => Some(refused),
            Self::Http(error) => outbound::refusal(error),
            _ => None,
        }
    }
}

/// What a request shows to be let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestCredentials {
    Nothing,
    Password,
    Session,
}

impl RequestCredentials {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        if headers.contains_key(TOKEN) {
            Self::Session
        } else if headers.contains_key(http::header::AUTHORIZATION) {
            Self::Password
        } else {
            Self::Nothing
        }
    }
}

/// What counts as the outcome of a request; nothing where none was sent.
pub(super) fn outcome(
    sent: (Method, RequestCredentials),
    result: &Result<(RedfishResponse, HeaderMap), ExchangeFailure>,
) -> Option<BmcOutcome> {
    Some(match result {
        Ok((answer, _)) => answered(sent, answer.status),
        Err(failure) if failure.refused().is_some() => return None,
        Err(ExchangeFailure::Forbidden(_)) => return None,
        Err(ExchangeFailure::Http(error)) if error.is_timeout() => BmcOutcome::Timeout,
        Err(ExchangeFailure::Http(_)) => BmcOutcome::Unreachable,
        Err(ExchangeFailure::Body(_) | ExchangeFailure::SentAway(_)) => BmcOutcome::Invalid,
    })
}

pub(super) fn answered((method, shown): (Method, RequestCredentials), status: StatusCode) -> BmcOutcome {
    // Without any login only a login is posted.
    let logs_in = shown == RequestCredentials::Nothing && method == Method::POST;
    match status {
        status if status.is_success() => BmcOutcome::Ok,
        StatusCode::UNAUTHORIZED if shown == RequestCredentials::Session => BmcOutcome::SessionEnded,
        StatusCode::UNAUTHORIZED if shown == RequestCredentials::Password => BmcOutcome::LoginFailed,
        StatusCode::UNAUTHORIZED | StatusCode::BAD_REQUEST | StatusCode::FORBIDDEN if logs_in => {
            BmcOutcome::LoginFailed
        }
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => BmcOutcome::Busy,
        _ => BmcOutcome::Refused,
    }
}

/// Where a redirect leads.
pub(super) fn redirect(asked: &Url, status: StatusCode, headers: &HeaderMap) -> Option<Url> {
    let location = headers.get(LOCATION).filter(|_| status.is_redirection())?.to_str().ok()?;
    asked.join(location).ok()
}

/// Where a redirect leads, as `scheme://host:port`, when that is not where it came from.
pub(super) fn elsewhere(status: StatusCode, asked: &Url, headers: &HeaderMap) -> Option<String> {
    let target = redirect(asked, status, headers)?;
    let away = target.origin() != asked.origin();
    away.then(|| message::clean(&target.origin().ascii_serialization(), 128))
}

/// Statuses that ask for patience. Other server errors are only tried again where nothing can happen twice.
pub(super) fn is_passing(method: &Method, status: StatusCode) -> bool {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => true,
        s => s.is_server_error() && *method == Method::GET && s != StatusCode::NOT_IMPLEMENTED,
    }
}

/// Whether the connection broke under way. Every request made here may be repeated: writes set what they set again.
pub(super) fn is_broken(error: &outbound::client::OutboundError) -> bool {
    use std::io::ErrorKind::*;
    if error.is_timeout() || tls::explain(error).is_some() {
        return false;
    }
    let closed = "connection closed before message completed";
    match error.io_kind() {
        Some(kind) => matches!(kind, ConnectionReset | ConnectionAborted | BrokenPipe | UnexpectedEof),
        None => chain(error).contains(closed),
    }
}

/// The error with its causes, without the URL.
pub(super) fn chain(error: &outbound::client::OutboundError) -> String {
    let mut out = String::new();
    let mut next = std::error::Error::source(error);
    while let Some(e) = next {
        let text = e.to_string();
        if !out.contains(&text) {
            if !out.is_empty() {
                out.push_str(": ");
            }
            out.push_str(&text);
        }
        next = e.source();
    }
    if out.is_empty() { "the request failed".into() } else { out }
}

/// `Location` may be a whole URL; its path is what counts.
pub(super) fn local_path(location: &str) -> Option<String> {
    let path = match location.split_once("://") {
        Some((_, rest)) => rest.find('/').map(|at| &rest[at..])?,
        None => location,
    };
    crate::bmc::redfish::model::link(&json!({ "@odata.id": path }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_counts_by_what_was_shown() {
        use RequestCredentials::*;
        let rows = [
            (Method::GET, Session, 200, BmcOutcome::Ok),
            (Method::GET, Session, 401, BmcOutcome::SessionEnded),
            (Method::GET, Session, 403, BmcOutcome::Refused),
            (Method::GET, Session, 404, BmcOutcome::Refused),
            (Method::GET, Session, 503, BmcOutcome::Busy),
            (Method::PATCH, Session, 400, BmcOutcome::Refused),
            (Method::GET, Password, 401, BmcOutcome::LoginFailed),
            (Method::GET, Password, 403, BmcOutcome::Refused),
            (Method::POST, Nothing, 401, BmcOutcome::LoginFailed),
            (Method::POST, Nothing, 400, BmcOutcome::LoginFailed),
            (Method::GET, Nothing, 401, BmcOutcome::Refused),
        ];
        for (method, shown, status, wanted) in rows {
            let found = answered((method.clone(), shown), StatusCode::from_u16(status).expect("a status"));
            assert_eq!(found, wanted, "{method} {shown:?} {status}");
        }
    }
}
