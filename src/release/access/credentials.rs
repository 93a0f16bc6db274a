//! What a credential says of itself: whether there is a password where it says.

use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, Preconditions};
use kube::runtime::controller::Action;
use kube::{Client, ResourceExt};
use tokio_util::sync::CancellationToken;

use super::password;
use crate::api::kaas::{BareMetalHostCredential, BareMetalHostCredentialStatus, SEALED_PASSWORDS};
use crate::release::keep;
use crate::runtime::changes::{unless_gone, write_status};
use crate::runtime::conditions::{self, ConditionVerdict};
use crate::runtime::{Cache, Reconcile, Slim, key, owners, run};

/// After an error.
const RETRY: Duration = Duration::from_secs(2);
/// The condition.
const VALID: &str = "Valid";

/// Looks at credentials.
pub struct CredentialReports {
    client: Client,
}

impl CredentialReports {
    /// Nothing is looked at yet.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Looks at credentials until the shutdown.
    pub async fn run(self, cache: Cache<Slim<BareMetalHostCredential>>, shutdown: CancellationToken) {
        run(Arc::new(self), &cache, stream::empty(), shutdown).await;
    }

    /// Deletes a credential's own Secret when it names others instead.
    async fn drop_unused(&self, secrets: &Api<Secret>, known: &BareMetalHostCredential) -> Result<(), kube::Error> {
        let (namespace, name) = key(known);
        let own = SEALED_PASSWORDS.secret(&name);
        if uses(known, &own) {
            return Ok(());
        }
        let Some(found) = secrets.get_metadata_opt(&own).await? else { return Ok(()) };
        if !keep::is_of(&found, &owners::owner(known, true)) {
            return Ok(());
        }
        // Who has it used again meanwhile writes it: then it is not this version any more.
        let credentials = Api::<BareMetalHostCredential>::namespaced(self.client.clone(), &namespace);
        if credentials.get_opt(&name).await?.is_none_or(|credential| uses(&credential, &own)) {
            return Ok(());
        }
        let preconditions = Some(Preconditions { uid: found.uid(), resource_version: found.resource_version() });
        let params = DeleteParams { preconditions, ..DeleteParams::background() };
        unless_gone(secrets.delete(&own, &params).await).map(drop)
    }
}

/// Whether a credential has a password in a Secret of this name.
fn uses(credential: &BareMetalHostCredential, secret: &str) -> bool {
    let spec = &credential.spec;
    let all = [Some(&spec.password), spec.monitoring_password.as_ref()].into_iter().flatten();
    all.filter_map(|password| password.secret.as_ref()).any(|one| one.name == secret)
}

/// What is said of a credential.
fn report(
    credential: &BareMetalHostCredential,
    fault: Option<&ConditionVerdict>,
    now: Timestamp,
) -> BareMetalHostCredentialStatus {
    let generation = credential.metadata.generation;
    let verdict = fault.cloned().unwrap_or_else(|| ConditionVerdict::yes("PasswordFound"));
    let mut conditions = credential.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    conditions::set(&mut conditions, VALID, &verdict, generation, now);
    BareMetalHostCredentialStatus {
        valid: verdict.is_true(),
        message: verdict.message,
        observed_generation: generation,
        conditions,
    }
}

impl Reconcile for CredentialReports {
    type Object = Slim<BareMetalHostCredential>;
    type Error = kube::Error;

    const NAME: &'static str = "host-credential";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(Duration::from_secs(120));

    fn retry_after(&self) -> Duration {
        RETRY
    }

    async fn reconcile(&self, known: Arc<Slim<BareMetalHostCredential>>) -> Result<Action, kube::Error> {
        let (namespace, name) = key(known.as_ref());
        let credentials = Api::<BareMetalHostCredential>::namespaced(self.client.clone(), &namespace);
        let Some(credential) = credentials.get_opt(&name).await? else { return Ok(Action::await_change()) };
        if credential.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &namespace);
        let found = password::read(&secrets, &credential).await?;
        let status = report(&credential, found.as_ref().err(), Timestamp::now());
        write_status(&credentials, &credential, credential.status.as_ref(), &status).await?;
        self.drop_unused(&secrets, &credential).await?;
        Ok(Action::await_change())
    }
}
