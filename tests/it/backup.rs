//! `slipway backup` and `slipway restore` as an operator runs them, against the real program.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::Request;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use slipway::api::metal3::{ANNOTATION_PAUSED, BareMetalHost, ProvisioningState};
use slipway::config::Config;
use slipway::store::Store;
use tokio::io::AsyncWriteExt;

use crate::backup_support::{Place, until};
use crate::{needs, scraped};

mod formats;
mod scheduled;

const KEY: &str = "backup.key";

/// Makes the key of a box's backups; its public half.
async fn new_key(place: &Place) -> String {
    place.run(&["backup", "--new-key", KEY]).await.good().out.trim().to_owned()
}

async fn create<K>(client: &Client, object: Value) -> K
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    let object: K = serde_json::from_value(object).unwrap();
    Api::default_namespaced(client.clone()).create(&PostParams::default(), &object).await.unwrap()
}

fn map(name: &str, text: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "text": text } })
}

/// A host whose BMC answers nobody.
fn host(name: &str, last: u8) -> Value {
    json!({ "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
        "metadata": { "name": name, "labels": { "rack": "a" }, "finalizers": ["example.org/kept"] },
        "spec": { "online": false, "bootMACAddress": format!("02:00:00:00:00:{last:02x}"),
            "bmc": { "address": "ipmi://127.0.0.1:1", "credentialsName": "bmc" } } })
}

/// Secrets, hosts, a kind of its own with objects.
async fn furnish(client: &Client) {
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "bmc" },
        "stringData": { "username": "admin", "password": "the password of the BMC" } });
    create::<Secret>(client, secret).await;
    create::<BareMetalHost>(client, host("h-1", 1)).await;
    create::<BareMetalHost>(client, host("h-2", 2)).await;
    let definition = json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "shelves.example.org" },
        "spec": { "group": "example.org", "scope": "Namespaced",
            "names": { "plural": "shelves", "singular": "shelf", "kind": "Shelf" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true } } }] } });
    let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let resource = kube::discovery::ApiResource::from_gvk(&kind);
    let definitions = Api::<DynamicObject>::all_with(client.clone(), &resource);
    definitions.create(&PostParams::default(), &serde_json::from_value(definition).unwrap()).await.unwrap();
    let shelf =
        json!({ "apiVersion": "example.org/v1", "kind": "Shelf", "metadata": { "name": "top" }, "books": [1, 2] });
    let shelf: DynamicObject = serde_json::from_value(shelf).unwrap();
    until("the kind is served", async || shelves(client).create(&PostParams::default(), &shelf).await.ok()).await;
}

fn shelves(client: &Client) -> Api<DynamicObject> {
    let mut resource = kube::discovery::ApiResource::from_gvk(&GroupVersionKind::gvk("example.org", "v1", "Shelf"));
    resource.plural = "shelves".into();
    Api::default_namespaced_with(client.clone(), &resource)
}

/// Puts a lease where DHCP would.
async fn put_lease(place: &Place) {
    let config = Config::load(&place.config()).unwrap();
    let store = Store::open(slipway::appliance::store_options(&config)).unwrap();
    let table = store.table("leases").unwrap();
    table.write(Bytes::from_static(&[10, 0, 0, 9]), Some(Bytes::from_static(b"\0a lease\xff"))).await.unwrap();
    store.close().await;
}

/// The counter that a line of a backup has.
fn counter(lines: &[String], name: &str) -> u64 {
    let line = lines.iter().find(|line| line.starts_with(&format!("/configmaps default/{name} "))).unwrap();
    let json: Value = serde_json::from_str(&line[line.find('{').unwrap()..]).unwrap();
    json["data"]["text"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_backup_taken_under_writes_makes_the_same_appliance_elsewhere() {
    let (here, there) = (Place::new(), Place::new());
    let recipient = new_key(&here).await;
    let served = here.serve().await;
    served.stop().await;
    put_lease(&here).await;
    let served = here.serve().await;
    let client = here.client().await;
    furnish(&client).await;
    for name in ["first", "second"] {
        create::<ConfigMap>(&client, map(name, "0")).await;
    }
    let old_kubeconfig = here.run(&["kubeconfig"]).await.good().out;
    let token = ["token", "create", "bot", "--role", "view", "-o", "kubeconfig"];
    let token = here.run(&token).await.good().out;

    // One after the other, again and again: at any moment the first is as new as the second or one ahead.
    let written = Arc::new(AtomicU64::new(0));
    let writer = tokio::spawn({
        let (written, maps) = (Arc::clone(&written), Api::<ConfigMap>::default_namespaced(client.clone()));
        async move {
            loop {
                let next = written.load(Ordering::SeqCst) + 1;
                for name in ["first", "second"] {
                    let patch = Patch::Merge(json!({ "data": { "text": next.to_string() } }));
                    maps.patch(name, &PatchParams::default(), &patch).await.unwrap();
                }
                written.store(next, Ordering::SeqCst);
            }
        }
    });
    until("it writes", async || (written.load(Ordering::SeqCst) > 5).then_some(())).await;
    let acknowledged = written.load(Ordering::SeqCst);
    let ran = here.run(&["backup", "--recipient", &recipient, "b.age"]).await.good();
    assert!(ran.err.contains("b.age: ") && ran.err.contains(" objects at revision "), "{ran:?}");
    let seen = written.load(Ordering::SeqCst) + 1;
    writer.abort();
    assert_eq!(here.path("b.age").metadata().unwrap().permissions().mode() & 0o777, 0o600);
    // It never replaces a file.
    here.run(&["backup", "--recipient", &recipient, "b.age"]).await.failed(1, "is there already");
    let last = Api::<ConfigMap>::default_namespaced(client.clone()).get("first").await.unwrap();
    let uid = Api::<BareMetalHost>::default_namespaced(client.clone()).get("h-1").await.unwrap().uid();
    served.stop().await;

    let key = here.path(KEY);
    let (header, lines) = here.lines("b.age", Some(&key));
    let (first, second) = (counter(&lines, "first"), counter(&lines, "second"));
    assert!(first == second || first == second + 1, "one moment: {first} {second}");
    assert!((acknowledged..=seen).contains(&second), "{acknowledged} <= {second} <= {seen}");
    for part in [
        "/secrets default/bmc",
        "metal3.io/baremetalhosts default/h-1",
        "example.org/shelves default/top",
        "entry leases",
    ] {
        assert!(lines.iter().any(|line| line.starts_with(part)), "{part}");
    }
    assert!(!lines.iter().any(|line| line.starts_with("slipway.dev/dhcpleases")), "what is only shown is not kept");

    let (file, key) = (here.path("b.age"), key.to_str().unwrap().to_owned());
    let file = file.to_str().unwrap();
    let ran = there.run(&["restore", "--check", "--key-file", &key, file]).await.good();
    assert!(ran.out.contains("the backup is whole") && ran.out.contains("2  metal3.io/baremetalhosts"), "{ran:?}");
    assert!(!there.data().exists(), "--check writes nothing");
    let ran = there.run(&["restore", "--as-is", "--key-file", &key, file]).await.good();
    assert!(ran.out.contains("restored into") && !ran.out.contains("paused"), "{ran:?}");
    let pki = there.data().join("pki");
    assert_eq!(pki.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(pki.join("ca.key").metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let config = std::fs::read_to_string(there.data().join("restored-slipway.toml")).unwrap();
    assert_eq!(config, std::fs::read_to_string(here.config()).unwrap());

    // Byte by byte the same, before anybody acts on it.
    there.run(&["backup", "--offline", "--unencrypted", "again"]).await.good();
    let (again, same) = there.lines("again", None);
    let kept = |lines: &[String]| {
        lines.iter().filter(|line| !line.starts_with("file slipway.toml")).cloned().collect::<Vec<_>>()
    };
    assert_eq!(kept(&same), kept(&lines));
    assert_eq!(again.ca, header.ca);
    let jump = again.revision - header.revision;
    assert!(jump >= 1_000_000_000 && jump.is_multiple_of(1_000_000_000), "no revision is given twice: {jump}");

    let served = there.serve().await;
    let client = there.client_of(&old_kubeconfig).await.expect("kubeconfigs hold");
    let bot = there.client_of(&token).await.expect("tokens hold");
    assert_eq!(Api::<BareMetalHost>::default_namespaced(bot).get("h-1").await.unwrap().uid(), uid);
    assert_eq!(shelves(&client).get("top").await.unwrap().data["books"], json!([1, 2]));
    let secret = Api::<Secret>::default_namespaced(client.clone()).get("bmc").await.unwrap();
    assert_eq!(secret.data.unwrap()["password"].0, b"the password of the BMC");
    // Who saw more than the backup knows must look anew.
    let maps = Api::<ConfigMap>::default_namespaced(client.clone());
    let mut events = Box::pin(maps.watch(&WatchParams::default(), &last.resource_version().unwrap()).await.unwrap());
    let event = futures::TryStreamExt::try_next(&mut events).await.unwrap();
    assert!(matches!(&event, Some(WatchEvent::Error(status)) if status.code == 410), "{event:?}");
    let written = create::<ConfigMap>(&client, map("third", "")).await;
    assert!(written.resource_version().unwrap().parse::<u64>().unwrap() > again.revision);
    served.stop().await;
}

#[tokio::test]
async fn hosts_are_paused_until_somebody_has_looked() {
    let (here, there) = (Place::new(), Place::new());
    new_key(&here).await;
    let served = here.serve().await;
    let client = here.client().await;
    furnish(&client).await;
    let hosts = Api::<BareMetalHost>::default_namespaced(client.clone());
    let by_hand = json!({ "metadata": { "annotations": { ANNOTATION_PAUSED: "by me" } } });
    hosts.patch("h-2", &PatchParams::default(), &Patch::Merge(by_hand)).await.unwrap();
    until("it is looked after", async || {
        let state = hosts.get("h-1").await.unwrap().status.map(|status| status.provisioning.state);
        (state == Some(ProvisioningState::Registering)).then_some(())
    })
    .await;
    // At rest, whatever its BMC says.
    let rested = json!({ "status": { "provisioning": { "state": "available", "ID": "" }, "poweredOn": false,
        "operationalStatus": "OK", "errorMessage": "", "errorCount": 0, "goodCredentials": {}, "triedCredentials": {},
        "operationHistory": {} } });
    let at_rest = create::<BareMetalHost>(&client, {
        let mut rested = host("h-3", 3);
        rested["metadata"]["annotations"] = json!({ ANNOTATION_PAUSED: "slipway restore of a backup of before" });
        rested
    })
    .await;
    hosts.patch_status(&at_rest.name_any(), &PatchParams::default(), &Patch::Merge(rested)).await.unwrap();
    here.run(&["backup", "--key-file", KEY, "b.age"]).await.good();
    served.stop().await;

    let key = here.path(KEY);
    let file = here.path("b.age");
    let restore = ["restore", "--key-file", key.to_str().unwrap(), file.to_str().unwrap()];
    let ran = there.run(&restore).await.good();
    assert!(ran.out.contains("1 host(s) are paused") && ran.out.contains("  default/h-1\n"), "{ran:?}");
    // A second one does not touch what the first one made.
    there.run(&restore).await.failed(1, "there is an appliance");

    let served = there.serve().await;
    let hosts = Api::<BareMetalHost>::default_namespaced(there.client().await);
    let paused = async |name: &str| hosts.get(name).await.unwrap().annotations().get(ANNOTATION_PAUSED).cloned();
    assert!(paused("h-1").await.unwrap().starts_with("slipway restore of a backup of 20"));
    let ran = there.run(&["host", "resume", "--all"]).await.good();
    assert!(ran.out.contains("host default/h-1 stays paused: it is registering"), "{ran:?}");
    assert!(ran.out.contains("host default/h-3 resumed\n1 host(s) resumed\n"), "{ran:?}");
    assert_eq!(paused("h-2").await.as_deref(), Some("by me"));
    there.run(&["host", "resume", "h-1"]).await.good();
    assert_eq!((paused("h-1").await, paused("h-3").await), (None, None));
    let ran = there.run(&["host", "resume", "h-2"]).await.good();
    assert!(ran.out.contains("was not paused by a restore"), "{ran:?}");
    there.run(&["host", "resume", "nobody"]).await.failed(1, "not found");
    there.run(&["host", "resume"]).await.failed(2, "--all");
    served.stop().await;
}

#[tokio::test]
async fn nobody_but_the_administrator_gets_one_and_every_attempt_has_its_line() {
    let place = Place::new();
    let served = place.serve().await;
    let get = || Request::get("/slipway/v1/backup").body(Vec::new()).unwrap();
    let refused = async |client: &Client, request: Request<Vec<u8>>| match client.request_text(request).await {
        Err(kube::Error::Api(status)) => status.code,
        other => panic!("{:?}", other.map(|text| text.len())),
    };
    for role in ["cluster-admin", "admin", "edit", "view"] {
        let made = place.run(&["token", "create", role, "--role", role, "-o", "kubeconfig"]).await.good().out;
        let client = place.client_of(&made).await.unwrap();
        assert_eq!(refused(&client, get()).await, 403, "{role}");
        std::fs::write(place.path("mallory"), made).unwrap();
        let ran = place.run(&["backup", "--kubeconfig", "mallory", "--unencrypted", "stolen"]).await;
        ran.failed(1, "only its administrator");
        assert!(!place.path("stolen").exists());
    }
    // A role that names the very path.
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "own" },
        "rules": [{ "nonResourceURLs": ["/slipway/v1/backup", "*"], "verbs": ["*"] }] });
    std::fs::write(place.path("role.yaml"), role.to_string()).unwrap();
    place.run(&["apply", "-f", "role.yaml"]).await.good();
    let made = place.run(&["token", "create", "own", "--role", "own", "-o", "kubeconfig"]).await.good().out;
    assert_eq!(refused(&place.client_of(&made).await.unwrap(), get()).await, 403);
    // Somebody who speaks in the administrator's name, and the administrator in somebody's.
    let admin = place.client().await;
    for (user, group) in [("slipway-admin", "system:masters"), ("bob", "system:masters")] {
        let request =
            Request::get("/slipway/v1/backup").header("impersonate-user", user).header("impersonate-group", group);
        assert_eq!(refused(&admin, request.body(Vec::new()).unwrap()).await, 403, "{user}");
    }
    for (method, code) in [("POST", 405), ("DELETE", 405)] {
        let request = Request::builder().method(method).uri("/slipway/v1/backup").body(Vec::new()).unwrap();
        assert_eq!(refused(&admin, request).await, code, "{method}");
    }
    for path in ["/slipway/v1/backup/x", "/slipway/v1", "/slipway/v2/backup"] {
        assert_eq!(refused(&admin, Request::get(path).body(Vec::new()).unwrap()).await, 404, "{path}");
    }
    // Nobody at all.
    let mut nobody = kube::config::Kubeconfig::from_yaml(&made).unwrap();
    nobody.auth_infos[0].auth_info = Some(Default::default());
    let text = serde_json::to_string(&nobody).unwrap();
    assert_eq!(refused(&place.client_of(&text).await.unwrap(), get()).await, 401);

    let text = admin.request_text(get()).await.unwrap();
    assert!(text.starts_with("{\"slipwayBackup\":1,") && text.contains("BEGIN PRIVATE KEY"));
    served.stop().await;
    let log = std::fs::read_to_string(place.data().join("logs/audit.log")).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let about = |user: &str, code: u64| {
        lines.iter().any(|line| {
            line["requestURI"] == "/slipway/v1/backup"
                && line["verb"] == "get"
                && line["user"]["username"] == user
                && line["responseStatus"]["code"] == code
                && line.get("objectRef").is_none()
        })
    };
    assert!(about("slipway-admin", 200));
    assert!(about("system:serviceaccount:slipway-system:edit", 403));
}

#[tokio::test]
async fn what_is_not_whole_or_not_opened_is_refused_and_leaves_nothing() {
    let (here, there) = (Place::new(), Place::new());
    new_key(&here).await;
    std::fs::write(here.path("pass"), "correct horse battery\n").unwrap();
    std::fs::write(here.path("wrong"), "correct horse batterie\n").unwrap();
    std::fs::write(here.path("short"), "hunter2\n").unwrap();
    let served = here.serve().await;
    here.run(&["backup", "--passphrase-file", "short", "x"]).await.failed(1, "less than 12 characters");
    here.run(&["backup", "x"]).await.failed(2, "--passphrase-file");
    here.run(&["backup", "--recipient", "age1nobody", "x"]).await.failed(1, "is no recipient");
    here.run(&["backup", "--offline", "--key-file", KEY, "x"]).await.failed(1, "another slipway runs");
    here.run(&["backup", "--key-file", KEY, "no/folder/x"]).await.failed(1, "cannot write to no/folder");
    assert!(!here.path("x").exists());
    here.run(&["backup", "--passphrase-file", "pass", "pass.age"]).await.good();
    here.run(&["backup", "--key-file", KEY, "key.age"]).await.good();
    let ran = here.run(&["backup", "--unencrypted", "plain.zst"]).await.good();
    assert!(ran.err.contains("not encrypted"), "{ran:?}");
    let ran = here.run(&["backup", "--key-file", KEY]).await.good();
    let named = ran.err.lines().last().unwrap().split(": ").next().unwrap();
    assert!(named.starts_with("slipway-20") && named.ends_with("Z.jsonl.zst.age") && here.path(named).exists());
    served.stop().await;
    here.run(&["backup", "--key-file", KEY, "late.age"]).await.failed(1, "is `slipway serve` running?");
    assert!(!here.path("late.age").exists());
    let left = std::fs::read_dir(here.path(".")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with(".slipway")).collect();
    assert!(left.is_empty(), "{left:?}");

    let at = |name: &str| here.path(name).to_str().unwrap().to_owned();
    let (key, other) = (at(KEY), at("other.key"));
    here.run(&["backup", "--new-key", "other.key"]).await.good();
    here.run(&["backup", "--new-key", "other.key"]).await.failed(1, "is there already");
    let whole = std::fs::read(here.path("key.age")).unwrap();
    std::fs::write(here.path("cut"), &whole[..whole.len() / 2]).unwrap();
    // Exactly a chunk of age: nothing of what comes before the cut is damaged.
    std::fs::write(here.path("cut-late"), &whole[..whole.len() - 1]).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() - 100] ^= 1;
    std::fs::write(here.path("flipped"), flipped).unwrap();
    std::fs::write(here.path("photo"), "GIF89a").unwrap();
    std::fs::write(here.path("empty"), "").unwrap();
    let (pass, wrong) = (at("pass"), at("wrong"));
    for (file, key, said) in [
        ("pass.age", ["--passphrase-file", &wrong], "the passphrase is not the one"),
        ("pass.age", ["--key-file", &key], "encrypted with a passphrase"),
        ("key.age", ["--key-file", &other], "none of the keys"),
        ("key.age", ["--passphrase-file", &pass], "encrypted for a key"),
        ("key.age", ["--key-file", &pass], "holds no key"),
        ("cut", ["--key-file", &key], "cut"),
        ("cut-late", ["--key-file", &key], "cut-late"),
        ("flipped", ["--key-file", &key], "flipped"),
        ("photo", ["--key-file", &key], "no backup of Slipway"),
        ("empty", ["--key-file", &key], "cut off"),
        ("nothing", ["--key-file", &key], "No such file"),
    ] {
        let file = at(file);
        there.run(&["restore", "--check", key[0], key[1], &file]).await.failed(1, said);
        there.run(&["restore", key[0], key[1], &file]).await.failed(1, said);
        let left = std::fs::read_dir(there.data()).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{file} left something");
    }
    there.run(&["restore", &at("key.age")]).await.failed(2, "--key-file");
    for (file, key) in [("pass.age", ["--passphrase-file", &pass]), ("plain.zst", ["--key-file", &key])] {
        there.run(&["restore", "--check", key[0], key[1], &at(file)]).await.good();
    }
    // From another place, into a folder that is named, through a pipe.
    let mut restore = there.command(&["restore", "--key-file", &key, "--data-dir", "new", "-"]);
    let mut restore = restore.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    restore.stdin.take().unwrap().write_all(&whole).await.unwrap();
    assert!(restore.wait().await.unwrap().success());
    assert!(there.path("new/db").exists() && !there.data().join("db").exists());
}

#[tokio::test]
async fn a_restore_that_is_killed_is_never_half_an_appliance() {
    let (here, there) = (Place::new(), Place::new());
    let served = here.serve().await;
    let client = here.client().await;
    for number in 0..40 {
        let bytes: Vec<u8> = (0..100_000).map(|_| rand::random()).collect();
        create::<ConfigMap>(&client, map(&format!("fill-{number}"), &format!("{bytes:02x?}"))).await;
    }
    here.run(&["backup", "--unencrypted", "b.zst"]).await.good();
    served.stop().await;
    let file = here.path("b.zst");
    let file = file.to_str().unwrap();
    let mark = there.data().join("restore-unfinished");
    let mut halves = 0;
    for round in 0..12_u64 {
        let mut restore = there.command(&["restore", file]);
        let mut restore = restore.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("it has begun", async || (mark.exists() || there.data().join("pki/ca.key").exists()).then_some(())).await;
        // A little further each time: nothing is waited for, the kill is to come at another moment.
        tokio::time::sleep(std::time::Duration::from_millis(round * 15)).await;
        restore.start_kill().unwrap();
        restore.wait().await.unwrap();
        if mark.exists() {
            halves += 1;
            there.run(&["serve"]).await.failed(1, "run `slipway restore` again");
            there.run(&["backup", "--offline", "--unencrypted", "x"]).await.failed(1, "run `slipway restore` again");
        } else {
            // It was faster than the kill: it is a whole one.
            there.run(&["backup", "--offline", "--unencrypted", &format!("whole-{round}")]).await.good();
            std::fs::remove_dir_all(there.data()).unwrap();
        }
    }
    assert!(halves > 0, "no kill came in between");
    if there.data().join("db").exists() && !mark.exists() {
        std::fs::remove_dir_all(there.data()).unwrap();
    }
    there.run(&["restore", file]).await.good();
    assert!(!mark.exists());
    let served = there.serve().await;
    let maps = Api::<ConfigMap>::default_namespaced(there.client().await).list(&Default::default()).await.unwrap();
    assert_eq!(maps.items.iter().filter(|map| map.name_any().starts_with("fill-")).count(), 40);
    served.stop().await;
}

/// What is in the folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

async fn scrape(place: &Place) -> String {
    place.client().await.request_text(Request::get("/metrics").body(Vec::new()).unwrap()).await.unwrap()
}

#[tokio::test]
async fn every_key_file_is_in_a_backup_or_made_anew() {
    let place = Place::new();
    let served = place.serve().await;
    place.run(&["backup", "--unencrypted", "b.zst"]).await.good();
    served.stop().await;
    let (_, lines) = place.lines("b.zst", None);
    for name in names(&place.data().join("pki")) {
        let kept = lines.iter().any(|line| line.starts_with(&format!("file pki/{name} ")));
        let made_anew = ["server.crt", "server.key", "store.key", "boot-token.key", ".lock"];
        assert!(
            kept != made_anew.contains(&name.as_str()),
            "{name}: decide whether a backup keeps it, and say so in docs/backup.md"
        );
    }
    // Whatever else is new in the data folder, too.
    assert_eq!(names(&place.data()), ["db", "images", "logs", "pki"]);
}

#[tokio::test]
async fn what_root_restores_and_copies_belongs_to_the_owner_of_the_folder() {
    if !needs::root() {
        return;
    }
    const USER: u32 = 4242;
    let (here, there) = (Place::new(), Place::new());
    here.serve().await.stop().await;
    here.run(&["backup", "--offline", "--unencrypted", "b.zst"]).await.good();
    std::fs::create_dir(there.data()).unwrap();
    std::os::unix::fs::chown(there.data(), Some(USER), Some(USER)).unwrap();
    let foreign = |folder: &Path| {
        let found =
            std::process::Command::new("find").arg(folder).args(["!", "-user", &USER.to_string()]).output().unwrap();
        String::from_utf8(found.stdout).unwrap()
    };
    there.run(&["restore", here.path("b.zst").to_str().unwrap()]).await.good();
    assert!(there.data().join("db/witness").exists());
    assert_eq!(foreign(&there.data()), "");
    // Opening the database makes files of its own.
    there.run(&["backup", "--offline", "--unencrypted", "again"]).await.good();
    assert_eq!(foreign(&there.data()), "");
}

/// The folder's owner may be another user, who would have root write his files.
#[tokio::test]
async fn a_restore_follows_no_symlink() {
    let (here, there) = (Place::new(), Place::new());
    here.serve().await.stop().await;
    here.run(&["backup", "--offline", "--unencrypted", "b.zst"]).await.good();
    let file = here.path("b.zst");
    let theirs = there.path("theirs");
    for part in ["restored-slipway.toml", "pki", "db", "restore-unfinished"] {
        std::fs::create_dir_all(there.data()).unwrap();
        match part {
            "pki" | "db" => std::fs::create_dir(&theirs).unwrap(),
            _ => std::fs::write(&theirs, "mine").unwrap(),
        }
        std::os::unix::fs::symlink(&theirs, there.data().join(part)).unwrap();
        there.run(&["restore", file.to_str().unwrap()]).await.failed(1, part);
        match theirs.is_dir() {
            true => std::fs::remove_dir(&theirs).expect("nothing is in it"),
            false => {
                assert_eq!(std::fs::read_to_string(&theirs).unwrap(), "mine");
                std::fs::remove_file(&theirs).unwrap();
            }
        }
        std::fs::remove_dir_all(there.data()).unwrap();
    }
}

/// Nobody can tell whether such a database has the newest writes.
#[tokio::test]
async fn a_backup_of_a_database_without_its_witness_says_so() {
    let here = Place::new();
    here.serve().await.stop().await;
    let ran = here.run(&["backup", "--offline", "--unencrypted", "b.zst"]).await.good();
    assert!(!ran.err.contains("witness"), "{ran:?}");
    std::fs::remove_file(here.data().join("db/witness")).unwrap();
    let ran = here.run(&["backup", "--offline", "--unencrypted", "c.zst"]).await.good();
    assert!(ran.err.contains("the witness of the database is lost"), "{ran:?}");
}

/// The page is followed as an operator would: `restore` on another box, `systemctl` by hand.
#[tokio::test]
async fn the_commands_of_the_page_work_as_they_are_written() {
    let page = include_str!("../../docs/backup.md");
    let commands = page.lines().filter_map(|line| line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")));
    let commands = commands.filter(|line| line.starts_with("slipway ") || line.starts_with("systemctl st"));
    let mut place = Place::new();
    let mut boxes = 1;
    let mut recipient = String::new();
    let mut served = Some(place.serve().await);
    let mut ran = Vec::new();
    for command in commands {
        let command = command.replace("age1…", &recipient);
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        match words[..] {
            ["start", _] => served = Some(place.serve().await),
            ["stop", _] => served.take().unwrap().stop().await,
            _ => {
                if words[0] == "restore" && !words.contains(&"--check") {
                    let before = std::mem::replace(&mut place, Place::new());
                    if let Some(served) = served.take() {
                        served.stop().await;
                    }
                    for name in
                        names(&before.path(".")).iter().filter(|name| name.ends_with(".key") || name.ends_with(".age"))
                    {
                        std::fs::copy(before.path(name), place.path(name)).unwrap();
                    }
                    boxes += 1;
                }
                let out = place.run(&words).await.good().out;
                if words.contains(&"--new-key") {
                    recipient = out.trim().to_owned();
                }
            }
        }
        ran.push(words[0].to_owned());
    }
    assert_eq!(boxes, 3, "{ran:?}");
    assert!(
        ["backup", "restore", "host", "start", "stop"].iter().all(|word| ran.iter().any(|one| one == word)),
        "{ran:?}"
    );
}
