//! What a ClusterRelease must be. Pure.

use std::collections::BTreeSet;

use super::faults::Faults;
use super::{helm, steps};
use crate::api::kaas::{AllowedDistribution, ClusterReleaseSpec};
use crate::api::lcm::AgentConfig;
use crate::apiserver::FieldError;

/// How clusters may be made.
const LCM_TYPES: [&str; 2] = ["kubeadm", "byo"];
/// Kinds of machines.
const MACHINE_TYPES: [&str; 3] = ["control", "worker", "bastion"];
/// Longest description, and text of a note, in bytes.
const TEXT_MAX: usize = 64 << 10;
/// Further arguments of the agent.
const ARGUMENTS_MAX: usize = 32;
/// Images of containers.
const IMAGES_MAX: usize = 50;
/// Longest key or value of a label of a node: a prefix, a slash and a name.
const LABEL_MAX: usize = 317;

/// What is wrong with it.
pub(super) fn faults(spec: &ClusterReleaseSpec) -> Vec<FieldError> {
    let mut faults = Faults::default();
    faults.version("spec.version", &spec.version);
    faults.too_long("spec.description", spec.description.len(), TEXT_MAX);
    if !LCM_TYPES.contains(&spec.lcm_type.as_str()) {
        let detail = "supported: kubeadm, and byo for steps that make a cluster by themselves";
        faults.invalid("spec.lcmType", &spec.lcm_type, detail);
    }
    notes(spec, &mut faults);
    if let Some(config) = &spec.agent {
        agent(config, &mut faults);
    }
    for (kind, list) in &spec.machine_types {
        let path = format!("spec.machineTypes.{kind}");
        if MACHINE_TYPES.contains(&kind.as_str()) {
            steps::judge(&path, list, &mut faults);
        } else {
            faults.forbidden(path, format!("machines are of these types: {}", MACHINE_TYPES.join(", ")));
        }
    }
    if let Some(charts) = &spec.helm {
        helm::repositories("spec.helm.repositories", &charts.repositories, &mut faults);
        let releases = charts.releases.iter().map(|chart| &chart.release);
        helm::releases("spec.helm.releases", releases, &charts.repositories, &mut faults);
        let controller = charts.controller.iter();
        helm::releases("spec.helm.controller", controller, &charts.repositories, &mut faults);
    }
    faults.too_many("spec.images", spec.images.len(), IMAGES_MAX);
    for (name, image) in spec.images.iter().filter(|(_, image)| image.is_empty() || image.contains(char::is_whitespace))
    {
        faults.invalid(format!("spec.images.{name}"), image, "is no image of containers");
    }
    for (at, label) in spec.allowed_node_labels.iter().enumerate() {
        let path = format!("spec.allowedNodeLabels[{at}]");
        let odd =
            |text: &str| text.len() > LABEL_MAX || text.contains(|c: char| c.is_whitespace() || "=,!".contains(c));
        if label.key.is_empty() || odd(&label.key) {
            faults.invalid(format!("{path}.key"), &label.key, "is no key of a label");
        }
        if odd(&label.value) {
            faults.invalid(format!("{path}.value"), &label.value, "is no value of a label");
        }
    }
    distributions(&spec.allowed_distributions, &mut faults);
    faults.end()
}

fn notes(spec: &ClusterReleaseSpec, faults: &mut Faults) {
    for (at, notes) in spec.release_notes.iter().enumerate() {
        let path = format!("spec.releaseNotes[{at}]");
        faults.too_long(&path, notes.notes.iter().map(|note| note.text.len()).sum(), TEXT_MAX);
    }
}

/// What everything on a node is done by.
fn agent(agent: &AgentConfig, faults: &mut Faults) {
    if !agent.sha256.is_empty() {
        faults.sha256("spec.agent.sha256", &agent.sha256);
    }
    if !agent.download_url.is_empty() {
        faults.url("spec.agent.downloadURL", &agent.download_url, &["http", "https"]);
        if agent.sha256.is_empty() {
            faults.required("spec.agent.sha256", "what is downloaded runs as root: it needs a checksum");
        }
    }
    faults.too_many("spec.agent.args", agent.args.len(), ARGUMENTS_MAX);
}

fn distributions(list: &[AllowedDistribution], faults: &mut Faults) {
    const PATH: &str = "spec.allowedDistributions";
    let ids: Vec<String> = list.iter().map(|one| one.id.to_lowercase()).collect();
    let mut seen = BTreeSet::new();
    for (at, (id, one)) in ids.iter().zip(list).enumerate() {
        if id.is_empty() || id.contains(char::is_whitespace) {
            faults.invalid(format!("{PATH}[{at}].id"), &one.id, "is no name, such as ubuntu/jammy");
        }
        faults.once(format!("{PATH}[{at}].id"), id, &mut seen);
        if let Some(image) = &one.image
            && image.url.is_empty()
        {
            faults.required(format!("{PATH}[{at}].image.url"), "where it is");
        }
    }
    let defaults: Vec<&str> = list.iter().filter(|one| one.default).map(|one| one.id.as_str()).collect();
    if let [first, second, ..] = defaults.as_slice() {
        faults.forbidden(PATH, format!("two default distributions, {first} and {second}: only one may be"));
    }
}
