//! How a machine of a set is made: the machine first, then the objects that it names, from the set's templates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;
use kube::api::PostParams;

use super::MachineSetReconciler;
use crate::api::cluster::LABEL_CLUSTER;
use crate::api::cluster::keys::{FINALIZER_MACHINE, LABEL_DEPLOYMENT, LABEL_SET, LABEL_TEMPLATE_HASH};
use crate::api::cluster::v1beta2::{ContractReference, Machine, MachineSet};
use crate::cluster::contract::template::{self, Clone as Made};
use crate::cluster::contract::{ReferenceError, fresh, named_by};
use crate::cluster::core::kit::CoreFault;
use crate::cluster::core::seen::{NamedObject, ReferenceRole};
use crate::cluster::core::template::{essence, in_place};
use crate::runtime::{Conflict, conditions, owners};

/// Labels of a machine of the set.
pub(super) fn labels(set: &MachineSet) -> BTreeMap<String, String> {
    let mut labels = set.spec.template.metadata.as_ref().map(|meta| meta.labels.clone()).unwrap_or_default();
    labels.extend(own_labels(set));
    labels
}

/// Labels that say whose machine it is.
fn own_labels(set: &MachineSet) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        (LABEL_CLUSTER.to_owned(), set.spec.cluster_name.clone()),
        (LABEL_SET.to_owned(), set.name_any()),
    ]);
    for key in [LABEL_DEPLOYMENT, LABEL_TEMPLATE_HASH] {
        if let Some(value) = set.labels().get(key) {
            labels.insert(key.to_owned(), value.clone());
        }
    }
    labels
}

impl MachineSetReconciler {
    /// Makes what machines lack of their objects, as after a crash in between; says why it could not.
    pub(super) async fn complete(
        &self,
        set: &MachineSet,
        machines: &[Arc<Machine>],
    ) -> Result<Option<String>, CoreFault> {
        let mut lacking = None;
        for machine in machines.iter().filter(|machine| machine.metadata.deletion_timestamp.is_none()) {
            let lacks = |type_: &str| match &machine.status {
                None => true,
                Some(status) => {
                    let found = conditions::find(&status.conditions, type_);
                    found.is_none_or(|condition| condition.reason == "DoesNotExist")
                }
            };
            let done = machine.status.as_ref().and_then(|status| status.initialization.clone()).unwrap_or_default();
            if done.infrastructure_provisioned == Some(true) {
                continue;
            }
            if lacks("BootstrapConfigReady") || lacks("InfrastructureReady") {
                lacking = told(self.make_objects(set, machine).await)?.or(lacking);
            }
        }
        Ok(lacking)
    }

    /// The objects that a machine names, from the templates that its set names.
    async fn make_objects(&self, set: &MachineSet, machine: &Machine) -> Result<(), CoreFault> {
        let own = &set.spec.template.spec;
        let pairs = [
            (own.bootstrap.config_ref.as_ref(), machine.spec.bootstrap.config_ref.as_ref()),
            (Some(&own.infrastructure_ref), Some(&machine.spec.infrastructure_ref)),
        ];
        for (from, to) in pairs {
            let (Some(from), Some(to)) = (from, to) else { continue };
            // A machine that was adopted, or is of an earlier template, names others.
            if to.name != machine.name_any() || template::kind(&from.kind) != to.kind || from.api_group != to.api_group
            {
                continue;
            }
            self.make_object(set, machine, from, to).await?;
        }
        Ok(())
    }

    async fn make_object(
        &self,
        set: &MachineSet,
        machine: &Machine,
        from: &ContractReference,
        to: &ContractReference,
    ) -> Result<(), CoreFault> {
        let objects = &self.kit.objects;
        let namespace = machine.namespace().unwrap_or_default();
        if objects.get(&namespace, to).await?.is_some() {
            return Ok(());
        }
        let Some(found) = objects.get(&namespace, from).await? else { return Ok(()) };
        let annotations = set.spec.template.metadata.as_ref().map(|meta| meta.annotations.clone()).unwrap_or_default();
        let made = Made {
            name: &to.name,
            cluster: &machine.spec.cluster_name,
            owner: Some(owners::owner(machine, true)),
            labels: labels(set),
            annotations,
        };
        let Ok(object) = template::instance(&found, made) else { return Ok(()) };
        let resource = objects.resource(&to.api_group, &to.kind).await?;
        objects.create(&resource, &object).await?;
        Ok(())
    }

    /// Why no machine could be made of the set's templates.
    pub(super) async fn templates(&self, set: &MachineSet) -> Result<Option<String>, CoreFault> {
        let namespace = set.namespace().unwrap_or_default();
        let own = &set.spec.template.spec;
        let bootstrap = own.bootstrap.config_ref.iter().map(|reference| (ReferenceRole::Bootstrap, reference));
        for (role, reference) in bootstrap.chain([(ReferenceRole::Infrastructure, &own.infrastructure_ref)]) {
            match NamedObject::find(&self.kit.objects, &namespace, role, Some(reference)).await? {
                NamedObject::There(found) => {
                    let tried = template::instance(&found, Made { name: "x", ..Made::default() });
                    if let Err(reason) = tried {
                        return Ok(Some(reason));
                    }
                }
                NamedObject::Missing(reason) => return Ok(Some(reason)),
                NamedObject::None => {}
            }
        }
        Ok(None)
    }

    /// One more machine, whose name is among `made_names` from then on; or why there cannot be one.
    pub(super) async fn make(
        &self,
        set: &MachineSet,
        labels: &BTreeMap<String, String>,
        made_names: &mut BTreeSet<String>,
    ) -> Result<Result<(), String>, CoreFault> {
        let naming = set.spec.machine_naming.as_ref().and_then(|naming| naming.template.as_deref());
        let set_name = set.name_any();
        let name = match naming {
            None => fresh(&set_name),
            Some(template) => {
                let values =
                    [(".cluster.name", set.spec.cluster_name.as_str()), (".machineSet.name", set_name.as_str())];
                match named_by(template, &values) {
                    Ok(name) => name,
                    Err(reason) => return Ok(Err(reason)),
                }
            }
        };
        let own = |reference: &ContractReference| ContractReference {
            kind: template::kind(&reference.kind).to_owned(),
            name: name.clone(),
            api_group: reference.api_group.clone(),
        };
        let mut spec = essence(&set.spec.template);
        spec.infrastructure_ref = own(&spec.infrastructure_ref);
        if let Some(config) = spec.bootstrap.config_ref.take() {
            spec.bootstrap.config_ref = Some(own(&config));
        }
        spec.cluster_name.clone_from(&set.spec.cluster_name);
        let mut machine = Machine::new(&name, spec);
        machine.metadata.namespace = set.namespace();
        machine.metadata.labels = Some(own_labels(set));
        machine.metadata.owner_references = Some(vec![owners::owner(set, true)]);
        machine.metadata.finalizers = Some(vec![FINALIZER_MACHINE.to_owned()]);
        let api = self.kit.api::<Machine>(&set.namespace().unwrap_or_default());
        let made = api.create(&PostParams::default(), &machine).await?;
        made_names.insert(name.clone());
        self.kit.tell(set, "SuccessfulCreate", format!("Created machine {name}")).await;
        // What is kept in place is another manager's from the beginning, so that it goes when the template has it no more.
        let kept = in_place(&set.spec.template, labels);
        self.apply(&api, &name, &made.uid().unwrap_or_default(), &kept).await?;
        Ok(match told(self.make_objects(set, &made).await)? {
            Some(reason) => Err(reason),
            None => Ok(()),
        })
    }
}

/// Why something could not be made, where it is refused; it is tried again all the same.
fn told(made: Result<(), CoreFault>) -> Result<Option<String>, CoreFault> {
    match made {
        Ok(()) => Ok(None),
        Err(fault) if fault.is_conflict() => Err(fault),
        Err(fault) => match &fault {
            CoreFault::Reference(ReferenceError::Api(kube::Error::Api(status))) => Ok(Some(status.message.clone())),
            CoreFault::Reference(ReferenceError::Api(_)) | CoreFault::Api(_) => Err(fault),
            _ => Ok(Some(fault.to_string())),
        },
    }
}
