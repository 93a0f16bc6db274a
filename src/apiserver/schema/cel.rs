//! Rules in CEL (`x-kubernetes-validations`), of the schemas of users.
//!
//! The language and Kubernetes' functions come from the `kube-cel` crate. What is added here is what a server needs:
//! a bound of what a rule may cost, known before it runs; a bound of its nesting; the former self of entries of keyed
//! lists; and upstream's words.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;

use kube_cel::KubeCelExt;
use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedExpr, MapExpr as CelMapExpr, StructExpr};
use kube_cel::cel::objects::{Key, Map as CelMap};
use kube_cel::cel::parser::Parser;
use kube_cel::cel::{Context, Value as CelValue};
use serde_json::Value;

use super::super::status::{FieldError, FieldFault};
use super::format::Format;
use super::in_use::{InUse, Outcome};
use super::validate::{NO_PATH, type_of};
use super::{ERRORS_MAX, Schema, join};

mod check;
mod patterns;

/// Bytes of one rule.
const RULE_MAX: usize = 8 * 1024;
/// Rules of one node.
const RULES_MAX: usize = 100;
/// Nesting of one rule; deeper ones could exhaust a thread's stack.
const DEPTH_MAX: usize = 128;
/// Stack for reading rules, before their nesting is known.
const READER_STACK: usize = 64 << 20;
/// Steps that one rule may take, as upstream (`PerCallLimit`).
const RULE_COST_MAX: u64 = 1_000_000;
/// Steps that all rules of one object may take together, as upstream (`RuntimeCELCostBudget`).
const COST_MAX: u64 = 10_000_000;
/// Bytes of a message that a rule makes.
const MESSAGE_MAX: usize = 5 * 1024;
/// Told when all steps are taken, in upstream's words.
const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";
/// Words that CEL keeps for itself; fields of that name are written with underscores.
const RESERVED: [&str; 20] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
];

/// One rule.
#[derive(Debug)]
pub(super) struct Rule {
    text: String,
    expression: Arc<Expression>,
    message: Option<String>,
    message_expression: Option<Arc<Expression>>,
    fault: FieldFault,
    field_path: String,
    /// Whether it compares with the former self.
    transition: bool,
    optional_old: bool,
}

/// An expression that was read.
#[derive(Debug)]
pub(super) struct Expression {
    tree: IdedExpr,
    cost: Cost,
}

pub(super) static IN_USE: InUse<Expression, String> = InUse::new();

/// Bytes of text, and entries of a list that is copied, that count as one step.
const TEXT_STEP: u64 = 64;
const COPY_STEP: u64 = 8;

/// What a rule costs, as a polynomial of the longest list that it sees.
#[derive(Clone, Debug, Default)]
struct Cost {
    /// Nodes of the expression, by the number of loops that they are within.
    nodes: Vec<u64>,
    /// Those of them that go over texts.
    texts: Vec<u64>,
    /// Loops that put lists together, an entry at a turn, by the loops that each turn is within: the list so far is
    /// copied at each.
    builders: Vec<u64>,
    /// Factor by which it may make lists longer than they come before it loops over them.
    growth: u64,
    /// Entries of its longest literal list.
    literal: u64,
    /// Whether it may make lists of the pieces of texts.
    splits: bool,
}

/// Compiles the rules of one node. On failure the index of the rule and the reason.
pub(super) fn compile(rules: &[Value]) -> Result<Vec<Arc<Rule>>, (usize, String)> {
    if rules.is_empty() {
        return Ok(Vec::new());
    }
    if rules.len() > RULES_MAX {
        return Err((RULES_MAX, format!("must have at most {RULES_MAX} items")));
    }
    rules.iter().enumerate().map(|(index, rule)| compile_one(rule).map_err(|reason| (index, reason))).collect()
}

fn compile_one(source: &Value) -> Result<Arc<Rule>, String> {
    let text = |field: &str| text_of(source, field);
    let rule = text("rule").ok_or("rule: Required value: rule is not specified")?;
    let expression = read(rule).map_err(|reason| (*reason).clone())?;
    let message_expression = match text("messageExpression") {
        Some(expression) => Some(read(expression).map_err(|reason| format!("messageExpression: {reason}"))?),
        None => None,
    };
    let fault = match text("reason") {
        None | Some("FieldValueInvalid") => FieldFault::Invalid,
        Some("FieldValueForbidden") => FieldFault::Forbidden,
        Some("FieldValueRequired") => FieldFault::Required,
        Some("FieldValueDuplicate") => FieldFault::Duplicate,
        Some(other) => return Err(format!("reason: Unsupported value: {other:?}")),
    };
    if source["message"].as_str().is_some_and(|message| message.contains('\n')) {
        return Err("message: Invalid value: must not contain line breaks".into());
    }
    Ok(Arc::new(Rule {
        text: rule.to_owned(),
        transition: expression.tree.references().has_variable("oldSelf"),
        expression,
        message: text("message").map(str::to_owned),
        message_expression,
        fault,
        field_path: text("fieldPath").unwrap_or_default().to_owned(),
        optional_old: source["optionalOldSelf"] == true,
    }))
}

/// A text of a rule's source, when there is one.
fn text_of<'s>(source: &'s Value, field: &str) -> Option<&'s str> {
    source[field].as_str().map(str::trim).filter(|text| !text.is_empty())
}

/// The expressions of a rule's source that would be read.
pub(super) fn expressions(source: &Value) -> impl Iterator<Item = &str> {
    ["rule", "messageExpression"].into_iter().filter_map(|field| text_of(source, field))
}

/// Reads an expression, unless it is in use already.
pub(super) fn read(text: &str) -> Outcome<Expression, String> {
    // Not even its text is to be kept.
    if text.len() > RULE_MAX {
        return Err(format!("may not be more than {RULE_MAX} bytes").into());
    }
    IN_USE.get_or_make(text, || {
        let read = thread::scope(|scope| {
            let reader = thread::Builder::new().stack_size(READER_STACK).spawn_scoped(scope, || read_anew(text));
            reader.map(thread::ScopedJoinHandle::join)
        });
        match read {
            Ok(Ok(read)) => read,
            _ => Err("it could not be read".into()),
        }
    })
}

/// Reads an expression and measures it. To be called with a large stack.
fn read_anew(text: &str) -> Result<Expression, String> {
    let parser = Parser::default().enable_optional_syntax(true);
    let tree = parser.parse(text).map_err(|error| format!("compilation failed: {error}"))?;
    let mut cost = Cost { growth: 1, ..Cost::default() };
    // Each with its depth, the loops around it, and whether a loop runs over what it makes.
    let mut open: Vec<(&IdedExpr, usize, usize, bool)> = vec![(&tree, 1, 0, false)];
    while let Some((node, depth, loops, range)) = open.pop() {
        if depth > DEPTH_MAX {
            return Err(format!("must not be nested deeper than {DEPTH_MAX}"));
        }
        if cost.nodes.len() <= loops {
            // One more, for the turns of a loop that begins here.
            cost.nodes.resize(loops + 1, 0);
            cost.texts.resize(loops + 1, 0);
            cost.builders.resize(loops + 2, 0);
        }
        cost.nodes[loops] += 1;
        let mut below = |child, loops, range| open.push((child, depth + 1, loops, range));
        match &node.expr {
            Expr::Call(call) => {
                cost.growth += u64::from(range && call.func_name == "_+_");
                cost.texts[loops] += 1;
                cost.splits |= matches!(call.func_name.as_str(), "split" | "findAll");
                call.target.iter().for_each(|target| below(target, loops, range));
                call.args.iter().for_each(|argument| below(argument, loops, range));
            }
            Expr::Comprehension(comprehension) => {
                cost.builders[loops + 1] += u64::from(matches!(comprehension.accu_init.expr, Expr::List(_)));
                below(&comprehension.iter_range, loops, true);
                below(&comprehension.accu_init, loops, range);
                for inner in [&comprehension.loop_cond, &comprehension.loop_step, &comprehension.result] {
                    below(inner, loops + 1, range);
                }
            }
            Expr::List(list) => {
                cost.literal = cost.literal.max(list.elements.len() as u64);
                list.elements.iter().for_each(|element| below(element, loops, range));
            }
            Expr::Select(select) => below(&select.operand, loops, range),
            Expr::Map(CelMapExpr { entries }) | Expr::Struct(StructExpr { entries, .. }) => {
                cost.literal = cost.literal.max(entries.len() as u64);
                entries.iter().for_each(|entry| entry_parts(&entry.expr, |part| below(part, loops, range)));
            }
            Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => {}
        }
    }
    Ok(Expression { tree, cost })
}

fn entry_parts<'e>(entry: &'e EntryExpr, mut below: impl FnMut(&'e IdedExpr)) {
    match entry {
        EntryExpr::StructField(field) => below(&field.value),
        EntryExpr::MapEntry(entry) => {
            below(&entry.key);
            below(&entry.value);
        }
    }
}

impl Cost {
    /// Steps that the rule takes at most on values whose longest list and text are these.
    fn steps(&self, list: u64, text: u64) -> u64 {
        let longest = if self.splits { list.max(text) } else { list };
        let turns = longest.max(self.literal).max(1).saturating_mul(self.growth);
        let sum = |counts: &[u64]| {
            let levels = (0..).zip(counts);
            levels.map(|(loops, count)| turns.saturating_pow(loops).saturating_mul(*count)).fold(0, u64::saturating_add)
        };
        sum(&self.nodes)
            .saturating_add(sum(&self.texts).saturating_mul(text / TEXT_STEP))
            .saturating_add(sum(&self.builders).saturating_mul(turns / COPY_STEP))
    }
}

/// Length of the longest list or map, and of the longest text.
fn extent(value: &Value) -> (u64, u64) {
    let most = |values: &mut dyn Iterator<Item = &Value>, own: usize| {
        values.map(extent).fold((own as u64, 0), |(list, text), (inner, other)| (list.max(inner), text.max(other)))
    };
    match value {
        Value::Array(entries) => most(&mut entries.iter(), entries.len()),
        Value::Object(map) => most(&mut map.values(), map.len()),
        Value::String(text) => (0, text.len() as u64),
        _ => (0, 0),
    }
}

thread_local! {
    /// The functions; making them anew for each object would cost more than most rules.
    static FUNCTIONS: Context<'static> = {
        let mut functions = Context::default().with_all();
        patterns::register(&mut functions);
        functions
    };
}

impl Schema {
    /// Adds what the rules find. Faults that make rules meaningless (a missing field, a wrong type) keep them from
    /// being asked, and the answer says so, as upstream's.
    pub fn check_rules(&self, value: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
        if !self.any_rules {
            return;
        }
        let blocks = |error: &FieldError| !matches!(error.fault, FieldFault::Invalid | FieldFault::Duplicate);
        if errors.iter().any(blocks) {
            errors.push(FieldError::with_value(
                FieldFault::Invalid,
                NO_PATH,
                &Value::Null,
                "some validation rules were not checked because the object was invalid; correct the existing errors \
                 to complete validation",
            ));
            return;
        }
        let mut budget = COST_MAX;
        let _patterns = patterns::OfObject::begin();
        FUNCTIONS.with(|functions| self.rules_at(value, old, "", functions, &mut budget, errors));
    }

    fn rules_at(
        &self,
        value: &Value,
        old: Option<&Value>,
        path: &str,
        functions: &Context<'_>,
        budget: &mut u64,
        errors: &mut Vec<FieldError>,
    ) {
        if !self.any_rules || value.is_null() || errors.len() >= ERRORS_MAX {
            return;
        }
        if !self.rules.is_empty() {
            self.ask(value, old, path, functions, budget, errors);
        }
        match value {
            Value::Object(map) => {
                for (name, child) in map {
                    if let Some(schema) = self.member(name) {
                        let old = old.and_then(|old| old.get(name));
                        schema.rules_at(child, old, &join(path, name), functions, budget, errors);
                    }
                }
            }
            Value::Array(entries) => {
                for (index, entry) in entries.iter().enumerate() {
                    if let Some(schema) = &self.items {
                        let old = self.counterpart(entry, old);
                        schema.rules_at(entry, old, &format!("{path}[{index}]"), functions, budget, errors);
                    }
                }
            }
            _ => {}
        }
    }

    /// Asks the rules of this node.
    fn ask(
        &self,
        value: &Value,
        old: Option<&Value>,
        path: &str,
        functions: &Context<'_>,
        budget: &mut u64,
        errors: &mut Vec<FieldError>,
    ) {
        let (list, text) = extent(value);
        let (old_list, old_text) = old.map(extent).unwrap_or_default();
        let unchanged = old == Some(value);
        let mut scope = functions.new_inner_scope();
        scope.add_variable_from_value("self", self.to_cel(value, path.is_empty()));
        if let Some(old) = old {
            scope.add_variable_from_value("oldSelf", self.to_cel(old, path.is_empty()));
        }
        for rule in &self.rules {
            // What was wrong before may stay, unless the rule is about the change.
            if (unchanged && !rule.transition) || (rule.transition && old.is_none() && !rule.optional_old) {
                continue;
            }
            let mut fault = |detail: String| {
                let path = join_rule_path(path, &rule.field_path);
                errors.push(match rule.fault {
                    FieldFault::Invalid | FieldFault::Duplicate => {
                        FieldError::with_value(rule.fault, path, &type_of(value).into(), detail)
                    }
                    other => FieldError::new(other, path, detail),
                });
            };
            let steps = rule.expression.cost.steps(list.max(old_list), text.max(old_text));
            if steps > RULE_COST_MAX {
                fault(format!("call cost exceeds limit for rule: {}", rule.text));
                continue;
            }
            let Some(left) = budget.checked_sub(steps) else {
                fault(OUT_OF_BUDGET.into());
                return;
            };
            *budget = left;
            // What patterns take is known when they are looked for.
            let may_take = left.min(RULE_COST_MAX - steps);
            let mut spare = may_take;
            let optional;
            let scope = if rule.optional_old && rule.transition {
                let mut inner = scope.new_inner_scope();
                let former = old.map(|old| self.to_cel(old, path.is_empty()));
                inner.add_variable_from_value("oldSelf", optional_of(former));
                optional = inner;
                &optional
            } else {
                &scope
            };
            let found = patterns::resolve(&rule.expression.tree, scope, &mut spare);
            let Some(found) = found else {
                *budget = left - may_take;
                if *budget == 0 {
                    fault(OUT_OF_BUDGET.into());
                    return;
                }
                fault(format!("call cost exceeds limit for rule: {}", rule.text));
                continue;
            };
            match found {
                Ok(CelValue::Bool(true)) => {}
                Ok(CelValue::Bool(false)) => fault(rule.told(scope, &mut spare)),
                Ok(_) => fault(format!("rule must evaluate to a bool: {}", rule.text)),
                Err(error) => {
                    let rule = rule.message.as_deref().unwrap_or(&rule.text);
                    fault(format!("{error} evaluating rule: {rule}"));
                }
            }
            *budget = left - (may_take - spare);
        }
    }

    /// The value as CEL sees it: fields that the schema knows, under names that CEL can say.
    fn to_cel(&self, value: &Value, is_root: bool) -> CelValue {
        match value {
            Value::Null => CelValue::Null,
            Value::Bool(truth) => CelValue::Bool(*truth),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(whole), _) if self.kind != Some(super::Type::Number) => CelValue::Int(whole),
                (None, Some(whole)) if self.kind != Some(super::Type::Number) => CelValue::UInt(whole),
                _ => {
                    let float = number.as_f64().unwrap_or(f64::NAN);
                    let whole = self.kind == Some(super::Type::Integer);
                    if whole { CelValue::Int(float as i64) } else { CelValue::Float(float) }
                }
            },
            Value::String(text) => self.text_to_cel(text),
            Value::Array(entries) => {
                let entry = |entry| self.items.as_ref().map_or(CelValue::Null, |schema| schema.to_cel(entry, false));
                CelValue::List(Arc::new(entries.iter().map(entry).collect()))
            }
            Value::Object(map) => {
                let mut fields = HashMap::with_capacity(map.len());
                for (name, child) in map {
                    let (key, schema) = match (self.properties.get(name), &self.additional) {
                        (Some(schema), _) => (escape(name), &**schema),
                        (None, Some(schema)) => (name.clone(), &**schema),
                        // Unknown to the schema, unknown to the rules.
                        (None, None) => continue,
                    };
                    let child = if name == "metadata" && (is_root || self.embedded) {
                        names_of(child)
                    } else {
                        schema.to_cel(child, false)
                    };
                    fields.insert(Key::String(Arc::new(key)), child);
                }
                CelValue::Map(CelMap { map: Arc::new(fields) })
            }
        }
    }

    fn text_to_cel(&self, text: &str) -> CelValue {
        let special = match self.format {
            Some(Format::DateTime) => chrono::DateTime::parse_from_rfc3339(text).ok().map(CelValue::Timestamp),
            Some(Format::Date) => format!("{text}T00:00:00Z").parse().ok().map(CelValue::Timestamp),
            Some(Format::Duration) => go_duration(text).map(CelValue::Duration),
            Some(Format::Byte) => {
                use base64::Engine;
                let bytes = base64::engine::general_purpose::STANDARD.decode(text).ok();
                bytes.map(|bytes| CelValue::Bytes(Arc::new(bytes)))
            }
            _ => None,
        };
        special.unwrap_or_else(|| CelValue::String(Arc::new(text.to_owned())))
    }
}

/// Of metadata, rules see the names only.
fn names_of(metadata: &Value) -> CelValue {
    let mut fields = HashMap::new();
    for field in ["name", "generateName"] {
        if let Some(text) = metadata[field].as_str() {
            fields.insert(Key::String(Arc::new(field.to_owned())), CelValue::String(Arc::new(text.to_owned())));
        }
    }
    CelValue::Map(CelMap { map: Arc::new(fields) })
}

/// An optional value of CEL.
fn optional_of(value: Option<CelValue>) -> CelValue {
    use kube_cel::cel::objects::OptionalValue;
    CelValue::Opaque(Arc::new(value.map_or_else(OptionalValue::none, OptionalValue::of)))
}

/// A duration as Go writes it.
pub(in crate::apiserver) fn go_duration(text: &str) -> Option<chrono::Duration> {
    let (sign, mut rest) = text.strip_prefix('-').map_or((1.0, text), |rest| (-1.0, rest));
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let after = &rest[number..];
        let unit = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let scale = match &after[..unit] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        seconds += rest[..number].parse::<f64>().ok()? * scale;
        rest = &after[unit..];
    }
    let nanoseconds = sign * seconds * 1e9;
    (nanoseconds.abs() < 9e18).then(|| chrono::Duration::nanoseconds(nanoseconds as i64))
}

/// A field's name as CEL can say it (API concepts, "Escaping").
fn escape(name: &str) -> String {
    if RESERVED.contains(&name) {
        return format!("__{name}__");
    }
    if name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return name.to_owned();
    }
    name.replace("__", "__underscores__").replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__")
}

fn join_rule_path(path: &str, below: &str) -> String {
    match (path, below.strip_prefix('.').unwrap_or(below)) {
        ("", "") => NO_PATH.to_owned(),
        (path, "") => path.to_owned(),
        ("", below) => below.to_owned(),
        (path, below) if below.starts_with('[') => format!("{path}{below}"),
        (path, below) => format!("{path}.{below}"),
    }
}

impl Rule {
    /// What is told when the rule does not hold.
    fn told(&self, scope: &Context<'_>, steps: &mut u64) -> String {
        if let Some(expression) = &self.message_expression
            && let Some(Ok(CelValue::String(text))) = patterns::resolve(&expression.tree, scope, steps)
        {
            let text = text.trim();
            if !text.is_empty() && text.len() <= MESSAGE_MAX && !text.contains('\n') {
                return text.to_owned();
            }
        }
        self.message.clone().unwrap_or_else(|| format!("failed rule: {}", self.text))
    }
}

#[cfg(test)]
mod tests {
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
        let told =
            schema(&json!([{"rule": "self.a == 'x'", "messageExpression": "'a is ' + self.a", "fieldPath": ".a",
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
        assert_eq!(
            found(&schema(&json!([])), &new, Some(&old)),
            ["keyed[0]: Invalid value: \"object\": v may not shrink"]
        );
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
        let split = schema(&json!([{"rule": "self.a.split('').all(x, self.a.split('').all(y, x == y))"}]));
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
    fn lists_that_are_built_and_texts_that_are_read_cost_their_size() {
        let steps = |rule: &str, list: u64, text: u64| read(rule).unwrap().cost.steps(list, text);
        for (rule, list, text, may) in [
            ("self.l.map(x, x).size() >= 0", 1000, 10, true),
            ("self.l.map(x, x).size() >= 0", 60_000, 10, false),
            ("self.l.filter(x, x > 1).size() >= 0", 60_000, 10, false),
            ("self.l.all(x, x >= 0)", 60_000, 10, true),
            ("self.l.map(x, self.t + 'x').size() >= 0", 3000, 100_000, false),
            ("self.t.matches('^[a-z]+$')", 1, 100_000, true),
        ] {
            let cost = steps(rule, list, text);
            assert_eq!(cost <= RULE_COST_MAX, may, "{rule} {list} {text}: {cost}");
        }
    }
}
