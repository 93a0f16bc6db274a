//! `types`: the resource types of the server, with the words for them.

use crate::cli::form::ProgramForm;
use std::io::Write;

use serde_json::json;

use super::connect::ServerArgs;
use super::tabs::{AlignedRows, TableStyle};
use super::terminal::{Terminal, When};
use super::types::ServedType;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  slipway types
  slipway types metal3             types whose name, group or kind has this in it
  slipway types -o json")]
pub(in crate::cli) struct ListTypesArgs {
    /// Only types whose name, short name, group or kind has this in it
    #[arg(value_name = "WORD")]
    word: Option<String>,
    /// Print them as JSON
    #[arg(long, short, value_enum, value_name = "FORM")]
    output: Option<ProgramForm>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) async fn run(options: ListTypesArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let session = options.server.connect().await?;
    let types = session.types().await?;
    let wanted = options.word.as_deref().unwrap_or_default().to_lowercase();
    let found: Vec<&ServedType> = types.listed().filter(|of| has(of, &wanted)).collect();
    if options.output == Some(ProgramForm::Json) {
        let all: Vec<_> = found
            .iter()
            .map(|of| {
                json!({ "name": of.plural, "shortNames": of.short_names, "apiVersion": of.api_version(), "kind": of.kind,
                    "namespaced": of.namespaced })
            })
            .collect();
        return Ok(writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?);
    }
    let look =
        TableStyle { width: Terminal::standard_output(When::Never).width, headed: true, ..TableStyle::default() };
    Ok(out.write_all(AlignedRows::default().shown(&rows(&found), &look).as_bytes())?)
}

fn has(of: &ServedType, word: &str) -> bool {
    let words = [&of.plural, &of.group, &of.kind].into_iter().chain(&of.short_names);
    words.map(|known| known.to_lowercase()).any(|known| known.contains(word)) || of.words().any(|alias| alias == word)
}

fn rows(types: &[&ServedType]) -> Vec<Vec<String>> {
    let headings = ["NAME", "ALSO", "KIND", "NAMESPACED", "APIVERSION"].map(str::to_owned).to_vec();
    let one = |of: &&ServedType| {
        let mut also: Vec<&str> = of.words().collect();
        also.extend(of.short_names.iter().map(String::as_str));
        vec![of.plural.clone(), also.join(","), of.kind.clone(), of.namespaced.to_string(), of.api_version()]
    };
    std::iter::once(headings).chain(types.iter().map(one)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::types::tests::types;
    use super::*;

    #[test]
    fn types_are_listed_with_all_their_words() {
        let types = types();
        let shown = |word: &str| {
            let found: Vec<&ServedType> = types.listed().filter(|of| has(of, word)).collect();
            rows(&found)[1..].iter().map(|row| row.join("|")).collect::<Vec<_>>()
        };
        assert_eq!(shown("bmh"), ["baremetalhosts|host,hosts,bmh,bmhost|BareMetalHost|true|metal3.io/v1alpha1"]);
        assert_eq!(shown("host"), shown("bmh"));
        assert_eq!(shown("clu"), ["clusters||Cluster|true|cluster.x-k8s.io/v1beta2"]);
        assert_eq!(shown("").len(), 5);
    }
}
