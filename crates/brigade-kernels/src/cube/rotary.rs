//! Rotary positions.

use burn::backend::Cube;
use burn::tensor::Tensor;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::launch::{element, empty, rows, unit_count, unit_for_each, vector_size};
use crate::autodiff::graph::Operation;

/// Of x, `[batch, positions, heads, depth]`.
#[derive(Debug, Clone)]
pub(crate) struct Rotary {
    /// Of the angles, in fp32, on the device of x and in no graph: cosines and sines.
    pub angles: [Tensor<2>; 2],
}

impl Operation<1, CubeTensor> for Rotary {
    type Saved = ();
    type Extra = ();

    fn forward(&self, [x]: [CubeTensor; 1], _: [bool; 1]) -> (CubeTensor, Option<()>, ()) {
        (self.rotated(x, 1.0), Some(()), ())
    }

    fn backward(self, (): (), gradient: CubeTensor, _: [bool; 1]) -> [Option<CubeTensor>; 1] {
        [Some(self.rotated(gradient, -1.0))]
    }
}

impl Rotary {
    /// `sign`: of the angles.
    fn rotated(&self, x: CubeTensor, sign: f32) -> CubeTensor {
        let (x, _) = rows(x);
        let [cosines, sines] = self.angles.clone().map(|angles| {
            let Ok(angles) = angles.try_into_primitive::<Cube>() else {
                unreachable!("angles are on the device of the vectors")
            };
            into_contiguous(angles)
        });
        let y = empty(&x, x.meta.shape().clone(), x.dtype);
        let [heads, depth] = [x.meta.shape()[2], x.meta.shape()[3]];
        let [positions, planes] = [cosines.meta.shape()[0], cosines.meta.shape()[1]];
        let vector = vector_size(&[&x, &cosines], planes).min(vector_size(&[&x], depth));
        let elements = x.meta.num_elements() / vector;
        let (cubes, units) = unit_for_each(elements);
        // SAFETY: it reads and writes as many elements as x and y have, and reads rows of angles up to their number.
        unsafe {
            rotary_kernel::launch_unchecked(
                &x.client,
                cubes,
                units,
                x.required_address_type(),
                vector,
                x.clone().into_buffer_arg(),
                cosines.into_buffer_arg(),
                sines.into_buffer_arg(),
                y.clone().into_buffer_arg(),
                elements,
                positions,
                heads,
                sign,
                depth / vector,
                planes / vector,
                2 * planes / vector,
                element(&x),
            );
        }
        y
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn rotary_kernel<T: Float, N: Size>(
    x: &[Vector<T, N>],
    cosines: &[Vector<f32, N>],
    sines: &[Vector<f32, N>],
    y: &mut [Vector<T, N>],
    elements: usize,
    positions: usize,
    heads: usize,
    sign: f32,
    #[comptime] depth: usize,
    #[comptime] planes: usize,
    #[comptime] rotated: usize,
    #[define(T)] _element: ElemType,
) {
    let mut index = ABSOLUTE_POS;
    while index < elements {
        let column = index % depth;
        let mut value = Vector::<f32, N>::cast_from(x[index]);
        if column < rotated {
            let plane = column % planes;
            let first = index - column + plane;
            let angle = ((index / depth) / heads) % positions * planes + plane;
            let a = Vector::<f32, N>::cast_from(x[first]);
            let b = Vector::<f32, N>::cast_from(x[first + planes]);
            let cosine = cosines[angle];
            let sine = sines[angle] * Vector::new(sign);
            if column < planes {
                value = a * cosine - b * sine;
            } else {
                value = b * cosine + a * sine;
            }
        }
        y[index] = Vector::cast_from(value);
        index += unit_count();
    }
}
