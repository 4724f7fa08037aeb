//! A keyed bijection on `0..len` that needs no table.
//!
//! A balanced Feistel network permutes the numbers of `2·h` bits, where `2^(2h)` is the smallest such power that is
//! not below `len` (hence less than `4·len`). Numbers that land outside `0..len` are put through again until they
//! land inside ("cycle walking", Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002): as a
//! permutation's cycle returns to its start, this ends, after fewer than 4 rounds on average, and is a bijection on
//! `0..len`.
//!
//! The round function is [`brigade_random::mix`].

use brigade_random::{keyed, mix};

/// Feistel rounds. Four suffice for a strong pseudo-random permutation of large domains (Luby and Rackoff, 1988);
/// small domains need more.
const ROUNDS: usize = 8;

/// A bijection on `0..len`, one of many that (`seed`, `epoch`) chooses from.
#[derive(Debug, Clone)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of `0..len` for this `seed` and `epoch`.
    pub fn new(len: u64, seed: u64, epoch: u64) -> Self {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        let key = keyed(seed, epoch);
        Self {
            len,
            half_bits: bits.div_ceil(2).max(1),
            keys: std::array::from_fn(|round| keyed(key, round as u64)),
        }
    }

    /// Where `index` goes. The values for `0..len` are `0..len`, each once; other indices go nowhere.
    pub fn apply(&self, index: u64) -> Option<u64> {
        if index >= self.len {
            return None;
        }
        let mut value = self.feistel(index);
        while value >= self.len {
            value = self.feistel(value);
        }
        Some(value)
    }

    fn feistel(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_index_is_hit_once(len in 1u64..3000, seed: u64, epoch: u64) {
            let permutation = Permutation::new(len, seed, epoch);
            let mut seen = vec![false; len as usize];
            for index in 0..len {
                let image = permutation.apply(index).unwrap();
                prop_assert!(!std::mem::replace(&mut seen[image as usize], true));
            }
            prop_assert_eq!(permutation.apply(len), None);
        }

        #[test]
        fn large_domains_stay_inside(len in 1u64 << 40..u64::MAX, seed: u64, index: u64) {
            let image = Permutation::new(len, seed, 0).apply(index % len).unwrap();
            prop_assert!(image < len);
        }
    }

    /// Every (index, image) pair comes about equally often over many epochs, also where the network is tiny.
    #[test]
    fn images_are_spread_evenly() {
        for len in [2u64, 3, 5, 10, 64, 100] {
            let epochs = 400 * len;
            let mut counts = vec![0u64; (len * len) as usize];
            for epoch in 0..epochs {
                let permutation = Permutation::new(len, 7, epoch);
                for index in 0..len {
                    counts[(index * len + permutation.apply(index).unwrap()) as usize] += 1;
                }
            }
            for (cell, &count) in counts.iter().enumerate() {
                // 400 expected, standard deviation below 20: seven of them.
                assert!(
                    count.abs_diff(400) < 140,
                    "len {len}: cell {cell} was hit {count} times, 400 expected"
                );
            }
        }
    }

    /// The order is part of what a run's seed promises, so it may not change from version to version.
    #[test]
    fn the_order_is_fixed() {
        let permutation = Permutation::new(10, 42, 0);
        let order: Vec<u64> = (0..10).map(|index| permutation.apply(index).unwrap()).collect();
        assert_eq!(order, FIXED);
    }

    const FIXED: [u64; 10] = [0, 9, 3, 6, 8, 7, 1, 5, 4, 2];
}
