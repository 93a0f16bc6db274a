//! Objects that a cluster or a machine names: how they are found, owned, and what is seen of them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use serde_json::Value;

use super::kit::CoreFault;
use crate::api::cluster::v1beta2::ContractReference;
use crate::api::{bootstrap, control_plane, infrastructure};
use crate::cluster::contract::{FoundObject, ReferenceError, ReferencedObjects, fields};
use crate::runtime::conditions::ConditionVerdict;
use crate::runtime::owners;

/// As what an object is named.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReferenceRole {
    /// What makes a machine into a node, or the template of it.
    Bootstrap,
    /// What runs the control plane.
    ControlPlane,
    /// What a cluster or a machine runs on, or the template of it.
    Infrastructure,
}

impl ReferenceRole {
    /// The group that has its kinds; in a slice, as [`ReferenceError::Group`] says it.
    const fn group(self) -> &'static [&'static str] {
        match self {
            Self::Bootstrap => &[bootstrap::GROUP],
            Self::ControlPlane => &[control_plane::GROUP],
            Self::Infrastructure => &[infrastructure::GROUP],
        }
    }
}

/// What was found of an object that is named.
pub(super) enum NamedObject {
    /// None is named.
    None,
    /// It is not there, or cannot be had: why.
    Missing(String),
    /// It is there.
    There(Box<FoundObject>),
}

/// What was seen of an object that is named.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SeenObject {
    /// None is named.
    Unnamed,
    /// It is not there, or cannot be had: why.
    Missing(String),
    /// It is there.
    There {
        /// Its kind and name, for messages.
        what: String,
        /// Whether it says that it is ready, in the contract's own field.
        done: bool,
        /// Its condition, where it has one.
        condition: Option<ConditionVerdict>,
        /// Whether it is going.
        deleted: bool,
        /// A fault that nobody will mend.
        failure: Option<(String, String)>,
    },
}

impl NamedObject {
    /// Looks for an object, in a namespace. One of another group than has the kinds for this role is left alone.
    pub(super) async fn find(
        objects: &ReferencedObjects,
        namespace: &str,
        role: ReferenceRole,
        reference: Option<&ContractReference>,
    ) -> Result<Self, CoreFault> {
        let Some(reference) = reference else { return Ok(Self::None) };
        let ContractReference { kind, name, api_group } = reference;
        let followed = role.group();
        if !followed.contains(&api_group.as_str()) {
            let error = ReferenceError::Group { kind: kind.clone(), group: api_group.clone(), followed };
            return Ok(Self::Missing(error.to_string()));
        }
        match objects.get(namespace, reference).await {
            Ok(Some(found)) => Ok(Self::There(Box::new(found))),
            Ok(None) => Ok(Self::Missing(format!("there is no {kind} {name:?}"))),
            Err(ReferenceError::Api(error)) => Err(error.into()),
            Err(error) => Ok(Self::Missing(error.to_string())),
        }
    }

    /// The object as one of `owner`, and no longer of its makers; one of another is as if it were not there.
    pub(super) async fn adopt(
        self,
        objects: &ReferencedObjects,
        owner: &OwnerReference,
        labels: &[(&str, &str)],
        makers: &[&str],
    ) -> Result<Self, CoreFault> {
        let Self::There(found) = self else { return Ok(self) };
        match objects.adopt(*found, owner, labels, makers).await {
            Ok(found) => Ok(Self::There(Box::new(found))),
            Err(error @ ReferenceError::Taken { .. }) => Ok(Self::Missing(error.to_string())),
            Err(error) => Err(error.into()),
        }
    }

    /// Spec and status of the object, if it is there.
    pub(super) fn data(&self) -> Option<&Value> {
        match self {
            Self::There(found) => Some(found.data()),
            _ => None,
        }
    }

    /// The object, unless it is another's than this owner's: that stays.
    pub(super) fn own(&self, owner: &OwnerReference) -> Option<&FoundObject> {
        let Self::There(found) = self else { return None };
        let meta = &found.object.metadata;
        let is_free = owners::controller(meta).is_none_or(|other| other.uid == owner.uid);
        let is_own = match owner.controller {
            Some(true) => is_free,
            // Whoever controls what is shared has it go with the owner.
            _ => owners::is_owned(meta, &owner.uid) || is_free && owners::rival(meta, owner).is_none(),
        };
        is_own.then_some(found)
    }

    /// What is seen of it: the first of these conditions that it has, and whether the contract says that it is done.
    pub(super) fn seen(&self, conditions: &[&str], done: impl Fn(&Value) -> bool) -> SeenObject {
        match self {
            Self::None => SeenObject::Unnamed,
            Self::Missing(reason) => SeenObject::Missing(reason.clone()),
            Self::There(found) => SeenObject::There {
                what: format!("{} {:?}", found.resource.kind, found.object.name_any()),
                done: done(found.data()),
                condition: conditions.iter().find_map(|type_| fields::condition(found.data(), type_)),
                deleted: found.is_deleted(),
                failure: fields::failure(found.data()),
            },
        }
    }
}

/// What a condition says of an object that is named: what the object says of itself, or else the contract's field.
pub(super) fn mirrored(seen: &SeenObject, [ready, not_ready, missing]: [&str; 3]) -> ConditionVerdict {
    match seen {
        SeenObject::Unnamed => ConditionVerdict::no(missing, "none is named"),
        SeenObject::Missing(message) => ConditionVerdict::no(missing, message.clone()),
        SeenObject::There { condition: Some(condition), .. } => {
            let reason = if condition.reason.is_empty() {
                if condition.is_true() { ready } else { not_ready }
            } else {
                &condition.reason
            };
            ConditionVerdict { reason: reason.to_owned(), ..condition.clone() }
        }
        SeenObject::There { done: true, .. } => ConditionVerdict::yes(ready),
        SeenObject::There { what, .. } => {
            ConditionVerdict::no(not_ready, format!("{what} does not say that it is ready yet"))
        }
    }
}
