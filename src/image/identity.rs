//! Image identity: by what a host's image is found in the library.
//!
//! A host names an Image outright (`slipway://NAME`), or names a source with a checksum, and then content of this checksum that is
//! there already serves as well. SHA-256 and SHA-512 say that content is the same. MD5 does not: anybody can make two files that
//! have the same.

use super::checksum::{Algorithm, bare};
use super::formats::is_archive;
pub use super::scheme::named;
use crate::api::metal3::{self, ChecksumType};
use crate::api::slipway::{Image, ImagePhase};

/// The format of images that are booted and not written.
const LIVE_ISO: &str = "live-iso";

/// The digest of an Image that is in the library as its spec says now.
pub fn ready(image: &Image) -> Option<&str> {
    let status = image.status.as_ref().filter(|status| status.observed_generation == image.metadata.generation)?;
    status.digest.as_deref().filter(|_| status.phase == ImagePhase::Ready)
}

/// A checksum that says that content is the same: lower-case hex of SHA-256 or SHA-512. None for MD5, the URL of a file of
/// checksums, and what is none.
pub fn proof(checksum: Option<&str>, kind: Option<ChecksumType>) -> Option<String> {
    let bare = bare(checksum?.trim(), Algorithm::wanted(kind)).ok()?;
    (bare.algorithm != Algorithm::Md5).then_some(bare.hash)
}

/// The checksums of an Image's source that are [`proof`]; none while it is not [`ready`].
pub fn proofs(image: &Image) -> Vec<String> {
    if ready(image).is_none() {
        return Vec::new();
    }
    let given = proof(image.spec.checksum.as_deref(), image.spec.checksum_type);
    let read = image.status.as_ref().and_then(|status| status.sha256.clone());
    let mut all: Vec<String> = given.into_iter().chain(read).collect();
    all.dedup();
    all
}

/// Whether an Image is what a host would get that names another source: it is there, of the same checksum, and its content is
/// taken for the same kind of image.
pub fn is_equal(image: &Image, wanted: &metal3::HostImage) -> bool {
    let Some(proof) = proof(wanted.checksum.as_deref(), wanted.checksum_type) else { return false };
    let kept = image.status.as_ref().and_then(|status| status.format.as_deref()).or(image.spec.format.as_deref());
    let same_kind = match wanted.format.as_deref().unwrap_or_default() {
        // It would be found out, as it was for this Image.
        "" => image.spec.format.is_none(),
        format if is_archive(Some(format)) => false,
        format => kept == Some(format),
    };
    same_kind && proofs(image).contains(&proof)
}

/// Whether an Image that is ready is what a host says of the one it names.
///
/// # Errors
///
/// In words, which field says something else.
pub fn agrees(image: &Image, wanted: &metal3::HostImage) -> Result<(), String> {
    let name = image.metadata.name.as_deref().unwrap_or_default();
    let kept = image.status.as_ref().and_then(|status| status.format.as_deref()).or(image.spec.format.as_deref());
    if let Some(archive) = kept.filter(|kept| is_archive(Some(kept))) {
        return Err(format!("image {name} is an archive ({archive}), and no disk: name another"));
    }
    match (wanted.format.as_deref().unwrap_or_default(), kept) {
        ("", Some(LIVE_ISO)) => {
            return Err(format!("image {name} is a live-iso: write format: live-iso in spec.image, or name another"));
        }
        (format, Some(kept)) if !format.is_empty() && format != kept => {
            return Err(format!("spec.image.format is {format}, and image {name} is {kept}"));
        }
        _ => {}
    }
    let Some(checksum) = wanted.checksum.as_deref().map(str::trim).filter(|checksum| !checksum.is_empty()) else {
        return Ok(());
    };
    let bare = |checksum: &str, kind| bare(checksum, Algorithm::wanted(kind)).map_err(|error| error.message);
    let wanted = bare(checksum, wanted.checksum_type).map_err(|reason| format!("spec.image.checksum: {reason}"))?;
    let given = image.spec.checksum.as_deref().and_then(|given| bare(given.trim(), image.spec.checksum_type).ok());
    let read = image.status.as_ref().and_then(|status| status.sha256.as_deref());
    let known = match (wanted.algorithm, read) {
        (Algorithm::Sha256, Some(read)) => Some(read.to_owned()),
        _ => given.filter(|given| given.algorithm == wanted.algorithm).map(|given| given.hash),
    };
    match known {
        Some(known) if known == wanted.hash => Ok(()),
        Some(_) => Err(format!("spec.image.checksum is not that of image {name}: correct it, or leave it out")),
        None => Err(format!("image {name} has no checksum of this kind: give its SHA-256, or leave it out")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::slipway::{ImageSpec, ImageStatus};

    fn wanted(checksum: &str, format: &str) -> metal3::HostImage {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        metal3::HostImage { checksum: some(checksum), format: some(format), ..metal3::HostImage::default() }
    }

    fn kept(checksum: &str, format: Option<&str>, found: &str, sha256: &str) -> Image {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let status = ImageStatus {
            phase: ImagePhase::Ready,
            digest: Some("d".into()),
            format: some(found),
            sha256: some(sha256),
            ..ImageStatus::default()
        };
        let spec = ImageSpec { checksum: some(checksum), format: format.map(str::to_owned), ..ImageSpec::default() };
        Image { status: Some(status), ..Image::new("i", spec) }
    }

    #[test]
    fn content_is_the_same_by_a_checksum_that_nobody_can_forge_and_as_the_same_kind_of_image() {
        let (md5, sha256, sha512) = ("a".repeat(32), "b".repeat(64), "c".repeat(128));
        let (other, upper) = ("d".repeat(64), "B".repeat(64));
        let not_ready = |change: fn(&mut ImageStatus)| {
            let mut image = kept(&sha256, None, "raw", &sha256);
            change(image.status.as_mut().expect("a status"));
            image
        };
        for (at, (image, host, equal)) in [
            (kept(&sha256, None, "raw", ""), wanted(&sha256, ""), true),
            (kept(&sha256, None, "raw", ""), wanted(&upper, "raw"), true),
            (kept("", None, "qcow2", &sha256), wanted(&sha256, "qcow2"), true),
            (kept(&sha512, None, "qcow2", &sha256), wanted(&sha512, ""), true),
            (kept("http://x/sums", None, "raw", &sha256), wanted(&sha256, ""), true),
            // What another release imported does not say what it found.
            (kept(&sha256, None, "", ""), wanted(&sha256, ""), true),
            (kept(&sha256, Some("raw"), "", ""), wanted(&sha256, "raw"), true),
            (kept(&sha256, None, "", ""), wanted(&sha256, "raw"), false),
            // The same file, taken for something else.
            (kept(&sha256, None, "qcow2", ""), wanted(&sha256, "raw"), false),
            (kept(&sha256, Some("raw"), "raw", ""), wanted(&sha256, ""), false),
            (kept(&sha256, Some("live-iso"), "live-iso", ""), wanted(&sha256, ""), false),
            (kept(&sha256, None, "raw", ""), wanted(&sha256, "live-iso"), false),
            (kept(&sha256, Some("oci"), "oci", ""), wanted(&sha256, ""), false),
            (kept(&sha256, Some("oci"), "oci", ""), wanted(&sha256, "oci"), false),
            // Another checksum, or one that proves nothing.
            (kept(&sha256, None, "raw", ""), wanted(&other, ""), false),
            (kept(&md5, None, "raw", &sha256), wanted(&md5, ""), false),
            (kept("http://x/sums", None, "raw", ""), wanted("http://x/sums", ""), false),
            (kept("", None, "raw", ""), wanted("", ""), false),
            (kept(&sha256, None, "raw", ""), wanted(&sha256[1..], ""), false),
            // Not there, or of another spec.
            (not_ready(|status| status.phase = ImagePhase::Importing), wanted(&sha256, ""), false),
            (not_ready(|status| status.observed_generation = Some(1)), wanted(&sha256, ""), false),
            (not_ready(|status| status.digest = None), wanted(&sha256, ""), false),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(is_equal(&image, &host), equal, "{at}: {image:?} {host:?}");
        }
    }

    #[test]
    fn what_a_host_says_of_the_image_it_names_must_be_so() {
        let (md5, sha256, sha512) = ("a".repeat(32), "b".repeat(64), "c".repeat(128));
        let other = "d".repeat(64);
        for (at, (image, host, fault)) in [
            (kept("", None, "raw", ""), wanted("", ""), ""),
            (kept("", Some("raw"), "raw", &sha256), wanted(&sha256, "raw"), ""),
            (kept(&md5, None, "raw", &sha256), wanted(&md5, ""), ""),
            (kept(&sha512, None, "raw", &sha256), wanted(&sha512, ""), ""),
            (kept(&sha256, None, "raw", ""), wanted(&sha256, ""), ""),
            (kept(&sha256, None, "raw", &sha256), wanted(&other, ""), "is not that of image i"),
            (kept(&md5, None, "raw", &sha256), wanted(&"e".repeat(32), ""), "is not that of image i"),
            (kept("", Some("oci"), "oci", &sha256), wanted("", ""), "and no disk"),
            (kept("", Some("packages"), "packages", &sha256), wanted("", "packages"), "and no disk"),
            (kept("", None, "raw", &sha256), wanted(&sha512, ""), "give its SHA-256"),
            (kept("", None, "raw", &sha256), wanted("sha", ""), "hex digits"),
            (kept("", None, "qcow2", &sha256), wanted("", "raw"), "image i is qcow2"),
            (kept("", Some("live-iso"), "live-iso", ""), wanted("", ""), "format: live-iso"),
            (kept("", Some("live-iso"), "", ""), wanted("", "raw"), "image i is live-iso"),
            (kept("", Some("live-iso"), "live-iso", ""), wanted("", "live-iso"), ""),
        ]
        .into_iter()
        .enumerate()
        {
            let judged = agrees(&image, &host);
            assert_eq!(judged.is_ok(), fault.is_empty(), "{at}: {judged:?}");
            assert!(judged.is_ok() || judged.as_ref().is_err_and(|reason| reason.contains(fault)), "{at}: {judged:?}");
        }
    }
}
