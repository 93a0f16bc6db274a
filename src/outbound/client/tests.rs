//! Tests of the client against servers that lie.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

fn client(port: u16) -> OutboundClient {
    client_by(port, None)
}

fn client_by(port: u16, proxies: Option<Matcher>) -> OutboundClient {
    let tls = rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    OutboundClient::new(ClientSettings {
        guard: None,
        port,
        addresses: Vec::new(),
        tls,
        connect_timeout: Duration::from_secs(10),
        proxies,
        keep: Duration::from_secs(10),
        user_agent: HeaderValue::from_static("slipway/test"),
        most: 64 << 10,
    })
}

/// Answers each connection with `first`, then with `again` for ever.
async fn server(first: &'static str, again: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            while stream.read(&mut request).await.is_ok_and(|length| length > 0) {
                let mut open = stream.write_all(first.as_bytes()).await.is_ok();
                while open && !again.is_empty() {
                    open = stream.write_all(again.repeat(1000).as_bytes()).await.is_ok();
                }
            }
        }
    });
    port
}

async fn get(client: &OutboundClient, port: u16) -> Result<OutboundResponse, OutboundError> {
    let url = format!("http://a%20b:c@127.0.0.1:{port}/x").parse().unwrap();
    client.send(Method::GET, &url, HeaderMap::new(), Bytes::new(), Some(Duration::from_secs(60))).await
}

fn causes(error: &OutboundError) -> String {
    let (mut text, mut next) = (error.to_string(), error.source());
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}

#[tokio::test]
async fn a_server_that_sends_without_end_is_read_no_further_than_the_bound() {
    for (first, again) in [
        ("", "HTTP/1.1 100 \r\n\r\n"),
        ("", "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
        ("HTTP/1.1 200 OK\r\n", "a: b\r\n"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "1\r\nx\r\n"),
    ] {
        let port = server(first, again).await;
        let error = match get(&client(port), port).await {
            Err(error) => error,
            Ok(mut answer) => loop {
                match answer.chunk().await {
                    Ok(piece) => assert!(piece.is_some(), "it has no end"),
                    Err(error) => break error,
                }
            },
        };
        let reason = causes(&error);
        // hyper has a bound of its own for the head.
        assert!(
            reason.contains("more than 64 KiB came") || reason.contains("head is too large"),
            "{first} {again}: {reason}"
        );
        assert!(!error.is_timeout());
    }
}

#[tokio::test]
async fn a_body_of_any_length_is_read_on_and_the_next_request_counts_anew() {
    let body =
        Box::leak(format!("HTTP/1.1 200 OK\r\ncontent-length: 40000\r\n\r\n{}", "x".repeat(40_000)).into_boxed_str());
    let port = server(body, "").await;
    let client = client(port);
    for _ in 0..3 {
        let mut answer = get(&client, port).await.unwrap();
        let mut length = 0;
        while let Some(piece) = answer.chunk().await.unwrap() {
            length += piece.len();
        }
        assert_eq!((answer.content_length(), length), (Some(0), 40_000));
    }
    let piece = Box::leak(format!("3e8\r\n{}\r\n", "x".repeat(1000)).into_boxed_str());
    let port = server("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", piece).await;
    let mut answer = get(&self::client(port), port).await.unwrap().of_any_length();
    let mut length = 0;
    while length < 1 << 20 {
        length += answer.chunk().await.unwrap().unwrap().len();
    }
}

/// Answers one connection, and gives what came on it.
async fn heard(answer: &'static str) -> (u16, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 4096];
        let length = stream.read(&mut request).await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
        String::from_utf8_lossy(&request[..length]).into_owned()
    });
    (port, heard)
}

#[tokio::test]
async fn a_proxy_is_gone_by() {
    let (port, heard_by_proxy) = heard("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let proxies = Matcher::builder().all(format!("http://me:it@127.0.0.1:{port}")).build();
    let url = "http://images.example:81/x?y".parse().unwrap();
    let client = client_by(81, Some(proxies));
    let mut answer = client.send(Method::GET, &url, HeaderMap::new(), Bytes::new(), None).await.unwrap();
    assert_eq!(answer.chunk().await.unwrap().unwrap(), "ok");
    let heard_by_proxy = heard_by_proxy.await.unwrap();
    assert!(heard_by_proxy.starts_with("GET http://images.example:81/x?y HTTP/1.1\r\n"), "{heard_by_proxy}");
    assert!(heard_by_proxy.to_lowercase().contains("proxy-authorization: basic bwu6axq="), "{heard_by_proxy}");
    // With TLS through it.
    let (port, heard_by_proxy) = heard("HTTP/1.1 200 OK\r\n\r\n").await;
    let proxies = Matcher::builder().all(format!("http://127.0.0.1:{port}")).build();
    let url = "https://images.example/x".parse().unwrap();
    let asked = client_by(443, Some(proxies)).send(Method::GET, &url, HeaderMap::new(), Bytes::new(), None).await;
    assert!(asked.is_err());
    assert!(heard_by_proxy.await.unwrap().starts_with("CONNECT images.example:443 HTTP/1.1\r\n"));
}

#[test]
fn a_login_in_a_url_is_sent_as_one() {
    let (uri, login) = target(&"https://a%20b:c%3A@example.org:8443/x?y#z".parse().unwrap()).unwrap();
    assert_eq!(uri, "https://example.org:8443/x?y");
    // `a b:c:`
    assert_eq!(login.unwrap(), "Basic YSBiOmM6");
    assert!(target(&"http://example.org/".parse().unwrap()).unwrap().1.is_none());
}
