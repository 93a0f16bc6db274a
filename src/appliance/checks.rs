//! What a start would stumble over, all of it at once. `slipway serve` and `slipway check-config` ask the same.

use std::path::Path;

use super::ownership;
use crate::bmc::quirks::Quirks;
use crate::config::{Config, ConfigError};
use crate::kubespray::runs::Installation;
use crate::{backup, boot, dhcp, engine, image, log};

/// Something that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFault {
    /// The setting, and what is wrong with it.
    pub text: String,
    /// Whether `serve` ends because of it. The others it tells in its log, and goes on without what they are about.
    pub stops: bool,
}

/// Where a configuration is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckedWhere {
    /// On the appliance's box: interfaces and files are looked for, as this process's user.
    Box,
    /// Elsewhere.
    Elsewhere,
}

/// Everything that is wrong with a configuration.
pub async fn faults(config: &Config, place: CheckedWhere) -> Vec<ConfigFault> {
    let mut stopping = config.faults();
    stopping.extend(log::filter(&config.log.level).err().map(|error| format!("log.level: {error}")));
    let kernel_args = boot::script::check_kernel_args(&config.boot.kernel_args);
    stopping.extend(kernel_args.err().map(|error| error.to_string()));
    let mut others = Vec::new();
    if place == CheckedWhere::Box {
        stopping.extend(ownership::check(&config.data_dir).err().map(|error| error.to_string()));
        stopping.extend(engine::External::open(&config.engine).await.err().map(|error| error.to_string()));
        let ca_file = config.image.ca_file.as_deref().map(image::check_ca_file);
        stopping.extend(ca_file.and_then(Result::err).map(|error| error.to_string()));
        stopping.extend(Quirks::load(config.bmc.quirks.as_deref()).err().map(|error| error.to_string()));
        match dhcp::interfaces() {
            Ok(present) => {
                stopping.extend(dhcp::unserved(&config.networks, &present).iter().map(ToString::to_string));
            }
            Err(error) => stopping.push(dhcp::DhcpBindError::Interfaces(error).to_string()),
        }
        let installation = Installation::of(&config.kubespray);
        let faults = installation.and_then(|installation| installation.inspect().err()).unwrap_or_default();
        others.extend(faults.into_iter().map(|fault| format!("kubespray: {fault}")));
        others.extend(backup::schedule::seal(&config.backup).err().map(|error| format!("{error:#}")));
    }
    let as_fault = |stops| move |text| ConfigFault { text, stops };
    stopping.into_iter().map(as_fault(true)).chain(others.into_iter().map(as_fault(false))).collect()
}

/// Reads the file for a start, with the faults that do not hinder it.
///
/// # Errors
///
/// When `serve` could not start with it: all reasons.
pub async fn load(path: &Path) -> Result<(Config, Vec<ConfigFault>), ConfigError> {
    let config = Config::load_unchecked(path)?;
    let (stopping, others): (Vec<_>, Vec<_>) =
        faults(&config, CheckedWhere::Box).await.into_iter().partition(|fault| fault.stops);
    if stopping.is_empty() {
        return Ok((config, others));
    }
    Err(ConfigError::Faults { path: path.into(), faults: stopping.into_iter().map(|fault| fault.text).collect() })
}
