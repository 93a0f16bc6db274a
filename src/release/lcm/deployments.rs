//! The Secret of each machine's deployment, and the token in it by which a machine joins.
//!
//! A token is made in the cluster first and written down then: one that a machine reads is good. It is taken away when the machine is
//! ready, for who has it may become a node.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use super::deployment::TYPE;
use super::material::{Material, meta};
use crate::api::lcm::{LCMCluster, LCMClusterSpec, LCMMachine, MachineRole};
use crate::cluster::bootstrap::token::{self, BootstrapTokenError, Lifetime};
use crate::cluster::workload::Workload;
use crate::runtime::conditions::whole;
use crate::runtime::{Conflict, owners};

/// Key of the token.
const TOKEN: &str = "join-token";
/// Annotation of the Secret: when the token ends.
const EXPIRES: &str = "lcm.mirantis.com/token-expires";
/// How long a token is good where nobody says, and the longest that one is.
const TTL: SignedDuration = SignedDuration::from_hours(24);
const TTL_MAX: SignedDuration = SignedDuration::from_hours(24 * 7);
/// A token that is good for less is made anew, where nobody says.
const REMAINING: SignedDuration = SignedDuration::from_hours(1);
/// The shortest that a token is good.
const TTL_MIN: SignedDuration = SignedDuration::from_mins(10);

/// Why a Secret of a deployment cannot be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeploymentError {
    /// What the API says.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// It is another one's.
    #[error("the Secret {0:?} is not of this machine: delete it")]
    Strange(String),
    /// The token cannot be made.
    #[error("no token to join can be made: {0}")]
    Token(#[from] BootstrapTokenError),
}

impl Conflict for DeploymentError {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Api(kube::Error::Api(status)) => status.is_conflict() || status.is_already_exists(),
            Self::Api(_) | Self::Strange(_) | Self::Token(_) => false,
        }
    }
}

/// Name of the Secret of a machine's deployment.
pub(super) fn name(machine: &str) -> String {
    format!("{machine}-deployment")
}

/// How long tokens of a cluster are good. What cannot be read, or makes no sense, is as if nobody said it.
pub(super) fn lifetime(spec: &LCMClusterSpec) -> Lifetime {
    let read = |text: &str| text.parse::<SignedDuration>().ok();
    let whole = read(&spec.token_ttl).filter(|ttl| *ttl >= TTL_MIN).unwrap_or(TTL).min(TTL_MAX);
    let enough = read(&spec.min_token_remaining_ttl).filter(|left| left.is_positive()).unwrap_or(REMAINING);
    Lifetime { whole, enough: enough.min(whole / 2) }
}

/// A machine whose Secret is kept.
pub(super) struct DeploymentMachine<'a> {
    pub cluster: &'a LCMCluster,
    /// Its name, and UID.
    pub name: &'a str,
    pub uid: &'a str,
    pub role: MachineRole,
    /// None where the machine's steps need nothing.
    pub material: Option<&'a Material>,
    /// The cluster that it joins; none where it joins none now.
    pub joins: Option<&'a Workload>,
}

/// What is to be done about the token in a Secret. Pure.
#[derive(Debug, PartialEq, Eq)]
enum AgentTokenStep {
    /// It is good until then.
    Keep(String, Timestamp),
    /// Another one is to be made.
    Make,
}

fn decide(found: Option<&Secret>, lifetime: Lifetime, now: Timestamp) -> AgentTokenStep {
    let known = found.and_then(|found| {
        let token = String::from_utf8(found.data.as_ref()?.get(TOKEN)?.0.clone()).ok()?;
        Some((token, found.annotations().get(EXPIRES)?.parse::<Timestamp>().ok()?))
    });
    match known {
        Some((token, expires)) if expires.duration_since(now) >= lifetime.enough => {
            AgentTokenStep::Keep(token, expires)
        }
        _ => AgentTokenStep::Make,
    }
}

/// Sees to it that a machine's Secret has what the machine needs now. When it is to be looked at again: a while before its token ends.
pub(super) async fn keep(
    client: &Client,
    whose: &DeploymentMachine<'_>,
    now: Timestamp,
) -> Result<Option<Timestamp>, DeploymentError> {
    let name = name(whose.name);
    let secrets = Api::<Secret>::namespaced(client.clone(), &whose.cluster.namespace().unwrap_or_default());
    let found = secrets.get_opt(&name).await?;
    if found.as_ref().is_some_and(|found| !owners::is_owned(&found.metadata, whose.uid)) {
        return Err(DeploymentError::Strange(name));
    }
    let mut data = content(whose);
    let lifetime = lifetime(&whose.cluster.spec);
    let mut expires = None;
    if let Some(cluster) = whose.joins {
        let (token, end) = match decide(found.as_ref(), lifetime, now) {
            AgentTokenStep::Keep(token, end) => (token, end),
            AgentTokenStep::Make => {
                let (token, end) = (token::fresh(), whole(now + lifetime.whole));
                token::ensure(cluster.client(), &token, lifetime, now).await?;
                (token, end)
            }
        };
        data.insert(TOKEN.to_owned(), ByteString(token.into_bytes()));
        expires = Some(end);
    }
    let annotation = expires.map(|end| end.to_string());
    match found {
        Some(found) => {
            let is_same = found.data.clone().unwrap_or_default() == data
                && found.annotations().get(EXPIRES) == annotation.as_ref();
            if !is_same {
                // Keys that are not there any more go.
                let gone = found.data.iter().flatten().filter(|(key, _)| !data.contains_key(*key));
                let mut all: serde_json::Map<String, serde_json::Value> =
                    data.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
                all.extend(gone.map(|(key, _)| (key.clone(), serde_json::Value::Null)));
                let metadata =
                    json!({"resourceVersion": found.resource_version(), "annotations": {EXPIRES: annotation}});
                let patch = json!({"metadata": metadata, "data": all});
                secrets.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            }
        }
        None => {
            let mut owner = LCMMachine::new(whose.name, Default::default());
            owner.metadata.uid = Some(whose.uid.to_owned());
            let mut metadata = meta(whose.cluster, &name, TYPE, owners::owner(&owner, true));
            if let Some(annotation) = annotation {
                metadata.annotations.get_or_insert_default().insert(EXPIRES.to_owned(), annotation);
            }
            let secret = Secret { metadata, data: Some(data), ..Secret::default() };
            secrets.create(&PostParams::default(), &secret).await?;
        }
    }
    Ok(expires.map(|end| end - lifetime.enough))
}

/// What stands in the Secret beside the token. Pure.
fn content(whose: &DeploymentMachine<'_>) -> BTreeMap<String, ByteString> {
    let Some(material) = whose.material else { return BTreeMap::new() };
    let mut content = BTreeMap::from([("ca-hash".to_owned(), ByteString(material.ca_hash.clone().into_bytes()))]);
    if whose.role == MachineRole::Control {
        let files = material.files.iter().map(|(key, text)| (key.clone(), ByteString(text.clone().into_bytes())));
        content.extend(files);
    }
    content
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_made_anew_a_while_before_it_ends() {
        let now = Timestamp::from_second(1_790_000_000).unwrap();
        let secret = |token: Option<&str>, expires: Option<Timestamp>| Secret {
            metadata: kube::core::ObjectMeta {
                annotations: expires.map(|expires| [(EXPIRES.to_owned(), expires.to_string())].into()),
                ..Default::default()
            },
            data: token.map(|token| [(TOKEN.to_owned(), ByteString(token.as_bytes().to_vec()))].into()),
            ..Secret::default()
        };
        let lifetime = lifetime(&LCMClusterSpec::default());
        let hour = SignedDuration::from_hours(1);
        let second = SignedDuration::from_secs(1);
        for (found, wanted) in [
            (None, AgentTokenStep::Make),
            (Some(secret(None, None)), AgentTokenStep::Make),
            (Some(secret(Some("t"), None)), AgentTokenStep::Make),
            (Some(secret(Some("t"), Some(now + hour - second))), AgentTokenStep::Make),
            (Some(secret(Some("t"), Some(now + hour))), AgentTokenStep::Keep("t".into(), now + hour)),
        ] {
            assert_eq!(decide(found.as_ref(), lifetime, now), wanted, "{found:?}");
        }
    }

    #[test]
    fn times_of_tokens_have_bounds() {
        let of = |ttl: &str, left: &str| {
            let spec = LCMClusterSpec {
                token_ttl: ttl.into(),
                min_token_remaining_ttl: left.into(),
                ..LCMClusterSpec::default()
            };
            let Lifetime { whole, enough } = lifetime(&spec);
            (whole.as_secs() / 60, enough.as_secs() / 60)
        };
        for (ttl, left, wanted) in [
            ("", "", (1440, 60)),
            ("24h", "1h", (1440, 60)),
            ("2h", "30m", (120, 30)),
            ("1h", "", (60, 30)),
            ("1s", "1s", (1440, 0)),
            ("-1h", "-1h", (1440, 60)),
            ("9999h", "x", (7 * 1440, 60)),
        ] {
            assert_eq!(of(ttl, left), wanted, "{ttl} {left}");
        }
    }

    #[test]
    fn a_worker_is_told_nothing_of_the_control_plane() {
        let material =
            Material { ca_hash: "sha256:1".into(), files: [("ca.key".to_owned(), "secret".to_owned())].into() };
        let cluster = LCMCluster::new("c", Default::default());
        let whose =
            |role, material| DeploymentMachine { cluster: &cluster, name: "m", uid: "1", role, material, joins: None };
        let keys = |role, material| content(&whose(role, material)).into_keys().collect::<Vec<_>>();
        assert_eq!(keys(MachineRole::Worker, Some(&material)), ["ca-hash"]);
        assert_eq!(keys(MachineRole::Control, Some(&material)), ["ca-hash", "ca.key"]);
        assert!(keys(MachineRole::Control, None).is_empty());
    }
}
