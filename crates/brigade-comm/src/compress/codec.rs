//! What a codec is.

/// Makes codes of numbers.
pub trait Codec: Send + Sync {
    /// Bytes of the code of so many numbers.
    fn bytes(&self, count: usize) -> usize;

    /// Writes the code of `values` to `code`, which is [`bytes`](Self::bytes) long. The same values and key give the same code.
    fn encode(&self, values: &[f32], key: u64, code: &mut [u8]);

    /// Writes to `values` what the code of as many numbers stands for. `key` is that of [`encode`](Self::encode).
    fn decode(&self, code: &[u8], key: u64, values: &mut [f32]);

    /// Whether the mean of what codes stand for, over all keys, differs from the numbers by more than rounding to nearest does. Such
    /// a codec learns only with error feedback.
    fn is_biased(&self) -> bool;
}
