//! Settings of how ranks that run other micro-batches train together.

mod description;
mod server;

use std::fmt;
use std::sync::Arc;

use brigade_core::compress::Method;
use brigade_core::plan::OuterSteps;
use brigade_core::{
    Compressed, DP, Fragments, LocalUpdates, Mesh, OuterDtype, OuterOptimizer, PP, Strategy, Synchronous,
    WORKERS,
};
use brigade_kernels::SgdConfig;
use brigade_report::counted;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::settings::{OnNonFinite, SettingError, Settings};

/// How ranks with different micro-batches train together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[value(rename_all = "kebab-case")]
pub enum StrategyName {
    /// All ranks make every update together.
    #[default]
    Sync,
    /// Workers make updates of their own, and average their parameters from time to time.
    LocalSgd,
    /// Workers make updates of their own, and an outer optimizer steps along the mean of their changes.
    Diloco,
    /// Workers push gradients to servers, which alone update the parameters; how far workers may drift apart is bounded.
    AsyncServer,
}

/// As in settings.
impl fmt::Display for StrategyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// `[strategy]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StrategySettings {
    /// `sync`, `local-sgd`, `diloco` or `async-server`: whether all ranks make every update together, workers make updates of their own and synchronise
    /// from time to time (to average their parameters, or for a step of an outer optimizer), or workers push gradients to servers.
    pub name: StrategyName,
    /// Workers of `local-sgd` and `diloco`, each a mesh of `pp` x `dp` ranks with an equal part of each global batch; 0: as many as the ranks
    /// allow, with one data-parallel rank each unless `mesh.dp` says more.
    pub workers: usize,
    /// `local-sgd` and `diloco`: `host:port` of the coordinator (`brigade coordinate`) for separately launched workers, each a world of `pp` x `dp`
    /// ranks. Each outer step includes the workers present; workers may leave, join late or rejoin. `async-server`: `host:port` of separately
    /// launched servers; this launch is one of their workers. Empty: all workers are in this world.
    pub coordinator: String,
    /// `async-server`: `host:port` where servers listen for separately launched workers, which may leave, join late or rejoin; all ranks of this
    /// launch are servers. Empty: workers and servers are in one world.
    pub listen: String,
    /// With a coordinator: this launch's number among the workers, from 0 to `workers - 1`.
    pub worker: usize,
    /// Updates of a worker between outer steps, in which workers synchronise; with `async-server` and a staleness above 0, steps between the points at
    /// which all ranks wait for each other. Metrics, validation, checkpoints and preemption wait for these.
    pub inner_steps: u64,
    /// DiLoCo: learning rate of the outer optimizer, which is SGD.
    pub outer_learning_rate: f64,
    /// DiLoCo: momentum of the outer optimizer; 0 turns it off.
    pub outer_momentum: f64,
    /// DiLoCo: whether the momentum is Nesterov's.
    pub outer_nesterov: bool,
    /// DiLoCo: `fp32`, `bf16` or `int8` (in blocks of 256 with a scale each): the number type in which outer gradients are sent between
    /// workers.
    pub outer_dtype: OuterDtype,
    /// DiLoCo: number of model fragments (groups of blocks), synchronised one at a time at equal intervals within the inner steps; 1 synchronises
    /// the whole model at once. More fragments lower the peak traffic (Streaming DiLoCo).
    pub fragments: usize,
    /// DiLoCo: inner steps that a worker makes while outer gradients are sent; 0: it waits for them. Less than `inner_steps / fragments`.
    pub overlap_steps: u64,
    /// DiLoCo with overlap: fraction of its local values a worker keeps after an overlapped outer step, from 0 to 1; with 0, updates made during
    /// the overlap are discarded.
    pub outer_mixing: f64,
    /// `async-server`: how many ranks are servers, the last ones; the others are workers. 0: 1, or the number of `ps` tasks in
    /// `TF_CONFIG`.
    pub servers: usize,
    /// `async-server`: by how many steps a worker may take newer parameters than the slowest one still computes with; gradients are late by
    /// less than two steps more. With 0, the gradients of all workers make one update, with the same bits as `sync`; otherwise each worker's
    /// gradient is applied as soon as it arrives.
    pub staleness: u64,
    /// `async-server`: λ of delay compensation, which corrects late gradients by `λ g² (w - b)`, for parameters that were `b` and are
    /// now `w`; 0 turns it off.
    pub delay_compensation: f64,
}

impl Default for StrategySettings {
    fn default() -> Self {
        Self {
            name: StrategyName::Sync,
            workers: 0,
            coordinator: String::new(),
            listen: String::new(),
            worker: 0,
            inner_steps: 50,
            outer_learning_rate: 0.7,
            outer_momentum: 0.9,
            outer_nesterov: true,
            outer_dtype: OuterDtype::F32,
            fragments: 1,
            overlap_steps: 0,
            outer_mixing: 0.5,
            servers: 0,
            staleness: 0,
            delay_compensation: 0.0,
        }
    }
}

impl StrategySettings {
    /// Whether workers make updates of their own.
    pub fn has_workers(&self) -> bool {
        matches!(self.name, StrategyName::LocalSgd | StrategyName::Diloco)
    }

    /// Whether workers that make updates of their own are launched separately, and may leave and join.
    pub fn is_elastic(&self) -> bool {
        self.has_workers() && !self.coordinator.is_empty()
    }

    /// Whether other launches take part in the run: workers and their coordinator, or workers and servers.
    pub(crate) fn has_separate_launches(&self) -> bool {
        !self.coordinator.is_empty() || !self.listen.is_empty()
    }

    /// This worker's number, and the number of workers, where each is launched separately; else 0 and 1.
    pub(crate) fn place_among_launches(&self) -> (usize, usize) {
        if self.is_elastic() { (self.worker, self.workers) } else { (0, 1) }
    }

    /// The number of workers in a world of this many ranks, with stages and data-parallel ranks as set.
    fn resolved_workers(&self, world: usize, pp: usize, dp: usize) -> Result<usize, SettingError> {
        let refuse = |allowed| Err(SettingError::new("strategy.workers (--workers)", self.workers, allowed));
        if self.is_elastic() {
            return Ok(1);
        }
        if !self.has_workers() {
            return match self.workers {
                0 | 1 => Ok(1),
                _ => refuse(
                    "strategy.name = sync has none; set 0, or --strategy local-sgd or diloco".to_owned(),
                ),
            };
        }
        let workers = match self.workers {
            0 => (world / pp.saturating_mul(dp.max(1)).max(1)).max(1),
            given if world.is_multiple_of(given) => given,
            given => {
                let nearest = (1..=given.min(world)).rev().find(|number| world.is_multiple_of(*number));
                return refuse(format!(
                    "it must divide the {}; the nearest is {}",
                    counted(world, "rank"),
                    nearest.unwrap_or(1)
                ));
            }
        };
        match (workers, self.name) {
            (1, StrategyName::LocalSgd) if world == 1 => {
                let allowed =
                    "--strategy local-sgd needs at least 2 ranks, a worker each (--nproc-per-node 2)";
                Err(SettingError::new("strategy.name (--strategy)", "local-sgd", allowed))
            }
            (1, StrategyName::LocalSgd) => refuse(format!(
                "in a world of {} there is only one worker, which has no other to average with; it must be at least 2, or --strategy sync",
                counted(world, "rank")
            )),
            _ => Ok(workers),
        }
    }

    fn check(&self) -> Result<(), SettingError> {
        if self.inner_steps == 0 {
            let allowed = "it must be at least 1";
            return Err(SettingError::new("strategy.inner_steps (--inner-steps)", 0, allowed));
        }
        let rate = self.outer_learning_rate;
        if !(rate.is_finite() && rate > 0.0) {
            return Err(SettingError::new(
                "strategy.outer_learning_rate",
                rate,
                "it must be a number above 0",
            ));
        }
        let momentum = self.outer_momentum;
        if !(0.0..1.0).contains(&momentum) {
            let allowed = "it must be at least 0, which turns it off, and below 1";
            return Err(SettingError::new("strategy.outer_momentum", momentum, allowed));
        }
        self.check_fragments()?;
        self.check_coordinator()
    }

    /// How outer steps of parts of the model follow each other, if they do.
    pub(crate) fn fragments(&self) -> Option<Fragments> {
        let (count, overlap) = (self.fragments, self.overlap_steps);
        // Without overlap nothing is lost that mixing would keep.
        let mixing = if overlap > 0 { self.outer_mixing } else { 0.0 };
        let fragments = Fragments { count, overlap, mixing };
        (count != 1 || overlap > 0).then_some(fragments)
    }

    fn check_fragments(&self) -> Result<(), SettingError> {
        let Some(fragments) = self.fragments() else { return Ok(()) };
        let (option, given) = match self.fragments {
            1 => ("strategy.overlap_steps (--overlap-steps)", self.overlap_steps),
            count => ("strategy.fragments (--fragments)", count as u64),
        };
        if self.name != StrategyName::Diloco {
            let allowed = "only --strategy diloco supports fragments; remove this setting";
            return Err(SettingError::new(option, given, allowed));
        }
        if self.is_elastic() {
            let allowed = "with strategy.coordinator (--coordinator) workers synchronise the whole model at once; remove this setting";
            return Err(SettingError::new(option, given, allowed));
        }
        fragments.check(self.inner_steps, None).map_err(of_setting)
    }

    fn check_coordinator(&self) -> Result<(), SettingError> {
        let (workers, worker) = (self.workers, self.worker);
        let refuse = |option, given: String, allowed: &str| Err(SettingError::new(option, given, allowed));
        if self.coordinator.is_empty() {
            return match worker {
                0 => Ok(()),
                _ => {
                    let allowed = "without strategy.coordinator (--coordinator) all workers are in this world; leave it out";
                    refuse("strategy.worker (--worker)", worker.to_string(), allowed)
                }
            };
        }
        let option = "strategy.coordinator (--coordinator)";
        if self.name == StrategyName::Sync {
            let allowed = "only --strategy local-sgd, diloco and async-server support separately launched workers; remove this setting";
            return refuse(option, self.coordinator.clone(), allowed);
        }
        if !is_endpoint(&self.coordinator) {
            let allowed = "it must be host:port, as in 10.0.0.1:29600, where `brigade coordinate` or the servers (--listen) listen";
            return refuse(option, self.coordinator.clone(), allowed);
        }
        if workers == 0 {
            let allowed = "with a coordinator it must say how many workers there may be";
            return refuse("strategy.workers (--workers)", "0".into(), allowed);
        }
        if worker >= workers {
            let allowed = format!("it must be below strategy.workers (--workers) = {workers}");
            return Err(SettingError::new("strategy.worker (--worker)", worker, allowed));
        }
        Ok(())
    }
}

/// The engine's refusal of a setting.
fn of_setting(error: brigade_core::Error) -> SettingError {
    match error {
        brigade_core::Error::Setting { option, given, allowed } => {
            SettingError::Value { option, given, allowed }
        }
        other => SettingError::new("strategy", "these settings", other.to_string()),
    }
}

/// Whether a text is `host:port`.
pub(crate) fn is_endpoint(text: &str) -> bool {
    // A port of 0 is none.
    brigade_launch::Endpoint::parse(text, 0).is_ok()
}

impl Settings {
    /// Steps between the points at which all ranks have the same weights, so that metrics and checkpoints cover all of
    /// them.
    pub(crate) fn steps_together(&self) -> (u64, &'static str) {
        match self.strategy.has_workers() || self.strategy.rounds().is_some() {
            true => (self.strategy.inner_steps, "strategy.inner_steps (--inner-steps)"),
            false => (self.train.sync_every as u64, "train.sync_every (--sync-every)"),
        }
    }

    /// The mesh of this many ranks, still without replicas.
    pub(crate) fn mesh(&self, world: usize) -> Result<Mesh, SettingError> {
        if self.strategy.resolved_servers() > 0 {
            return self.mesh_with_servers(world);
        }
        let (pp, dp) = (self.mesh.pp, self.mesh.dp);
        let workers = self.strategy.resolved_workers(world, pp, dp)?;
        let dp = if dp == 0 { (world / workers / pp).max(1) } else { dp };
        let axes = [(WORKERS, workers), (PP, pp), (DP, dp)];
        let has_axis = self.strategy.has_workers() && !self.strategy.is_elastic();
        let axes = axes.into_iter().skip(usize::from(!has_axis));
        Mesh::new(world, axes).map_err(|error| match error {
            error @ brigade_core::Error::Setting { .. } => of_setting(error),
            other => SettingError::new("mesh", format!("pp {pp} x dp {dp}"), other.to_string()),
        })
    }

    /// How this many workers synchronise, if they do.
    pub(crate) fn outer_steps(&self, workers: usize) -> Option<OuterSteps> {
        let strategy = &self.strategy;
        let inner_steps = usize::try_from(strategy.inner_steps).unwrap_or(usize::MAX);
        let (bytes, state_bytes) = match strategy.name {
            StrategyName::Sync | StrategyName::AsyncServer => return None,
            StrategyName::LocalSgd => (4, 0),
            StrategyName::Diloco if strategy.outer_momentum > 0.0 => (strategy.outer_dtype.bytes(), 8),
            StrategyName::Diloco => (strategy.outer_dtype.bytes(), 4),
        };
        let overlapped = strategy.fragments().filter(|fragments| fragments.overlap > 0);
        let overlapped_fragments = overlapped.map_or(0, |fragments| fragments.count);
        Some(OuterSteps { workers, inner_steps, bytes, state_bytes, overlapped_fragments })
    }

    /// How ranks with different micro-batches train together.
    pub(crate) fn strategy(&self) -> Result<Arc<dyn Strategy>, SettingError> {
        let (strategy, train) = (&self.strategy, &self.train);
        strategy.check()?;
        strategy.check_server()?;
        if strategy.name == StrategyName::AsyncServer {
            return Ok(Arc::new(self.async_server()?));
        }
        if !strategy.has_workers() {
            let (every, compression) = (train.sync_every, self.comm.compression());
            return Ok(match compression.method {
                Method::None => Arc::new(Synchronous { every }),
                _ => Arc::new(Compressed { every, compression }),
            });
        }
        let method = self.comm.compression().method;
        if method != Method::None {
            let allowed = "gradients are not compressed within a worker, and workers exchange \
            strategy.outer_dtype; it must be none, or --strategy sync";
            return Err(SettingError::new("comm.compress (--compress)", self.comm.compress, allowed));
        }
        if train.sync_every > 1 {
            let allowed = "workers make an update in every step, and synchronise after every strategy.inner_steps (--inner-steps); set 1, \
            or --strategy sync";
            return Err(SettingError::new("train.sync_every (--sync-every)", train.sync_every, allowed));
        }
        if train.on_nonfinite == OnNonFinite::Rollback {
            let allowed = "a worker that finds a value that is not finite decides alone, and cannot roll back the others; it must be \
            stop or skip, or --strategy sync";
            return Err(SettingError::new("train.on_nonfinite", "rollback", allowed));
        }
        if strategy.is_elastic() && self.checkpoint.keep_best {
            let allowed = "with strategy.coordinator (--coordinator) a worker may miss the step whose weights are the best; it must be false";
            return Err(SettingError::new("checkpoint.keep_best", true, allowed));
        }
        let momentum = (strategy.outer_momentum > 0.0).then_some(strategy.outer_momentum as f32);
        let nesterov = strategy.outer_nesterov && momentum.is_some();
        let sgd = SgdConfig { momentum, dampening: 0.0, nesterov, weight_decay: None };
        let outer = OuterOptimizer {
            optimizer: sgd.build().into(),
            learning_rate: strategy.outer_learning_rate,
            dtype: strategy.outer_dtype,
        };
        let outer = (strategy.name == StrategyName::Diloco).then_some(outer);
        let fragments = strategy.fragments();
        Ok(Arc::new(LocalUpdates { inner_steps: strategy.inner_steps, outer, fragments }))
    }
}
