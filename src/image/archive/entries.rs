//! A tar file from somebody, read once from its start.
//!
//! Files only: folders are passed over, a link must name a file of the same archive, and everything else is refused. Long names
//! and extended headers are read here and not by the library, which reads as much of them as an archive says that there is.

use std::collections::BTreeMap;
use std::io::{self, Read};

use sha2::{Digest, Sha256};
use tar::{EntryType, PaxExtensions};

use super::super::hex;
use super::{ArchiveFault, ArchivedFile, shown};
use crate::protocol::CHUNK_SIZE;

/// Most files of an archive, links counted.
pub(super) const FILES_MAX: usize = 1 << 14;
/// Most headers of an archive: folders and long names have some of their own.
const HEADERS_MAX: usize = 4 * FILES_MAX;
/// Longest path, in bytes, and its folders.
const PATH_MAX: usize = 512;
const FOLDERS_MAX: usize = 32;
/// Longest extended header, in bytes.
const EXTENDED_MAX: u64 = 64 << 10;
/// First bytes that are remembered of each file.
const HEAD: usize = 4;

/// A file of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::image) struct ArchiveMember {
    pub(in crate::image) offset: u64,
    pub(in crate::image) size: u64,
    pub(super) sha256: String,
    /// Its first bytes.
    pub(super) head: Vec<u8>,
}

impl ArchiveMember {
    pub(super) fn place(&self) -> ArchivedFile {
        ArchivedFile { offset: self.offset, size: self.size, sha256: self.sha256.clone() }
    }
}

/// What is in an archive.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::image) struct ArchiveMembers {
    /// By path.
    pub(super) files: BTreeMap<String, ArchiveMember>,
    /// Behind the last one.
    pub(in crate::image) end: u64,
}

/// Why an archive is not read on.
#[derive(Debug)]
pub(in crate::image) enum ArchiveError {
    /// What is in it.
    Fault(ArchiveFault),
    /// It is no tar file, is cut short, or cannot be read.
    Read(io::Error),
}

impl From<io::Error> for ArchiveError {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

impl From<ArchiveFault> for ArchiveError {
    fn from(fault: ArchiveFault) -> Self {
        Self::Fault(fault)
    }
}

fn refuse<T>(reason: impl Into<String>) -> Result<T, ArchiveError> {
    Err(ArchiveError::Fault(ArchiveFault(reason.into())))
}

/// The files of an archive, a chunk at a time.
pub(in crate::image) struct ArchiveReader<'a, R: Read> {
    entries: tar::Entries<'a, R>,
    open: Option<Open<'a, R>>,
    headers: usize,
    members: ArchiveMembers,
    /// Path, and the path of what it is a link to.
    links: Vec<(String, String)>,
}

/// The file that is being read.
struct Open<'a, R: Read> {
    entry: tar::Entry<'a, R>,
    path: String,
    offset: u64,
    size: u64,
    hash: Sha256,
    head: Vec<u8>,
}

/// What extended headers say of the entry that follows.
#[derive(Default)]
struct Extended {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

impl<'a, R: Read> ArchiveReader<'a, R> {
    pub(in crate::image) fn new(archive: &'a mut tar::Archive<R>) -> io::Result<Self> {
        let entries = archive.entries()?.raw(true);
        Ok(Self { entries, open: None, headers: 0, members: ArchiveMembers::default(), links: Vec::new() })
    }

    /// Fills the buffer, which comes empty, with the next bytes of a file; their offset in the image. `None` at the end.
    pub(in crate::image) fn next(&mut self, buffer: &mut Vec<u8>) -> Result<Option<u64>, ArchiveError> {
        loop {
            if self.open.is_none() {
                self.open = self.next_file()?;
            }
            let Some(open) = &mut self.open else { return Ok(None) };
            let offset = self.members.end;
            let wanted = CHUNK_SIZE.min(open.offset.saturating_add(open.size).saturating_sub(offset));
            let read = open.entry.by_ref().take(wanted).read_to_end(buffer)? as u64;
            if read < wanted {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a file in it is cut short").into());
            }
            open.hash.update(&buffer);
            open.head.extend(buffer.iter().take(HEAD - open.head.len()));
            self.members.end = offset + read;
            if self.members.end == open.offset.saturating_add(open.size) {
                let done = self.open.take();
                done.map(|done| self.close(done)).transpose()?;
            }
            if read > 0 {
                return Ok(Some(offset));
            }
        }
    }

    fn close(&mut self, done: Open<'a, R>) -> Result<(), ArchiveError> {
        let Open { path, offset, size, hash, head, .. } = done;
        let member = ArchiveMember { offset, size, sha256: hex(&hash.finalize()), head };
        self.add(path, member)
    }

    fn add(&mut self, path: String, member: ArchiveMember) -> Result<(), ArchiveError> {
        let same = |there: &ArchiveMember| there.sha256 == member.sha256;
        match self.members.files.get(&path) {
            None => _ = self.members.files.insert(path, member),
            Some(there) if same(there) => {}
            Some(_) => return refuse(format!("{} is in it twice, with two contents", shown(&path))),
        }
        Ok(())
    }

    /// What was in it, once it was read to its end.
    pub(in crate::image) fn finish(mut self) -> Result<ArchiveMembers, ArchiveError> {
        for (path, target) in std::mem::take(&mut self.links) {
            let Some(member) = self.members.files.get(&target).cloned() else {
                return refuse(format!(
                    "{} is a link to {}, which is no file in it: only links to files of the same archive are taken",
                    shown(&path),
                    shown(&target)
                ));
            };
            self.add(path, member)?;
        }
        Ok(self.members)
    }

    /// The next header that is of a file.
    fn next_file(&mut self) -> Result<Option<Open<'a, R>>, ArchiveError> {
        let mut extended = Extended::default();
        loop {
            let Some(entry) = self.entries.next() else { return Ok(None) };
            let mut entry = entry?;
            self.headers += 1;
            if self.headers > HEADERS_MAX || self.members.files.len() + self.links.len() >= FILES_MAX {
                return refuse(format!("it has more than {FILES_MAX} files"));
            }
            let kind = entry.header().entry_type();
            match kind {
                EntryType::GNULongName => extended.path = Some(text(&mut entry, PATH_MAX as u64 + 1)?),
                EntryType::GNULongLink => extended.link = Some(text(&mut entry, PATH_MAX as u64 + 1)?),
                EntryType::XHeader => extended.read(&text(&mut entry, EXTENDED_MAX)?)?,
                EntryType::XGlobalHeader => {
                    let mut global = Extended::default();
                    global.read(&text(&mut entry, EXTENDED_MAX)?)?;
                    if global.path.is_some() || global.link.is_some() || global.size.is_some() {
                        return refuse("a header for all of its files names one of them");
                    }
                }
                _ => {
                    let Extended { path, link, size } = std::mem::take(&mut extended);
                    let path = path.unwrap_or_else(|| entry.path_bytes().into_owned());
                    let link = link.or_else(|| entry.link_name_bytes().map(std::borrow::Cow::into_owned));
                    if let Some(open) = self.of_kind(kind, entry, &path, link.as_deref(), size)? {
                        return Ok(Some(open));
                    }
                }
            }
        }
    }

    fn of_kind(
        &mut self,
        kind: EntryType,
        entry: tar::Entry<'a, R>,
        path: &[u8],
        link: Option<&[u8]>,
        size: Option<u64>,
    ) -> Result<Option<Open<'a, R>>, ArchiveError> {
        let said = || shown(&String::from_utf8_lossy(path));
        // The library goes by the header alone.
        if size.is_some_and(|size| size != entry.size()) {
            return refuse(format!("{} has two sizes", said()));
        }
        match kind {
            EntryType::Directory => Ok(None),
            EntryType::Regular | EntryType::Continuous if path.ends_with(b"/") && entry.size() == 0 => Ok(None),
            EntryType::Regular | EntryType::Continuous => {
                let (path, offset, size) = (clean(path)?, self.members.end, entry.size());
                Ok(Some(Open { entry, path, offset, size, hash: Sha256::new(), head: Vec::new() }))
            }
            EntryType::Link | EntryType::Symlink => {
                let path = clean(path)?;
                let link = link.unwrap_or_default();
                let target = if kind == EntryType::Link { clean(link)? } else { beside(&path, link)? };
                self.links.push((path, target));
                Ok(None)
            }
            EntryType::GNUSparse => refuse(format!("{} is a sparse file: make the archive without --sparse", said())),
            _ => refuse(format!("{} is neither a file, a folder nor a link", said())),
        }
    }
}

/// What an entry holds that speaks of the next one.
fn text(entry: &mut tar::Entry<'_, impl Read>, most: u64) -> Result<Vec<u8>, ArchiveError> {
    if entry.size() > most {
        return refuse(format!("it has a name or a header of more than {most} bytes"));
    }
    let mut text = Vec::new();
    entry.take(most).read_to_end(&mut text)?;
    while text.pop_if(|last| *last == 0).is_some() {}
    Ok(text)
}

impl Extended {
    fn read(&mut self, text: &[u8]) -> Result<(), ArchiveError> {
        for record in PaxExtensions::new(text) {
            let record = record?;
            match record.key_bytes() {
                b"path" => self.path = Some(record.value_bytes().to_owned()),
                b"linkpath" => self.link = Some(record.value_bytes().to_owned()),
                b"size" => {
                    let size = record.value().ok().and_then(|size| size.parse().ok());
                    self.size = Some(size.ok_or_else(|| ArchiveFault("a size in it is no number".into()))?);
                }
                key if key.starts_with(b"GNU.sparse.") => {
                    return refuse("it has a sparse file: make the archive without --sparse");
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// A path in the archive: no leading `./`, nothing that leads elsewhere or cannot be shown.
fn clean(path: &[u8]) -> Result<String, ArchiveError> {
    let Ok(text) = std::str::from_utf8(path) else {
        return refuse(format!("the name {} is not UTF-8", shown(&String::from_utf8_lossy(path))));
    };
    if text.starts_with('/') {
        return refuse(format!("{} begins with a slash: names must be within the archive", shown(text)));
    }
    joined(text.split('/'), text)
}

/// What a symlink leads to, within the archive.
fn beside(path: &str, link: &[u8]) -> Result<String, ArchiveError> {
    let Ok(text) = std::str::from_utf8(link) else { return refuse(format!("{} is a link to no UTF-8", shown(path))) };
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in text.split('/') {
        if part != ".." {
            parts.push(part);
        } else if parts.pop().is_none() {
            return refuse(format!("{} is a link out of the archive", shown(path)));
        }
    }
    if text.starts_with('/') {
        return refuse(format!("{} is a link out of the archive", shown(path)));
    }
    joined(parts.into_iter(), text)
}

fn joined<'t>(parts: impl Iterator<Item = &'t str>, text: &str) -> Result<String, ArchiveError> {
    let parts: Vec<&str> = parts.filter(|part| !matches!(*part, "" | ".")).collect();
    let path = parts.join("/");
    let fault = if parts.contains(&"..") {
        "leads out of the archive"
    } else if path.is_empty() {
        "is no name"
    } else if path.chars().any(char::is_control) {
        "has a control character in its name"
    } else if path.len() > PATH_MAX || parts.len() > FOLDERS_MAX {
        "has too long a name, or is in too many folders"
    } else {
        return Ok(path);
    };
    refuse(format!("{} {fault}", shown(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers of an archive: name, kind, link and content, and then a size that is not the content's.
    type Row<'a> = (&'a [u8], EntryType, &'a [u8], &'a [u8]);

    fn tar(rows: &[Row<'_>]) -> Vec<u8> {
        let mut tar = Vec::new();
        for (name, kind, link, content) in rows {
            let mut header = tar::Header::new_gnu();
            let old = header.as_old_mut();
            old.name[..name.len()].copy_from_slice(name);
            old.linkname[..link.len()].copy_from_slice(link);
            header.set_entry_type(*kind);
            header.set_size(content.len() as u64);
            header.set_cksum();
            tar.extend_from_slice(header.as_bytes());
            tar.extend_from_slice(content);
            tar.resize(tar.len().next_multiple_of(512), 0);
        }
        tar.resize(tar.len() + 1024, 0);
        tar
    }

    fn read(tar: &[u8]) -> Result<(ArchiveMembers, Vec<u8>), String> {
        let mut archive = tar::Archive::new(tar);
        let mut entries = ArchiveReader::new(&mut archive).expect("the start");
        let (mut all, mut buffer) = (Vec::new(), Vec::new());
        let told = |broken| match broken {
            ArchiveError::Fault(fault) => fault.to_string(),
            ArchiveError::Read(error) => format!("read: {error}"),
        };
        while let Some(offset) = entries.next(&mut buffer).map_err(told)? {
            assert_eq!(offset, all.len() as u64);
            assert!(buffer.len() as u64 <= CHUNK_SIZE);
            all.append(&mut buffer);
        }
        Ok((entries.finish().map_err(told)?, all))
    }

    const FILE: EntryType = EntryType::Regular;

    #[test]
    fn files_are_read_one_after_the_other_each_from_a_chunks_start() {
        let large = vec![7; CHUNK_SIZE as usize + 5];
        let pax = b"18 path=long/name\n20 comment=whatever\n";
        let (members, content) = read(&tar(&[
            (b"./", EntryType::Directory, b"", b""),
            (b"./a", FILE, b"", b"one"),
            (b"d//./large", FILE, b"", &large),
            (b"empty", FILE, b"", b""),
            (b"././@LongLink", EntryType::GNULongName, b"", b"gnu/long\0"),
            (b"gnu", FILE, b"", b"two"),
            (b"PaxHeaders", EntryType::XHeader, b"", pax),
            (b"x", FILE, b"", b"three"),
            (b"comment", EntryType::XGlobalHeader, b"", b"13 comment=c\n"),
            (b"d/hard", EntryType::Link, b"./a", b""),
            (b"d/soft", EntryType::Symlink, b"../d/../gnu/long", b""),
            (b"a", FILE, b"", b"one"),
        ]))
        .expect("good");
        let found: Vec<_> = members.files.iter().map(|(path, file)| (path.as_str(), file.offset, file.size)).collect();
        let end = 3 + large.len() as u64;
        assert_eq!(
            found,
            [
                ("a", 0, 3),
                ("d/hard", 0, 3),
                ("d/large", 3, large.len() as u64),
                ("d/soft", end, 3),
                ("empty", end, 0),
                ("gnu/long", end, 3),
                ("long/name", end + 3, 5)
            ]
        );
        assert_eq!(
            (members.files["a"].head.as_slice(), members.files["d/large"].head.as_slice()),
            (&b"one"[..], &[7; 4][..])
        );
        assert_eq!(members.files["a"].sha256, hex(&Sha256::digest(b"one")));
        assert_eq!(members.files["d/large"].sha256, hex(&Sha256::digest(&large)));
        assert_eq!(content, [&b"one"[..], &large, b"twothreeone"].concat());
        assert_eq!(members.end, content.len() as u64);
    }

    #[test]
    fn what_leads_elsewhere_or_is_no_file_is_refused() {
        let long = [&b"a/"[..]; 60].concat();
        let pax = |record: &str| {
            let mut length = record.len() + 2;
            while format!("{length} {record}\n").len() != length {
                length += 1;
            }
            format!("{length} {record}\n").into_bytes()
        };
        let (sparse, evil, two) = (pax("GNU.sparse.major=1"), pax("path=../evil"), pax("size=9"));
        let (all, many) = (pax("path=x"), vec![b'x'; 70 << 10]);
        let rows: &[(&[Row<'_>], &str)] = &[
            (&[(b"../evil", FILE, b"", b"x")], "leads out of the archive"),
            (&[(b"a/../../evil", FILE, b"", b"x")], "leads out of the archive"),
            (&[(b"a/..", FILE, b"", b"x")], "leads out of the archive"),
            (&[(b"/etc/passwd", FILE, b"", b"x")], "begins with a slash"),
            (&[(b"./", FILE, b"", b"x")], "is no name"),
            (&[(b"a\nb", FILE, b"", b"x")], "control character"),
            (&[(b"a\x1b[2J", FILE, b"", b"x")], "control character"),
            (&[(b"\xff", FILE, b"", b"x")], "not UTF-8"),
            (&[(&long[..99], FILE, b"", b"x")], "too many folders"),
            (&[(b"l", EntryType::GNULongName, b"", &[b'a'; 600])], "more than 513 bytes"),
            (&[(b"x", EntryType::XHeader, b"", &many)], "more than 65536 bytes"),
            (&[(b"x", EntryType::XHeader, b"", &evil), (b"a", FILE, b"", b"x")], "leads out of the archive"),
            (&[(b"x", EntryType::XHeader, b"", &sparse), (b"a", FILE, b"", b"x")], "sparse"),
            (&[(b"x", EntryType::XHeader, b"", &two), (b"a", FILE, b"", b"x")], "two sizes"),
            (&[(b"x", EntryType::XGlobalHeader, b"", &all), (b"a", FILE, b"", b"x")], "for all of its files"),
            (&[(b"x", EntryType::XHeader, b"", b"7 path\n")], "read: "),
            (&[(b"s", EntryType::GNUSparse, b"", b"x")], "sparse"),
            (&[(b"null", EntryType::Char, b"", b"")], "neither a file"),
            (&[(b"sda", EntryType::Block, b"", b"")], "neither a file"),
            (&[(b"pipe", EntryType::Fifo, b"", b"")], "neither a file"),
            (&[(b"?", EntryType::new(b'Z'), b"", b"")], "neither a file"),
            (&[(b"l", EntryType::Symlink, b"/etc/passwd", b"")], "a link out of the archive"),
            (&[(b"d/l", EntryType::Symlink, b"../../etc/passwd", b"")], "a link out of the archive"),
            (&[(b"l", EntryType::Symlink, b"gone", b"")], "which is no file in it"),
            (&[(b"l", EntryType::Symlink, b"l", b"")], "which is no file in it"),
            (&[(b"l", EntryType::Symlink, b"m", b""), (b"m", EntryType::Symlink, b"l", b"")], "which is no file in it"),
            (&[(b"l", EntryType::Link, b"../x", b"")], "leads out of the archive"),
            (&[(b"l", EntryType::Link, b"/etc/passwd", b"")], "begins with a slash"),
            (&[(b"a", FILE, b"", b"x"), (b"./a", FILE, b"", b"y")], "twice"),
        ];
        for (archive, reason) in rows {
            let refused = read(&tar(archive)).expect_err(reason);
            assert!(refused.contains(reason), "{refused} is not: {reason}");
            assert!(!refused.chars().any(char::is_control), "{refused}");
        }
    }

    #[test]
    fn what_is_cut_short_or_no_archive_is_an_error_and_so_are_too_many_files() {
        let whole = tar(&[(b"a", FILE, b"", &[1; 2000])]);
        for end in [100, 512, 1000, 2500] {
            assert!(read(&whole[..end]).is_err(), "{end}");
        }
        assert!(read(&[7; 4096]).is_err());
        assert_eq!(read(&[]).expect("empty").0, ArchiveMembers::default());
        // A size that no archive has.
        let mut lies = tar(&[(b"a", FILE, b"", b"x")]);
        let mut header = tar::Header::new_gnu();
        header.set_path("a").expect("a name");
        header.set_size(u64::MAX - 1);
        header.set_cksum();
        lies[..512].copy_from_slice(header.as_bytes());
        assert!(read(&lies).is_err());
        let names: Vec<String> = (0..=FILES_MAX).map(|number| format!("f{number}")).collect();
        let rows: Vec<Row<'_>> = names.iter().map(|name| (name.as_bytes(), FILE, &b""[..], &b""[..])).collect();
        assert!(read(&tar(&rows[..FILES_MAX - 1])).is_ok());
        assert!(read(&tar(&rows)).expect_err("too many").contains("16384 files"));
        let folders: Vec<Row<'_>> = vec![(b"d", EntryType::Directory, b"", b""); HEADERS_MAX + 1];
        assert!(read(&tar(&folders)).expect_err("too many").contains("16384 files"));
    }
}
