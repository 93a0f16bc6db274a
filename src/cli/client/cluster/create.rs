//! `cluster create`: the objects of a cluster, applied; and the image that machines are installed from.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::WaitingArgs;
use super::follow::until_done;
use super::known::{KnownCluster, find, type_of};
use super::tree;
use super::wanted::{self, ClusterRequest, NodeUserWanted};
use crate::cli::client::connect::{ClientSession, ServerArgs};
use crate::cli::client::output;
use crate::cli::failure::usage;
use crate::files;

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
    /// Additional label that a host of the control plane must have
    #[arg(long, value_name = "KEY=VALUE", value_parser = wanted::label)]
    control_plane_hosts: Vec<(String, String)>,
    /// Additional label that a host of the workers must have
    #[arg(long, value_name = "KEY=VALUE", value_parser = wanted::label)]
    worker_hosts: Vec<(String, String)>,
    /// File with public SSH keys that may log in to the nodes
    #[arg(long, value_name = "FILE")]
    ssh_keys: Option<PathBuf>,
    /// User who logs in with these keys
    #[arg(long, value_name = "NAME", default_value = "slipway")]
    ssh_user: String,
    /// Print the objects as yaml or json; change nothing
    #[arg(long, short, value_name = "FORM", value_parser = ["yaml", "json"])]
    output: Option<String>,
    /// Have the server check everything; change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    waiting: WaitingArgs,
    #[command(flatten)]
    server: ServerArgs,
}

/// Most bytes of a file with public keys.
const KEYS_MAX: u64 = 64 << 10;

pub(super) async fn create(options: Create, out: &mut dyn Write) -> anyhow::Result<()> {
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
            Some(NodeUserWanted { user: options.ssh_user.clone(), keys })
        }
    };
    let session = options.server.connect().await?;
    let with = |more: &[(String, String)]| options.hosts.iter().chain(more).cloned().collect::<Vec<_>>();
    let wanted = ClusterRequest {
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
    let mut known = KnownCluster::read(&session, &types, &wanted.name).await?;
    until_done(&session, &mut known, Instant::now() + options.waiting.timeout, out).await
}

/// The image as a Metal3Machine names it. One of the library has a checksum there.
pub(super) async fn image(
    session: &ClientSession,
    url: &str,
    checksum: Option<&str>,
    checksum_type: &str,
) -> anyhow::Result<Value> {
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
