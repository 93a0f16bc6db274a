//! A library without room: what gives way, and who.

use super::*;

fn random(number: u64, mib: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..mib << 17).flat_map(|_| next().to_le_bytes()).collect()
}

/// A library of 40 MiB. Eight images of four fit: before every 8 chunks there must be room for 8 MiB.
fn small() -> Rig {
    let sources = Sources { max_library: 40 << 20, ..Sources::of_tests() };
    Rig::start_of(tempfile::tempdir().expect("folder"), Fake::default(), SHORT, sources)
}

impl Rig {
    fn random(&self, number: u64, mib: usize) -> String {
        let path = self.folder.path().join(format!("random{number}"));
        std::fs::write(&path, random(number, mib)).expect("written");
        format!("file://{}", path.display())
    }

    /// Fills the library with what a namespace asks for; how many of its Images are in it.
    async fn fill(&self, namespace: &str) -> usize {
        for number in 0..12 {
            let name = format!("{namespace}-{number}");
            self.fake.create(&name, &self.random(number, 4));
            // The first ones are those that fit.
            self.fake.until(&name, "its end", |s| s["phase"] == "Ready" || s["phase"] == "Failed").await;
        }
        let ready = self.of(namespace, "Ready");
        assert!((6..12).contains(&ready), "{ready}");
        ready
    }

    /// Images of a namespace in a phase.
    fn of(&self, namespace: &str, phase: &str) -> usize {
        let state = lock(&self.fake.state);
        let is_its =
            |(name, image): &(&String, &Value)| name.starts_with(namespace) && image["status"]["phase"] == phase;
        state.images.iter().filter(is_its).count()
    }
}

#[tokio::test]
async fn what_no_host_names_any_more_gives_way_and_what_was_made_by_hand_stays() {
    let rig = small();
    rig.fake.create("hand", &rig.random(100, 4));
    rig.fake.until_phase("hand", "Ready").await;
    let ready = rig.fill("evil").await;
    rig.fake.until("evil-0", "its users", |status| status.get("hosts").is_some()).await;
    assert_eq!(
        (&rig.fake.status("evil-0")["hosts"], &rig.fake.status("evil-0")["namespaces"]),
        (&json!(1), &json!(["evil"]))
    );
    assert_eq!(rig.fake.status("hand").get("hosts"), None, "nobody counts hosts for it");
    // Her hosts go. What came into the library stays as long as there is room, and what did not goes.
    for number in 0..12 {
        rig.wanted.put(&rig.wanted.unwanted, &format!("evil-{number}"));
    }
    within("the failed ones to go", || (rig.of("evil", "Failed") == 0).then_some(())).await;
    rig.fake
        .until("evil-0", "that nobody names it", |status| status["hosts"] == 0 && status.get("namespaces").is_none())
        .await;
    assert_eq!(rig.of("evil", "Ready"), ready);
    // A node reads the first one.
    let digest = rig.fake.status("evil-0")["digest"].as_str().expect("digest").to_owned();
    assert!(rig.library.manifest_file(&digest).is_some());
    rig.fake.create("victim-1", &rig.random(200, 4));
    rig.fake.until_phase("victim-1", "Ready").await;
    assert!(
        rig.of("evil", "Ready") < ready && rig.library.holds(&digest).expect("looked at"),
        "the oldest use goes first"
    );
    assert_eq!(rig.fake.status("hand")["phase"], "Ready");
    rig.stop().await;
}

#[tokio::test]
async fn who_has_most_of_a_full_library_gives_way_to_who_has_less_than_her_share() {
    let rig = small();
    let ready = rig.fill("evil").await;
    let message = rig.fake.until_phase("evil-11", "Failed").await["message"].to_string();
    assert!(message.contains("its share is"), "{message}");
    // All but one of her hosts are being provisioned, and not reading.
    let names: Vec<_> = (0..12).map(|number| format!("evil-{number}")).collect();
    let kept = |name: &&String| rig.fake.status(name)["phase"] == "Ready";
    let done = names.iter().filter(kept).nth(2).expect("three").clone();
    rig.wanted.put(&rig.wanted.provisioned, &done);
    rig.fake.create("victim-1", &rig.random(200, 4));
    rig.fake.until_phase("victim-1", "Ready").await;
    assert!(rig.of("evil", "Ready") < ready);
    assert!(rig.fake.status(&done).is_null(), "it was not needed");
    let digest = rig.fake.status("victim-1")["digest"].as_str().expect("digest").to_owned();
    // She asks for it again and again, and gets no more than her share.
    rig.fake.create(&done, &rig.random(300, 4));
    let message = rig.fake.until_phase(&done, "Failed").await["message"].to_string();
    assert!(message.contains("its share is") && !message.contains("victim"), "{message}");
    // Whoever has more than half may not have the other's go.
    assert!(rig.library.holds(&digest).expect("looked at"));
    let message = rig.fake.until_phase("evil-11", "Failed").await["message"].to_string();
    assert!(!message.contains("victim"), "{message}");
    rig.stop().await;
}

/// Images of next to nothing use up the parts that a library may have, and inodes, long before its bytes.
#[tokio::test]
async fn who_has_most_of_the_parts_of_a_library_gives_way_to_who_has_less_than_her_share() {
    let sources = Sources { max_chunks: 40, ..Sources::of_tests() };
    let rig = Rig::start_of(tempfile::tempdir().expect("folder"), Fake::default(), SHORT, sources);
    let source = |number: u8, parts: u8| {
        let path = rig.folder.path().join(format!("parts{number}"));
        let mut content = vec![0; usize::from(parts) << 20];
        for part in 0..parts {
            content[usize::from(part) << 20..][..3].copy_from_slice(&[1, number, part]);
        }
        std::fs::write(&path, content).expect("written");
        format!("file://{}", path.display())
    };
    for number in 0..12 {
        let name = format!("evil-{number}");
        rig.fake.create(&name, &source(number, 4));
        rig.fake.until(&name, "its end", |s| s["phase"] == "Ready" || s["phase"] == "Failed").await;
    }
    assert_eq!(rig.of("evil", "Ready"), 10);
    let message = rig.fake.until_phase("evil-11", "Failed").await["message"].to_string();
    assert!(message.contains("about 41 parts of a MiB") && message.contains("its share is 40 parts"), "{message}");
    rig.fake.create("victim-1", &source(100, 12));
    rig.fake.until_phase("victim-1", "Ready").await;
    assert!(rig.of("evil", "Ready") < 10);
    // No more than half, with her second one.
    rig.fake.create("victim-2", &source(101, 12));
    let message = rig.fake.until_phase("victim-2", "Failed").await["message"].to_string();
    assert!(message.contains("its share is 20 parts") && !message.contains("evil"), "{message}");
    assert_eq!(rig.fake.status("victim-1")["phase"], "Ready");
    rig.stop().await;
}

#[tokio::test]
async fn an_import_ends_when_no_host_names_it_any_more() {
    let slow = Slow::start(1 << 40, 1 << 20, Duration::from_millis(1)).await;
    let rig = small();
    rig.fake.create("evil-1", &slow.url);
    rig.fake.until("evil-1", "its import", |status| status["phase"] == "Importing").await;
    rig.wanted.put(&rig.wanted.unwanted, "evil-1");
    within("the import to end with its object", || rig.fake.status("evil-1").is_null().then_some(())).await;
    rig.fake.create("honest-1", &rig.random(1, 4));
    rig.fake.until_phase("honest-1", "Ready").await;
    rig.stop().await;
}

/// A disk of zeros that is unpacked for minutes once it was read: 128 GiB, the source some MiB.
fn zeros(folder: &FilePath) -> String {
    let path = folder.join("zeros.zst");
    let frame = zstd::bulk::compress(&vec![0; 64 << 20], 1).expect("zstd");
    std::fs::write(&path, frame.repeat(2048)).expect("written");
    format!("file://{}", path.display())
}

#[tokio::test]
async fn what_is_unpacked_gives_its_place_back_and_ends_with_its_object() {
    let turn = Duration::from_millis(60);
    let rig = Rig::start_with(tempfile::tempdir().expect("folder"), Fake::default(), ImportTimes { turn, ..SHORT });
    rig.fake.create("evil-1", &zeros(rig.folder.path()));
    rig.fake.until("evil-1", "its source to be read", |status| status["percent"] == 99).await;
    rig.fake.create("honest-1", &rig.source("honest", 1));
    rig.fake.until_phase("honest-1", "Ready").await;
    // It goes on, and ends in the middle when the last host that names it goes: else this test would never end.
    rig.fake.until_phase("evil-1", "Importing").await;
    rig.wanted.put(&rig.wanted.unwanted, "evil-1");
    within("it to go", || rig.fake.status("evil-1").is_null().then_some(())).await;
    rig.stop().await;
}
