//! `slipway kubespray`: runs of kubespray's playbooks, on this box, and what objects of the API had run, from any desk ([`desk`]).

pub(super) mod desk;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use nix::unistd::{Gid, Uid, geteuid, setgid, setgroups, setuid};
use secrecy::SecretString;
use serde_json::{Map, Value, json};

use super::client::ServerArgs;
use super::common::{ConfigFile, print_text};
use super::failure::{plain, usage};
use super::local;
use super::progress::ProgressLine;
use crate::api::bpa::Provisioning;
use crate::api::bpa::software::Software;
use crate::cli::form::ProgramForm;
use crate::config::{Config, ConfigError, DEFAULT_PATH};
use crate::files;
use crate::kubespray::runs::{
    HostKeys, Installation, Playbook, RunId, RunLimits, RunPhase, RunRequest, RunStatus, RunSupervisor, RunVars,
    RunVerdict, Runs, is_confined, supervise,
};
use crate::pki::users;

/// Longest inventory, key, known_hosts and file of variables, in bytes; each has a bound of its own beside it.
const FILE_MAX: u64 = 8 << 20;
/// Runs that are kept when a new one is started.
const KEPT: usize = 50;
/// How long a registry or a folder of files has to answer.
const MIRROR: Duration = Duration::from_secs(5);
/// Between two looks at a log.
const LOOK: Duration = Duration::from_millis(500);

#[derive(clap::Subcommand)]
pub(super) enum KubesprayCommand {
    /// Check the kubespray checkout and the virtual environment that the configuration names, and print their versions
    Check(PrintedConfig),
    /// Run a playbook of kubespray over an inventory, and follow it to its end
    ///
    /// The run goes on when this command is ended: `slipway kubespray log --follow ID` finds it again.
    Run(Box<RunOptions>),
    /// List the runs on this box
    List(PrintedConfig),
    /// Print the log of a run
    #[command(after_help = "\
Examples:
  slipway kubespray log cluster-20260801-120000        a run on this box
  slipway kubespray log --provisioning edge --follow   the last run for a cluster, from any machine
  slipway kubespray log --software tools --previous")]
    Log(LogOptions),
    /// Start another run for a Provisioning or a Software
    ///
    /// A run that failed, was cancelled or is lost is not repeated by itself.
    #[command(after_help = "\
Examples:
  slipway kubespray retry edge
  slipway kubespray retry edge --playbook upgrade-cluster
  slipway kubespray retry --software tools")]
    Retry(desk::Retry),
    /// End a run: its processes have ten seconds to exit
    #[command(after_help = "\
Examples:
  slipway kubespray cancel cluster-20260801-120000     a run on this box
  slipway kubespray cancel --provisioning edge         the run for a cluster, from any machine")]
    Cancel(CancelOptions),
    /// Look after the run whose folder this is; not for use by hand
    #[command(hide = true)]
    Supervise,
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  slipway kubespray run --playbook cluster --inventory hosts.yaml --private-key ~/.ssh/id_ed25519
  slipway kubespray run --playbook remove-node --node w-3 --inventory hosts.yaml")]
pub(super) struct RunOptions {
    #[command(flatten)]
    config: ConfigFile,
    /// Playbook to run
    #[arg(long, value_enum)]
    playbook: PlaybookName,
    /// Inventory, in YAML or INI; `-` reads standard input. Whoever writes it may run anything on this box
    #[arg(long, short, value_name = "FILE")]
    inventory: PathBuf,
    /// Further variables, as a JSON object in a file
    #[arg(long, value_name = "FILE")]
    vars: Option<PathBuf>,
    /// Private key for ssh, without a passphrase
    #[arg(long, value_name = "FILE")]
    private_key: Option<PathBuf>,
    /// Host keys; a host that shows another key is not connected to. Without it the first key of each host is accepted
    #[arg(long, value_name = "FILE")]
    known_hosts: Option<PathBuf>,
    /// User on hosts whose inventory names none
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Only this host; may be repeated
    #[arg(long = "limit", value_name = "HOST")]
    limit: Vec<String>,
    /// Node to remove; may be repeated
    #[arg(long = "node", value_name = "HOST")]
    nodes: Vec<String>,
    /// Name of the run: small letters, digits and hyphens, 40 at most. A run of that name that exists is followed
    #[arg(long, value_name = "ID")]
    id: Option<String>,
}

/// Of which configuration, and how it is printed.
#[derive(clap::Args)]
pub(super) struct PrintedConfig {
    #[command(flatten)]
    config: ConfigFile,
    /// Print it as JSON
    #[arg(long, short, value_enum, value_name = "FORM")]
    output: Option<ProgramForm>,
}

/// A run: on this box by its name, or from any machine the last one of an object.
#[derive(clap::Args)]
struct Which {
    /// Name of the run, on the appliance's box
    #[arg(value_name = "ID", required_unless_present_any = ["provisioning", "software"])]
    id: Option<String>,
    /// The last run for this Provisioning, from any machine
    #[arg(long, value_name = "NAME", conflicts_with = "id")]
    provisioning: Option<String>,
    /// The last run that this Software asked for, from any machine
    #[arg(long, value_name = "NAME", conflicts_with_all = ["id", "provisioning"])]
    software: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(clap::Args)]
pub(super) struct LogOptions {
    #[command(flatten)]
    part: desk::LogExcerpt,
    #[command(flatten)]
    which: Which,
}

#[derive(clap::Args)]
pub(super) struct CancelOptions {
    #[command(flatten)]
    which: Which,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum PlaybookName {
    Cluster,
    Scale,
    RemoveNode,
    UpgradeCluster,
    Reset,
}

pub(super) fn run(command: KubesprayCommand) -> anyhow::Result<()> {
    match command {
        KubesprayCommand::Check(options) => check(&options),
        KubesprayCommand::Run(options) => start(&options),
        KubesprayCommand::List(options) => list(&options),
        KubesprayCommand::Log(options) => log(&options),
        KubesprayCommand::Retry(options) => local::block_on(desk::retry(&options)),
        KubesprayCommand::Cancel(options) => cancel(&options),
        KubesprayCommand::Supervise => {
            let folder = std::env::current_dir()?;
            local::block_on(async { Ok(supervise(&folder, |_| {}).await?) })
        }
    }
}

fn installation(config: &Config) -> anyhow::Result<Installation> {
    let found = Installation::of(&config.kubespray).map(|found| found.hiding(config.private_paths()));
    found.ok_or_else(|| {
        let path = config.path.display();
        anyhow::anyhow!("{path} names no kubespray: set kubespray.path and kubespray.ansible (docs/kubespray.md)")
    })
}

/// From here on this process is whom the data folder belongs to, where root asks: what a run makes is then the service's, and
/// playbooks have no more rights than it. Files that the user names are read before.
fn become_owner(config: &Config) -> anyhow::Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let Some(owner) = users::service_of(&config.data_dir.0) else { return Ok(()) };
    let (user, group) = (Uid::from_raw(owner.user), Gid::from_raw(owner.group));
    let become_it = setgroups(&[group]).and_then(|()| setgid(group)).and_then(|()| setuid(user));
    become_it.with_context(|| format!("cannot act as {}", users::name(owner.user)))
}

fn runs(config: &Config) -> anyhow::Result<Runs> {
    Ok(Runs::open(&config.data_dir.kubespray(), RunSupervisor::this_program())?)
}

fn check(options: &PrintedConfig) -> anyhow::Result<()> {
    let config = options.config.load()?;
    let installation = installation(&config)?;
    become_owner(&config)?;
    let versions =
        installation.inspect().map_err(|faults| ConfigError::Faults { path: config.path.clone(), faults })?;
    let mut warnings = Vec::new();
    for (key, url) in mirrors(&config) {
        if let Some(reason) = local::block_on(async { Ok(unreached(&url).await) })? {
            warnings.push(format!("kubespray.{key}: {url}: {reason}: nodes get nothing there (docs/kubespray.md)"));
        }
    }
    if !is_confined() {
        warnings.push(
            "This kernel has no Landlock: what runs here for a node sees what the service's user sees (docs/security.md)"
                .to_owned(),
        );
    }
    if options.output == Some(ProgramForm::Json) {
        let packages: Map<String, Value> =
            versions.packages.iter().map(|(name, version)| (name.to_string(), version.to_string().into())).collect();
        let told = json!({
            "kubespray": versions.kubespray, "path": installation.tree,
            "ansibleCore": versions.ansible_core, "wanted": versions.wanted,
            "python": versions.python, "environment": installation.environment,
            "packages": packages, "warnings": warnings,
        });
        return print_text(&(serde_json::to_string_pretty(&told)? + "\n"));
    }
    println!("kubespray {} in {}", plain(&versions.kubespray), installation.tree.display());
    println!(
        "ansible-core {} (wanted: {}), Python {} in {}",
        plain(&versions.ansible_core),
        plain(&versions.wanted),
        plain(&versions.python),
        installation.environment.display()
    );
    for warning in &warnings {
        eprintln!("{warning}");
    }
    for (name, version) in &versions.packages {
        println!("  {} {}", plain(name), plain(version));
    }
    Ok(())
}

/// What nodes ask first of the places that the configuration names for them.
fn mirrors(config: &Config) -> Vec<(&'static str, String)> {
    let at = |url: &Option<String>, path: &str| url.as_ref().map(|url| format!("{}/{path}", url.trim_end_matches('/')));
    let (registry, files) = (at(&config.kubespray.registry, "v2/"), at(&config.kubespray.files, ""));
    registry.map(|url| ("registry", url)).into_iter().chain(files.map(|url| ("files", url))).collect()
}

/// Why nothing is had at a URL, if nothing is.
async fn unreached(url: &str) -> Option<String> {
    let client = reqwest::Client::builder().no_proxy().timeout(MIRROR);
    match client.build().map(|client| client.get(url)).ok()?.send().await {
        Ok(answer) if answer.status().is_success() || answer.status() == http::StatusCode::UNAUTHORIZED => None,
        Ok(answer) => Some(answer.status().to_string()),
        Err(error) => Some(format!("{:#}", anyhow::Error::new(error))),
    }
}

fn text(path: &Path) -> anyhow::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().take(FILE_MAX + 1).read_to_string(&mut text).context("standard input")?;
        return Ok(text);
    }
    files::read_text(path, FILE_MAX).with_context(|| path.display().to_string())
}

fn request(options: &RunOptions, bounds: RunLimits) -> anyhow::Result<RunRequest> {
    let playbook = match options.playbook {
        PlaybookName::Cluster => Playbook::Cluster,
        PlaybookName::Scale => Playbook::Scale,
        PlaybookName::RemoveNode => Playbook::RemoveNode { nodes: options.nodes.clone() },
        PlaybookName::UpgradeCluster => Playbook::UpgradeCluster,
        PlaybookName::Reset => Playbook::Reset,
    };
    if !options.nodes.is_empty() && !matches!(options.playbook, PlaybookName::RemoveNode) {
        return Err(usage("--node is for --playbook remove-node"));
    }
    let id = match &options.id {
        Some(id) => id.clone(),
        None => {
            let name = playbook.file().trim_end_matches(".yml");
            format!("{name}-{}", jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S"))
        }
    };
    let vars = match options.vars.as_deref().map(|path| Ok::<_, anyhow::Error>((path, text(path)?))).transpose()? {
        None => RunVars::default(),
        Some((path, text)) => match serde_json::from_str(&text) {
            Ok(Value::Object(vars)) => RunVars::of_administrator(vars)?,
            Ok(_) => anyhow::bail!("{}: no JSON object", path.display()),
            Err(error) => anyhow::bail!("{}: {error}", path.display()),
        },
    };
    let known = options.known_hosts.as_deref().map(text).transpose()?;
    Ok(RunRequest {
        id: id.parse::<RunId>()?,
        playbook,
        inventory: text(&options.inventory)?,
        vars,
        limit: options.limit.clone(),
        expected: options.limit.clone(),
        user: options.user.clone(),
        ssh_key: options.private_key.as_deref().map(text).transpose()?.map(SecretString::from),
        host_keys: known.map_or(HostKeys::FirstContact, HostKeys::Known),
        secrets: Vec::new(),
        bounds,
        owner: None,
        requester: None,
    })
}

fn start(options: &RunOptions) -> anyhow::Result<()> {
    let config = options.config.load()?;
    let installation = installation(&config)?;
    let request = request(options, RunLimits::of(&config.kubespray))?;
    request.check()?;
    become_owner(&config)?;
    installation.inspect().map_err(|faults| ConfigError::Faults { path: config.path.clone(), faults })?;
    let runs = runs(&config)?;
    local::block_on(async {
        runs.prune(KEPT)?;
        runs.start(&installation, &request).await?;
        eprintln!("run {} of {}", request.id, request.playbook.file());
        let mut progress = ProgressLine::new();
        let status = runs
            .follow(&request.id, |status| {
                let shown = &status.progress;
                let what = if shown.task.is_empty() { &shown.play } else { &shown.task };
                progress.show(&plain(what), shown.percent().map(u64::from));
            })
            .await?;
        progress.end();
        tell(&request.id, &status)
    })
}

/// What a run came to: a line for each host, and what failed.
fn tell(id: &RunId, status: &RunStatus) -> anyhow::Result<()> {
    for (name, host) in &status.progress.hosts {
        println!(
            "{:<30} ok {:>4}  changed {:>4}  failed {:>3}  unreachable {:>3}",
            plain(name),
            host.ok,
            host.changed,
            host.failures,
            host.unreachable
        );
    }
    for failure in status.progress.failures.iter().filter(|_| status.verdict != Some(RunVerdict::Succeeded)) {
        println!("{}: {}: {}", plain(&failure.host), plain(&failure.task), plain(&failure.message));
    }
    match &status.verdict {
        Some(RunVerdict::Succeeded) => {
            println!("run {id} succeeded");
            Ok(())
        }
        Some(RunVerdict::Cancelled) => anyhow::bail!("run {id} was cancelled"),
        Some(RunVerdict::Failed(reason)) => anyhow::bail!("run {id} {reason}; slipway kubespray log {id}"),
        None => anyhow::bail!("run {id} is under way"),
    }
}

fn list(options: &PrintedConfig) -> anyhow::Result<()> {
    let config = options.config.load()?;
    become_owner(&config)?;
    let runs = runs(&config)?;
    let (mut lines, mut all) = (String::new(), Vec::new());
    for id in runs.list()? {
        // What a crash left is put in order on the way.
        local::block_on(async { Ok(runs.settle(&id).await?) })?;
        let status = runs.status(&id)?;
        let state = match (&status.phase, &status.verdict) {
            (_, Some(RunVerdict::Succeeded)) => "succeeded".to_owned(),
            (_, Some(RunVerdict::Cancelled)) => "cancelled".to_owned(),
            (_, Some(RunVerdict::Failed(reason))) => format!("failed: {reason}"),
            (RunPhase::Cancelling, None) => "ending".to_owned(),
            _ => format!("{} %, {}", status.progress.percent().unwrap_or(0), status.progress.task),
        };
        all.push(json!({
            "id": id.as_str(), "playbook": status.playbook, "state": state,
            "namespace": status.owner.as_ref().map(|owner| &owner.namespace),
            "provisioning": status.owner.as_ref().map(|owner| &owner.name),
            "software": status.requester.as_ref().map(|requester| &requester.name),
        }));
        let mut of = status.owner.map_or_else(|| "-".to_owned(), |owner| format!("{}/{}", owner.namespace, owner.name));
        if let Some(requester) = status.requester {
            of += &format!(" for Software {}", requester.name);
        }
        lines += &format!("{:<40} {:<20} {:<30} {}\n", id.as_str(), status.playbook, plain(&of), plain(&state));
    }
    if options.output == Some(ProgramForm::Json) {
        return print_text(&(serde_json::to_string_pretty(&all)? + "\n"));
    }
    print_text(if lines.is_empty() { "no runs\n" } else { &lines })
}

/// A run on this box.
fn named(which: &Which) -> anyhow::Result<(Runs, RunId)> {
    let config = ConfigFile { config: which.server.config.clone().unwrap_or_else(|| DEFAULT_PATH.into()) }.load()?;
    let id = which.id.as_deref().unwrap_or_default().parse()?;
    become_owner(&config)?;
    Ok((runs(&config)?, id))
}

fn log(options: &LogOptions) -> anyhow::Result<()> {
    if let Some(name) = &options.which.provisioning {
        return local::block_on(desk::log::<Provisioning>(&options.which.server, name, &options.part));
    }
    if let Some(name) = &options.which.software {
        return local::block_on(desk::log::<Software>(&options.which.server, name, &options.part));
    }
    if options.part.previous {
        return Err(usage("--previous is for --provisioning and --software"));
    }
    let (runs, id) = named(&options.which)?;
    if let Some(owner) = runs.status(&id)?.owner {
        eprintln!("run {id} for the Provisioning {}", plain(&format!("{}/{}", owner.namespace, owner.name)));
    }
    let mut from = 0;
    loop {
        let part = runs.log(&id, from)?;
        from = part.next;
        print_text(&String::from_utf8_lossy(&part.bytes))?;
        if part.last || part.bytes.is_empty() && !options.part.follow {
            return Ok(());
        }
        if part.bytes.is_empty() {
            std::thread::sleep(LOOK);
        }
    }
}

fn cancel(options: &CancelOptions) -> anyhow::Result<()> {
    if let Some(name) = &options.which.provisioning {
        return local::block_on(desk::cancel::<Provisioning>(&options.which.server, name));
    }
    if let Some(name) = &options.which.software {
        return local::block_on(desk::cancel::<Software>(&options.which.server, name));
    }
    let (runs, id) = named(&options.which)?;
    local::block_on(async {
        runs.cancel(&id).await?;
        let status = runs.follow(&id, |_| {}).await?;
        match status.verdict {
            Some(RunVerdict::Cancelled) | None => println!("run {id} was cancelled"),
            Some(RunVerdict::Succeeded) => println!("run {id} had succeeded before"),
            Some(RunVerdict::Failed(reason)) => println!("run {id} had ended before: {}", plain(&reason)),
        }
        Ok(())
    })
}
