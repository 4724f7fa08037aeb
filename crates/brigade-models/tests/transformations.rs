//! Files whose tensors are not the model's: of other names, transposed, in parts and fused.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use brigade_core::{Block, Chain, NamedTensor};
use brigade_models::gpt::{self, Gelu, GptConfig};
use brigade_models::{
    Stored, StoredParameter, WeightsMapping, WeightsWriter, load_safetensors, save_lazily, save_safetensors,
};
use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor, TensorData};
use half::{bf16, f16};
use proptest::prelude::*;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

const WIDTH: usize = 20;

const SHAPE: GptConfig = GptConfig {
    vocabulary: 31,
    sequence_length: 7,
    width: WIDTH,
    layers: 2,
    heads: 2,
    tied_head: true,
    activation: Gelu::GeluTanh,
};

fn chain(shape: &GptConfig) -> Chain<Tensor<2, Int>, Tensor<2>> {
    shape.chain(1, &Device::default()).unwrap()
}

/// Trained-looking tensors: no two values alike.
fn tensors(chain: &mut Chain<Tensor<2, Int>, Tensor<2>>) -> Vec<NamedTensor> {
    chain.initialize(1).unwrap();
    let mut tensors = chain.tensors().unwrap();
    for (number, tensor) in tensors.iter_mut().enumerate() {
        let shape = tensor.data.shape().to_vec();
        let count = shape.iter().product::<usize>();
        let values: Vec<f32> = (0..count).map(|index| number as f32 + index as f32 / count as f32).collect();
        tensor.data = TensorData::new(values, shape);
    }
    tensors
}

/// Shapes and values of a file's tensors.
fn file(path: &Path) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let bytes = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let floats = |view: &TensorView<'_>| {
        view.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    tensors.iter().map(|(name, view)| (name.to_owned(), (view.shape().to_vec(), floats(&view)))).collect()
}

/// Linear weights `[out, in]`, with queries, keys and values apart.
fn apart() -> WeightsMapping {
    let parts = |kind: &str| {
        ["q", "k", "v"].map(|part| (format!("model.layers.*.self_attn.{part}_proj.{kind}"), WIDTH))
    };
    WeightsMapping::default()
        .rule("embedding.wte", "model.embed_tokens.weight")
        .rule("h.*.attn.c_attn.weight", Stored::concatenated(0, parts("weight")).transposed())
        .rule("h.*.attn.c_attn.bias", Stored::concatenated(0, parts("bias")))
        .rule("h.*.attn.c_proj.weight", Stored::tensor("model.layers.*.self_attn.o_proj.weight").transposed())
        .rule("h.*.mlp.*.weight", Stored::tensor("model.layers.*.mlp.*.weight").transposed())
        .rule("h.*.*.gamma", "model.layers.*.*.weight")
}

/// Both embeddings in one tensor, and both matrices of the feed-forward layer, one of them transposed.
fn fused() -> WeightsMapping {
    let rows = SHAPE.vocabulary + SHAPE.sequence_length;
    WeightsMapping::default()
        .rule("embedding.wte", Stored::tensor("embeddings").part(0, 0, rows))
        .rule("embedding.wpe", Stored::tensor("embeddings").part(0, SHAPE.vocabulary, rows))
        .rule("h.*.mlp.c_fc.weight", Stored::tensor("h.*.mlp").part(1, 0, 2 * WIDTH).transposed())
        .rule("h.*.mlp.c_proj.weight", Stored::tensor("h.*.mlp").part(1, WIDTH, 2 * WIDTH))
}

#[test]
fn a_gpt_comes_back_from_any_layout() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    let given = tensors(&mut chain(&SHAPE));
    for mapping in [gpt::mapping(), apart(), fused(), WeightsMapping::default()] {
        save_safetensors(&path, &given, &mapping).unwrap();
        let written = std::fs::read(&path).unwrap();
        let mut chain = chain(&SHAPE);
        load_safetensors(&path, &mut chain, &mapping).unwrap();
        chain.initialize(2).unwrap();
        assert_eq!(chain.tensors().unwrap(), given);

        let mut reversed = given.clone();
        reversed.reverse();
        save_safetensors(&path, &reversed, &mapping).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), written, "the order decides nothing");

        // As a checkpoint describes it.
        let described = |tensor: &NamedTensor| {
            let text = serde_json::to_string(&mapping.stored(&tensor.name)).unwrap();
            let (name, shape) = (tensor.name.clone(), tensor.data.shape().to_vec());
            StoredParameter { name, shape, stored: serde_json::from_str(&text).unwrap() }
        };
        let described: Vec<_> = given.iter().map(described).collect();
        let values = |index: usize| Ok(given[index].data.as_slice::<f32>().unwrap().to_vec());
        save_lazily(&path, true, &described, values).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), written);
    }
}

#[test]
fn tensors_are_where_other_programs_look_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    let given = tensors(&mut chain(&SHAPE));
    let values = |name: &str| {
        let tensor = given.iter().find(|tensor| tensor.name == name).unwrap();
        tensor.data.as_slice::<f32>().unwrap()
    };
    save_safetensors(&path, &given, &apart()).unwrap();
    let written = file(&path);
    let attention = values("h.1.attn.c_attn.weight");
    for (part, name) in ["q", "k", "v"].iter().enumerate() {
        let (shape, found) = &written[&format!("model.layers.1.self_attn.{name}_proj.weight")];
        assert_eq!(shape, &[WIDTH, WIDTH]);
        for output in 0..WIDTH {
            for input in 0..WIDTH {
                let expected = attention[input * 3 * WIDTH + part * WIDTH + output];
                assert_eq!(found[output * WIDTH + input].to_bits(), expected.to_bits());
            }
        }
        let (_, bias) = &written[&format!("model.layers.1.self_attn.{name}_proj.bias")];
        assert_eq!(bias, &values("h.1.attn.c_attn.bias")[part * WIDTH..(part + 1) * WIDTH]);
    }
    assert_eq!(written["model.layers.0.mlp.c_fc.weight"].0, [4 * WIDTH, WIDTH]);
    assert_eq!(written["model.layers.0.ln_2.weight"].1, values("h.0.ln_2.gamma"));

    save_safetensors(&path, &given, &fused()).unwrap();
    let written = file(&path);
    let (shape, found) = &written["embeddings"];
    assert_eq!(shape, &[SHAPE.vocabulary + SHAPE.sequence_length, WIDTH]);
    assert_eq!(found, &[values("embedding.wte"), values("embedding.wpe")].concat());
    let (shape, found) = &written["h.0.mlp"];
    assert_eq!(shape, &[4 * WIDTH, 2 * WIDTH]);
    for (row, found) in found.chunks(2 * WIDTH).enumerate() {
        let fc: Vec<f32> = (0..WIDTH).map(|i| values("h.0.mlp.c_fc.weight")[i * 4 * WIDTH + row]).collect();
        let proj = &values("h.0.mlp.c_proj.weight")[row * WIDTH..(row + 1) * WIDTH];
        assert_eq!(found, [&fc, proj].concat());
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    let given = tensors(&mut chain(&SHAPE));
    let load = |mapping: &WeightsMapping| {
        load_safetensors(&path, &mut chain(&SHAPE), mapping).unwrap_err().to_string()
    };
    let contains = |error: &str, parts: &[&str]| {
        for part in parts {
            assert!(error.contains(part), "{error}");
        }
    };
    save_safetensors(&path, &given, &fused()).unwrap();
    let positions = Stored::tensor("embeddings").part(0, 31, 38);
    contains(
        &load(&apart().rule("embedding.wpe", positions)),
        &["has no tensor `model.embed_tokens.weight`"],
    );
    let positions = |stored: Stored| WeightsMapping::default().rule("embedding.wpe", stored);
    contains(
        &load(&positions("embeddings".into())),
        &["tensor `embeddings` is F32 [38, 20], the model needs F32, F16 or BF16 [7, 20]"],
    );
    contains(
        &load(&positions(Stored::tensor("embeddings").part(0, 30, 37))),
        &[
            "`embeddings` is F32 [38, 20], the model needs F32, F16 or BF16 [37, 20] for its parameter `embedding.wpe` [7, 20]",
            "stored as elements from 30 on of the 37 along dimension 0 of `embeddings`",
        ],
    );

    let save = |mapping: &WeightsMapping| save_safetensors(&path, &given, mapping).unwrap_err().to_string();
    for (stored, message) in [
        (
            Stored::concatenated(1, [("a", 8), ("b", 11)]),
            "the parameter `embedding.wpe` [7, 20] cannot be stored as a concatenation along dimension 1 of (8 of `a`, 11 of `b`): the parts have 19 elements along dimension 1, not 20",
        ),
        (Stored::concatenated(2, [("a", 20)]), "[7, 20] has no dimension 2"),
        (Stored::tensor("a").part(0, 4, 10), "7 elements from 4 on are beyond 10"),
        (Stored::tensor("a").part(0, usize::MAX, usize::MAX), "are beyond"),
        (
            Stored::tensor("a").part(0, 4, 12),
            "tensor `a` has 240 values, of which the model's parameters give 140",
        ),
        (Stored::tensor("a").part(1, 0, usize::MAX), "values, of which the model's parameters give 140"),
        (
            Stored::tensor("embedding.wte"),
            "tensor `embedding.wte` is [31, 20] for `embedding.wte`, but [7, 20] for `embedding.wpe`",
        ),
        (
            Stored::tensor("embedding.wte").part(0, 3, 31),
            "tensor `embedding.wte` gets the same values from `embedding.wpe` and from `embedding.wte`",
        ),
    ] {
        contains(&save(&positions(stored.clone())), &[message]);
        let shapes = given.iter().map(|tensor| (tensor.name.clone(), tensor.data.shape().to_vec()));
        let checked = WeightsWriter::check(&path, positions(stored).parameters(shapes)).unwrap_err();
        contains(&checked.to_string(), &[message, path.to_str().unwrap()]);
    }
    let bias = WeightsMapping::default().rule("h.1.mlp.c_fc.bias", Stored::tensor("a").transposed());
    contains(&save(&bias), &["[80] has fewer than two dimensions to transpose"]);
    assert_eq!(file(&path).len(), 3 + 2 * 11, "a file that cannot be written leaves the former");
}

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
            load_safetensors(&path, &mut chain, &mapping).unwrap();
            chain.initialize(0).unwrap();
            prop_assert_eq!(chain.tensors().unwrap(), given.clone());
        }
    }
}
