//! Who calls, and what they may do.
//!
//! The identity is a request extension: put there by the TLS listener from a verified client certificate, or by
//! the in-process client. No header can make one.

use x509_parser::prelude::FromDer;

use super::request::Target;
use super::status::ApiError;

/// Members may do everything.
pub const ADMIN_GROUP: &str = "system:masters";

/// How a caller proved who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// It runs in this process.
    InProcess,
    /// A client certificate of our CA.
    Certificate,
    /// A bearer token.
    Token,
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User name (a certificate's CN).
    pub user: String,
    /// Groups (a certificate's O).
    pub groups: Vec<String>,
    /// How it was proven.
    pub proof: Proof,
}

/// A certificate names nobody.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// It is no X.509 certificate.
    #[error("unreadable certificate: {0}")]
    Unreadable(String),
    /// Its subject has no common name.
    #[error("the certificate's subject has no common name")]
    NoName,
}

impl Identity {
    /// Slipway's own rooms.
    pub fn in_process() -> Self {
        Self { user: "system:slipway".into(), groups: vec![ADMIN_GROUP.into()], proof: Proof::InProcess }
    }

    /// The subject of a client certificate that TLS has verified.
    pub fn from_certificate(der: &[u8]) -> Result<Self, IdentityError> {
        let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(der)
            .map_err(|error| IdentityError::Unreadable(error.to_string()))?;
        let subject = certificate.subject();
        let user = subject
            .iter_common_name()
            .find_map(|name| name.as_str().ok())
            .filter(|name| !name.is_empty())
            .ok_or(IdentityError::NoName)?
            .to_owned();
        let groups = subject.iter_organization().filter_map(|name| name.as_str().ok()).map(str::to_owned).collect();
        Ok(Self { user, groups, proof: Proof::Certificate })
    }

    /// Whether this is Slipway itself, which alone may write internal kinds and views.
    pub fn is_in_process(&self) -> bool {
        self.proof == Proof::InProcess
    }
}

/// What a request wants, for the decision whether it may.
#[derive(Clone, Debug)]
pub struct Attributes<'r> {
    /// Kubernetes verb: `get`, `list`, `watch`, `create`, …
    pub verb: &'static str,
    /// The resource, or `None` for a path that is none (`/apis`, `/openapi/v3`).
    pub target: Option<&'r Target>,
    /// The path.
    pub path: &'r str,
}

/// Paths that everybody may read.
pub(super) fn is_public(path: &str) -> bool {
    let head = path.trim_end_matches('/').split('/').nth(1).unwrap_or_default();
    matches!(head, "version" | "healthz" | "livez" | "readyz")
}

/// Whether the caller may do this.
pub fn authorize(identity: Option<&Identity>, attributes: &Attributes<'_>) -> Result<(), ApiError> {
    if attributes.target.is_none() && is_public(attributes.path) && attributes.verb == "get" {
        return Ok(());
    }
    let Some(identity) = identity else { return Err(ApiError::unauthorized()) };
    if identity.groups.iter().any(|group| group == ADMIN_GROUP) {
        return Ok(());
    }
    let (user, verb) = (&identity.user, attributes.verb);
    let message = match attributes.target {
        Some(target) => {
            let place = match &target.namespace {
                Some(namespace) => format!("in the namespace \"{namespace}\""),
                None => "at the cluster scope".into(),
            };
            let subject = target.name.as_ref().map(|name| format!(" \"{name}\"")).unwrap_or_default();
            format!(
                "{}{subject} is forbidden: User \"{user}\" cannot {verb} resource \"{}\" in API group \"{}\" {place}",
                target.qualified(),
                target.plural,
                target.group,
            )
        }
        None => format!("forbidden: User \"{user}\" cannot {verb} path \"{}\"", attributes.path),
    };
    Err(ApiError::new(http::StatusCode::FORBIDDEN, "Forbidden", message))
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
            let attributes = Attributes { verb: "get", target: None, path };
            assert_eq!(authorize(None, &attributes).is_ok(), public, "{path}");
        }
    }

    #[test]
    fn only_administrators_may() {
        let target = Target {
            group: "metal3.io".into(),
            version: "v1alpha1".into(),
            plural: "baremetalhosts".into(),
            namespace: Some("rack".into()),
            ..Target::default()
        };
        let attributes = Attributes { verb: "list", target: Some(&target), path: "/apis" };
        let someone =
            |group: &str| Identity { user: "eve".into(), groups: vec![group.into()], proof: Proof::Certificate };
        assert_eq!(authorize(None, &attributes).unwrap_err().code, 401);
        assert!(authorize(Some(&someone(ADMIN_GROUP)), &attributes).is_ok());
        let refused = authorize(Some(&someone("system:authenticated")), &attributes).unwrap_err();
        assert_eq!(refused.code, 403);
        assert_eq!(
            refused.message,
            "baremetalhosts.metal3.io is forbidden: User \"eve\" cannot list resource \"baremetalhosts\" in API \
             group \"metal3.io\" in the namespace \"rack\""
        );
    }

    #[test]
    fn a_certificate_that_is_none_names_nobody() {
        assert!(matches!(Identity::from_certificate(b"junk"), Err(IdentityError::Unreadable(_))));
    }
}
