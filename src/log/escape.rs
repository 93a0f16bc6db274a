//! Escaping: lines that cannot be mistaken for others.

use std::fmt::{self, Write};

use serde_json::Value;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

/// The longest line of text, in bytes. What a machine says of itself may be a megabyte.
pub(super) const LONGEST: usize = 8 << 10;

/// What the format writes for levels, names and times (ISO 6429, SGR). A value that has one of them changes nothing but
/// its own looks.
const COLOURS: [&str; 10] = [
    "\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[3m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[34m", "\x1b[35m", "\x1b[36m",
];

/// Whether a character can stand in a line as it is: it begins no other line, rules no terminal (ISO 6429) and does not
/// turn the direction of what follows (Unicode UAX #9).
pub fn is_safe(character: char) -> bool {
    let turns = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    !character.is_control() && !turns && !matches!(character, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// Text with every character escaped that is not [safe](is_safe), as JSON does it: of JSON, JSON that says the same.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    // Writing to memory does not fail.
    escape(&mut safe, text, false).ok();
    safe
}

/// Somebody else's text, fit for a message: at most so many characters, each that is not [safe](is_safe) as a space.
pub fn clean(text: &str, most: usize) -> String {
    let safe = |c: char| if is_safe(c) { c } else { ' ' };
    let mut out: String = text.chars().take(most).map(safe).collect();
    if text.chars().nth(most).is_some() {
        out.push('…');
    }
    out
}

/// Text of several lines, with everything escaped that is not safe but its line ends and tabs.
pub fn escaped_lines(text: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(text);
    let stays = |character: char| matches!(character, '\n' | '\t');
    let mut safe = String::with_capacity(text.len());
    for piece in text.split_inclusive(stays) {
        let line = piece.strip_suffix(stays).unwrap_or(piece);
        escape(&mut safe, line, false).ok();
        safe.push_str(&piece[line.len()..]);
    }
    safe.into_bytes()
}

/// Escapes all texts in a value, and the names of its fields, in the same way.
pub fn escape_all(value: &mut Value) {
    match value {
        Value::String(text) if !text.chars().all(is_safe) => *text = escaped(text),
        Value::Array(list) => list.iter_mut().for_each(escape_all),
        Value::Object(fields) => {
            if !fields.keys().all(|name| name.chars().all(is_safe)) {
                *fields = std::mem::take(fields).into_iter().map(|(name, value)| (escaped(&name), value)).collect();
            }
            fields.values_mut().for_each(escape_all);
        }
        _ => {}
    }
}

/// An event's format, with everything escaped that is not the format's own.
pub(super) struct Escaped<F> {
    inner: F,
    /// Whether the format itself writes colours.
    colours: bool,
    longest: usize,
}

impl<F> Escaped<F> {
    /// Of a line of text.
    pub fn text(inner: F, colours: bool) -> Self {
        Self { inner, colours, longest: LONGEST }
    }

    /// Of a line of JSON, which would not be one any more if it was cut.
    pub fn json(inner: F) -> Self {
        Self { inner, colours: false, longest: usize::MAX }
    }
}

impl<S, N, F> FormatEvent<S, N> for Escaped<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = String::new();
        self.inner.format_event(context, Writer::new(&mut line), event)?;
        let line = line.strip_suffix('\n').unwrap_or(&line);
        let end = line.floor_char_boundary(self.longest);
        escape(&mut writer, &line[..end], self.colours)?;
        if end < line.len() {
            write!(writer, "… and {} bytes more", line.len() - end)?;
        }
        writer.write_char('\n')
    }
}

/// Writes text with every character escaped that is not safe, as JSON does it: `\n`, `\u202e`.
pub(super) fn escape(out: &mut impl Write, text: &str, colours: bool) -> fmt::Result {
    let mut rest = text;
    let is_colour = |at: usize, rest: &str| colours && COLOURS.iter().any(|colour| rest[at..].starts_with(colour));
    while let Some((at, character)) = rest.char_indices().find(|(at, c)| !is_safe(*c) && !is_colour(*at, rest)) {
        out.write_str(&rest[..at])?;
        match character {
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            other => write!(out, "\\u{:04x}", u32::from(other))?,
        }
        rest = &rest[at + character.len_utf8()..];
    }
    out.write_str(rest)
}
