//! Pseudo-random numbers that are functions of their keys, with no state: the same on every rank, thread and machine.
//!
//! To draw many numbers for one purpose, seed a generator of `rand_chacha` with [`keyed_seed`]. For one number per key
//! (the next position in an order of samples, the split of a document), use [`keyed`].
//!
//! # Invariant
//! The bits never change: initial weights and the order of training data are derived from them.

/// The golden ratio in 64 bits: an odd increment whose multiples differ in all bits.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// First multiplier of [`mix`].
const FIRST: u64 = 0xbf58_476d_1ce4_e5b9;

/// Second multiplier of [`mix`].
const SECOND: u64 = 0x94d0_49bb_1331_11eb;

/// A bijection of 64 bits, in which every bit of the input changes every bit of the output with a probability near one
/// half: the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014;
/// constants by David Stafford, variant 13).
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(FIRST);
    x = (x ^ (x >> 27)).wrapping_mul(SECOND);
    x ^ (x >> 31)
}

/// The number that belongs to `value` under `seed`. Different pairs give unrelated numbers.
pub fn keyed(seed: u64, value: u64) -> u64 {
    mix(mix(seed.wrapping_add(GOLDEN)).wrapping_add(value.wrapping_mul(GOLDEN)))
}

/// The number that belongs to `bytes` under `seed`: FNV-1a over the bytes, then [`mix`].
pub fn keyed_bytes(seed: u64, bytes: &[u8]) -> u64 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix(hash ^ seed.wrapping_add(GOLDEN).wrapping_mul(FIRST))
}

/// A seed for one purpose of a run, such as the initial values of the parameter with this path.
pub fn keyed_seed(seed: u64, name: &str) -> u64 {
    keyed_bytes(seed, name.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    /// Weights and data orders of existing runs depend on these bits.
    #[test]
    fn the_bits_are_fixed() {
        assert_eq!([mix(0), mix(1), mix(u64::MAX)], [0, 0x5692_161d_100b_05e5, 0xb4d0_55fc_f2cb_bd7b]);
        assert_eq!([keyed(0, 0), keyed(42, 0), keyed(42, 1)], KEYED);
        assert_eq!([keyed_seed(0, ""), keyed_seed(7, "blocks.0.weight")], SEEDS);
    }

    const KEYED: [u64; 3] = [0x4821_8226_ff3c_d4bf, 0xb29e_d950_786f_5ae3, 0x57e1_faba_6510_7204];
    const SEEDS: [u64; 2] = [0x2d5e_61e5_ead2_3ece, 0xd88b_9ad6_1c5a_97e2];

    #[test]
    fn numbers_of_different_keys_differ() {
        let pairs = (0..300).flat_map(|seed| (0..300).map(move |value| keyed(seed, value)));
        assert_eq!(pairs.collect::<HashSet<_>>().len(), 90_000);
        let names = (0..300).flat_map(|seed| (0..300).map(move |i| keyed_seed(seed, &format!("block.{i}"))));
        assert_eq!(names.collect::<HashSet<_>>().len(), 90_000);
    }

    proptest! {
        /// One bit of the key changes about half of the bits of the number.
        #[test]
        fn every_bit_of_a_key_counts(seed: u64, value: u64, bit in 0..64) {
            let changed = keyed(seed, value) ^ keyed(seed, value ^ (1u64 << bit));
            prop_assert!((8..=56).contains(&changed.count_ones()), "{changed:064b}");
            let changed = keyed(seed, value) ^ keyed(seed ^ (1u64 << bit), value);
            prop_assert!((8..=56).contains(&changed.count_ones()), "{changed:064b}");
        }
    }
}
