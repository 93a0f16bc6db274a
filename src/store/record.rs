//! The bytes of objects and events on disk.
//!
//! Record: format (1 byte: 1 plain, 2 sealed), revision (8 bytes, big-endian), JSON text or what [`Sealer`] made of it.
//!
//! Event: kind (1 byte: 0 added, 1 modified, 2 deleted), revision (8 bytes, big-endian), length of the identity (2 bytes,
//! big-endian), identity `resource \0 namespace \0 name`, then the record of the former self (nothing for an addition).

use std::sync::Arc;

use bytes::Bytes;
use sled::IVec;

use super::Object;
use super::seal::Sealer;

const PLAIN: u8 = 1;
const SEALED: u8 = 2;

/// Bytes before a record's text.
const HEADER: usize = 9;

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
    #[error("its name is not text")]
    Name,
    #[error("its JSON cannot be read: {0}")]
    Json(#[from] serde_json::Error),
}

/// Which object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Identity {
    pub resource: Arc<str>,
    pub namespace: String,
    pub name: String,
}

impl Identity {
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
pub(super) enum Former {
    Added,
    Modified(Arc<Object>),
    Deleted(Arc<Object>),
}

/// The record of an object.
pub(super) fn encode(object: &Object, sealer: &Sealer) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEADER + object.json.len());
    write_record(&mut record, object, sealer);
    record
}

fn write_record(out: &mut Vec<u8>, object: &Object, sealer: &Sealer) {
    let secret = is_secret(&object.resource);
    out.push(if secret { SEALED } else { PLAIN });
    out.extend_from_slice(&object.revision.to_be_bytes());
    if secret {
        let place = full_name(&object.resource, &object.namespace, &object.name);
        out.extend_from_slice(&sealer.seal(&object.json, &place));
    } else {
        out.extend_from_slice(&object.json);
    }
}

/// The object of a record.
pub(super) fn decode(identity: Identity, record: &[u8], sealer: &Sealer) -> Result<Object, DecodeError> {
    let (header, text) = record.split_at_checked(HEADER).ok_or(DecodeError::Short)?;
    let (&[format], revision) = header.split_first_chunk::<1>().ok_or(DecodeError::Short)?;
    let revision = number(revision).ok_or(DecodeError::Short)?;
    let Identity { resource, namespace, name } = identity;
    let json = match format {
        PLAIN => Bytes::copy_from_slice(text),
        SEALED => sealer.open(text, &full_name(&resource, &namespace, &name)).ok_or(DecodeError::Seal)?.into(),
        other => return Err(DecodeError::Format(other)),
    };
    Ok(Object::new(resource, namespace, name, revision, json)?)
}

/// An event; `former` says what it did to the object of that identity.
pub(super) fn encode_event(identity: &Identity, revision: u64, former: &Former, sealer: &Sealer) -> Vec<u8> {
    let place = full_name(&identity.resource, &identity.namespace, &identity.name);
    let (kind, previous) = match former {
        Former::Added => (0, None),
        Former::Modified(previous) => (1, Some(previous)),
        Former::Deleted(previous) => (2, Some(previous)),
    };
    let mut event = Vec::with_capacity(11 + place.len() + previous.map_or(0, |object| HEADER + object.json.len()));
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
    pub identity: Identity,
    kind: u8,
    bytes: IVec,
    /// Where the former self begins.
    record: usize,
}

impl StoredEvent {
    /// Inverse of [`encode_event`], together with [`StoredEvent::former`].
    pub fn new(bytes: IVec) -> Result<Self, DecodeError> {
        let (&[kind], rest) = bytes.split_first_chunk::<1>().ok_or(DecodeError::Short)?;
        let (revision, rest) = rest.split_first_chunk::<8>().ok_or(DecodeError::Short)?;
        let (length, rest) = rest.split_first_chunk::<2>().ok_or(DecodeError::Short)?;
        let length = usize::from(u16::from_be_bytes(*length));
        let place = rest.get(..length).ok_or(DecodeError::Short)?;
        let place = std::str::from_utf8(place).map_err(|_| DecodeError::Name)?;
        let (resource, key) = place.split_once('\0').ok_or(DecodeError::Name)?;
        let identity = Identity::from_key(resource.into(), key.as_bytes())?;
        Ok(Self { revision: u64::from_be_bytes(*revision), identity, kind, record: 11 + length, bytes })
    }

    pub fn former(&self, sealer: &Sealer) -> Result<Former, DecodeError> {
        let record = self.bytes.get(self.record..).unwrap_or_default();
        let previous = || decode(self.identity.clone(), record, sealer).map(Arc::new);
        match self.kind {
            0 => Ok(Former::Added),
            1 => Ok(Former::Modified(previous()?)),
            2 => Ok(Former::Deleted(previous()?)),
            other => Err(DecodeError::Format(other)),
        }
    }
}

/// A number of the `meta` tree, or a slot of the `log`.
pub(super) fn number(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_be_bytes)
}
