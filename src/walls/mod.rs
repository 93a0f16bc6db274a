//! The architecture test: what the map in `lib.rs` says of floors is held against every import below `src/`.

mod inside;
mod loops;
mod metrics;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// The rooms of the map by name, each with its floor; the ground is the highest number.
fn map(lib: &str) -> BTreeMap<String, usize> {
    let row = Regex::new(r"^//! \| (\w*) \| \[`(\w+)`\] \|").unwrap();
    let mut rooms = BTreeMap::new();
    let mut floor = 0;
    for line in lib.lines() {
        let Some(found) = row.captures(line) else { continue };
        floor += usize::from(!found[1].is_empty());
        assert_eq!(rooms.insert(found[2].to_owned(), floor), None, "{} is in the map twice", &found[2]);
    }
    rooms
}

/// Rust without comments and without the modules that only tests have.
fn shipped(source: &str) -> String {
    let text = Regex::new(r"(?m)//.*$").unwrap().replace_all(source, "").into_owned();
    let tests = Regex::new(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod \w+ \{").unwrap();
    match tests.find(&text) {
        // By this project's habit they stand at the end.
        Some(found) => text[..found.start()].to_owned(),
        None => text,
    }
}

/// The names right after `crate::`: `crate::a::b`, `crate::{a, b::c, d::{e, f}}`.
fn imports(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, start) in text.match_indices("crate::") {
        let rest = &text[at + start.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            names.insert(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
            continue;
        };
        let (mut depth, mut fresh) = (0, true);
        for word in list.split_inclusive(|c: char| !(c.is_alphanumeric() || c == '_')) {
            let name = word.trim_end_matches(|c: char| !(c.is_alphanumeric() || c == '_'));
            if fresh && depth == 0 && !name.is_empty() {
                names.insert(name.to_owned());
                fresh = false;
            }
            match word.chars().last() {
                Some('{') => depth += 1,
                Some('}') if depth == 0 => break,
                Some('}') => depth -= 1,
                Some(',') if depth == 0 => fresh = true,
                _ => {}
            }
        }
    }
    names
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Whether a file is there only for tests: by its name, or by its folder's.
fn is_test(path: &Path) -> bool {
    path.components().any(|part| {
        let name = part.as_os_str().to_string_lossy();
        let name = name.trim_end_matches(".rs");
        name == "tests" || name == "walls" || name.ends_with("_tests")
    })
}

/// What each room imports of others, with the first file that does.
fn tree() -> BTreeMap<String, BTreeMap<String, PathBuf>> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    files(&top, &mut found);
    found.sort();
    let mut rooms: BTreeMap<String, BTreeMap<String, PathBuf>> = BTreeMap::new();
    for path in found {
        let below = path.strip_prefix(&top).unwrap();
        let room = below.components().next().unwrap().as_os_str().to_string_lossy();
        let room = room.trim_end_matches(".rs").to_owned();
        if matches!(room.as_str(), "lib" | "main") || is_test(below) {
            continue;
        }
        let of_room = rooms.entry(room.clone()).or_default();
        for name in imports(&shipped(&fs::read_to_string(&path).unwrap())) {
            if name != room {
                of_room.entry(name).or_insert_with(|| below.to_owned());
            }
        }
    }
    rooms
}

/// What is wrong with rooms, by the floors of their map: what each imports of others, with the first file that does.
fn faults(floors: &BTreeMap<String, usize>, rooms: &BTreeMap<String, BTreeMap<String, PathBuf>>) -> Vec<String> {
    let mut faults = Vec::new();
    for (room, others) in rooms {
        for (other, file) in others {
            if floors.get(other).is_some_and(|floor| *floor < floors[room]) {
                faults.push(format!("{} imports {other}, which is above {room}", file.display()));
            }
        }
    }
    // Rooms that import nothing but what was taken away already are taken away; a circle remains.
    let mut left: BTreeSet<&String> = rooms.keys().collect();
    loop {
        let free: Vec<_> =
            left.iter().filter(|room| !rooms[**room].keys().any(|other| left.contains(other))).copied().collect();
        if free.is_empty() {
            break;
        }
        left.retain(|room| !free.contains(room));
    }
    if !left.is_empty() {
        faults.push(format!("these import each other in a circle, or one that does: {left:?}"));
    }
    faults
}

#[test]
fn imports_are_read_as_the_compiler_reads_them() {
    let rows: [(&str, &[&str]); 5] = [
        ("use crate::a::b;", &["a"]),
        ("use crate::{a, b::c, d::{e, f}, g};", &["a", "b", "d", "g"]),
        ("fn f() { crate::a::f(crate::b) }", &["a", "b"]),
        ("use super::a; // crate::b\n", &[]),
        ("use crate::a;\n#[cfg(test)]\nmod tests {\n use crate::b;\n}\n", &["a"]),
    ];
    for (text, wanted) in rows {
        let names = imports(&shipped(text));
        assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), wanted, "{text}");
    }
}

#[test]
fn a_room_above_and_a_circle_are_found() {
    let floors = BTreeMap::from([("top".to_owned(), 1), ("left".to_owned(), 2), ("right".to_owned(), 2)]);
    let rows: [(&[(&str, &str)], usize); 4] = [
        (&[("top", "left"), ("left", "right")], 0),
        (&[("right", "top")], 1),
        (&[("left", "right"), ("right", "left")], 1),
        (&[("top", "left"), ("left", "top")], 2),
    ];
    for (imports, wanted) in rows {
        let mut rooms: BTreeMap<_, BTreeMap<_, _>> =
            floors.keys().map(|room| (room.clone(), BTreeMap::new())).collect();
        for (room, other) in imports {
            rooms.get_mut(*room).unwrap().insert((*other).to_owned(), PathBuf::from(room));
        }
        assert_eq!(faults(&floors, &rooms).len(), wanted, "{imports:?}");
    }
}

#[test]
fn a_room_imports_its_own_floor_or_below_and_never_in_circles() {
    let floors = map(include_str!("../lib.rs"));
    let rooms = tree();
    assert_eq!(floors.keys().collect::<Vec<_>>(), rooms.keys().collect::<Vec<_>>(), "the map, and what is there");
    let mut faults = faults(&floors, &rooms);
    for (room, others) in rooms.iter().filter(|(room, _)| !matches!(room.as_str(), "cli" | "simulate")) {
        if let Some(file) = others.get("agent") {
            faults.push(format!("{} imports the agent, which only runs in the ramdisk: {room}", file.display()));
        }
    }
    for (room, others) in rooms.iter().filter(|(room, _)| *room != "cli") {
        if let Some(file) = others.get("node") {
            faults
                .push(format!("{} imports the agent of nodes, which is a program of its own: {room}", file.display()));
        }
    }
    // It is at rest in 20 MB, and goes where the appliance does not.
    let beside = ["api", "files", "hex", "log", "protocol"];
    for (other, file) in rooms["node"].iter().filter(|(other, _)| !beside.contains(&other.as_str())) {
        faults.push(format!("{} imports {other}: node imports {beside:?} only", file.display()));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn only_the_runtime_watches_kinds_and_builds_controllers() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    files(&top, &mut found);
    let call = Regex::new(r"\bwatcher\(|\bfollow::events\(|\bController::(new|for_stream)\(").unwrap();
    let calls = |path: &PathBuf| call.is_match(&shipped(&fs::read_to_string(path).unwrap()));
    let below: Vec<_> = found.iter().filter(|path| !is_test(path) && calls(path)).collect();
    let (inside, outside): (Vec<_>, Vec<_>) = below.into_iter().partition(|path| path.starts_with(top.join("runtime")));
    assert_eq!(inside.len(), 2, "{inside:?}");
    assert!(outside.is_empty(), "{outside:?}: ask runtime::Watches, runtime::run");
}
