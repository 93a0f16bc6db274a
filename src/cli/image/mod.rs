//! `slipway image`: imports, lists and removes images of the library, from any desk.

mod folder;
mod import;
mod list;
mod send;
mod users;

use anyhow::{Context, bail};
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::{Api, Client, ResourceExt};

use super::client::Server;
use super::local;
use crate::api::metal3::BareMetalHost;
use crate::api::slipway::{Image, ImagePhase};

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Import an image and wait until it is in the library
    ///
    /// A file on this computer, or standard input, is sent to the appliance; when the connection is cut it goes on where it was,
    /// and so does the same command when it is run again. Hosts name the image as spec.image.url: slipway://NAME. Formats: raw, qcow2 and live-iso, also compressed with gz, xz, zst or bz2.
    /// An image whose import failed is replaced.
    ///
    /// Archives are for nodes, not for disks: --format oci has container images, as skopeo, buildah and docker save write them, and
    /// --format packages any files; a folder is sent as a tar file. --publish serves what is in them by HTTP, without a login.
    Import(import::Options),
    /// List the images in the library, and the hosts that use each
    #[command(visible_alias = "ls")]
    List(list::Options),
    /// Remove images from the library, with their chunks that no other image needs
    ///
    /// An image that a host names is not removed. One whose import failed is: hosts that need it have it imported again.
    #[command(
        visible_alias = "rm",
        after_help = "\
Examples:
  slipway image remove debian-11
  slipway image remove debian-11 --force    also when hosts name it"
    )]
    Remove(Remove),
}

#[derive(clap::Args)]
pub(super) struct Remove {
    /// Names in the library
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Also remove images that hosts name
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    server: Server,
}

pub(super) fn run(command: Command) -> anyhow::Result<()> {
    local::block_on(async {
        match command {
            Command::Import(options) => import::run(options).await,
            Command::List(options) => list::run(options).await,
            Command::Remove(options) => remove(options).await,
        }
    })
}

/// A client of the server.
async fn connect(server: &Server) -> anyhow::Result<Client> {
    Ok(server.connect().await?.client)
}

/// Every host; `None` when the caller may not see them.
async fn hosts(client: &Client) -> anyhow::Result<Option<Vec<BareMetalHost>>> {
    match Api::<BareMetalHost>::all(client.clone()).list(&ListParams::default()).await {
        Ok(hosts) => Ok(Some(hosts.items)),
        Err(kube::Error::Api(status)) if status.is_forbidden() => Ok(None),
        Err(error) => Err(error).context("hosts"),
    }
}

async fn remove(options: Remove) -> anyhow::Result<()> {
    let client = connect(&options.server).await?;
    let images = Api::<Image>::all(client.clone());
    let hosts = if options.force { Some(Vec::new()) } else { hosts(&client).await? };
    for name in &options.names {
        let image = images.get(name).await.with_context(|| format!("image {name}"))?;
        let failed = image.status.as_ref().is_some_and(|status| status.phase == ImagePhase::Failed);
        match &hosts {
            Some(hosts) => refuse_used(&image, hosts, failed)?,
            None if failed => {}
            None => bail!("image {name}: you may not list hosts to see which use it; --force removes it all the same"),
        }
        delete(&images, &image).await.with_context(|| format!("image {name}"))?;
        println!("image {name} removed");
    }
    Ok(())
}

fn refuse_used(image: &Image, hosts: &[BareMetalHost], failed: bool) -> anyhow::Result<()> {
    let users = users::of(image, hosts);
    if users.is_empty() || failed {
        return Ok(());
    }
    let name = image.name_any();
    bail!("image {name} is used by {}; --force removes it all the same", users::some(&users, 8));
}

/// Deletes this very image, not another one that has taken its name meanwhile.
async fn delete(images: &Api<Image>, image: &Image) -> Result<(), kube::Error> {
    let preconditions = Some(Preconditions { uid: image.uid(), resource_version: None });
    let params = DeleteParams { preconditions, ..DeleteParams::default() };
    images.delete(&image.name_any(), &params).await.map(drop)
}
