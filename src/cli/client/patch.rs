//! `patch`: changes objects by a patch that is written by hand.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use serde_json::Value;

use super::connect::{ClientSession, ServerArgs};
use super::errors::ApiRequestError;
use super::output::{self, ClientOutput};
use super::types::ServedType;
use super::{missing, names, request};
use crate::cli::common::read_input;
use crate::cli::failure::{CommandFailure, complain, usage};

/// Largest patch, in bytes: more than the largest object that a server takes.
const SIZE_MAX: u64 = 4 << 20;

#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  slipway patch host web-1 -p '{\"spec\": {\"online\": false}}'
  slipway patch host web-1 -p 'spec: {online: false}'                  the same as YAML
  slipway patch host/web-1 host/web-2 --patch-file patch.yaml
  slipway patch host web-1 --type json -p '[{\"op\": \"remove\", \"path\": \"/spec/image\"}]'
  slipway patch host web-1 -p 'spec: {online: false}' --dry-run -o yaml
  slipway patch secret web-1-bmc --patch-file -                        from standard input")]
pub(in crate::cli) struct PatchArgs {
    /// TYPE NAME… or TYPE/NAME…
    #[arg(required = true, value_name = "TYPE[/NAME]")]
    what: Vec<String>,
    /// The patch, as JSON or YAML
    #[arg(long, short, value_name = "PATCH", required_unless_present = "patch_file")]
    patch: Option<String>,
    /// A file with the patch, or - for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "patch")]
    patch_file: Option<PathBuf>,
    /// How the patch is written
    #[arg(long = "type", value_enum, value_name = "TYPE", default_value = "merge")]
    kind: PatchSyntax,
    /// Change this part of the object, which is written on its own
    #[arg(long, value_enum, value_name = "PART")]
    subresource: Option<Subresource>,
    /// Only check; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Name of the field manager
    #[arg(long, value_name = "NAME", default_value = "slipway-patch")]
    field_manager: String,
    /// Output format: json, yaml, name, jsonpath=… [default: what was done]
    #[arg(long, short, value_name = "FORM")]
    output: Option<ClientOutput>,
    #[command(flatten)]
    server: ServerArgs,
}

/// How a patch is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PatchSyntax {
    /// The fields that change (RFC 7386): null removes one, a list replaces the whole list
    Merge,
    /// A list of operations (RFC 6902)
    Json,
    /// As merge, but lists are merged by their keys; only of Kubernetes' own kinds, such as Secret
    Strategic,
}

impl PatchSyntax {
    fn content_type(self) -> &'static str {
        match self {
            Self::Merge => request::MERGE,
            Self::Json => "application/json-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Subresource {
    Status,
    Scale,
}

impl Subresource {
    fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Scale => "scale",
        }
    }
}

pub(super) async fn run(options: PatchArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let selections = names::parse(&options.what).map_err(usage)?;
    if selections.iter().any(|selection| selection.names.is_empty()) {
        return Err(usage("name the objects to patch: TYPE NAME, or TYPE/NAME"));
    }
    if options.output.as_ref().is_some_and(|output| !output.is_of_objects()) {
        return Err(usage("-o of patch is json, yaml, name or jsonpath"));
    }
    let text = match (&options.patch, &options.patch_file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => String::from_utf8(read_input(file, SIZE_MAX)?)
            .with_context(|| format!("{} is no text in UTF-8", file.display()))?,
        (None, None) => return Err(usage("give the patch: -p, or --patch-file")),
    };
    let patch = read(&text, options.kind).map_err(usage)?;
    let session = options.server.connect().await?;
    let types = session.types().await?;
    let mut wanted: Vec<(&ServedType, &str)> = Vec::new();
    for selection in &selections {
        for of in types.find(&selection.word)? {
            wanted.extend(selection.names.iter().map(|name| (of, name.as_str())));
        }
    }
    let alone = wanted.len() == 1;
    let (mut patched, mut failed) = (Vec::new(), false);
    for (of, name) in wanted {
        match one(&session, &options, &patch, of, name).await {
            Ok((changed, object)) => {
                if options.output.is_none() {
                    let what = if changed { "patched" } else { "not changed" };
                    let dry = if options.dry_run { " (server dry run)" } else { "" };
                    writeln!(out, "{} {what}{dry}", output::name_of(&object))?;
                }
                patched.push(object);
            }
            Err(error) if alone || matches!(error.downcast_ref(), Some(ApiRequestError::Unreachable(_))) => {
                return Err(error);
            }
            Err(error) => {
                complain(format_args!("{error:#}"));
                failed = true;
            }
        }
    }
    if let Some(form) = options.output.filter(|_| !patched.is_empty()) {
        output::ObjectPrinter::new(form, false, false).all(patched, alone, out)?;
    }
    if failed { Err(CommandFailure::Reported.into()) } else { Ok(()) }
}

/// Patches one object. Whether that changed it, and what it is now.
async fn one(
    session: &ClientSession,
    options: &PatchArgs,
    patch: &Value,
    of: &ServedType,
    name: &str,
) -> anyhow::Result<(bool, Value)> {
    let mut path = of.path(Some(&session.namespace), Some(name));
    let mut before = match session.get(&path, &[], request::JSON).await {
        Err(error) if error.is_not_found() => bail!("{}", missing::explain(session, of, name).await),
        before => before?,
    };
    if let Some(part) = options.subresource.map(Subresource::name) {
        if !of.has_subresource(part) {
            bail!("{} have no {part} that is written on its own", of.plural);
        }
        path += &format!("/{part}");
        before = session.get(&path, &[], request::JSON).await?;
    }
    let query = [
        ("fieldManager", options.field_manager.as_str()),
        ("fieldValidation", "Strict"),
        ("dryRun", if options.dry_run { "All" } else { "" }),
    ];
    let mut after = match session.patch(&path, &query, options.kind.content_type(), patch).await {
        Err(error) if error.is_unsupported_media() && options.kind == PatchSyntax::Strategic => {
            bail!("{} take no strategic patch: use --type merge or --type json", of.plural)
        }
        after => after.map_err(|error| error.of_patch(of, name))?,
    };
    if options.subresource != Some(Subresource::Scale) {
        after["apiVersion"] = of.api_version().into();
        after["kind"] = of.kind.clone().into();
    }
    Ok((is_changed(&before, &after), after))
}

/// Whether an object is other than it was; who manages which field does not count.
fn is_changed(before: &Value, after: &Value) -> bool {
    let content = |object: &Value| {
        let mut object = object.clone();
        for pointer in ["managedFields", "resourceVersion", "generation"] {
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.remove(pointer);
            }
        }
        if let Some(fields) = object.as_object_mut() {
            fields.remove("apiVersion");
            fields.remove("kind");
        }
        object
    };
    content(before) != content(after)
}

/// A patch as it was written.
fn read(text: &str, kind: PatchSyntax) -> Result<Value, String> {
    let patch: Value =
        serde_saphyr::from_str(text).map_err(|error| format!("the patch is no JSON or YAML: {error}"))?;
    match (kind, &patch) {
        (PatchSyntax::Json, Value::Array(_)) | (PatchSyntax::Merge | PatchSyntax::Strategic, Value::Object(_)) => {
            Ok(patch)
        }
        (PatchSyntax::Json, _) => Err("a patch of --type json is a list of operations: \
                                [{\"op\": \"replace\", \"path\": \"/spec/online\", \"value\": true}]"
            .into()),
        (PatchSyntax::Merge, Value::Array(_)) => Err("a list is a patch of --type json".into()),
        _ => Err("a patch names the fields that change: {\"spec\": {\"online\": true}}".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_patch_is_json_or_yaml_and_of_its_type() {
        for (text, kind, wanted) in [
            ("{\"spec\": {\"online\": true}}", PatchSyntax::Merge, Ok(json!({"spec": {"online": true}}))),
            ("spec: {online: true}", PatchSyntax::Merge, Ok(json!({"spec": {"online": true}}))),
            ("spec:\n  image: null\n", PatchSyntax::Strategic, Ok(json!({"spec": {"image": null}}))),
            (
                "[{\"op\": \"remove\", \"path\": \"/spec/image\"}]",
                PatchSyntax::Json,
                Ok(json!([{"op": "remove", "path": "/spec/image"}])),
            ),
            ("[]", PatchSyntax::Merge, Err("--type json")),
            ("{}", PatchSyntax::Json, Err("list of operations")),
            ("online", PatchSyntax::Merge, Err("names the fields")),
            ("", PatchSyntax::Merge, Err("names the fields")),
            ("{", PatchSyntax::Merge, Err("no JSON or YAML")),
            ("a: 1\na: 2\n", PatchSyntax::Merge, Err("no JSON or YAML")),
        ] {
            match (read(text, kind), wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{text}"),
                (Err(reason), Err(part)) => assert!(reason.contains(part), "{text}: {reason}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
    }

    #[test]
    fn what_a_patch_changed_is_told_from_what_a_server_counts() {
        let at = |revision: &str, online: bool| json!({"kind": "A", "metadata": {"name": "a", "resourceVersion": revision}, "spec": {"online": online}});
        assert!(is_changed(&at("1", true), &at("2", false)));
        assert!(is_changed(&at("1", true), &at("1", false)), "a dry run");
        assert!(!is_changed(&at("1", true), &at("2", true)));
    }
}
