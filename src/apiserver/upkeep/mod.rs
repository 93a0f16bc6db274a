//! What nobody asks for: [`background`] empties namespaces that end, forgets old events, and has the [`garbage`] collector take
//! dependents with their owners, which [`owner_graph`] remembers.

pub(super) mod background;
mod garbage;
pub(super) mod owner_graph;
