//! A BMC behind a fence: an appliance that does not lead any more only reads it.

use std::sync::Arc;

use async_trait::async_trait;

use crate::api::metal3::HardwareDetails;
use crate::bmc::{Bmc, BmcError, BootDevice, FirmwareMode, Health, PowerAction, PowerState, ProbeReport};
use crate::engine::Fence;

/// A connection with a fence before everything that changes the machine.
pub(in crate::host) struct Fenced {
    bmc: Arc<dyn Bmc>,
    fence: Fence,
}

impl Fenced {
    pub(in crate::host) fn new(bmc: Arc<dyn Bmc>, fence: Fence) -> Self {
        Self { bmc, fence }
    }

    fn check(&self) -> Result<(), BmcError> {
        self.fence.check().map_err(|refused| BmcError::Refused(refused.to_string()))
    }
}

#[async_trait]
impl Bmc for Fenced {
    async fn power(&self) -> Result<PowerState, BmcError> {
        self.bmc.power().await
    }

    async fn set_power(&self, action: PowerAction) -> Result<(), BmcError> {
        self.check()?;
        self.bmc.set_power(action).await
    }

    async fn set_boot_device(&self, device: BootDevice, mode: FirmwareMode) -> Result<(), BmcError> {
        self.check()?;
        self.bmc.set_boot_device(device, mode).await
    }

    async fn inventory(&self) -> Result<HardwareDetails, BmcError> {
        self.bmc.inventory().await
    }

    async fn health(&self) -> Result<Health, BmcError> {
        self.bmc.health().await
    }

    async fn insert_media(&self, url: &str) -> Result<(), BmcError> {
        self.check()?;
        self.bmc.insert_media(url).await
    }

    async fn eject_media(&self) -> Result<(), BmcError> {
        self.check()?;
        self.bmc.eject_media().await
    }

    async fn media(&self) -> Result<Option<String>, BmcError> {
        self.bmc.media().await
    }

    async fn boot_from_url(&self, url: &str) -> Result<(), BmcError> {
        self.check()?;
        self.bmc.boot_from_url(url).await
    }

    async fn probe(&self) -> Result<ProbeReport, BmcError> {
        self.bmc.probe().await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::watch;
    use tokio::time::{Duration, Instant};

    use super::*;

    /// Counts what reaches the machine.
    #[derive(Default)]
    struct Counting {
        reads: AtomicUsize,
        writes: AtomicUsize,
    }

    #[async_trait]
    impl Bmc for Counting {
        async fn power(&self) -> Result<PowerState, BmcError> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            Ok(PowerState::On)
        }

        async fn set_power(&self, _: PowerAction) -> Result<(), BmcError> {
            self.writes.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        async fn set_boot_device(&self, _: BootDevice, _: FirmwareMode) -> Result<(), BmcError> {
            self.writes.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_former_leader_touches_no_machine() {
        let counting = Arc::new(Counting::default());
        let (tell, leads) = watch::channel(Some(Instant::now() + Duration::from_secs(3600)));
        let bmc = Fenced::new(counting.clone(), Fence::new(leads));
        assert!(bmc.set_power(PowerAction::On).await.is_ok());
        tell.send_replace(Some(Instant::now()));
        assert!(bmc.power().await.is_ok());
        let refused = bmc.set_power(PowerAction::ForceOff).await.unwrap_err();
        assert!(refused.to_string().contains("does not lead"), "{refused}");
        assert!(bmc.set_boot_device(BootDevice::Pxe, FirmwareMode::Uefi).await.is_err());
        assert!(matches!(bmc.insert_media("http://x/a.iso").await, Err(BmcError::Refused(_))));
        assert!(matches!(bmc.eject_media().await, Err(BmcError::Refused(_))));
        assert!(matches!(bmc.boot_from_url("http://x/a.iso").await, Err(BmcError::Refused(_))));
        assert_eq!((counting.reads.load(Ordering::Relaxed), counting.writes.load(Ordering::Relaxed)), (1, 1));
    }
}
