//! Packing and encryption: zstd inside, age (<https://age-encryption.org/v1>) outside. `age -d FILE | zstd -d` reads a backup
//! without Slipway.

use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::str::FromStr;

use age::scrypt;
use age::x25519::{Identity, Recipient};
use secrecy::{ExposeSecret, SecretString};
use zeroize::Zeroizing;

use crate::files;

/// Work factor of scrypt for passphrases: N is 2 to this, which takes 128 MiB of memory and under a second.
const WORK: u8 = 17;
/// Largest one that is read: 1 GiB of memory.
const WORK_MAX: u8 = 20;
/// Shortest passphrase that a backup is encrypted with, in characters.
pub const PASSPHRASE_MIN: usize = 12;
/// Largest key or passphrase file, in bytes.
const KEY_FILE_MAX: u64 = 64 << 10;

/// Bytes of a file's start that are looked at first: age's header for a passphrase is in them.
const START: u64 = 4096;

const AGE: &[u8] = b"age-encryption.org/";
const AGE_ARMOR: &[u8] = b"-----BEGIN AGE";
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// For whom a backup is encrypted.
#[derive(Clone)]
pub enum Seal {
    /// For whoever has the secret key of one of these.
    Recipients(Vec<Recipient>),
    /// For whoever knows this.
    Passphrase(SecretString),
    /// For everybody who has the file.
    Nobody,
}

impl Seal {
    /// End of a file's name, which says how to read it.
    pub fn extension(&self) -> &'static str {
        match self {
            Self::Nobody => "jsonl.zst",
            _ => "jsonl.zst.age",
        }
    }
}

/// A key or passphrase cannot be used. Never says what it is.
#[derive(Debug, thiserror::Error)]
pub enum SealKeyError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// There is none in it.
    #[error(
        "{0} holds no key: a line that begins with AGE-SECRET-KEY-1 or age1 (`slipway backup --new-key` makes one)"
    )]
    NoKey(String),
    /// There is no secret one in it.
    #[error("{0} holds no secret key (AGE-SECRET-KEY-1…), only what encrypts")]
    NoSecretKey(String),
    /// It is no recipient.
    #[error("{0:?} is no recipient: it looks like age1…, 62 letters and digits")]
    Recipient(String),
    /// It would be guessed.
    #[error(
        "the passphrase has less than {PASSPHRASE_MIN} characters: whoever guesses it has every key of the appliance"
    )]
    Short,
}

/// A recipient as people write it.
///
/// # Errors
///
/// [`SealKeyError::Recipient`].
pub fn recipient(text: &str) -> Result<Recipient, SealKeyError> {
    Recipient::from_str(text.trim()).map_err(|_| SealKeyError::Recipient(text.chars().take(80).collect()))
}

/// A new key, and the file that holds it.
pub fn new_key(now: jiff::Timestamp) -> (Recipient, SecretString) {
    let key = Identity::generate();
    let recipient = key.to_public();
    let text = format!("# created: {now:.0}\n# public key: {recipient}\n{}\n", key.to_string().expose_secret());
    (recipient, text.into())
}

fn read_small(path: &Path) -> Result<Zeroizing<String>, SealKeyError> {
    let read = || -> io::Result<Zeroizing<String>> {
        let mut text = Zeroizing::new(String::new());
        let input: Box<dyn Read> =
            if path == Path::new("-") { Box::new(io::stdin().lock()) } else { Box::new(files::open(path)?) };
        input.take(KEY_FILE_MAX).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|source| SealKeyError::File { path: path.display().to_string(), source })
}

/// The keys of a file, one a line, as age-keygen writes it: those that decrypt, and those that only encrypt.
fn keys(path: &Path) -> Result<(Vec<Identity>, Vec<Recipient>), SealKeyError> {
    let text = read_small(path)?;
    let lines = || text.lines().map(str::trim);
    let secret: Vec<_> = lines().filter_map(|line| Identity::from_str(line).ok()).collect();
    let public: Vec<_> = lines().filter_map(|line| Recipient::from_str(line).ok()).collect();
    if secret.is_empty() && public.is_empty() {
        return Err(SealKeyError::NoKey(path.display().to_string()));
    }
    Ok((secret, public))
}

/// Whom a key file stands for: the public halves of its secret keys, and the public ones in it.
///
/// # Errors
///
/// [`SealKeyError`] when it cannot be read or holds none.
pub fn recipients_of(path: &Path) -> Result<Vec<Recipient>, SealKeyError> {
    let (secret, public) = keys(path)?;
    Ok(secret.iter().map(Identity::to_public).chain(public).collect())
}

/// The secret keys of a file.
///
/// # Errors
///
/// [`SealKeyError`] when it cannot be read or holds none.
pub fn identities_of(path: &Path) -> Result<Vec<Identity>, SealKeyError> {
    let (secret, _) = keys(path)?;
    if secret.is_empty() { Err(SealKeyError::NoSecretKey(path.display().to_string())) } else { Ok(secret) }
}

/// The passphrase in a file (`-` is standard input): its first line.
///
/// # Errors
///
/// [`SealKeyError::File`].
pub fn passphrase_of(path: &Path) -> Result<SecretString, SealKeyError> {
    let text = read_small(path)?;
    Ok(text.lines().next().unwrap_or_default().to_owned().into())
}

/// A passphrase to encrypt with.
///
/// # Errors
///
/// [`SealKeyError::Short`].
pub fn strong(passphrase: SecretString) -> Result<SecretString, SealKeyError> {
    if passphrase.expose_secret().chars().count() < PASSPHRASE_MIN { Err(SealKeyError::Short) } else { Ok(passphrase) }
}

/// Packs and encrypts what is written to it.
pub enum Sealing<W: Write> {
    /// Packed, then encrypted.
    Encrypted(Box<zstd::Encoder<'static, age::stream::StreamWriter<W>>>),
    /// Packed.
    Packed(Box<zstd::Encoder<'static, W>>),
}

impl<W: Write> Sealing<W> {
    /// Begins a file.
    ///
    /// # Errors
    ///
    /// Those of the writer.
    pub fn new(out: W, seal: &Seal) -> io::Result<Self> {
        let mut by_passphrase = None;
        let recipients: Vec<&dyn age::Recipient> = match seal {
            Seal::Recipients(keys) => keys.iter().map(|key| key as &dyn age::Recipient).collect(),
            Seal::Passphrase(passphrase) => {
                let recipient = scrypt::Recipient::new(passphrase.expose_secret().to_owned().into());
                let recipient = by_passphrase.insert(recipient);
                recipient.set_work_factor(WORK);
                vec![recipient]
            }
            Seal::Nobody => return Ok(Self::Packed(Box::new(packer(out)?))),
        };
        let age = age::Encryptor::with_recipients(recipients.into_iter()).map_err(io::Error::other)?;
        let out = age.wrap_output(out)?;
        Ok(Self::Encrypted(Box::new(packer(out)?)))
    }

    /// Ends the file. Without this it is cut off.
    ///
    /// # Errors
    ///
    /// Those of the writer.
    pub fn finish(self) -> io::Result<W> {
        match self {
            Self::Encrypted(packer) => packer.finish()?.finish(),
            Self::Packed(packer) => packer.finish(),
        }
    }
}

fn packer<W: Write>(out: W) -> io::Result<zstd::Encoder<'static, W>> {
    let mut packer = zstd::Encoder::new(out, 0)?;
    packer.include_checksum(true)?;
    Ok(packer)
}

impl<W: Write> Write for Sealing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Encrypted(packer) => packer.write(bytes),
            Self::Packed(packer) => packer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Encrypted(packer) => packer.flush(),
            Self::Packed(packer) => packer.flush(),
        }
    }
}

/// What a file needs to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needed {
    /// A passphrase.
    Passphrase,
    /// A secret key.
    Key,
}

/// What reads a file.
pub enum Unlock {
    /// A passphrase.
    Passphrase(SecretString),
    /// Secret keys.
    Keys(Vec<Identity>),
}

/// A file cannot be decrypted.
#[derive(Debug, thiserror::Error)]
pub enum UnsealError {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// Another passphrase.
    #[error("the passphrase is not the one that it was encrypted with")]
    Passphrase,
    /// Another key.
    #[error("none of the keys is one that it was encrypted for")]
    Key,
    /// The other way.
    #[error("it is encrypted {}", match .0 {
        Needed::Passphrase => "with a passphrase: --passphrase-file, or without it you are asked",
        Needed::Key => "for a key: --key-file FILE",
    })]
    Needs(Needed),
    /// Text that age can make and Slipway does not read.
    #[error("it is armored: `age -d` reads it, and `slipway restore -` what comes of that")]
    Armored,
    /// It was changed.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// Whoever was asked for the key had none.
    #[error(transparent)]
    Asked(#[from] anyhow::Error),
}

/// The plain text of a file: decrypted and unpacked when it is encrypted and packed. `ask` is asked for what it needs.
///
/// # Errors
///
/// [`UnsealError`]; what is wrong further on comes from reading.
pub fn open<'r>(
    mut input: impl Read + 'r,
    ask: impl FnOnce(Needed) -> anyhow::Result<Unlock>,
) -> Result<Box<dyn Read + 'r>, UnsealError> {
    let mut start = Vec::new();
    input.by_ref().take(START).read_to_end(&mut start)?;
    let encrypted = start.starts_with(AGE);
    if encrypted && let Some(factor) = work_factor(&start).filter(|factor| *factor > WORK_MAX.into()) {
        return Err(UnsealError::Damaged(format!(
            "its passphrase is to be worked on for 2^{factor} rounds, and 2^{WORK_MAX} are taken"
        )));
    }
    if start.starts_with(AGE_ARMOR) {
        return Err(UnsealError::Armored);
    }
    let whole = BufReader::new(io::Cursor::new(start).chain(input));
    if !encrypted {
        return unpacked(whole);
    }
    let age = age::Decryptor::new_buffered(whole).map_err(|error| UnsealError::Damaged(error.to_string()))?;
    let needed = if age.is_scrypt() { Needed::Passphrase } else { Needed::Key };
    let plain = match (needed, ask(needed)?) {
        (Needed::Passphrase, Unlock::Passphrase(passphrase)) => {
            let mut identity = scrypt::Identity::new(passphrase.expose_secret().to_owned().into());
            identity.set_max_work_factor(WORK_MAX);
            age.decrypt(std::iter::once(&identity as &dyn age::Identity))
        }
        (Needed::Key, Unlock::Keys(keys)) => age.decrypt(keys.iter().map(|key| key as &dyn age::Identity)),
        _ => return Err(UnsealError::Needs(needed)),
    };
    let plain = plain.map_err(|error| match (error, needed) {
        (age::DecryptError::NoMatchingKeys | age::DecryptError::DecryptionFailed, Needed::Key) => UnsealError::Key,
        (age::DecryptError::KeyDecryptionFailed, Needed::Key) => UnsealError::Key,
        (
            age::DecryptError::NoMatchingKeys
            | age::DecryptError::DecryptionFailed
            | age::DecryptError::KeyDecryptionFailed,
            Needed::Passphrase,
        ) => UnsealError::Passphrase,
        (error, _) => UnsealError::Damaged(error.to_string().lines().next().unwrap_or_default().to_owned()),
    })?;
    unpacked(BufReader::new(plain))
}

/// The work factor of a file for a passphrase, by its header (<https://age-encryption.org/v1>). It is looked at before age does,
/// which does not stand every number in it.
fn work_factor(header: &[u8]) -> Option<u64> {
    let stanza = header.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"-> scrypt "))?;
    let factor = std::str::from_utf8(stanza).ok()?.split(' ').nth(1)?;
    Some(factor.parse().unwrap_or(u64::MAX))
}

/// Unpacks what is packed.
fn unpacked<'r>(mut input: impl io::BufRead + 'r) -> Result<Box<dyn Read + 'r>, UnsealError> {
    let mut start = Vec::new();
    input.by_ref().take(ZSTD.len() as u64).read_to_end(&mut start)?;
    let packed = start == ZSTD;
    let whole = io::Cursor::new(start).chain(input);
    if packed { Ok(Box::new(zstd::Decoder::new(whole)?)) } else { Ok(Box::new(whole)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(seal: &Seal) -> Vec<u8> {
        let mut sealing = Sealing::new(Vec::new(), seal).unwrap();
        sealing.write_all(&b"some text, ".repeat(20_000)).unwrap();
        sealing.finish().unwrap()
    }

    fn opened(file: &[u8], ask: impl FnOnce(Needed) -> anyhow::Result<Unlock>) -> Result<Vec<u8>, String> {
        let mut text = Vec::new();
        let mut plain = open(file, ask).map_err(|error| error.to_string())?;
        plain.read_to_end(&mut text).map_err(|error| error.to_string())?;
        Ok(text)
    }

    fn key(text: &SecretString) -> Identity {
        text.expose_secret().lines().find_map(|line| line.parse().ok()).unwrap()
    }

    #[test]
    fn a_key_opens_what_was_sealed_for_it_and_no_other_does() {
        let now = "2026-11-22T07:00:00Z".parse().unwrap();
        let ((one, secret), (two, other)) = (new_key(now), new_key(now));
        let (_, foreign) = new_key(now);
        assert!(secret.expose_secret().starts_with("# created: 2026-11-22T07:00:00Z\n# public key: age1"));
        let file = sealed(&Seal::Recipients(vec![one, two]));
        let text = b"some text, ".repeat(20_000);
        assert!(file.len() < 2000, "{} bytes", file.len());
        for good in [&secret, &other] {
            let open = opened(&file, |needed| {
                assert_eq!(needed, Needed::Key);
                Ok(Unlock::Keys(vec![key(&foreign), key(good)]))
            });
            assert_eq!(open.unwrap(), text);
        }
        let error = opened(&file, |_| Ok(Unlock::Keys(vec![key(&foreign)]))).unwrap_err();
        assert!(error.contains("none of the keys"), "{error}");
        let error = opened(&file, |_| Ok(Unlock::Passphrase("x".to_owned().into()))).unwrap_err();
        assert!(error.contains("--key-file"), "{error}");
        assert_eq!(opened(&sealed(&Seal::Nobody), |_| panic!("nothing is needed")).unwrap(), text);
        assert_eq!(opened(&text, |_| panic!("nothing is needed")).unwrap(), text);
    }

    #[test]
    fn every_cut_and_every_changed_byte_of_an_encrypted_file_is_noticed() {
        let (recipient, secret) = new_key("2026-11-22T07:00:00Z".parse().unwrap());
        let file = sealed(&Seal::Recipients(vec![recipient]));
        let open = |file: &[u8]| opened(file, |_| Ok(Unlock::Keys(vec![key(&secret)])));
        assert!(open(&file).is_ok());
        // Cut before the name of the format is complete it is taken for plain text, which is no backup either.
        for length in AGE.len()..file.len() {
            assert!(open(&file[..length]).is_err(), "cut to {length}");
        }
        for at in AGE.len()..file.len() {
            let mut changed = file.clone();
            changed[at] ^= 0x10;
            assert!(open(&changed).is_err(), "byte {at}");
        }
        assert!(open(&[&file[..], b"x"].concat()).is_err());
    }

    #[test]
    fn a_passphrase_that_would_take_for_ever_is_not_worked_on() {
        let file = sealed(&Seal::Passphrase("correct horse battery".to_owned().into()));
        let end = file.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(1).unwrap().0;
        assert_eq!(&file[end - 3..end], format!(" {WORK}").as_bytes());
        for factor in ["21", "63", "99999999999999999999", "x"] {
            let changed = [&file[..end - 2], factor.as_bytes(), &file[end..]].concat();
            let error = opened(&changed, |_| panic!("nobody is asked")).unwrap_err();
            assert!(error.contains("and 2^20 are taken"), "{factor}: {error}");
        }
    }

    #[test]
    fn a_passphrase_opens_what_was_sealed_with_it_and_no_other_does() {
        let seal = Seal::Passphrase("correct horse battery".to_owned().into());
        let file = sealed(&seal);
        let open = |text: &str| {
            opened(&file, |needed| {
                assert_eq!(needed, Needed::Passphrase);
                Ok(Unlock::Passphrase(text.to_owned().into()))
            })
        };
        assert_eq!(open("correct horse battery").unwrap().len(), 220_000);
        let error = open("correct horse batter").unwrap_err();
        assert!(error.contains("the passphrase is not"), "{error}");
    }

    #[test]
    fn key_files_are_read_as_age_writes_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        let (recipient, text) = new_key("2026-11-22T07:00:00Z".parse().unwrap());
        std::fs::write(&file, text.expose_secret()).unwrap();
        assert_eq!(recipients_of(&file).unwrap(), std::slice::from_ref(&recipient));
        assert_eq!(identities_of(&file).unwrap().len(), 1);
        std::fs::write(&file, format!("# to\n{recipient}\r\n")).unwrap();
        assert_eq!(recipients_of(&file).unwrap(), [recipient]);
        assert!(matches!(identities_of(&file), Err(SealKeyError::NoSecretKey(_))));
        std::fs::write(&file, "hello\n").unwrap();
        assert!(matches!(recipients_of(&file), Err(SealKeyError::NoKey(_))));
        assert!(matches!(recipients_of(&folder.path().join("none")), Err(SealKeyError::File { .. })));
        std::fs::write(&file, "a passphrase of words\nignored\n").unwrap();
        assert_eq!(passphrase_of(&file).unwrap().expose_secret(), "a passphrase of words");
        for (text, strong) in [("", false), ("elevenchars", false), ("twelve chars", true)] {
            assert_eq!(super::strong(text.to_owned().into()).is_ok(), strong, "{text}");
        }
        assert!(super::recipient("age1x").is_err());
    }
}
