//! Inside a room: files that import each other in a circle are understood only together, so that there are six at most. A
//! room of many files has rooms of its own, with a map.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

use super::{faults, files, is_test, map, shipped};

/// Files of one circle, at most.
const LIMIT: usize = 6;

/// A module as its path below the crate; the crate itself is empty.
type Module = Vec<String>;

/// What a module's text names of other modules.
#[derive(Default)]
struct Names {
    /// Paths as they are written, with `crate`, `self` and `super`.
    paths: Vec<Module>,
    /// What it exports of others, by the name it has here.
    exports: BTreeMap<String, Module>,
}

fn segments(path: &str) -> Module {
    path.split("::").map(|segment| segment.trim().to_owned()).collect()
}

/// `a::{b, c::{d, e as f}}` as `a::b`, `a::c::d`, `a::c::e as f`.
fn flat(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((front, list)) = tree.split_once('{') else { return vec![tree.to_owned()] };
    let list = list.strip_suffix('}').unwrap_or(list);
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    let parts = parts.into_iter().filter(|part| !part.trim().is_empty());
    parts.flat_map(flat).map(|part| format!("{front}{part}")).collect()
}

fn names(text: &str) -> Names {
    let import = Regex::new(r"(pub(?:\([^)]*\))?\s+)?\buse\s+([^;]+);").unwrap();
    let mention = Regex::new(r"\b(?:crate|super|self)(?:::\w+)+").unwrap();
    let mut found = Names::default();
    // To whom something is visible is no import.
    let text = &*Regex::new(r"pub\(in [^)]*\)").unwrap().replace_all(text, "pub");
    for import in import.captures_iter(text) {
        for path in flat(&import[2]) {
            let (path, alias) = path.split_once(" as ").map_or((path.as_str(), None), |(path, as_)| (path, Some(as_)));
            let path = segments(path);
            if import.get(1).is_some() {
                let name = alias.map_or_else(|| path.last().cloned().unwrap_or_default(), |as_| as_.trim().to_owned());
                found.exports.insert(name, path);
            } else {
                found.paths.push(path);
            }
        }
    }
    let body = import.replace_all(text, "");
    found.paths.extend(mention.find_iter(&body).map(|mention| segments(mention.as_str())));
    found
}

/// A path as it is written in a module, from the crate's root; `None` when it is of another crate.
fn absolute(modules: &BTreeMap<Module, Names>, of: &[String], path: &[String]) -> Option<Module> {
    let first = path.first()?;
    let below = |base: &[String], rest: &[String]| [base, rest].concat();
    match first.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some(below(of, &path[1..])),
        "super" => {
            let ups = path.iter().take_while(|segment| *segment == "super").count();
            Some(below(&of[..of.len().saturating_sub(ups)], &path[ups..]))
        }
        _ => modules.contains_key(&below(of, &path[..1])).then(|| below(of, path)),
    }
}

/// The module that a path from the crate's root ends in, through what modules on the way export of others.
fn resolve(modules: &BTreeMap<Module, Names>, path: &[String], depth: usize) -> Module {
    let mut at = Module::new();
    for (number, segment) in path.iter().enumerate() {
        let mut next = at.clone();
        next.push(segment.clone());
        if modules.contains_key(&next) {
            at = next;
            continue;
        }
        let exported = modules.get(&at).and_then(|names| names.exports.get(segment)).filter(|_| depth < 6);
        let Some(source) = exported.and_then(|exported| absolute(modules, &at, exported)) else { break };
        return resolve(modules, &[&source, &path[number + 1..]].concat(), depth + 1);
    }
    at
}

type Graph = BTreeMap<Module, BTreeSet<Module>>;

fn graph() -> Graph {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    files(&top, &mut found);
    let mut modules = BTreeMap::new();
    for path in found {
        let below = path.strip_prefix(&top).unwrap().with_extension("");
        if is_test(&below) {
            continue;
        }
        let mut module: Module = below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        module.pop_if(|last| last == "mod" || last == "lib" || last == "main");
        modules.insert(module, names(&shipped(&fs::read_to_string(&path).unwrap())));
    }
    let mut graph = Graph::new();
    for (module, names) in &modules {
        let paths = names.paths.iter().filter_map(|path| absolute(&modules, module, path));
        let targets = paths.map(|path| resolve(&modules, &path, 0));
        let room = module.first();
        let inside = targets.filter(|target| target != module && target.first() == room && room.is_some());
        graph.insert(module.clone(), inside.collect());
    }
    graph
}

/// Everything that a module leads to.
fn reached<'a>(graph: &'a Graph, from: &'a Module) -> BTreeSet<&'a Module> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        for next in graph.get(module).into_iter().flatten() {
            if reached.insert(next) {
                open.push(next);
            }
        }
    }
    reached
}

fn circles(graph: &Graph) -> Vec<Vec<&Module>> {
    let all: BTreeMap<_, _> = graph.keys().map(|module| (module, reached(graph, module))).collect();
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for (module, reached) in &all {
        if !reached.contains(module) || seen.contains(module) {
            continue;
        }
        let circle: Vec<&Module> =
            reached.iter().copied().filter(|other| all.get(*other).is_some_and(|back| back.contains(module))).collect();
        seen.extend(circle.iter().copied());
        circles.push(circle);
    }
    circles
}

#[test]
fn paths_are_followed_as_the_compiler_follows_them() {
    let text = "use super::b::{self, c::{D, E as F}}; pub use self::x::Y; fn f() { crate::a::g(); }";
    let names = names(text);
    let written: Vec<String> = names.paths.iter().map(|path| path.join("::")).collect();
    assert_eq!(written, ["super::b::self", "super::b::c::D", "super::b::c::E", "crate::a::g"]);
    assert_eq!(names.exports, BTreeMap::from([("Y".to_owned(), segments("self::x::Y"))]));
    let module = |path: &str| segments(path);
    let modules = BTreeMap::from([
        (module("a"), Names { exports: [("T".to_owned(), segments("self::t::T"))].into(), ..Names::default() }),
        (module("a::t"), Names::default()),
        (module("a::u"), Names::default()),
    ]);
    let of = |path: &str| absolute(&modules, &module("a::u"), &segments(path)).map(|path| resolve(&modules, &path, 0));
    assert_eq!(of("super::T::new"), Some(module("a::t")), "through what a exports");
    assert_eq!(of("super::t::T"), Some(module("a::t")));
    assert_eq!(of("crate::a::f"), Some(module("a")));
    assert_eq!(of("std::fmt"), None);
}

#[test]
fn no_circle_of_files_is_larger_than_six() {
    let graph = graph();
    let circles = circles(&graph);
    // The test itself: some there are.
    assert!(circles.iter().any(|circle| circle.len() > 1));
    let large = circles.into_iter().filter(|circle| circle.len() > LIMIT);
    let large: Vec<String> =
        large.map(|circle| circle.iter().map(|module| module.join("/")).collect::<Vec<_>>().join(", ")).collect();
    assert!(large.is_empty(), "these import each other in a circle:\n{}", large.join("\n"));
}

/// What each room inside a room imports of the others, with the first module that does.
fn rooms_of(graph: &Graph, room: &str) -> BTreeMap<String, BTreeMap<String, PathBuf>> {
    let mut rooms: BTreeMap<String, BTreeMap<String, PathBuf>> = BTreeMap::new();
    for (module, targets) in graph {
        let [of, own, ..] = module.as_slice() else { continue };
        if of != room {
            continue;
        }
        let imports = rooms.entry(own.clone()).or_default();
        for other in targets.iter().filter_map(|target| target.get(1)).filter(|other| *other != own) {
            imports.entry(other.clone()).or_insert_with(|| module.iter().collect());
        }
    }
    rooms
}

/// A room that has rooms is as its map says; `known` are imports that there are.
fn held(room: &str, text: &str, known: &[(&str, &str)]) {
    let floors = map(text);
    let rooms = rooms_of(&graph(), room);
    assert_eq!(floors.keys().collect::<Vec<_>>(), rooms.keys().collect::<Vec<_>>(), "the map, and what is there");
    // The test itself: some imports there are.
    for (room, other) in known {
        assert!(rooms[*room].contains_key(*other), "{room}");
    }
    let faults = faults(&floors, &rooms);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn rooms_of_the_host_are_as_its_map_says() {
    held("host", include_str!("../host/mod.rs"), &[("reconcile", "lifecycle")]);
}

#[test]
fn rooms_of_the_cluster_are_as_its_map_says() {
    held("cluster", include_str!("../cluster/mod.rs"), &[("core", "contract")]);
}

#[test]
fn rooms_of_releases_are_as_their_map_says() {
    held("release", include_str!("../release/mod.rs"), &[]);
}
