//! A question before what cannot be undone: asked on a terminal, answered by `--yes` elsewhere.

use std::io::{BufRead, IsTerminal, Read, Write};

use anyhow::{Context, bail};

use super::failure::usage;

/// Longest answer that is read, in bytes.
const ANSWER_MAX: u64 = 100;

/// Whether it was said beforehand, or can be asked.
///
/// # Errors
///
/// When neither: `what` goes on with `give --yes`.
pub(super) fn can_be_asked(yes: bool, what: &str) -> anyhow::Result<()> {
    if yes || std::io::stdin().is_terminal() {
        return Ok(());
    }
    Err(usage(format!("{what}, and there is no terminal to ask at: give --yes")))
}

/// Asks, unless it was said beforehand.
///
/// # Errors
///
/// When the answer is not yes.
pub(super) fn ask(yes: bool, question: &str) -> anyhow::Result<()> {
    if yes {
        return Ok(());
    }
    let mut err = std::io::stderr();
    write!(err, "{question} [y/N] ").and_then(|()| err.flush()).context("terminal")?;
    let mut answer = String::new();
    std::io::stdin().lock().take(ANSWER_MAX).read_line(&mut answer).context("terminal")?;
    if is_yes(&answer) { Ok(()) } else { bail!("nothing was done") }
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_one() {
        let answers = ["y\n", "YES\n", " yes ", "\n", "", "n", "yo"].map(is_yes);
        assert_eq!(answers, [true, true, true, false, false, false, false]);
        assert!(ask(true, "?").is_ok());
        assert!(can_be_asked(true, "it erases").is_ok());
    }
}
