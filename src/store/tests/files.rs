//! What is in the files, and what opening makes of files that something happened to.

use std::fs;

use super::super::base;
use super::super::group::{META, TreeName, WriteGroup};
use super::super::journal::StoreJournal;
use super::*;

/// Adds a group to the journal of a closed store, as the store itself would.
fn append(folder: &Path, tree: &str, key: &[u8], value: &[u8]) {
    let generation = folder.join("db/generation-1");
    let base = base::read(&generation.join("base"), |_, _, _| Ok(())).unwrap();
    let mut journal = StoreJournal::open(&generation.join("journal"), base.digest, |_, _| Ok(())).unwrap();
    let mut group = WriteGroup::default();
    group.entry(TreeName::parse(tree).unwrap(), key.to_vec(), Some(value.to_vec()));
    journal.append(&group.encode().unwrap()).unwrap();
}

/// What the store holds of an entry on disk.
fn value(folder: &Path, tree: &str, key: &[u8]) -> Vec<u8> {
    let generation = folder.join("db/generation-1");
    let base = base::read(&generation.join("base"), |_, _, _| Ok(())).unwrap();
    let mut found = None;
    let look = |_, mut group: &[u8]| {
        if group.is_empty() {
            return Ok(());
        }
        super::super::frames::read(&mut group, |one, name, value| {
            if one == tree && name == key {
                found = value;
            }
            Ok(())
        })
        .map_err(|error| error.to_string())
    };
    StoreJournal::open(&generation.join("journal"), base.digest, look).unwrap();
    found.unwrap().into()
}

pub(super) fn files_contain(folder: &Path, needle: &[u8]) -> bool {
    fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files_contain(&path, needle),
            false => fs::read(&path).unwrap().windows(needle.len()).any(|window| window == needle),
        }
    })
}

#[tokio::test]
async fn secrets_are_sealed_at_rest() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for step in 0..40 {
        let text = format!("correct-horse-{step}-battery");
        store.write(put("/secrets", "ns", "bmc", Expect::Any, text.as_str())).await.unwrap();
        store.write(put("/configmaps", "ns", "bmc", Expect::Any, format!("plain-{text}"))).await.unwrap();
    }
    store.write(delete("/secrets", "ns", "bmc", Expect::Any)).await.unwrap();
    store.write(put("/secrets", "ns", "large", Expect::Any, "battery-staple".repeat(50_000))).await.unwrap();
    let sealed = lines(&mut store.watch("/secrets", 0).unwrap(), 42).await;
    store.close().await;
    let database = folder.path().join("db");
    assert!(files_contain(&database, b"plain-correct-horse-7-battery"), "the search finds what is not sealed");
    assert!(!files_contain(&database, b"\"correct-horse"), "a secret is in the files");
    assert!(!files_contain(&database, b"battery-staple"), "a secret is in the files");
    assert_eq!(fs::metadata(folder.path().join("store.key")).unwrap().permissions().mode() & 0o7777, 0o600);

    let store = open(folder.path());
    assert_eq!(store.get("/secrets", "ns", "large").unwrap().value()["spec"], "battery-staple".repeat(50_000));
    assert_eq!(lines(&mut store.watch("/secrets", 0).unwrap(), 42).await, sealed);
    store.close().await;
}

#[tokio::test]
async fn a_wrong_key_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.write(put("/secrets", "ns", "a", Expect::Any, "s")).await.unwrap();
    store.close().await;
    let key = folder.path().join("store.key");
    let text = fs::read_to_string(&key).unwrap();

    fs::remove_file(&key).unwrap();
    assert!(refusal(options(folder.path())).contains("is missing; put the former key file back"));
    assert!(!key.exists(), "no new key is made for sealed data");
    fs::write(&key, "not a key\n").unwrap();
    assert!(refusal(options(folder.path())).contains("does not hold a key"));
    fs::write(&key, [0xff; 3]).unwrap();
    assert!(refusal(options(folder.path())).contains("cannot read the key file"));
    let other = tempfile::tempdir().unwrap();
    open(other.path()).close().await;
    fs::copy(other.path().join("store.key"), &key).unwrap();
    assert!(refusal(options(folder.path())).contains("is not the one that sealed its secrets"));

    fs::write(&key, text.trim()).unwrap();
    let store = open(folder.path());
    assert_eq!(store.get("/secrets", "ns", "a").unwrap().value()["spec"], "s");
    store.close().await;
}

#[tokio::test]
async fn a_sealed_record_stays_in_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.write(put("/secrets", "a", "s", Expect::Any, "of a")).await.unwrap();
    store.close().await;
    let record = value(folder.path(), "object:/secrets", b"a\0s");
    append(folder.path(), "object:/secrets", b"b\0s", &record);
    let store = open(folder.path());
    assert_eq!(store.unreadable(), [("/secrets".into(), "b".into(), "s".into())]);
    assert!(store.get("/secrets", "b", "s").is_none());
    store.close().await;
    // Not one by one: all of them would be like this by another key.
    for number in 0..64 {
        append(folder.path(), "object:/secrets", format!("b\0s{number}").as_bytes(), &record);
    }
    let refused = refusal(options(folder.path()));
    assert!(refused.contains("cannot be read: it cannot be unsealed"), "{refused}");
}

#[tokio::test]
async fn a_second_store_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let reason = refusal(options(folder.path()));
    assert!(reason.contains("another slipway runs on"), "{reason}");
    store.write(put(HOSTS, "ns", "a", Expect::Any, 1)).await.unwrap();
    store.close().await;
    // A foreign program that has only the data file open.
    let data = fs::File::open(folder.path().join("db/generation-1/journal/db")).unwrap();
    data.lock().unwrap();
    let reason = refusal(options(folder.path()));
    assert!(reason.contains("another slipway runs on"), "{reason}");
    drop(data);
    open(folder.path()).close().await;
}

#[tokio::test]
async fn opening_repairs_what_a_crash_left() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("db/generation-1/journal");
    let snapshots = || -> Vec<String> {
        let names = fs::read_dir(&database).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("snap.")).collect()
    };
    let store = open(folder.path());
    store.write(put(HOSTS, "ns", "a", Expect::Any, 1)).await.unwrap();
    store.close().await;
    let check = async || {
        let store = open(folder.path());
        assert_eq!(store.get(HOSTS, "ns", "a").unwrap().value()["spec"], 1);
        assert_eq!(store.revision(), 1);
        store.close().await;
    };
    check().await;
    assert!(!snapshots().is_empty());

    fs::write(database.join("snap.FFFFFFFFFFFFFFFF.generating"), "").unwrap();
    check().await;
    assert!(!database.join("snap.FFFFFFFFFFFFFFFF.generating").exists());

    let torn = database.join(&snapshots()[0]);
    let text = fs::read(&torn).unwrap();
    for length in [0, 5, text.len() - 1] {
        fs::write(database.join("snap.7FFFFFFFFFFFFFFF"), &text[..length]).unwrap();
        check().await;
        assert!(database.join("damaged.snap.7FFFFFFFFFFFFFFF").exists());
    }

    let conf = fs::read(database.join("conf")).unwrap();
    for length in 0..conf.len() {
        fs::write(database.join("conf"), &conf[..length]).unwrap();
        check().await;
    }
    for at in 0..conf.len() {
        let mut damaged = conf.clone();
        damaged[at] ^= 2;
        fs::write(database.join("conf"), &damaged).unwrap();
        check().await;
    }
}

#[tokio::test]
async fn damage_and_foreign_formats_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.write(put(HOSTS, "ns", "a", Expect::Any, 1)).await.unwrap();
    store.write(put(HOSTS, "ns", "a", Expect::Any, 2)).await.unwrap();
    store.close().await;
    let host = "object:metal3.io/baremetalhosts";
    for (tree, key, damaged, reason) in [
        (META, &b"revision"[..], &b"x"[..], "its revision is not a number"),
        (
            host,
            b"ns\0a",
            b"\x09\0\0\0\0\0\0\0\x01{}",
            "metal3.io/baremetalhosts ns/a cannot be read: it has the unknown format 9",
        ),
    ] {
        let old = value(folder.path(), tree, key);
        append(folder.path(), tree, key, damaged);
        let refused = refusal(options(folder.path()));
        assert!(refused.contains(reason), "{refused}");
        append(folder.path(), tree, key, &old);
    }
    // An object that makes no sense, and one of its events, cost what they are and the history.
    let second = 2_u64.to_be_bytes();
    let cases: [(&str, &[u8], &[u8]); 5] = [
        (host, b"ns\0a", b""),
        (host, b"ns\0a", b"\x01\0\0\0\0\0\0\0\x01{"),
        ("log", &second, b"\x01\xff"),
        ("log", &second, b"\x01\0\0\0\0\0\0\0\x02\0\x04r\0n\0"),
        ("log", &second, b"\x07\0\0\0\0\0\0\0\x02\0\x04r\0n\0"),
    ];
    for (tree, key, damaged) in cases {
        let old = value(folder.path(), tree, key);
        append(folder.path(), tree, key, damaged);
        let store = open(folder.path());
        let is_object = tree == host;
        assert_eq!(
            (store.unreadable().len(), store.list(HOSTS, None).objects.len()),
            if is_object { (1, 0) } else { (0, 1) }
        );
        assert!(store.revision() >= 2 && store.watch(HOSTS, 0).is_err() && store.watch(HOSTS, 1).is_err());
        assert!(store.watch(HOSTS, store.revision()).is_ok());
        store.close().await;
        append(folder.path(), tree, key, &old);
    }
    assert!(open(folder.path()).watch(HOSTS, 0).is_ok());
    open(folder.path()).close().await;
    fs::write(folder.path().join("file"), "").unwrap();
    let refused = refusal(StoreOptions { path: folder.path().join("file"), ..options(folder.path()) });
    assert!(refused.contains("cannot make the folder"), "{refused}");
}

/// As versions before the tally left it: sled's files in the folder itself, values as they are, large ones in files of their own.
#[tokio::test]
async fn a_database_of_the_old_layout_is_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let record = |revision: u64, spec: &str| {
        let text = json!({"metadata": {"namespace": "ns", "name": "a", "resourceVersion": revision.to_string()}, "spec": spec});
        [&[1], &revision.to_be_bytes()[..], text.to_string().as_bytes()].concat()
    };
    let event = |kind: u8, revision: u64, former: &[u8]| {
        let place = format!("{HOSTS}\0ns\0a");
        let length = u16::try_from(place.len()).unwrap().to_be_bytes();
        [&[kind], &revision.to_be_bytes()[..], &length, place.as_bytes(), former].concat()
    };
    let large = "x".repeat(300_000);
    let database = folder.path().join("db");
    let db = sled::open(&database).unwrap();
    let put = |tree: &str, key: &[u8], value: &[u8]| drop(db.open_tree(tree).unwrap().insert(key, value).unwrap());
    put("meta", b"format", &1_u64.to_be_bytes());
    put("meta", b"revision", &2_u64.to_be_bytes());
    put(&format!("object:{HOSTS}"), b"ns\0a", &record(2, &large));
    put("log", &0_u64.to_be_bytes(), &event(0, 1, b""));
    put("log", &1_u64.to_be_bytes(), &event(1, 2, &record(1, "first")));
    put("table:leases", b"k", b"v");
    db.flush().unwrap();
    drop(db);
    assert!(fs::read_dir(database.join("blobs")).unwrap().count() > 0, "the large one is in a file of its own");

    for _ in 0..2 {
        let store = open(folder.path());
        assert_eq!(store.get(HOSTS, "ns", "a").unwrap().value()["spec"], large);
        assert_eq!(store.revision(), 2);
        let events = lines(&mut store.watch(HOSTS, 0).unwrap(), 2).await;
        assert_eq!(events, ["added a@1 \"first\"".to_owned(), format!("modified a@2 \"{large}\" was a@1 \"first\"")]);
        let leases = store.table("leases").unwrap().scan();
        assert_eq!(leases, [(Bytes::from_static(b"k"), Bytes::from_static(b"v"))]);
        store.close().await;
        assert!(!database.join("db").exists() && !database.join("blobs").exists() && !database.join("conf").exists());
    }
}

#[tokio::test]
async fn a_database_that_is_gone_is_not_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.write(put(HOSTS, "ns", "a", Expect::Any, 1)).await.unwrap();
    store.close().await;
    fs::remove_dir_all(folder.path().join("db")).unwrap();
    for _ in 0..2 {
        let refused = refusal(options(folder.path()));
        assert!(refused.contains("the database is gone") && refused.contains("restore a backup"), "{refused}");
    }
    // As the message says.
    fs::remove_file(folder.path().join("store.key")).unwrap();
    assert_eq!(open(folder.path()).revision(), 0);
}
