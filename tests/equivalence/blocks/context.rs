//! Blocks that draw from their forward context have the same bits on every mesh and schedule, recomputed and resumed.

use brigade::core::plan::PipelineScheduleKind;
use brigade::core::{
    Block, Chain, DATA, Engine, EngineSettings, ForwardContext, Groups, NamedTensor, Recompute, Zero,
};
use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::{Tensor, TensorData, activation::tanh};

use crate::layers::{WIDTH, adamw, batch, linear, squared_error, step};
use crate::mesh::{on_threads, same_bits};

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

/// Losses of two steps and of an evaluation, and the weights.
fn train(groups: Groups, settings: EngineSettings, seed: u64) -> (Vec<u64>, Vec<NamedTensor>) {
    let layer = || Dropping { linear: linear() };
    let model = (0..4).fold(Chain::new(), |chain, index| chain.then(format!("layers.{index}"), layer()));
    let zero = settings.zero;
    let mut engine =
        Engine::new(model.loss(squared_error), seed, &adamw(), groups.clone(), settings).unwrap();
    let mut losses: Vec<_> =
        (0..2).map(|number| step(&mut engine, zero, &groups, number).loss.to_bits()).collect();
    let data = groups.over(&DATA);
    let (rank, ranks) = (data.rank(), data.size());
    let own: Vec<_> = (0..4).filter(|index| index % ranks == rank).collect();
    losses.push(engine.evaluate(own.len(), |k| Ok(batch(own[k]))).unwrap().loss.to_bits());
    (losses, engine.tensors(0).unwrap())
}

#[test]
fn what_a_block_draws_has_no_mesh() {
    let plain = EngineSettings::default();
    let (losses, weights) = train(Groups::single_rank(), plain.clone(), 3);
    assert_ne!(train(Groups::single_rank(), plain.clone(), 4).0, losses);
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
    check((2, 1), EngineSettings { schedule, chunks: 2, ..plain.clone() });
    check((2, 1), EngineSettings { schedule: PipelineScheduleKind::Zbv, chunks: 2, ..plain });
}
