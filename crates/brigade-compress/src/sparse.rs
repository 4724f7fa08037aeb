//! A few of many numbers.

use std::ops::Range;

use brigade_random::keyed;

use crate::Codec;

/// The largest numbers by size, this share of them, each with its place. Of equally large ones the first are kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopK {
    /// Above 0, at most 1.
    pub share: f64,
}

/// One number of each of equally long stretches, drawn by the key; this share of all. Places need not be sent, since all ranks draw
/// the same. A stretch with numbers that are not finite sends the first of them, so that it is seen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomK {
    /// Above 0, at most 1.
    pub share: f64,
}

/// How many of some numbers are kept: at least one, if there are any.
fn kept(share: f64, count: usize) -> usize {
    ((count as f64 * share).ceil() as usize).clamp(1, count.max(1)).min(count)
}

impl Codec for TopK {
    fn bytes(&self, count: usize) -> usize {
        8 * kept(self.share, count)
    }

    fn encode(&self, values: &[f32], _: u64, code: &mut [u8]) {
        let kept = kept(self.share, values.len());
        if kept == 0 {
            return;
        }
        // The bits of sizes are ordered as sizes are. Numbers that are none come first, so that they are seen.
        let size = |value: &f32| value.abs().to_bits();
        let mut sizes: Vec<u32> = values.iter().map(size).collect();
        let (_, smallest, _) = sizes.select_nth_unstable_by(kept - 1, |a, b| b.cmp(a));
        let smallest = *smallest;
        let mut as_small = kept - values.iter().filter(|value| size(value) > smallest).count();
        let mut codes = code.as_chunks_mut::<8>().0.iter_mut();
        for (place, value) in values.iter().enumerate() {
            let size = size(value);
            if size < smallest || size == smallest && as_small == 0 {
                continue;
            }
            as_small -= usize::from(size == smallest);
            let Some(code) = codes.next() else { return };
            code[..4].copy_from_slice(&(place as u32).to_le_bytes());
            code[4..].copy_from_slice(&value.to_le_bytes());
        }
    }

    fn decode(&self, code: &[u8], _: u64, values: &mut [f32]) {
        values.fill(0.0);
        for [a, b, c, d, value @ ..] in code.as_chunks::<8>().0 {
            // Another rank's places are not taken on trust.
            if let Some(kept) = values.get_mut(u32::from_le_bytes([*a, *b, *c, *d]) as usize) {
                *kept = f32::from_le_bytes(*value);
            }
        }
    }

    fn needs_error_feedback(&self) -> bool {
        true
    }
}

impl RandomK {
    /// The stretches, and the place that is kept of each.
    fn places(self, count: usize, key: u64) -> impl Iterator<Item = (Range<usize>, usize)> {
        let kept = kept(self.share, count);
        (0..kept).map(move |stretch| {
            let (start, end) = (stretch * count / kept, (stretch + 1) * count / kept);
            (start..end, start + (keyed(key, stretch as u64) % (end - start) as u64) as usize)
        })
    }
}

impl Codec for RandomK {
    fn bytes(&self, count: usize) -> usize {
        4 * kept(self.share, count)
    }

    fn encode(&self, values: &[f32], key: u64, code: &mut [u8]) {
        for ((stretch, place), code) in self.places(values.len(), key).zip(code.as_chunks_mut().0) {
            let wrong = values[stretch].iter().find(|value| !value.is_finite());
            *code = wrong.unwrap_or(&values[place]).to_le_bytes();
        }
    }

    fn decode(&self, code: &[u8], key: u64, values: &mut [f32]) {
        values.fill(0.0);
        for ((_, place), code) in self.places(values.len(), key).zip(code.as_chunks().0) {
            values[place] = f32::from_le_bytes(*code);
        }
    }

    fn needs_error_feedback(&self) -> bool {
        true
    }

    fn shares_key(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_kept_and_of_equally_large_ones_the_first() {
        let values: Vec<f32> =
            (0..1000).map(|i| [1.0, -3.0, 2.0, 0.0, -2.0][i * 7 % 5] * (1 + i % 3) as f32).collect();
        for kept in [1, 7, 66, 67, 68, 500, 1000] {
            let codec = TopK { share: kept as f64 / 1000.0 };
            let mut code = vec![0; codec.bytes(values.len())];
            codec.encode(&values, 0, &mut code);
            let places = code
                .as_chunks::<8>()
                .0
                .iter()
                .map(|[a, b, c, d, ..]| u32::from_le_bytes([*a, *b, *c, *d]) as usize);
            // All in order of their sizes, and equal ones in order of their places.
            let mut expected: Vec<usize> = (0..values.len()).collect();
            expected.sort_by(|a, b| values[*b].abs().total_cmp(&values[*a].abs()));
            expected.truncate(kept);
            expected.sort_unstable();
            assert!(places.eq(expected), "{kept}");
        }
        let mut code = [0; 8];
        TopK { share: 0.1 }.encode(&[f32::INFINITY, 1.0, -f32::NAN], 0, &mut code);
        assert_eq!(code[0], 2);
    }
}
