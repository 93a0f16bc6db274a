//! What is refused, in the audit log.

use super::*;

/// Lines of callers, and how many are counted in sums instead.
fn lines_of(lines: &[Value], user: &str) -> (usize, u64) {
    let of = lines.iter().filter(|line| line["user"]["username"] == user);
    let sums: Vec<Option<u64>> =
        of.map(|line| line["annotations"]["slipway.dev/left-out"].as_str().map(|sum| sum.parse().unwrap())).collect();
    (sums.iter().filter(|sum| sum.is_none()).count(), sums.iter().flatten().sum())
}

#[tokio::test]
async fn whoever_is_refused_again_and_again_does_not_roll_the_audit_log_away() {
    let rig = Rig::new().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let log =
        audit::Audit::start(audit::AuditOptions { path: path.clone(), max_bytes: 64 << 20, max_files: 1 }).unwrap();
    rig.api.set_audit(log.clone());
    let somebody = |user: &str| Some(UserIdentity::new(user, Vec::new(), auth::Proof::Certificate));
    let (long, name) = ("y".repeat(8000), "n".repeat(8000));
    for number in 0..100 {
        // Accounts of one namespace are one caller, however many there are.
        let account = somebody(&format!("system:serviceaccount:tenant:a{number}"));
        for (user, at) in [
            (somebody("mallory"), format!("{SECRETS}/x?fieldManager={long}&x={long}")),
            (somebody("mallory"), format!("{SECRETS}/{name}")),
            (account, format!("{SECRETS}/x?limit=nonsense")),
        ] {
            let request = http::Request::delete(at).header("user-agent", &long);
            assert!((400..500).contains(&rig.send(user, request, Body::empty()).await.code));
        }
        // What is done has its line, whoever does it and however often.
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{number}")}});
        rig.call("POST", "/api/v1/namespaces/rack/configmaps", &map).await.expect(201);
    }
    let once = http::Request::delete(format!("{SECRETS}/x"));
    assert_eq!(rig.send(somebody("once"), once, Body::empty()).await.code, 403);
    log.close().await;
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |user: &str| lines_of(&lines, user);
    let (own, sum) = of("mallory");
    assert!((1..=60).contains(&own), "{own} lines");
    assert_eq!(own as u64 + sum, 200);
    let tenant = "system:serviceaccount:tenant";
    let own = lines
        .iter()
        .filter(|line| line["user"]["username"].as_str().unwrap().starts_with("system:serviceaccount:tenant:"));
    let own = own.count() as u64;
    assert!((1..=60).contains(&own), "{own} lines of accounts");
    assert_eq!(own + of(tenant).1, 100);
    assert_eq!((of("once"), of("root")), ((1, 0), (100, 0)));
    let longest = text.lines().map(str::len).max().unwrap();
    assert!(longest <= 2500, "{longest} bytes in a line");
}
