//! Output formats of commands that list: a table, JSON or YAML.

use serde::Serialize;

/// How a command prints what it lists.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(super) enum ListingOutput {
    Table,
    Json,
    Yaml,
}

impl ListingOutput {
    /// Prints the whole list for programs, or has the table printed for people.
    pub(super) fn print(self, list: &impl Serialize, table: impl FnOnce()) -> anyhow::Result<()> {
        match self {
            Self::Json => println!("{}", serde_json::to_string_pretty(list)?),
            Self::Yaml => print!("{}", serde_saphyr::to_string(list)?),
            Self::Table => table(),
        }
        Ok(())
    }
}
