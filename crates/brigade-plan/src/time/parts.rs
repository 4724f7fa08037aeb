//! The time of a step by what it is spent on.

use serde::Serialize;

/// Where a step's seconds go, as a mean over the stages of the first column. They add up to the step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct StepParts {
    /// Forward and backward.
    pub compute: f64,
    /// Forwards that run again in the backward.
    pub recompute: f64,
    /// What forward and backward take longer beside collectives.
    pub contention: f64,
    /// Collectives within layers.
    pub tensor_parallel: f64,
    /// Waiting for parameters that are gathered, before their use and after the optimizer.
    pub all_gather: f64,
    /// Waiting for gradients that are reduced.
    pub reduce: f64,
    /// Waiting for messages while they travel.
    pub send: f64,
    /// Waiting for slow ranks.
    pub stragglers: f64,
    /// Waiting for other stages.
    pub bubble: f64,
    /// The optimizer's step.
    pub optimizer: f64,
    /// Other work of the host.
    pub host: f64,
    /// Waiting for a core that other ranks compute on.
    pub cores: f64,
}

impl StepParts {
    /// Each part with its name.
    pub fn parts(&self) -> [(&'static str, f64); 12] {
        let Self {
            compute,
            recompute,
            contention,
            tensor_parallel,
            all_gather,
            reduce,
            send,
            stragglers,
            bubble,
            optimizer,
            host,
            cores,
        } = *self;
        [
            ("compute", compute),
            ("recompute", recompute),
            ("contention", contention),
            ("tensor parallel", tensor_parallel),
            ("all-gather", all_gather),
            ("reduce", reduce),
            ("send", send),
            ("stragglers", stragglers),
            ("bubble", bubble),
            ("optimizer", optimizer),
            ("host", host),
            ("shared cores", cores),
        ]
    }

    /// The step.
    pub fn total(&self) -> f64 {
        self.parts().iter().map(|(_, seconds)| seconds).sum()
    }

    /// What a rank waits for: parameters, gradients, messages, slow ranks, other stages.
    pub(super) fn waits(&self) -> [f64; 5] {
        [self.all_gather, self.reduce, self.send, self.stragglers, self.bubble]
    }

    /// The same where this many ranks share each core, which computes for others while a rank waits: a step takes at least as long as its cores are busy.
    pub(crate) fn on_shared_cores(self, ranks_per_core: f64) -> Self {
        if ranks_per_core <= 1.0 {
            return self;
        }
        let busy = self.compute + self.recompute + self.contention + self.optimizer + self.host;
        Self { cores: (ranks_per_core * busy - self.total()).max(0.0), ..self }
    }

    /// Both, part by part.
    pub(super) fn combined(&self, other: &Self, with: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            compute: with(self.compute, other.compute),
            recompute: with(self.recompute, other.recompute),
            contention: with(self.contention, other.contention),
            tensor_parallel: with(self.tensor_parallel, other.tensor_parallel),
            all_gather: with(self.all_gather, other.all_gather),
            reduce: with(self.reduce, other.reduce),
            send: with(self.send, other.send),
            stragglers: with(self.stragglers, other.stragglers),
            bubble: with(self.bubble, other.bubble),
            optimizer: with(self.optimizer, other.optimizer),
            host: with(self.host, other.host),
            cores: with(self.cores, other.cores),
        }
    }
}
