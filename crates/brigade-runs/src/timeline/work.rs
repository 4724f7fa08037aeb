//! What each rank and each block took.

use std::collections::BTreeMap;

use brigade_plan::{Action, Pipeline, PipelineScheduleKind, ScheduleError, Stage};
use brigade_report::timeline::{Timeline, TimelineInfo, TraceEvent, TracePhase};

/// A time from and to, in microseconds.
pub(super) type Range = (f64, f64);

/// What ranks did in the steps of a timeline.
pub(super) struct Work<'a> {
    pub info: &'a TimelineInfo,
    pub ranks: Vec<RankWork<'a>>,
    /// By group and number of a collective: the rank that called it last, and when.
    pub last_callers: BTreeMap<(usize, usize), (usize, f64)>,
    /// Seconds of each block for a micro-batch: mean over the ranks that have it.
    pub blocks: Vec<BlockSeconds>,
}

/// Seconds of a block for a micro-batch.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BlockSeconds {
    pub forward: f64,
    pub backward: f64,
    pub backward_input: f64,
    pub backward_weights: f64,
}

/// What one rank did.
pub(super) struct RankWork<'a> {
    /// In its steps altogether.
    pub seconds: f64,
    /// In actions and what follows them, without waits.
    pub busy: f64,
    pub waits: Vec<&'a TraceEvent>,
    /// Collectives, by when they began.
    pub collectives: Vec<&'a TraceEvent>,
    pub steps: Vec<Range>,
}

impl<'a> Work<'a> {
    pub fn of(timeline: &'a Timeline) -> Self {
        let info = &timeline.other_data;
        let mut by_rank: BTreeMap<usize, Vec<&TraceEvent>> = BTreeMap::new();
        for event in timeline.trace_events.iter().filter(|event| event.ph == TracePhase::Complete) {
            by_rank.entry(event.pid).or_default().push(event);
        }
        let mut last_callers = BTreeMap::<(usize, usize), (usize, f64)>::new();
        for event in by_rank.values().flatten().filter(|event| event.cat == "collective") {
            let (Some(key), Some(called)) = (key(event), called(event)) else { continue };
            let last = last_callers.entry(key).or_insert((event.pid, called));
            if called > last.1 {
                *last = (event.pid, called);
            }
        }
        let mut blocks = BlockSums::new(info.blocks.len());
        let ranks = by_rank.into_values().map(|events| RankWork::of(events, &mut blocks)).collect();
        Self { info, ranks, last_callers, blocks: blocks.means() }
    }

    /// The stages of the pipeline.
    pub fn stages(&self) -> usize {
        self.axis("pp")
    }

    fn axis(&self, name: &str) -> usize {
        self.info.mesh.iter().find(|(axis, _)| axis == name).map_or(1, |(_, size)| (*size).max(1))
    }

    /// The stage of a rank, and the rank of another stage with the same micro-batches.
    pub fn stage(&self, rank: usize) -> usize {
        rank / self.inner() % self.stages()
    }

    pub fn rank_of_stage(&self, rank: usize, stage: usize) -> usize {
        rank - self.stage(rank) * self.inner() + stage * self.inner()
    }

    /// Ranks from one stage to the next.
    fn inner(&self) -> usize {
        let after = self.info.mesh.iter().skip_while(|(axis, _)| axis != "pp").skip(1);
        after.map(|(_, size)| (*size).max(1)).product()
    }

    /// The pipeline with the actions that ran.
    pub fn pipeline(&self) -> Result<Pipeline, ScheduleError> {
        let (stages, chunks) = (self.stages(), self.info.chunks.max(1));
        let kind = match stages * chunks {
            1 => PipelineScheduleKind::default(),
            _ => self.info.schedule.parse()?,
        };
        Pipeline::new(kind, stages, chunks, self.info.micro_batches)
    }

    /// Seconds of a rank's action, if the model is split so.
    pub fn seconds(&self, pipeline: &Pipeline, split: &[usize], rank: usize, action: Action) -> f64 {
        let stage = Stage::new(pipeline.placement(), rank, pipeline.stages, split);
        let sum = |chunk: usize, of: fn(&BlockSeconds) -> f64| -> f64 {
            stage.blocks(chunk).filter_map(|block| self.blocks.get(block)).map(of).sum()
        };
        match action {
            Action::Forward(task) => sum(task.chunk, |block| block.forward),
            Action::Backward(task) => sum(task.chunk, BlockSeconds::whole_backward),
            Action::BackwardInput(task) => sum(task.chunk, |block| block.backward_input),
            Action::BackwardWeights(task) => sum(task.chunk, |block| block.backward_weights),
            Action::Send { .. } | Action::Receive { .. } | Action::Reduce { .. } => 0.0,
        }
    }
}

impl BlockSeconds {
    fn whole_backward(&self) -> f64 {
        self.backward + self.backward_input + self.backward_weights
    }

    /// Forward and backward.
    pub fn total(&self) -> f64 {
        self.forward + self.whole_backward()
    }
}

impl<'a> RankWork<'a> {
    fn of(events: Vec<&'a TraceEvent>, blocks: &mut BlockSums) -> Self {
        let of = |category: &str| -> Vec<&'a TraceEvent> {
            let mut found: Vec<_> = events.iter().copied().filter(|event| event.cat == category).collect();
            found.sort_by(|a, b| a.ts.total_cmp(&b.ts));
            found
        };
        let steps: Vec<Range> = of("step").into_iter().map(|event| (event.ts, event.end())).collect();
        let is_within =
            |event: &&TraceEvent| steps.iter().any(|(start, end)| (*start..*end).contains(&event.ts));
        let waits: Vec<&TraceEvent> = of("wait").into_iter().filter(is_within).collect();
        let waited = |event: &TraceEvent| overlap(&waits, (event.ts, event.end()));
        let work = ["action", "phase", "loop"].into_iter().flat_map(of).filter(is_within);
        let busy = work.map(|event| event.end() - event.ts - waited(event)).sum::<f64>() / 1e6;
        for event in of("block") {
            blocks.add(event, (event.end() - event.ts - waited(event)) / 1e6);
        }
        let seconds = steps.iter().map(|(start, end)| end - start).sum::<f64>() / 1e6;
        Self { seconds, busy, collectives: of("collective"), waits, steps }
    }
}

/// How long waits, which are in order, overlap with a time.
fn overlap(waits: &[&TraceEvent], (start, end): Range) -> f64 {
    let first = waits.partition_point(|wait| wait.end() <= start);
    let within = waits[first..].iter().take_while(|wait| wait.ts < end);
    within.map(|wait| wait.end().min(end) - wait.ts.max(start)).sum()
}

/// What tells a collective from others.
pub(super) fn key(event: &TraceEvent) -> Option<(usize, usize)> {
    Some((event.number("group")?, event.number("number")?))
}

fn called(event: &TraceEvent) -> Option<f64> {
    event.args.get("called")?.as_f64()
}

/// Sums of what blocks took, by kind of action.
struct BlockSums(Vec<[(f64, usize); 4]>);

impl BlockSums {
    const ACTIONS: [&'static str; 4] = ["forward", "backward", "backward_input", "backward_weights"];

    fn new(blocks: usize) -> Self {
        Self(vec![[(0.0, 0); 4]; blocks])
    }

    fn add(&mut self, event: &TraceEvent, seconds: f64) {
        let kind = Self::ACTIONS.iter().position(|action| event.text("action") == Some(action));
        let block = event.number("block").and_then(|block| self.0.get_mut(block));
        if let (Some(sums), Some(kind)) = (block, kind) {
            sums[kind].0 += seconds;
            sums[kind].1 += 1;
        }
    }

    fn means(self) -> Vec<BlockSeconds> {
        let mean = |(sum, count): (f64, usize)| if count > 0 { sum / count as f64 } else { 0.0 };
        let block = |sums: [(f64, usize); 4]| {
            let [forward, backward, backward_input, backward_weights] = sums.map(mean);
            BlockSeconds { forward, backward, backward_input, backward_weights }
        };
        self.0.into_iter().map(block).collect()
    }
}
