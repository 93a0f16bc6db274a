//! Tests of the audit log: what a line says, and who has one.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::event::{has_line, is_refusal};
use super::queue::AuditLine;
use super::*;
use crate::apiserver::requests::request::RequestTarget;

fn options(folder: &Path, max_bytes: u64) -> AuditOptions {
    AuditOptions { path: folder.join("logs/audit.log"), max_bytes, max_files: 2 }
}

#[tokio::test]
async fn what_is_queued_is_written_before_the_end_and_nothing_after() {
    let folder = tempfile::tempdir().unwrap();
    let audit = Audit::start(options(folder.path(), 1 << 20)).unwrap();
    for number in 0..1000 {
        let place = audit.queue.reserve(None).await.unwrap_or_else(|error| panic!("{error:?}"));
        place.put(format!("{number}\n").into_bytes(), false);
    }
    audit.close().await;
    let text = fs::read_to_string(folder.path().join("logs/audit.log")).unwrap();
    assert!(text.lines().map(|line| line.parse::<u32>().unwrap()).eq(0..1000));
    assert_eq!(audit.queue.reserve(None).await.err().map(|error| error.code.as_u16()), Some(503));
    audit.close().await;
}

#[tokio::test]
async fn without_a_place_for_its_line_no_change_is_begun() {
    let (queue, _lines) = mpsc::channel(1);
    let audit = Audit::on(queue, Duration::from_millis(1), 1 << 20);
    let place = audit.queue.reserve(None).await.expect("a place");
    assert_eq!(audit.queue.reserve(Some("a")).await.err().map(|error| error.code.as_u16()), Some(503));
    drop(place);
    assert!(audit.queue.reserve(Some("a")).await.is_ok());
}

#[test]
fn what_has_a_line() {
    let target = |group: &str, plural: &str| RequestTarget {
        group: group.into(),
        plural: plural.into(),
        ..RequestTarget::default()
    };
    for (verb, target, is_review, in_process, wanted) in [
        ("get", target("", "secrets"), false, false, true),
        ("list", target("", "secrets"), false, false, true),
        ("watch", target("", "secrets"), false, false, true),
        // The appliance reads BMCs' passwords all the time.
        ("get", target("", "secrets"), false, true, false),
        ("get", target("", "configmaps"), false, false, false),
        ("get", target("example.org", "secrets"), false, false, false),
        ("create", target("", "configmaps"), false, true, true),
        ("deletecollection", target("", "secrets"), false, false, true),
        ("create", target("authentication.k8s.io", "tokenreviews"), true, false, false),
        ("create", target("authentication.k8s.io", "widgets"), false, false, true),
    ] {
        assert_eq!(has_line(verb, &target, is_review, in_process), wanted, "{verb} {target:?}");
    }
}

#[test]
fn what_changed_something_is_no_refusal() {
    for (verb, code, wanted) in [
        ("delete", 200, false),
        ("create", 201, false),
        ("delete", 403, true),
        ("get", 404, true),
        ("update", 409, true),
        ("patch", 422, true),
        ("create", 500, false),
        ("create", 504, false),
        ("deletecollection", 403, true),
        ("deletecollection", 409, false),
        ("deletecollection", 422, false),
    ] {
        assert_eq!(is_refusal(verb, code), wanted, "{verb} {code}");
    }
}

/// Whatever somebody names himself, a line shows in the order in which it is written.
#[tokio::test]
async fn a_line_has_no_character_that_turns_the_next_ones() {
    let (queue, mut lines) = mpsc::channel(1);
    let message = "expired\u{202e}\u{2028}ü";
    put(&queue, &RefusedAttempts { message, ..RefusedAttempts::default() });
    let Some(AuditMessage::Line(AuditLine { text: line, .. })) = lines.recv().await else { panic!("a line") };
    let text = std::str::from_utf8(&line).unwrap().strip_suffix('\n').unwrap();
    assert!(text.chars().all(crate::log::is_safe) && text.contains("expired\\u202e\\u2028ü"), "{text}");
    let told = serde_json::from_str::<Value>(text).unwrap()["responseStatus"]["message"].take();
    assert!(told.as_str().unwrap().contains(message));
}

#[tokio::test]
async fn a_failed_login_waits_for_nothing_and_is_counted_without_a_line() {
    let (queue, mut lines) = mpsc::channel(1);
    let audit = Audit::on(queue, Duration::from_millis(1), 1 << 20);
    let refused = audit.refused_certificates();
    for _ in 0..3 {
        refused(([192, 0, 2, 1], 5).into(), "expired");
    }
    let Some(AuditMessage::Line(AuditLine { text: line, .. })) = lines.recv().await else { panic!("a line") };
    let line: Value = serde_json::from_slice(&line).unwrap();
    assert_eq!((&line["sourceIPs"][0], &line["responseStatus"]["code"]), (&json!("192.0.2.1"), &json!(401)));
    assert!(line["responseStatus"]["message"].as_str().unwrap().contains("expired"), "{line}");
    let left = lock(&audit.limits).logins.finish();
    assert_eq!(left, [(Some([192, 0, 2, 1].into()), 2)]);
}
