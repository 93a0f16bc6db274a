//! Bearer tokens of service accounts: what they say, how they are made, and whether they still hold.
//!
//! A token is good while its signature and times are, and while the account, and the Secret it may be bound to, are the
//! very ones (by uid) that it was made for. Those two are looked up in memory with every request: deleting either ends
//! the token at once. The signature is verified once; the result is remembered by the token's hash.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::accounts;
use super::identity::{AUTHENTICATED, CREDENTIAL_ID, Proof, UserIdentity};
use super::jwt::{JwtKeyError, TOKEN_MAX, TokenKey};
use crate::store::Store;

/// Issuer of the tokens, and their audience when none is named: upstream's default.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// Who makes the tokens that are kept in Secrets.
const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";
/// Claim of a token: the groups that its account had been given when it was made.
const GROUPS: &str = accounts::GROUPS;
/// Claims of those tokens begin so.
const LEGACY: &str = "kubernetes.io/serviceaccount";
/// Verified tokens that are remembered.
const REMEMBERED: usize = 4096;

/// Another object: name and uid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundObject {
    /// Name.
    pub name: String,
    /// Unique id.
    pub uid: String,
}

/// What a verified token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenClaims {
    /// Namespace of the account.
    pub namespace: String,
    /// The account.
    pub account: BoundObject,
    /// The Secret that it ends with.
    pub secret: Option<BoundObject>,
    /// Groups that the account had been given when it was made. It never has others, and these only for as long as the
    /// account has them.
    pub groups: Vec<String>,
    /// Whom it is for.
    pub audiences: Vec<String>,
    /// From when it holds, in seconds since 1970.
    pub not_before: i64,
    /// When it ends, in seconds since 1970; `None` for one that a Secret keeps.
    pub expires: Option<i64>,
    /// Its own id; empty for one that a Secret keeps.
    pub id: String,
    /// SHA-256 of a token that a Secret keeps.
    kept: Option<[u8; 32]>,
}

/// What a new token is to say.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// Namespace of the account.
    pub namespace: String,
    /// The account.
    pub account: BoundObject,
    /// The Secret that it is to end with.
    pub secret: Option<BoundObject>,
    /// Groups that the account has been given.
    pub groups: Vec<String>,
    /// Whom it is for.
    pub audiences: Vec<String>,
    /// When it is made, in seconds since 1970.
    pub now: i64,
    /// How long it holds, in seconds.
    pub seconds: i64,
}

impl NewToken {
    fn claims(&self) -> Value {
        let reference = |named: &BoundObject| json!({"name": named.name, "uid": named.uid});
        let mut own = json!({"namespace": self.namespace, "serviceaccount": reference(&self.account)});
        if let Some(secret) = &self.secret {
            own["secret"] = reference(secret);
        }
        let mut claims = json!({
            "iss": ISSUER,
            "sub": accounts::user_name(&self.namespace, &self.account.name),
            "aud": self.audiences,
            "iat": self.now,
            "nbf": self.now,
            "exp": self.now.saturating_add(self.seconds),
            "jti": uuid::Uuid::new_v4().to_string(),
            "kubernetes.io": own,
        });
        if !self.groups.is_empty() {
            claims[GROUPS] = json!(self.groups);
        }
        claims
    }
}

impl TokenClaims {
    fn read(value: &Value, token: &str) -> Option<Self> {
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let named = |value: &Value| Some(BoundObject { name: text(&value["name"])?, uid: text(&value["uid"])? });
        let claims = match value["iss"].as_str()? {
            ISSUER => {
                let own = &value["kubernetes.io"];
                let secret = own.get("secret").map(named);
                if secret == Some(None) {
                    return None;
                }
                Self {
                    namespace: text(&own["namespace"])?,
                    account: named(&own["serviceaccount"])?,
                    secret: secret.flatten(),
                    groups: value[GROUPS].as_array().into_iter().flatten().filter_map(text).collect(),
                    audiences: value["aud"].as_array()?.iter().filter_map(text).collect(),
                    not_before: value["nbf"].as_i64()?,
                    expires: Some(value["exp"].as_i64()?),
                    id: text(&value["jti"])?,
                    kept: None,
                }
            }
            LEGACY_ISSUER => {
                let own = |name: &str| text(&value[format!("{LEGACY}/{name}")]);
                Self {
                    namespace: own("namespace")?,
                    account: BoundObject { name: own("service-account.name")?, uid: own("service-account.uid")? },
                    // Its uid is not known when the token is made; the Secret must have the very token instead.
                    secret: Some(BoundObject { name: own("secret.name")?, uid: String::new() }),
                    // The account may come after its Secret: who made that was asked for no right to any group.
                    groups: Vec::new(),
                    audiences: vec![ISSUER.into()],
                    not_before: 0,
                    expires: None,
                    id: String::new(),
                    kept: Some(Sha256::digest(token).into()),
                }
            }
            _ => return None,
        };
        let subject = accounts::user_name(&claims.namespace, &claims.account.name);
        (value["sub"] == subject).then_some(claims)
    }

    /// Whether the token holds at a time (seconds since 1970), account and Secret being what the store has now.
    pub fn hold(&self, store: &Store, now: i64) -> bool {
        self.not_before <= now && self.expires.is_none_or(|end| now < end) && self.account(store).is_some()
    }

    /// The account's metadata, when it and the Secret are still the ones that the token was made for.
    fn account(&self, store: &Store) -> Option<Value> {
        let alive = |resource: &str, name: &str| {
            store.get(resource, &self.namespace, name).filter(|object| !object.is_ending())
        };
        let account = alive(accounts::STORAGE, &self.account.name)?.metadata();
        if account["uid"] != self.account.uid {
            return None;
        }
        if let Some(named) = &self.secret {
            let secret = alive("/secrets", &named.name)?;
            let same = match &self.kept {
                Some(hash) => {
                    let secret = secret.value();
                    let token = STANDARD.decode(secret["data"]["token"].as_str()?).ok()?;
                    secret["type"] == accounts::SECRET_TYPE && bool::from(Sha256::digest(&token).as_slice().ct_eq(hash))
                }
                None => secret.metadata()["uid"] == named.uid,
            };
            if !same {
                return None;
            }
        }
        Some(account)
    }
}

/// Makes tokens and says whose they are.
pub struct ServiceAccountTokens {
    key: TokenKey,
    // std's lock: held for a look-up only.
    verified: Mutex<HashMap<[u8; 32], Arc<TokenClaims>>>,
}

impl std::fmt::Debug for ServiceAccountTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").field("key", &self.key).finish_non_exhaustive()
    }
}

impl ServiceAccountTokens {
    /// With this key.
    pub fn new(key: TokenKey) -> Self {
        Self { key, verified: Mutex::default() }
    }

    /// The key that signs.
    pub fn key(&self) -> &TokenKey {
        &self.key
    }

    /// A new token.
    ///
    /// # Errors
    ///
    /// [`JwtKeyError`] when the system gives no random numbers.
    pub fn issue(&self, order: &NewToken) -> Result<String, JwtKeyError> {
        self.key.sign(&order.claims())
    }

    /// A token without end, to be kept in a Secret of type `kubernetes.io/service-account-token`.
    ///
    /// # Errors
    ///
    /// [`JwtKeyError`] when the system gives no random numbers.
    pub fn issue_kept(&self, namespace: &str, account: &BoundObject, secret: &str) -> Result<String, JwtKeyError> {
        self.key.sign(&json!({
            "iss": LEGACY_ISSUER,
            "sub": accounts::user_name(namespace, &account.name),
            format!("{LEGACY}/namespace"): namespace,
            format!("{LEGACY}/secret.name"): secret,
            format!("{LEGACY}/service-account.name"): account.name,
            format!("{LEGACY}/service-account.uid"): account.uid,
        }))
    }

    /// Whose token this is at a time (seconds since 1970), if it is for one of these audiences. `None` tells nothing of
    /// why not.
    pub fn identify(&self, token: &str, audiences: &[String], store: &Store, now: i64) -> Option<UserIdentity> {
        let claims = self.claims(token)?;
        let over = claims.not_before > now || claims.expires.is_some_and(|end| now >= end);
        if over || !claims.audiences.iter().any(|one| audiences.contains(one)) {
            return None;
        }
        let account = claims.account(store)?;
        let mut groups = accounts::groups(&claims.namespace);
        groups.extend(accounts::given_groups(&account).into_iter().filter(|group| claims.groups.contains(group)));
        groups.push(AUTHENTICATED.into());
        let mut identity =
            UserIdentity::new(accounts::user_name(&claims.namespace, &claims.account.name), groups, Proof::Token);
        identity.uid.clone_from(&claims.account.uid);
        if !claims.id.is_empty() {
            identity.extra.insert(CREDENTIAL_ID.into(), vec![format!("JTI={}", claims.id)]);
        }
        identity.claims = Some(claims);
        Some(identity)
    }

    /// Why [`ServiceAccountTokens::identify`] knows nobody by a token, and the user that it was made for, when it was made
    /// here. For the audit log, not for the bearer.
    pub fn fault(&self, token: &str, store: &Store, now: i64) -> (Option<String>, &'static str) {
        let Some(claims) = self.claims(token) else { return (None, "the token was not made here") };
        let reason = if claims.expires.is_some_and(|end| now >= end) {
            "the token has expired"
        } else if claims.not_before > now {
            "the token does not hold yet"
        } else if claims.account(store).is_none() {
            "the token was revoked: its account or its Secret is gone"
        } else {
            "the token is for another audience"
        };
        (Some(accounts::user_name(&claims.namespace, &claims.account.name)), reason)
    }

    fn claims(&self, token: &str) -> Option<Arc<TokenClaims>> {
        if token.len() > TOKEN_MAX {
            return None;
        }
        let hash: [u8; 32] = Sha256::digest(token).into();
        let lock = || self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(claims) = lock().get(&hash) {
            return Some(Arc::clone(claims));
        }
        let claims = Arc::new(TokenClaims::read(&self.key.verify(token)?, token)?);
        let mut verified = lock();
        // Only what was signed here gets in, so this is rare, and verifying again is cheap.
        if verified.len() >= REMEMBERED {
            verified.clear();
        }
        verified.insert(hash, Arc::clone(&claims));
        Some(claims)
    }
}
