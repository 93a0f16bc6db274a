//! The objects of a run: made, changed and removed through the API as anybody would.
//!
//! Each bears the run's own label, and is changed and removed only as what this run has made: by that label, by its name
//! and by its UID. What has the same name and came otherwise is somebody else's, and stays as it is.

use std::collections::{BTreeMap, HashSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Context;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{
    Api, DeleteParams, ListParams, ObjectMeta, PartialObjectMeta, Patch, PatchParams, PostParams, Preconditions,
};
use kube::{Client, Resource, ResourceExt};
use secrecy::ExposeSecret;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::api::MacAddress;
use crate::api::metal3::{BareMetalHost, BareMetalHostSpec, BmcDetails, HostImage};
use crate::bmc::sim::Account;

use super::plan::Goal;

/// Writes at once.
const AT_ONCE: usize = 32;
/// Label of everything that is made; its value is the run.
pub(super) const LABEL: &str = "slipway.dev/simulated";
/// Tries of a call that the API was too busy for, and the pause between two.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);

/// A host with its credentials.
#[derive(Clone, Debug)]
pub struct HostWithSecret {
    /// The host.
    pub host: BareMetalHost,
    /// What its BMC takes.
    pub account: Account,
    /// The Secret for them, when it is made here.
    pub secret: Option<Secret>,
    /// The Secret with the network data of its ramdisk, when it is made here.
    pub network: Option<Secret>,
}

impl HostWithSecret {
    /// Gives the ramdisk a fixed address, by network data.
    pub(super) fn fix_address(&mut self, mac: MacAddress, address: Ipv4Addr) {
        let name = format!("{}-network", self.host.name_any());
        let data = json!({
            "links": [{ "id": "eno1", "type": "phy", "ethernet_mac_address": mac.to_string() }],
            "networks": [{ "id": "ramdisk", "type": "ipv4", "link": "eno1", "ip_address": format!("{address}/8") }],
        });
        let host = &self.host.metadata;
        let metadata = ObjectMeta {
            name: Some(name.clone()),
            namespace: host.namespace.clone(),
            labels: host.labels.clone(),
            ..ObjectMeta::default()
        };
        let string_data = Some([("networkData".to_owned(), data.to_string())].into());
        self.network = Some(Secret { metadata, string_data, ..Secret::default() });
        self.host.spec.preprovisioning_network_data_name = Some(name);
    }

    fn secrets(&self) -> impl Iterator<Item = &Secret> {
        self.secret.iter().chain(&self.network)
    }

    /// Labels all of it as a run's.
    pub fn mark(&mut self, run: &str) {
        let secrets = self.secret.iter_mut().chain(&mut self.network).map(|secret| &mut secret.metadata);
        for metadata in secrets.chain([&mut self.host.metadata]) {
            metadata.labels.get_or_insert_default().insert(LABEL.to_owned(), run.to_owned());
        }
    }
}

/// A made-up host.
pub fn host(number: usize, namespace: &str, password: &str, image: Option<HostImage>) -> HostWithSecret {
    let name = format!("sim-{number:05}");
    let metadata =
        |name: String| ObjectMeta { name: Some(name), namespace: Some(namespace.to_owned()), ..ObjectMeta::default() };
    let secret_name = format!("{name}-bmc");
    let account = super::bmcs::account("admin", password);
    let data = [("username", account.username.as_str()), ("password", account.password.expose_secret())];
    let secret = Secret {
        metadata: metadata(secret_name.clone()),
        string_data: Some(data.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
        type_: Some("Opaque".into()),
        ..Secret::default()
    };
    let spec = BareMetalHostSpec {
        online: true,
        bmc: Some(BmcDetails { credentials_name: secret_name, ..BmcDetails::default() }),
        image,
        ..BareMetalHostSpec::default()
    };
    let host = BareMetalHost { metadata: metadata(name), spec, status: None };
    HostWithSecret { host, account, secret: Some(secret), network: None }
}

/// Hosts and their Secrets from manifests. What is made of them keeps all but BMC address and status.
///
/// # Errors
/// When the text has no hosts, or a host's credentials are not in it.
pub fn from_manifests(text: &str, namespace: &str) -> anyhow::Result<Vec<HostWithSecret>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| anyhow::anyhow!("{error}"))?;
    let of = |kind: &'static str| documents.iter().filter(move |document| document["kind"] == kind).cloned();
    let mut secrets = Vec::new();
    for document in of("Secret") {
        secrets.push(serde_json::from_value::<Secret>(document).context("a Secret")?);
    }
    let mut all = Vec::new();
    for document in of("BareMetalHost") {
        let mut host: BareMetalHost = serde_json::from_value(document).context("a BareMetalHost")?;
        host.metadata = fresh(&host.metadata, namespace);
        host.status = None;
        let name = host.name_any();
        let wanted = host.spec.bmc.clone().unwrap_or_default().credentials_name;
        let secret = secrets.iter().find(|secret| secret.name_any() == wanted);
        let secret = secret.with_context(|| format!("host {name}: there is no Secret {wanted:?} in the same file"))?;
        let value = |key: &str| {
            let plain = secret.string_data.as_ref().and_then(|data| data.get(key).cloned());
            let coded = || secret.data.as_ref().and_then(|data| String::from_utf8(data.get(key)?.0.clone()).ok());
            plain.or_else(coded).map(|value| value.trim().to_owned())
        };
        let (user, password) = (value("username"), value("password"));
        let account = super::bmcs::account(
            &user.with_context(|| format!("Secret {wanted}: no username"))?,
            &password.with_context(|| format!("Secret {wanted}: no password"))?,
        );
        let first =
            !all.iter().any(|made: &HostWithSecret| made.secret.as_ref().is_some_and(|s| s.name_any() == wanted));
        let secret = first.then(|| {
            let mut secret = secret.clone();
            secret.metadata = fresh(&secret.metadata, namespace);
            secret
        });
        let network = host.spec.preprovisioning_network_data_name.as_deref().and_then(|wanted| {
            let mut found = secrets.iter().find(|secret| secret.name_any() == wanted)?.clone();
            found.metadata = fresh(&found.metadata, namespace);
            let first =
                !all.iter().any(|made: &HostWithSecret| made.network.as_ref().is_some_and(|s| s.name_any() == wanted));
            first.then_some(found)
        });
        all.push(HostWithSecret { host, account, secret, network });
    }
    if all.is_empty() {
        anyhow::bail!("there is no BareMetalHost in it");
    }
    Ok(all)
}

/// Whether every host can reach the goal: who can not is named at once, not after the deadline.
///
/// # Errors
/// The first host that can not, and why.
pub(super) fn can_arrive(goal: Goal, made: &[HostWithSecret]) -> anyhow::Result<()> {
    for HostWithSecret { host, .. } in made {
        let spec = &host.spec;
        let reason = if spec.externally_provisioned {
            "is externallyProvisioned"
        } else if goal == Goal::Available {
            continue;
        } else if spec.image.is_none() && spec.custom_deploy.is_none() {
            "names no image (--until available needs none)"
        } else if !spec.online {
            "is not to be online"
        } else {
            continue;
        };
        anyhow::bail!("host {} {reason}: it never is {}", host.name_any(), goal.as_str());
    }
    Ok(())
}

/// Of a manifest's metadata what a new object may have: what a server has written into it is of another one.
fn fresh(metadata: &ObjectMeta, namespace: &str) -> ObjectMeta {
    ObjectMeta {
        name: metadata.name.clone(),
        namespace: Some(namespace.to_owned()),
        labels: metadata.labels.clone(),
        annotations: metadata.annotations.clone(),
        ..ObjectMeta::default()
    }
}

/// Names of objects with their UIDs.
type UidsByName = BTreeMap<String, String>;

/// The objects of a run.
#[derive(Clone)]
pub struct RunObjects {
    client: Client,
    namespace: String,
    run: String,
}

impl RunObjects {
    /// In a namespace; `run` tells the objects of a run from all others, and is the value of a label.
    pub fn new(client: Client, namespace: &str, run: &str) -> Self {
        Self { client, namespace: namespace.to_owned(), run: run.to_owned() }
    }

    fn hosts(&self) -> Api<BareMetalHost> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Looks at what the server has, before anything is made there.
    ///
    /// # Errors
    /// When it has any host, or anything of a name that is to be made; or what the API answers.
    pub(super) async fn look(&self, made: &[HostWithSecret]) -> anyhow::Result<()> {
        let all = Api::<BareMetalHost>::all(self.client.clone());
        let hosts = metadata(&all, &ListParams::default()).await.context("the server's hosts cannot be listed")?;
        alone(&hosts)?;
        let there = metadata(&self.secrets(), &ListParams::default()).await;
        let there = there.with_context(|| format!("the Secrets of namespace {} cannot be listed", self.namespace))?;
        let wanted: HashSet<String> =
            made.iter().flat_map(HostWithSecret::secrets).map(ResourceExt::name_any).collect();
        let taken: Vec<_> = there.into_iter().filter(|secret| wanted.contains(&secret.name_any())).collect();
        unused(&taken)
    }

    /// Makes the namespace. Its UID, when it was not there.
    ///
    /// # Errors
    /// What the API answers.
    pub async fn make_namespace(&self) -> kube::Result<Option<String>> {
        let labels = [(LABEL.to_owned(), self.run.clone())].into();
        let new = Namespace {
            metadata: ObjectMeta { name: Some(self.namespace.clone()), labels: Some(labels), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        match Api::<Namespace>::all(self.client.clone()).create(&PostParams::default(), &new).await {
            Err(kube::Error::Api(error)) if error.is_already_exists() => Ok(None),
            made => made.map(|made| made.uid()),
        }
    }

    /// Makes hosts, each after its Secret.
    ///
    /// # Errors
    /// The first answer that is none of success.
    pub async fn make(&self, made: &[HostWithSecret]) -> anyhow::Result<()> {
        stream::iter(made)
            .map(Ok::<_, anyhow::Error>)
            .try_for_each_concurrent(AT_ONCE, |one| async move {
                for secret in one.secrets() {
                    let name = secret.name_any();
                    self.create(&self.secrets(), secret).await.with_context(|| format!("Secret {name}"))?;
                }
                let name = one.host.name_any();
                self.create(&self.hosts(), &one.host).await.with_context(|| format!("host {name}"))
            })
            .await
    }

    /// Makes an object, which may be there of a try whose answer was lost.
    async fn create<K>(&self, api: &Api<K>, new: &K) -> kube::Result<()>
    where
        K: Resource + Serialize + DeserializeOwned + Clone + std::fmt::Debug,
    {
        match patiently(|| async { api.create(&PostParams::default(), new).await }).await {
            Err(kube::Error::Api(error)) if error.is_already_exists() => {
                let there = patiently(|| async { api.get_metadata(&new.name_any()).await }).await?;
                if there.labels().get(LABEL) == Some(&self.run) { Ok(()) } else { Err(kube::Error::Api(error)) }
            }
            made => made.map(drop),
        }
    }

    /// What this run has made of a kind under these names, and is still there.
    async fn ours<K>(&self, api: &Api<K>, names: &[String]) -> kube::Result<UidsByName>
    where
        K: DeserializeOwned + Clone + std::fmt::Debug,
    {
        let names: HashSet<&String> = names.iter().collect();
        let mine = metadata(api, &ListParams::default().labels(&format!("{LABEL}={}", self.run))).await?;
        let uids = mine.into_iter().filter_map(|one| Some((one.name_any(), one.uid()?)));
        Ok(uids.filter(|(name, _)| names.contains(name)).collect())
    }

    /// Takes the image from hosts.
    ///
    /// # Errors
    /// The first answer that is none of success.
    pub async fn take_images(&self, names: &[String]) -> anyhow::Result<()> {
        let hosts = self.hosts();
        let ours = self.ours(&hosts, names).await?;
        each("host", &ours, |name, uid| {
            let hosts = hosts.clone();
            async move {
                // The UID is a condition: another host of that name is none of ours.
                let patch = Patch::Merge(json!({ "metadata": { "uid": uid }, "spec": { "image": null } }));
                patiently(|| async { hosts.patch(&name, &PatchParams::default(), &patch).await }).await.map(drop)
            }
        })
        .await
    }

    /// Deletes hosts; their Secrets go with them or after them.
    ///
    /// # Errors
    /// The first answer that is none of success.
    pub async fn delete(&self, names: &[String]) -> anyhow::Result<()> {
        self.delete_ours("host", &self.hosts(), names).await
    }

    /// Deletes the Secrets of hosts that are gone.
    ///
    /// # Errors
    /// The first answer that is none of success.
    pub async fn delete_secrets(&self, made: &[HostWithSecret]) -> anyhow::Result<()> {
        let names: Vec<String> = made.iter().flat_map(HostWithSecret::secrets).map(ResourceExt::name_any).collect();
        self.delete_ours("Secret", &self.secrets(), &names).await
    }

    async fn delete_ours<K>(&self, kind: &str, api: &Api<K>, names: &[String]) -> anyhow::Result<()>
    where
        K: DeserializeOwned + Clone + std::fmt::Debug,
    {
        let ours = self.ours(api, names).await?;
        each(kind, &ours, |name, uid| {
            let api = api.clone();
            async move { gone(patiently(|| async { api.delete(&name, &exactly(&uid)).await }).await) }
        })
        .await
    }

    /// Deletes the namespace that this run has made, unless it has become somebody else's home too.
    ///
    /// # Errors
    /// When it stays, or what the API answers.
    pub async fn delete_namespace(&self, uid: &str) -> anyhow::Result<()> {
        let of = |kind: &str, all: Vec<PartialMeta>| {
            all.into_iter().map(|one| format!("{kind} {}", one.name_any())).collect::<Vec<_>>()
        };
        let mut others = of("host", metadata(&self.hosts(), &ListParams::default()).await?);
        others.extend(of("Secret", metadata(&self.secrets(), &ListParams::default()).await?));
        if !others.is_empty() {
            anyhow::bail!("namespace {} stays, for not all in it is of this run: {}", self.namespace, few(&others));
        }
        let namespaces = Api::<Namespace>::all(self.client.clone());
        Ok(gone(namespaces.delete(&self.namespace, &exactly(uid)).await)?)
    }
}

/// An object of which the kind does not matter.
type PartialMeta = PartialObjectMeta<Secret>;

/// Metadata of all that is listed.
async fn metadata<K>(api: &Api<K>, params: &ListParams) -> kube::Result<Vec<PartialMeta>>
where
    K: DeserializeOwned + Clone + std::fmt::Debug,
{
    let listed = patiently(|| async { api.list_metadata(params).await }).await?;
    let bare = |one: PartialObjectMeta<K>| PartialObjectMeta {
        types: one.types,
        metadata: one.metadata,
        _phantom: std::marker::PhantomData,
    };
    Ok(listed.items.into_iter().map(bare).collect())
}

/// A rehearsal shares addresses, MAC addresses and places with every host of the server.
fn alone(hosts: &[PartialMeta]) -> anyhow::Result<()> {
    let named = |simulated: bool| {
        let of = hosts.iter().filter(|host| host.labels().contains_key(LABEL) == simulated);
        of.map(|host| format!("{}/{}", host.namespace().unwrap_or_default(), host.name_any())).collect::<Vec<_>>()
    };
    let (real, simulated) = (named(false), named(true));
    if !real.is_empty() {
        anyhow::bail!(
            "the server has hosts that no simulation made: {}. With them a rehearsal would share addresses and places. \
             For an appliance of the simulator's own leave --relay and --kubeconfig out; --config FILE gives it your settings, \
             --hosts FILE your hosts",
            few(&real)
        );
    }
    if !simulated.is_empty() {
        anyhow::bail!(
            "the server has hosts that a simulation left, or has under way: {}. When it has ended, remove them first:\n  \
             slipway delete hosts -A -l {LABEL} --force\n  slipway delete secrets -A --ignore-not-found -l {LABEL}",
            few(&simulated)
        );
    }
    Ok(())
}

/// None of the Secrets that are to be made may be there.
fn unused(taken: &[PartialMeta]) -> anyhow::Result<()> {
    if taken.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = taken
        .iter()
        .map(|secret| format!("Secret {}/{}", secret.namespace().unwrap_or_default(), secret.name_any()))
        .collect();
    if taken.iter().all(|secret| secret.labels().contains_key(LABEL)) {
        anyhow::bail!(
            "a simulation left what this one would make: {}. Remove it first:\n  slipway delete secrets -A --ignore-not-found -l {LABEL}",
            few(&names)
        );
    }
    anyhow::bail!("what would be made is there already: {}. Give another namespace with --namespace", few(&names))
}

/// The first few of many names.
fn few(names: &[String]) -> String {
    const FEW: usize = 5;
    let more = names.len().saturating_sub(FEW);
    let first = names[..names.len().min(FEW)].join(", ");
    if more == 0 { first } else { format!("{first} and {more} more") }
}

/// Deletes only the object with this UID.
fn exactly(uid: &str) -> DeleteParams {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }
}

async fn each<Doing>(kind: &str, all: &UidsByName, act: impl Fn(String, String) -> Doing) -> anyhow::Result<()>
where
    Doing: Future<Output = kube::Result<()>>,
{
    let act = &act;
    stream::iter(all)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, |(name, uid)| async move {
            act(name.clone(), uid.clone()).await.with_context(|| format!("{kind} {name}"))
        })
        .await
}

/// An object of another UID is not the one that was to go: that one is gone.
fn gone<T>(deleted: kube::Result<T>) -> kube::Result<()> {
    match deleted {
        Err(kube::Error::Api(error)) if error.is_not_found() || error.is_conflict() => Ok(()),
        deleted => deleted.map(drop),
    }
}

/// Makes a call again while the API says that it is too busy or does not answer.
async fn patiently<T, Called>(call: impl Fn() -> Called) -> kube::Result<T>
where
    Called: Future<Output = kube::Result<T>>,
{
    let mut tries = 0;
    loop {
        tries += 1;
        match call().await {
            Err(kube::Error::Api(error)) if tries < TRIES && matches!(error.code, 429 | 500..=599) => {}
            Err(kube::Error::Service(_) | kube::Error::HyperError(_)) if tries < TRIES => {}
            done => return done,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_never_arrives_is_named_at_once() {
        let with = |change: fn(&mut BareMetalHostSpec)| {
            let mut made = host(1, "n", "secret", None);
            change(&mut made.host.spec);
            vec![made]
        };
        let image: fn(&mut BareMetalHostSpec) = |spec| spec.image = Some(HostImage::default());
        for (goal, change, reason) in [
            (Goal::Available, (|_| {}) as fn(&mut BareMetalHostSpec), None),
            (Goal::Provisioned, |_| {}, Some("names no image")),
            (Goal::Deleted, image, None),
            (Goal::Provisioned, |spec| (spec.image, spec.online) = (Some(HostImage::default()), false), Some("online")),
            (Goal::Available, |spec| spec.externally_provisioned = true, Some("externallyProvisioned")),
        ] {
            let said = can_arrive(goal, &with(change)).err().map(|error| error.to_string());
            assert_eq!(said.is_some(), reason.is_some(), "{said:?}");
            assert!(said.unwrap_or_default().contains(reason.unwrap_or_default()), "{reason:?}");
        }
    }

    #[test]
    fn hosts_of_manifests_keep_what_they_say_and_need_their_credentials() {
        let text = "\
apiVersion: v1
kind: Secret
metadata: {name: web-bmc}
stringData: {username: root, password: calvin}
---
apiVersion: metal3.io/v1alpha1
kind: BareMetalHost
metadata: {name: web-1, labels: {role: web}}
spec:
  online: true
  bootMACAddress: 52:54:00:12:34:56
  bmc: {address: 'idrac-redfish://10.0.0.1/redfish/v1/Systems/System.Embedded.1', credentialsName: web-bmc}
  rootDeviceHints: {deviceName: /dev/sda}
";
        let made = from_manifests(text, "rehearsal").unwrap();
        let [one] = made.as_slice() else { panic!("{made:?}") };
        assert_eq!(one.host.namespace().as_deref(), Some("rehearsal"));
        assert_eq!(one.host.spec.boot_mac_address.as_deref(), Some("52:54:00:12:34:56"));
        assert!(one.host.spec.root_device_hints.is_some() && one.host.labels().contains_key("role"));
        assert_eq!((one.account.username.as_str(), one.account.password.expose_secret()), ("root", "calvin"));
        assert_eq!(one.secret.as_ref().and_then(ResourceExt::namespace).as_deref(), Some("rehearsal"));

        let without = text.split("---\n").nth(1).unwrap();
        let error = from_manifests(without, "rehearsal").unwrap_err().to_string();
        assert!(error.contains("no Secret \"web-bmc\""), "{error}");
        assert!(from_manifests("kind: Secret\n", "n").is_err());
    }
}
