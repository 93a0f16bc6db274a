//! Completions that only the server knows: types, names, namespaces.
//!
//! A shell asks for them while somebody types. So there is little time, nothing is printed but candidates, and without a server there are
//! none.

use std::ffi::OsStr;
use std::sync::mpsc;
use std::time::Duration;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use serde_json::Value;

use super::connect::{ClientSession, ServerArgs};
use super::hosts::WORDS;
use super::request::METADATA;
use super::types::{ServedType, ServedTypes, hosts};
use crate::cli::local;

/// How long somebody who pressed the key waits.
const DEADLINE: Duration = Duration::from_millis(1500);
/// Names that are offered.
const MOST: &str = "500";
/// Commands whose words are types and names.
const VERBS: [&str; 7] = ["get", "describe", "delete", "wait", "watch", "edit", "patch"];
/// Options that have a value in the next word.
const VALUED: [&str; 26] = [
    "-n",
    "--namespace",
    "-l",
    "--selector",
    "-o",
    "--output",
    "--kubeconfig",
    "--context",
    "--config",
    "--field-selector",
    "--sort-by",
    "-L",
    "--label-columns",
    "--for",
    "--timeout",
    "-f",
    "--filename",
    "--cascade",
    "--color",
    "--max-parallel",
    "-p",
    "--patch",
    "--patch-file",
    "--type",
    "--subresource",
    "--field-manager",
];

/// What is to be completed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CompletionTarget {
    Types,
    /// Names of a type; before each stands this, as `host/`.
    Names(String, String),
    Namespaces,
}

/// The commands of the client with these completions.
pub(in crate::cli) fn with_completions(command: clap::Command) -> clap::Command {
    let group = command.get_name().to_owned();
    let mut command = command.mut_args(|arg| match arg.get_id().as_str() {
        "namespace" => arg.add(namespaces()),
        "what" => arg.add(objects()),
        _ => arg,
    });
    let names: Vec<String> = command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    for name in names {
        command = command.mut_subcommand(name, |verb| {
            let verb = with_completions(verb);
            verb.mut_args(|arg| match (group.as_str(), arg.get_id().as_str()) {
                ("host", "names" | "name" | "words") => arg.add(of_hosts()),
                // What `import` takes is the name of an image that is not there yet.
                ("image", "names") => arg.add(of_images()),
                _ => arg,
            })
        });
    }
    command
}

/// Names of hosts.
fn of_hosts() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        complete(current, |_, _| CompletionTarget::Names("host".into(), String::new()))
    })
}

/// Names of images in the library.
fn of_images() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        complete(current, |_, _| CompletionTarget::Names("images.slipway.dev".into(), String::new()))
    })
}

/// Types, names of a type, `TYPE/NAME`.
fn objects() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| complete(current, of_objects))
}

/// Namespaces.
fn namespaces() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| complete(current, |_, _| CompletionTarget::Namespaces))
}

fn of_objects(before: &[String], current: &str) -> CompletionTarget {
    if let Some((of, _)) = current.split_once('/') {
        return CompletionTarget::Names(of.to_owned(), format!("{of}/"));
    }
    match positional(before) {
        Some(of) => CompletionTarget::Names(of, String::new()),
        None => CompletionTarget::Types,
    }
}

/// The first word after the verb that is neither an option nor the value of one.
fn positional(before: &[String]) -> Option<String> {
    let verb = before.iter().position(|word| VERBS.contains(&word.as_str()))?;
    let mut words = before[verb + 1..].iter();
    while let Some(word) = words.next() {
        if VALUED.contains(&word.as_str()) {
            words.next();
        } else if !word.starts_with('-') {
            return Some(word.clone());
        }
    }
    None
}

fn complete(current: &OsStr, asked: fn(&[String], &str) -> CompletionTarget) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy().into_owned();
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = words.skip_while(|word| word != "--").skip(1).collect();
    // Only bash and zsh say where in the line the cursor is.
    let index = std::env::var("_CLAP_COMPLETE_INDEX").ok().and_then(|index| index.parse().ok());
    let before = &words[..index.unwrap_or(usize::MAX).min(words.len().saturating_sub(1))];
    let (asked, server) = (asked(before, &current), ServerArgs::of_words(&words));
    if !server.has_credentials() {
        return Vec::new();
    }
    let (tell, told) = mpsc::channel();
    // Whatever it waits for, it is left to itself after the deadline.
    std::thread::spawn(move || {
        tell.send(local::block_on(async { find(&server, asked).await }).unwrap_or_default()).ok()
    });
    let found = told.recv_timeout(DEADLINE).unwrap_or_default();
    let offered = found.into_iter().filter(|name| name.starts_with(&current) && is_plain(name));
    offered.map(CompletionCandidate::new).collect()
}

/// Shells get nothing of a server's that is no name.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte))
}

async fn find(server: &ServerArgs, asked: CompletionTarget) -> anyhow::Result<Vec<String>> {
    let session = server.connect().await?;
    match asked {
        CompletionTarget::Types => Ok(types(&session.types().await?)),
        CompletionTarget::Namespaces => {
            let of = ServedType { version: "v1".into(), plural: "namespaces".into(), ..ServedType::default() };
            names(&session, &of, "").await
        }
        CompletionTarget::Names(word, before) => {
            if WORDS.contains(&word.as_str()) {
                return names(&session, &hosts(), &before).await;
            }
            let types = session.types().await?;
            match types.find(&word)?.as_slice() {
                [of] => names(&session, of, &before).await,
                _ => Ok(Vec::new()),
            }
        }
    }
}

/// Words for all types that can be listed.
fn types(types: &ServedTypes) -> Vec<String> {
    let mut words: Vec<String> = vec![WORDS[1].to_owned()];
    for of in types.listed() {
        let word = if words.contains(&of.plural) { of.qualified() } else { of.plural.clone() };
        words.push(word);
    }
    words
}

async fn names(session: &ClientSession, of: &ServedType, before: &str) -> anyhow::Result<Vec<String>> {
    let page = session.get(&of.path(Some(&session.namespace), None), &[("limit", MOST)], METADATA).await?;
    let items = page["items"].as_array().map_or(&[][..], Vec::as_slice);
    let name = |item: &Value| Some(format!("{before}{}", item["metadata"]["name"].as_str()?));
    Ok(items.iter().filter_map(name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_completed_depends_on_the_words_before() {
        let names = |of: &str, before: &str| CompletionTarget::Names(of.into(), before.into());
        for (line, current, wanted) in [
            ("slipway get", "", CompletionTarget::Types),
            ("slipway get", "ho", CompletionTarget::Types),
            ("slipway get hosts", "", names("hosts", "")),
            ("slipway -x get -n rack -A hosts web-1", "we", names("hosts", "")),
            ("slipway wait", "host/", names("host", "host/")),
            ("slipway wait --for state=available", "", CompletionTarget::Types),
            ("slipway delete host/a", "secret/b", names("secret", "secret/")),
        ] {
            let before: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(of_objects(&before, current), wanted, "{line} {current}");
        }
    }

    #[test]
    fn a_shell_gets_names_only() {
        for (name, plain) in
            [("web-1", true), ("host/web-1", true), ("$(reboot)", false), ("a b", false), ("a\nb", false)]
        {
            assert_eq!(is_plain(name), plain, "{name}");
        }
        let words = types(&crate::cli::client::types::tests::types());
        assert!(words.starts_with(&["hosts".to_owned()]) && words.contains(&"secrets".to_owned()), "{words:?}");
    }
}
