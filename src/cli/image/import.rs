//! `slipway image import`: has the appliance read a URL, and follows the import to its end.

use std::time::Duration;

use anyhow::{Context, bail};
use futures::TryStreamExt;
use kube::api::{PostParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};

use super::list::size;
use super::{connect, delete};
use crate::api::slipway::{Image, ImagePhase, ImageSpec};
use crate::cli::client::Server;
use crate::cli::progress::Progress;

#[derive(clap::Args)]
pub(in crate::cli) struct Options {
    /// Name in the library
    name: String,
    /// http or https URL that the appliance reads, or file:// for a file on it below image.file_folder
    source: String,
    /// Checksum of the source as published, or the URL of a file of checksums
    #[arg(long)]
    checksum: Option<String>,
    /// raw, qcow2 or live-iso [default: raw or qcow2, whichever it is]
    #[arg(long)]
    format: Option<String>,
    /// Do not wait until the import is done
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    server: Server,
}

pub(super) async fn run(options: Options) -> anyhow::Result<()> {
    let images = Api::<Image>::all(connect(&options.server).await?);
    let Options { name, source, checksum, format, no_wait, .. } = options;
    if !source.contains("://") {
        bail!("{source}: must be a URL, as http://server/image.qcow2");
    }
    let image = Image::new(&name, ImageSpec { url: source, checksum, checksum_type: None, format });
    let made = make(&images, &image).await?;
    if no_wait {
        println!("image {name} created");
        return Ok(());
    }
    follow(&images, &made).await
}

/// Creates an image, in place of one whose import failed.
async fn make(images: &Api<Image>, image: &Image) -> anyhow::Result<Image> {
    let name = image.name_any();
    let create = || async { images.create(&PostParams::default(), image).await };
    match create().await {
        Err(kube::Error::Api(error)) if error.is_already_exists() => {}
        made => return made.with_context(|| format!("image {name}")),
    }
    let there = images.get(&name).await.with_context(|| format!("image {name}"))?;
    let failed = there.status.as_ref().is_some_and(|status| status.phase == ImagePhase::Failed);
    if !failed {
        bail!("image {name} is in the library already; `slipway image remove {name}` makes room for another");
    }
    delete(images, &there).await.with_context(|| format!("image {name}"))?;
    eprintln!("image {name}: its last import failed, and is replaced");
    create().await.with_context(|| format!("image {name}"))
}

/// Shows how far an import is, until it has ended.
async fn follow(images: &Api<Image>, made: &Image) -> anyhow::Result<()> {
    let name = made.name_any();
    let mut progress = Progress::new();
    loop {
        let image = images.get(&name).await?;
        if image.uid() != made.uid() {
            bail!("image {name} was replaced by another one meanwhile");
        }
        let version = image.resource_version().unwrap_or_default();
        let status = image.status.clone().unwrap_or_default();
        match status.phase {
            ImagePhase::Ready => {
                progress.end();
                let bytes = |bytes: Option<i64>| size(bytes.unwrap_or_default());
                println!(
                    "image {name} is ready: {} on a disk, {} in the library; hosts name it as slipway://{name}",
                    bytes(status.virtual_size),
                    bytes(status.stored_size)
                );
                return Ok(());
            }
            ImagePhase::Failed => {
                progress.end();
                // What is left of it would only stand in the way of the next try.
                let removed = delete(images, &image).await;
                let why = status.message.unwrap_or_else(|| "the import failed".into());
                bail!("image {name}: {why}{}", if removed.is_ok() { ". Nothing is left of it" } else { "" });
            }
            phase => {
                let doing = if phase == ImagePhase::Importing { "importing" } else { "waiting for its turn" };
                progress.show(&format!("{name}: {doing}"), status.percent.and_then(|percent| percent.try_into().ok()));
            }
        }
        wait_for_change(images, &name, &version).await?;
    }
}

/// Returns at the next change of the image, or after some seconds without one.
async fn wait_for_change(images: &Api<Image>, name: &str, version: &str) -> anyhow::Result<()> {
    let params = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = std::pin::pin!(images.watch(&params, version).await?);
    let next = async {
        while let Some(event) = events.try_next().await? {
            match event {
                WatchEvent::Bookmark(_) => {}
                WatchEvent::Deleted(_) => bail!("image {name} was removed meanwhile"),
                WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Error(_) => break,
            }
        }
        Ok(())
    };
    tokio::time::timeout(Duration::from_secs(10), next).await.unwrap_or(Ok(()))
}
