//! The Secrets with a machine's data.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use serde::Serialize;

use super::machine::RenderError;
use crate::api::cluster::LABEL_CLUSTER;
use crate::api::infrastructure::data::SECRET_TYPE;
use crate::api::infrastructure::data::v1beta2::Metal3Data;
use crate::cluster::contract::owners;
use crate::image::configdrive::MAX_DOCUMENT;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Document {
    /// Meta data.
    Meta,
    /// Network data.
    Network,
}

impl Document {
    /// Key in its Secret.
    pub fn key(self) -> &'static str {
        match self {
            Self::Meta => "metaData",
            Self::Network => "networkData",
        }
    }

    /// What the Secret's name ends with, behind the Metal3Machine's.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Meta => "-metadata",
            Self::Network => "-networkdata",
        }
    }
}

/// A document as YAML.
///
/// # Errors
///
/// When it cannot be written, or is larger than anybody reads.
pub(super) fn yaml(document: &impl Serialize) -> Result<String, RenderError> {
    let text = serde_saphyr::to_string(document).map_err(|error| RenderError::Yaml(error.to_string()))?;
    if text.len() > MAX_DOCUMENT {
        return Err(RenderError::Large(text.len(), MAX_DOCUMENT));
    }
    Ok(text)
}

/// Whether a Secret is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum There {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// There is one of the name that is for something else.
    Other,
}

/// Looks for a Secret. One that is there stays as it is, so that a machine is made again as it was.
///
/// # Errors
///
/// What the API says.
pub(super) async fn look(secrets: &Api<Secret>, name: &str) -> Result<There, kube::Error> {
    Ok(match secrets.get_opt(name).await? {
        None => There::No,
        Some(secret) if secret.type_.as_deref() == Some(SECRET_TYPE) => There::Yes,
        Some(_) => There::Other,
    })
}

/// Stores a Secret, which goes with its Metal3Data.
///
/// # Errors
///
/// What the API says.
pub(super) async fn store(
    secrets: &Api<Secret>,
    data: &Metal3Data,
    name: &str,
    cluster: &str,
    document: Document,
    text: String,
) -> Result<(), kube::Error> {
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: data.metadata.namespace.clone(),
            labels: Some(BTreeMap::from([(LABEL_CLUSTER.to_owned(), cluster.to_owned())])),
            owner_references: Some(vec![owners::owner(data, true)]),
            ..ObjectMeta::default()
        },
        type_: Some(SECRET_TYPE.to_owned()),
        data: Some(BTreeMap::from([(document.key().to_owned(), ByteString(text.into_bytes()))])),
        ..Secret::default()
    };
    match secrets.create(&PostParams::default(), &secret).await {
        // Stored before this process began, or in a look that was cut off: it is looked for again.
        Err(kube::Error::Api(error)) if error.is_already_exists() => Ok(()),
        stored => stored.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::configdrive;

    #[test]
    fn texts_stay_texts_in_yaml() {
        let texts = [
            "true",
            "010",
            "1e3",
            "~",
            "",
            "a: b",
            "#",
            "- x",
            "{{ x }}",
            "two\nlines\n",
            " x ",
            "\u{e9}",
            "0x1F",
            "null",
            "'",
            "\"",
            "*a",
            "&b",
            "!c",
        ];
        let data: BTreeMap<String, String> =
            texts.iter().enumerate().map(|(at, text)| (format!("key {at}"), (*text).to_owned())).collect();
        let text = yaml(&data).unwrap();
        let read = configdrive::meta_data("u", "n", "h", Some(text.as_bytes())).unwrap();
        for (key, value) in &data {
            assert_eq!(read[key.as_str()], value.as_str(), "{key} in {text}");
        }
        let large: BTreeMap<String, String> = [("a".to_owned(), "x".repeat(MAX_DOCUMENT))].into();
        assert!(matches!(yaml(&large), Err(RenderError::Large(..))));
    }
}
