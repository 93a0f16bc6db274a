//! Work that nobody supervises: whatever is begun beside its caller, or comes again by a clock of its own, is here with its reason. All
//! else is a task (`runtime::SupervisedTask`, which is shown with its last run, result and next run), or a service of a life.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use regex::Regex;

use super::{files, is_test, shipped};

/// Programs of their own: there is no appliance that would show a task of theirs.
const PROGRAMS: [&str; 4] = ["agent", "cli", "node", "simulate"];

/// What begins something that goes on by itself, or a clock.
const BEGINS: &str = r"\btokio::spawn\(|\bthread::spawn\(|thread::Builder::new\(|\b(?:runtime|handle|Handle::current\(\))\.spawn\(|\binterval(?:_at)?\(";

/// Files that may, and why.
const LISTED: [(&str, &str); 27] = [
    ("apiserver/audit/mod.rs", "the writer of the log, and who tells what was left out: both end with the log"),
    ("apiserver/schema/cel.rs", "a thread with a larger stack, which its caller waits for"),
    ("apiserver/crd/mod.rs", "a write goes on when its caller hangs up, which waits for it"),
    ("apiserver/webhooks/commit.rs", "a write goes on when its caller hangs up, which waits for it"),
    ("appliance.rs", "the watchdog of systemd, which is to stand still when tasks do"),
    ("appliance/service_manager.rs", "the watchdog's clock"),
    ("bmc/registry.rs", "the end of a session of a BMC, with a deadline; nobody waits for it"),
    ("boot/neighbour_table.rs", "a connection to the kernel, for one question"),
    ("cluster/control_plane/etcd/rpc.rs", "a connection, which ends with its owner"),
    ("cluster/workload/nodes.rs", "a copy is forgotten when it is too old"),
    ("cluster/workload/tunnel.rs", "a connection, which ends with its stream"),
    ("dhcp/publish.rs", "the clock of a task that has rules of its own"),
    ("dhcp/server.rs", "the clock of a task that has rules of its own"),
    ("dhcp/worker.rs", "a thread for packets and its clock; the service waits for it"),
    ("host/agent_api/routes.rs", "progress of a step is written a moment later, one at a time for each host"),
    ("host/discovery/visit.rs", "a report goes on when its machine hangs up, which waits for it"),
    ("host/directory/mod.rs", "a directory of a test's own"),
    ("image/controller.rs", "the clock of an import, which is a job"),
    ("image/controller/uploads.rs", "the clock of a task that has rules of its own"),
    ("image/controller/upkeep.rs", "the clock of a task that has rules of its own"),
    ("image/publish/keep.rs", "the clock of a task that has rules of its own"),
    ("kubespray/runs/runner.rs", "a child process is waited for, so that it is no zombie"),
    ("kubespray/runs/supervise.rs", "the clock of the supervisor of a run, which is a process of its own"),
    ("outbound/names.rs", "a look-up has its place for as long as it has its thread"),
    ("store/committer.rs", "the thread that writes the database"),
    ("store/rewriting.rs", "the thread that writes the database anew"),
    ("tftp/server.rs", "the thread of all transfers; the service waits for it"),
];

#[test]
fn what_goes_on_by_itself_is_a_task_or_has_a_reason() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    files(&top, &mut found);
    let begins = Regex::new(BEGINS).unwrap();
    let mut those = BTreeSet::new();
    for path in &found {
        let below = path.strip_prefix(&top).unwrap();
        let is_program = PROGRAMS.iter().any(|program| below.starts_with(program));
        if !is_program && !is_test(below) && begins.is_match(&shipped(&fs::read_to_string(path).unwrap())) {
            those.insert(below.to_string_lossy().into_owned());
        }
    }
    let listed: BTreeSet<String> = LISTED.iter().map(|(path, _)| (*path).to_owned()).collect();
    let unlisted: Vec<_> = those.difference(&listed).collect();
    assert!(
        unlisted.is_empty(),
        "{unlisted:?}: make it a task or a service (docs/design/adding.md), or say here why not"
    );
    let gone: Vec<_> = listed.difference(&those).collect();
    assert!(gone.is_empty(), "{gone:?} begin nothing any more: take them from the list");
}
