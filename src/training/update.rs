//! What a program brings of its own to updates: an optimizer, groups of parameters, a learning rate, gradient hooks.

use brigade_core::{Activation, Engine, OptimizerFactory, UnitGradient};
use burn::tensor::Tensor;

use super::Training;
use crate::settings::{OptimizerGroup, RunPlan, SettingError, Settings};

type GradientHook = Box<dyn Fn(&UnitGradient<'_>, Tensor<1>) -> Tensor<1> + Send + Sync>;

/// A program's own parts of updates.
#[derive(Default)]
pub(crate) struct OwnUpdate {
    optimizer: Option<OptimizerFactory>,
    groups: Vec<OptimizerGroup>,
    learning_rate: Option<Box<dyn Fn(u64) -> f64>>,
    gradient_hooks: Vec<GradientHook>,
}

impl<I: Activation, O: Activation, T: 'static> Training<I, O, T> {
    /// Trains with this optimizer instead of the one in the settings: any of Burn's elementwise ones, or your own
    /// ([`Elementwise`](crate::core::Elementwise)). Its state is part of checkpoints, and can be restored on any mesh. The learning rate is
    /// that of the settings.
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
    /// gradient for the optimizer. Every rank calls it, for the elements that it owns: [`Engine::on_gradient`] says what it may do.
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
}

impl OwnUpdate {
    /// The plan of a run, with the program's own optimizer, and with its groups if the settings have none.
    pub(crate) fn plan(&self, plan: &RunPlan, settings: &Settings) -> Result<RunPlan, SettingError> {
        let mut plan = plan.clone();
        if settings.optimizer.groups.is_empty() {
            plan.engine.groups = settings.parameter_groups(&self.groups)?;
        }
        plan.optimizer = self.optimizer.clone().unwrap_or(plan.optimizer);
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
        Ok(plan)
    }

    /// Lines about it for the summary.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.optimizer.is_some() {
            lines.push("the optimizer is the program's own; optimizer.name is ignored".to_owned());
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
        T: Clone,
    {
        self.gradient_hooks.drain(..).for_each(|hook| engine.on_gradient(hook));
    }
}
