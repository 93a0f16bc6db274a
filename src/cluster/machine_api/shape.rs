//! `providerSpec.value` of a Machine of bare metal, in each of the shapes that were published. Pure.
//!
//! By `apiVersion` a value says whose Machine it is in: one that is not in [`SHAPES`] is another provider's, and nothing is done
//! about it.
//!
//! | `apiVersion` | `kind` | hosts by | where from |
//! |---|---|---|---|
//! | `baremetalproviderconfig/v1alpha1` | `BareMetalProviderConfig` | `selector`, a map of labels | MetalKube's first description |
//! | `baremetal.cluster.k8s.io/v1alpha1` | `BareMetalMachineProviderSpec` | `hostSelector` | Metal3's provider before Cluster API v1alpha2; OpenShift, with `customDeploy` |
//! | `baremetal.k8s.io/v1alpha1` | `BareMetalMachineProviderSpec` | `hostSelector` | Mirantis Container Cloud |
//!
//! Values are read strictly, as Metal3's provider did: a field that the shape does not have is a fault, and not left out in silence.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::api::infrastructure::v1beta2::MachineImage;
use crate::api::infrastructure::{HostRequirement, HostSelector, MachineCustomDeploy};
use crate::api::machine_api::ProviderSpec;
use crate::api::metal3::SecretReference;
use crate::cluster::hosts::choose::{CompiledSelector, SelectorFault};

/// Letters of a fault that are shown.
const SHOWN: usize = 500;

/// A shape of `providerSpec.value`.
struct ProviderSpecShape {
    api_version: &'static str,
    kind: &'static str,
    /// Its fields besides `apiVersion`, `kind`, `metadata`, `image` and `userData`.
    fields: &'static [&'static str],
    /// Fields that it may have and that have no effect here.
    idle: &'static [&'static str],
    /// Whether a value must name what is to run.
    needs_image: bool,
}

/// The shapes that are taken here. Another provider's room takes a Machine by taking its row.
const SHAPES: &[ProviderSpecShape] = &[
    ProviderSpecShape {
        api_version: "baremetalproviderconfig/v1alpha1",
        kind: "BareMetalProviderConfig",
        fields: &["selector"],
        idle: &[],
        needs_image: false,
    },
    ProviderSpecShape {
        api_version: "baremetal.cluster.k8s.io/v1alpha1",
        kind: "BareMetalMachineProviderSpec",
        fields: &["hostSelector", "customDeploy"],
        idle: &[],
        needs_image: true,
    },
    ProviderSpecShape {
        api_version: "baremetal.k8s.io/v1alpha1",
        kind: "BareMetalMachineProviderSpec",
        fields: &["hostSelector"],
        idle: &[
            "ansibleExtraPassthrough",
            "bareMetalHostProfile",
            "delete",
            "deletionPolicy",
            "distribution",
            "l2TemplateIfMappingOverride",
            "l2TemplateSelector",
            "maintenance",
            "nodeLabels",
            "rhelLicense",
            "upgradeIndex",
        ],
        needs_image: false,
    },
];

/// What a Machine asks of its host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProviderSpecRequest {
    /// What the host is to run.
    pub image: Option<MachineImage>,
    /// The same, by another method than writing an image.
    pub custom_deploy: Option<MachineCustomDeploy>,
    /// Secret of the Machine's namespace with user data.
    pub user_data: Option<SecretReference>,
    /// Labels that the host must have.
    pub selector: CompiledSelector,
    /// Fields of the value that have no effect here.
    pub idle: Vec<&'static str>,
}

/// Why a value makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeFault {
    /// It is of another kind.
    #[error("kind is {found:?}, and a value of {api_version} is a {wanted}")]
    Kind {
        /// Its group and version.
        api_version: &'static str,
        /// What it says.
        found: String,
        /// What it must be.
        wanted: &'static str,
    },
    /// A field that the shape does not have, or of another form.
    #[error("{0}")]
    Field(String),
    /// Hosts by labels, which makes no sense.
    #[error(transparent)]
    Selector(#[from] SelectorFault),
    /// It would have a Secret read that is not the Machine's.
    #[error("userData names a Secret of the namespace {0:?}, and only those of the Machine's own are read")]
    Foreign(String),
    /// It does not say what is to run. The API lets that through, as Metal3's provider had it: it is in the status.
    #[error("Missing fields: {0}")]
    Missing(String),
}

impl ShapeFault {
    /// Whether an API server is to refuse the Machine for it.
    pub fn is_refused(&self) -> bool {
        !matches!(self, Self::Missing(_))
    }
}

/// Every field that a shape has.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProviderSpecFields {
    #[serde(default)]
    image: Option<WireImage>,
    #[serde(default)]
    user_data: Option<WireSecret>,
    #[serde(default)]
    host_selector: Option<WireSelector>,
    #[serde(default)]
    selector: Option<BTreeMap<String, String>>,
    #[serde(default)]
    custom_deploy: Option<WireDeploy>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct WireImage {
    #[serde(default)]
    url: String,
    #[serde(default)]
    checksum: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct WireSecret {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
struct WireSelector {
    #[serde(default)]
    match_labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    match_expressions: Option<Vec<WireRequirement>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct WireRequirement {
    #[serde(default)]
    key: String,
    #[serde(default)]
    operator: String,
    #[serde(default)]
    values: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct WireDeploy {
    #[serde(default)]
    method: String,
}

/// Whether a Machine is this provider's.
pub fn is_ours(spec: &ProviderSpec) -> bool {
    spec.value.as_ref().is_some_and(|value| shape(value).is_some())
}

fn shape(value: &Value) -> Option<&'static ProviderSpecShape> {
    let api_version = value.get("apiVersion")?.as_str()?;
    SHAPES.iter().find(|shape| shape.api_version == api_version)
}

/// What a Machine of `namespace` asks; `None` where it is another provider's. A value that need not say what is to run, and does
/// not, has the site's `default_image`.
///
/// # Errors
///
/// Why it makes no sense.
pub fn read(
    spec: &ProviderSpec,
    namespace: &str,
    default_image: Option<&MachineImage>,
) -> Result<Option<ProviderSpecRequest>, ShapeFault> {
    let Some((value, shape)) = spec.value.as_ref().and_then(|value| Some((value, shape(value)?))) else {
        return Ok(None);
    };
    let idle = known(value, shape)?;
    let wire =
        ProviderSpecFields::deserialize(value).map_err(|error| ShapeFault::Field(shorten(&error.to_string())))?;
    let host_selector = wire.host_selector.unwrap_or(WireSelector { match_labels: None, match_expressions: None });
    let mut labels = wire.selector.unwrap_or_default();
    labels.extend(host_selector.match_labels.unwrap_or_default());
    let expressions = host_selector.match_expressions.unwrap_or_default();
    let selector =
        HostSelector { match_labels: labels, match_expressions: expressions.into_iter().map(requirement).collect() };
    let selector = CompiledSelector::new(Some(&selector))?;
    let user_data = match wire.user_data {
        None => None,
        Some(WireSecret { namespace: other, .. }) if !other.is_empty() && other != namespace => {
            return Err(ShapeFault::Foreign(shorten(&other)));
        }
        Some(WireSecret { name, .. }) if name.is_empty() => {
            return Err(ShapeFault::Field("userData names no Secret".into()));
        }
        Some(WireSecret { name, .. }) => {
            Some(SecretReference { name: Some(name), namespace: Some(namespace.to_owned()) })
        }
    };
    let custom_deploy = wire.custom_deploy.filter(|deploy| !deploy.method.is_empty());
    let image = match wire.image {
        Some(image) => Some(whole(image)?),
        None if custom_deploy.is_some() => None,
        None if shape.needs_image => return Err(ShapeFault::Missing("image.url, image.checksum".into())),
        None => match default_image {
            Some(image) => Some(image.clone()),
            None => {
                return Err(ShapeFault::Missing(
                    "image, and [cluster.default_image] of the appliance names none".into(),
                ));
            }
        },
    };
    let custom_deploy = custom_deploy.map(|deploy| MachineCustomDeploy { method: deploy.method });
    Ok(Some(ProviderSpecRequest { image, custom_deploy, user_data, selector, idle }))
}

/// That the value has no fields but those of its shape; those of them that have no effect.
fn known(value: &Value, shape: &'static ProviderSpecShape) -> Result<Vec<&'static str>, ShapeFault> {
    let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default();
    if kind != shape.kind {
        return Err(ShapeFault::Kind { api_version: shape.api_version, found: shorten(kind), wanted: shape.kind });
    }
    let mut idle = Vec::new();
    for field in value.as_object().into_iter().flat_map(serde_json::Map::keys) {
        let is_common = matches!(field.as_str(), "apiVersion" | "kind" | "metadata" | "image" | "userData");
        if is_common || shape.fields.contains(&field.as_str()) {
            continue;
        }
        match shape.idle.iter().find(|one| *one == field) {
            Some(one) => idle.push(*one),
            None => return Err(ShapeFault::Field(format!("unknown field {:?}", shorten(field)))),
        }
    }
    Ok(idle)
}

/// An image with all that it needs.
fn whole(image: WireImage) -> Result<MachineImage, ShapeFault> {
    let url = image.url.to_lowercase();
    // Registries check by themselves what they send, and the library knows its own.
    let needs_checksum = !url.starts_with("oci://") && !url.starts_with("slipway://");
    let missing: Vec<&str> =
        [("image.url", image.url.is_empty()), ("image.checksum", image.checksum.is_empty() && needs_checksum)]
            .into_iter()
            .filter_map(|(field, is_missing)| is_missing.then_some(field))
            .collect();
    if !missing.is_empty() {
        return Err(ShapeFault::Missing(missing.join(", ")));
    }
    let checksum = Some(image.checksum).filter(|checksum| !checksum.is_empty());
    Ok(MachineImage { url: image.url, checksum, ..MachineImage::default() })
}

/// A requirement; whether a label is there has nothing to do with values.
fn requirement(wire: WireRequirement) -> HostRequirement {
    let says_nothing_of_values = matches!(wire.operator.to_lowercase().as_str(), "exists" | "!" | "doesnotexist");
    let values = if says_nothing_of_values { Vec::new() } else { wire.values.unwrap_or_default() };
    HostRequirement { key: wire.key, operator: wire.operator, values }
}

fn shorten(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(value: Value) -> ProviderSpec {
        ProviderSpec { value: Some(value), value_from: None }
    }

    fn default_image() -> MachineImage {
        MachineImage {
            url: "http://images.test/default.raw".into(),
            checksum: Some("dd".into()),
            ..MachineImage::default()
        }
    }

    fn asked(value: Value) -> Result<Option<ProviderSpecRequest>, ShapeFault> {
        read(&spec(value), "rack", Some(&default_image()))
    }

    /// A value of a shape, with these fields.
    fn value(api_version: &str, kind: &str, fields: Value) -> Value {
        let mut value = json!({"apiVersion": api_version, "kind": kind});
        json_patch::merge(&mut value, &fields);
        value
    }

    fn metal3(fields: Value) -> Value {
        let mut value = value(
            "baremetal.cluster.k8s.io/v1alpha1",
            "BareMetalMachineProviderSpec",
            json!({"image": {"url": "http://images.test/os.qcow2", "checksum": "http://images.test/os.qcow2.md5"}}),
        );
        json_patch::merge(&mut value, &fields);
        value
    }

    fn mirantis(fields: Value) -> Value {
        value("baremetal.k8s.io/v1alpha1", "BareMetalMachineProviderSpec", fields)
    }

    fn strawman(fields: Value) -> Value {
        value("baremetalproviderconfig/v1alpha1", "BareMetalProviderConfig", fields)
    }

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn every_shape_selects_hosts_by_labels() {
        let both = json!({"matchLabels": {"role": "master"}, "matchExpressions": [{"key": "zone", "operator": "in", "values": ["a"]}]});
        let rows = [
            (strawman(json!({"selector": {"role": "master", "zone": "a"}})), "http://images.test/default.raw"),
            (metal3(json!({"hostSelector": both})), "http://images.test/os.qcow2"),
            (mirantis(json!({"hostSelector": both})), "http://images.test/default.raw"),
            (mirantis(json!({"hostSelector": both, "image": {"url": "http://x/y", "checksum": "aa"}})), "http://x/y"),
        ];
        for (value, image) in rows {
            let asked = asked(value.clone()).expect("sense").expect("ours");
            assert_eq!(asked.image.expect("an image").url, image, "{value}");
            for (has, suits) in [
                (labels(&[("role", "master"), ("zone", "a")]), true),
                (labels(&[("role", "master"), ("zone", "b")]), false),
                (labels(&[("zone", "a")]), false),
            ] {
                assert_eq!(asked.selector.unmet(&has).is_none(), suits, "{value} {has:?}");
            }
        }
    }

    #[test]
    fn one_that_says_nothing_of_hosts_takes_any() {
        for value in [
            strawman(json!({})),
            metal3(json!({})),
            metal3(json!({"hostSelector": {}})),
            mirantis(json!({"hostSelector": {"matchLabels": {}, "matchExpressions": []}})),
        ] {
            let asked = asked(value.clone()).expect("sense").expect("ours");
            assert_eq!(asked.selector, CompiledSelector::default(), "{value}");
        }
        // As clients in Go write what is not there.
        let nulls = r#"{"apiVersion": "baremetal.cluster.k8s.io/v1alpha1", "kind": "BareMetalMachineProviderSpec",
            "metadata": {"creationTimestamp": null}, "userData": null, "customDeploy": null,
            "image": {"url": "u", "checksum": "c"}, "hostSelector": {"matchLabels": null, "matchExpressions": null}}"#;
        assert!(asked(serde_json::from_str(nulls).unwrap()).is_ok_and(|asked| asked.is_some()));
    }

    #[test]
    fn operators_are_those_of_label_selectors() {
        let has = labels(&[("zone", "a"), ("size", "10")]);
        let rows: &[(&str, &str, &[&str], bool)] = &[
            ("zone", "In", &["a", "b"], true),
            ("zone", "IN", &["b"], false),
            ("zone", "=", &["a"], true),
            ("zone", "==", &["b"], false),
            ("zone", "!=", &["b"], true),
            ("zone", "notin", &["a"], false),
            ("zone", "NotIn", &["b"], true),
            ("size", "gt", &["9"], true),
            ("size", "lt", &["9"], false),
            // Values say nothing where it is only asked whether there is one.
            ("zone", "exists", &["b"], true),
            ("none", "Exists", &[], false),
            ("none", "!", &["x"], true),
            ("zone", "!", &[], false),
        ];
        for (key, operator, values, suits) in rows {
            let expression = json!({"key": key, "operator": operator, "values": values});
            let asked = asked(metal3(json!({"hostSelector": {"matchExpressions": [expression]}}))).unwrap().unwrap();
            assert_eq!(asked.selector.unmet(&has).is_none(), *suits, "{key} {operator} {values:?}");
        }
    }

    #[test]
    fn what_is_to_run_is_an_image_or_a_method() {
        let image = asked(metal3(json!({}))).unwrap().unwrap().image.expect("an image");
        assert_eq!(image.checksum.as_deref(), Some("http://images.test/os.qcow2.md5"));
        let custom = metal3(json!({"image": null, "customDeploy": {"method": "install_coreos"}}));
        let custom = asked(custom).unwrap().unwrap();
        assert_eq!(
            (custom.image, custom.custom_deploy.map(|deploy| deploy.method).as_deref()),
            (None, Some("install_coreos"))
        );
        for url in ["oci://x/y", "slipway://debian-12"] {
            let checked = asked(metal3(json!({"image": {"url": url, "checksum": null}}))).unwrap().unwrap();
            assert_eq!(checked.image.expect("an image").checksum, None, "{url}");
        }
        let rows = [
            (metal3(json!({"image": null})), "Missing fields: image.url, image.checksum"),
            (metal3(json!({"image": {"url": ""}})), "Missing fields: image.url"),
            (metal3(json!({"image": {"checksum": null}})), "Missing fields: image.checksum"),
            (
                metal3(json!({"image": null, "customDeploy": {"method": ""}})),
                "Missing fields: image.url, image.checksum",
            ),
        ];
        for (value, said) in rows {
            let fault = asked(value.clone()).unwrap_err();
            assert_eq!((fault.to_string().as_str(), fault.is_refused()), (said, false), "{value}");
        }
        for value in [strawman(json!({})), mirantis(json!({}))] {
            let fault = read(&spec(value), "rack", None).unwrap_err();
            assert!(fault.to_string().contains("[cluster.default_image]") && !fault.is_refused(), "{fault}");
        }
    }

    #[test]
    fn a_secret_of_another_namespace_is_not_read() {
        let own = SecretReference { name: Some("data".into()), namespace: Some("rack".into()) };
        for reference in [
            json!({"name": "data"}),
            json!({"name": "data", "namespace": "rack"}),
            json!({"name": "data", "namespace": ""}),
        ] {
            let asked = asked(metal3(json!({"userData": reference}))).unwrap().unwrap();
            assert_eq!(asked.user_data.as_ref(), Some(&own), "{reference}");
        }
        let fault = asked(metal3(json!({"userData": {"name": "data", "namespace": "kube-system"}}))).unwrap_err();
        assert!(fault.is_refused() && fault.to_string().contains("\"kube-system\""), "{fault}");
    }

    #[test]
    fn what_makes_no_sense_says_why() {
        let rows = [
            (metal3(json!({"bootstrap": {}})), "unknown field \"bootstrap\""),
            (metal3(json!({"selector": {"a": "b"}})), "unknown field \"selector\""),
            (strawman(json!({"hostSelector": {}})), "unknown field \"hostSelector\""),
            (mirantis(json!({"customDeploy": {"method": "x"}})), "unknown field \"customDeploy\""),
            (metal3(json!({"image": {"format": "raw"}})), "unknown field `format`"),
            (metal3(json!({"hostSelector": {"labels": {}}})), "unknown field `labels`"),
            (metal3(json!({"hostSelector": "role=x"})), "invalid type"),
            (metal3(json!({"userData": {"namespace": "rack"}})), "names no Secret"),
            (strawman(json!({"selector": {"a": 1}})), "invalid type"),
            (metal3(json!({"kind": "BareMetalProviderConfig"})), "is a BareMetalMachineProviderSpec"),
            (metal3(json!({"kind": null})), "is a BareMetalMachineProviderSpec"),
            (
                metal3(
                    json!({"hostSelector": {"matchExpressions": [{"key": "k", "operator": "like", "values": ["a"]}]}}),
                ),
                "operator \"like\"",
            ),
            (
                metal3(
                    json!({"hostSelector": {"matchExpressions": [{"key": "k", "operator": "gt", "values": ["a"]}]}}),
                ),
                "whole number",
            ),
        ];
        for (value, said) in rows {
            let fault = asked(value.clone()).unwrap_err();
            assert!(fault.is_refused() && fault.to_string().contains(said), "{value}: {fault}");
        }
        let long = asked(metal3(json!({"x".repeat(100_000): 1}))).unwrap_err().to_string();
        assert!(long.len() < 2 * SHOWN, "{} letters", long.len());
    }

    #[test]
    fn fields_without_effect_are_named() {
        let value = mirantis(json!({
            "hostSelector": {"matchLabels": {"kaas.mirantis.com/baremetalhost-id": "edge-cp-0"}},
            "bareMetalHostProfile": {"name": "prof-a", "namespace": "proj"},
            "l2TemplateSelector": {"label": "edge-l2"},
            "distribution": "ubuntu/jammy",
            "nodeLabels": [{"key": "stacklight", "value": "enabled"}],
            "upgradeIndex": 1,
        }));
        let mut idle = asked(value).unwrap().unwrap().idle;
        idle.sort_unstable();
        assert_eq!(idle, ["bareMetalHostProfile", "distribution", "l2TemplateSelector", "nodeLabels", "upgradeIndex"]);
    }

    #[test]
    fn machines_of_other_providers_are_theirs() {
        for value in [
            json!({"apiVersion": "awsproviderconfig/v1alpha1", "kind": "AWSMachineProviderConfig"}),
            json!({"apiVersion": "baremetal.cluster.k8s.io/v1alpha2", "kind": "BareMetalMachineProviderSpec"}),
            json!({"kind": "BareMetalMachineProviderSpec"}),
            json!({"apiVersion": 1}),
            json!({}),
        ] {
            assert_eq!(asked(value.clone()), Ok(None), "{value}");
            assert!(!is_ours(&spec(value)));
        }
        assert_eq!(read(&ProviderSpec::default(), "rack", None), Ok(None));
    }
}
