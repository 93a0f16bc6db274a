//! Settings of BMC connections: timeouts, and what all connections share.

use std::time::Duration;

use rustls_pki_types::CertificateDer;
use secrecy::SecretString;

use super::metrics::BmcMetrics;
use super::quirks::Quirks;
use crate::live::Live;
use crate::outbound::Guard;

/// Times, bounds and shared data of all BMC connections.
#[derive(Clone, Debug)]
pub struct BmcSettings {
    /// How long one IPMI request waits for its answer before it is sent again. 2 s by default.
    pub ipmi_timeout: Duration,
    /// How often an IPMI request is sent before the BMC counts as silent. 4 by default, at least 1.
    pub ipmi_tries: u32,
    /// The BMC key K_G, for controllers that were given one; most have none.
    pub ipmi_kg: Option<SecretString>,
    /// How long a TCP connection and its TLS handshake may take. 10 s by default.
    pub connect_timeout: Duration,
    /// How long one HTTP request may take, body included. 30 s by default.
    pub http_timeout: Duration,
    /// How often an HTTP request is tried when the answer says "later" or the connection breaks. 4 by default.
    pub http_tries: u32,
    /// First pause between tries; it doubles each time, up to 8 s. 500 ms by default.
    pub http_backoff: Duration,
    /// Pause between two readings while a change is awaited. 1 s by default.
    pub poll: Duration,
    /// How long power on, off or reset may take until it is reported. 60 s by default.
    pub power_deadline: Duration,
    /// How long the operating system may take to shut down. 180 s by default.
    pub soft_off_deadline: Duration,
    /// How long a boot device may take until it is reported. 15 s by default.
    pub boot_deadline: Duration,
    /// How long a virtual CD may take until it is reported: controllers fetch some of it first. 60 s by default.
    pub media_deadline: Duration,
    /// Certificate authorities beside the system's own.
    pub extra_roots: Vec<CertificateDer<'static>>,
    /// Vendor profiles.
    pub quirks: Live<Quirks>,
    /// How many connections are kept when nobody uses them. 4096 by default.
    pub max_connections: usize,
    /// What judges the addresses, where whoever runs the program did not choose them. None by default.
    pub guard: Option<Guard>,
    /// What is counted.
    pub metrics: BmcMetrics,
}

impl Default for BmcSettings {
    fn default() -> Self {
        Self {
            ipmi_timeout: Duration::from_secs(2),
            ipmi_tries: 4,
            ipmi_kg: None,
            connect_timeout: Duration::from_secs(10),
            http_timeout: Duration::from_secs(30),
            http_tries: 4,
            http_backoff: Duration::from_millis(500),
            poll: Duration::from_secs(1),
            power_deadline: Duration::from_secs(60),
            soft_off_deadline: Duration::from_secs(180),
            boot_deadline: Duration::from_secs(15),
            media_deadline: Duration::from_secs(60),
            extra_roots: Vec::new(),
            quirks: Quirks::builtin().into(),
            max_connections: 4096,
            guard: None,
            metrics: BmcMetrics::default(),
        }
    }
}
