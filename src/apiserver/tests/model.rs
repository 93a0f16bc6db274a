//! Random requests against a small model of what they mean: values, owners of fields, revisions, finalizers, events.
//!
//! The fields under test are the entries of one map: `data` of ConfigMaps (a core kind), `metadata.labels` of hosts (a
//! kind with a schema, a status and a generation). One entry, `keep`, is set by everyone, so that nobody loses all.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const APPLY: &str = "application/apply-patch+yaml";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Subject {
    Map,
    Host,
}

impl Subject {
    fn collection(self) -> &'static str {
        match self {
            Self::Map => "/api/v1/namespaces/rack/configmaps",
            Self::Host => HOSTS,
        }
    }

    /// An object with these entries and nothing else.
    fn object(self, name: &str, entries: &Entries) -> Value {
        match self {
            Self::Map => json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": entries}),
            Self::Host => json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
                "metadata": {"name": name, "labels": entries}, "spec": {"online": true}}),
        }
    }

    fn pointer(self) -> &'static str {
        if self == Self::Map { "/data" } else { "/metadata/labels" }
    }

    fn owned_pointer(self) -> &'static str {
        if self == Self::Map { "/fieldsV1/f:data" } else { "/fieldsV1/f:metadata/f:labels" }
    }

    /// A patch of the map.
    fn patch(self, change: &Value) -> Value {
        if self == Self::Map { json!({ "data": change }) } else { json!({"metadata": {"labels": change}}) }
    }
}

type Entries = BTreeMap<String, String>;
/// A manager's name, and whether it applies.
type Owner = (String, bool);

#[derive(Clone, Copy, Debug)]
enum Revision {
    Right,
    Stale,
    Unnamed,
}

#[derive(Clone, Copy, Debug)]
enum PatchKind {
    Merge,
    Strategic,
    Json,
}

#[derive(Clone, Debug)]
enum Op {
    Create { entries: Entries },
    Update { entries: Entries, revision: Revision },
    Patch { kind: PatchKind, changes: BTreeMap<String, Option<String>> },
    Apply { entries: Entries, force: bool },
    Finalize { on: bool },
    Status { count: u8 },
    Delete { right: Option<bool> },
}

#[derive(Clone, Debug)]
struct Step {
    op: Op,
    name: &'static str,
    manager: &'static str,
    dry: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Thing {
    entries: Entries,
    owners: BTreeMap<String, BTreeSet<Owner>>,
    finalizer: bool,
    ending: bool,
    status: Option<u8>,
}

impl Thing {
    /// Somebody writes entries without asking.
    fn write(&mut self, manager: &str, entries: Entries) {
        self.owners.retain(|key, _| entries.contains_key(key));
        for (key, value) in &entries {
            if self.entries.get(key) != Some(value) {
                self.owners.insert(key.clone(), BTreeSet::from([(manager.to_owned(), false)]));
            }
        }
        self.entries = entries;
    }

    /// Somebody applies entries; the conflicts when there are any.
    fn apply(&mut self, manager: &str, entries: &Entries, force: bool) -> Result<(), usize> {
        let me = (manager.to_owned(), true);
        let mut conflicts = 0;
        for (key, value) in entries {
            if self.entries.get(key).is_some_and(|there| there != value) {
                conflicts += self.owners.get(key).map_or(0, |owners| owners.iter().filter(|one| **one != me).count());
            }
        }
        if conflicts > 0 && !force {
            return Err(conflicts);
        }
        let dropped: Vec<String> = self
            .owners
            .iter()
            .filter(|(key, owners)| owners.contains(&me) && !entries.contains_key(*key))
            .map(|(key, _)| key.clone())
            .collect();
        for key in dropped {
            let owners = self.owners.entry(key.clone()).or_default();
            owners.remove(&me);
            if owners.is_empty() {
                self.owners.remove(&key);
                self.entries.remove(&key);
            }
        }
        for (key, value) in entries {
            let owners = self.owners.entry(key.clone()).or_default();
            if self.entries.insert(key.clone(), value.clone()).is_some_and(|there| there != *value) {
                owners.clear();
            }
            owners.insert(me.clone());
        }
        Ok(())
    }
}

/// What a step makes of a thing: the code of the answer and what is there afterwards.
fn expected(subject: Subject, step: &Step, now: Option<&Thing>) -> (u16, Option<Thing>) {
    let unchanged = |code| (code, now.cloned());
    match (&step.op, now) {
        (Op::Create { .. }, Some(_)) => unchanged(409),
        (Op::Create { entries }, None) => {
            let mut thing = Thing::default();
            thing.write(step.manager, entries.clone());
            (201, Some(thing))
        }
        (Op::Apply { entries, force }, _) => {
            let mut thing = now.cloned().unwrap_or_default();
            match thing.apply(step.manager, entries, *force) {
                Ok(()) => (if now.is_some() { 200 } else { 201 }, Some(thing)),
                Err(_) => unchanged(409),
            }
        }
        (Op::Patch { kind: PatchKind::Strategic, .. }, _) if subject == Subject::Host => unchanged(415),
        (Op::Status { .. }, _) if subject == Subject::Map => unchanged(404),
        (_, None) => unchanged(404),
        (Op::Update { entries, revision }, Some(thing)) => match (revision, subject) {
            (Revision::Stale, _) => unchanged(409),
            (Revision::Unnamed, Subject::Host) => unchanged(422),
            _ => {
                let mut thing = thing.clone();
                thing.write(step.manager, entries.clone());
                (200, Some(thing))
            }
        },
        (Op::Patch { kind, changes }, Some(thing)) => {
            let mut entries = thing.entries.clone();
            for (key, value) in changes {
                match value {
                    Some(value) => drop(entries.insert(key.clone(), value.clone())),
                    // JSON patch removes only what is there.
                    None if entries.remove(key).is_none() && matches!(kind, PatchKind::Json) => return unchanged(422),
                    None => {}
                }
            }
            let mut thing = thing.clone();
            thing.write(step.manager, entries);
            (200, Some(thing))
        }
        (Op::Finalize { on: true }, Some(thing)) if thing.ending && !thing.finalizer => unchanged(422),
        (Op::Finalize { on }, Some(thing)) => {
            let thing = Thing { finalizer: *on, ..thing.clone() };
            (200, (!thing.ending || thing.finalizer).then_some(thing))
        }
        (Op::Status { count }, Some(thing)) => (200, Some(Thing { status: Some(*count), ..thing.clone() })),
        (Op::Delete { right: Some(false) }, Some(_)) => unchanged(409),
        (Op::Delete { .. }, Some(thing)) => (200, thing.finalizer.then(|| Thing { ending: true, ..thing.clone() })),
    }
}

fn entries() -> impl Strategy<Value = Entries> {
    proptest::collection::btree_map("[ab]", "[12]", 0..3).prop_map(|mut entries| {
        entries.insert("keep".into(), "1".into());
        entries
    })
}

fn step() -> impl Strategy<Value = Step> {
    let revision = prop_oneof![Just(Revision::Right), Just(Revision::Stale), Just(Revision::Unnamed)];
    let kind = prop_oneof![Just(PatchKind::Merge), Just(PatchKind::Strategic), Just(PatchKind::Json)];
    let changes = proptest::collection::btree_map("[abc]", proptest::option::of("[12]"), 0..3);
    let op = prop_oneof![
        2 => entries().prop_map(|entries| Op::Create { entries }),
        2 => (entries(), revision).prop_map(|(entries, revision)| Op::Update { entries, revision }),
        4 => (kind, changes).prop_map(|(kind, changes)| Op::Patch { kind, changes }),
        6 => (entries(), any::<bool>()).prop_map(|(entries, force)| Op::Apply { entries, force }),
        1 => any::<bool>().prop_map(|on| Op::Finalize { on }),
        1 => any::<u8>().prop_map(|count| Op::Status { count }),
        1 => proptest::option::of(any::<bool>()).prop_map(|right| Op::Delete { right }),
    ];
    let name = prop_oneof![3 => Just("x"), 1 => Just("y")];
    let manager = prop_oneof![Just("m0"), Just("m1"), Just("m2")];
    let dry = prop_oneof![5 => Just(false), 1 => Just(true)];
    (op, name, manager, dry).prop_map(|(op, name, manager, dry)| Step { op, name, manager, dry })
}

/// Makes the request of a step.
async fn request(rig: &Rig, subject: Subject, step: &Step, live: Option<&Value>) -> Answer {
    let collection = subject.collection();
    let one = path(collection, step.name);
    let query = format!("?fieldManager={}{}", step.manager, if step.dry { "&dryRun=All" } else { "" });
    match &step.op {
        Op::Create { entries } => {
            rig.call("POST", &format!("{collection}{query}"), &subject.object(step.name, entries)).await
        }
        Op::Update { entries, revision } => {
            let mut object = live.cloned().unwrap_or_else(|| subject.object(step.name, entries));
            *object.pointer_mut(subject.pointer()).unwrap() = json!(entries);
            match revision {
                Revision::Right => {}
                Revision::Stale => object["metadata"]["resourceVersion"] = "1".into(),
                Revision::Unnamed => drop(object["metadata"].as_object_mut().unwrap().remove("resourceVersion")),
            }
            rig.call("PUT", &format!("{one}{query}"), &object).await
        }
        Op::Patch { kind: PatchKind::Json, changes } => {
            let operations: Vec<Value> = changes
                .iter()
                .map(|(key, value)| {
                    let path = format!("{}/{key}", subject.pointer());
                    match value {
                        Some(value) => json!({"op": "add", "path": path, "value": value}),
                        None => json!({"op": "remove", "path": path}),
                    }
                })
                .collect();
            rig.patch(&format!("{one}{query}"), "application/json-patch+json", &json!(operations)).await
        }
        Op::Patch { kind, changes } => {
            let media = if matches!(kind, PatchKind::Merge) { MERGE } else { "application/strategic-merge-patch+json" };
            rig.patch(&format!("{one}{query}"), media, &subject.patch(&json!(changes))).await
        }
        Op::Apply { entries, force } => {
            let query = format!("{query}&force={force}");
            rig.patch(&format!("{one}{query}"), APPLY, &subject.object(step.name, entries)).await
        }
        Op::Finalize { on } => {
            let finalizers = if *on { json!(["a/b"]) } else { Value::Null };
            rig.patch(&format!("{one}{query}"), MERGE, &json!({"metadata": {"finalizers": finalizers}})).await
        }
        Op::Status { count } => {
            rig.patch(&format!("{one}/status{query}"), MERGE, &json!({"status": {"errorCount": count}})).await
        }
        Op::Delete { right } => {
            let uid = live.map_or(Value::Null, |live| live["metadata"]["uid"].clone());
            let options = match right {
                None => json!({}),
                Some(true) => json!({"preconditions": {"uid": uid}}),
                Some(false) => json!({"preconditions": {"uid": "another"}}),
            };
            let query = if step.dry { "?dryRun=All" } else { "" };
            rig.call("DELETE", &format!("{one}{query}"), &options).await
        }
    }
}

/// What the server shows, as the model has it.
fn seen(subject: Subject, object: &Value) -> Thing {
    let entries: Entries = serde_json::from_value(object.pointer(subject.pointer()).unwrap().clone()).unwrap();
    let mut owners: BTreeMap<String, BTreeSet<Owner>> = BTreeMap::new();
    for entry in object["metadata"]["managedFields"].as_array().unwrap() {
        let owner = (entry["manager"].as_str().unwrap().to_owned(), entry["operation"] == "Apply");
        for field in entry.pointer(subject.owned_pointer()).and_then(Value::as_object).into_iter().flatten() {
            if let Some(key) = field.0.strip_prefix("f:") {
                owners.entry(key.to_owned()).or_default().insert(owner.clone());
            }
        }
    }
    Thing {
        entries,
        owners,
        finalizer: object["metadata"].get("finalizers").is_some(),
        ending: object["metadata"].get("deletionTimestamp").is_some(),
        status: object["status"]["errorCount"].as_u64().map(|count| u8::try_from(count).unwrap()),
    }
}

/// Reads that many events of a watch.
async fn events(rig: &Rig, at: &str, count: usize) -> Vec<(String, String)> {
    let mut request = http::Request::get(at).body(Body::empty()).unwrap();
    request.extensions_mut().insert(admin().unwrap());
    let mut body = rig.api.router().oneshot(request).await.unwrap().into_body();
    let mut text = Vec::new();
    while text.iter().filter(|byte| **byte == b'\n').count() < count {
        let frame = tokio::time::timeout(DEADLINE, body.frame()).await.unwrap().unwrap().unwrap();
        text.extend_from_slice(frame.data_ref().unwrap());
    }
    let line = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&event["type"]), text(&event["object"]["metadata"]["name"]))
    };
    String::from_utf8(text).unwrap().lines().map(line).collect()
}

async fn run(subject: Subject, steps: Vec<Step>) {
    let rig = Rig::new().await;
    let collection = subject.collection();
    let start = rig.get(collection).await.expect(200)["metadata"]["resourceVersion"].clone();
    let mut things: BTreeMap<&str, Thing> = BTreeMap::new();
    let mut happened: Vec<(String, String)> = Vec::new();
    for step in &steps {
        let one = path(collection, step.name);
        let live = Some(rig.get(&one).await).filter(|answer| answer.code == 200).map(|answer| answer.json());
        let before = things.get(step.name).cloned();
        let (code, after) = expected(subject, step, before.as_ref());
        let answer = request(&rig, subject, step, live.as_ref()).await;
        assert_eq!(answer.code, code, "{step:?}: {}", answer.text);
        let shown = answer.json();
        let shows_object = code < 300 && shown["kind"] != "Status";
        if let Some(after) = after.as_ref().filter(|_| shows_object) {
            assert_eq!(&seen(subject, &shown), after, "{step:?}: the answer");
        }
        let now = rig.get(&one).await;
        if step.dry {
            assert_eq!(Some(now).filter(|now| now.code == 200).map(|now| now.json()), live, "{step:?}: a dry run");
            continue;
        }
        match &after {
            None => assert_eq!(now.code, 404, "{step:?}"),
            Some(after) => {
                let now = now.expect(200);
                assert_eq!(&seen(subject, &now), after, "{step:?}");
                let same = live
                    .as_ref()
                    .is_some_and(|live| live["metadata"]["resourceVersion"] == now["metadata"]["resourceVersion"]);
                assert_eq!(same, before.as_ref() == Some(after), "{step:?}: a revision for each change and no other");
            }
        }
        let kind = match (&before, &after) {
            (None, Some(_)) => Some("ADDED"),
            (Some(_), None) => Some("DELETED"),
            (Some(before), Some(after)) if before != after => Some("MODIFIED"),
            _ => None,
        };
        happened.extend(kind.map(|kind| (kind.to_owned(), step.name.to_owned())));
        match after {
            Some(after) => drop(things.insert(step.name, after)),
            None => drop(things.remove(step.name)),
        }
    }
    let list = rig.get(collection).await.expect(200);
    let names: Vec<&str> =
        list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, things.keys().copied().collect::<Vec<_>>());
    let watch = format!("{collection}?watch=true&resourceVersion={}", start.as_str().unwrap());
    assert_eq!(events(&rig, &watch, happened.len()).await, happened);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn random_requests_mean_what_the_model_says(
        subject in prop_oneof![Just(Subject::Map), Just(Subject::Host)],
        steps in proptest::collection::vec(step(), 1..25),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(subject, steps));
    }
}
