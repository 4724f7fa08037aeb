//! Cross entropy.

use brigade_kernels::{CrossEntropyConfig, linear_cross_entropy};
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::common::devices::devices;
use super::common::{Case, check};

#[test]
fn cross_entropies() {
    // The last has more rows than a chunk.
    for [rows, width, classes] in [[1, 1, 2], [5, 3, 7], [65, 17, 33], [1100, 3, 4096]] {
        // -100 is PyTorch's `ignore_index`; above the last class where the weight is 0.
        let targets = |weighted: bool| -> Vec<i64> {
            let target = |row: usize| match row % 7 {
                3 => -100,
                5 => -1,
                _ if weighted && row % 3 == 1 => classes as i64,
                _ => (row * 7919 % classes) as i64,
            };
            (0..rows).map(target).collect()
        };
        let weights: Vec<f32> =
            (0..rows).map(|row| if row % 3 == 1 { 0.0 } else { 1.0 + row as f32 / 64.0 }).collect();
        for (config, weighted) in [
            (CrossEntropyConfig::default(), false),
            (CrossEntropyConfig::default(), true),
            (CrossEntropyConfig { label_smoothing: 0.1, z_loss: 1e-2, ..Default::default() }, true),
        ] {
            check(&Case::new([vec![rows, width], vec![classes, width]]), |[x, w]| {
                // As batches have them in training.
                let device = x.device();
                let targets = TensorData::new(targets(weighted), [rows]);
                let targets = Tensor::<1, Int>::from_data(targets, &device);
                let row_weights = weighted.then(|| {
                    Tensor::<1>::from_data(TensorData::new(weights.clone(), [rows]), (&device, x.dtype()))
                });
                let (x, w) = (x.reshape([rows, width]), w.reshape([classes, width]));
                linear_cross_entropy(x, w, targets, row_weights, config).0
            });
        }
    }
}

#[test]
fn a_head_that_is_frozen_has_the_same_loss_and_gradient() {
    for (name, device, ..) in devices() {
        let [x, w] = Case::new([vec![70 * 16], vec![33 * 16]]).tensors(device);
        let gradients = |tracked: [bool; 2]| {
            let [x, w] = [(x.clone(), 70), (w.clone(), 33)]
                .map(|(values, rows)| values.reshape([rows, 16]).autodiff());
            let x = if tracked[0] { x.require_grad() } else { x };
            let w = if tracked[1] { w.require_grad() } else { w };
            let targets = (0..70).map(|row| row * 7919 % 33).collect::<Vec<i64>>();
            let targets = Tensor::<1, Int>::from_data(TensorData::new(targets, [70]), &x.device());
            let (loss, _) =
                linear_cross_entropy(x.clone(), w.clone(), targets, None, CrossEntropyConfig::default());
            let gradients = loss.clone().backward();
            let of = |tensor: Tensor<2>| tensor.grad(&gradients).map(|gradient| gradient.into_data());
            (loss.into_data(), of(x), of(w))
        };
        let (loss, of_x, of_w) = gradients([true, true]);
        assert_eq!(gradients([true, false]), (loss.clone(), of_x, None), "{name}");
        assert_eq!(gradients([false, true]), (loss, None, of_w), "{name}");
    }
}

#[test]
fn the_cross_entropy_of_no_rows_is_zero() {
    for (name, device, ..) in devices() {
        let in_graph = device.clone().autodiff();
        let x = Tensor::<2>::zeros([0, 4], &in_graph).require_grad();
        let w = Tensor::<2>::ones([7, 4], &in_graph).require_grad();
        let targets = Tensor::<1, Int>::from_data(TensorData::new(Vec::<i64>::new(), [0]), &in_graph);
        let (loss, hits) =
            linear_cross_entropy(x.clone(), w.clone(), targets, None, CrossEntropyConfig::default());
        let gradients = loss.clone().backward();
        let floats = |data: TensorData| data.iter::<f32>().collect::<Vec<_>>();
        assert_eq!([floats(loss.into_data()), floats(hits.into_data())], [[0.0], [0.0]], "{name}");
        assert_eq!(x.grad(&gradients).unwrap().dims(), [0, 4], "{name}");
        assert_eq!(floats(w.grad(&gradients).unwrap().into_data()), [0.0; 28], "{name}");
    }
}

#[test]
#[should_panic(expected = "`targets` has 7 in row 2, which is none of 7 classes")]
fn targets_above_the_last_class_are_named() {
    let device = Device::flex();
    let [x, w] = [3, 7].map(|rows| Tensor::<2>::ones([rows, 4], &device));
    let targets = Tensor::<1, Int>::from_ints([-100, 1, 7], &device);
    linear_cross_entropy(x, w, targets, None, CrossEntropyConfig::default());
}
