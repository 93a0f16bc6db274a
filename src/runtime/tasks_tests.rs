//! Tasks, without an API.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// The lines of a scrape about tasks, without help.
fn scrape(tasks: &Tasks) -> String {
    let (mut registry, mut text) = (Registry::default(), String::new());
    tasks.register(&mut registry);
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

#[test]
fn a_record_counts_what_ended_and_tells_when_that_is_another_end_than_before() {
    use Outcome::{Cancelled, Failed, Panicked, Succeeded};
    let mut record = Record::default();
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
