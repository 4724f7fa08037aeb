//! Predictions of a model that is spread over a mesh, and the whole model on one rank, have the bits of one process.

use brigade::core::plan::PipelineScheduleKind;
use brigade::core::{Block, Chain, Engine, EngineSettings, ForwardContext, Groups, Precision, Zero};
use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::{Int, Tensor, TensorData, activation::tanh};

use crate::layers::{WIDTH, adamw, batch, linear};
use crate::mesh::{on_threads, same_bits};
use crate::row::{MIXED, Row};

/// The logits of a GPT after two steps, for the inputs of a batch that it was not trained on.
fn logits(row: &Row, groups: Groups, input: usize) -> TensorData {
    let mut engine = row.engine(groups.clone()).unwrap();
    for number in 0..row.steps {
        row.step(&mut engine, number, &groups);
    }
    engine.predict(row.batch(99, input).input).unwrap().whole().into_data()
}

/// Each data-parallel rank asks for another input.
#[test]
fn every_rank_gets_the_output_of_one_process() {
    let interleaved =
        Row { pp: 2, layers: 6, schedule: PipelineScheduleKind::Interleaved, chunks: 2, ..Row::default() };
    let v = Row { schedule: PipelineScheduleKind::Zbv, ..interleaved.clone() };
    let zero = |stage| Zero { stage, ..Zero::default() };
    for row in [
        Row { dp: 2, ..Row::default() },
        Row { dp: 2, zero: zero(3), tied: true, ..Row::default() },
        Row { pp: 2, tied: true, ..Row::default() },
        Row { pp: 2, dp: 2, zero: zero(3), ..Row::default() },
        Row { pp: 3, zero: zero(1), ..Row::default() },
        Row { pp: 2, dp: 2, zero: zero(3), precision: MIXED, ..Row::default() },
        v,
        interleaved,
    ] {
        let expected = [0, 1].map(|input| logits(&row.reference(), Groups::single_rank(), input));
        assert_ne!(expected[0].as_bytes(), expected[1].as_bytes());
        let found = on_threads(row.pp, row.dp, |groups| {
            let input = groups.over(&brigade::core::DATA).rank() % 2;
            (input, logits(&row, groups, input))
        });
        for (input, found) in found {
            assert!(found.as_bytes() == expected[input].as_bytes(), "{row:?}");
        }
    }
}

#[test]
fn one_rank_gets_the_whole_model() {
    for (pp, dp, stage, precision) in
        [(1, 2, 3, Precision::default()), (2, 2, 3, MIXED), (3, 1, 0, Precision::default())]
    {
        let row =
            Row { pp, dp, tied: true, zero: Zero { stage, ..Zero::default() }, precision, ..Row::default() };
        let run = |row: &Row, groups: Groups| {
            let mut engine = row.engine(groups.clone()).unwrap();
            for number in 0..row.steps {
                row.step(&mut engine, number, &groups);
            }
            let last = groups.world().size() - 1;
            let whole = engine.whole_chain(last).unwrap();
            // The engine goes on as if nothing had been asked of it.
            row.step(&mut engine, row.steps, &groups);
            whole.map(|chain| {
                let output = chain.predict(row.batch(99, 0).input).unwrap().whole().into_data();
                (chain.tensors().unwrap(), output)
            })
        };
        let (weights, output) = run(&row.reference(), Groups::single_rank()).unwrap();
        let mut found = on_threads(pp, dp, |groups| run(&row, groups));
        let (found_weights, found_output) = found.pop().unwrap().unwrap();
        assert!(found.iter().all(Option::is_none), "other ranks have none");
        same_bits(&found_weights, &weights, &format!("{row:?}"));
        assert!(found_output.as_bytes() == output.as_bytes(), "{row:?}");
    }
}

/// A layer that gives its input's sign beside its output, and says whether it is trained.
#[derive(Module, Debug)]
struct Signed {
    linear: Linear,
}

impl Block for Signed {
    type Input = Tensor<2>;
    type Output = (Tensor<2>, Tensor<2, Int>);

    fn forward(&self, x: Tensor<2>) -> Self::Output {
        let y = tanh(self.linear.forward(x));
        (y.clone(), y.sign().int())
    }

    fn forward_with(&self, x: Tensor<2>, context: &ForwardContext<'_>) -> Self::Output {
        let factor = if context.training { 0.5 } else { 1.0 };
        self.forward(x * factor)
    }
}

#[test]
fn an_output_may_have_integers_and_is_not_that_of_training() {
    let run = |groups: Groups| {
        let chain = (0..3).fold(Chain::new(), |chain, index| {
            chain.then(format!("{index}"), crate::layers::Layer { linear: linear() })
        });
        let chain = chain.then("signed", Signed { linear: linear() });
        let model = chain.loss(|(y, sign): (Tensor<2>, Tensor<2, Int>), target: Tensor<2>| {
            (y * sign.float() - target).square().sum()
        });
        let mut engine = Engine::new(model, 3, &adamw(), groups, EngineSettings::default()).unwrap();
        let (y, sign) = engine.predict(batch(5).input).unwrap();
        let whole = engine.whole_chain(0).unwrap().map(|chain| chain.predict(batch(5).input).unwrap());
        if let Some((whole_y, whole_sign)) = whole {
            assert_eq!(whole_y.into_data(), y.clone().into_data());
            assert_eq!(whole_sign.into_data(), sign.clone().into_data());
        }
        (y.into_data(), sign.into_data())
    };
    let (y, sign) = run(Groups::single_rank());
    assert_eq!(y.shape().to_vec(), [3, WIDTH]);
    for (found, found_sign) in on_threads(2, 1, run) {
        assert!(found.as_bytes() == y.as_bytes());
        assert_eq!(found_sign, sign);
    }
}
