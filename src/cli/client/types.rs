//! Resource types of the server, and what a person calls them.

use kube::core::discovery::v2::{APIGroupDiscovery, APIGroupDiscoveryList, APIResourceDiscovery};

use super::suggest;

/// What people call a kind, beside the names that it has: the plural with its group.
const ALIASES: [(&str, &str, &str); 2] =
    [("host", "baremetalhosts", "metal3.io"), ("hosts", "baremetalhosts", "metal3.io")];

/// Kinds of Metal3 that nothing here would act on, and what to do instead.
const NOT_DONE: [(&str, &str); 8] = [
    ("HostFirmwareSettings", FIRMWARE),
    ("FirmwareSchema", FIRMWARE),
    ("HostFirmwareComponents", FIRMWARE),
    ("HostUpdatePolicy", FIRMWARE),
    ("BMCEventSubscription", "Slipway subscribes to no events of BMCs: have the BMC send them to your monitoring"),
    ("PreprovisioningImage", "Slipway has one ramdisk, which `slipway ramdisk build` makes"),
    ("HostDeployPolicy", "leave it out"),
    ("HostClaim", "name the host, or have a Metal3Machine or a Provisioning choose one"),
];
const FIRMWARE: &str =
    "Slipway changes no settings and no version of firmware: do that by the BMC or the maker's tools";

/// One version of a type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServedType {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub plural: String,
    pub singular: String,
    pub namespaced: bool,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub verbs: Vec<String>,
    pub subresources: Vec<String>,
    /// Whether it is the group's first version with this type.
    pub preferred: bool,
}

impl ServedType {
    /// `v1`, `metal3.io/v1alpha1`
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `secrets`, `baremetalhosts.metal3.io`
    pub(super) fn qualified(&self) -> String {
        with_group(&self.plural, &self.group)
    }

    /// How kubectl names one object's type: `secret`, `baremetalhost.metal3.io`.
    pub(super) fn one(&self) -> String {
        with_group(&self.kind.to_lowercase(), &self.group)
    }

    /// What a person calls one of them.
    pub(super) fn noun(&self) -> String {
        if self.group == "metal3.io" && self.plural == "baremetalhosts" {
            "host".into()
        } else {
            self.kind.to_lowercase()
        }
    }

    /// Words for it that are this program's own.
    pub(super) fn words(&self) -> impl Iterator<Item = &'static str> {
        let is_this = |plural: &str, group: &str| self.plural == plural && self.group == group;
        ALIASES.iter().filter(move |(_, plural, group)| is_this(plural, group)).map(|(word, _, _)| *word)
    }

    /// The URL's path. Without a namespace: of all namespaces.
    pub(super) fn path(&self, namespace: Option<&str>, name: Option<&str>) -> String {
        let root = if self.group.is_empty() { "/api" } else { "/apis" };
        let mut path = format!("{root}/{}", self.api_version());
        if let Some(namespace) = namespace.filter(|_| self.namespaced) {
            path += &format!("/namespaces/{}", escape(namespace));
        }
        path += &format!("/{}", self.plural);
        if let Some(name) = name {
            path += &format!("/{}", escape(name));
        }
        path
    }

    /// Whether a part of it is written on its own: its status, its scale.
    pub(super) fn has_subresource(&self, name: &str) -> bool {
        self.subresources.iter().any(|known| known == name)
    }

    fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }
}

/// Where BareMetalHosts are.
pub(super) fn hosts() -> ServedType {
    ServedType {
        group: "metal3.io".into(),
        version: "v1alpha1".into(),
        kind: "BareMetalHost".into(),
        plural: "baremetalhosts".into(),
        singular: "baremetalhost".into(),
        namespaced: true,
        preferred: true,
        ..ServedType::default()
    }
}

/// Where Secrets are.
pub(super) fn secrets() -> ServedType {
    ServedType {
        version: "v1".into(),
        kind: "Secret".into(),
        plural: "secrets".into(),
        namespaced: true,
        ..ServedType::default()
    }
}

fn with_group(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

/// A path segment: only what names are made of stays as it is.
fn escape(segment: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~:".contains(byte);
    segment
        .as_bytes()
        .iter()
        .map(|byte| if plain(byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// The word names no type.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the server has no type {word:?}{}", .meant.as_deref().map_or("; `slipway types` lists those that it has".into(), |meant| format!("; did you mean {meant}?")))]
pub(super) struct Unknown {
    word: String,
    meant: Option<String>,
}

/// Every type of a server, the core group first.
#[derive(Clone, Debug, Default)]
pub(super) struct ServedTypes(Vec<ServedType>);

impl ServedTypes {
    /// From the answers of `/api` and `/apis`.
    pub(super) fn new(core: APIGroupDiscoveryList, groups: APIGroupDiscoveryList) -> Self {
        Self(core.items.into_iter().chain(groups.items).flat_map(of_group).collect())
    }

    /// The types that a word stands for: one, or all of a category.
    pub(super) fn find(&self, word: &str) -> Result<Vec<&ServedType>, Unknown> {
        let lower = word.to_lowercase();
        let (name, rest) = lower.split_once('.').unwrap_or((&lower, ""));
        let fits = |one: &&ServedType| {
            if rest.is_empty() {
                return one.preferred;
            }
            let versioned = rest.split_once('.').unwrap_or((rest, ""));
            (one.group == rest && one.preferred) || (one.version == versioned.0 && one.group == versioned.1)
        };
        // The order in which kubectl looks.
        let tries: [fn(&ServedType, &str) -> bool; 4] = [
            |one, name| one.plural == name,
            |one, name| one.short_names.iter().any(|short| short == name),
            |one, name| one.singular == name,
            |one, name| one.kind.to_lowercase() == name,
        ];
        for is in tries {
            if let Some(found) = self.0.iter().filter(fits).find(|one| is(one, name)) {
                return Ok(vec![found]);
            }
        }
        let of_category = |one: &&ServedType| one.preferred && one.categories.contains(&lower) && one.has_verb("list");
        let all: Vec<&ServedType> = self.0.iter().filter(of_category).collect();
        if !all.is_empty() {
            return Ok(all);
        }
        let alias = ALIASES.iter().find(|(alias, _, _)| *alias == lower);
        let meant = alias.and_then(|(_, plural, group)| {
            self.0.iter().find(|one| one.preferred && one.plural == *plural && one.group == *group)
        });
        meant.map(|one| vec![one]).ok_or_else(|| Unknown { word: word.to_owned(), meant: self.meant(name) })
    }

    fn meant(&self, name: &str) -> Option<String> {
        let names = self.0.iter().flat_map(|one| [one.plural.as_str(), one.singular.as_str()]);
        let words = names.chain(ALIASES.iter().map(|(alias, _, _)| *alias)).filter(|word| !word.is_empty());
        suggest::nearest(name, words).map(str::to_owned)
    }

    /// Every type that can be listed, in its first version.
    pub(super) fn listed(&self) -> impl Iterator<Item = &ServedType> {
        self.0.iter().filter(|one| one.preferred && one.has_verb("list"))
    }

    /// The type of an object.
    pub(super) fn of_object(&self, api_version: &str, kind: &str) -> Option<&ServedType> {
        self.0.iter().find(|one| one.kind == kind && one.api_version() == api_version)
    }

    /// What to say of an object whose type the server does not have.
    pub(super) fn no_such_kind(&self, api_version: &str, kind: &str) -> String {
        let message = format!("the server has no kind {kind:?} in {api_version:?}");
        if let Some((_, reason)) =
            NOT_DONE.iter().find(|(known, _)| *known == kind && api_version.starts_with("metal3.io/"))
        {
            return format!("{message}: {reason} (docs/limits.md)");
        }
        let elsewhere = self.0.iter().find(|one| one.kind.eq_ignore_ascii_case(kind));
        if let Some(other) = elsewhere {
            return format!("{message}; did you mean kind {} in {}?", other.kind, other.api_version());
        }
        match suggest::nearest(kind, self.0.iter().map(|one| one.kind.as_str())) {
            Some(meant) => format!("{message}; did you mean {meant}?"),
            None => format!("{message}: its CustomResourceDefinition must be applied first"),
        }
    }
}

fn of_group(group: APIGroupDiscovery) -> Vec<ServedType> {
    let name = group.metadata.and_then(|metadata| metadata.name).unwrap_or_default();
    let mut types: Vec<ServedType> = Vec::new();
    for version in group.versions {
        let label = version.version.unwrap_or_default();
        for resource in version.resources {
            let mut one = of_resource(&name, &label, resource);
            one.preferred = !types.iter().any(|known| known.plural == one.plural);
            types.push(one);
        }
    }
    types
}

fn of_resource(group: &str, version: &str, resource: APIResourceDiscovery) -> ServedType {
    ServedType {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: resource.response_kind.and_then(|kind| kind.kind).unwrap_or_default(),
        plural: resource.resource.unwrap_or_default(),
        singular: resource.singular_resource.unwrap_or_default(),
        namespaced: resource.scope.as_deref() == Some("Namespaced"),
        short_names: resource.short_names,
        categories: resource.categories,
        verbs: resource.verbs,
        subresources: resource.subresources.into_iter().filter_map(|one| one.subresource).collect(),
        preferred: false,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    pub(in super::super) fn types() -> ServedTypes {
        let resource = |plural: &str, singular: &str, kind: &str, more: serde_json::Value| {
            let mut resource = json!({"resource": plural, "singularResource": singular, "scope": "Namespaced",
                "responseKind": {"kind": kind}, "verbs": ["list", "get"]});
            resource.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            resource
        };
        let core = json!({"items": [{"metadata": {}, "versions": [{"version": "v1", "resources": [
            resource("secrets", "secret", "Secret", json!({})),
            resource("namespaces", "namespace", "Namespace", json!({"scope": "Cluster", "shortNames": ["ns"]})),
        ]}]}]});
        let groups = json!({"items": [
            {"metadata": {"name": "metal3.io"}, "versions": [{"version": "v1alpha1", "resources": [
                resource("baremetalhosts", "baremetalhost", "BareMetalHost",
                    json!({"shortNames": ["bmh", "bmhost"], "categories": ["metal3"]})),
                resource("hardwaredata", "hardwaredata", "HardwareData", json!({"categories": ["metal3"]})),
            ]}]},
            {"metadata": {"name": "cluster.x-k8s.io"}, "versions": [
                {"version": "v1beta2", "resources": [resource("clusters", "cluster", "Cluster", json!({}))]},
                {"version": "v1beta1", "resources": [resource("clusters", "cluster", "Cluster", json!({}))]},
            ]},
        ]});
        ServedTypes::new(serde_json::from_value(core).unwrap(), serde_json::from_value(groups).unwrap())
    }

    #[test]
    fn every_name_of_a_type_finds_it() {
        let types = types();
        for (word, wanted) in [
            ("secrets", "/api/v1/secrets"),
            ("Secret", "/api/v1/secrets"),
            ("ns", "/api/v1/namespaces"),
            ("bmh", "/apis/metal3.io/v1alpha1/baremetalhosts"),
            ("BareMetalHost", "/apis/metal3.io/v1alpha1/baremetalhosts"),
            ("bmh.metal3.io", "/apis/metal3.io/v1alpha1/baremetalhosts"),
            ("host", "/apis/metal3.io/v1alpha1/baremetalhosts"),
            ("hosts", "/apis/metal3.io/v1alpha1/baremetalhosts"),
            ("clusters", "/apis/cluster.x-k8s.io/v1beta2/clusters"),
            ("clusters.cluster.x-k8s.io", "/apis/cluster.x-k8s.io/v1beta2/clusters"),
            ("clusters.v1beta1.cluster.x-k8s.io", "/apis/cluster.x-k8s.io/v1beta1/clusters"),
        ] {
            let found = types.find(word).unwrap();
            assert_eq!(found.iter().map(|one| one.path(None, None)).collect::<Vec<_>>(), [wanted], "{word}");
        }
        let category: Vec<String> = types.find("metal3").unwrap().iter().map(|one| one.qualified()).collect();
        assert_eq!(category, ["baremetalhosts.metal3.io", "hardwaredata.metal3.io"]);
    }

    #[test]
    fn unknown_words_get_a_suggestion() {
        let types = types();
        for (word, wanted) in [
            ("baremetalhots", "the server has no type \"baremetalhots\"; did you mean baremetalhosts?"),
            ("hsts", "the server has no type \"hsts\"; did you mean hosts?"),
            ("pods", "the server has no type \"pods\"; `slipway types` lists those that it has"),
            ("bmh.example.org", "the server has no type \"bmh.example.org\"; `slipway types` lists those that it has"),
        ] {
            assert_eq!(types.find(word).unwrap_err().to_string(), wanted, "{word}");
        }
        let kind = |version, kind| types.no_such_kind(version, kind);
        assert!(
            kind("metal3.io/v1", "BareMetalHost").ends_with("did you mean kind BareMetalHost in metal3.io/v1alpha1?")
        );
        assert!(kind("v1", "Secrt").ends_with("did you mean Secret?"));
        assert!(kind("metal3.io/v1alpha1", "HostFirmwareSettings").contains("changes no settings"));
        assert!(kind("example.org/v1", "Widget").contains("must be applied first"));
    }

    #[test]
    fn paths_hold_only_what_names_may_be() {
        let types = types();
        let host = types.find("bmh").unwrap()[0];
        assert_eq!(
            host.path(Some("a b"), Some("x/../y")),
            "/apis/metal3.io/v1alpha1/namespaces/a%20b/baremetalhosts/x%2F..%2Fy"
        );
        assert_eq!(types.find("ns").unwrap()[0].path(Some("rack"), Some("x")), "/api/v1/namespaces/x");
    }
}
