//! `slipway image list`: what is in the library, how large, in which state, and who uses it.

use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{connect, hosts, users};
use crate::api::metal3::BareMetalHost;
use crate::api::slipway::{Image, ImagePhase};
use crate::cli::client::{AlignedRows, ServerArgs, TableStyle, Terminal, When, fitting};
use crate::cli::common::print_text;
use crate::image::scheme::uploaded_file;
use crate::outbound::masked;

/// Hosts named in the table, and with `-o wide`.
const USERS: usize = 3;
const USERS_WIDE: usize = 100;

#[derive(clap::Args)]
pub(in crate::cli) struct ImageListArgs {
    /// Output format; json and yaml have the Image objects, each with its hosts under "usedBy"
    #[arg(long, short, value_enum, default_value = "table")]
    output: ImageListOutput,
    /// Whether states have colours
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", hide_default_value = true)]
    color: When,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ImageListOutput {
    Table,
    /// Also SHA-256, source and all hosts
    Wide,
    Json,
    Yaml,
}

pub(super) async fn run(options: ImageListArgs) -> anyhow::Result<()> {
    let client = connect(&options.server).await?;
    let images = Api::<Image>::all(client.clone()).list(&ListParams::default()).await?.items;
    let hosts = hosts(&client).await?;
    let text = match options.output {
        ImageListOutput::Table => table(&images, hosts.as_deref(), false, Terminal::standard_output(options.color)),
        ImageListOutput::Wide => {
            let terminal = Terminal { width: None, ..Terminal::standard_output(options.color) };
            table(&images, hosts.as_deref(), true, terminal)
        }
        ImageListOutput::Json => serde_json::to_string_pretty(&list(&images, hosts.as_deref())?)? + "\n",
        ImageListOutput::Yaml => serde_saphyr::to_string(&list(&images, hosts.as_deref())?)?,
    };
    print_text(&text)
}

/// For programs.
fn list(images: &[Image], hosts: Option<&[BareMetalHost]>) -> anyhow::Result<Value> {
    let mut items = Vec::new();
    for image in images {
        let mut item = serde_json::to_value(image)?;
        if let Some(hosts) = hosts {
            item["usedBy"] = json!(users::of(image, hosts));
        }
        items.push(item);
    }
    Ok(json!({ "apiVersion": "v1", "kind": "List", "items": items }))
}

fn table(images: &[Image], hosts: Option<&[BareMetalHost]>, wide: bool, terminal: Terminal) -> String {
    let mut headings = vec!["NAME", "STATE", "SIZE", "STORED", "FORMAT", "USED BY"];
    headings.extend(if wide { &["SHA256", "SOURCE", "MESSAGE"][..] } else { &["MESSAGE"] });
    let mut rows = vec![headings.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for image in images {
        let status = image.status.clone().unwrap_or_default();
        let bytes = |bytes: Option<i64>| bytes.map(size).unwrap_or_default();
        let state = match (status.phase, status.percent) {
            (ImagePhase::Importing, Some(percent)) => format!("Importing {percent}%"),
            (phase, _) => format!("{phase:?}"),
        };
        let mut row = vec![
            image.name_any(),
            state,
            bytes(status.virtual_size),
            bytes(status.stored_size),
            status.format.or(image.spec.format.clone()).unwrap_or_default(),
            match hosts {
                Some(hosts) => users::some(&users::of(image, hosts), if wide { USERS_WIDE } else { USERS }),
                None => status.hosts.map(|hosts| format!("{hosts} hosts")).unwrap_or_default(),
            },
        ];
        if wide {
            row.extend([status.sha256.unwrap_or_default(), source(&image.spec.url)]);
        }
        row.push(status.message.unwrap_or_default());
        rows.push(row);
    }
    if images.is_empty() {
        return "no images\n".into();
    }
    let rows = fitting(rows, terminal.width);
    let colored = if terminal.color { vec![1] } else { Vec::new() };
    let look = TableStyle { width: terminal.width, colored, headed: true };
    AlignedRows::default().shown(&rows, &look).lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Where an image came from, without what may be a secret.
pub(in crate::cli) fn source(url: &str) -> String {
    if uploaded_file(url).is_some() { url.to_owned() } else { masked(url) }
}

/// `512 B`, `41 MB`, `3.2 GB`: in powers of ten, with one digit below ten.
pub(in crate::cli) fn size(bytes: i64) -> String {
    let (tenths, unit) = match bytes {
        ..1_000 => return format!("{bytes} B"),
        1_000..1_000_000 => (bytes / 100, "kB"),
        1_000_000..1_000_000_000 => (bytes / 100_000, "MB"),
        1_000_000_000..1_000_000_000_000 => (bytes / 100_000_000, "GB"),
        _ => (bytes / 100_000_000_000, "TB"),
    };
    if tenths < 100 { format!("{}.{} {unit}", tenths / 10, tenths % 10) } else { format!("{} {unit}", tenths / 10) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_a_line() {
        let image = |name: &str, status: Value| {
            let image =
                json!({ "metadata": { "name": name }, "spec": { "url": "http://u:p@x/i?s=1" }, "status": status });
            serde_json::from_value::<Image>(image).unwrap()
        };
        let images = [
            image(
                "debian",
                json!({ "phase": "Ready", "virtualSize": 3_221_225_472_i64, "storedSize": 412_000_000,
                "format": "qcow2", "sha256": "abc", "digest": "d" }),
            ),
            image("half", json!({ "phase": "Importing", "percent": 40 })),
            image("bad", json!({ "phase": "Failed", "message": "404\u{1b}[2J" })),
        ];
        let host = json!({ "metadata": { "namespace": "default", "name": "web-1" },
            "spec": { "online": true, "image": { "url": "slipway://debian" } } });
        let hosts = [serde_json::from_value::<BareMetalHost>(host).unwrap()];
        insta::assert_snapshot!(table(&images, Some(&hosts), false, Terminal::default()), @r"
        NAME     STATE           SIZE     STORED   FORMAT   USED BY         MESSAGE
        debian   Ready           3.2 GB   412 MB   qcow2    default/web-1
        half     Importing 40%
        bad      Failed                                                     404^[[2J
        ");
        let wide = table(&images, None, true, Terminal::default());
        assert!(wide.contains("abc") && wide.contains("http://x/i") && !wide.contains("u:p"), "{wide}");
        assert_eq!(table(&[], None, false, Terminal::default()), "no images\n");
        let narrow = table(&images, Some(&hosts), false, Terminal { color: true, width: Some(40) });
        assert!(narrow.starts_with("NAME     STATE           MESSAGE\ndebian   \u{1b}[32mReady"), "{narrow}");
        assert_eq!(source("upload:os.raw"), "upload:os.raw");
        assert_eq!(source("upload:p@ss?"), masked("upload:p@ss?"));
        let programs = list(&images, Some(&hosts)).unwrap();
        assert_eq!(programs["items"][0]["usedBy"], json!(["default/web-1"]));
    }
}
