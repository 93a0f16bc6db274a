//! Reader of QEMU's qcow2 format, versions 2 and 3 (QEMU `docs/interop/qcow2.txt`).
//!
//! Reads plain, zlib and zstd clusters in rising order. What a published image has no use for is refused:
//! backing files, external data files, encryption, extended L2 entries. Two tables or clusters in the same
//! place mean a damaged file, or one made to unpack without end, and are refused as well. Compressed clusters lie
//! one after the other, so two of them may have their ends in the same sector, and nothing between. Every offset is
//! checked against the file, every table has a bound.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use flate2::{Decompress, FlushDecompress};

use super::MAX_VIRTUAL_SIZE;
use super::formats::ZSTD_WINDOW;

const MAGIC: u32 = 0x5146_49fb;
/// Bytes of the version 3 header that are read, compression type included.
const HEADER: usize = 112;
/// Largest L1 table, as in QEMU.
const MAX_L1: u64 = 32 << 20;
/// Largest map of clusters in use, in bytes: 32 TiB of file at the usual 64 KiB clusters.
const MAX_MAP: u64 = 64 << 20;
/// Where compressed clusters end is said in these.
const SECTOR: u64 = 512;
/// Bits 9 to 55 of a table entry: where it points.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const COMPRESSED: u64 = 1 << 62;
const ZERO: u64 = 1;

const INCOMPATIBLE_DIRTY: u64 = 1;
const INCOMPATIBLE_CORRUPT: u64 = 1 << 1;
const INCOMPATIBLE_EXTERNAL: u64 = 1 << 2;
const INCOMPATIBLE_COMPRESSION: u64 = 1 << 3;
const INCOMPATIBLE_EXTENDED_L2: u64 = 1 << 4;

/// Why a qcow2 is not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Qcow2Error {
    #[error("this qcow2 {0}")]
    Unsupported(String),
    #[error("the qcow2 is damaged or cut short: {0}")]
    Damaged(String),
    #[error("the qcow2 cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// An open image.
pub(super) struct Qcow2 {
    file: File,
    length: u64,
    version: u32,
    cluster_bits: u32,
    size: u64,
    zstd: bool,
    l1: Vec<u64>,
    /// The L2 table read last, with its place in L1.
    l2: Option<(usize, Vec<u64>)>,
    /// The compressed cluster unpacked last, with its number.
    unpacked: Option<(u64, Vec<u8>)>,
    /// Host clusters in use: header, tables, and the data read so far.
    used: Vec<u64>,
    /// Sectors of the file that lie within the compressed clusters read so far.
    packed: Vec<u64>,
}

/// Where a guest cluster is.
enum GuestCluster {
    Zero,
    Plain(u64),
    Packed { offset: u64, length: u64 },
}

impl Qcow2 {
    pub(super) fn open(file: File) -> Result<Self, Qcow2Error> {
        let length = file.metadata()?.len();
        let mut head = [0; HEADER];
        let have = (length as usize).min(HEADER);
        if have < 72 {
            return Err(damaged("the header is cut short"));
        }
        file.read_exact_at(&mut head[..have], 0)?;
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let version = word(4);
        if word(0) != MAGIC || !(2..=3).contains(&version) {
            return Err(Qcow2Error::Unsupported(format!("is of version {version}; versions 2 and 3 are read")));
        }
        let (backing, backing_length) = (long(8), word(16) as usize);
        if backing != 0 {
            let mut name = vec![0; backing_length.min(1023)];
            let name = file.read_exact_at(&mut name, backing).map(|()| String::from_utf8_lossy(&name).into_owned());
            return Err(Qcow2Error::Unsupported(format!(
                "needs a backing file ({}); merge them with: qemu-img convert -O qcow2",
                name.unwrap_or_else(|_| "unreadable".into())
            )));
        }
        if word(32) != 0 {
            return Err(Qcow2Error::Unsupported("is encrypted; publish it decrypted".into()));
        }
        let mut zstd = false;
        if version == 3 {
            zstd = features(long(72), word(100), head[104], have)?;
        }
        let cluster_bits = word(20);
        if !(9..=21).contains(&cluster_bits) {
            return Err(damaged(format!("clusters of 2^{cluster_bits} bytes")));
        }
        let size = long(24);
        if size == 0 || size > MAX_VIRTUAL_SIZE {
            return Err(Qcow2Error::Unsupported(format!("has a disk of {size} bytes, which is none or too large")));
        }
        let clusters = length.div_ceil(1 << cluster_bits);
        if clusters / 8 > MAX_MAP {
            return Err(Qcow2Error::Unsupported("is too large for its cluster size".into()));
        }
        let mut image = Self {
            file,
            length,
            version,
            cluster_bits,
            size,
            zstd,
            l1: Vec::new(),
            l2: None,
            unpacked: None,
            used: vec![0; (clusters / 64 + 1) as usize],
            packed: Vec::new(),
        };
        image.read_l1(long(40), u64::from(word(36)))?;
        Ok(image)
    }

    fn read_l1(&mut self, offset: u64, entries: u64) -> Result<(), Qcow2Error> {
        let needed = self.size.div_ceil(self.cluster_size()).div_ceil(self.l2_entries());
        if entries < needed {
            return Err(damaged(format!("the L1 table has {entries} entries, {needed} are needed")));
        }
        if needed * 8 > MAX_L1 {
            return Err(Qcow2Error::Unsupported("has too large an L1 table".into()));
        }
        self.l1 = self.table("the L1 table", offset, needed)?;
        self.claim("the header", 0)?;
        let mut at = offset;
        while at < offset + needed * 8 {
            self.claim("the L1 table", at)?;
            at += self.cluster_size();
        }
        for index in 0..self.l1.len() {
            let table = self.l1[index] & OFFSET;
            if table != 0 {
                self.check("an L2 table", table, self.cluster_size())?;
                self.claim("an L2 table", table)?;
            }
        }
        Ok(())
    }

    /// Bytes on a disk.
    pub(super) fn virtual_size(&self) -> u64 {
        self.size
    }

    /// The first offset at or after `from` that may hold data; the virtual size when there is none.
    pub(super) fn next_data(&mut self, from: u64) -> Result<u64, Qcow2Error> {
        let mut cluster = from >> self.cluster_bits;
        while cluster << self.cluster_bits < self.size {
            let (l1, l2) = (cluster / self.l2_entries(), cluster % self.l2_entries());
            if self.l1.get(l1 as usize).is_none_or(|entry| entry & OFFSET == 0) {
                cluster = (l1 + 1) * self.l2_entries();
                continue;
            }
            let zero_flag = self.version > 2;
            let table = self.l2(l1 as usize)?;
            let rest = table.get(l2 as usize..).unwrap_or_default();
            let full =
                |entry: &u64| entry & COMPRESSED != 0 || (entry & OFFSET != 0 && !(zero_flag && entry & ZERO != 0));
            match rest.iter().position(full) {
                Some(skip) => return Ok(from.max((cluster + skip as u64) << self.cluster_bits).min(self.size)),
                None => cluster = (l1 + 1) * self.l2_entries(),
            }
        }
        Ok(self.size)
    }

    /// Reads into a buffer of zeros; whether any cluster there holds data. Meant for one pass from the start:
    /// a cluster that is begun twice looks like two clusters in one place.
    pub(super) fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<bool, Qcow2Error> {
        let mut data = false;
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let inside = at & (self.cluster_size() - 1);
            let count = (buffer.len() - done).min((self.cluster_size() - inside) as usize);
            let part = &mut buffer[done..done + count];
            match self.place(at >> self.cluster_bits)? {
                GuestCluster::Zero => {}
                GuestCluster::Plain(host) => {
                    self.check("a data cluster", host, inside + count as u64)?;
                    if inside == 0 {
                        self.claim("a data cluster", host)?;
                    }
                    self.file.read_exact_at(part, host + inside)?;
                    data = true;
                }
                GuestCluster::Packed { offset: host, length } => {
                    if inside == 0 {
                        self.claim_packed(host, length)?;
                    }
                    let cluster = self.unpack(at >> self.cluster_bits, host, length)?;
                    part.copy_from_slice(&cluster[inside as usize..inside as usize + count]);
                    data = true;
                }
            }
            done += count;
        }
        Ok(data)
    }

    fn cluster_size(&self) -> u64 {
        1 << self.cluster_bits
    }

    fn l2_entries(&self) -> u64 {
        self.cluster_size() / 8
    }

    /// Whether something lies inside the file, at the start of a cluster.
    fn check(&self, what: &str, offset: u64, length: u64) -> Result<(), Qcow2Error> {
        if offset & (self.cluster_size() - 1) != 0 {
            return Err(damaged(format!("{what} at {offset} is not at the start of a cluster")));
        }
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(()),
            _ => Err(damaged(format!("{what} at {offset} lies beyond the file's end at {}", self.length))),
        }
    }

    /// Marks a host cluster as used; an error when it was already.
    fn claim(&mut self, what: &str, offset: u64) -> Result<(), Qcow2Error> {
        if mark(&mut self.used, offset >> self.cluster_bits) {
            return Ok(());
        }
        Err(damaged(format!("{what} at {offset} lies where something else does")))
    }

    /// Marks the sectors within a compressed cluster as used, all but its first and its last; an error when one was.
    fn claim_packed(&mut self, offset: u64, length: u64) -> Result<(), Qcow2Error> {
        if self.packed.is_empty() {
            let words = self.length / SECTOR / 64 + 1;
            if words * 8 > MAX_MAP {
                return Err(Qcow2Error::Unsupported("has compressed clusters and is too large for them".into()));
            }
            self.packed = vec![0; words as usize];
        }
        let end = offset.saturating_add(length).min(self.length);
        for sector in offset / SECTOR + 1..end.saturating_sub(1) / SECTOR {
            if !mark(&mut self.packed, sector) {
                return Err(damaged(format!("a compressed cluster at {offset} lies where something else does")));
            }
        }
        Ok(())
    }

    fn table(&self, what: &str, offset: u64, entries: u64) -> Result<Vec<u64>, Qcow2Error> {
        self.check(what, offset, entries * 8)?;
        let mut bytes = vec![0; entries as usize * 8];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes.as_chunks().0.iter().map(|entry| u64::from_be_bytes(*entry)).collect())
    }

    fn l2(&mut self, index: usize) -> Result<&[u64], Qcow2Error> {
        if self.l2.as_ref().is_none_or(|(at, _)| *at != index) {
            let table = self.table("an L2 table", self.l1[index] & OFFSET, self.l2_entries())?;
            self.l2 = Some((index, table));
        }
        Ok(self.l2.as_ref().map(|(_, table)| table.as_slice()).unwrap_or_default())
    }

    fn place(&mut self, cluster: u64) -> Result<GuestCluster, Qcow2Error> {
        let (l1, l2) = ((cluster / self.l2_entries()) as usize, (cluster % self.l2_entries()) as usize);
        if self.l1.get(l1).is_none_or(|entry| entry & OFFSET == 0) {
            return Ok(GuestCluster::Zero);
        }
        let entry = self.l2(l1)?[l2];
        if entry & COMPRESSED != 0 {
            let bits = 62 - (self.cluster_bits - 8);
            let offset = entry & ((1 << bits) - 1);
            let sectors = (entry & (COMPRESSED - 1)) >> bits;
            let length = (sectors + 1) * 512 - (offset & 511);
            return Ok(GuestCluster::Packed { offset, length });
        }
        let offset = entry & OFFSET;
        let zero = offset == 0 || (self.version > 2 && entry & ZERO != 0);
        Ok(if zero { GuestCluster::Zero } else { GuestCluster::Plain(offset) })
    }

    fn unpack(&mut self, cluster: u64, offset: u64, length: u64) -> Result<&[u8], Qcow2Error> {
        if self.unpacked.as_ref().is_none_or(|(at, _)| *at != cluster) {
            let fail =
                |reason: &dyn std::fmt::Display| damaged(format!("the compressed cluster at {offset}: {reason}"));
            // The last sector of the file need not be a whole one.
            let end = (offset + length).min(self.length);
            let mut packed = vec![0; end.saturating_sub(offset) as usize];
            if packed.is_empty() {
                return Err(fail(&format!("beyond the file's end at {}", self.length)));
            }
            self.file.read_exact_at(&mut packed, offset)?;
            let mut plain = vec![0; self.cluster_size() as usize];
            if self.zstd {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(packed.as_slice())?;
                decoder.window_log_max(ZSTD_WINDOW)?;
                decoder.single_frame().read_exact(&mut plain).map_err(|e| fail(&e))?;
            } else {
                let mut inflate = Decompress::new(false);
                let result = inflate.decompress(&packed, &mut plain, FlushDecompress::Finish);
                result.map_err(|e| fail(&e))?;
                if inflate.total_out() != self.cluster_size() {
                    return Err(fail(&"too short"));
                }
            }
            self.unpacked = Some((cluster, plain));
        }
        Ok(self.unpacked.as_ref().map(|(_, plain)| plain.as_slice()).unwrap_or_default())
    }
}

/// Marks something in a map; whether it is in there and was not marked.
fn mark(map: &mut [u64], at: u64) -> bool {
    let bit = 1 << (at % 64);
    match map.get_mut((at / 64) as usize) {
        Some(word) if *word & bit == 0 => {
            *word |= bit;
            true
        }
        _ => false,
    }
}

/// Checks a version 3 header; whether compressed clusters are zstd.
fn features(incompatible: u64, header_length: u32, compression: u8, have: usize) -> Result<bool, Qcow2Error> {
    if have < 104 || header_length < 104 {
        return Err(damaged("the header is cut short"));
    }
    if incompatible & INCOMPATIBLE_CORRUPT != 0 {
        return Err(damaged("it is marked corrupt; repair it with: qemu-img check -r all"));
    }
    if incompatible & INCOMPATIBLE_EXTERNAL != 0 {
        return Err(Qcow2Error::Unsupported("keeps its data in another file; use: qemu-img convert -O qcow2".into()));
    }
    if incompatible & INCOMPATIBLE_EXTENDED_L2 != 0 {
        return Err(Qcow2Error::Unsupported("has extended L2 entries; use: qemu-img convert -O qcow2".into()));
    }
    // Dirty means only that reference counts, which are not used here, may be wrong.
    let known = INCOMPATIBLE_DIRTY | INCOMPATIBLE_COMPRESSION;
    if incompatible & !known != 0 {
        return Err(Qcow2Error::Unsupported(format!("has unknown features {:#x}", incompatible & !known)));
    }
    match compression {
        _ if incompatible & INCOMPATIBLE_COMPRESSION == 0 || header_length < 105 || have < 105 => Ok(false),
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Qcow2Error::Unsupported(format!("has an unknown compression type {other}"))),
    }
}

fn damaged(reason: impl Into<String>) -> Qcow2Error {
    Qcow2Error::Damaged(reason.into())
}
