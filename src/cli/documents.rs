//! Each command line that the pages and the examples of `--help` show is one that the program takes.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};

use super::Cli;
use crate::pages::{self, shell};

/// What the program says against a command line.
fn fault(words: &[String]) -> Option<clap::Error> {
    let error = Cli::command().try_get_matches_from(words).err()?;
    let shown = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    (!shown).then_some(error)
}

/// The command lines of slipway in a text of shell, without what stands before it.
fn lines_of_slipway(text: &str) -> Vec<Vec<String>> {
    let all = shell::commands(text).into_iter();
    let after = |words: Vec<String>| match words.first().map(String::as_str) {
        Some("sudo") => words[1..].to_vec(),
        _ => words,
    };
    all.map(after).filter(|words| words.first().is_some_and(|word| word == "slipway")).collect()
}

/// Every command that the help shows, with its words.
fn every_command() -> Vec<(String, Command)> {
    let mut all = vec![(String::new(), Cli::command())];
    let mut next = 0;
    while let Some((path, command)) = all.get(next).cloned() {
        let below = command.get_subcommands().filter(|command| !command.is_hide_set());
        all.extend(below.map(|command| (format!("{path} {}", command.get_name()).trim().to_owned(), command.clone())));
        next += 1;
    }
    all.split_off(1)
}

#[test]
fn every_command_in_a_block_of_a_page_is_one_that_the_program_takes() {
    let mut faults = Vec::new();
    let mut tried = 0;
    for page in pages::all() {
        for block in page.blocks().iter().filter(|block| ["", "console", "sh"].contains(&block.language.as_str())) {
            for words in lines_of_slipway(&shell::typed(&block.text)) {
                tried += 1;
                // A public key, a host: somebody's own.
                let words: Vec<String> = words.into_iter().filter(|word| word != "…").collect();
                faults.extend(fault(&words).map(|error| format!("{}: {}: {error}", block.place, words.join(" "))));
            }
        }
        let indented = page.prose().filter(|(_, line)| line.starts_with("    slipway ") || line.starts_with("    $ "));
        faults.extend(indented.map(|(place, _)| format!("{place}: a command outside of a fenced block")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(tried > 40, "only {tried} were found");
}

/// In a line a page may leave arguments out, and write a word in capitals for what is somebody's own.
fn may_stand_in_a_line(error: &clap::Error) -> bool {
    match error.kind() {
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => true,
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => match error.get(ContextKind::InvalidValue) {
            Some(ContextValue::String(value)) => !value.chars().any(char::is_lowercase),
            _ => false,
        },
        _ => false,
    }
}

#[test]
fn every_command_in_a_line_of_a_page_is_one_that_the_program_takes() {
    let mut faults = Vec::new();
    let mut tried = 0;
    for (place, code) in pages::all().iter().flat_map(pages::Page::code) {
        // A choice is not one command.
        if code.contains(['|', '[', '<']) {
            continue;
        }
        for words in lines_of_slipway(&code) {
            tried += 1;
            let words: Vec<String> = words.into_iter().filter(|word| word != "…").collect();
            let error = fault(&words).filter(|error| !may_stand_in_a_line(error));
            faults.extend(error.map(|error| format!("{place}: {}: {error}", words.join(" "))));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(tried > 100, "only {tried} were found");
}

#[test]
fn every_command_of_the_boot_servers_front_page_is_one_that_the_program_takes() {
    let page = include_str!("../boot/front.html");
    let code = page.split("<code>").skip(1).filter_map(|rest| rest.split("</code>").next());
    let commands: Vec<Vec<String>> = code.flat_map(lines_of_slipway).collect();
    assert_eq!(commands.len(), 3, "{commands:?}");
    for words in commands {
        let error = fault(&words).filter(|error| !may_stand_in_a_line(error));
        assert!(error.is_none(), "{}: {}", words.join(" "), error.unwrap());
    }
}

#[test]
fn every_example_of_the_help_is_one_that_the_program_takes() {
    let mut faults = Vec::new();
    let mut tried = 0;
    for (path, command) in every_command().into_iter().chain([(String::new(), Cli::command())]) {
        let Some(after) = command.get_after_long_help().or(command.get_after_help()) else { continue };
        for line in after.to_string().lines().filter_map(|line| line.strip_prefix("  ")) {
            // What follows after a gap is said about it.
            let line = line.split("   ").next().unwrap_or_default();
            for words in lines_of_slipway(line) {
                tried += 1;
                faults
                    .extend(fault(&words).map(|error| format!("slipway {path} --help: {}: {error}", words.join(" "))));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(tried > 60, "only {tried} were found");
}

#[test]
fn every_command_is_in_a_page() {
    let pages = pages::all();
    let code: Vec<(String, String)> = pages.iter().flat_map(pages::Page::code).collect();
    let missing: Vec<String> = every_command()
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| {
            let begins = |text: &str| {
                let text = text.strip_prefix("slipway ").unwrap_or(text);
                text.strip_prefix(path.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
            };
            let in_block = || {
                pages.iter().flat_map(pages::Page::blocks).any(|block| {
                    lines_of_slipway(&shell::typed(&block.text)).iter().any(|words| begins(&words.join(" ")))
                })
            };
            !code.iter().any(|(_, code)| begins(code)) && !in_block()
        })
        .collect();
    assert!(missing.is_empty(), "no page has {missing:?}");
}
