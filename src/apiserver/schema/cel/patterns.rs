//! Regular expressions in CEL rules.
//!
//! Patterns that rules look for. They may come from the object, so that nothing is known of them before the rule is asked: to
//! compile them and to look for them is counted as it is done, and each is compiled once for an object.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use kube_cel::cel::common::ast::IdedExpr;
use kube_cel::cel::extractors::{Arguments, This};
use kube_cel::cel::{Context, ExecutionError, FunctionContext, ResolveResult, Value};

use super::super::interner::InternOutcome;
use super::super::pattern::{Pattern, PatternError, SIZE_MAX};
use super::meter::{self, EvaluationScope};

/// Bytes of a compiled pattern that count as one step of compiling it, and bytes of its text.
const SIZE_STEP: u64 = 4;
const READ_STEP: u64 = 8;
/// Steps of a pattern however small.
const PATTERN: u64 = 100;
/// What the rules of one object asked for.
#[derive(Default)]
struct Evaluation {
    /// Steps that are left; nothing when they did not suffice.
    left: Option<u64>,
    patterns: HashMap<Arc<String>, InternOutcome<Pattern, PatternError>>,
}

thread_local! {
    static EVALUATION: RefCell<Evaluation> = RefCell::default();
}

/// The rules of one object, until it is dropped.
pub(super) struct OfObject(());

impl OfObject {
    pub fn begin() -> Self {
        EVALUATION.take();
        Self(())
    }
}

impl Drop for OfObject {
    fn drop(&mut self) {
        EVALUATION.take();
    }
}

/// Takes steps from what the rule that is evaluated has left; why it cannot.
pub(super) fn take(steps: u64) -> Result<(), String> {
    EVALUATION.with_borrow_mut(|evaluation| evaluation.take(steps))
}

/// Evaluates an expression, which may take so many steps. `None` when they did not suffice.
pub(super) fn resolve(
    expression: &IdedExpr,
    scope: &EvaluationScope<'_>,
    functions: &Context<'_>,
    steps: &mut u64,
) -> Option<ResolveResult> {
    EVALUATION.with_borrow_mut(|evaluation| evaluation.left = Some(*steps));
    let found = meter::evaluate(expression, scope, functions);
    // Whoever ran out of steps is told so whatever the rest of the expression made of it.
    *steps = EVALUATION.with_borrow(|evaluation| evaluation.left)?;
    Some(found)
}

impl Evaluation {
    fn take(&mut self, steps: u64) -> Result<(), String> {
        self.left = self.left.and_then(|left| left.checked_sub(steps));
        self.left.map(|_| ()).ok_or_else(|| "the cost limit is exceeded".to_owned())
    }

    /// The pattern, when it may be looked for in this text.
    fn pattern(&mut self, pattern: &Arc<String>, text: &str) -> Result<Arc<Pattern>, String> {
        // Nothing more is compiled for who has nothing left.
        self.take(1)?;
        let outcome = match self.patterns.get(pattern) {
            Some(known) => known.clone(),
            None => {
                let outcome = Pattern::compile(pattern);
                let size = match &outcome {
                    Ok(compiled) => compiled.weight(),
                    Err(reason) if reason.is_too_big() => SIZE_MAX,
                    Err(_) => 0,
                };
                // What is too long for a pattern is not kept.
                if !matches!(outcome.as_ref().map_err(|reason| &**reason), Err(PatternError::TooLong)) {
                    self.patterns.insert(Arc::clone(pattern), outcome.clone());
                    self.take(PATTERN + pattern.len() as u64 / READ_STEP + size as u64 / SIZE_STEP)?;
                }
                outcome
            }
        };
        let compiled = outcome.map_err(|reason| match &*reason {
            PatternError::TooLong => reason.to_string(),
            _ => format!("'{pattern}' not a valid regex:\n{reason}"),
        })?;
        self.take(compiled.steps(text))?;
        Ok(compiled)
    }
}

fn pattern(
    functions: &FunctionContext<'_, '_>,
    pattern: &Arc<String>,
    text: &str,
) -> Result<Arc<Pattern>, ExecutionError> {
    EVALUATION.with_borrow_mut(|evaluation| evaluation.pattern(pattern, text)).map_err(|reason| functions.error(reason))
}

/// The functions, in place of those that know no bounds.
pub(super) fn register(context: &mut Context<'_>) {
    context.add_function("matches", matches);
    context.add_function("find", find);
    context.add_function("findAll", find_all);
}

/// `<string>.matches(<string>) -> <bool>`
fn matches(
    functions: &FunctionContext<'_, '_>,
    This(text): This<Arc<String>>,
    sought: Arc<String>,
) -> Result<bool, ExecutionError> {
    Ok(pattern(functions, &sought, &text)?.regex().is_match(&text))
}

/// `<string>.find(<string>) -> <string>`
fn find(functions: &FunctionContext<'_, '_>, This(text): This<Arc<String>>, sought: Arc<String>) -> ResolveResult {
    let pattern = pattern(functions, &sought, &text)?;
    let found = pattern.regex().find(&text).map_or("", |found| found.as_str());
    Ok(Value::String(Arc::new(found.to_owned())))
}

/// `<string>.findAll(<string>) -> <list<string>>`, `<string>.findAll(<string>, <int>) -> <list<string>>`; a limit below zero
/// is none.
fn find_all(
    functions: &FunctionContext<'_, '_>,
    This(text): This<Arc<String>>,
    Arguments(arguments): Arguments,
) -> ResolveResult {
    let Some(Value::String(sought)) = arguments.first() else {
        return Err(functions.error("expected string pattern"));
    };
    let most = match arguments.get(1) {
        Some(Value::Int(most)) => usize::try_from(*most).unwrap_or(usize::MAX),
        _ => usize::MAX,
    };
    let pattern = pattern(functions, sought, &text)?;
    let found = pattern.regex().find_iter(&text).take(most);
    Ok(Value::List(Arc::new(found.map(|found| Value::String(Arc::new(found.as_str().to_owned()))).collect())))
}
