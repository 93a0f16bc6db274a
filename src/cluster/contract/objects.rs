//! Objects of which only group, kind and name are known.
//!
//! Which version and plural a kind has is asked once. An object is looked for in the namespace of the one that names it, and only
//! in the groups of Cluster API that are there for it: who may write a machine must not have other objects adopted or deleted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GetParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions,
};
use kube::{Client, ResourceExt};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::size::is_too_large;
use crate::api::cluster::v1beta2::ContractReference;
use crate::api::cluster::{GROUP, LABEL_CLUSTER};
use crate::api::{bootstrap, control_plane, infrastructure};
use crate::apiserver::subdomain;
use crate::runtime::{Conflict, owners};

/// The groups in which references are followed: what makes machines into nodes, what runs control planes, and what both run on.
const GROUPS: [&str; 3] = [bootstrap::GROUP, control_plane::GROUP, infrastructure::GROUP];
/// Labels of definitions whose kinds are of a version of the contract (Cluster API, "Contract rules for infrastructure providers").
const CONTRACTS: [&str; 2] = ["cluster.x-k8s.io/v1beta2", "cluster.x-k8s.io/v1beta1"];
/// Kinds that are remembered; a site has some dozens.
const REMEMBERED: usize = 256;
/// How long it is believed which version a kind is served in,
const GOOD_FOR: Duration = Duration::from_secs(600);
/// and that nobody serves it: whoever names such a kind is looked at again and again, and its definition may come.
const UNSERVED_FOR: Duration = Duration::from_secs(10);

/// An object that is referred to cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    /// What the API says.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// References do not lead there.
    #[error("{kind} of the group {group:?} is not followed: here only kinds of {} are", .followed.join(", "))]
    Group {
        /// The kind.
        kind: String,
        /// The group.
        group: String,
        /// The groups that it may be of.
        followed: &'static [&'static str],
    },
    /// Nobody serves the kind, or its definition does not say that it is of the contract.
    #[error(
        "there is no kind {kind} of the group {group:?} here whose definition has the label cluster.x-k8s.io/v1beta2 or /v1beta1"
    )]
    Kind {
        /// The kind.
        kind: String,
        /// The group.
        group: String,
    },
    /// It has more in it than is read.
    #[error("{kind} {name:?} is too large: it has very many objects and lists in it")]
    Large {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
    },
    /// It belongs to another object.
    #[error("{kind} {name:?} belongs to {by}")]
    Taken {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// Kind and name of what it belongs to.
        by: String,
    },
}

impl Conflict for ReferenceError {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Api(error) => error.is_conflict(),
            Self::Group { .. } | Self::Kind { .. } | Self::Large { .. } | Self::Taken { .. } => false,
        }
    }
}

/// An object, and what the API calls its kind.
#[derive(Clone, Debug)]
pub struct FoundObject {
    /// Group, version, kind and plural.
    pub resource: ApiResource,
    /// The object; its spec and status are in `data`.
    pub object: DynamicObject,
}

impl FoundObject {
    /// Spec and status.
    pub fn data(&self) -> &Value {
        &self.object.data
    }

    /// Without spec and status, which may be large, and without who wrote it.
    #[must_use]
    pub fn bare(mut self) -> Self {
        self.object.data = Value::Null;
        self.object.metadata.managed_fields = None;
        self
    }

    /// Whether it is going.
    pub fn is_deleted(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }
}

/// Finds objects by their references. Cheap to clone.
#[derive(Clone)]
pub struct ReferencedObjects {
    client: Client,
    known: Arc<Mutex<KindCache>>,
}

/// What the API calls a kind, by group and kind, and since when that is known; nothing where nobody serves it.
type KindCache = HashMap<(String, String), (Instant, Option<ApiResource>)>;

impl ReferencedObjects {
    /// Those that the client sees.
    pub fn new(client: Client) -> Self {
        Self { client, known: Arc::default() }
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What the API calls a kind: the newest version of the contract that it is served in.
    ///
    /// # Errors
    ///
    /// When references do not lead to the group, or the kind is not served.
    pub async fn resource(&self, group: &str, kind: &str) -> Result<ApiResource, ReferenceError> {
        if !GROUPS.contains(&group) {
            return Err(ReferenceError::Group { kind: kind.to_owned(), group: group.to_owned(), followed: &GROUPS });
        }
        let id = (group.to_owned(), kind.to_owned());
        let found = match self.remembered(&id) {
            Some(known) => known,
            None => {
                let found = self.discover(group, kind).await?;
                self.remember(id, found.clone());
                found
            }
        };
        found.ok_or_else(|| ReferenceError::Kind { kind: kind.to_owned(), group: group.to_owned() })
    }

    /// What is known of a kind, as long as it is believed.
    fn remembered(&self, id: &(String, String)) -> Option<Option<ApiResource>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, found) = known.get(id)?;
        let good_for = if found.is_some() { GOOD_FOR } else { UNSERVED_FOR };
        (at.elapsed() < good_for).then(|| found.clone())
    }

    fn remember(&self, id: (String, String), found: Option<ApiResource>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED && !known.contains_key(&id) {
            // Users may name any kind: those that there are are kept.
            known.retain(|_, (_, found)| found.is_some());
            if known.len() >= REMEMBERED {
                known.clear();
            }
        }
        known.insert(id, (Instant::now(), found));
    }

    async fn discover(&self, group: &str, kind: &str) -> Result<Option<ApiResource>, kube::Error> {
        let groups = self.client.list_api_groups().await?;
        let Some(served) = groups.groups.into_iter().find(|served| served.name == group) else { return Ok(None) };
        let preferred = served.preferred_version.map(|version| version.version);
        let mut versions: Vec<String> = served.versions.into_iter().map(|version| version.version).collect();
        versions.sort_by_key(|version| match version.as_str() {
            "v1beta2" => 0,
            "v1beta1" => 1,
            other if Some(other) == preferred.as_deref() => 2,
            _ => 3,
        });
        for version in versions {
            let api_version = format!("{group}/{version}");
            let list = self.client.list_api_group_resources(&api_version).await?;
            let of_kind = |one: &str, name: &str| one == kind && !name.contains('/');
            if let Some(one) = list.resources.into_iter().find(|one| of_kind(&one.kind, &one.name) && one.namespaced) {
                if !self.is_of_contract(&format!("{}.{group}", one.name)).await? {
                    return Ok(None);
                }
                return Ok(Some(ApiResource {
                    group: group.to_owned(),
                    version,
                    api_version,
                    kind: kind.to_owned(),
                    plural: one.name,
                }));
            }
        }
        Ok(None)
    }

    /// Whether a kind is meant to be referred to: its definition says so by a label for each version of the contract. Other tools
    /// have kinds in these groups, too, with accounts of a cloud in them. A kind without a definition is the API server's own.
    async fn is_of_contract(&self, definition: &str) -> Result<bool, kube::Error> {
        let definitions = Api::<CustomResourceDefinition>::all(self.client.clone());
        let found = definitions.get_metadata_opt(definition).await?;
        Ok(found.is_none_or(|found| CONTRACTS.iter().any(|label| found.labels().contains_key(*label))))
    }

    /// The objects of a kind in a namespace.
    pub fn api(&self, namespace: &str, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, resource)
    }

    /// The object that is referred to, which may not be there yet.
    ///
    /// # Errors
    ///
    /// When references do not lead there, or the API fails.
    pub async fn get(
        &self,
        namespace: &str,
        reference: &ContractReference,
    ) -> Result<Option<FoundObject>, ReferenceError> {
        // A name is a part of a path: what no object is called leads nowhere.
        if !subdomain(&reference.name).is_empty() {
            return Ok(None);
        }
        let resource = self.resource(&reference.api_group, &reference.kind).await?;
        let url = self.api(namespace, &resource).resource_url().to_owned();
        let request = kube::core::Request::new(url).get(&reference.name, &GetParams::default());
        let text = match self.client.request_text(request.map_err(kube::Error::BuildRequest)?).await {
            Err(kube::Error::Api(error)) if error.is_not_found() => return Ok(None),
            text => text?,
        };
        if is_too_large(&text) {
            return Err(ReferenceError::Large { kind: reference.kind.clone(), name: reference.name.clone() });
        }
        let object = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
        Ok(Some(FoundObject { resource, object }))
    }

    /// Makes the object one of `owner`, with these labels, if it is not yet. Those that only made it for the owner, by UID, are
    /// its owners no longer.
    ///
    /// # Errors
    ///
    /// When it is another's: one that controls it, where the owner is to; where the owner shares it, one of the same kind. When
    /// somebody wrote it in between.
    pub async fn adopt(
        &self,
        found: FoundObject,
        owner: &OwnerReference,
        labels: &[(&str, &str)],
        makers: &[&str],
    ) -> Result<FoundObject, ReferenceError> {
        let Some(metadata) = adoption(&found, owner, labels, makers)? else { return Ok(found) };
        self.patch(&found, &json!({ "metadata": metadata })).await
    }

    /// Changes an object that is the one at hand.
    ///
    /// # Errors
    ///
    /// What the API says; a conflict when it is not the one at hand any more.
    pub async fn patch(&self, found: &FoundObject, patch: &Value) -> Result<FoundObject, ReferenceError> {
        let mut patch = patch.clone();
        patch["metadata"]["resourceVersion"] = json!(found.object.resource_version());
        let api = self.api(&found.object.namespace().unwrap_or_default(), &found.resource);
        let object = api.patch(&found.object.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(FoundObject { resource: found.resource.clone(), object })
    }

    /// Makes an object. One of the same name that has the same controller is taken for it: the one that was made before
    /// something went wrong.
    ///
    /// # Errors
    ///
    /// What the API says; when the name is another's.
    pub async fn create(&self, resource: &ApiResource, object: &DynamicObject) -> Result<FoundObject, ReferenceError> {
        let api = self.api(&object.namespace().unwrap_or_default(), resource);
        match api.create(&PostParams::default(), object).await {
            Ok(object) => return Ok(FoundObject { resource: resource.clone(), object }),
            Err(kube::Error::Api(error)) if error.is_already_exists() => {}
            Err(error) => return Err(error.into()),
        }
        let there = FoundObject { resource: resource.clone(), object: api.get(&object.name_any()).await? };
        let owner = owners::controller(&object.metadata);
        if owner.is_some()
            && owner.map(|owner| &owner.uid) == owners::controller(&there.object.metadata).map(|o| &o.uid)
        {
            return Ok(there);
        }
        Err(taken(&there, owners::controller(&there.object.metadata)))
    }

    /// Deletes an object, if it is still the one at hand.
    ///
    /// # Errors
    ///
    /// What the API says; one that is gone is well.
    pub async fn delete(&self, found: &FoundObject) -> Result<(), ReferenceError> {
        if found.is_deleted() {
            return Ok(());
        }
        let api = self.api(&found.object.namespace().unwrap_or_default(), &found.resource);
        let preconditions = Preconditions { uid: found.object.uid(), ..Preconditions::default() };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        match api.delete(&found.object.name_any(), &params).await {
            Err(kube::Error::Api(error)) if error.is_not_found() => Ok(()),
            deleted => deleted.map(drop).map_err(Into::into),
        }
    }
}

/// The metadata that makes an object one of `owner`; `None` when it is already.
fn adoption(
    found: &FoundObject,
    owner: &OwnerReference,
    labels: &[(&str, &str)],
    makers: &[&str],
) -> Result<Option<Map<String, Value>>, ReferenceError> {
    let before = found.object.metadata.owner_references.clone().unwrap_or_default();
    let made = |one: &OwnerReference| makers.contains(&one.uid.as_str());
    let kept: Vec<OwnerReference> = before.iter().filter(|one| !made(one)).cloned().collect();
    let is_fewer = kept.len() < before.len();
    let meta = ObjectMeta { owner_references: Some(kept), ..ObjectMeta::default() };
    let is_other =
        |other: &&OwnerReference| other.uid != owner.uid && (&other.kind, &other.name) != (&owner.kind, &owner.name);
    let other = match owner.controller {
        Some(true) => owners::controller(&meta).filter(is_other),
        // Another tool may control what is shared, but nothing of a cluster: that is another cluster's, or a machine's of this one.
        _ => owners::rival(&meta, owner)
            .or_else(|| owners::controller(&meta).filter(|other| is_other(other) && is_of_clusters(other))),
    };
    if let Some(other) = other {
        return Err(taken(found, Some(other)));
    }
    // An owner that is gone is replaced; a cluster that is there does not lose what has its name on it.
    let is_shared = owner.controller != Some(true) && !owners::is_owned(&meta, &owner.uid);
    if let Some((key, name)) = labels.iter().find(|(key, _)| *key == LABEL_CLUSTER).filter(|_| is_shared)
        && let Some(of) = found.object.labels().get(*key).filter(|of| of != name)
    {
        return Err(ReferenceError::Taken {
            kind: found.resource.kind.clone(),
            name: found.object.name_any(),
            by: format!("the cluster {of:?}, as its label {key} says"),
        });
    }
    let mut metadata = Map::new();
    if let Some(all) = owners::with(&meta, owner).or(meta.owner_references.filter(|_| is_fewer)) {
        metadata.insert("ownerReferences".into(), json!(all));
    }
    let missing: Map<String, Value> = labels
        .iter()
        .filter(|(key, value)| found.object.labels().get(*key).map(String::as_str) != Some(*value))
        .map(|(key, value)| ((*key).to_owned(), Value::from(*value)))
        .collect();
    if !missing.is_empty() {
        metadata.insert("labels".into(), missing.into());
    }
    Ok((!metadata.is_empty()).then_some(metadata))
}

/// Whether it is a cluster, or what a cluster's machines are made by.
fn is_of_clusters(owner: &OwnerReference) -> bool {
    [GROUP, control_plane::GROUP].contains(&owners::group_of(&owner.api_version))
}

fn taken(found: &FoundObject, by: Option<&OwnerReference>) -> ReferenceError {
    let by = by
        .map_or_else(|| "nobody, and not made for this".to_owned(), |owner| format!("{} {:?}", owner.kind, owner.name));
    ReferenceError::Taken { kind: found.resource.kind.clone(), name: found.object.name_any(), by }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(owners: Vec<OwnerReference>) -> FoundObject {
        let resource = ApiResource {
            group: "g".into(),
            version: "v".into(),
            api_version: "g/v".into(),
            kind: "K".into(),
            plural: "ks".into(),
        };
        let mut object = DynamicObject::new("o", &resource);
        object.metadata =
            ObjectMeta { name: Some("o".into()), owner_references: Some(owners), ..ObjectMeta::default() };
        FoundObject { resource, object }
    }

    fn owner(name: &str, uid: &str, controller: bool) -> OwnerReference {
        OwnerReference {
            api_version: "cluster.x-k8s.io/v1beta2".into(),
            kind: "Machine".into(),
            name: name.into(),
            uid: uid.into(),
            controller: controller.then_some(true),
            block_owner_deletion: None,
        }
    }

    #[tokio::test]
    async fn kinds_that_nobody_serves_are_asked_for_once_in_a_while() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let told = asked.clone();
        let answer = move |request: http::Request<kube::client::Body>| {
            let path = request.uri().path().to_owned();
            let definition = |name: &str, labels: Value| {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"name": format!("{name}.bootstrap.cluster.x-k8s.io"), "labels": labels}})
            };
            let mut code = 200;
            let answer = match path.rsplit_once('/').map_or(path.as_str(), |(_, last)| last) {
                "builtins.bootstrap.cluster.x-k8s.io" => {
                    code = 404;
                    json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404})
                }
                "theres.bootstrap.cluster.x-k8s.io" => {
                    definition("theres", json!({"cluster.x-k8s.io/v1beta1": "v1alpha1"}))
                }
                "identities.bootstrap.cluster.x-k8s.io" => definition("identities", json!({"other": "v1beta1"})),
                "apis" => json!({"kind": "APIGroupList", "groups": [{"name": "bootstrap.cluster.x-k8s.io",
                    "versions": [{"groupVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "version": "v1beta2"}]}]}),
                _ => {
                    let kind = |plural: &str, kind: &str| json!({"name": plural, "singularName": "", "namespaced": true, "kind": kind, "verbs": []});
                    let kinds = [kind("theres", "There"), kind("builtins", "BuiltIn"), kind("identities", "Identity")];
                    json!({"kind": "APIResourceList", "groupVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
                        "resources": kinds})
                }
            };
            told.lock().unwrap().push(path);
            let body = kube::client::Body::from(answer.to_string().into_bytes());
            let response = http::Response::builder().status(code).body(body).unwrap();
            std::future::ready(Ok::<_, std::convert::Infallible>(response))
        };
        let objects = ReferencedObjects::new(Client::new(tower::service_fn(answer), "default"));
        let count = || std::mem::take(&mut *asked.lock().unwrap()).len();
        for _ in 0..5 {
            let error = objects.resource("bootstrap.cluster.x-k8s.io", "Lacking").await.unwrap_err();
            assert!(matches!(error, ReferenceError::Kind { .. }), "{error}");
        }
        assert_eq!(count(), 2);
        assert_eq!(objects.resource("bootstrap.cluster.x-k8s.io", "There").await.unwrap().plural, "theres");
        assert_eq!(count(), 3);
        assert_eq!(objects.resource("bootstrap.cluster.x-k8s.io", "BuiltIn").await.unwrap().plural, "builtins");
        let error = objects.resource("bootstrap.cluster.x-k8s.io", "Identity").await.unwrap_err();
        assert!(error.to_string().contains("whose definition has the label"), "{error}");
        count();
        objects.known.lock().unwrap().values_mut().for_each(|(at, _)| *at = at.checked_sub(UNSERVED_FOR).unwrap());
        objects.resource("bootstrap.cluster.x-k8s.io", "Lacking").await.unwrap_err();
        objects.resource("bootstrap.cluster.x-k8s.io", "There").await.unwrap();
        assert_eq!(count(), 2, "it may be served by now");
        for number in 0..REMEMBERED {
            objects.resource("bootstrap.cluster.x-k8s.io", &format!("Lacking{number}")).await.unwrap_err();
        }
        count();
        objects.resource("bootstrap.cluster.x-k8s.io", "There").await.unwrap();
        assert_eq!(count(), 0, "what there is is not forgotten for what there is not");
        assert!(objects.known.lock().unwrap().len() <= REMEMBERED);
    }

    #[test]
    fn what_is_anothers_is_not_adopted() {
        let mine = owner("m", "1", true);
        let adoption =
            |found: &FoundObject, owner: &OwnerReference, labels: &[(&str, &str)]| adoption(found, owner, labels, &[]);
        let metadata = adoption(&found(Vec::new()), &mine, &[("a", "b")]).unwrap().unwrap();
        assert_eq!(metadata["labels"], json!({"a": "b"}));
        assert_eq!(metadata["ownerReferences"], json!([mine]));
        assert_eq!(adoption(&found(vec![mine.clone()]), &mine, &[]).unwrap(), None);
        let other = found(vec![owner("n", "2", true)]);
        let refused = adoption(&other, &mine, &[]).unwrap_err().to_string();
        assert!(refused.contains("Machine \"n\""), "{refused}");
        // A machine of this name that is gone left it behind.
        assert!(adoption(&found(vec![owner("m", "0", true)]), &mine, &[]).unwrap().is_some());
        // Who does not control it shares it, but not with one of its own kind, nor what a machine or a set controls.
        let sharing = OwnerReference { kind: "Cluster".into(), ..owner("c", "3", false) };
        let refused = adoption(&other, &sharing, &[]).unwrap_err().to_string();
        assert!(refused.contains("Machine \"n\""), "{refused}");
        let tool =
            OwnerReference { api_version: "example.org/v1".into(), kind: "Tool".into(), ..owner("t", "5", true) };
        assert!(adoption(&found(vec![tool.clone()]), &sharing, &[]).unwrap().is_some());
        let mut labelled = found(vec![tool]);
        labelled.object.metadata.labels = Some([(LABEL_CLUSTER.to_owned(), "d".to_owned())].into());
        let refused = adoption(&labelled, &sharing, &[(LABEL_CLUSTER, "c")]).unwrap_err().to_string();
        assert!(refused.contains("the cluster \"d\""), "{refused}");
        assert!(adoption(&labelled, &sharing, &[(LABEL_CLUSTER, "d")]).unwrap().is_some());
        let refused =
            adoption(&found(vec![sharing]), &OwnerReference { kind: "Cluster".into(), ..owner("d", "4", false) }, &[]);
        assert!(refused.unwrap_err().to_string().contains("Cluster \"c\""));
    }

    #[test]
    fn who_controlled_it_before_shares_it_now() {
        let sharing = owner("c", "1", false);
        let metadata = adoption(&found(vec![owner("c", "1", true)]), &sharing, &[], &[]).unwrap().unwrap();
        assert_eq!(metadata["ownerReferences"], json!([sharing]));
        assert_eq!(adoption(&found(vec![sharing.clone()]), &sharing, &[], &[]).unwrap(), None);
    }

    #[test]
    fn who_only_made_it_owns_it_no_longer() {
        let mine = owner("m", "1", true);
        let maker = OwnerReference { kind: "MachineSet".into(), ..owner("s", "2", false) };
        let stays = OwnerReference { kind: "Shelf".into(), ..owner("h", "3", false) };
        let makers = ["2"];
        for before in [vec![maker.clone(), stays.clone()], vec![stays.clone(), mine.clone(), maker.clone()]] {
            let metadata = adoption(&found(before), &mine, &[], &makers).unwrap().unwrap();
            assert_eq!(metadata["ownerReferences"], json!([stays, mine]));
        }
        // One that is as it should be is not written.
        assert_eq!(adoption(&found(vec![stays, mine.clone()]), &mine, &[], &makers).unwrap(), None);
        // One that controls it, too, as long as the owner does not.
        let controls = OwnerReference { controller: Some(true), ..maker };
        let metadata = adoption(&found(vec![controls.clone()]), &mine, &[], &makers).unwrap().unwrap();
        assert_eq!(metadata["ownerReferences"], json!([mine]));
        // Another set did not make it.
        let other = OwnerReference { uid: "9".into(), ..controls };
        assert!(adoption(&found(vec![other]), &mine, &[], &makers).is_err());
    }
}
