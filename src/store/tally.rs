//! The tally: what should be in the database, kept beside it.
//!
//! sled finds a damaged page by its checksum, but takes a damaged message of its log for the end of the log, and then
//! an older page, or none, stands where the newest one was. So every entry has a fingerprint, all fingerprints add up to
//! one number, and that number is written in the same transaction as what changed it. When the database is read back,
//! what is there must add up to it.
//!
//! The fingerprint is SipHash-1-3 (Aumasson and Bernstein, 2012) of tree, key and value, under a key that each database
//! makes for itself, so that nobody can choose names whose fingerprints are equal. It finds accidents; who can write
//! the files can write the tally, too.

use std::collections::HashMap;
use std::hash::Hasher;

use siphasher::sip::SipHasher13;

/// Length of the key of fingerprints, in bytes.
pub(super) const KEY: usize = 16;

/// Length of [`Sum::encode`], in bytes.
const SUM: usize = 24;

/// What all entries add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    /// Groups written since the database was made.
    pub sequence: u64,
    /// Entries.
    pub count: u64,
    /// Sum of their fingerprints, modulo 2^64.
    pub fingerprints: u64,
}

impl Sum {
    /// As it is on disk: three numbers, big-endian.
    pub fn encode(self) -> [u8; SUM] {
        let mut bytes = [0; SUM];
        bytes[..8].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.count.to_be_bytes());
        bytes[16..].copy_from_slice(&self.fingerprints.to_be_bytes());
        bytes
    }

    /// Inverse of [`Sum::encode`].
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; SUM] = bytes.try_into().ok()?;
        let number = |from: usize| bytes[from..from + 8].try_into().map(u64::from_be_bytes).ok();
        Some(Self { sequence: number(0)?, count: number(8)?, fingerprints: number(16)? })
    }
}

/// Where the parts of an entry are that is too large for one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    /// Their common number.
    pub number: u64,
    /// How many there are.
    pub count: u16,
}

/// What is known of one entry.
#[derive(Clone, Copy, Debug)]
struct Known {
    fingerprint: u64,
    /// Of key and value, in bytes.
    size: u32,
    /// `count` 0: in one value.
    parts: Parts,
}

/// The running tally.
#[derive(Debug)]
pub(super) struct Tally {
    key: [u8; KEY],
    // By the fingerprint of tree and key.
    entries: HashMap<u64, Known>,
    sum: Sum,
    bytes: u64,
}

impl Tally {
    /// Of an empty database.
    pub fn new(key: [u8; KEY]) -> Self {
        Self { key, entries: HashMap::new(), sum: Sum::default(), bytes: 0 }
    }

    /// What the entries add up to.
    pub fn sum(&self) -> Sum {
        self.sum
    }

    /// Takes over how many groups were written before.
    pub fn set_sequence(&mut self, sequence: u64) {
        self.sum.sequence = sequence;
    }

    /// One more group.
    pub fn next_sequence(&mut self) {
        self.sum.sequence += 1;
    }

    /// Keys and values of all entries, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The parts of an entry, if it has any.
    pub fn parts(&self, tree: &str, key: &[u8]) -> Option<Parts> {
        let known = self.entries.get(&self.place(tree, key).finish())?;
        (known.parts.count > 0).then_some(known.parts)
    }

    /// Whether an entry with this value is there.
    pub fn has(&self, tree: &str, key: &[u8], value: &[u8]) -> bool {
        let mut hasher = self.place(tree, key);
        let Some(known) = self.entries.get(&hasher.finish()) else { return false };
        hasher.write(value);
        known.fingerprint == hasher.finish()
    }

    /// An entry is put.
    pub fn put(&mut self, tree: &str, key: &[u8], value: &[u8], parts: Option<Parts>) {
        let mut hasher = self.place(tree, key);
        let place = hasher.finish();
        hasher.write(value);
        let fingerprint = hasher.finish();
        // Keys and values are bounded far below 4 GiB.
        let size = u32::try_from(key.len() + value.len()).unwrap_or(u32::MAX);
        let parts = parts.unwrap_or(Parts { number: 0, count: 0 });
        let former = self.entries.insert(place, Known { fingerprint, size, parts });
        self.forget(former);
        self.sum.count += 1;
        self.sum.fingerprints = self.sum.fingerprints.wrapping_add(fingerprint);
        self.bytes += u64::from(size);
    }

    /// An entry is removed, if it is there.
    pub fn remove(&mut self, tree: &str, key: &[u8]) {
        let former = self.entries.remove(&self.place(tree, key).finish());
        self.forget(former);
    }

    fn forget(&mut self, former: Option<Known>) {
        let Some(former) = former else { return };
        self.sum.count -= 1;
        self.sum.fingerprints = self.sum.fingerprints.wrapping_sub(former.fingerprint);
        self.bytes -= u64::from(former.size);
    }

    /// A hasher that has taken tree and key; `finish` does not end it.
    fn place(&self, tree: &str, key: &[u8]) -> SipHasher13 {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hasher.write(tree.as_bytes());
        // No tree's name has this byte, so that no name and key can be read as another pair.
        hasher.write_u8(0xff);
        hasher.write_u32(u32::try_from(key.len()).unwrap_or(u32::MAX));
        hasher.write(key);
        hasher
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_adds_up_whatever_the_order() {
        let (mut one, mut other) = (Tally::new([7; KEY]), Tally::new([7; KEY]));
        one.put("a", b"k", b"1", None);
        one.put("a", b"l", b"2", None);
        one.put("a", b"k", b"3", None);
        one.remove("a", b"none");
        other.put("a", b"l", b"2", None);
        other.put("b", b"k", b"1", None);
        other.put("a", b"k", b"3", None);
        other.remove("b", b"k");
        assert_eq!((one.sum(), one.bytes()), (other.sum(), other.bytes()));
        assert_eq!((one.sum().count, one.bytes()), (2, 4));
        assert!(one.has("a", b"k", b"3") && !one.has("a", b"k", b"1") && !one.has("b", b"k", b"3"));
    }

    #[test]
    fn every_difference_shows() {
        type Entries<'a> = &'a [(&'a str, &'a [u8], &'a [u8])];
        let sum = |entries: Entries<'_>| {
            let mut tally = Tally::new([1; KEY]);
            entries.iter().for_each(|(tree, key, value)| tally.put(tree, key, value, None));
            tally.sum()
        };
        let whole = sum(&[("a", b"k", b"1"), ("a", b"l", b"2")]);
        let others: [Entries<'_>; 6] = [
            &[("a", b"k", b"1")],
            &[("a", b"k", b"2"), ("a", b"l", b"1")],
            &[("a", b"k", b"1"), ("a", b"l", b"")],
            &[("a", b"k", b"1"), ("b", b"l", b"2")],
            &[("a", b"k", b"1"), ("a", b"l2", b"")],
            &[("a", b"k", b"1"), ("a", b"l", b"2"), ("a", b"m", b"")],
        ];
        for other in others {
            assert_ne!(sum(other), whole, "{other:?}");
        }
        assert_eq!(Sum::decode(&whole.encode()), Some(whole));
        assert_eq!(Sum::decode(&whole.encode()[1..]), None);
    }

    #[test]
    fn it_knows_the_parts() {
        let mut tally = Tally::new([1; KEY]);
        let parts = Parts { number: 9, count: 3 };
        tally.put("a", b"k", b"v", Some(parts));
        assert_eq!((tally.parts("a", b"k"), tally.parts("a", b"l")), (Some(parts), None));
        tally.put("a", b"k", b"v", None);
        assert_eq!(tally.parts("a", b"k"), None);
    }
}
