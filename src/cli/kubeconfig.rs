//! `slipway kubeconfig`: makes a client certificate, and prints a kubeconfig with it.

use jiff::Timestamp;

use super::common::ConfigFile;
use crate::appliance;

#[derive(clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    config: ConfigFile,
    /// Endpoint for the kubeconfig [default: the first of api.names, else this appliance's address]
    #[arg(long, value_name = "https://HOST:PORT")]
    server: Option<String>,
    /// Revoke every administrator's certificate made before; open connections that use one end within seconds
    #[arg(long)]
    revoke_all: bool,
}

pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let config = options.config.load()?;
    print!("{}", appliance::kubeconfig(&config, options.server.as_deref(), options.revoke_all)?);
    if options.revoke_all {
        eprintln!("every administrator's certificate that was made before has been revoked");
    }
    let ends = Timestamp::now() + config.api.admin_certificate.0;
    eprintln!("the certificate holds until {ends:.0}; `slipway kubeconfig` makes another");
    Ok(())
}
