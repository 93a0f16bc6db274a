//! What to use instead of a command or an option that this program does not have, where the nearest word would mislead.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Words that people bring along from other programs, and what does it here.
const COMMANDS: [(&str, &str); 12] = [
    ("create", "`slipway apply -f FILE` makes objects; `slipway token create`, `slipway cluster create` make these"),
    ("label", "`slipway host label HOST KEY=VALUE` labels hosts; `slipway patch` changes the labels of other objects"),
    ("annotate", "`slipway patch TYPE NAME -p 'metadata: {annotations: {KEY: VALUE}}'` sets an annotation"),
    ("api-resources", "`slipway types` lists the types of the server"),
    ("explain-type", "`slipway types` lists the types of the server"),
    ("logs", "`slipway host log HOST` prints the log of a ramdisk, `slipway cluster log NAME` what Ansible said"),
    ("log", "`slipway host log HOST` prints the log of a ramdisk, `slipway cluster log NAME` what Ansible said"),
    (
        "network",
        "networks are objects and parts of slipway.toml: `slipway get networks`, `slipway apply -f network.yaml`",
    ),
    (
        "networks",
        "networks are objects and parts of slipway.toml: `slipway get networks`, `slipway apply -f network.yaml`",
    ),
    ("scale", "`slipway cluster scale NAME --workers N`"),
    ("replace", "`slipway apply -f FILE` changes objects, `slipway edit TYPE NAME` opens one in an editor"),
    ("config", "`slipway check-config` checks slipway.toml, `slipway kubeconfig` prints a kubeconfig"),
];

/// Verbs for hosts that want to be told which hosts.
const ONE_BY_ONE: [&str; 5] = ["release", "reboot", "power", "deploy", "delete"];

/// What to say of a command line that clap refused; `None` where clap says it well. `words` are the command line without the
/// program.
pub(super) fn told(error: &clap::Error, words: &[String]) -> Option<String> {
    let text = |kind: ContextKind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let first = words.first().map(String::as_str);
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = text(ContextKind::InvalidSubcommand)?;
            // Below another command the word means something else.
            let (_, how) = COMMANDS.iter().find(|(known, _)| *known == word && first == Some(word))?;
            Some(format!("there is no command {word:?}: {how}"))
        }
        ErrorKind::UnknownArgument => match (text(ContextKind::InvalidArg)?, first?) {
            ("--kubeconfig" | "--context", "debug" | "explain") => Some(
                "`slipway debug` asks the appliance on its own box, and takes --config only. From another desk, `slipway describe \
                 host NAME` says what a machine waits for, and `slipway get dhcpleases` which address it has"
                    .into(),
            ),
            ("--all", "host") if words.get(1).is_some_and(|verb| ONE_BY_ONE.contains(&verb.as_str())) => Some(
                "--all is for what does no harm to every host: here name the hosts, or select them with -l LABELS".into(),
            ),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::super::Cli;
    use super::*;

    #[test]
    fn what_is_not_here_is_answered_with_what_is() {
        for (line, wanted) in [
            ("create ns x", Some("`slipway apply -f FILE`")),
            ("api-resources", Some("`slipway types`")),
            ("network list", Some("`slipway get networks`")),
            ("debug boot 52:54:00:00:00:01 --kubeconfig kc", Some("takes --config only")),
            ("host release --all", Some("-l LABELS")),
            ("host create", None),
            ("resotre", None),
            ("host release --al", None),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let all = std::iter::once("slipway".to_owned()).chain(words.clone());
            let error = Cli::try_parse_from(all).err().expect("refused");
            let said = told(&error, &words);
            match wanted {
                Some(wanted) => assert!(said.as_deref().is_some_and(|said| said.contains(wanted)), "{line}: {said:?}"),
                None => assert_eq!(said, None, "{line}"),
            }
        }
        let commands = Cli::command();
        let ours = |word: &str| commands.get_subcommands().any(|one| one.get_name() == word);
        for (word, _) in COMMANDS {
            assert!(!ours(word), "{word} is a command now");
        }
    }
}
