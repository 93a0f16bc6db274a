//! Tests of the text of a backup.

use super::*;

fn object(resource: &str, name: &str, revision: u64) -> Object {
    let json = serde_json::json!({"kind": "X", "metadata": {"name": name, "resourceVersion": revision.to_string()},
        "text": "a \"quoted\" line\nand ü"});
    Object::new(resource.into(), "n".into(), name.into(), revision, json.to_string().as_bytes()).unwrap()
}

fn header() -> Header {
    let time = "2026-11-22T07:00:00Z".parse().unwrap();
    let (made_by, ca) = ("0.1.0".into(), "00".repeat(32));
    Header { slipway_backup: FORMAT, made_by, time, ca, revision: 9, objects: 2, entries: 1, files: 1 }
}

fn backup(header: &Header) -> Vec<u8> {
    let mut writer = BackupWriter::new(Vec::new(), header).unwrap();
    writer.object(&object("/configmaps", "a", 3)).unwrap();
    writer.object(&object("/secrets", "a", 9)).unwrap();
    writer.entry("leases", &[0, 255], b"\n").unwrap();
    writer.file("pki/ca.crt", "a\nb\n").unwrap();
    writer.finish().unwrap()
}

/// What comes of a text: every item in words, or why it is refused.
fn reading(text: &[u8]) -> Result<Vec<String>, String> {
    let mut items = Vec::new();
    let done = read(text, |_, item| {
        items.push(match item {
            BackupItem::Object(object) => format!("{} {} {:?}", object.resource, object.revision, object.json()),
            BackupItem::Entry { table, key, value } => format!("{table} {key:?} {value:?}"),
            BackupItem::File { name, text } => format!("{name} {text:?}"),
        });
        Ok(())
    });
    done.map(|_| items).map_err(|error| error.to_string())
}

#[test]
fn what_is_written_is_read() {
    let items = reading(&backup(&header())).unwrap();
    let secret = object("/secrets", "a", 9);
    assert_eq!(items[1], format!("/secrets 9 {:?}", secret.json()));
    assert_eq!(items[2..], ["leases b\"\\0\\xff\" b\"\\n\"", "pki/ca.crt \"a\\nb\\n\""]);
}

#[test]
fn every_cut_and_every_changed_bit_is_noticed() {
    let whole = backup(&header());
    for length in 0..whole.len() {
        assert!(reading(&whole[..length]).is_err(), "cut to {length}");
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut text = whole.clone();
            text[at] ^= 1 << bit;
            assert!(reading(&text).is_err(), "bit {bit} of byte {at}");
        }
    }
    assert!(reading(&[&whole[..], b"\n"].concat()).unwrap_err().contains("follows"));
}

#[test]
fn what_no_store_can_have_had_is_refused() {
    let with = |change: &dyn Fn(&mut BackupWriter<Vec<u8>>) -> io::Result<()>, objects, entries, files| {
        let mut writer = BackupWriter::new(Vec::new(), &Header { objects, entries, files, ..header() }).unwrap();
        change(&mut writer).unwrap();
        reading(&writer.finish().unwrap()).unwrap_err()
    };
    let twice = with(&|writer| writer.object(&object("/a", "a", 1)).and(writer.object(&object("/a", "a", 1))), 2, 0, 0);
    assert!(twice.contains("out of order"), "{twice}");
    let late = with(&|writer| writer.object(&object("/a", "a", 10)), 1, 0, 0);
    assert!(late.contains("never given"), "{late}");
    for name in ["../x", "/etc/passwd", "pki/admin.key"] {
        let file = with(&|writer| writer.file(name, ""), 0, 0, 1);
        assert!(file.contains("no backup holds"), "{file}");
    }
    let long = with(&|writer| writer.entry("t", &[0; 2000], b""), 0, 1, 0);
    assert!(long.contains("too long"), "{long}");
    let counts = with(&|_| Ok(()), 1, 0, 0);
    assert!(counts.contains("not those that were written"), "{counts}");
}

#[test]
fn other_files_and_newer_formats_say_so() {
    for text in [&b""[..], b"\n", b"{}\n", b"junk\n", &[0xff; 100], &[b' '; LINE_MAX + 10]] {
        assert!(reading(text).is_err());
    }
    let newer = reading(b"{\"slipwayBackup\":2,\"madeBy\":\"3.4.5\",\"more\":1}\n").unwrap_err();
    assert!(newer.contains("format 2, made by slipway 3.4.5"), "{newer}");
}
