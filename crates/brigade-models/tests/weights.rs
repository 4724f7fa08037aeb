//! The file of weights: its bytes, and what becomes of it when writers meet or the disk is full.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::Path;

use brigade_core::NamedTensor;
use brigade_models::{StoredParameter, WeightsError, WeightsMapping, WeightsWriter, save_safetensors};
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

fn parameters(tensors: &[NamedTensor]) -> Vec<StoredParameter> {
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
        let filled = WeightsWriter::filled(&path, &parameters(&tensors), values).unwrap();
        let there = filled.finish_new().unwrap_err();
        assert!(
            matches!(&there, WeightsError::Io { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists),
            "{there}"
        );
        WeightsWriter::filled(&path, &parameters(&tensors), values).unwrap().finish().unwrap();
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
    assert!(twice.contains("parameter `h.10.b` is none of the file's, or was there before"), "{twice}");
    let other = NamedTensor { name: "wte.weight".into(), data: TensorData::new(vec![1.0f32; 4], [2, 2]) };
    let other = writer.write(&other).unwrap_err().to_string();
    assert!(other.contains("parameter `wte.weight` has 4 values for the shape [5, 3]"), "{other}");
    let missing = writer.finish().unwrap_err().to_string();
    assert!(missing.contains("parameter `h.9.b` was not written"), "{missing}");
    let twice = [parameters(&tensors), parameters(&tensors)].concat();
    let twice = WeightsWriter::create(&path, twice).err().unwrap().to_string();
    assert!(twice.contains("parameter `wte.weight` is there twice"), "{twice}");
    let unread = WeightsWriter::filled(&path, &parameters(&tensors), |_| Err("no such range".into()));
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
