//! The ramdisk: a Debian kernel, the modules that a server's network and disks need, and this executable as `/init`.
//!
//! What the agent finds in it:
//!
//! | path | what |
//! |---|---|
//! | `/init` | the executable |
//! | `/lib/modules/NAME.ko` | a module, uncompressed; `NAME` with underscores |
//! | `/lib/modules/modules.dep` | `NAME: A B`: to be loaded before it, in this order; one line for each module |
//! | `/lib/modules/modules.alias` | `alias PATTERN NAME`: shell patterns for the kernel's `modalias` |
//! | `/lib/firmware/…` | what the modules ask for, when a firmware folder was given |
//! | `/dev /proc /sys /run /tmp` | empty, but for `/dev/console` and `/dev/null` |
//!
//! The same input gives the same bytes: entries are sorted and carry no time.

mod build;
mod elf;
mod iso;
mod out;
mod package;
mod select;

pub use build::{
    BEST_LEVEL, BuildPhase, BuildProgress, Built, RamdiskError, RamdiskOptions, RamdiskSummary, SummaryFile, build,
};
pub use iso::IsolinuxFiles;
pub(crate) use iso::assemble as medium;
pub use package::PackageError;
