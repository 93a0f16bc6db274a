//! Sends an image to the appliance piece by piece, and goes on where a connection was cut.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use http::Request;
use kube::{Client, Resource};
use sha2::{Digest, Sha256};

use super::list::size;
use crate::api::slipway::Image;
use crate::cli::progress::ProgressLine;
use crate::hex::hex;
use crate::image::upload::{PIECE_MAX, ReceivedBytes, UploadPiece};

/// Bytes of a piece: the first one, the least and the most. Each is in memory, and is sent again when it is cut off.
const FIRST: usize = 4 << 20;
const LEAST: usize = 256 << 10;
const MOST: usize = 32 << 20;
const _: () = assert!(MOST as u64 <= PIECE_MAX);
/// How long a piece may take, about: a request ends after a minute.
const AIM: Duration = Duration::from_secs(4);
/// Attempts without any progress, and the longest pause between two: about two minutes in all.
const ATTEMPTS: u32 = 12;
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Where an image is sent to.
pub(super) struct ImageEndpoint {
    client: Client,
    name: String,
    path: String,
}

impl ImageEndpoint {
    pub(super) fn new(client: &Client, name: &str) -> Self {
        Self {
            client: client.clone(),
            name: name.to_owned(),
            path: format!("{}/{name}/upload", Image::url_path(&(), None)),
        }
    }

    /// What the appliance has of it.
    pub(super) async fn received(&self) -> Result<ReceivedBytes, kube::Error> {
        self.client.request(Request::get(&self.path).body(Vec::new()).map_err(kube::Error::HttpError)?).await
    }

    async fn piece(&self, said: &UploadPiece, piece: &[u8]) -> Result<ReceivedBytes, kube::Error> {
        let UploadPiece { offset, size, whole } = said;
        let size = size.map(|size| format!("&size={size}")).unwrap_or_default();
        let whole = whole.as_ref().map(|sha256| format!("&whole={sha256}")).unwrap_or_default();
        let request = Request::post(format!("{}?offset={offset}{size}{whole}", self.path));
        let request = request.header("content-type", "application/octet-stream");
        self.client.request(request.body(piece.to_vec()).map_err(kube::Error::HttpError)?).await
    }

    /// Sends what there is to read. `from` bytes of it are there already; `total` is what it will be
    /// in all, where that is known.
    pub(super) async fn send(
        &self,
        source: &mut dyn Read,
        from: u64,
        total: Option<u64>,
        show: &mut ProgressLine,
    ) -> anyhow::Result<()> {
        let mut hasher = Sha256::new();
        skip(source, from, &mut hasher)?;
        let (mut at, mut length) = (from, FIRST);
        loop {
            let mut piece = Vec::new();
            (&mut *source).take(length as u64).read_to_end(&mut piece).context("cannot read the image")?;
            hasher.update(&piece);
            let whole = piece.is_empty().then(|| hex(&hasher.clone().finalize()));
            let began = Instant::now();
            let said = UploadPiece { offset: at, size: total, whole };
            self.deliver(&said, &piece).await?;
            at += piece.len() as u64;
            if said.whole.is_some() {
                return Ok(());
            }
            length = next_length(length, began.elapsed());
            let percent = total.filter(|total| *total > 0).map(|total| (at.saturating_mul(100) / total).min(100));
            let sent = percent.is_none().then(|| format!(", {}", size(i64::try_from(at).unwrap_or(i64::MAX))));
            show.show(&format!("{}: sending{}", self.name, sent.unwrap_or_default()), percent);
        }
    }

    /// Returns when the appliance has all of a piece on its disk.
    async fn deliver(&self, said: &UploadPiece, piece: &[u8]) -> anyhow::Result<()> {
        let at = said.offset;
        let end = at + piece.len() as u64;
        let is_done = |received: &ReceivedBytes| received.bytes == end && received.whole == said.whole.is_some();
        let (mut offset, mut failures) = (at, 0);
        loop {
            let rest = usize::try_from(offset - at).ok().and_then(|from| piece.get(from..)).unwrap_or_default();
            let error = match self.piece(&UploadPiece { offset, ..said.clone() }, rest).await {
                Ok(received) if is_done(&received) => return Ok(()),
                Ok(received) => {
                    bail!("the appliance says that it has {} bytes, of {end} that were sent", received.bytes)
                }
                Err(error) => error,
            };
            if is_lasting(&error) {
                return Err(error.into());
            }
            failures += 1;
            if failures > ATTEMPTS {
                return Err(
                    anyhow::Error::from(error).context("sending was cut off; run the same command again to go on")
                );
            }
            tokio::time::sleep(pause(failures)).await;
            match self.received().await {
                Ok(received) if is_done(&received) => return Ok(()),
                Ok(received) if (at..=end).contains(&received.bytes) && !received.whole => {
                    failures = if received.bytes > offset { 0 } else { failures };
                    offset = received.bytes;
                }
                Ok(_) => bail!("somebody else sends this image, or it was begun anew"),
                Err(error) if is_lasting(&error) => return Err(error.into()),
                Err(_) => {}
            }
        }
    }
}

/// Reads what was sent before.
fn skip(source: &mut dyn Read, from: u64, hasher: &mut Sha256) -> anyhow::Result<()> {
    let mut left = from;
    let mut buffer = vec![0; 1 << 20];
    while left > 0 {
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match source.read(&mut buffer[..most]) {
            Ok(0) => {
                bail!("the appliance has {from} bytes of it already, and the file is shorter: remove the image first")
            }
            Ok(read) => {
                hasher.update(&buffer[..read]);
                left -= read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("cannot read the image"),
        }
    }
    Ok(())
}

/// Whether trying again is of no use.
fn is_lasting(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 400 | 401 | 403 | 404 | 405 | 413 | 422))
}

fn pause(failures: u32) -> Duration {
    Duration::from_millis(250).saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE)
}

/// As long as pieces take a few seconds each, whatever the network.
fn next_length(length: usize, took: Duration) -> usize {
    if took < AIM / 2 {
        (length * 2).min(MOST)
    } else if took > AIM {
        (length / 2).max(LEAST)
    } else {
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_as_long_as_the_network_is_fast() {
        for (length, took, next) in
            [(FIRST, 0, 2 * FIRST), (FIRST, 3, FIRST), (FIRST, 5, FIRST / 2), (MOST, 0, MOST), (LEAST, 60, LEAST)]
        {
            assert_eq!(next_length(length, Duration::from_secs(took)), next, "{length} {took}");
        }
        let all: Duration = (1..=ATTEMPTS).map(pause).sum();
        assert!(all > Duration::from_secs(60) && all < Duration::from_secs(180), "{all:?}");
    }

    #[test]
    fn what_was_sent_before_is_read_and_counts() {
        let mut hasher = Sha256::new();
        let mut source: &[u8] = b"abcdef";
        skip(&mut source, 4, &mut hasher).unwrap();
        assert_eq!((source, hex(&hasher.finalize())), (&b"ef"[..], hex(&Sha256::digest(b"abcd"))));
        assert!(skip(&mut source, 3, &mut Sha256::new()).unwrap_err().to_string().contains("shorter"));
    }
}
