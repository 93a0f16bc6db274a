//! What nobody asks for, in [`round`]s: [`background`] has [`namespaces`] emptied that end, and [`old_events`] forgotten; the
//! [`garbage`] collector takes dependents with their owners, which [`owner_graph`] remembers.

mod background;
mod garbage;
mod namespaces;
mod old_events;
pub(super) mod owner_graph;
pub(super) mod round;
