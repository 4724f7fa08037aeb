//! Calls and bytes that a rank sends in a step, or in all steps up to an update, or to an outer step.

use brigade_compress::{Cost, Sends};

use super::configuration::{CHUNK, Configuration, FP32, OuterSteps};
use super::sizes::{BoundaryTensor, UnitSize};
use super::stage_units::{StageUnit, StageUnits};
use crate::schedule::{Action, Pass, StageTask};

/// Bytes at the end of a message between stages: the length of its description.
const LENGTH: u64 = 4;

/// Bytes of the description of a tensor in a message, and of each of its dimensions.
const DESCRIPTION: (u64, u64) = (2, 8);

/// Bytes of the description of a missing tensor.
const ABSENT: u64 = 1;

/// Calls of one operation, and the payload bytes that a rank sends in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Calls up to an update.
    pub calls: u64,
    /// Bytes to other ranks, over all calls, as far as they are known.
    pub bytes: u64,
    /// Calls whose bytes are not known: messages between stages where activations are not.
    pub unknown_calls: u64,
}

/// What a rank sends in a step, or in all steps up to an update, by operation; nothing in a group of one rank. Each of `n` ranks sends `2 L (n-1)/n` bytes to
/// all-reduce `L` bytes, and `L (n-1)/n` to reduce-scatter or to all-gather them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepTraffic {
    /// Gradients of which every rank gets the whole sum, or with replicas of shards each replica that of the shard; in outer steps, what
    /// workers tell each other (but for running state).
    pub all_reduce: Sent,
    /// Gradients of which every rank gets its shard.
    pub reduce_scatter: Sent,
    /// Codes of gradients, one for each rank.
    pub all_to_all: Sent,
    /// Codes of sums of gradients. Parameters, from shards: after the optimizer's step, or under ZeRO-3 before their use.
    pub all_gather: Sent,
    /// Messages between stages: activations forward; their gradients backward, and with them, at each boundary between the
    /// block that owns a shared parameter and the last one that reads it, the parameter's whole gradient; the new values
    /// of shared parameters to the other stages that read them. A message describes its tensors; those bytes count.
    pub send: Sent,
}

impl StepTraffic {
    /// Each operation with its name in metrics.
    pub fn by_operation(&self) -> [(&'static str, Sent); 5] {
        let Self { all_reduce, reduce_scatter, all_to_all, all_gather, send } = *self;
        [
            ("all_reduce", all_reduce),
            ("reduce_scatter", reduce_scatter),
            ("all_to_all", all_to_all),
            ("all_gather", all_gather),
            ("send", send),
        ]
    }

    /// Bytes of all operations.
    pub fn bytes(&self) -> u64 {
        self.by_operation().iter().map(|(_, sent)| sent.bytes).sum()
    }
}

impl StepTraffic {
    /// Adds this many sums of a unit's gradient over the ranks as codes.
    fn add_codes(&mut self, codes: Cost, sums: u64, ranks: u64, sends_sums: bool) {
        match codes.sends {
            Sends::Codes(bytes) => {
                self.all_to_all.add(sums, bytes * (ranks - 1));
                self.all_gather.add(if sends_sums { sums } else { 0 }, bytes * (ranks - 1));
            }
            Sends::Factors(messages) => {
                for numbers in messages.into_iter().filter(|numbers| *numbers > 0) {
                    self.all_reduce.add(sums, FP32 * all_reduced(numbers as u64, ranks));
                }
            }
        }
    }
}

impl Sent {
    fn add(&mut self, calls: u64, bytes: u64) {
        self.calls += calls;
        self.bytes += calls * bytes;
    }

    fn add_unknown(&mut self, calls: u64) {
        self.calls += calls;
        self.unknown_calls += calls;
    }

    fn times(self, times: u64) -> Self {
        Self {
            calls: times * self.calls,
            bytes: times * self.bytes,
            unknown_calls: times * self.unknown_calls,
        }
    }
}

pub(super) fn traffic(stage_units: &StageUnits<'_>) -> StepTraffic {
    let configuration = stage_units.configuration;
    let (ranks, replicas) = (configuration.dp as u64, configuration.replicas as u64);
    let reduce = configuration.reduce_bytes as u64;
    let steps = configuration.sync_every as u64;
    let mut traffic = StepTraffic::default();
    if ranks > 1 {
        let sums = if configuration.sums_each_micro_batch() {
            configuration.micro_batches as u64 * steps
        } else {
            1
        };
        for unit in stage_units.units.iter().filter(|unit| unit.is_stepped) {
            let (length, own) = (unit.length as u64, unit.own as u64);
            if let (Some(codes), 1) = (unit.codes, replicas) {
                traffic.add_codes(codes, sums, ranks, !configuration.is_sharded());
            } else if configuration.is_sharded() {
                traffic.reduce_scatter.add(sums, reduce * own * (ranks - 1));
            } else {
                traffic.all_reduce.add(sums, reduce * all_reduced(length, ranks));
            }
        }
        for (unit, calls) in stage_units.units.iter().zip(gathers(stage_units)) {
            traffic.all_gather.add(calls, unit.gathered_bytes() * (ranks - 1));
        }
    }
    for unit in stage_units.units.iter().filter(|unit| unit.is_stepped && replicas > 1) {
        match unit.codes {
            Some(codes) => traffic.add_codes(codes, 1, replicas, true),
            None => traffic.all_reduce.add(1, reduce * all_reduced(unit.own as u64, replicas)),
        }
    }
    traffic.send = sends(stage_units);
    match configuration.outer {
        Some(outer) => with_outer_step(stage_units, outer, traffic),
        None => traffic,
    }
}

/// What is sent in updates of a worker that send so much each, and in the outer step behind them.
fn with_outer_step(stage_units: &StageUnits<'_>, outer: OuterSteps, update: StepTraffic) -> StepTraffic {
    let (times, configuration) = (outer.inner_steps as u64, stage_units.configuration);
    let mut traffic = StepTraffic {
        all_reduce: update.all_reduce.times(times),
        reduce_scatter: update.reduce_scatter.times(times),
        all_to_all: update.all_to_all.times(times),
        all_gather: update.all_gather.times(times),
        send: update.send.times(times),
    };
    for unit in stage_units.units.iter().filter(|unit| unit.is_stepped) {
        if outer.workers > 1 {
            let (own, workers) = (unit.own as u64, outer.workers as u64);
            match outer.bytes {
                1 => {
                    let chunks = own.div_ceil(workers).div_ceil(CHUNK as u64);
                    let code =
                        Cost { sends: Sends::Codes(chunks * (FP32 + CHUNK as u64)), kept: 0, in_flight: 0 };
                    traffic.add_codes(code, 1, workers, true);
                }
                bytes => traffic.all_reduce.add(1, bytes as u64 * all_reduced(own, workers)),
            }
        }
        traffic.send.add(unit.other_readers as u64, new_values(unit));
    }
    let shards = configuration.dp as u64;
    let gathered = configuration.is_sharded() && !configuration.gathers();
    for unit in stage_units.units.iter().filter(|unit| gathered && unit.trainable) {
        traffic.all_gather.add(1, unit.gathered_bytes() * (shards - 1));
    }
    traffic
}

/// The bytes of a message with the new values of a unit.
fn new_values(unit: &StageUnit) -> u64 {
    LENGTH + tensor(unit.compute_bytes * unit.own as u64, 1)
}

/// The elements that the first of some ranks sends to all-reduce this many. To sum a slice, it sends the rest of its buffer; then it sends
/// the sum of its slice to each peer.
fn all_reduced(elements: u64, ranks: u64) -> u64 {
    let slice = elements.div_ceil(ranks);
    elements - slice + slice * (ranks - 1)
}

/// How often each unit is gathered up to an update.
fn gathers(stage_units: &StageUnits<'_>) -> Vec<u64> {
    let after_the_step =
        u64::from(stage_units.configuration.is_sharded() && !stage_units.configuration.gathers());
    let after_the_step = |unit: &StageUnit| if unit.trainable { after_the_step } else { 0 };
    let mut gathers: Vec<u64> = stage_units.units.iter().map(after_the_step).collect();
    for unit in stage_units.schedule.unshard_plan.iter().flat_map(|step| &step.unshard) {
        gathers[*unit] += stage_units.configuration.sync_every as u64;
    }
    gathers
}

/// Messages to other stages.
fn sends(stage_units: &StageUnits<'_>) -> Sent {
    let configuration = stage_units.configuration;
    let mut sent = Sent::default();
    for action in &stage_units.schedule.actions {
        if let Action::Send { pass, task: StageTask { chunk, micro_batch }, .. } = action {
            let blocks = stage_units.stage.blocks(*chunk);
            let bytes = match pass {
                Pass::Forward => activation(Pass::Forward, configuration.boundary(blocks.end)),
                Pass::Backward => {
                    let gradient = activation(Pass::Backward, configuration.boundary(blocks.start));
                    let is_last = micro_batch + 1 == configuration.micro_batches;
                    gradient.map(|bytes| bytes + relayed(configuration, blocks.start, is_last))
                }
            };
            match bytes {
                Some(bytes) => sent.add(configuration.sync_every as u64, bytes),
                None => sent.add_unknown(configuration.sync_every as u64),
            }
        }
    }
    for unit in stage_units.units.iter().filter(|unit| unit.is_stepped) {
        sent.add(unit.other_readers as u64, new_values(unit));
    }
    sent
}

/// The bytes of a message with an activation or its gradients, if they are known.
fn activation(pass: Pass, boundary: &[BoundaryTensor]) -> Option<u64> {
    let part = |part: &BoundaryTensor| match pass {
        Pass::Backward if !part.has_gradient => ABSENT,
        _ => tensor(part.bytes, part.dimensions),
    };
    (!boundary.is_empty()).then(|| LENGTH + boundary.iter().map(part).sum::<u64>())
}

/// The bytes of the tied weights' gradients that are sent together with the gradient of a block's input, that of the last micro-batch if `is_last`.
fn relayed(configuration: &Configuration, block: usize, is_last: bool) -> u64 {
    let crosses =
        |unit: &&UnitSize| unit.owner_block < block && unit.users.last().is_some_and(|last| *last >= block);
    let each = configuration.tied_each_micro_batch;
    let gradient = |unit: &UnitSize| match unit.trainable && (each || is_last) {
        true => {
            let bytes = if each { configuration.bytes_per_value(unit) } else { FP32 };
            tensor(bytes * configuration.lengths(unit.elements).0 as u64, 1)
        }
        false => ABSENT,
    };
    configuration.units.iter().filter(crosses).map(gradient).sum()
}

fn tensor(bytes: u64, dimensions: usize) -> u64 {
    bytes + DESCRIPTION.0 + DESCRIPTION.1 * dimensions as u64
}
