//! `slipway version`.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::listing::ListingOutput;
use crate::origin::{self, COMMIT, VERSION};

#[derive(clap::Args)]
pub(super) struct VersionArgs {
    /// Output format
    #[arg(long, short, value_enum, default_value = "table")]
    output: ListingOutput,
}

pub(super) fn run(options: &VersionArgs) -> anyhow::Result<()> {
    let all = about(COMMIT, origin::time(), origin::repository());
    options.output.print(&all, || print!("{}", text(&all)))
}

/// What is known of this program; nothing stands for what is not known.
fn about(commit: Option<&str>, time: Option<Timestamp>, repository: Option<&str>) -> Value {
    let mut all = json!({ "version": VERSION });
    let known = [
        ("commit", commit.map(str::to_owned)),
        ("date", time.map(|time| time.to_string())),
        ("repository", repository.map(str::to_owned)),
    ];
    for (name, value) in known {
        if let Some(value) = value {
            all[name] = value.into();
        }
    }
    all
}

/// For people: the version, then a line for each thing that is known.
fn text(all: &Value) -> String {
    let field = |name: &str| all[name].as_str().unwrap_or_default();
    let line = |name: &&str| format!("{name}: {}\n", field(name));
    let more: String =
        ["commit", "date", "repository"].iter().filter(|name| !field(name).is_empty()).map(line).collect();
    format!("slipway {}\n{more}", field("version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_told() {
        let nothing = about(None, None, None);
        assert_eq!((text(&nothing), &nothing), (format!("slipway {VERSION}\n"), &json!({ "version": VERSION })));
        let time = Timestamp::from_second(1_780_000_000).ok();
        let all = about(Some("0123abc"), time, Some("https://example.org/x"));
        let wanted = "commit: 0123abc\ndate: 2026-05-28T20:26:40Z\nrepository: https://example.org/x\n";
        assert_eq!(text(&all), format!("slipway {VERSION}\n{wanted}"));
    }
}
