//! `spec.image` and `spec.customDeploy` (docs/design/host.md, "Image and method").

use serde_json::json;

use super::object_name;
use crate::api::metal3::{BareMetalHost, ChecksumType, HostImage};
use crate::apiserver::{FieldError, FieldFault};
use crate::image::check_host_source;
use crate::image::identity::named;
use crate::outbound::masked;

/// What `spec.image.format` may be; an empty one, which Cluster API's provider writes, counts as not given.
const FORMATS: [&str; 3] = ["raw", "qcow2", "live-iso"];
/// Formats that Metal3 knows besides.
const FOREIGN: [&str; 2] = ["vdi", "vmdk"];

pub(super) fn check(host: &BareMetalHost, errors: &mut Vec<FieldError>) {
    if host.spec.custom_deploy.as_ref().is_some_and(|deploy| deploy.method.is_empty()) {
        errors.push(FieldError::required("spec.customDeploy.method", "name the method, or leave customDeploy out"));
    }
    // Without a URL no image is asked for.
    let Some(image) = host.spec.image.as_ref().filter(|image| !image.url.is_empty()) else { return };
    let format = image.format.as_deref().unwrap_or_default();
    if !format.is_empty() && !FORMATS.contains(&format) {
        let known = FORMATS.map(|known| format!("{known:?}")).join(", ");
        let convert = match FOREIGN.contains(&format) {
            true => " (qemu-img convert -O qcow2 -c SOURCE IMAGE.qcow2 makes one of it)",
            false => "",
        };
        let detail = format!("supported values: {known}{convert}");
        errors.push(FieldError::with_value(FieldFault::NotSupported, "spec.image.format", &json!(format), detail));
    }
    object_name("spec.image.ociAuthSecretName", image.oci_auth_secret_name.as_deref().unwrap_or_default(), errors);
    if let Err(fault) = check_host_source(&image.url, None) {
        errors.push(FieldError::invalid("spec.image.url", &json!(masked(&image.url)), fault.detail));
        return;
    }
    checksum(image, format == "live-iso" || named(&image.url).is_some(), errors);
}

fn checksum(image: &HostImage, optional: bool, errors: &mut Vec<FieldError>) {
    let checksum = image.checksum.as_deref().unwrap_or_default();
    if checksum.is_empty() {
        if !optional {
            let detail = "give the checksum, or the URL of a file of checksums";
            errors.push(FieldError::required("spec.image.checksum", detail));
        }
        return;
    }
    if checksum.contains("://") {
        // Not `file`, which would be the appliance's own.
        if let Err(fault) = check_host_source(&image.url, Some(checksum)) {
            let detail = match named(&image.url) {
                Some(_) => fault.detail,
                None => "the URL of a file of checksums begins with http:// or https://".into(),
            };
            errors.push(FieldError::invalid("spec.image.checksum", &json!(masked(checksum)), detail));
        }
        return;
    }
    let digits = match image.checksum_type.unwrap_or_default() {
        ChecksumType::Md5 => vec![32],
        ChecksumType::Sha256 => vec![64],
        ChecksumType::Sha512 => vec![128],
        ChecksumType::Auto => vec![32, 64, 128],
    };
    if !digits.contains(&checksum.len()) || !checksum.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let lengths = digits.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let detail = format!("must have {lengths} hex digits, or be the URL of a file of checksums");
        errors.push(FieldError::invalid("spec.image.checksum", &json!(checksum), detail));
    }
}
