//! Backup and restore: everything that an appliance must not lose, as one file of plain text, packed and encrypted.
//!
//! # What is in it
//!
//! Every object as the store has it, with its revision; the tables (leases, visits); the CA, the series of client
//! certificates that counts and the key that signs tokens; the configuration file, to read. Not in it is what is made anew: the certificates of server and administrator, the key
//! that seals the database (the new box has its own), the key of boot tokens (so that no token or session of before is good
//! for anything), images (their objects are there, and what the library lacks is imported again), boot files and logs.
//!
//! # How it is taken
//!
//! [`take::BackupSource`] reads all objects at one revision under one lock, which costs a pointer for each, and everybody goes
//! on writing while the text is made of them. The text goes to a file ([`take::write_file`], [`schedule`]) or, over the API, to
//! an administrator ([`page`]), whose `slipway backup` checks, packs and encrypts it.
//!
//! # What restoring makes of it
//!
//! The same objects with the same UIDs and revisions, and a store that goes on far above all revisions that were given
//! ([`restore::REVISIONS_AHEAD`]), so that no client takes a new revision for one that it has seen. Hosts are paused unless
//! asked otherwise: the backup does not know what became of their machines since. See [`restore`].

pub mod format;
mod life;
pub mod page;
pub mod restore;
pub mod schedule;
pub mod seal;
pub mod take;

pub use life::ScheduledBackups;
