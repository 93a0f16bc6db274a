//! Names of types: one name means one thing, wherever in the crate it is read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use regex::Regex;

use super::{files, is_test, shipped};

/// Names that several types have, and why.
const LISTED: [(&str, &str); 3] = [
    ("Inner", "what all clones of the one type share that stands beside it; private, and named nowhere else"),
    ("Cluster", "a kind of two published groups, whose names are not ours"),
    ("Machine", "a kind of two published groups, whose names are not ours"),
];

/// The types that a text defines. A kind is one, though its type is written by a macro.
fn defined(text: &str) -> BTreeSet<String> {
    // Indented, `type` is an associated type, which is named by its trait.
    let of_type = r"^(?:pub(?:\([^)]*\))?\s+)?type\s+([A-Z]\w*)";
    let of_item = r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:unsafe\s+)?(?:struct|enum|trait|union)\s+([A-Z]\w*)";
    let of_kind = r#"#\[kube\([^\]]*?\bkind = "(\w+)""#;
    let definition = Regex::new(&format!("(?m){of_type}|{of_item}|{of_kind}")).unwrap();
    let names = definition.captures_iter(text).filter_map(|found| found.iter().skip(1).flatten().next());
    names.map(|name| name.as_str().to_owned()).collect()
}

/// Where a definition has its name for itself: its file; of a published group, all files of the group, which have each of its
/// types once for each version.
fn place(file: &str) -> &str {
    let group = file.strip_prefix("api/").and_then(|below| below.split_once('/'));
    group.map_or(file, |(group, _)| &file[..group.len() + "api/".len()])
}

/// Names that are defined in several places.
fn twice<'f>(definitions: impl IntoIterator<Item = (&'f str, String)>) -> BTreeMap<String, BTreeSet<&'f str>> {
    let mut places: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (file, name) in definitions {
        places.entry(name).or_default().insert(place(file));
    }
    places.retain(|_, places| places.len() > 1);
    places
}

#[test]
fn what_a_text_defines_is_found() {
    let rows: [(&str, &[&str]); 6] = [
        ("struct Ant;\npub(super) enum Bee { Cat }\n", &["Ant", "Bee"]),
        ("pub(in crate::a) trait Ant {\n    type Bee;\n}\n", &["Ant"]),
        ("pub type Ant<T> = Vec<T>;\nunsafe trait Bee {}\n", &["Ant", "Bee"]),
        ("fn a() {\n    struct Ant(u8);\n}\n", &["Ant"]),
        ("#[kube(group = \"a\", kind = \"Cat\")]\nstruct CatSpec {}\n", &["Cat", "CatSpec"]),
        ("let kind = \"Cat\";\nuse a::Bee;\n", &[]),
    ];
    for (text, wanted) in rows {
        assert_eq!(defined(text).iter().map(String::as_str).collect::<Vec<_>>(), wanted, "{text}");
    }
}

#[test]
fn a_name_in_two_files_is_found_unless_they_are_versions_of_one_group() {
    let rows: [(&[&str], usize); 5] = [
        (&["host/a.rs"], 0),
        (&["host/a.rs", "dhcp/a.rs"], 1),
        (&["host/a.rs", "host/b.rs"], 1),
        (&["api/a/v1.rs", "api/a/v2/mod.rs"], 0),
        (&["api/a/v1.rs", "api/b/v1.rs"], 1),
    ];
    for (files, wanted) in rows {
        let definitions = files.iter().map(|file| (*file, "Ant".to_owned()));
        assert_eq!(twice(definitions).len(), wanted, "{files:?}");
    }
}

#[test]
fn no_name_has_two_types() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    files(&top, &mut found);
    let below = found.iter().map(|path| path.strip_prefix(&top).unwrap()).filter(|path| !is_test(path));
    let texts: Vec<(String, String)> =
        below.map(|path| (path.to_string_lossy().into_owned(), fs::read_to_string(top.join(path)).unwrap())).collect();
    let definitions =
        texts.iter().flat_map(|(file, text)| defined(&shipped(text)).into_iter().map(|name| (file.as_str(), name)));
    let mut twice = twice(definitions);
    for (name, _) in LISTED {
        assert!(twice.remove(name).is_some(), "{name} is defined once, or never: take it from the list");
    }
    assert!(twice.is_empty(), "one name, and a type in each of these files: say in the name what it is: {twice:#?}");
}
