//! Objects that may not deserialise.
//!
//! Objects that may not be what their kind promises. Another version of this program, or a definition that somebody changed, may
//! have let through what this one cannot read; that must cost nobody but who looks for that very object.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// An object as it came.
#[derive(Clone, Debug)]
pub enum Readable<K> {
    /// One that is what its kind promises.
    Read(K),
    /// One that is not: which it is, and why it cannot be read.
    Unread(Box<(ObjectMeta, String)>),
}

/// What is read of an object that cannot be read.
#[derive(Deserialize)]
struct UnreadableObject {
    metadata: ObjectName,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectName {
    name: String,
    namespace: Option<String>,
    resource_version: Option<String>,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Readable<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let reason = match serde_json::from_str(text.get()) {
            Ok(object) => return Ok(Self::Read(object)),
            Err(reason) => reason,
        };
        let UnreadableObject { metadata } = serde_json::from_str(text.get()).map_err(Error::custom)?;
        let metadata = ObjectMeta {
            name: Some(metadata.name),
            namespace: metadata.namespace,
            resource_version: metadata.resource_version,
            ..ObjectMeta::default()
        };
        Ok(Self::Unread(Box::new((metadata, reason.to_string()))))
    }
}

impl<K: Resource<DynamicType = ()>> Resource for Readable<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Read(object) => object.meta(),
            Self::Unread(unread) => &unread.0,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Read(object) => object.meta_mut(),
            Self::Unread(unread) => &mut unread.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt;
    use kube::core::ObjectList;

    use super::*;

    #[test]
    fn what_cannot_be_read_is_named_and_the_rest_is_read() {
        let deep = format!("{}1{}", "[".repeat(500), "]".repeat(500));
        let bad = r#"{"metadata":{"name":"bad","namespace":"n","resourceVersion":"7"},"data":5}"#;
        let good = format!(r#"{{"metadata":{{"name":"good"}},"more":{deep},"data":{{"a":"b"}}}}"#);
        let list = format!(r#"{{"kind":"List","apiVersion":"v1","metadata":{{}},"items":[{bad},{good}]}}"#);
        let list: ObjectList<Readable<ConfigMap>> = serde_json::from_str(&list).expect("a list");
        let [Readable::Unread(unread), Readable::Read(good)] = list.items.as_slice() else { panic!("{list:?}") };
        assert_eq!((unread.0.name.as_deref(), unread.0.resource_version.as_deref()), (Some("bad"), Some("7")));
        assert!(!unread.1.is_empty());
        assert_eq!(good.name_any(), "good");
        assert!(serde_json::from_str::<Readable<ConfigMap>>(r#"{"data":5}"#).is_err(), "it is nobody's");
    }
}
