//! Authentication and authorisation: who calls, and what they may do.
//!
//! *Who* ([`UserIdentity`]): the TLS listener puts in the subject of a client certificate; a bearer token is read here
//! (`tokens`); then another name may be taken on (`impersonation`). *May they* (`authorizer`): members of
//! `system:masters` may everything, everybody may read the version and the health, the rest is up to the roles and
//! bindings (`rules`, `index`), of which the usual ones are there from the start (`defaults`). `escalation` keeps
//! people from giving away what they do not have, `reviews` answers questions about all this, and `access_controllers` does
//! what upstream's controllers do: default accounts, tokens in Secrets, aggregated roles.

use http::{HeaderMap, header};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::answers::status::ApiError;
use super::kinds::resource::ServedResource;
use super::objects::selectors;
use super::requests::request::{Params, RequestTarget};
use crate::pki::Series;
use crate::store::Store;

pub mod accounts;
pub mod jwt;
pub mod rules;

mod access_controllers;
mod authorizer;
mod bounds;
mod certificates;
mod compiled;
mod defaults;
mod escalation;
mod identity;
mod impersonation;
mod index;
pub(super) mod kinds;
pub(super) mod reviews;
mod tokens;

pub use certificates::Certificate;
pub use identity::{ADMIN_GROUP, AUTHENTICATED, IdentityError, Proof, UserIdentity};
pub(super) use impersonation::ImpersonationRequest;
pub use index::GROUP;
pub use jwt::{JwtKeyError, TokenKey};
pub use rules::Attributes;
pub use tokens::{ISSUER, TokenClaims};

use authorizer::Authorizer;
use index::AuthorizationDecision;
use tokens::ServiceAccountTokens;

/// What the API server needs to know who calls and what they may do.
#[derive(Debug, Default)]
pub struct AuthOptions {
    /// The key that signs tokens; without one, tokens end with the process.
    pub token_key: Option<TokenKey>,
    /// The CA certificate of the HTTPS listener as PEM, for Secrets that keep tokens.
    pub ca_pem: String,
    /// Of which series client certificates must be; without one, that is not asked.
    pub series: Option<Series>,
}

/// Why nobody was identified.
#[derive(Debug)]
pub(super) struct AuthenticationRefusal {
    /// What the caller is told.
    pub error: Box<ApiError>,
    /// Set when the caller tried to prove who it is.
    pub login: Option<Box<FailedLogin>>,
}

/// A proof that proved nothing.
#[derive(Debug)]
pub(super) struct FailedLogin {
    /// Whom it would have proven, as `authentication.k8s.io/v1` UserInfo; empty when that is not known.
    pub user: Value,
    /// What it was.
    pub proof: Proof,
    /// Why it does not count.
    pub reason: String,
}

impl From<ApiError> for AuthenticationRefusal {
    fn from(error: ApiError) -> Self {
        Self { error: Box::new(error), login: None }
    }
}

/// Callers and permissions of one server.
pub(super) struct Auth {
    store: Store,
    authorizer: Authorizer,
    tokens: ServiceAccountTokens,
    audiences: Vec<String>,
    ca_pem: String,
    series: Option<Series>,
}

impl Auth {
    pub(super) fn new(store: &Store, options: AuthOptions) -> Result<Self, JwtKeyError> {
        let key = options.token_key.map_or_else(TokenKey::fleeting, Ok)?;
        Ok(Self {
            store: store.clone(),
            authorizer: Authorizer::new(store.clone()),
            tokens: ServiceAccountTokens::new(key),
            audiences: vec![ISSUER.to_owned()],
            ca_pem: options.ca_pem,
            series: options.series,
        })
    }

    /// Of which series client certificates must be.
    pub(super) fn series(&self) -> Option<&Series> {
        self.series.as_ref()
    }

    /// Who calls: whom the connection proved, or else the bearer token.
    ///
    /// A token that is none is refused even where nobody is asked who they are.
    pub(super) fn identify(
        &self,
        connection: Option<&UserIdentity>,
        headers: &HeaderMap,
    ) -> Result<Option<UserIdentity>, AuthenticationRefusal> {
        let now = || Timestamp::now().as_second();
        let identity = match (connection, bearer(headers)) {
            (Some(identity), _) => {
                if let Some(reason) = self.certificate_fault(identity, now()) {
                    let mut error = ApiError::unauthorized();
                    // Its bearer has the key: who it is needs no hiding, and what to do helps.
                    error.message.clone_from(&reason);
                    let login = FailedLogin { user: identity.user_info(), proof: Proof::Certificate, reason };
                    return Err(AuthenticationRefusal { error: Box::new(error), login: Some(Box::new(login)) });
                }
                let mut identity = identity.clone();
                if !identity.is_in_process() {
                    identity.groups.push(AUTHENTICATED.into());
                }
                identity
            }
            (None, Some(token)) => {
                let found = self.tokens.identify(token, &self.audiences, &self.store, now());
                found.ok_or_else(|| {
                    let (user, reason) = self.tokens.fault(token, &self.store, now());
                    let user = user.map_or_else(|| json!({}), |user| json!({ "username": user }));
                    let login = FailedLogin { user, proof: Proof::Token, reason: reason.to_owned() };
                    AuthenticationRefusal { error: Box::new(ApiError::unauthorized()), login: Some(Box::new(login)) }
                })?
            }
            (None, None) => return Ok(None),
        };
        Ok(Some(identity))
    }

    /// Whom the caller speaks for, when they may.
    pub(super) fn impersonate(&self, by: UserIdentity, wish: ImpersonationRequest) -> Result<UserIdentity, ApiError> {
        wish.grant(by, |by, wanted| self.authorize(Some(by), wanted))
    }

    /// Whether it takes long to decide what the caller may in a namespace (empty: in the cluster).
    pub(super) fn is_long(&self, identity: &UserIdentity, namespace: &str) -> bool {
        self.authorizer.is_long(identity, namespace)
    }

    /// A number that changes with every role and binding: what was decided at the same one holds.
    pub(super) fn stamp(&self) -> u64 {
        self.authorizer.index().stamp()
    }

    fn certificate_fault(&self, identity: &UserIdentity, now: i64) -> Option<String> {
        certificates::fault(identity.certificate.as_ref()?, self.series.as_ref(), now)
    }

    /// Whether what the caller proved itself with still holds.
    pub(super) fn holds(&self, identity: &UserIdentity) -> bool {
        let now = || Timestamp::now().as_second();
        identity.claims.as_ref().is_none_or(|claims| claims.hold(&self.store, now()))
            && self.certificate_fault(identity, now()).is_none()
    }

    /// Whether the caller may do this, and whoever speaks in its name may still do that.
    pub(super) fn authorize(&self, identity: Option<&UserIdentity>, wanted: &Attributes<'_>) -> Result<(), ApiError> {
        if !wanted.is_resource() && is_public(wanted.path) && wanted.verb == "get" {
            return Ok(());
        }
        let Some(identity) = identity else { return Err(ApiError::unauthorized()) };
        if let (Some(by), Some(asked)) = (identity.impersonator.as_deref(), &identity.asked) {
            asked.judge(by, |by, wanted| self.authorize(Some(by), wanted))?;
        }
        let decision = self.authorizer.decide(identity, wanted);
        if decision.allowed { Ok(()) } else { Err(refusal(&identity.user, wanted, &decision.reason)) }
    }

    fn decide(&self, identity: &UserIdentity, wanted: &Attributes<'_>) -> AuthorizationDecision {
        self.authorizer.decide(identity, wanted)
    }

    /// Refuses a change by which the caller would gain or give more than it has.
    pub(super) fn check_escalation(
        &self,
        identity: &UserIdentity,
        resource: &ServedResource,
        new: &Value,
        old: Option<&Value>,
    ) -> Result<(), ApiError> {
        bounds::check_room(&self.authorizer, resource, new)?;
        escalation::check(&self.authorizer, identity, resource, new, old)?;
        if &*resource.storage != "/secrets" || new["type"] != accounts::SECRET_TYPE {
            return Ok(());
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let meta = &new["metadata"];
        let (namespace, account) = (text(&meta["namespace"]), text(&meta["annotations"][accounts::SECRET_ACCOUNT]));
        match self.store.get(accounts::STORAGE, &namespace, &account) {
            Some(account) => self.check_token(identity, resource, &account.metadata()),
            None => Ok(()),
        }
    }

    /// A user who requests a token of an account with groups must be allowed to act as each of the groups. Otherwise `edit`
    /// in the account's namespace would be as good as the groups.
    pub(super) fn check_token(
        &self,
        identity: &UserIdentity,
        resource: &ServedResource,
        account: &Value,
    ) -> Result<(), ApiError> {
        let name = account["name"].as_str().unwrap_or_default();
        escalation::check_groups(&self.authorizer, identity, resource, name, &accounts::given_groups(account))
    }

    /// `/openid/v1/jwks`
    pub(super) fn key_set(&self) -> Value {
        self.tokens.key().key_set()
    }
}

/// `/.well-known/openid-configuration`; `host` is how the caller reaches this server.
pub(super) fn openid_configuration(host: &str) -> Value {
    json!({
        "issuer": ISSUER,
        "jwks_uri": format!("https://{host}/openid/v1/jwks"),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    })
}

/// The token of an Authorization header; other schemes prove nothing here.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(header::AUTHORIZATION)?;
    // What is no text is no token of ours, and is refused as one.
    let Ok(text) = text.to_str() else { return Some("") };
    let (scheme, token) = text.trim().split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

/// Paths that everybody may read.
fn is_public(path: &str) -> bool {
    let head = path.trim_end_matches('/').split('/').nth(1).unwrap_or_default();
    matches!(head, "version" | "healthz" | "livez" | "readyz")
}

/// What a request about a resource wants. A namespace lies in itself, and a list of one name is for that name.
pub(super) fn attributes<'r>(
    verb: &'r str,
    target: &'r RequestTarget,
    params: &'r Params,
    path: &'r str,
) -> Attributes<'r> {
    let mut name = target.name.as_deref().unwrap_or_default();
    let mut namespace = target.namespace.as_deref().unwrap_or_default();
    if name.is_empty() && matches!(verb, "list" | "watch") {
        name = selectors::exact_name(&params.fields);
    }
    if target.group.is_empty() && target.plural == "namespaces" {
        namespace = target.name.as_deref().unwrap_or_default();
    }
    Attributes {
        verb,
        group: &target.group,
        version: &target.version,
        resource: &target.plural,
        subresource: target.subresource.as_deref().unwrap_or_default(),
        namespace,
        name,
        path,
    }
}

/// 403 in upstream's words.
fn refusal(user: &str, wanted: &Attributes<'_>, reason: &str) -> ApiError {
    let verb = wanted.verb;
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    let forbidden = |message| ApiError::new(http::StatusCode::FORBIDDEN, "Forbidden", message);
    if !wanted.is_resource() {
        let mut error = forbidden(format!("forbidden: User \"{user}\" cannot {verb} path \"{}\"{reason}", wanted.path));
        error.details = json!({});
        return error;
    }
    let place = match wanted.namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace \"{namespace}\""),
    };
    let resource = match wanted.subresource {
        "" => wanted.resource.to_owned(),
        subresource => format!("{}/{subresource}", wanted.resource),
    };
    let group = wanted.group;
    let qualified = if group.is_empty() { wanted.resource.to_owned() } else { format!("{}.{group}", wanted.resource) };
    let subject = if wanted.name.is_empty() { String::new() } else { format!(" \"{}\"", wanted.name) };
    let mut error = forbidden(format!(
        "{qualified}{subject} is forbidden: User \"{user}\" cannot {verb} resource \"{resource}\" in API group \
         \"{group}\" {place}{reason}"
    ));
    let mut details = serde_json::Map::new();
    for (key, value) in [("name", wanted.name), ("group", group), ("kind", wanted.resource)] {
        if !value.is_empty() {
            details.insert(key.into(), value.into());
        }
    }
    error.details = details.into();
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_public_paths_are_few() {
        for (path, public) in [
            ("/version", true),
            ("/version/", true),
            ("/healthz", true),
            ("/readyz/ping", true),
            ("/", false),
            ("/api", false),
            ("/apis", false),
            ("/openapi/v3", false),
            ("/versions", false),
        ] {
            assert_eq!(is_public(path), public, "{path}");
        }
    }

    #[test]
    fn refusals_are_worded_as_upstream_words_them() {
        let on = Attributes {
            verb: "list",
            group: "metal3.io",
            resource: "baremetalhosts",
            namespace: "rack",
            ..Attributes::default()
        };
        for (wanted, reason, message) in [
            (
                on,
                "",
                "baremetalhosts.metal3.io is forbidden: User \"eve\" cannot list resource \"baremetalhosts\" in API \
                 group \"metal3.io\" in the namespace \"rack\"",
            ),
            (
                Attributes { verb: "patch", subresource: "status", name: "a", ..on },
                "RBAC: x",
                "baremetalhosts.metal3.io \"a\" is forbidden: User \"eve\" cannot patch resource \
                 \"baremetalhosts/status\" in API group \"metal3.io\" in the namespace \"rack\": RBAC: x",
            ),
            (
                Attributes { verb: "impersonate", resource: "users", name: "bob", ..Attributes::default() },
                "",
                "users \"bob\" is forbidden: User \"eve\" cannot impersonate resource \"users\" in API group \"\" at the \
                 cluster scope",
            ),
            (
                Attributes { verb: "get", path: "/metrics", ..Attributes::default() },
                "",
                "forbidden: User \"eve\" cannot get path \"/metrics\"",
            ),
        ] {
            let error = refusal("eve", &wanted, reason);
            assert_eq!((error.code.as_u16(), error.message.as_str()), (403, message));
        }
    }

    #[test]
    fn what_is_wanted_is_read_off_the_request() {
        let target = |plural: &str, namespace: Option<&str>, name: Option<&str>| RequestTarget {
            plural: plural.into(),
            version: "v1".into(),
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            ..RequestTarget::default()
        };
        let fields = |fields: &str| Params { fields: fields.into(), ..Params::default() };
        for (verb, target, params, namespace, name) in [
            ("get", target("namespaces", None, Some("a")), fields(""), "a", "a"),
            ("list", target("namespaces", None, None), fields(""), "", ""),
            ("list", target("secrets", Some("a"), None), fields("x=y,metadata.name=b"), "a", "b"),
            ("watch", target("secrets", None, None), fields("metadata.name==b"), "", "b"),
            ("list", target("secrets", Some("a"), None), fields("metadata.name!=b"), "a", ""),
            ("deletecollection", target("secrets", Some("a"), None), fields("metadata.name=b"), "a", ""),
        ] {
            let found = attributes(verb, &target, &params, "/");
            assert_eq!((found.namespace, found.name), (namespace, name), "{verb} {target:?}");
        }
    }

    #[test]
    fn only_bearer_tokens_are_read() {
        for (value, wanted) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Bearer", None),
            ("Bearer ", None),
            ("Basic abc", None),
            ("abc", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            assert_eq!(bearer(&headers), wanted, "{value}");
        }
    }
}
