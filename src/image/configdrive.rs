//! Config drives: what an installed system reads at its first boot.
//!
//! The layout is OpenStack's, `openstack/<version>/…` on an ISO 9660 file system labelled `config-2`; cloud-init,
//! cloudbase-init, Ignition and glean find it by that label. The same content stands under `latest` and under
//! `2012-08-10`, the oldest version that knows all these files, as OpenStack's own tools write it.

use serde_json::{Map, Value, json};

use super::iso9660;
pub use super::iso9660::IsoError;

/// Label of the file system.
pub const LABEL: &str = "config-2";
/// Largest user data, in bytes; a Secret holds at most 1 MiB.
pub const MAX_CONTENT: usize = 16 << 20;
/// Largest metadata, and largest network data, in bytes: they are read as YAML.
pub const MAX_DOCUMENT: usize = 64 << 10;

const VERSIONS: [&str; 2] = ["2012-08-10", "latest"];

/// Content of a config drive.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfigDrive {
    /// `meta_data.json`.
    pub meta_data: Value,
    /// `user_data`, as it is.
    pub user_data: Option<Vec<u8>>,
    /// `network_data.json`.
    pub network_data: Option<Value>,
}

/// Why a config drive is not built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigDriveError {
    /// A document that is not YAML or JSON of the right shape.
    #[error("{what} is not usable: {reason}")]
    Document {
        /// `metaData` or `networkData`.
        what: &'static str,
        /// Where and why.
        reason: String,
    },
    /// More than fits.
    #[error("the config drive would hold {0} bytes, at most {MAX_CONTENT} fit")]
    TooLarge(usize),
    /// The file system cannot be built.
    #[error(transparent)]
    Iso(#[from] IsoError),
}

/// Builds the file system. The same content gives the same bytes.
pub fn build(drive: &ConfigDrive) -> Result<Vec<u8>, ConfigDriveError> {
    let mut content = vec![("meta_data.json", drive.meta_data.to_string().into_bytes())];
    if let Some(user_data) = &drive.user_data {
        content.push(("user_data", user_data.clone()));
    }
    if let Some(network_data) = &drive.network_data {
        content.push(("network_data.json", network_data.to_string().into_bytes()));
    }
    let size = content.iter().map(|(_, data)| data.len()).sum();
    if size > MAX_CONTENT {
        return Err(ConfigDriveError::TooLarge(size));
    }
    let of = |version: &str| -> Vec<(String, Vec<u8>)> {
        content.iter().map(|(name, data)| (format!("openstack/{version}/{name}"), data.clone())).collect()
    };
    let files: Vec<_> = VERSIONS.into_iter().flat_map(of).collect();
    Ok(iso9660::build(LABEL, &files)?)
}

/// `meta_data.json` of a host: the base of Metal3, and over it the user's map (YAML or JSON; empty is none).
///
/// `uid`, `namespace` and `name` are the BareMetalHost's.
pub fn meta_data(uid: &str, namespace: &str, name: &str, user: Option<&[u8]>) -> Result<Value, ConfigDriveError> {
    let base = json!({
        "uuid": uid,
        "metal3-namespace": namespace,
        "metal3-name": name,
        "local-hostname": name,
        "local_hostname": name,
        "name": name,
    });
    let mut merged = match base {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    match user.map(|text| document("metaData", text)).transpose()?.flatten() {
        None => {}
        Some(Value::Object(over)) => merged.extend(over),
        Some(_) => {
            return Err(ConfigDriveError::Document { what: "metaData", reason: "it must be a map".into() });
        }
    }
    Ok(Value::Object(merged))
}

/// `network_data.json` from YAML or JSON; empty is none.
pub fn network_data(text: &[u8]) -> Result<Option<Value>, ConfigDriveError> {
    match document("networkData", text)? {
        None => Ok(None),
        Some(value @ Value::Object(_)) => Ok(Some(value)),
        Some(_) => Err(ConfigDriveError::Document { what: "networkData", reason: "it must be a map".into() }),
    }
}

fn document(what: &'static str, text: &[u8]) -> Result<Option<Value>, ConfigDriveError> {
    let fail = |reason: String| ConfigDriveError::Document { what, reason };
    if text.len() > MAX_DOCUMENT {
        return Err(fail(format!("it has {} bytes, at most {MAX_DOCUMENT} are read", text.len())));
    }
    let text = std::str::from_utf8(text).map_err(|e| fail(e.to_string()))?;
    if text.trim().is_empty() {
        return Ok(None);
    }
    // JSON first: it is a subset of YAML but for corner cases, and its errors are better for JSON input.
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(json) if text.trim_start().starts_with('{') => yaml(text).map_err(|_| fail(json.to_string()))?,
        Err(_) => yaml(text).map_err(fail)?,
    };
    Ok(Some(value).filter(|value| !value.is_null()))
}

/// YAML, whose aliases may say again and again what is written once.
fn yaml(text: &str) -> Result<Value, String> {
    let budget = serde_saphyr::budget! { max_nodes: MAX_DOCUMENT, max_total_scalar_bytes: 16 * MAX_DOCUMENT };
    serde_saphyr::from_str_with_options(text, serde_saphyr::options! { budget: budget })
        .map_err(|error| crate::network_data::unreadable(&error))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn drive() -> ConfigDrive {
        ConfigDrive {
            meta_data: meta_data("u-1", "metal3", "node-0", Some(b"local-hostname: web\nrack: 7\nlist: [a, b]"))
                .expect("ok"),
            user_data: Some(b"#cloud-config\nhostname: web\n".to_vec()),
            network_data: network_data(b"links: []\nservices: [{type: dns, address: 1.1.1.1}]").expect("ok"),
        }
    }

    #[test]
    fn meta_data_is_the_base_and_the_users_map_over_it() {
        let data = drive().meta_data;
        assert_eq!(
            data,
            json!({"uuid": "u-1", "metal3-namespace": "metal3", "metal3-name": "node-0", "local-hostname": "web",
                   "local_hostname": "node-0", "name": "node-0", "rack": 7, "list": ["a", "b"]})
        );
        for empty in [None, Some(&b""[..]), Some(b" \n"), Some(b"{}"), Some(b"null")] {
            let data = meta_data("u", "n", "h", empty).expect("empty is none");
            assert_eq!(data.as_object().map(Map::len), Some(6));
        }
        for bad in [&b"- a"[..], b"just text", b"{\"a\":", b"a: [", &[0xff, 0xfe]] {
            let error = meta_data("u", "n", "h", Some(bad)).expect_err("refused").to_string();
            assert!(error.starts_with("metaData is not usable"), "{error}");
        }
        for secret in ["psk: SECRET\ntoken: [SECRET\na: b\n", "{\"psk\": \"SECRET\", SECRET", "- SECRET"] {
            let error = meta_data("u", "n", "h", Some(secret.as_bytes())).expect_err("refused").to_string();
            assert!(!error.contains("SECRET"), "{error}");
        }
        let long = |length: usize| format!("{{\"a\": \"{}\"}}", "x".repeat(length - 9));
        assert!(network_data(long(MAX_DOCUMENT).as_bytes()).expect("ok").is_some());
        for error in [
            network_data(long(MAX_DOCUMENT + 1).as_bytes()).expect_err("too long"),
            meta_data("u", "n", "h", Some(long(MAX_DOCUMENT + 1).as_bytes())).expect_err("too long"),
        ] {
            assert!(error.to_string().contains("65537 bytes"), "{error}");
        }
        assert_eq!(network_data(b" "), Ok(None));
        assert!(network_data(b"[1]").is_err());
    }

    #[test]
    fn the_file_system_is_what_other_tools_read() {
        let iso = build(&drive()).expect("built");
        assert_eq!(iso, build(&drive()).expect("built"), "the same content gives the same bytes");
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("drive.iso");
        std::fs::write(&path, &iso).expect("written");

        let out = Command::new("blkid").args(["-p", "-o", "export"]).arg(&path).output().expect("blkid");
        let out = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.contains("LABEL=config-2") && out.contains("TYPE=iso9660"), "{out}");

        // xorriso reads the Rock Ridge tree, or the Joliet one when told to.
        for extensions in [&["-read_fs", "norock"][..], &["-read_fs", "any"]] {
            let to = folder.path().join(extensions[1]);
            let run = Command::new("xorriso")
                .args(["-osirrox", "on", "-indev"])
                .arg(&path)
                .args(extensions)
                .args(["-extract", "/"])
                .arg(&to)
                .output()
                .expect("xorriso");
            let log = String::from_utf8_lossy(&run.stderr).into_owned();
            for version in VERSIONS {
                let at = to.join("openstack").join(version);
                let read = |name: &str| std::fs::read(at.join(name)).unwrap_or_else(|e| panic!("{name}: {e}\n{log}"));
                assert_eq!(read("user_data"), b"#cloud-config\nhostname: web\n");
                let data: Value = serde_json::from_slice(&read("meta_data.json")).expect("JSON");
                assert_eq!(data, drive().meta_data);
                let data: Value = serde_json::from_slice(&read("network_data.json")).expect("JSON");
                assert_eq!(Some(data), drive().network_data);
            }
        }
    }

    #[test]
    fn the_kernel_mounts_it() {
        if !crate::needs::root() {
            return;
        }
        let folder = tempfile::tempdir().expect("folder");
        let (path, mount) = (folder.path().join("drive.iso"), folder.path().join("mnt"));
        std::fs::write(&path, build(&drive()).expect("built")).expect("written");
        std::fs::create_dir(&mount).expect("folder");
        let run = Command::new("mount").args(["-o", "loop,ro", "-t", "iso9660"]).arg(&path).arg(&mount).output();
        let run = run.expect("mount");
        if !run.status.success() {
            // It has tried to load the module by now.
            let known = std::fs::read_to_string("/proc/filesystems").expect("proc").contains("iso9660");
            let reason = String::from_utf8_lossy(&run.stderr).into_owned();
            return if known { crate::needs::lacks(&reason) } else { crate::needs::kernel_lacks("iso9660") };
        }
        let text = std::fs::read(mount.join("openstack/latest/user_data"));
        let ended = Command::new("umount").arg(&mount).status().expect("umount");
        assert!(ended.success());
        assert_eq!(text.expect("read"), b"#cloud-config\nhostname: web\n");
    }

    #[test]
    fn large_and_empty_content_is_kept_or_refused() {
        let big = ConfigDrive { user_data: Some(vec![7; MAX_CONTENT + 1]), ..drive() };
        assert!(matches!(build(&big), Err(ConfigDriveError::TooLarge(_))));
        let empty = ConfigDrive { user_data: Some(Vec::new()), ..ConfigDrive::default() };
        assert!(build(&empty).is_ok());
        let said_again = |what: &str, times: usize| format!("a: &a {what}\nb: [{}]", "*a,".repeat(times));
        for (text, fits) in [
            (said_again("[1,2,3]", 90), true),
            (said_again(&format!("[{}]", "1,".repeat(1000)), 90), false),
            (said_again(&"x".repeat(1000), 90), true),
            (said_again(&"x".repeat(20_000), 90), false),
        ] {
            assert_eq!(meta_data("u", "n", "h", Some(text.as_bytes())).is_ok(), fits, "{}", &text[..20]);
        }
        // Read as YAML, a megabyte of the costliest kind would take the better part of a second.
        let document = |length: usize| format!("a: {}", "x".repeat(length - 3));
        for (length, fits) in [(MAX_DOCUMENT, true), (MAX_DOCUMENT + 1, false)] {
            assert_eq!(meta_data("u", "n", "h", Some(document(length).as_bytes())).is_ok(), fits, "{length}");
            assert_eq!(network_data(document(length).as_bytes()).is_ok(), fits, "{length}");
        }
    }
}
