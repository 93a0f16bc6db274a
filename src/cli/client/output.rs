//! `-o`: how objects are printed.

use std::io::Write;
use std::str::FromStr;

use serde_json::{Value, json};

use super::tabs::AlignedRows;
use crate::jsonpath::{Path, Template};

/// How to print.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ClientOutput {
    /// The server's table; `wide` with every column.
    Table {
        wide: bool,
    },
    Json,
    Yaml,
    Name,
    JsonPath(Template),
    Columns(Vec<(String, Path)>),
    /// An inventory of hosts, see [`super::inventory`].
    Ansible(Language),
}

/// What an inventory is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    Ini,
    Yaml,
}

impl ClientOutput {
    /// Whether it is a form for objects that somebody wrote: no table, no inventory.
    pub(super) fn is_of_objects(&self) -> bool {
        matches!(self, Self::Json | Self::Yaml | Self::Name | Self::JsonPath(_))
    }
}

impl FromStr for ClientOutput {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (word, argument) = text.split_once('=').map_or((text, None), |(word, rest)| (word, Some(rest)));
        let file = |path: &str| std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
        let template = |text: &str| Template::parse(text).map(Self::JsonPath).map_err(|error| error.to_string());
        match (word, argument) {
            ("table", None) => Ok(Self::Table { wide: false }),
            ("wide", None) => Ok(Self::Table { wide: true }),
            ("json", None) => Ok(Self::Json),
            ("yaml", None) => Ok(Self::Yaml),
            ("name", None) => Ok(Self::Name),
            ("ansible", None) => Ok(Self::Ansible(Language::Ini)),
            ("ansible-yaml", None) => Ok(Self::Ansible(Language::Yaml)),
            ("jsonpath", Some(text)) => template(text),
            ("jsonpath-file", Some(path)) => template(file(path)?.trim_end()),
            ("custom-columns", Some(text)) => columns(text),
            ("custom-columns-file", Some(path)) => columns_of_file(&file(path)?),
            ("jsonpath" | "custom-columns" | "jsonpath-file" | "custom-columns-file", None) => {
                Err(format!("{word} needs what to print: {word}=…"))
            }
            _ => Err(
                "know wide, json, yaml, name, jsonpath=…, jsonpath-file=…, custom-columns=…, custom-columns-file=…, \
                      ansible, ansible-yaml"
                    .into(),
            ),
        }
    }
}

/// `NAME:.metadata.name,STATE:.status.provisioning.state`
fn columns(text: &str) -> Result<ClientOutput, String> {
    let column = |part: &str| -> Result<(String, Path), String> {
        let (name, path) = part.split_once(':').ok_or_else(|| format!("{part:?} is not HEADING:PATH"))?;
        let path = Path::parse(path).map_err(|error| error.to_string())?;
        if name.is_empty() { Err(format!("{part:?} has no heading")) } else { Ok((name.to_owned(), path)) }
    };
    text.split(',').map(column).collect::<Result<_, _>>().map(ClientOutput::Columns)
}

/// A line of headings and a line of paths.
fn columns_of_file(text: &str) -> Result<ClientOutput, String> {
    let mut lines = text.lines().map(str::split_whitespace);
    let (Some(names), Some(paths)) = (lines.next(), lines.next()) else {
        return Err("a file of custom columns has a line of headings and a line of paths".into());
    };
    let (names, paths): (Vec<&str>, Vec<&str>) = (names.collect(), paths.collect());
    if names.len() != paths.len() {
        return Err(format!("there are {} headings and {} paths", names.len(), paths.len()));
    }
    let pairs: Vec<String> = names.iter().zip(paths).map(|(name, path)| format!("{name}:{path}")).collect();
    columns(&pairs.join(","))
}

/// One object as JSON, as kubectl indents it.
pub(super) fn json(value: &Value) -> anyhow::Result<String> {
    let mut out = Vec::new();
    let format = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut writer = serde_json::Serializer::with_formatter(&mut out, format);
    serde::Serialize::serialize(value, &mut writer)?;
    Ok(String::from_utf8(out)? + "\n")
}

/// One object as YAML.
pub(super) fn yaml(value: &Value) -> anyhow::Result<String> {
    let text = serde_saphyr::to_string(value)?;
    Ok(if text.ends_with('\n') { text } else { text + "\n" })
}

/// `baremetalhost.metal3.io/web-1`
pub(super) fn name_of(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let group = text("/apiVersion").rsplit_once('/').map(|(group, _)| format!(".{group}")).unwrap_or_default();
    super::table::harmless(&format!("{}{group}/{}", text("/kind").to_lowercase(), text("/metadata/name")))
}

/// Prints objects as `-o` says; tables and inventories are the caller's.
#[derive(Debug)]
pub(super) struct ObjectPrinter {
    output: ClientOutput,
    no_headers: bool,
    show_managed_fields: bool,
    rows: AlignedRows,
    printed: bool,
}

impl ObjectPrinter {
    pub(super) fn new(output: ClientOutput, no_headers: bool, show_managed_fields: bool) -> Self {
        Self { output, no_headers, show_managed_fields, rows: AlignedRows::default(), printed: false }
    }

    /// Objects that were asked for by name and found: one stands alone, more are a list.
    pub(super) fn all(&mut self, mut objects: Vec<Value>, alone: bool, out: &mut dyn Write) -> anyhow::Result<()> {
        for object in &mut objects {
            self.strip(object);
        }
        match &self.output {
            ClientOutput::Json | ClientOutput::Yaml | ClientOutput::JsonPath(_) => {
                let whole = match objects.pop() {
                    Some(only) if alone && objects.is_empty() => only,
                    last => {
                        objects.extend(last);
                        json!({"apiVersion": "v1", "items": objects, "kind": "List", "metadata": {"resourceVersion": ""}})
                    }
                };
                out.write_all(self.whole(&whole)?.as_bytes())?;
            }
            ClientOutput::Name => {
                for object in &objects {
                    writeln!(out, "{}", name_of(object))?;
                }
            }
            ClientOutput::Columns(_) => {
                let text = self.columns(&objects);
                out.write_all(text.as_bytes())?;
            }
            ClientOutput::Table { .. } | ClientOutput::Ansible(_) => {}
        }
        Ok(())
    }

    /// One object of a watch.
    pub(super) fn next(&mut self, mut object: Value, event: Option<&str>, out: &mut dyn Write) -> anyhow::Result<()> {
        self.strip(&mut object);
        let whole = match event {
            Some(kind)
                if matches!(self.output, ClientOutput::Json | ClientOutput::Yaml | ClientOutput::JsonPath(_)) =>
            {
                json!({"type": kind, "object": object})
            }
            _ => object,
        };
        let text = match &self.output {
            ClientOutput::Name => format!("{}\n", name_of(&whole)),
            ClientOutput::Columns(_) => self.columns(&[whole]),
            ClientOutput::Yaml if self.printed => format!("---\n{}", self.whole(&whole)?),
            _ => self.whole(&whole)?,
        };
        self.printed = true;
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    }

    fn whole(&self, value: &Value) -> anyhow::Result<String> {
        match &self.output {
            ClientOutput::Yaml => yaml(value),
            ClientOutput::JsonPath(template) => Ok(template.render(value)),
            _ => json(value),
        }
    }

    fn columns(&mut self, objects: &[Value]) -> String {
        let ClientOutput::Columns(columns) = &self.output else { return String::new() };
        let mut rows = Vec::new();
        if !self.printed && !self.no_headers {
            rows.push(columns.iter().map(|(name, _)| name.clone()).collect());
        }
        self.printed = true;
        for object in objects {
            let cell = |path: &Path| {
                let found: Vec<String> = path.find(object).into_iter().map(go_text).collect();
                if found.is_empty() { "<none>".to_owned() } else { super::table::harmless(&found.join(",")) }
            };
            rows.push(columns.iter().map(|(_, path)| cell(path)).collect());
        }
        self.rows.lines(&rows)
    }

    fn strip(&self, object: &mut Value) {
        if self.show_managed_fields {
            return;
        }
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
    }
}

/// A value as Go prints it with `%v`, which is what kubectl does in columns and descriptions.
pub(super) fn go_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "<none>".into(),
        Value::Array(entries) => format!("[{}]", entries.iter().map(go_text).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let pairs: Vec<String> = map.iter().map(|(key, value)| format!("{key}:{}", go_text(value))).collect();
            format!("map[{}]", pairs.join(" "))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(output: &str, objects: &[Value], alone: bool) -> String {
        let mut out = Vec::new();
        let mut printer = ObjectPrinter::new(output.parse().unwrap(), false, false);
        printer.all(objects.to_vec(), alone, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn host(name: &str) -> Value {
        json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
            "metadata": {"name": name, "managedFields": [1]}, "spec": {"online": true, "tags": ["a", "b"]}})
    }

    #[test]
    fn every_form_prints_one_or_many() {
        let one = [host("a")];
        let two = [host("a"), host("b")];
        assert!(print("json", &one, true).starts_with("{\n    \"apiVersion\": \"metal3.io/v1alpha1\""));
        assert!(!print("json", &one, true).contains("managedFields"));
        assert_eq!(print("jsonpath={.kind}", &one, false), "List");
        assert_eq!(print("jsonpath={.items[*].metadata.name}", &two, false), "a b");
        assert_eq!(print("jsonpath={.metadata.name}", &one, true), "a");
        assert_eq!(print("name", &two, false), "baremetalhost.metal3.io/a\nbaremetalhost.metal3.io/b\n");
        assert_eq!(
            print("custom-columns=N:.metadata.name,ON:.spec.online,T:.spec.tags,X:.no", &two, false),
            "N     ON     T       X\na     true   [a b]   <none>\nb     true   [a b]   <none>\n"
        );
        assert_eq!(print("yaml", &one, true).lines().next(), Some("apiVersion: metal3.io/v1alpha1"));
        let read: Value = serde_saphyr::from_str(&print("yaml", &two, false)).unwrap();
        assert_eq!(read["items"][1]["spec"]["online"], true);
    }

    #[test]
    fn a_watch_heads_once_and_separates_documents() {
        let mut out = Vec::new();
        let mut printer = ObjectPrinter::new("custom-columns=N:.metadata.name".parse().unwrap(), false, false);
        printer.next(host("a"), None, &mut out).unwrap();
        printer.next(host("b"), None, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "N\na\nb\n");
        let mut out = Vec::new();
        let mut printer = ObjectPrinter::new(ClientOutput::Yaml, false, false);
        printer.next(host("a"), Some("ADDED"), &mut out).unwrap();
        printer.next(host("b"), Some("ADDED"), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("\n---\n").count(), 1, "{text}");
        assert!(text.contains("type: ADDED"), "{text}");
    }

    #[test]
    fn unknown_forms_are_named() {
        for text in ["xml", "jsonpath", "custom-columns=A", "custom-columns=:.a", "jsonpath={.a", "json=1"] {
            assert!(text.parse::<ClientOutput>().is_err(), "{text}");
        }
    }
}
