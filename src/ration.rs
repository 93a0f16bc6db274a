//! Ranks and shares: who goes first when not everybody can be served.
//!
//! A stranger on the wire costs little and has as many addresses as he likes. So what he can take is bounded in three
//! ways wherever he can take anything: by address, by what all strangers take together, and by a share that is kept for
//! known hosts. The doors have their own bounds; the shares are the same everywhere.

use std::net::IpAddr;
use std::sync::Arc;

/// What is known of whoever has an address; the first goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rank {
    /// The appliance itself.
    Own,
    /// This appliance leased it to a known host: a BareMetalHost that nobody has yet to accept, or a reservation.
    Known,
    /// Another server gives the addresses there, so that nobody here can tell.
    Untold,
    /// It is nobody's, an unknown machine's, or in none of the networks.
    Stranger,
}

impl Rank {
    /// Those that share places: to whatever is shared, the appliance itself is no better than what it knows.
    pub const SHARING: [Self; 3] = [Self::Known, Self::Untold, Self::Stranger];

    /// As metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Known => "known",
            Self::Untold => "untold",
            Self::Stranger => "stranger",
        }
    }
}

/// Says the rank of an address. It reads memory only and may be called for each packet; it must not write to the log.
pub type Ranks = Arc<dyn Fn(IpAddr) -> Rank + Send + Sync>;

/// For who knows no addresses: all are alike.
pub fn all_alike() -> Ranks {
    Arc::new(|_| Rank::Untold)
}

/// Places that are taken, by rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankShares {
    known: usize,
    untold: usize,
    strangers: usize,
}

impl RankShares {
    /// What strangers may take together of so many places: a quarter, at least one.
    pub fn of_strangers(places: usize) -> usize {
        (places / 4).max(1)
    }

    /// What all may take together who are not known: three quarters, at least one.
    pub fn of_unknown(places: usize) -> usize {
        (places - places / 4).max(1)
    }

    /// Whether one of this rank may take one of so many places. When there were more places before, those that took
    /// theirs then do not keep the known from the share that is theirs.
    pub fn may_take(&self, rank: Rank, places: usize) -> bool {
        let strangers = self.strangers.min(Self::of_strangers(places));
        let unknown = (self.untold + strangers).min(Self::of_unknown(places));
        let room = self.known + unknown < places;
        room && match rank {
            Rank::Own | Rank::Known => true,
            Rank::Untold => self.untold + strangers < Self::of_unknown(places),
            Rank::Stranger => {
                self.strangers < Self::of_strangers(places) && self.untold + strangers < Self::of_unknown(places)
            }
        }
    }

    /// Places in all.
    pub fn taken(&self) -> usize {
        self.known + self.untold + self.strangers
    }

    /// Places that this rank has taken.
    pub fn taken_by(&self, rank: Rank) -> usize {
        match rank {
            Rank::Own | Rank::Known => self.known,
            Rank::Untold => self.untold,
            Rank::Stranger => self.strangers,
        }
    }

    /// One more of this rank.
    pub fn add(&mut self, rank: Rank) {
        *self.of(rank) += 1;
    }

    /// One of this rank less.
    pub fn remove(&mut self, rank: Rank) {
        let count = self.of(rank);
        *count = count.saturating_sub(1);
    }

    fn of(&mut self, rank: Rank) -> &mut usize {
        match rank {
            Rank::Own | Rank::Known => &mut self.known,
            Rank::Untold => &mut self.untold,
            Rank::Stranger => &mut self.strangers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Rank::{Known, Stranger, Untold};

    /// How many of a rank get in, one after the other.
    fn fill(shares: &mut RankShares, rank: Rank, places: usize) -> usize {
        let mut count = 0;
        while shares.may_take(rank, places) {
            shares.add(rank);
            count += 1;
        }
        count
    }

    #[test]
    fn each_rank_has_its_share_and_the_known_have_what_others_leave() {
        // In the order in which they come: how many of each get a place of 48.
        let rows: [(&[Rank], &[usize]); 6] = [
            (&[Stranger, Known], &[12, 36]),
            (&[Stranger, Untold, Known], &[12, 24, 12]),
            (&[Untold, Stranger, Known], &[36, 0, 12]),
            (&[Known, Untold, Stranger], &[48, 0, 0]),
            (&[Untold, Known], &[36, 12]),
            (&[Rank::Own, Stranger], &[48, 0]),
        ];
        for (order, wanted) in rows {
            let mut shares = RankShares::default();
            let got: Vec<_> = order.iter().map(|rank| fill(&mut shares, *rank, 48)).collect();
            assert_eq!(got, wanted, "{order:?}");
            for rank in [Known, Untold, Stranger] {
                for _ in 0..48 {
                    shares.remove(rank);
                }
            }
            assert_eq!(shares.taken(), 0);
        }
    }

    #[test]
    fn fewer_places_leave_the_known_theirs_and_one_place_is_anybodys() {
        let mut shares = RankShares::default();
        fill(&mut shares, Stranger, 48);
        fill(&mut shares, Untold, 48);
        assert_eq!(fill(&mut shares, Known, 8), 2, "36 hold places, of 8 there are 2 for the known");
        assert_eq!(fill(&mut shares, Untold, 8), 0);
        for rank in [Known, Untold, Stranger] {
            assert_eq!(fill(&mut RankShares::default(), rank, 1), 1, "{rank:?}");
        }
    }
}
