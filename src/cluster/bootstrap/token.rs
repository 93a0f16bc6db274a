//! Tokens that nodes join with: Secrets in the cluster that was made.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use rand::seq::IndexedRandom;
use serde_json::json;

use super::admission::is_token;

/// How long a token is good whose machine is about to begin.
const LIFETIME: SignedDuration = SignedDuration::from_mins(15);
/// A token that is good for less than this is made good for its whole time again.
const ENOUGH: SignedDuration = SignedDuration::from_secs(15 * 60 * 5 / 6);

/// How long tokens are good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// From when they are made.
    pub whole: SignedDuration,
    /// One that is good for less is made good for the whole time again.
    pub enough: SignedDuration,
}

/// Tokens of machines whose user data is made when they are to begin.
pub const SHORT: Lifetime = Lifetime { whole: LIFETIME, enough: ENOUGH };
/// Where tokens are.
const NAMESPACE: &str = "kube-system";
const TYPE: &str = "bootstrap.kubernetes.io/token";
const SECRET: &str = "token-secret";
const EXPIRATION: &str = "expiration";
/// Whoever has the token may ask for a node's certificate.
const GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// A new token.
pub fn fresh() -> String {
    let mut lot = rand::rng();
    let mut drawn = |count: usize| -> String {
        (0..count).filter_map(|_| LETTERS.choose(&mut lot)).map(|letter| char::from(*letter)).collect()
    };
    format!("{}.{}", drawn(6), drawn(16))
}

/// What is to be done about a token.
#[derive(Debug, PartialEq, Eq)]
enum TokenStep {
    /// It is to be made.
    Make,
    /// It is to be good for longer.
    Extend,
    /// Nothing.
    Rest,
}

fn decide(secret: Option<&Secret>, enough: SignedDuration, now: Timestamp) -> TokenStep {
    let Some(secret) = secret else { return TokenStep::Make };
    let expiration = secret.data.as_ref().and_then(|data| data.get(EXPIRATION));
    let expiration = expiration.and_then(|text| std::str::from_utf8(&text.0).ok()?.parse::<Timestamp>().ok());
    match expiration {
        Some(expiration) if expiration.duration_since(now) > enough => TokenStep::Rest,
        _ => TokenStep::Extend,
    }
}

/// Whether the cluster has this token under its name.
fn is_same(known: &Secret, secret: &str) -> bool {
    known.data.as_ref().and_then(|data| data.get(SECRET)).is_some_and(|known| known.0 == secret.as_bytes())
}

/// Sees to it that a token is in the cluster, and good for a while.
///
/// # Errors
///
/// When the text is no token; what the cluster says.
pub async fn ensure(
    cluster: &Client,
    token: &str,
    lifetime: Lifetime,
    now: Timestamp,
) -> Result<(), BootstrapTokenError> {
    let (id, secret) = token.split_once('.').filter(|_| is_token(token)).ok_or(BootstrapTokenError::Form)?;
    let name = format!("bootstrap-token-{id}");
    let secrets = Api::<Secret>::namespaced(cluster.clone(), NAMESPACE);
    let known = secrets.get_opt(&name).await?;
    if known.as_ref().is_some_and(|known| !is_same(known, secret)) {
        return Err(BootstrapTokenError::Other(name));
    }
    let expiration = (now + lifetime.whole).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let data = |text: &str| ByteString(text.as_bytes().to_vec());
    match decide(known.as_ref(), lifetime.enough, now) {
        TokenStep::Rest => {}
        TokenStep::Extend => {
            let version = known.as_ref().and_then(ResourceExt::resource_version);
            let patch = json!({"metadata": {"resourceVersion": version}, "data": {EXPIRATION: data(&expiration)}});
            secrets.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        TokenStep::Make => {
            let content = [
                ("token-id", id),
                (SECRET, secret),
                (EXPIRATION, expiration.as_str()),
                ("usage-bootstrap-signing", "true"),
                ("usage-bootstrap-authentication", "true"),
                ("auth-extra-groups", GROUP),
                ("description", "made for a node that joins"),
            ];
            let secret = Secret {
                metadata: ObjectMeta { name: Some(name), namespace: Some(NAMESPACE.into()), ..ObjectMeta::default() },
                type_: Some(TYPE.to_owned()),
                data: Some(content.into_iter().map(|(key, text)| (key.to_owned(), data(text))).collect()),
                ..Secret::default()
            };
            secrets.create(&PostParams::default(), &secret).await?;
        }
    }
    Ok(())
}

/// A token cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapTokenError {
    /// It is none.
    #[error("the token of joinConfiguration.discovery.bootstrapToken is not of the form abcdef.0123456789abcdef")]
    Form,
    /// The cluster has another one of the same name.
    #[error("the Secret {0:?} in the cluster is of another token")]
    Other(String),
    /// What the cluster says.
    #[error("the cluster's API server: {}", crate::cluster::workload::said(.0))]
    Api(#[from] kube::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_new_each_time() {
        let (one, other) = (fresh(), fresh());
        assert!(is_token(&one) && is_token(&other) && one != other, "{one} {other}");
    }

    #[test]
    fn a_token_is_made_once_and_kept_good() {
        let now = Timestamp::from_second(1_790_000_000).unwrap();
        let secret = |expiration: Option<&str>| Secret {
            data: expiration.map(|text| [(EXPIRATION.to_owned(), ByteString(text.as_bytes().to_vec()))].into()),
            ..Secret::default()
        };
        let at = |seconds: i64| (now + SignedDuration::from_secs(seconds)).to_string();
        for (known, wanted) in [
            (None, TokenStep::Make),
            (Some(secret(None)), TokenStep::Extend),
            (Some(secret(Some("soon"))), TokenStep::Extend),
            (Some(secret(Some(&at(900)))), TokenStep::Rest),
            (Some(secret(Some(&at(751)))), TokenStep::Rest),
            (Some(secret(Some(&at(749)))), TokenStep::Extend),
            (Some(secret(Some(&at(-1)))), TokenStep::Extend),
        ] {
            assert_eq!(decide(known.as_ref(), ENOUGH, now), wanted, "{known:?}");
        }
        let has = |text: &str| Secret {
            data: Some([(SECRET.to_owned(), ByteString(text.as_bytes().to_vec()))].into()),
            ..Secret::default()
        };
        assert!(is_same(&has("0123456789abcdef"), "0123456789abcdef"));
        assert!(!is_same(&has("0123456789abcdee"), "0123456789abcdef") && !is_same(&secret(None), ""));
    }
}
