//! The token of the agent's account: renewed while it is good, and written so that there is a whole one at any time.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::client::{CallError, Client};
use super::config::NodeConfig;
use super::files;

/// Least time that a token can be asked for, in seconds.
const LEAST: i64 = 600;

/// What a token says of itself. It is not checked: who checks it is the appliance.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Claims {
    pub from: i64,
    pub until: i64,
    pub namespace: String,
    pub account: String,
}

/// Reads a token of an account (RFC 7519).
pub(super) fn claims(token: &str) -> Option<Claims> {
    #[derive(Deserialize)]
    struct Payload {
        iat: Value,
        exp: Value,
        sub: String,
    }
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let payload: Payload = serde_json::from_slice(&payload).ok()?;
    let (namespace, account) = payload.sub.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let good = |name: &str| {
        !name.is_empty() && name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-' || c == b'.')
    };
    (good(namespace) && good(account)).then_some(())?;
    let second = |value: &Value| value.as_i64().or_else(|| value.as_f64().map(|number| number as i64));
    Some(Claims {
        from: second(&payload.iat)?,
        until: second(&payload.exp)?,
        namespace: namespace.to_owned(),
        account: account.to_owned(),
    })
}

/// Whether it is to be renewed: a third of its time is left, or less.
pub(super) fn is_due(claims: &Claims, now: Timestamp) -> bool {
    let third = claims.until.saturating_sub(claims.from) / 3;
    now.as_second() >= claims.until.saturating_sub(third)
}

/// Renews the token for as long as it was good.
pub(super) async fn renew(client: &Client, config: &NodeConfig, claims: &Claims) -> Result<(), CallError> {
    let seconds = claims.until.saturating_sub(claims.from).max(LEAST);
    let token = client.new_token(&claims.namespace, &claims.account, seconds).await?;
    if self::claims(&token).is_none() {
        return Err(CallError::Local("the new token cannot be read: the old one is kept".into()));
    }
    let fail = |error| CallError::Local(format!("{}: {error}", config.token_file.display()));
    files::replace(&config.token_file, token.as_bytes(), 0o600).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(payload: &str) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload))
    }

    #[test]
    fn a_token_is_renewed_when_a_third_of_its_time_is_left() {
        let claims = claims(&token(r#"{"iat":1000,"exp":4000,"sub":"system:serviceaccount:rack:lcm-n1"}"#)).unwrap();
        assert_eq!((claims.namespace.as_str(), claims.account.as_str()), ("rack", "lcm-n1"));
        let at = |second| Timestamp::from_second(second).unwrap();
        assert!(!is_due(&claims, at(2999)));
        assert!(is_due(&claims, at(3000)) && is_due(&claims, at(9000)));
    }

    #[test]
    fn what_is_no_token_of_an_account_is_not_renewed() {
        for bad in [
            String::new(),
            "opaque".into(),
            "a.b.c".into(),
            token("{}"),
            token(r#"{"iat":1,"exp":2,"sub":"slipway-admin"}"#),
            token(r#"{"iat":1,"exp":2,"sub":"system:serviceaccount:a/../b:c"}"#),
        ] {
            assert_eq!(claims(&bad), None, "{bad}");
        }
    }
}
