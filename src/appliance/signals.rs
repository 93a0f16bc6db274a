//! Signal handling.
//!
//! What signals do: SIGTERM and SIGINT end the appliance in order, whenever they come; SIGHUP, SIGUSR1 and SIGUSR2 end
//! nothing.

use std::fmt;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that it acts on. As long as the process lives, none of them ends it by itself.
#[derive(Debug)]
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user1: Signal,
    user2: Signal,
}

/// A signal that asks for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End(&'static str);

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Signals {
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
        })
    }

    /// Waits for a signal that asks for the end. The others are told of in the log.
    pub(super) async fn end(&mut self) -> End {
        loop {
            let passed_over = tokio::select! {
                _ = self.terminate.recv() => return End("SIGTERM"),
                _ = self.interrupt.recv() => return End("SIGINT"),
                _ = self.hangup.recv() => "SIGHUP",
                _ = self.user1.recv() => "SIGUSR1",
                _ = self.user2.recv() => "SIGUSR2",
            };
            tracing::warn!(
                signal = passed_over,
                "nothing is reloaded: restart the appliance to apply its configuration"
            );
        }
    }
}
