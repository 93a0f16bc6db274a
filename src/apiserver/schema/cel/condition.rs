//! Conditions in CEL on values that no schema describes: `matchConditions` of webhooks.

use std::collections::HashMap;
use std::sync::Arc;

use kube_cel::cel::Value as CelValue;
use kube_cel::cel::common::ast::{Expr, IdedExpr, LiteralValue, operators};
use kube_cel::cel::objects::{Key, Map as CelMap};
use serde_json::Value;

use super::meter::{self, EvaluationScope};
use super::{Expression, FUNCTIONS, RULE_COST_MAX, check, parts, patterns, read};

/// Steps that the conditions of one webhook may take together, as upstream (`RuntimeCELCostBudgetMatchConditions`).
pub(in crate::apiserver) const COST_MAX: u64 = 2_500_000;

/// An expression that gives true or false.
#[derive(Debug)]
pub(in crate::apiserver) struct CelCondition {
    expression: Arc<Expression>,
}

impl CelCondition {
    /// Reads a condition on these variables.
    ///
    /// # Errors
    ///
    /// Why it is none.
    pub fn compile(text: &str, variables: &[&str]) -> Result<Self, String> {
        let expression = read(text).map_err(|reason| (*reason).clone())?;
        // The first part of a function's name may be any word, so it would be found out only when it is asked.
        if expression.tree.references().has_variable("authorizer") {
            return Err("compilation failed: the variable authorizer is not supported here".into());
        }
        check::untyped(&expression.tree, variables).map_err(|reason| format!("compilation failed: {reason}"))?;
        match plain_type(&expression.tree) {
            None | Some("bool") => Ok(Self { expression }),
            Some(other) => Err(format!("must evaluate to bool but got {other}")),
        }
    }

    /// Whether it holds for these values; what it takes is taken off `steps`.
    ///
    /// # Errors
    ///
    /// Why nobody can tell.
    pub fn holds(&self, values: &CelVariables, steps: &mut u64) -> Result<bool, String> {
        let _patterns = patterns::OfObject::begin();
        let scope = values.0.as_slice();
        let Some(rest) = steps.checked_sub(values.1) else {
            *steps = 0;
            return Err("running out of cost budget".into());
        };
        let may_take = rest.min(RULE_COST_MAX);
        let mut spare = may_take;
        let found = FUNCTIONS.with(|functions| {
            within(scope, &EvaluationScope::EMPTY, |scope| {
                patterns::resolve(&self.expression.tree, scope, functions, &mut spare)
            })
        });
        *steps = rest - (may_take - if found.is_some() { spare } else { 0 });
        match found {
            None => Err("call cost exceeds limit".into()),
            Some(Ok(CelValue::Bool(truth))) => Ok(truth),
            Some(Ok(_)) => Err("must evaluate to bool".into()),
            Some(Err(error)) => Err(meter::told(&error)),
        }
    }
}

/// The type of what an expression gives, where that is plain: of literals, of what is reckoned of them, and of fields of
/// objects, of which nobody knows it.
fn plain_type(node: &IdedExpr) -> Option<&'static str> {
    let dynamic = |inner: &IdedExpr| plain_type(inner).filter(|kind| *kind == "dyn");
    match &node.expr {
        Expr::Literal(value) => Some(match value {
            LiteralValue::Boolean(_) => "bool",
            LiteralValue::Bytes(_) => "bytes",
            LiteralValue::Double(_) => "double",
            LiteralValue::Int(_) => "int",
            LiteralValue::Null => "null_type",
            LiteralValue::String(_) => "string",
            LiteralValue::UInt(_) => "uint",
        }),
        Expr::Ident(name) => matches!(name.as_str(), "object" | "oldObject").then_some("dyn"),
        Expr::Select(select) => {
            if select.test {
                None
            } else {
                dynamic(&select.operand)
            }
        }
        Expr::Call(call) => match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::INDEX, [whole, _]) => dynamic(whole),
            (operators::CONDITIONAL, [_, one, other]) => {
                plain_type(one).filter(|kind| plain_type(other) == Some(*kind))
            }
            (
                operators::ADD | operators::SUBSTRACT | operators::MULTIPLY | operators::DIVIDE | operators::MODULO,
                [one, other],
            ) => plain_type(one).filter(|kind| *kind != "dyn" && plain_type(other) == Some(*kind)),
            _ => None,
        },
        _ => None,
    }
}

/// Values as CEL sees them, each with the name of its variable, and the steps that it takes to be shown them.
pub(in crate::apiserver) struct CelVariables(Vec<(&'static str, CelValue)>, u64);

impl CelVariables {
    /// Shows these.
    pub fn of(values: &[(&'static str, &Value)]) -> Self {
        let steps = values.iter().map(|(_, value)| parts(value)).fold(0, u64::saturating_add);
        Self(values.iter().map(|(name, value)| (*name, to_cel(value))).collect(), steps)
    }
}

/// Calls with all of the variables.
fn within<R>(
    values: &[(&'static str, CelValue)],
    scope: &EvaluationScope<'_>,
    call: impl FnOnce(&EvaluationScope<'_>) -> R,
) -> R {
    match values.split_first() {
        Some(((name, value), rest)) => within(rest, &scope.with(name, value), call),
        None => call(scope),
    }
}

fn to_cel(value: &Value) -> CelValue {
    match value {
        Value::Null => CelValue::Null,
        Value::Bool(truth) => CelValue::Bool(*truth),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => CelValue::Int(whole),
            (None, Some(whole)) => CelValue::UInt(whole),
            (None, None) => CelValue::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => CelValue::String(Arc::new(text.clone())),
        Value::Array(entries) => CelValue::List(Arc::new(entries.iter().map(to_cel).collect())),
        Value::Object(map) => {
            let field = |(name, child): (&String, &Value)| (Key::String(Arc::new(name.clone())), to_cel(child));
            CelValue::Map(CelMap { map: Arc::new(map.iter().map(field).collect::<HashMap<_, _>>()) })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_judge_what_they_are_shown() {
        let object = json!({"metadata": {"name": "a", "labels": {"x": "y"}}, "spec": {"replicas": 3}});
        let request = json!({"operation": "CREATE", "userInfo": {"username": "eve", "groups": ["system:nodes"]}});
        let shown = CelVariables::of(&[("object", &object), ("oldObject", &Value::Null), ("request", &request)]);
        let variables = ["object", "oldObject", "request"];
        for (text, wanted) in [
            ("object.metadata.name == 'a'", Ok(true)),
            ("oldObject == null && object.spec.replicas > 5", Ok(false)),
            ("!('system:nodes' in request.userInfo.groups)", Ok(false)),
            ("has(object.metadata.labels) && 'x' in object.metadata.labels", Ok(true)),
            ("object.metadata.labels.exists(key, key.matches('^x$'))", Ok(true)),
            ("object.metadata.annotations.x == 'y'", Err("no such key: annotations")),
            ("request.operation", Err("must evaluate to bool")),
        ] {
            let condition = CelCondition::compile(text, &variables).unwrap();
            let found = condition.holds(&shown, &mut COST_MAX.clone());
            match (found, wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{text}"),
                (Err(found), Err(wanted)) => assert!(found.contains(wanted), "{text}: {found}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
        for (text, wanted) in [
            ("authorizer.group('').check('get').allowed()", "authorizer is not supported"),
            ("objekt.metadata.name == 'a'", "undeclared reference to 'objekt'"),
            ("object.", "compilation failed"),
            ("1 + 1", "must evaluate to bool but got int"),
            ("'text'", "must evaluate to bool but got string"),
            ("object.spec['replicas']", "must evaluate to bool but got dyn"),
            ("request.dryRun ? object.a : oldObject.a", "must evaluate to bool but got dyn"),
        ] {
            let fault = CelCondition::compile(text, &variables).unwrap_err();
            assert!(fault.contains(wanted), "{fault}");
        }
    }

    #[test]
    fn a_condition_takes_no_more_than_it_may() {
        let many = json!({"list": (0..3000).collect::<Vec<_>>()});
        let shown = CelVariables::of(&[("object", &many)]);
        let condition =
            CelCondition::compile("object.list.all(a, object.list.all(b, a + b >= 0))", &["object"]).unwrap();
        let mut steps = COST_MAX;
        assert!(condition.holds(&shown, &mut steps).unwrap_err().contains("cost"));
        assert!(steps < COST_MAX);
    }
}
