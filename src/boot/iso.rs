//! The boot ISO: one for all machines, with regions of fixed length that are filled in while it is streamed.
//!
//! `slipway ramdisk build` makes it and says where the regions are ([`IsoLayout`], in `ramdisk.json`): the two boot
//! loaders' configurations, for the site's kernel arguments, and a small archive that the kernel unpacks after the
//! initrd, for the machine's parameters and its network data. So the length never depends on the machine, any part can be
//! asked for alone, and nothing is built or kept for a host.

use serde::{Deserialize, Serialize};

use super::cpio::{CpioArchive, EntryType};
use crate::protocol::{ARGS_FILE, NETWORK_FILE};

/// Bytes of each boot loader's configuration.
pub const CONFIG_LENGTH: usize = 4096;
/// Bytes of the archive for one machine.
pub const ARCHIVE_LENGTH: usize = 32 << 10;

/// Where the kernel is on the ISO.
pub const ISO_KERNEL: &str = "slipway/vmlinuz";
/// Where the initrd is on the ISO.
pub const ISO_INITRD: &str = "slipway/initrd";
/// Where the archive for one machine is on the ISO.
pub const ISO_ARCHIVE: &str = "slipway/host.cpio";

/// A part of the ISO, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub length: u64,
}

/// Where the parts are that differ between machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsoLayout {
    /// Bytes of the whole.
    pub size: u64,
    /// Configuration of GRUB, for UEFI.
    pub grub: Region,
    /// Configuration of isolinux, for BIOS; none when there was no isolinux.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolinux: Option<Region>,
    /// The machine's archive.
    pub host: Region,
}

/// What one machine is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IsoBootParameters {
    /// Words that the agent reads as if they were on its kernel's command line.
    pub args: String,
    /// Its network data.
    pub network: Option<Vec<u8>>,
}

/// More than fits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} takes {length} bytes; {most} are the limit")]
pub struct BootParametersTooLong {
    what: &'static str,
    length: usize,
    most: u64,
}

/// Bytes that stand in for those of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsoPatch {
    /// Where they begin.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// GRUB's configuration.
pub fn grub_config(kernel_args: &str) -> String {
    format!(
        "set timeout=0\necho 'Slipway: loading the ramdisk from this medium'\nlinux /{ISO_KERNEL} {kernel_args}\n\
         initrd /{ISO_INITRD} /{ISO_ARCHIVE}\nboot\n"
    )
}

/// isolinux's configuration.
pub fn isolinux_config(kernel_args: &str) -> String {
    format!(
        "DEFAULT slipway\nPROMPT 0\nTIMEOUT 0\nLABEL slipway\n  KERNEL /{ISO_KERNEL}\n  \
         INITRD /{ISO_INITRD},/{ISO_ARCHIVE}\n  APPEND {kernel_args}\n"
    )
}

/// A boot loader's configuration as long as its region: line feeds fill it up.
pub fn padded(what: &'static str, text: &str, length: u64) -> Result<Vec<u8>, BootParametersTooLong> {
    let mut bytes = text.as_bytes().to_vec();
    if bytes.len() as u64 > length {
        return Err(BootParametersTooLong { what, length: bytes.len(), most: length });
    }
    bytes.resize(length as usize, b'\n');
    Ok(bytes)
}

/// The archive for one machine, as long as its region: the kernel passes over zeros at its end.
pub fn archive(parameters: &IsoBootParameters, length: u64) -> Result<Vec<u8>, BootParametersTooLong> {
    let mut archive = CpioArchive::new(Vec::new());
    let mut add = |name: &str, data: &[u8]| archive.add(name, EntryType::File(0o400), data);
    let written = (|| {
        if !parameters.args.is_empty() {
            add(ARGS_FILE, parameters.args.as_bytes())?;
        }
        match &parameters.network {
            Some(network) => add(NETWORK_FILE, network),
            None => Ok(()),
        }
    })();
    // Writing into memory fails only for an entry that no archive can hold.
    let what = "what this machine is told";
    let lengths = || parameters.args.len() + parameters.network.as_ref().map_or(0, Vec::len);
    let too_long = |length: usize, most| BootParametersTooLong { what, length, most };
    let mut bytes = written.and_then(|()| archive.finish()).map_err(|_| too_long(lengths(), length))?;
    if bytes.len() as u64 > length {
        return Err(too_long(bytes.len(), length));
    }
    bytes.resize(length as usize, 0);
    Ok(bytes)
}

impl IsoLayout {
    /// What stands in for the file's own bytes on this machine's ISO.
    pub fn patches(
        &self,
        kernel_args: &str,
        parameters: &IsoBootParameters,
    ) -> Result<Vec<IsoPatch>, BootParametersTooLong> {
        let config = |region: Region, text: String| {
            padded("boot.kernel_args", &text, region.length).map(|bytes| IsoPatch { offset: region.offset, bytes })
        };
        let mut patches = vec![config(self.grub, grub_config(kernel_args))?];
        if let Some(region) = self.isolinux {
            patches.push(config(region, isolinux_config(kernel_args))?);
        }
        patches.push(IsoPatch { offset: self.host.offset, bytes: archive(parameters, self.host.length)? });
        Ok(patches)
    }
}

/// Puts the patches into a piece of the file that begins at `offset`.
pub fn apply(patches: &[IsoPatch], offset: u64, piece: &mut [u8]) {
    for patch in patches {
        let (from, to) =
            (patch.offset.max(offset), (patch.offset + patch.bytes.len() as u64).min(offset + piece.len() as u64));
        if from < to {
            let source = &patch.bytes[(from - patch.offset) as usize..(to - patch.offset) as usize];
            piece[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layout() -> IsoLayout {
        let region = |offset, length| Region { offset, length };
        IsoLayout {
            size: 200_000,
            grub: region(2048, CONFIG_LENGTH as u64),
            isolinux: Some(region(8192, CONFIG_LENGTH as u64)),
            host: region(20_480, ARCHIVE_LENGTH as u64),
        }
    }

    #[test]
    fn each_region_is_filled_exactly() {
        let layout = layout();
        let parameters = IsoBootParameters { args: "slipway.token=abc".into(), network: Some(b"{}".to_vec()) };
        let patches = layout.patches("console=ttyS0,115200", &parameters).expect("patches");
        let lengths: Vec<_> = patches.iter().map(|patch| (patch.offset, patch.bytes.len())).collect();
        assert_eq!(lengths, [(2048, CONFIG_LENGTH), (8192, CONFIG_LENGTH), (20_480, ARCHIVE_LENGTH)]);
        let text = String::from_utf8_lossy(&patches[0].bytes).into_owned();
        assert!(text.contains(
            "linux /slipway/vmlinuz console=ttyS0,115200\ninitrd /slipway/initrd /slipway/host.cpio\nboot\n"
        ));
        let text = String::from_utf8_lossy(&patches[2].bytes).into_owned();
        assert!(text.contains("slipway.args") && text.contains("slipway.token=abc") && text.contains("TRAILER!!!"));
        // The boot loaders' parts are the site's; a machine's secrets are in one place alone.
        assert!(patches[..2].iter().all(|patch| !String::from_utf8_lossy(&patch.bytes).contains("abc")));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let much = IsoBootParameters { args: String::new(), network: Some(vec![b' '; ARCHIVE_LENGTH]) };
        let error = layout().patches("", &much).expect_err("refused").to_string();
        assert!(error.contains("what this machine is told takes 3"), "{error}");
        let error = layout()
            .patches(&"a".repeat(CONFIG_LENGTH), &IsoBootParameters::default())
            .expect_err("refused")
            .to_string();
        assert!(error.starts_with("boot.kernel_args takes"), "{error}");
        let most = IsoBootParameters {
            args: "a".repeat(1500),
            network: Some(vec![b' '; crate::network_data::MAX_NETWORK_DATA]),
        };
        assert!(layout().patches(&"a".repeat(1024), &most).is_ok(), "what is allowed fits");
    }

    proptest! {
        #[test]
        fn pieces_are_the_same_however_they_are_cut(cuts in proptest::collection::vec(1usize..300, 1..40)) {
            let file: Vec<u8> = (0..2000u32).map(|at| at as u8).collect();
            let patches = [IsoPatch { offset: 100, bytes: vec![1; 50] }, IsoPatch { offset: 700, bytes: vec![2; 900] }];
            let mut whole = file.clone();
            apply(&patches, 0, &mut whole);
            prop_assert_eq!((whole[99], whole[100], whole[149], whole[150]), (99, 1, 1, 150));
            let (mut at, mut joined) = (0, Vec::new());
            for cut in cuts.iter().cycle() {
                if at == file.len() { break; }
                let mut piece = file[at..(at + cut).min(file.len())].to_vec();
                apply(&patches, at as u64, &mut piece);
                at += piece.len();
                joined.extend(piece);
            }
            prop_assert_eq!(joined, whole);
        }
    }
}
