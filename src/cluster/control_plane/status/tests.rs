//! What is shown of what is known.

use super::*;
use crate::cluster::control_plane::health::{Contact, PODS};
use crate::cluster::control_plane::plan::{ControlPlaneAction, EtcdMember, Preflight};

const NOW: i64 = 1_800_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW + seconds).unwrap()
}

fn machine(name: &str) -> ShownMachine {
    let types = PODS.map(|(type_, _)| type_).into_iter().chain([health::ETCD_MEMBER]);
    ShownMachine {
        name: name.into(),
        version: Some("v1.34.0".into()),
        node: Some(name.into()),
        has_provider_id: true,
        said: ["Ready", "Available", "UpToDate"].map(|type_| (type_, ConditionVerdict::yes(type_))).into(),
        parts: types.map(|type_| (type_, ConditionVerdict::yes("Healthy"))).collect(),
        ..ShownMachine::default()
    }
}

fn members(names: &[&str]) -> EtcdStatus {
    let members = (1..).zip(names).map(|(id, name)| EtcdMember { id, name: (*name).into(), learner: false });
    EtcdStatus { members: members.collect(), leader: 1, ..EtcdStatus::default() }
}

struct Case {
    machines: Vec<ShownMachine>,
    etcd: Option<EtcdStatus>,
    contact: Contact,
    decision: Option<ControlPlaneDecision>,
    initialized: bool,
    desired: usize,
    blocked: Option<String>,
    deleting: Option<Deleting>,
    certificates: Option<ConditionVerdict>,
    before: KubeadmControlPlaneStatus,
}

fn case() -> Case {
    Case {
        machines: vec![machine("a"), machine("b"), machine("c")],
        etcd: Some(members(&["a", "b", "c"])),
        contact: Contact::Seen(Box::default()),
        decision: None,
        initialized: true,
        desired: 3,
        blocked: None,
        deleting: None,
        certificates: Some(ConditionVerdict::yes("Available")),
        before: KubeadmControlPlaneStatus::default(),
    }
}

impl Case {
    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn status(self) -> KubeadmControlPlaneStatus {
        let report = ControlPlaneStatusInput {
            cluster: "one",
            generation: Some(3),
            desired: self.desired,
            etcd_managed: true,
            initialized: self.initialized,
            paused: ConditionVerdict::no("NotPaused", ""),
            certificates: self.certificates.clone(),
            machines: &self.machines,
            ready_nodes: Some(self.machines.len()),
            etcd: self.etcd.as_ref(),
            contact: &self.contact,
            decision: self.decision.as_ref(),
            blocked: self.blocked.clone(),
            deleting: self.deleting.clone(),
            remediation: None,
            now: at(0),
        };
        status(self.before.clone(), &report)
    }

    /// Status and reason of a condition, and its message.
    fn shows(self, type_: &str) -> (String, String) {
        let status = self.status();
        let found = conditions::find(&status.conditions, type_).unwrap_or_else(|| panic!("no {type_}"));
        (format!("{} {}", found.status, found.reason), found.message.clone())
    }
}

fn waiting(preflight: Preflight) -> ControlPlaneDecision {
    ControlPlaneDecision {
        action: ControlPlaneAction::Wait(String::new()),
        rolling_out: false,
        refusal: None,
        preflight,
    }
}

#[test]
fn machines_are_counted() {
    let status = case()
        .with(|case| {
            case.machines[0].version = Some("v1.33.10".into());
            case.machines[1].version = Some("v1.33.9".into());
            case.machines[2].said.insert("Ready", ConditionVerdict::no("NotReady", ""));
            case.machines[2].said.remove("Available");
            case.machines[1].said.insert("UpToDate", ConditionVerdict::no("NotUpToDate", ""));
        })
        .status();
    let counts = [status.replicas, status.ready_replicas, status.available_replicas, status.up_to_date_replicas];
    assert_eq!(counts, [Some(3), Some(2), Some(2), Some(2)]);
    assert_eq!(status.version.as_deref(), Some("v1.33.9"));
    assert_eq!(
        status.versions.iter().map(|one| one.version.as_str()).collect::<Vec<_>>(),
        ["v1.33.9", "v1.33.10", "v1.34.0"]
    );
    assert_eq!(status.selector.as_deref(), Some("cluster.x-k8s.io/cluster-name=one,cluster.x-k8s.io/control-plane"));
    assert_eq!(
        (status.observed_generation, status.initialization.unwrap().control_plane_initialized),
        (Some(3), Some(true))
    );
    let old = status.deprecated.unwrap().v1beta1.unwrap();
    assert_eq!((old.ready_replicas, old.updated_replicas, old.unavailable_replicas), (3, 2, 0));
}

#[test]
fn conditions_say_how_it_is() {
    let ill = |case: &mut Case, index: usize, type_: &'static str| {
        drop(case.machines[index].parts.insert(type_, ConditionVerdict::no("NotHealthy", "oops")));
    };
    let rows: Vec<(&str, Case, &str)> = vec![
        ("Available", case(), "True Available"),
        ("Available", case().with(|case| case.initialized = false), "False NotAvailable"),
        ("Available", case().with(|case| case.etcd = None), "Unknown InspectionFailed"),
        ("Available", case().with(|case| ill(case, 0, health::ETCD_MEMBER)), "True Available"),
        (
            "Available",
            case().with(|case| {
                ill(case, 0, health::ETCD_MEMBER);
                ill(case, 1, health::ETCD_MEMBER);
            }),
            "False NotAvailable",
        ),
        (
            "Available",
            case().with(|case| (0..3).for_each(|index| ill(case, index, "APIServerPodHealthy"))),
            "False NotAvailable",
        ),
        (
            "Available",
            case().with(|case| case.certificates = Some(ConditionVerdict::no("NotAvailable", "x"))),
            "False NotAvailable",
        ),
        ("Initialized", case(), "True Initialized"),
        ("Initialized", case().with(|case| case.initialized = false), "False NotInitialized"),
        ("CertificatesAvailable", case(), "True Available"),
        ("EtcdClusterHealthy", case(), "True Healthy"),
        ("EtcdClusterHealthy", case().with(|case| ill(case, 0, health::ETCD_MEMBER)), "False NotHealthy"),
        (
            "EtcdClusterHealthy",
            case().with(|case| case.etcd = Some(members(&["a", "b", "c", "d"]))),
            "False NotHealthy",
        ),
        (
            "EtcdClusterHealthy",
            case().with(|case| case.contact = Contact::Down("no route".into())),
            "Unknown ConnectionDown",
        ),
        ("ControlPlaneComponentsHealthy", case(), "True Healthy"),
        ("ControlPlaneComponentsHealthy", case().with(|case| ill(case, 0, "SchedulerPodHealthy")), "False NotHealthy"),
        (
            "ControlPlaneComponentsHealthy",
            case().with(|case| case.contact = Contact::Early),
            "Unknown InspectionFailed",
        ),
        ("MachinesReady", case(), "True Ready"),
        ("MachinesReady", case().with(|case| case.machines.clear()), "True NoReplicas"),
        (
            "MachinesUpToDate",
            case().with(|case| drop(case.machines[0].said.remove("UpToDate"))),
            "Unknown UpToDateUnknown",
        ),
        ("ScalingUp", case(), "False NotScalingUp"),
        ("ScalingUp", case().with(|case| case.desired = 5), "True ScalingUp"),
        ("ScalingDown", case(), "False NotScalingDown"),
        ("ScalingDown", case().with(|case| case.desired = 1), "True ScalingDown"),
        ("Remediating", case(), "False NotRemediating"),
        ("Deleting", case(), "False NotDeleting"),
        ("Paused", case(), "False NotPaused"),
        ("RollingOut", case(), "False NotRollingOut"),
    ];
    for (index, (type_, case, wanted)) in rows.into_iter().enumerate() {
        let (found, message) = case.shows(type_);
        assert_eq!(found, wanted, "{index} {type_}: {message}");
    }
}

#[test]
fn a_silent_cluster_says_how_etcd_is_recovered() {
    for (machines, wanted) in [(1, "1 or more of the 1"), (2, "1 or more of the 2"), (3, "2 or more of the 3")] {
        let silent = case().with(|case| {
            case.machines.truncate(machines);
            case.contact = Contact::Down("no route".into());
        });
        let (_, message) = silent.shows("EtcdClusterHealthy");
        assert!(message.contains("no route\n") && message.contains(wanted), "{message}");
        assert!(message.contains("When etcd has lost its quorum"), "{message}");
    }
    let (_, message) = case().with(|case| case.contact = Contact::Early).shows("EtcdClusterHealthy");
    assert!(!message.contains("quorum"), "{message}");
}

#[test]
fn messages_say_why() {
    let outdated = |case: &mut Case, index: usize, message: &str| {
        drop(case.machines[index].said.insert("UpToDate", ConditionVerdict::no("NotUpToDate", message)));
    };
    let rolling = case().with(|case| {
        outdated(case, 0, "* KubeadmConfig is not up-to-date\n* Version v1.33.0, v1.34.0 required");
        outdated(case, 1, "* KubeadmConfig is not up-to-date");
    });
    let (found, message) = rolling.shows("RollingOut");
    assert_eq!(found, "True RollingOut");
    let lines =
        "Rolling out 2 not up-to-date replicas\n* Version v1.33.0, v1.34.0 required\n* KubeadmConfig is not up-to-date";
    assert_eq!(message, lines);
    let blocked = case().with(|case| {
        case.desired = 5;
        case.decision = Some(waiting(Preflight { deleting: true, etcd: true, ..Preflight::default() }));
        case.blocked = Some("there is no template".into());
    });
    let message = blocked.shows("ScalingUp").1;
    assert!(
        message.starts_with("Scaling up from 3 to 5 replicas is blocked because:\n* waiting for a control plane"),
        "{message}"
    );
    assert!(message.contains("etcd") && message.ends_with("* there is no template"), "{message}");
    let replaced = case().with(|case| {
        case.machines[1].unhealthy = true;
        case.machines[1].said.insert(OWNER_REMEDIATED, ConditionVerdict::no("RemediationDeferred", "too early"));
    });
    let (found, message) = replaced.shows("Remediating");
    assert_eq!((found.as_str(), message.as_str()), ("True Remediating", "* b: too early"));
    let going = case().with(|case| {
        case.machines.truncate(1);
        case.machines[0].deleted = Some(at(-1000));
        case.deleting = Some(Deleting { reason: "WaitingForMachineDeletion", message: "one".into() });
    });
    assert!(going.with(|case| case.desired = 1).shows("ScalingDown").1.contains("more than 15 min"));
    assert_eq!(few(&["a"]), "Machine a is");
    assert_eq!(few(&["a", "b", "c", "d"]), "Machines a, b, c and 1 more are");
}

#[test]
fn what_was_replaced_last_is_shown() {
    let replaces = |name: &str, ago: i64| Remediation { machine: name.into(), timestamp: at(-ago), retry_count: 1 };
    let status = case()
        .with(|case| {
            case.machines[0].replaces = Some(replaces("x", 90));
            case.machines[1].replaces = Some(replaces("y", 60));
        })
        .status();
    let last = status.last_remediation.clone().unwrap();
    assert_eq!((last.machine.as_str(), last.time.0, last.retry_count), ("y", at(-60), 1));
    // It stays known when its machine goes.
    let kept = case().with(|case| case.before = status).status();
    assert_eq!(kept.last_remediation, Some(last));
}

#[test]
fn clients_of_v1beta1_see_their_conditions() {
    let old = |case: Case, type_: &str| {
        let all = case.status().deprecated.unwrap().v1beta1.unwrap().conditions;
        let found = all.iter().find(|condition| condition.type_ == type_).cloned();
        found.map(|one| {
            format!("{} {} {}", one.status, one.reason.unwrap_or_default(), one.severity.unwrap_or_default())
        })
    };
    let rolling = ControlPlaneDecision { rolling_out: true, ..waiting(Preflight::default()) };
    for (type_, case, wanted) in [
        ("Ready", case(), Some("True  ")),
        ("Available", case(), Some("True  ")),
        ("Available", case().with(|case| case.initialized = false), Some("False WaitingForKubeadmInit Info")),
        ("Resized", case(), Some("True  ")),
        ("Resized", case().with(|case| case.desired = 5), Some("False ScalingUp Warning")),
        ("Resized", case().with(|case| case.desired = 1), Some("False ScalingDown Warning")),
        ("Ready", case().with(|case| case.desired = 5), Some("False ScalingUp Warning")),
        ("MachinesCreated", case(), Some("True  ")),
        (
            "MachinesCreated",
            case().with(|case| case.blocked = Some("x".into())),
            Some("False InfrastructureTemplateCloningFailed Error"),
        ),
        ("MachinesSpecUpToDate", case(), None),
        (
            "MachinesSpecUpToDate",
            case().with(|case| case.decision = Some(rolling)),
            Some("False RollingUpdateInProgress Warning"),
        ),
        (
            "CertificatesAvailable",
            case().with(|case| case.certificates = Some(ConditionVerdict::no("X", "y"))),
            Some("False CertificatesGenerationFailed Warning"),
        ),
        ("EtcdClusterHealthy", case(), Some("True  ")),
        ("EtcdClusterHealthy", case().with(|case| case.contact = Contact::Early), Some("Unknown EtcdClusterUnknown ")),
    ] {
        assert_eq!(old(case, type_).as_deref(), wanted, "{type_}");
    }
}

#[test]
fn a_status_that_has_nothing_new_stays() {
    let first = case().status();
    let again = case().with(|case| case.before = first.clone()).status();
    assert_eq!(again, first);
}
