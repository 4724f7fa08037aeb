//! What is tested: a parser, what it may use, and how its inputs are made.

use rand_chacha::ChaCha8Rng;

/// A parser of bytes from outside the process.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name on the command line, and that of its folder in `corpus`.
    pub name: &'static str,
    /// The parser, and what the program does with its result.
    pub run: fn(&[u8]),
    /// Whether an input parses; each target says what that means. Only for the share in the table.
    pub parsed: fn(&[u8]) -> bool,
    /// The memory that it may use.
    pub bound: Bound,
    /// Valid payloads.
    pub payloads: fn() -> Vec<Vec<u8>>,
    /// Makes an input of payloads: adds the headers and lengths that must match them, so that a changed payload gets as far
    /// into the parser as an unchanged one.
    pub envelope: fn(&mut ChaCha8Rng, &[Vec<u8>]) -> Vec<u8>,
}

/// The memory that one input may make a parser use, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    /// At any one time.
    pub peak: Limit,
    /// All allocations together.
    pub total: Limit,
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

/// The [`Target::envelope`] of an input that is one payload.
pub fn bare(_: &mut ChaCha8Rng, payloads: &[Vec<u8>]) -> Vec<u8> {
    payloads.first().cloned().unwrap_or_default()
}

/// The [`Target::envelope`] of payloads that are made of lines.
pub fn lines(_: &mut ChaCha8Rng, payloads: &[Vec<u8>]) -> Vec<u8> {
    payloads.join(&b'\n')
}
