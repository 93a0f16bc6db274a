//! A bounded list of what is wrong with an object, field by field.

use std::collections::BTreeSet;

use semver::Version;
use serde_json::json;

use crate::apiserver::{FieldError, FieldFault};

/// Faults that are told at once.
const FAULTS_MAX: usize = 64;

/// What is wrong with an object.
#[derive(Default)]
pub(super) struct Faults(Vec<FieldError>);

impl Faults {
    /// The value of a field is not acceptable.
    pub(super) fn invalid(&mut self, path: impl Into<String>, value: &str, detail: impl AsRef<str>) {
        self.add(FieldError::invalid(path, &json!(value), detail));
    }

    /// A field must be given.
    pub(super) fn required(&mut self, path: impl Into<String>, detail: impl AsRef<str>) {
        self.add(FieldError::required(path, detail));
    }

    /// A field must not be given.
    pub(super) fn forbidden(&mut self, path: impl Into<String>, detail: impl AsRef<str>) {
        self.add(FieldError::forbidden(path, detail));
    }

    /// There are more of something than there may be.
    pub(super) fn too_many(&mut self, path: impl Into<String>, count: usize, most: usize) {
        if count > most {
            self.add(FieldError::new(FieldFault::TooMany, path, format!("{count}: there may be {most}")));
        }
    }

    /// A text is longer than it may be, in bytes.
    pub(super) fn too_long(&mut self, path: impl Into<String>, bytes: usize, most: usize) {
        if bytes > most {
            self.add(FieldError::new(FieldFault::TooLong, path, format!("{bytes} bytes: there may be {most}")));
        }
    }

    /// Something is there already.
    pub(super) fn once<'a>(&mut self, path: impl Into<String>, text: &'a str, seen: &mut BTreeSet<&'a str>) {
        if !seen.insert(text) {
            self.add(FieldError::new(FieldFault::Duplicate, path, format!("{text:?}")));
        }
    }

    /// The version, if it is one.
    pub(super) fn version(&mut self, path: impl Into<String>, text: &str) -> Option<Version> {
        match Version::parse(text) {
            Ok(version) => Some(version),
            Err(reason) => {
                let detail = format!("is no semantic version, such as 1.2.3 or 21.0.0+25.2: {reason}");
                self.invalid(path, text, detail);
                None
            }
        }
    }

    /// A URL of one of these schemes, with a host and without a login.
    pub(super) fn url(&mut self, path: impl Into<String>, text: &str, schemes: &[&str]) {
        let rest = schemes.iter().find_map(|scheme| text.strip_prefix(&format!("{scheme}://")));
        let authority = rest.map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
        let plain = !text.contains(|c: char| c.is_whitespace() || c.is_control());
        if !plain || authority.is_none_or(|authority| authority.is_empty() || authority.contains('@')) {
            let shown = crate::outbound::masked(text);
            let schemes = schemes.join(" or ");
            self.invalid(path, &shown, format!("is no URL of {schemes} with a host and without a login"));
        }
    }

    /// SHA-256 as 64 hexadecimal digits, in small letters as whoever compares writes them.
    pub(super) fn sha256(&mut self, path: impl Into<String>, text: &str) {
        if !is_sha256(text) {
            self.invalid(path, text, "is no SHA-256: 64 hexadecimal digits, in small letters");
        }
    }

    pub(super) fn add(&mut self, fault: FieldError) {
        if self.0.len() < FAULTS_MAX {
            self.0.push(fault);
        }
    }

    pub(super) fn end(self) -> Vec<FieldError> {
        self.0
    }
}

/// Whether a text is a SHA-256 as 64 small hexadecimal digits.
pub(super) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
