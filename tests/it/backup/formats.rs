//! Backups of every format, and the standard tools for them.

use super::*;

#[tokio::test]
async fn the_standard_tools_read_ours_and_we_read_theirs() {
    if !needs::program("age") || !needs::program("age-keygen") || !needs::program("zstd") {
        return;
    }
    let place = Place::new();
    let shell = async |script: &str| {
        let mut shell = tokio::process::Command::new("/bin/sh");
        let output = shell.arg("-ec").arg(script).current_dir(place.path(".")).output().await.unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    new_key(&place).await;
    shell("age-keygen -o theirs.key").await;
    let theirs = shell("age-keygen -y theirs.key").await;
    let ours = shell(&format!("age-keygen -y {KEY}")).await;
    let served = place.serve().await;
    place.run(&["backup", "--recipient", theirs.trim(), "--key-file", KEY, "b.age"]).await.good();
    served.stop().await;
    let text = shell("age -d -i theirs.key b.age | zstd -d").await;
    assert!(text.starts_with("{\"slipwayBackup\":1,") && text.ends_with("}}\n"));
    assert_eq!(shell(&format!("age -d -i {KEY} b.age | zstd -d")).await, text);
    std::fs::write(place.path("text"), &text).unwrap();
    shell(&format!("zstd -19 -c text | age -r {} > of-age", ours.trim())).await;
    for file in ["of-age", "text"] {
        place.run(&["restore", "--check", "--key-file", KEY, file]).await.good();
    }
    shell(&format!("age -a -r {} text > armored", ours.trim())).await;
    place.run(&["restore", "--check", "--key-file", KEY, "armored"]).await.failed(1, "armored");
}

/// Backups of released formats, each with what was in it. A new format gets a new file; none is ever changed.
#[tokio::test]
async fn a_backup_of_every_format_is_restored() {
    let key = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/backups/throwaway.key");
    let mut formats = 0;
    for format in 1.. {
        let file = format!("{}/tests/backups/format-{format}.jsonl.zst.age", env!("CARGO_MANIFEST_DIR"));
        if !Path::new(&file).exists() {
            break;
        }
        formats += 1;
        let there = Place::new();
        let ran = there.run(&["restore", "--key-file", key, &file]).await.good();
        assert!(ran.out.contains("host(s) are paused"), "{ran:?}");
        there.run(&["backup", "--offline", "--unencrypted", "again"]).await.good();
        let (_, lines) = there.lines("again", None);
        let lease = lines.iter().find(|line| line.starts_with("entry leases")).unwrap();
        assert_eq!(
            lease,
            &format!(
                "entry leases {:?} {:?}",
                Bytes::from_static(&[10, 0, 0, 9]),
                Bytes::from_static(b"\0a lease\xff")
            )
        );
        let served = there.serve().await;
        let client = there.client().await;
        let secret = Api::<Secret>::default_namespaced(client.clone()).get("bmc").await.unwrap();
        assert_eq!(secret.data.unwrap()["password"].0, b"the password of the BMC");
        let host = Api::<BareMetalHost>::default_namespaced(client.clone()).get("h-1").await.unwrap();
        assert_eq!(host.uid().as_deref(), Some(UID));
        assert!(host.finalizers().contains(&"example.org/kept".to_owned()));
        assert_eq!(shelves(&client).get("top").await.unwrap().data["books"], json!([1, 2]));
        let ca = std::fs::read(there.data().join("pki/ca.crt")).unwrap();
        assert_eq!(ca, std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/backups/ca.crt")).unwrap());
        served.stop().await;
    }
    assert_eq!(formats, slipway::backup::format::FORMAT, "each format has its backup in tests/backups");
}

/// UID of the host h-1 in every backup of `tests/backups`.
const UID: &str = "b4bd07f8-7053-4811-b841-c20317d263d1";

/// Makes the backup of `tests/backups` for a new format: `cargo test --test it -- --ignored make_a_fixture`, with the
/// folder in `FIXTURES`. Its keys are of a box that never was.
#[tokio::test]
#[ignore = "makes files"]
async fn make_a_fixture() {
    let Some(folder) = std::env::var_os("FIXTURES").map(std::path::PathBuf::from) else { return };
    let place = Place::new();
    let recipient = new_key(&place).await;
    place.serve().await.stop().await;
    put_lease(&place).await;
    let served = place.serve().await;
    let client = place.client().await;
    furnish(&client).await;
    println!("UID: {:?}", Api::<BareMetalHost>::default_namespaced(client).get("h-1").await.unwrap().uid());
    let name = format!("format-{}.jsonl.zst.age", slipway::backup::format::FORMAT);
    place.run(&["backup", "--recipient", &recipient, &name]).await.good();
    served.stop().await;
    for (from, to) in [
        (place.path(&name), name),
        (place.path(KEY), "throwaway.key".into()),
        (place.data().join("pki/ca.crt"), "ca.crt".into()),
    ] {
        std::fs::copy(from, folder.join(to)).unwrap();
    }
}
