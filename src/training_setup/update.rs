//! What a program brings of its own to updates: an optimizer, groups of parameters, a learning rate, gradient hooks.

use std::sync::Arc;

use brigade_core::compress::Method;
use brigade_core::{
    Activation, Engine, LrScheduler, LrSchedulerKind, OptimizerFactory, Strategy, UnitGradient,
};
use brigade_report::counted;
use burn::tensor::Tensor;

use super::Training;
use crate::settings::{OptimizerGroup, RunPlan, SettingError, Settings, StrategyName};

type GradientHook = Box<dyn Fn(&UnitGradient<'_>, Tensor<1>) -> Tensor<1> + Send + Sync>;

/// A program's own parts of updates.
#[derive(Default)]
pub(crate) struct OwnUpdate {
    optimizer: Option<OptimizerFactory>,
    groups: Vec<OptimizerGroup>,
    learning_rate: Option<Box<dyn Fn(u64) -> f64>>,
    gradient_hooks: Vec<GradientHook>,
    strategy: Option<Arc<dyn Strategy>>,
}

impl<I: Activation, O: Activation, T: 'static> Training<I, O, T> {
    /// Trains with this optimizer instead of the one in the settings: any of Burn's elementwise ones, or your own
    /// ([`Elementwise`](crate::core::Elementwise)). Its state is part of checkpoints, and can be restored on any mesh. The learning rate is
    /// that of the settings, with its scaling, `optimizer.layer_decay` and groups; a run names other settings of `[optimizer]` that were given, as they have no effect.
    ///
    /// Gradients are clipped by `train.gradient_clipping` alone: Burn applies its own configuration's (`with_grad_clipping`) only where it wraps the optimizer (`init`), not here.
    ///
    /// One optimizer updates all parameters, as in plain Burn. To give biases and norms no weight decay, or groups their own, pass
    /// an [`OptimizerFactory`].
    ///
    /// ```
    /// # use brigade::{Activation, Training};
    /// # fn own<I: Activation, O: Activation, T: 'static>(training: Training<I, O, T>) {
    /// use burn::optim::AdamWConfig;
    /// let training = training.optimizer(AdamWConfig::new().with_weight_decay(0.05).build());
    /// # }
    /// ```
    pub fn optimizer(mut self, optimizer: impl Into<OptimizerFactory>) -> Self {
        self.update.optimizer = Some(optimizer.into());
        self
    }

    /// Trains some parameters differently from the rest. A parameter belongs to the first group that matches its name. Groups in
    /// the settings (`[[optimizer.groups]]`) replace all groups given here.
    ///
    /// ```
    /// # use brigade::{Activation, Training};
    /// # fn own<I: Activation, O: Activation, T: 'static>(training: Training<I, O, T>) {
    /// use brigade::OptimizerGroup;
    /// let training = training
    ///     .group(OptimizerGroup::matching("backbone.*").frozen())
    ///     .group(OptimizerGroup::matching("embedding.*").learning_rate(1e-4).weight_decay(0.0));
    /// # }
    /// ```
    pub fn group(mut self, group: OptimizerGroup) -> Self {
        self.update.groups.push(group);
        self
    }

    /// Multiplies the peak learning rate (`optimizer.learning_rate`) by the result of `factor`, instead of the schedule and its warm-up.
    /// As in PyTorch's `LambdaLR`, its argument is the number of steps before an update: 0 for the first step, and after a resume the
    /// number of steps already made. It must depend only on this number, because every rank calls it: a factor that is not a number of at
    /// least 0, or not the same on all ranks, ends the run.
    ///
    /// ```
    /// # use brigade::{Activation, Training};
    /// # fn own<I: Activation, O: Activation, T: 'static>(training: Training<I, O, T>) {
    /// // Half as much after every thousand steps.
    /// let training = training.learning_rate(|step| 0.5f64.powi((step / 1000) as i32));
    /// # }
    /// ```
    pub fn learning_rate(mut self, factor: impl Fn(u64) -> f64 + 'static) -> Self {
        self.update.learning_rate = Some(Box::new(factor));
        self
    }

    /// Calls `hook` for the gradient of each unit before each update, after sums over ranks and before norm and clipping; it returns the
    /// gradient for the optimizer. Every rank calls it, for the elements that it owns: [`UntypedEngine::on_gradient`](brigade_core::UntypedEngine::on_gradient) says what it may do.
    ///
    /// ```
    /// # use brigade::{Activation, Training};
    /// # fn own<I: Activation, O: Activation, T: 'static>(training: Training<I, O, T>) {
    /// let training = training.on_gradient(|_, gradient| gradient.clamp(-0.1, 0.1));
    /// # }
    /// ```
    pub fn on_gradient(
        mut self,
        hook: impl Fn(&UnitGradient<'_>, Tensor<1>) -> Tensor<1> + Send + Sync + 'static,
    ) -> Self {
        self.update.gradient_hooks.push(Box::new(hook));
        self
    }

    /// Reduces gradients and makes updates by a [`Strategy`] of your own, instead of `strategy.name = "sync"`: what its reduction keeps is part of checkpoints. It makes an
    /// update every `train.sync_every` steps; workers and servers are those of the settings, so it has none.
    ///
    /// ```
    /// # use brigade::{Activation, Training};
    /// use brigade::core::{DataParallel, ReducedUnit, Reduction, Strategy, Synchronous};
    ///
    /// /// As the one that is there, and says how much it sums.
    /// #[derive(Debug)]
    /// struct Telling;
    ///
    /// impl Strategy for Telling {
    ///     fn synchronizes(&self, _step: u64) -> bool {
    ///         true
    ///     }
    ///     fn period(&self) -> usize {
    ///         1
    ///     }
    ///     fn reduction(&self, units: Vec<ReducedUnit>, data: DataParallel) -> Box<dyn Reduction> {
    ///         println!("{} values", units.iter().map(|unit| unit.elements).sum::<usize>());
    ///         Synchronous::default().reduction(units, data)
    ///     }
    /// }
    /// # fn own<I: Activation, O: Activation, T: 'static>(training: Training<I, O, T>) {
    /// let training = training.strategy(Telling);
    /// # }
    /// ```
    pub fn strategy(mut self, strategy: impl Strategy + 'static) -> Self {
        self.update.strategy = Some(Arc::new(strategy));
        self
    }
}

impl OwnUpdate {
    /// The plan of a run, with the program's own optimizer, and with its groups if the settings have none.
    pub(crate) fn plan(&self, plan: &RunPlan, settings: &Settings) -> Result<RunPlan, SettingError> {
        let mut plan = plan.clone();
        if settings.optimizer.groups.is_empty() {
            plan.engine.groups = settings.parameter_groups(&self.groups)?;
        }
        plan.optimizer = self.optimizer.clone().unwrap_or(plan.optimizer);
        if let Some(strategy) = &self.strategy {
            check_strategy(&**strategy, settings)?;
            plan.engine.strategy = strategy.clone();
        }
        Ok(plan)
    }

    /// The same for an additional model of a run, to whose parameters and blocks the settings do not apply.
    pub(crate) fn plan_of_further(
        &self,
        plan: &RunPlan,
        settings: &Settings,
    ) -> Result<RunPlan, SettingError> {
        let mut settings = settings.clone();
        settings.train.freeze.clear();
        settings.optimizer.groups.clear();
        let mut plan = self.plan(plan, &settings)?;
        plan.engine.layer_decay = 1.0;
        plan.engine.split.clear();
        Ok(plan)
    }

    /// Optimizer, clipping and schedule of the settings, where the program has none of its own.
    fn described(&self, settings: &Settings, schedule: &LrScheduler) -> String {
        let optimizer = &settings.optimizer;
        let mut parts = Vec::new();
        if self.optimizer.is_none() {
            parts.push(format!("{}, weight decay {}", optimizer.name, optimizer.weight_decay));
        }
        parts.push(match settings.train.gradient_clipping {
            0.0 => "gradients are not clipped".to_owned(),
            norm => format!("gradients are clipped to a norm of {norm}"),
        });
        if self.learning_rate.is_none() {
            let kind = match schedule.kind {
                LrSchedulerKind::Constant => "constant learning rate",
                LrSchedulerKind::Linear => "learning rate falls linearly",
                LrSchedulerKind::Cosine => "learning rate falls along a cosine",
                LrSchedulerKind::Wsd => "learning rate is constant, then falls linearly",
            };
            parts.push(match schedule.warmup_steps {
                0 => kind.to_owned(),
                steps => format!("{kind} after a warm-up of {}", counted(steps as usize, "step")),
            });
        }
        parts.join("; ")
    }

    /// Lines about it for the summary.
    pub(crate) fn lines(&self, settings: &Settings, schedule: &LrScheduler) -> Vec<String> {
        let mut lines = vec![self.described(settings, schedule)];
        if !self.groups.is_empty() && !settings.optimizer.groups.is_empty() {
            lines.push("optimizer.groups replace the parameter groups of the program".to_owned());
        }
        if self.optimizer.is_some() {
            let unused = match &*settings.optimizer.unused_beside_own() {
                [] => String::new(),
                names => format!("; it does not use {}", names.join(", ")),
            };
            lines.push(format!("the optimizer is the program's own{unused}"));
        }
        if self.strategy.is_some() {
            lines.push("gradients are reduced by the program's own strategy".to_owned());
        }
        if self.learning_rate.is_some() {
            lines.push("the learning rate follows the program's own function, not [schedule]".to_owned());
        }
        lines
    }

    /// The program's own factor for the peak learning rate after this many steps, if any.
    pub(crate) fn learning_rate_factor(&self, step: u64) -> Option<f64> {
        self.learning_rate.as_ref().map(|factor| factor(step))
    }

    /// Passes the hooks to the engine.
    pub(crate) fn add_hooks_to<I, O, T>(&mut self, engine: &mut Engine<I, O, T>)
    where
        I: Activation + Clone,
        O: Activation,
        T: Clone + 'static,
    {
        self.gradient_hooks.drain(..).for_each(|hook| engine.on_gradient(hook));
    }
}

/// Refuses a program's own strategy that is not in the place of the synchronous one.
fn check_strategy(strategy: &dyn Strategy, settings: &Settings) -> Result<(), SettingError> {
    let (name, every) = (settings.strategy.name, settings.train.sync_every);
    if name != StrategyName::Sync {
        let allowed = "the program has a strategy of its own (`Training::strategy`), which only takes the place of sync";
        return Err(SettingError::new("strategy.name (--strategy)", name, allowed));
    }
    if settings.comm.compression().method != Method::None {
        let allowed = "the program has a strategy of its own (`Training::strategy`), which reduces gradients itself; it must be none";
        return Err(SettingError::new("comm.compress (--compress)", settings.comm.compress, allowed));
    }
    let is_steady = || {
        (1..=2 * every as u64).all(|step| strategy.synchronizes(step) == step.is_multiple_of(every as u64))
    };
    if strategy.period() != every || !is_steady() {
        let allowed = format!(
            "the program's own strategy has a period of {}; it must be the same, and an update must end every step that is a multiple of it",
            strategy.period()
        );
        return Err(SettingError::new("train.sync_every (--sync-every)", every, allowed));
    }
    if strategy.outer_schedule().is_some() || strategy.parameter_servers().is_some() {
        let allowed = "it must have neither workers nor servers: those are of the settings (`strategy.name`)";
        return Err(SettingError::new("Training::strategy", format!("{strategy:?}"), allowed));
    }
    Ok(())
}
