//! The file of weights: its bytes, and what becomes of it when writers meet or the disk is full.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::Path;

use brigade_core::NamedTensor;
use brigade_models::{
    MappedParameter, ShardSize, WeightsDtype, WeightsError, WeightsFiles, WeightsFormat, WeightsMapping,
    WeightsWriter, convert_weights, same_values, save_safetensors, stored_tensors,
};
use burn::tensor::TensorData;
use safetensors::{Dtype, tensor::TensorView};

/// Tensors with values of their own for each `first`, in another order than that of their names.
fn tensors(first: f32) -> Vec<NamedTensor> {
    let tensor = |name: &str, shape: &[usize]| {
        let values = (0..shape.iter().product()).map(|index| first + index as f32).collect::<Vec<_>>();
        NamedTensor { name: name.into(), data: TensorData::new(values, shape.to_vec()) }
    };
    vec![
        tensor("wte.weight", &[5, 3]),
        tensor("h.10.b", &[7]),
        tensor("h.9.b", &[1]),
        tensor("none", &[0, 2]),
    ]
}

fn parameters(tensors: &[NamedTensor]) -> Vec<MappedParameter> {
    let shape = |tensor: &NamedTensor| (tensor.name.clone(), tensor.data.shape().to_vec());
    WeightsMapping::default().parameters(tensors.iter().map(shape)).collect()
}

/// The file as the library makes it.
fn expected(tensors: &[NamedTensor]) -> Vec<u8> {
    let views = tensors.iter().map(|tensor| {
        let bytes = tensor.data.as_bytes();
        (tensor.name.clone(), TensorView::new(Dtype::F32, tensor.data.shape().to_vec(), bytes).unwrap())
    });
    let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize(views, Some(about)).unwrap()
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_bytes_are_those_of_the_library_in_whatever_order_tensors_come() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let mut tensors = tensors(0.5);
    for _ in 0..tensors.len() {
        tensors.rotate_left(1);
        save_safetensors(&path, &tensors, &WeightsMapping::default()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), expected(&tensors));
        let values = |index: usize| Ok(tensors[index].data.as_slice::<f32>().unwrap().to_vec());
        let filled =
            WeightsWriter::filled(&path, &parameters(&tensors), WeightsFormat::ONE_FILE, values).unwrap();
        let there = filled.finish_new().unwrap_err();
        assert!(
            matches!(&there, WeightsError::Io { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists),
            "{there}"
        );
        WeightsWriter::filled(&path, &parameters(&tensors), WeightsFormat::ONE_FILE, values)
            .unwrap()
            .finish()
            .unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), expected(&tensors));
    }
    save_safetensors(&path, &[], &WeightsMapping::default()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), expected(&[]));
}

#[test]
fn writers_at_once_share_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["w.5", "w.10", "w", "w"].map(|name| folder.path().join(name));
    let contents = [1.0, 2.0, 3.0, 4.0].map(tensors);
    let begun = paths.iter().zip(&contents);
    let mut writers: Vec<_> =
        begun.map(|(path, tensors)| WeightsWriter::create(path, parameters(tensors)).unwrap()).collect();
    for index in 0..contents[0].len() {
        for (writer, tensors) in writers.iter_mut().zip(&contents) {
            writer.write(&tensors[index]).unwrap();
        }
    }
    for ((writer, path), tensors) in writers.into_iter().zip(&paths).zip(&contents) {
        writer.finish().unwrap();
        assert_eq!(std::fs::read(path).unwrap(), expected(tensors));
    }
    assert_eq!(names_in(folder.path()), ["w", "w.10", "w.5"]);
}

#[test]
fn a_file_that_is_not_whole_leaves_nothing_and_says_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    let tensors = tensors(0.0);
    let mut writer = WeightsWriter::create(&path, parameters(&tensors)).unwrap();
    writer.write(&tensors[1]).unwrap();
    let twice = writer.write(&tensors[1]).unwrap_err().to_string();
    assert!(twice.contains("parameter `h.10.b` was already written"), "{twice}");
    let other = NamedTensor { name: "wte.weight".into(), data: TensorData::new(vec![1.0f32; 4], [2, 2]) };
    let other = writer.write(&other).unwrap_err().to_string();
    assert!(other.contains("parameter `wte.weight` has 4 values for the shape [5, 3]"), "{other}");
    let missing = writer.finish().unwrap_err().to_string();
    assert!(missing.contains("parameter `h.9.b` was not written"), "{missing}");
    let twice = [parameters(&tensors), parameters(&tensors)].concat();
    let twice = WeightsWriter::create(&path, twice).err().unwrap().to_string();
    assert!(twice.contains("parameter `wte.weight` appears twice"), "{twice}");
    let unread = WeightsWriter::filled(&path, &parameters(&tensors), WeightsFormat::ONE_FILE, |_| {
        Err("no such range".into())
    });
    let unread = unread.err().unwrap().to_string();
    assert!(unread.contains("no such range"), "{unread}");
    assert!(names_in(folder.path()).is_empty());
}

#[cfg(target_os = "linux")]
#[test]
fn the_disk_needs_room_for_one_file_and_a_full_one_keeps_the_former() {
    brigade_testing::on_small_disk(1024, |folder| {
        let path = folder.join("model.safetensors");
        let large = |count: usize| {
            let part = |name: &str| NamedTensor {
                name: name.into(),
                data: TensorData::new(vec![1.0f32; count / 8], [count / 8]),
            };
            [part("b"), part("a")]
        };
        // Three quarters of the disk: there is no room for a second copy.
        save_safetensors(&path, &large(768 << 10), &WeightsMapping::default()).unwrap();
        let error = save_safetensors(&path, &large(512 << 10), &WeightsMapping::default()).unwrap_err();
        let WeightsError::Io { source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
        assert!(error.to_string().contains("model.safetensors"), "{error}");
        assert_eq!(names_in(folder), ["model.safetensors"]);
        assert_eq!(std::fs::read(&path).unwrap(), expected(&large(768 << 10)));
    });
}

/// Tensors of 12, 8, 8, 4, 4 and 4 values.
fn several() -> Vec<NamedTensor> {
    let shapes: [(&str, &[usize]); 6] = [
        ("wte", &[4, 3]),
        ("h.10.b", &[4]),
        ("h.2.b", &[4]),
        ("h.10.a", &[8]),
        ("h.2.a", &[2, 4]),
        ("a", &[4]),
    ];
    let tensor = |(index, (name, shape)): (usize, (&str, &[usize]))| {
        let count = shape.iter().product::<usize>();
        let values: Vec<f32> = (0..count).map(|value| (100 * index + value) as f32 / 8.0).collect();
        NamedTensor { name: name.into(), data: TensorData::new(values, shape.to_vec()) }
    };
    shapes.into_iter().enumerate().map(tensor).collect()
}

fn format(dtype: WeightsDtype, most: u64) -> WeightsFormat {
    WeightsFormat { dtype, max_shard_size: ShardSize(most) }
}

#[test]
fn large_weights_are_several_files_whoever_writes_which() {
    let folder = tempfile::tempdir().unwrap();
    let (tensors, shards) = (several(), "model-0000N-of-00004.safetensors");
    let name = |number: usize| shards.replace('N', &number.to_string());
    let written = |writers: usize, order: &[usize], path: &Path| {
        let files = WeightsFiles::new(path, parameters(&tensors), format(WeightsDtype::Fp32, 50)).unwrap();
        let files = std::sync::Arc::new(files);
        assert_eq!((files.count(), files.main()), (4, path.with_file_name("model.safetensors.index.json")));
        let open = |writer| WeightsWriter::open(files.clone(), move |file| file % writers == writer).unwrap();
        let mut writers: Vec<_> = (0..writers).map(open).collect();
        for index in order {
            writers.iter_mut().for_each(|writer| writer.write(&tensors[*index]).unwrap());
        }
        files.begin().unwrap();
        for writer in writers {
            assert!(!files.main().exists(), "an index names files that are there");
            writer.commit().unwrap();
        }
        files.complete().unwrap();
        let names = (1..=4).map(name).chain(["model.safetensors.index.json".to_owned()]);
        names.map(|name| std::fs::read(path.with_file_name(name)).unwrap()).collect::<Vec<_>>()
    };
    let path = folder.path().join("model.safetensors");
    let one = written(1, &[0, 1, 2, 3, 4, 5], &path);
    assert!(written(3, &[5, 3, 1, 0, 2, 4], &path) == one);
    // In the order of names and numbers: a, 2.a | 2.b, 10.a | 10.b | wte, none larger than 50 bytes.
    let held = |number| {
        let tensors = stored_tensors(&[&folder.path().join(name(number))]).unwrap();
        tensors.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(
        [held(1), held(2), held(3), held(4)].concat(),
        ["a", "h.2.a", "h.10.a", "h.2.b", "h.10.b", "wte"]
    );
    let index: serde_json::Value = serde_json::from_slice(&one[4]).unwrap();
    assert_eq!(index["metadata"], serde_json::json!({ "total_parameters": 40, "total_size": 160 }));
    assert_eq!(index["weight_map"]["h.10.a"], name(2));

    // What is written later takes the place of what was there, cut or not.
    let whole = folder.path().join("whole.safetensors");
    convert_weights(&[folder.path()], &whole, WeightsFormat::default()).unwrap();
    assert_eq!(std::fs::read(&whole).unwrap(), expected(&tensors));
    std::fs::rename(&whole, &path).unwrap();
    let files = WeightsFiles::new(&path, parameters(&tensors), WeightsFormat::default()).unwrap();
    std::fs::write(folder.path().join("model-critic.safetensors"), "another model").unwrap();
    files.remove_earlier().unwrap();
    assert_eq!(names_in(folder.path()), ["model-critic.safetensors", "model.safetensors"]);
    convert_weights(&[&path], &path, format(WeightsDtype::Fp32, 50)).unwrap();
    assert!(!path.exists() && std::fs::read(folder.path().join(name(3))).unwrap() == one[2]);
    let values = |index: usize| Ok(tensors[index].data.as_slice::<f32>().unwrap().to_vec());
    let again =
        WeightsWriter::filled(&path, &parameters(&tensors), format(WeightsDtype::Fp32, 50), values).unwrap();
    let there = again.finish_new().unwrap_err();
    assert!(there.to_string().contains("model.safetensors.index.json"), "{there}");
    // One file would be read in place of the several.
    let one = WeightsWriter::filled(&path, &parameters(&tensors), WeightsFormat::ONE_FILE, values).unwrap();
    let there = one.finish_new().unwrap_err();
    assert!(there.to_string().contains("model.safetensors.index.json") && !path.exists(), "{there}");
}

#[test]
fn tensors_are_the_same_if_type_shape_and_every_value_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    // More than are read at once.
    let values: Vec<f32> = (0..300_000).map(|index| index as f32).collect();
    let mut changed = values.clone();
    changed[299_999] = 0.5;
    let tensor = |name: &str, values: &[f32], shape: [usize; 2]| NamedTensor {
        name: name.into(),
        data: TensorData::new(values.to_vec(), shape),
    };
    let tensors = [
        tensor("a", &values, [300, 1000]),
        tensor("copy", &values, [300, 1000]),
        tensor("changed", &changed, [300, 1000]),
        tensor("turned", &values, [1000, 300]),
    ];
    save_safetensors(&path, &tensors, &WeightsMapping::default()).unwrap();
    let same = |other: &str| same_values(&[&path], "a", other).unwrap();
    assert!(same("copy"));
    assert!(!same("changed") && !same("turned") && !same("absent"));
}

#[test]
fn numbers_of_16_bits_are_read_back_and_those_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let tensors = several();
    save_safetensors(&path, &tensors, &WeightsMapping::default()).unwrap();
    for (number, dtype) in [(WeightsDtype::Bf16, "BF16"), (WeightsDtype::Fp16, "F16")] {
        let half = folder.path().join(dtype);
        convert_weights(&[&path], &half, format(number, 1 << 20)).unwrap();
        assert!(stored_tensors(&[&half]).unwrap().values().all(|tensor| tensor.type_name == dtype));
        let (again, bytes) = (folder.path().join("again"), std::fs::read(&half).unwrap());
        convert_weights(&[&half], &again, format(number, 1 << 20)).unwrap();
        assert!(std::fs::read(&again).unwrap() == bytes);
        let back = folder.path().join("back");
        convert_weights(&[&half], &back, WeightsFormat::default()).unwrap();
        // Eighths below 64 have 9 bits: fp16 holds them all, bf16 those of 8.
        let whole = std::fs::read(&back).unwrap() == std::fs::read(&path).unwrap();
        assert_eq!(whole, number == WeightsDtype::Fp16);
    }
    let large = NamedTensor { name: "large".into(), data: TensorData::new(vec![1e5f32], [1]) };
    save_safetensors(&path, &[large], &WeightsMapping::default()).unwrap();
    let to = folder.path().join("none");
    let error = convert_weights(&[&path], &to, format(WeightsDtype::Fp16, 1 << 20)).unwrap_err().to_string();
    assert!(error.contains("parameter `large` has the value 1e5, which fp16 cannot represent"), "{error}");
    assert!(!to.exists());
}
