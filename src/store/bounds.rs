//! What the database may take of the disk: when it is written anew, and what may be written until it is.
//!
//! The promise is three times what is in it. While it is written anew it is there twice, so it must not take much more than
//! twice as much before; and where the disk has not that much room, it has to be sooner.

use super::index::HISTORY_BYTES;

/// What base and journal may take of the disk beyond twice what is in them, in bytes: sled writes whole segments of half a
/// mebibyte, and what is small need not be written anew for little.
const SLACK: u64 = 4 << 20;

/// The same when the disk is low.
const LOW_SLACK: u64 = 3 << 20;

/// The same while it is written anew aside, beyond three times what is in it: half empty segments of two journals are more.
const SLACK_ASIDE: u64 = 2 * SLACK;

/// What it takes beyond what is in it, and needs to be written anew, in bytes: 15 MiB, the last large groups among them.
pub(super) const SPARE: u64 = SLACK + LOW_SLACK + SLACK_ASIDE;

/// What has to be free to write it anew with `live` bytes in it, in bytes.
pub(super) fn needed_anew(live: u64) -> u64 {
    live + live / 16 + LOW_SLACK
}

/// Whether a database with `live` bytes in it could not be written anew any more, with so many free, if it took much of them.
fn is_last_chance(live: u64, free: u64) -> bool {
    free < needed_anew(live) + live / 4 + SLACK_ASIDE
}

/// Whether a database that takes so many bytes should be written anew with `live` bytes in it and so many free: when it takes
/// twice as much, so that three times is not exceeded while both are there, but for an eighth of it, which is for changes
/// meanwhile. Earlier when it could not be any more if it took the rest of the disk.
pub(super) fn is_worth_it(taken: u64, live: u64, free: u64, is_low: bool) -> bool {
    let most = if is_last_chance(live, free) { live + live / 8 } else { 2 * live - live / 8 };
    taken > most + if is_low { LOW_SLACK } else { SLACK }
}

/// What may still be taken of the disk while it is written anew, in bytes, with `live` bytes in it and `taken` of the disk.
pub(super) fn room_aside(live: u64, taken: u64) -> u64 {
    (3 * live + SLACK_ASIDE).saturating_sub(taken)
}

/// Whether a database that takes so many bytes takes more than it may with `live` bytes in it, and cannot be written anew with
/// so many free, or soon could not be.
pub(super) fn is_overgrown(taken: u64, live: u64, free: u64) -> bool {
    room_aside(live, taken) == 0 && is_last_chance(live, free)
}

/// Whether a database can be written anew again and again that has so many bytes of the disk, taken or free, and `lasting` ones in
/// it, beside the history of what changes quickly. `spare` is what it may take beyond what is in it, of [`SPARE`].
pub(super) fn has_room_anew(room: u64, lasting: usize, spare: u64) -> bool {
    let live = (lasting + lasting.min(HISTORY_BYTES)) as u64;
    room > live + live / 8 + live + live / 16 + spare
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn when_it_is_written_anew() {
        for (taken, live, free, is_low, expected) in [
            (79, 40, 1000, false, false),
            (80, 40, 1000, false, true),
            (78, 40, 1000, true, false),
            (79, 40, 1000, true, true),
            // The smallest is not worth it.
            (4, 0, 1000, false, false),
            (5, 0, 1000, false, true),
            // 40 + 2.5 + 3 are needed, and soon would not be free.
            (50, 40, 64, false, false),
            (50, 40, 63, false, true),
            (49, 40, 63, false, false),
        ] {
            let found = is_worth_it(taken * MIB, live * MIB, free * MIB, is_low);
            assert_eq!(found, expected, "{taken} {live} {free} {is_low}");
        }
    }

    #[test]
    fn what_may_be_written() {
        for (taken, live, free, expected) in [
            (127, 40, 0, false),
            (128, 40, 0, true),
            (128, 40, 63, true),
            // It is tried again in a moment.
            (128, 40, 64, false),
        ] {
            assert_eq!(is_overgrown(taken * MIB, live * MIB, free * MIB), expected, "{taken} {live} {free}");
        }
        // 40 and as much history as there may be: 56, an eighth, 4; 56, a sixteenth, 3; 8.
        for (room, lasting, expected) in [(137, 40, false), (138, 40, true), (15, 0, false), (16, 0, true)] {
            assert_eq!(has_room_anew(room * MIB, lasting << 20, SPARE), expected, "{room} {lasting}");
        }
    }
}
