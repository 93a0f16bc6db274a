//! Logins by the real ssh, at a real sshd that has an `/etc` of its own.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command as Program};

use serde_json::{Value, json};

use super::*;
use crate::kubespray::provisioning::ssh_key;
use crate::needs;

/// How long a server may take to listen.
const DEADLINE: Duration = Duration::from_secs(60);
const ROOTS: &str = "it's \"root's\" $HOME";

fn secret(type_: &str, labels: Value, user: &str, password: &str) -> Secret {
    let metadata = json!({"name": "s", "labels": labels});
    let mut secret: Secret = serde_json::from_value(json!({ "metadata": metadata, "type": type_ })).expect("a Secret");
    let bytes = |text: &str| k8s_openapi::ByteString(text.as_bytes().to_vec());
    secret.data = Some([(NAME.to_owned(), bytes(user)), (PASSWORD.to_owned(), bytes(password))].into());
    secret
}

fn granted(user: &str, password: &str) -> SshLogin {
    let secret = secret(TYPE, json!({LABEL_SSH_LOGIN: "true"}), user, password);
    login(&secret).unwrap_or_else(|reason| panic!("{reason}"))
}

#[test]
fn a_secret_is_sent_to_machines_only_where_its_writer_says_so() {
    let label = json!({LABEL_SSH_LOGIN: "true"});
    for (secret, wanted) in [
        (secret(TYPE, label.clone(), "debian", "hunter2"), None),
        (secret("Opaque", label.clone(), "admin", "of a BMC"), Some("not meant for this")),
        (secret(TYPE, json!({}), "admin", "x"), Some("not meant for this")),
        (secret(TYPE, json!({LABEL_SSH_LOGIN: "no"}), "admin", "x"), Some("not meant for this")),
        (secret(TYPE, label.clone(), "-oProxyCommand=id", "x"), Some("no username")),
        (secret(TYPE, label.clone(), "a b", "x"), Some("no username")),
        (secret(TYPE, label.clone(), "", "x"), Some("no username")),
        (secret(TYPE, label.clone(), "a", ""), Some("no password of one line")),
        (secret(TYPE, label.clone(), "a", "one\ntwo"), Some("no password of one line")),
        (secret(TYPE, label, "a", &"x".repeat(PASSWORD_MAX + 1)), Some("no password of one line")),
    ] {
        match (login(&secret), wanted) {
            (Ok(_), None) => {}
            (Err(reason), Some(part)) => assert!(reason.contains(part), "{reason}"),
            (found, _) => panic!("{wanted:?}: {:?}", found.err()),
        }
    }
}

#[test]
fn what_ssh_says_tells_whether_another_try_may_do() {
    let login = granted("debian", "hunter2");
    let refused = |text: &str| Err(LoginError::Refused(text.into()));
    let unreached = |text: &str| Err(LoginError::Unreached(text.into()));
    for (code, said, wanted) in [
        (Some(0), "a banner", Ok(())),
        (
            Some(255),
            "ssh: connect to host 10.0.0.1 port 22: Connection refused\r\n",
            unreached("ssh: connect to host 10.0.0.1 port 22: Connection refused"),
        ),
        (
            Some(255),
            "banner\ndebian@10.0.0.1: Permission denied (password).\r\n",
            refused("debian is not let in: debian@10.0.0.1: Permission denied (password)."),
        ),
        (Some(1), "sudo: hunter2 is wrong\n\n", refused("no user can be made as debian: sudo: *** is wrong")),
        (Some(1), "", refused("no user can be made as debian: it does not say why")),
        (None, "", unreached("ssh was killed")),
    ] {
        assert_eq!(verdict(code, said.as_bytes(), &login), wanted);
    }
}

/// A server with an `/etc` and a `/home` of its own, in which root and `admin` have passwords.
struct Sshd {
    folder: tempfile::TempDir,
    port: u16,
    server: Child,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.server.kill().ok();
        self.server.wait().ok();
    }
}

impl Sshd {
    async fn start() -> Option<Self> {
        let programs = ["ssh", "/usr/sbin/sshd", "unshare", "useradd", "chpasswd"];
        if !needs::root() || !programs.iter().all(|program| needs::program(program)) {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().display();
        let port = needs::free_port();
        fs::create_dir_all("/run/sshd").unwrap();
        let config = format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {at}/host\nPidFile none\nUsePAM no\nPasswordAuthentication yes\n\
             KbdInteractiveAuthentication no\nPermitRootLogin yes\n"
        );
        fs::write(folder.path().join("config"), config).unwrap();
        fs::write(folder.path().join("passwords"), format!("root:{ROOTS}\nadmin:admins\n")).unwrap();
        let start = format!(
            "set -eu; umask 022; mount --make-rprivate /; ssh-keygen -q -t ed25519 -N '' -C '' -f {at}/host; mkdir {at}/etc {at}/home; cp -a /etc/. {at}/etc; \
             mount --bind {at}/etc /etc; mount --bind {at}/home /home; mkdir -p /etc/sudoers.d; \
             useradd -m admin; chpasswd -c SHA512 <{at}/passwords; echo 'admin ALL=(ALL) ALL' >/etc/sudoers.d/admin; chmod 440 /etc/sudoers.d/admin; \
             exec /usr/sbin/sshd -D -e -f {at}/config"
        );
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let mut command = Program::new("unshare");
        command.args(["--mount", "sh", "-c", &start]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut sshd = Self { port, server: command.spawn().unwrap(), folder };
        let listens = async {
            while !sshd.log().contains("Server listening") {
                assert!(sshd.server.try_wait().unwrap().is_none(), "{}", sshd.log());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(DEADLINE, listens).await.expect("it listens");
        Some(sshd)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    fn at(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    fn file(&self, path: &str) -> String {
        fs::read_to_string(self.folder.path().join(path)).unwrap_or_default()
    }

    fn scratch(&self) -> PathBuf {
        let folder = self.folder.path().join("scratch");
        fs::create_dir_all(&folder).unwrap();
        folder
    }
}

#[tokio::test]
async fn a_password_opens_a_machine_to_the_key_once_and_stays_nowhere() {
    let Some(sshd) = Sshd::start().await else { return };
    let key = ssh_key::generate("it's a comment").unwrap();
    let root = granted("root", ROOTS);
    let known = open(sshd.at(), &root, &key.public, "", &sshd.scratch())
        .await
        .unwrap_or_else(|reason| panic!("{reason}: {}", sshd.log()));
    assert!(known.starts_with(&format!("[127.0.0.1]:{} ssh-ed25519 ", sshd.port)), "{known}");
    let authorized = || sshd.file("home/kubespray/.ssh/authorized_keys");
    let line: Vec<&str> = key.public.split(' ').take(2).collect();
    assert_eq!(authorized(), format!("{}\n", line.join(" ")));
    assert_eq!(sshd.file("etc/sudoers.d/90-kubespray"), "kubespray ALL=(ALL) NOPASSWD:ALL\n");
    // Once more is the same, with the host key that is known now.
    open(sshd.at(), &root, &key.public, &known, &sshd.scratch()).await.unwrap();
    assert_eq!(authorized().lines().count(), 1);
    // The key is let in, and nobody asks for anything.
    let private = sshd.scratch().join("id");
    fs::write(&private, key.private.as_bytes()).unwrap();
    fs::set_permissions(&private, fs::Permissions::from_mode(0o600)).unwrap();
    let port = sshd.port.to_string();
    let options = [
        "-F",
        "/dev/null",
        "-o",
        "BatchMode=yes",
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
        "-p",
        &port,
        "-l",
        USER,
        "-i",
    ];
    let output = Program::new("ssh").args(options).arg(&private).args(["127.0.0.1", "id -un"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), USER, "{}", sshd.log());
    fs::remove_file(&private).unwrap();
    assert_eq!(fs::read_dir(sshd.scratch()).unwrap().count(), 0, "what was needed for it is gone");
}

#[tokio::test]
async fn who_is_not_root_becomes_root_with_the_same_password() {
    let Some(sshd) = Sshd::start().await else { return };
    if !needs::program("sudo") {
        return;
    }
    let key = ssh_key::generate("x").unwrap();
    open(sshd.at(), &granted("admin", "admins"), &key.public, "", &sshd.scratch())
        .await
        .unwrap_or_else(|reason| panic!("{reason}: {}", sshd.log()));
    assert!(!sshd.file("home/kubespray/.ssh/authorized_keys").is_empty());
}

#[tokio::test]
async fn a_wrong_password_another_host_key_and_nobody_are_told_apart() {
    let Some(sshd) = Sshd::start().await else { return };
    let key = ssh_key::generate("x").unwrap();
    let tried = async |at: SocketAddr, password: &str, known: &str| {
        open(at, &granted("root", password), &key.public, known, &sshd.scratch()).await.unwrap_err()
    };
    let wrong = tried(sshd.at(), "wrong", "").await;
    assert!(
        matches!(&wrong, LoginError::Refused(reason) if reason.contains("root is not let in") && reason.contains("Permission denied")),
        "{wrong:?}"
    );
    let other = ssh_key::generate("x").unwrap().public;
    let known = format!("[127.0.0.1]:{} {other}\n", sshd.port);
    let changed = tried(sshd.at(), ROOTS, &known).await;
    assert!(
        matches!(&changed, LoginError::Refused(reason) if reason.contains("Host key verification failed")),
        "{changed:?}"
    );
    let nobody =
        SocketAddr::from(([127, 0, 0, 1], TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()));
    let silent = tried(nobody, ROOTS, "").await;
    assert!(matches!(&silent, LoginError::Unreached(reason) if reason.contains("Connection refused")), "{silent:?}");
    assert!(!sshd.file("home/kubespray/.ssh/authorized_keys").contains("ssh-"), "nobody was let in");
}
