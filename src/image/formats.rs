//! What a file is by its first bytes, and the decoders of outer compression.

use std::io::{self, BufReader, Read};

use bzip2::read::MultiBzDecoder;
use flate2::read::MultiGzDecoder;
use liblzma::read::XzDecoder;

/// Memory that an xz stream may ask for, in bytes; `xz -9` asks for 65 MiB. Imports that wait keep theirs.
const XZ_MEMORY: u64 = 80 << 20;
/// The same of zstd, as a power of two: 64 MiB. `zstd -19` asks for 8 MiB, and only `--ultra -22` and `--long` for 128.
pub(super) const ZSTD_WINDOW: u32 = 26;
/// `LZMA_CONCATENATED`: a file may hold several streams, as parallel compressors write.
const XZ_CONCATENATED: u32 = 0x08;
/// Compressed bytes read at once.
const BUFFER: usize = 128 << 10;
/// Bytes that tell what a disk image is.
pub(super) const HEAD: usize = 4096;

/// Compression around an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outer {
    None,
    Gzip,
    Xz,
    Zstd,
    Bzip2,
}

impl Outer {
    /// By magic bytes: RFC 1952, the .xz format, RFC 8878 (also its skippable frames), bzip2.
    pub(super) fn of(head: &[u8]) -> Self {
        match head {
            [0x1f, 0x8b, 0x08, ..] => Self::Gzip,
            [0xfd, b'7', b'z', b'X', b'Z', 0x00, ..] => Self::Xz,
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, 0x53, 0x59, ..] => Self::Bzip2,
            _ => Self::None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "no",
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
            Self::Bzip2 => "bzip2",
        }
    }

    /// Unpacks what is read.
    pub(super) fn decoder<'a>(self, source: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
        let source = BufReader::with_capacity(BUFFER, source);
        Ok(match self {
            Self::None => Box::new(source),
            Self::Gzip => Box::new(MultiGzDecoder::new(source)),
            Self::Bzip2 => Box::new(MultiBzDecoder::new(source)),
            Self::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(source)?;
                decoder.window_log_max(ZSTD_WINDOW)?;
                Box::new(decoder)
            }
            Self::Xz => {
                let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, XZ_CONCATENATED);
                Box::new(XzDecoder::new_stream(source, stream.map_err(io::Error::other)?))
            }
        })
    }
}

/// Whether a decoder failed because it would need more memory than it may have.
pub(super) fn wants_memory(error: &io::Error) -> bool {
    let of_xz = |error: &(dyn std::error::Error + Send + Sync + 'static)| {
        matches!(error.downcast_ref(), Some(liblzma::stream::Error::MemLimit))
    };
    error.get_ref().is_some_and(of_xz) || error.to_string().contains("too much memory")
}

/// How a disk is laid out in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskLayout {
    Raw,
    Qcow2,
    /// An ISO 9660 image, kept as raw bytes.
    Iso,
    /// An archive of container images.
    Oci,
    /// An archive of files for nodes.
    Packages,
}

/// Whether this format is one of archives, which no host is installed with.
pub fn is_archive(format: Option<&str>) -> bool {
    matches!(DiskLayout::wanted(format), Ok(Some(DiskLayout::Oci | DiskLayout::Packages)))
}

impl DiskLayout {
    /// What the spec's `format` asks for; `None` when it leaves it open.
    pub(super) fn wanted(format: Option<&str>) -> Result<Option<Self>, String> {
        match format.unwrap_or_default().trim() {
            "" => Ok(None),
            "raw" => Ok(Some(Self::Raw)),
            "qcow2" => Ok(Some(Self::Qcow2)),
            "live-iso" => Ok(Some(Self::Iso)),
            "oci" => Ok(Some(Self::Oci)),
            "packages" => Ok(Some(Self::Packages)),
            other @ ("vmdk" | "vdi" | "vhd" | "vhdx" | "vpc") => Err(convert(other)),
            other => Err(format!(
                "format {other:?} is not known; use raw, qcow2 or live-iso, or oci or packages of an archive"
            )),
        }
    }

    /// As the spec's `format` has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
            Self::Iso => "live-iso",
            Self::Oci => "oci",
            Self::Packages => "packages",
        }
    }

    /// What the file is. Content that contradicts the spec, or is no disk at all, is refused.
    pub(super) fn of(head: &[u8], wanted: Option<Self>) -> Result<Self, String> {
        let found = detect(head);
        match wanted {
            // Raw was asked for, so whatever the guest wrote there is its own affair: it is never interpreted.
            Some(wanted @ (Self::Raw | Self::Iso)) => Ok(wanted),
            Some(wanted @ (Self::Oci | Self::Packages)) if is_tar(head) => Ok(wanted),
            Some(Self::Oci | Self::Packages) => {
                Err("the spec says that it is an archive, and it is no tar file".into())
            }
            Some(Self::Qcow2) if found != Ok(Self::Qcow2) => Err("the spec says qcow2, but it is not one".into()),
            _ => found,
        }
    }
}

/// By the magic of POSIX and of GNU.
fn is_tar(head: &[u8]) -> bool {
    head.get(257..262) == Some(b"ustar")
}

fn convert(format: &str) -> String {
    format!("format {format} is not read; convert it with: qemu-img convert -O qcow2 -c SOURCE IMAGE.qcow2")
}

fn detect(head: &[u8]) -> Result<DiskLayout, String> {
    let at = |offset: usize, magic: &[u8]| head.get(offset..offset + magic.len()) == Some(magic);
    if at(0, b"QFI\xfb") {
        return Ok(DiskLayout::Qcow2);
    }
    let foreign: [(usize, &[u8], &str); 7] = [
        (0, b"KDMV", "vmdk"),
        (0, b"COWD", "vmdk"),
        (0, b"# Disk DescriptorFile", "vmdk"),
        (0x40, &[0x7f, 0x10, 0xda, 0xbe], "vdi"),
        (0, b"vhdxfile", "vhdx"),
        (0, b"conectix", "vhd"),
        (0, b"WithoutFreeSpace", "parallels"),
    ];
    if let Some((_, _, name)) = foreign.iter().find(|(offset, magic, _)| at(*offset, magic)) {
        return Err(convert(name));
    }
    if is_tar(head) {
        return Err(
            "it is a tar archive: say format oci of container images, packages of files for nodes, or raw if it is a \
                    disk all the same"
                .into(),
        );
    }
    let text = String::from_utf8_lossy(head.get(..256).unwrap_or(head)).to_ascii_lowercase();
    if ["<!doctype html", "<html", "<?xml"].iter().any(|page| text.trim_start().starts_with(page)) {
        return Err("it is a web page, not a disk image; check the URL".into());
    }
    Ok(DiskLayout::Raw)
}

/// Reads until the buffer is full or the source ends; how much was read.
pub(super) fn fill(source: &mut (impl Read + ?Sized), buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match source.read(&mut buffer[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
