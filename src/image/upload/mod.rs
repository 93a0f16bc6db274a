//! Uploads: images that are sent to the appliance in pieces, from whichever desk.
//!
//! | path in `uploads/` | what |
//! |---|---|
//! | `UID.part` | what has come so far for the Image with this UID |
//! | `UID.SHA256.whole` | all of it, with the checksum that the sender says |
//!
//! **Order.** A piece is appended and synchronised before it is acknowledged; who sends asks where to go on. The last one renames
//! the file, and the folder is synchronised. What was sent and what came are compared when it is imported: by SHA-256.
//!
//! **Bounds.** So many files, as large as the library has room for and an image may be; one writer for each; a piece is bounded in
//! bytes, and between two parts of it in time. What no Image is there for goes, and what nobody sent on for a day.

pub(super) mod endpoint;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use super::Library;
use super::chunks::check_room;
use super::library::Inner;

/// Most uploads that have begun and are not imported yet.
const UPLOADS: usize = 16;
/// Pieces that come at once.
const AT_ONCE: usize = 4;
/// Most bytes of a piece: a request has a minute.
pub const PIECE_MAX: u64 = 64 << 20;
/// Longest time without anything of a piece.
const STALL: Duration = Duration::from_secs(20);
/// Parts of a piece between the connection and the disk, each of some 16 KiB.
const QUEUE: usize = 32;
/// Bytes written between two looks at the free room.
const ROOM_EVERY: u64 = 8 << 20;
/// So long after the last piece an upload is given up.
const GIVEN_UP: Duration = Duration::from_secs(24 * 3600);
/// An upload is younger than the listing of Images that does not have its Image.
const SETTLED: Duration = Duration::from_secs(300);

/// How much has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Received {
    /// Bytes, all on the disk.
    pub bytes: u64,
    /// Whether that is all.
    pub whole: bool,
}

/// Why a piece was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It does not go on where the last one ended.
    #[error("{} bytes are there{}: go on from there", .0.bytes, if .0.whole { ", which is all" } else { "" })]
    Offset(Received),
    /// Others are being sent.
    #[error("{0}")]
    Busy(&'static str),
    /// It makes no sense.
    #[error("{0}")]
    Invalid(&'static str),
    /// It is more than is taken.
    #[error("{0}")]
    TooLarge(String),
    /// The connection stalled or broke. What came of the piece is kept.
    #[error("the piece did not come to its end")]
    CutOff,
    /// The disk.
    #[error("{0}")]
    Failed(#[from] io::Error),
}

/// An upload that is whole.
pub(super) struct Whole {
    pub(super) file: File,
    /// What its sender says that it is: lower-case hex.
    pub(super) sha256: String,
    pub(super) bytes: u64,
}

/// The uploads of a library. Cheap to clone.
#[derive(Clone)]
pub(super) struct Uploads {
    folder: PathBuf,
    busy: Arc<Mutex<HashSet<String>>>,
    places: Arc<Semaphore>,
}

/// A writer's place. Given back when its last byte is on the disk, not when its caller has gone.
struct Place {
    uid: String,
    busy: Arc<Mutex<HashSet<String>>>,
    _one: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.uid);
    }
}

enum Part {
    Data(Bytes),
    /// The piece came to its end; without it the caller has gone.
    End,
}

fn is_uid(uid: &str) -> bool {
    !uid.is_empty() && uid.len() <= 64 && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

impl Uploads {
    pub(super) fn open(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self { folder, busy: Arc::default(), places: Arc::new(Semaphore::new(AT_ONCE)) })
    }

    fn part(&self, uid: &str) -> PathBuf {
        self.folder.join(format!("{uid}.part"))
    }

    /// The file of an upload that is whole, and its checksum.
    fn find_whole(&self, uid: &str) -> io::Result<Option<(PathBuf, String)>> {
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let sha256 = name.strip_prefix(uid).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(".whole"));
            if let Some(sha256) = sha256.map(str::to_owned) {
                return Ok(Some((path, sha256)));
            }
        }
        Ok(None)
    }

    /// What has come for an Image. Blocks on the disk.
    pub(super) fn received(&self, uid: &str) -> io::Result<Received> {
        if let Some((path, _)) = self.find_whole(uid)? {
            return Ok(Received { bytes: fs::metadata(path)?.len(), whole: true });
        }
        match File::open(self.part(uid)) {
            Ok(file) => {
                // What an earlier process wrote may not be there yet.
                file.sync_all()?;
                Ok(Received { bytes: file.metadata()?.len(), whole: false })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Received { bytes: 0, whole: false }),
            Err(error) => Err(error),
        }
    }

    /// An upload that is whole. Blocks on the disk.
    pub(super) fn whole(&self, uid: &str) -> io::Result<Option<Whole>> {
        let Some((path, sha256)) = self.find_whole(uid)? else { return Ok(None) };
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Some(Whole { file, sha256, bytes }))
    }

    /// Removes what has come for an Image. Blocks on the disk.
    pub(super) fn remove(&self, uid: &str) -> io::Result<()> {
        let whole = self.find_whole(uid)?.map(|(path, _)| path);
        for path in whole.into_iter().chain([self.part(uid)]) {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes what is for none of these Images, and what nobody sent on for long; how many. Blocks on the disk.
    pub(super) fn collect(&self, uids: &HashSet<String>, now: SystemTime) -> io::Result<usize> {
        let mut gone = 0;
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let uid = name.to_str().and_then(|name| name.split('.').next()).unwrap_or_default();
            // It may have been imported meanwhile.
            let Ok(about) = entry.metadata() else { continue };
            let age = about.modified().ok().and_then(|at| now.duration_since(at).ok()).unwrap_or_default();
            let is_part = name.to_str().is_some_and(|name| name.ends_with(".part"));
            if (!uids.contains(uid) && age >= SETTLED) || (is_part && age >= GIVEN_UP) {
                match fs::remove_file(entry.path()) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    removed => {
                        removed?;
                        gone += 1;
                    }
                }
            }
        }
        Ok(gone)
    }

    /// A place to write for an Image.
    fn begin(&self, uid: &str) -> Result<Place, Refused> {
        let one = self.places.clone().try_acquire_owned();
        let one = one.map_err(|_| Refused::Busy("other uploads are under way: try again in some seconds"))?;
        if !self.busy.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned()) {
            return Err(Refused::Busy("a piece for this image is being written: try again in some seconds"));
        }
        Ok(Place { uid: uid.to_owned(), busy: self.busy.clone(), _one: one })
    }

    /// Appends what comes to what is there, which must be `offset` bytes.
    fn write(
        &self,
        library: &Inner,
        uid: &str,
        offset: u64,
        whole: Option<&str>,
        mut parts: mpsc::Receiver<Part>,
    ) -> Result<Received, Refused> {
        let there = self.received(uid)?;
        if there.whole || there.bytes != offset {
            return Err(Refused::Offset(there));
        }
        let path = self.part(uid);
        let is_new = !path.exists();
        if is_new && fs::read_dir(&self.folder)?.count() >= UPLOADS {
            return Err(Refused::Busy("too many uploads have begun and are not imported: finish or remove them first"));
        }
        let mut file = File::options().append(true).create(true).open(&path)?;
        if is_new {
            self.sync()?;
        }
        let (mut bytes, mut looked) = (offset, None::<u64>);
        let ended = loop {
            let data = match parts.blocking_recv() {
                Some(Part::Data(data)) => data,
                Some(Part::End) => break true,
                None => break false,
            };
            if looked.is_none_or(|at| bytes >= at + ROOM_EVERY) {
                check_room(library, ROOM_EVERY).map_err(|error| Refused::TooLarge(error.message))?;
                looked = Some(bytes);
            }
            if bytes + data.len() as u64 > library.sources.max_unpacked {
                let most = library.sources.max_unpacked >> 30;
                let message = format!("it has more than the {most} GiB of image.max_unpacked_gib in slipway.toml");
                return Err(Refused::TooLarge(message));
            }
            file.write_all(&data)?;
            bytes += data.len() as u64;
        };
        file.sync_all()?;
        match whole {
            _ if !ended => return Err(Refused::CutOff),
            None => {}
            Some(sha256) => {
                fs::rename(&path, self.folder.join(format!("{uid}.{sha256}.whole")))?;
                self.sync()?;
            }
        }
        Ok(Received { bytes, whole: whole.is_some() })
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }
}

impl Library {
    /// What has come for the Image with this UID.
    ///
    /// # Errors
    ///
    /// When the disk cannot be read.
    pub async fn received(&self, uid: &str) -> io::Result<Received> {
        let (uploads, uid) = (self.inner.uploads.clone(), uid.to_owned());
        tokio::task::spawn_blocking(move || uploads.received(&uid)).await.map_err(io::Error::other)?
    }

    /// Takes a piece for the Image with this UID, which goes on at `offset`; with the last one comes the SHA-256 of all, 64
    /// lower-case hex digits. Returns when it is on the disk.
    ///
    /// What came of a piece that was cut off is kept.
    ///
    /// # Errors
    ///
    /// Why it was not taken.
    pub async fn receive(
        &self,
        uid: &str,
        offset: u64,
        whole: Option<String>,
        mut piece: Body,
    ) -> Result<Received, Refused> {
        let is_hash = |hash: &str| super::unhex(hash).is_some();
        if !is_uid(uid) || whole.as_deref().is_some_and(|hash| !is_hash(hash)) {
            return Err(Refused::Invalid("whole: the SHA-256 of all that was sent has 64 lower-case hex digits"));
        }
        let inner = self.inner.clone();
        let place = inner.uploads.begin(uid)?;
        let (send, parts) = mpsc::channel(QUEUE);
        // Not ended with the request: the next one finds the file as it is then.
        let write = tokio::task::spawn_blocking(move || {
            let done = inner.uploads.write(&inner, &place.uid, offset, whole.as_deref(), parts);
            drop(place);
            done
        });
        let mut bytes = 0;
        let fed = loop {
            match timeout(STALL, piece.frame()).await {
                Ok(Some(Ok(frame))) => {
                    let Ok(data) = frame.into_data() else { continue };
                    bytes += data.len() as u64;
                    if bytes > PIECE_MAX {
                        break Err(Refused::TooLarge(format!("a piece has at most {PIECE_MAX} bytes")));
                    }
                    // The other side has its own reason.
                    if send.send(Part::Data(data)).await.is_err() {
                        break Ok(());
                    }
                }
                Ok(None) => {
                    _ = send.send(Part::End).await;
                    break Ok(());
                }
                Ok(Some(Err(_))) | Err(_) => break Err(Refused::CutOff),
            }
        };
        drop(send);
        let written = write.await.map_err(io::Error::other)?;
        fed.and(written)
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;
    use crate::image::Sources;

    fn body(parts: &[&'static [u8]]) -> Body {
        Body::from_stream(stream::iter(
            parts.iter().map(|part| Ok::<_, io::Error>(Bytes::from_static(part))).collect::<Vec<_>>(),
        ))
    }

    fn library(folder: &std::path::Path, max_unpacked: u64) -> Library {
        Library::open(folder.join("images"), Sources { max_unpacked, ..Sources::of_tests() }).unwrap()
    }

    const SUM: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[tokio::test]
    async fn pieces_are_appended_where_the_last_one_ended_and_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let library = library(folder.path(), 1 << 20);
        let received = async || library.received("u1").await.unwrap();
        assert_eq!(received().await, Received { bytes: 0, whole: false });
        let took = library.receive("u1", 0, None, body(&[b"ab", b"c"])).await.unwrap();
        assert_eq!((took, received().await), (Received { bytes: 3, whole: false }, took));
        for offset in [0, 2, 4] {
            let refused = library.receive("u1", offset, None, body(&[b"x"])).await.unwrap_err();
            assert!(matches!(refused, Refused::Offset(Received { bytes: 3, whole: false })), "{refused}");
        }
        // It breaks off in the middle: what came is there, and the sender is told where to go on.
        let cut = Body::from_stream(stream::iter([Ok(Bytes::from_static(b"de")), Err(io::Error::other("cut"))]));
        assert!(matches!(library.receive("u1", 3, None, cut).await, Err(Refused::CutOff)));
        assert_eq!(received().await.bytes, 5);
        assert!(library.inner.uploads.whole("u1").unwrap().is_none());
        let took = library.receive("u1", 5, Some(SUM.into()), body(&[])).await.unwrap();
        assert_eq!((took, received().await), (Received { bytes: 5, whole: true }, took));
        assert!(matches!(library.receive("u1", 5, None, body(&[b"f"])).await, Err(Refused::Offset(_))));
        let whole = library.inner.uploads.whole("u1").unwrap().unwrap();
        assert_eq!(
            (io::read_to_string(whole.file).unwrap().as_str(), whole.bytes, whole.sha256.as_str()),
            ("abcde", 5, SUM)
        );
        library.inner.uploads.remove("u1").unwrap();
        assert_eq!(received().await, Received { bytes: 0, whole: false });
    }

    #[tokio::test]
    async fn what_is_too_much_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let library = library(folder.path(), 4);
        let refused = library.receive("u1", 0, None, body(&[b"abc", b"de"])).await.unwrap_err();
        assert!(matches!(&refused, Refused::TooLarge(why) if why.contains("image.max_unpacked_gib")), "{refused}");
        for (uid, whole) in [("../u", None), ("", None), ("u2", Some("short")), ("u2", Some("../../x"))] {
            assert!(library.receive(uid, 0, whole.map(str::to_owned), body(&[b"a"])).await.is_err(), "{uid}");
        }
        for number in 1..UPLOADS {
            library.receive(&format!("n{number}"), 0, None, body(&[b"a"])).await.unwrap();
        }
        let refused = library.receive("more", 0, None, body(&[b"a"])).await.unwrap_err();
        assert!(refused.to_string().contains("too many uploads"), "{refused}");
        library.receive("n1", 1, None, body(&[b"b"])).await.unwrap();
        // One at a time for each, and few at once.
        let place = library.inner.uploads.begin("n1").unwrap();
        let refused = library.receive("n1", 2, None, body(&[b"c"])).await.unwrap_err();
        assert!(matches!(refused, Refused::Busy(_)));
        drop(place);
        let places: Vec<_> = (0..AT_ONCE).map(|n| library.inner.uploads.begin(&n.to_string()).unwrap()).collect();
        assert!(library.receive("n1", 2, None, body(&[b"c"])).await.is_err());
        drop(places);
        library.receive("n1", 2, None, body(&[b"c"])).await.unwrap();
    }

    #[test]
    fn what_has_no_image_goes_and_what_nobody_sends_on() {
        let folder = tempfile::tempdir().unwrap();
        let uploads = Uploads::open(folder.path().join("uploads")).unwrap();
        let names = || {
            let mut names: Vec<_> = fs::read_dir(&uploads.folder)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        for name in ["a.part".to_owned(), "b.part".into(), format!("c.{SUM}.whole"), format!("d.{SUM}.whole")] {
            fs::write(uploads.folder.join(name), "x").unwrap();
        }
        let known: HashSet<String> = ["a", "c"].map(str::to_owned).into();
        let now = SystemTime::now();
        assert_eq!(uploads.collect(&known, now).unwrap(), 0, "they may be younger than the listing");
        assert_eq!(uploads.collect(&known, now + SETTLED).unwrap(), 2);
        assert_eq!(names(), ["a.part".to_owned(), format!("c.{SUM}.whole")]);
        assert_eq!(uploads.collect(&known, now + GIVEN_UP).unwrap(), 1);
        assert_eq!(names(), [format!("c.{SUM}.whole")]);
    }
}
