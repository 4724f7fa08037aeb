//! **Brigade**: distributed training for [Burn](https://burn.dev).
//!
//! List your model's [blocks](Block), say what its loss is, implement [`Dataset`], and call
//! [`launch`]: the program then takes the standard flags (`--nproc-per-node`, `--dp`,
//! `--global-batch-size`, `--set optimizer.learning_rate=1e-3`, …), starts its ranks or joins those
//! that a cluster started, and trains. On the CPU the resulting weights are the same, to the bit,
//! on any number of ranks and any transport, as long as global batch and micro-batch size are the
//! same and each rank's number of micro-batches is a power of two.
//!
//! The example `own_model` in the repository trains a small classifier this way.
//!
//! Layers, from the top: this facade runs a program ([`launch`], [`Session`]); [`core`] holds the
//! strategies; [`models`], [`data`], [`report`] and [`comm`] know nothing of each other.

mod backend;
mod checkpoint;
mod claim;
mod config;
mod dataset;
mod describe;
pub mod doctor;
mod ending;
mod explain;
mod flags;
mod language;
pub mod log;
mod output;
mod program;
mod rank;
mod record;
mod session;
mod settings;
mod train;

pub use brigade_checkpoint as checkpoints;
pub use brigade_comm as comm;
pub use brigade_core as core;
pub use brigade_core::plan;
pub use brigade_core::{Activation, Batch, Block, Chain, Model, Part, initialize};
pub use brigade_data as data;
pub use brigade_launch as supervise;
pub use brigade_models as models;
pub use brigade_report as report;

pub use checkpoint::RunDescription;
pub use claim::hold;
pub use config::{ConfigError, embedded, layered};
pub use dataset::{Dataset, Samples, Training, samples};
pub use explain::{explain, tell};
pub use flags::{Resume, StandardFlags, whole_number};
pub use language::{LanguageModel, TokenDataset};
pub use output::{CONFIG_FILE, WEIGHTS_FILE};
pub use program::{FLIGHT_FOLDER, Program, Role, Usage, exit, launch, resolved};
pub use session::Session;
pub use settings::{
    Backend, CHECKPOINT_FOLDER, CheckpointSettings, CollectivesKind, CommSettings, ComputeSettings,
    ComputeType, MeshSettings, OnFailedSave, OnNonFinite, OptimizerSettings, OutputSettings,
    PipelineSettings, Plan, ScheduleSettings, SettingError, Settings, TrainSettings, Transport, ZeroSettings,
};
pub use train::Trained;
