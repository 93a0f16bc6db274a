//! Tests of the RBAC index.

use super::*;
use serde_json::json;

fn index() -> RbacIndex {
    let mut index = RbacIndex::default();
    let rules = |verbs: &[&str], resource: &str| json!({"rules": [{"verbs": verbs, "apiGroups": [""], "resources": [resource]}]});
    index.set_role("", "reader", Some(&rules(&["get", "list"], "configmaps")));
    index.set_role("", "paths", Some(&json!({"rules": [{"verbs": ["get"], "nonResourceURLs": ["/metrics"]}]})));
    index.set_role("rack", "keeper", Some(&rules(&["*"], "secrets")));
    let binding = |kind: &str, role: &str, subjects: Value| json!({"roleRef": {"apiGroup": GROUP, "kind": kind, "name": role}, "subjects": subjects});
    let group = json!([{"kind": "Group", "name": "readers"}]);
    index.set_binding("", "all-read", Some(&binding("ClusterRole", "reader", group.clone())));
    index.set_binding("rack", "paths", Some(&binding("ClusterRole", "paths", group)));
    let account = json!([{"kind": "ServiceAccount", "namespace": "ci", "name": "bot"}]);
    index.set_binding("rack", "bot", Some(&binding("Role", "keeper", account)));
    let own = json!([{"kind": "ServiceAccount", "name": "own"}]);
    index.set_binding("rack", "own", Some(&binding("Role", "keeper", own.clone())));
    index.set_binding("", "own", Some(&binding("ClusterRole", "reader", own)));
    let eve = json!([{"kind": "User", "name": "eve"}]);
    index.set_binding("rack", "eve", Some(&binding("ClusterRole", "reader", eve.clone())));
    index.set_binding("rack", "broken", Some(&binding("Role", "none", eve)));
    index
}

#[test]
fn bindings_give_what_they_say_and_where() {
    let index = index();
    let readers = ["readers".to_owned()];
    for (user, groups, verb, namespace, resource, allowed, reason) in [
        (
            "ann",
            &readers[..],
            "get",
            "x",
            "configmaps",
            true,
            "RBAC: allowed by ClusterRoleBinding \"all-read\" of ClusterRole \"reader\" to Group \"readers\"",
        ),
        ("ann", &readers, "list", "", "configmaps", true, ""),
        ("ann", &readers, "delete", "x", "configmaps", false, ""),
        ("ann", &[], "get", "x", "configmaps", false, ""),
        (
            "system:serviceaccount:ci:bot",
            &[],
            "delete",
            "rack",
            "secrets",
            true,
            "RBAC: allowed by RoleBinding \"bot/rack\" of Role \"keeper\" to ServiceAccount \"bot/ci\"",
        ),
        ("system:serviceaccount:ci:bot", &[], "delete", "ci", "secrets", false, ""),
        ("system:serviceaccount:ci:bot", &[], "list", "", "secrets", false, ""),
        ("system:serviceaccount:rack:own", &[], "get", "rack", "secrets", true, ""),
        ("system:serviceaccount:rack:own", &[], "get", "rack", "configmaps", false, ""),
        ("eve", &[], "get", "rack", "configmaps", true, ""),
        ("eve", &[], "get", "", "configmaps", false, ""),
        ("eve", &[], "get", "rack", "secrets", false, "RBAC: role.rbac.authorization.k8s.io \"none\" not found"),
        ("Group", &[], "get", "rack", "configmaps", false, ""),
    ] {
        let wanted = Attributes { verb, namespace, resource, ..Attributes::default() };
        let decision = index.decide(AuthorizedCaller { user, groups }, &wanted);
        assert_eq!(decision.allowed, allowed, "{user} {verb} {namespace}/{resource}");
        if !allowed || !reason.is_empty() {
            assert_eq!(decision.reason, reason);
        }
    }
    // A path is the cluster's, whatever a namespace's binding says.
    let wanted = Attributes { verb: "get", path: "/metrics", ..Attributes::default() };
    assert!(!index.decide(AuthorizedCaller { user: "ann", groups: &readers }, &wanted).allowed);
}

#[test]
fn what_is_taken_out_counts_no_longer() {
    let mut index = index();
    let readers = ["readers".to_owned()];
    let caller = AuthorizedCaller { user: "ann", groups: &readers };
    let wanted = Attributes { verb: "get", namespace: "x", resource: "configmaps", ..Attributes::default() };
    assert_eq!(index.rules(caller, "").0.len(), 1);
    index.set_role("", "reader", None);
    let refused = index.decide(caller, &wanted);
    assert_eq!(refused.reason, "RBAC: clusterrole.rbac.authorization.k8s.io \"reader\" not found");
    index.set_binding("", "all-read", None);
    assert_eq!(index.decide(caller, &wanted), AuthorizationDecision { allowed: false, reason: String::new() });
}

#[test]
fn what_takes_long_is_known_before_it_is_done() {
    let mut index = RbacIndex::default();
    let role = |count: usize| json!({"rules": vec![json!({"verbs": ["get"]}); count]});
    let binding = |role: &str, who: &str| json!({"roleRef": {"kind": "Role", "name": role}, "subjects": [{"kind": "Group", "name": who}]});
    index.set_role("a", "short", Some(&role(LONG - 2)));
    index.set_role("a", "long", Some(&role(LONG - 1)));
    for (name, role, who) in
        [("a", "short", "one"), ("b", "long", "two"), ("c", "none", "three"), ("d", "short", "four")]
    {
        index.set_binding("a", name, Some(&binding(role, who)));
    }
    for (groups, namespace, wanted) in [
        (&["one"][..], "a", false),
        (&["two"], "a", true),
        (&["two"], "b", false),
        (&["one", "three"], "a", true),
        (&["one", "one"], "a", false),
        (&["one", "four"], "a", true),
    ] {
        let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        let caller = AuthorizedCaller { user: "eve", groups: &groups };
        assert_eq!(index.is_long(caller, namespace), wanted, "{groups:?} in {namespace}");
    }
    // A stamp is never given twice.
    let before = index.stamp();
    index.set_binding("a", "d", None);
    assert!(index.stamp() > before && RbacIndex::default().stamp() != index.stamp());
}
