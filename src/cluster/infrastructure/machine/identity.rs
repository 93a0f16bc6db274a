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
pub struct Marks<'a> {
    /// Namespace of machine and host.
    pub namespace: &'a str,
    /// Name of the host.
    pub host: &'a str,
    /// UID of the host.
    pub host_uid: &'a str,
    /// Name of the Metal3Machine.
    pub machine: &'a str,
}

impl Marks<'_> {
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
pub enum Identity {
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

/// Finds the machine's node among all.
pub fn identify(marks: &Marks<'_>, nodes: &[&Node]) -> Identity {
    let id = |node: &Node| node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).filter(|id| !id.is_empty());
    let (wanted, old, front) = (marks.provider_id(), marks.old_id(), marks.front());
    let same_host: Vec<&Node> = nodes
        .iter()
        .copied()
        .filter(|node| id(node).is_some_and(|id| id.starts_with(&front) || (id == old && !marks.host_uid.is_empty())))
        .collect();
    if same_host.len() > 1 {
        return Identity::Unclear(format!(
            "several nodes have a provider ID of host {}: {}",
            marks.host,
            list(&same_host)
        ));
    }
    if let Some(node) = same_host.first()
        && let Some(provider_id) = id(node).filter(|id| *id == wanted || *id == old)
    {
        return Identity::Has { node: node.name_any(), provider_id };
    }
    let labelled: Vec<&Node> = nodes
        .iter()
        .copied()
        .filter(|node| {
            !marks.host_uid.is_empty() && node.labels().get(LABEL_NODE_HOST).is_some_and(|uid| uid == marks.host_uid)
        })
        .collect();
    match labelled.as_slice() {
        [] => Identity::Missing,
        [node] => match id(node) {
            None => Identity::Lacks { node: node.name_any() },
            Some(other) => {
                let other: String = other.chars().take(200).collect();
                let name = node.name_any();
                Identity::Unclear(format!("node {name} has the provider ID {other:?}, and should have {wanted:?}"))
            }
        },
        several => {
            let what = format!("{LABEL_NODE_HOST}={}", marks.host_uid);
            Identity::Unclear(format!("several nodes have the label {what}: {}", list(several)))
        }
    }
}

/// Finds the machine's node by the name that it gives itself, for machines whose user data nobody here made.
pub fn by_name(marks: &Marks<'_>, names: &BTreeSet<&str>, nodes: &[&Node]) -> Identity {
    let named: Vec<&Node> = nodes
        .iter()
        .copied()
        .filter(|node| node.labels().get(LABEL_HOSTNAME).is_some_and(|name| names.contains(name.as_str())))
        .collect();
    match named.as_slice() {
        [] => Identity::Missing,
        [node] => match node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).filter(|id| !id.is_empty()) {
            None => Identity::Lacks { node: node.name_any() },
            Some(provider_id) if provider_id == marks.provider_id() => {
                Identity::Has { node: node.name_any(), provider_id }
            }
            Some(_) => Identity::Unclear(format!("node {} has another provider ID", node.name_any())),
        },
        several => Identity::Unclear(format!("several nodes have the machine's host name: {}", list(several))),
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

    const MARKS: Marks<'_> = Marks { namespace: "rack", host: "h", host_uid: "uid-1", machine: "m" };

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
        let has = |provider_id: &str| Identity::Has { node: "n".into(), provider_id: provider_id.into() };
        let rows: Vec<(Vec<Node>, Identity)> = vec![
            (vec![], Identity::Missing),
            (vec![node("x", Some("metal3://rack/other/m"), &[])], Identity::Missing),
            (vec![node("n", Some("metal3://rack/h/m"), &[])], has("metal3://rack/h/m")),
            (vec![node("n", Some("metal3://uid-1"), &[])], has("metal3://uid-1")),
            (vec![labelled("n", None)], Identity::Lacks { node: "n".into() }),
            (vec![labelled("n", Some(""))], Identity::Lacks { node: "n".into() }),
        ];
        for (nodes, wanted) in rows {
            assert_eq!(identify(&MARKS, &nodes.iter().collect::<Vec<_>>()), wanted);
        }
        let rows: Vec<(Vec<Node>, &str)> = vec![
            (vec![labelled("n", None), labelled("o", None)], "several nodes have the label metal3.io/uuid=uid-1: n, o"),
            (vec![labelled("n", Some("aws://x"))], "node n has the provider ID \"aws://x\""),
            // A machine that had the host before left its node.
            (
                vec![node("n", Some("metal3://rack/h/m"), &[]), node("o", Some("metal3://rack/h/before"), &[])],
                "several nodes have a provider ID of host h: n, o",
            ),
        ];
        for (nodes, said) in rows {
            let Identity::Unclear(why) = identify(&MARKS, &nodes.iter().collect::<Vec<_>>()) else { panic!("{said}") };
            assert!(why.starts_with(said), "{why}");
        }
        let nobody = Marks { host_uid: "", ..MARKS };
        assert_eq!(identify(&nobody, &[&node("n", Some("metal3://"), &[(LABEL_NODE_HOST, "")])]), Identity::Missing);
    }

    #[test]
    fn a_node_is_known_by_its_name_where_there_is_nothing_else() {
        let named = |name: &str, id: Option<&str>| node(name, id, &[(LABEL_HOSTNAME, "host-1")]);
        let names = BTreeSet::from(["host-1"]);
        assert_eq!(by_name(&MARKS, &names, &[&named("n", None)]), Identity::Lacks { node: "n".into() });
        let has = Identity::Has { node: "n".into(), provider_id: "metal3://rack/h/m".into() };
        assert_eq!(by_name(&MARKS, &names, &[&named("n", Some("metal3://rack/h/m"))]), has);
        assert_eq!(by_name(&MARKS, &names, &[&node("n", None, &[])]), Identity::Missing);
        assert!(matches!(by_name(&MARKS, &names, &[&named("n", Some("x"))]), Identity::Unclear(_)));
        assert!(matches!(by_name(&MARKS, &names, &[&named("n", None), &named("o", None)]), Identity::Unclear(_)));
    }
}
