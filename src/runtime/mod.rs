//! The controller runtime.
//!
//! What every controller stands on: each kind is watched once in a process, and controllers are built, run and ended in one
//! way.
//!
//! [`Watches`] tells whoever asked of each change of a kind, relists included. A [`Cache`] holds a slim copy of a kind's
//! objects, and the names of those that a controller has yet to look at. A [`Reconcile`] says what is done about one object;
//! [`run`] does that for all of them until it is told to end. Caches live as long as the process, controllers only while this
//! appliance may act, so whoever takes over has nothing to list first.
//!
//! What a controller writes has one place, too: [`conditions`] and the rest of a status ([`changes`], [`throttle`]), [`owners`] and
//! finalizers ([`objects`]), [`events`]. [`wake`] has an object looked at when another one changes that has to do with it.
//!
//! [`Tasks`] are what is done by itself now and then, and long work for objects: each run is supervised, and shown.
//! [`ClusterScopedViews`] are objects that only show what is kept elsewhere.

use prometheus_client::registry::Registry;

mod cache;
pub mod changes;
pub mod conditions;
mod conflict;
mod controller;
mod ending;
pub mod events;
mod follow;
mod grouped;
#[cfg(test)]
pub(crate) mod mortal_tests;
pub mod objects;
pub mod owners;
mod readable;
mod shares;
mod slim;
pub mod tasks;
pub mod throttle;
mod views;
pub mod wake;
mod watches;

pub use cache::{Cache, Wakes};
pub use conflict::Conflict;
pub use controller::{Reconcile, run};
pub use events::Note;
pub use grouped::{Grouped, Mention};
pub use readable::Readable;
pub use slim::{Slim, essence};
pub use tasks::{Jobs, SupervisedTask, Tasks};
pub use views::{ClusterScopedViews, ViewError};
pub use watches::{ObjectKey, WatchChange, Watches, key, watch};

/// Names what controllers and watches count, for a scrape.
pub fn register(registry: &mut Registry) {
    controller::register(registry);
    watches::meters::register(registry);
}
