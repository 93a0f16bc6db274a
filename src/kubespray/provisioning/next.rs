//! Which run of kubespray comes next, if one does. Pure.
//!
//! The first one installs the cluster. Workers that come later are added by `scale`, which touches only them. Whatever failed is not
//! repeated by itself: the annotation `bpa.akraino.org/run` asks for another run.

use super::wanted::WantedNode;
use crate::api::bpa::{ANNOTATION_RUN, RunProgress};
use crate::kubespray::runs::Playbook;

/// Longest value of the annotation that is understood.
const ASKED_MAX: usize = 100;
/// A run that is noted, and may not be there yet.
pub const STARTING: &str = "Starting";
/// One that was seen.
pub const RUNNING: &str = "Running";
/// Every host did what it was to.
pub const SUCCEEDED: &str = "Succeeded";
/// Nobody knows how it ended.
pub const LOST: &str = "Lost";

/// Playbooks that a Provisioning has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Installs the cluster, or brings it to what the inventory says.
    Cluster,
    /// Adds workers.
    Scale,
    /// Upgrades it to what the checkout has.
    Upgrade,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Cluster, Self::Scale, Self::Upgrade];

    /// As status and annotation have it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Scale => "scale",
            Self::Upgrade => "upgrade-cluster",
        }
    }

    /// What is run.
    pub fn playbook(self) -> Playbook {
        match self {
            Self::Cluster => Playbook::Cluster,
            Self::Scale => Playbook::Scale,
            Self::Upgrade => Playbook::UpgradeCluster,
        }
    }

    fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// What to do about a cluster whose nodes can all be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: all of it is installed.
    Rest,
    /// Nothing: the last run did not succeed.
    Stuck,
    /// A run.
    Begin(Wish),
    /// Nothing, for what is asked for cannot be done.
    Refuse(String),
}

/// A run that is to be begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Which one of its object's.
    pub number: i64,
    /// What is run.
    pub kind: Kind,
    /// Only these nodes; empty: all.
    pub limit: Vec<String>,
}

/// What is known when the next run is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'s> {
    /// Nodes that are wanted.
    pub nodes: &'s [WantedNode],
    /// Those that were installed.
    pub installed: &'s [String],
    /// The run that was begun last.
    pub run: Option<&'s RunProgress>,
    /// The annotation.
    pub asked: Option<&'s str>,
}

impl Standing<'_> {
    /// Nodes that were not installed yet.
    pub fn new_nodes(&self) -> Vec<&WantedNode> {
        self.nodes.iter().filter(|node| !self.installed.iter().any(|name| name == node.name.as_str())).collect()
    }

    /// Why nothing can be installed: kubespray adds masters, which are members of etcd, in steps by hand only.
    pub fn refused_masters(&self) -> Option<String> {
        let new: Vec<_> = self.new_nodes().into_iter().filter(|node| node.is_master).map(|node| &node.name).collect();
        let first = new.first().filter(|_| !self.installed.is_empty())?;
        Some(format!(
            "{first} is a new master, and the cluster is installed: kubespray adds members of etcd in steps by hand \
             (docs/operations/nodes.md of its checkout), and a Provisioning does not. Make it anew, or let the cluster have the masters that it has"
        ))
    }
}

/// Which run comes next.
pub fn next(standing: &Standing<'_>) -> Next {
    let number = standing.run.map_or(0, |run| run.number).max(0);
    let new: Vec<String> = standing.new_nodes().iter().map(|node| node.name.to_string()).collect();
    let begin = |number, kind| {
        let limit = if kind == Kind::Scale { new.clone() } else { Vec::new() };
        Next::Begin(Wish { number, kind, limit })
    };
    if let Some(run) = standing.run.filter(|run| run.state == STARTING) {
        // It was noted, and not begun.
        return begin(number, Kind::of(&run.playbook).unwrap_or(Kind::Cluster));
    }
    let Some(one_more) = number.checked_add(1) else { return Next::Refuse("there were too many runs".into()) };
    let Some(run) = standing.run else { return begin(one_more, Kind::Cluster) };
    if let Some(asked) = standing.asked.filter(|asked| run.asked.as_deref() != Some(*asked)) {
        return match asked_for(asked) {
            Err(why) => Next::Refuse(why),
            Ok(Kind::Scale) if standing.installed.is_empty() => begin(one_more, Kind::Cluster),
            Ok(Kind::Scale) if new.is_empty() => {
                Next::Refuse(format!("{ANNOTATION_RUN}: scale adds workers, and there is no new one"))
            }
            Ok(kind) => begin(one_more, kind),
        };
    }
    match run.state == SUCCEEDED {
        false => Next::Stuck,
        true if new.is_empty() => Next::Rest,
        true => begin(one_more, if standing.installed.is_empty() { Kind::Cluster } else { Kind::Scale }),
    }
}

/// What an annotation asks for.
fn asked_for(asked: &str) -> Result<Kind, String> {
    let kind = Some(asked).filter(|asked| asked.len() <= ASKED_MAX);
    kind.and_then(|asked| Kind::of(asked.split('/').next()?))
        .ok_or_else(|| format!("{ANNOTATION_RUN} is no playbook and a word: cluster/1, scale/1 or upgrade-cluster/1"))
}

/// The value of the annotation that is kept with a run.
pub fn kept(asked: Option<&str>) -> Option<String> {
    asked.map(|asked| asked.chars().take(ASKED_MAX).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::wanted::{read, tests::object};
    use super::*;

    #[test]
    fn a_run_follows_from_what_is_installed_and_from_what_is_asked_for() {
        let cluster =
            read(&object(json!({"masters": [{"m": {"cpu": 1}}], "workers": [{"w": {"cpu": 1}}, {"x": {"cpu": 1}}]})));
        let nodes = cluster.unwrap().nodes;
        let run = |number, state: &str, playbook: &str, asked: Option<&str>| {
            let (state, playbook, asked) = (state.into(), playbook.into(), asked.map(Into::into));
            Some(RunProgress { number, state, playbook, asked, ..RunProgress::default() })
        };
        let begin = |number, kind, limit: &[&str]| {
            Next::Begin(Wish { number, kind, limit: limit.iter().map(|name| (*name).to_owned()).collect() })
        };
        let refuse = |part: &str| Next::Refuse(part.to_owned());
        type Row<'r> = (&'r [&'r str], Option<RunProgress>, Option<&'r str>, Next);
        let all = ["m", "w", "x"];
        let rows: Vec<Row<'_>> = vec![
            (&[], None, None, begin(1, Kind::Cluster, &[])),
            // What the first run is asked for is that run.
            (&[], None, Some("scale/1"), begin(1, Kind::Cluster, &[])),
            (&[], run(1, STARTING, "cluster", None), None, begin(1, Kind::Cluster, &[])),
            (&["m"], run(2, STARTING, "scale", None), Some("cluster/9"), begin(2, Kind::Scale, &["w", "x"])),
            (&all, run(1, SUCCEEDED, "cluster", None), None, Next::Rest),
            (&["m", "w"], run(1, SUCCEEDED, "cluster", None), None, begin(2, Kind::Scale, &["x"])),
            (&[], run(1, "Failed", "cluster", None), None, Next::Stuck),
            (&["m", "w"], run(2, "Failed", "scale", None), None, Next::Stuck),
            (&["m", "w"], run(2, LOST, "scale", Some("a")), Some("a"), Next::Stuck),
            (&["m", "w"], run(2, LOST, "scale", None), Some("scale/1"), begin(3, Kind::Scale, &["x"])),
            (&[], run(1, "Cancelled", "cluster", None), Some("scale/1"), begin(2, Kind::Cluster, &[])),
            (&all, run(3, SUCCEEDED, "scale", Some("cluster/1")), Some("cluster/1"), Next::Rest),
            (&all, run(3, SUCCEEDED, "scale", Some("cluster/1")), Some("cluster/2"), begin(4, Kind::Cluster, &[])),
            (&all, run(3, SUCCEEDED, "scale", None), Some("upgrade-cluster"), begin(4, Kind::Upgrade, &[])),
            (&all, run(3, SUCCEEDED, "scale", None), Some("scale/7"), refuse("no new one")),
            (&all, run(3, SUCCEEDED, "scale", None), Some("reset/7"), refuse("no playbook")),
            (&all, run(3, SUCCEEDED, "scale", None), Some("../../x"), refuse("no playbook")),
            (&all, run(i64::MAX, "Failed", "scale", None), Some("cluster/7"), refuse("too many")),
        ];
        for (installed, run, asked, wanted) in rows {
            let installed: Vec<String> = installed.iter().map(|name| (*name).to_owned()).collect();
            let standing = Standing { nodes: &nodes, installed: &installed, run: run.as_ref(), asked };
            match (next(&standing), wanted) {
                (Next::Refuse(why), Next::Refuse(part)) => assert!(why.contains(&part), "{why}"),
                (found, wanted) => assert_eq!(found, wanted, "{standing:?}"),
            }
        }
    }

    #[test]
    fn masters_are_added_before_the_cluster_is_installed_and_not_after() {
        let three = json!({"masters": [{"a": {"cpu": 1}}, {"b": {"cpu": 1}}, {"c": {"cpu": 1}}]});
        let nodes = read(&object(three)).unwrap().nodes;
        let refused = |installed: &[&str]| {
            let installed: Vec<String> = installed.iter().map(|name| (*name).to_owned()).collect();
            Standing { nodes: &nodes, installed: &installed, run: None, asked: None }.refused_masters()
        };
        assert_eq!(refused(&[]), None);
        assert_eq!(refused(&["a", "b", "c"]), None);
        assert!(refused(&["a"]).unwrap().starts_with("b is a new master"));
    }
}
