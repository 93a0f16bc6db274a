//! Single questions to the kernel about its networks (rtnetlink(7)).

use std::io;

use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Longest answer that is read, in bytes: of one neighbour or one route, which take some hundred.
const MAX_ANSWER: usize = 4096;

/// Asks for one entry. The kernel answers within the call that asks, so nobody waits here. Nothing when it has no such entry.
///
/// # Errors
///
/// When there is no socket, or no answer that can be read.
pub fn ask(question: RouteNetlinkMessage) -> io::Result<Option<RouteNetlinkMessage>> {
    let mut request = NetlinkMessage::from(question);
    request.header.flags = NLM_F_REQUEST;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.set_non_blocking(true)?;
    socket.send(&bytes, 0)?;
    let mut answer = Vec::with_capacity(MAX_ANSWER);
    socket.recv(&mut answer, 0)?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).map_err(io::Error::other)?;
    match answer.payload {
        NetlinkPayload::InnerMessage(entry) => Ok(Some(entry)),
        _ => Ok(None),
    }
}
