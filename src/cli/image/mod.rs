//! `slipway image`: imports, lists and removes images of the library, from any desk.

mod folder;
mod import;
mod list;
mod send;
mod users;

pub(in crate::cli) use list::{size, source};

use anyhow::{Context, bail};
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::client::{ServerArgs, harmless};
use super::failure::{CommandFailure, complain, with_causes};
use super::local;
use crate::api::metal3::BareMetalHost;
use crate::api::slipway::{Image, ImagePhase};

#[derive(clap::Subcommand)]
pub(super) enum ImageCommand {
    /// Import an image and wait until it is in the library
    ///
    /// A file on this computer, or standard input, is sent to the appliance; when the connection is cut it goes on where it was,
    /// and so does the same command when it is run again. Hosts name the image as spec.image.url: slipway://NAME. Formats: raw, qcow2 and live-iso, also compressed with gz, xz, zst or bz2.
    /// An image whose import failed is replaced.
    ///
    /// Archives are for nodes, not for disks: --format oci has container images, as skopeo, buildah and docker save write them, and
    /// --format packages any files; a folder is sent as a tar file. --publish serves what is in them by HTTP, without a login.
    Import(import::ImageImportArgs),
    /// List the images in the library, and the hosts that use each
    #[command(visible_alias = "ls")]
    List(list::ImageListArgs),
    /// Remove images from the library, with their chunks that no other image needs
    ///
    /// An image that a host names is not removed, nor the last one with the content that a host names by a URL and a checksum. One
    /// whose import failed is: hosts that need it have it imported again. Of several, the rest is still removed when one is refused.
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
    /// Print type/name of each image that was removed, or the outcome of every image as JSON
    #[arg(long, short, value_enum, value_name = "FORM")]
    output: Option<ImageOutputForm>,
    #[command(flatten)]
    server: ServerArgs,
}

/// How an outcome is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ImageOutputForm {
    Name,
    Json,
}

pub(super) fn run(command: ImageCommand) -> anyhow::Result<()> {
    local::block_on(async {
        match command {
            ImageCommand::Import(options) => import::run(options).await,
            ImageCommand::List(options) => list::run(options).await,
            ImageCommand::Remove(options) => remove(options).await,
        }
    })
}

/// A client of the server.
async fn connect(server: &ServerArgs) -> anyhow::Result<Client> {
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
    let mut outcomes = Vec::new();
    for name in &options.names {
        let removed = remove_one(&images, name, options.force).await;
        let (result, message) = match &removed {
            Ok(()) => ("removed", String::new()),
            Err(error) => ("failed", with_causes(error)),
        };
        match options.output {
            _ if removed.is_err() => complain(&message),
            Some(ImageOutputForm::Json) => {}
            Some(ImageOutputForm::Name) => println!("image.slipway.dev/{}", harmless(name)),
            None => println!("image {} removed", harmless(name)),
        }
        outcomes.push(json!({ "name": name, "result": result, "message": message }));
    }
    if options.output == Some(ImageOutputForm::Json) {
        println!("{}", serde_json::to_string_pretty(&outcomes)?);
    }
    let failed = outcomes.iter().any(|outcome| outcome["result"] == "failed");
    if failed { Err(CommandFailure::Reported.into()) } else { Ok(()) }
}

async fn remove_one(images: &Api<Image>, name: &str, force: bool) -> anyhow::Result<()> {
    let Some(image) = images.get_opt(name).await.with_context(|| format!("image {name}"))? else {
        bail!("image {name}: there is none of this name; `slipway image list` shows all");
    };
    if !force {
        refuse_used(images.clone().into_client(), &image).await?;
    }
    delete(images, &image).await.with_context(|| format!("image {name}"))
}

/// For who deletes images by another command: refuses one that hosts need. One that is not there is not refused here.
pub(in crate::cli) async fn refuse_needed(client: &Client, name: &str) -> anyhow::Result<()> {
    let images = Api::<Image>::all(client.clone());
    match images.get_opt(name).await.with_context(|| format!("image {name}"))? {
        Some(image) => refuse_used(client.clone(), &image).await,
        None => Ok(()),
    }
}

/// Refuses an image that hosts need: of those with one content the last.
async fn refuse_used(client: Client, image: &Image) -> anyhow::Result<()> {
    let name = image.name_any();
    // Hosts that need it have it imported again.
    if image.status.as_ref().is_some_and(|status| status.phase == ImagePhase::Failed) {
        return Ok(());
    }
    let Some(hosts) = hosts(&client).await? else {
        bail!("image {name}: you may not list hosts to see which use it; --force removes it all the same");
    };
    let others = Api::<Image>::all(client).list(&ListParams::default()).await.context("images")?.items;
    let users = users::needing(image, &others, &hosts);
    if users.is_empty() {
        return Ok(());
    }
    bail!("image {name} is used by {}; --force removes it all the same", users::some(&users, 8));
}

/// Deletes this very image, not another one that has taken its name meanwhile.
async fn delete(images: &Api<Image>, image: &Image) -> Result<(), kube::Error> {
    let preconditions = Some(Preconditions { uid: image.uid(), resource_version: None });
    let params = DeleteParams { preconditions, ..DeleteParams::default() };
    images.delete(&image.name_any(), &params).await.map(drop)
}
