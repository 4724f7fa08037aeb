//! The command that runs a configuration.

use crate::cluster::Dtype;
use crate::search::{PlanEvaluation, Workload};

/// How a command names its model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedModel {
    /// What `--model` gives, or `--config` for a TOML.
    pub name: String,
    /// The settings that the TOML changes, by name (`zero.keep_gathered`): the command says what it needs of them.
    pub settings: Vec<String>,
}

impl From<&str> for NamedModel {
    fn from(name: &str) -> Self {
        Self { name: name.to_owned(), settings: Vec::new() }
    }
}

/// The line of `brigade train` for this configuration. With several nodes it is to be run on each,
/// with its number from 0 and the address of the first. There is none in fp16, in which Brigade does not train.
pub fn command(workload: &Workload, evaluation: &PlanEvaluation, model: &NamedModel) -> Option<String> {
    let dtype = match workload.dtype {
        Dtype::F32 => "f32",
        Dtype::Bf16 => "bf16",
        Dtype::Fp16 => return None,
    };
    let NamedModel { name, settings } = model;
    let changes = |setting: &str| settings.iter().any(|name| name == setting);
    let cluster = &workload.cluster;
    let option = if name.to_ascii_lowercase().ends_with(".toml") { "--config" } else { "--model" };
    let name = name
        .strip_suffix("config.json")
        .map_or(name.as_str(), |folder| if folder.is_empty() { "." } else { folder });
    let mut line =
        format!("brigade train {option} {} --nproc-per-node {}", quoted(name), cluster.devices_per_node);
    if cluster.nodes > 1 {
        line.push_str(&format!(" --nnodes {} --node-rank NODE --rdzv-endpoint HOST:29400", cluster.nodes));
    }
    line.push_str(&format!(" {}", evaluation.candidate.flags_over(settings)));
    line.push_str(&format!(" --set model.sequence_length={}", workload.sequence_length));
    line.push_str(&format!(" --set compute.dtype={dtype}"));
    if workload.reduce_bytes < 4.0 {
        line.push_str(" --set compute.reduce_dtype=bf16");
    } else if changes("compute.reduce_dtype") {
        line.push_str(" --set compute.reduce_dtype=f32");
    }
    if evaluation.split.len() > 1 || changes("pipeline.stages") {
        line.push_str(&format!(" --set {}", evaluation.stages_setting()));
    }
    Some(line)
}

/// A word that the shell leaves as it is.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,+@%".contains(letter);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
