//! The kinds of `admissionregistration.k8s.io`: what clients may leave out, and what they may write. Pure.

use serde_json::{Value, json};

use super::super::answers::columns::PrinterColumn;
use super::super::answers::status::{CAUSES_MAX, FieldError, FieldFault, shorten};
use super::super::kinds::resource::{CoreKind, Prepare};
use super::super::objects::names;
use super::super::schema::cel::condition::CelCondition;
use super::hook::{TIMEOUT, VARIABLES};
use super::location;

/// Group of the configurations.
pub(in crate::apiserver) const GROUP: &str = "admissionregistration.k8s.io";
/// Names in the store.
pub(super) const MUTATING: &str = "admissionregistration.k8s.io/mutatingwebhookconfigurations";
pub(super) const VALIDATING: &str = "admissionregistration.k8s.io/validatingwebhookconfigurations";

/// Webhooks of one configuration, and match conditions of one webhook, as upstream has 64 of the latter.
const HOOKS_MAX: usize = 128;
const CONDITIONS_MAX: usize = 64;
/// Rules of one webhook, and entries of each of their lists.
const RULES_MAX: usize = 128;

/// Each kind, without its schema.
pub(in crate::apiserver) fn all() -> Vec<CoreKind> {
    let kind = |kind, plural, prepare| CoreKind {
        group: GROUP,
        kind,
        plural,
        short_names: &[],
        namespaced: false,
        status: false,
        columns,
        conversion: None,
        prepare: Some(prepare),
    };
    vec![
        kind("MutatingWebhookConfiguration", "mutatingwebhookconfigurations", prepare_mutating as Prepare),
        kind("ValidatingWebhookConfiguration", "validatingwebhookconfigurations", prepare_validating),
    ]
}

fn columns() -> Vec<PrinterColumn> {
    let mut count = PrinterColumn::cell("Webhooks", "integer", 0, |object, _| {
        object["webhooks"].as_array().map_or(0, Vec::len).into()
    });
    count.description = "Webhooks indicates the number of webhooks registered in this configuration".into();
    vec![PrinterColumn::name(), count, PrinterColumn::age()]
}

fn prepare_mutating(new: &mut Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    prepare(new, old, true, errors);
}

fn prepare_validating(new: &mut Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    prepare(new, old, false, errors);
}

fn prepare(new: &mut Value, old: Option<&Value>, mutating: bool, errors: &mut Vec<FieldError>) {
    for hook in new.get_mut("webhooks").and_then(Value::as_array_mut).into_iter().flatten() {
        complete(hook, mutating);
    }
    let hooks = new["webhooks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let before = old.and_then(|old| old["webhooks"].as_array()).map_or(0, Vec::len);
    if hooks.len() > HOOKS_MAX.max(before) {
        let detail = format!("must have at most {HOOKS_MAX} items");
        errors.push(FieldError::new(FieldFault::TooMany, "webhooks", detail));
        return;
    }
    let mut faults = WebhookFaults { errors, at: String::new() };
    let mut names = std::collections::HashSet::new();
    for (index, hook) in hooks.iter().enumerate() {
        faults.at = format!("webhooks[{index}]");
        check(hook, mutating, &mut faults);
        if let Some(name) = hook["name"].as_str()
            && !names.insert(name)
        {
            faults.add(FieldFault::Duplicate, "name", &hook["name"], "");
        }
    }
}

/// Fills in what a client may leave out.
fn complete(hook: &mut Value, mutating: bool) {
    let Some(map) = hook.as_object_mut() else { return };
    let mut default = |field: &str, value: Value| {
        if map.get(field).is_none_or(Value::is_null) {
            map.insert(field.into(), value);
        }
    };
    default("failurePolicy", "Fail".into());
    default("matchPolicy", "Equivalent".into());
    default("namespaceSelector", json!({}));
    default("objectSelector", json!({}));
    default("timeoutSeconds", TIMEOUT.into());
    if mutating {
        default("reinvocationPolicy", "Never".into());
    }
    if let Some(Value::Object(service)) = map.get_mut("clientConfig").and_then(|config| config.get_mut("service")) {
        service.entry("port").or_insert_with(|| 443.into());
    }
    for rule in map.get_mut("rules").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Value::Object(rule) = rule {
            rule.entry("scope").or_insert_with(|| "*".into());
        }
    }
}

/// Faults of one webhook.
struct WebhookFaults<'f> {
    errors: &'f mut Vec<FieldError>,
    at: String,
}

impl WebhookFaults<'_> {
    fn add(&mut self, fault: FieldFault, field: &str, value: &Value, detail: impl AsRef<str>) {
        if self.errors.len() >= CAUSES_MAX {
            return;
        }
        let path = if field.is_empty() { self.at.clone() } else { format!("{}.{field}", self.at) };
        let detail = detail.as_ref();
        let message = match (fault, detail) {
            (FieldFault::Required, "") => "Required value".to_owned(),
            (FieldFault::Required, detail) => format!("Required value: {detail}"),
            (FieldFault::Duplicate, _) => format!("Duplicate value: {}", shorten(&value.to_string(), 256)),
            (fault, detail) => format!("{}: {}: {detail}", fault.words(), shorten(&value.to_string(), 256)),
        };
        self.errors.push(FieldError { fault, path, message });
    }

    fn invalid(&mut self, field: &str, value: &Value, detail: impl AsRef<str>) {
        self.add(FieldFault::Invalid, field, value, detail);
    }

    fn required(&mut self, field: &str, detail: impl AsRef<str>) {
        self.add(FieldFault::Required, field, &Value::Null, detail);
    }

    /// A field that has one of these values, when it is there.
    fn one_of(&mut self, field: &str, value: &Value, allowed: &[&str]) {
        if !value.is_null() && !allowed.iter().any(|one| value == one) {
            let list: Vec<String> = allowed.iter().map(|one| format!("{one:?}")).collect();
            self.add(FieldFault::NotSupported, field, value, format!("supported values: {}", list.join(", ")));
        }
    }
}

/// What is wrong with one webhook, in upstream's words.
fn check(hook: &Value, mutating: bool, faults: &mut WebhookFaults<'_>) {
    check_name(&hook["name"], faults);
    let rules = hook["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
    if rules.len() > RULES_MAX {
        faults.add(FieldFault::TooMany, "rules", &rules.len().into(), format!("must have at most {RULES_MAX} items"));
    }
    for (index, rule) in rules.iter().take(RULES_MAX).enumerate() {
        check_rule(rule, &format!("rules[{index}]"), faults);
    }
    faults.one_of("failurePolicy", &hook["failurePolicy"], &["Fail", "Ignore"]);
    faults.one_of("matchPolicy", &hook["matchPolicy"], &["Equivalent", "Exact"]);
    match &hook["sideEffects"] {
        Value::Null => faults.required("sideEffects", "must specify one of None, NoneOnDryRun"),
        effects => faults.one_of("sideEffects", effects, &["None", "NoneOnDryRun"]),
    }
    if hook["timeoutSeconds"].as_i64().is_some_and(|seconds| !(1..=30).contains(&seconds)) {
        faults.invalid("timeoutSeconds", &hook["timeoutSeconds"], "the timeout value must be between 1 and 30 seconds");
    }
    for field in ["namespaceSelector", "objectSelector"] {
        check_selector(&hook[field], field, faults);
    }
    if mutating {
        faults.one_of("reinvocationPolicy", &hook["reinvocationPolicy"], &["IfNeeded", "Never"]);
    }
    for (field, value, detail) in location::faults(&hook["clientConfig"]) {
        let field = format!("clientConfig{field}");
        match value {
            Some(value) => faults.invalid(&field, &value, detail),
            None => faults.required(&field, detail),
        }
    }
    check_versions(&hook["admissionReviewVersions"], faults);
    check_conditions(&hook["matchConditions"], faults);
}

fn check_name(value: &Value, faults: &mut WebhookFaults<'_>) {
    let name = value.as_str().unwrap_or_default();
    if name.is_empty() {
        return faults.required("name", "");
    }
    let found = names::subdomain(name);
    if !found.is_empty() {
        faults.invalid("name", value, found.join(","));
    } else if name.split('.').count() < 3 {
        faults.invalid("name", value, "should be a domain with at least three segments separated by dots");
    }
}

fn check_versions(value: &Value, faults: &mut WebhookFaults<'_>) {
    let field = "admissionReviewVersions";
    if value.as_array().is_none_or(Vec::is_empty) {
        return faults.required(field, "must specify one of v1");
    }
    for (place, value, detail) in location::version_faults(value) {
        faults.invalid(&format!("{field}{place}"), &value.unwrap_or_default(), detail);
    }
}

fn check_rule(rule: &Value, at: &str, faults: &mut WebhookFaults<'_>) {
    let operations = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
    let lists = [
        ("operations", "operations"),
        ("apiGroups", "API groups"),
        ("apiVersions", "API versions"),
        ("resources", "resources"),
    ];
    for (field, words) in lists {
        let path = format!("{at}.{field}");
        let entries = rule[field].as_array().map(Vec::as_slice).unwrap_or_default();
        if entries.is_empty() {
            faults.required(&path, "");
        }
        if entries.len() > RULES_MAX {
            let detail = format!("must have at most {RULES_MAX} items");
            faults.add(FieldFault::TooMany, &path, &entries.len().into(), detail);
            continue;
        }
        if field != "resources" && entries.len() > 1 && entries.iter().any(|entry| entry == "*") {
            faults.invalid(&path, &rule[field], format!("if '*' is present, must not specify other {words}"));
        }
        for (index, entry) in entries.iter().enumerate() {
            match field {
                "operations" => faults.one_of(&format!("{path}[{index}]"), entry, &operations),
                "apiVersions" | "resources" if entry == "" => faults.required(&format!("{path}[{index}]"), ""),
                _ => {}
            }
        }
        if field == "resources" {
            check_resources(&rule[field], &path, faults);
        }
    }
    faults.one_of(&format!("{at}.scope"), &rule["scope"], &["*", "Cluster", "Namespaced"]);
}

fn check_resources(list: &Value, path: &str, faults: &mut WebhookFaults<'_>) {
    let entries: Vec<&str> = list.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let (mut resources, mut subresources) = (Vec::new(), Vec::new());
    for (index, entry) in entries.iter().enumerate() {
        let Some((resource, subresource)) = entry.split_once('/') else { continue };
        let mut covered = |by: String| {
            let detail = format!("if '{by}' is present, must not specify {entry}");
            faults.invalid(&format!("{path}[{index}]"), &(*entry).into(), detail);
        };
        if resources.contains(&resource) {
            covered(format!("{resource}/*"));
        }
        if subresources.contains(&subresource) {
            covered(format!("*/{subresource}"));
        }
        if subresource == "*" {
            resources.push(resource);
        }
        if resource == "*" {
            subresources.push(subresource);
        }
    }
    if entries.len() > 1 && entries.contains(&"*/*") {
        faults.invalid(path, list, "if '*/*' is present, must not specify other resources");
    }
    if entries.contains(&"*") && entries.iter().any(|entry| *entry != "*" && !entry.contains('/')) {
        faults.invalid(path, list, "if '*' is present, must not specify other resources without subresources");
    }
}

fn check_selector(selector: &Value, at: &str, faults: &mut WebhookFaults<'_>) {
    let label = |key: &str, path: &str, faults: &mut WebhookFaults<'_>| {
        for fault in names::qualified(key) {
            faults.invalid(path, &key.into(), fault);
        }
    };
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        let path = format!("{at}.matchLabels");
        label(key, &path, faults);
        for fault in names::label_value(value.as_str().unwrap_or_default()) {
            faults.invalid(&path, value, fault);
        }
    }
    for (index, one) in selector["matchExpressions"].as_array().into_iter().flatten().enumerate() {
        let path = format!("{at}.matchExpressions[{index}]");
        let values = one["values"].as_array().map(Vec::as_slice).unwrap_or_default();
        match one["operator"].as_str().unwrap_or_default() {
            "In" | "NotIn" => {
                if values.is_empty() {
                    let rule = "must be specified when `operator` is 'In' or 'NotIn'";
                    faults.required(&format!("{path}.values"), rule);
                }
            }
            "Exists" | "DoesNotExist" => {
                if !values.is_empty() {
                    let rule = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                    let path = format!("{}.{path}.values", faults.at);
                    faults.errors.push(FieldError::forbidden(path, rule));
                }
            }
            other => faults.invalid(&format!("{path}.operator"), &other.into(), "not a valid selector operator"),
        }
        label(one["key"].as_str().unwrap_or_default(), &format!("{path}.key"), faults);
        for (index, value) in values.iter().enumerate() {
            for fault in names::label_value(value.as_str().unwrap_or_default()) {
                faults.invalid(&format!("{path}.values[{index}]"), value, fault);
            }
        }
    }
}

fn check_conditions(list: &Value, faults: &mut WebhookFaults<'_>) {
    let conditions = list.as_array().map(Vec::as_slice).unwrap_or_default();
    if conditions.len() > CONDITIONS_MAX {
        let detail = format!("must have at most {CONDITIONS_MAX} items");
        return faults.add(FieldFault::TooMany, "matchConditions", &conditions.len().into(), detail);
    }
    for (index, condition) in conditions.iter().enumerate() {
        let at = format!("matchConditions[{index}]");
        let name = condition["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            faults.required(&format!("{at}.name"), "");
        } else {
            for fault in names::qualified(name) {
                faults.invalid(&format!("{at}.name"), &condition["name"], fault);
            }
            if conditions[..index].iter().any(|other| other["name"] == name) {
                faults.add(FieldFault::Duplicate, &format!("{at}.name"), &condition["name"], "");
            }
        }
        match condition["expression"].as_str().map(str::trim).unwrap_or_default() {
            "" => faults.required(&format!("{at}.expression"), ""),
            text => {
                if let Err(reason) = CelCondition::compile(text, &VARIABLES) {
                    faults.invalid(&format!("{at}.expression"), &text.into(), reason);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook() -> Value {
        json!({
            "name": "a.example.org", "clientConfig": {"url": "https://hooks.example.org/a"}, "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"]}],
        })
    }

    fn faults(hooks: Value) -> Vec<String> {
        let mut errors = Vec::new();
        prepare_mutating(&mut json!({ "webhooks": hooks }), None, &mut errors);
        errors.into_iter().map(|error| format!("{}: {}", error.path, error.message)).collect()
    }

    #[test]
    fn what_is_left_out_is_filled_in() {
        let mut object = json!({"webhooks": [hook()]});
        object["webhooks"][0]["clientConfig"] = json!({"service": {"namespace": "a", "name": "b"}});
        let mut errors = Vec::new();
        prepare_mutating(&mut object, None, &mut errors);
        assert!(errors.is_empty(), "{errors:?}");
        let hook = &object["webhooks"][0];
        for (field, wanted) in [
            ("/failurePolicy", json!("Fail")),
            ("/matchPolicy", json!("Equivalent")),
            ("/namespaceSelector", json!({})),
            ("/timeoutSeconds", json!(10)),
            ("/reinvocationPolicy", json!("Never")),
            ("/clientConfig/service/port", json!(443)),
            ("/rules/0/scope", json!("*")),
        ] {
            assert_eq!(hook.pointer(field), Some(&wanted), "{field}");
        }
        let mut object = json!({"webhooks": [super::tests::hook()]});
        prepare_validating(&mut object, None, &mut errors);
        assert_eq!(object["webhooks"][0].get("reinvocationPolicy"), None);
    }

    #[test]
    fn faults_are_told_in_upstreams_words() {
        let cases = [
            ("/name", json!("a.b"), "name: Invalid value: \"a.b\": should be a domain with at least three segments"),
            ("/name", json!(""), "name: Required value"),
            ("/sideEffects", json!(null), "sideEffects: Required value: must specify one of None, NoneOnDryRun"),
            (
                "/sideEffects",
                json!("Some"),
                "sideEffects: Unsupported value: \"Some\": supported values: \"None\", \"NoneOnDryRun\"",
            ),
            (
                "/failurePolicy",
                json!("Maybe"),
                "failurePolicy: Unsupported value: \"Maybe\": supported values: \"Fail\", \"Ignore\"",
            ),
            (
                "/timeoutSeconds",
                json!(31),
                "timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
            ),
            ("/admissionReviewVersions", json!([]), "admissionReviewVersions: Required value: must specify one of v1"),
            ("/admissionReviewVersions", json!(["v1beta1"]), "must include at least one of v1"),
            ("/clientConfig", json!({}), "clientConfig: Required value: exactly one of url or service is required"),
            (
                "/clientConfig/url",
                json!("http://a/b"),
                "clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme",
            ),
            ("/clientConfig/url", json!("https://u:p@a/b"), "user information is not permitted in the URL"),
            ("/clientConfig/url", json!("https://a/b?c"), "query parameters are not permitted in the URL"),
            ("/clientConfig/url", json!("https://a/b#c"), "fragments are not permitted in the URL"),
            ("/rules/0/operations", json!(["*", "CREATE"]), "if '*' is present, must not specify other operations"),
            ("/rules/0/operations", json!(["READ"]), "rules[0].operations[0]: Unsupported value: \"READ\""),
            (
                "/rules/0/resources",
                json!(["*", "secrets"]),
                "if '*' is present, must not specify other resources without",
            ),
            ("/rules/0/resources", json!(["a/*", "a/status"]), "if 'a/*' is present, must not specify a/status"),
            ("/rules/0/resources", json!(["*/*", "b"]), "if '*/*' is present, must not specify other resources"),
            ("/rules/0/apiVersions", json!([""]), "rules[0].apiVersions[0]: Required value"),
            ("/rules/0/scope", json!("Here"), "rules[0].scope: Unsupported value: \"Here\""),
            (
                "/objectSelector",
                json!({"matchExpressions": [{"key": "a", "operator": "In"}]}),
                "values: Required value: must be specified when",
            ),
            (
                "/objectSelector",
                json!({"matchExpressions": [{"key": "a", "operator": "Near"}]}),
                "not a valid selector operator",
            ),
            ("/matchConditions", json!([{"name": "a", "expression": "objekt.a"}]), "undeclared reference to 'objekt'"),
            (
                "/matchConditions",
                json!([{"name": "a", "expression": "authorizer.group('').check('get').allowed()"}]),
                "the variable authorizer is not supported",
            ),
        ];
        for (place, value, wanted) in cases {
            let mut one = hook();
            for field in ["failurePolicy", "timeoutSeconds", "objectSelector", "matchConditions"] {
                one.as_object_mut().unwrap().entry(field).or_insert(Value::Null);
            }
            one["rules"][0]["scope"] = "*".into();
            *one.pointer_mut(place).unwrap() = value;
            if one["matchConditions"].is_null() {
                one.as_object_mut().unwrap().remove("matchConditions");
            }
            let found = faults(json!([one]));
            assert_eq!(found.len(), 1, "{wanted}: {found:?}");
            assert!(found[0].starts_with("webhooks[0]") && found[0].contains(wanted), "{wanted}: {found:?}");
        }
        let twice = faults(json!([hook(), hook()]));
        assert_eq!(twice, ["webhooks[1].name: Duplicate value: \"a.example.org\""]);
    }
}
