//! How often a status is written that says the same in other words.
//!
//! What a peer answers stands in messages of conditions, and a peer may answer otherwise each time: with a counter, or the time. Each
//! write wakes whoever looks at the object, who asks again. So a status in which only messages are other than before is written
//! once in a while; whatever else changes is written at once.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::api::Api;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use super::changes::{change_status, difference, unlike};

/// How long a status stays in which only messages have become other ones.
pub const MESSAGES: Duration = Duration::from_secs(10);

/// When statuses were written last, by the UID of their object.
pub struct MessageThrottle {
    interval: Duration,
    written: Mutex<HashMap<String, Instant>>,
}

impl MessageThrottle {
    /// Nothing was written yet. Only messages that change are written once in `interval`.
    pub fn new(interval: Duration) -> Self {
        Self { interval, written: Mutex::default() }
    }

    fn written(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the status of the object at hand, as [`write_status`](super::changes::write_status) does. Where only messages are
    /// new and the last write was a moment ago, nothing is written: how long until it may be.
    ///
    /// # Errors
    ///
    /// What the API says; a conflict when somebody wrote it in between.
    pub async fn write_status<K, S>(
        &self,
        api: &Api<K>,
        object: &K,
        old: Option<&S>,
        new: &S,
    ) -> Result<Option<Duration>, kube::Error>
    where
        K: Resource + Clone + Debug + DeserializeOwned,
        S: Serialize + PartialEq,
    {
        let Some((before, after)) = unlike(old, new)? else { return Ok(None) };
        let uid = object.uid().unwrap_or_default();
        if let Some(rest) = self.rest(&uid, &before, &after, Instant::now()) {
            return Ok(Some(rest));
        }
        if let Some(status) = difference(&before, &after) {
            change_status(api, object, status).await?;
        }
        self.note(uid, Instant::now());
        Ok(None)
    }

    /// How long a status has to wait.
    fn rest(&self, uid: &str, before: &Value, after: &Value, now: Instant) -> Option<Duration> {
        if without_messages(before) != without_messages(after) {
            return None;
        }
        let passed = now.duration_since(*self.written().get(uid)?);
        self.interval.checked_sub(passed).filter(|rest| !rest.is_zero())
    }

    fn note(&self, uid: String, now: Instant) {
        let mut written = self.written();
        // Those of longer ago hold up nothing.
        written.retain(|_, at| now.duration_since(*at) < self.interval);
        written.insert(uid, now);
    }
}

/// When an object is looked at again: after this time, or only when something changes; but no later than a message that waits
/// (`held`) may be written.
pub fn again(next: Option<Duration>, held: Option<Duration>) -> Action {
    next.into_iter().chain(held).min().map_or_else(Action::await_change, Action::requeue)
}

/// A status without what its conditions say for people, in both of their shapes.
fn without_messages(status: &Value) -> Value {
    let mut status = status.clone();
    for path in ["/conditions", "/deprecated/v1beta1/conditions"] {
        for condition in status.pointer_mut(path).and_then(Value::as_array_mut).into_iter().flatten() {
            condition.as_object_mut().map(|condition| condition.remove("message"));
        }
    }
    status
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(truth: &str, reason: &str, message: &str, old_message: &str) -> Value {
        json!({
            "replicas": 3,
            "conditions": [{"type": "Ready", "status": truth, "reason": reason, "message": message}],
            "deprecated": {"v1beta1": {"conditions": [{"type": "Ready", "status": truth, "message": old_message}]}},
        })
    }

    #[test]
    fn only_messages_wait() {
        let throttle = MessageThrottle::new(Duration::from_secs(10));
        let (begin, before) = (Instant::now(), status("False", "Down", "try 1", "try 1"));
        throttle.note("u".to_owned(), begin);
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut counted = before.clone();
        counted["replicas"] = 2.into();
        let mut more = before.clone();
        more["conditions"].as_array_mut().unwrap().push(json!({"type": "Other", "status": "True"}));
        for (uid, new, seconds, wanted) in [
            ("u", status("False", "Down", "try 2", "try 2"), 4, Some(6)),
            ("u", status("False", "Down", "try 2", "try 1"), 4, Some(6)),
            ("u", status("False", "Down", "try 2", "try 2"), 10, None),
            ("other", status("False", "Down", "try 2", "try 2"), 4, None),
            ("u", status("True", "Down", "try 2", "try 2"), 4, None),
            ("u", status("False", "Refused", "try 2", "try 2"), 4, None),
            ("u", counted, 4, None),
            ("u", more, 4, None),
            ("u", json!({}), 4, None),
        ] {
            let rest = throttle.rest(uid, &before, &new, after(seconds));
            assert_eq!(rest, wanted.map(Duration::from_secs), "{uid} {new} {seconds}");
        }
    }

    #[test]
    fn what_was_written_long_ago_is_forgotten() {
        let throttle = MessageThrottle::new(Duration::from_secs(10));
        let begin = Instant::now();
        for number in 0..100 {
            throttle.note(number.to_string(), begin + Duration::from_secs(number));
        }
        assert_eq!(throttle.written().len(), 10);
    }

    #[test]
    fn the_earlier_look_counts() {
        let seconds = Duration::from_secs;
        for (next, held, wanted) in [
            (None, None, Action::await_change()),
            (None, Some(seconds(3)), Action::requeue(seconds(3))),
            (Some(seconds(1)), Some(seconds(3)), Action::requeue(seconds(1))),
            (Some(seconds(9)), Some(seconds(3)), Action::requeue(seconds(3))),
            (Some(seconds(9)), None, Action::requeue(seconds(9))),
        ] {
            assert_eq!(again(next, held), wanted);
        }
    }
}
