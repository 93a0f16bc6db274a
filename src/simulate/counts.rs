//! Counters of a run.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// Counters of a run, shared by all machines.
#[derive(Debug, Default)]
pub struct RunCounts {
    boots: AtomicU64,
    exchanges: AtomicU64,
    asked_again: AtomicU64,
    scripts: AtomicU64,
    tftp_programs: AtomicU64,
    http_programs: AtomicU64,
    media: AtomicU64,
    urls: AtomicU64,
    sessions: AtomicU64,
    steps: AtomicU64,
    images_written: AtomicU64,
    systems_started: AtomicU64,
    bytes: AtomicU64,
    lost: AtomicU64,
    power_losses: AtomicU64,
    stuck: AtomicU64,
}

/// [`RunCounts`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CountsSnapshot {
    /// Starts of machines.
    pub boots: u64,
    /// DHCP exchanges that ended with an address.
    pub dhcp_exchanges: u64,
    /// DHCP messages that were sent again, because no answer came.
    pub dhcp_asked_again: u64,
    /// Boot programs fetched by TFTP.
    pub tftp_programs: u64,
    /// Boot programs fetched by HTTP.
    pub http_programs: u64,
    /// Boot scripts fetched.
    pub boot_scripts: u64,
    /// Starts of the ramdisk from a virtual CD.
    pub media_boots: u64,
    /// Starts of the ramdisk from a URL that the BMC was given.
    pub url_boots: u64,
    /// Agents' sessions begun.
    pub sessions: u64,
    /// Steps that agents did.
    pub steps: u64,
    /// Images that were written whole.
    pub images_written: u64,
    /// Starts of systems that were written.
    pub systems_started: u64,
    /// Bytes of boot files and images fetched.
    pub bytes: u64,
    /// Packets lost on purpose.
    pub packets_lost: u64,
    /// Machines that lost power in the middle of writing.
    pub power_losses: u64,
    /// Boots that got stuck in the firmware.
    pub stuck: u64,
    /// Answers of BMCs that failed on purpose.
    pub bmc_faults: u64,
}

macro_rules! counters {
    ($($name:ident: $field:ident, $doc:literal;)*) => {
        impl RunCounts {
            $(
                #[doc = $doc]
                pub fn $name(&self) {
                    self.$field.fetch_add(1, Ordering::Relaxed);
                }
            )*
        }
    };
}

counters! {
    boot: boots, "A machine starts.";
    exchange: exchanges, "A DHCP exchange ended with an address.";
    ask_again: asked_again, "A DHCP message is sent again.";
    script: scripts, "A boot script was fetched.";
    tftp_program: tftp_programs, "A boot program was fetched by TFTP.";
    http_program: http_programs, "A boot program was fetched by HTTP.";
    medium: media, "The ramdisk starts from a virtual CD.";
    url: urls, "The ramdisk starts from a URL.";
    session: sessions, "An agent begins its session.";
    step: steps, "An agent did a step.";
    write_image: images_written, "An image was written whole.";
    start_system: systems_started, "A system that was written starts.";
    lose: lost, "A packet is lost.";
    lose_power: power_losses, "A machine loses power.";
    get_stuck: stuck, "A machine gets stuck.";
}

impl RunCounts {
    /// Bytes were fetched.
    pub fn fetched(&self, count: usize) {
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// All of them; what BMCs failed is counted elsewhere.
    pub fn read(&self, bmc_faults: u64) -> CountsSnapshot {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CountsSnapshot {
            boots: get(&self.boots),
            dhcp_exchanges: get(&self.exchanges),
            dhcp_asked_again: get(&self.asked_again),
            tftp_programs: get(&self.tftp_programs),
            http_programs: get(&self.http_programs),
            boot_scripts: get(&self.scripts),
            media_boots: get(&self.media),
            url_boots: get(&self.urls),
            sessions: get(&self.sessions),
            steps: get(&self.steps),
            images_written: get(&self.images_written),
            systems_started: get(&self.systems_started),
            bytes: get(&self.bytes),
            packets_lost: get(&self.lost),
            power_losses: get(&self.power_losses),
            stuck: get(&self.stuck),
            bmc_faults,
        }
    }
}
