//! How a machine leaves its cluster: its node is drained, and deleted. Pure.
//!
//! A drain ends by its time. While an application holds the node by a lock, what it keeps there would be lost, so that wait ends when
//! the lock does: whoever deletes the machine may have it go without (`force_deletion`), and the deletion of the cluster waits for nobody.

use jiff::{SignedDuration, Timestamp};

use super::nodes::SeenNode;
use super::order::{Drain, Member};
use crate::api::lcm::MachineRole;

/// `status.prepareDeletionPhase`: it has begun.
pub(super) const STARTED: &str = "started";
/// It is done.
pub(super) const COMPLETED: &str = "completed";
/// It took too long: whoever deletes the machine goes on without.
pub(super) const FAILED: &str = "failed";

/// What is done about a machine that is to leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MachineDeparture {
    /// It is not its turn.
    Wait(String),
    /// It begins, and its node, if it has one, is drained.
    Start,
    /// Its node is still drained, or not found out about.
    Drain(String),
    /// Applications hold its node by locks.
    Hold(String),
    /// The node of this name is deleted.
    Delete(String),
    /// Nothing is left to do.
    Complete,
    /// It is given up, for this.
    Fail(String),
}

/// What a decision looks at.
#[derive(Clone, Debug)]
pub(super) struct Leaver<'a> {
    /// `status.prepareDeletionPhase`.
    pub phase: &'a str,
    /// Whether it is, or becomes, a node that kubeadm made.
    pub is_node: bool,
    /// Whether it may begin.
    pub may: Result<(), String>,
    pub seen: &'a SeenNode,
    pub drain: Drain,
    /// Whether it goes without a drain, and is not waited for.
    pub forced: bool,
    /// Whether the drain waits for applications.
    pub locked: bool,
    /// What the drain waits for.
    pub message: &'a str,
    /// Since when it leaves.
    pub since: Option<Timestamp>,
    pub patience: SignedDuration,
    pub now: Timestamp,
}

/// The next step.
pub(super) fn decide(one: &Leaver<'_>) -> MachineDeparture {
    if matches!(one.phase, COMPLETED | FAILED) {
        return MachineDeparture::Complete;
    }
    if !one.is_node {
        return MachineDeparture::Complete;
    }
    if one.forced {
        return match one.seen {
            SeenNode::None => MachineDeparture::Complete,
            SeenNode::Ready(name) | SeenNode::Unready(name) => MachineDeparture::Delete(name.clone()),
            SeenNode::Unknown(reason) => stays("its node", reason),
            SeenNode::Unasked => stays("its node", "the cluster was not asked"),
        };
    }
    if one.phase != STARTED {
        return match &one.may {
            Ok(()) => MachineDeparture::Start,
            Err(reason) => MachineDeparture::Wait(reason.clone()),
        };
    }
    let late = one.since.is_some_and(|since| one.now.duration_since(since) > one.patience);
    let waits = match (one.seen, one.drain) {
        (SeenNode::None, _) => return MachineDeparture::Complete,
        (SeenNode::Ready(name) | SeenNode::Unready(name), Drain::Done) => {
            return MachineDeparture::Delete(name.clone());
        }
        (SeenNode::Unknown(reason), _) => reason.clone(),
        _ if one.locked => return MachineDeparture::Hold(one.message.to_owned()),
        _ if one.message.is_empty() => "its node is drained".to_owned(),
        _ => one.message.to_owned(),
    };
    if late {
        let reason = format!("took too long, and whoever deletes the machine goes on: {waits}");
        MachineDeparture::Fail(reason)
    } else {
        MachineDeparture::Drain(waits)
    }
}

/// The machine goes, and its node is left in the cluster.
pub(super) fn stays(node: &str, reason: &str) -> MachineDeparture {
    MachineDeparture::Fail(format!("{node} stays in the cluster, and goes with kubectl delete node: {reason}"))
}

/// Whether a machine may leave its cluster now; else what it waits for. One manager at a time, and only if two are Ready: whichever goes,
/// those that are left have to agree.
pub(super) fn may_leave(one: &Member, members: &[Member]) -> Result<(), String> {
    if one.role != MachineRole::Control || !one.is_in() || one.leaving {
        return Ok(());
    }
    let managers = || members.iter().filter(|other| other.role == MachineRole::Control);
    if let Some(other) = managers().find(|other| other.name != one.name && other.leaving) {
        return Err(format!("waits until manager {} has left the cluster", other.name));
    }
    let ready = managers().filter(|other| other.was_deployed && other.ready).count();
    if ready < 2 {
        return Err(format!(
            "a manager can leave while two are Ready, and {ready} of them are: add a manager or mend one, or delete the whole cluster"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_leaves_in_order_and_within_its_time() {
        let now = Timestamp::from_second(1_790_000_000).unwrap();
        let early = Some(now - SignedDuration::from_mins(1));
        let late = Some(now - SignedDuration::from_mins(31));
        let (ready, unknown) = (SeenNode::Ready("n".into()), SeenNode::Unknown("no route".into()));
        let no = || Err("m2 leaves".to_owned());
        let fail = |reason: &str| {
            MachineDeparture::Fail(format!("took too long, and whoever deletes the machine goes on: {reason}"))
        };
        for (phase, is_node, may, seen, drain, since, wanted) in [
            ("", false, Ok(()), &SeenNode::Unasked, Drain::None, None, MachineDeparture::Complete),
            ("", false, no(), &SeenNode::Unasked, Drain::None, None, MachineDeparture::Complete),
            ("", true, no(), &ready, Drain::None, None, MachineDeparture::Wait("m2 leaves".into())),
            ("", true, Ok(()), &ready, Drain::None, None, MachineDeparture::Start),
            (STARTED, true, Ok(()), &ready, Drain::None, early, MachineDeparture::Drain("its node is drained".into())),
            (STARTED, true, Ok(()), &ready, Drain::Asked, early, MachineDeparture::Drain("its node is drained".into())),
            (STARTED, true, no(), &ready, Drain::Asked, late, fail("its node is drained")),
            (STARTED, true, Ok(()), &ready, Drain::Done, late, MachineDeparture::Delete("n".into())),
            (STARTED, true, Ok(()), &SeenNode::None, Drain::Asked, early, MachineDeparture::Complete),
            (STARTED, true, Ok(()), &unknown, Drain::Asked, early, MachineDeparture::Drain("no route".into())),
            // Nobody can tell whose node it is, or nobody answers: it is left as it is.
            (STARTED, true, Ok(()), &unknown, Drain::Done, late, fail("no route")),
            (COMPLETED, true, Ok(()), &ready, Drain::Done, late, MachineDeparture::Complete),
            (FAILED, true, Ok(()), &ready, Drain::Asked, early, MachineDeparture::Complete),
        ] {
            let leaver = Leaver {
                phase,
                is_node,
                may,
                seen,
                drain,
                forced: false,
                locked: false,
                message: "",
                since,
                patience: SignedDuration::from_mins(30),
                now,
            };
            assert_eq!(decide(&leaver), wanted, "{leaver:?}");
        }
    }

    #[test]
    fn whom_applications_hold_waits_and_who_is_forced_does_not() {
        let now = Timestamp::from_second(1_790_000_000).unwrap();
        let (ready, unknown) = (SeenNode::Ready("n".into()), SeenNode::Unknown("no route".into()));
        let hold = || MachineDeparture::Hold("storage holds it".into());
        let delete = || MachineDeparture::Delete("n".into());
        let late = |reason: &str| {
            MachineDeparture::Fail(format!("took too long, and whoever deletes the machine goes on: {reason}"))
        };
        for (phase, seen, locked, forced, wanted) in [
            // No time ends it.
            (STARTED, &ready, true, false, hold()),
            (STARTED, &SeenNode::None, true, false, MachineDeparture::Complete),
            // A cluster that does not answer holds nobody.
            (STARTED, &unknown, true, false, late("no route")),
            ("", &ready, false, true, delete()),
            (STARTED, &ready, true, true, delete()),
            ("", &SeenNode::None, false, true, MachineDeparture::Complete),
            (STARTED, &unknown, true, true, stays("its node", "no route")),
            (COMPLETED, &ready, true, true, MachineDeparture::Complete),
            (FAILED, &ready, true, true, MachineDeparture::Complete),
        ] {
            let leaver = Leaver {
                phase,
                is_node: true,
                may: Err("m2 leaves".to_owned()),
                seen,
                drain: Drain::Asked,
                forced,
                locked,
                message: "storage holds it",
                since: Some(now - SignedDuration::from_mins(31)),
                patience: SignedDuration::from_mins(30),
                now,
            };
            assert_eq!(decide(&leaver), wanted, "{leaver:?}");
        }
    }
}
