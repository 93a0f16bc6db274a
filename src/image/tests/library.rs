//! What stays, what goes, and what a restart finds.

use std::collections::HashSet;
use std::fs;
use std::sync::{Arc, Mutex};

use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;

use super::super::serve::{serve_chunk, serve_manifest};
use super::server::{Server, whole};
use super::*;

async fn two_images(folder: &Path, library: &Library) -> [Imported; 2] {
    let (first, mut second) = (disk(6, 7), disk(6, 7));
    second[5 * MIB..].fill(5);
    let mut made = Vec::new();
    for (name, content) in [("a", first), ("b", second)] {
        let path = folder.join(name);
        fs::write(&path, content).expect("written");
        made.push(import(library, &spec(file_url(&path))).await.expect("imported"));
    }
    made.try_into().expect("two")
}

#[tokio::test]
async fn equal_chunks_are_stored_once_and_go_with_their_last_image() {
    let (folder, library) = library();
    let [a, b] = two_images(folder.path(), &library).await;
    let chunks = folder.path().join("images/chunks");
    let names = |digest: &str| -> HashSet<String> {
        library.manifest(digest).expect("manifest").chunks.iter().map(|c| c.sha256.clone()).collect()
    };
    let (in_a, in_b) = (names(&a.digest), names(&b.digest));
    assert!(in_a.intersection(&in_b).count() > 0);
    assert_eq!(files(&chunks), in_a.union(&in_b).count());
    // Importing again changes nothing.
    let again = import(&library, &spec(file_url(&folder.path().join("a")))).await.expect("imported");
    assert_eq!((again, files(&chunks)), (a.clone(), in_a.union(&in_b).count()));
    assert!(library.remove(&a.digest).expect("removed") && !library.remove(&a.digest).expect("gone"));
    assert_eq!(files(&chunks), in_b.len());
    assert!(library.manifest(&a.digest).is_none() && library.holds(&b.digest).expect("looked at"));
    let named = HashSet::from([b.digest.clone()]);
    // What came lately may be named soon.
    for (keep, settled) in [(named, Duration::ZERO), (HashSet::new(), Duration::from_secs(3600))] {
        let kept = library.collect(&keep, settled).expect("collected");
        assert_eq!(kept, super::super::GarbageCollected::default());
    }
    let gone = library.collect(&HashSet::new(), Duration::ZERO).expect("collected");
    assert_eq!((gone.images, gone.chunks, gone.bytes), (1, in_b.len(), b.stored_size));
    assert_eq!(files(&folder.path().join("images")), 0);
}

#[tokio::test]
async fn a_chunk_that_is_not_what_was_written_is_given_to_nobody_and_written_again() {
    let (folder, library) = library();
    let [a, _] = two_images(folder.path(), &library).await;
    let chunk = library.manifest(&a.digest).expect("manifest").chunks[0].clone();
    let file = folder.path().join("images/chunks").join(&chunk.sha256[..2]).join(&chunk.sha256);
    let whole = fs::read(&file).expect("there");
    let flip = || {
        let mut bytes = whole.clone();
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        fs::write(&file, bytes).expect("written");
    };
    flip();
    let error = library.unpacked(&chunk).expect_err("it is damaged").to_string();
    assert!(error.contains("it is not what was written") && !file.exists(), "{error}");
    assert!(!library.holds(&a.digest).expect("looked at"));
    // Nobody has read it since: an import of the same content sees it.
    flip();
    let again = folder.path().join("again");
    fs::write(&again, disk(6, 7)).expect("written");
    import(&library, &spec(file_url(&again))).await.expect("imported");
    assert_eq!(fs::read(&file).expect("there"), whole);
    assert!(library.unpacked(&chunk).is_ok() && library.holds(&a.digest).expect("looked at"));
}

/// Whoever reads a damaged chunk removes it while an import writes it again.
#[tokio::test]
async fn a_chunk_that_was_written_again_is_not_removed_for_the_one_before() {
    let (folder, library) = library();
    let [a, _] = two_images(folder.path(), &library).await;
    let mut chunk = library.manifest(&a.digest).expect("manifest").chunks[0].clone();
    // A large one: hashing what is read takes as long as writing it.
    let whole: Vec<u8> = (0..1u32 << 18).flat_map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let name: [u8; 32] = Sha256::digest(&whole).into();
    library.inner.store(&name, &whole).expect("stored");
    chunk.sha256 = hex(&name);
    let file = folder.path().join("images/chunks").join(&chunk.sha256[..2]).join(&chunk.sha256);
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for round in 0..200 {
        fs::write(&file, &flipped).expect("written");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // At another moment of the reading each time.
                std::thread::sleep(Duration::from_micros(round * 50));
                library.inner.store(&name, &whole).expect("stored");
            });
            scope.spawn(|| library.inner.unpacked(&chunk).ok());
        });
        assert!(fs::read(&file).is_ok_and(|there| there == whole), "round {round}");
    }
}

#[tokio::test]
async fn a_restart_finds_whole_images_and_removes_what_is_not() {
    let (folder, library) = library();
    let images = folder.path().join("images");
    let [a, b] = two_images(folder.path(), &library).await;
    let before = library.manifest(&a.digest).expect("manifest");
    drop(library);
    // What a kill in the middle of an import leaves.
    fs::write(images.join("tmp/7"), "half").expect("written");
    let orphan = images.join("chunks/ab").join("ab".repeat(32));
    fs::create_dir_all(orphan.parent().expect("folder")).expect("folder");
    fs::write(&orphan, "cut").expect("written");
    fs::write(images.join("manifests").join(format!("{}.json", "0".repeat(64))), "{}").expect("written");
    let reopened = Library::open(images.clone(), Sources::of_tests()).expect("opened");
    assert_eq!(reopened.list(), {
        let mut all = vec![a.clone(), b.clone()];
        all.sort_by(|x, y| x.digest.cmp(&y.digest));
        all
    });
    assert_eq!(reopened.manifest(&a.digest), Some(before.clone()));
    assert!(!orphan.exists() && files(&images.join("tmp")) == 0);
    assert_eq!(files(&images.join("manifests")), 2);
    // A chunk that only b has goes missing; then b is not there, and comes back by another import.
    let shared: HashSet<_> = before.chunks.iter().map(|c| c.sha256.clone()).collect();
    let manifest = reopened.manifest(&b.digest).expect("manifest");
    let lost = manifest.chunks.iter().find(|c| !shared.contains(&c.sha256)).expect("own chunk");
    let lost = reopened.chunk_file(&lost.sha256).expect("file");
    fs::write(&lost, "cut short").expect("written");
    assert!(!reopened.holds(&b.digest).expect("looked at") && reopened.holds(&a.digest).expect("looked at"));
    assert_eq!(import(&reopened, &spec(file_url(&folder.path().join("b")))).await.expect("imported"), b);
    assert!(reopened.holds(&b.digest).expect("looked at"), "a chunk cut short is written again");
    fs::remove_file(&lost).expect("removed");
    drop(reopened);
    let reopened = Library::open(images, Sources::of_tests()).expect("opened");
    assert_eq!(reopened.list(), [a]);
    for name in ["", "..", "../tmp", "/etc/passwd", &"G".repeat(64), &"A".repeat(64), &"é".repeat(32)] {
        assert!(reopened.chunk_file(name).is_none() && reopened.manifest(name).is_none(), "{name}");
    }
}

#[tokio::test]
async fn who_serves_waits_for_no_work_on_files_and_a_manifest_is_in_memory_once() {
    let (folder, library) = library();
    let [a, b] = two_images(folder.path(), &library).await;
    let chunk = library.manifest(&a.digest).expect("manifest").chunks[0].sha256.clone();
    // A slow disk: somebody puts files in place.
    let files = library.inner.lock_files();
    let (said, heard) = std::sync::mpsc::channel();
    let reader = library.clone();
    std::thread::spawn(move || {
        let found = reader.chunk_file(&chunk).is_some() && reader.manifest_file(&b.digest).is_some();
        said.send(found && reader.manifest(&b.digest).is_some())
    });
    assert_eq!(heard.recv_timeout(Duration::from_secs(120)), Ok(true));
    drop(files);
    let held = library.manifest(&a.digest).expect("manifest");
    for number in 1..=5_u8 {
        let path = folder.path().join("small");
        fs::write(&path, [number; 512]).expect("written");
        let small = import(&library, &spec(file_url(&path))).await.expect("imported");
        assert!(library.manifest(&small.digest).is_some());
    }
    assert!(Arc::ptr_eq(&held, &library.manifest(&a.digest).expect("manifest")));
    assert!(library.remove(&a.digest).expect("removed") && library.manifest(&a.digest).is_none());
}

#[tokio::test]
async fn a_dropped_import_leaves_nothing_and_progress_ends_at_the_whole() {
    let (folder, library) = library();
    let content = disk(4, 8);
    let length = content.len();
    let server = Server::start(move |number, _| match number {
        0 => whole(&content, "ETag: \"x\"\r\n").cut(3 * MIB).stalled(),
        _ => whole(&content, ""),
    })
    .await;
    let spec = spec(format!("{}/disk", server.url));
    let started = import_until_chunks(&library, &spec, &folder.path().join("images/chunks")).await;
    assert!(started, "some chunks were stored before the import was dropped");
    let gone = || files(&folder.path().join("images")) == 0;
    tokio::time::timeout(Duration::from_secs(120), async {
        while !gone() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("nothing is left");
    let said = Arc::new(Mutex::new(Vec::new()));
    let sink = said.clone();
    library.import(&spec, move |p| sink.lock().expect("lock").push(p)).await.expect("imported");
    let said = said.lock().expect("lock");
    assert!(said.windows(2).all(|w| w[0].read <= w[1].read));
    let last = said.last().expect("progress");
    assert_eq!((last.read, last.total), (length as u64, Some(length as u64)));
}

async fn import_until_chunks(library: &Library, spec: &ImageSpec, chunks: &Path) -> bool {
    let some = async {
        while files(chunks) == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::select! {
        _ = library.import(spec, |_| {}) => false,
        () = some => true,
    }
}

#[tokio::test]
async fn chunks_and_manifests_are_served_under_their_names() {
    let (folder, library) = library();
    let [a, _] = two_images(folder.path(), &library).await;
    let none = HeaderMap::new();
    let answer = serve_manifest(&library, &a.digest, &none).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["content-type"], "application/json");
    let body = answer.into_body().collect().await.expect("body").to_bytes();
    assert_eq!(sha256(&body), a.digest, "the digest is of the bytes that are served");
    let manifest: crate::protocol::ImageManifest = serde_json::from_slice(&body).expect("manifest");
    let name = &manifest.chunks[0].sha256;
    let answer = serve_chunk(&library, name, &none).await;
    assert_eq!(answer.headers()["etag"], format!("\"{name}\""));
    assert!(answer.headers()["cache-control"].to_str().expect("text").contains("immutable"));
    assert_eq!(answer.headers()["content-length"], manifest.chunks[0].stored.to_string());
    let body = answer.into_body().collect().await.expect("body").to_bytes();
    assert_eq!(sha256(&body), *name);
    let known =
        HeaderMap::from_iter([(http::header::IF_NONE_MATCH, format!("\"x\", \"{name}\"").parse().expect("value"))]);
    assert_eq!(serve_chunk(&library, name, &known).await.status(), StatusCode::NOT_MODIFIED);
    for bad in [&"0".repeat(64), "../../etc/passwd", ""] {
        assert_eq!(serve_chunk(&library, bad, &known).await.status(), StatusCode::NOT_FOUND);
        assert_eq!(serve_manifest(&library, bad, &none).await.status(), StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn a_damaged_chunk_is_served_to_nobody_and_its_image_is_lost() {
    let (folder, library) = library();
    let [a, _] = two_images(folder.path(), &library).await;
    let name = library.manifest(&a.digest).expect("manifest").chunks[0].sha256.clone();
    let path = library.chunk_file(&name).expect("chunk");
    let mut content = std::fs::read(&path).expect("a file");
    let middle = content.len() / 2;
    content[middle] ^= 1;
    std::fs::write(&path, &content).expect("written");
    assert!(library.holds(&a.digest).expect("looked at"), "its length is right");
    assert_eq!(serve_chunk(&library, &name, &HeaderMap::new()).await.status(), StatusCode::NOT_FOUND);
    assert!(!library.holds(&a.digest).expect("looked at"));
}

/// A link that leads to itself in the place of a file: it is there, and nobody can read it. What was there.
fn unreadable(path: &Path) -> Vec<u8> {
    let content = std::fs::read(path).expect("a file");
    std::fs::remove_file(path).expect("removed");
    std::os::unix::fs::symlink(path, path).expect("a link");
    content
}

fn readable(path: &Path, content: &[u8]) {
    std::fs::remove_file(path).expect("removed");
    std::fs::write(path, content).expect("written");
}

#[tokio::test]
async fn what_cannot_be_read_for_a_moment_is_not_taken_for_gone() {
    let (folder, library) = library();
    let [a, b] = two_images(folder.path(), &library).await;
    let before = assemble(&library, &a.digest);
    let chunk = library.chunk_file(&library.manifest(&a.digest).expect("manifest").chunks[0].sha256).expect("chunk");
    let content = unreadable(&chunk);
    library.holds(&a.digest).expect_err("nobody can say");
    readable(&chunk, &content);
    assert!(library.holds(&a.digest).expect("looked at"));
    std::fs::remove_file(&chunk).expect("removed");
    assert!(!library.holds(&a.digest).expect("looked at"));
    std::fs::write(&chunk, b"other").expect("written");
    assert!(!library.holds(&a.digest).expect("looked at"));
    std::fs::write(&chunk, &content).expect("written");
    drop(library);
    // At the start nothing is removed that may be of an image whose manifest cannot be read.
    let images = folder.path().join("images");
    let chunks = files(&images.join("chunks"));
    let path = images.join("manifests").join(format!("{}.json", a.digest));
    let manifest = unreadable(&path);
    let library = Library::open(images.clone(), Sources::of_tests()).expect("opened");
    assert_eq!(files(&images.join("chunks")), chunks);
    assert!(library.holds(&b.digest).expect("looked at"));
    library.holds(&a.digest).expect_err("nobody can say");
    assert!(library.manifest(&a.digest).is_none());
    readable(&path, &manifest);
    assert!(library.holds(&a.digest).expect("looked at"));
    assert!(assemble(&library, &a.digest) == before);
    assert_eq!(library.list().len(), 2);
    // Its chunks count again, and go with it.
    assert!(library.remove(&a.digest).expect("removed") && library.remove(&b.digest).expect("removed"));
    assert_eq!(files(&images.join("chunks")), 0);
    // What was damaged meanwhile is gone.
    let [a, _] = two_images(folder.path(), &library).await;
    drop(library);
    unreadable(&path);
    let library = Library::open(images, Sources::of_tests()).expect("opened");
    readable(&path, b"{}");
    assert!(!library.holds(&a.digest).expect("looked at"));
    assert!(library.find(&a.digest).expect("looked at").is_none());
}
