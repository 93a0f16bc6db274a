//! Images that are ready, and cannot be looked at.

use super::*;

/// Puts a link that leads to itself in the place of a file, at once: it is there, and nobody can read it.
fn make_unreadable(path: &FilePath) {
    let aside = path.with_extension("aside");
    std::os::unix::fs::symlink(path, &aside).expect("a link");
    std::fs::rename(aside, path).expect("moved");
}

#[tokio::test]
async fn an_image_that_cannot_be_looked_at_stays_as_it_is_and_says_so() {
    let rig = Rig::start();
    rig.fake.create("a", &rig.source("a", 1));
    let ready = rig.fake.until_phase("a", "Ready").await;
    let digest = ready["digest"].as_str().expect("digest").to_owned();
    let chunk = rig.library.manifest(&digest).expect("manifest").chunks[0].sha256.clone();
    let path = rig.library.chunk_file(&chunk).expect("chunk");
    let content = std::fs::read(&path).expect("chunk");
    // Its source is gone: were it imported again, it would fail.
    std::fs::remove_file(rig.folder.path().join("a")).expect("removed");
    make_unreadable(&path);
    let before = lock(&rig.fake.state).log.len();
    rig.fake.change("MODIFIED", "a", |_| {});
    let says = |status: &Value| status["message"].as_str().is_some_and(|said| said.contains("cannot be looked at"));
    let status = rig.fake.until("a", "it says so", says).await;
    assert_eq!((&status["phase"], &status["digest"]), (&json!("Ready"), &json!(digest)), "{status}");
    // And again, later each time.
    let again =
        |status: &Value| says(status) && lock(&rig.known.shared.unseen).get("a").is_some_and(|unseen| unseen.times > 3);
    rig.fake.until("a", "it is looked at again", again).await;
    let aside = path.with_extension("aside");
    std::fs::write(&aside, content).expect("written");
    std::fs::rename(aside, &path).expect("moved");
    let status = rig.fake.until("a", "it can be looked at", |status| status.get("message").is_none()).await;
    assert_eq!((&status["phase"], &status["digest"]), (&json!("Ready"), &json!(digest)), "{status}");
    assert!(lock(&rig.known.shared.unseen).is_empty());
    let log = lock(&rig.fake.state).log[before..].to_vec();
    assert!(log.iter().all(|(_, event)| event["object"]["status"]["phase"] == "Ready"), "{log:?}");
    // Another message, as that its names are taken, stays.
    rig.fake.change("MODIFIED", "a", |image| image["status"]["message"] = json!("not published: x"));
    // Two looks, one after the other: whoever looks from now on has read it.
    for _ in 0..2 {
        let asked = Instant::now();
        rig.fake.change("MODIFIED", "a", |_| {});
        let looked = || lock(&rig.known.shared.checked).get("a").is_some_and(|(_, at)| *at > asked);
        within("it was looked at", || looked().then_some(())).await;
    }
    make_unreadable(&path);
    rig.fake.change("MODIFIED", "a", |_| {});
    within("it was looked at", || lock(&rig.known.shared.unseen).contains_key("a").then_some(())).await;
    assert_eq!(rig.fake.status("a")["message"], "not published: x");
}
