//! Published checksums: a bare hash, or the URL of a file of sums.
//!
//! A checksum is of the file as published, before anything is unpacked, as with OpenStack Ironic. A file of
//! sums may hold one bare hash, `hash  name` and `hash *name` lines as coreutils write them,
//! `ALGORITHM (name) = hash` lines as BSD writes them, comments, and an OpenPGP clear-text signature (RFC 9580,
//! section 7) around it all, which is not verified. Lines are matched by the base name of the image's URL.

use md5::Md5;
use reqwest::Url;
use sha2::{Digest, Sha256, Sha512};

use super::fetch::{SourceFetcher, shown};
use super::{ImportError, hex};
use crate::api::metal3::ChecksumType;
use crate::api::slipway::ImageSpec;

/// Longest file of sums, in bytes; whole distributions' lists are under 1 MiB.
const MAX_SUMS: usize = 4 << 20;

/// Longest name of another file that an error repeats, in characters.
const MAX_NAME: usize = 100;

/// A hash algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Algorithm {
    Md5,
    Sha256,
    Sha512,
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Self::Md5 => "md5",
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    fn digits(self) -> usize {
        match self {
            Self::Md5 => 32,
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }

    fn by_digits(digits: usize) -> Option<Self> {
        [Self::Md5, Self::Sha256, Self::Sha512].into_iter().find(|a| a.digits() == digits)
    }

    pub(super) fn wanted(kind: Option<ChecksumType>) -> Option<Self> {
        match kind? {
            ChecksumType::Md5 => Some(Self::Md5),
            ChecksumType::Sha256 => Some(Self::Sha256),
            ChecksumType::Sha512 => Some(Self::Sha512),
            ChecksumType::Auto => None,
        }
    }
}

/// What the source must hash to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) algorithm: Algorithm,
    /// Lower-case hex.
    pub(super) hash: String,
    /// The file of sums that said so.
    pub(super) sums: Option<String>,
}

impl Expected {
    /// What the spec expects; `None` when it has no checksum. Fetches the file of sums where there is one.
    pub(super) async fn of(
        fetcher: &SourceFetcher,
        spec: &ImageSpec,
        image: &Url,
    ) -> Result<Option<Self>, ImportError> {
        let Some(checksum) = spec.checksum.as_deref().map(str::trim).filter(|c| !c.is_empty()) else {
            return Ok(None);
        };
        let wanted = Algorithm::wanted(spec.checksum_type);
        if !checksum.contains("://") {
            return bare(checksum, wanted).map(Some);
        }
        let url: Url =
            checksum.parse().map_err(|e| ImportError::lasting(format!("the URL of the file of checksums: {e}")))?;
        let at = shown(&url);
        let text = fetcher.text(&url, MAX_SUMS).await.map_err(|error| ImportError {
            message: format!("the file of checksums cannot be read: {}", error.message),
            ..error
        })?;
        let found = find(&text, &base_name(image), wanted)
            .map_err(|reason| ImportError::passing(format!("file of checksums {at}: {reason}")))?;
        Ok(Some(Self { sums: Some(at), ..found }))
    }

    /// Compares with what was read.
    pub(super) fn check(&self, image: &str, hash: &str) -> Result<(), ImportError> {
        if self.hash == hash {
            return Ok(());
        }
        let name = self.algorithm.name();
        let expected = &self.hash;
        Err(match &self.sums {
            // The list may be ahead of the file or behind it, and either can be put right where they come from.
            Some(sums) => ImportError::passing(format!(
                "{image}: its {name} is {hash}, but {sums} says {expected}: the file is damaged or one of them is out \
                 of date"
            )),
            None => ImportError::lasting(format!(
                "{image}: its {name} is {hash}, but the spec says {expected}: correct the checksum or the URL"
            )),
        })
    }
}

/// Base name of a URL's path, percent-decoded.
pub(super) fn base_name(url: &Url) -> String {
    let last = url.path().rsplit('/').next().unwrap_or_default().as_bytes();
    let mut name = Vec::with_capacity(last.len());
    let mut rest = last;
    while let Some((&first, tail)) = rest.split_first() {
        let digit = |at: usize| tail.get(at).and_then(|d| (*d as char).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                name.push((high << 4 | low) as u8);
                rest = &tail[2..];
            }
            _ => {
                name.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&name).into_owned()
}

fn is_hash(text: &str) -> bool {
    Algorithm::by_digits(text.len()).is_some() && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Judges a checksum before anything is fetched. Of a URL nothing is known yet.
///
/// # Errors
///
/// What is wrong with it.
pub fn judge(text: &str) -> Result<(), String> {
    let text = text.trim();
    if text.contains("://") {
        return Ok(());
    }
    bare(text, None).map(drop).map_err(|error| error.message)
}

/// A checksum that is no URL.
pub(super) fn bare(text: &str, wanted: Option<Algorithm>) -> Result<Expected, ImportError> {
    let fail = |reason: String| Err(ImportError::lasting(format!("checksum {text:?}: {reason}")));
    if !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return fail("it must be hex digits, or the URL of a file of checksums".into());
    }
    match (Algorithm::by_digits(text.len()), wanted) {
        (None, _) => fail(format!("it has {} digits; md5 has 32, sha256 has 64 and sha512 has 128", text.len())),
        (Some(found), Some(wanted)) if found != wanted => {
            fail(format!("checksumType is {}, but its length is that of {}", wanted.name(), found.name()))
        }
        (Some(algorithm), _) => Ok(Expected { algorithm, hash: text.to_ascii_lowercase(), sums: None }),
    }
}

/// Finds an image in a file of sums. Of several algorithms the strongest counts unless one is wanted.
fn find(text: &str, image: &str, wanted: Option<Algorithm>) -> Result<Expected, String> {
    let entries: Vec<(&str, Option<&str>)> = unsigned(text).filter_map(entry).collect();
    let matching: Vec<&str> = match entries.as_slice() {
        [] => return Err("there is no md5, sha256 or sha512 checksum in it".into()),
        [(hash, None)] => vec![hash],
        _ => entries.iter().filter(|(_, name)| *name == Some(image)).map(|(hash, _)| *hash).collect(),
    };
    if matching.is_empty() {
        // Whoever publishes the file says what they are.
        let short = |name: &str| super::clean(name, MAX_NAME);
        let mut others: Vec<String> = entries.iter().filter_map(|(_, name)| *name).take(5).map(short).collect();
        others.dedup();
        return Err(format!("{image} is not named in it; it names {}", others.join(", ")));
    }
    let hashes = matching.into_iter().filter_map(|hash| Some((Algorithm::by_digits(hash.len())?, hash)));
    let best = hashes.filter(|(algorithm, _)| wanted.is_none_or(|wanted| wanted == *algorithm)).max_by_key(|h| h.0);
    match (best, wanted) {
        (Some((algorithm, hash)), _) => Ok(Expected { algorithm, hash: hash.to_ascii_lowercase(), sums: None }),
        (None, wanted) => Err(format!("it has no {} checksum of {image}", wanted.map_or("usable", Algorithm::name))),
    }
}

/// Lines without the frame of a clear-text signature.
fn unsigned(text: &str) -> impl Iterator<Item = &str> {
    let signed = text.lines().any(|line| line.trim_end() == "-----BEGIN PGP SIGNED MESSAGE-----");
    let mut in_head = signed;
    text.lines()
        .skip_while(move |line| signed && line.trim_end() != "-----BEGIN PGP SIGNED MESSAGE-----")
        .take_while(|line| line.trim_end() != "-----BEGIN PGP SIGNATURE-----")
        .filter(move |line| {
            let head = in_head;
            // The head ends with the first empty line.
            in_head = in_head && !line.trim().is_empty();
            !head
        })
        .map(|line| line.strip_prefix("- ").unwrap_or(line).trim())
}

/// Hash and base name of one line.
fn entry(line: &str) -> Option<(&str, Option<&str>)> {
    if line.starts_with('#') {
        return None;
    }
    let base = |name: &'_ str| -> Option<usize> { name.rfind('/').map(|at| at + 1) };
    // BSD and `openssl dgst`: ALGORITHM (name) = hash, ALGORITHM(name)= hash.
    if let Some((left, hash)) = line.rsplit_once('=')
        && let (Some(open), Some(name)) = (left.find('('), left.trim_end().strip_suffix(')'))
        && is_hash(hash.trim())
    {
        let name = name.get(open + 1..)?;
        return Some((hash.trim(), Some(&name[base(name).unwrap_or(0)..])));
    }
    // coreutils put a backslash before lines whose name is escaped.
    let line = line.strip_prefix('\\').unwrap_or(line);
    let (hash, name) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    if !is_hash(hash) {
        return None;
    }
    let name = name.trim_start().trim_start_matches('*');
    let name = &name[base(name).unwrap_or(0)..];
    Some((hash, Some(name).filter(|name| !name.is_empty())))
}

/// Hashes the source as it passes: by SHA-256, which is its identity, and by what its checksum is of.
pub(super) struct SourceHasher {
    sha256: Sha256,
    other: Option<Other>,
    wanted: Option<Algorithm>,
}

enum Other {
    Md5(Box<Md5>),
    Sha512(Box<Sha512>),
}

/// Lower-case hex.
pub(super) struct Hashes {
    pub(super) sha256: String,
    /// By the algorithm that was wanted.
    pub(super) wanted: Option<String>,
}

impl SourceHasher {
    pub(super) fn new(wanted: Option<Algorithm>) -> Self {
        let other = match wanted {
            None | Some(Algorithm::Sha256) => None,
            Some(Algorithm::Md5) => Some(Other::Md5(Box::default())),
            Some(Algorithm::Sha512) => Some(Other::Sha512(Box::default())),
        };
        Self { sha256: Sha256::default(), other, wanted }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        match &mut self.other {
            None => {}
            Some(Other::Md5(hasher)) => hasher.update(bytes),
            Some(Other::Sha512(hasher)) => hasher.update(bytes),
        }
    }

    pub(super) fn finish(self) -> Hashes {
        let sha256 = hex(&self.sha256.finalize());
        let wanted = match self.other {
            None => self.wanted.map(|_| sha256.clone()),
            Some(Other::Md5(hasher)) => Some(hex(&hasher.finalize())),
            Some(Other::Sha512(hasher)) => Some(hex(&hasher.finalize())),
        };
        Hashes { sha256, wanted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MD5: &str = "0123456789abcdef0123456789abcdef";
    const OTHER: &str = "ffffffffffffffffffffffffffffffff";

    #[test]
    fn every_published_form_of_a_file_of_sums_is_read() {
        let sha256 = MD5.repeat(2);
        let sha512 = MD5.repeat(4);
        let signed = format!(
            "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n{OTHER} *a.img\n- {MD5} *disk.img\n\
             -----BEGIN PGP SIGNATURE-----\n\niQIzBAEBCAAdFiEE\n{OTHER}  disk.img\n-----END PGP SIGNATURE-----\n"
        );
        for (text, algorithm, hash) in [
            (format!("{MD5}\n"), Algorithm::Md5, MD5),
            (format!("\n  {MD5}"), Algorithm::Md5, MD5),
            (MD5.to_uppercase(), Algorithm::Md5, MD5),
            (format!("{OTHER}  a.img\n{MD5}  disk.img\n"), Algorithm::Md5, MD5),
            (format!("{OTHER} *a.img\r\n{MD5} *disk.img\r\n"), Algorithm::Md5, MD5),
            (format!("{OTHER}  ./x/a.img\n{MD5}  ./x/disk.img\n"), Algorithm::Md5, MD5),
            (
                format!("# disk.img: 5 bytes\nMD5 (disk.img) = {MD5}\nSHA256 (disk.img) = {sha256}"),
                Algorithm::Sha256,
                &sha256,
            ),
            (format!("SHA512(disk.img)= {sha512}"), Algorithm::Sha512, &sha512),
            (format!("MD5 (we(ird).img) = {OTHER}\nMD5 (dir/disk.img) = {MD5}"), Algorithm::Md5, MD5),
            (signed, Algorithm::Md5, MD5),
        ] {
            let found = find(&text, "disk.img", None).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!((found.algorithm, found.hash.as_str()), (algorithm, hash), "{text}");
        }
        let both = format!("MD5 (disk.img) = {MD5}\nSHA256 (disk.img) = {sha256}");
        assert_eq!(find(&both, "disk.img", Some(Algorithm::Md5)).map(|e| e.hash), Ok(MD5.to_owned()));
        for (text, part) in [
            (format!("{OTHER}  a.img\n"), "disk.img is not named in it; it names a.img"),
            (format!("{OTHER}  notdisk.img\n{OTHER}  disk.img.xz"), "is not named"),
            (format!("{OTHER}  {}\u{1b}[2J\n", "a".repeat(1 << 20)), &*format!("it names {}…", "a".repeat(100))),
            (format!("{OTHER}  a\u{1b}[2J"), "it names a [2J"),
            (String::new(), "no md5"),
            ("<html>404</html>".into(), "no md5"),
            (format!("{}  disk.img", "a".repeat(40)), "no md5"),
        ] {
            let error = find(&text, "disk.img", None).expect_err("not found");
            assert!(error.contains(part), "{error}");
        }
        let error = find(&both, "disk.img", Some(Algorithm::Sha512)).expect_err("no such algorithm");
        assert!(error.contains("no sha512"), "{error}");
    }

    #[test]
    fn a_bare_hash_must_fit_its_type() {
        assert_eq!(bare(&MD5.to_uppercase(), None).map(|e| e.hash), Ok(MD5.to_owned()));
        assert_eq!(bare(&MD5.repeat(4), Some(Algorithm::Sha512)).map(|e| e.algorithm), Ok(Algorithm::Sha512));
        for (text, wanted, part) in [
            (MD5, Some(Algorithm::Sha256), "checksumType is sha256"),
            ("0123", None, "4 digits"),
            ("sha256", None, "hex digits"),
        ] {
            let error = bare(text, wanted).expect_err("refused");
            assert!(error.message.contains(part) && !error.retry, "{error}");
        }
    }

    #[test]
    fn names_come_from_the_path_alone() {
        for (url, name) in [
            ("http://h/a/b%20c.img?x=/y", "b c.img"),
            ("http://h/a/%zz.img", "%zz.img"),
            ("http://h/", ""),
            ("file:///srv/x.raw.xz", "x.raw.xz"),
        ] {
            assert_eq!(base_name(&url.parse().expect("url")), name);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "(-----BEGIN PGP SIGNED MESSAGE-----\n)?([0-9a-f]{32}|[ ()=*/\\\\#\n€a-f]){0,60}") {
            let _ = find(&text, "a", None);
            let _ = bare(&text, None);
        }
    }
}
