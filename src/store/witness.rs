//! The witness: a small file beside the database that says what was last acknowledged.
//!
//! The chain of the journal shows that what is read belongs together, but a journal that lost its newest groups
//! belongs together, too. So each group is noted here before it is acknowledged, and a database that is behind its witness is
//! refused.
//!
//! The file has two places of 64 bytes, 4,096 bytes apart, written in turn, so that a write cut short leaves the other. Once one is on
//! disk the other says the same, so that damage of one place makes the file say no less. It is
//! written after the group is on disk and so never says more than is there. It is handed to the kernel with each group
//! and synced once a second: what a power cut can take from it makes it say less, which costs nothing but sight of a
//! damage in that last second.

use std::fs::{File, OpenOptions};
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use siphasher::sip::SipHasher13;

use super::journal::JournalMark;

/// Name of the file, in the folder of the database.
pub(super) const NAME: &str = "witness";

const MAGIC: &[u8; 8] = b"slipwit1";

/// Bytes of one place.
const LENGTH: usize = 64;

/// Where the places are: on two pages of the file, so that damage of a block leaves one.
const PLACES: [u64; 2] = [0, 4096];

/// How long the file may be out of step with the disk.
const SYNC: Duration = Duration::from_secs(1);

/// What was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Statement {
    /// Which database.
    pub generation: u64,
    /// The last group of its journal.
    pub mark: JournalMark,
    /// The newest revision.
    pub revision: u64,
}

impl Statement {
    fn encode(self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.generation.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.mark.sequence.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.mark.chain.to_be_bytes());
        bytes[32..40].copy_from_slice(&self.revision.to_be_bytes());
        let check = check(&bytes[..56]);
        bytes[56..].copy_from_slice(&check);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LENGTH] = bytes.try_into().ok()?;
        let number = |from: usize| bytes[from..from + 8].try_into().map(u64::from_be_bytes).ok();
        if &bytes[..8] != MAGIC || bytes[56..] != check(&bytes[..56]) {
            return None;
        }
        let mark = JournalMark { sequence: number(16)?, chain: number(24)? };
        Some(Self { generation: number(8)?, mark, revision: number(32)? })
    }
}

fn check(bytes: &[u8]) -> [u8; 8] {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish().to_be_bytes()
}

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WitnessReading {
    /// There is no file.
    Nothing,
    /// There is one, and neither place can be read.
    Unreadable,
    /// The newer of the places.
    This(Statement),
}

/// Reads the file of a folder.
pub(super) fn read(folder: &Path) -> io::Result<WitnessReading> {
    let file = match File::open(folder.join(NAME)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(WitnessReading::Nothing),
        Err(error) => return Err(error),
    };
    let mut newest: Option<Statement> = None;
    for place in PLACES {
        let mut bytes = [0; LENGTH];
        match file.read_exact_at(&mut bytes, place) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => continue,
            Err(error) => return Err(error),
        }
        let Some(statement) = Statement::decode(&bytes) else {
            // One that was never written is empty.
            if bytes != [0; LENGTH] {
                tracing::warn!(place, "a place of the witness of the database is damaged: the other one counts");
            }
            continue;
        };
        let age = |statement: &Statement| (statement.generation, statement.mark.sequence);
        if newest.is_none_or(|newest| age(&newest) < age(&statement)) {
            newest = Some(statement);
        }
    }
    Ok(newest.map_or(WitnessReading::Unreadable, WitnessReading::This))
}

/// The file, open for writing.
pub(super) struct Witness {
    file: File,
    /// Which place is next.
    next: usize,
    synced: Instant,
    /// What the other place does not say yet.
    noted: Option<Statement>,
}

impl Witness {
    /// Opens the file, or makes it. What is in it stays until it is written.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let name = folder.join(NAME);
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(name)?;
        Ok(Self { file, next: 0, synced: Instant::now(), noted: None })
    }

    /// Notes what is on disk, before it is acknowledged.
    pub fn note(&mut self, statement: Statement) -> io::Result<()> {
        self.file.write_all_at(&statement.encode(), PLACES[self.next])?;
        self.next = 1 - self.next;
        self.noted = Some(statement);
        if self.synced.elapsed() >= SYNC { self.sync() } else { Ok(()) }
    }

    /// In both places and on disk: when the database is another one than before.
    pub fn settle(&mut self, statement: Statement) -> io::Result<()> {
        for place in PLACES {
            self.file.write_all_at(&statement.encode(), place)?;
        }
        self.noted = None;
        self.sync()
    }

    /// Makes durable what was noted.
    pub fn sync(&mut self) -> io::Result<()> {
        self.synced = Instant::now();
        self.file.sync_data()?;
        match self.noted.take() {
            Some(statement) => self.file.write_all_at(&statement.encode(), PLACES[self.next]),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn statement(generation: u64, sequence: u64) -> Statement {
        Statement { generation, mark: JournalMark { sequence, chain: 4 }, revision: 5 }
    }

    #[test]
    fn the_newer_place_counts_and_one_damaged_place_does_not_matter() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).unwrap(), WitnessReading::Nothing);
        let mut witness = Witness::open(folder.path()).unwrap();
        assert_eq!(read(folder.path()).unwrap(), WitnessReading::Unreadable);
        witness.settle(statement(1, 1)).unwrap();
        for sequence in 2..=7 {
            witness.note(statement(1, sequence)).unwrap();
            assert_eq!(read(folder.path()).unwrap(), WitnessReading::This(statement(1, sequence)));
        }
        let path = folder.path().join(NAME);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            let WitnessReading::This(found) = read(folder.path()).unwrap() else {
                panic!("byte {at}: nothing can be read")
            };
            let in_a_place = PLACES.iter().any(|place| (*place..*place + LENGTH as u64).contains(&(at as u64)));
            assert!(found == statement(1, 7) || (in_a_place && found == statement(1, 6)), "byte {at}: {found:?}");
        }
        for length in [0, 10, LENGTH - 1] {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(read(folder.path()).unwrap(), WitnessReading::Unreadable, "{length}");
        }
    }

    #[test]
    fn what_is_on_disk_is_said_in_both_places() {
        let folder = tempfile::tempdir().unwrap();
        let mut witness = Witness::open(folder.path()).unwrap();
        witness.settle(statement(1, 1)).unwrap();
        witness.note(statement(1, 2)).unwrap();
        witness.sync().unwrap();
        let path = folder.path().join(NAME);
        let whole = fs::read(&path).unwrap();
        for place in PLACES {
            let mut damaged = whole.clone();
            damaged[usize::try_from(place).unwrap() + 20] ^= 1;
            fs::write(&path, &damaged).unwrap();
            assert_eq!(read(folder.path()).unwrap(), WitnessReading::This(statement(1, 2)), "{place}");
        }
    }

    #[test]
    fn another_database_is_newer_than_any_group_of_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let mut witness = Witness::open(folder.path()).unwrap();
        witness.settle(statement(1, 900)).unwrap();
        witness.note(statement(2, 1)).unwrap();
        assert_eq!(read(folder.path()).unwrap(), WitnessReading::This(statement(2, 1)));
    }
}
