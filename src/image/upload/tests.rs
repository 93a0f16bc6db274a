use futures::{StreamExt, stream};

use super::*;
use crate::image::Sources;
use crate::image::library::RESERVE;

const SUM: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn body(parts: &[&'static [u8]]) -> Body {
    Body::from_stream(stream::iter(
        parts.iter().map(|part| Ok::<_, io::Error>(Bytes::from_static(part))).collect::<Vec<_>>(),
    ))
}

fn library(folder: &std::path::Path, sources: Sources) -> Library {
    Library::open(folder.join("images"), sources).unwrap()
}

async fn send(library: &Library, uid: &str, offset: u64, body: Body) -> Result<ReceivedBytes, UploadRefused> {
    library.receive(uid, "somebody", UploadPiece { offset, ..UploadPiece::default() }, body).await
}

#[tokio::test]
async fn pieces_are_appended_where_the_last_one_ended_and_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    let library = library(folder.path(), Sources { max_unpacked: 1 << 20, ..Sources::of_tests() });
    let received = async || library.received("u1").await.unwrap();
    assert_eq!(received().await, ReceivedBytes { bytes: 0, whole: false });
    let took = send(&library, "u1", 0, body(&[b"ab", b"c"])).await.unwrap();
    assert_eq!((took, received().await), (ReceivedBytes { bytes: 3, whole: false }, took));
    for offset in [0, 2, 4] {
        let refused = send(&library, "u1", offset, body(&[b"x"])).await.unwrap_err();
        assert!(matches!(refused, UploadRefused::Offset(ReceivedBytes { bytes: 3, whole: false })), "{refused}");
    }
    // It breaks off in the middle: what came is there, and the sender is told where to go on.
    let cut = Body::from_stream(stream::iter([Ok(Bytes::from_static(b"de")), Err(io::Error::other("cut"))]));
    assert!(matches!(send(&library, "u1", 3, cut).await, Err(UploadRefused::CutOff)));
    assert_eq!(received().await.bytes, 5);
    assert!(library.inner.uploads.whole("u1").unwrap().is_none());
    let last = UploadPiece { offset: 5, size: Some(5), whole: Some(SUM.into()) };
    let took = library.receive("u1", "another", last, body(&[])).await.unwrap();
    assert_eq!((took, received().await), (ReceivedBytes { bytes: 5, whole: true }, took));
    assert!(matches!(send(&library, "u1", 5, body(&[b"f"])).await, Err(UploadRefused::Offset(_))));
    let whole = library.inner.uploads.whole("u1").unwrap().unwrap();
    assert_eq!(
        (io::read_to_string(whole.file).unwrap().as_str(), whole.bytes, whole.sha256.as_str()),
        ("abcde", 5, SUM)
    );
    library.inner.uploads.remove("u1").unwrap();
    assert_eq!(received().await, ReceivedBytes { bytes: 0, whole: false });
    assert_eq!(library.inner.uploads.bytes(), 0);
}

#[tokio::test]
async fn what_is_too_much_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let library = library(folder.path(), Sources { max_unpacked: 4, ..Sources::of_tests() });
    for (uid, size, parts) in [("u1", None, &[&b"abc"[..], b"de"][..]), ("u2", Some(5), &[b"a"])] {
        let piece = UploadPiece { size, ..UploadPiece::default() };
        let refused = library.receive(uid, "somebody", piece, body(parts)).await.unwrap_err();
        assert!(
            matches!(&refused, UploadRefused::TooLarge(reason) if reason.contains("image.max_unpacked_gib")),
            "{refused}"
        );
    }
    for (uid, whole) in [("../u", None), ("", None), ("u3", Some("short")), ("u3", Some("../../x"))] {
        let piece = UploadPiece { whole: whole.map(str::to_owned), ..UploadPiece::default() };
        assert!(library.receive(uid, "somebody", piece, body(&[b"a"])).await.is_err(), "{uid}");
    }
}

/// A body that says how long it is, as a request does.
fn sized(bytes: usize) -> Body {
    Body::from(vec![7; bytes])
}

#[tokio::test]
async fn what_was_sent_counts_as_what_the_library_has() {
    let folder = tempfile::tempdir().unwrap();
    let library = library(folder.path(), Sources { max_library: 1 << 20, ..Sources::of_tests() });
    assert!(library.space().unwrap().above_reserve > RESERVE, "the disk of the tests is full");
    let most = 1 << 20;
    send(&library, "u1", 0, sized(most - 100)).await.unwrap();
    assert_eq!(library.space().unwrap().room(), 100);
    // At once: nothing of it was taken.
    let refuses = async |uid: &str, piece: UploadPiece, body: Body| {
        let refused = library.receive(uid, "somebody", piece, body).await.unwrap_err();
        let said = |reason: &String| reason.contains("image.max_library_gib") && reason.contains("remove images");
        assert!(matches!(&refused, UploadRefused::TooLarge(reason) if said(reason)), "{refused}");
        assert_eq!(library.space().unwrap().uploads as usize, most - 100);
    };
    refuses("u2", UploadPiece::default(), sized(101)).await;
    refuses("u2", UploadPiece { size: Some(101), ..UploadPiece::default() }, sized(1)).await;
    refuses("u1", UploadPiece { offset: most as u64 - 100, ..UploadPiece::default() }, sized(101)).await;
    send(&library, "u2", 0, sized(100)).await.unwrap();
    assert_eq!(library.space().unwrap().room(), 0);
    // What becomes of an upload has the room of it.
    assert_eq!(library.space_beside(100).unwrap().room(), 100);
    library.inner.uploads.remove("u1").unwrap();
    assert_eq!(library.space().unwrap().room() as usize, most - 100);
}

#[tokio::test]
async fn who_sends_next_to_nothing_loses_his_place() {
    let gone = CancellationToken::new();
    // It says so much, and then nothing more.
    let fed = async |first: &'static [&'static [u8]], pace: UploadPace| {
        let (send, mut parts) = mpsc::channel(QUEUE);
        let first = stream::iter(first.iter().map(|part| Ok::<_, io::Error>(Bytes::from_static(part))));
        let body = Body::from_stream(first.chain(stream::pending()));
        let drain = async { while parts.recv().await.is_some() {} };
        let both = async { tokio::join!(feed(body, send, pace, &gone), drain).0 };
        timeout(Duration::from_secs(60), both).await.expect("it ends by itself")
    };
    let soon = || UploadPace::new(Duration::from_millis(20));
    const FIRST: [&[&[u8]]; 3] = [&[], &[b"x"], &[b"x", b"y"]];
    for first in FIRST {
        let ended = fed(first, soon()).await;
        assert!(matches!(ended, Err(UploadRefused::CutOff)), "{ended:?}");
    }
    // It ends at once when its Image goes.
    gone.cancel();
    let ended = fed(&[], UploadPace::default()).await;
    assert!(matches!(ended, Err(UploadRefused::Gone)), "{ended:?}");
}
