//! Who may do what, as people meet it: a running appliance, `slipway token`, real kubectl, and the audit log.
//!
//! kubectl is found as in `kubectl.rs`: `$KUBECTL`, the path, or the one that `make unit` keeps.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::free_port;

/// Nothing that is waited for takes longer.
const DEADLINE: Duration = Duration::from_secs(60);

fn clients() -> Vec<PathBuf> {
    if let Some(list) = std::env::var_os("KUBECTL").filter(|list| !list.is_empty()) {
        return std::env::split_paths(&list).collect();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("kubectl"));
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let kept = home.join(".cache/slipway/kubectl-1.33/kubectl");
    let found = on_path.chain([kept]).find(|file| file.is_file());
    vec![found.expect("kubectl is needed: `make unit` fetches one, or name yours in $KUBECTL")]
}

/// A running appliance on loopback.
struct Appliance {
    folder: tempfile::TempDir,
    child: Child,
    kubectl: PathBuf,
}

impl Drop for Appliance {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Appliance {
    fn start(kubectl: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [api, boot, tftp] = [(); 3].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let config = format!(
            "data_dir = {:?}\n[api]\nlisten = \"{api}\"\n[boot]\nlisten = \"{boot}\"\ntftp = \"{tftp}\"\n",
            folder.path().join("data")
        );
        std::fs::write(folder.path().join("slipway.toml"), config).unwrap();
        let log = std::fs::File::create(folder.path().join("serve.log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_slipway"))
            .args(["serve", "--config"])
            .arg(folder.path().join("slipway.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let appliance = Self { folder, child, kubectl: kubectl.to_owned() };
        appliance.eventually("the API is up", || {
            let admin = appliance.slipway(&["kubeconfig"]).unwrap_or_default();
            std::fs::write(appliance.at("admin"), admin).unwrap();
            appliance.kubectl("admin", "get --raw /readyz", "").is_ok()
        });
        appliance
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    #[track_caller]
    fn eventually(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let end = Instant::now() + DEADLINE;
        while !holds() {
            let log = || std::fs::read_to_string(self.at("serve.log")).unwrap_or_default();
            assert!(Instant::now() < end, "not in time: {what}\n{}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Standard output, or what was complained.
    fn run(mut command: Command, input: &str) -> Result<String, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).ok();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stdout) + &text(&output.stderr))
        }
    }

    fn slipway(&self, args: &[&str]) -> Result<String, String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
        command.args(args).env("SLIPWAY_CONFIG", self.at("slipway.toml"));
        Self::run(command, "")
    }

    /// kubectl with one of the kubeconfigs in the folder.
    fn kubectl(&self, who: &str, args: &str, input: &str) -> Result<String, String> {
        let mut command = Command::new(&self.kubectl);
        command
            .args(args.split_whitespace())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder.path())
            .env("KUBECONFIG", self.at(who))
            .current_dir(self.folder.path());
        Self::run(command, input)
    }

    #[track_caller]
    fn ok(&self, who: &str, args: &str) -> String {
        self.kubectl(who, args, "").unwrap_or_else(|error| panic!("kubectl {args} as {who}: {error}"))
    }

    #[track_caller]
    fn fails(&self, who: &str, args: &str, wanted: &str) {
        match self.kubectl(who, args, "") {
            Ok(out) => panic!("kubectl {args} as {who} succeeded: {out}"),
            Err(error) => assert!(error.contains(wanted), "{wanted:?} is not in: {error}"),
        }
    }

    fn token(&self, name: &str, args: &[&str]) {
        let config = self.slipway(&[&["token", "create", name, "-o", "kubeconfig"], args].concat()).unwrap();
        std::fs::write(self.at(name), config).unwrap();
    }

    /// Lines of the audit log.
    fn audit(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.at("data/logs/audit.log")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

const HOST: &str = "apiVersion: metal3.io/v1alpha1\nkind: BareMetalHost\nmetadata: {name: web-1, namespace: rack}\n\
                    spec: {online: false}\n";

#[track_caller]
fn contains(text: &str, wanted: &[&str]) {
    for part in wanted {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

#[test]
fn a_token_may_do_what_its_roles_say_until_it_is_revoked() {
    for kubectl in clients() {
        let lab = Appliance::start(&kubectl);
        lab.ok("admin", "create namespace rack");
        lab.kubectl("admin", "apply -f -", HOST).unwrap();
        lab.ok("admin", "create clusterrole host-viewer --verb=get,list,watch --resource=baremetalhosts.metal3.io");
        lab.token("dashboard", &["--role", "host-viewer", "--ttl", "30d"]);
        contains(&lab.ok("dashboard", "get bmh -n rack"), &["web-1"]);
        contains(&lab.ok("dashboard", "get bmh -A"), &["web-1"]);
        let user = "User \"system:serviceaccount:slipway-system:dashboard\" cannot";
        lab.fails("dashboard", "get secrets -n rack", user);
        lab.fails("dashboard", "delete bmh web-1 -n rack", "cannot delete resource \"baremetalhosts\"");
        contains(&lab.ok("dashboard", "auth whoami"), &["slipway-system:dashboard", "system:authenticated"]);
        assert_eq!(lab.ok("dashboard", "auth can-i list bmh"), "yes\n");
        lab.fails("dashboard", "auth can-i delete bmh -n rack", "no");
        contains(
            &lab.ok("dashboard", "auth can-i --list -n rack"),
            &["baremetalhosts.metal3.io", "selfsubjectaccessreviews.authorization.k8s.io", "[/apis/*]"],
        );
        contains(&lab.ok("dashboard", "api-resources"), &["clusterrolebindings", "serviceaccounts"]);

        lab.token("editor", &["--role", "edit", "--in", "rack", "--group", "night-shift"]);
        contains(&lab.ok("editor", "auth whoami"), &["night-shift"]);
        lab.ok("editor", "annotate bmh web-1 -n rack seen=yes");
        lab.fails("editor", "get secrets -n default", "cannot list resource \"secrets\"");
        let listed = lab.slipway(&["token", "list"]).unwrap();
        contains(&listed, &["dashboard", "host-viewer", "editor", "edit in rack", "night-shift"]);
        let error = lab.slipway(&["token", "create", "editor"]).unwrap_err();
        contains(&error, &["a token named editor exists already"]);
        let error = lab.slipway(&["token", "create", "x", "--role", "nonsense"]).unwrap_err();
        contains(&error, &["no ClusterRole named \"nonsense\""]);

        // From any desk: with a kubeconfig of the server, and no configuration of an appliance.
        let desk = |args: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
            command.args(args).arg("--kubeconfig").arg(lab.at("admin")).env("SLIPWAY_CONFIG", "/nowhere");
            Appliance::run(command, "")
        };
        let made = desk(&["token", "create", "far", "--role", "host-viewer", "-o", "kubeconfig"]).unwrap();
        std::fs::write(lab.at("far"), made).unwrap();
        contains(&lab.ok("far", "get bmh -A"), &["web-1"]);
        let listed: Vec<Value> = serde_json::from_str(&desk(&["token", "list", "-o", "json"]).unwrap()).unwrap();
        assert!(listed.iter().any(|token| token["name"] == "far" && token["roles"][0] == "host-viewer"), "{listed:?}");
        contains(&desk(&["token", "revoke", "far"]).unwrap(), &["revoked"]);
        // What a server says, and that there is none, in words.
        let error = desk(&["token", "create", "x", "--role", "view", "--in", "nowhere"]).unwrap_err();
        contains(&error, &["--in nowhere", "namespaces \"nowhere\" not found"]);
        assert!(!error.contains("ApiError") && !error.contains("Status {"), "{error}");
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = std::fs::read_to_string(lab.at("admin")).unwrap();
        let (before, rest) = config.split_once("https://").unwrap();
        let after = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == ':');
        std::fs::write(lab.at("closed"), format!("{before}https://127.0.0.1:{port}{after}")).unwrap();
        let closed = lab.at("closed");
        let error = lab.slipway(&["token", "list", "--kubeconfig", closed.to_str().unwrap()]).unwrap_err();
        contains(&error, &["cannot reach the server", "is `slipway serve` running?"]);

        // A watch under way ends with its token, and so does everything else.
        let mut command = Command::new(&lab.kubectl);
        command.args(["get", "bmh", "-A", "-w"]).env("KUBECONFIG", lab.at("dashboard")).stdout(Stdio::null());
        let mut watching = command.stderr(Stdio::null()).spawn().unwrap();
        contains(&lab.slipway(&["token", "revoke", "dashboard"]).unwrap(), &["revoked"]);
        lab.fails("dashboard", "get bmh -A", "You must be logged in to the server");
        lab.eventually("the watch has ended", || watching.try_wait().unwrap().is_some());
        assert!(!lab.slipway(&["token", "list"]).unwrap().contains("dashboard"));
        assert!(!lab.ok("admin", "get clusterrolebindings").contains("dashboard"));
        contains(&lab.slipway(&["token", "revoke", "dashboard"]).unwrap_err(), &["no token named"]);
    }
}

#[test]
fn kubectl_makes_roles_and_the_audit_log_tells_who_did_what() {
    for kubectl in clients() {
        let lab = Appliance::start(&kubectl);
        lab.ok("admin", "create namespace rack");
        lab.ok("admin", "create serviceaccount bot -n rack");
        lab.ok("admin", "create role keeper -n rack --verb=get,list,watch,patch --resource=baremetalhosts.metal3.io");
        lab.ok("admin", "create rolebinding keeper -n rack --role=keeper --serviceaccount=rack:bot --user=ann");
        contains(&lab.ok("admin", "get roles -n rack -o wide"), &["NAME", "CREATED AT", "keeper"]);
        let wide = lab.ok("admin", "get rolebindings -n rack -o wide");
        contains(&wide, &["ROLE", "AGE", "USERS", "GROUPS", "SERVICEACCOUNTS", "Role/keeper", "ann", "rack/bot"]);
        contains(&lab.ok("admin", "describe clusterrole view"), &["baremetalhosts.metal3.io", "[get list watch]"]);
        contains(&lab.ok("admin", "describe rolebinding keeper -n rack"), &["ServiceAccount  bot   rack"]);
        contains(&lab.ok("admin", "get clusterroles"), &["admin", "cluster-admin", "edit", "system:discovery", "view"]);
        contains(&lab.ok("admin", "get sa -n rack"), &["bot", "default"]);
        assert_eq!(lab.ok("admin", "auth can-i list bmh -n rack --as ann"), "yes\n");
        assert_eq!(lab.ok("admin", "auth can-i list bmh -n rack --as system:serviceaccount:rack:bot"), "yes\n");
        lab.fails("admin", "auth can-i list bmh --as ann", "no");

        let token = lab.ok("admin", "create token bot -n rack --duration 1h");
        let config = lab.slipway(&["kubeconfig"]).unwrap();
        let head = config.lines().take_while(|line| !line.contains("client-certificate-data")).collect::<Vec<_>>();
        let tail = config.lines().skip_while(|line| !line.starts_with("contexts")).collect::<Vec<_>>();
        let config = format!("{}\n    token: {}\n{}\n", head.join("\n"), token.trim(), tail.join("\n"));
        std::fs::write(lab.at("bot"), config).unwrap();
        contains(&lab.ok("bot", "auth whoami"), &["system:serviceaccount:rack:bot"]);

        let manifest = "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: r, namespace: rack}\n\
                        rules: [{apiGroups: [''], resources: [configmaps], verbs: [get]}]\n---\n\
                        apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: r, namespace: rack}\n\
                        roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: r}\n\
                        subjects: [{kind: User, name: ann, apiGroup: rbac.authorization.k8s.io}]\n";
        let reconcile = |text: &str| lab.kubectl("admin", "auth reconcile -f -", text).unwrap();
        contains(&reconcile(manifest), &["role.rbac.authorization.k8s.io/r reconciled"]);
        contains(&reconcile(&manifest.replace("[get]", "[list]")), &["reconciled"]);
        contains(&lab.ok("admin", "get role r -n rack -o jsonpath={.rules[*].verbs}"), &["get", "list"]);
        contains(&reconcile(&manifest.replace("kind: Role, name: r", "kind: Role, name: keeper")), &["reconciled"]);
        assert_eq!(lab.ok("admin", "get rolebinding r -n rack -o jsonpath={.roleRef.name}"), "keeper");
        let changed = manifest.replace("kind: Role, name: r", "kind: ClusterRole, name: view");
        let error = lab.kubectl("admin", "apply -f -", &changed).unwrap_err();
        contains(&error, &["RoleBinding", "cannot change roleRef"]);

        lab.fails("bot", "create configmap x -n rack", "cannot create resource \"configmaps\"");
        lab.ok("admin", "create configmap x -n rack --as ann --as-group system:masters");
        let find = |lines: &[Value], test: &dyn Fn(&Value) -> bool| lines.iter().find(|line| test(line)).cloned();
        let of = |verb: &'static str, resource: &'static str, code: u16| {
            move |line: &Value| {
                line["verb"] == verb
                    && line["objectRef"]["resource"] == resource
                    && line["responseStatus"]["code"] == code
            }
        };
        // What was done last is written within some milliseconds.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let lines = loop {
            let lines = lab.audit();
            if find(&lines, &of("create", "configmaps", 201)).is_some() || std::time::Instant::now() > deadline {
                break lines;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        let made = find(&lines, &of("create", "roles", 201)).unwrap();
        assert_eq!((&made["kind"], &made["apiVersion"]), (&"Event".into(), &"audit.k8s.io/v1".into()));
        assert_eq!((&made["level"], &made["stage"]), (&"Metadata".into(), &"ResponseComplete".into()));
        assert_eq!(made["user"]["username"], "slipway-admin");
        assert_eq!(made["sourceIPs"][0], "127.0.0.1");
        assert_eq!(made["objectRef"]["name"], "keeper");
        assert_eq!(made["objectRef"]["namespace"], "rack");
        contains(made["userAgent"].as_str().unwrap(), &["kubectl/"]);
        contains(made["user"]["extra"].to_string().as_str(), &["X509SHA256="]);
        let refused = find(&lines, &of("create", "configmaps", 403)).unwrap();
        assert_eq!(refused["user"]["username"], "system:serviceaccount:rack:bot");
        let impersonated = find(&lines, &of("create", "configmaps", 201)).unwrap();
        assert_eq!(impersonated["user"]["username"], "slipway-admin");
        assert_eq!(impersonated["impersonatedUser"]["username"], "ann");
        let token_made = find(&lines, &|line| line["objectRef"]["subresource"] == "token").unwrap();
        assert_eq!(token_made["objectRef"]["name"], "bot");
        assert!(lines.iter().all(|line| !matches!(line["verb"].as_str(), Some("get" | "list" | "watch"))));
        let text = std::fs::read_to_string(lab.at("data/logs/audit.log")).unwrap();
        assert!(!text.contains(token.trim()) && !text.contains("selfsubjectaccessreviews"));
    }
}

const CREDENTIAL: &str = "apiVersion: kaas.mirantis.com/v1alpha1\nkind: BareMetalHostCredential\n\
                          metadata: {name: web-1, namespace: rack}\n\
                          spec:\n  username: root\n  password: {value: hunter2-first}\n";

#[test]
fn a_password_that_is_applied_comes_back_by_no_way() {
    for kubectl in clients() {
        let lab = Appliance::start(&kubectl);
        lab.ok("admin", "create namespace rack");
        lab.token("editor", &["--role", "edit", "--in", "rack"]);
        lab.token("viewer", &["--role", "view", "--in", "rack"]);
        let apply = |who: &str, args: &str, text: &str| lab.kubectl(who, &format!("apply {args} -f -"), text).unwrap();
        let sealed = || lab.ok("editor", "get secret web-1-bmhc-passwords -n rack -o jsonpath={.data.password}");
        let base64 = |text: &str| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text);
        let version = || lab.ok("viewer", "get bmhc web-1 -n rack -o jsonpath={.metadata.resourceVersion}");
        let mut command = Command::new(&lab.kubectl);
        command.args(["get", "bmhc", "-n", "rack", "-w", "-o", "yaml"]).env("KUBECONFIG", lab.at("viewer"));
        let seen = std::fs::File::create(lab.at("watched")).unwrap();
        let mut watching = command.stdout(seen).stderr(Stdio::null()).spawn().unwrap();

        let mut said = apply("editor", "", CREDENTIAL);
        contains(&said, &["baremetalhostcredential.kaas.mirantis.com/web-1 created"]);
        assert_eq!(sealed(), base64("hunter2-first"));
        lab.eventually("it says that it is valid", || {
            lab.ok("viewer", "get bmhc web-1 -n rack -o jsonpath={.status.valid}") == "true"
        });
        // The same file again changes nothing, though kubectl sends it: it cannot know.
        let before = version();
        said += &apply("editor", "", CREDENTIAL);
        said += &apply("editor", "-o yaml", CREDENTIAL);
        assert_eq!((version(), sealed()), (before.clone(), base64("hunter2-first")));
        said += &apply("editor", "", &CREDENTIAL.replace("first", "second"));
        assert_eq!((version(), sealed()), (before, base64("hunter2-second")));
        // What the file has not any more goes; what it names itself is kept.
        let monitored =
            CREDENTIAL.to_owned() + "  monitoringUsername: eyes\n  monitoringPassword: {value: hunter2-eyes}\n";
        said += &apply("editor", "", &monitored);
        contains(&lab.ok("viewer", "get bmhc web-1 -n rack -o yaml"), &["key: monitoringPassword"]);
        said += &apply("editor", "", CREDENTIAL);
        assert!(!lab.ok("viewer", "get bmhc web-1 -n rack -o yaml").contains("monitoring"));
        said += &apply("editor", "--server-side --force-conflicts", &CREDENTIAL.replace("first", "third"));
        said += &apply("editor", "--server-side --force-conflicts", &CREDENTIAL.replace("first", "third"));
        assert_eq!(sealed(), base64("hunter2-third"));
        said += &apply("editor", "--dry-run=server -o yaml", &CREDENTIAL.replace("first", "dry"));
        let patch =
            r#"patch bmhc web-1 -n rack --type=merge -p {"spec":{"password":{"value":"hunter2-patch"}}} -o yaml"#;
        said += &lab.ok("editor", patch);
        assert_eq!(sealed(), base64("hunter2-patch"));
        std::fs::write(lab.at("editing"), "#!/bin/sh\nsed -i 's/^  username: .*/  username: admin/; s/^  password:/  password:\\n    value: hunter2-edit/' \"$1\"\n").unwrap();
        let mut edit = Command::new(&lab.kubectl);
        edit.args(["edit", "bmhc", "web-1", "-n", "rack"]).env("KUBECONFIG", lab.at("editor"));
        edit.env("EDITOR", format!("sh {}", lab.at("editing").display()));
        said += &Appliance::run(edit, "").unwrap();
        assert_eq!(sealed(), base64("hunter2-edit"));
        contains(&lab.ok("viewer", "get bmhc -n rack"), &["web-1", "admin", "true"]);
        said += &lab.kubectl("editor", "diff -f -", &CREDENTIAL.replace("first", "diff")).unwrap_or_else(|diff| diff);
        said +=
            &lab.kubectl("editor", "create --save-config -o yaml -f -", &CREDENTIAL.replace("web-1", "web-2")).unwrap();
        said += &lab
            .kubectl(
                "editor",
                "apply -f -",
                &CREDENTIAL.replace("{value: hunter2-first}", "hunter2-odd").replace("web-1", "web-3"),
            )
            .unwrap_err();
        said += &lab.ok("viewer", "get bmhc -n rack -o yaml --show-managed-fields");
        lab.fails("viewer", "get secret web-1-bmhc-passwords -n rack", "cannot get resource \"secrets\"");
        lab.eventually("the watch has seen it", || {
            std::fs::read_to_string(lab.at("watched")).unwrap().contains("username: admin")
        });
        watching.kill().ok();
        watching.wait().ok();
        said += &std::fs::read_to_string(lab.at("watched")).unwrap();
        said += &std::fs::read_to_string(lab.at("serve.log")).unwrap();
        lab.eventually("the log has the changes", || {
            let lines = lab.audit();
            lines
                .iter()
                .any(|line| line["verb"] == "patch" && line["objectRef"]["resource"] == "baremetalhostcredentials")
        });
        said += &std::fs::read_to_string(lab.at("data/logs/audit.log")).unwrap();
        let leaks: Vec<&str> = said.lines().filter(|line| line.contains("hunter2")).collect();
        assert!(leaks.is_empty(), "{leaks:?}");
        // Nor is it in the database, nor in a backup.
        let (key, file) = (lab.at("backup.key"), lab.at("backup.age"));
        lab.slipway(&["backup", "--new-key", key.to_str().unwrap()]).unwrap();
        lab.slipway(&["backup", "--key-file", key.to_str().unwrap(), file.to_str().unwrap()]).unwrap();
        let mut folders = vec![lab.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if entry.is_dir() {
                    folders.push(entry);
                } else if entry != lab.at("editing") {
                    let bytes = std::fs::read(&entry).unwrap_or_default();
                    assert!(!bytes.windows(7).any(|part| part == b"hunter2"), "{}", entry.display());
                }
            }
        }
    }
}
