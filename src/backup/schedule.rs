//! Copies that are made by themselves: `[backup]` of the configuration.
//!
//! A copy that fails is reported and tried again; nothing else depends on it. Old ones go only after a good new one, and
//! only files of this appliance's own name are ever touched.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::seal::{Seal, passphrase_of, recipient, strong};
use super::take::{self, Content, Source};
use crate::config::BackupConfig;

/// After a copy that failed, unless the next one is due earlier.
const RETRY: Duration = Duration::from_secs(15 * 60);
/// How often the clock is looked at, which may be set meanwhile.
const LOOK: Duration = Duration::from_secs(60);
/// Bytes of the disk that a copy does not take: the database may lie on the same one, and has to go on growing.
const LEFT_FREE: u64 = 64 << 20;
/// How a time is written in a name.
const TIME: &str = "%Y%m%dT%H%M%SZ";

/// What came of the copies. Cheap to clone.
#[derive(Clone, Default)]
pub struct Meters {
    runs: Family<[(&'static str, &'static str); 1], Counter>,
    /// Unix time in seconds; 0 when there is no copy.
    last: Gauge<i64>,
    size: Gauge<u64, AtomicU64>,
}

impl Meters {
    /// Names them for a scrape.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("slipway_backup_runs", "Scheduled backups, by outcome", self.runs.clone());
        let about = "Unix time of the newest scheduled backup; 0: there is none";
        registry.register("slipway_backup_last_success_timestamp_seconds", about, self.last.clone());
        registry.register("slipway_backup_last_size_bytes", "Size of the newest scheduled backup", self.size.clone());
    }

    fn newest(&self, copy: &Copy) {
        self.last.set(copy.time.as_second());
        self.size.set(copy.size);
    }
}

/// A copy in the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Copy {
    time: Timestamp,
    path: PathBuf,
    size: u64,
}

/// Makes copies until `shutdown`.
pub async fn run(config: BackupConfig, folder: PathBuf, source: Source, meters: Meters, shutdown: CancellationToken) {
    let job = Arc::new(Job { config, folder, source, shutdown: shutdown.clone() });
    let mut failed: Option<Timestamp> = None;
    loop {
        let (now, at_work) = (Timestamp::now(), Arc::clone(&job));
        let outcome = tokio::task::spawn_blocking(move || at_work.look(now, failed)).await;
        match outcome.map_err(anyhow::Error::from).and_then(|done| done) {
            Ok(Look::Early(newest)) => newest.iter().for_each(|copy| meters.newest(copy)),
            Ok(Look::Made(copy)) => {
                info!(file = %copy.path.display(), bytes = copy.size, "a backup was made");
                meters.runs.get_or_create(&[("outcome", "success")]).inc();
                meters.newest(&copy);
                failed = None;
            }
            Err(_) if shutdown.is_cancelled() => return,
            Err(reason) => {
                error!(reason = format!("{reason:#}"), "no backup was made: it will be tried again");
                meters.runs.get_or_create(&[("outcome", "failure")]).inc();
                failed = Some(now);
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(LOOK.min(job.config.every.0)) => {}
        }
    }
}

struct Job {
    config: BackupConfig,
    folder: PathBuf,
    source: Source,
    shutdown: CancellationToken,
}

/// What a look at the clock led to.
enum Look {
    /// Nothing; the newest copy that there is.
    Early(Option<Copy>),
    /// A copy.
    Made(Copy),
}

impl Job {
    fn look(&self, now: Timestamp, failed: Option<Timestamp>) -> anyhow::Result<Look> {
        let folder = &self.folder;
        let what = || format!("backup.folder {}", folder.display());
        let mut copies = match fs::metadata(folder) {
            Ok(_) => self.copies()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error).with_context(what),
        };
        if !is_due(now, copies.last().map(|copy| copy.time), failed, self.config.every.0) {
            return Ok(Look::Early(copies.pop()));
        }
        // Not what is above it: a disk that is not mounted is to be noticed.
        fs::DirBuilder::new().mode(0o700).create(folder).or_else(ignore_existing).with_context(what)?;
        take::sweep(folder, SystemTime::now()).with_context(what)?;
        let seal = self.seal()?;
        let content = self.source.take(now)?;
        let prefix = prefix(&content.header.ca);
        check_room(&content, folder)?;
        let path = folder.join(format!("{prefix}{}.{}", now.strftime(TIME), seal.extension()));
        let stopped = || io::Error::other("the appliance stops");
        let go_on = |_| if self.shutdown.is_cancelled() { Err(stopped()) } else { Ok(()) };
        let size = take::write_file(content, &path, &seal, go_on)?;
        let copy = Copy { time: now, path, size };
        copies.push(copy.clone());
        for old in superfluous(copies, self.config.keep) {
            if let Err(error) = fs::remove_file(&old.path) {
                warn!(file = %old.path.display(), %error, "an old backup cannot be removed");
            }
        }
        Ok(Look::Made(copy))
    }

    fn seal(&self) -> anyhow::Result<Seal> {
        match &self.config.passphrase_file {
            Some(file) => Ok(Seal::Passphrase(strong(passphrase_of(file)?).context("backup.passphrase_file")?)),
            None => {
                let keys = self.config.recipients.iter().map(|text| recipient(text));
                Ok(Seal::Recipients(keys.collect::<Result<_, _>>()?))
            }
        }
    }

    /// This appliance's copies, oldest first.
    fn copies(&self) -> anyhow::Result<Vec<Copy>> {
        let prefix = prefix(&self.source.ca()?);
        let mut copies = Vec::new();
        let read = || format!("backup.folder {}", self.folder.display());
        for entry in fs::read_dir(&self.folder).with_context(read)? {
            let entry = entry.with_context(read)?;
            let Some(time) = time_of(&entry.file_name(), &prefix) else { continue };
            let about = entry.metadata().with_context(read)?;
            if about.is_file() {
                copies.push(Copy { time, path: entry.path(), size: about.len() });
            }
        }
        copies.sort_by_key(|copy| copy.time);
        Ok(copies)
    }
}

fn ignore_existing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
}

/// Beginning of the names of an appliance's copies: its CA tells it from others that copy into the same folder.
fn prefix(ca: &str) -> String {
    format!("slipway-{}-", ca.get(..8).unwrap_or_default())
}

/// When a copy of that name was made; `None` when it is none of ours.
fn time_of(name: &OsString, prefix: &str) -> Option<Timestamp> {
    let time = name.to_str()?.strip_prefix(prefix)?.strip_suffix(".jsonl.zst.age")?;
    let time = jiff::civil::DateTime::strptime(TIME, time).ok()?;
    Some(time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
}

/// Whether it is time for a copy. A newest one of the future is of a clock that was wrong, and counts as made now.
fn is_due(now: Timestamp, newest: Option<Timestamp>, failed: Option<Timestamp>, every: Duration) -> bool {
    let since = |at: Timestamp| Duration::try_from(now.duration_since(at)).unwrap_or_default();
    let rested = failed.is_none_or(|at| since(at) >= RETRY.min(every));
    rested && newest.is_none_or(|at| at > now || since(at) >= every)
}

/// The copies that are too many, of those that are there, oldest first.
fn superfluous(mut copies: Vec<Copy>, keep: usize) -> Vec<Copy> {
    copies.truncate(copies.len().saturating_sub(keep));
    copies
}

/// Refuses a copy that might fill the disk. Its text is longer than what it is packed to.
fn check_room(content: &Content, folder: &Path) -> anyhow::Result<()> {
    let about = nix::sys::statvfs::statvfs(folder).with_context(|| folder.display().to_string())?;
    let free = about.blocks_available().saturating_mul(about.fragment_size());
    room(content.size(), free).map_err(|reason| anyhow::anyhow!("{}: {reason}", folder.display()))
}

fn room(size: u64, free: u64) -> anyhow::Result<()> {
    let needed = size.saturating_add(LEFT_FREE);
    if free < needed {
        let mega = |bytes: u64| bytes / 1_000_000;
        bail!(
            "{} MB are free and a backup may need {} MB, {} MB of which it leaves to others: make room, or lower backup.keep",
            mega(free),
            mega(needed),
            mega(LEFT_FREE)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_copy_is_due_when_the_newest_is_old_and_a_failure_rests_a_while() {
        let day = Duration::from_secs(24 * 3600);
        let now = at("2026-11-22T12:00:00Z");
        for (newest, failed, every, due) in [
            (None, None, day, true),
            (Some("2026-11-21T12:00:00Z"), None, day, true),
            (Some("2026-11-21T12:00:01Z"), None, day, false),
            (Some("2026-11-22T12:00:00Z"), None, day, false),
            // The clock was ahead when it was made.
            (Some("2031-01-01T00:00:00Z"), None, day, true),
            (None, Some("2026-11-22T11:45:01Z"), day, false),
            (None, Some("2026-11-22T11:45:00Z"), day, true),
            (None, Some("2026-11-22T11:58:00Z"), Duration::from_secs(60), true),
            (Some("2026-11-22T11:00:00Z"), Some("2026-11-22T11:30:00Z"), day, false),
        ] {
            let (newest, failed) = (newest.map(at), failed.map(at));
            assert_eq!(is_due(now, newest, failed, every), due, "{newest:?} {failed:?}");
        }
    }

    #[test]
    fn only_names_of_this_appliance_are_its_copies() {
        let prefix = prefix("3fa29c1bffff");
        let name = format!("{prefix}{}.jsonl.zst.age", at("2026-11-22T07:30:00Z").strftime(TIME));
        assert_eq!(name, "slipway-3fa29c1b-20261122T073000Z.jsonl.zst.age");
        assert_eq!(time_of(&name.into(), &prefix), Some(at("2026-11-22T07:30:00Z")));
        for other in [
            "slipway-20261122T073000Z.jsonl.zst.age",
            "slipway-00000000-20261122T073000Z.jsonl.zst.age",
            "slipway-3fa29c1b-20261122T073000Z.jsonl.zst",
            "slipway-3fa29c1b-20261322T073000Z.jsonl.zst.age",
            "slipway-3fa29c1b-20261122T073000Z.jsonl.zst.age.keep",
            "slipway-3fa29c1b-.jsonl.zst.age",
            "photo.jpg",
        ] {
            assert_eq!(time_of(&other.into(), &prefix), None, "{other}");
        }
    }

    #[test]
    fn the_oldest_go_and_never_the_last_ones() {
        let copy =
            |hour: i64| Copy { time: Timestamp::from_second(hour * 3600).unwrap(), path: PathBuf::new(), size: 1 };
        let all: Vec<_> = (0..5).map(copy).collect();
        for (keep, gone) in [(1, 4), (3, 2), (5, 0), (9, 0)] {
            assert_eq!(superfluous(all.clone(), keep), all[..gone], "{keep}");
        }
    }

    #[test]
    fn a_copy_leaves_room_for_the_database() {
        for (size, free, fits) in
            [(0, LEFT_FREE, true), (1, LEFT_FREE, false), (10, LEFT_FREE + 10, true), (u64::MAX, u64::MAX - 1, false)]
        {
            assert_eq!(room(size, free).is_ok(), fits, "{size} {free}");
        }
    }
}
