//! Activations.

use brigade_hf::config;
use brigade_kernels::ActivationFunction;

/// The one that a configuration names.
pub(crate) fn activation(named: config::ActivationFunction) -> ActivationFunction {
    match named {
        config::ActivationFunction::Gelu => ActivationFunction::Gelu,
        config::ActivationFunction::GeluTanh => ActivationFunction::GeluTanh,
        config::ActivationFunction::Silu => ActivationFunction::Silu,
    }
}
