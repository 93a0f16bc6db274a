//! Tests of the log, through the subscriber that `slipway serve` uses.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use tracing::{debug, error, info, warn};
use tracing_subscriber::EnvFilter;

use super::ration::{LINES_OF_A_PLACE, LINES_OF_ONE, LINES_OF_STRANGERS};
use super::*;
use crate::ration::Rank;

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("a lock").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Written {
    type Writer = Self;

    fn make_writer(&'w self) -> Self {
        self.clone()
    }
}

/// What is written of what `says` logs.
fn log_of(format: LogFormat, colours: bool, ration: Ration, says: impl FnOnce()) -> String {
    let written = Written::default();
    let subscriber = subscriber(EnvFilter::new("info"), format, colours, written.clone(), ration);
    tracing::subscriber::with_default(subscriber, says);
    String::from_utf8(written.0.lock().expect("a lock").clone()).expect("UTF-8")
}

/// What is written, of what concerns this crate, while this is done.
pub(crate) async fn log_while(done: impl Future<Output = ()>) -> String {
    let written = Written::default();
    let filter = EnvFilter::new("off,slipway=info");
    let subscriber = subscriber(filter, LogFormat::Text, false, written.clone(), Ration::default());
    tracing::instrument::WithSubscriber::with_subscriber(done, subscriber).await;
    String::from_utf8(written.0.lock().expect("a lock").clone()).expect("UTF-8")
}

/// A machine's word, and the lines that it would like to see.
const FORGED: &str =
    "done\n2026-11-22T00:00:00Z  INFO slipway::appliance: FAKE LINE\r\x1b[2J\x07\u{9b}31m\u{202e}drowssap\u{2028}x";

fn everywhere() {
    let error = io::Error::other(FORGED);
    info!(host = "default/web-1", message = FORGED, "step ended");
    warn!(%error, "a field that is displayed");
    warn!(?error, text = FORGED, "fields that are debugged and plain");
    error!("in the message: {FORGED}");
    debug!("not at this level");
}

#[test]
fn what_came_from_outside_stays_in_its_line_in_text_and_colour_and_json() {
    for (format, colours) in [(LogFormat::Text, false), (LogFormat::Text, true), (LogFormat::Json, false)] {
        let log = log_of(format, colours, Ration::default(), everywhere);
        assert_eq!(log.matches('\n').count(), 4, "{log:?}");
        for line in log.lines() {
            let unsafe_ones: Vec<char> = line.chars().filter(|c| !(is_safe(*c) || colours && *c == '\x1b')).collect();
            assert!(unsafe_ones.is_empty(), "{unsafe_ones:?} in {line:?}");
            assert!(line.contains("FAKE LINE"), "{line:?}");
            assert!(!line.contains("\x1b[2J"), "{line:?}");
            if format == LogFormat::Json {
                let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
                let text = value["fields"].to_string();
                assert!(text.contains("drowssap"), "{text}");
            } else {
                assert!(line.contains("\\n2026") || line.contains("\\\\n2026"), "{line:?}");
            }
        }
        assert_eq!(colours, log.contains("\x1b["), "{log:?}");
    }
}

#[test]
fn spans_of_libraries_are_in_no_line() {
    for format in [LogFormat::Text, LogFormat::Json] {
        let log = log_of(format, false, Ration::default(), || {
            let span =
                tracing::info_span!(target: "kube_runtime::controller", "reconciling object", object.ref = "of a span");
            span.in_scope(|| info!(host = "default/web-1", "the machine was started"));
        });
        assert!(log.contains("the machine was started") && log.contains("default/web-1"), "{log}");
        assert!(!log.contains("reconciling object") && !log.contains("of a span"), "{log}");
    }
}

#[test]
fn a_line_of_text_has_an_end() {
    let log = log_of(LogFormat::Text, false, Ration::default(), || {
        info!(message = "é".repeat(1 << 20), "step ended");
        info!("the next");
    });
    assert_eq!(log.lines().count(), 2);
    assert!(log.len() < 10_000 && log.contains("… and 20"), "{}", log.len());
}

/// What the journal gets, datagram by datagram, of what `says` logs.
fn journal_of(ration: Ration, says: impl FnOnce()) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).expect("a deadline");
    let received = std::thread::spawn(move || {
        let (mut all, mut buffer) = (Vec::new(), vec![0; 1 << 20]);
        loop {
            let length = socket.recv(&mut buffer).expect("a datagram");
            let text = String::from_utf8(buffer[..length].to_vec()).expect("UTF-8");
            if text.contains("MESSAGE=the end of this test") {
                return all;
            }
            all.push(text);
        }
    });
    let (entries, _writer) = in_background(JournalSocket::at(&path).expect("a journal"), &ration);
    let (journal, end) = (SystemdJournal::new(entries.clone()), SystemdJournal::new(entries));
    tracing::subscriber::with_default(to_journal(EnvFilter::new("info"), journal, ration), says);
    let end = to_journal(EnvFilter::new("info"), end, Ration::default());
    tracing::subscriber::with_default(end, || info!("the end of this test"));
    received.join().expect("all of it")
}

#[test]
fn what_came_from_outside_stays_in_its_field_of_the_journal() {
    let entries = journal_of(Ration::default(), || {
        everywhere();
        info!(text = "x".repeat(1 << 20), message = "é".repeat(1 << 20), "long");
    });
    assert_eq!(entries.len(), 5, "{entries:?}");
    for entry in &entries {
        assert!(entry.len() < 64 << 10 && entry.ends_with('\n'), "{}", entry.len());
        // The simple form of a field everywhere: whoever puts a line end into a value begins no field.
        for line in entry.lines() {
            let (name, value) = line.split_once('=').expect(line);
            let known = ["PRIORITY", "SYSLOG_IDENTIFIER", "CODE_FILE", "CODE_LINE", "MESSAGE"].contains(&name);
            assert!(known || name.starts_with("SLIPWAY_"), "{line:?}");
            assert!(value.chars().all(is_safe), "{line:?}");
        }
        assert_eq!(entry.matches("\nMESSAGE=").count(), 1, "{entry:?}");
    }
    for (entry, parts) in entries.iter().zip([
        &[
            "PRIORITY=6\n",
            "\nSLIPWAY_HOST=default/web-1\n",
            "\nSLIPWAY_TARGET=slipway::log::tests\n",
            " host=default/web-1",
        ][..],
        &["PRIORITY=4\n", "\nMESSAGE=a field that is displayed error=done\\n2026", "\nSLIPWAY_ERROR=done\\n2026"],
        &["PRIORITY=4\n", "\nSLIPWAY_TEXT=done\\n2026"],
        &["PRIORITY=3\n", "\nMESSAGE=in the message: done\\n2026"],
        &["… and 1047552 bytes more\n", "… and 3137"],
    ]) {
        assert!(parts.iter().all(|part| entry.contains(part)), "{parts:?} in {entry:.2000}");
    }
}

#[test]
fn the_journal_is_rationed_too_and_has_no_spans() {
    let entries = journal_of(ration(), || {
        for _ in 0..10_000 {
            info!(peer = "10.0.0.1:1234", "boot script: local disk");
        }
        let span =
            tracing::info_span!(target: "kube_runtime::controller", "reconciling object", object.ref = "of a span");
        span.in_scope(|| info!(host = "default/web-1", "the machine was started"));
    });
    // A stretch may end meanwhile.
    assert!((1 + LINES_OF_ONE as usize..=1 + 3 * LINES_OF_ONE as usize).contains(&entries.len()), "{}", entries.len());
    let last = entries.last().expect("an entry");
    assert!(last.contains("MESSAGE=the machine was started host=default/web-1\n") && !last.contains("span"), "{last}");
}

/// `10.0.0.1` and `10.0.0.2` are known hosts'.
fn ration() -> Ration {
    let ration = Ration::default();
    let known = |address: IpAddr| match address.to_string().as_str() {
        "10.0.0.1" | "10.0.0.2" => Rank::Known,
        "127.0.0.1" => Rank::Own,
        _ => Rank::Stranger,
    };
    ration.ranked_by(Arc::new(known));
    ration
}

#[test]
fn a_known_host_is_heard_while_strangers_do_their_worst() {
    let log = log_of(LogFormat::Text, false, ration(), || {
        for round in 0..2_000_u32 {
            for stranger in 0..10_u8 {
                let peer = std::net::SocketAddr::from(([10, 9, 9, stranger], 1000 + (round % 9000) as u16));
                warn!(%peer, "no such boot file");
                // One with an address for each line, and one with a network card for each.
                warn!(peer = %IpAddr::from([11, stranger, (round / 256) as u8, (round % 256) as u8]), "agent refused");
                let card = crate::api::MacAddress([2, 9, stranger, 0, (round / 256) as u8, (round % 256) as u8]);
                warn!(mac = %card, "a report is not taken");
            }
            if round % 100 == 0 {
                info!(peer = %"10.0.0.1:1234", "boot script: ramdisk");
                info!(host = "default/web-1", peer = "10.0.0.2", "agent's session opened");
                info!(host = "default/web-2", mac = "02:00:00:00:00:02", "leased");
                info!(%round, "a line of the appliance's own");
                info!(peer = "127.0.0.1:1", "of a program on the appliance");
            }
        }
    });
    let count = |part: &str| log.lines().filter(|line| line.contains(part)).count();
    for part in ["boot script", "session opened", "leased", "own", "a program"] {
        assert_eq!(count(part), 20, "{part}");
    }
    let strangers = count("no such boot file") + count("agent refused") + count("report is not taken");
    // A stretch may end meanwhile.
    assert!(strangers <= 3 * LINES_OF_STRANGERS as usize, "{strangers} lines of strangers");
}

#[test]
fn nobody_fills_the_log_and_what_was_left_out_is_told() {
    let ration = ration();
    let told = ration.clone();
    let log = log_of(LogFormat::Text, false, ration, || {
        for _ in 0..10_000 {
            info!(peer = "10.0.0.1:1234", "boot script: local disk");
        }
        let shutdown = tokio_util::sync::CancellationToken::new();
        shutdown.cancel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(told.report(shutdown));
    });
    let lines = log.lines().filter(|line| line.contains("local disk")).count();
    assert!(lines >= LINES_OF_ONE as usize && lines <= 3 * LINES_OF_ONE as usize, "{lines}");
    let told = log.lines().last().expect("a line");
    assert!(
        told.contains(&format!("{} lines were left out of the log, most of them of 10.0.0.1 (", 10_000 - lines)),
        "{told}"
    );
}

/// A line that any stranger can bring about and that does not say who did, or says it in words that nobody can read.
fn nameless(way: u32) {
    let nobody: Option<std::net::SocketAddr> = None;
    match way % 4 {
        0 => warn!(way, "no name"),
        1 => warn!(mac = "not an address", "no name"),
        2 => warn!(peer = ?nobody, host = "", "no name"),
        _ => info!(peer = %"0.0.0.0:68", "no name"),
    }
}

#[test]
fn a_line_that_names_nobody_is_rationed_by_the_place_that_writes_it() {
    let ration = ration();
    let told = ration.clone();
    let log = log_of(LogFormat::Text, false, ration, || {
        for round in 0..10_000 {
            nameless(round);
            if round % 100 == 0 {
                info!("a line of the appliance's own");
                info!(peer = "10.0.0.1", "of a known host");
            }
        }
        let shutdown = tokio_util::sync::CancellationToken::new();
        shutdown.cancel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(told.report(shutdown));
    });
    let count = |part: &str| log.lines().filter(|line| line.contains(part)).count();
    let (most, names) = (LINES_OF_A_PLACE as usize, count("no name"));
    // A stretch may end meanwhile.
    assert!((4 * most..=3 * 4 * most).contains(&names), "{names}");
    assert_eq!(count("of the appliance's own"), 100, "other places have their own");
    assert!(count("of a known host") >= LINES_OF_ONE as usize);
    let told = log.lines().last().expect("a line");
    assert!(told.contains("lines were left out") && told.contains("src/log/tests.rs:"), "{told}");
}
