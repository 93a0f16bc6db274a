//! Who owns what after a write: the merge rules of KEP-555. Pure; the time is an argument.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::compare::{FieldComparison, compare};
use super::element::{Element, same};
use super::manager::{ManagedFieldsEntry, Manager, ManagerOperation, cap};
use super::merge::{merge, without};
use super::set::Set;
use super::typed::{fault, reconciled, to_set, with_named};
use crate::apiserver::kinds::resource::ServedResource;
use crate::apiserver::schema::{MergeType, Schema};

/// Manager of what was there before the first apply, on objects whose owners were never told.
const BEFORE: &str = "before-first-apply";

/// An object in another version, with that version's resource.
pub type Converted = (Value, Arc<ServedResource>);

/// An object and how it looks in the other versions that managers wrote it in.
pub struct VersionedObject<'t> {
    /// Version of the request.
    pub api_version: &'t str,
    /// Schema of that version.
    pub schema: &'t Schema,
    /// Gives the object in another version with that version's resource; `None` when it is no longer served.
    pub convert: &'t (dyn Fn(&Value, &str) -> Option<Converted> + Sync),
    /// Paths that this request cannot change.
    pub reset: &'t Set,
}

/// A field that another manager owns with another value.
#[derive(Clone, Debug, PartialEq)]
pub struct ApplyConflict {
    /// Who owns it.
    pub manager: Manager,
    /// The field; empty for one of too many.
    pub path: Vec<Element>,
}

impl ApplyConflict {
    /// The path as messages show it.
    pub fn field(&self) -> String {
        self.path.iter().map(ToString::to_string).collect()
    }
}

/// Conflicts that are listed at most, and bytes of their paths.
const CONFLICTS_MAX: usize = 10_000;
const PATHS_MAX: usize = 8 << 20;

#[derive(Default)]
struct Conflicts {
    found: Vec<ApplyConflict>,
    bytes: usize,
}

impl Conflicts {
    /// Adds one, when there is room: one is enough to stop who applies.
    fn add(&mut self, manager: &Manager, path: &[&Element]) {
        if self.found.len() >= CONFLICTS_MAX {
            return;
        }
        self.bytes += path.iter().map(|element| size_of::<Element>() + element.length()).sum::<usize>();
        // One without a path stands for those that there is no room for: nobody is allowed what it is about.
        let stands_for_more = self.bytes > PATHS_MAX || self.found.len() + 1 == CONFLICTS_MAX;
        let path: &[&Element] = if stands_for_more { &[] } else { path };
        let path = path.iter().map(|element| (*element).clone()).collect();
        self.found.push(ApplyConflict { manager: manager.clone(), path });
    }
}

/// Why a configuration was not applied.
#[derive(Debug, PartialEq)]
pub enum ApplyFault {
    /// The configuration, or the object that is there, is none of its type.
    Type {
        /// Whether it is the configuration.
        applied: bool,
        /// Why, with the path.
        reason: String,
    },
    /// Others own fields of it.
    Conflicts(Vec<ApplyConflict>),
}

/// Forces, or is stopped by the others.
type ApplyPolicy = Result<FieldComparison, Vec<ApplyConflict>>;

impl VersionedObject<'_> {
    fn kind(&self) -> MergeType<'_> {
        MergeType::root(self.schema)
    }

    /// Calls with a value in a version and the type there; `None` when that version is not served.
    fn at<R>(&self, version: &str, values: &[&Value], call: impl FnOnce(MergeType<'_>, &[&Value]) -> R) -> Option<R> {
        if version == self.api_version {
            return Some(call(self.kind(), values));
        }
        let converted: Vec<(Value, Arc<ServedResource>)> =
            values.iter().map(|value| (self.convert)(value, version)).collect::<Option<_>>()?;
        let resource = Arc::clone(&converted.first()?.1);
        let values: Vec<&Value> = converted.iter().map(|(value, _)| value).collect();
        Some(call(MergeType::root(&resource.schema), &values))
    }

    /// A value of another version in that of the request.
    fn back(&self, value: Value, version: &str) -> Option<Value> {
        if version == self.api_version {
            return Some(value);
        }
        (self.convert)(&value, self.api_version).map(|(value, _)| value)
    }

    /// Brings what managers own up to the schema of today, and forgets versions that are no longer served.
    fn reconcile(&self, live: &Value, managers: &mut Vec<ManagedFieldsEntry>) {
        // The object is brought into each version once, however many managers wrote in it.
        let mut served: HashMap<String, Option<Arc<ServedResource>>> = HashMap::new();
        managers.retain_mut(|entry| {
            let version = &entry.manager.api_version;
            let other;
            let schema = if version == self.api_version {
                self.schema
            } else {
                if !served.contains_key(version) {
                    let resource = (self.convert)(live, version).map(|(_, resource)| resource);
                    served.insert(version.clone(), resource);
                }
                match served.get(version) {
                    Some(Some(resource)) => {
                        other = Arc::clone(resource);
                        &other.schema
                    }
                    _ => return false,
                }
            };
            if let Some(fields) = reconciled(MergeType::root(schema), &entry.fields) {
                entry.fields = fields;
            }
            true
        });
    }

    /// Takes from the managers what a change from one object to another takes from them; `own` is the one who makes it.
    fn judge(
        &self,
        old: &Value,
        new: &Value,
        managers: &mut Vec<ManagedFieldsEntry>,
        own: Option<&Manager>,
        force: bool,
    ) -> ApplyPolicy {
        // With what each sets, which all managers of the version are asked about.
        let with_set = |compared: FieldComparison| {
            let set = compared.set();
            (compared, set)
        };
        let first = with_set(compare(self.kind(), old, new).without(self.reset));
        let mut versions: Vec<(String, (FieldComparison, Set))> = vec![(self.api_version.to_owned(), first)];
        let mut conflicts = Conflicts::default();
        let mut changed: Vec<ManagedFieldsEntry> = Vec::with_capacity(managers.len());
        for mut entry in std::mem::take(managers) {
            if own.is_some_and(|own| own.is(&entry.manager)) {
                changed.push(entry);
                continue;
            }
            let version = &entry.manager.api_version;
            let at = match versions.iter().position(|(known, _)| known == version) {
                Some(at) => at,
                None => {
                    let compared = self.at(version, &[old, new], |kind, values| match values {
                        [old, new] => compare(kind, old, new).without(self.reset),
                        _ => FieldComparison::default(),
                    });
                    // A version that is gone takes its managers with it.
                    let Some(compared) = compared else { continue };
                    versions.push((version.clone(), with_set(compared)));
                    versions.len() - 1
                }
            };
            let Some((_, (compared, set))) = versions.get(at) else { continue };
            let taken = entry.fields.intersection(set);
            if !force {
                taken.each(|path| conflicts.add(&entry.manager, path));
            }
            if !taken.is_empty() || entry.fields.meets(&compared.removed) {
                entry.fields = entry.fields.difference(&taken).difference(&compared.removed);
            }
            changed.push(entry);
        }
        if !conflicts.found.is_empty() {
            return Err(conflicts.found);
        }
        changed.retain(|entry| !entry.fields.is_empty());
        *managers = changed;
        Ok(versions.swap_remove(0).1.0)
    }
}

/// Fields of every object that nobody owns.
fn unowned() -> &'static Set {
    static SET: std::sync::LazyLock<Set> = std::sync::LazyLock::new(|| {
        Set::of_fields(&[
            &["apiVersion"],
            &["kind"],
            &["metadata"],
            &["metadata", "name"],
            &["metadata", "namespace"],
            &["metadata", "creationTimestamp"],
            &["metadata", "selfLink"],
            &["metadata", "uid"],
            &["metadata", "clusterName"],
            &["metadata", "generation"],
            &["metadata", "managedFields"],
            &["metadata", "resourceVersion"],
        ])
    });
    &SET
}

/// Managers after somebody wrote the new object over the old one.
pub fn updated(
    types: &VersionedObject<'_>,
    old: &Value,
    new: &Value,
    mut managers: Vec<ManagedFieldsEntry>,
    name: &str,
    subresource: &str,
    now: Timestamp,
) -> Vec<ManagedFieldsEntry> {
    types.reconcile(old, &mut managers);
    let Ok(compared) = types.judge(old, new, &mut managers, None, true) else { return managers };
    let fields = compared.set().difference(unowned());
    if !fields.is_empty() {
        let manager = Manager {
            name: name.to_owned(),
            operation: ManagerOperation::Update,
            api_version: types.api_version.to_owned(),
            subresource: subresource.to_owned(),
        };
        // Upstream keeps no time of who scales.
        let time = (subresource != "scale").then_some(now);
        match managers.iter_mut().find(|entry| entry.manager.is(&manager)) {
            Some(entry) => {
                if !entry.fields.covers(&fields) {
                    entry.fields = entry.fields.union(&fields);
                }
                entry.time = time;
            }
            None => managers.push(ManagedFieldsEntry { manager, time, fields }),
        }
    }
    cap(&mut managers);
    managers
}

/// What applying a configuration makes of an object.
#[derive(Debug)]
pub struct ApplyResult {
    /// The object; `None` when it stays as it is.
    pub object: Option<Value>,
    /// Its managers.
    pub managers: Vec<ManagedFieldsEntry>,
}

/// A configuration to be applied.
pub struct ApplyRequest<'r> {
    /// The object that is there.
    pub live: &'r Value,
    /// An object without anything.
    pub empty: &'r Value,
    /// The configuration.
    pub config: &'r Value,
    /// Managers of the object that is there.
    pub managers: &'r [ManagedFieldsEntry],
    /// Who applies.
    pub manager: &'r Manager,
    /// Whether fields are taken from others.
    pub force: bool,
}

/// Applies a configuration to the object that is there.
pub fn applied(
    types: &VersionedObject<'_>,
    request: &ApplyRequest<'_>,
    now: Timestamp,
) -> Result<ApplyResult, ApplyFault> {
    let ApplyRequest { live, empty, config, managers, manager, force } = *request;
    let refused = |applied| move |reason| ApplyFault::Type { applied, reason };
    fault(types.kind(), config, false).map(refused(true)).map_or(Ok(()), Err)?;
    fault(types.kind(), live, true).map(refused(false)).map_or(Ok(()), Err)?;
    let mut managers = if managers.is_empty() {
        updated(types, empty, live, Vec::new(), BEFORE, &manager.subresource, now)
    } else {
        managers.to_vec()
    };
    types.reconcile(live, &mut managers);
    let merged = merge(types.kind(), live, config);
    let set = to_set(types.kind(), config).without(types.reset);
    let (last, time) = match managers.iter().position(|entry| entry.manager.is(manager)) {
        Some(at) => {
            let entry = managers.swap_remove(at);
            (Some((entry.manager.api_version, entry.fields)), entry.time)
        }
        None => (None, None),
    };
    managers.push(ManagedFieldsEntry { manager: manager.clone(), time, fields: set });
    let new = match &last {
        Some((version, fields)) if !fields.is_empty() => pruned(types, merged, &managers, version, fields),
        _ => merged,
    };
    types.judge(live, &new, &mut managers, Some(manager), force).map_err(ApplyFault::Conflicts)?;
    let object = (!same(live, &new)).then_some(new);
    if let Some(at) = managers.iter().position(|entry| entry.manager.is(manager))
        && let Some(entry) = managers.get_mut(at)
    {
        entry.fields = entry.fields.difference(unowned());
        if object.is_some() {
            entry.time = Some(now);
        }
        if entry.fields.is_empty() {
            managers.swap_remove(at);
        }
    }
    Ok(ApplyResult { object, managers })
}

/// The merged object without what the manager applied before and no longer does, unless others own it.
fn pruned(
    types: &VersionedObject<'_>,
    merged: Value,
    managers: &[ManagedFieldsEntry],
    version: &str,
    last: &Set,
) -> Value {
    // The version that it was applied in last is gone: nothing can be told.
    let Some(Some(pruned)) = types.at(version, &[&merged], |kind, values| {
        values.first().map(|merged| without(kind, merged, &with_named(kind, last)))
    }) else {
        return merged;
    };
    let Some(mut pruned) = types.back(pruned, version) else { return merged };
    // Of what went, the part that somebody owns comes back, version by version.
    let mut versions: Vec<&str> = vec![version];
    for entry in managers {
        if !versions.contains(&entry.manager.api_version.as_str()) {
            versions.push(&entry.manager.api_version);
        }
    }
    for version in versions {
        let owned = managers
            .iter()
            .filter(|entry| entry.manager.api_version == version)
            .fold(Set::default(), |all, entry| all.union(&entry.fields));
        let kept = types.at(version, &[&merged, &pruned], |kind, values| {
            let [merged, pruned] = values else { return None };
            let stays = with_named(kind, &to_set(kind, pruned)).union(&with_named(kind, &owned));
            let goes = with_named(kind, &to_set(kind, merged)).difference(&stays);
            Some(without(kind, merged, &goes))
        });
        if let Some(kept) = kept.flatten().and_then(|kept| types.back(kept, version)) {
            pruned = kept;
        }
    }
    // What this manager never owned was not its to take.
    let kept = types.at(version, &[&merged, &pruned], |kind, values| {
        let [merged, pruned] = values else { return None };
        let was = with_named(kind, &to_set(kind, merged));
        let gone = was.difference(&with_named(kind, &to_set(kind, pruned)));
        Some(without(kind, merged, &gone.intersection(&with_named(kind, last))))
    });
    kept.flatten().and_then(|kept| types.back(kept, version)).unwrap_or(pruned)
}

/// The fields of a configuration that it still has in the object with the value it was given.
pub fn unchanged_since(kind: MergeType<'_>, config: &Value, live: &Value) -> Set {
    let FieldComparison { removed, modified, added } = compare(kind, config, live);
    to_set(kind, config).difference(&modified).difference(&added).difference(&removed)
}
