//! The file of the audit log, and the task that writes it.

use std::borrow::Cow;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::AuditOptions;
use super::queue::{AuditLine, AuditMessage};
use super::room::{AuditRoom, RING};

/// Lines written at once.
const BATCH: usize = 512;
/// Time between two writes, in which lines come that are written together: each write wakes another thread.
const GATHER: Duration = Duration::from_millis(10);
/// Time between two syncs.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Time to the next try after the disk refused.
const RETRY: Duration = Duration::from_secs(1);

/// The writer: takes lines until it is told to end, those beyond their writers' shares into a log of their own. It gives up
/// no line while it lives.
pub(super) async fn write(
    mut log: AuditFile,
    mut busy: AuditFile,
    room: AuditRoom,
    mut lines: mpsc::Receiver<AuditMessage>,
) {
    let mut batch = Vec::with_capacity(BATCH);
    let mut sync_at: Option<Instant> = None;
    let mut next_write = Instant::now();
    loop {
        let due = sync_at.unwrap_or_else(|| Instant::now() + SYNC_EVERY);
        tokio::select! {
            count = lines.recv_many(&mut batch, BATCH) => if count == 0 {
                // Every door is gone.
                blocking(log, AuditFile::sync).await;
                blocking(busy, AuditFile::sync).await;
                return;
            },
            () = tokio::time::sleep_until(due), if sync_at.is_some() => {
                log = blocking(log, AuditFile::sync).await;
                busy = blocking(busy, AuditFile::sync).await;
                sync_at = None;
                continue;
            }
        }
        if batch.len() < BATCH {
            tokio::time::sleep_until(next_write).await;
            while batch.len() < BATCH
                && let Ok(message) = lines.try_recv()
            {
                batch.push(message);
            }
        }
        let (mut lines_taken, mut closing) = (Vec::with_capacity(batch.len()), Vec::new());
        for message in batch.drain(..) {
            match message {
                AuditMessage::Line(line) => lines_taken.push(line),
                AuditMessage::Close(reply) => closing.push(reply),
            }
        }
        if !closing.is_empty() {
            // Places that were taken before are still served.
            lines.close();
            while let Ok(message) = lines.try_recv() {
                if let AuditMessage::Line(line) = message {
                    lines_taken.push(line);
                }
            }
        }
        let text_of = |is_beyond: bool| -> Vec<u8> {
            let lines = lines_taken.iter().filter(|line| line.is_beyond == is_beyond);
            lines.flat_map(|AuditLine { text, .. }| text.iter().copied()).collect()
        };
        let (text, beyond) = (text_of(false), text_of(true));
        let looks = room.clone();
        log = blocking(log, move |log| {
            looks.look();
            log.write(&text)?;
            log.held = looks.reserve(&log.file, log.size, log.held);
            Ok(())
        })
        .await;
        let is_little = room.is_little();
        if !beyond.is_empty() {
            busy = blocking(busy, move |log| log.write_beyond(&beyond, is_little)).await;
        }
        // Only now may their callers have others in their places.
        drop(lines_taken);
        next_write = Instant::now() + GATHER;
        sync_at.get_or_insert_with(|| Instant::now() + SYNC_EVERY);
        if !closing.is_empty() {
            log = blocking(log, AuditFile::sync).await;
            busy = blocking(busy, AuditFile::sync).await;
            for reply in closing {
                reply.send(()).ok();
            }
            sync_at = None;
        }
    }
}

/// Does something to the log where it may block, again and again until the disk lets it.
async fn blocking(mut log: AuditFile, work: impl Fn(&mut AuditFile) -> io::Result<()> + Send + 'static) -> AuditFile {
    let mut work = work;
    loop {
        let done = tokio::task::spawn_blocking(move || {
            let result = work(&mut log);
            (log, work, result)
        });
        match done.await {
            Ok((back, again, result)) => {
                (log, work) = (back, again);
                match result {
                    Ok(()) => return log,
                    Err(error) => {
                        tracing::error!(%error, file = %log.options.path.display(), "the audit log cannot be written")
                    }
                }
            }
            // Only a runtime that is being torn down or a panic gets here; nothing can be written any more.
            Err(_) => return std::future::pending().await,
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// The file.
pub(super) struct AuditFile {
    options: AuditOptions,
    file: File,
    size: u64,
    /// Whether the file ends with a line that was cut short, which the next write ends.
    is_cut: bool,
    /// Whether lines were written since it was synced.
    is_dirty: bool,
    /// Up to where blocks of the file are its own.
    held: u64,
}

impl AuditFile {
    pub(super) fn open(options: AuditOptions) -> io::Result<Self> {
        if let Some(folder) = options.path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let (file, size, is_cut) = open(&options.path)?;
        Ok(Self { options, file, size, is_cut, is_dirty: false, held: 0 })
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        if self.size > 0 && self.size + text.len() as u64 > self.options.max_bytes {
            self.set_aside()?;
        }
        let text = if self.is_cut { Cow::from([b"\n", text].concat()) } else { Cow::from(text) };
        match self.file.write_all(&text) {
            Ok(()) => {
                self.size += text.len() as u64;
                self.is_cut = false;
                self.is_dirty = true;
                Ok(())
            }
            Err(error) => {
                // What was written in part is taken back, so that the next try writes it whole. With it goes what was reserved.
                self.file.set_len(self.size)?;
                self.held = self.size;
                Err(error)
            }
        }
    }

    /// Writes lines that are beyond their callers' shares. While the disk has little room, they are a ring: each roll away only
    /// earlier ones of their kind, and when the disk has none at all, the last ones go at once.
    fn write_beyond(&mut self, text: &[u8], is_little: bool) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        if is_little {
            self.remove_older()?;
            if self.size + text.len() as u64 > RING {
                self.file.set_len(0)?;
                (self.size, self.is_cut) = (0, false);
            }
        }
        match self.write(text) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                let bytes = text.len();
                tracing::error!(%error, bytes, "lines of callers who write much to the audit log are lost: its disk is full");
                Ok(())
            }
            written => written,
        }
    }

    fn remove_older(&self) -> io::Result<()> {
        for number in 1..=self.options.max_files {
            match fs::remove_file(self.at(number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// The path of the file that was set aside so many files ago.
    fn at(&self, number: usize) -> PathBuf {
        let mut name = self.options.path.clone().into_os_string();
        if number > 0 {
            name.push(format!(".{number}"));
        }
        PathBuf::from(name)
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.is_dirty {
            self.file.sync_data()?;
            self.is_dirty = false;
        }
        Ok(())
    }

    /// `audit.log` becomes `audit.log.1`, and so on; the oldest goes.
    fn set_aside(&mut self) -> io::Result<()> {
        self.sync()?;
        // What is reserved is the next file's.
        self.file.set_len(self.size)?;
        let path = &self.options.path;
        for number in (0..self.options.max_files).rev() {
            match fs::rename(self.at(number), self.at(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.options.max_files == 0 {
            fs::remove_file(path)?;
        }
        (self.file, self.size, self.is_cut) = open(path)?;
        self.held = 0;
        Ok(())
    }
}

/// Opens a file to write at its end, with its size, and whether a crash cut its last line short. That is ended with the
/// next write: a full disk has no room for the end of a line, and is no reason not to start.
fn open(path: &Path) -> io::Result<(File, u64, bool)> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    let size = file.seek(SeekFrom::End(0))?;
    let mut last = *b"\n";
    if size > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok((file, size, last != *b"\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(folder: &Path, max_bytes: u64) -> AuditOptions {
        AuditOptions { path: folder.join("logs/audit.log"), max_bytes, max_files: 2 }
    }

    #[test]
    fn files_are_set_aside_by_size_and_the_oldest_goes() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = AuditFile::open(options(folder.path(), 10)).unwrap();
        for line in ["one\n", "two\n", "three\n", "four\n", "five six\n", "seven\n"] {
            log.write(line.as_bytes()).unwrap();
        }
        let read = |name: &str| fs::read_to_string(folder.path().join("logs").join(name)).ok();
        assert_eq!(read("audit.log").as_deref(), Some("seven\n"));
        assert_eq!(read("audit.log.1").as_deref(), Some("five six\n"));
        assert_eq!(read("audit.log.2").as_deref(), Some("four\n"));
        assert_eq!(read("audit.log.3"), None);
    }

    #[test]
    fn lines_beyond_a_share_are_a_ring_while_there_is_little_room() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = AuditFile::open(options(folder.path(), 2 * RING)).unwrap();
        let line = |letter: u8| [vec![letter; RING as usize / 2 - 1], vec![b'\n']].concat();
        for letter in *b"abcdef" {
            log.write_beyond(&line(letter), false).unwrap();
        }
        let files = || fs::read_dir(folder.path().join("logs")).unwrap().count();
        let first = || fs::read(folder.path().join("logs/audit.log")).unwrap()[0];
        assert_eq!((files(), first()), (2, b'e'));
        for (letter, oldest) in [(b'g', b'g'), (b'h', b'g'), (b'i', b'i')] {
            log.write_beyond(&line(letter), true).unwrap();
            assert_eq!((files(), first()), (1, oldest), "{letter}");
        }
        assert_eq!(fs::metadata(folder.path().join("logs/audit.log")).unwrap().len(), RING / 2);
    }

    #[test]
    fn a_line_cut_short_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        fs::write(&path, "whole\ncut").unwrap();
        let mut log = AuditFile::open(AuditOptions { path: path.clone(), max_bytes: 100, max_files: 1 }).unwrap();
        log.write(b"next\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole\ncut\nnext\n");
        assert_eq!(log.size, 15);
    }
}
