//! Tasks as objects of the kind `Task`, for `kubectl get tasks`: written seldom, and never read.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{TaskRecord, Tasks};
use crate::runtime::{ClusterScopedViews, ViewError};

/// Who writes the views in an API server that is not the embedded one.
pub const MANAGER: &str = "slipway-tasks";

/// Shortest time between two rounds of writing.
const PAUSE: Duration = Duration::from_secs(5);
/// How often tasks are looked at, besides the times when one ended otherwise than before.
const LOOK: Duration = Duration::from_secs(15);
/// So long after it was written a view is written anew when only times and counts of it have changed.
const ROUTINE: Duration = Duration::from_secs(60);
/// A run is shown as under way after so long.
const LONG: jiff::SignedDuration = jiff::SignedDuration::from_secs(10);
/// Runs of a task that its view shows.
const SHOWN: usize = 16;
/// After so many writes the history of the views, which is in memory, begins anew: nobody needs that of days.
const HISTORY: usize = 1000;

/// What the appliance does by itself, and what came of it: read-only. Cluster-scoped, named by what is done.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "slipway.dev",
    version = "v1alpha1",
    kind = "Task",
    root = "TaskView",
    plural = "tasks",
    singular = "task",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Last Run","type":"date","jsonPath":".spec.lastRun","description":"Time since the last run ended"}"#,
    printcolumn = r#"{"name":"Duration","type":"string","jsonPath":".spec.duration","description":"How long that took"}"#,
    printcolumn = r#"{"name":"Result","type":"string","jsonPath":".spec.result","description":"What came of it"}"#,
    printcolumn = r#"{"name":"Next","type":"string","jsonPath":".spec.nextRun","description":"When the next run is due, where that is known"}"#,
    printcolumn = r#"{"name":"Runs","type":"integer","jsonPath":".spec.runs","description":"Runs since the appliance started"}"#,
    printcolumn = r#"{"name":"Failures","type":"integer","jsonPath":".spec.failures","description":"Of these, those that failed"}"#,
    printcolumn = r#"{"name":"Running","type":"date","jsonPath":".spec.running[0].since","description":"How long the oldest run has been under way"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".spec.message","description":"Why the last run failed","priority":1}"#,
    printcolumn = r#"{"name":"Last Success","type":"date","jsonPath":".spec.lastSuccess","description":"Time since a run succeeded","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct TaskSpec {
    /// When the last run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<Time>,
    /// How long it took, as `1.5s`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub duration: String,
    /// `succeeded`, `failed`, `panicked` or `cancelled`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub result: String,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When the last run that succeeded ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_success: Option<Time>,
    /// When the next run is due, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_run: Option<Time>,
    /// Runs that ended since the appliance started.
    #[serde(default)]
    pub runs: i64,
    /// Of these, those that failed.
    #[serde(default)]
    pub failures: i64,
    /// Runs that have been under way for some seconds, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub running: Vec<RunningTask>,
}

/// A run that is under way.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RunningTask {
    /// When it began.
    pub since: Option<Time>,
    /// The object that it is for, as `namespace/name` or `name`; none for recurring work.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub object: String,
    /// 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<i64>,
}

fn seconds(at: Timestamp) -> Option<Time> {
    Timestamp::from_second(at.as_second()).ok().map(Time)
}

/// As somebody reads it: two figures that count, about.
fn duration_text(took: Duration) -> String {
    match took.as_secs() {
        0 => format!("{}ms", took.as_millis()),
        1..10 => format!("{}.{}s", took.as_secs(), took.subsec_millis() / 100),
        seconds @ 10..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m{}s", seconds / 60, seconds % 60),
        seconds => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
    }
}

impl TaskSpec {
    fn of(record: &TaskRecord, now: Timestamp) -> Self {
        let last = record.last.as_ref();
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let long = record.under_way.values().filter(|run| now.duration_since(run.since) >= LONG);
        Self {
            last_run: last.and_then(|last| seconds(last.ended)),
            duration: last.and_then(|last| last.took).map(duration_text).unwrap_or_default(),
            result: last.map(|last| last.outcome.as_str().to_owned()).unwrap_or_default(),
            message: last.map(|last| last.message.clone()).unwrap_or_default(),
            last_success: record.last_success.and_then(seconds),
            next_run: record.next.and_then(seconds),
            runs: count(record.runs),
            failures: count(record.failures),
            running: long
                .take(SHOWN)
                .map(|run| RunningTask {
                    since: seconds(run.since),
                    object: run.object.clone(),
                    percent: (run.percent)().map(i64::from),
                })
                .collect(),
        }
    }
}

/// Whether a view is to be written that was written so long ago as this.
fn is_due(written: Option<(&TaskSpec, Duration)>, now: &TaskSpec) -> bool {
    let Some((former, ago)) = written else { return true };
    let runs = |spec: &TaskSpec| spec.running.iter().map(|run| run.since.clone()).collect::<Vec<_>>();
    let is_news = former.result != now.result || runs(former) != runs(now);
    former != now && (is_news || ago >= ROUTINE)
}

/// Removes views of tasks that are not of this process: the configuration of who led before may have been another.
async fn tidy(views: &ClusterScopedViews<TaskView>, known: &[&str]) -> Result<(), ViewError> {
    for view in views.left().await? {
        if !known.contains(&view.name_any().as_str()) {
            views.remove(&view.name_any()).await?;
        }
    }
    Ok(())
}

/// Shows the tasks there until `stop`. A view is written when the task's result is another than before, or when one of its runs
/// turns out to be long; otherwise once a minute at most, and only if something ran.
pub async fn publish(tasks: Tasks, views: ClusterScopedViews<TaskView>, stop: CancellationToken) {
    let mut written: HashMap<&'static str, (TaskSpec, Instant)> = HashMap::new();
    let (mut writes, mut failing, mut tidied) = (0, false, false);
    loop {
        let now = Timestamp::now();
        let specs: Vec<_> = tasks.records().iter().map(|(name, record)| (*name, TaskSpec::of(record, now))).collect();
        let known: Vec<&str> = specs.iter().map(|(name, _)| *name).collect();
        let round = async {
            if !tidied {
                tidy(&views, &known).await?;
                tidied = true;
            }
            for (name, spec) in specs {
                let before = written.get(name).map(|(spec, at)| (spec, at.elapsed()));
                if is_due(before, &spec) {
                    views.put(&TaskView::new(name, spec.clone())).await?;
                    written.insert(name, (spec, Instant::now()));
                    writes += 1;
                }
            }
            Ok::<_, ViewError>(())
        };
        tokio::select! {
            () = stop.cancelled() => return,
            done = round => {
                if let Err(error) = &done
                    && !failing
                {
                    tracing::warn!(%error, "what became of tasks cannot be shown as Task objects; that is tried again");
                }
                failing = done.is_err();
            }
        }
        if writes >= HISTORY {
            views.forget_history().await;
            writes = 0;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(PAUSE) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tasks.0.news.notified() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::{Api, Client};
    use serde_json::{Value, json};

    use super::super::RunOutcome;
    use super::*;
    use crate::store::Store;

    #[test]
    fn durations_are_told_in_short() {
        for (took, text) in [
            (Duration::from_micros(900), "0ms"),
            (Duration::from_millis(340), "340ms"),
            (Duration::from_millis(1570), "1.5s"),
            (Duration::from_millis(63_900), "63s"),
            (Duration::from_secs(185), "3m5s"),
            (Duration::from_secs(2 * 3600 + 60), "2h1m"),
        ] {
            assert_eq!(duration_text(took), text);
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_view_tells_of_the_last_run_and_of_long_ones() {
        let mut record = TaskRecord::default();
        let view = |record: &TaskRecord, now| serde_json::to_value(TaskSpec::of(record, at(now))).unwrap();
        assert_eq!(view(&record, 0), json!({"runs": 0, "failures": 0}));
        let first = record.begin(at(100), String::new(), Box::new(|| None));
        assert_eq!(view(&record, 109), json!({"runs": 0, "failures": 0}), "it may end at once");
        let since = "1970-01-01T00:01:40Z";
        assert_eq!(view(&record, 110)["running"], json!([{"since": since}]));
        record.end(first, at(112), Duration::from_secs(12), RunOutcome::Failed, "no\nroom");
        record.next = Some(at(160));
        assert_eq!(
            view(&record, 112),
            json!({"lastRun": "1970-01-01T00:01:52Z", "duration": "12s", "result": "failed", "message": "no room",
                "nextRun": "1970-01-01T00:02:40Z", "runs": 1, "failures": 1})
        );
        let two = [("a/b", 70), ("c", 80)]
            .map(|(name, percent)| record.begin(at(200), name.to_owned(), Box::new(move || Some(percent))));
        let running = json!([{"since": "1970-01-01T00:03:20Z", "object": "a/b", "percent": 70},
            {"since": "1970-01-01T00:03:20Z", "object": "c", "percent": 80}]);
        assert_eq!(view(&record, 300)["running"], running);
        record.end(two[0], at(301), Duration::from_secs(101), RunOutcome::Succeeded, "");
        let shown = view(&record, 301);
        assert_eq!((&shown["lastSuccess"], &shown["result"]), (&json!("1970-01-01T00:05:01Z"), &json!("succeeded")));
        assert_eq!((&shown["message"], &shown["nextRun"], &shown["failures"]), (&Value::Null, &Value::Null, &json!(1)));
    }

    #[test]
    fn what_is_the_same_but_for_times_is_written_once_a_minute() {
        let run = |since| RunningTask { since: seconds(at(since)), ..RunningTask::default() };
        let spec = |result: &str, runs, running: &[i64]| TaskSpec {
            result: result.to_owned(),
            runs,
            running: running.iter().map(|since| run(*since)).collect(),
            ..TaskSpec::default()
        };
        let before = spec("succeeded", 7, &[]);
        for (ago, now, due) in [
            (0, spec("succeeded", 7, &[]), false),
            (9999, spec("succeeded", 7, &[]), false),
            (59, spec("succeeded", 8, &[]), false),
            (60, spec("succeeded", 8, &[]), true),
            (0, spec("failed", 8, &[]), true),
            (0, spec("succeeded", 7, &[5]), true),
        ] {
            assert_eq!(is_due(Some((&before, Duration::from_secs(ago))), &now), due, "{ago} {now:?}");
        }
        assert!(is_due(None, &before));
        assert!(!is_due(Some((&spec("", 0, &[5]), Duration::ZERO)), &spec("", 1, &[5])));
    }

    async fn shown(
        tasks: &Tasks,
        views: ClusterScopedViews<TaskView>,
        client: &Client,
        name: &str,
        result: &str,
    ) -> TaskView {
        let (stop, api) = (CancellationToken::new(), Api::<TaskView>::all(client.clone()));
        let publishing = tokio::spawn(publish(tasks.clone(), views, stop.clone()));
        let look = async {
            loop {
                match api.get_opt(name).await.unwrap() {
                    Some(view) if view.spec.result == result => return view,
                    _ => tokio::task::yield_now().await,
                }
            }
        };
        let view = tokio::time::timeout(Duration::from_secs(60), look).await.expect("in time");
        stop.cancel();
        publishing.await.unwrap();
        view
    }

    /// In the embedded API as what can only be read there, and in one that has the kind from `slipway crds`.
    #[tokio::test]
    async fn tasks_are_shown_in_either_api_server() {
        use crate::api::{Kind, StoragePolicy};
        for policy in [StoragePolicy::View, StoragePolicy::Durable] {
            let folder = tempfile::tempdir().unwrap();
            let store = Store::open(crate::store::StoreOptions {
                path: folder.path().join("db"),
                key_file: folder.path().join("key"),
                history: 100,
            })
            .unwrap();
            let kinds = crate::modules::kinds().into_iter().filter(|kind| kind.crd.spec.names.kind == "Task");
            let kinds: Vec<Kind> = kinds.map(|kind| Kind { policy, ..kind }).collect();
            let ends = CancellationToken::new();
            let api = crate::apiserver::ApiServer::new(store.clone(), &kinds, ends.clone()).await.unwrap();
            let client = api.client();
            let views = || ClusterScopedViews::new((policy == StoragePolicy::View).then_some(&store), &client, MANAGER);
            let tasks = Tasks::default();
            tasks.task("backup").begin().end(Ok::<_, String>(()));
            let first = shown(&tasks, views(), &client, "backup", "succeeded").await;
            tasks.task("backup").begin().end(Err("no room"));
            let second = shown(&tasks, views(), &client, "backup", "failed").await;
            assert_eq!((&*second.spec.message, second.spec.runs, second.spec.failures), ("no room", 2, 1));
            assert_eq!(first.metadata.uid, second.metadata.uid, "the same object, changed");
            // Whoever leads now has no backups.
            let tasks = Tasks::default();
            tasks.task("stuck-hosts").begin().end(Ok::<_, String>(()));
            shown(&tasks, views(), &client, "stuck-hosts", "succeeded").await;
            let left = Api::<TaskView>::all(client.clone()).get_opt("backup").await.unwrap();
            assert_eq!(left.is_some(), policy == StoragePolicy::View);
            ends.cancel();
            store.close().await;
        }
    }
}
