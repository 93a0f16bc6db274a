//! The command line: one file for each command.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage. Errors go to standard error, once, with their causes.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "commands speak to their user")]

mod backup;
mod bmc;
mod check_config;
mod client;
mod common;
mod completion;
mod confirm;
mod crds;
mod debug;
#[cfg(test)]
mod documents;
mod failure;
mod form;
mod helm_controller;
mod image;
mod instead;
mod kubeconfig;
mod kubespray;
mod listing;
mod local;
mod man;
mod node;
mod progress;
mod ramdisk;
mod release;
mod restore;
mod secret;
mod serve;
mod simulate;
mod token;
mod version;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use common::ConfigFile;
use failure::{CommandFailure, complain, with_causes};

/// Bare-metal provisioning in one binary: powered-off servers in, running machines out.
#[derive(Parser)]
#[command(name = "slipway", version, max_term_width = 100)]
#[command(after_help = "\
A first machine, on a box with /etc/slipway/slipway.toml:
  slipway ramdisk build --kernel-package linux-image-6.1.0-*-amd64.deb
  slipway serve
  slipway kubeconfig --merge
  slipway apply -f web-1.yaml        (or kubectl apply -f web-1.yaml)
  slipway watch hosts                (or kubectl get bmh -w)

`slipway COMMAND --help` has examples. Manual pages: slipway man --out DIR. Completion: slipway completion bash.")]
struct Cli {
    #[command(subcommand)]
    command: SlipwayCommand,
}

#[derive(Subcommand)]
enum SlipwayCommand {
    /// Run the appliance: API, DHCP, TFTP, boot HTTP and the controllers, until SIGTERM or Ctrl-C
    Serve(ConfigFile),
    /// Print a kubeconfig for the administrator, or --merge it into yours: a new client certificate, CA and endpoint
    ///
    /// Run it on the appliance, as root or as the user who runs it. Each call makes a key and a certificate, which lasts for
    /// api.admin_certificate (30 days) and is kept nowhere else. It may be run before the appliance was ever started.
    Kubeconfig(kubeconfig::KubeconfigArgs),
    /// Check a configuration file: everything that `serve` would refuse or miss, one line for each fault
    CheckConfig(check_config::CheckConfigArgs),
    /// Ask a BMC (Redfish or IPMI) what it is and what it can do
    #[command(subcommand)]
    Bmc(bmc::BmcCommand),
    /// Build what machines boot: kernel, initrd and network boot programs
    #[command(subcommand)]
    Ramdisk(ramdisk::RamdiskCommand),
    /// Explain what a machine would boot from the network now, or what DHCP would answer it
    #[command(subcommand)]
    #[command(alias = "explain")]
    Debug(debug::DebugCommand),
    /// Run the agent as the first process of the ramdisk; not for use by hand
    #[command(hide = true)]
    Agent,
    /// Run the agent of an installed node, or say what it does; its unit starts it
    ///
    /// It works off the steps of the node's LCMMachine. Exit codes: 0 stopped or done, 1 failed, 2 wrong configuration, 75 the
    /// appliance is away (with --check).
    Node(node::NodeArgs),
    /// Import, list and remove operating system images
    #[command(subcommand)]
    Image(image::ImageCommand),
    /// Import, list, show and activate releases: what clusters are made of
    #[command(subcommand)]
    Release(release::ReleaseCommand),
    /// Make, list and revoke tokens for people and programs that use the API
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Back up objects, leases, keys and configuration into one encrypted file, while the appliance runs
    ///
    /// The backup holds everything as it was at one moment. It has no images: after a restore they are imported again. Only
    /// the administrator can make a backup, and whoever can read one can act as any user. The command asks for a
    /// passphrase unless a key or a passphrase file is given.
    Backup(Box<backup::BackupArgs>),
    /// Restore a backup into an empty data folder, or only --check it
    ///
    /// Kubeconfigs and tokens stay valid, because the CA is restored too. All hosts are paused, because the backup does not
    /// know what happened to their machines since: check them, then run `slipway host resume`. The appliance must not be
    /// running.
    Restore(restore::RestoreArgs),
    /// Run kubespray's playbooks on machines of this appliance, follow and end them
    #[command(subcommand)]
    Kubespray(kubespray::KubesprayCommand),
    /// Keep the Helm releases of a cluster that was made of a release, from inside it
    #[command(subcommand)]
    HelmController(helm_controller::HelmControllerCommand),
    #[command(flatten)]
    Client(client::ClientCommand),
    /// Print the CustomResourceDefinitions of Slipway's kinds, for a Kubernetes API server ([engine] kubeconfig)
    Crds(crds::CrdsArgs),
    /// Rehearse with a simulated rack: machines that boot, agents that work, BMCs that fail
    ///
    /// Without --kubeconfig it starts an appliance of its own on loopback, in a temporary folder, and stops it at the end.
    /// The exit code is 0 only when every host reached its state in time.
    Simulate(Box<simulate::SimulateArgs>),
    /// Print a completion script for a shell
    ///
    /// The shell then asks slipway itself: commands and options, and from the server types, names and namespaces. Without a server,
    /// or when it is slow, the latter are missing.
    Completion(completion::CompletionArgs),
    /// Write the manual pages
    Man(man::ManArgs),
    /// Print the version of this program
    Version(version::VersionArgs),
}

/// Runs the command that the process was started with.
pub fn run() -> ExitCode {
    completion::answer::<Cli>();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let words: Vec<String> = std::env::args().skip(1).collect();
            let Some(told) = instead::told(&error, &words) else { error.exit() };
            complain(told);
            return ExitCode::from(2);
        }
    };
    let done = match cli.command {
        SlipwayCommand::Serve(options) => serve::run(&options),
        SlipwayCommand::Kubeconfig(options) => kubeconfig::run(&options),
        SlipwayCommand::CheckConfig(options) => check_config::run(&options),
        SlipwayCommand::Bmc(command) => bmc::run(command),
        SlipwayCommand::Ramdisk(command) => ramdisk::run(command),
        SlipwayCommand::Debug(command) => debug::run(command),
        SlipwayCommand::Agent => crate::agent::run_as_init(),
        SlipwayCommand::Node(options) => return node::run(&options),
        SlipwayCommand::Image(command) => image::run(command),
        SlipwayCommand::Release(command) => release::run(command),
        SlipwayCommand::Token(command) => token::run(command),
        SlipwayCommand::Backup(options) => backup::run(*options),
        SlipwayCommand::Restore(options) => restore::run(&options),
        SlipwayCommand::Kubespray(command) => kubespray::run(command),
        SlipwayCommand::HelmController(command) => helm_controller::run(command),
        SlipwayCommand::Client(command) => client::run(command),
        SlipwayCommand::Crds(options) => crds::run(&options),
        SlipwayCommand::Simulate(options) => simulate::run(*options),
        SlipwayCommand::Completion(options) => completion::run(&options),
        SlipwayCommand::Man(options) => man::run(&options, Cli::command()),
        SlipwayCommand::Version(options) => version::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => match error.downcast_ref() {
            Some(CommandFailure::Reported) => ExitCode::FAILURE,
            Some(CommandFailure::Usage(message)) => {
                complain(message);
                ExitCode::from(2)
            }
            None => {
                complain(with_causes(&error));
                ExitCode::FAILURE
            }
        },
    }
}
