//! `slipway image`: imports, lists and checks images of the library.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use futures::TryStreamExt;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};

use super::common::ConfigFile;
use super::listing::Output;
use super::local;
use super::progress::Progress;
use crate::api::slipway::{Image, ImagePhase, ImageSpec};
use crate::log::escaped;

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Import an image and wait until it is in the library
    ///
    /// SOURCE is an http or https URL, or a file on the appliance below image.file_folder. Formats: raw and qcow2, also
    /// compressed with gz, xz, zst or bz2.
    Import {
        #[command(flatten)]
        config: ConfigFile,
        /// Name in the library
        name: String,
        /// URL, or path of a file on the appliance below image.file_folder
        source: String,
        /// Checksum of the source as published, or the URL of a file of checksums
        #[arg(long)]
        checksum: Option<String>,
        /// Do not wait until the import is done
        #[arg(long)]
        no_wait: bool,
    },
    /// List the images in the library
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        config: ConfigFile,
        /// Output format
        #[arg(long, short, value_enum, default_value = "table")]
        output: Output,
    },
    /// Remove an image from the library, with its chunks that no other image needs
    #[command(visible_alias = "rm")]
    Remove {
        #[command(flatten)]
        config: ConfigFile,
        /// Name in the library
        name: String,
    },
}

pub(super) fn run(command: Command) -> anyhow::Result<()> {
    local::block_on(async {
        match command {
            Command::Import { config, name, source, checksum, no_wait } => {
                let images = Api::all(local::client(&config.load()?).await?);
                import(&images, &name, &source, checksum, no_wait).await
            }
            Command::List { config, output } => list(&Api::all(local::client(&config.load()?).await?), output).await,
            Command::Remove { config, name } => {
                let images = Api::<Image>::all(local::client(&config.load()?).await?);
                images.delete(&name, &DeleteParams::default()).await.with_context(|| format!("image {name}"))?;
                println!("image {name} removed");
                Ok(())
            }
        }
    })
}

async fn import(
    images: &Api<Image>,
    name: &str,
    source: &str,
    checksum: Option<String>,
    no_wait: bool,
) -> anyhow::Result<()> {
    let url = if source.contains("://") {
        source.to_owned()
    } else {
        std::fs::metadata(source).with_context(|| source.to_owned())?;
        let path = std::path::absolute(source).with_context(|| source.to_owned())?;
        let url = reqwest::Url::from_file_path(&path).map_err(|()| anyhow!("{source}: no path of a file"))?;
        url.to_string()
    };
    let image = Image::new(name, ImageSpec { url, checksum, checksum_type: None, format: None });
    let made = match images.create(&PostParams::default(), &image).await {
        Err(kube::Error::Api(error)) if error.is_already_exists() => return Err(in_the_way(images, name).await),
        made => made.with_context(|| format!("image {name}"))?,
    };
    if no_wait {
        println!("image {name} created");
        return Ok(());
    }
    let mut progress = Progress::new();
    loop {
        let image = images.get(name).await?;
        let version = image.resource_version().unwrap_or_default();
        let status = image.status.unwrap_or_default();
        match status.phase {
            ImagePhase::Ready => {
                progress.end();
                let (size, stored) = (status.virtual_size.unwrap_or_default(), status.stored_size.unwrap_or_default());
                println!(
                    "image {name} is ready: {} MB on a disk, {} MB in the library",
                    size / 1_000_000,
                    stored / 1_000_000
                );
                return Ok(());
            }
            ImagePhase::Failed => {
                progress.end();
                // What is left of it would only stand in the way of the next try.
                let preconditions = Some(Preconditions { uid: made.uid(), resource_version: None });
                let removed = images.delete(name, &DeleteParams { preconditions, ..DeleteParams::default() }).await;
                let why = status.message.unwrap_or_else(|| "the import failed".into());
                bail!("image {name}: {why}{}", if removed.is_ok() { ". Nothing is left of it" } else { "" });
            }
            phase => {
                let doing = if phase == ImagePhase::Importing { "importing" } else { "waiting for its turn" };
                progress.show(&format!("{name}: {doing}"), status.percent.and_then(|percent| percent.try_into().ok()));
            }
        }
        wait_for_change(images, name, &version).await?;
    }
}

/// What to do about an image that is there already.
async fn in_the_way(images: &Api<Image>, name: &str) -> anyhow::Error {
    let status = images.get(name).await.ok().and_then(|image| image.status).unwrap_or_default();
    let how = match (status.phase, status.message) {
        (ImagePhase::Failed, Some(why)) => format!(", and its import failed: {why}"),
        _ => String::new(),
    };
    anyhow::anyhow!("image {name} is in the library already{how}. `slipway image remove {name}` makes room for another")
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

async fn list(images: &Api<Image>, output: Output) -> anyhow::Result<()> {
    let list = images.list(&ListParams::default()).await?;
    output.print(&list, || {
        println!(
            "{:<40} {:<10} {:>10} {:>10} {:>5}  {:<20} URL",
            "NAME", "PHASE", "SIZE MB", "STORED MB", "HOSTS", "NAMESPACES"
        );
        let mega = |bytes: Option<i64>| bytes.map_or_else(|| "-".to_owned(), |bytes| (bytes / 1_000_000).to_string());
        for image in &list {
            let (name, status) = (image.name_any(), image.status.clone().unwrap_or_default());
            println!(
                "{name:<40} {:<10} {:>10} {:>10} {:>5}  {:<20} {}",
                format!("{:?}", status.phase),
                mega(status.virtual_size),
                mega(status.stored_size),
                status.hosts.map_or_else(|| "-".to_owned(), |hosts| hosts.to_string()),
                if status.namespaces.is_empty() { "-".to_owned() } else { status.namespaces.join(",") },
                escaped(&image.spec.url)
            );
        }
    })
}
