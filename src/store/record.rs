//! Encoding of objects and events on disk.
//!
//! Record: format (1 byte: 1 plain, 2 sealed, 3 zstd, 4 LZ4, 5 LZ4 with [`WORDS`](super::text::WORDS)), revision (8 bytes,
//! big-endian), JSON text, what [`Sealer`] made of it, or its length (4 bytes, big-endian) and a zstd frame or an LZ4 block
//! of it. 3 and 4 are read only: texts are packed once, for memory and disk, in memory zstd takes too long to unpack, and
//! without the words a block is three times as long.
//!
//! Event: kind (1 byte: 0 added, 1 modified, 2 deleted), revision (8 bytes, big-endian), length of the identity (2 bytes,
//! big-endian), identity `resource \0 namespace \0 name`, then the record of the former self (nothing for an addition).

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use super::Object;
use super::seal::{self, Sealer};
use super::text::{PACKED_MAX, StoredText};

const PLAIN: u8 = 1;
const SEALED: u8 = 2;
const ZSTD: u8 = 3;
const LZ4: u8 = 4;
const WORDED: u8 = 5;

/// Bytes before a record's text.
const HEADER: usize = 9;
/// Bytes before a packed text.
const PACKED_HEADER: usize = 4;

/// Whether objects of a resource are sealed at rest.
fn is_secret(resource: &str) -> bool {
    resource == "/secrets"
}

/// A record or an event that cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum DecodeError {
    #[error("it is cut short")]
    Short,
    #[error("it has the unknown format {0}")]
    Format(u8),
    #[error("it cannot be unsealed: the key file is not the one that sealed it")]
    Seal,
    #[error("it cannot be unpacked")]
    Packed,
    #[error("its name is not text")]
    Name,
    #[error("its JSON cannot be read: {0}")]
    Json(#[from] serde_json::Error),
}

/// Which object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ObjectIdentity {
    pub resource: Arc<str>,
    pub namespace: String,
    pub name: String,
}

impl ObjectIdentity {
    pub fn of(object: &Object) -> Self {
        Self { resource: Arc::clone(&object.resource), namespace: object.namespace.clone(), name: object.name.clone() }
    }

    /// Key in the resource's tree.
    pub fn key(&self) -> Vec<u8> {
        key(&self.namespace, &self.name)
    }

    /// Inverse of [`key`].
    pub fn from_key(resource: Arc<str>, key: &[u8]) -> Result<Self, DecodeError> {
        let key = std::str::from_utf8(key).map_err(|_| DecodeError::Name)?;
        let (namespace, name) = key.split_once('\0').ok_or(DecodeError::Name)?;
        Ok(Self { resource, namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

/// `namespace \0 name`; neither has a NUL byte.
fn key(namespace: &str, name: &str) -> Vec<u8> {
    [namespace.as_bytes(), b"\0", name.as_bytes()].concat()
}

/// `resource \0 namespace \0 name`: names an event's object, and binds a sealed record to its place.
fn full_name(resource: &str, namespace: &str, name: &str) -> Vec<u8> {
    [resource.as_bytes(), b"\0", namespace.as_bytes(), b"\0", name.as_bytes()].concat()
}

/// What an event did, with the former self.
#[derive(Debug)]
pub(super) enum FormerRecord {
    Added,
    Modified(Arc<Object>),
    Deleted(Arc<Object>),
}

/// The record of an object.
pub(super) fn encode(object: &Object, sealer: &Sealer) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEADER + PACKED_HEADER + object.text().size());
    write_record(&mut record, object, sealer);
    record
}

/// Length of [`encode`], in bytes.
pub(super) fn size(object: &Object) -> usize {
    let text = match object.text() {
        _ if is_secret(&object.resource) => object.json_len() + seal::OVERHEAD,
        StoredText::Packed { block, .. } => PACKED_HEADER + block.len(),
        StoredText::Plain(json) => json.len(),
    };
    HEADER + text
}

fn write_record(out: &mut Vec<u8>, object: &Object, sealer: &Sealer) {
    let revision = object.revision.to_be_bytes();
    let mut write = |format: u8, parts: [&[u8]; 2]| {
        out.push(format);
        out.extend_from_slice(&revision);
        parts.iter().for_each(|part| out.extend_from_slice(part));
    };
    if is_secret(&object.resource) {
        let place = full_name(&object.resource, &object.namespace, &object.name);
        return write(SEALED, [&sealer.seal(&object.json(), &place), &[]]);
    }
    match object.text() {
        // No text that is packed is longer than PACKED_MAX.
        StoredText::Packed { length, block } => {
            write(WORDED, [&u32::try_from(*length).unwrap_or(0).to_be_bytes(), block])
        }
        StoredText::Plain(json) => write(PLAIN, [json, &[]]),
    }
}

/// The length of a packed text, and the packed form.
fn packed(text: &[u8]) -> Option<(usize, &[u8])> {
    let (length, packed) = text.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok().filter(|length| *length <= PACKED_MAX)?;
    Some((length, packed))
}

fn unzstd(text: &[u8]) -> Option<Vec<u8>> {
    let (length, packed) = packed(text)?;
    zstd::bulk::decompress(packed, length).ok().filter(|text| text.len() == length)
}

fn unlz4(text: &[u8]) -> Option<Vec<u8>> {
    let (length, block) = packed(text)?;
    lz4_flex::block::decompress(block, length).ok().filter(|text| text.len() == length)
}

/// The revision of a record, whether or not the rest of it can be read.
pub(super) fn revision(record: &[u8]) -> Option<u64> {
    number(record.get(1..HEADER)?)
}

/// The object of a record.
pub(super) fn decode(identity: ObjectIdentity, record: &[u8], sealer: &Sealer) -> Result<Object, DecodeError> {
    let (header, text) = record.split_at_checked(HEADER).ok_or(DecodeError::Short)?;
    let (&[format], revision) = header.split_first_chunk::<1>().ok_or(DecodeError::Short)?;
    let revision = number(revision).ok_or(DecodeError::Short)?;
    let ObjectIdentity { resource, namespace, name } = identity;
    let json = match format {
        PLAIN => Cow::Borrowed(text),
        SEALED => sealer.open(text, &full_name(&resource, &namespace, &name)).ok_or(DecodeError::Seal)?.into(),
        ZSTD => unzstd(text).ok_or(DecodeError::Packed)?.into(),
        LZ4 => unlz4(text).ok_or(DecodeError::Packed)?.into(),
        WORDED => {
            let (length, block) = packed(text).ok_or(DecodeError::Packed)?;
            let (text, json) = StoredText::from_block(length, block).ok_or(DecodeError::Packed)?;
            return Ok(Object::with_text(resource, namespace, name, revision, &json, || text)?);
        }
        other => return Err(DecodeError::Format(other)),
    };
    Ok(Object::new(resource, namespace, name, revision, &json)?)
}

/// An event; `former` says what it did to the object of that identity.
pub(super) fn encode_event(
    identity: &ObjectIdentity,
    revision: u64,
    former: &FormerRecord,
    sealer: &Sealer,
) -> Vec<u8> {
    let place = full_name(&identity.resource, &identity.namespace, &identity.name);
    let (kind, previous) = match former {
        FormerRecord::Added => (0, None),
        FormerRecord::Modified(previous) => (1, Some(previous)),
        FormerRecord::Deleted(previous) => (2, Some(previous)),
    };
    let mut event = Vec::with_capacity(
        11 + place.len() + previous.map_or(0, |object| HEADER + PACKED_HEADER + object.text().size()),
    );
    event.push(kind);
    event.extend_from_slice(&revision.to_be_bytes());
    // Names are bounded by KEY_LIMIT, far below 64 KiB.
    event.extend_from_slice(&u16::try_from(place.len()).unwrap_or(u16::MAX).to_be_bytes());
    event.extend_from_slice(&place);
    if let Some(previous) = previous {
        write_record(&mut event, previous, sealer);
    }
    event
}

/// An event on disk, its former self not yet read.
pub(super) struct StoredEvent {
    pub revision: u64,
    pub identity: ObjectIdentity,
    kind: u8,
    bytes: Bytes,
    /// Where the former self begins.
    record: usize,
}

impl StoredEvent {
    /// Inverse of [`encode_event`], together with [`StoredEvent::former`].
    pub fn new(bytes: Bytes) -> Result<Self, DecodeError> {
        let (&[kind], rest) = bytes.split_first_chunk::<1>().ok_or(DecodeError::Short)?;
        let (revision, rest) = rest.split_first_chunk::<8>().ok_or(DecodeError::Short)?;
        let (length, rest) = rest.split_first_chunk::<2>().ok_or(DecodeError::Short)?;
        let length = usize::from(u16::from_be_bytes(*length));
        let place = rest.get(..length).ok_or(DecodeError::Short)?;
        let place = std::str::from_utf8(place).map_err(|_| DecodeError::Name)?;
        let (resource, key) = place.split_once('\0').ok_or(DecodeError::Name)?;
        let identity = ObjectIdentity::from_key(resource.into(), key.as_bytes())?;
        Ok(Self { revision: u64::from_be_bytes(*revision), identity, kind, record: 11 + length, bytes })
    }

    pub fn former(&self, sealer: &Sealer) -> Result<FormerRecord, DecodeError> {
        let record = self.bytes.get(self.record..).unwrap_or_default();
        let previous = || decode(self.identity.clone(), record, sealer).map(Arc::new);
        match self.kind {
            0 => Ok(FormerRecord::Added),
            1 => Ok(FormerRecord::Modified(previous()?)),
            2 => Ok(FormerRecord::Deleted(previous()?)),
            other => Err(DecodeError::Format(other)),
        }
    }
}

/// A number of the `meta` tree.
pub(super) fn number(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(resource: &str, length: usize) -> Object {
        let json = serde_json::json!({"metadata": {"name": "a"}, "data": {"a": "x".repeat(length)}}).to_string();
        Object::new(resource.into(), "n".into(), "a".into(), 7, json.as_bytes()).unwrap()
    }

    #[test]
    fn every_form_comes_back_and_no_damage_is_read_as_an_object() {
        let folder = tempfile::tempdir().unwrap();
        let sealer = Sealer::create(&folder.path().join("key")).unwrap();
        for (resource, length, format) in [
            ("/configmaps", 10, PLAIN),
            ("/configmaps", 5000, WORDED),
            ("/secrets", 10, SEALED),
            ("/secrets", 5000, SEALED),
        ] {
            let before = object(resource, length);
            let record = encode(&before, &sealer);
            assert_eq!((record[0], record.len()), (format, size(&before)));
            let after = decode(ObjectIdentity::of(&before), &record, &sealer).unwrap();
            assert_eq!((after.revision, after.json()), (7, before.json()));
            for cut in 0..record.len() {
                assert!(
                    decode(ObjectIdentity::of(&before), &record[..cut], &sealer).is_err(),
                    "{resource} {length} {cut}"
                );
            }
        }
        let mut record = encode(&object("/configmaps", 5000), &sealer);
        record[HEADER..HEADER + 4].fill(0xff);
        assert!(matches!(
            decode(ObjectIdentity::of(&object("/configmaps", 1)), &record, &sealer),
            Err(DecodeError::Packed)
        ));
    }

    #[test]
    fn records_from_before_packing_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let sealer = Sealer::create(&folder.path().join("key")).unwrap();
        let before = object("/configmaps", 5000);
        let mut record = vec![PLAIN];
        record.extend_from_slice(&7_u64.to_be_bytes());
        record.extend_from_slice(&before.json());
        assert_eq!(decode(ObjectIdentity::of(&before), &record, &sealer).unwrap().json(), before.json());
    }

    #[test]
    fn records_that_were_packed_otherwise_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let sealer = Sealer::create(&folder.path().join("key")).unwrap();
        let before = object("/configmaps", 5000);
        for (format, block) in
            [(ZSTD, zstd::bulk::compress(&before.json(), 1).unwrap()), (LZ4, lz4_flex::block::compress(&before.json()))]
        {
            let mut record = vec![format];
            record.extend_from_slice(&7_u64.to_be_bytes());
            record.extend_from_slice(&u32::try_from(before.json_len()).unwrap().to_be_bytes());
            record.extend_from_slice(&block);
            let after = decode(ObjectIdentity::of(&before), &record, &sealer).unwrap();
            assert_eq!((after.revision, after.json()), (7, before.json()));
            for cut in 0..record.len() {
                assert!(decode(ObjectIdentity::of(&before), &record[..cut], &sealer).is_err(), "{format} {cut}");
            }
        }
    }
}
