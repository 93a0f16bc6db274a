//! API discovery (`/api`, `/apis`).
//!
//! Discovery: which groups, versions and resources there are, in the three forms that clients of different ages ask
//! for. Which one is sent depends on the Accept header alone: old clients fail on forms they do not know.

use std::fmt::Write as _;
use std::sync::OnceLock;

use axum::response::Response;
use http::HeaderMap;
use serde_json::{Value, json};

use super::openapi::OpenApiDocument;
use crate::api::StoragePolicy;
use crate::apiserver::answers::status::ApiError;
use crate::apiserver::auth::accounts;
use crate::apiserver::auth::kinds::AUTHENTICATION;
use crate::apiserver::kinds::registry::ResourceRegistry;
use crate::apiserver::kinds::resource::ServedResource;
use crate::apiserver::requests::request::accepted;
use crate::origin;

/// Names of a resource's views, such as `log`, and what can be done with each.
pub(super) type ResourceViews<'a> = &'a dyn Fn(&ServedResource) -> Vec<(String, &'static [&'static str])>;

/// What can be done with a view, as with `pods/log`.
pub(in crate::apiserver) const VIEW_VERBS: &[&str] = &["get"];
/// What can be done with an upload.
pub(in crate::apiserver) const UPLOAD_VERBS: &[&str] = &["create", "get"];

/// Version of the Kubernetes API that is served.
const MINOR: u32 = 34;

/// `/version`
pub(in crate::apiserver) fn version() -> Value {
    let version = env!("CARGO_PKG_VERSION");
    json!({
        "major": "1",
        "minor": MINOR.to_string(),
        "emulationMajor": "1",
        "emulationMinor": MINOR.to_string(),
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": (MINOR - 1).to_string(),
        "gitVersion": format!("v1.{MINOR}.0+slipway-{version}"),
        "gitCommit": origin::COMMIT.unwrap_or_default(),
        "gitTreeState": "clean",
        "buildDate": origin::time().unwrap_or_default().to_string(),
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, go_arch(std::env::consts::ARCH)),
    })
}

fn go_arch(arch: &str) -> &str {
    match arch {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Form of an answer to `/api` and `/apis`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiscoveryFormat {
    Legacy,
    Aggregated(&'static str),
}

impl DiscoveryFormat {
    fn media(self) -> String {
        match self {
            Self::Legacy => "application/json".to_owned(),
            Self::Aggregated(version) => {
                format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList")
            }
        }
    }
}

fn negotiate(headers: &HeaderMap) -> Result<DiscoveryFormat, ApiError> {
    for one in accepted(headers) {
        if !one.takes_json() {
            continue;
        }
        match (one.param("as"), one.param("g"), one.param("v")) {
            ("", _, _) => return Ok(DiscoveryFormat::Legacy),
            ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => return Ok(DiscoveryFormat::Aggregated("v2")),
            ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2beta1") => {
                return Ok(DiscoveryFormat::Aggregated("v2beta1"));
            }
            _ => {}
        }
    }
    Err(ApiError::not_acceptable())
}

/// `/api`
pub(in crate::apiserver) fn core_versions(
    registry: &ResourceRegistry,
    views: ResourceViews,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let form = negotiate(headers)?;
    let text = match form {
        DiscoveryFormat::Legacy => {
            json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}).to_string()
        }
        DiscoveryFormat::Aggregated(version) => aggregated(version, &[("", vec!["v1"])], registry, views),
    };
    Ok(OpenApiDocument::new(text).send(headers, &form.media()))
}

/// What `/apis` answers in each of its forms, made when it is first asked for and shared by all who ask.
#[derive(Debug, Default)]
pub(in crate::apiserver) struct Groups {
    legacy: OnceLock<OpenApiDocument>,
    v2: OnceLock<OpenApiDocument>,
    v2beta1: OnceLock<OpenApiDocument>,
}

impl Groups {
    fn of(&self, form: DiscoveryFormat) -> &OnceLock<OpenApiDocument> {
        match form {
            DiscoveryFormat::Legacy => &self.legacy,
            DiscoveryFormat::Aggregated("v2") => &self.v2,
            DiscoveryFormat::Aggregated(_) => &self.v2beta1,
        }
    }

    /// Whether this need not be made any more.
    pub(in crate::apiserver) fn has(&self, headers: &HeaderMap) -> bool {
        negotiate(headers).map_or(true, |form| self.of(form).get().is_some_and(|made| made.is_ready_for(headers)))
    }

    /// `/apis`. Where there are thousands of versions it takes its time.
    pub(in crate::apiserver) fn send(
        &self,
        registry: &ResourceRegistry,
        views: ResourceViews,
        headers: &HeaderMap,
    ) -> Result<Response, ApiError> {
        let form = negotiate(headers)?;
        let made = self.of(form).get_or_init(|| {
            let groups = registry.groups();
            OpenApiDocument::new(match form {
                DiscoveryFormat::Legacy => {
                    let groups: Vec<Value> =
                        groups.iter().map(|(group, versions)| legacy_group(group, versions)).collect();
                    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}).to_string()
                }
                DiscoveryFormat::Aggregated(version) => aggregated(version, &groups, registry, views),
            })
        });
        Ok(made.send(headers, &form.media()))
    }
}

fn legacy_group(group: &str, versions: &[&str]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{group}/{version}"), "version": version}))
        .collect();
    json!({"name": group, "versions": versions, "preferredVersion": versions.first()})
}

/// `/apis/G`
pub(in crate::apiserver) fn group(registry: &ResourceRegistry, name: &str) -> Result<Value, ApiError> {
    let groups = registry.groups();
    let (group, versions) = groups.iter().find(|(group, _)| *group == name).ok_or_else(ApiError::no_such_path)?;
    let mut answer = legacy_group(group, versions);
    answer["kind"] = "APIGroup".into();
    answer["apiVersion"] = "v1".into();
    Ok(answer)
}

/// `/api/v1` and `/apis/G/V`
pub(in crate::apiserver) fn resources(
    registry: &ResourceRegistry,
    views: ResourceViews,
    group: &str,
    version: &str,
) -> Result<Value, ApiError> {
    if !registry.has_version(group, version) {
        return Err(ApiError::no_such_path());
    }
    let mut resources = Vec::new();
    for resource in registry.of_version(group, version) {
        let mut entry = json!({
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": resource.verbs(),
        });
        if resource.policy != StoragePolicy::Review {
            entry["storageVersionHash"] = storage_hash(resource).into();
        }
        if !resource.short_names.is_empty() {
            entry["shortNames"] = resource.short_names.clone().into();
        }
        if !resource.categories.is_empty() {
            entry["categories"] = resource.categories.clone().into();
        }
        resources.push(entry);
        for (view, verbs) in views(resource) {
            resources.push(json!({
                "name": format!("{}/{view}", resource.plural),
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": verbs,
            }));
        }
        if resource.status {
            resources.push(json!({
                "name": format!("{}/status", resource.plural),
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": status_verbs(resource),
            }));
        }
        if resource.scale.is_some() {
            resources.push(json!({
                "name": format!("{}/scale", resource.plural),
                "singularName": "",
                "namespaced": resource.namespaced,
                "group": "autoscaling",
                "version": "v1",
                "kind": "Scale",
                "verbs": status_verbs(resource),
            }));
        }
        if &*resource.storage == accounts::STORAGE {
            resources.push(json!({
                "name": format!("{}/token", resource.plural),
                "singularName": "",
                "namespaced": true,
                "group": AUTHENTICATION,
                "version": "v1",
                "kind": "TokenRequest",
                "verbs": ["create"],
            }));
        }
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Ok(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources,
    }))
}

fn status_verbs(resource: &ServedResource) -> Vec<&'static str> {
    ["get", "patch", "update"].into_iter().filter(|verb| resource.verbs().contains(verb)).collect()
}

fn storage_hash(resource: &ServedResource) -> String {
    use base64::Engine;
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(format!("{}/{}/{}", resource.group, resource.version, resource.kind));
    base64::engine::general_purpose::STANDARD.encode(&digest[..8])
}

/// The text, made version by version: as values it would take many times as much.
fn aggregated(form: &str, groups: &[(&str, Vec<&str>)], registry: &ResourceRegistry, views: ResourceViews) -> String {
    let mut text = format!(
        "{{\"kind\":\"APIGroupDiscoveryList\",\"apiVersion\":\"apidiscovery.k8s.io/{form}\",\"metadata\":{{}},\"items\":["
    );
    let comma = |number: usize| if number > 0 { "," } else { "" };
    for (number, (group, versions)) in groups.iter().enumerate() {
        let metadata = match *group {
            "" => json!({"creationTimestamp": null}),
            group => json!({"name": group, "creationTimestamp": null}),
        };
        // Writing to memory does not fail.
        write!(text, "{}{{\"metadata\":{metadata},\"versions\":[", comma(number)).ok();
        for (number, version) in versions.iter().enumerate() {
            let name = Value::from(*version);
            let opening = "\"freshness\":\"Current\",\"resources\":[";
            write!(text, "{}{{\"version\":{name},{opening}", comma(number)).ok();
            for (number, resource) in registry.of_version(group, version).enumerate() {
                write!(text, "{}{}", comma(number), aggregated_resource(resource, views)).ok();
            }
            text.push_str("]}");
        }
        text.push_str("]}");
    }
    text.push_str("]}");
    text
}

fn aggregated_resource(resource: &ServedResource, views: ResourceViews) -> Value {
    let kind = json!({"group": resource.group, "version": resource.version, "kind": resource.kind});
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": kind,
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": resource.verbs(),
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = resource.short_names.clone().into();
    }
    if !resource.categories.is_empty() {
        entry["categories"] = resource.categories.clone().into();
    }
    let mut subresources = Vec::new();
    for (view, verbs) in views(resource) {
        subresources.push(json!({"subresource": view, "responseKind": kind, "verbs": verbs}));
    }
    if resource.status {
        subresources.push(json!({"subresource": "status", "responseKind": kind, "verbs": status_verbs(resource)}));
    }
    if resource.scale.is_some() {
        let scale = json!({"group": "autoscaling", "version": "v1", "kind": "Scale"});
        subresources.push(json!({"subresource": "scale", "responseKind": scale, "verbs": status_verbs(resource)}));
    }
    if &*resource.storage == accounts::STORAGE {
        let kind = json!({"group": AUTHENTICATION, "version": "v1", "kind": "TokenRequest"});
        subresources.push(json!({"subresource": "token", "responseKind": kind, "verbs": ["create"]}));
    }
    if !subresources.is_empty() {
        entry["subresources"] = subresources.into();
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header;

    #[test]
    fn each_client_gets_the_form_it_knows() {
        let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
        for (accept, wanted) in [
            (format!("{v2},{beta},application/json"), DiscoveryFormat::Aggregated("v2")),
            (format!("{beta},application/json"), DiscoveryFormat::Aggregated("v2beta1")),
            (
                "application/json;g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList,application/json".into(),
                DiscoveryFormat::Legacy,
            ),
            ("application/json, */*".into(), DiscoveryFormat::Legacy),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            assert_eq!(negotiate(&headers).unwrap(), wanted, "{accept}");
        }
    }

    #[test]
    fn the_types_of_kube_read_it() {
        use kube::core::discovery::v2::APIGroupDiscoveryList;
        let registry = crate::apiserver::kinds::built_in::registry(&crate::modules::kinds()).unwrap();
        let text = aggregated("v2", &registry.groups(), &registry, &|_| Vec::new());
        let list: APIGroupDiscoveryList = serde_json::from_str(&text).unwrap();
        let metal3 = list
            .items
            .iter()
            .find(|item| item.metadata.as_ref().and_then(|meta| meta.name.as_deref()) == Some("metal3.io"));
        assert_eq!(metal3.unwrap().versions[0].resources[0].resource.as_deref(), Some("baremetalhosts"));
        let none: ResourceViews = &|_| Vec::new();
        let legacy = resources(&registry, none, "slipway.dev", "v1alpha1").unwrap();
        let lease = legacy["resources"].as_array().unwrap().iter().find(|r| r["name"] == "dhcpleases").unwrap();
        assert_eq!(lease["verbs"], json!(["get", "list", "watch"]));
        assert!(resources(&registry, none, "slipway.dev", "v9").is_err());
    }
}
