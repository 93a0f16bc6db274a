//! Which webhooks are asked about a request, in which order, and what becomes of their answers.
//!
//! As upstream: those that mutate one after the other, in order of configurations' names and within them as they are listed;
//! those that want to, once more when others changed the object after them; then those that validate, all at once. The first
//! refusal in that order is the answer.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use http::StatusCode;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout_at};

use super::super::answers::status::ApiError;
use super::super::auth::{UserIdentity, accounts};
use super::super::extensions::admission::AdmissionOperation;
use super::super::kinds::registry::ResourceRegistry;
use super::super::kinds::resource::ServedResource;
use super::super::server::ApiServer;
use super::super::shares::caller_shares::{CallerShare, caller};
use super::super::shares::{blocking, inflight};
use super::super::writing::patch::RequestPatch;
use super::configurations::{Configuration, Configurations, ConfiguredHook};
use super::converting;
use super::hook::{Conditions, Hook, WebhookRequest};
use super::kinds::GROUP;
use super::meters::{self, CallResult, WebhookQuestion};
use super::remarks::Remarks;
use super::review::{self, WebhookVerdict};

/// A request that may be another's configured, too.
pub(in crate::apiserver) struct ConfiguredRequest<'s> {
    pub api: &'s ApiServer,
    pub resource: &'s ServedResource,
    pub operation: AdmissionOperation,
    /// Namespace of the object, empty when it has none.
    pub namespace: &'s str,
    /// Its name, empty while it has none.
    pub name: String,
    /// Subresource, empty when the object itself is meant.
    pub subresource: &'s str,
    pub identity: &'s UserIdentity,
    pub dry_run: bool,
    /// `CreateOptions`, `UpdateOptions`, `PatchOptions` or `DeleteOptions`.
    pub options: Value,
}

/// Those that are asked about one request.
pub(in crate::apiserver) struct AdmissionRound<'s> {
    subject: &'s ConfiguredRequest<'s>,
    registry: Arc<ResourceRegistry>,
    mutating: Vec<ConfiguredHook>,
    validating: Vec<ConfiguredHook>,
    /// From the first call on.
    // std's lock: held to look and to put in.
    place: Mutex<Option<CallerShare>>,
}

/// One webhook and the version of the kind that it is asked in.
struct Asking<'a> {
    configuration: &'a Configuration,
    hook: &'a Hook,
    version: &'a ServedResource,
}

impl<'s> ConfiguredRequest<'s> {
    /// Those whose rules name this request, and that are about its namespace; nothing when there are none, which is most
    /// often.
    pub fn round(&'s self) -> Option<AdmissionRound<'s>> {
        // Slipway's own rooms: a webhook that is down must not keep machines from booting. And a configuration must always be
        // to be mended.
        if self.identity.is_in_process() || self.resource.group == GROUP {
            return None;
        }
        let in_force = self.api.inner.webhooks.in_force();
        if in_force.is_empty() {
            return None;
        }
        let registry = self.api.registry();
        let forms: Vec<WebhookRequest<'_>> =
            versions(&registry, self.resource).map(|version| self.asked(version)).collect();
        let namespace = OnceLock::new();
        let of = |all: &Configurations| -> Vec<ConfiguredHook> {
            let about = all.about(forms.iter().map(|form| form.plural));
            about
                .filter(|configured| {
                    configured.hook().names_any(&forms) && self.may_be_in(configured.hook(), &namespace)
                })
                .collect()
        };
        let (mutating, validating) = (of(&in_force.mutating), of(&in_force.validating));
        if mutating.is_empty() && validating.is_empty() {
            return None;
        }
        drop(forms);
        Some(AdmissionRound { subject: self, registry, mutating, validating, place: Mutex::default() })
    }

    /// Whether a webhook may be about objects of this namespace, which is looked up once. Of one that is itself written, or
    /// is not there, its object has to be seen.
    fn may_be_in(&self, hook: &Hook, namespace: &OnceLock<Option<Value>>) -> bool {
        if hook.takes_every_namespace() || self.namespace.is_empty() || self.is_namespace() {
            return true;
        }
        let labels = namespace.get_or_init(|| {
            let found = self.api.store().get("/namespaces", "", self.namespace);
            found.map(|found| found.metadata()["labels"].clone())
        });
        labels.as_ref().is_none_or(|labels| hook.selects_namespace(labels))
    }

    fn asked<'a>(&'a self, version: &'a ServedResource) -> WebhookRequest<'a> {
        WebhookRequest {
            operation: self.operation,
            group: &version.group,
            version: &version.version,
            plural: &version.plural,
            subresource: self.subresource,
            namespaced: version.namespaced,
        }
    }

    fn is_namespace(&self) -> bool {
        &*self.resource.storage == "/namespaces"
    }

    /// Whether a webhook is about objects of this namespace.
    fn is_in_its_namespace(&self, hook: &Hook, object: Option<&Value>) -> Result<bool, ApiError> {
        if hook.takes_every_namespace() || (self.namespace.is_empty() && !self.is_namespace()) {
            return Ok(true);
        }
        if let Some(object) = object.filter(|_| self.is_namespace() && self.subresource.is_empty()) {
            return Ok(hook.selects_namespace(&object["metadata"]["labels"]));
        }
        let name = if self.is_namespace() { &self.name } else { self.namespace };
        let found = self.api.store().get("/namespaces", "", name).ok_or_else(|| {
            let mut error =
                ApiError::new(StatusCode::NOT_FOUND, "NotFound", format!("namespaces \"{name}\" not found"));
            error.details = json!({"name": name, "kind": "namespaces"});
            error
        })?;
        Ok(hook.selects_namespace(&found.metadata()["labels"]))
    }

    /// `AdmissionRequest`, without its uid.
    fn request(&self, version: &ServedResource, object: &Value, old: &Value) -> Map<String, Value> {
        let kind = |of: &ServedResource| match self.subresource {
            "scale" => json!({"group": "autoscaling", "version": "v1", "kind": "Scale"}),
            _ => json!({"group": of.group, "version": of.version, "kind": of.kind}),
        };
        let resource = |of: &ServedResource| json!({"group": of.group, "version": of.version, "resource": of.plural});
        let operation = match self.operation {
            AdmissionOperation::Create => "CREATE",
            AdmissionOperation::Update => "UPDATE",
            AdmissionOperation::Delete => "DELETE",
        };
        let mut request = Map::new();
        let mut put = |field: &str, value: Value| request.insert(field.to_owned(), value);
        put("kind", kind(version));
        put("resource", resource(version));
        put("requestKind", kind(self.resource));
        put("requestResource", resource(self.resource));
        if !self.subresource.is_empty() {
            put("subResource", self.subresource.into());
            put("requestSubResource", self.subresource.into());
        }
        // What the server named is seen by those that validate.
        let made = object["metadata"]["name"].as_str().unwrap_or_default();
        let name = if self.name.is_empty() { made } else { &self.name };
        if !name.is_empty() {
            put("name", name.into());
        }
        // As upstream, a namespace is in itself.
        let namespace = if self.is_namespace() { name } else { self.namespace };
        if !namespace.is_empty() {
            put("namespace", namespace.into());
        }
        put("operation", operation.into());
        put("userInfo", self.identity.user_info());
        put("object", object.clone());
        put("oldObject", old.clone());
        put("dryRun", self.dry_run.into());
        put("options", self.options.clone());
        request
    }
}

/// The served versions of a kind, this one first.
fn versions<'r>(
    registry: &'r ResourceRegistry,
    resource: &'r ServedResource,
) -> impl Iterator<Item = &'r ServedResource> {
    let is_it = |one: &ServedResource| one.group == resource.group && one.version == resource.version;
    let others = registry.all().iter().map(|one| &**one);
    let others = others.filter(move |one| one.storage == resource.storage && !is_it(one));
    std::iter::once(resource).chain(others)
}

impl AdmissionRound<'_> {
    /// Whether any webhook that mutates may be asked.
    pub fn mutates(&self) -> bool {
        !self.mutating.is_empty()
    }

    /// Lets webhooks change the object, which is nothing when it is to go. Returns it when one did.
    ///
    /// # Errors
    ///
    /// When one refuses, or cannot be asked and is not to be passed over.
    pub async fn mutate(
        &self,
        object: Option<Value>,
        old: Option<&Value>,
        remarks: &mut Remarks,
    ) -> Result<Option<Value>, ApiError> {
        let mut object = object;
        let mut changed = false;
        // Those that want to know when others changed the object after them, and those that are to.
        let (mut asked, mut again) = (BTreeSet::new(), BTreeSet::new());
        for round in 0..2 {
            for (index, configured) in self.mutating.iter().enumerate() {
                if round == 1 && !again.contains(&index) {
                    continue;
                }
                let Some(asking) = self.asking(configured, object.as_ref(), old)? else { continue };
                let patched = asking.patch(self, object.as_ref(), old, remarks).await?;
                if let Some(patched) = patched {
                    object = Some(patched);
                    changed = true;
                    if round == 0 {
                        again.append(&mut asked);
                    }
                }
                if configured.hook().reinvoked {
                    asked.insert(index);
                }
            }
            if again.is_empty() {
                break;
            }
        }
        Ok(object.filter(|_| changed))
    }

    /// Lets webhooks judge the object as it is to be written.
    ///
    /// # Errors
    ///
    /// As [`AdmissionRound::mutate`].
    pub async fn validate(
        &self,
        object: Option<&Value>,
        old: Option<&Value>,
        remarks: &mut Remarks,
    ) -> Result<(), ApiError> {
        let mut all = Vec::new();
        for configured in &self.validating {
            all.extend(self.asking(configured, object, old)?);
        }
        let asked = all.iter().map(|asking| async move {
            let mut remarks = Remarks::default();
            let judged = asking.judge(self, object, old, &mut remarks).await;
            (judged, remarks)
        });
        let mut first = Ok(());
        for (judged, said) in join_all(asked).await {
            remarks.add(said);
            first = first.and(judged);
        }
        first
    }

    /// Whether a webhook is asked about this object, and in which version.
    fn asking<'a>(
        &'a self,
        configured: &'a ConfiguredHook,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<Option<Asking<'a>>, ApiError> {
        let (subject, configuration, hook) = (self.subject, &*configured.configuration, configured.hook());
        let few = if hook.takes_equivalents() { usize::MAX } else { 1 };
        let named = versions(&self.registry, subject.resource).take(few).find(|one| hook.names(&subject.asked(one)));
        let Some(version) = named else { return Ok(None) };
        if !subject.is_in_its_namespace(hook, object)? || !hook.selects_object(object, old) {
            return Ok(None);
        }
        Ok(Some(Asking { configuration, hook, version }))
    }

    /// Takes a place among the requests that wait for webhooks, unless it has one: 429 when too many do.
    fn take_place(&self) -> Result<(), ApiError> {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        if place.is_none() {
            let share = self.subject.api.inner.webhooks.wait(&self.subject.identity.user);
            *place = Some(share.ok_or_else(inflight::too_many)?);
        }
        Ok(())
    }
}

impl Asking<'_> {
    /// Whether the webhook sees another version of the kind than the client.
    fn is_converted(&self, subject: &ConfiguredRequest<'_>) -> bool {
        subject.subresource != "scale"
            && (&self.version.group, &self.version.version) != (&subject.resource.group, &subject.resource.version)
    }

    /// Asks one that mutates; gives the object when it changed it.
    async fn patch(
        &self,
        round: &AdmissionRound<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
        remarks: &mut Remarks,
    ) -> Result<Option<Value>, ApiError> {
        let Some((verdict, shown)) = self.ask(round, object, old, true, remarks).await? else { return Ok(None) };
        let (subject, name) = (round.subject, &self.hook.name);
        let Some(patch) = verdict.patch else { return Ok(None) };
        let long = patch.len() + 1 >= blocking::LONG_FROM;
        let faulty = |reason: &str| internal(format!("admission webhook {name:?}: {reason}"));
        let inapplicable = |error: ApiError| {
            let cause = error.details["causes"][0]["message"].as_str().unwrap_or(&error.message).to_owned();
            faulty(&format!("its patch cannot be applied: {cause}"))
        };
        let parsed =
            blocking::in_place_if(long, || RequestPatch::parse(self.version, "application/json-patch+json", &patch));
        let patch = match parsed {
            Ok(patch) if patch.is_empty() => return Ok(None),
            Ok(patch) => patch,
            // What is no patch at all is no answer.
            Err(error) if error.code == StatusCode::BAD_REQUEST => {
                let reason = error.message.strip_prefix("error decoding patch: ").unwrap_or(&error.message);
                return self
                    .no_answer(&format!("received undecodable patch in webhook response: {reason}"))
                    .map(|()| None);
            }
            Err(error) => return Err(inapplicable(error)),
        };
        if shown.is_null() {
            let reason = "attempted to modify the object, which is not supported for this operation";
            return Err(internal(format!("admission webhook {name:?} {reason}")));
        }
        let patched = blocking::in_place_if(long, || {
            let mut value = shown.clone();
            patch.apply(self.version, &mut value).map_err(inapplicable)?;
            let is_kept = |field: &str| value[field] == shown[field];
            if !value["metadata"].is_object() || !is_kept("apiVersion") || !is_kept("kind") {
                return Err(faulty("its patch changes what kind of object it is"));
            }
            // Whoever sets groups must be allowed to be each of them, and a webhook is nobody.
            let groups = |object: &Value| object["metadata"]["annotations"][accounts::GROUPS].clone();
            if &*subject.resource.storage == accounts::STORAGE && groups(&value) != groups(&shown) {
                return Err(faulty(&format!("its patch changes the groups of an account ({})", accounts::GROUPS)));
            }
            if subject.subresource != "scale" {
                // What the next one sees is an object as any other.
                converting::prune(self.version, &mut value);
                self.version.schema.apply_defaults(&mut value);
            }
            Ok(value)
        })?;
        if patched == shown {
            return Ok(None);
        }
        if !self.is_converted(subject) {
            return Ok(Some(patched));
        }
        converting::between(subject.api, self.version, subject.resource, &patched).await.map(Some)
    }

    /// Asks one that validates.
    async fn judge(
        &self,
        round: &AdmissionRound<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
        remarks: &mut Remarks,
    ) -> Result<(), ApiError> {
        self.ask(round, object, old, false, remarks).await.map(drop)
    }

    /// Asks; gives the answer and the object that was shown. Nothing when its conditions do not hold, or when it cannot be
    /// asked and is passed over then.
    async fn ask(
        &self,
        round: &AdmissionRound<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
        mutating: bool,
        remarks: &mut Remarks,
    ) -> Result<Option<(WebhookVerdict, Value)>, ApiError> {
        let (subject, hook) = (round.subject, self.hook);
        let is_converted = self.is_converted(subject);
        let show = async |value: Option<&Value>| match value {
            Some(value) if is_converted => {
                converting::between(subject.api, subject.resource, self.version, value).await
            }
            value => Ok(value.cloned().unwrap_or_default()),
        };
        let (object, old) = (show(object).await?, show(old).await?);
        let request = subject.request(self.version, &object, &old);
        if hook.has_conditions() {
            let request = Value::Object(request.clone());
            match blocking::in_place_if(true, || hook.conditions(&object, &old, &request)) {
                Conditions::Hold => {}
                Conditions::DoNotHold => return Ok(None),
                Conditions::Unknown(reason) if hook.fails => {
                    return Err(ApiError::forbidden(subject.resource, &subject.name, reason));
                }
                Conditions::Unknown(reason) => {
                    tracing::warn!(
                        configuration = self.configuration.name,
                        webhook = hook.name,
                        reason,
                        "the match conditions of a webhook cannot be evaluated: it is passed over"
                    );
                    return Ok(None);
                }
            }
        }
        if subject.dry_run && !hook.dry_runs {
            let message = format!("admission webhook {:?} does not support dry run", hook.name);
            return Err(ApiError::bad_request(message));
        }
        round.take_place()?;
        let uid = uuid::Uuid::new_v4().to_string();
        let question = review::question(&uid, request).to_string();
        let asked = Instant::now();
        let answer =
            self.call(subject, question.into()).await.map_err(|reason| format!("failed to call webhook: {reason}"));
        let verdict = answer.and_then(|answer| review::verdict(&hook.name, &uid, &answer, mutating));
        let came = match &verdict {
            Ok(verdict) if verdict.denied.is_some() => CallResult::Refused,
            Ok(_) => CallResult::Given,
            Err(_) => CallResult::None,
        };
        meters::called(WebhookQuestion::Admission, came, asked.elapsed());
        match verdict {
            Ok(mut verdict) => {
                remarks.warnings.append(&mut verdict.warnings);
                remarks.annotations.append(&mut verdict.annotations);
                match verdict.denied.take() {
                    Some(denied) => Err(denied),
                    None => Ok(Some((verdict, object))),
                }
            }
            Err(reason) => self.no_answer(&reason).map(|()| None),
        }
    }

    /// What becomes of a request when the webhook has not answered: it fails, or the webhook is passed over.
    fn no_answer(&self, reason: &str) -> Result<(), ApiError> {
        let Hook { name, fails, .. } = self.hook;
        if *fails {
            return Err(internal(format!("failed calling webhook {name:?}: {reason}")));
        }
        tracing::warn!(
            configuration = self.configuration.name,
            webhook = name,
            reason,
            "a webhook cannot be asked: it is passed over"
        );
        Ok(())
    }

    /// Waits for a place among the calls of the configuration, and for the answer, both within the webhook's time.
    async fn call(&self, subject: &ConfiguredRequest<'_>, question: Bytes) -> Result<Bytes, String> {
        let deadline = Instant::now() + self.hook.timeout;
        let place = timeout_at(deadline, self.configuration.calls.acquire(caller(&subject.identity.user))).await;
        let Ok(_place) = place else {
            let name = &self.configuration.name;
            return Err(format!("too many calls of configuration {name:?} are under way: context deadline exceeded"));
        };
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.hook.endpoint.ask(&subject.api.inner.webhooks.settings(), question, self.hook.timeout, left).await
    }
}

/// 500, as upstream words it.
fn internal(reason: String) -> ApiError {
    let mut error = ApiError::internal(format!("Internal error occurred: {reason}"));
    error.details = json!({"causes": [{ "message": reason }]});
    error
}
