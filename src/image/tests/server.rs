//! An HTTP server that goes wrong as told.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// What one request is answered with.
pub struct Answer {
    pub head: String,
    pub body: Vec<u8>,
    /// Keep the connection open without a word afterwards.
    pub stall: bool,
}

/// A server on loopback; ends when dropped.
pub struct Server {
    pub url: String,
    pub requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// `answer` gets the number of the request, from 0, and its head.
    pub async fn start(answer: impl Fn(usize, &str) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let url = format!("http://{}", listener.local_addr().expect("address"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        let (answer, count) = (Arc::new(answer), AtomicUsize::new(0));
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (answer, seen) = (answer.clone(), seen.clone());
                let number = count.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    let mut buffer = [0; 4096];
                    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
                        match stream.read(&mut buffer).await {
                            Ok(n) if n > 0 => head.extend_from_slice(&buffer[..n]),
                            _ => return,
                        }
                    }
                    let head = String::from_utf8_lossy(&head).into_owned();
                    seen.lock().expect("lock").push(head.clone());
                    let Answer { head, body, stall } = answer(number, &head);
                    // The client may hang up at any time.
                    let _ = stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).await;
                    let _ = stream.write_all(&body).await;
                    let _ = stream.flush().await;
                    if stall {
                        let _ = stream.read(&mut buffer).await;
                    }
                });
            }
        });
        Self { url, requests, task }
    }
}

/// First byte that a request asks for.
pub fn range(request: &str) -> Option<usize> {
    let line = request.lines().find(|line| line.to_ascii_lowercase().starts_with("range: bytes="))?;
    line.split('=').nth(1)?.trim_end_matches('-').trim().parse().ok()
}

/// 200 with the whole body and its length.
pub fn whole(body: &[u8], headers: &str) -> Answer {
    Answer {
        head: format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{headers}", body.len()),
        body: body.to_vec(),
        stall: false,
    }
}

/// 206 from an offset.
pub fn part(body: &[u8], from: usize, headers: &str) -> Answer {
    let (last, total) = (body.len() - 1, body.len());
    Answer {
        head: format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {from}-{last}/{total}\r\n{headers}",
            total - from
        ),
        body: body[from..].to_vec(),
        stall: false,
    }
}

/// No body.
pub fn status(line: &str) -> Answer {
    Answer { head: format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\n"), body: Vec::new(), stall: false }
}

impl Answer {
    /// Sends only this much of the body.
    pub fn cut(mut self, length: usize) -> Self {
        self.body.truncate(length);
        self
    }

    /// Goes silent at the end.
    pub fn stalled(mut self) -> Self {
        self.stall = true;
        self
    }
}
