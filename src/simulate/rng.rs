//! Repeatable random numbers.
//!
//! Random numbers that can be repeated: each machine has a generator of its own for each purpose, so that what happens to one
//! does not change what happens to another.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

/// What is drawn for, so that one purpose does not move another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DrawPurpose {
    /// Answers of the BMC.
    Bmc,
    /// Packets lost on the way.
    Network,
    /// What happens to the machine itself.
    Machine,
    /// The content of made-up files.
    Content,
}

/// A generator of random numbers.
#[derive(Clone, Debug)]
pub struct SeededRng(StdRng);

/// The seed of a machine's generator for a purpose.
pub fn seed(seed: u64, machine: usize, purpose: DrawPurpose) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update((machine as u64).to_le_bytes());
    hash.update([purpose as u8]);
    hash.finalize().into()
}

impl SeededRng {
    /// The generator of a machine for a purpose.
    pub fn of(of: u64, machine: usize, purpose: DrawPurpose) -> Self {
        Self(StdRng::from_seed(seed(of, machine, purpose)))
    }

    /// A generator for a part of it.
    pub fn child(&mut self) -> Self {
        Self(StdRng::seed_from_u64(self.0.random()))
    }

    /// Whether something happens that does so with this probability, 0 to 1.
    pub fn happens(&mut self, probability: f64) -> bool {
        self.0.random::<f64>() < probability
    }

    /// A number from 0 to 1, 1 excluded.
    pub fn part(&mut self) -> f64 {
        self.0.random()
    }

    /// A number.
    pub fn number(&mut self) -> u32 {
        self.0.random()
    }

    /// About as long: a fifth more or less, as machines of one model differ.
    pub fn about(&mut self, length: Duration) -> Duration {
        length.mul_f64(0.8 + 0.4 * self.part())
    }

    /// Bytes that nothing can make smaller.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.fill(bytes.as_mut_slice());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_the_same_luck_with_the_same_seed_and_no_two_have_the_same() {
        let luck = |seed, machine, purpose| SeededRng::of(seed, machine, purpose).bytes(16);
        assert_eq!(luck(1, 2, DrawPurpose::Bmc), luck(1, 2, DrawPurpose::Bmc));
        let all = [
            luck(1, 2, DrawPurpose::Bmc),
            luck(2, 2, DrawPurpose::Bmc),
            luck(1, 3, DrawPurpose::Bmc),
            luck(1, 2, DrawPurpose::Network),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(!all[..index].contains(one));
        }
        let mut rng = SeededRng::of(1, 1, DrawPurpose::Machine);
        let often = (0..10_000).filter(|_| rng.happens(0.25)).count();
        assert!((2300..2700).contains(&often), "{often}");
        let second = Duration::from_secs(1);
        assert!((0..1000).all(|_| (second * 4 / 5..=second * 6 / 5).contains(&rng.about(second))));
    }
}
