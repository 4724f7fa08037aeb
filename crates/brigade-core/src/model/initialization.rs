//! Initial weights from (seed, parameter path), never from the order of drawing.

use std::sync::{Mutex, PoisonError};

use burn::module::Module;

use crate::model::parameters;

/// A 64-bit seed for one mode of one run: FNV-1a over the text, mixed with the run's seed by
/// the finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", 2014).
pub fn keyed_seed(seed: u64, key: &str) -> u64 {
    let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mut x = hash ^ seed.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Gives every parameter of a module that has no value yet its initial value, drawn by its own
/// initializer from a generator seeded by (`seed`, `prefix` + path). Parameters that have values
/// (loaded weights) keep them.
///
/// Burn's generator is one per process; it is seeded anew for each parameter under a lock, so the
/// values depend neither on the order of parameters nor on other ranks in the process. A model
/// that was initialised this way is the model that Brigade starts from with the same seed and
/// block name, which lets a plain Burn program start from the same weights.
pub fn initialize<M: Module>(module: M, seed: u64, prefix: &str) -> M {
    static GENERATOR: Mutex<()> = Mutex::new(());
    // A module without a device has no parameters.
    let Some(device) = module.devices().into_iter().next() else { return module };
    parameters::for_each_lazy(module, &mut |path, draw| {
        let _one_at_a_time = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
        device.seed(keyed_seed(seed, &format!("{prefix}.{path}")));
        draw();
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::nn::LinearConfig;
    use burn::tensor::Device;

    #[test]
    fn values_depend_on_seed_and_path_alone() {
        let device = Device::default();
        let bits = |seed, prefix: &str, first_other: bool| {
            if first_other {
                initialize(LinearConfig::new(3, 3).init(&device), 9, "noise");
            }
            let linear = initialize(LinearConfig::new(4, 4).init(&device), seed, prefix);
            linear.weight.val().try_into_vec_as::<f32>().unwrap()
        };
        assert_eq!(bits(1, "a", false), bits(1, "a", true));
        assert_ne!(bits(1, "a", false), bits(2, "a", false));
        assert_ne!(bits(1, "a", false), bits(1, "b", false));
    }

    #[test]
    fn values_that_are_there_stay() {
        let device = Device::default();
        let linear = initialize(LinearConfig::new(4, 4).init(&device), 1, "x");
        let before: Vec<f32> = linear.weight.val().try_into_vec_as().unwrap();
        let after: Vec<f32> = initialize(linear, 2, "x").weight.val().try_into_vec_as().unwrap();
        assert_eq!(before, after);
    }
}
