//! Server-side tables (meta/v1 Table): what `kubectl get` prints.
//!
//! A row is written from an object's text: only the members that its columns look at are parsed, and its metadata is
//! copied as it stands. That is what makes the table of a large rack cheap.

use jiff::Timestamp;
use serde_json::Value;

use super::columns::cells;
use super::projection::Projection;
use crate::apiserver::kinds::resource::{Conversion, ServedResource};
use crate::apiserver::requests::request::Include;
use crate::store::Object;

/// Writes rows of one resource.
pub struct TableRows {
    projection: Projection,
    include: Include,
    now: Timestamp,
}

impl TableRows {
    /// Rows as of `now`.
    pub fn new(resource: &ServedResource, include: Include, now: Timestamp) -> Self {
        Self { projection: Projection::new(&resource.columns), include, now }
    }

    /// Adds the row of a stored object.
    pub fn put(&self, out: &mut Vec<u8>, resource: &ServedResource, object: &Object) {
        let converted = resource.conversion.as_ref().map(|_| resource.served(object.value()));
        // Kept packed: to unpack it takes a good part of the time that a row does.
        let json = object.json();
        let picked = converted.is_none().then(|| self.projection.pick(&json));
        let shown = converted.as_ref().or(picked.as_ref()).unwrap_or(&Value::Null);
        out.extend_from_slice(b"{\"cells\":");
        out.extend_from_slice(cells(&resource.columns, shown, self.now).to_string().as_bytes());
        match (self.include, &converted) {
            (Include::None, _) => {}
            (Include::Metadata, _) => {
                out.extend_from_slice(b",\"object\":");
                put_partial_of(out, resource, object, &json);
            }
            (Include::Object, Some(converted)) => {
                out.extend_from_slice(b",\"object\":");
                out.extend_from_slice(converted.to_string().as_bytes());
            }
            (Include::Object, None) => {
                out.extend_from_slice(b",\"object\":");
                out.extend_from_slice(&json);
            }
        }
        out.push(b'}');
    }
}

/// Adds the object's metadata as `PartialObjectMetadata`.
pub fn put_partial(out: &mut Vec<u8>, resource: &ServedResource, object: &Object) {
    put_partial_of(out, resource, object, &object.json());
}

/// The same of an object with this text.
fn put_partial_of(out: &mut Vec<u8>, resource: &ServedResource, object: &Object, json: &[u8]) {
    out.extend_from_slice(b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":");
    match object.metadata_in(json) {
        // What versions cannot say of each other is in annotations.
        _ if matches!(resource.conversion, Some(Conversion::Kept { .. })) => {
            out.extend_from_slice(resource.served(object.value())["metadata"].to_string().as_bytes());
        }
        b"" => out.extend_from_slice(b"{}"),
        metadata => out.extend_from_slice(metadata),
    }
    out.push(b'}');
}
