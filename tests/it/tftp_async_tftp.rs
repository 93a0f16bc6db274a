//! Why Slipway has a TFTP server of its own: what async-tftp 0.4.2 does where real firmware meets it.
//!
//! Tried with OVMF 2022.11's own PXE client: its abort after the size probe costs nothing, because it asks again
//! from another port; its requests to a second address of the server are answered from the first one, and it ends
//! with PXE-E18 "Server response timeout". Here both are shown over loopback, and that Slipway's server does better.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use async_tftp::server::TftpServerBuilder;
use slipway::boot::BootFiles;
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(20);
const PROBE: &[u8] = b"\0\x01snponly.efi\0octet\0tsize\x000\0blksize\x001468\0windowsize\x004\0";
const ABORT: &[u8] = b"\0\x05\0\x08User aborted the transfer\0";
const REQUEST: &[u8] = b"\0\x01snponly.efi\0octet\0blksize\x001468\0windowsize\x004\0";

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("folder");
    std::fs::write(folder.path().join("snponly.efi"), vec![1; 100_000]).expect("written");
    folder
}

/// async-tftp with the bounds it offers, on a thread that ends with the test.
async fn async_tftp(folder: &std::path::Path) -> u16 {
    let server = TftpServerBuilder::with_dir_ro(folder)
        .expect("folder")
        .bind(([0, 0, 0, 0], 0).into())
        .timeout(Duration::from_secs(1))
        .ignore_client_timeout()
        .max_send_retries(5)
        .block_size_limit(1468)
        .window_size_limit(16)
        .build()
        .await
        .expect("bound");
    let port = server.listen_addr().expect("address").port();
    tokio::spawn(server.serve());
    port
}

fn slipway(folder: &std::path::Path, shutdown: &CancellationToken) -> u16 {
    let server = slipway::tftp::TftpServer::bind(([0, 0, 0, 0], 0).into(), BootFiles::new(folder)).expect("bound");
    let port = server.local_addr().expect("address").port();
    tokio::spawn(server.run(shutdown.clone()));
    port
}

fn receive(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = [0; 2000];
    let (length, from) = socket.recv_from(&mut buffer).expect("a packet before the deadline");
    (buffer[..length].to_vec(), from)
}

/// Probes, aborts and asks again from the same port. Returns whether the next packet belongs to a new transfer.
async fn answered_after_abort(port: u16) -> bool {
    tokio::task::spawn_blocking(move || {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("client");
        socket.set_read_timeout(Some(DEADLINE)).expect("deadline");
        socket.send_to(PROBE, ("127.0.0.1", port)).expect("sent");
        let (_, probed) = receive(&socket);
        socket.send_to(ABORT, probed).expect("sent");
        socket.send_to(REQUEST, ("127.0.0.1", port)).expect("sent");
        receive(&socket).1 != probed
    })
    .await
    .expect("client")
}

async fn answer_address(port: u16) -> std::net::IpAddr {
    tokio::task::spawn_blocking(move || {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("client");
        socket.set_read_timeout(Some(DEADLINE)).expect("deadline");
        socket.send_to(PROBE, ("127.0.0.2", port)).expect("sent");
        receive(&socket).1.ip()
    })
    .await
    .expect("client")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_and_a_second_address() {
    let folder = folder();
    let theirs = async_tftp(folder.path()).await;
    assert!(!answered_after_abort(theirs).await, "async-tftp hears the client's ERROR now: look at it again");
    assert_eq!(answer_address(theirs).await, std::net::Ipv4Addr::new(127, 0, 0, 1));

    let shutdown = CancellationToken::new();
    let ours = slipway(folder.path(), &shutdown);
    assert!(answered_after_abort(ours).await);
    assert_eq!(answer_address(ours).await, std::net::Ipv4Addr::new(127, 0, 0, 2));
    shutdown.cancel();
}
