//! What field selectors look at in an object that many look at: it is looked for once for all of them.
//!
//! Thousands of watches may select by a field within the object, and each event is shown to all of them at about the same
//! time. Each would unpack and read the object, which may be megabytes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::store::Object;

/// States of objects that are remembered.
const STATES: usize = 32;
/// Bytes of a text that is remembered; a longer one is in no selector, which has to fit into the head of a request.
const TEXT_MAX: usize = 16 << 10;
/// Bytes of texts that are remembered of one state.
const TEXTS_MAX: usize = 256 << 10;

/// What is at a place in an object, as selectors compare it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SelectedValue {
    /// Nothing, or what is compared as nothing.
    Nothing,
    Text(Arc<str>),
    /// A text that equals none in a selector.
    Long,
}

impl SelectedValue {
    pub fn at(object: &Value, pointer: &str) -> Self {
        match object.pointer(pointer) {
            Some(Value::String(text)) if text.len() > TEXT_MAX => Self::Long,
            Some(Value::String(text)) => Self::Text(text.as_str().into()),
            // Selectable fields may also be numbers and truth values.
            Some(found @ (Value::Number(_) | Value::Bool(_))) => Self::Text(found.to_string().into()),
            _ => Self::Nothing,
        }
    }

    pub fn is(&self, value: &str) -> bool {
        match self {
            Self::Nothing => value.is_empty(),
            Self::Text(text) => **text == *value,
            Self::Long => false,
        }
    }
}

/// A state of an object, and what was looked for in it.
struct SelectedState {
    storage: Arc<str>,
    namespace: String,
    name: String,
    revision: u64,
    found: Vec<(String, SelectedValue)>,
    bytes: usize,
}

impl SelectedState {
    fn is_of(&self, object: &Object) -> bool {
        self.revision == object.revision
            && self.name == object.name
            && self.namespace == object.namespace
            && self.storage == object.resource
    }
}

// std's lock: held for a few comparisons.
static LATEST: Mutex<VecDeque<SelectedState>> = Mutex::new(VecDeque::new());

/// What is at these places in an object.
pub(super) fn at<'p>(object: &Object, pointers: impl Iterator<Item = &'p str> + Clone) -> Vec<SelectedValue> {
    let latest = || LATEST.lock().unwrap_or_else(PoisonError::into_inner);
    let known = latest().iter().find(|state| state.is_of(object)).and_then(|state| {
        let find = |pointer: &str| state.found.iter().find(|(at, _)| at == pointer).map(|(_, found)| found.clone());
        pointers.clone().map(find).collect::<Option<Vec<SelectedValue>>>()
    });
    if let Some(known) = known {
        return known;
    }
    let value = object.value();
    let found: Vec<SelectedValue> = pointers.clone().map(|pointer| SelectedValue::at(&value, pointer)).collect();
    let mut latest = latest();
    if !latest.iter().any(|state| state.is_of(object)) {
        latest.truncate(STATES - 1);
        latest.push_front(SelectedState {
            storage: Arc::clone(&object.resource),
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            revision: object.revision,
            found: Vec::new(),
            bytes: 0,
        });
    }
    if let Some(state) = latest.iter_mut().find(|state| state.is_of(object)) {
        for (pointer, found) in pointers.zip(&found) {
            let length = pointer.len() + if let SelectedValue::Text(text) = found { text.len() } else { 0 };
            if state.bytes + length <= TEXTS_MAX && !state.found.iter().any(|(at, _)| at == pointer) {
                state.bytes += length;
                state.found.push((pointer.to_owned(), found.clone()));
            }
        }
    }
    found
}
