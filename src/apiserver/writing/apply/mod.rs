//! Server-side apply.
//!
//! Server-side apply and `metadata.managedFields` (KEP-555): who owns which field, and what a configuration that is
//! applied makes of an object.
//!
//! The pure core: [`element`] and [`set`] are field paths and sets of them with their JSON form; [`typed`], [`compare`]
//! and [`merge`] look at values through a schema; [`manager`] reads and writes `managedFields`; [`update`] holds the
//! rules. `write` is where they are asked.

pub mod compare;
pub mod element;
pub mod go;
pub mod manager;
pub mod markers;
pub mod merge;
pub mod set;
pub mod typed;
pub mod update;

#[cfg(test)]
mod tests;
