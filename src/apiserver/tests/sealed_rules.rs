//! Sealed fields: passwords that are written and never read, by every way of writing.

use futures::StreamExt;

use super::access_rules::{binding, named, role, rule, user};
use super::hook_server::{HookServer, patched};
use super::webhook_rules::{mutating, rig};
use super::*;

const CREDENTIALS: &str = "/apis/kaas.mirantis.com/v1alpha1/namespaces/rack/baremetalhostcredentials";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/rack/roles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/rack/rolebindings";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const APPLY: &str = "application/apply-patch+yaml";
const JSON_PATCH: &str = "application/json-patch+json";

fn credential(name: &str, password: Value) -> Value {
    json!({
        "apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "BareMetalHostCredential",
        "metadata": {"name": name}, "spec": {"username": "root", "password": password},
    })
}

fn value(text: &str) -> Value {
    json!({ "value": text })
}

fn own(name: &str, key: &str) -> Value {
    json!({"secret": {"name": format!("{name}-bmhc-passwords"), "key": key}})
}

impl Rig {
    /// What is in the Secret of a credential under a key.
    async fn sealed(&self, name: &str, key: &str) -> Option<String> {
        let answer = self.get(&path(SECRETS, &format!("{name}-bmhc-passwords"))).await;
        let data = answer.json()["data"][key].as_str()?.to_owned();
        let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, data).unwrap();
        Some(String::from_utf8(bytes).unwrap())
    }

    /// Everything that there is and was of credentials, as whoever may read them sees it.
    async fn all_of_credentials(&self) -> String {
        let request = http::Request::get(format!("{CREDENTIALS}?watch=true&resourceVersion=1"));
        let mut request = request.body(Body::empty()).unwrap();
        request.extensions_mut().insert(admin().unwrap());
        let mut body = self.api.router().oneshot(request).await.unwrap().into_body().into_data_stream();
        let mut text = String::new();
        // What comes at once is all.
        while let Ok(Some(Ok(part))) = tokio::time::timeout(Duration::from_millis(300), body.next()).await {
            text += &String::from_utf8_lossy(&part);
        }
        text + &self.get(CREDENTIALS).await.text
    }
}

#[tokio::test]
async fn however_a_password_is_written_it_is_never_seen_again() {
    let rig = Rig::new().await;
    let mut answers = String::new();
    let mut made = credential("a", value("hunter2-create"));
    made["spec"]["monitoringPassword"] = value("hunter2-monitor");
    made["metadata"]["annotations"] = json!({LAST_APPLIED: credential("a", value("hunter2-create")).to_string()});
    let answer = rig.call("POST", CREDENTIALS, &made).await;
    answers += &answer.text;
    let stored = answer.expect(201);
    assert_eq!(stored["spec"]["password"], own("a", "password"));
    assert_eq!(stored["spec"]["monitoringPassword"], own("a", "monitoringPassword"));
    let kept: Value = serde_json::from_str(stored["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap()).unwrap();
    assert_eq!(kept["spec"], json!({"username": "root", "password": {}}));
    assert_eq!(rig.sealed("a", "password").await.as_deref(), Some("hunter2-create"));
    assert_eq!(rig.sealed("a", "monitoringPassword").await.as_deref(), Some("hunter2-monitor"));
    let secret = rig.get(&path(SECRETS, "a-bmhc-passwords")).await.expect(200);
    let owner = &secret["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["uid"], &owner["controller"]), (&stored["metadata"]["uid"], &json!(true)));

    // By replacing, by each kind of patch, and by applying on the server.
    let a = path(CREDENTIALS, "a");
    let mut put = credential("a", value("hunter2-put"));
    put["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
    put["spec"]["monitoringPassword"] = own("a", "monitoringPassword");
    let writes: [(&str, &str, Value, &str); 5] = [
        ("PUT", "application/json", put, "hunter2-put"),
        ("PATCH", MERGE, json!({"spec": {"password": {"value": "hunter2-merge"}}}), "hunter2-merge"),
        (
            "PATCH",
            JSON_PATCH,
            json!([{"op": "add", "path": "/spec/password/value", "value": "hunter2-json"}]),
            "hunter2-json",
        ),
        ("PATCH", APPLY, credential("a", value("hunter2-apply")), "hunter2-apply"),
        ("PATCH", APPLY, credential("a", value("hunter2-again")), "hunter2-again"),
    ];
    for (method, type_, body, wanted) in writes {
        let query = if type_ == APPLY { "?fieldManager=t&force=true" } else { "" };
        let request = http::Request::builder().method(method).uri(format!("{a}{query}")).header("content-type", type_);
        let answer = rig.send(admin(), request, body.to_string()).await;
        answers += &answer.text;
        let stored = answer.expect(200);
        assert_eq!(stored["spec"]["password"], own("a", "password"), "{type_}");
        assert_eq!(rig.sealed("a", "password").await.as_deref(), Some(wanted));
        assert_eq!(rig.sealed("a", "monitoringPassword").await.as_deref(), Some("hunter2-monitor"), "stays as it is");
    }
    // Applied and not there yet; with a name that the server makes.
    let request =
        http::Request::patch(format!("{}?fieldManager=t", path(CREDENTIALS, "b"))).header("content-type", APPLY);
    let answer = rig.send(admin(), request, credential("b", value("hunter2-new")).to_string()).await;
    answers += &answer.text;
    answer.expect(201);
    assert_eq!(rig.sealed("b", "password").await.as_deref(), Some("hunter2-new"));
    let mut nameless = credential("", value("hunter2-generated"));
    nameless["metadata"] = json!({"generateName": "gen-"});
    let answer = rig.call("POST", CREDENTIALS, &nameless).await;
    answers += &answer.text;
    let name = answer.expect(201)["metadata"]["name"].as_str().unwrap().to_owned();
    assert_eq!(rig.sealed(&name, "password").await.as_deref(), Some("hunter2-generated"));
    // Through the status nothing of the spec is written.
    let status = json!({"status": {"message": "m"}, "spec": {"password": {"value": "hunter2-status"}}});
    let answer = rig.patch(&format!("{a}/status"), MERGE, &status).await;
    answers += &answer.text;
    answer.expect(200);
    assert_eq!(rig.sealed("a", "password").await.as_deref(), Some("hunter2-again"));

    let seen = answers + &rig.all_of_credentials().await;
    assert!(seen.contains("ADDED") && seen.contains("MODIFIED") && !seen.contains("hunter2"), "{seen}");
    // On the disk Secrets are sealed.
    let mut folders = vec![rig._folder.path().join("db")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap().path();
            if entry.is_dir() {
                folders.push(entry);
            } else {
                let bytes = std::fs::read(&entry).unwrap();
                assert!(!bytes.windows(7).any(|part| part == b"hunter2"), "{}", entry.display());
            }
        }
    }
}

#[tokio::test]
async fn what_is_written_twice_is_no_change_and_a_dry_run_writes_nothing() {
    let rig = Rig::new().await;
    let a = path(CREDENTIALS, "a");
    let first = rig.call("POST", CREDENTIALS, &credential("a", value("one"))).await.expect(201);
    let revision = async || {
        let secret = rig.get(&path(SECRETS, "a-bmhc-passwords")).await.expect(200);
        (
            rig.get(&a).await.expect(200)["metadata"]["resourceVersion"].clone(),
            secret["metadata"]["resourceVersion"].clone(),
        )
    };
    let before = revision().await;
    assert_eq!(before.0, first["metadata"]["resourceVersion"]);
    for type_ in [MERGE, MERGE] {
        rig.patch(&a, type_, &json!({"spec": {"password": {"value": "one"}}})).await.expect(200);
        assert_eq!(revision().await, before);
    }
    let dry = rig.patch(&format!("{a}?dryRun=All"), MERGE, &json!({"spec": {"password": {"value": "two"}}})).await;
    // The same answer for a good guess and a bad one.
    let guess = rig.patch(&format!("{a}?dryRun=All"), MERGE, &json!({"spec": {"password": {"value": "one"}}})).await;
    assert_eq!(dry.expect(200), guess.expect(200));
    rig.call("POST", &format!("{CREDENTIALS}?dryRun=All"), &credential("b", value("two"))).await.expect(201);
    assert_eq!((revision().await, rig.sealed("b", "password").await), (before.clone(), None));
    // Another password leaves the object as it is.
    rig.patch(&a, MERGE, &json!({"spec": {"password": {"value": "two"}}})).await.expect(200);
    let after = revision().await;
    assert!(after.0 == before.0 && after.1 != before.1);
    // What is refused writes nothing, neither there nor here.
    let mut bad = credential("c", value("three"));
    bad["spec"]["username"] = "".into();
    rig.call("POST", CREDENTIALS, &bad).await.expect(422);
    assert_eq!(rig.sealed("c", "password").await, None);
    let stale = json!({"metadata": {"resourceVersion": "1"}, "spec": {"password": {"value": "four"}}});
    rig.patch(&a, MERGE, &stale).await.expect(409);
    rig.call("POST", CREDENTIALS, &credential("a", value("five"))).await.expect(409);
    assert_eq!(rig.sealed("a", "password").await.as_deref(), Some("two"));
    // A fault shows nothing of it.
    for password in [json!(77777), json!({"value": 77777}), json!({"valeu": "77777"}), json!("77777")] {
        let refused = rig.call("POST", CREDENTIALS, &credential("d", password.clone())).await;
        assert!(refused.code == 422 && !refused.text.contains("77777"), "{password}: {}", refused.text);
    }
}

#[tokio::test]
async fn a_secret_of_somebody_else_is_not_written() {
    let rig = Rig::new().await;
    rig.call("POST", SECRETS, &secret("a-bmhc-passwords", &json!({"password": "theirs"}))).await.expect(201);
    let refused = rig.call("POST", CREDENTIALS, &credential("a", value("mine"))).await.expect(409);
    assert!(refused["message"].as_str().unwrap().contains("is not its own"), "{refused}");
    assert_eq!(rig.get(&path(CREDENTIALS, "a")).await.code, 404);
    assert_eq!(rig.sealed("a", "password").await.as_deref(), Some("theirs"));
    rig.call("DELETE", &path(SECRETS, "a-bmhc-passwords"), &json!({})).await.expect(200);
    let first = rig.call("POST", CREDENTIALS, &credential("a", value("mine"))).await.expect(201);
    // Made again before anybody has collected the Secret of the one before.
    rig.call("DELETE", &path(CREDENTIALS, "a"), &json!({})).await.expect(200);
    let second = rig.call("POST", CREDENTIALS, &credential("a", value("newer"))).await.expect(201);
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
    assert_eq!(rig.sealed("a", "password").await.as_deref(), Some("newer"));
    let secret = rig.get(&path(SECRETS, "a-bmhc-passwords")).await.expect(200);
    assert_eq!(secret["metadata"]["ownerReferences"][0]["uid"], second["metadata"]["uid"]);
    // Its Secret was deleted: a password brings it back.
    rig.call("DELETE", &path(SECRETS, "a-bmhc-passwords"), &json!({})).await.expect(200);
    rig.patch(&path(CREDENTIALS, "a"), MERGE, &json!({"spec": {"password": value("newest")}})).await.expect(200);
    assert_eq!(rig.sealed("a", "password").await.as_deref(), Some("newest"));
}

#[tokio::test]
async fn nobody_names_a_secret_that_he_may_not_read() {
    let rig = Rig::new().await;
    rig.call("POST", SECRETS, &secret("prize", &json!({"password": "theirs"}))).await.expect(201);
    rig.call("POST", SECRETS, &secret("shared", &json!({"password": "ours"}))).await.expect(201);
    let mut shared = rule(&["get"], "", "secrets");
    shared["resourceNames"] = json!(["shared"]);
    let rules =
        json!([rule(&["get", "create", "update", "patch"], "kaas.mirantis.com", "baremetalhostcredentials"), shared]);
    rig.call("POST", ROLES, &role("Role", "keeper", &rules)).await.expect(201);
    rig.call("POST", BINDINGS, &binding("RoleBinding", "keeper", "Role/keeper", &named("User", "eve")))
        .await
        .expect(201);
    let as_eve = async |method: &str, path: &str, body: &Value| rig.as_user(user("eve", &[]), method, path, body).await;
    let of = |name: &str| json!({"secret": {"name": name, "key": "password"}});
    // A password of one's own may be written without any right to Secrets, and not be read by it.
    as_eve("POST", CREDENTIALS, &credential("a", value("mine"))).await.expect(201);
    as_eve("GET", &path(SECRETS, "a-bmhc-passwords"), &Value::Null).await.expect(403);
    let refused = as_eve("POST", CREDENTIALS, &credential("b", of("prize"))).await.expect(403);
    assert!(refused["message"].as_str().unwrap().contains("names a Secret that you may not read"), "{refused}");
    // One that is not there is no other answer.
    as_eve("POST", CREDENTIALS, &credential("b", of("none"))).await.expect(403);
    as_eve("POST", CREDENTIALS, &credential("b", of("shared"))).await.expect(201);
    let change = async |patch: &Value| {
        let request = http::Request::patch(path(CREDENTIALS, "a")).header("content-type", MERGE);
        rig.send(user("eve", &[]), request, patch.to_string()).await
    };
    change(&json!({"spec": {"password": of("prize")}})).await.expect(403);
    change(&json!({"spec": {"monitoringPassword": of("prize")}})).await.expect(403);
    // The Secret of another credential, too.
    change(&json!({"spec": {"password": of("b-bmhc-passwords")}})).await.expect(403);
    // What somebody else put there stays, and the key of it, too.
    let mine = path(CREDENTIALS, "a");
    rig.patch(&mine, MERGE, &json!({"spec": {"password": of("prize")}})).await.expect(200);
    change(&json!({"spec": {"username": "admin"}})).await.expect(200);
    change(&json!({"spec": {"password": {"secret": {"key": "other"}}}})).await.expect(403);
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_see_no_password_and_put_none_there() {
    let server = HookServer::start(|path, _| {
        if path.contains("evil") {
            patched(&json!([{"op": "add", "path": "/spec/password/value", "value": "planted"}]))
        } else {
            patched(&json!([{"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}]))
        }
    })
    .await;
    let (rig, _) = rig(&server).await;
    let rules = json!({"rules": [{"operations": ["*"], "apiGroups": ["kaas.mirantis.com"], "apiVersions": ["*"],
        "resources": ["baremetalhostcredentials"]}]});
    mutating(&rig, "good", &[server.hook("good.example.org", rules.clone())]).await.expect(201);
    let made = rig.call("POST", CREDENTIALS, &credential("a", value("hunter2"))).await.expect(201);
    assert_eq!(made["metadata"]["labels"]["seen"], "yes");
    let asked = server.last().to_string();
    assert!(asked.contains("a-bmhc-passwords") && !asked.contains("hunter2"), "{asked}");
    assert_eq!(rig.sealed("a", "password").await.as_deref(), Some("hunter2"));
    mutating(&rig, "evil", &[server.hook("evil.example.org", rules)]).await.expect(201);
    let refused = rig.call("POST", CREDENTIALS, &credential("b", value("hunter2"))).await;
    assert!(refused.code == 422 && refused.text.contains("webhooks may not set it"), "{}", refused.text);
    assert!(!refused.text.contains("planted") && !refused.text.contains("hunter2"), "{}", refused.text);
    assert_eq!(rig.sealed("b", "password").await, None);
}
