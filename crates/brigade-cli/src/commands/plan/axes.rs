//! The axes of `brigade plan`.

use brigade::plan::PipelineScheduleKind;
use brigade::plan::search::{Axes, TensorParallelSearch};
use clap::Args;

use super::parse;

#[derive(Debug, Args)]
#[command(next_help_heading = "Axes: only these values, separated by commas [default: all]")]
pub struct AxisArgs {
    /// Tensor-parallel ranks, which Brigade does not have yet: shows what they would gain.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse::at_least_1)]
    tp: Vec<usize>,
    /// Pipeline stages.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse::at_least_1)]
    pp: Vec<usize>,
    /// Stages of ZeRO.
    #[arg(long, value_name = "STAGE", value_delimiter = ',', value_parser = parse::zero)]
    zero: Vec<u8>,
    /// Replicas of what ZeRO shards [default: 1, and the numbers that keep shards on 1, 2, 4 or 8 whole
    /// nodes].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse::at_least_1)]
    replicate: Vec<usize>,
    /// Pipeline schedules.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    schedule: Vec<PipelineScheduleKind>,
    /// Chunks of interleaved schedules, from 2 on [default: 2, 3, 4, 6 and 8].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse::chunks)]
    chunks: Vec<usize>,
    /// Sequences per micro-batch.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse::at_least_1)]
    micro_batch_size: Vec<usize>,
    /// Blocks to recompute: none, every-K or all [default: none, every-2 and all].
    #[arg(long, value_name = "WHICH", value_delimiter = ',', value_parser = parse::recompute)]
    recompute: Vec<usize>,
    /// Keep the optimizer's state on the device.
    #[arg(long)]
    no_offload: bool,
}

impl AxisArgs {
    pub fn axes(&self) -> Axes {
        Axes {
            tp: self.tp.clone(),
            tensor: TensorParallelSearch::Compared,
            pp: self.pp.clone(),
            zero: self.zero.clone(),
            replicate: self.replicate.clone(),
            schedules: self.schedule.clone(),
            chunks: self.chunks.clone(),
            micro_batches: self.micro_batch_size.clone(),
            recompute: self.recompute.clone(),
            offload: !self.no_offload,
        }
    }
}
