//! The log is written by a thread of its own: who reads it slowly, or no more, holds up nobody who serves.

use std::io::Write;

use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};

use super::Ration;

/// Lines that wait to be written: some megabytes of the longest ones. What comes beyond them is lost, and counted.
const WAITING: usize = 2048;

/// Ends the writing thread when it is dropped, after the lines that wait; one that cannot write is given up after a second.
#[must_use]
pub struct LogWriter {
    _thread: WorkerGuard,
}

/// Hands each write to a thread that makes it. What is lost is told with what `ration` left out.
pub fn in_background(writer: impl Write + Send + 'static, ration: &Ration) -> (NonBlocking, LogWriter) {
    let builder = NonBlockingBuilder::default().buffered_lines_limit(WAITING).lossy(true).thread_name("log");
    let (lines, thread) = builder.finish(writer);
    ration.counts_lost(lines.error_counter());
    (lines, LogWriter { _thread: thread })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use tracing_subscriber::filter::LevelFilter;

    use super::*;
    use crate::config::LogFormat;

    #[test]
    fn a_log_that_nobody_reads_holds_up_nobody() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let ration = Ration::default();
        let (lines, thread) = in_background(writer, &ration);
        let log = crate::log::subscriber(LevelFilter::TRACE, LogFormat::Text, false, lines.clone(), ration.clone());
        tracing::subscriber::with_default(log, || {
            // Each from a place of its own for the ration: a peer of this machine is not rationed, so are many names.
            for number in 0..20_000_u32 {
                tracing::info!(host = %format!("rack/h{}", number / 20), number, "a line that is about as long as most of them are");
            }
        });
        assert!(lines.error_counter().dropped_lines() > 0);
        let lost = ration.take_lost();
        assert!(lost > 0 && ration.take_lost() == 0, "{lost}");
        // What waits is written when somebody reads again.
        let read = std::thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).unwrap();
            text
        });
        drop((lines, thread));
        let text = read.join().unwrap();
        assert!(text.lines().count() >= WAITING, "{}", text.lines().count());
        assert!(text.contains("number=0 ") || text.lines().next().unwrap().contains("rack/h0"), "{}", &text[..200]);
    }
}
