//! Tests of layouts, good and hostile, and of what Docker saved before.

use std::cell::Cell;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::super::{ArchivedFile, images, packages};
use super::*;
use crate::image::hex;

const MANIFEST: &str = MANIFESTS[0];
const LIST: &str = INDEXES[0];
const NAME: &str = "io.containerd.image.name";
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// An archive in memory.
#[derive(Default)]
struct Archive {
    members: ArchiveMembers,
    content: Vec<u8>,
}

fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(content)))
}

impl Archive {
    fn file(&mut self, path: &str, content: &[u8]) -> &mut Self {
        let head = content.iter().take(4).copied().collect();
        let (offset, size) = (self.content.len() as u64, content.len() as u64);
        let member = ArchiveMember { offset, size, sha256: hex(&Sha256::digest(content)), head };
        self.members.files.insert(path.to_owned(), member);
        self.content.extend_from_slice(content);
        self.members.end = self.content.len() as u64;
        self
    }

    /// A blob; what names it.
    fn blob(&mut self, kind: &str, content: impl AsRef<[u8]>) -> Value {
        let content = content.as_ref();
        let digest = digest(content);
        self.file(&digest.replace("sha256:", BLOBS), content);
        json!({ "mediaType": kind, "digest": digest, "size": content.len() })
    }

    /// A manifest of a config and layers of these contents.
    fn image(&mut self, config: &str, layers: &[&str]) -> Value {
        let config = self.blob("application/vnd.oci.image.config.v1+json", config);
        let layers: Vec<_> =
            layers.iter().map(|layer| self.blob("application/vnd.oci.image.layer.v1.tar", layer)).collect();
        let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers });
        self.blob(MANIFEST, manifest.to_string())
    }

    fn list(&mut self, children: &[Value]) -> Value {
        self.blob(LIST, json!({ "schemaVersion": 2, "mediaType": LIST, "manifests": children }).to_string())
    }

    fn index(&mut self, roots: &[Value]) -> &mut Self {
        self.file(INDEX, json!({ "schemaVersion": 2, "manifests": roots }).to_string().as_bytes())
    }

    fn catalogue(&self) -> Result<Catalogued, String> {
        let read = |member: &ArchiveMember| {
            Ok(self.content[member.offset as usize..(member.offset + member.size) as usize].to_vec())
        };
        images(&self.members, &read).map_err(|unkept| match unkept {
            Unkept::Fault(fault) => fault.to_string(),
            Unkept::Unread(error) => error.to_string(),
        })
    }

    /// What it has: names with digests, and digests.
    fn found(&self) -> (Vec<(String, String)>, Vec<String>) {
        let catalogued = self.catalogue().expect("good");
        let content = [self.content.clone(), catalogued.made.concat()].concat();
        let Catalog::Oci { blobs, tags } = catalogued.catalog else { panic!("images") };
        for (name, blob) in &blobs {
            assert_eq!(*name, digest(&content[blob.offset as usize..(blob.offset + blob.size) as usize]));
        }
        let name = |tag: Tag| (format!("{}:{}", tag.repository, tag.tag.unwrap_or_default()), tag.digest);
        (tags.into_iter().map(name).collect(), blobs.into_keys().collect())
    }
}

fn named(mut descriptor: Value, annotations: Value) -> Value {
    descriptor["annotations"] = annotations;
    descriptor
}

fn digest_of(descriptor: &Value) -> String {
    descriptor["digest"].as_str().expect("a digest").to_owned()
}

#[test]
fn everything_that_the_index_leads_to_is_kept_and_nothing_else() {
    let mut archive = Archive::default();
    let (amd, arm) = (archive.image("amd64", &["base", "amd"]), archive.image("arm64", &["base", "arm"]));
    let missing = json!({ "mediaType": MANIFEST, "digest": digest(b"s390x"), "size": 9, "platform": { "architecture": "s390x" } });
    let list = archive.list(&[amd.clone(), arm.clone(), missing]);
    let single = archive.image("single", &["base"]);
    archive.blob("x", "nobody names this");
    archive.file("oci-layout", b"{}");
    archive.index(&[
        named(list.clone(), json!({ NAME: "registry.k8s.io/pause:3.10", REF_NAME: "3.10" })),
        named(single.clone(), json!({ REF_NAME: "docker.io/library/busybox:1" })),
        named(single.clone(), json!({ NAME: format!("ghcr.io/a/b@{}", digest_of(&single)) })),
        named(single.clone(), json!({ NAME: "quay.io/a/b:2" })),
    ]);
    let (names, digests) = archive.found();
    let single = digest_of(&single);
    assert_eq!(
        names,
        [
            ("a/b:".to_owned(), single.clone()),
            ("a/b:2".to_owned(), single.clone()),
            ("library/busybox:1".to_owned(), single),
            ("pause:3.10".to_owned(), digest_of(&list))
        ]
    );
    let mut wanted: Vec<String> =
        ["amd64", "arm64", "single", "base", "amd", "arm"].map(|content| digest(content.as_bytes())).into();
    wanted.extend([digest_of(&list), digest_of(&amd), digest_of(&arm), names[0].1.clone()]);
    wanted.sort();
    assert_eq!(digests, wanted);
}

#[test]
fn names_that_the_layout_lacks_are_dockers() {
    let mut archive = Archive::default();
    let image = archive.image("config", &["layer"]);
    let config = digest(b"config").replace("sha256:", BLOBS);
    archive.index(&[named(image.clone(), json!({ REF_NAME: "1.36" }))]);
    assert!(archive.catalogue().err().is_some_and(|reason| reason.contains("has no name in it")));
    archive.file(
        "manifest.json",
        json!([{ "Config": config, "RepoTags": ["busybox:1.36", "mine/box:1"] }]).to_string().as_bytes(),
    );
    let (names, _) = archive.found();
    let digest = digest_of(&image);
    assert_eq!(names, [("library/busybox:1.36".to_owned(), digest.clone()), ("mine/box:1".to_owned(), digest)]);
}

#[test]
fn names_that_the_layout_lacks_are_looked_for_within_bounds() {
    // A hundred images of one config, which has a hundred names beside the layout.
    let mut archive = Archive::default();
    let images: Vec<Value> = (0..100).map(|number| archive.image("config", &[&format!("layer {number}")])).collect();
    archive.index(&images);
    let config = digest(b"config").replace("sha256:", BLOBS);
    let names: Vec<String> = (0..100).map(|number| format!("a:{number}")).collect();
    archive.file("manifest.json", json!([{ "Config": config, "RepoTags": names }]).to_string().as_bytes());
    assert!(archive.catalogue().err().is_some_and(|reason| reason.contains("4096 names")));
    // A hundred indexes that lead to the same two thousand blobs; said again, each is looked at once.
    let layers: Vec<String> = (0..2000).map(|number| number.to_string()).collect();
    let image = archive.image("config", &layers.iter().map(String::as_str).collect::<Vec<_>>());
    let lists: Vec<Value> = (0..100)
        .map(|number| {
            let own = archive.image(&format!("config {number}"), &[]);
            archive.list(&[own, image.clone()])
        })
        .collect();
    archive.file("manifest.json", json!([{ "Config": config, "RepoTags": ["a:1"] }]).to_string().as_bytes());
    archive.index(&lists);
    assert!(archive.catalogue().err().is_some_and(|reason| reason.contains("without a name lead to more than 131072")));
    archive.index(&vec![lists[0].clone(); 100]);
    assert_eq!(archive.found().0, [("library/a:1".to_owned(), digest_of(&lists[0]))]);
}

#[test]
fn an_archive_of_an_old_docker_gets_manifests_of_its_own() {
    let mut archive = Archive::default();
    archive
        .file("c.json", b"config")
        .file("1/layer.tar", b"one")
        .file("2/layer.tar", b"\x1f\x8b two")
        .file("other", b"x");
    archive.file(
        "manifest.json",
        json!([
            { "Config": "c.json", "RepoTags": ["registry.k8s.io/etcd:3.6"], "Layers": ["1/layer.tar", "2/layer.tar"] },
            { "Config": "c.json", "RepoTags": ["registry.k8s.io/etcd:same"], "Layers": ["1/layer.tar", "2/layer.tar"] },
        ])
        .to_string()
        .as_bytes(),
    );
    let (names, digests) = archive.found();
    assert_eq!(names.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["etcd:3.6", "etcd:same"]);
    assert_eq!((&names[0].1, digests.len()), (&names[1].1, 4));
    let made = archive.catalogue().expect("good").made;
    let manifest: Value = serde_json::from_slice(&made[0]).expect("JSON");
    assert_eq!(made.len(), 1);
    assert_eq!(
        manifest["config"],
        json!({ "mediaType": "application/vnd.docker.container.image.v1+json", "size": 6, "digest": digest(b"config") })
    );
    let kinds: Vec<_> =
        manifest["layers"].as_array().expect("layers").iter().map(|layer| layer["mediaType"].clone()).collect();
    assert_eq!(
        kinds,
        ["application/vnd.docker.image.rootfs.diff.tar", "application/vnd.docker.image.rootfs.diff.tar.gzip"]
    );
    for (manifest, reason) in [
        (json!([{ "Config": "c.json", "RepoTags": null, "Layers": [] }]), "has no name in it"),
        (json!([{ "Config": "c.json", "RepoTags": ["UPPER:1"], "Layers": [] }]), "no name of an image"),
        (json!([{ "Config": "../etc/passwd", "RepoTags": ["a:1"], "Layers": [] }]), "named and not in it"),
        (json!([{ "Config": "c.json", "RepoTags": ["a:1"], "Layers": ["/etc/shadow"] }]), "named and not in it"),
        (json!([{ "Config": "c.json", "RepoTags": ["a:1"], "Layers": vec!["1/layer.tar"; 600] }]), "512 layers"),
        (json!([{ "Config": "c.json", "RepoTags": vec!["a:1"; 5000], "Layers": [] }]), "4096 names"),
        (json!(vec![json!({ "Config": "c.json", "RepoTags": ["a:1", "b:1"] }); 3000]), "4096 names"),
        (json!(vec![json!({ "Config": "c.json" }); 5000]), "4096 images"),
        // Of each a manifest of 100 KiB would be made.
        (
            json!(vec![json!({ "Config": "c.json", "RepoTags": ["a:1"], "Layers": vec!["other"; 500] }); 300]),
            "131072 layers",
        ),
        (
            json!([{ "Config": "c.json", "RepoTags": ["a:1"] }, { "Config": "1/layer.tar", "RepoTags": ["a:1"] }]),
            "two images",
        ),
        (json!([]), "no image in it"),
        (json!({}), "cannot be read"),
    ] {
        archive.file("manifest.json", manifest.to_string().as_bytes());
        let refused = archive.catalogue().err().expect(reason);
        assert!(refused.contains(reason), "{refused} is not: {reason}");
    }
}

#[test]
fn what_lies_or_is_not_whole_is_refused() {
    let pause = |descriptor: Value| named(descriptor, json!({ NAME: "registry.k8s.io/pause:1" }));
    type Make = fn(&mut Archive) -> Value;
    let rows: &[(&str, Make)] = &[
        ("another one", |a| {
            let image = a.image("c", &["l"]);
            a.file(&digest(b"l").replace("sha256:", BLOBS), b"L");
            image
        }),
        ("another one", |a| {
            let image = a.image("c", &["l"]);
            a.file(&digest_of(&image).replace("sha256:", BLOBS), b"{}");
            image
        }),
        ("named and not in it", |a| {
            let image = a.image("c", &["l"]);
            // As who wants to read a layer of another archive would.
            a.members.files.remove(&digest(b"l").replace("sha256:", BLOBS));
            image
        }),
        ("named and not in it", |_| json!({ "mediaType": MANIFEST, "digest": digest(b"?"), "size": 1 })),
        ("are said of it", |a| {
            let mut image = a.image("c", &["l"]);
            image["size"] = json!(7);
            image
        }),
        ("no digest by SHA-256", |a| {
            let mut image = a.image("c", &["l"]);
            image["digest"] = json!("sha256:../../../etc/passwd");
            image
        }),
        ("no digest by SHA-256", |a| {
            let layer = json!({ "mediaType": "x", "digest": format!("sha512:{}", "0".repeat(128)), "size": 1 });
            let config = a.blob("x", "c");
            a.blob(MANIFEST, json!({ "config": config, "layers": [layer] }).to_string())
        }),
        ("which is no image", |a| a.blob("text/html", "x")),
        ("which is no image", |a| a.blob("application/vnd.docker.distribution.manifest.v1+prettyjws", "{}")),
        ("is no manifest", |a| a.blob(MANIFEST, "no JSON")),
        ("names no config", |a| a.blob(MANIFEST, "{}")),
        ("says that it is another", |a| {
            let (config, image) = (a.blob("x", "c"), a.image("d", &[]));
            a.blob(MANIFEST, json!({ "config": config, "layers": [], "manifests": [image] }).to_string())
        }),
        ("says that it is another", |a| {
            let config = a.blob("x", "c");
            a.blob(MANIFEST, json!({ "mediaType": LIST, "config": config }).to_string())
        }),
        ("nothing is in it", |a| {
            let gone = json!({ "mediaType": MANIFEST, "digest": digest(b"?"), "size": 1 });
            a.list(&[gone])
        }),
        ("within each other", |a| {
            let mut list = a.image("c", &["l"]);
            for _ in 0..6 {
                list = a.list(&[list]);
            }
            list
        }),
        ("more than 4 MiB", |a| {
            let config = a.blob("x", "c");
            a.blob(MANIFEST, json!({ "config": config, "x": "y".repeat(5 << 20) }).to_string())
        }),
        ("names more than 4096", |a| {
            let config = a.blob("x", "c");
            a.blob(MANIFEST, json!({ "config": config, "layers": vec![config.clone(); 5000] }).to_string())
        }),
    ];
    for (reason, make) in rows {
        let mut archive = Archive::default();
        let root = make(&mut archive);
        archive.index(&[pause(root)]);
        let refused = archive.catalogue().err().expect(reason);
        assert!(refused.contains(reason), "{refused} is not: {reason}");
    }
}

#[test]
fn a_name_stands_for_one_image_and_one_kind_of_thing() {
    let mut archive = Archive::default();
    let (one, two) = (archive.image("1", &["l"]), archive.image("2", &["l"]));
    for (first, second, reason) in [
        ("registry.k8s.io/pause:1", "quay.io/pause:1", Some("pause:1 stands for two images")),
        ("registry.k8s.io/pause:1", "registry.k8s.io/pause:2", None),
        ("registry.k8s.io/pause:1", "registry.k8s.io/Pause:1", Some("no name of an image")),
    ] {
        let roots = [named(one.clone(), json!({ NAME: first })), named(two.clone(), json!({ NAME: second }))];
        archive.index(&roots);
        let refused = archive.catalogue().err();
        assert_eq!(refused.is_some(), reason.is_some(), "{refused:?}");
        assert!(reason.is_none_or(|reason| refused.unwrap_or_default().contains(reason)));
    }
    let mut other = one.clone();
    other["mediaType"] = json!(MANIFESTS[1]);
    archive.index(&[named(one.clone(), json!({ NAME: "q.io/a:1" })), named(other, json!({ NAME: "q.io/a:1" }))]);
    assert!(archive.catalogue().err().is_some_and(|reason| reason.contains("two kinds")));
    archive.index(&[]);
    assert!(archive.catalogue().err().is_some_and(|reason| reason.contains("no image in it")));
}

#[test]
fn what_is_no_layout_is_told_and_a_failure_to_read_is_passed_on() {
    let mut archive = Archive::default();
    archive.file("a/b", b"x");
    assert!(archive.catalogue().err().is_some_and(|reason| reason.contains("neither an index.json")));
    assert!(packages(&ArchiveMembers::default()).is_err_and(|reason| reason.to_string().contains("no file")));
    let Catalog::Packages { files } = packages(&archive.members).expect("files").catalog else { panic!("packages") };
    assert_eq!(files["a/b"], ArchivedFile { offset: 0, size: 1, sha256: hex(&Sha256::digest(b"x")) });
    archive.index(&[]);
    let asked = Cell::new(0);
    let read = |_: &ArchiveMember| {
        asked.set(asked.get() + 1);
        Err(crate::image::ImportError::passing("the disk"))
    };
    assert!(matches!(images(&archive.members, &read), Err(Unkept::Unread(error)) if error.retry));
    assert_eq!(asked.get(), 1);
}
