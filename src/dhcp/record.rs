//! Leases on disk: the table `leases`, one record for each address.
//!
//! The key is the address, four bytes, so that a scan is in order of address. The value:
//!
//! | bytes | |
//! |---|---|
//! | 1 | version, 1 |
//! | 1 | state: 1 bound, 2 released, 3 declined |
//! | 1 | 1 when the client was known |
//! | 8 | end, seconds since 1970, big endian |
//! | 6 | hardware address |
//! | 2, n | length, client identifier; none when empty |
//! | 1, n | length, host name that the client sent; none when empty |

use std::net::Ipv4Addr;

use bytes::{BufMut, Bytes, BytesMut};

use crate::api::MacAddress;

use super::client::LeaseClient;
use super::table::{Lease, LeaseState};

const VERSION: u8 = 1;

/// A record cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RecordError {
    /// Written by a newer Slipway.
    #[error("version {0} is newer than this program")]
    Version(u8),
    /// Not a record.
    #[error("it is damaged")]
    Damaged,
}

/// The key of an address.
pub fn key(address: Ipv4Addr) -> Bytes {
    Bytes::copy_from_slice(&address.octets())
}

/// A lease as bytes. An offer is not kept and counts as released.
pub fn encode(lease: &Lease) -> Bytes {
    let state = match lease.state {
        LeaseState::Bound | LeaseState::Expired => 1,
        LeaseState::Released | LeaseState::Offered => 2,
        LeaseState::Declined => 3,
    };
    // A client identifier comes from one packet and a host name has at most 253 characters, so nothing is cut.
    let id = lease.client.id.as_deref().unwrap_or_default();
    let id_length = u16::try_from(id.len()).unwrap_or(u16::MAX);
    let hostname = lease.hostname.as_deref().unwrap_or_default().as_bytes();
    let name_length = u8::try_from(hostname.len()).unwrap_or(u8::MAX);
    let mut bytes = BytesMut::with_capacity(20 + id.len() + hostname.len());
    bytes.put_slice(&[VERSION, state, u8::from(lease.client.known)]);
    bytes.put_u64(lease.ends);
    bytes.put_slice(&lease.client.mac.0);
    bytes.put_u16(id_length);
    bytes.put_slice(&id[..usize::from(id_length)]);
    bytes.put_u8(name_length);
    bytes.put_slice(&hostname[..usize::from(name_length)]);
    bytes.freeze()
}

/// Reads a record.
pub fn decode(key: &[u8], value: &[u8]) -> Result<Lease, RecordError> {
    match value.first() {
        Some(&VERSION) => read(key, value).ok_or(RecordError::Damaged),
        Some(&newer) if newer > VERSION => Err(RecordError::Version(newer)),
        _ => Err(RecordError::Damaged),
    }
}

fn read(key: &[u8], value: &[u8]) -> Option<Lease> {
    let address = Ipv4Addr::from(<[u8; 4]>::try_from(key).ok()?);
    let state = match value.get(1)? {
        1 => LeaseState::Bound,
        2 => LeaseState::Released,
        3 => LeaseState::Declined,
        _ => return None,
    };
    let known = *value.get(2)? == 1;
    let ends = u64::from_be_bytes(value.get(3..11)?.try_into().ok()?);
    let mac = MacAddress(value.get(11..17)?.try_into().ok()?);
    let length = usize::from(u16::from_be_bytes(value.get(17..19)?.try_into().ok()?));
    let id = value.get(19..19 + length)?;
    let rest = value.get(19 + length..)?;
    let (length, hostname) = rest.split_first()?;
    if usize::from(*length) != hostname.len() {
        return None;
    }
    let hostname = std::str::from_utf8(hostname).ok()?;
    let client = LeaseClient { mac, id: (!id.is_empty()).then(|| id.into()), known };
    let hostname = (!hostname.is_empty()).then(|| hostname.into());
    Some(Lease { address, client, state, ends, hostname, stored: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_and_no_damage_is_read_as_a_lease_or_panics() {
        let lease = Lease {
            address: Ipv4Addr::new(10, 0, 0, 9),
            client: LeaseClient { mac: MacAddress([2, 0, 0, 0, 0, 1]), id: Some([0, 1, 2].into()), known: true },
            state: LeaseState::Bound,
            ends: 1_800_000_000,
            hostname: Some("web-1".into()),
            stored: true,
        };
        let (key, value) = (key(lease.address), encode(&lease));
        assert_eq!(decode(&key, &value), Ok(lease.clone()));
        let bare = Lease { client: LeaseClient { id: None, ..lease.client.clone() }, hostname: None, ..lease };
        assert_eq!(decode(&key, &encode(&bare)), Ok(bare));
        for cut in 0..value.len() {
            assert_eq!(decode(&key, &value[..cut]), Err(RecordError::Damaged), "cut at {cut}");
        }
        assert_eq!(decode(&key[..3], &value), Err(RecordError::Damaged));
        let mut newer = value.to_vec();
        newer[0] = 2;
        assert_eq!(decode(&key, &newer), Err(RecordError::Version(2)));
    }
}
