//! Encoding of entries: what a base and the groups of a journal consist of.
//!
//! A frame begins with what it is (1 byte); lengths are big-endian:
//!
//! | | then |
//! |---|---|
//! | 1: the entries that follow are of this tree | length of its name (2), the name |
//! | 2: put | length of the key (2), of the value (4), key, value |
//! | 3: remove | length of the key (2), the key |
//! | 0: the end | |

use std::io::{self, Read, Write};

use bytes::Bytes;

const END: u8 = 0;
const TREE: u8 = 1;
const PUT: u8 = 2;
const REMOVE: u8 = 3;

/// Largest value that is believed, in bytes; far more than any entry may have.
const VALUE_LIMIT: usize = 16 << 20;

/// What a put takes, in bytes.
pub(super) fn put_size(key: usize, value: usize) -> usize {
    7 + key + value
}

/// Writes frames.
pub(super) struct FrameWriter<W> {
    out: W,
    tree: Option<String>,
}

impl<W: Write> FrameWriter<W> {
    /// With no tree yet.
    pub fn new(out: W) -> Self {
        Self { out, tree: None }
    }

    /// An entry of a tree as it is to be; `None` removes.
    pub fn entry(&mut self, tree: &str, key: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        if self.tree.as_deref() != Some(tree) {
            self.out.write_all(&[TREE])?;
            self.short(tree.as_bytes())?;
            self.out.write_all(tree.as_bytes())?;
            self.tree = Some(tree.to_owned());
        }
        let Some(value) = value else {
            self.out.write_all(&[REMOVE])?;
            self.short(key)?;
            return self.out.write_all(key);
        };
        self.out.write_all(&[PUT])?;
        self.short(key)?;
        let length = u32::try_from(value.len()).map_err(io::Error::other)?;
        self.out.write_all(&length.to_be_bytes())?;
        self.out.write_all(key)?;
        self.out.write_all(value)
    }

    /// Where it writes to.
    pub fn out(&self) -> &W {
        &self.out
    }

    /// Where it writes to.
    pub fn out_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// The end; gives back where it wrote to.
    pub fn end(mut self) -> io::Result<W> {
        self.out.write_all(&[END])?;
        Ok(self.out)
    }

    fn short(&mut self, text: &[u8]) -> io::Result<()> {
        let length = u16::try_from(text.len()).map_err(io::Error::other)?;
        self.out.write_all(&length.to_be_bytes())
    }
}

/// Why frames cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    /// They are cut short, or the disk refuses.
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error("{0}")]
    Malformed(&'static str),
    /// What the visitor said.
    #[error("{0}")]
    Refused(String),
}

/// Reads frames to their end; each entry goes to `visit` (tree, key, value, or `None` when it is removed).
pub(super) fn read(
    input: &mut impl Read,
    mut visit: impl FnMut(&str, Vec<u8>, Option<Bytes>) -> Result<(), String>,
) -> Result<(), FrameError> {
    let mut tree: Option<String> = None;
    loop {
        let [what] = array(input)?;
        match what {
            END => return Ok(()),
            TREE => {
                let name = String::from_utf8(short(input)?);
                tree = Some(name.map_err(|_| FrameError::Malformed("the name of a tree is not text"))?);
                continue;
            }
            PUT | REMOVE => {}
            _ => return Err(FrameError::Malformed("it has a frame of an unknown kind")),
        }
        let tree = tree.as_deref().ok_or(FrameError::Malformed("an entry is of no tree"))?;
        let (key, value) = if what == REMOVE {
            (short(input)?, None)
        } else {
            let key = usize::from(u16::from_be_bytes(array(input)?));
            let value = u32::from_be_bytes(array(input)?) as usize;
            if value > VALUE_LIMIT {
                return Err(FrameError::Malformed("an entry is larger than any may be"));
            }
            (bytes(input, key)?, Some(Bytes::from(bytes(input, value)?)))
        };
        visit(tree, key, value).map_err(FrameError::Refused)?;
    }
}

fn array<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn bytes(input: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn short(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let length = usize::from(u16::from_be_bytes(array(input)?));
    bytes(input, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_what_is_cut_short_is_refused() {
        type Entry<'a> = (&'a str, &'a [u8], Option<&'a [u8]>);
        let entries: [Entry<'_>; 5] = [
            ("meta", b"a", Some(b"1")),
            ("meta", b"b", None),
            ("log", b"", Some(b"")),
            ("log", &[0; 1024], Some(&[7; 70_000])),
            ("meta", b"c", Some(b"3")),
        ];
        let mut writer = FrameWriter::new(Vec::new());
        for (tree, key, value) in entries {
            let before = writer.out.len();
            writer.entry(tree, key, value).unwrap();
            if let (b"c", Some(value)) = (key, value) {
                assert_eq!(writer.out.len() - before, put_size(key.len(), value.len()) + 3 + tree.len());
            }
        }
        let written = writer.end().unwrap();
        let mut found = Vec::new();
        let mut rest = &written[..];
        read(&mut rest, |tree, key, value| {
            found.push((tree.to_owned(), key, value));
            Ok(())
        })
        .unwrap();
        let expected =
            entries.map(|(tree, key, value)| (tree.to_owned(), key.to_vec(), value.map(Bytes::copy_from_slice)));
        assert!(rest.is_empty() && found == expected);
        for cut in (0..200).chain(written.len() - 50..written.len()) {
            assert!(read(&mut &written[..cut], |_, _, _| Ok(())).is_err(), "{cut}");
        }
        for (bad, reason) in [
            (&[9][..], "a frame of an unknown kind"),
            (&[REMOVE, 0, 0, END], "an entry is of no tree"),
            (&[TREE, 0, 1, 0xff, END], "the name of a tree is not text"),
            (&[TREE, 0, 1, b'm', PUT, 0, 0, 0xff, 0, 0, 0], "larger than any may be"),
        ] {
            let refused = read(&mut &bad[..], |_, _, _| Ok(())).unwrap_err().to_string();
            assert!(refused.contains(reason), "{refused}");
        }
    }
}
