//! The simulated machine: power with its delays, boot override, faults.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use secrecy::SecretString;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::chance::Chance;
use crate::bmc::address::Privilege;
use crate::bmc::{BootDevice, Health};

/// Boots and faults that are remembered.
const MAX_KEPT: usize = 256;

/// An account of a simulated BMC.
#[derive(Clone, Debug)]
pub struct Account {
    /// User name.
    pub username: String,
    /// Password.
    pub password: SecretString,
    /// Highest level it may use.
    pub privilege: Privilege,
}

/// What the machine says that it is.
#[derive(Clone, Debug)]
pub struct SimulatedProfile {
    /// Name; the last part of its Redfish path.
    pub name: String,
    /// `Manufacturer`.
    pub manufacturer: String,
    /// `Model`.
    pub model: String,
    /// IPMI manufacturer ID, 20 bits.
    pub ipmi_manufacturer_id: u32,
    /// IPMI product ID.
    pub ipmi_product_id: u16,
    /// How long a change of power takes.
    pub power_delay: Duration,
    /// How long the operating system takes to shut down; none ignores the request.
    pub shutdown: Option<Duration>,
    /// Boots in UEFI mode unless told otherwise.
    pub uefi: bool,
}

impl Default for SimulatedProfile {
    fn default() -> Self {
        Self {
            name: "1".into(),
            manufacturer: "Slipway".into(),
            model: "Simulated".into(),
            ipmi_manufacturer_id: 0,
            ipmi_product_id: 0x5357,
            power_delay: Duration::ZERO,
            shutdown: Some(Duration::ZERO),
            uefi: true,
        }
    }
}

/// A fault to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SimulatedFault {
    /// Says that all went well and does nothing.
    Ignore,
    /// Does not answer at all.
    Silence,
    /// Answers with bytes that mean nothing.
    Garbage,
    /// Closes the connection without an answer; over UDP as silence.
    Reset,
    /// Treats the credentials as wrong.
    WrongPassword,
    /// Says that it is busy: HTTP 503, IPMI completion code C0h.
    Busy,
    /// Refuses: HTTP 500, IPMI completion code FFh.
    Fail,
    /// Answers late.
    Slow(Duration),
}

/// Which requests a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultScope {
    /// All.
    All,
    /// Logins and what comes before them.
    Login,
    /// Reading.
    Read,
    /// Writing.
    Write,
}

#[derive(Clone, Debug)]
struct FaultPlan {
    fault: SimulatedFault,
    scope: FaultScope,
    /// How often still; none is for ever.
    left: Option<u32>,
}

/// What to do with the power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerCommand {
    /// On.
    On,
    /// Off at once.
    Off,
    /// Off by the operating system.
    Soft,
    /// Reset.
    Reset,
    /// Off, then on.
    Cycle,
}

/// For how many boots an override holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Override {
    /// None.
    #[default]
    Disabled,
    /// The next.
    Once,
    /// All.
    Continuous,
}

/// The boot override.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BootOverride {
    /// How long.
    pub enabled: Override,
    /// From where; none is the firmware's own order.
    pub device: Option<BootDevice>,
    /// In UEFI mode.
    pub uefi: bool,
}

/// One start of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineStart {
    /// From where; none is the firmware's own order.
    pub device: Option<BootDevice>,
    /// In UEFI mode.
    pub uefi: bool,
}

#[derive(Debug, Default)]
struct MachineState {
    on: bool,
    pending: VecDeque<(Instant, bool)>,
    boot: BootOverride,
    boots: Vec<MachineStart>,
    faults: Vec<FaultPlan>,
    generation: u64,
    reads: u64,
    health: Health,
    /// What is in the virtual CD drive.
    media: Option<String>,
    /// What UEFI firmware is to load.
    http_uri: Option<String>,
    switches: u64,
    chance: Option<Chance>,
}

/// Power as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedPower {
    /// How often it was switched so far; a reset counts.
    pub switches: u64,
    /// What it boots; none is off.
    pub boot: Option<MachineStart>,
}

/// A simulated machine; all methods may be called from everywhere.
#[derive(Debug)]
pub struct SimulatedMachine {
    /// What it says that it is.
    pub profile: SimulatedProfile,
    state: Mutex<MachineState>,
    /// Told of every command. One waits: the machine itself.
    commanded: Notify,
}

impl SimulatedMachine {
    /// A machine that is off.
    pub fn new(profile: SimulatedProfile) -> Self {
        let boot = BootOverride { uefi: profile.uefi, ..BootOverride::default() };
        Self { profile, state: Mutex::new(MachineState { boot, ..MachineState::default() }), commanded: Notify::new() }
    }

    /// The state, with all that is due applied.
    fn state(&self) -> MutexGuard<'_, MachineState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.advance(Instant::now());
        state
    }

    /// Whether it is on.
    pub fn is_on(&self) -> bool {
        self.state().on
    }

    /// Changes the power, after the delay of the profile. A new command replaces what is still under way.
    pub fn power(&self, command: PowerCommand) {
        let now = Instant::now();
        let mut state = self.state();
        state.command(command, &self.profile, now);
        state.advance(now);
        drop(state);
        self.commanded.notify_one();
    }

    /// Waits until the power was switched more often than `seen`. For one waiter at a time. Cancel-safe.
    pub async fn switched(&self, seen: u64) -> SimulatedPower {
        loop {
            let (power, due) = {
                let state = self.state();
                let boot = state.boots.last().filter(|_| state.on).copied();
                (SimulatedPower { switches: state.switches, boot }, state.pending.front().map(|(at, _)| *at))
            };
            if power.switches > seen {
                return power;
            }
            match due {
                Some(due) => tokio::select! {
                    () = self.commanded.notified() => {}
                    () = tokio::time::sleep_until(due) => {}
                },
                None => self.commanded.notified().await,
            }
        }
    }

    /// Shows faults by chance from now on, beside those that are injected.
    pub fn misbehave(&self, chance: Chance) {
        self.state().chance = Some(chance);
    }

    /// What the BMC says of its health; nothing at first.
    pub fn health(&self) -> Health {
        self.state().health
    }

    /// Sets what the BMC says of its health.
    pub fn set_health(&self, health: Health) {
        self.state().health = health;
    }

    /// URL of what is in the virtual CD drive.
    pub fn media(&self) -> Option<String> {
        self.state().media.clone()
    }

    /// Changes what is in the virtual CD drive.
    pub fn set_media(&self, url: Option<String>) {
        let mut state = self.state();
        state.media = url;
        state.generation += 1;
    }

    /// URL that UEFI firmware loads when it boots from one.
    pub fn http_uri(&self) -> Option<String> {
        self.state().http_uri.clone()
    }

    /// Changes the URL that UEFI firmware loads.
    pub fn set_http_uri(&self, url: Option<String>) {
        let mut state = self.state();
        state.http_uri = url;
        state.generation += 1;
    }

    /// The boot override.
    pub fn boot(&self) -> BootOverride {
        self.state().boot
    }

    /// Sets the boot override.
    pub fn set_boot(&self, boot: BootOverride) {
        let mut state = self.state();
        state.boot = boot;
        state.generation += 1;
    }

    /// Starts of the machine so far, the last 256 of them.
    pub fn boots(&self) -> Vec<MachineStart> {
        self.state().boots.clone()
    }

    /// Number that changes with each change, for ETags.
    pub fn generation(&self) -> u64 {
        self.state().generation
    }

    /// Shows a fault to requests of this kind: so many times, or until [`SimulatedMachine::heal`].
    pub fn inject(&self, fault: SimulatedFault, scope: FaultScope, times: Option<u32>) {
        let mut state = self.state();
        if state.faults.len() < MAX_KEPT {
            state.faults.push(FaultPlan { fault, scope, left: times });
        }
    }

    /// Ends all faults.
    pub fn heal(&self) {
        self.state().faults.clear();
    }

    /// The fault for a request of this kind, if any; counts it.
    pub fn fault(&self, scope: FaultScope) -> Option<SimulatedFault> {
        let mut state = self.state();
        state.reads += 1;
        let Some(at) = state.faults.iter().position(|p| p.scope == FaultScope::All || p.scope == scope) else {
            return state.chance.as_mut()?.fault(scope);
        };
        let fault = state.faults[at].fault.clone();
        if let Some(left) = &mut state.faults[at].left {
            *left = left.saturating_sub(1);
            if *left == 0 {
                state.faults.remove(at);
            }
        }
        Some(fault)
    }

    /// Faults shown by chance so far.
    pub fn faults_by_chance(&self) -> u64 {
        self.state().chance.as_ref().map_or(0, Chance::shown)
    }

    /// Requests seen so far.
    pub fn requests(&self) -> u64 {
        self.state().reads
    }
}

impl MachineState {
    /// Applies what is due.
    fn advance(&mut self, now: Instant) {
        while self.pending.front().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, on)) = self.pending.pop_front() {
                self.switch(on);
            }
        }
    }

    fn command(&mut self, command: PowerCommand, profile: &SimulatedProfile, now: Instant) {
        let (on, delay) = (self.on, profile.power_delay);
        let steps: &[(Duration, bool)] = match command {
            PowerCommand::On if on => &[],
            PowerCommand::On => &[(delay, true)],
            PowerCommand::Off => &[(delay, false)],
            PowerCommand::Soft => match profile.shutdown {
                Some(shutdown) => &[(shutdown, false)],
                None => return,
            },
            PowerCommand::Reset if !on => &[],
            // A reset starts the firmware anew without a change of power.
            PowerCommand::Reset => &[(Duration::ZERO, true)],
            PowerCommand::Cycle => &[(delay, false), (delay * 2, true)],
        };
        self.pending = steps.iter().map(|(after, on)| (now + *after, *on)).collect();
    }

    fn switch(&mut self, on: bool) {
        self.on = on;
        self.switches += 1;
        self.generation += 1;
        if on {
            let device = if self.boot.enabled == Override::Disabled { None } else { self.boot.device };
            if self.boots.len() == MAX_KEPT {
                self.boots.remove(0);
            }
            self.boots.push(MachineStart { device, uefi: self.boot.uefi });
            if self.boot.enabled == Override::Once {
                self.boot = BootOverride { enabled: Override::Disabled, device: None, uefi: self.boot.uefi };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_takes_its_time_and_a_one_time_override_holds_for_one_boot() {
        let profile = SimulatedProfile { power_delay: Duration::from_secs(5), ..SimulatedProfile::default() };
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let boot = BootOverride { enabled: Override::Once, device: Some(BootDevice::Pxe), uefi: true };
        let mut state = MachineState { boot, ..MachineState::default() };
        let mut seen = Vec::new();
        state.command(PowerCommand::On, &profile, start);
        for at in [0, 4, 5] {
            state.advance(start + second * at);
            seen.push(state.on);
        }
        assert_eq!(state.boot.enabled, Override::Disabled);
        state.command(PowerCommand::Cycle, &profile, start + second * 5);
        for at in [9, 10, 14, 15] {
            state.advance(start + second * at);
            seen.push(state.on);
        }
        assert_eq!(seen, [false, false, true, true, false, false, true]);
        let devices: Vec<_> = state.boots.iter().map(|b| b.device).collect();
        assert_eq!(devices, [Some(BootDevice::Pxe), None]);
    }

    #[test]
    fn faults_hit_what_they_are_for_as_often_as_told() {
        let machine = SimulatedMachine::new(SimulatedProfile::default());
        machine.inject(SimulatedFault::Busy, FaultScope::Write, Some(2));
        machine.inject(SimulatedFault::Garbage, FaultScope::All, None);
        let seen: Vec<_> = [FaultScope::Read, FaultScope::Write, FaultScope::Write, FaultScope::Write]
            .map(|s| machine.fault(s))
            .into();
        assert_eq!(
            seen,
            [
                Some(SimulatedFault::Garbage),
                Some(SimulatedFault::Busy),
                Some(SimulatedFault::Busy),
                Some(SimulatedFault::Garbage)
            ]
        );
        machine.heal();
        assert_eq!(machine.fault(FaultScope::Read), None);
    }
}
