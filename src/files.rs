//! Files that somebody names in a configuration: regular ones, of bounded size.
//!
//! A pipe would hold up whoever opens it, and a device has no end. So what was opened is looked at, and no more is read than a
//! file of its kind has.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file.
///
/// # Errors
///
/// When it cannot be opened, or is a folder, a pipe, a socket or a device.
pub fn open(path: &Path) -> io::Result<File> {
    // A pipe without a writer is opened, too, and a terminal does not become this process's.
    let flags = nix::fcntl::OFlag::O_NONBLOCK | nix::fcntl::OFlag::O_NOCTTY;
    regular(File::options().read(true).custom_flags(flags.bits()).open(path)?)
}

/// [`open`], and no link is followed: for folders in which others write.
///
/// # Errors
///
/// As [`open`], and when it is a link.
pub fn open_itself(path: &Path) -> io::Result<File> {
    let flags = nix::fcntl::OFlag::O_NONBLOCK | nix::fcntl::OFlag::O_NOCTTY | nix::fcntl::OFlag::O_NOFOLLOW;
    regular(File::options().read(true).custom_flags(flags.bits()).open(path)?)
}

fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file: no folder, pipe or device is read"))
}

/// All of a regular file that has at most `most` bytes.
///
/// # Errors
///
/// As [`open`], when it cannot be read, and when it is longer.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    within(open(path)?, most)
}

/// All of an open file that has at most `most` bytes.
///
/// # Errors
///
/// As [`read`].
pub fn within(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > most {
        let message = match most >> 20 {
            0 => format!("longer than {most} bytes"),
            mebibytes => format!("longer than {mebibytes} MiB"),
        };
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(content)
}

/// [`read`], of text.
///
/// # Errors
///
/// As [`read`], and when it is no UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "is no text in UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_of_some_size_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("good"), "1234").expect("written");
        std::fs::write(at("long"), "12345").expect("written");
        std::fs::write(at("bytes"), [0xff]).expect("written");
        std::os::unix::fs::symlink(at("good"), at("link")).expect("linked");
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("made");
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).expect("bound");
        let said = |path: &Path| read_text(path, 4).map_err(|error| error.to_string());
        for (path, wanted) in [
            (at("good"), Ok("1234")),
            (at("link"), Ok("1234")),
            (at("long"), Err("longer than 4 bytes")),
            (at("bytes"), Err("UTF-8")),
            (at("pipe"), Err("not a regular file")),
            (at("socket"), Err("")),
            (folder.path().to_owned(), Err("not a regular file")),
            ("/dev/zero".into(), Err("not a regular file")),
            (at("nothing"), Err("No such file")),
        ] {
            match (said(&path), wanted) {
                (Ok(text), Ok(wanted)) => assert_eq!(text, wanted),
                (Err(reason), Err(part)) => assert!(reason.contains(part), "{}: {reason}", path.display()),
                (found, _) => panic!("{}: {found:?}", path.display()),
            }
        }
    }
}
