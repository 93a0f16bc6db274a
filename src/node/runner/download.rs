//! `downloader`: fetches a file, and puts it in its place when it is what it is to be.

use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::{Bench, ItemOutcome, NOT_RUN, needed};
use crate::api::lcm::StateItem;
use crate::hex::hex;
use crate::node::client::{CallError, Client};
use crate::node::effect::NodeEffect;
use crate::node::files::{self, ReplacingFile};

/// Largest file in bytes.
const MOST: u64 = 16 << 30;

/// Why a file was not fetched.
#[derive(Debug, thiserror::Error)]
pub(in crate::node) enum FetchError {
    /// Where it comes from.
    #[error("{0}")]
    Call(#[from] CallError),
    /// Where it goes to.
    #[error("cannot write {path}: {source}")]
    Disk { path: String, source: io::Error },
    /// It is another file.
    #[error("the checksum is wrong: it is {found}, and must be {wanted}")]
    Checksum { found: String, wanted: String },
    /// It has no end.
    #[error("it is longer than {0} bytes")]
    Length(u64),
}

/// Fetches a file of a checksum beside its place; who calls places it.
pub(in crate::node) async fn fetch(
    client: &Client,
    url: &str,
    sha256: &str,
    path: &Path,
    mode: u32,
    most: u64,
) -> Result<ReplacingFile, FetchError> {
    let disk = |source| FetchError::Disk { path: path.display().to_string(), source };
    let mut download = client.fetch(url).await?;
    if download.length().is_some_and(|length| length > most) {
        return Err(FetchError::Length(most));
    }
    let mut new = ReplacingFile::begin(path, mode).map_err(disk)?;
    let (mut digest, mut length) = (Sha256::new(), 0);
    while let Some(piece) = download.piece().await? {
        length += piece.len() as u64;
        if length > most {
            return Err(FetchError::Length(most));
        }
        digest.update(&piece);
        new.file.write_all(&piece).map_err(disk)?;
    }
    let found = hex(&digest.finalize());
    if !found.eq_ignore_ascii_case(sha256) {
        return Err(FetchError::Checksum { found, wanted: sha256.to_owned() });
    }
    new.file.sync_all().map_err(disk)?;
    Ok(new)
}

/// SHA-256 of what is read.
pub(in crate::node) fn sha256_of(mut from: impl Read) -> io::Result<String> {
    let mut digest = Sha256::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        match from.read(&mut piece)? {
            0 => return Ok(hex(&digest.finalize())),
            length => digest.update(&piece[..length]),
        }
    }
}

/// Permissions in octal digits.
fn mode(text: &str) -> Option<u32> {
    let good = (3..=4).contains(&text.len()) && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    u32::from_str_radix(text, 8).ok().filter(|_| good)
}

/// Whether the file is there already. Its permissions are put right.
fn is_there(path: &Path, sha256: &str, mode: u32) -> bool {
    let check = || -> io::Result<bool> {
        let file = files::open(path)?;
        if !sha256_of(&file)?.eq_ignore_ascii_case(sha256) {
            return Ok(false);
        }
        if file.metadata()?.permissions().mode() & 0o7777 != mode {
            file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        }
        Ok(true)
    };
    check().unwrap_or(false)
}

pub(super) async fn run(item: &StateItem, bench: &Bench<'_>) -> ItemOutcome {
    (bench.tell)(NodeEffect::Begun);
    download(item, bench).await.unwrap_or_else(|failed| failed)
}

async fn download(item: &StateItem, bench: &Bench<'_>) -> Result<ItemOutcome, ItemOutcome> {
    let (url, sha256, path) = (needed(item, "url")?, needed(item, "sha256")?, Path::new(needed(item, "path")?));
    let fault = |text: &str| ItemOutcome::failed(NOT_RUN, text);
    if sha256.len() != 64 || !sha256.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(fault("the parameter sha256 must be 64 hexadecimal digits"));
    }
    if !path.is_absolute() {
        return Err(fault("the parameter path must be absolute"));
    }
    let mode = item.params.get("mode").map_or(Some(0o644), |text| mode(text));
    let mode = mode.ok_or_else(|| fault("the parameter mode must be octal digits, as 0644"))?;
    if is_there(path, sha256, mode) {
        return Ok(ItemOutcome { text: format!("{} is there already", path.display()), ..ItemOutcome::default() });
    }
    let failed = |error: FetchError| ItemOutcome::failed(1, format!("{}: {error}", path.display()));
    let new = fetch(bench.client, url, sha256, path, mode, MOST).await.map_err(failed)?;
    (bench.tell)(NodeEffect::Fetched);
    new.place().map_err(|source| failed(FetchError::Disk { path: path.display().to_string(), source }))?;
    (bench.tell)(NodeEffect::Placed);
    Ok(ItemOutcome { text: format!("{} is written", path.display()), ..ItemOutcome::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_octal() {
        for (text, wanted) in [("0644", Some(0o644)), ("755", Some(0o755)), ("4755", Some(0o4755))] {
            assert_eq!(mode(text), wanted);
        }
        for bad in ["", "8", "0o644", "-644", "+644", "99999", "rw-"] {
            assert_eq!(mode(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_file_that_is_there_is_left_and_its_mode_put_right() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("file");
        std::fs::write(&path, "abc").unwrap();
        let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(is_there(&path, sum, 0o755));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
        assert!(!is_there(&path, &sum.replace('b', "c"), 0o755));
        std::os::unix::fs::symlink(&path, folder.path().join("link")).unwrap();
        assert!(!is_there(&folder.path().join("link"), sum, 0o755), "a link is no file");
    }
}
