//! The gradients of a module's parameters, by path.

use brigade_kernels::{DeferredGradient, DeferredGradients};
use brigade_sorted::SortedMap;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};

use super::{Path, flatten};

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
