//! Restoring: a new appliance in an empty data folder, or only the check that it would be one.
//!
//! The first thing written is the file [`MARK`] and the last thing done is its removal, so whatever interrupts a restore,
//! `slipway serve` does not start on half of one, and the next restore starts over.

use std::collections::{BTreeMap, HashSet};
use std::fs::DirBuilder;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::format::{self, BackupItem, Header};
use crate::api::Kind;
use crate::api::metal3::ANNOTATION_PAUSED;
use crate::apiserver;
use crate::config::DataDir;
use crate::dhcp;
use crate::log::escaped;
use crate::pki::KeptPki;
use crate::store::{NewStore, Object, StoreOptions};

mod folder;

pub use folder::give_to_owner;

use folder::{RestoreMark, clear, write_private};

/// A restored store goes on a multiple of this above the revision of the backup: further than any appliance came since, so
/// that no revision is given twice, and whoever saw one of those is told that it is gone (HTTP 410) and lists again.
pub const REVISIONS_AHEAD: u64 = 1_000_000_000;

/// Which multiple is drawn, up to this one: of a backup that is restored twice, both give other revisions.
const LIVES: u64 = 1000;

/// The file in a data folder that a restore was begun in and not ended.
pub const MARK: &str = "restore-unfinished";

/// Where the configuration of the backup is put, in the data folder.
pub const CONFIG_FILE: &str = "restored-slipway.toml";

/// Beginning of what [`ANNOTATION_PAUSED`] holds on hosts that a restore paused.
pub const PAUSED_BY: &str = "slipway restore";

const HOSTS: &str = "metal3.io/baremetalhosts";
const DEFINITIONS: &str = "apiextensions.k8s.io/customresourcedefinitions";

/// What came of a backup.
#[derive(Debug)]
pub struct RestoreReport {
    /// Its first line.
    pub header: Header,
    /// Objects of each resource.
    pub resources: BTreeMap<String, u64>,
    /// Hosts that are paused now and were not.
    pub paused: u64,
    /// Hosts with which something was being done when the backup was taken.
    pub under_way: BusyHosts,
    /// Where the configuration of the backup is.
    pub config: Option<PathBuf>,
}

/// Reads a backup to its end and checks everything. Writes nothing. `each` is told how many lines there are and how many
/// were read.
///
/// # Errors
///
/// When it is damaged, or the keys in it do not belong together.
pub fn check(input: impl Read, mut each: impl FnMut(u64, u64)) -> anyhow::Result<RestoreReport> {
    let mut gathered = Gathered::default();
    let header = format::read(input, |header, item| gathered.take(header, item, None, &mut each))?;
    gathered.keys(&header)?;
    Ok(gathered.report(header))
}

/// Makes an appliance of a backup. `pause` keeps it from acting on hosts before somebody has looked at them.
///
/// # Errors
///
/// `kinds` are those of the program, which somebody may have watched.
///
/// As [`check`], and when the folder is not empty or cannot be written. The folder is then as it was before.
pub fn restore(
    input: impl Read,
    kinds: &[Kind],
    folder: &Path,
    pause: bool,
    each: impl FnMut(u64, u64),
) -> anyhow::Result<RestoreReport> {
    let mark = RestoreMark::begin(folder)?;
    match fill(input, kinds, folder, pause, each) {
        Ok(report) => {
            mark.end(folder)?;
            Ok(report)
        }
        Err(error) => {
            clear(folder).with_context(|| format!("{error:#}; and {} could not be cleared", folder.display()))?;
            mark.end(folder)?;
            Err(error)
        }
    }
}

/// Refuses a data folder in which a restore was not ended.
///
/// # Errors
///
/// With what to do about it.
pub fn refuse_unfinished(folder: &Path) -> anyhow::Result<()> {
    let mark = folder.join(MARK);
    if mark.symlink_metadata().is_err() {
        return Ok(());
    }
    bail!("a restore into {} was not finished ({}): run `slipway restore` again", folder.display(), mark.display())
}

fn fill(
    input: impl Read,
    kinds: &[Kind],
    folder: &Path,
    pause: bool,
    mut each: impl FnMut(u64, u64),
) -> anyhow::Result<RestoreReport> {
    let data = DataDir(folder.to_owned());
    // Private before the first key is in it.
    DirBuilder::new().recursive(true).mode(0o700).create(data.pki()).context("pki")?;
    // The key that seals the database is made with it. History is read only by who opens the store to serve it.
    let options = StoreOptions { path: data.db(), key_file: data.pki().join("store.key"), history: 1 };
    let mut store = NewStore::create(options)?;
    let life = rand::random_range(1..=LIVES);
    let mut gathered = Gathered { pause, life, ..Gathered::default() };
    let header = format::read(input, |header, item| gathered.take(header, item, Some(&mut store), &mut each))?;
    let keys = gathered.keys(&header)?;
    let revision = ahead(&header, gathered.life, gathered.paused)?;
    store.finish(revision, gathered.watched(kinds)?)?;
    keys.write(&data.pki())?;
    let mut config = None;
    if let Some(text) = gathered.files.get("slipway.toml") {
        let path = folder.join(CONFIG_FILE);
        write_private(&path, text).with_context(|| path.display().to_string())?;
        config = Some(path);
    }
    give_to_owner(folder).with_context(|| format!("cannot give what is in {} to its owner", folder.display()))?;
    Ok(RestoreReport { config, ..gathered.report(header) })
}

/// Kinds that a backup may have objects of.
const MAX_RESOURCES: usize = 4096;

/// Hosts under way that are named.
const NAMED: usize = 20;

/// What was read.
#[derive(Default)]
struct Gathered {
    pause: bool,
    /// Which multiple of [`REVISIONS_AHEAD`] it goes on above.
    life: u64,
    files: BTreeMap<String, String>,
    resources: BTreeMap<String, u64>,
    /// Resources that are defined by an object.
    defined: HashSet<String>,
    paused: u64,
    under_way: BusyHosts,
    lines: u64,
}

/// Hosts with which something was being done.
#[derive(Debug, Default)]
pub struct BusyHosts {
    /// The first of them, as `namespace/name`.
    pub names: Vec<String>,
    /// How many there are besides.
    pub more: u64,
}

impl BusyHosts {
    fn add(&mut self, host: &Object) {
        if self.names.len() < NAMED {
            // The file may be anybody's, and this is shown on a terminal.
            self.names.push(escaped(&format!("{}/{}", host.namespace, host.name)));
        } else {
            self.more += 1;
        }
    }
}

impl Gathered {
    fn take(
        &mut self,
        header: &Header,
        item: BackupItem,
        store: Option<&mut NewStore>,
        each: &mut dyn FnMut(u64, u64),
    ) -> anyhow::Result<()> {
        self.lines += 1;
        each(self.lines, header.lines());
        match item {
            BackupItem::Object(object) => {
                *self.resources.entry(object.resource.to_string()).or_default() += 1;
                if self.resources.len() > MAX_RESOURCES || self.defined.len() > MAX_RESOURCES {
                    bail!("it has objects of more than {MAX_RESOURCES} kinds");
                }
                if &*object.resource == DEFINITIONS {
                    let parts = object.name.split_once('.');
                    self.defined.extend(parts.map(|(plural, group)| format!("{group}/{plural}")));
                }
                let object = if &*object.resource == HOSTS { self.host(header, object)? } else { object };
                if let Some(store) = store {
                    store.object(&object)?;
                }
            }
            BackupItem::Entry { table, key, value } => {
                dhcp::check_entry(&table, &key, &value)
                    .with_context(|| format!("the DHCP lease in its line {} cannot be read", self.lines))?;
                if let Some(store) = store {
                    store.entry(&table, &key, &value)?;
                }
            }
            BackupItem::File { name, text } => {
                if self.files.insert(name.clone(), text).is_some() {
                    bail!("it holds the file {name} twice");
                }
            }
        }
        Ok(())
    }

    fn host(&mut self, header: &Header, host: Object) -> anyhow::Result<Object> {
        let value = host.value();
        if is_under_way(&value) {
            self.under_way.add(&host);
        }
        if !self.pause || value["metadata"]["annotations"].get(ANNOTATION_PAUSED).is_some() {
            return Ok(host);
        }
        self.paused += 1;
        paused(&host, value, ahead(header, self.life, self.paused)?, header)
    }

    /// The keys, if they are all there and belong together.
    fn keys(&self, header: &Header) -> anyhow::Result<KeptPki> {
        let keys = KeptPki::new(|name| self.files.get(&format!("pki/{name}")).cloned())
            .map_err(|reason| anyhow::anyhow!("its keys cannot be used: {reason}"))?;
        if crate::hex::hex(&keys.fingerprint()) != header.ca {
            bail!("its CA is not the one that its first line names");
        }
        Ok(keys)
    }

    /// Every resource that somebody may watch.
    fn watched(&self, kinds: &[Kind]) -> anyhow::Result<HashSet<Arc<str>>> {
        let built_in = apiserver::registry(kinds)?;
        let mut watched: HashSet<Arc<str>> = built_in.stored().map(|kind| kind.storage.to_string().into()).collect();
        watched.extend(self.resources.keys().chain(&self.defined).map(|name| name.as_str().into()));
        Ok(watched)
    }

    fn report(self, header: Header) -> RestoreReport {
        let Self { resources, paused, under_way, .. } = self;
        RestoreReport { header, resources, paused, under_way, config: None }
    }
}

/// The revision so many changes after the restore began.
fn ahead(header: &Header, life: u64, changes: u64) -> anyhow::Result<u64> {
    let jump = life.saturating_mul(REVISIONS_AHEAD);
    let revision = header.revision.checked_add(jump).and_then(|revision| revision.checked_add(changes));
    // Below it there must be room for a lifetime of writes.
    revision.filter(|revision| *revision < u64::MAX / 2).context("its revision is no number that a store reaches")
}

/// Whether something is being done with a host, or would be next: it is in a state that ends by itself, it is about to go,
/// or its image is not the one that it should have.
pub fn is_under_way(host: &Value) -> bool {
    let status = &host["status"]["provisioning"];
    let image = |of: &Value| of["url"].as_str().filter(|url| !url.is_empty()).map(str::to_owned);
    let (wanted, has) = (image(&host["spec"]["image"]), image(&status["image"]));
    let rests = match status["state"].as_str().unwrap_or_default() {
        "" | "unmanaged" | "externally provisioned" => true,
        "ready" | "available" => wanted.is_none() && host["spec"]["customDeploy"].is_null(),
        "provisioned" => wanted == has,
        _ => false,
    };
    !rests || !host["metadata"]["deletionTimestamp"].is_null()
}

/// A host that nothing further is done with.
fn paused(host: &Object, mut value: Value, revision: u64, header: &Header) -> anyhow::Result<Object> {
    let metadata = &mut value["metadata"];
    metadata["resourceVersion"] = revision.to_string().into();
    if !metadata["annotations"].is_object() {
        metadata["annotations"] = json!({});
    }
    metadata["annotations"][ANNOTATION_PAUSED] = format!("{PAUSED_BY} of a backup of {:.0}", header.time).into();
    let text = serde_json::to_vec(&value)?;
    let (resource, namespace, name) = (Arc::clone(&host.resource), host.namespace.clone(), host.name.clone());
    Ok(Object::new(resource, namespace, name, revision, &text)?)
}

#[cfg(test)]
mod tests {
    use std::{fs, io};

    use super::*;
    use crate::backup::format::{BackupWriter, FORMAT};
    use crate::store::OBJECT_LIMIT;

    fn header() -> Header {
        let time = "2026-11-22T07:00:00Z".parse().unwrap();
        let (made_by, ca) = ("0.1.0".into(), "00".repeat(32));
        Header { slipway_backup: FORMAT, made_by, time, ca, revision: 9, objects: 1, entries: 0, files: 0 }
    }

    #[test]
    fn the_largest_host_can_be_paused_and_backed_up_again() {
        let metadata = json!({ "name": "h", "resourceVersion": "7" });
        let host = |length: usize| json!({ "kind": "BareMetalHost", "metadata": metadata, "spec": "x".repeat(length) });
        let largest = host(OBJECT_LIMIT - host(0).to_string().len());
        let text = largest.to_string();
        assert_eq!(text.len(), OBJECT_LIMIT);
        let header = header();
        let object = Object::new(HOSTS.into(), "n".into(), "h".into(), 7, text.as_bytes()).unwrap();
        let paused = paused(&object, largest, 8, &header).unwrap();
        assert!(paused.json_len() > OBJECT_LIMIT);
        let mut writer = BackupWriter::new(Vec::new(), &header).unwrap();
        writer.object(&paused).unwrap();
        format::read(&writer.finish().unwrap()[..], |_, _| Ok(())).unwrap();
    }

    #[test]
    fn what_a_backup_makes_of_the_memory_and_the_terminal_is_bounded() {
        let header = header();
        let mut gathered = Gathered::default();
        let mut take = |resource: &str, name: &str| {
            let text = json!({ "metadata": { "name": name }, "status": { "provisioning": { "state": "inspecting" } } });
            let object = Object::new(resource.into(), "n".into(), name.into(), 1, text.to_string().as_bytes()).unwrap();
            gathered.take(&header, BackupItem::Object(object), None, &mut |_, _| {})
        };
        for number in 0..50 {
            take(HOSTS, &format!("h\u{1b}{number}")).unwrap();
        }
        for number in 1..MAX_RESOURCES {
            take(&format!("g/{number}"), "a").unwrap();
        }
        assert!(take("one/more", "a").unwrap_err().to_string().contains("kinds"));
        assert_eq!((gathered.under_way.names.len(), gathered.under_way.more), (NAMED, 30));
        assert_eq!(gathered.under_way.names[0], "n/h\\u001b0");
    }

    #[test]
    fn a_lease_with_which_no_appliance_would_start_is_none_of_a_whole_backup() {
        let header = header();
        let entry = |table: &str, value: &'static [u8]| BackupItem::Entry {
            table: table.into(),
            key: vec![10, 0, 0, 1].into(),
            value: value.into(),
        };
        let mut gathered = Gathered::default();
        let mut take = |item| gathered.take(&header, item, None, &mut |_, _| {});
        // One that is damaged is left out at the start.
        for (table, value) in [("discovery", &[255][..]), ("leases", &[]), ("leases", &[1, 9])] {
            take(entry(table, value)).unwrap();
        }
        let error = take(entry("leases", &[255])).unwrap_err();
        assert!(error.to_string().contains("the DHCP lease in its line"), "{error:#}");
    }

    #[test]
    fn what_would_be_done_with_a_host_is_told() {
        let host = |state: &str, wanted: &str, has: &str| {
            let image = |url: &str| if url.is_empty() { Value::Null } else { json!({ "url": url }) };
            json!({ "metadata": {}, "spec": { "image": image(wanted) },
                "status": { "provisioning": { "state": state, "image": image(has) } } })
        };
        for (state, wanted, has, under_way) in [
            ("", "", "", false),
            ("unmanaged", "", "", false),
            ("available", "", "", false),
            ("available", "http://a", "", true),
            ("provisioned", "http://a", "http://a", false),
            ("provisioned", "http://b", "http://a", true),
            ("provisioned", "", "http://a", true),
            ("externally provisioned", "", "", false),
            ("inspecting", "", "", true),
            ("provisioning", "http://a", "", true),
            ("deprovisioning", "", "http://a", true),
            ("deleting", "", "", true),
        ] {
            assert_eq!(is_under_way(&host(state, wanted, has)), under_way, "{state} {wanted} {has}");
        }
        let mut going = host("available", "", "");
        going["metadata"]["deletionTimestamp"] = "2026-11-22T07:00:00Z".into();
        assert!(is_under_way(&going));
        let mut custom = host("available", "", "");
        custom["spec"]["customDeploy"] = json!({ "method": "x" });
        assert!(is_under_way(&custom));
    }

    #[test]
    fn a_folder_that_is_in_use_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        for part in ["db", "pki"] {
            fs::create_dir(folder.path().join(part)).unwrap();
            let file = folder.path().join(part).join("x");
            fs::write(&file, "kept").unwrap();
            let error = restore(io::empty(), &[], folder.path(), true, |_, _| {}).unwrap_err().to_string();
            assert!(error.contains("there is an appliance"), "{error}");
            assert_eq!(fs::read(&file).unwrap(), b"kept");
            assert!(refuse_unfinished(folder.path()).is_ok());
            fs::remove_file(file).unwrap();
        }
    }

    #[test]
    fn what_is_no_backup_leaves_the_folder_as_it_was_and_one_restore_at_a_time_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        assert!(restore(io::empty(), &[], &data, true, |_, _| {}).is_err());
        assert_eq!(fs::read_dir(&data).unwrap().count(), 0);
        let mark = RestoreMark::begin(&data).unwrap();
        let error = restore(io::empty(), &[], &data, true, |_, _| {}).unwrap_err().to_string();
        assert!(error.contains("another restore"), "{error}");
        // As a kill leaves it.
        drop(mark);
        fs::create_dir(data.join("db")).unwrap();
        fs::write(data.join("db/half"), "").unwrap();
        assert!(refuse_unfinished(&data).unwrap_err().to_string().contains("slipway restore"));
        RestoreMark::begin(&data).unwrap().end(&data).unwrap();
        assert_eq!(fs::read_dir(&data).unwrap().count(), 0);
    }
}
