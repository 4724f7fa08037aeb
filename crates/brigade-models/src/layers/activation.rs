//! Activations.

use brigade_hf::config;
use brigade_kernels::Activation;

/// The one that a configuration names.
pub(crate) fn activation(named: config::Activation) -> Activation {
    match named {
        config::Activation::Gelu => Activation::Gelu,
        config::Activation::GeluTanh => Activation::GeluTanh,
        config::Activation::Silu => Activation::Silu,
    }
}
