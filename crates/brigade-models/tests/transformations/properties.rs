//! Any model and any mapping, against the plain definition of where each element is.

use std::collections::BTreeMap;
use std::path::Path;

use brigade_core::{Block, Chain, NamedTensor};
use brigade_models::{LoadWeights, Stored, Strict, WeightsMapping, save_safetensors};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use half::{bf16, f16};
use proptest::prelude::*;
use safetensors::{Dtype, tensor::TensorView};

use crate::file;

/// A block with one parameter.
macro_rules! block {
    ($name:ident, $rank:literal) => {
        #[derive(Module, Debug)]
        struct $name {
            value: Param<Tensor<$rank>>,
        }

        impl Block for $name {
            type Input = Tensor<1>;
            type Output = Tensor<1>;
            fn forward(&self, input: Tensor<1>) -> Tensor<1> {
                input
            }
        }
    };
}

block!(Line, 1);
block!(Matrix, 2);
block!(Cube, 3);

fn zeros<const D: usize>(shape: &[usize]) -> Param<Tensor<D>> {
    let shape: [usize; D] = shape.try_into().unwrap();
    Param::initialized(burn::module::ParamId::new(), Tensor::zeros(shape, &Device::default()))
}

/// A model whose parameter number i is `p<i>.value`.
fn model(shapes: &[Vec<usize>]) -> Chain<Tensor<1>, Tensor<1>> {
    shapes.iter().enumerate().fold(Chain::new(), |chain, (index, shape)| match shape.len() {
        1 => chain.then(format!("p{index}"), Line { value: zeros(shape) }),
        2 => chain.then(format!("p{index}"), Matrix { value: zeros(shape) }),
        _ => chain.then(format!("p{index}"), Cube { value: zeros(shape) }),
    })
}

/// Choices, one after the other.
struct Choices<'a>(std::iter::Cycle<std::slice::Iter<'a, usize>>);

impl Choices<'_> {
    fn below(&mut self, most: usize) -> usize {
        self.0.next().unwrap() % most
    }

    /// What a tensor of this shape may be made of.
    fn whole(&mut self, shape: &[usize], depth: usize, names: &mut usize) -> Stored {
        let dimension = self.below(shape.len());
        match self.below(3) {
            0 if depth > 0 && shape.len() > 1 => {
                let mut swapped = shape.to_vec();
                swapped.swap(shape.len() - 2, shape.len() - 1);
                self.whole(&swapped, depth - 1, names).transposed()
            }
            1 if depth > 0 && shape[dimension] > 1 => {
                let first = 1 + self.below(shape[dimension] - 1);
                let part = |choices: &mut Self, size: usize, names: &mut usize| {
                    let mut shape = shape.to_vec();
                    shape[dimension] = size;
                    (choices.whole(&shape, depth - 1, names), size)
                };
                let parts = [part(self, first, names), part(self, shape[dimension] - first, names)];
                Stored::concatenated(dimension, parts)
            }
            _ => {
                *names += 1;
                Stored::tensor(format!("t{names}"))
            }
        }
    }

    /// Parameters that make up a tensor together.
    fn split(&mut self, shape: &[usize], stored: Stored, depth: usize) -> Vec<(Vec<usize>, Stored)> {
        let dimension = self.below(shape.len());
        let mut other = shape.to_vec();
        match self.below(3) {
            0 if depth > 0 && shape.len() > 1 => {
                other.swap(shape.len() - 2, shape.len() - 1);
                self.split(&other, stored.transposed(), depth - 1)
            }
            1 if depth > 0 && shape[dimension] > 1 => {
                let (all, first) = (shape[dimension], 1 + self.below(shape[dimension] - 1));
                let mut parts = Vec::new();
                for (start, size) in [(0, first), (first, all - first)] {
                    other[dimension] = size;
                    parts.extend(self.split(&other, stored.clone().part(dimension, start, all), depth - 1));
                }
                parts
            }
            _ => vec![(other, stored)],
        }
    }
}

/// The tensor and the element of it that an element of a parameter is: the plain definition.
fn element(stored: &Stored, mut index: Vec<usize>) -> (String, Vec<usize>) {
    let rank = index.len();
    match stored {
        Stored::Tensor(name) => (name.clone(), index),
        Stored::Transposed { transposed } => {
            index.swap(rank - 2, rank - 1);
            element(transposed, index)
        }
        Stored::Part { part_of, dimension, start, .. } => {
            index[*dimension] += start;
            element(part_of, index)
        }
        Stored::Concatenated { concatenated, dimension } => {
            for (part, size) in concatenated {
                match index[*dimension].checked_sub(*size) {
                    None => return element(part, index),
                    Some(behind) => index[*dimension] = behind,
                }
            }
            panic!("an element behind the last part")
        }
    }
}

fn place(index: &[usize], shape: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |place, (index, size)| place * size + index)
}

fn index_of(mut place: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for dimension in (0..shape.len()).rev() {
        index[dimension] = place % shape[dimension];
        place /= shape[dimension];
    }
    index
}

/// The same file in 16 bits.
fn rounded(from: &BTreeMap<String, (Vec<usize>, Vec<f32>)>, dtype: Dtype, to: &Path) {
    let bytes = |value: &f32| match dtype {
        Dtype::F16 => f16::from_f32(*value).to_le_bytes(),
        _ => bf16::from_f32(*value).to_le_bytes(),
    };
    let data: Vec<(&String, &Vec<usize>, Vec<u8>)> = from
        .iter()
        .map(|(name, (shape, values))| (name, shape, values.iter().flat_map(bytes).collect()))
        .collect();
    let views = data
        .iter()
        .map(|(name, shape, data)| (name.as_str(), TensorView::new(dtype, (*shape).clone(), data).unwrap()));
    std::fs::write(to, safetensors::serialize(views, None).unwrap()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_element_is_where_the_definition_says_and_comes_back(
        shapes in prop::collection::vec(prop::collection::vec(1usize..40, 1..4), 1..4),
        choices in prop::collection::vec(any::<usize>(), 1..40),
    ) {
        let mut choices = Choices(choices.iter().cycle());
        let (mut parameters, mut names) = (Vec::new(), 0);
        for shape in &shapes {
            // At most 8000 values.
            let shape: Vec<usize> = shape.iter().map(|size| if shape.len() > 2 { size.div_ceil(2) } else { *size }).collect();
            let whole = choices.whole(&shape, 3, &mut names);
            parameters.extend(choices.split(&shape, whole, 3));
        }
        let mapping = parameters.iter().enumerate().fold(WeightsMapping::default(), |mapping, (index, (_, stored))| {
            mapping.rule(format!("p{index}.*"), stored.clone())
        });
        // Exact in 16 bits.
        let value = |parameter: usize, place: usize| ((31 * parameter + place) % 251) as f32;
        let tensor = |(index, (shape, _)): (usize, &(Vec<usize>, Stored))| {
            let values: Vec<f32> = (0..shape.iter().product()).map(|place| value(index, place)).collect();
            NamedTensor { name: format!("p{index}.value"), data: TensorData::new(values, shape.clone()) }
        };
        let given: Vec<NamedTensor> = parameters.iter().enumerate().map(tensor).collect();

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w");
        save_safetensors(&path, &given, &mapping).unwrap();
        let written = file(&path);
        let count = |shapes: &mut dyn Iterator<Item = &Vec<usize>>| shapes.map(|shape| shape.iter().product::<usize>()).sum::<usize>();
        prop_assert_eq!(
            count(&mut written.values().map(|(shape, _)| shape)),
            count(&mut parameters.iter().map(|(shape, _)| shape))
        );
        for (number, (shape, stored)) in parameters.iter().enumerate() {
            for at in 0..shape.iter().product() {
                let (name, index) = element(stored, index_of(at, shape));
                let (shape, values) = &written[&name];
                prop_assert_eq!(values[place(&index, shape)], value(number, at));
            }
        }

        let shapes: Vec<Vec<usize>> = parameters.iter().map(|(shape, _)| shape.clone()).collect();
        for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
            if dtype != Dtype::F32 {
                rounded(&written, dtype, &path);
            }
            let mut chain = model(&shapes);
            chain.load_weights(&path, &mapping, Strict::Yes).unwrap();
            chain.initialize(0).unwrap();
            prop_assert_eq!(chain.tensors().unwrap(), given.clone());
        }
    }
}
