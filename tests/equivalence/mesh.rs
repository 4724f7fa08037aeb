//! Rows on meshes whose ranks are threads, compared with one process.

use std::thread;

use brigade::comm::{Timeouts, threads};
use brigade::core::{DP, Groups, Mesh, NamedTensor, PP};

use crate::row::{Outcome, Row};

pub fn on_threads<R: Send>(pp: usize, dp: usize, run: impl Fn(Groups) -> R + Sync) -> Vec<R> {
    on_mesh(&Mesh::new(pp * dp, [(PP, pp), (DP, dp)]).unwrap(), run)
}

pub fn on_mesh<R: Send>(mesh: &Mesh, run: impl Fn(Groups) -> R + Sync) -> Vec<R> {
    let worlds = threads(mesh.world(), Timeouts::default());
    thread::scope(|scope| {
        let run = &run;
        let start = |world| {
            scope.spawn(move || {
                let groups = brigade_cpu::groups(&world, mesh.clone()).unwrap();
                run(groups)
            })
        };
        let ranks: Vec<_> = worlds.into_iter().map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

pub fn same_bits(a: &[NamedTensor], b: &[NamedTensor], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}: number of tensors");
    for (a, b) in a.iter().zip(b) {
        assert_eq!(a.name, b.name, "{what}");
        assert_eq!(a.data.shape(), b.data.shape(), "{what}: {}", a.name);
        assert!(a.data.as_bytes() == b.data.as_bytes(), "{what}: {} differs from one process", a.name);
    }
}

/// Runs a row on its mesh, and compares every rank with one process: losses, norms, gradients of the first step,
/// weights after the last, validation loss.
pub fn equals_one_process(row: &Row) -> Vec<Outcome> {
    let reference = row.reference().run(Groups::single_rank());
    let last = reference.reports.last().unwrap();
    assert!(last.loss < reference.reports[0].loss * 1.5, "it trains");
    let outcomes = on_mesh(&row.mesh(), |groups| row.run(groups));
    for (rank, outcome) in outcomes.iter().enumerate() {
        equals(row, rank, outcome, &reference);
    }
    same_bits(&outcomes[0].gradients, &reference.gradients, &format!("gradients of {row:?}"));
    outcomes
}

/// Compares a rank with one process in all but the gradients, which rank 0 alone has.
pub fn equals(row: &Row, rank: usize, outcome: &Outcome, reference: &Outcome) {
    let what = |part: &str| format!("{part} on rank {rank} of {row:?}");
    for (a, b) in outcome.reports.iter().zip(&reference.reports) {
        assert_eq!(a.loss.to_bits(), b.loss.to_bits(), "{}", what("loss"));
        assert_eq!(a.metrics, b.metrics, "{}", what("metrics"));
        assert_eq!(a.metrics.len(), 2);
        assert_eq!(a.grad_norm.to_bits(), b.grad_norm.to_bits(), "{}", what("norm"));
        assert_eq!((a.targets, a.skipped), (b.targets, b.skipped), "{}", what("targets"));
    }
    assert_eq!(outcome.validation, reference.validation, "{}", what("validation"));
    same_bits(&outcome.weights, &reference.weights, &what("weights"));
}
