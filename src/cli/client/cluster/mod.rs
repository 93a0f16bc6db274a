//! `cluster`: what one does with clusters, each a change of Cluster API's objects that kubectl could make as well.

mod nodes;
mod plan;
mod tree;
mod wanted;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use futures::stream::{SelectAll, StreamExt};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::connect::{Server, Session};
use super::errors::RequestError;
use super::output;
use super::request;
use super::tabs::{Look, Rows};
use super::terminal::{Terminal, When};
use super::types::{Type, Types};
use super::until::duration;
use crate::cli::failure::{Failure, usage};
use crate::files;
use plan::{Progress, Replicas, Step};
use wanted::{Login, Wanted};

#[derive(clap::Subcommand)]
pub(in crate::cli) enum Command {
    /// Make a cluster of available hosts: control plane and workers, installed by kubeadm
    ///
    /// Applies Cluster API's objects, which -o yaml prints instead. The image must have kubeadm, kubelet and a container runtime.
    #[command(after_help = "\
Examples:
  slipway cluster create prod --version v1.34.4 --image slipway://node --endpoint 172.22.0.200
  slipway cluster create prod --control-plane 3 --workers 2 --version v1.34.4 --image slipway://node --endpoint 172.22.0.200 --wait
  slipway cluster create prod --version v1.34.4 --image slipway://node --endpoint 172.22.0.200 --virtual-ip --registry http://172.22.0.1
  slipway cluster create prod --version v1.34.4 --image slipway://node --endpoint api.example.org:6443 --hosts rack=7 -o yaml")]
    Create(Box<Create>),
    /// Draw a cluster and all that belongs to it as a tree, with how each is
    #[command(after_help = "\
Examples:
  slipway cluster status prod
  slipway cluster status prod --watch")]
    Status(Status),
    /// Change how many machines a cluster has
    #[command(after_help = "\
Examples:
  slipway cluster scale prod --workers 5 --wait
  slipway cluster scale prod --control-plane 3 --dry-run       say what would be done")]
    Scale(Scale),
    /// Upgrade the Kubernetes of a cluster: the control plane first, one machine after the other, then the workers
    ///
    /// Machines are replaced: each new one is a host that is installed, each old one is drained, erased and available again. Ends when
    /// all are.
    #[command(after_help = "\
Examples:
  slipway cluster upgrade prod --version v1.35.1 --image slipway://node-1.35 --dry-run
  slipway cluster upgrade prod --version v1.35.1 --image slipway://node-1.35")]
    Upgrade(Upgrade),
    /// Delete a cluster: ITS MACHINES ARE ERASED, and its hosts become available again
    ///
    /// Templates stay, as do hosts with their Secrets.
    #[command(after_help = "\
Examples:
  slipway cluster delete prod --dry-run
  slipway cluster delete prod")]
    Delete(Delete),
}

#[derive(clap::Args)]
pub(in crate::cli) struct Create {
    /// Name of the cluster
    #[arg(value_name = "NAME", required_unless_present = "named")]
    name: Option<String>,
    /// The same as the argument NAME
    #[arg(long = "name", value_name = "NAME", id = "named", conflicts_with = "name", hide = true)]
    named: Option<String>,
    /// Machines of the control plane; an odd number
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    control_plane: u32,
    /// Machines for workloads
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    workers: u32,
    /// Version of Kubernetes
    #[arg(long, value_name = "VERSION", value_parser = wanted::version)]
    version: String,
    /// Image of the machines: slipway://NAME of the library, or a URL with --checksum
    #[arg(long, value_name = "URL")]
    image: String,
    /// Checksum of the image, or the URL of a file with it [default: the library's]
    #[arg(long, value_name = "SUM|URL")]
    checksum: Option<String>,
    /// Algorithm of the checksum: md5, sha256 or sha512
    #[arg(long, value_name = "NAME", default_value = "sha256", value_parser = ["md5", "sha256", "sha512"])]
    checksum_type: String,
    /// Where the cluster's API server is reached: a load balancer of yours, or with --virtual-ip a free address
    #[arg(long, value_name = "HOST[:PORT]", value_parser = wanted::endpoint)]
    endpoint: (String, u16),
    /// Have the nodes of the control plane hold the endpoint's address; the image must have keepalived and curl
    #[arg(long)]
    virtual_ip: bool,
    /// Where nodes get all container images, whatever registry they name: the appliance, as http://172.22.0.1; the image must
    /// have containerd with config_path = "/etc/containerd/certs.d"
    #[arg(long, value_name = "URL", value_parser = wanted::registry)]
    registry: Option<String>,
    /// Network of the pods
    #[arg(long, value_name = "NETWORK", default_value = "10.244.0.0/16", value_parser = wanted::network)]
    pods: String,
    /// Network of the services
    #[arg(long, value_name = "NETWORK", default_value = "10.96.0.0/12", value_parser = wanted::network)]
    services: String,
    /// Label that a host must have; may be given more than once
    #[arg(long, value_name = "KEY=VALUE", value_parser = wanted::label)]
    hosts: Vec<(String, String)>,
    /// Label that a host of the control plane must have besides
    #[arg(long, value_name = "KEY=VALUE", value_parser = wanted::label)]
    control_plane_hosts: Vec<(String, String)>,
    /// Label that a host of the workers must have besides
    #[arg(long, value_name = "KEY=VALUE", value_parser = wanted::label)]
    worker_hosts: Vec<(String, String)>,
    /// File with public keys that may log in on the nodes
    #[arg(long, value_name = "FILE")]
    ssh_keys: Option<PathBuf>,
    /// Name of who logs in with them
    #[arg(long, value_name = "NAME", default_value = "slipway")]
    ssh_user: String,
    /// Print the objects as yaml or json; change nothing
    #[arg(long, short, value_name = "FORM", value_parser = ["yaml", "json"])]
    output: Option<String>,
    /// Have the server check everything; change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    waiting: Waiting,
    #[command(flatten)]
    server: Server,
}

#[derive(clap::Args)]
struct Waiting {
    /// Wait until every machine is a ready node
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
    /// How long to wait
    #[arg(long, value_name = "TIME", default_value = "60m", value_parser = duration)]
    timeout: Duration,
}

#[derive(clap::Args)]
pub(in crate::cli) struct Status {
    /// Name of the cluster
    name: String,
    /// Draw it anew at each change
    #[arg(long, short)]
    watch: bool,
    /// When states have colours
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    color: When,
    #[command(flatten)]
    server: Server,
}

#[derive(clap::Args)]
pub(in crate::cli) struct Scale {
    /// Name of the cluster
    name: String,
    /// Machines of the control plane; an odd number
    #[arg(long, value_name = "NUMBER", required_unless_present = "workers")]
    control_plane: Option<u32>,
    /// Machines for workloads
    #[arg(long, value_name = "NUMBER")]
    workers: Option<u32>,
    /// Which MachineDeployment, where there are several
    #[arg(long, value_name = "NAME", requires = "workers")]
    deployment: Option<String>,
    /// Say what would be done; change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    waiting: Waiting,
    #[command(flatten)]
    server: Server,
}

#[derive(clap::Args)]
pub(in crate::cli) struct Upgrade {
    /// Name of the cluster
    name: String,
    /// Version of Kubernetes to upgrade to
    #[arg(long, value_name = "VERSION", value_parser = wanted::version)]
    version: String,
    /// Image with that version: slipway://NAME of the library, or a URL with --checksum [default: the one they have]
    #[arg(long, value_name = "URL")]
    image: Option<String>,
    /// Checksum of the image, or the URL of a file with it [default: the library's]
    #[arg(long, value_name = "SUM|URL", requires = "image")]
    checksum: Option<String>,
    /// Algorithm of the checksum: md5, sha256 or sha512
    #[arg(long, value_name = "NAME", default_value = "sha256", value_parser = ["md5", "sha256", "sha512"])]
    checksum_type: String,
    /// Say what would be done; change nothing
    #[arg(long)]
    dry_run: bool,
    /// How long it may take
    #[arg(long, value_name = "TIME", default_value = "3h", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    server: Server,
}

#[derive(clap::Args)]
pub(in crate::cli) struct Delete {
    /// Name of the cluster
    name: String,
    /// Say what would go; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Wait until it is gone
    #[arg(long, default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    wait: bool,
    /// How long to wait
    #[arg(long, value_name = "TIME", default_value = "60m", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    server: Server,
}

pub(super) async fn run(command: Command, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        Command::Create(options) => create(*options, out).await,
        Command::Status(options) => status(options, out).await,
        Command::Scale(options) => {
            let (session, mut known) = Known::of(&options.server, &options.name).await?;
            let wanted = Replicas { control_plane: options.control_plane, workers: options.workers };
            let plan = plan::scale(&known.cluster, &known.all, wanted, options.deployment.as_deref());
            let deadline = Instant::now() + options.waiting.timeout;
            let plan = plan.map_err(|fault| anyhow!(fault))?;
            let changed = carry_out(&session, &mut known, plan, options.dry_run, deadline, out).await?;
            if changed && options.waiting.wait { until_done(&session, &mut known, deadline, out).await } else { Ok(()) }
        }
        Command::Upgrade(options) => {
            let (session, mut known) = Known::of(&options.server, &options.name).await?;
            let image = match &options.image {
                Some(url) => Some(image(&session, url, options.checksum.as_deref(), &options.checksum_type).await?),
                None => None,
            };
            let plan = plan::upgrade(&known.cluster, &known.all, &options.version, image.as_ref());
            let deadline = Instant::now() + options.timeout;
            let plan = plan.map_err(|fault| anyhow!(fault))?;
            let changed = carry_out(&session, &mut known, plan, options.dry_run, deadline, out).await?;
            if changed { until_done(&session, &mut known, deadline, out).await } else { Ok(()) }
        }
        Command::Delete(options) => delete(options, out).await,
    }
}

/// Most bytes of a file with public keys.
const KEYS_MAX: u64 = 64 << 10;

async fn create(options: Create, out: &mut dyn Write) -> anyhow::Result<()> {
    if options.control_plane.is_multiple_of(2) {
        return Err(usage("--control-plane must be odd: of an even number no more may fail than of one less"));
    }
    if options.virtual_ip && options.endpoint.0.parse::<std::net::IpAddr>().is_err() {
        return Err(usage("--virtual-ip needs an address as the endpoint: nodes cannot hold a name"));
    }
    let ssh = match &options.ssh_keys {
        None => None,
        Some(file) => {
            let text = files::read_text(file, KEYS_MAX).with_context(|| file.display().to_string())?;
            let is_key = |line: &&str| !line.is_empty() && !line.starts_with('#');
            let keys: Vec<String> = text.lines().map(str::trim).filter(is_key).map(str::to_owned).collect();
            if keys.is_empty() {
                bail!("{} has no key", file.display());
            }
            Some(Login { user: options.ssh_user.clone(), keys })
        }
    };
    let session = options.server.connect().await?;
    let with = |more: &[(String, String)]| options.hosts.iter().chain(more).cloned().collect::<Vec<_>>();
    let wanted = Wanted {
        name: options.name.or(options.named).unwrap_or_default(),
        namespace: session.namespace.clone(),
        version: options.version,
        control_plane: options.control_plane,
        workers: options.workers,
        endpoint: options.endpoint,
        virtual_ip: options.virtual_ip,
        registry: options.registry,
        pods: options.pods,
        services: options.services,
        image: image(&session, &options.image, options.checksum.as_deref(), &options.checksum_type).await?,
        control_plane_hosts: with(&options.control_plane_hosts),
        worker_hosts: with(&options.worker_hosts),
        ssh,
    };
    let objects = wanted::objects(&wanted);
    if let Some(form) = &options.output {
        for object in &objects {
            match form.as_str() {
                "json" => writeln!(out, "{}", output::json(object)?)?,
                _ => write!(out, "---\n{}", output::yaml(object)?)?,
            }
        }
        return Ok(());
    }
    let types = session.types().await?;
    let cluster = type_of(&types, "Cluster")?;
    if find(&session, cluster, &wanted.name).await?.is_some() {
        bail!("there is a cluster {} already: see `slipway cluster status {0}`", wanted.name);
    }
    let dry_run = if options.dry_run { "All" } else { "" };
    let query = [("fieldManager", "slipway"), ("fieldValidation", "Strict"), ("dryRun", dry_run)];
    for object in &objects {
        let of = type_of(&types, tree::text(object, "/kind"))?;
        let path = of.path(Some(&wanted.namespace), Some(tree::name(object)));
        session.apply(&path, &query, object).await?;
        let how = if options.dry_run { " (server dry run)" } else { "" };
        writeln!(out, "{} created{how}", output::name_of(object))?;
    }
    out.flush()?;
    if !options.waiting.wait {
        return Ok(());
    }
    let mut known = Known::read(&session, &types, &wanted.name).await?;
    until_done(&session, &mut known, Instant::now() + options.waiting.timeout, out).await
}

/// The image as a Metal3Machine names it. One of the library has a checksum there.
async fn image(session: &Session, url: &str, checksum: Option<&str>, checksum_type: &str) -> anyhow::Result<Value> {
    let checksum = match (checksum, url.strip_prefix("slipway://")) {
        (Some(checksum), _) => checksum.to_owned(),
        (None, None) => return Err(usage("an image that is not of the library needs --checksum")),
        (None, Some(name)) => {
            let types = session.types().await?;
            let found = find(session, type_of(&types, "Image")?, name).await?;
            let found =
                found.with_context(|| format!("the library has no image {name:?}: see `slipway image list`"))?;
            let sum = tree::text(&found, "/status/sha256").to_owned();
            if sum.is_empty() {
                bail!("image {name} is not imported yet: see `slipway image list`");
            }
            return Ok(json!({"url": url, "checksum": sum, "checksumType": "sha256"}));
        }
    };
    Ok(json!({"url": url, "checksum": checksum, "checksumType": checksum_type}))
}

/// Kinds of which a cluster consists.
const KINDS: [(&str, &str); 11] = [
    ("cluster.x-k8s.io", "Cluster"),
    ("cluster.x-k8s.io", "Machine"),
    ("cluster.x-k8s.io", "MachineSet"),
    ("cluster.x-k8s.io", "MachineDeployment"),
    ("controlplane.cluster.x-k8s.io", "KubeadmControlPlane"),
    ("bootstrap.cluster.x-k8s.io", "KubeadmConfig"),
    ("infrastructure.cluster.x-k8s.io", "Metal3Cluster"),
    ("infrastructure.cluster.x-k8s.io", "Metal3Machine"),
    ("infrastructure.cluster.x-k8s.io", "Metal3MachineTemplate"),
    ("metal3.io", "BareMetalHost"),
    ("slipway.dev", "Image"),
];

/// The type of a kind as the server prefers it.
fn type_of<'t>(types: &'t Types, kind: &str) -> anyhow::Result<&'t Type> {
    let group = KINDS.iter().find(|(_, one)| *one == kind).map_or("bootstrap.cluster.x-k8s.io", |(group, _)| group);
    // Both versions may be served; the patches here are of the newer.
    let mut found: Vec<&Type> = types.listed().filter(|of| of.group == group && of.kind == kind).collect();
    found.sort_by(|one, other| other.version.cmp(&one.version));
    found
        .first()
        .copied()
        .with_context(|| format!("the server has no {kind} of {group}: is it a Slipway of this version?"))
}

async fn find(session: &Session, of: &Type, name: &str) -> anyhow::Result<Option<Value>> {
    match session.get(&of.path(Some(&session.namespace), Some(name)), &[], request::JSON).await {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A cluster and everything of its namespace that may belong to it.
struct Known {
    types: Types,
    cluster: Value,
    all: Vec<Value>,
    /// Of which revision the list of each kind is.
    revisions: Vec<String>,
}

impl Known {
    async fn of(server: &Server, name: &str) -> anyhow::Result<(Session, Self)> {
        let session = server.connect().await?;
        let types = session.types().await?;
        let known = Self::read(&session, &types, name).await?;
        Ok((session, known))
    }

    async fn read(session: &Session, types: &Types, name: &str) -> anyhow::Result<Self> {
        let mut known = Self {
            types: types.clone(),
            cluster: json!({"metadata": {"name": name}}),
            all: Vec::new(),
            revisions: Vec::new(),
        };
        if !known.again(session).await? {
            bail!("there is no cluster {name:?} in namespace {}: see `slipway get clusters -A`", session.namespace);
        }
        Ok(known)
    }

    /// Reads everything anew; whether the cluster is still there.
    async fn again(&mut self, session: &Session) -> anyhow::Result<bool> {
        let name = tree::name(&self.cluster).to_owned();
        let (mut all, mut revisions) = (Vec::new(), Vec::new());
        for (_, kind) in KINDS.iter().filter(|(_, kind)| *kind != "Image") {
            let of = type_of(&self.types, kind)?;
            let each = |page: Value| {
                let items = page["items"].as_array().cloned().unwrap_or_default();
                all.extend(items.into_iter().map(|mut item| {
                    // Lists leave out what their items are.
                    item["kind"] = (*kind).into();
                    item["apiVersion"] = of.api_version().into();
                    item
                }));
                Ok(())
            };
            revisions.push(session.pages(&of.path(Some(&session.namespace), None), &[], request::JSON, each).await?);
        }
        (self.all, self.revisions) = (all, revisions);
        let found = self.all.iter().find(|object| object["kind"] == "Cluster" && tree::name(object) == name);
        Ok(found.cloned().map(|cluster| self.cluster = cluster).is_some())
    }
}

/// Waits until anything of a cluster's kinds changed since it was read. Not longer than a while: a watch may have ended without a
/// word.
async fn next_change(session: &Session, known: &Known, deadline: Instant) -> anyhow::Result<()> {
    let mut changes = SelectAll::new();
    let kinds = KINDS.iter().filter(|(_, kind)| *kind != "Image");
    for ((_, kind), revision) in kinds.zip(&known.revisions) {
        let path = type_of(&known.types, kind)?.path(Some(&session.namespace), None);
        match session.watch(&path, &[("resourceVersion", revision)], request::METADATA).await {
            Ok(events) => changes.push(Box::pin(events)),
            // Too long ago: it is read anew.
            Err(error) if error.is_expired() => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    let first = async {
        while let Some(event) = changes.next().await {
            match event {
                Ok(event) if event["type"] == "BOOKMARK" => {}
                Ok(_) | Err(RequestError::Refused(_)) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    };
    let until = deadline.min(Instant::now() + WATCH);
    timeout_at(until, first).await.unwrap_or(Ok(()))
}

/// How long a change is waited for before everything is read anew.
const WATCH: Duration = Duration::from_secs(5);

async fn status(options: Status, out: &mut dyn Write) -> anyhow::Result<()> {
    let (session, mut known) = Known::of(&options.server, &options.name).await?;
    let terminal = Terminal::standard_output(options.color);
    let look =
        Look { width: terminal.width, colored: if terminal.color { vec![1, 2] } else { Vec::new() }, headed: true };
    let mut shown = String::new();
    loop {
        let lines = tree::lines(&known.cluster, &known.all, Timestamp::now());
        let headings = tree::HEADINGS.map(str::to_owned).to_vec();
        let rows: Vec<Vec<String>> =
            std::iter::once(headings).chain(lines.into_iter().map(tree::Line::cells)).collect();
        let drawn = Rows::default().shown(&rows, &look);
        if drawn != shown {
            if options.watch && !shown.is_empty() {
                // On a terminal in the place of the last one.
                write!(out, "{}", if terminal.width.is_some() { "\u{1b}[H\u{1b}[2J" } else { "\n" })?;
            }
            write!(out, "{drawn}")?;
            out.flush()?;
            shown = drawn;
        }
        if !options.watch {
            return Ok(());
        }
        next_change(&session, &known, Instant::now() + WATCH).await?;
        if !known.again(&session).await? {
            writeln!(out, "cluster {} is gone", options.name)?;
            return Ok(());
        }
    }
}

/// Shows the plan, and does it unless it is a dry run. Whether anything was done.
async fn carry_out(
    session: &Session,
    known: &mut Known,
    plan: Vec<Step>,
    dry_run: bool,
    deadline: Instant,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    if plan.is_empty() {
        writeln!(out, "nothing to do")?;
        return Ok(false);
    }
    writeln!(out, "Plan:")?;
    for (index, step) in plan.iter().enumerate() {
        writeln!(out, "  {}. {}", index + 1, step.says())?;
    }
    out.flush()?;
    if dry_run {
        return Ok(false);
    }
    for step in plan {
        match &step {
            Step::Create(object) => {
                let path = type_of(&known.types, tree::text(object, "/kind"))?;
                let path = path.path(Some(&session.namespace), Some(tree::name(object)));
                session.apply(&path, &[("fieldManager", "slipway"), ("fieldValidation", "Strict")], object).await?;
            }
            Step::Change { kind, name, patch, .. } => {
                let path = type_of(&known.types, kind)?.path(Some(&session.namespace), Some(name));
                session.merge(&path, patch).await?;
            }
            Step::AwaitControlPlane { name, version } => {
                let is_there = |known: &Known| {
                    let plane =
                        known.all.iter().find(|one| one["kind"] == "KubeadmControlPlane" && tree::name(one) == name);
                    let runs = plane.is_some_and(|plane| tree::text(plane, "/status/version") == version);
                    runs && Progress::of(&known.cluster, &known.all).control_plane_is_done()
                };
                follow(session, known, deadline, is_there, out).await?;
                continue;
            }
        }
        writeln!(out, "{}: done", step.says())?;
        out.flush()?;
    }
    Ok(true)
}

async fn until_done(
    session: &Session,
    known: &mut Known,
    deadline: Instant,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    follow(session, known, deadline, |known| Progress::of(&known.cluster, &known.all).is_done(), out).await?;
    writeln!(out, "cluster {} ready", tree::name(&known.cluster))?;
    Ok(())
}

/// Says how far the cluster is until it is there.
async fn follow(
    session: &Session,
    known: &mut Known,
    deadline: Instant,
    is_there: impl Fn(&Known) -> bool,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let mut said = String::new();
    loop {
        if !known.again(session).await? {
            bail!("cluster {} was deleted meanwhile", tree::name(&known.cluster));
        }
        if is_there(known) {
            return Ok(());
        }
        let says = Progress::of(&known.cluster, &known.all).says();
        if says != said {
            writeln!(out, "{says}")?;
            out.flush()?;
            said = says;
        }
        if Instant::now() >= deadline {
            let name = tree::name(&known.cluster);
            crate::cli::failure::complain(format_args!(
                "cluster {name} is not there in time: {said}; see `slipway cluster status {name}`"
            ));
            return Err(Failure::Reported.into());
        }
        next_change(session, known, deadline).await?;
    }
}

async fn delete(options: Delete, out: &mut dyn Write) -> anyhow::Result<()> {
    let (session, mut known) = Known::of(&options.server, &options.name).await?;
    let hosts = known.all.iter().filter(|object| object["kind"] == "BareMetalHost");
    let machines: Vec<&str> = known
        .all
        .iter()
        .filter(|object| object["kind"] == "Metal3Machine")
        .filter(|object| object["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"] == options.name.as_str())
        .map(tree::name)
        .collect();
    let its: Vec<&str> = hosts
        .filter(|host| host["spec"]["consumerRef"]["kind"] == "Metal3Machine")
        .filter(|host| machines.contains(&tree::text(host, "/spec/consumerRef/name")))
        .map(tree::name)
        .collect();
    writeln!(
        out,
        "cluster {} with {} machines; hosts that are erased and available again: {}",
        options.name,
        machines.len(),
        if its.is_empty() { "none".to_owned() } else { its.join(", ") }
    )?;
    out.flush()?;
    if options.dry_run {
        return Ok(());
    }
    let path = type_of(&known.types, "Cluster")?.path(Some(&session.namespace), Some(&options.name));
    let uid = tree::text(&known.cluster, "/metadata/uid");
    session.delete(&path, &[], &json!({"preconditions": {"uid": uid}, "propagationPolicy": "Background"})).await?;
    let deadline = Instant::now() + options.timeout;
    let mut said = String::new();
    while options.wait && known.again(&session).await? {
        let left = known.all.iter().filter(|object| object["kind"] == "Machine");
        let left = left.filter(|machine| tree::text(machine, "/spec/clusterName") == options.name).count();
        let says = format!("{left} {} left", if left == 1 { "machine" } else { "machines" });
        if says != said {
            writeln!(out, "{says}")?;
            out.flush()?;
            said = says;
        }
        if Instant::now() >= deadline {
            let name = &options.name;
            crate::cli::failure::complain(format_args!(
                "cluster {name} is not gone in time; see `slipway cluster status {name}`"
            ));
            return Err(Failure::Reported.into());
        }
        next_change(&session, &known, deadline).await?;
    }
    let how = if options.wait { "deleted" } else { "is being deleted" };
    writeln!(out, "cluster {} {how}", options.name)?;
    Ok(())
}
