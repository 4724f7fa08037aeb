//! Layer norm and RMS norm of rows, and their gradients.
//!
//! Statistics are those of PyTorch and Burn: the variance of n, not of n − 1, and epsilon inside the square root. The deviations' squares
//! are summed after the mean is known.

mod backward;
mod forward;
#[cfg(test)]
mod tests;

pub use backward::{layer_norm_backward, rms_norm_backward};
pub use forward::{layer_norm, rms_norm};

use crate::rows::check_length;

/// Asserts that the slices have elements for `rows` rows of `width`: statistics one for each row.
fn check(rows: usize, width: usize, elements: &[(&str, usize)], statistics: &[(&str, usize)]) {
    elements.iter().for_each(|(name, length)| check_length(name, *length, rows * width));
    statistics.iter().for_each(|(name, length)| check_length(name, *length, rows));
}
