//! Which machines of a set go. Pure.

use kube::ResourceExt;

use crate::api::cluster::DeletionOrder;
use crate::api::cluster::keys::ANNOTATION_DELETE_MACHINE;
use crate::api::cluster::v1beta2::Machine;
use crate::cluster::contract::conditions;

/// How soon a machine goes; the first goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// It goes already.
    Going,
    /// Somebody said so.
    Marked,
    /// It is not well, or not yet a node.
    Unwell,
    /// Any other.
    Well,
}

fn turn(machine: &Machine) -> Turn {
    if machine.metadata.deletion_timestamp.is_some() {
        return Turn::Going;
    }
    if machine.annotations().contains_key(ANNOTATION_DELETE_MACHINE) {
        return Turn::Marked;
    }
    if is_well(machine) { Turn::Well } else { Turn::Unwell }
}

/// Whether nothing speaks against a machine.
fn is_well(machine: &Machine) -> bool {
    let Some(status) = &machine.status else { return false };
    let bad = ["HealthCheckSucceeded", "OwnerRemediated", "NodeHealthy"];
    status.node_ref.is_some() && !bad.iter().any(|type_| conditions::is_false(&status.conditions, type_))
}

/// The names of so many machines that go, those that go already among them.
pub(super) fn victims<'m>(machines: &[&'m Machine], number: usize, order: DeletionOrder) -> Vec<&'m Machine> {
    let mut sorted: Vec<&Machine> = machines.to_vec();
    sorted.sort_by(|one, other| {
        let age = one.metadata.creation_timestamp.cmp(&other.metadata.creation_timestamp);
        let by_order = match order {
            DeletionOrder::Oldest => age,
            DeletionOrder::Newest => age.reverse(),
            // A UID is as good as a lot, and the same again after a restart.
            DeletionOrder::Random => one.metadata.uid.cmp(&other.metadata.uid),
        };
        let by_name = || one.metadata.name.cmp(&other.metadata.name);
        turn(one).cmp(&turn(other)).then(by_order).then_with(by_name)
    });
    sorted.truncate(number);
    sorted
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::api::cluster::v1beta2::{MachineStatus, NodeReference};
    use crate::cluster::contract::Verdict;

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
        conditions::set(conditions, "NodeHealthy", &Verdict::no("X", ""), None, Timestamp::UNIX_EPOCH);
        let mut early = machine("d-early", 4);
        early.status = None;
        let (young, old) = (machine("f-young", 5), machine("e-old", 9));
        let all = [&old, &young, &early, &unwell, &marked, &going];
        let names = |number, order| -> Vec<String> {
            victims(&all, number, order).iter().map(|machine| machine.name_any()).collect()
        };
        let front = ["a-going", "b-marked"];
        assert_eq!(names(2, DeletionOrder::Random), front);
        assert_eq!(names(5, DeletionOrder::Newest)[2..], ["c-unwell", "d-early", "f-young"]);
        assert_eq!(names(5, DeletionOrder::Oldest)[2..], ["d-early", "c-unwell", "e-old"]);
        assert_eq!(names(99, DeletionOrder::Random).len(), 6);
        assert_eq!(names(0, DeletionOrder::Random), Vec::<String>::new());
    }
}
