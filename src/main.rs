//! Parses the command line and runs one command.

use std::process::ExitCode;

fn main() -> ExitCode {
    // The ramdisk's /init is this very file: as the first process it is the agent, whatever it is called.
    if std::process::id() == 1 {
        slipway::agent::run_as_init();
    }
    slipway::cli::run()
}
