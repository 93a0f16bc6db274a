//! What Ansible prints, on its way to the run's log: without known secrets, without what would rule a terminal, and bounded.
//!
//! The beginning is kept as it comes. Of what is beyond the bound the end is kept, which says what came of it; between them a line
//! says how much is missing.

use std::collections::VecDeque;
use std::io::{self, Write};

use crate::log::escaped_lines;

/// Bytes of the beginning.
pub(super) const HEAD: usize = 8 << 20;
/// Bytes of the end, when there is more.
const TAIL: usize = 256 << 10;
/// A line is looked through for secrets, and written, in pieces of about this length, in bytes.
const LINE: usize = 64 << 10;
/// Shorter secrets would be found in everything, in bytes.
const SECRET_MIN: usize = 6;
/// What stands for a secret.
const HIDDEN: &[u8] = b"***";

/// A log that is written.
pub(super) struct BoundedLog<W> {
    out: W,
    secrets: Vec<Vec<u8>>,
    /// The line that began.
    line: Vec<u8>,
    /// How much of the beginning may still come.
    left: usize,
    tail: VecDeque<u8>,
    left_out: u64,
}

impl<W: Write> BoundedLog<W> {
    /// A log of at most `head` bytes and an end.
    pub(super) fn new(out: W, head: usize, secrets: &[String]) -> Self {
        let lines = secrets.iter().flat_map(|secret| secret.lines()).filter(|line| line.len() >= SECRET_MIN);
        let mut secrets: Vec<Vec<u8>> = lines.map(|line| line.as_bytes().to_vec()).collect();
        // One may be within another.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.dedup();
        Self { out, secrets, line: Vec::new(), left: head, tail: VecDeque::new(), left_out: 0 }
    }

    /// Takes what was printed.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub(super) fn take(&mut self, printed: &[u8]) -> io::Result<()> {
        for piece in printed.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.end_line()?;
            } else if self.line.len() > LINE {
                // A secret may have begun in what is left.
                let longest = self.secrets.first().map_or(0, Vec::len);
                let (line, taken) = hidden(&self.line, &self.secrets, longest);
                self.line.drain(..taken);
                self.put(&line)?;
            }
        }
        Ok(())
    }

    fn end_line(&mut self) -> io::Result<()> {
        let (line, _) = hidden(&self.line, &self.secrets, 0);
        self.line.clear();
        self.put(&line)
    }

    fn put(&mut self, line: &[u8]) -> io::Result<()> {
        let line = escaped_lines(line);
        let now = line.len().min(self.left);
        self.out.write_all(&line[..now])?;
        self.left -= now;
        let later = &line[now..];
        if !later.is_empty() {
            // Nothing more of the beginning, or it would be no beginning.
            self.left = 0;
        }
        self.tail.extend(later);
        let beyond = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..beyond);
        self.left_out += beyond as u64;
        Ok(())
    }

    /// Writes the end.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.end_line()?;
        if self.left_out > 0 {
            writeln!(self.out, "\n[slipway: {} bytes are left out here: the log is bounded]", self.left_out)?;
        }
        self.out.write_all(self.tail.make_contiguous())?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// A text without secrets, and how much of it that is: the last `undecided` bytes are left where a secret may begin in them.
fn hidden(text: &[u8], secrets: &[Vec<u8>], undecided: usize) -> (Vec<u8>, usize) {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at + undecided < text.len() {
        match secrets.iter().find(|secret| text[at..].starts_with(secret)) {
            Some(secret) => {
                out.extend_from_slice(HIDDEN);
                at += secret.len();
            }
            None => {
                out.push(text[at]);
                at += 1;
            }
        }
    }
    (out, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(head: usize, secrets: &[&str], printed: &[u8], piece: usize) -> String {
        let secrets: Vec<String> = secrets.iter().map(|secret| (*secret).to_owned()).collect();
        let mut log = BoundedLog::new(Vec::new(), head, &secrets);
        printed.chunks(piece).for_each(|piece| log.take(piece).unwrap());
        String::from_utf8(log.finish().unwrap()).unwrap()
    }

    #[test]
    fn secrets_and_what_rules_a_terminal_do_not_pass() {
        let secrets = ["hunter22", "line one\nline two of it", "hunter22-longer", "ab"];
        for piece in [1, 3, 1000] {
            let text = logged(1000, &secrets, b"a hunter22-longer b\nline two of it\nab \x1b[2J\nend hunter22", piece);
            assert_eq!(text, "a *** b\n***\nab \\u001b[2J\nend ***", "{piece}");
        }
    }

    #[test]
    fn a_flood_keeps_beginning_and_end_and_says_so() {
        let flood: Vec<u8> = (0..100_000).flat_map(|number| format!("line {number}\n").into_bytes()).collect();
        let text = logged(1000, &[], &flood, 4096);
        assert!(text.starts_with("line 0\nline 1\n") && text.ends_with("line 99999\n"), "{}", &text[..100]);
        assert!(text.len() < 1000 + TAIL + 200, "{}", text.len());
        let missing = flood.len() - 1000 - TAIL;
        assert!(text.contains(&format!("{missing} bytes are left out")), "{missing}");
        // One line without an end.
        let line = logged(1000, &["a secret in a line"], &vec![b'x'; 3 << 20], 4096);
        assert!(line.len() < 1000 + TAIL + 200, "{}", line.len());
    }

    #[test]
    fn a_secret_across_the_pieces_of_a_long_line_is_hidden() {
        for before in LINE - 20..LINE + 20 {
            let printed = [vec![b'x'; before], b"a secret of some length".to_vec(), vec![b'y'; 100]].concat();
            let text = logged(1 << 20, &["a secret of some length"], &printed, 1);
            assert!(!text.contains("secret") && text.contains("***"), "{before}");
        }
    }
}
