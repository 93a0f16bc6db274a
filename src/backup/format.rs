//! The text of a backup, format 1: lines of JSON.
//!
//! | line | what |
//! |---|---|
//! | first | `{"slipwayBackup":1,…}`: the format, who made it, when, of which CA, at which revision, how many lines of each kind follow |
//! | objects | `{"object":{"resource","namespace","name","revision","json"}}`: `json` is the object as the store has it, byte by byte; in order of resource, namespace and name |
//! | entries | `{"entry":{"table","key","value"}}`: key and value in base64 |
//! | files | `{"file":{"name","text"}}`: `pki/ca.crt`, `pki/ca.key`, `pki/client-series`, `pki/tokens.key`, `slipway.toml` |
//! | last | `{"end":{"objects","entries","files","sha256"}}`: how many there were, and the SHA-256 of all lines before this one |
//!
//! A format once released is read by every later version. What changes makes a new number and a new reader beside this one.

use std::borrow::Cow;
use std::io::{self, BufRead, Read, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::hex::hex;
use crate::store::{KEY_LIMIT, OBJECT_LIMIT, Object};

/// The format that is written.
pub const FORMAT: u32 = 1;

/// Longest line that is read, in bytes: an object of the largest size with its names, or a value in base64.
const LINE_MAX: usize = 4 << 20;

/// Largest file that a backup holds, in bytes.
pub const FILE_MAX: usize = 256 << 10;

/// Names of the files.
pub const FILES: [&str; 5] = ["pki/ca.crt", "pki/ca.key", "pki/tokens.key", "pki/client-series", "slipway.toml"];

/// The first line.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Header {
    /// The format.
    pub slipway_backup: u32,
    /// Version of Slipway that made it.
    pub made_by: String,
    /// When it was taken.
    pub time: Timestamp,
    /// SHA-256 of the CA's certificate, in hex: which appliance.
    pub ca: String,
    /// The store's revision.
    pub revision: u64,
    /// Objects that follow.
    pub objects: u64,
    /// Entries that follow.
    pub entries: u64,
    /// Files that follow.
    pub files: u64,
}

impl Header {
    /// Lines that follow, but for the last.
    pub fn lines(&self) -> u64 {
        self.objects.saturating_add(self.entries).saturating_add(self.files)
    }
}

/// Only the format, to tell a newer one.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BackupFormat {
    slipway_backup: u32,
    made_by: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
enum BackupLine<'l> {
    #[serde(borrow)]
    Object(ObjectLine<'l>),
    #[serde(borrow)]
    Entry(EntryLine<'l>),
    #[serde(borrow)]
    File(FileLine<'l>),
    End(EndLine),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ObjectLine<'l> {
    #[serde(borrow)]
    resource: Cow<'l, str>,
    #[serde(borrow)]
    namespace: Cow<'l, str>,
    #[serde(borrow)]
    name: Cow<'l, str>,
    revision: u64,
    #[serde(borrow)]
    json: &'l RawValue,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryLine<'l> {
    #[serde(borrow)]
    table: Cow<'l, str>,
    #[serde(borrow)]
    key: Cow<'l, str>,
    #[serde(borrow)]
    value: Cow<'l, str>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileLine<'l> {
    #[serde(borrow)]
    name: Cow<'l, str>,
    #[serde(borrow)]
    text: Cow<'l, str>,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct EndLine {
    objects: u64,
    entries: u64,
    files: u64,
    sha256: String,
}

/// What a line says.
pub enum BackupItem {
    /// An object.
    Object(Object),
    /// An entry of a table.
    Entry {
        /// The table.
        table: String,
        /// Its key.
        key: Bytes,
        /// Its value.
        value: Bytes,
    },
    /// A file.
    File {
        /// One of [`FILES`].
        name: String,
        /// What is in it.
        text: String,
    },
}

/// How many lines of each kind there were.
#[derive(Clone, Copy, Default)]
struct LineCounts {
    objects: u64,
    entries: u64,
    files: u64,
}

impl LineCounts {
    fn end(self, sha256: Sha256) -> EndLine {
        let Self { objects, entries, files } = self;
        EndLine { objects, entries, files, sha256: hex(&sha256.finalize()) }
    }
}

/// Writes a backup, line by line.
pub struct BackupWriter<W> {
    out: W,
    sha256: Sha256,
    counts: LineCounts,
    line: Vec<u8>,
}

impl<W: Write> BackupWriter<W> {
    /// Writes the first line.
    ///
    /// # Errors
    ///
    /// Those of the writer.
    pub fn new(out: W, header: &Header) -> io::Result<Self> {
        let mut writer = Self { out, sha256: Sha256::new(), counts: LineCounts::default(), line: Vec::new() };
        writer.put(header)?;
        Ok(writer)
    }

    /// Writes an object.
    ///
    /// # Errors
    ///
    /// Those of the writer.
    pub fn object(&mut self, object: &Object) -> io::Result<()> {
        let mut json = object.json().to_vec();
        // Only between the parts of a text of another writer than ours; inside strings they are escaped.
        json.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
        let line = BackupLine::Object(ObjectLine {
            resource: Cow::Borrowed(&object.resource),
            namespace: Cow::Borrowed(&object.namespace),
            name: Cow::Borrowed(&object.name),
            revision: object.revision,
            json: serde_json::from_slice(&json)?,
        });
        self.counts.objects += 1;
        self.put(&line)
    }

    /// Writes an entry of a table.
    ///
    /// # Errors
    ///
    /// Those of the writer.
    pub fn entry(&mut self, table: &str, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.counts.entries += 1;
        let (key, value) = (STANDARD.encode(key).into(), STANDARD.encode(value).into());
        self.put(&BackupLine::Entry(EntryLine { table: table.into(), key, value }))
    }

    /// Writes a file.
    ///
    /// # Errors
    ///
    /// Those of the writer.
    pub fn file(&mut self, name: &str, text: &str) -> io::Result<()> {
        self.counts.files += 1;
        self.put(&BackupLine::File(FileLine { name: name.into(), text: text.into() }))
    }

    /// Writes the last line.
    ///
    /// # Errors
    ///
    /// Those of the writer.
    pub fn finish(mut self) -> io::Result<W> {
        let end = self.counts.end(self.sha256.clone());
        self.put(&BackupLine::End(end))?;
        Ok(self.out)
    }

    fn put(&mut self, line: &impl Serialize) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, line)?;
        self.line.push(b'\n');
        self.sha256.update(&self.line);
        self.out.write_all(&self.line)
    }
}

/// A backup cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be read, or what unpacks and decrypts it found it damaged.
    #[error("it cannot be read to its end: {0}")]
    Io(#[from] io::Error),
    /// It ends too early.
    #[error("it was cut off after {0} lines")]
    Cut(u64),
    /// It is something else.
    #[error("it is no backup of Slipway")]
    Other,
    /// A later version made it.
    #[error(
        "it has the format {0}, made by slipway {1}, and this version reads format {FORMAT}: use that version or a later one"
    )]
    Newer(u32, String),
    /// A line is not what it should be.
    #[error("its line {0} is damaged: {1}")]
    Line(u64, String),
    /// Whoever got the lines refused one.
    #[error(transparent)]
    Refused(#[from] anyhow::Error),
}

/// Reads a backup to its end and checks all of it: each line, the order, the counts, the SHA-256. `each` gets every line
/// after the first before the last is checked, so nothing may come of them unless this returns `Ok`.
///
/// # Errors
///
/// [`ReadError`].
pub fn read(
    input: impl Read,
    mut each: impl FnMut(&Header, BackupItem) -> anyhow::Result<()>,
) -> Result<Header, ReadError> {
    let mut input = io::BufReader::with_capacity(64 << 10, input);
    let mut sha256 = Sha256::new();
    let mut counts = LineCounts::default();
    let mut line = Vec::new();
    next_line(&mut input, &mut line, 0)?;
    let header = parse_header(&line)?;
    sha256.update(&line);
    let mut before: Option<(String, String, String)> = None;
    for number in 2.. {
        next_line(&mut input, &mut line, number - 1)?;
        let bad = |reason: &dyn std::fmt::Display| ReadError::Line(number, reason.to_string());
        let item = match serde_json::from_slice(&line).map_err(|error| bad(&error))? {
            BackupLine::Object(object) => {
                let place = (object.resource.to_string(), object.namespace.to_string(), object.name.to_string());
                if before.as_ref().is_some_and(|before| *before >= place) {
                    return Err(bad(&"it is out of order"));
                }
                let object = checked(&object, header.revision).map_err(|reason| bad(&reason))?;
                before = Some(place);
                counts.objects += 1;
                BackupItem::Object(object)
            }
            BackupLine::Entry(EntryLine { table, key, value }) => {
                let bytes = |text: &str, most: usize| {
                    STANDARD.decode(text).ok().filter(|bytes| bytes.len() <= most).map(Bytes::from)
                };
                let (Some(key), Some(value)) = (bytes(&key, KEY_LIMIT), bytes(&value, OBJECT_LIMIT)) else {
                    return Err(bad(&"an entry's key or value is not base64 or too long"));
                };
                if table.is_empty() || table.len() > 64 || table.contains('\0') {
                    return Err(bad(&"a table has no such name"));
                }
                counts.entries += 1;
                BackupItem::Entry { table: table.into_owned(), key, value }
            }
            BackupLine::File(FileLine { name, text }) => {
                if !FILES.contains(&&*name) || text.len() > FILE_MAX {
                    return Err(bad(&format_args!("no backup holds a file {name:?} of {} bytes", text.len())));
                }
                counts.files += 1;
                BackupItem::File { name: name.into_owned(), text: text.into_owned() }
            }
            BackupLine::End(end) => {
                let wanted = counts.end(sha256);
                let promised = (header.objects, header.entries, header.files);
                if end != wanted
                    || promised != (wanted.objects, wanted.entries, wanted.files)
                    || !is_canonical(&BackupLine::End(end), &line)
                {
                    return Err(bad(&"the lines before it are not those that were written"));
                }
                let mut rest = [0];
                if input.read(&mut rest)? > 0 {
                    return Err(bad(&"something follows it"));
                }
                return Ok(header);
            }
        };
        sha256.update(&line);
        each(&header, item)?;
    }
    Err(ReadError::Other)
}

/// Reads one line with its end.
fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>, whole: u64) -> Result<(), ReadError> {
    line.clear();
    let most = LINE_MAX as u64;
    input.take(most).read_until(b'\n', line)?;
    match line.last() {
        Some(b'\n') => Ok(()),
        Some(_) if line.len() >= LINE_MAX => Err(ReadError::Line(whole + 1, "it is too long".into())),
        Some(_) if whole == 0 && !line.starts_with(b"{") => Err(ReadError::Other),
        _ => Err(ReadError::Cut(whole)),
    }
}

fn parse_header(line: &[u8]) -> Result<Header, ReadError> {
    let Ok(format) = serde_json::from_slice::<BackupFormat>(line) else { return Err(ReadError::Other) };
    if format.slipway_backup != FORMAT {
        let version = format.made_by.unwrap_or_else(|| "of another version".into());
        return Err(ReadError::Newer(format.slipway_backup, version.chars().take(40).collect()));
    }
    let header: Header = serde_json::from_slice(line).map_err(|error| ReadError::Line(1, error.to_string()))?;
    if !is_canonical(&header, line) {
        return Err(ReadError::Line(1, "it is not as it was written".into()));
    }
    Ok(header)
}

/// Whether a line is as we write it.
fn is_canonical(value: &impl Serialize, line: &[u8]) -> bool {
    let text = serde_json::to_vec(value).unwrap_or_default();
    line.strip_suffix(b"\n") == Some(&text)
}

/// What an object may be longer than one that is written over the API, in bytes: a restore adds an annotation, and the copies
/// made after it have that.
const MORE: usize = 4 << 10;

/// The object of a line, if it is one that a store can have had.
fn checked(line: &ObjectLine<'_>, newest: u64) -> Result<Object, String> {
    let ObjectLine { resource, namespace, name, revision, json } = line;
    let what = || format!("{resource} {namespace}/{name}");
    if resource.is_empty() || name.is_empty() || resource.len() + namespace.len() + name.len() > KEY_LIMIT {
        return Err(format!("{}: no object has such a name", what()));
    }
    if [resource, namespace, name].iter().any(|text| text.contains('\0')) {
        return Err(format!("{}: a NUL byte in its name", what()));
    }
    if json.get().len() > OBJECT_LIMIT + MORE {
        return Err(format!("{}: it is larger than an object may be", what()));
    }
    if *revision == 0 || *revision > newest {
        return Err(format!("{}: revision {revision} was never given", what()));
    }
    let object = Object::new(
        resource.as_ref().into(),
        namespace.clone().into_owned(),
        name.clone().into_owned(),
        *revision,
        json.get().as_bytes(),
    );
    let object = object.map_err(|error| format!("{}: {error}", what()))?;
    let metadata = object.metadata();
    if metadata["resourceVersion"].as_str() != Some(&revision.to_string()) {
        return Err(format!("{}: its resourceVersion is not its revision", what()));
    }
    Ok(object)
}

#[cfg(test)]
mod tests;
