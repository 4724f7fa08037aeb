//! What is known of a module's parameters whether or not they have values: shapes, and which are trained, kept in fp32, or running state.

use brigade_sorted::SortedMap;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::Tensor;

use super::Path;

/// What is known of a parameter whether or not it has values.
#[derive(Debug)]
pub(crate) struct ParameterSpec {
    pub shape: Vec<usize>,
    /// Whether the optimizer changes it.
    pub trainable: bool,
    /// See [`crate::Block::keep_in_f32`].
    pub keep_in_f32: bool,
    /// Whether it is running state, such as the mean of a batch norm, which forward passes change.
    pub running: bool,
}

/// The specifications of all float parameters and running states by path, without giving a value to those that have none yet.
pub(crate) fn specs<M: Module>(
    module: &M,
    keep_in_f32: impl Fn(&str) -> bool,
) -> SortedMap<String, ParameterSpec> {
    struct Specs<F>(Path, F, SortedMap<String, ParameterSpec>);
    impl<F: Fn(&str) -> bool> ModuleVisitor for Specs<F> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.enter(name);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let path = self.0.join();
            let (trainable, keep_in_f32) = (is_trainable(param), (self.1)(&path));
            let spec =
                ParameterSpec { shape: param.lazy_shape().to_vec(), trainable, keep_in_f32, running: false };
            self.2.insert(path, spec);
        }
    }
    let mut visitor = Specs(Path::default(), keep_in_f32, SortedMap::new());
    module.visit(&mut visitor);
    let mut specs = visitor.2;
    if specs.values().any(|spec| !spec.trainable) {
        for path in running(module) {
            if let Some(spec) = specs.get_mut(&path) {
                spec.running = true;
            }
        }
    }
    specs
}

/// The paths of a module's running states. They are shown as parameters to whoever walks a module; what tells them apart is that
/// they always have a value, and cannot be made to require gradients.
fn running<M: Module>(module: &M) -> Vec<String> {
    struct Unfreeze;
    impl ModuleMapper for Unfreeze {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if param.is_initialized() { param.set_require_grad(true) } else { param }
        }
    }
    #[derive(Default)]
    struct Frozen(Path, Vec<String>);
    impl ModuleVisitor for Frozen {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.enter(name);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_initialized() && !is_trainable(param) {
                self.1.push(self.0.join());
            }
        }
    }
    let mut visitor = Frozen::default();
    module.clone().map(&mut Unfreeze).visit(&mut visitor);
    visitor.1
}

/// Whether training changes a parameter. Burn says so only of values, so a stand-in of one element takes the place of one
/// that may still be missing.
fn is_trainable<const D: usize>(param: &Param<Tensor<D>>) -> bool {
    let value = Tensor::<D>::empty([1; D], &param.lazy_device());
    param.clone().transform_for_load(value, param.id).train().base().is_require_grad()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::parameters::freeze;
    use burn::module::ParamId;
    use burn::nn::{BatchNormConfig, LinearConfig, conv::Conv2dConfig};
    use burn::tensor::{Device, Shape};

    #[test]
    fn a_parameter_is_known_to_be_frozen_before_it_has_a_value() {
        let never = |device: Device, require_grad| {
            let draw = |_: &Device, _| -> Tensor<2> { panic!("nothing may be drawn") };
            Param::<Tensor<2>>::uninitialized(
                ParamId::new(),
                draw,
                device,
                require_grad,
                Shape::from([1usize << 40, 1 << 20]),
            )
        };
        for device in [Device::default(), Device::default().autodiff()] {
            assert!(is_trainable(&never(device.clone(), true)));
            assert!(!is_trainable(&never(device.clone(), false)));
            assert!(!is_trainable(&never(device.clone(), true).set_require_grad(false)));
            let linear = || LinearConfig::new(2, 3).init(&device);
            let (linear, frozen) = (linear(), linear().no_grad());
            let with_values = |linear: &burn::nn::Linear| drop(linear.weight.val());
            for known in [false, true] {
                if known {
                    with_values(&linear);
                    with_values(&frozen);
                }
                assert!(is_trainable(&linear.weight) && !is_trainable(&frozen.weight));
                assert_eq!(linear.weight.is_initialized(), known);
            }
            let found =
                specs(&Conv2dConfig::new([1, 2], [3, 3]).init(&device).no_grad(), |path| path == "bias");
            let summary: Vec<_> =
                found.iter().map(|(path, spec)| (path.as_str(), spec.trainable, spec.keep_in_f32)).collect();
            assert_eq!(summary, [("bias", false, true), ("weight", false, false)]);
            let half = freeze(LinearConfig::new(2, 3).init(&device), &|path| path == "bias");
            assert!(!half.weight.is_initialized(), "no value is drawn");
            let found = specs(&half, |_| false);
            assert_eq!((found["bias"].trainable, found["weight"].trainable), (false, true));
        }
    }

    #[test]
    fn running_state_is_told_from_frozen_parameters() {
        for device in [Device::default(), Device::default().autodiff()] {
            let norm = || BatchNormConfig::new(2).init(&device);
            for (module, frozen) in [((norm(), norm()), false), ((norm().no_grad(), norm()), true)] {
                let found = specs(&module, |_| false);
                let kind = |path: &str| (found[path].trainable, found[path].running);
                assert_eq!((kind("0.gamma"), kind("1.beta")), ((!frozen, false), (true, false)));
                for path in ["0.running_mean", "0.running_var", "1.running_mean", "1.running_var"] {
                    assert_eq!(kind(path), (false, true), "{path}");
                }
            }
        }
    }
}
