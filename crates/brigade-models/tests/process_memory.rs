//! What the process as a whole tells of its memory: a program of its own, in which nothing else happens meanwhile.

#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(clippy::unwrap_used)]

mod counting;

use std::cell::Cell;

use counting::{Exact, measure, number_types, shapes};

/// What the process's heap and pages tell, for programs whose allocator counts nothing.
#[test]
fn the_process_measures_what_an_allocator_counts_exactly() {
    let meter = brigade_cpu::GlibcHeap::find().unwrap();
    for shape in shapes() {
        for compute in number_types(&shape) {
            let exact = measure(&shape, *compute, &Exact(Cell::new(0)));
            let found = measure(&shape, *compute, &meter);
            assert_eq!(found.boundary_activations, exact.boundary_activations);
            let near = |found: u64, exact: u64| found.abs_diff(exact) as f64 <= 0.03 * exact as f64 + 1e6;
            for (found, exact) in found.saved_activations.iter().zip(&exact.saved_activations) {
                assert!(near(found.output, exact.output), "{found:?}, {exact:?} of {shape:?} in {compute:?}");
                assert!(near(found.saved, exact.saved), "{found:?}, {exact:?} of {shape:?} in {compute:?}");
                assert!(near(found.peak, exact.peak), "{found:?}, {exact:?} of {shape:?} in {compute:?}");
            }
        }
    }
}
