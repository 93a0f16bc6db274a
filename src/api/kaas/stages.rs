//! What clusters and machines went through, stage by stage: ClusterDeploymentStatus, ClusterUpgradeStatus, and the same of machines.
//!
//! As published, their fields stand beside the metadata, and not in a status. So their definitions are made here, and not derived.

use std::borrow::Cow;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::core::schema::{OptionalEnum, OptionalIntOrString, StructuralSchemaRewriter};
use kube::discovery::ApiResource;
use kube::{CustomResourceExt, Resource};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use schemars::transform::AddNullable;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::GROUP;
use crate::api::bounded;

/// Stages that are read of a history, at most.
pub const MAX_STAGES: usize = 50;

/// How far a stage is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StageState {
    /// Nothing of it has begun.
    #[default]
    NotStarted,
    /// It has begun.
    InProgress,
    /// It is over.
    Success,
    /// It does not get on, or was given up.
    Fail,
}

/// A stage.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LcmStage {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// How far it is.
    #[serde(default)]
    pub status: StageState,
    /// Whether it is over.
    #[serde(default)]
    pub success: bool,
    /// What it waits for, or why it does not get on.
    #[serde(default)]
    pub message: String,
    /// Since when it is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Time>,
}

/// A kind that says what something went through.
pub trait StageHistory {
    /// Its stages.
    fn stages(&self) -> &[LcmStage];
    /// The same.
    fn stages_mut(&mut self) -> &mut Vec<LcmStage>;
    /// The release that it is about.
    fn release(&self) -> &str;
}

macro_rules! history {
    ($(#[$doc:meta])* $kind:ident, $plural:literal, $singular:literal, $column:literal of $release:ident, { $($(#[$field_doc:meta])* $field:ident),* }) => {
        $(#[$doc])*
        #[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
        #[serde(rename_all = "camelCase")]
        pub struct $kind {
            /// `kaas.mirantis.com/v1alpha1`.
            #[schemars(skip)]
            #[serde(default)]
            pub api_version: String,
            /// Its kind.
            #[schemars(skip)]
            #[serde(default)]
            pub kind: String,
            /// Which object it is.
            #[schemars(skip)]
            pub metadata: ObjectMeta,
            $($(#[$field_doc])* #[serde(default)] pub $field: String,)*
            /// What it went through, in order.
            #[serde(default, deserialize_with = "bounded::list::<_, _, MAX_STAGES>")]
            pub stages: Vec<LcmStage>,
        }

        impl $kind {
            /// Of this name; nothing has happened.
            pub fn new(name: &str, $($field: &str),*) -> Self {
                Self {
                    api_version: Self::api_version(&()).into_owned(),
                    kind: Self::kind(&()).into_owned(),
                    metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
                    $($field: $field.to_owned(),)*
                    stages: Vec::new(),
                }
            }
        }

        impl StageHistory for $kind {
            fn stages(&self) -> &[LcmStage] {
                &self.stages
            }

            fn stages_mut(&mut self) -> &mut Vec<LcmStage> {
                &mut self.stages
            }

            fn release(&self) -> &str {
                &self.$release
            }
        }

        impl Resource for $kind {
            type DynamicType = ();
            type Scope = NamespaceResourceScope;

            fn kind((): &()) -> Cow<'_, str> {
                stringify!($kind).into()
            }

            fn group((): &()) -> Cow<'_, str> {
                GROUP.into()
            }

            fn version((): &()) -> Cow<'_, str> {
                VERSION.into()
            }

            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }

        impl CustomResourceExt for $kind {
            fn crd() -> CustomResourceDefinition {
                let schema = schema::<Self>();
                definition([stringify!($kind), $plural, $singular, $column], &schema)
            }

            fn crd_name() -> &'static str {
                concat!($plural, ".kaas.mirantis.com")
            }

            fn api_resource() -> ApiResource {
                ApiResource::erase::<Self>(&())
            }

            fn shortnames() -> &'static [&'static str] {
                &[]
            }
        }
    };
}

const VERSION: &str = "v1alpha1";

fn schema<K: JsonSchema>() -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let settings = settings
        .with_transform(AddNullable::default())
        .with_transform(StructuralSchemaRewriter)
        .with_transform(OptionalEnum)
        .with_transform(OptionalIntOrString);
    settings.into_generator().into_root_schema_for::<K>().to_value()
}

/// The definition of a kind that has neither `spec` nor `status`.
fn definition([kind, plural, singular, release]: [&str; 4], schema: &Value) -> CustomResourceDefinition {
    let column = |name: &str, path: &str, description: &str| json!({"name": name, "type": "string", "jsonPath": path, "description": description});
    let whole = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": singular},
            "versions": [{
                "name": VERSION, "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                "additionalPrinterColumns": [
                    column("Release", release, "Release that it is about"),
                    column("Stage", ".stages[?(@.success==false)].name", "What is not over"),
                    column("Message", ".stages[?(@.success==false)].message", "What it waits for, or why it does not get on"),
                    json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": "Time since creation"}),
                ],
            }],
        },
    });
    serde_json::from_value(whole).expect("it is a definition")
}

history! {
    /// How a cluster was made. It has the name of its Cluster.
    ClusterDeploymentStatus, "clusterdeploymentstatuses", "clusterdeploymentstatus", ".release" of release, {
        /// Release that it was made of.
        release
    }
}

history! {
    /// How a machine became a node. It has the name of its Machine.
    MachineDeploymentStatus, "machinedeploymentstatuses", "machinedeploymentstatus", ".release" of release, {
        /// Release that it was made of.
        release
    }
}

history! {
    /// How a cluster went from one release to another. It has the names of its Cluster and of the release.
    ClusterUpgradeStatus, "clusterupgradestatuses", "clusterupgradestatus", ".toRelease" of to_release, {
        /// Release that it had.
        from_release,
        /// Release that it went to.
        to_release
    }
}

history! {
    /// How a machine went from one release to another. It has the names of its Machine and of the release.
    MachineUpgradeStatus, "machineupgradestatuses", "machineupgradestatus", ".toRelease" of to_release, {
        /// Release that it had.
        from_release,
        /// Release that it went to.
        to_release
    }
}
