//! The controller of Metal3Data: makes the Secrets of a machine.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::{Client, ResourceExt};
use serde_json::{Map, Value, json};

use super::addresses;
use super::index::{DataIndex, template_of};
use super::machine::{DataMachine, DataRenderError, Facts};
use super::secrets::{DataDocument, There, look, store, yaml};
use super::templates::{MESSAGE_MAX, RETRY};
use super::{meta_data, network_data, pools};
use crate::api::cluster::v1beta2::{self, Cluster};
use crate::api::cluster::{self, LABEL_CLUSTER};
use crate::api::infrastructure::data::v1beta2::{
    Metal3Data, Metal3DataClaim, Metal3DataTemplate, Metal3DataTemplateSpec,
};
use crate::api::infrastructure::data::{FINALIZER_CLAIM, FINALIZER_DATA};
use crate::api::infrastructure::v1beta2::Metal3Machine;
use crate::api::infrastructure::{self};
use crate::api::metal3::{BareMetalHost, HardwareData, SecretReference};
use crate::apiserver::subdomain;
use crate::cluster::contract::pause;
use crate::runtime::{ObjectKey, Reconcile, Slim, changes, key, objects, owners};

/// Annotation of a Metal3Machine: namespace and name of its BareMetalHost.
const ANNOTATION_HOST: &str = "metal3.io/BareMetalHost";
/// How often it is looked at what wakes nobody, as a host's hardware.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// The same where something is left of an earlier machine, which goes by itself, or when somebody deletes it.
const LOOK_LATER: Duration = Duration::from_secs(300);

/// Makes the Secrets.
pub(super) struct Rendering {
    /// The API.
    pub client: Client,
    /// What is known of claims and data.
    pub index: DataIndex,
}

/// Why there is nothing yet.
enum RenderWait {
    /// For this.
    For(String),
    /// For this, which takes longer.
    Long(String),
    /// The API failed.
    Api(kube::Error),
}

impl From<kube::Error> for RenderWait {
    fn from(error: kube::Error) -> Self {
        Self::Api(error)
    }
}

impl From<DataRenderError> for RenderWait {
    fn from(error: DataRenderError) -> Self {
        Self::For(error.to_string())
    }
}

/// A Secret of an earlier Metal3Data says what an earlier machine was to be.
fn stale(name: &str) -> RenderWait {
    RenderWait::Long(format!("the Secret {name} was made for an earlier Metal3Data, and is not used: it must go first"))
}

fn wait<T>(reason: impl Into<String>) -> Result<T, RenderWait> {
    Err(RenderWait::For(reason.into()))
}

impl Reconcile for Rendering {
    type Object = Slim<Metal3Data>;
    type Error = kube::Error;

    const NAME: &'static str = "metal3data";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const AT_ONCE: u16 = 32;
    const DEADLINE: Option<Duration> = Some(Duration::from_secs(300));

    fn retry_after(&self) -> Duration {
        RETRY
    }

    async fn reconcile(&self, data: Arc<Slim<Metal3Data>>) -> Result<Action, kube::Error> {
        let place = key(data.as_ref());
        let Some(data) = self.api::<Metal3Data>(&place.0).get_opt(&place.1).await? else {
            return Ok(Action::await_change());
        };
        if data.metadata.deletion_timestamp.is_some() {
            return self.end(&place, &data).await;
        }
        if let Some(cluster) = data.labels().get(LABEL_CLUSTER) {
            let cluster = self.api::<Cluster>(&place.0).get_opt(cluster).await?;
            if pause::is_paused(cluster.as_ref(), &data) {
                return Ok(Action::requeue(LOOK_AGAIN));
            }
        }
        let (error, next) = match self.make(&place, data).await {
            Ok(()) => (None, Action::await_change()),
            Err(RenderWait::For(reason)) => (Some(reason), Action::requeue(LOOK_AGAIN)),
            Err(RenderWait::Long(reason)) => (Some(reason), Action::requeue(LOOK_LATER)),
            Err(RenderWait::Api(error)) => return Err(error),
        };
        let error = error.map(|reason| reason.chars().take(MESSAGE_MAX).collect::<String>());
        self.report(&place, error.is_none(), error).await?;
        Ok(next)
    }
}

impl Rendering {
    fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Gives back what was taken for it, once its claim is gone: until then the machine may use it.
    async fn end(&self, place: &ObjectKey, data: &Metal3Data) -> Result<Action, kube::Error> {
        let is_held_by = |finalizer: &str| objects::is_held(data, finalizer);
        if !is_held_by(FINALIZER_DATA) && !is_held_by(FINALIZER_CLAIM) {
            return Ok(Action::await_change());
        }
        if let Some(claim) = data.spec.claim.as_ref().filter(|claim| !claim.name.is_empty()) {
            let claim = self.api::<Metal3DataClaim>(&place.0).get_opt(&claim.name).await?;
            // Another one of its name has nothing to do with it.
            let its = claim.is_some_and(|claim| owners::is_owned(&data.metadata, &claim.uid().unwrap_or_default()));
            if its {
                return Ok(Action::requeue(LOOK_AGAIN));
            }
        }
        // Its claim was to let it go, and was taken away before it did.
        if is_held_by(FINALIZER_CLAIM) {
            objects::release(&self.api(&place.0), data, FINALIZER_CLAIM).await?;
            return Ok(Action::requeue(RETRY));
        }
        if !addresses::give_back(&self.client, &self.index, data).await? {
            return Ok(Action::requeue(RETRY));
        }
        objects::release(&self.api(&place.0), data, FINALIZER_DATA).await?;
        Ok(Action::await_change())
    }

    /// Makes what is not there yet.
    async fn make(&self, place: &ObjectKey, data: Metal3Data) -> Result<(), RenderWait> {
        if self.is_made(place, &data).await? {
            return Ok(());
        }
        let Some(of) = template_of(&place.0, data.spec.template.as_ref()) else {
            return wait("spec.template names a Metal3DataTemplate of its own namespace");
        };
        let Some(template) = self.api::<Metal3DataTemplate>(&place.0).get_opt(&of.1).await? else {
            return wait(format!("there is no Metal3DataTemplate {}", of.1));
        };
        let machine = self.metal3_machine(place, &data, &of.1).await?;
        let data = self.name(place, data, &template.spec, &machine.name_any()).await?;
        let secrets = self.api::<Secret>(&place.0);
        let mut missing = Vec::new();
        for (document, name) in wanted(&data, &template.spec) {
            match look(&secrets, &data, &name).await? {
                There::Yes => {}
                There::No => missing.push((document, name)),
                There::Stale => return Err(stale(&name)),
                There::Other => {
                    let reason = "it has another type, or belongs to another object";
                    return wait(format!("the Secret {name} is there, and not for this: {reason}"));
                }
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let machine = self.facts(place, &machine).await?;
        let pools = pools::referenced(&template.spec, &machine)?;
        let addresses = match addresses::of(&self.client, &self.index, &data, &pools).await {
            Err(kube::Error::Api(error)) if error.is_invalid() => return wait(error.message),
            addresses => addresses?.map_err(RenderWait::For)?,
        };
        let mut made = Vec::new();
        for (document, name) in missing {
            let text = match document {
                DataDocument::Meta => {
                    let meta = template.spec.meta_data.clone().unwrap_or_default();
                    yaml(&meta_data::render(&meta, data.spec.index.unwrap_or_default(), &machine, &addresses)?)?
                }
                DataDocument::Network => {
                    let network = template.spec.network_data.clone().unwrap_or_default();
                    yaml(&network_data::render(&network, &machine, &addresses)?)?
                }
            };
            made.push((document, name, text));
        }
        for (document, name, text) in made {
            match store(&secrets, &data, &name, &machine.cluster, document, text).await {
                Err(kube::Error::Api(error)) if error.is_invalid() => return wait(error.message),
                stored => stored?,
            }
            match look(&secrets, &data, &name).await? {
                There::Yes => {}
                There::Stale => return Err(stale(&name)),
                There::No | There::Other => return wait(format!("the Secret {name} was taken away, or is another's")),
            }
        }
        Ok(())
    }

    /// Whether everything was made and is there: what it was made of need not be, any more.
    async fn is_made(&self, place: &ObjectKey, data: &Metal3Data) -> Result<bool, kube::Error> {
        if data.status.as_ref().and_then(|status| status.ready) != Some(true) {
            return Ok(false);
        }
        let secrets = self.api::<Secret>(&place.0);
        for secret in [&data.spec.meta_data, &data.spec.network_data].into_iter().flatten() {
            let name = secret.name.as_deref().unwrap_or_default();
            if name.is_empty() || look(&secrets, data, name).await? != There::Yes {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The Metal3Machine that the data is for: it must still want this template.
    async fn metal3_machine(
        &self,
        place: &ObjectKey,
        data: &Metal3Data,
        template: &str,
    ) -> Result<Metal3Machine, RenderWait> {
        let claim = data.spec.claim.as_ref().map(|claim| claim.name.as_str()).filter(|name| !name.is_empty());
        let Some(claim) = claim else { return wait("Metal3DataClaim name not set") };
        let Some(claim) = self.api::<Metal3DataClaim>(&place.0).get_opt(claim).await? else {
            return wait(format!("there is no Metal3DataClaim {claim}"));
        };
        if !owners::is_owned(&data.metadata, &claim.uid().unwrap_or_default()) {
            let reason = "this was made for an earlier Metal3DataClaim of the name";
            return Err(RenderWait::Long(format!("{reason} {}, and must go first", claim.name_any())));
        }
        let Some(owner) = owners::of_kind(&claim.metadata, infrastructure::GROUP, "Metal3Machine") else {
            return wait("Metal3Machine not found in owner references");
        };
        let Some(machine) = self.api::<Metal3Machine>(&place.0).get_opt(&owner.name).await? else {
            return wait(format!("there is no Metal3Machine {}", owner.name));
        };
        let wants = template_of(&place.0, machine.spec.data_template.as_ref());
        if wants.is_none_or(|(_, wants)| wants != template) {
            return wait(format!("the Metal3Machine {} has another data template", owner.name));
        }
        Ok(machine)
    }

    /// Holds the data, and notes how its Secrets are called.
    async fn name(
        &self,
        place: &ObjectKey,
        data: Metal3Data,
        template: &Metal3DataTemplateSpec,
        machine: &str,
    ) -> Result<Metal3Data, RenderWait> {
        let change = named(&data, template, machine);
        if change.is_null() {
            return Ok(data);
        }
        match changes::unless_gone(changes::change(&self.api(&place.0), &data, change).await)? {
            Some(data) => Ok(data),
            None => wait("it is gone"),
        }
    }

    /// Everything of the machine that its data may be made of.
    async fn facts(&self, place: &ObjectKey, metal3: &Metal3Machine) -> Result<DataMachine, RenderWait> {
        let owner = owners::of_kind(&metal3.metadata, cluster::GROUP, "Machine");
        let Some(owner) = owner else { return wait("waiting for Machine Controller to set OwnerRef on Metal3Machine") };
        let Some(machine) = self.api::<v1beta2::Machine>(&place.0).get_opt(&owner.name).await? else {
            return wait(format!("there is no Machine {}", owner.name));
        };
        let host = metal3.annotations().get(ANNOTATION_HOST).map(|text| text.split_once('/').unwrap_or(("", text)));
        // A name is a part of a path: what no object is called leads nowhere.
        let Some((namespace, host)) = host.filter(|(_, name)| subdomain(name).is_empty()) else {
            return wait("waiting for BareMetalHost to become available");
        };
        if namespace != place.0 {
            return wait(format!("the BareMetalHost {host} is not of this namespace"));
        }
        let Some(host) = self.api::<BareMetalHost>(namespace).get_opt(host).await? else {
            return wait(format!("there is no BareMetalHost {host}"));
        };
        let shown = host.status.as_ref().and_then(|status| status.hardware.clone());
        let hardware = match shown {
            Some(hardware) => Some(hardware),
            None => {
                let data = self.api::<HardwareData>(namespace).get_opt(&host.name_any()).await?;
                data.and_then(|data| data.spec.hardware)
            }
        };
        let mut facts = DataMachine {
            namespace: place.0.clone(),
            cluster: machine.spec.cluster_name.clone(),
            machine: Facts::of(&machine),
            metal3: Facts::of(metal3),
            ..DataMachine::default()
        };
        facts.set_host(&host, hardware.as_ref());
        Ok(facts)
    }

    async fn report(&self, place: &ObjectKey, ready: bool, error: Option<String>) -> Result<(), kube::Error> {
        let all = self.api::<Metal3Data>(&place.0);
        let Some(data) = all.get_opt(&place.1).await? else { return Ok(()) };
        let known = data.status.clone().unwrap_or_default();
        if known.ready == Some(ready) && known.error_message == error {
            return Ok(());
        }
        let patch = json!({"status": {"ready": ready, "errorMessage": error}});
        match all.patch_status(&place.1, &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(kube::Error::Api(error)) if error.is_not_found() => Ok(()),
            reported => reported.map(drop),
        }
    }
}

/// The documents that a template has, and the names of their Secrets.
fn wanted(data: &Metal3Data, template: &Metal3DataTemplateSpec) -> Vec<(DataDocument, String)> {
    let name = |secret: &Option<SecretReference>| secret.clone().and_then(|secret| secret.name).unwrap_or_default();
    let meta = template.meta_data.as_ref().map(|_| (DataDocument::Meta, name(&data.spec.meta_data)));
    let network = template.network_data.as_ref().map(|_| (DataDocument::Network, name(&data.spec.network_data)));
    meta.into_iter().chain(network).collect()
}

/// What is to be changed of data before anything is made for it: it is held, and says how its Secrets are called.
fn named(data: &Metal3Data, template: &Metal3DataTemplateSpec, machine: &str) -> Value {
    let mut spec = Map::new();
    for (document, name) in wanted(data, template) {
        if name.is_empty() {
            let name = format!("{machine}{}", document.suffix());
            spec.insert(document.key().into(), json!({"name": name, "namespace": data.metadata.namespace}));
        }
    }
    if spec.is_empty() && objects::is_held(data, FINALIZER_DATA) {
        return Value::Null;
    }
    json!({"metadata": {"finalizers": objects::with(data, FINALIZER_DATA)}, "spec": spec})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_called_as_the_machine_or_as_the_data_says() {
        let template = |value: Value| serde_json::from_value::<Metal3DataTemplateSpec>(value).unwrap();
        let data = |value: Value| serde_json::from_value::<Metal3Data>(value).unwrap();
        let fresh = json!({"metadata": {"name": "t-0", "namespace": "rack", "resourceVersion": "7"}, "spec": {}});
        let both = template(json!({"metaData": {}, "networkData": {}}));
        let change = named(&data(fresh.clone()), &both, "m");
        assert_eq!(
            change,
            json!({
                "metadata": {"finalizers": [FINALIZER_DATA]},
                "spec": {"metaData": {"name": "m-metadata", "namespace": "rack"}, "networkData": {"name": "m-networkdata", "namespace": "rack"}},
            })
        );
        let mut known = fresh;
        json_patch::merge(&mut known, &change);
        assert_eq!(named(&data(known.clone()), &both, "m"), Value::Null);
        known["spec"]["metaData"]["name"] = "given".into();
        let given = data(known);
        assert_eq!(named(&given, &both, "m"), Value::Null);
        assert_eq!(
            wanted(&given, &both),
            [(DataDocument::Meta, "given".into()), (DataDocument::Network, "m-networkdata".into())]
        );
        assert_eq!(
            wanted(&given, &template(json!({"networkData": {}}))),
            [(DataDocument::Network, "m-networkdata".into())]
        );
        assert_eq!(wanted(&given, &template(json!({}))), []);
    }
}
