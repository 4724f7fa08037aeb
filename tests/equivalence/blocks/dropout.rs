//! Burn's own layers that draw random numbers, unchanged: the same bits on every mesh, and the gradients of what was drawn.

use std::sync::{Arc, Mutex};

use brigade::core::{
    Batch, Block, Chain, CheckBlocks, EngineSettings, ForwardContext, Groups, Model, NamedTensor, Recompute,
    with_seed,
};
use brigade::models::Tokens as GptTokens;
use brigade::models::gpt::{self, Gelu, GptConfig};
use burn::module::Module;
use burn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{
    Dropout, DropoutConfig, Embedding, EmbeddingConfig, GaussianNoise, GaussianNoiseConfig, Linear,
    LinearConfig,
};
use burn::tensor::{Device, Distribution, Int, Tensor};

use crate::case::{Case, floats, ints};

const VOCABULARY: usize = 13;
const WIDTH: usize = 8;
const LENGTH: usize = 5;

type Tokens = Tensor<2, Int>;

fn device() -> Device {
    brigade_cpu::device().autodiff()
}

/// Dropout of the embeddings; in attention, feed-forward and residuals; and of the head's input.
fn encoder(dropout: f64) -> Encoder {
    let embedding = EmbeddingConfig::new(VOCABULARY, WIDTH).init(&device());
    let layer = || TransformerEncoderConfig::new(WIDTH, 16, 2, 1).with_dropout(dropout).init(&device());
    let head = LinearConfig::new(WIDTH, 2).init(&device());
    let drop = DropoutConfig::new(dropout).init();
    type Embed = (Embedding, Dropout);
    type Head = (Dropout, Linear);
    let encode = |m: &burn::nn::transformer::TransformerEncoder, x: Tensor<3>| {
        m.forward(TransformerEncoderInput::new(x))
    };
    Chain::new()
        .then_fn("embedding", (embedding, drop.clone()), |(m, d): &Embed, x: Tokens| d.forward(m.forward(x)))
        .then_fn("layers.0", layer(), encode)
        .then_fn("layers.1", layer(), encode)
        .then_fn("head", (drop, head), |(d, m): &Head, x| m.forward(d.forward(x)))
        .loss(|output, target: Tensor<3>| (output - target).square().sum())
}

fn batch(number: usize) -> Sentences {
    let input = ints(number, VOCABULARY, [2, LENGTH]);
    Batch::new(input, floats(number, 3, [2, LENGTH, 2]), 2 * LENGTH)
}

type Encoder = Model<Tokens, Tensor<3>, Tensor<3>>;
type Sentences = Batch<Tokens, Tensor<3>>;

fn dropping(dropout: f64) -> Case<impl Fn() -> Encoder, fn(usize) -> Sentences> {
    Case { model: move || encoder(dropout), batch }
}

#[test]
fn dropout_has_the_same_masks_on_every_mesh() {
    let with = dropping(0.2).equals_one_process();
    let without = dropping(0.0).equals_one_process();
    assert_ne!(with.figures, without.figures, "something is dropped");
}

/// A GPT on fused operations, of whose attention the probabilities are dropped tile by tile, and the same on Burn's own.
#[test]
fn dropout_inside_attention() {
    let gpt = |dropout| {
        let config = GptConfig {
            vocabulary: VOCABULARY,
            sequence_length: LENGTH,
            width: WIDTH,
            layers: 3,
            heads: 2,
            tied_head: true,
            activation: Gelu::Gelu,
            dropout,
            initializer_range: 0.02,
        };
        let chain = move || config.chain(5, &brigade_cpu::device()).unwrap();
        let model = move || chain().loss(|logits, targets| gpt::cross_entropy(logits, targets).0);
        let batch = |number| {
            let ids = ints(number, VOCABULARY, [2, LENGTH]);
            let targets = gpt::Targets { tokens: ints(number + 100, VOCABULARY, [2, LENGTH]), mask: None };
            Batch::new(GptTokens::from(ids), targets, 2 * LENGTH)
        };
        Case { model, batch }
    };
    let with = gpt(0.2).equals_one_process();
    let without = gpt(0.0).equals_one_process();
    assert_ne!(with.figures, without.figures, "something is dropped");
}

/// Noise that is added, and numbers that a block draws by itself.
#[test]
fn so_has_whatever_else_draws_from_burns_generator() {
    type Noisy = (GaussianNoise, Linear);
    let noisy = |(noise, linear): &Noisy, x: Tensor<2>| {
        let drawn = Tensor::<2>::random(x.dims(), Distribution::Normal(0.0, 0.1), &x.device());
        linear.forward(noise.forward(x) + drawn)
    };
    let module = || (GaussianNoiseConfig::new(0.2).init(), LinearConfig::new(4, 4).init(&device()));
    let model = move || {
        Chain::new()
            .then_fn("a", module(), noisy)
            .then_fn("b", module(), noisy)
            .then_fn("c", module(), noisy)
            .then_fn("d", module(), noisy)
            // The loss may draw as well.
            .loss(|output: Tensor<2>, target: Tensor<2>| {
                let weights =
                    Tensor::<2>::random(output.dims(), Distribution::Uniform(0.5, 1.5), &output.device());
                ((output - target).square() * weights).sum()
            })
    };
    let batch = |number| Batch::new(floats(number, 1, [3, 4]), floats(number, 2, [3, 4]), 3);
    Case { model, batch }.equals_one_process();
}

/// A layer that gives the mask that it drew.
fn masks(step: u64, micro_batch: usize, block: &str) -> Vec<f32> {
    let context = ForwardContext { seed: 11, step, micro_batch, block, training: true };
    let device = device();
    let drawn = with_seed(&device, context.random_seed(), || {
        DropoutConfig::new(0.5).init().forward(Tensor::<1>::ones([64], &device))
    });
    drawn.into_data().try_to_vec().unwrap()
}

#[test]
fn masks_differ_between_steps_micro_batches_and_blocks() {
    let mask = masks(1, 0, "a");
    assert_eq!(mask, masks(1, 0, "a"));
    for other in [masks(2, 0, "a"), masks(1, 1, "a"), masks(1, 0, "b")] {
        assert_ne!(mask, other);
    }
}

/// A plain Burn program that seeds Burn's generator as Brigade does has its losses.
#[test]
fn a_plain_program_with_the_same_seeds_has_the_same_loss() {
    let case = dropping(0.2);
    let mut engine = case.engine(Groups::single_rank(), EngineSettings::default()).unwrap();
    let mut model = encoder(0.2);
    model.chain_mut().initialize(11).unwrap();
    let weights = model.chain().tensors().unwrap();
    let batches: Vec<_> = (0..2).map(batch).collect();
    let loss = engine.gradients(&batches, 0).unwrap().0;

    // The same model as its modules.
    let drop = DropoutConfig::new(0.2).init();
    let values = |name: &str| weights.iter().find(|tensor| tensor.name == name).unwrap().data.clone();
    let layer = |name: &str| {
        let encoder = TransformerEncoderConfig::new(WIDTH, 16, 2, 1).with_dropout(0.2).init(&device());
        filled(encoder, name, &values)
    };
    let embedding =
        filled((EmbeddingConfig::new(VOCABULARY, WIDTH).init(&device()), drop.clone()), "embedding", &values);
    let layers = [layer("layers.0"), layer("layers.1")];
    let head = filled(
        (DropoutConfig::new(0.2).init(), LinearConfig::new(WIDTH, 2).init(&device())),
        "head",
        &values,
    );
    let mut losses = Vec::new();
    for (micro_batch, Batch { input, target, .. }) in batches.into_iter().enumerate() {
        let seed =
            |block| ForwardContext { seed: 11, step: 1, micro_batch, block, training: true }.random_seed();
        let device = device();
        let input = Tensor::<2, Int>::from_data(input.into_data(), &device);
        let mut x = with_seed(&device, seed("embedding"), || drop.forward(embedding.0.forward(input)));
        for (layer, name) in layers.iter().zip(["layers.0", "layers.1"]) {
            x = with_seed(&device, seed(name), || layer.forward(TransformerEncoderInput::new(x)));
        }
        let output = with_seed(&device, seed("head"), || head.1.forward(head.0.forward(x)));
        let target = Tensor::<3>::from_data(target.into_data(), &device);
        losses.push((output - target).square().sum().div_scalar(20.0).into_scalar::<f32>());
    }
    assert_eq!(loss as f32, losses[0] + losses[1]);
}

#[test]
fn gradients_are_those_of_the_step_that_follows() {
    let case = dropping(0.2);
    let mut engine = case.engine(Groups::single_rank(), EngineSettings::default()).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let of_hook = seen.clone();
    engine.on_gradient(move |unit, gradient| {
        let values = gradient.to_data().try_to_vec::<f32>().unwrap();
        of_hook.lock().unwrap().push((unit.step, unit.unit.to_owned(), values));
        gradient
    });
    for step in 1..=2 {
        let batches: Vec<_> = (0..2).map(batch).collect();
        let (loss, _) = engine.gradients(&batches, 0).unwrap();
        let alone = std::mem::take(&mut *seen.lock().unwrap());
        let report = engine.step(batches, 1e-2).unwrap();
        assert_eq!(loss.to_bits(), report.loss.to_bits());
        assert!(alone.len() == 4 && alone.iter().all(|(of, ..)| *of == step));
        assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), alone);
    }
}

/// A module with the values of the file's tensors.
pub fn filled<M: Module>(module: M, name: &str, values: &dyn Fn(&str) -> burn::tensor::TensorData) -> M {
    use burn::module::{ModuleMapper, Param};
    struct Fill<'a>(Vec<String>, &'a dyn Fn(&str) -> burn::tensor::TensorData);
    impl ModuleMapper for Fill<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let value = Tensor::from_data((self.1)(&self.0.join(".")), &param.lazy_device());
            let id = param.id;
            param.transform_for_load(value, id)
        }
    }
    module.map(&mut Fill(vec![name.to_owned()], values))
}

/// The gradients are those of the loss with the masks that were drawn, recomputed or not: finite differences say so.
#[test]
fn gradients_are_those_of_the_masks() {
    for recompute in [Recompute::None, Recompute::Every(1)] {
        let settings = EngineSettings { recompute, ..EngineSettings::default() };
        let batches: Vec<_> = (0..2).map(batch).collect();
        let loss_of = |change: &dyn Fn(&str, &mut [f32])| -> (f64, Vec<NamedTensor>) {
            let mut model = encoder(0.3);
            model.chain_mut().initialize(11).unwrap();
            let mut tensors = model.chain().tensors().unwrap();
            for NamedTensor { name, data } in &mut tensors {
                change(name, data.as_mut_slice::<f32>().unwrap());
            }
            let mut model = encoder(0.3);
            model.chain_mut().load(move |name, _| {
                let found = tensors.iter().find(|tensor| tensor.name == name);
                Ok(found.map(|tensor| tensor.data.try_to_vec::<f32>().unwrap()))
            });
            let adamw = crate::layers::adamw();
            let mut engine =
                brigade::core::Engine::new(model, 11, &adamw, Groups::single_rank(), settings.clone())
                    .unwrap();
            engine.gradients(&batches, 0).unwrap()
        };
        let (_, gradients) = loss_of(&|_, _| ());
        let mut checked = 0;
        for NamedTensor { name, data } in &gradients {
            let gradient = data.try_to_vec::<f32>().unwrap();
            let largest =
                (0..gradient.len()).max_by(|a, b| gradient[*a].abs().total_cmp(&gradient[*b].abs())).unwrap();
            if gradient[largest].abs() < 1e-3 {
                continue;
            }
            let step = 1e-2;
            let at = |by: f32| {
                loss_of(&|other, values: &mut [f32]| {
                    if other == name {
                        values[largest] += by;
                    }
                })
                .0
            };
            let slope = (at(step) - at(-step)) / (2.0 * f64::from(step));
            let error = (slope - f64::from(gradient[largest])).abs();
            assert!(
                error < 2e-2 * slope.abs() + 1e-4,
                "{name}: {slope} against {}, {recompute:?}",
                gradient[largest]
            );
            checked += 1;
        }
        assert!(checked > 20, "{checked} of {} parameters", gradients.len());
    }
}

/// A block whose output is not a function of what it is given.
#[derive(Module, Debug)]
struct Unsteady {
    linear: Linear,
}

impl Block for Unsteady {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static CALLS: AtomicU32 = AtomicU32::new(0);
        self.linear.forward(x).add_scalar(CALLS.fetch_add(1, Ordering::Relaxed) as f32)
    }
}

#[test]
fn a_block_that_is_no_function_is_named() {
    let linear = || LinearConfig::new(4, 4).init(&device());
    let model = move || {
        Chain::new()
            .then_fn("steady", linear(), |m: &Linear, x: Tensor<2>| m.forward(x))
            .then("unsteady", Unsteady { linear: linear() })
            .loss(|output: Tensor<2>, target: Tensor<2>| (output - target).square().sum())
    };
    let batch = |number| Batch::new(floats(number, 1, [3, 4]), floats(number, 2, [3, 4]), 3);
    let case = Case { model, batch };
    let zero = EngineSettings::default().zero;
    let run = |check_blocks, steps: usize| {
        let settings = EngineSettings { check_blocks, ..EngineSettings::default() };
        let mut engine = case.engine(Groups::single_rank(), settings).unwrap();
        let batches = |step| case.batches(zero, &Groups::single_rank(), step);
        (0..steps).map(|step| engine.step(batches(step), 1e-2).map(|report| report.step)).collect::<Vec<_>>()
    };
    let message = run(CheckBlocks::Always, 1).pop().unwrap().unwrap_err().to_string();
    assert!(message.contains("block `unsteady` gives a different output when it is run again"), "{message}");
    let results = run(CheckBlocks::First, 2);
    assert!(results[0].is_err() && results[1].is_ok(), "the first micro-batch alone is checked");
    assert!(run(CheckBlocks::Never, 2).iter().all(Result::is_ok));
}
