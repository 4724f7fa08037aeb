//! Runs that are simulated, slowed by whatever a test asks for.

use brigade_report::{CheckpointRecord, CollectiveRecord, HistoryRecord, RankSeconds, RunEvent, StepRecord};
use brigade_runs::{Run, RunState, settings_of};

/// How many steps each has.
pub const STEPS: u64 = 60;

/// What a run does in each step. Times are in seconds.
pub struct Simulated {
    pub pp: usize,
    pub dp: usize,
    /// How many of the ranks are servers, the last ones.
    pub servers: usize,
    pub micro_batches: usize,
    /// Targets of a step.
    pub tokens: u64,
    /// What a rank computes in a step, by step and rank.
    pub compute: Box<dyn Fn(u64, usize) -> f64>,
    pub data_wait: Box<dyn Fn(u64, usize) -> f64>,
    /// What a rank does besides.
    pub rest: Box<dyn Fn(u64, usize) -> f64>,
    /// What all ranks wait for when all have come, and what that is.
    pub communication: (f64, &'static str),
    /// Of what a pipeline fills and drains, the share that ranks wait with the numbers that end a step.
    pub draining: f64,
    /// Communication that nothing waits for.
    pub hidden: f64,
    /// What all ranks send in it.
    pub bytes: u64,
    /// How long a message takes between the hosts, if there are several.
    pub network_delay: Option<f64>,
    /// What passes after a step.
    pub between: Box<dyn Fn(u64) -> f64>,
    /// How long a checkpoint interrupts, and how many steps are between two.
    pub checkpoints: Option<(f64, u64)>,
    pub settings: &'static str,
    /// Lines of its section `[train]`.
    pub train: &'static str,
}

/// Four data-parallel ranks that are well.
impl Default for Simulated {
    fn default() -> Self {
        Self {
            pp: 1,
            dp: 4,
            servers: 0,
            micro_batches: 8,
            tokens: 4096,
            compute: Box::new(|_, _| 1.0),
            data_wait: Box::new(|_, _| 0.002),
            rest: Box::new(|_, _| 0.004),
            communication: (0.015, "all_reduce"),
            draining: 0.0,
            hidden: 0.0,
            bytes: 400_000_000,
            network_delay: None,
            between: Box::new(|_| 0.01),
            checkpoints: Some((0.05, 20)),
            settings: "",
            train: "",
        }
    }
}

/// A number from -1 to 1 that looks like chance.
pub fn chance(step: u64, rank: usize) -> f64 {
    let mixed = (step * 31 + rank as u64 * 17 + 7).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as f64 / (1u64 << 23) as f64 - 1.0
}

impl Simulated {
    pub fn run(&self) -> Run {
        let ranks = self.pp * self.dp;
        let mut time = 1.8e9;
        let mut records = Vec::new();
        for step in 1..=STEPS {
            let record = self.record(step);
            time += record.step_seconds;
            let stall = record.checkpoint.map_or(0.0, |saved| saved.stall_seconds);
            records.push(StepRecord { time: Some(time), ..record });
            time += (self.between)(step) + stall;
        }
        let started = RunEvent::Started {
            ranks,
            mesh: vec![("pp".into(), self.pp), ("dp".into(), self.dp)],
            servers: self.servers,
            total_steps: STEPS,
            unit: "tokens".into(),
            devices: None,
            network_delay_seconds: self.network_delay,
            restart: 0,
            resumed_at: None,
        };
        let batch = self.micro_batches * self.dp;
        let config = format!(
            "[train]\nmicro_batch_size = 1\nglobal_batch_size = {batch}\n{}[model]\nwidth = 8\n{}",
            self.train, self.settings
        );
        Run {
            dir: format!("runs/{ranks}").into(),
            name: ranks.to_string(),
            records,
            unreadable: 0,
            history: vec![HistoryRecord { time: 1.8e9, event: started }],
            settings: settings_of(&config),
            planned: None,
            state: RunState::Finished(None),
        }
    }

    fn record(&self, step: u64) -> StepRecord {
        let ranks = self.pp * self.dp;
        let of = |seconds: &dyn Fn(u64, usize) -> f64| -> Vec<f64> {
            (0..ranks).map(|rank| seconds(step, rank)).collect()
        };
        let compute = of(&|step, rank| (self.compute)(step, rank) * (1.0 + 0.01 * chance(step, rank)));
        let (data_wait, rest) = (of(&self.data_wait), of(&self.rest));
        let own: Vec<f64> = (0..ranks).map(|rank| compute[rank] + data_wait[rank] + rest[rank]).collect();
        let last = own.iter().copied().fold(0.0, f64::max);
        // The pipeline fills and drains: each stage idles for that long.
        let filling = (self.pp as f64 - 1.0) / self.micro_batches as f64 * last;
        let (seconds, what) = self.communication;
        let end = last + filling + seconds;
        let comm_wait: Vec<f64> = own.iter().map(|own| end - own).collect();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / ranks as f64;
        let in_pipeline = if self.pp > 1 { mean(&comm_wait) - seconds } else { 0.0 };
        let (late, early) = (in_pipeline * self.draining, in_pipeline * (1.0 - self.draining));
        let mut waits = vec![(what, mean(&comm_wait) - in_pipeline), ("pipeline", early)];
        if late > 0.0 {
            waits.push(("all_gather_scalars", late));
        }
        let checkpoint = self.checkpoints.filter(|(_, every)| step.is_multiple_of(*every));
        StepRecord {
            step,
            loss: 1.0,
            tokens: self.tokens,
            tokens_per_second: self.tokens as f64 / end,
            step_seconds: end,
            forward_seconds: mean(&compute) * 0.3,
            backward_seconds: mean(&compute) * 0.6,
            optimizer_seconds: mean(&compute) * 0.1,
            data_wait_seconds: mean(&data_wait),
            comm_wait_seconds: mean(&comm_wait),
            comm_wait_seconds_by: waits
                .into_iter()
                .map(|(what, seconds)| (what.to_owned(), seconds))
                .collect(),
            comm_hidden_seconds: Some(self.hidden),
            bubble_seconds: in_pipeline,
            comm_bytes: self.bytes,
            comm_calls: 10,
            collectives: [(what.to_owned(), CollectiveRecord { calls: 10, bytes: self.bytes })].into(),
            rank_seconds: Some(RankSeconds { step: vec![end; ranks], compute, data_wait, comm_wait }),
            checkpoint: checkpoint.map(|(stall_seconds, _)| CheckpointRecord {
                step,
                stall_seconds,
                bytes: 1,
                seconds: 1.0,
            }),
            ..StepRecord::default()
        }
    }
}
