//! Uploads: images that are sent to the appliance in pieces, from whichever desk.
//!
//! **Order.** A piece is appended and synchronised before it is acknowledged; who sends asks where to go on. The last one renames
//! the file, and the folder is synchronised. What was sent and what came are compared when it is imported: by SHA-256.
//!
//! **Bounds.** Begun uploads, and pieces that come at once, are shared among callers ([`shares`]); there is one writer for each; a
//! piece is bounded in bytes, and its sender in how slow he may be ([`pace`]). What has come counts as the library's content, which
//! has a limit. What no Image is there for goes at once, and what nobody sent on for a day ([`begun`]).

mod begun;
pub(super) mod endpoint;
mod pace;
mod shares;

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use axum::body::Body;
use bytes::Bytes;
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::Library;
use super::chunks::check_room;
use super::library::Inner;
pub(super) use begun::Uploads;
use begun::{WriterPlace, is_uid};
pub(super) use endpoint::told;
use pace::UploadPace;

/// Most bytes of a piece: a request has a minute.
pub const PIECE_MAX: u64 = 64 << 20;
/// Parts of a piece between the connection and the disk, each of some 16 KiB.
const QUEUE: usize = 32;
/// Bytes that are counted before they are written, and between two looks at the free room.
const ROOM_EVERY: u64 = 8 << 20;
/// So long after the last piece an upload is given up.
const GIVEN_UP: Duration = Duration::from_secs(24 * 3600);

/// How much has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReceivedBytes {
    /// Bytes, all on the disk.
    pub bytes: u64,
    /// Whether that is all.
    pub whole: bool,
}

/// What is said of a piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadPiece {
    /// Where it goes on.
    pub offset: u64,
    /// Bytes of all that is sent, where its sender knows: what is too large is refused before it comes.
    pub size: Option<u64>,
    /// With the last one: the SHA-256 of all, 64 lower-case hex digits.
    pub whole: Option<String>,
}

/// Why a piece was not taken.
#[derive(Debug, thiserror::Error)]
pub enum UploadRefused {
    /// It does not go on where the last one ended.
    #[error("{} bytes are there{}: go on from there", .0.bytes, if .0.whole { ", which is all" } else { "" })]
    Offset(ReceivedBytes),
    /// Others are being sent.
    #[error("{0}")]
    Busy(&'static str),
    /// The caller sends as many pieces at once as one may.
    #[error("{0}")]
    TooMany(String),
    /// The caller has begun as many uploads as one may.
    #[error("{0}")]
    OverShare(String),
    /// It makes no sense.
    #[error("{0}")]
    Invalid(&'static str),
    /// It is more than is taken.
    #[error("{0}")]
    TooLarge(String),
    /// The connection stalled or broke. What came of the piece is kept.
    #[error("the piece did not come to its end, or too slowly")]
    CutOff,
    /// The Image went meanwhile, or was sent again from the start.
    #[error("the image was removed while it was sent")]
    Gone,
    /// The disk.
    #[error("{0}")]
    Failed(#[from] io::Error),
}

/// An upload that is whole.
pub(super) struct WholeUpload {
    pub(super) file: File,
    /// What its sender says that it is: lower-case hex.
    pub(super) sha256: String,
    pub(super) bytes: u64,
}

enum UploadPart {
    Data(Bytes),
    /// The piece came to its end; without it the caller has gone.
    End,
}

/// Fails when there is no room for so many more bytes.
fn room_for(library: &Inner, need: u64) -> Result<(), UploadRefused> {
    check_room(library, need, 0).map_err(|error| UploadRefused::TooLarge(error.message))
}

/// Appends what comes of a piece of so many bytes to what is there, which must end where it begins.
fn write(
    library: &Inner,
    place: &WriterPlace,
    piece: &UploadPiece,
    length: Option<u64>,
    mut parts: mpsc::Receiver<UploadPart>,
) -> Result<ReceivedBytes, UploadRefused> {
    let uploads = &library.uploads;
    let there = uploads.received(place.uid())?;
    if there.whole || there.bytes != piece.offset {
        return Err(UploadRefused::Offset(there));
    }
    let most = library.sources.max_unpacked;
    let too_large = || {
        let most = most >> 30;
        UploadRefused::TooLarge(format!("it has more than the {most} GiB of image.max_unpacked_gib in slipway.toml"))
    };
    let end = piece.size.or_else(|| Some(piece.offset.saturating_add(length?)));
    if end.is_some_and(|end| end > most) {
        return Err(too_large());
    }
    room_for(library, end.map_or(0, |end| end.saturating_sub(piece.offset)))?;
    let mut file = uploads.append(place)?;
    let mut bytes = piece.offset;
    let mut take = || {
        let mut counted = bytes;
        loop {
            let data = match parts.blocking_recv() {
                Some(UploadPart::Data(data)) => data,
                Some(UploadPart::End) => return Ok(()),
                None => return Err(UploadRefused::CutOff),
            };
            let after = bytes + data.len() as u64;
            if after > most {
                return Err(too_large());
            }
            if after > counted {
                let rest = length.map_or(u64::MAX, |length| (piece.offset + length).saturating_sub(bytes));
                let step = ROOM_EVERY.min(rest).max(data.len() as u64);
                room_for(library, step)?;
                counted = bytes + step;
                uploads.count(place, counted)?;
            }
            file.write_all(&data)?;
            bytes = after;
        }
    };
    let taken = take();
    let synced = file.sync_all();
    uploads.count(place, file.metadata()?.len())?;
    taken?;
    synced?;
    if let Some(sha256) = &piece.whole {
        uploads.complete(place, sha256)?;
    }
    Ok(ReceivedBytes { bytes, whole: piece.whole.is_some() })
}

/// Hands the parts of a piece on as they come, while the sender keeps up and the Image is there.
async fn feed(
    mut body: Body,
    send: mpsc::Sender<UploadPart>,
    mut pace: UploadPace,
    gone: &CancellationToken,
) -> Result<(), UploadRefused> {
    let mut bytes = 0;
    loop {
        let asked = Instant::now();
        let frame = tokio::select! {
            () = gone.cancelled() => return Err(UploadRefused::Gone),
            // The other side has its own reason.
            () = send.closed() => return Ok(()),
            frame = timeout(pace.left(), body.frame()) => frame,
        };
        let data = match frame {
            Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
            Ok(None) => {
                _ = send.send(UploadPart::End).await;
                return Ok(());
            }
            Ok(Some(Err(_))) => return Err(UploadRefused::CutOff),
            Err(_) => Bytes::new(),
        };
        bytes += data.len() as u64;
        if bytes > PIECE_MAX {
            return Err(UploadRefused::TooLarge(format!("a piece has at most {PIECE_MAX} bytes")));
        }
        if !pace.keeps_up(asked.elapsed(), data.len() as u64) {
            return Err(UploadRefused::CutOff);
        }
        if !data.is_empty() && send.send(UploadPart::Data(data)).await.is_err() {
            return Ok(());
        }
    }
}

impl Library {
    /// What has come for the Image with this UID.
    ///
    /// # Errors
    ///
    /// When the disk cannot be read.
    pub async fn received(&self, uid: &str) -> io::Result<ReceivedBytes> {
        let (inner, uid) = (self.inner.clone(), uid.to_owned());
        tokio::task::spawn_blocking(move || inner.uploads.received(&uid)).await.map_err(io::Error::other)?
    }

    /// The SHA-256 of what has come for the Image with this UID, in lower-case hex. It takes the caller's place of one who sends, until it
    /// is known or the Image goes, whether anybody waits for it or not.
    ///
    /// # Errors
    ///
    /// When nothing has come, others send, or the disk cannot be read.
    pub async fn sum_of_upload(&self, uid: &str, caller: &str) -> Result<String, UploadRefused> {
        let inner = self.inner.clone();
        let place = inner.uploads.begin(uid, caller)?;
        tokio::task::spawn_blocking(move || inner.uploads.sum(&place)).await.map_err(io::Error::other)?
    }

    /// Takes a piece for the Image with this UID from a caller. Returns when it is on the disk.
    ///
    /// What came of a piece that was cut off is kept.
    ///
    /// # Errors
    ///
    /// Why it was not taken.
    pub async fn receive(
        &self,
        uid: &str,
        caller: &str,
        piece: UploadPiece,
        body: Body,
    ) -> Result<ReceivedBytes, UploadRefused> {
        let is_hash = |hash: &str| super::unhex(hash).is_some();
        if !is_uid(uid) || piece.whole.as_deref().is_some_and(|hash| !is_hash(hash)) {
            return Err(UploadRefused::Invalid("whole: the SHA-256 of all that was sent has 64 lower-case hex digits"));
        }
        let inner = self.inner.clone();
        let place = inner.uploads.begin(uid, caller)?;
        let gone = place.gone();
        let (send, parts) = mpsc::channel(QUEUE);
        let length = body.size_hint().exact();
        // Not ended with the request: the next one finds the file as it is then.
        let write = tokio::task::spawn_blocking(move || {
            let done = write(&inner, &place, &piece, length, parts);
            drop(place);
            done
        });
        let fed = feed(body, send, UploadPace::default(), &gone).await;
        let written = write.await.map_err(io::Error::other)?;
        fed.and(written)
    }

    /// Whether anything was sent that is not imported.
    pub(super) fn has_uploads(&self) -> bool {
        !self.inner.uploads.is_empty()
    }

    /// Waits until an upload begins.
    pub(super) async fn upload_begins(&self) {
        self.inner.uploads.began().notified().await;
    }

    /// Removes what was sent for none of these Images, which were listed at this time, and what nobody sent on for long; how
    /// many. Blocks on the disk.
    pub(super) fn collect_uploads(
        &self,
        uids: &HashSet<String>,
        listed: std::time::Instant,
        now: SystemTime,
    ) -> io::Result<usize> {
        self.inner.uploads.collect(uids, listed, now)
    }
}

#[cfg(test)]
mod tests;
