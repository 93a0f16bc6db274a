//! Errors as Kubernetes `Status` objects (meta/v1), the only error form this server sends.

use std::borrow::Cow;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde_json::{Map, Value, json};

use crate::store::{Gone, StoreWriteError};

/// Seconds after which a client may try again when the server could not serve it.
const RETRY_AFTER: u32 = 1;

/// A request was not served. Carries what the client is told and nothing else.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status code.
    pub code: StatusCode,
    /// Machine-readable reason (`metav1.StatusReason`); empty when upstream has none.
    pub reason: Cow<'static, str>,
    /// For the operator.
    pub message: String,
    /// `metav1.StatusDetails`; null when there are none.
    pub details: Value,
    /// Where a list that expired may go on (`metadata.continue`); empty for every other error.
    pub continue_token: Box<str>,
    /// For the person at the client.
    pub warnings: Box<[String]>,
}

/// What an error may be about: a resource by its names.
pub trait ResourceNames {
    /// API group; empty for core.
    fn group(&self) -> &str;
    /// Kind.
    fn kind(&self) -> &str;
    /// Plural, the path segment.
    fn plural(&self) -> &str;

    /// `plural.group`, or `plural` for core.
    fn qualified(&self) -> String {
        qualify(self.plural(), self.group())
    }
}

impl<T: ResourceNames> ResourceNames for std::sync::Arc<T> {
    fn group(&self) -> &str {
        (**self).group()
    }

    fn kind(&self) -> &str {
        (**self).kind()
    }

    fn plural(&self) -> &str {
        (**self).plural()
    }
}

/// `name.group`, or `name` for core.
pub(in crate::apiserver) fn qualify(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

/// What is wrong with a field, in the words of Kubernetes' `field.ErrorType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldFault {
    /// The field must be given.
    Required,
    /// The value is not acceptable.
    Invalid,
    /// The value has the wrong JSON type.
    Type,
    /// The value is not one of those allowed.
    NotSupported,
    /// The field must not be given, or not changed.
    Forbidden,
    /// The value occurs twice.
    Duplicate,
    /// The value is too long.
    TooLong,
    /// The list or map has too many entries.
    TooMany,
    /// It would take too long to check the value, whatever the rest of it is.
    Unchecked,
}

impl FieldFault {
    fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid | Self::Unchecked => "FieldValueInvalid",
            Self::TooMany => "FieldValueTooMany",
            Self::Type => "FieldValueTypeInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::Duplicate => "FieldValueDuplicate",
            Self::TooLong => "FieldValueTooLong",
        }
    }

    pub(in crate::apiserver) fn words(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid | Self::Type | Self::Unchecked => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::Duplicate => "Duplicate value",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
        }
    }
}

/// One fault of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// What is wrong.
    pub fault: FieldFault,
    /// Path as `spec.image.url` or `spec.taints[0].key`.
    pub path: String,
    /// Fault, value and reason in words.
    pub message: String,
}

impl FieldError {
    /// A fault that names no value.
    pub fn new(fault: FieldFault, path: impl Into<String>, detail: impl AsRef<str>) -> Self {
        let detail = detail.as_ref();
        let message = if detail.is_empty() { fault.words().into() } else { format!("{}: {detail}", fault.words()) };
        Self { fault, path: path.into(), message }
    }

    /// The field must be given.
    pub fn required(path: impl Into<String>, detail: impl AsRef<str>) -> Self {
        Self::new(FieldFault::Required, path, detail)
    }

    /// The field must not be given, or not be changed.
    pub fn forbidden(path: impl Into<String>, detail: impl AsRef<str>) -> Self {
        Self::new(FieldFault::Forbidden, path, detail)
    }

    /// The value is not acceptable. Long values are cut.
    pub fn invalid(path: impl Into<String>, value: &Value, detail: impl AsRef<str>) -> Self {
        Self::with_value(FieldFault::Invalid, path, value, detail)
    }

    /// A fault that shows the value. Long values are cut.
    pub fn with_value(fault: FieldFault, path: impl Into<String>, value: &Value, detail: impl AsRef<str>) -> Self {
        let shown = match value {
            // Upstream does not repeat what is too long already.
            _ if fault == FieldFault::TooLong => String::new(),
            Value::Object(_) | Value::Array(_) => String::new(),
            other => format!("{}: ", shorten(&other.to_string(), 512)),
        };
        Self { fault, path: path.into(), message: format!("{}: {shown}{}", fault.words(), detail.as_ref()) }
    }
}

/// The first `limit` characters.
pub(in crate::apiserver) fn shorten(text: &str, limit: usize) -> String {
    // There are no more characters than bytes.
    let rest = if text.len() <= limit { None } else { text.char_indices().nth(limit) };
    match rest {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// Causes listed in one answer; more help nobody.
pub(in crate::apiserver) const CAUSES_MAX: usize = 64;
/// Letters of a patch that an answer shows.
const PATCH_SHOWN_MAX: usize = 4096;

fn causes(errors: &[FieldError]) -> Vec<Value> {
    let cause =
        |error: &FieldError| json!({"reason": error.fault.reason(), "message": error.message, "field": error.path});
    errors.iter().take(CAUSES_MAX).map(cause).collect()
}

impl ApiError {
    /// An error without details.
    pub fn new(code: StatusCode, reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: reason.into(),
            message: message.into(),
            details: Value::Null,
            continue_token: Box::default(),
            warnings: Box::default(),
        }
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// 401.
    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// 404 for a path that names no resource.
    pub fn no_such_path() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource")
    }

    /// 405.
    pub fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    /// 406.
    pub fn not_acceptable() -> Self {
        Self::new(
            StatusCode::NOT_ACCEPTABLE,
            "NotAcceptable",
            "only the following media types are accepted: application/json, application/yaml",
        )
    }

    /// 415.
    pub fn unsupported_media(accepted: &str) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            format!("the body of the request was in an unknown format - accepted media types include: {accepted}"),
        )
    }

    /// 410: the revision is no longer kept.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// 500. The message must hold nothing that a client may not see.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// 503. To be tried again soon.
    pub fn unavailable(message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message);
        error.details = json!({ "retryAfterSeconds": RETRY_AFTER });
        error
    }

    /// 404 for an object.
    pub fn not_found(resource: &dyn ResourceNames, name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", format!("{} \"{name}\" not found", resource.qualified()))
            .about(resource, name)
    }

    /// 409: the object exists.
    pub fn exists(resource: &dyn ResourceNames, name: &str) -> Self {
        Self::new(StatusCode::CONFLICT, "AlreadyExists", format!("{} \"{name}\" already exists", resource.qualified()))
            .about(resource, name)
    }

    /// 409: the object is not in the state that the client expected.
    pub fn conflict(resource: &dyn ResourceNames, name: &str, detail: impl AsRef<str>) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "Conflict",
            format!("Operation cannot be fulfilled on {} \"{name}\": {}", resource.qualified(), detail.as_ref()),
        )
        .about(resource, name)
    }

    /// 409 in Kubernetes' words for a stale `resourceVersion`.
    pub fn stale(resource: &dyn ResourceNames, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 403 for an object.
    pub fn forbidden(resource: &dyn ResourceNames, name: &str, detail: impl AsRef<str>) -> Self {
        let subject = if name.is_empty() { String::new() } else { format!(" \"{name}\"") };
        Self::new(
            StatusCode::FORBIDDEN,
            "Forbidden",
            format!("{}{subject} is forbidden: {}", resource.qualified(), detail.as_ref()),
        )
        .about(resource, name)
    }

    /// 422 with the faults of the fields.
    pub fn invalid(resource: &dyn ResourceNames, name: &str, errors: &[FieldError]) -> Self {
        Self::invalid_kind(resource.group(), resource.kind(), name, errors)
    }

    /// As [`ApiError::invalid`], for what is no resource.
    pub fn invalid_kind(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let text: Vec<String> =
            errors.iter().take(CAUSES_MAX).map(|error| format!("{}: {}", error.path, error.message)).collect();
        let text = match text.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let mut error = Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid",
            format!("{} \"{name}\" is invalid: {text}", qualify(kind, group)),
        );
        error.details = json!({"kind": kind, "causes": causes(errors)});
        for (key, value) in [("name", name), ("group", group)].into_iter().filter(|(_, value)| !value.is_empty()) {
            error.details[key] = value.into();
        }
        error
    }

    /// 422 for options of a request (`meta.k8s.io`).
    pub(in crate::apiserver) fn invalid_options(kind: &str, errors: &[FieldError]) -> Self {
        Self::invalid_kind("meta.k8s.io", kind, "", errors)
    }

    /// 422 for a patch whose outcome cannot be taken.
    pub(in crate::apiserver) fn invalid_patch(shown: &str, detail: impl AsRef<str>) -> Self {
        let shown = Value::from(shorten(shown, PATCH_SHOWN_MAX));
        let fault = FieldError {
            fault: FieldFault::Invalid,
            path: "patch".into(),
            message: format!("Invalid value: {shown}: {}", detail.as_ref()),
        };
        let message = format!(" \"\" is invalid: patch: {}", fault.message);
        let mut error = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message);
        error.details = json!({ "causes": causes(&[fault]) });
        error
    }

    /// Says which object the error is about.
    #[must_use]
    pub fn about(mut self, resource: &dyn ResourceNames, name: &str) -> Self {
        let mut details = Map::new();
        if !name.is_empty() {
            details.insert("name".into(), name.into());
        }
        if !resource.group().is_empty() {
            details.insert("group".into(), resource.group().into());
        }
        details.insert("kind".into(), resource.plural().into());
        self.details = Value::Object(details);
        self
    }

    /// What a failed write means for the client.
    pub fn from_write(error: &StoreWriteError, resource: &dyn ResourceNames, name: &str) -> Self {
        match error {
            StoreWriteError::Exists => Self::exists(resource, name),
            StoreWriteError::NotFound => Self::not_found(resource, name),
            StoreWriteError::Conflict { .. } => Self::stale(resource, name),
            StoreWriteError::Malformed(_) => Self::bad_request(error.to_string()).about(resource, name),
            StoreWriteError::TooLarge { .. } => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", error.to_string())
                    .about(resource, name)
            }
            StoreWriteError::Full | StoreWriteError::Crowded { .. } | StoreWriteError::TooMany { .. } => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "InsufficientStorage", error.to_string())
                    .about(resource, name)
            }
            StoreWriteError::Failed(_) => {
                tracing::error!(resource = resource.plural(), object = name, %error, "cannot write an object");
                let mut answer = Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", error.to_string());
                answer.details = json!({ "retryAfterSeconds": RETRY_AFTER });
                answer
            }
        }
    }

    /// The `Status` object.
    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code.as_u16(),
        });
        if !self.reason.is_empty() {
            status["reason"] = (*self.reason).into();
        }
        if !self.continue_token.is_empty() {
            status["metadata"]["continue"] = (*self.continue_token).into();
        }
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }
}

impl From<Gone> for ApiError {
    fn from(gone: Gone) -> Self {
        Self::expired(format!("too old resource version: {} ({})", gone.asked, gone.oldest))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.code, self.status().to_string());
        if self.code == StatusCode::SERVICE_UNAVAILABLE || self.code == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER.into());
        }
        self.warnings.iter().fold(response, |response, warning| with_warning(response, warning))
    }
}

/// The answer with one more warning for the person at the client.
pub(in crate::apiserver) fn with_warning(mut response: Response, warning: &str) -> Response {
    // RFC 9110 quoted-string; the texts quote field names, so backslashes are needed.
    let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
    if let Ok(value) = http::HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
        response.headers_mut().append(header::WARNING, value);
    }
    response
}

/// An answer with a JSON body.
pub(in crate::apiserver) fn json_response(code: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response.headers_mut().insert(header::CACHE_CONTROL, http::HeaderValue::from_static("no-cache, private"));
    response
}
