//! Impersonation: the `Impersonate-…` headers (`kubectl --as`).

use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderMap;

use super::accounts;
use super::identity::{ANONYMOUS, AUTHENTICATED, Proof, UNAUTHENTICATED, UserIdentity};
use super::kinds::AUTHENTICATION;
use super::rules::Attributes;
use crate::apiserver::answers::status::ApiError;
use crate::apiserver::requests::request::unescape;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";
/// Values of all these headers together.
const VALUES_MAX: usize = 64;

/// Who is to be spoken for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ImpersonationRequest {
    user: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl ImpersonationRequest {
    /// Reads the headers; `None` when there are none.
    pub fn read(headers: &HeaderMap) -> Result<Option<Self>, ApiError> {
        // Nearly every request: nothing to look up one by one.
        let mut ours = headers.iter().filter(|(name, _)| name.as_str().starts_with("impersonate-")).peekable();
        if ours.peek().is_none() {
            return Ok(None);
        }
        let mut wish = Self::default();
        for (count, (name, value)) in ours.enumerate() {
            let value = value.to_str().map_err(|_| ApiError::bad_request("an Impersonate header is no text"))?;
            if count >= VALUES_MAX {
                return Err(ApiError::bad_request("too many Impersonate headers"));
            }
            match name.as_str() {
                USER => value.clone_into(&mut wish.user),
                UID => value.clone_into(&mut wish.uid),
                GROUP => wish.groups.push(value.to_owned()),
                other => {
                    if let Some(key) = other.strip_prefix(EXTRA) {
                        let key = unescape(key).unwrap_or_else(|| key.to_owned());
                        wish.extra.entry(key).or_default().push(value.to_owned());
                    }
                }
            }
        }
        if wish.user.is_empty() {
            if wish == Self::default() {
                return Ok(None);
            }
            return Err(ApiError::bad_request(
                "groups, uid or extra were asked to be impersonated without impersonating a user",
            ));
        }
        Ok(Some(wish))
    }

    /// The namespace whose roles are asked; empty when it is the cluster's only.
    pub fn namespace(&self) -> &str {
        accounts::split_user_name(&self.user).map_or("", |(namespace, _)| namespace)
    }

    /// What the caller must be allowed, each with the verb `impersonate`.
    fn demands(&self) -> Vec<Attributes<'_>> {
        let one = |group, resource, subresource, namespace, name| Attributes {
            verb: "impersonate",
            group,
            version: "v1",
            resource,
            subresource,
            namespace,
            name,
            path: "",
        };
        let mut demands = vec![match accounts::split_user_name(&self.user) {
            Some((namespace, name)) => one("", "serviceaccounts", "", namespace, name),
            None => one("", "users", "", "", &self.user),
        }];
        demands.extend(self.groups.iter().map(|group| one("", "groups", "", "", group)));
        for (key, values) in &self.extra {
            demands.extend(values.iter().map(|value| one(AUTHENTICATION, "userextras", key.as_str(), "", value)));
        }
        if !self.uid.is_empty() {
            demands.push(one(AUTHENTICATION, "uids", "", "", &self.uid));
        }
        demands
    }

    /// Whether `allow` allows each part.
    pub fn judge(
        &self,
        by: &UserIdentity,
        allow: impl Fn(&UserIdentity, &Attributes<'_>) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        self.demands().iter().try_for_each(|demand| allow(by, demand))
    }

    /// The identity to go on with, when `allow` allows each part.
    pub fn grant(
        self,
        by: UserIdentity,
        allow: impl Fn(&UserIdentity, &Attributes<'_>) -> Result<(), ApiError>,
    ) -> Result<UserIdentity, ApiError> {
        self.judge(&by, allow)?;
        let mut groups = self.groups.clone();
        if groups.is_empty()
            && let Some((namespace, _)) = accounts::split_user_name(&self.user)
        {
            groups = accounts::groups(namespace);
        }
        let common = if self.user == ANONYMOUS { UNAUTHENTICATED } else { AUTHENTICATED };
        if !groups.iter().any(|group| group == common) {
            groups.push(common.into());
        }
        let mut identity = UserIdentity::new(self.user.clone(), groups, Proof::Impersonation);
        identity.uid.clone_from(&self.uid);
        identity.extra.clone_from(&self.extra);
        // Who speaks must still be who they are for as long as they are served.
        identity.claims.clone_from(&by.claims);
        identity.certificate.clone_from(&by.certificate);
        identity.impersonator = Some(Box::new(by));
        identity.asked = Some(Arc::new(self));
        Ok(identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderName;

    fn wish(headers: &[(&'static str, &str)]) -> Result<Option<ImpersonationRequest>, ApiError> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        ImpersonationRequest::read(&map)
    }

    #[test]
    fn each_part_is_asked_for() {
        assert_eq!(wish(&[("accept", "*/*")]).unwrap(), None);
        assert!(wish(&[(GROUP, "a")]).is_err());
        assert!(wish(&vec![(GROUP, "a"); VALUES_MAX + 1]).is_err());
        let by = || UserIdentity::new("root", Vec::new(), Proof::Certificate);
        let demands = |headers: &[_]| {
            let wish = wish(headers).unwrap().unwrap();
            let text =
                |one: Attributes<'_>| [one.group, one.resource, one.subresource, one.namespace, one.name].join(",");
            wish.demands().into_iter().map(text).collect::<Vec<_>>()
        };
        assert_eq!(
            demands(&[(USER, "eve"), (GROUP, "a"), (GROUP, "b"), (UID, "u"), ("impersonate-extra-acme.com%2fx", "y")]),
            [
                ",users,,,eve",
                ",groups,,,a",
                ",groups,,,b",
                "authentication.k8s.io,userextras,acme.com/x,,y",
                "authentication.k8s.io,uids,,,u",
            ]
        );
        assert_eq!(demands(&[(USER, "system:serviceaccount:ci:bot")]), [",serviceaccounts,,ci,bot"]);
        let refuse = |_: &UserIdentity, wanted: &Attributes<'_>| {
            if wanted.resource == "groups" { Err(ApiError::bad_request("no")) } else { Ok(()) }
        };
        assert!(wish(&[(USER, "eve"), (GROUP, "a")]).unwrap().unwrap().grant(by(), refuse).is_err());
        for (user, groups) in [
            ("eve", vec![AUTHENTICATED]),
            (ANONYMOUS, vec![UNAUTHENTICATED]),
            (
                "system:serviceaccount:ci:bot",
                vec!["system:serviceaccounts", "system:serviceaccounts:ci", AUTHENTICATED],
            ),
        ] {
            let identity = wish(&[(USER, user)]).unwrap().unwrap().grant(by(), refuse).unwrap();
            assert_eq!((identity.user.as_str(), identity.groups), (user, groups.iter().map(|g| (*g).into()).collect()));
            assert!(!identity.proof.eq(&Proof::InProcess) && identity.impersonator == Some(Box::new(by())));
        }
    }
}
