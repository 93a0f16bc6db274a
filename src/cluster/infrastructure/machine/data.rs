//! Meta data and network data of a machine: claimed from its Metal3DataTemplate, and waited for.
//!
//! Who makes them keeps kinds of its own: they are read by the fields that the contract names.

use kube::api::{Api, ApiResource, DynamicObject, ObjectMeta, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::api::infrastructure::GROUP;
use crate::api::infrastructure::v1beta2::{Metal3Machine, Metal3Reference};
use crate::api::metal3::SecretReference;
use crate::cluster::infrastructure::names::{API_VERSION, FINALIZER_MACHINE};
use crate::runtime::{changes, objects, owners};

/// Letters of a name that is taken over.
const NAME: usize = 253;
/// Letters of an error that is repeated.
const SHOWN: usize = 1000;

/// How far the data is.
#[derive(Clone, Debug, PartialEq)]
pub enum DataProgress {
    /// There is no template.
    Unwanted,
    /// It is not there yet, and why.
    Wait(String),
    /// It is there.
    Ready(Rendered),
}

/// Data that is there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rendered {
    /// The Metal3Data.
    pub name: String,
    /// Secret with meta data.
    pub meta_data: Option<SecretReference>,
    /// Secret with network data.
    pub network_data: Option<SecretReference>,
}

fn kind(kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: GROUP.to_owned(),
        version: "v1beta2".to_owned(),
        api_version: API_VERSION.to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

fn claims(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &kind("Metal3DataClaim", "metal3dataclaims"))
}

fn datas(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &kind("Metal3Data", "metal3datas"))
}

/// Claims the machine's data, and says how far it is.
///
/// # Errors
///
/// What the API says.
pub async fn obtain(client: &Client, machine: &Metal3Machine) -> Result<DataProgress, kube::Error> {
    let Some(template) = &machine.spec.data_template else { return Ok(DataProgress::Unwanted) };
    let namespace = machine.namespace().unwrap_or_default();
    if template.namespace.as_ref().is_some_and(|other| !other.is_empty() && *other != namespace) {
        let reason = "spec.dataTemplate names a Metal3DataTemplate of another namespace, which is not used";
        return Ok(DataProgress::Wait(reason.into()));
    }
    let claims = claims(client, &namespace);
    let claim = match claims.get_opt(&machine.name_any()).await? {
        Some(claim) => claim,
        None => match claims.create(&PostParams::default(), &claim(machine, template)).await {
            Ok(claim) => claim,
            // Somebody else made one of this name in between: it is looked at next time.
            Err(kube::Error::Api(error)) if error.is_already_exists() => {
                return Ok(DataProgress::Wait("Waiting for the Metal3DataClaim".into()));
            }
            Err(error) => return Err(error),
        },
    };
    if let Some(reason) = fault(&claim, machine) {
        return Ok(DataProgress::Wait(reason));
    }
    let Some(name) = text(&claim.data, "/status/renderedData/name") else {
        return Ok(DataProgress::Wait(waiting("Metal3DataClaim", &claim)));
    };
    let Some(data) = datas(client, &namespace).get_opt(&name).await? else {
        return Ok(DataProgress::Wait(format!("Waiting for the Metal3Data {name:?}, which is not there")));
    };
    Ok(rendered(&data, machine))
}

fn claim(machine: &Metal3Machine, template: &Metal3Reference) -> DynamicObject {
    let mut owner = owners::owner(machine, true);
    owner.block_owner_deletion = None;
    let resource = kind("Metal3DataClaim", "metal3dataclaims");
    let mut claim = DynamicObject::new(&machine.name_any(), &resource);
    claim.metadata = ObjectMeta {
        name: Some(machine.name_any()),
        namespace: machine.namespace(),
        labels: machine.metadata.labels.clone(),
        finalizers: Some(vec![FINALIZER_MACHINE.to_owned()]),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    };
    claim.data = json!({ "spec": { "template": { "name": template.name, "namespace": machine.namespace() } } });
    claim
}

/// Why a claim of the machine's name is not the machine's.
fn fault(claim: &DynamicObject, machine: &Metal3Machine) -> Option<String> {
    let is_same = |uid: &str| machine.metadata.uid.as_deref() == Some(uid);
    match owners::controller(&claim.metadata) {
        Some(owner) if is_same(&owner.uid) => {}
        // One of a machine that had the name before goes with that.
        _ => return Some(format!("Metal3DataClaim {:?} is not this machine's", claim.name_any())),
    }
    claim
        .metadata
        .deletion_timestamp
        .is_some()
        .then(|| format!("Metal3DataClaim {:?} is being deleted", claim.name_any()))
}

fn rendered(data: &DynamicObject, machine: &Metal3Machine) -> DataProgress {
    let name = data.name_any();
    if text(&data.data, "/spec/claim/name").as_deref() != Some(&machine.name_any()) {
        return DataProgress::Wait(format!("Metal3Data {name:?} is of another claim"));
    }
    if data.data.pointer("/status/ready") != Some(&Value::Bool(true)) {
        return DataProgress::Wait(waiting("Metal3Data", data));
    }
    let secret = |path: &str| {
        let name = text(&data.data, path)?;
        Some(SecretReference { name: Some(name), namespace: machine.namespace() })
    };
    DataProgress::Ready(Rendered {
        name,
        meta_data: secret("/spec/metaData/name"),
        network_data: secret("/spec/networkData/name"),
    })
}

fn waiting(kind: &str, object: &DynamicObject) -> String {
    let error = object.data.pointer("/status/errorMessage").and_then(Value::as_str).unwrap_or_default();
    let name = object.name_any();
    if error.is_empty() {
        return format!("Waiting for the {kind} {name:?}");
    }
    format!("Waiting for the {kind} {name:?}: {}", error.chars().take(SHOWN).collect::<String>())
}

fn text(object: &Value, path: &str) -> Option<String> {
    let text = object.pointer(path)?.as_str()?;
    (!text.is_empty() && text.len() <= NAME).then(|| text.to_owned())
}

/// Lets go what was claimed for a machine.
///
/// # Errors
///
/// What the API says.
pub async fn release(client: &Client, machine: &Metal3Machine) -> Result<(), kube::Error> {
    let claims = claims(client, &machine.namespace().unwrap_or_default());
    let claim = match claims.get_opt(&machine.name_any()).await {
        Ok(Some(claim)) => claim,
        Ok(None) => return Ok(()),
        // Nobody makes data here.
        Err(kube::Error::Api(error)) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(error),
    };
    if owners::controller(&claim.metadata).map(|owner| &owner.uid) != machine.meta().uid.as_ref() {
        return Ok(());
    }
    objects::release(&claims, &claim, FINALIZER_MACHINE).await?;
    changes::delete(&claims, &claim).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Metal3Machine {
        let mut machine = Metal3Machine::new("m", Default::default());
        (machine.metadata.namespace, machine.metadata.uid) = (Some("rack".into()), Some("u".into()));
        machine
    }

    fn data(content: Value) -> DynamicObject {
        DynamicObject::new("t-0", &kind("Metal3Data", "metal3datas")).data(content)
    }

    #[test]
    fn data_is_of_this_machine_and_ready() {
        let secret = |name: &str| Some(SecretReference { name: Some(name.into()), namespace: Some("rack".into()) });
        let ready = json!({"spec": {"claim": {"name": "m"}, "metaData": {"name": "m-metadata", "namespace": "kube-system"},
            "networkData": {"name": ""}}, "status": {"ready": true}});
        let wanted = Rendered { name: "t-0".into(), meta_data: secret("m-metadata"), network_data: None };
        assert_eq!(
            rendered(&data(ready), &machine()),
            DataProgress::Ready(wanted),
            "secrets are in the machine's namespace"
        );
        let rows = [
            (json!({"spec": {"claim": {"name": "other"}}, "status": {"ready": true}}), "is of another claim"),
            (json!({"spec": {"claim": {"name": "m"}}}), "Waiting for the Metal3Data \"t-0\""),
            (
                json!({"spec": {"claim": {"name": "m"}}, "status": {"ready": "yes", "errorMessage": "no address"}}),
                "\"t-0\": no address",
            ),
        ];
        for (content, said) in rows {
            let DataProgress::Wait(reason) = rendered(&data(content.clone()), &machine()) else { panic!("{content}") };
            assert!(reason.ends_with(said) || reason.contains(said), "{reason}");
        }
    }

    #[test]
    fn a_claim_is_held_and_owned() {
        let template = Metal3Reference { name: "t".into(), namespace: None };
        let claim = claim(&machine(), &template);
        assert_eq!((claim.name_any().as_str(), claim.finalizers()), ("m", &[FINALIZER_MACHINE.to_owned()][..]));
        assert_eq!(claim.data["spec"]["template"], json!({"name": "t", "namespace": "rack"}));
        assert_eq!(fault(&claim, &machine()), None);
        let mut other = machine();
        other.metadata.uid = Some("before".into());
        assert!(fault(&claim, &other).is_some_and(|reason| reason.contains("not this machine's")));
    }
}
