//! A progress bar on a terminal, plain lines otherwise.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often a plain line is printed.
const LINE_EVERY: Duration = Duration::from_secs(5);

pub(super) struct Progress {
    bar: Option<ProgressBar>,
    last: Option<(Instant, String)>,
}

impl Progress {
    pub(super) fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(100);
            let style = ProgressStyle::with_template("{msg:30!} [{bar:40}] {percent:>3} % {elapsed}");
            if let Ok(style) = style {
                bar.set_style(style.progress_chars("=> "));
            }
            bar
        });
        Self { bar, last: None }
    }

    /// Shows what is done now, and how much of it when known.
    pub(super) fn show(&mut self, what: &str, percent: Option<u64>) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
            if let Some(percent) = percent {
                bar.set_position(percent.min(100));
            }
            bar.tick();
            return;
        }
        let changed = self.last.as_ref().is_none_or(|(at, before)| before != what || at.elapsed() >= LINE_EVERY);
        if changed {
            match percent {
                Some(percent) => eprintln!("{what}, {percent} %"),
                None => eprintln!("{what}"),
            }
            self.last = Some((Instant::now(), what.to_owned()));
        }
    }

    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
