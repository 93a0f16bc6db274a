//! Random histories against a plain map, with restarts in between.

use proptest::prelude::*;

use super::*;

/// One step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Put { resource: usize, name: usize, expect: usize, size: usize },
    Delete { resource: usize, name: usize, expect: usize },
    Entry { key: u8, value: Option<u8> },
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![9 => 0..3000_usize, 1 => 30_000..200_000_usize];
    prop_oneof![
        8 => (0..3_usize, 0..6_usize, 0..4_usize, size)
            .prop_map(|(resource, name, expect, size)| Step::Put { resource, name, expect, size }),
        3 => (0..3_usize, 0..6_usize, 0..4_usize)
            .prop_map(|(resource, name, expect)| Step::Delete { resource, name, expect }),
        4 => (any::<u8>(), any::<Option<u8>>()).prop_map(|(key, value)| Step::Entry { key: key % 20, value }),
        1 => Just(Step::Reopen),
    ]
}

#[derive(Default)]
struct Model {
    history: usize,
    revision: u64,
    objects: BTreeMap<(usize, usize), (u64, Value)>,
    /// By resource, with revisions.
    events: [Vec<(u64, String)>; 3],
    entries: BTreeMap<u8, u8>,
}

const RESOURCES: [&str; 3] = [HOSTS, "/secrets", "/configmaps"];

async fn compare(store: &Store, model: &Model) -> Result<(), TestCaseError> {
    prop_assert_eq!(store.revision(), model.revision);
    for (resource, path) in RESOURCES.iter().enumerate() {
        let found: Vec<_> = store
            .list(path, None)
            .objects
            .iter()
            .map(|object| (object.name.clone(), object.revision, object.value()["spec"].clone()))
            .collect();
        let expected: Vec<_> = model
            .objects
            .range((resource, 0)..(resource + 1, 0))
            .map(|((_, name), (revision, spec))| (name.to_string(), *revision, spec.clone()))
            .collect();
        prop_assert_eq!(found, expected);
        let (dropped, kept) =
            model.events[resource].split_at(model.events[resource].len().saturating_sub(model.history));
        let oldest = dropped.last().map_or(0, |(revision, _)| *revision);
        let mut watch = store.watch(path, oldest).map_err(|gone| TestCaseError::fail(gone.to_string()))?;
        let kept: Vec<_> = kept.iter().map(|(_, line)| line.clone()).collect();
        prop_assert_eq!(lines(&mut watch, kept.len()).await, kept);
        prop_assert!(is_idle(&mut watch).await);
        if let Some(before) = oldest.checked_sub(1) {
            prop_assert!(store.watch(path, before).is_err());
        }
    }
    let table = store.table("t").unwrap().scan();
    let table: BTreeMap<u8, u8> = table.iter().map(|(key, value)| (key[0], value[0])).collect();
    prop_assert_eq!(&table, &model.entries);
    Ok(())
}

async fn play(history: usize, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let folder = tempfile::tempdir().unwrap();
    let open = || Store::open(StoreOptions { history, ..options(folder.path()) }).unwrap();
    let mut store = open();
    let mut model = Model { history, ..Model::default() };
    for (count, step) in steps.into_iter().enumerate() {
        let (resource, name, expect, value) = match step {
            Step::Put { resource, name, expect, size } => {
                (resource, name, expect, Some(json!(format!("{count}{}", "x".repeat(size)))))
            }
            Step::Delete { resource, name, expect } => (resource, name, expect, None),
            Step::Entry { key, value } => {
                let bytes = value.map(|value| Bytes::from(vec![value]));
                store.table("t").unwrap().write(Bytes::from(vec![key]), bytes).await.unwrap();
                match value {
                    Some(value) => model.entries.insert(key, value),
                    None => model.entries.remove(&key),
                };
                continue;
            }
            Step::Reopen => {
                store.close().await;
                store = open();
                compare(&store, &model).await?;
                continue;
            }
        };
        let old = model.objects.get(&(resource, name)).cloned();
        let here = old.as_ref().map_or(0, |(revision, _)| *revision);
        // Revisions that match and that do not.
        let expect = [Expect::Any, Expect::Absent, Expect::Present, Expect::Revision(here + count as u64 % 2)][expect];
        let fits = match expect {
            Expect::Any => old.is_some() || value.is_some(),
            Expect::Absent => old.is_none() && value.is_some(),
            Expect::Present => old.is_some(),
            Expect::Revision(revision) => old.is_some() && revision == here,
        };
        let change = match &value {
            Some(spec) => put(RESOURCES[resource], "ns", &name.to_string(), expect, spec.clone()),
            None => delete(RESOURCES[resource], "ns", &name.to_string(), expect),
        };
        let done = store.write(change).await;
        prop_assert_eq!(done.is_ok(), fits, "{:?} with {:?}: {:?}", expect, old.is_some(), done.err());
        if fits {
            model.revision += 1;
            let now = model.revision;
            model.events[resource].push((
                now,
                match (&value, &old) {
                    (Some(spec), None) => format!("added {name}@{now} {spec}"),
                    (Some(spec), Some((was, former))) => {
                        format!("modified {name}@{now} {spec} was {name}@{was} {former}")
                    }
                    (None, Some((_, former))) => format!("deleted {name}@{now} {former}"),
                    (None, None) => return Err(TestCaseError::fail("the model deleted nothing")),
                },
            ));
            match value {
                Some(spec) => model.objects.insert((resource, name), (now, spec)),
                None => model.objects.remove(&(resource, name)),
            };
        }
    }
    compare(&store, &model).await?;
    store.close().await;
    let store = open();
    compare(&store, &model).await?;
    store.close().await;
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn it_does_what_a_map_does(history in prop_oneof![1..8_usize, Just(1000)], steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(play(history, steps))?;
    }
}
