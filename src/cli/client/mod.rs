//! The built-in client: `apply`, `edit`, `patch`, `get`, `describe`, `delete`, `wait`, `watch`, for a box without kubectl.
//!
//! It speaks the same API as kubectl, with the same tables and the same short names, to the appliance on this box or
//! to any server of a kubeconfig. What is decided and printed is in pure functions; [`request`] does the I/O.

mod apply;
mod cluster;
mod columns;
mod completion;
mod connect;
mod delete;
mod describe;
mod edit;
mod errors;
mod get;
mod hardware;
mod held;
mod host;
mod hosts;
mod inventory;
mod list_types;
mod manifests;
mod migration;
mod missing;
mod names;
mod output;
mod own_table;
mod patch;
pub(super) mod relative;
mod request;
mod resume;
mod selected;
mod suggest;
mod summary;
mod table;
mod tabs;
mod terminal;
mod types;
mod unknown_fields;
mod until;
mod wait;

use std::io::Write;

pub(in crate::cli) use completion::with_completions;
pub(in crate::cli) use connect::{ClientSession, ServerArgs};
pub(in crate::cli) use errors::refusal;
pub(in crate::cli) use table::{fitting, harmless};
pub(in crate::cli) use tabs::{AlignedRows, TableStyle};
pub(in crate::cli) use terminal::{Terminal, When};

use super::local;

#[derive(clap::Subcommand)]
pub(super) enum ClientCommand {
    /// Create or update objects from files
    ///
    /// Uses server-side apply: fields that the files do not name stay as they are; fields that an earlier apply named and
    /// this one does not are removed.
    Apply(apply::ApplyArgs),
    /// Change objects in an editor
    ///
    /// Opens each object as YAML in the editor that $VISUAL or $EDITOR names. What was changed is written when the editor is
    /// closed, and nothing else: fields that somebody changed meanwhile stay as they are. What the server refuses is shown in
    /// the editor again, with the reason.
    Edit(edit::EditArgs),
    /// Change objects by a patch
    Patch(patch::PatchArgs),
    /// Print objects as a table, or in the format of -o
    Get(get::GetArgs),
    /// List the types of the server, with the words for each
    Types(list_types::ListTypesArgs),
    /// Print everything about objects, with their events
    Describe(describe::DescribeArgs),
    /// Delete objects, and wait until they are gone
    Delete(delete::DeleteArgs),
    /// Wait until objects are in a state or have a condition
    Wait(wait::WaitArgs),
    /// Print objects, then their changes: the same as get --watch
    Watch(get::GetArgs),
    /// Power, provision, release, detach, label, accept or move hosts; print the log of a ramdisk
    #[command(subcommand)]
    Host(host::HostCommand),
    /// Create, show, scale, upgrade and delete clusters
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
}

pub(super) fn run(command: ClientCommand) -> anyhow::Result<()> {
    local::block_on(async {
        let mut out = std::io::stdout().lock();
        let done = match command {
            ClientCommand::Apply(options) => apply::run(options, &mut out).await,
            ClientCommand::Edit(options) => edit::run(options, &mut out).await,
            ClientCommand::Patch(options) => patch::run(options, &mut out).await,
            ClientCommand::Get(options) => get::run(options, false, &mut out).await,
            ClientCommand::Watch(options) => get::run(options, true, &mut out).await,
            ClientCommand::Types(options) => list_types::run(options, &mut out).await,
            ClientCommand::Describe(options) => describe::run(options, &mut out).await,
            ClientCommand::Delete(options) => delete::run(options, &mut out).await,
            ClientCommand::Wait(options) => wait::run(options, &mut out).await,
            ClientCommand::Host(command) => host::run(command, &mut out).await,
            ClientCommand::Cluster(command) => cluster::run(command, &mut out).await,
        };
        let done = done.and_then(|()| Ok(out.flush()?));
        // Whoever reads the output may have had enough.
        match done {
            Err(error) if is_broken_pipe(&error) => Ok(()),
            done => done,
        }
    })
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
