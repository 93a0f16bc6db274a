//! Sealing of secrets at rest: XChaCha20-Poly1305 with a random 24-byte nonce for each record.
//!
//! The key is 32 random bytes in a file of mode 0600, as base64 text, so that it survives being copied by hand. The
//! database keeps one sealed check value, so that a wrong key is noticed when the store is opened, not when a secret is read.
//!
//! With random nonces of 192 bits, the number of records sealed under one key is no concern (two equal nonces have a
//! chance of 2^-32 after 2^80 records).

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead, AeadCore, KeyInit, OsRng, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use zeroize::Zeroizing;

/// Bytes of a nonce.
const NONCE: usize = 24;

/// What a sealed text is longer than the text, in bytes: the nonce, and 16 of authentication.
pub(super) const OVERHEAD: usize = NONCE + 16;

/// Bytes of a key.
const KEY: usize = 32;

/// Largest key file that is read: a key is 44 letters and a line end.
const KEY_FILE: u64 = 256;

const CHECK: &[u8] = b"slipway store";
const CHECK_PLACE: &[u8] = b"meta\0seal";

/// Seals and opens records.
pub(super) struct Sealer {
    cipher: XChaCha20Poly1305,
}

impl Sealer {
    /// Reads the key file; `None` when there is none.
    pub fn load(path: &Path) -> Result<Option<Self>, String> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("cannot read the key file {}: {error}", path.display())),
        };
        let read = |file: &File| -> io::Result<Zeroizing<String>> {
            let mode = file.metadata()?.permissions().mode();
            if mode & 0o077 != 0 {
                tracing::warn!(path = %path.display(), mode = format!("{:o}", mode & 0o7777), "the key file was open to other users: its mode is 0600 now");
                file.set_permissions(Permissions::from_mode(0o600))?;
            }
            let mut text = Zeroizing::new(String::with_capacity(KEY_FILE as usize));
            file.take(KEY_FILE).read_to_string(&mut text)?;
            Ok(text)
        };
        let text = read(&file).map_err(|error| format!("cannot read the key file {}: {error}", path.display()))?;
        let key = STANDARD.decode(text.trim()).map(Zeroizing::new).ok().filter(|key| key.len() == KEY);
        let Some(key) = key else {
            return Err(format!("the key file {} does not hold a key (32 bytes as base64)", path.display()));
        };
        Ok(Some(Self { cipher: XChaCha20Poly1305::new(Key::from_slice(&key)) }))
    }

    /// Makes a key and its file; both the file and its name are on disk when this returns.
    pub fn create(path: &Path) -> Result<Self, String> {
        let key: Zeroizing<[u8; KEY]> = Zeroizing::new(XChaCha20Poly1305::generate_key(&mut OsRng).into());
        write_key(path, &key).map_err(|error| format!("cannot make the key file {}: {error}", path.display()))?;
        Ok(Self { cipher: XChaCha20Poly1305::new(Key::from_slice(&*key)) })
    }

    /// Nonce and sealed text. `place` must be given again to open it.
    pub fn seal(&self, text: &[u8], place: &[u8]) -> Vec<u8> {
        let nonce = XChaCha20Poly1305::generate_nonce(&mut OsRng);
        // Fails only for texts over 256 GiB, which the size limit of an object excludes; an empty result
        // would not open.
        let sealed = self.cipher.encrypt(&nonce, Payload { msg: text, aad: place }).unwrap_or_default();
        [nonce.as_slice(), &sealed].concat()
    }

    /// The text; `None` when the key or the place is another one, or the bytes were changed.
    pub fn open(&self, sealed: &[u8], place: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_at_checked(NONCE)?;
        self.cipher.decrypt(XNonce::from_slice(nonce), Payload { msg: sealed, aad: place }).ok()
    }

    /// A value that tells this key from others.
    pub fn check_value(&self) -> Vec<u8> {
        self.seal(CHECK, CHECK_PLACE)
    }

    /// Whether a check value was made with this key.
    pub fn matches(&self, check: &[u8]) -> bool {
        self.open(check, CHECK_PLACE).is_some_and(|text| text == CHECK)
    }
}

/// Writes beside the file and renames, so that a crash leaves a whole key or none.
fn write_key(path: &Path, key: &[u8; KEY]) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::create_dir_all(folder)?;
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let unfinished = Path::new(&unfinished);
    match fs::remove_file(unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(unfinished)?;
    let mut text = Zeroizing::new(STANDARD.encode(key));
    text.push('\n');
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(unfinished, path)?;
    File::open(folder)?.sync_all()
}
