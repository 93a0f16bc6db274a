//! Boot URLs for BMCs.
//!
//! What a BMC is told when its machine boots from a medium or a URL: an address of this appliance that it reaches, and
//! a name that stands for this one boot.

pub mod data_image;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use crate::api::metal3::BareMetalHost;
use crate::apiserver::subdomain;
use crate::bmc::locate::locate;
use crate::bmc::{BmcAddress, BmcError};
use crate::boot::media::{iso_path, local_address_to};
use crate::boot::{BootFiles, BootTokens, NetworkData, live, script};
use crate::live::Live;
use crate::network_data::NetworkPlan;

/// How long the API may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes the URLs of media. Cheap to clone.
#[derive(Clone)]
pub struct Media {
    /// Tickets come from here.
    pub tokens: Arc<BootTokens>,
    /// The ISO is here.
    pub files: BootFiles,
    /// Port of boot HTTP.
    pub port: u16,
    /// This appliance's address as BMCs reach it; found by routing when unset.
    pub advertise: Option<IpAddr>,
    /// This appliance's addresses as machines reach it.
    pub machines: ToMachines,
}

/// This appliance's addresses as machines reach it, whose network is often another than their BMCs'.
#[derive(Clone, Debug, Default)]
pub struct ToMachines {
    /// In any case this one.
    pub advertise: Option<IpAddr>,
    /// This one, as it is then, where nothing leads to a better one.
    pub own: Live<Option<IpAddr>>,
}

/// Who fetches a medium.
pub(in crate::host) enum MediumFetcher<'a> {
    /// The BMC, for its virtual drive.
    Bmc,
    /// The machine's firmware; its network as far as that is known.
    Firmware(Option<&'a NetworkPlan>),
}

impl Media {
    /// The URL of the ISO for one boot of a host's ramdisk.
    ///
    /// # Errors
    /// There is no ISO, or no way to the BMC; the text says what to do.
    pub(in crate::host) async fn url(
        &self,
        uid: &str,
        generation: i64,
        bmc: &BmcAddress,
        fetcher: &MediumFetcher<'_>,
    ) -> Result<String, BmcError> {
        let refuse = |reason: String| BmcError::Refused(reason);
        let files = self.files.clone();
        let layout = tokio::task::spawn_blocking(move || files.iso_layout()).await;
        match layout {
            Ok(Ok(Some(_))) => {}
            Ok(Ok(None)) => {
                return Err(refuse(
                    "the appliance has no ISO to boot from: install grub-efi-amd64-bin there and run slipway ramdisk build"
                        .into(),
                ));
            }
            Ok(Err(error)) => return Err(refuse(format!("the appliance's ISO cannot be read: {error}"))),
            Err(error) => return Err(refuse(format!("the appliance's ISO cannot be read: {error}"))),
        }
        let ticket = self.tokens.mint_media(uid, generation).map_err(|error| refuse(error.to_string()))?;
        Ok(format!("{}{}", self.base(bmc, fetcher).await?, iso_path(&ticket)))
    }

    /// The URL of a live ISO of the library.
    ///
    /// # Errors
    /// There is no way to the BMC.
    pub(in crate::host) async fn live_url(
        &self,
        digest: &str,
        bmc: &BmcAddress,
        fetcher: &MediumFetcher<'_>,
    ) -> Result<String, BmcError> {
        Ok(format!("{}{}", self.base(bmc, fetcher).await?, live::path(digest)))
    }

    /// Boot HTTP as who fetches reaches it.
    async fn base(&self, bmc: &BmcAddress, fetcher: &MediumFetcher<'_>) -> Result<String, BmcError> {
        let to_machine = match fetcher {
            MediumFetcher::Bmc => None,
            MediumFetcher::Firmware(plan) => {
                let planned = || plan.and_then(|plan| plan.addresses().find_map(|one| local_address_to(one.ip())));
                self.machines.advertise.or_else(planned).or(*self.machines.own.get())
            }
        };
        let own = match to_machine.or(self.advertise) {
            Some(address) => address,
            None => local_address_to(resolve(bmc).await?).ok_or_else(|| BmcError::Unreachable {
                peer: bmc.peer(),
                reason: "no route to it, so no address of this appliance that it could fetch from".into(),
            })?,
        };
        Ok(script::base_url((own, self.port).into()))
    }
}

/// Where the BMC is that is told the URL.
async fn resolve(bmc: &BmcAddress) -> Result<IpAddr, BmcError> {
    let found = locate(bmc, None).await?;
    let none = || BmcError::Unreachable { peer: bmc.peer(), reason: "its name has no address".into() };
    found.first().map(|place| place.ip()).ok_or_else(none)
}

/// `spec.preprovisioningNetworkDataName` of hosts, read from the API when it is needed and kept nowhere.
pub struct HostNetworkData(pub Client);

impl std::fmt::Debug for HostNetworkData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostNetworkData").finish_non_exhaustive()
    }
}

#[async_trait]
impl NetworkData for HostNetworkData {
    async fn for_host(&self, namespace: &str, name: &str) -> Result<Option<Vec<u8>>, String> {
        let late = |_| "the API did not answer in time".to_owned();
        tokio::time::timeout(PATIENCE, network_data(&self.0, namespace, name)).await.map_err(late)?
    }
}

/// The network data of a host's ramdisk, fit for use.
pub(in crate::host) async fn network_data(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<Vec<u8>>, String> {
    let host = Api::<BareMetalHost>::namespaced(client.clone(), namespace).get(name).await;
    let host = host.map_err(|error| error.to_string())?;
    let Some(secret) = host.spec.preprovisioning_network_data_name.filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    if !subdomain(&secret).is_empty() {
        // It becomes part of a path, and the API server may have let anything through.
        return Err("spec.preprovisioningNetworkDataName is no name that a Secret can have".into());
    }
    let found = Api::<Secret>::namespaced(client.clone(), namespace).get_opt(&secret).await;
    let found = found.map_err(|error| error.to_string())?;
    let found = found.ok_or_else(|| {
        format!("there is no secret {secret} in namespace {namespace} (spec.preprovisioningNetworkDataName)")
    })?;
    usable(&secret, &found)
}

/// The content under `networkData`, else under `value`, as config drives take it.
fn usable(name: &str, secret: &Secret) -> Result<Option<Vec<u8>>, String> {
    let content = secret.data.as_ref().and_then(|data| data.get("networkData").or_else(|| data.get("value")));
    let Some(content) = content else { return Err(format!("secret {name} has no key networkData")) };
    match NetworkPlan::parse(&content.0) {
        Ok(Some(_)) => Ok(Some(content.0.clone())),
        Ok(None) => Ok(None),
        Err(error) => Err(format!("secret {name}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn network_data_is_checked_before_any_machine_sees_it() {
        const GOOD: &str = r#"{"links":[{"id":"a","type":"phy","ethernet_mac_address":"52:54:00:00:00:01"}],
            "networks":[{"id":"n","type":"ipv4","link":"a","ip_address":"10.0.0.5/24"}]}"#;
        let secret = |key: &str, text: &str| Secret {
            data: Some([(key.to_owned(), ByteString(text.as_bytes().to_vec()))].into()),
            ..Secret::default()
        };
        for key in ["networkData", "value"] {
            assert_eq!(usable("s", &secret(key, GOOD)), Ok(Some(GOOD.as_bytes().to_vec())));
        }
        assert_eq!(usable("s", &secret("networkData", " ")), Ok(None));
        let error = usable("s", &secret("networkData", "{\"links\": 7}")).expect_err("refused");
        assert_eq!(error, "secret s: network data: links must be a list");
        assert_eq!(usable("s", &Secret::default()), Err("secret s has no key networkData".into()));
    }
}
