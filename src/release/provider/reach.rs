//! Where nodes reach this appliance, and what they fetch from it.

use std::net::IpAddr;

use crate::api::lcm::{AgentConfig, LcmEndpoint};
use crate::boot::Program;
use crate::config::Config;
use crate::live::Live;

/// This appliance, as nodes reach it.
#[derive(Clone, Debug)]
pub struct Reach {
    /// In any case this address.
    pub advertise: Option<IpAddr>,
    /// This one, as it is then, where none is configured.
    pub own: Live<Option<IpAddr>>,
    /// Port of its API.
    pub api_port: u16,
    /// Port of its boot HTTP.
    pub boot_port: u16,
    /// Its CA certificate, as PEM.
    pub ca_pem: String,
    /// What runs on nodes as their agent.
    pub program: Program,
}

/// Nobody said at which address nodes reach this appliance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at which address nodes reach the appliance is not known: set boot.advertise in its configuration")]
pub struct Unreachable;

impl Reach {
    /// As the site configures it.
    pub fn new(config: &Config, own: Live<Option<IpAddr>>, ca_pem: &str) -> Self {
        let specific = |address: IpAddr| Some(address).filter(|address| !address.is_unspecified());
        Self {
            advertise: config.boot.advertise.or_else(|| specific(config.boot.listen.ip())),
            own,
            api_port: config.api.listen.port(),
            boot_port: config.boot.listen.port(),
            ca_pem: ca_pem.to_owned(),
            program: Program::own(),
        }
    }

    /// Its API.
    ///
    /// # Errors
    ///
    /// When no address is known.
    pub fn endpoint(&self) -> Result<LcmEndpoint, Unreachable> {
        Ok(LcmEndpoint { host: self.address()?.to_string(), port: self.api_port.into() })
    }

    /// The URL of its API.
    ///
    /// # Errors
    ///
    /// When no address is known.
    pub fn server(&self) -> Result<String, Unreachable> {
        Ok(format!("https://{}:{}", host(self.address()?), self.api_port))
    }

    /// Its own program as the agent of nodes. `sha256` is that of [`Reach::program`].
    ///
    /// # Errors
    ///
    /// When no address is known.
    pub fn agent(&self, sha256: &str) -> Result<AgentConfig, Unreachable> {
        let download_url = format!("http://{}:{}{}", host(self.address()?), self.boot_port, Program::url_path(sha256));
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(AgentConfig { version, download_url, sha256: sha256.to_owned(), args: Vec::new() })
    }

    fn address(&self) -> Result<IpAddr, Unreachable> {
        self.advertise.or(*self.own.get()).ok_or(Unreachable)
    }
}

/// An address as it stands in a URL.
fn host(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_reaches_the_appliance_where_the_site_says() {
        let own = Live::from(None);
        let mut reach = Reach {
            advertise: None,
            own: own.clone(),
            api_port: 8443,
            boot_port: 80,
            ca_pem: String::new(),
            program: Program::own(),
        };
        assert_eq!((reach.server(), reach.endpoint().is_err()), (Err(Unreachable), true));
        reach.own = Live::from(Some("10.20.0.2".parse().unwrap()));
        assert_eq!(reach.server().unwrap(), "https://10.20.0.2:8443");
        reach.advertise = Some("fd00::2".parse().unwrap());
        assert_eq!(reach.server().unwrap(), "https://[fd00::2]:8443");
        assert_eq!(reach.endpoint().unwrap(), LcmEndpoint { host: "fd00::2".into(), port: 8443 });
        assert_eq!(reach.agent("ab").unwrap().download_url, "http://[fd00::2]:80/boot/files/slipway-ab");
    }
}
