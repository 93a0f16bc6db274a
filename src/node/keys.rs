//! `authorized_keys`: a block of the appliance's, in a file that is its user's.
//!
//! Lines outside of the block are left as they are. Links are not followed: neither the file nor its folder may be one, for both may
//! be the user's, and root writes.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::files::{self, NodeFileOwner, ReplacingFile};

/// Before the block.
const BEGIN: &str = "# BEGIN slipway: these keys are kept by the appliance, changes are undone";
/// What the first line of a block begins with, whatever it says behind it.
const BEGINS: &str = "# BEGIN slipway";
/// After the block.
const END: &str = "# END slipway";
/// Most keys.
const MAX_KEYS: usize = 1000;
/// Longest key in bytes.
const MAX_KEY: usize = 16 << 10;
/// Largest file that is written again, in bytes.
const MAX_FILE: u64 = 4 << 20;

/// The lines of keys that can stand in the block.
pub(super) fn usable(keys: &[String]) -> Vec<String> {
    let keys = keys.iter().map(|key| key.trim());
    let good = keys.filter(|key| {
        !key.is_empty() && key.len() <= MAX_KEY && !key.starts_with('#') && !key.contains(|c: char| c.is_control())
    });
    good.take(MAX_KEYS).map(str::to_owned).collect()
}

/// A file with these keys in its block. `before` are the keys that were in it last: where somebody has damaged the marks they go,
/// too.
fn with_block(text: &str, keys: &[String], before: &[String]) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut kept = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        at += 1;
        if line.trim() == END {
            continue;
        }
        if !line.starts_with(BEGINS) {
            kept.push(line);
            continue;
        }
        // Up to its end; without one, only what is known to be of the block.
        if let Some(length) = lines[at..].iter().position(|line| line.trim() == END) {
            at += length + 1;
        } else {
            let rest = lines[at..].iter().filter(|line| !before.iter().chain(keys).any(|key| key == line.trim()));
            kept.extend(rest);
            break;
        }
    }
    let mut out = String::new();
    for line in kept {
        out.push_str(line);
        out.push('\n');
    }
    if !keys.is_empty() {
        for line in [BEGIN].into_iter().chain(keys.iter().map(String::as_str)).chain([END]) {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

/// A user of passwd(5).
#[derive(Debug, PartialEq, Eq)]
struct User {
    owner: NodeFileOwner,
    home: PathBuf,
}

fn user(passwd: &str, name: &str) -> Option<User> {
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    let fields: Vec<&str> = line.split(':').collect();
    let [_, _, uid, gid, _, home, ..] = fields[..] else { return None };
    let owner = NodeFileOwner { uid: uid.parse().ok()?, gid: gid.parse().ok()? };
    Path::new(home).is_absolute().then(|| User { owner, home: home.into() })
}

/// Brings a user's file to these keys; whether it was changed.
pub(super) fn keep(root: &Path, name: &str, keys: &[String], before: &[String]) -> io::Result<bool> {
    let passwd = crate::files::read_text(&root.join("etc/passwd"), MAX_FILE)?;
    let Some(user) = user(&passwd, name) else {
        let what = format!("there is no user {name} in /etc/passwd");
        return Err(io::Error::new(io::ErrorKind::NotFound, what));
    };
    let home = files::walk(&root.join(user.home.strip_prefix("/").unwrap_or(&user.home)), false)?;
    let (folder, file) = (OsStr::new(".ssh"), OsStr::new("authorized_keys"));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let ssh = match rustix::fs::openat(&home, folder, flags, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) if keys.is_empty() => return Ok(false),
        Err(rustix::io::Errno::NOENT) => {
            rustix::fs::mkdirat(&home, folder, Mode::from_raw_mode(0o700))?;
            let made = rustix::fs::openat(&home, folder, flags, Mode::empty())?;
            let (uid, gid) = (user.owner.uid, user.owner.gid);
            rustix::fs::fchown(
                &made,
                Some(rustix::process::Uid::from_raw(uid)),
                Some(rustix::process::Gid::from_raw(gid)),
            )?;
            made
        }
        opened => opened?,
    };
    let (text, mode) = match files::open_in(&ssh, file) {
        Ok(open) => {
            use std::os::unix::fs::PermissionsExt;
            let mode = open.metadata()?.permissions().mode() & 0o777;
            let text = crate::files::within(open, MAX_FILE)?;
            let text = String::from_utf8(text)
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "authorized_keys is no text in UTF-8"))?;
            (text, mode)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => (String::new(), 0o600),
        Err(error) => return Err(error),
    };
    let wanted = with_block(&text, keys, before);
    if wanted == text || keys.is_empty() && !text.contains(BEGINS) {
        return Ok(false);
    }
    let mut new = ReplacingFile::begin_in(ssh, file, mode)?;
    new.own(user.owner)?;
    new.file.write_all(wanted.as_bytes())?;
    new.place()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn keys(keys: &[&str]) -> Vec<String> {
        keys.iter().map(|key| (*key).to_owned()).collect()
    }

    #[test]
    fn the_block_is_the_appliances_and_other_lines_are_not() {
        let block = |inner: &str| format!("{BEGIN}\n{inner}{END}\n");
        let rows: [(&str, Vec<&str>, String); 7] = [
            ("", vec!["ssh-a"], block("ssh-a\n")),
            ("mine", vec!["ssh-a"], format!("mine\n{}", block("ssh-a\n"))),
            (&format!("mine\n{}yours\n", block("old\n")), vec!["ssh-a"], format!("mine\nyours\n{}", block("ssh-a\n"))),
            (&format!("mine\n{}", block("old\n")), vec![], "mine\n".to_owned()),
            // Two blocks, and one without its end.
            (&format!("{}{}", block("x\n"), block("y\n")), vec!["ssh-a"], block("ssh-a\n")),
            (&format!("{BEGIN}\nold\nmine\n"), vec!["ssh-a"], format!("mine\n{}", block("ssh-a\n"))),
            (&format!("mine\n{END}\n"), vec!["ssh-a"], format!("mine\n{}", block("ssh-a\n"))),
        ];
        for (text, wanted_keys, wanted) in rows {
            let made = with_block(text, &keys(&wanted_keys), &keys(&["old"]));
            assert_eq!(made, wanted, "{text}");
            assert_eq!(with_block(&made, &keys(&wanted_keys), &[]), made, "twice is once");
        }
    }

    #[test]
    fn a_key_cannot_end_the_block_or_be_two() {
        let bad = ["# END slipway", "a\nssh-b", "a\rb", "", " ", &"x".repeat(MAX_KEY + 1)];
        assert!(usable(&keys(&bad)).is_empty());
        assert_eq!(usable(&keys(&[" ssh-a b "])), ["ssh-a b"]);
        assert_eq!(usable(&vec!["k".to_owned(); MAX_KEYS + 1]).len(), MAX_KEYS);
    }

    #[test]
    fn links_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let me = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::write(root.join("etc/passwd"), format!("u:x:{}:{}::/home/u:/bin/sh\n", me.0, me.1)).unwrap();
        let home = root.join("home/u");
        std::fs::create_dir_all(&home).unwrap();
        let wanted = keys(&["ssh-a"]);
        assert!(keep(&root, "nobody", &wanted, &[]).is_err());
        assert!(keep(&root, "u", &wanted, &[]).unwrap());
        assert!(!keep(&root, "u", &wanted, &[]).unwrap(), "nothing to do");
        let path = home.join(".ssh/authorized_keys");
        assert!(std::fs::read_to_string(&path).unwrap().contains("ssh-a"));
        // Somebody's link to a file of root's.
        let victim = root.join("victim");
        std::fs::write(&victim, "root's\n").unwrap();
        std::fs::remove_file(&path).unwrap();
        symlink(&victim, &path).unwrap();
        assert!(keep(&root, "u", &keys(&["ssh-b"]), &[]).is_err());
        std::fs::remove_dir_all(home.join(".ssh")).unwrap();
        std::fs::create_dir(root.join("elsewhere")).unwrap();
        symlink(root.join("elsewhere"), home.join(".ssh")).unwrap();
        assert!(keep(&root, "u", &keys(&["ssh-b"]), &[]).is_err());
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "root's\n");
        assert_eq!(std::fs::read_dir(root.join("elsewhere")).unwrap().count(), 0);
    }
}
