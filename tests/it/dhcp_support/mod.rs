//! Network namespaces, a server in one of them, clients in the others.
//!
//! The server and the senders of hand-made messages are this test binary again, started by `ip netns exec` with a role
//! in its environment. They end when their standard input closes, so nothing outlives the test.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dhcproto::v4::{DhcpOption, Flags, Message, MessageType, Opcode};
use dhcproto::{Decodable, Decoder, Encodable, Encoder};
use nix::sys::signal::Signal;
use slipway::api::MacAddress;

mod roles;

pub use roles::play_role;

const ROLE: &str = "SLIPWAY_TEST_ROLE";
/// How long anything may take: the machine may be busy with other tests.
const DEADLINE: Duration = Duration::from_secs(60);
/// Address of every client's interface beside what DHCP gives it.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 250);

/// A client's message.
pub fn message(mac: &str, kind: MessageType, options: Vec<DhcpOption>) -> Message {
    let mac: MacAddress = mac.parse().expect("a MAC address");
    let zero = Ipv4Addr::UNSPECIFIED;
    let mut message = Message::new_with_id(rand::random(), zero, zero, zero, zero, &mac.0);
    message.set_opcode(Opcode::BootRequest).set_flags(Flags::default().set_broadcast());
    message.opts_mut().insert(DhcpOption::MessageType(kind));
    for option in options {
        message.opts_mut().insert(option);
    }
    message
}

/// A DISCOVER.
pub fn discover(mac: &str, options: Vec<DhcpOption>) -> Message {
    message(mac, MessageType::Discover, options)
}

fn encode(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut Encoder::new(&mut bytes)).expect("encodes");
    bytes
}

/// How a hand-made message is sent.
#[derive(Clone, Copy, Debug)]
pub enum Exchange {
    /// From port 68 to everybody, port 67.
    Broadcast,
    /// From port 67 of the client's address to the server, as a relay does.
    Relay,
    /// From port 68 of the client's address to the server's port 4011.
    ProxyPort,
}

/// What a lab looks like.
pub struct Options<'a> {
    /// Further lines of `[[network]]`.
    pub network: &'a str,
    /// Known hosts: MAC address, name, whether it is to boot the ramdisk.
    pub hosts: &'a [(&'a str, &'a str, bool)],
    /// MAC address of each client.
    pub macs: &'a [&'a str],
    /// Whether the server is started.
    pub start: bool,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self { network: "", hosts: &[], macs: &[], start: true }
    }
}

/// Namespaces, and what runs in them. Dropping it ends and removes everything.
pub struct Lab {
    folder: tempfile::TempDir,
    prefix: String,
    hosts: String,
    clients: usize,
    server: Option<Role>,
}

/// A process in a namespace that ends with its standard input.
pub struct Role {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Role {
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn ask(&mut self, line: &str) -> String {
        let stdin = self.stdin.as_mut().expect("open");
        writeln!(stdin, "{line}").expect("the server listens");
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).expect("the server answers");
        answer.trim_end().replace('\t', "\n")
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        drop(self.stdin.take());
        wait_or_kill(&mut self.child);
    }
}

fn wait_or_kill(child: &mut Child) {
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().ok();
    child.wait().ok();
}

fn ip(arguments: &[&str]) -> bool {
    Command::new("ip")
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn must(arguments: &[&str]) {
    assert!(ip(arguments), "ip {}", arguments.join(" "));
}

/// Removes namespaces of tests that were killed.
fn sweep() {
    let listed = Command::new("ip").args(["netns", "list"]).output().expect("ip runs").stdout;
    for name in String::from_utf8_lossy(&listed).lines().filter_map(|line| line.split_whitespace().next()) {
        let owner = name.strip_prefix("swdhcp-").and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            ip(&["netns", "del", name]);
        }
    }
}

impl Lab {
    /// Builds it; `None` when this process may not.
    pub fn new(options: Options<'_>) -> Option<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        if !nix::unistd::Uid::effective().is_root() || !ip(&["netns", "list"]) {
            return None;
        }
        sweep();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let hosts: Vec<_> = options.hosts.iter().map(|(mac, name, boots)| format!("{mac}={name}={boots}")).collect();
        let folder = tempfile::tempdir().expect("a folder");
        let prefix = format!("swdhcp-{}-{number}", std::process::id());
        let clients = options.macs.len();
        let mut lab = Self { folder, prefix, hosts: hosts.join(","), clients, server: None };
        let server = lab.server_name();
        if !ip(&["netns", "add", &server]) {
            return None;
        }
        must(&["-n", &server, "link", "set", "lo", "up"]);
        must(&["-n", &server, "link", "add", "br0", "type", "bridge"]);
        for (index, mac) in options.macs.iter().enumerate() {
            let client = lab.client_name(index);
            let port = format!("p{index}");
            must(&["netns", "add", &client]);
            must(&["-n", &server, "link", "add", &port, "type", "veth", "peer", "name", "c0", "netns", &client]);
            must(&["-n", &client, "link", "set", "c0", "address", mac]);
            must(&["-n", &client, "link", "set", "c0", "up"]);
        }
        lab.raise_bridge();
        lab.write_config(&format!("interface = 'br0'\nsubnet = '10.77.0.0/24'\n{}", options.network));
        if options.start {
            lab.start_server();
        }
        Some(lab)
    }

    fn raise_bridge(&self) {
        let server = self.server_name();
        for index in 0..self.clients {
            must(&["-n", &server, "link", "set", &format!("p{index}"), "master", "br0", "up"]);
        }
        must(&["-n", &server, "addr", "add", "10.77.0.1/24", "dev", "br0"]);
        must(&["-n", &server, "link", "set", "br0", "up"]);
    }

    /// Takes the bridge away and makes another of the same name.
    pub fn remake_bridge(&mut self) {
        let server = self.server_name();
        must(&["-n", &server, "link", "del", "br0"]);
        must(&["-n", &server, "link", "add", "br0", "type", "bridge"]);
        self.raise_bridge();
    }

    fn server_name(&self) -> String {
        format!("{}-s", self.prefix)
    }

    fn client_name(&self, index: usize) -> String {
        format!("{}-{index}", self.prefix)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write_config(&self, network: &str) {
        let data = self.path("data");
        fs::create_dir_all(&data).expect("a folder");
        let text = format!("data_dir = '{}'\n[[network]]\nname = 'lab'\n{network}\n", data.display());
        fs::write(self.path("slipway.toml"), text).expect("a file");
    }

    fn role(&self, namespace: &str, role: &str) -> Command {
        let mut command = Command::new("ip");
        let program = std::env::current_exe().expect("this program");
        command.args(["netns", "exec", namespace]).arg(program);
        command.args([
            "--ignored",
            "--exact",
            "dhcp_clients::role_in_a_namespace",
            "--nocapture",
            "--quiet",
            "--test-threads=1",
        ]);
        command.env(ROLE, role).env("SLIPWAY_TEST_FOLDER", self.folder.path()).env("SLIPWAY_TEST_HOSTS", &self.hosts);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    fn spawn(&self, mut command: Command) -> Role {
        let log = fs::File::options().create(true).append(true).open(self.path("log")).expect("a file");
        let mut child = command.stderr(log).spawn().expect("starts");
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        // What the test harness prints before the role does.
        let mut line = String::new();
        while stdout.read_line(&mut line).expect("readable") > 0 && line.trim_end() != "ready" {
            line.clear();
        }
        assert_eq!(line.trim_end(), "ready", "the role did not start: {}", self.log());
        Role { child, stdin, stdout }
    }

    pub fn start_server(&mut self) {
        self.server = Some(self.spawn(self.role(&self.server_name(), "server")));
    }

    /// Ends the server as a crash does.
    pub fn kill_server(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.child.kill().expect("kills");
            server.child.wait().expect("ends");
        }
    }

    pub fn server_is_running(&mut self) -> bool {
        self.server.as_mut().is_some_and(Role::is_running)
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.server.as_mut().expect("runs").ask(line)
    }

    /// Asks, and does something else before there is an answer.
    pub fn ask_while(&mut self, line: &str, act: impl FnOnce(&Self)) -> String {
        let mut server = self.server.take().expect("runs");
        let (answer, server) = std::thread::scope(|scope| {
            let asked = scope.spawn(move || (server.ask(line), server));
            act(self);
            asked.join().expect("no panic")
        });
        self.server = Some(server);
        answer
    }

    /// Asks until the answer is as wanted, or too late; the last answer.
    pub fn ask_until(&mut self, line: &str, good: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + DEADLINE;
        loop {
            let answer = self.ask(line);
            if good(&answer) || Instant::now() > end {
                return answer;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What server and senders logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    pub fn log_until(&self, part: &str) -> String {
        wait_for(|| self.log().contains(part));
        self.log()
    }

    pub fn ip_server(&self, arguments: &[&str]) {
        let server = self.server_name();
        must(&[&["-n", &server][..], arguments].concat());
    }

    /// All entries of the server's neighbour table.
    pub fn neighbours(&self) -> String {
        let output = Command::new("ip").args(["-n", &self.server_name(), "neigh", "show", "nud", "all"]).output();
        String::from_utf8_lossy(&output.expect("ip runs").stdout).into_owned()
    }

    pub fn ip_client(&self, index: usize, arguments: &[&str]) {
        let client = self.client_name(index);
        must(&[&["-n", &client][..], arguments].concat());
    }

    fn in_client(&self, index: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.client_name(index), program]).stdin(Stdio::null());
        command
    }

    /// A script for udhcpc that notes each event and sets the address, so that it can renew by unicast.
    fn udhcpc_script(&self, index: usize) -> (PathBuf, PathBuf) {
        use std::os::unix::fs::PermissionsExt;
        let (script, events) = (self.path(&format!("udhcpc{index}.sh")), self.path(&format!("events{index}")));
        let text = format!(
            "#!/bin/sh\necho \"$1 $ip\" >> '{}'\n[ \"$1\" != bound ] || ip addr add \"$ip/24\" dev \"$interface\"\nexit 0\n",
            events.display()
        );
        fs::write(&script, text).expect("a file");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("permissions");
        (script, events)
    }

    /// The address that udhcpc gets.
    pub fn udhcpc(&self, index: usize, more: &[&str]) -> Option<Ipv4Addr> {
        let (script, events) = self.udhcpc_script(index);
        fs::remove_file(&events).ok();
        let mut command = self.in_client(index, "udhcpc");
        command.args(["-i", "c0", "-f", "-q", "-n", "-t", "10", "-T", "2", "-A", "1", "-s"]).arg(script).args(more);
        run(command);
        ip(&["-n", &self.client_name(index), "addr", "flush", "dev", "c0"]);
        let text = fs::read_to_string(events).unwrap_or_default();
        text.lines().rev().find_map(|line| line.strip_prefix("bound ")?.parse().ok())
    }

    /// udhcpc that stays.
    /// Another DHCP server on the wire, where a client would be; and the file of its leases.
    pub fn dnsmasq(&self, index: usize) -> (Daemon, PathBuf) {
        self.ip_client(index, &["addr", "add", &format!("{CLIENT}/24"), "dev", "c0"]);
        let (leases, log) = (self.path("dnsmasq.leases"), self.path("dnsmasq.log"));
        let mut command = self.in_client(index, "dnsmasq");
        command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--interface=c0", "--user=root"]);
        command.args(["--bind-interfaces", "--dhcp-range=10.77.0.200,10.77.0.210,255.255.255.0,120", "--pid-file="]);
        command.args(["--log-dhcp", &format!("--log-facility={}", log.display())]);
        command.arg(format!("--dhcp-leasefile={}", leases.display()));
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("dnsmasq starts");
        let daemon = Daemon { child, events: log };
        wait_for(|| fs::read_to_string(&daemon.events).is_ok_and(|log| log.contains("DHCP, IP range")));
        (daemon, leases)
    }

    pub fn udhcpc_daemon(&self, index: usize) -> Daemon {
        let (script, events) = self.udhcpc_script(index);
        let mut command = self.in_client(index, "udhcpc");
        command.args(["-i", "c0", "-f", "-t", "10", "-T", "2", "-s"]).arg(script);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("udhcpc starts");
        Daemon { child, events }
    }

    /// The address that ISC's client gets; `None` when it is not installed.
    pub fn dhclient(&self, index: usize) -> Option<Option<Ipv4Addr>> {
        crate::needs::program("dhclient").then_some(())?;
        let leases = self.path("dhclient.leases");
        let mut command = self.in_client(index, "dhclient");
        command
            .args(["-4", "-1", "-d", "-sf", "/bin/true", "-pf"])
            .arg(self.path("dhclient.pid"))
            .arg("-lf")
            .arg(&leases);
        let mut child = command.arg("c0").stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("dhclient starts");
        let address = || {
            let text = fs::read_to_string(&leases).unwrap_or_default();
            text.lines().find_map(|line| line.trim().strip_prefix("fixed-address ")?.trim_end_matches(';').parse().ok())
        };
        wait_for(|| address().is_some());
        child.kill().ok();
        child.wait().ok();
        Some(address())
    }

    /// The address that dhcpcd gets; `None` when it is not installed. It keeps its files in fixed places, which are
    /// hidden by empty ones for it.
    pub fn dhcpcd(&self, index: usize) -> Option<Option<Ipv4Addr>> {
        crate::needs::program("dhcpcd").then_some(())?;
        let script = "mkdir -p /run/dhcpcd && mount -t tmpfs none /run/dhcpcd && \
                      mount -t tmpfs none /var/lib/dhcpcd && \
                      exec dhcpcd -4 -1 -B -L -A -t 30 -f /dev/null -c /bin/true c0";
        let mut command = self.in_client(index, "sh");
        command.args(["-c", script]);
        run(command);
        let arguments = ["-n", &self.client_name(index), "-o", "-4", "addr", "show", "dev", "c0"];
        let output = Command::new("ip").args(arguments).output().expect("ip runs").stdout;
        let shown = String::from_utf8_lossy(&output).into_owned();
        ip(&["-n", &self.client_name(index), "addr", "flush", "dev", "c0"]);
        let word = shown.split_whitespace().skip_while(|word| *word != "inet").nth(1);
        Some(word.and_then(|word| word.split('/').next()?.parse().ok()))
    }

    /// Sends a message from a client and returns the answer, if there is one.
    pub fn exchange(&self, index: usize, how: Exchange, message: &Message) -> Option<Message> {
        let client = self.client_name(index);
        ip(&["-n", &client, "addr", "add", "10.77.0.250/24", "dev", "c0"]);
        let mut role = self.spawn(self.role(&client, "exchange"));
        let hex: String = encode(message).iter().map(|byte| format!("{byte:02x}")).collect();
        let answer = role.ask(&format!("{how:?} {hex}"));
        ip(&["-n", &client, "addr", "flush", "dev", "c0"]);
        if answer.is_empty() {
            return None;
        }
        Some(Message::decode(&mut Decoder::new(&unhex(&answer))).expect("a DHCP message"))
    }

    /// Lets machines behind a relay ask for an address all at once; hardware address and address of those that got one.
    pub fn storm(&self, index: usize, machines: u8) -> Vec<(String, String)> {
        let client = self.client_name(index);
        ip(&["-n", &client, "addr", "add", "10.77.0.250/24", "dev", "c0"]);
        let answer = self.spawn(self.role(&client, "storm")).ask(&machines.to_string());
        ip(&["-n", &client, "addr", "flush", "dev", "c0"]);
        let pairs = answer.lines().filter_map(|line| line.split_once(' '));
        pairs.map(|(mac, address)| (mac.to_owned(), address.to_owned())).collect()
    }

    /// Starts sending bad messages without pause.
    pub fn hostile(&self, index: usize, at_most: Duration) -> Role {
        let client = self.client_name(index);
        ip(&["-n", &client, "addr", "add", "10.77.0.251/24", "dev", "c0"]);
        let mut command = self.role(&client, "hostile");
        command.env("SLIPWAY_TEST_SECONDS", at_most.as_secs().to_string());
        self.spawn(command)
    }

    /// Starts giving back and declining a machine's addresses in its name, from a card of its own, as fast as it goes. It
    /// has done so fifty times when this returns.
    pub fn forge(&self, index: usize, mac: &str, addresses: &[Ipv4Addr]) -> Role {
        let client = self.client_name(index);
        ip(&["-n", &client, "addr", "add", "10.77.0.251/24", "dev", "c0"]);
        let list: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let mut command = self.role(&client, "forge");
        command.env("SLIPWAY_TEST_VICTIM", mac).env("SLIPWAY_TEST_ADDRESSES", list.join(","));
        self.spawn(command)
    }

    /// Starts passing on DISCOVERs from its own card, as relays with addresses where nobody is would. It has passed on a
    /// thousand when this returns.
    pub fn made_up_relays(&self, index: usize) -> Role {
        let client = self.client_name(index);
        ip(&["-n", &client, "addr", "add", "10.77.0.251/24", "dev", "c0"]);
        self.spawn(self.role(&client, "relays"))
    }

    /// What boot HTTP answers a client that has this address.
    pub fn fetch(&self, index: usize, address: Ipv4Addr, path: &str) -> String {
        let client = self.client_name(index);
        ip(&["-n", &client, "addr", "add", &format!("{address}/24"), "dev", "c0"]);
        let answer = self.spawn(self.role(&client, "fetch")).ask(path);
        ip(&["-n", &client, "addr", "flush", "dev", "c0"]);
        answer
    }

    /// Why a server cannot be bound with these lines of `[[network]]`.
    pub fn bind_fault(&self, network: &str) -> String {
        self.write_config(network);
        let output = self.role(&self.server_name(), "bind").stderr(Stdio::null()).output().expect("runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Something else that has the DHCP port.
    pub fn squatter(&self) -> Role {
        self.spawn(self.role(&self.server_name(), "squat"))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.server = None;
        if std::thread::panicking() {
            eprintln!("--- the server's log\n{}", self.log());
        }
        for index in 0..self.clients {
            ip(&["netns", "del", &self.client_name(index)]);
        }
        ip(&["netns", "del", &self.server_name()]);
    }
}

/// A client that stays; ends with its value.
pub struct Daemon {
    child: Child,
    events: PathBuf,
}

impl Daemon {
    pub fn wait_for(&self, event: &str) {
        self.wait_for_times(event, 1);
    }

    pub fn wait_for_times(&self, event: &str, times: usize) {
        let events = || fs::read_to_string(&self.events).unwrap_or_default();
        wait_for(|| events().lines().filter(|line| *line == event).count() >= times);
        assert!(events().lines().filter(|line| *line == event).count() >= times, "{event}: {}", events());
    }

    pub fn signal(&self, signal: Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"));
        nix::sys::signal::kill(pid, signal).expect("it runs");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

pub fn wait_for(condition: impl Fn() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !condition() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a client to its end, or to the deadline.
fn run(mut command: Command) {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the client starts");
    let end = Instant::now() + DEADLINE;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().ok();
    child.wait().ok();
}

fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2);
    pairs.filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
