//! How a command fails, where that decides more than the message.

/// A failure that is not simply printed with exit code 1.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The command line makes no sense: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// What failed was said already, item by item.
    #[error("some of it failed")]
    Reported,
}

/// The command line makes no sense.
pub(super) fn usage(message: impl Into<String>) -> anyhow::Error {
    Failure::Usage(message.into()).into()
}
