//! Imports of archives: what is stored of them, what is shared, and what is refused.

use std::fs;
use std::io::Read;

use serde_json::json;

use super::super::archive::Catalog;
use super::*;

/// A tar file of these files.
fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        tar.append_data(&mut header, name, *content).expect("a file");
    }
    tar.into_inner().expect("a tar file")
}

struct Rig {
    folder: tempfile::TempDir,
    library: Library,
}

impl Rig {
    fn new(sources: Sources) -> Self {
        let (folder, library) = library_of(sources);
        Self { folder, library }
    }

    async fn import(&self, format: Option<&str>, content: &[u8]) -> Result<Imported, ImportError> {
        let path = self.folder.path().join("archive");
        fs::write(&path, content).expect("written");
        let spec = ImageSpec { format: format.map(str::to_owned), ..spec(file_url(&path)) };
        import(&self.library, &spec).await
    }

    fn chunks(&self) -> usize {
        files(&self.folder.path().join("images/chunks"))
    }

    fn catalog(&self, digest: &str) -> Catalog {
        let manifest = self.library.manifest(digest).expect("it is there");
        self.library.catalog(&manifest).expect("it reads").expect("an archive")
    }

    /// The bytes of a file of it.
    fn file(&self, digest: &str, path: &str) -> Vec<u8> {
        let Catalog::Packages { files } = self.catalog(digest) else { panic!("packages") };
        let place = &files[path];
        let manifest = self.library.manifest(digest).expect("it is there");
        self.library.inner.part(&manifest.chunks, &(place.offset..place.offset + place.size)).expect("it reads")
    }
}

#[tokio::test]
async fn files_come_back_as_they_were_whatever_the_archive_is_packed_with() {
    let rig = Rig::new(Sources::of_tests());
    let large = disk(3, 1);
    let plain = tar(&[("a", b"one"), ("empty", b""), ("d/large", &large), ("zeros", &[0; 5000]), ("z", b"end")]);
    let zstd = zstd::encode_all(&plain[..], 3).expect("packed");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &plain).expect("packed");
    let first = rig.import(Some("packages"), &plain).await.expect("imported");
    for packed in [zstd, gzip.finish().expect("packed")] {
        assert_eq!(rig.import(Some("packages"), &packed).await.expect("imported"), first);
    }
    for (path, content) in
        [("a", &b"one"[..]), ("empty", b""), ("d/large", &large), ("zeros", &[0; 5000]), ("z", b"end")]
    {
        assert!(rig.file(&first.digest, path) == content, "{path}");
    }
    // It is there after a restart.
    let Rig { folder, library } = rig;
    drop(library);
    let library = Library::open(folder.path().join("images"), Sources::of_tests()).expect("opened");
    let rig = Rig { folder, library };
    assert!(rig.library.holds(&first.digest).expect("looked at"));
    assert!(rig.file(&first.digest, "d/large") == large);
}

#[tokio::test]
async fn a_file_that_two_archives_have_is_stored_once_and_goes_with_the_last() {
    let rig = Rig::new(Sources::of_tests());
    let shared: Vec<u8> = disk(2, 5).into_iter().map(|byte| byte | 1).collect();
    let one = rig.import(Some("packages"), &tar(&[("first", b"1"), ("shared", &shared)])).await.expect("imported");
    let before = rig.chunks();
    let two = rig.import(Some("packages"), &tar(&[("odd", &[7; 999]), ("x/shared", &shared)])).await.expect("imported");
    // What is its own: a small file and the catalog.
    assert_eq!(rig.chunks(), before + 2);
    assert!(rig.library.remove(&one.digest).expect("removed"));
    assert!(rig.file(&two.digest, "x/shared") == shared);
    assert!(rig.library.remove(&two.digest).expect("removed"));
    assert_eq!(rig.chunks(), 0);
}

#[tokio::test]
async fn of_a_layout_only_what_its_index_leads_to_is_kept() {
    let rig = Rig::new(Sources::of_tests());
    let blob = |content: &[u8]| format!("blobs/sha256/{}", sha256(content));
    let said = |kind: &str, content: &[u8]| json!({ "mediaType": kind, "digest": format!("sha256:{}", sha256(content)), "size": content.len() });
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let (config, layer, left) = (&b"config"[..], disk(2, 3), disk(4, 9));
    let manifest = json!({ "config": said("c", config), "layers": [said("l", &layer)] }).to_string().into_bytes();
    let mut root = said(kind, &manifest);
    root["annotations"] = json!({ "org.opencontainers.image.ref.name": "registry.k8s.io/pause:1" });
    let index = json!({ "manifests": [root] }).to_string();
    let all = tar(&[
        (&blob(&left), &left),
        (&blob(config), config),
        ("index.json", index.as_bytes()),
        (&blob(&layer), &layer),
        (&blob(&manifest), &manifest),
    ]);
    let imported = rig.import(Some("oci"), &all).await.expect("imported");
    let kept = rig.library.manifest(&imported.digest).expect("it is there");
    let of_left = 0..left.len() as u64;
    assert!(kept.chunks.iter().all(|chunk| !of_left.contains(&chunk.offset)));
    assert_eq!(rig.chunks(), kept.chunks.len());
    let Catalog::Oci { blobs, tags } = rig.catalog(&imported.digest) else { panic!("images") };
    assert_eq!((tags.len(), blobs.len()), (1, 3));
    for (content, blob) in [(config, 0), (&layer[..], 1), (&manifest[..], 2)]
        .map(|(content, _)| (content, &blobs[&format!("sha256:{}", sha256(content))]))
    {
        let read = rig.library.inner.part(&kept.chunks, &(blob.offset..blob.offset + blob.size)).expect("it reads");
        assert!(read == content);
    }
}

#[tokio::test]
async fn what_is_refused_leaves_nothing_behind() {
    let small = Sources { max_unpacked: 8 << 20, ..Sources::of_tests() };
    let rig = Rig::new(small);
    let bomb = zstd::encode_all(&tar(&[("zeros", &vec![0; 20 << 20])])[..], 3).expect("packed");
    let mut folders = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Directory);
    header.set_size(20 << 20);
    folders.append_data(&mut header, "d", std::io::repeat(0).take(20 << 20)).expect("a folder");
    let hidden = zstd::encode_all(&folders.into_inner().expect("a tar file")[..], 3).expect("packed");
    let cut = tar(&[("a", &disk(2, 1))]);
    let mut link = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    link.append_link(&mut header, "passwd", "/etc/passwd").expect("a link");
    let link =
        [tar(&[("a", &disk(1, 1))])[..(1 << 20) + 2048].to_vec(), link.into_inner().expect("a tar file")].concat();
    for (format, content, reason) in [
        (Some("packages"), &bomb[..], "image.max_unpacked_gib"),
        (Some("packages"), &hidden, "image.max_unpacked_gib"),
        (Some("packages"), &cut[..cut.len() / 2], "cut short"),
        (Some("packages"), &link, "a link out of the archive"),
        (Some("packages"), &tar(&[]), "it is no tar file"),
        (Some("oci"), &tar(&[("a", &disk(2, 1))]), "neither an index.json"),
        (Some("oci"), &disk(1, 1), "it is no tar file"),
        (None, &tar(&[("a", b"x")]), "say format oci"),
    ] {
        let error = rig.import(format, content).await.expect_err(reason);
        assert!(error.message.contains(reason) && !error.retry, "{error:?} is not: {reason}");
        assert_eq!((rig.chunks(), rig.library.list().len()), (0, 0), "{reason}");
    }
    // As a disk it is nobody's business what is in it.
    assert!(rig.import(Some("raw"), &tar(&[("a", b"x")])).await.is_ok());
}

#[tokio::test]
async fn an_archive_has_no_more_room_than_the_library() {
    let rig = Rig::new(Sources { max_library: 4 << 20, ..Sources::of_tests() });
    let mut noise = vec![0; 24 << 20];
    rand::fill(&mut noise[..]);
    let error = rig.import(Some("packages"), &tar(&[("a", &noise)])).await.expect_err("too large");
    assert!(error.lack.is_some() && error.retry, "{error:?}");
    assert_eq!(rig.chunks(), 0);
    let parts = Rig::new(Sources { max_chunks: 20, ..Sources::of_tests() });
    let names: Vec<String> = (0..200).map(|number| format!("f{number}")).collect();
    let many: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), name.as_bytes())).collect();
    let error = parts.import(Some("packages"), &tar(&many)).await.expect_err("too many parts");
    assert!(error.lack.is_some(), "{error:?}");
    assert_eq!(parts.chunks(), 0);
}
