//! Where the password of a credential is, and whether it is there. Pure, but for the reading of the Secret.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::Api;
use secrecy::SecretString;

use crate::api::kaas::{BareMetalHostCredential, PasswordSecret, SEALED_PASSWORDS};
use crate::apiserver::subdomain;
use crate::release::keep;
use crate::runtime::conditions::ConditionVerdict;
use crate::runtime::owners;

/// Who logs in, and with what.
#[derive(Clone, Debug)]
pub struct BmcLogin {
    /// User.
    pub username: String,
    /// Password.
    pub password: SecretString,
}

/// The Secret with the password of a credential.
///
/// # Errors
///
/// When it names none.
pub fn place(credential: &BareMetalHostCredential) -> Result<&PasswordSecret, ConditionVerdict> {
    let Some(secret) = credential.spec.password.secret.as_ref().filter(|secret| !secret.name.is_empty()) else {
        let message = "spec.password has neither value nor secret: write one of them";
        return Err(ConditionVerdict::no("NoPassword", message));
    };
    if !subdomain(&secret.name).is_empty() {
        // It becomes part of a path.
        return Err(ConditionVerdict::no("NoPassword", "spec.password.secret.name is no name that a Secret can have"));
    }
    Ok(secret)
}

/// User and password, of the Secret that a credential names.
///
/// # Errors
///
/// What is missing, and what to do.
pub fn login(credential: &BareMetalHostCredential, secret: Option<&Secret>) -> Result<BmcLogin, ConditionVerdict> {
    let place = place(credential)?;
    let name = &place.name;
    let Some(secret) = secret else {
        let message =
            format!("there is no Secret {name:?} in this namespace: make it, or write spec.password.value anew");
        return Err(ConditionVerdict::no("NoSecret", message));
    };
    let is_own = *name == SEALED_PASSWORDS.secret(&credential.name_any());
    if is_own && !keep::is_of(secret, &owners::owner(credential, true)) {
        let message = format!(
            "the Secret {name:?} is not of this credential: delete it, and write spec.password.value anew; or name another Secret"
        );
        return Err(ConditionVerdict::no("NameTaken", message));
    }
    let fault = |what: &str| {
        let message = format!("{:?} of the Secret {name:?} {what}", place.key);
        Err(ConditionVerdict::no("NoPassword", message))
    };
    let Some(bytes) = secret.data.as_ref().and_then(|data| data.get(&place.key)) else { return fault("is not there") };
    let Ok(text) = std::str::from_utf8(&bytes.0) else { return fault("is no text") };
    let username = credential.spec.username.trim().to_owned();
    match text.trim() {
        "" => fault("is empty"),
        _ if username.is_empty() => Err(ConditionVerdict::no("NoUser", "spec.username is empty")),
        text => Ok(BmcLogin { username, password: SecretString::from(text.to_owned()) }),
    }
}

/// The same, as the API has the Secret now.
///
/// # Errors
///
/// What the API says.
pub async fn read(
    secrets: &Api<Secret>,
    credential: &BareMetalHostCredential,
) -> Result<Result<BmcLogin, ConditionVerdict>, kube::Error> {
    let secret = match place(credential) {
        Ok(place) => secrets.get_opt(&place.name).await?,
        Err(_) => None,
    };
    Ok(login(credential, secret.as_ref()))
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_password_is_there_or_what_is_missing_is_said() {
        let credential = |password: Value| -> BareMetalHostCredential {
            serde_json::from_value(json!({
                "apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "BareMetalHostCredential",
                "metadata": {"name": "a", "namespace": "rack", "uid": "1"},
                "spec": {"username": " root ", "password": password},
            }))
            .unwrap()
        };
        let secret = |data: Value, owner: &str| -> Secret {
            let owner = json!([{"apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "BareMetalHostCredential", "name": "a",
                "uid": owner, "controller": true}]);
            serde_json::from_value(json!({"metadata": {"name": "s", "ownerReferences": owner}, "data": data})).unwrap()
        };
        let named = |name: &str| json!({"secret": {"name": name, "key": "password"}});
        let own = "a-bmhc-passwords";
        let text = json!({"password": "czNjcmV0Cg=="});
        for (password, secret, wanted) in [
            (json!({}), None, Err("NoPassword")),
            (named("../x"), None, Err("NoPassword")),
            (named("s"), None, Err("NoSecret")),
            (named("s"), Some(secret(json!({}), "")), Err("NoPassword")),
            (named("s"), Some(secret(json!({"password": "/w=="}), "")), Err("NoPassword")),
            (named("s"), Some(secret(json!({"password": "IAo="}), "")), Err("NoPassword")),
            (named("s"), Some(secret(text.clone(), "")), Ok("s3cret")),
            (named(own), Some(secret(text.clone(), "1")), Ok("s3cret")),
            (named(own), Some(secret(text.clone(), "0")), Err("NameTaken")),
        ] {
            let said = login(&credential(password.clone()), secret.as_ref());
            match (&said, wanted) {
                (Ok(login), Ok(wanted)) => {
                    assert_eq!((login.username.as_str(), login.password.expose_secret()), ("root", wanted));
                }
                (Err(verdict), Err(wanted)) => assert_eq!(verdict.reason, wanted, "{password}"),
                _ => panic!("{password}: {said:?}"),
            }
        }
    }
}
