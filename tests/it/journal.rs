//! The log in systemd's journal: the real journald, with a `/run` of its own.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::needs;

const JOURNALD: &str = "/usr/lib/systemd/systemd-journald";
const DEADLINE: Duration = Duration::from_secs(60);

/// What journald keeps in memory, of this test alone; without the kernel's messages, and with the kernel's audit as it is.
const SETTINGS: &str = "[Journal]\nStorage=volatile\nReadKMsg=no\nAudit=keep\nForwardToSyslog=no\nForwardToWall=no\n";

/// Starts journald in a mount namespace, then the program with standard error as systemd would connect it: to journald's
/// stream, whose device and inode `JOURNAL_STREAM` names.
const SCRIPT: &str = r#"
import ctypes, os, socket, subprocess, sys, time
folder, program = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
for made in ["/run/systemd/journal", "/run/systemd/journald.conf.d", "/run/log/journal"]:
    os.makedirs(made)
with open("/run/systemd/journald.conf.d/test.conf", "w") as file:
    file.write(os.environ["SETTINGS"])
# What is started here ends with this (PR_SET_PDEATHSIG, SIGKILL).
end = lambda: ctypes.CDLL(None).prctl(1, 9)
journald = subprocess.Popen([os.environ["JOURNALD"]], stderr=subprocess.DEVNULL, preexec_fn=end)
deadline = time.monotonic() + 110

def until(what):
    while not what():
        assert time.monotonic() < deadline and journald.poll() is None
        time.sleep(0.05)

until(lambda: os.path.exists("/run/systemd/journal/socket") and os.path.exists("/run/systemd/journal/stdout"))

def serve(connected):
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.connect("/run/systemd/journal/stdout")
    # Identifier, unit, priority, level prefix, and three times no forwarding (sd_journal_stream_fd(3)).
    stream.sendall(b"by-stream\n\n6\n1\n0\n0\n0\n")
    about = os.fstat(stream.fileno())
    inode = about.st_ino if connected else about.st_ino + 1
    return subprocess.Popen([program, "serve", "--config", folder + "/slipway.toml"], stderr=stream, preexec_fn=end,
                            env={**os.environ, "JOURNAL_STREAM": f"{about.st_dev}:{inode}"})

def lines():
    text = subprocess.run(["journalctl", "-D", "/run/log/journal", "-o", "json", "--no-pager"], capture_output=True).stdout
    with open(folder + "/journal.new", "wb") as file:
        file.write(text)
    os.rename(folder + "/journal.new", folder + "/journal")
    return text.decode()

for connected, count in [(True, 1), (False, 2)]:
    process = serve(connected)
    try:
        until(lambda: lines().count("ready api=") >= count)
    finally:
        process.terminate()
        process.wait()
until(lambda: lines().count("no [[network]]") >= 2)
journald.terminate()
journald.wait()
"#;

#[test]
fn lines_are_in_the_journal_with_priority_and_fields_when_standard_error_is_connected_to_it() {
    if !needs::root() || !needs::program("journalctl") || !needs::program("python3") || !needs::program("unshare") {
        return;
    }
    if !std::path::Path::new(JOURNALD).is_file() {
        return needs::lacks("systemd-journald is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let port = crate::process::free_port;
    let settings = format!(
        "data_dir = {:?}\n[api]\nlisten = \"127.0.0.1:{}\"\n[boot]\nlisten = \"127.0.0.1:{}\"\ntftp = \"127.0.0.1:{}\"\n",
        folder.path().join("data"),
        port(),
        port(),
        port()
    );
    std::fs::write(folder.path().join("slipway.toml"), settings).unwrap();
    let mut run = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "python3", "-c", SCRIPT])
        .arg(folder.path())
        .arg(env!("CARGO_BIN_EXE_slipway"))
        .env("SETTINGS", SETTINGS)
        .env("JOURNALD", JOURNALD)
        .env_remove("SLIPWAY_LOG")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = run.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > 2 * DEADLINE {
            run.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let text = std::fs::read_to_string(folder.path().join("journal")).unwrap_or_default();
    assert!(status.success(), "{status}: {text}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let by = |transport: &'static str| lines.iter().filter(move |line| line["_TRANSPORT"] == transport);
    let about = |line: &Value, part: &str| line["MESSAGE"].as_str().is_some_and(|text| text.contains(part));

    // Connected: each line by the native protocol, as it is meant.
    let warned = by("journal").find(|line| about(line, "no [[network]] is configured")).expect(&text);
    assert_eq!(warned["PRIORITY"], "4");
    assert_eq!(warned["SYSLOG_IDENTIFIER"], "slipway");
    assert_eq!(warned["SLIPWAY_TARGET"], "slipway::appliance::shared");
    assert!(warned["CODE_FILE"].as_str().is_some_and(|file| file.ends_with("appliance/shared.rs")), "{warned}");
    let ready = by("journal").find(|line| about(line, "ready api=127.0.0.1:")).expect(&text);
    assert_eq!((&ready["PRIORITY"], &ready["SLIPWAY_NETWORKS"]), (&"6".into(), &"0".into()), "{ready}");
    assert!(ready["MESSAGE"].as_str().is_some_and(|message| !message.contains('\u{1b}')), "{ready}");

    // An inherited JOURNAL_STREAM of something else: lines of text on standard error, which is a stream here.
    let text_lines: Vec<_> = by("stdout").collect();
    assert!(text_lines.iter().any(|line| about(line, " WARN slipway::appliance::shared: no [[network]]")), "{text}");
    assert!(text_lines.iter().all(|line| line["SLIPWAY_TARGET"].is_null()), "{text}");
    assert_eq!(by("journal").filter(|line| about(line, "no [[network]]")).count(), 1, "{text}");
}
