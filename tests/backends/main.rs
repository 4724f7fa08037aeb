//! Rows of the equivalence suite on other devices than the CPU, their ranks as threads: near the CPU's one process, and
//! the same bits each time. Without the feature of a backend there is nothing here.

#![cfg(any(feature = "cuda", feature = "wgpu"))]
#![allow(clippy::unwrap_used)]

mod backend;
mod compare;
mod kernels;
mod measured;
mod meshes;
#[cfg(feature = "cuda")]
mod nccl;
#[allow(dead_code)]
#[path = "../equivalence/row.rs"]
mod row;
mod table;
mod training;
