//! What a machine gets beside kubeadm: files, users, disks. Alike in both versions, but for partitions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A file on the node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct UserDataFile {
    /// Where it is.
    #[schemars(length(min = 1, max = 512))]
    pub path: String,
    /// User and group, as `root:root`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub owner: Option<String>,
    /// Who may do what with it, as `0640`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub permissions: Option<String>,
    /// How the content is encoded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<FileEncoding>,
    /// Whether the content is appended to what is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub append: Option<bool>,
    /// What is in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 10240))]
    pub content: Option<String>,
    /// Where the content comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_from: Option<ContentSource>,
    /// Whether the content is taken as it is or filled in; `Raw` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_format: Option<ContentFormat>,
}

/// How a file's content is encoded.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileEncoding {
    /// base64.
    #[serde(rename = "base64")]
    Base64,
    /// gzip.
    #[serde(rename = "gzip")]
    Gzip,
    /// gzip in base64.
    #[serde(rename = "gzip+base64")]
    GzipBase64,
}

/// How a file's content is understood.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFormat {
    /// As it is.
    Raw,
    /// With `{{ .controlPlane.version }}` filled in.
    Template,
}

/// Where something comes from.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct ContentSource {
    /// A Secret in the same namespace.
    pub secret: SecretKey,
}

/// A key of a Secret in the same namespace.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct SecretKey {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The key in it.
    #[schemars(length(min = 1, max = 256))]
    pub key: String,
}

/// A user of the node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeUser {
    /// Name.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// What is said of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub gecos: Option<String>,
    /// Further groups, joined by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub groups: Option<String>,
    /// Home folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub home_dir: Option<String>,
    /// Whether they cannot log in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inactive: Option<bool>,
    /// Shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub shell: Option<String>,
    /// Hash of the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub passwd: Option<String>,
    /// Where the hash of the password comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passwd_from: Option<ContentSource>,
    /// Group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub primary_group: Option<String>,
    /// Whether nobody logs in with the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_password: Option<bool>,
    /// What they may do by sudo, as `ALL=(ALL) NOPASSWD:ALL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub sudo: Option<String>,
    /// Keys that they log in with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 2048)))]
    pub ssh_authorized_keys: Vec<String>,
}

/// Where a node has its time from.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Ntp {
    /// Servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 512)))]
    pub servers: Vec<String>,
    /// Whether it asks them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// A partition of a disk.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PartitionSpec {
    /// Percent of the disk.
    #[schemars(range(min = 1, max = 100))]
    pub percentage: i32,
    /// `Linux`, `LinuxSwap`, `LinuxRAID`, `LVM`, `Fat32`, `NTFS`, `LinuxExtended` or the GUID of a GPT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 36), regex(pattern = PARTITION_TYPE))]
    pub partition_type: Option<String>,
}

const PARTITION_TYPE: &str = "^(Linux|LinuxSwap|LinuxRAID|LVM|Fat32|NTFS|LinuxExtended\
    |[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})$";

/// Kind of a partition table.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum TableType {
    /// That of the BIOS.
    Mbr,
    /// That of UEFI.
    Gpt,
}

/// A file system that is made.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Filesystem {
    /// Device that it is on.
    #[schemars(length(min = 1, max = 256))]
    pub device: String,
    /// Its kind, as `ext4`.
    #[schemars(length(min = 1, max = 128))]
    pub filesystem: String,
    /// Its label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub label: Option<String>,
    /// `auto|any`, `auto`, `any`, `none` or the number of a partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub partition: Option<String>,
    /// Whether a file system that is there goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overwrite: Option<bool>,
    /// Kind of file system that is replaced.
    #[serde(default, rename = "replaceFS", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub replace_fs: Option<String>,
    /// Further arguments of the program that makes it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 256)))]
    pub extra_opts: Vec<String>,
}

/// What only Ignition knows.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct IgnitionSpec {
    /// A configuration of Flatcar's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_linux_config: Option<ContainerLinuxConfig>,
}

/// A configuration that is merged with the one that is made.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ContainerLinuxConfig {
    /// Its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32768))]
    pub additional_config: Option<String>,
    /// Whether what would be a warning is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}
