//! The summary of a run, in words and as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::appliance_process::Usage;
use super::counts::CountsSnapshot;
use super::follow::{SimulatedHost, Tally};
use super::plan::Goal;

/// Slowest hosts, and hosts that did not arrive, that are named.
const NAMED: usize = 5;
/// Characters of the error that a line about all shows.
const LONGEST_ERROR: usize = 200;

/// A run.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunSummary {
    /// Machines.
    pub machines: usize,
    /// What decided every chance.
    pub seed: u64,
    /// Whether all arrived in time.
    pub succeeded: bool,
    /// Each goal in its order.
    pub goals: Vec<Reached>,
    /// Hosts in each state at the end.
    pub states: BTreeMap<String, usize>,
    /// Errors that hosts had.
    pub errors: u64,
    /// Hosts that did not arrive, the first of them.
    pub missing: Vec<MissingHost>,
    /// What happened meanwhile.
    pub counted: CountsSnapshot,
    /// What the appliance took, when it is one of the simulator's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub appliance: Option<Usage>,
    /// Reconciliations, when the appliance tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconciles: Option<Reconciles>,
}

/// One goal.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reached {
    /// Its name.
    pub goal: &'static str,
    /// Hosts that reached it.
    pub arrived: usize,
    /// Seconds until the last of them did.
    pub seconds: f64,
    /// Seconds of half of them, of 99 in a hundred.
    pub half: f64,
    /// See `half`.
    pub most: f64,
    /// The slowest, with their seconds.
    pub slowest: Vec<(String, f64)>,
}

/// A host that did not arrive.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MissingHost {
    /// Its name.
    pub host: String,
    /// Its state.
    pub state: String,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What the appliance's metrics say of its reconciliations: `slipway_host_reconcile_seconds`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reconciles {
    /// How many.
    pub count: u64,
    /// Seconds in all.
    pub seconds: f64,
    /// How many took longer than 50 ms.
    pub over_50_ms: u64,
}

/// How hosts reached a goal since `began`.
pub fn reached(goal: Goal, began: Instant, hosts: &BTreeMap<String, SimulatedHost>) -> Reached {
    let mut times: Vec<(String, f64)> = hosts
        .iter()
        .filter_map(|(name, host)| {
            let at = host.reached.get(&goal)?;
            Some((name.clone(), rounded(at.duration_since(began))))
        })
        .collect();
    times.sort_by(|one, other| one.1.total_cmp(&other.1));
    let at = |part: f64| {
        let index = (times.len() as f64 * part).ceil() as usize;
        times.get(index.saturating_sub(1)).map_or(0.0, |(_, seconds)| *seconds)
    };
    Reached {
        goal: goal.as_str(),
        arrived: times.len(),
        seconds: at(1.0),
        half: at(0.5),
        most: at(0.99),
        slowest: times.iter().rev().take(NAMED).cloned().collect(),
    }
}

fn rounded(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

/// Hosts that have not reached the goal.
pub fn missing(goal: Goal, hosts: &BTreeMap<String, SimulatedHost>) -> Vec<MissingHost> {
    let late = hosts.iter().filter(|(_, host)| !host.reached.contains_key(&goal));
    let one = |(name, host): (&String, &SimulatedHost)| MissingHost {
        host: name.clone(),
        state: host.state.map_or_else(|| "not there".to_owned(), |state| state.as_str().to_owned()),
        error: host.error.clone(),
    };
    late.map(one).take(NAMED).collect()
}

/// One line about how far all are: `61 of 100 provisioned, 12.2/s; 22 provisioning, 17 preparing; 1 with an error,
/// sim-00007: …`.
pub fn line(goal: Goal, tally: &Tally, elapsed: Duration) -> String {
    let rate = tally.arrived as f64 / elapsed.as_secs_f64().max(0.001);
    let mut text = format!("{} of {} {}, {rate:.1}/s", tally.arrived, tally.hosts, goal.as_str());
    let others: Vec<String> = tally
        .states
        .iter()
        .filter(|(state, _)| **state != goal.as_str())
        .map(|(state, count)| format!("{count} {state}"))
        .collect();
    if !others.is_empty() {
        text += &format!("; {}", others.join(", "));
    }
    if tally.failing > 0 {
        text += &format!("; {} with an error", tally.failing);
    }
    if let Some(error) = &tally.error {
        let cut: String = error.chars().take(LONGEST_ERROR).collect();
        text += &format!(", {cut}{}", if cut.len() < error.len() { "…" } else { "" });
    }
    text
}

/// Reads reconciliations from an appliance's metrics. `None` when it has none.
pub fn reconciles(metrics: &str) -> Option<Reconciles> {
    const NAME: &str = "slipway_host_reconcile_seconds";
    let value = |suffix: &str, label: &str| {
        let lines = metrics.lines().filter_map(|line| line.strip_prefix(NAME)?.strip_prefix(suffix));
        let mut found =
            lines.filter(|rest| rest.contains(label)).filter_map(|rest| rest.rsplit(' ').next()?.parse().ok());
        found.next().map(|first: f64| first + found.sum::<f64>())
    };
    let count = value("_count", "")? as u64;
    let within = value("_bucket", "le=\"0.05\"")? as u64;
    Some(Reconciles { count, seconds: value("_sum", "")?, over_50_ms: count.saturating_sub(within) })
}

/// The summary for people.
pub fn text(summary: &RunSummary) -> String {
    let mut lines = Vec::new();
    for goal in &summary.goals {
        lines.push(format!(
            "{} of {} {} after {:.1} s (half of them {:.1} s, 99 % {:.1} s)",
            goal.arrived, summary.machines, goal.goal, goal.seconds, goal.half, goal.most
        ));
        let slowest: Vec<_> = goal.slowest.iter().map(|(name, seconds)| format!("{name} {seconds:.1} s")).collect();
        if !slowest.is_empty() {
            lines.push(format!("  slowest: {}", slowest.join(", ")));
        }
    }
    for missing in &summary.missing {
        let error = missing.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        lines.push(format!("  not arrived: {} is {}{error}", missing.host, missing.state));
    }
    let counted = &summary.counted;
    lines.push(format!(
        "{} boots, {} DHCP exchanges ({} messages sent again), boot programs {} by TFTP and {} by HTTP, {} boot scripts, \
         {} virtual CDs, {} boot URLs, {} sessions, {} steps, {} images written, \
         {} systems started, {:.1} MB fetched",
        counted.boots,
        counted.dhcp_exchanges,
        counted.dhcp_asked_again,
        counted.tftp_programs,
        counted.http_programs,
        counted.boot_scripts,
        counted.media_boots,
        counted.url_boots,
        counted.sessions,
        counted.steps,
        counted.images_written,
        counted.systems_started,
        counted.bytes as f64 / 1e6
    ));
    lines.push(format!(
        "on purpose: {} BMC faults, {} packets lost, {} power losses, {} stuck boots; hosts showed {} errors",
        counted.bmc_faults, counted.packets_lost, counted.power_losses, counted.stuck, summary.errors
    ));
    if let Some(usage) = &summary.appliance {
        lines.push(format!(
            "the appliance: {:.1} s of processor time, {:.1} MB resident, {:.1} MB at most",
            usage.cpu_seconds, usage.resident_mb, usage.peak_mb
        ));
    }
    if let Some(reconciles) = &summary.reconciles {
        lines.push(format!(
            "its reconciliations: {}, {:.2} ms each, {} over 50 ms",
            reconciles.count,
            1000.0 * reconciles.seconds / (reconciles.count.max(1) as f64),
            reconciles.over_50_ms
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_all_are() {
        let tally = Tally {
            hosts: 100,
            arrived: 61,
            states: [("provisioned", 61), ("provisioning", 22), ("preparing", 17)].into(),
            failing: 1,
            error: Some("sim-00007: no answer".to_owned()),
            errors: 3,
        };
        let said = line(Goal::Provisioned, &tally, Duration::from_secs(5));
        assert_eq!(
            said,
            "61 of 100 provisioned, 12.2/s; 17 preparing, 22 provisioning; 1 with an error, sim-00007: no answer"
        );
        let long = Tally { error: Some("ä".repeat(LONGEST_ERROR + 1)), ..tally };
        let said = line(Goal::Provisioned, &long, Duration::from_secs(5));
        assert!(said.ends_with(&format!("; 1 with an error, {}…", "ä".repeat(LONGEST_ERROR))), "{said}");
    }

    #[test]
    fn metrics_are_read() {
        let metrics = "# TYPE slipway_host_reconcile_seconds histogram\n\
            slipway_host_reconcile_seconds_sum 12.5\nslipway_host_reconcile_seconds_count 1000\n\
            slipway_host_reconcile_seconds_bucket{le=\"0.025\"} 900\n\
            slipway_host_reconcile_seconds_bucket{le=\"0.05\"} 997\n\
            slipway_host_reconcile_seconds_bucket{le=\"+Inf\"} 1000\n";
        assert_eq!(reconciles(metrics), Some(Reconciles { count: 1000, seconds: 12.5, over_50_ms: 3 }));
        assert_eq!(reconciles("apiserver_request_total 1\n"), None);
    }
}
