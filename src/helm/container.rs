//! The controller's image, as an archive of an OCI image layout
//! (<https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md>): this program, `helm`, and the certificates of the box
//! that it was made on.

use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::hex::hex;

/// Where a program looks for the certificates of public servers.
const CERTIFICATES: &str = "etc/ssl/certs/ca-certificates.crt";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// What goes into the image.
pub struct Contents<'a> {
    /// This program.
    pub slipway: &'a mut dyn Read,
    /// Its size in bytes.
    pub slipway_size: u64,
    /// `helm`.
    pub helm: &'a mut dyn Read,
    /// Its size in bytes.
    pub helm_size: u64,
    /// Certificates of public servers, as PEM.
    pub certificates: Option<&'a [u8]>,
}

/// Writes the image under this name, as `slipway/helm-controller:1.2.3`, the same bytes of the same programs.
///
/// # Errors
/// What reading and writing give.
pub fn archive(contents: Contents<'_>, name: &str, architecture: &str, out: impl Write) -> io::Result<()> {
    let (layer, unpacked) = layer(contents)?;
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": {
            "Entrypoint": ["/slipway"],
            "Env": ["PATH=/", "HOME=/tmp"],
            "User": "65534:65534",
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{unpacked}")] },
    });
    let config = config.to_string().into_bytes();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": described(CONFIG, &config),
        "layers": [described(LAYER, &layer)],
    });
    let manifest = manifest.to_string().into_bytes();
    let mut root = described(MANIFEST, &manifest);
    root["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
    root["platform"] = json!({ "architecture": architecture, "os": "linux" });
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [root] }).to_string();
    let mut tar = tar::Builder::new(out);
    put(&mut tar, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#.as_slice(), 30, 0o644)?;
    put(&mut tar, "index.json", index.as_bytes(), index.len() as u64, 0o644)?;
    for blob in [&manifest, &config, &layer] {
        put(&mut tar, &format!("blobs/sha256/{}", digest(blob)), &blob[..], blob.len() as u64, 0o644)?;
    }
    tar.into_inner()?.flush()
}

fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn described(kind: &str, content: &[u8]) -> Value {
    json!({ "mediaType": kind, "digest": format!("sha256:{}", digest(content)), "size": content.len() })
}

/// The one layer, packed, and the digest of what it is unpacked.
fn layer(contents: Contents<'_>) -> io::Result<(Vec<u8>, String)> {
    let packed = GzEncoder::new(Vec::new(), Compression::default());
    let mut tar = tar::Builder::new(Hashed { out: packed, hash: Sha256::new() });
    put(&mut tar, "slipway", contents.slipway, contents.slipway_size, 0o755)?;
    put(&mut tar, "helm", contents.helm, contents.helm_size, 0o755)?;
    if let Some(certificates) = contents.certificates {
        put(&mut tar, CERTIFICATES, certificates, certificates.len() as u64, 0o644)?;
    }
    let Hashed { out, hash } = tar.into_inner()?;
    Ok((out.finish()?, hex(&hash.finalize())))
}

fn put(tar: &mut tar::Builder<impl Write>, path: &str, content: impl Read, size: u64, mode: u32) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(mode);
    tar.append_data(&mut header, path, content.take(size))
}

/// Counts what goes by into a digest.
struct Hashed<W> {
    out: W,
    hash: Sha256,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
