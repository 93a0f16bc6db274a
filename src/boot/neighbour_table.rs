//! Room in the kernel's neighbour tables (arp(7), `gc_thresh3`; RFC 4861).
//!
//! The kernel makes an entry for each address that asks it by ARP or by neighbour discovery, also for those that somebody makes up, keeps each for five
//! seconds at least, and has 1024 at most unless it is told otherwise. When they are all taken, nothing can be sent to a machine that
//! has none, so one network card that asks 300 times a second keeps a rack from booting. So it is told otherwise.

use std::io;

use futures::{StreamExt, TryStreamExt};
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::neighbour_table::{NeighbourTableAttribute, NeighbourTableMessage};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::{Handle, new_connection};
use tracing::{info, warn};

/// Entries that there should be room for: 65,536, some 25 MiB of the kernel's memory when they are all taken. Who takes all has to
/// send 13,000 packets a second.
const WANTED: u32 = 1 << 16;

/// Most that is asked for, for networks with ever so many addresses.
const MOST: u32 = 1 << 18;

/// A table of the kernel's.
#[derive(Clone, Copy, Debug)]
struct KernelTable {
    name: &'static str,
    family: AddressFamily,
    /// Where sysctl has it.
    sysctl: &'static str,
}

/// The one of IPv4, and that of IPv6: through a link that has no more than its link-local address it is filled for all links.
const TABLES: [KernelTable; 2] = [
    KernelTable { name: "arp_cache", family: AddressFamily::Inet, sysctl: "net.ipv4.neigh.default" },
    KernelTable { name: "ndisc_cache", family: AddressFamily::Inet6, sysctl: "net.ipv6.neigh.default" },
];

/// Has the kernel make room, for two entries an address of these networks at least, and says in the log when it has not that much
/// in the end.
pub async fn make_room(addresses: u64) {
    let wanted = wanted(addresses);
    for table in TABLES {
        match enlarge(table, wanted).await {
            Ok(before) if before >= wanted => {}
            Ok(before) => info!(
                table = table.name,
                before,
                now = wanted,
                "the kernel's neighbour table (gc_thresh3) was enlarged"
            ),
            Err(error) => warn!(
                table = table.name,
                %error,
                "the kernel's neighbour table is small, and cannot be enlarged from here: a flood of ARP or neighbour discovery can keep machines from booting; on the box run `sysctl -w {name}.gc_thresh2={} {name}.gc_thresh3={wanted}`",
                wanted / 2,
                name = table.sysctl
            ),
        }
    }
}

fn wanted(addresses: u64) -> u32 {
    u32::try_from(addresses.saturating_mul(2)).unwrap_or(MOST).clamp(WANTED, MOST)
}

/// Gives the table room for so many entries, unless it has more; says how many it had.
async fn enlarge(table: KernelTable, wanted: u32) -> io::Result<u32> {
    let (connection, handle, _) = new_connection()?;
    let connection = tokio::spawn(connection);
    let outcome = async {
        let before = size(&handle, table).await?;
        if before < wanted {
            tell(&handle, table, wanted).await?;
            let now = size(&handle, table).await?;
            if now < wanted {
                return Err(io::Error::other(format!("it has {now} entries all the same")));
            }
        }
        Ok(before)
    }
    .await;
    connection.abort();
    outcome
}

/// How many entries it may have.
async fn size(handle: &Handle, table: KernelTable) -> io::Result<u32> {
    let answers = send(handle, RouteNetlinkMessage::GetNeighbourTable(message(table, Vec::new())), NLM_F_DUMP).await?;
    let tables = answers.into_iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewNeighbourTable(table) => Some(table.attributes),
        _ => None,
    });
    let own = tables.filter(|about| about.contains(&NeighbourTableAttribute::Name(table.name.to_owned())));
    let size = own.flatten().find_map(|one| match one {
        NeighbourTableAttribute::Threshold3(size) => Some(size),
        _ => None,
    });
    size.ok_or_else(|| io::Error::other("the kernel does not say how large it is"))
}

/// Sets how many it may have; of half as many it drops the old ones.
async fn tell(handle: &Handle, table: KernelTable, size: u32) -> io::Result<()> {
    let attributes = vec![
        NeighbourTableAttribute::Name(table.name.to_owned()),
        NeighbourTableAttribute::Threshold2(size / 2),
        NeighbourTableAttribute::Threshold3(size),
    ];
    let order = message(table, attributes);
    send(handle, RouteNetlinkMessage::SetNeighbourTable(order), NLM_F_ACK).await.map(drop)
}

fn message(table: KernelTable, attributes: Vec<NeighbourTableAttribute>) -> NeighbourTableMessage {
    let mut message = NeighbourTableMessage::default();
    message.header.family = table.family;
    message.attributes = attributes;
    message
}

/// All that the kernel answers.
async fn send(handle: &Handle, message: RouteNetlinkMessage, how: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
    let mut request = NetlinkMessage::from(message);
    request.header.flags = NLM_F_REQUEST | how;
    let answers = handle.clone().request(request).map_err(io::Error::other)?;
    let answers = answers.map(|answer| match answer.payload {
        NetlinkPayload::InnerMessage(answer) => Ok(Some(answer)),
        NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
        _ => Ok(None),
    });
    answers.try_filter_map(async |answer| Ok(answer)).try_collect().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_every_address_twice() {
        for (addresses, expected) in
            [(0, 65_536), (254, 65_536), (65_534, 131_068), (1 << 24, 262_144), (u64::MAX, 262_144)]
        {
            assert_eq!(wanted(addresses), expected, "{addresses}");
        }
    }

    #[tokio::test]
    async fn the_kernel_says_how_large_it_is() {
        let (connection, handle, _) = new_connection().unwrap();
        tokio::spawn(connection);
        for table in TABLES {
            let size = size(&handle, table).await.unwrap();
            assert!(size >= 64, "{table:?} {size}");
            // As it is, so nobody needs a right to change it.
            assert_eq!(enlarge(table, size).await.unwrap(), size);
        }
    }
}
