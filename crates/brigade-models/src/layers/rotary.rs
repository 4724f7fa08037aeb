//! Tables of rotary positions.

use brigade_kernels::rotary;
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};

/// Cosines and sines of each position's angles.
#[derive(Module, Debug)]
pub(crate) struct RotaryTable {
    /// `[positions, planes]`.
    cosines: Tensor<2>,
    /// `[positions, planes]`.
    sines: Tensor<2>,
}

impl RotaryTable {
    /// Of positions from 0 on. The angles are multiples of `frequencies`, in fp32 as `transformers` computes them; cosines and sines are multiplied by `factor`.
    pub fn new(frequencies: &[f32], factor: f32, positions: usize, device: &Device) -> Self {
        let table = |function: fn(f64) -> f64| {
            let angles =
                (0..positions).flat_map(|position| frequencies.iter().map(move |f| position as f32 * f));
            let values: Vec<f32> = angles.map(|angle| function(f64::from(angle)) as f32 * factor).collect();
            let shape = [positions, frequencies.len()];
            Tensor::from_data(TensorData::new(values, shape), (device, burn::tensor::DType::F32))
        };
        Self { cosines: table(f64::cos), sines: table(f64::sin) }
    }

    /// Rotates `x`, `[batch, positions, heads, depth]`. `positions`: where they do not count from `start` in each row, `[batch, positions]`.
    pub fn rotate(&self, x: Tensor<4>, start: usize, positions: Option<&Tensor<2, Int>>) -> Tensor<4> {
        let [batch, length, _, _] = x.dims();
        let of = |table: &Tensor<2>| match positions {
            None => table.clone().slice(start..start + length),
            Some(positions) => table.clone().select(0, positions.clone().reshape([batch * length])),
        };
        rotary(x, of(&self.cosines), of(&self.sines))
    }
}
