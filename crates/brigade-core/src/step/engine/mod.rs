//! The training step of one rank: the schedule's actions, sums over ranks, the optimizer.

mod given_values;
mod gradient_hooks;
mod initialization;
mod own_schedule;
mod predict;
pub(crate) mod rounds;
mod typed;
pub(crate) mod workers;

use std::sync::Arc;
use std::time::Duration;

use brigade_plan::{Stage, StageSchedule, split};
use brigade_sorted::SortedMap;
use burn::tensor::Tensor;

use crate::dist::{Groups, PP, Traffic};
use crate::error::{Error, Result};
use crate::metrics::{Bytes, Clock, Memory};
use crate::model::chain::blocks::Blocks;
use crate::model::chain::ties::Tie;
use crate::model::objective::Objective;
use crate::optim::OptimizerFactory;
use crate::optim::clip_factor;
use crate::sharding::ParallelGroups;
use crate::sharding::store::ParameterStore;
use crate::step::engine::given_values::check_given_values;
use crate::step::engine::initialization::{
    Initialization, check_fragments, check_loaded, check_mesh, check_servers,
};
use crate::step::engine::workers::inner_steps::InnerSteps;
use crate::step::engine::workers::outer_in_flight::OuterInFlight;
use crate::step::forward_backward::micro_batches::MicroBatches;
use crate::step::gradients::hook::GradientHook;
use crate::step::report::StepReport;
use crate::step::running_state::{RunningState, Terms};
use crate::step::settings::{EngineSettings, NonFinite};
use crate::step::strategy::{DataParallel, ReducedUnit, Reduction, Update};
use crate::step::window::Window;

pub use typed::Engine;

/// The results of forward and backward over the global batch. Everything but the gradients is equal on all
/// ranks, to the bit.
pub(crate) struct Sums {
    /// Of the own elements of each unit; none for those that another stage owns.
    pub gradients: Vec<Option<Tensor<1>>>,
    pub grad_norm: f64,
    pub loss: f64,
    pub metrics: SortedMap<String, f64>,
    pub targets: u64,
    /// What the targets weigh: what the loss is divided by.
    pub target_weight: f64,
    /// What the gradients are still to be divided by: that weight, where nobody knew it before the backward.
    pub divisor: Option<f64>,
    /// What each of this rank's micro-batches adds to running state.
    pub running: Vec<Terms>,
    /// Most micro-batches between forward and backward on this rank.
    pub in_flight: usize,
}

/// An [`Engine`], apart from the types of its model's input, output and targets.
pub struct UntypedEngine {
    pub(crate) chain: Blocks,
    pub(crate) objective: Objective,
    pub(crate) store: ParameterStore,
    pub(crate) reduction: Box<dyn Reduction>,
    pub(crate) update: Box<dyn Update>,
    pub(crate) window: Window,
    pub(crate) inner_steps: InnerSteps,
    pub(crate) in_flight: OuterInFlight,
    pub(crate) running: RunningState,
    pub(crate) stage: Stage,
    pub(crate) first_trained: usize,
    pub(crate) settings: EngineSettings,
    pub(crate) seed: u64,
    pub(crate) step: u64,
    pub(crate) memory: Memory,
    pub(crate) schedules: SortedMap<(usize, bool), Arc<StageSchedule>>,
    pub(crate) shapes: Vec<SortedMap<String, Vec<usize>>>,
    pub(crate) ties: Vec<Tie>,
    pub(crate) gradient_hooks: Vec<GradientHook>,
    /// In a round, the number in the global batch of the first micro-batch that is computed.
    pub(crate) first_micro_batch: Option<usize>,
    records_spans: bool,
    pub(crate) second_halves: Option<bool>,
}

impl UntypedEngine {
    fn new(
        mut chain: Blocks,
        objective: Objective,
        seed: u64,
        optimizer: &OptimizerFactory,
        groups: Groups,
        settings: EngineSettings,
    ) -> Result<Self> {
        chain.check_names()?;
        let optimizer = optimizer.with_groups(&settings.groups)?;
        let grouping = chain.grouping(&settings.groups)?;
        if settings.inference {
            chain.freeze_all();
        } else {
            chain.check_trainable(&grouping)?;
            chain.freeze(&grouping);
        }
        let first_trained = chain.first_trained();
        let (ties, mesh) = (chain.resolved_ties()?, groups.mesh().clone());
        check_mesh(&mesh, groups.world().size(), &*settings.strategy)?;
        check_fragments(chain.blocks.len(), &settings)?;
        check_servers(&mesh, &settings.zero, &*settings.strategy)?;
        check_loaded(chain.loaded.as_ref(), groups.world().as_ref())?;
        check_given_values(&chain, &ties, groups.world().as_ref())?;
        if let Some(tie) = ties.iter().find(|tie| tie.owner.0 > tie.follower.0) {
            return Err(Error::Blocks(format!(
                "tie: the owner `{}` must be in the same block as its follower `{}` or in an earlier one",
                tie.owner.1, tie.follower.1
            )));
        }
        let split = split(&settings.split, &chain.costs(), mesh.size(PP) * settings.chunks.max(1))?;
        let (placement, rank) = (settings.schedule.placement(), mesh.coordinate(groups.world().rank(), PP));
        let stage = Stage::new(placement, rank, mesh.size(PP), &split);
        let blocks = chain.blocks.len();
        let groups = ParallelGroups::new(groups, &settings.zero, settings.buckets);
        let shapes = chain.blocks.iter().map(|named| named.block.shapes()).collect();
        let mut store = ParameterStore {
            units: Vec::new(),
            holders: (0..blocks).map(|block| stage.holder(block)).collect(),
            shared: chain.shared(&ties),
            bound: vec![false; blocks],
            by_block: vec![Vec::new(); blocks],
            running: vec![Vec::new(); blocks],
            groups,
            zero: settings.zero,
            precision: settings.precision,
            device: chain.device()?,
            offload: settings.offload.clone(),
            servers: settings.strategy.servers(),
            separate: settings.strategy.separate_worlds(),
            bytes: Bytes::default(),
        };
        let data = DataParallel {
            // Few of these are under way at a time, and the next ones wait for them.
            shard: match settings.zero.reduces_each_micro_batch() {
                true => store.groups.shard_at_once.clone(),
                false => store.groups.shard.clone(),
            },
            replicate: store.groups.replicate.clone(),
            device: store.device.clone(),
            zero: settings.zero,
            dtype: settings.precision.reduce.dtype(),
            sum_group: settings.sum_group,
            seed,
        };
        let mut update = settings.strategy.update(optimizer, data.clone());
        for index in 0..blocks {
            let is_owner_of_a_tie =
                ties.iter().any(|tie| tie.owner.0 == index && stage.holds(tie.follower.0));
            if stage.holds(index) || is_owner_of_a_tie {
                let mut initialization = Initialization {
                    chain: &mut chain,
                    store: &mut store,
                    update: &mut *update,
                    ties: &ties,
                    grouping: &grouping,
                    layer_decay: settings.layer_decay,
                };
                initialization.block(index, seed)?;
            }
        }
        chain.finish_loading(mesh.size(PP) > 1 || store.unshards_on_use());
        for index in (0..blocks).filter(|index| stage.holds(*index)) {
            store.bind_parameters(index, &mut chain.blocks[index]);
        }
        let units = store.units.iter().map(|stored| ReducedUnit {
            name: stored.unit.name.clone(),
            parameters: stored.unit.layout.params().to_vec(),
            elements: stored.length,
            own: stored.own.clone(),
            is_updated: stored.is_updated(),
            served: store.served(&stored.unit),
        });
        let reduction = settings.strategy.reduction(units.collect(), data);
        if let Some(stored) = store.units.iter().find(|stored| stored.unit.running && store.servers > 0) {
            return Err(Error::Model(format!(
                "`{}` is running state, which all ranks with micro-batches change together; a model with servers cannot have any",
                stored.unit.full_name(stored.unit.layout.path_of(0))
            )));
        }
        let mut engine = Self {
            reduction,
            window: Window::default(),
            inner_steps: InnerSteps::default(),
            in_flight: OuterInFlight::default(),
            running: RunningState::default(),
            chain,
            objective,
            store,
            update,
            stage,
            first_trained,
            settings: EngineSettings { split, ..settings },
            seed,
            step: 0,
            memory: Memory::default(),
            schedules: SortedMap::new(),
            shapes,
            ties,
            gradient_hooks: Vec::new(),
            first_micro_batch: None,
            records_spans: false,
            second_halves: None,
        };
        engine.bind_running()?;
        Ok(engine)
    }

    /// Number of blocks in each part of the pipeline.
    pub fn split(&self) -> &[usize] {
        &self.settings.split
    }

    /// Whether blocks of this rank left anything for the second halves of their backwards in the last step: if not, a zero-bubble schedule fills no
    /// bubbles. None where the schedule has no second halves.
    pub fn second_halves(&self) -> Option<bool> {
        self.second_halves
    }

    /// Bytes that this rank holds.
    pub fn memory(&self) -> Memory {
        Memory { parameters: self.store.bytes, ..self.memory }
    }

    /// Sets whether further steps record what happens when: [`Clock::spans`] of their reports. It changes nothing else.
    pub fn record_spans(&mut self, records: bool) {
        self.records_spans = records;
    }

    /// Whether the next step synchronizes: whether it is one of [`step`](crate::Engine::step), or else of
    /// [`accumulate`](crate::Engine::accumulate) or [`inner_step`](crate::Engine::inner_step).
    pub fn synchronizes(&self) -> bool {
        let next = self.step + 1;
        self.settings.strategy.synchronizes(next) && self.is_outer(next)
    }

    /// Whether the next step makes an update of this worker alone: whether it is one of [`inner_step`](crate::Engine::inner_step).
    pub fn steps_alone(&self) -> bool {
        !self.is_outer(self.step + 1) || self.settings.worker.is_some()
    }

    fn accumulate(&mut self, batches: &mut dyn MicroBatches) -> Result<()> {
        self.check_kind(false)?;
        if self.steps_alone() {
            return Err(Error::Model(format!(
                "step {} makes an update; call `Engine::inner_step` for it",
                self.step + 1
            )));
        }
        let (mut clock, traffic) = self.begin_step();
        self.pass(batches, false, &mut clock)?;
        (self.window.clock, self.window.traffic_before) = (clock, Some(traffic));
        Ok(())
    }

    fn step(&mut self, batches: &mut dyn MicroBatches, learning_rate: f64) -> Result<StepReport> {
        self.check_kind(true)?;
        if self.settings.worker.is_some() {
            return Err(Error::Model(
                "the other workers are in worlds of their own; call `Engine::inner_step` and `Engine::outer_sums`".into(),
            ));
        }
        if self.settings.strategy.rounds().is_some() {
            return Err(Error::Model("this strategy trains in rounds; call `Engine::round`".into()));
        }
        let (mut clock, before) = self.begin_step();
        let mut found = self.update_by(batches, learning_rate, &mut clock)?;
        if self.settings.strategy.inner_steps().is_some() {
            self.inner_steps.add(found);
            self.step_fragments(&mut clock)?;
            let workers = self.store.groups.workers.clone();
            let sums = self.sums_over_workers(&workers, &mut clock)?;
            found = self.step_along(sums, &mut clock)?;
        }
        let traffic = difference(self.store.groups.traffic(), &before);
        Ok(StepReport { clock, traffic, memory: self.memory(), ..found })
    }

    /// One update from this rank's micro-batches, of its worker alone. The report has neither memory nor times nor traffic. Errors are those of the
    /// worker.
    fn update_of_worker(
        &mut self,
        batches: &mut dyn MicroBatches,
        learning_rate: f64,
        clock: &mut Clock,
    ) -> Result<StepReport> {
        self.take_back_own_values()?;
        let sums = self.sums(batches, learning_rate, clock)?;
        let skips = self.settings.on_nonfinite == NonFinite::Skip;
        let skipped = sums.target_weight == 0.0 || !(sums.loss.is_finite() && sums.grad_norm.is_finite());
        self.reduction.commit(!skipped);
        if sums.target_weight == 0.0 && !skips {
            return Err(Error::NoTargets { step: self.step, worker: self.own_worker() });
        }
        if sums.target_weight.is_nan() && !skips {
            return Err(Error::TargetWeights { step: self.step });
        }
        if skipped && !skips {
            return Err(self.not_finite(batches, &sums));
        }
        let Sums { gradients, grad_norm, loss, metrics, targets, target_weight, divisor, running, in_flight } =
            sums;
        // Until here waits for neighbours are the pipeline's, and so is the wait for the last of them.
        let idle = |what: &str| clock.waits.get(what).copied().unwrap_or_default();
        let bubble = if self.stage.stages > 1 {
            idle("pipeline") + idle("all_gather_scalars")
        } else {
            Duration::ZERO
        };
        if !skipped {
            let clip = clip_factor(grad_norm, self.settings.gradient_clipping);
            let scale = match divisor {
                None => clip,
                Some(divisor) => Some(clip.unwrap_or(1.0) / divisor),
            };
            self.update(gradients, learning_rate, scale, clock)?;
            self.running.apply(&running, &mut self.store)?;
            self.bind_running()?;
        }
        Ok(StepReport {
            step: self.step,
            loss: if target_weight == 0.0 { f64::NAN } else { loss },
            metrics,
            grad_norm,
            targets,
            target_weight,
            skipped,
            outer: None,
            round: None,
            bubble,
            in_flight,
            memory: Memory::default(),
            clock: Clock::default(),
            traffic: Traffic::new(),
        })
    }

    /// Counts a step; gives the clock and the traffic since the last update.
    pub(crate) fn begin_step(&mut self) -> (Clock, Traffic) {
        self.step += 1;
        let traffic = self.window.traffic_before.take().unwrap_or_else(|| self.store.groups.traffic());
        let mut clock = std::mem::take(&mut self.window.clock);
        if self.records_spans {
            clock.spans.get_or_insert_default();
        }
        self.reduction.begin(self.step);
        (clock, traffic)
    }

    /// Checks that the next step is to be one that synchronizes, or one that does not.
    fn check_kind(&self, synchronizes: bool) -> Result<()> {
        if self.synchronizes() == synchronizes {
            return Ok(());
        }
        let next = self.step + 1;
        Err(Error::Model(match synchronizes {
            true if self.steps_alone() => {
                format!("step {next} is an update of this worker alone; call `Engine::inner_step` for it")
            }
            true => format!("step {next} makes no update; call `Engine::accumulate` for it"),
            false => format!("step {next} makes an update; call `Engine::step` for it"),
        }))
    }
}

pub(crate) fn difference(after: Traffic, before: &Traffic) -> Traffic {
    after
        .into_iter()
        .map(|(operation, (calls, bytes))| {
            let (calls_before, bytes_before) = before.get(&operation).copied().unwrap_or_default();
            (operation, (calls.saturating_sub(calls_before), bytes.saturating_sub(bytes_before)))
        })
        .filter(|(_, (calls, _))| *calls > 0)
        .collect()
}
