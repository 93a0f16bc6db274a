//! What nodes logged: one file for each boot, bounded in size and number, gone with its host.
//!
//! `<folder>/<namespace>/<host>/<generation>.log`. Kept apart from the objects: a log is not worth a revision.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Bytes of one boot. What comes first goes first: a failure is at the end.
const BOOT_BYTES: u64 = 1 << 20;
/// Bytes that are left of a log that has become too long.
const KEPT_BYTES: u64 = BOOT_BYTES / 2;
/// Boots kept for each host.
const BOOTS: usize = 10;
/// Bytes of all boots of a host.
const HOST_BYTES: u64 = 4 << 20;
/// Stands where earlier lines were.
const LEFT_OUT: &str = "[earlier lines are left out]\n";

/// The logs of all hosts. Cheap to clone. Every call touches the disk: none is for an async task.
#[derive(Clone, Debug)]
pub struct Logs {
    folder: PathBuf,
}

/// One boot of which there is a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Boot {
    /// Generation of the boot intent.
    pub generation: i64,
    /// Bytes.
    pub size: u64,
}

impl Logs {
    /// Logs below this folder; it is made when it is needed.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
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
        for boot in self.boots(namespace, name)?.iter().filter(|boot| boot.generation >= generation) {
            fs::remove_file(file(&folder, boot.generation))?;
        }
        Ok(())
    }

    /// Adds to the log of a boot, and drops boots that are too many.
    ///
    /// # Errors
    ///
    /// What the file system says.
    pub fn append(&self, namespace: &str, name: &str, generation: i64, text: &[u8]) -> io::Result<()> {
        let folder = self.of(namespace, name)?;
        fs::create_dir_all(&folder)?;
        let path = file(&folder, generation);
        let mut log = OpenOptions::new().create(true).append(true).open(&path)?;
        log.write_all(text)?;
        if log.metadata()?.len() > BOOT_BYTES {
            shorten(&path)?;
        }
        self.prune(namespace, name, &folder)
    }

    fn prune(&self, namespace: &str, name: &str, folder: &Path) -> io::Result<()> {
        let mut room = HOST_BYTES;
        for (number, boot) in self.boots(namespace, name)?.iter().enumerate() {
            // The newest stays whatever its size.
            if number > 0 && (number >= BOOTS || boot.size > room) {
                fs::remove_file(file(folder, boot.generation))?;
            }
            room = room.saturating_sub(boot.size);
        }
        Ok(())
    }

    /// The boots of a host, the newest first.
    ///
    /// # Errors
    ///
    /// What the file system says; a host without a log has no boots.
    pub fn boots(&self, namespace: &str, name: &str) -> io::Result<Vec<Boot>> {
        let entries = match fs::read_dir(self.of(namespace, name)?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut boots = Vec::new();
        for entry in entries {
            let entry = entry?;
            let file = entry.file_name();
            let generation = file.to_str().and_then(|file| file.strip_suffix(".log")).and_then(|it| it.parse().ok());
            if let Some(generation) = generation {
                boots.push(Boot { generation, size: entry.metadata()?.len() });
            }
        }
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
        match fs::remove_dir_all(self.of(namespace, name)?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
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

/// Leaves the last half of a log, in a file that takes its place at once.
fn shorten(path: &Path) -> io::Result<()> {
    let mut log = File::open(path)?;
    log.seek(SeekFrom::End(-(KEPT_BYTES as i64)))?;
    let mut text = Vec::new();
    log.read_to_end(&mut text)?;
    let whole = text.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(LEFT_OUT.as_bytes())?;
    file.write_all(&text[whole..])?;
    fs::rename(&new, path)
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
