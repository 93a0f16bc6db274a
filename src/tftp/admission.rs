//! Which requests become transfers.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

/// Transfers at once, over all clients. A request beyond it is dropped: firmware asks again after some seconds.
pub const MAX_TRANSFERS: usize = 256;
/// Transfers at once for one address. A machine has a few network ports; nothing boots more than that at once.
pub const MAX_PER_ADDRESS: usize = 16;

/// What to do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// A new transfer. It is in the table.
    Start,
    /// The client repeats the request of a transfer that it has not answered yet: send the first packet again.
    Repeat,
    /// The client begins anew from the port of a transfer that was under way: end that one. The new one is in the table.
    Replace,
    /// Too many transfers.
    Busy(Busy),
}

/// Which bound was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    /// [`MAX_TRANSFERS`].
    #[error("{MAX_TRANSFERS} transfers at once are the limit")]
    Server,
    /// [`MAX_PER_ADDRESS`].
    #[error("{MAX_PER_ADDRESS} transfers at once are the limit of one address")]
    Address,
}

/// Transfers by client.
#[derive(Debug, Default)]
pub struct Table {
    clients: HashMap<SocketAddr, Entry>,
    addresses: HashMap<IpAddr, usize>,
    last: u64,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    request: Box<[u8]>,
}

impl Table {
    /// Judges a request. `under_way` says whether the client has answered in its present transfer.
    pub fn admit(&mut self, client: SocketAddr, request: &[u8], under_way: bool) -> Admission {
        if let Some(entry) = self.clients.get_mut(&client) {
            if !under_way && *entry.request == *request {
                return Admission::Repeat;
            }
            self.last += 1;
            *entry = Entry { id: self.last, request: request.into() };
            return Admission::Replace;
        }
        if self.clients.len() >= MAX_TRANSFERS {
            return Admission::Busy(Busy::Server);
        }
        let of_address = self.addresses.entry(client.ip()).or_default();
        if *of_address >= MAX_PER_ADDRESS {
            return Admission::Busy(Busy::Address);
        }
        *of_address += 1;
        self.last += 1;
        self.clients.insert(client, Entry { id: self.last, request: request.into() });
        Admission::Start
    }

    /// Number of the client's present transfer.
    pub fn id(&self, client: SocketAddr) -> Option<u64> {
        self.clients.get(&client).map(|entry| entry.id)
    }

    /// A transfer is over. Returns whether it was the client's present one.
    pub fn finish(&mut self, client: SocketAddr, id: u64) -> bool {
        if self.id(client) != Some(id) {
            return false;
        }
        self.clients.remove(&client);
        if let Some(count) = self.addresses.get_mut(&client.ip()) {
            *count -= 1;
            if *count == 0 {
                self.addresses.remove(&client.ip());
            }
        }
        true
    }

    /// Transfers in the table.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }
}

/// At most so many of something in each stretch of time, so that hostile packets cannot fill the log.
#[derive(Debug)]
pub struct Ration<T> {
    most: u32,
    used: u32,
    suppressed: u64,
    stretch: Option<T>,
}

impl<T: Copy + Eq + Hash> Ration<T> {
    /// `most` in each stretch.
    pub fn new(most: u32) -> Self {
        Self { most, used: 0, suppressed: 0, stretch: None }
    }

    /// Takes one. `Some(n)` when there was one left; `n` were refused since the last that was granted.
    pub fn take(&mut self, stretch: T) -> Option<u64> {
        if self.stretch != Some(stretch) {
            self.stretch = Some(stretch);
            self.used = 0;
        }
        if self.used == self.most {
            self.suppressed += 1;
            return None;
        }
        self.used += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(host: u8, port: u16) -> SocketAddr {
        ([10, 0, 0, host], port).into()
    }

    #[test]
    fn the_same_port_again_repeats_or_replaces() {
        let mut table = Table::default();
        assert_eq!(table.admit(client(1, 7), b"a", false), Admission::Start);
        let first = table.id(client(1, 7)).expect("in the table");
        assert_eq!(table.admit(client(1, 7), b"a", false), Admission::Repeat);
        assert_eq!(table.admit(client(1, 7), b"b", false), Admission::Replace);
        assert_eq!(table.admit(client(1, 7), b"b", true), Admission::Replace);
        assert!(!table.finish(client(1, 7), first), "the old one's end leaves the new one in");
        let id = table.id(client(1, 7)).expect("in the table");
        assert!(table.finish(client(1, 7), id));
        assert!(table.is_empty() && table.addresses.is_empty());
    }

    #[test]
    fn one_address_cannot_take_all_and_all_cannot_take_more() {
        let mut table = Table::default();
        for port in 0..MAX_PER_ADDRESS as u16 {
            assert_eq!(table.admit(client(1, port + 1), b"a", false), Admission::Start);
        }
        assert_eq!(table.admit(client(1, 999), b"a", false), Admission::Busy(Busy::Address));
        let mut host = 1;
        while table.len() < MAX_TRANSFERS {
            host += 1;
            assert_eq!(table.admit(client(host, 1), b"a", false), Admission::Start);
        }
        assert_eq!(table.admit(client(0, 1), b"a", false), Admission::Busy(Busy::Server));
        let id = table.id(client(2, 1)).expect("in the table");
        assert!(table.finish(client(2, 1), id));
        assert_eq!(table.admit(client(0, 1), b"a", false), Admission::Start);
    }

    #[test]
    fn a_ration_counts_what_it_refused() {
        let mut ration = Ration::new(2);
        let taken: Vec<_> = [1, 1, 1, 1, 2, 2].into_iter().map(|stretch| ration.take(stretch)).collect();
        assert_eq!(taken, [Some(0), Some(0), None, None, Some(2), Some(0)]);
    }
}
