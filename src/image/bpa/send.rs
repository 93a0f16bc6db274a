//! A body of any length, sent on in pieces that each are on the disk before the next one begins.

use std::io;

use axum::body::{Body, BodyDataStream};
use bytes::Bytes;
use futures::StreamExt;
use http::Method;
use tokio::sync::mpsc;

use super::{CallRefused, Desk};

/// Type of what is sent on.
pub(super) const BYTES: &str = "application/octet-stream";
/// Bytes of a piece: what a slow sender brings within the minute that a request has.
const PIECE: u64 = 4 << 20;
/// Parts of a piece that are on their way.
const QUEUE: usize = 4;

/// What is left of a body.
struct BodyRest {
    data: BodyDataStream,
    /// Of the last part, what was too much for its piece.
    over: Bytes,
    is_over: bool,
}

impl BodyRest {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if !self.over.is_empty() {
            return Some(Ok(std::mem::take(&mut self.over)));
        }
        loop {
            match self.data.next().await {
                Some(Ok(data)) if data.is_empty() => {}
                Some(Ok(data)) => return Some(Ok(data)),
                Some(Err(error)) => {
                    self.is_over = true;
                    return Some(Err(io::Error::other(error)));
                }
                None => {
                    self.is_over = true;
                    return None;
                }
            }
        }
    }

    /// Sends a piece on; how much it was. Whoever takes it may stop before, as when the sender is too slow: then nothing is waited for.
    async fn piece(&mut self, most: u64, send: mpsc::Sender<io::Result<Bytes>>) -> u64 {
        let mut sent = 0;
        while sent < most {
            let part = tokio::select! {
                () = send.closed() => break,
                part = self.next() => part,
            };
            let Some(part) = part else { break };
            let part = part.map(|mut data| {
                let fits = usize::try_from(most - sent).unwrap_or(usize::MAX).min(data.len());
                self.over = data.split_off(fits);
                sent += data.len() as u64;
                data
            });
            let is_end = part.is_err();
            if send.send(part).await.is_err() || is_end {
                break;
            }
        }
        sent
    }
}

impl Desk<'_> {
    /// Sends a body on, from this offset on, of an image of so many bytes; how many are there then. What came before something went
    /// wrong is kept.
    pub(super) async fn pieces(&self, path: &str, mut offset: u64, size: u64, body: Body) -> Result<u64, CallRefused> {
        let mut rest = BodyRest { data: body.into_data_stream(), over: Bytes::new(), is_over: false };
        while offset < size && !rest.is_over {
            let (send, receive) = mpsc::channel(QUEUE);
            let parts = futures::stream::unfold(receive, |mut receive| async move {
                let part = receive.recv().await?;
                Some((part, receive))
            });
            let path = format!("{path}/upload?offset={offset}&size={size}");
            let asked = self.ask(Method::POST, &path, BYTES, Body::from_stream(parts));
            let (sent, answered) = futures::join!(rest.piece(PIECE.min(size - offset), send), asked);
            answered?;
            offset += sent;
        }
        Ok(offset)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn pieces(parts: &[&'static [u8]], most: u64) -> Vec<Vec<u8>> {
        let parts: Vec<_> = parts.iter().map(|part| Ok::<_, io::Error>(Bytes::from_static(part))).collect();
        let body = Body::from_stream(futures::stream::iter(parts));
        let mut rest = BodyRest { data: body.into_data_stream(), over: Bytes::new(), is_over: false };
        let mut pieces = Vec::new();
        while !rest.is_over {
            let (send, mut receive) = mpsc::channel::<io::Result<Bytes>>(QUEUE);
            let taken = async {
                let mut all = Vec::new();
                while let Some(part) = receive.recv().await {
                    all.extend_from_slice(&part.unwrap());
                }
                all
            };
            let (sent, taken) = futures::join!(rest.piece(most, send), taken);
            assert_eq!(sent, taken.len() as u64);
            pieces.push(taken);
        }
        pieces
    }

    #[tokio::test]
    async fn a_body_is_cut_where_a_piece_ends() {
        assert_eq!(pieces(&[b"abcdefg", b"", b"hi"], 3).await, [&b"abc"[..], b"def", b"ghi", b""]);
        assert_eq!(pieces(&[b"ab", b"c"], 9).await, [b"abc"]);
        assert_eq!(pieces(&[], 9).await, [b""]);
    }

    #[tokio::test]
    async fn a_sender_who_stands_still_is_not_waited_for_when_nobody_takes_more() {
        let data = Body::from_stream(futures::stream::pending::<io::Result<Bytes>>()).into_data_stream();
        let mut rest = BodyRest { data, over: Bytes::new(), is_over: false };
        let (send, receive) = mpsc::channel(QUEUE);
        drop(receive);
        let sent = tokio::time::timeout(Duration::from_secs(60), rest.piece(4, send)).await;
        assert_eq!(sent, Ok(0));
    }
}
