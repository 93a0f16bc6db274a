//! Names of types across rooms: what two rooms give to others must not have one name with two meanings.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use regex::Regex;

use super::{files, is_test, shipped};

/// The types that a text takes from rooms, each with the room.
fn taken(text: &str) -> Vec<(String, String)> {
    let list = Regex::new(r"\buse crate::(\w+)(?:::[a-z_]\w*)*::\{([^;]*)\};").unwrap();
    let one = Regex::new(r"\bcrate::(\w+)::(?:[a-z_]\w*::)*([A-Z]\w*[a-z]\w*)").unwrap();
    // Not what is below a type (`NameError::Path`), nor what it is called here (`Kind as EntryKind`).
    let name = Regex::new(r"(?:^|[^:\w])(?:[a-z_]\w*::)*([A-Z]\w*[a-z]\w*)").unwrap();
    let of_list = list.captures_iter(text).flat_map(|found| {
        let (room, names) = (found[1].to_owned(), found[2].replace(" as ", "::"));
        name.captures_iter(&names).map(|found| (found[1].to_owned(), room.clone())).collect::<Vec<_>>()
    });
    let of_one = one.captures_iter(text).map(|found| (found[2].to_owned(), found[1].to_owned()));
    of_list.chain(of_one).collect()
}

#[test]
fn what_a_text_takes_is_found() {
    for (text, wanted) in [
        ("use crate::a::b::Cat;", vec![("Cat", "a")]),
        ("use crate::a::{self, Bee, c::Dog, e, MOST};", vec![("Bee", "a"), ("Dog", "a")]),
        ("use crate::a::{Bee as Cat};", vec![("Bee", "a")]),
        ("matches!(x, crate::a::b::Cat::Dog)", vec![("Cat", "a")]),
        ("use super::Ant; use std::b::Cat;", vec![]),
    ] {
        let found = taken(text);
        assert_eq!(found.iter().map(|(name, room)| (&**name, &**room)).collect::<Vec<_>>(), wanted, "{text}");
    }
}

#[test]
fn a_type_that_others_use_has_a_name_of_its_own() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    files(&top, &mut found);
    let mut rooms: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in found.iter().filter(|path| !is_test(path)) {
        let room = path.strip_prefix(&top).unwrap().components().next().unwrap().as_os_str().to_string_lossy();
        for (name, of) in taken(&shipped(&fs::read_to_string(path).unwrap())) {
            if of != room.trim_end_matches(".rs") {
                rooms.entry(name).or_default().insert(of);
            }
        }
    }
    rooms.retain(|_, of| of.len() > 1);
    assert!(rooms.is_empty(), "one name, and a type in each of these rooms: {rooms:#?}");
}
