//! Built-in resources: the core kinds, and this program's own.

use std::collections::BTreeMap;

use super::core_schemas::{self, OBJECT_META};
use super::from_definition::{RegistryError, own_resources};
use super::registry::ResourceRegistry;
use super::resource::{APIEXTENSIONS, Conversion, CoreKind, PackedJson, ServedResource, core_schema_name};
use super::{core_kinds, events};
use crate::api::{Kind, StoragePolicy};
use crate::apiserver::schema::Schema;
use crate::apiserver::writing::apply::markers;
use crate::apiserver::{auth, crd, webhooks};

/// The core kinds and these.
///
/// # Errors
/// A kind is defined wrongly.
pub fn registry(kinds: &[Kind]) -> Result<ResourceRegistry, RegistryError> {
    let (mut built_in, shared_schemas) = core_resources()?;
    for kind in kinds {
        built_in.extend(own_resources(kind)?);
    }
    Ok(ResourceRegistry::new(built_in, shared_schemas))
}

fn core_resources() -> Result<(Vec<ServedResource>, BTreeMap<String, PackedJson>), RegistryError> {
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
            conversion: Some(Conversion::Convert { from_stored: events::to_new, to_stored: events::to_core }),
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
    let shared: BTreeMap<String, PackedJson> =
        shared.into_iter().map(|(name, schema)| (name, PackedJson::new(&schema))).collect();
    let mut resources = Vec::new();
    for core in kinds.into_iter().chain(auth::kinds::all()).chain(webhooks::kinds::all()) {
        let fail = |reason: String| RegistryError { kind: core.kind.into(), reason };
        let name = core_schema_name(core.group, "v1", core.kind);
        let unnamed = || fail(format!("no schema named {name}"));
        let mut schema = core_schemas::whole(&documents, &name).ok_or_else(unnamed)?;
        markers::mark(core.kind, true, &mut schema);
        let mut resource = ServedResource {
            group: core.group.into(),
            version: "v1".into(),
            kind: core.kind.into(),
            list_kind: format!("{}List", core.kind),
            plural: core.plural.into(),
            singular: core.kind.to_lowercase(),
            short_names: core.short_names.iter().map(|name| (*name).to_owned()).collect(),
            categories: if [APIEXTENSIONS, webhooks::kinds::GROUP].contains(&core.group) {
                vec!["api-extensions".into()]
            } else {
                Vec::new()
            },
            namespaced: core.namespaced,
            // There are no services. Clients list them all the same (`kubectl cluster-info`).
            policy: if core.kind == "Service" { StoragePolicy::View } else { auth::kinds::storage_policy(core.group) },
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
            sealing: None,
            deprecation: None,
        };
        core_kinds::describe(&mut resource.columns, &schema);
        resources.push(resource);
    }
    Ok((resources, shared))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_of_the_house_is_served() {
        let registry = registry(&crate::modules::kinds()).unwrap();
        let host = registry.find("metal3.io", "v1alpha1", "baremetalhosts").unwrap();
        assert_eq!((host.kind.as_str(), host.namespaced, host.status), ("BareMetalHost", true, true));
        assert_eq!(host.short_names, ["bmh", "bmhost"]);
        let names: Vec<&str> = host.columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(names, ["Name", "Status", "State", "Consumer", "BMC", "Address", "Online", "Error", "Age"]);
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
        let registry = registry(&crate::modules::kinds()).unwrap();
        let mut meant: HashMap<&str, &str> = HashMap::new();
        // Metal3 and Cluster API publish both; kubectl takes the first by name, and `ipaddresses.ipam.metal3.io` says which. So do
        // Cluster API and the Machine API before it.
        let twice = ["cl", "cluster", "clusters", "ipaddress", "ipaddresses", "ma", "machine", "machines"];
        for resource in registry.stored() {
            let names = resource.short_names.iter().chain([&resource.plural, &resource.singular]);
            let names = names.filter(|name| !twice.contains(&name.as_str()));
            for name in names.collect::<std::collections::BTreeSet<_>>() {
                let before = meant.insert(name, &resource.storage);
                assert_eq!(before, None, "{name} of {}", resource.storage);
            }
        }
        assert_eq!(meant["lease"], "coordination.k8s.io/leases");
        assert_eq!(meant["dl"], "slipway.dev/dhcpleases");
        let groups = registry.groups();
        let place = |group: &str| groups.iter().position(|(name, _)| *name == group);
        assert!(place("cluster.x-k8s.io") < place("cluster.k8s.io"), "kubectl takes the first one's machines");
    }

    #[test]
    fn core_schemas_are_complete() {
        let registry = registry(&[]).unwrap();
        assert!(registry.shared_schemas.contains_key(OBJECT_META));
        let secret = registry.find("", "v1", "secrets").unwrap();
        let mut value = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "nam": 1},
            "data": {"a": "YQ=="}, "dta": {}});
        assert_eq!(secret.schema.prune(&mut value), ["dta", "metadata.nam"]);
        assert!(secret.schema.validate(&value).is_empty());
    }
}
