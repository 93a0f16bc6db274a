//! Tests of the audit log's shares: whose lines stay.

use super::*;

const MAPS: &str = "/api/v1/namespaces/rack/configmaps";
const FILES: usize = 4;
const BYTES: u64 = 60_000;

/// The lines of the files with this name, the oldest first.
fn lines(folder: &std::path::Path, name: &str) -> Vec<Value> {
    let names = (1..=FILES).rev().map(|number| format!("{name}.{number}")).chain([name.to_owned()]);
    let texts = names.filter_map(|name| std::fs::read_to_string(folder.join(name)).ok());
    texts.flat_map(|text| text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<_>>()).collect()
}

#[tokio::test]
async fn who_writes_much_rolls_away_nobody_elses_lines() {
    let rig = Rig::new().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let log = audit::Audit::start(audit::AuditOptions { path, max_bytes: BYTES, max_files: FILES }).unwrap();
    rig.api.set_audit(log.clone());
    let user = |name: &str| Some(UserIdentity::new(name, vec![auth::ADMIN_GROUP.into()], auth::Proof::Certificate));
    let make = async |identity: Option<UserIdentity>, name: &str, query: &str| {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}).to_string();
        rig.send(identity, http::Request::post(format!("{MAPS}{query}")), map).await.expect(201)
    };
    make(user("alice"), "before", "").await;
    for number in 0..500 {
        // What only tries has its lines too, and there is no end to it.
        make(user("mallory"), "x", "?dryRun=All").await;
        let account = format!("system:serviceaccount:tenant:a{}", number % 7);
        make(user(&account), &format!("m{number}"), "").await;
    }
    make(user("alice"), "after", "").await;
    make(user("mallory"), "last", "").await;
    log.close().await;
    let (quiet, busy) = (lines(folder.path(), "audit.log"), lines(folder.path(), "audit-busy.log"));
    let of = |lines: &[Value], user: &str| {
        let own = lines.iter().filter(|line| line["user"]["username"].as_str().unwrap().starts_with(user));
        own.map(|line| line["objectRef"]["name"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(of(&quiet, "alice"), ["before", "after"]);
    for user in ["mallory", "system:serviceaccount:tenant:"] {
        assert!((1..100).contains(&of(&quiet, user).len()), "{user}: {}", of(&quiet, user).len());
    }
    assert_eq!(of(&busy, "mallory").last().unwrap(), "last");
    assert!(of(&busy, "alice").is_empty());
}
