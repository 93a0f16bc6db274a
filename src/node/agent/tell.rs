//! What the appliance is told: at once what changed, and now and then that the agent is there.

use std::cell::RefCell;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::Agent;
use super::follow::jitter;
use super::reboot::{RebootTurn, reboot_turn};
use crate::node::client::CallError;
use crate::node::code;
use crate::node::config::AgentPauses;
use crate::node::contact::NodeAgentContact;
use crate::node::effect::NodeEffect;
use crate::node::host;
use crate::node::report::{self, Parts};

/// Between two reads of the hardware.
const HARDWARE: Duration = Duration::from_secs(3600);
/// Least pause between two reports.
const LEAST: Duration = Duration::from_millis(250);
/// How long a report may take in all where nobody waits for the next one.
const ONCE: Duration = Duration::from_secs(60);

/// What was read of the hardware, and when.
#[derive(Default)]
pub(super) struct HardwareCache(RefCell<Option<(Instant, Value)>>);

impl HardwareCache {
    fn read(&self, root: &std::path::Path) -> Value {
        let mut cache = self.0.borrow_mut();
        match &*cache {
            Some((at, hardware)) if at.elapsed() < HARDWARE => hardware.clone(),
            _ => {
                let hardware = host::hardware(root);
                *cache = Some((Instant::now(), hardware.clone()));
                hardware
            }
        }
    }
}

impl Agent {
    /// Tells what changed, without end.
    pub(super) async fn tell(&self) {
        let pauses = self.config.pauses;
        let hardware = HardwareCache::default();
        let (mut told, mut at, mut tries) = (None, Instant::now(), 0);
        loop {
            let heartbeat = Duration::from_millis(pauses.heartbeat);
            let status = self.status(&hardware);
            let is_due = told.as_ref() != Some(&status) || at.elapsed() >= heartbeat;
            let mut pause = heartbeat.saturating_sub(at.elapsed());
            if is_due && self.seen.borrow().is_some() && !self.is_gone.get() {
                match self.send(&status).await {
                    Ok(()) => {
                        (told, at, tries) = (Some(status), Instant::now(), 0);
                        pause = heartbeat;
                        code::let_go();
                    }
                    Err(error) => {
                        tries += 1;
                        // Somebody wrote in between: it is read again by the watch.
                        if tries > 1 || error.status() != 409 {
                            tracing::debug!(%error, "the appliance does not have the status yet");
                        }
                        pause = jitter(AgentPauses::after(pauses.call_least, pauses.call_most, tries));
                        self.contact(Some(&error));
                        // What changes meanwhile is told with it.
                        sleep(pause).await;
                        continue;
                    }
                }
            }
            self.contact(None);
            sleep(LEAST).await;
            timeout(pause, self.to_tell.notified()).await.ok();
        }
    }

    /// Tells the status, in a minute or not at all.
    pub(super) async fn tell_once(&self) -> Result<(), CallError> {
        let status = self.status(&HardwareCache::default());
        let sent = timeout(ONCE, self.send(&status)).await;
        sent.unwrap_or_else(|_| Err(CallError::Unreachable("no answer in time".into())))
    }

    async fn send(&self, status: &Value) -> Result<(), CallError> {
        let patch = {
            let seen = self.seen.borrow();
            let Some(seen) = seen.as_ref() else { return Ok(()) };
            let mut patch = report::patch(&seen.status, status);
            patch.insert("lastHeard".into(), json!(Time(self.now())));
            let mut whole = json!({});
            // That a reboot is completed is true of the one that was seen, and not of one that is asked for meanwhile.
            if patch.contains_key("reboot") {
                whole["metadata"] = json!({"resourceVersion": seen.metadata.resource_version});
            }
            whole["status"] = patch.into();
            whole
        };
        let seen = self.client.patch_status(&patch).await?;
        self.journal.borrow().tell(NodeEffect::Told);
        self.learn(seen);
        if self.is_on_trial.replace(false) {
            self.program.stays(&self.config);
            tracing::info!("this program reported from its place, and stays");
        }
        Ok(())
    }

    fn status(&self, hardware: &HardwareCache) -> Value {
        self.note_boot();
        let root = &self.config.root;
        let boot = self.boot();
        let journal = self.journal.borrow();
        let machine = journal.machine.clone().unwrap_or_default();
        let internal = host::internal(&machine.spec, &host::own_addresses(), self.client.source());
        let asked = machine.reboot_requested.as_ref();
        let reboot = match reboot_turn(asked, journal.records.reboot.as_ref(), &boot, &self.boot_id) {
            RebootTurn::Done => Some((true, String::new())),
            RebootTurn::Given(error) if !error.is_empty() => Some((false, error)),
            _ => None,
        };
        let time = boot.unwrap_or_else(|| host::boot_record(root, &self.clock).time);
        report::status(&Parts {
            records: &journal.records,
            items: &machine.spec.items(),
            waits: &self.waits.borrow(),
            addresses: &host::addresses(root, internal),
            host: &host::info(root, time, hardware.read(root)),
            generation: (machine.generation > 0).then_some(machine.generation),
            reboot,
        })
    }

    /// Notes when the kernel began, once the appliance's time is known.
    fn note_boot(&self) {
        if self.boot().is_some() || !self.clock.is_told() {
            return;
        }
        let record = host::boot_record(&self.config.root, &self.clock);
        let noted = self.journal.borrow_mut().after(|records| records.boot = Some(record.clone()));
        if noted.is_err() {
            // It can be found out again.
            self.journal.borrow_mut().records.boot = Some(record);
        }
        self.wanted.send_modify(|count| *count += 1);
    }

    /// Leaves for `slipway node status` what it waits for.
    fn contact(&self, error: Option<&CallError>) {
        let trouble = error.map(ToString::to_string).or_else(|| self.client.trouble());
        let contact = NodeAgentContact {
            version: env!("CARGO_PKG_VERSION").into(),
            process: std::process::id(),
            at: Some(Time(self.now())),
            trouble: trouble.unwrap_or_default(),
            is_gone: self.is_gone.get(),
            keys: self.key_trouble.borrow().clone(),
            waits: self.waits.borrow().clone(),
        };
        contact.write(&self.config.run_folder);
    }
}
