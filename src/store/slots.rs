//! Numbers that are given out, taken back and given out again.

use std::collections::HashSet;

/// Numbers from 0 on.
///
/// What takes a number takes one that is free again, if there is any. With growing numbers instead, a tree whose keys they are
/// would split at one end and merge at the other for ever, which costs several times the bytes of the entry each.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots {
    free: Vec<u64>,
    /// Those from here on were never used.
    next: u64,
}

impl Slots {
    /// All numbers but these are free.
    pub fn besides(mut used: Vec<u64>) -> Self {
        used.sort_unstable();
        let next = used.last().map_or(0, |last| last.saturating_add(1));
        // A number as large as this was damaged; what is below it is not worth its memory.
        let few = next <= 4 * (used.len() as u64 + 1024);
        let mut free: Vec<u64> = match few {
            true => (0..next).filter(|number| used.binary_search(number).is_err()).collect(),
            false => Vec::new(),
        };
        // Low ones first: the tree stays small.
        free.reverse();
        Self { free, next }
    }

    /// Tells of each number whether nobody has it.
    pub fn is_free(&self) -> impl Fn(u64) -> bool + use<> {
        let (free, next) = (self.free.iter().copied().collect::<HashSet<u64>>(), self.next);
        move |number| number >= next || free.contains(&number)
    }

    /// A number that nobody has.
    pub fn take(&mut self) -> u64 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// A number that is no longer needed.
    pub fn give_back(&mut self, number: u64) {
        self.free.push(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_numbers_come_first_and_none_twice() {
        let mut slots = Slots::besides(vec![4, 1]);
        assert_eq!([slots.take(), slots.take(), slots.take(), slots.take(), slots.take()], [0, 2, 3, 5, 6]);
        slots.give_back(3);
        let is_free = slots.is_free();
        assert_eq!([2, 3, 6, 7].map(is_free), [false, true, false, true]);
        assert_eq!((slots.take(), slots.take()), (3, 7));
        assert_eq!(Slots::besides(vec![]).take(), 0);
        assert_eq!(Slots::besides(vec![1 << 40]).take(), (1 << 40) + 1);
    }
}
