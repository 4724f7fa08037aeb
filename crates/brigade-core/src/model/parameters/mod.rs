//! Walking a Burn module by parameter path: reading, replacing and taking gradients.

pub(crate) mod initialization;
pub(crate) mod precision;

use brigade_kernels::{DeferredGradient, DeferredGradients};
use brigade_sorted::SortedMap;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Gradients, Int, Tensor};

/// The values of one float parameter of a module.
pub(crate) struct ParamValue {
    /// Flattened, without autodiff.
    pub flat: Tensor<1>,
    pub shape: Vec<usize>,
}

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

#[derive(Default)]
struct Path(Vec<String>);

impl Path {
    fn enter(&mut self, name: &str) {
        self.0.push(name.to_owned());
    }

    fn exit(&mut self) {
        self.0.pop();
    }

    fn join(&self) -> String {
        self.0.join(".")
    }
}

fn flatten<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    let elements = tensor.dims().iter().product::<usize>();
    tensor.reshape([elements])
}

/// All float parameters of a module by path. Parameters without a value get one.
pub(crate) fn values<M: Module>(module: &M) -> SortedMap<String, ParamValue> {
    values_of(module, false)
}

/// The float parameters of a module that have a value, by path.
pub(crate) fn given_values<M: Module>(module: &M) -> SortedMap<String, ParamValue> {
    values_of(module, true)
}

fn values_of<M: Module>(module: &M, only_given: bool) -> SortedMap<String, ParamValue> {
    struct Values(Path, bool, SortedMap<String, ParamValue>);
    impl ModuleVisitor for Values {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.enter(name);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.1 && !param.is_initialized() {
                return;
            }
            let value = param.base();
            let value = ParamValue { shape: value.dims().to_vec(), flat: flatten(value.inner()) };
            self.2.insert(self.0.join(), value);
        }
    }
    let mut visitor = Values(Path::default(), only_given, SortedMap::new());
    module.visit(&mut visitor);
    visitor.2
}

/// The paths of a module's parameters that are not of floats.
pub(crate) fn not_floats<M: Module>(module: &M) -> Vec<String> {
    #[derive(Default)]
    struct Others(Path, Vec<String>);
    impl ModuleVisitor for Others {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.enter(name);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }
        fn visit_int<const D: usize>(&mut self, _: &Param<Tensor<D, Int>>) {
            self.1.push(self.0.join());
        }
        fn visit_bool<const D: usize>(&mut self, _: &Param<Tensor<D, Bool>>) {
            self.1.push(self.0.join());
        }
    }
    let mut visitor = Others::default();
    module.visit(&mut visitor);
    visitor.1
}

/// Paths and shapes of all float parameters, without giving a value to those that have none yet.
pub(crate) fn shapes<M: Module>(module: &M) -> SortedMap<String, Vec<usize>> {
    #[derive(Default)]
    struct Shapes(Path, SortedMap<String, Vec<usize>>);
    impl ModuleVisitor for Shapes {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.enter(name);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.insert(self.0.join(), param.lazy_shape().to_vec());
        }
    }
    let mut visitor = Shapes::default();
    module.visit(&mut visitor);
    visitor.1
}

/// The float parameters that have no value yet, by path. Clones of a parameter have its id, and get their value together.
pub(crate) fn lazy<M: Module>(module: &M) -> SortedMap<String, ParamId> {
    struct Lazy(Path, SortedMap<String, ParamId>);
    impl ModuleVisitor for Lazy {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.enter(name);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !param.is_initialized() {
                self.1.insert(self.0.join(), param.id);
            }
        }
    }
    let mut visitor = Lazy(Path::default(), SortedMap::new());
    module.visit(&mut visitor);
    visitor.1
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

/// Removes the gradients of a module's parameters from `gradients`, flattened, by path. A parameter that did not contribute to the
/// loss is missing.
pub(crate) fn take_gradients<M: Module>(
    module: &M,
    gradients: &mut Gradients,
) -> SortedMap<String, Tensor<1>> {
    struct Take<'a>(Path, &'a mut Gradients, SortedMap<String, Tensor<1>>);
    impl ModuleVisitor for Take<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.enter(name);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = param.base().grad_remove(self.1) {
                self.2.insert(self.0.join(), flatten(gradient));
            }
        }
    }
    let mut visitor = Take(Path::default(), gradients, SortedMap::new());
    module.visit(&mut visitor);
    visitor.2
}

/// What a backward has left of a module's gradients for later, by path. None of it reads parameters: under ZeRO-3 their memory has
/// other values by then.
pub(crate) fn take_deferred<M: Module>(
    module: &M,
    deferred: &mut DeferredGradients,
) -> SortedMap<String, DeferredGradient> {
    struct Take<'a>(Path, &'a mut DeferredGradients, SortedMap<String, DeferredGradient>);
    impl ModuleVisitor for Take<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.enter(name);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.1.take(&param.base()) {
                self.2.insert(self.0.join(), gradient);
            }
        }
    }
    struct ReadNow(SortedMap<String, DeferredGradient>);
    impl ModuleVisitor for ReadNow {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.values_mut().for_each(|gradient| gradient.read_now(&param.base()));
        }
    }
    let mut visitor = Take(Path::default(), deferred, SortedMap::new());
    module.visit(&mut visitor);
    let mut visitor = ReadNow(visitor.2);
    module.visit(&mut visitor);
    visitor.0
}

/// Runs the backward of one value of a module's first tracked parameter. All graphs of a module are connected through its
/// parameters, and autodiff frees dropped parts of them only when a backward runs through them.
pub(crate) fn touch<M: Module>(module: &M) {
    #[derive(Default)]
    struct Touch(bool);
    impl ModuleVisitor for Touch {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.base();
            if !self.0 && value.is_tracked() && value.dims().iter().all(|size| *size > 0) {
                drop(flatten(value).slice(0..1).backward());
                self.0 = true;
            }
        }
    }
    module.visit(&mut Touch::default());
}

/// New values for a parameter: flattened, with the shape to give them.
pub(crate) type NewValue = (Tensor<1>, Vec<usize>);

/// Maps a module's float parameters by path. The closure returns a parameter's new values, or `None` to keep it. Whether it is
/// trained does not change. New values with another number of dimensions are ignored.
pub(crate) fn replace<M: Module>(module: M, values: &mut dyn FnMut(&str) -> Option<NewValue>) -> M {
    struct Replace<'a>(Path, &'a mut dyn FnMut(&str) -> Option<NewValue>);
    impl ModuleMapper for Replace<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.enter(name);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let Some((flat, shape)) = (self.1)(&self.0.join()) else { return param };
            let Ok(shape) = <[usize; D]>::try_from(shape) else { return param };
            // A reshape takes a size of 0 as "keep".
            let value = match shape.contains(&0) {
                true => Tensor::empty(shape, (&flat.device(), flat.dtype())),
                false => flat.reshape(shape),
            };
            let value = if param.lazy_device().is_autodiff() { value.autodiff() } else { value };
            let id = param.id;
            param.transform_for_load(value.detach(), id)
        }
    }
    module.map(&mut Replace(Path::default(), values))
}

/// Keeps the float parameters at these paths from being trained, whether or not they have a value.
pub(crate) fn freeze<M: Module>(module: M, is_frozen: &dyn Fn(&str) -> bool) -> M {
    struct Freeze<'a>(Path, &'a dyn Fn(&str) -> bool);
    impl ModuleMapper for Freeze<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.enter(name);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if (self.1)(&self.0.join()) { param.set_require_grad(false) } else { param }
        }
    }
    module.map(&mut Freeze(Path::default(), is_frozen))
}

/// Maps every float parameter that may have no value yet through `visit`, with its path.
pub(crate) fn for_each_lazy<M: Module>(module: M, visit: &mut dyn FnMut(&str, &mut dyn FnMut())) -> M {
    struct Each<'a>(Path, &'a mut dyn FnMut(&str, &mut dyn FnMut()));
    impl ModuleMapper for Each<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.enter(name);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if !param.is_initialized() {
                (self.1)(&self.0.join(), &mut || {
                    param.base();
                });
            }
            param
        }
    }
    module.map(&mut Each(Path::default(), visit))
}

#[cfg(test)]
mod tests {
    use super::*;
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
