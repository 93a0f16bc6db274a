//! The port: connections before and between requests, and what bounds them.
//!
//! [`tls`] accepts a connection, makes the handshake, and serves requests on it. [`connections`] says how many there are, and who
//! goes for another one; [`connection_memory`] what they hold for their peers, [`exchange_memory`] what of it is a request's and its
//! answer's, and [`connection_activity`] whether a peer still takes what it asked for. [`connection_meters`] counts.
//! [`lingering_close`] ends a connection so that its last answer is read; [`plain_http`] answers whoever does not speak TLS.

pub mod tls;

mod connection_activity;
mod connection_memory;
mod connection_meters;
pub(super) mod connections;
pub(super) mod exchange_memory;
mod lingering_close;
mod plain_http;
