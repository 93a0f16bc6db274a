//! A folder as a tar file that is made while it is read, the same each time: so sending it goes on where it was cut off.

use std::fs::{self, File};
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Size of a tar file's blocks.
const BLOCK: u64 = 512;
/// Zeros at the end of a tar file.
const END: usize = 1024;

/// A file of the folder.
struct FolderFile {
    name: String,
    path: PathBuf,
    bytes: u64,
}

/// The tar file of a folder, and its bytes.
pub(super) fn archive(folder: &Path) -> anyhow::Result<(Box<dyn Read>, u64)> {
    let mut files = Vec::new();
    list(folder, "", &mut files)?;
    if files.is_empty() {
        bail!("{}: there is no file in this folder", folder.display());
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    let mut total = END as u64;
    let mut headers = Vec::new();
    for file in &files {
        let header = header(&file.name, file.bytes)?;
        total += header.len() as u64 + file.bytes.next_multiple_of(BLOCK);
        headers.push(header);
    }
    let files = files.into_iter().zip(headers);
    Ok((Box::new(Tar { files: Box::new(files), current: Box::new(io::empty()), ended: false }), total))
}

fn list(folder: &Path, below: &str, files: &mut Vec<FolderFile>) -> anyhow::Result<()> {
    let shown = || folder.display().to_string();
    for entry in fs::read_dir(folder).with_context(shown)? {
        let entry = entry.with_context(shown)?;
        let path = entry.path();
        let Ok(name) = entry.file_name().into_string() else { bail!("{}: its name is not UTF-8", path.display()) };
        let name = format!("{below}{name}");
        let kind = entry.file_type().with_context(shown)?;
        if kind.is_dir() {
            list(&path, &format!("{name}/"), files)?;
            continue;
        }
        // A link to a file is that file; one to a folder might lead in a circle.
        let about = fs::metadata(&path).with_context(|| path.display().to_string())?;
        if !about.is_file() {
            bail!("{} is neither a file nor a folder", path.display());
        }
        files.push(FolderFile { name, path, bytes: about.len() });
    }
    Ok(())
}

/// What stands before a file: owners, times and rights are nobody's business.
fn header(name: &str, bytes: u64) -> anyhow::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(bytes);
    tar.append_data(&mut header, name, io::empty()).with_context(|| name.to_owned())?;
    let mut all = tar.into_inner().context("a tar file in memory")?;
    // Without the end that the builder writes.
    all.truncate(all.len().saturating_sub(END));
    Ok(all)
}

struct Tar {
    files: Box<dyn Iterator<Item = (FolderFile, Vec<u8>)>>,
    current: Box<dyn Read>,
    ended: bool,
}

impl Read for Tar {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.current.read(buffer)?;
            if read > 0 || buffer.is_empty() || self.ended {
                return Ok(read);
            }
            match self.files.next() {
                Some((file, header)) => self.current = Box::new(Cursor::new(header).chain(PaddedFile::open(file)?)),
                None => {
                    self.ended = true;
                    self.current = Box::new(io::repeat(0).take(END as u64));
                }
            }
        }
    }
}

/// A file with as many bytes as were said of it, and what fills its last block.
struct PaddedFile {
    path: PathBuf,
    file: io::Take<File>,
    padding: io::Take<io::Repeat>,
}

impl PaddedFile {
    fn open(file: FolderFile) -> io::Result<Self> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.path.display()));
        let opened = File::open(&file.path).map_err(named)?;
        let padding = file.bytes.next_multiple_of(BLOCK) - file.bytes;
        Ok(Self { file: opened.take(file.bytes), padding: io::repeat(0).take(padding), path: file.path })
    }
}

impl Read for PaddedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        if read > 0 || buffer.is_empty() {
            return Ok(read);
        }
        if self.file.limit() > 0 {
            let reason = format!("{} became shorter while it was read", self.path.display());
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
        }
        self.padding.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_the_same_tar_file_each_time_with_what_its_files_hold() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("d").join("e".repeat(120));
        fs::create_dir_all(&deep).unwrap();
        fs::create_dir(folder.path().join("empty")).unwrap();
        for (path, content) in [
            (deep.join("long"), vec![1; 700]),
            (folder.path().join("b"), vec![]),
            (folder.path().join("a"), vec![2; 512]),
        ] {
            fs::write(path, content).unwrap();
        }
        std::os::unix::fs::symlink("a", folder.path().join("link")).unwrap();
        let read = || {
            let (mut tar, total) = archive(folder.path()).unwrap();
            let mut bytes = Vec::new();
            tar.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes.len() as u64, total);
            bytes
        };
        let bytes = read();
        assert_eq!(bytes, read());
        let mut found = Vec::new();
        for entry in tar::Archive::new(&*bytes).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            found.push((entry.path().unwrap().display().to_string(), content));
        }
        let long = format!("d/{}/long", "e".repeat(120));
        assert_eq!(
            found,
            [("a".into(), vec![2; 512]), ("b".into(), vec![]), (long, vec![1; 700]), ("link".into(), vec![2; 512])]
        );
    }

    #[test]
    fn what_is_no_file_and_a_folder_without_any_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let said = || archive(folder.path()).err().unwrap().to_string();
        assert!(said().contains("no file in this folder"));
        std::os::unix::fs::symlink(".", folder.path().join("circle")).unwrap();
        assert!(said().contains("circle is neither a file nor a folder"));
    }
}
