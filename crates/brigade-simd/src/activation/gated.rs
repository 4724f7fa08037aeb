//! Gated linear units: `f(gate) · up`, SwiGLU with SiLU and GeGLU with GELU (Shazeer, "GLU Variants Improve Transformer", 2020).

use pulp::Simd;

use super::{ActivationFunction, Function, Gelu, GeluTanh, Relu, Silu, with_function};
use crate::arch::dispatch;
use crate::element::Element;
use crate::rows::check_length;
use crate::slices::for_each_vector;

impl ActivationFunction {
    /// `y ← f(gate) · up`.
    ///
    /// # Panics
    /// If `up` or `y` is not as long as `gate`.
    pub fn gated<T: Element>(self, gate: &[T], up: &[T], y: &mut [T]) {
        #[inline(always)]
        fn pass<S: Simd, F: Function, T: Element>(simd: S, function: F, gate: &[T], up: &[T], y: &mut [T]) {
            for_each_vector(
                simd,
                ((gate, up), y),
                #[inline(always)]
                |((gate, up), y)| {
                    let value = function.value(simd, T::load(simd, gate));
                    T::store(simd, y, simd.mul_f32s(value, T::load(simd, up)));
                },
            );
        }
        check_length("up", up.len(), gate.len());
        check_length("y", y.len(), gate.len());
        with_function!(self, |f| dispatch!(
            pass[F: Function, T: Element](f: F, gate: &[T], up: &[T], y: &mut [T]) -> ()
        ));
    }

    /// `d_gate ← gradient · up · f'(gate)` and `d_up ← gradient · f(gate)`.
    ///
    /// # Panics
    /// If a slice is not as long as `gate`.
    pub fn gated_backward<T: Element>(
        self,
        gate: &[T],
        up: &[T],
        gradient: &[T],
        d_gate: &mut [T],
        d_up: &mut [T],
    ) {
        #[inline(always)]
        fn pass<S: Simd, F: Function, T: Element>(
            simd: S,
            function: F,
            gate: &[T],
            up: &[T],
            gradient: &[T],
            d_gate: &mut [T],
            d_up: &mut [T],
        ) {
            for_each_vector(
                simd,
                (((gate, up), gradient), (d_gate, d_up)),
                #[inline(always)]
                |(((gate, up), gradient), (d_gate, d_up))| {
                    let (gate, gradient) = (T::load(simd, gate), T::load(simd, gradient));
                    let scaled = simd.mul_f32s(gradient, T::load(simd, up));
                    T::store(simd, d_gate, function.backward(simd, gate, scaled));
                    T::store(simd, d_up, simd.mul_f32s(gradient, function.value(simd, gate)));
                },
            );
        }
        check_length("up", up.len(), gate.len());
        check_length("gradient", gradient.len(), gate.len());
        check_length("d_gate", d_gate.len(), gate.len());
        check_length("d_up", d_up.len(), gate.len());
        with_function!(self, |f| dispatch!(
            pass[F: Function, T: Element](
                f: F, gate: &[T], up: &[T], gradient: &[T], d_gate: &mut [T], d_up: &mut [T]
            ) -> ()
        ));
    }
}
