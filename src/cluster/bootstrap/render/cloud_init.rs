//! User data for cloud-init. Pure.
//!
//! The text is a template of Jinja's, so that `{{ ds.meta_data.local_hostname }}` and the like are filled in on the machine. Texts with
//! such an expression stand in it as they were written: a quote inside of one would be doubled elsewhere.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};
use serde_saphyr::LitStr;

use super::{KubeadmCommand, NodeFile, SENTINEL, UserData, UserDataError, yaml};
use crate::api::bootstrap::node::{FileEncoding, Filesystem, NodeUser, Ntp, PartitionSpec, TableType};
use crate::api::bootstrap::v1beta2::Partition;

const HEADER: &str = "## template: jinja\n#cloud-config\n";
/// Makes the folder of the sentinel.
const PLACEHOLDER: &str = "/run/cluster-api/placeholder";

pub(super) fn render(data: &UserData<'_>) -> Result<String, UserDataError> {
    let config = match data.command {
        KubeadmCommand::Init => "/run/kubeadm/kubeadm.yaml",
        KubeadmCommand::Join => "/run/kubeadm/kubeadm-join-config.yaml",
    };
    let own = [
        NodeFile::of_root(config, "0640", data.kubeadm.as_bytes()),
        NodeFile::of_root(PLACEHOLDER, "0640", "This file is here for its folder.\n"),
    ];
    let spec = data.spec;
    let kubeadm = format!("{} && {SENTINEL}", data.kubeadm_command(config));
    let commands = spec.pre_kubeadm_commands.iter().chain([&kubeadm]).chain(&spec.post_kubeadm_commands);
    let disks = spec.disk_setup.as_ref();
    let document = CloudConfig {
        write_files: data.files.iter().chain(&own).map(FilePart::from).collect(),
        bootcmd: spec.boot_commands.iter().map(|command| CloudInitText(command)).collect(),
        runcmd: commands.map(|command| CloudInitText(command)).collect(),
        ntp: spec.ntp.as_ref().map(NtpPart::from),
        users: data.users.iter().map(UserPart::from).collect(),
        disk_setup: disks.into_iter().flat_map(|disks| &disks.partitions).map(disk).collect(),
        fs_setup: disks.into_iter().flat_map(|disks| &disks.filesystems).map(FilesystemPart::from).collect(),
        mounts: spec.mounts.iter().map(|mount| mount.iter().map(|column| CloudInitText(column)).collect()).collect(),
    };
    Ok(format!("{HEADER}{}", yaml(&document)?))
}

/// A text of a user's.
#[derive(Clone, Copy)]
struct CloudInitText<'a>(&'a str);

impl Serialize for CloudInitText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let stays = ["\n", "{{", "{%", "{#"].iter().any(|mark| self.0.contains(mark));
        if stays { LitStr(self.0).serialize(serializer) } else { serializer.serialize_str(self.0) }
    }
}

fn text(text: &Option<String>) -> Option<CloudInitText<'_>> {
    text.as_deref().map(CloudInitText)
}

#[derive(Serialize)]
struct CloudConfig<'a> {
    write_files: Vec<FilePart<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bootcmd: Vec<CloudInitText<'a>>,
    runcmd: Vec<CloudInitText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ntp: Option<NtpPart<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    users: Vec<UserPart<'a>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    disk_setup: BTreeMap<&'a str, DiskPart>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fs_setup: Vec<FilesystemPart<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mounts: Vec<Vec<CloudInitText<'a>>>,
}

#[derive(Serialize)]
struct FilePart<'a> {
    path: CloudInitText<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<FileEncoding>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<CloudInitText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    permissions: Option<CloudInitText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    append: Option<bool>,
    content: FileContent<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum FileContent<'a> {
    Text(CloudInitText<'a>),
    Encoded(String),
}

impl<'a> From<&'a NodeFile> for FilePart<'a> {
    fn from(file: &'a NodeFile) -> Self {
        let (encoding, content) = match (std::str::from_utf8(&file.content), file.encoding) {
            (Ok(text), encoding) => (encoding, FileContent::Text(CloudInitText(text))),
            // What is no text is encoded once more.
            (Err(_), Some(FileEncoding::Gzip | FileEncoding::GzipBase64)) => {
                (Some(FileEncoding::GzipBase64), FileContent::Encoded(STANDARD.encode(&file.content)))
            }
            (Err(_), _) => (Some(FileEncoding::Base64), FileContent::Encoded(STANDARD.encode(&file.content))),
        };
        Self {
            path: CloudInitText(&file.path),
            encoding,
            owner: text(&file.owner),
            permissions: text(&file.permissions),
            append: file.append,
            content,
        }
    }
}

#[derive(Serialize)]
struct NtpPart<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    enabled: Option<bool>,
    servers: Vec<CloudInitText<'a>>,
}

impl<'a> From<&'a Ntp> for NtpPart<'a> {
    fn from(ntp: &'a Ntp) -> Self {
        Self { enabled: ntp.enabled, servers: ntp.servers.iter().map(|server| CloudInitText(server)).collect() }
    }
}

#[derive(Serialize)]
struct UserPart<'a> {
    name: CloudInitText<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    passwd: Option<CloudInitText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gecos: Option<CloudInitText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<CloudInitText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    homedir: Option<CloudInitText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inactive: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lock_passwd: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shell: Option<CloudInitText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    primary_group: Option<CloudInitText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sudo: Option<CloudInitText<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ssh_authorized_keys: Vec<CloudInitText<'a>>,
}

impl<'a> From<&'a NodeUser> for UserPart<'a> {
    fn from(user: &'a NodeUser) -> Self {
        Self {
            name: CloudInitText(&user.name),
            passwd: text(&user.passwd),
            gecos: text(&user.gecos),
            groups: text(&user.groups),
            homedir: text(&user.home_dir),
            inactive: user.inactive,
            lock_passwd: user.lock_password,
            shell: text(&user.shell),
            primary_group: text(&user.primary_group),
            sudo: text(&user.sudo),
            ssh_authorized_keys: user.ssh_authorized_keys.iter().map(|key| CloudInitText(key)).collect(),
        }
    }
}

#[derive(Serialize)]
struct DiskPart {
    #[serde(skip_serializing_if = "Option::is_none")]
    table_type: Option<TableType>,
    layout: PartitionLayout,
    #[serde(skip_serializing_if = "Option::is_none")]
    overwrite: Option<bool>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum PartitionLayout {
    Whole(bool),
    Parts(Vec<PartitionPart>),
}

#[derive(Serialize)]
#[serde(untagged)]
enum PartitionPart {
    Percent(i32),
    Typed(i32, Code),
}

/// A number or a text, as cloud-init has it.
#[derive(Serialize)]
#[serde(untagged)]
enum Code {
    Number(u64),
    Text(String),
}

fn code(text: &str) -> Code {
    text.parse().map_or_else(|_| Code::Text(text.to_owned()), Code::Number)
}

fn disk(partition: &Partition) -> (&str, DiskPart) {
    let layout = if partition.disk_layout.is_empty() {
        PartitionLayout::Whole(partition.layout.unwrap_or_default())
    } else {
        PartitionLayout::Parts(partition.disk_layout.iter().map(part).collect())
    };
    (&partition.device, DiskPart { table_type: partition.table_type, layout, overwrite: partition.overwrite })
}

fn part(part: &PartitionSpec) -> PartitionPart {
    let code = match part.partition_type.as_deref() {
        None => return PartitionPart::Percent(part.percentage),
        Some("Linux") => Code::Number(83),
        Some("LinuxSwap") => Code::Number(82),
        Some("LinuxExtended") => Code::Number(85),
        Some("LinuxRAID") => code("fd"),
        Some("LVM") => code("8e"),
        Some("Fat32") => code("0c"),
        Some("NTFS") => code("07"),
        Some(other) => Code::Text(other.to_owned()),
    };
    PartitionPart::Typed(part.percentage, code)
}

#[derive(Serialize)]
struct FilesystemPart<'a> {
    label: Option<CloudInitText<'a>>,
    filesystem: CloudInitText<'a>,
    device: CloudInitText<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<Code>,
    #[serde(skip_serializing_if = "Option::is_none")]
    overwrite: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replace_fs: Option<CloudInitText<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    extra_opts: Vec<CloudInitText<'a>>,
}

impl<'a> From<&'a Filesystem> for FilesystemPart<'a> {
    fn from(filesystem: &'a Filesystem) -> Self {
        Self {
            label: text(&filesystem.label),
            filesystem: CloudInitText(&filesystem.filesystem),
            device: CloudInitText(&filesystem.device),
            partition: filesystem.partition.as_deref().map(code),
            overwrite: filesystem.overwrite,
            replace_fs: text(&filesystem.replace_fs),
            extra_opts: filesystem.extra_opts.iter().map(|option| CloudInitText(option)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::bootstrap::v1beta2::KubeadmConfigSpec;

    fn spec(value: Value) -> KubeadmConfigSpec {
        serde_json::from_value(value).unwrap()
    }

    fn data(spec: &KubeadmConfigSpec, command: KubeadmCommand) -> UserData<'_> {
        UserData { command, kubeadm: "---\na: b\n".into(), files: Vec::new(), users: spec.users.clone(), spec }
    }

    fn read(data: &UserData<'_>) -> Value {
        let text = String::from_utf8(data.render().unwrap()).unwrap();
        let body = text.strip_prefix(HEADER).unwrap_or_else(|| panic!("{text}"));
        serde_saphyr::from_str(body).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    #[test]
    fn a_node_that_begins_a_cluster() {
        let spec = spec(json!({
            "preKubeadmCommands": ["echo \"before\""], "postKubeadmCommands": ["echo 'after': x"], "bootCommands": ["modprobe x"],
            "verbosity": 4,
        }));
        let mut data = data(&spec, KubeadmCommand::Init);
        data.files = vec![NodeFile::of_root("/etc/kubernetes/pki/ca.crt", "0640", "-----BEGIN\nx\n")];
        let wanted = json!({
            "write_files": [
                {"path": "/etc/kubernetes/pki/ca.crt", "owner": "root:root", "permissions": "0640", "content": "-----BEGIN\nx\n"},
                {"path": "/run/kubeadm/kubeadm.yaml", "owner": "root:root", "permissions": "0640", "content": "---\na: b\n"},
                {"path": PLACEHOLDER, "owner": "root:root", "permissions": "0640",
                    "content": "This file is here for its folder.\n"},
            ],
            "bootcmd": ["modprobe x"],
            "runcmd": ["echo \"before\"",
                "kubeadm init --config /run/kubeadm/kubeadm.yaml --v 4 && echo success > /run/cluster-api/bootstrap-success.complete",
                "echo 'after': x"],
        });
        assert_eq!(read(&data), wanted);
        assert_eq!(data.render().unwrap(), data.render().unwrap());
    }

    #[test]
    fn everything_that_a_node_may_have() {
        let spec = spec(json!({
            "ntp": {"enabled": true, "servers": ["0.pool.test"]},
            "users": [{"name": "capv", "groups": "sudo, adm", "homeDir": "/h", "inactive": false, "shell": "/bin/sh", "gecos": "g",
                "passwd": "$6$x", "primaryGroup": "p", "lockPassword": true, "sudo": "ALL=(ALL) NOPASSWD:ALL",
                "sshAuthorizedKeys": ["ssh-ed25519 A a@b"]}],
            "diskSetup": {
                "partitions": [{"device": "/dev/sdb", "layout": true, "overwrite": false, "tableType": "gpt"},
                    {"device": "/dev/sdc", "diskLayout": [{"percentage": 30, "partitionType": "LinuxSwap"}, {"percentage": 20},
                        {"percentage": 10, "partitionType": "LVM"}, {"percentage": 10, "partitionType": "NTFS"}]}],
                "filesystems": [{"device": "/dev/sdb", "filesystem": "ext4", "label": "etcd_disk", "partition": "1",
                        "overwrite": true, "extraOpts": ["-E", "lazy_itable_init=1"]},
                    {"device": "/dev/sdc", "filesystem": "xfs", "partition": "auto", "replaceFS": "ntfs"}],
            },
            "mounts": [["LABEL=etcd_disk", "/var/lib/etcd"]],
        }));
        let read = read(&data(&spec, KubeadmCommand::Join));
        assert_eq!(read["ntp"], json!({"enabled": true, "servers": ["0.pool.test"]}));
        assert_eq!(
            read["users"],
            json!([{"name": "capv", "groups": "sudo, adm", "homedir": "/h", "inactive": false, "shell": "/bin/sh", "gecos": "g",
                "passwd": "$6$x", "primary_group": "p", "lock_passwd": true, "sudo": "ALL=(ALL) NOPASSWD:ALL",
                "ssh_authorized_keys": ["ssh-ed25519 A a@b"]}])
        );
        assert_eq!(
            read["disk_setup"],
            json!({"/dev/sdb": {"layout": true, "overwrite": false, "table_type": "gpt"},
                "/dev/sdc": {"layout": [[30, 82], 20, [10, "8e"], [10, 7]]}})
        );
        assert_eq!(
            read["fs_setup"],
            json!([{"device": "/dev/sdb", "filesystem": "ext4", "label": "etcd_disk", "partition": 1, "overwrite": true,
                    "extra_opts": ["-E", "lazy_itable_init=1"]},
                {"device": "/dev/sdc", "filesystem": "xfs", "label": null, "partition": "auto", "replace_fs": "ntfs"}])
        );
        assert_eq!(read["mounts"], json!([["LABEL=etcd_disk", "/var/lib/etcd"]]));
        assert_eq!(read["write_files"][0]["path"], "/run/kubeadm/kubeadm-join-config.yaml");
        assert!(
            read["runcmd"][0]
                .as_str()
                .unwrap()
                .starts_with("kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml && ")
        );
    }

    #[test]
    fn what_is_no_text_is_encoded() {
        let spec = KubeadmConfigSpec::default();
        for (content, encoding, wanted) in [
            (&b"aGk="[..], Some(FileEncoding::Base64), json!({"encoding": "base64", "content": "aGk="})),
            (&[0xff, 0][..], None, json!({"encoding": "base64", "content": "/wA="})),
            (&[0x1f, 0x8b][..], Some(FileEncoding::Gzip), json!({"encoding": "gzip+base64", "content": "H4s="})),
            (&b"text"[..], None, json!({"content": "text"})),
        ] {
            let mut data = data(&spec, KubeadmCommand::Init);
            let file = NodeFile {
                path: "/x".into(),
                encoding,
                append: Some(true),
                content: content.to_vec(),
                ..NodeFile::default()
            };
            data.files = vec![file];
            let mut wanted = wanted;
            wanted["path"] = "/x".into();
            wanted["append"] = true.into();
            assert_eq!(read(&data)["write_files"][0], wanted);
        }
    }

    #[test]
    fn expressions_stand_as_they_were_written() {
        let commands = [
            "hostnamectl set-hostname {{ ds.meta_data[\"name\"] }}",
            "echo {{ ds.meta_data['local_hostname'] }} \\ \"x\"",
            "{% if true %}x{% endif %}: y",
            "first {{ ds.x }}\nsecond 'y' \"z\"\n",
        ];
        let spec = spec(json!({ "preKubeadmCommands": commands }));
        let data = data(&spec, KubeadmCommand::Init);
        let text = String::from_utf8(data.render().unwrap()).unwrap();
        for line in commands.iter().flat_map(|command| command.lines()) {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert_eq!(read(&data)["runcmd"].as_array().unwrap()[..4], commands.map(Value::from));
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let spec = KubeadmConfigSpec::default();
        let mut data = data(&spec, KubeadmCommand::Init);
        data.files = vec![NodeFile::of_root("/x", "0600", vec![b'x'; super::super::LARGEST])];
        assert!(data.render().unwrap_err().to_string().contains("Secret"));
    }

    proptest! {
        #[test]
        fn any_text_comes_back(command in ".{0,40}|[ \\t\\n:#'\"{}%&*!|>-]{0,12}|[0-9:._+x-]{0,8}|yes|No|~|0644|---\n.*", path in "\\PC{1,20}") {
            let spec = spec(json!({"preKubeadmCommands": [command], "users": [{"name": path, "sudo": command}]}));
            let mut data = data(&spec, KubeadmCommand::Join);
            data.files = vec![NodeFile::of_root(&path, &command, command.as_bytes())];
            let read = read(&data);
            prop_assert_eq!(&read["runcmd"][0], &json!(command));
            prop_assert_eq!(&read["write_files"][0], &json!({"path": path, "owner": "root:root", "permissions": command, "content": command}));
            prop_assert_eq!(&read["users"][0], &json!({"name": path, "sudo": command}));
        }
    }
}
