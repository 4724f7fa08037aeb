//! Activations: the tensors that flow between blocks, with their types erased and restored.

use burn::tensor::{Bool, Device, Int, Tensor};

use crate::error::{Error, Result};

/// One tensor of an activation, flattened, with its shape.
#[derive(Debug, Clone)]
pub enum Part {
    /// A tensor of floats; gradients flow back through it.
    Float(Tensor<1>, Vec<usize>),
    /// A tensor of integers, such as tokens; it has no gradient.
    Int(Tensor<1, Int>, Vec<usize>),
}

impl Part {
    /// The shape before flattening.
    pub fn shape(&self) -> &[usize] {
        match self {
            Self::Float(_, shape) | Self::Int(_, shape) => shape,
        }
    }

    /// Bytes of its values.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Float(flat, _) => flat.dims()[0] * flat.dtype().size(),
            Self::Int(flat, _) => flat.dims()[0] * flat.dtype().size(),
        }
    }

    fn describe(&self) -> String {
        let kind = if matches!(self, Self::Float(..)) { "float" } else { "int" };
        format!("{kind}{:?}", self.shape())
    }
}

/// The tensors of an activation, in a fixed order.
#[derive(Debug, Clone, Default)]
pub struct Parts(pub Vec<Part>);

impl Parts {
    /// A short text of kinds and shapes, for messages.
    pub fn describe(&self) -> String {
        format!("({})", self.0.iter().map(Part::describe).collect::<Vec<_>>().join(", "))
    }

    /// The same parts with changed float tensors.
    pub(crate) fn map_floats(&self, change: impl Fn(Tensor<1>) -> Tensor<1>) -> Self {
        self.map(change, |flat| flat)
    }

    /// The same parts with changed tensors.
    pub(crate) fn map(
        &self,
        floats: impl Fn(Tensor<1>) -> Tensor<1>,
        ints: impl Fn(Tensor<1, Int>) -> Tensor<1, Int>,
    ) -> Self {
        let part = |part: &Part| match part {
            Part::Float(flat, shape) => Part::Float(floats(flat.clone()), shape.clone()),
            Part::Int(flat, shape) => Part::Int(ints(flat.clone()), shape.clone()),
        };
        Self(self.0.iter().map(part).collect())
    }

    /// The device of the first tensor.
    pub(crate) fn device(&self) -> Option<Device> {
        self.0.first().map(|part| match part {
            Part::Float(flat, _) => flat.device(),
            Part::Int(flat, _) => flat.device(),
        })
    }

    /// Bytes of all tensors.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(Part::bytes).sum::<usize>() as u64
    }
}

/// What can flow from one block to the next: a tensor of any rank and kind, a tuple of activations, or a struct of them that
/// derives this trait. Programs that use `brigade` need no attribute for that.
///
/// ```
/// use brigade_core::Activation;
/// use burn::tensor::{Int, Tensor};
///
/// #[derive(Activation)]
/// #[activation(crate = "brigade_core")]
/// struct Encoded {
///     hidden: Tensor<3>,
///     lengths: Tensor<1, Int>,
/// }
///
/// assert_eq!(
///     Encoded::describe(),
///     "Encoded { hidden: a float tensor of rank 3, lengths: an int tensor of rank 1 }"
/// );
/// ```
///
/// An implementation by hand lists the tensors in a fixed order:
///
/// ```
/// use brigade_core::{Activation, Part};
/// use burn::tensor::{Device, Tensor};
///
/// /// The device is not sent: a block has its own.
/// struct Placed(Tensor<2>, Device);
///
/// impl Activation for Placed {
///     fn into_parts(self, parts: &mut Vec<Part>) {
///         self.0.into_parts(parts);
///     }
///     fn from_parts(parts: &mut std::vec::IntoIter<Part>) -> Option<Self> {
///         let tensor = Tensor::<2>::from_parts(parts)?;
///         let device = tensor.device();
///         Some(Self(tensor, device))
///     }
///     fn describe() -> String {
///         Tensor::<2>::describe()
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot flow from one block to the next",
    note = "tensors, tuples of up to eight activations, and structs with `#[derive(Activation)]` can"
)]
pub trait Activation: Sized + Send + 'static {
    /// Appends this activation's tensors, flattened.
    fn into_parts(self, parts: &mut Vec<Part>);
    /// Takes this activation's tensors, in the same order; `None` if kind, rank or number differ.
    fn from_parts(parts: &mut std::vec::IntoIter<Part>) -> Option<Self>;
    /// Kinds and ranks in words, for messages.
    fn describe() -> String;
    /// Whether a loss gets a model's output of this type in fp32 when blocks compute in bf16. If the loss computes products itself, with fp32 sums, this is false, and the loss
    /// casts the rest itself.
    fn is_widened_for_loss() -> bool {
        true
    }
}

/// Flattens an activation.
pub(crate) fn flatten<A: Activation>(activation: A) -> Parts {
    let mut parts = Vec::new();
    activation.into_parts(&mut parts);
    Parts(parts)
}

/// The bytes of an activation's tensors.
pub(crate) fn bytes(parts: Parts) -> Result<Vec<Vec<u8>>> {
    let bytes = |part: Part| {
        let data = match part {
            Part::Float(flat, _) => flat.inner().try_into_data(),
            Part::Int(flat, _) => flat.try_into_data(),
        };
        Ok(data.map_err(|error| Error::Device(error.to_string()))?.as_bytes().to_vec())
    };
    parts.0.into_iter().map(bytes).collect()
}

/// Restores an activation; `None` if the parts are not exactly those of `A`.
pub(crate) fn restore<A: Activation>(parts: Parts) -> Option<A> {
    let mut parts = parts.0.into_iter();
    let activation = A::from_parts(&mut parts)?;
    parts.next().is_none().then_some(activation)
}

fn dims<const D: usize>(shape: Vec<usize>) -> Option<[usize; D]> {
    shape.try_into().ok()
}

impl<const D: usize> Activation for Tensor<D> {
    fn into_parts(self, parts: &mut Vec<Part>) {
        let shape = self.dims().to_vec();
        parts.push(Part::Float(self.reshape([shape.iter().product::<usize>()]), shape));
    }

    fn from_parts(parts: &mut std::vec::IntoIter<Part>) -> Option<Self> {
        match parts.next()? {
            Part::Float(flat, shape) => Some(flat.reshape(dims::<D>(shape)?)),
            Part::Int(..) => None,
        }
    }

    fn describe() -> String {
        format!("a float tensor of rank {D}")
    }
}

impl<const D: usize> Activation for Tensor<D, Int> {
    fn into_parts(self, parts: &mut Vec<Part>) {
        let shape = self.dims().to_vec();
        parts.push(Part::Int(self.reshape([shape.iter().product::<usize>()]), shape));
    }

    fn from_parts(parts: &mut std::vec::IntoIter<Part>) -> Option<Self> {
        match parts.next()? {
            Part::Int(flat, shape) => Some(flat.reshape(dims::<D>(shape)?)),
            Part::Float(..) => None,
        }
    }

    fn describe() -> String {
        format!("an int tensor of rank {D}")
    }
}

impl<const D: usize> Activation for Tensor<D, Bool> {
    fn into_parts(self, parts: &mut Vec<Part>) {
        self.int().into_parts(parts);
    }

    fn from_parts(parts: &mut std::vec::IntoIter<Part>) -> Option<Self> {
        Tensor::<D, Int>::from_parts(parts).map(Tensor::bool)
    }

    fn describe() -> String {
        format!("a bool tensor of rank {D}")
    }
}

macro_rules! tuple {
    ($($name:ident),+) => {
        impl<$($name: Activation),+> Activation for ($($name,)+) {
            fn into_parts(self, parts: &mut Vec<Part>) {
                #[allow(non_snake_case)]
                let ($($name,)+) = self;
                $($name.into_parts(parts);)+
            }

            fn from_parts(parts: &mut std::vec::IntoIter<Part>) -> Option<Self> {
                Some(($($name::from_parts(parts)?,)+))
            }

            fn describe() -> String {
                format!("({})", [$($name::describe()),+].join(", "))
            }
        }
    };
}

tuple!(A);
tuple!(A, B);
tuple!(A, B, C);
tuple!(A, B, C, D);
tuple!(A, B, C, D, E);
tuple!(A, B, C, D, E, F);
tuple!(A, B, C, D, E, F, G);
tuple!(A, B, C, D, E, F, G, H);

#[cfg(test)]
mod tests {
    use super::*;
    use brigade_derive::Activation;

    #[test]
    fn a_tuple_of_eight_comes_back() {
        type Eight = (Vector, Vector, Vector, Vector, Vector, Vector, Vector, Vector);
        type Vector = Tensor<1>;
        let one = |value: f32| Vector::from_floats([value], &Device::default());
        let parts = flatten((one(0.0), one(1.0), one(2.0), one(3.0), one(4.0), one(5.0), one(6.0), one(7.0)));
        let eight: Eight = restore(parts).unwrap();
        assert_eq!(eight.7.try_into_vec_as::<f32>().unwrap(), [7.0]);
    }

    #[test]
    fn a_tuple_of_any_kinds_comes_back() {
        let device = Device::default();
        let float = Tensor::<2>::from_floats([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &device);
        let int = Tensor::<1, Int>::from_ints([7, 8], &device);
        let mask = Tensor::<2, Bool>::from_data([[true, false]], &device);
        let parts = flatten((float.clone(), int.clone(), mask.clone()));
        assert_eq!(parts.describe(), "(float[2, 3], int[2], int[1, 2])");
        let (f, i, m): (Tensor<2>, Tensor<1, Int>, Tensor<2, Bool>) = restore(parts).unwrap();
        assert_eq!(f.into_data(), float.into_data());
        assert_eq!(i.into_data(), int.into_data());
        assert_eq!(m.into_data(), mask.into_data());
    }

    #[derive(Activation)]
    #[activation(crate = "crate")]
    struct Pair<A, B>(A, B);

    #[derive(Activation)]
    #[activation(crate = "crate")]
    struct Encoded<const D: usize, T> {
        hidden: Tensor<D>,
        mask: Tensor<1, Bool>,
        rest: Pair<T, (Tensor<1, Int>, Tensor<2>)>,
    }

    #[test]
    fn a_structure_of_any_kinds_comes_back() {
        let device = Device::default();
        let hidden = Tensor::<3>::from_floats([[[1.0, 2.0], [3.0, 4.0]]], &device);
        let mask = Tensor::<1, Bool>::from_data([true, false, true], &device);
        let (first, second) = (hidden.clone().mul_scalar(2.0), Tensor::<2>::from_floats([[5.0]], &device));
        let int = Tensor::<1, Int>::from_ints([7, 8], &device);
        let rest = Pair(first.clone(), (int.clone(), second.clone()));
        let parts = flatten(Encoded { hidden: hidden.clone(), mask: mask.clone(), rest });
        assert_eq!(parts.describe(), "(float[1, 2, 2], int[3], float[1, 2, 2], int[2], float[1, 1])");
        assert!(restore::<Encoded<2, Tensor<3>>>(parts.clone()).is_none());
        assert!(restore::<Encoded<3, Tensor<3, Int>>>(parts.clone()).is_none());
        let Encoded { hidden: h, mask: m, rest: Pair(f, (i, s)) } =
            restore::<Encoded<3, Tensor<3>>>(parts).unwrap();
        assert_eq!((h.into_data(), m.into_data()), (hidden.into_data(), mask.into_data()));
        assert_eq!(
            (f.into_data(), i.into_data(), s.into_data()),
            (first.into_data(), int.into_data(), second.into_data())
        );
        assert_eq!(
            Encoded::<3, Tensor<2>>::describe(),
            "Encoded { hidden: a float tensor of rank 3, mask: a bool tensor of rank 1, rest: Pair(a float tensor of rank 2, (an int tensor of rank 1, a float tensor of rank 2)) }"
        );
    }

    #[test]
    fn another_rank_kind_or_number_is_refused() {
        let device = Device::default();
        let parts = || flatten(Tensor::<2>::zeros([2, 3], &device));
        assert!(restore::<Tensor<3>>(parts()).is_none());
        assert!(restore::<Tensor<2, Int>>(parts()).is_none());
        assert!(restore::<(Tensor<2>, Tensor<2>)>(parts()).is_none());
        assert!(
            restore::<Tensor<2>>(flatten((
                Tensor::<2>::zeros([1, 1], &device),
                Tensor::<1>::zeros([1], &device)
            )))
            .is_none()
        );
    }
}
