//! Tests of the index: what readers see, and which events are kept.

use super::super::text::StoredText;
use super::*;

#[test]
fn a_namespace_has_half_of_what_all_have() {
    // They share their text.
    let large = StoredText::Plain(Bytes::from(vec![b' '; 1 << 20]));
    let object = |namespace: &str, number: usize| {
        let (namespace, name) = (namespace.to_owned(), number.to_string());
        Object::with_text("/configmaps".into(), namespace, name, 1, b"{}", || large.clone()).map(Arc::new).unwrap()
    };
    let mut index = StoreIndex::new(0, 1);
    let asks = |index: &StoreIndex, namespace: &str, more, is_ending| {
        index.crowded(namespace, more, is_ending).map(|error| error.to_string())
    };
    let says = |index: &StoreIndex, namespace: &str| asks(index, namespace, 2000, false);
    (0..255).for_each(|number| index.insert(object("a", number)));
    assert_eq!(says(&index, "a"), None);
    index.insert(object("a", 255));
    // Twice the same is there once.
    index.insert(object("a", 255));
    assert!(says(&index, "a").unwrap().contains("the objects of namespace a take the 256 MiB"));
    // What does not grow, or little, is let through, up to a sixteenth more.
    assert_eq!((asks(&index, "a", 0, false), asks(&index, "a", LITTLE, false)), (None, None));
    (256..280).for_each(|number| index.insert(object("a", number)));
    assert!(asks(&index, "a", 1, false).is_some());
    assert_eq!((asks(&index, "a", 0, false), asks(&index, "a", LITTLE, true)), (None, None));
    (256..280).for_each(|number| index.remove(&object("a", number)));
    assert_eq!((says(&index, "b"), says(&index, "")), (None, None));
    // Of the last quarter have who have little, of the last sixteenth the appliance and what is of no namespace.
    (0..13).for_each(|number| index.insert(object("b", number)));
    (0..115).for_each(|number| index.insert(object("", number)));
    let refused = says(&index, "b").unwrap();
    assert!(refused.contains("as far as namespace b may still add to them, take the 384 MiB"), "{refused}");
    assert_eq!((asks(&index, "b", 0, false), asks(&index, "b", LITTLE, true)), (None, None));
    let others = |index: &StoreIndex| ["c", "", OWN_NAMESPACE].map(|namespace| says(index, namespace).is_some());
    assert_eq!(others(&index), [false, false, false]);
    (115..211).for_each(|number| index.insert(object("", number)));
    assert_eq!(others(&index), [true, false, false]);
    (211..243).for_each(|number| index.insert(object("", number)));
    assert!(says(&index, OWN_NAMESPACE).unwrap().contains("take the 512 MiB"));
    assert!(says(&index, "").unwrap().contains("the objects together take the 512 MiB"));
    (0..13).for_each(|number| index.remove(&object("b", number)));
    (243..256).for_each(|number| index.insert(object("", number)));
    assert!(says(&index, "").unwrap().contains("the objects of no namespace take"));
    (0..256).for_each(|number| index.remove(&object("", number)));
    index.remove(&object("a", 0));
    index.remove(&object("a", 0));
    assert_eq!((says(&index, "a"), says(&index, ""), index.weights.len()), (None, None, 1));
    (1..256).for_each(|number| index.remove(&object("a", number)));
    assert_eq!((index.weight, index.weights.len(), index.disk_bytes()), (0, 0, 0));
    index.resource_mut(&"/configmaps".into()).published = true;
    index.insert(object("a", 1));
    assert_eq!(index.weight, 0);
    // What others keep of each object counts, of those that are there and of those that come.
    let host = |number: usize| {
        let name = number.to_string();
        Arc::new(Object::new("/hosts".into(), "a".into(), name, 1, b"{}").unwrap())
    };
    index.insert(host(1));
    let before = index.weight;
    index.add_weight(&"/hosts".into(), 10_000);
    assert_eq!(index.weight, before + 10_000);
    index.insert(host(2));
    assert_eq!((index.weight, index.weights["a"]), (2 * before + 20_000, 2 * before + 20_000));
    // One that others keep parsed weighs its whole text, and more by each value in it.
    index.remove(&host(2));
    let large = |one: &str| {
        let json = format!(r#"{{"metadata":{{}},"x":[{}]}}"#, vec![one; 10_000].join(","));
        Arc::new(Object::new("/hosts".into(), "a".into(), "2".into(), 1, json.as_bytes()).unwrap())
    };
    let (packed, parsed) = (index.weight_of_text(&large(r#""""#)), large(r#""""#).parsed());
    assert!(packed < 20_000 && parsed > 900_000, "{packed} {parsed}");
    index.insert(large(r#""""#));
    let (before, there) = (index.weight, host(1).parsed());
    index.weigh_parsed(&"/hosts".into());
    index.weigh_parsed(&"/hosts".into());
    assert_eq!((index.weight, index.weights["a"]), (before + parsed + there, before + parsed + there));
    assert_eq!(index.weight_of_text(&large(r#""""#)), packed + parsed);
    // What is in a text are no values.
    assert!(large(r#""a,[\",b""#).parsed() < parsed + 10_000 * 12);
    index.remove(&host(1));
    index.remove(&host(2));
    assert_eq!((index.weight, index.weights.len()), (0, 0));
}

#[test]
fn all_histories_have_a_bound_together_and_the_longest_gives_way() {
    let mut index = StoreIndex::new(0, 100);
    let change = |resource: &str, revision: u64| {
        let text = serde_json::json!({ "metadata": {}, "revision": revision }).to_string();
        let object = Object::new(resource.into(), "a".into(), "n".into(), revision, text.as_bytes());
        let event = StoreEvent::Added(object.map(Arc::new).unwrap());
        Logged { revision, event, deleted: None, stored: None, since: Instant::now() }
    };
    let one = change("/many", 10).bytes();
    index.event_bytes_max = 20 * one + one / 2;
    let apply = |index: &mut StoreIndex, resource: &str, revision| {
        index.apply(IndexChange { events: vec![change(resource, revision)], ..IndexChange::default() });
    };
    (10..=12).for_each(|revision| apply(&mut index, "/less", revision));
    (13..=49).for_each(|revision| apply(&mut index, "/many", revision));
    let of = |index: &StoreIndex, name: &str| (index.resources[name].events.len(), index.resources[name].trimmed());
    assert_eq!((of(&index, "/less"), of(&index, "/many").0), ((3, 0), 17));
    assert_eq!(index.event_bytes, index.resources.values().map(|resource| resource.event_bytes).sum::<usize>());
    index.forget(&"/many".into(), 49);
    assert_eq!((of(&index, "/many"), index.event_bytes), ((0, 49), index.resources["/less"].event_bytes));
}

#[test]
fn what_is_kept_unpacked_counts_in_objects_and_in_the_history() {
    // All alike, so that it packs to next to nothing.
    let labels: serde_json::Map<_, _> = (0..8000).map(|one| (format!("{}{one}", "a".repeat(50)), "x".into())).collect();
    let owners: Vec<_> = (0..8000).map(|one| serde_json::json!({ "uid": one.to_string() })).collect();
    let of = |metadata: serde_json::Value| {
        let text = serde_json::json!({ "metadata": metadata }).to_string();
        Object::new("/configmaps".into(), "a".into(), "n".into(), 1, text.as_bytes()).map(Arc::new).unwrap()
    };
    for (metadata, least) in [
        (serde_json::json!({ "labels": labels }), 8000 * 115),
        (serde_json::json!({ "ownerReferences": owners }), 8000 * 320),
    ] {
        let object = of(metadata);
        assert!(object.size() < least / 10, "{} bytes: it shows nothing", object.size());
        let mut index = StoreIndex::new(0, 100);
        index.insert(Arc::clone(&object));
        assert!(index.weight > least, "{}", index.weight);
        let event = StoreEvent::Added(object);
        let logged = Logged { revision: 1, event, deleted: None, stored: None, since: Instant::now() };
        assert!(logged.bytes() > least, "{}", logged.bytes());
    }
}
