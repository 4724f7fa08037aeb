//! What a configuration of training is to the planner.

use brigade::core::compress::{Matrix, Sends};
use brigade::core::{Float, Zero};
use brigade::plan::ReshardPolicy;
use brigade::plan::cluster::{Cluster, Dtype};
use brigade::plan::memory::Accounting;
use brigade::plan::model::ModelShape;
use brigade::plan::search::{Candidate, Workload};
use brigade::{Settings, ZeroSettings};

use super::parse;
use crate::config::Config;

/// Its model and batch on a cluster.
pub fn workload(config: &Config, model: ModelShape, cluster: Cluster) -> anyhow::Result<Workload> {
    let Settings { train, compute, .. } = &config.settings;
    let (length, hidden) = (config.model.row_length(), model.hidden);
    let mut workload = Workload::new(model, cluster, length, train.global_batch_size);
    workload.dtype = if compute.float() == Float::F32 { Dtype::F32 } else { Dtype::Bf16 };
    workload.accounting = Accounting::brigade(workload.dtype, 8);
    workload.reduce_bytes = reduce_bytes(&config.settings, hidden);
    workload.check()?;
    Ok(workload)
}

/// Bytes of a gradient on its way, of a square matrix as wide as the model where that makes a difference.
pub fn reduce_bytes(settings: &Settings, hidden: usize) -> f64 {
    let numbers = hidden * hidden;
    let matrices = [Matrix { start: 0, rows: hidden, columns: hidden }];
    // Over how many ranks makes no difference.
    match settings.comm.compression().cost(2, (numbers, numbers), false, &matrices).map(|cost| cost.sends) {
        Some(Sends::Codes(bytes)) => bytes as f64 / numbers as f64,
        Some(Sends::Factors(sent)) => 4.0 * sent.iter().sum::<usize>() as f64 / numbers as f64,
        None if settings.compute.reduce_dtype == Float::F32 => 4.0,
        None => 2.0,
    }
}

/// Its choices on a mesh with axes of these sizes.
pub fn candidate(settings: &Settings, axis: impl Fn(&str) -> usize) -> anyhow::Result<Candidate> {
    let (pp, replicate) = (axis("pp"), axis("replicate"));
    let dp = axis("dp") * replicate;
    let ZeroSettings { stage, prefetch, reshard_after_forward, keep_gathered, reduce_every, .. } =
        settings.zero.clone();
    let gather_codes = settings.comm.compress_gathers;
    let zero = Zero { stage, prefetch, reshard_after_forward, keep_gathered, reduce_every, gather_codes };
    let micro_batch = settings.train.micro_batch_size;
    let micro_batches = settings.train.global_batch_size / (dp * micro_batch).max(1);
    let recompute_every = parse::recompute(&settings.compute.recompute).map_err(|allowed| {
        anyhow::anyhow!("compute.recompute = {}: {allowed}", settings.compute.recompute)
    })?;
    Ok(Candidate {
        tp: axis("tp"),
        pp,
        dp,
        replicate,
        zero: if dp / replicate > 1 { stage } else { 0 },
        schedule: settings.pipeline.schedule,
        chunks: settings.pipeline.chunks,
        micro_batch,
        micro_batches: micro_batches.max(1),
        recompute_every,
        reshard: if stage == 3 { zero.reshard_policy(pp) } else { ReshardPolicy::AfterUseUnlessNext },
        reduce_each_micro_batch: stage < 2 || zero.reduces_each_micro_batch(),
        offload: settings.zero.offload_optimizer,
    })
}

const _: () = assert!(brigade::plan::report::MAX_RANKS == brigade::comm::MAX_WORLD_SIZE);
