//! Prompting for a secret on the terminal.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};

use anyhow::Context;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use secrecy::SecretString;
use zeroize::Zeroizing;

use super::failure::usage;

/// Longest line that is read, in bytes.
const LINE_MAX: u64 = 4096;

/// Asks on the terminal, without showing what is typed. `instead` is what to give where there is no terminal.
pub(super) fn ask(prompt: &str, instead: &str) -> anyhow::Result<SecretString> {
    let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty");
    let Ok(mut terminal) = terminal else {
        return Err(usage(format!("there is no terminal to ask for it: {instead}")));
    };
    let before = tcgetattr(&terminal).context("terminal")?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    silent.local_modes.insert(LocalModes::ECHONL);
    write!(terminal, "{prompt}: ").and_then(|()| terminal.flush()).context("terminal")?;
    tcsetattr(&terminal, OptionalActions::Flush, &silent).context("terminal")?;
    let mut line = Zeroizing::new(String::new());
    let read = BufReader::new((&terminal).take(LINE_MAX)).read_line(&mut line);
    tcsetattr(&terminal, OptionalActions::Flush, &before).context("terminal")?;
    read.context("terminal")?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned().into())
}
