//! Dropout between layers.

use brigade_kernels::{dropout, is_fused};
use burn::nn::Dropout;
use burn::tensor::Tensor;

/// Whether a layer drops anything of this tensor: in training, unless it is frozen.
pub(super) fn drops<const D: usize>(x: &Tensor<D>, layer: &Dropout) -> bool {
    layer.prob > 0.0 && layer.training.is_enabled() && x.device().is_autodiff()
}

/// In training `x` with some of its elements dropped.
pub(crate) fn dropped<const D: usize>(x: Tensor<D>, layer: &Dropout) -> Tensor<D> {
    match drops(&x, layer) {
        true if is_fused(&x) => dropout(x, None, layer.prob),
        _ => layer.forward(x),
    }
}

/// `residual + x`, in training with some elements of `x` dropped.
pub(crate) fn dropped_onto<const D: usize>(x: Tensor<D>, residual: Tensor<D>, layer: &Dropout) -> Tensor<D> {
    match drops(&x, layer) {
        true if is_fused(&x) && is_fused(&residual) => dropout(x, Some(residual), layer.prob),
        _ => residual + layer.forward(x),
    }
}

#[cfg(test)]
mod tests {
    use brigade_kernels::Mask;
    use burn::module::Module;
    use burn::nn::DropoutConfig;
    use burn::tensor::Device;

    use super::*;
    use crate::layers::{attend, attend_packed};

    #[test]
    fn a_frozen_layer_drops_nothing() {
        let device = Device::default().autodiff();
        let x = Tensor::<2>::ones([64, 48], &device);
        let results = |layer: &Dropout| {
            let qkv = x.clone().reshape([1, 64, 48]);
            let vectors = qkv.clone().reshape([1, 64, 12, 4]).swap_dims(1, 2);
            let vectors = [0, 1, 2].map(|index| vectors.clone().narrow(1, index * 4, 4));
            let results = [
                dropped(x.clone(), layer),
                dropped_onto(x.clone(), x.clone(), layer),
                attend_packed(qkv, 4, Mask::None, 0.5, layer).reshape([64, 16]),
                attend(vectors, Mask::None, 0.5, None, layer).reshape([64, 16]),
            ];
            results.map(|result| result.into_data().try_to_vec::<f32>().unwrap())
        };
        let layer = DropoutConfig::new(0.5).init();
        let none = results(&DropoutConfig::new(0.0).init());
        assert!(results(&layer).iter().zip(&none).all(|(some, none)| some != none));
        assert_eq!(results(&layer.freeze()), none);
    }
}
