//! Which node of its cluster a machine is. Pure.
//!
//! A node has its machine's provider ID when its kubelet was told so, or somebody set it. Else it is found by the label that its
//! kubelet was given, the UID of its host.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::cluster::infrastructure::names::{LABEL_NODE_HOST, PROVIDER_SCHEME};

/// Label of the name that a node gives itself.
const LABEL_HOSTNAME: &str = "kubernetes.io/hostname";
/// Nodes that a message names.
const NAMED: usize = 5;

/// What a machine's node may be known by.
#[derive(Clone, Copy, Debug)]
pub struct NodeMarks<'a> {
    /// Namespace of machine and host.
    pub namespace: &'a str,
    /// Name of the host.
    pub host: &'a str,
    /// UID of the host.
    pub host_uid: &'a str,
    /// Name of the Metal3Machine.
    pub machine: &'a str,
}

impl NodeMarks<'_> {
    /// The machine's identity at its provider.
    pub fn provider_id(&self) -> String {
        format!("{PROVIDER_SCHEME}{}/{}/{}", self.namespace, self.host, self.machine)
    }

    /// What the identity of any machine on this host begins with.
    fn front(&self) -> String {
        format!("{PROVIDER_SCHEME}{}/{}/", self.namespace, self.host)
    }

    /// The identity as it was of old.
    fn old_id(&self) -> String {
        format!("{PROVIDER_SCHEME}{}", self.host_uid)
    }
}

/// What is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeIdentity {
    /// This node has the machine's identity, in this form.
    Has {
        /// Its name.
        node: String,
        /// What it has.
        provider_id: String,
    },
    /// This node is the machine, and has no identity yet.
    Lacks {
        /// Its name.
        node: String,
    },
    /// There is none yet.
    Missing,
    /// It cannot be said, and why.
    Unclear(String),
}

fn id(node: &Node) -> Option<&str> {
    node.spec.as_ref()?.provider_id.as_deref().filter(|id| !id.is_empty())
}

impl NodeMarks<'_> {
    fn is_labelled(&self, node: &Node) -> bool {
        !self.host_uid.is_empty() && node.labels().get(LABEL_NODE_HOST).is_some_and(|uid| uid == self.host_uid)
    }

    /// Whether a node has the identity of a machine that had the host before.
    fn is_formers(&self, node: &Node) -> bool {
        id(node).is_some_and(|id| id.starts_with(&self.front()) && id != self.provider_id())
    }
}

/// The nodes of the host, whichever machine's: before it runs anything, all of them are of machines that had it before.
pub fn of_host<'n>(marks: &NodeMarks<'_>, nodes: &[&'n Node]) -> Vec<&'n Node> {
    let (front, old) = (marks.front(), marks.old_id());
    let is = |node: &Node| {
        id(node).is_some_and(|id| id.starts_with(&front) || (id == old && !marks.host_uid.is_empty()))
            || (id(node).is_none() && marks.is_labelled(node))
    };
    nodes.iter().copied().filter(|node| is(node)).collect()
}

/// Nodes of machines that had the host before, and that are not ready: whatever runs on the host now is none of them.
pub fn left_behind<'n>(marks: &NodeMarks<'_>, nodes: &[&'n Node]) -> Vec<&'n Node> {
    let is_ready = |node: &Node| {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True")
    };
    nodes.iter().copied().filter(|node| marks.is_formers(node) && !is_ready(node)).collect()
}

/// Finds the machine's node among all. Nodes of machines that had the host before do not count.
pub fn identify(marks: &NodeMarks<'_>, nodes: &[&Node]) -> NodeIdentity {
    let (wanted, old) = (marks.provider_id(), marks.old_id());
    let is_its = |node: &Node| id(node).is_some_and(|id| id == wanted || (id == old && !marks.host_uid.is_empty()));
    let its: Vec<&Node> = nodes.iter().copied().filter(|node| is_its(node)).collect();
    match its.as_slice() {
        [] => {}
        [node] => {
            let provider_id = id(node).unwrap_or_default().to_owned();
            return NodeIdentity::Has { node: node.name_any(), provider_id };
        }
        several => {
            let (host, list) = (marks.host, list(several));
            return NodeIdentity::Unclear(format!("several nodes have a provider ID of host {host}: {list}"));
        }
    }
    let (formers, labelled): (Vec<&Node>, Vec<&Node>) =
        nodes.iter().copied().filter(|node| marks.is_labelled(node)).partition(|node| marks.is_formers(node));
    match labelled.as_slice() {
        // It has the name of a node that was, and a node's identity cannot be changed.
        [] if !formers.is_empty() => NodeIdentity::Unclear(format!(
            "the node {} has the provider ID of a machine that had the host before: delete it, and have its kubelet \
             register anew",
            list(&formers)
        )),
        [] => NodeIdentity::Missing,
        [node] => match id(node) {
            None => NodeIdentity::Lacks { node: node.name_any() },
            Some(other) => {
                let other: String = other.chars().take(200).collect();
                let name = node.name_any();
                NodeIdentity::Unclear(format!("node {name} has the provider ID {other:?}, and should have {wanted:?}"))
            }
        },
        several => {
            let what = format!("{LABEL_NODE_HOST}={}", marks.host_uid);
            NodeIdentity::Unclear(format!("several nodes have the label {what}: {}", list(several)))
        }
    }
}

/// Finds the machine's node by the name that it gives itself, for machines whose user data nobody here made.
pub fn by_name(marks: &NodeMarks<'_>, names: &BTreeSet<&str>, nodes: &[&Node]) -> NodeIdentity {
    let named: Vec<&Node> = nodes
        .iter()
        .copied()
        .filter(|node| node.labels().get(LABEL_HOSTNAME).is_some_and(|name| names.contains(name.as_str())))
        .collect();
    match named.as_slice() {
        [] => NodeIdentity::Missing,
        [node] => match id(node) {
            None => NodeIdentity::Lacks { node: node.name_any() },
            Some(provider_id) if provider_id == marks.provider_id() => {
                NodeIdentity::Has { node: node.name_any(), provider_id: provider_id.to_owned() }
            }
            Some(_) => NodeIdentity::Unclear(format!("node {} has another provider ID", node.name_any())),
        },
        several => NodeIdentity::Unclear(format!("several nodes have the machine's host name: {}", list(several))),
    }
}

fn list(nodes: &[&Node]) -> String {
    let mut names: Vec<String> = nodes.iter().map(|node| node.name_any()).collect();
    names.sort();
    names.truncate(NAMED);
    let more = if nodes.len() > NAMED { ", …" } else { "" };
    format!("{}{more}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MARKS: NodeMarks<'_> = NodeMarks { namespace: "rack", host: "h", host_uid: "uid-1", machine: "m" };

    fn node(name: &str, provider_id: Option<&str>, labels: &[(&str, &str)]) -> Node {
        let labels: std::collections::BTreeMap<_, _> = labels.iter().copied().collect();
        serde_json::from_value(
            json!({"metadata": {"name": name, "labels": labels}, "spec": {"providerID": provider_id}}),
        )
        .expect("a node")
    }

    #[test]
    fn a_node_is_known_by_its_provider_id_or_its_label() {
        let labelled = |name: &str, id: Option<&str>| node(name, id, &[(LABEL_NODE_HOST, "uid-1")]);
        let former = || labelled("o", Some("metal3://rack/h/before"));
        let has = |provider_id: &str| NodeIdentity::Has { node: "n".into(), provider_id: provider_id.into() };
        let rows: Vec<(Vec<Node>, NodeIdentity)> = vec![
            (vec![], NodeIdentity::Missing),
            (vec![node("x", Some("metal3://rack/other/m"), &[])], NodeIdentity::Missing),
            (vec![node("n", Some("metal3://rack/h/m"), &[])], has("metal3://rack/h/m")),
            (vec![node("n", Some("metal3://uid-1"), &[])], has("metal3://uid-1")),
            (vec![labelled("n", None)], NodeIdentity::Lacks { node: "n".into() }),
            (vec![labelled("n", Some(""))], NodeIdentity::Lacks { node: "n".into() }),
            // A machine that had the host before left its node.
            (vec![node("n", Some("metal3://rack/h/m"), &[]), former()], has("metal3://rack/h/m")),
            (vec![labelled("n", None), former()], NodeIdentity::Lacks { node: "n".into() }),
            (vec![node("o", Some("metal3://rack/h/before"), &[])], NodeIdentity::Missing),
        ];
        for (nodes, wanted) in rows {
            assert_eq!(identify(&MARKS, &nodes.iter().collect::<Vec<_>>()), wanted);
        }
        let rows: Vec<(Vec<Node>, &str)> = vec![
            (vec![labelled("n", None), labelled("o", None)], "several nodes have the label metal3.io/uuid=uid-1: n, o"),
            (vec![labelled("n", Some("aws://x"))], "node n has the provider ID \"aws://x\""),
            (
                vec![node("n", Some("metal3://rack/h/m"), &[]), node("o", Some("metal3://uid-1"), &[])],
                "several nodes have a provider ID of host h: n, o",
            ),
            (
                vec![labelled("n", Some("metal3://rack/h/before"))],
                "the node n has the provider ID of a machine that had",
            ),
        ];
        for (nodes, said) in rows {
            let NodeIdentity::Unclear(reason) = identify(&MARKS, &nodes.iter().collect::<Vec<_>>()) else {
                panic!("{said}")
            };
            assert!(reason.starts_with(said), "{reason}");
        }
        let nobody = NodeMarks { host_uid: "", ..MARKS };
        assert_eq!(
            identify(&nobody, &[&node("n", Some("metal3://"), &[(LABEL_NODE_HOST, "")])]),
            NodeIdentity::Missing
        );
    }

    #[test]
    fn nodes_of_machines_that_were_are_told_from_those_that_run() {
        let ready = |mut node: Node| {
            let conditions = json!({"conditions": [{"type": "Ready", "status": "True"}]});
            node.status = serde_json::from_value(conditions).expect("a status");
            node
        };
        let labels = [(LABEL_NODE_HOST, "uid-1")];
        let all = [
            node("own", Some("metal3://rack/h/m"), &labels),
            node("former", Some("metal3://rack/h/before"), &[]),
            ready(node("runs", Some("metal3://rack/h/before"), &[])),
            node("old", Some("metal3://uid-1"), &[]),
            node("nameless", None, &labels),
            node("cloud", Some("aws://x"), &labels),
            node("other", Some("metal3://rack/h2/m"), &[]),
        ];
        let all: Vec<&Node> = all.iter().collect();
        let names = |nodes: Vec<&Node>| nodes.iter().map(|node| node.name_any()).collect::<Vec<_>>();
        assert_eq!(names(left_behind(&MARKS, &all)), ["former"]);
        assert_eq!(names(of_host(&MARKS, &all)), ["own", "former", "runs", "old", "nameless"]);
    }

    #[test]
    fn a_node_is_known_by_its_name_where_there_is_nothing_else() {
        let named = |name: &str, id: Option<&str>| node(name, id, &[(LABEL_HOSTNAME, "host-1")]);
        let names = BTreeSet::from(["host-1"]);
        assert_eq!(by_name(&MARKS, &names, &[&named("n", None)]), NodeIdentity::Lacks { node: "n".into() });
        let has = NodeIdentity::Has { node: "n".into(), provider_id: "metal3://rack/h/m".into() };
        assert_eq!(by_name(&MARKS, &names, &[&named("n", Some("metal3://rack/h/m"))]), has);
        assert_eq!(by_name(&MARKS, &names, &[&node("n", None, &[])]), NodeIdentity::Missing);
        assert!(matches!(by_name(&MARKS, &names, &[&named("n", Some("x"))]), NodeIdentity::Unclear(_)));
        assert!(matches!(by_name(&MARKS, &names, &[&named("n", None), &named("o", None)]), NodeIdentity::Unclear(_)));
    }
}
