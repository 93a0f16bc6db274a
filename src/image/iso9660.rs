//! Writes small ISO 9660 file systems (ECMA-119) with Joliet and Rock Ridge (RRIP 1.10) names.
//!
//! Own code, because the same files must always give the same bytes: a config drive that is built again is then
//! recognised as the one that is on the disk. Nothing but the given names and contents goes in: dates are fixed,
//! owner is root, files are readable by root alone.

use std::collections::BTreeMap;

const SECTOR: usize = 2048;
/// Volume descriptors begin here.
const FIRST_DESCRIPTOR: usize = 16;
/// Fixed date of everything: 1 January 1980.
const DATE: [u8; 7] = [80, 1, 1, 0, 0, 0, 0];
const DIRECTORY: u8 = 2;
/// Longest volume label that fits both kinds of names.
const MAX_LABEL: usize = 16;
/// Longest name in a Joliet directory.
const MAX_NAME: usize = 64;

/// Where an ISO 9660 image says that it is one, and how: the identifier of its first volume descriptor (ECMA-119 8.1.2).
pub(crate) const ISO_MAGIC: (usize, &[u8]) = (FIRST_DESCRIPTOR * SECTOR + 1, b"CD001");

/// Whether something that begins like this is an ISO 9660 image.
pub(crate) fn is_iso(head: &[u8]) -> bool {
    let (at, magic) = ISO_MAGIC;
    head.get(at..at + magic.len()) == Some(magic)
}

/// Why a file system is not built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IsoError {
    /// A name that cannot be kept as it is.
    #[error("{0:?} cannot be a name in an ISO 9660 file system")]
    Name(String),
    /// More than 4 GiB.
    #[error("the content is too large for an ISO 9660 file system")]
    TooLarge,
}

#[derive(Default)]
struct IsoFolder {
    parent: usize,
    name: String,
    folders: BTreeMap<String, usize>,
    files: BTreeMap<String, usize>,
}

/// One of the two trees of directories over the same files.
#[derive(Clone, Copy, PartialEq)]
enum IsoTree {
    /// Upper-case names with Rock Ridge entries.
    Primary,
    /// UCS-2 names.
    Joliet,
}

/// Which of the files firmware starts (El Torito 1.0), by place in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Boots {
    /// A FAT file system with `EFI/BOOT/`.
    pub efi: usize,
    /// A program of isolinux's kind: it gets its boot information table.
    pub bios: Option<usize>,
}

/// A file's place in an image, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub length: u64,
}

/// Builds a file system from paths with `/` and contents.
pub(crate) fn build(label: &str, files: &[(String, Vec<u8>)]) -> Result<Vec<u8>, IsoError> {
    Ok(assemble(label, files, None)?.0)
}

/// Builds a file system that firmware starts; and where each file is in it.
pub(crate) fn build_bootable(
    label: &str,
    files: &[(String, Vec<u8>)],
    boots: Boots,
) -> Result<(Vec<u8>, Vec<Extent>), IsoError> {
    assemble(label, files, Some(boots))
}

fn assemble(
    label: &str,
    files: &[(String, Vec<u8>)],
    boots: Option<Boots>,
) -> Result<(Vec<u8>, Vec<Extent>), IsoError> {
    if label.len() > MAX_LABEL || !label.is_ascii() {
        return Err(IsoError::Name(label.into()));
    }
    let folders = tree(files)?;
    // Every table of the drives that are made fits one sector; directories are measured.
    let tables = FIRST_DESCRIPTOR + 3 + usize::from(boots.is_some());
    let mut next = tables + 4;
    let mut place = |length: usize| {
        let at = next;
        next += length.div_ceil(SECTOR).max(1);
        at
    };
    let nowhere = IsoExtents { folders: &vec![(0, 0); folders.len()], files: &vec![(0, 0); files.len()] };
    let mut folder_places = [Vec::new(), Vec::new()];
    for (names, places) in [IsoTree::Primary, IsoTree::Joliet].into_iter().zip(&mut folder_places) {
        for index in 0..folders.len() {
            let length = directory(&folders, index, names, &nowhere).len();
            places.push((place(length), length));
        }
    }
    let catalogue_at = boots.map(|_| place(SECTOR));
    let file_places: Vec<_> = files.iter().map(|(_, data)| (place(data.len()), data.len())).collect();
    let sectors = next;
    if u32::try_from(sectors * SECTOR).is_err() {
        return Err(IsoError::TooLarge);
    }

    let mut image = vec![0; sectors * SECTOR];
    let mut put = |sector: usize, data: &[u8]| image[sector * SECTOR..][..data.len()].copy_from_slice(data);
    for (kind, (names, folder_places)) in
        [IsoTree::Primary, IsoTree::Joliet].into_iter().zip(&folder_places).enumerate()
    {
        let places = IsoExtents { folders: folder_places, files: &file_places };
        let table_at = tables + kind * 2;
        let little = path_table(&folders, names, &places, u32::to_le_bytes, u16::to_le_bytes);
        let big = path_table(&folders, names, &places, u32::to_be_bytes, u16::to_be_bytes);
        if little.len() > SECTOR {
            return Err(IsoError::TooLarge);
        }
        // El Torito's own descriptor has a fixed place, the second (section 2.0).
        let at = FIRST_DESCRIPTOR + if boots.is_some() { kind * 2 } else { kind };
        put(at, &descriptor(names, label, sectors, table_at, little.len(), folder_places[0]));
        put(table_at, &little);
        put(table_at + 1, &big);
        for (index, (at, _)) in folder_places.iter().enumerate() {
            put(*at, &directory(&folders, index, names, &places));
        }
    }
    let mut terminator = [0; 7];
    terminator[0] = 255;
    terminator[1..6].copy_from_slice(b"CD001");
    terminator[6] = 1;
    put(tables - 1, &terminator);
    for ((_, data), (at, _)) in files.iter().zip(&file_places) {
        put(*at, data);
    }
    if let (Some(boots), Some(catalogue_at)) = (boots, catalogue_at) {
        put(FIRST_DESCRIPTOR + 1, &boot_record(catalogue_at));
        let efi = *file_places.get(boots.efi).ok_or(IsoError::TooLarge)?;
        let bios = match boots.bios {
            Some(index) => Some(*file_places.get(index).ok_or(IsoError::TooLarge)?),
            None => None,
        };
        put(catalogue_at, &catalogue(efi, bios));
        if let (Some((at, length)), Some(index)) = (bios, boots.bios) {
            put(at, &with_boot_information(&files[index].1, at, length));
        }
    }
    let extent = |(at, length): &(usize, usize)| Extent { offset: (at * SECTOR) as u64, length: *length as u64 };
    Ok((image, file_places.iter().map(extent).collect()))
}

/// The boot record volume descriptor.
fn boot_record(catalogue_at: usize) -> Vec<u8> {
    let mut out = vec![0; SECTOR];
    out[1..7].copy_from_slice(b"CD001\x01");
    out[7..30].copy_from_slice(b"EL TORITO SPECIFICATION");
    out[0x47..0x4b].copy_from_slice(&(catalogue_at as u32).to_le_bytes());
    out
}

/// The boot catalogue: what BIOS starts first, as firmware that knows no sections takes only that.
fn catalogue(efi: (usize, usize), bios: Option<(usize, usize)>) -> Vec<u8> {
    const EFI: u8 = 0xef;
    let entry = |(at, length): (usize, usize), sectors: Option<u16>| {
        let mut out = [0; 32];
        out[0] = 0x88;
        // In units of 512 bytes, without emulation of a disk.
        let sectors = sectors.unwrap_or(u16::try_from(length.div_ceil(512)).unwrap_or(u16::MAX));
        out[6..8].copy_from_slice(&sectors.to_le_bytes());
        out[8..12].copy_from_slice(&(at as u32).to_le_bytes());
        out
    };
    let mut validation = [0; 32];
    validation[0] = 1;
    validation[1] = if bios.is_some() { 0 } else { EFI };
    validation[30..].copy_from_slice(&[0x55, 0xaa]);
    let sum =
        validation.chunks_exact(2).fold(0u16, |sum, word| sum.wrapping_add(u16::from_le_bytes([word[0], word[1]])));
    validation[28..30].copy_from_slice(&sum.wrapping_neg().to_le_bytes());
    let mut out = validation.to_vec();
    match bios {
        // The loader reads the rest of itself.
        Some(bios) => {
            out.extend(entry(bios, Some(4)));
            let mut header = [0; 32];
            header[..4].copy_from_slice(&[0x91, EFI, 1, 0]);
            out.extend(header);
            out.extend(entry(efi, None));
        }
        None => out.extend(entry(efi, None)),
    }
    out
}

/// A BIOS loader with the table by which it finds itself: first descriptor, its own place, length and checksum.
fn with_boot_information(loader: &[u8], at: usize, length: usize) -> Vec<u8> {
    let mut out = loader.to_vec();
    if out.len() < 64 {
        return out;
    }
    let word = |bytes: &[u8]| {
        let mut word = [0; 4];
        word[..bytes.len()].copy_from_slice(bytes);
        u32::from_le_bytes(word)
    };
    let sum = loader[64..].chunks(4).fold(0u32, |sum, bytes| sum.wrapping_add(word(bytes)));
    out[8..64].fill(0);
    for (index, value) in [FIRST_DESCRIPTOR as u32, at as u32, length as u32, sum].into_iter().enumerate() {
        out[8 + index * 4..12 + index * 4].copy_from_slice(&value.to_le_bytes());
    }
    out
}

struct IsoExtents<'a> {
    /// First sector and bytes of each folder.
    folders: &'a [(usize, usize)],
    /// First sector and bytes of each file.
    files: &'a [(usize, usize)],
}

/// Folders, parents before children, by level and then by name, as path tables want them.
fn tree(files: &[(String, Vec<u8>)]) -> Result<Vec<IsoFolder>, IsoError> {
    let mut depths: BTreeMap<(usize, Vec<&str>), usize> = BTreeMap::new();
    depths.insert((0, Vec::new()), 0);
    for (path, _) in files {
        let parts: Vec<&str> = path.split('/').collect();
        let good = |part: &&str| {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
            !part.is_empty() && part.len() <= MAX_NAME && *part != "." && *part != ".." && part.bytes().all(plain)
        };
        if parts.len() > 7 || !parts.iter().all(good) {
            return Err(IsoError::Name(path.clone()));
        }
        for depth in 1..parts.len() {
            depths.insert((depth, parts[..depth].to_vec()), 0);
        }
    }
    for (number, index) in depths.values_mut().enumerate() {
        *index = number;
    }
    let mut folders: Vec<IsoFolder> = depths.iter().map(|_| IsoFolder::default()).collect();
    for ((depth, path), index) in &depths {
        if let Some((name, above)) = path.split_last() {
            let parent = depths[&(depth - 1, above.to_vec())];
            folders[*index].parent = parent;
            folders[*index].name = (*name).to_owned();
            folders[parent].folders.insert((*name).to_owned(), *index);
        }
    }
    for (number, (path, _)) in files.iter().enumerate() {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parts: Vec<&str> = above.split('/').filter(|p| !p.is_empty()).collect();
        let folder = &mut folders[depths[&(parts.len(), parts)]];
        if folder.folders.contains_key(name) || folder.files.insert(name.to_owned(), number).is_some() {
            return Err(IsoError::Name(path.clone()));
        }
    }
    Ok(folders)
}

fn identifier(name: &str, file: bool, names: IsoTree) -> Vec<u8> {
    match names {
        IsoTree::Joliet => name.encode_utf16().flat_map(u16::to_be_bytes).collect(),
        IsoTree::Primary => {
            let mut plain: Vec<u8> = name
                .bytes()
                .map(|b| match b.to_ascii_uppercase() {
                    b @ (b'A'..=b'Z' | b'0'..=b'9') => b,
                    b'.' if file => b'.',
                    _ => b'_',
                })
                .take(28)
                .collect();
            if file {
                plain.extend_from_slice(b";1");
            }
            plain
        }
    }
}

fn directory(folders: &[IsoFolder], index: usize, names: IsoTree, places: &IsoExtents<'_>) -> Vec<u8> {
    let folder = &folders[index];
    let rock = names == IsoTree::Primary;
    let mut own = if rock { posix(true, 2 + folder.folders.len()) } else { Vec::new() };
    if rock && index == 0 {
        let mut extensions = b"SP\x07\x01\xbe\xef\x00".to_vec();
        extensions.append(&mut own);
        let (id, text) = (b"RRIP_1991A", b"THE ROCK RIDGE INTERCHANGE PROTOCOL");
        let length = 8 + id.len() + text.len();
        extensions.extend([b'E', b'R', length as u8, 1, id.len() as u8, text.len() as u8, 0, 1]);
        extensions.extend_from_slice(id);
        extensions.extend_from_slice(text);
        own = extensions;
    }
    let up = if rock { posix(true, 2 + folders[folder.parent].folders.len()) } else { Vec::new() };
    let mut records = vec![
        record(places.folders[index], DIRECTORY, &[0], &own),
        record(places.folders[folder.parent], DIRECTORY, &[1], &up),
    ];
    let entry = |name: &str, place, flags, links| {
        let id = identifier(name, flags != DIRECTORY, names);
        let mut system = Vec::new();
        if rock {
            system = posix(flags == DIRECTORY, links);
            system.extend([b'N', b'M', 5 + name.len() as u8, 1, 0]);
            system.extend_from_slice(name.as_bytes());
        }
        let record = record(place, flags, &id, &system);
        (id, record)
    };
    let mut entries = Vec::new();
    for (name, child) in &folder.folders {
        entries.push(entry(name, places.folders[*child], DIRECTORY, 2 + folders[*child].folders.len()));
    }
    for (name, file) in &folder.files {
        entries.push(entry(name, places.files[*file], 0, 1));
    }
    entries.sort();
    records.extend(entries.into_iter().map(|(_, record)| record));
    let mut out = Vec::new();
    for one in records {
        // No record crosses the end of a sector.
        if out.len() % SECTOR + one.len() > SECTOR {
            out.resize(out.len().next_multiple_of(SECTOR), 0);
        }
        out.extend(one);
    }
    out.resize(out.len().next_multiple_of(SECTOR), 0);
    out
}

/// The PX entry: mode, links, owner.
fn posix(folder: bool, links: usize) -> Vec<u8> {
    let mode: u32 = if folder { 0o040_500 } else { 0o100_400 };
    let mut entry = vec![b'P', b'X', 36, 1];
    for value in [mode, links as u32, 0, 0] {
        entry.extend(both32(value));
    }
    entry
}

fn record((sector, length): (usize, usize), flags: u8, id: &[u8], system: &[u8]) -> Vec<u8> {
    let mut out = vec![0, 0];
    out.extend(both32(sector as u32));
    out.extend(both32(length as u32));
    out.extend(DATE);
    out.extend([flags, 0, 0]);
    out.extend(both16(1));
    out.push(id.len() as u8);
    out.extend_from_slice(id);
    if out.len() % 2 == 1 {
        out.push(0);
    }
    out.extend_from_slice(system);
    if out.len() % 2 == 1 {
        out.push(0);
    }
    out[0] = out.len() as u8;
    out
}

fn path_table(
    folders: &[IsoFolder],
    names: IsoTree,
    places: &IsoExtents<'_>,
    long: fn(u32) -> [u8; 4],
    short: fn(u16) -> [u8; 2],
) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, folder) in folders.iter().enumerate() {
        let id = if index == 0 { vec![0] } else { identifier(&folder.name, false, names) };
        out.extend([id.len() as u8, 0]);
        out.extend(long(places.folders[index].0 as u32));
        out.extend(short(folder.parent as u16 + 1));
        out.extend_from_slice(&id);
        if id.len() % 2 == 1 {
            out.push(0);
        }
    }
    out
}

fn descriptor(
    names: IsoTree,
    label: &str,
    sectors: usize,
    table_at: usize,
    table_length: usize,
    root: (usize, usize),
) -> Vec<u8> {
    let mut out = vec![0; SECTOR];
    let mut put = |at: usize, data: &[u8]| out[at..at + data.len()].copy_from_slice(data);
    let text = |value: &str, length: usize| -> Vec<u8> {
        let mut bytes: Vec<u8> = match names {
            IsoTree::Primary => value.bytes().collect(),
            IsoTree::Joliet => value.encode_utf16().flat_map(u16::to_be_bytes).collect(),
        };
        let space: &[u8] = if names == IsoTree::Primary { b" " } else { b"\0 " };
        while bytes.len() + space.len() <= length {
            bytes.extend_from_slice(space);
        }
        bytes.resize(length, 0);
        bytes
    };
    put(0, &[if names == IsoTree::Primary { 1 } else { 2 }]);
    put(1, b"CD001\x01");
    put(8, &text("", 32));
    put(40, &text(label, 32));
    put(80, &both32(sectors as u32));
    if names == IsoTree::Joliet {
        put(88, b"%/E");
    }
    put(120, &both16(1));
    put(124, &both16(1));
    put(128, &both16(SECTOR as u16));
    put(132, &both32(table_length as u32));
    put(140, &(table_at as u32).to_le_bytes());
    put(148, &(table_at as u32 + 1).to_be_bytes());
    put(156, &record(root, DIRECTORY, &[0], &[]));
    for (at, length) in [(190, 128), (318, 128), (446, 128), (574, 128), (702, 37), (739, 37), (776, 37)] {
        put(at, &text("", length));
    }
    // Dates of the volume: not given.
    for at in [813, 830, 847, 864] {
        put(at, b"0000000000000000\0");
    }
    put(881, &[1]);
    out
}

fn both32(value: u32) -> [u8; 8] {
    let mut out = [0; 8];
    out[..4].copy_from_slice(&value.to_le_bytes());
    out[4..].copy_from_slice(&value.to_be_bytes());
    out
}

fn both16(value: u16) -> [u8; 4] {
    let mut out = [0; 4];
    out[..2].copy_from_slice(&value.to_le_bytes());
    out[2..].copy_from_slice(&value.to_be_bytes());
    out
}
