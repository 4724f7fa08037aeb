//! Rotary positions.

use brigade_simd::rotary::{self, Angles, Rotation};
use burn::tensor::{FloatDType, Tensor};
use burn_flex::{Flex, FlexTensor};

use crate::host::{Buffer, FusedOperation, Number, apply, contiguous, values};

/// Rotates each head's vector by angles that its position says (Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021): elements `i`
/// and `planes + i` by the angle `i`, for each of the `planes`; elements from `2 · planes` on stay.
///
/// `x`: `[batch, positions, heads, depth]`; `cosines`, `sines`: `[positions, planes]`, or `[batch · positions, planes]` where positions differ between the
/// rows of a batch, in fp32 or in `x`'s type. They have no gradients.
///
/// # Panics
/// If the shapes do not fit.
pub fn rotary(x: Tensor<4>, cosines: Tensor<2>, sines: Tensor<2>) -> Tensor<4> {
    let ([batch, positions, _, depth], [rows, planes]) = (x.dims(), cosines.dims());
    let fits = (rows == positions || rows == batch * positions) && 2 * planes <= depth;
    assert!(
        fits && sines.dims() == cosines.dims(),
        "cosines of {:?} and sines of {:?} do not fit vectors of {:?}: both must have {positions} or {} rows, and at most {} columns",
        cosines.dims(),
        sines.dims(),
        x.dims(),
        batch * positions,
        depth / 2
    );
    if planes == 0 {
        return x;
    }
    let host = |angles: &Tensor<2>| {
        let angles = angles.clone().inner().cast(FloatDType::F32).try_into_primitive::<Flex>();
        angles.map(contiguous).ok()
    };
    let fused = match (host(&cosines), host(&sines)) {
        (Some(cosines), Some(sines)) => apply(Rotary([cosines, sines]), [&x.clone().into_dispatch()]),
        _ => None,
    };
    #[cfg(feature = "cube")]
    let fused = fused.or_else(|| {
        let angles = [&cosines, &sines].map(|angles| angles.clone().inner().cast(FloatDType::F32));
        crate::cube::apply(crate::cube::Rotary { angles }, [&x.clone().into_dispatch()])
    });
    match fused {
        Some((output, ())) => Tensor::from_dispatch(output),
        None => plain(x, cosines, sines),
    }
}

/// By Burn's operations.
fn plain(x: Tensor<4>, cosines: Tensor<2>, sines: Tensor<2>) -> Tensor<4> {
    let ([_, positions, _, depth], [rows, planes]) = (x.dims(), cosines.dims());
    let angles =
        |angles: Tensor<2>| angles.cast(x.dtype()).reshape([rows / positions.max(1), positions, 1, planes]);
    let (cosines, sines) = (angles(cosines), angles(sines));
    let a = x.clone().narrow(3, 0, planes);
    let b = x.clone().narrow(3, planes, planes);
    let rotated = [a.clone() * cosines.clone() - b.clone() * sines.clone(), b * cosines + a * sines];
    let rest = (2 * planes < depth).then(|| x.narrow(3, 2 * planes, depth - 2 * planes));
    Tensor::cat(rotated.into_iter().chain(rest).collect(), 3)
}

/// Of x, with cosines and sines.
#[derive(Debug)]
struct Rotary([FlexTensor; 2]);

impl Rotary {
    fn rotate<T: Number>(&self, x: FlexTensor, rotation: Rotation) -> FlexTensor {
        let (x, [cosines, sines]) = (contiguous(x), &self.0);
        let shape = x.layout().shape().clone();
        let planes = cosines.layout().shape()[1];
        let mut y = Buffer::<T>::new(shape.num_elements());
        let angles = Angles { cosines: values(cosines), sines: values(sines), planes };
        rotary::rotary(values(&x), [shape[2], shape[3]], angles, rotation, &mut y);
        y.into_tensor(shape)
    }
}

impl FusedOperation<1> for Rotary {
    type Saved = ();
    type Extra = ();

    fn forward<T: Number>(&self, [x]: [FlexTensor; 1], _: [bool; 1]) -> (FlexTensor, Option<()>, ()) {
        (self.rotate::<T>(x, Rotation::Forward), Some(()), ())
    }

    fn backward<T: Number>(self, (): (), gradient: FlexTensor, _: [bool; 1]) -> [Option<FlexTensor>; 1] {
        [Some(self.rotate::<T>(gradient, Rotation::Backward))]
    }
}
