//! Blocks that draw from their forward context have the same bits on every mesh and schedule, recomputed and resumed.

use brigade::core::plan::PipelineScheduleKind;
use brigade::core::{
    Batch, Block, Chain, DATA, Engine, EngineSettings, ForwardContext, Groups, NamedTensor, OptimizerFactory,
    Recompute, Zero,
};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Tensor, TensorData, activation::tanh};

use crate::mesh::{on_threads, same_bits};

const WIDTH: usize = 6;

/// A layer that drops some of its outputs in training, by a mask of its own from the context's seed.
#[derive(Module, Debug)]
struct Dropping {
    linear: Linear,
}

impl Block for Dropping {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        tanh(self.linear.forward(x))
    }

    fn forward_with(&self, x: Tensor<2>, context: &ForwardContext<'_>) -> Tensor<2> {
        if !context.training {
            return self.forward(x);
        }
        let ([rows, _], seed) = (x.dims(), context.random_seed());
        let mask: Vec<f32> = (0..rows * WIDTH)
            .map(|i| if seed.rotate_left(i as u32) & 3 == 0 { 0.0 } else { 4.0 / 3.0 })
            .collect();
        let device = x.device();
        self.forward(x) * Tensor::from_data(TensorData::new(mask, [rows, WIDTH]), &device)
    }
}

fn batch(number: usize) -> Batch<Tensor<2>, Tensor<2>> {
    let values = |salt: usize| {
        let values: Vec<f32> =
            (0..3 * WIDTH).map(|i| (((i + salt) * (number + 3) * 7919 % 101) as f32 - 50.0) / 50.0).collect();
        Tensor::from_data(TensorData::new(values, [3, WIDTH]), &brigade_cpu::device())
    };
    Batch { input: values(0), target: values(7), valid_targets: 3 }
}

/// Losses of two steps and of an evaluation, and the weights.
fn train(groups: Groups, settings: EngineSettings, seed: u64) -> (Vec<u64>, Vec<NamedTensor>) {
    let layer =
        || Dropping { linear: LinearConfig::new(WIDTH, WIDTH).init(&brigade_cpu::device().autodiff()) };
    let model = (0..4).fold(Chain::new(), |chain, index| chain.then(format!("layers.{index}"), layer()));
    let model = model.loss(|output: Tensor<2>, target: Tensor<2>| (output - target).square().sum());
    let adamw = AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(0.0).build();
    let optimizer = OptimizerFactory::new(adamw.clone(), adamw);
    let zero = settings.zero;
    let mut engine = Engine::new(model, seed, &optimizer, groups.clone(), settings).unwrap();
    let data = groups.over(&DATA);
    let (rank, ranks) = (data.rank(), data.size());
    let count = 4 / ranks;
    let mut losses = Vec::new();
    for step in 0..2 {
        let numbers =
            (0..count).map(|k| zero.micro_batch_number(groups.mesh(), groups.world().rank(), k, count));
        let report = engine.step(numbers.map(|number| batch(4 * step + number)).collect(), 1e-2).unwrap();
        losses.push(report.loss.to_bits());
    }
    let own: Vec<_> = (0..4).filter(|index| index % ranks == rank).collect();
    losses.push(engine.evaluate(own.len(), |k| Ok(batch(own[k]))).unwrap().loss.to_bits());
    (losses, engine.tensors(0).unwrap())
}

#[test]
fn what_a_block_draws_has_no_mesh() {
    let plain = EngineSettings::default();
    let (losses, weights) = train(Groups::alone(), plain.clone(), 3);
    assert_ne!(train(Groups::alone(), plain.clone(), 4).0, losses);
    let check = |(pp, dp): (usize, usize), settings: EngineSettings| {
        let what = format!("pp {pp} x dp {dp}, {settings:?}");
        let outcomes = on_threads(pp, dp, |groups| train(groups, settings.clone(), 3));
        assert!(outcomes.iter().all(|(found, _)| *found == losses), "{what}");
        same_bits(&outcomes[0].1, &weights, &what);
    };
    for mesh in [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (1, 4)] {
        for stage in [0, 1, 2, 3] {
            for recompute in [Recompute::None, Recompute::Every(1), Recompute::Every(2)] {
                let zero = Zero { stage, ..Zero::default() };
                check(mesh, EngineSettings { zero, recompute, ..plain.clone() });
            }
        }
    }
    let schedule = PipelineScheduleKind::Interleaved;
    check((2, 1), EngineSettings { schedule, chunks: 2, ..plain });
}
