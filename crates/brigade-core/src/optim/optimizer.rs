//! Burn's optimizers on flat buffers.

use std::cell::OnceCell;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use brigade_kernels::StepRun;
use burn::optim::{AdaGrad, Adam, AdamW, Adan, Lion, Optimizer, RmsProp, Sgd};
use burn::tensor::{Device, Tensor};

use crate::error::{Error, Result};
use crate::optim::one_pass::OnePass;
use crate::optim::optimizer_state::{FlatState, SavedState, SegmentState, SegmentStates, array_bytes};
use crate::optim::tile::tile;
use crate::sharding::groups::ParameterGroup;
use crate::sharding::layout::{FlatLayout, Segment};

/// An optimizer that treats every element in the same way, independently of the others, so that a flat buffer or any part of it
/// gives the same numbers as the parameters one by one.
///
/// Burn's elementwise optimizers implement it. Implement it for your own if it is elementwise: its state, arrays over the elements and numbers,
/// is then part of checkpoints, and can be restored on any mesh. Burn's others do not: Muon orthogonalises matrices, LAMB scales by the norms of
/// parameters, Adafactor keeps sums over rows and columns, and L-BFGS needs scalar products over the whole model.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not known to be an elementwise optimizer",
    note = "flat buffers and shards of them have no whole parameters, which Muon, LAMB, Adafactor and L-BFGS need",
    note = "implement `Elementwise` for an optimizer of your own if it treats each element independently of the others"
)]
pub trait Elementwise: Optimizer {
    /// As [`Optimizer::step`] with the gradient times `scale`, if one is given. An optimizer may multiply in its own pass, to the same bits.
    fn step_scaled<const D: usize>(
        &self,
        learning_rate: f64,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        scale: Option<f64>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let gradient = scale.into_iter().fold(gradient, Tensor::mul_scalar);
        self.step(learning_rate, tensor, gradient, state)
    }

    /// The same for a part of flat values and their gradient, whose state is given: `stepped` with the new values of the part in their place. An optimizer may write them there
    /// itself, to the same bits.
    fn step_part(
        &self,
        learning_rate: f64,
        of: [&Tensor<1>; 2],
        part: Range<usize>,
        stepped: Tensor<1>,
        scale: Option<f64>,
        state: Option<Self::State<1>>,
    ) -> (Tensor<1>, Option<Self::State<1>>) {
        let [values, gradient] = of.map(|tensor| tensor.clone().slice(part.clone()));
        let (values, state) = self.step_scaled(learning_rate, values, gradient, scale, state);
        (stepped.slice_assign([part], values), state)
    }

    /// Whether [`step_runs`](Self::step_runs) takes runs of elements with these optimizers, in fp32 on this device.
    fn is_one_pass(_runs: &[&Self], _device: &Device) -> bool {
        false
    }

    /// One pass over flat values and their gradient whose runs of elements have optimizers and learning rates of their own; the state is of all elements. None if it
    /// [is not](Self::is_one_pass).
    fn step_runs(
        _runs: &[StepRun<'_, Self>],
        _of: [&Tensor<1>; 2],
        _scale: Option<f64>,
        _state: Option<Self::State<1>>,
    ) -> Option<(Tensor<1>, Self::State<1>)> {
        None
    }
}

macro_rules! scales_in_its_pass {
    ($($optimizer:ty),+) => {$(
        impl Elementwise for $optimizer {
            fn step_scaled<const D: usize>(
                &self,
                learning_rate: f64,
                tensor: Tensor<D>,
                gradient: Tensor<D>,
                scale: Option<f64>,
                state: Option<Self::State<D>>,
            ) -> (Tensor<D>, Option<Self::State<D>>) {
                brigade_kernels::ScaledStep::step_scaled(self, learning_rate, tensor, gradient, scale, state)
            }

            fn step_part(
                &self,
                learning_rate: f64,
                of: [&Tensor<1>; 2],
                part: Range<usize>,
                stepped: Tensor<1>,
                scale: Option<f64>,
                state: Option<Self::State<1>>,
            ) -> (Tensor<1>, Option<Self::State<1>>) {
                brigade_kernels::ScaledStep::step_part(self, learning_rate, of, part, stepped, scale, state)
            }

            fn is_one_pass(runs: &[&Self], device: &Device) -> bool {
                <Self as brigade_kernels::ScaledStep>::is_one_pass(runs, device)
            }

            fn step_runs(
                runs: &[StepRun<'_, Self>],
                of: [&Tensor<1>; 2],
                scale: Option<f64>,
                state: Option<Self::State<1>>,
            ) -> Option<(Tensor<1>, Self::State<1>)> {
                <Self as brigade_kernels::ScaledStep>::step_runs(runs, of, scale, state)
            }
        }
    )+};
}

scales_in_its_pass!(brigade_kernels::AdamW, brigade_kernels::Lion, brigade_kernels::Sgd);

impl Elementwise for AdaGrad {}
impl Elementwise for Adam {}
impl Elementwise for AdamW {}
impl Elementwise for Adan {}
impl Elementwise for Lion {}
impl Elementwise for RmsProp {}
impl Elementwise for Sgd {}

/// An optimizer with its state for one part of a flat buffer.
pub trait FlatOptimizer: Send {
    /// The part's new values. `scale` multiplies the gradient first (clipping).
    fn step(
        &mut self,
        learning_rate: f64,
        values: Tensor<1>,
        gradient: Tensor<1>,
        scale: Option<f64>,
    ) -> Tensor<1>;

    /// Bytes of the current state.
    fn state_bytes(&self) -> u64;

    /// The current state of the elements of the buffer in `range`. It copies no array (except one segment's, once, to learn the
    /// sizes), and does not change when the optimizer continues.
    fn state(&self, range: Range<usize>) -> Box<dyn FlatState>;

    /// Continues from a saved state, which has the elements of this optimizer's part without padding.
    ///
    /// # Errors
    /// If the state belongs to another kind of optimizer.
    fn restore(&mut self, saved: &SavedState, device: &Device) -> Result<()>;
}

/// Makes the optimizer of each unit.
#[derive(Clone)]
pub struct OptimizerFactory {
    build: Arc<Build>,
    /// Whether its weight decay can be changed.
    takes_decay: bool,
    groups: Vec<Treatment>,
}

type Build = dyn Fn(&FlatLayout, Range<usize>, &Device, &[Treatment]) -> Box<dyn FlatOptimizer> + Send + Sync;

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
struct Treatment {
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
        let build = move |layout: &FlatLayout, part: Range<usize>, device: &Device, groups: &[Treatment]| {
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
            Box::new(Segmented { part, pieces, size: OnceCell::new() }) as Box<dyn FlatOptimizer>
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
        let treatment = |group: &ParameterGroup| Treatment {
            learning_rate_factor: group.learning_rate_factor,
            weight_decay: group.weight_decay,
        };
        Ok(Self { groups: groups.iter().map(treatment).collect(), ..self.clone() })
    }

    /// The optimizer, on a device, of a part of a flat buffer: all of it, or a shard, which may reach into the padding.
    pub fn build(&self, layout: &FlatLayout, part: Range<usize>, device: &Device) -> Box<dyn FlatOptimizer> {
        (self.build)(layout, part, device, &self.groups)
    }
}

struct Segmented<O: Optimizer> {
    part: Range<usize>,
    pieces: Vec<Piece<O>>,
    /// The bytes of the arrays of this many elements, once they exist.
    size: OnceCell<(usize, usize)>,
}

/// Elements that are stepped at once.
pub(super) struct Piece<O: Optimizer> {
    pub range: Range<usize>,
    pub optimizer: O,
    pub learning_rate_factor: f64,
    pub state: Option<O::State<1>>,
}

impl<O: Optimizer> Segmented<O> {
    /// The bytes of the arrays of `elements`. Counting copies the arrays of one piece, so it is done only once.
    fn bytes_of(&self, elements: usize) -> u64 {
        // All pieces have the same tensors per element, so counting those of one small piece is enough.
        let counted = || {
            let states =
                self.pieces.iter().filter_map(|piece| Some((piece.range.len(), piece.state.as_ref()?)));
            let (smallest, state) = states.min_by_key(|(elements, _)| *elements)?;
            Some((array_bytes(state), smallest))
        };
        let Some((bytes, counted)) = self.size.get().copied().or_else(counted) else { return 0 };
        let (bytes, counted) = *self.size.get_or_init(|| (bytes, counted));
        (bytes as u128 * elements as u128 / counted as u128) as u64
    }
}

impl<O: Elementwise> FlatOptimizer for Segmented<O> {
    fn step(
        &mut self,
        learning_rate: f64,
        values: Tensor<1>,
        gradient: Tensor<1>,
        scale: Option<f64>,
    ) -> Tensor<1> {
        let start = self.part.start;
        // No more than one piece of the new values is in memory beside them.
        let mut stepped = Tensor::empty([self.part.len()], (&values.device(), values.dtype()));
        for Piece { range, optimizer, learning_rate_factor, state } in &mut self.pieces {
            let range = range.start - start..range.end - start;
            let learning_rate = learning_rate * *learning_rate_factor;
            let of = [&values, &gradient];
            (stepped, *state) = optimizer.step_part(learning_rate, of, range, stepped, scale, state.take());
        }
        let Some(last) = self.pieces.last() else { return values };
        let rest = last.range.end - start..self.part.len();
        if rest.is_empty() { stepped } else { stepped.slice_assign([rest.clone()], values.slice(rest)) }
    }

    fn state_bytes(&self) -> u64 {
        self.bytes_of(self.pieces.iter().map(|piece| piece.range.len()).sum())
    }

    fn state(&self, range: Range<usize>) -> Box<dyn FlatState> {
        let segments = self.pieces.iter().filter_map(|Piece { range: own, state, .. }| {
            let part = own.start.max(range.start)..own.end.min(range.end).max(own.start);
            let state = Box::new(state.clone()?);
            (!part.is_empty())
                .then(|| SegmentState { part: part.start - own.start..part.end - own.start, state })
        });
        let segments: Vec<_> = segments.collect();
        let bytes = self.bytes_of(segments.iter().map(|segment| segment.part.len()).sum());
        Box::new(SegmentStates { segments, bytes })
    }

    fn restore(&mut self, saved: &SavedState, device: &Device) -> Result<()> {
        let start = self.part.start;
        for Piece { range, state, .. } in &mut self.pieces {
            *state = saved.segment::<O::State<1>>(range.start - start..range.end - start, device)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::optim::{AdamWConfig, LionConfig, SgdConfig, momentum::MomentumConfig};
    use burn::optim::{RecordState, StateSink, StateSource};
    use burn::tensor::Device;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Steps one flat buffer three times, and its parameters one by one, and compares bits.
    fn flat_equals_parameters<O: Elementwise>(decayed: O, plain: O) {
        let device = Device::default();
        let layout = FlatLayout::new([
            ("a.weight".into(), vec![70, 600]),
            ("b.bias".into(), vec![33]),
            ("c.weight".into(), vec![5, 7]),
        ]);
        let values = |n: usize, salt: usize| -> Tensor<1> {
            let values: Vec<f32> =
                (0..n).map(|i| (((i + salt) * 7919 % 1009) as f32 - 500.0) * 1e-3).collect();
            Tensor::from_floats(values.as_slice(), &device)
        };
        let mut flat = values(layout.len(), 1);
        let mut apart: Vec<Tensor<1>> = layout.params().iter().map(|p| layout.view(&flat, p)).collect();
        let mut states: Vec<Option<O::State<1>>> = layout.params().iter().map(|_| None).collect();
        let mut optimizer =
            OptimizerFactory::new(decayed.clone(), plain.clone()).build(&layout, 0..layout.len(), &device);
        let factory = OptimizerFactory::new(decayed.clone(), plain.clone());
        let mut padded = vec![flat.clone()];
        padded.push(Tensor::zeros([layout.padded_len(3) - layout.len()], &device));
        let mut shards: Vec<_> = (0..3)
            .map(|index| layout.shard(index, 3))
            .map(|part| {
                (Tensor::cat(padded.clone(), 0).slice(part.clone()), factory.build(&layout, part, &device))
            })
            .collect();
        for step in 0..3 {
            let gradient = values(layout.len(), 100 + step);
            flat = optimizer.step(1e-2, flat, gradient.clone(), None);
            let padding = Tensor::zeros([layout.padded_len(3) - layout.len()], &device);
            let padded = Tensor::cat(vec![gradient.clone(), padding], 0);
            for (index, (values, optimizer)) in shards.iter_mut().enumerate() {
                let gradient = padded.clone().slice(layout.shard(index, 3));
                *values = optimizer.step(1e-2, values.clone(), gradient, None);
            }
            for ((param, values), state) in layout.params().iter().zip(&mut apart).zip(&mut states) {
                let optimizer = if param.decay { &decayed } else { &plain };
                let (next, after) =
                    optimizer.step(1e-2, values.clone(), layout.view(&gradient, param), state.take());
                (*values, *state) = (next, after);
            }
        }
        let joined: Vec<f32> = Tensor::cat(apart, 0).try_into_vec_as().unwrap();
        let flat: Vec<f32> = flat.try_into_vec_as().unwrap();
        assert!(flat.iter().zip(&joined).all(|(a, b)| a.to_bits() == b.to_bits()));
        let bytes: u64 = shards.iter().map(|(_, optimizer)| optimizer.state_bytes()).sum();
        assert_eq!(bytes, optimizer.state_bytes());
        let shards: Vec<f32> =
            Tensor::cat(shards.into_iter().map(|(v, _)| v).collect(), 0).try_into_vec_as().unwrap();
        assert!(flat.iter().zip(&shards).all(|(a, b)| a.to_bits() == b.to_bits()));
    }

    #[test]
    fn pieces_give_the_numbers_of_whole_parameters() {
        let adamw = |decay| AdamWConfig::new().with_weight_decay(decay).build();
        flat_equals_parameters(adamw(0.1), adamw(0.0));
        let fused = |weight_decay| {
            let config = brigade_kernels::AdamWConfig {
                beta_1: 0.9,
                beta_2: 0.95,
                epsilon: 1e-8,
                weight_decay,
                cautious_weight_decay: false,
                amsgrad: false,
            };
            config.build()
        };
        flat_equals_parameters(fused(0.1), fused(0.0));
        let lion = |decay| LionConfig::new().with_weight_decay(decay).build();
        flat_equals_parameters(lion(0.1), lion(0.0));
        let lion =
            |weight_decay| brigade_kernels::LionConfig { beta_1: 0.9, beta_2: 0.99, weight_decay }.build();
        flat_equals_parameters(lion(0.1), lion(0.0));
        let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_dampening(0.0))).build();
        flat_equals_parameters(sgd.clone(), sgd);
        let sgd = |weight_decay| {
            let config = brigade_kernels::SgdConfig {
                momentum: Some(0.9),
                dampening: 0.1,
                nesterov: true,
                weight_decay,
            };
            config.build()
        };
        flat_equals_parameters(sgd(Some(0.1)), sgd(None));
    }

    /// Counts how often a state's arrays are copied to the host.
    #[derive(Clone)]
    struct Counted(Arc<AtomicUsize>);

    #[derive(Clone)]
    struct CountedState<const D: usize> {
        values: Tensor<D>,
        copies: Arc<AtomicUsize>,
    }

    impl<const D: usize> RecordState for CountedState<D> {
        fn state_flatten(&self, _: &str, out: &mut StateSink) {
            self.copies.fetch_add(1, Ordering::Relaxed);
            out.tensors.push(("values".into(), self.values.clone().into_data()));
        }

        fn state_unflatten(_: &str, _: &mut StateSource, _: &Device) -> Option<Self> {
            None
        }
    }

    impl Elementwise for Counted {}

    impl Optimizer for Counted {
        type State<const D: usize> = CountedState<D>;

        fn step<const D: usize>(
            &self,
            _: f64,
            tensor: Tensor<D>,
            gradient: Tensor<D>,
            _: Option<CountedState<D>>,
        ) -> (Tensor<D>, Option<CountedState<D>>) {
            (tensor, Some(CountedState { values: gradient, copies: self.0.clone() }))
        }

        fn to_device<const D: usize>(state: CountedState<D>, _: &Device) -> CountedState<D> {
            state
        }
    }

    #[test]
    fn a_moments_state_is_copied_once_and_by_its_reader() {
        let device = Device::flex();
        let layout = FlatLayout::new([("a.weight".into(), vec![3, 4]), ("b.bias".into(), vec![5])]);
        let copies = Arc::new(AtomicUsize::new(0));
        let counted = Counted(copies.clone());
        let mut optimizer =
            OptimizerFactory::new(counted.clone(), counted).build(&layout, 0..layout.len(), &device);
        let segments = layout.segments(0..layout.len(), tile(&device)).len();
        let values = || Tensor::<1>::ones([layout.len()], &device);
        for step in 0..3 {
            optimizer.step(0.1, values(), values(), None);
            let (state, bytes) = (optimizer.state(0..layout.len()), optimizer.state_bytes());
            assert_eq!((state.bytes(), bytes), (4 * layout.len() as u64, 4 * layout.len() as u64));
            // To know the size, one segment's was copied at the first time.
            assert_eq!(copies.load(Ordering::Relaxed), 1 + step * segments);
            let slots = state.read().unwrap().slots;
            assert_eq!(slots["values"], vec![1.0; layout.len()]);
            assert_eq!(copies.load(Ordering::Relaxed), 1 + (step + 1) * segments);
        }
    }
}
