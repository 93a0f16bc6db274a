//! What an Image's status says of its import.

use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::super::{ImportProgress, hex};
use crate::api::slipway::{BootIntentSpec, Image, ImagePhase, ImageSpec};

/// Digests that a boot needs.
pub(super) fn digests(intent: BootIntentSpec) -> impl Iterator<Item = String> {
    intent.steps.into_iter().filter_map(|step| step.image).chain(intent.live_iso)
}

/// Of its spec.
pub(super) fn generation(image: &Image) -> i64 {
    image.metadata.generation.unwrap_or(0)
}

/// What every report of an attempt says.
pub(super) fn base(image: &Image, failures: i64) -> Value {
    json!({
        "observedGeneration": generation(image), "failCount": failures, "digest": null, "format": null, "sha256": null,
        "sourceHash": null, "contents": null, "contentCount": null, "publishedSince": null,
    })
}

/// Hash of what a spec says of the source.
pub(super) fn source_hash(spec: &ImageSpec) -> String {
    let ImageSpec { url, checksum, checksum_type, format, publish: _ } = spec;
    hex(&Sha256::digest(json!([url, checksum, checksum_type, format]).to_string()))
}

/// Whether the content that is there is of what the spec says of the source.
pub(super) fn is_of_this_source(image: &Image) -> bool {
    image.status.as_ref().is_some_and(|status| {
        let is_same = status.source_hash.as_ref().is_some_and(|hash| *hash == source_hash(&image.spec));
        status.phase == ImagePhase::Ready && status.digest.is_some() && is_same
    })
}

/// The pause before the next try: doubles with each failure before.
pub(super) fn pause((first, longest): (Duration, Duration), failures: i64) -> Duration {
    let doublings = u32::try_from(failures.clamp(0, 16)).unwrap_or(16);
    first.saturating_mul(1 << doublings).min(longest)
}

/// 0 to 99; 100 is for an image that is ready.
pub(super) fn percent(progress: ImportProgress) -> u64 {
    progress.total.filter(|total| *total > 0).map_or(0, |total| (progress.read.saturating_mul(100) / total).min(99))
}

pub(super) fn merged(base: &Value, over: Value) -> Value {
    let mut merged = base.clone();
    if let (Value::Object(merged), Value::Object(over)) = (&mut merged, over) {
        merged.extend(over);
    }
    merged
}
