//! A few of many numbers.

use brigade_random::keyed;

use crate::Codec;

/// The largest numbers by size, this share of them, each with its place. Of equally large ones the first are kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopK {
    /// Above 0, at most 1.
    pub share: f64,
}

/// One number of each of equally long stretches, drawn by the key; this share of all. Places need not be sent, since all ranks draw
/// the same.
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
        let mut places: Vec<u32> = (0..values.len() as u32).collect();
        let size = |place: u32| values[place as usize].abs();
        // Numbers that are none come first, so that they are seen.
        places.select_nth_unstable_by(kept - 1, |a, b| size(*b).total_cmp(&size(*a)).then(a.cmp(b)));
        places.truncate(kept);
        places.sort_unstable();
        for (place, code) in places.into_iter().zip(code.as_chunks_mut::<8>().0) {
            code[..4].copy_from_slice(&place.to_le_bytes());
            code[4..].copy_from_slice(&values[place as usize].to_le_bytes());
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
    /// The place that is kept of each stretch.
    fn places(self, count: usize, key: u64) -> impl Iterator<Item = usize> {
        let kept = kept(self.share, count);
        (0..kept).map(move |stretch| {
            let (start, end) = (stretch * count / kept, (stretch + 1) * count / kept);
            start + (keyed(key, stretch as u64) % (end - start) as u64) as usize
        })
    }
}

impl Codec for RandomK {
    fn bytes(&self, count: usize) -> usize {
        4 * kept(self.share, count)
    }

    fn encode(&self, values: &[f32], key: u64, code: &mut [u8]) {
        for (place, code) in self.places(values.len(), key).zip(code.as_chunks_mut().0) {
            *code = values[place].to_le_bytes();
        }
    }

    fn decode(&self, code: &[u8], key: u64, values: &mut [f32]) {
        values.fill(0.0);
        for (place, code) in self.places(values.len(), key).zip(code.as_chunks().0) {
            values[place] = f32::from_le_bytes(*code);
        }
    }

    fn needs_error_feedback(&self) -> bool {
        true
    }
}
