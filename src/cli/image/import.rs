//! `slipway image import`: sends a file or has the appliance read a URL, and follows the import to its end.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::TryStreamExt;
use kube::api::{PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};

use super::list::size;
use super::send::ImageEndpoint;
use super::{connect, delete, folder};
use crate::api::slipway::{Image, ImagePhase, ImageSpec, ImageStatus};
use crate::cli::client::ServerArgs;
use crate::cli::failure::plain;
use crate::cli::form::ProgramForm;
use crate::cli::progress::ProgressLine;
use crate::image::checksum::judge;
use crate::image::is_archive;
use crate::image::scheme::upload_url;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  slipway image import debian-12 debian-12.qcow2 --checksum SHA256
  slipway image import debian-12 https://server/image.qcow2 --checksum https://server/SHA256SUMS
  zstd -dc disk.raw.zst | slipway image import golden -
  slipway image import kubernetes-1-34 images.tar --format oci --publish
  slipway image import node-debs ./debs --format packages --publish")]
pub(in crate::cli) struct ImageImportArgs {
    /// Name in the library
    name: String,
    /// File, folder (of an archive), - for standard input, or a URL that the appliance reads: http, https, or file:// below its image.file_folder
    source: String,
    /// Checksum of the source as published, or the URL of a file of checksums
    #[arg(long)]
    checksum: Option<String>,
    /// raw, qcow2 or live-iso, or oci or packages of an archive [default: raw or qcow2, whichever it is]
    #[arg(long)]
    format: Option<String>,
    /// Serve what is in the archive to everybody who reaches the appliance's boot HTTP, without a login
    #[arg(long)]
    publish: bool,
    /// Do not wait until the import is done
    #[arg(long)]
    no_wait: bool,
    /// Print the Image as JSON once it is there; how far it is goes to standard error
    #[arg(long, short, value_enum, value_name = "FORM")]
    output: Option<ProgramForm>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) async fn run(options: ImageImportArgs) -> anyhow::Result<()> {
    let client = connect(&options.server).await?;
    let images = Api::<Image>::all(client.clone());
    let ImageImportArgs { name, source, checksum, format, publish, no_wait, output, .. } = options;
    let is_archive = is_archive(format.as_deref());
    if publish && !is_archive {
        bail!("--publish is for archives: give --format oci or --format packages with it");
    }
    if let Some(checksum) = &checksum {
        judge(checksum).map_err(|reason| anyhow::anyhow!("image {name}: {reason}"))?;
    }
    let mut content = if source.contains("://") { None } else { Some(ImportContent::open(&source, is_archive)?) };
    let url = match (&content, Path::new(&source).file_name()) {
        (None, _) => source.clone(),
        (Some(ImportContent { is_file: true, .. }), Some(file)) => upload_url(&file.to_string_lossy()),
        (Some(_), _) => upload_url(&name),
    };
    let image =
        Image::new(&name, ImageSpec { url, checksum, checksum_type: None, format, publish: publish.then_some(true) });
    let made = make(&images, &image, content.is_some()).await?;
    if let Some(content) = &mut content {
        send(&client, &images, &made, content).await?;
    }
    let (image, said) = if no_wait {
        (images.get(&name).await?, format!("image {name} created"))
    } else {
        follow(&images, &made).await?
    };
    match output {
        Some(ProgramForm::Json) => println!("{}", serde_json::to_string_pretty(&image)?),
        None => println!("{}", plain(&said)),
    }
    Ok(())
}

/// What is sent.
struct ImportContent {
    source: Box<dyn Read>,
    /// Whether it can be read again from the start.
    is_file: bool,
    bytes: Option<u64>,
}

impl ImportContent {
    fn open(source: &str, is_archive: bool) -> anyhow::Result<Self> {
        if source == "-" {
            return Ok(Self { source: Box::new(io::stdin()), is_file: false, bytes: None });
        }
        let file = File::open(source).with_context(|| source.to_owned())?;
        let about = file.metadata().with_context(|| source.to_owned())?;
        if about.is_dir() {
            if !is_archive {
                bail!("{source} is a folder: only an archive is made of one, with --format packages or --format oci");
            }
            let (source, bytes) = folder::archive(Path::new(source))?;
            return Ok(Self { source, is_file: true, bytes: Some(bytes) });
        }
        let is_file = about.is_file();
        Ok(Self { source: Box::new(file), is_file, bytes: is_file.then_some(about.len()) })
    }
}

/// Sends the content of an image, or the rest of it.
async fn send(client: &Client, images: &Api<Image>, made: &Image, content: &mut ImportContent) -> anyhow::Result<()> {
    let name = made.name_any();
    let endpoint = ImageEndpoint::new(client, &name);
    let received = match endpoint.received().await {
        Ok(received) => received,
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 405) => {
            _ = delete(images, made).await;
            bail!(
                "this API server takes no images: serve the file by http, or put it below image.file_folder of the \
                 appliance, and name its URL"
            );
        }
        Err(kube::Error::Api(status)) if status.is_forbidden() => {
            _ = delete(images, made).await;
            return Err(kube::Error::Api(status)).with_context(|| format!("image {name}"));
        }
        Err(error) => return Err(error).with_context(|| format!("image {name}")),
    };
    if received.whole {
        return Ok(());
    }
    if received.bytes > 0 && !content.is_file {
        bail!(
            "image {name}: a part of it was sent before, and what comes from a pipe cannot be gone on with: remove it first"
        );
    }
    if received.bytes > 0 {
        eprintln!("image {name}: going on after {} that were sent before", size(i64::try_from(received.bytes)?));
    }
    let mut progress = ProgressLine::new();
    let sent = endpoint.send(&mut content.source, received.bytes, content.bytes, &mut progress).await;
    progress.end();
    let is_refused = |error: &anyhow::Error| {
        let status = match error.downcast_ref() {
            Some(kube::Error::Api(status)) => status,
            _ => return false,
        };
        matches!(status.code, 403 | 413)
    };
    // Of what there is no room for, nothing is left.
    if sent.as_ref().is_err_and(is_refused) && endpoint.received().await.is_ok_and(|received| received.bytes == 0) {
        _ = delete(images, made).await;
    }
    sent.with_context(|| format!("image {name}"))
}

/// Creates an image, in place of one whose import failed. One of which a part was sent is gone on with.
async fn make(images: &Api<Image>, image: &Image, is_sent: bool) -> anyhow::Result<Image> {
    let name = image.name_any();
    let create = || async { images.create(&PostParams::default(), image).await };
    match create().await {
        Err(kube::Error::Api(error)) if error.is_already_exists() => {}
        made => return made.with_context(|| format!("image {name}")),
    }
    let there = images.get(&name).await.with_context(|| format!("image {name}"))?;
    let failed = there.status.as_ref().is_some_and(|status| status.phase == ImagePhase::Failed);
    let is_ready = there.status.as_ref().is_some_and(|status| status.phase == ImagePhase::Ready);
    if is_sent && !is_ready && !failed && there.spec == image.spec {
        return Ok(there);
    }
    if !failed {
        bail!("image {name} is in the library already; `slipway image remove {name}` makes room for another");
    }
    delete(images, &there).await.with_context(|| format!("image {name}"))?;
    eprintln!("image {name}: its last import failed, and is replaced");
    create().await.with_context(|| format!("image {name}"))
}

/// Shows how far an import is, until it has ended: the image that is there then, and what is said of it.
async fn follow(images: &Api<Image>, made: &Image) -> anyhow::Result<(Image, String)> {
    let name = made.name_any();
    let mut progress = ProgressLine::new();
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
                let said = told(&image, &status);
                return Ok((image, said));
            }
            ImagePhase::Failed => {
                progress.end();
                // What is left of it would only stand in the way of the next try.
                let removed = delete(images, &image).await;
                let reason = status.message.unwrap_or_else(|| "the import failed".into());
                match removed {
                    Ok(()) => bail!("image {name}: {}. Nothing is left of it", without_next_try(&reason)),
                    Err(_) => bail!("image {name}: {reason}"),
                }
            }
            phase => {
                let doing = if phase == ImagePhase::Importing { "importing" } else { "waiting for its turn" };
                progress.show(&format!("{name}: {doing}"), status.percent.and_then(|percent| percent.try_into().ok()));
            }
        }
        wait_for_change(images, &name, &version).await?;
    }
}

/// Why an import failed, without whether it is tried again: it is removed.
fn without_next_try(reason: &str) -> &str {
    let next = [" (trying again in ", " (not trying again until "].iter().find_map(|next| reason.rfind(next));
    next.filter(|_| reason.ends_with(')')).map_or(reason, |at| &reason[..at])
}

/// What is said of an image that is there.
fn told(image: &Image, status: &ImageStatus) -> String {
    let (name, bytes) = (image.name_any(), |bytes: Option<i64>| size(bytes.unwrap_or_default()));
    let (all, stored) = (bytes(status.virtual_size), bytes(status.stored_size));
    if !is_archive(status.format.as_deref()) {
        return format!(
            "image {name} is ready: {all} on a disk, {stored} in the library; hosts name it as slipway://{name}"
        );
    }
    let is_oci = status.format.as_deref() == Some("oci");
    let count = status.content_count.unwrap_or_default();
    let plural = if count == 1 { "" } else { "s" };
    let what = format!("{}{plural}", if is_oci { "container image" } else { "file" });
    let served = match (image.spec.publish, is_oci) {
        (Some(true), false) => format!("nodes get them from /packages/{name}/"),
        (Some(true), _) => "nodes pull them from boot HTTP".to_owned(),
        _ => "nobody gets them until spec.publish is true".to_owned(),
    };
    format!("image {name} is ready: {count} {what}, {all}, {stored} in the library; {served}")
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_removed_is_not_tried_again() {
        for (reason, wanted) in [
            ("u: no (trying again in 60 s)", "u: no"),
            ("u: no (really) (not trying again until the spec changes)", "u: no (really)"),
            ("u: no", "u: no"),
        ] {
            assert_eq!(without_next_try(reason), wanted);
        }
    }

    #[test]
    fn an_archive_that_is_there_is_told_by_its_contents_and_whether_nodes_get_them() {
        for (format, publish, said) in [
            ("raw", None, "image i is ready: 2.0 kB on a disk, 1.0 kB in the library; hosts name it as slipway://i"),
            (
                "oci",
                None,
                "image i is ready: 7 container images, 2.0 kB, 1.0 kB in the library; nobody gets them until spec.publish is true",
            ),
            (
                "oci",
                Some(true),
                "image i is ready: 7 container images, 2.0 kB, 1.0 kB in the library; nodes pull them from boot HTTP",
            ),
            (
                "packages",
                Some(true),
                "image i is ready: 7 files, 2.0 kB, 1.0 kB in the library; nodes get them from /packages/i/",
            ),
        ] {
            let image = Image::new("i", ImageSpec { publish, ..ImageSpec::default() });
            let status = json!({ "format": format, "virtualSize": 2000, "storedSize": 1000, "contentCount": 7 });
            assert_eq!(told(&image, &serde_json::from_value(status).unwrap()), said);
        }
    }
}
