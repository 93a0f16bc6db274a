//! Lines for systemd's journal, in its native protocol (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>): priority, message, fields.
//!
//! Of our own, because values come from outside: tracing-journald hands them on as they are, of any length, and has no
//! place to escape them. One datagram is one line. A line that the journal does not take goes to standard error.

use std::fmt::{self, Write as _};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::escape::{LONGEST, escape};

/// Where journald listens.
const SOCKET: &str = "/run/systemd/journal/socket";
/// The longest value of a field, in bytes. All of a line fits one datagram.
const LONGEST_VALUE: usize = 1 << 10;
/// Before the names of events' fields: some of them, as `MESSAGE_ID`, mean something of their own in the journal.
const PREFIX: &str = "SLIPWAY_";

/// Whether standard error goes to the journal. `stream` is the environment's `JOURNAL_STREAM`: device and inode of what
/// systemd connected (systemd.exec(5)); it is inherited by programs whose standard error is something else.
pub fn has_stderr(stream: Option<&str>) -> bool {
    rustix::fs::fstat(io::stderr()).is_ok_and(|file| names(stream, file.st_dev, file.st_ino))
}

fn names(stream: Option<&str>, device: u64, inode: u64) -> bool {
    stream
        .and_then(|stream| stream.split_once(':'))
        .is_some_and(|(of, at)| of.parse() == Ok(device) && at.parse() == Ok(inode))
}

/// The way to the journal of this machine: each write is an entry.
pub struct JournalSocket {
    socket: UnixDatagram,
    path: PathBuf,
}

impl JournalSocket {
    /// # Errors
    ///
    /// When no journal listens here.
    pub fn open() -> io::Result<Self> {
        Self::at(Path::new(SOCKET))
    }

    /// A journal that listens elsewhere.
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        UnixDatagram::unbound()?.connect(path)?;
        // Not connected: journald may be restarted.
        Ok(Self { socket: UnixDatagram::unbound()?, path: path.to_owned() })
    }
}

impl io::Write for JournalSocket {
    fn write(&mut self, entry: &[u8]) -> io::Result<usize> {
        if self.socket.send_to(entry, &self.path).is_err() {
            // The journal reads the priority in front (sd-daemon(3)). That nobody hears this either cannot be told.
            let value = |name: &str| {
                let fields = entry.split(|byte| *byte == b'\n');
                fields.filter_map(|field| field.strip_prefix(name.as_bytes())).next().unwrap_or_default()
            };
            let text = [b"<", value("PRIORITY="), b">", value("MESSAGE="), b"\n"].concat();
            io::stderr().write_all(&text).ok();
        }
        Ok(entry.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The journal's entries, each written at once into `W`.
pub struct SystemdJournal<W>(W);

impl<W> SystemdJournal<W> {
    /// Written there.
    pub fn new(entries: W) -> Self {
        Self(entries)
    }
}

impl<S: Subscriber, W: io::Write + Clone + 'static> Layer<S> for SystemdJournal<W> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut line = JournalLine { target: metadata.target().to_owned(), ..JournalLine::default() };
        event.record(&mut line);
        let (priority, name) = (priority(*metadata.level()), env!("CARGO_PKG_NAME"));
        let mut entry = format!("PRIORITY={priority}\nSYSLOG_IDENTIFIER={name}\n");
        if let (Some(file), Some(line)) = (metadata.file(), metadata.line()) {
            put(&mut entry, "CODE_FILE", file, LONGEST_VALUE);
            put(&mut entry, "CODE_LINE", &line.to_string(), LONGEST_VALUE);
        }
        let message = format!("{}{}", line.message, line.shown);
        put(&mut entry, "MESSAGE", &message, LONGEST);
        put(&mut entry, "SLIPWAY_TARGET", &line.target, LONGEST_VALUE);
        for (name, value) in &line.fields {
            put(&mut entry, name, value, LONGEST_VALUE);
        }
        // It counts what it does not take.
        self.0.clone().write_all(entry.as_bytes()).ok();
    }
}

/// syslog(3)'s severity.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// One field: what is escaped holds no line end, so that no value begins another field.
fn put(entry: &mut String, name: &str, value: &str, longest: usize) {
    entry.push_str(name);
    entry.push('=');
    put_value(entry, value, longest);
}

fn put_value(entry: &mut String, value: &str, longest: usize) {
    let end = value.floor_char_boundary(longest);
    // Writing to memory does not fail.
    escape(entry, &value[..end], false).ok();
    if end < value.len() {
        write!(entry, "… and {} bytes more", value.len() - end).ok();
    }
    entry.push('\n');
}

/// What an event says.
#[derive(Default)]
struct JournalLine {
    target: String,
    message: String,
    /// The fields behind the message, as people read them.
    shown: String,
    fields: Vec<(String, String)>,
}

impl Visit for JournalLine {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => {
                if !self.message.is_empty() {
                    self.message.push(' ');
                }
                self.message.push_str(value);
            }
            // Of libraries that log by the `log` crate.
            "log.target" => value.clone_into(&mut self.target),
            name if name.starts_with("log.") => {}
            name => {
                write!(self.shown, " {name}={value}").ok();
                self.fields.push((field_name(name), value.to_owned()));
            }
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// The journal's name of a field: capitals, digits and underscores, at most 64 of them.
fn field_name(name: &str) -> String {
    let capital = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    PREFIX.chars().chain(name.chars().map(capital)).take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_error_is_the_journals_when_device_and_inode_are_those() {
        for (stream, is) in [
            (Some("9:31337"), true),
            (Some("9:31338"), false),
            (Some("8:31337"), false),
            (Some("9"), false),
            (Some("9:31337:1"), false),
            (Some(""), false),
            (None, false),
        ] {
            assert_eq!(names(stream, 9, 31337), is, "{stream:?}");
        }
    }

    #[test]
    fn names_are_what_the_journal_takes() {
        assert_eq!(field_name("host"), "SLIPWAY_HOST");
        assert_eq!(field_name("object.ref-1"), "SLIPWAY_OBJECT_REF_1");
        assert_eq!(field_name(&"x".repeat(99)).len(), 64);
    }
}
