//! An optimizer of a part of a flat buffer that is stepped piece by piece.

use std::cell::OnceCell;
use std::ops::Range;

use brigade_kernels::unwritten;
use burn::optim::Optimizer;
use burn::tensor::{Device, Tensor};

use crate::error::Result;
use crate::optim::optimizer::{Elementwise, FlatOptimizer};
use crate::optim::optimizer_state::{FlatState, SavedState, SegmentState, SegmentStates, array_bytes};

/// A part whose pieces are stepped one after another.
pub(super) struct Segmented<O: Optimizer> {
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
    pub fn new(part: Range<usize>, pieces: Vec<Piece<O>>) -> Self {
        Self { part, pieces, size: OnceCell::new() }
    }

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
        let mut stepped = unwritten(self.part.len(), &values);
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
    use crate::optim::OptimizerFactory;
    use crate::optim::tile::tile;
    use crate::sharding::layout::FlatLayout;
    use burn::optim::{AdamWConfig, LionConfig, SgdConfig, momentum::MomentumConfig};
    use burn::optim::{RecordState, StateSink, StateSource};
    use burn::tensor::Device;
    use std::sync::Arc;
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
