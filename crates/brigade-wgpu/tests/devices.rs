//! The devices of ranks.

#![allow(clippy::unwrap_used)]

mod adapter;

use adapter::device_or_skip;
use brigade_wgpu::adapter_count;
use burn::tensor::{Device, Tensor};

#[test]
fn a_device_is_opened_on_the_adapter_that_is_returned_with_it() {
    if device_or_skip().is_none() {
        return;
    }
    let (device, adapter) = brigade_wgpu::device(0).unwrap();
    println!("{adapter}: {device:?}");
    assert_eq!(device.identity().unwrap().name, adapter.name);
    let shared = brigade_wgpu::device(adapter_count() - 1).unwrap();
    assert_eq!((&shared.0, shared.1) == (&device, adapter), adapter_count() == 1);
}

/// Bytes of tensors that live, and bytes taken of the device.
fn memory(device: &Device) -> (u64, u64) {
    device.sync().unwrap();
    let pools = device.memory_pool_usage().unwrap();
    (pools.bytes_in_use, pools.bytes_reserved)
}

#[test]
fn memory_is_in_use_while_a_tensor_lives_and_reserved_until_it_is_freed() {
    let Some(device) = device_or_skip() else { return };
    let before = memory(&device);
    let bytes: u64 = 64 << 20;
    let tensor = Tensor::<1>::ones([bytes as usize / 4], &device);
    assert_eq!(tensor.clone().sum().into_scalar::<f32>(), (bytes / 4) as f32);
    let with = memory(&device);
    assert!(with.0 >= before.0 + bytes && with.1 >= before.1 + bytes, "{before:?}, then {with:?}");
    drop(tensor);
    let dropped = memory(&device);
    assert!(dropped.0 <= with.0 - bytes && dropped.1 == with.1, "{with:?}, then {dropped:?}");
    device.memory_cleanup();
    let after = memory(&device);
    assert!(after.1 <= with.1 - bytes, "{with:?}, then {after:?}");
}
