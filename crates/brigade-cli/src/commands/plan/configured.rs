//! What a configuration of training is to the planner.

use std::path::Path;

use brigade::core::compress::{GatherCodes, Matrix, Method, Sends};
use brigade::core::{ParameterCounts, Zero};
use brigade::plan::ReshardPolicy;
use brigade::plan::cluster::{Cluster, Dtype};
use brigade::plan::memory::{Accounting, KeptBytes};
use brigade::plan::model::{ModelShape, TrainedCount, is_only_for_plans};
use brigade::plan::search::{Axes, Candidate, Workload};
use brigade::{ComputeDtype, Settings, StrategyName, ZeroSettings};
use brigade_hf::Task;

use serde_json::Value;

use super::parse;
use crate::config::Config;
use crate::data::tasks::TaskName;
use crate::model_files::model_folder::{configuration_folder, hub_name};

/// Its model and batch on a cluster, in the type that ranks there choose where the settings leave it open.
pub fn workload(config: &Config, model: ModelShape, cluster: Cluster) -> anyhow::Result<Workload> {
    let Settings { train, compute, .. } = &config.settings;
    let (length, hidden) = (config.model.row_length(), model.hidden);
    let model = partly_trained(model, config);
    let mut workload = Workload::new(model, cluster, length, train.global_batch_size);
    workload.dtype = dtype(compute.dtype, &workload.cluster);
    workload.accounting = accounting(&config.settings, workload.dtype)?;
    workload.reduce_bytes = reduce_bytes(&config.settings, hidden);
    workload.kept_bytes = kept_bytes(&config.settings, hidden);
    workload.check()?;
    Ok(workload)
}

/// The model of a configuration whose task has a head of its own: logits of texts instead of tokens. None for others, and for what training refuses.
pub fn classifier(config: &Config) -> Option<ModelShape> {
    let file = config.describe().ok()?.file;
    let task = file.task.filter(|task| *task == Task::SequenceClassification)?;
    Some(ModelShape::of_task("the model", &file.config, task))
}

/// What no plan is of, for messages that name the [setting](unplanned).
pub const ONLY_PLANNED: &str = "only steps in which all ranks make an update together are planned";

/// The setting with which steps are not those that are planned, and its value: in some no update is made, or not by all ranks together.
pub fn unplanned(settings: &Settings) -> Option<String> {
    let Settings { strategy, train, .. } = settings;
    match strategy.name {
        StrategyName::Sync if train.sync_every > 1 => {
            Some(format!("train.sync_every = {}", train.sync_every))
        }
        StrategyName::Sync => None,
        other => Some(format!("strategy.name = {other}")),
    }
}

/// The number type that a setting stands for on the devices of a cluster.
pub fn dtype(given: ComputeDtype, cluster: &Cluster) -> Dtype {
    match given {
        ComputeDtype::F32 => Dtype::F32,
        ComputeDtype::Bf16 => Dtype::Bf16,
        ComputeDtype::Auto if cluster.is_cpu() => Dtype::F32,
        ComputeDtype::Auto => cluster.device.default_dtype(),
    }
}

/// What is held of a parameter that is trained.
pub fn accounting(settings: &Settings, dtype: Dtype) -> anyhow::Result<Accounting> {
    Ok(Accounting::brigade(dtype, settings.optimizer.state_bytes_per_parameter()? as u64))
}

/// Leaves out of a search what training refuses with these settings, where the axes are not given.
pub fn restrict(axes: Axes, settings: &Settings) -> Axes {
    let comm = &settings.comm;
    // PowerSGD cannot reduce each micro-batch by itself, as ZeRO-2 and 3 are planned to, nor the shards that replicas sum; without ZeRO nothing is gathered that
    // could be compressed.
    let is_whole = comm.compress == Method::PowerSgd;
    let zero = match (is_whole, comm.compress_gathers == GatherCodes::None) {
        (true, true) => vec![0, 1],
        (true, false) => vec![1],
        (false, true) => Vec::new(),
        (false, false) => vec![1, 2, 3],
    };
    let replicate = if is_whole { vec![1] } else { Vec::new() };
    Axes {
        zero: if axes.zero.is_empty() { zero } else { axes.zero },
        replicate: if axes.replicate.is_empty() { replicate } else { axes.replicate },
        ..axes
    }
}

/// The configuration as training takes it: shards of one rank are whole, for which the planner says ZeRO-0, and compressed gathers need ZeRO.
pub fn trained(planned: Candidate, settings: &Settings) -> Candidate {
    let needs_stage = settings.comm.compress_gathers != GatherCodes::None && planned.shards() == 1;
    Candidate { zero: planned.zero.max(u8::from(needs_stage)), ..planned }
}

/// Why not all parameters are trained; none where they are.
pub fn untrained(config: &Config) -> Option<&'static str> {
    match (config.lora.rank > 0, config.settings.freezes()) {
        (true, _) => Some("adapters alone are trained"),
        (_, true) => Some("some parameters are frozen"),
        _ => None,
    }
}

/// How many parameters of each block are trained, and how many are not; none where all are.
pub fn trained_counts(config: &Config) -> anyhow::Result<Vec<TrainedCount>> {
    if untrained(config).is_none() {
        return Ok(Vec::new());
    }
    let mut config = config.clone();
    if hub_name(&config.model.path).is_some() {
        config.model.path = configuration_folder(&config.model.path)?;
    }
    if config.task.name == TaskName::Auto && !config.model.is_new() {
        let (file, given) = (config.model.config_file()?, config.model.given());
        config.task = config.task.resolved(&file, &config.data, &given, (false, false))?;
    }
    config.model.shape.sequence_length = config.model.row_length();
    if config.model.is_new() && config.model.shape.vocabulary == 0 {
        config.model.shape.vocabulary = config.largest_token_count()?;
    }
    let counts = config.describe()?.model.parameter_counts(&config.settings)?;
    let of_block = |counts: ParameterCounts| TrainedCount {
        trained: counts.trained as u64,
        frozen: counts.frozen as u64,
    };
    Ok(counts.into_iter().map(of_block).collect())
}

/// The model with what is trained of it; all of it where that cannot be found here, which the plan then [says](untrained_note).
pub fn partly_trained(model: ModelShape, config: &Config) -> ModelShape {
    let counts = trained_counts(config).unwrap_or_default();
    model.with_trained(counts)
}

/// The model of a file with adapters of this rank (`--lora-rank`), which are then all that is trained. `config`: the settings in the file, if it is one of them.
pub fn with_adapters(
    model: ModelShape,
    path: &Path,
    config: Option<&Config>,
    rank: usize,
) -> anyhow::Result<ModelShape> {
    anyhow::ensure!(
        !is_only_for_plans(path),
        "--lora-rank = {rank} is not possible: adapters are only planned for models that training can read, and {} is not one",
        path.display()
    );
    let mut config = match config {
        Some(config) => config.clone(),
        None => {
            let path = std::path::absolute(path)?;
            let folder = if path.is_dir() { Some(path.as_path()) } else { path.parent() };
            Config::read_with(folder, None, &[], &[])?
        }
    };
    config.lora.rank = rank;
    Ok(model.with_trained(trained_counts(&config)?))
}

/// That the plan counts every parameter as trained, where some are not; without a full stop.
pub fn untrained_note(config: &Config, model: &ModelShape) -> Option<String> {
    let what = untrained(config).filter(|_| model.counts.is_empty())?;
    Some(format!(
        "{what}, but gradients, optimizer state and sums were planned for all parameters, so that a rank needs less than planned"
    ))
}

/// The settings that are not as by default, by name.
pub fn changed_settings(settings: &Settings) -> Vec<String> {
    let fields = |settings: &Settings| serde_json::to_value(settings).unwrap_or_default();
    let (own, usual) = (fields(settings), fields(&Settings::default()));
    let sections = own.as_object().into_iter().flatten();
    let named = sections.flat_map(|(section, values)| {
        let values = values.as_object().into_iter().flatten();
        values.map(move |(name, value)| (section, name, value))
    });
    let is_changed = |section: &str, name: &str, value: &Value| usual[section].get(name) != Some(value);
    named
        .filter(|(section, name, value)| is_changed(section, name, value))
        .map(|(section, name, _)| format!("{section}.{name}"))
        .collect()
}

/// Bytes of a gradient on its way, of a square matrix as wide as the model where that makes a difference.
pub fn reduce_bytes(settings: &Settings, hidden: usize) -> f64 {
    let numbers = hidden * hidden;
    let matrices = [Matrix { start: 0, rows: hidden, columns: hidden }];
    // Over how many ranks makes no difference.
    match settings.comm.compression().cost(2, (numbers, numbers), false, &matrices).map(|cost| cost.sends) {
        Some(Sends::Codes(bytes)) => bytes as f64 / numbers as f64,
        Some(Sends::Factors(sent)) => 4.0 * sent.iter().sum::<usize>() as f64 / numbers as f64,
        None if settings.compute.reduce_dtype == brigade::core::Dtype::F32 => 4.0,
        None => 2.0,
    }
}

/// What is kept of gradients that the settings compress.
pub fn kept_bytes(settings: &Settings, hidden: usize) -> KeptBytes {
    KeptBytes::of(&settings.comm.compression(), hidden)
}

const _: () = assert!(brigade::plan::report::MAX_RANKS == brigade::comm::MAX_WORLD_SIZE);

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_are_changed_are_named() {
        assert_eq!(changed_settings(&Settings::default()), Vec::<String>::new());
        let mut settings = Settings::default();
        (settings.mesh.replicate, settings.zero.keep_gathered) = (2, true);
        settings.compute.recompute = "all".into();
        settings.pipeline.stages = vec![3, 4];
        let mut changed = changed_settings(&settings);
        changed.sort();
        assert_eq!(changed, ["compute.recompute", "mesh.replicate", "pipeline.stages", "zero.keep_gathered"]);
    }

    #[test]
    fn only_steps_with_an_update_of_all_ranks_are_planned() {
        let named = |sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            unplanned(&Config::read(&[], &sets).unwrap().settings)
        };
        assert_eq!(named(&[]), None);
        assert_eq!(named(&["train.sync_every=4"]).as_deref(), Some("train.sync_every = 4"));
        assert_eq!(named(&["strategy.name=diloco"]).as_deref(), Some("strategy.name = diloco"));
    }

    #[test]
    fn the_optimizer_and_compression_count_whatever_the_number_type() {
        for (dtype, cluster, counted) in [
            ("auto", "1x2xH100-80GB", Dtype::Bf16),
            ("auto", "1x2xCPU", Dtype::F32),
            ("f32", "1x2xH100-80GB", Dtype::F32),
        ] {
            let dtype = format!("compute.dtype={dtype}");
            let sets = ["optimizer.name=adan", "comm.compress=int8", dtype.as_str()];
            let config = Config::read(&[], &sets.map(str::to_owned)).unwrap();
            let model = ModelShape::gpt("small", 2, 64, 2, 256, 64);
            let workload = workload(&config, model, cluster.parse().unwrap()).unwrap();
            assert_eq!((workload.dtype, workload.accounting.moments), (counted, 16), "{dtype} {cluster}");
            assert!((1.0..1.1).contains(&workload.reduce_bytes), "{}", workload.reduce_bytes);
            assert_eq!(workload.kept_bytes, KeptBytes { gradient: 8.0, sum: 8.0 });
        }
    }

    #[test]
    fn state_is_counted_as_the_optimizer_has_it() {
        let mut settings = Settings::default();
        assert_eq!(accounting(&settings, Dtype::F32).unwrap().moments, 8);
        settings.optimizer.name = "adan".into();
        assert_eq!(accounting(&settings, Dtype::F32).unwrap().moments, 16);
    }
}
