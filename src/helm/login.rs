//! A login of a repository, as helm reads it: from files that are there for one call. An argument would be read by whoever sees the
//! processes of the node.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tempfile::TempDir;

use crate::api::lcm::HelmRepository;
use crate::files;

/// Longest user name or password, in bytes.
const MOST: u64 = 4096;

/// Files of a login; they go when this is dropped.
pub(super) struct LoginFiles {
    folder: TempDir,
}

impl LoginFiles {
    /// Of a repository that wants a login, which is in `NAME.username` and `NAME.password` of a folder.
    ///
    /// # Errors
    /// Which file cannot be read or written.
    pub fn new(logins: &Path, scratch: &Path, repository: &HelmRepository) -> Result<Self, String> {
        let name = &repository.auth_secret;
        let read = |part: &str| {
            let path = logins.join(format!("{name}.{part}"));
            let text = files::read_text(&path, MOST);
            text.map_err(|error| {
                format!("the login of the repository {:?} ({}): {error}", repository.name, path.display())
            })
        };
        let (username, password) = (read("username")?, read("password")?);
        let made = || -> io::Result<Self> {
            let folder = TempDir::with_prefix_in(".login-", scratch)?;
            let one =
                json!({"name": repository.name, "url": repository.url, "username": username, "password": password});
            let repositories = json!({"apiVersion": "v1", "generated": "2026-01-01T00:00:00Z", "repositories": [one]});
            write(&folder.path().join("repositories.yaml"), &repositories.to_string())?;
            let host = repository.url.trim_start_matches("oci://").split('/').next().unwrap_or_default();
            let auth = STANDARD.encode(format!("{username}:{password}"));
            write(&folder.path().join("registry.json"), &json!({"auths": {host: {"auth": auth}}}).to_string())?;
            Ok(Self { folder })
        };
        made().map_err(|error| format!("the login of the repository {:?}: {error}", repository.name))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Arguments by which helm knows the repository by its name.
    pub fn repository(&self) -> [String; 4] {
        let text = |name: &str| self.path(name).display().to_string();
        ["--repository-config".into(), text("repositories.yaml"), "--repository-cache".into(), text("cache")]
    }

    /// Arguments by which helm logs in to a registry.
    pub fn registry(&self) -> [String; 2] {
        ["--registry-config".into(), self.path("registry.json").display().to_string()]
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.write(true).create_new(true).open(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_in_files_for_as_long_as_it_is_needed() {
        let folder = tempfile::tempdir().unwrap();
        let repository =
            HelmRepository { name: "theirs".into(), url: "oci://h:5000/c".into(), auth_secret: "login".into() };
        let missing = LoginFiles::new(folder.path(), folder.path(), &repository).err().unwrap();
        assert!(missing.contains("theirs") && missing.contains("login.username"), "{missing}");
        std::fs::write(folder.path().join("login.username"), "u").unwrap();
        std::fs::write(folder.path().join("login.password"), "p").unwrap();
        let login = LoginFiles::new(folder.path(), folder.path(), &repository).unwrap();
        let [_, path] = login.registry();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, json!({"auths": {"h:5000": {"auth": STANDARD.encode("u:p")}}}).to_string());
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        drop(login);
        assert!(!Path::new(&path).exists());
    }
}
