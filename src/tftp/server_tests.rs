use super::*;
use std::net::UdpSocket as Client;

const DEADLINE: Duration = Duration::from_secs(20);

struct Running {
    address: SocketAddr,
    folder: tempfile::TempDir,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<io::Result<()>>,
}

impl Running {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let server = Server::bind(([127, 0, 0, 1], 0).into(), BootFiles::new(folder.path())).expect("bound");
        let address = server.local_addr().expect("address");
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(server.run(shutdown.clone()));
        Self { address, folder, shutdown, task }
    }

    fn write(&self, name: &str, data: &[u8]) {
        std::fs::write(self.folder.path().join(name), data).expect("written");
    }

    async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(DEADLINE, self.task).await.expect("stopped in time").expect("no panic").expect("served");
    }
}

/// Runs a blocking client beside the server.
async fn client<T: Send + 'static>(work: impl FnOnce(Client) -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(|| {
        let socket = Client::bind("127.0.0.1:0").expect("client");
        socket.set_read_timeout(Some(DEADLINE)).expect("deadline");
        work(socket)
    })
    .await
    .expect("client")
}

fn receive_from(socket: &Client) -> (Vec<u8>, SocketAddr) {
    let mut buffer = [0; 2000];
    let (length, from) = socket.recv_from(&mut buffer).expect("an answer before the deadline");
    (buffer[..length].to_vec(), from)
}

fn fetch(socket: &Client, server: SocketAddr, request: &[u8]) -> Vec<u8> {
    socket.send_to(request, server).expect("sent");
    let mut data = Vec::new();
    loop {
        let (packet, from) = receive_from(socket);
        match packet[1] {
            6 => drop(socket.send_to(&[0, 4, 0, 0], from).expect("sent")),
            3 => {
                data.extend_from_slice(&packet[4..]);
                socket.send_to(&[0, 4, packet[2], packet[3]], from).expect("sent");
                if packet.len() < 516 {
                    return data;
                }
            }
            other => panic!("opcode {other}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_size_probe_that_is_aborted_costs_nothing_even_from_the_same_port() {
    let server = Running::start();
    let data: Vec<u8> = (0..100_000u32).map(|n| (n % 253) as u8).collect();
    server.write("snponly.efi", &data);
    let address = server.address;
    let got = client(move |socket| {
        socket.send_to(b"\0\x01snponly.efi\0octet\0tsize\x000\0blksize\x00512\0", address).expect("sent");
        let (oack, first) = receive_from(&socket);
        assert!(oack.starts_with(b"\0\x06tsize\x00100000\0"), "{}", oack.escape_ascii());
        socket.send_to(b"\0\x05\0\x08User aborted the transfer\0", first).expect("sent");
        socket.send_to(b"\0\x01snponly.efi\0octet\0blksize\x00512\0", address).expect("sent");
        let (oack, second) = receive_from(&socket);
        assert_eq!(oack, b"\0\x06blksize\x00512\0");
        assert_ne!(first, second);
        socket.send_to(&[0, 4, 0, 0], second).expect("sent");
        let (packet, from) = receive_from(&socket);
        assert_eq!((&packet[..4], from), (&[0, 3, 0, 1][..], second));
        socket.send_to(b"\0\x05\0\0done\0", second).expect("sent");
        fetch(&socket, address, b"\0\x01snponly.efi\0octet\0")
    })
    .await;
    assert!(got == data);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_listed_is_refused_and_nothing_is_written() {
    let server = Running::start();
    std::fs::write(server.folder.path().join("secret"), b"secret").expect("written");
    let address = server.address;
    client(move |socket| {
        let rows: [(&[u8], u8); 9] = [
            (b"\0\x01../../etc/passwd\0octet\0", 2),
            (b"\0\x01/etc/passwd\0octet\0", 2),
            (b"\0\x01..\\..\\boot.ini\0octet\0", 2),
            (b"\0\x01a\nb\0octet\0", 2),
            (b"\0\x01secret\0octet\0", 1),
            (b"\0\x01snponly.efi\0octet\0", 1),
            (b"\0\x01snponly.efi\0netascii\0", 4),
            (b"\0\x02snponly.efi\0octet\0", 2),
            (b"\0\x01no-end", 4),
        ];
        for (request, code) in rows {
            socket.send_to(request, address).expect("sent");
            let (answer, _) = receive_from(&socket);
            assert_eq!(answer[..4], [0, 5, 0, code], "{}", request.escape_ascii());
        }
    })
    .await;
    let left: Vec<_> = std::fs::read_dir(server.folder.path()).expect("listed").flatten().collect();
    assert_eq!(left.len(), 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strangers_packet_gets_error_5_and_harms_nothing() {
    let server = Running::start();
    server.write("ipxe.efi", &[7; 700]);
    let address = server.address;
    client(move |socket| {
        socket.send_to(b"\0\x01ipxe.efi\0octet\0", address).expect("sent");
        let (block, transfer) = receive_from(&socket);
        assert_eq!(block.len(), 516);
        let stranger = Client::bind("127.0.0.1:0").expect("stranger");
        stranger.set_read_timeout(Some(DEADLINE)).expect("deadline");
        stranger.send_to(&[0, 4, 0, 1], transfer).expect("sent");
        assert_eq!(receive_from(&stranger).0[..4], [0, 5, 0, 5]);
        socket.send_to(&[0, 4, 0, 1], transfer).expect("sent");
        assert_eq!(receive_from(&socket).0[..4], [0, 3, 0, 2]);
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_comes_from_the_address_that_was_asked() {
    let folder = tempfile::tempdir().expect("folder");
    std::fs::write(folder.path().join("ipxe.efi"), b"x").expect("written");
    let server = Server::bind(([0, 0, 0, 0], 0).into(), BootFiles::new(folder.path())).expect("bound");
    let port = server.local_addr().expect("address").port();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(server.run(shutdown.clone()));
    client(move |socket| {
        for name in ["ipxe.efi", "../x"] {
            socket.send_to(format!("\0\x01{name}\0octet\0").as_bytes(), ("127.0.0.77", port)).expect("sent");
            assert_eq!(receive_from(&socket).1.ip(), IpAddr::from([127, 0, 0, 77]));
        }
    })
    .await;
    shutdown.cancel();
    tokio::time::timeout(DEADLINE, task).await.expect("stopped in time").expect("no panic").expect("served");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_arrive_whole() {
    let server = Running::start();
    let data: Vec<u8> = (0..50_000u32).map(|n| (n % 241) as u8).collect();
    server.write("ipxe.efi", &data);
    let address = server.address;
    let got = client(move |socket| {
        socket.send_to(b"\0\x01ipxe.efi\0octet\0blksize\x001468\0windowsize\x0016\0", address).expect("sent");
        let (oack, from) = receive_from(&socket);
        assert_eq!(oack, b"\0\x06blksize\x001468\0windowsize\x0016\0");
        socket.send_to(&[0, 4, 0, 0], from).expect("sent");
        let mut got = Vec::new();
        let mut next = 1u16;
        loop {
            let (packet, _) = receive_from(&socket);
            if packet[2..4] == next.to_be_bytes() {
                got.extend_from_slice(&packet[4..]);
                let last = packet.len() < 1472;
                if next.is_multiple_of(16) || last {
                    socket.send_to(&[0, 4, packet[2], packet[3]], from).expect("sent");
                }
                if last {
                    return got;
                }
                next += 1;
            }
        }
    })
    .await;
    assert!(got == data);
    server.stop().await;
}
