//! What a step says: its last lines in memory, and more of it in a file. Secrets that it was given do not appear in either.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::client::DeploymentSecret;
use super::report::MAX_MESSAGE;
use crate::hex::hex;

/// Longest line in bytes; a longer one is broken.
const MAX_LINE: usize = 4 << 10;
/// Largest file of one step, in bytes: then it begins anew.
const MAX_FILE: u64 = 256 << 10;
/// Shortest secret that is looked for, in bytes: a shorter one would take words out of the text.
const MIN_SECRET: usize = 8;

/// The output of a step.
pub(super) struct StepOutput {
    line: Vec<u8>,
    last: VecDeque<String>,
    held: usize,
    file: Option<(File, u64)>,
    secrets: Vec<String>,
}

impl StepOutput {
    /// Output that is kept in a file of this folder, too, where that can be written.
    pub fn to(folder: &Path, step: &str, deployment: Option<&DeploymentSecret>) -> Self {
        let open = || {
            std::fs::create_dir_all(folder).ok()?;
            let path = folder.join(file_name(step));
            File::options().create(true).write(true).truncate(true).mode(0o600).open(path).ok()
        };
        let values = deployment.into_iter().flat_map(|data| data.values());
        let lines = values.filter_map(|value| std::str::from_utf8(value).ok()).flat_map(str::lines).map(str::trim);
        let secrets = lines.filter(|line| line.len() >= MIN_SECRET).map(str::to_owned).collect();
        Self { line: Vec::new(), last: VecDeque::new(), held: 0, file: open().map(|file| (file, 0)), secrets }
    }

    /// Takes what it said next.
    pub fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            // A bar that shows progress is drawn again and again on one line.
            if matches!(byte, b'\n' | b'\r') || self.line.len() >= MAX_LINE {
                self.end_line();
            }
            if !matches!(byte, b'\n' | b'\r') {
                self.line.push(*byte);
            }
        }
    }

    /// Adds a line of the agent's own.
    pub fn say(&mut self, line: &str) {
        self.end_line();
        self.line.extend_from_slice(line.as_bytes());
        self.end_line();
    }

    fn end_line(&mut self) {
        if self.line.is_empty() {
            return;
        }
        let mut line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
        for secret in &self.secrets {
            if line.contains(secret) {
                line = line.replace(secret, "[secret]");
            }
        }
        self.write(&line);
        self.held += line.len();
        self.last.push_back(line);
        while self.held > 2 * MAX_MESSAGE && self.last.len() > 1 {
            self.held -= self.last.pop_front().map_or(0, |line| line.len());
        }
    }

    fn write(&mut self, line: &str) {
        use std::io::Seek;
        let Some((file, length)) = &mut self.file else { return };
        let mut write = || {
            if *length > MAX_FILE {
                file.set_len(0)?;
                file.rewind()?;
                *length = 0;
            }
            *length += line.len() as u64 + 1;
            file.write_all(line.as_bytes())?;
            file.write_all(b"\n")
        };
        // The disk is full: the last lines are in the status.
        if write().is_err() {
            self.file = None;
        }
    }

    /// The last lines.
    pub fn last(mut self) -> String {
        self.end_line();
        let lines: Vec<String> = self.last.into();
        lines.join("\n")
    }
}

/// The file of a step, whatever its name is.
pub(super) fn file_name(step: &str) -> String {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let plain: String = step.chars().take(80).map(|c| if good(c) { c } else { '_' }).collect();
    if plain == step && !plain.starts_with('.') && !plain.is_empty() {
        return format!("{plain}.log");
    }
    format!("_{plain}-{}.log", hex(&Sha256::digest(step)[..4]))
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;

    #[test]
    fn the_last_lines_are_kept_without_secrets_and_within_bounds() {
        let folder = tempfile::tempdir().unwrap();
        let secrets = DeploymentSecret::from([
            ("token".to_owned(), Zeroizing::new(b"abcdef.0123456789abcdef\n".to_vec())),
            ("short".to_owned(), Zeroizing::new(b"ab".to_vec())),
        ]);
        let mut output = StepOutput::to(folder.path(), "a/../b", Some(&secrets));
        output.take(b"kubeadm join --token abcdef.0123456789abcdef about\n10%\r20%\rdone");
        output.say("ended");
        let text = output.last();
        assert_eq!(text, "kubeadm join --token [secret] about\n10%\n20%\ndone\nended");
        let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path()).collect();
        assert_eq!(names.len(), 1);
        assert_eq!(std::fs::read_to_string(&names[0]).unwrap(), format!("{text}\n"));
        let mut output = StepOutput::to(folder.path(), "long", None);
        for number in 0..2_000_000 / 1000 {
            output.take(format!("{number} {}\n", "x".repeat(1000)).as_bytes());
        }
        output.take(&vec![b'y'; 100_000]);
        assert!(std::fs::metadata(folder.path().join("long.log")).unwrap().len() <= MAX_FILE + 2 * MAX_LINE as u64);
        assert!(output.last().len() <= 2 * MAX_MESSAGE + MAX_LINE);
        assert_eq!(file_name("kubelet"), "kubelet.log");
        for odd in ["", ".", "..", "a b", &"x".repeat(300)] {
            let name = file_name(odd);
            assert!(name.starts_with('_') && !name.contains('/') && name.len() < 110, "{name}");
        }
    }
}
