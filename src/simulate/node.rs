//! The simulated agent: the session is the agent's own; its steps only take time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream};

use super::counts::RunCounts;
use super::disk::SimulatedDisk;
use super::plan::{Delays, FaultRates, SimulatedDownload};
use super::rng::SeededRng;
use crate::agent::log::LogRing;
use crate::agent::session::{Executor, StepDone, StepError, StepJob};
use crate::api::MacAddress;
use crate::api::metal3::{Cpu, HardwareBios, HardwareDetails, HardwareFirmware, HardwareSystemVendor, Nic, Storage};
use crate::bmc::sim::SimulatedMachine;
use crate::bmc::sim::machine::PowerCommand;
use crate::protocol::{Action, AgentSession};

/// Chunks fetched at once, as the agent does.
const AT_ONCE: usize = 4;
/// Of so many chunks one is fetched for a sample.
const SAMPLE: usize = 16;
/// Parts in which a step's progress is told.
const PARTS: u32 = 10;

/// A machine's ramdisk.
pub struct SimulatedNode {
    /// Where its power is.
    pub machine: Arc<SimulatedMachine>,
    /// Its disk.
    pub disk: Arc<SimulatedDisk>,
    /// What an inspection finds.
    pub hardware: HardwareDetails,
    /// How long steps take.
    pub delays: Delays,
    /// What may happen to it.
    pub faults: FaultRates,
    /// What is fetched of images.
    pub download: SimulatedDownload,
    /// What decides.
    pub rng: Mutex<SeededRng>,
    /// What is counted.
    pub counts: Arc<RunCounts>,
    /// What it logs, which the session sends to the appliance.
    pub log: LogRing,
}

impl SimulatedNode {
    fn rng<T>(&self, draw: impl FnOnce(&mut SeededRng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn work(&self, job: &StepJob) -> Result<StepDone, StepError> {
        let takes = self.rng(|rng| rng.about(self.delays.step));
        match &job.action {
            Action::Inspect => {
                tokio::time::sleep(takes).await;
                Ok(StepDone {
                    message: "a simulated machine".into(),
                    inventory: Some(self.hardware.clone()),
                    bmc: None,
                })
            }
            Action::Erase { .. } => {
                let change = self.disk.erase();
                tokio::time::sleep(takes).await;
                change.done(&self.counts);
                Ok(StepDone::new("simulated"))
            }
            Action::WriteImage { digest, .. } => self.write_image(job, digest, takes).await,
            Action::WriteConfigDrive { .. } => {
                tokio::time::sleep(takes).await;
                self.disk.config_drive().map_err(|reason| StepError(reason.to_owned()))?;
                Ok(StepDone::new("simulated"))
            }
            _ => {
                tokio::time::sleep(takes).await;
                Ok(StepDone::new("simulated"))
            }
        }
    }

    async fn write_image(&self, job: &StepJob, digest: &str, takes: Duration) -> Result<StepDone, StepError> {
        let failed = |error: crate::agent::client::AgentCallError| StepError(error.to_string());
        let manifest = job.client.manifest(digest).await.map_err(failed)?;
        let fails_at = self.rng(|rng| rng.happens(self.faults.power_loss).then(|| rng.part()));
        let every = match self.download {
            SimulatedDownload::Head => usize::MAX,
            SimulatedDownload::Sample => SAMPLE,
            SimulatedDownload::All => 1,
        };
        let named = manifest.chunks.into_iter().map(|chunk| chunk.sha256);
        let wanted: Vec<String> = if every == usize::MAX { Vec::new() } else { named.step_by(every).collect() };
        let total = manifest.virtual_size;
        let change = self.disk.write(digest);
        let last = wanted.len().max(1) as u64;
        let power = async {
            let Some(part) = fails_at else { return std::future::pending().await };
            tokio::time::sleep(takes.mul_f64(part)).await;
        };
        let write = async {
            let client = job.client.clone();
            let fetch = move |name: String| {
                let client = client.clone();
                async move { client.chunk(&name).await }
            };
            let mut fetched = std::pin::pin!(stream::iter(wanted).map(fetch).buffered(AT_ONCE));
            let mut count = 0;
            while let Some(chunk) = fetched.try_next().await.map_err(failed)? {
                self.counts.fetched(chunk.len());
                count += 1;
                job.progress.report("writing the image", Some(count * total / last), Some(total));
            }
            for part in 1..=PARTS {
                tokio::time::sleep(takes / PARTS).await;
                let done = total * u64::from(part) / u64::from(PARTS);
                job.progress.report("flushing", Some(done), Some(total));
            }
            Ok(StepDone::new(format!("{total} bytes, simulated")))
        };
        tokio::select! {
            biased;
            () = power => {
                self.counts.lose_power();
                self.machine.power(PowerCommand::Off);
                // Nothing comes from a machine without power.
                std::future::pending().await
            }
            done = write => done.inspect(|_| change.done(&self.counts)),
        }
    }
}

#[async_trait]
impl Executor for SimulatedNode {
    fn opened(&self, session: &AgentSession) {
        self.log
            .note(&format!("simulated ramdisk {}: session of host {} opened", self.hardware.hostname, session.host));
    }

    async fn run(&self, job: StepJob) -> Result<StepDone, StepError> {
        let name = job.action.kind();
        self.log.note(&format!("step {name} begins"));
        let done = tokio::select! {
            biased;
            () = job.cancel.cancelled() => Err(StepError("cancelled".into())),
            done = self.work(&job) => done,
        };
        self.log.note(&match &done {
            Ok(done) => format!("step {name} done: {}", done.message),
            Err(error) => format!("step {name} failed: {error}"),
        });
        self.counts.step();
        done
    }

    fn kernel_log(&self) -> Vec<String> {
        vec!["a simulated kernel".into()]
    }
}

/// What an inspection finds: a two-socket server, as large in the API as a real one.
pub fn hardware(name: &str, mac: MacAddress, address: Option<std::net::Ipv4Addr>) -> HardwareDetails {
    const FLAGS: &str = "3dnowprefetch abm acpi adx aes aperfmperf apic arat arch_capabilities arch_perfmon art avx avx2 \
        avx512_bitalg avx512_vbmi2 avx512_vnni avx512_vpopcntdq avx512bw avx512cd avx512dq avx512f avx512ifma avx512vbmi \
        avx512vl bmi1 bmi2 bts cat_l3 cdp_l3 clflush clflushopt clwb cmov constant_tsc cpuid cqm cqm_llc cqm_mbm_local \
        cx16 cx8 dca de ds_cpl dtes64 dtherm dts epb ept ept_ad erms est f16c flexpriority flush_l1d fma fpu fsgsbase \
        fsrm fxsr gfni ht ibpb ibrs ibrs_enhanced ida intel_ppin intel_pt invpcid la57 lahf_lm lm mba mca mce md_clear \
        mmx monitor movbe msr mtrr nonstop_tsc nopl nx ospke pae pat pbe pcid pclmulqdq pconfig pdcm pdpe1gb pebs pge \
        pku pln pni popcnt pse pse36 pts rdpid rdrand rdseed rdt_a rdtscp rep_good sdbg sep sha_ni smap smep smx \
        split_lock_detect ss ssbd sse sse2 sse4_1 sse4_2 ssse3 stibp syscall tm tm2 tme tpr_shadow tsc umip vaes vme \
        vmx vnmi vpclmulqdq vpid wbnoinvd x2apic xgetbv1 xsave xsavec xsaveopt xsaves xtopology xtpr";
    let port = |index: u8| {
        let mut bytes = mac.0;
        bytes[5] = bytes[5].wrapping_add(index);
        Nic {
            name: format!("eno{}", index + 1),
            model: "0x8086 0x1572".into(),
            mac: if index == 0 { mac.to_string() } else { format!("06{}", &MacAddress(bytes).to_string()[2..]) },
            ip: address.filter(|_| index == 0).map(|ip| ip.to_string()).unwrap_or_default(),
            speed_gbps: 10,
            pxe: index == 0,
            pci_address: format!("0000:3d:00.{index}"),
            ..Nic::default()
        }
    };
    let disk = |index: u8| Storage {
        name: format!("/dev/disk/by-path/pci-0000:5e:00.0-scsi-0:0:{index}:0"),
        alternate_names: vec![format!("/dev/sd{}", char::from(b'a' + index))],
        type_: "SSD".into(),
        size_bytes: 960_197_124_096,
        vendor: "SIMULATED".into(),
        model: "SSD-960".into(),
        serial_number: format!("{name}-{index}"),
        wwn: format!("0x5000c50{:02x}{:02x}{:02x}{index:03x}", mac.0[3], mac.0[4], mac.0[5]),
        hctl: format!("0:0:{index}:0"),
        ..Storage::default()
    };
    HardwareDetails {
        system_vendor: Some(HardwareSystemVendor {
            manufacturer: "Slipway".into(),
            product_name: "Simulated".into(),
            serial_number: name.to_owned(),
        }),
        firmware: Some(HardwareFirmware {
            bios: Some(HardwareBios { date: "01/01/2026".into(), vendor: "Slipway".into(), version: "1.0".into() }),
        }),
        ram_mebibytes: 393_216,
        nics: (0..4).map(port).collect(),
        storage: (0..4).map(disk).collect(),
        cpu: Some(Cpu {
            arch: "x86_64".into(),
            model: "Simulated Processor @ 2.40GHz".into(),
            clock_megahertz: 2400.0,
            flags: FLAGS.split_whitespace().map(str::to_owned).collect(),
            count: 64,
        }),
        hostname: name.to_owned(),
    }
}
