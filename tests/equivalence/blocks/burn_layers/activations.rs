//! Activation functions as modules.

use burn::nn::activation::*;

use super::{device, each_layer};

#[rustfmt::skip]
each_layer! {
    swiglu: SwiGluConfig::new(32, 16).init(&device()), |m: SwiGlu, x| m.forward(x);
    prelu: PReluConfig::new().init(&device()), |m: PRelu, x| m.forward(x);
    rrelu: RReluConfig::new().init(), |m: RRelu, x| m.forward(x);
    celu: CeluConfig::new().init(), |m: Celu, x| m.forward(x);
    elu: EluConfig::new().init(), |m: Elu, x| m.forward(x);
    gelu: Gelu::new(), |m: Gelu, x| m.forward(x);
    gelu_of_tanh: Gelu::new_approximate(), |m: Gelu, x| m.forward(x);
    glu: GLU::new(1), |m: GLU, x| m.forward(x);
    hard_shrink: HardShrinkConfig::new().init(), |m: HardShrink, x| m.forward(x);
    hard_sigmoid: HardSigmoidConfig::new().init(), |m: HardSigmoid, x| m.forward(x);
    hard_swish: HardSwish::new(), |m: HardSwish, x| m.forward(x);
    hardtanh: HardtanhConfig::new().init(), |m: Hardtanh, x| m.forward(x);
    leaky_relu: LeakyReluConfig::new().init(), |m: LeakyRelu, x| m.forward(x);
    log_sigmoid: LogSigmoid::new(), |m: LogSigmoid, x| m.forward(x);
    mish: Mish::new(), |m: Mish, x| m.forward(x);
    relu: Relu::new(), |m: Relu, x| m.forward(x);
    relu6: Relu6::new(), |m: Relu6, x| m.forward(x);
    selu: Selu::new(), |m: Selu, x| m.forward(x);
    shrink: ShrinkConfig::new().init(), |m: Shrink, x| m.forward(x);
    sigmoid: Sigmoid::new(), |m: Sigmoid, x| m.forward(x);
    silu: SiLU::new(), |m: SiLU, x| m.forward(x);
    soft_shrink: SoftShrinkConfig::new().init(), |m: SoftShrink, x| m.forward(x);
    softplus: SoftplusConfig::new().init(), |m: Softplus, x| m.forward(x);
    softsign: Softsign::new(), |m: Softsign, x| m.forward(x);
    tanh: Tanh::new(), |m: Tanh, x| m.forward(x);
    tanhshrink: Tanhshrink::new(), |m: Tanhshrink, x| m.forward(x);
    threshold: ThresholdConfig::new(0.1, 0.2).init(), |m: Threshold, x| m.forward(x);
    thresholded_relu: ThresholdedReluConfig::new().init(), |m: ThresholdedRelu, x| m.forward(x);
    activation_of_nothing: ActivationConfig::Identity.init(&device()), |m: Activation, x| m.forward(x);
    activation_without_settings: ActivationConfig::GeluApproximate.init(&device()), |m: Activation, x| m.forward(x);
    activation_with_settings: ActivationConfig::from(EluConfig::new()).init(&device()), |m: Activation, x| m.forward(x);
    activation_with_a_parameter: ActivationConfig::from(PReluConfig::new()).init(&device()), |m: Activation, x| m.forward(x);
    activation_with_layers: ActivationConfig::from(SwiGluConfig::new(32, 16)).init(&device()), |m: Activation, x| m.forward(x);
}
