//! The formulas behind a configuration, with its numbers.

use super::{billions, seconds};
use crate::cluster::Collective;
use crate::columns::{bytes, counted};
use crate::memory::KeptBytes;
use crate::memory::published::{self, DeepSpeedOffload};
use crate::model::ModelShape;
use crate::schedule::formula;
use crate::search::{PlanError, PlanEvaluation, Workload};
use crate::time::{Network, overlap};

/// How memory and time of a configuration come about.
///
/// # Errors
/// If the configuration cannot be.
pub fn explain(workload: &Workload, evaluation: &PlanEvaluation) -> Result<String, PlanError> {
    let mut text = format!("The formulas for {}:\n", evaluation.candidate.label());
    for line in memory(workload, evaluation).into_iter().chain(time(workload, evaluation)?) {
        text.push_str(&format!("  {line}\n"));
    }
    Ok(text)
}

fn memory(workload: &Workload, evaluation: &PlanEvaluation) -> Vec<String> {
    let Workload { model, accounting, .. } = workload;
    let candidate = &evaluation.candidate;
    let parts = &evaluation.memory;
    let dp = candidate.shards();
    let sharded =
        |stage: u8| if candidate.zero >= stage && dp > 1 { format!(" / dp {dp}") } else { String::new() };
    let whole = model.parameters() as f64;
    let reduced = candidate.zero >= 2 && dp > 1 && candidate.reduce_each_micro_batch;
    let stepped = if model.counts.is_empty() { "P" } else { "what is trained of P" };
    let keeps = candidate.dp > 1 && workload.kept_bytes != KeptBytes::default();
    let kept = if keeps { ", and what compression left out, kept for the next update," } else { "" };
    let kind = candidate.kind();
    let in_flight = formula::peak_in_flight(
        kind,
        candidate.pp,
        candidate.chunks,
        candidate.micro_batches,
        evaluation.fullest_stage,
    );
    let mut lines = vec![
        match candidate.zero == 3 && dp > 1 {
            false => format!(
                "parameters: {} bytes of P of the stage = {}",
                accounting.parameter,
                bytes(parts.parameters)
            ),
            true => format!(
                "parameters: {} bytes of P / dp {dp} besides the masters = {}; gathered ones are among the buffers",
                accounting.parameter_shard,
                bytes(parts.parameters)
            ),
        },
        format!(
            "gradients: {} bytes x {} sums of {stepped}{}{kept} = {}{}",
            accounting.sum,
            accounting.sums(candidate.micro_batches, reduced),
            if reduced { sharded(2) } else { String::new() },
            bytes(parts.gradients),
            if accounting.pairwise {
                "; sums of 1, 2, 4, ... micro-batches are held while they are added pairwise"
            } else {
                ""
            },
        ),
        format!(
            "optimizer: ({} master + {} moments) {stepped}{} = {}",
            accounting.master,
            accounting.moments,
            sharded(1),
            bytes(parts.optimizer)
        ),
        format!(
            "activations: {in_flight} in flight on stage {} of {} ({kind}), each of {}; = {}",
            evaluation.fullest_stage,
            candidate.pp,
            counted(evaluation.split.get(evaluation.fullest_stage).copied().unwrap_or(0), "block"),
            bytes(parts.activations)
        ),
        format!(
            "by the ZeRO paper's accounting, the whole model, all of it trained, over dp {dp} would need {:.1} GB per rank, and send {:.0} P numbers per step",
            published::zero(whole, dp, candidate.zero) / 1e9,
            published::zero_volume(candidate.zero)
        ),
    ];
    let largest = (0..model.blocks()).map(|block| model.block_parameters(block)).max().unwrap_or(0);
    let offload = if candidate.offload { DeepSpeedOffload::Optimizer } else { DeepSpeedOffload::None };
    let estimate = published::deepspeed(whole, largest as f64, dp, candidate.zero, offload);
    lines.extend(estimate.map(|estimate| {
        format!(
            "by DeepSpeed's estimator for ZeRO-{}, the same would need {:.1} GiB per rank, without activations",
            candidate.zero,
            estimate / f64::from(1 << 30)
        )
    }));
    lines
}

fn time(workload: &Workload, evaluation: &PlanEvaluation) -> Result<Vec<String>, PlanError> {
    let Workload { model, cluster, .. } = workload;
    let candidate = &evaluation.candidate;
    let device = &cluster.device;
    let flops = model.flops_per_token(workload.sequence_length);
    let ideal = flops * workload.tokens() / (device.peak(workload.dtype) * cluster.devices() as f64);
    let mut lines = vec![
        match model.counts.is_empty() {
            true => format!(
                "FLOPs of a token: 6 N + 12 L h s = 6 x {} + 12 x {} x {} x {} = {flops:.3e}",
                billions(model.multiplying_parameters() as f64),
                model.layers(),
                model.query_size(),
                workload.sequence_length,
            ),
            false => format!(
                "FLOPs of a token: 6 for a parameter that is trained, 4 for a frozen one, 2 before all that is trained, and attention = {flops:.3e}"
            ),
        },
        format!(
            "at the peak of {:.0} TFLOP/s a step would take {}; MFU = {} / {} = {:.1}%",
            device.peak(workload.dtype) / 1e12,
            seconds(ideal),
            seconds(ideal),
            seconds(evaluation.seconds),
            100.0 * evaluation.mfu
        ),
        format!(
            "large products reach {:.0}% of the peak, attention {:.0}%, all else {:.0}% of {:.0} GB/s; compute time {}",
            100.0 * device.efficiency.products,
            100.0 * device.efficiency.attention,
            100.0 * device.efficiency.memory,
            device.memory_bandwidth / 1e9,
            seconds(evaluation.parts.compute)
        ),
    ];
    if evaluation.parts.cores > 0.0 {
        lines.push(format!(
            "{} of a node share {}, which compute for others while one waits: {} more than with a core per rank",
            counted(cluster.devices_per_node, "rank"),
            counted(cluster.host_cores, "core"),
            seconds(evaluation.parts.cores)
        ));
    }
    if candidate.pp > 1 {
        let formula = formula::bubble_fraction(
            candidate.kind(),
            candidate.pp,
            candidate.chunks,
            candidate.micro_batches,
        );
        lines.push(format!(
            "bubble: p = {}, m = {}, v = {}: {:.1}% by the formula of {}, {:.1}% as simulated with stages of {:?} blocks",
            candidate.pp,
            candidate.micro_batches,
            candidate.chunks,
            100.0 * formula,
            candidate.kind(),
            100.0 * evaluation.parts.bubble / evaluation.seconds,
            evaluation.split
        ));
    }
    if candidate.dp > 1 {
        lines.extend(collectives(workload, evaluation));
    }
    Ok(lines)
}

fn collectives(workload: &Workload, evaluation: &PlanEvaluation) -> Vec<String> {
    let Workload { model, cluster, .. } = workload;
    let candidate = &evaluation.candidate;
    let network = Network::new(cluster, workload.algorithm);
    let ranks = network.ranks(candidate.shards(), candidate.tp);
    // Of all layers, the one of which the most is trained.
    let [all, trained] = [ModelShape::block_parameters, ModelShape::trained_parameters].map(|count| {
        let most = (1..=model.layers()).map(|layer| count(model, layer)).max().unwrap_or(0);
        most as f64 / candidate.tp as f64
    });
    let (name, collective) = match candidate.zero {
        0 => ("all-reduce", Collective::AllReduce),
        _ => ("reduce-scatter", Collective::ReduceScatter),
    };
    let gradient = trained * workload.reduce_bytes;
    let takes = network.collective(collective, gradient, ranks);
    let mut lines = vec![format!(
        "{name} of a layer's gradients: {:.1} MB over {} on {}, {}: {}; {} of a step are not hidden",
        gradient / 1e6,
        counted(ranks.size, "rank"),
        counted(ranks.nodes, "node"),
        workload.algorithm.name(),
        seconds(takes),
        seconds(evaluation.parts.reduce)
    )];
    if candidate.replicate > 1 {
        let replicas = network.ranks(candidate.replicate, candidate.tp * candidate.shards());
        let shard = gradient / candidate.shards() as f64;
        lines.push(format!(
            "all-reduce of a layer's sums over {} replicas, once a step: {:.1} MB on {}: {}",
            replicas.size,
            shard / 1e6,
            counted(replicas.nodes, "node"),
            seconds(network.collective(Collective::AllReduce, shard, replicas))
        ));
    }
    if candidate.zero == 3 {
        let parameters = all * workload.accounting.parameter as f64;
        let link = if ranks.nodes > 1 {
            cluster.inter_node.bandwidth * ranks.per_node as f64
        } else {
            cluster.intra_node.bandwidth
        };
        let ratio = overlap::zero3(
            workload.sequence_length as f64,
            candidate.micro_batch as f64,
            candidate.shards(),
            cluster.device.peak(workload.dtype),
            link,
        );
        lines.push(format!(
            "all-gather of a layer's parameters: {:.1} MB, {}; (N-1)/N flops / (2 s b bandwidth) = {ratio:.2}, hidden where at most 1; {} of a step are not hidden",
            parameters / 1e6,
            seconds(network.collective(Collective::AllGather, parameters, ranks)),
            seconds(evaluation.parts.all_gather)
        ));
    }
    lines
}
