//! The database on disk.
//!
//! What is on disk: opening it, reading all of it into the index, putting groups of changes there, and letting a new one take
//! its place when it has grown too far beyond what is in it.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::StoreOptions;
use super::base::{self, Base, BaseWriter};
use super::content::{Content, Loaded};
use super::files::{Refusal, lock, make_private_folder, sync_folders};
use super::frames;
use super::generation::{self, BASE, Choice};
use super::group::{Group, key};
use super::journal::Journal;
use super::legacy;
use super::rewriting::{Cost, Moment, Rewriting};
use super::seal::Sealer;
use super::space::Space;
use super::witness::{self, Said, Statement, Witness};

/// What base and journal may take of the disk beyond twice what is in them, in bytes: sled writes whole segments of half a
/// mebibyte, and what is small need not be written anew for little.
const SLACK: u64 = 4 << 20;

/// The same when the disk is low.
const LOW_SLACK: u64 = 3 << 20;

/// The same while it is written anew aside, beyond three times what is in it: half empty segments of two journals are more.
const SLACK_ASIDE: u64 = 2 * SLACK;

/// What must be free beyond its size for changes to go on meanwhile, in bytes: they must not meet a full disk.
const FREE_ASIDE: u64 = 128 << 20;

/// Room for the last that is written, in bytes: sled may begin two segments for a group.
const LAST: u64 = 1 << 20;

/// How long to wait after a rewriting that failed, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(64));

/// What is said of a database without its witness.
pub(super) const UNWITNESSED: &str = "the witness of the database is lost; what is in the database belongs together, but \
    nobody can say whether it is the newest: check the disk";

/// What the log says when the database takes more of the disk than it should.
pub(super) const NOT_ANEW: &str = "the database cannot be written anew to take less of the disk";

const UNFINISHED: &str = "base.new";
const JOURNAL: &str = "journal";

/// Why a database was not written anew.
pub(super) enum NotAnew {
    /// It could not be; the former one goes on.
    Given(String),
    /// Which of the two is the one is not known: nothing may be written any more. Opening finds out.
    Torn(String),
}

/// The files of a generation that is being made.
pub(super) struct NewFiles {
    folder: PathBuf,
    /// What is to be in it.
    pub base: BaseWriter,
}

impl NewFiles {
    fn begin(folder: PathBuf) -> io::Result<Self> {
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        DirBuilder::new().mode(0o700).create(&folder)?;
        let base = BaseWriter::create(&folder.join(UNFINISHED))?;
        Ok(Self { folder, base })
    }

    /// Ends the base; what is in it is on disk when this returns.
    pub fn end(self) -> Result<NewBase, Refusal> {
        let Self { folder, base } = self;
        let base = base.finish().map_err(|error| Refusal::io("write the base", &error))?;
        Ok(NewBase { folder, base })
    }
}

/// The base of a generation that is being made. It has no name yet.
pub(super) struct NewBase {
    folder: PathBuf,
    base: Base,
}

impl NewBase {
    /// Begins its journal with what was changed since. All of it is on disk when this returns. The base gets its name last:
    /// without one, it was not finished.
    pub fn finish(self, since: &Group) -> Result<Files, Refusal> {
        let Self { folder, base } = self;
        let mut journal = Journal::create(&folder.join(JOURNAL), base.digest)?;
        if !since.is_empty() {
            let since = since.encode().map_err(|error| Refusal::io("encode the changes since", &error))?;
            journal.append(&since).map_err(|error| Refusal::Other(format!("cannot write its journal: {error}")))?;
        }
        fs::rename(folder.join(UNFINISHED), folder.join(BASE))
            .and_then(|()| sync_folders(&folder))
            .map_err(|error| Refusal::io("name the base", &error))?;
        Ok(Files { folder, base, journal })
    }
}

/// The files of a generation.
pub(super) struct Files {
    folder: PathBuf,
    base: Base,
    journal: Journal,
}

impl Files {
    /// Opens them and reads all of it. `seen` is where the journal was at least.
    fn open(folder: PathBuf, seen: Option<Statement>) -> Result<(Self, Content), String> {
        // sled asserts what it believes of its files, so damage can also be a panic.
        catch_unwind(AssertUnwindSafe(|| {
            let mut content = Content::default();
            let base = base::read(&folder.join(BASE), |tree, key, value| content.put(tree, key, Some(value)))?;
            let journal = Journal::open(&folder.join(JOURNAL), base.digest, |mark, mut group| {
                if seen.is_some_and(|seen| seen.mark.sequence == mark.sequence && seen.mark != mark) {
                    return Err("it is not the one that its witness saw".to_owned());
                }
                if group.is_empty() {
                    return Ok(());
                }
                frames::read(&mut group, |tree, key, value| content.put(tree, key, value))
                    .map_err(|error| format!("a group of its journal cannot be read: {error}"))
            })?;
            Self { folder, base, journal }.compare(seen).map(|files| (files, content))
        }))
        .unwrap_or_else(|_| Err("sled gave up reading it".into()))
        .map_err(said_of)
    }

    /// Refuses a journal that does not reach as far as it did.
    fn compare(self, seen: Option<Statement>) -> Result<Self, Refusal> {
        let here = self.journal.mark().sequence;
        match seen {
            Some(Statement { mark, revision, .. }) if mark.sequence > here => {
                Err(format!("its newest {} writes are missing (up to revision {revision})", mark.sequence - here)
                    .into())
            }
            _ => Ok(self),
        }
    }

    /// Bytes that they take of the disk.
    fn bytes(&self) -> u64 {
        self.base.bytes + self.journal.disk_bytes()
    }

    /// Closes and removes them.
    fn remove(self) -> io::Result<()> {
        let Self { folder, journal, .. } = self;
        drop(journal);
        fs::remove_dir_all(folder)
    }
}

/// The open database. Used by the committer's thread alone.
pub(super) struct Disk {
    path: PathBuf,
    generation: u64,
    files: Files,
    witness: Witness,
    space: Space,
    sealer: Arc<Sealer>,
    revision: u64,
    /// What is to take its place.
    rewriting: Option<Rewriting>,
    /// Numbers as they are on disk.
    meta: BTreeMap<Vec<u8>, Bytes>,
    /// When it may be tried again to write it anew, and how long after that, once it failed.
    retry: Option<(Instant, Duration)>,
    /// Whether the disk refused a group. What sled has of it must not be written later.
    failed: bool,
    /// Whether the file system keeps room for the journal, as far as is known.
    reserves: bool,
    // Last: released after the database is closed.
    _lock: File,
}

impl Disk {
    /// Opens or makes the database; the error is a sentence for the operator.
    pub fn open(options: &StoreOptions) -> Result<(Self, Loaded), String> {
        let path = &options.path;
        let io = |what: &str, error: io::Error| format!("cannot {what}: {error}");
        make_private_folder(path).map_err(|error| io("make the folder", error))?;
        let lock = lock(path)?;
        let mut space = Space::new(path).map_err(|error| io("look for room", error))?;
        let said = witness::read(path).map_err(|error| io("read its witness", error))?;
        let found = generation::find(path).map_err(|error| io("read the folder", error))?;
        let used = options.key_file.try_exists().map_err(|error| io("look for the key file", error))?;
        let mut unwitnessed = false;
        let (generation, files, content) = match generation::choose(said, &found, used) {
            Choice::New => begin(path)?,
            // It is read, and written in today's form below.
            Choice::OldLayout => match catch_unwind(|| legacy::read(path)) {
                Ok(read) => (0, None, read.map_err(said_of)?),
                Err(_) => return Err(damaged("sled gave up reading it")),
            },
            Choice::Generation(generation) => {
                let seen = match said {
                    Said::This(statement) => Some(statement),
                    Said::Nothing | Said::Unreadable => None,
                };
                let (files, content) = open_files(path, generation, seen, &mut space)?;
                (generation, Some(files), content)
            }
            Choice::Newest(generation) => {
                let (files, content) = open_files(path, generation, None, &mut space)?;
                // Without a key it was never used: the very first start was not finished.
                if used {
                    tracing::error!(generation, "{UNWITNESSED}");
                    unwitnessed = true;
                }
                (generation, Some(files), content)
            }
            Choice::Gone => {
                return Err(format!(
                    "the database is gone, but {} is there; restore a backup (or, to begin anew and lose everything, \
                     move that file and {} away)",
                    options.key_file.display(),
                    path.display()
                ));
            }
        };
        let mut witness = Witness::open(path).map_err(|error| io("open its witness", error))?;
        if let Some(files) = &files
            && said == Said::Nothing
        {
            // Before the key is made, which tells that there was a database.
            let statement = Statement { generation, mark: files.journal.mark(), revision: 0 };
            witness
                .settle(statement)
                .and_then(|()| sync_folders(path))
                .map_err(|error| io("write its witness", error))?;
        }
        let sealer = find_sealer(&content, options)?;
        let mut meta = content.meta.clone();
        let loaded = content.load(options.history, &sealer)?;
        let mut group = Group::default();
        if !meta.contains_key(key::SEAL) {
            group.seal(sealer.check_value());
        }
        let (generation, files) = match files {
            Some(files) => (generation, files),
            None => {
                note(&mut meta, &std::mem::take(&mut group));
                let folder = generation::folder(path, 1);
                let files = NewFiles::begin(folder.clone())
                    .and_then(|mut new| {
                        Moment::of(&loaded.index, meta.clone()).write(&mut new.base, &sealer, |_| Ok(())).map(|()| new)
                    })
                    .map_err(|error| Refusal::io("take over the database of an earlier version", &error))
                    .and_then(NewFiles::end)
                    .and_then(|base| base.finish(&Group::default()))
                    .map_err(|refusal| {
                        // The room that it took is needed to try again.
                        fs::remove_dir_all(&folder).ok();
                        said_of(refusal)
                    })?;
                (1, files)
            }
        };
        let mut disk = Self {
            path: path.clone(),
            generation,
            files,
            witness,
            space,
            sealer: Arc::new(sealer),
            revision: loaded.index.revision(),
            rewriting: None,
            meta,
            retry: None,
            failed: false,
            reserves: true,
            _lock: lock,
        };
        disk.commit(&group, disk.revision)?;
        if !matches!(said, Said::This(known) if known.generation == generation && known.mark == disk.statement().mark) {
            disk.settle_witness()?;
            // Its name, too, before anything is removed.
            sync_folders(path).map_err(|error| io("sync the folder", error))?;
        }
        if disk.is_bloated(loaded.index.disk_bytes()) {
            let moment = Moment::of(&loaded.index, disk.meta.clone());
            match disk.begin(moment, loaded.index.disk_bytes(), || {}).and_then(|()| disk.complete()) {
                Ok(_) => {}
                Err(NotAnew::Given(error)) => tracing::warn!(error, "{NOT_ANEW}"),
                Err(NotAnew::Torn(error)) => return Err(error),
            }
        }
        generation::sweep(path, disk.generation).map_err(|error| io("clean up", error))?;
        disk.space.keep_for_next_start();
        disk.keep_reserve();
        Ok((disk, Loaded { unwitnessed, ..loaded }))
    }

    pub fn sealer(&self) -> &Sealer {
        &self.sealer
    }

    /// Numbers as they are on disk.
    pub fn meta(&self) -> &BTreeMap<Vec<u8>, Bytes> {
        &self.meta
    }

    /// Whether nothing may grow, because the disk is nearly full.
    pub fn is_low(&mut self) -> bool {
        self.space.look();
        self.space.is_low()
    }

    /// Whether there is room for a group of so many bytes, and for what gives room back after it.
    pub fn has_room(&mut self, bytes: usize) -> bool {
        self.space.look();
        let promised = self.rewriting.as_ref().map_or(0, Rewriting::will_take);
        self.space.has_room(bytes, promised)
    }

    /// Whether there is room for a group of so many bytes that gives room back, or is needed to live with a full disk; some
    /// of the journal's own is left after the latter.
    pub fn has_last_room(&mut self, bytes: usize, gives_back: bool) -> bool {
        self.space.look();
        let half = self.space.reserve() / 2;
        let left = if gives_back { LAST.min(half) } else { half };
        self.space.free() + self.files.journal.reserved() >= left + 3 * bytes as u64
    }

    /// Has the journal take room for itself again.
    fn keep_reserve(&mut self) {
        let (wanted, journal) = (self.space.reserve(), &mut self.files.journal);
        if self.space.is_low() {
            // What was its own a moment ago; that there is nothing is no news.
            journal.hold(wanted).ok();
        } else if self.reserves
            && journal.reserved() <= wanted / 4 * 3
            && let Err(error) = journal.reserve(wanted)
        {
            self.reserves = false;
            tracing::warn!(%error, "cannot reserve room for the database: others that fill the disk can stop it");
        }
    }

    /// What base and journal take of the disk, in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.bytes()
    }

    /// Puts a group on disk. When this returns `Ok`, it would survive a power cut, and the witness knows of it.
    pub fn commit(&mut self, group: &Group, revision: u64) -> Result<(), String> {
        self.revision = revision;
        if group.is_empty() {
            return Ok(());
        }
        let bytes = group.encode().map_err(|error| format!("cannot encode a group: {error}"))?;
        self.files.journal.append(&bytes).inspect_err(|_| self.failed = true)?;
        self.space.ask();
        self.keep_reserve();
        if let Some(rewriting) = &mut self.rewriting {
            rewriting.note(group, bytes.len());
        }
        note(&mut self.meta, group);
        self.witness.note(self.statement()).map_err(|error| format!("cannot write the witness: {error}"))
    }

    /// What sled may have written for itself since the last group: before the files are closed.
    pub fn settle(&mut self) -> Result<(), String> {
        if self.failed {
            return Ok(());
        }
        self.files.journal.flush()?;
        self.witness.sync().map_err(|error| format!("cannot sync the witness: {error}"))
    }

    fn statement(&self) -> Statement {
        Statement { generation: self.generation, mark: self.files.journal.mark(), revision: self.revision }
    }

    fn settle_witness(&mut self) -> Result<(), String> {
        // Its name is on disk since it was opened.
        self.witness.settle(self.statement()).map_err(|error| format!("cannot write the witness: {error}"))
    }

    /// Whether base and journal take so much more of the disk than the `live` bytes in them that they should be written
    /// anew, and can be: twice as much, so that three times is not exceeded while both are there, but for an eighth of it, which is
    /// for changes meanwhile.
    pub fn is_bloated(&mut self, live: usize) -> bool {
        let live = live as u64;
        let slack = if self.space.is_low() { LOW_SLACK } else { SLACK };
        if self.bytes() <= 2 * live - live / 8 + slack || self.retry.is_some_and(|(from, _)| Instant::now() < from) {
            return false;
        }
        self.space.look();
        live + live / 16 + LOW_SLACK < self.space.free()
    }

    /// Begins to write all that is in it into a new generation. `live` is what that takes, in bytes; `wake` is called when
    /// it is written.
    pub fn begin(&mut self, moment: Moment, live: usize, wake: impl FnOnce() + Send + 'static) -> Result<(), NotAnew> {
        let size = live as u64;
        let begun = self.begin_rewriting().and_then(|files| {
            let room = room_aside(size, self.bytes() + size);
            Rewriting::begin(files, moment, Arc::clone(&self.sealer), (size, room), self.space.is_low(), wake)
                .map_err(|error| format!("cannot start its thread: {error}"))
        });
        match begun {
            Ok(rewriting) => {
                self.rewriting = Some(rewriting);
                Ok(())
            }
            Err(reason) => Err(self.put_off(reason)),
        }
    }

    /// Whether it is being written anew.
    pub fn is_rewriting(&self) -> bool {
        self.rewriting.is_some()
    }

    /// Whether it is being written anew, and that must come to its end before anything else is done.
    pub fn is_due(&self) -> bool {
        self.rewriting.as_ref().is_some_and(Rewriting::is_due)
    }

    /// Whether changes may go on while it is written anew, with `live` bytes in it.
    pub fn may_go_on(&self, live: usize) -> bool {
        !self.space.is_low() && self.space.free() >= live as u64 + FREE_ASIDE
    }

    /// Whether a change may be made, beside others, while it is written anew with `live` bytes in it: if not, three times as
    /// much could be exceeded.
    pub fn has_room_aside(&self, live: usize, others: Cost, change: Cost) -> bool {
        self.rewriting.as_ref().is_none_or(|rewriting| {
            let left = room_aside(live as u64, self.bytes() + rewriting.bytes());
            rewriting.has_room(left, others, change)
        })
    }

    /// Gives up writing it anew when the disk has become low since that was begun: what is written meanwhile needs the room.
    pub fn give_up_when_low(&mut self) -> Result<(), NotAnew> {
        self.space.look();
        if !self.space.is_low() || self.rewriting.as_ref().is_none_or(Rewriting::began_low) {
            return Ok(());
        }
        // Its thread has ended when this returns.
        self.rewriting = None;
        Err(self.put_off("the disk became full meanwhile".to_owned()))
    }

    /// Waits until it is written anew and lets that take its place; says how long all of it took.
    pub fn complete(&mut self) -> Result<Duration, NotAnew> {
        let Some(rewriting) = self.rewriting.take() else { return Ok(Duration::ZERO) };
        let (before, began, began_low) = (self.bytes(), rewriting.began(), rewriting.began_low());
        let outcome = rewriting.end().map_err(NotAnew::Given).and_then(|(base, since)| {
            let mut new = base.finish(&since).map_err(|refusal| NotAnew::Given(said_of(refusal)))?;
            // Without it, whoever fills the disk now stops the database.
            match new.journal.reserve(self.space.reserve()) {
                Err(error) if error.kind() == io::ErrorKind::StorageFull && !began_low => {
                    Err(NotAnew::Given("the disk became full meanwhile".to_owned()))
                }
                _ => self.turn_to(new),
            }
        });
        match outcome {
            Ok(()) => {
                self.retry = None;
                let (now, generation) = (self.bytes(), self.generation);
                tracing::debug!(before, now, generation, "the database was written anew");
                Ok(began.elapsed())
            }
            Err(NotAnew::Given(reason)) => Err(self.put_off(reason)),
            Err(torn) => Err(torn),
        }
    }

    /// It could not be written anew: it is tried again later.
    fn put_off(&mut self, reason: String) -> NotAnew {
        let wait = self.retry.map_or(RETRY.0, |(_, wait)| (wait * 2).min(RETRY.1));
        self.retry = Some((Instant::now() + wait, wait));
        fs::remove_dir_all(generation::folder(&self.path, self.generation + 1)).ok();
        NotAnew::Given(reason)
    }

    /// The next generation, empty.
    pub fn begin_rewriting(&self) -> Result<NewFiles, String> {
        NewFiles::begin(generation::folder(&self.path, self.generation + 1)).map_err(|error| error.to_string())
    }

    /// Lets the next generation take the place of this one.
    pub fn turn_to(&mut self, new: Files) -> Result<(), NotAnew> {
        let former = std::mem::replace(&mut self.files, new);
        self.generation += 1;
        self.reserves = true;
        self.settle_witness().map_err(NotAnew::Torn)?;
        if let Err(error) = former.remove() {
            tracing::warn!(%error, "cannot remove the database as it was before it was written anew");
        }
        self.space.ask();
        self.keep_reserve();
        Ok(())
    }
}

/// Keeps the numbers of a group.
fn note(meta: &mut BTreeMap<Vec<u8>, Bytes>, group: &Group) {
    for (key, value) in group.numbers() {
        match value {
            Some(value) => meta.insert(key.clone(), Bytes::copy_from_slice(value)),
            None => meta.remove(key),
        };
    }
}

/// What may still be taken of the disk while it is written anew, in bytes, with `live` bytes in it and `taken` of the disk.
fn room_aside(live: u64, taken: u64) -> u64 {
    (3 * live + SLACK_ASIDE).saturating_sub(taken)
}

/// What the operator is told.
pub(super) fn said_of(refusal: Refusal) -> String {
    match refusal {
        Refusal::Damaged(reason) => damaged(&reason),
        Refusal::Other(reason) => reason,
    }
}

/// What the operator is told of damage.
fn damaged(reason: &str) -> String {
    format!("the database is damaged: {reason}; restore a backup")
}

/// Opens a generation, if need be with the room that is kept for that.
fn open_files(
    path: &Path,
    generation: u64,
    seen: Option<Statement>,
    space: &mut Space,
) -> Result<(Files, Content), String> {
    let folder = generation::folder(path, generation);
    Files::open(folder.clone(), seen)
        .or_else(|reason| if space.give_all() { Files::open(folder, seen) } else { Err(reason) })
}

/// Makes the first database: its generation, its files and nothing in it.
fn begin(path: &Path) -> Result<(u64, Option<Files>, Content), String> {
    let files = NewFiles::begin(generation::folder(path, 1))
        .map_err(|error| Refusal::io("make the database", &error))
        .and_then(NewFiles::end)
        .and_then(|base| base.finish(&Group::default()))
        .map_err(said_of)?;
    Ok((1, Some(files), Content::default()))
}

/// Finds or makes the key that belongs to the database.
fn find_sealer(content: &Content, options: &StoreOptions) -> Result<Sealer, String> {
    let key_file = &options.key_file;
    let check = content.meta.get(key::SEAL);
    match (check, Sealer::load(key_file)?) {
        (Some(check), Some(sealer)) if sealer.matches(check) => Ok(sealer),
        (Some(_), Some(_)) => Err(format!(
            "the key in {} is not the one that sealed its secrets; put the former key file back",
            key_file.display()
        )),
        (Some(_), None) => Err(format!(
            "its secrets are sealed and the key file {} is missing; put the former key file back",
            key_file.display()
        )),
        (None, Some(sealer)) => Ok(sealer),
        (None, None) => Sealer::create(key_file),
    }
}
