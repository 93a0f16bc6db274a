//! `slipway helm-controller`: the Helm controller of a cluster, and what installs it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::util::SubscriberInitExt;

use super::local;
use crate::appliance;
use crate::config::Span;
use crate::helm::{self, CHART_NAME, ContainerContents, ControllerSettings, Helm};
use crate::log;

#[derive(clap::Subcommand)]
pub(super) enum HelmControllerCommand {
    /// Keep the Helm releases of this cluster as its HelmBundle says, until SIGTERM; what its chart runs
    #[command(after_help = "\
Example, to look at what a bundle does from a desk:
  slipway helm-controller run --server https://192.0.2.1:8443 --ca ca.crt --token token -n edge --bundle edge --kubeconfig edge.conf --once")]
    Run(Run),
    /// Install the controller's chart by `helm`, or upgrade it; what the appliance has a Job in a cluster do
    #[command(after_help = "\
Example, from a desk:
  slipway helm-controller install --kubeconfig edge.conf --helm /usr/local/bin/helm --values \"$(cat values.json)\"")]
    Install(InstallArgs),
    /// Write the controller's image, of this program and `helm`, as an OCI archive
    #[command(after_help = "\
Example:
  slipway helm-controller image --helm /usr/local/bin/helm --out helm-controller.tar
  slipway image import helm-controller helm-controller.tar --format oci --publish")]
    Image(ImageArgs),
    /// Write the chart that installs the controller, as a package
    #[command(after_help = "\
Example:
  slipway helm-controller chart --out charts/
  slipway image import charts charts/ --format packages --publish")]
    Chart(ChartArgs),
}

#[derive(clap::Args)]
pub(super) struct Run {
    /// URL of the appliance
    #[arg(long, value_name = "URL")]
    server: String,
    /// CA certificate of the appliance, as PEM
    #[arg(long, value_name = "FILE")]
    ca: PathBuf,
    /// Token of the controller's account on the appliance
    #[arg(long, value_name = "FILE")]
    token: PathBuf,
    /// Namespace of the bundle
    #[arg(long, short, value_name = "NAME")]
    namespace: String,
    /// Name of the HelmBundle
    #[arg(long, value_name = "NAME")]
    bundle: String,
    /// The program helm, version 3
    #[arg(long, value_name = "FILE", default_value = "/helm")]
    helm: PathBuf,
    /// Kubeconfig of the cluster [default: the cluster that this runs in]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Folder for what helm fetches
    #[arg(long, value_name = "DIR", default_value = "/tmp")]
    scratch: PathBuf,
    /// Folder with logins of repositories: NAME.username and NAME.password, where NAME is a repository's authSecret
    #[arg(long, value_name = "DIR")]
    logins: Option<PathBuf>,
    /// How long what a chart made may take until it is ready, as 90s or 10m
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time)]
    timeout: Duration,
    /// End when everything is as the bundle says, or when nothing gets on (exit code 1)
    #[arg(long)]
    once: bool,
}

#[derive(clap::Args)]
pub(super) struct InstallArgs {
    /// Values of the chart, as JSON
    #[arg(long, value_name = "JSON")]
    values: String,
    /// Name of the Helm release
    #[arg(long, value_name = "NAME", default_value = CHART_NAME)]
    name: String,
    /// Namespace in the cluster
    #[arg(long, short, value_name = "NAME", default_value = "kube-system")]
    namespace: String,
    /// The program helm, version 3
    #[arg(long, value_name = "FILE", default_value = "/helm")]
    helm: PathBuf,
    /// Kubeconfig of the cluster [default: the cluster that this runs in]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Folder for what helm fetches
    #[arg(long, value_name = "DIR", default_value = "/tmp")]
    scratch: PathBuf,
    /// How long the controller may take until it is ready, as 90s or 10m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time)]
    timeout: Duration,
}

fn time(text: &str) -> Result<Duration, String> {
    let Span(time) = Span::try_from(text.to_owned())?;
    match time.as_secs() {
        1..=7200 => Ok(time),
        _ => Err("it must be from 1s to 2h".into()),
    }
}

#[derive(clap::Args)]
pub(super) struct ImageArgs {
    /// The program helm, version 3, for the nodes' processors and without libraries of its own
    #[arg(long, value_name = "FILE")]
    helm: PathBuf,
    /// Name of the image, with its tag [default: slipway/helm-controller:VERSION]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Certificates of public servers, as PEM; not needed where charts come from the appliance
    #[arg(long, value_name = "FILE")]
    certificates: Option<PathBuf>,
    /// File that is written
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

#[derive(clap::Args)]
pub(super) struct ChartArgs {
    /// Folder for helm-controller-VERSION.tgz, made if it is missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(super) fn run(command: HelmControllerCommand) -> anyhow::Result<()> {
    match command {
        HelmControllerCommand::Run(options) => keep(options),
        HelmControllerCommand::Install(options) => install(options),
        HelmControllerCommand::Image(options) => image(&options),
        HelmControllerCommand::Chart(options) => chart(&options),
    }
}

fn logged() -> anyhow::Result<()> {
    let filter = std::env::var("SLIPWAY_LOG").unwrap_or_else(|_| "info".into());
    let filter = log::filter(&filter).map_err(|error| anyhow::anyhow!("SLIPWAY_LOG in the environment: {error}"))?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).finish().init();
    Ok(())
}

fn install(options: InstallArgs) -> anyhow::Result<()> {
    logged()?;
    let InstallArgs { values, name, namespace, helm, kubeconfig, scratch, timeout } = options;
    let helm = Helm { program: helm, kubeconfig, scratch, logins: None, timeout };
    local::block_on(async move { helm::install(&helm, &name, &namespace, &values).await })
}

fn keep(options: Run) -> anyhow::Result<()> {
    appliance::install_tls_provider();
    logged()?;
    let Run { server, ca, token, namespace, bundle, helm, kubeconfig, scratch, logins, timeout, once } = options;
    let helm = Helm { program: helm, kubeconfig, scratch, logins, timeout };
    let settings = ControllerSettings { server, ca, token, namespace, name: bundle, helm, once };
    local::block_on(async {
        let stop = CancellationToken::new();
        let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let ended = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = interrupt.recv() => {}
            }
            ended.cancel();
        });
        helm::run(settings, stop).await
    })
}

fn image(options: &ImageArgs) -> anyhow::Result<()> {
    let opened = |path: &Path| -> anyhow::Result<(File, u64)> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let about = file.metadata().with_context(|| format!("cannot look at {}", path.display()))?;
        if !about.is_file() {
            bail!("{} is no file", path.display());
        }
        Ok((file, about.len()))
    };
    let own = std::env::current_exe().context("cannot find this program")?;
    let ((mut slipway, slipway_size), (mut helm, helm_size)) = (opened(&own)?, opened(&options.helm)?);
    let certificates = options
        .certificates
        .as_ref()
        .map(|path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display())));
    let certificates = certificates.transpose()?;
    let name = options.name.clone().unwrap_or_else(|| format!("slipway/{CHART_NAME}:{}", env!("CARGO_PKG_VERSION")));
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let contents = ContainerContents {
        slipway: &mut slipway,
        slipway_size,
        helm: &mut helm,
        helm_size,
        certificates: certificates.as_deref(),
    };
    written(&options.out, |out| helm::container_archive(contents, &name, architecture, out))?;
    println!("{name} is in {}", options.out.display());
    Ok(())
}

fn chart(options: &ChartArgs) -> anyhow::Result<()> {
    let folder = options.out.display();
    std::fs::create_dir_all(&options.out).with_context(|| format!("cannot make {folder}"))?;
    let version = env!("CARGO_PKG_VERSION");
    let path = options.out.join(format!("{CHART_NAME}-{version}.tgz"));
    written(&path, |out| helm::package_chart(version, out))?;
    println!("{}", path.display());
    Ok(())
}

/// Writes a file beside its place, and puts it there when it is whole.
fn written(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>) -> anyhow::Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let file = tempfile::NamedTempFile::new_in(folder).with_context(cannot)?;
    let (file, place) = file.into_parts();
    let mut out = BufWriter::new(file);
    write(&mut out).with_context(cannot)?;
    out.flush().with_context(cannot)?;
    let file = out.into_inner().map_err(std::io::IntoInnerError::into_error).with_context(cannot)?;
    std::fs::set_permissions(&place, std::os::unix::fs::PermissionsExt::from_mode(0o644)).with_context(cannot)?;
    file.sync_all().with_context(cannot)?;
    place.persist(path).map_err(|error| error.error).with_context(cannot)
}
