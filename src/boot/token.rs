//! Boot tokens and session tokens: `base64url(payload ‖ HMAC-SHA-256(key, label ‖ payload))`, nothing stored.
//!
//! A boot token goes into the boot script of one boot; an agent shows it once and gets a session token for it. A
//! machine that no host has gets a visitor's token instead, with which it can report itself and nothing else. Each
//! kind has its label, so none passes for another. That a token is used once, only for the current boot intent and
//! only from the address that it was given to, is the caller's to see to: by its nonce, generation and address.

use std::fs;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use rand::TryRngCore;
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::api::MacAddress;
use crate::hex::hex;

/// How long a boot token can be used: firmware, iPXE and ramdisk of a slow machine, several times over.
pub const BOOT_TOKEN_LIFE: Duration = Duration::from_secs(30 * 60);

/// How long a session can be used, from its token on: longer than any boot takes.
pub const SESSION_LIFE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How long whoever asked first keeps others out, where nothing else says who the machine is.
pub const FIRST_HOLDS: Duration = Duration::from_secs(2 * 60);

const KEY_FILE: &str = "boot-token.key";
const KEY: usize = 32;
const MAC: usize = 32;
/// Version, generation, issued at, nonce, address.
const FIXED: usize = 1 + 8 + 8 + 16 + 4;
const MAX_UID: usize = 64;
const VERSION: u8 = 2;
/// The same, and the address is that of whoever asked first.
const VERSION_FIRST: u8 = 3;
const BOOT: &[u8] = b"slipway boot token\0";
const MEDIA: &[u8] = b"slipway medium\0";
const SESSION: &[u8] = b"slipway session token\0";
const VISIT: &[u8] = b"slipway visit token\0";
const VISIT_SESSION: &[u8] = b"slipway visit session token\0";

/// The key cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum BootKeyError {
    /// It cannot be read or made.
    #[error("{path}: {source}")]
    Io {
        /// The key file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not 32 bytes.
    #[error("{path}: {length} bytes, not {KEY}: remove it, and machines that are booting boot again")]
    Length {
        /// The key file.
        path: PathBuf,
        /// Its length.
        length: usize,
    },
    /// It is one byte again and again, as a file whose content a power failure took: anybody could make tokens with it.
    #[error("{path}: holds no key, but one byte {KEY} times: remove it, and machines that are booting boot again")]
    Blank {
        /// The key file.
        path: PathBuf,
    },
    /// The system has no random numbers.
    #[error("no random numbers: {0}")]
    Random(String),
}

/// A token cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BootTokenError {
    /// Not base64url, or too short or long.
    #[error("the token is malformed")]
    Malformed,
    /// Made with another key, for another purpose, or changed.
    #[error("the token was not issued by this appliance")]
    Forged,
    /// Older than [`BOOT_TOKEN_LIFE`].
    #[error("the token is older than 30 minutes")]
    Expired,
    /// Older than [`SESSION_LIFE`], or that much younger than the clock says.
    #[error("the session has ended: it was opened more than 30 days ago, or the clock has been changed by as much")]
    SessionEnded,
}

/// A token cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MintError {
    /// No UID of ours.
    #[error("a host UID has 1 to {MAX_UID} bytes, not {0}")]
    Uid(usize),
    /// The system has no random numbers.
    #[error("no random numbers: {0}")]
    Random(String),
}

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootTokenClaims {
    /// UID of the BareMetalHost; of a visitor the MAC address.
    pub uid: String,
    /// Generation of the boot intent.
    pub generation: i64,
    /// Random; names this token among those used.
    pub nonce: [u8; 16],
    /// Unix time it was made, in seconds.
    pub issued_at: i64,
    /// The one address that it may be used from.
    pub address: Option<Ipv4Addr>,
    /// Whether that is only the address of whoever asked first: nobody here gave it to the machine, which may have another
    /// one by now. It can show so ([`BootTokenClaims::others_wait`]).
    pub first: bool,
}

/// What a token is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenBinding {
    /// Nothing: it is good anywhere.
    Nowhere,
    /// The address that Slipway gave the machine.
    Leased(Ipv4Addr),
    /// The address of whoever asked first.
    First(Ipv4Addr),
}

impl TokenBinding {
    /// The address, if there is one.
    pub fn address(self) -> Option<Ipv4Addr> {
        match self {
            Self::Nowhere => None,
            Self::Leased(address) | Self::First(address) => Some(address),
        }
    }
}

impl BootTokenClaims {
    /// The nonce in hex.
    pub fn nonce_hex(&self) -> String {
        hex(&self.nonce)
    }

    /// The same, bound to this.
    #[must_use]
    pub fn bound_to(&self, bound: TokenBinding) -> Self {
        Self { address: bound.address(), first: matches!(bound, TokenBinding::First(_)), ..self.clone() }
    }

    /// How much longer nobody but the address of who asked first may use it, of whom nothing else says that he is the
    /// machine: as long as a boot takes from its script to its session, mostly.
    pub fn others_wait(&self, now: i64) -> Option<Duration> {
        let passed = Duration::from_secs(now.saturating_sub(self.issued_at).try_into().unwrap_or_default());
        FIRST_HOLDS.checked_sub(passed).filter(|left| !left.is_zero())
    }

    fn payload(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED + self.uid.len() + MAC);
        bytes.push(if self.first { VERSION_FIRST } else { VERSION });
        bytes.extend_from_slice(&self.generation.to_be_bytes());
        bytes.extend_from_slice(&self.issued_at.to_be_bytes());
        bytes.extend_from_slice(&self.nonce);
        bytes.extend_from_slice(&self.address.unwrap_or(Ipv4Addr::UNSPECIFIED).octets());
        bytes.extend_from_slice(self.uid.as_bytes());
        bytes
    }

    fn parse(payload: &[u8]) -> Option<Self> {
        let (version, rest) = payload.split_first()?;
        let (generation, rest) = rest.split_first_chunk::<8>()?;
        let (issued_at, rest) = rest.split_first_chunk::<8>()?;
        let (nonce, rest) = rest.split_first_chunk::<16>()?;
        let (address, uid) = rest.split_first_chunk::<4>()?;
        let address = Ipv4Addr::from(*address);
        let first = *version == VERSION_FIRST;
        if (*version != VERSION && !first) || uid.is_empty() || uid.len() > MAX_UID {
            return None;
        }
        Some(Self {
            uid: String::from_utf8(uid.to_vec()).ok()?,
            generation: i64::from_be_bytes(*generation),
            issued_at: i64::from_be_bytes(*issued_at),
            nonce: *nonce,
            address: (!address.is_unspecified()).then_some(address),
            first,
        })
    }
}

/// Makes tokens and checks them. Cheap to share behind an `Arc`.
pub struct BootTokens {
    key: Zeroizing<[u8; KEY]>,
}

impl std::fmt::Debug for BootTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

impl BootTokens {
    /// Reads the key in `pki`, or makes one (mode 0600, on disk before this returns). Makes the folder if need be.
    pub fn open(pki: &Path) -> Result<Self, BootKeyError> {
        let path = pki.join(KEY_FILE);
        let fail = |source| BootKeyError::Io { path: path.clone(), source };
        match read_key(&path) {
            Ok(key) => return Self::from_bytes(&path, &key),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(fail(error)),
        }
        let mut key = Zeroizing::new([0; KEY]);
        rand::rngs::OsRng.try_fill_bytes(&mut *key).map_err(|error| BootKeyError::Random(error.to_string()))?;
        match write_key(pki, &path, &*key) {
            Ok(()) => Ok(Self { key }),
            // Another process was first; its key is the key.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Self::from_bytes(&path, &read_key(&path).map_err(fail)?)
            }
            Err(error) => Err(fail(error)),
        }
    }

    fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self, BootKeyError> {
        let key: [u8; KEY] =
            bytes.try_into().map_err(|_| BootKeyError::Length { path: path.into(), length: bytes.len() })?;
        if key.iter().all(|byte| *byte == key[0]) {
            return Err(BootKeyError::Blank { path: path.into() });
        }
        Ok(Self { key: Zeroizing::new(key) })
    }

    /// A boot token for the host with this UID (1 to 64 bytes) and this generation of its boot intent, good from any
    /// address.
    pub fn mint(&self, uid: &str, generation: i64) -> Result<String, MintError> {
        self.mint_bound(uid, generation, TokenBinding::Nowhere)
    }

    /// As [`BootTokens::mint`]; good from this address only, when one is given, which Slipway gave the machine.
    pub fn mint_at(&self, uid: &str, generation: i64, address: Option<Ipv4Addr>) -> Result<String, MintError> {
        self.mint_bound(uid, generation, address.map_or(TokenBinding::Nowhere, TokenBinding::Leased))
    }

    /// As [`BootTokens::mint`], bound to this.
    pub fn mint_bound(&self, uid: &str, generation: i64, bound: TokenBinding) -> Result<String, MintError> {
        self.make(BOOT, uid, generation, bound)
    }

    /// A visitor's token for a machine that no host has: for this MAC address, from this address only when one is given.
    pub fn mint_visit(&self, mac: MacAddress, address: Option<Ipv4Addr>) -> Result<String, MintError> {
        self.mint_visit_bound(mac, address.map_or(TokenBinding::Nowhere, TokenBinding::Leased))
    }

    /// As [`BootTokens::mint_visit`], bound to this.
    pub fn mint_visit_bound(&self, mac: MacAddress, bound: TokenBinding) -> Result<String, MintError> {
        self.make(VISIT, &mac.to_string(), 0, bound)
    }

    fn make(&self, label: &[u8], uid: &str, generation: i64, bound: TokenBinding) -> Result<String, MintError> {
        if !(1..=MAX_UID).contains(&uid.len()) {
            return Err(MintError::Uid(uid.len()));
        }
        let mut nonce = [0; 16];
        rand::rngs::OsRng.try_fill_bytes(&mut nonce).map_err(|error| MintError::Random(error.to_string()))?;
        let (address, first) = (bound.address(), matches!(bound, TokenBinding::First(_)));
        let claims = BootTokenClaims { uid: uid.into(), generation, nonce, issued_at: unix_now(), address, first };
        Ok(self.seal(label, &claims))
    }

    /// A ticket for the medium of one boot: the name that its URL has. It stands for the boot token on the medium and
    /// does not tell it.
    pub fn mint_media(&self, uid: &str, generation: i64) -> Result<String, MintError> {
        self.make(MEDIA, uid, generation, TokenBinding::Nowhere)
    }

    /// Checks a ticket.
    pub fn verify_media(&self, ticket: &str) -> Result<BootTokenClaims, BootTokenError> {
        let claims = self.open_sealed(MEDIA, ticket)?;
        if unix_now().saturating_sub(claims.issued_at) > BOOT_TOKEN_LIFE.as_secs() as i64 {
            return Err(BootTokenError::Expired);
        }
        Ok(claims)
    }

    /// The boot token that belongs to a ticket's claims: always the same.
    pub fn boot_token(&self, claims: &BootTokenClaims) -> String {
        self.seal(BOOT, claims)
    }

    /// Checks a boot token. Takes the same time whatever is wrong with its code.
    pub fn verify(&self, token: &str) -> Result<BootTokenClaims, BootTokenError> {
        self.verify_at(token, unix_now())
    }

    /// Checks a boot token at this Unix time, in seconds.
    pub fn verify_at(&self, token: &str, now: i64) -> Result<BootTokenClaims, BootTokenError> {
        self.verify_labelled(BOOT, token, now)
    }

    /// Checks a visitor's token.
    pub fn verify_visit(&self, token: &str) -> Result<BootTokenClaims, BootTokenError> {
        self.verify_labelled(VISIT, token, unix_now())
    }

    fn verify_labelled(&self, label: &[u8], token: &str, now: i64) -> Result<BootTokenClaims, BootTokenError> {
        let claims = self.open_sealed(label, token)?;
        if now.saturating_sub(claims.issued_at) > BOOT_TOKEN_LIFE.as_secs() as i64 {
            return Err(BootTokenError::Expired);
        }
        Ok(claims)
    }

    /// The session token that belongs to a boot token: the same claims, another label. It ends with the session.
    pub fn session(&self, claims: &BootTokenClaims) -> String {
        self.seal(SESSION, claims)
    }

    /// Checks a session token. Whether its session is still the current one is the caller's to see.
    pub fn verify_session(&self, token: &str) -> Result<BootTokenClaims, BootTokenError> {
        self.verify_session_at(token, unix_now())
    }

    /// Checks a session token at this Unix time, in seconds.
    pub fn verify_session_at(&self, token: &str, now: i64) -> Result<BootTokenClaims, BootTokenError> {
        self.session_of(SESSION, token, now)
    }

    fn session_of(&self, label: &[u8], token: &str, now: i64) -> Result<BootTokenClaims, BootTokenError> {
        let claims = self.open_sealed(label, token)?;
        // Of a clock that was ahead, too: else it would not end before that time has come.
        if now.abs_diff(claims.issued_at) > SESSION_LIFE.as_secs() {
            return Err(BootTokenError::SessionEnded);
        }
        Ok(claims)
    }

    /// The session token that belongs to a visitor's token.
    pub fn visit_session(&self, claims: &BootTokenClaims) -> String {
        self.seal(VISIT_SESSION, claims)
    }

    /// Checks a visitor's session token. Whether the visit goes on is the caller's to see.
    pub fn verify_visit_session(&self, token: &str) -> Result<BootTokenClaims, BootTokenError> {
        self.session_of(VISIT_SESSION, token, unix_now())
    }

    fn seal(&self, label: &[u8], claims: &BootTokenClaims) -> String {
        let mut bytes = claims.payload();
        let code = self.code(label, &bytes).finalize().into_bytes();
        bytes.extend_from_slice(&code);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    fn open_sealed(&self, label: &[u8], token: &str) -> Result<BootTokenClaims, BootTokenError> {
        const MAX_TEXT: usize = (FIXED + MAX_UID + MAC).div_ceil(3) * 4;
        if token.len() > MAX_TEXT {
            return Err(BootTokenError::Malformed);
        }
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| BootTokenError::Malformed)?;
        let (payload, code) = bytes.split_last_chunk::<MAC>().ok_or(BootTokenError::Malformed)?;
        // Constant time.
        self.code(label, payload).verify_slice(code).map_err(|_| BootTokenError::Forged)?;
        BootTokenClaims::parse(payload).ok_or(BootTokenError::Malformed)
    }

    fn code(&self, label: &[u8], payload: &[u8]) -> Hmac<Sha256> {
        // A key of any length will do, and a fixed 64-byte block needs no fallible constructor.
        let mut block = Zeroizing::new([0; 64]);
        block[..KEY].copy_from_slice(&*self.key);
        let mut code = Hmac::<Sha256>::new((&*block).into());
        code.update(label);
        code.update(payload);
        code
    }
}

fn read_key(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let file = fs::File::open(path)?;
    let mode = file.metadata()?.mode();
    if mode & 0o077 != 0 {
        tracing::warn!(path = %path.display(), mode = format!("{:o}", mode & 0o777), "the boot token key was open to other users: its mode is 0600 now");
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
    }
    let mut key = Zeroizing::new(Vec::with_capacity(KEY + 1));
    file.take(KEY as u64 + 1).read_to_end(&mut key)?;
    Ok(key)
}

/// The file appears whole or not at all, and never in the place of another.
fn write_key(folder: &Path, path: &Path, key: &[u8]) -> io::Result<()> {
    if !folder.exists() {
        fs::DirBuilder::new().recursive(true).create(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    }
    let unfinished = folder.join(format!(".{KEY_FILE}.{}.{:p}", std::process::id(), key));
    let written = (|| {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        file.write_all(key)?;
        file.sync_all()?;
        fs::hard_link(&unfinished, path)
    })();
    let removed = fs::remove_file(&unfinished);
    written?;
    removed?;
    fs::File::open(folder)?.sync_all()
}

fn unix_now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

#[cfg(test)]
mod tests;
