//! Validation of custom resources. What each case wants was recorded from kube-apiserver 1.34.

use super::*;

const GADGETS: &str = "/apis/example.org/v1/namespaces/rack/gadgets";

async fn rig() -> Rig {
    let rig = Rig::new().await;
    let spec = json!({
        "type": "object", "required": ["a"],
        "x-kubernetes-validations": [
            {"rule": "self.a != 'bad'"},
            {"rule": "!has(self.c) || self.c.startsWith('x')", "messageExpression": "'c is ' + self.c"},
            {"rule": "self.a == oldSelf.a || oldSelf.a == 'free'", "message": "a is immutable",
             "reason": "FieldValueForbidden"},
        ],
        "properties": {
            "a": {"type": "string"}, "c": {"type": "string"},
            "low": {"type": "integer"}, "high": {"type": "integer", "default": 10},
            "short": {"type": "string", "minLength": 2, "maxLength": 4},
            "pat": {"type": "string", "pattern": "^[a-z]+$"},
            "en": {"type": "string", "enum": ["one", "two"]},
            "num": {"type": "number", "multipleOf": 0.5},
            "ex": {"type": "integer", "minimum": 1, "maximum": 5, "exclusiveMinimum": true, "exclusiveMaximum": true},
            "i32": {"type": "integer", "format": "int32"},
            "dt": {"type": "string", "format": "date-time"},
            "ios": {"x-kubernetes-int-or-string": true},
            "nul": {"type": "string", "nullable": true}, "nonul": {"type": "string"},
            "nodef": {"type": "string", "default": "dd"},
            "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set", "maxItems": 2},
            "few": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "required": ["k"],
                    "properties": {"k": {"type": "string"}, "v": {"type": "string"}}}},
            "lab": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 2},
            "one": {"type": "object", "properties": {"p": {"type": "string"}, "q": {"type": "string"}},
                "oneOf": [{"required": ["p"]}, {"required": ["q"]}]},
            "any": {"type": "object", "properties": {"p": {"type": "string"}, "q": {"type": "string"}},
                "anyOf": [{"required": ["p"]}, {"required": ["q"]}]},
            "all": {"type": "integer", "allOf": [{"minimum": 3}, {"maximum": 5}]},
            "emb": {"type": "object", "x-kubernetes-embedded-resource": true,
                "x-kubernetes-preserve-unknown-fields": true},
            "ids": {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "integer"}}}},
        },
    });
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.example.org"},
        "spec": {
            "group": "example.org", "scope": "Namespaced", "names": {"plural": "gadgets", "kind": "Gadget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object",
                "x-kubernetes-validations": [{"rule": "!has(self.spec.low) || self.spec.low <= self.spec.high",
                    "message": "low above high", "fieldPath": ".spec.low"}],
                "properties": {"spec": spec},
            }}}],
        },
    });
    rig.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &crd).await.expect(201);
    rig
}

fn gadget(spec: &Value) -> Value {
    json!({"apiVersion": "example.org/v1", "kind": "Gadget", "metadata": {"name": "t"}, "spec": spec})
}

/// Said beside faults that keep rules from being checked.
const UNCHECKED: &str = "<nil>: Invalid value: null: some validation rules were not checked because the object was \
    invalid; correct the existing errors to complete validation";

#[tokio::test]
async fn faults_are_told_as_upstream_tells_them() {
    let rig = rig().await;
    for (mut spec, wanted, rules_asked) in [
        (json!({"a": null}), vec!["spec.a: Required value"], false),
        (
            json!({"a": 1}),
            vec![r#"spec.a: Invalid value: "integer": spec.a in body must be of type string: "integer""#],
            false,
        ),
        (json!({"a": "bad"}), vec![r#"spec: Invalid value: "object": failed rule: self.a != 'bad'"#], true),
        (json!({"c": "y"}), vec![r#"spec: Invalid value: "object": c is y"#], true),
        (json!({"low": 20}), vec![r#"spec.low: Invalid value: "object": low above high"#], true),
        (
            json!({"short": "1"}),
            vec![r#"spec.short: Invalid value: "1": spec.short in body should be at least 2 chars long"#],
            true,
        ),
        (json!({"short": "12345"}), vec!["spec.short: Too long: may not be more than 4 bytes"], false),
        (
            json!({"pat": "A1"}),
            vec![r#"spec.pat: Invalid value: "A1": spec.pat in body should match '^[a-z]+$'"#],
            true,
        ),
        (json!({"en": "three"}), vec![r#"spec.en: Unsupported value: "three": supported values: "one", "two""#], false),
        (json!({"num": 1.3}), vec!["spec.num: Invalid value: 1.3: spec.num in body should be a multiple of 0.5"], true),
        (json!({"ex": 1}), vec!["spec.ex: Invalid value: 1: spec.ex in body should be greater than 1"], true),
        (json!({"ex": 5}), vec!["spec.ex: Invalid value: 5: spec.ex in body should be less than 5"], true),
        (
            json!({"dt": "no"}),
            vec![r#"spec.dt: Invalid value: "no": spec.dt in body must be of type date-time: "no""#],
            false,
        ),
        (
            json!({"ios": true}),
            vec![r#"spec.ios: Invalid value: "boolean": spec.ios in body must be of type integer,string: "boolean""#],
            false,
        ),
        (json!({"set": ["a", "a"]}), vec![r#"spec.set[1]: Duplicate value: "a""#], true),
        (json!({"set": ["a", "b", "c"]}), vec!["spec.set: Too many: 3: must have at most 2 items"], false),
        (json!({"few": []}), vec!["spec.few: Invalid value: 0: spec.few in body should have at least 1 items"], true),
        (json!({"map": [{"k": "a"}, {"k": "a"}]}), vec![r#"spec.map[1]: Duplicate value: {"k":"a"}"#], true),
        (json!({"map": [{"v": "a"}]}), vec!["spec.map[0].k: Required value"], false),
        (
            json!({"lab": {"a.b/c": 1}}),
            vec![
                r#"spec.lab.a.b/c: Invalid value: "integer": spec.lab.a.b/c in body must be of type string: "integer""#,
            ],
            false,
        ),
        (json!({"lab": {"a": "", "b": "", "c": ""}}), vec!["spec.lab: Too many: 3: must have at most 2 items"], false),
        (
            json!({"one": {}}),
            vec![
                r#"<nil>: Invalid value: "": "spec.one" must validate one and only one schema (oneOf). Found none valid"#,
                "spec.one.p: Required value",
            ],
            false,
        ),
        (
            json!({"one": {"p": "1", "q": "2"}}),
            vec![
                r#"<nil>: Invalid value: "": "spec.one" must validate one and only one schema (oneOf). Found 2 valid alternatives"#,
            ],
            true,
        ),
        (
            json!({"any": {}}),
            vec![
                r#"<nil>: Invalid value: "": "spec.any" must validate at least one schema (anyOf)"#,
                "spec.any.p: Required value",
            ],
            false,
        ),
        (
            json!({"all": 9}),
            vec![
                "spec.all: Invalid value: 9: spec.all in body should be less than or equal to 5",
                r#"<nil>: Invalid value: "": "spec.all" must validate all the schemas (allOf)"#,
            ],
            true,
        ),
        (json!({"emb": {}}), vec!["spec.emb.apiVersion: Required value", "spec.emb.kind: Required value"], false),
    ] {
        if spec.get("a").is_none() {
            spec["a"] = "x".into();
        }
        let answer = rig.call("POST", GADGETS, &gadget(&spec)).await.expect(422);
        let causes = answer["details"]["causes"].as_array().unwrap();
        let mut found: Vec<String> = causes
            .iter()
            .map(|cause| format!("{}: {}", cause["field"].as_str().unwrap(), cause["message"].as_str().unwrap()))
            .collect();
        let mut wanted: Vec<String> = wanted.into_iter().map(str::to_owned).collect();
        if !rules_asked {
            wanted.push(UNCHECKED.into());
        }
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted, "{spec}");
    }
}

#[tokio::test]
async fn nulls_unknown_fields_and_objects_within_objects_are_shaped() {
    let rig = rig().await;
    for (given, wanted) in [
        (json!({"i32": 99_999_999_999_i64}), json!({"i32": 99_999_999_999_i64})),
        (json!({"nul": null, "nonul": null, "nodef": null}), json!({"nul": null})),
        (json!({"lab": {"a": null, "b": "x"}}), json!({"lab": {"b": "x"}})),
        (json!({"ios": 5}), json!({"ios": 5})),
        (
            json!({"emb": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "n", "foo": 1}, "more": {"y": 1}}}),
            json!({"emb": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "n"}, "more": {"y": 1}}}),
        ),
    ] {
        let mut spec = given.clone();
        spec["a"] = "x".into();
        let mut expected = wanted;
        for (field, value) in [("a", json!("x")), ("high", json!(10)), ("nodef", json!("dd"))] {
            expected[field] = value;
        }
        let made = rig.call("POST", &format!("{GADGETS}?dryRun=All"), &gadget(&spec)).await.expect(201);
        assert_eq!(made["spec"], expected, "{given}");
    }
    let unknown = gadget(&json!({"a": "x", "unknown": 1, "ids": [{"zz": 1}]}));
    let answer = rig.call("POST", &format!("{GADGETS}?fieldValidation=Strict"), &unknown).await.expect(400);
    assert_eq!(
        answer["message"],
        "Gadget in version \"v1\" cannot be handled as a Gadget: strict decoding error: unknown field \
         \"spec.ids[0].zz\", unknown field \"spec.unknown\""
    );
}

#[tokio::test]
async fn a_stricter_schema_does_not_lock_what_is_there() {
    let rig = rig().await;
    rig.call("POST", GADGETS, &gadget(&json!({"a": "x", "pat": "a"}))).await.expect(201);
    let place = path(GADGETS, "t");
    let answer = rig.patch(&place, MERGE, &json!({"spec": {"a": "y"}})).await.expect(422);
    assert_eq!(answer["details"]["causes"][0]["message"], "Forbidden: a is immutable");
    let stricter = json!([{"op": "replace", "value": "^b+$",
        "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/pat/pattern"}]);
    let crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.example.org";
    rig.patch(crd, "application/json-patch+json", &stricter).await.expect(200);
    rig.patch(&place, MERGE, &json!({"spec": {"high": 11}})).await.expect(200);
    rig.patch(&place, MERGE, &json!({"spec": {"pat": "c"}})).await.expect(422);
    rig.patch(&place, MERGE, &json!({"spec": {"pat": "bb"}})).await.expect(200);
}
