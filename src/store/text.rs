//! The text of an object as it is kept, in memory and on disk alike.
//!
//! A rack's worth of objects is mostly the same words again and again, and most of it is seldom asked for. So texts
//! are packed with LZ4, which unpacks about as fast as copying, and with a dictionary: the words that hosts, events and
//! leases have in common are in none of them.

use bytes::Bytes;

/// What packed texts refer to: one object of each kind that a rack has many of, as this appliance writes them. Databases
/// hold blocks that need every byte of it, so it never changes: better words are another file and another format.
pub(super) const WORDS: &[u8] = include_bytes!("words.jsonl");

/// Texts from this length on are packed, in bytes.
const PACK_FROM: usize = 128;

/// Longest text that a packed one may claim to hold, in bytes; far more than any object may have.
pub(super) const PACKED_MAX: usize = 64 << 20;

/// A text in memory of just the size that it needs.
#[derive(Clone, Debug)]
pub(super) enum StoredText {
    /// As it is.
    Plain(Bytes),
    /// An LZ4 block that refers to [`WORDS`].
    Packed {
        /// Length of the text, in bytes.
        length: usize,
        /// The block.
        block: Bytes,
    },
}

impl StoredText {
    /// Packs a text, when that is worth it.
    pub fn new(text: &[u8]) -> Self {
        if (PACK_FROM..=PACKED_MAX).contains(&text.len()) {
            let block = lz4_flex::block::compress_with_dict(text, WORDS);
            if block.len() < text.len() / 8 * 7 {
                return Self::Packed { length: text.len(), block: Bytes::copy_from_slice(&block) };
            }
        }
        Self::Plain(Bytes::copy_from_slice(text))
    }

    /// A block from the disk with the length that it claims to have, and its text; nothing when it is damaged.
    pub fn from_block(length: usize, block: &[u8]) -> Option<(Self, Vec<u8>)> {
        if length > PACKED_MAX {
            return None;
        }
        let kept = Self::Packed { length, block: Bytes::copy_from_slice(block) };
        let mut text = Vec::new();
        kept.put(&mut text).then_some((kept, text))
    }

    /// Bytes that it takes.
    pub fn size(&self) -> usize {
        match self {
            Self::Plain(kept) | Self::Packed { block: kept, .. } => kept.len(),
        }
    }

    /// Length of the text, in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Plain(text) => text.len(),
            Self::Packed { length, .. } => *length,
        }
    }

    /// The text.
    pub fn unpacked(&self) -> Bytes {
        match self {
            Self::Plain(text) => text.clone(),
            Self::Packed { .. } => {
                let mut text = Vec::new();
                self.put(&mut text);
                text.into()
            }
        }
    }

    /// Adds the text to what is there; whether it is whole. A damaged one adds nothing.
    pub fn put(&self, out: &mut Vec<u8>) -> bool {
        match self {
            Self::Plain(text) => {
                out.extend_from_slice(text);
                true
            }
            Self::Packed { length, block } => {
                let start = out.len();
                out.resize(start + length, 0);
                let whole = lz4_flex::block::decompress_into_with_dict(block, &mut out[start..], WORDS)
                    .is_ok_and(|read| read == *length);
                if !whole {
                    out.truncate(start);
                }
                whole
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sha2::Digest;

    use super::*;

    #[test]
    fn texts_come_back() {
        let words: Vec<u8> = b"{\"metadata\":{}}".iter().copied().cycle().take(5000).collect();
        let shuffle = |seed: &u64| Some(seed ^ (seed << 13)).map(|n| n ^ (n >> 7)).map(|n| n ^ (n << 17));
        let noise: Vec<u8> =
            std::iter::successors(Some(7_u64), shuffle).flat_map(u64::to_le_bytes).take(5000).collect();
        for (text, packs) in [(&words[..], true), (&words[..PACK_FROM - 1], false), (&noise, false), (b"", false)] {
            let kept = StoredText::new(text);
            assert_eq!((kept.len(), matches!(kept, StoredText::Packed { .. })), (text.len(), packs));
            assert_eq!(kept.unpacked(), text);
            let mut after = b"before".to_vec();
            assert!(kept.put(&mut after));
            assert_eq!(after, [b"before", text].concat());
        }
    }

    #[test]
    fn the_words_of_a_rack_are_those_that_databases_were_written_with() {
        let digest = sha2::Sha256::digest(WORDS).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(digest, "aa62f7f25474d53508f6b6c93c3e65a20de5c139a4670fae5a26efc11bb4d5a2");
        for line in WORDS.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let kept = StoredText::new(line);
            assert!(kept.size() < 64, "{} of {} bytes", kept.size(), line.len());
            assert_eq!(kept.unpacked(), line);
        }
    }

    #[test]
    fn damage_is_noticed() {
        let text = "a text that has much the same again ".repeat(100);
        let StoredText::Packed { length, block } = StoredText::new(text.as_bytes()) else { panic!("it packs") };
        assert!(StoredText::from_block(length, &block).is_some());
        for wrong in [0, length - 1, length + 1, PACKED_MAX + 1] {
            assert!(StoredText::from_block(wrong, &block).is_none(), "{wrong}");
        }
        for cut in 0..block.len() {
            assert!(StoredText::from_block(length, &block[..cut]).is_none(), "{cut}");
        }
    }
}
