//! Tests of live ISOs through the router.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use tower::ServiceExt;

use super::*;
use crate::api::MacAddress;
use crate::api::slipway::{BootTarget, ImageSpec};
use crate::boot::{BootHost, IndexedIntent};
use crate::image::Sources;

/// An ISO with data, a hole and an odd end in the library; the same bytes; a router that knows one host.
async fn setup() -> (tempfile::TempDir, Router, HostIndex, String, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let mut iso = vec![0; (3 << 20) + 4096];
    iso.iter_mut().take(1 << 20).enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
    iso.iter_mut().skip((3 << 20) + 100).for_each(|byte| *byte = 7);
    iso[32769..32774].copy_from_slice(b"CD001");
    let path = folder.path().join("live.iso");
    std::fs::write(&path, &iso).unwrap();
    let library = Library::open(folder.path().join("images"), Sources::of_tests()).unwrap();
    let spec =
        ImageSpec { url: format!("file://{}", path.display()), format: Some("raw".into()), ..ImageSpec::default() };
    let imported = library.import(&spec, |_| {}).await.unwrap();
    let hosts = HostIndex::default();
    (folder, router(hosts.clone(), library, ranks()), hosts, imported.digest, iso)
}

/// One known machine; whoever else comes is a stranger.
const KNOWN: [u8; 4] = [10, 0, 0, 2];

fn ranks() -> Ranks {
    Arc::new(|address| if address == std::net::IpAddr::from(KNOWN) { Rank::Known } else { Rank::Stranger })
}

fn host(digest: &str) -> BootHost {
    BootHost {
        namespace: "rack".into(),
        name: "h".into(),
        uid: "u".into(),
        created: 0,
        ownership: Default::default(),
        macs: vec![MacAddress([2, 0, 0, 0, 0, 1])],
        intent: Some(IndexedIntent {
            generation: 1,
            target: BootTarget::LiveIso,
            session_open: false,
            live_iso: Some(digest.into()),
        }),
        boot_interface: Default::default(),
        discovery: Default::default(),
    }
}

async fn get(router: &Router, digest: &str, range: Option<&str>) -> (StatusCode, HeaderMap, Bytes) {
    let mut request = Request::get(path(digest));
    if let Some(range) = range {
        request = request.header(RANGE, range);
    }
    let answer = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let (parts, body) = answer.into_parts();
    (parts.status, parts.headers, body.collect().await.unwrap().to_bytes())
}

#[tokio::test]
async fn a_live_iso_comes_whole_and_in_parts_while_a_host_boots_it() {
    let (_folder, router, hosts, digest, iso) = setup().await;
    assert_eq!(get(&router, &digest, None).await.0, StatusCode::NOT_FOUND, "no host boots it");
    hosts.insert(host(&digest));
    let (status, headers, body) = get(&router, &digest, None).await;
    assert_eq!((status, headers[CONTENT_LENGTH].to_str().unwrap()), (StatusCode::OK, iso.len().to_string().as_str()));
    assert!(body == iso);
    let end = iso.len();
    for (asked, part) in [
        ("bytes=0-0", 0..1),
        ("bytes=32768-36863", 32768..36864),
        ("bytes=1048570-1048599", 1048570..1048600),
        ("bytes=2000000-", 2_000_000..end),
        ("bytes=-10", end - 10..end),
        ("bytes=5-99999999999", 5..end),
    ] {
        let (status, headers, body) = get(&router, &digest, Some(asked)).await;
        assert_eq!(status, StatusCode::PARTIAL_CONTENT, "{asked}");
        let named = format!("bytes {}-{}/{end}", part.start, part.end - 1);
        assert_eq!(headers[CONTENT_RANGE].to_str().unwrap(), named);
        assert!(body == iso[part], "{asked}");
    }
    let (status, headers, _) = get(&router, &digest, Some(&format!("bytes={end}-"))).await;
    assert_eq!(status, StatusCode::RANGE_NOT_SATISFIABLE);
    assert_eq!(headers[CONTENT_RANGE].to_str().unwrap(), format!("bytes */{end}"));
    for malformed in ["bytes=9-1", "bytes=0-1,4-5", "lines=1-2", "bytes=x-"] {
        assert_eq!(get(&router, &digest, Some(malformed)).await.0, StatusCode::OK, "{malformed}");
    }
    for (held, status) in [(&*digest, StatusCode::PARTIAL_CONTENT), ("another", StatusCode::OK)] {
        let request = Request::get(path(&digest)).header(RANGE, "bytes=5-").header("if-range", format!("\"{held}\""));
        let answer = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), status, "{held}");
    }
    hosts.remove("rack", "h");
    assert_eq!(get(&router, &digest, None).await.0, StatusCode::NOT_FOUND);
    assert_eq!(get(&router, "../../../etc/passwd", None).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn what_is_no_iso_is_not_served_and_what_no_host_boots_any_more_neither() {
    let (folder, router, hosts, iso, _) = setup().await;
    let library = Library::open(folder.path().join("other"), Sources::of_tests()).unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, [b"PRIVATE KEY ".repeat(10), vec![0; 64 << 10]].concat()).unwrap();
    let spec =
        ImageSpec { url: format!("file://{}", secret.display()), format: Some("raw".into()), ..ImageSpec::default() };
    let secret = library.import(&spec, |_| {}).await.unwrap().digest;
    let other = super::router(hosts.clone(), library, ranks());
    hosts.insert(host(&secret));
    for range in [None, Some("bytes=0-99")] {
        let (status, _, body) = get(&other, &secret, range).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{:?}", &body[..body.len().min(99)]);
    }
    // It is not looked at again, and the line in the log is that of who asks.
    std::fs::remove_dir_all(folder.path().join("other").join("chunks")).unwrap();
    let log = crate::log::tests::log_while(async {
        let peer = SocketAddr::from(([10, 9, 9, 9], 99));
        for _ in 0..1_000 {
            let request = Request::get(path(&secret)).extension(ConnInfo { local: ([10, 0, 0, 1], 80).into(), peer });
            let answer = other.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
            assert_eq!(answer.status(), StatusCode::NOT_FOUND);
        }
    });
    let log = log.await;
    let about = |part: &str| log.lines().filter(|line| line.contains(part)).count();
    assert_eq!(about("cannot be read"), 0, "{log}");
    // So many are one address's in a stretch of time, and a stretch may end meanwhile.
    assert!((30..=90).contains(&about("peer=10.9.9.9:99")) && about("and it is none") <= 90, "{log}");
    let booted = host(&iso);
    let ended = IndexedIntent { target: BootTarget::Disk, ..booted.intent.clone().unwrap() };
    hosts.insert(booted.clone());
    assert_eq!(get(&router, &iso, None).await.0, StatusCode::OK);
    hosts.insert(BootHost { intent: Some(ended), ..booted });
    assert_eq!(get(&router, &iso, None).await.0, StatusCode::NOT_FOUND, "it boots from its disk now");
}

/// Whoever asks for small parts again and again makes nobody unpack the chunk again, and who takes nothing keeps little.
#[tokio::test]
async fn a_chunk_is_unpacked_once_for_all_who_read_it_and_sent_in_pieces() {
    let (folder, router, hosts, digest, iso) = setup().await;
    hosts.insert(host(&digest));
    assert_eq!(get(&router, &digest, Some("bytes=0-0")).await.2, iso[..1]);
    // What is unpacked needs no file any more.
    std::fs::remove_dir_all(folder.path().join("images/chunks")).unwrap();
    for at in 0..500_usize {
        let (status, _, body) = get(&router, &digest, Some(&format!("bytes={}-{}", at * 2_000, at * 2_000 + 9))).await;
        assert!(status == StatusCode::PARTIAL_CONTENT && body == iso[at * 2_000..at * 2_000 + 10], "{at}");
    }
    let request = Request::get(path(&digest)).header(RANGE, "bytes=0-1048575").body(Body::empty()).unwrap();
    let mut body = router.clone().oneshot(request).await.unwrap().into_body();
    let mut pieces = Vec::new();
    while let Some(frame) = body.frame().await {
        pieces.push(frame.unwrap().into_data().unwrap().len());
    }
    assert_eq!(pieces, [PIECE as usize; 4]);
}
