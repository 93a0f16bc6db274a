//! Which machines of a set go. Pure.

use kube::core::ObjectMeta;

use crate::api::cluster::DeletionOrder;
use crate::api::cluster::keys::ANNOTATION_DELETE_MACHINE;
use crate::api::cluster::v1beta2::Machine;
use crate::runtime::conditions;

/// How soon a machine goes; the first goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DeletePriority {
    /// It goes already.
    Going,
    /// Somebody said so.
    Marked,
    /// It is not well, or not yet a node.
    Unwell,
    /// Any other.
    Well,
}

/// A machine that may go.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScaleDownCandidate<'m> {
    /// Which one.
    pub meta: &'m ObjectMeta,
    /// Whether nothing speaks against it.
    pub is_well: bool,
}

fn turn(machine: &ScaleDownCandidate<'_>) -> DeletePriority {
    if machine.meta.deletion_timestamp.is_some() {
        return DeletePriority::Going;
    }
    let marks = machine.meta.annotations.as_ref();
    if marks.is_some_and(|marks| marks.contains_key(ANNOTATION_DELETE_MACHINE)) {
        return DeletePriority::Marked;
    }
    if machine.is_well { DeletePriority::Well } else { DeletePriority::Unwell }
}

/// Whether nothing speaks against a machine.
pub(super) fn is_well(machine: &Machine) -> bool {
    let Some(status) = &machine.status else { return false };
    let bad = ["HealthCheckSucceeded", "OwnerRemediated", "NodeHealthy"];
    status.node_ref.is_some() && !bad.iter().any(|type_| conditions::is_false(&status.conditions, type_))
}

/// So many machines that go, those that go already among them.
pub(super) fn victims(
    mut machines: Vec<ScaleDownCandidate<'_>>,
    number: usize,
    order: DeletionOrder,
) -> Vec<ScaleDownCandidate<'_>> {
    machines.sort_by(|one, other| {
        let age = one.meta.creation_timestamp.cmp(&other.meta.creation_timestamp);
        let by_order = match order {
            DeletionOrder::Oldest => age,
            DeletionOrder::Newest => age.reverse(),
            // A UID is as good as a lot, and the same again after a restart.
            DeletionOrder::Random => one.meta.uid.cmp(&other.meta.uid),
        };
        let by_name = || one.meta.name.cmp(&other.meta.name);
        turn(one).cmp(&turn(other)).then(by_order).then_with(by_name)
    });
    machines.truncate(number);
    machines
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::api::cluster::v1beta2::{MachineStatus, NodeReference};
    use crate::runtime::conditions::ConditionVerdict;

    fn machine(name: &str, age: i64) -> Machine {
        let mut machine = Machine::new(name, Default::default());
        let second = Timestamp::from_second(1000 - age).unwrap();
        machine.metadata.creation_timestamp = Some(Time(second));
        machine.metadata.uid = Some(name.into());
        machine.status = Some(MachineStatus { node_ref: Some(NodeReference::default()), ..MachineStatus::default() });
        machine
    }

    #[test]
    fn those_go_first_that_go_already_are_marked_or_unwell() {
        let mut going = machine("a-going", 1);
        going.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let mut marked = machine("b-marked", 2);
        marked.metadata.annotations = Some([(ANNOTATION_DELETE_MACHINE.to_owned(), String::new())].into());
        let mut unwell = machine("c-unwell", 3);
        let conditions = &mut unwell.status.get_or_insert_default().conditions;
        conditions::set(conditions, "NodeHealthy", &ConditionVerdict::no("X", ""), None, Timestamp::UNIX_EPOCH);
        let mut early = machine("d-early", 4);
        early.status = None;
        let (young, old) = (machine("f-young", 5), machine("e-old", 9));
        let all = [&old, &young, &early, &unwell, &marked, &going];
        let names = |number, order| -> Vec<String> {
            let all =
                all.iter().map(|machine| ScaleDownCandidate { meta: &machine.metadata, is_well: is_well(machine) });
            victims(all.collect(), number, order).iter().flat_map(|machine| machine.meta.name.clone()).collect()
        };
        let front = ["a-going", "b-marked"];
        assert_eq!(names(2, DeletionOrder::Random), front);
        assert_eq!(names(5, DeletionOrder::Newest)[2..], ["c-unwell", "d-early", "f-young"]);
        assert_eq!(names(5, DeletionOrder::Oldest)[2..], ["d-early", "c-unwell", "e-old"]);
        assert_eq!(names(99, DeletionOrder::Random).len(), 6);
        assert_eq!(names(0, DeletionOrder::Random), Vec::<String>::new());
    }
}
