//! Controllers of service accounts, token Secrets and aggregated roles.
//!
//! What upstream's controllers do for this room: a `default` account in every namespace, tokens in the Secrets that ask
//! for one, the rules of aggregating roles, and the default roles of a start.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt;
use futures::future::{join_all, try_join_all};
use serde_json::{Value, json};

use super::tokens::BoundObject;
use super::{accounts, defaults};
use crate::apiserver::ApiServer;
use crate::apiserver::answers::status::ApiError;
use crate::apiserver::kinds::resource::ServedResource;
use crate::apiserver::objects::meta;
use crate::runtime::tasks::{RunFault, SupervisedTask};
use crate::store::{Expect, Gone, Mutation, Object, StoreEvent, StoreWriteError, Watch};

/// Time to the next try after the store refused a write.
const RETRY: Duration = Duration::from_secs(5);
/// Changes of cluster roles that come within this time are answered together.
const PAUSE: Duration = Duration::from_millis(10);
/// Aggregating roles may choose each other; this many levels are followed at once.
const LEVELS: usize = 16;

/// A change of one object.
fn change(resource: &ServedResource, namespace: &str, name: &str, expect: Expect, value: Option<Value>) -> Mutation {
    Mutation { resource: Arc::clone(&resource.storage), namespace: namespace.into(), name: name.into(), expect, value }
}

/// Fills in the server's fields of a new object.
fn born(mut value: Value) -> Value {
    value["metadata"]["uid"] = uuid::Uuid::new_v4().to_string().into();
    value["metadata"]["creationTimestamp"] = json!(meta::now());
    value
}

/// Gives every aggregating role its rules; the names of those that changed.
fn settle(roles: &mut BTreeMap<String, Value>) -> Vec<String> {
    let mut changed: Vec<String> = Vec::new();
    for _ in 0..LEVELS {
        let others: Vec<&Value> = roles.values().collect();
        let news: Vec<(String, Value)> =
            roles.iter().filter_map(|(name, role)| Some((name.clone(), defaults::aggregate(role, &others)?))).collect();
        if news.is_empty() {
            break;
        }
        for (name, rules) in news {
            if let Some(role) = roles.get_mut(&name) {
                role["rules"] = rules;
            }
            if !changed.contains(&name) {
                changed.push(name);
            }
        }
    }
    changed
}

/// What changes of namespaces, accounts, Secrets and roles from one look at everything on.
struct AccessFeeds {
    accounts: Arc<ServedResource>,
    secrets: Arc<ServedResource>,
    roles: Arc<ServedResource>,
    of_namespaces: Watch,
    of_accounts: Watch,
    of_secrets: Watch,
    of_roles: Watch,
}

/// A change from which something follows.
enum AccessChange {
    /// Of cluster roles, one or several.
    Roles,
    NamespaceAdded(Arc<Object>),
    AccountAdded(Arc<Object>),
    AccountDeleted(Arc<Object>),
    SecretWritten(Arc<Object>),
}

impl AccessFeeds {
    /// The next change from which something follows; an error when some changes are no longer kept.
    async fn next(&mut self) -> Result<AccessChange, Gone> {
        loop {
            tokio::select! {
                event = self.of_roles.next() => {
                    event?;
                    tokio::time::sleep(PAUSE).await;
                    // What came meanwhile is answered too; a feed that ran away says so with the next event.
                    while let Some(Ok(_)) = self.of_roles.next().now_or_never() {}
                    return Ok(AccessChange::Roles);
                }
                event = self.of_namespaces.next() => {
                    if let StoreEvent::Added(namespace) = event? {
                        return Ok(AccessChange::NamespaceAdded(namespace));
                    }
                }
                event = self.of_accounts.next() => match event? {
                    StoreEvent::Added(account) => return Ok(AccessChange::AccountAdded(account)),
                    StoreEvent::Deleted(account) => return Ok(AccessChange::AccountDeleted(account)),
                    StoreEvent::Modified { .. } => {}
                },
                event = self.of_secrets.next() => match event? {
                    StoreEvent::Added(secret) | StoreEvent::Modified { object: secret, .. } => {
                        return Ok(AccessChange::SecretWritten(secret));
                    }
                    StoreEvent::Deleted(_) => {}
                },
            }
        }
    }
}

impl ApiServer {
    /// Makes or completes the default roles and bindings.
    pub(in crate::apiserver) async fn make_default_roles(&self) -> Result<(), StoreWriteError> {
        let mut wanted: BTreeMap<&str, BTreeMap<String, Value>> = BTreeMap::new();
        let registry = self.registry();
        for (plural, default) in defaults::all(&registry) {
            let name = default["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            wanted.entry(plural).or_default().insert(name, default);
        }
        let mut writes = Vec::new();
        for (plural, defaults) in wanted {
            let Some(resource) = registry.find(super::GROUP, "v1", plural) else { continue };
            let listing = self.store().list(&resource.storage, None).objects;
            let before: BTreeMap<&str, &Arc<Object>> =
                listing.iter().map(|object| (object.name.as_str(), object)).collect();
            let mut after: BTreeMap<String, Value> =
                listing.iter().map(|object| (object.name.clone(), object.value())).collect();
            for (name, default) in defaults {
                let new = match after.get(&name) {
                    None => Some(born(default)),
                    Some(found) => defaults::complete(found, &default),
                };
                after.extend(new.map(|new| (name, new)));
            }
            settle(&mut after);
            for (name, value) in after {
                let expect = match before.get(name.as_str()) {
                    None => Expect::Absent,
                    Some(object) if object.value() == value => continue,
                    Some(object) => Expect::Revision(object.revision),
                };
                let write = change(resource, "", &name, expect, Some(value));
                writes.push(async move { self.commit(resource, write).await });
            }
        }
        // Together: one wait for the disk.
        try_join_all(writes).await.map(drop)
    }

    /// Keeps accounts, their Secrets and aggregating roles in order until the server shuts down.
    pub(in crate::apiserver) async fn run_access_controllers(&self) {
        let task = self.tasks().task("account-upkeep");
        while !self.shutdown().is_cancelled() {
            let kept = tokio::select! {
                () = self.shutdown().cancelled() => return,
                kept = self.keep_access(&task) => kept,
            };
            if let Err(error) = kept {
                tracing::warn!(%error, "cannot keep service accounts and roles up to date: trying again");
                task.next_in(RETRY);
                tokio::select! {
                    () = self.shutdown().cancelled() => {}
                    () = tokio::time::sleep(RETRY) => {}
                }
            }
        }
    }

    /// A run that looks at everything, then a run for each change. Ends well when some changes are no longer kept.
    async fn keep_access(&self, task: &SupervisedTask) -> Result<(), RunFault<ApiError>> {
        let Some(mut feeds) = task.run(self.keep_all_access()).await? else { return Ok(()) };
        while let Ok(change) = feeds.next().await {
            task.run(self.follow_access(&feeds, change)).await?;
        }
        Ok(())
    }

    /// Looks at everything. What changes from then on is in the feeds; `None` when that is no longer kept.
    async fn keep_all_access(&self) -> Result<Option<AccessFeeds>, ApiError> {
        let find = |group: &str, plural: &str| {
            self.registry().find(group, "v1", plural).cloned().ok_or_else(ApiError::no_such_path)
        };
        let namespaces = find("", "namespaces")?;
        let accounts = find("", "serviceaccounts")?;
        let secrets = find("", "secrets")?;
        let roles = find(super::GROUP, "clusterroles")?;
        let list = |resource: &ServedResource| self.store().list(&resource.storage, None);
        let watch = |resource: &ServedResource, after| self.store().watch(&resource.storage, after);
        let (all_namespaces, all_accounts, all_secrets) = (list(&namespaces), list(&accounts), list(&secrets));
        let (Ok(of_namespaces), Ok(of_accounts), Ok(of_secrets), Ok(of_roles)) = (
            watch(&namespaces, all_namespaces.revision),
            watch(&accounts, all_accounts.revision),
            watch(&secrets, all_secrets.revision),
            watch(&roles, list(&roles).revision),
        ) else {
            return Ok(None);
        };
        self.aggregate_roles(&roles).await?;
        let made = join_all(all_namespaces.objects.iter().map(|one| self.make_account(&accounts, &one.name))).await;
        made.into_iter().collect::<Result<(), _>>()?;
        for secret in &all_secrets.objects {
            self.fill_secret(&secrets, secret).await?;
        }
        Ok(Some(AccessFeeds { accounts, secrets, roles, of_namespaces, of_accounts, of_secrets, of_roles }))
    }

    /// What follows from one change.
    async fn follow_access(&self, feeds: &AccessFeeds, change: AccessChange) -> Result<(), ApiError> {
        match change {
            AccessChange::Roles => self.aggregate_roles(&feeds.roles).await,
            AccessChange::NamespaceAdded(namespace) => self.make_account(&feeds.accounts, &namespace.name).await,
            AccessChange::AccountAdded(account) => {
                for secret in self.store().list(&feeds.secrets.storage, Some(&account.namespace)).objects {
                    self.fill_secret(&feeds.secrets, &secret).await?;
                }
                Ok(())
            }
            AccessChange::AccountDeleted(account) => {
                self.forget_account(&feeds.secrets, &account).await?;
                if account.name == accounts::DEFAULT {
                    self.make_account(&feeds.accounts, &account.namespace).await?;
                }
                Ok(())
            }
            AccessChange::SecretWritten(secret) => self.fill_secret(&feeds.secrets, &secret).await,
        }
    }

    /// What another write forestalled is seen again as that write's event.
    async fn put(&self, resource: &ServedResource, change: Mutation) -> Result<(), ApiError> {
        let name = change.name.clone();
        match self.commit(resource, change).await {
            Ok(_) | Err(StoreWriteError::Exists | StoreWriteError::NotFound | StoreWriteError::Conflict { .. }) => {
                Ok(())
            }
            // It costs itself alone: whoever can fill an object, or a namespace, keeps nothing from the others.
            Err(error @ (StoreWriteError::TooLarge { .. } | StoreWriteError::Crowded { .. })) => {
                tracing::warn!(resource = resource.plural, object = name, %error, "cannot keep an object up to date: it stays as it is");
                Ok(())
            }
            Err(error) => Err(ApiError::from_write(&error, resource, &name)),
        }
    }

    async fn aggregate_roles(&self, resource: &ServedResource) -> Result<(), ApiError> {
        let listing = self.store().list(&resource.storage, None).objects;
        let mut roles = listing.iter().map(|object| (object.name.clone(), object.value())).collect();
        for name in settle(&mut roles) {
            let (Some(value), Some(object)) = (roles.remove(&name), listing.iter().find(|one| one.name == name)) else {
                continue;
            };
            self.put(resource, change(resource, "", &name, Expect::Revision(object.revision), Some(value))).await?;
        }
        Ok(())
    }

    async fn make_account(&self, accounts: &ServedResource, namespace: &str) -> Result<(), ApiError> {
        // As every creation does: the namespace cannot end in between.
        let _gate = self.namespace_gate().read().await;
        let found = self.store().get("/namespaces", "", namespace);
        if found.is_none_or(|found| found.is_ending())
            || self.store().get(&accounts.storage, namespace, accounts::DEFAULT).is_some()
        {
            return Ok(());
        }
        let account = born(json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": accounts::DEFAULT, "namespace": namespace},
        }));
        self.put(accounts, change(accounts, namespace, accounts::DEFAULT, Expect::Absent, Some(account))).await
    }

    /// Puts a token into a Secret that is for one, and removes the Secret when its account is another or gone.
    async fn fill_secret(&self, secrets: &ServedResource, secret: &Object) -> Result<(), ApiError> {
        let value = &secret.value();
        if value["type"] != accounts::SECRET_TYPE || secret.is_ending() {
            return Ok(());
        }
        let annotations = &value["metadata"]["annotations"];
        let Some(name) = annotations[accounts::SECRET_ACCOUNT].as_str() else { return Ok(()) };
        let account = self.store().get(accounts::STORAGE, &secret.namespace, name);
        let account = account.map(|account| account.metadata());
        let uid = account.as_ref().and_then(|account| account["uid"].as_str());
        let known = annotations[accounts::SECRET_UID].as_str();
        let of = Expect::Revision(secret.revision);
        let write = |value| change(secrets, &secret.namespace, &secret.name, of, value);
        let held = value["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        if known.is_some() && known != uid {
            return if held { Ok(()) } else { self.put(secrets, write(None)).await };
        }
        let Some(uid) = uid else { return Ok(()) };
        let mut new = value.clone();
        new["metadata"]["annotations"][accounts::SECRET_UID] = uid.into();
        let mut set = |key: &str, text: &str| {
            if new["data"][key].as_str().is_none_or(str::is_empty) && !text.is_empty() {
                new["data"][key] = STANDARD.encode(text).into();
            }
        };
        set("ca.crt", &self.auth().ca_pem);
        set("namespace", &secret.namespace);
        if value["data"]["token"].as_str().is_none_or(str::is_empty) {
            let account = BoundObject { name: name.to_owned(), uid: uid.to_owned() };
            let token = self
                .auth()
                .tokens
                .issue_kept(&secret.namespace, &account, &secret.name)
                .map_err(|error| ApiError::internal(error.to_string()))?;
            set("token", &token);
        }
        if new == *value { Ok(()) } else { self.put(secrets, write(Some(new))).await }
    }

    /// Removes the Secrets that keep tokens of an account that is gone.
    async fn forget_account(&self, secrets: &ServedResource, account: &Object) -> Result<(), ApiError> {
        for secret in self.store().list(&secrets.storage, Some(&account.namespace)).objects {
            if secret.metadata()["annotations"][accounts::SECRET_ACCOUNT] == account.name {
                self.fill_secret(secrets, &secret).await?;
            }
        }
        Ok(())
    }
}
