//! Sums of gradients in fewer bytes: codecs over flat buffers, error feedback, and PowerSGD. All of it is arithmetic on one rank; the
//! caller does the communication.
//!
//! A [`Codec`] encodes numbers into a code of fixed size. [`CodedSum`] adds buffers this way: each rank encodes one slice for every
//! other, adds what it receives pairwise in rank order, and encodes the sum for all. A codec with a systematic error needs [error
//! feedback](ErrorFeedback): the error is added to the next buffer. What rounding draws, each rank draws for itself; the places of
//! [`RandomK`] are the same on all ranks and in the sum. [`PowerSgd`] factors matrices instead. [`Compression`] names them all, as
//! in the settings. [`GatherCodes`] names those of parameters that are gathered.
//!
//! | method | bytes of a code, of 4 per number | loses |
//! |---|---|---|
//! | [`Bf16Codec`] | 2 | the last bits |
//! | [`F16Codec`] | 2, and 2 for each code | the last bits |
//! | [`Quantizer`] with 8 or 4 bits | 1 or 1/2, and 4 for each block | what lies between two steps of a block |
//! | [`TopK`] | 8 for each number that is kept | all but the largest |
//! | [`RandomK`] | 4 for each number that is kept | all but one of each stretch |
//! | [`OneBit`] | 1/8, and 4 for each block | all but the signs and the mean size of a block |
//! | [`PowerSgd`] | `4 r (n + m)` for a matrix of n × m | all but r directions |
//!
//! All are deterministic: random numbers are a function of a key. None has the bits of an uncompressed sum. The result is the
//! same on all ranks. Non-finite numbers stay visible: something in the sum is then not finite.

mod blocks;
mod codec;
mod coded_sum;
mod compression;
mod error_feedback;
mod gather;
mod halves;
mod power_sgd;
mod sparse;

pub use blocks::{OneBit, Quantizer, Rounding};
pub use codec::Codec;
pub use coded_sum::CodedSum;
pub use compression::{Compression, CompressionError, Cost, Method, Sends};
pub use error_feedback::ErrorFeedback;
pub use gather::GatherCodes;
pub use halves::{Bf16Codec, F16Codec};
pub use power_sgd::{Matrix, PowerSgd};
pub use sparse::{RandomK, TopK};

#[cfg(test)]
mod tests;
