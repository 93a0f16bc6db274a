//! The objects of a run: made, changed and removed through the API as anybody would.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Context;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use crate::api::MacAddress;
use crate::api::metal3::{BareMetalHost, BareMetalHostSpec, BmcDetails, Image};
use crate::bmc::sim::Account;

/// Writes at once.
const AT_ONCE: usize = 32;
/// Label of everything that is made.
const LABEL: (&str, &str) = ("slipway.dev/simulated", "true");
/// Tries of a call that the API was too busy for, and the pause between two.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);

/// A host with its credentials.
#[derive(Clone, Debug)]
pub struct Made {
    /// The host.
    pub host: BareMetalHost,
    /// What its BMC takes.
    pub account: Account,
    /// The Secret for them, when it is made here.
    pub secret: Option<Secret>,
    /// The Secret with the network data of its ramdisk, when it is made here.
    pub network: Option<Secret>,
}

impl Made {
    /// Gives the ramdisk a fixed address, by network data.
    pub(super) fn fix_address(&mut self, mac: MacAddress, address: Ipv4Addr) {
        let name = format!("{}-network", self.host.name_any());
        let data = json!({
            "links": [{ "id": "eno1", "type": "phy", "ethernet_mac_address": mac.to_string() }],
            "networks": [{ "id": "ramdisk", "type": "ipv4", "link": "eno1", "ip_address": format!("{address}/8") }],
        });
        let metadata = ObjectMeta { name: Some(name.clone()), ..self.host.metadata.clone() };
        let string_data = Some([("networkData".to_owned(), data.to_string())].into());
        self.network = Some(Secret { metadata, string_data, ..Secret::default() });
        self.host.spec.preprovisioning_network_data_name = Some(name);
    }

    fn secrets(&self) -> impl Iterator<Item = &Secret> {
        self.secret.iter().chain(&self.network)
    }
}

/// A made-up host.
pub fn host(number: usize, namespace: &str, password: &str, image: Option<Image>) -> Made {
    let name = format!("sim-{number:05}");
    let labels = Some([(LABEL.0.to_owned(), LABEL.1.to_owned())].into());
    let metadata = |name: String| ObjectMeta {
        name: Some(name),
        namespace: Some(namespace.to_owned()),
        labels: labels.clone(),
        ..ObjectMeta::default()
    };
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
    Made { host, account, secret: Some(secret), network: None }
}

/// Hosts and their Secrets from manifests. What is made of them keeps all but BMC address and status.
///
/// # Errors
/// When the text has no hosts, or a host's credentials are not in it.
pub fn from_manifests(text: &str, namespace: &str) -> anyhow::Result<Vec<Made>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| anyhow::anyhow!("{error}"))?;
    let of = |kind: &'static str| documents.iter().filter(move |document| document["kind"] == kind).cloned();
    let mut secrets = Vec::new();
    for document in of("Secret") {
        secrets.push(serde_json::from_value::<Secret>(document).context("a Secret")?);
    }
    let mut all = Vec::new();
    for document in of("BareMetalHost") {
        let mut host: BareMetalHost = serde_json::from_value(document).context("a BareMetalHost")?;
        host.metadata.namespace = Some(namespace.to_owned());
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
        let first = !all.iter().any(|made: &Made| made.secret.as_ref().is_some_and(|s| s.name_any() == wanted));
        let secret = first.then(|| {
            let mut secret = secret.clone();
            secret.metadata.namespace = Some(namespace.to_owned());
            secret
        });
        let network = host.spec.preprovisioning_network_data_name.as_deref().and_then(|wanted| {
            let mut found = secrets.iter().find(|secret| secret.name_any() == wanted)?.clone();
            found.metadata.namespace = Some(namespace.to_owned());
            let first = !all.iter().any(|made: &Made| made.network.as_ref().is_some_and(|s| s.name_any() == wanted));
            first.then_some(found)
        });
        all.push(Made { host, account, secret, network });
    }
    if all.is_empty() {
        anyhow::bail!("there is no BareMetalHost in it");
    }
    Ok(all)
}

/// The objects of a run.
#[derive(Clone)]
pub struct Objects {
    client: Client,
    namespace: String,
}

impl Objects {
    /// In a namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned() }
    }

    fn hosts(&self) -> Api<BareMetalHost> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Makes the namespace. Says whether it was not there.
    ///
    /// # Errors
    /// What the API answers.
    pub async fn make_namespace(&self) -> kube::Result<bool> {
        let new = Namespace {
            metadata: ObjectMeta { name: Some(self.namespace.clone()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        match Api::all(self.client.clone()).create(&PostParams::default(), &new).await {
            Err(kube::Error::Api(error)) if error.is_already_exists() => Ok(false),
            made => made.map(|_: Namespace| true),
        }
    }

    /// Makes hosts, each after its Secret.
    ///
    /// # Errors
    /// The first answer that is none of success.
    pub async fn make(&self, made: &[Made]) -> anyhow::Result<()> {
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &self.namespace);
        stream::iter(made)
            .map(Ok::<_, anyhow::Error>)
            .try_for_each_concurrent(AT_ONCE, |one| {
                let secrets = secrets.clone();
                async move {
                    let name = one.host.name_any();
                    for secret in one.secrets() {
                        patiently(|| async { secrets.create(&PostParams::default(), secret).await })
                            .await
                            .with_context(|| format!("Secret {}", secret.name_any()))?;
                    }
                    patiently(|| async { self.hosts().create(&PostParams::default(), &one.host).await })
                        .await
                        .with_context(|| format!("host {name}"))?;
                    Ok(())
                }
            })
            .await
    }

    /// Takes the image from every host.
    ///
    /// # Errors
    /// The first answer that is none of success.
    pub async fn take_images(&self, names: &[String]) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({ "spec": { "image": null } }));
        let patch = &patch;
        self.each(names, |name| async move {
            patiently(|| async { self.hosts().patch(&name, &PatchParams::default(), patch).await }).await.map(drop)
        })
        .await
    }

    /// Deletes the hosts; their Secrets go with them or after them.
    ///
    /// # Errors
    /// The first answer that is none of success.
    pub async fn delete(&self, names: &[String]) -> anyhow::Result<()> {
        self.each(names, |name| async move {
            gone(patiently(|| async { self.hosts().delete(&name, &DeleteParams::default()).await }).await)
        })
        .await
    }

    /// Deletes the Secrets of hosts that are gone.
    ///
    /// # Errors
    /// The first answer that is none of success.
    pub async fn delete_secrets(&self, made: &[Made]) -> anyhow::Result<()> {
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &self.namespace);
        let names: Vec<String> = made.iter().flat_map(Made::secrets).map(ResourceExt::name_any).collect();
        self.each(&names, |name| {
            let secrets = secrets.clone();
            async move { gone(patiently(|| async { secrets.delete(&name, &DeleteParams::default()).await }).await) }
        })
        .await
    }

    /// Deletes the namespace.
    ///
    /// # Errors
    /// What the API answers.
    pub async fn delete_namespace(&self) -> anyhow::Result<()> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        Ok(gone(namespaces.delete(&self.namespace, &DeleteParams::default()).await)?)
    }

    async fn each<Doing>(&self, names: &[String], act: impl Fn(String) -> Doing) -> anyhow::Result<()>
    where
        Doing: Future<Output = kube::Result<()>>,
    {
        let act = &act;
        stream::iter(names)
            .map(Ok)
            .try_for_each_concurrent(AT_ONCE, |name| async move {
                act(name.clone()).await.with_context(|| format!("host {name}"))
            })
            .await
    }
}

fn gone<T>(deleted: kube::Result<T>) -> kube::Result<()> {
    match deleted {
        Err(kube::Error::Api(error)) if error.is_not_found() => Ok(()),
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
