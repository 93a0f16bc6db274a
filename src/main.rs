//! Parses the command line and runs one command.

use std::process::ExitCode;

/// Thousands of small JSON values live and die on all threads at once. glibc's allocator, with the two arenas that keep
/// its memory small, spends half of the processor on its locks then.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // The ramdisk's /init is this very file, and by that name the kernel calls it. In a container, too, it is the first process.
    if std::process::id() == 1 && std::env::args_os().next().is_some_and(|name| name == "/init") {
        slipway::agent::run_as_init();
    }
    slipway::cli::run()
}
