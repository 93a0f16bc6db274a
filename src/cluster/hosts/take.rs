//! A host for a machine: chosen, noted in the machine, and taken in the very version that was judged.

use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::Value;
use tracing::{debug, info};

use super::choose::{ChoiceReason, HostWish};
use super::claims::{HostPool, NoHost};
use super::consumer::MachineId;
use super::patches;
use crate::api::metal3::BareMetalHost;
use crate::log::named;
use crate::runtime::Conflict;

/// A machine that takes a host.
pub trait HostTaker: Send {
    /// Which one.
    fn id(&self) -> MachineId;

    /// The host that is noted in it.
    fn host(&self) -> Option<String>;

    /// Whether its host has run what it should. Then it gets no other one.
    fn is_provisioned(&self) -> bool;

    /// Has the machine held, and this host noted in it, before anything is taken.
    ///
    /// # Errors
    ///
    /// What the API says; a conflict when the machine is not the one at hand any more.
    fn hold(&mut self, client: &Client, host: Option<&str>) -> impl Future<Output = Result<(), kube::Error>> + Send;
}

/// What a machine has.
#[derive(Debug)]
pub enum HostTake {
    /// This host, which it has had before.
    Had(Box<BareMetalHost>),
    /// This host, as of now.
    New(Box<BareMetalHost>, ChoiceReason),
    /// None: the one on which it ran is not its any more.
    Lost(String),
    /// None is to be had.
    None(NoHost),
    /// None can be chosen: what it wants makes no sense.
    Fault(String),
}

/// Why a host could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// What the API says.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// Something is not any more what it was when it was chosen.
    #[error("the host that was chosen is another's meanwhile")]
    Meanwhile,
}

impl Conflict for TakeError {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Api(error) => error.is_conflict(),
            Self::Meanwhile => true,
        }
    }
}

impl HostPool {
    /// The machine's host, which it takes now if it has none. Why a wish makes no sense counts only where one must be chosen.
    ///
    /// # Errors
    ///
    /// What the API says; that somebody else was faster.
    pub async fn take(
        &self,
        client: &Client,
        machine: &mut impl HostTaker,
        cluster: Option<&str>,
        wish: Result<HostWish, String>,
    ) -> Result<HostTake, TakeError> {
        let id = machine.id();
        let hosts = Api::<BareMetalHost>::namespaced(client.clone(), &id.namespace);
        let noted = match machine.host() {
            Some(name) => Some((hosts.get_opt(&name).await?, name)),
            None => None,
        };
        let is_noted = noted.is_some();
        match noted {
            Some((Some(found), _)) if id.has(&found) => return had(client, &id, found, cluster).await,
            Some((Some(found), name)) if machine.is_provisioned() => {
                if found.spec.consumer_ref.is_some() {
                    return Ok(HostTake::Lost(format!("BareMetalHost {name:?} is another's by now")));
                }
                return had(client, &id, found, cluster).await;
            }
            Some((None, name)) if machine.is_provisioned() => {
                return Ok(HostTake::Lost(format!("BareMetalHost {name:?} is gone")));
            }
            Some((Some(found), _)) => match &wish {
                Err(reason) => return Ok(HostTake::Fault(reason.clone())),
                Ok(wish) if self.may_have(wish, &found) => return had(client, &id, found, cluster).await,
                // Somebody was faster, or it is not to be had any more.
                Ok(_) => {}
            },
            None | Some((None, _)) => {}
        }
        if is_noted {
            machine.hold(client, None).await?;
        }
        let wish = match wish {
            Ok(wish) => wish,
            Err(reason) => return Ok(HostTake::Fault(reason)),
        };
        let pick = match self.pick(&wish).await {
            Ok(pick) => pick,
            Err(none) => {
                let machine = named(&id.namespace, &id.name);
                debug!(%machine, kind = id.kind.kind(), looked_at = none.looked_at, "a machine found no host");
                return Ok(HostTake::None(none));
            }
        };
        let (name, way) = (pick.name().to_owned(), pick.way);
        machine.hold(client, Some(&name)).await?;
        let found = hosts.get_opt(&name).await?.ok_or(TakeError::Meanwhile)?;
        // What is known may be of before somebody else took it.
        let is_own = way == ChoiceReason::Had && id.has(&found);
        if !is_own && !self.may_have(&wish, &found) {
            return Err(TakeError::Meanwhile);
        }
        let found = own(client, &id, found, cluster).await?;
        pick.taken();
        if way == ChoiceReason::Had {
            return Ok(HostTake::Had(Box::new(found)));
        }
        info!(host = %named(&id.namespace, &name), machine = %named(&id.namespace, &id.name), kind = id.kind.kind(), "a machine claimed a host");
        Ok(HostTake::New(Box::new(found), way))
    }
}

async fn had(
    client: &Client,
    id: &MachineId,
    found: BareMetalHost,
    cluster: Option<&str>,
) -> Result<HostTake, TakeError> {
    Ok(HostTake::Had(Box::new(own(client, id, found, cluster).await?)))
}

/// Takes the host in this very version, unless all is as it should be.
async fn own(
    client: &Client,
    id: &MachineId,
    found: BareMetalHost,
    cluster: Option<&str>,
) -> Result<BareMetalHost, kube::Error> {
    match patches::claim(&found, id, cluster) {
        None => Ok(found),
        Some(patch) => change(client, &found, patch).await,
    }
}

/// Writes a patch of a host.
///
/// # Errors
///
/// What the API says; a conflict when the host is not the one at hand any more.
pub async fn change(client: &Client, found: &BareMetalHost, patch: Value) -> Result<BareMetalHost, kube::Error> {
    let api = Api::<BareMetalHost>::namespaced(client.clone(), &found.namespace().unwrap_or_default());
    api.patch(&found.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await
}
