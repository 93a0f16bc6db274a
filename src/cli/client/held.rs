//! Hosts that are left alone on purpose: paused or detached, by whom, and how that ends. Pure functions.

use serde_json::Value;

use super::migration::is_copy;
use crate::api::metal3::{ANNOTATION_DETACHED, ANNOTATION_PAUSED};
use crate::backup::restore::PAUSED_BY;

/// What [`ANNOTATION_PAUSED`] holds on hosts that Cluster API pauses, and resumes by itself.
pub(super) const PAUSED_BY_CLUSTER_API: &str = "metal3.io/capm3";

/// A host that is left alone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HeldHost {
    /// `paused` or `detached`.
    pub word: &'static str,
    /// That in a sentence, with who did it and how it ends.
    pub reason: String,
}

/// Whether a host is left alone. Of a paused one the status stays as it was, so that it says nothing of this.
pub(super) fn held(host: &Value) -> Option<HeldHost> {
    let name = text(host, "/metadata/name");
    if let Some(by) = annotation(host, ANNOTATION_PAUSED) {
        let by = if by.is_empty() { String::new() } else { format!(" ({by})") };
        let how = no_unpause_reason(host).unwrap_or_else(|| format!("`slipway host unpause {name}` ends that"));
        return Some(HeldHost { word: "paused", reason: format!("paused{by}, so nothing is done with it: {how}") });
    }
    let is_detached = text(host, "/status/operationalStatus") == "detached";
    let asked = annotation(host, ANNOTATION_DETACHED).is_some();
    (is_detached && asked).then(|| HeldHost {
        word: "detached",
        reason: format!("detached, so its machine is left alone: `slipway host attach {name}` ends that"),
    })
}

/// Why the pause is not for `unpause` to end.
pub(super) fn no_unpause_reason(host: &Value) -> Option<String> {
    let by = annotation(host, ANNOTATION_PAUSED)?;
    let name = text(host, "/metadata/name");
    if by.starts_with(PAUSED_BY) {
        return Some(format!("a restore paused it: check its machine, then `slipway host resume {name}`"));
    }
    if is_copy(host) {
        return Some("it is the copy of a host that is being moved: finish `slipway host move`".into());
    }
    (by == PAUSED_BY_CLUSTER_API).then(|| "Cluster API paused it, and resumes it with its cluster".into())
}

fn annotation<'a>(host: &'a Value, key: &str) -> Option<&'a str> {
    host["metadata"]["annotations"][key].as_str()
}

fn text<'a>(host: &'a Value, pointer: &str) -> &'a str {
    host.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn who_is_left_alone_says_by_whom_and_how_that_ends() {
        let restored = format!("{PAUSED_BY} of a backup");
        for (key, value, status, wanted) in [
            ("other", "x", "OK", None),
            (
                ANNOTATION_PAUSED,
                "slipway host pause",
                "OK",
                Some((
                    "paused",
                    "paused (slipway host pause), so nothing is done with it: `slipway host unpause h` ends that",
                )),
            ),
            (
                ANNOTATION_PAUSED,
                "",
                "detached",
                Some(("paused", "paused, so nothing is done with it: `slipway host unpause h` ends that")),
            ),
            (ANNOTATION_PAUSED, &restored, "OK", Some(("paused", "then `slipway host resume h`"))),
            (
                ANNOTATION_PAUSED,
                PAUSED_BY_CLUSTER_API,
                "OK",
                Some(("paused", "Cluster API paused it, and resumes it with its cluster")),
            ),
            (ANNOTATION_DETACHED, "", "detached", Some(("detached", "`slipway host attach h` ends that"))),
            // It goes on until its state is a calm one.
            (ANNOTATION_DETACHED, "", "OK", None),
        ] {
            let host = json!({ "metadata": { "name": "h", "annotations": { key: value } },
                "status": { "operationalStatus": status } });
            let found = held(&host);
            assert_eq!(found.as_ref().map(|held| held.word), wanted.map(|(word, _)| word), "{key} {value}");
            if let (Some(held), Some((_, end))) = (found, wanted) {
                assert!(held.reason.ends_with(end), "{}", held.reason);
            }
        }
    }
}
