//! One webhook of a configuration, and which requests it is asked about. Pure but for the way to it.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::answers::status::shorten;
use super::super::extensions::admission::AdmissionOperation;
use super::super::objects::selectors::selects;
use super::super::schema::cel::condition::{COST_MAX, CelCondition, CelVariables};
use super::endpoint::WebhookEndpoint;

/// Variables of match conditions. `authorizer` is not among them.
pub(super) const VARIABLES: [&str; 3] = ["object", "oldObject", "request"];
/// Seconds that a webhook has unless its configuration says otherwise.
pub(super) const TIMEOUT: u64 = 10;
/// Letters of what is told of conditions that nobody can tell.
const FAULTS_MAX: usize = 4096;

/// A webhook, as its configuration has it.
#[derive(Debug)]
pub(in crate::apiserver) struct Hook {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub endpoint: WebhookEndpoint,
    /// Whether a request fails when it cannot be asked (`failurePolicy: Fail`).
    pub fails: bool,
    /// Whether it may be asked of a dry run.
    pub dry_runs: bool,
    /// Whether it is asked again when others changed the object after it.
    pub reinvoked: bool,
    /// How long it has.
    pub timeout: Duration,
    rules: Vec<RuleWithOperations>,
    equivalent: bool,
    namespaces: Value,
    objects: Value,
    conditions: Vec<MatchCondition>,
}

/// `MatchCondition`
#[derive(Debug)]
struct MatchCondition {
    text: String,
    compiled: Result<CelCondition, String>,
}

/// `RuleWithOperations`
#[derive(Debug)]
struct RuleWithOperations {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<String>,
    scope: String,
}

/// What a request is about, as rules see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct WebhookRequest<'a> {
    pub operation: AdmissionOperation,
    pub group: &'a str,
    pub version: &'a str,
    pub plural: &'a str,
    pub subresource: &'a str,
    /// Whether the object is in a namespace.
    pub namespaced: bool,
}

/// Whether the match conditions of a webhook hold.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Conditions {
    Hold,
    /// One of them does not.
    DoNotHold,
    /// Nobody can tell.
    Unknown(String),
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

impl Hook {
    /// Reads one entry of `webhooks`, which was checked when it was written.
    pub fn of(source: &Value) -> Self {
        let is = |field: &str, value: &str| source[field] == value;
        let selector = |field: &str| if source[field].is_object() { source[field].clone() } else { json!({}) };
        let conditions = source["matchConditions"].as_array().into_iter().flatten();
        Self {
            name: source["name"].as_str().unwrap_or_default().to_owned(),
            endpoint: WebhookEndpoint::of(&source["clientConfig"]),
            fails: !is("failurePolicy", "Ignore"),
            dry_runs: is("sideEffects", "None") || is("sideEffects", "NoneOnDryRun"),
            reinvoked: is("reinvocationPolicy", "IfNeeded"),
            timeout: Duration::from_secs(source["timeoutSeconds"].as_u64().unwrap_or(TIMEOUT).clamp(1, 30)),
            rules: source["rules"].as_array().into_iter().flatten().map(RuleWithOperations::of).collect(),
            equivalent: !is("matchPolicy", "Exact"),
            namespaces: selector("namespaceSelector"),
            objects: selector("objectSelector"),
            conditions: conditions.map(MatchCondition::of).collect(),
        }
    }

    /// Whether its rules name a request; those of a kind in other versions count unless it wants exact matches.
    pub(super) fn names(&self, asked: &WebhookRequest<'_>) -> bool {
        self.rules.iter().any(|rule| rule.names(asked))
    }

    /// Whether they name a request in any of these versions, of which the first is the request's own.
    pub(super) fn names_any(&self, asked: &[WebhookRequest<'_>]) -> bool {
        let versions = if self.equivalent { asked } else { &asked[..asked.len().min(1)] };
        versions.iter().any(|one| self.names(one))
    }

    /// The resources that its rules name, without subresources.
    pub(super) fn resources(&self) -> BTreeSet<&str> {
        let named = self.rules.iter().flat_map(|rule| &rule.resources);
        named.map(|entry| entry.split_once('/').map_or(entry.as_str(), |(resource, _)| resource)).collect()
    }

    /// Whether a kind in other versions is the same to it.
    pub fn takes_equivalents(&self) -> bool {
        self.equivalent
    }

    /// Whether objects of a namespace with these labels are its matter.
    pub fn selects_namespace(&self, labels: &Value) -> bool {
        selects(&self.namespaces, labels)
    }

    /// Whether every namespace is its matter.
    pub fn takes_every_namespace(&self) -> bool {
        is_everything(&self.namespaces)
    }

    /// Whether an object is its matter, by its labels now or before.
    pub fn selects_object(&self, object: Option<&Value>, old: Option<&Value>) -> bool {
        let chosen = |object: &Value| selects(&self.objects, &object["metadata"]["labels"]);
        is_everything(&self.objects) || [object, old].into_iter().flatten().any(chosen)
    }

    /// Asks its match conditions. One that does not hold decides, whatever the others do.
    pub(super) fn conditions(&self, object: &Value, old: &Value, request: &Value) -> Conditions {
        if self.conditions.is_empty() {
            return Conditions::Hold;
        }
        let shown = CelVariables::of(&[("object", object), ("oldObject", old), ("request", request)]);
        let mut steps = COST_MAX;
        let mut faults = Vec::new();
        for MatchCondition { text, compiled } in &self.conditions {
            match compiled.as_ref().map_err(Clone::clone).and_then(|one| one.holds(&shown, &mut steps)) {
                Ok(true) => {}
                Ok(false) => return Conditions::DoNotHold,
                Err(reason) => faults.push(format!("expression '{text}' resulted in error: {reason}")),
            }
        }
        match faults.as_slice() {
            [] => Conditions::Hold,
            [one] => Conditions::Unknown(shorten(one, FAULTS_MAX)),
            several => Conditions::Unknown(shorten(&format!("[{}]", several.join(", ")), FAULTS_MAX)),
        }
    }

    /// Whether it has match conditions.
    pub fn has_conditions(&self) -> bool {
        !self.conditions.is_empty()
    }
}

impl MatchCondition {
    fn of(source: &Value) -> Self {
        let text = source["expression"].as_str().unwrap_or_default().to_owned();
        Self { compiled: CelCondition::compile(&text, &VARIABLES), text }
    }
}

fn is_everything(selector: &Value) -> bool {
    let empty = |part: &Value| {
        part.as_object().is_none_or(serde_json::Map::is_empty) && part.as_array().is_none_or(Vec::is_empty)
    };
    empty(&selector["matchLabels"]) && empty(&selector["matchExpressions"])
}

impl RuleWithOperations {
    fn of(source: &Value) -> Self {
        Self {
            operations: texts(&source["operations"]),
            groups: texts(&source["apiGroups"]),
            versions: texts(&source["apiVersions"]),
            resources: texts(&source["resources"]),
            scope: source["scope"].as_str().unwrap_or("*").to_owned(),
        }
    }

    fn names(&self, asked: &WebhookRequest<'_>) -> bool {
        let has = |list: &[String], one: &str| list.iter().any(|entry| entry == "*" || entry == one);
        let operation = match asked.operation {
            AdmissionOperation::Create => "CREATE",
            AdmissionOperation::Update => "UPDATE",
            AdmissionOperation::Delete => "DELETE",
        };
        let scope = match self.scope.as_str() {
            "Namespaced" => asked.namespaced,
            "Cluster" => !asked.namespaced,
            _ => true,
        };
        scope
            && has(&self.operations, operation)
            && has(&self.groups, asked.group)
            && has(&self.versions, asked.version)
            && self.resources.iter().any(|entry| {
                let (resource, subresource) = entry.split_once('/').unwrap_or((entry, ""));
                (resource == "*" || resource == asked.plural)
                    && (subresource == "*" || subresource == asked.subresource)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(more: Value) -> Hook {
        let mut source = json!({"name": "a.b.c", "clientConfig": {"url": "https://a"}, "rules": []});
        source.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Hook::of(&source)
    }

    #[test]
    fn rules_name_requests_as_upstream() {
        let asked = WebhookRequest {
            operation: AdmissionOperation::Update,
            group: "example.org",
            version: "v1",
            plural: "widgets",
            subresource: "",
            namespaced: true,
        };
        let status = WebhookRequest { subresource: "status", ..asked };
        let cluster = WebhookRequest { namespaced: false, ..asked };
        for (operations, groups, versions, resources, scope, wanted) in [
            ("*", "*", "*", "*", "*", (true, false, true)),
            ("UPDATE", "example.org", "v1", "widgets", "*", (true, false, true)),
            ("CREATE", "example.org", "v1", "widgets", "*", (false, false, false)),
            ("UPDATE", "", "v1", "widgets", "*", (false, false, false)),
            ("UPDATE", "*", "v2", "widgets", "*", (false, false, false)),
            ("UPDATE", "*", "*", "widgets/status", "*", (false, true, false)),
            ("UPDATE", "*", "*", "widgets/*", "*", (true, true, true)),
            ("UPDATE", "*", "*", "*/status", "*", (false, true, false)),
            ("UPDATE", "*", "*", "*/*", "Namespaced", (true, true, false)),
            ("UPDATE", "*", "*", "*", "Cluster", (false, false, true)),
        ] {
            let rule = json!({"operations": [operations], "apiGroups": [groups], "apiVersions": [versions],
                "resources": [resources], "scope": scope});
            let hook = hook(json!({"rules": [rule]}));
            let found = (hook.names(&asked), hook.names(&status), hook.names(&cluster));
            assert_eq!(found, wanted, "{rule}");
        }
    }

    #[test]
    fn objects_are_selected_by_their_labels_now_or_before() {
        let labelled = |value: &str| json!({"metadata": {"labels": {"tier": value}}});
        let (gold, iron, bare) = (labelled("gold"), labelled("iron"), json!({"metadata": {}}));
        let all = hook(json!({}));
        assert!(all.selects_object(Some(&bare), None) && all.takes_every_namespace());
        let some = hook(json!({"objectSelector": {"matchLabels": {"tier": "gold"}}}));
        for (object, old, wanted) in [
            (Some(&gold), None, true),
            (Some(&iron), Some(&gold), true),
            (Some(&iron), Some(&bare), false),
            (None, Some(&gold), true),
            (None, None, false),
        ] {
            assert_eq!(some.selects_object(object, old), wanted, "{object:?} {old:?}");
        }
        let not = hook(json!({"namespaceSelector": {"matchExpressions":
            [{"key": "env", "operator": "NotIn", "values": ["test"]}]}}));
        assert!(not.selects_namespace(&json!({})) && !not.selects_namespace(&json!({"env": "test"})));
    }

    #[test]
    fn a_condition_that_does_not_hold_decides() {
        let condition = |text: &str| json!({"name": "x", "expression": text});
        let ask = |texts: &[&str]| {
            let hook = hook(json!({"matchConditions": texts.iter().map(|text| condition(text)).collect::<Vec<_>>()}));
            hook.conditions(&json!({"a": 1}), &Value::Null, &json!({"operation": "CREATE"}))
        };
        assert_eq!(ask(&[]), Conditions::Hold);
        assert_eq!(ask(&["object.a == 1", "request.operation == 'CREATE'"]), Conditions::Hold);
        assert_eq!(ask(&["object.b == 1", "object.a == 2"]), Conditions::DoNotHold);
        for (texts, wanted) in [
            (&["object.b == 1", "object.a == 1"], "expression 'object.b == 1' resulted in error: no such key: b"),
            (
                &["object.b == 1", "object.c == 1"],
                "[expression 'object.b == 1' resulted in error: no such key: b, \
                 expression 'object.c == 1' resulted in error: no such key: c]",
            ),
        ] {
            assert_eq!(ask(texts), Conditions::Unknown(wanted.into()));
        }
    }
}
