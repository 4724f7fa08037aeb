//! Batch norm over the data-parallel ranks: for one number of them the same bits on every mesh, and the values of one process that runs Burn's batch norm on
//! the union of the micro-batches that run together.

use std::ops::Range;
use std::sync::Barrier;
use std::time::Duration;

use brigade::comm::{Timeouts, threads};
use brigade::core::plan::PipelineScheduleKind::{GPipe, Interleaved, OneFOneB, Zbv};
use brigade::core::{
    Batch, Chain, CheckBlocks, CollectiveKind, DP, Engine, EngineSettings, Groups, Mesh, Model, NamedTensor,
    NonFinite, OptimizerFactory, PP, REPLICATE, Recompute, ReduceEvery, Zero,
};
use brigade::nn::SyncBatchNorm;
use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::nn::{Dropout, DropoutConfig, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor, activation::relu};

use crate::blocks::running_state::{batch, convolution, head, images, loss, named};
use crate::case::{Case, MICRO_BATCHES, Outcome, floats, same};
use crate::mesh::{on_mesh, on_threads, same_bits};
use crate::resume::Saved;
use crate::row::MIXED;

type Images = Model<Tensor<4>, Tensor<2>, Tensor<2>>;
type Convolution = (Conv2d, SyncBatchNorm);

fn device() -> Device {
    brigade_cpu::device().autodiff()
}

fn synchronised(inputs: usize, outputs: usize) -> Convolution {
    let (conv, norm) = convolution(inputs, outputs);
    (conv, norm.into())
}

fn convolve((conv, norm): &Convolution, x: Tensor<4>) -> Tensor<4> {
    relu(norm.forward(conv.forward(x)))
}

/// [`images`] with the norms that `change` makes.
fn changed(change: impl Fn(SyncBatchNorm) -> SyncBatchNorm) -> Images {
    let layer = |inputs, outputs| {
        let (conv, norm) = synchronised(inputs, outputs);
        (conv, change(norm))
    };
    Chain::new()
        .then_fn("stem", layer(1, 3), convolve)
        .then_fn("body", layer(3, 4), convolve)
        .then_fn("last", layer(4, 4), convolve)
        .then_fn("head", LinearConfig::new(4, 2).init(&device()), head)
        .loss(loss)
}

fn sync_images() -> Images {
    changed(|norm| norm)
}

fn of(stage: u8, recompute: Recompute) -> EngineSettings {
    EngineSettings { zero: Zero { stage, ..Zero::default() }, recompute, ..EngineSettings::default() }
}

/// ZeRO that adds a rank's micro-batches first, so that the same ones run together as without ZeRO.
fn once_a_step(stage: u8, recompute: Recompute) -> EngineSettings {
    let zero = Zero { stage, reduce_every: ReduceEvery::Step, ..Zero::default() };
    EngineSettings { zero, ..of(stage, recompute) }
}

fn train(
    model: impl Fn() -> Images + Sync,
    (pp, dp): (usize, usize),
    settings: &EngineSettings,
    steps: Range<usize>,
    from: Option<&Saved>,
) -> Vec<Outcome> {
    let case = Case { model, batch };
    on_threads(pp, dp, |groups| case.train(groups, settings, steps.clone(), from))
}

/// Trains on a mesh, and compares the others with it.
fn alike(
    model: impl Fn() -> Images + Sync + Copy,
    reference: ((usize, usize), EngineSettings),
    others: &[((usize, usize), EngineSettings)],
) -> Outcome {
    let first = train(model, reference.0, &reference.1, 0..3, None).remove(0);
    for (mesh, settings) in others {
        let outcomes = train(model, *mesh, settings, 0..3, None);
        same(&outcomes, &first, &format!("{mesh:?}, {settings:?}"));
    }
    first
}

const ALL: Recompute = Recompute::Every(1);
const NONE: Recompute = Recompute::None;

#[test]
fn two_data_parallel_ranks_have_the_same_bits_on_every_mesh() {
    let two = alike(
        sync_images,
        ((1, 2), of(0, NONE)),
        &[
            ((1, 2), of(1, ALL)),
            ((1, 2), once_a_step(3, Recompute::Every(2))),
            ((2, 2), EngineSettings { schedule: GPipe, ..of(1, NONE) }),
            ((2, 2), EngineSettings { schedule: OneFOneB, ..once_a_step(3, NONE) }),
            ((2, 2), EngineSettings { schedule: Zbv, chunks: 2, ..of(1, NONE) }),
            ((2, 2), EngineSettings { schedule: Interleaved, chunks: 2, ..of(0, ALL) }),
        ],
    );
    let one = train(images, (1, 1), &of(0, NONE), 0..3, None).remove(0);
    assert_ne!(two.figures, one.figures, "the statistics are others");
    // Under ZeRO-2 and 3 other micro-batches run together, unless they sum once a step.
    let each = alike(
        sync_images,
        ((1, 2), of(2, NONE)),
        &[((1, 2), of(3, ALL)), ((2, 2), of(3, NONE)), ((2, 2), of(2, ALL))],
    );
    assert_ne!(each.figures, two.figures);
}

#[test]
fn four_data_parallel_ranks_have_the_same_bits_on_every_mesh() {
    let meshes = [((1, 4), of(3, NONE)), ((1, 4), of(2, ALL)), ((2, 4), of(1, NONE))];
    let four = alike(sync_images, ((1, 4), of(0, NONE)), &meshes);
    let mesh = Mesh::new(4, [(PP, 1), (REPLICATE, 2), (DP, 2)]).unwrap();
    let case = Case { model: sync_images, batch };
    same(
        &on_mesh(&mesh, |groups| case.train(groups, &of(3, NONE), 0..3, None)),
        &four,
        "two replicas of two shards",
    );
}

#[test]
fn they_go_on_from_any_mesh() {
    let whole = train(sync_images, (1, 2), &of(0, NONE), 0..3, None).remove(0);
    let state =
        |outcomes: Vec<Outcome>| Saved::of(outcomes.into_iter().map(|outcome| outcome.saved).collect());
    let after_one = state(train(sync_images, (1, 2), &of(0, NONE), 0..1, None));
    for (mesh, settings, next, next_settings) in [
        ((2, 2), of(1, ALL), (1, 2), once_a_step(3, NONE)),
        ((1, 2), once_a_step(3, NONE), (2, 2), of(0, NONE)),
    ] {
        let saved = state(train(sync_images, mesh, &settings, 0..1, None));
        saved.same(&after_one, &format!("the state after a step on {mesh:?}"));
        let outcomes = train(sync_images, next, &next_settings, 1..3, Some(&saved));
        assert!(outcomes.iter().all(|outcome| outcome.figures == whole.figures[2..]), "{mesh:?} to {next:?}");
        same_bits(&outcomes[0].weights, &whole.weights, &format!("from {mesh:?} to {next:?}"));
    }
}

/// The micro-batches that run together on `ranks`, as one.
fn union(ranks: usize, number: usize) -> Batch<Tensor<4>, Tensor<2>> {
    let (step, k, each) = (number / MICRO_BATCHES, number % MICRO_BATCHES, MICRO_BATCHES / ranks);
    let parts: Vec<_> = (0..ranks).map(|rank| batch(MICRO_BATCHES * step + rank * each + k)).collect();
    let inputs = parts.iter().map(|part| part.input.clone()).collect();
    let targets = parts.iter().map(|part| part.target.clone()).collect();
    let valid = parts.iter().map(|part| part.valid_targets).sum();
    Batch::new(Tensor::cat(inputs, 0), Tensor::cat(targets, 0), valid)
}

/// Gradients of the first step, the losses of three, and the tensors after them.
type Trained = (Vec<NamedTensor>, Vec<f64>, Vec<NamedTensor>);

/// Trains by SGD, whose steps are no larger where a gradient is only rounding.
fn by_sgd(
    model: Images,
    groups: Groups,
    settings: EngineSettings,
    batches: impl Fn(usize) -> Vec<Batch<Tensor<4>, Tensor<2>>>,
) -> Trained {
    let sgd = SgdConfig::new().build();
    let optimizer = OptimizerFactory::new(sgd.clone(), sgd);
    let mut engine = Engine::new(model, 11, &optimizer, groups, settings).unwrap();
    let gradients = engine.gradients(&batches(0), 0).unwrap().1;
    let losses = (0..3).map(|step| engine.step(batches(step), 0.1).unwrap().loss).collect();
    (gradients, losses, engine.tensors(0).unwrap())
}

fn near(ours: &[NamedTensor], other: &[NamedTensor], what: &str) {
    assert_eq!(ours.len(), other.len());
    for (ours, other) in ours.iter().zip(other) {
        assert_eq!(ours.name, other.name);
        let (a, b) = (ours.data.as_slice::<f32>().unwrap(), other.data.as_slice::<f32>().unwrap());
        let most = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(most < 2e-6, "{what}, {}: {most:e}", ours.name);
    }
}

/// Burn's own batch norm on the union, in one process: values, gradients and running statistics.
#[test]
fn it_is_one_process_that_runs_the_union() {
    for (pp, ranks) in [(1, 2), (1, 4), (2, 2)] {
        let each = MICRO_BATCHES / ranks;
        let found = on_threads(pp, ranks, |groups| {
            let rank = groups.over(&[DP]).rank();
            let batches = |step| (0..each).map(|k| batch(MICRO_BATCHES * step + rank * each + k)).collect();
            by_sgd(sync_images(), groups, of(0, NONE), batches)
        });
        let unions = |step| (0..each).map(|k| union(ranks, MICRO_BATCHES * step + k)).collect();
        let (gradients, losses, tensors) = by_sgd(images(), Groups::single_rank(), of(0, NONE), unions);
        let what = format!("dp {ranks}, pp {pp}");
        for (_, ours, _) in &found {
            let near = ours.iter().zip(&losses).all(|(a, b)| (a - b).abs() < 1e-5 * b);
            assert!(near, "{what}: {ours:?}, {losses:?}");
        }
        near(&found[0].0, &gradients, &what);
        near(&found[0].2, &tensors, &what);
        assert!(named(&tensors, "stem.1.running_mean").iter().all(|value| value.abs() > 1e-4));
        // The ranks' own statistics would not do.
        let alone = by_sgd(images(), Groups::single_rank(), of(0, NONE), |step| {
            (0..MICRO_BATCHES).map(|k| batch(MICRO_BATCHES * step + k)).collect()
        });
        assert!((alone.1[0] - losses[0]).abs() > 1e-3 * losses[0]);
    }
}

/// With a single data-parallel rank, switched off, and frozen it is Burn's batch norm, to the bit.
#[test]
fn elsewhere_it_is_burns() {
    let case = Case { model: images, batch };
    let one = case.train(Groups::single_rank(), &of(0, NONE), 0..3, None);
    for mesh in [(1, 1), (2, 1)] {
        same(&train(sync_images, mesh, &of(0, ALL), 0..3, None), &one, "alone");
    }
    let off = || changed(|norm| SyncBatchNorm { synchronised: false, ..norm });
    same(&train(off, (2, 2), &of(3, NONE), 0..3, None), &one, "switched off");

    let frozen = || changed(Module::freeze);
    let one = Case { model: frozen, batch }.equals_one_process();
    assert_eq!(named(&one.weights, "stem.1.running_mean"), [0.0; 3]);
}

/// Ranks that are threads of one process draw from one generator, and must not hold it while they wait for each other.
#[test]
fn blocks_that_also_draw_do_not_wait_for_each_other() {
    type Dropped = (Dropout, Convolution, Dropout);
    let model = || {
        let forward = |(before, layer, after): &Dropped, x: Tensor<4>| {
            after.forward(convolve(layer, before.forward(convolve(layer, x))))
        };
        let layer = || {
            let dropout = || DropoutConfig::new(0.3).init();
            (dropout(), synchronised(1, 1), dropout())
        };
        Chain::new()
            .then_fn("a", layer(), forward)
            .then_fn("b", layer(), forward)
            .then_fn("c", LinearConfig::new(1, 2).init(&device()), head)
            .then_fn("d", LinearConfig::new(2, 2).init(&device()), |m: &burn::nn::Linear, x| m.forward(x))
            .loss(loss)
    };
    let batch = |number| Batch::new(floats(number, 1, [3, 1, 12, 12]), floats(number, 2, [3, 2]), 3);
    let case = Case { model, batch };
    let run =
        |pp, settings: EngineSettings| on_threads(pp, 2, |groups| case.train(groups, &settings, 0..3, None));
    let one = run(1, of(0, NONE)).remove(0);
    for (pp, settings) in [(1, of(0, ALL)), (2, of(1, NONE)), (2, once_a_step(3, ALL))] {
        same(&run(pp, settings.clone()), &one, &format!("pp {pp}, {settings:?}"));
    }
}

/// In bf16 statistics are computed in fp32.
#[test]
fn in_mixed_precision() {
    let settings = EngineSettings { precision: MIXED, ..of(0, NONE) };
    let one = train(sync_images, (1, 2), &settings, 0..2, None).remove(0);
    let outcomes = train(sync_images, (2, 2), &settings, 0..2, None);
    same(&outcomes, &one, "bf16");
    let plain = train(sync_images, (1, 2), &of(0, NONE), 0..2, None).remove(0);
    for name in ["stem.1.running_mean", "last.1.running_var"] {
        for (a, b) in named(&one.weights, name).iter().zip(named(&plain.weights, name)) {
            assert!((a - b).abs() < 2e-2 * (0.1 + b.abs()) && a != b, "{name}: {a} {b}");
        }
    }
}

/// A collective for each norm and micro-batch, forward and backward, and none that only one rank calls.
#[test]
fn a_norm_waits_once_in_each_direction() {
    let traffic = |model: fn() -> Images| {
        on_threads(1, 2, |groups| {
            let case = Case { model, batch };
            let settings = EngineSettings { check_blocks: CheckBlocks::Never, ..of(0, NONE) };
            let mut engine = case.engine(groups.clone(), settings).unwrap();
            let report = engine.step(case.batches(Zero::default(), &groups, 0), 1e-2).unwrap();
            let calls = |kind| report.traffic.get(&kind).map_or(0, |(calls, _)| *calls);
            [calls(CollectiveKind::AllGather), calls(CollectiveKind::AllReduce)]
        })
    };
    let (with, without) = (traffic(sync_images), traffic(images));
    // Three norms and two micro-batches.
    let more = |calls: [u64; 2]| calls.map(|calls| calls + 6);
    assert!(
        with.iter().zip(without.clone()).all(|(with, without)| *with == more(without)),
        "{with:?} {without:?}"
    );
}

#[test]
fn an_input_that_is_no_number_is_skipped_on_all_ranks() {
    for (pp, dp) in [(1, 2), (2, 2)] {
        let found = on_threads(pp, dp, |groups| {
            let settings = EngineSettings { on_nonfinite: NonFinite::Skip, ..EngineSettings::default() };
            let case = Case { model: sync_images, batch };
            let mut engine = case.engine(groups.clone(), settings.clone()).unwrap();
            let before = engine.tensors(0).unwrap();
            let mut bad = case.batches(settings.zero, &groups, 0);
            if groups.over(&[DP]).rank() == 1 {
                bad[0].input = bad[0].input.clone() * f32::NAN;
            }
            assert!(engine.step(bad, 1e-2).unwrap().skipped);
            let skipped = engine.tensors(0).unwrap();
            engine.step(case.batches(settings.zero, &groups, 1), 1e-2).unwrap();
            (before, skipped, engine.tensors(0).unwrap())
        });
        same_bits(&found[0].1, &found[0].0, "a skipped step");
        assert!(
            named(&found[0].2, "stem.1.running_mean").iter().all(|value| *value != 0.0 && value.is_finite())
        );
    }
}

/// One that panics in a block before the norm, and one that never comes: the other ends with an error that names it, and does not hang.
#[test]
fn a_rank_that_is_missing_at_a_norm_is_named() {
    let timeouts = Timeouts { step: Duration::from_secs(2), ..Timeouts::default() };
    let mesh = Mesh::new(2, [(PP, 1), (DP, 2)]).unwrap();
    for panics in [true, false] {
        let ended = Barrier::new(2);
        let rank = |world| {
            let groups = brigade_cpu::groups(&world, mesh.clone()).unwrap();
            let model = move || {
                let forward = move |layer: &Convolution, x: Tensor<4>| {
                    assert!(!panics || x.dims()[0] > 1, "too few");
                    convolve(layer, x)
                };
                Chain::new().then_fn("stem", synchronised(1, 4), forward).then_fn(
                    "head",
                    LinearConfig::new(4, 2).init(&device()),
                    head,
                )
            };
            let case = Case { model: || model().loss(loss), batch };
            let mut engine = case.engine(groups.clone(), of(0, NONE)).unwrap();
            let mut batches = case.batches(Zero::default(), &groups, 0);
            if groups.world().rank() == 0 {
                let error = engine.step(batches, 1e-2).unwrap_err().to_string();
                if !panics {
                    ended.wait();
                }
                return error;
            }
            if panics {
                batches[0].input = batches[0].input.clone().narrow(0, 0, 1);
                engine.step(batches, 1e-2).unwrap();
            }
            ended.wait();
            String::new()
        };
        let error = std::thread::scope(|scope| {
            let ranks: Vec<_> =
                threads(2, timeouts).into_iter().map(|world| scope.spawn(|| rank(world))).collect();
            let mut ranks = ranks.into_iter().map(std::thread::ScopedJoinHandle::join);
            let found = ranks.next().unwrap().unwrap();
            let ended = ranks.next().unwrap();
            assert_eq!(ended.is_err(), panics);
            if let Err(panic) = ended {
                let text = panic.downcast_ref::<String>().unwrap();
                assert!(text.starts_with("too few (in block `stem`, step 1, micro-batch "), "{text}");
            }
            found
        });
        assert!(error.contains("rank 1"), "{error}");
    }
}
