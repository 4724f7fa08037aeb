//! Sums over ranks that travel as codes.

use std::ops::Range;
use std::sync::Arc;

use brigade_random::keyed;

use crate::{Codec, ErrorFeedback};

/// This rank's part in sums of buffers over ranks that travel as codes. The ranks cut a buffer into as many slices of `slice` numbers
/// as there are ranks, the last of which may be padding.
///
/// ```text
/// encode ─ all-to-all ─▶ sum: this rank's slice          (a reduce-scatter)
///                         └▶ encode_sum ─ all-gather ─▶ decode_sums: the whole buffer     (an all-reduce)
/// ```
///
/// The result has the same bits on all ranks. Slices are added pairwise, in rank order by doubling strides.
#[derive(Debug, Clone)]
pub struct CodedSum {
    codec: Arc<dyn Codec>,
    rank: usize,
    ranks: usize,
    slice: usize,
    count: usize,
    /// What is left out of this rank's buffer.
    pub own: ErrorFeedback,
    /// What is left out of the sum of this rank's slice, where it is coded.
    pub sum: ErrorFeedback,
}

impl CodedSum {
    /// Sums of buffers of `count` numbers over `ranks` ranks, in slices of `slice` numbers, as rank number `rank`. `sends_sums`: whether
    /// sums travel as well, so that every rank has the whole.
    pub fn new(
        codec: Arc<dyn Codec>,
        (rank, ranks): (usize, usize),
        (slice, count): (usize, usize),
        sends_sums: bool,
    ) -> Self {
        let mut coded =
            Self { codec, rank, ranks, slice, count, own: ErrorFeedback::none(), sum: ErrorFeedback::none() };
        if coded.codec.needs_error_feedback() && ranks > 1 {
            coded.own = ErrorFeedback::zeros(ranks * slice);
            if sends_sums && !coded.codec.shares_key() {
                coded.sum = ErrorFeedback::zeros(slice);
            }
        }
        coded
    }

    /// The numbers of a rank's slice without padding.
    pub fn place(&self, rank: usize) -> Range<usize> {
        (rank * self.slice).min(self.count)..((rank + 1) * self.slice).min(self.count)
    }

    /// Bytes of the codes of all slices.
    pub fn code_bytes(&self) -> usize {
        self.ranks * self.codec.bytes(self.slice)
    }

    /// The codes of all slices of this rank's buffer, in order, each as long as the others: what an all-to-all distributes. `key` is
    /// different in each call, and the same on all ranks.
    ///
    /// # Panics
    /// If the buffer is shorter than the count.
    pub fn encode(&mut self, values: &[f32], key: u64) -> Vec<u8> {
        let bytes = self.codec.bytes(self.slice);
        let mut codes = vec![0; bytes * self.ranks];
        for to in 0..self.ranks {
            let (place, key) = (self.place(to), self.pair(key, self.rank, to));
            let mut values = values[place.clone()].to_vec();
            let code = &mut codes[to * bytes..(to + 1) * bytes];
            let errors = self.own.next(place.start, place.len());
            feed_back(&*self.codec, errors, &mut values, key, code);
        }
        codes
    }

    /// The sum of this rank's slice, without padding, from the codes that all ranks made of it, in rank order.
    ///
    /// # Panics
    /// If they are not as long as [`encode`](Self::encode) makes them.
    pub fn sum(&self, codes: &[u8], key: u64) -> Vec<f32> {
        assert_eq!(codes.len(), self.code_bytes(), "codes of another sum");
        let count = self.place(self.rank).len();
        let decoded =
            codes.chunks_exact(self.codec.bytes(self.slice).max(1)).enumerate().map(|(from, code)| {
                let mut values = vec![0.0; count];
                self.codec.decode(
                    &code[..self.codec.bytes(count)],
                    self.pair(key, from, self.rank),
                    &mut values,
                );
                values
            });
        pairwise(decoded.collect()).unwrap_or_default()
    }

    /// The code of the sum of this rank's slice, as long as the others': what an all-gather distributes.
    pub fn encode_sum(&mut self, mut sum: Vec<f32>, key: u64) -> Vec<u8> {
        let mut code = vec![0; self.codec.bytes(self.slice)];
        let errors = self.sum.next(0, sum.len());
        feed_back(&*self.codec, errors, &mut sum, keyed(key, self.rank as u64), &mut code);
        code
    }

    /// The whole sum, from the codes of all slices.
    ///
    /// # Panics
    /// If they are not as long as [`encode_sum`](Self::encode_sum) makes them.
    pub fn decode_sums(&self, codes: &[u8], key: u64) -> Vec<f32> {
        assert_eq!(codes.len(), self.code_bytes(), "codes of another sum");
        let mut values = vec![0.0; self.count];
        for (rank, code) in codes.chunks_exact(self.codec.bytes(self.slice).max(1)).enumerate() {
            let place = self.place(rank);
            let code = &code[..self.codec.bytes(place.len())];
            self.codec.decode(code, keyed(key, rank as u64), &mut values[place]);
        }
        values
    }

    /// Says whether the sums since the last update made one: see [`ErrorFeedback::commit`].
    pub fn commit(&mut self, updates: bool) {
        for errors in [&mut self.own, &mut self.sum] {
            errors.commit(updates);
        }
        // Where this codec has no use for them, what an earlier one left out has been added to one update.
        if updates && !(self.codec.needs_error_feedback() && self.ranks > 1) {
            (self.own, self.sum) = (ErrorFeedback::none(), ErrorFeedback::none());
        }
    }

    /// The key of what `from` sends to `to`, for the slice of `to`: that of its sum where all ranks have one, and otherwise one of its
    /// own. Sums have those below the number of ranks.
    fn pair(&self, key: u64, from: usize, to: usize) -> u64 {
        match self.codec.shares_key() {
            true => keyed(key, to as u64),
            false => keyed(key, (self.ranks * (1 + from) + to) as u64),
        }
    }
}

/// The sum of some buffers of one length, pairwise by doubling strides; none of none.
fn pairwise(mut terms: Vec<Vec<f32>>) -> Option<Vec<f32>> {
    let mut stride = 1;
    while stride < terms.len() {
        for first in (0..terms.len() - stride).step_by(2 * stride) {
            let (left, right) = terms.split_at_mut(first + stride);
            left[first].iter_mut().zip(&right[0]).for_each(|(sum, value)| *sum += value);
        }
        stride *= 2;
    }
    terms.into_iter().next()
}

/// Codes values together with what was left out before, and keeps what is left out now, where there are errors.
fn feed_back(codec: &dyn Codec, errors: &mut [f32], values: &mut [f32], key: u64, code: &mut [u8]) {
    values.iter_mut().zip(&*errors).for_each(|(value, error)| *value += error);
    let code = &mut code[..codec.bytes(values.len())];
    codec.encode(values, key, code);
    if !errors.is_empty() {
        let mut decoded = vec![0.0; values.len()];
        codec.decode(code, key, &mut decoded);
        for ((error, value), decoded) in errors.iter_mut().zip(&*values).zip(decoded) {
            let rest = value - decoded;
            // What is not finite is seen in the sum once, and not in those after it.
            *error = if rest.is_finite() { rest } else { 0.0 };
        }
    }
}
