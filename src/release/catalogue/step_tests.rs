//! The deploy script of our releases, on a machine that is played: killed before each of its commands, it ends well the next time.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

const DEPLOY: &str = include_str!("../../../config/releases/steps/deploy.sh");
const PREPARE: &str = include_str!("../../../config/releases/steps/prepare.sh");
const LABELS: &str = include_str!("../../../config/releases/steps/labels.sh");
/// Commands of a run, at most: a run that is not killed ends the search.
const COMMANDS_MAX: usize = 1000;
/// From one command that the script is killed before to the next: all of them take minutes.
const STRIDE: usize = 13;

/// What stands for kubeadm: it refuses what kubeadm refuses, and leaves what it leaves.
const KUBEADM: &str = r#"#!/bin/sh
cd "$ROOT"; echo "kubeadm $*" >>log
k=etc/kubernetes
die() { if [ -e die ]; then rm die; kill -9 "$(cat pid)"; exit 137; fi; }
fresh() { for f in $k/kubelet.conf $k/admin.conf $k/manifests/kube-apiserver.yaml; do [ ! -e $f ] || { echo "preflight: $f exists" >&2; exit 1; }; done; }
lead() { [ -s $k/pki/ca.key ] && [ -s $k/pki/etcd/ca.key ] || { echo "no certificates" >&2; exit 1; }; }
serve() { mkdir -p $k/manifests; : >$k/manifests/kube-apiserver.yaml; : >$k/admin.conf; die; : >$k/kubelet.conf; : >api; }
case "$1 $2" in
  "init --config") fresh; lead; serve; echo "$(sed -n 's/^kubernetesVersion: v//p' "$3")" >cm ;;
  "init phase") [ -e api ] || exit 1 ;;
  "join --config") fresh; grep -q 'token: "abcdef' "$3" && grep -q 'sha256:0a0b' "$3" || exit 1
     if grep -q '^controlPlane:' "$3"; then lead; serve; else mkdir -p $k; die; : >$k/kubelet.conf; fi ;;
  "join phase") ;;
  "reset --force") rm -rf $k api var/lib/etcd ;;
  "upgrade apply") echo "${3#v}" >cm; die ;;
  "upgrade node") die ;;
  *) echo "what is kubeadm $*?" >&2; exit 1 ;;
esac
"#;

const KUBECTL: &str = r#"#!/bin/sh
cd "$ROOT"; echo "kubectl $*" >>log
case "$*" in
  *"get node"*) [ -e etc/kubernetes/kubelet.conf ] ;;
  *"get configmap"*) echo "kubernetesVersion: v$(cat cm)" ;;
  *"label node"*) for word; do case $word in *=*|*-) case $word in -*) ;; *) echo "$word" >>labels ;; esac ;; esac; done ;;
esac
"#;

const CURL: &str = r#"#!/bin/sh
out=/dev/null
while [ $# -gt 0 ]; do case $1 in --output) out=$2; shift ;; *) url=$1 ;; esac; shift; done
case $url in
  http://192.0.2.1/packages/nodes/*) cp "$ROOT/served/${url#*/nodes/}" "$out" ;;
  */healthz) printf ok ;;
  https://192.0.2.11:6443/readyz) [ -e "$ROOT/api" ] ;;
  https://192.0.2.10:6443/readyz) [ -e "$ROOT/api" ] || [ -e "$ROOT/other" ] ;;
  *) exit 7 ;;
esac
"#;

const IP: &str = r#"#!/bin/sh
case "$*" in
  *"route get"*) echo "192.0.2.10 dev eth0 src 192.0.2.11 uid 0" ;;
  *) echo "2: eth0    inet 192.0.2.11/24 brd 192.0.2.255 scope global eth0" ;;
esac
"#;

/// Counts the commands of a script, and kills it before one of them.
const KILLER: &str = r#"set -T; n=0; echo $$ >"$ROOT/pid"; trap 'n=$((n+1)); if ((n == KILL_AT)); then kill -9 $$; fi' DEBUG
"#;

/// A machine that is played, with its files in a folder.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        // Where programs may run: this one does.
        let place = std::env::current_exe().unwrap();
        let machine = Self { folder: tempfile::tempdir_in(place.parent().unwrap()).unwrap() };
        for folder in ["bin", "deployment", "etc", "var/lib", "usr/local/bin", "run"] {
            fs::create_dir_all(machine.path(folder)).unwrap();
        }
        let nothing = "#!/bin/sh\nexit 0\n";
        for (name, text) in [
            ("kubeadm", KUBEADM),
            ("kubectl", KUBECTL),
            ("curl", CURL),
            ("ip", IP),
            ("getent", "#!/bin/sh\necho '192.0.2.10 STREAM'\n"),
            ("systemctl", nothing),
            ("sleep", nothing),
            ("keepalived", nothing),
            ("sync", nothing),
            ("dpkg", "#!/bin/sh\necho \"dpkg $*\" >>\"$ROOT/log\"\n"),
            ("containerd", nothing),
            ("modprobe", nothing),
            ("sysctl", nothing),
            ("swapoff", nothing),
        ] {
            machine.program(&format!("bin/{name}"), text);
        }
        for version in ["1.34.3", "1.34.4"] {
            for name in ["kubeadm", "kubelet", "kubectl"] {
                machine.program(
                    &format!("opt/slipway/kubernetes/{version}/bin/{name}"),
                    &format!("#!/bin/sh\n# {version}\n"),
                );
            }
        }
        for (name, text) in [("join-token", "abcdef.0123456789abcdef"), ("ca-hash", "sha256:0a0b")] {
            fs::write(machine.path(&format!("deployment/{name}")), text).unwrap();
        }
        for name in ["ca", "front-proxy-ca", "etcd-ca"] {
            for end in ["crt", "key"] {
                fs::write(machine.path(&format!("deployment/{name}.{end}")), format!("{name} {end}")).unwrap();
            }
        }
        for end in ["pub", "key"] {
            fs::write(machine.path(&format!("deployment/sa.{end}")), end).unwrap();
        }
        machine
    }

    fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    fn program(&self, below: &str, text: &str) {
        let path = self.path(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn read(&self, below: &str) -> String {
        fs::read_to_string(self.path(below)).unwrap_or_default()
    }

    /// Runs a script with this machine's files in place of the real ones, and kills it before its command of this number.
    fn run(&self, script: &str, variables: &[(&str, &str)], kill_at: usize) -> Output {
        let root = self.folder.path().to_str().unwrap();
        let mut text = script.to_owned();
        for folder in ["/etc/", "/var/lib/", "/usr/local/bin", "/opt/", "/run/", "/proc/sys/"] {
            text = text.replace(folder, &format!("{root}{folder}"));
        }
        fs::write(self.path("script"), text).unwrap();
        fs::write(self.path("killer"), KILLER).unwrap();
        let path = format!("{root}/bin:{}", std::env::var("PATH").unwrap());
        let mut command = Command::new("bash");
        command
            .arg(self.path("script"))
            .env("PATH", path)
            .env("ROOT", root)
            .env("SLIPWAY_DEPLOYMENT", self.path("deployment"));
        command.env("BASH_ENV", self.path("killer")).env("KILL_AT", kill_at.to_string());
        command.envs(variables.iter().copied()).output().unwrap()
    }

    /// Packages of a version, as the appliance serves them.
    fn serve(&self, sums: &str) {
        self.program("proc/sys/net/ipv4/ip_forward", "1\n");
        self.program("etc/slipway/node.json", "{\"server\": \"https://192.0.2.1:8443\", \"name\": \"n\"}\n");
        let names = ["bin/kubeadm", "bin/kubelet", "bin/kubectl", "debs/containerd.deb"];
        let mut text = String::new();
        for name in names {
            self.program(&format!("served/{name}"), name);
            text += &format!("{}  {name}\n", sha256(name));
        }
        self.program("served/SHA256SUMS", &(text + sums));
    }

    fn prepare(&self, more: &[(&str, &str)], kill_at: usize) -> Output {
        let variables = [("kubernetes", "1.35.0"), ("packages", "nodes"), ("mirror", "true")];
        self.run(PREPARE, &[&variables[..], more].concat(), kill_at)
    }

    fn deploy(&self, role: &str, version: &str, kill_at: usize) -> Output {
        let variables = [
            ("nodeRole", role),
            ("kubernetes", version),
            ("virtualIP", "true"),
            ("clusterEndpoint", "192.0.2.10:6443"),
            ("podsCIDR", "10.244.0.0/16"),
            ("servicesCIDR", "10.96.0.0/16"),
            (
                "release_needs_upgrade",
                if self.path("var/lib/slipway/kubernetes/deployed").exists() { "true" } else { "" },
            ),
        ];
        self.run(DEPLOY, &variables, kill_at)
    }

    /// It is a node of this version, and whole.
    #[track_caller]
    fn is_node(&self, role: &str, version: &str, output: &Output, what: &str) {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{role}, {what}: {said}\n{}", self.read("log"));
        assert_eq!(self.read("var/lib/slipway/kubernetes/deployed").trim(), version, "{role}, {what}");
        assert!(self.path("etc/kubernetes/kubelet.conf").exists(), "{role}, {what}");
        assert!(self.read("usr/local/bin/kubelet").contains(version), "{role}, {what}");
        assert_eq!(self.path("api").exists(), role != "worker", "{role}, {what}");
        assert_eq!(self.path("etc/keepalived/keepalived.conf").exists(), role != "worker", "{role}, {what}");
        assert!(!self.path("run/slipway-kubeadm.yaml").exists(), "the token stays on the disk: {role}, {what}");
        // Nobody but root reads keys.
        for key in ["pki/ca.key", "pki/sa.key", "pki/etcd/ca.key"].iter().filter(|_| role != "worker") {
            let mode = fs::metadata(self.path("etc/kubernetes").join(key)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{key}");
        }
    }

    fn count(&self, line: &str) -> usize {
        self.read("log").lines().filter(|one| one.starts_with(line)).count()
    }
}

#[test]
fn a_node_is_made_and_upgraded_however_often_the_script_is_killed() {
    for (offset, role) in [(1, "first"), (3, "control"), (5, "worker")] {
        let mut before = 0;
        for kill_at in (offset..COMMANDS_MAX).step_by(STRIDE) {
            let machine = Machine::new();
            let killed = machine.deploy(role, "1.34.3", kill_at);
            let what = format!("killed before command {kill_at}");
            machine.is_node(role, "1.34.3", &machine.deploy(role, "1.34.3", 0), &what);
            if killed.status.success() {
                before = kill_at;
                break;
            }
        }
        assert!(before > 20, "{role}: a run has more commands than {before}");
        let mut last = 0;
        for kill_at in (offset..COMMANDS_MAX).step_by(STRIDE) {
            let machine = Machine::new();
            machine.is_node(role, "1.34.3", &machine.deploy(role, "1.34.3", 0), "first version");
            if role != "first" {
                // The first one of the control plane has been upgraded.
                fs::write(machine.path("cm"), "1.34.4\n").unwrap();
            }
            let killed = machine.deploy(role, "1.34.4", kill_at);
            let again = machine.deploy(role, "1.34.4", 0);
            machine.is_node(role, "1.34.4", &again, &format!("upgrade killed before command {kill_at}"));
            assert_eq!(machine.count("kubeadm reset"), 0, "a node that is one is not undone");
            assert_eq!(machine.count("kubeadm init --config"), usize::from(role == "first"));
            assert_eq!(machine.count("kubeadm upgrade apply v1.34.4 --yes") > 0, role == "first");
            if killed.status.success() {
                last = kill_at;
                break;
            }
        }
        assert!(last > 10, "{role}: an upgrade has more commands than {last}");
    }
}

#[test]
fn a_kill_inside_of_kubeadm_is_made_good() {
    for role in ["first", "control", "worker"] {
        let machine = Machine::new();
        fs::write(machine.path("die"), "").unwrap();
        assert!(!machine.deploy(role, "1.34.3", 0).status.success());
        machine.is_node(role, "1.34.3", &machine.deploy(role, "1.34.3", 0), "killed in kubeadm");
        fs::write(machine.path("cm"), if role == "first" { "1.34.3\n" } else { "1.34.4\n" }).unwrap();
        fs::write(machine.path("die"), "").unwrap();
        assert!(!machine.deploy(role, "1.34.4", 0).status.success());
        machine.is_node(role, "1.34.4", &machine.deploy(role, "1.34.4", 0), "killed in an upgrade");
    }
}

#[test]
fn what_would_harm_a_cluster_is_not_done() {
    let says = |output: Output, wanted: &str| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(wanted), "{said}");
    };
    // Another cluster has the endpoint.
    let machine = Machine::new();
    fs::write(machine.path("other"), "").unwrap();
    says(machine.deploy("first", "1.34.3", 0), "a cluster answers at 192.0.2.10:6443 already");
    assert_eq!(machine.count("kubeadm init"), 0);
    // Somebody else made a node of the machine.
    let machine = Machine::new();
    fs::create_dir_all(machine.path("etc/kubernetes")).unwrap();
    fs::write(machine.path("etc/kubernetes/kubelet.conf"), "").unwrap();
    says(machine.deploy("worker", "1.34.3", 0), "a node already, which these steps did not make");
    assert_eq!(machine.count("kubeadm"), 0);
    // It is not its turn.
    let machine = Machine::new();
    machine.is_node("worker", "1.34.3", &machine.deploy("worker", "1.34.3", 0), "");
    let variables = [("nodeRole", "worker"), ("kubernetes", "1.34.4"), ("clusterEndpoint", "192.0.2.10")];
    says(machine.run(DEPLOY, &variables, 0), "it is not its turn");
    // What the appliance has not given yet.
    let machine = Machine::new();
    fs::remove_file(machine.path("deployment/join-token")).unwrap();
    says(machine.deploy("worker", "1.34.3", 0), "the appliance gave no join-token yet");
    fs::remove_file(machine.path("deployment/ca.key")).unwrap();
    says(machine.deploy("first", "1.34.3", 0), "the appliance gave no ca.key yet");
}

fn sha256(text: &str) -> String {
    use sha2::Digest;
    crate::hex::hex(&sha2::Sha256::digest(text.as_bytes()))
}

#[test]
fn packages_are_brought_however_often_the_script_is_killed() {
    let staged = "opt/slipway/kubernetes/1.35.0/bin/kubelet";
    for kill_at in (2..COMMANDS_MAX).step_by(STRIDE) {
        let machine = Machine::new();
        machine.serve("");
        let killed = machine.prepare(&[], kill_at);
        let again = machine.prepare(&[], 0);
        assert!(again.status.success(), "killed before command {kill_at}: {}", String::from_utf8_lossy(&again.stderr));
        assert_eq!(machine.read(staged), "bin/kubelet");
        assert!(machine.read("log").contains("--install --skip-same-version"), "{}", machine.read("log"));
        assert!(machine.read("etc/containerd/config.toml").contains("SystemdCgroup = true"));
        assert!(machine.read("etc/containerd/certs.d/_default/hosts.toml").contains("server = \"http://192.0.2.1\""));
        assert!(!machine.path("usr/local/bin/kubelet").exists(), "what runs is not touched");
        if killed.status.success() {
            return;
        }
    }
    panic!("a run has fewer commands");
}

#[test]
fn packages_that_somebody_changed_are_not_taken() {
    let refused = |machine: &Machine, more: &[(&str, &str)], wanted: &str| {
        let output = machine.prepare(more, 0);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(wanted), "{wanted}: {said}");
        assert!(!machine.path("opt/slipway/kubernetes/1.35.0").exists() && machine.count("dpkg") == 0, "{wanted}");
    };
    let machine = Machine::new();
    machine.serve("");
    machine.program("served/bin/kubelet", "evil");
    refused(&machine, &[], "bin/kubelet is not what SHA256SUMS says");
    // Who changes the file of sums as well, where the release was made with its checksum.
    let good = sha256(&machine.read("served/SHA256SUMS"));
    let evil = machine.read("served/SHA256SUMS").replace(&sha256("bin/kubelet"), &sha256("evil"));
    machine.program("served/SHA256SUMS", &evil);
    refused(&machine, &[("packagesSHA256", &good)], "is not the one that the release was made with");
    for name in ["../../../etc/cron.d/x", "/etc/cron.d/x", "a/../../x", "-x", "a b", "$(reboot)"] {
        let machine = Machine::new();
        machine.serve(&format!("{}  {name}\n", sha256("x")));
        refused(&machine, &[], "no checksum of a file of this folder");
    }
    let machine = Machine::new();
    machine.serve(&format!("{}  bin/more\n", sha256("x")));
    refused(&machine, &[], "bin/more cannot be fetched: is the Image nodes there");
}

#[test]
fn labels_come_and_go() {
    let machine = Machine::new();
    let label = |labels: &str, kill_at| machine.run(LABELS, &[("nodeLabels", labels), ("nodeRole", "worker")], kill_at);
    assert!(label("a=1,b.example/c=2", 0).status.success());
    assert!(label("a=3", 0).status.success());
    assert!(label("", 0).status.success());
    assert_eq!(
        machine.read("labels").lines().collect::<Vec<_>>(),
        ["a=1", "b.example/c=2", "a=3", "b.example/c-", "a-"]
    );
    assert!(!label("a=1,$(reboot)=x", 0).status.success());
    for kill_at in (1..60).step_by(STRIDE) {
        let machine = Machine::new();
        let label = |labels: &str, at| machine.run(LABELS, &[("nodeLabels", labels), ("nodeRole", "worker")], at);
        label("a=1", kill_at);
        assert!(label("b=1", 0).status.success());
        let given = machine.read("labels");
        assert!(!given.contains("a=1") || given.contains("a-"), "killed before command {kill_at}: {given}");
    }
}
