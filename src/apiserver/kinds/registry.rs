//! The resource registry.
//!
//! What this server serves at one time: one table of resources. Everything else (discovery, OpenAPI, tables, validation) is
//! read off this table.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kube::core::Version;

use super::resource::{PackedJson, ServedResource};
use crate::api::StoragePolicy;

/// Every resource that is served at one time. It never changes: kinds that come or go at run time make a new one.
#[derive(Debug)]
pub struct ResourceRegistry {
    resources: Vec<Arc<ServedResource>>,
    by_path: HashMap<(String, String, String), Arc<ServedResource>>,
    /// By group and version as objects name them, and kind.
    by_kind: HashMap<(String, String), Arc<ServedResource>>,
    /// What is built in, as the program brings it.
    built_in: Arc<[Arc<ServedResource>]>,
    /// Schemas that several kinds use, for OpenAPI documents.
    pub(in crate::apiserver) shared_schemas: Arc<BTreeMap<String, PackedJson>>,
}

impl ResourceRegistry {
    /// These resources, which are built in, and the schemas that several of them use.
    pub(in crate::apiserver) fn new(
        resources: Vec<ServedResource>,
        shared_schemas: BTreeMap<String, PackedJson>,
    ) -> Self {
        let built_in: Arc<[Arc<ServedResource>]> = resources.into_iter().map(Arc::new).collect();
        Self::of(built_in.to_vec(), built_in, Arc::new(shared_schemas))
    }

    fn of(
        resources: Vec<Arc<ServedResource>>,
        built_in: Arc<[Arc<ServedResource>]>,
        shared_schemas: Arc<BTreeMap<String, PackedJson>>,
    ) -> Self {
        let path = |r: &ServedResource| (r.group.clone(), r.version.clone(), r.plural.clone());
        let by_path = resources.iter().map(|r| (path(r), Arc::clone(r))).collect();
        let mut by_kind: HashMap<_, Arc<ServedResource>> = HashMap::new();
        for resource in &resources {
            let kind = (resource.api_version(), resource.kind.clone());
            by_kind.entry(kind).or_insert_with(|| Arc::clone(resource));
        }
        Self { resources, by_path, by_kind, built_in, shared_schemas }
    }

    /// What is built in, some of it in an extended form, and these kinds that were defined at run time.
    #[must_use]
    pub(in crate::apiserver) fn with_custom(
        &self,
        extended: &[Arc<ServedResource>],
        custom: impl IntoIterator<Item = Arc<ServedResource>>,
    ) -> Self {
        let built_in = self.built_in.iter().map(|one| {
            let same = |other: &&Arc<ServedResource>| {
                (&other.group, &other.version, &other.plural) == (&one.group, &one.version, &one.plural)
            };
            Arc::clone(extended.iter().find(same).unwrap_or(one))
        });
        let own = custom.into_iter().filter(|one| !self.has_built_in(&one.group, &one.plural));
        Self::of(built_in.chain(own).collect(), Arc::clone(&self.built_in), Arc::clone(&self.shared_schemas))
    }

    /// Whether a built-in kind is served at this place in any version, or keeps its objects where a definition of this
    /// plural and group would keep its own.
    pub(in crate::apiserver) fn has_built_in(&self, group: &str, plural: &str) -> bool {
        let storage = format!("{group}/{plural}");
        let mut built_in = self.resources.iter().filter(|resource| resource.custom.is_none());
        built_in.any(|one| (one.group == group && one.plural == plural) || *one.storage == *storage)
    }

    /// The resource at `/apis/<group>/<version>/…/<plural>`.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<ServedResource>> {
        self.by_path.get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    /// The resource of a kind.
    pub fn find_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<ServedResource>> {
        self.by_kind.get(&(api_version.to_owned(), kind.to_owned()))
    }

    /// Every served version.
    pub fn all(&self) -> &[Arc<ServedResource>] {
        &self.resources
    }

    /// One entry for each stored resource, in the version it is stored in.
    pub fn stored(&self) -> impl Iterator<Item = &Arc<ServedResource>> {
        let mut seen = std::collections::HashSet::new();
        let kept = |r: &&Arc<ServedResource>| r.stores && r.policy != StoragePolicy::Review;
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
    pub fn of_version<'r>(&'r self, group: &'r str, version: &'r str) -> impl Iterator<Item = &'r Arc<ServedResource>> {
        self.resources.iter().filter(move |r| r.group == group && r.version == version)
    }
}
