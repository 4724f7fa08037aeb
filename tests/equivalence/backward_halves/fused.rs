//! Fused operations leave the products for their weights' gradients to the second half, whatever else a block does with its weights.

use std::cell::Cell;

use brigade::core::plan::PipelineScheduleKind::{self, ZbH1, ZbH2, Zbv};
use brigade::core::{
    Batch, Block, Chain, CheckBlocks, EngineSettings, ForwardContext, Model, ParameterGradients, Recompute,
    ReduceEvery, SplitForward, Zero,
};
use brigade::kernels;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Tensor, activation::tanh};

use crate::case::{Case, MICRO_BATCHES, floats};
use crate::mesh::on_threads;

const WIDTH: usize = 6;
const ROWS: usize = 3;

thread_local! {
    /// Forwards of layers with a weight that other operations use too.
    static MIXED_FORWARDS: Cell<usize> = const { Cell::new(0) };
}

#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
    /// Used by other operations too.
    mixed: Option<Linear>,
    /// Rows of it go into a product. It lies in other memory than the rest of the block.
    table: Option<Linear>,
    /// Whether the block itself offers the gradient of the bias for later.
    offers: bool,
    /// Whether some micro-batches pass it by, as with stochastic depth, so that they leave nothing: as many as those before them that don't.
    skips: usize,
}

impl Layer {
    fn output(&self, mut x: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
        if let Some(mixed) = &self.mixed {
            MIXED_FORWARDS.set(MIXED_FORWARDS.get() + 1);
            let weight = || mixed.weight.val();
            // In the order of the backward: two parts that are found, one that may be left, one that is found, one that may be left.
            for matmul in [false, true, false, true, true] {
                x = if matmul { x.matmul(weight()) } else { kernels::linear(x, weight(), None) };
            }
        }
        if let Some(table) = &self.table {
            let rows = table.weight.val().narrow(0, 0, ROWS);
            x = x + kernels::linear(rows, self.linear.weight.val(), None);
        }
        tanh(kernels::linear(x, self.linear.weight.val(), bias))
    }
}

impl Block for Layer {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.output(x, self.linear.bias.as_ref().map(|bias| bias.val()))
    }

    fn forward_with(&self, x: Tensor<2>, context: &ForwardContext<'_>) -> Tensor<2> {
        let passes_by = self.skips > 0 && context.micro_batch / self.skips % 2 == 1;
        if passes_by { x } else { self.forward(x) }
    }

    fn forward_split(&self, x: Tensor<2>, context: &ForwardContext<'_>) -> SplitForward<Tensor<2>> {
        if !self.offers {
            return self.forward_with(x, context).into();
        }
        let y = self.output(x, self.linear.bias.as_ref().map(|bias| bias.val().detach().no_grad()));
        let output = y.clone().inner();
        SplitForward::new(y, move |gradient: Tensor<2>| {
            let gradient = gradient * (output.powi_scalar(2).neg() + 1);
            let of_bias = gradient.sum_dim(0).squeeze_dim(0);
            ParameterGradients::new().with::<1>("linear.bias", of_bias)
        })
    }

    fn keep_in_f32(&self, path: &str) -> bool {
        path.starts_with("table")
    }
}

fn layer(mixed: bool, table: bool, offers: bool) -> Layer {
    let linear =
        |bias| LinearConfig::new(WIDTH, WIDTH).with_bias(bias).init(&brigade_cpu::device().autodiff());
    Layer {
        linear: linear(true),
        mixed: mixed.then(|| linear(false)),
        table: table.then(|| linear(false)),
        offers,
        skips: 0,
    }
}

fn skipped(skips: usize) -> Layer {
    Layer { skips, ..layer(false, false, false) }
}

fn model() -> Model<Tensor<2>, Tensor<2>, Tensor<2>> {
    let chain = Chain::new()
        .then("plain", layer(false, false, false))
        .then("mixed", layer(true, false, false))
        .then("table", layer(false, true, false))
        .then("offers", layer(false, false, true))
        .then("all", layer(true, true, true))
        .then("shared", layer(false, false, false))
        .tie("shared.linear.weight", "plain.linear.weight")
        .then("frozen", layer(true, true, false).no_grad())
        .then("last", layer(false, false, false));
    chain.loss(|output, target: Tensor<2>| (output - target).square().sum())
}

fn equals_one_process(schedule: PipelineScheduleKind, chunks: usize) {
    let mut meshes = Vec::new();
    for (mesh, stages) in [((2, 1), [0, 1, 3]), ((2, 2), [0, 2, 3])] {
        for stage in stages {
            for recompute in [Recompute::None, Recompute::Every(2)] {
                let zero = Zero { stage, ..Zero::default() };
                let settings =
                    EngineSettings { zero, recompute, schedule, chunks, ..EngineSettings::default() };
                meshes.push((mesh, settings));
            }
        }
    }
    let batch = |number| Batch::new(floats(number, 1, [ROWS, WIDTH]), floats(number, 2, [ROWS, WIDTH]), ROWS);
    Case { model, batch }.equals_one_process_on(&meshes);
}

/// The gradients of a block that leaves nothing in some micro-batches are added in order all the same, and sums over ranks begin in one order.
#[test]
fn blocks_that_some_micro_batches_pass_by() {
    let model = || {
        let chain = Chain::new().then("first", layer(false, false, false));
        let chain = chain.then("early", skipped(2)).then("middle", layer(false, false, false));
        let chain = chain.then("late", skipped(2)).then("last", layer(false, false, false));
        chain.loss(|output, target: Tensor<2>| (output - target).square().sum())
    };
    let batch = |number| Batch::new(floats(number, 1, [ROWS, WIDTH]), floats(number, 2, [ROWS, WIDTH]), ROWS);
    let mut meshes = Vec::new();
    for (schedule, chunks) in [(ZbH1, 1), (ZbH2, 1), (Zbv, 2)] {
        for mesh in [(2, 1), (2, 2)] {
            for stage in [0, 1, 3] {
                let zero = Zero { stage, reduce_every: ReduceEvery::Step, ..Zero::default() };
                meshes.push((mesh, EngineSettings { zero, schedule, chunks, ..EngineSettings::default() }));
            }
        }
    }
    Case { model, batch }.equals_one_process_on(&meshes);
}

#[test]
fn an_engine_knows_whether_anything_is_left() {
    let batch = |number| Batch::new(floats(number, 1, [ROWS, WIDTH]), floats(number, 2, [ROWS, WIDTH]), ROWS);
    for (is_fused, schedule, expected) in
        [(true, ZbH1, Some(true)), (false, ZbH1, Some(false)), (true, PipelineScheduleKind::GPipe, None)]
    {
        let model = || {
            let blocks = ["a", "b", "c", "d"].into_iter();
            let chain = blocks.fold(Chain::new(), |chain, name| match is_fused {
                true => chain.then(name, layer(false, false, false)),
                false => {
                    let linear = LinearConfig::new(WIDTH, WIDTH).init(&brigade_cpu::device().autodiff());
                    chain.then_fn(name, linear, |linear: &Linear, x: Tensor<2>| tanh(linear.forward(x)))
                }
            });
            chain.loss(|output, target: Tensor<2>| (output - target).square().sum())
        };
        let case = Case { model, batch };
        let found = on_threads(2, 1, |groups| {
            let settings = EngineSettings { schedule, ..EngineSettings::default() };
            let mut engine = case.engine(groups.clone(), settings).unwrap();
            assert_eq!(engine.second_halves(), None);
            engine.step(case.batches(Zero::default(), &groups, 0), 1e-2).unwrap();
            engine.second_halves()
        });
        assert_eq!(found, [expected; 2]);
    }
}

/// A block whose gradients have to be found in one piece runs a second time in the first micro-batch of a step, and not in the others.
#[test]
fn a_weight_of_several_operations_is_noticed_once_a_step() {
    let model = || {
        let chain =
            Chain::new().then("first", layer(false, false, false)).then("mixed", layer(true, false, false));
        let chain = chain.then("third", layer(false, false, false)).then("last", layer(false, false, false));
        chain.loss(|output, target: Tensor<2>| (output - target).square().sum())
    };
    let batch = |number| Batch::new(floats(number, 1, [ROWS, WIDTH]), floats(number, 2, [ROWS, WIDTH]), ROWS);
    let case = Case { model, batch };
    let found = on_threads(2, 1, |groups| {
        let settings =
            EngineSettings { schedule: ZbH1, check_blocks: CheckBlocks::Never, ..EngineSettings::default() };
        let mut engine = case.engine(groups.clone(), settings).unwrap();
        [0, 1].map(|step| {
            MIXED_FORWARDS.set(0);
            engine.step(case.batches(Zero::default(), &groups, step), 1e-2).unwrap();
            MIXED_FORWARDS.get()
        })
    });
    let of_step = |step: usize| found.iter().map(|forwards| forwards[step]).sum::<usize>();
    assert_eq!([0, 1].map(of_step), [MICRO_BATCHES + 1; 2], "{found:?}");
}

/// Where each micro-batch is summed, ranks would sum one block's gradients with another's: that is refused, also where each rank by itself always leaves the
/// same.
#[test]
fn blocks_that_the_micro_batches_of_some_ranks_pass_by() {
    let batch = |number| Batch::new(floats(number, 1, [ROWS, WIDTH]), floats(number, 2, [ROWS, WIDTH]), ROWS);
    for (skips, expected) in
        [(1, "ranks 0 and 1, which have the same stage, differ"), (2, "in some micro-batches")]
    {
        let model = || {
            let chain = Chain::new().then("first", layer(false, false, false)).then("early", skipped(skips));
            let chain = chain.then("late", skipped(skips)).then("last", layer(false, false, false));
            chain.loss(|output, target: Tensor<2>| (output - target).square().sum())
        };
        let case = Case { model, batch };
        let messages = on_threads(2, 2, |groups| {
            let zero = Zero { stage: 2, ..Zero::default() };
            let settings = EngineSettings { zero, schedule: ZbH1, ..EngineSettings::default() };
            let mut engine = case.engine(groups.clone(), settings).unwrap();
            engine.step(case.batches(zero, &groups, 0), 1e-2).unwrap_err().to_string()
        });
        let said = messages.iter().any(|message| message.contains(expected));
        assert!(said && messages.iter().any(|message| message.contains("zero.reduce_every")), "{messages:?}");
    }
}

#[test]
fn on_zb_h1() {
    equals_one_process(ZbH1, 1);
}

#[test]
fn on_zb_h2() {
    equals_one_process(ZbH2, 1);
}

#[test]
fn on_zbv() {
    equals_one_process(Zbv, 2);
}
