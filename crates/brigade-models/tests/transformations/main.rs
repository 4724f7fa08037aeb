//! Files whose tensors are not the model's: of other names, transposed, in parts and fused.

#![allow(clippy::unwrap_used)]

mod properties;

use std::collections::BTreeMap;
use std::path::Path;

use brigade_core::{Chain, NamedTensor};
use brigade_models::gpt::{self, Gelu, GptConfig};
use brigade_models::{
    LoadWeights, MappedParameter, Stored, Strict, WeightsFiles, WeightsFormat, WeightsMapping, WeightsWriter,
    save_safetensors,
};
use brigade_models::{Logits, Tokens};
use burn::tensor::{Device, TensorData};
use safetensors::{SafeTensors, tensor::TensorView};

const WIDTH: usize = 20;

const SHAPE: GptConfig = GptConfig {
    vocabulary: 31,
    sequence_length: 7,
    width: WIDTH,
    layers: 2,
    heads: 2,
    tied_head: true,
    activation: Gelu::GeluTanh,
    dropout: 0.0,
    initializer_range: 0.02,
};

fn chain(shape: &GptConfig) -> Chain<Tokens, Logits> {
    shape.chain(1, &Device::default()).unwrap()
}

/// Trained-looking tensors: no two values alike.
fn tensors(chain: &mut Chain<Tokens, Logits>) -> Vec<NamedTensor> {
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
        chain.load_weights(&path, &mapping, Strict::Yes).unwrap();
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
            MappedParameter { name, shape, stored: serde_json::from_str(&text).unwrap() }
        };
        let described: Vec<_> = given.iter().map(described).collect();
        let values = |index: usize| Ok(given[index].data.as_slice::<f32>().unwrap().to_vec());
        WeightsWriter::filled(&path, &described, WeightsFormat::ONE_FILE, values).unwrap().finish().unwrap();
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
        chain(&SHAPE).load_weights(&path, mapping, Strict::Parameters).unwrap_err().to_string()
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
        &["tensor `embeddings` is F32 [38, 20], but the model needs F32, F16 or BF16 [7, 20]"],
    );
    contains(
        &load(&positions(Stored::tensor("embeddings").part(0, 30, 37))),
        &[
            "`embeddings` is F32 [38, 20], but the model needs F32, F16 or BF16 [37, 20] for its parameter `embedding.wpe` [7, 20]",
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
        (Stored::tensor("a").part(0, 4, 10), "7 elements from 4 go beyond 10"),
        (Stored::tensor("a").part(0, usize::MAX, usize::MAX), "go beyond"),
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
            "tensor `embedding.wte` would be filled by both `embedding.wpe` and `embedding.wte`",
        ),
    ] {
        contains(&save(&positions(stored.clone())), &[message]);
        let shapes = given.iter().map(|tensor| (tensor.name.clone(), tensor.data.shape().to_vec()));
        let checked = WeightsFiles::new(&path, positions(stored).parameters(shapes), WeightsFormat::ONE_FILE)
            .unwrap_err();
        contains(&checked.to_string(), &[message, path.to_str().unwrap()]);
    }
    let bias = WeightsMapping::default().rule("h.1.mlp.c_fc.bias", Stored::tensor("a").transposed());
    contains(&save(&bias), &["[80] has fewer than two dimensions to transpose"]);
    assert_eq!(file(&path).len(), 3 + 2 * 11, "a file that cannot be written leaves the former");
}
