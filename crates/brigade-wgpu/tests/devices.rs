//! The devices of ranks.

#![allow(clippy::unwrap_used)]

mod common;

use brigade_wgpu::{memory, room};
use burn::tensor::Tensor;
use common::device_or_skip;

#[test]
fn a_device_is_the_adapter_that_it_is_said_to_be() {
    if device_or_skip().is_none() {
        return;
    }
    let (device, adapter) = brigade_wgpu::device(0).unwrap();
    println!("{adapter}: {device:?}");
    assert_eq!(device.identity().unwrap().name, adapter.name);
    let shared = brigade_wgpu::device(room() - 1).unwrap();
    assert_eq!((&shared.0, shared.1) == (&device, adapter), room() == 1);
}

#[test]
fn memory_grows_with_tensors() {
    let Some(device) = device_or_skip() else { return };
    let before = memory(&device).unwrap();
    let bytes = 64 << 20;
    let tensor = Tensor::<1>::ones([bytes / 4], &device);
    assert_eq!(tensor.clone().sum().into_scalar::<f32>(), (bytes / 4) as f32);
    let with = memory(&device).unwrap();
    assert!(with >= before + bytes as u64, "{before} bytes before, {with} with {bytes} more");
    drop(tensor);
    device.memory_cleanup();
    device.sync().unwrap();
    let after = memory(&device).unwrap();
    assert!(after <= with - bytes as u64, "{with} bytes with the tensor, {after} without");
}
