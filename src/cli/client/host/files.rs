//! Files that become Secrets of hosts.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::super::connect::ClientSession;
use super::super::errors::ApiRequestError;
use super::super::types::{hosts, secrets};
use crate::cli::common::read_input;

/// Bytes of a Secret's value, as the API takes them.
const MAX_DATA: u64 = 1 << 20;

/// Contents of the Secrets of each host: field of the spec, end of the Secret's name, content.
#[derive(Clone, Default)]
pub(super) struct SecretContents(Vec<(&'static str, &'static str, Vec<u8>)>);

impl SecretContents {
    pub(super) fn add(&mut self, field: &'static str, end: &'static str, content: Vec<u8>) {
        self.0.push((field, end, content));
    }

    /// Fields of the spec that name a Secret, and how the names of these end.
    pub(super) fn fields(&self) -> Vec<(&'static str, &'static str)> {
        self.0.iter().map(|(field, end, _)| (*field, *end)).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Stores them for a host, which owns them: they go with it. A Secret that somebody else wrote stays as it is.
    pub(super) async fn store(&self, session: &ClientSession, host: &Value) -> Result<(), ApiRequestError> {
        for (field, end, content) in &self.0 {
            let name = format!("{}-{end}", host["metadata"]["name"].as_str().unwrap_or_default());
            let object = secret(host, &name, json!({ *field: STANDARD.encode(content) }));
            let path = secrets().path(Some(&session.namespace), Some(&name));
            session.apply(&path, &[("fieldManager", "slipway")], &object).await?;
        }
        Ok(())
    }
}

/// Reads a file, or standard input where it is called `-`.
pub(super) fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    read_input(file, MAX_DATA)
}

/// The body of a Secret that goes with a host.
fn secret(host: &Value, name: &str, data: Value) -> Value {
    let of = hosts();
    let metadata = &host["metadata"];
    let owner =
        json!({ "apiVersion": of.api_version(), "kind": of.kind, "name": metadata["name"], "uid": metadata["uid"] });
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": { "name": name, "namespace": metadata["namespace"], "ownerReferences": [owner] },
        "data": data,
    })
}
