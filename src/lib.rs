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

mod checkpoint;
mod dataset;
mod device;
mod error;
mod folder;
mod language_model;
pub mod log;
mod run;
mod settings;
mod train;
mod world;

pub use brigade_checkpoint as checkpoints;
pub use brigade_comm as comm;
pub use brigade_core as core;
pub use brigade_core::plan;
pub use brigade_core::{Activation, Batch, Block, Chain, Model, Part, initialize};
pub use brigade_data as data;
pub use brigade_launch as launcher;
pub use brigade_launch::exit;
pub use brigade_models as models;
pub use brigade_report as report;

pub use checkpoint::RunDescription;
pub use dataset::{Dataset, Samples, TokenDataset, Training, samples};
pub use device::doctor;
pub use error::{UsageError, format_error, print_stderr};
pub use folder::{FLIGHT_FOLDER, WEIGHTS_FILE, lock_folder};
pub use language_model::LanguageModel;
pub use run::{Program, Role, Session, launch};
pub use settings::{
    Backend, CHECKPOINT_FOLDER, CONFIG_FILE, CheckpointSettings, CollectivesBackend, CommSettings,
    ComputeSettings, ComputeType, ConfigError, MeshSettings, OnFailedSave, OnNonFinite, OptimizerSettings,
    OutputSettings, PipelineSettings, Resume, RunPlan, ScheduleSettings, SettingError, Settings,
    StandardFlags, TrainSettings, Transport, ZeroSettings, config_to_toml, merge_config, parse_defaults,
    parse_whole_number,
};
pub use train::Trained;
