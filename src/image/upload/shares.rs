//! How many uploads one caller may have of all: a single one leaves places to every other.

/// Places of a kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct UploadPlaces {
    all: usize,
    /// Of one caller.
    each: usize,
}

/// Uploads that have begun and are not imported yet.
pub(super) const BEGUN: UploadPlaces = UploadPlaces { all: 32, each: 8 };
/// Pieces that come at once.
pub(super) const AT_ONCE: UploadPlaces = UploadPlaces { all: 12, each: 4 };

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UploadsFull {
    /// The caller has as many as one may have.
    Own(usize),
    /// Others have them.
    All,
}

impl UploadPlaces {
    /// Whether a caller who has `own` of the `taken` places may have one more. A quarter is kept for callers who have none.
    pub(super) fn check(self, taken: usize, own: usize) -> Result<(), UploadsFull> {
        let open = if own == 0 { self.all } else { self.all - self.all / 4 };
        match (own < self.each, taken < open) {
            (false, _) => Err(UploadsFull::Own(self.each)),
            (true, false) => Err(UploadsFull::All),
            (true, true) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_caller_keeps_another_from_a_place() {
        let places = UploadPlaces { all: 8, each: 3 };
        for (taken, own, wanted) in [
            (0, 0, Ok(())),
            (2, 2, Ok(())),
            (3, 3, Err(UploadsFull::Own(3))),
            (8, 3, Err(UploadsFull::Own(3))),
            (5, 2, Ok(())),
            (6, 2, Err(UploadsFull::All)),
            (6, 0, Ok(())),
            (7, 0, Ok(())),
            (8, 0, Err(UploadsFull::All)),
        ] {
            assert_eq!(places.check(taken, own), wanted, "{taken} {own}");
        }
        for places in [BEGUN, AT_ONCE] {
            let greedy = (0..).take_while(|own| places.check(*own, *own).is_ok()).count();
            assert!(greedy == places.each && places.check(greedy, 0).is_ok());
        }
    }
}
