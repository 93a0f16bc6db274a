//! Reboots that are asked for.

use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::process::Command;
use tokio::time::sleep;

use super::Agent;
use crate::node::effect::NodeEffect;
use crate::node::journal::RebootRecord;

/// How long a node may take to go down after the command to reboot.
const GOES_DOWN: Duration = Duration::from_secs(600);
/// How long that command may take.
const REBOOT_COMMAND: Duration = Duration::from_secs(60);

impl Agent {
    /// Brings about a reboot that was asked for, once.
    pub(super) async fn reboot(&self, asked: Time) {
        let record = |error: &str| RebootRecord {
            requested_at: Some(asked.clone()),
            boot_id: self.boot_id.clone(),
            error: error.to_owned(),
        };
        // Noted first: a command that was given is not given again.
        if let Err(error) = self.journal.borrow_mut().before(|records| records.reboot = Some(record(""))) {
            tracing::error!(%error, "a reboot cannot be noted, so it waits");
            return;
        }
        self.journal.borrow().tell(NodeEffect::RebootNoted);
        tracing::info!("rebooting: the appliance asks for it");
        let error = match self.give_reboot().await {
            Ok(()) => {
                sleep(GOES_DOWN).await;
                format!("the node did not go down within {} minutes of the command", GOES_DOWN.as_secs() / 60)
            }
            Err(error) => error,
        };
        tracing::error!(error, "no reboot");
        if let Err(error) = self.journal.borrow_mut().after(|records| records.reboot = Some(record(&error))) {
            tracing::error!(%error, "that cannot be noted");
        }
        self.to_tell.notify_one();
    }

    async fn give_reboot(&self) -> Result<(), String> {
        let Some((program, arguments)) = self.config.reboot_command.split_first() else {
            return Err("there is no command to reboot".into());
        };
        let run = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .status();
        match tokio::time::timeout(REBOOT_COMMAND, run).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(format!("{program}: {status}")),
            Ok(Err(error)) => Err(format!("{program}: {error}")),
            Err(_) => Err(format!("{program} did not end within {} s", REBOOT_COMMAND.as_secs())),
        }
    }
}

/// What a reboot that was asked for has come to.
#[derive(Debug, PartialEq)]
pub(super) enum RebootTurn {
    None,
    Now(Time),
    Done,
    /// The command was given, or failed.
    Given(String),
}

/// Decides about a reboot: it is done when the kernel began later than it was asked for, or is another one than that to which the
/// command was given. Without the appliance's time nothing is compared with it.
pub(super) fn reboot_turn(
    asked: Option<&Time>,
    record: Option<&RebootRecord>,
    boot: &Option<Time>,
    boot_id: &str,
) -> RebootTurn {
    let Some(asked) = asked else { return RebootTurn::None };
    let record = record.filter(|record| record.requested_at.as_ref() == Some(asked));
    if boot.as_ref().is_some_and(|boot| boot.0 > asked.0) || record.is_some_and(|record| record.boot_id != boot_id) {
        return RebootTurn::Done;
    }
    match record {
        Some(record) => RebootTurn::Given(record.error.clone()),
        None if boot.is_none() => RebootTurn::None,
        None => RebootTurn::Now(asked.clone()),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn a_reboot_comes_about_once() {
        let at = |second| Time(Timestamp::from_second(second).unwrap());
        let record = |asked, boot_id: &str, error: &str| RebootRecord {
            requested_at: Some(at(asked)),
            boot_id: boot_id.into(),
            error: error.into(),
        };
        let given = |error: &str| RebootTurn::Given(error.into());
        for (asked, record, boot, wanted) in [
            (None, None, Some(at(5)), RebootTurn::None),
            (Some(at(10)), None, Some(at(5)), RebootTurn::Now(at(10))),
            (Some(at(10)), None, Some(at(11)), RebootTurn::Done),
            (Some(at(10)), Some(record(10, "b1", "")), Some(at(5)), given("")),
            (Some(at(10)), Some(record(10, "b1", "broken")), Some(at(5)), given("broken")),
            (Some(at(10)), Some(record(10, "b0", "")), None, RebootTurn::Done),
            (Some(at(20)), Some(record(10, "b0", "")), Some(at(15)), RebootTurn::Now(at(20))),
            // The clock may be ten years ahead, and the appliance was not heard.
            (Some(at(10)), None, None, RebootTurn::None),
        ] {
            assert_eq!(reboot_turn(asked.as_ref(), record.as_ref(), &boot, "b1"), wanted, "{asked:?} {record:?}");
        }
    }
}
