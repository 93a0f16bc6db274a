//! Message history: the last messages of each machine and what came of them, in memory, for `slipway explain dhcp`.

use std::collections::{HashMap, VecDeque};

use dhcproto::v4::MessageType;

use crate::api::MacAddress;

use super::outcome::Note;

/// Messages kept of one machine.
const EACH: usize = 8;
/// Machines kept; who was silent longest is forgotten.
const MACHINES: usize = 2048;

/// One message.
#[derive(Clone, Debug)]
pub struct Message {
    /// Seconds since 1970.
    pub at: u64,
    /// Which network, as in the configuration.
    pub network: usize,
    /// What kind.
    pub kind: MessageType,
    /// What came of it.
    pub note: Note,
}

/// Who was seen last.
#[derive(Debug, Default)]
pub struct Seen {
    machines: HashMap<MacAddress, VecDeque<Message>>,
    /// Machines in the order of their first message; cheaper than that of their last, and good enough.
    order: VecDeque<MacAddress>,
}

impl Seen {
    /// Keeps a message.
    pub fn put(&mut self, mac: MacAddress, message: Message) {
        if !self.machines.contains_key(&mac) {
            if self.order.len() == MACHINES
                && let Some(oldest) = self.order.pop_front()
            {
                self.machines.remove(&oldest);
            }
            self.order.push_back(mac);
        }
        let messages = self.machines.entry(mac).or_default();
        if messages.len() == EACH {
            messages.pop_front();
        }
        messages.push_back(message);
    }

    /// The last messages of a machine, oldest first.
    pub fn of(&self, mac: MacAddress) -> Vec<Message> {
        self.machines.get(&mac).into_iter().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::Silence;
    use super::*;

    #[test]
    fn the_last_messages_of_the_last_machines_are_kept() {
        let mut seen = Seen::default();
        let mac = |number: usize| MacAddress([2, 0, 0, 0, (number >> 8) as u8, number as u8]);
        let message = |at| Message { at, network: 0, kind: MessageType::Discover, note: Note::Silent(Silence::Off) };
        for at in 0..20 {
            seen.put(mac(0), message(at));
        }
        assert_eq!(seen.of(mac(0)).iter().map(|message| message.at).collect::<Vec<_>>(), (12..20).collect::<Vec<_>>());
        for number in 1..=MACHINES {
            seen.put(mac(number), message(0));
        }
        assert!(seen.of(mac(0)).is_empty() && seen.machines.len() == MACHINES && seen.order.len() == MACHINES);
        assert_eq!(seen.of(mac(MACHINES)).len(), 1);
    }
}
