//! Images of the library.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::metal3::ChecksumType;

/// An operating system image in the library. Cluster-scoped.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "slipway.dev",
    version = "v1alpha1",
    kind = "Image",
    plural = "images",
    singular = "image",
    shortname = "img",
    status = "ImageStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase","description":"Where the import stands"}"#,
    printcolumn = r#"{"name":"Percent","type":"integer","jsonPath":".status.percent","description":"How much of the source has been read"}"#,
    printcolumn = r#"{"name":"Size","type":"integer","jsonPath":".status.virtualSize","description":"Bytes on a disk"}"#,
    printcolumn = r#"{"name":"Stored","type":"integer","jsonPath":".status.storedSize","description":"Bytes in the library","priority":1}"#,
    printcolumn = r#"{"name":"Published","type":"date","jsonPath":".status.publishedSince","description":"How long its content has been served without a login","priority":1}"#,
    printcolumn = r#"{"name":"Hosts","type":"integer","jsonPath":".status.hosts","description":"Hosts that name it"}"#,
    printcolumn = r#"{"name":"Namespaces","type":"string","jsonPath":".status.namespaces","description":"Namespaces of these hosts","priority":1}"#,
    printcolumn = r#"{"name":"URL","type":"string","jsonPath":".spec.url","description":"Source","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ImageSpec {
    /// Source: `http`, `https`, `file` below the appliance's `image.file_folder`, or `upload:FILE` for what is sent to it.
    pub url: String,
    /// Checksum of the source file as published, or the URL of a file of checksums.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Algorithm of the checksum; by its length when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum_type: Option<ChecksumType>,
    /// `raw`, `qcow2` or `live-iso` of a disk; `oci` of an archive of container images, `packages` of an archive of files for
    /// nodes. Possibly compressed. `raw` or `qcow2` is found out when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// Of an archive: whether its content is served to everybody who reaches boot HTTP, without a login. Another value has nothing
    /// imported anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish: Option<bool>,
}

/// Where an import stands.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ImageStatus {
    /// Where the import stands.
    #[serde(default)]
    pub phase: ImagePhase,
    /// 0 to 100, of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<i64>,
    /// SHA-256 of the manifest: the image's identity in the library.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Bytes on a disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_size: Option<i64>,
    /// Bytes in the library.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_size: Option<i64>,
    /// What the content of the source was taken for: `raw`, `qcow2`, `live-iso`, `oci` or `packages`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// SHA-256 of the source file as it was read, before anything was unpacked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Of an archive: what is in it, a part of it where it is much.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<ImageContent>,
    /// Of an archive: names of container images, or files, that are in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_count: Option<i64>,
    /// Since when its content is served without a login; unset while it is not. Of two that have one name, it stays with the one
    /// that is served already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_since: Option<Time>,
    /// Hash of what the spec says of the source, of which the content is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_hash: Option<String>,
    /// Why it failed, or is not published, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `metadata.generation` that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Failed attempts since the spec changed.
    #[serde(default)]
    pub fail_count: i64,
    /// Hosts that name it now. 0 when Slipway made it for hosts and none names it any more: it stays until its room is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<i64>,
    /// Namespaces of these hosts, up to eight of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
}

/// Something in an archive.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ImageContent {
    /// `REPOSITORY:TAG` of a container image, without its registry; the path of a file.
    pub name: String,
    /// Its digest, `sha256:` and hex digits.
    pub digest: String,
    /// Its bytes; of a container image with all that it names and the archive has.
    pub size: i64,
}

/// Where an import stands.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImagePhase {
    /// Not begun.
    #[default]
    Pending,
    /// Being read, checked and cut into chunks.
    Importing,
    /// In the library, checked.
    Ready,
    /// Given up until the spec changes or the next try.
    Failed,
}
