//! `host`: what one does with machines, each a change of a BareMetalHost that kubectl could make as well.

mod accept;
mod deploy;
mod files;
mod log;
mod many;
mod report;
mod verbs;

use std::io::Write;

use super::connect::ServerArgs;
use super::selected::{ByLabel, Selected};
use super::{delete, migration, resume};
use crate::cli::failure::usage;
use many::BatchPace;
pub(super) use many::{OutcomeForm, Printed};
pub(super) use report::OutcomeReport;
use verbs::Verb;

#[derive(clap::Subcommand)]
pub(in crate::cli) enum HostCommand {
    /// Power hosts on or off (sets spec.online)
    ///
    /// Machines are started a second apart (--stagger), and at most ten are on their way at a time (--max-parallel). Without
    /// --wait the command ends once it has begun the last one.
    #[command(
        override_usage = "slipway host power <on|off> [HOST]... [OPTIONS]\n       slipway host power [HOST]... <on|off> [OPTIONS]"
    )]
    #[command(after_help = "\
Examples:
  slipway host power web-1 on --wait
  slipway host power off web-1 web-2
  slipway host power on -l rack=7 --max-parallel 4 --stagger 3s --wait")]
    Power(PowerArgs),
    /// Reboot hosts once: ask the operating system to shut down, and cut the power after three minutes
    #[command(after_help = "\
Examples:
  slipway host reboot web-1
  slipway host reboot -l rack=7 --max-parallel 1 --wait     one machine after the other")]
    Reboot(RebootArgs),
    /// Inspect available hosts again
    #[command(after_help = "\
Examples:
  slipway host inspect web-1 --wait
  slipway host inspect -l rack=7 --max-parallel 4     what is in use is refused")]
    Inspect(Inspect),
    /// Provision available hosts with an image
    ///
    /// Sets spec.image and spec.online, and stores user data, meta data and network data from files as Secrets of each host.
    /// A host that has an image already is refused: release it first.
    Deploy(deploy::DeployArgs),
    /// Take the image away from hosts: THEIR DISKS ARE ERASED, and they become available again
    ///
    /// With automatedCleaningMode disabled the disks are kept, and the machine is powered off.
    #[command(after_help = "\
Examples:
  slipway host release web-1 --wait
  slipway host release -l rack=7,role=test")]
    Release(ReleaseArgs),
    /// Leave the machines of hosts alone: no call to a BMC, whatever is written to the host
    ///
    /// Available and provisioned hosts are detached at once, others when they get there, or at once with --force, which also
    /// ends what their ramdisk is doing. Deleting a detached host leaves its machine as it is.
    #[command(after_help = "\
Examples:
  slipway host detach web-1           before somebody works on the machine
  slipway host detach web-1 --force   its BMC is broken")]
    Detach(DetachArgs),
    /// End the detachment of hosts: their machines are managed again
    Attach(Attach),
    /// Do nothing with hosts until they are unpaused, and do not continue what was begun
    #[command(after_help = "\
Examples:
  slipway host pause web-1
  slipway host pause --all            before a change of the network")]
    Pause(AtOnce),
    /// End a pause; one that a restore began is ended by `slipway host resume`
    Unpause(AtOnce),
    /// Set and remove labels of hosts
    #[command(override_usage = "slipway host label [HOST]... <KEY=VALUE|KEY->... [OPTIONS]")]
    #[command(after_help = "\
Examples:
  slipway host label web-1 web-2 rack=7 role=web
  slipway host label --all site=north
  slipway host label -l rack=7 role-              remove a label")]
    Label(LabelArgs),
    /// Delete hosts: what is installed is ERASED, and the machine powered off
    ///
    /// With --force the machine is left as it is, not erased and not powered off: for one that is broken or gone, or whose BMC does
    /// not answer.
    Delete(delete::HostOptions),
    /// Take a discovered host into use
    ///
    /// Stores the address and credentials of its BMC where they are missing, and removes the annotation that holds it back.
    /// Slipway then registers and inspects the host, ERASES the partition tables and signatures of ALL ITS DISKS, and makes
    /// it available. With --externally-provisioned the machine keeps the system that runs on it; with --keep-disks it is
    /// inspected and nothing is erased.
    Accept(accept::Accept),
    /// Move hosts to another server, with their status, while their machines keep running
    ///
    /// Each host is detached here, copied with its status, Secrets, HardwareData and DataImage, and deleted here once the
    /// copy is complete; only then does the other server act on it. The machine itself is not touched. After an
    /// interruption, run the same command again.
    Move(migration::MigrationArgs),
    /// Print the log of a host's ramdisk, of its last boot or an earlier one
    Log(log::HostLogArgs),
    /// Resume hosts that `slipway restore` paused
    ///
    /// Check their machines first: Slipway continues where the backup left off. A host that was being worked on, or was to
    /// be, is resumed only by its name, because its machine may be installed or erased again.
    Resume(resume::ResumeArgs),
}

#[derive(clap::Args)]
pub(in crate::cli) struct PowerArgs {
    /// on or off, first or last, and names of hosts
    #[arg(required = true, value_name = "on|off|HOST")]
    words: Vec<String>,
    #[command(flatten)]
    by_label: ByLabel,
    #[command(flatten)]
    pace: BatchPace,
    #[command(flatten)]
    form: OutcomeForm,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(clap::Args)]
pub(in crate::cli) struct RebootArgs {
    #[command(flatten)]
    selected: Selected,
    /// Cut the power at once instead of asking the operating system to shut down
    #[arg(long)]
    hard: bool,
    /// Also hosts that are being inspected or provisioned: that begins again
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pace: BatchPace,
    #[command(flatten)]
    form: OutcomeForm,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(clap::Args)]
pub(in crate::cli) struct Inspect {
    #[command(flatten)]
    selected: Selected,
    /// All hosts of the namespace
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    pace: BatchPace,
    #[command(flatten)]
    form: OutcomeForm,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(clap::Args)]
pub(in crate::cli) struct ReleaseArgs {
    #[command(flatten)]
    selected: Selected,
    #[command(flatten)]
    pace: BatchPace,
    #[command(flatten)]
    form: OutcomeForm,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(clap::Args)]
pub(in crate::cli) struct DetachArgs {
    #[command(flatten)]
    selected: Selected,
    /// All hosts of the namespace
    #[arg(long)]
    all: bool,
    /// At once, whatever is under way
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pace: BatchPace,
    #[command(flatten)]
    form: OutcomeForm,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(clap::Args)]
pub(in crate::cli) struct Attach {
    #[command(flatten)]
    selected: Selected,
    /// All hosts of the namespace
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    pace: BatchPace,
    #[command(flatten)]
    form: OutcomeForm,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(clap::Args)]
pub(in crate::cli) struct AtOnce {
    #[command(flatten)]
    selected: Selected,
    /// All hosts of the namespace
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    form: OutcomeForm,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(clap::Args)]
pub(in crate::cli) struct LabelArgs {
    /// Names of hosts, then labels: KEY=VALUE sets one, KEY- removes it
    #[arg(required = true, value_name = "HOST|KEY=VALUE|KEY-")]
    words: Vec<String>,
    #[command(flatten)]
    by_label: ByLabel,
    /// All hosts of the namespace
    #[arg(long)]
    all: bool,
    /// Change labels that have another value
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    form: OutcomeForm,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) async fn run(command: HostCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    let one_by_one = BatchPace::default;
    match command {
        HostCommand::Power(PowerArgs { words, by_label, pace, form, server }) => {
            let (on, names) = power(words)?;
            let selected = (&names[..], by_label.selector.as_deref(), false);
            many::run(&server, selected, Verb::Power { on }, pace, form.output, out).await
        }
        HostCommand::Reboot(RebootArgs { selected, hard, force, pace, form, server }) => {
            many::run(&server, selected.or_all(false), Verb::Reboot { hard, force }, pace, form.output, out).await
        }
        HostCommand::Inspect(Inspect { selected, all, pace, form, server }) => {
            many::run(&server, selected.or_all(all), Verb::Inspect, pace, form.output, out).await
        }
        HostCommand::Deploy(options) => deploy::run(options, out).await,
        HostCommand::Release(ReleaseArgs { selected, pace, form, server }) => {
            many::run(&server, selected.or_all(false), Verb::Release, pace, form.output, out).await
        }
        HostCommand::Detach(DetachArgs { selected, all, force, pace, form, server }) => {
            many::run(&server, selected.or_all(all), Verb::Detach { force }, pace, form.output, out).await
        }
        HostCommand::Attach(Attach { selected, all, pace, form, server }) => {
            many::run(&server, selected.or_all(all), Verb::Attach, pace, form.output, out).await
        }
        HostCommand::Pause(AtOnce { selected, all, form, server }) => {
            many::run(&server, selected.or_all(all), Verb::Pause, one_by_one(), form.output, out).await
        }
        HostCommand::Unpause(AtOnce { selected, all, form, server }) => {
            many::run(&server, selected.or_all(all), Verb::Unpause, one_by_one(), form.output, out).await
        }
        HostCommand::Label(LabelArgs { words, by_label, all, overwrite, form, server }) => {
            let (names, set, remove) = labels(words)?;
            let selected = (&names[..], by_label.selector.as_deref(), all);
            let verb = Verb::Label { set, remove, overwrite };
            many::run(&server, selected, verb, one_by_one(), form.output, out).await
        }
        HostCommand::Delete(options) => {
            options.check()?;
            delete::run(options.into(), out).await
        }
        HostCommand::Accept(accept) => accept::run(accept, out).await,
        HostCommand::Move(options) => migration::run(options, out).await,
        HostCommand::Log(log) => log::run(log, out).await,
        HostCommand::Resume(options) => resume::run(options, out).await,
    }
}

/// Which way, and the names: the word is the first one or the last one.
fn power(mut words: Vec<String>) -> anyhow::Result<(bool, Vec<String>)> {
    let read = |word: Option<&String>| match word?.as_str() {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    };
    if let Some(on) = read(words.last()) {
        words.pop();
        return Ok((on, words));
    }
    match read(words.first()) {
        Some(on) => Ok((on, words.split_off(1))),
        None => Err(usage("say on or off, before or after the names: slipway host power web-1 on")),
    }
}

/// Names, labels to set, labels to remove. No name of a host has an equals sign, or ends with a hyphen.
#[allow(clippy::type_complexity, reason = "three lists, taken apart at once")]
fn labels(words: Vec<String>) -> anyhow::Result<(Vec<String>, Vec<(String, String)>, Vec<String>)> {
    let (mut names, mut set, mut remove) = (Vec::new(), Vec::new(), Vec::new());
    for word in words {
        match (word.split_once('='), word.strip_suffix('-')) {
            (Some((key, value)), _) => set.push((key.to_owned(), value.to_owned())),
            (None, Some(key)) => remove.push(key.to_owned()),
            (None, None) => names.push(word),
        }
    }
    if set.is_empty() && remove.is_empty() {
        return Err(usage("give labels: KEY=VALUE to set one, KEY- to remove it"));
    }
    if let Some((both, _)) = set.iter().find(|(key, _)| remove.contains(key)) {
        return Err(usage(format!("the label {both} cannot be set and removed at once")));
    }
    Ok((names, set, remove))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn on_and_off_stand_before_or_after_the_names() {
        for (text, wanted) in [
            ("on", Some((true, ""))),
            ("web-1 off", Some((false, "web-1"))),
            ("off web-1 web-2", Some((false, "web-1 web-2"))),
            ("web-1 web-2 on", Some((true, "web-1 web-2"))),
            // The last word is looked at first: a host may be called like this.
            ("on off", Some((false, "on"))),
            ("web-1", None),
            ("web-1 on web-2", None),
        ] {
            let read = power(words(text)).ok();
            assert_eq!(read, wanted.map(|(on, names)| (on, words(names))), "{text}");
        }
    }

    #[test]
    fn labels_are_told_from_names() {
        let (names, set, remove) = labels(words("web-1 rack=7 web-2 role- a=b=c")).expect("labels");
        assert_eq!((names, remove), (words("web-1 web-2"), words("role")));
        assert_eq!(set, [("rack".to_owned(), "7".to_owned()), ("a".to_owned(), "b=c".to_owned())]);
        for wrong in ["web-1", "web-1 a=b a-"] {
            assert!(labels(words(wrong)).is_err(), "{wrong}");
        }
    }
}
