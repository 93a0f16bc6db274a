//! Runs over real SSH: Ansible, OpenSSH's client, and servers of the test's own on loopback.

use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;
use crate::needs;

const SSHD: &str = "/usr/sbin/sshd";

/// A server for one host: with a host key of its own, for the user that runs the test.
struct Sshd {
    folder: PathBuf,
    port: u16,
    server: Child,
}

/// The processes that came of one, however they are called and in whichever session they are.
fn descendants(of: u32) -> Vec<i32> {
    let parent = |entry: &fs::DirEntry| -> Option<(i32, i32)> {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        Some((entry.file_name().to_str()?.parse().ok()?, parent))
    };
    let all: Vec<(i32, i32)> = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| parent(&entry)).collect();
    let mut found = vec![of.cast_signed()];
    let mut at = 0;
    while let Some(one) = found.get(at).copied() {
        found.extend(all.iter().filter(|(_, parent)| *parent == one).map(|(pid, _)| *pid));
        at += 1;
    }
    found
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn key(file: &Path) -> String {
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", "", "-f"]).arg(file).status();
    assert!(made.unwrap().success(), "{}", file.display());
    fs::read_to_string(file.with_extension("pub")).unwrap()
}

impl Sshd {
    /// Lets in whoever has the key.
    async fn start(folder: PathBuf, authorized: &str) -> Self {
        fs::create_dir_all(&folder).unwrap();
        key(&folder.join("host"));
        fs::write(folder.join("authorized"), authorized).unwrap();
        if rustix::process::geteuid().is_root() {
            // Where it confines itself; a service's manager makes it otherwise.
            fs::create_dir_all("/run/sshd").unwrap();
        }
        let port = needs::free_port();
        let at = folder.display();
        let config = format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {at}/host\nAuthorizedKeysFile {at}/authorized\nPidFile none\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             PermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\n"
        );
        fs::write(folder.join("config"), config).unwrap();
        let log = fs::File::create(folder.join("log")).unwrap();
        let mut command = Command::new(SSHD);
        command.args(["-D", "-e", "-f"]).arg(folder.join("config"));
        let server = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let mut sshd = Self { folder, port, server };
        let listens = async {
            while !sshd.log().contains("Server listening") {
                assert!(sshd.server.try_wait().unwrap().is_none(), "{}", sshd.log());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(DEADLINE, listens).await.expect("it listens");
        sshd
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap()
    }

    /// Sends a signal to all that runs on this host.
    fn signal(&self, signal: Signal) {
        for pid in descendants(self.server.id()) {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// A line of a `known_hosts`, for this server with this public key.
    fn known(&self, public: &str) -> String {
        format!("[127.0.0.1]:{} {public}", self.port)
    }

    fn public(&self) -> String {
        fs::read_to_string(self.folder.join("host.pub")).unwrap()
    }
}

/// Two hosts that one key opens, and the checkout beside them.
struct Hosts {
    place: Place,
    one: Sshd,
    two: Sshd,
}

impl Hosts {
    async fn start(playbook: &str) -> Option<Self> {
        let environment = needs::ansible()?;
        if !needs::program("ssh") || !needs::program(SSHD) {
            return None;
        }
        let place = Place::with_tree(playbook);
        symlink(environment, place.environment()).unwrap();
        let public = key(&place.top.path().join("id"));
        let one = Sshd::start(place.top.path().join("one"), &public).await;
        let two = Sshd::start(place.top.path().join("two"), &public).await;
        Some(Self { place, one, two })
    }

    /// With the key that opens both and the host keys that they have.
    fn request(&self, id: &str) -> RunRequest {
        // Its own Python: what else is on the box may be a wrapper that does not start from a bare environment.
        let python = self.place.environment().join("bin/python3");
        let line = |name: &str, sshd: &Sshd| {
            format!(
                "    {name}: {{ansible_host: 127.0.0.1, ansible_port: {}, ansible_become: false, \
                 ansible_python_interpreter: {}}}\n",
                sshd.port,
                python.display()
            )
        };
        RunRequest {
            inventory: format!("all:\n  hosts:\n{}{}", line("one", &self.one), line("two", &self.two)),
            expected: vec!["one".into(), "two".into()],
            ssh_key: Some(fs::read_to_string(self.place.top.path().join("id")).unwrap().into()),
            host_keys: HostKeys::Known(self.one.known(&self.one.public()) + &self.two.known(&self.two.public())),
            bounds: RunLimits { answer: Duration::from_secs(10), ..RunLimits::default() },
            ..request(id)
        }
    }

    async fn run(&self, request: &RunRequest) -> RunStatus {
        self.place.runs().start(&self.place.installation(), request).await.unwrap();
        let status = self.place.to_its_end(&request.id).await;
        self.place.assert_tidy(&request.id);
        status
    }

    fn log(&self, id: &RunId) -> String {
        String::from_utf8(self.place.runs().log(id, 0).unwrap().bytes).unwrap()
    }
}

/// With facts, a command, and a file that comes back from one of them.
const WHOLE: &str = "- hosts: all
  tasks:
    - {name: command, ansible.builtin.command: 'printenv SSH_CONNECTION', register: connection, changed_when: false}
    - {name: known by facts, ansible.builtin.assert: {that: \"ansible_facts.kernel is defined\"}}
    - {name: make, ansible.builtin.copy: {content: 'of {{ connection.stdout }}', dest: '{{ artifacts_dir }}/far-{{ inventory_hostname }}', mode: '0600'}}
    - {name: fetch, ansible.builtin.fetch: {src: '{{ artifacts_dir }}/far-{{ inventory_hostname }}', dest: '{{ artifacts_dir }}/got-{{ inventory_hostname }}', flat: true}}
";

#[tokio::test]
async fn over_ssh_a_key_opens_hosts_that_are_known() {
    let Some(hosts) = Hosts::start(WHOLE).await else { return };
    let request = hosts.request("ssh");
    let status = hosts.run(&request).await;
    assert_eq!(status.verdict, Some(RunVerdict::Succeeded), "{status:?}\n{}", hosts.log(&request.id));
    for (name, sshd) in [("one", &hosts.one), ("two", &hosts.two)] {
        let got = hosts.place.runs().folder(&request.id).join("artifacts").join(format!("got-{name}"));
        let got = fs::read_to_string(got).unwrap();
        assert!(got.trim_end().ends_with(&format!("127.0.0.1 {}", sshd.port)), "{name}: {got}");
        assert!(sshd.log().contains("Accepted publickey"), "{}", sshd.log());
    }
    // Facts are the run's own.
    assert!(!hosts.place.facts_of_all().exists(), "facts are kept for all clusters");
    // Which ends with the run.
    let folder = hosts.place.runs().folder(&request.id).display().to_string();
    let names =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let left: Vec<_> =
        names.map(|name| String::from_utf8_lossy(&name).into_owned()).filter(|name| name.contains(&folder)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn over_ssh_a_host_with_another_key_than_recorded_is_refused_and_named() {
    let Some(hosts) = Hosts::start(WHOLE).await else { return };
    // The second one has the first one's key on record.
    let recorded = hosts.one.known(&hosts.one.public()) + &hosts.two.known(&hosts.one.public());
    let request = RunRequest { host_keys: HostKeys::Recorded(recorded), ..hosts.request("changed") };
    let status = hosts.run(&request).await;
    let failure = status.progress.failures.iter().find(|failure| failure.host == "two");
    let failure = failure.unwrap_or_else(|| panic!("{status:?}"));
    assert!(failure.unreachable && failure.message.contains("IDENTIFICATION HAS CHANGED"), "{status:?}");
    assert!(matches!(&status.verdict, Some(RunVerdict::Failed(reason)) if reason.contains("two")), "{status:?}");
    assert!(!hosts.two.log().contains("Accepted publickey"), "{}", hosts.two.log());
}

#[tokio::test]
async fn over_ssh_a_key_that_a_host_does_not_take_makes_it_unreachable() {
    let Some(hosts) = Hosts::start(WHOLE).await else { return };
    key(&hosts.place.top.path().join("other"));
    let other = fs::read_to_string(hosts.place.top.path().join("other")).unwrap();
    let request = RunRequest { ssh_key: Some(other.into()), ..hosts.request("wrong") };
    let status = hosts.run(&request).await;
    assert!(matches!(&status.verdict, Some(RunVerdict::Failed(reason)) if reason.contains("2 of 2")), "{status:?}");
    for name in ["one", "two"] {
        let failure = status.progress.failures.iter().find(|failure| failure.host == name);
        let failure = failure.unwrap_or_else(|| panic!("{status:?}"));
        assert!(failure.unreachable && failure.message.contains("Permission denied"), "{status:?}");
    }
}

/// Frozen, as a machine whose power is gone: nothing says that its connections are no more.
#[tokio::test]
async fn over_ssh_a_host_that_vanishes_in_the_middle_is_unreachable_and_the_others_go_on() {
    let waits = "[ {{ inventory_hostname }} = one ] || { touch {{ artifacts_dir }}/begun; exec sleep 600; }";
    let Some(hosts) = Hosts::start(&format!(
        "- hosts: all
  gather_facts: false
  tasks:
    - {{name: before, ansible.builtin.command: 'true', changed_when: false}}
    - {{name: midway, ansible.builtin.shell: '{waits}', changed_when: false}}
    - {{name: after, ansible.builtin.command: 'true', changed_when: false}}
"
    ))
    .await
    else {
        return;
    };
    let bounds = RunLimits { answer: Duration::from_secs(5), ..RunLimits::default() };
    let request = RunRequest { bounds, ..hosts.request("vanishes") };
    hosts.place.runs().start(&hosts.place.installation(), &request).await.unwrap();
    hosts.place.until(&request.id, "artifacts/begun").await;
    hosts.two.signal(Signal::SIGSTOP);
    let status = hosts.place.to_its_end(&request.id).await;
    let failure = status.progress.failures.iter().find(|failure| failure.host == "two");
    let failure = failure.unwrap_or_else(|| panic!("{status:?}\n{}", hosts.log(&request.id)));
    assert!(failure.unreachable && failure.task == "midway", "{status:?}");
    assert!(matches!(&status.verdict, Some(RunVerdict::Failed(reason)) if reason.contains("two")), "{status:?}");
    let one = &status.progress.hosts["one"];
    assert_eq!((one.ok, one.is_bad()), (3, false), "{status:?}");
    hosts.place.assert_tidy(&request.id);
}
