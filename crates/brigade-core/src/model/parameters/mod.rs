//! Walking a Burn module by parameter path: reading and replacing parameters, and taking gradients.

mod gradients;
pub(crate) mod initialization;
pub(crate) mod precision;
mod specs;

use brigade_sorted::SortedMap;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Int, Tensor};

pub(crate) use gradients::{take_deferred, take_gradients, touch};
pub(crate) use specs::{ParameterSpec, specs};

/// The values of one float parameter of a module.
pub(crate) struct ParamValue {
    /// Flattened, without autodiff.
    pub flat: Tensor<1>,
    pub shape: Vec<usize>,
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

/// Why a parameter cannot be trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// Its values are integers or booleans.
    NotFloat,
    /// Its values are used in another layout than they are given in, so that a flat buffer does not say which is which.
    Mapped,
}

/// The first of a module's parameters that cannot be trained.
pub(crate) fn unfit<M: Module>(module: &M) -> Option<(String, Unfit)> {
    #[derive(Default)]
    struct Find(Path, Option<(String, Unfit)>);
    impl Find {
        fn found(&mut self, why: Unfit) {
            let path = self.0.join();
            self.1.get_or_insert((path, why));
        }
    }
    impl ModuleVisitor for Find {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.enter(name);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // Burn says it nowhere else.
            if format!("{param:?}").contains("load: true") {
                self.found(Unfit::Mapped);
            }
        }
        fn visit_int<const D: usize>(&mut self, _: &Param<Tensor<D, Int>>) {
            self.found(Unfit::NotFloat);
        }
        fn visit_bool<const D: usize>(&mut self, _: &Param<Tensor<D, Bool>>) {
            self.found(Unfit::NotFloat);
        }
    }
    let mut visitor = Find::default();
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
    use burn::nn::{LinearConfig, LinearLayout};
    use burn::tensor::Device;

    #[test]
    fn a_parameter_in_another_layout_is_found_with_and_without_values() {
        let linear = |layout| LinearConfig::new(2, 3).with_layout(layout).init(&Device::default());
        let (rows, columns) = (linear(LinearLayout::Row), linear(LinearLayout::Col));
        for _ in 0..2 {
            assert_eq!(unfit(&rows), None);
            assert_eq!(unfit(&(rows.clone(), columns.clone())), Some(("1.weight".to_owned(), Unfit::Mapped)));
            drop((rows.weight.val(), columns.weight.val()));
        }
    }
}
