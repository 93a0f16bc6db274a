//! What the agent does to the world, for whoever tries what a crash leaves between two of these.

/// Something that was just done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEffect {
    /// A spec is on the disk.
    SpecKept,
    /// Deployment data are in memory, as files.
    DeploymentLaid,
    /// A step is noted as begun.
    BeginNoted,
    /// The program of a step runs, or a download has begun.
    Begun,
    /// A download is whole and checked, beside its place.
    Fetched,
    /// It is in its place.
    Placed,
    /// The program of a step has ended.
    Ended,
    /// What it left behind has ended.
    LeftoversEnded,
    /// Deployment data are removed.
    DeploymentRemoved,
    /// The end of a step is noted.
    EndNoted,
    /// The appliance has the status.
    Told,
    /// Keys are written.
    KeysWritten,
    /// A token is written.
    TokenWritten,
    /// A new program has its place.
    ProgramPlaced,
    /// A reboot is noted.
    RebootNoted,
}
