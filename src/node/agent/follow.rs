//! What is wanted: the LCMMachine is read and watched, and read now and then where it cannot be watched.

use std::time::Duration;

use tokio::time::sleep;

use super::Agent;
use crate::node::client::{CallError, NodeWatchEvent, SeenMachine};
use crate::node::config::AgentPauses;
use crate::node::journal::KnownMachine;

/// Between two reads where it cannot be watched.
const POLL: Duration = Duration::from_secs(15);

impl Agent {
    /// Follows the LCMMachine, without end.
    pub(super) async fn follow(&self) {
        let pauses = self.config.pauses;
        let (mut tries, mut told) = (0, String::new());
        loop {
            match self.follow_once(&mut tries).await {
                // A watch that ends at once must not be asked for at once.
                Ok(()) => sleep(jitter(Duration::from_millis(pauses.call_least))).await,
                Err(error) => {
                    if error.status() == 404 {
                        self.gone();
                    }
                    let text = error.to_string();
                    if text != told {
                        tracing::warn!(error = text, "going on with the last spec that was read");
                        told = text;
                    }
                    tries += 1;
                    self.to_tell.notify_one();
                    sleep(jitter(AgentPauses::after(pauses.call_least, pauses.call_most, tries))).await;
                    continue;
                }
            }
            told.clear();
        }
    }

    async fn follow_once(&self, tries: &mut i32) -> Result<(), CallError> {
        let seen = self.client.get().await?;
        *tries = 0;
        let version = seen.metadata.resource_version.clone();
        self.learn(seen);
        let mut watch = match self.client.watch(&version).await {
            Ok(watch) => watch,
            Err(error) if [400, 403, 404, 405].contains(&error.status()) => {
                sleep(jitter(POLL)).await;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        loop {
            match watch.next().await? {
                NodeWatchEvent::Changed(seen) => self.learn(*seen),
                NodeWatchEvent::Deleted => {
                    self.gone();
                    return Ok(());
                }
                NodeWatchEvent::Bookmark => {}
                NodeWatchEvent::Ended => return Ok(()),
            }
        }
    }

    /// The LCMMachine was deleted: nothing is wanted of this node any more, and nothing is undone.
    fn gone(&self) {
        if !self.is_gone.replace(true) {
            tracing::warn!("the LCMMachine is gone: nothing is done until there is one again");
            self.wanted.send_modify(|count| *count += 1);
        }
    }

    /// Takes the LCMMachine as it was read. What is older than what is known comes late and is nothing new.
    pub(in crate::node) fn learn(&self, seen: SeenMachine) {
        if self.seen.borrow().as_ref().is_some_and(|known| is_older(&seen, known)) {
            return;
        }
        let machine = KnownMachine::of(&seen);
        *self.seen.borrow_mut() = Some(seen);
        let is_new = {
            let mut journal = self.journal.borrow_mut();
            let is_new = journal.machine.as_ref() != Some(&machine);
            if let Err(error) = journal.keep(machine) {
                tracing::error!(%error, "the spec cannot be kept on the disk: it is gone by, until this agent ends");
            }
            is_new
        };
        if self.is_gone.replace(false) || is_new {
            self.waits.borrow_mut().clear();
            self.wanted.send_modify(|count| *count += 1);
            self.to_tell.notify_one();
        }
    }
}

fn is_older(seen: &SeenMachine, known: &SeenMachine) -> bool {
    let number = |seen: &SeenMachine| seen.metadata.resource_version.parse::<u64>().ok();
    let same = seen.metadata.uid == known.metadata.uid;
    same && matches!((number(seen), number(known)), (Some(one), Some(other)) if one < other)
}

/// A pause that is other for each node: all of them lost the appliance at the same moment.
pub(super) fn jitter(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.75..1.25))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::client::SeenMetadata;

    #[test]
    fn what_comes_late_is_known() {
        let seen = |uid: &str, version: &str| SeenMachine {
            metadata: SeenMetadata { uid: uid.into(), resource_version: version.into(), generation: 1 },
            ..SeenMachine::default()
        };
        assert!(is_older(&seen("a", "9"), &seen("a", "10")));
        assert!(!is_older(&seen("a", "10"), &seen("a", "10")));
        assert!(!is_older(&seen("b", "9"), &seen("a", "10")), "another object");
        assert!(!is_older(&seen("a", "x"), &seen("a", "10")));
    }
}
