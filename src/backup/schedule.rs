//! Copies that are made by themselves: `[backup]` of the configuration.
//!
//! A copy that fails is reported and tried again; nothing else depends on it. Old ones go only after a good new one, and
//! only files of this appliance's own name are ever touched.
//!
//! Clocks are wrong now and then: a box without a battery starts in the past, another was ahead for an hour. So between two
//! copies a process goes by the time that it runs, which nobody sets. Only what was before its start it knows by the names
//! of the copies, and where these are of the future, it waits a while for the clock to come right, and keeps more of them.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::seal::{Seal, passphrase_of, recipient, strong};
use super::take::{self, BackupContent, BackupSource};
use crate::config::BackupConfig;
use crate::disk_space::DiskSpace;
use crate::runtime::SupervisedTask;

/// After a copy that failed, unless the next one is due earlier.
const RETRY: Duration = Duration::from_secs(15 * 60);
/// How often the clock is looked at, which may be set meanwhile.
const LOOK: Duration = Duration::from_secs(60);
/// How long after a start a clock is waited for that the copies contradict, unless they are made more often.
const DOUBT: Duration = Duration::from_secs(3600);
/// Bytes of the disk that a copy does not take: the database may lie on the same one, and has to go on growing.
const LEFT_FREE: u64 = 64 << 20;
/// How a time is written in a name.
const TIME: &str = "%Y%m%dT%H%M%SZ";

/// What came of the copies. Cheap to clone.
#[derive(Clone, Default)]
pub struct BackupMeters {
    runs: Family<[(&'static str, &'static str); 1], Counter>,
    /// Unix time in seconds; 0 when there is no copy.
    last: Gauge<i64>,
    size: Gauge<u64, AtomicU64>,
}

impl BackupMeters {
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

/// Makes copies until `shutdown`. Each is a run of the task.
pub async fn run(
    config: BackupConfig,
    folder: PathBuf,
    source: BackupSource,
    meters: BackupMeters,
    task: SupervisedTask,
    shutdown: CancellationToken,
) {
    let every = config.every.0;
    let job = Arc::new(BackupJob { config, folder, source, shutdown: shutdown.clone() });
    let began = Instant::now();
    let (mut made, mut failed): (Option<Instant>, Option<Instant>) = (None, None);
    loop {
        let ago = |at: Option<Instant>| at.map(|at| at.elapsed());
        let times = ElapsedTimes { runs: began.elapsed(), made: ago(made), failed: ago(failed) };
        let (now, at_work) = (Timestamp::now(), Arc::clone(&job));
        let look = task.begin();
        let outcome = tokio::task::spawn_blocking(move || at_work.look(now, times)).await;
        match outcome.map_err(anyhow::Error::from).and_then(|done| done) {
            Ok(ScheduleLook::Early(newest)) => {
                look.forget();
                if let Some(copy) = newest {
                    meters.newest(&copy);
                    task.recall(copy.time);
                    if made.is_none() && failed.is_none() {
                        task.next_at(copy.time.checked_add(every).unwrap_or(Timestamp::MAX));
                    }
                }
            }
            Ok(ScheduleLook::Made(copy)) => {
                info!(file = %copy.path.display(), bytes = copy.size, "a backup was made");
                meters.runs.get_or_create(&[("outcome", "success")]).inc();
                meters.newest(&copy);
                look.end(Ok::<_, anyhow::Error>(()));
                task.next_in(every);
                (made, failed) = (Some(Instant::now()), None);
            }
            Err(_) if shutdown.is_cancelled() => return,
            Err(reason) => {
                error!(error = format!("{reason:#}"), "cannot make a backup: trying again later");
                meters.runs.get_or_create(&[("outcome", "failure")]).inc();
                look.end(Err(format!("{reason:#}")));
                task.next_in(RETRY.min(every));
                failed = Some(Instant::now());
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(LOOK.min(every)) => {}
        }
    }
}

/// How copies are encrypted.
///
/// # Errors
///
/// When the file with the passphrase cannot be used.
pub fn seal(config: &BackupConfig) -> anyhow::Result<Seal> {
    match &config.passphrase_file {
        Some(file) => {
            let passphrase = passphrase_of(file).and_then(strong);
            Ok(Seal::Passphrase(passphrase.context("backup.passphrase_file")?))
        }
        None => {
            let keys = config.recipients.iter().map(|text| recipient(text));
            Ok(Seal::Recipients(keys.collect::<Result<_, _>>()?))
        }
    }
}

/// What happened how long ago, by a clock that nobody sets.
#[derive(Clone, Copy, Debug, Default)]
struct ElapsedTimes {
    /// The process began.
    runs: Duration,
    /// It made its last copy.
    made: Option<Duration>,
    /// A copy failed, and none was made since.
    failed: Option<Duration>,
}

struct BackupJob {
    config: BackupConfig,
    folder: PathBuf,
    source: BackupSource,
    shutdown: CancellationToken,
}

/// What a look at the clock led to.
enum ScheduleLook {
    /// Nothing; the newest copy that there is.
    Early(Option<Copy>),
    /// A copy.
    Made(Copy),
}

impl BackupJob {
    fn look(&self, now: Timestamp, times: ElapsedTimes) -> anyhow::Result<ScheduleLook> {
        let folder = &self.folder;
        let what = || format!("backup.folder {}", folder.display());
        let mut copies = match fs::metadata(folder) {
            Ok(_) => self.copies()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error).with_context(what),
        };
        let known: Vec<Timestamp> = copies.iter().map(|copy| copy.time).collect();
        if !is_due(now, &known, times, self.config.every.0) {
            // One of the future tells nothing, unless there is no other.
            let past = copies.partition_point(|copy| copy.time <= now);
            copies.truncate(past.max(1));
            return Ok(ScheduleLook::Early(copies.pop()));
        }
        // Not what is above it: a disk that is not mounted is to be noticed.
        fs::DirBuilder::new().mode(0o700).create(folder).or_else(ignore_existing).with_context(what)?;
        take::sweep(folder, SystemTime::now()).with_context(what)?;
        let seal = seal(&self.config)?;
        let content = self.source.take(now)?;
        let prefix = prefix(&content.header.ca);
        check_room(&content, folder)?;
        let path = folder.join(format!("{prefix}{}.{}", now.strftime(TIME), seal.extension()));
        let stopped = || io::Error::other("the appliance stops");
        let go_on = |_| if self.shutdown.is_cancelled() { Err(stopped()) } else { Ok(()) };
        let size = take::write_file(content, &path, &seal, go_on)?;
        let copy = Copy { time: now, path, size };
        copies.push(copy.clone());
        for old in superfluous(copies, &copy, self.config.keep) {
            if let Err(error) = fs::remove_file(&old.path) {
                warn!(file = %old.path.display(), %error, "cannot remove an old backup");
            }
        }
        Ok(ScheduleLook::Made(copy))
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
        copies.sort_by(|one, other| (one.time, &one.path).cmp(&(other.time, &other.path)));
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

/// Whether it is time for a copy, by the times of those that there are.
fn is_due(now: Timestamp, copies: &[Timestamp], times: ElapsedTimes, every: Duration) -> bool {
    if times.failed.is_some_and(|ago| ago < RETRY.min(every)) {
        return false;
    }
    if let Some(ago) = times.made {
        return ago >= every;
    }
    let age = |at: &Timestamp| Duration::try_from(now.duration_since(*at)).unwrap_or_default();
    let newest = copies.iter().filter(|at| **at <= now).max();
    let is_old = newest.is_none_or(|at| age(at) >= every);
    let in_doubt = copies.iter().any(|at| *at > now);
    is_old && (!in_doubt || times.runs >= DOUBT.min(every))
}

/// The copies that are too many, of those that are there, with the one that was just made. That one never is. Where some are
/// of the future the clock is wrong or was, and nobody can tell which are the oldest: twice as many stay, and of the others
/// those of the past go first.
fn superfluous(mut copies: Vec<Copy>, made: &Copy, keep: usize) -> Vec<Copy> {
    let is_future = |copy: &Copy| copy.time > made.time;
    let most = if copies.iter().any(is_future) { keep.saturating_mul(2) } else { keep };
    let more = copies.len().saturating_sub(most);
    copies.retain(|copy| copy.path != made.path);
    copies
        .sort_by(|one, other| (is_future(one), one.time, &one.path).cmp(&(is_future(other), other.time, &other.path)));
    copies.truncate(more);
    copies
}

/// Refuses a copy that might fill the disk. Its text is longer than what it is packed to.
fn check_room(content: &BackupContent, folder: &Path) -> anyhow::Result<()> {
    let space = DiskSpace::at(folder).with_context(|| folder.display().to_string())?;
    room(content.size(), space.free).map_err(|reason| anyhow::anyhow!("{}: {reason}", folder.display()))
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
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let day = minutes(24 * 60);
        let now = at("2026-11-22T12:00:00Z");
        let (just, hour) = (ElapsedTimes::default(), ElapsedTimes { runs: minutes(60), ..ElapsedTimes::default() });
        let failed = |ago| ElapsedTimes { failed: Some(ago), ..just };
        let made = |ago| ElapsedTimes { made: Some(ago), ..hour };
        for (copies, times, every, due) in [
            (&[][..], just, day, true),
            (&["2026-11-21T12:00:00Z"], just, day, true),
            (&["2026-11-21T12:00:01Z"], just, day, false),
            (&["2026-11-22T12:00:00Z"], just, day, false),
            // The clock was ahead when the newest was made. It is not yet sure that it is not behind now.
            (&["2026-11-20T12:00:00Z", "2031-01-01T00:00:00Z"], just, day, false),
            (&["2026-11-20T12:00:00Z", "2031-01-01T00:00:00Z"], hour, day, true),
            (&["2026-11-22T11:00:00Z", "2031-01-01T00:00:00Z"], hour, day, false),
            (&["2031-01-01T00:00:00Z"], just, day, false),
            (&["2031-01-01T00:00:00Z"], hour, day, true),
            (&["2031-01-01T00:00:00Z"], ElapsedTimes { runs: minutes(5), ..just }, minutes(5), true),
            // Whatever the clock says, from the first copy on.
            (&["2031-01-01T00:00:00Z"], made(minutes(1)), day, false),
            (&["1970-01-01T00:01:00Z"], made(minutes(1)), day, false),
            (&[], made(minutes(1)), day, false),
            (&["2026-11-22T12:00:00Z"], made(day), day, true),
            (&["2031-01-01T00:00:00Z"], made(day), day, true),
            (&[], failed(minutes(14)), day, false),
            (&[], failed(minutes(15)), day, true),
            (&[], failed(minutes(2)), minutes(1), true),
            (&["2026-11-22T11:00:00Z"], failed(minutes(30)), day, false),
        ] {
            let known: Vec<_> = copies.iter().map(|text| at(text)).collect();
            assert_eq!(is_due(now, &known, times, every), due, "{copies:?} {times:?} {every:?}");
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
        // The hours of those that are there, which of them was just made, and the hours of those that go.
        let rows: [(&[i64], i64, usize, &[i64]); 8] = [
            (&[0, 1, 2, 3, 4], 4, 1, &[0, 1, 2, 3]),
            (&[0, 1, 2, 3, 4], 4, 3, &[0, 1]),
            (&[0, 1, 2, 3, 4], 4, 5, &[]),
            (&[0, 1, 2, 3, 4], 4, 9, &[]),
            // One was made by a clock that was ahead.
            (&[1, 2, 3, 4, 90], 4, 2, &[1]),
            (&[1, 2, 3, 90], 3, 2, &[]),
            // The clock is behind: what was made then goes before what was made before, but not the newest.
            (&[1, 2, 3, 90, 91, 92, 93], 3, 3, &[1]),
            (&[1, 90, 91, 92, 93], 1, 2, &[90]),
        ];
        for (hours, made, keep, gone) in rows {
            let copy = |hour: &i64| {
                let time = Timestamp::from_second(hour * 3600).unwrap();
                Copy { time, path: hour.to_string().into(), size: 1 }
            };
            let all: Vec<_> = hours.iter().map(copy).collect();
            let wanted: Vec<_> = gone.iter().map(copy).collect();
            assert_eq!(superfluous(all, &copy(&made), keep), wanted, "{hours:?} {made} {keep}");
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
