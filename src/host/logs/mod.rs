//! Log files of the agents.
//!
//! What nodes logged: one file for each boot, bounded in size and number, gone with its host. All together have a room that
//! namespaces share ([`quota`]).
//!
//! `<folder>/<namespace>/<host>/<generation>.log`. Kept apart from the objects: a log is not worth a revision.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

pub mod endpoint;
mod quota;
pub mod retention;

use quota::{LogKey, Quota};

use crate::disk_space::DiskSpace;

/// Bytes of one boot. What comes first goes first: a failure is at the end.
const BOOT_BYTES: u64 = 1 << 20;
/// Bytes that are left of a log that has become too long.
const KEPT_BYTES: u64 = BOOT_BYTES / 2;
/// Boots kept for each host.
const BOOTS: usize = 10;
/// Bytes of all boots of a host.
const HOST_BYTES: u64 = 4 << 20;
/// Bytes of all hosts' logs, with 8 KiB for each log; of a small file system a sixteenth.
const ALL_BYTES: u64 = 512 << 20;
const PART_OF_THE_DISK: u64 = 16;
/// Bytes that stay free in the file system: others need them more than logs do.
const LEFT_FREE: u64 = 64 << 20;
/// Inodes that the logs leave, each being a file; of a small file system a sixteenth.
const INODES_RESERVE: u64 = 8192;
/// Stands where earlier lines were.
const LEFT_OUT: &str = "[earlier lines are left out]\n";

/// The logs of all hosts. Cheap to clone. Every call touches the disk: none is for an async task.
#[derive(Clone, Debug)]
pub struct Logs {
    folder: PathBuf,
    // std's locks: held for a look.
    room: Arc<OnceLock<Mutex<Quota>>>,
    /// Hosts whose logs are written now: one writer at a time for each.
    writers: Arc<Mutex<HashMap<PathBuf, Arc<Mutex<()>>>>>,
}

/// One boot of which there is a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoggedBoot {
    /// Generation of the boot intent.
    pub generation: i64,
    /// Bytes.
    pub size: u64,
}

impl Logs {
    /// Logs below this folder; it is made when it is needed.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, room: Arc::default(), writers: Arc::default() }
    }

    /// The room, which is measured once: nobody else writes there.
    fn room(&self) -> MutexGuard<'_, Quota> {
        let room = self.room.get_or_init(|| Mutex::new(measured(&self.folder)));
        room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the files of a host while nobody else does.
    fn alone<T>(&self, folder: &Path, work: impl FnOnce() -> T) -> T {
        let writers = || self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        let writer = writers().entry(folder.to_owned()).or_default().clone();
        let done = {
            let _alone = writer.lock().unwrap_or_else(PoisonError::into_inner);
            work()
        };
        let mut writers = writers();
        // Two have it: the map and this one.
        if Arc::strong_count(&writer) == 2 {
            writers.remove(folder);
        }
        done
    }

    /// Names come from the API, which lets no `/` in; this is where that must hold.
    fn of(&self, namespace: &str, name: &str) -> io::Result<PathBuf> {
        let plain = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains(['/', '\0']);
        if !plain(namespace) || !plain(name) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the name of a host"));
        }
        Ok(self.folder.join(namespace).join(name))
    }

    /// A boot begins: what is there of it, or of later ones, is another host's that had this name.
    ///
    /// # Errors
    ///
    /// What the file system says.
    pub fn begin(&self, namespace: &str, name: &str, generation: i64) -> io::Result<()> {
        let folder = self.of(namespace, name)?;
        self.alone(&folder, || {
            for boot in self.boots(namespace, name)?.iter().filter(|boot| boot.generation >= generation) {
                self.remove(&log(namespace, name, boot.generation))?;
            }
            Ok(())
        })
    }

    /// Adds to the log of a boot, and drops boots that are too many, here and elsewhere.
    ///
    /// # Errors
    ///
    /// What the file system says; or it has hardly any room left.
    pub fn append(&self, namespace: &str, name: &str, generation: i64, text: &[u8]) -> io::Result<()> {
        let (folder, log) = (self.of(namespace, name)?, log(namespace, name, generation));
        let free = |folder| space(folder).map(|(free, _)| free);
        if free(&self.folder).is_some_and(|free| free < LEFT_FREE) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the disk is nearly full"));
        }
        self.alone(&folder, || {
            fs::create_dir_all(&folder)?;
            let path = file(&folder, generation);
            let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
            let written = file.write_all(text).and_then(|()| file.metadata());
            let mut size = written.as_ref().map_or(BOOT_BYTES, fs::Metadata::len);
            if size > BOOT_BYTES {
                size = shorten(&path)?;
            }
            self.room().put(&log, size);
            written.map(drop)?;
            self.prune(namespace, name)
        })?;
        // Beyond the lock of this host: another one's log may go.
        loop {
            let Some(other) = self.room().surplus(&log) else { return Ok(()) };
            self.alone(&self.of(&other.namespace, &other.host)?, || self.remove(&other))?;
        }
    }

    fn remove(&self, log: &LogKey) -> io::Result<()> {
        // Whatever becomes of the file: what cannot be removed is not tried for ever.
        self.room().remove(log);
        match fs::remove_file(file(&self.of(&log.namespace, &log.host)?, log.generation)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn prune(&self, namespace: &str, name: &str) -> io::Result<()> {
        let (boots, mut room) = (self.room().of(namespace, name), HOST_BYTES);
        for (number, (generation, size)) in boots.into_iter().enumerate() {
            // The newest stays whatever its size.
            if number > 0 && (number >= BOOTS || size > room) {
                self.remove(&log(namespace, name, generation))?;
            }
            room = room.saturating_sub(size);
        }
        Ok(())
    }

    /// The boots of a host, the newest first.
    ///
    /// # Errors
    ///
    /// What the file system says; a host without a log has no boots.
    pub fn boots(&self, namespace: &str, name: &str) -> io::Result<Vec<LoggedBoot>> {
        let mut boots: Vec<LoggedBoot> = boots(&self.of(namespace, name)?)?.into_iter().map(|(boot, _)| boot).collect();
        boots.sort_by(|one, other| other.cmp(one));
        Ok(boots)
    }

    /// A log from a byte on, at most [`BOOT_BYTES`] and a little; where it began again when it was cut meanwhile. `None`
    /// when there is none.
    ///
    /// # Errors
    ///
    /// What the file system says.
    pub fn read(&self, namespace: &str, name: &str, generation: i64, from: u64) -> io::Result<Option<(u64, Vec<u8>)>> {
        let mut log = match File::open(file(&self.of(namespace, name)?, generation)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            log => log?,
        };
        // Shorter than it was: it has been cut, and what follows is from its new beginning.
        let from = if from > log.metadata()?.len() { 0 } else { from };
        log.seek(SeekFrom::Start(from))?;
        let mut text = Vec::new();
        log.take(2 * BOOT_BYTES).read_to_end(&mut text)?;
        Ok(Some((from, text)))
    }

    /// Removes all logs of a host.
    ///
    /// # Errors
    ///
    /// What the file system says; a host without logs is none.
    pub fn forget(&self, namespace: &str, name: &str) -> io::Result<()> {
        let folder = self.of(namespace, name)?;
        self.alone(&folder, || {
            let removed = fs::remove_dir_all(&folder);
            let mut room = self.room();
            for (generation, _) in room.of(namespace, name) {
                room.remove(&log(namespace, name, generation));
            }
            match removed {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            }
        })
    }

    /// Removes the logs of hosts that are not there any more.
    ///
    /// # Errors
    ///
    /// What the file system says.
    pub fn sweep(&self, is_host: impl Fn(&str, &str) -> bool) -> io::Result<()> {
        for (namespace, folder) in folders(&self.folder)? {
            for (name, _) in folders(&folder)? {
                if !is_host(&namespace, &name) {
                    self.forget(&namespace, &name)?;
                }
            }
        }
        Ok(())
    }
}

fn log(namespace: &str, host: &str, generation: i64) -> LogKey {
    LogKey { namespace: namespace.to_owned(), host: host.to_owned(), generation }
}

/// Bytes of the file system that are free, and all of them.
fn space(folder: &Path) -> Option<(u64, u64)> {
    // The folder may not be there yet.
    let there = folder.ancestors().find(|folder| folder.exists())?;
    let found = DiskSpace::at(there).ok()?;
    // Each log is a file: without inodes there is no room either.
    let few = found.inodes > 0 && found.free_inodes < INODES_RESERVE.min(found.inodes / 16);
    Some((if few { 0 } else { found.free }, found.size))
}

/// The room with what is there. What cannot be read is left out.
fn measured(folder: &Path) -> Quota {
    let of_disk = space(folder).map_or(u64::MAX, |(_, all)| all / PART_OF_THE_DISK);
    let mut room = Quota::new(ALL_BYTES.min(of_disk));
    let mut found: Vec<(SystemTime, LogKey, u64)> = Vec::new();
    for (namespace, of_namespace) in folders(folder).unwrap_or_default() {
        for (host, of_host) in folders(&of_namespace).unwrap_or_default() {
            for (boot, modified) in boots(&of_host).unwrap_or_default() {
                found.push((modified, log(&namespace, &host, boot.generation), boot.size));
            }
        }
    }
    found.sort_by_key(|(modified, ..)| *modified);
    found.iter().for_each(|(_, log, size)| room.put(log, *size));
    room
}

/// The boots in the folder of a host, with the time of the last addition.
fn boots(folder: &Path) -> io::Result<Vec<(LoggedBoot, SystemTime)>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut boots = Vec::new();
    for entry in entries {
        let entry = entry?;
        let file = entry.file_name();
        let generation = file.to_str().and_then(|file| file.strip_suffix(".log")).and_then(|it| it.parse().ok());
        let Some(generation) = generation else { continue };
        match entry.metadata() {
            Ok(meta) => {
                let modified = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                boots.push((LoggedBoot { generation, size: meta.len() }, modified));
            }
            // It has just gone.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(boots)
}

fn folders(path: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if let (true, Ok(name)) = (entry.file_type()?.is_dir(), entry.file_name().into_string()) {
            found.push((name, entry.path()));
        }
    }
    Ok(found)
}

fn file(folder: &Path, generation: i64) -> PathBuf {
    folder.join(format!("{generation}.log"))
}

/// Leaves the last half of a log, in a file that takes its place at once. Returns its size.
fn shorten(path: &Path) -> io::Result<u64> {
    let mut log = File::open(path)?;
    log.seek(SeekFrom::End(-(KEPT_BYTES as i64)))?;
    let mut text = Vec::new();
    log.read_to_end(&mut text)?;
    let whole = text.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(LEFT_OUT.as_bytes())?;
    file.write_all(&text[whole..])?;
    fs::rename(&new, path)?;
    Ok((LEFT_OUT.len() + text.len() - whole) as u64)
}

/// The last `count` lines.
pub fn tail(text: &[u8], count: usize) -> &[u8] {
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let mut starts = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    match count.checked_sub(1) {
        None => &[],
        Some(before) => &text[starts.nth(before).unwrap_or(0)..],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_bounded_by_boot_and_by_host_and_go_with_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let logs = Logs::new(folder.path().join("logs"));
        assert_eq!(logs.boots("ns", "h").expect("read"), []);
        let line = [vec![b'x'; 999], vec![b'\n']].concat();
        for number in 0..1500 {
            logs.append("ns", "h", 1, &line).expect("written");
            assert!(logs.boots("ns", "h").expect("read")[0].size <= BOOT_BYTES + 1000, "{number}");
        }
        logs.append("ns", "h", 1, b"the end\n").expect("written");
        let (_, text) = logs.read("ns", "h", 1, 0).expect("read").expect("there");
        assert!(text.starts_with(LEFT_OUT.as_bytes()) && text.ends_with(b"the end\n"));
        for generation in 2..=30 {
            logs.append("ns", "h", generation, b"short\n").expect("written");
        }
        let boots = logs.boots("ns", "h").expect("read");
        assert_eq!((boots.len(), boots[0].generation, boots[9].generation), (BOOTS, 30, 21));
        for generation in 31..=35 {
            logs.append("ns", "h", generation, &vec![b'x'; 1 << 20]).expect("written");
        }
        let boots = logs.boots("ns", "h").expect("read");
        assert_eq!(boots.iter().map(|boot| boot.generation).collect::<Vec<_>>(), [35, 34, 33, 32]);
        // Another host of that name begins at the beginning.
        logs.begin("ns", "h", 1).expect("begun");
        assert_eq!(logs.boots("ns", "h").expect("read"), []);
        logs.append("ns", "h", 1, b"a\n").expect("written");
        logs.append("ns", "other", 1, b"b\n").expect("written");
        logs.sweep(|_, name| name == "h").expect("swept");
        assert!(logs.boots("ns", "other").expect("read").is_empty());
        logs.forget("ns", "h").expect("forgotten");
        logs.forget("ns", "h").expect("twice");
        assert!(logs.read("ns", "h", 1, 0).expect("read").is_none());
    }

    #[test]
    fn all_logs_have_a_room_which_is_measured_at_a_start_and_shared_by_namespaces() {
        let folder = tempfile::tempdir().expect("a folder");
        let small = |most| {
            let logs = Logs::new(folder.path().join("logs"));
            let mut room = measured(&logs.folder);
            room.limit(most);
            logs.room.set(Mutex::new(room)).expect("not measured yet");
            logs
        };
        let text = vec![b'x'; 100 << 10];
        let logs = small(1 << 20);
        logs.append("good", "h", 1, &text).expect("written");
        for host in 0..30 {
            logs.append("bad", &host.to_string(), 1, &text).expect("written");
        }
        let there = |logs: &Logs| -> Vec<usize> {
            (0..30).filter(|host| !logs.boots("bad", &host.to_string()).expect("read").is_empty()).collect()
        };
        let kept = there(&logs);
        assert!(kept.len() > 5 && kept.len() < 10 && kept[0] == 30 - kept.len(), "the last ones: {kept:?}");
        assert_eq!(logs.boots("good", "h").expect("read").len(), 1);
        // After a restart the same, and with less room fewer.
        let logs = small(512 << 10);
        logs.append("good", "h", 2, b"x\n").expect("written");
        assert!(there(&logs).len() < kept.len() && logs.room().total() <= 512 << 10);
        assert_eq!(logs.boots("good", "h").expect("read").len(), 2);
        for host in 0..30 {
            logs.forget("bad", &host.to_string()).expect("forgotten");
        }
        logs.forget("good", "h").expect("forgotten");
        assert!(logs.room().total() == 0 && logs.writers.lock().expect("no panic").is_empty());
    }

    #[test]
    fn two_who_add_at_once_lose_no_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let logs = Logs::new(folder.path().to_owned());
        let add = |who: u8| {
            let logs = logs.clone();
            std::thread::spawn(move || {
                for number in 0..300 {
                    let line = format!("{who} {number} {}\n", "x".repeat(4000));
                    logs.append("ns", "h", 1, line.as_bytes()).expect("written");
                }
            })
        };
        let threads: Vec<_> = (0..4).map(add).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let (_, text) = logs.read("ns", "h", 1, 0).expect("read").expect("there");
        let text = String::from_utf8(text).expect("text");
        let lines: Vec<_> = text.lines().skip(1).collect();
        assert!(lines.len() > 100 && lines.iter().all(|line| line.len() > 4000));
        for who in 0..4 {
            let mine = lines.iter().filter_map(|line| line.strip_prefix(&format!("{who} ")));
            let numbers: Vec<u32> =
                mine.map(|line| line.split(' ').next().unwrap().parse().expect("a number")).collect();
            assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
        }
    }

    #[test]
    fn no_name_leads_out_of_the_folder_and_a_cut_log_is_read_from_its_beginning() {
        let folder = tempfile::tempdir().expect("a folder");
        let logs = Logs::new(folder.path().to_owned());
        for (namespace, name) in [("..", "h"), ("ns", ".."), ("", "h"), ("ns", ""), ("a/b", "h"), ("ns", "/etc")] {
            assert!(logs.append(namespace, name, 1, b"x").is_err() && logs.forget(namespace, name).is_err());
        }
        logs.append("ns", "h", 1, b"one\ntwo\n").expect("written");
        assert_eq!(logs.read("ns", "h", 1, 4).expect("read"), Some((4, b"two\n".to_vec())));
        assert_eq!(logs.read("ns", "h", 1, 99).expect("read"), Some((0, b"one\ntwo\n".to_vec())));
    }

    #[test]
    fn the_last_lines() {
        let text = b"one\ntwo\nthree\n";
        for (count, wanted) in
            [(0, ""), (1, "three\n"), (2, "two\nthree\n"), (3, "one\ntwo\nthree\n"), (9, "one\ntwo\nthree\n")]
        {
            assert_eq!(tail(text, count), wanted.as_bytes(), "{count}");
        }
        assert_eq!(tail(b"", 1), b"");
        assert_eq!(tail(b"a\nb", 1), b"b");
    }
}
