//! Sums over ranks that travel as codes.

use brigade_random::keyed;

use crate::Result;
use crate::compress::Codec;
use crate::op::dtype::{DType, ReduceOp};
use crate::op::reduce::reduce;
use crate::op::view::View;
use crate::process_group::ProcessGroup;

/// Adds buffers of one length over the ranks of a group, with what codes have left out so far.
///
/// Without error feedback there is nothing to keep between calls. With it, [`residuals`](Self::residuals) belongs into checkpoints.
pub struct CodedSum<C> {
    codec: C,
    ranks: usize,
    count: usize,
    /// What this rank's codes have left out of its buffer, and of the slice whose sum it makes; empty without error feedback.
    own: Vec<f32>,
    sum: Vec<f32>,
}

impl<C: Codec> CodedSum<C> {
    /// Adds buffers of `count` numbers over `ranks` ranks.
    pub fn new(codec: C, ranks: usize, count: usize, error_feedback: bool) -> Self {
        let slice = if error_feedback { count.div_ceil(ranks) } else { 0 };
        Self { codec, ranks, count, own: vec![0.0; slice * ranks], sum: vec![0.0; slice] }
    }

    /// What codes have left out of this rank's buffer, padded to equal slices, and of the sum of this rank's slice. Empty without error feedback.
    pub fn residuals(&mut self) -> [&mut [f32]; 2] {
        [&mut self.own, &mut self.sum]
    }

    /// Payload bytes that this rank sends in [`all_reduce`](Self::all_reduce); half of them in
    /// [`reduce_scatter`](Self::reduce_scatter).
    pub fn payload(&self) -> u64 {
        2 * (self.ranks as u64 - 1) * self.codec.bytes(self.slice()) as u64
    }

    fn slice(&self) -> usize {
        self.count.div_ceil(self.ranks)
    }

    /// Replaces the buffer by the sum over all ranks, the same on all of them. `key` is different in each call, and the same on
    /// all ranks.
    ///
    /// # Errors
    /// If an operation of the group fails.
    ///
    /// # Panics
    /// If the buffer or the group has another size.
    pub fn all_reduce(&mut self, group: &dyn ProcessGroup, buffer: &mut [f32], key: u64) -> Result<()> {
        let mut sum = self.reduce_scatter(group, buffer, key)?;
        let (rank, slice, bytes) = (group.rank(), self.slice(), self.codec.bytes(self.slice()));
        let mut codes = vec![0; bytes * self.ranks];
        let code = &mut codes[rank * bytes..(rank + 1) * bytes];
        feed_back(&self.codec, &mut self.sum, &mut sum, keyed(key, rank as u64), code);
        let codes = group.all_gather(codes, DType::U8).wait()?;
        for (rank, code) in codes.chunks_exact(bytes.max(1)).enumerate() {
            self.codec.decode(code, keyed(key, rank as u64), &mut sum);
            let place = (rank * slice).min(self.count)..((rank + 1) * slice).min(self.count);
            let count = place.len();
            buffer[place].copy_from_slice(&sum[..count]);
        }
        Ok(())
    }

    /// Gives the sum over all ranks of this rank's slice: of as many equal slices as there are ranks, the last of which is padded with
    /// zeros.
    ///
    /// # Errors
    /// If an operation of the group fails.
    ///
    /// # Panics
    /// If the buffer or the group has another size.
    pub fn reduce_scatter(&mut self, group: &dyn ProcessGroup, buffer: &[f32], key: u64) -> Result<Vec<f32>> {
        assert_eq!((buffer.len(), group.size()), (self.count, self.ranks), "a coded sum of another size");
        let (slice, bytes) = (self.slice(), self.codec.bytes(self.slice()));
        // The key of what `from` sends to `to`; the sums that everybody gets have those below the number of ranks.
        let pair = |from: usize, to: usize| keyed(key, (self.ranks * (1 + from) + to) as u64);
        let mut codes = vec![0; bytes * self.ranks];
        let mut values = vec![0.0; slice];
        for (to, code) in codes.chunks_exact_mut(bytes.max(1)).enumerate() {
            let given = &buffer[(to * slice).min(self.count)..((to + 1) * slice).min(self.count)];
            values[..given.len()].copy_from_slice(given);
            values[given.len()..].fill(0.0);
            let residual = match self.own.is_empty() {
                true => &mut [][..],
                false => &mut self.own[to * slice..(to + 1) * slice],
            };
            feed_back(&self.codec, residual, &mut values, pair(group.rank(), to), code);
        }
        let codes = group.all_to_all(codes, DType::U8).wait()?;
        let mut decoded = vec![0.0; slice * self.ranks];
        for (from, code) in codes.chunks_exact(bytes.max(1)).enumerate() {
            let values = &mut decoded[from * slice..(from + 1) * slice];
            self.codec.decode(code, pair(from, group.rank()), values);
        }
        let (sum, others) = decoded.split_at_mut(slice);
        if slice > 0 {
            let others = others.chunks_exact(slice).map(bytemuck::cast_slice::<f32, u8>);
            let others: Vec<View<'_>> = others.map(View::from).collect();
            reduce(DType::F32, ReduceOp::Sum, 0, bytemuck::cast_slice_mut(sum), &others);
        }
        decoded.truncate(slice);
        Ok(decoded)
    }
}

/// Codes values together with what was left out before, and keeps what is left out now, where there is a residual.
fn feed_back(codec: &impl Codec, residual: &mut [f32], values: &mut [f32], key: u64, code: &mut [u8]) {
    values.iter_mut().zip(&*residual).for_each(|(value, residual)| *value += residual);
    codec.encode(values, key, code);
    if !residual.is_empty() {
        let mut decoded = vec![0.0; values.len()];
        codec.decode(code, key, &mut decoded);
        for ((residual, value), decoded) in residual.iter_mut().zip(&*values).zip(decoded) {
            let rest = value - decoded;
            // What is not finite is seen in the sum once, and not in those after it.
            *residual = if rest.is_finite() { rest } else { 0.0 };
        }
    }
}
