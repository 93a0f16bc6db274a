//! Rules in CEL (`x-kubernetes-validations`), of the schemas of users.
//!
//! The language and Kubernetes' functions come from the `kube-cel` crate. What is added here is what a server needs:
//! a bound of what a rule may cost, counted while it runs (`meter`); a bound of its nesting; the former self of entries of keyed
//! lists; and upstream's words.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;

use kube_cel::KubeCelExt;
use kube_cel::cel::common::ast::{ComprehensionExpr, EntryExpr, Expr, IdedExpr, MapExpr as CelMapExpr, StructExpr};
use kube_cel::cel::objects::{Key, Map as CelMap};
use kube_cel::cel::parser::Parser;
use kube_cel::cel::{Context, Value as CelValue};
use serde_json::Value;

use super::super::answers::status::{FieldError, FieldFault};
use super::format::SchemaFormat;
use super::interner::{InternOutcome, Interner};
use super::validate::{NO_PATH, type_of};
use super::{ERRORS_MAX, Schema, entry_at, join};

mod check;
pub(in crate::apiserver) mod condition;
mod grammar;
mod meter;
mod patterns;

use meter::EvaluationScope;

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
/// Bytes of a text that count as a step when it is shown to rules.
const SHOWN_STEP: u64 = 64;
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
pub(super) struct ValidationRule {
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
}

pub(super) static IN_USE: Interner<Expression, String> = Interner::new();

/// Compiles the rules of one node. On failure the index of the rule and the reason.
pub(super) fn compile(rules: &[Value]) -> Result<Vec<Arc<ValidationRule>>, (usize, String)> {
    if rules.is_empty() {
        return Ok(Vec::new());
    }
    if rules.len() > RULES_MAX {
        return Err((RULES_MAX, format!("must have at most {RULES_MAX} items")));
    }
    rules.iter().enumerate().map(|(index, rule)| compile_one(rule).map_err(|reason| (index, reason))).collect()
}

fn compile_one(source: &Value) -> Result<Arc<ValidationRule>, String> {
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
    Ok(Arc::new(ValidationRule {
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
pub(super) fn read(text: &str) -> InternOutcome<Expression, String> {
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

/// Reads an expression and looks how deep it is. To be called with a large stack.
fn read_anew(text: &str) -> Result<Expression, String> {
    grammar::check(text).map_err(|error| format!("compilation failed: {error}"))?;
    let parser = Parser::default().enable_optional_syntax(true);
    // As upstream shows the place.
    let told = |error: &dyn std::fmt::Display| error.to_string().replace("\n|", "\n |");
    let tree = parser.parse(text).map_err(|error| format!("compilation failed: {}", told(&error)))?;
    let mut open: Vec<(&IdedExpr, usize)> = vec![(&tree, 1)];
    while let Some((node, depth)) = open.pop() {
        if depth > DEPTH_MAX {
            return Err(format!("must not be nested deeper than {DEPTH_MAX}"));
        }
        let mut below = |child| open.push((child, depth + 1));
        match &node.expr {
            Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).for_each(below),
            Expr::Comprehension(comprehension) => {
                let ComprehensionExpr { iter_range, accu_init, loop_cond, loop_step, result, .. } = &**comprehension;
                [iter_range, accu_init, loop_cond, loop_step, result].into_iter().for_each(below);
            }
            Expr::List(list) => list.elements.iter().for_each(below),
            Expr::Select(select) => below(&select.operand),
            Expr::Map(CelMapExpr { entries }) | Expr::Struct(StructExpr { entries, .. }) => {
                entries.iter().for_each(|entry| entry_parts(&entry.expr, &mut below));
            }
            Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => {}
        }
    }
    Ok(Expression { tree })
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

/// Parts of a value, each of which takes a step to be shown to rules.
fn parts(value: &Value) -> u64 {
    match value {
        Value::Array(entries) => entries.iter().map(parts).fold(1, u64::saturating_add),
        Value::Object(map) => map.values().map(parts).fold(1, u64::saturating_add),
        Value::String(text) => 1 + text.len() as u64 / SHOWN_STEP,
        _ => 1,
    }
}

/// Steps that are left for the rules of one object; nothing once they did not suffice, which is told once.
struct CostBudget(Option<u64>);

impl CostBudget {
    fn left(&self) -> u64 {
        self.0.unwrap_or(0)
    }

    /// Whether they suffice.
    fn take(&mut self, steps: u64) -> bool {
        self.0 = self.0.and_then(|left| left.checked_sub(steps));
        self.0.is_some()
    }

    fn end(&mut self) {
        self.0 = None;
    }

    fn is_over(&self) -> bool {
        self.0.is_none()
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
        let mut budget = CostBudget(Some(COST_MAX));
        let _patterns = patterns::OfObject::begin();
        FUNCTIONS.with(|functions| self.rules_at(value, old, "", functions, &mut budget, errors));
    }

    fn rules_at(
        &self,
        value: &Value,
        old: Option<&Value>,
        path: &str,
        functions: &Context<'_>,
        budget: &mut CostBudget,
        errors: &mut Vec<FieldError>,
    ) {
        if !self.any_rules || value.is_null() || errors.len() >= ERRORS_MAX || budget.is_over() {
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
                let Some(schema) = &self.items else { return };
                let former = self.former(old);
                for (index, entry) in entries.iter().enumerate() {
                    let old = former.of(entry);
                    schema.rules_at(entry, old, &entry_at(path, index), functions, budget, errors);
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
        budget: &mut CostBudget,
        errors: &mut Vec<FieldError>,
    ) {
        let unchanged = old == Some(value);
        // What was wrong before may stay, unless the rule is about the change.
        let is_asked = |rule: &&Arc<ValidationRule>| {
            !((unchanged && !rule.transition) || (rule.transition && old.is_none() && !rule.optional_old))
        };
        let mut rules = self.rules.iter().filter(is_asked).peekable();
        if rules.peek().is_none() {
            return;
        }
        if !budget.take(parts(value).saturating_add(old.map_or(0, parts))) {
            errors.push(FieldError::new(FieldFault::Unchecked, join_rule_path(path, ""), OUT_OF_BUDGET));
            return;
        }
        let now = self.to_cel(value, path.is_empty());
        let former = old.map(|old| self.to_cel(old, path.is_empty()));
        let optional = optional_of(former.clone());
        let empty = EvaluationScope::EMPTY;
        let alone = empty.with("self", &now);
        for rule in rules {
            let mut fault = |detail: String| {
                let path = join_rule_path(path, &rule.field_path);
                errors.push(match rule.fault {
                    FieldFault::Invalid | FieldFault::Duplicate => {
                        FieldError::with_value(rule.fault, path, &type_of(value).into(), detail)
                    }
                    other => FieldError::new(other, path, detail),
                });
            };
            let former = if rule.optional_old && rule.transition { Some(&optional) } else { former.as_ref() };
            let scope = former.map_or(alone, |former| alone.with("oldSelf", former));
            let left = budget.left();
            let may_take = left.min(RULE_COST_MAX);
            let mut spare = may_take;
            let Some(found) = patterns::resolve(&rule.expression.tree, &scope, functions, &mut spare) else {
                if left <= RULE_COST_MAX {
                    budget.end();
                    errors.push(FieldError::new(FieldFault::Unchecked, join_rule_path(path, ""), OUT_OF_BUDGET));
                    return;
                }
                budget.take(may_take);
                fault(format!("call cost exceeds limit for rule: {}", rule.text));
                continue;
            };
            match found {
                Ok(CelValue::Bool(true)) => {}
                Ok(CelValue::Bool(false)) => fault(rule.told(&scope, functions, &mut spare)),
                Ok(_) => fault(format!("rule must evaluate to a bool: {}", rule.text)),
                Err(error) => {
                    let rule = rule.message.as_deref().unwrap_or(&rule.text);
                    fault(format!("{} evaluating rule: {rule}", meter::told(&error)));
                }
            }
            budget.take(may_take - spare);
        }
    }

    /// The value as CEL sees it: fields that the schema knows, under names that CEL can say.
    fn to_cel(&self, value: &Value, is_root: bool) -> CelValue {
        match value {
            Value::Null => CelValue::Null,
            Value::Bool(truth) => CelValue::Bool(*truth),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(whole), _) if self.kind != Some(super::SchemaType::Number) => CelValue::Int(whole),
                (None, Some(whole)) if self.kind != Some(super::SchemaType::Number) => CelValue::UInt(whole),
                _ => {
                    let float = number.as_f64().unwrap_or(f64::NAN);
                    let whole = self.kind == Some(super::SchemaType::Integer);
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
            Some(SchemaFormat::DateTime | SchemaFormat::Instant) => {
                chrono::DateTime::parse_from_rfc3339(text).ok().map(CelValue::Timestamp)
            }
            Some(SchemaFormat::Date) => format!("{text}T00:00:00Z").parse().ok().map(CelValue::Timestamp),
            Some(SchemaFormat::Duration) => go_duration(text).map(CelValue::Duration),
            Some(SchemaFormat::Byte) => {
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

impl ValidationRule {
    /// What is told when the rule does not hold.
    fn told(&self, scope: &EvaluationScope<'_>, functions: &Context<'_>, steps: &mut u64) -> String {
        let made = self.message_expression.as_ref().and_then(|expression| {
            let mut left = *steps;
            let made = patterns::resolve(&expression.tree, scope, functions, &mut left);
            *steps = if made.is_some() { left } else { 0 };
            made
        });
        if let Some(Ok(CelValue::String(text))) = made {
            let text = text.trim();
            if !text.is_empty() && text.len() <= MESSAGE_MAX && !text.contains('\n') {
                return text.to_owned();
            }
        }
        self.message.clone().unwrap_or_else(|| format!("failed rule: {}", self.text))
    }
}

#[cfg(test)]
mod tests;
