//! What is known of a host when nodes are given hosts: a slim view of a BareMetalHost.

use kube::{Resource, ResourceExt};

use crate::api::MacAddress;
use crate::api::bpa::{GROUP, Provisioning};
use crate::api::metal3::{BareMetalHost, ObjectReference};
use crate::cluster::hosts::choose::CandidateHost;

/// Which node of its consumer a host is.
pub const ANNOTATION_NODE: &str = "bpa.akraino.org/node";
/// The UID of the Provisioning that had a host's system installed.
pub const ANNOTATION_INSTALLED: &str = "bpa.akraino.org/installed-by";
/// Cards of a host that are looked at.
const MOST_CARDS: usize = 64;

/// A host.
#[derive(Clone, Debug)]
pub struct RackHost {
    /// What every choice looks at.
    pub view: CandidateHost,
    /// The card that it boots from.
    pub boot: Option<MacAddress>,
    /// All that inspection found.
    pub cards: Vec<MacAddress>,
    /// The Provisioning of its namespace that has it, and which node of it the host is.
    pub seat: Option<(String, String)>,
    /// Secret with its user data, of its own namespace.
    pub user_data: Option<String>,
    /// What is leased to its cards, that of the one that it boots from first.
    pub leases: Vec<(Option<MacAddress>, String)>,
    /// When its system was begun to be installed last, in seconds since 1970.
    pub installed_at: Option<i64>,
    /// The UID of the Provisioning that had its system installed.
    pub installed_by: Option<String>,
}

impl From<&BareMetalHost> for RackHost {
    fn from(host: &BareMetalHost) -> Self {
        let namespace = host.namespace();
        let status = host.status.as_ref();
        let hardware = status.and_then(|status| status.hardware.as_ref());
        let cards = hardware.map(|hardware| hardware.nics.as_slice()).unwrap_or_default();
        let leases = status.map(|status| status.addresses.as_slice()).unwrap_or_default();
        let leases = &leases[..leases.len().min(MOST_CARDS)];
        let node = host.annotations().get(ANNOTATION_NODE).filter(|node| node.len() <= 253).cloned();
        let owner = host.spec.consumer_ref.as_ref().and_then(|one| owner(one, namespace.as_deref()));
        let user_data = host.spec.user_data.as_ref();
        let is_near = user_data.is_some_and(|one| one.namespace.is_none() || one.namespace == namespace);
        Self {
            view: CandidateHost::from(host),
            boot: host.spec.boot_mac_address.as_ref().and_then(|mac| mac.parse().ok()),
            cards: cards.iter().filter_map(|card| card.mac.parse().ok()).take(MOST_CARDS).collect(),
            seat: owner.map(|owner| (owner, node.unwrap_or_default())),
            user_data: user_data.filter(|_| is_near).and_then(|one| one.name.clone()),
            installed_at: status
                .and_then(|status| status.operation_history.provision.start.as_ref())
                .map(|start| start.0.as_second()),
            installed_by: host.annotations().get(ANNOTATION_INSTALLED).filter(|uid| uid.len() <= 64).cloned(),
            leases: leases.iter().map(|one| (one.mac_address.parse().ok(), one.address.clone())).collect(),
        }
    }
}

/// The Provisioning of this namespace that a reference means.
fn owner(reference: &ObjectReference, namespace: Option<&str>) -> Option<String> {
    let group = reference.api_version.as_deref().unwrap_or_default().split('/').next();
    let kind = Provisioning::kind(&());
    let is_near = reference.namespace.is_none() || reference.namespace.as_deref() == namespace;
    let is_ours = group == Some(GROUP) && reference.kind.as_deref() == Some(&*kind) && is_near;
    reference.name.clone().filter(|_| is_ours)
}

impl RackHost {
    /// Its name.
    pub fn name(&self) -> &str {
        self.view.metadata.name.as_deref().unwrap_or_default()
    }

    /// What is leased to its card with this MAC address; without one, to the first card that has a lease.
    pub fn address(&self, card: Option<MacAddress>) -> Option<&str> {
        let mut leases = self.leases.iter();
        let found = leases.find(|(of, _)| card.is_none() || *of == card);
        found.map(|(_, address)| address.as_str())
    }

    /// The card that has this lease.
    pub fn card_at(&self, address: &str) -> Option<MacAddress> {
        self.leases.iter().find(|(_, leased)| leased == address)?.0
    }

    /// Whether a Provisioning has it.
    pub fn is_of(&self, owner: &str) -> bool {
        self.seat.as_ref().is_some_and(|(of, _)| of == owner)
    }
}
