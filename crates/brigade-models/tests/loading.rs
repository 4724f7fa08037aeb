//! Loading weights from one file, several with an index, a folder, and a record of Burn; and what names and shapes are refused.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use brigade_core::{Block, Chain, Dtype, Model, NamedTensor};
use brigade_models::{LoadReport, LoadWeights, Stored, Strict, WeightsMapping, save_safetensors};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
}

impl Block for Layer {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.linear.forward(x)
    }
}

type Layers = Chain<Tensor<2>, Tensor<2>>;

fn layer(inputs: usize, outputs: usize) -> Layer {
    Layer { linear: LinearConfig::new(inputs, outputs).init(&Device::default()) }
}

/// Two layers and a head.
fn chain(head: usize) -> Layers {
    Chain::new().then("hidden.0", layer(4, 3)).then("hidden.1", layer(3, 3)).then("head", layer(3, head))
}

fn tensors(mut chain: Layers, seed: u64) -> Vec<NamedTensor> {
    chain.initialize(seed).unwrap();
    chain.tensors().unwrap()
}

fn plain() -> WeightsMapping {
    WeightsMapping::default()
}

/// Writes the values of [`chain`] for seed 1, and gives them.
fn written(path: &Path) -> Vec<NamedTensor> {
    let values = tensors(chain(2), 1);
    save_safetensors(path, &values, &plain()).unwrap();
    values
}

/// Writes the values to two files with an index in a folder, as Hugging Face does.
fn sharded(folder: &Path) -> Vec<NamedTensor> {
    let values = tensors(chain(2), 1);
    let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let mut index = BTreeMap::new();
    for (part, name) in names.into_iter().enumerate() {
        let own: Vec<_> = values.iter().skip(part).step_by(2).cloned().collect();
        save_safetensors(&folder.join(name), &own, &plain()).unwrap();
        index.extend(own.into_iter().map(|tensor| (tensor.name, name)));
    }
    let index = serde_json::json!({ "metadata": { "total_size": 1 }, "weight_map": index });
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
    values
}

#[test]
fn values_for_inference_are_in_its_number_type() {
    let folder = tempfile::tempdir().unwrap();
    let values = sharded(folder.path());
    let mut found = chain(2);
    found.load_weights(folder.path(), &plain(), Strict::Parameters).unwrap();
    found.initialize_in(0, Dtype::Bf16).unwrap();
    let found = found.valid();
    let x = Tensor::<2>::from_floats([[1.0, -2.0, 0.5, 3.0]], &Device::default());
    let output = found.predict(x.cast(burn::tensor::DType::BF16)).unwrap();
    assert_eq!(output.dtype(), burn::tensor::DType::BF16);
    for (found, given) in found.tensors().unwrap().iter().zip(&values) {
        let pairs = found.data.as_slice::<f32>().unwrap().iter().zip(given.data.as_slice::<f32>().unwrap());
        assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() <= b.abs() / 256.0), "{}", found.name);
    }
}

#[test]
fn several_files_are_read_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let values = sharded(folder.path());
    for path in [folder.path().to_owned(), folder.path().join("model.safetensors.index.json")] {
        let mut found = chain(2);
        let report = found.load_weights(path, &plain(), Strict::Yes).unwrap();
        assert_eq!(report, LoadReport { loaded: 6, ..LoadReport::default() });
        assert_eq!(tensors(found, 2), values);
    }
    let alone = folder.path().join("model.safetensors");
    let values = {
        let values = tensors(chain(2), 7);
        save_safetensors(&alone, &values, &plain()).unwrap();
        values
    };
    let mut found = chain(2);
    found.load_weights(folder.path(), &plain(), Strict::Yes).unwrap();
    assert_eq!(tensors(found, 2), values, "a folder's one file goes before an index");
}

#[test]
fn an_index_that_leads_elsewhere_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    sharded(folder.path());
    let index = folder.path().join("model.safetensors.index.json");
    let refused = |text: &str| {
        std::fs::write(&index, text).unwrap();
        chain(2).load_weights(folder.path(), &plain(), Strict::Yes).unwrap_err().to_string()
    };
    for (text, said) in [
        (
            r#"{"weight_map":{"a":"../secret"}}"#,
            "tensor `a` is in `../secret`, which is not a file beside the index",
        ),
        (r#"{"weight_map":{"a":""}}"#, "tensor `a` is in ``"),
        (r#"{"weight_map":{"a":"model-00001-of-00002.safetensors"}}"#, "tensor `a` is not in model-00001"),
        (r#"{"weight_map":{"a":"none.safetensors"}}"#, "none.safetensors: "),
        ("{}", "is not an index of safetensors files: missing field `weight_map`"),
    ] {
        let error = refused(text);
        assert!(error.contains(said), "{error}");
    }
}

/// A model as a plain Burn program has it.
#[derive(Module, Debug)]
struct Whole {
    body: Vec<Linear>,
    out: Linear,
}

#[test]
fn a_record_of_burn_is_read_with_a_mapping() {
    let folder = tempfile::tempdir().unwrap();
    let linear = |i, o| LinearConfig::new(i, o).init(&Device::default());
    let whole = Whole { body: vec![linear(4, 3), linear(3, 3)], out: linear(3, 2) };
    let whole = brigade_core::initialize(whole, 3, "whole");
    let path = folder.path().join("model.bpk");
    whole.clone().save_file(&path).unwrap();
    let mapping =
        WeightsMapping::default().rule("hidden.*.linear.*", "body.*.*").rule("head.linear.*", "out.*");
    let mut model: Model<_, _, Tensor<2>> = chain(2).loss(|output, _| output.sum());
    assert_eq!(model.load_weights(&path, &mapping, Strict::Yes).unwrap().loaded, 6);
    let found = tensors(model.into_chain(), 1);
    for (name, weight) in [("hidden.0", &whole.body[0]), ("hidden.1", &whole.body[1]), ("head", &whole.out)] {
        let name = format!("{name}.linear.weight");
        let found = found.iter().find(|tensor| tensor.name == name).unwrap();
        assert_eq!(found.data, weight.weight.val().into_data(), "{name}");
    }
    std::fs::write(&path, b"BURN?").unwrap();
    let error = chain(2).load_weights(&path, &mapping, Strict::Yes).unwrap_err().to_string();
    assert!(error.contains("model.bpk is not a complete Burn record"), "{error}");
}

#[test]
fn names_are_compared_as_strictly_as_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let values = written(&path);
    // The file's names for the second layer, and one parameter more in the model.
    let mapping = plain().rule("hidden.1.linear.*", "hiden.1.linear.*");
    let load =
        |chain: &mut Layers, mapping: &WeightsMapping, strict| chain.load_weights(&path, mapping, strict);
    let error = load(&mut chain(2), &mapping, Strict::Yes).unwrap_err().to_string();
    for part in [
        "w.safetensors: it has no tensor `hiden.1.linear.bias` for `hidden.1.linear.bias` (but `hidden.1.linear.bias`)",
        "`hiden.1.linear.weight` for `hidden.1.linear.weight` (but `hidden.1.linear.weight`)",
        "and the model has no parameter for `hidden.1.linear.bias`, `hidden.1.linear.weight`",
        "Strict::No loads those that both have",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let error = load(&mut chain(2), &mapping, Strict::Parameters).unwrap_err().to_string();
    assert!(error.contains("it has no tensor `hiden.1") && !error.contains("no parameter for"), "{error}");

    let mut partly = chain(2);
    let report = load(&mut partly, &mapping, Strict::No).unwrap();
    let second = ["hidden.1.linear.bias", "hidden.1.linear.weight"].map(str::to_owned).to_vec();
    assert_eq!(report, LoadReport { loaded: 4, missing: second.clone(), unexpected: second.clone() });
    let initial = tensors(chain(2), 5);
    for ((found, loaded), initial) in tensors(partly, 5).iter().zip(&values).zip(&initial) {
        let expected = if second.contains(&found.name) { initial } else { loaded };
        assert_eq!(found, expected);
    }

    let mut shorter: Layers = Chain::new().then("hidden.0", layer(4, 3)).then("hidden.1", layer(3, 3));
    let error = load(&mut shorter, &plain(), Strict::Yes).unwrap_err().to_string();
    assert!(
        error.contains("the model has no parameter for `head.linear.bias`, `head.linear.weight`"),
        "{error}"
    );
    assert_eq!(load(&mut shorter, &plain(), Strict::Parameters).unwrap().unexpected.len(), 2);
}

#[test]
fn shapes_are_compared_however_strictly_names_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    written(&path);
    for strict in [Strict::Yes, Strict::Parameters, Strict::No] {
        let error = chain(5).load_weights(&path, &plain(), strict).unwrap_err().to_string();
        assert!(
            error.contains("tensor `head.linear.bias` is F32 [2], but the model needs F32, F16 or BF16 [5]"),
            "{error}"
        );
    }
    // A head of another size beside a loaded backbone has another name.
    let mapping = plain().rule("head.*.*", "new_head.*.*");
    let report = chain(5).load_weights(&path, &mapping, Strict::No).unwrap();
    assert_eq!((report.loaded, report.missing.len(), report.unexpected.len()), (4, 2, 2));
}

#[test]
fn what_a_second_file_lacks_comes_from_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let (backbone, head) = (folder.path().join("backbone"), folder.path().join("head"));
    let (old, new) = (tensors(chain(2), 1), tensors(chain(2), 2));
    let is_head = |tensor: &NamedTensor| tensor.name.starts_with("head");
    let part = |tensors: &[NamedTensor], of_head| -> Vec<_> {
        tensors.iter().filter(|tensor| is_head(tensor) == of_head).cloned().collect()
    };
    save_safetensors(&backbone, &old, &plain()).unwrap();
    save_safetensors(&head, &part(&new, true), &plain()).unwrap();
    let mut both = chain(2);
    both.load_weights(&backbone, &plain(), Strict::Yes).unwrap();
    assert_eq!(both.load_weights(&head, &plain(), Strict::No).unwrap().loaded, 2);
    let found = tensors(both, 3);
    assert_eq!(part(&found, true), part(&new, true));
    assert_eq!(part(&found, false), part(&old, false));
}

#[test]
fn a_file_with_nothing_of_the_model_is_refused_however_strict() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    let other: Layers = Chain::new().then("other", layer(4, 2));
    save_safetensors(&path, &tensors(other, 1), &plain()).unwrap();
    let error = chain(2).load_weights(&path, &plain(), Strict::No).unwrap_err().to_string();
    assert!(error.contains("it has no tensor") && error.contains("they have no name in common"), "{error}");
}

#[test]
fn a_table_gets_rows_that_the_file_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    // Burn's linear weights are [inputs, outputs].
    let table = |rows: usize| -> Layers { Chain::new().then("table", layer(rows, 3)) };
    let values = tensors(table(4), 1);
    save_safetensors(&path, &values, &plain()).unwrap();
    let mapping = plain().more_rows("table.linear.weight");
    let mut grown = table(6);
    assert_eq!(grown.load_weights(&path, &mapping, Strict::Yes).unwrap().loaded, 2);
    let found = tensors(grown, 2);
    let (weight, old) = (found[1].data.as_slice::<f32>().unwrap(), values[1].data.as_slice::<f32>().unwrap());
    assert_eq!(&weight[..12], old);
    for (index, value) in weight[12..].iter().enumerate() {
        let column = old.iter().skip(index % 3).step_by(3);
        assert_eq!(*value, (column.map(|value| f64::from(*value)).sum::<f64>() / 4.0) as f32);
    }
    // Fewer rows than the file has, or where it is not said, is a mistake.
    for (rows, mapping) in [(3, mapping), (6, plain())] {
        let error = table(rows).load_weights(&path, &mapping, Strict::Yes).unwrap_err().to_string();
        assert!(error.contains("tensor `table.linear.weight` is F32 [4, 3], but the model needs"), "{error}");
    }
}

#[test]
fn tensors_have_other_names_where_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    let values = tensors(chain(2), 1);
    save_safetensors(&path, &values, &plain().rule("head.linear.weight", "old.gamma")).unwrap();
    let names = [("head.linear.weight".to_owned(), "old.gamma".to_owned())];
    let mut found = chain(2);
    found.load_weights(&path, &plain().with_names(names.into()), Strict::Yes).unwrap();
    assert_eq!(tensors(found, 2), values);
}

#[test]
fn a_parameter_of_which_a_part_is_missing_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    written(&path);
    let halves = Stored::concatenated(0, [("head.linear.weight", 3), ("nowhere", 1)]);
    let mapping = plain().rule("wide.linear.weight", halves).rule("wide.linear.bias", "head.linear.bias");
    let mut wide: Layers = Chain::new().then("wide", layer(4, 2));
    let report = wide.load_weights(&path, &mapping, Strict::No).unwrap();
    assert_eq!((report.loaded, report.missing), (1, vec!["wide.linear.weight".to_owned()]));
    assert_eq!(report.unexpected.len(), 4);
}

#[test]
fn a_tied_head_is_no_unexpected_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    let square = || Chain::new().then("a", layer(3, 3)).then("b", layer(3, 3));
    save_safetensors(&path, &tensors(square(), 1), &plain()).unwrap();
    let mut tied: Layers = square().tie("b.linear.weight", "a.linear.weight");
    let report = tied.load_weights(&path, &plain(), Strict::Yes).unwrap();
    assert_eq!(report, LoadReport { loaded: 3, ..LoadReport::default() });
}
