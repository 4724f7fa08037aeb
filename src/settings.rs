//! What a run is told: every setting of training that is not the model's or the data's own.
//!
//! The same structure is read from a TOML file, changed by flags, written back resolved into the
//! run's folder, and compared between ranks.

use std::path::PathBuf;

use brigade_core::plan::{
    Pipeline, ScheduleError, ScheduleKind as PipelineKind, SplitError, balanced, by_hand,
};
use brigade_core::{
    EngineSettings, Float, LearningRateScaling, Mesh, NonFinite, OptimizerFactory, Precision, Recompute,
    ReduceEvery, Reshard, Schedule, ScheduleKind, Zero,
};
use burn::optim::{
    AdamConfig, AdamWConfig, LionConfig, SgdConfig, decay::WeightDecayConfig, momentum::MomentumConfig,
};
use serde::{Deserialize, Serialize};

/// A setting that cannot be: what was given, what is allowed, and the option's full name.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SettingError {
    /// A value out of its range, or one that does not fit others.
    #[error("{option} = {given} is not possible: {allowed}")]
    Value {
        /// Full name of the option, as in a file, with its flag if it has one.
        option: &'static str,
        /// What was given.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// There is no such schedule of a pipeline.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The model cannot be cut so.
    #[error(transparent)]
    Split(#[from] SplitError),
}

impl SettingError {
    fn new(option: &'static str, given: impl ToString, allowed: impl Into<String>) -> Self {
        Self::Value { option, given: given.to_string(), allowed: allowed.into() }
    }
}

/// All settings of training.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Length, batch and seed of the run.
    pub train: TrainSettings,
    /// The optimizer.
    pub optimizer: OptimizerSettings,
    /// How the learning rate changes.
    pub schedule: ScheduleSettings,
    /// How the ranks are arranged.
    pub mesh: MeshSettings,
    /// What is sharded over the data-parallel ranks.
    pub zero: ZeroSettings,
    /// How micro-batches go through the pipeline's stages.
    pub pipeline: PipelineSettings,
    /// Number types, and what is computed again instead of kept.
    pub compute: ComputeSettings,
    /// How they talk.
    pub comm: CommSettings,
    /// Where results go.
    pub output: OutputSettings,
}

/// `[train]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainSettings {
    /// Optimizer steps.
    pub steps: u64,
    /// Seed of weights and of the order of data.
    pub seed: u64,
    /// Sequences (or samples) that go through the model at once on a rank.
    pub micro_batch_size: usize,
    /// Sequences (or samples) per step over all ranks; ranks accumulate micro-batches to reach it.
    pub global_batch_size: usize,
    /// Global-norm clipping; 0 turns it off.
    pub gradient_clipping: f64,
    /// Steps between validations; 0 validates only at the end.
    pub validate_every: u64,
    /// Most sequences (or samples) that one validation reads; 0 reads all.
    pub validation_samples: usize,
    /// What to do when loss or gradient norm is not finite: `stop` or `skip` (the step).
    pub on_nonfinite: NonFinite,
}

impl Default for TrainSettings {
    fn default() -> Self {
        Self {
            steps: 100,
            seed: 0,
            micro_batch_size: 4,
            global_batch_size: 8,
            gradient_clipping: 1.0,
            validate_every: 0,
            validation_samples: 0,
            on_nonfinite: NonFinite::Stop,
        }
    }
}

/// `[optimizer]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerSettings {
    /// `adamw`, `adam`, `sgd` or `lion`.
    pub name: String,
    /// Peak learning rate, at `base_batch_size` if it is scaled with the batch.
    pub learning_rate: f64,
    /// `none`, `linear` or `sqrt`: how the rate follows the global batch.
    pub learning_rate_scaling: LearningRateScaling,
    /// The global batch for which `learning_rate` was chosen; 0 is the run's own.
    pub base_batch_size: usize,
    /// Weight decay; biases and norms have none.
    pub weight_decay: f32,
    /// First momentum coefficient (AdamW, Adam, Lion).
    pub beta1: f32,
    /// Second momentum coefficient (AdamW, Adam, Lion).
    pub beta2: f32,
    /// Added to the denominator (AdamW, Adam).
    pub epsilon: f32,
    /// Momentum (SGD); 0 turns it off.
    pub momentum: f64,
}

impl Default for OptimizerSettings {
    fn default() -> Self {
        Self {
            name: "adamw".into(),
            learning_rate: 1e-3,
            learning_rate_scaling: LearningRateScaling::None,
            base_batch_size: 0,
            weight_decay: 0.1,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            momentum: 0.9,
        }
    }
}

impl OptimizerSettings {
    /// The optimizer.
    ///
    /// # Errors
    /// If the name is not one of an elementwise optimizer; the message says why for those that are known.
    pub fn factory(&self) -> Result<OptimizerFactory, SettingError> {
        let pair = [self.weight_decay, 0.0];
        Ok(match self.name.as_str() {
            "adamw" => {
                let [decayed, plain] = pair.map(|decay| {
                    AdamWConfig::new()
                        .with_beta_1(self.beta1)
                        .with_beta_2(self.beta2)
                        .with_epsilon(self.epsilon)
                        .with_weight_decay(decay)
                        .build()
                });
                OptimizerFactory::new(decayed, plain)
            }
            "adam" => {
                let [decayed, plain] = pair.map(|decay| {
                    AdamConfig::new()
                        .with_beta_1(self.beta1)
                        .with_beta_2(self.beta2)
                        .with_epsilon(self.epsilon)
                        .with_weight_decay((decay > 0.0).then(|| WeightDecayConfig::new(decay)))
                        .build()
                });
                OptimizerFactory::new(decayed, plain)
            }
            "sgd" => {
                let momentum = (self.momentum > 0.0)
                    .then(|| MomentumConfig::new().with_momentum(self.momentum).with_dampening(0.0));
                let [decayed, plain] = pair.map(|decay| {
                    SgdConfig::new()
                        .with_momentum(momentum.clone())
                        .with_weight_decay((decay > 0.0).then(|| WeightDecayConfig::new(decay)))
                        .build()
                });
                OptimizerFactory::new(decayed, plain)
            }
            "lion" => {
                let [decayed, plain] = pair.map(|decay| {
                    LionConfig::new()
                        .with_beta_1(self.beta1)
                        .with_beta_2(self.beta2)
                        .with_weight_decay(decay)
                        .build()
                });
                OptimizerFactory::new(decayed, plain)
            }
            other => {
                let why = match other {
                    "muon" => {
                        "Muon orthogonalises whole matrices, which a flat buffer or a shard of it does not have; "
                    }
                    "lamb" => {
                        "LAMB scales by the norms of whole parameters, which a flat buffer or a shard of it does not have; "
                    }
                    "adafactor" => {
                        "Adafactor keeps row and column statistics of whole matrices, which a flat buffer or a shard of it does not have; "
                    }
                    _ => "",
                };
                return Err(SettingError::new(
                    "optimizer.name",
                    other,
                    format!("{why}use adamw, adam, sgd or lion"),
                ));
            }
        })
    }
}

/// `[schedule]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSettings {
    /// `constant`, `linear`, `cosine` or `wsd`.
    pub name: ScheduleKind,
    /// Steps over which the rate rises to its peak.
    pub warmup_steps: u64,
    /// The same in tokens (or samples); at most one of the two may be set.
    pub warmup_tokens: u64,
    /// Lowest rate, as a part of the peak.
    pub min_ratio: f64,
    /// Steps of the decay at the end (`wsd`).
    pub decay_steps: u64,
}

impl Default for ScheduleSettings {
    fn default() -> Self {
        Self { name: ScheduleKind::Cosine, warmup_steps: 0, warmup_tokens: 0, min_ratio: 0.1, decay_steps: 0 }
    }
}

/// `[mesh]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MeshSettings {
    /// Pipeline stages.
    pub pp: usize,
    /// Data-parallel ranks; 0 is as many as there are.
    pub dp: usize,
}

impl Default for MeshSettings {
    fn default() -> Self {
        Self { pp: 1, dp: 0 }
    }
}

/// `[zero]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ZeroSettings {
    /// What each data-parallel rank keeps only its share of: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too.
    pub stage: u8,
    /// Stage 3: how many blocks ahead parameters are gathered.
    pub prefetch: usize,
    /// Stage 3: `default`, `always` or `never`: when gathered parameters are freed.
    pub reshard_after_forward: Reshard,
    /// Stage 3: whether gathered parameters stay for all micro-batches of a step.
    pub keep_gathered: bool,
    /// Stages 2 and 3: `micro_batch` or `step`: when gradients are summed over the ranks.
    pub reduce_every: ReduceEvery,
    /// Whether optimizer state and fp32 masters are kept, and stepped, in the host's memory, where that is not the device's.
    pub offload_optimizer: bool,
}

impl Default for ZeroSettings {
    fn default() -> Self {
        let Zero { stage, prefetch, reshard_after_forward, keep_gathered, reduce_every } = Zero::default();
        Self { stage, prefetch, reshard_after_forward, keep_gathered, reduce_every, offload_optimizer: false }
    }
}

/// `[pipeline]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PipelineSettings {
    /// `gpipe`, `1f1b` or `interleaved-1f1b`.
    pub schedule: PipelineKind,
    /// Chunks of blocks per stage (interleaving).
    pub chunks: usize,
    /// Blocks in each of the pp x chunks parts of the model; empty to balance them by cost.
    pub stages: Vec<usize>,
}

impl Default for PipelineSettings {
    fn default() -> Self {
        Self { schedule: PipelineKind::default(), chunks: 1, stages: Vec::new() }
    }
}

/// `[compute]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ComputeSettings {
    /// `f32` or `bf16`: parameters and activations in forward and backward. Masters and optimizer are f32.
    pub dtype: Float,
    /// `f32` or `bf16`: gradients while they are summed over ranks.
    pub reduce_dtype: Float,
    /// Activations that are computed again in the backward pass instead of kept: `none`, `all`, or `every-2`, `every-3`, …
    /// block.
    pub recompute: String,
}

impl Default for ComputeSettings {
    fn default() -> Self {
        Self { dtype: Float::F32, reduce_dtype: Float::F32, recompute: "none".into() }
    }
}

impl ComputeSettings {
    fn recompute(&self) -> Result<Recompute, SettingError> {
        let every = self.recompute.strip_prefix("every-").and_then(|k| k.parse().ok()).filter(|k| *k > 0);
        match (self.recompute.as_str(), every) {
            ("none", _) => Ok(Recompute::None),
            ("all", _) => Ok(Recompute::Every(1)),
            (_, Some(k)) => Ok(Recompute::Every(k)),
            _ => Err(SettingError::new(
                "compute.recompute (--recompute)",
                &self.recompute,
                "it must be none, all, or every-K for every K-th block, as every-2",
            )),
        }
    }
}

/// How ranks of different processes exchange bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Transport {
    /// Shared memory between processes of one host, TCP between hosts.
    #[default]
    Auto,
    /// Shared memory only.
    #[value(alias = "shm")]
    SharedMemory,
    /// TCP only.
    Tcp,
}

/// `[comm]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommSettings {
    /// `auto`, `shared_memory` or `tcp`.
    pub transport: Transport,
    /// Longest wait for all ranks to come up, in seconds.
    pub init_timeout_seconds: f64,
    /// Longest wait inside a step, in seconds.
    pub train_timeout_seconds: f64,
}

impl Default for CommSettings {
    fn default() -> Self {
        Self { transport: Transport::Auto, init_timeout_seconds: 300.0, train_timeout_seconds: 100.0 }
    }
}

/// `[output]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutputSettings {
    /// The run's folder; empty makes a new one under `runs/`.
    pub dir: PathBuf,
    /// Whether results that are there already may be replaced. It is said anew for each run
    /// (`--overwrite`), and neither read from a configuration nor written to one.
    #[serde(skip)]
    pub overwrite: bool,
    /// Steps between lines where there is no terminal.
    pub log_every: u64,
}

impl Default for OutputSettings {
    fn default() -> Self {
        Self { dir: PathBuf::new(), overwrite: false, log_every: 10 }
    }
}

/// The largest whole number that a TOML file holds.
const LARGEST: u64 = i64::MAX as u64;

/// Settings that were checked against the number of ranks.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The ranks as a grid.
    pub mesh: Mesh,
    /// Micro-batches that each rank adds up in a step.
    pub accumulation: usize,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Why it is that.
    pub learning_rate_reason: String,
    /// The step's settings; the split of the blocks is empty where it is to be balanced.
    pub engine: EngineSettings,
    /// The schedule, its warm-up in steps.
    pub schedule: Schedule,
}

impl Settings {
    /// Checks all settings for a world of `world` ranks, before any of them starts.
    /// `tokens_per_sample` (sequence length, or 1) turns a warm-up in tokens into steps.
    ///
    /// # Errors
    /// At the first setting that is out of its range or does not fit the others.
    pub fn plan(&self, world: usize, tokens_per_sample: usize) -> Result<Plan, SettingError> {
        let Self { train, optimizer, schedule, mesh, comm, .. } = self;
        let positive = [
            ("train.steps (--steps)", train.steps),
            ("train.micro_batch_size (--micro-batch-size)", train.micro_batch_size as u64),
            ("train.global_batch_size (--global-batch-size)", train.global_batch_size as u64),
            ("mesh.pp (--pp)", mesh.pp as u64),
        ];
        if let Some((option, given)) = positive.into_iter().find(|(_, value)| *value == 0) {
            return Err(SettingError::new(option, given, "it must be at least 1"));
        }
        let most = u64::from(u32::MAX);
        let bounded = [
            ("train.micro_batch_size (--micro-batch-size)", train.micro_batch_size as u64, most),
            ("train.global_batch_size (--global-batch-size)", train.global_batch_size as u64, most),
            ("mesh.dp (--dp)", mesh.dp as u64, most),
            ("mesh.pp (--pp)", mesh.pp as u64, most),
            ("train.steps (--steps)", train.steps, LARGEST),
            ("train.seed (--seed)", train.seed, LARGEST),
            ("train.validate_every", train.validate_every, LARGEST),
            ("train.validation_samples", train.validation_samples as u64, LARGEST),
            ("schedule.warmup_steps", schedule.warmup_steps, LARGEST),
            ("schedule.warmup_tokens", schedule.warmup_tokens, LARGEST),
            ("schedule.decay_steps", schedule.decay_steps, LARGEST),
            ("output.log_every", self.output.log_every, LARGEST),
        ];
        if let Some((option, given, most)) = bounded.into_iter().find(|(_, value, most)| value > most) {
            return Err(SettingError::new(option, given, format!("it must be at most {most}")));
        }
        if !(optimizer.epsilon.is_finite() && optimizer.epsilon > 0.0) {
            return Err(SettingError::new(
                "optimizer.epsilon",
                optimizer.epsilon,
                "it must be a number above 0",
            ));
        }
        let dp = if mesh.dp == 0 { (world / mesh.pp).max(1) } else { mesh.dp };
        let mesh = Mesh::new(world, mesh.pp, dp).map_err(|error| match error {
            brigade_core::Error::Setting { option, given, allowed } => {
                SettingError::Value { option, given, allowed }
            }
            other => SettingError::new("mesh", format!("pp {} x dp {dp}", self.mesh.pp), other.to_string()),
        })?;
        let (global, together) = (train.global_batch_size, dp * train.micro_batch_size);
        if !global.is_multiple_of(together) {
            let (below, above) = (global / together * together, global.div_ceil(together) * together);
            let near = if below == 0 { above.to_string() } else { format!("{below} or {above}") };
            return Err(SettingError::new(
                "train.global_batch_size (--global-batch-size)",
                global,
                format!(
                    "it must be a multiple of dp x micro-batch size = {dp} x {} = {together}; the nearest is {near}",
                    train.micro_batch_size
                ),
            ));
        }
        let accumulation = global / together;
        let engine = self.engine(mesh.pp, accumulation)?;
        let finite = [
            ("optimizer.learning_rate", optimizer.learning_rate),
            ("optimizer.weight_decay", f64::from(optimizer.weight_decay)),
            ("train.gradient_clipping", train.gradient_clipping),
        ];
        if let Some((option, given)) = finite.into_iter().find(|(_, v)| !v.is_finite() || *v < 0.0) {
            return Err(SettingError::new(option, given, "it must be a number of at least 0"));
        }
        let parts = [
            ("optimizer.beta1", f64::from(optimizer.beta1), 1.0),
            ("optimizer.beta2", f64::from(optimizer.beta2), 1.0),
            ("optimizer.momentum", optimizer.momentum, 1.0),
            ("schedule.min_ratio", schedule.min_ratio, 1.0 + f64::EPSILON),
        ];
        if let Some((option, given, _)) = parts.into_iter().find(|(_, v, end)| !(0.0..*end).contains(v)) {
            let end = if option == "schedule.min_ratio" { "to 1" } else { "to below 1" };
            return Err(SettingError::new(option, given, format!("it must be from 0 {end}")));
        }
        let waits = [
            ("comm.init_timeout_seconds", comm.init_timeout_seconds),
            ("comm.train_timeout_seconds", comm.train_timeout_seconds),
        ];
        if let Some((option, given)) = waits.into_iter().find(|(_, v)| !(0.1..=1e6).contains(v)) {
            return Err(SettingError::new(option, given, "it must be from 0.1 to 1000000 seconds"));
        }
        optimizer.factory()?;
        let base = if optimizer.base_batch_size == 0 { global } else { optimizer.base_batch_size };
        let (learning_rate, learning_rate_reason) =
            optimizer.learning_rate_scaling.resolve(optimizer.learning_rate, global, base);
        Ok(Plan {
            mesh,
            accumulation,
            learning_rate,
            learning_rate_reason,
            schedule: schedule.resolve(train.steps, global * tokens_per_sample.max(1))?,
            engine,
        })
    }

    /// The settings of the step, for `stages` pipeline stages and `micro_batches` on each rank.
    fn engine(&self, stages: usize, micro_batches: usize) -> Result<EngineSettings, SettingError> {
        let Self { train, zero, pipeline, compute, .. } = self;
        if zero.stage > 3 {
            let allowed = "0 shards nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too";
            return Err(SettingError::new("zero.stage (--zero)", zero.stage, allowed));
        }
        if zero.prefetch > 1000 {
            return Err(SettingError::new("zero.prefetch", zero.prefetch, "it must be at most 1000 blocks"));
        }
        if stages * pipeline.chunks != 1 {
            Pipeline::new(pipeline.schedule, stages, pipeline.chunks, micro_batches)?;
        }
        Ok(EngineSettings {
            gradient_clipping: (train.gradient_clipping > 0.0).then_some(train.gradient_clipping),
            on_nonfinite: train.on_nonfinite,
            zero: Zero {
                stage: zero.stage,
                prefetch: zero.prefetch,
                reshard_after_forward: zero.reshard_after_forward,
                keep_gathered: zero.keep_gathered,
                reduce_every: zero.reduce_every,
            },
            schedule: pipeline.schedule,
            chunks: pipeline.chunks,
            split: pipeline.stages.clone(),
            recompute: compute.recompute()?,
            precision: Precision { compute: compute.dtype, reduce: compute.reduce_dtype },
            offload: zero.offload_optimizer.then(brigade_cpu::device),
            ..EngineSettings::default()
        })
    }
}

impl Plan {
    /// Checks that a model whose blocks have these costs can be cut as the settings say, and cuts it.
    ///
    /// # Errors
    /// If a part would be empty, or a split by hand does not fit the model.
    pub fn split(&self, costs: &[f64]) -> Result<Vec<usize>, SettingError> {
        let (given, parts) = (&self.engine.split, self.mesh.pp * self.engine.chunks);
        if given.is_empty() {
            return Ok(balanced(costs, parts)?);
        }
        by_hand(given, costs.len(), parts)?;
        Ok(given.clone())
    }
}

impl ScheduleSettings {
    fn resolve(&self, total_steps: u64, tokens_per_step: usize) -> Result<Schedule, SettingError> {
        if self.warmup_steps > 0 && self.warmup_tokens > 0 {
            let allowed = format!("set this or schedule.warmup_steps (now {}), not both", self.warmup_steps);
            return Err(SettingError::new("schedule.warmup_tokens", self.warmup_tokens, allowed));
        }
        let warmup_steps = self.warmup_steps.max(self.warmup_tokens.div_ceil(tokens_per_step as u64));
        let decay_steps = match (self.name, self.decay_steps) {
            (ScheduleKind::Wsd, 0) => total_steps.div_ceil(10),
            (_, steps) => steps,
        };
        if decay_steps > total_steps {
            let allowed = format!("it must be at most train.steps = {total_steps}");
            return Err(SettingError::new("schedule.decay_steps", decay_steps, allowed));
        }
        Ok(Schedule { kind: self.name, warmup_steps, total_steps, min_ratio: self.min_ratio, decay_steps })
    }
}
