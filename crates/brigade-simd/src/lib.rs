//! Training kernels on slices of host memory, with SIMD chosen at run time: AVX-512, AVX2 with FMA, NEON, or portable code.
//!
//! Each function makes one pass over its data. All of them compute in `f32`, and take their data as any [`Element`]: `f32`, or
//! `half::bf16`, which is widened when it is loaded and rounded to the nearest even when it is stored.
//!
//! # Invariants
//! - A kernel gives the same bits whenever it runs on the same kind of processor: nothing depends on alignment, threads or time.
//! - An element-wise result depends neither on the element's position in a slice nor on the kind of processor: it only
//!   uses correctly rounded operations (addition, product, fused multiply-add, quotient, root), in the same order.
//! - A sum along a row has one order for each width of SIMD register; a sum over rows has one order.
//!
//! # Panics
//! Slices with mismatched lengths are a bug in the caller: every function panics with the argument's name.

mod arch;
mod convert;
mod dropout;
mod element;
mod matrix;
mod product;
mod rows;
mod slices;
mod sums;
#[cfg(test)]
mod testing;

pub mod activation;
pub mod attention;
pub mod codes;
pub mod cross_entropy;
pub mod math;
pub mod norm;
pub mod optimizer;
pub mod rotary;

pub use convert::{convert, convert_in_place};
pub use dropout::DropoutMask;
pub use element::Element;
pub use matrix::{Matrix, MatrixMut};
pub use product::{Factor, Product, matmul};
pub use rows::{add_rows, column_sums, multiply};
pub use sums::{add, chunk_square_sums};
