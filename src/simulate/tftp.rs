//! A boot program by TFTP, as firmware fetches it: first how large it is, then all of it (RFC 1350, 2347 to 2349, 7440).

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::Instant;

use super::lossy_link::LossyLink;
use super::rng::SeededRng;

/// First wait for an answer; doubles with every repetition.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Repetitions of a packet without an answer before the firmware gives up.
const REPEATS: u32 = 6;
/// Largest packet that is taken, in bytes: an Ethernet frame's.
const LONGEST: usize = 1500;
/// Largest boot program, in bytes.
const LARGEST: u64 = 64 << 20;

/// How a kind of firmware asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TftpOptions {
    /// Bytes of a block that it wants.
    pub block_size: u16,
    /// Blocks between two acknowledgements that it wants; none asks for nothing and gets one at a time.
    pub window: Option<u16>,
}

impl TftpOptions {
    /// OVMF and what is made of it: packets that fill a frame, four at a time.
    pub const UEFI: Self = Self { block_size: 1468, window: Some(4) };
    /// The ROM of a network card: one packet at a time.
    pub const BIOS: Self = Self { block_size: 1456, window: None };
}

/// Fetches a file; gives its bytes. `whole` is false when only its size is asked for.
///
/// # Errors
/// When the server refuses, does not answer, or answers what was not asked for.
pub async fn fetch(
    link: &LossyLink,
    server: SocketAddr,
    name: &str,
    manner: TftpOptions,
    whole: bool,
    rng: &mut SeededRng,
) -> io::Result<usize> {
    let probe = SimulatedTransfer::ask(link, server, name, manner, true, rng).await?;
    let Some(size) = probe.granted.size else { return Err(wrong("the server does not tell the size".into())) };
    probe.end(rng).await;
    if !whole {
        return Ok(0);
    }
    let got = SimulatedTransfer::ask(link, server, name, manner, false, rng).await?.receive(rng).await?;
    if got as u64 != size {
        return Err(wrong(format!("{name}: {got} bytes came, {size} were told")));
    }
    Ok(got)
}

fn wrong(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// What the server granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Granted {
    size: Option<u64>,
    block_size: usize,
    window: u16,
}

/// A packet of the server.
#[derive(Debug, PartialEq, Eq)]
enum Packet<'p> {
    Granted(Granted),
    Data(u16, &'p [u8]),
}

/// A transfer whose options are granted.
struct SimulatedTransfer<'w> {
    link: &'w LossyLink,
    socket: UdpSocket,
    /// The server's port of this transfer.
    peer: SocketAddr,
    granted: Granted,
}

impl<'w> SimulatedTransfer<'w> {
    /// Asks until the options are granted.
    async fn ask(
        link: &'w LossyLink,
        server: SocketAddr,
        name: &str,
        manner: TftpOptions,
        size: bool,
        rng: &mut SeededRng,
    ) -> io::Result<Self> {
        let socket = UdpSocket::bind((link.source.unwrap_or(Ipv4Addr::UNSPECIFIED), 0)).await?;
        let request = request(name, manner, size);
        let mut buffer = [0; LONGEST];
        for wait in waits() {
            if !link.loses(rng) {
                socket.send_to(&request, server).await?;
            }
            let until = Instant::now() + wait;
            while let Ok(received) = tokio::time::timeout_at(until, socket.recv_from(&mut buffer)).await {
                // An unreachable server shows as an error, and may be back at the next try.
                let Ok((length, peer)) = received else { break };
                if peer.ip() != server.ip() || link.loses(rng) {
                    continue;
                }
                match parse(&buffer[..length], manner)? {
                    Some(Packet::Granted(granted)) => return Ok(Self { link, socket, peer, granted }),
                    Some(Packet::Data(..)) => return Err(wrong("the server passed over every option".into())),
                    None => {}
                }
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("{server} does not answer a read request for {name}")))
    }

    /// Wants no more, as firmware says that has learnt the size.
    async fn end(&self, rng: &mut SeededRng) {
        // Best effort: the server gives up by itself otherwise.
        let _unheard = self.send(b"\0\x05\0\0User aborted the transfer\0", rng).await;
    }

    async fn send(&self, packet: &[u8], rng: &mut SeededRng) -> io::Result<()> {
        if self.link.loses(rng) {
            return Ok(());
        }
        self.socket.send_to(packet, self.peer).await.map(drop)
    }

    /// Takes all blocks; gives the bytes.
    async fn receive(self, rng: &mut SeededRng) -> io::Result<usize> {
        let manner =
            TftpOptions { block_size: u16::try_from(self.granted.block_size).unwrap_or(u16::MAX), window: None };
        let mut buffer = [0; LONGEST];
        let (mut bytes, mut last, mut since) = (0, 0u16, 0);
        'window: loop {
            for wait in waits() {
                let [high, low] = last.to_be_bytes();
                self.send(&[0, 4, high, low], rng).await?;
                let until = Instant::now() + wait;
                while let Ok(received) = tokio::time::timeout_at(until, self.socket.recv_from(&mut buffer)).await {
                    let (length, peer) = received?;
                    if peer != self.peer || self.link.loses(rng) {
                        continue;
                    }
                    let Some(Packet::Data(number, data)) = parse(&buffer[..length], manner)? else { continue };
                    if number != last.wrapping_add(1) {
                        // Of what came before nobody needs to know; a gap ends the window (RFC 7440, section 4).
                        let ahead = number.wrapping_sub(last);
                        if ahead > 1 && ahead <= self.granted.window && since > 0 {
                            since = 0;
                            continue 'window;
                        }
                        continue;
                    }
                    last = number;
                    bytes += data.len();
                    since += 1;
                    if bytes as u64 > LARGEST {
                        return Err(wrong("more than any boot program has".into()));
                    }
                    if data.len() < self.granted.block_size {
                        let [high, low] = last.to_be_bytes();
                        self.send(&[0, 4, high, low], rng).await?;
                        return Ok(bytes);
                    }
                    if since == self.granted.window {
                        since = 0;
                        continue 'window;
                    }
                }
                since = 0;
            }
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("{} fell silent at block {last}", self.peer)));
        }
    }
}

fn waits() -> impl Iterator<Item = Duration> {
    (0..REPEATS).map(|again| FIRST_WAIT * 2u32.pow(again))
}

/// A read request with options.
fn request(name: &str, manner: TftpOptions, size: bool) -> Vec<u8> {
    let mut packet = b"\0\x01".to_vec();
    let mut text = |text: &str| {
        packet.extend_from_slice(text.as_bytes());
        packet.push(0);
    };
    text(name);
    text("octet");
    if size {
        text("tsize");
        text("0");
    }
    text("blksize");
    text(&manner.block_size.to_string());
    if let Some(window) = manner.window {
        text("windowsize");
        text(&window.to_string());
    }
    packet
}

/// Reads a packet. `None` is one that says nothing to us.
fn parse(packet: &[u8], asked: TftpOptions) -> io::Result<Option<Packet<'_>>> {
    match packet {
        [0, 3, high, low, data @ ..] => Ok(Some(Packet::Data(u16::from_be_bytes([*high, *low]), data))),
        [0, 5, _, code, text @ ..] => {
            let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
            Err(wrong(format!("the server refuses with code {code}: {}", String::from_utf8_lossy(text))))
        }
        [0, 6, options @ ..] => granted(options, asked).map(|granted| Some(Packet::Granted(granted))),
        _ => Ok(None),
    }
}

/// What an OACK grants: nothing that was not asked for, and nothing larger.
fn granted(options: &[u8], asked: TftpOptions) -> io::Result<Granted> {
    let mut granted = Granted { size: None, block_size: 512, window: 1 };
    let mut words = options.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).to_ascii_lowercase());
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        let number = value.parse::<u64>().map_err(|_| wrong(format!("{key} is {value:?}")))?;
        let most = |most: u16| match u16::try_from(number) {
            Ok(number) if (1..=most).contains(&number) => Ok(number),
            _ => Err(wrong(format!("{key} is {number}, {most} was asked for"))),
        };
        match key.as_str() {
            "tsize" => granted.size = Some(number),
            "blksize" => granted.block_size = usize::from(most(asked.block_size)?),
            "windowsize" => granted.window = most(asked.window.unwrap_or(0))?,
            _ => return Err(wrong(format!("{key} was not asked for"))),
        }
    }
    Ok(granted)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::boot::BootFiles;
    use crate::simulate::counts::RunCounts;
    use crate::simulate::rng::DrawPurpose;

    #[test]
    fn what_is_granted_was_asked_for() {
        let read = |words: &str, manner| granted(words.replace(' ', "\0").as_bytes(), manner);
        let all = Granted { size: Some(70_000), block_size: 1468, window: 4 };
        assert_eq!(read("tsize 70000 blksize 1468 windowsize 4 ", TftpOptions::UEFI).unwrap(), all);
        assert_eq!(read("", TftpOptions::UEFI).unwrap(), Granted { size: None, block_size: 512, window: 1 });
        for bad in ["blksize 1469 ", "blksize x ", "windowsize 5 ", "windowsize 0 ", "multicast 1 "] {
            assert!(read(bad, TftpOptions::UEFI).is_err(), "{bad}");
        }
        assert!(read("windowsize 2 ", TftpOptions::BIOS).is_err());
    }

    #[tokio::test]
    async fn the_appliances_own_server_is_understood_also_over_a_bad_network() {
        let folder = tempfile::tempdir().unwrap();
        // The last block is empty for one of the sizes.
        for (name, length) in [("snponly.efi", 1468 * 100), ("undionly.kpxe", 72_001)] {
            std::fs::write(folder.path().join(name), vec![7; length]).unwrap();
        }
        let server = crate::tftp::TftpServer::bind(([127, 0, 0, 1], 0).into(), BootFiles::new(folder.path())).unwrap();
        let address = server.local_addr().unwrap();
        let token = CancellationToken::new();
        let serving = tokio::spawn(server.run(token.clone()));
        let counts = Arc::new(RunCounts::default());
        let mut rng = SeededRng::of(3, 1, DrawPurpose::Network);
        for loss in [0.0, 0.05] {
            let link = LossyLink { source: None, loss, counts: counts.clone() };
            for (name, manner, length) in
                [("snponly.efi", TftpOptions::UEFI, 1468 * 100), ("undionly.kpxe", TftpOptions::BIOS, 72_001)]
            {
                let got = fetch(&link, address, name, manner, true, &mut rng).await.unwrap();
                assert_eq!(got, length, "{name}");
            }
            let error = fetch(&link, address, "vmlinuz", TftpOptions::UEFI, true, &mut rng).await.unwrap_err();
            assert!(error.to_string().contains("code 1"), "{error}");
        }
        assert!(counts.read(0).packets_lost > 0);
        token.cancel();
        serving.await.unwrap().unwrap();
    }
}
