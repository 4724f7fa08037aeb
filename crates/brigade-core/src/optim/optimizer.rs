//! Burn's optimizers on flat buffers.

use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

use burn::optim::{AdaGrad, Adam, AdamW, Adan, Lion, Optimizer, RmsProp, Sgd};
use burn::tensor::{Device, Tensor};

use crate::error::Result;
use crate::optim::optimizer_state::{FlatState, SavedState, SegmentState, SegmentStates, flattened};
use crate::optim::tile::tile;
use crate::sharding::layout::{FlatLayout, Segment};

/// An optimizer that treats every element in the same way, independently of the others, so that a flat buffer or any part of it
/// gives the same numbers as the parameters one by one.
///
/// Not implemented for Muon (works on matrices), LAMB and Adafactor (need statistics of each parameter): on a flat buffer these
/// would give other numbers than on the parameters.
pub trait Elementwise: Optimizer {}

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
pub struct OptimizerFactory(Arc<Build>);

type Build = dyn Fn(&FlatLayout, Range<usize>, &Device) -> Box<dyn FlatOptimizer> + Send + Sync;

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
        Self(Arc::new(move |layout, part, device| {
            let segments = layout.segments(part.clone(), tile(device));
            let states = segments.iter().map(|_| None).collect();
            let (decayed, plain) = (decayed.clone(), plain.clone());
            Box::new(Segmented { decayed, plain, part, segments, states, size: OnceCell::new() })
        }))
    }

    /// The optimizer, on a device, of a part of a flat buffer: all of it, or a shard, which may reach into the padding.
    pub fn build(&self, layout: &FlatLayout, part: Range<usize>, device: &Device) -> Box<dyn FlatOptimizer> {
        (self.0)(layout, part, device)
    }
}

struct Segmented<O: Optimizer> {
    decayed: O,
    plain: O,
    part: Range<usize>,
    segments: Vec<Segment>,
    states: Vec<Option<O::State<1>>>,
    /// The bytes of the arrays of so many elements, once they exist.
    size: OnceCell<(usize, usize)>,
}

impl<O: Optimizer> Segmented<O> {
    /// The bytes of the arrays of `elements`. Counting copies the arrays of one segment, so it is done only once.
    fn bytes_of(&self, elements: usize) -> u64 {
        // All segments have the same tensors per element, so counting those of one small segment is enough.
        let counted = || {
            let states =
                self.segments.iter().zip(&self.states).filter_map(|(s, state)| Some((s, state.as_ref()?)));
            let (smallest, state) = states.min_by_key(|(segment, _)| segment.range.len())?;
            let bytes = flattened(state).tensors.iter().map(|(_, data)| data.as_bytes().len()).sum();
            Some((bytes, smallest.range.len()))
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
        let mut pieces = Vec::with_capacity(self.segments.len() + 1);
        for (segment, state) in self.segments.iter().zip(&mut self.states) {
            let optimizer = if segment.decay { &self.decayed } else { &self.plain };
            let range = segment.range.start - start..segment.range.end - start;
            let piece = values.clone().slice(range.clone());
            let mut slope = gradient.clone().slice(range);
            if let Some(scale) = scale {
                slope = slope.mul_scalar(scale);
            }
            let (piece, next) = optimizer.step(learning_rate, piece, slope, state.take());
            *state = next;
            pieces.push(piece);
        }
        let Some(last) = self.segments.last() else { return values };
        let stepped = last.range.end - start;
        if stepped < self.part.len() {
            pieces.push(values.slice(stepped..self.part.len()));
        }
        Tensor::cat(pieces, 0)
    }

    fn state_bytes(&self) -> u64 {
        self.bytes_of(self.segments.iter().map(|segment| segment.range.len()).sum())
    }

    fn state(&self, range: Range<usize>) -> Box<dyn FlatState> {
        let overlap = |segment: &Segment| {
            segment.range.start.max(range.start)..segment.range.end.min(range.end).max(segment.range.start)
        };
        let segments = self.segments.iter().zip(&self.states).filter_map(|(segment, state)| {
            let part = overlap(segment);
            let state = state.clone()?;
            (!part.is_empty()).then(|| SegmentState {
                part: part.start - segment.range.start..part.end - segment.range.start,
                state,
            })
        });
        let segments: Vec<_> = segments.collect();
        let bytes = self.bytes_of(segments.iter().map(|segment| segment.part.len()).sum());
        Box::new(SegmentStates { segments, bytes })
    }

    fn restore(&mut self, saved: &SavedState, device: &Device) -> Result<()> {
        let start = self.part.start;
        for (segment, state) in self.segments.iter().zip(&mut self.states) {
            let part = segment.range.start - start..segment.range.end - start;
            *state = saved.segment::<O::State<1>>(part, device)?;
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
        let lion = |decay| LionConfig::new().with_weight_decay(decay).build();
        flat_equals_parameters(lion(0.1), lion(0.0));
        let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_dampening(0.0))).build();
        flat_equals_parameters(sgd.clone(), sgd);
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
