//! Random choices that follow from the seed of the run.

use std::ops::Range;

use proptest::prelude::Rng as _;
use proptest::test_runner::{RngAlgorithm, TestRng};

/// A source of random numbers.
pub struct Random(TestRng);

impl Random {
    pub fn with_seed(seed: u64) -> Random {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        Random(TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
    }

    /// Another source, for another thread.
    pub fn fork(&mut self) -> Random {
        Random::with_seed(self.0.next_u64())
    }

    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.0.next_u64() % (range.end - range.start)
    }

    pub fn coin(&mut self) -> bool {
        self.within(0..2) == 0
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            let other = self.within(0..index as u64 + 1) as usize;
            items.swap(index, other);
        }
    }
}
