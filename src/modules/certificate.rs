//! The server's certificate names this appliance's address on every network, also on those that come while it runs.

use std::net::IpAddr;
use std::time::Duration;

use crate::dhcp::Site;
use crate::live::Live;
use crate::module::{Life, RunningLife, Service, service};
use crate::pki::ServerCertificate;

/// How often it is looked whether it does.
const EVERY: Duration = Duration::from_secs(2);

/// Keeps the names of the server's certificate.
pub(super) struct CertificateNames {
    pub certificate: ServerCertificate,
    pub site: Site,
    /// Told the address on the first network.
    pub own: Live<Option<IpAddr>>,
}

impl Life for CertificateNames {
    fn run(&self, running: &RunningLife) -> anyhow::Result<Vec<Service>> {
        let (certificate, site, own) = (self.certificate.clone(), self.site.clone(), self.own.clone());
        let (task, stop) = (running.tasks.task("server-certificate"), running.stop.clone());
        let keep = async move {
            let look = || {
                let (certificate, addresses) = (certificate.clone(), site.own_addresses());
                own.set(addresses.first().copied());
                async move { certificate.set_further(addresses).map(drop) }
            };
            task.every(EVERY, &stop, look).await;
        };
        Ok(vec![service("server certificate", keep)])
    }
}
