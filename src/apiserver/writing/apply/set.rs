//! Sets of field paths, and their JSON form `fieldsV1` (KEP-555).

use std::cmp::Ordering;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use serde_json::{Map, Value};

use super::element::Element;

/// Most steps in a set that is read.
const NODES_MAX: usize = 100_000;

/// A set of field paths: a tree whose nodes are sorted. A node is there because its own path is a member or because a
/// longer one is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    nodes: Vec<FieldNode>,
}

/// One step with what is below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldNode {
    /// The step.
    pub element: Element,
    /// Whether the path that ends here is a member.
    pub member: bool,
    /// Longer paths.
    pub below: Set,
}

impl Set {
    /// Whether no path is in it.
    pub fn is_empty(&self) -> bool {
        self.nodes.iter().all(|node| !node.member && node.below.is_empty())
    }

    /// The first steps, sorted.
    pub fn nodes(&self) -> &[FieldNode] {
        &self.nodes
    }

    /// A set of paths of field names.
    pub fn of_fields(paths: &[&[&str]]) -> Self {
        let mut set = Self::default();
        for path in paths {
            set.insert(path.iter().map(|name| Element::field(name)));
        }
        set
    }

    /// Adds a path.
    pub fn insert(&mut self, path: impl IntoIterator<Item = Element>) {
        let mut set = self;
        let mut path = path.into_iter().peekable();
        while let Some(element) = path.next() {
            let node = set.descend(element);
            if path.peek().is_none() {
                node.member = true;
                return;
            }
            set = &mut node.below;
        }
    }

    /// Adds a node unless it says nothing. The order is restored by [`Set::sort`].
    pub fn push(&mut self, element: Element, member: bool, below: Self) {
        if member || !below.nodes.is_empty() {
            self.nodes.push(FieldNode { element, member, below });
        }
    }

    /// Sorts nodes that were pushed out of order.
    pub fn sort(&mut self) {
        self.nodes.sort_by(|a, b| a.element.cmp(&b.element));
    }

    fn find(&self, element: &Element) -> Result<usize, usize> {
        self.nodes.binary_search_by(|node| node.element.cmp(element))
    }

    fn descend(&mut self, element: Element) -> &mut FieldNode {
        let at = match self.find(&element) {
            Ok(at) => at,
            Err(at) => {
                self.nodes.insert(at, FieldNode { element, member: false, below: Self::default() });
                at
            }
        };
        &mut self.nodes[at]
    }

    /// The node of a first step.
    pub fn node(&self, element: &Element) -> Option<&FieldNode> {
        self.find(element).ok().and_then(|at| self.nodes.get(at))
    }

    /// Whether a path is a member.
    pub fn has(&self, path: &[Element]) -> bool {
        match path {
            [] => false,
            [last] => self.node(last).is_some_and(|node| node.member),
            [first, rest @ ..] => self.node(first).is_some_and(|node| node.below.has(rest)),
        }
    }

    /// Whether a path is in both.
    pub fn meets(&self, other: &Self) -> bool {
        zip(&self.nodes, &other.nodes)
            .any(|pair| matches!(pair, (Some(a), Some(b)) if a.member && b.member || a.below.meets(&b.below)))
    }

    /// Whether every path of the other is in this one.
    pub fn covers(&self, other: &Self) -> bool {
        zip(&self.nodes, &other.nodes).all(|pair| match pair {
            (Some(a), Some(b)) => (a.member || !b.member) && a.below.covers(&b.below),
            (None, Some(b)) => !b.member && b.below.is_empty(),
            (_, None) => true,
        })
    }

    /// Paths in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut out = Self { nodes: Vec::with_capacity(self.nodes.len().max(other.nodes.len())) };
        for pair in zip(&self.nodes, &other.nodes) {
            match pair {
                (Some(a), Some(b)) => out.nodes.push(FieldNode {
                    element: a.element.clone(),
                    member: a.member || b.member,
                    below: a.below.union(&b.below),
                }),
                (Some(one), None) | (None, Some(one)) => out.nodes.push(one.clone()),
                (None, None) => {}
            }
        }
        out
    }

    /// Paths in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let mut out = Self::default();
        for pair in zip(&self.nodes, &other.nodes) {
            if let (Some(a), Some(b)) = pair {
                out.push(a.element.clone(), a.member && b.member, a.below.intersection(&b.below));
            }
        }
        out
    }

    /// Paths of this that are not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut out = Self::default();
        for pair in zip(&self.nodes, &other.nodes) {
            match pair {
                (Some(a), Some(b)) => {
                    out.push(a.element.clone(), a.member && !b.member, a.below.difference(&b.below));
                }
                (Some(a), None) => out.nodes.push(a.clone()),
                (None, _) => {}
            }
        }
        out
    }

    /// Paths of this that are neither in the other nor below a path of the other.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let mut out = Self::default();
        for pair in zip(&self.nodes, &other.nodes) {
            match pair {
                (Some(_), Some(b)) if b.member => {}
                (Some(a), Some(b)) => out.push(a.element.clone(), a.member, a.below.without(&b.below)),
                (Some(a), None) => out.nodes.push(a.clone()),
                (None, _) => {}
            }
        }
        out
    }

    /// The same with some more first steps as members; each node's lower part mapped.
    #[must_use]
    pub fn map(&self, mut of: impl FnMut(&FieldNode) -> (bool, Self)) -> Self {
        let mut out = Self { nodes: Vec::with_capacity(self.nodes.len()) };
        for node in &self.nodes {
            let (member, below) = of(node);
            out.push(node.element.clone(), member, below);
        }
        out
    }

    /// Calls with each path: those that end here first, then the longer ones, as upstream lists conflicts.
    pub fn each(&self, mut call: impl FnMut(&[&Element])) {
        self.each_below(&mut Vec::new(), &mut call);
    }

    fn each_below<'s>(&'s self, path: &mut Vec<&'s Element>, call: &mut impl FnMut(&[&Element])) {
        for node in self.nodes.iter().filter(|node| node.member) {
            path.push(&node.element);
            call(path);
            path.pop();
        }
        for node in &self.nodes {
            path.push(&node.element);
            node.below.each_below(path, call);
            path.pop();
        }
    }

    /// `fieldsV1`.
    pub fn to_value(&self) -> Value {
        self.value(false)
    }

    fn value(&self, member: bool) -> Value {
        let mut out = Map::new();
        if member && !self.nodes.is_empty() {
            out.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for node in &self.nodes {
            out.insert(node.element.text(), node.below.value(node.member));
        }
        Value::Object(out)
    }
}

/// Goes through two sorted lists side by side.
fn zip<'s>(
    a: &'s [FieldNode],
    b: &'s [FieldNode],
) -> impl Iterator<Item = (Option<&'s FieldNode>, Option<&'s FieldNode>)> {
    let (mut left, mut right) = (a.iter().peekable(), b.iter().peekable());
    std::iter::from_fn(move || {
        let order = match (left.peek(), right.peek()) {
            (None, None) => return None,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) => a.element.cmp(&b.element),
        };
        Some(match order {
            Ordering::Less => (left.next(), None),
            Ordering::Greater => (None, right.next()),
            Ordering::Equal => (left.next(), right.next()),
        })
    })
}

impl<'de> serde::Deserialize<'de> for Set {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut left = NODES_MAX;
        Ok(FieldSetReader { left: &mut left }.deserialize(deserializer)?.1)
    }
}

/// Reads one level; whether the path that ends here is a member, and what is below.
struct FieldSetReader<'r> {
    left: &'r mut usize,
}

impl<'de> DeserializeSeed<'de> for FieldSetReader<'_> {
    type Value = (bool, Set);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for FieldSetReader<'_> {
    type Value = (bool, Set);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a set of fields")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut set = Set::default();
        let (mut dot, mut sorted) = (false, true);
        while let Some(key) = access.next_key::<std::borrow::Cow<'_, str>>()? {
            if key == "." {
                dot = true;
                access.next_value::<IgnoredAny>()?;
                continue;
            }
            let Some(element) = Element::parse(&key).map_err(A::Error::custom)? else {
                access.next_value::<IgnoredAny>()?;
                continue;
            };
            *self.left = self.left.checked_sub(1).ok_or_else(|| A::Error::custom("too many fields"))?;
            let (member, below) = access.next_value_seed(FieldSetReader { left: &mut *self.left })?;
            sorted &= set.nodes.last().is_none_or(|last| last.element < element);
            set.push(element, member, below);
        }
        if !sorted {
            set.sort();
            set.nodes.dedup_by(|later, first| {
                let twin = later.element == first.element;
                if twin {
                    first.member |= later.member;
                    first.below = first.below.union(&later.below);
                }
                twin
            });
        }
        // A step with nothing below is itself the member.
        Ok((dot || set.nodes.is_empty(), set))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(value: &Value) -> Set {
        serde_json::from_str(&value.to_string()).unwrap()
    }

    fn text(set: &Set) -> String {
        set.to_value().to_string()
    }

    #[test]
    fn fields_v1_is_read_and_written() {
        for same in [
            "{}",
            r#"{"f:data":{"f:a":{}}}"#,
            r#"{"f:metadata":{"f:labels":{".":{},"f:a/b":{}}},"f:spec":{}}"#,
            r#"{"f:list":{"k:{\"type\":\"Ready\"}":{".":{},"f:status":{}},"v:\"x\"":{},"i:1":{}}}"#,
        ] {
            let value: Value = serde_json::from_str(same).unwrap();
            assert_eq!(set(&value).to_value(), value);
        }
        // Order, twins and steps of other kinds do not matter.
        let odd: Set = serde_json::from_str(r#"{"f:b":{},"f:a":{},"f:b":{"f:c":{}},"z:?":{"f:d":{}}}"#).unwrap();
        assert_eq!(text(&odd), r#"{"f:a":{},"f:b":{".":{},"f:c":{}}}"#);
        for bad in ["[]", "1", r#"{"x":{}}"#, r#"{"f:a":1}"#, r#"{"v:{":{}}"#] {
            assert!(serde_json::from_str::<Set>(bad).is_err(), "{bad}");
        }
        let deep = format!("{}{}", r#"{"f:a":"#.repeat(5_000), "}".repeat(5_000));
        assert!(serde_json::from_str::<Set>(&deep).is_err());
        let wide: Vec<String> = (0..=NODES_MAX).map(|n| format!("\"i:{n}\":{{}}")).collect();
        assert!(serde_json::from_str::<Set>(&format!("{{{}}}", wide.join(","))).is_err());
    }

    #[test]
    fn sets_add_and_subtract() {
        let a = set(&json!({"f:a": {".": {}, "f:x": {}, "f:y": {}}, "f:b": {}}));
        let b = set(&json!({"f:a": {"f:x": {}}, "f:c": {}}));
        assert_eq!(a.union(&b), set(&json!({"f:a": {".": {}, "f:x": {}, "f:y": {}}, "f:b": {}, "f:c": {}})));
        assert_eq!(a.intersection(&b), set(&json!({"f:a": {"f:x": {}}})));
        assert_eq!(a.difference(&b), set(&json!({"f:a": {".": {}, "f:y": {}}, "f:b": {}})));
        let all_of_a = set(&json!({"f:a": {}}));
        assert_eq!(b.without(&all_of_a), set(&json!({"f:c": {}})));
        assert_eq!(b.difference(&all_of_a), b);
        assert!(a.difference(&a).is_empty() && a.has(&[Element::field("a"), Element::field("x")]));
        assert!(!a.has(&[Element::field("a"), Element::field("z")]) && !a.has(&[]));
    }

    #[test]
    fn short_paths_are_listed_first() {
        let mut seen = Vec::new();
        set(&json!({"f:a": {"f:x": {}}, "f:b": {}})).each(|path| {
            seen.push(path.iter().map(ToString::to_string).collect::<String>());
        });
        assert_eq!(seen, [".b", ".a.x"]);
    }
}
