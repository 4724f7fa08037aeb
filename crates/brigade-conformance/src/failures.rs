//! What happens when ranks do different things.

use std::time::{Duration, Instant};

use brigade_core::{Collectives, Result};
use burn::tensor::FloatDType;

use crate::Suite;
use crate::values::contribution;

/// The error of an all-reduce in which the last rank has one element more; none where that is not detected.
fn mismatch(suite: &Suite, ranks: &dyn Collectives) -> Option<String> {
    if !suite.finds_mismatches || ranks.size() == 1 {
        return None;
    }
    let length = 4 + usize::from(ranks.rank() + 1 == ranks.size());
    let given = contribution(suite, ranks.rank(), length, FloatDType::F32);
    Some(ranks.all_reduce(given).wait().unwrap_err().to_string())
}

/// Lengths that differ are an error that names the operation, on every rank.
pub fn another_length_is_an_error_on_every_rank(suite: &Suite, ranks: &dyn Collectives) {
    if let Some(error) = mismatch(suite, ranks) {
        assert!(error.contains("all_reduce"), "{error}");
    }
}

/// Once an operation has failed, all others fail, and at once.
pub fn a_failure_is_the_end(suite: &Suite, ranks: &dyn Collectives) {
    if mismatch(suite, ranks).is_none() {
        return;
    }
    let (size, device) = (ranks.size(), &suite.device);
    let given = || contribution(suite, ranks.rank(), 3 * size, FloatDType::F32);
    let next = (ranks.rank() + 1) % size;
    let calls: [(&str, &dyn Fn() -> Result<()>); 8] = [
        ("all_reduce", &|| ranks.all_reduce(given()).wait().map(drop)),
        ("reduce_scatter", &|| ranks.reduce_scatter(given()).wait().map(drop)),
        ("all_gather", &|| ranks.all_gather(given()).wait().map(drop)),
        ("broadcast", &|| ranks.broadcast(given(), 0).wait().map(drop)),
        ("send", &|| ranks.send(vec![None], next).wait()),
        ("receive", &|| ranks.receive(next, device).wait().map(drop)),
        ("all_gather_scalars", &|| ranks.all_gather_scalars(vec![1.0]).wait().map(drop)),
        ("barrier", &|| ranks.barrier()),
    ];
    for (name, call) in calls {
        let start = Instant::now();
        assert!(call().is_err(), "{name} after a failure");
        assert!(start.elapsed() < Duration::from_secs(5), "{name} waited {:?}", start.elapsed());
    }
}
