//! Where imports do not go, and what they do not unpack.

use super::server::{Server, status, whole};
use super::*;

fn to(location: &str) -> super::server::Answer {
    let mut answer = status("302 Found");
    answer.head.push_str(&format!("Location: {location}\r\n"));
    answer
}

#[tokio::test]
async fn every_redirect_is_judged_for_images_and_for_checksums() {
    let secret = Server::start(|_, _| whole(b"secret", "")).await;
    let port = secret.url.rsplit(':').next().expect("a port").to_owned();
    let body = disk(1, 1);
    let sum = sha256(&body);
    let targets = [
        (secret.url.clone(), "127.0.0.1 is a loopback address"),
        (format!("http://localhost:{port}/"), "is a loopback address"),
        (format!("http://[::ffff:127.0.0.1]:{port}/"), "127.0.0.1 is a loopback address"),
        ("http://169.254.169.254/latest/meta-data/".into(), "169.254.169.254 is a link-local address"),
        ("file:///etc/passwd".into(), "neither http nor https"),
        ("/loop".into(), "redirects more than 5 times"),
    ];
    let paths: Vec<_> = targets.iter().map(|(target, _)| target.clone()).collect();
    let open = Server::start(move |_, head| {
        let path = head.split_whitespace().nth(1).unwrap_or_default();
        match path.strip_prefix("/to/").and_then(|number| paths.get(number.parse::<usize>().ok()?)) {
            Some(target) => to(target),
            None if path == "/loop" => to("/loop"),
            None if path == "/moved" => to("good"),
            None => whole(&body, ""),
        }
    })
    .await;
    let only = open.url.strip_prefix("http://").expect("a URL").parse().expect("an entry");
    let (_folder, library) = library_of(Sources { allow: vec![only].into(), ..Sources::default() });
    for (number, (target, said)) in targets.iter().enumerate() {
        let hop = format!("{}/to/{number}", open.url);
        let sums = ImageSpec { checksum: Some(hop.clone()), ..spec(format!("{}/good", open.url)) };
        for spec in [spec(hop.as_str()), sums] {
            let error = import(&library, &spec).await.expect_err(target);
            assert!(error.message.contains(said), "{target}: {error}");
        }
    }
    assert_eq!(secret.requests.lock().expect("lock").len(), 0, "nothing was asked there");
    let good = ImageSpec { checksum: Some(sum), ..spec(format!("{}/moved", open.url)) };
    import(&library, &good).await.expect("imported");
    let agents = open.requests.lock().expect("lock").join("").to_ascii_lowercase();
    assert!(agents.contains("user-agent: slipway-images/"), "{agents}");
}

#[tokio::test]
async fn a_login_goes_along_to_the_same_server_only_and_stands_in_no_message() {
    let other = Server::start(|_, _| status("404 Not Found")).await;
    let target = other.url.clone();
    let first = Server::start(move |number, _| if number == 0 { to("/again") } else { to(&target) }).await;
    let (_folder, library) = library();
    let url = format!("{}/i.raw?signature=s3cret", first.url.replace("//", "//user:s3cret@"));
    let error = import(&library, &spec(url)).await.expect_err("refused");
    assert!(error.message.contains("/i.raw") && !error.message.contains("s3cret"), "{error}");
    let logins = |server: &Server| {
        let heads = server.requests.lock().expect("lock").clone();
        heads.iter().map(|head| head.to_ascii_lowercase().contains("authorization: basic")).collect::<Vec<_>>()
    };
    assert_eq!((logins(&first), logins(&other)), (vec![true, true], vec![false]));
}

#[tokio::test]
async fn what_unpacks_to_more_than_the_limit_is_refused_whatever_it_holds() {
    let (folder, library) = library_of(Sources { max_unpacked: 2 << 20, ..Sources::of_tests() });
    let disk = vec![0; 3 << 20];
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("bomb.zst"), zstd::encode_all(disk.as_slice(), 3).expect("zstd")).expect("written");
    let error = import(&library, &spec(file_url(&at("bomb.zst")))).await.expect_err("too much");
    assert!(error.message.contains("image.max_unpacked_gib") && !error.retry, "{error}");
    // What has its size on the wire is no bomb.
    std::fs::write(at("plain.raw"), &disk).expect("written");
    import(&library, &spec(file_url(&at("plain.raw")))).await.expect("imported");
    let small = zstd::encode_all(&disk[..1 << 20], 3).expect("zstd");
    std::fs::write(at("small.zst"), small).expect("written");
    import(&library, &spec(file_url(&at("small.zst")))).await.expect("imported");
}

#[tokio::test]
async fn a_library_has_no_more_chunks_than_fit_the_memory() {
    let (folder, library) = library_of(Sources { max_chunks: 12, ..Sources::of_tests() });
    let made = async |name: &str, seed: u8, mib: usize| {
        let path = folder.path().join(name);
        // Of next to nothing each, and no two alike.
        let content: Vec<u8> =
            (0..mib * MIB).map(|at| if at % MIB == 0 { seed + (at / MIB) as u8 } else { 0 }).collect();
        std::fs::write(&path, content).expect("written");
        import(&library, &spec(file_url(&path))).await
    };
    let first = made("first", 1, 12).await.expect("imported");
    let error = made("second", 100, 9).await.expect_err("full");
    assert!(error.message.contains("12 parts of a MiB") && error.retry && error.lack.is_some(), "{error}");
    assert!(library.remove(&first.digest).expect("removed"));
    made("second", 100, 9).await.expect("imported");
}
