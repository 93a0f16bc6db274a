//! Whether a machine answers SSH. One whose system is on its disk is still starting, which takes a server minutes.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Where it is asked.
const PORT: u16 = 22;
/// How long one may take.
const TURN: Duration = Duration::from_secs(3);
/// Machines that are asked at once.
const AT_ONCE: usize = 16;
/// Silent ones after which no more are asked.
const SILENT_MAX: usize = 8;
/// Bytes in which a server names its protocol (RFC 4253, section 4.2: 255 in a line, and there may be lines before it).
const GREETING_MAX: usize = 1024;

/// Whether SSH is answered at an address.
pub type Probe = Arc<dyn Fn(IpAddr) -> BoxFuture<'static, bool> + Send + Sync>;

/// Asks by connecting, and sends nothing.
pub fn ssh() -> Probe {
    Arc::new(|address| Box::pin(answers(SocketAddr::new(address, PORT))))
}

async fn answers(at: SocketAddr) -> bool {
    let asked = async { greets(TcpStream::connect(at).await.ok()?).await.then_some(()) };
    matches!(timeout(TURN, asked).await, Ok(Some(())))
}

/// Whether somebody says that he speaks SSH.
async fn greets(mut stream: impl AsyncRead + Unpin) -> bool {
    let (mut said, mut part) = (Vec::new(), [0; 256]);
    while said.len() < GREETING_MAX {
        match stream.read(&mut part).await {
            Ok(read) if read > 0 => said.extend_from_slice(&part[..read]),
            _ => return false,
        }
        if said.split(|byte| *byte == b'\n').any(|line| line.starts_with(b"SSH-")) {
            return true;
        }
    }
    false
}

/// The first of these that do not answer, in their order.
pub async fn silent<'n>(nodes: &[(&'n str, IpAddr)], probe: &Probe) -> Vec<&'n str> {
    let one = |(name, address): &(&'n str, IpAddr)| {
        let (name, answers) = (*name, probe(*address));
        async move { (!answers.await).then_some(name) }
    };
    let asked: Vec<_> = nodes.iter().map(one).collect();
    stream::iter(asked).buffered(AT_ONCE).filter_map(std::future::ready).take(SILENT_MAX).collect().await
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn who_says_that_he_speaks_ssh_answers() {
        for (said, wanted) in [
            ("SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", true),
            ("welcome\r\nto the rack\r\nSSH-2.0-x\r\n", true),
            ("SSH-1.99-x", true),
            ("220 mail.example SMTP\r\n", false),
            ("no SSH- here\r\n", false),
            ("", false),
            (&"x\r\n".repeat(2000), false),
        ] {
            let (mut theirs, ours) = tokio::io::duplex(4096);
            let text = said.to_owned();
            let says = tokio::spawn(async move {
                // Whoever has heard enough hangs up.
                let _ = theirs.write_all(text.as_bytes()).await;
            });
            assert_eq!(greets(ours).await, wanted, "{said:.40}");
            says.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_closed_port_does_not_answer_and_an_open_one_is_asked() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let serve = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"SSH-2.0-test\r\n").await.unwrap();
        });
        assert!(answers(at).await);
        serve.await.unwrap();
        assert!(!answers(at).await, "nobody listens any more");
    }

    #[tokio::test]
    async fn some_of_many_silent_machines_are_named() {
        let names: Vec<String> = (0..200).map(|number| format!("n{number:03}")).collect();
        let nodes: Vec<(&str, IpAddr)> =
            (0..200_u8).map(|number| (names[usize::from(number)].as_str(), IpAddr::from([10, 0, 0, number]))).collect();
        let odd: Probe = Arc::new(|address| {
            let IpAddr::V4(address) = address else { panic!("{address}") };
            Box::pin(std::future::ready(address.octets()[3] % 2 == 1))
        });
        let silent = silent(&nodes, &odd).await;
        assert_eq!((silent.len(), silent[0], silent[7]), (SILENT_MAX, "n000", "n014"));
        let all: Probe = Arc::new(|_| Box::pin(std::future::ready(true)));
        assert!(super::silent(&nodes, &all).await.is_empty());
    }
}
