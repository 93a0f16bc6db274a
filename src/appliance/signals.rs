//! Signal handling.
//!
//! What signals do: SIGTERM and SIGINT end the appliance in order, whenever they come; SIGHUP has the
//! configuration read again; SIGUSR1 and SIGUSR2 end nothing.

use std::fmt;
use std::io;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;

use super::reload::Reload;

/// The signals that it acts on. As long as the process lives, none of them ends it by itself.
pub(super) struct ApplianceSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user1: Signal,
    user2: Signal,
    /// None until there is something to reload.
    reload: Option<Arc<Reload>>,
}

/// A signal that asks for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndSignal(&'static str);

impl fmt::Display for EndSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl ApplianceSignals {
    /// # Errors
    ///
    /// When the kernel refuses a handler.
    pub(super) fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
            reload: None,
        })
    }

    /// From now on SIGHUP does this.
    pub(super) fn reload_with(&mut self, reload: Reload) {
        self.reload = Some(Arc::new(reload));
    }

    /// Waits for a signal that asks for the end, and does what the others ask for.
    pub(super) async fn end(&mut self) -> EndSignal {
        loop {
            let passed_over = tokio::select! {
                _ = self.terminate.recv() => return EndSignal("SIGTERM"),
                _ = self.interrupt.recv() => return EndSignal("SIGINT"),
                _ = self.hangup.recv() => {
                    let Some(reload) = self.reload.clone() else {
                        tracing::warn!("SIGHUP: the appliance is about to start and has nothing to reload yet");
                        continue;
                    };
                    // A disk may keep it waiting, and the end does not wait for it. It goes on when nobody waits for it any more.
                    let (done, runtime) = (async move { reload.run().await }, Handle::current());
                    let reloaded = spawn_blocking(move || runtime.block_on(done));
                    tokio::select! {
                        _ = self.terminate.recv() => return EndSignal("SIGTERM"),
                        _ = self.interrupt.recv() => return EndSignal("SIGINT"),
                        _ = reloaded => continue,
                    }
                }
                _ = self.user1.recv() => "SIGUSR1",
                _ = self.user2.recv() => "SIGUSR2",
            };
            tracing::warn!(
                signal = passed_over,
                "this signal asks for nothing: SIGHUP has the configuration read again"
            );
        }
    }
}
