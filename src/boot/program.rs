//! This very program, as installed nodes fetch it: their agent is the appliance's own executable.
//!
//! It is served by its checksum and to anybody, since it is public. What runs is what is served, also when a package has put another
//! file into its place meanwhile.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

use crate::hex::hex;

/// What its name begins with; the checksum follows.
const PREFIX: &str = "slipway-";
/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

static OWN: LazyLock<Program> = LazyLock::new(|| Program::at(Path::new("/proc/self/exe")));

/// An executable, and its checksum once somebody asks. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Program {
    path: Arc<Path>,
    checksum: Arc<OnceCell<String>>,
}

impl Program {
    /// The one that runs.
    pub fn own() -> Self {
        OWN.clone()
    }

    /// That of a file, which must not change.
    pub fn at(path: &Path) -> Self {
        Self { path: path.into(), checksum: Arc::default() }
    }

    /// Its SHA-256, as 64 hexadecimal digits. It is read once.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub async fn sha256(&self) -> io::Result<&str> {
        let path = PathBuf::from(&*self.path);
        let read =
            || async move { tokio::task::spawn_blocking(move || checksum(&path)).await.map_err(io::Error::other)? };
        Ok(self.checksum.get_or_try_init(read).await?)
    }

    /// The path on boot HTTP of a program with this checksum.
    pub fn url_path(sha256: &str) -> String {
        format!("/boot/files/{PREFIX}{sha256}")
    }

    /// Where it is, if this is its name.
    pub(super) async fn named(&self, name: &str) -> Option<&Path> {
        let wanted = name.strip_prefix(PREFIX)?;
        // Nothing is read for a name that cannot be.
        if wanted.len() != 64 {
            return None;
        }
        (self.sha256().await.ok()? == wanted).then_some(&*self.path)
    }
}

fn checksum(path: &Path) -> io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let (mut hash, mut piece) = (Sha256::new(), vec![0; PIECE]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hex(&hash.finalize())),
            length => hash.update(&piece[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_has_the_name_of_its_checksum_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        std::fs::write(&path, "abc").unwrap();
        let program = Program::at(&path);
        let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(program.sha256().await.unwrap(), sum);
        for (name, found) in [
            (format!("slipway-{sum}"), true),
            (format!("slipway-{}", "0".repeat(64)), false),
            (sum.to_owned(), false),
            ("slipway-".to_owned(), false),
            ("slipway-../../etc/passwd".to_owned(), false),
        ] {
            assert_eq!(program.named(&name).await.is_some(), found, "{name}");
        }
        assert_eq!(Program::url_path("aa"), "/boot/files/slipway-aa");
        assert!(Program::at(&folder.path().join("none")).sha256().await.is_err());
        assert_eq!(Program::own().sha256().await.unwrap().len(), 64);
    }
}
