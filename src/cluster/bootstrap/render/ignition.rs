//! User data for Ignition: its configuration 3.1, which every newer one reads, too. Pure.
//!
//! Ignition runs no commands, so a unit does, once: a script with the commands before and after and kubeadm's between them. Without
//! kubeadm's configuration, which the script takes away at its end, the unit does nothing.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{NodeFile, SENTINEL, UserData, UserDataError, unsupported};
use crate::api::bootstrap::node::{FileEncoding, Filesystem, IgnitionSpec, NodeUser, Ntp, TableType};
use crate::api::bootstrap::v1beta2::{DiskSetup, Partition};

const VERSION: &str = "3.1.0";
const CONFIG: &str = "/etc/kubeadm.yml";
const SCRIPT: &str = "/etc/kubeadm.sh";
const UNIT: &str = "[Unit]
Description=kubeadm
ConditionPathExists=/etc/kubeadm.yml
After=network-online.target
Wants=network-online.target

[Service]
Type=oneshot
ExecStart=/bin/bash /etc/kubeadm.sh

[Install]
WantedBy=multi-user.target
";

pub(super) fn render(data: &UserData<'_>) -> Result<String, UserDataError> {
    let spec = data.spec;
    if !spec.boot_commands.is_empty() {
        return Err(unsupported("spec.bootCommands", "Ignition has no commands at each boot"));
    }
    let mut files = Vec::new();
    for user in &data.users {
        if let Some(sudo) = &user.sudo {
            files.push(root_file(&format!("/etc/sudoers.d/{}", user.name), 0o600, &format!("{} {sudo}\n", user.name)));
        }
    }
    let with_password: Vec<&str> =
        data.users.iter().filter(|user| user.lock_password == Some(false)).map(|user| user.name.as_str()).collect();
    if !with_password.is_empty() {
        let text = format!("Match User {}\n  PasswordAuthentication yes\n", with_password.join(","));
        files.push(root_file("/etc/ssh/sshd_config.d/60-password.conf", 0o600, &text));
    }
    for (number, file) in data.files.iter().enumerate() {
        files.push(self::file(number, file)?);
    }
    files.push(root_file(SCRIPT, 0o700, &script(data)));
    files.push(root_file(CONFIG, 0o600, &data.kubeadm));
    let mut units = vec![json!({"name": "kubeadm.service", "enabled": true, "contents": UNIT})];
    if let Some(ntp) = spec.ntp.as_ref().filter(|ntp| ntp.enabled == Some(true)) {
        units.push(json!({"name": "ntpd.service", "enabled": true}));
        files.extend(time(ntp));
    }
    let disks = spec.disk_setup.clone().unwrap_or_default();
    for (number, mount) in spec.mounts.iter().enumerate() {
        units.push(self::mount(number, mount, &disks)?);
    }
    let mut storage = json!({ "files": files });
    let made: Result<Vec<Value>, _> = disks.partitions.iter().enumerate().map(partition).collect();
    let made = made?;
    if !made.is_empty() {
        storage["disks"] = made.into();
    }
    let made: Result<Vec<Value>, _> = disks.filesystems.iter().enumerate().map(filesystem).collect();
    let made = made?;
    if !made.is_empty() {
        storage["filesystems"] = made.into();
    }
    let mut config = json!({"ignition": {"version": VERSION}, "storage": storage, "systemd": {"units": units}});
    if !data.users.is_empty() {
        let users: Result<Vec<Value>, _> = data.users.iter().enumerate().map(user).collect();
        config["passwd"] = json!({ "users": users? });
    }
    if let Some(more) = spec.ignition.as_ref().map(additional).transpose()?.flatten() {
        config["ignition"]["config"] = json!({"merge": [{"source": url(more.as_bytes())}]});
    }
    serde_json::to_string(&config).map_err(|error| UserDataError::Text(error.to_string()))
}

/// Content as a URL.
fn url(content: &[u8]) -> String {
    format!("data:;base64,{}", STANDARD.encode(content))
}

fn script(data: &UserData<'_>) -> String {
    let mut lines = vec!["#!/bin/bash", "set -e"];
    lines.extend(data.spec.pre_kubeadm_commands.iter().map(String::as_str));
    let kubeadm = data.kubeadm_command(CONFIG);
    lines.extend([&*kubeadm, "mkdir -p /run/cluster-api", SENTINEL, "mv /etc/kubeadm.yml /tmp/"]);
    lines.extend(data.spec.post_kubeadm_commands.iter().map(String::as_str));
    let mut text = lines.join("\n");
    text.push('\n');
    text
}

fn root_file(path: &str, mode: u32, content: &str) -> Value {
    json!({"path": path, "mode": mode, "overwrite": true, "contents": {"source": url(content.as_bytes())}})
}

fn file(number: usize, file: &NodeFile) -> Result<Value, UserDataError> {
    let field = |name: &str| format!("spec.files[{number}].{name}");
    let content = match file.encoding {
        None => file.content.clone(),
        Some(FileEncoding::Base64) => {
            let plain: Vec<u8> = file.content.iter().filter(|byte| !byte.is_ascii_whitespace()).copied().collect();
            STANDARD.decode(plain).map_err(|_| unsupported(field("content"), "it is no base64"))?
        }
        Some(FileEncoding::Gzip | FileEncoding::GzipBase64) => {
            return Err(unsupported(field("encoding"), "Ignition has no compressed files here"));
        }
    };
    let source = json!({ "source": url(&content) });
    let mut made = Map::new();
    made.insert("path".into(), file.path.as_str().into());
    if file.append == Some(true) {
        made.insert("append".into(), json!([source]));
    } else {
        made.insert("overwrite".into(), true.into());
        made.insert("contents".into(), source);
    }
    if let Some(permissions) = &file.permissions {
        let mode = u32::from_str_radix(permissions, 8).ok().filter(|mode| *mode <= 0o7777);
        let mode = mode.ok_or_else(|| unsupported(field("permissions"), "it is no octal number, as 0640"))?;
        made.insert("mode".into(), mode.into());
    }
    let mut owner = file.owner.as_deref().unwrap_or_default().splitn(2, ':').map(str::trim);
    for part in ["user", "group"] {
        if let Some(name) = owner.next().filter(|name| !name.is_empty()) {
            made.insert(part.into(), json!({ "name": name }));
        }
    }
    Ok(made.into())
}

fn user((number, user): (usize, &NodeUser)) -> Result<Value, UserDataError> {
    if user.inactive == Some(true) {
        return Err(unsupported(format!("spec.users[{number}].inactive"), "Ignition has no inactive users"));
    }
    let mut made = Map::new();
    made.insert("name".into(), user.name.as_str().into());
    for (name, value) in [
        ("gecos", &user.gecos),
        ("homeDir", &user.home_dir),
        ("shell", &user.shell),
        ("passwordHash", &user.passwd),
        ("primaryGroup", &user.primary_group),
    ] {
        if let Some(value) = value {
            made.insert(name.into(), value.as_str().into());
        }
    }
    let groups = user.groups.as_deref().unwrap_or_default().split(',').map(str::trim);
    let groups: Vec<&str> = groups.filter(|group| !group.is_empty()).collect();
    if !groups.is_empty() {
        made.insert("groups".into(), json!(groups));
    }
    if !user.ssh_authorized_keys.is_empty() {
        made.insert("sshAuthorizedKeys".into(), json!(user.ssh_authorized_keys));
    }
    Ok(made.into())
}

/// Where ntpd has its time from. It asks others and answers nobody but this machine.
fn time(ntp: &Ntp) -> Option<Value> {
    if ntp.servers.is_empty() {
        return None;
    }
    let servers = ntp.servers.iter().map(|server| format!("server {server}\n"));
    let text = servers.collect::<String>()
        + "restrict default nomodify nopeer noquery notrap limited kod\nrestrict 127.0.0.1\nrestrict [::1]\n";
    Some(root_file("/etc/ntp.conf", 0o644, &text))
}

fn partition((number, partition): (usize, &Partition)) -> Result<Value, UserDataError> {
    let field = |name: &str| format!("spec.diskSetup.partitions[{number}].{name}");
    if partition.table_type == Some(TableType::Mbr) {
        return Err(unsupported(field("tableType"), "Ignition knows only gpt"));
    }
    if !partition.disk_layout.is_empty() {
        return Err(unsupported(field("diskLayout"), "Ignition has no percentages"));
    }
    let mut made = json!({ "device": partition.device });
    if let Some(overwrite) = partition.overwrite {
        made["wipeTable"] = overwrite.into();
    }
    if partition.layout == Some(true) {
        made["partitions"] = json!([{"number": 1}]);
    }
    Ok(made)
}

fn filesystem((number, filesystem): (usize, &Filesystem)) -> Result<Value, UserDataError> {
    let field = |name: &str| format!("spec.diskSetup.filesystems[{number}].{name}");
    for (name, value) in [("partition", &filesystem.partition), ("replaceFS", &filesystem.replace_fs)] {
        if value.is_some() {
            return Err(unsupported(field(name), "Ignition has no such thing"));
        }
    }
    let mut made = json!({"device": filesystem.device, "format": filesystem.filesystem});
    if let Some(label) = filesystem.label.as_deref().filter(|label| !label.is_empty()) {
        made["label"] = label.into();
    }
    if let Some(overwrite) = filesystem.overwrite {
        made["wipeFilesystem"] = overwrite.into();
    }
    if !filesystem.extra_opts.is_empty() {
        made["options"] = json!(filesystem.extra_opts);
    }
    Ok(made)
}

/// A unit that mounts a file system: its label or device, where, and options.
fn mount(number: usize, mount: &[String], disks: &DiskSetup) -> Result<Value, UserDataError> {
    let field = format!("spec.mounts[{number}]");
    let [what, place, options @ ..] = mount else {
        return Err(unsupported(field, "it names no file system and a folder for it"));
    };
    if mount.iter().any(|column| column.chars().any(char::is_control)) {
        return Err(unsupported(field, "it has control characters"));
    }
    let label = what.strip_prefix("LABEL=").unwrap_or(what);
    let known = disks.filesystems.iter().find(|filesystem| filesystem.label.as_deref() == Some(label));
    let device = match known {
        Some(filesystem) => filesystem.device.clone(),
        None if what.starts_with('/') => what.clone(),
        None => format!("/dev/disk/by-label/{label}"),
    };
    let name = unit_name(place).ok_or_else(|| unsupported(field, format!("{place:?} is no path of a folder")))?;
    let options = if options.is_empty() { String::new() } else { format!("Options={}\n", options.join(",")) };
    let contents = format!(
        "[Unit]\nDescription=Mount {label}\n\n[Mount]\nWhat={device}\nWhere={place}\n{options}\n[Install]\nWantedBy=multi-user.target\n"
    );
    Ok(json!({"name": format!("{name}.mount"), "enabled": true, "contents": contents}))
}

/// The name that systemd has for what is mounted at a path.
fn unit_name(path: &str) -> Option<String> {
    if !path.starts_with('/') {
        return None;
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    if parts.iter().any(|part| matches!(*part, "." | "..")) {
        return None;
    }
    if parts.is_empty() {
        return Some("-".to_owned());
    }
    let mut name = String::new();
    for (number, part) in parts.iter().enumerate() {
        if number > 0 {
            name.push('-');
        }
        for (at, byte) in part.bytes().enumerate() {
            let first = number == 0 && at == 0;
            if byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'_') || (byte == b'.' && !first) {
                name.push(char::from(byte));
            } else {
                name.push_str(&format!("\\x{byte:02x}"));
            }
        }
    }
    Some(name)
}

/// A configuration that is merged: one of Ignition's own form.
fn additional(spec: &IgnitionSpec) -> Result<Option<String>, UserDataError> {
    const FIELD: &str = "spec.ignition.containerLinuxConfig.additionalConfig";
    let config = spec.container_linux_config.as_ref().and_then(|config| config.additional_config.as_deref());
    let Some(text) = config else { return Ok(None) };
    let read: Option<Value> = serde_json::from_str(text).ok();
    let version = read.as_ref().and_then(|config| config["ignition"]["version"].as_str());
    if version.is_some_and(|version| version.starts_with("3.")) {
        return Ok(Some(text.to_owned()));
    }
    Err(unsupported(FIELD, "only a configuration of Ignition 3 in JSON is merged; others are not translated"))
}

#[cfg(test)]
mod tests {
    use super::super::KubeadmCommand;
    use super::*;
    use crate::api::bootstrap::v1beta2::KubeadmConfigSpec;

    fn spec(mut value: Value) -> KubeadmConfigSpec {
        value["format"] = "ignition".into();
        serde_json::from_value(value).unwrap()
    }

    fn data(spec: &KubeadmConfigSpec) -> UserData<'_> {
        let command = KubeadmCommand::Join;
        UserData { command, kubeadm: "---\na: b\n".into(), files: Vec::new(), users: spec.users.clone(), spec }
    }

    fn read(spec: &KubeadmConfigSpec) -> Value {
        serde_json::from_slice(&data(spec).render().unwrap()).unwrap()
    }

    fn content(config: &Value, path: &str) -> String {
        let file = config["storage"]["files"].as_array().unwrap().iter().find(|file| file["path"] == path);
        let file = file.unwrap_or_else(|| panic!("no {path}"));
        let source = file["contents"]["source"].as_str().unwrap().strip_prefix("data:;base64,").unwrap();
        String::from_utf8(STANDARD.decode(source).unwrap()).unwrap()
    }

    #[test]
    fn a_unit_runs_kubeadm_once() {
        let spec = spec(
            json!({"preKubeadmCommands": ["echo \"a\"\necho b"], "postKubeadmCommands": ["echo c"], "verbosity": 5}),
        );
        let config = read(&spec);
        assert_eq!(config["ignition"], json!({"version": "3.1.0"}));
        assert_eq!(
            content(&config, SCRIPT),
            "#!/bin/bash\nset -e\necho \"a\"\necho b\nkubeadm join --config /etc/kubeadm.yml --v 5\nmkdir -p /run/cluster-api\n\
             echo success > /run/cluster-api/bootstrap-success.complete\nmv /etc/kubeadm.yml /tmp/\necho c\n"
        );
        assert_eq!(content(&config, CONFIG), "---\na: b\n");
        assert_eq!(config["systemd"]["units"][0]["name"], "kubeadm.service");
        assert_eq!(config.get("passwd"), None);
    }

    #[test]
    fn users_time_and_disks() {
        let spec = spec(json!({
            "users": [{"name": "core", "groups": "sudo, docker", "sudo": "ALL=(ALL) NOPASSWD:ALL", "lockPassword": false,
                "passwd": "$6$x", "homeDir": "/h", "sshAuthorizedKeys": ["k"]}, {"name": "other"}],
            "ntp": {"enabled": true, "servers": ["a", "b"]},
            "diskSetup": {"partitions": [{"device": "/dev/sdb", "layout": true, "overwrite": true, "tableType": "gpt"}],
                "filesystems": [{"device": "/dev/sdb1", "filesystem": "ext4", "label": "etcd", "overwrite": false,
                    "extraOpts": ["-F"]}]},
            "mounts": [["etcd", "/var/lib/etcd-data", "noatime"], ["LABEL=x", "/x"], ["/dev/sdc", "/"]],
        }));
        let config = read(&spec);
        assert_eq!(
            config["passwd"]["users"],
            json!([{"name": "core", "groups": ["sudo", "docker"], "passwordHash": "$6$x", "homeDir": "/h",
                "sshAuthorizedKeys": ["k"]}, {"name": "other"}])
        );
        assert_eq!(content(&config, "/etc/sudoers.d/core"), "core ALL=(ALL) NOPASSWD:ALL\n");
        assert!(content(&config, "/etc/ssh/sshd_config.d/60-password.conf").starts_with("Match User core\n"));
        assert!(content(&config, "/etc/ntp.conf").starts_with("server a\nserver b\n"));
        assert_eq!(
            config["storage"]["disks"],
            json!([{"device": "/dev/sdb", "wipeTable": true, "partitions": [{"number": 1}]}])
        );
        assert_eq!(
            config["storage"]["filesystems"],
            json!([{"device": "/dev/sdb1", "format": "ext4", "label": "etcd", "wipeFilesystem": false, "options": ["-F"]}])
        );
        let units = config["systemd"]["units"].as_array().unwrap();
        let names: Vec<&str> = units.iter().map(|unit| unit["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["kubeadm.service", "ntpd.service", "var-lib-etcd\\x2ddata.mount", "x.mount", "-.mount"]);
        let unit = units[2]["contents"].as_str().unwrap();
        assert!(unit.contains("What=/dev/sdb1\nWhere=/var/lib/etcd-data\nOptions=noatime\n"), "{unit}");
        assert!(units[3]["contents"].as_str().unwrap().contains("What=/dev/disk/by-label/x\nWhere=/x\n\n[Install]"));
    }

    #[test]
    fn files_have_owners_and_modes() {
        let spec = spec(json!({}));
        let mut data = data(&spec);
        data.files = vec![
            NodeFile::of_root("/a", "0640", "x"),
            NodeFile { path: "/b".into(), append: Some(true), content: b"y".to_vec(), ..NodeFile::default() },
            NodeFile {
                path: "/c".into(),
                encoding: Some(FileEncoding::Base64),
                content: b"aGk=\n".to_vec(),
                ..NodeFile::default()
            },
        ];
        let config: Value = serde_json::from_slice(&data.render().unwrap()).unwrap();
        let files = config["storage"]["files"].as_array().unwrap();
        assert_eq!(
            files[..2],
            [
                json!({"path": "/a", "mode": 0o640, "overwrite": true, "user": {"name": "root"}, "group": {"name": "root"},
                    "contents": {"source": "data:;base64,eA=="}}),
                json!({"path": "/b", "append": [{"source": "data:;base64,eQ=="}]}),
            ]
        );
        assert_eq!(content(&config, "/c"), "hi");
        data.files = vec![NodeFile::of_root("/a", "rw", "x")];
        assert!(data.render().unwrap_err().to_string().contains("spec.files[0].permissions"));
    }

    #[test]
    fn what_ignition_does_not_know_is_named() {
        for (given, field) in [
            (json!({"bootCommands": ["x"]}), "spec.bootCommands"),
            (json!({"users": [{"name": "x", "inactive": true}]}), "spec.users[0].inactive"),
            (json!({"mounts": [["x"]]}), "spec.mounts[0]"),
            (json!({"mounts": [["x", "y"]]}), "spec.mounts[0]"),
            (json!({"mounts": [["x", "/y\nExecStart=/bin/sh"]]}), "spec.mounts[0]"),
            (json!({"mounts": [["x", "/a/../b"]]}), "spec.mounts[0]"),
            (
                json!({"diskSetup": {"partitions": [{"device": "d", "layout": true, "tableType": "mbr"}]}}),
                "partitions[0].tableType",
            ),
            (
                json!({"diskSetup": {"partitions": [{"device": "d", "diskLayout": [{"percentage": 1}]}]}}),
                "partitions[0].diskLayout",
            ),
            (
                json!({"diskSetup": {"filesystems": [{"device": "d", "filesystem": "f", "partition": "1"}]}}),
                "filesystems[0].partition",
            ),
            (json!({"ignition": {"containerLinuxConfig": {"additionalConfig": "storage: {}"}}}), "additionalConfig"),
        ] {
            let spec = spec(given);
            let error = data(&spec).render().unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
        let more = r#"{"ignition":{"version":"3.3.0"},"systemd":{}}"#;
        let config = read(&spec(json!({"ignition": {"containerLinuxConfig": {"additionalConfig": more}}})));
        assert_eq!(config["ignition"]["config"]["merge"][0]["source"], url(more.as_bytes()));
    }
}
