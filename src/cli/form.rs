//! `-o`: how a command shows what it found.

/// The form of programs, for commands that have no other beside that of people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum ProgramForm {
    Json,
}
