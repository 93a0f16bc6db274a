//! `slipway release`: what clusters are made of, from any desk.

mod activate;
mod difference;
mod import;
mod known;
mod list;
mod show;
mod source;

use super::local;

#[derive(clap::Subcommand)]
pub(super) enum ReleaseCommand {
    /// List releases, the clusters that use them, and what may follow each
    ///
    /// KaaSReleases say which ClusterReleases are supported, and which may follow which; one of them is active. ClusterReleases say
    /// what a cluster is made of.
    #[command(
        visible_alias = "ls",
        after_help = "\
Examples:
  slipway release list
  slipway release list -o json"
    )]
    List(list::ListReleasesArgs),
    /// Show a release: steps by machine type and phase, charts, distributions, upgrade paths
    #[command(after_help = "\
Examples:
  slipway release show kubernetes-1-34-4
  slipway release show kubernetes-1-34-4 --diff kubernetes-1-34-3    what is other than in that one
  slipway release show slipway-1-0-0                                 a KaaSRelease
  slipway release show kubernetes-1-34-4 -o yaml                     the object itself")]
    Show(show::ShowReleaseArgs),
    /// Import the releases of a channel: a folder, a bundle of one, or a URL
    ///
    /// A channel has index.yaml, which names every release with its SHA-256. All files are read and checked first; when one is wrong,
    /// or is there already as something else, nothing is imported. Releases that are there as they are in the channel are left. Nothing
    /// becomes active by an import. The files are fetched by this command, with your rights, and written through the API.
    #[command(after_help = "\
Examples:
  slipway release import ./releases --dry-run              say what would be done
  slipway release import ./releases
  slipway release import releases.tar                      a bundle: a tar file of such a folder
  slipway release import https://server/channel/           whose index.yaml is there")]
    Import(import::ImportReleasesArgs),
    /// Make a KaaSRelease the active one, in place of the one that is
    ///
    /// Refused as long as a cluster runs a release that it does not support. When the command is ended in between, no KaaSRelease is
    /// active: no cluster changes meanwhile, and the same command goes on.
    #[command(after_help = "\
Examples:
  slipway release activate slipway-1-0-0 --dry-run
  slipway release activate slipway-1-0-0
  slipway release activate slipway-1-0-0 --force           also when clusters run what it does not support")]
    Activate(activate::ActivateReleaseArgs),
}

pub(super) fn run(command: ReleaseCommand) -> anyhow::Result<()> {
    local::block_on(async {
        match command {
            ReleaseCommand::List(options) => list::run(options).await,
            ReleaseCommand::Show(options) => show::run(options).await,
            ReleaseCommand::Import(options) => import::run(options).await,
            ReleaseCommand::Activate(options) => activate::run(options).await,
        }
    })
}
