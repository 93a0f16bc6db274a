//! A progress bar on a terminal, plain lines otherwise.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often a plain line is printed of which only the share has changed.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// The width that a terminal has which does not tell it.
const USUAL_WIDTH: usize = 80;
/// The longest share and time after a bar: ` 100 % 59m`, and a space that stays free.
const AFTER_BAR: usize = 11;

pub(super) struct ProgressLine {
    bar: Option<ProgressBar>,
    /// How the bar is drawn: whether with a share, and with how many characters.
    drawn: Option<(bool, usize)>,
    lines: PlainLines,
}

impl ProgressLine {
    pub(super) fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| ProgressBar::new(100));
        Self { bar, drawn: None, lines: PlainLines::default() }
    }

    /// Shows what is done now, and how much of it when known.
    pub(super) fn show(&mut self, what: &str, percent: Option<u64>) {
        let Some(bar) = &self.bar else {
            if let Some(line) = self.lines.next(what, percent, Instant::now()) {
                // Nobody may read it any more, and the work goes on.
                _ = writeln!(std::io::stderr(), "{line}");
            }
            return;
        };
        let (room, cells) = layout(terminal_width(), percent.is_some());
        let wanted = Some((percent.is_some(), cells));
        if self.drawn != wanted {
            if let Ok(style) = ProgressStyle::with_template(&template(percent.is_some(), cells)) {
                bar.set_style(style.progress_chars("=> "));
            }
            self.drawn = wanted;
        }
        bar.set_message(fit(what, room));
        if let Some(percent) = percent {
            bar.set_position(percent.min(100));
        }
        bar.tick();
    }

    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn terminal_width() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr()).ok();
    size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(USUAL_WIDTH)
}

/// Characters for the message, and for the bar: it shrinks, and goes, before what is said is cut. A share that is not known has none.
fn layout(width: usize, has_share: bool) -> (usize, usize) {
    let cells = match width {
        _ if !has_share => 0,
        ..60 => 0,
        60..100 => 10,
        _ => 25,
    };
    // A space and two brackets go with the bar.
    let taken = AFTER_BAR + if cells > 0 { cells + 3 } else { 0 };
    (width.saturating_sub(taken), cells)
}

fn template(has_share: bool, cells: usize) -> String {
    match (has_share, cells) {
        (false, _) => "{msg} {elapsed}".to_owned(),
        (true, 0) => "{msg} {percent:>3} % {elapsed}".to_owned(),
        (true, cells) => format!("{{msg}} [{{bar:{cells}}}] {{percent:>3}} % {{elapsed}}"),
    }
}

/// The text in this many characters. What is too much is left out in the middle: names begin it, and what is done ends it.
fn fit(text: &str, room: usize) -> String {
    let length = text.chars().count();
    if length <= room {
        return text.to_owned();
    }
    let kept = room.saturating_sub(1);
    let head: String = text.chars().take(kept / 2).collect();
    let tail: String = text.chars().skip(length - (kept - kept / 2)).collect();
    format!("{head}…{tail}")
}

/// What plain lines said last.
#[derive(Default)]
struct PlainLines {
    last: Option<(Instant, String, String)>,
}

impl PlainLines {
    /// The line to print: something else is done at once, a share now and then, and nothing is said twice.
    fn next(&mut self, what: &str, percent: Option<u64>, now: Instant) -> Option<String> {
        let line = percent.map_or_else(|| what.to_owned(), |percent| format!("{what}, {percent} %"));
        let due = self.last.as_ref().is_none_or(|(at, before, said)| {
            before != what || (*said != line && now.duration_since(*at) >= LINE_EVERY)
        });
        due.then(|| {
            self.last = Some((now, what.to_owned(), line.clone()));
            line
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_gives_way_to_what_is_said_and_a_line_fits_the_terminal() {
        for (width, has_share, wanted) in [
            (200, true, (161, 25)),
            (100, true, (61, 25)),
            (80, true, (56, 10)),
            (59, true, (48, 0)),
            (80, false, (69, 0)),
            (5, true, (0, 0)),
        ] {
            assert_eq!(layout(width, has_share), wanted, "{width} {has_share}");
        }
        let (room, cells) = layout(80, true);
        assert!(room + " [".len() + cells + "] 100 % 59m".len() < 80);
    }

    #[test]
    fn of_a_long_text_both_ends_are_seen() {
        for (text, room, wanted) in [
            ("a: importing", 12, "a: importing"),
            ("a-very-long-name: importing", 20, "a-very-lo… importing"),
            ("äöüäöü", 4, "ä…öü"),
            ("abc", 0, "…"),
        ] {
            assert_eq!(fit(text, room), wanted);
        }
    }

    #[test]
    fn a_plain_line_is_said_once() {
        let mut lines = PlainLines::default();
        let began = Instant::now();
        for (what, percent, seconds, wanted) in [
            ("a", None, 0, Some("a")),
            ("a", None, 60, None),
            ("a", Some(1), 61, Some("a, 1 %")),
            ("a", Some(2), 62, None),
            ("a", Some(3), 66, Some("a, 3 %")),
            ("a", Some(3), 90, None),
            ("b", Some(3), 91, Some("b, 3 %")),
        ] {
            let said = lines.next(what, percent, began + Duration::from_secs(seconds));
            assert_eq!(said.as_deref(), wanted, "{what} {percent:?} {seconds}");
        }
    }
}
