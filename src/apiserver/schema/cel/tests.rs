//! Tests of rules: what they say, and what they cost.

use super::*;
use serde_json::json;

fn schema(rules: &Value) -> Schema {
    Schema::compile(&json!({
        "type": "object",
        "x-kubernetes-validations": rules,
        "properties": {
            "a": {"type": "string"},
            "namespace": {"type": "string"},
            "x-y": {"type": "integer"},
            "n": {"type": "integer"},
            "f": {"type": "number"},
            "when": {"type": "string", "format": "date-time"},
            "wait": {"type": "string", "format": "duration"},
            "list": {"type": "array", "items": {"type": "integer"}},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
            "keyed": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}},
                    "x-kubernetes-validations": [{"rule": "self.v >= oldSelf.v", "message": "v may not shrink"}]}},
        }
    }))
    .unwrap()
}

fn found(schema: &Schema, value: &Value, old: Option<&Value>) -> Vec<String> {
    let mut errors = Vec::new();
    schema.check_rules(value, old, &mut errors);
    errors.into_iter().map(|error| format!("{}: {}", error.path, error.message)).collect()
}

#[test]
fn rules_hold_or_say_why_not() {
    for (rule, value, holds) in [
        ("self.a == 'x'", json!({"a": "x"}), true),
        ("self.a == 'x'", json!({"a": "y"}), false),
        ("has(self.a)", json!({}), false),
        ("!has(self.n) || self.n > 2", json!({}), true),
        ("self.__namespace__ == 'k'", json!({"namespace": "k"}), true),
        ("self.x__dash__y == 2", json!({"x-y": 2}), true),
        ("self.f > 1.5", json!({"f": 2}), true),
        ("self.list.all(x, x > 0)", json!({"list": [1, 2]}), true),
        ("self.list.exists_one(x, x > 1)", json!({"list": [1, 2, 3]}), false),
        ("self.list.sum() == 6 && self.list.isSorted()", json!({"list": [1, 2, 3]}), true),
        ("self.list.map(x, x * 2) == [2, 4]", json!({"list": [1, 2]}), true),
        ("'k' in self.map && self.map['a.b/c'] == 'v'", json!({"map": {"k": "", "a.b/c": "v"}}), true),
        ("self.when < timestamp('2030-01-01T00:00:00Z')", json!({"when": "2026-01-01T00:00:00Z"}), true),
        ("self.wait >= duration('1h')", json!({"wait": "90m"}), true),
        ("self.a.matches('^[a-z]+$') && self.a.split(',').size() == 1", json!({"a": "abc"}), true),
        ("isURL(self.a) && url(self.a).getScheme() == 'https'", json!({"a": "https://x"}), true),
        ("quantity(self.a).isGreaterThan(quantity('1Gi'))", json!({"a": "2Gi"}), true),
        ("!has(self.unknown)", json!({"unknown": 1}), true),
        ("self.n + 1", json!({"n": 1}), false),
        ("self.none.deeper == 1", json!({}), false),
        ("nothing == 1", json!({}), false),
    ] {
        let faults = found(&schema(&json!([{"rule": rule}])), &value, None);
        assert_eq!(faults.is_empty(), holds, "{rule} {value} {faults:?}");
    }
    let told = schema(&json!([{"rule": "self.a == 'x'", "messageExpression": "'a is ' + self.a", "fieldPath": ".a",
        "reason": "FieldValueForbidden"}]));
    assert_eq!(found(&told, &json!({"a": "y"}), None), ["a: Forbidden: a is y"]);
}

#[test]
fn rules_about_changes_need_a_former_self() {
    let fixed = schema(&json!([{"rule": "self.a == oldSelf.a", "message": "a is immutable"}]));
    assert!(found(&fixed, &json!({"a": "x"}), None).is_empty());
    assert_eq!(
        found(&fixed, &json!({"a": "x"}), Some(&json!({"a": "y"}))),
        ["<nil>: Invalid value: \"object\": a is immutable"]
    );
    let first = schema(&json!([{"rule": "oldSelf.hasValue() || self.a == 'new'", "optionalOldSelf": true}]));
    assert!(found(&first, &json!({"a": "x"}), Some(&json!({"a": "y"}))).is_empty());
    assert!(found(&first, &json!({"a": "new"}), None).is_empty());
    assert_eq!(found(&first, &json!({"a": "old"}), None).len(), 1);
    // Entries with keys find their former self wherever they stand.
    let old = json!({"keyed": [{"k": "a", "v": 1}, {"k": "b", "v": 9}]});
    let new = json!({"keyed": [{"k": "b", "v": 8}, {"k": "c", "v": 0}, {"k": "a", "v": 2}]});
    assert_eq!(found(&schema(&json!([])), &new, Some(&old)), ["keyed[0]: Invalid value: \"object\": v may not shrink"]);
    // What was wrong before may stay.
    let strict = schema(&json!([{"rule": "self.a == 'x'"}]));
    assert!(found(&strict, &json!({"a": "y"}), Some(&json!({"a": "y"}))).is_empty());
}

#[test]
fn hostile_rules_are_refused_or_stopped() {
    let refuse = |rule: String| compile(&[json!({ "rule": rule })]).err().unwrap_or_default().1;
    for rule in [
        "self.".into(),
        "(".repeat(4000),
        "self".to_owned() + &".a".repeat(3000),
        "1".to_owned() + &"+1".repeat(3000),
        "a".repeat(RULE_MAX + 1),
        format!("{}1{}", "[".repeat(4000), "]".repeat(4000)),
    ] {
        assert!(!refuse(rule.clone()).is_empty(), "{:.40}", rule);
    }
    assert!(compile(&vec![json!({"rule": "true"}); RULES_MAX + 1]).is_err());
    let loops = "self.list.all(a, self.list.all(b, self.list.all(c, a + b + c >= 0)))";
    let costly = schema(&json!([{"rule": loops}]));
    let long: Vec<u64> = (0..1000).collect();
    assert!(found(&costly, &json!({"list": long}), None)[0].contains("call cost exceeds limit"));
    assert!(found(&costly, &json!({"list": [1, 2, 3]}), None).is_empty());
    let split = schema(&json!([{"rule": "self.a.split('').all(x, self.a.split('').all(y, x == y || true))"}]));
    assert!(found(&split, &json!({"a": "a".repeat(5000)}), None)[0].contains("call cost exceeds limit"));
}

#[test]
fn patterns_of_the_object_cost_what_they_take() {
    let patterns = schema(&json!([{"rule": "self.map.all(k, 'x'.matches(self.map[k]))"}]));
    let ask = |patterns_of: &mut dyn Iterator<Item = String>| {
        let map: serde_json::Map<_, _> =
            patterns_of.enumerate().map(|(one, text)| (one.to_string(), text.into())).collect();
        found(&patterns, &json!({ "map": map }), None)
    };
    assert!(ask(&mut (0..50).map(|one| format!("^x{{0,{one}}}x?$"))).is_empty());
    // The same one again and again is compiled once.
    assert!(ask(&mut (0..50).map(|_| r"^\w{18}$|x".into())).is_empty());
    let large = ask(&mut (0..50).map(|one| format!(r"^\w{{18}}$|x{{0,{one}}}$")));
    assert!(large.len() == 1 && large[0].contains("call cost exceeds limit"), "{large:?}");
    let long = ask(&mut std::iter::once("x".repeat(5000) + "("));
    assert!(long[0].contains("longer than 4096 bytes"), "{long:?}");
    assert!(ask(&mut std::iter::once("(".into()))[0].contains("not a valid regex"));
    // Nor is a long text looked through for a large pattern again and again.
    let texts = schema(&json!([{"rule": r"self.list.all(x, self.a.matches('^\\w{18}$|^a'))"}]));
    let object = |entries: usize| json!({"a": "a".repeat(200), "list": vec![1; entries]});
    assert!(found(&texts, &object(1), None).is_empty());
    assert!(found(&texts, &object(100), None)[0].contains("call cost exceeds limit"));
    for (rule, holds) in [
        ("self.a.find('[0-9]+') == '12' && self.a.find('z') == ''", true),
        ("self.a.findAll('[0-9]') == ['1', '2', '3'] && self.a.findAll('[0-9]', 1) == ['1']", true),
        ("matches(self.a, '^a')", true),
        ("self.a.matches('^b') || self.a.find('(') == ''", false),
    ] {
        let faults = found(&schema(&json!([{"rule": rule}])), &json!({"a": "a12b3"}), None);
        assert_eq!(faults.is_empty(), holds, "{rule} {faults:?}");
    }
}

#[test]
fn what_a_rule_makes_is_counted_before_it_is_made() {
    let object = json!({"a": "a".repeat(1000), "list": (0..1000).collect::<Vec<u32>>(), "map": {"k": "v"}, "n": 1});
    let doubled = |times: usize| format!("[self.a]{}.size() == 1", ".map(x, x + x)".repeat(times));
    let doubled_lists = format!("[self.list]{}.size() == 1", ".map(x, x + x)".repeat(40));
    let same_again = format!("[self.a]{}.size() == 1 && true", ".map(x, [x, x])".repeat(40));
    for (rule, exceeds) in [
        (doubled(40), true),
        (doubled_lists, true),
        (same_again, true),
        ("self.a.replace('', self.a).replace('', self.a).size() > 0".into(), true),
        ("self.a.replace('a', self.a).replace('a', self.a).size() > 0".into(), true),
        ("lists.range(1000000000).size() > 0".into(), true),
        ("lists.range(9223372036854775807).size() > 0".into(), true),
        ("self.list.all(x, self.list.all(y, self.list.all(z, x + y + z >= 0)))".into(), true),
        (
            "self.list.exists(x, self.list == [x] || self.list == [x, x] || self.list == self.list.map(y, y + x + 1))"
                .into(),
            true,
        ),
        ("sets.contains(self.list, self.list.map(x, x)) && self.list.distinct().size() == 1000".into(), false),
        ("self.list.all(x, self.list[0] == 0 && self.list.size() == 1000)".into(), false),
        ("self.list.map(x, x * 2).filter(x, x > 4).size() > 0".into(), false),
        // As long as they could be when a rule was reckoned beforehand.
        ("(self.list + self.list).map(x, x).size() == 2000".into(), false),
        ("(self.list + self.list + self.list + self.list).map(x, x).size() == 4000".into(), true),
        ("self.a.split('').size() == 1002 || self.a.split('').size() == 1000".into(), false),
        ("self.a.replace('a', 'bb').size() == 2000 && (self.a + self.a).size() == 2000".into(), false),
    ] {
        let faults = found(&schema(&json!([{ "rule": rule }])), &object, None);
        let told = faults.iter().any(|fault| fault.contains("call cost exceeds limit"));
        assert_eq!((told, faults.is_empty()), (exceeds, !exceeds), "{rule} {faults:.200?}");
    }
    // Nor are values nested without end, whatever the rest of the rule makes of the error.
    let nested =
        format!("[1]{}.size() == 1 || true", format!(".map(x, {}x{})", "[".repeat(60), "]".repeat(60)).repeat(30));
    found(&schema(&json!([{ "rule": nested }])), &object, None);
    for rule in
        ["'%.2000000000f'.format([1.5]) == ''", "Some{a: 1} == 1", "[1, 2].slice(1) == []", "self.a.charAt() == ''"]
    {
        let faults = found(&schema(&json!([{ "rule": rule }])), &object, None);
        assert!(faults.len() == 1 && faults[0].contains("evaluating rule"), "{rule} {faults:.200?}");
    }
    // An error does not repeat what it is about.
    let large = found(&schema(&json!([{"rule": "self.list + self.map == []"}])), &object, None);
    assert!(large.len() == 1 && large[0].len() < 2000, "{large:.200?}");
}

#[test]
fn a_budget_that_is_used_up_is_told_once() {
    let rule = json!([{"rule": "self.all(x, self.all(y, x + y >= 0))"}]);
    let schema = Schema::compile(&json!({"type": "object", "additionalProperties": {"type": "array",
        "items": {"type": "integer"}, "x-kubernetes-validations": rule}}))
    .unwrap();
    let list: Vec<u32> = (0..250).collect();
    let object: serde_json::Map<_, _> = (0..40).map(|one| (format!("k{one}"), json!(list))).collect();
    let faults = found(&schema, &object.into(), None);
    assert!(faults.len() == 1 && faults[0].contains("running out of cost budget"), "{faults:.200?}");
}

#[test]
fn names_of_rooms_may_be_variables() {
    for rule in [
        "self.list.all(math, math.abs(math) == 1) || true",
        "self.list.all(math, math > 0)",
        "[ip('10.0.0.1')].all(ip, ip.family() == 4)",
        "math.abs(-1) == 1 && sets.contains([1, 2], [1]) && ip.isCanonical('10.0.0.1')",
        "optional.of(1).hasValue() && {'a': 1}[?'b'].orValue(2) == 2 && {'a': {'b': 1}}.?a.?b.hasValue()",
        "[1, 2, 3].exists_one(x, x == 2) && {'a': 1}.all(k, k == 'a') && [1, ?optional.none()].size() == 1",
        "self.map.map(k, self.map[k]) == ['v'] && 'k' in self.map && 1 in [1, 2] && !('x' in ['y'])",
        "has(self.map.k) && !has(self.map.z) && -self.n == -1 && self.n % 2 == 1 && 5 / 2 == 2 && 7 - 2 == 5",
        "(self.n == 1 ? 'a' : 'b') == 'a' && (1 / 0 == 1 || true) && !(1 / 0 == 1 && false)",
        "'%s is %d'.format(['a', 1]) == 'a is 1' && ['a', 'b'].join('-') == 'a-b' && 'abc'.indexOf('c') == 2",
    ] {
        let object = json!({"list": [1, 1], "map": {"k": "v"}, "n": 1});
        let faults = found(&schema(&json!([{ "rule": rule }])), &object, None);
        assert!(faults.is_empty(), "{rule} {faults:?}");
    }
}
