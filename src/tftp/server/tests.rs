//! Tests of the TFTP server over loopback.

use super::super::admission::{MAX_PER_ADDRESS, MAX_TRANSFERS};
use super::*;
use crate::ration::Rank;
use std::net::UdpSocket as Client;

const DEADLINE: Duration = Duration::from_secs(20);

struct Running {
    address: SocketAddr,
    folder: tempfile::TempDir,
    metrics: TftpMetrics,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<io::Result<()>>,
}

impl Running {
    fn start() -> Self {
        Self::start_ranked(crate::ration::all_alike())
    }

    fn start_ranked(ranks: Ranks) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let server = TftpServer::bind(([127, 0, 0, 1], 0).into(), BootFiles::new(folder.path())).expect("bound");
        let server = server.ranked_by(ranks);
        let address = server.local_addr().expect("address");
        let metrics = server.metrics();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(server.run(shutdown.clone()));
        Self { address, folder, metrics, shutdown, task }
    }

    fn write(&self, name: &str, data: &[u8]) {
        std::fs::write(self.folder.path().join(name), data).expect("written");
    }

    /// What a scrape shows of a series.
    fn count(&self, series: &str) -> u64 {
        let text = crate::metrics::shown(|registry| self.metrics.register(registry));
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {series} in {text}")).parse().expect("a number")
    }

    /// Requests by what became of them.
    fn ended(&self, outcome: &str) -> u64 {
        self.count(&format!("slipway_tftp_transfers_total{{outcome=\"{outcome}\"}}"))
    }

    async fn until(&self, what: &str, met: impl Fn() -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !met() {
            assert!(Instant::now() < deadline, "{what}");
            task::yield_now().await;
        }
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
        // As if it had not come.
        socket.send_to(b"\0\x01snponly.efi\0octet\0tsize\x000\0blksize\x00512\0", address).expect("sent");
        assert_eq!(receive_from(&socket), (oack, first));
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
    server.until("one is completed", || server.ended("completed") == 1).await;
    // The next request may come before the end of the one before it.
    server.until("two are given up", || server.ended("aborted") + server.ended("replaced") == 2).await;
    server.until("none is under way", || server.count("slipway_tftp_active_transfers") == 0).await;
    assert!(server.count("slipway_tftp_repeated_packets_total") >= 1);
    assert!(server.count("slipway_tftp_sent_bytes_total") > 100_000);
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
    server.until("each has ended", || (server.ended("not-found"), server.ended("refused")) == (2, 7)).await;
    assert_eq!(server.ended("failed"), 0);
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
    assert_eq!(server.count("slipway_tftp_active_transfers"), 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_comes_from_the_address_that_was_asked() {
    let folder = tempfile::tempdir().expect("folder");
    std::fs::write(folder.path().join("ipxe.efi"), b"x").expect("written");
    let server = TftpServer::bind(([0, 0, 0, 0], 0).into(), BootFiles::new(folder.path())).expect("bound");
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

/// Requests from as many made-up addresses as fill the table, whose answers nobody takes. One port each: no address has
/// too many.
fn spoof(server: SocketAddr, requests: usize) -> Vec<Client> {
    let spoof = |number: usize| {
        let [.., high, low] = (number as u32 + 256).to_be_bytes();
        let socket = Client::bind((Ipv4Addr::new(127, 9, high, low), 0)).expect("a stranger");
        socket.send_to(b"\0\x01ipxe.efi\0octet\0", server).expect("sent");
        // Its transfer has begun, so that the order is known.
        socket.set_read_timeout(Some(DEADLINE)).expect("deadline");
        assert_eq!(receive_from(&socket).0[..4], [0, 3, 0, 1]);
        socket
    };
    (0..requests).map(spoof).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_nobody_answers_delay_no_transfer() {
    let server = Running::start();
    server.write("ipxe.efi", &[7; 100_000]);
    let address = server.address;
    client(move |socket| {
        // Under way before, and not ended by what comes.
        let before = Client::bind("127.0.0.2:0").expect("client");
        before.set_read_timeout(Some(DEADLINE)).expect("deadline");
        before.send_to(b"\0\x01ipxe.efi\0octet\0", address).expect("sent");
        let (_, own) = receive_from(&before);
        before.send_to(&[0, 4, 0, 1], own).expect("sent");
        assert_eq!(receive_from(&before).0[..4], [0, 3, 0, 2]);
        let spoofed = spoof(address, MAX_TRANSFERS - 1);
        // Asks once. Silence would be the end of many a firmware's patience.
        assert_eq!(fetch(&socket, address, b"\0\x01ipxe.efi\0octet\0"), [7; 100_000]);
        // In this machine's own name, sixteen ports of it.
        for _ in 0..MAX_PER_ADDRESS {
            let spoofed = Client::bind("127.0.0.1:0").expect("client");
            spoofed.set_read_timeout(Some(DEADLINE)).expect("deadline");
            spoofed.send_to(b"\0\x01ipxe.efi\0octet\0", address).expect("sent");
            receive_from(&spoofed);
        }
        assert_eq!(fetch(&socket, address, b"\0\x01ipxe.efi\0octet\0"), [7; 100_000]);
        before.send_to(&[0, 4, 0, 2], own).expect("sent");
        // Repetitions of the block before may have come meanwhile.
        while receive_from(&before).0[..4] != [0, 3, 0, 3] {}
        drop(spoofed);
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_known_host_gets_its_program_while_strangers_hold_all_they_can() {
    const KNOWN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
    let ranks = |address: IpAddr| if address == KNOWN { Rank::Known } else { Rank::Stranger };
    let server = Running::start_ranked(std::sync::Arc::new(ranks));
    server.write("ipxe.efi", &[7; 100_000]);
    let address = server.address;
    client(move |_| {
        // Ten strangers with many addresses, each of whom answers once and then takes its time.
        let mut held = Vec::new();
        let mut refused = 0;
        for number in 0..MAX_TRANSFERS {
            let [.., high, low] = (number as u32 + 256).to_be_bytes();
            let socket = Client::bind((Ipv4Addr::new(127, 9, high, low), 0)).expect("a stranger");
            socket
                .set_read_timeout(Some(if refused == 0 { Duration::from_secs(2) } else { Duration::from_millis(20) }))
                .expect("deadline");
            socket.send_to(b"\0\x01ipxe.efi\0octet\0", address).expect("sent");
            let mut buffer = [0; 2000];
            match socket.recv_from(&mut buffer) {
                Ok((_, from)) => {
                    socket.send_to(&[0, 4, 0, 1], from).expect("sent");
                    socket.set_read_timeout(Some(DEADLINE)).expect("deadline");
                    while receive_from(&socket).0[..4] != [0, 3, 0, 2] {}
                    held.push(socket);
                }
                Err(_) => refused += 1,
            }
        }
        assert!(held.len() <= MAX_TRANSFERS / 4, "{} of {MAX_TRANSFERS}", held.len());
        let socket = Client::bind((KNOWN, 0)).expect("client");
        socket.set_read_timeout(Some(DEADLINE)).expect("deadline");
        assert_eq!(fetch(&socket, address, b"\0\x01ipxe.efi\0octet\0"), [7; 100_000]);
    })
    .await;
    server.stop().await;
}

#[test]
fn only_packets_of_a_transfer_are_told_that_they_are_of_another_one() {
    for (packet, answered) in [
        (&[0, 4, 0, 1][..], true),
        (&[0, 3, 0, 1, 7], true),
        (&[0, 5, 0, 5, 0], false),
        (&[0, 4, 0], false),
        (&[0, 6, 0, 0], false),
        (b"junk", false),
        (&[], false),
    ] {
        assert_eq!(is_misdirected(packet), answered, "{packet:?}");
    }
}
