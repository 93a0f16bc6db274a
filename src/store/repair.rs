//! Repairs before sled opens the files. The caller holds the lock on the folder.

use std::fs;
use std::io;
use std::path::Path;

/// What sled 0.34.7 writes to `conf` for the options we use, before 4 bytes of checksum.
const CONF: &[u8] = b"segment_size: 524288\nuse_compression: false\nversion: 0.34\n";

/// Deletes what a crash left half written and sled would stumble over.
pub(super) fn sweep(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if name.starts_with("snap.") && name.ends_with(".generating") {
            tracing::warn!(file = name, "deleting a file of the database that a crash left unfinished");
            fs::remove_file(entry.path())?;
        }
    }
    let conf = path.join("conf");
    match fs::read(&conf) {
        Ok(text) if is_cut_short(&text) => {
            tracing::warn!(
                file = "conf",
                "deleting the database's settings that a crash left unfinished: they are written again"
            );
            fs::remove_file(&conf)
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether these are the settings without their end. Anything else is left for sled to judge.
fn is_cut_short(conf: &[u8]) -> bool {
    let text = &conf[..conf.len().min(CONF.len())];
    conf.len() < CONF.len() + 4 && CONF.starts_with(text)
}

/// Moves finished snapshots and the settings out of sled's sight; it makes new ones. Says how many there were.
pub(super) fn set_aside(path: &Path) -> io::Result<usize> {
    let mut moved = 0;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        if let Some(name) = name.to_str()
            && (name.starts_with("snap.") || name == "conf")
        {
            fs::rename(entry.path(), path.join(format!("damaged.{name}")))?;
            moved += 1;
        }
    }
    Ok(moved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conf_of_every_length() {
        let whole = [CONF, &[1, 2, 3, 4]].concat();
        for length in 0..whole.len() {
            assert!(is_cut_short(&whole[..length]), "{length} bytes");
        }
        assert!(!is_cut_short(&whole));
        assert!(!is_cut_short(b"segment_size: 1024\nuse_comp"));
    }

    #[test]
    fn conf_is_what_sled_writes() {
        let folder = tempfile::tempdir().unwrap();
        let db = sled::Config::new().path(folder.path()).open().unwrap();
        drop(db);
        let conf = fs::read(folder.path().join("conf")).unwrap();
        assert!(conf.starts_with(CONF) && conf.len() == CONF.len() + 4, "{:?}", String::from_utf8_lossy(&conf));
    }
}
