//! `host deploy`: an image with its user data, from files.

use std::io::Write;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::super::connect::ServerArgs;
use super::super::selected::{self, Selected};
use super::files::{self, SecretContents};
use super::many::{BatchPace, OutcomeForm, VerbWork};
use super::verbs::{DATA, DeployRequest, Verb};
use crate::cli::failure::usage;

#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  slipway host deploy web-1 --image slipway://debian-12 --user-data cloud-init.yaml --wait
  slipway host deploy web-1 --image http://10.0.0.9/debian-12.qcow2 \\
      --checksum http://10.0.0.9/SHA256SUMS --user-data cloud-init.yaml --wait
  slipway host deploy -l rack=7 --image http://10.0.0.9/debian-12.qcow2 --max-parallel 4 --wait --timeout 30m
  slipway host deploy web-1 --image http://10.0.0.9/rescue.iso --format live-iso")]
pub(in crate::cli) struct DeployArgs {
    #[command(flatten)]
    selected: Selected,
    /// URL of the image: http://…, https://…, or slipway://NAME for one of the library (`slipway image list`)
    #[arg(long, value_name = "URL", help_heading = "Image")]
    image: String,
    /// Checksum of the image, or the URL of a file of checksums
    #[arg(long, value_name = "CHECKSUM", help_heading = "Image")]
    checksum: Option<String>,
    /// md5, sha256, sha512 or auto [default: by the checksum's length]
    #[arg(long, value_name = "TYPE", requires = "checksum", help_heading = "Image")]
    checksum_type: Option<String>,
    /// raw, qcow2 or live-iso [default: what the image is]
    #[arg(long, value_name = "FORMAT", help_heading = "Image")]
    format: Option<String>,
    /// File with the user data (cloud-init, Ignition); becomes the Secret HOST-user-data; - reads standard input
    #[arg(long, value_name = "FILE", help_heading = "Image")]
    user_data: Option<PathBuf>,
    /// File with more meta data, as YAML; becomes the Secret HOST-meta-data
    #[arg(long, value_name = "FILE", help_heading = "Image")]
    meta_data: Option<PathBuf>,
    /// File with OpenStack network data, as JSON; becomes the Secret HOST-network-data
    #[arg(long, value_name = "FILE", help_heading = "Image")]
    network_data: Option<PathBuf>,
    #[command(flatten)]
    pace: BatchPace,
    #[command(flatten)]
    form: OutcomeForm,
    #[command(flatten)]
    server: ServerArgs,
}

/// `spec.image`, with a null for what is not given: nothing stays of an image that was there before.
fn image(options: &DeployArgs) -> Value {
    json!({ "url": options.image, "checksum": options.checksum, "checksumType": options.checksum_type, "format": options.format })
}

pub(super) async fn run(options: DeployArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    if options.image.trim().is_empty() {
        return Err(usage("--image needs the URL of an image"));
    }
    let Selected { names, by_label } = &options.selected;
    selected::check(names, by_label.selector.as_deref(), false)?;
    let given = [&options.user_data, &options.meta_data, &options.network_data];
    if given.iter().filter(|file| file.as_deref().is_some_and(|file| file.as_os_str() == "-")).count() > 1 {
        return Err(usage("standard input can be read once only"));
    }
    let mut files = SecretContents::default();
    for ((field, end), file) in DATA.into_iter().zip(given) {
        if let Some(file) = file {
            files.add(field, end, files::read(file)?);
        }
    }
    let secrets = files.fields();
    let verb = Verb::Deploy(DeployRequest { image: image(&options), secrets });
    let session = options.server.connect().await?;
    let names = selected::names(&session, names, by_label.selector.as_deref(), false).await?;
    let work = VerbWork { session: &session, verb, files, pace: options.pace, output: options.form.output };
    work.run(names, out).await
}
