//! **Brigade**: distributed training for [Burn](https://burn.dev).
//!
//! A model that trains on one CPU core trains on many ranks without being rewritten: data parallelism, pipeline stages and
//! ZeRO sharding on one mesh, chosen by flags. On CPUs the weights are the same to the bit on every mesh, as long as global
//! batch, micro-batch size and seed are the same and the number of micro-batches per rank is a power of two.
//!
//! ```no_run
//! use brigade::{Block, Chain, Training, launch, samples};
//! use burn::{nn, prelude::*};
//!
//! #[derive(Module, Debug)]
//! struct Layer {
//!     linear: nn::Linear,
//! }
//!
//! impl Block for Layer {
//!     type Input = Tensor<2>;
//!     type Output = Tensor<2>;
//!     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
//!         self.linear.forward(x).tanh()
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     launch("train = { steps = 100, global_batch_size = 64, micro_batch_size = 16 }", |session| {
//!         let layer = |i, o| Layer { linear: nn::LinearConfig::new(i, o).init(&session.device()) };
//!         // The loss is a sum; Brigade divides it by the number of targets in the global batch.
//!         let model = Chain::new()
//!             .then("hidden", layer(2, 32))
//!             .then("head", layer(32, 1))
//!             .loss(|output: Tensor<2>, target: Tensor<2>| (output - target).square().sum());
//!         let data = samples(4096, |indices, device| {
//!             let x: Vec<f32> = indices.iter().map(|i| *i as f32 / 4096.0).collect();
//!             let x = Tensor::<1>::from_data(&x[..], device).reshape([-1, 1]);
//!             (Tensor::cat(vec![x.clone(), x.clone().square()], 1), x.sin())
//!         });
//!         session.train(model, Training::on(data))?;
//!         Ok(())
//!     })
//! }
//! ```
//!
//! `./program` trains on this machine, `./program --nproc-per-node 4 --pp 2` on two pipeline stages of two replicas each, and
//! `./program --help` lists the flags. The rest of this page covers the six things to do next.
//!
//! # Bring a model
//!
//! A model is a [`Chain`] of [`Block`]s, each a Burn module: the output of one is the input of the next. Blocks are the units that are split into
//! pipeline stages, sharded by ZeRO and checkpointed, so a transformer has one per layer. Blocks know nothing about ranks. `Chain::loss` adds the
//! loss and makes it a [`Model`], and `Model::metric` adds metrics such as the accuracy. [`models`] reads and writes safetensors with Hugging
//! Face's names. With the feature `text` it has GPT-2, Llama-like decoders and BERT-like encoders to start from, and `LanguageModel` runs a
//! trained language model.
//!
//! # Bring data
//!
//! Implement [`Dataset`]: a length, a function that reads one sample by index, and one that collates samples into a
//! [`Batch`]. Brigade shuffles, decides which rank reads which sample, and prefetches on a thread. For data in memory a
//! function is enough: see [`samples`]. For text, with the feature `text`, [`data`] tokenizes files and `TokenDataset` serves the
//! tokens.
//!
//! ```no_run
//! # use brigade::{Batch, Dataset};
//! # use burn::prelude::*;
//! struct Table(Vec<[f32; 3]>);
//!
//! impl Dataset for Table {
//!     type Item = [f32; 3];
//!     type Input = Tensor<2>;
//!     type Target = Tensor<2>;
//!
//!     fn len(&self) -> usize {
//!         self.0.len()
//!     }
//!
//!     fn get(&self, index: usize) -> anyhow::Result<[f32; 3]> {
//!         Ok(self.0[index])
//!     }
//!
//!     fn batch(&self, items: Vec<[f32; 3]>, device: &Device) -> Batch<Tensor<2>, Tensor<2>> {
//!         let rows = Tensor::<1>::from_data(&items.concat()[..], device).reshape([-1, 3]);
//!         let (input, target) = (rows.clone().narrow(1, 0, 2), rows.narrow(1, 2, 1));
//!         Batch::new(input, target, items.len())
//!     }
//! }
//! ```
//!
//! [`Training`] combines the data with everything else that a run needs: validation data, metrics, hooks, the mapping of
//! parameters to the weights file. [`Session::train`] is the loop; with [`Session::prepare`] and a [`Trainer`] you write
//! your own.
//!
//! # Configure
//!
//! [`Settings`] has every setting; `launch` takes defaults as TOML, and users override them with `--set` and flags
//! ([`StandardFlags`]). [`Settings::plan`] checks everything against the number of ranks before any of them starts.
//!
//! ```no_run
//! use brigade::{Settings, merge_config, parse_defaults};
//!
//! # fn main() -> anyhow::Result<()> {
//! let defaults: Settings = parse_defaults("optimizer = { name = \"lion\", learning_rate = 1e-4 }")?;
//! let settings = merge_config(&defaults, &[], &["train.steps=500".into(), "mesh.pp=2".into()])?;
//! let plan = settings.plan(8, 1)?;
//! assert_eq!((plan.mesh.size("pp"), plan.mesh.size("dp")), (2, 4));
//! # Ok(())
//! # }
//! ```
//!
//! # Launch over ranks
//!
//! [`launch`] is the whole `main` of a program: it starts one process per core or GPU and supervises them, or joins the world
//! if torchrun, Slurm, Kubernetes or MPI started it. `body` gets a [`Session`]: this process's rank, its device, and
//! [`Session::train`]. A program with its own command line, data to prepare, or costs of blocks known in advance uses
//! [`Program`] instead. [`launcher`] has the launcher itself, [`comm`] the process groups, and `BRIGADE_LOG` selects what
//! is logged ([`log`]).
//!
//! # Checkpoint and resume
//!
//! `--checkpoint-every N` saves sharded checkpoints, `--resume DIR` continues from the newest one on any mesh, and
//! `--max-restarts N` does so after failures. [`CheckpointSettings`] has the options; [`checkpoints`] reads what was saved:
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! let storage = brigade::checkpoints::open_storage("runs/a/checkpoints")?;
//! for found in brigade::checkpoints::list(&*storage)? {
//!     println!("step {}: complete: {}", found.step, found.summary.is_ok());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Read metrics and inspect
//!
//! Rank 0 writes `metrics.jsonl` and TensorBoard event files into the run's folder, one [`StepRecord`](report::StepRecord) per
//! step: losses, tokens per second, MFU, where the time went, memory, traffic. After a failure `flight/` has the last
//! operations of each rank, which `brigade inspect flight` compares; `brigade doctor` and [`doctor`] check a machine.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! for line in std::fs::read_to_string("runs/a/metrics.jsonl")?.lines() {
//!     let step: brigade::report::StepRecord = serde_json::from_str(line)?;
//!     let unit = step.unit.as_deref().unwrap_or("tokens");
//!     println!("step {}: loss {:.3}, {:.0} {unit}/s", step.step, step.loss, step.tokens_per_second);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `autotune` (on by default) | with `cuda`: picks kernels by timing them; alone it builds nothing |
//! | `text` | corpora, tokenizers and token files in [`data`], language models in [`models`], `TokenDataset`, `LanguageModel` |
//! | `parquet` | `text`, and corpora in Parquet files |
//! | `object-store` | results (`--out gs://…`) and checkpoints at `gs://` and `s3://`, and text there and at `https://` |
//! | `clusters` | the launcher of several nodes; ranks that `srun`, `mpirun` or `torchrun` starts do not need it |
//! | `cuda` | NVIDIA GPUs; NCCL is found at run time |
//! | `wgpu` | GPUs of any vendor, through Vulkan |
//! | `mpi` | collectives by the cluster's MPI; needs its `mpicc` |
//!
//! A program that trains its own model on the CPU needs none of them. Models are Burn modules, so the program and Brigade must use
//! the same version of Burn: [`burn`] is the version that Brigade was built with. Either depend on that version of `burn`, or write
//! `use brigade::burn;` where the code says `burn::`.
//!
//! # Layers
//!
//! This crate runs programs. Below it, [`core`] has the training step and its strategies, [`plan`] the schedules and the
//! arithmetic of memory and traffic; [`models`], [`data`], [`checkpoints`], [`report`], [`launcher`] and [`comm`] know nothing
//! about each other, except that launchers talk to each other through [`comm`].

mod checkpoint;
mod dataset;
mod device;
mod error;
mod folder;
mod launched;
pub mod log;
mod memory;
mod object_results;
mod run;
mod settings;
#[cfg(test)]
mod test_model;
#[cfg(feature = "text")]
mod text;
mod thread_spans;
mod train;
mod training_setup;
mod world;

/// What the program `brigade` needs of command lines, as [`launch`] does: it is no interface for other programs.
#[doc(hidden)]
pub mod command_line {
    pub use crate::run::{CHOICE_FILE, Choice, Chosen, ElasticArgs, earlier_choice, has_option, without};
}

pub use brigade_checkpoint as checkpoints;
pub use brigade_comm as comm;
pub use brigade_core as core;
pub use brigade_core::{
    Activation, Batch, Block, Blocks, Chain, ForwardContext, Model, ParameterGradients, Part, SplitForward,
    StepReport, initialize, with_seed,
};
pub use brigade_core::{nn, plan};
pub use brigade_cpu::CountedHeap;
pub use brigade_data as data;
pub use brigade_kernels as kernels;
pub use brigade_launch as launcher;
pub use brigade_launch::exit;
pub use brigade_models as models;
pub use brigade_models::{LoadReport, LoadWeights, Strict, WeightsMapping};
pub use brigade_report as report;
pub use brigade_sorted::{SortedMap, SortedSet};
pub use burn;
pub use clap;

pub use checkpoint::{FileNames, RunDescription, best_step, consolidate};
pub use dataset::{Dataset, Mixed, Samples, samples};
pub use device::{NodeGpu, doctor, most_ranks_per_node, node_gpus};
pub use error::{UsageError, format_error, print_stderr};
pub use folder::{
    ADAPTERS_CONFIG_FILE, ADAPTERS_FILE, ADAPTERS_LABELS_FILE, FLIGHT_FOLDER, TOKENIZER_COMPANIONS,
    WEIGHTS_FILE, WEIGHTS_INDEX_FILE, lock_folder,
};
pub use run::{Launch, Program, Ranks, Role, Session, launch};
pub use settings::{
    Backend, Balance, CHECKPOINT_FOLDER, CONFIG_FILE, CheckpointSettings, CollectivesBackend, CommSettings,
    ComputeDtype, ComputeSettings, ConfigError, Encryption, MeshSettings, MetricMode, MicroBatchSize,
    OnFailedSave, OnNonFinite, OptimizerGroup, OptimizerSettings, OutputSettings, PipelineSettings,
    ProfileSettings, Resume, RunPlan, ScheduleSettings, SettingError, Settings, StandardFlags, StrategyName,
    StrategySettings, Suggestion, SumOrder, TiedGradients, TrainSettings, Transport, ZeroSettings,
    config_to_toml, merge_config, parse_defaults, parse_transport, parse_whole_number, setting_of_flag,
};
#[cfg(feature = "text")]
pub use text::{
    AdaptedModel, CachedText, Classification, ClassificationDataset, LanguageModel, MACRO_F1, MaskedDataset,
    MaskedLm, MultiLabelClassification, MultiLabelDataset, Regression, RegressionDataset, TextTask,
    TokenDataset, merge_adapters,
};
pub use train::{AddedModel, Trained, Trainer};
pub use training_setup::{Control, DerivedMetric, HookAnswer, Training, ValidationReport};
