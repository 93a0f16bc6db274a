//! Who speaks HTTP without TLS to the API's port is told so, as Go's servers do it, and not left with a connection that broke.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::lingering_close::LingeringClose;

/// How requests begin. A record of TLS begins with a byte that is no letter (RFC 8446, section 5.1).
const BEGINNINGS: [&[u8]; 7] = [b"GET /", b"HEAD ", b"POST ", b"PUT /", b"PATCH", b"DELET", b"OPTIO"];
/// What is answered: for any version of HTTP.
const ANSWER: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n\
    Client sent an HTTP request to an HTTPS server.\n";

/// Whether a peer sends a request without TLS. Waits for its first bytes, and leaves them where they are.
///
/// # Errors
///
/// When the connection breaks.
pub(super) async fn is_spoken(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; 5];
    let length = stream.peek(&mut first).await?;
    Ok(looks_like_it(&first[..length]))
}

/// Of fewer bytes than five, what may become a request counts as one: no handshake begins so.
fn looks_like_it(first: &[u8]) -> bool {
    !first.is_empty() && BEGINNINGS.iter().any(|beginning| beginning.starts_with(first))
}

/// Answers such a peer, and closes once it has read that. Takes about a second at most.
///
/// # Errors
///
/// When the connection breaks.
pub(in crate::apiserver) async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let mut stream = LingeringClose::new(stream);
    stream.write_all(ANSWER).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_told_from_a_handshake() {
        for (first, wanted) in [
            (&b"GET /"[..], true),
            (b"PATCH", true),
            (b"DELET", true),
            (b"G", true),
            (b"\x16\x03\x01\x02\x00", false),
            (b"PRI *", false),
            (b"GETAB", false),
            (b"", false),
        ] {
            assert_eq!(looks_like_it(first), wanted, "{first:?}");
        }
    }
}
