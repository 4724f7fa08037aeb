//! What is tested: a parser, what it may use, and how its inputs are made.

use rand_chacha::ChaCha8Rng;

/// A parser of other people's bytes.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name on the command line, and that of its folder in `corpus`.
    pub name: &'static str,
    /// The parser, with what is made of what it reads.
    pub run: fn(&[u8]),
    /// Whether an input says something; see the target for what exactly. Used for the share in the table alone.
    pub parsed: fn(&[u8]) -> bool,
    /// The memory that it may use.
    pub bound: Bound,
    /// Valid payloads.
    pub payloads: fn() -> Vec<Vec<u8>>,
    /// Makes an input of payloads: adds what must fit them (lengths, and what comes first), so that a changed payload
    /// gets as far as an unchanged one.
    pub envelope: fn(&mut ChaCha8Rng, &[Vec<u8>]) -> Vec<u8>,
}

/// The memory that one input may make a parser use, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    /// At any time.
    pub at_once: Limit,
    /// All requests together.
    pub in_total: Limit,
}

/// A number of bytes that grows with the input's length.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// For an empty input.
    pub fixed: u64,
    /// More for each byte of input.
    pub per_byte: u64,
}

impl Limit {
    /// The limit for an input of this length.
    pub fn of(self, length: usize) -> u64 {
        self.fixed.saturating_add(self.per_byte.saturating_mul(length as u64))
    }
}

/// The [`Target::envelope`] of what is a payload by itself.
pub fn bare(_: &mut ChaCha8Rng, payloads: &[Vec<u8>]) -> Vec<u8> {
    payloads.first().cloned().unwrap_or_default()
}

/// The [`Target::envelope`] of payloads that are made of lines.
pub fn lines(_: &mut ChaCha8Rng, payloads: &[Vec<u8>]) -> Vec<u8> {
    payloads.join(&b'\n')
}
