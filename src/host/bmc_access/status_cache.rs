//! A cache of BMC readings, in memory only: after a start they are asked again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::bmc::{Health, PowerState};

/// Power and health as last read, by host UID, with the version of the credentials the power was read with.
#[derive(Default)]
pub(in crate::host) struct StatusCache(Mutex<HashMap<String, StatusReading>>);

#[derive(Default)]
struct StatusReading {
    power: Option<PowerReading>,
    health: Option<Health>,
}

struct PowerReading {
    state: PowerState,
    at: std::time::Instant,
    credentials: String,
}

impl StatusCache {
    fn all(&self) -> MutexGuard<'_, HashMap<String, StatusReading>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::host) fn get(&self, uid: &str, credentials: &str, fresh: Duration) -> Option<PowerState> {
        let all = self.all();
        let power = all.get(uid)?.power.as_ref()?;
        (power.credentials == credentials && power.at.elapsed() < fresh).then_some(power.state)
    }

    pub(in crate::host) fn put(&self, uid: &str, credentials: &str, state: PowerState) {
        let power = PowerReading { state, at: std::time::Instant::now(), credentials: credentials.to_owned() };
        self.all().entry(uid.to_owned()).or_default().power = Some(power);
    }

    pub(in crate::host) fn health(&self, uid: &str) -> Option<Health> {
        self.all().get(uid)?.health
    }

    pub(in crate::host) fn put_health(&self, uid: &str, health: Health) {
        self.all().entry(uid.to_owned()).or_default().health = Some(health);
    }

    pub(in crate::host) fn forget(&self, uid: &str) {
        self.all().remove(uid);
    }
}
