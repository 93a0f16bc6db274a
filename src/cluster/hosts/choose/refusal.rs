//! Why a host is not given to a machine, and what is said of all of them together.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::host::{Barred, CandidateHost};
use super::needs::HardwareLack;
use super::selector::Unmet;
use crate::cluster::hosts::consumer::Consumer;
use crate::cluster::hosts::names::LABEL_REUSE;

/// Hosts that are named for each reason.
pub const NAMED: usize = 3;
/// Letters of the summary: an event has room for them.
const LONGEST: usize = 900;
/// Letters of a host's name that are shown.
const NAME: usize = 63;

/// Why nobody gets a host, whoever asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shut {
    /// It goes.
    Deleting,
    /// It has more labels than are looked at.
    Labels,
    /// Somebody has it.
    Claimed,
    /// An annotation bars it.
    Barred(Barred),
    /// It has an error.
    Failed,
    /// It runs something, or is told to.
    HasImage,
    /// It is somewhere else in its life.
    State,
}

impl Shut {
    /// Every reason.
    pub const ALL: [Self; 9] = [
        Self::Deleting,
        Self::Labels,
        Self::Claimed,
        Self::Barred(Barred::Paused),
        Self::Barred(Barred::Detached),
        Self::Barred(Barred::Unhealthy),
        Self::Failed,
        Self::HasImage,
        Self::State,
    ];

    /// What it is called.
    pub fn word(self) -> &'static str {
        match self {
            Self::Deleting => "being deleted",
            Self::Labels => "with more labels than are looked at",
            Self::Claimed => "claimed by others",
            Self::Barred(barred) => barred.word(),
            Self::Failed => "in error",
            Self::HasImage => "told already what to run",
            Self::State => "not available",
        }
    }

    /// What is particular to one host.
    fn detail(self, host: &CandidateHost) -> Option<String> {
        match (self, &host.consumer) {
            (Self::Claimed, Consumer::Machine(machine)) => Some(format!("{} {}", machine.kind.kind(), machine.name)),
            (Self::Claimed, Consumer::Other { kind, name }) => Some(format!("{kind} {name}")),
            (Self::Failed, _) => Some(host.error.clone()),
            (Self::State, _) => Some(if host.state.as_str().is_empty() { "new" } else { host.state.as_str() }.into()),
            _ => None,
        }
    }
}

/// Why a host is not given to a machine.
#[derive(Clone, Debug, PartialEq)]
pub enum HostRefusal {
    /// Nobody gets it.
    Shut(Shut),
    /// It is kept for another control plane or deployment.
    Kept,
    /// Its labels are not the wanted ones.
    Unmet(Unmet),
    /// It is too small.
    Lack(HardwareLack),
    /// Another machine is about to take it.
    Taken,
}

impl HostRefusal {
    /// What hosts are grouped by: the same words for the same reason.
    fn group(&self) -> Cow<'static, str> {
        match self {
            Self::Shut(reason) => reason.word().into(),
            Self::Kept => "kept for reuse by others".into(),
            Self::Unmet(unmet) => format!("without the label {}", unmet.wanted()).into(),
            Self::Lack(HardwareLack::Unknown) => "not inspected".into(),
            Self::Lack(lack) => format!("with less than {}", lack.needed()).into(),
            Self::Taken => "about to be claimed by others".into(),
        }
    }

    /// What is particular to one host.
    fn detail(&self, host: &CandidateHost) -> Option<String> {
        match self {
            Self::Shut(reason) => reason.detail(host),
            Self::Kept => host.label(LABEL_REUSE).map(str::to_owned),
            Self::Unmet(unmet) => Some(unmet.to_string()),
            Self::Lack(HardwareLack::Unknown) | Self::Taken => None,
            Self::Lack(lack) => Some(lack.to_string()),
        }
    }
}

/// Hosts that a machine does not get, by the reason: how many, and the first of them.
#[derive(Debug, Default)]
pub struct Reasons {
    hosts: usize,
    groups: BTreeMap<Cow<'static, str>, RefusedHosts>,
}

#[derive(Debug, Default)]
struct RefusedHosts {
    hosts: usize,
    shown: Vec<String>,
}

impl Reasons {
    /// Counts a host.
    pub fn add(&mut self, host: &CandidateHost, reason: &HostRefusal) {
        self.add_all(reason, 1, [host]);
    }

    /// Counts so many hosts, of which these are the first.
    pub fn add_all<'h>(
        &mut self,
        reason: &HostRefusal,
        hosts: usize,
        first: impl IntoIterator<Item = &'h CandidateHost>,
    ) {
        if hosts == 0 {
            return;
        }
        self.hosts += hosts;
        let group = self.groups.entry(reason.group()).or_default();
        group.hosts += hosts;
        let room = NAMED.saturating_sub(group.shown.len());
        group.shown.extend(first.into_iter().take(room).map(|host| one(host, reason)));
    }

    /// What is said of all of them. The text is bounded, however many there are and whatever they say.
    pub fn summary(&self) -> String {
        if self.hosts == 0 {
            return "There is no BareMetalHost in this namespace".into();
        }
        let mut groups: Vec<_> = self.groups.iter().collect();
        // Those that are nearest to be had are said first.
        groups.sort_by_key(|(_, group)| group.hosts);
        let mut text = format!("None of {} BareMetalHosts can be claimed: ", self.hosts);
        for (number, (words, group)) in groups.iter().enumerate() {
            let mut part = if number > 0 { "; ".to_owned() } else { String::new() };
            _ = write!(part, "{} {words} ({}", group.hosts, group.shown.join(", "));
            if group.hosts > group.shown.len() {
                _ = write!(part, ", and {} more", group.hosts - group.shown.len());
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
}

fn one(host: &CandidateHost, refusal: &HostRefusal) -> String {
    let name: String = host.metadata.name.as_deref().unwrap_or_default().chars().take(NAME).collect();
    match refusal.detail(host) {
        Some(detail) => format!("{name}: {}", detail.chars().take(NAME).collect::<String>()),
        None => name,
    }
}
