//! The base: everything that was in the store at one moment, in a plain file that is written once and never changed.
//!
//! File: `slipbase`, format (8 bytes, big-endian), all entries as frames (`frames.rs`), their end, and a digest of all
//! bytes before it (8 bytes, big-endian). The digest is SipHash-1-3 (Aumasson and Bernstein, 2012) with a key of zeros: it
//! finds accidents, and who can write the file can write the digest, too.

use std::fs::{File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use bytes::Bytes;
use siphasher::sip::SipHasher13;

use super::files::OpenRefusal;
use super::frames::{self, FrameError, FrameWriter};

const MAGIC: &[u8; 8] = b"slipbase";

/// Format that this version writes. Format 1 had no base.
const FORMAT: u64 = 2;

/// Bytes that are read or written at once.
const BUFFER: usize = 1 << 18;

/// Passes bytes on and adds them to a digest.
struct Digesting<T> {
    inner: T,
    digest: SipHasher13,
    bytes: u64,
}

impl<T> Digesting<T> {
    fn new(inner: T) -> Self {
        Self { inner, digest: SipHasher13::new(), bytes: 0 }
    }
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.digest.write(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<R: Read> Read for Digesting<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.digest.write(&bytes[..read]);
        Ok(read)
    }
}

/// What is known of a base that was written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Base {
    /// Digest of all of it.
    pub digest: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

/// A base that is being written.
pub(super) struct BaseWriter {
    frames: FrameWriter<Digesting<BufWriter<File>>>,
}

impl BaseWriter {
    /// Makes the file; what was there under this name is no more.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let mut out = Digesting::new(BufWriter::with_capacity(BUFFER, file));
        out.write_all(MAGIC)?;
        out.write_all(&FORMAT.to_be_bytes())?;
        Ok(Self { frames: FrameWriter::new(out) })
    }

    /// Adds an entry. There must be only one of its tree and key.
    pub fn entry(&mut self, tree: &str, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.frames.entry(tree, key, Some(value))
    }

    /// Bytes that were written so far.
    pub fn bytes(&self) -> u64 {
        self.frames.out().bytes
    }

    /// Has on disk what was written so far.
    pub fn sync(&mut self) -> io::Result<()> {
        let out = self.frames.out_mut();
        out.flush()?;
        out.inner.get_ref().sync_data()
    }

    /// Ends the file; its content is on disk when this returns, its name is the caller's care.
    pub fn finish(self) -> io::Result<Base> {
        let mut out = self.frames.end()?;
        let digest = out.digest.finish();
        out.write_all(&digest.to_be_bytes())?;
        let bytes = out.bytes;
        out.inner.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        Ok(Base { digest, bytes })
    }
}

/// Reads a base; each entry goes to `visit` (tree, key, value). What was visited counts only when all could be read.
pub(super) fn read(
    path: &Path,
    mut visit: impl FnMut(&str, Vec<u8>, Bytes) -> Result<(), String>,
) -> Result<Base, OpenRefusal> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err("its base is gone".into()),
        Err(error) => return Err(OpenRefusal::io("open its base", &error)),
    };
    let bytes = file.metadata().map_err(|error| OpenRefusal::io("look at its base", &error))?.len();
    let mut input = Digesting::new(BufReader::with_capacity(BUFFER, file));
    let mut header = [0; 16];
    read_exact(&mut input, &mut header)?;
    let (magic, format) = header.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err("its base is not one".into());
    }
    let format = format.try_into().map_or(0, u64::from_be_bytes);
    if format != FORMAT {
        return Err(other_format(input, bytes, format));
    }
    frames::read(&mut input, |tree, key, value| match value {
        Some(value) => visit(tree, key, value),
        None => Err("its base removes something".to_owned()),
    })
    .map_err(|error| match error {
        FrameError::Read(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            OpenRefusal::io("read its base", &error)
        }
        FrameError::Read(_) => "its base is cut short".into(),
        error => OpenRefusal::Damaged(format!("its base cannot be read: {error}")),
    })?;
    let digest = input.digest.finish();
    let mut said = [0; 8];
    read_exact(&mut input, &mut said)?;
    if u64::from_be_bytes(said) != digest {
        return Err("its base is not what was written".into());
    }
    let mut more = [0];
    match input.read(&mut more) {
        Ok(0) => Ok(Base { digest, bytes }),
        Ok(_) => Err("its base goes on after its end".into()),
        Err(error) => Err(OpenRefusal::io("read its base", &error)),
    }
}

fn read_exact(input: &mut impl Read, bytes: &mut [u8]) -> Result<(), OpenRefusal> {
    input.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => "its base is cut short".into(),
        _ => OpenRefusal::io("read its base", &error),
    })
}

/// Whether a newer version wrote it, or the number is damaged: every format ends with the digest.
fn other_format(mut input: Digesting<BufReader<File>>, bytes: u64, format: u64) -> OpenRefusal {
    let rest = bytes.saturating_sub(MAGIC.len() as u64 + 8 + 8);
    let whole = io::copy(&mut (&mut input).take(rest), &mut io::sink()).is_ok();
    let digest = input.digest.finish();
    let mut said = [0; 8];
    if whole && input.read_exact(&mut said).is_ok() && u64::from_be_bytes(said) == digest {
        OpenRefusal::Other(format!("its format is {format} and this version knows {FORMAT}; use a newer slipway"))
    } else {
        "its base is not what was written".into()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn reason(path: &Path) -> String {
        match read(path, |_, _, _| Ok(())).unwrap_err() {
            OpenRefusal::Damaged(reason) => reason,
            OpenRefusal::Other(reason) => format!("other: {reason}"),
        }
    }

    #[test]
    fn no_damage_of_a_base_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("base");
        assert_eq!(reason(&path), "its base is gone");
        let mut writer = BaseWriter::create(&path).unwrap();
        writer.entry("meta", b"a", b"1").unwrap();
        writer.entry("log", b"b", &[3; 300]).unwrap();
        let written = writer.finish().unwrap();
        let mut found = Vec::new();
        let read = read(&path, |tree, key, value| {
            found.push(format!("{tree} {} {}", key.escape_ascii(), value.len()));
            Ok(())
        });
        assert_eq!(read.unwrap(), written);
        assert_eq!(found, ["meta a 1", "log b 300"]);
        let whole = fs::read(&path).unwrap();
        assert_eq!(written.bytes, whole.len() as u64);
        for at in 0..whole.len() {
            fs::write(&path, &whole[..at]).unwrap();
            assert!(!reason(&path).starts_with("other"), "cut to {at}");
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            assert!(!reason(&path).starts_with("other"), "byte {at}");
        }
        fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
        assert_eq!(reason(&path), "its base goes on after its end");
    }

    #[test]
    fn a_newer_format_is_no_damage() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("base");
        let mut text = [MAGIC.as_slice(), &3_u64.to_be_bytes(), b"something else"].concat();
        let mut digest = SipHasher13::new();
        digest.write(&text);
        text.extend_from_slice(&digest.finish().to_be_bytes());
        fs::write(&path, text).unwrap();
        assert_eq!(reason(&path), "other: its format is 3 and this version knows 2; use a newer slipway");
    }
}
