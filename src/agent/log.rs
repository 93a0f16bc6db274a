//! The node's log: a bounded ring that is sent to the appliance when something fails, and the machine's consoles.
//!
//! Every console that the kernel writes to gets every line, so that the screen and the serial port say the same.
//! A console that does not take its lines (flow control, a slow UART) loses them; it never holds the agent up.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nix::libc;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::protocol::MAX_LOG;

/// Lines kept.
const RING_LINES: usize = 2000;
/// Longest line in bytes; the rest is cut off.
const LINE_BYTES: usize = 1024;
/// Lines that may wait for one console.
const CONSOLE_QUEUE: usize = 256;

/// Ring of the last lines. Cheap to clone; all clones are the same ring.
#[derive(Clone)]
pub struct LogRing {
    ring: Arc<Mutex<Ring>>,
    started: Instant,
}

struct Ring {
    lines: VecDeque<LogLine>,
    /// Lines that there ever were.
    total: u64,
    secret: Option<String>,
}

#[derive(Clone)]
struct LogLine {
    text: String,
    /// Of use only when everything is wanted.
    detail: bool,
}

impl Default for LogRing {
    fn default() -> Self {
        Self {
            ring: Arc::new(Mutex::new(Ring { lines: VecDeque::new(), total: 0, secret: None })),
            started: Instant::now(),
        }
    }
}

impl LogRing {
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps `secret` (the boot token) out of every line that follows. Ignored when shorter than 8 bytes.
    pub fn hide(&self, secret: &str) {
        if secret.len() >= 8 {
            self.ring().secret = Some(secret.to_owned());
        }
    }

    /// Adds a line as it is; control characters become spaces. Returns what was kept.
    pub fn push(&self, line: &str) -> String {
        self.add(line, false)
    }

    fn add(&self, line: &str, detail: bool) -> String {
        let mut ring = self.ring();
        let text = clean(line, ring.secret.as_deref());
        if ring.lines.len() == RING_LINES {
            ring.lines.pop_front();
        }
        ring.lines.push_back(LogLine { text: text.clone(), detail });
        ring.total += 1;
        text
    }

    /// Adds a line with the time since the start.
    pub fn note(&self, line: &str) {
        self.stamp(line, false);
    }

    /// Adds a line with the time since the start, in seconds. A `detail` is left out of [`LogRing::tail`].
    fn stamp(&self, line: &str, detail: bool) -> String {
        self.add(&format!("[{:>8.3}] {line}", self.started.elapsed().as_secs_f64()), detail)
    }

    /// The last `count` lines that fit into [`MAX_LOG`] bytes, oldest first, without details.
    pub fn tail(&self, count: usize) -> Vec<String> {
        let ring = self.ring();
        let mut room = MAX_LOG;
        let mut lines = Vec::new();
        for line in ring.lines.iter().rev().filter(|line| !line.detail).take(count) {
            match room.checked_sub(line.text.len() + 1) {
                Some(rest) => room = rest,
                None => break,
            }
            lines.push(line.text.clone());
        }
        lines.reverse();
        lines
    }

    /// The lines after the first `from`, and after them the kernel's own messages, in pieces of at most [`MAX_LOG`] bytes;
    /// and where to go on.
    pub fn pieces(&self, from: u64, kernel: &[String]) -> (Vec<String>, u64) {
        let (lines, secret, total) = {
            let ring = self.ring();
            let known =
                usize::try_from(from.saturating_sub(ring.total - ring.lines.len() as u64)).unwrap_or(usize::MAX);
            let lines: Vec<String> = ring.lines.iter().skip(known).map(|line| line.text.clone()).collect();
            (lines, ring.secret.clone(), ring.total)
        };
        let kernel = kernel.iter().map(|line| format!("kernel: {}", clean(line, secret.as_deref())));
        let mut pieces = Vec::new();
        let mut piece = String::new();
        for line in lines.into_iter().chain(kernel) {
            if piece.len() + line.len() + 1 > MAX_LOG {
                pieces.push(std::mem::take(&mut piece));
            }
            piece.push_str(&line);
            piece.push('\n');
        }
        if !piece.is_empty() {
            pieces.push(piece);
        }
        (pieces, total)
    }

    /// The lines after the first `from`, in a piece of at most [`MAX_LOG`] bytes, and where to go on. Lines that the ring
    /// has lost meanwhile are said to be missing.
    pub fn since(&self, from: u64) -> (String, u64) {
        let ring = self.ring();
        let first = ring.total - ring.lines.len() as u64;
        let mut piece = String::new();
        let mut next = from.max(first);
        if from < first {
            piece = format!("[{} lines are missing]\n", first - from);
        }
        for line in ring.lines.iter().skip(usize::try_from(next - first).unwrap_or(usize::MAX)) {
            if piece.len() + line.text.len() + 1 > MAX_LOG {
                break;
            }
            piece.push_str(&line.text);
            piece.push('\n');
            next += 1;
        }
        (piece, next)
    }

    /// A tracing layer that writes events to this ring and to the consoles.
    pub fn layer(&self, consoles: Consoles) -> LogLayer {
        LogLayer { log: self.clone(), consoles }
    }
}

fn clean(line: &str, secret: Option<&str>) -> String {
    let line = match secret {
        Some(secret) => line.replace(secret, "[token]"),
        None => line.to_owned(),
    };
    let mut kept = String::new();
    for character in line.trim_end().chars() {
        if kept.len() + character.len_utf8() > LINE_BYTES {
            break;
        }
        kept.push(if character.is_control() { ' ' } else { character });
    }
    kept
}

/// The consoles of the machine. Cheap to clone; without any, what is written is dropped.
#[derive(Clone, Default)]
pub struct Consoles {
    queues: Arc<Vec<SyncSender<String>>>,
}

impl Consoles {
    /// Opens every console that `sys/class/tty/console/active` names, or `dev/console` when it names none.
    pub fn open(root: &Path) -> Self {
        let active = std::fs::read_to_string(root.join("sys/class/tty/console/active")).unwrap_or_default();
        let mut queues = Vec::new();
        for name in active.split_ascii_whitespace().filter(|name| !name.contains('/')).take(8) {
            queues.extend(Self::writer(&root.join("dev").join(name)));
        }
        if queues.is_empty() {
            queues.extend(Self::writer(&root.join("dev/console")));
        }
        Self { queues: Arc::new(queues) }
    }

    fn writer(path: &Path) -> Option<SyncSender<String>> {
        let mut file = OpenOptions::new().write(true).custom_flags(libc::O_NOCTTY).open(path).ok()?;
        let (queue, lines) = sync_channel::<String>(CONSOLE_QUEUE);
        std::thread::Builder::new()
            .name("console".into())
            .stack_size(64 << 10)
            .spawn(move || {
                for line in lines {
                    // Nothing can be done about a console that fails: its lines are in the ring.
                    let _written = file.write_all(line.as_bytes());
                }
            })
            .ok()?;
        Some(queue)
    }

    /// Writes one line.
    pub fn line(&self, line: &str) {
        for queue in self.queues.iter() {
            // A full queue means a console that does not take its lines.
            let _sent = queue.try_send(format!("{line}\r\n"));
        }
    }

    /// Writes a message that must be seen, in a frame.
    pub fn banner(&self, lines: &[&str]) {
        let rule = "=".repeat(78);
        self.line("");
        self.line(&rule);
        for line in lines {
            for part in wrap(line, 74) {
                self.line(&format!("  {part}"));
            }
        }
        self.line(&rule);
        self.line("");
    }
}

/// Breaks a text at spaces into lines of at most `width` characters; longer words stay whole.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        let used = lines[last].chars().count();
        if used > 0 && used + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
        } else {
            if used > 0 {
                lines[last].push(' ');
            }
            lines[last].push_str(word);
        }
    }
    lines
}

/// See [`LogRing::layer`].
pub struct LogLayer {
    log: LogRing,
    consoles: Consoles,
}

impl<S: Subscriber> Layer<S> for LogLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        // Libraries' own chatter would push what matters out of the ring.
        let ours = event.metadata().target().starts_with("slipway");
        if level > Level::DEBUG || (!ours && level > Level::WARN) {
            return;
        }
        let mut text = EventText::default();
        event.record(&mut text);
        let mark = match level {
            Level::ERROR => "ERROR ",
            Level::WARN => "WARN  ",
            Level::INFO => "",
            _ => "debug ",
        };
        let line = self.log.stamp(&format!("{mark}{}{}", text.message, text.fields), level > Level::INFO);
        if level <= Level::INFO {
            self.consoles.line(&line);
        }
    }
}

#[derive(Default)]
struct EventText {
    message: String,
    fields: String,
}

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a string cannot fail.
        let _written = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _written = if field.name() == "message" {
            write!(self.message, "{value}")
        } else {
            write!(self.fields, " {}={value}", field.name())
        };
    }
}

/// One record of `/dev/kmsg` (Documentation/ABI/testing/dev-kmsg): priority 0 to 7 and the message.
fn kernel_record(record: &str) -> Option<(u8, &str)> {
    let (prefix, message) = record.split_once(';')?;
    let priority: u32 = prefix.split(',').next()?.parse().ok()?;
    // Records of facility 0 are the kernel's; others were written by programs.
    (priority < 8).then(|| (priority as u8, message.lines().next().unwrap_or_default()))
}

/// All that the kernel has logged, at most 4000 records.
pub fn kernel_messages(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let Ok(mut file) = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(root.join("dev/kmsg")) else {
        return lines;
    };
    let mut buffer = vec![0; 8192];
    while lines.len() < 4000 {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => {
                if let Some((_, message)) = kernel_record(&String::from_utf8_lossy(&buffer[..length])) {
                    lines.push(message.to_owned());
                }
            }
            // EPIPE: records were overwritten before they were read; the next read goes on.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(_) => break,
        }
    }
    lines
}

/// Copies the kernel's warnings and errors into the ring from now on, on a thread of its own.
pub fn follow_kernel(root: &Path, log: LogRing) {
    let Ok(file) = File::open(root.join("dev/kmsg")) else { return };
    let spawned = std::thread::Builder::new().name("kmsg".into()).stack_size(64 << 10).spawn(move || {
        let mut file = file;
        let mut buffer = vec![0; 8192];
        loop {
            match file.read(&mut buffer) {
                Ok(length) if length > 0 => {
                    if let Some((priority, message)) = kernel_record(&String::from_utf8_lossy(&buffer[..length]))
                        && priority <= 4
                    {
                        log.stamp(&format!("kernel: {message}"), false);
                    }
                }
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                _ => break,
            }
        }
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "cannot follow the kernel's messages: the log will not have them");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_bounded_in_lines_and_bytes_and_hides_the_token() {
        let log = LogRing::default();
        log.hide("s3cret-token");
        for index in 0..RING_LINES + 10 {
            log.push(&format!("{index} s3cret-token {}", "ä".repeat(LINE_BYTES)));
        }
        let tail = log.tail(3);
        assert_eq!(tail.len(), 3);
        assert!(tail[2].starts_with(&format!("{} [token] ä", RING_LINES + 9)), "{}", &tail[2][..40]);
        assert!(tail.iter().all(|line| line.len() <= LINE_BYTES && !line.contains("s3cret")));
        assert!(log.tail(usize::MAX).iter().map(|line| line.len() + 1).sum::<usize>() <= MAX_LOG);
        let (pieces, _) = log.pieces(0, &["command line: slipway.token=s3cret-token".into()]);
        assert!(pieces.len() > 1 && pieces.iter().all(|piece| piece.len() <= MAX_LOG));
        assert!(pieces.last().unwrap().ends_with("kernel: command line: slipway.token=[token]\n"));
        assert!(!pieces.concat().contains("s3cret"));
    }

    #[test]
    fn a_log_is_sent_piece_by_piece_and_says_what_was_lost() {
        let log = LogRing::default();
        assert_eq!(log.since(0), (String::new(), 0));
        for number in 0..3 {
            log.push(&number.to_string());
        }
        assert_eq!(log.since(0), ("0\n1\n2\n".into(), 3));
        assert_eq!(log.since(2), ("2\n".into(), 3));
        for number in 3..RING_LINES + 10 {
            log.push(&number.to_string());
        }
        let (piece, next) = log.since(3);
        assert!(piece.starts_with("[7 lines are missing]\n10\n"), "{piece:.40}");
        assert_eq!(next, RING_LINES as u64 + 10);
        for _ in 0..RING_LINES {
            log.push(&"x".repeat(LINE_BYTES));
        }
        let (mut at, mut pieces) = (next, 0);
        loop {
            let (piece, next) = log.since(at);
            assert!(piece.len() <= MAX_LOG);
            if next == at {
                break;
            }
            (at, pieces) = (next, pieces + 1);
        }
        assert!(pieces > 20 && at == 2 * RING_LINES as u64 + 10, "{pieces} {at}");
    }

    #[test]
    fn events_become_lines_with_their_fields() {
        use tracing_subscriber::layer::SubscriberExt;
        let log = LogRing::default();
        let subscriber = tracing_subscriber::registry().with(log.layer(Consoles::default()));
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(interface = "eth0", tries = 3, "no answer\u{1b}[2J yet");
            tracing::error!("bad");
            tracing::error!(target: "hyper", "seen");
            tracing::info!(target: "hyper", "not seen");
            tracing::debug!("a detail");
        });
        let lines: Vec<_> = log.tail(9).iter().map(|line| line.split_once("] ").unwrap().1.to_owned()).collect();
        assert_eq!(lines, ["no answer [2J yet interface=eth0 tries=3", "ERROR bad", "ERROR seen"]);
        assert!(log.pieces(0, &[]).0[0].ends_with("] debug a detail\n"));
    }

    #[test]
    fn kernel_records_are_read_and_programs_records_are_not() {
        assert_eq!(
            kernel_record("4,339,5140900,-;Buffer I/O error\n SUBSYSTEM=block\n"),
            Some((4, "Buffer I/O error"))
        );
        for record in ["12,339,5140900,-;a program", "x,1,2,-;a", "4,339", ""] {
            assert_eq!(kernel_record(record), None, "{record}");
        }
    }

    #[test]
    fn long_messages_are_wrapped_at_spaces() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("", 7), [""]);
        assert_eq!(wrap("longer-than-that x", 7), ["longer-than-that", "x"]);
    }
}
