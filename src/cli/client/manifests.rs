//! Manifests: objects in files, folders, URLs and on standard input, as YAML with several documents or JSON.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;

/// Where objects are.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct ManifestSource {
    /// File, folder, http(s) URL, or - for standard input; may be given more than once
    #[arg(long = "filename", short = 'f', value_name = "FILE|DIR|URL|-")]
    pub filenames: Vec<String>,
    /// Also read folders inside folders
    #[arg(long, short = 'R')]
    recursive: bool,
}

/// File names in a folder that hold objects.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];
/// Largest document that is fetched or read, in bytes.
const SIZE_MAX: u64 = 64 << 20;
/// How long a URL may take.
const FETCH_DEADLINE: Duration = Duration::from_secs(60);

/// An object and where it was written, for messages.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ManifestObject {
    pub origin: String,
    pub object: Value,
}

impl ManifestObject {
    pub(super) fn text(&self, pointer: &str) -> &str {
        self.object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }
}

impl ManifestSource {
    /// Everything that is named, in order; in folders by file name.
    pub(super) async fn read(&self) -> anyhow::Result<Vec<ManifestObject>> {
        let mut all = Vec::new();
        for name in &self.filenames {
            if name == "-" {
                let mut text = String::new();
                std::io::stdin().take(SIZE_MAX).read_to_string(&mut text).context("standard input")?;
                all.extend(parse("standard input", &text)?);
            } else if name.starts_with("http://") || name.starts_with("https://") {
                all.extend(parse(name, &fetch(name).await.with_context(|| name.clone())?)?);
            } else {
                for file in files(Path::new(name), self.recursive)? {
                    let shown = file.display().to_string();
                    let text = std::fs::read_to_string(&file).with_context(|| shown.clone())?;
                    all.extend(parse(&shown, &text)?);
                }
            }
        }
        if all.is_empty() {
            bail!("there is no object in {}", self.filenames.join(", "));
        }
        Ok(all)
    }
}

fn files(path: &Path, recursive: bool) -> anyhow::Result<Vec<PathBuf>> {
    let shown = || path.display().to_string();
    if !std::fs::metadata(path).with_context(shown)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>).with_context(shown)?;
    let mut entries: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    entries.sort();
    let mut found = Vec::new();
    for entry in entries {
        if entry.is_dir() {
            if recursive {
                found.extend(files(&entry, true)?);
            }
        } else if entry.extension().is_some_and(|ending| ENDINGS.iter().any(|known| ending == *known)) {
            found.push(entry);
        }
    }
    Ok(found)
}

async fn fetch(url: &str) -> anyhow::Result<String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let tls = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let client = reqwest::Client::builder().tls_backend_preconfigured(tls).timeout(FETCH_DEADLINE).build()?;
    let mut answer = client.get(url).send().await?.error_for_status()?;
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        body.extend_from_slice(&chunk);
        if body.len() as u64 > SIZE_MAX {
            bail!("more than {SIZE_MAX} bytes");
        }
    }
    String::from_utf8(body).context("not UTF-8 text")
}

/// Reads the documents of a text; lists are taken apart.
fn parse(origin: &str, text: &str) -> anyhow::Result<Vec<ManifestObject>> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(|error| anyhow::anyhow!("{origin}: {error}"))?;
    let mut all = Vec::new();
    for (index, document) in documents.into_iter().enumerate() {
        let origin = if index == 0 { origin.to_owned() } else { format!("{origin}, document {}", index + 1) };
        let is_list =
            document["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) && document["items"].is_array();
        let objects = match document {
            Value::Object(mut map) if is_list => match map.remove("items") {
                Some(Value::Array(items)) => items,
                _ => Vec::new(),
            },
            other => vec![other],
        };
        for object in objects {
            let manifest = ManifestObject { origin: origin.clone(), object };
            for (pointer, field) in
                [("/apiVersion", "apiVersion"), ("/kind", "kind"), ("/metadata/name", "metadata.name")]
            {
                let generated = field == "metadata.name" && !manifest.text("/metadata/generateName").is_empty();
                if generated {
                    bail!("{origin}: metadata.generateName cannot be applied: the object needs a name");
                }
                if manifest.text(pointer).is_empty() {
                    bail!("{origin}: {field} is missing");
                }
            }
            all.push(manifest);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_lists_and_faults() {
        let names = |text: &str| -> Vec<String> {
            parse("f", text).unwrap().iter().map(|m| format!("{}:{}", m.origin, m.text("/metadata/name"))).collect()
        };
        let one = |name: &str| format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\n");
        assert_eq!(names(&one("a")), ["f:a"]);
        assert_eq!(names(&format!("---\n{}---\n{}---\n", one("a"), one("b"))), ["f:a", "f, document 2:b"]);
        let list = r#"{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}]}"#;
        assert_eq!(names(list), ["f:x"]);
        for (text, wanted) in [
            ("kind: A\nmetadata: {name: a}\n", "f: apiVersion is missing"),
            ("apiVersion: v1\nmetadata: {name: a}\n", "f: kind is missing"),
            ("apiVersion: v1\nkind: A\n", "f: metadata.name is missing"),
            ("apiVersion: v1\nkind: A\nmetadata: {generateName: a-}\n", "generateName"),
            ("a: [", "f: "),
            ("a: 1\na: 2\n", "f: "),
            ("just words", "apiVersion is missing"),
        ] {
            let error = parse("f", text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn folders_are_read_in_order_and_deeper_when_asked() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        for file in ["b.yaml", "a.json", "notes.txt", "sub/c.yml"] {
            std::fs::write(folder.path().join(file), "").unwrap();
        }
        let names = |recursive| -> Vec<String> {
            let found = files(folder.path(), recursive).unwrap();
            found.iter().map(|file| file.strip_prefix(folder.path()).unwrap().display().to_string()).collect()
        };
        assert_eq!(names(false), ["a.json", "b.yaml"]);
        assert_eq!(names(true), ["a.json", "b.yaml", "sub/c.yml"]);
    }
}
