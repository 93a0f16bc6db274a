//! A BMC with a rate limit on refused logins.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::login_limits::{LoginAttempt, LoginLimits, LoginVerdict};
use crate::api::metal3::HardwareDetails;
use crate::bmc::{Bmc, BmcError, BootDevice, FirmwareMode, Health, PowerAction, PowerState, ProbeReport};

/// How long one waits for others of its namespace that try credentials at the same controller.
const QUEUE_DEADLINE: Duration = Duration::from_secs(30);

/// A connection with the ration before every login that may be refused.
pub(in crate::host) struct LoginLimited {
    bmc: Arc<dyn Bmc>,
    peer: String,
    attempt: LoginAttempt,
    logins: Arc<LoginLimits>,
}

impl LoginLimited {
    /// `peer` is `host:port` as the host names it.
    pub(in crate::host) fn new(
        bmc: Arc<dyn Bmc>,
        peer: String,
        attempt: LoginAttempt,
        logins: Arc<LoginLimits>,
    ) -> Self {
        Self { bmc, peer, attempt, logins }
    }

    /// Does it when a login may be tried, and notes how that went.
    async fn of<T>(&self, operation: impl Future<Output = Result<T, BmcError>> + Send) -> Result<T, BmcError> {
        let mut turns = Vec::new();
        if let Some(wait) = self.judge()? {
            for turn in wait {
                let busy = |_| {
                    let peer = &self.peer;
                    BmcError::Refused(format!(
                        "other credentials are being tried at the BMC at {peer}: it is tried again"
                    ))
                };
                turns.push(tokio::time::timeout(QUEUE_DEADLINE, turn.lock_owned()).await.map_err(busy)?);
            }
            // Of those who went before, one may have been refused, or let in with the same credentials.
            if self.judge()?.is_none() {
                turns.clear();
            }
        }
        let done = operation.await;
        match &done {
            Ok(_) => self.logins.accepted(&self.attempt, Instant::now()),
            Err(BmcError::Credentials { logins: refused @ 1.., .. }) => {
                self.logins.refused(&self.attempt, *refused, Instant::now());
            }
            Err(_) => {}
        }
        done
    }

    fn judge(&self) -> Result<Option<Vec<Arc<tokio::sync::Mutex<()>>>>, BmcError> {
        match self.logins.judge(&self.attempt, Instant::now()) {
            LoginVerdict::Known => Ok(None),
            LoginVerdict::Try(turns) => Ok(Some(turns)),
            LoginVerdict::Held(held) => Err(BmcError::Held {
                peer: self.peer.clone(),
                logins: held.logins,
                until: held.until,
                shared: held.shared,
            }),
        }
    }
}

#[async_trait]
impl Bmc for LoginLimited {
    async fn power(&self) -> Result<PowerState, BmcError> {
        self.of(self.bmc.power()).await
    }

    async fn set_power(&self, action: PowerAction) -> Result<(), BmcError> {
        self.of(self.bmc.set_power(action)).await
    }

    async fn set_boot_device(&self, device: BootDevice, mode: FirmwareMode) -> Result<(), BmcError> {
        self.of(self.bmc.set_boot_device(device, mode)).await
    }

    async fn inventory(&self) -> Result<HardwareDetails, BmcError> {
        self.of(self.bmc.inventory()).await
    }

    async fn health(&self) -> Result<Health, BmcError> {
        // By IPMI there is none, and nobody logs in for it: that it is unknown says nothing of the credentials.
        match self.judge()? {
            None => self.of(self.bmc.health()).await,
            Some(_) => Ok(Health::Unknown),
        }
    }

    async fn insert_media(&self, url: &str) -> Result<(), BmcError> {
        self.of(self.bmc.insert_media(url)).await
    }

    async fn eject_media(&self) -> Result<(), BmcError> {
        self.of(self.bmc.eject_media()).await
    }

    async fn media(&self) -> Result<Option<String>, BmcError> {
        self.of(self.bmc.media()).await
    }

    async fn boot_from_url(&self, url: &str) -> Result<(), BmcError> {
        self.of(self.bmc.boot_from_url(url)).await
    }

    async fn probe(&self) -> Result<ProbeReport, BmcError> {
        self.of(self.bmc.probe()).await
    }
}
