//! User names and ids from `/etc/passwd`.
//!
//! Users of this box, as `/etc/passwd` has them. Read here and not by the C library: a static binary cannot load its
//! modules for other sources of users.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const PASSWD: &str = "/etc/passwd";
/// The user that the systemd unit runs the appliance as (`systemd/slipway.sysusers`).
const SERVICE: &str = "slipway";

/// User and group id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOwner {
    /// User.
    pub user: u32,
    /// Group.
    pub group: u32,
}

fn lines(passwd: &str) -> impl Iterator<Item = (&str, FileOwner)> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, _, user, group) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        Some((name, FileOwner { user: user.parse().ok()?, group: group.parse().ok()? }))
    })
}

fn find(passwd: &str, name: &str) -> Option<FileOwner> {
    lines(passwd).find(|(found, _)| *found == name).map(|(_, owner)| owner)
}

fn name_of(passwd: &str, user: u32) -> String {
    lines(passwd).find(|(_, owner)| owner.user == user).map_or_else(|| user.to_string(), |(name, _)| name.to_owned())
}

/// The user of the service, if this box has it.
pub fn service() -> Option<FileOwner> {
    find(&fs::read_to_string(PASSWD).ok()?, SERVICE)
}

/// Name of a user, or its number.
pub fn name(user: u32) -> String {
    name_of(&fs::read_to_string(PASSWD).unwrap_or_default(), user)
}

/// Home folder of a user, with his own group.
pub fn home(user: u32) -> Option<(PathBuf, FileOwner)> {
    home_of(&fs::read_to_string(PASSWD).ok()?, user)
}

fn home_of(passwd: &str, user: u32) -> Option<(PathBuf, FileOwner)> {
    let line = passwd.lines().zip(passwd.lines().map(|line| lines(line).next()));
    let (line, owner) =
        line.filter_map(|(line, found)| Some((line, found?.1))).find(|(_, owner)| owner.user == user)?;
    Some((line.split(':').nth(5)?.into(), owner))
}

/// Whom a file that is made in the data folder is to belong to; `None`: to who makes it.
///
/// Only root can give files away, and does it so that the service can use what an administrator's command makes:
/// to the folder's owner, or, before there is a folder, to the user of the service.
pub fn heir(me: u32, folder: Option<FileOwner>, service: Option<FileOwner>) -> Option<FileOwner> {
    folder.or(service).filter(|owner| me == 0 && owner.user != 0)
}

/// As whom the service uses this data folder, when this process is root and the service is not.
pub fn service_of(data: &Path) -> Option<FileOwner> {
    let found = fs::metadata(data).ok().map(|about| FileOwner { user: about.uid(), group: about.gid() });
    heir(nix::unistd::geteuid().as_raw(), found, service())
}

/// What to do about a file that cannot be used because it is another user's.
pub fn advice(me: u32, folder: Option<u32>, file: u32, path: &str) -> String {
    let (mine, theirs) = (name(me), name(file));
    if folder == Some(me) {
        format!("it belongs to {theirs}, and this is run by {mine}; mend it with: sudo chown -R {mine}: {path}")
    } else {
        let as_them = if theirs == "root" { String::new() } else { format!(" or as {theirs}") };
        format!("it belongs to {theirs}, and this is run by {mine}: run it as root{as_them}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_read_from_the_list() {
        let list = "root:x:0:0:root:/root:/bin/bash\nbad\nodd:x:y:1::\nslipway:!:998:997::/var/lib/slipway:/usr/sbin/nologin\n";
        assert_eq!(find(list, "slipway"), Some(FileOwner { user: 998, group: 997 }));
        assert_eq!((find(list, "odd"), find(list, "nobody")), (None, None));
        assert_eq!(home_of(list, 998), Some(("/var/lib/slipway".into(), FileOwner { user: 998, group: 997 })));
        assert_eq!(home_of(list, 5), None);
        assert_eq!((name_of(list, 998).as_str(), name_of(list, 5).as_str()), ("slipway", "5"));
    }

    #[test]
    fn what_root_makes_is_the_services() {
        let owner = |user| Some(FileOwner { user, group: user });
        for (me, folder, service, wanted) in [
            (0, owner(998), owner(998), owner(998)),
            (0, owner(7), owner(998), owner(7)),
            (0, None, owner(998), owner(998)),
            (0, None, None, None),
            // Who runs it as root on purpose has a folder of root's.
            (0, owner(0), owner(998), None),
            (998, owner(998), owner(998), None),
            (1000, owner(998), owner(998), None),
        ] {
            assert_eq!(heir(me, folder, service), wanted, "{me} {folder:?} {service:?}");
        }
    }

    #[test]
    fn who_may_not_is_told_what_to_do() {
        for (me, folder, file, wanted) in [
            (4_000_001, Some(4_000_001), 0, "sudo chown -R 4000001: /d"),
            (4_000_001, Some(4_000_002), 4_000_002, "as root or as 4000002"),
            (4_000_001, None, 0, "run it as root"),
        ] {
            let text = advice(me, folder, file, "/d");
            assert!(text.contains(wanted), "{text}");
        }
    }
}
