//! What this server serves: one table of resources, made from the CRDs of [`crate::api::kinds`] and the core kinds.
//! Everything else (discovery, OpenAPI, tables, validation) is read off this table.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceDefinitionSpec,
    CustomResourceDefinitionVersion,
};
use kube::core::Version;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::apply::markers;
use super::schema::Schema;
use super::status::FieldError;
use super::table::{Column, Source};
use super::{auth, core_kinds, core_schemas, crd, events};
use crate::api::{Complete, Keep, Kind, Shape};
use crate::jsonpath::{JsonPathError, Path};

/// Name of the schema of `metadata` in OpenAPI documents.
pub(super) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
/// Where OpenAPI v3 documents keep schemas.
pub(super) const SCHEMAS: &str = "#/components/schemas/";

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
pub enum Conversion {
    /// The forms differ in shape.
    Shape {
        /// Stored form to served version.
        from_stored: fn(&Value) -> Value,
        /// Served version to stored form.
        to_stored: fn(Value) -> Value,
    },
    /// The forms differ in shape, and neither can say all that the other can.
    Kept {
        /// Stored form to served version, as well as it goes.
        down: Shape,
        /// Served version to stored form, as well as it goes.
        up: Shape,
    },
    /// Only `apiVersion` differs (strategy `None` of a CustomResourceDefinition), and objects that were stored under
    /// an older schema get the defaults that came later.
    Version {
        /// `apiVersion` to store with.
        stored: String,
    },
}

/// Rules of a kind that a schema cannot say. The object is as the client will see it; the second is its former self.
pub type Prepare = fn(&mut Value, Option<&Value>, &mut Vec<FieldError>);

/// One served version of one resource.
#[derive(Debug)]
pub struct Resource {
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
    pub keep: Keep,
    /// Whether there is a status subresource.
    pub status: bool,
    /// Whether this is a Kubernetes core kind, with its typed habits: nulls are dropped, strategic merge patches
    /// are served, an update may leave the resourceVersion out, there is no generation.
    pub core: bool,
    /// Schema of the whole object.
    pub schema: Schema,
    /// Schema of the whole object for OpenAPI documents.
    pub openapi: Document,
    /// Columns of tables.
    pub columns: Vec<Column>,
    /// Name in the store: `<group>/<plural>` of the stored form.
    pub storage: Arc<str>,
    /// Set when the stored form differs, or may.
    pub conversion: Option<Conversion>,
    /// Whether this is the version that objects are stored in.
    pub stores: bool,
    /// The scale subresource, when there is one.
    pub scale: Option<Scale>,
    /// Paths that field selectors may name beside those that every kind has.
    pub selectable: Vec<String>,
    /// Set for kinds that were defined at run time.
    pub custom: Option<Custom>,
    /// Rules beyond the schema.
    pub prepare: Option<Prepare>,
    /// Defaults beyond the schema.
    pub complete: Option<Complete>,
    /// What clients are warned of when they use a deprecated version.
    pub deprecation: Option<String>,
}

/// Where a kind keeps what the scale subresource shows (`CustomResourceSubresourceScale`).
#[derive(Clone, Debug)]
pub struct Scale {
    /// Wished number; a path of plain fields.
    pub spec_replicas: Vec<String>,
    /// Actual number.
    pub status_replicas: Vec<String>,
    /// Label selector as text.
    pub selector: Option<Vec<String>>,
}

/// A JSON document that is seldom asked for. Only its text is kept, packed, which is a fraction of it.
#[derive(Clone, Debug, Default)]
pub struct Document(Arc<[u8]>);

impl Document {
    fn new(value: &Value) -> Self {
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
    /// Cancelled when another definition, or none, takes this one's place.
    pub replaced: CancellationToken,
}

impl Resource {
    /// Whether the server counts changes of the spec in `metadata.generation`.
    pub fn counts_generation(&self) -> bool {
        !self.core || self.group == super::crd::GROUP
    }

    /// `group/version`, or `v1` for core.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `plural.group`, or `plural` for core.
    pub fn qualified(&self) -> String {
        qualify(&self.plural, &self.group)
    }

    /// Verbs that clients over the network have.
    pub fn verbs(&self) -> &'static [&'static str] {
        match self.keep {
            Keep::Durable if &*self.storage == "/namespaces" => &VERBS_NAMESPACE,
            Keep::Durable => &VERBS,
            Keep::Internal => &VERBS_INTERNAL,
            Keep::View => &VERBS_VIEW,
            Keep::Review => &VERBS_REVIEW,
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
}

pub(super) fn qualify(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

/// The table cannot be made: a kind is defined wrongly.
#[derive(Debug, thiserror::Error)]
#[error("kind {kind}: {reason}")]
pub struct RegistryError {
    kind: String,
    reason: String,
}

/// Every resource that is served at one time. It never changes: kinds that come or go at run time make a new one.
#[derive(Debug)]
pub struct Registry {
    resources: Vec<Arc<Resource>>,
    by_path: HashMap<(String, String, String), Arc<Resource>>,
    /// Schemas that several kinds use, for OpenAPI documents.
    pub(super) shared_schemas: Arc<BTreeMap<String, Document>>,
}

impl Registry {
    /// The core kinds and these.
    pub fn new(kinds: &[Kind]) -> Result<Self, RegistryError> {
        let (mut resources, shared_schemas) = core_resources()?;
        for kind in kinds {
            resources.extend(custom_resources(kind)?);
        }
        Ok(Self::of(resources.into_iter().map(Arc::new).collect(), Arc::new(shared_schemas)))
    }

    fn of(resources: Vec<Arc<Resource>>, shared_schemas: Arc<BTreeMap<String, Document>>) -> Self {
        let path = |r: &Resource| (r.group.clone(), r.version.clone(), r.plural.clone());
        let by_path = resources.iter().map(|r| (path(r), Arc::clone(r))).collect();
        Self { resources, by_path, shared_schemas }
    }

    /// What is built in, and these kinds that were defined at run time.
    #[must_use]
    pub(super) fn with_custom(&self, custom: impl IntoIterator<Item = Arc<Resource>>) -> Self {
        let built_in = self.resources.iter().filter(|resource| resource.custom.is_none()).cloned();
        let own = custom.into_iter().filter(|one| !self.has_built_in(&one.group, &one.plural));
        Self::of(built_in.chain(own).collect(), Arc::clone(&self.shared_schemas))
    }

    /// Whether a built-in kind is served at this place in any version, or keeps its objects where a definition of this
    /// plural and group would keep its own.
    pub(super) fn has_built_in(&self, group: &str, plural: &str) -> bool {
        let storage = format!("{group}/{plural}");
        let mut built_in = self.resources.iter().filter(|resource| resource.custom.is_none());
        built_in.any(|one| (one.group == group && one.plural == plural) || *one.storage == *storage)
    }

    /// The resource at `/apis/<group>/<version>/…/<plural>`.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.by_path.get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    /// The resource of a kind.
    pub fn find_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Resource>> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        self.resources.iter().find(|r| r.kind == kind && r.group == group && r.version == version)
    }

    /// Every served version.
    pub fn all(&self) -> &[Arc<Resource>] {
        &self.resources
    }

    /// One entry for each stored resource, in the version it is stored in.
    pub fn stored(&self) -> impl Iterator<Item = &Arc<Resource>> {
        let mut seen = std::collections::HashSet::new();
        let kept = |r: &&Arc<Resource>| r.stores && r.keep != Keep::Review;
        self.resources.iter().filter(kept).filter(move |r| seen.insert(Arc::clone(&r.storage)))
    }

    /// Whether a group and version are served.
    pub fn has_version(&self, group: &str, version: &str) -> bool {
        self.resources.iter().any(|r| r.group == group && r.version == version)
    }

    /// Groups other than core in order of first mention, each with its versions, the preferred one first.
    pub fn groups(&self) -> Vec<(&str, Vec<&str>)> {
        let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
        for resource in self.resources.iter().filter(|r| !r.group.is_empty()) {
            match groups.iter_mut().find(|(group, _)| *group == resource.group) {
                Some((_, versions)) if versions.contains(&resource.version.as_str()) => {}
                Some((_, versions)) => versions.push(&resource.version),
                None => groups.push((&resource.group, vec![&resource.version])),
            }
        }
        for (_, versions) in &mut groups {
            versions.sort_by_cached_key(|version| std::cmp::Reverse(Version::parse(version).priority()));
        }
        groups
    }

    /// Resources of one group and version.
    pub fn of_version<'r>(&'r self, group: &'r str, version: &'r str) -> impl Iterator<Item = &'r Arc<Resource>> {
        self.resources.iter().filter(move |r| r.group == group && r.version == version)
    }
}

/// Parts of a core kind that are not in its schema.
pub(super) struct CoreKind {
    pub group: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub short_names: &'static [&'static str],
    pub namespaced: bool,
    pub status: bool,
    pub columns: fn() -> Vec<Column>,
    pub conversion: Option<Conversion>,
    pub prepare: Option<Prepare>,
}

fn core_schema_name(group: &str, version: &str, kind: &str) -> String {
    if group == crd::GROUP {
        return format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.{version}.{kind}");
    }
    // Upstream's package is named by the first word of the group.
    let package = group.split('.').next().filter(|word| !word.is_empty()).unwrap_or("core");
    format!("io.k8s.api.{package}.{version}.{kind}")
}

fn core_resources() -> Result<(Vec<Resource>, BTreeMap<String, Document>), RegistryError> {
    let kinds = [
        CoreKind {
            group: "",
            kind: "Namespace",
            plural: "namespaces",
            short_names: &["ns"],
            namespaced: false,
            status: true,
            columns: core_kinds::namespace_columns,
            conversion: None,
            prepare: Some(core_kinds::prepare_namespace),
        },
        CoreKind {
            group: "",
            kind: "Secret",
            plural: "secrets",
            short_names: &[],
            namespaced: true,
            status: false,
            columns: core_kinds::secret_columns,
            conversion: None,
            prepare: Some(core_kinds::prepare_secret),
        },
        CoreKind {
            group: "",
            kind: "ConfigMap",
            plural: "configmaps",
            short_names: &["cm"],
            namespaced: true,
            status: false,
            columns: core_kinds::config_map_columns,
            conversion: None,
            prepare: Some(core_kinds::prepare_config_map),
        },
        CoreKind {
            group: "",
            kind: "Event",
            plural: "events",
            short_names: &["ev"],
            namespaced: true,
            status: false,
            columns: events::columns,
            conversion: None,
            prepare: None,
        },
        CoreKind {
            group: "events.k8s.io",
            kind: "Event",
            plural: "events",
            short_names: &["ev"],
            namespaced: true,
            status: false,
            columns: events::columns,
            conversion: Some(Conversion::Shape { from_stored: events::to_new, to_stored: events::to_core }),
            prepare: None,
        },
        CoreKind {
            group: "coordination.k8s.io",
            kind: "Lease",
            plural: "leases",
            short_names: &[],
            namespaced: true,
            status: false,
            columns: core_kinds::lease_columns,
            conversion: None,
            prepare: Some(core_kinds::prepare_lease),
        },
        crd::core_kind(),
        CoreKind {
            group: "",
            kind: "Service",
            plural: "services",
            short_names: &["svc"],
            namespaced: true,
            status: false,
            columns: core_kinds::service_columns,
            conversion: None,
            prepare: None,
        },
    ];
    let documents = core_schemas::documents();
    let mut shared = documents.clone();
    // How clients merge these lists; the schemas of the library leave it out.
    if let Some(meta) = shared.get_mut(OBJECT_META) {
        meta["properties"]["finalizers"]["x-kubernetes-patch-strategy"] = "merge".into();
        meta["properties"]["finalizers"]["x-kubernetes-list-type"] = "set".into();
        meta["properties"]["ownerReferences"]["x-kubernetes-patch-strategy"] = "merge".into();
        meta["properties"]["ownerReferences"]["x-kubernetes-patch-merge-key"] = "uid".into();
    }
    let shared: BTreeMap<String, Document> =
        shared.into_iter().map(|(name, schema)| (name, Document::new(&schema))).collect();
    let mut resources = Vec::new();
    for core in kinds.into_iter().chain(auth::kinds::all()) {
        let fail = |reason: String| RegistryError { kind: core.kind.into(), reason };
        let name = core_schema_name(core.group, "v1", core.kind);
        let unnamed = || fail(format!("no schema named {name}"));
        let mut schema = core_schemas::whole(&documents, &name).ok_or_else(unnamed)?;
        markers::mark(core.kind, true, &mut schema);
        let mut resource = Resource {
            group: core.group.into(),
            version: "v1".into(),
            kind: core.kind.into(),
            list_kind: format!("{}List", core.kind),
            plural: core.plural.into(),
            singular: core.kind.to_lowercase(),
            short_names: core.short_names.iter().map(|name| (*name).to_owned()).collect(),
            categories: if core.group == crd::GROUP { vec!["api-extensions".into()] } else { Vec::new() },
            namespaced: core.namespaced,
            // There are no services. Clients list them all the same (`kubectl cluster-info`).
            keep: if core.kind == "Service" { Keep::View } else { auth::kinds::keep(core.group) },
            status: core.status,
            core: true,
            schema: Schema::compile(&schema).map_err(|error| fail(error.to_string()))?,
            openapi: shared.get(&name).cloned().ok_or_else(unnamed)?,
            columns: (core.columns)(),
            // Events are one in both of their groups.
            storage: match (core.group, core.plural) {
                ("", plural) | (_, plural @ "events") => format!("/{plural}").into(),
                (group, plural) => format!("{group}/{plural}").into(),
            },
            stores: core.conversion.is_none(),
            conversion: core.conversion,
            scale: None,
            selectable: Vec::new(),
            custom: None,
            prepare: core.prepare,
            complete: None,
            deprecation: None,
        };
        core_kinds::describe(&mut resource.columns, &schema);
        resources.push(resource);
    }
    Ok((resources, shared))
}

pub(super) fn custom_resources(kind: &Kind) -> Result<Vec<Resource>, RegistryError> {
    let CustomResourceDefinition { spec, .. } = &kind.crd;
    let fail = |reason: String| RegistryError { kind: spec.names.kind.clone(), reason };
    let mut resources = Vec::new();
    for version in spec.versions.iter().filter(|version| version.served) {
        let schema = version
            .schema
            .as_ref()
            .and_then(|schema| schema.open_api_v3_schema.as_ref())
            .ok_or_else(|| fail("has no schema".into()))?;
        let mut openapi = serde_json::to_value(schema).map_err(|error| fail(error.to_string()))?;
        let properties = openapi
            .as_object_mut()
            .map(|root| root.entry("properties").or_insert_with(|| Value::Object(Map::new())))
            .and_then(Value::as_object_mut)
            .ok_or_else(|| fail("its schema is no object".into()))?;
        properties.insert("apiVersion".into(), json!({"type": "string", "description": API_VERSION}));
        properties.insert("kind".into(), json!({"type": "string", "description": KIND}));
        let own_meta = properties.insert("metadata".into(), core_schemas::METADATA.clone());
        restrict_names(properties, own_meta.as_ref());
        markers::mark(&spec.names.kind, false, &mut openapi);
        let compiled = Schema::compile(&openapi).map_err(|error| fail(error.to_string()))?;
        openapi["properties"]["metadata"] = json!({
            "description": METADATA,
            "allOf": [{"$ref": format!("{SCHEMAS}{OBJECT_META}")}],
        });
        let names = &spec.names;
        resources.push(Resource {
            group: spec.group.clone(),
            version: version.name.clone(),
            kind: names.kind.clone(),
            list_kind: names.list_kind.clone().unwrap_or_else(|| format!("{}List", names.kind)),
            plural: names.plural.clone(),
            singular: names.singular.clone().unwrap_or_else(|| names.kind.to_lowercase()),
            short_names: names.short_names.clone().unwrap_or_default(),
            categories: names.categories.clone().unwrap_or_default(),
            namespaced: spec.scope == "Namespaced",
            keep: kind.keep,
            status: version.subresources.as_ref().is_some_and(|sub| sub.status.is_some()),
            scale: version.subresources.as_ref().and_then(|sub| sub.scale.as_ref()).map(crd::scale),
            selectable: version.selectable_fields.iter().flatten().map(|field| field.json_path.clone()).collect(),
            custom: None,
            stores: version.storage,
            core: false,
            schema: compiled,
            openapi: Document::new(&openapi),
            columns: columns(version.additional_printer_columns.as_deref().unwrap_or_default())
                .map_err(|error| fail(error.to_string()))?,
            storage: format!("{}/{}", spec.group, names.plural).into(),
            conversion: kind
                .older
                .filter(|older| older.version == version.name)
                .map(|older| Conversion::Kept { down: older.down, up: older.up }),
            prepare: None,
            complete: kind.complete,
            deprecation: (version.deprecated == Some(true)).then(|| deprecation(spec, version)),
        });
    }
    Ok(resources)
}

/// What clients of a deprecated version are warned of: which one to use instead, unless the definition says it.
fn deprecation(spec: &CustomResourceDefinitionSpec, version: &CustomResourceDefinitionVersion) -> String {
    if let Some(warning) = &version.deprecation_warning {
        return warning.clone();
    }
    let (group, kind) = (&spec.group, &spec.names.kind);
    let rank = |version: &CustomResourceDefinitionVersion| Version::parse(&version.name).priority();
    let better = spec.versions.iter().filter(|other| other.served && other.deprecated != Some(true));
    let better = better.filter(|other| rank(other) > rank(version)).max_by_key(|other| rank(other));
    let instead = better.map_or_else(String::new, |better| format!("; use {group}/{} {kind}", better.name));
    format!("{group}/{} {kind} is deprecated{instead}", version.name)
}

const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object.";
const KIND: &str = "Kind is a string value representing the REST resource this object represents.";
const METADATA: &str = "Standard object's metadata.";

/// A schema may restrict the names of objects (`properties.metadata.properties.name`), and nothing else of metadata.
fn restrict_names(properties: &mut Map<String, Value>, own_meta: Option<&Value>) {
    for field in ["name", "generateName"] {
        if let Some(Value::Object(rules)) = own_meta.and_then(|meta| meta["properties"].get(field))
            && let Some(Value::Object(target)) =
                properties.get_mut("metadata").and_then(|meta| meta.pointer_mut(&format!("/properties/{field}")))
        {
            target.extend(rules.clone());
        }
    }
}

fn columns(defined: &[CustomResourceColumnDefinition]) -> Result<Vec<Column>, JsonPathError> {
    let mut columns = vec![Column::name()];
    for column in defined {
        let path = Path::parse_plain(&column.json_path)?;
        columns.push(Column {
            name: column.name.clone(),
            kind: column.type_.clone(),
            format: column.format.clone().unwrap_or_default(),
            description: column.description.clone().unwrap_or_default(),
            priority: column.priority.unwrap_or(0),
            source: Source::Path(path),
        });
    }
    if defined.is_empty() {
        columns.push(Column::age());
    }
    Ok(columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_the_house_is_served() {
        let registry = Registry::new(&crate::api::kinds()).unwrap();
        let host = registry.find("metal3.io", "v1alpha1", "baremetalhosts").unwrap();
        assert_eq!((host.kind.as_str(), host.namespaced, host.status), ("BareMetalHost", true, true));
        assert_eq!(host.short_names, ["bmh", "bmhost"]);
        let names: Vec<&str> = host.columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(names, ["Name", "Status", "State", "Consumer", "BMC", "Online", "Error", "Age"]);
        assert!(registry.find("metal3.io", "v1", "baremetalhosts").is_none());
        assert!(registry.find_kind("v1", "Secret").is_some());
        // Events are served twice and stored once.
        let stored: Vec<&str> = registry.stored().map(|r| &*r.storage).filter(|name| *name == "/events").collect();
        assert_eq!(stored, ["/events"]);
        let groups: Vec<&str> = registry.groups().into_iter().map(|(group, _)| group).collect();
        for group in ["events.k8s.io", "coordination.k8s.io", "rbac.authorization.k8s.io", "metal3.io", "slipway.dev"] {
            assert!(groups.contains(&group), "{group}");
        }
    }

    #[test]
    fn no_name_that_kubectl_takes_means_two_kinds() {
        let registry = Registry::new(&crate::api::kinds()).unwrap();
        let mut meant: HashMap<&str, &str> = HashMap::new();
        for resource in registry.stored() {
            let names = resource.short_names.iter().chain([&resource.plural, &resource.singular]);
            for name in names.collect::<std::collections::BTreeSet<_>>() {
                let before = meant.insert(name, &resource.storage);
                assert_eq!(before, None, "{name} of {}", resource.storage);
            }
        }
        assert_eq!(meant["lease"], "coordination.k8s.io/leases");
        assert_eq!(meant["dl"], "slipway.dev/dhcpleases");
    }

    #[test]
    fn core_schemas_are_complete() {
        let registry = Registry::new(&[]).unwrap();
        assert!(registry.shared_schemas.contains_key(OBJECT_META));
        let secret = registry.find("", "v1", "secrets").unwrap();
        let mut value = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "nam": 1},
            "data": {"a": "YQ=="}, "dta": {}});
        assert_eq!(secret.schema.prune(&mut value), ["dta", "metadata.nam"]);
        assert!(secret.schema.validate(&value).is_empty());
    }
}
