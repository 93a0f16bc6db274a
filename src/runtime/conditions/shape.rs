//! Conditions in their shapes: which one is the one of a type, and when it turned.

use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::Value;

use crate::api::cluster::OldCondition;

/// A condition in one of its shapes.
pub trait ConditionShape {
    /// What it is about.
    fn type_(&self) -> &str;
    /// Whether it holds, as it is written.
    fn status(&self) -> &str;
    /// Says that it turned when the one before it did.
    fn turned_with(&mut self, before: &Self);
}

impl ConditionShape for Condition {
    fn type_(&self) -> &str {
        &self.type_
    }

    fn status(&self) -> &str {
        &self.status
    }

    fn turned_with(&mut self, before: &Self) {
        self.last_transition_time = before.last_transition_time.clone();
    }
}

impl ConditionShape for OldCondition {
    fn type_(&self) -> &str {
        &self.type_
    }

    fn status(&self) -> &str {
        &self.status
    }

    fn turned_with(&mut self, before: &Self) {
        self.last_transition_time = before.last_transition_time.clone();
    }
}

impl ConditionShape for NodeCondition {
    fn type_(&self) -> &str {
        &self.type_
    }

    fn status(&self) -> &str {
        &self.status
    }

    fn turned_with(&mut self, before: &Self) {
        // Whoever wrote it may have left the time out.
        if before.last_transition_time.is_some() {
            self.last_transition_time = before.last_transition_time.clone();
        }
    }
}

/// A condition of Kubernetes, as JSON.
impl ConditionShape for Value {
    fn type_(&self) -> &str {
        self["type"].as_str().unwrap_or_default()
    }

    fn status(&self) -> &str {
        self["status"].as_str().unwrap_or_default()
    }

    fn turned_with(&mut self, before: &Self) {
        self["lastTransitionTime"] = before["lastTransitionTime"].clone();
    }
}

/// A condition as it follows on those of before: it has turned just now only if its status is another one.
pub fn after<C: ConditionShape>(before: &[C], mut new: C) -> C {
    let old = before.iter().find(|old| old.type_() == new.type_());
    if let Some(old) = old.filter(|old| old.status() == new.status()) {
        new.turned_with(old);
    }
    new
}

/// Puts a condition that turned just now into the place of the one of its type. It keeps the time of that one if it has its status.
pub fn put<C: ConditionShape>(conditions: &mut Vec<C>, new: C) {
    let new = after(conditions, new);
    match conditions.iter_mut().find(|old| old.type_() == new.type_()) {
        Some(old) => *old = new,
        None => conditions.push(new),
    }
}
