//! Whether a Software has something to do. Pure.

use super::packages::{ByNode, Lists, hash};
use crate::api::bpa::software::SoftwareStatus;
use crate::api::bpa::{Provisioning, RunProgress};
use crate::kubespray::provisioning::installer::is_open;
use crate::kubespray::provisioning::next::{STARTING, SUCCEEDED};

/// What a Software does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SoftwareAction {
    /// It cannot be done so.
    Invalid(String),
    /// Something is to be waited for.
    Waits(String),
    /// Nothing: all is as it is wanted.
    Current,
    /// Nothing: it failed, and is not repeated by itself.
    Stuck,
    /// A run, under this number.
    Begin {
        /// Which one of its object's.
        number: i64,
        /// What each node is to have.
        packages: ByNode,
        /// Its hash.
        hash: String,
    },
}

/// The Provisioning that the label names, of those of the namespace.
///
/// # Errors
///
/// When there is none, or several.
pub fn cluster<'p>(label: Option<&str>, all: &'p [Provisioning]) -> Result<&'p Provisioning, String> {
    let label = label.filter(|label| !label.is_empty());
    let label = label.ok_or("the label cluster says whose packages these are: it is not there")?;
    let is_it = |one: &&Provisioning| {
        let own = one.metadata.labels.as_ref().and_then(|labels| labels.get("cluster"));
        own.map_or(one.metadata.name.as_deref() == Some(label), |own| own == label)
    };
    let mut found = all.iter().filter(is_it);
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => {
            Err(format!("there is no Provisioning with the label cluster={label}, or this name and no such label"))
        }
        (Some(_), Some(_)) => Err(format!("several Provisionings have the label cluster={label}")),
    }
}

/// What comes next, of a Software whose last run is not under way.
pub fn next(status: &SoftwareStatus, asked: Option<&str>, cluster: &Provisioning, lists: &Lists) -> SoftwareAction {
    let of = cluster.status.clone().unwrap_or_default();
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    if of.phase != "Ready" || of.run.as_ref().is_some_and(is_open) {
        return SoftwareAction::Waits(format!(
            "Provisioning {name} is {}: its nodes are seen to when it is Ready",
            of.phase
        ));
    }
    if of.hosts_yaml.is_none() {
        return SoftwareAction::Waits(format!("not every host of Provisioning {name} is well"));
    }
    let packages = match lists.by_node(&of.nodes, &of.installed) {
        Ok(packages) => packages,
        Err(reason) => return SoftwareAction::Invalid(reason),
    };
    if packages.is_empty() {
        return SoftwareAction::Current;
    }
    let hash = hash(&packages);
    let run: Option<&RunProgress> = status.run.as_ref();
    let number = run.map_or(0, |run| run.number).max(0);
    let Some(one_more) = number.checked_add(1) else {
        return SoftwareAction::Invalid("there were too many runs".into());
    };
    let is_asked = asked.is_some_and(|asked| run.and_then(|run| run.asked.as_deref()) != Some(asked));
    match run {
        // It was noted, and not begun.
        Some(run) if run.state == STARTING => SoftwareAction::Begin { number, packages, hash },
        Some(run) if status.wanted.as_ref() == Some(&hash) && !is_asked => {
            if run.state == SUCCEEDED {
                SoftwareAction::Current
            } else {
                SoftwareAction::Stuck
            }
        }
        _ => SoftwareAction::Begin { number: one_more, packages, hash },
    }
}

/// What to do about a run that failed.
pub fn stuck(name: &str, run: &RunProgress) -> String {
    format!(
        "run {} {}. It is not repeated by itself: see `slipway kubespray log --software {name}`, mend it, then `slipway kubespray retry --software {name}`",
        run.id, run.message
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::packages::{read, tests::software};
    use super::*;

    fn provisioning(name: &str, labels: Value, status: Value) -> Provisioning {
        let object = json!({"apiVersion": "bpa.akraino.org/v1alpha1", "kind": "Provisioning",
            "metadata": {"name": name, "labels": labels}, "spec": {}, "status": status});
        serde_json::from_value(object).expect("a Provisioning")
    }

    #[test]
    fn the_label_names_one_cluster() {
        let all = [
            provisioning("edge", json!({"cluster": "far"}), json!({})),
            provisioning("near", json!({}), json!({})),
            provisioning("one", json!({"cluster": "twice"}), json!({})),
            provisioning("two", json!({"cluster": "twice"}), json!({})),
        ];
        for (label, wanted) in [
            (Some("far"), Ok("edge")),
            (Some("near"), Ok("near")),
            (Some("edge"), Err("there is no Provisioning")),
            (Some("twice"), Err("several")),
            (Some(""), Err("the label cluster")),
            (None, Err("the label cluster")),
        ] {
            match (cluster(label, &all), wanted) {
                (Ok(found), Ok(name)) => assert_eq!(found.metadata.name.as_deref(), Some(name)),
                (Err(reason), Err(part)) => assert!(reason.contains(part), "{reason}"),
                (found, _) => panic!("{label:?}: {:?}", found.map(|one| one.metadata.name.clone())),
            }
        }
    }

    #[test]
    fn each_wish_is_one_run() {
        let ready = json!({"phase": "Ready", "hostsYaml": "all:", "installed": ["w"], "nodes": [{"name": "w", "roles": ["worker"]}]});
        let lists = read(&software(&json!({"workerSoftware": ["jq"]}))).unwrap();
        let edge = provisioning("edge", json!({}), ready.clone());
        let begins = |status: &SoftwareStatus, asked: Option<&str>| match next(status, asked, &edge, &lists) {
            SoftwareAction::Begin { number, hash, .. } => Some((number, hash)),
            _ => None,
        };
        let (number, wanted) = begins(&SoftwareStatus::default(), None).expect("a run");
        assert_eq!(number, 1);
        let status = |state: &str, wanted: &str| SoftwareStatus {
            run: Some(RunProgress {
                number: 3,
                state: state.into(),
                asked: Some("a".into()),
                ..RunProgress::default()
            }),
            wanted: Some(wanted.into()),
            ..SoftwareStatus::default()
        };
        assert_eq!(next(&status(SUCCEEDED, &wanted), Some("a"), &edge, &lists), SoftwareAction::Current);
        assert_eq!(next(&status("Failed", &wanted), Some("a"), &edge, &lists), SoftwareAction::Stuck);
        assert_eq!(next(&status("Failed", &wanted), None, &edge, &lists), SoftwareAction::Stuck);
        let number = |found: Option<(i64, String)>| found.map(|(number, _)| number);
        assert_eq!(number(begins(&status("Failed", &wanted), Some("b"))), Some(4));
        assert_eq!(number(begins(&status(SUCCEEDED, "other"), Some("a"))), Some(4));
        assert_eq!(number(begins(&status(STARTING, "other"), Some("a"))), Some(3));
        let none = read(&software(&json!({"masterSoftware": ["jq"]}))).unwrap();
        assert_eq!(next(&SoftwareStatus::default(), None, &edge, &none), SoftwareAction::Current);
        for (field, value) in
            [("phase", json!("Installing")), ("hostsYaml", Value::Null), ("run", json!({"state": "Running"}))]
        {
            let mut other = ready.clone();
            other[field] = value;
            let other = provisioning("edge", json!({}), other);
            assert!(
                matches!(next(&SoftwareStatus::default(), None, &other, &lists), SoftwareAction::Waits(_)),
                "{field}"
            );
        }
    }
}
