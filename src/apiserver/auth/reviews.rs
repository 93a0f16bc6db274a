//! TokenReview, TokenRequest and the SubjectAccessReviews.
//!
//! Questions about callers and permissions: the reviews, and the making of tokens. Each is created, answered and
//! forgotten.

use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::identity::UserIdentity;
use super::kinds::AUTHENTICATION;
use super::rules::{Attributes, PolicyRule};
use super::tokens::{BoundObject, NewToken};
use super::{Proof, accounts};
use crate::apiserver::answers::status::with_warning;
use crate::apiserver::answers::status::{ApiError, FieldError, FieldFault};
use crate::apiserver::requests::body::parse_body;
use crate::apiserver::requests::options::{self, WriteRequest};
use crate::apiserver::requests::request_context::RequestContext;
use crate::apiserver::writing::write;

/// Shortest time that a token may be asked for, in seconds.
const SECONDS_MIN: i64 = 600;
/// Longest.
const SECONDS_MAX: i64 = 1 << 32;
/// Longest time that one is made for, in seconds: a year of 365 days. A request for more gets this and is told so, as with
/// upstream's `--service-account-max-token-expiration`.
const SECONDS_GIVEN: i64 = 365 * 24 * 3600;
/// When nothing is said.
const SECONDS: i64 = 3600;
/// Audiences of one token.
const AUDIENCES_MAX: usize = 32;
/// Groups that a question about somebody names.
const GROUPS_MAX: usize = 1000;
/// What is listed for one caller.
const RULES_MAX: usize = 10_000;
/// Bytes of text in it.
const RULES_BYTES: usize = 2 << 20;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ResourceAttributes {
    namespace: String,
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PathAttributes {
    path: String,
    verb: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AccessSpec {
    resource_attributes: Option<ResourceAttributes>,
    non_resource_attributes: Option<PathAttributes>,
    user: String,
    groups: Vec<String>,
}

impl AccessSpec {
    fn attributes(&self) -> Attributes<'_> {
        match (&self.resource_attributes, &self.non_resource_attributes) {
            (Some(wanted), _) => Attributes {
                verb: &wanted.verb,
                group: &wanted.group,
                version: &wanted.version,
                // An empty one is asked for as the resource of no name: only `*` has it.
                resource: if wanted.resource.is_empty() { " " } else { &wanted.resource },
                subresource: &wanted.subresource,
                namespace: &wanted.namespace,
                name: &wanted.name,
                path: "",
            },
            (None, Some(wanted)) => Attributes { verb: &wanted.verb, path: &wanted.path, ..Attributes::default() },
            (None, None) => Attributes::default(),
        }
    }

    fn faults(&self, names_user: bool) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let null = Value::Null;
        match (&self.resource_attributes, &self.non_resource_attributes) {
            (Some(_), Some(_)) => errors.push(FieldError::invalid(
                "spec.nonResourceAttributes",
                &"".into(),
                "cannot be specified in combination with resourceAttributes",
            )),
            (None, None) => errors.push(FieldError::invalid(
                "spec.resourceAttributes",
                &null,
                "exactly one of nonResourceAttributes or resourceAttributes must be specified",
            )),
            _ => {}
        }
        if names_user && self.user.is_empty() && self.groups.is_empty() {
            errors.push(FieldError::invalid(
                "spec.user",
                &"".into(),
                "at least one of user or group must be specified",
            ));
        }
        if self.groups.len() > GROUPS_MAX {
            let detail = format!("{}: must have at most {GROUPS_MAX} items", self.groups.len());
            errors.push(FieldError::new(FieldFault::TooMany, "spec.groups", detail));
        }
        errors
    }
}

fn read<T: for<'de> Deserialize<'de>>(value: &Value) -> Result<T, ApiError> {
    T::deserialize(value).map_err(|error| ApiError::bad_request(format!("spec cannot be read: {error}")))
}

/// Answers a review.
pub(in crate::apiserver) async fn answer(context: &RequestContext<'_>, body: &Bytes) -> Result<Value, ApiError> {
    let resource = context.resource;
    options::check(context, WriteRequest::Create)?;
    let mut review = write::read(context, body, || parse_body(context.headers, body)).await?.value;
    write::check_type(resource, &mut review)?;
    // Go clients send one, with lists that are null where the schema requires them; it is the server's to fill in.
    if let Some(review) = review.as_object_mut() {
        review.remove("status");
    }
    resource.schema.drop_nulls(&mut review);
    if review.get("metadata").is_none() {
        review["metadata"] = json!({});
    }
    resource.schema.prune(&mut review);
    let errors = resource.schema.validate(&review);
    let name = review["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if !errors.is_empty() {
        return Err(ApiError::invalid(resource, &name, &errors));
    }
    let status = match resource.kind.as_str() {
        "SelfSubjectReview" => {
            review["metadata"]["creationTimestamp"] = json!(crate::apiserver::objects::meta::now());
            json!({"userInfo": context.identity.user_info()})
        }
        "SelfSubjectRulesReview" => rules_review(context, &review)?,
        "TokenReview" => token_review(context, &review)?,
        kind => access_review(context, kind, &review)?,
    };
    review["status"] = status;
    Ok(review)
}

/// Upstream names no kind when it refuses a question about access.
fn refused(errors: &[FieldError], context: &RequestContext<'_>) -> ApiError {
    let mut error = ApiError::invalid(context.resource, "", errors);
    error.message = error.message.replacen(&context.resource.kind, "", 1);
    error.details = json!({"group": context.resource.group, "causes": error.details["causes"]});
    error
}

fn access_review(context: &RequestContext<'_>, kind: &str, review: &Value) -> Result<Value, ApiError> {
    let spec: AccessSpec = read(&review["spec"])?;
    let of_self = kind == "SelfSubjectAccessReview";
    let mut errors = spec.faults(!of_self);
    if kind == "LocalSubjectAccessReview" {
        let namespace = context.target.namespace.as_deref().unwrap_or_default();
        match &spec.resource_attributes {
            Some(wanted) if wanted.namespace == namespace => {}
            Some(wanted) => errors.push(FieldError::invalid(
                "spec.resourceAttributes.namespace",
                &wanted.namespace.as_str().into(),
                "must match metadata.namespace",
            )),
            None if spec.non_resource_attributes.is_some() => errors.push(FieldError::invalid(
                "spec.nonResourceAttributes",
                &Value::Null,
                "disallowed on this kind of request",
            )),
            None => {}
        }
    }
    if !errors.is_empty() {
        return Err(refused(&errors, context));
    }
    let other;
    let identity = if of_self {
        context.identity
    } else {
        other = UserIdentity::new(spec.user.clone(), spec.groups.clone(), Proof::Impersonation);
        &other
    };
    let decision = context.api.auth().decide(identity, &spec.attributes());
    let mut status = json!({"allowed": decision.allowed});
    if !decision.reason.is_empty() {
        status["reason"] = decision.reason.into();
    }
    Ok(status)
}

fn rules_review(context: &RequestContext<'_>, review: &Value) -> Result<Value, ApiError> {
    let namespace = review["spec"]["namespace"].as_str().unwrap_or_default();
    if namespace.is_empty() {
        return Err(ApiError::bad_request("no namespace on request"));
    }
    let (roles, faults) = context.api.auth().authorizer.index().rules(context.identity.caller(), namespace);
    let mut status = json!({"resourceRules": [], "nonResourceRules": [], "incomplete": false});
    let mut bytes = 0;
    for (count, rule) in roles.iter().flat_map(|rules| rules.iter()).enumerate() {
        bytes += rule.text_len();
        if count == RULES_MAX || bytes > RULES_BYTES {
            status["incomplete"] = true.into();
            break;
        }
        let PolicyRule { groups, paths, names, resources, verbs } = &**rule;
        let (list, mut rule) = if resources.is_empty() {
            ("nonResourceRules", json!({"verbs": verbs, "nonResourceURLs": paths}))
        } else {
            ("resourceRules", json!({"verbs": verbs, "apiGroups": groups, "resources": resources}))
        };
        if !names.is_empty() {
            rule["resourceNames"] = names.clone().into();
        }
        if let Some(rules) = status[list].as_array_mut() {
            rules.push(rule);
        }
    }
    if !faults.is_empty() {
        status["evaluationError"] = faults.join(", ").into();
    }
    Ok(status)
}

fn token_review(context: &RequestContext<'_>, review: &Value) -> Result<Value, ApiError> {
    let spec = &review["spec"];
    let token = spec["token"].as_str().unwrap_or_default();
    if token.is_empty() {
        return Err(ApiError::bad_request("token is required for TokenReview in authentication"));
    }
    let auth = context.api.auth();
    let asked: Vec<String> = Vec::deserialize(&spec["audiences"]).unwrap_or_default();
    let audiences = if asked.is_empty() { &auth.audiences } else { &asked };
    let now = Timestamp::now().as_second();
    Ok(match auth.tokens.identify(token, audiences, &auth.store, now) {
        Some(identity) => {
            let fits = |claims: &std::sync::Arc<super::TokenClaims>| {
                claims.audiences.iter().filter(|one| audiences.contains(one)).cloned().collect::<Vec<_>>()
            };
            let audiences = identity.claims.as_ref().map(fits).unwrap_or_default();
            json!({"authenticated": true, "user": identity.user_info(), "audiences": audiences})
        }
        None => json!({"user": {}, "error": "invalid bearer token"}),
    })
}

/// Makes a token of the account of the path (`TokenRequest`).
pub(in crate::apiserver) async fn make_token(context: &RequestContext<'_>, body: &Bytes) -> Result<Response, ApiError> {
    let (resource, name) = (context.resource, context.name()?);
    let namespace = context.target.namespace.as_deref().unwrap_or_default();
    let dry_run = options::check(context, WriteRequest::Create)?;
    let asked = write::read(context, body, || parse_body(context.headers, body)).await?.value;
    for (field, wanted) in [("kind", "TokenRequest".to_owned()), ("apiVersion", format!("{AUTHENTICATION}/v1"))] {
        if asked.get(field).is_some_and(|found| *found != wanted && *found != "") {
            return Err(ApiError::bad_request(format!("{field} in the data must be {wanted}")));
        }
    }
    let alive = |resource: &str, name: &str| {
        context.api.store().get(resource, namespace, name).filter(|object| !object.is_ending())
    };
    let named = |object: &crate::store::Object| BoundObject {
        name: object.name.clone(),
        uid: object.metadata()["uid"].as_str().unwrap_or_default().to_owned(),
    };
    let account = alive(accounts::STORAGE, name).ok_or_else(|| ApiError::not_found(resource, name))?;
    let metadata = account.metadata();
    context.api.auth().check_token(context.identity, resource, &metadata)?;
    let spec = &asked["spec"];
    let seconds = match &spec["expirationSeconds"] {
        Value::Null => SECONDS,
        given => given.as_i64().ok_or_else(|| ApiError::bad_request("spec.expirationSeconds is no number"))?,
    };
    let fault = match seconds {
        ..SECONDS_MIN => Some("may not specify a duration less than 10 minutes"),
        SECONDS_MIN..=SECONDS_MAX => None,
        _ => Some("may not specify a duration larger than 2^32 seconds"),
    };
    if let Some(fault) = fault {
        let mut error =
            ApiError::invalid(resource, "", &[FieldError::invalid("spec.expirationSeconds", &seconds.into(), fault)]);
        error.message = error.message.replacen("ServiceAccount", "TokenRequest.authentication.k8s.io", 1);
        error.details["kind"] = "TokenRequest".into();
        error.details["group"] = AUTHENTICATION.into();
        return Err(error);
    }
    let asked_for = seconds;
    let seconds = asked_for.min(SECONDS_GIVEN);
    let mut audiences: Vec<String> = match &spec["audiences"] {
        Value::Null => Vec::new(),
        given => Vec::deserialize(given).map_err(|_| ApiError::bad_request("spec.audiences is no list of texts"))?,
    };
    if audiences.len() > AUDIENCES_MAX || audiences.iter().any(|one| one.len() > 256) {
        return Err(ApiError::bad_request("spec.audiences has too many or too long entries"));
    }
    if audiences.is_empty() {
        audiences.clone_from(&context.api.auth().audiences);
    }
    let secret = match &spec["boundObjectRef"] {
        Value::Null => None,
        bound => {
            let text = |field: &str| bound[field].as_str().unwrap_or_default();
            // There are none of these.
            if let (kind @ ("Pod" | "Node"), "v1") = (text("kind"), text("apiVersion")) {
                let plural = if kind == "Pod" { "pods" } else { "nodes" };
                let named = crate::apiserver::answers::status::shorten(text("name"), 253);
                let mut error =
                    ApiError::new(StatusCode::NOT_FOUND, "NotFound", format!("{plural} \"{named}\" not found"));
                error.details = json!({"name": named, "kind": plural});
                return Err(error);
            }
            if text("kind") != "Secret" || text("apiVersion") != "v1" {
                return Err(ApiError::bad_request(format!(
                    "cannot bind token for serviceaccount {name:?} to object of type \"{}, Kind={}\"",
                    crate::apiserver::answers::status::shorten(text("apiVersion"), 64),
                    crate::apiserver::answers::status::shorten(text("kind"), 64)
                )));
            }
            let registry = context.api.registry();
            let secrets = registry.find("", "v1", "secrets").ok_or_else(ApiError::no_such_path)?;
            let found = alive("/secrets", text("name")).ok_or_else(|| ApiError::not_found(secrets, text("name")))?;
            let found = named(&found);
            if !text("uid").is_empty() && text("uid") != found.uid {
                let detail = format!(
                    "the UID in the bound object reference ({}) does not match the UID in record. The object might \
                     have been deleted and then recreated",
                    crate::apiserver::answers::status::shorten(text("uid"), 64)
                );
                return Err(ApiError::conflict(secrets, &found.name, detail));
            }
            Some(found)
        }
    };
    let now = Timestamp::now();
    let order = NewToken {
        namespace: namespace.to_owned(),
        account: named(&account),
        secret,
        // Those that the caller was just asked for.
        groups: accounts::given_groups(&metadata),
        audiences,
        now: now.as_second(),
        seconds,
    };
    let token = if dry_run {
        String::new()
    } else {
        let issued = context.api.auth().tokens.issue(&order);
        issued.map_err(|error| ApiError::internal(error.to_string()))?
    };
    let end = Timestamp::from_second(order.now.saturating_add(seconds)).unwrap_or(Timestamp::MAX);
    let mut bound = Map::new();
    if let Some(secret) = &order.secret {
        bound.insert(
            "boundObjectRef".into(),
            json!({"apiVersion": "v1", "kind": "Secret", "name": secret.name, "uid": secret.uid}),
        );
    }
    let mut answer = json!({
        "kind": "TokenRequest",
        "apiVersion": format!("{AUTHENTICATION}/v1"),
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": crate::apiserver::objects::meta::now()},
        "spec": {"audiences": order.audiences, "expirationSeconds": seconds},
        "status": {"token": token, "expirationTimestamp": end},
    });
    if let Some(spec) = answer["spec"].as_object_mut() {
        spec.extend(bound);
    }
    let response = send(&answer);
    Ok(match seconds < asked_for {
        true => {
            let warning = format!("requested expiration of {asked_for} seconds shortened to {seconds} seconds");
            with_warning(response, &warning)
        }
        false => response,
    })
}

/// How a review or a token is sent.
pub(in crate::apiserver) fn send(answer: &Value) -> Response {
    crate::apiserver::answers::status::json_response(StatusCode::CREATED, answer.to_string())
}
