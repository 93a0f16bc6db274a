//! `host log`: what a host's ramdisk logged.

use std::io::Write;

use anyhow::bail;
use futures::io::AsyncReadExt;
use serde_json::{Value, json};

use super::super::connect::{ClientSession, ServerArgs};
use super::super::table::harmless;
use super::super::types::hosts;
use super::super::{errors, missing, request};
use crate::cli::listing::ListingOutput;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  slipway host log web-1 --follow     while it is inspected or installed
  slipway host log web-1 --previous   the boot before: why it failed
  slipway host log web-1 --list       which boots have a log")]
pub(in crate::cli) struct HostLogArgs {
    /// Name of the host
    #[arg(value_name = "HOST")]
    name: String,
    /// Boot to print, by its number in --list [default: the last one]
    #[arg(long, value_name = "N")]
    boot: Option<i64>,
    /// Print the boot before the last one
    #[arg(long, short, conflicts_with = "boot")]
    previous: bool,
    /// Keep printing new lines until the boot is over
    #[arg(long, short)]
    follow: bool,
    /// Print only the last N lines
    #[arg(long, value_name = "N")]
    tail: Option<usize>,
    /// List the boots that have a log
    #[arg(long, conflicts_with_all = ["boot", "previous", "follow", "tail"])]
    list: bool,
    /// With --list: the format of the list
    #[arg(long, short, value_enum, value_name = "FORM", requires = "list")]
    output: Option<ListingOutput>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Bytes of the list of boots that are read; there are ten at most.
const MAX_LIST: u64 = 64 << 10;

/// The boots that have a log: `N BYTES` on each line.
fn boots(text: &str) -> Vec<Value> {
    let read = |line: &str| {
        let (boot, bytes) = line.split_once(' ')?;
        Some(json!({ "boot": boot.parse::<i64>().ok()?, "bytes": bytes.parse::<u64>().ok()? }))
    };
    text.lines().filter_map(read).collect()
}

fn is_not_found(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(errors::ApiRequestError::is_not_found)
}

/// Whether it is the host that is not there, and not its log.
async fn is_missing(session: &ClientSession, name: &str) -> bool {
    let path = hosts().path(Some(&session.namespace), Some(name));
    session.get(&path, &[], request::METADATA).await.is_err_and(|error| error.is_not_found())
}

pub(super) async fn run(log: HostLogArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let session = log.server.connect().await?;
    let of = hosts();
    let path = format!("{}/log", of.path(Some(&session.namespace), Some(&log.name)));
    let boot = log.boot.map(|boot| boot.to_string()).unwrap_or_default();
    let tail = log.tail.map(|tail| tail.to_string()).unwrap_or_default();
    let flag = |flag: bool| if flag { "true" } else { "" };
    let query = [
        ("boot", boot.as_str()),
        ("previous", flag(log.previous)),
        ("follow", flag(log.follow)),
        ("tailLines", &tail),
        ("list", flag(log.list)),
    ];
    let body = match session.text(&path, &query).await {
        Err(error) if is_not_found(&error) && is_missing(&session, &log.name).await => {
            bail!("{}", missing::explain(&session, &of, &log.name).await)
        }
        body => body?,
    };
    let mut body = Box::pin(body);
    if log.list {
        let mut text = String::new();
        body.take(MAX_LIST).read_to_string(&mut text).await?;
        let boots = boots(&text);
        if let Some(output @ (ListingOutput::Json | ListingOutput::Yaml)) = log.output {
            return output.print(&boots, || ());
        }
        writeln!(out, "{:<8} BYTES", "BOOT")?;
        for boot in &boots {
            writeln!(out, "{:<8} {}", boot["boot"].to_string(), boot["bytes"])?;
        }
        return Ok(());
    }
    let mut buffer = vec![0; 16 << 10];
    let mut rest = Vec::new();
    loop {
        let read = body.read(&mut buffer).await?;
        rest.extend_from_slice(&buffer[..read]);
        // Whole lines, without anything that a terminal would obey.
        let end =
            if read == 0 { rest.len() } else { rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1) };
        for line in String::from_utf8_lossy(&rest[..end]).lines() {
            writeln!(out, "{}", harmless(line))?;
        }
        out.flush()?;
        rest.drain(..end);
        if read == 0 {
            return Ok(());
        }
    }
}

impl ClientSession {
    /// A body of text, as it comes.
    async fn text(&self, path: &str, query: request::Query<'_>) -> anyhow::Result<impl futures::AsyncRead + use<>> {
        let request = http::Request::get(request::uri(path, query)).body(Vec::new())?;
        match self.client.request_stream(request).await {
            Err(kube::Error::Api(status)) => Err(errors::ApiRequestError::Refused(status).into()),
            Err(error) => bail!("{}", errors::unreachable(self, &error)),
            // The stream is one of buffered lines; here it is only read.
            Ok(body) => Ok(Box::pin(body) as std::pin::Pin<Box<dyn futures::AsyncRead + Send>>),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boots_are_listed_with_their_sizes() {
        assert_eq!(
            boots("7 120\n6 99\nnonsense\n"),
            [json!({"boot": 7, "bytes": 120}), json!({"boot": 6, "bytes": 99})]
        );
    }
}
