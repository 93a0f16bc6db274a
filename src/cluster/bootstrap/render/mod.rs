//! User data: what a machine does at its first boot to become a node. Pure: the same input makes the same bytes.
//!
//! Whatever users wrote goes through a serializer, never into a text that is put together here; only systemd units and the script
//! of Ignition are texts, and what stands in them is a user's own command.

mod cloud_init;
mod ignition;
pub mod kubeadm;

use serde::Serialize;

use crate::api::bootstrap::UserDataFormat;
use crate::api::bootstrap::node::{FileEncoding, NodeUser};
use crate::api::bootstrap::v1beta2::KubeadmConfigSpec;

/// Largest user data: a Secret has no more room.
const LARGEST: usize = 1 << 20;
/// What a machine writes to this file once it is a node.
const SENTINEL: &str = "echo success > /run/cluster-api/bootstrap-success.complete";

/// User data cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum UserDataError {
    /// No kubeadm is known for the version.
    #[error("{0}")]
    Version(String),
    /// It does not become a text.
    #[error("the user data cannot be written: {0}")]
    Text(String),
    /// The form of the user data has no such thing.
    #[error("{field}: {reason}")]
    Unsupported {
        /// The field.
        field: String,
        /// Why.
        reason: String,
    },
    /// It is too large.
    #[error("the user data would have {size} bytes; {LARGEST} have room in a Secret")]
    Large {
        /// Its size.
        size: usize,
    },
}

/// What kubeadm does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubeadmCommand {
    /// Begin a cluster.
    Init,
    /// Join one.
    Join,
}

impl KubeadmCommand {
    fn word(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Join => "join",
        }
    }
}

/// A file, with what is in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFile {
    /// Where it is.
    pub path: String,
    /// User and group.
    pub owner: Option<String>,
    /// Who may do what with it.
    pub permissions: Option<String>,
    /// How the content is encoded.
    pub encoding: Option<FileEncoding>,
    /// Whether the content is appended.
    pub append: Option<bool>,
    /// The content.
    pub content: Vec<u8>,
}

impl NodeFile {
    /// A file of root's.
    pub fn of_root(path: &str, permissions: &str, content: impl Into<Vec<u8>>) -> Self {
        Self {
            path: path.to_owned(),
            owner: Some("root:root".to_owned()),
            permissions: Some(permissions.to_owned()),
            content: content.into(),
            ..Self::default()
        }
    }
}

/// What user data is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct UserData<'a> {
    /// What kubeadm does.
    pub command: KubeadmCommand,
    /// kubeadm's configuration.
    pub kubeadm: String,
    /// Files, with what is in them.
    pub files: Vec<NodeFile>,
    /// Users, with their passwords.
    pub users: Vec<NodeUser>,
    /// Commands, disks and the rest.
    pub spec: &'a KubeadmConfigSpec,
}

impl UserData<'_> {
    /// The user data, in the form that the spec names.
    ///
    /// # Errors
    ///
    /// When that form has no such thing, or it is too large.
    pub fn render(&self) -> Result<Vec<u8>, UserDataError> {
        let text = match self.spec.format.unwrap_or_default() {
            UserDataFormat::CloudConfig => cloud_init::render(self)?,
            UserDataFormat::Ignition => ignition::render(self)?,
        };
        if text.len() > LARGEST {
            return Err(UserDataError::Large { size: text.len() });
        }
        Ok(text.into_bytes())
    }

    /// kubeadm's command, with its configuration in this file.
    fn kubeadm_command(&self, config: &str) -> String {
        let verbosity = self.spec.verbosity.map(|number| format!(" --v {number}")).unwrap_or_default();
        format!("kubeadm {} --config {config}{verbosity}", self.command.word())
    }
}

fn unsupported(field: impl Into<String>, reason: impl Into<String>) -> UserDataError {
    UserDataError::Unsupported { field: field.into(), reason: reason.into() }
}

/// YAML in which no line is broken: what is a template is filled in before it is read.
fn yaml(value: &impl Serialize) -> Result<String, UserDataError> {
    let options = serde_saphyr::ser_options! { folded_wrap_chars: 1 << 30, min_fold_chars: 0 };
    serde_saphyr::to_string_with_options(value, options).map_err(|error| UserDataError::Text(error.to_string()))
}
