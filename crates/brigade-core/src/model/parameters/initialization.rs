//! Initial weights from (seed, parameter path), never from the order of drawing.

use brigade_random::keyed_seed;
use burn::module::Module;

use crate::model::parameters;
use crate::model::random_state::with_seed;

/// Gives every parameter of a module that has no value yet its initial value, drawn by its own
/// initializer from a generator seeded by (`seed`, `prefix` + path). Parameters that have values
/// (loaded weights) keep them.
///
/// Burn's generator is one per process; it is seeded anew for each parameter under a lock, so the
/// values depend neither on the order of parameters nor on other ranks in the process. A model
/// that was initialised this way is the model that Brigade starts from with the same seed and
/// block name, which lets a plain Burn program start from the same weights. With an empty prefix, the
/// module is a whole model whose fields are the blocks.
pub fn initialize<M: Module>(module: M, seed: u64, prefix: &str) -> M {
    // A module without a device has no parameters.
    let Some(device) = module.devices().into_iter().next() else { return module };
    let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}.") };
    parameters::for_each_lazy(module, &mut |path, draw| {
        with_seed(&device, keyed_seed(seed, &format!("{prefix}{path}")), draw);
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
    fn the_fields_of_a_model_are_blocks() {
        let device = Device::default();
        let linear = || LinearConfig::new(4, 4).init(&device);
        let bits = |linear: &burn::nn::Linear| linear.weight.val().try_into_vec_as::<f32>().unwrap();
        let model = initialize(vec![linear(), linear()], 1, "");
        assert_eq!(bits(&model[1]), bits(&initialize(linear(), 1, "1")));
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
