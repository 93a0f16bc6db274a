//! Request parsing: path, query parameters, Accept header.

use std::time::Duration;

use http::{HeaderMap, Uri, header};

use crate::apiserver::answers::encoding::ContentEncoding;
use crate::apiserver::answers::status::{ApiError, shorten};
use crate::apiserver::schema;

/// How much of the object each row of a table carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Include {
    /// Nothing.
    None,
    /// kind, apiVersion and metadata.
    #[default]
    Metadata,
    /// All of it.
    Object,
}

/// The resource that a path names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestTarget {
    /// Group, empty for core.
    pub group: String,
    /// Version.
    pub version: String,
    /// Plural.
    pub plural: String,
    /// Namespace, when the path has one.
    pub namespace: Option<String>,
    /// Name, when the path has one.
    pub name: Option<String>,
    /// Subresource, when the path has one.
    pub subresource: Option<String>,
    /// Whether the path is one of the old ones that mean a watch: `/api/v1/watch/…`.
    pub watch: bool,
}

impl RequestTarget {
    /// Reads the part of the path after `/api/v1` or `/apis/G/V`.
    fn parse(group: &str, version: &str, rest: &[String]) -> Option<Self> {
        let mut target = Self { group: group.into(), version: version.into(), ..Self::default() };
        let mut rest = rest;
        if let [head, _, ..] = rest
            && head == "watch"
        {
            target.watch = true;
            rest = &rest[1..];
        }
        // `/namespaces/X` and its subresources are the namespace itself; more is what lives in it.
        if let [head, namespace, plural, ..] = rest
            && head == "namespaces"
            && !(group.is_empty() && (plural == "status" || plural == "finalize"))
        {
            target.namespace = Some(namespace.clone());
            rest = &rest[2..];
        }
        let (plural, rest) = rest.split_first()?;
        target.plural = plural.clone();
        target.name = rest.first().cloned();
        target.subresource = rest.get(1).cloned();
        (rest.len() <= 2).then_some(target)
    }

    /// `plural.group`, or `plural` for core.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }
}

/// What a path means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::apiserver) enum RequestRoute {
    Version,
    Health,
    Metrics,
    Root,
    /// `/api`
    CoreVersions,
    /// `/apis`
    Groups,
    /// `/apis/G`
    Group(String),
    /// `/api/v1`, `/apis/G/V`
    Resources(String, String),
    /// `/.well-known/openid-configuration`
    TokenIssuer,
    /// `/openid/v1/jwks`
    TokenKeys,
    OpenApiV2,
    OpenApiV3,
    /// `/openapi/v3/<group version path>`
    OpenApiV3Of(String),
    Resource(RequestTarget),
    /// `/slipway/v1/backup`
    Backup,
    Unknown,
}

impl RequestRoute {
    pub(in crate::apiserver) fn parse(path: &str) -> Self {
        let Some(segments) = path.split('/').filter(|part| !part.is_empty()).map(decode).collect::<Option<Vec<_>>>()
        else {
            return Self::Unknown;
        };
        let words: Vec<&str> = segments.iter().map(String::as_str).collect();
        match words.as_slice() {
            [] => Self::Root,
            ["version"] => Self::Version,
            ["healthz" | "livez" | "readyz", ..] => Self::Health,
            ["metrics"] => Self::Metrics,
            [".well-known", "openid-configuration"] => Self::TokenIssuer,
            ["openid", "v1", "jwks"] => Self::TokenKeys,
            ["openapi", "v2"] => Self::OpenApiV2,
            ["openapi", "v3"] => Self::OpenApiV3,
            ["openapi", "v3", rest @ ..] => Self::OpenApiV3Of(rest.join("/")),
            ["slipway", "v1", "backup"] => Self::Backup,
            ["api"] => Self::CoreVersions,
            ["api", version] => Self::Resources(String::new(), (*version).into()),
            ["api", version, ..] => {
                RequestTarget::parse("", version, &segments[2..]).map_or(Self::Unknown, Self::Resource)
            }
            ["apis"] => Self::Groups,
            ["apis", group] => Self::Group((*group).into()),
            ["apis", group, version] => Self::Resources((*group).into(), (*version).into()),
            ["apis", group, version, ..] => {
                RequestTarget::parse(group, version, &segments[3..]).map_or(Self::Unknown, Self::Resource)
            }
            _ => Self::Unknown,
        }
    }
}

/// Undoes percent encoding; `None` when what comes out cannot be part of a path.
fn decode(segment: &str) -> Option<String> {
    unescape(segment).filter(|text| !text.contains(['/', '\0']))
}

/// Undoes percent encoding; `None` when what comes out is no text.
pub(in crate::apiserver) fn unescape(segment: &str) -> Option<String> {
    if !segment.contains('%') {
        return Some(segment.to_owned());
    }
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        if *first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return None;
            }
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

/// What to do with fields that the schema does not know, or that occur twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::apiserver) enum FieldValidation {
    /// Nothing is said: as `Warn`.
    #[default]
    Unset,
    Ignore,
    Warn,
    Strict,
    /// None of them; writes are refused.
    Unknown(String),
}

/// Query parameters.
#[derive(Clone, Debug, Default)]
pub(in crate::apiserver) struct Params {
    pub watch: bool,
    pub labels: String,
    pub fields: String,
    pub resource_version: String,
    pub resource_version_match: String,
    pub timeout: Option<u64>,
    pub bookmarks: bool,
    pub send_initial: Option<bool>,
    pub continue_token: String,
    /// Objects that a list is to have at most.
    pub limit: Option<usize>,
    pub pretty: Option<bool>,
    pub dry_run: Vec<String>,
    pub field_manager: String,
    pub force: Option<bool>,
    pub field_validation: FieldValidation,
    pub include: Option<Include>,
    pub propagation: Option<String>,
    pub orphan_dependents: Option<bool>,
}

/// Whether a query asks for a watch.
pub(in crate::apiserver) fn asks_to_watch(query: &str) -> bool {
    query.split('&').any(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        key == "watch" && is_true(value)
    })
}

/// How long a client gives a request (`timeout`); nothing when it does not say.
pub(in crate::apiserver) fn deadline(uri: &Uri) -> Result<Option<Duration>, ApiError> {
    let mut pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    let Some((_, text)) = pairs.find(|(key, _)| key == "timeout") else { return Ok(None) };
    let duration = (!text.is_empty()).then(|| schema::cel::go_duration(&text)).flatten();
    let duration = if text == "0" { Some(chrono::Duration::zero()) } else { duration };
    let refuse =
        || ApiError::bad_request(format!("invalid timeout specified in the request URL - {:?}", shorten(&text, 32)));
    let duration = duration.and_then(|duration| duration.to_std().ok()).ok_or_else(refuse)?;
    Ok((!duration.is_zero()).then_some(duration))
}

/// A flag that is there is set, unless it says that it is not (apimachinery's conversion of query parameters).
fn is_true(value: &str) -> bool {
    !(value == "0" || value.eq_ignore_ascii_case("false"))
}

fn not_a_number(value: &str) -> ApiError {
    ApiError::bad_request(format!("strconv.ParseInt: parsing {:?}: invalid syntax", shorten(value, 32)))
}

impl Params {
    /// Reads the query; unknown parameters are ignored, as upstream does.
    pub(in crate::apiserver) fn parse(uri: &Uri) -> Result<Self, ApiError> {
        let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|_| ApiError::bad_request("the query cannot be read"))?;
        let mut params = Self::default();
        for (key, value) in pairs.0 {
            let flag = || is_true(&value);
            match key.as_str() {
                "watch" => params.watch = flag(),
                "labelSelector" => params.labels = value,
                "fieldSelector" => params.fields = value,
                "resourceVersion" => params.resource_version = value,
                "resourceVersionMatch" => params.resource_version_match = value,
                "timeoutSeconds" => {
                    let seconds = value.parse().map_err(|_| not_a_number(&value))?;
                    params.timeout = Some(seconds);
                }
                "allowWatchBookmarks" => params.bookmarks = flag(),
                "sendInitialEvents" => params.send_initial = Some(flag()),
                "continue" => params.continue_token = value,
                "limit" if value.is_empty() => {}
                "limit" => {
                    let limit: i64 = value.parse().map_err(|_| not_a_number(&value))?;
                    params.limit = usize::try_from(limit).ok().filter(|limit| *limit > 0);
                }
                "pretty" => params.pretty = Some(flag()),
                "dryRun" => params.dry_run.push(value),
                "fieldValidation" => {
                    params.field_validation = match value.as_str() {
                        "" => FieldValidation::Unset,
                        "Warn" => FieldValidation::Warn,
                        "Ignore" => FieldValidation::Ignore,
                        "Strict" => FieldValidation::Strict,
                        _ => FieldValidation::Unknown(value),
                    }
                }
                "fieldManager" => params.field_manager = value,
                "force" => params.force = Some(flag()),
                "includeObject" => {
                    params.include = Some(match value.as_str() {
                        "" | "Metadata" => Include::Metadata,
                        "Object" => Include::Object,
                        "None" => Include::None,
                        _ => return Err(ApiError::bad_request("includeObject must be Object, Metadata or None")),
                    });
                }
                "propagationPolicy" => params.propagation = Some(value),
                "orphanDependents" => params.orphan_dependents = Some(flag()),
                _ => {}
            }
        }
        Ok(params)
    }
}

/// Reads a revision; empty and `0` are `None`.
pub(in crate::apiserver) fn parse_revision(text: &str) -> Result<Option<u64>, ApiError> {
    match text {
        "" | "0" => Ok(None),
        // Upstream has no status for it but in lists, and its answer has no reason.
        other => other.parse().map(Some).map_err(|_| {
            let shown = shorten(other, 32);
            let message = format!(
                "resourceVersion: Invalid value: {shown:?}: strconv.ParseUint: parsing {shown:?}: invalid syntax"
            );
            ApiError::new(http::StatusCode::INTERNAL_SERVER_ERROR, "", message)
        }),
    }
}

/// How an answer shows its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::apiserver) enum Representation {
    /// The objects.
    Json,
    /// `as=Table`
    Table,
    /// `as=PartialObjectMetadata` or its list.
    Partial,
}

/// One media type of an Accept header.
#[derive(Debug)]
pub(in crate::apiserver) struct Accepted<'h> {
    pub media: &'h str,
    params: Vec<(&'h str, &'h str)>,
}

impl<'h> Accepted<'h> {
    pub(in crate::apiserver) fn param(&self, key: &str) -> &'h str {
        self.params.iter().find(|(name, _)| *name == key).map_or("", |(_, value)| value)
    }

    pub(in crate::apiserver) fn takes_json(&self) -> bool {
        matches!(self.media, "application/json" | "*/*" | "application/*")
    }
}

/// The Accept header, most wanted first; `*/*` when there is none.
pub(in crate::apiserver) fn accepted(headers: &HeaderMap) -> Vec<Accepted<'_>> {
    let mut all = Vec::new();
    for part in
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).flat_map(|v| v.split(','))
    {
        let mut pieces = part.split(';').map(str::trim);
        let media = pieces.next().unwrap_or_default();
        if media.is_empty() {
            continue;
        }
        let params = pieces.filter_map(|piece| piece.split_once('=')).map(|(k, v)| (k.trim(), v.trim())).collect();
        all.push(Accepted { media, params });
    }
    if all.is_empty() {
        all.push(Accepted { media: "*/*", params: Vec::new() });
    }
    let weight = |one: &Accepted<'_>| match one.param("q") {
        "" => 1000,
        text => text.parse::<f64>().map_or(0, |q| (q.clamp(0.0, 1.0) * 1000.0) as i64),
    };
    all.retain(|one| weight(one) > 0);
    all.sort_by_key(|one| -weight(one));
    all
}

/// The form and the text to answer a resource request in.
pub(in crate::apiserver) fn negotiate(
    headers: &HeaderMap,
    pretty: Option<bool>,
) -> Result<(Representation, ContentEncoding), ApiError> {
    for one in accepted(headers) {
        if one.media == "application/yaml" && one.param("as").is_empty() {
            return Ok((Representation::Json, ContentEncoding::Yaml));
        }
        if !one.takes_json() {
            continue;
        }
        let text = ContentEncoding::json(pretty, headers);
        let meta = one.param("g") == "meta.k8s.io";
        match one.param("as") {
            "" => return Ok((Representation::Json, text)),
            "Table" if meta && matches!(one.param("v"), "v1" | "v1beta1") => return Ok((Representation::Table, text)),
            "PartialObjectMetadata" | "PartialObjectMetadataList"
                if meta && matches!(one.param("v"), "v1" | "v1beta1") =>
            {
                return Ok((Representation::Partial, text));
            }
            _ => {}
        }
    }
    let known = |media: &str| media.starts_with("application/json") || media == "application/vnd.kubernetes.protobuf";
    if accepted(headers).iter().any(|one| known(one.media)) {
        return Err(ApiError::not_acceptable());
    }
    let message = "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml";
    Err(ApiError::new(http::StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(
        group: &str,
        plural: &str,
        namespace: Option<&str>,
        name: Option<&str>,
        sub: Option<&str>,
    ) -> RequestRoute {
        RequestRoute::Resource(RequestTarget {
            group: group.into(),
            version: "v1".into(),
            plural: plural.into(),
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            subresource: sub.map(str::to_owned),
            watch: false,
        })
    }

    #[test]
    fn a_client_may_say_how_long_it_waits() {
        let asked = |query: &str| deadline(&format!("/api/v1/secrets{query}").parse().unwrap());
        for (query, wanted) in [
            ("", None),
            ("?limit=5", None),
            ("?timeout=0", None),
            ("?timeout=0s", None),
            ("?timeout=1m30s", Some(Duration::from_secs(90))),
            ("?a=b&timeout=500ms", Some(Duration::from_millis(500))),
        ] {
            assert_eq!(asked(query).unwrap(), wanted, "{query}");
        }
        for query in ["?timeout=", "?timeout=5", "?timeout=-1s", "?timeout=soon"] {
            assert_eq!(asked(query).unwrap_err().code, 400, "{query}");
        }
    }

    #[test]
    fn paths_mean_what_kubernetes_says() {
        for (path, wanted) in [
            ("/", RequestRoute::Root),
            ("/version", RequestRoute::Version),
            ("/readyz", RequestRoute::Health),
            ("/api/", RequestRoute::CoreVersions),
            ("/api/v1", RequestRoute::Resources("".into(), "v1".into())),
            ("/apis", RequestRoute::Groups),
            ("/apis/g", RequestRoute::Group("g".into())),
            ("/apis/g/v1", RequestRoute::Resources("g".into(), "v1".into())),
            ("/openapi/v3/apis/g/v1", RequestRoute::OpenApiV3Of("apis/g/v1".into())),
            ("/api/v1/namespaces", target("", "namespaces", None, None, None)),
            ("/api/v1/namespaces/a", target("", "namespaces", None, Some("a"), None)),
            ("/api/v1/namespaces/a/status", target("", "namespaces", None, Some("a"), Some("status"))),
            ("/api/v1/namespaces/a/secrets", target("", "secrets", Some("a"), None, None)),
            ("/api/v1/namespaces/a/secrets/b", target("", "secrets", Some("a"), Some("b"), None)),
            ("/apis/g/v1/hosts", target("g", "hosts", None, None, None)),
            ("/apis/g/v1/hosts/h/status", target("g", "hosts", None, Some("h"), Some("status"))),
            ("/apis/g/v1/namespaces/a/hosts/h%3Ax", target("g", "hosts", Some("a"), Some("h:x"), None)),
            (
                "/apis/g/v1/watch/namespaces/a/hosts/h",
                match target("g", "hosts", Some("a"), Some("h"), None) {
                    RequestRoute::Resource(target) => RequestRoute::Resource(RequestTarget { watch: true, ..target }),
                    other => other,
                },
            ),
            ("/apis/g/v1/hosts/h/status/more", RequestRoute::Unknown),
            ("/apis/g/v1/hosts/a%2Fb", RequestRoute::Unknown),
            ("/apis/g/v1/hosts/%zz", RequestRoute::Unknown),
            ("/apis/g/v1/hosts/%ff", RequestRoute::Unknown),
            ("/apis/g/v1/hosts/%+1", RequestRoute::Unknown),
            ("/metrics", RequestRoute::Metrics),
            ("/metrics/x", RequestRoute::Unknown),
        ] {
            assert_eq!(RequestRoute::parse(path), wanted, "{path}");
        }
    }

    #[test]
    fn the_accept_header_is_honoured() {
        for (accept, wanted) in [
            ("", Some(Representation::Json)),
            ("*/*", Some(Representation::Json)),
            ("application/json", Some(Representation::Json)),
            ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Some(Representation::Table)),
            ("application/json;as=Table;v=v9;g=meta.k8s.io,application/json", Some(Representation::Json)),
            ("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", Some(Representation::Partial)),
            ("application/vnd.kubernetes.protobuf,application/json", Some(Representation::Json)),
            ("application/json;q=0.1, application/json;as=Table;v=v1;g=meta.k8s.io;q=0.9", Some(Representation::Table)),
            ("application/json;stream=watch", Some(Representation::Json)),
            ("application/vnd.kubernetes.protobuf", None),
            ("text/html", None),
            ("application/yaml", Some(Representation::Json)),
            ("application/json;q=0", None),
        ] {
            let mut headers = HeaderMap::new();
            if !accept.is_empty() {
                headers.insert(header::ACCEPT, accept.parse().unwrap());
            }
            assert_eq!(negotiate(&headers, None).ok().map(|(form, _)| form), wanted, "{accept}");
        }
    }

    #[test]
    fn the_query_is_read_as_kube_clients_write_it() {
        let uri = "/x?&watch=true&timeoutSeconds=290&allowWatchBookmarks=true&resourceVersion=7&labelSelector=a%3Db";
        let params = Params::parse(&uri.parse().unwrap()).unwrap();
        assert!(params.watch && params.bookmarks);
        assert_eq!((params.timeout, params.resource_version.as_str(), params.labels.as_str()), (Some(290), "7", "a=b"));
        for bad in ["/x?timeoutSeconds=x", "/x?includeObject=Some"] {
            assert!(Params::parse(&bad.parse().unwrap()).is_err(), "{bad}");
        }
        assert!(parse_revision("-1").is_err());
        assert_eq!(parse_revision("0").unwrap(), None);
    }
}
