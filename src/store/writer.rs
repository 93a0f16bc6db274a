//! Objects as they are kept: text with their revision in it.

use std::sync::Arc;

use serde_json::Value;

use super::record::ObjectIdentity;
use super::{OBJECT_LIMIT, Object, StoreWriteError};

/// Writes the texts of objects.
///
/// Texts live long, and there are many. So each is written here first and then kept in memory of just its size.
#[derive(Default)]
pub(super) struct TextWriter {
    text: Vec<u8>,
}

/// What the writer keeps between texts, in bytes.
const TEXT_KEPT: usize = 64 << 10;

impl TextWriter {
    /// The object with its revision, as text; one that is being deleted may have up to `limit` bytes.
    pub fn make(
        &mut self,
        identity: &ObjectIdentity,
        revision: u64,
        mut value: Value,
        limit: usize,
    ) -> Result<Arc<Object>, StoreWriteError> {
        set_revision(&mut value, revision);
        let is_ending = !value["metadata"]["deletionTimestamp"].is_null();
        let limit = if is_ending { limit } else { OBJECT_LIMIT };
        let json = self.write(&value)?;
        if json.len() > limit {
            return Err(StoreWriteError::TooLarge { size: json.len(), limit });
        }
        let ObjectIdentity { resource, namespace, name } = identity.clone();
        Object::new(resource, namespace, name, revision, json).map(Arc::new).map_err(unwritable)
    }

    /// The object at another revision: the last self of one that was deleted then.
    pub fn move_to(&mut self, object: &Object, revision: u64) -> Result<Arc<Object>, StoreWriteError> {
        let mut value = object.value();
        set_revision(&mut value, revision);
        let json = self.write(&value)?;
        let (resource, namespace, name) = (Arc::clone(&object.resource), object.namespace.clone(), object.name.clone());
        Object::new(resource, namespace, name, revision, json).map(Arc::new).map_err(unwritable)
    }

    fn write(&mut self, value: &Value) -> Result<&[u8], StoreWriteError> {
        self.text.clear();
        self.text.shrink_to(TEXT_KEPT);
        // Writing a `Value` to memory does not fail: its keys are strings.
        serde_json::to_writer(&mut self.text, value).map_err(unwritable)?;
        Ok(&self.text)
    }
}

fn unwritable(_: serde_json::Error) -> StoreWriteError {
    StoreWriteError::Malformed("it cannot be written as JSON")
}

fn set_revision(value: &mut Value, revision: u64) {
    let Some(fields) = value.as_object_mut() else { return };
    let metadata = fields.entry("metadata").or_insert_with(|| Value::Object(serde_json::Map::new()));
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.insert("resourceVersion".to_owned(), Value::String(revision.to_string()));
    }
}
