//! Static network configuration: applies the plan of the network data.

use std::collections::BTreeMap;
use std::time::Duration;

use super::link::{self, EthernetInterface};
use super::nic::{self, NicContext};
use super::{NicStatus, POLL};
use crate::agent::drivers;
use crate::api::MacAddress;
use crate::network_data::{Link, LinkType, NetworkPlan};

/// Metric of the first default route; later ones come after it.
const METRIC: u32 = 100;
/// How often something that does not come right is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// What the plan makes of a network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NicRole {
    /// The plan does not name it: it is brought up to hear its switch, and asks nobody for an address.
    Unused,
    /// It asks for an address.
    Dhcp,
    /// The plan's own task sees to it.
    Planned,
}

/// What the plan makes of the card with this address.
pub(super) fn role(plan: &NetworkPlan, mac: MacAddress) -> NicRole {
    let named = plan.links.iter().position(|link| link.kind == LinkType::Card(mac));
    match named.map(|at| &plan.links[at]) {
        None => NicRole::Unused,
        Some(link) if link.dhcp && link.addresses.is_empty() => NicRole::Dhcp,
        Some(_) => NicRole::Planned,
    }
}

/// Makes the plan true, link by link; goes on trying what fails until the process ends.
pub(super) async fn run(context: NicContext, plan: NetworkPlan) {
    let modules: Vec<&str> = plan
        .links
        .iter()
        .filter_map(|link| match link.kind {
            LinkType::Bond { .. } => Some("bonding"),
            LinkType::Vlan { .. } => Some("8021q"),
            LinkType::Card(_) => None,
        })
        .collect();
    if !modules.is_empty() {
        let root = context.wanted.root.clone();
        let modules: Vec<String> = modules.into_iter().map(str::to_owned).collect();
        let load = move || drivers::load(&root, &modules.iter().map(String::as_str).collect::<Vec<_>>());
        if let Err(error) = tokio::task::spawn_blocking(load).await {
            tracing::warn!(%error, "cannot load the drivers for bonds and VLANs");
        }
    }
    let mut made: BTreeMap<usize, EthernetInterface> = BTreeMap::new();
    for at in 0..plan.links.len() {
        let link = &plan.links[at];
        let interface = loop {
            match make(&context, &plan, at, &made).await {
                Ok(interface) => break interface,
                Err(reason) => {
                    tracing::warn!(link = link.id, reason, "cannot set up a link of the network data yet");
                    tokio::time::sleep(RETRY).await;
                }
            }
        };
        made.insert(at, interface.clone());
        if matches!(link.kind, LinkType::Card(mac) if role(&plan, mac) != NicRole::Planned) {
            continue;
        }
        tokio::spawn(hold(context.clone(), link.clone(), interface, METRIC + at as u32));
    }
}

/// The interface of a link, made or found.
async fn make(
    context: &NicContext,
    plan: &NetworkPlan,
    at: usize,
    made: &BTreeMap<usize, EthernetInterface>,
) -> Result<EthernetInterface, String> {
    let link = &plan.links[at];
    let say = |error: rtnetlink::Error| error.to_string();
    let name = match &link.kind {
        LinkType::Card(mac) => return Ok(card(context, *mac).await),
        LinkType::Bond { .. } => format!("bond{at}"),
        LinkType::Vlan { id, .. } => format!("vlan{at}.{id}"),
    };
    if link::index(&name).is_none() {
        match &link.kind {
            LinkType::Bond { mode, miimon, hash, mac, .. } => {
                context.links.add_bond(&name, *mode, *miimon, *hash, *mac).await.map_err(say)?;
            }
            LinkType::Vlan { on, id, mac } => {
                let under = made.get(on).ok_or("the link that it is on is not there")?;
                context.links.add_vlan(&name, under.index, *id, *mac).await.map_err(say)?;
            }
            LinkType::Card(_) => {}
        }
    }
    let index = link::index(&name).ok_or_else(|| format!("{name} was made and is not there"))?;
    if let LinkType::Bond { of, .. } = &link.kind {
        for member in of.iter().filter_map(|at| made.get(at)) {
            context.links.enslave(member.index, index).await.map_err(say)?;
        }
    }
    context.links.up(index).await.map_err(say)?;
    let mac = link::address(&name).unwrap_or(MacAddress([0; 6]));
    let driver = if matches!(link.kind, LinkType::Bond { .. }) { "bonding" } else { "8021q" };
    tracing::info!(interface = name, link = link.id, "made an interface for a link of the network data");
    Ok(EthernetInterface { name, index, mac, carrier: false, driver: driver.into() })
}

/// Waits for a card's driver.
async fn card(context: &NicContext, mac: MacAddress) -> EthernetInterface {
    loop {
        if let Some(found) = link::interfaces(&context.wanted.root).into_iter().find(|one| one.mac == mac) {
            return found;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Gives an interface its addresses and routes when it has a link, and says how it is.
async fn hold(context: NicContext, link: Link, interface: EthernetInterface, metric: u32) {
    context.tell(&interface, NicStatus::NoLink);
    if let Some(mtu) = link.mtu
        && let Err(error) = context.links.set_mtu(interface.index, mtu).await
    {
        tracing::warn!(interface = interface.name, mtu, %error, "cannot set the MTU");
    }
    if link.dhcp {
        // Beside its fixed addresses.
        let (context, interface) = (context.clone(), interface.clone());
        tokio::spawn(async move { nic::ask(&context, &interface).await });
    }
    if link.addresses.is_empty() {
        return;
    }
    let mut set = false;
    loop {
        let carrier = context.carrier(&interface);
        if carrier && !set {
            match apply(&context, &link, &interface, metric).await {
                Ok(()) => {
                    let shown: Vec<String> = link.addresses.iter().map(ToString::to_string).collect();
                    tracing::info!(
                        interface = interface.name,
                        addresses = shown.join(", "),
                        "addresses set by network data"
                    );
                    set = true;
                }
                Err(error) => {
                    let reason = format!("network data: {error}");
                    tracing::warn!(interface = interface.name, %error, "cannot set addresses by network data");
                    context.tell(&interface, NicStatus::Failed(reason));
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
        }
        let status = if carrier { NicStatus::Fixed(link.addresses.clone()) } else { NicStatus::NoLink };
        context.tell(&interface, status);
        tokio::time::sleep(POLL).await;
    }
}

async fn apply(
    context: &NicContext,
    link: &Link,
    interface: &EthernetInterface,
    metric: u32,
) -> Result<(), rtnetlink::Error> {
    for address in &link.addresses {
        context.links.add_address(interface.index, *address).await?;
    }
    for route in &link.routes {
        context.links.add_route(interface.index, route, metric).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_asks_for_an_address_only_when_the_plan_says_so() {
        let text = r#"{"links": [
            {"id": "a", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:01"},
            {"id": "b", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:02"},
            {"id": "c", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:03"},
            {"id": "v", "type": "vlan", "vlan_link": "c", "vlan_id": 5}],
            "networks": [{"type": "ipv4_dhcp", "link": "a"}, {"type": "ipv4", "link": "b", "ip_address": "10.0.0.2/24"},
            {"type": "ipv4_dhcp", "link": "v"}]}"#;
        let plan = NetworkPlan::parse(text.as_bytes()).expect("plan").expect("some");
        let roles: Vec<NicRole> = (1..=4).map(|last| role(&plan, MacAddress([0x52, 0x54, 0, 0, 0, last]))).collect();
        assert_eq!(roles, [NicRole::Dhcp, NicRole::Planned, NicRole::Planned, NicRole::Unused]);
    }
}
