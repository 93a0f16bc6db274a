//! `slipway completion`: completion scripts for shells.

use clap_complete::aot;

use super::common::print_text;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  slipway completion bash > /etc/bash_completion.d/slipway
  slipway completion zsh > \"${fpath[1]}/_slipway\"
  slipway completion fish > ~/.config/fish/completions/slipway.fish")]
pub(super) struct Options {
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

pub(super) fn run(options: &Options, command: &mut clap::Command) -> anyhow::Result<()> {
    let shell = match options.shell {
        Shell::Bash => aot::Shell::Bash,
        Shell::Zsh => aot::Shell::Zsh,
        Shell::Fish => aot::Shell::Fish,
    };
    let mut script = Vec::new();
    aot::generate(shell, command, "slipway", &mut script);
    print_text(&String::from_utf8(script)?)
}
