//! The section `[backup]` of the configuration.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::Span;

/// Shortest time between two copies.
const EVERY_MIN: Duration = Duration::from_secs(60);
/// Most copies that are kept.
const KEEP_MAX: usize = 10_000;

/// `[backup]`
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct BackupConfig {
    /// Folder for the copies; unset: none are made.
    pub folder: Option<PathBuf>,
    /// Time between two copies; at least a minute.
    pub every: Span,
    /// Copies kept; at least 1.
    pub keep: usize,
    /// Public keys (`age1…`) that the copies are encrypted for.
    pub recipients: Vec<String>,
    /// File with the passphrase that they are encrypted with, instead.
    pub passphrase_file: Option<PathBuf>,
}

impl Default for BackupConfig {
    fn default() -> Self {
        Self {
            folder: None,
            every: Span(Duration::from_secs(24 * 3600)),
            keep: 7,
            recipients: Vec::new(),
            passphrase_file: None,
        }
    }
}

impl BackupConfig {
    pub(super) fn faults(&self, faults: &mut Vec<String>) {
        let encrypted = !self.recipients.is_empty() || self.passphrase_file.is_some();
        match &self.folder {
            Some(folder) if !folder.is_absolute() => {
                faults.push(format!("backup.folder {folder:?} must be an absolute path"));
            }
            Some(_) if !encrypted => {
                faults.push(
                    "backup.folder needs backup.recipients or backup.passphrase_file: a copy holds every key".into(),
                );
            }
            None if encrypted => faults.push("backup.folder is missing: no copy would be made".into()),
            _ => {}
        }
        if !self.recipients.is_empty() && self.passphrase_file.is_some() {
            faults.push("backup.recipients and backup.passphrase_file: only one of them can be".into());
        }
        let foreign = |text: &&String| text.parse::<age::x25519::Recipient>().is_err();
        faults.extend(self.recipients.iter().filter(foreign).map(|text| {
            format!("backup.recipients: {text:?} is no recipient: it looks like age1…, 62 letters and digits")
        }));
        if let Some(file) = self.passphrase_file.as_ref().filter(|file| !file.is_absolute()) {
            faults.push(format!("backup.passphrase_file {file:?} must be an absolute path"));
        }
        if self.every.0 < EVERY_MIN {
            faults.push("backup.every must be at least 1m".into());
        }
        if !(1..=KEEP_MAX).contains(&self.keep) {
            faults.push(format!("backup.keep must be 1 to {KEEP_MAX}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;

    #[test]
    fn what_would_make_no_copy_or_one_for_everybody_is_a_fault() {
        let key = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p";
        for (text, wanted) in [
            ("", None),
            ("folder = '/b'", Some("needs backup.recipients or")),
            ("folder = 'b'\nrecipients = ['KEY']", Some("absolute")),
            ("recipients = ['KEY']", Some("no copy would be made")),
            ("folder = '/b'\nrecipients = ['KEY']", None),
            ("folder = '/b'\nrecipients = ['age1xyz']", Some("is no recipient")),
            ("folder = '/b'\npassphrase_file = '/p'", None),
            ("folder = '/b'\npassphrase_file = 'p'", Some("absolute")),
            ("folder = '/b'\npassphrase_file = '/p'\nrecipients = ['KEY']", Some("only one of them")),
            ("every = '59s'", Some("at least 1m")),
            ("keep = 0", Some("backup.keep")),
        ] {
            let text = format!("[backup]\n{}", text.replace("KEY", key));
            match (Config::parse(&text, Path::new("x.toml")), wanted) {
                (Ok(_), None) => {}
                (Err(error), Some(part)) if error.to_string().contains(part) => {}
                (result, _) => panic!("{text}: {:?}", result.err()),
            }
        }
    }
}
