//! Why a host is not given to a machine, and what is said of all of them together.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::host::{Barred, HostView};
use super::needs::Lack;
use super::selector::Unmet;
use crate::cluster::hosts::consumer::Consumer;

/// Hosts that are named for each reason.
const NAMED: usize = 3;
/// Letters of the summary: an event has room for them.
const LONGEST: usize = 900;
/// Letters of a host's name that are shown.
const NAME: usize = 63;

/// Why a host is not given to a machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// It goes.
    Deleting,
    /// Somebody has it.
    Claimed(Consumer),
    /// It is kept for another control plane or deployment.
    Kept(String),
    /// An annotation bars it.
    Barred(Barred),
    /// It has an error.
    Failed(String),
    /// It runs something, or is told to.
    HasImage,
    /// It has more labels than are looked at.
    Labels,
    /// Its labels are not the wanted ones.
    Unmet(Unmet),
    /// It is somewhere else in its life.
    State(&'static str),
    /// It is too small.
    Lack(Lack),
    /// Another machine is about to take it.
    Taken,
}

impl Refusal {
    /// What hosts are grouped by: the same words for the same reason.
    fn group(&self) -> String {
        match self {
            Self::Deleting => "being deleted".into(),
            Self::Claimed(_) => "claimed by others".into(),
            Self::Kept(_) => "kept for reuse by others".into(),
            Self::Barred(barred) => barred.word().into(),
            Self::Failed(_) => "in error".into(),
            Self::HasImage => "told already what to run".into(),
            Self::Labels => "with more labels than are looked at".into(),
            Self::Unmet(unmet) => format!("without the label {}", unmet.wanted()),
            Self::State(_) => "not available".into(),
            Self::Lack(Lack::Unknown) => "not inspected".into(),
            Self::Lack(lack) => format!("with less than {}", lack.needed()),
            Self::Taken => "about to be claimed by others".into(),
        }
    }

    /// What is particular to one host.
    fn detail(&self) -> Option<String> {
        match self {
            Self::Claimed(Consumer::Machine(machine)) => Some(format!("{} {}", machine.kind.kind(), machine.name)),
            Self::Claimed(Consumer::Other { kind, name }) => Some(format!("{kind} {name}")),
            Self::Kept(by) | Self::Failed(by) => Some(by.clone()),
            Self::State("") => Some("new".into()),
            Self::State(state) => Some((*state).into()),
            Self::Unmet(unmet) => Some(unmet.to_string()),
            Self::Lack(Lack::Unknown) => None,
            Self::Lack(lack) => Some(lack.to_string()),
            _ => None,
        }
    }
}

/// What is said of the hosts that a machine does not get. The text is bounded, however many there are and whatever they say.
pub fn summary(passed: &[(&HostView, Refusal)]) -> String {
    if passed.is_empty() {
        return "There is no BareMetalHost in this namespace".into();
    }
    let mut groups: BTreeMap<String, Vec<(&HostView, &Refusal)>> = BTreeMap::new();
    for (host, refusal) in passed {
        groups.entry(refusal.group()).or_default().push((host, refusal));
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    // Those that are nearest to be had are said first.
    groups.sort_by_key(|(name, hosts)| (hosts.len(), name.clone()));
    let mut text = format!("None of {} BareMetalHosts can be claimed: ", passed.len());
    for (number, (group, hosts)) in groups.iter().enumerate() {
        let mut part = if number > 0 { "; ".to_owned() } else { String::new() };
        let shown: Vec<String> = hosts.iter().take(NAMED).map(|(host, refusal)| one(host, refusal)).collect();
        _ = write!(part, "{} {group} ({}", hosts.len(), shown.join(", "));
        if hosts.len() > NAMED {
            _ = write!(part, ", and {} more", hosts.len() - NAMED);
        }
        part.push(')');
        if text.chars().count() + part.chars().count() > LONGEST {
            _ = write!(text, "; and {} more reasons", groups.len() - number);
            break;
        }
        text.push_str(&part);
    }
    text
}

fn one(host: &HostView, refusal: &Refusal) -> String {
    let name: String = host.metadata.name.as_deref().unwrap_or_default().chars().take(NAME).collect();
    match refusal.detail() {
        Some(detail) => format!("{name}: {}", detail.chars().take(NAME).collect::<String>()),
        None => name,
    }
}
