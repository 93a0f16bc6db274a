//! A control plane with everything that belongs to it, as the API has it now.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use serde_json::Value;

use super::desired;
use super::fault::ControlPlaneFault;
use super::health::{self, MachineHealth, NODE_MARKED, PODS, Verdicts};
use super::plan::{self, Plane, Remediation, Retries, RolloutRules, rollout_dates};
use super::status::{OWNER_REMEDIATED, ShownMachine};
use super::told::ToldConfig;
use crate::api::cluster::LABEL_CLUSTER;
use crate::api::cluster::keys::{
    ANNOTATION_CLONED_FROM, ANNOTATION_CLONED_KIND, ANNOTATION_DELETE_MACHINE, ANNOTATION_REMEDIATE,
    LABEL_CONTROL_PLANE, PRE_TERMINATE_HOOK,
};
use crate::api::cluster::v1beta2::{Cluster, Machine};
use crate::api::control_plane::v1beta2::KubeadmControlPlane;
use crate::api::control_plane::{ANNOTATION_CLEANUP_HOOK, ANNOTATION_REMEDIATING, ANNOTATION_REMEDIATION_FOR};
use crate::cluster::contract::{FoundObject, KubeVersion, ReferencedObjects};
use crate::runtime::conditions::{self, ConditionVerdict};
use crate::runtime::owners;

/// Machines of a cluster that are listed at once.
const PAGE: u32 = 16;
/// Since this minor version the hook of a control plane is the last one that goes: its kubelet needs the API server beside it.
const HOOK_LAST_SINCE: (u32, u32) = (1, 31);

/// A machine of the control plane, and what it names, of which spec and status are not kept.
pub(super) struct Owned {
    pub(super) machine: Machine,
    /// What kubeadm was told.
    pub(super) told: Option<ToldConfig>,
    pub(super) config: Option<FoundObject>,
    pub(super) infrastructure: Option<FoundObject>,
}

impl Owned {
    pub(super) fn name(&self) -> String {
        self.machine.name_any()
    }

    pub(super) fn node(&self) -> Option<String> {
        self.machine.status.as_ref()?.node_ref.as_ref().map(|node| node.name.clone())
    }

    pub(super) fn conditions(&self) -> &[Condition] {
        self.machine.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
    }

    fn deleted(&self) -> Option<Timestamp> {
        self.machine.metadata.deletion_timestamp.as_ref().map(|time| time.0)
    }

    /// For the look at its parts.
    pub(super) fn host(&self) -> MachineHealth {
        let untainted = self.told.is_some_and(|told| told.is_untainted);
        MachineHealth { node: self.node(), deleted: self.deleted().is_some(), untainted }
    }

    /// What its conditions say of its parts.
    pub(super) fn parts(&self) -> Verdicts {
        let types = PODS.iter().map(|(type_, _)| *type_).chain([NODE_MARKED, health::ETCD_MEMBER]);
        types
            .filter_map(|type_| Some((type_, ConditionVerdict::of(conditions::find(self.conditions(), type_)?))))
            .collect()
    }

    /// For the status.
    pub(super) fn shown(&self) -> ShownMachine {
        let said = ["Ready", "Available", "UpToDate", OWNER_REMEDIATED];
        let said = said
            .into_iter()
            .filter_map(|type_| Some((type_, ConditionVerdict::of(conditions::find(self.conditions(), type_)?))));
        ShownMachine {
            name: self.name(),
            version: self.machine.spec.version.clone(),
            node: self.node(),
            deleted: self.deleted(),
            has_provider_id: self.machine.spec.provider_id.is_some(),
            unhealthy: conditions::is_false(self.conditions(), "HealthCheckSucceeded"),
            said: said.collect(),
            parts: self.parts(),
            replaces: self.replaces(),
        }
    }

    fn replaces(&self) -> Option<Remediation> {
        self.machine.annotations().get(ANNOTATION_REMEDIATION_FOR).and_then(|text| Remediation::read(text))
    }

    /// Why it is not as it would be made now.
    fn outdated(&self, spec: &Value, rules: RolloutRules, now: Timestamp) -> Vec<String> {
        let annotations = self.infrastructure.as_ref().map(|found| found.object.annotations());
        let cloned = annotations.and_then(|all| {
            Some((all.get(ANNOTATION_CLONED_FROM)?.as_str(), all.get(ANNOTATION_CLONED_KIND)?.as_str()))
        });
        let created = self.machine.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
        let status = self.machine.status.as_ref();
        let expires = status.and_then(|status| status.certificates_expiry_date.as_ref()).map(|time| time.0);
        let mut reason = rollout_dates(rules, created, expires, now);
        reason.extend(desired::outdated(
            spec,
            self.machine.spec.version.as_deref(),
            cloned,
            self.told.map(|told| told.is_current),
        ));
        reason
    }

    /// For the decision.
    pub(super) fn planned(
        &self,
        spec: &Value,
        rules: RolloutRules,
        parts: &Verdicts,
        now: Timestamp,
    ) -> plan::PlannedMachine {
        let annotations = self.machine.annotations();
        let deleting = conditions::find(self.conditions(), "Deleting");
        let other = |key: &String| key.starts_with(PRE_TERMINATE_HOOK) && key != ANNOTATION_CLEANUP_HOOK;
        plan::PlannedMachine {
            name: self.name(),
            created: self.machine.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0),
            deleted: self.deleted(),
            failure_domain: self.machine.spec.failure_domain.clone(),
            node: self.node(),
            outdated: self.outdated(spec, rules, now),
            delete_first: annotations.contains_key(ANNOTATION_DELETE_MACHINE),
            remediate_first: annotations.contains_key(ANNOTATION_REMEDIATE),
            hook: annotations.contains_key(ANNOTATION_CLEANUP_HOOK),
            other_hooks: annotations.keys().any(other),
            awaits_hook: deleting.is_some_and(|one| one.status == "True" && one.reason == "WaitingForPreTerminateHook"),
            unhealthy: conditions::is_false(self.conditions(), "HealthCheckSucceeded"),
            to_remediate: conditions::is_false(self.conditions(), OWNER_REMEDIATED),
            replaces: self.replaces(),
            health: health::states(parts),
        }
    }
}

/// A control plane with everything that belongs to it.
pub(super) struct ControlPlaneScope {
    pub(super) plane: KubeadmControlPlane,
    /// The spec as it is written.
    pub(super) spec: Value,
    pub(super) cluster: Cluster,
    pub(super) owned: Vec<Owned>,
    /// Machines that nobody owns.
    pub(super) orphans: Vec<Machine>,
    /// Names of machines of the control plane that are another's.
    pub(super) foreign: Vec<String>,
}

impl ControlPlaneScope {
    /// Reads the machines of the control plane, and what they name.
    pub(super) async fn read(
        objects: &ReferencedObjects,
        plane: KubeadmControlPlane,
        cluster: Cluster,
    ) -> Result<Self, ControlPlaneFault> {
        let namespace = plane.namespace().unwrap_or_default();
        let selector = format!("{LABEL_CLUSTER}={},{LABEL_CONTROL_PLANE}", cluster.name_any());
        let uid = plane.uid().unwrap_or_default();
        let spec = serde_json::to_value(&plane.spec).map_err(kube::Error::SerdeError)?;
        let (mut owned, mut orphans, mut foreign) = (Vec::new(), Vec::new(), Vec::new());
        for machine in machines(objects, &namespace, &selector, MOST).await? {
            match owners::controller(&machine.metadata) {
                Some(owner) if owner.uid == uid => {
                    let config = match &machine.spec.bootstrap.config_ref {
                        Some(reference) => objects.get(&namespace, reference).await?,
                        None => None,
                    };
                    let told = config.as_ref().map(|config| ToldConfig::new(&config.data()["spec"], &spec));
                    let config = config.map(FoundObject::bare);
                    let infrastructure =
                        objects.get(&namespace, &machine.spec.infrastructure_ref).await?.map(FoundObject::bare);
                    owned.push(Owned { machine, told, config, infrastructure });
                }
                Some(_) => foreign.push(machine.name_any()),
                None => orphans.push(machine),
            }
        }
        owned.sort_by_key(Owned::name);
        Ok(Self { plane, spec, cluster, owned, orphans, foreign })
    }

    pub(super) fn namespace(&self) -> String {
        self.plane.namespace().unwrap_or_default()
    }

    pub(super) fn name_of_cluster(&self) -> String {
        self.cluster.name_any()
    }

    pub(super) fn etcd_managed(&self) -> bool {
        desired::etcd_managed(&self.spec)
    }

    pub(super) fn is_initialized(&self) -> bool {
        let done = self.plane.status.as_ref().and_then(|status| status.initialization.as_ref());
        done.and_then(|done| done.control_plane_initialized).unwrap_or(false)
    }

    /// Machines wished for: there is no control plane without one.
    pub(super) fn desired(&self) -> usize {
        usize::try_from(self.plane.spec.replicas.unwrap_or(1)).unwrap_or(1).max(1)
    }

    /// The note of a replacement that is under way.
    pub(super) fn remediation(&self) -> Option<Remediation> {
        self.plane.annotations().get(ANNOTATION_REMEDIATING).and_then(|text| Remediation::read(text))
    }

    /// For the decision. `parts` are those of the machines, in their order.
    pub(super) fn planned(
        &self,
        version: KubeVersion,
        parts: &[Verdicts],
        etcd: Option<plan::EtcdStatus>,
        certificates: bool,
        now: Timestamp,
    ) -> Plane {
        let spec = &self.plane.spec;
        let rollout = spec.rollout.clone().unwrap_or_default();
        let rules = RolloutRules {
            after: rollout.after.as_ref().map(|time| time.0),
            certificate_days: rollout.before.and_then(|before| before.certificates_expiry_days),
        };
        let remediation = spec.remediation.clone().unwrap_or_default();
        let domains = self.cluster.status.as_ref().map(|status| status.failure_domains.as_slice()).unwrap_or_default();
        let domains = domains.iter().filter(|domain| domain.control_plane == Some(true));
        let machines = self.owned.iter().zip(parts);
        Plane {
            replicas: self.desired(),
            surge: super::admission::max_surge(&self.spec) != Some(0),
            etcd_managed: self.etcd_managed(),
            initialized: self.is_initialized(),
            certificates,
            hook_is_last: (version.major, version.minor) >= HOOK_LAST_SINCE,
            failure_domains: domains.map(|domain| domain.name.clone()).collect(),
            retries: Retries {
                most: remediation.max_retry,
                period: remediation.retry_period_seconds,
                healthy_period: remediation.min_healthy_period_seconds,
            },
            remediation: self.remediation(),
            machines: machines.map(|(owned, parts)| owned.planned(&self.spec, rules, parts, now)).collect(),
            etcd,
            now,
        }
    }
}

/// Machines of one control plane: where there are more something is wrong, and all of them are in memory.
pub(super) const MOST: usize = 16;

/// Machines with these labels.
///
/// # Errors
///
/// What the API says; when there are more than `most`.
pub(super) async fn machines(
    objects: &ReferencedObjects,
    namespace: &str,
    selector: &str,
    most: usize,
) -> Result<Vec<Machine>, ControlPlaneFault> {
    let api = Api::<Machine>::namespaced(objects.client().clone(), namespace);
    let (mut all, mut rest) = (Vec::new(), None);
    loop {
        let params = ListParams { continue_token: rest, ..ListParams::default().labels(selector).limit(PAGE) };
        let page = api.list(&params).await?;
        all.extend(page.items);
        if all.len() > most {
            return Err(ControlPlaneFault::Inside(format!(
                "there are more than {most} Machines with the labels {selector}"
            )));
        }
        rest = page.metadata.continue_.filter(|token| !token.is_empty());
        if rest.is_none() {
            return Ok(all);
        }
    }
}
