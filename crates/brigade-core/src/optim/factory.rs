//! Makes the optimizer of each part of a flat buffer: in one pass where a kernel can, else piece by piece.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};

use crate::error::{Error, Result};
use crate::optim::one_pass::OnePass;
use crate::optim::optimizer::{Elementwise, FlatOptimizer};
use crate::optim::segmented::{Piece, Segmented};
use crate::optim::tile::tile;
use crate::sharding::groups::ParameterGroup;
use crate::sharding::layout::{FlatLayout, Segment};

/// Makes the optimizer of each unit.
#[derive(Clone)]
pub struct OptimizerFactory {
    build: Arc<Build>,
    /// Whether its weight decay can be changed.
    takes_decay: bool,
    groups: Vec<GroupOptions>,
}

type Build =
    dyn Fn(&FlatLayout, Range<usize>, &Device, &[GroupOptions]) -> Box<dyn FlatOptimizer> + Send + Sync;

impl fmt::Debug for OptimizerFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OptimizerFactory").finish_non_exhaustive()
    }
}

/// The same optimizer for all parameters, including biases and norms, as in plain Burn.
impl<O: Elementwise> From<O> for OptimizerFactory {
    fn from(optimizer: O) -> Self {
        Self::new(optimizer.clone(), optimizer)
    }
}

/// How a group is trained.
#[derive(Clone, Copy)]
struct GroupOptions {
    learning_rate_factor: f64,
    weight_decay: Option<f32>,
}

impl OptimizerFactory {
    /// `decayed` steps parameters of rank two and above, `plain` biases and norms: the same
    /// optimizer, once with and once without weight decay.
    ///
    /// ```
    /// use brigade_core::OptimizerFactory;
    /// use burn::optim::AdamWConfig;
    /// let adamw = AdamWConfig::new().with_epsilon(1e-8);
    /// let optimizer = OptimizerFactory::new(
    ///     adamw.clone().with_weight_decay(0.1).build(),
    ///     adamw.with_weight_decay(0.0).build(),
    /// );
    /// ```
    pub fn new<O: Elementwise>(decayed: O, plain: O) -> Self {
        Self::of(false, move |decays, _| if decays { decayed.clone() } else { plain.clone() })
    }

    /// As [`new`](Self::new), from a function of the weight decay, so that [groups](ParameterGroup) of parameters may have
    /// another one than `weight_decay`. Biases and norms have 0.
    ///
    /// ```
    /// use brigade_core::OptimizerFactory;
    /// use burn::optim::AdamWConfig;
    /// let adamw = AdamWConfig::new().with_epsilon(1e-8);
    /// let optimizer =
    ///     OptimizerFactory::with_weight_decay(0.1, move |decay| adamw.clone().with_weight_decay(decay).build());
    /// ```
    pub fn with_weight_decay<O: Elementwise>(
        weight_decay: f32,
        optimizer: impl Fn(f32) -> O + Send + Sync + 'static,
    ) -> Self {
        Self::of(true, move |decays, own| optimizer(if decays { own.unwrap_or(weight_decay) } else { 0.0 }))
    }

    /// `optimizer` is that of parameters with or without weight decay, and of a group's own.
    fn of<O: Elementwise>(
        takes_decay: bool,
        optimizer: impl Fn(bool, Option<f32>) -> O + Send + Sync + 'static,
    ) -> Self {
        let build =
            move |layout: &FlatLayout, part: Range<usize>, device: &Device, groups: &[GroupOptions]| {
                let of_segment = |segment: Segment| {
                    let group = segment.group.map(|group| groups[group]);
                    Piece {
                        optimizer: optimizer(segment.decay, group.and_then(|group| group.weight_decay)),
                        learning_rate_factor: layout.learning_rate_factor()
                            * group.map_or(1.0, |group| group.learning_rate_factor),
                        range: segment.range,
                        state: None,
                    }
                };
                let pieces =
                    |longest| layout.segments(part.clone(), longest).into_iter().map(of_segment).collect();
                let runs: Vec<_> = pieces(layout.len().max(1));
                if OnePass::takes(&runs, device) {
                    return Box::new(OnePass::new(part, runs)) as Box<dyn FlatOptimizer>;
                }
                let pieces = pieces(tile(device));
                Box::new(Segmented::new(part, pieces)) as Box<dyn FlatOptimizer>
            };
        Self { build: Arc::new(build), takes_decay, groups: Vec::new() }
    }

    /// Bytes of its state for each value of a parameter: found by a step on a few values, on this device.
    pub fn state_bytes_per_value(&self, device: &Device) -> usize {
        const VALUES: usize = 4;
        let layout = FlatLayout::new([("weight".to_owned(), vec![2, VALUES / 2])]);
        let mut optimizer = self.build(&layout, 0..VALUES, device);
        let values = Tensor::zeros([VALUES], device);
        optimizer.step(0.0, values.clone(), values, None);
        optimizer.state_bytes() as usize / VALUES
    }

    /// What three steps on this device make of a few values, with weight decay and without: optimizers that differ in a hyperparameter give others.
    ///
    /// # Errors
    /// If the device cannot be read.
    pub fn trial(&self, device: &Device) -> Result<Vec<f32>> {
        const VALUES: [f32; 4] = [1.0, -0.5, 0.25, -0.125];
        let layout = FlatLayout::new([("weight".to_owned(), vec![2, 1]), ("bias".to_owned(), vec![2])]);
        let mut optimizer = self.build(&layout, 0..VALUES.len(), device);
        let (mut values, gradient) =
            (Tensor::from_floats(VALUES, device), Tensor::from_floats(VALUES, device));
        for step in 1..=3 {
            values = optimizer.step(0.01, values, gradient.clone().div_scalar(step), None);
        }
        values.try_into_vec_as().map_err(|error| Error::Device(error.to_string()))
    }

    /// The same for parameters in these groups.
    ///
    /// # Errors
    /// If a group has a weight decay, and the optimizer's cannot be changed.
    pub(crate) fn with_groups(&self, groups: &[ParameterGroup]) -> Result<Self> {
        let decays = groups.iter().find_map(|group| Some((group.weight_decay?, &group.pattern)));
        if let Some((decay, pattern)) = decays.filter(|_| !self.takes_decay) {
            return Err(Error::Setting {
                option: "optimizer.groups.weight_decay",
                given: decay.to_string(),
                allowed: format!(
                    "this program's optimizer has a fixed weight decay, also for `{pattern}`; make it with `OptimizerFactory::with_weight_decay`"
                ),
            });
        }
        let options = |group: &ParameterGroup| GroupOptions {
            learning_rate_factor: group.learning_rate_factor,
            weight_decay: group.weight_decay,
        };
        Ok(Self { groups: groups.iter().map(options).collect(), ..self.clone() })
    }

    /// The optimizer, on a device, of a part of a flat buffer: all of it, or a shard, which may reach into the padding.
    pub fn build(&self, layout: &FlatLayout, part: Range<usize>, device: &Device) -> Box<dyn FlatOptimizer> {
        (self.build)(layout, part, device, &self.groups)
    }
}
