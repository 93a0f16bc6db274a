//! The Secrets with a machine's data.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use serde::Serialize;

use super::machine::DataRenderError;
use crate::api::cluster::LABEL_CLUSTER;
use crate::api::infrastructure;
use crate::api::infrastructure::data::SECRET_TYPE;
use crate::api::infrastructure::data::v1beta2::Metal3Data;
use crate::image::configdrive::MAX_DOCUMENT;
use crate::runtime::owners;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataDocument {
    /// Meta data.
    Meta,
    /// Network data.
    Network,
}

impl DataDocument {
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
pub(super) fn yaml(document: &impl Serialize) -> Result<String, DataRenderError> {
    let text = serde_saphyr::to_string(document).map_err(|error| DataRenderError::Yaml(error.to_string()))?;
    if text.len() > MAX_DOCUMENT {
        return Err(DataRenderError::Large(text.len(), MAX_DOCUMENT));
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
    /// There is one that was made for another Metal3Data: an earlier one, of an earlier machine or template.
    Stale,
    /// There is one of the name that is for something else.
    Other,
}

/// Looks for a Secret of data. One that is there stays as it is, so that a machine is made again as it was.
///
/// # Errors
///
/// What the API says.
pub(super) async fn look(secrets: &Api<Secret>, data: &Metal3Data, name: &str) -> Result<There, kube::Error> {
    Ok(secrets.get_opt(name).await?.map_or(There::No, |secret| judge(&secret, data)))
}

/// Whose a Secret is. One of nobody may be used: whoever made it named it so.
fn judge(secret: &Secret, data: &Metal3Data) -> There {
    let meta = &secret.metadata;
    if secret.type_.as_deref() != Some(SECRET_TYPE) {
        return There::Other;
    }
    if owners::is_owned(meta, data.metadata.uid.as_deref().unwrap_or_default()) {
        return There::Yes;
    }
    if owners::of_kind(meta, infrastructure::GROUP, "Metal3Data").is_some() {
        return There::Stale;
    }
    if owners::controller(meta).is_some() { There::Other } else { There::Yes }
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
    document: DataDocument,
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
    fn only_a_secret_of_this_data_or_of_nobody_is_used() {
        let mut data = Metal3Data::new("t-0", Default::default());
        data.metadata.uid = Some("now".into());
        let mut before = data.clone();
        before.metadata.uid = Some("before".into());
        let mut foreign = Secret::default();
        (foreign.metadata.name, foreign.metadata.uid) = (Some("x".into()), Some("x".into()));
        let rows = [
            (SECRET_TYPE, Some(owners::owner(&data, true)), There::Yes),
            (SECRET_TYPE, None, There::Yes),
            (SECRET_TYPE, Some(owners::owner(&before, true)), There::Stale),
            (SECRET_TYPE, Some(owners::owner(&foreign, true)), There::Other),
            ("Opaque", Some(owners::owner(&data, true)), There::Other),
            ("Opaque", None, There::Other),
        ];
        for (type_, owner, wanted) in rows {
            let mut secret = Secret { type_: Some(type_.into()), ..Secret::default() };
            secret.metadata.owner_references = owner.map(|owner| vec![owner]);
            assert_eq!(judge(&secret, &data), wanted, "{secret:?}");
        }
    }

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
        assert!(matches!(yaml(&large), Err(DataRenderError::Large(..))));
    }
}
