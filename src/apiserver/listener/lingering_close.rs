//! The end of a connection, such that the last answer on it is read.
//!
//! A request may be answered before its body is read to the end: it is too large, or nobody may send it. To close with
//! bytes unread makes the kernel reset the connection, and a reset takes with it the answer that the peer has not read.
//! So what still comes is read and thrown away until the peer closes as well, for a bounded time (RFC 9112, section 9.6).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A peer has this long to read the last answer and to close.
const LINGER: Duration = Duration::from_secs(1);
/// Bytes thrown away at once.
const PIECE: usize = 8 * 1024;

/// A stream that, once shut down for writing, is read until its peer has closed it or [`LINGER`] is over.
pub(super) struct LingeringClose<S> {
    stream: S,
    ends: Option<Pin<Box<Sleep>>>,
}

impl<S> LingeringClose<S> {
    pub(in crate::apiserver) fn new(stream: S) -> Self {
        Self { stream, ends: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LingeringClose<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LingeringClose<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.ends.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        }
        let ends = this.ends.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        let mut piece = [0; PIECE];
        loop {
            // First, so that a peer who never stops sending is given up, too.
            if ends.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut piece = ReadBuf::new(&mut piece);
            match ready!(Pin::new(&mut this.stream).poll_read(cx, &mut piece)) {
                Ok(()) if !piece.filled().is_empty() => {}
                // Closed, or broken: either way nobody reads any more.
                _ => return Poll::Ready(Ok(())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn an_answer_is_read_by_who_sends_first_and_reads_then() {
        let (mut client, server) = pair().await;
        let serving = tokio::spawn(async move {
            let mut server = LingeringClose::new(server);
            server.write_all(b"too large").await.unwrap();
            server.shutdown().await.unwrap();
        });
        client.write_all(&vec![0; 8 * 1024 * 1024]).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "too large");
        drop(client);
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn who_never_closes_is_given_up() {
        let (mut client, server) = pair().await;
        let sending = tokio::spawn(async move { while client.write_all(&[0; PIECE]).await.is_ok() {} });
        let mut server = LingeringClose::new(server);
        tokio::time::timeout(LINGER * 20, server.shutdown()).await.expect("it ends").unwrap();
        drop(server);
        tokio::time::timeout(LINGER * 20, sending).await.expect("the peer is told").unwrap();
        let (_silent, server) = pair().await;
        tokio::time::timeout(LINGER * 20, LingeringClose::new(server).shutdown()).await.expect("it ends").unwrap();
    }
}
