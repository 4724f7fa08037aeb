//! How large the numbers of settings may be.

use brigade_core::plan::ScheduleError;

use super::{SettingError, Settings};

/// The largest integer of a TOML file.
pub(super) const LARGEST: u64 = i64::MAX as u64;

/// Most threads of a rank that read ahead.
const MAX_READERS: u64 = 1024;

/// Most pipeline stages, and most chunks on one of them.
const MAX_STAGES: u64 = ScheduleError::MAX_STAGES as u64;

impl Settings {
    /// Checks that no whole number is too large.
    ///
    /// # Errors
    /// The first one that is.
    pub(super) fn check_sizes(&self) -> Result<(), SettingError> {
        let Self { train, schedule, mesh, comm, .. } = self;
        let most = u64::from(u32::MAX);
        let bounded = [
            ("train.micro_batch_size (--micro-batch-size)", train.micro_batch_size as u64, most),
            ("train.global_batch_size (--global-batch-size)", train.global_batch_size as u64, most),
            ("train.sync_every (--sync-every)", train.sync_every as u64, most),
            ("train.readers", train.readers as u64, MAX_READERS),
            ("train.read_ahead", train.read_ahead as u64, most),
            ("mesh.dp (--dp)", mesh.dp as u64, most),
            ("strategy.workers (--workers)", self.strategy.workers as u64, most),
            ("strategy.worker (--worker)", self.strategy.worker as u64, most),
            ("strategy.inner_steps (--inner-steps)", self.strategy.inner_steps, LARGEST),
            ("strategy.servers (--servers)", self.strategy.servers as u64, most),
            ("strategy.staleness (--staleness)", self.strategy.staleness, most),
            ("mesh.replicate (--replicate)", mesh.replicate as u64, most),
            ("mesh.pp (--pp)", mesh.pp as u64, MAX_STAGES),
            ("pipeline.chunks (--chunks)", self.pipeline.chunks as u64, MAX_STAGES),
            ("train.steps (--steps)", train.steps, LARGEST),
            ("train.seed (--seed)", train.seed, LARGEST),
            ("train.validate_every", train.validate_every, LARGEST),
            ("train.validation_samples", train.validation_samples as u64, LARGEST),
            ("schedule.warmup_steps", schedule.warmup_steps, LARGEST),
            ("schedule.warmup_tokens", schedule.warmup_tokens, LARGEST),
            ("schedule.decay_steps", schedule.decay_steps, LARGEST),
            ("train.nonfinite_limit", train.nonfinite_limit, LARGEST),
            ("train.early_stopping_patience", train.early_stopping_patience, LARGEST),
            ("checkpoint.every (--checkpoint-every)", self.checkpoint.every, LARGEST),
            ("checkpoint.keep (--keep)", self.checkpoint.keep as u64, LARGEST),
            ("comm.compress_warmup_steps", comm.compress_warmup_steps, LARGEST),
            ("output.log_every", self.output.log_every, LARGEST),
        ];
        if let Some((option, given, most)) = bounded.into_iter().find(|(_, value, most)| value > most) {
            return Err(SettingError::new(option, given, format!("it must be at most {most}")));
        }
        Ok(())
    }
}
