//! The command that runs a configuration.

use crate::cluster::Dtype;
use crate::search::{PlanEvaluation, Workload};

/// How a command names its model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedModel {
    /// What `--model` gives, or `--config` for a TOML; empty: neither is given.
    pub name: String,
    /// The settings that the TOML changes, by name (`zero.keep_gathered`): the command says what it needs of them.
    pub settings: Vec<String>,
    /// Whether gradients travel as the TOML's `comm.compress` encodes them.
    pub is_compressed: bool,
    /// The rank of adapters, if it is to be given, too.
    pub lora_rank: Option<usize>,
}

impl From<&str> for NamedModel {
    fn from(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }
}

impl NamedModel {
    fn changes(&self, setting: &str) -> bool {
        self.settings.iter().any(|name| name == setting)
    }

    /// The folder that it names, also by the `config.json` in it.
    pub(super) fn path(&self) -> &str {
        match self.name.strip_suffix("config.json") {
            Some("") => ".",
            Some(folder) => folder,
            None => &self.name,
        }
    }
}

/// The line of `brigade train` for this configuration. With several nodes it is to be run on each,
/// with its number from 0 and the address of the first. There is none in fp16, in which Brigade does not train.
pub fn command(workload: &Workload, evaluation: &PlanEvaluation, model: &NamedModel) -> Option<String> {
    let settings = shared_settings(workload, model)?;
    let flags = evaluation.candidate.flags_over(&model.settings);
    Some(format!("{} {flags}{settings}{}", program(workload, model), stages(evaluation, model)))
}

/// What the lines of several configurations have in common, and what each has of its own.
pub(super) fn commands(
    workload: &Workload,
    evaluations: &[PlanEvaluation],
    model: &NamedModel,
) -> Option<(String, Vec<String>)> {
    let settings = shared_settings(workload, model)?;
    let own = |evaluation: &PlanEvaluation| {
        format!("{}{}", evaluation.candidate.flags_over(&model.settings), stages(evaluation, model))
    };
    Some((format!("{}{settings}", program(workload, model)), evaluations.iter().map(own).collect()))
}

/// The program, its model and its ranks.
fn program(workload: &Workload, model: &NamedModel) -> String {
    let (name, cluster) = (model.path(), &workload.cluster);
    let option = if name.to_ascii_lowercase().ends_with(".toml") { "--config" } else { "--model" };
    let mut line = String::from("brigade train");
    if !name.is_empty() {
        line.push_str(&format!(" {option} {}", quoted(name)));
    }
    line.push_str(&format!(" --nproc-per-node {}", cluster.devices_per_node));
    if let Some(rank) = model.lora_rank {
        line.push_str(&format!(" --lora-rank {rank}"));
    }
    if cluster.nodes > 1 {
        line.push_str(&format!(" --nnodes {} --node-rank NODE --rdzv-endpoint HOST:29400", cluster.nodes));
    }
    line
}

/// What every configuration of a plan computes with.
fn shared_settings(workload: &Workload, model: &NamedModel) -> Option<String> {
    let mut flags = format!(
        " --set model.sequence_length={} --set compute.dtype={}",
        workload.sequence_length,
        trained_dtype(workload)?
    );
    if model.changes("comm.compress") && !model.is_compressed {
        flags.push_str(" --compress none");
    }
    match reduce_dtype(workload, model) {
        "fp32" if !model.changes("compute.reduce_dtype") => {}
        reduce => flags.push_str(&format!(" --set compute.reduce_dtype={reduce}")),
    }
    Some(flags)
}

/// The name of the type that training computes in.
pub(super) fn trained_dtype(workload: &Workload) -> Option<&'static str> {
    match workload.dtype {
        Dtype::F32 => Some("fp32"),
        Dtype::Bf16 => Some("bf16"),
        Dtype::Fp16 => None,
    }
}

/// The type of sums over ranks. Codes are made from fp32, however few bytes they have.
pub(super) fn reduce_dtype(workload: &Workload, model: &NamedModel) -> &'static str {
    if workload.reduce_bytes < 4.0 && !model.is_compressed { "bf16" } else { "fp32" }
}

fn stages(evaluation: &PlanEvaluation, model: &NamedModel) -> String {
    match evaluation.split.len() > 1 || model.changes("pipeline.stages") {
        true => format!(" --set {}", evaluation.stages_setting()),
        false => String::new(),
    }
}

/// A word that the shell leaves as it is.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,+@%".contains(letter);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
