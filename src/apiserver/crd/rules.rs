//! Validation of definitions, beside their schemas. Upstream's rules in upstream's words. Pure.

use std::collections::HashSet;

use serde_json::Value;

use super::super::answers::status::{FieldError, FieldFault, shorten};
use super::super::kinds::from_definition::COLUMNS_MAX;
use super::super::objects::names::label_1035;
use super::super::webhooks::{bundle_fault, location};
use super::{names, structural};
use crate::api::is_dns_subdomain;
use crate::jsonpath::Path;

/// Versions of one kind.
const VERSIONS_MAX: usize = 32;
/// Short names of one kind, and categories: the status has them once more, and discovery with each version.
const NAMES_MAX: usize = 16;
/// Selectable fields of one version, as upstream.
const SELECTABLE_MAX: usize = 8;
/// Longest path of a column.
const PATH_MAX: usize = 512;
/// Annotation that groups of Kubernetes itself must carry (KEP-1111).
const APPROVAL: &str = "api-approved.kubernetes.io";

const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' \
    or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// Everything that can be said of a definition alone.
pub(super) fn check_spec(definition: &Value, errors: &mut Vec<FieldError>) {
    let spec = &definition["spec"];
    check_own_name(definition, errors);
    match text(spec, "group") {
        "" => errors.push(FieldError::required("spec.group", "")),
        group if !is_dns_subdomain(group) => {
            errors.push(FieldError::invalid("spec.group", &group.into(), SUBDOMAIN_RULE))
        }
        group if !group.contains('.') => {
            errors.push(FieldError::invalid("spec.group", &group.into(), "should be a domain with at least one dot"));
        }
        _ => {}
    }
    match text(spec, "scope") {
        "" => errors.push(FieldError::required("spec.scope", "")),
        "Cluster" | "Namespaced" => {}
        other => errors.push(FieldError::with_value(
            FieldFault::NotSupported,
            "spec.scope",
            &other.into(),
            "supported values: \"Cluster\", \"Namespaced\"",
        )),
    }
    if spec["preserveUnknownFields"] == true {
        errors.push(FieldError::invalid(
            "spec.preserveUnknownFields",
            &true.into(),
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        ));
    }
    check_names(&spec["names"], errors);
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    check_versions(versions, errors);
    check_conversion(spec, versions, errors);
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}

fn check_own_name(definition: &Value, errors: &mut Vec<FieldError>) {
    let name = text(&definition["metadata"], "name");
    let spec = &definition["spec"];
    if name != format!("{}.{}", text(&spec["names"], "plural"), text(spec, "group")) {
        errors.push(FieldError::invalid("metadata.name", &name.into(), "must be spec.names.plural+\".\"+spec.group"));
    }
}

fn check_names(names: &Value, errors: &mut Vec<FieldError>) {
    let mut label = |path: String, name: &str, checked: &str| {
        if let Some(fault) = label_1035(checked).pop() {
            errors.push(FieldError::invalid(path, &name.into(), fault));
        }
    };
    let mut missing = Vec::new();
    for (field, required) in [("plural", true), ("singular", false), ("kind", true), ("listKind", true)] {
        let name = text(names, field);
        let path = format!("spec.names.{field}");
        if name.is_empty() {
            if required {
                missing.push(FieldError::required(path, ""));
            }
            continue;
        }
        if field.ends_with("ind") { label(path, name, &name.to_lowercase()) } else { label(path, name, name) }
    }
    let mut too_many = Vec::new();
    for field in ["shortNames", "categories"] {
        let count = names[field].as_array().map_or(0, Vec::len);
        if count > NAMES_MAX {
            let detail = format!("more than {NAMES_MAX} are not supported");
            too_many.push(FieldError::forbidden(format!("spec.names.{field}"), detail));
            continue;
        }
        for (index, name) in names[field].as_array().into_iter().flatten().enumerate() {
            let name = name.as_str().unwrap_or_default();
            label(format!("spec.names.{field}[{index}]"), name, name);
        }
    }
    errors.extend(too_many);
    errors.extend(missing);
    if !text(names, "kind").is_empty() && names["kind"] == names["listKind"] {
        let kind = &names["listKind"];
        errors.push(FieldError::invalid("spec.names.listKind", kind, "kind and listKind may not be the same"));
    }
}

fn check_versions(versions: &[Value], errors: &mut Vec<FieldError>) {
    let mut on_all = |detail: String| errors.push(FieldError::new(FieldFault::Invalid, "spec.versions", detail));
    if versions.len() > VERSIONS_MAX {
        return on_all(format!("must have at most {VERSIONS_MAX} versions"));
    }
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        on_all("must have exactly one version marked as storage version".into());
    }
    if !versions.is_empty() && !versions.iter().any(|version| version["served"] == true) {
        on_all("must have at least one version that is served".into());
    }
    let mut seen = HashSet::new();
    if !versions.iter().all(|version| seen.insert(text(version, "name"))) {
        on_all("must contain unique version names".into());
    }
    // Upstream's paths: what is the same in all versions is spoken of as the spec's own.
    let same = |field: &str| versions.iter().all(|version| version.get(field) == versions[0].get(field));
    for (index, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{index}]");
        let name = text(version, "name");
        if let Some(fault) = label_1035(name).pop() {
            errors.push(FieldError::invalid(format!("{path}.name"), &name.into(), fault));
        }
        if version["deprecated"] != true && version.get("deprecationWarning").is_some_and(|text| !text.is_null()) {
            errors.push(FieldError::invalid(
                format!("{path}.deprecationWarning"),
                &version["deprecationWarning"],
                "can only be set for deprecated versions",
            ));
        }
        let part = |field: &str, shared: &str| {
            if same(field) { (index == 0).then(|| format!("spec.{shared}")) } else { Some(format!("{path}.{field}")) }
        };
        match version["schema"].get("openAPIV3Schema").filter(|schema| !schema.is_null()) {
            None => {
                errors.push(FieldError::required(format!("{path}.schema.openAPIV3Schema"), "schemas are required"));
            }
            Some(schema) => {
                if let Some(path) = part("schema", "validation") {
                    structural::check(schema, &format!("{path}.openAPIV3Schema"), errors);
                }
            }
        }
        if let Some(path) = part("subresources", "subresources") {
            check_subresources(&version["subresources"], &path, errors);
        }
        if let Some(path) = part("additionalPrinterColumns", "additionalPrinterColumns") {
            check_columns(&version["additionalPrinterColumns"], &path, errors);
        }
        if let Some(path) = part("selectableFields", "selectableFields") {
            check_selectable(&version["selectableFields"], &version["schema"]["openAPIV3Schema"], &path, errors);
        }
    }
}

/// A path of plain fields, as `.spec.replicas`.
fn plain_path(path: &str) -> Option<Vec<&str>> {
    let fields: Vec<&str> = path.strip_prefix('.')?.split('.').collect();
    let plain = |field: &&str| {
        !field.is_empty() && field.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
    };
    fields.iter().all(plain).then_some(fields)
}

fn check_subresources(subresources: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(scale) = subresources.get("scale").filter(|scale| !scale.is_null()) else { return };
    for (field, roots, required) in [
        ("specReplicasPath", &["spec"][..], true),
        ("statusReplicasPath", &["status"], true),
        ("labelSelectorPath", &["status", "spec"], false),
    ] {
        let path = format!("{path}.scale.{field}");
        let given = text(scale, field);
        if given.is_empty() {
            if required {
                errors.push(FieldError::required(path, ""));
            }
            continue;
        }
        match plain_path(given) {
            None => errors.push(FieldError::invalid(
                path,
                &given.into(),
                "must be a simple json path, array notation is not supported",
            )),
            Some(fields) if fields.len() < 2 || !roots.contains(&fields[0]) => {
                let roots: Vec<String> = roots.iter().map(|root| format!(".{root}")).collect();
                let detail = format!("should be a json path under {}", roots.join(" or "));
                errors.push(FieldError::invalid(path, &given.into(), detail));
            }
            Some(_) => {}
        }
    }
}

fn check_columns(columns: &Value, path: &str, errors: &mut Vec<FieldError>) {
    const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
    const FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
    let list = |names: &[&str]| {
        let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        format!("supported values: {}", quoted.join(", "))
    };
    let columns = columns.as_array().map(Vec::as_slice).unwrap_or_default();
    if columns.len() > COLUMNS_MAX {
        let detail = format!("{}: must have at most {COLUMNS_MAX} items", columns.len());
        errors.push(FieldError::new(FieldFault::TooMany, path, detail));
    }
    for (index, column) in columns.iter().take(COLUMNS_MAX).enumerate() {
        let path = format!("{path}[{index}]");
        if text(column, "name").is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        }
        match text(column, "type") {
            "" => {
                errors.push(FieldError::required(format!("{path}.type"), format!("must be one of {}", TYPES.join(","))))
            }
            kind if !TYPES.contains(&kind) => {
                let path = format!("{path}.type");
                errors.push(FieldError::with_value(FieldFault::NotSupported, path, &kind.into(), list(&TYPES)));
            }
            _ => {}
        }
        let format = text(column, "format");
        if !format.is_empty() && !FORMATS.contains(&format) {
            let path = format!("{path}.format");
            errors.push(FieldError::with_value(FieldFault::NotSupported, path, &format.into(), list(&FORMATS)));
        }
        match text(column, "jsonPath") {
            "" => errors.push(FieldError::required(format!("{path}.jsonPath"), "")),
            json_path if json_path.len() > PATH_MAX => {
                let detail = format!("may not be more than {PATH_MAX} bytes");
                errors.push(FieldError::new(FieldFault::TooLong, format!("{path}.jsonPath"), detail));
            }
            json_path => {
                if let Err(error) = Path::parse_plain(json_path) {
                    let detail = error.to_string();
                    errors.push(FieldError::invalid(format!("{path}.jsonPath"), &json_path.into(), detail));
                }
            }
        }
    }
}

fn check_selectable(fields: &Value, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let fields = fields.as_array().map(Vec::as_slice).unwrap_or_default();
    if fields.len() > SELECTABLE_MAX {
        let detail = format!("{}: must have at most {SELECTABLE_MAX} items", fields.len());
        errors.push(FieldError::new(FieldFault::TooMany, path, detail));
    }
    let mut seen = HashSet::new();
    for (index, field) in fields.iter().take(SELECTABLE_MAX).enumerate() {
        let path = format!("{path}[{index}].jsonPath");
        let given = text(field, "jsonPath");
        if given.is_empty() {
            errors.push(FieldError::required(path, ""));
            continue;
        }
        let target = plain_path(given)
            .and_then(|fields| fields.iter().try_fold(schema, |schema, field| schema["properties"].get(*field)));
        let scalar = target
            .and_then(|target| target["type"].as_str())
            .is_some_and(|kind| matches!(kind, "string" | "boolean" | "integer"));
        if given.starts_with(".metadata") {
            errors.push(FieldError::invalid(path, &given.into(), "must not point to fields in metadata"));
        } else if !scalar {
            errors.push(FieldError::invalid(
                path,
                &given.into(),
                "must point to a field of type string, boolean or integer. Enum string fields and strings with \
                 formats are allowed.",
            ));
        } else if !seen.insert(given) {
            errors.push(FieldError::with_value(FieldFault::Duplicate, path, &given.into(), ""));
        }
    }
}

/// A webhook is not looked at where it would never be called.
fn check_conversion(spec: &Value, versions: &[Value], errors: &mut Vec<FieldError>) {
    let webhook = &spec["conversion"]["webhook"];
    match text(&spec["conversion"], "strategy") {
        "Webhook" if versions.len() < 2 => return,
        "Webhook" => return check_webhook(webhook, errors),
        "None" => {}
        "" => errors.push(FieldError::required("spec.conversion.strategy", "")),
        other => errors.push(FieldError::with_value(
            FieldFault::NotSupported,
            "spec.conversion.strategy",
            &other.into(),
            "supported values: \"None\", \"Webhook\"",
        )),
    }
    let needless = "should not be set when strategy is not set to Webhook";
    if webhook["clientConfig"].is_object() {
        errors.push(FieldError::forbidden("spec.conversion.webhookClientConfig", needless));
    }
    if webhook["conversionReviewVersions"].as_array().is_some_and(|versions| !versions.is_empty()) {
        errors.push(FieldError::forbidden("spec.conversion.conversionReviewVersions", needless));
    }
}

/// What is wrong with the webhook of a definition, in upstream's words and with its paths.
fn check_webhook(webhook: &Value, errors: &mut Vec<FieldError>) {
    let at = "spec.conversion.webhookClientConfig";
    let config = &webhook["clientConfig"];
    if !config.is_object() {
        errors.push(FieldError::required(at, "required when strategy is set to Webhook"));
    } else {
        for (field, value, detail) in location::faults(config) {
            let path = format!("{at}{field}");
            errors.push(match value {
                Some(value) => FieldError::invalid(path, &value, detail),
                None => FieldError::required(path, detail),
            });
        }
    }
    let path = "spec.conversion.conversionReviewVersions";
    if webhook["conversionReviewVersions"].as_array().is_none_or(Vec::is_empty) {
        return errors.push(FieldError::required(path, ""));
    }
    for (place, value, detail) in location::version_faults(&webhook["conversionReviewVersions"]) {
        let shown = shorten(&value.unwrap_or_default().to_string(), 256);
        let detail = format!("{shown}: {detail}");
        errors.push(FieldError::new(FieldFault::Invalid, format!("{path}{place}"), detail));
    }
}

/// Every version that objects were ever stored in must stay until they have been migrated.
pub(super) fn check_stored_versions(definition: &Value, errors: &mut Vec<FieldError>) {
    let path = "status.storedVersions";
    let stored = definition["status"]["storedVersions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let versions = definition["spec"]["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    if stored.is_empty() && !versions.is_empty() {
        errors.push(FieldError::new(FieldFault::Invalid, path, "must have at least one stored version"));
    }
    for (index, version) in stored.iter().enumerate() {
        if !versions.iter().any(|known| known["name"] == *version) {
            let name = version.as_str().unwrap_or_default();
            errors.push(FieldError::invalid(
                format!("{path}[{index}]"),
                version,
                format!(
                    "missing from spec.versions; {name} was previously a storage version, and must remain in \
                     spec.versions until a storage migration ensures no data remains persisted in {name} and removes \
                     {name} from status.storedVersions"
                ),
            ));
        }
    }
}

/// What stays once it is there.
pub(super) fn check_change(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let established = names::is_established(old);
    for (field, pointer, always) in [
        ("spec.group", "/spec/group", true),
        ("spec.names.plural", "/spec/names/plural", true),
        ("spec.scope", "/spec/scope", false),
        ("spec.names.kind", "/spec/names/kind", false),
    ] {
        let value = new.pointer(pointer).unwrap_or(&Value::Null);
        if (always || established) && Some(value) != old.pointer(pointer) {
            errors.push(FieldError::invalid(field, value, "field is immutable"));
        }
    }
    let bundle =
        |definition: &Value| text(&definition["spec"]["conversion"]["webhook"]["clientConfig"], "caBundle").to_owned();
    let (given, before) = (bundle(new), bundle(old));
    // One that is filled in later may be anything until then.
    if established
        && given != before
        && !before.is_empty()
        && bundle_fault(&before).is_none()
        && let Some(fault) = bundle_fault(&given).filter(|_| !given.is_empty())
    {
        let path = "spec.conversion.webhookClientConfig.caBundle";
        errors.push(FieldError::invalid(path, &given.into(), fault));
    }
}

/// Groups of Kubernetes itself are not for everybody.
pub(super) fn check_approval(new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let group = text(&new["spec"], "group");
    let protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group == *domain || group.strip_suffix(domain).is_some_and(|head| head.ends_with('.')));
    if !protected || old.is_some() {
        return;
    }
    let path = format!("metadata.annotations[{APPROVAL}]");
    match new["metadata"]["annotations"][APPROVAL].as_str() {
        None | Some("") => errors.push(FieldError::required(
            path,
            format!(
                "protected groups must have approval annotation \"{APPROVAL}\", see \
                 https://github.com/kubernetes/enhancements/pull/1111"
            ),
        )),
        Some(value) if value.starts_with("https://") || value.starts_with("unapproved") => {}
        Some(value) => errors.push(FieldError::invalid(
            path,
            &shorten(value, 128).into(),
            "protected groups must have approval annotation with either a URL or a reason starting with \
             \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111",
        )),
    }
}
