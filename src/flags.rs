//! The flags that every program of Brigade takes.

use std::path::PathBuf;

use brigade_core::plan::ScheduleKind as PipelineKind;
use brigade_launch::LaunchArgs;

use crate::settings::{Settings, Transport};

/// The standard flags. Where a flag and a setting mean the same, the flag wins.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct StandardFlags {
    /// How ranks are started or found.
    #[command(flatten)]
    pub world: LaunchArgs,
    /// Data-parallel ranks [default: all ranks].
    #[arg(long, value_name = "N")]
    pub dp: Option<usize>,
    /// Pipeline stages [default: 1].
    #[arg(long, value_name = "N")]
    pub pp: Option<usize>,
    /// What data-parallel ranks keep only their share of: 0 nothing, 1 optimizer state, 2 gradients too,
    /// 3 parameters too [default: 0].
    #[arg(long, value_name = "STAGE")]
    pub zero: Option<u8>,
    /// How micro-batches go through pipeline stages: gpipe, 1f1b or interleaved-1f1b [default: 1f1b].
    #[arg(long, value_name = "NAME")]
    pub schedule: Option<PipelineKind>,
    /// Chunks of blocks per pipeline stage, for interleaving [default: 1].
    #[arg(long, value_name = "N")]
    pub chunks: Option<usize>,
    /// Activations to compute again instead of keeping them: none, all, every-2, … [default: none].
    #[arg(long, value_name = "WHICH")]
    pub recompute: Option<String>,
    /// What carries bytes between ranks.
    #[arg(long, value_enum)]
    pub transport: Option<Transport>,
    /// Optimizer steps.
    #[arg(long, value_name = "N")]
    pub steps: Option<u64>,
    /// Samples that go through the model at once on a rank.
    #[arg(long, value_name = "N")]
    pub micro_batch_size: Option<usize>,
    /// Samples per step over all ranks.
    #[arg(long, value_name = "N")]
    pub global_batch_size: Option<usize>,
    /// Seed of weights and of the order of data.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Folder for results [default: a new one under runs/].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Replace results that --out holds already.
    #[arg(long)]
    pub overwrite: bool,
    /// Set any setting by its full name; may be given several times.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub sets: Vec<String>,
    /// Print nothing but errors.
    #[arg(long, short)]
    pub quiet: bool,
    /// Print the resolved configuration, the mesh and the parameters per block, and stop.
    #[arg(long)]
    pub dry_run: bool,
}

impl StandardFlags {
    /// Lays the flags over settings.
    pub fn apply(&self, settings: &mut Settings) {
        fn lay<T: Clone>(flag: &Option<T>, setting: &mut T) {
            if let Some(value) = flag {
                *setting = value.clone();
            }
        }
        lay(&self.dp, &mut settings.mesh.dp);
        lay(&self.pp, &mut settings.mesh.pp);
        lay(&self.zero, &mut settings.zero.stage);
        lay(&self.schedule, &mut settings.pipeline.schedule);
        lay(&self.chunks, &mut settings.pipeline.chunks);
        lay(&self.recompute, &mut settings.compute.recompute);
        lay(&self.transport, &mut settings.comm.transport);
        lay(&self.steps, &mut settings.train.steps);
        lay(&self.micro_batch_size, &mut settings.train.micro_batch_size);
        lay(&self.global_batch_size, &mut settings.train.global_batch_size);
        lay(&self.seed, &mut settings.train.seed);
        lay(&self.out, &mut settings.output.dir);
        settings.output.overwrite |= self.overwrite;
    }
}
