//! Settings checked against each other and against the number of ranks.

use brigade_comm::{MAX_WORLD_SIZE, allowed_world_size};
use brigade_core::compress::Compression;
use brigade_core::plan::{OuterSteps, Pipeline, PipelineScheduleKind, split};
use brigade_core::{
    CheckBlocks, DATA, DP, EngineSettings, LrScheduler, LrSchedulerKind, Mesh, NonFinite, OptimizerFactory,
    PP, Precision, REPLICATE, WORKERS, Zero,
};

use super::sizes::LARGEST;
use super::{Backend, Balance, OnNonFinite, ScheduleSettings, SettingError, Settings};

/// Settings that were checked and resolved for a number of ranks: see [`Settings::plan`].
#[derive(Debug, Clone)]
pub struct RunPlan {
    /// The device mesh.
    pub mesh: Mesh,
    /// Micro-batches that each rank accumulates per step.
    pub gradient_accumulation_steps: usize,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// How it was derived.
    pub learning_rate_reason: String,
    /// The engine's settings; its split of the blocks is empty if it is to be balanced.
    pub engine: EngineSettings,
    /// How gradients are encoded between data-parallel ranks.
    pub compression: Compression,
    /// The optimizer.
    pub optimizer: OptimizerFactory,
    /// How workers that make updates of their own synchronise.
    pub(crate) outer: Option<OuterSteps>,
    schedule: ScheduleSettings,
    /// Tokens (or samples) of a step.
    tokens_per_step: usize,
}

impl Settings {
    /// Checks all settings for a world of `world` ranks, before any rank starts. `tokens_per_sample` (the sequence length, or 1)
    /// turns a warm-up in tokens into one in steps.
    ///
    /// # Errors
    /// The first setting that is out of range or does not fit the others.
    pub fn plan(&self, world: usize, tokens_per_sample: usize) -> Result<RunPlan, SettingError> {
        let Self { train, optimizer, schedule, mesh, comm, .. } = self;
        if !(1..=MAX_WORLD_SIZE).contains(&world) {
            let option = "the ranks of all nodes (--nproc-per-node)";
            return Err(SettingError::new(option, world, allowed_world_size()));
        }
        let positive = [
            ("train.micro_batch_size (--micro-batch-size)", train.micro_batch_size as u64),
            ("train.global_batch_size (--global-batch-size)", train.global_batch_size as u64),
            ("mesh.pp (--pp)", mesh.pp as u64),
            ("train.sync_every (--sync-every)", train.sync_every as u64),
            ("train.read_ahead", train.read_ahead as u64),
        ];
        train.check_length()?;
        if let Some((option, given)) = positive.into_iter().find(|(_, value)| *value == 0) {
            return Err(SettingError::new(option, given, "it must be at least 1"));
        }
        self.check_sizes()?;
        self.output.check_notify()?;
        if !(optimizer.epsilon.is_finite() && optimizer.epsilon > 0.0) {
            return Err(SettingError::new(
                "optimizer.epsilon",
                optimizer.epsilon,
                "it must be a number above 0",
            ));
        }
        let strategy = self.strategy()?;
        let (every, setting) = self.steps_together();
        let between = [
            ("train.steps (--steps)", train.steps),
            ("train.validate_every", train.validate_every),
            ("checkpoint.every (--checkpoint-every)", self.checkpoint.every),
        ];
        if let Some((option, given)) = between.into_iter().find(|(_, steps)| !steps.is_multiple_of(every)) {
            let (below, above) = (given / every * every, given.div_ceil(every) * every);
            let near = if below == 0 { above.to_string() } else { format!("{below} or {above}") };
            let allowed = format!("it must be a multiple of {setting} = {every}; the nearest is {near}");
            return Err(SettingError::new(option, given, allowed));
        }
        self.check_backend()?;
        self.output.check()?;
        match train.steps {
            0 => self.profile.range()?,
            steps => self.profile.range_within(steps)?,
        };
        let mesh = self.with_replicas(self.mesh(world)?)?;
        self.check_buckets()?;
        self.check_table()?;
        self.check_compression(mesh.size(REPLICATE))?;
        let servers = self.strategy.resolved_servers();
        let (_, launches) = self.strategy.place_among_launches();
        let dp = match self.strategy.separate_worlds() {
            Some(separate) => separate.workers,
            None => mesh.size(REPLICATE) * mesh.size(DP) - servers,
        };
        let workers = mesh.size(WORKERS) * launches;
        let (global, together) = (train.global_batch_size, workers * dp * train.micro_batch_size);
        if !global.is_multiple_of(together) {
            let (below, above) = (global / together * together, global.div_ceil(together) * together);
            let near = if below == 0 { above.to_string() } else { format!("{below} or {above}") };
            return Err(SettingError::new(
                "train.global_batch_size (--global-batch-size)",
                global,
                format!(
                    "it must be a multiple of {} x {} = {together}; the nearest is {near}",
                    match self.strategy.has_workers() {
                        true => format!("workers x dp x micro-batch size = {workers} x {dp}"),
                        false if servers > 0 => format!("workers x micro-batch size = {dp}"),
                        false => format!("dp x micro-batch size = {dp}"),
                    },
                    train.micro_batch_size
                ),
            ));
        }
        let accumulation = global / together;
        let groups = self.parameter_groups(&optimizer.groups)?;
        let layer_decay = optimizer.layer_decay;
        if !(layer_decay > 0.0 && layer_decay <= 1.0) {
            let allowed = "it must be above 0 and at most 1, which leaves all learning rates the same";
            return Err(SettingError::new("optimizer.layer_decay", layer_decay, allowed));
        }
        let engine = self.engine(mesh.size(PP), accumulation)?;
        let worker = self.strategy.is_elastic().then_some(self.strategy.worker);
        let engine = EngineSettings { groups, layer_decay, strategy, worker, ..engine };
        let finite = [
            ("optimizer.learning_rate", optimizer.learning_rate),
            ("optimizer.weight_decay", f64::from(optimizer.weight_decay)),
            ("optimizer.lr_decay", optimizer.lr_decay),
            ("train.gradient_clipping", train.gradient_clipping),
            ("train.early_stopping_min_delta", train.early_stopping_min_delta),
        ];
        if let Some((option, given)) = finite.into_iter().find(|(_, v)| !v.is_finite() || *v < 0.0) {
            return Err(SettingError::new(option, given, "it must be a number of at least 0"));
        }
        let parts = [
            ("optimizer.beta1", f64::from(optimizer.beta1), 1.0),
            ("optimizer.beta2", f64::from(optimizer.beta2), 1.0),
            ("optimizer.beta3", f64::from(optimizer.beta3), 1.0),
            ("optimizer.alpha", f64::from(optimizer.alpha), 1.0),
            ("optimizer.dampening", optimizer.dampening, 1.0 + f64::EPSILON),
            ("optimizer.momentum", optimizer.momentum, 1.0),
            ("schedule.min_ratio", schedule.min_ratio, 1.0 + f64::EPSILON),
        ];
        if let Some((option, given, _)) = parts.into_iter().find(|(_, v, end)| !(0.0..*end).contains(v)) {
            let whole = ["schedule.min_ratio", "optimizer.dampening"].contains(&option);
            let end = if whole { "to 1" } else { "to below 1" };
            return Err(SettingError::new(option, given, format!("it must be from 0 {end}")));
        }
        let waits = [
            ("comm.init_timeout_seconds", comm.init_timeout_seconds),
            ("comm.train_timeout_seconds", comm.train_timeout_seconds),
            ("checkpoint.timeout_seconds", self.checkpoint.timeout_seconds),
        ];
        if let Some((option, given)) = waits.into_iter().find(|(_, v)| !(0.1..=1e6).contains(v)) {
            return Err(SettingError::new(option, given, "it must be from 0.1 to 1000000 seconds"));
        }
        let lease = self.checkpoint.lease_seconds;
        if !(1.0..=1e6).contains(&lease) {
            let allowed = "it must be from 1 to 1000000 seconds";
            return Err(SettingError::new("checkpoint.lease_seconds", lease, allowed));
        }
        let host = comm.host_timeout_seconds;
        if !(1.0..=1e6).contains(&host) {
            let allowed = "it must be from 1 to 1000000 seconds";
            return Err(SettingError::new("comm.host_timeout_seconds (--host-timeout)", host, allowed));
        }
        let tokens_per_step = global * tokens_per_sample.max(1);
        // How many steps an epoch has is known once the data are.
        schedule.resolve(if train.steps == 0 { LARGEST } else { train.steps }, tokens_per_step)?;
        // What an update is made of.
        let batch = global * train.sync_every / workers;
        let base = if optimizer.base_batch_size == 0 { batch } else { optimizer.base_batch_size };
        let (learning_rate, learning_rate_reason) =
            optimizer.learning_rate_scaling.resolve(optimizer.learning_rate, batch, base);
        Ok(RunPlan {
            mesh,
            gradient_accumulation_steps: accumulation,
            learning_rate,
            learning_rate_reason,
            schedule: schedule.clone(),
            tokens_per_step,
            engine,
            compression: comm.compression(),
            optimizer: optimizer.factory()?,
            outer: self.outer_steps(workers),
        })
    }

    /// The mesh whose data-parallel ranks are parted into replicas, if there are any.
    fn with_replicas(&self, mesh: Mesh) -> Result<Mesh, SettingError> {
        let (dp, replicas) = (mesh.size(DP), self.mesh.replicate);
        let refuse = |allowed| Err(SettingError::new("mesh.replicate (--replicate)", replicas, allowed));
        if replicas == 1 {
            return Ok(mesh);
        }
        if replicas == 0 || !dp.is_multiple_of(replicas) {
            let nearest = (1..=replicas.min(dp)).rev().find(|number| dp.is_multiple_of(*number)).unwrap_or(1);
            return refuse(format!("it must divide dp = {dp}; the nearest is {nearest}"));
        }
        if self.zero.stage == 0 {
            let allowed = "without ZeRO every rank is a replica; set 1, or --zero 1, 2 or 3";
            return refuse(allowed.to_owned());
        }
        let axes = mesh.axes().iter().flat_map(|axis| match axis.name {
            DP => vec![(REPLICATE, replicas), (DP, dp / replicas)],
            other => vec![(other, axis.size)],
        });
        Mesh::new(mesh.world(), axes).or_else(|error| refuse(error.to_string()))
    }

    /// The engine's settings for `stages` pipeline stages and `micro_batches` per rank and step.
    fn engine(&self, stages: usize, micro_batches: usize) -> Result<EngineSettings, SettingError> {
        let Self { train, zero, pipeline, compute, .. } = self;
        if zero.stage > 3 {
            let allowed = "0 shards nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too";
            return Err(SettingError::new("zero.stage (--zero)", zero.stage, allowed));
        }
        if zero.prefetch > 1000 {
            return Err(SettingError::new("zero.prefetch", zero.prefetch, "it must be at most 1000 blocks"));
        }
        if stages.max(pipeline.chunks) > 1
            || matches!(pipeline.schedule, PipelineScheduleKind::Interleaved | PipelineScheduleKind::Zbv)
            || pipeline.chunks == 0
        {
            Pipeline::new(pipeline.schedule, stages, pipeline.chunks, micro_batches)?;
        }
        if pipeline.balance == Balance::Measured && !pipeline.stages.is_empty() {
            let allowed = format!(
                "pipeline.stages = {:?} already says how many blocks each stage has; set only one of the two",
                pipeline.stages
            );
            return Err(SettingError::new("pipeline.balance", "measured", allowed));
        }
        Ok(EngineSettings {
            gradient_clipping: (train.gradient_clipping > 0.0).then_some(train.gradient_clipping),
            on_nonfinite: match train.on_nonfinite {
                OnNonFinite::Stop => NonFinite::Stop,
                OnNonFinite::Skip | OnNonFinite::Rollback => NonFinite::Skip,
            },
            zero: Zero {
                stage: zero.stage,
                prefetch: zero.prefetch,
                reshard_after_forward: zero.reshard_after_forward,
                keep_gathered: zero.keep_gathered,
                reduce_every: zero.reduce_every,
                gather_codes: self.comm.compress_gathers,
            },
            schedule: pipeline.schedule,
            chunks: pipeline.chunks,
            tied_gradients: pipeline.tied_gradients.with(self.collectives()),
            split: pipeline.stages.clone(),
            recompute: compute.recompute()?,
            check_blocks: match train.check_blocks {
                true => CheckBlocks::Always,
                // A GPU may add in another order when a block is run again.
                false if compute.backend.resolved() == Backend::Cpu => CheckBlocks::default(),
                false => CheckBlocks::Never,
            },
            precision: Precision { compute: compute.resolved_dtype(), reduce: compute.reduce_dtype },
            offload: zero.offload_optimizer.then(brigade_cpu::device),
            ..EngineSettings::default()
        })
    }
}

impl RunPlan {
    /// Ranks that run other micro-batches of a step: those along the data axes, but for servers.
    pub fn data_ranks(&self) -> usize {
        match self.engine.strategy.separate_worlds() {
            Some(separate) => separate.workers,
            None => self.mesh.size_over(&DATA) - self.engine.strategy.servers(),
        }
    }

    /// Ranks of this launch that are servers: its last ones.
    pub(crate) fn servers(&self) -> usize {
        match self.engine.strategy.separate_worlds() {
            Some(separate) if !separate.is_server => 0,
            _ => self.engine.strategy.servers(),
        }
    }

    /// Workers that make updates of their own; 1 where all ranks make every update together.
    pub(crate) fn workers(&self) -> usize {
        self.outer.map_or(1, |outer| outer.workers)
    }

    /// Splits a model whose blocks have these costs into the parts of the pipeline: the number of blocks in each.
    ///
    /// # Errors
    /// If a part would be empty, or `pipeline.stages` does not fit the model.
    pub fn split(&self, costs: &[f64]) -> Result<Vec<usize>, SettingError> {
        let (given, parts) = (&self.engine.split, self.mesh.size(PP) * self.engine.chunks);
        Ok(split(given, costs, parts)?)
    }

    /// For data that know how many targets a sample has, where the program did not.
    pub(crate) fn know_targets(&mut self, per_step: usize) {
        self.tokens_per_step = self.tokens_per_step.max(per_step);
    }

    /// The learning-rate schedule of a run of this many steps, with its warm-up in steps.
    ///
    /// # Errors
    /// If the run is shorter than the schedule's decay.
    pub fn lr_scheduler(&self, total_steps: u64) -> Result<LrScheduler, SettingError> {
        self.schedule.resolve(total_steps, self.tokens_per_step)
    }
}

impl ScheduleSettings {
    fn resolve(&self, total_steps: u64, tokens_per_step: usize) -> Result<LrScheduler, SettingError> {
        if self.warmup_steps > 0 && self.warmup_tokens > 0 {
            let allowed = format!("set this or schedule.warmup_steps (now {}), not both", self.warmup_steps);
            return Err(SettingError::new("schedule.warmup_tokens", self.warmup_tokens, allowed));
        }
        let warmup_steps = self.warmup_steps.max(self.warmup_tokens.div_ceil(tokens_per_step as u64));
        let decay_steps = match (self.name, self.decay_steps) {
            (LrSchedulerKind::Wsd, 0) => total_steps.div_ceil(10),
            (LrSchedulerKind::Wsd, steps) => steps,
            _ => 0,
        };
        if decay_steps > total_steps {
            let allowed =
                format!("it must be at most {total_steps}, the steps of the run (train.steps, train.epochs)");
            return Err(SettingError::new("schedule.decay_steps", decay_steps, allowed));
        }
        Ok(LrScheduler { kind: self.name, warmup_steps, total_steps, min_ratio: self.min_ratio, decay_steps })
    }
}

#[cfg(test)]
mod tests {
    use crate::settings::Settings;

    #[test]
    fn a_warm_up_in_tokens_counts_those_that_the_data_have() {
        let mut settings = Settings::default();
        settings.train.global_batch_size = 8;
        settings.schedule.warmup_tokens = 8 * 128 * 10;
        let mut plan = settings.plan(1, 1).unwrap();
        let steps = |plan: &super::RunPlan| plan.lr_scheduler(100_000).unwrap().warmup_steps;
        assert_eq!(steps(&plan), 1280);
        plan.know_targets(8 * 128);
        assert_eq!(steps(&plan), 10);
        plan.know_targets(8);
        assert_eq!(steps(&plan), 10, "what the program said stays");
    }
}
