//! Boot information beside another DHCP server's addresses (PXE 2.1 section 2.2.3).

use dhcproto::v4::MessageType;

use crate::boot::ClientKind;

use super::client;
use super::outcome::{Destination, DhcpReply, Disposition, DropReason, MessageOutcome};
use super::packet::DhcpRequest;
use super::reply::ReplyContent;
use super::respond::{NetworkContext, PacketInfo, Port, boot_answer, client_at};

/// Answers firmware and iPXE with what to boot, and nobody else with anything.
pub(super) fn respond(
    request: &DhcpRequest<'_>,
    packet_info: PacketInfo,
    context: NetworkContext<'_>,
) -> MessageOutcome {
    if client::kind(request) == ClientKind::System {
        return MessageOutcome::dropped(DropReason::NotBooting);
    }
    let kind = match (request.kind, packet_info.port) {
        (MessageType::Discover, Port::Server) => MessageType::Offer,
        (MessageType::Request | MessageType::Inform, Port::Proxy) | (MessageType::Inform, Port::Server) => {
            MessageType::Ack
        }
        (other, _) => return MessageOutcome::dropped(DropReason::Kind(other)),
    };
    let (Some(netboot), Some(text)) = boot_answer(request, context) else {
        return MessageOutcome::dropped(DropReason::LocalDisk);
    };
    let source = *packet_info.source.ip();
    let to = if let Some(relay) = request.relay_address(packet_info.source.port()) {
        Destination::Address(relay)
    } else if context.network.subnet.contains(source) {
        client_at(request, context.network, packet_info.source)
    } else {
        // The client has no address, and this server does not know which one it will get.
        Destination::Broadcast
    };
    let answer = ReplyContent { netboot: Some(&netboot), parameters: false, ..ReplyContent::new(kind) };
    let message = answer.encode(request, context.network);
    MessageOutcome {
        reply: Some(DhcpReply { message, to }),
        writes: Vec::new(),
        disposition: Disposition::BootOnly(text),
        duplicate_mac: None,
    }
}
