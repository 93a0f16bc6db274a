//! List: which objects, at which revision, how many at a time.
//!
//! What the parameters mean is settled by [`WantedRevision::of`], without a store. A list in parts is one list: each part is
//! read at the revision of the first, out of the store's history, and when that no longer reaches back the client is
//! told (410) with a token that goes on at the newest revision, as API concepts, "Retrieving large results sets in
//! chunks", says.

use std::sync::Arc;

use axum::response::Response;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, URL_SAFE_NO_PAD};
use base64::{Engine, alphabet};
use serde::{Deserialize, Serialize};

use super::read::{reach, send_list};
use crate::apiserver::answers::list_body::ListHead;
use crate::apiserver::answers::status::{ApiError, FieldError, FieldFault, shorten};
use crate::apiserver::objects::selectors::ObjectSelector;
use crate::apiserver::requests::request::{Params, parse_revision};
use crate::apiserver::requests::request_context::RequestContext;
use crate::apiserver::webhooks::converting;
use crate::store::{Object, ObjectListing};

/// Longest continue token that is read.
const TOKEN_MAX: usize = 4096;
/// In a token: at whatever revision is the newest then.
const NEWEST: i64 = -1;

const EXPIRED: &str = "The resourceVersion for the provided list is too old.";
const CONTINUE_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. You can \
    start a new list without the continue parameter, or use the continue token in this response to retrieve the \
    remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were \
    created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

/// The revision that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WantedRevision {
    /// The newest, which is at least this one.
    Newest(u64),
    /// This very one.
    Exactly(u64),
    /// What comes after a place: at a revision, or at the newest.
    Rest(Option<u64>, ContinueKey),
}

/// Namespace and name of the last object of a part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ContinueKey(String, String);

impl ContinueKey {
    fn of(object: &Object) -> Self {
        Self(object.namespace.clone(), object.name.clone())
    }

    fn precedes(&self, object: &Object) -> bool {
        (self.0.as_str(), self.1.as_str()) < (object.namespace.as_str(), object.name.as_str())
    }
}

/// What a continue token says (the form is upstream's; to clients it is opaque).
#[derive(Serialize, Deserialize)]
struct ContinueToken {
    v: String,
    rv: i64,
    start: String,
}

fn encode(revision: i64, after: &ContinueKey) -> String {
    let token = ContinueToken { v: "meta.k8s.io/v1".into(), rv: revision, start: format!("{}/{}\0", after.0, after.1) };
    // Writing it to memory does not fail.
    URL_SAFE_NO_PAD.encode(serde_json::to_string(&token).unwrap_or_default())
}

/// Reads a token; what is wrong with it is said in the words of upstream's JSON reader, as far as they are.
fn read_token(bytes: &[u8]) -> Result<ContinueToken, String> {
    let show = |byte: u8| match byte {
        b'\'' => r"'\''".to_owned(),
        0x20..=0x7e | 0xa0.. => format!("'{}'", char::from(byte)),
        0x80..=0x9f => format!("'\\u{byte:04x}'"),
        _ => format!("'\\x{byte:02x}'"),
    };
    let mut tokens = serde_json::Deserializer::from_slice(bytes).into_iter::<ContinueToken>();
    match (tokens.next(), bytes.first()) {
        (Some(Ok(token)), _) => match bytes.get(tokens.byte_offset()) {
            Some(rest) => Err(format!("invalid character {} after top-level value", show(*rest))),
            None => Ok(token),
        },
        (Some(Err(_)), Some(first)) if !b"{[\"-0123456789tfn \t\r\n".contains(first) => {
            Err(format!("invalid character {} looking for beginning of value", show(*first)))
        }
        (Some(Err(error)), _) => Err(error.to_string()),
        (None, _) => Err("unexpected end of JSON input".into()),
    }
}

fn decode(text: &str) -> Result<(Option<u64>, ContinueKey), ApiError> {
    let refuse =
        |reason: &str| ApiError::bad_request(format!("invalid continue token: continue key is not valid: {reason}"));
    let lenient = GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let base64 = GeneralPurpose::new(&alphabet::URL_SAFE, lenient);
    if text.len() > TOKEN_MAX {
        return Err(refuse("it is too long"));
    }
    let bytes = base64.decode(text).map_err(|error| refuse(&error.to_string()))?;
    let token = read_token(&bytes).map_err(|reason| refuse(&reason))?;
    if token.v != "meta.k8s.io/v1" {
        return Err(refuse(&format!("server does not recognize this encoded version {:?}", shorten(&token.v, 64))));
    }
    let start = token.start.strip_suffix('\0').unwrap_or(&token.start);
    let (namespace, name) = start.split_once('/').ok_or_else(|| refuse("it has no place"))?;
    let revision = match token.rv {
        NEWEST => None,
        other => Some(
            u64::try_from(other)
                .ok()
                .filter(|revision| *revision > 0)
                .ok_or_else(|| refuse("incorrect encoded start resourceVersion (version meta.k8s.io/v1)"))?,
        ),
    };
    Ok((revision, ContinueKey(namespace.to_owned(), name.to_owned())))
}

impl WantedRevision {
    /// Whether an object of the listing is wanted: of the rest only what comes after the place where it begins.
    fn has(&self, object: &Object) -> bool {
        match self {
            Self::Rest(_, after) => after.precedes(object),
            Self::Newest(_) | Self::Exactly(_) => true,
        }
    }

    /// What the parameters of a list ask for.
    pub(in crate::apiserver) fn of(params: &Params) -> Result<Self, ApiError> {
        check_options(params)?;
        let revision = parse_revision(&params.resource_version)
            .map_err(|error| ApiError::bad_request(format!("invalid resource version: {}", error.message)))?;
        if !params.continue_token.is_empty() {
            if revision.is_some() {
                return Err(ApiError::bad_request("specifying resource version is not allowed when using continue"));
            }
            let (revision, after) = decode(&params.continue_token)?;
            return Ok(Self::Rest(revision, after));
        }
        Ok(match (revision, params.resource_version_match.as_str()) {
            (Some(revision), "Exact") => Self::Exactly(revision),
            // A limit beside a revision meant this before resourceVersionMatch was there to say so.
            (Some(revision), "") if params.limit.is_some() => Self::Exactly(revision),
            (revision, _) => Self::Newest(revision.unwrap_or(0)),
        })
    }
}

/// The rules of `metav1.ListOptions` for a list.
fn check_options(params: &Params) -> Result<(), ApiError> {
    let mut errors = Vec::new();
    let version_match = params.resource_version_match.as_str();
    if !version_match.is_empty() {
        let forbidden = |reason: &str| FieldError::forbidden("resourceVersionMatch", reason);
        if params.resource_version.is_empty() {
            errors.push(forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided"));
        }
        if !params.continue_token.is_empty() {
            errors.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
        }
        if !matches!(version_match, "Exact" | "NotOlderThan") {
            errors.push(FieldError::with_value(
                FieldFault::NotSupported,
                "resourceVersionMatch",
                &version_match.into(),
                "supported values: \"Exact\", \"NotOlderThan\", \"\"",
            ));
        }
        if version_match == "Exact" && params.resource_version == "0" {
            errors.push(forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""));
        }
    }
    if params.send_initial.is_some() {
        errors.push(FieldError::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    invalid_options(&errors)
}

/// The error of list options that break the rules, if there are any such.
pub(in crate::apiserver) fn invalid_options(errors: &[FieldError]) -> Result<(), ApiError> {
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid_kind("meta.k8s.io", "ListOptions", "", errors)) }
}

/// The objects that are selected.
pub(in crate::apiserver) async fn list(context: &RequestContext<'_>) -> Result<Response, ApiError> {
    let params = context.params;
    let wanted = WantedRevision::of(params)?;
    let selector = ObjectSelector::parse(context.resource, &params.labels, &params.fields)?;
    // Only who has a turn holds a list, for many may wait for theirs.
    let scan = match selector.is_everything() {
        true => None,
        false => Some(context.api.inner.scans.begin(context.identity).await),
    };
    // Where they are is copied, however few of them are wanted; who wants some at a time does so again and again.
    let many = |(of, count): (Arc<str>, usize)| count >= MANY && of == context.resource.storage;
    let turn = match &scan {
        None => context.turn(context.api.store().counts().into_iter().any(many)).await,
        Some(_) => None,
    };
    let listing = read(context, &wanted).await?;
    let revision = listing.revision;
    let mut objects = listing.objects;
    if let WantedRevision::Rest(_, after) = &wanted {
        objects.drain(..objects.partition_point(|object| !after.precedes(object)));
    }
    // Upstream answers revision 0 out of its cache, whole.
    let limit = params.limit.filter(|_| params.resource_version != "0");
    let total = objects.len();
    let mut part = ListPart::of(limit);
    match scan {
        Some(scan) => scan.each(objects, |object| !selector.matches(&object) || part.add(object)).await,
        None if limit.is_none() => part.objects = objects,
        None => _ = objects.into_iter().all(|object| part.add(object)),
    }
    drop(turn);
    // With a selector nobody knows how many would be left without looking at them all.
    let (objects, head) = part.end(revision, selector.is_everything().then_some(total));
    let objects = converting::served(context.api, context.resource, objects).await?;
    Ok(send_list(context, objects, &head))
}

async fn read(context: &RequestContext<'_>, wanted: &WantedRevision) -> Result<ObjectListing, ApiError> {
    let store = context.api.store();
    let (storage, namespace) = (&context.resource.storage, context.target.namespace.as_deref());
    match wanted {
        WantedRevision::Newest(least) => {
            reach(store, *least).await?;
            Ok(store.list(storage, namespace))
        }
        WantedRevision::Exactly(revision) => {
            reach(store, *revision).await?;
            store.list_at(storage, namespace, *revision).map_err(|_| ApiError::expired(EXPIRED))
        }
        WantedRevision::Rest(None, _) => Ok(store.list(storage, namespace)),
        WantedRevision::Rest(Some(revision), after) => store.list_at(storage, namespace, *revision).map_err(|_| {
            let mut error = ApiError::expired(CONTINUE_EXPIRED);
            error.continue_token = encode(NEWEST, after).into();
            error
        }),
    }
}

/// Namespaces and names of what a list with these parameters has: the objects themselves would be kept until the last of
/// them is deleted.
pub(in crate::apiserver) async fn names(context: &RequestContext<'_>) -> Result<Vec<(String, String)>, ApiError> {
    let params = context.params;
    let wanted = WantedRevision::of(params)?;
    let selector = ObjectSelector::parse(context.resource, &params.labels, &params.fields)?;
    let limit = params.limit.unwrap_or(usize::MAX);
    let mut names: Vec<(String, String)> = Vec::new();
    let scan = context.api.inner.scans.begin(context.identity).await;
    let listing = read(context, &wanted).await?;
    let look = |object: Arc<Object>| {
        if wanted.has(&object) && selector.matches(&object) {
            names.push((object.namespace.clone(), object.name.clone()));
        }
        names.len() < limit
    };
    scan.each(listing.objects, look).await;
    Ok(names)
}

/// Objects of a kind from which on it is long to list any of them.
const MANY: usize = 10_000;

/// Text of a part after which no more is put into it, in bytes: who asks for parts keeps them in memory, the appliance's own
/// controllers among them, and a server may give fewer than it was asked for.
const PART_BYTES: usize = 4 << 20;

/// The first part of what is selected, as it comes.
struct ListPart {
    limit: Option<usize>,
    objects: Vec<Arc<Object>>,
    /// Length of their text.
    bytes: usize,
    /// Whether there is more.
    goes_on: bool,
}

impl ListPart {
    fn of(limit: Option<usize>) -> Self {
        Self { limit, objects: Vec::new(), bytes: 0, goes_on: false }
    }

    /// Puts in the next object unless it is one too many; whether it was put in.
    fn add(&mut self, object: Arc<Object>) -> bool {
        let length = object.json_len();
        if let Some(limit) = self.limit {
            let has_room = self.objects.is_empty() || self.bytes + length <= PART_BYTES;
            self.goes_on = self.objects.len() >= limit || !has_room;
        }
        if !self.goes_on {
            self.bytes += length;
            self.objects.push(object);
        }
        !self.goes_on
    }

    /// The objects and the metadata of the list; `total`: how many there are in all, if that is known.
    fn end(self, revision: u64, total: Option<usize>) -> (Vec<Arc<Object>>, ListHead) {
        let mut head = ListHead::at(revision);
        if let Some(last) = self.objects.last().filter(|_| self.goes_on) {
            head.continue_token = encode(i64::try_from(revision).unwrap_or(NEWEST), &ContinueKey::of(last));
            head.remaining = total.map(|total| total - self.objects.len());
        }
        (self.objects, head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(query: &str) -> Params {
        Params::parse(&format!("/x?{query}").parse().unwrap()).unwrap()
    }

    #[test]
    fn parameters_mean_what_kubernetes_says() {
        let after = ContinueKey("ns".into(), "b".into());
        for (query, wanted) in [
            ("", WantedRevision::Newest(0)),
            ("resourceVersion=0", WantedRevision::Newest(0)),
            ("resourceVersion=7", WantedRevision::Newest(7)),
            ("resourceVersion=7&limit=2", WantedRevision::Exactly(7)),
            ("resourceVersion=7&resourceVersionMatch=NotOlderThan&limit=2", WantedRevision::Newest(7)),
            ("resourceVersion=0&resourceVersionMatch=NotOlderThan", WantedRevision::Newest(0)),
            ("resourceVersion=7&resourceVersionMatch=Exact", WantedRevision::Exactly(7)),
            (&format!("continue={}", encode(7, &after)), WantedRevision::Rest(Some(7), after.clone())),
            (
                &format!("continue={}&resourceVersion=0", encode(NEWEST, &after)),
                WantedRevision::Rest(None, after.clone()),
            ),
        ] {
            assert_eq!(WantedRevision::of(&params(query)).unwrap(), wanted, "{query}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused_in_upstreams_words() {
        let token = encode(7, &ContinueKey(String::new(), "a".into()));
        for (query, code, message) in [
            (
                "resourceVersionMatch=Exact",
                422,
                "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: \
                resourceVersionMatch is forbidden unless resourceVersion is provided",
            ),
            (
                "resourceVersion=0&resourceVersionMatch=Exact",
                422,
                "ListOptions.meta.k8s.io \"\" is invalid: \
                resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            ),
            (
                "resourceVersion=1&resourceVersionMatch=Odd",
                422,
                "ListOptions.meta.k8s.io \"\" is invalid: \
                resourceVersionMatch: Unsupported value: \"Odd\": supported values: \"Exact\", \"NotOlderThan\", \"\"",
            ),
            (
                "sendInitialEvents=true",
                422,
                "ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: \
                sendInitialEvents is forbidden for list",
            ),
            (
                &format!("continue={token}&resourceVersion=3"),
                400,
                "specifying resource version is not allowed when using continue",
            ),
        ] {
            let error = WantedRevision::of(&params(query)).unwrap_err();
            assert_eq!((error.code.as_u16(), error.message.as_str()), (code, message), "{query}");
        }
        for (token, reason) in [
            ("nonsense", r"invalid character '\u009e' looking for beginning of value"),
            (
                &URL_SAFE_NO_PAD.encode(r#"{"v":"meta.k8s.io/v1","rv":7,"start":"a/b"}6"#),
                "invalid character '6' after top-level value",
            ),
        ] {
            let error = WantedRevision::of(&params(&format!("continue={token}"))).unwrap_err();
            assert_eq!(error.message, format!("invalid continue token: continue key is not valid: {reason}"));
        }
        for token in
            ["x", "e30", &"a".repeat(5000), &URL_SAFE_NO_PAD.encode(r#"{"v":"meta.k8s.io/v1","rv":-7,"start":"a/b"}"#)]
        {
            let error = WantedRevision::of(&params(&format!("continue={token}"))).unwrap_err();
            assert!(
                error.code == 400 && error.message.starts_with("invalid continue token: continue key is not valid: "),
                "{token}"
            );
        }
    }

    #[test]
    fn a_part_ends_with_so_many_objects_or_so_much_text() {
        let object = |number: usize, length: usize| {
            let json =
                serde_json::json!({"metadata": {"name": number.to_string()}, "data": "x".repeat(length)}).to_string();
            let name = format!("{number:03}");
            Arc::new(Object::new("/configmaps".into(), "ns".into(), name, 1, json.as_bytes()).unwrap())
        };
        let parts = |objects: &[Arc<Object>], limit| {
            let mut part = ListPart::of(limit);
            _ = objects.iter().all(|object| part.add(Arc::clone(object)));
            let (part, head) = part.end(7, Some(objects.len()));
            (part.len(), head.continue_token.is_empty(), head.remaining)
        };
        let large: Vec<_> = (0..10).map(|number| object(number, 1_500_000)).collect();
        assert_eq!(parts(&large, Some(500)), (2, false, Some(8)));
        assert_eq!(parts(&large[..2], Some(500)), (2, true, None));
        assert_eq!(parts(&large, None), (10, true, None));
        // One is always given.
        assert_eq!(parts(&[object(0, PART_BYTES + 1), object(1, 1)], Some(500)), (1, false, Some(1)));
        let small: Vec<_> = (0..10).map(|number| object(number, 10)).collect();
        assert_eq!(parts(&small, Some(3)), (3, false, Some(7)));
    }
}
