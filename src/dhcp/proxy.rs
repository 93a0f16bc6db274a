//! Boot information beside another DHCP server's addresses (PXE 2.1 section 2.2.3).

use dhcproto::v4::MessageType;

use crate::boot::ClientKind;

use super::client;
use super::outcome::{Note, Outcome, Reply, Silence, To};
use super::packet::Request;
use super::reply::Answer;
use super::respond::{Arrival, Ground, Port, boot_answer, client_at};

/// Answers firmware and iPXE with what to boot, and nobody else with anything.
pub(super) fn respond(request: &Request<'_>, arrival: Arrival, ground: Ground<'_>) -> Outcome {
    if client::kind(request) == ClientKind::System {
        return Outcome::silent(Silence::NotBooting);
    }
    let kind = match (request.kind, arrival.port) {
        (MessageType::Discover, Port::Server) => MessageType::Offer,
        (MessageType::Request | MessageType::Inform, Port::Proxy) | (MessageType::Inform, Port::Server) => {
            MessageType::Ack
        }
        (other, _) => return Outcome::silent(Silence::Kind(other)),
    };
    let (Some(netboot), Some(text)) = boot_answer(request, ground) else {
        return Outcome::silent(Silence::LocalDisk);
    };
    let source = *arrival.source.ip();
    let to = if let Some(relay) = request.relay_address(arrival.source.port()) {
        To::Address(relay)
    } else if ground.network.subnet.contains(source) {
        client_at(request, ground.network, arrival.source)
    } else {
        // The client has no address, and this server does not know which one it will get.
        To::Broadcast
    };
    let answer = Answer { netboot: Some(&netboot), parameters: false, ..Answer::new(kind) };
    let message = answer.encode(request, ground.network);
    Outcome { reply: Some(Reply { message, to }), writes: Vec::new(), note: Note::BootOnly(text), twin: None }
}
