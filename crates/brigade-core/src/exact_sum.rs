//! Exact sums of non-negative numbers, which do not depend on the order of addition.

/// A sum of non-negative `f32` values without rounding. Neither the order of the terms nor their distribution over ranks changes
/// a bit of it.
///
/// A fixed-point number of 384 bits that counts units of 2^-149, the smallest `f32`; it holds 2^107
/// times the largest. (The idea: Kulisch, "Computer arithmetic and validity", 2008.)
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ExactSum {
    limbs: [u64; LIMBS],
    /// Whether a term was infinite, not a number or negative.
    spoiled: bool,
}

const LIMBS: usize = 6;

/// The exponents of numbers. With the last one they are not finite.
pub(crate) const EXPONENTS: usize = 256;

/// The numbers that represent a sum between ranks: 32 bits each, then whether it is spoiled.
pub(crate) const WORDS: usize = 2 * LIMBS + 1;

impl ExactSum {
    /// Adds terms: those with the same exponent as whole numbers first.
    pub(crate) fn add_all(&mut self, terms: &[f32]) {
        // Fewer than 2^40 terms below 2^24 fit into each.
        for terms in terms.chunks(1 << 39) {
            let mut of_exponents = [0u64; EXPONENTS];
            for term in terms {
                if !(term.is_finite() && *term >= 0.0) {
                    self.spoiled = true;
                    continue;
                }
                let bits = term.to_bits() & 0x7fff_ffff;
                let (exponent, fraction) = (bits >> 23, u64::from(bits & 0x7f_ffff));
                of_exponents[exponent as usize] += fraction | u64::from(exponent > 0) << 23;
            }
            self.add_of_exponents(of_exponents);
        }
    }

    /// Adds, for each exponent, the sum of its terms as whole numbers: a normal number is (2^23 + fraction) · 2^(exponent - 1) units, a subnormal one
    /// `fraction` units.
    pub(crate) fn add_of_exponents(&mut self, sums: impl IntoIterator<Item = u64>) {
        for (exponent, sum) in sums.into_iter().enumerate().filter(|(_, sum)| *sum > 0) {
            if exponent >= EXPONENTS - 1 {
                self.spoiled = true;
                continue;
            }
            let shift = exponent.saturating_sub(1);
            let wide = u128::from(sum) << (shift % 64);
            self.add_at(shift / 64, wide as u64);
            self.add_at(shift / 64 + 1, (wide >> 64) as u64);
        }
    }

    /// Adds a whole number.
    pub(crate) fn add_whole(&mut self, number: u64) {
        // One is 2^149 units.
        let wide = u128::from(number) << (149 % 64);
        self.add_at(149 / 64, wide as u64);
        self.add_at(149 / 64 + 1, (wide >> 64) as u64);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.spoiled |= other.spoiled;
        for (limb, value) in other.limbs.iter().enumerate() {
            self.add_at(limb, *value);
        }
    }

    fn add_at(&mut self, mut limb: usize, mut value: u64) {
        while value > 0 && limb < LIMBS {
            let (sum, carry) = self.limbs[limb].overflowing_add(value);
            self.limbs[limb] = sum;
            (limb, value) = (limb + 1, u64::from(carry));
        }
    }

    /// The sum; NaN if it is spoiled.
    pub(crate) fn value(&self) -> f64 {
        if self.spoiled {
            return f64::NAN;
        }
        let unit = 2f64.powi(-149);
        self.limbs.iter().rev().fold(0.0, |sum, limb| sum * 2f64.powi(64) + *limb as f64) * unit
    }

    pub(crate) fn to_words(&self) -> [f64; WORDS] {
        let mut words = [0.0; WORDS];
        for (index, limb) in self.limbs.iter().enumerate() {
            words[2 * index] = f64::from(*limb as u32);
            words[2 * index + 1] = f64::from((limb >> 32) as u32);
        }
        words[WORDS - 1] = f64::from(u8::from(self.spoiled));
        words
    }

    pub(crate) fn from_words(words: &[f64]) -> Self {
        let mut limbs = [0; LIMBS];
        for (limb, pair) in limbs.iter_mut().zip(words.chunks_exact(2)) {
            *limb = pair[0] as u64 | (pair[1] as u64) << 32;
        }
        Self { limbs, spoiled: words.last() != Some(&0.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(terms: &[f32]) -> ExactSum {
        let mut sum = ExactSum::default();
        sum.add_all(terms);
        sum
    }

    proptest! {
        #[test]
        fn neither_order_nor_spreading_changes_it(
            terms in prop::collection::vec((0u32..0x7f80_0000).prop_map(f32::from_bits), 0..60),
            cut in any::<prop::sample::Index>(),
        ) {
            let whole = sum(&terms);
            let mut reversed = terms.clone();
            reversed.reverse();
            prop_assert_eq!(&sum(&reversed), &whole);
            let (left, right) = terms.split_at(cut.index(terms.len() + 1));
            let mut parts = ExactSum::from_words(&sum(left).to_words());
            parts.merge(&ExactSum::from_words(&sum(right).to_words()));
            prop_assert_eq!(parts, whole);
        }

        #[test]
        fn it_is_the_sum(terms in prop::collection::vec(0u32..1 << 20, 1..60), scale in -140i32..100) {
            let exact: u64 = terms.iter().map(|term| u64::from(*term)).sum();
            let scaled: Vec<f32> = terms.iter().map(|term| (f64::from(*term) * 2f64.powi(scale)) as f32).collect();
            prop_assert_eq!(sum(&scaled).value(), exact as f64 * 2f64.powi(scale));
        }
    }

    #[test]
    fn whole_numbers_are_added_to_fractions() {
        let mut exact = sum(&[0.25, f32::MIN_POSITIVE]);
        exact.add_whole(1 << 40);
        exact.add_whole(7);
        let mut expected = sum(&[2f32.powi(40), f32::MIN_POSITIVE, 7.0, 0.25]);
        assert_eq!(exact, expected);
        assert_eq!(exact.value(), 2f64.powi(40) + 7.25);
        exact.add_whole(u64::MAX);
        expected.merge(&sum(&[2f32.powi(63), 2f32.powi(63)]));
        exact.add_whole(1);
        assert_eq!(exact, expected);
    }

    #[test]
    fn what_is_no_number_spoils_it() {
        assert!(sum(&[1.0, f32::NAN]).value().is_nan());
        assert!(sum(&[f32::INFINITY]).value().is_nan());
        assert!(ExactSum::from_words(&sum(&[f32::NAN]).to_words()).value().is_nan());
        assert_eq!(sum(&[f32::MAX; 4]).value(), 4.0 * f64::from(f32::MAX));
        assert_eq!(sum(&[-0.0]).value(), 0.0);
    }
}
