//! cpio archives in the `newc` format that the kernel unpacks (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::io::{self, Write};

/// Kind and mode of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryType {
    /// A folder, mode 0755.
    Folder,
    /// A file with these permission bits.
    File(u32),
    /// A character device, mode 0600.
    Device {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
}

/// Writes entries one after the other: owner root, time 0.
pub struct CpioArchive<W> {
    out: W,
    inode: u32,
}

impl<W: Write> CpioArchive<W> {
    /// An empty archive.
    pub fn new(out: W) -> Self {
        Self { out, inode: 0 }
    }

    /// Appends an entry; folders before what is in them. `path` has no leading slash.
    pub fn add(&mut self, path: &str, kind: EntryType, data: &[u8]) -> io::Result<()> {
        self.inode += 1;
        let inode = self.inode;
        self.entry(path, kind, inode, data)
    }

    /// Ends the archive and gives the writer back.
    pub fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", EntryType::File(0), 0, &[])?;
        Ok(self.out)
    }

    fn entry(&mut self, path: &str, kind: EntryType, inode: u32, data: &[u8]) -> io::Result<()> {
        let (mode, links, major, minor) = match kind {
            EntryType::Folder => (0o040_755, 2, 0, 0),
            EntryType::File(0) => (0, 1, 0, 0),
            EntryType::File(permissions) => (0o100_000 | permissions, 1, 0, 0),
            EntryType::Device { major, minor } => (0o020_600, 1, major, minor),
        };
        let size = u32::try_from(data.len()).map_err(|_| io::Error::other(format!("{path}: larger than 4 GiB")))?;
        // Inode, mode, uid, gid, links, mtime, size, device, special device, name length with its NUL, check.
        let fields = [inode, mode, 0, 0, links, 0, size, 0, 0, major, minor, path.len() as u32 + 1, 0];
        let mut header = String::with_capacity(112 + path.len());
        header.push_str("070701");
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        header.push_str(path);
        header.push('\0');
        self.out.write_all(header.as_bytes())?;
        self.pad(header.len())?;
        self.out.write_all(data)?;
        self.pad(data.len())
    }

    fn pad(&mut self, written: usize) -> io::Result<()> {
        self.out.write_all(&[0; 3][..written.next_multiple_of(4) - written])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn sample() -> Vec<u8> {
        let mut archive = CpioArchive::new(Vec::new());
        archive.add("dev", EntryType::Folder, &[]).expect("added");
        archive.add("dev/console", EntryType::Device { major: 5, minor: 1 }, &[]).expect("added");
        archive.add("init", EntryType::File(0o755), b"hello").expect("added");
        archive.add("lib/a", EntryType::File(0o644), &[7; 4096]).expect("added");
        archive.finish().expect("finished")
    }

    #[test]
    fn entries_are_aligned_and_ended() {
        let bytes = sample();
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.starts_with(b"07070100000001000041ed"));
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("070701").count(), 5);
        assert!(text.contains("TRAILER!!!\0"));
    }

    /// GNU cpio, where it is installed, reads the same entries.
    #[test]
    fn gnu_cpio_agrees() {
        if !crate::needs::program("cpio") {
            return;
        }
        let mut child = Command::new("cpio")
            .args(["-tv", "--quiet", "--numeric-uid-gid"])
            .env("TZ", "UTC")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("cpio");
        child.stdin.take().expect("stdin").write_all(&sample()).expect("written");
        let output = child.wait_with_output().expect("ended");
        assert!(output.status.success());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[0].starts_with("drwxr-xr-x") && lines[0].ends_with(" dev"), "{text}");
        assert!(lines[1].starts_with("crw-------") && lines[1].contains("5,   1"), "{text}");
        assert!(lines[2].starts_with("-rwxr-xr-x") && lines[2].ends_with(" init"), "{text}");
        assert!(lines[3].contains(" 4096 ") && lines[3].contains("1970"), "{text}");
    }
}
