//! The database on disk.
//!
//! What is on disk: opening it, reading all of it into the index, putting groups of changes there, and letting a new one take
//! its place when it has grown too far beyond what is in it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::StoreOptions;
use super::bounds;
use super::content::{Loaded, StoreContent};
use super::files::{OpenRefusal, lock, make_private_folder, sync_folders};
use super::generation::{self, GenerationChoice};
use super::generation_files::{GenerationFiles, NewFiles};
use super::group::{WriteGroup, key};
use super::legacy;
use super::rewriting::{Cost, Moment, Rewriting};
use super::seal::Sealer;
use super::space::{self, StoreSpace};
use super::witness::{self, Statement, Witness, WitnessReading};

/// What must be free beyond its size for changes to go on meanwhile, in bytes: they must not meet a full disk.
const FREE_ASIDE: u64 = 128 << 20;

/// Room for the last that is written, in bytes: sled may begin two segments for a group.
const LAST: u64 = 1 << 20;

/// How long to wait after a rewriting that failed, at first and at most. Not longer: what grows may have to wait for it.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));

/// What is said of a database without its witness.
pub(super) const UNWITNESSED: &str = "the witness of the database is lost; what is in the database belongs together, but \
    nobody can say whether it is the newest: check the disk";

/// What the log says when the database takes more of the disk than it should.
pub(super) const NOT_ANEW: &str = "the database cannot be written anew to take less of the disk";

/// What it says when that is so for long.
pub(super) const OVERGROWN: &str = "the database takes more than three times what is in it, and the disk has no room to write \
    it anew: make room on the disk, or delete objects; nothing else is written until then";

/// What it says when something is refused so that it does not come to that.
pub(super) const CRAMPED: &str = "the disk has too little room for the database, which takes twice what is in it while it is \
    written anew: nothing can be made or grow until there is more, or something is deleted";

/// Why a database was not written anew.
pub(super) enum NotAnew {
    /// It could not be; the former one goes on.
    Given(String),
    /// Which of the two is the one is not known: nothing may be written any more. Opening finds out.
    Torn(String),
}

/// The open database. Used by the committer's thread alone.
pub(super) struct Database {
    path: PathBuf,
    generation: u64,
    files: GenerationFiles,
    witness: Witness,
    space: StoreSpace,
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

impl Database {
    /// Opens or makes the database; the error is a sentence for the operator.
    pub fn open(options: &StoreOptions) -> Result<(Self, Loaded), String> {
        let path = &options.path;
        let io = |what: &str, error: io::Error| format!("cannot {what}: {error}");
        make_private_folder(path).map_err(|error| io("make the folder", error))?;
        let lock = lock(path)?;
        let mut space = StoreSpace::new(path).map_err(|error| io("look for room", error))?;
        let said = witness::read(path).map_err(|error| io("read its witness", error))?;
        let found = generation::find(path).map_err(|error| io("read the folder", error))?;
        let used = options.key_file.try_exists().map_err(|error| io("look for the key file", error))?;
        let mut unwitnessed = false;
        let (generation, files, content) = match generation::choose(said, &found, used) {
            GenerationChoice::New => begin(path)?,
            // It is read, and written in today's form below.
            GenerationChoice::OldLayout => match catch_unwind(|| legacy::read(path)) {
                Ok(read) => (0, None, read.map_err(OpenRefusal::said)?),
                Err(_) => return Err(OpenRefusal::from("sled gave up reading it").said()),
            },
            GenerationChoice::Generation(generation) => {
                let seen = match said {
                    WitnessReading::This(statement) => Some(statement),
                    WitnessReading::Nothing | WitnessReading::Unreadable => None,
                };
                let (files, content) = open_files(path, generation, seen, &mut space)?;
                (generation, Some(files), content)
            }
            GenerationChoice::Newest(generation) => {
                let (files, content) = open_files(path, generation, None, &mut space)?;
                // Without a key it was never used: the very first start was not finished.
                if used {
                    tracing::error!(generation, "{UNWITNESSED}");
                    unwitnessed = true;
                }
                (generation, Some(files), content)
            }
            GenerationChoice::Gone => {
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
            && said == WitnessReading::Nothing
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
        let mut group = WriteGroup::default();
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
                    .map_err(|error| OpenRefusal::io("take over the database of an earlier version", &error))
                    .and_then(NewFiles::end)
                    .and_then(|base| base.finish(&WriteGroup::default()))
                    .map_err(|refusal| {
                        // The room that it took is needed to try again.
                        fs::remove_dir_all(&folder).ok();
                        refusal.said()
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
        if !matches!(said, WitnessReading::This(known) if known.generation == generation && known.mark == disk.statement().mark)
        {
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
        self.look();
        self.space.is_low()
    }

    /// Asks how much is free. When there is room again, what failed for want of it need not wait.
    fn look(&mut self) {
        let was_low = self.space.is_low();
        self.space.look();
        if was_low && !self.space.is_low() {
            self.retry = None;
        }
    }

    /// Whether there is room for a group of so many bytes, and for what gives room back after it. If so, that room is the
    /// journal's own, so that it is still there when the group is written.
    pub fn has_room(&mut self, bytes: usize) -> bool {
        self.look();
        let needed = self.space.reserve() / 2 + space::taken_by(bytes);
        let more = needed.saturating_sub(self.files.journal.reserved());
        let promised = self.rewriting.as_ref().map_or(0, Rewriting::will_take);
        self.space.has_room(more + promised) && self.owns(needed)
    }

    /// Whether there is room for a group of so many bytes that gives room back, or is needed to live with a full disk; some
    /// of the journal's own is left after the latter.
    pub fn has_last_room(&mut self, bytes: usize, gives_back: bool) -> bool {
        let half = self.space.reserve() / 2;
        let left = if gives_back { LAST.min(half) } else { half };
        self.owns(left + space::taken_by(bytes))
    }

    /// Whether the journal has so many bytes of the disk for itself, or could take them: what is free now may be somebody
    /// else's before it is written.
    fn owns(&mut self, bytes: u64) -> bool {
        let reserved = self.files.journal.reserved();
        if reserved >= bytes {
            return true;
        }
        if self.reserves {
            match self.files.journal.reserve(bytes) {
                Ok(()) => return true,
                Err(error) if is_full(&error) => return false,
                Err(error) => self.reserves_nothing(&error),
            }
        }
        self.look();
        self.space.free() + reserved >= bytes
    }

    /// The file system cannot keep room for a file.
    fn reserves_nothing(&mut self, error: &io::Error) {
        self.reserves = false;
        tracing::warn!(%error, "cannot reserve room for the database: others that fill the disk can stop it");
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
            && !is_full(&error)
        {
            self.reserves_nothing(&error);
        }
    }

    /// What was free when it was last looked, in bytes.
    pub fn free(&self) -> u64 {
        self.space.free()
    }

    /// What base and journal take of the disk, in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.bytes()
    }

    /// Puts a group on disk. When this returns `Ok`, it would survive a power cut, and the witness knows of it.
    pub fn commit(&mut self, group: &WriteGroup, revision: u64) -> Result<(), String> {
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
    /// anew, and can be.
    pub fn is_bloated(&mut self, live: usize) -> bool {
        self.look();
        let (taken, free, live) = (self.bytes(), self.space.free(), live as u64);
        bounds::is_worth_it(taken, live, free, self.space.is_low())
            && bounds::needed_anew(live) < free
            && self.retry.is_none_or(|(from, _)| Instant::now() >= from)
    }

    /// Whether it takes more of the disk than it may for `live` bytes, and there is no room to write it anew, or soon would not
    /// be.
    pub fn is_overgrown(&self, live: usize) -> bool {
        self.rewriting.is_none() && bounds::is_overgrown(self.bytes(), live as u64, self.space.free())
    }

    /// Whether it can still be written anew when there are `lasting` bytes in it, and the history of what changes quickly.
    pub fn has_room_anew(&self, lasting: usize) -> bool {
        bounds::has_room_anew(self.space.free() + self.bytes(), lasting, self.space.spare(bounds::SPARE))
    }

    /// Begins to write all that is in it into a new generation. `live` is what that takes, in bytes; `wake` is called when
    /// it is written.
    pub fn begin(&mut self, moment: Moment, live: usize, wake: impl FnOnce() + Send + 'static) -> Result<(), NotAnew> {
        let size = live as u64;
        let begun = self.begin_rewriting().and_then(|files| {
            let room = bounds::room_aside(size, self.bytes() + size);
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
            let left = bounds::room_aside(live as u64, self.bytes() + rewriting.bytes());
            rewriting.has_room(left, others, change)
        })
    }

    /// Gives up writing it anew when the disk has become low since that was begun: what is written meanwhile needs the room.
    pub fn give_up_when_low(&mut self) -> Result<(), NotAnew> {
        self.look();
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
            let mut new = base.finish(&since).map_err(|refusal| NotAnew::Given(refusal.said()))?;
            // Without it, whoever fills the disk now stops the database.
            match new.journal.reserve(self.space.reserve()) {
                Err(error) if is_full(&error) && !began_low => {
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
    pub fn turn_to(&mut self, new: GenerationFiles) -> Result<(), NotAnew> {
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
fn note(meta: &mut BTreeMap<Vec<u8>, Bytes>, group: &WriteGroup) {
    for (key, value) in group.numbers() {
        match value {
            Some(value) => meta.insert(key.clone(), Bytes::copy_from_slice(value)),
            None => meta.remove(key),
        };
    }
}

/// Whether somebody took the last of the disk, or of what its user may have of it.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Opens a generation, if need be with the room that is kept for that.
fn open_files(
    path: &Path,
    generation: u64,
    seen: Option<Statement>,
    space: &mut StoreSpace,
) -> Result<(GenerationFiles, StoreContent), String> {
    let folder = generation::folder(path, generation);
    GenerationFiles::open(folder.clone(), seen)
        .or_else(|reason| if space.give_all() { GenerationFiles::open(folder, seen) } else { Err(reason) })
        .map_err(OpenRefusal::said)
}

/// Makes the first database: its generation, its files and nothing in it.
fn begin(path: &Path) -> Result<(u64, Option<GenerationFiles>, StoreContent), String> {
    let files = NewFiles::begin(generation::folder(path, 1))
        .map_err(|error| OpenRefusal::io("make the database", &error))
        .and_then(NewFiles::end)
        .and_then(|base| base.finish(&WriteGroup::default()))
        .map_err(OpenRefusal::said)?;
    Ok((1, Some(files), StoreContent::default()))
}

/// Finds or makes the key that belongs to the database.
fn find_sealer(content: &StoreContent, options: &StoreOptions) -> Result<Sealer, String> {
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
