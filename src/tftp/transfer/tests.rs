//! Tests of one TFTP transfer, without socket and clock.

use super::*;
use proptest::prelude::*;

fn ack(number: u16) -> Vec<u8> {
    let [high, low] = number.to_be_bytes();
    vec![0, 4, high, low]
}

fn all(out: &mut SendBuffer) -> Vec<Vec<u8>> {
    let packets = out.packets().map(<[u8]>::to_vec).collect();
    out.clear();
    packets
}

fn numbers(packets: &[Vec<u8>]) -> Vec<u16> {
    packets.iter().map(|p| u16::from_be_bytes([p[2], p[3]])).collect()
}

fn transfer(size: usize, asked: RequestedOptions, now: Instant) -> (FileTransfer, Vec<Vec<u8>>) {
    let data: Vec<u8> = (0..size).map(|n| (n % 251) as u8).collect();
    let mut transfer = FileTransfer::new(data.into(), &asked, 1500, now);
    let mut out = SendBuffer::default();
    transfer.start(now, &mut out);
    (transfer, all(&mut out))
}

#[test]
fn without_options_it_is_rfc_1350_lockstep() {
    let now = Instant::now();
    let mut out = SendBuffer::default();
    let (mut t, first) = transfer(1024, RequestedOptions::default(), now);
    assert_eq!(numbers(&first), [1]);
    assert_eq!(first[0].len(), 516);
    assert_eq!(t.on_packet(now, &ack(1), &mut out), TransferProgress::Waiting);
    assert_eq!(numbers(&all(&mut out)), [2]);
    // A duplicate ACK sends nothing (Sorcerer's Apprentice).
    assert_eq!(t.on_packet(now, &ack(1), &mut out), TransferProgress::Waiting);
    assert!(out.is_empty());
    // The size is a multiple of the block: an empty block ends it.
    assert_eq!(t.on_packet(now, &ack(2), &mut out), TransferProgress::Waiting);
    assert_eq!(all(&mut out), [vec![0, 3, 0, 3]]);
    assert_eq!(t.on_packet(now, &ack(3), &mut out), TransferProgress::Ended(TransferEnd::Complete));
}

#[test]
fn the_oack_grants_what_the_bounds_allow() {
    let now = Instant::now();
    let asked = RequestedOptions { block_size: Some(65464), timeout: Some(255), size: true, window: Some(65535) };
    let (_, first) = transfer(5000, asked, now);
    assert_eq!(first, [b"\0\x06tsize\x005000\0blksize\x001468\0windowsize\x0016\0".to_vec()]);
    let asked = RequestedOptions { block_size: Some(1468), timeout: Some(2), ..RequestedOptions::default() };
    let mut out = SendBuffer::default();
    let mut narrow = FileTransfer::new(Bytes::from_static(b"x"), &asked, 1400, now);
    narrow.start(now, &mut out);
    assert_eq!(all(&mut out), [b"\0\x06blksize\x001368\0timeout\x002\0".to_vec()]);
    assert_eq!(narrow.deadline(), now + Duration::from_secs(2));
}

#[test]
fn an_abort_after_the_size_probe_ends_it_at_once() {
    let now = Instant::now();
    let (mut t, _) = transfer(5000, RequestedOptions { size: true, ..RequestedOptions::default() }, now);
    let mut out = SendBuffer::default();
    let end = t.on_packet(now, b"\0\x05\0\x08User aborted the transfer\0", &mut out);
    assert_eq!(
        end,
        TransferProgress::Ended(TransferEnd::Aborted { code: 8, message: "User aborted the transfer".into() })
    );
    assert!(out.is_empty());
}

#[test]
fn a_lost_block_in_a_window_goes_again_from_there_and_once() {
    let now = Instant::now();
    let mut out = SendBuffer::default();
    let (mut t, _) = transfer(5120, RequestedOptions { window: Some(4), ..RequestedOptions::default() }, now);
    t.on_packet(now, &ack(0), &mut out);
    assert_eq!(numbers(&all(&mut out)), [1, 2, 3, 4]);
    t.on_packet(now, &ack(2), &mut out);
    assert_eq!((out.repeated(), out.size()), (2, 4 * 516));
    assert_eq!(numbers(&all(&mut out)), [3, 4, 5, 6]);
    t.on_packet(now, &ack(2), &mut out);
    assert_eq!(out.repeated(), 4);
    assert_eq!(numbers(&all(&mut out)), [3, 4, 5, 6]);
    t.on_packet(now, &ack(2), &mut out);
    assert!(out.is_empty(), "a second repeat is left to the clock");
    t.on_packet(now, &ack(9), &mut out);
    assert!(out.is_empty(), "nine was never sent");
}

#[test]
fn silence_is_repeated_to_within_bounds() {
    let mut now = Instant::now();
    let begun = now;
    let mut out = SendBuffer::default();
    let (mut t, first) = transfer(10, RequestedOptions::default(), now);
    let mut repeats = 0;
    loop {
        now = t.deadline();
        match t.on_time(now, &mut out) {
            TransferProgress::Waiting => {
                assert_eq!(all(&mut out), first);
                repeats += 1;
            }
            TransferProgress::Ended(end) => {
                assert_eq!(end, TransferEnd::Silent);
                break;
            }
        }
    }
    assert_eq!(repeats, MAX_REPEATS);
    assert!(now - begun <= Duration::from_secs(8 * 6));
    assert_eq!(all(&mut out), [b"\0\x05\0\0no answer\0".to_vec()]);
}

#[test]
fn a_client_that_never_stops_is_ended() {
    let mut now = Instant::now();
    let mut out = SendBuffer::default();
    let (mut t, _) = transfer(1 << 20, RequestedOptions { block_size: Some(8), ..RequestedOptions::default() }, now);
    let mut number = 0u16;
    let end = loop {
        if let TransferProgress::Ended(end) = t.on_time(now, &mut out) {
            break end;
        }
        out.clear();
        assert_eq!(t.on_packet(now, &ack(number), &mut out), TransferProgress::Waiting);
        number = number.wrapping_add(1);
        now += Duration::from_millis(900);
    };
    assert_eq!(end, TransferEnd::TooLong);
}

#[test]
fn a_repeated_request_gets_the_first_packet_again_until_the_client_answers() {
    let now = Instant::now();
    let mut out = SendBuffer::default();
    let (mut t, first) = transfer(4096, RequestedOptions { size: true, ..RequestedOptions::default() }, now);
    t.on_repeated_request(&mut out);
    assert_eq!(out.repeated(), 1);
    assert_eq!(all(&mut out), first);
    t.on_packet(now, &ack(0), &mut out);
    t.on_packet(now, &ack(1), &mut out);
    assert_eq!((out.len(), out.repeated()), (2, 0), "no block was sent before");
    out.clear();
    t.on_repeated_request(&mut out);
    assert!(out.is_empty());
}

/// A client with a network that loses, repeats and reorders: it takes blocks in order and acknowledges as
/// RFC 7440 says. Returns what it received, or `None` if the server gave up.
fn exchange(data: &[u8], asked: RequestedOptions, faults: &[u8]) -> Option<Vec<u8>> {
    let mut now = Instant::now();
    let mut faults = faults.iter().copied().cycle();
    let mut fault = || faults.next().unwrap_or(0);
    let mut t = FileTransfer::new(Bytes::copy_from_slice(data), &asked, 1500, now);
    let mut out = SendBuffer::default();
    t.start(now, &mut out);
    let (mut received, mut next, mut in_window, mut block_size, mut window) = (Vec::new(), 1u16, 0, 512, 1);
    for _ in 0..200_000 {
        let mut packets = all(&mut out);
        if fault() % 11 == 0 {
            packets.reverse();
        }
        let mut answers: Vec<u16> = Vec::new();
        for packet in packets {
            let copies = match fault() % 16 {
                0 => 0,
                1 => 2,
                _ => 1,
            };
            for _ in 0..copies {
                if packet[1] == 6 {
                    block_size = usize::from(asked.block_size.map_or(512, |n| n.min(MAX_BLOCK)));
                    window = asked.window.map_or(1, |n| n.min(MAX_WINDOW));
                    if received.is_empty() {
                        answers.push(0);
                    }
                    continue;
                }
                let number = u16::from_be_bytes([packet[2], packet[3]]);
                if number == next {
                    received.extend_from_slice(&packet[4..]);
                    next = next.wrapping_add(1);
                    in_window += 1;
                    if packet.len() - 4 < block_size || in_window == window {
                        answers.push(number);
                        in_window = 0;
                    }
                } else {
                    answers.push(next.wrapping_sub(1));
                    in_window = 0;
                }
            }
        }
        for answer in answers {
            if fault() % 16 != 0 {
                match t.on_packet(now, &ack(answer), &mut out) {
                    TransferProgress::Waiting => {}
                    TransferProgress::Ended(TransferEnd::Complete) => return Some(received),
                    TransferProgress::Ended(_) => return None,
                }
            }
        }
        if out.is_empty() {
            now = t.deadline();
            if let TransferProgress::Ended(_) = t.on_time(now, &mut out) {
                return None;
            }
        }
    }
    None
}

#[test]
fn block_numbers_roll_over() {
    let data: Vec<u8> = (0..70_000 * 8 + 3).map(|n: u32| n as u8).collect();
    for window in [None, Some(16)] {
        let asked = RequestedOptions { block_size: Some(8), window, ..RequestedOptions::default() };
        assert!(exchange(&data, asked, &[5]) == Some(data.clone()));
    }
}

proptest! {
    #[test]
    fn a_bad_network_delivers_exactly_the_file_or_gives_up(
        size in 0usize..9000,
        block_size in proptest::option::of(8u16..2000),
        window in proptest::option::of(1u16..40),
        faults in proptest::collection::vec(any::<u8>(), 1..400),
    ) {
        let data: Vec<u8> = (0..size).map(|n| (n * 7 + n / 256) as u8).collect();
        let asked = RequestedOptions { block_size, window, size: true, timeout: None };
        if let Some(received) = exchange(&data, asked, &faults) {
            prop_assert!(received == data);
        }
    }

    #[test]
    fn any_packets_keep_the_bounds(
        packets in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..12), 0..60),
        acks in proptest::collection::vec(any::<u16>(), 0..60),
    ) {
        let now = Instant::now();
        let asked = RequestedOptions { block_size: Some(512), window: Some(65535), ..RequestedOptions::default() };
        let (mut t, _) = transfer(100_000, asked, now);
        let mut out = SendBuffer::default();
        for packet in packets.into_iter().chain(acks.into_iter().map(ack)) {
            out.clear();
            let progress = t.on_packet(now, &packet, &mut out);
            prop_assert!(out.len() <= usize::from(MAX_WINDOW));
            if progress != TransferProgress::Waiting {
                break;
            }
        }
    }
}
