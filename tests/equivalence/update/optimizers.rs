//! Every elementwise optimizer, and one of a program's own: as plain Burn's on an ordinary module, and on every mesh.

use brigade::core::{Elementwise, OptimizerFactory};
use burn::module::Module;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdamConfig, AdamWConfig, AdanConfig, GradientsAccumulator, GradientsParams, LionConfig,
    ModuleOptimizer, Optimizer, RecordState, RmsPropConfig, SgdConfig, StateSink, StateSource,
};
use burn::tensor::{Device, Distribution, Tensor};

use super::{ALONE, Case, Layer, MICRO_BATCHES, Outcome, RATE, ROWS, layer, loss, of};

/// The four layers in one module.
#[derive(Module, Debug)]
struct Whole {
    a: Layer,
    b: Layer,
    c: Layer,
    d: Layer,
}

/// Trains the model with plain Burn, and compares it with what Brigade trained.
fn equals_plain_burn(optimizer: impl Optimizer, trained: &Outcome, what: &str) {
    let layer = |name: &str| brigade::initialize(layer(), 3, name);
    let mut model = Whole { a: layer("a"), b: layer("b"), c: layer("c"), d: layer("d") };
    let mut optimizer = ModuleOptimizer::from(optimizer);
    for step in 0..trained.reports.len() {
        // Brigade adds micro-batches up in pairs.
        let mut pairs = [(); 2].map(|()| GradientsAccumulator::new());
        for number in 0..MICRO_BATCHES {
            let batch = (Case::default().batch)(MICRO_BATCHES * step + number);
            let forward = |x, layer: &Layer| brigade::Block::forward(layer, x);
            let output = [&model.a, &model.b, &model.c, &model.d].into_iter().fold(batch.input, forward);
            let loss = loss(output, batch.target).div_scalar((MICRO_BATCHES * ROWS) as f64);
            pairs[number / 2].accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
        }
        let [mut sum, mut second] = pairs;
        sum.accumulate(&model, second.grads());
        model = optimizer.step(RATE, model, sum.grads());
    }
    for (name, layer) in [("a", &model.a), ("b", &model.b), ("c", &model.c), ("d", &model.d)] {
        let bias = layer.linear.bias.as_ref().unwrap().val();
        for (path, values) in [("weight", layer.linear.weight.val().into_data()), ("bias", bias.into_data())]
        {
            let found = of(&trained.weights, &format!("{name}.linear.{path}"));
            assert!(
                found.iter().zip(values.as_slice::<f32>().unwrap()).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{what}: {name}.{path}"
            );
        }
    }
}

fn check(what: &str, optimizer: impl Elementwise) {
    let factory = OptimizerFactory::new(optimizer.clone(), optimizer.clone());
    let trained = Case { optimizer: factory, ..Case::default() }.equals_one_process(what);
    equals_plain_burn(optimizer, &trained, what);
    let untrained = Case::default().train(ALONE, None, 0..0);
    assert!(
        of(&trained.weights, "a.linear.weight") != of(&untrained.weights, "a.linear.weight"),
        "{what} trains"
    );
}

#[test]
fn adam_and_adamw() {
    check("AdamW", AdamWConfig::new().with_weight_decay(0.1).build());
    check(
        "AdamW, AMSGrad, cautious",
        AdamWConfig::new().with_amsgrad(true).with_cautious_weight_decay(true).with_weight_decay(0.1).build(),
    );
    check("Adam", AdamConfig::new().with_weight_decay(Some(WeightDecayConfig::new(0.1))).build());
    check("Adam, AMSGrad", AdamConfig::new().with_amsgrad(true).build());
}

#[test]
fn sgd_and_lion() {
    let nesterov = MomentumConfig::new().with_nesterov(true).with_dampening(0.2);
    check("SGD", SgdConfig::new().with_weight_decay(Some(WeightDecayConfig::new(0.1))).build());
    check("SGD, Nesterov", SgdConfig::new().with_momentum(Some(nesterov)).build());
    check("Lion", LionConfig::new().with_weight_decay(0.1).build());
}

#[test]
fn rmsprop_adagrad_and_adan() {
    check("RMSprop", RmsPropConfig::new().with_momentum(0.0).build());
    let centered = RmsPropConfig::new().with_centered(true).with_momentum(0.5);
    check("RMSprop, centered", centered.with_weight_decay(Some(WeightDecayConfig::new(0.1))).build());
    check("AdaGrad", AdaGradConfig::new().with_lr_decay(0.1).build());
    check("Adan", AdanConfig::new().with_weight_decay(0.1).build());
    check("Adan, no proximal decay", AdanConfig::new().with_weight_decay(0.1).with_no_prox(true).build());
}

/// Follows the sign of a mean of gradients that forgets ever less, with noise from Burn's generator.
#[derive(Clone)]
struct Signs {
    noise: f64,
}

#[derive(Clone)]
struct SignsState<const D: usize> {
    steps: usize,
    mean: Tensor<D>,
}

/// What a checkpoint has of it.
impl<const D: usize> RecordState for SignsState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        out.push_scalar(prefix, "steps", self.steps.into());
        out.push_tensor(prefix, "mean", self.mean.to_data());
    }

    fn state_unflatten(prefix: &str, from: &mut StateSource, device: &Device) -> Option<Self> {
        let steps = from.take_scalar(prefix, "steps")?.try_into().ok()?;
        let mean = Tensor::from_data(from.take_tensor(prefix, "mean")?, device);
        Some(Self { steps, mean })
    }
}

impl Elementwise for Signs {}

impl Optimizer for Signs {
    type State<const D: usize> = SignsState<D>;

    fn step<const D: usize>(
        &self,
        learning_rate: f64,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<SignsState<D>>,
    ) -> (Tensor<D>, Option<SignsState<D>>) {
        let (steps, mean) = match state {
            Some(SignsState { steps, mean }) => {
                let kept = steps as f64 / (steps + 1) as f64;
                (steps + 1, mean.mul_scalar(kept) + gradient.mul_scalar(1.0 - kept))
            }
            None => (1, gradient),
        };
        let mut stepped = tensor - mean.clone().sign().mul_scalar(learning_rate);
        if self.noise > 0.0 {
            stepped = stepped.clone() + stepped.random_like(Distribution::Uniform(0.0, self.noise));
        }
        (stepped, Some(SignsState { steps, mean }))
    }

    fn to_device<const D: usize>(
        SignsState { steps, mean }: SignsState<D>,
        device: &Device,
    ) -> SignsState<D> {
        SignsState { steps, mean: mean.to_device(device) }
    }
}

#[test]
fn an_optimizer_of_ones_own() {
    check("an optimizer of one's own", Signs { noise: 0.0 });
}

#[test]
fn an_optimizer_that_draws() {
    Case { optimizer: Signs { noise: 1e-2 }.into(), ..Case::default() }
        .draws_alike("an optimizer that draws");
}
