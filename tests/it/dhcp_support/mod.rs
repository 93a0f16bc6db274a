//! Network namespaces, a server in one of them, clients in the others.
//!
//! The server and the senders of hand-made messages are this test binary again, started by `ip netns exec` with a role
//! in its environment. They end when their standard input closes, so nothing outlives the test.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dhcproto::v4::{DhcpOption, Flags, Message, MessageType, Opcode};
use dhcproto::{Decodable, Decoder, Encodable, Encoder};
use nix::sys::signal::Signal;
use rand::Rng;
use slipway::api::MacAddress;
use slipway::api::slipway::BootTarget;
use slipway::boot::{self, BootHost, HostIndex, IndexedIntent, Ownership, neighbour};
use slipway::config::Config;
use slipway::dhcp::{LeaseViews, Leases, Server, ServicePorts};
use slipway::store::{Store, StoreOptions};

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

fn wait_for(condition: impl Fn() -> bool) {
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

/// Plays the role that the environment names; nothing without one.
pub fn play_role() {
    match std::env::var(ROLE).as_deref() {
        Ok("server") => serve(),
        Ok("bind") => bind_only(),
        Ok("exchange") => exchange(),
        Ok("hostile") => attack(),
        Ok("storm") => storm(),
        Ok("forge") => forge(),
        Ok("relays") => made_up_relays(),
        Ok("fetch") => fetch(),
        Ok("squat") => {
            let _socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 67)).expect("binds");
            ready();
            std::io::stdin().read_to_end(&mut Vec::new()).ok();
        }
        _ => eprintln!("no role: this is started by other tests"),
    }
}

fn ready() {
    println!("\nready");
    std::io::stdout().flush().ok();
}

fn folder() -> PathBuf {
    std::env::var_os("SLIPWAY_TEST_FOLDER").expect("set").into()
}

fn open(folder: &Path) -> (Config, Store) {
    let config = Config::load(&folder.join("slipway.toml")).expect("a good configuration");
    let options = StoreOptions { path: config.data_dir.db(), key_file: folder.join("key"), history: 1000 };
    let store = Store::open(options).expect("opens");
    (config, store)
}

fn bind_only() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let (config, store) = open(&folder());
    let leases = Leases::load(&store, &config.networks).expect("loads");
    match Server::bind(
        ServicePorts { http_port: 80, tftp_port: 69, dhcp_port: 67 },
        leases,
        HostIndex::default(),
        LeaseViews::store(&store),
    ) {
        Ok(_) => println!("bound"),
        Err(error) => println!("{error}"),
    }
}

fn serve() {
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let (config, store) = open(&folder());
    let hosts = HostIndex::default();
    let known = std::env::var("SLIPWAY_TEST_HOSTS").unwrap_or_default();
    for host in known.split(',').filter(|host| !host.is_empty()) {
        let [mac, name, boots] = host.split('=').collect::<Vec<_>>().try_into().expect("three parts");
        let intent = IndexedIntent { generation: 1, target: BootTarget::Ramdisk, session_open: false, live_iso: None };
        let mac = mac.parse().expect("a MAC address");
        hosts.insert(BootHost {
            namespace: "default".into(),
            created: 0,
            ownership: Ownership { boot_mac: Some(mac), registered: true, ..Ownership::default() },
            name: name.into(),
            uid: name.into(),
            macs: vec![mac],
            intent: (boots == "true").then_some(intent),
            boot_interface: Default::default(),
            discovery: Default::default(),
        });
    }
    let leases = Leases::load(&store, &config.networks).expect("loads");
    let site = ServicePorts { http_port: 80, tftp_port: 69, dhcp_port: 67 };
    let server = Server::bind(site, leases.clone(), hosts.clone(), LeaseViews::store(&store)).expect("binds");
    let networks: Vec<_> = config.networks.iter().map(|one| (one.subnet, one.interface.clone())).collect();
    let cards = neighbour::cached(networks.clone());
    let server = server.with_cards(cards.clone());
    let shutdown = tokio_util::sync::CancellationToken::new();
    let serving = runtime.spawn(server.run(shutdown.clone()));
    let ranks: slipway::ration::Ranks = {
        let (config, leases, hosts) = (config.clone(), leases.clone(), hosts.clone());
        Arc::new(move |address| slipway::dhcp::rank(&config.networks, Some(&leases), &hosts, &*cards, address))
    };
    runtime.spawn(boot_http(&config, &leases, &hosts, ranks.clone(), shutdown.clone()));
    ready();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let answer = match line.split_once(' ') {
            Some(("address", mac)) => {
                leases.address_of(mac.parse().expect("a MAC address")).map(|it| it.to_string()).unwrap_or_default()
            }
            Some(("view", name)) => {
                let view = store.get("slipway.dev/dhcpleases", "", name);
                view.map(|view| view.value().to_string()).unwrap_or_default()
            }
            Some(("card", address)) => {
                let address = address.parse().expect("an address");
                neighbour::cached(networks.clone())(address).map_or_else(|| "none".to_owned(), |card| card.to_string())
            }
            Some(("answers", address)) => {
                let address = address.parse().expect("an address");
                match runtime.block_on(neighbour::kernel(networks.clone())(address)) {
                    neighbour::Answers::Card(card) => card.to_string(),
                    other => format!("{other:?}"),
                }
            }
            Some(("probe", keep)) => {
                let done = runtime.block_on(slipway::dhcp::find_servers(&leases, keep.parse().expect("seconds")));
                done.err().unwrap_or_else(|| "done".to_owned())
            }
            Some(("rank", address)) => format!("{:?}", ranks(address.parse().expect("an address"))),
            Some(("explain", mac)) => leases.explain(mac.parse().expect("a MAC address"), &hosts),
            _ => panic!("{line}"),
        };
        println!("{}", answer.replace('\n', "\t"));
    }
    shutdown.cancel();
    runtime.block_on(serving).expect("no panic").expect("ends well");
    runtime.block_on(store.close());
}

/// Boot HTTP on port 80, with what it knows of the network.
fn boot_http(
    config: &Config,
    leases: &Leases,
    hosts: &HostIndex,
    ranks: slipway::ration::Ranks,
    shutdown: tokio_util::sync::CancellationToken,
) -> impl Future<Output = ()> + use<> {
    let files = folder().join("boot");
    fs::create_dir_all(&files).expect("a folder");
    for name in ["vmlinuz", "initrd", "ramdisk.json"] {
        fs::write(files.join(name), "a file").expect("a file");
    }
    let networks: Vec<_> = config.networks.iter().map(|one| (one.subnet, one.interface.clone())).collect();
    let (all, leases) = (config.networks.clone(), leases.clone());
    let boot_networks = boot::BootNetworks {
        lease_owner: Some(Arc::new(move |address| slipway::dhcp::lease_owner(&all, Some(&leases), address))),
        neighbours: Some(neighbour::kernel(networks)),
        ..boot::BootNetworks::default()
    };
    let key = rcgen::KeyPair::generate().expect("a key");
    let ca = rcgen::CertificateParams::new(["ca".to_owned()]).and_then(|ca| ca.self_signed(&key)).expect("a CA");
    let site = boot::BootServerConfig::new(8443, &ca.pem(), "").expect("a site").with_networks(boot_networks);
    let tokens = Arc::new(boot::Tokens::open(&folder()).expect("a key"));
    let router =
        boot::router(site, hosts.clone(), tokens, boot::BootFiles::new(&files), boot::DownloadScheduler::default());
    async move {
        let listener = tokio::net::TcpListener::bind("0.0.0.0:80").await.expect("a port");
        let metrics = boot::Metrics::default();
        boot::serve(listener, router, ranks, boot::MAX_CONNECTIONS, metrics, shutdown).await.expect("an orderly end");
    }
}

fn socket(how: &str) -> (UdpSocket, SocketAddrV4) {
    let server = Ipv4Addr::new(10, 77, 0, 1);
    let (from, to) = match how {
        "Broadcast" => (SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68), SocketAddrV4::new(Ipv4Addr::BROADCAST, 67)),
        "Relay" => (SocketAddrV4::new(CLIENT, 67), SocketAddrV4::new(server, 67)),
        "ProxyPort" => (SocketAddrV4::new(CLIENT, 68), SocketAddrV4::new(server, 4011)),
        other => panic!("{other}"),
    };
    let socket = UdpSocket::bind(from).expect("binds");
    socket.set_broadcast(true).expect("may broadcast");
    socket2::SockRef::from(&socket).bind_device(Some(b"c0")).expect("binds to the interface");
    socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
    (socket, to)
}

/// Sends the message of each line, some times, and prints what comes back.
fn exchange() {
    ready();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let (how, packet) = line.split_once(' ').expect("two words");
        let (packet, (socket, to)) = (unhex(packet), socket(how));
        let mut buffer = [0; 2048];
        let answer = (0..3).find_map(|_| {
            socket.send_to(&packet, to).expect("sends");
            let end = Instant::now() + Duration::from_secs(1);
            while Instant::now() < end {
                let (length, _) = socket.recv_from(&mut buffer).ok()?;
                // An answer to this message: its transaction.
                if buffer[0] == 2 && buffer[4..8] == packet[4..8] {
                    return Some(buffer[..length].to_vec());
                }
            }
            None
        });
        let hex: String = answer.unwrap_or_default().iter().map(|byte| format!("{byte:02x}")).collect();
        println!("{hex}");
    }
}

/// Sends the messages, again what is not answered, and gives back each with its answer.
fn ask_all(socket: &UdpSocket, to: SocketAddrV4, messages: Vec<Message>) -> Vec<(Message, Message)> {
    let mut open: HashMap<u32, Message> = messages.into_iter().map(|message| (message.xid(), message)).collect();
    let mut answered = Vec::new();
    let mut buffer = [0; 2048];
    let end = Instant::now() + DEADLINE;
    while !open.is_empty() && Instant::now() < end {
        for message in open.values() {
            socket.send_to(&encode(message), to).expect("sends");
        }
        while !open.is_empty() {
            let Ok((length, _)) = socket.recv_from(&mut buffer) else { break };
            let answer = Message::decode(&mut Decoder::new(&buffer[..length])).expect("a DHCP message");
            answered.extend(open.remove(&answer.xid()).map(|message| (message, answer)));
        }
    }
    answered
}

/// As many machines as the line says get an address together; prints who got which.
fn storm() {
    let (socket, to) = socket("Relay");
    ready();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let relayed = |mac: &str, kind, options| {
            let mut message = message(mac, kind, options);
            message.set_giaddr(CLIENT);
            message
        };
        let machines: u8 = line.parse().expect("a number");
        let discover = |machine| relayed(&format!("02:00:00:00:05:{machine:02x}"), MessageType::Discover, Vec::new());
        let offers = ask_all(&socket, to, (0..machines).map(discover).collect());
        let mac = |asked: &Message| MacAddress(encode(asked)[28..34].try_into().expect("six bytes")).to_string();
        let request = |(asked, offer): (Message, Message)| {
            relayed(&mac(&asked), MessageType::Request, vec![DhcpOption::RequestedIpAddress(offer.yiaddr())])
        };
        let leased = ask_all(&socket, to, offers.into_iter().map(request).collect());
        let line = leased.iter().filter(|(_, answer)| answer.opts().msg_type() == Some(MessageType::Ack));
        let line = line.map(|(asked, answer)| format!("{} {}", mac(asked), answer.yiaddr()));
        println!("{}", line.collect::<Vec<_>>().join("\t"));
    }
}

/// Gets what each line names from boot HTTP; prints it in one line.
fn fetch() {
    ready();
    for path in std::io::stdin().lines().map_while(Result::ok) {
        let mut answer = String::new();
        let got = std::net::TcpStream::connect("10.77.0.1:80").and_then(|mut stream| {
            stream.set_read_timeout(Some(DEADLINE))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
            stream.read_to_string(&mut answer)
        });
        let answer = got.map_or_else(|error| error.to_string(), |_| answer);
        println!("{}", answer.replace('\r', "").replace('\n', "\t"));
    }
}

/// In another machine's name, from a card of its own: gives back and declines each of the addresses, with what a client
/// would ask before, from its own address and from that of the machine, until the input closes.
fn forge() {
    let victim = std::env::var("SLIPWAY_TEST_VICTIM").expect("set");
    let addresses = std::env::var("SLIPWAY_TEST_ADDRESSES").expect("set");
    let addresses: Vec<Ipv4Addr> = addresses.split(',').map(|it| it.parse().expect("an address")).collect();
    let to = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), 67);
    let broadcast = SocketAddrV4::new(Ipv4Addr::BROADCAST, 67);
    let own = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("binds");
    own.set_broadcast(true).expect("may broadcast");
    socket2::SockRef::from(&own).bind_device(Some(b"c0")).expect("binds to the interface");
    // From an address that is not its own: what root may do on any machine.
    let posing = addresses.iter().map(|address| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).expect("a socket");
        socket.set_ip_transparent_v4(true).expect("root may");
        socket.bind(&SocketAddrV4::new(*address, 0).into()).expect("binds");
        (*address, UdpSocket::from(socket))
    });
    let posing: Vec<_> = posing.collect();
    let round = || {
        own.send_to(&encode(&discover(&victim, Vec::new())), broadcast).ok();
        for (address, posing) in &posing {
            let server = || DhcpOption::ServerIdentifier(*to.ip());
            let decline = vec![server(), DhcpOption::RequestedIpAddress(*address)];
            own.send_to(&encode(&message(&victim, MessageType::Decline, decline)), broadcast).ok();
            let mut release = message(&victim, MessageType::Release, vec![server()]);
            release.set_ciaddr(*address);
            own.send_to(&encode(&release), to).ok();
            posing.send_to(&encode(&release), to).ok();
        }
    };
    (0..50).for_each(|_| round());
    ready();
    let (closed, is_closed) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        drop(closed);
    });
    let end = Instant::now() + 2 * DEADLINE;
    let open = || is_closed.recv_timeout(Duration::from_millis(20)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
    while Instant::now() < end && open() {
        round();
    }
}

/// DISCOVERs of one card, relayed from addresses of the network where nobody is, and INFORMs of clients with such addresses,
/// until the input closes.
fn made_up_relays() {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("binds");
    socket2::SockRef::from(&socket).bind_device(Some(b"c0")).expect("binds to the interface");
    let mut next = (2..=99).chain(120..=240).cycle();
    let mut pass_on = || {
        let mut message = discover("02:00:00:00:00:66", Vec::new());
        let nobody = Ipv4Addr::new(10, 77, 0, next.next().expect("without end"));
        message.set_giaddr(nobody).set_hops(1);
        let mut inform = self::message("02:00:00:00:00:66", MessageType::Inform, Vec::new());
        inform.set_ciaddr(nobody);
        for message in [message, inform] {
            socket.send_to(&encode(&message), (Ipv4Addr::new(10, 77, 0, 1), 67)).ok();
        }
    };
    (0..1000).for_each(|_| pass_on());
    ready();
    let (closed, is_closed) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        drop(closed);
    });
    let end = Instant::now() + 2 * DEADLINE;
    let open = || is_closed.recv_timeout(Duration::from_millis(20)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
    while Instant::now() < end && open() {
        (0..20).for_each(|_| pass_on());
    }
}

/// Cut and changed messages, and good ones of made-up clients that want an address each, until the input closes or the time is over.
fn attack() {
    let (socket, to) = socket("Broadcast");
    let seconds: u64 = std::env::var("SLIPWAY_TEST_SECONDS").ok().and_then(|it| it.parse().ok()).unwrap_or(1);
    let good = encode(&discover(
        "02:00:00:00:00:66",
        vec![
            DhcpOption::Hostname("x".into()),
            DhcpOption::ClassIdentifier(b"PXEClient:Arch:00007".to_vec()),
            DhcpOption::ClientIdentifier(vec![7; 40]),
            DhcpOption::ParameterRequestList((1..60).map(dhcproto::v4::OptionCode::from).collect()),
        ],
    ));
    ready();
    let (closed, is_closed) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        drop(closed);
    });
    let mut random = rand::rng();
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        for cut in 0..good.len() {
            let mut packet = good[..cut].to_vec();
            match cut % 3 {
                0 => {}
                // hlen over 16, which makes some decoders panic.
                1 if cut > 3 => packet[2] = 255,
                // The hardware address stays: random ones would use up the pool, which is another story.
                _ => (0..8).for_each(|_| {
                    let at = random.random_range(0..=cut.saturating_sub(1));
                    if !(28..34).contains(&at) && at < packet.len() {
                        packet[at] = random.random();
                    }
                }),
            }
            socket.send_to(&packet, to).ok();
            if cut % 16 == 0 {
                let mut name = || DhcpOption::ClientIdentifier(random.random::<[u8; 16]>().to_vec());
                let (mine, other) = (name(), name());
                socket.send_to(&encode(&discover("02:00:00:00:00:66", vec![mine])), to).ok();
                // As after a reboot (RFC 2131 section 4.3.2): no offer is needed for this one.
                let wanted = Ipv4Addr::new(10, 77, 0, random.random_range(100..=110));
                let wanted = vec![other, DhcpOption::RequestedIpAddress(wanted)];
                socket.send_to(&encode(&message("02:00:00:00:00:66", MessageType::Request, wanted)), to).ok();
            }
            // Some thousand a second: bad messages are tried here, not full queues.
            let pause = Duration::from_millis(if cut % 20 == 0 { 5 } else { 0 });
            let closed = is_closed.recv_timeout(pause);
            if !matches!(closed, Err(std::sync::mpsc::RecvTimeoutError::Timeout)) {
                return;
            }
        }
    }
}
