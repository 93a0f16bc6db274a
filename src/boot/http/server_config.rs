//! What boot HTTP needs of a site: addresses, networks, the CA.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnetwork::Ipv4Network;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use sha2::{Digest, Sha256};

use super::*;
use crate::boot::Program;
use crate::hex::hex;
use crate::live::Live;

/// What every script needs of this site.
#[derive(Clone, Debug)]
pub struct BootServerConfig {
    pub(super) api_port: u16,
    pub(super) kernel_args: String,
    pub(super) ca_pem: String,
    pub(super) ca_sha256: String,
    pub(super) networks: BootNetworks,
    advertise: Option<IpAddr>,
    own: Live<Option<IpAddr>>,
    network_data: Option<Arc<dyn NetworkData>>,
    pub(super) refused: RefusalTeller,
    /// What nodes fetch as their agent.
    pub(super) program: Program,
}

/// Is told which host's machine was refused its boot, and why.
pub type TellRefusal = dyn Fn(&BootHost, &str) + Send + Sync;

#[derive(Clone)]
pub(super) struct RefusalTeller(pub Arc<TellRefusal>);

impl std::fmt::Debug for RefusalTeller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Refused")
    }
}

/// What boot HTTP knows of the networks that machines ask from.
#[derive(Clone, Default)]
pub struct BootNetworks {
    /// Networks where unknown machines report themselves.
    pub discovery: Live<Vec<Ipv4Network>>,
    /// Who holds an address. None: that is nowhere known, and scripts go to everybody.
    pub lease_owner: Option<Arc<dyn Fn(Ipv4Addr) -> LeaseOwner + Send + Sync>>,
    /// Which network card answers at an address. None: nobody looks.
    pub neighbours: Option<Neighbours>,
    /// Where machines are at home.
    pub site: Live<Vec<SiteNetwork>>,
    /// What DHCP does for a machine, in sentences.
    pub dhcp: Option<Arc<dyn Fn(MacAddress) -> String + Send + Sync>>,
}

impl std::fmt::Debug for BootNetworks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BootNetworks").field("discovery", &self.discovery).finish_non_exhaustive()
    }
}

/// Who holds an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseOwner {
    /// It is in none of the networks.
    Outside,
    /// Its network is known, and it is said that somebody else gives the addresses there.
    Elsewhere,
    /// This appliance gives the addresses there, and this one is nobody's.
    Nobody,
    /// This appliance leased it to the machine.
    Machine(MacAddress),
    /// This appliance leased it through a relay to a machine that has the other address by a lease that still runs, on a wire
    /// of the appliance's own. Through a relay anybody can be anybody.
    AlsoAt(MacAddress, Ipv4Addr),
}

/// The site's settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BootServerConfigError {
    /// `boot.kernel_args`.
    #[error(transparent)]
    KernelArgs(#[from] KernelArgsError),
    /// The CA's certificate is none.
    #[error("the CA certificate is not PEM: {0}")]
    Certificate(String),
}

impl BootServerConfig {
    /// A site whose API is at `api_port` on the address that a machine reached, with this CA (PEM) and these further
    /// kernel arguments.
    pub fn new(api_port: u16, ca_pem: &str, kernel_args: &str) -> Result<Self, BootServerConfigError> {
        check_kernel_args(kernel_args)?;
        let der = CertificateDer::from_pem_slice(ca_pem.as_bytes())
            .map_err(|error| BootServerConfigError::Certificate(error.to_string()))?;
        let ca_sha256 = hex(&Sha256::digest(&der));
        let networks = BootNetworks::default();
        let (kernel_args, ca_pem) = (kernel_args.into(), ca_pem.into());
        let refused = RefusalTeller(Arc::new(|_, _| {}));
        let (advertise, own, network_data, program) = (None, None.into(), None, Program::own());
        Ok(Self { api_port, kernel_args, ca_pem, ca_sha256, networks, advertise, own, network_data, refused, program })
    }

    /// The same site with what is known of its networks.
    #[must_use]
    pub fn with_networks(self, networks: BootNetworks) -> Self {
        Self { networks, ..self }
    }

    /// The same site with another program for nodes.
    #[cfg(test)]
    #[must_use]
    pub(super) fn with_program(self, program: Program) -> Self {
        Self { program, ..self }
    }

    /// Where hosts' network data comes from.
    pub fn with_network_data(self, source: Arc<dyn NetworkData>) -> Self {
        Self { network_data: Some(source), ..self }
    }

    /// Who is told when a host's machine is refused its boot.
    #[must_use]
    pub fn telling(self, refused: Arc<TellRefusal>) -> Self {
        Self { refused: RefusalTeller(refused), ..self }
    }

    /// The address that machines are told when they did not reach this appliance by themselves: `advertise` in any case,
    /// `own`, as it is then, when their network data does not lead to one.
    pub fn with_addresses(self, advertise: Option<IpAddr>, own: impl Into<Live<Option<IpAddr>>>) -> Self {
        Self { advertise, own: own.into(), ..self }
    }

    /// This appliance's address as a machine with this network reaches it. `local` is the one that its BMC reached.
    pub(in crate::boot) fn address_for(&self, plan: Option<&NetworkPlan>, local: IpAddr) -> IpAddr {
        let planned = || plan.and_then(|plan| plan.addresses().find_map(|one| local_address_to(one.ip())));
        self.advertise.or_else(planned).or(*self.own.get()).unwrap_or(local)
    }

    pub(in crate::boot) fn kernel_args(&self) -> &str {
        &self.kernel_args
    }

    pub(in crate::boot) fn api_port(&self) -> u16 {
        self.api_port
    }

    /// The network data of a host.
    pub(in crate::boot) async fn network_data(&self, host: &BootHost) -> Result<Option<Vec<u8>>, String> {
        match &self.network_data {
            Some(source) => source.for_host(&host.namespace, &host.name).await,
            None => Ok(None),
        }
    }

    pub(in crate::boot) fn networks(&self) -> &BootNetworks {
        &self.networks
    }

    pub(in crate::boot) fn discovers(&self, peer: IpAddr) -> bool {
        let networks = self.networks.discovery.get();
        matches!(peer.to_canonical(), IpAddr::V4(peer) if networks.iter().any(|network| network.contains(peer)))
    }

    /// What a token for this machine is bound to; and the address that it has besides on a wire of the appliance's own.
    ///
    /// # Errors
    ///
    /// Why the machine cannot be the one that asks.
    pub(in crate::boot) fn binding(
        &self,
        mac: MacAddress,
        conn: ConnInfo,
    ) -> Result<(TokenBinding, Option<Ipv4Addr>), String> {
        let peer = conn.peer.ip().to_canonical();
        if conn.same() {
            // A program on this box, which may ask for somebody else: good for who is on this box, too.
            return match peer {
                IpAddr::V4(peer) => Ok((TokenBinding::Leased(peer), None)),
                IpAddr::V6(_) => Err(format!("{peer} asks for the script of {mac} by IPv6: ask by IPv4")),
            };
        }
        let Some(lease_owner) = &self.networks.lease_owner else { return Ok((TokenBinding::Nowhere, None)) };
        let owner = match peer {
            IpAddr::V4(peer) => lease_owner(peer),
            // DHCP is of IPv4: no machine learns its script's address over the other.
            IpAddr::V6(_) => LeaseOwner::Outside,
        };
        match (owner, peer) {
            (LeaseOwner::Elsewhere, IpAddr::V4(peer)) => Ok((TokenBinding::First(peer), None)),
            (LeaseOwner::Machine(owner), IpAddr::V4(peer)) if owner == mac => Ok((TokenBinding::Leased(peer), None)),
            (LeaseOwner::AlsoAt(owner, other), IpAddr::V4(peer)) if owner == mac => {
                Ok((TokenBinding::Leased(peer), Some(other)))
            }
            (LeaseOwner::Machine(_) | LeaseOwner::AlsoAt(..) | LeaseOwner::Nobody | LeaseOwner::Elsewhere, _) => {
                Err(format!("{peer} asks for the script of {mac}, which did not get that address here"))
            }
            (LeaseOwner::Outside, _) => Err(format!(
                "{peer} asks for the script of {mac} and is in no network of slipway.toml or the API: where another server gives the addresses, a network with mode proxy or off says so"
            )),
        }
    }

    /// SHA-256 of the CA's certificate (DER), hex: what scripts carry and agents pin.
    pub fn ca_sha256(&self) -> &str {
        &self.ca_sha256
    }
}
