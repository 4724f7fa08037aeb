//! Backwards in two halves: input gradients first, those of the weights when there is time. The bits are those of one process that
//! does both at once, whatever the mesh and however long the second halves wait.

mod bubble;
mod contract;
mod fused;
mod schedules;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use brigade::core::plan::{Pipeline, PipelineScheduleKind};
use brigade::core::{
    Batch, Block, Chain, DATA, Engine, EngineSettings, ForwardContext, Groups, NamedTensor, OptimizerFactory,
    PP, ParameterGradients, Recompute, ReduceEvery, ReshardAfterForward, SplitForward, Synchronous, Zero,
};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Tensor, TensorData, activation::tanh, module::linear};

use crate::in_flight::Counting;
use crate::mesh::{on_threads, same_bits};
use crate::row::MIXED;
use PipelineScheduleKind::{ZbH1, ZbH2, Zbv};
use schedules::Second::{self, After, AtOnce, Named};
use schedules::in_halves;

const WIDTH: usize = 6;
const ROWS: usize = 3;

thread_local! {
    /// On a rank: the messages sent so far, counted by `Counting`.
    static SENT: RefCell<Arc<AtomicUsize>> = RefCell::default();
    /// On a rank: how many messages had been sent when each second half ran.
    static SENT_BEFORE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// A linear layer and a nonlinearity. The gradient of its weight may wait; that of its bias is found with the input's.
#[derive(Module, Debug)]
struct Dense {
    linear: Linear,
    /// Whether it offers its backward in two halves.
    splits: bool,
    /// Whether its weight's gradient overflows.
    overflows: bool,
}

impl Block for Dense {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        tanh(self.linear.forward(x))
    }

    fn forward_split(&self, x: Tensor<2>, context: &ForwardContext<'_>) -> SplitForward<Tensor<2>> {
        assert!(context.training);
        if !self.splits {
            return self.forward(x).into();
        }
        let (input, overflows) = (x.clone().inner(), self.overflows);
        let weight = self.linear.weight.val().detach();
        let y = tanh(linear(x, weight, self.linear.bias.as_ref().map(|bias| bias.val())));
        let output = y.clone().inner();
        SplitForward::new(y, move |gradient: Tensor<2>| {
            SENT_BEFORE.with_borrow_mut(|before| before.push(SENT.with_borrow(|sent| sent.load(SeqCst))));
            let gradient = gradient * (output.powi_scalar(2).neg() + 1);
            let of_weight = input.transpose().matmul(gradient);
            let of_weight = if overflows { of_weight * f32::INFINITY } else { of_weight };
            ParameterGradients::new().with("linear.weight", of_weight)
        })
    }
}

fn dense(splits: bool, bias: bool) -> Dense {
    let linear = LinearConfig::new(WIDTH, WIDTH).with_bias(bias).init(&brigade_cpu::device().autodiff());
    Dense { linear, splits, overflows: false }
}

type Layers = Engine<Tensor<2>, Tensor<2>, Tensor<2>>;

/// What is trained, and how.
#[derive(Clone, Debug)]
struct Case {
    /// Whether the blocks that can do so offer their backward in two halves.
    splits: bool,
    tied: bool,
    second: Second,
    settings: EngineSettings,
}

impl Case {
    fn new(tied: bool, second: Second) -> Self {
        Self { splits: true, tied, second, settings: EngineSettings::default() }
    }

    /// The schedule of the engine, which has the halves where it is named, and else is the one that is cut into halves.
    fn schedule(&self) -> PipelineScheduleKind {
        match (self.second, self.settings.chunks) {
            (Named(kind), _) => kind,
            (_, 1) => PipelineScheduleKind::OneFOneB,
            _ => PipelineScheduleKind::Interleaved,
        }
    }

    fn engine(&self, groups: Groups) -> Layers {
        let overflowing =
            Dense { overflows: self.settings.gradient_clipping == Some(0.0), ..dense(self.splits, true) };
        let chain = Chain::new()
            // Nothing in the first block's graph needs a gradient.
            .then("a", dense(self.splits, false))
            .then("b", dense(false, true))
            .then("c", dense(self.splits, true))
            .then("d", overflowing)
            .then("e", dense(false, true))
            .then("f", dense(self.splits, true));
        let chain = if self.tied { chain.tie("f.linear.weight", "c.linear.weight") } else { chain };
        let model = chain.loss(|output: Tensor<2>, target: Tensor<2>| {
            let has_gradient = target.clone().abs().sum().into_scalar::<f32>() > 0.0;
            (if has_gradient { output } else { output.detach() } - target).square().sum()
        });
        let adamw = AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(0.0).build();
        let optimizer = OptimizerFactory::new(adamw.clone(), adamw);
        let settings = EngineSettings { schedule: self.schedule(), ..self.settings.clone() };
        Engine::new(model, 3, &optimizer, groups, settings).unwrap()
    }

    fn pipeline(&self, stages: usize, micro_batches: usize) -> Pipeline {
        let plain = Pipeline::new(self.schedule(), stages, self.settings.chunks, micro_batches).unwrap();
        in_halves(&plain, self.second)
    }

    /// Two steps of `count` micro-batches in all.
    fn run(&self, groups: Groups, count: usize) -> Outcome {
        let mut engine = self.engine(groups.clone());
        let (mesh, rank) = (groups.mesh(), groups.world().rank());
        let share = count / groups.over(&DATA).size();
        let pipeline = self.pipeline(mesh.size(PP), share);
        engine.use_schedule(&pipeline).unwrap();
        let batches = |step: usize| {
            let numbers = (0..share).map(|k| self.settings.zero.micro_batch_number(mesh, rank, k, share));
            numbers.map(|number| batch(count * step + number)).collect::<Vec<_>>()
        };
        let (_, gradients) = engine.gradients(&batches(0), 0).unwrap();
        let mut steps = Vec::new();
        for step in 0..2 {
            let report = engine.step(batches(step), 1e-2).unwrap();
            assert_eq!(report.in_flight, pipeline.peak_in_flight(mesh.coordinate(rank, PP)), "{self:?}");
            assert_eq!(report.memory.activations.live, 0, "{self:?}");
            steps.push((report.loss.to_bits(), report.grad_norm.to_bits()));
        }
        Outcome { steps, gradients, weights: engine.tensors(0).unwrap() }
    }
}

/// Losses and norms; gradients of the first step and weights after the last, on rank 0.
struct Outcome {
    steps: Vec<(u64, u64)>,
    gradients: Vec<NamedTensor>,
    weights: Vec<NamedTensor>,
}

/// From the loss of the sixth one no gradient flows.
fn batch(number: usize) -> Batch<Tensor<2>, Tensor<2>> {
    let values = |salt: usize| {
        let values: Vec<f32> = (0..ROWS * WIDTH)
            .map(|i| (((i + salt) * (number + 3) * 7919 % 101) as f32 - 50.0) / 50.0)
            .collect();
        Tensor::from_data(TensorData::new(values, [ROWS, WIDTH]), &brigade_cpu::device())
    };
    let target = if number == 5 { values(7).zeros_like() } else { values(7) };
    Batch::new(values(0), target, ROWS)
}

/// Runs a case on a mesh, and compares every rank with one process that runs each backward at once.
fn equals_one_process((pp, dp): (usize, usize), case: &Case) {
    let count = 4 * dp;
    let settings = EngineSettings { precision: case.settings.precision, ..EngineSettings::default() };
    let at_once = Case { settings, ..Case::new(case.tied, AtOnce) };
    let reference = at_once.run(Groups::single_rank(), count);
    let outcomes = on_threads(pp, dp, |groups| case.run(groups, count));
    let what = format!("pp {pp} x dp {dp}, {case:?}");
    assert!(outcomes.iter().all(|outcome| outcome.steps == reference.steps), "{what}");
    same_bits(&outcomes[0].gradients, &reference.gradients, &what);
    same_bits(&outcomes[0].weights, &reference.weights, &what);
}

const MESHES: [(usize, usize); 5] = [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1)];
const RECOMPUTE: [Recompute; 3] = [Recompute::None, Recompute::Every(1), Recompute::Every(2)];

#[test]
fn one_process_at_once_has_burns_gradients() {
    for tied in [false, true] {
        let halves = Case::new(tied, AtOnce).run(Groups::single_rank(), 4);
        let burn = Case { splits: false, ..Case::new(tied, AtOnce) }.run(Groups::single_rank(), 4);
        assert_eq!(halves.steps, burn.steps);
        same_bits(&halves.gradients, &burn.gradients, "gradients of a block that splits");
        same_bits(&halves.weights, &burn.weights, "weights");
    }
}

#[test]
fn on_any_mesh() {
    for mesh in MESHES {
        for stage in 0..4 {
            for tied in [false, true] {
                for second in [AtOnce, After(0), Named(ZbH1), Named(ZbH2), After(4)] {
                    let zero = Zero { stage, ..Zero::default() };
                    let settings = EngineSettings { zero, ..EngineSettings::default() };
                    equals_one_process(mesh, &Case { settings, ..Case::new(tied, second) });
                }
            }
        }
    }
}

#[test]
fn with_recomputation() {
    for mesh in MESHES {
        for recompute in RECOMPUTE {
            for (stage, tied) in [(0, false), (3, false), (3, true)] {
                let zero = Zero { stage, ..Zero::default() };
                let settings = EngineSettings { zero, recompute, ..EngineSettings::default() };
                equals_one_process(mesh, &Case { settings, ..Case::new(tied, Named(ZbH1)) });
            }
        }
    }
}

#[test]
fn over_several_chunks() {
    for mesh in [(1, 1), (2, 1), (2, 2)] {
        for stage in [0, 2, 3] {
            for tied in [false, true] {
                for second in [After(0), After(1), After(3), Named(Zbv)] {
                    let zero = Zero { stage, ..Zero::default() };
                    let settings = EngineSettings { zero, chunks: 2, ..EngineSettings::default() };
                    equals_one_process(mesh, &Case { settings, ..Case::new(tied, second) });
                }
            }
        }
    }
}

#[test]
fn with_parameters_that_come_and_go() {
    for reshard_after_forward in
        [ReshardAfterForward::Default, ReshardAfterForward::Always, ReshardAfterForward::Never]
    {
        for keep_gathered in [false, true] {
            for reduce_every in [ReduceEvery::MicroBatch, ReduceEvery::Step] {
                for mesh in [(1, 2), (2, 2)] {
                    let zero = Zero {
                        stage: 3,
                        prefetch: 1,
                        reshard_after_forward,
                        keep_gathered,
                        reduce_every,
                        ..Zero::default()
                    };
                    let settings = EngineSettings { zero, ..EngineSettings::default() };
                    equals_one_process(mesh, &Case { settings, ..Case::new(false, After(2)) });
                }
            }
        }
    }
}

/// Second halves of several steps are added up before one update.
#[test]
fn over_steps_without_an_update() {
    let trained = |second: Second, groups: Groups| {
        let strategy = Arc::new(Synchronous { every: 2 });
        let settings = EngineSettings { strategy, ..EngineSettings::default() };
        let case = Case { settings, ..Case::new(true, second) };
        let mut engine = case.engine(groups.clone());
        engine.use_schedule(&case.pipeline(groups.mesh().size(PP), 4)).unwrap();
        engine.accumulate((0..4).map(batch).collect()).unwrap();
        let report = engine.step((4..8).map(batch).collect(), 1e-2).unwrap();
        (report.loss.to_bits(), report.grad_norm.to_bits(), engine.tensors(0).unwrap())
    };
    let (loss, norm, weights) = trained(AtOnce, Groups::single_rank());
    for stages in 1..4 {
        let outcomes = on_threads(stages, 1, |groups| trained(Named(ZbH1), groups));
        assert!(outcomes.iter().all(|outcome| (outcome.0, outcome.1) == (loss, norm)), "{stages} stages");
        same_bits(&outcomes[0].2, &weights, &format!("weights on {stages} stages"));
    }
}

#[test]
fn with_mixed_precision() {
    for mesh in MESHES {
        for (stage, tied) in [(1, true), (3, false)] {
            let zero = Zero { stage, ..Zero::default() };
            let settings = EngineSettings { zero, precision: MIXED, ..EngineSettings::default() };
            equals_one_process(mesh, &Case { settings, ..Case::new(tied, Named(ZbH1)) });
        }
    }
}

/// Every message that the schedule sends before a second half has been sent by then.
#[test]
fn messages_leave_before_the_second_halves() {
    for (second, before) in
        [(AtOnce, vec![0, 1, 2, 3]), (After(0), vec![1, 2, 3, 4]), (Named(ZbH1), vec![2, 3, 4, 4])]
    {
        let found = on_threads(2, 1, |groups| {
            let sent = Arc::new(AtomicUsize::new(0));
            SENT.set(sent.clone());
            let groups = groups.map(|_, inner| Arc::new(Counting::new(inner, sent.clone())));
            let case = Case::new(false, second);
            let mut engine = case.engine(groups.clone());
            engine.use_schedule(&case.pipeline(2, 4)).unwrap();
            engine.step((0..4).map(batch).collect(), 1e-2).unwrap();
            SENT_BEFORE.take()
        });
        // The last stage sends gradients alone; two of its blocks have a second half.
        let twice: Vec<usize> = before.into_iter().flat_map(|sent| [sent; 2]).collect();
        assert_eq!(found[1], twice, "{second:?}");
    }
}

/// Between its halves a block holds its input and the gradient of its output.
#[test]
fn what_second_halves_wait_with_is_counted() {
    let micro_batches = 4;
    let tensor = (4 * ROWS * WIDTH) as u64;
    let mut engine = Case::new(false, AtOnce).engine(Groups::single_rank());
    let mut peak = |delay: usize| {
        let case = Case::new(false, After(delay));
        engine.use_schedule(&case.pipeline(1, micro_batches)).unwrap();
        let batches = (0..micro_batches).map(batch).collect();
        engine.step(batches, 1e-2).unwrap().memory.activations.peak
    };
    // Six inputs and the last block's output. Four of the blocks have a second half, three of them a bias whose gradient waits
    // for it, too.
    let (forward, halves) = (7 * tensor, 4 * 2 * tensor + 3 * (4 * WIDTH) as u64);
    assert_eq!(peak(0), halves.max(forward));
    assert_eq!(peak(1), (2 * halves).max(halves + forward));
    assert_eq!(peak(micro_batches), 4 * halves);
}

#[test]
fn a_second_half_that_is_not_finite_is_found() {
    let errors = on_threads(2, 1, |groups| {
        let settings = EngineSettings { gradient_clipping: Some(0.0), ..EngineSettings::default() };
        let case = Case { settings, ..Case::new(false, After(1)) };
        let mut engine = case.engine(groups.clone());
        engine.use_schedule(&case.pipeline(2, 4)).unwrap();
        engine.step((0..4).map(batch).collect(), 1e-2).unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.contains("rank 1, micro-batch 0, in the gradient of block `d`"), "{error}");
    }
}
