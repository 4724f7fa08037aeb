//! Activations, with the addition of a bias before and the sums of its gradient after, and gated ones.

mod function;
mod gated;
#[cfg(test)]
mod tests;

use pulp::Simd;

use crate::arch::dispatch;
use crate::element::Element;
use crate::rows::{ColumnSums, accumulate, check_length, check_rows};
use crate::slices::for_each_vector;
use function::{Function, Gelu, GeluTanh, Relu, Silu};

/// A function of each element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActivationFunction {
    /// `x · Φ(x)`, by the error function (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016).
    Gelu,
    /// Its approximation by a hyperbolic tangent, from the same paper.
    GeluTanh,
    /// `x · sigmoid(x)`, also called swish.
    Silu,
    /// `max(x, 0)`.
    Relu,
}

/// Calls `$function` with the activation's [`Function`] as its first argument.
macro_rules! with_function {
    ($activation:expr, |$function:ident| $call:expr) => {
        match $activation {
            ActivationFunction::Gelu => {
                let $function = Gelu;
                $call
            }
            ActivationFunction::GeluTanh => {
                let $function = GeluTanh;
                $call
            }
            ActivationFunction::Silu => {
                let $function = Silu;
                $call
            }
            ActivationFunction::Relu => {
                let $function = Relu;
                $call
            }
        }
    };
}
use with_function;

impl ActivationFunction {
    /// `y ← f(x)`.
    ///
    /// # Panics
    /// If `y` is not as long as `x`.
    pub fn apply<T: Element>(self, x: &[T], y: &mut [T]) {
        #[inline(always)]
        fn pass<S: Simd, F: Function, T: Element>(simd: S, function: F, x: &[T], y: &mut [T]) {
            for_each_vector(
                simd,
                (x, y),
                #[inline(always)]
                |(x, y)| T::store(simd, y, function.value(simd, T::load(simd, x))),
            );
        }
        check_length("y", y.len(), x.len());
        with_function!(self, |f| dispatch!(
            pass[F: Function, T: Element](f: F, x: &[T], y: &mut [T]) -> ()
        ));
    }

    /// `x ← x + bias`, in each row, if there is a bias, which is as long as a row; then `y ← f(x)`.
    ///
    /// # Panics
    /// If `y` is not as long as `x`, or `x` is not whole rows of the bias's length.
    pub fn forward<T: Element>(self, x: &mut [T], bias: Option<&[T]>, y: &mut [T]) {
        #[inline(always)]
        fn biased<S: Simd, F: Function, T: Element>(
            simd: S,
            function: F,
            x: &mut [T],
            bias: &[T],
            y: &mut [T],
        ) {
            let width = bias.len().max(1);
            for (x, y) in x.chunks_exact_mut(width).zip(y.chunks_exact_mut(width)) {
                for_each_vector(
                    simd,
                    ((x, bias), y),
                    #[inline(always)]
                    |((x, bias), y)| {
                        // As it is rounded: the backward pass sees nothing else.
                        let sum = T::round(simd, simd.add_f32s(T::load(simd, x), T::load(simd, bias)));
                        T::store(simd, x, sum);
                        T::store(simd, y, function.value(simd, sum));
                    },
                );
            }
        }
        check_length("y", y.len(), x.len());
        match bias {
            None => self.apply(x, y),
            Some(bias) => {
                check_rows("x", x.len(), bias.len());
                with_function!(self, |f| dispatch!(
                    biased[F: Function, T: Element](f: F, x: &mut [T], bias: &[T], y: &mut [T]) -> ()
                ));
            }
        }
    }

    /// `d_x ← gradient · f'(x)`, where `x` is what [`forward`](Self::forward) left there. Adds the sums of `d_x`'s columns, before they are rounded to `T`,
    /// to `sums`, if given, which is as long as a row: the bias' gradient.
    ///
    /// # Panics
    /// If `gradient` or `d_x` is not as long as `x`, or `x` is not whole rows of the length of `sums`.
    pub fn backward<T: Element>(self, x: &[T], gradient: &[T], d_x: &mut [T], sums: Option<&mut [f32]>) {
        #[inline(always)]
        fn plain<S: Simd, F: Function, T: Element>(
            simd: S,
            function: F,
            x: &[T],
            gradient: &[T],
            d_x: &mut [T],
        ) {
            for_each_vector(
                simd,
                ((x, gradient), d_x),
                #[inline(always)]
                |((x, gradient), d_x)| {
                    let gradient = T::load(simd, gradient);
                    T::store(simd, d_x, function.backward(simd, T::load(simd, x), gradient));
                },
            );
        }
        #[inline(always)]
        fn summed<S: Simd, F: Function, T: Element>(
            simd: S,
            function: F,
            x: &[T],
            gradient: &[T],
            d_x: &mut [T],
            sums: &mut [f32],
        ) {
            let width = sums.len().max(1);
            let mut columns = ColumnSums::new(sums.len());
            let rows = x.chunks_exact(width).zip(gradient.chunks_exact(width));
            for ((x, gradient), d_x) in rows.zip(d_x.chunks_exact_mut(width)) {
                for_each_vector(
                    simd,
                    (((x, gradient), d_x), columns.block()),
                    #[inline(always)]
                    |(((x, gradient), d_x), block)| {
                        let slope = function.backward(simd, T::load(simd, x), T::load(simd, gradient));
                        T::store(simd, d_x, slope);
                        accumulate(simd, block, slope);
                    },
                );
                columns.end_row();
            }
            columns.add_to(sums);
        }
        check_length("gradient", gradient.len(), x.len());
        check_length("d_x", d_x.len(), x.len());
        match sums {
            None => with_function!(self, |f| dispatch!(
                plain[F: Function, T: Element](f: F, x: &[T], gradient: &[T], d_x: &mut [T]) -> ()
            )),
            Some(sums) => {
                check_rows("x", x.len(), sums.len());
                with_function!(self, |f| dispatch!(
                    summed[F: Function, T: Element](
                        f: F, x: &[T], gradient: &[T], d_x: &mut [T], sums: &mut [f32]
                    ) -> ()
                ));
            }
        }
    }

    /// `gradient ← gradient · f'(x)` and `x ← f(x)`, which has the bits that [`forward`](Self::forward) gave, where `x` is what it left there. Adds to `sums` as
    /// [`backward`](Self::backward) does.
    ///
    /// # Panics
    /// If `gradient` is not as long as `x`, or `x` is not whole rows of the length of `sums`.
    pub fn backward_again<T: Element>(self, x: &mut [T], gradient: &mut [T], sums: Option<&mut [f32]>) {
        #[inline(always)]
        fn step<S: Simd, F: Function, T: Element>(
            simd: S,
            function: F,
            x: &mut [T],
            gradient: &mut [T],
        ) -> S::f32s {
            let value = T::load(simd, x);
            let slope = function.backward(simd, value, T::load(simd, gradient));
            T::store(simd, gradient, slope);
            T::store(simd, x, function.value(simd, value));
            slope
        }
        #[inline(always)]
        fn plain<S: Simd, F: Function, T: Element>(simd: S, function: F, x: &mut [T], gradient: &mut [T]) {
            for_each_vector(
                simd,
                (x, gradient),
                #[inline(always)]
                |(x, gradient)| {
                    step(simd, function, x, gradient);
                },
            );
        }
        #[inline(always)]
        fn summed<S: Simd, F: Function, T: Element>(
            simd: S,
            function: F,
            x: &mut [T],
            gradient: &mut [T],
            sums: &mut [f32],
        ) {
            let width = sums.len().max(1);
            let mut columns = ColumnSums::new(sums.len());
            for (x, gradient) in x.chunks_exact_mut(width).zip(gradient.chunks_exact_mut(width)) {
                for_each_vector(
                    simd,
                    ((x, gradient), columns.block()),
                    #[inline(always)]
                    |((x, gradient), block)| accumulate(simd, block, step(simd, function, x, gradient)),
                );
                columns.end_row();
            }
            columns.add_to(sums);
        }
        check_length("gradient", gradient.len(), x.len());
        match sums {
            None => with_function!(self, |f| dispatch!(
                plain[F: Function, T: Element](f: F, x: &mut [T], gradient: &mut [T]) -> ()
            )),
            Some(sums) => {
                check_rows("x", x.len(), sums.len());
                with_function!(self, |f| dispatch!(
                    summed[F: Function, T: Element](
                        f: F, x: &mut [T], gradient: &mut [T], sums: &mut [f32]
                    ) -> ()
                ));
            }
        }
    }
}
