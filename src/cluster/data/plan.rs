//! Which machine of a template has which index, and what is to be done about it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// What counts of a Metal3DataClaim.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DataClaim {
    /// Name.
    pub name: String,
    /// Its object's UID.
    pub uid: String,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// The Metal3Machine that it is for.
    pub machine: Option<OwnerReference>,
    /// The cluster that it is of.
    pub cluster: Option<String>,
    /// Whether nothing is to be done about it.
    pub paused: bool,
    /// Whether it is held for its data.
    pub held: bool,
    /// Whether it is to go.
    pub deleted: bool,
    /// The Metal3Data that its status names.
    pub rendered: Option<String>,
    /// The fault that its status names.
    pub error: Option<String>,
}

/// What counts of a Metal3Data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IndexedData {
    /// Name.
    pub name: String,
    /// Its index.
    pub index: i32,
    /// Name of its claim.
    pub claim: String,
    /// UID of that, where it says so: of one name there may have been several.
    pub claim_uid: Option<String>,
}

impl IndexedData {
    /// Whether it is of a claim, and not of an earlier one of its name.
    fn is_of(&self, claim: &DataClaim) -> bool {
        self.claim == claim.name && self.claim_uid.as_ref().is_none_or(|uid| *uid == claim.uid)
    }
}

/// One thing that is to be done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DataStep {
    /// The claim gets data with this index.
    Make(DataClaim, OwnerReference, i32),
    /// The claim has its data, of this name, and is to hear of it.
    Tell(DataClaim, String),
    /// The claim gets none.
    Refuse(DataClaim, String),
    /// The claim goes, and with it its data.
    Release(DataClaim, Vec<String>),
}

/// What is to be done, and who has which index.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DataPlan {
    /// In any order.
    pub steps: Vec<DataStep>,
    /// Indexes and claims.
    pub indexes: BTreeMap<i32, String>,
}

impl DataPlan {
    /// Leaves so many steps: what answers a claim first, before what only tells it again. False when that is not all.
    pub fn keep(&mut self, most: usize) -> bool {
        self.steps.sort_by_key(|step| matches!(step, DataStep::Tell(..)));
        let is_all = self.steps.len() <= most;
        self.steps.truncate(most);
        is_all
    }
}

/// Name of the data with an index.
pub(super) fn data_name(template: &str, index: i32) -> String {
    format!("{template}-{index}")
}

/// Plans for a template. `closed` says why it makes nothing now; of `foreign` indexes the names are somebody else's.
pub(super) fn plan(
    closed: Option<&str>,
    mut claims: Vec<DataClaim>,
    all: &[IndexedData],
    paused: impl Fn(&str) -> bool,
    foreign: &BTreeSet<i32>,
) -> DataPlan {
    claims.sort_by(|one, other| (one.created, &one.name).cmp(&(other.created, &other.name)));
    let mut plan = DataPlan::default();
    let mut used: BTreeSet<i32> = foreign.clone();
    let mut by_claim: BTreeMap<&str, Vec<&IndexedData>> = BTreeMap::new();
    for data in all {
        used.insert(data.index);
        plan.indexes.insert(data.index, data.claim.clone());
        by_claim.entry(&data.claim).or_default().push(data);
    }
    let mut from = 0;
    for claim in claims {
        let mut its = by_claim.get(claim.name.as_str()).cloned().unwrap_or_default();
        its.retain(|data| data.is_of(&claim));
        if claim.deleted {
            if claim.held {
                let mut names: Vec<String> = its.iter().map(|data| data.name.clone()).collect();
                names.extend(claim.rendered.clone().filter(|name| !names.contains(name)));
                plan.steps.push(DataStep::Release(claim, names));
            }
            continue;
        }
        if claim.paused || claim.cluster.as_deref().is_some_and(&paused) {
            continue;
        }
        let told = |data: &&&IndexedData| claim.rendered.as_ref() == Some(&data.name);
        if let Some(data) = its.iter().find(told).or_else(|| its.first()) {
            if claim.rendered.as_ref() != Some(&data.name) || claim.error.is_some() || !claim.held {
                let name = data.name.clone();
                plan.steps.push(DataStep::Tell(claim, name));
            }
            continue;
        }
        let answer = match (closed, claim.machine.clone()) {
            (Some(reason), _) => Err(reason.to_owned()),
            (None, None) => Err("Metal3Machine not found in owner references".to_owned()),
            (None, Some(machine)) => {
                free(&used, from).map(|index| (machine, index)).ok_or_else(|| "no index is left".to_owned())
            }
        };
        match answer {
            Ok((machine, index)) => {
                used.insert(index);
                from = index;
                plan.steps.push(DataStep::Make(claim, machine, index));
            }
            Err(reason) if claim.error.as_ref() == Some(&reason) && claim.rendered.is_none() => {}
            Err(reason) => plan.steps.push(DataStep::Refuse(claim, reason)),
        }
    }
    plan
}

/// The lowest index that nobody has. Below `from` there is none.
fn free(used: &BTreeSet<i32>, from: i32) -> Option<i32> {
    let mut candidate = from;
    for taken in used.range(from..) {
        if *taken > candidate {
            break;
        }
        candidate = candidate.checked_add(1)?;
    }
    Some(candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> OwnerReference {
        OwnerReference { kind: "Metal3Machine".into(), name: "m".into(), ..OwnerReference::default() }
    }

    fn claim(name: &str) -> DataClaim {
        DataClaim {
            name: name.into(),
            uid: name.into(),
            created: None,
            machine: Some(machine()),
            cluster: Some("c".into()),
            paused: false,
            held: true,
            deleted: false,
            rendered: None,
            error: None,
        }
    }

    fn data(index: i32, claim: &str) -> IndexedData {
        IndexedData { name: data_name("t", index), index, claim: claim.into(), claim_uid: None }
    }

    #[test]
    fn claims_that_have_no_data_come_before_those_that_are_told_again() {
        let claims = vec![claim("told"), claim("x"), claim("y")];
        let mut plan = plan(None, claims, &[data(0, "told")], |_| false, &BTreeSet::new());
        assert!(plan.keep(3) && plan.steps.len() == 3);
        assert!(matches!(plan.steps.last(), Some(DataStep::Tell(told, _)) if told.name == "told"));
        assert!(!plan.keep(2) && plan.steps.iter().all(|step| matches!(step, DataStep::Make(..))));
    }

    fn planned(closed: Option<&str>, claims: &[DataClaim], all: &[IndexedData], foreign: &[i32]) -> Vec<String> {
        let foreign = foreign.iter().copied().collect();
        let plan = plan(closed, claims.to_vec(), all, |cluster| cluster == "paused", &foreign);
        let words = plan.steps.iter().map(|step| match step {
            DataStep::Make(claim, _, index) => format!("{} gets {index}", claim.name),
            DataStep::Tell(claim, name) => format!("{} has {name}", claim.name),
            DataStep::Refuse(claim, reason) => format!("{} gets none: {reason}", claim.name),
            DataStep::Release(claim, names) => format!("{} leaves {names:?}", claim.name),
        });
        words.collect()
    }

    #[test]
    fn claims_get_the_lowest_free_index() {
        let told = |name: &str, index| DataClaim { rendered: Some(data_name("t", index)), ..claim(name) };
        let deleted = |name: &str| DataClaim { deleted: true, ..claim(name) };
        type Row = (Vec<DataClaim>, Vec<IndexedData>, Vec<i32>, Vec<&'static str>);
        let rows: Vec<Row> = vec![
            (vec![claim("b"), claim("a")], vec![], vec![], vec!["a gets 0", "b gets 1"]),
            (vec![claim("a"), claim("b")], vec![data(0, "x"), data(2, "y")], vec![], vec!["a gets 1", "b gets 3"]),
            (vec![claim("a")], vec![data(0, "x")], vec![1], vec!["a gets 2"]),
            (vec![claim("a")], vec![data(5, "a")], vec![], vec!["a has t-5"]),
            (vec![told("a", 5)], vec![data(5, "a")], vec![], vec![]),
            (
                vec![DataClaim { error: Some("x".into()), ..told("a", 5) }],
                vec![data(5, "a")],
                vec![],
                vec!["a has t-5"],
            ),
            (vec![DataClaim { held: false, ..told("a", 5) }], vec![data(5, "a")], vec![], vec!["a has t-5"]),
            (vec![told("a", 5)], vec![], vec![], vec!["a gets 0"]),
            // It was made for a claim of the name that was before.
            (
                vec![claim("a")],
                vec![IndexedData { claim_uid: Some("before".into()), ..data(0, "a") }],
                vec![],
                vec!["a gets 1"],
            ),
            (
                vec![claim("a")],
                vec![IndexedData { claim_uid: Some("a".into()), ..data(0, "a") }],
                vec![],
                vec!["a has t-0"],
            ),
            (vec![deleted("a")], vec![data(1, "a")], vec![], vec!["a leaves [\"t-1\"]"]),
            (
                vec![DataClaim { deleted: true, ..told("a", 7) }],
                vec![data(1, "a")],
                vec![],
                vec!["a leaves [\"t-1\", \"t-7\"]"],
            ),
            (vec![DataClaim { held: false, ..deleted("a") }], vec![], vec![], vec![]),
            (vec![deleted("a"), claim("b")], vec![data(0, "a")], vec![], vec!["a leaves [\"t-0\"]", "b gets 1"]),
            (
                vec![DataClaim { machine: None, ..claim("a") }],
                vec![],
                vec![],
                vec!["a gets none: Metal3Machine not found in owner references"],
            ),
            (vec![DataClaim { paused: true, ..claim("a") }], vec![], vec![], vec![]),
            (
                vec![DataClaim { cluster: Some("paused".into()), ..claim("a") }, claim("b")],
                vec![],
                vec![],
                vec!["b gets 0"],
            ),
        ];
        for (claims, all, foreign, wanted) in rows {
            assert_eq!(planned(None, &claims, &all, &foreign), wanted, "{claims:?} {all:?}");
        }
        let reason = "the Metal3DataTemplate t is being deleted";
        assert_eq!(
            planned(Some(reason), &[claim("a"), claim("b")], &[data(0, "a")], &[]),
            ["a has t-0".to_owned(), format!("b gets none: {reason}")]
        );
        let heard = DataClaim { error: Some(reason.into()), ..claim("b") };
        assert_eq!(planned(Some(reason), &[heard], &[], &[]), [""; 0]);
        assert_eq!(free(&BTreeSet::from([i32::MAX]), i32::MAX), None);
    }
}
