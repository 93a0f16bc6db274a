//! Compiled definitions: as they were last seen, and the resources made of them.
//!
//! A definition is read, weighed and compiled again when it was written, and only then: a write of one costs the same
//! however many others there are. Of the others no more is kept than what decides about names.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::super::kinds::from_definition;
use super::super::kinds::resource::{Conversion, Custom, ServedResource};
use super::super::shares::blocking;
use super::super::webhooks::conversion::Converter;
use super::names::{self, BUILT_IN, is_built_in};
use super::{extension, weight};
use crate::api::{Complete, FieldSealing, Kind, ServedVersion, StoragePolicy};
use crate::store::{Object, StoreWriteError};

/// What is little more for a definition that is there, in bytes: a condition.
const LITTLE: usize = 4 << 10;

/// What a kind was compiled from.
type DefinitionSource = [u8; 32];

/// All definitions, by name.
pub(in crate::apiserver) struct CompiledDefinitions {
    known: HashMap<String, KnownDefinition>,
    /// Groups in which something changed since their names were settled.
    unsettled: HashSet<String>,
    /// What was served, and is served no longer in this form.
    retired: Vec<Arc<ServedResource>>,
    /// The built-in kinds, by the names of their definitions.
    built_in: HashMap<String, BuiltIn>,
    /// What they may take together, in bytes.
    pub(in crate::apiserver) limit: usize,
}

/// One definition.
struct KnownDefinition {
    revision: u64,
    /// What of it decides about names: see [`outline`].
    outline: Value,
    /// What of it matters for serving it.
    source: DefinitionSource,
    weight: usize,
    compiled: Option<DefinitionSource>,
    resources: Vec<Arc<ServedResource>>,
}

/// A built-in kind, without its definition.
struct BuiltIn {
    policy: StoragePolicy,
    also_served: Vec<ServedVersion>,
    complete: Option<Complete>,
    sealing: Option<&'static FieldSealing>,
    /// Its spec as the program brings it.
    spec: DefinitionSource,
    /// The revision of its definition that was looked at last.
    revision: u64,
    /// What its definition was extended to, and that compiled.
    extended: Option<(DefinitionSource, Vec<Arc<ServedResource>>)>,
}

impl Default for CompiledDefinitions {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            unsettled: HashSet::new(),
            retired: Vec::new(),
            built_in: HashMap::new(),
            limit: weight::ALL_MAX,
        }
    }
}

impl CompiledDefinitions {
    /// Whether a definition may become this. One that takes no more than before always may, and so may the mark that one
    /// is to go; one that takes little more, as for a status, a sixteenth beyond the bound.
    pub fn check_room(&self, name: &str, definition: &Value) -> Result<(), StoreWriteError> {
        if is_built_in(definition) {
            return Ok(());
        }
        let wanted = blocking::in_place_if(true, || weight::of(definition));
        let known = self.known.get(name);
        let before = known.map_or(0, |known| known.weight);
        let is_little = wanted <= before + LITTLE;
        let ends = is_little && is_ending(definition) && known.is_some_and(|known| !is_ending(&known.outline));
        let limit = if is_little { self.last_limit() } else { self.limit };
        if wanted <= before || ends || self.weight() - before + wanted <= limit {
            return Ok(());
        }
        let whose = "CustomResourceDefinitions together, with their schemas,".to_owned();
        Err(StoreWriteError::Crowded { whose, limit: self.limit >> 20 })
    }

    /// What they may take with what is given to those that are there, in bytes.
    fn last_limit(&self) -> usize {
        self.limit + self.limit / 16
    }

    /// What all of them take, in bytes.
    fn weight(&self) -> usize {
        self.known.values().map(|known| known.weight).sum()
    }

    /// Reads what was written since the last look.
    pub fn note(&mut self, objects: &[Arc<Object>]) {
        let mut before = std::mem::take(&mut self.known);
        for object in objects {
            let known = match before.remove(&object.name) {
                Some(known) if known.revision == object.revision => known,
                former => {
                    let known = blocking::in_place_if(true, || KnownDefinition::of(object, former));
                    self.unsettled.insert(group_of(&known.outline));
                    known
                }
            };
            self.known.insert(object.name.clone(), known);
        }
        for gone in before.into_values() {
            self.unsettled.insert(group_of(&gone.outline));
            self.retired.extend(gone.resources);
        }
    }

    /// What decides about names, of the groups where that may have changed.
    pub fn unsettled(&self) -> Vec<&Value> {
        let outlines = self.known.values().map(|known| &known.outline);
        let mut outlines: Vec<_> = outlines.filter(|outline| self.unsettled.contains(&group_of(outline))).collect();
        outlines.sort_unstable_by_key(|outline| outline["metadata"]["name"].as_str());
        outlines
    }

    /// Takes note that all names are settled.
    pub fn set_settled(&mut self) {
        self.unsettled.clear();
    }

    /// Brings the kinds in line with the definitions; whether any changed.
    pub fn compile(&mut self, objects: &[Arc<Object>]) -> bool {
        let mut changed = !self.retired.is_empty();
        for known in self.known.values_mut().filter(|known| known.compiled != known.wanted()) {
            changed = true;
            known.compiled = None;
            self.retired.append(&mut known.resources);
        }
        let limit = self.last_limit();
        let mut weight: usize =
            self.known.values().filter(|known| known.compiled.is_some()).map(|known| known.weight).sum();
        for object in objects {
            let Some(known) = self.known.get_mut(&object.name).filter(|known| known.compiled.is_none()) else {
                continue;
            };
            let Some(source) = known.wanted() else { continue };
            let mut definition = object.value();
            // More are taken from nobody; a database may be of a version that took them.
            if weight + known.weight > limit {
                if !is_ending(&definition) {
                    tracing::error!(
                        definition = object.name,
                        limit_mib = limit >> 20,
                        "cannot serve a kind: the definitions take all the memory that they may; delete some of them"
                    );
                    continue;
                }
                // To delete its objects takes no schema.
                open(&mut definition);
            } else {
                weight += known.weight;
            }
            known.compiled = Some(source);
            known.resources = blocking::in_place_if(true, || compile(&definition)).unwrap_or_else(|reason| {
                tracing::error!(
                    definition = object.name,
                    reason,
                    "cannot serve a kind: its definition does not compile"
                );
                Vec::new()
            });
            changed = true;
        }
        changed
    }

    /// Takes note of a built-in kind, whose spec the program brings so.
    pub fn set_built_in(&mut self, name: &str, kind: &Kind, spec: &Value) {
        let one = BuiltIn {
            policy: kind.policy,
            also_served: kind.also_served.clone(),
            complete: kind.complete,
            sealing: kind.sealing,
            spec: digest([spec]),
            revision: 0,
            extended: None,
        };
        self.built_in.insert(name.to_owned(), one);
    }

    /// Brings the built-in kinds in line with their definitions, which may have more fields; whether any changed.
    pub fn extend(&mut self, objects: &[Arc<Object>]) -> bool {
        let mut changed = false;
        for object in objects {
            let Some(one) = self.built_in.get_mut(&object.name).filter(|one| one.revision != object.revision) else {
                continue;
            };
            one.revision = object.revision;
            changed |= blocking::in_place_if(true, || one.follow(&object.name, &object.value()));
        }
        changed
    }

    /// The built-in kinds that have more fields.
    pub fn extended(&self) -> Vec<Arc<ServedResource>> {
        let extended = self.built_in.values().filter_map(|one| one.extended.as_ref());
        extended.flat_map(|(_, resources)| resources.iter().cloned()).collect()
    }

    /// All kinds, in order of their definitions' names.
    pub fn resources(&self) -> Vec<Arc<ServedResource>> {
        let mut known: Vec<(&String, &KnownDefinition)> = self.known.iter().collect();
        known.sort_unstable_by_key(|(name, _)| *name);
        known.into_iter().flat_map(|(_, known)| known.resources.iter().cloned()).collect()
    }

    /// Ends the watches of what is no longer served in this form. To be called once the new form is served.
    pub fn retire(&mut self) {
        for custom in
            self.retired.drain(..).filter_map(|resource| resource.custom.as_ref().map(|one| one.replaced.clone()))
        {
            custom.cancel();
        }
    }
}

impl BuiltIn {
    fn follow(&mut self, name: &str, definition: &Value) -> bool {
        let wanted = Some(digest([&definition["spec"]])).filter(|spec| is_built_in(definition) && *spec != self.spec);
        if wanted.as_ref() == self.extended.as_ref().map(|(spec, _)| spec) {
            return false;
        }
        self.extended = wanted.and_then(|spec| match self.compile(name, definition) {
            Ok(resources) => Some((spec, resources)),
            Err(reason) => {
                tracing::error!(
                    definition = name,
                    reason,
                    "cannot add fields to a built-in kind: it is served without"
                );
                None
            }
        });
        true
    }

    /// What was restored was never admitted: no more is taken of it than what may be added.
    fn compile(&self, name: &str, definition: &Value) -> Result<Vec<Arc<ServedResource>>, String> {
        let spec = extension::built_in_spec(name).ok_or("the program brings no such kind")?;
        let source = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {}, "spec": extension::extended(&spec, &definition["spec"])});
        let crd: CustomResourceDefinition = serde_json::from_value(source).map_err(|error| error.to_string())?;
        let Self { policy, complete, sealing, .. } = *self;
        let kind = Kind { crd, policy, also_served: self.also_served.clone(), complete, sealing };
        let resources = from_definition::own_resources(&kind).map_err(|error| error.to_string())?;
        Ok(resources.into_iter().map(Arc::new).collect())
    }
}

impl KnownDefinition {
    fn of(object: &Object, former: Option<Self>) -> Self {
        let definition = object.value();
        let (compiled, resources) = former.map(|former| (former.compiled, former.resources)).unwrap_or_default();
        Self {
            revision: object.revision,
            outline: outline(&definition),
            source: source_of(&definition),
            weight: if is_built_in(&definition) { 0 } else { weight::of(&definition) },
            compiled,
            resources,
        }
    }

    /// What it is to be compiled from; nothing when it is not to be.
    fn wanted(&self) -> Option<DefinitionSource> {
        (!is_built_in(&self.outline) && names::is_established(&self.outline)).then_some(self.source)
    }
}

fn group_of(outline: &Value) -> String {
    outline["spec"]["group"].as_str().unwrap_or_default().to_owned()
}

/// The parts of a definition that decide about names.
fn outline(definition: &Value) -> Value {
    let metadata = &definition["metadata"];
    json!({
        "metadata": {
            "name": metadata["name"],
            "creationTimestamp": metadata["creationTimestamp"],
            "deletionTimestamp": metadata["deletionTimestamp"],
            "annotations": {BUILT_IN: metadata["annotations"][BUILT_IN]},
        },
        "spec": {"group": definition["spec"]["group"], "names": definition["spec"]["names"]},
        "status": definition["status"],
    })
}

/// A digest of what of a definition matters for serving it.
fn source_of(definition: &Value) -> DefinitionSource {
    let status = &definition["status"];
    let ending = is_ending(definition).into();
    digest([&definition["spec"], &status["acceptedNames"], &status["storedVersions"], &ending])
}

fn digest<'v>(parts: impl IntoIterator<Item = &'v Value>) -> DefinitionSource {
    struct Sha256Writer(Sha256);
    impl io::Write for Sha256Writer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.update(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut hasher = Sha256Writer(Sha256::new());
    for part in parts {
        // Hashing does not fail, nor does writing what was read from JSON.
        serde_json::to_writer(&mut hasher, part).ok();
    }
    hasher.0.finalize().into()
}

fn is_ending(definition: &Value) -> bool {
    !definition["metadata"]["deletionTimestamp"].is_null()
}

/// Takes the schemas and the columns out of a definition.
fn open(definition: &mut Value) {
    let versions = definition.pointer_mut("/spec/versions").and_then(Value::as_array_mut);
    for version in versions.into_iter().flatten().filter_map(Value::as_object_mut) {
        version.insert("additionalPrinterColumns".into(), json!([]));
        let anything = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        version.insert("schema".into(), anything);
    }
}

/// Compiles one established definition.
fn compile(definition: &Value) -> Result<Vec<Arc<ServedResource>>, String> {
    let status = &definition["status"];
    let mut source = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {}, "spec": definition["spec"]});
    // What was restored was never admitted: it may be anything.
    let spec = source["spec"].as_object_mut().ok_or("its spec is no object")?;
    spec.insert("names".into(), status["acceptedNames"].clone());
    let crd: CustomResourceDefinition = serde_json::from_value(source).map_err(|error| error.to_string())?;
    let stored = crd.spec.versions.iter().find(|version| version.storage).map(|version| version.name.clone());
    let stored = stored.ok_or("no version is stored")?;
    let one_form = crd.spec.versions.len() == 1 && status["storedVersions"] == json!([stored]);
    let stored = format!("{}/{stored}", crd.spec.group);
    let mut resources =
        from_definition::resources(&Kind::new(crd, StoragePolicy::Durable)).map_err(|error| error.to_string())?;
    // Objects must be reachable for clean-up even when the stored version is not served.
    if !resources.iter().any(|resource| resource.stores)
        && let Some(first) = resources.first_mut()
    {
        first.stores = true;
    }
    let webhook = &definition["spec"]["conversion"];
    let converter = (webhook["strategy"] == "Webhook").then(|| Arc::new(Converter::of(&webhook["webhook"])));
    for resource in &mut resources {
        if let Some(converter) = converter.as_ref().filter(|_| !one_form) {
            resource.conversion =
                Some(Conversion::Webhook { stored: stored.clone(), converter: Arc::clone(converter) });
        } else if !one_form || resource.schema.has_defaults() {
            resource.conversion = Some(Conversion::Version { stored: stored.clone() });
        }
        let since = definition["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned();
        resource.custom = Some(Custom { ending: is_ending(definition), since, ..Custom::default() });
    }
    Ok(resources.into_iter().map(Arc::new).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_of_any_form_is_only_refused() {
        let sound = json!({
            "spec": {"group": "example.org", "scope": "Namespaced", "versions": [{"name": "v1", "served": true,
                "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]},
            "status": {"acceptedNames": {"plural": "widgets", "kind": "Widget"}, "storedVersions": ["v1"]},
        });
        assert!(compile(&sound).is_ok());
        let places =
            ["/spec", "/spec/versions", "/spec/versions/0", "/spec/versions/0/schema", "/status/acceptedNames"];
        for place in places {
            for odd in [json!(["x"]), json!("x"), json!(5)] {
                let mut definition = sound.clone();
                *definition.pointer_mut(place).unwrap() = odd.clone();
                assert!(compile(&definition).is_err(), "{place}: {odd}");
                open(&mut definition);
                compile(&definition).ok();
            }
        }
    }
}
