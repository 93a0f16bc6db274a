//! Tests of what is published through the router.

use std::net::SocketAddr;

use bytes::Bytes;
use futures::FutureExt;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tower::ServiceExt;

use super::*;
use crate::api::slipway::ImageSpec;
use crate::image::Sources;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

fn digest(content: &[u8]) -> String {
    let hex: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// An archive that is being written.
#[derive(Default)]
struct Layout {
    files: Vec<(String, Vec<u8>)>,
    roots: Vec<Value>,
}

impl Layout {
    fn blob(&mut self, kind: &str, content: &[u8]) -> Value {
        let digest = digest(content);
        self.files.push((digest.replace("sha256:", "blobs/sha256/"), content.to_vec()));
        json!({ "mediaType": kind, "digest": digest, "size": content.len() })
    }

    /// An image of one layer under a name; the bytes of its manifest.
    fn image(&mut self, name: &str, layer: &[u8]) -> Vec<u8> {
        let (config, layer) = (self.blob("c", format!("config of {name}").as_bytes()), self.blob("l", layer));
        let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer] });
        let manifest = manifest.to_string().into_bytes();
        let mut root = self.blob(MANIFEST, &manifest);
        root["annotations"] = json!({ "io.containerd.image.name": format!("registry.k8s.io/{name}") });
        self.roots.push(root);
        manifest
    }

    fn tar(mut self) -> Vec<u8> {
        let index = json!({ "schemaVersion": 2, "manifests": self.roots }).to_string();
        self.files.push(("index.json".into(), index.into_bytes()));
        tar_of(&self.files)
    }
}

fn tar_of(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        tar.append_data(&mut header, name, &**content).unwrap();
    }
    tar.into_inner().unwrap()
}

/// Bytes that do not pack.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

struct Rig {
    folder: tempfile::TempDir,
    library: Library,
    downloads: DownloadScheduler,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let library = Library::open(folder.path().join("images"), Sources::of_tests()).unwrap();
        Self { folder, library, downloads: DownloadScheduler::default() }
    }

    /// The digest of an archive in the library.
    async fn import(&self, format: &str, tar: &[u8]) -> String {
        let path = self.folder.path().join("archive.tar");
        std::fs::write(&path, tar).unwrap();
        let url = format!("file://{}", path.display());
        let spec = ImageSpec { url, format: Some(format.into()), ..ImageSpec::default() };
        self.library.import(&spec, |_| {}).await.unwrap().digest
    }

    fn router(&self, images: &[(&str, &str)]) -> Router {
        let published = Published::of_tests(&self.library, images);
        router(published, self.library.clone(), self.downloads.clone(), crate::ration::all_alike())
    }
}

/// A request from an address of its own.
fn request(method: Method, path: &str, headers: &[(HeaderName, &str)]) -> Request {
    let mut request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    for (name, value) in headers {
        request.headers_mut().append(name.clone(), value.parse().unwrap());
    }
    let address = |last| SocketAddr::from(([10, 0, 0, last], 1000));
    request.extensions_mut().insert(ConnInfo { local: address(1), peer: address(2) });
    request
}

async fn ask(router: &Router, request: Request) -> (StatusCode, HeaderMap, Bytes) {
    let (parts, body) = router.clone().oneshot(request).await.unwrap().into_parts();
    (parts.status, parts.headers, body.collect().await.unwrap().to_bytes())
}

async fn get(router: &Router, path: &str) -> (StatusCode, HeaderMap, Bytes) {
    ask(router, request(Method::GET, path, &[])).await
}

fn text(headers: &HeaderMap, name: impl Into<HeaderName>) -> String {
    headers.get(name.into()).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
}

fn code(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap();
    body["errors"][0]["code"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_image_is_pulled_by_tag_and_by_digest_with_its_own_media_type() {
    let rig = Rig::new();
    let layer = noise((2 << 20) + 77, 1);
    let mut layout = Layout::default();
    let manifest = layout.image("kube/pause:3.10", &layer);
    layout.image("kube/pause:3.9", b"other");
    let image = rig.import("oci", &layout.tar()).await;
    let router = rig.router(&[("k8s", &image)]);
    for path in ["/v2/", "/v2"] {
        let (status, headers, body) = get(&router, path).await;
        assert_eq!(
            (status, &*body, &*text(&headers, registry_version())),
            (StatusCode::OK, &b"{}"[..], "registry/2.0"),
            "{path}"
        );
    }
    let name = digest(&manifest);
    for reference in ["3.10", "3.10?ns=registry.k8s.io", &name, &name.replace(':', "%3A")] {
        let path = format!("/v2/kube/pause/manifests/{reference}");
        for method in [Method::GET, Method::HEAD] {
            let is_get = method == Method::GET;
            let (status, headers, body) = ask(&router, request(method, &path, &[])).await;
            assert_eq!(status, StatusCode::OK, "{path}");
            assert_eq!(text(&headers, CONTENT_TYPE), MANIFEST);
            assert_eq!(text(&headers, CONTENT_LENGTH), manifest.len().to_string());
            assert_eq!(text(&headers, HeaderName::from_static("docker-content-digest")), name);
            assert_eq!(text(&headers, registry_version()), "registry/2.0");
            assert_eq!(&*body, if is_get { &manifest[..] } else { b"" });
        }
    }
    let path = format!("/v2/kube/pause/blobs/{}", digest(&layer));
    let (status, headers, body) = get(&router, &path).await;
    assert!(status == StatusCode::OK && body == layer);
    assert_eq!(
        (text(&headers, CONTENT_TYPE), text(&headers, ACCEPT_RANGES)),
        ("application/octet-stream".into(), "bytes".into())
    );
    let end = layer.len();
    for (asked, part) in
        [("bytes=0-0", 0..1), ("bytes=1048570-1048599", 1_048_570..1_048_600), ("bytes=2000000-", 2_000_000..end)]
    {
        let (status, headers, body) = ask(&router, request(Method::GET, &path, &[(RANGE, asked)])).await;
        assert_eq!(status, StatusCode::PARTIAL_CONTENT, "{asked}");
        assert_eq!(text(&headers, CONTENT_RANGE), format!("bytes {}-{}/{end}", part.start, part.end - 1));
        assert!(body == layer[part], "{asked}");
    }
    let beyond = format!("bytes={end}-");
    let (status, headers, _) = ask(&router, request(Method::GET, &path, &[(RANGE, &beyond)])).await;
    assert_eq!((status, text(&headers, CONTENT_RANGE)), (StatusCode::RANGE_NOT_SATISFIABLE, format!("bytes */{end}")));
    let held = format!("\"{}\"", digest(&layer));
    let (status, headers, body) = ask(&router, request(Method::GET, &path, &[(IF_NONE_MATCH, &held)])).await;
    assert_eq!((status, body.len(), text(&headers, ETAG)), (StatusCode::NOT_MODIFIED, 0, held));
}

fn registry_version() -> HeaderName {
    HeaderName::from_static("docker-distribution-api-version")
}

#[tokio::test]
async fn a_digest_opens_nothing_that_its_repository_does_not_lead_to() {
    let rig = Rig::new();
    let (mut open, mut secret) = (Layout::default(), Layout::default());
    let (one, two) = (open.image("one:1", b"layer of one"), open.image("two:1", b"layer of two"));
    open.blob("x", b"left in the archive");
    let hidden = secret.image("one:secret", b"SECRET");
    let open = rig.import("oci", &open.tar()).await;
    let secret = rig.import("oci", &secret.tar()).await;
    let router = rig.router(&[("open", &open)]);
    let blob = |name: &str, content: &[u8]| format!("/v2/{name}/blobs/{}", digest(content));
    let manifest = |name: &str, content: &[u8]| format!("/v2/{name}/manifests/{}", digest(content));
    for (path, wanted) in [
        (blob("one", b"layer of one"), None),
        (blob("one", &one), None),
        (manifest("two", &two), None),
        // Of another repository, of none, and of what is not published.
        (blob("one", b"layer of two"), Some("BLOB_UNKNOWN")),
        (manifest("one", &two), Some("MANIFEST_UNKNOWN")),
        (blob("one", b"left in the archive"), Some("BLOB_UNKNOWN")),
        (blob("one", b"SECRET"), Some("BLOB_UNKNOWN")),
        (manifest("one", &hidden), Some("MANIFEST_UNKNOWN")),
        ("/v2/one/manifests/secret".to_owned(), Some("MANIFEST_UNKNOWN")),
        // A layer is no manifest, also where it would read as one.
        (manifest("one", b"layer of one"), Some("MANIFEST_UNKNOWN")),
        (blob("three", b"layer of one"), Some("NAME_UNKNOWN")),
    ] {
        let (status, _, body) = get(&router, &path).await;
        let found = (status != StatusCode::OK).then(|| code(&body));
        assert_eq!(found.as_deref(), wanted, "{path}");
        assert_eq!(status.as_u16(), if wanted.is_some() { 404 } else { 200 });
    }
    // And once it is published, it is there.
    let both = rig.router(&[("open", &open), ("secret", &secret)]);
    assert_eq!(get(&both, &blob("one", b"SECRET")).await.2, &b"SECRET"[..]);
    assert_eq!(get(&both, &blob("two", b"SECRET")).await.0, StatusCode::NOT_FOUND);
    // What is removed from the library cannot be read, and nothing else comes in its place. A router that has unpacked nothing yet.
    let both = rig.router(&[("open", &open), ("secret", &secret)]);
    rig.library.remove(&secret).unwrap();
    let (status, headers, body) = get(&both, &blob("one", b"SECRET")).await;
    assert_eq!((status.as_u16(), &*code(&body), &*text(&headers, RETRY_AFTER)), (503, "UNAVAILABLE", "2"));
}

#[tokio::test]
async fn tags_come_in_order_and_page_by_page() {
    let rig = Rig::new();
    let mut layout = Layout::default();
    for tag in ["v2", "v10", "v1", "latest"] {
        layout.image(&format!("a/b:{tag}"), tag.as_bytes());
    }
    let image = rig.import("oci", &layout.tar()).await;
    let router = rig.router(&[("i", &image)]);
    for (query, tags, next) in [
        ("", &["latest", "v1", "v10", "v2"][..], ""),
        ("?n=4", &["latest", "v1", "v10", "v2"], ""),
        ("?n=3", &["latest", "v1", "v10"], "</v2/a/b/tags/list?n=3&last=v10>; rel=\"next\""),
        ("?n=3&last=v10", &["v2"], ""),
        ("?last=v1&n=1", &["v10"], "</v2/a/b/tags/list?n=1&last=v10>; rel=\"next\""),
        ("?n=0", &[], ""),
        ("?last=zzz", &[], ""),
    ] {
        let (status, headers, body) = get(&router, &format!("/v2/a/b/tags/list{query}")).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), json!({ "name": "a/b", "tags": tags }), "{query}");
        assert_eq!(text(&headers, http::header::LINK), next, "{query}");
    }
    assert_eq!(get(&router, "/v2/a/b/tags/list?n=x").await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn what_makes_no_sense_is_told_with_the_specifications_codes() {
    let rig = Rig::new();
    let mut layout = Layout::default();
    layout.image("a:1", b"layer");
    let image = rig.import("oci", &layout.tar()).await;
    let router = rig.router(&[("i", &image)]);
    for (method, path, status, wanted) in [
        (Method::GET, "/v2/A/manifests/1", 400, "NAME_INVALID"),
        (Method::GET, "/v2/../a/manifests/1", 400, "NAME_INVALID"),
        (Method::GET, "/v2/a%2F..%2Fa/manifests/1", 400, "NAME_INVALID"),
        (Method::GET, "/v2/%ff/manifests/1", 400, "NAME_INVALID"),
        (Method::GET, "/v2/a/manifests/-", 400, "MANIFEST_INVALID"),
        (Method::GET, "/v2/a/manifests/sha512:0", 400, "MANIFEST_INVALID"),
        (Method::GET, "/v2/a/blobs/1", 400, "DIGEST_INVALID"),
        (Method::GET, "/v2/a/blobs/..%2F..%2Fetc", 404, "UNSUPPORTED"),
        (Method::GET, "/v2/a/manifests/2", 404, "MANIFEST_UNKNOWN"),
        (Method::HEAD, "/v2/a/manifests/2", 404, ""),
        (Method::GET, "/v2/b/tags/list", 404, "NAME_UNKNOWN"),
        (Method::GET, "/v2/_catalog", 404, "UNSUPPORTED"),
        (Method::POST, "/v2/a/blobs/uploads/", 405, "UNSUPPORTED"),
        (Method::PUT, "/v2/a/manifests/1", 405, "UNSUPPORTED"),
        (Method::DELETE, "/v2/a/manifests/1", 405, "UNSUPPORTED"),
    ] {
        let (found, headers, body) = ask(&router, request(method, path, &[])).await;
        assert_eq!((found.as_u16(), &*text(&headers, registry_version())), (status, "registry/2.0"), "{path}");
        assert!(wanted.is_empty() || code(&body) == wanted, "{path}: {body:?}");
    }
    let early =
        super::router(Published::default(), rig.library.clone(), rig.downloads.clone(), crate::ration::all_alike());
    let (status, headers, body) = get(&early, "/v2/a/manifests/1").await;
    assert_eq!((status.as_u16(), &*code(&body), &*text(&headers, RETRY_AFTER)), (503, "UNAVAILABLE", "2"));
    assert_eq!(get(&early, "/packages/a/b").await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(get(&early, "/v2/").await.0, StatusCode::OK);
}

#[tokio::test]
async fn files_are_found_by_their_path_and_folders_are_listed() {
    let rig = Rig::new();
    let large = noise((1 << 20) + 5, 3);
    let mut files = vec![
        ("Packages".to_owned(), b"Package: a\n".to_vec()),
        ("pool/a_1%3a2~3_amd64.deb".to_owned(), large.clone()),
        ("pool/x/b.bin".to_owned(), b"b".to_vec()),
        ("pool/x.txt".to_owned(), b"text".to_vec()),
        ("pool/x0".to_owned(), vec![]),
        ("\u{e4} b#?".to_owned(), b"odd".to_vec()),
    ];
    files.extend((0..600).map(|number| (format!("many/{number:03}"), vec![])));
    let debs = rig.import("packages", &tar_of(&files)).await;
    let secret = rig.import("packages", &tar_of(&[("key".to_owned(), b"SECRET".to_vec())])).await;
    let router = rig.router(&[("debs", &debs)]);
    for (path, wanted) in [
        ("/packages/debs/Packages", Some(&b"Package: a\n"[..])),
        ("/packages/debs/./Packages", Some(b"Package: a\n")),
        ("/packages/debs//./pool//x.txt", Some(b"text")),
        ("/packages/debs/pool/a_1%253a2~3_amd64.deb", Some(&large)),
        ("/packages/debs/pool/x0", Some(b"")),
        ("/packages/debs/%C3%A4%20b%23%3F", Some(b"odd")),
        ("/packages/debs/pool/a_1%3a2~3_amd64.deb", None),
        ("/packages/debs/Packages/", None),
        ("/packages/debs/pool/..", None),
        ("/packages/debs/pool/../Packages", None),
        ("/packages/debs/..%2f..%2fetc/passwd", None),
        ("/packages/secret/key", None),
        ("/packages/other/", None),
        ("/packages/debs/po", None),
        ("/packages/%ff", None),
    ] {
        let (status, _, body) = get(&router, path).await;
        let found = (status == StatusCode::OK).then(|| body.to_vec());
        assert!(found.as_deref() == wanted, "{path}: {status}");
        assert_eq!(status == StatusCode::NOT_FOUND, wanted.is_none(), "{path}");
    }
    let deb = "/packages/debs/pool/a_1%253a2~3_amd64.deb";
    let (status, headers, body) = ask(&router, request(Method::GET, deb, &[(RANGE, "bytes=1048570-")])).await;
    assert!(status == StatusCode::PARTIAL_CONTENT && body == large[1_048_570..]);
    assert_eq!(text(&headers, CONTENT_TYPE), "application/vnd.debian.binary-package");
    let (status, headers, body) = ask(&router, request(Method::HEAD, deb, &[])).await;
    assert_eq!((status, text(&headers, CONTENT_LENGTH), body.len()), (StatusCode::OK, large.len().to_string(), 0));
    let many = |numbers: std::ops::Range<usize>| numbers.map(|number| format!("{number:03}\n")).collect::<String>();
    for (path, lines) in [
        ("/packages/", "debs/\n"),
        ("/packages", "debs/\n"),
        ("/packages/debs/", "Packages\nmany/\npool/\n\u{e4} b#?\n"),
        ("/packages/debs/pool/", "a_1%3a2~3_amd64.deb\nx.txt\nx/\nx0\n"),
        ("/packages/debs/many/?last=589", &*many(590..600)),
        ("/packages/debs/many/?last=zzz", ""),
        ("/packages/debs/many/?n=0", ""),
        ("/packages/debs/many/?last=343", &*many(344..600)),
        ("/packages/debs/many/", &*(many(0..256) + "?n=256&last=255\n")),
        ("/packages/debs/many/?n=1000&last=099", &*(many(100..356) + "?n=256&last=355\n")),
        ("/packages/debs/?n=2&last=Packages", "many/\npool/\n?n=2&last=pool%2F\n"),
        ("/packages/debs/?n=2&last=pool%2F", "\u{e4} b#?\n"),
        // Of files the query says nothing.
        ("/packages/debs/pool/x.txt?n=x", "text"),
    ] {
        let (status, _, body) = get(&router, path).await;
        assert_eq!((status, std::str::from_utf8(&body).unwrap()), (StatusCode::OK, lines), "{path}");
    }
    let json_of = async |path: &str| {
        let asked = request(Method::GET, path, &[(http::header::ACCEPT, "application/json")]);
        serde_json::from_slice::<Value>(&ask(&router, asked).await.2).unwrap()
    };
    let file =
        |name: &str, content: &[u8]| json!({ "name": name, "size": content.len(), "sha256": digest(content)[7..] });
    assert_eq!(json_of("/packages/debs/pool/x/").await, json!([file("b.bin", b"b")]));
    assert_eq!(json_of("/packages/debs/many/").await.as_array().map(Vec::len), Some(256));
    assert_eq!(get(&router, "/packages/debs/?n=x").await.0, StatusCode::BAD_REQUEST);
    assert_eq!(json_of("/packages/").await, json!([{ "name": "debs/" }]));
    let (status, headers, _) = get(&router, "/packages/debs/pool/x").await;
    assert_eq!(
        (status, &*text(&headers, http::header::LOCATION)),
        (StatusCode::MOVED_PERMANENTLY, "/packages/debs/pool/x/")
    );
    assert_eq!(ask(&router, request(Method::PUT, "/packages/debs/x", &[])).await.0, StatusCode::METHOD_NOT_ALLOWED);
    drop(secret);
    // Nothing published is an empty list.
    let none = rig.router(&[]);
    let asked = request(Method::GET, "/packages/", &[(http::header::ACCEPT, "application/json")]);
    assert_eq!(&*ask(&none, asked).await.2, b"[]\n");
}

#[tokio::test]
async fn whoever_follows_the_links_of_a_list_gets_every_name_once() {
    let rig = Rig::new();
    let mut files: Vec<_> = (0..700).map(|number| (format!("d \u{e4}/{number:03}%&+?/x"), vec![])).collect();
    // A name that is a file and a folder, and names around the slash.
    files.extend(["a", "a/1", "a.b", "a0"].map(|name| (name.to_owned(), vec![])));
    let debs = rig.import("packages", &tar_of(&files)).await;
    let router = rig.router(&[("debs", &debs), ("more", &debs), ("rest", &debs)]);
    for (start, kind, count) in [
        ("/packages/debs/d%20%C3%A4/", "text/plain", 700),
        ("/packages/debs/d%20%C3%A4/?n=7", "application/json", 700),
        ("/packages/debs/?n=1", "application/json", 5),
        ("/packages/debs/?n=2", "text/plain", 5),
        ("/packages/?n=1", "text/plain", 3),
    ] {
        let (mut at, mut names) = (Some(start.to_owned()), Vec::<String>::new());
        while let Some(path) = at {
            let asked = request(Method::GET, &path, &[(http::header::ACCEPT, kind)]);
            let (status, headers, body) = ask(&router, asked).await;
            assert_eq!(status, StatusCode::OK, "{path}");
            let link = text(&headers, LINK);
            at = link.strip_prefix('<').map(|link| link.split_once('>').unwrap().0.to_owned());
            assert!(link.is_empty() || link.ends_with(">; rel=\"next\""), "{link}");
            if kind == "application/json" {
                let list: Vec<Value> = serde_json::from_slice(&body).unwrap();
                names.extend(list.iter().map(|entry| entry["name"].as_str().unwrap().to_owned()));
            } else {
                let lines = std::str::from_utf8(&body).unwrap().lines();
                // The line behind the names leads to the same place.
                let (rest, lines): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with("?n="));
                assert!(rest.iter().all(|rest| at.as_ref().unwrap().ends_with(rest)), "{rest:?}");
                assert_eq!(rest.len(), usize::from(at.is_some()));
                names.extend(lines.into_iter().map(str::to_owned));
            }
            assert!(names.len() <= count, "{path}");
        }
        assert_eq!(names.len(), count, "{start}");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "{start}");
    }
}

/// Who takes nothing, and who waits for a turn, keeps what was sent to him and no table: there is a new one whenever Images change.
#[tokio::test]
async fn who_takes_an_answer_slowly_holds_no_former_table() {
    let rig = Rig::new();
    let large = noise(3 << 20, 5);
    let mut files = vec![("large".to_owned(), large.clone()), ("small".to_owned(), b"small".to_vec())];
    files.extend((0..300).map(|number| (format!("many/{number:03}"), vec![])));
    let debs = rig.import("packages", &tar_of(&files)).await;
    let mut layout = Layout::default();
    let manifest = layout.image("a:1", &large);
    let images = rig.import("oci", &layout.tar()).await;
    let published = Published::of_tests(&rig.library, &[("debs", &debs), ("images", &images)]);
    let router =
        super::router(published.clone(), rig.library.clone(), rig.downloads.clone(), crate::ration::all_alike());
    let answer = async |path: &str| {
        let answer = router.clone().oneshot(request(Method::GET, path, &[])).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        answer.into_body()
    };
    let list = answer("/packages/debs/many/").await;
    let small = answer("/packages/debs/small").await;
    let manifest_sent = answer("/v2/a/manifests/1").await;
    let file = answer("/packages/debs/large").await;
    let blob_path = format!("/v2/a/blobs/{}", digest(&large));
    let blob = answer(&blob_path).await;
    // Two of this address are on their way: these wait.
    let mut waiting = ["/packages/debs/large", &*blob_path]
        .map(|path| Box::pin(router.clone().oneshot(request(Method::GET, path, &[]))));
    for one in &mut waiting {
        assert!(one.as_mut().now_or_never().is_none());
    }
    let table = Arc::downgrade(&published.table().unwrap());
    let shelf = Arc::downgrade(published.table().unwrap().packages("debs").unwrap());
    published.forget();
    assert!(table.upgrade().is_none(), "somebody holds the table");
    assert!(shelf.upgrade().is_none(), "somebody holds the names of an Image");
    // What was begun ends as it began.
    let all = async |body: Body| body.collect().await.unwrap().to_bytes();
    assert_eq!(all(list).await.iter().filter(|byte| **byte == b'\n').count(), 257);
    assert_eq!((&*all(small).await, &*all(manifest_sent).await), (&b"small"[..], &*manifest));
    assert!(all(file).await == large && all(blob).await == large);
    for one in waiting {
        let answer = tokio::time::timeout(std::time::Duration::from_secs(20), one).await.expect("it has its turn");
        assert!(all(answer.unwrap().into_body()).await == large);
    }
    assert_eq!(get(&router, "/packages/debs/small").await.0, StatusCode::NOT_FOUND);
}

/// Who takes nothing of two large files keeps a third from himself, and nobody from what is small.
#[tokio::test]
async fn large_content_waits_for_a_permit_and_small_content_does_not() {
    let rig = Rig::new();
    let large = noise(3 << 20, 9);
    let debs =
        rig.import("packages", &tar_of(&[("large".into(), large.clone()), ("small".into(), b"s".to_vec())])).await;
    let router = rig.router(&[("debs", &debs)]);
    let large_one = || request(Method::GET, "/packages/debs/large", &[]);
    let first = router.clone().oneshot(large_one()).await.unwrap();
    let second = router.clone().oneshot(large_one()).await.unwrap();
    let mut third = Box::pin(router.clone().oneshot(large_one()));
    assert!(third.as_mut().now_or_never().is_none(), "two at a time to one address");
    assert_eq!(get(&router, "/packages/debs/small").await.2, &b"s"[..]);
    let part = request(Method::GET, "/packages/debs/large", &[(RANGE, "bytes=5-9")]);
    assert_eq!(ask(&router, part).await.2, large[5..10]);
    drop(first);
    let third =
        tokio::time::timeout(std::time::Duration::from_secs(20), third).await.expect("it has its turn").unwrap();
    drop(second);
    let mut body = third.into_body();
    let mut pieces = Vec::new();
    while let Some(frame) = body.frame().await {
        pieces.push(frame.unwrap().into_data().unwrap());
    }
    // A chunk at a time, as it was unpacked.
    assert_eq!(pieces.iter().map(Bytes::len).collect::<Vec<_>>(), [1 << 20; 3]);
    assert!(pieces.concat() == large);
}
