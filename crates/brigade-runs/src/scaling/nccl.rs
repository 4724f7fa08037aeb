//! What runs with NCCL do not record: the host queues work for its GPU and goes on, and waits first at the step's norm.

use crate::run::Run;

/// What the numbers of such a run leave open; without a full stop.
pub(super) const NOT_TOLD_APART: &str = "on GPUs, the time of computing includes the waits for NCCL, which these numbers do not tell apart: a slow rank or communication \
    that computing does not hide may slow this run down without being found; `--profile-steps` records how long each block takes on each GPU";

/// Whether a run's times of computing include what its GPUs wait for other ranks, in collectives of NCCL.
pub(super) fn waits_in_compute(run: &Run) -> bool {
    let is = |name: &str, values: [&str; 2]| run.setting(name).is_none_or(|value| values.contains(&value));
    // Other devices than CUDA's do not say how much memory they have.
    let is_cuda = run
        .records_of_last_mesh()
        .iter()
        .any(|record| record.device_memory.is_some_and(|memory| memory.total.is_some()));
    // What `auto` stands for: parameter servers need collectives in host memory.
    let is_server = run.setting("strategy.name") == Some("\"async-server\"");
    let has_others = run.ranks().is_some_and(|ranks| ranks > 1);
    has_others && is_cuda && !is_server && is("comm.collectives", ["\"auto\"", "\"nccl\""])
}

/// That a run's numbers do not tell computing from waiting, where they do not; without a full stop.
pub fn not_told_apart(run: &Run) -> Option<&'static str> {
    waits_in_compute(run).then_some(NOT_TOLD_APART)
}
