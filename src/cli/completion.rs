//! `slipway completion`: completion for shells, which ask this program itself while somebody types.

use clap::CommandFactory;
use clap_complete::CompleteEnv;
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};

use super::client::with_completions;
use super::common::print_text;

/// Says which shell asks for completions. Who is not asked by a shell does not have it.
const VARIABLE: &str = "SLIPWAY_COMPLETE";

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  slipway completion bash > /etc/bash_completion.d/slipway
  slipway completion zsh > \"${fpath[1]}/_slipway\"
  slipway completion fish > ~/.config/fish/completions/slipway.fish")]
pub(super) struct CompletionArgs {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Answers a shell that asks for completions, and ends the process; does nothing else.
pub(super) fn answer<Cli: CommandFactory>() {
    CompleteEnv::with_factory(|| with_completions(Cli::command())).var(VARIABLE).complete();
}

pub(super) fn run(options: &CompletionArgs) -> anyhow::Result<()> {
    let shell: &dyn EnvCompleter = match options.shell {
        Shell::Bash => &Bash,
        Shell::Zsh => &Zsh,
        Shell::Fish => &Fish,
    };
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "slipway", "slipway", "slipway", &mut script)?;
    print_text(&String::from_utf8(script)?)
}
