//! Images by the REST interface of Akraino's Binary Provisioning Agent, with curl: sent whole, cut off and gone on with, and by who may not.

use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::process::Command;

use crate::needs;
use crate::process::{Appliance, until};
use crate::published::Layout;

const OS: &str = "/v1/baremetalcluster/ops/edge/os_images";

/// What a request was answered.
#[derive(Debug)]
struct Answer {
    code: u16,
    headers: String,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.headers.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next_back()
    }
}

/// A person with curl, and a token or none.
struct Desk<'a> {
    appliance: &'a Appliance,
    authority: PathBuf,
    token: String,
}

impl<'a> Desk<'a> {
    /// With a token of this role in the whole cluster; empty: with none.
    async fn of(appliance: &'a Appliance, role: &str) -> Self {
        let kubeconfig = Kubeconfig::from_yaml(&appliance.kubeconfig().await).unwrap();
        let authority = kubeconfig.clusters[0].cluster.as_ref().unwrap().certificate_authority_data.clone().unwrap();
        let file = appliance.folder().join("ca.crt");
        std::fs::write(&file, STANDARD.decode(authority).unwrap()).unwrap();
        let mut token = String::new();
        if !role.is_empty() {
            let name = format!("bpa-{role}-{}", rand::random::<u32>());
            let made = appliance.slipway(&["token", "create", &name, "--role", role]).await;
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            token = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        }
        Self { appliance, authority: file, token }
    }

    fn command(&self, path: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("curl");
        command.args(["-s", "-S", "--path-as-is", "--max-time", "120", "--cacert"]).arg(&self.authority);
        // Nobody reads what a stranger sends, and curl tells no answer from HTTP/2 that comes before it has sent all.
        if self.token.is_empty() {
            command.arg("--http1.1");
        } else {
            command.arg("-H").arg(format!("Authorization: Bearer {}", self.token));
        }
        command.args(arguments).arg(format!("https://{}{path}", self.appliance.address)).kill_on_drop(true);
        command
    }

    async fn curl(&self, path: &str, arguments: &[&str]) -> Answer {
        let headers = self.appliance.folder().join("headers");
        let mut command = self.command(path, arguments);
        command.arg("-D").arg(&headers).args(["-w", "\n%{http_code}"]);
        let output = command.output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let (text, code) = said.rsplit_once('\n').unwrap();
        let headers = std::fs::read_to_string(headers).unwrap_or_default();
        let code = code.parse().unwrap_or_default();
        assert_ne!(code, 0, "{}", String::from_utf8_lossy(&output.stderr));
        Answer { code, headers, text: text.to_owned() }
    }

    /// Creates an image as the agent's clients do: by a form, with a part of which nothing is made.
    async fn create(&self, collection: &str, said: &Value) -> Answer {
        let metadata = format!("metadata={said}");
        self.curl(collection, &["-F", &metadata, "-F", "file=@/etc/hostname"]).await
    }

    async fn patch(&self, path: &str, offset: u64, file: &str) -> Answer {
        let offset = format!("Upload-Offset: {offset}");
        self.curl(
            path,
            &["-X", "PATCH", "-H", &offset, "-H", "Content-Type: application/octet-stream", "--data-binary", file],
        )
        .await
    }

    async fn offset(&self, path: &str) -> u64 {
        self.curl(path, &[]).await.json()["image_offset"].as_u64().unwrap()
    }

    /// The record of an image that is in the library, or why it is not.
    async fn imported(&self, path: &str) -> Value {
        until("it is imported", async || {
            let record = self.curl(path, &[]).await.json();
            (record["phase"] == "Ready" || record["phase"] == "Failed").then_some(record)
        })
        .await
    }
}

fn content(bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    rand::fill(&mut content[..]);
    content
}

fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_sent_cut_off_and_gone_on_with_after_a_restart() {
    if !needs::program("curl") {
        return;
    }
    let mut appliance = Appliance::new().await;
    appliance.client().await;
    let content = content(24 << 20);
    let file = |name: &str, content: &[u8]| {
        let path = appliance.folder().join(name);
        std::fs::write(&path, content).unwrap();
        format!("@{}", path.display())
    };
    let (whole, short) = (file("os", &content), file("short", &content[..99]));
    let folder = appliance.folder().to_owned();
    let said = json!({"owner": "ops", "cluster_name": "edge", "type": "os", "image_name": "os.raw", "image_length": content.len(),
        "description": {"image_records": [{"image_record_name": "debian", "repo": "site", "tag": "12"}]}});
    let path = format!("{OS}/os.raw");
    let before = {
        let desk = Desk::of(&appliance, "edit").await;
        let made = desk.create(OS, &said).await;
        assert_eq!((made.code, made.header("location")), (201, Some(path.as_str())), "{made:?}");
        let record = made.json();
        assert_eq!((&record["image_offset"], &record["upload_complete"]), (&json!(0), &json!(false)));
        for (field, value) in said.as_object().unwrap() {
            assert_eq!(record[field], *value, "{field}");
        }
        assert_eq!(desk.create(OS, &said).await.code, 409);
        for wrong in [
            json!({"image_name": "../os.raw", "image_length": 1}),
            json!({"image_name": "x", "image_length": 0}),
            json!({"image_name": "x", "image_length": 1, "owner": "other"}),
        ] {
            assert_eq!(desk.create(OS, &wrong).await.code, 400, "{wrong}");
        }
        let wrong = desk.patch(&path, 5, &whole).await;
        assert_eq!((wrong.code, wrong.header("upload-offset")), (409, Some("0")), "{wrong:?}");
        let part = desk.patch(&path, 0, &short).await;
        assert_eq!((part.code, desk.offset(&path).await), (400, 0), "{part:?}");
        // It breaks off.
        let sending = [
            "-X",
            "PATCH",
            "-H",
            "Upload-Offset: 0",
            "-H",
            "Content-Type: application/octet-stream",
            "--limit-rate",
            "4M",
            "--data-binary",
            &whole,
        ];
        let mut sends = desk.command(&path, &sending).stdout(std::process::Stdio::null()).spawn().unwrap();
        let before =
            until("some of it is there", async || Some(desk.offset(&path).await).filter(|bytes| *bytes >= 5 << 20))
                .await;
        sends.kill().await.unwrap();
        before
    };
    appliance.restart(true).await;
    appliance.client().await;
    let desk = Desk::of(&appliance, "edit").await;
    let kept = desk.offset(&path).await;
    assert!(kept >= before && kept < content.len() as u64, "{kept}: {before} were acknowledged");
    assert_eq!(desk.patch(&path, kept - 1, &whole).await.code, 409);
    std::fs::write(folder.join("rest"), &content[usize::try_from(kept).unwrap()..]).unwrap();
    let sent = desk.patch(&path, kept, &format!("@{}", folder.join("rest").display())).await;
    assert_eq!((sent.code, sent.header("upload-offset")), (204, Some(content.len().to_string().as_str())), "{sent:?}");
    let record = desk.imported(&path).await;
    assert_eq!(
        (&record["phase"], &record["upload_complete"], &record["image_offset"]),
        (&json!("Ready"), &json!(true), &json!(content.len()))
    );
    assert_eq!(desk.patch(&path, content.len() as u64, &short).await.code, 422);
    // It is an Image as any other one.
    let image = record["image"].as_str().unwrap().to_owned();
    let shown = appliance.slipway(&["get", "image", &image, "-o", "json"]).await;
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["status"]["sha256"], sha256(&content));
    assert_eq!(shown["metadata"]["labels"]["bpa.akraino.org/owner"], "ops");
    let list = desk.curl(OS, &[]).await.json();
    assert_eq!(list, json!([record]));
    assert_eq!(desk.curl("/v1/baremetalcluster/ops/far/os_images", &[]).await.json(), json!([]));
    // Other words for it, and no other length.
    let mut other = said.clone();
    other["description"] = json!({"image_records": []});
    let metadata = format!("metadata={other}");
    let put = desk.curl(&path, &["-X", "PUT", "-F", &metadata]).await;
    assert_eq!((put.code, &put.json()["description"]), (201, &other["description"]), "{put:?}");
    other["image_length"] = json!(1);
    let metadata = format!("metadata={other}");
    assert_eq!(desk.curl(&path, &["-X", "PUT", "-F", &metadata]).await.code, 409);
    assert_eq!(desk.curl(&path, &["-X", "DELETE"]).await.code, 204);
    assert_eq!(desk.curl(&path, &[]).await.code, 404);
}

/// The other two collections; and more at once than all connections may hold in memory.
#[tokio::test(flavor = "multi_thread")]
async fn programs_and_container_images_are_taken_and_of_a_large_one_nothing_is_kept_in_memory() {
    const LARGE: u64 = 420 << 20;
    if !needs::program("curl") {
        return;
    }
    let appliance = Appliance::new().await;
    appliance.client().await;
    let desk = Desk::of(&appliance, "edit").await;
    let mut layout = Layout::default();
    layout.index("example.org/tool:1", b"a tool");
    let archive = appliance.folder().join("archive");
    layout.write(&archive);
    let large = appliance.folder().join("large");
    std::fs::File::create(&large).unwrap().set_len(LARGE).unwrap();
    for (collection, type_, file) in [("container_images", "container", archive), ("binary_images", "binary", large)] {
        let length = std::fs::metadata(&file).unwrap().len();
        let all = format!("/v1/baremetalcluster/ops/edge/{collection}");
        let said =
            json!({"owner": "ops", "cluster_name": "edge", "type": type_, "image_name": "one", "image_length": length});
        assert_eq!(desk.create(&all, &said).await.code, 201, "{collection}");
        let one = format!("{all}/one");
        let file = file.display().to_string();
        let sent = desk.curl(&one, &["-X", "PATCH", "-H", "Upload-Offset: 0", "-T", &file]).await;
        assert_eq!(sent.code, 204, "{collection}: {sent:?}");
        let record = desk.imported(&one).await;
        assert_eq!((&record["phase"], &record["image_offset"]), (&json!("Ready"), &json!(length)), "{record}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_tus_sends_parts_and_a_checksum_is_held_against_what_came() {
    if !needs::program("curl") {
        return;
    }
    let appliance = Appliance::new().await;
    appliance.client().await;
    let desk = Desk::of(&appliance, "edit").await;
    let content = content(3 << 20);
    let (first, rest) = content.split_at(1 << 20);
    for (name, content) in [("first", first), ("rest", rest)] {
        std::fs::write(appliance.folder().join(name), content).unwrap();
    }
    let tus = ["-H", "Tus-Resumable: 1.0.0"];
    for (name, sum, phase) in [("good", sha256(&content), "Ready"), ("bad", "0".repeat(64), "Failed")] {
        let said = format!("Upload-Metadata: filename {},sha256 {}", STANDARD.encode(name), STANDARD.encode(&sum));
        let length = format!("Upload-Length: {}", content.len());
        let made = desk.curl(OS, &[&tus[..], &["-X", "POST", "-H", &length, "-H", &said]].concat()).await;
        assert_eq!((made.code, made.header("tus-resumable")), (201, Some("1.0.0")), "{made:?}");
        let path = made.header("location").unwrap().to_owned();
        for (part, offset) in [("first", 0), ("rest", 1 << 20)] {
            let head = desk.curl(&path, &[&tus[..], &["-I"]].concat()).await;
            assert_eq!((head.code, head.header("upload-offset")), (200, Some(offset.to_string().as_str())), "{head:?}");
            let (offset, file) =
                (format!("Upload-Offset: {offset}"), format!("@{}", appliance.folder().join(part).display()));
            let sent = [
                &tus[..],
                &[
                    "-X",
                    "PATCH",
                    "-H",
                    &offset,
                    "-H",
                    "Content-Type: application/offset+octet-stream",
                    "--data-binary",
                    &file,
                ],
            ]
            .concat();
            let sent = desk.curl(&path, &sent).await;
            assert_eq!(sent.code, 204, "{sent:?}");
        }
        let record = desk.imported(&path).await;
        assert_eq!(record["phase"], phase, "{record}");
    }
    assert_eq!(desk.curl(OS, &["-X", "OPTIONS"]).await.header("tus-version"), Some("1.0.0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_reaches_by_it_what_he_may_not() {
    if !needs::program("curl") {
        return;
    }
    let appliance = Appliance::new().await;
    appliance.client().await;
    let editor = Desk::of(&appliance, "edit").await;
    let said = json!({"image_name": "os.raw", "image_length": 99});
    assert_eq!(editor.create(OS, &said).await.code, 201);
    let path = format!("{OS}/os.raw");
    let file = appliance.folder().join("os");
    std::fs::write(&file, [7; 99]).unwrap();
    let file = format!("@{}", file.display());
    // Who may read Images, and not what was sent of them, is no sender.
    for (role, may_not) in [("", 401), ("view", 403)] {
        let desk = Desk::of(&appliance, role).await;
        assert_eq!(desk.curl(OS, &[]).await.code, may_not, "{role}");
        assert_eq!(desk.curl(&path, &[]).await.code, may_not, "{role}");
        assert_eq!(desk.create(OS, &json!({"image_name": "x", "image_length": 1})).await.code, may_not, "{role}");
        assert_eq!(desk.patch(&path, 0, &file).await.code, may_not, "{role}");
        assert_eq!(desk.curl(&path, &["-X", "DELETE"]).await.code, may_not, "{role}");
    }
    for path in [
        "/v1/baremetalcluster/ops/edge/os_images/../../../../api/v1/secrets",
        "/v1/baremetalcluster/ops/edge/os_images/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/v1/baremetalcluster/ops/edge/os_images/os.raw%00",
        "/v1/baremetalcluster/../edge/os_images",
        "/v1/baremetalcluster/ops/edge/os_images/os.raw/upload",
        "/v1/baremetalcluster/ops/edge/other",
    ] {
        assert_eq!(editor.curl(path, &[]).await.code, 404, "{path}");
    }
    assert_eq!(editor.curl(&format!("{OS}/{}", "x".repeat(300)), &[]).await.code, 404);
    // An Image of somebody else under that name is not shown, and not removed, by these words.
    let name = editor.curl(&path, &[]).await.json()["image"].as_str().unwrap().to_owned();
    let removed = appliance.slipway(&["image", "remove", &name]).await;
    assert!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
    let foreign = appliance.folder().join("foreign.json");
    let image = json!({"apiVersion": "slipway.dev/v1alpha1", "kind": "Image", "metadata": {"name": name}, "spec": {"url": "upload:x"}});
    std::fs::write(&foreign, image.to_string()).unwrap();
    assert!(appliance.slipway(&["apply", "-f", foreign.to_str().unwrap()]).await.status.success());
    assert_eq!(editor.curl(&path, &[]).await.code, 404);
    assert_eq!(editor.curl(&path, &["-X", "DELETE"]).await.code, 404);
    assert_eq!(editor.create(OS, &said).await.code, 409);
    // Two at once: one of them sends, and the other is told.
    let said = json!({"image_name": "race.raw", "image_length": 99});
    let both = futures::future::join(editor.create(OS, &said), editor.create(OS, &said)).await;
    let mut codes = [both.0.code, both.1.code];
    codes.sort_unstable();
    assert_eq!(codes, [201, 409]);
}
