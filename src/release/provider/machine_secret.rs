//! The Secret with the user data of a Machine's host: the user's own, and what puts the agent there with a token of its account.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};

use super::accounts;
use super::machines::{content, own_user_data};
use super::user_data::{self, AgentSetup};
use crate::api::lcm::AgentConfig;
use crate::api::machine_api::Machine;
use crate::release::keep::{self, KeepError};
use crate::release::names::{self, ANNOTATION_INPUTS, ANNOTATION_TOKEN_EXPIRES, USER_DATA_SUFFIX};

/// How long a token in user data is good, in seconds; the agent renews it.
const TOKEN_SECONDS: i64 = 30 * 24 * 3600;
/// A token that is good for less is made anew, as long as no host has it: a host may be provisioned for days.
const TOKEN_LEAST: SignedDuration = SignedDuration::from_hours(20 * 24);

/// There is no user data.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// What the API says.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// Its name is taken.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// Somebody must mend it, or it is early.
    #[error("{0}")]
    Waits(String),
}

/// What user data is to be of.
#[derive(Clone, Copy, Debug)]
pub struct WantedUserData<'a> {
    /// The Machine.
    pub machine: &'a Machine,
    /// Account of its agent.
    pub account: &'a ServiceAccount,
    /// The agent.
    pub agent: &'a AgentConfig,
    /// URL of the appliance's API.
    pub server: &'a str,
    /// The appliance's CA certificate.
    pub ca_pem: &'a str,
}

/// Has the Secret be there, of what it is to be of, and with a token that is good for long. Whether a host has it already: then it stays.
///
/// # Errors
///
/// When its name is somebody else's, or what it is to be of is not there; what the API says.
pub async fn provide(
    client: &Client,
    namespace: &str,
    wanted: &WantedUserData<'_>,
    owner: &OwnerReference,
    now: Timestamp,
) -> Result<bool, SecretError> {
    let name = names::user_data(&wanted.machine.name_any());
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let found = keep::own(&secrets, &name, owner).await?;
    let is_told = told(wanted.machine);
    if is_told && found.is_some() {
        return Ok(true);
    }
    let user = own(&secrets, wanted.machine).await?;
    let machine = wanted.machine.name_any();
    let setup =
        AgentSetup { server: wanted.server, ca_pem: wanted.ca_pem, namespace, name: &machine, agent: wanted.agent };
    let inputs = user_data::inputs(user.as_deref(), &setup, wanted.account.metadata.uid.as_deref().unwrap_or_default());
    if found.as_ref().is_some_and(|found| is_good(found, &inputs, now)) {
        return Ok(is_told);
    }
    let account = wanted.account.name_any();
    let token = accounts::token(client, namespace, &account, TOKEN_SECONDS).await?;
    let token = token.ok_or_else(|| SecretError::Waits(format!("the API made no token of {account}")))?;
    let made = user_data::render(user.as_deref(), &setup, &token.text)
        .map_err(|fault| SecretError::Waits(fault.to_string()))?;
    let annotations = [(ANNOTATION_INPUTS, inputs), (ANNOTATION_TOKEN_EXPIRES, token.expires.to_string())];
    let mut secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(namespace.to_owned()),
            annotations: Some(annotations.map(|(key, value)| (key.to_owned(), value)).into()),
            owner_references: Some(vec![owner.clone()]),
            ..ObjectMeta::default()
        },
        data: Some([("userData".to_owned(), ByteString(made))].into()),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    };
    let written = match found {
        None => secrets.create(&PostParams::default(), &secret).await,
        Some(found) => {
            secret.metadata.resource_version = found.resource_version();
            secrets.replace(&name, &PostParams::default(), &secret).await
        }
    };
    written.map_err(KeepError::from)?;
    tracing::info!(namespace, secret = name, "made the user data of a node's host");
    Ok(is_told)
}

/// Whether a host was told its user data: what it has noted is told before the host is.
fn told(machine: &Machine) -> bool {
    let noted = machine.status.as_ref().and_then(|status| status.provider_status.as_ref());
    noted.is_some_and(|noted| noted["userData"].is_string() || noted["provisioned"] == true)
}

/// Whether user data is of these inputs, and its token is good for long enough.
fn is_good(secret: &Secret, inputs: &str, now: Timestamp) -> bool {
    let annotation = |name: &str| secret.annotations().get(name).map(String::as_str);
    let ends = annotation(ANNOTATION_TOKEN_EXPIRES).and_then(|ends| ends.parse::<Timestamp>().ok());
    annotation(ANNOTATION_INPUTS) == Some(inputs)
        && content(secret).is_some()
        && ends.is_some_and(|ends| ends.duration_since(now) > TOKEN_LEAST)
}

/// The user's own user data, where the Machine names some.
async fn own(secrets: &Api<Secret>, machine: &Machine) -> Result<Option<Vec<u8>>, SecretError> {
    let Some(name) = own_user_data(machine) else { return Ok(None) };
    let waits = |reason: String| Err(SecretError::Waits(reason));
    // It becomes part of a path.
    if !crate::release::wish::shape::is_name(name) {
        return waits("userData names what is no name of a Secret".into());
    }
    if name.ends_with(USER_DATA_SUFFIX) {
        return waits(format!(
            "userData names {name:?}, which is made for a node and has its token: name another Secret"
        ));
    }
    let Some(secret) = secrets.get_opt(name).await? else {
        return waits(format!("waiting for the Secret {name:?} with the user data, which is not there"));
    };
    match content(&secret) {
        Some(content) => Ok(Some(content.to_vec())),
        None => waits(format!("the Secret {name:?} has no user data: neither the key userData nor value")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn user_data_is_made_anew_while_no_host_has_it() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let secret = |inputs: &str, ends: &str, data: Value| -> Secret {
            let annotations = json!({ANNOTATION_INPUTS: inputs, ANNOTATION_TOKEN_EXPIRES: ends});
            serde_json::from_value(json!({"metadata": {"annotations": annotations}, "data": data})).unwrap()
        };
        let data = json!({"userData": "eA=="});
        for (secret, good) in [
            (secret("a", "2026-01-31T00:00:00Z", data.clone()), true),
            (secret("a", "2026-01-20T00:00:00Z", data.clone()), false),
            (secret("a", "soon", data.clone()), false),
            (secret("b", "2026-01-31T00:00:00Z", data), false),
            (secret("a", "2026-01-31T00:00:00Z", json!({})), false),
        ] {
            assert_eq!(is_good(&secret, "a", now), good);
        }
        let machine = |noted: Value| -> Machine {
            serde_json::from_value(
                json!({"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Machine", "metadata": {"name": "m"},
                "spec": {"providerSpec": {}}, "status": {"providerStatus": noted}}),
            )
            .unwrap()
        };
        for (noted, is_told) in [
            (json!({}), false),
            (json!({"ready": true}), false),
            (json!({"userData": "x"}), true),
            (json!({"provisioned": true}), true),
        ] {
            assert_eq!(told(&machine(noted)), is_told);
        }
    }
}
