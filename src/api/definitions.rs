//! CustomResourceDefinitions of the kinds.
//!
//! The definitions of the kinds, as `definitions.json` has them: the binary brings what was generated from the types,
//! not what generates it, which would be a twentieth of its code and a part of every start. A test holds the file
//! against the types and writes it anew (`SLIPWAY_WRITE_SCHEMAS=1 cargo test --lib the_written`).

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::ZlibDecoder;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::de::DeserializeOwned;

/// What the file has, by name (`baremetalhosts.metal3.io`).
pub(crate) fn written() -> BTreeMap<String, CustomResourceDefinition> {
    unpack(include_bytes!(concat!(env!("OUT_DIR"), "/definitions.json.zz")))
}

/// Reads one of the files that `build.rs` packs into the binary.
///
/// # Panics
///
/// When it is not what the tests saw.
pub(crate) fn unpack<T: DeserializeOwned>(packed: &[u8]) -> T {
    let mut text = Vec::new();
    let read = ZlibDecoder::new(packed).read_to_end(&mut text).map_err(serde_json::Error::io);
    read.and_then(|_| serde_json::from_slice(&text)).expect("the schemas in this binary can be read")
}

/// Holds a file against what it was generated from, or writes it.
#[cfg(test)]
pub(crate) fn held_against<T: serde::Serialize>(file: &str, generated: &T) {
    held_text(file, &(serde_json::to_string_pretty(generated).unwrap() + "\n"));
}

/// As [`held_against`], of what is no JSON.
#[cfg(test)]
pub(crate) fn held_text(file: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("SLIPWAY_WRITE_SCHEMAS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap_or_default() == text,
        "{file} is not what its types say: SLIPWAY_WRITE_SCHEMAS=1 cargo test --lib the_written"
    );
}
