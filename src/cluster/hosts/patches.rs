//! What a machine writes into its host, as patches of the host. Pure.
//!
//! A patch says only what is not so yet; there is none when all is.

use kube::ResourceExt;
use serde_json::{Value, json};

use super::choose::CandidateHost;
use super::consumer::MachineId;
use super::host_changes::{HostChanges, consumer};
use super::names::{ANNOTATION_BLOCK_MOVE, LABEL_REUSE, PAUSED_BY_CLUSTER};
use crate::api::cluster::LABEL_CLUSTER;
use crate::api::infrastructure::v1beta2::MachineImage;
use crate::api::infrastructure::{DiskFormat, MachineChecksumType, MachineCustomDeploy};
use crate::api::metal3::{
    self, ANNOTATION_PAUSED, ANNOTATION_STATUS, AutomatedCleaningMode, BareMetalHost, ProvisioningState,
    SecretReference,
};

/// Takes the host: says whose it is, of which cluster where there is one, and that it is kept for nobody else.
pub fn claim(host: &BareMetalHost, machine: &MachineId, cluster: Option<&str>) -> Option<Value> {
    let mut patch = HostChanges::default();
    if !machine.has(host) {
        patch.spec("consumerRef", machine.reference());
    }
    if cluster.is_some() && host.labels().get(LABEL_CLUSTER).map(String::as_str) != cluster {
        patch.label(LABEL_CLUSTER, json!(cluster));
    }
    if host.labels().contains_key(LABEL_REUSE) {
        patch.label(LABEL_REUSE, Value::Null);
    }
    // Whoever moves hosts to another server waits until this one is paused.
    if !host.annotations().contains_key(ANNOTATION_BLOCK_MOVE) && !host.annotations().contains_key(ANNOTATION_PAUSED) {
        patch.annotation(ANNOTATION_BLOCK_MOVE, json!(""));
    }
    patch.of(host)
}

/// What a host is to run. Secrets are the machine's namespace's, whatever a reference says.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostSpecPatch<'a> {
    /// The image.
    pub image: Option<&'a MachineImage>,
    /// A method other than writing an image.
    pub custom_deploy: Option<&'a MachineCustomDeploy>,
    /// Secret with its user data.
    pub user_data: Option<&'a SecretReference>,
    /// Secret with its meta data.
    pub meta_data: Option<&'a SecretReference>,
    /// Secret with its network data.
    pub network_data: Option<&'a SecretReference>,
}

/// Tells the host what to run. One that was told already is not told anything else: whatever is to be other needs another
/// machine.
pub fn deploy(
    host: &BareMetalHost,
    machine: &MachineId,
    cleaning: Option<AutomatedCleaningMode>,
    deployment: HostSpecPatch<'_>,
) -> Option<Value> {
    let mut patch = HostChanges::default();
    if host.spec.image.is_none() && host.spec.custom_deploy.is_none() {
        if let Some(image) = deployment.image {
            patch.spec("image", json!(image_of(image)));
        }
        if let Some(custom) = deployment.custom_deploy {
            patch.spec("customDeploy", json!({"method": custom.method}));
        }
        let mut secret = |field: &str, reference: Option<&SecretReference>| {
            if let Some(SecretReference { name: Some(name), .. }) = reference {
                patch.spec(field, json!({"name": name, "namespace": machine.namespace}));
            }
        };
        secret("userData", deployment.user_data);
        secret("metaData", deployment.meta_data);
        secret("networkData", deployment.network_data);
    }
    keep(host, cleaning, patch)
}

/// Whether a host runs nothing, and was not told to.
pub fn runs_nothing(host: &BareMetalHost) -> bool {
    let view = CandidateHost::from(host);
    view.is_available() && !view.has_image
}

/// What holds for a host as long as it is the machine's.
pub fn maintain(host: &BareMetalHost, cleaning: Option<AutomatedCleaningMode>) -> Option<Value> {
    keep(host, cleaning, HostChanges::default())
}

fn keep(host: &BareMetalHost, cleaning: Option<AutomatedCleaningMode>, mut patch: HostChanges) -> Option<Value> {
    if cleaning.is_some() && host.spec.automated_cleaning_mode != cleaning {
        patch.spec("automatedCleaningMode", json!(cleaning));
    }
    if !host.spec.online {
        patch.spec("online", json!(true));
    }
    patch.of(host)
}

/// An image of a machine as a host has it.
pub fn image_of(image: &MachineImage) -> metal3::HostImage {
    let checksum = image.checksum.clone().filter(|checksum| !checksum.is_empty());
    let checksum_type = image.checksum_type.filter(|_| checksum.is_some()).map(|type_| match type_ {
        MachineChecksumType::Md5 => metal3::ChecksumType::Md5,
        MachineChecksumType::Sha256 => metal3::ChecksumType::Sha256,
        MachineChecksumType::Sha512 => metal3::ChecksumType::Sha512,
    });
    let format = image.disk_format.map(|format| match format {
        DiskFormat::Raw => "raw",
        DiskFormat::Qcow2 => "qcow2",
        DiskFormat::Vdi => "vdi",
        DiskFormat::Vmdk => "vmdk",
        DiskFormat::LiveIso => "live-iso",
    });
    let format = format.map(str::to_owned);
    metal3::HostImage { url: image.url.clone(), checksum, checksum_type, format, ..metal3::HostImage::default() }
}

/// For whom a host is kept that is let go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keep {
    /// `cp-<control plane>` or `md-<deployment>`.
    pub for_whom: String,
    /// The cluster that holds it until then.
    pub cluster: String,
}

/// What of a machine's a host was told, besides what it is to run. Only that is taken back: what the host had before stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostInstructions<'a> {
    /// Secret with user data.
    pub user_data: Option<&'a SecretReference>,
    /// Secret with meta data.
    pub meta_data: Option<&'a SecretReference>,
    /// Secret with network data.
    pub network_data: Option<&'a SecretReference>,
}

/// How far a host is that is to be let go.
#[derive(Clone, Debug, PartialEq)]
pub enum ReleaseProgress {
    /// It is not the machine's.
    NotOurs,
    /// It must be told so.
    Tell(Value),
    /// It is not through yet.
    Wait(String),
    /// It is through: this lets it go.
    LetGo(Value),
}

/// Lets a host go, step by step.
pub fn release(
    host: &BareMetalHost,
    machine: &MachineId,
    told: HostInstructions<'_>,
    cluster: Option<&str>,
    keep: Option<&Keep>,
) -> ReleaseProgress {
    if !machine.has(host) {
        return ReleaseProgress::NotOurs;
    }
    if let Some(patch) = end(host, told).of(host) {
        return ReleaseProgress::Tell(patch);
    }
    let status = host.status.clone().unwrap_or_default();
    let state = status.provisioning.state;
    let is_through = match state {
        ProvisioningState::None
        | ProvisioningState::Unmanaged
        | ProvisioningState::Registering
        | ProvisioningState::MatchProfile
        | ProvisioningState::Inspecting
        | ProvisioningState::Ready
        | ProvisioningState::Available => true,
        // Nobody deprovisions it; it must not run on.
        ProvisioningState::ExternallyProvisioned => !status.powered_on || host.spec.disable_power_off,
        ProvisioningState::Preparing
        | ProvisioningState::Provisioning
        | ProvisioningState::Provisioned
        | ProvisioningState::Deprovisioning
        | ProvisioningState::PoweringOffBeforeDelete
        | ProvisioningState::Deleting => false,
    };
    if !is_through {
        return ReleaseProgress::Wait(waiting(host, state));
    }
    let mut patch = HostChanges::default();
    match keep {
        None => patch.spec("consumerRef", Value::Null),
        Some(keep) => {
            let holder = consumer("Cluster", "cluster.x-k8s.io/v1beta2", host.namespace(), &keep.cluster);
            patch.spec("consumerRef", holder);
            patch.label(LABEL_REUSE, json!(keep.for_whom));
        }
    }
    let label = host.labels().get(LABEL_CLUSTER);
    if label.is_some() && cluster.is_none_or(|cluster| label.map(String::as_str) == Some(cluster)) {
        patch.label(LABEL_CLUSTER, Value::Null);
    }
    if host.annotations().get(ANNOTATION_PAUSED).map(String::as_str) == Some(PAUSED_BY_CLUSTER) {
        patch.annotation(ANNOTATION_PAUSED, Value::Null);
    }
    if host.annotations().contains_key(ANNOTATION_BLOCK_MOVE) {
        patch.annotation(ANNOTATION_BLOCK_MOVE, Value::Null);
    }
    // It is not empty: the consumer goes.
    ReleaseProgress::LetGo(patch.of(host).unwrap_or_default())
}

/// Nothing is to run any more, and nothing of the machine's is left.
fn end(host: &BareMetalHost, told: HostInstructions<'_>) -> HostChanges {
    let mut patch = HostChanges::default();
    if host.spec.image.is_some() {
        patch.spec("image", Value::Null);
    }
    if host.spec.custom_deploy.is_some() {
        patch.spec("customDeploy", Value::Null);
    }
    for (field, told, there) in [
        ("userData", told.user_data, &host.spec.user_data),
        ("metaData", told.meta_data, &host.spec.meta_data),
        ("networkData", told.network_data, &host.spec.network_data),
    ] {
        if told.is_some() && there.as_ref().map(|there| &there.name) == told.map(|told| &told.name) {
            patch.spec(field, Value::Null);
        }
    }
    let online = host.spec.disable_power_off;
    if host.spec.online != online {
        patch.spec("online", json!(online));
    }
    patch
}

fn waiting(host: &BareMetalHost, state: ProvisioningState) -> String {
    let status = host.status.clone().unwrap_or_default();
    let mut text = format!("BareMetalHost {} is {}", host.name_any(), state.as_str());
    if !status.error_message.is_empty() {
        let error: String = status.error_message.chars().take(500).collect();
        text = format!("{text}, with an error: {error}");
    }
    if let Some(barred) = CandidateHost::from(host).barred {
        text = format!("{text}, and {}", barred.word());
    }
    text
}

/// Pauses the host with its cluster, or ends that. Its status goes along, for a server that it may be moved to.
pub fn pause(host: &BareMetalHost, is_paused: bool) -> Option<Value> {
    let mut patch = HostChanges::default();
    let annotations = host.annotations();
    let by = annotations.get(ANNOTATION_PAUSED).map(String::as_str);
    if is_paused {
        if by.is_none() {
            patch.annotation(ANNOTATION_PAUSED, json!(PAUSED_BY_CLUSTER));
            let mut status = json!(host.status.clone().unwrap_or_default());
            if let Some(status) = status.as_object_mut() {
                status.remove("hardware");
            }
            patch.annotation(ANNOTATION_STATUS, json!(status.to_string()));
        }
        if annotations.contains_key(ANNOTATION_BLOCK_MOVE) {
            patch.annotation(ANNOTATION_BLOCK_MOVE, Value::Null);
        }
    } else if by == Some(PAUSED_BY_CLUSTER) {
        patch.annotation(ANNOTATION_PAUSED, Value::Null);
    }
    patch.of(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::hosts::consumer::MachineKind;

    fn host(change: Value) -> BareMetalHost {
        let mut host = json!({
            "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
            "metadata": {"name": "h", "namespace": "rack", "resourceVersion": "7"},
            "spec": {"online": false},
        });
        json_patch::merge(&mut host, &change);
        serde_json::from_value(host).expect("a host")
    }

    fn machine() -> MachineId {
        MachineId { kind: MachineKind::Metal3, namespace: "rack".into(), name: "m".into() }
    }

    fn secret(name: &str) -> SecretReference {
        SecretReference { name: Some(name.into()), namespace: None }
    }

    /// The host after a patch.
    fn after(host: &BareMetalHost, patch: Option<Value>) -> BareMetalHost {
        let mut value = json!(host);
        json_patch::merge(&mut value, &patch.expect("a patch"));
        serde_json::from_value(value).expect("a host")
    }

    fn ours(change: Value) -> BareMetalHost {
        let claimed = host(json!({}));
        let mut claimed = json!(after(&claimed, claim(&claimed, &machine(), Some("c"))));
        json_patch::merge(&mut claimed, &change);
        serde_json::from_value(claimed).expect("a host")
    }

    #[test]
    fn a_claim_is_of_one_version_and_leaves_nothing_of_the_one_before() {
        let reference = json!({"kind": "Cluster", "name": "c", "namespace": "rack", "apiVersion": "x/v1", "uid": "u"});
        let kept = host(json!({"spec": {"consumerRef": reference}, "metadata": {"labels": {LABEL_REUSE: "md-w"}}}));
        let patch = claim(&kept, &machine(), Some("c")).expect("a patch");
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        let claimed = after(&kept, Some(patch));
        let consumer = claimed.spec.consumer_ref.clone().expect("a consumer");
        assert_eq!(
            (consumer.kind.as_deref(), consumer.name.as_deref(), consumer.uid),
            (Some("Metal3Machine"), Some("m"), None)
        );
        assert_eq!(claimed.labels().get(LABEL_CLUSTER).map(String::as_str), Some("c"));
        assert!(!claimed.labels().contains_key(LABEL_REUSE));
        assert_eq!(claim(&claimed, &machine(), Some("c")), None, "twice is once");
    }

    #[test]
    fn a_host_is_told_once_what_to_run() {
        let image = json!({"url": "http://x/y", "checksum": "aa", "diskFormat": "qcow2"});
        let image: MachineImage = serde_json::from_value(image).expect("an image");
        let (user, network) = (SecretReference { namespace: Some("far".into()), ..secret("u") }, secret("n"));
        let deployment = HostSpecPatch {
            image: Some(&image),
            user_data: Some(&user),
            network_data: Some(&network),
            ..HostSpecPatch::default()
        };
        let deploy = |host: &BareMetalHost| deploy(host, &machine(), Some(AutomatedCleaningMode::Disabled), deployment);
        let told = after(&ours(json!({})), deploy(&ours(json!({}))));
        assert_eq!(json!(told.spec.image), json!({"url": "http://x/y", "checksum": "aa", "format": "qcow2"}));
        assert_eq!(json!(told.spec.user_data), json!({"name": "u", "namespace": "rack"}));
        assert_eq!(json!(told.spec.network_data), json!({"name": "n", "namespace": "rack"}));
        assert!(told.spec.meta_data.is_none() && told.spec.online);
        assert_eq!(json!(told.spec.automated_cleaning_mode), json!("disabled"));
        assert_eq!(deploy(&told), None);
        // It runs something already: only what is always so is set.
        let running = ours(json!({"spec": {"image": {"url": "http://other"}}}));
        let patch = deploy(&running).expect("a patch");
        assert_eq!(patch["spec"], json!({"online": true, "automatedCleaningMode": "disabled"}));
        // No checksum of a kind that says nothing.
        let plain = MachineImage { url: "oci://x/y".into(), checksum: Some(String::new()), ..MachineImage::default() };
        assert_eq!(json!(image_of(&plain)), json!({"url": "oci://x/y"}));
    }

    #[test]
    fn a_host_is_let_go_when_it_is_through() {
        let (user, meta) = (secret("u"), secret("other"));
        let told = HostInstructions { user_data: Some(&user), meta_data: Some(&meta), network_data: None };
        let release = |host: &BareMetalHost| release(host, &machine(), told, Some("c"), None);
        let host_in = |state: &str, more: Value| {
            let mut host = json!(ours(json!({"status": {"provisioning": {"state": state}}})));
            json_patch::merge(&mut host, &more);
            serde_json::from_value::<BareMetalHost>(host).expect("a host")
        };
        let running = host_in(
            "provisioned",
            json!({"spec": {"online": true, "image": {"url": "x"}, "userData": {"name": "u"}, "metaData": {"name": "m"}}}),
        );
        let ReleaseProgress::Tell(patch) = release(&running) else { panic!("it runs") };
        assert_eq!(patch["spec"], json!({"image": null, "userData": null, "online": false}));
        for state in
            ["preparing", "provisioning", "provisioned", "deprovisioning", "powering off before delete", "deleting"]
        {
            let how_far = release(&host_in(state, json!({})));
            assert_eq!(how_far, ReleaseProgress::Wait(format!("BareMetalHost h is {state}")), "{state}");
        }
        for state in ["", "unmanaged", "registering", "match profile", "inspecting", "ready", "available"] {
            let host = host_in(state, json!({}));
            let ReleaseProgress::LetGo(patch) = release(&host) else { panic!("{state}") };
            let free = after(&host, Some(patch));
            assert!(
                free.spec.consumer_ref.is_none() && free.labels().is_empty() && free.annotations().is_empty(),
                "{state}"
            );
        }
        let external = |on: bool| host_in("externally provisioned", json!({"status": {"poweredOn": on}}));
        assert!(matches!(release(&external(true)), ReleaseProgress::Wait(_)));
        assert!(matches!(release(&external(false)), ReleaseProgress::LetGo(_)));
        // With its power left on, where it must not be switched off.
        let lasting = host_in("available", json!({"spec": {"disablePowerOff": true}}));
        let ReleaseProgress::Tell(patch) = release(&lasting) else { panic!("it is off") };
        assert_eq!(patch["spec"], json!({"online": true}));
        let stuck = host_in(
            "provisioned",
            json!({"status": {"errorMessage": "no BMC"}, "metadata": {"annotations": {"baremetalhost.metal3.io/detached": ""}}}),
        );
        assert_eq!(
            release(&stuck),
            ReleaseProgress::Wait("BareMetalHost h is provisioned, with an error: no BMC, and detached".into())
        );
        assert_eq!(release(&host(json!({}))), ReleaseProgress::NotOurs);
    }

    #[test]
    fn a_host_is_kept_for_whoever_comes_next() {
        let host = ours(json!({"status": {"provisioning": {"state": "available"}}}));
        let keep = Keep { for_whom: "md-w".into(), cluster: "c".into() };
        let ReleaseProgress::LetGo(patch) =
            release(&host, &machine(), HostInstructions::default(), Some("c"), Some(&keep))
        else {
            panic!()
        };
        let kept = after(&host, Some(patch));
        let consumer = kept.spec.consumer_ref.clone().expect("a consumer");
        assert_eq!((consumer.kind.as_deref(), consumer.name.as_deref()), (Some("Cluster"), Some("c")));
        assert_eq!(kept.labels().get(LABEL_REUSE).map(String::as_str), Some("md-w"));
        assert!(!kept.labels().contains_key(LABEL_CLUSTER));
    }

    #[test]
    fn a_pause_is_the_clusters_own() {
        let running = ours(json!({"status": {"poweredOn": true, "hardware": {"ramMebibytes": 5}}}));
        assert!(running.annotations().contains_key(ANNOTATION_BLOCK_MOVE));
        let paused = after(&running, pause(&running, true));
        assert_eq!(paused.annotations().get(ANNOTATION_PAUSED).map(String::as_str), Some(PAUSED_BY_CLUSTER));
        assert!(!paused.annotations().contains_key(ANNOTATION_BLOCK_MOVE));
        let status: Value = serde_json::from_str(&paused.annotations()[ANNOTATION_STATUS]).expect("a status");
        assert_eq!((&status["poweredOn"], status.get("hardware")), (&json!(true), None));
        assert_eq!(pause(&paused, true), None);
        let again = after(&paused, pause(&paused, false));
        assert!(!again.annotations().contains_key(ANNOTATION_PAUSED));
        assert_eq!(pause(&again, false), None);
        // Somebody else's pause stays.
        let other = ours(json!({"metadata": {"annotations": {ANNOTATION_PAUSED: "me", ANNOTATION_BLOCK_MOVE: null}}}));
        assert_eq!((pause(&other, true), pause(&other, false)), (None, None));
    }
}
