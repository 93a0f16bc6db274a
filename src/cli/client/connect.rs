//! Server and credentials: a kubeconfig, or on the appliance's own box the administrator's certificate.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, header};
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::cli::local;
use crate::config::{Config, DEFAULT_PATH};
use crate::engine;

/// Who asks, for the server's log.
const USER_AGENT: &str = concat!("slipway/", env!("CARGO_PKG_VERSION"));

/// Which server and which namespace.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub(in crate::cli) struct ServerArgs {
    /// Kubeconfig file [default: --config, $KUBECONFIG, ~/.kube/config, or the appliance on this box]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Use the appliance on this box that has this configuration file, as its administrator
    #[arg(long, value_name = "FILE", env = "SLIPWAY_CONFIG")]
    pub(in crate::cli) config: Option<PathBuf>,
    /// Namespace [default: the kubeconfig's]
    #[arg(long, short, value_name = "NAME")]
    pub(in crate::cli) namespace: Option<String>,
}

/// A server to talk to.
pub(in crate::cli) struct ClientSession {
    pub client: kube::Client,
    /// The namespace for what has none of its own.
    pub namespace: String,
    /// As `https://10.0.0.1:8443`.
    pub endpoint: String,
    /// Where endpoint and credentials come from, for messages.
    pub source: String,
    /// The CA certificates that the server is known by, as PEM; empty where those of the operating system count.
    pub ca_pem: String,
}

impl ClientSession {
    /// Why there was no answer, and what helps.
    pub(in crate::cli) fn unreachable(&self, error: &kube::Error) -> String {
        super::errors::unreachable(self, error)
    }
}

/// What decides where the credentials come from.
struct CredentialSource {
    kubeconfig: Kubeconfig,
    /// Context that goes with it, unless another is asked for.
    context: Option<String>,
    source: String,
}

impl ServerArgs {
    /// The server of a kubeconfig, or without one the appliance on this box with this configuration.
    pub(in crate::cli) fn of(kubeconfig: Option<PathBuf>, context: Option<String>, config: PathBuf) -> Self {
        Self { kubeconfig, context, config: Some(config), namespace: None }
    }

    /// The same, where a configuration that everybody has counts no more than $KUBECONFIG and ~/.kube/config.
    pub(in crate::cli) fn of_any(kubeconfig: Option<PathBuf>, config: PathBuf) -> Self {
        let config = Some(config).filter(|config| config != Path::new(DEFAULT_PATH));
        Self { kubeconfig, context: None, config, namespace: None }
    }

    /// The same in another context than the current one.
    pub(in crate::cli) fn in_context(self, context: Option<String>) -> Self {
        Self { context, ..self }
    }

    /// The server of a command line that is not complete yet.
    pub(super) fn of_words(words: &[String]) -> Self {
        let value = |long: &str, short: &str| {
            let mut found = None;
            for (index, word) in words.iter().enumerate() {
                let next = || words.get(index + 1).cloned();
                if word == long || (!short.is_empty() && word == short) {
                    found = next();
                } else if let Some(value) = word.strip_prefix(long).and_then(|rest| rest.strip_prefix('=')) {
                    found = Some(value.to_owned());
                } else if let Some(value) =
                    word.strip_prefix(short).filter(|value| !short.is_empty() && !value.is_empty())
                {
                    found = Some(value.to_owned());
                }
            }
            found.filter(|value| !value.is_empty())
        };
        let config = value("--config", "").or_else(|| std::env::var("SLIPWAY_CONFIG").ok());
        Self {
            kubeconfig: value("--kubeconfig", "").map(PathBuf::from),
            context: value("--context", ""),
            config: config.map(PathBuf::from),
            namespace: value("--namespace", "-n"),
        }
    }

    /// Whether there are credentials without making any: an appliance's keys are made by who starts it.
    pub(super) fn has_credentials(&self) -> bool {
        let has_keys = |file: &Path| {
            Config::load(file).is_ok_and(|config| config.engine.kubeconfig.is_some() || config.data_dir.pki().is_dir())
        };
        if self.kubeconfig.is_some() {
            return true;
        }
        if let Some(file) = &self.config {
            return has_keys(file);
        }
        let own = std::env::home_dir().is_some_and(|home| home.join(".kube/config").is_file());
        own || std::env::var_os("KUBECONFIG").is_some() || has_keys(Path::new(DEFAULT_PATH))
    }

    /// Another server: what is not given is as for this one.
    pub(in crate::cli) fn other(&self, kubeconfig: Option<PathBuf>, context: Option<String>) -> Self {
        match kubeconfig {
            Some(kubeconfig) => Self { kubeconfig: Some(kubeconfig), context, config: None, namespace: None },
            None => Self { context: context.or(self.context.clone()), namespace: None, ..self.clone() },
        }
    }

    /// The configuration file of the appliance on this box.
    pub(in crate::cli) fn config_file(&self) -> &Path {
        self.config.as_deref().unwrap_or(Path::new(DEFAULT_PATH))
    }

    /// Reads the credentials and makes a client. Nothing is sent yet.
    pub(in crate::cli) async fn connect(&self) -> anyhow::Result<ClientSession> {
        let CredentialSource { kubeconfig, context, source } = self.find()?;
        let options = KubeConfigOptions { context: self.context.clone().or(context), ..KubeConfigOptions::default() };
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .with_context(|| format!("{source} cannot be used"))?;
        config.headers.push((header::USER_AGENT, HeaderValue::from_static(USER_AGENT)));
        let endpoint = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let ca_pem = config.root_cert.iter().flatten().map(|der| pem(der)).collect();
        let client = kube::Client::try_from(config).with_context(|| format!("{source} cannot be used"))?;
        Ok(ClientSession { client, namespace, endpoint, source, ca_pem })
    }

    fn find(&self) -> anyhow::Result<CredentialSource> {
        if let Some(file) = &self.kubeconfig {
            return read(file);
        }
        if let Some(file) = &self.config {
            return local_admin(file);
        }
        if let Some(kubeconfig) = Kubeconfig::from_env().context("$KUBECONFIG cannot be used")? {
            return Ok(CredentialSource { kubeconfig, context: None, source: "$KUBECONFIG".into() });
        }
        let own = std::env::home_dir().map(|home| home.join(".kube/config")).filter(|file| file.is_file());
        if let Some(file) = own {
            return read(&file);
        }
        let config = Path::new(DEFAULT_PATH);
        if config.is_file() {
            return local_admin(config);
        }
        bail!(
            "no server to talk to: there is no --kubeconfig, no $KUBECONFIG, no ~/.kube/config, and no appliance on this box ({DEFAULT_PATH}).\n\
             On the appliance `slipway kubeconfig` prints a kubeconfig; keep it here as ~/.kube/config"
        )
    }
}

/// A certificate as text (RFC 7468 section 5).
fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut lines = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        lines.extend(line.iter().copied().map(char::from));
        lines.push('\n');
    }
    lines + "-----END CERTIFICATE-----\n"
}

fn read(file: &Path) -> anyhow::Result<CredentialSource> {
    let source = format!("kubeconfig {}", file.display());
    let kubeconfig =
        Kubeconfig::read_from(file).map_err(|error| anyhow::anyhow!("{source}: {}", engine::reason(&error)))?;
    Ok(CredentialSource { kubeconfig, context: None, source })
}

fn local_admin(file: &Path) -> anyhow::Result<CredentialSource> {
    let config = Config::load(file)?;
    let (kubeconfig, options) = local::credentials(&config)
        .context("only a user who can read the appliance's keys is its administrator; others need --kubeconfig")?;
    Ok(CredentialSource { kubeconfig, context: options.context, source: file.display().to_string() })
}
