//! Uploads that have begun and are not imported yet, on the disk and in memory.
//!
//! | path in `uploads/` | what |
//! |---|---|
//! | `UID.OWNER.part` | what has come so far for the Image with this UID |
//! | `UID.OWNER.SHA256.whole` | all of it, with the checksum that the sender says |
//!
//! OWNER is a hash of who began it, whose share it counts to, also after a restart. Files are made, renamed and removed under the
//! lock of what is in memory, so nothing of an upload that was removed comes back by a writer who had it open.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::shares::{AT_ONCE, BEGUN, UploadsFull};
use super::{GIVEN_UP, ReceivedBytes, UploadRefused, WholeUpload};
use crate::image::{hex, unhex};

/// Hex digits of an owner.
const OWNER: usize = 16;

/// The uploads of a library. Cheap to clone.
#[derive(Clone)]
pub(in crate::image) struct Uploads {
    folder: PathBuf,
    /// By UID of the Image.
    begun: Arc<Mutex<HashMap<String, BegunUpload>>>,
    /// Told when one begins.
    began: Arc<Notify>,
}

/// An upload.
struct BegunUpload {
    /// Of whose share it is.
    owner: String,
    /// What it counts for: what is on the disk, or is about to be.
    bytes: u64,
    /// The checksum of one that is whole.
    sha256: Option<String>,
    /// Since when it is known here.
    since: Instant,
    /// Whether it has a file.
    on_disk: bool,
    /// Who sends a piece of it.
    writer: Option<String>,
    /// Told when it is removed. It is the same one while this is.
    gone: CancellationToken,
}

/// A writer's place. Given back when its last byte is on the disk, not when its caller has gone.
pub(super) struct WriterPlace {
    uid: String,
    gone: CancellationToken,
    uploads: Uploads,
}

impl WriterPlace {
    pub(super) fn uid(&self) -> &str {
        &self.uid
    }

    /// Told when the upload is removed.
    pub(super) fn gone(&self) -> CancellationToken {
        self.gone.clone()
    }

    /// The upload that it is a place of, while it is there.
    fn find<'b>(&self, begun: &'b mut HashMap<String, BegunUpload>) -> Result<&'b mut BegunUpload, UploadRefused> {
        begun.get_mut(&self.uid).filter(|_| !self.gone.is_cancelled()).ok_or(UploadRefused::Gone)
    }
}

impl Drop for WriterPlace {
    fn drop(&mut self) {
        let mut begun = self.uploads.lock();
        let Ok(own) = self.find(&mut begun) else { return };
        own.writer = None;
        // Its first piece was refused.
        if !own.on_disk {
            begun.remove(&self.uid);
        }
    }
}

/// Of whose share the uploads of a caller are.
fn owner(caller: &str) -> String {
    let mut owner = hex(&Sha256::digest(caller));
    owner.truncate(OWNER);
    owner
}

pub(super) fn is_uid(uid: &str) -> bool {
    !uid.is_empty() && uid.len() <= 64 && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// UID, owner and checksum in the name of a file.
fn parse(name: &str) -> Option<(&str, &str, Option<&str>)> {
    let (uid, rest) = name.split_once('.')?;
    let (owner, kind) = rest.split_once('.')?;
    let is_owner = owner.len() == OWNER && owner.bytes().all(|byte| byte.is_ascii_hexdigit());
    let sha256 = match kind {
        "part" => None,
        kind => Some(kind.strip_suffix(".whole").filter(|sha256| unhex(sha256).is_some())?),
    };
    (is_uid(uid) && is_owner).then_some((uid, owner, sha256))
}

impl Uploads {
    /// Of a folder. What is in it and is no upload goes.
    pub(in crate::image) fn open(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        let mut begun = HashMap::new();
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some((uid, owner, sha256)) = name.to_str().and_then(parse) else {
                fs::remove_file(entry.path())?;
                continue;
            };
            let one = BegunUpload {
                owner: owner.to_owned(),
                bytes: entry.metadata()?.len(),
                sha256: sha256.map(str::to_owned),
                since: Instant::now(),
                on_disk: true,
                writer: None,
                gone: CancellationToken::new(),
            };
            begun.insert(uid.to_owned(), one);
        }
        Ok(Self { folder, begun: Arc::new(Mutex::new(begun)), began: Arc::default() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, BegunUpload>> {
        // Changed by single inserts, removals and sums only.
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, uid: &str, one: &BegunUpload) -> PathBuf {
        let kind = one.sha256.as_ref().map_or("part".to_owned(), |sha256| format!("{sha256}.whole"));
        self.folder.join(format!("{uid}.{}.{kind}", one.owner))
    }

    /// What they take of the library's room, in bytes.
    pub(in crate::image) fn bytes(&self) -> u64 {
        self.lock().values().map(|one| one.bytes).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Told when one begins.
    pub(super) fn began(&self) -> &Notify {
        &self.began
    }

    /// The file of an upload, if it has one, and the checksum of one that is whole.
    fn file(&self, uid: &str) -> io::Result<Option<(File, Option<String>)>> {
        let begun = self.lock();
        let Some(one) = begun.get(uid).filter(|one| one.on_disk) else { return Ok(None) };
        Ok(Some((File::open(self.path(uid, one))?, one.sha256.clone())))
    }

    /// What has come for an Image. Blocks on the disk.
    pub(super) fn received(&self, uid: &str) -> io::Result<ReceivedBytes> {
        let Some((file, sha256)) = self.file(uid)? else { return Ok(ReceivedBytes { bytes: 0, whole: false }) };
        // What an earlier process wrote may not be there yet.
        file.sync_all()?;
        Ok(ReceivedBytes { bytes: file.metadata()?.len(), whole: sha256.is_some() })
    }

    /// The SHA-256 of what has come for the Image of this place, which nobody else changes meanwhile. Blocks on the disk.
    pub(super) fn sum(&self, place: &WriterPlace) -> Result<String, UploadRefused> {
        let (mut file, _) = self.file(place.uid())?.ok_or(UploadRefused::Gone)?;
        let (mut sum, mut part) = (Sha256::new(), vec![0; 1 << 20]);
        loop {
            if place.gone.is_cancelled() {
                return Err(UploadRefused::Gone);
            }
            match file.read(&mut part)? {
                0 => return Ok(hex(&sum.finalize())),
                length => sum.update(&part[..length]),
            }
        }
    }

    /// An upload that is whole. Blocks on the disk.
    pub(in crate::image) fn whole(&self, uid: &str) -> io::Result<Option<WholeUpload>> {
        let Some((file, Some(sha256))) = self.file(uid)? else { return Ok(None) };
        let bytes = file.metadata()?.len();
        Ok(Some(WholeUpload { file, sha256, bytes }))
    }

    /// Removes what has come for an Image. Blocks on the disk.
    pub(in crate::image) fn remove(&self, uid: &str) -> io::Result<()> {
        self.remove_if(uid, |_| true).map(drop)
    }

    /// Removes an upload of which this is so. Whoever sends it is told.
    fn remove_if(&self, uid: &str, so: impl FnOnce(&BegunUpload) -> bool) -> io::Result<bool> {
        let mut begun = self.lock();
        let Some(one) = begun.get(uid).filter(|one| so(one)) else { return Ok(false) };
        let path = self.path(uid, one);
        // Its blocks go when it is closed, which takes long for many and needs no lock.
        let held = File::open(&path);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        one.gone.cancel();
        begun.remove(uid);
        drop(begun);
        drop(held);
        Ok(true)
    }

    /// Removes what is for none of these Images, which were listed at this time, and what nobody sent on for long; how many.
    /// Blocks on the disk.
    pub(super) fn collect(&self, uids: &HashSet<String>, listed: Instant, now: SystemTime) -> io::Result<usize> {
        let known: Vec<String> = self.lock().keys().cloned().collect();
        let mut gone = 0;
        for uid in known {
            let is_given_up = |one: &BegunUpload| {
                let about = fs::metadata(self.path(&uid, one)).and_then(|about| about.modified());
                let age = about.ok().and_then(|at| now.duration_since(at).ok()).unwrap_or_default();
                one.sha256.is_none() && one.writer.is_none() && age >= GIVEN_UP
            };
            // Who began it saw its Image: what a later listing does not have has gone.
            let so = |one: &BegunUpload| (!uids.contains(&uid) && one.since < listed) || is_given_up(one);
            gone += usize::from(self.remove_if(&uid, so)?);
        }
        Ok(gone)
    }

    /// A place for a caller to write for an Image.
    pub(super) fn begin(&self, uid: &str, caller: &str) -> Result<WriterPlace, UploadRefused> {
        let mut begun = self.lock();
        let count = |of: &dyn Fn(&BegunUpload) -> bool| begun.values().filter(|one| of(one)).count();
        let sends = |one: &BegunUpload| one.writer.as_deref() == Some(caller);
        match AT_ONCE.check(count(&|one| one.writer.is_some()), count(&sends)) {
            Ok(()) => {}
            Err(UploadsFull::Own(most)) => {
                let message = format!("you send to {most} images at once, as many as one caller may: try again soon");
                return Err(UploadRefused::TooMany(message));
            }
            Err(UploadsFull::All) => {
                return Err(UploadRefused::Busy("other uploads are under way: try again in some seconds"));
            }
        }
        let owner = owner(caller);
        if !begun.contains_key(uid) {
            match BEGUN.check(begun.len(), count(&|one| one.owner == owner)) {
                Ok(()) => {}
                Err(UploadsFull::Own(most)) => {
                    return Err(UploadRefused::OverShare(format!(
                        "you have begun {most} uploads that are not imported, as many as one caller may: send them to their \
                         end, or remove their images (`slipway image list`, `slipway image remove NAME`)"
                    )));
                }
                Err(UploadsFull::All) => {
                    return Err(UploadRefused::Busy(
                        "too many uploads have begun and are not imported: finish or remove them first",
                    ));
                }
            }
        }
        let fresh = || BegunUpload {
            owner,
            bytes: 0,
            sha256: None,
            since: Instant::now(),
            on_disk: false,
            writer: None,
            gone: CancellationToken::new(),
        };
        let one = begun.entry(uid.to_owned()).or_insert_with(fresh);
        if one.writer.is_some() {
            return Err(UploadRefused::Busy("a piece for this image is being written: try again in some seconds"));
        }
        one.writer = Some(caller.to_owned());
        if !one.on_disk {
            self.began.notify_one();
        }
        Ok(WriterPlace { uid: uid.to_owned(), gone: one.gone.clone(), uploads: self.clone() })
    }

    /// The file to append to, which is made for the first piece.
    pub(super) fn append(&self, place: &WriterPlace) -> Result<File, UploadRefused> {
        let mut begun = self.lock();
        let one = place.find(&mut begun)?;
        let file = File::options().append(true).create(true).open(self.path(&place.uid, one))?;
        let is_new = !std::mem::replace(&mut one.on_disk, true);
        drop(begun);
        if is_new {
            self.sync()?;
        }
        Ok(file)
    }

    /// It counts for so many bytes from now on.
    pub(super) fn count(&self, place: &WriterPlace, bytes: u64) -> Result<(), UploadRefused> {
        place.find(&mut self.lock())?.bytes = bytes;
        Ok(())
    }

    /// All of it has come.
    pub(super) fn complete(&self, place: &WriterPlace, sha256: &str) -> Result<(), UploadRefused> {
        let mut begun = self.lock();
        let one = place.find(&mut begun)?;
        let part = self.path(&place.uid, one);
        one.sha256 = Some(sha256.to_owned());
        if let Err(error) = fs::rename(&part, self.path(&place.uid, one)) {
            one.sha256 = None;
            return Err(error.into());
        }
        drop(begun);
        Ok(self.sync()?)
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUM: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const NOBODY: &str = "0123456789abcdef";

    fn names(uploads: &Uploads) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<_> = fs::read_dir(&uploads.folder).unwrap().map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn what_has_no_image_goes_at_once_and_what_nobody_sends_on_later() {
        let folder = tempfile::tempdir().unwrap();
        let (part, whole) = (|uid| format!("{uid}.{NOBODY}.part"), |uid| format!("{uid}.{NOBODY}.{SUM}.whole"));
        for name in [part("a"), part("b"), whole("c"), whole("d"), "old.part".into(), "x".into()] {
            fs::write(folder.path().join(name), "xy").unwrap();
        }
        let uploads = Uploads::open(folder.path().to_owned()).unwrap();
        assert_eq!(names(&uploads), [part("a"), part("b"), whole("c"), whole("d")]);
        assert_eq!(uploads.bytes(), 8);
        let known: HashSet<String> = ["a", "c"].map(str::to_owned).into();
        let (listed, now) = (Instant::now(), SystemTime::now());
        // One that began after the listing may be of an Image that it does not have.
        let place = uploads.begin("new", "me").unwrap();
        uploads.append(&place).unwrap();
        assert_eq!(uploads.collect(&known, listed, now).unwrap(), 2);
        assert_eq!(names(&uploads), [part("a"), whole("c"), format!("new.{}.part", owner("me"))]);
        assert_eq!(uploads.bytes(), 4);
        // Whoever sends to one that goes is told, and brings nothing of it back.
        assert_eq!(uploads.collect(&known, Instant::now(), now).unwrap(), 1);
        assert!(place.gone().is_cancelled());
        for done in [uploads.append(&place).map(drop), uploads.count(&place, 5), uploads.complete(&place, SUM)] {
            assert!(matches!(done, Err(UploadRefused::Gone)), "{done:?}");
        }
        drop(place);
        assert_eq!(uploads.collect(&known, Instant::now(), now + GIVEN_UP).unwrap(), 1);
        assert_eq!(names(&uploads), [whole("c")]);
    }

    #[test]
    fn one_caller_leaves_places_to_others_also_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let uploads = Uploads::open(folder.path().to_owned()).unwrap();
        // Pieces at once.
        let mut places = Vec::new();
        let refused = loop {
            match uploads.begin(&format!("at-once-{}", places.len()), "greedy") {
                Ok(place) => places.push(place),
                Err(refused) => break refused,
            }
            assert!(places.len() <= 100, "he has them all");
        };
        assert!(matches!(refused, UploadRefused::TooMany(_)), "{refused}");
        drop(uploads.begin("other", "other").unwrap());
        assert!(matches!(uploads.begin("at-once-0", "other"), Err(UploadRefused::Busy(_))), "one writer for each");
        drop(places);
        assert!(uploads.is_empty(), "nothing was sent");
        // Uploads that have begun.
        let begin = |uploads: &Uploads, uid: &str, caller: &str| {
            uploads.begin(uid, caller).and_then(|place| uploads.append(&place)).map(drop)
        };
        let mut number = 0;
        let refused = loop {
            match begin(&uploads, &format!("begun-{number}"), "greedy") {
                Ok(()) => number += 1,
                Err(refused) => break refused,
            }
            assert!(number <= 100, "he has them all");
        };
        assert!(matches!(&refused, UploadRefused::OverShare(reason) if reason.contains("image remove")), "{refused}");
        begin(&uploads, "begun-0", "greedy").unwrap();
        let again = Uploads::open(folder.path().to_owned()).unwrap();
        assert!(matches!(begin(&again, "more", "greedy"), Err(UploadRefused::OverShare(_))));
        begin(&again, "more", "other").unwrap();
        again.remove("begun-1").unwrap();
        begin(&again, "one-more", "greedy").unwrap();
    }
}
