//! A virtual CD as a BMC and the machine's boot loader read it: by HTTP ranges, from the URL that was inserted.
//!
//! The firmware finds the EFI program by El Torito's catalogue, GRUB its configuration in the file system (ISO 9660 with
//! Rock Ridge names), the kernel its orders in the last of the archives. Nothing is known beforehand of where they are.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use http::Method;
use reqwest::Url;

use super::lossy_link::LossyLink;
use super::plan::SimulatedDownload;
use super::rng::SeededRng;
use crate::protocol::{ARGS_FILE, NETWORK_FILE};

const SECTOR: u64 = 2048;
/// Bytes that a BMC reads ahead.
const AHEAD: u64 = 32 << 10;
/// Bytes of kernel and initrd that a sample is.
const SAMPLE: u64 = 64 << 10;
/// Tries of each read.
const TRIES: usize = 3;
/// Longest file that is kept in memory, in bytes: a boot loader's configuration, an archive of orders.
const MOST: u64 = 64 << 10;
/// Directories that are looked through have no more bytes than this.
const DIRECTORY: u64 = 64 << 10;
/// Where GRUB's CD build looks for its configuration.
const GRUB_CONFIG: &str = "boot/grub/grub.cfg";
const EFI_PLATFORM: u8 = 0xef;

/// What a medium told the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MediumContents {
    /// The kernel's command line, and what the archive adds to it.
    pub command_line: String,
    /// The machine's network data.
    pub network: Option<Vec<u8>>,
}

/// Boots from the ISO at a URL as far as the machine's own agent.
///
/// # Errors
/// When it cannot be read, or nothing on it boots.
pub async fn boot(
    link: &LossyLink,
    url: &Url,
    download: SimulatedDownload,
    rng: &mut SeededRng,
) -> io::Result<MediumContents> {
    let mut medium = VirtualCd { link, url, pieces: BTreeMap::new() };
    let loader = medium.efi_image(rng).await?;
    let first = medium.read(loader..loader + 512, rng).await?;
    if !first.ends_with(&[0x55, 0xaa]) {
        return Err(wrong("what El Torito names is no file system"));
    }
    let root = medium.root(rng).await?;
    let config = medium.find(root, GRUB_CONFIG, rng).await?;
    let config = medium.small(config, rng).await?;
    let config = String::from_utf8_lossy(&config).into_owned();
    let line = |command: &str| config.lines().find_map(|line| line.strip_prefix(command)?.strip_prefix(' '));
    let (kernel, args) = line("linux").map(|line| line.split_once(' ').unwrap_or((line, ""))).ok_or_else(no_kernel)?;
    let archives: Vec<&str> = line("initrd").ok_or_else(no_kernel)?.split_whitespace().collect();
    let (orders, initrds) = archives.split_last().ok_or_else(no_kernel)?;
    for path in std::iter::once(&kernel).chain(initrds) {
        let file = medium.find(root, path, rng).await?;
        medium.load(file, download, rng).await?;
    }
    let archive = medium.find(root, orders, rng).await?;
    let archive = medium.small(archive, rng).await?;
    let mut files = entries(&archive)?;
    let words = files.remove(ARGS_FILE).ok_or_else(|| wrong("the medium is nobody's: it has no orders"))?;
    let command_line = format!("{} {}", args.trim(), String::from_utf8_lossy(&words).trim());
    Ok(MediumContents { command_line, network: files.remove(NETWORK_FILE) })
}

fn wrong(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

fn no_kernel() -> io::Error {
    wrong("the boot loader's configuration names no kernel and initrd")
}

/// A part of the medium.
type MediumPart = Range<u64>;

struct VirtualCd<'m> {
    link: &'m LossyLink,
    url: &'m Url,
    /// What was read, by its place in units of [`AHEAD`].
    pieces: BTreeMap<u64, Vec<u8>>,
}

impl VirtualCd<'_> {
    /// Asks for a part of the file.
    async fn ask(&self, part: MediumPart, rng: &mut SeededRng) -> io::Result<super::lossy_link::Fetched> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.link.fetch(Method::GET, self.url, Some(part.clone()), rng).await {
                Ok(fetched) => {
                    self.link.counts.fetched(fetched.bytes);
                    return Ok(fetched);
                }
                Err(error) if tries == TRIES => return Err(error),
                Err(_) => {}
            }
        }
    }

    async fn read(&mut self, part: MediumPart, rng: &mut SeededRng) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for number in part.start / AHEAD..part.end.div_ceil(AHEAD) {
            if !self.pieces.contains_key(&number) {
                let piece = self.ask(number * AHEAD..(number + 1) * AHEAD, rng).await?.text;
                self.pieces.insert(number, piece);
            }
            let piece = self.pieces.get(&number).map(Vec::as_slice).unwrap_or_default();
            let from = part.start.saturating_sub(number * AHEAD) as usize;
            let to = (part.end - number * AHEAD).min(AHEAD) as usize;
            bytes.extend_from_slice(piece.get(from..to).ok_or_else(|| wrong("the medium ends too early"))?);
        }
        Ok(bytes)
    }

    async fn sector(&mut self, number: u64, rng: &mut SeededRng) -> io::Result<Vec<u8>> {
        self.read(number * SECTOR..(number + 1) * SECTOR, rng).await
    }

    /// Where the file system for UEFI firmware begins (El Torito 1.0, sections 2.0 to 2.4).
    async fn efi_image(&mut self, rng: &mut SeededRng) -> io::Result<u64> {
        let record = self.sector(17, rng).await?;
        if !record.starts_with(b"\0CD001\x01EL TORITO SPECIFICATION") {
            return Err(wrong("the medium is not bootable: it has no boot record"));
        }
        let catalogue = self.sector(u64::from(little(&record[0x47..0x4b])), rng).await?;
        let mut platform = catalogue[1];
        for entry in catalogue.chunks_exact(32).skip(1) {
            match entry[0] {
                0x90 | 0x91 => platform = entry[1],
                0x88 if platform == EFI_PLATFORM => return Ok(u64::from(little(&entry[8..12])) * SECTOR),
                _ => {}
            }
        }
        Err(wrong("the medium has nothing that UEFI firmware boots"))
    }

    /// The root directory (ECMA-119, 8.4).
    async fn root(&mut self, rng: &mut SeededRng) -> io::Result<(u64, u64)> {
        let descriptor = self.sector(16, rng).await?;
        if !descriptor.starts_with(b"\x01CD001\x01") {
            return Err(wrong("the medium has no ISO 9660 file system"));
        }
        let root = &descriptor[156..190];
        Ok((u64::from(little(&root[2..6])) * SECTOR, u64::from(little(&root[10..14]))))
    }

    /// Where a file is, by its path.
    async fn find(&mut self, root: (u64, u64), path: &str, rng: &mut SeededRng) -> io::Result<MediumPart> {
        let mut at = root;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let (offset, length) = (at.0, at.1.min(DIRECTORY));
            let directory = self.read(offset..offset + length, rng).await?;
            at = named(&directory, name).ok_or_else(|| wrong(&format!("the medium has no {path}")))?;
        }
        Ok(at.0..at.0 + at.1)
    }

    async fn small(&mut self, file: MediumPart, rng: &mut SeededRng) -> io::Result<Vec<u8>> {
        if file.end - file.start > MOST {
            return Err(wrong("a file on the medium is larger than it should be"));
        }
        self.read(file, rng).await
    }

    /// Reads a large file, as far as wanted.
    async fn load(&mut self, file: MediumPart, download: SimulatedDownload, rng: &mut SeededRng) -> io::Result<()> {
        let end = match download {
            SimulatedDownload::Head => return Ok(()),
            SimulatedDownload::Sample => file.end.min(file.start + SAMPLE),
            SimulatedDownload::All => file.end,
        };
        let fetched = self.ask(file.start..end, rng).await?;
        if fetched.bytes as u64 != end - file.start {
            return Err(wrong("a part of the medium came short"));
        }
        Ok(())
    }
}

fn little(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// Offset and length of what has this name in a directory (ECMA-119, 9.1; the name is Rock Ridge's NM entry).
fn named(directory: &[u8], name: &str) -> Option<(u64, u64)> {
    for sector in directory.chunks(SECTOR as usize) {
        let mut rest = sector;
        while let [length @ 1..=u8::MAX, ..] = rest {
            let record = rest.get(..usize::from(*length))?;
            rest = rest.get(usize::from(*length)..)?;
            let id = usize::from(*record.get(32)?);
            // The identifier is padded to an even length of the record's head.
            let system = record.get(33 + id + usize::from(id.is_multiple_of(2))..)?;
            if alternate_name(system).is_some_and(|found| found == name.as_bytes()) {
                return Some((u64::from(little(record.get(2..6)?)) * SECTOR, u64::from(little(record.get(10..14)?))));
            }
        }
    }
    None
}

fn alternate_name(mut system: &[u8]) -> Option<&[u8]> {
    while let [a, b, length @ 4..=u8::MAX, ..] = system {
        let entry = system.get(..usize::from(*length))?;
        if (*a, *b) == (b'N', b'M') {
            return entry.get(5..);
        }
        system = system.get(usize::from(*length)..)?;
    }
    None
}

/// Files of a `newc` archive by name.
fn entries(archive: &[u8]) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let cut = || wrong("the archive of orders is cut off");
    let mut files = BTreeMap::new();
    let mut at = 0;
    loop {
        let header = archive.get(at..at + 110).filter(|header| header.starts_with(b"070701")).ok_or_else(cut)?;
        let field = |index: usize| {
            let digits = std::str::from_utf8(&header[6 + 8 * index..14 + 8 * index]).ok()?;
            usize::from_str_radix(digits, 16).ok()
        };
        let (size, name) = field(6).zip(field(11)).ok_or_else(cut)?;
        let text = archive.get(at + 110..).and_then(|rest| rest.get(..name.checked_sub(1)?)).ok_or_else(cut)?;
        let text = String::from_utf8_lossy(text).into_owned();
        if text == "TRAILER!!!" {
            return Ok(files);
        }
        let from = (at + 110 + name).next_multiple_of(4);
        let data = archive.get(from..).and_then(|rest| rest.get(..size)).ok_or_else(cut)?;
        files.insert(text, data.to_vec());
        at = (from + size).next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::Router;
    use axum::routing::get_service;
    use tower_http::services::ServeFile;

    use super::*;
    use crate::boot::iso::{self, apply};
    use crate::simulate::counts::RunCounts;
    use crate::simulate::rng::DrawPurpose;

    async fn boots(image: &[u8], download: SimulatedDownload, loss: f64) -> (io::Result<MediumContents>, u64) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.iso");
        std::fs::write(&file, image).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url: Url = format!("http://{}/a.iso", listener.local_addr().unwrap()).parse().unwrap();
        let router = Router::new().route("/a.iso", get_service(ServeFile::new(&file)));
        let serving = tokio::spawn(async move { axum::serve(listener, router).await });
        let counts = Arc::new(RunCounts::default());
        let link = LossyLink { source: None, loss, counts: counts.clone() };
        let orders = boot(&link, &url, download, &mut SeededRng::of(1, 1, DrawPurpose::Network)).await;
        serving.abort();
        (orders, counts.read(0).bytes)
    }

    #[tokio::test]
    async fn the_isos_that_the_appliance_makes_are_understood() {
        let (mut image, layout) = crate::ramdisk::medium(&[9; 100_000], None, &[1; 300_000], &[2; 500_000]).unwrap();
        let (blank, _) = boots(&image, SimulatedDownload::Head, 0.0).await;
        assert!(blank.unwrap_err().to_string().contains("nobody's"));
        let orders = iso::IsoBootParameters { args: "slipway.token=t\n".into(), network: Some(b"{}".to_vec()) };
        apply(&layout.patches("console=ttyS0", &orders).unwrap(), 0, &mut image);
        let wanted =
            MediumContents { command_line: "console=ttyS0 slipway.token=t".into(), network: Some(b"{}".to_vec()) };
        for (download, loss, most) in [
            (SimulatedDownload::Head, 0.0, 400_000),
            (SimulatedDownload::Sample, 0.05, 600_000),
            (SimulatedDownload::All, 0.0, 1_200_000),
        ] {
            let (orders, bytes) = boots(&image, download, loss).await;
            assert_eq!(orders.unwrap(), wanted);
            assert!(bytes < most, "{download:?}: {bytes}");
        }
        let cut = &image[..100_000];
        assert!(boots(cut, SimulatedDownload::Head, 0.0).await.0.is_err());
        image[17 * 2048 + 8] = b'!';
        assert!(boots(&image, SimulatedDownload::Head, 0.0).await.0.unwrap_err().to_string().contains("not bootable"));
    }
}
