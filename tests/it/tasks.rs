//! What the appliance does by itself, as an operator sees it: the kind Task, and `/metrics`.

use http::Request;
use kube::Client;
use serde_json::Value;

use crate::backup_support::{Place, until};

const TASKS: &str = "/apis/slipway.dev/v1alpha1/tasks";

async fn metrics(client: &Client) -> String {
    client.request_text(Request::get("/metrics").body(Vec::new()).unwrap()).await.unwrap()
}

/// The cells of a task's row, by column, as `kubectl get tasks -o wide` has them.
async fn row(client: &Client, task: &str) -> Option<Value> {
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let request = Request::get(TASKS).header("Accept", accept).body(Vec::new()).unwrap();
    let table: Value = client.request(request).await.unwrap();
    let columns = table["columnDefinitions"].as_array().unwrap();
    let rows = table["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["object"]["metadata"]["name"] == task)?;
    let cells = row["cells"].as_array().unwrap();
    Some(
        columns
            .iter()
            .zip(cells)
            .map(|(column, cell)| (column["name"].as_str().unwrap().to_owned(), cell.clone()))
            .collect(),
    )
}

#[tokio::test]
async fn an_operator_sees_whether_the_backup_ran() {
    let place = Place::new();
    let recipient = place.run(&["backup", "--new-key", "backup.key"]).await.good().out.trim().to_owned();
    let backup = |folder: &str| {
        let folder = place.path(folder);
        place.configure(&format!("[backup]\nfolder = {folder:?}\nrecipients = [{recipient:?}]\n"));
    };
    backup("copies");
    let served = place.serve().await;
    let client = place.client().await;
    let good = until("the backup in the table", async || {
        row(&client, "backup").await.filter(|row| row["Result"] == "succeeded" && row["Runs"] == 1)
    })
    .await;
    assert!(good["Last Run"].as_str().is_some_and(|ago| ago.ends_with('s')), "{good}");
    assert!(good["Next"].as_str().is_some_and(|next| next.ends_with('Z')), "{good}");
    assert!(good["Duration"] != "" && good["Failures"] == 0, "{good}");
    let text = metrics(&client).await;
    for line in [
        "slipway_task_runs_total{task=\"backup\",result=\"succeeded\"} 1\n",
        "slipway_task_running{task=\"backup\"} 0\n",
        "slipway_task_last_run_timestamp_seconds{task=\"backup\"} ",
        "slipway_task_next_run_timestamp_seconds{task=\"backup\"} ",
        "slipway_task_duration_seconds_count{task=\"backup\"} 1\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    // What has no configuration of its own is there, too, and has run.
    for task in ["client-certificates", "event-expiry", "garbage-collection", "image-collection", "stuck-hosts"] {
        until(task, async || row(&client, task).await.filter(|row| row["Result"] == "succeeded")).await;
    }
    let listed = place.run(&["get", "tasks"]).await.good().out;
    assert!(listed.contains("LAST RUN") && listed.contains("backup") && listed.contains("succeeded"), "{listed}");
    served.stop().await;

    // After a restart the last one is known by its file, and a run that fails says why.
    let served = place.serve().await;
    let client = place.client().await;
    let known = until("the backup in the table", async || {
        row(&client, "backup").await.filter(|row| row["Result"] == "succeeded")
    })
    .await;
    assert!(known["Runs"] == 0 && known["Last Success"].is_string(), "{known}");
    served.stop().await;
    std::fs::write(place.path("file"), "").unwrap();
    backup("file/copies");
    let served = place.serve().await;
    let client = place.client().await;
    let failed = until("the failure in the table", async || {
        row(&client, "backup").await.filter(|row| row["Result"] == "failed")
    })
    .await;
    assert!(failed["Message"].as_str().is_some_and(|message| message.contains("Not a directory")), "{failed}");
    assert_eq!(failed["Failures"], 1);
    served.stop().await;
}

#[tokio::test]
async fn tasks_are_read_by_whoever_may_read_all_of_the_cluster_and_written_by_nobody() {
    let place = Place::new();
    let served = place.serve().await;
    let administrator = place.client().await;
    until("a task", async || row(&administrator, "event-expiry").await).await;
    let code = async |client: &Client, method: &str, path: &str, body: &str| {
        let request =
            Request::builder().method(method).uri(path).header("Content-Type", "application/merge-patch+json");
        match client.request::<Value>(request.body(body.as_bytes().to_vec()).unwrap()).await {
            Ok(_) => 200,
            Err(kube::Error::Api(status)) => status.code,
            Err(error) => panic!("{error}"),
        }
    };
    let one = format!("{TASKS}/event-expiry");
    for method in ["PATCH", "DELETE"] {
        assert_eq!(code(&administrator, method, &one, "{}").await, 405, "{method}");
    }
    for (name, scope, read) in [("within", &["--in", "default"][..], 403), ("everywhere", &[], 200)] {
        for role in ["view", "admin"] {
            let name = format!("{name}-{role}");
            let arguments = [&["token", "create", &name, "--role", role, "-o", "kubeconfig"], scope].concat();
            let client = place.client_of(&place.run(&arguments).await.good().out).await.unwrap();
            for path in [TASKS, &one] {
                assert_eq!(code(&client, "GET", path, "").await, read, "{name} {path}");
            }
        }
    }
    served.stop().await;
}
