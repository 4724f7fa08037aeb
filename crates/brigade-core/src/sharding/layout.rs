//! Where each parameter of a block is in the block's flat buffer.

use std::ops::Range;

use brigade_plan::CHUNK;
use brigade_sorted::SortedMap;
use burn::tensor::{DType, Device, Tensor};

/// One parameter in a flat buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatParam {
    /// Path inside the block, such as `attention.qkv.weight`.
    pub path: String,
    /// Shape of the parameter.
    pub shape: Vec<usize>,
    /// The range of its elements in the flat buffer.
    pub range: Range<usize>,
    /// Whether weight decay applies: not to biases and norms, that is, parameters of rank below 2.
    pub decay: bool,
    /// The [group](crate::ParameterGroup) that it belongs to, by its number.
    pub group: Option<usize>,
}

/// A range of a flat buffer whose elements the optimizer treats the same way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    pub range: Range<usize>,
    pub decay: bool,
    pub group: Option<usize>,
}

/// The layout of a unit's flat buffer: its parameters in path order, without gaps.
///
/// ```
/// use brigade_core::FlatLayout;
/// let layout = FlatLayout::new([("bias".to_string(), vec![3]), ("weight".to_string(), vec![2, 3])]);
/// assert_eq!(layout.len(), 9);
/// assert_eq!(layout.params()[1].range, 3..9);
/// assert_eq!(layout.shard(1, 2), 256..512);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatLayout {
    params: Vec<FlatParam>,
    len: usize,
    /// What multiplies the learning rate of all of them, as the bits of a number.
    learning_rate_factor: u64,
}

impl FlatLayout {
    /// Lays out parameters, given as paths and shapes, in path order.
    pub fn new(params: impl IntoIterator<Item = (String, Vec<usize>)>) -> Self {
        let mut end = 0;
        let params = params.into_iter().collect::<SortedMap<_, _>>().into_iter();
        let params = params
            .map(|(path, shape)| {
                let start = end;
                end += shape.iter().product::<usize>();
                FlatParam { path, decay: shape.len() >= 2, shape, range: start..end, group: None }
            })
            .collect();
        Self { params, len: end, learning_rate_factor: 1.0f64.to_bits() }
    }

    /// What multiplies the learning rate of all parameters, beside the factors of their groups.
    pub fn learning_rate_factor(&self) -> f64 {
        f64::from_bits(self.learning_rate_factor)
    }

    /// Sets what multiplies the learning rate.
    pub(crate) fn set_learning_rate_factor(&mut self, factor: f64) {
        self.learning_rate_factor = factor.to_bits();
    }

    /// Says which group each parameter belongs to, by its path.
    pub(crate) fn set_groups(&mut self, group: impl Fn(&str) -> Option<usize>) {
        self.params.iter_mut().for_each(|param| param.group = group(&param.path));
    }

    /// Number of elements, without padding.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the unit has no parameter.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The parameter that an element is part of.
    pub(crate) fn path_of(&self, element: usize) -> &str {
        self.params.iter().find(|param| param.range.contains(&element)).map_or("", |param| &param.path)
    }

    /// The parameters, in path order.
    pub fn params(&self) -> &[FlatParam] {
        &self.params
    }

    /// The parameter of this path.
    pub fn param(&self, path: &str) -> Option<&FlatParam> {
        self.params.iter().find(|param| param.path == path)
    }

    /// Number of elements padded so that `shards` equal shards are whole chunks.
    pub fn padded_len(&self, shards: usize) -> usize {
        self.len.next_multiple_of(CHUNK * shards.max(1))
    }

    /// The elements of the padded buffer that shard `index` of `shards` owns.
    pub fn shard(&self, index: usize, shards: usize) -> Range<usize> {
        let each = self.padded_len(shards) / shards.max(1);
        index * each..(index + 1) * each
    }

    /// Concatenates one-dimensional tensors, one per path, to a flat buffer, and pads it with zeros to `length` elements. A missing path
    /// (a parameter that did not contribute to the loss) becomes zeros.
    pub fn pack(
        &self,
        mut tensors: SortedMap<String, Tensor<1>>,
        length: usize,
        device: &Device,
    ) -> Tensor<1> {
        let dtype = tensors.values().next().map_or(DType::F32, Tensor::dtype);
        let zeros = |count: usize| Tensor::zeros([count], (device, dtype));
        let mut pieces: Vec<_> = self
            .params
            .iter()
            .map(|p| tensors.remove(&p.path).unwrap_or_else(|| zeros(p.range.len())))
            .collect();
        if length > self.len || pieces.is_empty() {
            pieces.push(zeros(length.saturating_sub(self.len)));
        }
        Tensor::cat(pieces, 0)
    }

    /// The view of one parameter in a flat buffer, as a one-dimensional tensor.
    pub fn view(&self, flat: &Tensor<1>, param: &FlatParam) -> Tensor<1> {
        flat.clone().slice(param.range.clone())
    }

    /// The segments that cover the parameters within `part` of the buffer in order, none longer than `longest`.
    pub(crate) fn segments(&self, part: Range<usize>, longest: usize) -> Vec<Segment> {
        let mut runs: Vec<Segment> = Vec::new();
        for param in &self.params {
            let range = param.range.start.max(part.start)..param.range.end.min(part.end);
            match runs.last_mut() {
                _ if range.is_empty() => {}
                Some(run) if (run.decay, run.group) == (param.decay, param.group) => {
                    run.range.end = range.end
                }
                _ => runs.push(Segment { range, decay: param.decay, group: param.group }),
            }
        }
        runs.into_iter()
            .flat_map(|Segment { range, decay, group }| {
                let (starts, end) = (range.clone().step_by(longest), range.end);
                starts.map(move |start| Segment { range: start..(start + longest).min(end), decay, group })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shapes() -> impl Strategy<Value = Vec<Vec<usize>>> {
        prop::collection::vec(prop::collection::vec(1usize..6, 1..4), 1..8)
    }

    fn layout(shapes: &[Vec<usize>]) -> FlatLayout {
        FlatLayout::new(shapes.iter().enumerate().map(|(i, s)| (format!("p{i}"), s.clone())))
    }

    proptest! {
        #[test]
        fn unpacking_gives_back_what_was_packed(shapes in shapes()) {
            let layout = layout(&shapes);
            let device = Device::default();
            let given: SortedMap<String, Vec<f32>> = layout.params().iter()
                .map(|p| (p.path.clone(), p.range.clone().map(|i| i as f32 * 0.5 - 3.0).collect()))
                .collect();
            let tensors = given.iter().map(|(k, v)| (k.clone(), Tensor::from_floats(v.as_slice(), &device))).collect();
            let flat = layout.pack(tensors, layout.len() + 5, &device);
            prop_assert_eq!(flat.dims(), [layout.len() + 5]);
            for param in layout.params() {
                let back: Vec<f32> = layout.view(&flat, param).try_into_vec_as().unwrap();
                prop_assert_eq!(&back, &given[&param.path]);
            }
        }

        #[test]
        fn segments_cover_once_and_keep_decay_and_groups(
            shapes in shapes(), grouped in any::<u8>(), longest in 1usize..40, cut in any::<prop::sample::Index>(),
        ) {
            let mut layout = layout(&shapes);
            let group = |path: &str| path[1..].parse::<usize>().ok().filter(|i| grouped >> i & 1 == 1).map(|i| i / 2);
            layout.set_groups(group);
            let mut next = 0;
            let cut = cut.index(layout.len() + 1);
            let segments = [0..cut, cut..layout.len() + 9].map(|part| layout.segments(part, longest));
            for segment in segments.into_iter().flatten() {
                prop_assert_eq!(segment.range.start, next);
                prop_assert!(segment.range.len() <= longest && !segment.range.is_empty());
                for i in segment.range.clone() {
                    let owner = layout.params().iter().find(|p| p.range.contains(&i)).unwrap();
                    prop_assert_eq!((owner.decay, owner.group), (segment.decay, segment.group));
                }
                next = segment.range.end;
            }
            prop_assert_eq!(next, layout.len());
        }

        #[test]
        fn shards_are_equal_whole_chunks_and_cover(shapes in shapes(), shards in 1usize..9) {
            let layout = layout(&shapes);
            let mut next = 0;
            for index in 0..shards {
                let shard = layout.shard(index, shards);
                prop_assert_eq!(shard.start, next);
                prop_assert_eq!(shard.len() % CHUNK, 0);
                next = shard.end;
            }
            prop_assert!(next >= layout.len() && next < layout.len() + CHUNK * shards);
        }
    }

    #[test]
    fn paths_decide_the_order() {
        let layout = FlatLayout::new([("b".into(), vec![2]), ("a".into(), vec![2, 2])]);
        assert_eq!(
            layout.params().iter().map(|p| (p.path.as_str(), p.decay)).collect::<Vec<_>>(),
            [("a", true), ("b", false)]
        );
    }
}
