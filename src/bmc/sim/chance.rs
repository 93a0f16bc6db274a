//! Random faults, repeatable: the same ones for the same seed.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::machine::{FaultScope, SimulatedFault};

/// What goes wrong how often.
#[derive(Clone, Debug)]
pub struct Chance {
    random: StdRng,
    failures: f64,
    lies: f64,
    delay: Duration,
    shown: u64,
}

impl Chance {
    /// `failures`: the part of all requests that fail in one way or another, 0 to 1. `lies`: the part of all writes
    /// that are answered as if they had been done. All others are answered after `delay`.
    pub fn new(seed: [u8; 32], failures: f64, lies: f64, delay: Duration) -> Self {
        Self { random: StdRng::from_seed(seed), failures, lies, delay, shown: 0 }
    }

    /// The fault for a request, if any.
    pub fn fault(&mut self, scope: FaultScope) -> Option<SimulatedFault> {
        // Always two numbers, so that one kind of fault does not move the other.
        let (fails, lies): (f64, f64) = (self.random.random(), self.random.random());
        let kind = self.random.random_range(0..4);
        let fault = if fails < self.failures {
            [SimulatedFault::Busy, SimulatedFault::Fail, SimulatedFault::Garbage, SimulatedFault::Reset]
                .into_iter()
                .nth(kind)
        } else if scope == FaultScope::Write && lies < self.lies {
            Some(SimulatedFault::Ignore)
        } else {
            None
        };
        self.shown += u64::from(fault.is_some());
        fault.or_else(|| (!self.delay.is_zero()).then_some(SimulatedFault::Slow(self.delay)))
    }

    /// Faults shown so far.
    pub fn shown(&self) -> u64 {
        self.shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_as_frequent_as_told_and_the_same_for_a_seed() {
        let draw = |scope| {
            let mut chance = Chance::new([7; 32], 0.1, 0.05, Duration::ZERO);
            (0..10_000).map(|_| chance.fault(scope)).collect::<Vec<_>>()
        };
        let reads = draw(FaultScope::Read);
        assert_eq!(reads, draw(FaultScope::Read));
        let failed = reads.iter().flatten().count();
        assert!((900..1100).contains(&failed), "{failed}");
        assert!(!reads.contains(&Some(SimulatedFault::Ignore)));
        let lies = draw(FaultScope::Write).iter().filter(|fault| **fault == Some(SimulatedFault::Ignore)).count();
        assert!((350..550).contains(&lies), "{lies}");
        let mut never = Chance::new([7; 32], 0.0, 0.0, Duration::ZERO);
        assert!((0..1000).all(|_| never.fault(FaultScope::Write).is_none()));
        let second = Duration::from_secs(1);
        assert_eq!(Chance::new([7; 32], 0.0, 0.0, second).fault(FaultScope::Read), Some(SimulatedFault::Slow(second)));
    }
}
