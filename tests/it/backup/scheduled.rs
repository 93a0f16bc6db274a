//! Copies that are made by themselves.

use super::*;

async fn metric(place: &Place, name: &str) -> f64 {
    scraped::of(&scrape(place).await, name).unwrap_or_default()
}

#[tokio::test]
async fn scheduled_copies_are_made_kept_and_pruned_and_a_failure_harms_nothing() {
    let place = Place::new();
    let recipient = new_key(&place).await;
    let folder = place.path("copies");
    let more = |folder: &Path| format!("[backup]\nfolder = {folder:?}\nkeep = 2\nrecipients = [{recipient:?}]\n");
    place.configure(&more(&folder));
    place.run(&["check-config"]).await.good();
    let served = place.serve().await;
    let success = "slipway_backup_runs_total{outcome=\"success\"}";
    until("a copy", async || (metric(&place, success).await > 0.0).then_some(())).await;
    let first = names(&folder);
    assert_eq!(first.len(), 1, "{first:?}");
    assert!(metric(&place, "slipway_backup_last_success_timestamp_seconds").await > 1.7e9);
    assert!(metric(&place, "slipway_backup_last_size_bytes").await > 1000.0);
    scraped::is_complete(&scrape(&place).await);
    served.stop().await;
    place.run(&["restore", "--check", "--key-file", KEY, folder.join(&first[0]).to_str().unwrap()]).await.good();
    assert_eq!(folder.join(&first[0]).metadata().unwrap().permissions().mode() & 0o777, 0o600);

    // Not due after a restart: the copy is there, and the metrics know of it.
    let served = place.serve().await;
    let last = "slipway_backup_last_success_timestamp_seconds";
    until("it has looked", async || (metric(&place, last).await > 0.0).then_some(())).await;
    assert_eq!(names(&folder), first);
    served.stop().await;

    // Three old ones: due, and two too many with the new one. What is not its own stays.
    let (prefix, end) = (first[0][..17].to_owned(), ".jsonl.zst.age");
    assert_eq!(prefix.len(), "slipway-01234567-".len());
    std::fs::rename(folder.join(&first[0]), folder.join(format!("{prefix}20260103T000000Z{end}"))).unwrap();
    let others =
        [format!("slipway-00000000-20250101T000000Z{end}"), format!("slipway-20250101T000000Z{end}"), "photo".into()];
    let old = ["20260101T000000Z", "20260102T000000Z"].map(|time| format!("{prefix}{time}{end}"));
    for name in others.iter().chain(&old) {
        std::fs::write(folder.join(name), "x").unwrap();
    }
    let served = place.serve().await;
    until("a copy", async || (metric(&place, success).await > 0.0).then_some(())).await;
    let own: Vec<_> = names(&folder).into_iter().filter(|name| name.starts_with(&prefix)).collect();
    assert!(own.len() == 2 && own[0].contains("20260103"), "{own:?}");
    assert!(others.iter().all(|name| folder.join(name).exists()));
    served.stop().await;

    // A folder that cannot be: said, counted, and the API goes on.
    std::fs::write(place.path("file"), "").unwrap();
    place.configure(&more(&place.path("file/copies")));
    let served = place.serve().await;
    let failure = "slipway_backup_runs_total{outcome=\"failure\"}";
    until("a failure", async || (metric(&place, failure).await > 0.0).then_some(())).await;
    create::<ConfigMap>(&place.client().await, map("after", "")).await;
    let log = until("it is said", async || Some(served.log()).filter(|log| log.contains("cannot make a backup"))).await;
    assert!(log.contains("Not a directory"), "{log}");
    served.stop().await;
}
