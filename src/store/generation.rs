//! Database generations: when the database is written anew, a generation is made beside the last.
//!
//! ```text
//! db/lock                  held by the process that has the store
//! db/witness               what was last acknowledged, and in which generation
//! db/generation-7/base     everything that was there when the generation began
//! db/generation-7/journal  what changed since: sled's files
//! db/ballast*              room and inodes that are given back when the disk is full
//! ```
//!
//! In format 1 there was only sled, and its files lay in the folder itself. Such a database is taken over when it is opened.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::witness::WitnessReading;

const PREFIX: &str = "generation-";

/// File of everything that was there when a generation began. It gets its name last: without it, none was finished.
pub(super) const BASE: &str = "base";

/// What sled calls its files.
const SLED: [&str; 3] = ["db", "conf", "blobs"];

/// Folder of a generation.
pub(super) fn folder(path: &Path, generation: u64) -> PathBuf {
    path.join(format!("{PREFIX}{generation}"))
}

/// What lies in the folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FolderContents {
    /// Generations that were finished, lowest first.
    pub generations: Vec<u64>,
    /// Whether sled's files lie in the folder itself.
    pub old_layout: bool,
}

/// Looks what lies there.
pub(super) fn find(path: &Path) -> io::Result<FolderContents> {
    let mut found = FolderContents::default();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if let Some(number) = name.strip_prefix(PREFIX).and_then(|number| number.parse().ok()) {
            if entry.path().join(BASE).try_exists()? {
                found.generations.push(number);
            }
        } else if SLED.contains(&name) {
            found.old_layout = true;
        }
    }
    found.generations.sort_unstable();
    Ok(found)
}

/// What to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GenerationChoice {
    /// Nothing was ever here: make the first generation.
    New,
    /// Take over the files that lie in the folder itself.
    OldLayout,
    /// This one.
    Generation(u64),
    /// The witness is lost: this one, which is the newest.
    Newest(u64),
    /// There was one, and it is gone.
    Gone,
}

/// Decides what to open. `used` is whether there is a sign that a database was here: the key that it made.
pub(super) fn choose(said: WitnessReading, found: &FolderContents, used: bool) -> GenerationChoice {
    match (said, found.generations.last()) {
        (WitnessReading::This(statement), _) if found.generations.contains(&statement.generation) => {
            GenerationChoice::Generation(statement.generation)
        }
        (WitnessReading::This(_), _) => GenerationChoice::Gone,
        // The witness is made when a database was taken over: without it that did not come to its end.
        _ if found.old_layout => GenerationChoice::OldLayout,
        (_, Some(newest)) => GenerationChoice::Newest(*newest),
        (WitnessReading::Unreadable, None) => GenerationChoice::Gone,
        (WitnessReading::Nothing, None) if used => GenerationChoice::Gone,
        (WitnessReading::Nothing, None) => GenerationChoice::New,
    }
}

/// Removes what is not the chosen generation: what was not finished, or was left when its successor was. What cannot be
/// removed takes room and does no other harm.
pub(super) fn sweep(path: &Path, chosen: u64) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let other = name.strip_prefix(PREFIX).is_some_and(|number| number.parse() != Ok(chosen));
        let snapshot = name.starts_with("snap.") || name.starts_with("damaged.snap.");
        if !other && !snapshot && !SLED.contains(&name) {
            continue;
        }
        let is_folder = entry.file_type()?.is_dir();
        let removed = if is_folder { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
        if let Err(error) = removed {
            tracing::warn!(%error, path = %entry.path().display(), "cannot remove what is left of an earlier database");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::journal::JournalMark;
    use super::super::witness::Statement;
    use super::*;

    #[test]
    fn what_is_opened() {
        let of = |generation| WitnessReading::This(Statement { generation, mark: JournalMark::default(), revision: 1 });
        let table: [(WitnessReading, &[u64], bool, bool, GenerationChoice); 12] = [
            (WitnessReading::Nothing, &[], false, false, GenerationChoice::New),
            (WitnessReading::Nothing, &[], false, true, GenerationChoice::Gone),
            (WitnessReading::Unreadable, &[], false, false, GenerationChoice::Gone),
            (of(1), &[], false, true, GenerationChoice::Gone),
            (of(1), &[2], false, true, GenerationChoice::Gone),
            (of(1), &[1], false, true, GenerationChoice::Generation(1)),
            (of(1), &[1, 2], false, true, GenerationChoice::Generation(1)),
            // Taken over, and the old files not yet removed.
            (of(1), &[1], true, true, GenerationChoice::Generation(1)),
            (WitnessReading::Nothing, &[], true, true, GenerationChoice::OldLayout),
            (WitnessReading::Nothing, &[1], true, true, GenerationChoice::OldLayout),
            (WitnessReading::Nothing, &[1], false, true, GenerationChoice::Newest(1)),
            (WitnessReading::Unreadable, &[4, 5], false, true, GenerationChoice::Newest(5)),
        ];
        for (said, generations, old_layout, used, expected) in table {
            let found = FolderContents { generations: generations.to_vec(), old_layout };
            assert_eq!(choose(said, &found, used), expected, "{said:?} {found:?} {used}");
        }
    }

    #[test]
    fn only_the_chosen_one_stays() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path();
        for name in ["generation-1", "generation-12", "generation-13", "generation-x", "blobs"] {
            fs::create_dir(path.join(name)).unwrap();
        }
        for generation in [1, 12] {
            fs::write(folder(path, generation).join(BASE), "").unwrap();
        }
        for name in ["db", "conf", "snap.00", "damaged.snap.00", "lock", "witness", "ballast", "mine"] {
            fs::write(path.join(name), "").unwrap();
        }
        assert_eq!(find(path).unwrap(), FolderContents { generations: vec![1, 12], old_layout: true });
        sweep(path, 12).unwrap();
        assert_eq!(find(path).unwrap(), FolderContents { generations: vec![12], old_layout: false });
        let mut left: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["ballast", "generation-12", "lock", "mine", "witness"]);
    }
}
