//! Identities: who calls, by certificate or token.
//!
//! The identity of a certificate is a request extension, put there by the TLS listener; that of this process by the
//! in-process client. No header can make either. A bearer token's is read from its signed claims.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use x509_parser::prelude::FromDer;

use super::certificates::Certificate;
use super::impersonation::ImpersonationRequest;
use super::index::AuthorizedCaller;
use super::tokens::TokenClaims;
use crate::hex::hex;

/// Members may do everything, whatever the roles say.
pub const ADMIN_GROUP: &str = "system:masters";
/// Everybody who proved who they are.
pub const AUTHENTICATED: &str = "system:authenticated";
/// Everybody who did not.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// User name of a caller who did not.
pub const ANONYMOUS: &str = "system:anonymous";
/// Key of `extra` that names the credential (KEP-4193).
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// How a caller proved who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// It runs in this process.
    InProcess,
    /// A client certificate of our CA.
    Certificate,
    /// A bearer token.
    Token,
    /// Another caller, who may, speaks in this one's name.
    Impersonation,
}

impl std::fmt::Display for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::InProcess => "in-process",
            Self::Certificate => "certificate",
            Self::Token => "token",
            Self::Impersonation => "impersonation",
        })
    }
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserIdentity {
    /// User name (a certificate's CN).
    pub user: String,
    /// Groups (a certificate's O).
    pub groups: Vec<String>,
    /// How it was proven.
    pub proof: Proof,
    /// Unique id of the user; empty when there is none.
    pub uid: String,
    /// What else is known: the credential's id.
    pub extra: BTreeMap<String, Vec<String>>,
    /// What the bearer token says; whoever serves the caller for long asks again whether it still holds.
    pub claims: Option<Arc<TokenClaims>>,
    /// What the client certificate says; judged with every request.
    pub certificate: Option<Certificate>,
    /// Who speaks in this caller's name.
    pub impersonator: Option<Box<UserIdentity>>,
    /// What the impersonator asked to be; whoever serves the caller for long asks again whether it still may.
    pub asked: Option<Arc<ImpersonationRequest>>,
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

impl UserIdentity {
    /// A user of these groups.
    pub fn new(user: impl Into<String>, groups: Vec<String>, proof: Proof) -> Self {
        Self {
            user: user.into(),
            groups,
            proof,
            uid: String::new(),
            extra: BTreeMap::new(),
            claims: None,
            certificate: None,
            impersonator: None,
            asked: None,
        }
    }

    /// Slipway's own rooms.
    pub fn in_process() -> Self {
        Self::new("system:slipway", vec![ADMIN_GROUP.into()], Proof::InProcess)
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
        let mut identity = Self::new(user, groups, Proof::Certificate);
        let series = subject.iter_organizational_unit().find_map(|unit| unit.as_str().ok()).map(str::to_owned);
        identity.certificate = Some(Certificate { series, ends: certificate.validity().not_after.timestamp() });
        let print: String = hex(&Sha256::digest(der));
        identity.extra.insert(CREDENTIAL_ID.into(), vec![format!("X509SHA256={print}")]);
        Ok(identity)
    }

    /// Whether this is Slipway itself, which alone may write internal kinds and views.
    pub fn is_in_process(&self) -> bool {
        self.proof == Proof::InProcess
    }

    /// Whether the roles are not asked.
    pub fn is_superuser(&self) -> bool {
        self.groups.iter().any(|group| group == ADMIN_GROUP)
    }

    /// As the index of roles wants it.
    pub fn caller(&self) -> AuthorizedCaller<'_> {
        AuthorizedCaller { user: &self.user, groups: &self.groups }
    }

    /// As `authentication.k8s.io/v1` UserInfo.
    pub fn user_info(&self) -> Value {
        let mut info = json!({"username": self.user, "groups": self.groups});
        if !self.uid.is_empty() {
            info["uid"] = self.uid.clone().into();
        }
        if !self.extra.is_empty() {
            let extra: Map<String, Value> =
                self.extra.iter().map(|(key, values)| (key.clone(), values.clone().into())).collect();
            info["extra"] = extra.into();
        }
        info
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_is_none_names_nobody() {
        assert!(matches!(UserIdentity::from_certificate(b"junk"), Err(IdentityError::Unreadable(_))));
    }
}
