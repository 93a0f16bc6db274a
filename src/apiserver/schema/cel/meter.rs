//! CEL evaluation with a cost limit.
//!
//! What a rule takes cannot be known from its text: texts and lists grow while it is evaluated, and a rule of a line makes a
//! terabyte of a letter. So each part of an expression takes a step, and so does each piece of what an operator or a function
//! is given, before it is done. Whoever runs out of steps is stopped, whatever the rest of the rule would make of that.
//!
//! The language's own parts (loops, members, conditions) are evaluated here, on values that are shared and not copied; what
//! operators and functions mean is the crate's, which is given their operands one by one.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, ListExpr, LiteralValue, MapExpr, operators,
};
use kube_cel::cel::objects::{Key, Map, OptionalValue};
use kube_cel::cel::{Context, ExecutionError, Value};

use super::patterns;

/// Bytes of a text that is looked at, and of one that is made, that count as a step.
const TEXT_STEP: u64 = 64;
const MADE_STEP: u64 = 16;
/// Entries of a list that is copied that count as a step.
const COPY_STEP: u64 = 4;
/// Nesting of values; deeper ones could exhaust a thread's stack.
const LEVELS_MAX: usize = 256;
/// Digits that a number is written with.
const DIGITS_MAX: usize = 1000;
/// Bytes of what an error says.
const ERROR_MAX: usize = 1024;

/// Functions that are no methods, whatever a variable is named.
const QUALIFIED: [&str; 9] = ["base64", "format", "ip", "jsonpatch", "lists", "math", "optional", "sets", "strings"];
/// Names of the operands that a function of the crate is given.
const OPERANDS: [&str; 6] = ["@0", "@1", "@2", "@3", "@4", "@5"];

type EvaluationResult = Result<Value, ExecutionError>;

/// Variables, the innermost first.
#[derive(Clone, Copy)]
pub(super) struct EvaluationScope<'s> {
    name: &'s str,
    value: Option<&'s Value>,
    outer: Option<&'s EvaluationScope<'s>>,
}

impl<'s> EvaluationScope<'s> {
    /// Without any.
    pub const EMPTY: EvaluationScope<'static> = EvaluationScope { name: "", value: None, outer: None };

    /// With one more.
    pub fn with(&'s self, name: &'s str, value: &'s Value) -> Self {
        Self { name, value: Some(value), outer: Some(self) }
    }

    fn get(&self, name: &str) -> Option<&'s Value> {
        let mut scope = Some(self);
        while let Some(one) = scope {
            if one.name == name && one.value.is_some() {
                return one.value;
            }
            scope = one.outer;
        }
        None
    }
}

/// Takes steps from those that the rule has left.
fn take(steps: u64) -> Result<(), ExecutionError> {
    patterns::take(steps).map_err(|reason| ExecutionError::function_error("cost", reason))
}

/// An error in words, no more of them than help.
pub(super) fn told(error: &ExecutionError) -> String {
    struct Bounded(String);
    impl fmt::Write for Bounded {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let room = ERROR_MAX.saturating_sub(self.0.len());
            let whole = text.len() <= room;
            let end = if whole { text.len() } else { text.floor_char_boundary(room) };
            self.0.push_str(&text[..end]);
            if whole { Ok(()) } else { Err(fmt::Error) }
        }
    }
    let mut words = Bounded(String::new());
    // As Google's own evaluator says it.
    let written = match error {
        ExecutionError::NoSuchKey(key) => write!(words, "no such key: {key}"),
        other => write!(words, "{other}"),
    };
    if written.is_err() {
        words.0.push('…');
    }
    words.0
}

/// Takes a step for each part of a value, and some for its texts.
fn look_at(value: &Value) -> Result<(), ExecutionError> {
    fn all(value: &Value, levels: usize) -> Result<(), ExecutionError> {
        let Some(levels) = levels.checked_sub(1) else {
            let reason = format!("values may not be nested deeper than {LEVELS_MAX}");
            return Err(ExecutionError::function_error("cost", reason));
        };
        take(1)?;
        match value {
            Value::List(entries) => entries.iter().try_for_each(|entry| all(entry, levels)),
            Value::Map(map) => map.map.iter().try_for_each(|(key, entry)| {
                take(if let Key::String(text) = key { text.len() as u64 / TEXT_STEP } else { 0 })?;
                all(entry, levels)
            }),
            Value::String(text) => take(text.len() as u64 / TEXT_STEP),
            Value::Bytes(bytes) => take(bytes.len() as u64 / TEXT_STEP),
            Value::Opaque(opaque) => match opaque.downcast_ref::<OptionalValue>().and_then(OptionalValue::value) {
                Some(inner) => all(inner, levels),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
    all(value, LEVELS_MAX)
}

/// Evaluates an expression with the functions of a context.
pub(super) fn evaluate(
    expression: &IdedExpr,
    scope: &EvaluationScope<'_>,
    functions: &Context<'_>,
) -> EvaluationResult {
    CostMeter { functions }.of(expression, scope)
}

struct CostMeter<'f> {
    functions: &'f Context<'f>,
}

fn truth(value: EvaluationResult) -> Result<bool, ExecutionError> {
    match value? {
        Value::Bool(truth) => Ok(truth),
        _ => Err(ExecutionError::NoSuchOverload),
    }
}

impl CostMeter<'_> {
    fn of(&self, expression: &IdedExpr, scope: &EvaluationScope<'_>) -> EvaluationResult {
        take(1)?;
        match &expression.expr {
            Expr::Literal(literal) => {
                if let LiteralValue::String(text) = literal {
                    take(text.inner().len() as u64 / TEXT_STEP)?;
                }
                Value::resolve(expression, self.functions)
            }
            Expr::Ident(name) => {
                let found = scope.get(name).cloned();
                found.ok_or_else(|| ExecutionError::UndeclaredReference(Arc::new(name.clone())))
            }
            Expr::Select(select) => match self.of(&select.operand, scope)? {
                Value::Map(map) => {
                    let found = map.map.get(&Key::String(Arc::new(select.field.clone())));
                    match (select.test, found) {
                        (true, found) => Ok(Value::Bool(found.is_some())),
                        (false, Some(found)) => Ok(found.clone()),
                        (false, None) => Err(ExecutionError::no_such_key(&select.field)),
                    }
                }
                _ => Ok(Value::Bool(false)),
            },
            Expr::List(list) => self.list(list, scope),
            Expr::Map(map) => self.map(map, scope),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension, scope),
            Expr::Call(call) => self.call(call, scope),
            Expr::Struct(_) | Expr::Unspecified => Err(ExecutionError::NoSuchOverload),
        }
    }

    fn list(&self, list: &ListExpr, scope: &EvaluationScope<'_>) -> EvaluationResult {
        let mut entries = Vec::with_capacity(list.elements.len());
        for (index, element) in list.elements.iter().enumerate() {
            let value = self.of(element, scope)?;
            entries.extend(if list.optional_indices.contains(&index) { optional(value) } else { Some(value) });
        }
        let made = Value::List(Arc::new(entries));
        // What is put together here may be deep, or the same again and again.
        look_at(&made)?;
        Ok(made)
    }

    fn map(&self, map: &MapExpr, scope: &EvaluationScope<'_>) -> EvaluationResult {
        let mut entries = HashMap::with_capacity(map.entries.len());
        for entry in &map.entries {
            let EntryExpr::MapEntry(entry) = &entry.expr else { return Err(ExecutionError::NoSuchOverload) };
            let key = match self.of(&entry.key, scope)? {
                Value::String(text) => Key::String(text),
                Value::Int(number) => Key::Int(number),
                Value::UInt(number) => Key::Uint(number),
                Value::Bool(truth) => Key::Bool(truth),
                other => {
                    look_at(&other)?;
                    return Err(ExecutionError::UnsupportedKeyType(other));
                }
            };
            let value = self.of(&entry.value, scope)?;
            if let Some(value) = if entry.optional { optional(value) } else { Some(value) } {
                entries.insert(key, value);
            }
        }
        let made = Value::Map(Map { map: Arc::new(entries) });
        look_at(&made)?;
        Ok(made)
    }

    fn comprehension(&self, comprehension: &ComprehensionExpr, scope: &EvaluationScope<'_>) -> EvaluationResult {
        let ComprehensionExpr { iter_var, accu_var, loop_cond, loop_step, result, .. } = comprehension;
        let mut so_far = self.of(&comprehension.accu_init, scope)?;
        let range = self.of(&comprehension.iter_range, scope)?;
        // What comes of a turn; nothing when the loop is over.
        let turn = |item: &Value, so_far: &Value| -> Result<Option<Value>, ExecutionError> {
            let outer = scope.with(accu_var, so_far);
            if !truth(self.of(loop_cond, &outer))? {
                return Ok(None);
            }
            self.of(loop_step, &outer.with(iter_var, item)).map(Some)
        };
        match &range {
            Value::List(entries) => {
                for entry in entries.iter() {
                    match turn(entry, &so_far)? {
                        Some(next) => so_far = next,
                        None => break,
                    }
                }
            }
            Value::Map(map) => {
                for key in map.map.keys() {
                    match turn(&Value::from(key), &so_far)? {
                        Some(next) => so_far = next,
                        None => break,
                    }
                }
            }
            _ => return Err(ExecutionError::NoSuchOverload),
        }
        self.of(result, &scope.with(accu_var, &so_far))
    }

    fn call(&self, call: &CallExpr, scope: &EvaluationScope<'_>) -> EvaluationResult {
        let either = |of: bool| {
            let left = truth(self.of(&call.args[0], scope));
            if left.as_ref() == Ok(&of) {
                return Ok(Value::Bool(of));
            }
            let right = self.of(&call.args[1], scope)?;
            match (left, right) {
                (Ok(_), Value::Bool(right)) => Ok(Value::Bool(right)),
                (Err(_), Value::Bool(right)) if right == of => Ok(Value::Bool(of)),
                (left, _) => Err(left.err().unwrap_or(ExecutionError::NoSuchOverload)),
            }
        };
        match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::CONDITIONAL, [condition, yes, no]) => {
                let branch = if truth(self.of(condition, scope))? { yes } else { no };
                return self.of(branch, scope);
            }
            (operators::LOGICAL_OR, [_, _]) => return either(true),
            (operators::LOGICAL_AND, [_, _]) => return either(false),
            (operators::NOT_STRICTLY_FALSE, [of]) => {
                return Ok(Value::Bool(truth(self.of(of, scope)).unwrap_or(true)));
            }
            _ => {}
        }
        let target = match call.target.as_deref() {
            None => CallTarget::None,
            Some(IdedExpr { expr: Expr::Ident(name), .. })
                if scope.get(name).is_none() || (QUALIFIED.contains(&name.as_str()) && self.knows(name, call)) =>
            {
                CallTarget::Name(name)
            }
            Some(target) => CallTarget::Value(self.of(target, scope)?),
        };
        let args = call.args.iter().map(|argument| self.of(argument, scope)).collect::<Result<Vec<Value>, _>>()?;
        if let CallTarget::None = target
            && let Some(outcome) = simple(&call.func_name, &args)
        {
            return outcome;
        }
        if call.func_name == "size" {
            match (&target, args.as_slice()) {
                (CallTarget::Value(Value::List(list)), []) | (CallTarget::None, [Value::List(list)]) => {
                    return Ok(Value::Int(list.len() as i64));
                }
                (CallTarget::Value(Value::Map(map)), []) | (CallTarget::None, [Value::Map(map)]) => {
                    return Ok(Value::Int(map.map.len() as i64));
                }
                _ => {}
            }
        }
        self.given(call, target, args)
    }

    /// Whether the function is there under its name and that of its room.
    fn knows(&self, room: &str, call: &CallExpr) -> bool {
        // The crate has no way to ask: what it does not know it says before it looks at anything else.
        let name = IdedExpr { id: 0, expr: Expr::Ident(room.to_owned()) };
        let asked = CallExpr { func_name: call.func_name.clone(), target: Some(Box::new(name)), args: Vec::new() };
        let asked = IdedExpr { id: 0, expr: Expr::Call(asked) };
        let asked = catch_unwind(AssertUnwindSafe(|| Value::resolve(&asked, self.functions)));
        !matches!(asked, Ok(Err(ExecutionError::UndeclaredReference(_))))
    }

    /// Has the crate do what is to be done with operands that are there.
    fn given(&self, call: &CallExpr, target: CallTarget<'_>, args: Vec<Value>) -> EvaluationResult {
        if args.len() >= OPERANDS.len() {
            take(args.len() as u64)?;
            return Err(ExecutionError::InvalidArgumentCount { expected: OPERANDS.len() - 1, actual: args.len() });
        }
        let named =
            if let CallTarget::Name(room) = &target { format!("{room}.{}", call.func_name) } else { String::new() };
        let operands: Vec<&Value> = target.value().into_iter().chain(&args).collect();
        operands.iter().try_for_each(|operand| look_at(operand))?;
        before(if named.is_empty() { &call.func_name } else { &named }, &operands)?;
        let mut scope = self.functions.new_inner_scope();
        let ident = |name: &str| IdedExpr { id: 0, expr: Expr::Ident(name.to_owned()) };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut names = OPERANDS.iter();
            let mut bind = |value: Value| {
                let name = names.next().copied().unwrap_or_default();
                scope.add_variable_from_value(name, value);
                ident(name)
            };
            let target = match target {
                CallTarget::None => None,
                CallTarget::Name(name) => Some(ident(name)),
                CallTarget::Value(value) => Some(bind(value)),
            };
            let args = args.into_iter().map(bind).collect();
            let call = CallExpr { func_name: call.func_name.clone(), target: target.map(Box::new), args };
            Value::resolve(&IdedExpr { id: 0, expr: Expr::Call(call) }, &scope)
        }));
        outcome.unwrap_or_else(|_| Err(ExecutionError::function_error(&call.func_name, "it could not be evaluated")))
    }
}

/// What a function is called on.
enum CallTarget<'e> {
    None,
    /// The room of a function: `math` of `math.abs`.
    Name(&'e str),
    Value(Value),
}

impl CallTarget<'_> {
    fn value(&self) -> Option<&Value> {
        if let Self::Value(value) = self { Some(value) } else { None }
    }
}

/// What an optional entry of a list or map adds to it.
fn optional(value: Value) -> Option<Value> {
    match &value {
        Value::Opaque(opaque) => match opaque.downcast_ref::<OptionalValue>() {
            Some(inner) => inner.value().cloned(),
            None => Some(value),
        },
        _ => Some(value),
    }
}

/// Operators on what is small, which are most: they are done here. `None` for all others.
fn simple(operator: &str, args: &[Value]) -> Option<EvaluationResult> {
    let truth = |truth: bool| Some(Ok(Value::Bool(truth)));
    let one_of = |index: usize, entries: &Arc<Vec<Value>>| {
        entries.get(index).cloned().ok_or_else(|| ExecutionError::IndexOutOfBounds(Value::Int(index as i64)))
    };
    match (operator, args) {
        (operators::LOGICAL_NOT, [Value::Bool(of)]) => truth(!of),
        (operators::EQUALS, [Value::Bool(a), Value::Bool(b)]) => truth(a == b),
        (operators::EQUALS, [Value::Int(a), Value::Int(b)]) => truth(a == b),
        (operators::NOT_EQUALS, [Value::Int(a), Value::Int(b)]) => truth(a != b),
        (operators::LESS, [Value::Int(a), Value::Int(b)]) => truth(a < b),
        (operators::LESS_EQUALS, [Value::Int(a), Value::Int(b)]) => truth(a <= b),
        (operators::GREATER, [Value::Int(a), Value::Int(b)]) => truth(a > b),
        (operators::GREATER_EQUALS, [Value::Int(a), Value::Int(b)]) => truth(a >= b),
        (operators::ADD, [Value::Int(a), Value::Int(b)]) => a.checked_add(*b).map(|sum| Ok(Value::Int(sum))),
        (operators::EQUALS | operators::NOT_EQUALS, [Value::String(a), Value::String(b)]) => {
            let same = a == b;
            Some(
                take(a.len().min(b.len()) as u64 / TEXT_STEP)
                    .map(|()| Value::Bool(same == (operator == operators::EQUALS))),
            )
        }
        // A loop that makes a list puts one entry more to it at each turn.
        (operators::ADD, [Value::List(a), Value::List(b)]) => Some(
            take((a.len() + b.len()) as u64 / COPY_STEP)
                .map(|()| Value::List(Arc::new(a.iter().chain(b.iter()).cloned().collect()))),
        ),
        (operators::INDEX, [Value::List(entries), Value::Int(index)]) => match usize::try_from(*index) {
            Ok(index) => Some(one_of(index, entries)),
            Err(_) => Some(Err(ExecutionError::IndexOutOfBounds(Value::Int(*index)))),
        },
        (operators::INDEX, [Value::Map(map), Value::String(key)]) => {
            let found = map.map.get(&Key::String(Arc::clone(key))).cloned();
            Some(found.ok_or_else(|| ExecutionError::NoSuchKey(Arc::clone(key))))
        }
        (operators::IN, [Value::String(key), Value::Map(map)]) => {
            truth(map.map.contains_key(&Key::String(Arc::clone(key))))
        }
        (operators::IN, [sought @ (Value::String(_) | Value::Int(_) | Value::Bool(_)), Value::List(entries)]) => {
            let same = |entry: &Value| match (sought, entry) {
                (Value::String(a), Value::String(b)) => a == b,
                (Value::Int(a), Value::Int(b)) => a == b,
                (Value::Bool(a), Value::Bool(b)) => a == b,
                _ => false,
            };
            let length = if let Value::String(text) = sought { text.len() as u64 / TEXT_STEP } else { 0 };
            for entry in entries.iter() {
                if let Err(error) = take(1 + length) {
                    return Some(Err(error));
                }
                if same(entry) {
                    return truth(true);
                }
            }
            truth(false)
        }
        _ => None,
    }
}

/// Takes what a function or operator takes beyond a look at its operands.
fn before(name: &str, operands: &[&Value]) -> Result<(), ExecutionError> {
    let text = |index: usize| match operands.get(index) {
        Some(Value::String(text)) => text.len() as u64,
        _ => 0,
    };
    let entries = |index: usize| match operands.get(index) {
        Some(Value::List(entries)) => entries.len() as u64,
        _ => 0,
    };
    // How often one text may be found in another.
    let finds = |sought: u64| text(0) / sought.max(1) + 1;
    let steps = match name {
        operators::ADD => (text(0) + text(1)) / MADE_STEP,
        "replace" => (text(0) + finds(text(1)).saturating_mul(text(2))) / MADE_STEP,
        "split" => 2 * finds(text(1)),
        "findAll" => 2 * text(0),
        "join" => entries(0).saturating_mul(text(1)) / MADE_STEP,
        // Each place of the one is compared with the other.
        "indexOf" | "lastIndexOf" => text(0).saturating_mul(text(1)) / TEXT_STEP,
        "lists.range" => match operands.first() {
            Some(Value::Int(entries)) => u64::try_from(*entries).unwrap_or(0),
            _ => 0,
        },
        "format" => digits(operands)?,
        "distinct" => return entries_with_all(operands.first(), operands.first()),
        "sets.contains" | "sets.equivalent" | "sets.intersects" => {
            return entries_with_all(operands.first(), operands.get(1));
        }
        _ => 0,
    };
    take(steps)
}

/// Takes a look at each of the one list for each entry of the other.
fn entries_with_all(one: Option<&&Value>, other: Option<&&Value>) -> Result<(), ExecutionError> {
    let (Some(Value::List(one)), Some(Value::List(other))) = (one, other) else { return Ok(()) };
    // Two values are compared up to where the smaller one ends.
    let (least, most) = if one.len() < other.len() { (one, other) } else { (other, one) };
    let each = |list: &Arc<Vec<Value>>| list.iter().map(extent).fold(0, u64::saturating_add);
    let looks = (least.len() as u64).saturating_mul(each(most)).min((most.len() as u64).saturating_mul(each(least)));
    take(looks / 4)
}

/// Parts of a value that was looked at.
fn extent(value: &Value) -> u64 {
    match value {
        Value::List(entries) => entries.iter().map(extent).fold(1, u64::saturating_add),
        Value::Map(map) => map.map.values().map(extent).fold(1, u64::saturating_add),
        Value::String(text) => 1 + text.len() as u64 / TEXT_STEP,
        _ => 1,
    }
}

/// Steps of the digits that a format asks for.
fn digits(operands: &[&Value]) -> Result<u64, ExecutionError> {
    let Some(Value::String(format)) = operands.first() else { return Ok(0) };
    let mut steps = format.len() as u64 / MADE_STEP;
    for piece in format.split("%.").skip(1) {
        let end = piece.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(piece.len());
        match piece[..end].parse::<usize>() {
            Ok(digits) if digits <= DIGITS_MAX => steps += digits as u64 / MADE_STEP,
            Err(_) if end == 0 => {}
            _ => {
                let reason = format!("a precision may not be more than {DIGITS_MAX}");
                return Err(ExecutionError::function_error("format", reason));
            }
        }
    }
    Ok(steps)
}
