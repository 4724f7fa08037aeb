//! A row: a small GPT, its data, and how it is trained.

use std::sync::Arc;

use brigade::core::compress::Compression;
use brigade::core::plan::PipelineScheduleKind;
use brigade::core::{
    Batch, Buckets, CheckBlocks, DATA, DP, Dtype, Engine, EngineSettings, Evaluation, Groups, Mesh, Model,
    NamedTensor, NonFinite, OptimizerFactory, PP, Precision, REPLICATE, Recompute, ReduceEvery, StepReport,
    Strategy, Synchronous, WORKERS, Zero,
};
use brigade::kernels::{LionConfig, SgdConfig, set_fused};
use brigade::models::gpt::{Gelu, GptConfig, Targets};
use brigade::models::{Logits, Tokens};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};

pub const STEPS: u64 = 2;
/// The learning rate.
pub const RATE: f64 = 1e-2;
const LENGTH: usize = 6;
const VOCABULARY: usize = 24;
/// Rows that validation has beside those of training, as micro-batches of the whole world.
const VALIDATION: usize = 5;

pub type Gpt = Engine<Tokens, Logits, Targets>;
pub type TokenBatch = Batch<Tokens, Targets>;

/// What is trained, and how.
#[derive(Clone, Debug)]
pub struct Row {
    /// Of the parameters and the data.
    pub device: Device,
    /// Each with a mesh of the others.
    pub workers: usize,
    /// Where its world is one worker of several: its number.
    pub worker: Option<usize>,
    pub pp: usize,
    pub dp: usize,
    /// Replicas of the `dp` ranks.
    pub replicate: usize,
    /// On each data-parallel rank that is no server.
    pub micro_batches: usize,
    pub layers: usize,
    pub tied: bool,
    pub masked: bool,
    pub activation: Gelu,
    pub dropout: f64,
    pub clipping: Option<f64>,
    pub optimizer: &'static str,
    pub on_nonfinite: NonFinite,
    pub zero: Zero,
    pub schedule: PipelineScheduleKind,
    pub chunks: usize,
    pub tied_gradients: ReduceEvery,
    pub split: Vec<usize>,
    pub recompute: Recompute,
    pub precision: Precision,
    pub offload: bool,
    /// See [`EngineSettings::buckets`].
    pub bucket_bytes: usize,
    pub sum_group: usize,
    pub strategy: Arc<dyn Strategy>,
    /// What the strategy sends, for the plan.
    pub compression: Compression,
    pub steps: u64,
    /// Whether operations are fused, or Burn's own.
    pub fused: bool,
}

impl Default for Row {
    fn default() -> Self {
        Self {
            device: brigade_cpu::device(),
            workers: 1,
            worker: None,
            pp: 1,
            dp: 1,
            replicate: 1,
            micro_batches: 4,
            layers: 3,
            tied: false,
            masked: false,
            activation: Gelu::Gelu,
            dropout: 0.0,
            clipping: None,
            optimizer: "adamw",
            on_nonfinite: NonFinite::Stop,
            zero: Zero::default(),
            schedule: PipelineScheduleKind::OneFOneB,
            chunks: 1,
            tied_gradients: ReduceEvery::MicroBatch,
            split: Vec::new(),
            recompute: Recompute::None,
            precision: Precision::default(),
            offload: false,
            bucket_bytes: 0,
            sum_group: 1,
            strategy: Arc::new(Synchronous::default()),
            compression: Compression::default(),
            steps: STEPS,
            fused: true,
        }
    }
}

/// What a rank has in the end.
pub struct Outcome {
    pub reports: Vec<StepReport>,
    /// Of the first step; on rank 0.
    pub gradients: Vec<NamedTensor>,
    pub weights: Vec<NamedTensor>,
    pub validation: Evaluation,
}

impl Row {
    /// The same in one process: all micro-batches of the world, in the same order.
    pub fn reference(&self) -> Self {
        let group = self.dp.is_power_of_two() || !self.zero.reduces_each_micro_batch();
        Self {
            pp: 1,
            dp: 1,
            replicate: 1,
            micro_batches: self.micro_batches * (self.dp - self.strategy.servers()) * self.replicate,
            zero: Zero::default(),
            schedule: PipelineScheduleKind::OneFOneB,
            chunks: 1,
            split: Vec::new(),
            recompute: Recompute::None,
            offload: false,
            strategy: match self.strategy.servers() {
                0 => self.strategy.clone(),
                _ => Arc::new(Synchronous::default()),
            },
            sum_group: if group { 1 } else { self.dp },
            ..self.clone()
        }
    }

    fn optimizer(&self) -> OptimizerFactory {
        match self.optimizer {
            "adamw" => {
                let adamw = AdamWConfig::new().with_epsilon(1e-8);
                OptimizerFactory::new(
                    adamw.clone().with_weight_decay(0.1).build(),
                    adamw.with_weight_decay(0.0).build(),
                )
            }
            "lion" => OptimizerFactory::with_weight_decay(0.1, |weight_decay| {
                LionConfig { beta_1: 0.9, beta_2: 0.99, weight_decay }.build()
            }),
            _ => {
                let sgd =
                    SgdConfig { momentum: Some(0.9), dampening: 0.0, nesterov: false, weight_decay: None };
                sgd.build().into()
            }
        }
    }

    pub fn engine(&self, groups: Groups) -> brigade::core::Result<Gpt> {
        self.engine_with(groups, |_| {})
    }

    /// An engine whose model was changed before.
    pub fn engine_with(
        &self,
        groups: Groups,
        change: impl FnOnce(&mut Model<Tokens, Logits, Targets>),
    ) -> brigade::core::Result<Gpt> {
        // Each rank has a thread of its own.
        set_fused(self.fused);
        let config = GptConfig {
            vocabulary: VOCABULARY,
            sequence_length: LENGTH,
            width: 12,
            layers: self.layers,
            heads: 3,
            tied_head: self.tied,
            activation: self.activation,
            dropout: self.dropout,
            initializer_range: 0.02,
        };
        let settings = EngineSettings {
            gradient_clipping: self.clipping,
            on_nonfinite: self.on_nonfinite,
            zero: self.zero,
            schedule: self.schedule,
            chunks: self.chunks,
            tied_gradients: self.tied_gradients,
            split: self.split.clone(),
            recompute: self.recompute,
            check_blocks: CheckBlocks::default(),
            precision: self.precision,
            offload: self.offload.then(brigade_cpu::device),
            buckets: Buckets { bytes: self.bucket_bytes, within_hosts: true },
            sum_group: self.sum_group,
            strategy: self.strategy.clone(),
            worker: self.worker,
            ..EngineSettings::default()
        };
        let mut model = config.model(5, &self.device).unwrap().metric("target_logit", target_logits);
        change(&mut model);
        Engine::new(model, 5, &self.optimizer(), groups, settings)
    }

    /// Micro-batch `index` (of the whole world) of a step: two rows.
    pub fn batch(&self, step: u64, index: usize) -> TokenBatch {
        let device = &self.device;
        let token = |i: usize| ((i * 31 + index * 101 + step as usize * 57) * 7919 % VOCABULARY) as i64;
        let ints = |shift: usize| {
            let tokens: Vec<i64> = (0..2 * LENGTH).map(|i| token(i + shift)).collect();
            Tensor::<2, Int>::from_data(TensorData::new(tokens, [2, LENGTH]), device)
        };
        // The first micro-batch of a step keeps one target, the others ever more.
        let counts =
            |i: usize| !self.masked || i % (7 * index + 2) == 1 || (index > 0 && i.is_multiple_of(2));
        let valid: Vec<bool> = (0..2 * LENGTH).map(counts).collect();
        let mask: Vec<f32> = valid.iter().map(|v| f32::from(u8::from(*v))).collect();
        Batch::new(
            ints(0).into(),
            Targets {
                tokens: ints(1),
                mask: self.masked.then(|| Tensor::from_data(TensorData::new(mask, [2, LENGTH]), device)),
            },
            valid.iter().filter(|v| **v).count(),
        )
    }

    pub fn batches(&self, step: u64, groups: &Groups) -> Vec<TokenBatch> {
        let (every, count) = (self.strategy.period() as u64, self.micro_batches);
        if groups.world().rank() >= groups.world().size() - self.strategy.servers() {
            return Vec::new();
        }
        let (update, before) = (step / every, (step % every) as usize * count);
        let (mesh, rank, all) = (groups.mesh(), groups.world().rank(), self.strategy.period() * count);
        let numbers = (0..count).map(|k| self.zero.micro_batch_number(mesh, rank, before + k, all));
        numbers.map(|number| self.batch(update, number)).collect()
    }

    /// Makes a step, and gives its report if it makes an update.
    pub fn step(&self, engine: &mut Gpt, step: u64, groups: &Groups) -> Option<StepReport> {
        let batches = self.batches(step, groups);
        if engine.synchronizes() {
            return Some(engine.step(batches, RATE).unwrap());
        }
        match engine.steps_alone() {
            true => engine.inner_step(batches, RATE).unwrap(),
            false => engine.accumulate(batches).unwrap(),
        }
        None
    }

    pub fn mesh(&self) -> Mesh {
        let axes = [(WORKERS, self.workers), (PP, self.pp), (REPLICATE, self.replicate), (DP, self.dp)];
        Mesh::new(axes.iter().map(|(_, size)| size).product(), axes).unwrap()
    }

    pub fn run(&self, groups: Groups) -> Outcome {
        let (rank, ranks) = (groups.world().rank(), groups.world().size());
        let mut engine = self.engine(groups.clone()).unwrap();
        let gradients = match self.strategy.period() {
            1 => engine.gradients(&self.batches(0, &groups), 0).unwrap().1,
            _ => Vec::new(),
        };
        let reports = (0..self.steps).filter_map(|step| self.step(&mut engine, step, &groups)).collect();
        let data = groups.over(&DATA);
        let own: Vec<_> = (0..VALIDATION).filter(|index| index % data.size() == data.rank()).collect();
        let validation = engine.evaluate(own.len(), |k| Ok(self.batch(99, own[k]))).unwrap();
        let mut weights = Vec::new();
        for root in 0..ranks {
            let tensors = engine.tensors(root).unwrap();
            if root == rank {
                weights = tensors;
            }
        }
        Outcome { reports, gradients, weights, validation }
    }
}

/// The sum of the logits of the valid targets: numbers of either sign, of which no two meshes add up the same ones first.
fn target_logits(logits: Logits, targets: Targets) -> Tensor<1> {
    let logits = logits.whole();
    let rows = logits.dims()[0];
    let chosen = logits.gather(1, targets.tokens.reshape([rows, 1])).reshape([rows]);
    let valid = targets.mask.map_or_else(|| chosen.ones_like(), |mask| mask.reshape([rows]));
    (chosen * valid).sum_dim(0)
}

/// bf16 in forward and backward.
pub const MIXED: Precision = Precision { compute: Dtype::Bf16, reduce: Dtype::F32 };
