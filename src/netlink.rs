//! Single questions to the kernel about its networks (rtnetlink(7)).

use std::collections::HashMap;
use std::hash::Hash;
use std::io;
use std::time::{Duration, Instant};

use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Longest answer that is read, in bytes: of one neighbour or one route, which take some hundred.
const MAX_ANSWER: usize = 4096;

/// How long an answer of the kernel's is believed where each packet or request asks.
const FRESH: Duration = Duration::from_secs(1);

/// Answers remembered; those beyond are asked for each time.
const MOST_REMEMBERED: usize = 4096;

/// What the kernel said of late: asking it takes as long as a small request.
#[derive(Debug)]
pub struct Remembered<K, V>(HashMap<K, (Instant, V)>);

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash, V: Copy> Remembered<K, V> {
    /// What was said within the last second.
    pub fn get(&self, key: &K, now: Instant) -> Option<V> {
        let (since, value) = self.0.get(key)?;
        (now.saturating_duration_since(*since) < FRESH).then_some(*value)
    }

    /// Remembers it, if there is a place.
    pub fn put(&mut self, key: K, value: V, now: Instant) {
        if self.0.len() >= MOST_REMEMBERED {
            self.0.retain(|_, (since, _)| now.saturating_duration_since(*since) < FRESH);
        }
        if self.0.len() < MOST_REMEMBERED {
            self.0.insert(key, (now, value));
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_remembered_for_a_second_and_no_more_than_so_many_are() {
        let (mut remembered, begin) = (Remembered::default(), Instant::now());
        remembered.put(0, None, begin);
        remembered.put(1, Some('a'), begin);
        for (key, after, wanted) in [(0, 0, Some(None)), (1, 999, Some(Some('a'))), (1, 1000, None), (2, 0, None)] {
            let known = remembered.get(&key, begin + Duration::from_millis(after));
            assert_eq!(known, wanted, "{key} after {after} ms");
        }
        for key in 0..2 * MOST_REMEMBERED {
            remembered.put(key, None, begin);
        }
        assert_eq!(remembered.0.len(), MOST_REMEMBERED);
        remembered.put(7, Some('b'), begin + FRESH);
        assert_eq!((remembered.0.len(), remembered.get(&7, begin + FRESH)), (1, Some(Some('b'))));
    }
}
