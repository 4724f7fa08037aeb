//! Random choices that can be repeated.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The choices for one run.
pub struct Choices(ChaCha8Rng);

impl Choices {
    /// The choices for the run with this number, which depend on seed and number alone.
    pub fn new(seed: u64, run: u32) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(run.into());
        Self(generator)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end.max(1)
    }

    /// One of several things; none of nothing.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        let index = self.below(of.len() as u64);
        of.get(index as usize).copied()
    }
}
