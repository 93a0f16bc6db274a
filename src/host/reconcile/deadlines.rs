//! Deadlines for slow BMCs.
//!
//! How long a look at a host may take that others wait for. Each request to a BMC has its deadline; these are for BMCs
//! that keep each of them and are slow all the same.

use std::time::Duration;

use super::effects::EffectError;
use crate::api::metal3::BareMetalHost;
use crate::bmc::{BmcAddress, BmcError};
use crate::host::lifecycle::Effect;

/// Things that a BMC is asked for before a look may end: with fewer, a slow one would get nowhere.
const LEAST: usize = 2;

/// How long a look may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadlines {
    /// After this, a BMC is asked for nothing more: the host queues again.
    pub look: Duration,
    /// For a reading of the power, with the login before it.
    pub read: Duration,
    /// For everything else; more than the deadlines of its parts together.
    pub act: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { look: Duration::from_secs(60), read: Duration::from_secs(120), act: Duration::from_secs(600) }
    }
}

impl Deadlines {
    /// How long an effect may take; none of one that waits for no BMC, or has a deadline of its own.
    pub(super) fn with(&self, effect: &Effect) -> Option<Duration> {
        match effect {
            Effect::ReadPower => Some(self.read),
            Effect::Boot(_)
            | Effect::PowerOn
            | Effect::PowerOff { .. }
            | Effect::Reboot { .. }
            | Effect::InspectOutOfBand { .. }
            | Effect::EjectDataImage => Some(self.act),
            Effect::HandOver(_)
            | Effect::AddFinalizer
            | Effect::DropAnnotations(_)
            | Effect::SetArchitecture(_)
            | Effect::Intent(_)
            | Effect::Register(_)
            | Effect::EnsureImage { .. }
            | Effect::SaveHardware { .. }
            | Effect::ForgetIntent
            | Effect::Release => None,
        }
    }

    /// Whether a look that has taken so long, and asked its BMC for so many things, asks for nothing more.
    pub(super) fn is_over(&self, took: Duration, asked: usize) -> bool {
        took > self.look && asked >= LEAST
    }
}

/// Does an effect, unless it takes too long.
pub(super) async fn within<T>(
    patience: Option<Duration>,
    host: &BareMetalHost,
    effect: impl Future<Output = Result<T, EffectError>> + Send,
) -> Result<T, EffectError> {
    let Some(patience) = patience else { return effect.await };
    let Ok(done) = tokio::time::timeout(patience, effect).await else {
        let address = host.spec.bmc.as_ref().map(|bmc| bmc.address.as_str()).unwrap_or_default();
        let peer = BmcAddress::parse(address).map_or_else(|_| address.to_owned(), |address| address.peer());
        let reason = format!("too slowly: what it was asked for was not done within {} s", patience.as_secs_f32());
        return Err(BmcError::Protocol { peer, reason }.into());
    };
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bmc::BootDevice;

    #[test]
    fn a_look_ends_after_its_time_but_not_before_something_could_be_done() {
        let patience = Deadlines::default();
        for (seconds, asked, over) in [(0, 0, false), (59, 9, false), (61, 0, false), (61, 1, false), (61, 2, true)] {
            assert_eq!(patience.is_over(Duration::from_secs(seconds), asked), over, "{seconds} s, {asked}");
        }
    }

    #[test]
    fn what_waits_for_a_bmc_has_a_deadline_beyond_those_of_its_parts() {
        let bmc = crate::bmc::BmcSettings::default();
        let parts = bmc.soft_off_deadline + bmc.power_deadline * 2 + bmc.media_deadline + bmc.boot_deadline;
        let patience = Deadlines::default();
        for (effect, deadline) in [
            (Effect::ReadPower, Some(patience.read)),
            (Effect::Boot(BootDevice::Pxe), Some(patience.act)),
            (Effect::PowerOff { soft: true }, Some(patience.act)),
            (Effect::Release, None),
        ] {
            assert_eq!(patience.with(&effect), deadline, "{effect:?}");
        }
        assert!(patience.act > parts + bmc.http_timeout && patience.read > bmc.http_timeout);
    }

    #[tokio::test]
    async fn what_comes_to_no_end_says_so() {
        let mut host = BareMetalHost::new("h", Default::default());
        host.spec.bmc =
            Some(crate::api::metal3::BmcDetails { address: "ipmi://10.0.0.1".into(), ..Default::default() });
        let ended = within::<()>(Some(Duration::ZERO), &host, std::future::pending()).await.unwrap_err().to_string();
        assert_eq!(ended, "the BMC at 10.0.0.1:623 answered too slowly: what it was asked for was not done within 0 s");
        assert!(within(None, &host, async { Ok(()) }).await.is_ok());
    }
}
