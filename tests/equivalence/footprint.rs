//! What every rank counts in a step, bytes that it holds and bytes that it sends, is what the plan says: exactly.

use std::collections::BTreeMap;
use std::sync::Arc;

use brigade::core::plan::{
    Configuration, Footprint, OuterSteps, PipelineScheduleKind, StageFootprint, balanced,
};
use brigade::core::{
    Batch, Chain, DATA, Dtype, Engine, EngineSettings, Fragments, Groups, HeapMeter, Memory, OuterDtype, PP,
    Precision, Recompute, ReduceEvery, ReshardAfterForward, StepReport, Strategy, Synchronous, Zero,
};
use burn::nn::LinearConfig;
use burn::tensor::Tensor;

use crate::layers::{Layer, adamw, squared_error};
use crate::mesh::{on_mesh, on_threads};
use crate::row::{MIXED, Row};
use crate::strategies::local_updates;

/// Live bytes and their peak by kind, and calls and bytes by operation; nothing for an operation that was not used.
type Counts = BTreeMap<&'static str, (u64, u64)>;

fn measured(report: &StepReport) -> Counts {
    let Memory { parameters, gradients, optimizer, activations } = report.memory;
    let kinds = [parameters, gradients, optimizer, activations].map(|bytes| (bytes.live, bytes.peak));
    let traffic = report.traffic.iter().map(|(operation, sent)| (operation.name(), *sent));
    let mut counts: Counts = KINDS.into_iter().zip(kinds).chain(traffic).collect();
    counts.remove("all_gather_scalars");
    counts
}

fn planned(stage: &StageFootprint) -> Counts {
    let memory = stage.memory;
    let kinds = [memory.parameters, memory.gradients, memory.optimizer, memory.boundary_activations];
    let kinds = kinds.map(|amount| (amount.live, amount.peak));
    let used = stage.traffic.by_operation().into_iter().filter(|(_, sent)| sent.calls > 0);
    KINDS.into_iter().zip(kinds).chain(used.map(|(name, sent)| (name, (sent.calls, sent.bytes)))).collect()
}

const KINDS: [&str; 4] = ["parameters", "gradients", "optimizer", "activations"];

/// For what is counted and not measured.
struct Unmeasured;

impl HeapMeter for Unmeasured {
    fn in_use(&self) -> u64 {
        0
    }

    fn begin(&self) {}

    fn most_added(&self) -> u64 {
        0
    }
}

/// A row as the plan takes it.
fn configuration(row: &Row) -> Configuration {
    let (mut boundary_activations, mut saved_activations) = (Vec::new(), Vec::new());
    let measure = |model: &mut brigade::core::Model<_, _, _>| {
        let splits = row.schedule.splits_backward() && row.pp * row.chunks > 1;
        let batch = row.batch(0, 0);
        let measured =
            model.measure_activations(batch, row.precision.compute, splits, Some(&Unmeasured)).unwrap();
        boundary_activations = measured.boundary_activations;
        saved_activations = measured.saved_activations;
    };
    let engine = row.reference().engine_with(Groups::single_rank(), measure).unwrap();
    let chain = engine.chain();
    let split = match row.split.is_empty() {
        true => balanced(&chain.costs(), row.pp * row.chunks).unwrap(),
        false => row.split.clone(),
    };
    Configuration {
        units: chain.units(&[]).unwrap(),
        boundary_activations,
        saved_activations,
        pp: row.pp,
        dp: row.dp,
        replicas: row.replicate,
        split,
        schedule: row.schedule,
        chunks: row.chunks,
        tied_each_micro_batch: row.tied_gradients == ReduceEvery::MicroBatch,
        micro_batches: row.micro_batches,
        sync_every: row.strategy.period(),
        outer: None,
        zero_stage: row.zero.stage,
        reshard: row.zero.reshard_policy(row.pp),
        prefetch: row.zero.prefetch,
        reduce_each_micro_batch: row.zero.reduces_each_micro_batch(),
        recompute_every: match row.recompute {
            Recompute::None => 0,
            Recompute::Every(k) => k,
        },
        compute_bytes: row.precision.compute.bytes(),
        reduce_bytes: row.precision.reduce.bytes(),
        compression: row.compression,
        gather_codes: row.zero.gather_codes,
        optimizer_bytes: 8,
        offload: row.offload,
    }
}

/// Runs a row, and compares what each rank counts in each step with the plan.
pub fn is_as_planned(row: &Row) {
    is_as_planned_with(row, None);
}

fn is_as_planned_with(row: &Row, outer: Option<OuterSteps>) {
    let ranks = on_mesh(&row.mesh(), |groups| {
        let mut engine = row.engine(groups.clone()).unwrap();
        let reports = (0..row.steps).filter_map(|step| row.step(&mut engine, step, &groups));
        // Of the first round there is no outer momentum yet while outer gradients are under way.
        let reports = reports.skip(usize::from(outer.is_some_and(|outer| outer.overlapped_fragments > 0)));
        (groups.over(&[PP]).rank(), groups.over(&DATA).rank(), reports.collect::<Vec<_>>())
    });
    counts_are_as_planned(Configuration { outer, ..configuration(row) }, &ranks, &format!("{row:?}"));
}

/// Compares what the ranks counted, each with its stage and its place among the stage's ranks, with the plan.
pub fn counts_are_as_planned(
    configuration: Configuration,
    ranks: &[(usize, usize, Vec<StepReport>)],
    what: &str,
) {
    let plan = Footprint::of(&configuration).unwrap();
    let workers = configuration.outer.map_or(1, |outer| outer.workers);
    let copies =
        workers * configuration.replicas * if configuration.zero_stage > 0 { 1 } else { configuration.dp };
    let mut states = vec![0; configuration.pp];
    let shards = configuration.dp;
    let whole = Footprint::of(&Configuration { dp: 1, replicas: 1, ..configuration }).unwrap();
    for (stage, replica, reports) in ranks {
        states[*stage] += reports[0].memory.optimizer.live;
        for report in reports {
            let (mut counts, mut planned) = (measured(report), planned(&plan.stages[*stage]));
            if *replica % shards > 0 {
                // What of a shard is padding has no state: the plan gives the first rank's, which has the most.
                let most = planned.remove("optimizer");
                assert!(counts.remove("optimizer") <= most, "stage {stage}, replica {replica} of {what}");
            }
            assert_eq!(counts, planned, "stage {stage}, replica {replica} of {what}");
        }
    }
    let state = |stage: &StageFootprint| copies as u64 * stage.memory.optimizer.live;
    assert_eq!(states, whole.stages.iter().map(state).collect::<Vec<_>>(), "states of all ranks of {what}");
}

fn zero(stage: u8) -> Zero {
    Zero { stage, ..Zero::default() }
}

fn on_meshes(pp: usize) {
    for dp in [1, 2, 4] {
        for stage in 0..4 {
            for (micro_batches, tied) in [(1, false), (1, true), (4, false), (4, true)] {
                is_as_planned(&Row { pp, dp, micro_batches, tied, zero: zero(stage), ..Row::default() });
            }
        }
    }
}

/// The gradients of tied weights go to the stage that owns them once a step.
#[test]
fn with_tied_gradients_of_a_step() {
    use PipelineScheduleKind::{GPipe, Interleaved, OneFOneB, ZbH1, Zbv};
    for (schedule, pp, chunks) in
        [(OneFOneB, 2, 1), (GPipe, 3, 1), (Interleaved, 2, 2), (ZbH1, 2, 1), (Zbv, 2, 2)]
    {
        for micro_batches in [2, 4, 6] {
            for (stage, precision) in [(0, Precision::default()), (2, Precision::default()), (3, MIXED)] {
                is_as_planned(&Row {
                    pp,
                    dp: 2,
                    schedule,
                    chunks,
                    micro_batches,
                    tied: true,
                    tied_gradients: ReduceEvery::Step,
                    precision,
                    zero: zero(stage),
                    ..Row::default()
                });
            }
        }
    }
}

#[test]
fn with_several_steps_up_to_an_update() {
    let strategy: Arc<dyn Strategy> = Arc::new(Synchronous { every: 3 });
    for (pp, dp, tied) in [(1, 2, false), (2, 2, true), (1, 1, false)] {
        for (stage, reduce_every) in [0, 1, 2, 3].into_iter().flat_map(|stage| {
            [ReduceEvery::MicroBatch, ReduceEvery::Step].map(|reduce_every| (stage, reduce_every))
        }) {
            let zero = Zero { reduce_every, ..zero(stage) };
            let (strategy, micro_batches) = (strategy.clone(), if pp == 1 { 1 } else { 2 });
            is_as_planned(&Row { pp, dp, tied, micro_batches, zero, strategy, steps: 6, ..Row::default() });
        }
    }
}

#[test]
fn with_workers_that_meet_in_outer_steps() {
    let steps = OuterSteps { workers: 2, inner_steps: 2, bytes: 4, state_bytes: 0, overlapped_fragments: 0 };
    let dtypes = [(OuterDtype::F32, 4), (OuterDtype::Bf16, 2), (OuterDtype::Int8, 1)];
    let outer = dtypes.map(|(dtype, bytes)| {
        (local_updates::diloco(2, dtype), OuterSteps { bytes, state_bytes: 8, ..steps })
    });
    let kinds = outer.into_iter().chain([(local_updates::averaging(2), steps)]);
    for (strategy, outer) in kinds {
        for (pp, dp, stage, tied) in
            [(1, 1, 0, false), (1, 2, 0, false), (1, 2, 1, true), (2, 2, 3, true), (2, 1, 0, true)]
        {
            let row = Row { workers: 2, pp, dp, tied, micro_batches: 2, zero: zero(stage), ..Row::default() };
            let row = Row { strategy: strategy.clone(), steps: 4, ..row };
            is_as_planned_with(&row, Some(outer));
        }
    }
}

#[test]
fn with_workers_that_meet_with_one_fragment_after_the_other() {
    let outer = |bytes, overlapped_fragments| OuterSteps {
        workers: 2,
        inner_steps: 4,
        bytes,
        state_bytes: 8,
        overlapped_fragments,
    };
    for (dtype, bytes) in [(OuterDtype::F32, 4), (OuterDtype::Int8, 1)] {
        for (count, overlap) in [(2, 0), (2, 1), (1, 3)] {
            let fragments = Fragments { count, overlap, mixing: 0.5 };
            let strategy = local_updates::streaming(4, dtype, Some(fragments));
            let outer = outer(bytes, if overlap > 0 { count } else { 0 });
            for (pp, dp, stage, tied) in [
                (1, 1, 0, false),
                (1, 2, 0, true),
                (1, 2, 1, true),
                (2, 2, 3, true),
                (2, 2, 1, true),
                (2, 1, 0, true),
            ] {
                let row =
                    Row { workers: 2, pp, dp, tied, micro_batches: 2, zero: zero(stage), ..Row::default() };
                let row = Row { strategy: strategy.clone(), steps: 8, ..row };
                is_as_planned_with(&row, Some(outer));
            }
        }
    }
}

#[test]
fn with_replicas_of_shards() {
    for (pp, replicate, dp, tied) in [(1, 2, 2, false), (1, 2, 1, false), (1, 4, 2, true), (2, 2, 2, true)] {
        for stage in 1..=3 {
            is_as_planned(&Row {
                pp,
                replicate,
                dp,
                tied,
                micro_batches: 2,
                zero: zero(stage),
                ..Row::default()
            });
        }
    }
}

#[test]
fn without_a_pipeline() {
    on_meshes(1);
}

#[test]
fn on_two_stages() {
    on_meshes(2);
}

#[test]
fn on_three_stages() {
    on_meshes(3);
}

#[test]
fn under_any_schedule() {
    for (schedule, chunks) in [
        (PipelineScheduleKind::GPipe, 1),
        (PipelineScheduleKind::OneFOneB, 1),
        (PipelineScheduleKind::Interleaved, 2),
        (PipelineScheduleKind::ZbH1, 1),
        (PipelineScheduleKind::ZbH2, 1),
        (PipelineScheduleKind::Zbv, 2),
    ] {
        for pp in [1, 2, 3] {
            for recompute in [Recompute::None, Recompute::Every(1), Recompute::Every(2)] {
                for (stage, tied) in [(0, false), (0, true), (2, true), (3, true)] {
                    // Interleaving takes micro-batches in groups of pp.
                    let micro_batches = if chunks == 2 { 4usize.next_multiple_of(pp) } else { 4 };
                    let row = Row { pp, dp: 2, layers: 6, micro_batches, schedule, chunks, ..Row::default() };
                    is_as_planned(&Row { recompute, tied, zero: zero(stage), ..row });
                }
            }
        }
    }
}

/// The layers of a GPT leave the products of their weights' gradients for the second half, and nothing else.
#[test]
fn second_halves_have_the_products_of_weights() {
    let row = Row { pp: 2, schedule: PipelineScheduleKind::ZbH1, ..Row::default() };
    let deferred = |row: &Row| -> Vec<u64> {
        configuration(row).saved_activations.iter().map(|block| block.deferred).collect()
    };
    // Of 12 tokens, what goes into each of a layer's four products, and the gradients of what comes out; and the gradients of
    // biases and norms, which are found before.
    let (width, floats) = (12, 4);
    let products = 12 * ((1 + 3) + (1 + 1) + (1 + 4) + (4 + 1)) * width;
    let others = (4 + 3 + 1 + 4 + 1) * width;
    let layer = floats * (products + others);
    assert_eq!(deferred(&row), [0, layer, layer, layer, 0, 0]);
    assert_eq!(deferred(&Row { fused: false, ..row.clone() }), [0; 6]);
    let tied = Row { tied: true, ..row.clone() };
    assert_eq!(deferred(&tied), deferred(&row));
    for row in [row.clone(), tied, Row { fused: false, ..row.clone() }, Row { precision: MIXED, ..row }] {
        is_as_planned(&row);
    }
}

#[test]
fn with_parameters_that_come_and_go() {
    for (reshard_after_forward, keep_gathered) in [
        (ReshardAfterForward::Default, false),
        (ReshardAfterForward::Always, false),
        (ReshardAfterForward::Never, false),
        (ReshardAfterForward::Default, true),
    ] {
        for prefetch in [0, 1, 3] {
            for (pp, micro_batches) in [(1, 1), (1, 4), (2, 4), (3, 2)] {
                let zero = Zero { prefetch, reshard_after_forward, keep_gathered, ..zero(3) };
                is_as_planned(&Row { pp, dp: 2, micro_batches, tied: true, zero, ..Row::default() });
            }
        }
    }
}

#[test]
fn with_gradients_summed_once_a_step() {
    for (stage, dp, micro_batches) in [(2, 2, 4), (2, 4, 7), (3, 2, 4), (3, 4, 1)] {
        for (pp, tied) in [(1, false), (1, true), (2, true), (3, true)] {
            let zero = Zero { reduce_every: ReduceEvery::Step, ..zero(stage) };
            is_as_planned(&Row { pp, dp, micro_batches, tied, zero, ..Row::default() });
        }
    }
}

#[test]
fn with_fewer_bits_and_masters() {
    let half = Precision { compute: Dtype::Bf16, reduce: Dtype::Bf16 };
    for (precision, offload) in [(MIXED, false), (half, false), (Precision::default(), true), (MIXED, true)] {
        for (pp, dp) in [(1, 1), (1, 2), (2, 2), (3, 1)] {
            for (stage, tied) in [(0, true), (1, true), (2, false), (3, true), (3, false)] {
                is_as_planned(&Row { pp, dp, precision, offload, tied, zero: zero(stage), ..Row::default() });
            }
        }
    }
}

/// The parameters of a block in [`step`]; any shard of up to four is whole chunks.
const BLOCK: u64 = 4 << 10;

/// One step of four layers on `dp` ranks; tied, the last layer has the first one's parameters.
fn step(dp: usize, micro_batches: u64, zero: Zero, tied: bool) -> Vec<StepReport> {
    on_threads(1, dp, |groups| {
        let device = brigade_cpu::device();
        let layer = || Layer { linear: LinearConfig::new(32, 32).with_bias(false).init(&device) };
        let chain = Chain::new().then("0", layer()).then("1", layer()).then("2", layer()).then("3", layer());
        let chain = if tied { chain.tie("3.linear.weight", "0.linear.weight") } else { chain };
        let settings = EngineSettings { zero, ..EngineSettings::default() };
        let mut engine = Engine::new(chain.loss(squared_error), 5, &adamw(), groups, settings).unwrap();
        let row = Tensor::<2>::ones([1, 32], &device);
        let batch = |_| Batch::new(row.clone(), row.clone(), 1);
        engine.step((0..micro_batches).map(batch).collect(), 1e-2).unwrap()
    })
}

/// The table of the ZeRO paper (Rajbhandari et al. 2020), and what a rank holds beyond it.
#[test]
fn the_table_of_zero_in_numbers() {
    let psi = 4 * BLOCK;
    for (dp, m) in [(1, 1), (1, 4), (2, 1), (2, 4), (4, 1), (4, 4)] {
        let shard = psi / dp;
        for (stage, parameters, gradients, optimizer, wire) in [
            (0, psi, psi, 2 * psi, 2),
            (1, psi, psi, 2 * shard, 2),
            (2, psi, shard, 2 * shard, m + 1),
            (3, shard, shard, 2 * shard, 3 * m),
        ] {
            let (gathers, moves) = (dp > 1 && stage == 3, dp > 1 && stage >= 2);
            // The block in use and the next one.
            let gathered = if gathers { 2 * BLOCK } else { 0 };
            // Of four micro-batches, the sum of the first two stands beside the third until the fourth comes.
            let partial = if m == 4 { gradients } else { 0 };
            // Two whole gradients are on their way; of one micro-batch, all other blocks' shards are there by then.
            let moving = match m {
                _ if !moves => 0,
                1 => 2 * (BLOCK - BLOCK / dp),
                _ => 2 * BLOCK,
            };
            let zero = Zero { reshard_after_forward: ReshardAfterForward::Always, ..zero(stage) };
            for report in step(dp as usize, m, zero, false) {
                let Memory { parameters: p, gradients: g, optimizer: o, .. } = report.memory;
                let what = format!("ZeRO-{stage}, dp {dp}, {m} micro-batches");
                assert_eq!((p.live, p.peak), (parameters, parameters + gathered), "{what}");
                let summed = if stage == 0 { psi } else { shard };
                assert_eq!((g.live, g.peak), (summed, gradients + partial + moving), "{what}");
                assert_eq!((o.live, o.peak), (optimizer, optimizer), "{what}");
                assert_eq!(sent(&report), wire * psi * (dp - 1) / dp, "{what}");
            }
        }
    }
}

/// Shared parameters count once, and what is kept longer is sent less often.
#[test]
fn the_wire_of_zero_in_numbers() {
    let once = Zero { reduce_every: ReduceEvery::Step, ..Zero::default() };
    let kept = Zero { keep_gathered: true, ..Zero::default() };
    let m = 4;
    for (dp, tied) in [(2, false), (2, true), (4, false), (4, true)] {
        let psi = if tied { 3 * BLOCK } else { 4 * BLOCK };
        for (zero, wire) in [
            (zero(0), 2),
            (zero(1), 2),
            (zero(2), m + 1),
            (Zero { stage: 2, ..once }, 2),
            (Zero { stage: 3, ..kept }, m + 1),
            (Zero { stage: 3, keep_gathered: true, ..once }, 2),
        ] {
            for report in step(dp as usize, m, zero, tied) {
                assert_eq!(sent(&report), wire * psi * (dp - 1) / dp, "{zero:?}, dp {dp}, tied {tied}");
            }
        }
    }
}

/// Bytes that a rank sent of parameters and gradients.
fn sent(report: &StepReport) -> u64 {
    measured(report).into_iter().filter(|(name, _)| !KINDS.contains(name)).map(|(_, (_, bytes))| bytes).sum()
}
