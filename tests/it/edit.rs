//! `slipway edit` and `slipway patch` against an appliance. The editor is a script.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;

use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::process::{Appliance, DEADLINE, program};

/// An appliance with a host and a Secret, and somebody with an editor.
struct Desk {
    appliance: Appliance,
    client: kube::Client,
}

/// What a command did.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Desk {
    async fn new() -> Self {
        let appliance = Appliance::new().await;
        let client = appliance.client().await;
        let desk = Self { appliance, client };
        std::fs::create_dir(desk.folder("tmp")).unwrap();
        let metadata =
            json!({"name": "web-1", "annotations": {"baremetalhost.metal3.io/paused": ""}, "labels": {"rack": "7"}});
        let spec = json!({"online": true, "bootMACAddress": "52:54:00:00:00:01"});
        desk.create("metal3.io/v1alpha1", "BareMetalHost", json!({"metadata": metadata, "spec": spec})).await;
        let secret = json!({"metadata": {"name": "bmc"}, "stringData": {"username": "u", "password": "hunter2"}});
        desk.create("v1", "Secret", secret).await;
        desk
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.appliance.folder().join(name)
    }

    fn objects(&self, version: &str, kind: &str) -> Api<DynamicObject> {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::default_namespaced_with(self.client.clone(), &resource)
    }

    async fn create(&self, version: &str, kind: &str, mut object: Value) {
        object["apiVersion"] = version.into();
        object["kind"] = kind.into();
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        self.objects(version, kind).create(&PostParams::default(), &object).await.unwrap();
    }

    async fn host(&self) -> Value {
        let host = self.objects("metal3.io/v1alpha1", "BareMetalHost").get("web-1").await.unwrap();
        serde_json::to_value(host).unwrap()
    }

    /// Runs a command; the editor is this script, which has the file as `$1`.
    async fn run(&self, arguments: &[&str], editor: &str) -> Ran {
        let script = self.folder("editor");
        std::fs::write(&script, format!("#!/bin/sh\nset -e\n{editor}\n")).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = tokio::process::Command::new(program());
        command
            .args(arguments)
            .env("SLIPWAY_CONFIG", self.folder("slipway.toml"))
            .env("SLIPWAY", program())
            .env("VISUAL", &script)
            .env("SEEN", self.folder("seen"))
            .env("TMPDIR", self.folder("tmp"))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = timeout(DEADLINE, command.output()).await.expect("it ends").unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    }

    /// What the editor noted.
    fn seen(&self) -> String {
        std::fs::read_to_string(self.folder("seen")).unwrap()
    }

    /// What is left of texts.
    fn left(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.folder("tmp")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_changed_in_the_editor_is_written_and_nothing_else() {
    let desk = Desk::new().await;
    let edit = ["edit", "host", "web-1"];
    let ran = desk.run(&edit, "cp \"$1\" \"$SEEN\"; sed -i 's/online: true/online: false/' \"$1\"").await;
    assert_eq!((ran.code, ran.out.as_str()), (0, "baremetalhost.metal3.io/web-1 edited\n"), "{}", ran.err);
    let seen = desk.seen();
    assert!(seen.starts_with("# BareMetalHost web-1 in namespace default."), "{seen}");
    for hidden in ["resourceVersion", "managedFields", "uid:", "status:"] {
        assert!(!seen.contains(hidden), "{hidden}: {seen}");
    }
    let host = desk.host().await;
    assert_eq!((&host["spec"]["online"], &host["metadata"]["labels"]["rack"]), (&json!(false), &json!("7")));
    let managers: Vec<&Value> =
        host["metadata"]["managedFields"].as_array().unwrap().iter().map(|entry| &entry["manager"]).collect();
    assert!(managers.contains(&&json!("slipway-edit")), "{managers:?}");

    for (editor, wanted) in [
        ("true", "baremetalhost.metal3.io/web-1 not changed\n"),
        (": > \"$1\"", "baremetalhost.metal3.io/web-1 not changed\n"),
        ("echo '# a word of mine' >> \"$1\"", "baremetalhost.metal3.io/web-1 not changed\n"),
    ] {
        let ran = desk.run(&edit, editor).await;
        assert_eq!((ran.code, ran.out.as_str()), (0, wanted), "{editor}: {}", ran.err);
    }
    assert_eq!(desk.host().await["metadata"]["resourceVersion"], host["metadata"]["resourceVersion"]);

    let both = desk.run(&["edit", "host/web-1", "secret/bmc"], "basename \"$1\" >> \"$SEEN.all\"").await;
    assert_eq!(both.out, "baremetalhost.metal3.io/web-1 not changed\nsecret/bmc not changed\n", "{}", both.err);
    let all = std::fs::read_to_string(desk.folder("seen.all")).unwrap();
    assert_eq!(all, "baremetalhost.metal3.io-web-1.yaml\nsecret-bmc.yaml\n");

    let failed = desk.run(&edit, "exit 3").await;
    assert!(failed.code == 1 && failed.err.contains("ended with exit code 3"), "{}", failed.err);
    let none = desk.run(&["edit", "host", "web-2"], "true").await;
    assert!(none.code == 1 && none.err.contains("did you mean \"web-1\"?"), "{}", none.err);
    assert_eq!(desk.run(&["edit", "hosts"], "true").await.code, 2);
    assert_eq!(desk.left(), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_is_shown_in_the_editor_again() {
    let desk = Desk::new().await;
    // First a field that there is not, then no YAML, then it is mended.
    let mends = "\
        if grep -q 'no such field\\|unknown field' \"$1\"; then cp \"$1\" \"$SEEN\"; sed -i 's/onlyne:.*/online: [/' \"$1\"
        elif grep -q 'cannot be read' \"$1\"; then sed -i 's/online: \\[/online: false/' \"$1\"
        else sed -i 's/online: true/onlyne: true/' \"$1\"; fi";
    let ran = desk.run(&["edit", "host", "web-1"], mends).await;
    assert_eq!((ran.code, ran.out.as_str()), (0, "baremetalhost.metal3.io/web-1 edited\n"), "{}", ran.err);
    let seen = desk.seen();
    assert!(seen.contains("# NOT WRITTEN:\n") && seen.contains("\n  onlyne: true\n"), "{seen}");
    assert_eq!(desk.host().await["spec"]["online"], false);
    assert_eq!(desk.left(), Vec::<PathBuf>::new());

    // Who gives up has the text.
    let gives_up = "grep -q 'NOT WRITTEN' \"$1\" || sed -i 's/^  name: web-1/  name: web-2/' \"$1\"";
    let ran = desk.run(&["edit", "host", "web-1"], gives_up).await;
    assert!(ran.code == 1 && ran.err.contains("metadata.name cannot be changed"), "{}", ran.err);
    let [folder] = &desk.left()[..] else { panic!("{:?}", desk.left()) };
    let file = folder.join("baremetalhost.metal3.io-web-1.yaml");
    assert!(ran.err.contains(&format!("your text is in {}", file.display())), "{}", ran.err);
    assert!(std::fs::read_to_string(file).unwrap().contains("  name: web-2\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_change_meanwhile_is_not_undone() {
    let desk = Desk::new().await;
    // Of another field nobody need hear.
    let beside = "\"$SLIPWAY\" patch host web-1 -p '{\"metadata\": {\"labels\": {\"rack\": \"8\"}}}' >/dev/null
        sed -i 's/online: true/online: false/' \"$1\"";
    let ran = desk.run(&["edit", "host", "web-1"], beside).await;
    assert_eq!((ran.code, ran.out.as_str()), (0, "baremetalhost.metal3.io/web-1 edited\n"), "{}", ran.err);
    let host = desk.host().await;
    assert_eq!((&host["spec"]["online"], &host["metadata"]["labels"]["rack"]), (&json!(false), &json!("8")));

    // The same field: it is asked again, and what was saved is there.
    let same = |answer: &str| {
        format!(
            "if grep -q 'NOT WRITTEN' \"$1\"; then cp \"$1\" \"$SEEN\"
               cat \"$(sed -n 's/^# Your text as you saved it: //p' \"$1\")\" >> \"$SEEN\"; {answer}
             else \"$SLIPWAY\" patch host web-1 -p '{{\"metadata\": {{\"labels\": {{\"rack\": \"theirs\", \"row\": \"3\"}}}}}}' >/dev/null
               sed -i 's/rack: .*/rack: mine/' \"$1\"; fi"
        )
    };
    let ran = desk.run(&["edit", "host", "web-1"], &same("true")).await;
    assert!(ran.code == 1 && ran.err.contains("metadata.labels.rack is now \"theirs\""), "{}", ran.err);
    assert_eq!(desk.host().await["metadata"]["labels"], json!({"rack": "theirs", "row": "3"}));
    let reset = ["patch", "host", "web-1", "-p", "{\"metadata\": {\"labels\": {\"rack\": \"8\", \"row\": null}}}"];
    assert_eq!(desk.run(&reset, "").await.code, 0);
    let ran = desk.run(&["edit", "host", "web-1"], &same("sed -i '/^# To write them/d;/^# Below/d' \"$1\"")).await;
    assert_eq!((ran.code, ran.out.as_str()), (0, "baremetalhost.metal3.io/web-1 edited\n"), "{}", ran.err);
    assert_eq!(desk.host().await["metadata"]["labels"], json!({"rack": "mine", "row": "3"}));
    let seen = desk.seen();
    assert!(seen.contains("#   metadata.labels.rack is now \"theirs\"\n"), "{seen}");
    assert_eq!(
        seen.matches("rack: mine").count(),
        2,
        "the object with the change, and the text as it was saved: {seen}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_in_no_file_that_others_can_read_nor_in_one_that_stays() {
    let desk = Desk::new().await;
    let looks =
        "stat -c %a \"$1\" \"$(dirname \"$1\")\" > \"$SEEN\"; printf 'stringData:\\n  password: changed\\n' >> \"$1\"";
    let ran = desk.run(&["edit", "secret", "bmc"], looks).await;
    assert_eq!((ran.code, ran.out.as_str()), (0, "secret/bmc edited\n"), "{}", ran.err);
    assert_eq!(desk.seen(), "600\n700\n");
    let secret = desk.objects("v1", "Secret").get("bmc").await.unwrap();
    assert_eq!(secret.data["data"], json!({"username": "dQ==", "password": "Y2hhbmdlZA=="}));
    assert_eq!(desk.left(), Vec::<PathBuf>::new());

    let gives_up = "grep -q 'NOT WRITTEN' \"$1\" || sed -i 's/password: .*/password: \"%%\"/' \"$1\"";
    let ran = desk.run(&["edit", "secret", "bmc"], gives_up).await;
    assert!(ran.code == 1 && ran.err.contains("your text is not kept"), "{}", ran.err);
    assert_eq!(desk.left(), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patch_of_each_type_changes_what_it_names() {
    let desk = Desk::new().await;
    let ok = async |arguments: &[&str]| {
        let ran = desk.run(arguments, "").await;
        assert_eq!(ran.code, 0, "{arguments:?}: {}", ran.err);
        ran.out
    };
    let fails = async |code: i32, arguments: &[&str], part: &str| {
        let ran = desk.run(arguments, "").await;
        assert_eq!(ran.code, code, "{arguments:?}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains(part), "{arguments:?}: {}", ran.err);
    };
    let patched = "baremetalhost.metal3.io/web-1 patched\n";
    let merge = ["patch", "host", "web-1", "-p", "spec: {online: false}"];
    let dry = ok(&[&merge[..], &["--dry-run"]].concat()).await;
    assert_eq!(dry, "baremetalhost.metal3.io/web-1 patched (server dry run)\n");
    assert_eq!(desk.host().await["spec"]["online"], true);
    assert_eq!(ok(&merge).await, patched);
    assert_eq!(ok(&merge).await, "baremetalhost.metal3.io/web-1 not changed\n");
    assert_eq!(desk.host().await["spec"]["online"], false);
    let json = "[{\"op\": \"replace\", \"path\": \"/spec/online\", \"value\": true}]";
    assert_eq!(ok(&["patch", "host/web-1", "--type", "json", "-p", json]).await, patched);
    assert_eq!(desk.host().await["spec"]["online"], true);
    let file = desk.folder("patch.yaml");
    std::fs::write(&file, "stringData: {password: new}\n").unwrap();
    let strategic =
        ["patch", "secret", "bmc", "--type", "strategic", "--patch-file", file.to_str().unwrap(), "-o", "name"];
    assert_eq!(ok(&strategic).await, "secret/bmc\n");
    let status = "status: {errorMessage: played, errorCount: 0, operationalStatus: OK, poweredOn: false,
        provisioning: {state: \"\", ID: \"\"}, goodCredentials: {}, triedCredentials: {}, operationHistory: {}}";
    let status = ["patch", "host", "web-1", "--subresource", "status", "-p", status];
    assert_eq!(ok(&[&status[..], &["-o", "jsonpath={.status.errorMessage}"]].concat()).await, "played");
    assert_eq!(desk.host().await["status"]["errorMessage"], "played");

    let unknown = ["patch", "host", "web-1", "-p", "spec: {onlyne: true}"];
    fails(1, &unknown, "spec.onlyne: there is no such field; did you mean online?").await;
    fails(1, &["patch", "host", "web-2", "-p", "spec: {online: true}"], "did you mean \"web-1\"?").await;
    fails(1, &["patch", "host", "web-1", "--type", "strategic", "-p", "spec: {}"], "use --type merge").await;
    fails(1, &["patch", "secret", "bmc", "--subresource", "status", "-p", "a: 1"], "secrets have no status").await;
    fails(1, &["patch", "host/web-2", "host/web-1", "-p", "spec: {online: false}"], "no host named \"web-2\"").await;
    assert_eq!(desk.host().await["spec"]["online"], false, "the rest is done");
    fails(2, &["patch", "host", "web-1"], "--patch").await;
    fails(2, &["patch", "host", "web-1", "-p", "[]"], "--type json").await;
    fails(2, &["patch", "hosts", "-p", "{}"], "name the objects").await;
}
