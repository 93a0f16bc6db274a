//! Type check of CEL rules.
//!
//! Whether rules can work on the values that a schema describes: fields and variables that do not exist, and rules
//! that do not judge. Asked when a definition is written. Pure.
//!
//! This is no whole type checker: where a type is not plain from the schema, anything goes, and what is wrong is found
//! when the rule is asked.

use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, operators};

use super::super::super::answers::status::shorten;
use super::super::{Schema, SchemaType};
use super::{ValidationRule, escape};

/// A rule that cannot work.
#[derive(Debug, PartialEq)]
pub(in crate::apiserver) struct RuleFault {
    /// Where the rule is, from the root of the schema, as upstream writes it: `.properties[spec]`.
    pub path: String,
    /// Which of the node's rules.
    pub index: usize,
    /// `rule` or `messageExpression`.
    pub field: &'static str,
    /// What it says.
    pub text: String,
    /// What is wrong with it.
    pub reason: String,
}

/// What names stand for besides variables: types, and the first words of functions' names.
const WORDS: [&str; 29] = [
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
    "dyn",
    "duration",
    "timestamp",
    "optional",
    "google",
    "ip",
    "cidr",
    "url",
    "quantity",
    "semver",
    "math",
    "strings",
    "sets",
    "base64",
    "json",
    "jsonpatch",
    "format",
    "regex",
    "lists",
];

/// Macros: the first words in their brackets are names. Those that the language knows became loops when the rule was read;
/// these did not, and are not looked into.
const MACROS: [&str; 12] = [
    "all",
    "exists",
    "exists_one",
    "existsOne",
    "map",
    "filter",
    "transformList",
    "transformMap",
    "transformMapEntry",
    "optMap",
    "optFlatMap",
    "sortBy",
];

/// What is known of a value.
#[derive(Clone, Copy)]
enum StaticValue<'s> {
    /// It is as this schema says.
    As(&'s Schema),
    /// As the schema of a whole object says, with what every object has.
    Whole(&'s Schema),
    /// Nothing.
    Any,
}

/// Variables, the innermost last.
type CheckScope<'s> = Vec<(String, StaticValue<'s>)>;

impl Schema {
    /// Rules of this schema, the root of a kind, that cannot work.
    pub(in crate::apiserver) fn rule_faults(&self) -> Vec<RuleFault> {
        let mut faults = Vec::new();
        self.rule_faults_at("", true, &mut faults);
        faults
    }

    fn rule_faults_at(&self, path: &str, root: bool, faults: &mut Vec<RuleFault>) {
        if !self.any_rules {
            return;
        }
        let itself = if root || self.embedded { StaticValue::Whole(self) } else { StaticValue::As(self) };
        for (index, rule) in self.rules.iter().enumerate() {
            let found = rule.faults(itself);
            let fault = |(field, text, reason)| RuleFault { path: path.to_owned(), index, field, text, reason };
            faults.extend(found.into_iter().map(fault));
        }
        for (name, property) in &self.properties {
            property.rule_faults_at(&format!("{path}.properties[{}]", shorten(name, 256)), false, faults);
        }
        for (schema, step) in [(&self.items, "items"), (&self.additional, "additionalProperties")] {
            if let Some(schema) = schema {
                schema.rule_faults_at(&format!("{path}.{step}"), false, faults);
            }
        }
    }
}

impl ValidationRule {
    fn faults(&self, itself: StaticValue<'_>) -> Vec<(&'static str, String, String)> {
        let old = if self.optional_old { StaticValue::Any } else { itself };
        let scope = || vec![("self".to_owned(), itself), ("oldSelf".to_owned(), old)];
        let mut found = Vec::new();
        match judge(&self.expression.tree, &mut scope()) {
            Err(reason) => found.push(("rule", self.text.clone(), format!("compilation failed: {reason}"))),
            Ok(StaticValue::As(schema) | StaticValue::Whole(schema))
                if schema.kind.is_some_and(|kind| kind != SchemaType::Boolean) =>
            {
                let reason = "compilation failed: cel expression must evaluate to a bool";
                found.push(("rule", self.text.clone(), reason.to_owned()));
            }
            Ok(_) => {}
        }
        if let Some(expression) = &self.message_expression
            && let Err(reason) = judge(&expression.tree, &mut scope())
        {
            let reason = format!("messageExpression compilation failed: {reason}");
            found.push(("messageExpression", self.text.clone(), reason));
        }
        found
    }
}

/// Whether an expression asks for no other variables than these, of which nothing else is known.
pub(super) fn untyped(tree: &IdedExpr, variables: &[&str]) -> Result<(), String> {
    let mut scope = variables.iter().map(|name| ((*name).to_owned(), StaticValue::Any)).collect();
    judge(tree, &mut scope).map(drop)
}

/// What an expression gives, or why it cannot. Expressions are not nested deeply: that was checked when they were read.
fn judge<'s>(node: &IdedExpr, scope: &mut CheckScope<'s>) -> Result<StaticValue<'s>, String> {
    match &node.expr {
        Expr::Ident(name) => variable(name, scope),
        Expr::Select(select) => judge(&select.operand, scope)?.field(&select.field),
        Expr::Call(call) => judge_call(call, scope),
        Expr::Comprehension(comprehension) => judge_loop(comprehension, scope),
        Expr::List(list) => {
            list.elements.iter().try_for_each(|element| judge(element, scope).map(drop))?;
            Ok(StaticValue::Any)
        }
        Expr::Map(map) => {
            for entry in &map.entries {
                if let EntryExpr::MapEntry(entry) = &entry.expr {
                    judge(&entry.key, scope)?;
                    judge(&entry.value, scope)?;
                }
            }
            Ok(StaticValue::Any)
        }
        Expr::Struct(_) | Expr::Literal(_) | Expr::Unspecified => Ok(StaticValue::Any),
    }
}

fn variable<'s>(name: &str, scope: &CheckScope<'s>) -> Result<StaticValue<'s>, String> {
    if let Some((_, known)) = scope.iter().rev().find(|(one, _)| one == name) {
        return Ok(*known);
    }
    if WORDS.contains(&name) || name.starts_with(['@', '.', '_']) {
        return Ok(StaticValue::Any);
    }
    Err(format!("undeclared reference to '{name}' (in container '')"))
}

fn judge_call<'s>(call: &CallExpr, scope: &mut CheckScope<'s>) -> Result<StaticValue<'s>, String> {
    let target = call.target.as_ref().map(|target| match &target.expr {
        // The first part of a function's name may be any word.
        Expr::Ident(name) => Ok(variable(name, scope).unwrap_or(StaticValue::Any)),
        _ => judge(target, scope),
    });
    target.transpose()?;
    if MACROS.contains(&call.func_name.as_str()) {
        return Ok(StaticValue::Any);
    }
    let mut given = Vec::with_capacity(call.args.len());
    for argument in &call.args {
        given.push(judge(argument, scope)?);
    }
    Ok(match (call.func_name.as_str(), given.as_slice()) {
        (operators::INDEX, [StaticValue::As(schema), _]) => schema.entry(),
        _ => StaticValue::Any,
    })
}

fn judge_loop<'s>(comprehension: &ComprehensionExpr, scope: &mut CheckScope<'s>) -> Result<StaticValue<'s>, String> {
    let range = judge(&comprehension.iter_range, scope)?;
    judge(&comprehension.accu_init, scope)?;
    let is_list = matches!(range, StaticValue::As(schema) if schema.items.is_some());
    let entry = match range {
        StaticValue::As(schema) => schema.entry(),
        StaticValue::Whole(_) | StaticValue::Any => StaticValue::Any,
    };
    let depth = scope.len();
    scope.push((comprehension.accu_var.clone(), StaticValue::Any));
    match &comprehension.iter_var2 {
        // The key or the number, and the value.
        Some(second) => {
            scope.push((comprehension.iter_var.clone(), StaticValue::Any));
            scope.push((second.clone(), entry));
        }
        // Of a map, the keys.
        None => scope.push((comprehension.iter_var.clone(), if is_list { entry } else { StaticValue::Any })),
    }
    let inner = [&comprehension.loop_cond, &comprehension.loop_step, &comprehension.result];
    let judged = inner.into_iter().try_for_each(|part| judge(part, scope).map(drop));
    scope.truncate(depth);
    judged.map(|()| StaticValue::Any)
}

impl Schema {
    /// What an entry of a list or of a map is.
    fn entry(&self) -> StaticValue<'_> {
        self.items.as_deref().or(self.additional.as_deref()).map_or(StaticValue::Any, Schema::known)
    }

    fn known(&self) -> StaticValue<'_> {
        if self.embedded { StaticValue::Whole(self) } else { StaticValue::As(self) }
    }

    /// Whether an object of this schema has the fields that it names and no others.
    fn is_closed(&self) -> bool {
        self.kind == Some(SchemaType::Object)
            && !self.properties.is_empty()
            && !(self.preserve_unknown || self.any_additional || self.int_or_string || self.is_schema)
    }
}

impl<'s> StaticValue<'s> {
    fn field(self, name: &str) -> Result<Self, String> {
        let schema = match self {
            Self::Any => return Ok(Self::Any),
            Self::Whole(_) if matches!(name, "apiVersion" | "kind" | "metadata") => return Ok(Self::Any),
            Self::Whole(schema) | Self::As(schema) => schema,
        };
        if let Some((_, property)) = schema.properties.iter().find(|(one, _)| escape(one) == name) {
            return Ok(property.known());
        }
        if let Some(values) = &schema.additional {
            return Ok(values.known());
        }
        if schema.is_closed() { Err(format!("undefined field '{name}'")) } else { Ok(Self::Any) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn faults(rule: &Value) -> Vec<String> {
        let schema = json!({
            "type": "object",
            "properties": {
                "spec": {
                    "type": "object",
                    "properties": {
                        "min": {"type": "integer"},
                        "max-size": {"type": "integer"},
                        "on": {"type": "boolean"},
                        "parts": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
                        "labels": {"type": "object", "additionalProperties": {
                            "type": "object", "properties": {"text": {"type": "string"}}}},
                        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                            "properties": {"x": {"type": "string"}}},
                        "port": {"x-kubernetes-int-or-string": true},
                        "namespace": {"type": "string"},
                    },
                    "x-kubernetes-validations": [rule],
                },
            },
        });
        let found = Schema::compile(&schema).unwrap().rule_faults();
        found
            .into_iter()
            .map(|fault| format!("{}[{}].{}: {}", fault.path, fault.index, fault.field, fault.reason))
            .collect()
    }

    #[test]
    fn rules_that_can_work_are_let_pass() {
        for rule in [
            "self.min > 1",
            "self.max__dash__size > self.min",
            "self.on",
            "has(self.parts) && self.parts.all(p, p.name != '' && p.name.size() < 5)",
            "self.parts.exists_one(p, p.name == oldSelf.parts[0].name)",
            "self.parts.map(p, p.name).join(',') != ''",
            "self.parts.filter(p, p.name == 'a').all(q, q.whatever == 1)",
            "self.labels.all(key, self.labels[key].text != key)",
            "self.labels.a.text == 'x'",
            "self.labels.transformMap(k, v, v.text).size() > 0",
            "self.free.anything.goes == 'x'",
            "self.port == 1 || self.port == '1'",
            "self.__namespace__ == 'x'",
            "type(self.min) == int",
            "math.greatest(self.min, 2) > 1 && isURL('http://x') && quantity('1Gi').isGreaterThan(quantity('1Mi'))",
            "optional.of(self.min).hasValue() && self.?min.optMap(m, m + 1).hasValue()",
            "self.?min.orValue(1) > 0",
            "self.on ? self.min > 1 : self.min < 1",
            "duration('1h') > duration('1m') && timestamp('2026-01-01T00:00:00Z').getFullYear() > 1",
            "cidr('10.0.0.0/8').containsIP(ip('10.0.0.1'))",
            "{'a': self.min}.a > 1 && [self.min][0] > 1",
        ] {
            assert_eq!(faults(&json!({ "rule": rule })), [""; 0], "{rule}");
        }
        let optional = json!({"rule": "!oldSelf.hasValue() || oldSelf.value().min > 1", "optionalOldSelf": true});
        assert_eq!(faults(&optional), [""; 0]);
        let root = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}},
            "x-kubernetes-validations": [{"rule": "self.metadata.name == self.spec.a && self.kind != ''"}]});
        assert_eq!(Schema::compile(&root).unwrap().rule_faults(), []);
    }

    #[test]
    fn rules_that_cannot_work_say_why() {
        for (rule, reason) in [
            ("self.nope > 1", "undefined field 'nope'"),
            ("has(self.nope)", "undefined field 'nope'"),
            ("self.parts.all(p, p.size2 > 1)", "undefined field 'size2'"),
            ("self.parts[0].nope == ''", "undefined field 'nope'"),
            ("self.labels.all(key, self.labels[key].nope == key)", "undefined field 'nope'"),
            ("self.on && (self.min > 1 || [oldSelf.nope].size() > 1)", "undefined field 'nope'"),
            ("spec.min > 1", "undeclared reference to 'spec' (in container '')"),
            ("self.parts.all(p, q.name == '')", "undeclared reference to 'q' (in container '')"),
            ("self.min", "cel expression must evaluate to a bool"),
        ] {
            let wanted = format!(".properties[spec][0].rule: compilation failed: {reason}");
            assert_eq!(faults(&json!({ "rule": rule })), [wanted], "{rule}");
        }
        let message = json!({"rule": "self.on", "messageExpression": "'at ' + self.nope"});
        let wanted =
            ".properties[spec][0].messageExpression: messageExpression compilation failed: undefined field 'nope'";
        assert_eq!(faults(&message), [wanted]);
    }
}
