//! Servers that drop, stall, lie and change their mind.

use super::server::{Answer, Server, part, range, status, whole};
use super::*;
use crate::api::metal3::ChecksumType;

const TAG: &str = "ETag: \"v1\"\r\n";

#[tokio::test]
async fn a_dropped_or_stalled_connection_is_resumed_where_it_ended() {
    for (validator, ranges, stall) in [
        (TAG, true, false),
        (TAG, true, true),
        (TAG, false, false),
        ("Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n", true, false),
    ] {
        let (_folder, library) = library();
        let content = disk(3, 4);
        let body = content.clone();
        let server = Server::start(move |number, request| {
            let answer = match range(request) {
                Some(from) if ranges => part(&body, from, validator),
                _ => whole(&body, validator),
            };
            // Whatever was asked, three answers end early.
            match number {
                0 => answer.cut(MIB + 17),
                1 if stall => answer.cut(600_000).stalled(),
                1 if ranges => answer.cut(600_000),
                1 => answer.cut(2 * MIB),
                2 => status("503 Busy"),
                _ => answer,
            }
        })
        .await;
        let spec = ImageSpec { checksum: Some(sha256(&content)), ..spec(format!("{}/disk.raw", server.url)) };
        let imported = import(&library, &spec).await.expect("imported");
        assert!(assemble(&library, &imported.digest) == content);
        let requests = server.requests.lock().expect("lock").clone();
        assert_eq!(requests.len(), 4, "{requests:?}");
        assert_eq!(range(&requests[1]), Some(MIB + 17));
        let condition = format!("if-range: {}", validator.split_once(": ").expect("header").1.trim());
        assert!(requests[1].contains(&condition), "{}", requests[1]);
    }
}

#[tokio::test]
async fn a_source_that_cannot_be_read_to_its_end_says_why_and_leaves_nothing() {
    let content = disk(3, 5);
    type Case = (&'static str, bool, Box<dyn Fn(usize, &str, &[u8]) -> Answer + Send + Sync>);
    let cases: Vec<Case> = vec![
        ("404 Not Found; check the URL", true, Box::new(|_, _, _| status("404 Not Found"))),
        ("403 Forbidden", true, Box::new(|_, _, _| status("403 Forbidden"))),
        ("410 Gone", false, Box::new(|_, _, _| status("410 Gone"))),
        ("500 Internal Server Error", true, Box::new(|_, _, _| status("500 No"))),
        (
            "no answer within",
            true,
            Box::new(|_, _, _| Answer { head: "HTTP/1.1 100 Continue\r\n".into(), body: vec![], stall: true }),
        ),
        (
            "redirects more than 5 times",
            false,
            Box::new(|_, _, _| Answer {
                head: "HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n".into(),
                body: vec![],
                stall: false,
            }),
        ),
        ("cannot be resumed", true, Box::new(|_, _, body| whole(body, "").cut(MIB))),
        ("cannot be resumed", true, Box::new(|_, _, body| whole(body, "ETag: W/\"weak\"\r\n").cut(MIB))),
        (
            "tried 3 times to resume",
            true,
            Box::new(|number, _, body| match number {
                0 => whole(body, TAG).cut(MIB),
                _ => whole(body, TAG).cut(0),
            }),
        ),
        (
            "changed while it was read",
            true,
            Box::new(|number, _, body| match number {
                0 => whole(body, TAG).cut(MIB),
                _ => whole(body, "ETag: \"v2\"\r\n"),
            }),
        ),
        (
            "changed while it was read",
            true,
            Box::new(|number, request, body| match number {
                0 => whole(body, TAG).cut(MIB),
                _ => part(body, range(request).unwrap_or(0), "ETag: \"v2\"\r\n"),
            }),
        ),
        (
            "changed while it was read",
            true,
            Box::new(|number, _, body| match number {
                0 => whole(body, TAG).cut(MIB),
                _ => part(body, 5, TAG),
            }),
        ),
        (
            "changed while it was read",
            true,
            Box::new(|number, _, body| match number {
                0 => whole(body, TAG).cut(MIB),
                _ => status("416 Range Not Satisfiable"),
            }),
        ),
        (
            "404",
            true,
            Box::new(|number, _, body| match number {
                0 => whole(body, TAG).cut(MIB),
                _ => status("404 Not Found"),
            }),
        ),
    ];
    for (part, retry, answer) in cases {
        let (folder, library) = library();
        let body = content.clone();
        let server = Server::start(move |number, request| answer(number, request, &body)).await;
        let url = server.url.replace("http://", "http://user:geheim@") + "/disk.raw?token=geheim";
        let error = import(&library, &spec(url)).await.expect_err(part);
        assert!(error.message.contains(part), "{part}: {error}");
        assert!(error.message.contains(&format!("{}/disk.raw", server.url)), "{error}");
        assert!(!error.message.contains("geheim"), "{error}");
        assert_eq!(error.retry, retry, "{error}");
        assert_eq!(files(&folder.path().join("images")), 0);
    }
    let (_folder, library) = library();
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound").local_addr().expect("address");
    let error = import(&library, &spec(format!("http://{closed}/x"))).await.expect_err("refused");
    assert!(error.retry && error.message.contains("onnection refused"), "{error}");
}

#[tokio::test]
async fn checksums_are_of_the_file_as_published_in_every_form() {
    let (folder, library) = library();
    let content = disk(2, 6);
    let packed = zstd::encode_all(content.as_slice(), 1).expect("zstd");
    let md5 = hex(&md5::Md5::digest(&packed));
    let (sha, sha512) = (sha256(&packed), hex(&sha2::Sha512::digest(&packed)));
    let sums = format!("# sums\n{}  other.zst\n{sha} *disk.zst\n", "0".repeat(64));
    let bsd = format!("SHA512 (disk.zst) = {sha512}\n");
    let wrong = format!("{} *disk.zst\n", "0".repeat(64));
    let server = Server::start(move |_, request| match request.split(' ').nth(1) {
        Some("/disk.zst") => whole(&packed, ""),
        Some("/SHA256SUMS") => whole(sums.as_bytes(), ""),
        Some("/CHECKSUM") => whole(bsd.as_bytes(), ""),
        Some("/WRONG") => whole(wrong.as_bytes(), ""),
        Some("/LARGE") => whole(&vec![b'x'; 5 * MIB], ""),
        _ => status("404 Not Found"),
    })
    .await;
    let with = |checksum: &str, checksum_type| ImageSpec {
        checksum: Some(checksum.replace('@', &server.url)),
        checksum_type,
        ..spec(format!("{}/disk.zst", server.url))
    };
    for (checksum, kind) in [
        (md5.as_str(), None),
        (&md5, Some(ChecksumType::Md5)),
        (&sha.to_uppercase(), Some(ChecksumType::Auto)),
        (&sha512, Some(ChecksumType::Sha512)),
        ("@/SHA256SUMS", None),
        ("@/SHA256SUMS", Some(ChecksumType::Sha256)),
        ("@/CHECKSUM", None),
        ("", None),
    ] {
        let imported = import(&library, &with(checksum, kind)).await.unwrap_or_else(|e| panic!("{checksum}: {e}"));
        assert!(assemble(&library, &imported.digest) == content);
        assert!(library.remove(&imported.digest).expect("removed"));
    }
    for (checksum, kind, part, retry) in [
        ("0".repeat(32), None, "but the spec says 000", false),
        (sha256(&content), None, "correct the checksum or the URL", false),
        ("@/WRONG".into(), None, "WRONG says 000", true),
        ("@/CHECKSUM".into(), Some(ChecksumType::Sha256), "no sha256 checksum of disk.zst", true),
        ("@/GONE".into(), None, "the file of checksums cannot be read", true),
        ("@/LARGE".into(), None, "bytes long", false),
        ("xyz".into(), None, "hex digits", false),
    ] {
        let error = import(&library, &with(&checksum, kind)).await.expect_err(part);
        assert!(error.message.contains(part) && error.retry == retry, "{part}: {error:?}");
    }
    assert_eq!(files(&folder.path().join("images")), 0);
}

#[tokio::test]
async fn https_is_trusted_by_the_ca_file_alone() {
    let signer = rcgen::generate_simple_self_signed(["localhost".into()]).expect("certificate");
    let key = rustls_pki_types::PrivateKeyDer::try_from(signer.signing_key.serialize_der()).expect("key");
    let config = rustls::ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![signer.cert.der().clone()], key)
        .expect("configuration");
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let url = format!("https://localhost:{}/disk", listener.local_addr().expect("address").port());
    let server = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        while let Ok((stream, _)) = listener.accept().await {
            // The client may hang up when it does not trust us.
            if let Ok(mut stream) = acceptor.accept(stream).await {
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 512\r\n\r\n").await;
                let _ = stream.write_all(&[1; 512]).await;
                let _ = stream.shutdown().await;
            }
        }
    });
    let (folder, library) = library();
    let error = import(&library, &spec(url.clone())).await.expect_err("not trusted");
    assert!(error.retry && error.message.contains("image.ca_file"), "{error}");
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, signer.cert.pem()).expect("written");
    let trusting =
        Library::open(folder.path().join("other"), Sources { ca_file: Some(ca.clone()), ..Sources::of_tests() })
            .expect("library");
    assert_eq!(import(&trusting, &spec(url)).await.expect("imported").virtual_size, 512);
    std::fs::write(&ca, "no certificate").expect("written");
    let error = Library::open(folder.path().join("third"), Sources { ca_file: Some(ca), ..Sources::default() })
        .err()
        .expect("refused")
        .to_string();
    assert!(error.contains("there is no certificate in it"), "{error}");
    server.abort();
}

#[test]
fn no_room_is_said_with_numbers() {
    let (folder, library) = library();
    assert_eq!(super::super::chunks::check_room(&library.inner, 0, 0), Ok(()));
    let error = super::super::chunks::check_room(&library.inner, 1 << 60, 0).expect_err("too much");
    assert!(error.retry && error.message.contains("MiB are needed"), "{error}");
    assert!(error.message.contains(text(folder.path())), "{error}");
}
