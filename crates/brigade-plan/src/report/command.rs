//! The command that runs a configuration.

use crate::cluster::Dtype;
use crate::search::{PlanEvaluation, Workload};

/// The line of `brigade train` for this configuration; `model` is what `--model` gives, or `--config` for a TOML. With several nodes it is to be run on each,
/// with its number from 0 and the address of the first. There is none in fp16, in which Brigade does not train.
pub fn command(workload: &Workload, evaluation: &PlanEvaluation, model: &str) -> Option<String> {
    let dtype = match workload.dtype {
        Dtype::F32 => "f32",
        Dtype::Bf16 => "bf16",
        Dtype::Fp16 => return None,
    };
    let cluster = &workload.cluster;
    let option = if model.to_ascii_lowercase().ends_with(".toml") { "--config" } else { "--model" };
    let model = model
        .strip_suffix("config.json")
        .map_or(model, |folder| if folder.is_empty() { "." } else { folder });
    let mut line = format!("brigade train {option} {model} --nproc-per-node {}", cluster.devices_per_node);
    if cluster.nodes > 1 {
        line.push_str(&format!(" --nnodes {} --node-rank NODE --rdzv-endpoint HOST:29400", cluster.nodes));
    }
    line.push_str(&format!(" {}", evaluation.candidate.flags()));
    line.push_str(&format!(" --set model.sequence_length={}", workload.sequence_length));
    line.push_str(&format!(" --set compute.dtype={dtype}"));
    if workload.reduce_bytes < 4.0 {
        line.push_str(" --set compute.reduce_dtype=bf16");
    }
    if evaluation.split.len() > 1 {
        let split: Vec<String> = evaluation.split.iter().map(usize::to_string).collect();
        line.push_str(&format!(" --set pipeline.stages=[{}]", split.join(",")));
    }
    Some(line)
}
