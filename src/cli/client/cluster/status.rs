//! `cluster status`: a cluster as a tree, or all clusters of a namespace, a line each.

use std::io::Write;

use jiff::Timestamp;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::ProgramForm;
use super::known::{KnownCluster, WATCH, next_change};
use super::{overview, tree};
use crate::cli::client::connect::ServerArgs;
use crate::cli::client::tabs::{AlignedRows, TableStyle};
use crate::cli::client::terminal::{Terminal, When};

#[derive(clap::Args)]
pub(in crate::cli) struct StatusArgs {
    /// Name of the cluster [default: a line for each cluster of the namespace]
    name: Option<String>,
    /// Draw it anew at each change
    #[arg(long, short)]
    watch: bool,
    /// Print the lines as JSON, each with the headings as its fields
    #[arg(long, short, value_enum, value_name = "FORM", conflicts_with = "watch")]
    output: Option<ProgramForm>,
    /// When states have colours
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    color: When,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) async fn status(options: StatusArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let (session, mut known) = match &options.name {
        Some(name) => KnownCluster::of(&options.server, name).await?,
        None => {
            let session = options.server.connect().await?;
            let mut known = KnownCluster::unread(&session.types().await?, "");
            known.again(&session).await?;
            (session, known)
        }
    };
    let terminal = Terminal::standard_output(options.color);
    let look = TableStyle {
        width: terminal.width,
        colored: if terminal.color { vec![1, 2] } else { Vec::new() },
        headed: true,
    };
    let mut shown = String::new();
    loop {
        let now = Timestamp::now();
        let rows = match &options.name {
            Some(_) => table(
                tree::HEADINGS,
                tree::lines(&known.cluster, &known.all, now).into_iter().map(tree::TreeLine::cells),
            ),
            None => table(overview::HEADINGS, overview::rows(&known.all, now)),
        };
        if options.output == Some(ProgramForm::Json) {
            return Ok(writeln!(out, "{}", serde_json::to_string_pretty(&fields(&rows))?)?);
        }
        let drawn = match (&options.name, rows.len()) {
            (None, 0 | 1) => format!(
                "no clusters in namespace {}: `slipway cluster create --help` says how one is made\n",
                session.namespace
            ),
            _ => AlignedRows::default().shown(&rows, &look),
        };
        if drawn != shown {
            if options.watch && !shown.is_empty() {
                // On a terminal in the place of the last one.
                write!(out, "{}", if terminal.width.is_some() { "\u{1b}[H\u{1b}[2J" } else { "\n" })?;
            }
            write!(out, "{drawn}")?;
            out.flush()?;
            shown = drawn;
        }
        if !options.watch {
            return Ok(());
        }
        next_change(&session, &known, Instant::now() + WATCH).await?;
        let is_there = known.again(&session).await?;
        if let Some(name) = options.name.as_ref().filter(|_| !is_there) {
            writeln!(out, "cluster {name} is gone")?;
            return Ok(());
        }
    }
}

/// Each line with its headings in small letters as fields. What draws the tree becomes the depth.
fn fields(rows: &[Vec<String>]) -> Vec<Map<String, Value>> {
    let Some((headings, lines)) = rows.split_first() else { return Vec::new() };
    let one = |line: &Vec<String>| {
        let mut fields = Map::new();
        for (heading, cell) in headings.iter().zip(line) {
            let mut cell = cell.as_str();
            if heading == "NAME" {
                let name = cell.trim_start_matches([' ', '│', '├', '└', '─']);
                let drawn = cell.chars().count() - name.chars().count();
                fields.insert("depth".into(), (drawn / 2).into());
                cell = name;
            }
            fields.insert(heading.to_lowercase(), cell.into());
        }
        fields
    };
    lines.iter().map(one).collect()
}

/// Headings, and the lines below them.
fn table<const N: usize>(headings: [&str; N], lines: impl IntoIterator<Item = Vec<String>>) -> Vec<Vec<String>> {
    std::iter::once(headings.map(str::to_owned).to_vec()).chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_tree_for_programs_has_depths() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let rows = [
            row(["NAME", "READY"]),
            row(["Cluster/a", "True"]),
            row(["├─Machine/b", ""]),
            row(["│ └─Host/c", "False"]),
        ];
        let wanted = json!([
            { "name": "Cluster/a", "depth": 0, "ready": "True" },
            { "name": "Machine/b", "depth": 1, "ready": "" },
            { "name": "Host/c", "depth": 2, "ready": "False" },
        ]);
        assert_eq!(serde_json::to_value(fields(&rows)).unwrap(), wanted);
        assert!(fields(&[]).is_empty());
    }
}
