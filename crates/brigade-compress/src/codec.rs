//! What a codec is.

use std::fmt::Debug;

/// Makes codes of numbers.
pub trait Codec: Debug + Send + Sync {
    /// Bytes of the code of this many numbers.
    fn bytes(&self, count: usize) -> usize;

    /// Writes the code of `values` to `code`, which is [`bytes`](Self::bytes) long. The same values and key give the same code.
    fn encode(&self, values: &[f32], key: u64, code: &mut [u8]);

    /// Writes to `values` what the code of as many numbers stands for. `key` is that of [`encode`](Self::encode).
    fn decode(&self, code: &[u8], key: u64, values: &mut [f32]);

    /// Whether what codes leave out must be added to later numbers (error feedback), since it does not become nothing in the mean
    /// over keys, or over many numbers as the rounding to 16 bits does.
    fn needs_error_feedback(&self) -> bool;

    /// Whether all ranks must code with one key, which then also codes their sum: the key says which numbers a code has. A sum of such
    /// codes has these numbers and zeros, and its own code leaves nothing out. Otherwise each rank has its own key, so that what they
    /// draw is independent.
    fn shares_key(&self) -> bool {
        false
    }
}
