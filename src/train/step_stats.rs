//! Figures of a step, gathered from all ranks, and the record of the step.

use std::time::Duration;

use brigade_core::{Bytes, Clock, CollectiveKind, Collectives, StepReport, Traffic, WAITS};
use brigade_report::{DeviceMemory, MemoryRecord, OuterStepRecord, RankSeconds, RoundRecord, StepRecord};
use brigade_sorted::SortedMap;

use crate::checkpoint::SaveProgress;
use crate::training_setup::{AgreedAnswers, ValidationReport};

/// The metrics of the number of valid targets, and of what they weigh.
const VALID_TARGETS: &str = "valid_targets";
const TARGET_WEIGHT: &str = "target_weight";

/// The status of a rank after a step, on which all ranks base their next action.
pub(crate) struct StepStatus {
    /// How far the rank is with saving a checkpoint.
    pub saving: SaveProgress,
    /// Whether it received a signal that its machine is about to be taken away.
    pub preempted: bool,
    /// What the hooks answered, as a number; that of rank 0 counts.
    pub answers: u8,
}

/// What a rank measured of a step, around the engine.
pub(crate) struct StepTimes {
    /// The whole step.
    pub step: Duration,
    /// Waiting for data.
    pub data_wait: Duration,
    /// In which at least one collective was under way.
    pub collectives: Duration,
}

impl StepTimes {
    /// The time of collectives that this rank did not wait for: hidden behind computing, or behind the pipeline.
    fn hidden(&self, clock: &Clock) -> Duration {
        let others = ["pipeline", "server"].map(|what| clock.waits.get(what).copied().unwrap_or_default());
        let waited = clock.comm_wait().saturating_sub(others.iter().sum());
        self.collectives.saturating_sub(waited)
    }
}

/// Figures and status of a step over all ranks.
pub(crate) struct StepStats {
    /// How far each rank is with saving a checkpoint.
    pub saving: Vec<SaveProgress>,
    /// Whether any rank's machine is about to be taken away.
    pub preempted: bool,
    /// What rank 0's hooks answered.
    pub answers: AgreedAnswers,
    /// Longest step of any rank.
    step_seconds: f64,
    /// The step on each rank.
    ranks: RankSeconds,
    /// Means over the ranks, in the order of [`gather`].
    seconds: [f64; 7],
    /// Means over the ranks, by what was waited for.
    waits: [f64; WAITS.len()],
    /// Maxima over the ranks.
    peak_rss_bytes: u64,
    in_flight: u64,
    outer_seconds: f64,
    memory: MemoryRecord,
    device_memory: Option<DeviceMemory>,
    /// Sum over the ranks.
    outer_bytes: u64,
    /// Calls of collectives by a rank, and the bytes that all ranks sent.
    traffic: Traffic,
}

const OPERATIONS: [CollectiveKind; 8] = [
    CollectiveKind::AllReduce,
    CollectiveKind::ReduceScatter,
    CollectiveKind::AllGather,
    CollectiveKind::AllToAll,
    CollectiveKind::Broadcast,
    CollectiveKind::Send,
    CollectiveKind::AllGatherScalars,
    CollectiveKind::Barrier,
];

/// Gathers the figures of a step from all ranks, which all call it. `device` is the memory of this rank's device, if it has its
/// own.
pub(crate) fn gather(
    collectives: &dyn Collectives,
    report: &StepReport,
    times: &StepTimes,
    device: Option<DeviceMemory>,
    status: StepStatus,
) -> anyhow::Result<StepStats> {
    let clock = &report.clock;
    let (forward, backward, optimizer) = (clock.forward, clock.backward, clock.optimizer);
    let seconds = [
        forward,
        backward,
        optimizer,
        times.data_wait,
        clock.comm_wait(),
        report.bubble,
        times.hidden(clock),
    ];
    let memory = report.memory;
    let memory = [memory.parameters, memory.gradients, memory.optimizer, memory.activations];
    let mut values =
        vec![times.step.as_secs_f64(), brigade_report::peak_rss_bytes() as f64, report.in_flight as f64];
    values.extend(memory.iter().flat_map(|Bytes { live, peak }| [*live as f64, *peak as f64]));
    let means = values.len();
    values.extend(seconds.iter().map(Duration::as_secs_f64));
    values.extend(WAITS.map(|what| clock.waits.get(what).map_or(0.0, Duration::as_secs_f64)));
    let counts = values.len();
    for operation in OPERATIONS {
        let (calls, bytes) = report.traffic.get(&operation).copied().unwrap_or_default();
        values.extend([calls as f64, bytes as f64]);
    }
    let outer = values.len();
    values.extend(report.outer.map_or([0.0; 2], |outer| [outer.sent as f64, outer.time.as_secs_f64()]));
    let device_memory = values.len();
    values.extend(device_values(device));
    let status_start = values.len();
    let StepStatus { saving, preempted, answers } = status;
    values.extend([f64::from(saving as u8), f64::from(u8::from(preempted)), f64::from(answers)]);
    let all = collectives.all_gather_scalars(values).wait()?;
    let sum = |index: usize| all.iter().map(|values| values[index]).sum::<f64>();
    let most = |index: usize| all.iter().map(|values| values[index]).fold(0.0, f64::max);
    let traffic = OPERATIONS.iter().enumerate().map(|(index, operation)| {
        (*operation, (most(counts + 2 * index) as u64, sum(counts + 2 * index + 1) as u64))
    });
    Ok(StepStats {
        saving: all.iter().map(|values| SaveProgress::from_number(values[status_start])).collect(),
        preempted: most(status_start + 1) > 0.0,
        answers: AgreedAnswers::from_number(all[0][status_start + 2] as u8),
        step_seconds: most(0),
        ranks: rank_seconds(&all, means),
        seconds: std::array::from_fn(|index| sum(means + index) / all.len() as f64),
        waits: std::array::from_fn(|index| sum(means + seconds.len() + index) / all.len() as f64),
        peak_rss_bytes: most(1) as u64,
        in_flight: most(2) as u64,
        outer_bytes: sum(outer) as u64,
        outer_seconds: most(outer + 1),
        memory: MemoryRecord {
            parameter_bytes: most(3) as u64,
            parameter_bytes_peak: most(4) as u64,
            gradient_bytes: most(5) as u64,
            gradient_bytes_peak: most(6) as u64,
            optimizer_bytes: most(7) as u64,
            optimizer_bytes_peak: most(8) as u64,
            activation_bytes: most(9) as u64,
            activation_bytes_peak: most(10) as u64,
        },
        device_memory: all
            .iter()
            .filter_map(|values| device_of(&values[device_memory..status_start]))
            .reduce(DeviceMemory::most),
        traffic: traffic.filter(|(_, (calls, _))| *calls > 0).collect(),
    })
}

/// The step's time on each rank, in whole microseconds; `means`: where the parts begin, in the order of [`gather`].
fn rank_seconds(all: &[Vec<f64>], means: usize) -> RankSeconds {
    let of = |seconds: &dyn Fn(&[f64]) -> f64| {
        all.iter().map(|values| (1e6 * seconds(values)).round() / 1e6).collect::<Vec<f64>>()
    };
    RankSeconds {
        step: of(&|values| values[0]),
        compute: of(&|values| values[means..means + 3].iter().sum()),
        data_wait: of(&|values| values[means + 3]),
        comm_wait: of(&|values| values[means + 4]),
    }
}

/// Up to how many ranks are recorded one by one in each step. Of larger worlds this is done only every few steps, so that there are
/// no more numbers.
const RANKS_PER_STEP: usize = 128;

/// Whether a step's record has the seconds of each of this many ranks.
fn has_ranks(step: u64, ranks: usize) -> bool {
    step.is_multiple_of(ranks.div_ceil(RANKS_PER_STEP).max(1) as u64)
}

/// A device's memory as numbers; missing ones are NaN.
fn device_values(memory: Option<DeviceMemory>) -> [f64; 4] {
    memory.map_or([f64::NAN; 4], |DeviceMemory { in_use, reserved, reserved_peak, total }| {
        let total = total.map_or(f64::NAN, |total| total as f64);
        [in_use as f64, reserved as f64, reserved_peak as f64, total]
    })
}

fn device_of(values: &[f64]) -> Option<DeviceMemory> {
    let bytes = |index: usize| values.get(index).filter(|value| !value.is_nan()).map(|value| *value as u64);
    Some(DeviceMemory { in_use: bytes(0)?, reserved: bytes(1)?, reserved_peak: bytes(2)?, total: bytes(3) })
}

/// The record of the step of all ranks, without what comes after it.
pub(crate) fn record(report: &StepReport, learning_rate: f64, stats: &StepStats) -> StepRecord {
    let [forward, backward, optimizer, data_wait, comm_wait, bubble, hidden] = stats.seconds;
    let collectives: SortedMap<String, brigade_report::CollectiveRecord> = stats
        .traffic
        .iter()
        .map(|(operation, (calls, bytes))| {
            (operation.name().to_owned(), brigade_report::CollectiveRecord { calls: *calls, bytes: *bytes })
        })
        .collect();
    StepRecord {
        step: report.step,
        loss: report.loss,
        metrics: with_targets(report.metrics.clone(), report.targets, report.target_weight),
        grad_norm: report.grad_norm,
        learning_rate,
        skipped: report.skipped,
        tokens: report.targets,
        unit: None,
        tokens_per_second: report.targets as f64 / stats.step_seconds,
        step_seconds: stats.step_seconds,
        forward_seconds: forward,
        backward_seconds: backward,
        optimizer_seconds: optimizer,
        data_wait_seconds: data_wait,
        comm_wait_seconds: comm_wait,
        comm_wait_seconds_by: WAITS
            .into_iter()
            .zip(stats.waits)
            .filter(|(_, seconds)| *seconds > 0.0)
            .map(|(what, seconds)| (what.to_owned(), seconds))
            .collect(),
        comm_hidden_seconds: Some(hidden),
        bubble_seconds: bubble,
        micro_batches_in_flight: stats.in_flight,
        // The reporter knows the FLOPs of a token and fills these in.
        tflops: None,
        mfu_percent: None,
        memory: stats.memory,
        device_memory: stats.device_memory,
        comm_bytes: collectives.values().map(|c| c.bytes).sum(),
        comm_calls: collectives.values().map(|c| c.calls).sum(),
        collectives,
        peak_rss_bytes: stats.peak_rss_bytes,
        time: Some(brigade_report::now()),
        rank_seconds: has_ranks(report.step, stats.ranks.step.len()).then(|| stats.ranks.clone()),
        outer_step: report.outer.map(|outer| OuterStepRecord {
            workers: outer.workers as u64,
            bytes: stats.outer_bytes,
            seconds: stats.outer_seconds,
            skipped_updates: outer.skipped,
        }),
        round: report.round.map(|round| RoundRecord {
            steps: round.steps,
            staleness_mean: round.staleness_mean,
            staleness_max: round.staleness_most,
            waits: round.waits,
            wait_seconds: round.waited.as_secs_f64(),
            skipped_updates: round.skipped,
            workers: round.workers as u64,
            lost_workers: round.lost,
        }),
        // What comes after the step is added to it.
        hook_seconds: None,
        validation_loss: None,
        validation_metrics: SortedMap::new(),
        checkpoint: None,
    }
}

/// Adds what a validation after the step found.
pub(crate) fn add_validation(record: &mut StepRecord, found: &ValidationReport) {
    record.validation_loss = Some(found.loss);
    record.validation_metrics = with_targets(found.metrics.clone(), found.targets, found.target_weight);
}

/// Adds the number of valid targets, which the metrics of a model are means over, and their weight, where they have one.
fn with_targets(mut metrics: SortedMap<String, f64>, targets: u64, weight: f64) -> SortedMap<String, f64> {
    metrics.insert(VALID_TARGETS.to_owned(), targets as f64);
    if weight.is_finite() && weight != targets as f64 {
        metrics.insert(TARGET_WEIGHT.to_owned(), weight);
    }
    metrics
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]

    use std::thread;

    use brigade_comm::{Timeouts, threads};
    use brigade_core::{Clock, Memory, Mesh};

    use super::*;

    /// A step of one target with nothing in it.
    pub(in crate::train) fn report() -> StepReport {
        StepReport {
            step: 1,
            loss: 0.0,
            metrics: SortedMap::new(),
            grad_norm: 0.0,
            targets: 1,
            target_weight: 1.0,
            skipped: false,
            outer: None,
            round: None,
            clock: Clock::default(),
            bubble: Duration::ZERO,
            in_flight: 0,
            memory: Memory::default(),
            traffic: Traffic::default(),
        }
    }

    /// What each rank of a world records, given the memory of each rank's device.
    fn recorded(own: &[Option<DeviceMemory>]) -> Vec<StepRecord> {
        let worlds = threads(own.len(), Timeouts::default());
        thread::scope(|scope| {
            let ranks: Vec<_> = worlds
                .into_iter()
                .zip(own)
                .map(|(group, device)| {
                    scope.spawn(move || {
                        let mesh = Mesh::data_parallel(group.size());
                        let world = brigade_cpu::groups(&group, mesh).unwrap().world().clone();
                        let status = StepStatus { saving: SaveProgress::Idle, preempted: false, answers: 0 };
                        let second = Duration::from_secs(1);
                        let report = report();
                        let step = second * (2 + group.rank() as u32);
                        let times = StepTimes { step, data_wait: second, collectives: second };
                        let stats = gather(world.as_ref(), &report, &times, *device, status).unwrap();
                        record(&report, 0.0, &stats)
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_ranks_record_the_fullest_device() {
        let memory = |in_use, reserved, reserved_peak, total| {
            Some(DeviceMemory { in_use, reserved, reserved_peak, total })
        };
        let own = [memory(5, 6, 9, Some(80)), memory(4, 7, 8, Some(40))];
        let recorded_memory = |own: &[Option<DeviceMemory>]| -> Vec<Option<DeviceMemory>> {
            recorded(own).into_iter().map(|record| record.device_memory).collect()
        };
        assert_eq!(recorded_memory(&own), [memory(5, 7, 9, Some(40)); 2]);
        assert_eq!(recorded_memory(&[memory(0, 1, 1 << 40, None), None]), [memory(0, 1, 1 << 40, None); 2]);
        assert_eq!(recorded_memory(&[None, None]), [None; 2]);
    }

    #[test]
    fn collectives_that_nothing_waited_for_are_hidden() {
        let seconds = Duration::from_secs;
        let waits = [("all_reduce", seconds(1)), ("outer_step", seconds(2)), ("pipeline", seconds(8))];
        let clock = Clock { waits: SortedMap::from(waits), ..Clock::default() };
        let hidden = |collectives| {
            StepTimes { step: seconds(20), data_wait: seconds(0), collectives: seconds(collectives) }
                .hidden(&clock)
        };
        assert_eq!([7, 3, 2].map(hidden), [4, 0, 0].map(seconds));
    }

    #[test]
    fn each_ranks_time_is_recorded_and_large_worlds_write_no_more() {
        let ranks = RankSeconds {
            step: vec![2.0, 3.0, 4.0],
            compute: vec![0.0; 3],
            data_wait: vec![1.0; 3],
            comm_wait: vec![0.0; 3],
        };
        for record in recorded(&[None; 3]) {
            assert_eq!((record.step_seconds, record.rank_seconds.as_ref()), (4.0, Some(&ranks)));
            assert!(record.time.is_some());
            assert_eq!(record.comm_hidden_seconds, Some(1.0));
        }
        let steps = |ranks| (1..=16).filter(|step| has_ranks(*step, ranks)).count();
        assert_eq!([1, 128, 129, 1024].map(steps), [16, 16, 8, 2]);
    }
}
