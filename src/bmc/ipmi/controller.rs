//! [`Bmc`] over IPMI: each operation in a session of its own, each write read back.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::client::{IpmiCallError, IpmiClient, IpmiConnection};
use super::commands::{self, APP, BootFlags, CHASSIS, Control, DeviceId, cmd};
use crate::api::metal3::HardwareDetails;
use crate::bmc::quirks::IpmiQuirks;
use crate::bmc::{
    Bmc, BmcAddress, BmcError, BmcSettings, BootDevice, Credentials, FirmwareMode, PowerAction, PowerState, ProbeReport,
};

/// A BMC that is driven by IPMI.
pub struct IpmiBmc {
    client: IpmiClient,
    settings: Arc<BmcSettings>,
    /// One session at a time: small controllers have few, and bursts upset them.
    exchange: Arc<Mutex<()>>,
    /// One change at a time.
    change: Mutex<()>,
    quirks: OnceLock<IpmiQuirks>,
}

impl IpmiBmc {
    /// For this address, at these places where it was resolved before. `exchange` is the lock that all connections to the same BMC share.
    pub fn new(
        address: &BmcAddress,
        places: &[SocketAddr],
        credentials: &Credentials,
        settings: Arc<BmcSettings>,
        exchange: Arc<Mutex<()>>,
    ) -> Self {
        let client = IpmiClient::new(address, places, credentials, &settings);
        Self { client, settings, exchange, change: Mutex::new(()), quirks: OnceLock::new() }
    }

    /// Get Device ID.
    pub async fn device_id(&self) -> Result<DeviceId, BmcError> {
        let _one = self.exchange.lock().await;
        let mut connection = self.client.open().await?;
        let result = device_id(&mut connection, &self.client).await;
        connection.close().await;
        result
    }

    /// How this controller is treated, asked once. A controller that does not say what it is gets no quirks.
    async fn quirks(&self, connection: &mut IpmiConnection<'_>) -> Result<IpmiQuirks, BmcError> {
        if let Some(known) = self.quirks.get() {
            return Ok(known.clone());
        }
        let found = match connection.call(APP, cmd::GET_DEVICE_ID, &[]).await {
            Ok(data) => DeviceId::parse(&data).ok(),
            Err(IpmiCallError::Completion(_)) => None,
            Err(IpmiCallError::Bmc(error)) => return Err(error),
        };
        let quirks = found.map_or_else(IpmiQuirks::default, |id| {
            let quirks = self.settings.quirks.get().ipmi(id.manufacturer_id, id.product_id);
            tracing::info!(bmc = %self.client.peer(), manufacturer = id.manufacturer_id, product = id.product_id,
                profiles = ?quirks.profiles, suite = connection.suite().id(), "identified a BMC");
            quirks
        });
        Ok(self.quirks.get_or_init(|| quirks).clone())
    }

    async fn control(&self, control: Control, what: &str) -> Result<IpmiQuirks, BmcError> {
        let _one = self.exchange.lock().await;
        let mut connection = self.client.open().await?;
        let result = async {
            let quirks = self.quirks(&mut connection).await?;
            connection.demand(CHASSIS, cmd::CHASSIS_CONTROL, &[control as u8], what).await?;
            Ok(quirks)
        }
        .await;
        connection.close().await;
        result
    }

    /// Waits until the power reads as wanted. Silence in between is normal: some controllers restart with the machine.
    async fn await_power(&self, want: PowerState, what: &str, deadline: Duration) -> Result<(), BmcError> {
        let start = Instant::now();
        loop {
            let found = self.power().await;
            if matches!(found, Ok(state) if state == want) {
                return Ok(());
            }
            // A refused login is not repeated: that may lock the account.
            let refused = matches!(found, Err(BmcError::Credentials { .. }));
            if refused || start.elapsed() >= deadline {
                let found = format!("power {:?}", found?).to_lowercase();
                return Err(self.not_applied(what, found, start.elapsed()));
            }
            tokio::time::sleep(self.settings.poll).await;
        }
    }

    fn cannot(&self, what: &str) -> BmcError {
        BmcError::Unsupported { peer: self.client.peer().into(), what: what.into() }
    }

    fn not_applied(&self, what: &str, found: String, waited: Duration) -> BmcError {
        BmcError::NotApplied { peer: self.client.peer().into(), what: what.into(), found, waited }
    }

    /// Writes the boot flags and reads them once, in one session.
    async fn write_boot(
        &self,
        device: BootDevice,
        mode: FirmwareMode,
    ) -> Result<(BootFlags, BootFlags, IpmiQuirks), BmcError> {
        let _one = self.exchange.lock().await;
        let mut connection = self.client.open().await?;
        let result = async {
            let quirks = self.quirks(&mut connection).await?;
            let want = BootFlags::once(device, mode, quirks.uefi_disk_selector);
            // Set in progress; optional, and often refused.
            self.optional(&mut connection, &[0, 1]).await?;
            if !quirks.skip_boot_timeout {
                // Keep the flags valid beyond the 60 s within which a chassis control would have to follow (table 28-14).
                self.optional(&mut connection, &[3, 0x08]).await?;
            }
            // Boot info acknowledge: the BIOS has not yet seen what comes now.
            self.optional(&mut connection, &[4, 0x01, 0x01]).await?;
            let what = "set the boot device";
            connection.demand(CHASSIS, cmd::SET_BOOT_OPTIONS, &want.encode(), what).await?;
            self.optional(&mut connection, &[0, 0]).await?;
            let found = read_boot(&mut connection, &self.client).await?;
            Ok((want, found, quirks))
        }
        .await;
        connection.close().await;
        result
    }

    /// A boot option that may be refused.
    async fn optional(&self, connection: &mut IpmiConnection<'_>, data: &[u8]) -> Result<(), BmcError> {
        match connection.call(CHASSIS, cmd::SET_BOOT_OPTIONS, data).await {
            Ok(_) => Ok(()),
            Err(IpmiCallError::Completion(code)) => {
                let reason = commands::completion_text(code);
                tracing::debug!(bmc = %self.client.peer(), parameter = ?data.first(), %reason, "the BMC refused a boot option");
                Ok(())
            }
            Err(IpmiCallError::Bmc(error)) => Err(error),
        }
    }

    async fn boot_flags(&self) -> Result<BootFlags, BmcError> {
        let _one = self.exchange.lock().await;
        let mut connection = self.client.open().await?;
        let result = read_boot(&mut connection, &self.client).await;
        connection.close().await;
        result
    }
}

async fn device_id(connection: &mut IpmiConnection<'_>, client: &IpmiClient) -> Result<DeviceId, BmcError> {
    let data = connection.demand(APP, cmd::GET_DEVICE_ID, &[], "say what it is").await?;
    DeviceId::parse(&data).map_err(|e| BmcError::Protocol { peer: client.peer().into(), reason: e.to_string() })
}

async fn read_boot(connection: &mut IpmiConnection<'_>, client: &IpmiClient) -> Result<BootFlags, BmcError> {
    let data = connection.demand(CHASSIS, cmd::GET_BOOT_OPTIONS, &[5, 0, 0], "read the boot device").await?;
    BootFlags::parse(&data).map_err(|e| BmcError::Protocol { peer: client.peer().into(), reason: e.to_string() })
}

/// Whether what was read is what was written, as far as this controller can say.
fn boot_applied(want: BootFlags, found: BootFlags, quirks: &IpmiQuirks) -> bool {
    found.selector == want.selector
        && (found.valid || quirks.valid_flag_not_reported)
        && (found.uefi == want.uefi || (quirks.uefi_flag_not_reported && !found.uefi))
        && found.persistent == want.persistent
}

#[async_trait]
impl Bmc for IpmiBmc {
    async fn power(&self) -> Result<PowerState, BmcError> {
        let _one = self.exchange.lock().await;
        let mut connection = self.client.open().await?;
        let result = async {
            let data = connection.demand(CHASSIS, cmd::CHASSIS_STATUS, &[], "read the power").await?;
            commands::power(&data)
                .map_err(|e| BmcError::Protocol { peer: self.client.peer().into(), reason: e.to_string() })
        }
        .await;
        connection.close().await;
        result
    }

    async fn set_power(&self, action: PowerAction) -> Result<(), BmcError> {
        let _one = self.change.lock().await;
        let now = self.power().await?;
        let (control, want, what) = match (action, now) {
            (PowerAction::On, PowerState::On) | (PowerAction::ForceOff | PowerAction::SoftOff, PowerState::Off) => {
                return Ok(());
            }
            // A machine that is off has nothing to reset; what is wanted is that it starts.
            (PowerAction::On, _) | (PowerAction::Reset, PowerState::Off) => (Control::On, PowerState::On, "power on"),
            (PowerAction::ForceOff, _) => (Control::Off, PowerState::Off, "power off"),
            (PowerAction::SoftOff, _) => (Control::Soft, PowerState::Off, "shut down"),
            (PowerAction::Reset, _) => (Control::Reset, PowerState::On, "reset"),
        };
        let quirks = self.control(control, what).await?;
        let deadline = match action {
            PowerAction::SoftOff => self.settings.soft_off_deadline,
            _ => quirks.power_wait.unwrap_or(self.settings.power_deadline),
        };
        self.await_power(want, what, deadline).await
    }

    async fn set_boot_device(&self, device: BootDevice, mode: FirmwareMode) -> Result<(), BmcError> {
        if device == BootDevice::UefiHttp {
            return Err(self.cannot("boot from a URL: IPMI has no such boot device"));
        }
        let _one = self.change.lock().await;
        let start = Instant::now();
        let (want, mut found, quirks) = self.write_boot(device, mode).await?;
        let deadline = quirks.boot_wait.unwrap_or(self.settings.boot_deadline);
        while !boot_applied(want, found, &quirks) {
            if start.elapsed() >= deadline {
                let what = format!("boot device {want}");
                return Err(self.not_applied(&what, found.to_string(), start.elapsed()));
            }
            tokio::time::sleep(self.settings.poll).await;
            found = self.boot_flags().await?;
        }
        Ok(())
    }

    async fn inventory(&self) -> Result<HardwareDetails, BmcError> {
        Err(self.cannot("report the machine's hardware: IPMI knows nothing of it"))
    }

    async fn insert_media(&self, _: &str) -> Result<(), BmcError> {
        Err(self.cannot("insert a virtual CD: IPMI has no virtual media"))
    }

    async fn eject_media(&self) -> Result<(), BmcError> {
        Err(self.cannot("eject a virtual CD: IPMI has no virtual media"))
    }

    async fn media(&self) -> Result<Option<String>, BmcError> {
        Err(self.cannot("say what its virtual CD is: IPMI has no virtual media"))
    }

    async fn boot_from_url(&self, _: &str) -> Result<(), BmcError> {
        Err(self.cannot("boot from a URL: IPMI has no such boot device"))
    }

    async fn probe(&self) -> Result<ProbeReport, BmcError> {
        let id = self.device_id().await?;
        let power = self.power().await?;
        let flags = self.boot_flags().await;
        let quirks = self.settings.quirks.get().ipmi(id.manufacturer_id, id.product_id);
        let mut report = ProbeReport {
            protocol: "IPMI 2.0".into(),
            manufacturer: format!("enterprise number {}", id.manufacturer_id),
            model: format!("product {}", id.product_id),
            bmc_firmware: format!("{}.{:02x}", id.firmware_major, id.firmware_minor),
            power: Some(power.into()),
            boot_devices: ["Pxe", "Hdd", "Cd"].map(String::from).to_vec(),
            profiles: quirks.profiles,
            schemes: vec!["ipmi".into()],
            ..ProbeReport::default()
        };
        match flags {
            Ok(flags) => report.boot = Some(flags.to_string()),
            Err(error) => report.notes.push(format!("the boot device cannot be read: {error}")),
        }
        Ok(report)
    }
}
