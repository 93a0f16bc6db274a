//! What systemd is told of the service: that it is ready, that it stops, and that it still runs (sd_notify(3)). Nothing is told
//! where the appliance was started by something else.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Everything is served from now on, or waits for another API server.
pub(super) fn ready() {
    tell(NotifyState::Ready);
}

/// The shutdown began.
pub(super) fn stopping() {
    tell(NotifyState::Stopping);
}

/// Says until the shutdown that the process still runs, three times in the time after which systemd would start it anew. It is
/// said by a task like those that serve: where none of them runs any more, this one does not either.
pub(super) async fn keep_alive(shutdown: CancellationToken) {
    let Some(patience) = sd_notify::watchdog_enabled().filter(|patience| *patience > Duration::from_millis(3)) else {
        return;
    };
    let mut ticks = interval(patience / 3);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        // One that is not heard is waited for, and only by this task.
        tell(NotifyState::Watchdog).await.ok();
    }
}

/// Tells it on another thread: a service manager that stands still holds up nobody who serves.
fn tell(state: NotifyState<'static>) -> JoinHandle<()> {
    tokio::task::spawn_blocking(move || {
        if let Err(error) = sd_notify::notify(&[state]) {
            warn!(%error, "cannot tell systemd of the state of the service");
        }
    })
}
