//! `slipway bmc`: asks a BMC what it is and can do.

use std::io::{ErrorKind, Read};
use std::path::PathBuf;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use super::client::ServerArgs;
use super::failure::{CommandFailure, plain};
use super::local;
use crate::bmc::quirks::Quirks;
use crate::bmc::{BmcAddress, BmcRegistry, BmcSettings, Credentials, ProbeReport};
use crate::config::{Config, ConfigError};
use crate::host::reconcile::credentials;

/// Longest password file that is read, in bytes.
const MAX_PASSWORD: u64 = 4096;

#[derive(clap::Subcommand)]
pub(super) enum BmcCommand {
    /// Print what a BMC is, what it can do, and which quirk profile Slipway uses for it
    ///
    /// Logs in and reads; changes nothing. The credentials are a user name with a password file, or a Secret on the
    /// server with username and password.
    #[command(after_help = "\
Examples:
  slipway bmc probe redfish://10.0.0.21 --username admin --password-file pw
  slipway bmc probe ipmi://10.0.0.22 --secret rack/web-1-bmc")]
    Probe {
        /// As in spec.bmc.address of a host: redfish://10.0.0.21, ipmi://10.0.0.22
        address: String,
        /// User name
        #[arg(long, short, value_name = "NAME", conflicts_with = "secret", requires = "password_file")]
        username: Option<String>,
        /// File with the password; a line break at its end is ignored; - reads standard input
        #[arg(long, value_name = "FILE", requires = "username")]
        password_file: Option<PathBuf>,
        /// Secret with username and password
        #[arg(long, value_name = "[NAMESPACE/]NAME")]
        secret: Option<String>,
        /// Quirk profiles to use beside the built-in ones [default: bmc.quirks of the configuration on this box]
        #[arg(long, value_name = "FILE")]
        quirks: Option<PathBuf>,
        /// Accept any TLS certificate, as disableCertificateVerification does
        #[arg(long)]
        insecure: bool,
        /// Output format
        #[arg(long, short, value_enum, default_value = "text")]
        output: BmcOutput,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub(super) enum BmcOutput {
    Text,
    Json,
    Yaml,
}

pub(super) fn run(command: BmcCommand) -> anyhow::Result<()> {
    let BmcCommand::Probe { address, username, password_file, secret, quirks, insecure, output, server } = command;
    let parsed = BmcAddress::parse(&address).map_err(|error| CommandFailure::Usage(error.to_string()))?;
    let credentials = match (username, password_file, &secret) {
        (Some(username), Some(file), None) => Some(Credentials { username, password: password(&file)?.into() }),
        (None, None, Some(_)) => None,
        _ => {
            let usage = "say who logs in: --username with --password-file, or --secret".to_owned();
            return Err(CommandFailure::Usage(usage).into());
        }
    };
    let site = quirks.map_or_else(|| site_quirks(&server), |file| Ok(Some(file)))?;
    let quirks = Quirks::load(site.as_deref())?.into();
    let report = local::block_on(async {
        let credentials = match (credentials, &secret) {
            (Some(credentials), _) => credentials,
            (None, Some(secret)) => from_secret(&server, secret).await?,
            (None, None) => bail!("no credentials"),
        };
        let registry = BmcRegistry::new(BmcSettings { quirks, ..BmcSettings::default() });
        let report = registry.connect(&parsed, &credentials, !insecure).probe().await;
        registry.close().await;
        Ok(report?)
    })?;
    print(&report, output)
}

/// The site's profiles, where this is the appliance's box.
fn site_quirks(server: &ServerArgs) -> anyhow::Result<Option<PathBuf>> {
    match Config::load_unchecked(server.config_file()) {
        Ok(config) => Ok(config.bmc.quirks),
        // Elsewhere there is none, and whoever may not read it is told by the profiles in the answer which were used.
        Err(ConfigError::Read { source, .. })
            if [ErrorKind::NotFound, ErrorKind::PermissionDenied].contains(&source.kind()) =>
        {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

fn password(file: &PathBuf) -> anyhow::Result<String> {
    let mut text = String::new();
    if file.as_os_str() == "-" {
        std::io::stdin().take(MAX_PASSWORD).read_to_string(&mut text).context("standard input")?;
    } else {
        let opened = std::fs::File::open(file).with_context(|| file.display().to_string())?;
        opened.take(MAX_PASSWORD).read_to_string(&mut text).with_context(|| file.display().to_string())?;
    }
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
}

async fn from_secret(server: &ServerArgs, name: &str) -> anyhow::Result<Credentials> {
    let session = server.connect().await?;
    let (namespace, name) = match name.split_once('/') {
        Some((namespace, name)) => (namespace.to_owned(), name),
        None => (session.namespace.clone(), name),
    };
    let secret = Api::<Secret>::namespaced(session.client, &namespace).get(name).await;
    let secret = secret.with_context(|| format!("secret {namespace}/{name}"))?;
    credentials::credentials(&secret).map_err(|reason| anyhow::anyhow!("secret {namespace}/{name}: {reason}"))
}

fn print(report: &ProbeReport, output: BmcOutput) -> anyhow::Result<()> {
    match output {
        BmcOutput::Json => println!("{}", serde_json::to_string_pretty(report)?),
        BmcOutput::Yaml => print!("{}", serde_saphyr::to_string(report)?),
        BmcOutput::Text => {
            let lines = report.lines();
            let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 2;
            for (name, value) in lines {
                println!("{:width$}{}", format!("{name}:"), plain(&value));
            }
        }
    }
    Ok(())
}
