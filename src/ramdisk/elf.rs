//! As much of ELF as the ramdisk needs: whether a program is static, and what a kernel module says about itself.

/// The bytes are no 64-bit little-endian ELF file, or are cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a whole 64-bit ELF file")]
pub struct NotElf;

const PT_INTERP: u32 = 3;

/// Whether a program needs an interpreter (the dynamic loader) to run.
pub fn needs_interpreter(file: &[u8]) -> Result<bool, NotElf> {
    let header = header(file)?;
    let (offset, size, count) = (number(header, 0x20, 8)?, number(header, 0x36, 2)?, number(header, 0x38, 2)?);
    for index in 0..count {
        if number(file, at(offset, index, size)?, 4)? as u32 == PT_INTERP {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The `key=value` pairs of a module's `.modinfo` section, in order.
pub fn modinfo(file: &[u8]) -> Result<Vec<(String, String)>, NotElf> {
    let header = header(file)?;
    let (offset, size, count) = (number(header, 0x28, 8)?, number(header, 0x3a, 2)?, number(header, 0x3c, 2)?);
    let names = section(file, at(offset, number(header, 0x3e, 2)?, size)?)?;
    let mut pairs = Vec::new();
    for index in 0..count {
        let entry = at(offset, index, size)?;
        let name = names.get(number(file, entry, 4)?..).ok_or(NotElf)?;
        if !name.starts_with(b".modinfo\0") {
            continue;
        }
        for text in section(file, entry)?.split(|byte| *byte == 0).filter(|text| !text.is_empty()) {
            if let Some((key, value)) = String::from_utf8_lossy(text).split_once('=') {
                pairs.push((key.to_owned(), value.to_owned()));
            }
        }
    }
    Ok(pairs)
}

fn header(file: &[u8]) -> Result<&[u8], NotElf> {
    // Magic, 64 bit, little endian.
    if file.len() < 64 || !file.starts_with(b"\x7fELF\x02\x01") { Err(NotElf) } else { Ok(&file[..64]) }
}

fn section(file: &[u8], entry: usize) -> Result<&[u8], NotElf> {
    let field = |offset| number(file, entry.checked_add(offset).ok_or(NotElf)?, 8);
    let (start, size) = (field(0x18)?, field(0x20)?);
    file.get(start..start.checked_add(size).ok_or(NotElf)?).ok_or(NotElf)
}

fn at(offset: usize, index: usize, size: usize) -> Result<usize, NotElf> {
    index.checked_mul(size).and_then(|distance| offset.checked_add(distance)).ok_or(NotElf)
}

fn number(bytes: &[u8], start: usize, length: usize) -> Result<usize, NotElf> {
    let field = bytes.get(start..start.checked_add(length).ok_or(NotElf)?).ok_or(NotElf)?;
    let value = field.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    usize::try_from(value).map_err(|_| NotElf)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An ELF file with a `.modinfo` section, and with or without a program header for an interpreter.
    pub fn sample(info: &str, interpreter: bool) -> Vec<u8> {
        let names = b"\0.modinfo\0.shstrtab\0";
        let info = info.replace('\n', "\0");
        let mut file = vec![0; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        if interpreter {
            file[0x20] = 64;
            file[0x36] = 56;
            file[0x38] = 1;
            file.extend([3, 0, 0, 0]);
            file.resize(64 + 56, 0);
        }
        let info_at = file.len();
        file.extend(info.as_bytes());
        let names_at = file.len();
        file.extend(names);
        let sections = file.len();
        file[0x28..0x30].copy_from_slice(&(sections as u64).to_le_bytes());
        file[0x3a] = 64;
        file[0x3c] = 3;
        file[0x3e] = 2;
        let mut add = |name: u32, start: usize, size: usize| {
            let mut entry = vec![0; 64];
            entry[..4].copy_from_slice(&name.to_le_bytes());
            entry[0x18..0x20].copy_from_slice(&(start as u64).to_le_bytes());
            entry[0x20..0x28].copy_from_slice(&(size as u64).to_le_bytes());
            file.extend(entry);
        };
        add(0, 0, 0);
        add(1, info_at, info.len());
        add(10, names_at, names.len());
        file
    }

    #[test]
    fn what_a_module_says() {
        let file = sample("name=a_b\ndepends=c,d\nalias=pci:v*\nodd", false);
        let pairs = modinfo(&file).expect("read");
        let expected = [("name", "a_b"), ("depends", "c,d"), ("alias", "pci:v*")];
        assert_eq!(pairs, expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert_eq!(needs_interpreter(&file), Ok(false));
        assert_eq!(needs_interpreter(&sample("", true)), Ok(true));
    }

    /// The test itself is linked dynamically on every machine it is made for.
    #[test]
    fn a_real_program() {
        let own = std::fs::read("/proc/self/exe").expect("read");
        assert_eq!(needs_interpreter(&own), Ok(!cfg!(target_feature = "crt-static")));
    }

    proptest! {
        #[test]
        fn no_file_panics(cut in 0usize..400, changes in proptest::collection::vec((0usize..400, any::<u8>()), 0..8)) {
            let mut file = sample("name=a\ndepends=", true);
            for (at, byte) in changes {
                if let Some(place) = file.get_mut(at) {
                    *place = byte;
                }
            }
            file.truncate(cut);
            let _ = modinfo(&file);
            let _ = needs_interpreter(&file);
        }
    }
}
