//! Conversion webhooks of CustomResourceDefinitions (`apiextensions.k8s.io/v1` ConversionReview).
//!
//! Objects of a kind in several versions, of which only a program knows what becomes of which field. It is asked whenever an
//! object is shown or written in another version than it is stored in; what it said of an object is kept for those who ask
//! next. It decides about labels and annotations, and about nothing else of the metadata.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::super::answers::status::shorten;
use super::super::requests::json_values::count_values;
use super::super::writing::apply::go::type_name;
use super::endpoint::WebhookEndpoint;
use super::meters::{self, CallResult, WebhookQuestion};
use crate::config::WebhooksConfig;
use crate::store::{Object, json_len};

const API_VERSION: &str = "apiextensions.k8s.io/v1";
const KIND: &str = "ConversionReview";
/// How long one call may take, as upstream.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Calls under way for one definition, and those who wait for them.
const CALLS: usize = 8;
const WAITING: usize = 64;
/// Objects, and bytes of their text, that are converted in one call.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 1 << 20;
/// JSON values of one answer.
const VALUES_MAX: usize = 500_000;
/// Bytes of text that are converted for one list or watch.
const LIST_BYTES: usize = 32 << 20;
/// Bytes of text that are kept for those who ask next, of one definition.
const KEPT_BYTES: usize = 8 << 20;
/// Letters of what a webhook says is wrong.
const MESSAGE_MAX: usize = 1024;

/// The webhook of one definition. Another definition, or the same with another spec, has another one.
pub(in crate::apiserver) struct Converter {
    endpoint: WebhookEndpoint,
    calls: Semaphore,
    waiting: Semaphore,
    /// Held while what a watch shows is converted: all watches want the same.
    pub watches: tokio::sync::Mutex<()>,
    // std's lock: held to look and to put in.
    kept: Mutex<ConversionCache>,
}

/// Says what is wrong with the labels or the annotations of an object.
pub(super) type Judge = fn(&str, &Map<String, Value>) -> Result<(), String>;

/// By version, namespace, name and revision.
type ConversionKey = (String, String, String, u64);

#[derive(Default)]
struct ConversionCache {
    objects: HashMap<ConversionKey, Arc<Object>>,
    bytes: usize,
}

impl std::fmt::Debug for Converter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.endpoint.fmt(f)
    }
}

/// Why objects are not converted.
#[derive(Debug)]
pub(in crate::apiserver) enum NotConverted {
    /// In upstream's words.
    Failed(String),
    /// Too many wait already.
    TooMany,
    /// It is more text than is converted at once.
    TooMuch,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConversionReview {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    response: Option<ConversionResponse>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConversionResponse {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    converted_objects: Vec<Value>,
    #[serde(default)]
    result: ConversionResult,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ConversionResult {
    status: String,
    message: String,
}

/// What kind of object it is, in Go's words.
fn kind_of(object: &Value) -> String {
    let text = |field: &str| shorten(object[field].as_str().unwrap_or_default(), 128);
    let version = text("apiVersion");
    let slash = if version.contains('/') { "" } else { "/" };
    format!("{slash}{version}, Kind={}", text("kind"))
}

/// Reads an answer, and holds it against what was asked.
fn converted(asked: &[Value], uid: &str, desired: &str, answer: &[u8], judge: Judge) -> Result<Vec<Value>, String> {
    let kind = asked.first().map(kind_of).unwrap_or_default();
    let failed = |reason: &str| format!("conversion webhook for {kind} failed: {}", shorten(reason, MESSAGE_MAX));
    if count_values(answer) > VALUES_MAX {
        return Err(failed(&format!("the answer has more than {VALUES_MAX} values")));
    }
    let review: ConversionReview = serde_json::from_slice(answer).map_err(|error| failed(&error.to_string()))?;
    if review.api_version != API_VERSION || review.kind != KIND {
        let found = kind_of(&json!({"apiVersion": review.api_version, "kind": review.kind}));
        return Err(failed(&format!("expected webhook response of {API_VERSION}, Kind={KIND}, got {found}")));
    }
    let response = review.response.ok_or_else(|| failed("no response provided"))?;
    if response.uid != uid {
        return Err(failed(&format!("expected response.uid={uid:?}, got {:?}", shorten(&response.uid, 64))));
    }
    match response.result {
        ConversionResult { status, .. } if status == "Success" => {}
        ConversionResult { status, message } if message.is_empty() => {
            let status = shorten(&status, 64);
            return Err(failed(&format!("response.result.status was '{status}', not 'Success'")));
        }
        ConversionResult { message, .. } => return Err(failed(&message)),
    }
    let (found, wanted) = (response.converted_objects.len(), asked.len());
    if found != wanted {
        return Err(format!("conversion webhook for {kind} returned {found} objects, expected {wanted}"));
    }
    let pairs = asked.iter().zip(response.converted_objects).enumerate();
    pairs.map(|(index, (before, after))| restored(index, before, after, desired, judge)).collect()
}

/// The converted object with the metadata that it had, but for labels and annotations.
fn restored(index: usize, before: &Value, mut after: Value, desired: &str, judge: Judge) -> Result<Value, String> {
    let odd = |what: &str, reason: String| {
        format!("conversion webhook for {} returned invalid {what}: {reason}", kind_of(before))
    };
    check_kind(before, &after, desired).map_err(|reason| odd(&format!("object at index {index}"), reason))?;
    check_identity(before, &after).map_err(|reason| odd("object", reason))?;
    let metadata = merged(before, &after, judge).map_err(|reason| odd("metadata", reason))?;
    after["metadata"] = metadata;
    Ok(after)
}

/// A text of an object, as an error shows it.
fn shown(value: &Value) -> String {
    shorten(value.as_str().unwrap_or_default(), 253)
}

fn check_kind(before: &Value, after: &Value, desired: &str) -> Result<(), String> {
    if !after.is_object() || shown(&after["kind"]).is_empty() {
        return Err("it has no kind".into());
    }
    if after["apiVersion"] != desired {
        let found = shown(&after["apiVersion"]);
        return Err(format!("invalid groupVersion (expected {desired}, received {found})"));
    }
    if after["kind"] != before["kind"] {
        let (wanted, found) = (shown(&before["kind"]), shown(&after["kind"]));
        return Err(format!("invalid kind (expected {wanted}, received {found})"));
    }
    Ok(())
}

fn check_identity(before: &Value, after: &Value) -> Result<(), String> {
    for (field, words) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let (old, new) = (shown(&before["metadata"][field]), shown(&after["metadata"][field]));
        if old != new {
            return Err(format!("must have the same {words}: {old} != {new}"));
        }
    }
    Ok(())
}

/// The metadata of an object with the labels and annotations of the converted one.
fn merged(before: &Value, after: &Value, judge: Judge) -> Result<Value, String> {
    let mut metadata = before["metadata"].clone();
    let Some(kept) = metadata.as_object_mut() else { return Ok(metadata) };
    for field in ["labels", "annotations"] {
        match &after["metadata"][field] {
            Value::Null => drop(kept.remove(field)),
            Value::Object(given) if given.is_empty() => drop(kept.remove(field)),
            given if kept.get(field) == Some(given) => {}
            Value::Object(given) => {
                judge(field, given)?;
                kept.insert(field.into(), given.clone().into());
            }
            other => return Err(format!("invalid metadata.{field} of type {} in converted object", type_name(other))),
        }
    }
    Ok(metadata)
}

impl Converter {
    /// Of `spec.conversion.webhook`.
    pub fn of(webhook: &Value) -> Self {
        Self {
            endpoint: WebhookEndpoint::of(&webhook["clientConfig"]),
            calls: Semaphore::new(CALLS),
            waiting: Semaphore::new(WAITING),
            watches: tokio::sync::Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// Why it can never be called with these settings.
    pub fn unreachable(&self, settings: &WebhooksConfig) -> Option<String> {
        self.endpoint.unreachable(settings)
    }

    /// Brings objects into another version; those that have it stay as they are. What the webhook made is given to `pruned`, and
    /// the labels and annotations that it changed to `judge`.
    ///
    /// # Errors
    ///
    /// When any of them cannot be.
    pub async fn values(
        &self,
        settings: &Arc<WebhooksConfig>,
        mut values: Vec<Value>,
        desired: &str,
        pruned: impl Fn(&mut Value),
        judge: Judge,
    ) -> Result<Vec<Value>, NotConverted> {
        let others: Vec<usize> = (0..values.len()).filter(|at| values[*at]["apiVersion"] != desired).collect();
        if others.is_empty() {
            return Ok(values);
        }
        let _waits = self.waiting.try_acquire().map_err(|_| NotConverted::TooMany)?;
        let mut rest = others.as_slice();
        while let Some(first) = rest.first() {
            let (mut bytes, mut count) = (json_len(&values[*first]), 1);
            while let Some(next) = rest.get(count).filter(|_| count < BATCH) {
                bytes += json_len(&values[*next]);
                if bytes > BATCH_BYTES {
                    break;
                }
                count += 1;
            }
            let (batch, later) = rest.split_at(count);
            let asked: Vec<Value> = batch.iter().map(|at| values[*at].take()).collect();
            let answer = self.ask(settings, asked, desired, judge).await.map_err(NotConverted::Failed)?;
            for (at, mut value) in batch.iter().zip(answer) {
                pruned(&mut value);
                values[*at] = value;
            }
            rest = later;
        }
        Ok(values)
    }

    async fn ask(
        &self,
        settings: &Arc<WebhooksConfig>,
        asked: Vec<Value>,
        desired: &str,
        judge: Judge,
    ) -> Result<Vec<Value>, String> {
        let kind = asked.first().map(kind_of).unwrap_or_default();
        let failed = |reason: String| format!("conversion webhook for {kind} failed: {reason}");
        let began = Instant::now();
        let silent = |reason: String| {
            meters::called(WebhookQuestion::Conversion, CallResult::None, began.elapsed());
            failed(reason)
        };
        let deadline = began + TIMEOUT;
        let Ok(Ok(_place)) = timeout_at(deadline, self.calls.acquire()).await else {
            return Err(silent("too many calls are under way: context deadline exceeded".into()));
        };
        let uid = uuid::Uuid::new_v4().to_string();
        let request = json!({"uid": uid, "desiredAPIVersion": desired, "objects": asked});
        let question = json!({"kind": KIND, "apiVersion": API_VERSION, "request": request}).to_string();
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let answer = self.endpoint.ask(settings, question.into(), TIMEOUT, left).await.map_err(silent)?;
        let converted = converted(&asked, &uid, desired, &answer, judge);
        let came = if converted.is_ok() { CallResult::Given } else { CallResult::Refused };
        meters::called(WebhookQuestion::Conversion, came, began.elapsed());
        converted
    }

    /// The same of objects of the store, of which it keeps some for those who ask next.
    ///
    /// # Errors
    ///
    /// When any of them cannot be converted, or it is too much.
    pub async fn objects(
        &self,
        settings: &Arc<WebhooksConfig>,
        mut objects: Vec<Arc<Object>>,
        desired: &str,
        pruned: impl Fn(&mut Value),
        judge: Judge,
    ) -> Result<Vec<Arc<Object>>, NotConverted> {
        let key =
            |object: &Object| (desired.to_owned(), object.namespace.clone(), object.name.clone(), object.revision);
        let mut missing = Vec::new();
        {
            let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            for (at, object) in objects.iter_mut().enumerate() {
                match kept.objects.get(&key(object)) {
                    Some(known) => *object = Arc::clone(known),
                    None => missing.push(at),
                }
            }
        }
        let bytes: usize = missing.iter().map(|at| objects[*at].json_len()).sum();
        if bytes > LIST_BYTES {
            return Err(NotConverted::TooMuch);
        }
        let values: Vec<Value> = missing.iter().map(|at| objects[*at].value()).collect();
        let is_other: Vec<bool> = values.iter().map(|value| value["apiVersion"] != desired).collect();
        let values = self.values(settings, values, desired, pruned, judge).await?;
        for ((at, value), _) in missing.iter().zip(values).zip(is_other).filter(|(_, is_other)| *is_other) {
            let Object { namespace, name, revision, .. } = &*objects[*at];
            let storage = Arc::clone(&objects[*at].resource);
            let made = Object::new(storage, namespace.clone(), name.clone(), *revision, value.to_string().as_bytes());
            let made = Arc::new(made.map_err(|error| NotConverted::Failed(error.to_string()))?);
            self.kept.lock().unwrap_or_else(PoisonError::into_inner).put(key(&made), Arc::clone(&made));
            objects[*at] = made;
        }
        Ok(objects)
    }
}

impl ConversionCache {
    fn put(&mut self, key: ConversionKey, object: Arc<Object>) {
        let length = object.json_len();
        if length > KEPT_BYTES / 8 {
            return;
        }
        if self.bytes + length > KEPT_BYTES {
            *self = Self::default();
        }
        if self.objects.insert(key, object).is_none() {
            self.bytes += length;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widget(version: &str, more: Value) -> Value {
        let mut widget = json!({"apiVersion": format!("example.org/{version}"), "kind": "Widget",
            "metadata": {"name": "a", "namespace": "b", "uid": "u", "labels": {"x": "y"}, "finalizers": ["f/g"]}});
        json_patch::merge(&mut widget, &more);
        widget
    }

    fn judged(response: Value) -> Result<Vec<Value>, String> {
        let review = json!({"apiVersion": API_VERSION, "kind": KIND, "response": response}).to_string();
        converted(
            &[widget("v1", json!({}))],
            "1",
            "example.org/v2",
            review.as_bytes(),
            super::super::converting::check_texts,
        )
    }

    #[test]
    fn an_answer_is_held_against_what_was_asked() {
        let done = |object: Value| json!({"uid": "1", "result": {"status": "Success"}, "convertedObjects": [object]});
        let failed = |reason: &str| format!("conversion webhook for example.org/v1, Kind=Widget failed: {reason}");
        let odd =
            |reason: &str| format!("conversion webhook for example.org/v1, Kind=Widget returned invalid {reason}");
        for (response, wanted) in [
            (json!(null), failed("no response provided")),
            (json!({"uid": "2"}), failed("expected response.uid=\"1\", got \"2\"")),
            (json!({"uid": "1", "result": {"status": "Failed", "message": "cannot"}}), failed("cannot")),
            (json!({"uid": "1"}), failed("response.result.status was '', not 'Success'")),
            (
                json!({"uid": "1", "result": {"status": "Success"}}),
                "conversion webhook for example.org/v1, Kind=Widget returned 0 objects, expected 1".into(),
            ),
            (
                done(widget("v1", json!({}))),
                odd("object at index 0: invalid groupVersion (expected example.org/v2, received example.org/v1)"),
            ),
            (
                done(widget("v2", json!({"kind": "Other"}))),
                odd("object at index 0: invalid kind (expected Widget, received Other)"),
            ),
            (done(json!(5)), odd("object at index 0: it has no kind")),
            (done(widget("v2", json!({"metadata": {"name": "z"}}))), odd("object: must have the same name: a != z")),
            (done(widget("v2", json!({"metadata": {"uid": null}}))), odd("object: must have the same UID: u != ")),
            (
                done(widget("v2", json!({"metadata": {"labels": {"x": 1}}}))),
                odd("metadata: metadata.labels[x] must be a string, but is int64 in converted object"),
            ),
            (
                done(widget("v2", json!({"metadata": {"labels": []}}))),
                odd("metadata: invalid metadata.labels of type []interface {} in converted object"),
            ),
        ] {
            assert_eq!(judged(response.clone()).unwrap_err(), wanted, "{response}");
        }
    }

    #[test]
    fn of_the_metadata_only_labels_and_annotations_change() {
        let metadata =
            json!({"labels": {"x": null, "z": "1"}, "annotations": {"k": "v"}, "finalizers": null, "generation": 7});
        let answer = widget("v2", json!({"metadata": metadata, "spec": {"a": 1}}));
        let done = json!({"uid": "1", "result": {"status": "Success"}, "convertedObjects": [answer]});
        let found = judged(done).unwrap().remove(0);
        let wanted = json!({"name": "a", "namespace": "b", "uid": "u", "labels": {"z": "1"}, "annotations": {"k": "v"},
            "finalizers": ["f/g"]});
        assert_eq!((&found["metadata"], &found["spec"]), (&wanted, &json!({"a": 1})));
    }
}
