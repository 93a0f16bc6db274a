//! Answers that are taken slowly, or not at all.

use std::sync::{LazyLock, Weak};

use http_body::Body as _;
use rand::distr::{Alphanumeric, SampleString};

use super::*;
use crate::store::Object;

const MAPS: &str = "/api/v1/namespaces/rack/configmaps";
/// Text of one object, in bytes.
const LARGE: usize = 1_000_000;
const OBJECTS: usize = 30;

/// Former selves of objects, as long as anybody has them.
#[derive(Default)]
struct Formers(Vec<Weak<Object>>);

impl Formers {
    fn bytes(&mut self) -> usize {
        self.0.retain(|former| former.strong_count() > 0);
        self.0.iter().filter_map(Weak::upgrade).map(|former| former.json_len()).sum()
    }
}

fn name(number: usize) -> String {
    format!("s{number:03}")
}

/// A text that does not pack.
static NOISE: LazyLock<String> = LazyLock::new(|| Alphanumeric.sample_string(&mut rand::rng(), LARGE));

/// Writes an object anew.
async fn rewrite(rig: &Rig, number: usize, formers: &mut Formers) {
    let former = rig.api.store().get("/configmaps", "rack", &name(number));
    formers.0.extend(former.as_ref().map(Arc::downgrade));
    drop(former);
    put(rig, number, &NOISE).await;
}

async fn put(rig: &Rig, number: usize, text: &str) {
    let value = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name(number), "namespace": "rack"},
        "data": {"a": text},
    });
    let change = Mutation {
        resource: "/configmaps".into(),
        namespace: "rack".into(),
        name: name(number),
        expect: Expect::Any,
        value: Some(value),
    };
    rig.api.store().write(change).await.unwrap();
}

/// Asks, and takes nothing yet.
async fn ask(rig: &Rig, user: &str, at: &str, accept: &str) -> Body {
    let mut request = http::Request::get(at).header("accept", accept).body(Body::empty()).unwrap();
    let groups = vec![auth::ADMIN_GROUP.into()];
    request.extensions_mut().insert(UserIdentity::new(user, groups, auth::Proof::Certificate));
    let response = rig.api.router().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    response.into_body()
}

/// The next piece of an answer; an error when it was broken off.
async fn piece(body: &mut Body) -> Option<Result<usize, axum::Error>> {
    let frame = tokio::time::timeout(DEADLINE, body.frame()).await.expect("a piece")?;
    Some(frame.map(|frame| frame.into_data().map_or(0, |data| data.len())))
}

/// Whether an answer is broken off before its end.
async fn is_broken_off(body: &mut Body) -> bool {
    while let Some(piece) = piece(body).await {
        if piece.is_err() {
            return true;
        }
    }
    false
}

/// The ways in which an answer shows many objects.
fn ways() -> [(String, &'static str); 5] {
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    [
        (MAPS.into(), "application/json"),
        (MAPS.into(), "application/yaml"),
        (format!("{MAPS}?includeObject=Object"), table),
        (format!("{MAPS}?limit=500"), "application/json"),
        (format!("{MAPS}?watch=true&resourceVersion=0"), "application/json"),
    ]
}

#[tokio::test]
async fn who_reads_slowly_keeps_no_more_of_what_was_than_a_bound() {
    let rig = Rig::new().await;
    let mut formers = Formers::default();
    for number in 0..OBJECTS {
        rewrite(&rig, number, &mut formers).await;
    }
    let mut slow = Vec::new();
    for (at, accept) in ways() {
        let mut body = ask(&rig, "mallory", &at, accept).await;
        assert!(piece(&mut body).await.unwrap().is_ok());
        slow.push(body);
        // Beside it somebody lists at a normal pace.
        let mut normal = ask(&rig, "alice", MAPS, "application/json").await;
        let mut taken = 0;
        for number in 0..OBJECTS {
            rewrite(&rig, number, &mut formers).await;
            while taken < (number + 1) * 2 * LARGE
                && let Some(piece) = piece(&mut normal).await
            {
                taken += piece.expect("an honest list is not broken off");
            }
            let pinned = formers.bytes();
            // With those in the history.
            assert!(pinned <= 88 << 20, "{} MiB of former selves are kept", pinned >> 20);
        }
        assert!(taken > OBJECTS * LARGE, "{taken} bytes");
    }
    let mut broken = 0;
    for mut body in slow {
        broken += usize::from(is_broken_off(&mut body).await);
    }
    assert!(broken >= 2, "{broken} were broken off");
    assert!(formers.bytes() <= 18 << 20, "{} bytes", formers.bytes());
    assert_eq!(rig.api.store().retired().bytes(), 0);
    let metrics = rig.get("/metrics").await.text;
    assert!(metrics.contains(&format!("slipway_answers_broken_off_total {broken}\n")), "{metrics}");
}

#[tokio::test]
async fn an_answer_ends_in_time_and_a_watch_goes_on() {
    let rig = Rig::new().await;
    for number in 0..3 {
        put(&rig, number, &"a".repeat(LARGE)).await;
    }
    let mut watch =
        ask(&rig, "alice", &format!("{MAPS}?watch=true&resourceVersion={}", rig.api.store().revision()), "").await;
    let mut slow = Vec::new();
    for (at, accept) in ways() {
        let mut body = ask(&rig, "mallory", &at, accept).await;
        assert!(piece(&mut body).await.unwrap().is_ok());
        slow.push(body);
    }
    let begun = tokio::time::Instant::now();
    rig.api.inner.response_memory.end_overdue(begun + Duration::from_secs(60 + 5));
    for body in &mut slow {
        assert!(piece(body).await.unwrap().is_ok());
    }
    rig.api.inner.response_memory.end_overdue(begun + Duration::from_secs(60 + 12));
    for mut body in slow {
        assert!(is_broken_off(&mut body).await);
    }
    put(&rig, 0, "new").await;
    assert!(piece(&mut watch).await.unwrap().is_ok());
}

#[tokio::test]
async fn a_deletion_of_more_than_can_be_shown_says_that_it_is_done() {
    let rig = Rig::new().await;
    for (count, kind) in [(3, "ConfigMapList"), (18, "Status")] {
        for number in 0..count {
            put(&rig, number, &"a".repeat(LARGE)).await;
        }
        let done = rig.call("DELETE", MAPS, &json!({})).await.expect(200);
        assert_eq!(done["kind"], kind);
        assert!(rig.get(MAPS).await.expect(200)["items"].as_array().unwrap().is_empty());
    }
}

#[tokio::test]
async fn no_answer_hands_over_much_at_once() {
    let rig = Rig::new().await;
    // They pack to next to nothing.
    put(&rig, 0, &"a".repeat(LARGE)).await;
    put(&rig, 1, &"b\n".repeat(LARGE / 3)).await;
    let mut all = ways().to_vec();
    let one = path(MAPS, &name(1));
    all.extend([
        (one.clone(), "application/json"),
        (one.clone(), "application/yaml"),
        (one, "application/json;as=Table;v=v1;g=meta.k8s.io"),
    ]);
    all.push((format!("{MAPS}?pretty=true"), "application/json"));
    for (at, accept) in all {
        let mut body = ask(&rig, "mallory", &at, accept).await;
        let mut taken = 0;
        while taken < LARGE / 2
            && !body.is_end_stream()
            && let Some(piece) = piece(&mut body).await
        {
            let piece = piece.unwrap();
            taken += piece;
            assert!(piece <= 64 << 10, "{at} {accept}: {piece} bytes at once");
        }
        assert!(taken > 0, "{at} {accept}");
    }
}
