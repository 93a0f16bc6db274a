use super::{ConfigFile, local};

#[derive(clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    config: ConfigFile,
    /// Endpoint to put in, instead of the first of api.names or this appliance's address
    #[arg(long, value_name = "https://HOST:PORT")]
    server: Option<String>,
}

pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let config = options.config.load()?;
    print!("{}", local::kubeconfig(&config, options.server.as_deref())?);
    Ok(())
}
