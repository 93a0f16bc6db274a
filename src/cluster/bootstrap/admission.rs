//! What a KubeadmConfig or a template of one must be before it is stored, beyond what its schema says. Pure.
//!
//! What a stored object breaks already does not stop another change of it.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::api::Convert;
use crate::api::bootstrap::convert::{config_to_storage, template_to_storage};
use crate::api::bootstrap::node::{ContentSource, FileEncoding, TableType};
use crate::api::bootstrap::v1beta2::{KubeadmConfig, KubeadmConfigSpec, KubeadmConfigTemplate};
use crate::api::bootstrap::{GROUP, UserDataFormat};
use crate::apiserver::{AdmissionOperation, AdmissionRequest, FieldError};

/// Rules for a KubeadmConfig.
///
/// # Errors
///
/// Every rule that the change breaks.
pub fn admit(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    judge(request, |object| {
        let config: Option<KubeadmConfig> = read(object, config_to_storage);
        config.map(|config| spec_faults(&config.spec, "spec")).unwrap_or_default()
    })
}

/// Rules for a KubeadmConfigTemplate.
///
/// # Errors
///
/// Every rule that the change breaks.
pub fn admit_template(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    judge(request, |object| {
        let template: Option<KubeadmConfigTemplate> = read(object, template_to_storage);
        let spec = template.and_then(|template| template.spec.template.spec);
        spec.map(|spec| spec_faults(&spec, "spec.template.spec")).unwrap_or_default()
    })
}

fn judge(request: &AdmissionRequest<'_>, faults: impl Fn(&Value) -> Vec<FieldError>) -> Result<(), Vec<FieldError>> {
    if request.status || request.operation == AdmissionOperation::Delete {
        return Ok(());
    }
    let mut errors = faults(request.object);
    if let Some(old) = request.old.filter(|_| !errors.is_empty()) {
        let known = faults(old);
        errors.retain(|error| !known.contains(error));
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// An object in the stored version, whichever it is asked in. One that cannot be read is left to its schema.
fn read<K: DeserializeOwned>(object: &Value, to_storage: Convert) -> Option<K> {
    let is_old = object["apiVersion"].as_str().is_some_and(|version| version == format!("{GROUP}/v1beta1"));
    let object = if is_old { to_storage(object) } else { object.clone() };
    serde_json::from_value(object).ok()
}

/// What is wrong with how kubeadm is to make a node, at a path of the object that says it.
pub fn spec_faults(spec: &KubeadmConfigSpec, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    files(spec, path, &mut errors);
    users(spec, path, &mut errors);
    if spec.format == Some(UserDataFormat::Ignition) {
        ignition(spec, path, &mut errors);
    } else if spec.ignition.is_some() {
        let format = json!(spec.format.map(UserDataFormat::word).unwrap_or_default());
        errors.push(FieldError::invalid(format!("{path}.format"), &format, "ignition is only for the format ignition"));
    }
    let partitions = spec.disk_setup.iter().flat_map(|disks| &disks.partitions);
    for (number, partition) in partitions.enumerate() {
        let sum: i64 = partition.disk_layout.iter().map(|part| i64::from(part.percentage)).sum();
        if sum > 100 {
            let path = format!("{path}.diskSetup.partitions[{number}].diskLayout");
            errors.push(FieldError::invalid(path, &json!(sum), "the percentages are more than 100 together"));
        }
    }
    let tokens = spec.init_configuration.iter().flat_map(|init| &init.bootstrap_tokens);
    for (number, token) in tokens.enumerate() {
        if !is_token(&token.token) {
            let path = format!("{path}.initConfiguration.bootstrapTokens[{number}].token");
            // It may be a secret all the same.
            errors.push(FieldError::invalid(path, &json!("…"), "it is not of the form abcdef.0123456789abcdef"));
        }
    }
    let discovery = spec.join_configuration.as_ref().and_then(|join| join.discovery.as_ref());
    let user = discovery.and_then(|discovery| Some(&discovery.file.as_ref()?.kube_config.as_ref()?.user));
    if user.is_some_and(|user| user.auth_provider.is_some() && user.exec.is_some()) {
        let path = format!("{path}.joinConfiguration.discovery.file.kubeConfig.user");
        errors.push(FieldError::forbidden(path, "there may be authProvider or exec, not both"));
    }
    errors
}

/// Whether a text is a token: six characters, a dot and sixteen.
pub fn is_token(text: &str) -> bool {
    let fine = |part: &str| part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    text.split_once('.').is_some_and(|(id, secret)| id.len() == 6 && secret.len() == 16 && fine(id) && fine(secret))
}

fn source(from: &ContentSource, path: &str, errors: &mut Vec<FieldError>) {
    for (name, value) in [("name", &from.secret.name), ("key", &from.secret.key)] {
        if value.is_empty() {
            errors.push(FieldError::required(format!("{path}.secret.{name}"), "it says which Secret, and what in it"));
        }
    }
}

fn files(spec: &KubeadmConfigSpec, path: &str, errors: &mut Vec<FieldError>) {
    let mut known = BTreeSet::new();
    for (number, file) in spec.files.iter().enumerate() {
        let path = format!("{path}.files[{number}]");
        if file.content.is_some() && file.content_from.is_some() {
            errors.push(FieldError::forbidden(&path, "a file has content or contentFrom, not both"));
        }
        if let Some(from) = &file.content_from {
            source(from, &format!("{path}.contentFrom"), errors);
        }
        if !known.insert(&file.path) {
            errors.push(FieldError::invalid(format!("{path}.path"), &json!(file.path), "another file has this path"));
        }
    }
}

fn users(spec: &KubeadmConfigSpec, path: &str, errors: &mut Vec<FieldError>) {
    for (number, user) in spec.users.iter().enumerate() {
        let path = format!("{path}.users[{number}]");
        if user.passwd.is_some() && user.passwd_from.is_some() {
            errors.push(FieldError::forbidden(&path, "a user has passwd or passwdFrom, not both"));
        }
        if let Some(from) = &user.passwd_from {
            source(from, &format!("{path}.passwdFrom"), errors);
        }
    }
}

/// What Ignition does not know.
fn ignition(spec: &KubeadmConfigSpec, path: &str, errors: &mut Vec<FieldError>) {
    let mut refuse = |field: String| {
        errors.push(FieldError::forbidden(format!("{path}.{field}"), "there is no such thing in the format ignition"));
    };
    for (number, user) in spec.users.iter().enumerate() {
        if user.inactive == Some(true) {
            refuse(format!("users[{number}].inactive"));
        }
    }
    for (number, file) in spec.files.iter().enumerate() {
        if matches!(file.encoding, Some(FileEncoding::Gzip | FileEncoding::GzipBase64)) {
            refuse(format!("files[{number}].encoding"));
        }
    }
    if !spec.boot_commands.is_empty() {
        refuse("bootCommands".to_owned());
    }
    let disks = spec.disk_setup.clone().unwrap_or_default();
    for (number, partition) in disks.partitions.iter().enumerate() {
        if partition.table_type == Some(TableType::Mbr) {
            refuse(format!("diskSetup.partitions[{number}].tableType"));
        }
    }
    for (number, filesystem) in disks.filesystems.iter().enumerate() {
        if filesystem.replace_fs.is_some() {
            refuse(format!("diskSetup.filesystems[{number}].replaceFS"));
        }
        if filesystem.partition.is_some() {
            refuse(format!("diskSetup.filesystems[{number}].partition"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(spec: Value) -> Vec<String> {
        let spec: KubeadmConfigSpec = serde_json::from_value(spec).unwrap();
        spec_faults(&spec, "spec").into_iter().map(|error| error.path).collect()
    }

    #[test]
    fn what_a_config_must_not_say() {
        let secret = json!({"secret": {"name": "s", "key": "k"}});
        let rows = [
            (json!({"files": [{"path": "/a", "content": "x"}, {"path": "/b", "contentFrom": secret}]}), vec![]),
            (json!({"files": [{"path": "/a", "content": "x", "contentFrom": secret}]}), vec!["spec.files[0]"]),
            (json!({"files": [{"path": "/a"}, {"path": "/a"}]}), vec!["spec.files[1].path"]),
            (
                json!({"files": [{"path": "/a", "contentFrom": {"secret": {"name": "", "key": ""}}}]}),
                vec!["spec.files[0].contentFrom.secret.name", "spec.files[0].contentFrom.secret.key"],
            ),
            (json!({"users": [{"name": "u", "passwd": "x", "passwdFrom": secret}]}), vec!["spec.users[0]"]),
            (json!({"ignition": {}}), vec!["spec.format"]),
            (json!({"ignition": {}, "format": "ignition"}), vec![]),
            (json!({"bootCommands": ["x"], "format": "cloud-config"}), vec![]),
            (
                json!({"format": "ignition", "bootCommands": ["x"], "users": [{"name": "u", "inactive": true}],
                    "files": [{"path": "/a", "encoding": "gzip"}],
                    "diskSetup": {"partitions": [{"device": "d", "layout": true, "tableType": "mbr"}],
                        "filesystems": [{"device": "d", "filesystem": "f", "partition": "1", "replaceFS": "x"}]}}),
                vec![
                    "spec.users[0].inactive",
                    "spec.files[0].encoding",
                    "spec.bootCommands",
                    "spec.diskSetup.partitions[0].tableType",
                    "spec.diskSetup.filesystems[0].replaceFS",
                    "spec.diskSetup.filesystems[0].partition",
                ],
            ),
            (
                json!({"diskSetup": {"partitions": [{"device": "d", "diskLayout": [{"percentage": 60}, {"percentage": 41}]}]}}),
                vec!["spec.diskSetup.partitions[0].diskLayout"],
            ),
            (
                json!({"initConfiguration": {"bootstrapTokens": [{"token": "abcdef.0123456789abcdef"}, {"token": "x"}]}}),
                vec!["spec.initConfiguration.bootstrapTokens[1].token"],
            ),
            (
                json!({"joinConfiguration": {"discovery": {"file": {"kubeConfigPath": "/k", "kubeConfig": {"user": {
                    "authProvider": {"name": "a"}, "exec": {"command": "c"}}}}}}}),
                vec!["spec.joinConfiguration.discovery.file.kubeConfig.user"],
            ),
        ];
        for (spec, wanted) in rows {
            assert_eq!(paths(spec.clone()), wanted, "{spec}");
        }
    }

    #[test]
    fn an_object_is_read_in_either_version() {
        let args = json!({"clusterConfiguration": {"apiServer": {"extraArgs": {"v": "1"}}}, "bootCommands": ["x"]});
        let old = json!({"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1", "metadata": {}, "kind": "KubeadmConfig", "spec": args});
        let read: KubeadmConfig = read(&old, config_to_storage).unwrap();
        assert_eq!(read.spec.boot_commands, ["x"]);
        for (text, wanted) in
            [("abcdef.0123456789abcdef", true), ("abcdef.0123456789abcdeF", false), ("abcdef", false), ("", false)]
        {
            assert_eq!(is_token(text), wanted, "{text}");
        }
    }
}
