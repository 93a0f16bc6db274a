//! Tasks and long work, without an API.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::oneshot;

use super::*;
use crate::runtime::ObjectKey;

/// The lines of a scrape about tasks, without help.
fn scrape(tasks: &Tasks) -> String {
    let (mut registry, mut text) = (Registry::default(), String::new());
    tasks.register(&mut registry);
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

#[test]
fn a_record_counts_what_ended_and_tells_when_that_is_another_end_than_before() {
    use RunOutcome::{Cancelled, Failed, Panicked, Succeeded};
    let mut record = TaskRecord::default();
    // How it ends, whether that is news, and what is counted then: runs, failures, when it succeeded last.
    let rows = [
        (Succeeded, true, 1, 0, Some(1)),
        (Succeeded, false, 2, 0, Some(2)),
        (Failed, true, 3, 1, Some(2)),
        (Failed, false, 4, 2, Some(2)),
        (Panicked, true, 5, 3, Some(2)),
        (Cancelled, true, 6, 3, Some(2)),
        (Succeeded, true, 7, 3, Some(7)),
    ];
    for (second, (outcome, news, runs, failures, success)) in (1..).zip(rows) {
        let now = Timestamp::from_second(second).unwrap();
        let number = record.begin(now, String::new(), Box::new(|| None));
        record.next = Some(now);
        assert_eq!(record.under_way.len(), 1);
        assert_eq!(record.end(number, now, Duration::ZERO, outcome, &"x".repeat(9999)), news, "{outcome:?}");
        assert_eq!((record.runs, record.failures), (runs, failures), "{outcome:?}");
        assert_eq!(record.last_success.map(Timestamp::as_second), success, "{outcome:?}");
        assert!(record.under_way.is_empty() && record.next.is_none());
        let last = record.last.as_ref().unwrap();
        assert_eq!((last.ended, last.message.chars().count()), (now, MESSAGE_MAX + 1));
    }
}

#[tokio::test]
async fn a_run_that_panics_is_a_result_and_the_next_one_takes_place() {
    let (tasks, stop) = (Tasks::default(), CancellationToken::new());
    let task = tasks.task("sweep");
    let runs = Arc::new(AtomicUsize::new(0));
    let count = || {
        let (runs, stop) = (runs.clone(), stop.clone());
        async move {
            match runs.fetch_add(1, Ordering::Relaxed) {
                0 => panic!("a broken sweep"),
                1 => Err("no room"),
                _ => {
                    stop.cancel();
                    Ok(())
                }
            }
        }
    };
    task.every(Duration::ZERO, &stop, count).await;
    let text = scrape(&tasks);
    for result in ["panicked", "failed", "succeeded"] {
        let line = format!("slipway_task_runs_total{{task=\"sweep\",result=\"{result}\"}} 1\n");
        assert!(text.contains(&line), "{text}");
    }
    for line in [
        "slipway_task_running{task=\"sweep\"} 0\n",
        "slipway_task_duration_seconds_count{task=\"sweep\"} 3\n",
        "slipway_task_last_run_timestamp_seconds{task=\"sweep\"} ",
        "slipway_task_last_success_timestamp_seconds{task=\"sweep\"} ",
        "slipway_task_next_run_timestamp_seconds{task=\"sweep\"} ",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let fault = task.run(async { panic!("{}", "again") as Result<(), Infallible> }).await.unwrap_err();
    assert_eq!(fault.to_string(), "a fault of this program: again");
    let records = tasks.records();
    assert_eq!(records["sweep"].last.as_ref().map(|last| last.message.as_str()), Some("again"));
}

#[test]
fn a_run_is_seen_while_it_is_under_way_and_one_that_is_forgotten_was_none() {
    let tasks = Tasks::default();
    let task = tasks.task("backup");
    task.next_at(Timestamp::from_second(500).unwrap());
    let run = task.begin();
    assert!(scrape(&tasks).contains("slipway_task_running{task=\"backup\"} 1\n"));
    run.forget();
    task.recall(Timestamp::from_second(400).unwrap());
    let text = scrape(&tasks);
    assert!(text.contains("slipway_task_running{task=\"backup\"} 0\n") && !text.contains("slipway_task_runs_total{"));
    for (metric, second) in [("last_run", 400), ("last_success", 400), ("next_run", 500)] {
        let line = format!("slipway_task_{metric}_timestamp_seconds{{task=\"backup\"}} {second}\n");
        assert!(text.contains(&line), "{line}: {text}");
    }
    drop(task.begin());
    // What this process did itself it knows better.
    task.recall(Timestamp::from_second(600).unwrap());
    let text = scrape(&tasks);
    assert!(text.contains("slipway_task_runs_total{task=\"backup\",result=\"cancelled\"} 1\n"), "{text}");
    assert!(text.contains("last_success_timestamp_seconds{task=\"backup\"} 400\n"), "{text}");
}

/// Work that counts how often it began.
#[derive(Default)]
struct Errand(AtomicBool);

impl Job for Errand {
    type Done = usize;
    type Error = String;

    const GRACE: Duration = Duration::ZERO;

    fn percent(&self) -> Option<u8> {
        self.0.load(Ordering::Relaxed).then_some(50)
    }
}

struct Lab {
    tasks: Tasks,
    jobs: Jobs<Errand>,
    begun: Arc<AtomicUsize>,
    stop: CancellationToken,
    supervising: tokio::task::JoinHandle<()>,
}

impl Lab {
    fn new() -> Self {
        let (tasks, jobs, stop) = (Tasks::default(), Jobs::default(), CancellationToken::new());
        let supervising = tokio::spawn(jobs.supervisor(tasks.task("errand")).run(stop.clone()));
        Self { tasks, jobs, begun: Arc::default(), stop, supervising }
    }

    /// Asks for work for an object, which ends as `end` says; the number of the one that began.
    async fn ask(
        &self,
        generation: i64,
        end: impl Future<Output = Result<(), String>> + Send + 'static,
    ) -> Handle<Errand> {
        let version = ObjectVersion { uid: "u".into(), generation };
        let begun = self.begun.clone();
        let begin = |work: Arc<Errand>, _| async move {
            work.0.store(true, Ordering::Relaxed);
            let number = begun.fetch_add(1, Ordering::Relaxed) + 1;
            end.await.map(|()| number)
        };
        self.jobs.start(&object(), &version, Errand::default(), begin).await
    }

    async fn until(&self, good: impl Fn() -> bool) {
        let wait = async {
            while !good() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), wait).await.expect("in time");
    }
}

fn object() -> ObjectKey {
    ("ns".into(), "a".into())
}

#[tokio::test]
async fn work_that_is_asked_for_twice_runs_once_and_both_hear_how_it_ended() {
    let lab = Lab::new();
    let (end, ended) = oneshot::channel::<()>();
    let first = lab.ask(1, async { ended.await.map_err(|error| error.to_string()) }).await;
    let again = lab.ask(1, std::future::pending()).await;
    lab.until(|| lab.begun.load(Ordering::Relaxed) == 1).await;
    let found = lab.jobs.find(&object()).expect("under way");
    assert_eq!((found.version.generation, found.work.percent(), lab.jobs.len()), (1, Some(50), 1));
    assert!(scrape(&lab.tasks).contains("slipway_task_running{task=\"errand\"} 1\n"));
    // Who asked first does not care any more.
    drop(first);
    end.send(()).unwrap();
    assert_eq!((again.ended().await, found.ended().await), (Ok(1), Ok(1)));
    assert!(lab.jobs.is_empty() && lab.jobs.find(&object()).is_none());
    // What ended is done anew when it is asked for again.
    assert_eq!(lab.ask(1, async { Ok(()) }).await.ended().await, Ok(2));
}

#[tokio::test]
async fn work_for_another_version_begins_when_the_former_has_ended() {
    let lab = Lab::new();
    let (alive, gone) = oneshot::channel::<()>();
    let old = lab.ask(1, async move {
        let _alive = alive;
        std::future::pending().await
    });
    let old = old.await;
    lab.until(|| lab.begun.load(Ordering::Relaxed) == 1).await;
    let new = lab.ask(2, async { Ok(()) }).await;
    assert!(gone.await.is_err(), "dropped");
    assert_eq!((old.ended().await, new.ended().await), (Err(JobUnfinished::Cancelled), Ok(2)));
    // The same version, but cancelled, as when its object is made anew from the same manifest.
    let old = lab.ask(3, std::future::pending()).await;
    old.cancel();
    assert_eq!(lab.ask(3, async { Ok(()) }).await.ended().await, Ok(4));
}

#[tokio::test]
async fn a_fault_of_work_is_its_result_alone() {
    let lab = Lab::new();
    let panicking = lab.ask(1, async { panic!("broken") }).await;
    assert_eq!(panicking.ended().await, Err(JobUnfinished::Panicked("broken".into())));
    let failing = lab.ask(1, async { Err("no route".to_owned()) }).await;
    assert_eq!(failing.ended().await, Err(JobUnfinished::Failed("no route".into())));
    let text = scrape(&lab.tasks);
    assert!(text.contains("{task=\"errand\",result=\"panicked\"} 1\n"), "{text}");
    assert!(text.contains("{task=\"errand\",result=\"failed\"} 1\n"), "{text}");
    let last = lab.tasks.records()["errand"].last.as_ref().map(|last| last.message.clone());
    assert_eq!(last.as_deref(), Some("ns/a: no route"));
    assert_eq!(lab.ask(1, async { Ok(()) }).await.ended().await, Ok(3));
}

#[tokio::test]
async fn all_work_ends_with_who_supervises_it() {
    for politely in [true, false] {
        let lab = Lab::new();
        let work = lab.ask(1, std::future::pending()).await;
        lab.until(|| lab.begun.load(Ordering::Relaxed) == 1).await;
        if politely {
            lab.stop.cancel()
        } else {
            lab.supervising.abort()
        }
        assert_eq!(work.ended().await, Err(JobUnfinished::Cancelled));
        lab.until(|| lab.supervising.is_finished()).await;
        assert!(lab.jobs.is_empty());
        // Nobody is there to supervise it.
        let late = lab.ask(1, async { Ok(()) }).await;
        assert_eq!(late.ended().await, Err(JobUnfinished::Cancelled));
        assert!(lab.jobs.is_empty() && scrape(&lab.tasks).contains("slipway_task_running{task=\"errand\"} 0\n"));
        // Whoever takes over begins anew.
        let supervising = tokio::spawn(lab.jobs.supervisor(lab.tasks.task("errand")).run(CancellationToken::new()));
        assert_eq!(lab.ask(1, async { Ok(()) }).await.ended().await, Ok(2));
        supervising.abort();
    }
}
