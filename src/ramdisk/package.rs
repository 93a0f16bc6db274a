//! A kernel package: a `.deb`, or a folder it was unpacked to.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Largest file inside that is read, in bytes.
const MAX_FILE: u64 = 256 << 20;

/// A kernel package cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// Reading failed.
    #[error("{path}: {source}")]
    Io {
        /// The package, or the file inside an unpacked one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not an `ar` archive with a `data.tar` member.
    #[error("{0}: not a Debian package")]
    NotADeb(PathBuf),
    /// A compression that Debian does not use.
    #[error("{path}: {member}: unknown compression")]
    Compression {
        /// The package.
        path: PathBuf,
        /// The member or file.
        member: String,
    },
    /// A file inside is larger than any kernel or module.
    #[error("{path}: {file} is larger than 256 MiB")]
    TooLarge {
        /// The package.
        path: PathBuf,
        /// The file.
        file: String,
    },
}

/// Whether the file at a path inside the package is wanted.
pub type FileFilter<'a> = dyn FnMut(&str) -> bool + 'a;
/// Takes a file's path inside the package and its bytes.
pub type VisitFile<'a, E> = dyn FnMut(&str, Vec<u8>) -> Result<(), E> + 'a;

/// Calls `visit` for every file that `wanted` says yes to, with its path inside the package (no leading slash or dot)
/// and its bytes. Modules that are compressed are unpacked, and their path loses its suffix.
pub fn each_file<E: From<PackageError>>(
    package: &Path,
    wanted: &mut FileFilter<'_>,
    visit: &mut VisitFile<'_, E>,
) -> Result<(), E> {
    let io = |source| PackageError::Io { path: package.into(), source };
    if fs::metadata(package).map_err(io)?.is_dir() {
        return folder(package, package, wanted, visit);
    }
    let mut archive = tar::Archive::new(data_member(package)?);
    for entry in archive.entries().map_err(io)? {
        let mut entry = entry.map_err(io)?;
        let path = entry.path_bytes();
        let path = String::from_utf8_lossy(&path);
        let path = path.trim_start_matches("./").trim_start_matches('/').to_owned();
        if entry.header().entry_type().is_file() && wanted(plain_name(&path)) {
            let data = read_file(package, &path, &mut entry)?;
            visit(plain_name(&path), data)?;
        }
    }
    // The rest holds the checksum of all.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(io)?;
    Ok(())
}

fn folder<E: From<PackageError>>(
    root: &Path,
    folder_path: &Path,
    wanted: &mut FileFilter<'_>,
    visit: &mut VisitFile<'_, E>,
) -> Result<(), E> {
    let io = |source| PackageError::Io { path: folder_path.into(), source };
    let mut entries = fs::read_dir(folder_path).map_err(io)?.collect::<Result<Vec<_>, _>>().map_err(io)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let kind = entry.file_type().map_err(io)?;
        // Links are not followed: `build` and `source` lead out of the package.
        if kind.is_dir() {
            folder(root, &path, wanted, visit)?;
        } else if kind.is_file() {
            let inside = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            if wanted(plain_name(&inside)) {
                let mut file = File::open(&path).map_err(|source| PackageError::Io { path: path.clone(), source })?;
                let data = read_file(root, &inside, &mut file)?;
                visit(plain_name(&inside), data)?;
            }
        }
    }
    Ok(())
}

/// The path without a module's compression suffix.
fn plain_name(path: &str) -> &str {
    match path.rsplit_once('.') {
        Some((plain, "xz" | "zst" | "gz")) if plain.ends_with(".ko") => plain,
        _ => path,
    }
}

fn read_file(package: &Path, path: &str, file: &mut dyn Read) -> Result<Vec<u8>, PackageError> {
    let io = |source| PackageError::Io { path: package.join(path), source };
    let mut data = Vec::new();
    let suffix = if plain_name(path) == path { "" } else { path.rsplit_once('.').map_or("", |(_, suffix)| suffix) };
    let reader = decompress(file, suffix)
        .map_err(io)?
        .ok_or_else(|| PackageError::Compression { path: package.into(), member: path.into() })?;
    reader.take(MAX_FILE + 1).read_to_end(&mut data).map_err(io)?;
    if data.len() as u64 > MAX_FILE {
        return Err(PackageError::TooLarge { path: package.into(), file: path.into() });
    }
    Ok(data)
}

/// A reader that unpacks; `None` for a suffix that is not known.
pub fn decompress<'a>(reader: impl Read + 'a, suffix: &str) -> io::Result<Option<Box<dyn Read + 'a>>> {
    Ok(Some(match suffix {
        "" => Box::new(reader),
        "xz" => Box::new(liblzma::read::XzDecoder::new_multi_decoder(reader)),
        "zst" => Box::new(zstd::stream::read::Decoder::new(reader)?),
        "gz" => Box::new(flate2::read::MultiGzDecoder::new(reader)),
        _ => return Ok(None),
    }))
}

/// The unpacked `data.tar` of a `.deb` (deb(5)): an `ar` archive of `debian-binary`, `control.tar.*`, `data.tar.*`.
fn data_member(package: &Path) -> Result<Box<dyn Read>, PackageError> {
    const MAGIC: &[u8] = b"!<arch>\n";
    let io = |source| PackageError::Io { path: package.into(), source };
    let not_a_deb = || PackageError::NotADeb(package.into());
    let mut file = File::open(package).map_err(io)?;
    let mut magic = [0; 8];
    file.read_exact(&mut magic).map_err(|_| not_a_deb())?;
    if magic != MAGIC {
        return Err(not_a_deb());
    }
    // A package has three members; signed ones a few more.
    for _ in 0..16 {
        let mut header = [0; 60];
        file.read_exact(&mut header).map_err(|_| not_a_deb())?;
        let text = std::str::from_utf8(&header).map_err(|_| not_a_deb())?;
        let name = text[..16].trim_end().trim_end_matches('/');
        let size: u64 = text[48..58].trim_end().parse().map_err(|_| not_a_deb())?;
        if let Some(suffix) = name.strip_prefix("data.tar") {
            let member = BufReader::new(file.take(size));
            let unpacked = decompress(member, suffix.trim_start_matches('.')).map_err(io)?;
            return unpacked.ok_or_else(|| PackageError::Compression { path: package.into(), member: name.to_owned() });
        }
        let skip = i64::try_from(size.saturating_add(size % 2)).map_err(|_| not_a_deb())?;
        file.seek(SeekFrom::Current(skip)).map_err(io)?;
    }
    Err(not_a_deb())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::io::Write;

    /// A `.deb` of these files, with `data.tar` packed as the suffix says.
    pub fn deb(files: &[(&str, Vec<u8>)], suffix: &str) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, data) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(data.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, format!("./{path}"), data.as_slice()).expect("added");
        }
        let tar = builder.into_inner().expect("tar");
        let data = pack(&tar, suffix);
        let mut deb = b"!<arch>\n".to_vec();
        for (name, data) in [
            ("debian-binary", b"2.0\n".to_vec()),
            ("control.tar.xz", vec![1; 5]),
            (&*format!("data.tar{suffix}"), data),
        ] {
            writeln!(deb, "{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`", 0, 0, 0, "100644", data.len()).expect("header");
            deb.extend(&data);
            if data.len() % 2 == 1 {
                deb.push(b'\n');
            }
        }
        deb
    }

    pub fn pack(data: &[u8], suffix: &str) -> Vec<u8> {
        match suffix {
            "" => data.to_vec(),
            ".xz" => {
                let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
                encoder.write_all(data).expect("packed");
                encoder.finish().expect("packed")
            }
            ".zst" => zstd::encode_all(data, 1).expect("packed"),
            ".gz" => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(data).expect("packed");
                encoder.finish().expect("packed")
            }
            other => panic!("{other}"),
        }
    }

    fn listed(path: &Path) -> Result<Vec<(String, Vec<u8>)>, PackageError> {
        let mut found = Vec::new();
        each_file(path, &mut |name| !name.ends_with(".txt"), &mut |name, data| {
            found.push((name.to_owned(), data));
            Ok::<_, PackageError>(())
        })?;
        found.sort();
        Ok(found)
    }

    #[test]
    fn debs_of_every_compression_and_folders_read_the_same() {
        let folder = tempfile::tempdir().expect("folder");
        let long = format!("lib/modules/1/{}/long.ko", "deep/".repeat(30));
        let packed = |suffix| pack(b"module", suffix);
        let files = [
            ("boot/vmlinuz-1", b"kernel".to_vec()),
            ("lib/modules/1/a.ko", b"module".to_vec()),
            ("lib/modules/1/b.ko.xz", packed(".xz")),
            ("lib/modules/1/c.ko.zst", packed(".zst")),
            ("lib/modules/1/d.ko.gz", packed(".gz")),
            (long.as_str(), b"module".to_vec()),
            ("readme.txt", b"not wanted".to_vec()),
        ];
        let mut names = vec![
            "boot/vmlinuz-1",
            "lib/modules/1/a.ko",
            "lib/modules/1/b.ko",
            "lib/modules/1/c.ko",
            "lib/modules/1/d.ko",
            &long,
        ];
        names.sort();
        for suffix in ["", ".xz", ".zst", ".gz"] {
            let path = folder.path().join("a.deb");
            fs::write(&path, deb(&files, suffix)).expect("written");
            let found = listed(&path).expect("read");
            assert_eq!(found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), names, "{suffix}");
            assert!(found.iter().skip(1).all(|(_, data)| data == b"module"));
        }
        let unpacked = folder.path().join("unpacked");
        for (name, data) in &files {
            let path = unpacked.join(name);
            fs::create_dir_all(path.parent().expect("folder")).expect("made");
            fs::write(path, data).expect("written");
        }
        std::os::unix::fs::symlink("/usr", unpacked.join("lib/modules/1/build")).expect("link");
        assert_eq!(listed(&unpacked).expect("read").len(), names.len());
    }

    #[test]
    fn what_is_no_package_says_so() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("a.deb");
        assert!(matches!(listed(&path), Err(PackageError::Io { .. })));
        let good = deb(&[("a", vec![0; 5000])], ".xz");
        let cut = |length: usize| good[..length].to_vec();
        let odd = deb(&[("a", vec![0; 50])], "");
        let odd = String::from_utf8(odd).expect("text").replace("data.tar  ", "data.tar.q");
        for bad in [b"!<arch>\n".to_vec(), b"hello".to_vec(), Vec::new(), cut(100), b"!<arch>\nxxxx".repeat(20)] {
            fs::write(&path, bad).expect("written");
            assert!(matches!(listed(&path), Err(PackageError::NotADeb(_))));
        }
        fs::write(&path, cut(good.len() - 20)).expect("written");
        assert!(matches!(listed(&path), Err(PackageError::Io { .. })));
        fs::write(&path, odd).expect("written");
        assert!(matches!(listed(&path), Err(PackageError::Compression { .. })));
    }
}
