//! `slipway kubeconfig`: makes a client certificate, and prints a kubeconfig with it.

use jiff::Timestamp;

use super::common::ConfigFile;
use crate::appliance;

#[derive(clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    config: ConfigFile,
    /// Endpoint to put in, instead of the first of api.names or this appliance's address
    #[arg(long, value_name = "https://HOST:PORT")]
    server: Option<String>,
    /// First end every administrator's certificate that was made before, wherever it is: within seconds, also for
    /// connections that are open
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
