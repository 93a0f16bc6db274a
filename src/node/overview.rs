//! `slipway node status`: what the agent did and what it waits for, from its disk.

use std::fmt::Write as _;

use super::config::NodeConfig;
use super::contact::NodeAgentContact;
use super::journal::Journal;
use super::plan;
use crate::api::lcm::{Phase, StateItemStatus};
use crate::log;

/// Longest message that is shown, in characters.
const WORDS: usize = 300;

/// The text.
///
/// # Errors
/// When the agent's files cannot be read.
pub fn overview(config: &NodeConfig) -> std::io::Result<String> {
    let journal = Journal::read(&config.state_folder)?;
    let contact = NodeAgentContact::read(&config.run_folder).filter(|contact| is_alive(contact.process));
    Ok(text(config, &journal, contact.as_ref()))
}

fn is_alive(process: u32) -> bool {
    std::path::Path::new("/proc").join(process.to_string()).exists()
}

fn text(config: &NodeConfig, journal: &Journal, contact: Option<&NodeAgentContact>) -> String {
    let mut out = String::new();
    // Writing to memory does not fail.
    let mut line = |key: &str, value: &str| writeln!(out, "{key:<12}{value}").unwrap_or_default();
    line("Machine:", &format!("{}/{} of {}", config.namespace, config.name, config.server));
    match contact {
        None => line("Agent:", "does not run (systemctl status slipway-node)"),
        Some(contact) => line("Agent:", &format!("version {}, process {}", contact.version, contact.process)),
    }
    if let Some(contact) = contact {
        let appliance = match (contact.is_gone, contact.trouble.as_str()) {
            (true, _) => "the LCMMachine is gone: nothing is done",
            (false, "") => "reached",
            (false, trouble) => trouble,
        };
        line("Appliance:", &log::clean(appliance, WORDS));
        if !contact.keys.is_empty() {
            line("SSH keys:", &log::clean(&contact.keys, WORDS));
        }
    }
    let Some(machine) = &journal.machine else {
        line("Steps:", "none yet: the LCMMachine was never read");
        return out;
    };
    line("Spec:", &format!("generation {}, release {:?}", machine.generation, machine.spec.release));
    if machine.spec.halt_agent || machine.spec.maintenance {
        line("Halted:", "spec.haltAgent or spec.maintenance is set: only SSH keys are kept");
    }
    if let Some(upgrade) = journal.records.upgrade.as_ref().filter(|upgrade| !upgrade.status.error.is_empty()) {
        line("Upgrade:", &log::clean(&upgrade.status.error, WORDS));
    }
    if let Some(asked) = &machine.reboot_requested {
        let error = journal.records.reboot.as_ref().map_or("", |reboot| reboot.error.as_str());
        line("Reboot:", &format!("asked for at {} {}", asked.0, log::clean(error, WORDS)));
    }
    let items = machine.spec.items();
    let done = items.iter().filter(|item| plan::is_done(item, &journal.records.steps)).count();
    line("Steps:", &format!("{done} of {} done", items.len()));
    for item in &items {
        let step = journal.records.steps.get(&item.name).filter(|step| step.hash == item.hash());
        let waits = contact.and_then(|contact| contact.waits.get(&item.name));
        let (state, words) = state(step, waits, contact.is_some());
        let phase = match item.phase {
            Phase::Prepare => "prepare",
            Phase::Deploy => "deploy",
            Phase::Reconfigure => "reconfigure",
        };
        let name = log::clean(&item.name, 128);
        writeln!(out, "  {phase:<12}{name:<28}{state:<22}{}", log::clean(&words, WORDS)).unwrap_or_default();
    }
    out
}

/// How a step is, and what it says.
fn state(step: Option<&StateItemStatus>, waits: Option<&String>, runs: bool) -> (String, String) {
    if let Some(reason) = waits {
        return ("waits".into(), reason.clone());
    }
    match step {
        None => ("not begun".into(), String::new()),
        Some(step) => match (step.exit_code, step.finished_at.as_ref()) {
            (Some(0), at) => ("done".into(), at.map(|at| at.0.to_string()).unwrap_or_default()),
            (Some(code), _) => (format!("failed {code}, try {}", step.attempt), step.message.clone()),
            (None, _) if runs => (format!("runs, try {}", step.attempt), String::new()),
            (None, _) => (format!("cut off, try {}", step.attempt), String::new()),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::api::lcm::StateItem;
    use crate::node::journal::{KnownMachine, Records};

    #[test]
    fn it_says_what_is_done_and_what_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let config: NodeConfig = serde_json::from_value(serde_json::json!({
            "server": "https://192.0.2.1:8443", "caCertificate": "", "namespace": "rack", "name": "n1",
            "tokenFile": "/t", "stateFolder": folder.path(), "runFolder": folder.path(),
        }))
        .unwrap();
        assert!(overview(&config).unwrap().contains("never read"));
        let items: Vec<StateItem> =
            ["a", "b", "c"].map(|name| StateItem { name: name.into(), ..StateItem::default() }).into();
        let step = |item: &StateItem, code| StateItemStatus {
            hash: item.hash(),
            exit_code: code,
            attempt: 2,
            message: "no\x1b such file".into(),
            ..StateItemStatus::default()
        };
        let mut journal = Journal::open(folder.path(), |_| {}).unwrap();
        let records = Records {
            steps: BTreeMap::from([
                ("a".to_owned(), step(&items[0], Some(0))),
                ("b".to_owned(), step(&items[1], Some(3))),
            ]),
            ..Records::default()
        };
        let mut machine = KnownMachine::default();
        machine.spec.state_items = items;
        journal.keep(machine).unwrap();
        journal.after(|of| *of = records).unwrap();
        let contact = NodeAgentContact {
            process: std::process::id(),
            trouble: "the appliance does not answer: refused".into(),
            waits: BTreeMap::from([("c".to_owned(), "waiting for room".to_owned())]),
            ..NodeAgentContact::default()
        };
        contact.write(folder.path());
        let text = overview(&config).unwrap();
        for part in
            ["rack/n1", "does not answer", "1 of 3 done", "failed 3, try 2", "no  such file", "waiting for room"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
