//! What the terminal is like that the output goes to: whether it shows colours, and how wide it is.

use std::io::IsTerminal;

/// When states have colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum When {
    /// On a terminal, unless $NO_COLOR, CLICOLOR=0 or TERM=dumb say otherwise
    #[default]
    Auto,
    Always,
    Never,
}

/// Standard output, for tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cli) struct Terminal {
    /// Whether states have colours.
    pub color: bool,
    /// Columns of characters; none where nothing is to be cut.
    pub width: Option<usize>,
}

impl Terminal {
    /// Standard output as it is. A table for a file or a program has neither colours nor an end of its lines.
    pub(in crate::cli) fn standard_output(when: When) -> Self {
        let out = std::io::stdout();
        let is_terminal = out.is_terminal();
        let size = is_terminal.then(|| rustix::termios::tcgetwinsize(&out).ok()).flatten();
        let width = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
        Self { color: colors(when, is_terminal, |name| std::env::var(name).ok()), width }
    }
}

/// <https://no-color.org>, and CLICOLOR as BSD's ls has it.
fn colors(when: When, is_terminal: bool, variable: impl Fn(&str) -> Option<String>) -> bool {
    match when {
        When::Always => return true,
        When::Never => return false,
        When::Auto => {}
    }
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    if set("NO_COLOR").is_some() {
        return false;
    }
    if set("CLICOLOR_FORCE").is_some_and(|value| value != "0") {
        return true;
    }
    let wanted = set("CLICOLOR").is_none_or(|value| value != "0");
    is_terminal && wanted && set("TERM").is_none_or(|term| term != "dumb")
}

/// The colour of a word that says how something is (ECMA-48 section 8.3.117).
pub(super) fn color_of(word: &str) -> Option<&'static str> {
    const GREEN: &str = "\u{1b}[32m";
    const YELLOW: &str = "\u{1b}[33m";
    const RED: &str = "\u{1b}[31m";
    let lower = word.to_ascii_lowercase();
    match lower.as_str() {
        "provisioned" | "externally provisioned" | "available" | "ready" | "ok" | "active" | "bound" | "succeeded" => {
            Some(GREEN)
        }
        "registering"
        | "inspecting"
        | "preparing"
        | "match profile"
        | "provisioning"
        | "deprovisioning"
        | "powering off before delete"
        | "deleting"
        | "importing"
        | "pending"
        | "waiting"
        | "delayed"
        | "detached"
        | "paused"
        | "unmanaged"
        | "discovered"
        | "terminating" => Some(YELLOW),
        "failed" | "error" | "stuck" => Some(RED),
        _ if lower.ends_with(" error") => Some(RED),
        _ => None,
    }
}

/// Ends a colour.
pub(super) const PLAIN: &str = "\u{1b}[0m";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_whose_user_wants_them() {
        for (when, terminal, variables, wanted) in [
            (When::Auto, true, &[][..], true),
            (When::Auto, false, &[], false),
            (When::Auto, true, &[("NO_COLOR", "1")], false),
            (When::Auto, true, &[("NO_COLOR", "")], true),
            (When::Auto, true, &[("CLICOLOR", "0")], false),
            (When::Auto, false, &[("CLICOLOR_FORCE", "1")], true),
            (When::Auto, false, &[("CLICOLOR_FORCE", "0")], false),
            (When::Auto, false, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], false),
            (When::Auto, true, &[("TERM", "dumb")], false),
            (When::Always, false, &[("NO_COLOR", "1")], true),
            (When::Never, true, &[("CLICOLOR_FORCE", "1")], false),
        ] {
            let variable = |name: &str| {
                variables.iter().find(|(known, _): &&(&str, &str)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(colors(when, terminal, variable), wanted, "{when:?} {terminal} {variables:?}");
        }
    }

    #[test]
    fn states_have_the_colour_of_what_they_mean() {
        let codes = ["provisioned", "Inspecting", "registration error", "Failed", "web-1", ""].map(color_of);
        let (green, yellow, red) = (Some("\u{1b}[32m"), Some("\u{1b}[33m"), Some("\u{1b}[31m"));
        assert_eq!(codes, [green, yellow, red, red, None, None]);
    }
}
