//! Message history: the last messages of each machine and what came of them, in memory, for `slipway debug dhcp`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use dhcproto::v4::MessageType;

use crate::api::MacAddress;

use super::outcome::Disposition;

/// Messages kept of one machine.
const EACH: usize = 8;
/// Machines kept; who asked longest ago is forgotten.
const MACHINES: usize = 2048;

/// One message.
#[derive(Clone, Debug)]
pub struct RecentMessage {
    /// Seconds since 1970.
    pub at: u64,
    /// Name of the network.
    pub network: Arc<str>,
    /// What kind.
    pub kind: MessageType,
    /// What came of it.
    pub disposition: Disposition,
}

/// The last messages of the machines that asked last.
#[derive(Debug, Default)]
pub struct RecentMessages {
    machines: HashMap<MacAddress, VecDeque<RecentMessage>>,
    /// Machines in the order of their first message; cheaper than that of their last, and good enough.
    order: VecDeque<MacAddress>,
}

impl RecentMessages {
    /// Keeps a message.
    pub fn record(&mut self, mac: MacAddress, message: RecentMessage) {
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
    pub fn of_machine(&self, mac: MacAddress) -> Vec<RecentMessage> {
        self.machines.get(&mac).into_iter().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::DropReason;
    use super::*;

    #[test]
    fn the_last_messages_of_the_last_machines_are_kept() {
        let mut recent = RecentMessages::default();
        let mac = |number: usize| MacAddress([2, 0, 0, 0, (number >> 8) as u8, number as u8]);
        let message = |at| RecentMessage {
            at,
            network: "a".into(),
            kind: MessageType::Discover,
            disposition: Disposition::Dropped(DropReason::Off),
        };
        for at in 0..20 {
            recent.record(mac(0), message(at));
        }
        assert_eq!(
            recent.of_machine(mac(0)).iter().map(|message| message.at).collect::<Vec<_>>(),
            (12..20).collect::<Vec<_>>()
        );
        for number in 1..=MACHINES {
            recent.record(mac(number), message(0));
        }
        assert!(
            recent.of_machine(mac(0)).is_empty() && recent.machines.len() == MACHINES && recent.order.len() == MACHINES
        );
        assert_eq!(recent.of_machine(mac(MACHINES)).len(), 1);
    }
}
