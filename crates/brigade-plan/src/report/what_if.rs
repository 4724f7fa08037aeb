//! What other collectives, fewer bytes and larger batches would bring.

use brigade_compress::{Compression, Method};
use serde::Serialize;

use super::{count, seconds};
use crate::columns::{aligned, bytes};
use crate::memory::KeptBytes;
use crate::search::{Candidate, Evaluator, PlanError, PlanEvaluation, Shortage, Workload};
use crate::time::PlannedAlgorithm;

/// Bytes of a gradient while it travels, as bf16, or as integers of 8 and 4 bits with a scale in fp32 for each 256 of them; and what they are compressed with.
const FEWER_BYTES: [(&str, f64, Method); 3] = [
    ("gradients reduced in bf16 (compute.reduce_dtype)", 2.0, Method::None),
    ("gradients in 8 bits (--compress int8)", 1.0 + 4.0 / 256.0, Method::Int8),
    ("gradients in 4 bits (--compress int4)", 0.5 + 4.0 / 256.0, Method::Int4),
];

/// Why a rank may be faster than a single rank.
const ABOVE_ONE: &str = "Above 100%, a rank has less work besides its micro-batches than a single rank: it updates only a shard of the parameters, or updates them less often.";

/// One change, and what follows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WhatIf {
    /// The change, in words.
    pub change: String,
    /// What follows from it.
    pub evaluation: PlanEvaluation,
    /// Tokens a second of each rank, over those of one rank alone with the micro-batches of the configuration as it is. It is above 1 where a rank has less other work: it updates
    /// only its shard of the parameters, or updates them after more micro-batches.
    pub efficiency: f64,
    /// What it lacks; nothing where it fits.
    pub missing: Shortage,
    /// What the learning rate is multiplied by, where the batch changes: by the linear and by the square-root rule.
    pub learning_rate: Option<(f64, f64)>,
}

/// Lays changes to a configuration side by side: the algorithm of collectives, gradients in fewer bits, shards within nodes, one reduction a step, larger batches by accumulation.
///
/// # Errors
/// If the configuration cannot be.
pub fn what_if(workload: &Workload, candidate: &Candidate) -> Result<Vec<WhatIf>, PlanError> {
    let alone = alone(workload, candidate)?;
    let of = |change: String, workload: &Workload, candidate: &Candidate, times: usize| {
        let evaluator = Evaluator::new(workload);
        let evaluation = evaluator.evaluate(candidate)?;
        let missing = evaluator.missing(&evaluation.memory);
        let efficiency = evaluation.tokens_per_second / workload.cluster.devices() as f64 / alone;
        let learning_rate = (times > 1).then(|| (times as f64, (times as f64).sqrt()));
        Ok::<_, PlanError>(WhatIf { change, evaluation, efficiency, missing, learning_rate })
    };
    let mut all = vec![of("as it is".into(), workload, candidate, 1)?];
    // Measured bandwidths are those of whatever the library chose.
    let algorithms = if workload.cluster.measured.is_some() { &[][..] } else { &PlannedAlgorithm::ALL };
    for algorithm in algorithms {
        let other = Workload { algorithm: *algorithm, ..workload.clone() };
        all.push(of(format!("{} collectives", algorithm.name()), &other, candidate, 1)?);
    }
    for (change, reduce_bytes, method) in FEWER_BYTES {
        if candidate.dp > 1 && workload.reduce_bytes > reduce_bytes {
            let compression = Compression { method, ..Compression::default() };
            let kept_bytes = KeptBytes::of(&compression, workload.model.hidden);
            let other = Workload { reduce_bytes, kept_bytes, ..workload.clone() };
            all.push(of(change.into(), &other, candidate, 1)?);
        }
    }
    if let Some(replicate) = replicas(workload, candidate) {
        let change = match replicate {
            1 => "shards over all ranks (--replicate 1)".into(),
            _ => format!("shards on one node (--replicate {replicate})"),
        };
        all.push(of(change, workload, &Candidate { replicate, ..*candidate }, 1)?);
    }
    if candidate.zero >= 2 && candidate.reduce_each_micro_batch && candidate.micro_batches > 1 {
        let other = Candidate { reduce_each_micro_batch: false, ..*candidate };
        all.push(of("one reduction a step (zero.reduce_every = step)".into(), workload, &other, 1)?);
    }
    for times in [2, 4, 8] {
        let other = Workload { global_batch: workload.global_batch * times, ..workload.clone() };
        let candidate = Candidate { micro_batches: candidate.micro_batches * times, ..*candidate };
        all.push(of(format!("{times} times the batch"), &other, &candidate, times)?);
    }
    Ok(all)
}

/// The other way to lay shards: on one node each, or over all ranks. None where there is one way alone.
fn replicas(workload: &Workload, candidate: &Candidate) -> Option<usize> {
    let shards = workload.cluster.devices_per_node / candidate.tp;
    match candidate.replicate {
        1 if candidate.zero > 0 && shards > 1 && candidate.dp > shards => {
            candidate.dp.is_multiple_of(shards).then(|| candidate.dp / shards)
        }
        1 => None,
        _ => Some(1),
    }
}

/// Tokens a second of one rank with the same micro-batches and no other.
fn alone(workload: &Workload, candidate: &Candidate) -> Result<f64, PlanError> {
    let mut one = workload.clone();
    (one.cluster.nodes, one.cluster.devices_per_node) = (1, 1);
    one.global_batch = candidate.micro_batch * candidate.micro_batches;
    one.slow_ranks.clear();
    let candidate = Candidate { tp: 1, pp: 1, dp: 1, replicate: 1, chunks: 1, zero: 0, ..*candidate };
    Ok(Evaluator::new(&one).evaluate(&candidate)?.tokens_per_second)
}

/// The table of changes.
pub fn render_what_if(all: &[WhatIf]) -> String {
    let mut rows = vec![
        ["", "step", "tokens/s", "efficiency", "memory", "learning rate, linear or square root"]
            .map(String::from)
            .to_vec(),
    ];
    for row in all {
        rows.push(vec![
            row.change.clone(),
            seconds(row.evaluation.seconds),
            count(row.evaluation.tokens_per_second),
            format!("{:.0}%", 100.0 * row.efficiency),
            match row.missing.is_none() {
                true => bytes(row.evaluation.memory.total()),
                false => row.missing.too_much(),
            },
            row.learning_rate.map_or(String::new(), |(linear, root)| {
                format!("x {linear:.0} or x {root:.2}, with warm-up")
            }),
        ]);
    }
    let table = aligned(rows).join("\n");
    // As it is rounded in the table.
    match all.iter().any(|row| row.efficiency >= 1.005) {
        true => format!("{table}\n{ABOVE_ONE}\n"),
        false => format!("{table}\n"),
    }
}
