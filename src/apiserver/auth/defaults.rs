//! Default roles and bindings: those of upstream's bootstrap policy that mean something here.
//!
//! Every start adds what of them is missing; what was added to them stays. An object whose annotation
//! `rbac.authorization.kubernetes.io/autoupdate` is `false` is left alone.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::index::{self, GROUP};
use super::rules::{self, PolicyRule};
use crate::api::StoragePolicy;
use crate::apiserver::kinds::registry::ResourceRegistry;
use crate::apiserver::objects::selectors::selects;

/// Annotation: whether a start completes the object.
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
/// Label of everything that is made here.
const BOOTSTRAPPING: &str = "kubernetes.io/bootstrapping";
const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];

/// One default: plural and object.
pub type Seed = (&'static str, Value);

fn rule(verbs: &[&str], group: &str, resources: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

fn paths(paths: &[&str]) -> Value {
    json!({"nonResourceURLs": paths, "verbs": ["get"]})
}

fn meta(name: &str, labels: &[&str]) -> Value {
    let mut all = Map::from_iter([(BOOTSTRAPPING.to_owned(), Value::from("rbac-defaults"))]);
    all.extend(labels.iter().map(|to| (format!("{AGGREGATE}{to}"), "true".into())));
    json!({"name": name, "labels": all, "annotations": {AUTOUPDATE: "true"}})
}

fn role(name: &str, labels: &[&str], rules: Vec<Value>) -> Seed {
    let role = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole", "metadata": meta(name, labels), "rules": rules,
    });
    ("clusterroles", role)
}

fn aggregated(name: &str, labels: &[&str]) -> Seed {
    let (plural, mut role) = role(name, labels, Vec::new());
    role["aggregationRule"] =
        json!({"clusterRoleSelectors": [{"matchLabels": {format!("{AGGREGATE}{name}"): "true"}}]});
    (plural, role)
}

fn binding(name: &str, groups: &[&str]) -> Seed {
    let subjects: Vec<Value> =
        groups.iter().map(|group| json!({"kind": "Group", "apiGroup": GROUP, "name": group})).collect();
    let binding = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRoleBinding", "metadata": meta(name, &[]),
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name}, "subjects": subjects,
    });
    ("clusterrolebindings", binding)
}

/// Groups and plurals of kinds in which secrets may stand, so that who may only view does not read them: the token by which a machine
/// joins its cluster, parameters of scripts, what scripts print, and values of charts.
const HOLDS_SECRETS: &[(&str, &str)] = &[
    ("bootstrap.cluster.x-k8s.io", "kubeadmconfigs"),
    ("lcm.mirantis.com", "helmbundles"),
    ("lcm.mirantis.com", "lcmclusters"),
    ("lcm.mirantis.com", "lcmmachines"),
];

/// Every default for the kinds of a registry: Slipway's own kinds are in `view`, `edit` and `admin`.
pub fn all(registry: &ResourceRegistry) -> Vec<Seed> {
    use super::kinds::{AUTHENTICATION, AUTHORIZATION};
    let mut view = vec![
        rule(READ, "", &["configmaps", "events", "namespaces", "serviceaccounts"]),
        rule(READ, "events.k8s.io", &["events"]),
        // As upstream lets viewers read the logs of pods.
        rule(&["get"], "metal3.io", &["baremetalhosts/log"]),
    ];
    let mut edit = vec![
        rule(WRITE, "", &["configmaps", "events", "secrets", "serviceaccounts"]),
        rule(READ, "", &["secrets"]),
        rule(&["impersonate"], "", &["serviceaccounts"]),
        rule(&["create"], "", &["serviceaccounts/token"]),
        rule(WRITE, "events.k8s.io", &["events"]),
        rule(&[READ, WRITE].concat(), "coordination.k8s.io", &["leases"]),
        // With whatever a playbook prints, which may be a secret of the cluster.
        rule(&["get"], "bpa.akraino.org", &["provisionings/log", "softwares/log"]),
        // Images are of the whole cluster: a binding in a namespace gives nothing of it.
        rule(&["get", "create"], "slipway.dev", &["images/upload"]),
    ];
    for resource in registry.stored().filter(|resource| !resource.core) {
        let (group, plural) = (resource.group.as_str(), resource.plural.as_str());
        let status = format!("{plural}/status");
        let both = [plural, status.as_str()];
        let reads = rule(READ, group, if resource.status { &both } else { &both[..1] });
        if HOLDS_SECRETS.contains(&(group, plural)) {
            edit.push(reads)
        } else {
            view.push(reads)
        }
        match resource.policy {
            StoragePolicy::Durable => edit.push(rule(WRITE, group, &[plural])),
            StoragePolicy::Administrative | StoragePolicy::Internal | StoragePolicy::View | StoragePolicy::Review => {}
        }
    }
    let discovery = [
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
        "/healthz",
        "/livez",
        "/openapi",
        "/openapi/*",
        "/readyz",
        "/version",
        "/version/",
    ];
    let public = ["/healthz", "/livez", "/readyz", "/version", "/version/"];
    let monitoring = ["/healthz", "/healthz/*", "/livez", "/livez/*", "/metrics", "/metrics/*", "/readyz", "/readyz/*"];
    let issuer = [
        "/.well-known/openid-configuration",
        "/.well-known/openid-configuration/",
        "/openid/v1/jwks",
        "/openid/v1/jwks/",
    ];
    let admin = vec![
        rule(&["create"], AUTHORIZATION, &["localsubjectaccessreviews"]),
        rule(&[READ, WRITE].concat(), GROUP, &["rolebindings", "roles"]),
    ];
    vec![
        role("cluster-admin", &[], vec![rule(&["*"], "*", &["*"]), json!({"nonResourceURLs": ["*"], "verbs": ["*"]})]),
        aggregated("admin", &[]),
        aggregated("edit", &["admin"]),
        aggregated("view", &["edit"]),
        role("system:aggregate-to-admin", &["admin"], admin),
        role("system:aggregate-to-edit", &["edit"], edit),
        role("system:aggregate-to-view", &["view"], view),
        role("system:discovery", &[], vec![paths(&discovery)]),
        role("system:public-info-viewer", &[], vec![paths(&public)]),
        role("system:monitoring", &[], vec![paths(&monitoring)]),
        role("system:service-account-issuer-discovery", &[], vec![paths(&issuer)]),
        role(
            "system:basic-user",
            &[],
            vec![
                rule(&["create"], AUTHORIZATION, &["selfsubjectaccessreviews", "selfsubjectrulesreviews"]),
                rule(&["create"], AUTHENTICATION, &["selfsubjectreviews"]),
            ],
        ),
        role(
            "system:auth-delegator",
            &[],
            vec![
                rule(&["create"], AUTHENTICATION, &["tokenreviews"]),
                rule(&["create"], AUTHORIZATION, &["subjectaccessreviews"]),
            ],
        ),
        // Groups as Mirantis Container Cloud names them; those of a namespace are bound with its clusters.
        role(
            "m:kaas@global-admin",
            &[],
            vec![
                rule(&["get", "list", "watch", "create", "delete"], "", &["namespaces"]),
                rule(READ, "iam.mirantis.com", &["scopes"]),
                rule(READ, GROUP, &["clusterrolebindings", "clusterroles", "rolebindings", "roles"]),
            ],
        ),
        role(
            "m:kaas@management-admin",
            &[],
            vec![rule(&[READ, WRITE].concat(), "kaas.mirantis.com", &["clusterreleases", "kaasreleases"])],
        ),
        binding("m:kaas@global-admin", &["m:kaas@global-admin"]),
        binding("m:kaas@management-admin", &["m:kaas@management-admin"]),
        binding("cluster-admin", &["system:masters"]),
        binding("system:discovery", &["system:authenticated"]),
        binding("system:basic-user", &["system:authenticated"]),
        binding("system:public-info-viewer", &["system:authenticated", "system:unauthenticated"]),
        binding("system:monitoring", &["system:monitoring"]),
        binding("system:service-account-issuer-discovery", &["system:serviceaccounts"]),
    ]
}

/// An object that a start finds, completed by its default; `None` when nothing is missing, or it wants none.
/// A binding to another role cannot be completed and stays.
pub fn complete(found: &Value, default: &Value) -> Option<Value> {
    if found["metadata"]["annotations"][AUTOUPDATE] == "false" {
        return None;
    }
    let mut new = found.clone();
    for map in ["labels", "annotations"] {
        for (key, value) in default["metadata"][map].as_object().into_iter().flatten() {
            if new["metadata"][map].get(key).is_none() {
                new["metadata"][map][key] = value.clone();
            }
        }
    }
    if default.get("roleRef").is_some() {
        let have = index::subjects_of(found);
        let wanted = index::subjects_of(default);
        if found["roleRef"]["name"] == default["roleRef"]["name"] {
            let missing = wanted.iter().zip(default["subjects"].as_array().into_iter().flatten());
            let missing: Vec<Value> =
                missing.filter(|(subject, _)| !have.contains(subject)).map(|(_, value)| value.clone()).collect();
            extend(&mut new["subjects"], missing);
        }
    } else if default.get("aggregationRule").is_some() {
        if new.get("aggregationRule").is_none() {
            new["aggregationRule"] = default["aggregationRule"].clone();
        }
    } else {
        let missing: Vec<PolicyRule> = rules::additions(index::rules_of(found), &index::rules_of(default));
        extend(&mut new["rules"], missing.into_iter().map(|rule| json!(rule)).collect());
    }
    (new != *found).then_some(new)
}

fn extend(list: &mut Value, more: Vec<Value>) {
    if more.is_empty() {
        return;
    }
    match list {
        Value::Array(entries) => entries.extend(more),
        other => *other = more.into(),
    }
}

/// Rules that an aggregating role should have: those of the other roles that its selectors choose, in order of name.
/// `None` when it has them.
pub fn aggregate(role: &Value, others: &[&Value]) -> Option<Value> {
    let selectors = role["aggregationRule"]["clusterRoleSelectors"].as_array()?;
    let mut rules: Vec<&Value> = Vec::new();
    let mut known = HashSet::new();
    for selector in selectors {
        for other in others.iter().filter(|other| other["metadata"]["name"] != role["metadata"]["name"]) {
            if !selects(selector, &other["metadata"]["labels"]) {
                continue;
            }
            for rule in other["rules"].as_array().into_iter().flatten() {
                if known.insert(rule) {
                    rules.push(rule);
                }
            }
        }
    }
    let rules: Value = rules.into_iter().cloned().collect();
    (role["rules"] != rules && !(role["rules"].is_null() && rules == json!([]))).then_some(rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::auth::compiled::CompiledRule;

    #[test]
    fn viewers_see_our_kinds_and_no_secrets() {
        let registry = crate::apiserver::kinds::built_in::registry(&crate::modules::kinds()).unwrap();
        let all = all(&registry);
        let rules = |name: &str| {
            let (_, role) =
                all.iter().find(|(plural, one)| *plural == "clusterroles" && one["metadata"]["name"] == name).unwrap();
            index::rules_of(role)
        };
        let allows = |rules: &[PolicyRule], verb, group, resource| {
            let wanted = rules::Attributes { verb, group, resource, ..Default::default() };
            rules.iter().cloned().map(CompiledRule::from).any(|rule| rule.allows(&wanted))
        };
        let (view, edit) = (rules("system:aggregate-to-view"), rules("system:aggregate-to-edit"));
        for (verb, group, resource, viewer, editor) in [
            ("list", "metal3.io", "baremetalhosts", true, false),
            ("delete", "metal3.io", "baremetalhosts", false, true),
            ("watch", "slipway.dev", "dhcpleases", true, false),
            ("update", "slipway.dev", "dhcpleases", false, false),
            ("update", "slipway.dev", "bootintents", false, false),
            ("watch", "slipway.dev", "reservations", true, false),
            ("create", "slipway.dev", "reservations", false, false),
            ("get", "slipway.dev", "networks", true, false),
            ("create", "slipway.dev", "networks", false, false),
            ("patch", "slipway.dev", "networks", false, false),
            ("delete", "slipway.dev", "networks", false, false),
            ("get", "", "secrets", false, true),
            ("get", "bootstrap.cluster.x-k8s.io", "kubeadmconfigs", false, true),
            ("get", "bootstrap.cluster.x-k8s.io", "kubeadmconfigtemplates", true, false),
            ("get", "lcm.mirantis.com", "lcmmachines", false, true),
            ("get", "lcm.mirantis.com", "lcmmachines/deployment", false, false),
            ("patch", "lcm.mirantis.com", "lcmmachines", false, false),
            ("patch", "lcm.mirantis.com", "lcmmachines/status", false, false),
            ("delete", "lcm.mirantis.com", "lcmmachines", false, false),
            ("deletecollection", "lcm.mirantis.com", "lcmmachines", false, false),
            ("update", "lcm.mirantis.com", "lcmclusters", false, false),
            ("update", "lcm.mirantis.com", "lcmclusters/status", false, false),
            ("get", "lcm.mirantis.com", "lcmclusterstates", true, false),
            ("create", "lcm.mirantis.com", "lcmclusterstates", false, false),
            ("get", GROUP, "roles", false, false),
            ("create", GROUP, "rolebindings", false, false),
        ] {
            assert_eq!(allows(&view, verb, group, resource), viewer, "view: {verb} {resource}");
            assert_eq!(allows(&edit, verb, group, resource), editor, "edit: {verb} {resource}");
        }
    }

    #[test]
    fn a_start_adds_what_is_missing_and_takes_nothing() {
        let (_, default) = role("r", &["view"], vec![rule(READ, "", &["configmaps"])]);
        assert_eq!(complete(&default, &default), None);
        let mut found = default.clone();
        found["rules"] = json!([rule(&["get", "delete"], "", &["configmaps"])]);
        found["metadata"]["labels"] = json!({"own": "x"});
        let completed = complete(&found, &default).unwrap();
        assert_eq!(completed["metadata"]["labels"]["own"], "x");
        assert_eq!(completed["metadata"]["labels"][BOOTSTRAPPING], "rbac-defaults");
        assert_eq!(completed["rules"][0], found["rules"][0]);
        assert_eq!(completed["rules"][1], rule(&["list", "watch"], "", &["configmaps"]));
        assert_eq!(complete(&completed, &default), None);
        found["metadata"]["annotations"][AUTOUPDATE] = "false".into();
        assert_eq!(complete(&found, &default), None);

        let (_, default) = binding("b", &["a", "b"]);
        let mut found = default.clone();
        found["subjects"] = json!([{"kind": "User", "apiGroup": GROUP, "name": "eve"}, default["subjects"][0]]);
        let completed = complete(&found, &default).unwrap();
        assert_eq!(completed["subjects"].as_array().unwrap().len(), 3);
        found["roleRef"]["name"] = "other".into();
        assert_eq!(complete(&found, &default), None);
    }

    #[test]
    fn aggregating_roles_take_the_rules_of_those_they_choose() {
        let labelled = |name: &str, labels: Value, verb: &str| json!({"metadata": {"name": name, "labels": labels}, "rules": [rule(&[verb], "", &["x"])]});
        let (a, b) = (labelled("a", json!({"t": "1"}), "get"), labelled("b", json!({"t": "2", "u": ""}), "list"));
        let role = |selectors: Value| json!({"metadata": {"name": "r"}, "aggregationRule": {"clusterRoleSelectors": selectors}});
        let verbs = |selectors: Value| {
            let rules = aggregate(&role(selectors), &[&a, &b]).unwrap_or_default();
            rules
                .as_array()
                .into_iter()
                .flatten()
                .map(|rule| rule["verbs"][0].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        let expression = |operator: &str, values: Value| json!([{"matchExpressions": [{"key": "t", "operator": operator, "values": values}]}]);
        assert_eq!(verbs(json!([{"matchLabels": {"t": "1"}}])), ["get"]);
        assert_eq!(verbs(json!([{"matchLabels": {"t": "2"}}, {"matchLabels": {"t": "1"}}])), ["list", "get"]);
        assert_eq!(verbs(expression("In", json!(["1", "2"]))), ["get", "list"]);
        assert_eq!(verbs(expression("NotIn", json!(["1"]))), ["list"]);
        assert_eq!(verbs(json!([{"matchExpressions": [{"key": "u", "operator": "Exists"}]}])), ["list"]);
        assert_eq!(verbs(json!([{"matchExpressions": [{"key": "u", "operator": "DoesNotExist"}]}])), ["get"]);
        assert!(verbs(expression("Odd", json!([]))).is_empty());
        let mut done = role(json!([{"matchLabels": {"t": "1"}}]));
        done["rules"] = a["rules"].clone();
        assert_eq!(aggregate(&done, &[&a, &b]), None);
        assert_eq!(aggregate(&a, &[&b]), None);
    }
}
