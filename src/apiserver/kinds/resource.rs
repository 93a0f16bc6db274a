//! A served resource: one version of it, and everything that the server knows of it.

use std::sync::Arc;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::api::{Complete, FieldSealing, ServedVersion, StoragePolicy};
use crate::apiserver::answers::columns::PrinterColumn;
use crate::apiserver::answers::status::{FieldError, ResourceNames};
use crate::apiserver::objects::versions;
use crate::apiserver::schema::Schema;
use crate::apiserver::webhooks::conversion::Converter;

/// Group of CustomResourceDefinitions.
pub(in crate::apiserver) const APIEXTENSIONS: &str = "apiextensions.k8s.io";

/// Verbs of a resource that clients may write.
const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// Verbs of namespaces: nobody means all of them at once.
const VERBS_NAMESPACE: [&str; 7] = ["create", "delete", "get", "list", "patch", "update", "watch"];
/// Verbs of a resource that clients may read and delete.
const VERBS_INTERNAL: [&str; 5] = ["delete", "deletecollection", "get", "list", "watch"];
/// Verbs of what is answered and not kept.
const VERBS_REVIEW: [&str; 1] = ["create"];
/// Verbs of a view.
const VERBS_VIEW: [&str; 3] = ["get", "list", "watch"];

/// Between a served version and the stored form of the same object.
#[derive(Debug)]
#[allow(private_interfaces, reason = "only this room makes one that asks a webhook")]
pub enum Conversion {
    /// The forms differ in shape.
    Convert {
        /// Stored form to served version.
        from_stored: fn(&Value) -> Value,
        /// Served version to stored form.
        to_stored: fn(Value) -> Value,
    },
    /// The forms differ in shape, and neither can say all that the other can.
    Kept(ServedVersion),
    /// Only `apiVersion` differs (strategy `None` of a CustomResourceDefinition), and objects that were stored under
    /// an older schema get the defaults that came later.
    Version {
        /// `apiVersion` to store with.
        stored: String,
    },
    /// A webhook says what becomes of an object (strategy `Webhook`). It is asked beforehand, see
    /// [`converting`](crate::apiserver::webhooks::converting): what is asked for here has its version already.
    Webhook {
        /// `apiVersion` to store with.
        stored: String,
        /// Who is asked.
        converter: Arc<Converter>,
    },
}

/// Rules of a kind that a schema cannot say. The object is as the client will see it; the second is its former self.
pub type Prepare = fn(&mut Value, Option<&Value>, &mut Vec<FieldError>);

/// One served version of one resource.
#[derive(Debug)]
pub struct ServedResource {
    /// API group; empty for core.
    pub group: String,
    /// Version.
    pub version: String,
    /// Kind.
    pub kind: String,
    /// Kind of its lists.
    pub list_kind: String,
    /// Plural, the path segment.
    pub plural: String,
    /// Singular.
    pub singular: String,
    /// Short names for kubectl.
    pub short_names: Vec<String>,
    /// Categories for kubectl, as `all`.
    pub categories: Vec<String>,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// How objects are kept.
    pub policy: StoragePolicy,
    /// Whether there is a status subresource.
    pub status: bool,
    /// Whether this is a Kubernetes core kind, with its typed habits: nulls are dropped, strategic merge patches
    /// are served, an update may leave the resourceVersion out, there is no generation.
    pub core: bool,
    /// Schema of the whole object.
    pub schema: Schema,
    /// Schema of the whole object for OpenAPI documents.
    pub openapi: PackedJson,
    /// Columns of tables.
    pub columns: Vec<PrinterColumn>,
    /// Name in the store: `<group>/<plural>` of the stored form.
    pub storage: Arc<str>,
    /// Set when the stored form differs, or may.
    pub conversion: Option<Conversion>,
    /// Whether this is the version that objects are stored in.
    pub stores: bool,
    /// The scale subresource, when there is one.
    pub scale: Option<ScalePaths>,
    /// Paths that field selectors may name beside those that every kind has.
    pub selectable: Vec<String>,
    /// Set for kinds that were defined at run time.
    pub custom: Option<Custom>,
    /// Rules beyond the schema.
    pub prepare: Option<Prepare>,
    /// Defaults beyond the schema.
    pub complete: Option<Complete>,
    /// What of its objects goes into a Secret.
    pub sealing: Option<&'static FieldSealing>,
    /// What clients are warned of when they use a deprecated version.
    pub deprecation: Option<String>,
}

/// Where a kind keeps what the scale subresource shows (`CustomResourceSubresourceScale`).
#[derive(Clone, Debug)]
pub struct ScalePaths {
    /// Wished number; a path of plain fields.
    pub spec_replicas: Vec<String>,
    /// Actual number.
    pub status_replicas: Vec<String>,
    /// Label selector as text.
    pub selector: Option<Vec<String>>,
}

/// A JSON document that is seldom asked for. Only its text is kept, packed, which is a fraction of it.
#[derive(Clone, Debug, Default)]
pub struct PackedJson(Arc<[u8]>);

impl PackedJson {
    pub(in crate::apiserver) fn new(value: &Value) -> Self {
        Self(lz4_flex::block::compress_prepend_size(value.to_string().as_bytes()).into())
    }

    /// The document; null when there is none.
    pub fn value(&self) -> Value {
        let text = lz4_flex::block::decompress_size_prepended(&self.0).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }
}

/// What a kind that was defined at run time has beside.
#[derive(Debug, Default)]
pub struct Custom {
    /// Whether its definition is being deleted: objects may go, but none may come.
    pub ending: bool,
    /// `creationTimestamp` of its definition.
    pub since: String,
    /// Cancelled when another definition, or none, takes this one's place.
    pub replaced: CancellationToken,
}

impl ServedResource {
    /// Whether the server counts changes of the spec in `metadata.generation`.
    pub fn counts_generation(&self) -> bool {
        !self.core || [APIEXTENSIONS, "admissionregistration.k8s.io"].contains(&self.group.as_str())
    }

    /// `group/version`, or `v1` for core.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `plural.group`, or `plural` for core.
    pub fn qualified(&self) -> String {
        ResourceNames::qualified(self)
    }

    /// Verbs that clients over the network have.
    pub fn verbs(&self) -> &'static [&'static str] {
        match self.policy {
            StoragePolicy::Durable if &*self.storage == "/namespaces" => &VERBS_NAMESPACE,
            StoragePolicy::Durable | StoragePolicy::Administrative => &VERBS,
            StoragePolicy::Internal => &VERBS_INTERNAL,
            StoragePolicy::View => &VERBS_VIEW,
            StoragePolicy::Review => &VERBS_REVIEW,
        }
    }

    /// Name of the schema in OpenAPI documents: the group backwards, version, kind.
    pub fn schema_name(&self) -> String {
        if self.core {
            return core_schema_name(&self.group, &self.version, &self.kind);
        }
        let mut group: Vec<&str> = self.group.split('.').collect();
        group.reverse();
        format!("{}.{}.{}", group.join("."), self.version, self.kind)
    }

    /// The object as this version serves it.
    pub(in crate::apiserver) fn served(&self, mut stored: Value) -> Value {
        match &self.conversion {
            Some(Conversion::Convert { from_stored, .. }) => from_stored(&stored),
            Some(Conversion::Kept(version)) => versions::from_stored(&stored, version),
            Some(Conversion::Version { .. }) => {
                stored["apiVersion"] = self.api_version().into();
                // Those that there is no room for are left out: it is read rather in part than not at all.
                self.schema.apply_defaults(&mut stored);
                stored
            }
            Some(Conversion::Webhook { .. }) => {
                if stored["apiVersion"] == self.api_version() {
                    self.schema.apply_defaults(&mut stored);
                }
                stored
            }
            None => stored,
        }
    }

    /// The stored form of an object of this version.
    pub(in crate::apiserver) fn to_stored(&self, mut value: Value) -> Value {
        match &self.conversion {
            Some(Conversion::Convert { to_stored, .. }) => to_stored(value),
            Some(Conversion::Kept(version)) => versions::to_stored(value, version),
            Some(Conversion::Version { stored }) => {
                value["apiVersion"] = stored.as_str().into();
                value
            }
            Some(Conversion::Webhook { .. }) | None => value,
        }
    }

    /// The same of an object that a client writes, over its stored form of before (`live`). Only what the request writes is
    /// another: the status, or all but that.
    pub(in crate::apiserver) fn to_stored_over(
        &self,
        value: Value,
        live: impl FnOnce() -> Option<Value>,
        is_status: bool,
    ) -> Value {
        match &self.conversion {
            Some(Conversion::Kept(version)) if self.status => {
                versions::to_stored_over(value, version, live().as_ref(), is_status)
            }
            _ => self.to_stored(value),
        }
    }

    /// Whether an object of this version says of itself what its stored form has besides.
    pub(in crate::apiserver) fn brings_back(&self, value: &Value) -> bool {
        matches!(self.conversion, Some(Conversion::Kept(_))) && versions::brings_back(value)
    }
}

impl ResourceNames for ServedResource {
    fn group(&self) -> &str {
        &self.group
    }

    fn kind(&self) -> &str {
        &self.kind
    }

    fn plural(&self) -> &str {
        &self.plural
    }
}

/// Parts of a core kind that are not in its schema.
pub(in crate::apiserver) struct CoreKind {
    pub group: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub short_names: &'static [&'static str],
    pub namespaced: bool,
    pub status: bool,
    pub columns: fn() -> Vec<PrinterColumn>,
    pub conversion: Option<Conversion>,
    pub prepare: Option<Prepare>,
}

pub(super) fn core_schema_name(group: &str, version: &str, kind: &str) -> String {
    if group == APIEXTENSIONS {
        return format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.{version}.{kind}");
    }
    // Upstream's package is named by the first word of the group.
    let package = group.split('.').next().filter(|word| !word.is_empty()).unwrap_or("core");
    format!("io.k8s.api.{package}.{version}.{kind}")
}
