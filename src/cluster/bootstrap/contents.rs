//! What files and users have from elsewhere: Secrets in the namespace of the KubeadmConfig, never in another one.

use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::Api;

use super::fault::BootstrapFault;
use super::render::NodeFile;
use crate::api::bootstrap::node::{ContentFormat, NodeUser, SecretKey, UserDataFile};

/// Bytes of a password's hash; one as crypt(5) has them takes some 120.
const HASH_MAX: usize = 1024;
/// Most bytes of the files' content together: user data has no room for more.
const CONTENT_MAX: usize = 1 << 20;

/// Whether a file is to be filled in.
pub fn is_template(file: &UserDataFile) -> bool {
    file.content_format == Some(ContentFormat::Template)
}

/// The files, with what is in them. `version` is that of the control plane, if it is known.
///
/// # Errors
///
/// When a Secret is not there, or has no such key; when a template cannot be filled in.
pub async fn files(
    client: &Client,
    namespace: &str,
    files: &[UserDataFile],
    version: Option<&str>,
) -> Result<Vec<NodeFile>, BootstrapFault> {
    let (mut made, mut left) = (Vec::new(), CONTENT_MAX);
    for (number, file) in files.iter().enumerate() {
        let field = format!("spec.files[{number}]");
        let mut content = match &file.content_from {
            Some(from) => secret(client, namespace, &from.secret, &field).await?,
            None => file.content.clone().unwrap_or_default().into_bytes(),
        };
        if is_template(file) {
            let text = String::from_utf8(content)
                .map_err(|_| BootstrapFault::spec(&field, "what is no text cannot be filled in"))?;
            content = filled(&text, version).map_err(|reason| BootstrapFault::spec(&field, reason))?.into_bytes();
        }
        let rest = left.checked_sub(content.len());
        left = rest.ok_or_else(|| BootstrapFault::spec(&field, "with it the files have more than 1 MiB together"))?;
        made.push(NodeFile {
            path: file.path.clone(),
            owner: file.owner.clone(),
            permissions: file.permissions.clone(),
            encoding: file.encoding,
            append: file.append,
            content,
        });
    }
    Ok(made)
}

/// The users, with the hashes of their passwords.
///
/// # Errors
///
/// When a Secret is not there, or has no such key.
pub async fn users(client: &Client, namespace: &str, users: &[NodeUser]) -> Result<Vec<NodeUser>, BootstrapFault> {
    let mut made = Vec::new();
    for (number, user) in users.iter().enumerate() {
        let mut user = user.clone();
        if let Some(from) = user.passwd_from.take() {
            let field = format!("spec.users[{number}]");
            let hash = secret(client, namespace, &from.secret, &field).await?;
            if hash.len() > HASH_MAX {
                let reason = format!("its password is longer than {HASH_MAX} bytes: that is no hash");
                return Err(BootstrapFault::spec(&field, reason));
            }
            let hash = String::from_utf8(hash).map_err(|_| BootstrapFault::spec(&field, "its password is no text"))?;
            user.passwd = Some(hash);
        }
        made.push(user);
    }
    Ok(made)
}

async fn secret(client: &Client, namespace: &str, from: &SecretKey, field: &str) -> Result<Vec<u8>, BootstrapFault> {
    let SecretKey { name, key } = from;
    let secret = Api::<Secret>::namespaced(client.clone(), namespace).get_opt(name).await?;
    let secret = secret.ok_or_else(|| BootstrapFault::spec(field, format!("there is no Secret {name:?}")))?;
    let value = secret.data.and_then(|mut data| data.remove(key));
    let value = value.ok_or_else(|| BootstrapFault::spec(field, format!("the Secret {name:?} has no key {key:?}")))?;
    Ok(value.0)
}

/// A template filled in: only the version of the control plane can be said.
fn filled(template: &str, version: Option<&str>) -> Result<String, String> {
    let (mut text, mut rest) = (String::new(), template);
    while let Some((front, behind)) = rest.split_once("{{") {
        let (inside, behind) = behind.split_once("}}").ok_or("it has {{ without }}")?;
        match inside.trim() {
            ".controlPlane.version" => {
                let version = version.ok_or("the version of the control plane is not known: the Cluster names none")?;
                text.push_str(front);
                text.push_str(version);
            }
            other => {
                let other: String = other.chars().take(60).collect();
                return Err(format!("it has {other:?}, and only .controlPlane.version is filled in"));
            }
        }
        rest = behind;
    }
    text.push_str(rest);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_filled_in() {
        for (template, version, wanted) in [
            ("a", None, Ok("a")),
            ("v={{ .controlPlane.version }};{{.controlPlane.version}}", Some("v1.35.0"), Ok("v=v1.35.0;v1.35.0")),
            ("{{ .controlPlane.version }}", None, Err("not known")),
            ("{{ if .controlPlane }}x{{ end }}", Some("v1"), Err("only .controlPlane.version")),
            ("{{ x", Some("v1"), Err("without }}")),
        ] {
            match (filled(template, version), wanted) {
                (Ok(text), Ok(wanted)) => assert_eq!(text, wanted),
                (Err(reason), Err(wanted)) => assert!(reason.contains(wanted), "{reason}"),
                (was, _) => panic!("{template}: {was:?}"),
            }
        }
    }
}
