//! What is done about an inventory, look by look: the Secret with its host's credentials and the host are made and put right, and it says
//! how the host is. One that goes takes its host with it, and is there until that is gone.

use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::runtime::controller::Action;
use kube::{Client, ResourceExt};
use secrecy::ExposeSecret;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::mirror;
use super::password::{self, BmcLogin};
use crate::api::kaas::{BareMetalHostCredential, BareMetalHostInventory};
use crate::api::metal3::BareMetalHost;
use crate::apiserver::subdomain;
use crate::log::named;
use crate::release::keep::{self, KeepError};
use crate::runtime::changes::{change, delete, write_status};
use crate::runtime::conditions::ConditionVerdict;
use crate::runtime::{Cache, Conflict, Reconcile, Slim, key, objects, owners, run};

/// Holds an inventory until its host is gone.
const FINALIZER: &str = "baremetalhostinventory.kaas.mirantis.com";
/// After an error.
const RETRY: Duration = Duration::from_secs(2);
/// How often what is waited for is looked at that changes unseen.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Looks at inventories.
pub struct Inventories {
    client: Client,
}

/// A look cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum InventoryError {
    /// What the API says.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// What is made cannot be.
    #[error(transparent)]
    Keep(#[from] KeepError),
}

impl Conflict for InventoryError {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Api(error) => error.is_conflict(),
            Self::Keep(error) => error.is_conflict(),
        }
    }
}

/// Why something that is made cannot be, as a verdict; an error that another try may mend.
fn told(error: KeepError) -> Result<ConditionVerdict, InventoryError> {
    let refused = |error: &KeepError| matches!(error, KeepError::Api(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 413 | 422 | 507));
    match &error {
        KeepError::Taken { .. } => Ok(ConditionVerdict::no("NameTaken", error.to_string())),
        KeepError::Leaving { .. } => Ok(ConditionVerdict::no("WaitingForDeletion", error.to_string())),
        refusal if refused(refusal) => Ok(ConditionVerdict::no("Refused", error.to_string())),
        KeepError::Api(_) => Err(error.into()),
    }
}

impl Inventories {
    /// Nothing is looked at yet.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Looks at inventories until the shutdown.
    pub async fn run(self, cache: Cache<Slim<BareMetalHostInventory>>, shutdown: CancellationToken) {
        run(Arc::new(self), &cache, stream::empty(), shutdown).await;
    }

    fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn look(&self, inventory: BareMetalHostInventory) -> Result<Action, InventoryError> {
        let namespace = inventory.namespace().unwrap_or_default();
        let inventories = self.api::<BareMetalHostInventory>(&namespace);
        let inventory = objects::hold(&inventories, inventory, FINALIZER).await?;
        let credentials = match self.credentials(&namespace, &inventory).await {
            Ok(verdict) => verdict,
            Err(error) => told(error)?,
        };
        let (host, mirrored) = match self.host(&namespace, &inventory, credentials.is_true()).await {
            Ok(found) => found,
            Err(error) => (None, told(error)?),
        };
        let status = mirror::report(&inventory, host.as_ref(), &credentials, &mirrored, Timestamp::now());
        write_status(&inventories, &inventory, inventory.status.as_ref(), &status).await?;
        let rests = credentials.is_true() && mirrored.is_true();
        Ok(if rests { Action::await_change() } else { Action::requeue(LOOK_AGAIN) })
    }

    /// Has the Secret with the credentials of the host be there.
    async fn credentials(
        &self,
        namespace: &str,
        inventory: &BareMetalHostInventory,
    ) -> Result<ConditionVerdict, KeepError> {
        let Some(bmc) = &inventory.spec.bmc else { return Ok(ConditionVerdict::yes("NotNeeded")) };
        let name = &bmc.bmh_credentials_name;
        if name.is_empty() {
            return Ok(ConditionVerdict::no("NoCredential", "spec.bmc.bmhCredentialsName is missing"));
        }
        let credential = if subdomain(name).is_empty() {
            self.api::<BareMetalHostCredential>(namespace).get_opt(name).await?
        } else {
            None
        };
        let Some(credential) = credential else {
            let message = format!("there is no BareMetalHostCredential {name:?} in this namespace: make it");
            return Ok(ConditionVerdict::no("NoCredential", message));
        };
        let secrets = self.api::<Secret>(namespace);
        let login = match password::read(&secrets, &credential).await? {
            Ok(login) => login,
            Err(fault) => {
                let message = format!("the BareMetalHostCredential {name:?}: {}", fault.message);
                return Ok(ConditionVerdict { message, ..fault });
            }
        };
        let wanted = host_secret(namespace, &inventory.name_any(), &login);
        keep::keep(&secrets, &wanted, &owners::owner(inventory, true), &["data"]).await?;
        Ok(ConditionVerdict::yes("PasswordFound"))
    }

    /// Has the host be there, and be as it should.
    async fn host(
        &self,
        namespace: &str,
        inventory: &BareMetalHostInventory,
        has_credentials: bool,
    ) -> Result<(Option<BareMetalHost>, ConditionVerdict), KeepError> {
        let (hosts, name) = (self.api::<BareMetalHost>(namespace), inventory.name_any());
        let owner = owners::owner(inventory, true);
        let yes = || ConditionVerdict::yes("Mirrored");
        let Some(host) = keep::own(&hosts, &name, &owner).await? else {
            if !has_credentials {
                let message = "The BareMetalHost is made once there are credentials";
                return Ok((None, ConditionVerdict::no("WaitingForCredentials", message)));
            }
            let made = hosts.create(&PostParams::default(), &mirror::made(inventory, &owner)).await?;
            info!(host = %named(namespace, &name), "a host is made of its inventory");
            return Ok((Some(made), yes()));
        };
        let Some(patch) = mirror::changes(inventory, &host) else { return Ok((Some(host), yes())) };
        match change(&hosts, &host, patch).await {
            Ok(changed) => Ok((Some(changed), yes())),
            // How it is, is said all the same.
            Err(error) if !error.is_conflict() => {
                told(error.into()).map(|verdict| (Some(host), verdict)).map_err(|error| match error {
                    InventoryError::Api(error) => KeepError::Api(error),
                    InventoryError::Keep(error) => error,
                })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Lets an inventory go whose host is gone, or was never its own.
    async fn release(&self, inventory: BareMetalHostInventory) -> Result<Action, InventoryError> {
        if !objects::is_held(&inventory, FINALIZER) {
            return Ok(Action::await_change());
        }
        let (namespace, name) = (inventory.namespace().unwrap_or_default(), inventory.name_any());
        let inventories = self.api::<BareMetalHostInventory>(&namespace);
        let hosts = self.api::<BareMetalHost>(&namespace);
        let owner = owners::owner(&inventory, true);
        let host = hosts.get_opt(&name).await?.filter(|host| keep::is_of(host, &owner));
        let Some(host) = host else {
            objects::release(&inventories, &inventory, FINALIZER).await?;
            info!(host = %named(&namespace, &name), "the inventory of a host goes");
            return Ok(Action::await_change());
        };
        // An annotation by which its host is left alone may still come or go.
        let host = match mirror::changes(&inventory, &host) {
            Some(patch) => match change(&hosts, &host, patch).await {
                Err(error) if error.is_conflict() => return Err(error.into()),
                changed => changed.unwrap_or(host),
            },
            None => host,
        };
        delete(&hosts, &host).await?;
        let going = mirror::going(&host);
        let status =
            mirror::report(&inventory, Some(&host), &ConditionVerdict::yes("NotNeeded"), &going, Timestamp::now());
        write_status(&inventories, &inventory, inventory.status.as_ref(), &status).await?;
        Ok(Action::requeue(LOOK_AGAIN))
    }
}

/// The Secret with the credentials of a host.
fn host_secret(namespace: &str, host: &str, login: &BmcLogin) -> Secret {
    let data = [
        ("username".to_owned(), ByteString(login.username.clone().into_bytes())),
        ("password".to_owned(), ByteString(login.password.expose_secret().as_bytes().to_vec())),
    ];
    Secret {
        metadata: ObjectMeta {
            name: Some(mirror::host_secret(host)),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".into()),
        data: Some(data.into()),
        ..Secret::default()
    }
}

impl Reconcile for Inventories {
    type Object = Slim<BareMetalHostInventory>;
    type Error = InventoryError;

    const NAME: &'static str = "host-inventory";

    const OF_HOSTS: bool = true;

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(Duration::from_secs(120));

    fn retry_after(&self) -> Duration {
        RETRY
    }

    async fn reconcile(&self, known: Arc<Slim<BareMetalHostInventory>>) -> Result<Action, InventoryError> {
        let (namespace, name) = key(known.as_ref());
        match self.api::<BareMetalHostInventory>(&namespace).get_opt(&name).await? {
            Some(inventory) if inventory.metadata.deletion_timestamp.is_some() => self.release(inventory).await,
            Some(inventory) => self.look(inventory).await,
            None => Ok(Action::await_change()),
        }
    }
}
